"""DALI's index files: exported as its own tool writes them."""

import random
import struct

import numpy as np
import pytest
import tensorflow as tf
from corrupt_files import frame
from written import write

import covey
from covey.index import IndexBuilder, ShardFiles, read_index, read_metadata
from covey.index.dali import export_dali
from covey.schema import Features
from covey.storage import LocalStorage, open_storage

KINDS = Features({"size": "int64", "name": "bytes", "label": "int64"})


def tfrecord2idx(path):
    """Return the index that DALI's tool of this name writes for a file, by its documentation."""
    lines = []
    with open(path, "rb") as file:
        while True:
            begin = file.tell()
            length = file.read(8)
            if not length:
                return "".join(lines)
            file.seek(4 + struct.unpack("<q", length)[0] + 4, 1)
            lines.append(f"{begin} {file.tell() - begin}\n")


def encode(count, first=0):
    rng = random.Random(first)
    return [
        KINDS.encode({"size": n, "name": rng.randbytes(rng.randrange(300)), "label": n % 3})
        for n in range(first, first + count)
    ]


@pytest.fixture
def files(tmp_path):
    """Two files of 30 records, and an empty one."""
    names = ("a.tfrecord", "b.tfrecord", "c.tfrecord")
    for name, records in zip(names, (encode(30), encode(30, 30), []), strict=True):
        (tmp_path / name).write_bytes(b"".join(map(frame, records)))
    return ShardFiles(LocalStorage(), str(tmp_path), names)


def build(files, **options):
    return IndexBuilder(progress=False, **options).build(files)


def idx_of(path):
    """Return the path of the index file that covey writes for a shard."""
    return f"{path.replace('.tfrecord', '')}.idx"


def test_export_matches_dalis_tool(files, tmp_path):
    written = export_dali(build(files), files)
    assert written == [idx_of(path) for path in files.paths]
    for path in files.paths:
        with open(idx_of(path)) as file:
            assert file.read() == tfrecord2idx(path)
    assert (tmp_path / "c.idx").read_text() == ""


def test_shards_that_differ_in_the_suffix_have_their_own_index_files(tmp_path):
    names = ("sea.tfrecord/a.tfrecord", "sea.tfrecord/a.tfrec", "sea.tfrecord/b.TFRecords")
    (tmp_path / "sea.tfrecord").mkdir()
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(b"".join(map(frame, encode(9, 9 * number))))
    files = ShardFiles(LocalStorage(), str(tmp_path), names)
    written = export_dali(build(files), files)
    for path, shard in zip(written, files.paths, strict=True):
        with open(path) as file:
            assert file.read() == tfrecord2idx(shard)
    assert written[2] == str(tmp_path / "sea.tfrecord" / "b.idx")


def test_every_line_locates_a_record(files):
    export_dali(build(files), files)
    for path, first in zip(files.paths, (0, 30), strict=False):
        with open(path, "rb") as shard, open(idx_of(path)) as lines:
            for number, line in enumerate(lines):
                offset, size = map(int, line.split())
                shard.seek(offset)
                found = shard.read(size)
                example = tf.train.Example.FromString(found[12:-4])
                assert example.features.feature["size"].int64_list.value[:] == [first + number]
                assert frame(found[12:-4]) == found


def test_export_to_another_directory(files, tmp_path):
    directory = str(tmp_path / "idx" / "files")
    written = export_dali(build(files), files, directory)
    assert written[0] == f"{directory}/a.idx"
    assert not (tmp_path / "a.idx").exists()


def test_export_of_a_dataset(tmp_path):
    write({"x": np.arange(50), "label": np.arange(50) % 4}, tmp_path, label="label", shards=3)
    stem = f"{covey.info(tmp_path).path.rpartition('/')[2]}-train"
    index = read_index(tmp_path, stem, read_metadata(tmp_path, stem))
    names = tuple(shard.name for shard in index.metadata.shards)
    files = ShardFiles(LocalStorage(), str(tmp_path), names)
    for path, shard in zip(export_dali(index, files), files.paths, strict=True):
        assert path == idx_of(shard)
        with open(path) as file:
            assert file.read() == tfrecord2idx(shard)
    assert covey.verify(tmp_path, progress=False).is_valid


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_shards_are_rejected(tmp_path, compression):
    with covey.RecordWriter(tmp_path / "x.tfrecord", compression=compression) as writer:
        writer.write(encode(1)[0])
    files = ShardFiles(LocalStorage(), str(tmp_path), ("x.tfrecord",))
    with pytest.raises(covey.errors.DatasetError, match=rf"compressed \({compression}\)"):
        export_dali(build(files), files)


def test_remote_shards(files):
    """Index files of a URL are written there."""
    storage = open_storage("memory://dali")
    for path, name in zip(files.paths, files.names, strict=True):
        storage.upload(path, storage.join("memory://dali", name))
    remote = ShardFiles(storage, storage.clean("memory://dali"), files.names)
    export_dali(build(files), remote)
    assert storage.read("memory://dali/a.idx").decode() == tfrecord2idx(files.paths[0])
