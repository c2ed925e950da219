"""TFRecord files: reader and writer."""

import gzip
import io
import os
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey import RecordReader, RecordWriter
from covey.errors import ClosedError
from covey.tfrecord import Block
from covey.tfrecord.compression import detect_compression

COMPRESSIONS = [None, "GZIP", "ZLIB"]
RECORDS = [b"", b"a", b"bb" * 50, bytes(range(256)) * 9, b"z" * 70_000]


def write(path, records, **options):
    with RecordWriter(path, **options) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def read(path, **options):
    with RecordReader(path, **options) as reader:
        return list(reader)


@pytest.mark.parametrize("compression", COMPRESSIONS)
class TestRoundTrip:
    @given(records=st.lists(st.binary(max_size=300), max_size=20))
    def test_any_records(self, tmp_path, compression, records):
        path = write(tmp_path / "x", records, compression=compression, member_bytes=200)
        assert read(path, compression=compression) == records

    def test_count(self, tmp_path, compression):
        path = write(tmp_path / "x", RECORDS, compression=compression)
        with RecordReader(path) as reader:
            assert reader.count() == len(RECORDS)

    def test_every_place_reads_back(self, tmp_path, compression):
        path = write(tmp_path / "x", RECORDS, compression=compression, member_bytes=1000)
        with RecordReader(path) as reader:
            places = reader.places()
            found = [reader.read_at(int(p["offset"]), int(p["inner_offset"])) for p in places]
        assert found == RECORDS
        assert places["length"].tolist() == [len(record) for record in RECORDS]

    def test_open_files(self, tmp_path, compression):
        memory = io.BytesIO()
        write(memory, RECORDS, compression=compression)
        memory.seek(0)
        with RecordReader(memory) as reader:
            assert list(reader) == RECORDS
            assert list(reader) == RECORDS  # from the beginning again
            place = reader.places()[2]
            assert reader.read_at(int(place["offset"]), int(place["inner_offset"])) == RECORDS[2]
        assert not memory.closed  # it is the caller's

    def test_file_object_is_read_from_where_it_stands(self, compression):
        memory = io.BytesIO()
        memory.write(b"something else first")
        write(memory, RECORDS, compression=compression)
        memory.seek(20)
        assert read(memory) == RECORDS

    def test_pipe_is_read_once(self, compression):
        memory = io.BytesIO()
        write(memory, RECORDS[:4], compression=compression)
        out, into = os.pipe()
        os.write(into, memory.getvalue())
        os.close(into)
        with open(out, "rb", buffering=0) as pipe:
            reader = RecordReader(pipe)
            assert list(reader) == RECORDS[:4]
            with pytest.raises(ClosedError, match="read only once"):
                list(reader)

    def test_empty_file(self, tmp_path, compression):
        path = write(tmp_path / "x", [], compression=compression)
        assert read(path, compression=compression) == []
        (tmp_path / "x").write_bytes(b"")
        assert read(path, compression=compression) == []

    def test_compression_is_found_from_the_bytes(self, tmp_path, compression):
        path = write(tmp_path / "misleading.gz", RECORDS, compression=compression)
        with RecordReader(path) as reader:
            assert reader.compression == compression


class TestCompression:
    def test_gzip_members_hold_whole_records(self, tmp_path):
        records = [bytes([i]) * 300 for i in range(50)]
        path = write(tmp_path / "x", records, compression="GZIP", member_bytes=1000)
        with RecordReader(path) as reader:
            starts = np.unique(reader.places()["offset"]).tolist()
        assert len(starts) == 13  # four records of 316 bytes in each
        data = (tmp_path / "x").read_bytes()
        for start in starts:
            member = zlib.decompressobj(31).decompress(data[start:])
            assert len(read(io.BytesIO(member))) in (2, 4)
        assert read(io.BytesIO(gzip.decompress(data))) == records

    def test_where_members_end_does_not_depend_on_how_records_arrive(self, tmp_path):
        records = [os.urandom(n % 700) for n in range(200)]
        one = write(tmp_path / "one", records, compression="GZIP", member_bytes=2000)
        plain = write(tmp_path / "plain", records)
        with (
            RecordWriter(tmp_path / "two", compression="GZIP", member_bytes=2000) as writer,
            RecordReader(plain) as reader,
        ):
            for block in reader.blocks():
                for cut in range(0, len(block), 7):
                    writer.write_block(block[cut : cut + 7])
        assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
        assert read(one) == records

    def test_concatenated_zlib_streams_are_refused(self, tmp_path):
        path = write(tmp_path / "x", RECORDS, compression="ZLIB")
        data = (tmp_path / "x").read_bytes()
        (tmp_path / "x").write_bytes(data + data)
        with pytest.raises(ValueError, match="bytes follow the end of the ZLIB stream"):
            read(path)

    @pytest.mark.parametrize("name", ["gzip", "GZIP", "Gzip"])
    def test_names_in_any_case(self, tmp_path, name):
        assert read(write(tmp_path / "x", [b"r"], compression=name)) == [b"r"]

    def test_unknown_compression(self, tmp_path):
        with pytest.raises(ValueError, match="compression is 'LZ4'; must be None"):
            RecordWriter(tmp_path / "x", compression="LZ4")

    @given(head=st.binary(max_size=64))
    def test_detection_never_fails(self, head):
        assert detect_compression(head) in COMPRESSIONS

    def test_a_bomb_does_not_fill_the_memory(self, tmp_path):
        # A sound header that claims 8 GiB of zeros, a thousand times compressed.
        header = (8 << 30).to_bytes(8, "little")
        from covey import _core

        crc = _core.crc32c(header)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        squeeze = zlib.compressobj(9, zlib.DEFLATED, 31)
        data = squeeze.compress(header + masked.to_bytes(4, "little"))
        data += b"".join(squeeze.compress(bytes(1 << 20)) for _ in range(64)) + squeeze.flush()
        assert len(data) < 100_000
        with pytest.raises(ValueError, match="over the limit of 1000000"):
            read(io.BytesIO(data), max_record_bytes=1_000_000)


class TestAppend:
    @pytest.mark.parametrize("compression", [None, "GZIP"])
    def test_append(self, tmp_path, compression):
        path = write(tmp_path / "x", RECORDS, compression=compression)
        write(path, [b"more"], compression=compression, append=True)
        assert read(path) == [*RECORDS, b"more"]

    def test_append_creates_a_file(self, tmp_path):
        assert read(write(tmp_path / "x", [b"r"], append=True)) == [b"r"]

    def test_append_to_a_file_object(self):
        memory = io.BytesIO()
        write(memory, [b"one"])
        write(memory, [b"two"], append=True)
        memory.seek(0)
        assert read(memory) == [b"one", b"two"]

    def test_append_to_zlib_is_refused(self, tmp_path):
        path = write(tmp_path / "x", [b"r"], compression="ZLIB")
        with pytest.raises(ValueError, match="cannot append to a ZLIB file"):
            RecordWriter(path, compression="ZLIB", append=True)

    @pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
    def test_append_to_an_empty_compressed_file(self, tmp_path, compression):
        path = write(tmp_path / "x", [], compression=compression)
        with pytest.raises(ValueError, match="cannot append"):
            RecordWriter(path, append=True)
        if compression == "GZIP":
            assert read(write(path, [b"r"], compression="GZIP", append=True)) == [b"r"]

    def test_append_with_another_compression_is_refused(self, tmp_path):
        path = write(tmp_path / "x", [b"r"])
        with pytest.raises(ValueError, match="pass compression=None"):
            RecordWriter(path, compression="GZIP", append=True)

    @pytest.mark.parametrize("cut", [1, 4, 5, 11, 16])
    def test_append_to_a_cut_file_is_refused_and_nothing_is_lost(self, tmp_path, cut):
        path = write(tmp_path / "x", [b"whole", b"r"])
        data = (tmp_path / "x").read_bytes()[:-cut]
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(ValueError, match="record 1 at byte 21: the file ends after"):
            RecordWriter(path, append=True)
        assert (tmp_path / "x").read_bytes() == data


class TestClosed:
    def test_closed_reader(self, tmp_path):
        path = write(tmp_path / "x", [b"r"])
        reader = RecordReader(path)
        reader.close()
        for use in (lambda: list(reader), reader.count, lambda: reader.read_at(0), reader.places):
            with pytest.raises(ClosedError, match="the reader is closed"):
                use()

    @pytest.mark.parametrize("compression", [None, "GZIP"])
    def test_closed_while_iterating(self, tmp_path, monkeypatch, compression):
        from covey.tfrecord import reader as module
        from covey.tfrecord import streams

        monkeypatch.setattr(streams, "WINDOW_BYTES", 1000)
        monkeypatch.setattr(module, "_PIECE_BYTES", 1000)
        path = write(tmp_path / "x", [b"r" * 100] * 50, compression=compression)
        reader = RecordReader(path)
        blocks = reader.blocks()
        next(blocks)
        reader.close()
        with pytest.raises(ClosedError, match="the reader is closed"):
            list(blocks)

    def test_closed_in_the_middle(self, tmp_path):
        path = write(tmp_path / "x", [b"r"] * 3)
        reader = RecordReader(path)
        blocks = reader.blocks()
        block = next(blocks)
        reader.close()
        assert list(block) == [b"r"] * 3  # what was read stays valid

    def test_closed_writer(self, tmp_path):
        writer = RecordWriter(tmp_path / "x")
        writer.close()
        writer.close()  # twice is fine
        with pytest.raises(ClosedError, match="the writer is closed"):
            writer.write(b"r")
        with pytest.raises(ClosedError):
            writer.flush()

    def test_missing_file(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            RecordReader(tmp_path / "none")


class Taking(io.RawIOBase):
    """A file that takes a few bytes at a time, and then perhaps fails."""

    def __init__(self, at_once, most=10**9):
        self.data = b""
        self.at_once, self.most = at_once, most

    def writable(self):
        return True

    def write(self, view):
        taken = bytes(view[: self.at_once])
        if len(self.data) + len(taken) > self.most:
            raise OSError(28, "No space left on device")
        self.data += taken
        return len(taken)


class TestFiles:
    """Files that are not as helpful as they could be."""

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_short_writes(self, compression):
        file = Taking(7)
        write(file, RECORDS, compression=compression)
        assert read(io.BytesIO(file.data)) == RECORDS

    def test_a_full_disk_ends_the_writer(self):
        file = Taking(7, most=50)
        writer = RecordWriter(file, buffer_bytes=1)
        with pytest.raises(OSError, match="No space left"):
            for _ in range(10):
                writer.write(b"a record")
        size = len(file.data)
        file.most = 10**9
        with pytest.raises(ClosedError, match=r"failed earlier: .*No space left"):
            writer.write(b"more")
        writer.close()
        assert len(file.data) == size  # nothing follows half a frame

    def test_a_file_that_takes_nothing(self):
        writer = RecordWriter(Taking(0), buffer_bytes=1)
        with pytest.raises(BlockingIOError, match="accepts no more"):
            writer.write(b"r")

    def test_a_file_that_does_not_say_what_it_took(self):
        class Quiet:
            data = b""

            def write(self, view):
                self.data += bytes(view)

        file = Quiet()
        write(file, RECORDS)
        assert read(io.BytesIO(file.data)) == RECORDS

    def test_a_writer_that_is_not_closed_says_so(self, tmp_path):
        writer = RecordWriter(tmp_path / "x")
        writer.write(b"r")
        with pytest.warns(ResourceWarning, match="its last records are lost"):
            del writer

    @pytest.mark.parametrize("compression", COMPRESSIONS)
    def test_threads_may_share_a_writer(self, tmp_path, compression):
        from concurrent.futures import ThreadPoolExecutor

        path = tmp_path / "x"
        with (
            RecordWriter(path, compression=compression, member_bytes=500) as writer,
            ThreadPoolExecutor(4) as pool,
        ):
            list(pool.map(writer.write, [b"%d" % i * 20 for i in range(2000)]))
        assert sorted(read(path)) == sorted(b"%d" % i * 20 for i in range(2000))

    def test_named_pipe(self, tmp_path):
        import threading

        path = tmp_path / "fifo"
        os.mkfifo(path)
        memory = io.BytesIO()
        write(memory, RECORDS)
        thread = threading.Thread(target=lambda: path.write_bytes(memory.getvalue()))
        thread.start()
        assert read(path) == RECORDS
        thread.join()

    def test_a_live_pipe_is_read_as_it_comes(self):
        memory = io.BytesIO()
        write(memory, [b"early"])
        out, into = os.pipe()
        os.write(into, memory.getvalue())
        with open(out, "rb", buffering=0) as pipe:
            records = iter(RecordReader(pipe))
            assert next(records) == b"early"
            os.close(into)

    def test_iterations_over_one_file_object(self):
        memory = io.BytesIO()
        records = [bytes([i]) * 700_000 for i in range(6)]
        write(memory, records)
        memory.seek(0)
        reader = RecordReader(memory)
        found = [(a, b, reader.read_at(0)) for a, b in zip(reader, reader, strict=True)]
        assert found == [(record, record, records[0]) for record in records]

    def test_a_file_that_is_cut_while_it_is_read(self, tmp_path, monkeypatch):
        from covey.tfrecord import streams

        monkeypatch.setattr(streams, "WINDOW_BYTES", 1000)
        path = write(tmp_path / "x", [b"r" * 100] * 50)
        with RecordReader(path) as reader:
            blocks = reader.blocks()
            next(blocks)
            os.truncate(path, 300)
            with pytest.raises(ValueError, match="the file was truncated from 5800 to 300 bytes"):
                list(blocks)

    @pytest.mark.parametrize("source", [None, 5, b"path"], ids=str)
    def test_what_is_no_source(self, source):
        with pytest.raises(TypeError, match="must be a path or a binary file"):
            RecordReader(source)
        with pytest.raises(TypeError, match="must be a path or a binary file"):
            RecordWriter(source)

    def test_blocks_that_are_not_iterated_open_nothing(self, tmp_path):
        with RecordReader(write(tmp_path / "x", RECORDS, compression="GZIP")) as reader:
            reader.blocks()


class TestWriter:
    def test_flush_makes_records_visible(self, tmp_path):
        for compression in (None, "GZIP"):
            path = tmp_path / f"x{compression}"
            writer = RecordWriter(path, compression=compression)
            writer.write(b"early")
            writer.flush()
            assert read(path) == [b"early"]
            writer.close()

    def test_anything_bytes_like(self, tmp_path):
        given = [b"b", bytearray(b"ba"), memoryview(b"m"), np.frombuffer(b"np", np.uint8)]
        assert read(write(tmp_path / "x", given)) == [b"b", b"ba", b"m", b"np"]

    def test_text_is_refused(self, tmp_path):
        with RecordWriter(tmp_path / "x") as writer, pytest.raises(TypeError):
            writer.write("text")

    def test_blocks_must_be_whole(self, tmp_path):
        path = write(tmp_path / "x", [b"one", b"two", b"three"])
        with RecordReader(path) as reader:
            (block,) = reader.blocks()
        holes = Block(block.data, block.offsets[::2].copy(), block.lengths[::2].copy())
        with (
            RecordWriter(tmp_path / "y") as writer,
            pytest.raises(ValueError, match="not consecutive"),
        ):
            writer.write_block(holes)

    @pytest.mark.parametrize(
        "options", [{"compression_level": 10}, {"member_bytes": 0}, {"buffer_bytes": 0}], ids=str
    )
    def test_bad_options(self, tmp_path, options):
        with pytest.raises(ValueError, match="must be"):
            RecordWriter(tmp_path / "x", **options)
        assert not (tmp_path / "x").exists()


def test_large_records_and_many_windows(tmp_path, monkeypatch):
    from covey.tfrecord import streams

    monkeypatch.setattr(streams, "WINDOW_BYTES", 5000)
    records = [bytes([n % 256]) * (n * 37 % 9000) for n in range(300)]
    assert read(write(tmp_path / "x", records)) == records


def test_readers_in_threads_do_not_disturb_each_other(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    path = write(tmp_path / "x", RECORDS * 20, compression="GZIP")
    with RecordReader(path) as reader, ThreadPoolExecutor(4) as pool:
        assert all(found == RECORDS * 20 for found in pool.map(lambda _: list(reader), range(8)))


def test_without_verification_lengths_are_still_checked(tmp_path):
    path = write(tmp_path / "x", [b"first", b"second"])
    data = bytearray((tmp_path / "x").read_bytes())
    data[12] ^= 1  # data of the first record
    (tmp_path / "x").write_bytes(data)
    assert read(path, verify=False)[1] == b"second"
    data[21:29] = (2**63).to_bytes(8, "little")
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match="record 1 at byte 21: the file ends after 22 of"):
        read(path, verify=False)


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_writer_says_where_it_wrote_each_record(tmp_path, compression, threads):
    records = [bytes([i % 251]) * (i * 37 % 3000) for i in range(400)]
    options = {"compression": compression, "member_bytes": 4096}
    with RecordWriter(tmp_path / "plain", **options) as writer:
        for record in records:
            writer.write(record)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        executor = pool if threads else None
        with RecordWriter(
            tmp_path / "kept", **options, executor=executor, track_locations=True
        ) as writer:
            for record in records[:150]:
                writer.write(record)
            with RecordReader(tmp_path / "plain") as reader:
                block = next(iter(reader.blocks()))
            if len(block) == len(records):
                writer.write_block(block[150:])
            else:
                for record in records[150:]:
                    writer.write(record)
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "plain").read_bytes()
    with RecordReader(tmp_path / "kept") as reader:
        places = writer.places()
        np.testing.assert_array_equal(places, reader.places())
        offset, within, _ = places[321].tolist()
        assert reader.read_at(offset, within) == records[321]
