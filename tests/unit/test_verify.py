"""covey.verify: every problem is found and located."""

import dataclasses
import errno
import gzip
import json
import os
import random
import shutil
import zlib

import numpy as np
import pytest
from corrupt_files import corrupt_files, example, flip, frame
from hypothesis import given, settings
from hypothesis import strategies as st
from written import about, index, shard_paths, write

import covey
from covey import _core
from covey.classes import class_table, sort_by_class
from covey.compat.datum import Serializer, TFRecordWriter
from covey.index import Index, IndexBuilder, ShardFiles, index_names, write_index
from covey.maintenance.report import Problems
from covey.maintenance.scan import ShardReader
from covey.maintenance.verify import verify
from covey.results import MAX_TABLE_ROWS as LISTED
from covey.results import Problem
from covey.storage import LocalStorage

NAMES = ("crow", "owl", "wren")


def birds(count=60, first=0):
    return [
        {"size": n, "song": [n / 2, 1.0], "species": NAMES[n % 3]}
        for n in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """A valid dataset of two splits."""
    directory = tmp_path_factory.mktemp("valid") / "birds"
    write(birds(), directory, label="species", shards=3)
    write(birds(9), directory, "test")
    return directory


@pytest.fixture
def directory(valid, tmp_path):
    return shutil.copytree(valid, tmp_path / "birds")


def check(path, **options):
    return verify(path, progress=False, **options)


def locations(report):
    return [(each.file, each.record, each.offset) for each in report.problems]


def only(report):
    (problem,) = report.problems
    return problem


def only_of(report, file):
    (problem,) = [each for each in report.problems if each.file == file]
    return problem


def shard(directory, number=0, split="train"):
    return shard_paths(directory, split)[number]


def change(path, at, by=b"?"):
    """Overwrite some bytes of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(by)


# Valid datasets.


def test_datasets_of_covey_are_valid(valid):
    report = check(valid)
    assert report.is_valid
    assert report.problems == ()
    assert (report.files, report.records) == (4, 69)
    assert report.bytes == sum(
        path.stat().st_size for split in ("train", "test") for path in shard_paths(valid, split)
    )
    assert str(report).endswith("no problems")
    assert report.splits == ("train", "test")


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
@pytest.mark.parametrize("label", [None, "species"])
def test_datasets_with_any_options_are_valid(tmp_path, compression, label):
    examples = [{"size": n, "species": f"bird {n % 5}", "song": [1.0] * (n % 4)} for n in range(80)]
    kinds = {"size": "int64", "species": "str", "song": covey.Tensor("float32", (None,))}
    write(examples, tmp_path, label=label, features=kinds, shards=2, compression=compression)
    report = check(tmp_path)
    assert report.problems == ()
    assert report.records == 80


def test_every_feature_type_is_valid(tmp_path):
    kinds = {
        "box": {"corner": covey.Tensor("float32", (2,)), "name": "str"},
        "counts": covey.Ragged("int64", 2),
        "sparse": covey.Sparse("float32", (10,)),
        "raw": covey.Tensor("uint8", (4, 4), encoding="zlib"),
        "maybe": covey.Tensor("int64", default=7),
        "label": covey.ClassLabel(num_classes=4),
    }
    examples = [
        {
            "box": {"corner": [n, 1.0], "name": "x"},
            "counts": [[1, 2], [3] * n],
            "sparse": covey.arrays.SparseArray(np.array([[n]]), np.array([0.5], np.float32), (10,)),
            "raw": np.full((4, 4), n, np.uint8),
            "label": n % 4,
        }
        for n in range(8)
    ]
    write(examples, tmp_path, features=kinds, label="label")
    assert check(tmp_path).problems == ()


def test_later_split_with_more_classes(tmp_path):
    write(birds(3), tmp_path, label="species")
    write([{"size": 1, "song": [0.0, 0.0], "species": "finch"}], tmp_path, "test")
    assert check(tmp_path).problems == ()


def test_appended_shards(tmp_path):
    write(birds(20), tmp_path, label="species", shards=2)
    more = [{"size": 1, "song": [0.0, 0.0], "species": name} for name in ("auk", "owl")]
    write(more, tmp_path, mode="append")
    assert check(tmp_path).problems == ()
    assert check(tmp_path).records == 22


def test_empty_files(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"")
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(b""))
    assert check(tmp_path).problems == ()
    covey.build_index(tmp_path, progress=False)
    assert (tmp_path / "covey-all.index.npy").exists()
    report = check(tmp_path)
    assert (report.problems, report.files, report.records) == ((), 2, 0)


def test_dataset_without_splits(tmp_path):
    (tmp_path / "dataset_info.json").write_text('{"name": "birds", "version": "1.0.0"}')
    (tmp_path / "features.json").write_text(
        '{"pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",'
        '"featuresDict": {}}'
    )
    assert check(tmp_path).is_valid


def test_split_option(directory):
    change(shard(directory), 30)
    assert check(directory, split="test").is_valid
    assert not check(directory, split="test + train").is_valid
    assert check(directory, split="test").splits == ("test",)
    for wrong in ("val", "train[:5]"):
        with pytest.raises(covey.errors.DatasetError) as caught:
            check(directory, split=wrong)
        assert (caught.value.option, caught.value.found) == ("split", wrong)
        assert "train, test" in caught.value.allowed


def test_verify_writes_nothing(directory):
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    check(directory)
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def test_missing_path(tmp_path):
    with pytest.raises(covey.errors.DatasetError, match="no such file"):
        check(tmp_path / "nowhere")
    with pytest.raises(covey.errors.DatasetError, match="nor a TFRecord file") as caught:
        check(tmp_path)
    assert caught.value.path == str(tmp_path)


# Corrupt files.


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return corrupt_files(tmp_path_factory.mktemp("corrupt"))


NOT_AN_EXAMPLE = "it is not a tf.train.Example"


def corruptions(report, name):
    """Locations of corrupt records, without records that are not Examples."""
    assert {each.file for each in report.problems} <= {name}
    return [(p.record, p.offset) for p in report.problems if NOT_AN_EXAMPLE not in p.reason]


def test_every_corruption_is_reported_at_its_record(cases):
    assert len(cases) >= 500

    def is_right(case):
        found = corruptions(check(case.path, threads=1), case.path.name)
        expected = case.corruptions if case.corruptions is not None else [case.first]
        return found[: len(expected)] == expected and (
            found == expected or case.corruptions is None
        )

    assert [case.path.name for case in cases if not is_right(case)] == []


def test_all_corrupt_files_in_one_directory(cases):
    """The problems of each file are those that are found in it alone."""
    report = check(cases[0].path.parent)
    assert report.files == len(cases)
    found = {}
    for each in report.problems:
        found.setdefault(each.file, []).append((each.record, each.offset, each.reason))
    for case in cases[::10]:
        alone = [(p.record, p.offset, p.reason) for p in check(case.path).problems]
        assert found.get(case.path.name, []) == alone


@pytest.fixture(scope="module")
def indexed_cases(cases, tmp_path_factory):
    """Corrupt plain files, and the index of the valid file."""
    plain = [c for c in cases if c.kind.startswith(("plain-flip", "plain-zero-page", "plain-cut"))]
    (complete,) = [case for case in cases if case.kind == "plain-unchanged"]
    directory = tmp_path_factory.mktemp("indexed")
    shutil.copy(complete.path, directory / "birds.tfrecord")
    files = ShardFiles(LocalStorage(), str(directory), ("birds.tfrecord",))
    anything = covey.Features({"x": covey.Tensor("int64", (None,), default=[])})
    made = IndexBuilder(features=anything, label=None, progress=False).build(files)
    write_index(directory, "birds.tfrecord", made)
    return directory, [each for each in plain if "large" not in each.kind and each.first]


@pytest.mark.parametrize("kind", ["gzip-members", "gzip-stored", "gzip-stream", "zlib"])
def test_corruption_of_compressed_files_with_an_index(cases, tmp_path, kind):
    """With an index, the valid members are read first."""
    (complete,) = [case for case in cases if case.kind == f"{kind}-unchanged"]
    path = tmp_path / "birds.tfrecord"
    shutil.copy(complete.path, path)
    files = ShardFiles(LocalStorage(), str(tmp_path), (path.name,))
    anything = covey.Features({"x": covey.Tensor("int64", (None,), default=[])})
    made = IndexBuilder(features=anything, label=None, progress=False).build(files)
    write_index(tmp_path, path.name, made)
    mine = [case for case in cases if case.kind.startswith(f"{kind}-") and case.first]
    assert len(mine) > 15
    for case in mine:
        shutil.copy(case.path, path)
        report = check(path)
        alone = check(case.path)
        assert {each.file for each in report.problems} == {path.name}, case.path.name
        found = [(p.record, p.offset) for p in report.problems if NOT_AN_EXAMPLE not in p.reason]
        expected = [(p.record, p.offset) for p in alone.problems if NOT_AN_EXAMPLE not in p.reason]
        assert [each for each in found if each != (None, None)] == expected, case.path.name


def test_corruption_makes_no_row_of_the_index_wrong(indexed_cases):
    directory, cases = indexed_cases
    assert len(cases) > 70
    for case in cases:
        shutil.copy(case.path, directory / "birds.tfrecord")
        report = check(directory / "birds.tfrecord")
        assert {each.file for each in report.problems} == {"birds.tfrecord"}, case.path.name
        first = next(
            (p.record, p.offset) for p in report.problems if NOT_AN_EXAMPLE not in p.reason
        )
        assert first == case.first


def test_corrupt_record_of_a_dataset(directory):
    path = shard(directory, 1)
    row = index(directory)[index(directory)["shard"] == 1][7]
    change(path, int(row["offset"]) + 14)
    problem = only(check(directory))
    assert (problem.file, problem.split) == (path.name, "train")
    assert (problem.record, problem.offset) == (7, row["offset"])
    assert "data checksum is" in problem.reason


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_corrupt_compressed_shard_of_a_dataset(tmp_path, compression):
    rng = np.random.default_rng(0)
    examples = {"x": rng.integers(0, 256, (400, 200), np.uint8), "label": np.arange(400) % 7}
    write(examples, tmp_path, label="label", compression=compression)
    path = shard(tmp_path)
    change(path, path.stat().st_size // 2, b"\0" * 9)
    report = check(tmp_path)
    assert {each.file for each in report.problems} == {path.name}
    first = report.problems[0]
    assert 190 < first.record < 210
    assert first.offset == (index(tmp_path)["length"][: first.record].astype(int) + 16).sum()
    # The data that zlib yields ends within that record.
    inflate = zlib.decompressobj(15 if compression == "ZLIB" else 31)
    data = path.read_bytes()
    if compression == "ZLIB":
        assert first.offset <= len(inflate.decompress(data[: len(data) // 2])) < first.offset + 300


# Examples and features.


def replace_records(directory, records, number=0):
    """Replace the records of a shard, but not its metadata."""
    path = shard(directory, number)
    path.write_bytes(b"".join(map(frame, records)))


def records_of(path):
    with covey.RecordReader(path) as reader:
        return list(reader)


INVALID = {
    "no Example": (b"\xff\xff", NOT_AN_EXAMPLE),
    "missing": (example(size=[1], species=[0]), "feature 'song': it is missing"),
    "count": (example(size=[1, 2], song=[1.0, 2.0], species=[0]), "it has 2 values, expected 1"),
    "kind": (
        example(size=[b"1"], song=[1.0, 2.0], species=[0]),
        "a bytes list, expected an int64 list",
    ),
    "class": (example(size=[1], song=[1.0, 2.0], species=[3]), "the class is 3; must be from -1"),
}


@pytest.mark.parametrize("kind", INVALID)
def test_record_that_does_not_match_the_features(directory, kind):
    record, what = INVALID[kind]
    path = shard(directory, 2)
    records = records_of(path)
    replace_records(directory, [*records[:5], record, *records[6:]], 2)
    report = check(directory)
    (problem,) = [p for p in report.problems if p.file == path.name and p.record is not None]
    offset = sum(len(each) + 16 for each in records[:5])
    assert (problem.record, problem.offset) == (5, offset)
    assert what in problem.reason
    assert path.name not in problem.reason


@given(bad=st.sets(st.integers(0, 39), max_size=40))
@settings(max_examples=25)
def test_exactly_the_invalid_records_are_found(tmp_path_factory, bad):
    directory = tmp_path_factory.mktemp("misfits")
    write(birds(40), directory, label="species", shuffle=False)
    records = records_of(shard(directory))
    wrong = [each for each, _ in INVALID.values()]
    replace_records(directory, [wrong[n % 5] if n in bad else records[n] for n in range(40)])
    found = {p.record for p in check(directory).problems if p.offset is not None}
    assert found == bad


def test_records_of_plain_files_must_be_examples(tmp_path):
    good = [example(a=[1]), example(a=[1, 2], b=[b"x"]), example()]
    (tmp_path / "x.tfrecord").write_bytes(b"".join(map(frame, good)))
    assert check(tmp_path).is_valid
    (tmp_path / "x.tfrecord").write_bytes(b"".join(map(frame, [*good, b"\x07"])))
    problem = only(check(tmp_path))
    assert (problem.file, problem.record) == ("x.tfrecord", 3)
    assert NOT_AN_EXAMPLE in problem.reason


@pytest.mark.parametrize("name", ["x.tfrec", "deep/er/x.tfrecords", "x.tfrecord.gz"])
def test_paths_of_plain_files(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(map(frame, [example(a=[1]), example(a=[2])]))
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    for asked in (tmp_path, path, str(tmp_path / "**" / "x.*"), [path]):
        report = check(asked)
        assert (report.is_valid, report.files, report.records) == (True, 1, 2)


def test_plain_files_match_the_features_of_their_index(tmp_path):
    path = tmp_path / "x.tfrecord"
    good = [example(a=[n], label=[n % 2]) for n in range(6)]
    path.write_bytes(b"".join(map(frame, good)))
    covey.build_index(path, progress=False)
    assert check(path).is_valid
    # The length is kept, so that the rows stay valid.
    other = good[2].replace(b"label", b"lapel")
    path.write_bytes(b"".join(map(frame, [*good[:2], other, *good[3:]])))
    report = check(path)
    assert ("x.tfrecord", 2) in [(p.file, p.record) for p in report.problems]
    assert any("'label': it is missing" in p.reason for p in report.problems)


def test_inferred_features_need_not_match_later_records(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(frame(example(a=[1], label=[1])))
    covey.build_index(path, progress=False)
    with open(path, "ab") as file:
        file.write(frame(example(b=[b"x"])))
    report = check(path)
    assert [each.file for each in report.problems] == ["x.tfrecord.index.npy", "x.tfrecord"]
    assert "the index has 1 rows for x.tfrecord, which has 2 records" in report.problems[0].reason
    assert "when it was indexed" in report.problems[1].reason


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_invalid_threads(valid, threads):
    with pytest.raises(covey.errors.DatasetError) as caught:
        check(valid, threads=threads)
    assert (caught.value.option, caught.value.found) == ("threads", threads)


# The index.


def index_path(directory, what="rows", split="train"):
    return directory / index_names(f"birds-{split}")[what]


@pytest.mark.parametrize("what", ["rows", "metadata", "classes", "by_class"])
def test_flipped_byte_of_the_index(directory, what):
    path = index_path(directory, what)
    data = path.read_bytes()
    header = len(data) - index(directory, what).nbytes if what != "metadata" else len(data)
    rng = random.Random(what)
    for at in {*rng.sample(range(header), 60), *rng.sample(range(len(data)), 60)}:
        path.write_bytes(flip(data, 8 * at + rng.randrange(8)))
        report = check(directory, threads=1)
        if report.is_valid and at < header and what != "metadata":
            # Some bytes of numpy's header have no effect.
            assert np.load(path).tobytes() == data[header:]
            continue
        assert path.name in {each.file for each in report.problems}, at
        if what == "rows" and at >= header:
            row = (at - header) // index(directory).itemsize
            assert row in {each.record for each in report.problems}


@pytest.mark.parametrize("what", ["rows", "metadata", "classes", "by_class"])
@pytest.mark.parametrize("how", ["missing", "empty", "cut", "longer", "text"])
def test_missing_or_invalid_file_of_the_index(directory, what, how):
    path = index_path(directory, what)
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "cut": data[:-1], "longer": data + b"x", "text": b"hello"}[how]
        )
    if (what, how) == ("metadata", "cut"):
        return  # the last byte is a newline
    report = check(directory)
    assert path.name in {each.file for each in report.problems}
    if how == "missing":
        assert "is missing" in only(report).reason


def rewrite(directory, rows=None, classes=None, by_class=None, **changes):
    """Replace arrays or metadata of an index, with valid checksums."""
    said = about(directory)
    rows = index(directory) if rows is None else rows
    classes = index(directory, "classes") if classes is None else classes
    by_class = index(directory, "by_class") if by_class is None else by_class
    said = dataclasses.replace(
        said,
        checksum=_core.crc32c(rows),
        class_checksums=(_core.crc32c(classes), _core.crc32c(by_class)),
        records=len(rows),
        **changes,
    )
    write_index(directory, "birds-train", Index(said, rows, classes, by_class))


def fields_and_values():
    return [
        ("shard", 1),
        ("shard", 2**32 - 1),
        ("length", 0),
        ("length", 2**32 - 1),
        ("offset", 3),
        ("offset", 2**63),
        ("offset", 2**64 - 1),
        ("label", 1),
        ("label", -1),
        ("label", 2**62),
    ]


@pytest.mark.parametrize(("field", "value"), fields_and_values())
@pytest.mark.parametrize("row", [0, 31, 59])
def test_wrong_row_with_a_valid_checksum(directory, field, value, row):
    rows = index(directory)
    value = value if rows[field][row] != value else value + 1
    before = int(rows[field][row])
    rows[field][row] = value
    rewrite(directory, rows)
    report = check(directory)
    problem = next(each for each in report.problems if each.record is not None)
    assert (problem.file, problem.record) == ("birds-train.index.npy", row)
    assert f"{field} is" in problem.reason
    assert str(value) in problem.reason
    assert str(before) in problem.reason


@given(st.data())
@settings(max_examples=40)
def test_all_wrong_rows_are_found(valid, tmp_path_factory, data):
    directory = shutil.copytree(valid, tmp_path_factory.mktemp("rows") / "birds")
    rows = index(directory)
    wrong = data.draw(st.sets(st.integers(0, 59), min_size=1))
    for row in wrong:
        field = data.draw(st.sampled_from(["shard", "length", "offset", "label"]))
        rows[field][row] += data.draw(st.integers(1, 100))
    rewrite(directory, rows)
    told = set()
    for each in check(directory, threads=1).problems:
        if each.file == "birds-train.index.npy" and "is" in each.reason:
            after = each.reason.partition("; the ")[2].partition(" rows")[0]
            told |= set(range(each.record, each.record + 1 + int(after or 0)))
    assert told == wrong


def test_rows_in_another_order(directory):
    rows = index(directory)
    rewrite(directory, rows[::-1].copy())
    assert any(each.record == 0 for each in check(directory).problems)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
@pytest.mark.parametrize("field", ["offset", "inner_offset", "length", "label"])
def test_wrong_rows_of_compressed_shards(tmp_path, compression, field):
    rng = np.random.default_rng(0)
    examples = {"x": rng.integers(0, 256, (300, 200), np.uint8), "label": np.arange(300) % 7}
    directory = tmp_path / "birds"
    write(examples, directory, label="label", compression=compression, shards=2)
    assert check(directory).is_valid
    rows = index(directory)
    rows[field][201] += 1
    rewrite(directory, rows)
    problem = next(each for each in check(directory).problems if each.record is not None)
    assert (problem.file, problem.record) == ("birds-train.index.npy", 201)


def test_wrong_class_counts(directory):
    table = index(directory, "classes")
    table["records"] = [19, 21, 20]
    table["first"] = [0, 19, 40]
    rewrite(directory, classes=table)
    report = check(directory)
    assert {each.file for each in report.problems} == {"birds-train.classes.npy"}
    assert [each.reason for each in report.problems] == [
        "class 0 ('crow') has 19 records; the rows have 20",
        "class 1 ('owl') has 21 records; the rows have 20",
    ]


def test_wrong_class_id(directory):
    table = index(directory, "classes")
    table["label"] = [0, 1, 7]
    rewrite(directory, classes=table)
    assert [each.reason for each in check(directory).problems] == [
        "class 2 ('wren') has 0 records; the rows have 20",
        "class 7 has 20 records; the rows have 0",
    ]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_wrong_records_by_class(valid, tmp_path_factory, seed):
    directory = shutil.copytree(valid, tmp_path_factory.mktemp("order") / "birds")
    order = index(directory, "by_class")
    rng = np.random.default_rng(seed)
    a, b = rng.choice(60, 2, replace=False)
    if seed % 3 == 0:
        order[a] = order[b]
    elif seed % 3 == 1:
        order[a], order[b] = order[b], order[a]
    else:
        order[a] = 60 + seed % 1000
    rewrite(directory, by_class=order)
    report = check(directory, threads=1)
    assert {each.file for each in report.problems} == {"birds-train.by_class.npy"}
    assert only(report).record is not None


def test_consistent_index_with_wrong_labels(directory):
    """The index is consistent, but its labels are not those of the records."""
    rows = index(directory)
    rows["label"] = (rows["label"] + 1) % 3
    classes = class_table(rows["label"])
    order = index(directory, "by_class")
    sort_by_class(rows["label"], classes, order)
    rewrite(directory, rows, classes, order)
    report = check(directory)
    assert {each.file for each in report.problems} == {"birds-train.index.npy"}
    assert report.problems[0].record == 0
    assert "the 19 rows after it are wrong as well" in report.problems[0].reason
    assert len(report.problems) == 3  # one for each shard


def test_wrong_class_names_of_a_string_label(tmp_path):
    directory = tmp_path / "birds"
    write(
        birds(6),
        directory,
        label="species",
        features={"size": "int64", "song": covey.Tensor("float32", (2,)), "species": "str"},
        shuffle=False,
    )
    rewrite(directory, label_strings=("crow", "eagle", "wren"))
    report = check(directory)
    assert [each.record for each in report.problems] == [1, 4]
    assert "a class that is not in the index" in report.problems[0].reason


def test_index_of_other_shards(directory):
    said = about(directory)
    other = dataclasses.replace(said.shards[1], name="birds-train.tfrecord-00009-of-00003")
    rewrite(directory, shards=(said.shards[0], other, said.shards[2]))
    found = [(p.file, p.reason) for p in check(directory).problems]
    assert found == [
        (other.name, "the shard is in the index, but not in the split"),
        (said.shards[1].name, "the shard is not in the index"),
    ]


def test_index_with_an_invalid_label(directory):
    rewrite(directory, label="song")
    reason = only_of(check(directory), "birds-train.index.json").reason
    assert "label is 'song'; must be a ClassLabel, an integer or a string" in reason
    assert "Tensor(dtype='float32', shape=(2,)" in reason


def test_index_with_a_wrong_compression(directory):
    rewrite(directory, compression=None)
    packed = gzip.compress(shard(directory, 1).read_bytes())
    shard(directory, 1).write_bytes(packed)
    found = [(p.file, p.reason) for p in check(directory).problems]
    assert found[0][0] == "birds-train.index.json"
    assert "is None, but that of" in found[0][1]
    assert "is GZIP" in found[0][1]


# Changed shards.


def test_longer_shard(directory):
    path = shard(directory)
    with open(path, "ab") as file:
        file.write(frame(records_of(path)[0]))
    said = {(p.file, p.reason.split(";")[0]) for p in check(directory).problems}
    size = path.stat().st_size
    assert (
        path.name,
        f"the shard has {size} bytes",
    ) in said
    assert (
        "birds-train.index.npy",
        f"the index has 20 rows for {path.name}, which has 21 records",
    ) in said
    assert (path.name, "the shard has 21 records, but 20 in dataset_info.json") in said


@pytest.mark.parametrize("between", [True, False])
def test_truncated_shard(directory, between):
    path = shard(directory)
    row = index(directory)[15]
    os.truncate(path, int(row["offset"]) + (0 if between else 13))
    report = check(directory)
    whats = " ".join(each.reason for each in report.problems if each.file == path.name)
    assert "when it was indexed" in whats
    assert (path.name, 15, int(row["offset"])) in locations(report) or between
    count = 15 if between else 16
    among = "" if between else ", 1 of them corrupt"
    assert f"the shard has {count} records{among}, but 20 in dataset_info.json" in whats


def test_replaced_shard_of_the_same_size(directory):
    path = shard(directory)
    records = records_of(path)
    replace_records(directory, records[::-1])
    assert path.stat().st_size == about(directory).shards[0].bytes
    whats = [each.reason for each in check(directory).problems if each.file == path.name]
    assert whats == ["the shard was replaced after it was indexed"]


def test_missing_shard(directory):
    path = shard(directory, 1)
    path.unlink()
    problem = only(check(directory))
    assert problem == Problem(
        path.name, None, None, "the shard is missing, with 20 records", "train"
    )


def test_unreadable_shard(directory, monkeypatch):
    path = shard(directory, 1)

    read = ShardReader.read

    def fail(shard, members=None):
        if shard._path == str(path):
            raise OSError(errno.EIO, "Input/output error")
        return read(shard, members)

    monkeypatch.setattr(ShardReader, "read", fail)
    problem = only(check(directory))
    assert problem.file == path.name
    assert problem.reason == "the shard cannot be read: Input/output error"


# Metadata.


def read_json(directory, name="dataset_info.json"):
    return json.loads((directory / name).read_text())


def write_json(directory, content, name="dataset_info.json"):
    (directory / name).write_text(json.dumps(content))


def test_wrong_number_of_records(directory):
    info = read_json(directory)
    info["splits"][0]["shardLengths"] = ["20", "19", "20"]
    write_json(directory, info)
    problem = only(check(directory))
    assert problem.file == shard(directory, 1).name
    assert problem.reason == "the shard has 20 records, but 19 in dataset_info.json"


def test_wrong_size(directory):
    info = read_json(directory)
    size = int(info["splits"][0]["numBytes"])
    info["splits"][0]["numBytes"] = str(size + 1)
    write_json(directory, info)
    problem = only(check(directory))
    assert problem.file == "dataset_info.json"
    data = sum(map(len, (r for n in range(3) for r in records_of(shard(directory, n)))))
    assert (
        f"is {size + 1:,} bytes, but the shards have {size:,}, and their records {data:,}"
        in problem.reason
    )
    assert problem.split == "train"
    # TFDS stores the size of the records without frames, or 0 in older versions.
    for right in (str(data), "0"):
        info["splits"][0]["numBytes"] = right
        write_json(directory, info)
        assert check(directory).is_valid


def test_unlisted_shards(directory):
    info = read_json(directory)
    info["splits"][0]["shardLengths"] = ["20", "20"]
    write_json(directory, info)
    report = check(directory)
    by_file = {each.file: each.reason for each in report.problems}
    assert by_file["birds-train.tfrecord-00000-of-00002"] == "the shard is missing, with 20 records"
    for number in range(3):
        name = f"birds-train.tfrecord-0000{number}-of-00003"
        assert any(p.file == name and "named like a shard" in p.reason for p in report.problems)


def test_unlisted_split(directory):
    info = read_json(directory)
    del info["splits"][1]
    write_json(directory, info)
    problem = only(check(directory))
    assert problem.file == "birds-test.tfrecord-00000-of-00001"
    assert "dataset_info.json does not list it" in problem.reason
    assert check(directory, split="train").is_valid


def test_features_differ_from_the_index(directory):
    content = read_json(directory, "features.json")
    text = json.dumps(content).replace("int64", "int32", 1)
    (directory / "features.json").write_text(text)
    found = check(directory)
    assert {each.file for each in found.problems} == {"features.json"}
    assert "in birds-train.index.json" in found.problems[0].reason
    assert "int32" in found.problems[0].reason


def test_missing_features(directory):
    (directory / "features.json").unlink()
    assert only(check(directory)).file == "features.json"


def test_wrong_or_missing_class_names(directory):
    path = directory / "species.labels.txt"
    path.write_text("crow\nowl\n")
    report = check(directory)
    assert {each.file for each in report.problems} == {"species.labels.txt"}
    assert "2 names, but" in only(report).reason
    path.write_text("crow\nwren\nowl\n")
    assert {each.file for each in check(directory).problems} == {"features.json"}
    path.unlink()
    assert "3 classes without names" in check(directory).problems[0].reason


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"name": 7}'])
def test_corrupt_metadata(directory, name, content):
    """The rest of the dataset is verified without it."""
    (directory / name).write_text(content)
    report = check(directory)
    assert only(report).file == name
    assert (report.files, report.records) == (4, 69)
    assert set(report.splits) == {"train", "test"}
    change(
        shard(directory.parent / "birds")
        if name != "dataset_info.json"
        else directory / "birds-train.tfrecord-00000-of-00003",
        30,
    )
    assert len(check(directory).problems) == 2
    rows = directory / "birds-train.index.npy"
    change(rows, rows.stat().st_size - 1)
    assert len(check(directory).problems) > 2


def test_versioned_dataset(directory, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    shutil.move(directory, outer / "1.0.0")
    assert check(outer).is_valid
    (outer / "1.0.0" / "features.json").write_text("{")
    assert only(check(outer)).file == "features.json"


# datum.


@pytest.fixture
def datum(tmp_path):
    """A dataset with metadata for covey, TFDS and datum."""
    items = [(f"bird {n}", {"size": n, "name": f"b{n}"}) for n in range(20)]
    writer = TFRecordWriter(lambda split: iter(items), Serializer(), tmp_path, "train", 20)
    writer.shards = 2
    writer.create_records()
    return tmp_path


def test_wrong_shard_info(datum):
    assert check(datum).is_valid
    content = read_json(datum, "shard_info.json")
    name = sorted(content["train"])[1]
    content["train"][name] = 7
    write_json(datum, content, "shard_info.json")
    problem = only(check(datum))
    assert problem.file == "shard_info.json"
    assert (
        problem.reason
        == f"split 'train': {name} has 7 records, but 10 records in dataset_info.json"
    )


@pytest.mark.parametrize("name", ["shard_info.json", "datum_to_type_and_shape_mapping.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"train": 5}'])
def test_corrupt_datum_metadata(datum, name, content):
    (datum / name).write_text(content)
    assert only(check(datum)).file == name


def test_dataset_of_datum(datum):
    (datum / "dataset_info.json").unlink()
    (datum / "features.json").unlink()
    assert check(datum).is_valid
    assert check(datum).records == 20
    content = read_json(datum, "shard_info.json")
    name = sorted(content["train"])[1]
    content["train"][name] = 9
    content["train"]["nowhere.tfrecord"] = 2
    write_json(datum, content, "shard_info.json")
    found = {each.file: each.reason for each in check(datum).problems}
    assert found[name] == "the shard has 10 records, but 9 in shard_info.json"
    assert found["nowhere.tfrecord"] == "the shard is missing, with 2 records"
    (datum / "shard_info.json").write_text("{")
    report = check(datum)
    assert only(report).file == "shard_info.json"
    assert report.records == 20


# Reports.


def test_report_as_string(directory):
    change(shard(directory), 30)
    said = str(check(directory))
    first, header, line = said.splitlines()
    assert first.startswith(f"{directory}: 4 files, 68 records and ")
    assert first.endswith("checked: 1 problem")
    assert header.split() == ["file", "record", "offset", "problem"]
    assert line.split()[:3] == ["birds-train.tfrecord-00000-of-00003", "0", "0"]


def test_long_report(directory):
    replace_records(directory, [b"\xff"] * 70)
    report = check(directory)
    lines = str(report).splitlines()
    assert len(report.problems) > 70
    assert len(lines) == LISTED + 3
    assert lines[-1] == f"  and {len(report.problems) - LISTED} more; `problems` lists all"
    assert len(report.to_dict()["problems"]) == len(report.problems)


def test_limit_of_problems_per_file():
    problems = Problems()
    for n in range(20_000):
        problems.add("a", "wrong", record=n)
    problems.add("b", "wrong")
    assert (len(problems.listed), problems.unlisted) == (10_001, 10_000)


def test_report_as_json(directory):
    change(shard(directory), 30)
    report = check(directory)
    content = json.loads(json.dumps(report.to_dict()))
    assert content["valid"] is False
    assert content["records"] == 68
    assert content["problems"] == [dataclasses.asdict(only(report))]
