"""Random access to compressed shards: by GZIP member, or decompressed once into the cache."""

import contextlib
import gzip
import os
import pickle
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened import numbers, opened, put, put_numbers
from written import index, shard_paths, write

from covey.errors import (
    CorruptRecordError,
    CoveyError,
    FileChangedError,
    SkippedRecordsWarning,
    StorageError,
)
from covey.reading import decompressed


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The directory of decompressed shards."""
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/unpacked"


NOISE = np.random.default_rng(0).bytes(1 << 20)
FEATURES = {"x": "int64", "label": "int64", "pad": "bytes"}


def examples(count, size=1000):
    return [{"x": n, "label": n % 3, "pad": NOISE[n * 7 : n * 7 + size]} for n in range(count)]


def frames(tmp_path, count, size=1000):
    """Return the bytes of a TFRecord file."""
    path = put(tmp_path / "frames", examples(count, size), FEATURES)
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture
def long_stream(tmp_path):
    """A GZIP file of one member of over 4 MiB: it is decompressed into the cache."""
    path = tmp_path / "data/long.tfrecord.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(frames(tmp_path, 600, 9000), 1))
    return path


def inodes(cache):
    """Return the inodes of the decompressed shards; a shard decompressed again has another."""
    return {path.stat().st_ino for path in cache.iterdir()} if cache.exists() else set()


# GZIP members.


def member_edges(path):
    """Return the offsets of the members of a GZIP file, and its size."""
    content = path.read_bytes()
    edges, rest = [0], content
    while rest:
        inflater = zlib.decompressobj(31)
        inflater.decompress(rest)
        rest = inflater.unused_data
        edges.append(len(content) - len(rest))
    return edges


def test_only_the_member_of_a_record_is_read(tmp_path, cache):
    """The records of valid members are read, although the members around them are corrupt."""
    write(examples(900), tmp_path / "set", label="label", shuffle=False, compression="GZIP")
    (path,) = shard_paths(tmp_path / "set")
    edges = member_edges(path)
    assert len(edges) > 11
    content = bytearray(path.read_bytes())
    # Not the first and the last members: the index identifies a shard by their bytes.
    for member in (3, 4, 6, 7):
        content[(edges[member] + edges[member + 1]) // 2] ^= 1
    path.write_bytes(content)
    ds = opened(tmp_path / "set")
    is_corrupt = np.isin(index(tmp_path / "set")["offset"], [edges[n] for n in (3, 4, 6, 7)])
    corrupt, valid = np.flatnonzero(is_corrupt).tolist(), np.flatnonzero(~is_corrupt).tolist()
    assert len(corrupt) > 100
    assert numbers(ds, valid[::-1] + valid) == valid[::-1] + valid
    for number in (corrupt[0], corrupt[-1]):
        for use in (ds.__getitem__, ds.raw.__getitem__):
            with pytest.raises(CorruptRecordError) as caught:
                use([valid[0], number])
            assert (caught.value.path, caught.value.record) == (str(path), number)
    assert not inodes(cache)


def test_record_longer_than_a_member(tmp_path):
    long = [{"x": n, "pad": NOISE * 6, "label": 0} for n in range(3)]
    write(long, tmp_path, features=FEATURES, label="label", shuffle=False, compression="GZIP")
    ds = opened(tmp_path)
    assert ds[1]["pad"] == NOISE * 6
    assert numbers(ds) == [0, 1, 2]


def test_one_record_per_member(tmp_path, cache):
    parts = [
        put_numbers(tmp_path / "part", [n], compression="GZIP").read_bytes() for n in range(20)
    ]
    (tmp_path / "x.gz").write_bytes(b"".join(parts))
    ds = opened(tmp_path / "x.gz")
    assert numbers(ds, [11, 3]) == [11, 3]
    assert not inodes(cache)


# Streams, which are decompressed into the cache.


def test_short_stream_is_decompressed_in_memory(tmp_path, cache):
    path = tmp_path / "x.tfrecord.gz"
    path.write_bytes(gzip.compress(frames(tmp_path, 50)))
    assert numbers(opened(path), [49, 0, 7]) == [49, 0, 7]
    assert not inodes(cache)


@pytest.mark.parametrize("window", [31, 15])
def test_long_stream_is_decompressed_once(tmp_path, cache, window):
    path = tmp_path / "data/x"
    path.parent.mkdir()
    packer = zlib.compressobj(1, wbits=window)
    path.write_bytes(packer.compress(frames(tmp_path, 600, 9000)) + packer.flush())
    ds = opened(path)
    assert (len(ds), len(ds.classes)) == (600, 3)
    assert ds[300]["pad"] == NOISE[2100:11100]
    first = inodes(cache)
    assert len(first) == 1
    order = np.random.default_rng(1).permutation(600)
    for each in (ds, opened(path.parent), opened(path, mmap=False)):
        assert numbers(each, order) == order.tolist()
        assert each.raw[-1] == each.raw[599]
        assert numbers(each.where(label=1)) == list(range(1, 600, 3))
    assert inodes(cache) == first


def test_replaced_stream(tmp_path, long_stream):
    assert numbers(opened(long_stream), [3]) == [3]
    content = put(tmp_path / "frames", examples(700, 9000)[100:], FEATURES).read_bytes()
    long_stream.write_bytes(gzip.compress(content, 1))
    assert numbers(opened(long_stream), [3]) == [103]


@pytest.mark.parametrize("limit", ["argument", "environment"])
def test_cache_limit(long_stream, cache, monkeypatch, limit):
    options = {}
    if limit == "argument":
        options["cache_bytes"] = 4 << 20
    else:
        monkeypatch.setenv("COVEY_CACHE_BYTES", str(4 << 20))
    with pytest.raises(StorageError, match="4194304 bytes") as caught:
        opened(long_stream, **options)
    assert caught.value.path == str(long_stream)
    assert "cache_bytes=" in str(caught.value)
    assert not inodes(cache)
    assert numbers(opened(long_stream, cache_bytes=8 << 20), [3]) == [3]


def test_shards_of_closed_datasets_are_evicted(tmp_path, long_stream, cache):
    limit = 8 << 20
    for number in range(3):
        path = tmp_path / f"{number}.gz"
        shutil.copy(long_stream, path)
        with opened(path, cache_bytes=limit) as ds:
            assert numbers(ds, [number]) == [number]
        assert sum(each.stat().st_size for each in cache.iterdir()) <= limit
    pinned = opened(tmp_path / "0.gz", cache_bytes=limit)
    assert numbers(pinned, [7]) == [7]
    with pytest.raises(StorageError, match="cache_bytes="):
        opened(tmp_path / "1.gz", cache_bytes=limit)
    assert numbers(pinned, [8]) == [8]
    pinned.close()
    assert numbers(opened(tmp_path / "1.gz", cache_bytes=limit), [9]) == [9]


def test_corrupt_cache_file(long_stream, cache):
    """Records are read again from the shard, or an error is raised; never other values."""
    assert numbers(opened(long_stream)) == list(range(600))
    (path,) = cache.iterdir()
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    half = content[: len(content) // 2]
    for changed in (half, b"", flipped, content + b"x", bytes(len(content)), content[9:]):
        path.unlink(missing_ok=True)
        path.write_bytes(changed)
        with opened(long_stream) as ds:
            for number in range(0, 595, 5):
                with contextlib.suppress(CoveyError):
                    assert numbers(ds, [number, number + 5]) == [number, number + 5]
        # A copy with a corrupt record is removed.
        assert numbers(opened(long_stream)) == list(range(600))


def test_deleted_cache(long_stream, cache):
    for mmap in (True, False):
        ds = opened(long_stream, mmap=mmap)
        assert numbers(ds, [5]) == [5]
        shutil.rmtree(cache.parent)
        if mmap:  # otherwise the copy is opened for each batch
            assert numbers(ds, [599, 300]) == [599, 300]
        copy = pickle.loads(pickle.dumps(ds))  # decompresses again
        shutil.rmtree(cache.parent)
        with pytest.raises(FileChangedError, match="open it again"):
            copy[5]
        assert numbers(opened(long_stream, mmap=mmap), [5]) == [5]


def test_shard_changes_while_it_is_decompressed(long_stream, cache, monkeypatch):
    class Changing(decompressed.Inflater):
        def read(self, size):
            os.utime(long_stream, (1, 1))
            return super().read(size)

    monkeypatch.setattr(decompressed, "Inflater", Changing)
    with pytest.raises(FileChangedError, match="changed while it was decompressed") as caught:
        opened(long_stream)
    assert caught.value.path == str(long_stream)
    assert not inodes(cache)


def test_several_threads_open_a_stream(long_stream, cache):
    with ThreadPoolExecutor(6) as pool:
        datasets = list(pool.map(lambda _: opened(long_stream), range(6)))
    assert [numbers(ds, [599, 3]) for ds in datasets] == [[599, 3]] * 6
    assert len(inodes(cache)) == 1


# Files of other programs.


def joined(content, parts):
    """Return GZIP members that do not end with a record."""
    step = -(-len(content) // parts)
    return b"".join(gzip.compress(content[at : at + step]) for at in range(0, len(content), step))


def with_header_fields(content):
    """Return a GZIP member with every optional field of the header."""
    raw = zlib.compressobj(6, wbits=-15)
    body = raw.compress(content) + raw.flush()
    tail = zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    fields = b"\x05\x00extra" + b"name.tfrecord\0" + b"a comment\0"
    return b"\x1f\x8b\x08\x1c" + bytes(6) + fields + body + tail


STREAMS = {
    "members of any bytes": lambda content: joined(content, 7),
    "empty members": lambda content: b"".join(map(gzip.compress, (b"", content, b"", b""))),
    "two streams": lambda content: gzip.compress(content) * 2,
    "stored": lambda content: gzip.compress(content, 0),
    "header fields": with_header_fields,
    "ZLIB 0": lambda content: zlib.compress(content, 0),
    "ZLIB 9": lambda content: zlib.compress(content, 9),
}


@pytest.mark.parametrize("size", [100, 9000])
@pytest.mark.parametrize("stream", STREAMS)
def test_streams_of_other_programs(tmp_path, stream, size):
    path = tmp_path / "x.tfrecord.gz"
    path.write_bytes(STREAMS[stream](frames(tmp_path, 600, size)))
    ds = opened(path)
    assert len(ds) == (1200 if stream == "two streams" else 600)
    order = np.random.default_rng(1).permutation(len(ds))[:100]
    assert numbers(ds, order) == (order % 600).tolist()
    assert ds[599]["pad"] == NOISE[599 * 7 : 599 * 7 + size]


@pytest.mark.parametrize("size", [100, 9000])
@pytest.mark.parametrize("change", ["truncated", "flipped"])
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, lambda c: joined(c, 60), None])
def test_skip_corrupt_records(tmp_path, pack, change, size):
    path = tmp_path / "x.tfrecord.gz"
    if pack is None:
        put(path, examples(600, size), FEATURES, compression="GZIP")
    else:
        path.write_bytes(pack(frames(tmp_path, 600, size)))
    content = bytearray(path.read_bytes())
    if change == "truncated":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError):
        opened(path)
    with pytest.warns(SkippedRecordsWarning):
        ds = opened(path, on_error="skip")
    found = numbers(ds)
    assert len(found) < 600
    assert sorted(set(found)) == found
    assert ds.labels.tolist() == [n % 3 for n in found]
    assert [each["pad"] for each in ds] == [NOISE[n * 7 : n * 7 + size] for n in found]


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from([None, "GZIP", "ZLIB", "empty"]), st.integers(0, 3)),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_shards_of_different_compression(tmp_path_factory, shards, mmap):
    directory, values = tmp_path_factory.mktemp("mixed"), []
    for number, (compression, count) in enumerate(shards):
        path, part = directory / f"{number}.tfrecord", range(len(values), len(values) + count)
        if compression == "empty":
            path.write_bytes(b"")
        else:
            put_numbers(path, part, compression=compression)
            values += part
    ds = opened(directory, mmap=mmap)
    assert len(ds) == len(values)
    if values:
        assert numbers(ds) == values
        assert numbers(ds, values[::-1]) == values[::-1]
        assert [ds.features.decode(each)["x"] for each in ds.raw] == values
        assert ds.labels.tolist() == [n % 3 for n in values]
    shutil.rmtree(directory)


def test_streams_beside_members_and_plain_files(tmp_path, long_stream):
    put(long_stream.with_name("a.tfrecord"), examples(20), FEATURES)
    write(examples(30), tmp_path / "set", features=FEATURES, shuffle=False, compression="GZIP")
    shutil.copy(shard_paths(tmp_path / "set")[0], long_stream.with_name("m.tfrecord.gz"))
    ds = opened(long_stream.parent)
    expected = [*range(20), *range(600), *range(30)]
    order = np.random.default_rng(1).permutation(650)
    assert numbers(ds, order) == [expected[n] for n in order]
