"""covey.verify: every problem is found, with its location."""

import dataclasses
import gzip
import json
import os
import random
import re
import shutil

import numpy as np
import pytest
from corrupt_files import corrupt_files, example, flip, frame
from hypothesis import given, settings
from hypothesis import strategies as st
from written import about, index, shard_paths, write

import covey
from covey import _core
from covey.compat.datum import Serializer, TFRecordWriter
from covey.index import Index, IndexBuilder, ShardFiles, index_names
from covey.index.write import write_index
from covey.maintenance.report import Problems
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
    return covey.verify(path, progress=False, **options)


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
    before = {path.name: path.stat().st_mtime_ns for path in valid.iterdir()}
    report = check(valid)
    assert {path.name: path.stat().st_mtime_ns for path in valid.iterdir()} == before
    assert report.is_valid
    assert report.problems == ()
    assert (report.files, report.records) == (4, 69)
    assert report.bytes == sum(
        path.stat().st_size for split in ("train", "test") for path in shard_paths(valid, split)
    )
    assert str(report).endswith("no problems")
    assert report.splits == ("train", "test")


@pytest.mark.parametrize(
    ("compression", "label"),
    [(None, "species"), ("GZIP", None), ("GZIP", "species"), ("ZLIB", "species")],
)
def test_datasets_with_any_options_are_valid(tmp_path, compression, label):
    examples = [{"size": n, "species": f"bird {n % 5}", "song": [1.0] * (n % 4)} for n in range(80)]
    kinds = {"size": "int64", "species": "str", "song": covey.Tensor("float32", (None,))}
    write(examples, tmp_path, label=label, features=kinds, shards=2, compression=compression)
    report = check(tmp_path)
    assert (report.problems, report.records) == ((), 80)


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


def test_splits_and_shards_with_more_classes(tmp_path):
    write(birds(20), tmp_path, label="species", shards=2)
    for mode, split, name in [("append", "train", "auk"), ("error", "test", "finch")]:
        write([{"size": 1, "song": [0.0, 0.0], "species": name}], tmp_path, split, mode=mode)
    report = check(tmp_path)
    assert (report.problems, report.records) == ((), 22)
    # A record with a class that the index of the split lacks, but features.json has, is valid.
    with open(shard(tmp_path), "ab") as file:
        file.write(shard(tmp_path, split="test").read_bytes())
    problems = check(tmp_path).problems
    assert problems
    assert all(each.offset is None for each in problems)


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
        assert "'train', 'test'" in caught.value.allowed


# Corrupt files.


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return corrupt_files(tmp_path_factory.mktemp("corrupt"))


NOT_AN_EXAMPLE = "it is not a tf.train.Example"


def corruptions(problems):
    """Locations of corrupt records, without records that are not Examples."""
    found = [(p.record, p.offset) for p in problems if NOT_AN_EXAMPLE not in p.reason]
    return [each for each in found if each != (None, None)]


@pytest.fixture(scope="module")
def found(cases):
    """The corruptions that are found in a directory of all files, by the name of the file."""
    report = check(cases[0].path.parent)
    assert report.files == len(cases) >= 500
    problems = {case.path.name: [] for case in cases}
    for each in report.problems:
        problems[each.file].append(each)
    return {name: corruptions(each) for name, each in problems.items()}


def test_every_corruption_is_reported_at_its_record(cases, found):
    def is_right(case):
        locations = found[case.path.name]
        if case.corruptions is None:
            return locations[:1] == [case.first]
        return locations == case.corruptions

    assert [case.path.name for case in cases if not is_right(case)] == []


@pytest.mark.parametrize("kind", ["plain", "gzip-members", "gzip-stored", "gzip-stream", "zlib"])
def test_corruption_with_an_index(cases, found, tmp_path, kind):
    """No row of the index is wrong, so that all problems are those of the file."""
    (complete,) = [case for case in cases if case.kind == f"{kind}-unchanged"]
    path = tmp_path / "birds.tfrecord"
    shutil.copy(complete.path, path)
    files = ShardFiles(LocalStorage(), str(tmp_path), (path.name,))
    anything = covey.Features({"x": covey.Tensor("int64", (None,), default=[])})
    built = IndexBuilder(features=anything, label=None, progress=False).build(files)
    write_index(tmp_path, path.name, built)
    kinds = tuple(f"{kind}-{how}" for how in ("flip", "zero", "cut", "random", "lost"))
    corrupt = [case for case in cases if case.kind.startswith(kinds) and case.first]
    corrupt = [case for case in corrupt if "large" not in case.kind][::3]
    assert len(corrupt) > 4
    for case in corrupt:
        shutil.copy(case.path, path)
        report = check(path, threads=1)
        assert {each.file for each in report.problems} == {path.name}, case.path.name
        assert corruptions(report.problems) == found[case.path.name], case.path.name


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


@given(bad=st.sets(st.integers(0, 19)))
@settings(max_examples=20)
def test_exactly_the_invalid_records_are_found(valid, tmp_path_factory, bad):
    directory = shutil.copytree(valid, tmp_path_factory.mktemp("invalid") / "birds")
    records = records_of(shard(directory))
    wrong = [each for each, _ in INVALID.values()]
    replace_records(directory, [wrong[n % 5] if n in bad else records[n] for n in range(20)])
    problems = check(directory, split="train", threads=1).problems
    assert {each.record for each in problems if each.offset is not None} == bad


def test_records_of_plain_files_must_be_examples(tmp_path):
    good = [example(a=[1]), example(a=[1, 2], b=[b"x"]), example()]
    (tmp_path / "x.tfrecord").write_bytes(b"".join(map(frame, good)))
    assert check(tmp_path).is_valid
    good.append(example(b=[bytes(9_000_000)]))  # the next record is in another block
    (tmp_path / "x.tfrecord").write_bytes(b"".join(map(frame, [*good, b"\x07"])))
    problem = only(check(tmp_path))
    offset = sum(len(each) + 16 for each in good)
    assert (problem.file, problem.record, problem.offset) == ("x.tfrecord", 4, offset)
    assert NOT_AN_EXAMPLE in problem.reason


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
    assert [each.file for each in report.problems] == ["x-52d584dfce9f.index.npy", "x.tfrecord"]
    assert report.problems[0].reason == "it has 1 rows of x.tfrecord; must have 2"
    assert "when it was indexed" in report.problems[1].reason


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_invalid_threads(valid, threads):
    with pytest.raises(covey.errors.DatasetError) as caught:
        check(valid, threads=threads)
    assert (caught.value.option, caught.value.found) == ("threads", threads)


# The index.


def index_path(directory, what="rows", split="train"):
    return directory / index_names(f"birds-{split}")[what]


ARRAYS = ("rows", "classes", "by_class")


@pytest.mark.parametrize("what", ["metadata", *ARRAYS])
def test_flipped_byte_of_the_index(directory, what):
    path = index_path(directory, what)
    data = path.read_bytes()
    header = len(data) - index(directory, what).nbytes if what != "metadata" else len(data)
    rng = random.Random(what)
    for at in {*rng.sample(range(header), 20), *rng.sample(range(len(data)), 20)}:
        path.write_bytes(flip(data, 8 * at + rng.randrange(8)))
        report = check(directory, threads=1)
        if report.is_valid and at < header and what != "metadata":
            # Some bytes of numpy's header have no effect.
            assert np.load(path).tobytes() == data[header:]
            continue
        assert path.name in {each.file for each in report.problems}, at


@pytest.mark.parametrize("what", ["metadata", *ARRAYS])
def test_missing_or_invalid_file_of_the_index(directory, what):
    path = index_path(directory, what)
    data = path.read_bytes()
    for content in (b"", data[:-2], data + b"x", b"hello"):
        path.write_bytes(content)
        assert path.name in {each.file for each in check(directory, threads=1).problems}
    path.unlink()
    problem = only(check(directory))
    assert problem.file == path.name
    assert "is missing" in problem.reason


def rewrite(directory, rows=None, classes=None, by_class=None, **changes):
    """Replace arrays or metadata of an index, with valid checksums."""
    given = (rows, classes, by_class)
    rows, classes, by_class = (
        index(directory, what) if array is None else array
        for what, array in zip(ARRAYS, given, strict=True)
    )
    metadata = dataclasses.replace(
        about(directory),
        checksum=_core.crc32c(rows),
        class_checksums=(_core.crc32c(classes), _core.crc32c(by_class)),
        **changes,
    )
    write_index(directory, "birds-train", Index(metadata, rows, classes, by_class))


def shown(label):
    if label == -1:
        return "-1 (not one of the index)"
    return f"{label} ({NAMES[label]!r})" if 0 <= label < 3 else f"{label}"


@given(st.dictionaries(st.integers(0, 59), st.sampled_from([0, 1, 2, -1, 2**62]), min_size=1))
@settings(max_examples=15)
def test_first_wrong_row_of_each_shard(valid, tmp_path_factory, labels):
    directory = shutil.copytree(valid, tmp_path_factory.mktemp("rows") / "birds")
    right, rows = index(directory), index(directory)
    rows["label"][list(labels)] = list(labels.values())
    rewrite(directory, rows)
    wrong = np.flatnonzero(rows != right)
    expected = []
    for number in np.unique(right["shard"][wrong]):
        first, *others = wrong[right["shard"][wrong] == number].tolist()
        more = f"; it is the first of {len(others) + 1} wrong rows" if others else ""
        expected.append(
            (
                first,
                f"label is {shown(rows['label'][first])}; must be {shown(right['label'][first])} "
                f"for record {first % 20} of {shard(directory, number).name}{more}",
            )
        )
    problems = check(directory, threads=1).problems
    assert [(p.record, p.reason) for p in problems if p.file == "birds-train.index.npy"] == expected


@pytest.mark.parametrize(("field", "value"), [("shard", 7), ("offset", 3), ("offset", 2**64 - 1)])
def test_row_that_is_not_in_its_shard(directory, field, value):
    rows = index(directory)
    rows[field][31] = value
    rewrite(directory, rows)
    problem = only(check(directory))
    assert problem.file == "birds-train.index.npy"
    assert re.match("row 3[12] has a record at byte", problem.reason)


def test_wrong_locations(directory):
    """The rows follow each other, but are not those of the records."""
    rows = index(directory)
    rows["length"][31] += 1
    rows["offset"][32] += 1
    rows["length"][32] -= 1
    rewrite(directory, rows)
    problem = only(check(directory))
    length = int(rows["length"][31])
    assert (problem.file, problem.record) == ("birds-train.index.npy", 31)
    name = shard(directory, 1).name
    assert problem.reason == (
        f"length is {length}; must be {length - 1} for record 11 of {name}; "
        "it is the first of 2 wrong rows"
    )
    # Rows behind a corrupt record are not compared.
    change(shard(directory, 1), int(rows["offset"][25]) + 14)
    assert {each.file for each in check(directory).problems} == {name}


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_wrong_rows_of_compressed_shards(tmp_path, compression):
    rng = np.random.default_rng(0)
    examples = {"x": rng.integers(0, 256, (300, 200), np.uint8), "label": np.arange(300) % 7}
    directory = tmp_path / "birds"
    write(examples, directory, label="label", compression=compression, shards=2)
    assert check(directory).is_valid
    for field in ("offset", "inner_offset", "length", "label"):
        rows = index(directory)
        rows[field][201] += 1
        rewrite(directory, rows)
        assert "birds-train.index.npy" in {each.file for each in check(directory).problems}
        rows[field][201] -= 1
        rewrite(directory, rows)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ([(0, 0, 19), (1, 19, 21), (2, 40, 20)], "records is 19; must be 20; it is the first of 2"),
        ([(0, 0, 20), (1, 20, 20), (7, 40, 20)], "label is 7; must be 2 ('wren')"),
        ([(0, 0, 20), (1, 20, 40)], "records is 40; must be 20"),
        ([(0, 0, 20), (1, 21, 20), (2, 40, 20)], "the classes are not in order"),
        ([(0, 0, 20), (1, 20, 20)], "the classes do not have 60 records"),
    ],
)
def test_wrong_classes(directory, table, reason):
    rewrite(directory, classes=np.array(table, index(directory, "classes").dtype))
    problems = check(directory).problems
    assert {each.file for each in problems} == {"birds-train.classes.npy"}
    assert problems[0].reason.startswith(reason)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (7, 0, "the record is 0; must be "),
        (7, 60, "it has the record id 60; must be below 60"),
    ],
)
def test_wrong_records_by_class(directory, at, value, reason):
    order = index(directory, "by_class")
    order[at] = value
    rewrite(directory, by_class=order)
    problem = only(check(directory))
    assert problem.file == "birds-train.by_class.npy"
    assert problem.reason.startswith(reason)


def test_wrong_checksums(directory):
    arrays = [index(directory, what) for what in ARRAYS]
    right = about(directory)
    table, ids = right.class_checksums
    wrong = [(1, (table, ids)), (right.checksum, (2, ids)), (right.checksum, (table, 3))]
    for what, (rows, classes) in zip(ARRAYS, wrong, strict=True):
        metadata = dataclasses.replace(right, checksum=rows, class_checksums=classes)
        write_index(directory, "birds-train", Index(metadata, *arrays))
        problem = only(check(directory))
        assert problem.file == index_path(directory, what).name
        assert problem.reason == "the rows do not match the metadata of the index"


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
    problem = only(check(directory))
    assert problem.record == 1
    assert problem.reason.startswith(
        "label is 1 ('eagle'); must be -1 (not one of the index) for record 1 of"
    )


def test_index_of_other_shards(directory):
    metadata = about(directory)
    other = dataclasses.replace(metadata.shards[1], name="birds-train.tfrecord-00009-of-00003")
    rewrite(directory, shards=(metadata.shards[0], other, metadata.shards[2]))
    found = [(p.file, p.reason) for p in check(directory).problems]
    assert found == [
        (other.name, "the shard is in the index, but not in the split"),
        (metadata.shards[1].name, "the shard is not in the index"),
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
    assert re.fullmatch("the compression is None, but .* has GZIP", found[0][1])


# Changed shards.


def test_longer_shard(directory):
    path = shard(directory)
    with open(path, "ab") as file:
        file.write(frame(records_of(path)[0]))
    size = path.stat().st_size
    assert {(p.file, p.reason.split(";")[0]) for p in check(directory).problems} >= {
        (path.name, f"the shard has {size} bytes"),
        (path.name, "the shard has 21 records, but 20 in dataset_info.json"),
        ("birds-train.index.npy", f"it has 20 rows of {path.name}"),
    }


@pytest.mark.parametrize("between", [True, False])
def test_truncated_shard(directory, between):
    path = shard(directory)
    row = index(directory)[15]
    os.truncate(path, int(row["offset"]) + (0 if between else 13))
    report = check(directory)
    reasons = " ".join(each.reason for each in report.problems if each.file == path.name)
    assert "when it was indexed" in reasons
    assert (path.name, 15, int(row["offset"])) in locations(report) or between
    count = 15 if between else 16
    among = "" if between else ", 1 of them corrupt"
    assert f"the shard has {count} records{among}, but 20 in dataset_info.json" in reasons


def test_replaced_shard_of_the_same_size(directory):
    path = shard(directory)
    replace_records(directory, records_of(path)[::-1])
    assert path.stat().st_size == about(directory).shards[0].bytes
    reasons = [each.reason for each in check(directory).problems if each.file == path.name]
    assert reasons == ["the shard was replaced after it was indexed"]


def test_missing_shard(directory):
    path = shard(directory, 1)
    path.unlink()
    reason = "the shard is missing, with 20 records"
    assert only(check(directory)) == Problem(path.name, None, None, reason, "train")


def test_unreadable_shard(directory):
    path = shard(directory, 1)
    path.unlink()
    os.mkfifo(path)
    problem = only(check(directory))
    assert problem.file == path.name
    assert problem.reason == "the shard cannot be read: it is not a regular file"


# Metadata.


def read_json(directory, name="dataset_info.json"):
    return json.loads((directory / name).read_text())


def write_json(directory, content, name="dataset_info.json"):
    (directory / name).write_text(json.dumps(content))


def change_splits(directory, edit):
    content = read_json(directory)
    edit(content["splits"])
    write_json(directory, content)


UNLISTED = "the file is named like a shard, but dataset_info.json does not list it"
LENGTHS = {
    "wrong count": (
        lambda splits: splits[0].update(shardLengths=["20", "19", "20"]),
        {"birds-train.tfrecord-00001-of-00003": "the shard has 20 records, but 19 in "},
    ),
    "other shards": (
        lambda splits: splits[0].update(shardLengths=["20", "20"]),
        {
            **{f"birds-train.tfrecord-0000{n}-of-00003": UNLISTED for n in range(3)},
            "birds-train.tfrecord-00000-of-00002": "the shard is missing, with 20 records",
        },
    ),
    "no split": (lambda splits: splits.pop(1), {"birds-test.tfrecord-00000-of-00001": UNLISTED}),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_wrong_shards_in_the_metadata(directory, case):
    edit, expected = LENGTHS[case]
    change_splits(directory, edit)
    other, splits = ("train", [None]) if case == "no split" else ("test", [None, "train"])
    assert check(directory, split=other).is_valid
    for split in splits:
        problems = check(directory, split=split).problems
        for file, reason in expected.items():
            assert any(each.file == file and each.reason.startswith(reason) for each in problems)
        assert case == "other shards" or len(problems) == len(expected)


def test_wrong_size(directory):
    size = int(read_json(directory)["splits"][0]["numBytes"])
    data = sum(map(len, (r for n in range(3) for r in records_of(shard(directory, n)))))
    change_splits(directory, lambda splits: splits[0].update(numBytes=str(size + 1)))
    problem = only(check(directory))
    assert (problem.file, problem.split) == ("dataset_info.json", "train")
    assert problem.reason == (
        f"the size is {size + 1:,} bytes, but the shards have {size:,}, and their records {data:,}"
    )
    # TFDS stores the size of the records without frames, or 0 in older versions.
    for right in (str(data), "0"):
        change_splits(directory, lambda splits, right=right: splits[0].update(numBytes=right))
        assert check(directory).is_valid


def test_features_differ_from_the_index(directory):
    path = directory / "features.json"
    path.write_text(path.read_text().replace("int64", "int32", 1))
    problem = only(check(directory, split="train"))
    assert problem.file == "features.json"
    assert "int32" in problem.reason
    assert "in birds-train.index.json" in problem.reason
    path.unlink()
    assert only(check(directory)).file == "features.json"


def test_wrong_or_missing_class_names(directory, tmp_path):
    path = directory / "species.labels.txt"
    path.write_text("crow\nowl\n")
    problem = only(check(directory))
    assert problem.file == path.name
    assert "2 names, but" in problem.reason
    path.write_text("crow\nwren\nowl\n")
    for problem, split in zip(check(directory).problems, ("train", "test"), strict=True):
        assert (problem.file, problem.split) == (path.name, split)
        assert problem.reason.startswith(
            f"class 1 is 'wren'; must be 'owl', as in birds-{split}.index.json; 1 more differ;"
        )
    # Both remedies.
    covey.repair(directory, tmp_path / "repaired", progress=False)
    assert (tmp_path / "repaired" / path.name).read_text() == "crow\nowl\nwren\n"
    assert check(tmp_path / "repaired").is_valid
    for each in (*directory.glob("*.npy"), *directory.glob("*.index.json")):
        each.unlink()
    covey.build_index(directory, progress=False)
    assert check(directory).is_valid
    assert about(directory).class_names == ("crow", "wren", "owl")
    path.unlink()
    assert "3 classes without names" in check(directory).problems[0].reason


def test_changed_class_names_of_splits_that_know_a_part(tmp_path):
    """An append to another split adds names; those that a split knows stay."""
    names = [f"bird {n:03}" for n in range(100)]
    for split, part, mode in (("train", names[:50], "error"), ("test", names, "error")):
        examples = [{"x": 1, "species": name} for name in part]
        write(examples, tmp_path, split, label="species", mode=mode)
    assert check(tmp_path).is_valid
    path = tmp_path / "species.labels.txt"
    for number, splits in ((20, {"train", "test"}), (70, {"test"})):
        changed = [*names]
        changed[number] = "auk"
        path.write_text("".join(f"{name}\n" for name in changed))
        problems = check(tmp_path).problems
        assert {(each.file, each.split) for each in problems} == {(path.name, s) for s in splits}
        assert all(
            each.reason.startswith(f"class {number} is 'auk'; must be 'bird {number:03}', as in ")
            for each in problems
        )


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
def test_corrupt_metadata(directory, name):
    """The rest of the dataset is verified without it."""
    path = shard(directory)
    for content in ("", "{", "[]", "null", '{"name": 7}'):
        (directory / name).write_text(content)
        report = check(directory)
        assert only(report).file == name
        assert (report.files, report.records) == (4, 69)
        assert set(report.splits) == {"train", "test"}
    change(path, 30)
    assert len(check(directory).problems) == 2
    rows = directory / "birds-train.index.npy"
    change(rows, rows.stat().st_size - 1)
    assert len(check(directory).problems) > 2


def test_versioned_dataset(directory, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    shutil.move(directory, outer / "1.0.0")
    assert check(outer).is_valid
    lost = shard(outer / "1.0.0", 1)
    lost.unlink()
    (outer / "1.0.0" / "features.json").write_text("{")
    report = check(outer)
    assert {each.file for each in report.problems} == {"features.json", lost.name}
    assert only_of(report, lost.name).reason == "the shard is missing, with 20 records"


# datum.


@pytest.fixture
def datum(tmp_path):
    """A dataset with metadata for covey, TFDS and datum."""
    items = [(f"bird {n}", {"size": n, "name": f"b{n}"}) for n in range(20)]
    writer = TFRecordWriter(lambda split: iter(items), Serializer(), tmp_path, "train", 20)
    writer.shards = 2
    writer.create_records()
    return tmp_path


@pytest.mark.parametrize("name", ["shard_info.json", "datum_to_type_and_shape_mapping.json"])
def test_corrupt_datum_metadata(datum, name):
    for content in ("{", "[]", '{"train": 5}'):
        (datum / name).write_text(content)
        assert only(check(datum)).file == name


def test_wrong_shard_info(datum):
    assert check(datum).is_valid
    content = read_json(datum, "shard_info.json")
    name = sorted(content["train"])[1]
    content["train"] |= {name: 9, "nowhere.tfrecord": 2}
    write_json(datum, content, "shard_info.json")
    problems = check(datum).problems
    assert {each.file for each in problems} == {"shard_info.json"}
    assert [each.reason.removeprefix("split 'train': ") for each in problems] == [
        f"{name} has 9 records, but 10 records in dataset_info.json",
        "nowhere.tfrecord has 2 records, but no entry in dataset_info.json",
    ]
    # Without the metadata of TFDS, the list is that of the dataset.
    (datum / "dataset_info.json").unlink()
    (datum / "features.json").unlink()
    assert {each.file: each.reason for each in check(datum).problems} == {
        name: "the shard has 10 records, but 9 in shard_info.json",
        "nowhere.tfrecord": "the shard is missing, with 2 records",
    }
    (datum / "shard_info.json").write_text("{")
    report = check(datum)
    assert only(report).file == "shard_info.json"
    assert report.records == 20


# Reports.


def test_limit_of_problems_per_file():
    problems = Problems(max_per_file=10)
    for n in range(15):
        problems.add("a", "wrong", record=n)
    problems.add("b", "wrong")
    assert (len(problems.listed), problems.unlisted) == (11, 5)
