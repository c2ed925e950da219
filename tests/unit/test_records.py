"""TFRecord files: reader and writer."""

import errno
import gzip
import io
import os
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from corrupt_files import header
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import RecordReader, RecordWriter
from covey.errors import ClosedError, CorruptRecordError, DatasetError
from covey.tfrecord import Block
from covey.tfrecord.compression import detect_compression

COMPRESSIONS = [None, "GZIP", "ZLIB"]
RECORDS = [b"", b"a", b"bb" * 50, bytes(range(256)) * 9, b"z" * 70_000]


def write(path, records, **options):
    with RecordWriter(path, **options) as writer:
        for record in records:
            writer.write(record)
    return path


def encode(records, **options):
    return write(io.BytesIO(), records, **options).getvalue()


def read(path, **options):
    with RecordReader(path, **options) as reader:
        return list(reader)


# Reading and writing.


@pytest.fixture(scope="module")
def pool():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@settings(max_examples=60)
@given(
    records=st.lists(st.binary(max_size=300) | st.integers(0, 5000).map(bytes), max_size=20),
    compression=st.sampled_from(COMPRESSIONS),
    member_bytes=st.sampled_from([1, 500, 1 << 16]),
    rows_per_block=st.integers(1, 7),
    window_bytes=st.sampled_from([20, 1000, 8 << 20]),
    is_concurrent=st.booleans(),
)
def test_round_trip(
    tmp_path, pool, records, compression, member_bytes, rows_per_block, window_bytes, is_concurrent
):
    options = {"compression": compression, "member_bytes": member_bytes}
    path = write(tmp_path / "x", records, **options)
    # The file does not depend on the blocks and threads that write it.
    executor = pool if is_concurrent else None
    other = tmp_path / "blocks"
    with (
        RecordWriter(other, **options, executor=executor, track_locations=True) as writer,
        RecordReader(io.BytesIO(encode(records))) as reader,
    ):
        for block in reader.blocks():
            for row in range(0, len(block), rows_per_block):
                writer.write_block(block[row : row + rows_per_block])
    assert other.read_bytes() == path.read_bytes()
    assert writer.records == len(records)
    with RecordReader(path, compression=compression, window_bytes=window_bytes) as reader:
        assert list(reader) == records
        assert reader.count() == len(records)
        locations = reader.locations()
        np.testing.assert_array_equal(writer.locations(), locations)
        assert locations["length"].tolist() == [len(record) for record in records]
        assert [reader.read_at(*row[:2]) for row in locations.tolist()] == records


def open_pipe(data):
    """Open a pipe with this content, which is small enough for its buffer."""
    out, into = os.pipe()
    os.write(into, data)
    os.close(into)
    return open(out, "rb", buffering=0)


def open_at_offset(data):
    file = io.BytesIO(b"bytes before the records" + data)
    file.seek(24)
    return file


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("open_source", [io.BytesIO, open_at_offset, open_pipe])
def test_file_objects(compression, open_source):
    records = RECORDS[:4]
    with open_source(encode(records, compression=compression)) as file:
        with RecordReader(file) as reader:
            assert reader.compression == compression
            assert list(reader) == records
            if open_source is open_pipe:
                with pytest.raises(ClosedError, match="read only once"):
                    list(reader)
            else:
                assert list(reader) == records
                offset, inner_offset, _ = reader.locations()[2].tolist()
                assert reader.read_at(offset, inner_offset) == records[2]
        assert not file.closed  # the caller closes it


def test_named_pipe(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    thread = threading.Thread(target=lambda: path.write_bytes(encode(RECORDS)))
    thread.start()
    assert read(path) == RECORDS
    thread.join()


def test_records_of_an_open_pipe_are_read_at_once():
    out, into = os.pipe()
    os.write(into, encode([b"early"]))
    with open(out, "rb", buffering=0) as pipe:
        records = iter(RecordReader(pipe))
        assert next(records) == b"early"
        os.close(into)


def test_concurrent_iterations(tmp_path):
    """Iterations over one file object or one reader are independent."""
    records = [bytes([i]) * 700 for i in range(6)]
    reader = RecordReader(io.BytesIO(encode(records)), window_bytes=1000)
    found = [(a, b, reader.read_at(0)) for a, b in zip(reader, reader, strict=True)]
    assert found == [(record, record, records[0]) for record in records]
    path = write(tmp_path / "x", RECORDS * 20, compression="GZIP")
    with RecordReader(path) as reader, ThreadPoolExecutor(4) as pool:
        assert all(found == RECORDS * 20 for found in pool.map(lambda _: list(reader), range(8)))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_empty_file(tmp_path, compression):
    path = write(tmp_path / "x", [], compression=compression)
    assert read(path, compression=compression) == []
    path.write_bytes(b"")
    assert read(path, compression=compression) == []


def test_bytes_like_records(tmp_path):
    given = [b"b", bytearray(b"ba"), memoryview(b"m"), np.frombuffer(b"np", np.uint8)]
    assert read(write(tmp_path / "x", given)) == [b"b", b"ba", b"m", b"np"]
    with RecordWriter(tmp_path / "x") as writer, pytest.raises(TypeError):
        writer.write("a string")


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_flush_makes_records_visible(tmp_path, compression):
    path = tmp_path / "x"
    with RecordWriter(path, compression=compression) as writer:
        writer.write(b"early")
        writer.flush()
        assert read(path) == [b"early"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_threads_share_a_writer(tmp_path, compression):
    records = [b"%d" % i * 20 for i in range(2000)]
    with (
        RecordWriter(tmp_path / "x", compression=compression, member_bytes=500) as writer,
        ThreadPoolExecutor(4) as pool,
    ):
        list(pool.map(writer.write, records))
    assert sorted(read(tmp_path / "x")) == sorted(records)


def test_frames_of_a_written_block_are_consecutive(tmp_path):
    with RecordReader(io.BytesIO(encode([b"one", b"two", b"three"]))) as reader:
        (block,) = reader.blocks()
    gaps = Block(block.data, block.offsets[::2].copy(), block.lengths[::2].copy())
    with RecordWriter(tmp_path / "y") as writer, pytest.raises(ValueError, match="not consecutive"):
        writer.write_block(gaps)


# Compression.


def test_gzip_members_have_complete_records(tmp_path):
    records = [bytes([i]) * 300 for i in range(50)]
    path = write(tmp_path / "x", records, compression="GZIP", member_bytes=1000)
    with RecordReader(path) as reader:
        starts = np.unique(reader.locations()["offset"]).tolist()
    assert len(starts) == 13  # four records of 316 bytes in each
    data = path.read_bytes()
    for start in starts:
        member = zlib.decompressobj(31).decompress(data[start:])
        assert len(read(io.BytesIO(member))) in (2, 4)
    assert read(io.BytesIO(gzip.decompress(data))) == records


@pytest.mark.parametrize("member_bytes", [1, 50, 1000, 5 << 20])
def test_locations_in_members_of_other_writers(member_bytes):
    """Records may extend over members, or be in members that are too long to be skipped."""
    records = [*RECORDS, bytes(3 << 20), bytes(3 << 20)] if member_bytes > 1000 else RECORDS[:4]
    data = encode(records)
    parts = (data[at : at + member_bytes] for at in range(0, len(data), member_bytes))
    with RecordReader(io.BytesIO(b"".join(gzip.compress(part, 1) for part in parts))) as reader:
        locations = reader.locations().tolist()
        assert [reader.read_at(*row[:2]) for row in locations] == records
    assert {offset for offset, *_ in locations} == {0}


def test_concatenated_zlib_streams_are_rejected():
    data = encode(RECORDS, compression="ZLIB")
    with pytest.raises(CorruptRecordError, match="bytes follow the end of the ZLIB stream"):
        read(io.BytesIO(data + data))


@pytest.mark.parametrize("name", ["gzip", "GZIP", "Gzip"])
def test_compression_in_any_case(name):
    assert gzip.decompress(encode([b"r"], compression=name)) == encode([b"r"])


@given(head=st.binary(max_size=64))
def test_detection_of_any_bytes(head):
    assert detect_compression(head) in COMPRESSIONS


def test_decompression_bomb_exceeds_max_record_bytes():
    """A valid header that claims 8 GiB of zeros."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = deflate.compress(header(8 << 30))
    data += b"".join(deflate.compress(bytes(1 << 20)) for _ in range(16)) + deflate.flush()
    assert len(data) < 100_000
    with pytest.raises(CorruptRecordError, match="over the limit of 1000000"):
        read(io.BytesIO(data), max_record_bytes=1_000_000)


# Appending.


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_append(tmp_path, compression):
    path = tmp_path / "x"
    for records in ([b"first"], RECORDS, []):
        write(path, records, compression=compression, append=True)
    assert read(path) == [b"first", *RECORDS]
    file = io.BytesIO(path.read_bytes())
    write(file, [b"last"], compression=compression, append=True)
    file.seek(0)
    assert read(file) == [b"first", *RECORDS, b"last"]


@pytest.mark.parametrize(
    ("records", "existing", "compression", "message"),
    [
        ([b"r"], "ZLIB", "ZLIB", "cannot append to a ZLIB file"),
        ([], "ZLIB", None, "pass compression='ZLIB'"),
        ([], "GZIP", None, "pass compression='GZIP'"),
        ([b"r"], None, "GZIP", "pass compression=None"),
    ],
)
def test_append_with_another_compression(tmp_path, records, existing, compression, message):
    path = write(tmp_path / "x", records, compression=existing)
    with pytest.raises(ValueError, match=message):
        RecordWriter(path, compression=compression, append=True)


@pytest.mark.parametrize("removed", [1, 4, 5, 11, 16])
def test_append_to_a_truncated_file(tmp_path, removed):
    path = write(tmp_path / "x", [b"valid", b"r"])
    data = path.read_bytes()[:-removed]
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="the file ends after") as caught:
        RecordWriter(path, append=True)
    assert (caught.value.record, caught.value.offset) == (1, 21)
    assert path.read_bytes() == data


# Closed readers and writers.


def test_closed_reader(tmp_path):
    reader = RecordReader(write(tmp_path / "x", [b"r"]))
    reader.close()
    for use in (reader.__iter__().__next__, reader.count, reader.locations, reader.__enter__):
        with pytest.raises(ClosedError, match="the reader is closed"):
            use()
    with pytest.raises(ClosedError) as caught:
        reader.read_at(0)
    assert caught.value.path == str(tmp_path / "x")


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_reader_closed_during_iteration(tmp_path, compression):
    path = write(tmp_path / "x", [b"r" * 100] * 50, compression=compression)
    reader = RecordReader(path, window_bytes=1000)
    blocks = reader.blocks()
    block = next(blocks)
    reader.close()
    assert set(block) == {b"r" * 100}  # a block stays valid
    with pytest.raises(ClosedError):
        list(blocks)


def test_closed_writer(tmp_path):
    writer = RecordWriter(tmp_path / "x")
    writer.close()
    writer.close()
    for use in (lambda: writer.write(b"r"), writer.flush, writer.__enter__):
        with pytest.raises(ClosedError, match="the writer is closed"):
            use()
    with pytest.raises(ValueError, match="track_locations=True"):
        writer.locations()


def test_unclosed_writer_warns(tmp_path):
    writer = RecordWriter(tmp_path / "x")
    writer.write(b"r")
    with pytest.warns(ResourceWarning, match="its last records are lost"):
        del writer


def test_unused_blocks_open_nothing(tmp_path):
    with RecordReader(write(tmp_path / "x", RECORDS, compression="GZIP")) as reader:
        reader.blocks()


# Files that write only part of the data, or fail.


class LimitedFile(io.RawIOBase):
    """A file that accepts a few bytes at a time, and raises when it is full."""

    def __init__(self, bytes_per_call, capacity=10**9):
        self.data = b""
        self.bytes_per_call, self.capacity = bytes_per_call, capacity

    def writable(self):
        return True

    def write(self, view):
        accepted = bytes(view[: self.bytes_per_call])
        if len(self.data) + len(accepted) > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += accepted
        return len(accepted)


class SilentFile:
    """A file whose write method returns None."""

    data = b""

    def write(self, view):
        self.data += bytes(view)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("make", [lambda: LimitedFile(7), SilentFile])
def test_partial_writes(make, compression):
    file = write(make(), RECORDS, compression=compression)
    assert read(io.BytesIO(file.data)) == RECORDS


def test_failed_write_closes_the_writer():
    file = LimitedFile(7, capacity=50)
    writer = RecordWriter(file, buffer_bytes=1)
    with pytest.raises(OSError, match="No space left"):
        for _ in range(10):
            writer.write(b"a record")
    size = len(file.data)
    file.capacity = 10**9
    with pytest.raises(ClosedError, match=r"failed earlier: .*No space left"):
        writer.write(b"more")
    writer.close()
    assert len(file.data) == size  # nothing follows half a frame


def test_file_that_accepts_no_bytes():
    writer = RecordWriter(LimitedFile(0), buffer_bytes=1)
    with pytest.raises(BlockingIOError, match="accepts no more"):
        writer.write(b"r")


# Arguments.


@pytest.mark.parametrize("source", [None, 5, [b"path"]], ids=str)
@pytest.mark.parametrize("kind", [RecordReader, RecordWriter])
def test_invalid_source(kind, source):
    with pytest.raises(DatasetError, match="must be a path or a binary file"):
        kind(source)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (RecordWriter, {"compression": "LZ4"}),
        (RecordWriter, {"compression_level": 10}),
        (RecordWriter, {"member_bytes": 0}),
        (RecordWriter, {"buffer_bytes": 0}),
        (RecordWriter, {"append": True, "track_locations": True}),
        (RecordReader, {"compression": "LZ4"}),
        (RecordReader, {"max_record_bytes": -1}),
        (RecordReader, {"on_error": "ignore"}),
    ],
)
def test_invalid_options(tmp_path, kind, options):
    option = next(iter(options))
    with pytest.raises(ValueError, match=option):
        kind(tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        RecordReader(tmp_path / "missing")
