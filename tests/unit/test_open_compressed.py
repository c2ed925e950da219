"""Compressed shards: random access straight from the file, or through what was unpacked once."""

import gzip
import io
import itertools
import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened import numbers, opened, put, put_numbers
from written import fresh_process, shard_paths, write

from covey import CoveyError, RecordReader
from covey.errors import CorruptRecordError, SkippedRecordsWarning, StorageError
from covey.reading import decompressed
from covey.reading.open_shards import OpenShards
from covey.storage import cache_directory


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


NOISE = np.random.default_rng(0).bytes(1 << 20)
FEATURES = {"x": "int64", "label": "int64", "pad": "bytes"}


def examples(count, size=1000):
    return [{"x": n, "label": n % 3, "pad": NOISE[n * 7 : n * 7 + size]} for n in range(count)]


def frames(tmp_path, count, size=1000):
    """The bytes of a TFRecord file."""
    path = put(tmp_path / "frames", examples(count, size), FEATURES)
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture
def long_stream(tmp_path):
    """A GZIP file of a single member, that unpacks to over 4 MiB."""
    path = tmp_path / "data/long.tfrecord.gz"
    path.parent.mkdir()
    content = frames(tmp_path, 600, 9000)
    assert len(content) > 5 << 20
    path.write_bytes(gzip.compress(content, 1))
    return path


@pytest.fixture
def reads(monkeypatch):
    """What was read of shards: (shard, from, to)."""
    seen = []
    real = OpenShards.read

    def read(self, number, begin, end):
        seen.append((number, begin, end))
        return real(self, number, begin, end)

    monkeypatch.setattr(OpenShards, "read", read)
    return seen


@pytest.fixture
def unpacked(monkeypatch):
    """How often a shard was unpacked."""
    seen = []
    real = decompressed.Inflater

    def inflater(*args, **kwargs):
        seen.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(decompressed, "Inflater", inflater)
    return seen


# covey's own.


def members_of(path):
    """Where the members of a GZIP file begin, and where it ends."""
    content = path.read_bytes()
    edges, rest = [0], content
    while rest:
        inflater = zlib.decompressobj(31)
        inflater.decompress(rest)
        rest = inflater.unused_data
        edges.append(len(content) - len(rest))
    return edges


def test_only_the_members_that_are_needed_are_read(tmp_path, cache, reads):
    many = examples(1000, 3000)
    write(many, tmp_path / "set", label="label", shuffle=False, shards=2, compression="GZIP")
    paths = shard_paths(tmp_path / "set")
    edges = [members_of(path) for path in paths]
    assert all(len(each) > 15 for each in edges)
    pairs = [set(itertools.pairwise(each)) for each in edges]
    ds = opened(tmp_path / "set")
    for ids in ([0], [999], [499, 500], [7, 7, 8], [250, 3, 251, 3], range(100, 110)):
        reads.clear()
        assert numbers(ds, list(ids)) == list(ids)
        assert all((begin, end) in pairs[shard] for shard, begin, end in reads)
        assert len(reads) == len(set(reads)) <= len(set(ids))
        assert sum(end - begin for _, begin, end in reads) < len(set(ids)) * 80_000
        raw, decoded = list(reads), ds.raw[list(ids)]
        assert [ds.features.decode(each)["x"] for each in decoded] == list(ids)
        assert reads == raw * 2
    assert not (cache / "unpacked").exists()


def test_records_longer_than_a_member_should_be(tmp_path, reads):
    big = [{"x": n, "pad": NOISE * 6, "label": 0} for n in range(3)]
    write(
        big, tmp_path / "set", features=FEATURES, label="label", shuffle=False, compression="GZIP"
    )
    ds = opened(tmp_path / "set")
    assert ds[1]["pad"] == NOISE * 6
    assert len(reads) == 1
    assert numbers(ds) == [0, 1, 2]


def test_a_damaged_member_is_named(tmp_path):
    write(examples(600), tmp_path / "set", label="label", shuffle=False, compression="GZIP")
    (path,) = shard_paths(tmp_path / "set")
    edges = members_of(path)
    content = bytearray(path.read_bytes())
    content[(edges[5] + edges[6]) // 2] ^= 1
    path.write_bytes(content)
    ds = opened(tmp_path / "set")
    with RecordReader(path) as reader, pytest.raises(CorruptRecordError):
        list(reader)
    right, damaged, found = [], [], []
    for number in range(600):
        try:
            assert ds[number]["x"] == number
            right.append(number)
        except CorruptRecordError as error:
            damaged.append(number)
            found.append((error.path, error.record))
    assert damaged == list(range(damaged[0], damaged[-1] + 1))
    assert found == [(str(path), number) for number in damaged]
    assert len(right) > 500
    for number in (damaged[0], damaged[-1]):
        with pytest.raises(CorruptRecordError, match=f"record {number}"):
            ds.raw[number]


# Anybody's.


def test_a_short_stream_is_unpacked_in_memory(tmp_path, cache):
    path = tmp_path / "data/x.tfrecord.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(frames(tmp_path, 50)))
    assert numbers(opened(path), [49, 0, 7]) == [49, 0, 7]
    assert not (cache / "unpacked").exists()


@pytest.mark.parametrize("window", [31, 15])
def test_a_long_stream_is_unpacked_once(tmp_path, cache, unpacked, window):
    path = tmp_path / "data/x"
    path.parent.mkdir()
    packer = zlib.compressobj(1, wbits=window)
    path.write_bytes(packer.compress(frames(tmp_path, 600, 9000)) + packer.flush())
    order = np.random.default_rng(1).permutation(600)
    for ds in (opened(path), opened(path.parent), opened(path, mmap=False)):
        assert numbers(ds, order) == order.tolist()
        assert ds[300]["pad"] == NOISE[2100:11100]
        assert ds.raw[-1] == ds.raw[599]
        assert numbers(ds.where(label=1)) == list(range(1, 600, 3))
    assert len(unpacked) == 1
    assert len(list((cache / "unpacked").iterdir())) == 1


def test_nothing_is_unpacked_before_it_is_needed(tmp_path, long_stream, unpacked):
    shutil.copy(long_stream, long_stream.with_name("short.tfrecord.gz"))
    ds = opened(long_stream.parent)
    assert (len(ds), len(ds.classes), unpacked) == (1200, 3, [])
    assert ds[5]["x"] == 5
    assert len(unpacked) == 1


def test_a_stream_that_was_replaced_is_unpacked_anew(tmp_path, long_stream):
    assert numbers(opened(long_stream), [3]) == [3]
    content = put(tmp_path / "frames", examples(700, 9000)[100:], FEATURES).read_bytes()
    long_stream.write_bytes(gzip.compress(content, 1))
    assert numbers(opened(long_stream), [3]) == [103]


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_cache_that_is_too_small(long_stream, cache, monkeypatch, how):
    options = {}
    if how == "argument":
        options["cache_bytes"] = 4 << 20
    else:
        monkeypatch.setenv("COVEY_CACHE_BYTES", str(4 << 20))
    ds = opened(long_stream, **options)
    assert len(ds) == 600
    for use in (lambda: ds[3], lambda: ds.raw[3]):
        with pytest.raises(StorageError, match=r"long.tfrecord.gz: .*4194304 bytes.*cache_bytes="):
            use()
    assert not list((cache / "unpacked").iterdir())
    assert numbers(opened(long_stream, cache_bytes=8 << 20), [3]) == [3]


def test_what_is_not_used_any_more_makes_room(tmp_path, long_stream, cache):
    room = 8 << 20
    for number in range(3):
        path = tmp_path / f"{number}.gz"
        shutil.copy(long_stream, path)
        with opened(path, cache_bytes=room) as ds:
            assert numbers(ds, [number]) == [number]
        assert sum(each.stat().st_size for each in (cache / "unpacked").iterdir()) <= room
    kept = opened(tmp_path / "0.gz", cache_bytes=room)
    assert numbers(kept, [7]) == [7]
    other = opened(tmp_path / "1.gz", cache_bytes=room)
    with pytest.raises(StorageError, match="cache_bytes="):
        other[0]
    assert numbers(kept, [8]) == [8]
    kept.close()
    assert numbers(other, [9]) == [9]


def test_what_was_unpacked_and_damaged_gives_no_wrong_example(long_stream, cache):
    assert numbers(opened(long_stream)) == list(range(600))
    (path,) = (cache / "unpacked").iterdir()
    content = path.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    changes = [
        content[: len(content) // 2],
        b"",
        flipped,
        content + b"x",
        bytes(len(content)),
        content[9:],
    ]
    for changed in changes:
        path.unlink(missing_ok=True)
        path.write_bytes(changed)
        found = []
        ds = opened(long_stream)
        for number in range(0, 600, 60):
            try:
                found.append(numbers(ds, [number, number + 5]) == [number, number + 5])
            except CoveyError:
                found.append(True)
        assert all(found)
        ds.close()


def test_what_was_unpacked_and_cut_while_it_is_used(long_stream, cache):
    with fresh_process() as run:
        assert run(cut_while_used, long_stream) == "ok"


def cut_while_used(path):
    ds = opened(path)
    assert numbers(ds) == list(range(600))
    (unpacked,) = (ds_cache() / "unpacked").iterdir()
    os.truncate(unpacked, 1000)
    try:
        ds[500]
    except CoveyError:
        return "ok"
    return "no error"


def ds_cache():
    return cache_directory()


def test_a_cache_that_is_emptied_while_it_is_used(long_stream, cache):
    for mmap in (True, False):
        ds = opened(long_stream, mmap=mmap)
        assert numbers(ds, [5]) == [5]
        shutil.rmtree(cache)
        assert numbers(ds, [599, 300]) == [599, 300]
        again = opened(long_stream, mmap=mmap)
        assert numbers(again, [5]) == [5]


def unpack_at_once(path):
    """Unpack a shard in several processes at the same moment."""
    begin, go = os.pipe()
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(begin, 1)
            ds = opened(path)
            os._exit(0 if numbers(ds, [599, 3]) == [599, 3] else 1)
        children.append(child)
    os.close(go)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_processes_that_unpack_at_once(long_stream, cache):
    opened(long_stream)
    with fresh_process() as run:
        assert run(unpack_at_once, long_stream) == [0, 0, 0, 0]
    assert len(list((cache / "unpacked").iterdir())) == 1


def test_threads_that_unpack_at_once(long_stream, unpacked):
    ds = opened(long_stream)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda n: ds[n]["x"], range(100, 130))) == list(range(100, 130))
    assert len(unpacked) == 1


def joined(content, parts, **options):
    """GZIP members one after the other, which need not end with a record."""
    step = -(-len(content) // parts)
    return b"".join(
        gzip.compress(content[at : at + step], **options) for at in range(0, len(content), step)
    )


def with_fields(content):
    """A member with everything that a header may have."""
    raw = zlib.compressobj(6, wbits=-15)
    body = raw.compress(content) + raw.flush()
    tail = zlib.crc32(content).to_bytes(4, "little") + len(content).to_bytes(4, "little")
    fields = b"\x05\x00extra" + b"name.tfrecord\0" + b"a comment\0"
    return b"\x1f\x8b\x08\x1c" + bytes(6) + fields + body + tail


def with_name(content):
    out = io.BytesIO()
    with gzip.GzipFile("some name.tfrecord", "wb", fileobj=out) as file:
        file.write(content)
    return out.getvalue()


@pytest.mark.parametrize("size", [100, 9000])
@pytest.mark.parametrize(
    "pack",
    [
        lambda content: joined(content, 7),
        lambda content: gzip.compress(content) + gzip.compress(b"") * 2,
        lambda content: gzip.compress(b"") + gzip.compress(content),
        lambda content: b"".join(gzip.compress(each) for each in (content, b"", b"", content)),
        lambda content: gzip.compress(content, 0),
        with_fields,
        with_name,
        lambda content: zlib.compress(content, 0),
        lambda content: zlib.compress(content, 9),
    ],
    ids=[
        "cut anywhere",
        "empty at the end",
        "empty at first",
        "empty between",
        "stored",
        "fields",
        "name",
        "ZLIB 0",
        "ZLIB 9",
    ],
)
def test_members_as_others_make_them(tmp_path, pack, size):
    path = tmp_path / "x.tfrecord.gz"
    path.write_bytes(pack(frames(tmp_path, 600, size)))
    ds = opened(path)
    assert len(ds) in (600, 1200)
    order = np.random.default_rng(1).permutation(len(ds))[:100]
    assert numbers(ds, order) == (order % 600).tolist()
    assert ds[599]["pad"] == NOISE[599 * 7 : 599 * 7 + size]


def test_a_record_of_each_member(tmp_path, reads):
    parts = [
        put_numbers(tmp_path / "part", [n], compression="GZIP").read_bytes() for n in range(20)
    ]
    (tmp_path / "x.gz").write_bytes(b"".join(parts))
    ds = opened(tmp_path / "x.gz")
    reads.clear()
    assert numbers(ds, [11, 3]) == [11, 3]
    assert sorted(end - begin for _, begin, end in reads) == sorted([len(parts[11]), len(parts[3])])


# Damage.


def members(content, step=90_000):
    return joined(content, -(-len(content) // step))


@pytest.mark.parametrize("size", [100, 9000])
@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, members, None])
def test_damaged_gzip_can_be_left_out(tmp_path, pack, damage, size):
    path = tmp_path / "x.tfrecord.gz"
    if pack is None:
        put(path, examples(600, size), FEATURES, compression="GZIP")
    else:
        path.write_bytes(pack(frames(tmp_path, 600, size)))
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError):
        opened(path)
    with pytest.warns(SkippedRecordsWarning):
        ds = opened(path, on_error="skip")
    assert len(ds) < 600
    found = numbers(ds)  # what is there can be read
    assert sorted(set(found)) == found
    assert ds.labels.tolist() == [n % 3 for n in found]
    for n, each in enumerate(ds):
        assert each["pad"] == NOISE[found[n] * 7 : found[n] * 7 + size]


# Mixed.


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([None, "GZIP", "ZLIB", "empty"]), st.integers(0, 3)),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_any_shards_side_by_side(tmp_path_factory, shards, mmap):
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


def test_long_streams_beside_plain_files(tmp_path, long_stream):
    put(long_stream.with_name("a.tfrecord"), examples(20), FEATURES)
    write(examples(30), tmp_path / "set", features=FEATURES, shuffle=False, compression="GZIP")
    shutil.copy(shard_paths(tmp_path / "set")[0], long_stream.with_name("m.tfrecord.gz"))
    ds = opened(long_stream.parent)
    expected = [*range(20), *range(600), *range(30)]
    order = np.random.default_rng(1).permutation(650)
    assert numbers(ds, order) == [expected[n] for n in order]
