"""covey.repair: all valid records are copied, and all losses are reported."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
from corrupt_files import example, frame
from hypothesis import given, settings
from hypothesis import strategies as st
from written import about, check_index, files, index, info, records, shard_paths, write

import covey
from covey._files import temporary_name
from covey.compat.datum import Serializer, TFRecordWriter
from covey.errors import DatasetError, DatasetExistsError, FileChangedError

NAMES = ("crow", "owl", "wren")


def birds(count=60):
    return [{"size": n, "song": [n / 2, 1.0], "species": NAMES[n % 3]} for n in range(count)]


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    directory = tmp_path_factory.mktemp("valid") / "birds"
    write(birds(), directory, label="species", shards=3, description="Some birds.", seed=5)
    write(birds(9), directory, "test")
    return directory


@pytest.fixture
def directory(valid, tmp_path):
    return shutil.copytree(valid, tmp_path / "birds")


@pytest.fixture
def new(tmp_path):
    return tmp_path / "new"


def repair(path, output, **options):
    return covey.repair(path, output, progress=False, **options)


def change(path, at, by=b"?"):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(by)


def corrupt(directory, number, shard=0):
    """Corrupt a record of a shard; return its offset."""
    rows = index(directory)
    row = rows[rows["shard"] == shard][number]
    change(shard_paths(directory)[shard], int(row["offset"]) + 14)
    return int(row["offset"])


def read_file(path):
    with covey.RecordReader(path) as reader:
        return list(reader)


def is_valid_dataset(directory):
    return covey.verify(directory, progress=False).is_valid


# Copied records.


def test_valid_dataset_is_copied(directory, new):
    before = files(directory)
    repaired = repair(directory, new)
    assert files(directory) == before
    assert repaired.lost == ()
    assert repaired.records == 69
    assert is_valid_dataset(new)
    for split in ("train", "test"):
        assert records(new, split) == records(directory, split)
        assert [read_file(path) for path in shard_paths(new, split)] == [
            read_file(path) for path in shard_paths(directory, split)
        ]
        check_index(new, split)
        assert about(new, split).features == about(directory, split).features
        assert about(new, split).label == "species"
        assert about(new, split).order == about(directory, split).order
    assert (new / "species.labels.txt").read_text() == "crow\nowl\nwren\n"
    assert info(new).description == "Some birds."


def test_corrupt_records_are_skipped_and_reported(directory, new):
    first, second = corrupt(directory, 3), corrupt(directory, 7, 2)
    repaired = repair(directory, new)
    names = [path.name for path in shard_paths(directory)]
    assert [(p.split, p.file, p.record, p.offset) for p in repaired.lost] == [
        ("train", names[0], 3, first),
        ("train", names[2], 7, second),
    ]
    assert all("data checksum is" in each.reason for each in repaired.lost)
    assert [shard.records for shard in repaired.written[0].shards] == [19, 20, 19]
    assert is_valid_dataset(new)
    check_index(new)
    with covey.open(new, split="train") as dataset:
        assert (len(dataset), tuple(dataset.classes)) == (58, NAMES)
    header, line = str(repaired).splitlines()[:2]
    assert header == f"{directory}: 67 records copied to {new}; 2 losses"
    assert line.split() == ["file", "record", "offset", "problem"]
    content = json.loads(json.dumps(repaired.to_dict()))
    assert content["lost"] == [dataclasses.asdict(each) for each in repaired.lost]
    assert content["splits"]["train"]["records"] == 58


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compression_is_kept(tmp_path, new, compression):
    old = tmp_path / "old"
    rng = np.random.default_rng(0)
    examples = {"x": rng.integers(0, 256, (400, 200), np.uint8), "label": np.arange(400) % 7}
    write(examples, old, label="label", compression=compression, shards=2)
    complete = records(old)
    path = shard_paths(old)[1]
    change(path, path.stat().st_size // 2, bytes(9))
    repaired = repair(old, new)
    assert repaired.lost
    assert is_valid_dataset(new)
    assert about(new).compression == compression
    saved = records(new)
    assert saved[:200] == complete[:200]
    assert set(saved) < set(complete)
    assert len(saved) == repaired.records > 250


@given(bad=st.sets(st.integers(0, 19), max_size=19), seed=st.integers(0, 999))
@settings(max_examples=4)
def test_invalid_records_are_skipped(valid, tmp_path_factory, bad, seed):
    parent = tmp_path_factory.mktemp("misfits")
    directory = shutil.copytree(valid, parent / "birds")
    path = shard_paths(directory)[1]
    complete = read_file(path)
    wrong = [b"\xff", example(size=[1]), example(size=[1], song=[1.0, 2.0], species=[9])]
    content = [wrong[(n + seed) % 3] if n in bad else complete[n] for n in range(20)]
    path.write_bytes(b"".join(map(frame, content)))
    repaired = repair(directory, parent / "new", split="train")
    assert {each.record for each in repaired.lost} == bad
    kept = [each for n, each in enumerate(complete) if n not in bad]
    assert read_file(shard_paths(parent / "new")[1]) == kept
    assert is_valid_dataset(parent / "new")


@pytest.mark.parametrize(
    ("split", "number", "content", "reason"),
    [
        ("train", 1, None, "the shard is missing, with 20 records"),
        ("train", 0, b"nothing", "the file ends"),
        ("test", 0, b"nothing", "the file ends"),
    ],
)
def test_missing_or_corrupt_shard(directory, new, split, number, content, reason):
    path = shard_paths(directory, split)[number]
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    repaired = repair(directory, new)
    (lost,) = repaired.lost
    assert (lost.file, lost.split) == (path.name, split)
    assert lost.reason.startswith(reason)
    sizes = {each.split: [shard.records for shard in each.shards] for each in repaired.written}
    remaining = {"train": [20, 20], "test": [9]} if split == "train" else {"train": [20, 20, 20]}
    assert sizes == remaining
    assert is_valid_dataset(new)


def test_dataset_without_valid_records(directory, new):
    for split in ("train", "test"):
        for path in shard_paths(directory, split):
            path.write_bytes(b"nothing")
    with pytest.raises(DatasetError, match="no valid records; the first problem is birds-train"):
        repair(directory, new)
    assert not new.exists()


def test_unlisted_shards(directory, new):
    content = json.loads((directory / "dataset_info.json").read_text())
    del content["splits"]
    (directory / "dataset_info.json").write_text(json.dumps(content))
    with pytest.raises(DatasetError, match="no valid records; pass path= as a list of files"):
        repair(directory, new)
    assert repair(f"{directory}/*.tfrecord*", new).records == 69
    assert is_valid_dataset(new)


# Plain files.


def write_files(directory, **files):
    directory.mkdir(parents=True, exist_ok=True)
    for name, found in files.items():
        (directory / f"{name}.tfrecord").write_bytes(b"".join(map(frame, found)))


def test_plain_files_become_a_dataset(tmp_path, new):
    good = [example(a=[n], label=[n % 3]) for n in range(6)]
    write_files(tmp_path / "x", one=[*good[:2], b"\xff"], two=good[2:])
    repaired = repair(tmp_path / "x", new)
    assert [(p.file, p.record) for p in repaired.lost] == [("one.tfrecord", 2)]
    assert records(new) == good
    assert repaired.written[0].split == "train"
    assert repaired.written[0].label == "label"
    assert repaired.written[0].classes == {0: 2, 1: 2, 2: 2}
    assert is_valid_dataset(new)


def test_splits_of_plain_files(tmp_path, new):
    good = [example(a=[n], label=[n % 2]) for n in range(6)]
    write_files(tmp_path / "x", **{"x-train-0": good[:4], "x-test-0": good[4:]})
    repaired = repair(tmp_path / "x", new)
    assert sorted(each.split for each in repaired.written) == ["test", "train"]
    assert records(new, "test") == good[4:]
    assert about(new, "test").label == "label"
    assert is_valid_dataset(new)


@pytest.mark.parametrize(
    "good",
    [
        [example(label=[b"owl"]), example(label=[b"wren"])],
        [example(a=[1]), example(a=[1], b=[2.0]), example()],
    ],
    ids=["strings", "missing features"],
)
def test_unlabelled_plain_files(tmp_path, new, good):
    write_files(tmp_path / "x", one=good)
    repaired = repair(tmp_path / "x", new)
    assert (repaired.lost, repaired.written[0].label) == ((), None)
    assert records(new) == good
    assert is_valid_dataset(new)


def test_records_without_common_features(tmp_path, new):
    write_files(tmp_path / "x", one=[example(a=[1]), example(a=[b"1"]), example(a=[2])])
    with pytest.raises(DatasetError, match="record 1 has bytes, record 0 has int64") as caught:
        repair(tmp_path / "x", new)
    error = caught.value
    assert (error.path, error.feature) == (str(tmp_path / "x"), "a")
    assert error.remedy == "pass features="
    assert not new.exists()
    repaired = repair(tmp_path / "x", new, features={"a": "int64"})
    assert repaired.records == 2
    assert [each.record for each in repaired.lost] == [1]
    assert "a bytes list, expected an int64 list" in repaired.lost[0].reason


def test_file_labels_are_not_kept(tmp_path, new):
    write_files(tmp_path / "x", owl=[example(a=[1])], wren=[example(a=[2])])
    with covey.open(tmp_path / "x", label="@file", progress=False):
        pass
    repaired = repair(tmp_path / "x", new)
    assert repaired.written[0].label is None
    assert is_valid_dataset(new)


def test_datum_metadata_is_kept(tmp_path, new):
    items = [(f"bird {n}", {"size": n, "name": f"b{n}"}) for n in range(20)]
    old = tmp_path / "old"
    TFRecordWriter(lambda split: iter(items), Serializer(), old, "train", 20).create_records()
    repair(old, new)
    name = shard_paths(new)[0].name
    assert json.loads((new / "shard_info.json").read_text()) == {"train": {name: 20}}
    entries = "datum_to_type_and_shape_mapping.json"
    assert (new / entries).read_text() == (old / entries).read_text()
    assert is_valid_dataset(new)


# Corrupt metadata.


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "birds-train.index.json"])
def test_repair_with_corrupt_metadata(directory, new, name):
    complete = records(directory)
    offset = corrupt(directory, 3)
    (directory / name).write_text("{")
    repaired = repair(directory, new)
    assert [(each.record, each.offset) for each in repaired.lost] == [(3, offset)]
    assert records(new) == [*complete[:3], *complete[4:]]
    assert set(about(new).features) == {"size", "song", "species"}
    assert about(new).label == "species"
    assert is_valid_dataset(new)


def test_corrupt_index_is_not_used(directory, new):
    rows = directory / "birds-train.index.npy"
    change(rows, rows.stat().st_size - 20, b"\xff" * 8)
    repaired = repair(directory, new)
    assert (repaired.records, repaired.lost) == (69, ())
    assert is_valid_dataset(new)


def test_classes_that_are_not_in_the_index(tmp_path, new):
    directory = tmp_path / "old"
    kinds = {"size": "int64", "species": "str"}
    write([{"size": n, "species": NAMES[n % 3]} for n in range(6)], directory, label="species",
          features=kinds, shuffle=False)  # fmt: skip
    more = [example(size=[7], species=[b"auk"]), example(size=[8], species=[b"crow"])]
    path = shard_paths(directory)[0]
    path.write_bytes(path.read_bytes() + b"".join(map(frame, more)))
    repaired = repair(directory, new)
    assert repaired.written[0].classes == {"crow": 3, "owl": 2, "wren": 2, "auk": 1}
    assert about(new).label_strings == ("crow", "owl", "wren", "auk")
    assert is_valid_dataset(new)


# Output.


def test_output_inside_the_dataset(directory, tmp_path):
    os.symlink(directory, tmp_path / "link")
    before = files(directory)
    others = (directory, f"{directory}/", tmp_path / "link", directory / ".." / "birds")
    for path, output in [
        *((directory, other) for other in others),
        (shard_paths(directory)[0], directory),
    ]:
        with pytest.raises(DatasetError, match="outside the dataset") as caught:
            repair(path, output)
        assert (caught.value.option, caught.value.found) == ("output", str(output))
    assert files(directory) == before


def test_existing_split(directory, new):
    repair(directory, new, split="test")
    before = files(new)
    with pytest.raises(DatasetExistsError, match="split 'test' exists") as caught:
        repair(directory, new)
    assert caught.value.path == str(new)
    # A repair has no mode="append".
    assert caught.value.remedy == "pass mode='overwrite' to replace it"
    assert files(new) == before
    repaired = repair(directory, new, split="train")
    assert repaired.records == 60
    assert is_valid_dataset(new)
    corrupt(directory, 3)
    assert repair(directory, new, mode="overwrite").records == 68
    assert is_valid_dataset(new)
    with pytest.raises(DatasetError) as caught:
        repair(directory, new, mode="append")
    assert (caught.value.option, caught.value.found) == ("mode", "append")


def test_existing_dataset_with_other_features(directory, new):
    write([{"size": "a", "song": [0.5, 1.0], "species": "owl"}], new, "other")
    before = files(new)
    with pytest.raises(DatasetError) as caught:
        repair(directory, new)
    assert (caught.value.feature, caught.value.path) == ("size", str(new))
    assert files(new) == before


def test_output_is_a_file(directory, new):
    new.write_text("")
    with pytest.raises(DatasetError, match="it is a file; must be a directory"):
        repair(directory, new)


@pytest.mark.parametrize("records", [10, 20], ids=["truncated", "replaced"])
def test_shard_is_changed_during_repair(directory, new, monkeypatch, records):
    path, other = shard_paths(directory)[1:]
    mkdir = os.mkdir

    def change_and_create(*arguments, **options):
        """Replace the shard when the output is created: after the scan, before the copy."""
        path.write_bytes(b"".join(map(frame, read_file(other)[:records])))
        mkdir(*arguments, **options)

    monkeypatch.setattr(os, "mkdir", change_and_create)
    with pytest.raises(FileChangedError) as caught:
        repair(directory, new)
    assert caught.value.path == str(path)
    assert not new.exists()


# Parts that are not committed.


def test_repair_in_place_keeps_parts(directory):
    """Their jobs may be running or queued, however old the files are."""
    for part in ("1/2", "2/2"):
        covey.write(birds(), directory, split="more", part=part, progress=False)
    for path in (directory / ".covey-parts-more").rglob("*"):
        os.utime(path, (0, 0))
    result = repair(directory, None)
    assert (result.deleted, result.parts) == ((), (".covey-parts-more",))
    assert "`covey repair --delete-parts` deletes them" in str(result)
    assert covey.commit(directory, progress=False).records == 60
    assert repair(directory, None).parts == ()


def test_parts_are_deleted_on_request(tmp_path):
    """Also if there is no dataset yet, and with the files of killed jobs."""
    directory = tmp_path / "birds"
    covey.write(birds(), directory, part="1/2", progress=False)
    (directory / ".covey-parts-train" / temporary_name() / "runs-1").mkdir(parents=True)
    result = repair(directory, None, delete_parts=True)
    assert (result.deleted, result.parts) == ((".covey-parts-train",), ())
    assert not list(directory.iterdir())
