"""covey.repair: all that is valid is in the new dataset, all that is lost is listed."""

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
from covey._progress import Progress
from covey.compat.datum import Serializer, TFRecordWriter
from covey.maintenance.repair import repair
from covey.maintenance.verify import verify

NAMES = ("crow", "owl", "wren")


def birds(count=60):
    return [{"size": n, "song": [n / 2, 1.0], "species": NAMES[n % 3]} for n in range(count)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sound") / "birds"
    write(birds(), directory, label="species", shards=3, description="Some birds.", seed=5)
    write(birds(9), directory, "test")
    return directory


@pytest.fixture
def directory(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "birds")


@pytest.fixture
def new(tmp_path):
    return tmp_path / "new"


def mend(path, output, **options):
    return repair(path, output, progress=False, **options)


def change(path, at, by=b"?"):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(by)


def damage(directory, number, shard=0):
    """Damage a record of a shard; where it is."""
    rows = index(directory)
    row = rows[rows["shard"] == shard][number]
    change(shard_paths(directory)[shard], int(row["offset"]) + 14)
    return int(row["offset"])


def read_file(path):
    with covey.RecordReader(path) as reader:
        return list(reader)


def is_sound(directory):
    return verify(directory, progress=False).is_valid


# What is saved.


def test_a_sound_dataset_is_copied(directory, new):
    before = files(directory)
    mended = mend(directory, new)
    assert files(directory) == before
    assert mended.lost == ()
    assert mended.records == 69
    assert is_sound(new)
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


def test_what_is_damaged_is_left_out_and_listed(directory, new):
    first, second = damage(directory, 3), damage(directory, 7, 2)
    mended = mend(directory, new)
    names = [path.name for path in shard_paths(directory)]
    assert [(p.split, p.file, p.record, p.offset) for p in mended.lost] == [
        ("train", names[0], 3, first),
        ("train", names[2], 7, second),
    ]
    assert all("data checksum is" in each.reason for each in mended.lost)
    assert [shard.records for shard in mended.written[0].shards] == [19, 20, 19]
    assert is_sound(new)
    check_index(new)


def test_covey_opens_it(directory, new):
    damage(directory, 3)
    mend(directory, new)
    with covey.open(directory, split="test") as old, covey.open(new, split="test") as mended:
        assert [each["size"] for each in mended] == [each["size"] for each in old]
    with covey.open(new, split="train") as mended:
        assert len(mended) == 59
        assert mended.classes.names == NAMES


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_shards_stay_compressed(tmp_path, new, compression):
    old = tmp_path / "old"
    rng = np.random.default_rng(0)
    examples = {"x": rng.integers(0, 256, (400, 200), np.uint8), "label": np.arange(400) % 7}
    write(examples, old, label="label", compression=compression, shards=2)
    complete = records(old)
    path = shard_paths(old)[1]
    change(path, path.stat().st_size // 2, bytes(9))
    mended = mend(old, new)
    assert mended.lost
    assert is_sound(new)
    assert about(new).compression == compression
    saved = records(new)
    assert saved[:200] == complete[:200]
    assert set(saved) < set(complete)
    assert len(saved) == mended.records > 250


@given(bad=st.sets(st.integers(0, 19), max_size=19), seed=st.integers(0, 999))
@settings(max_examples=20)
def test_records_that_do_not_fit_are_left_out(sound, tmp_path_factory, bad, seed):
    parent = tmp_path_factory.mktemp("misfits")
    directory = shutil.copytree(sound, parent / "birds")
    path = shard_paths(directory)[1]
    complete = read_file(path)
    wrong = [b"\xff", example(size=[1]), example(size=[1], song=[1.0, 2.0], species=[9])]
    put = [wrong[(n + seed) % 3] if n in bad else complete[n] for n in range(20)]
    path.write_bytes(b"".join(map(frame, put)))
    mended = mend(directory, parent / "new", split="train")
    assert {each.record for each in mended.lost} == bad
    kept = [each for n, each in enumerate(complete) if n not in bad]
    assert read_file(shard_paths(parent / "new")[1]) == kept
    assert is_sound(parent / "new")


def test_a_missing_shard(directory, new):
    path = shard_paths(directory)[1]
    path.unlink()
    mended = mend(directory, new)
    (lost,) = mended.lost
    assert (lost.file, lost.record) == (path.name, None)
    assert lost.reason == "the shard is missing, with 20 records"
    assert len(shard_paths(new)) == 2
    assert is_sound(new)


def test_a_shard_of_which_nothing_is_left(directory, new):
    shard_paths(directory)[0].write_bytes(b"nothing")
    mended = mend(directory, new)
    assert [shard.records for shard in mended.written[0].shards] == [20, 20]
    assert is_sound(new)


def test_a_split_of_which_nothing_is_left(directory, new):
    shard_paths(directory, "test")[0].write_bytes(b"nothing")
    mended = mend(directory, new)
    assert [each.split for each in mended.written] == ["train"]
    assert [each.split for each in mended.lost] == ["test"]
    assert is_sound(new)


def test_nothing_is_left(directory, new):
    for split in ("train", "test"):
        for path in shard_paths(directory, split):
            path.write_bytes(b"nothing")
    with pytest.raises(
        covey.errors.DatasetError, match="no valid records; the first problem is birds-train"
    ):
        mend(directory, new)
    assert not new.exists()


def test_shards_that_nothing_lists(directory, new):
    content = json.loads((directory / "dataset_info.json").read_text())
    del content["splits"]
    (directory / "dataset_info.json").write_text(json.dumps(content))
    with pytest.raises(covey.errors.DatasetError, match="no valid records; pass shards"):
        mend(directory, new)
    assert mend(f"{directory}/*.tfrecord*", new).records == 69
    assert is_sound(new)


# Corrupt files: those that others have generated.


# Files that others wrote.


def put_files(directory, **files):
    directory.mkdir(parents=True, exist_ok=True)
    for name, found in files.items():
        (directory / f"{name}.tfrecord").write_bytes(b"".join(map(frame, found)))


def test_files_of_others_become_a_dataset(tmp_path, new):
    good = [example(a=[n], label=[n % 3]) for n in range(6)]
    put_files(tmp_path / "x", one=[*good[:2], b"\xff"], two=good[2:])
    mended = mend(tmp_path / "x", new)
    assert [(p.file, p.record) for p in mended.lost] == [("one.tfrecord", 2)]
    assert records(new) == good
    assert mended.written[0].split == "train"
    assert mended.written[0].label == "label"
    assert mended.written[0].classes == {0: 2, 1: 2, 2: 2}
    assert is_sound(new)


def test_splits_that_names_of_files_tell(tmp_path, new):
    good = [example(a=[n], label=[b"owl"]) for n in range(6)]
    put_files(tmp_path / "x", **{"x-train-0": good[:4], "x-test-0": good[4:]})
    mended = mend(tmp_path / "x", new)
    assert sorted(each.split for each in mended.written) == ["test", "train"]
    assert records(new, "test") == good[4:]
    assert about(new, "test").label_strings == ("owl",)
    assert is_sound(new)


def test_a_text_that_is_only_called_a_label(tmp_path, new):
    good = [example(label=[b"owl"]), example(label=[b"\xff\xfe"])]
    put_files(tmp_path / "x", one=good)
    mended = mend(tmp_path / "x", new)
    assert (mended.lost, mended.written[0].label) == ((), None)
    assert is_sound(new)


def test_features_that_some_records_lack(tmp_path, new):
    good = [example(a=[1]), example(a=[1], b=[2.0]), example()]
    put_files(tmp_path / "x", one=good)
    mend(tmp_path / "x", new)
    assert records(new) == good
    assert is_sound(new)


def test_records_that_no_features_fit(tmp_path, new):
    put_files(tmp_path / "x", one=[example(a=[1]), example(a=[b"1"]), example(a=[2])])
    with pytest.raises(
        covey.errors.DatasetError, match="record 1 holds bytes, record 0 holds int64"
    ):
        mend(tmp_path / "x", new)
    assert not new.exists()
    mended = mend(tmp_path / "x", new, features={"a": "int64"})
    assert mended.records == 2
    assert [each.record for each in mended.lost] == [1]
    assert "it holds a bytes list" in mended.lost[0].reason


def test_one_class_per_file_is_not_a_label_of_the_new_dataset(tmp_path, new):
    put_files(tmp_path / "x", owl=[example(a=[1])], wren=[example(a=[2])])
    with covey.open(tmp_path / "x", label="@file", progress=False):
        pass
    mended = mend(tmp_path / "x", new)
    assert mended.written[0].label is None
    assert is_sound(new)


def test_what_datum_reads(tmp_path, new):
    items = [(f"bird {n}", {"size": n, "name": f"b{n}"}) for n in range(20)]
    old = tmp_path / "old"
    TFRecordWriter(lambda split: iter(items), Serializer(), old, "train", 20).create_records()
    mend(old, new)
    name = shard_paths(new)[0].name
    assert json.loads((new / "shard_info.json").read_text()) == {"train": {name: 20}}
    entries = "datum_to_type_and_shape_mapping.json"
    assert (new / entries).read_text() == (old / entries).read_text()
    assert is_sound(new)


# What describes the dataset is corrupt.


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "birds-train.index.json"])
def test_descriptions_that_cannot_be_read(directory, new, name):
    complete = records(directory)
    offset = damage(directory, 3)
    (directory / name).write_text("{")
    mended = mend(directory, new)
    assert [(each.record, each.offset) for each in mended.lost] == [(3, offset)]
    assert records(new) == [*complete[:3], *complete[4:]]
    assert set(about(new).features) == {"size", "song", "species"}
    assert about(new).label == "species"
    assert is_sound(new)


def test_an_index_that_lies_is_not_believed(directory, new):
    rows = directory / "birds-train.index.npy"
    change(rows, rows.stat().st_size - 20, b"\xff" * 8)
    mended = mend(directory, new)
    assert (mended.records, mended.lost) == (69, ())
    assert is_sound(new)


def test_classes_that_the_index_does_not_know(tmp_path, new):
    directory = tmp_path / "old"
    kinds = {"size": "int64", "species": "str"}
    write([{"size": n, "species": NAMES[n % 3]} for n in range(6)], directory, label="species",
          features=kinds, shuffle=False)  # fmt: skip
    more = [example(size=[7], species=[b"auk"]), example(size=[8], species=[b"crow"])]
    path = shard_paths(directory)[0]
    path.write_bytes(path.read_bytes() + b"".join(map(frame, more)))
    mended = mend(directory, new)
    assert mended.written[0].classes == {"crow": 3, "owl": 2, "wren": 2, "auk": 1}
    assert about(new).label_strings == ("crow", "owl", "wren", "auk")
    assert is_sound(new)


# Where it is written.


def test_the_same_directory_is_refused(directory, tmp_path):
    os.symlink(directory, tmp_path / "link")
    before = files(directory)
    for other in (directory, f"{directory}/", tmp_path / "link", directory / ".." / "birds"):
        with pytest.raises(covey.errors.DatasetError, match="outside the dataset"):
            mend(directory, other)
    with pytest.raises(covey.errors.DatasetError, match="outside the dataset"):
        mend(shard_paths(directory)[0], directory)
    assert files(directory) == before


def test_a_split_that_is_there_is_refused(directory, new):
    mend(directory, new, split="test")
    before = files(new)
    with pytest.raises(covey.errors.DatasetExistsError, match="there is a split 'test' already"):
        mend(directory, new)
    assert files(new) == before
    mended = mend(directory, new, split="train")
    assert mended.records == 60
    assert is_sound(new)
    damage(directory, 3)
    assert mend(directory, new, mode="overwrite").records == 68
    assert is_sound(new)
    with pytest.raises(covey.errors.DatasetError, match="must be 'error' or 'overwrite'"):
        mend(directory, new, mode="append")


def test_a_dataset_of_other_features_is_refused(directory, new):
    write([{"size": "a", "song": [0.5, 1.0], "species": "owl"}], new, "other")
    before = files(new)
    with pytest.raises(covey.CoveyError, match="size"):
        mend(directory, new)
    assert files(new) == before


def test_a_file_is_no_directory(directory, new):
    new.write_text("")
    with pytest.raises(covey.errors.DatasetError, match="it is a file; must be a directory"):
        mend(directory, new)


def test_a_shard_that_changes_meanwhile(directory, new, monkeypatch):
    path = shard_paths(directory)[1]
    begin = Progress.begin

    def change_and_begin(bar, title, total):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        begin(bar, title, total)

    monkeypatch.setattr(Progress, "begin", change_and_begin)
    with pytest.raises(covey.errors.FileChangedError) as caught:
        mend(directory, new)
    assert caught.value.path == str(path)
    assert not new.exists()


def test_what_is_said(directory, new):
    damage(directory, 3)
    mended = mend(directory, new)
    first, header, line = str(mended).splitlines()
    assert first == f"{directory}: 68 records copied to {new}; 1 loss"
    assert header.split() == ["file", "record", "offset", "problem"]
    assert "data checksum" in line
    content = json.loads(json.dumps(mended.to_dict()))
    assert content["lost"] == [dataclasses.asdict(mended.lost[0])]
    assert content["splits"]["train"]["records"] == 59
