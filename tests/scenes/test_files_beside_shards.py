"""Files beside the shards of another writer, whose readers find shards by ``*.tfrecord*``."""

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import tensorflow as tf

import covey
from covey.cli import main
from covey.samplers import TFRecordDatasetSampler

NAMES = [
    "birds-train.tfrecord-00000-of-00002",
    "birds-train.tfrecord-00001-of-00002",
    "birds.tfrecord",
    "gulls.tfrec",
    "gulls.tfrecord",
    "owls.TFRecords",
    ".tfrecord",
    "a.tfrecord.b.tf.tfrecrec",
    "no suffix",
    "é" * 100 + ".tfrecord",
    "x" * 240 + ".tfrecord",
]
COMPRESSED = "wrens.tfrecord.gz"


def example(number):
    values = {"x": [number], "label": [number % 3]}
    feature = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for name, value in values.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def put(path, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for number in range(12):
            writer.write(example(number))


@pytest.fixture
def shards(tmp_path):
    directory = tmp_path / "shards"
    directory.mkdir()
    for name in NAMES:
        put(directory / name)
    return directory


def listed(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def is_taken_for_a_shard(name):
    return any(fnmatchcase(Path(name).name.lower(), each) for each in ("*.tfrecord*", "*.tfrec*"))


def read(directory, pattern="*.tfrecord*"):
    return list(tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(f"{directory}/{pattern}"))))


def use(path, label="label"):
    """Open files, and read them in every way."""
    with covey.open(path, label=label, progress=False) as ds:
        assert len(ds[:]["x"]) == len(ds)
        ds.batches(2, 2).batch(3)


READERS = {
    "open the directory": lambda d: use(d),
    "open one shard": lambda d: [use(d / name) for name in NAMES],
    "open a list": lambda d: use([d / NAMES[0], d / NAMES[1]]),
    "open a pattern": lambda d: use(f"{d}/birds*"),
    "label by file": lambda d: use([d / NAMES[0], d / NAMES[2]], "@file"),
    "info": lambda d: [covey.info(d), *(covey.info(d / name) for name in NAMES)],
    "verify": lambda d: covey.verify(d, progress=False),
    "repair": lambda d: covey.repair(d, d.parent / "repaired", progress=False),
    "sampler": lambda d: next(
        iter(TFRecordDatasetSampler(d, None, 2, 4, label="label", shard_suffix="*.tfrecord*"))
    ),
}


@pytest.mark.parametrize("operation", READERS.values(), ids=READERS)
def test_readers_never_write_beside_shards(shards, operation):
    before = listed(shards)
    operation(shards)
    assert listed(shards) == before


def test_readers_of_compressed_shards_never_write_beside_them(tmp_path):
    put(tmp_path / COMPRESSED, "GZIP")
    use(tmp_path / COMPRESSED)
    use(tmp_path)
    assert listed(tmp_path) == {COMPRESSED}


@pytest.mark.parametrize("pattern", ["*.tfrecord*", "*.tfrec*"])
def test_index_files_are_not_taken_for_shards(shards, pattern, capsys):
    before, records = listed(shards), read(shards, pattern)
    for path in [shards, f"{shards}/birds*", *(shards / name for name in NAMES)]:
        assert main(["index", str(path), "--label", "label", "--export-dali", "--quiet"]) == 0
    new = listed(shards) - before
    assert len([name for name in new if name.endswith(".index.json")]) == len(NAMES) + 2
    assert len([name for name in new if name.endswith(".idx")]) >= len(NAMES)
    assert not list(filter(is_taken_for_a_shard, new))
    assert read(shards, pattern) == records
    for name in NAMES:  # no index has replaced that of another shard
        assert main(["index", str(shards / name), "--json"]) == 0
        (split,) = json.loads(capsys.readouterr().out)["splits"].values()
        assert not split["built"]


def test_temporary_files_are_not_taken_for_shards(shards):
    """Names that exist only while files are written."""
    before, seen = listed(shards), set()

    def watched():
        for number in range(9):
            seen.update(os.listdir(shards))
            yield {"x": number, "label": number % 3}

    with covey.RecordWriter(shards / "new.tfrecord") as writer:
        writer.write(example(1))
        seen.update(os.listdir(shards))
    written = set()
    for mode in ("overwrite", "append"):
        covey.write(watched(), shards, split="test", label="label", progress=False, mode=mode)
        written |= {name for name in listed(shards) if is_taken_for_a_shard(name)}
    assert all("test" in name or name in (*before, "new.tfrecord") for name in written)
    assert not [name for name in seen - written - before if is_taken_for_a_shard(name)]
    assert [split.name for split in covey.info(shards).splits] == ["test"]
