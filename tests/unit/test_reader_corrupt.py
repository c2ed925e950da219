"""RecordReader on corrupt files."""

import gzip
import struct
import warnings

import pytest
from corrupt_files import frame

from covey import RecordReader, RecordWriter
from covey.errors import CorruptRecordError, SkippedRecordsWarning

RECORDS = [b"first", b"", b"the third record", b"4"]


def build(path, **options):
    with RecordWriter(path, **options) as writer:
        for record in RECORDS:
            writer.write(record)
    return bytearray(path.read_bytes())


def frames():
    """(begin, length of data) of every frame."""
    begin = 0
    for record in RECORDS:
        yield begin, len(record)
        begin += len(record) + 16


def read(path, **options):
    with RecordReader(path, **options) as reader:
        return list(reader)


def read_skipping(path, **options):
    with RecordReader(path, on_error="skip", **options) as reader, warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedRecordsWarning)
        return list(reader), list(reader.skipped)


def flipped(path):
    """A file with one byte flipped, for every byte: (record, begin, length, byte)."""
    valid = build(path)
    for number, (begin, length) in enumerate(frames()):
        for byte in range(begin, begin + length + 16):
            corrupt = valid.copy()
            corrupt[byte] ^= 0x40
            path.write_bytes(corrupt)
            yield number, begin, length, byte


def test_every_flipped_byte_is_located(tmp_path):
    path = tmp_path / "x"
    for number, begin, length, byte in flipped(path):
        # Not "auto": a corrupt first header prevents the detection.
        with pytest.raises(CorruptRecordError) as caught:
            read(path, compression=None)
        error = caught.value
        assert (error.path, error.record, error.offset) == (str(path), number, begin)
        which = "length" if byte < begin + 12 else "data"
        assert f"{which} checksum is 0x" in error.reason
        records, skipped = read_skipping(path, compression=None)
        assert len(skipped) == 1
        assert (skipped[0].record, skipped[0].offset) == (number, begin)
        assert records == RECORDS[:number] + RECORDS[number + 1 :]
        assert skipped[0].bytes == length + 16


def test_every_truncation_is_located(tmp_path):
    path = tmp_path / "x"
    valid = build(path)
    begins = [begin for begin, _ in frames()] + [len(valid)]
    for size in range(len(valid)):
        path.write_bytes(valid[:size])
        complete = max(i for i, begin in enumerate(begins) if begin <= size)
        if size in begins:
            assert read(path) == RECORDS[:complete]
            continue
        with pytest.raises(CorruptRecordError, match="the file ends after") as caught:
            read(path)
        assert (caught.value.record, caught.value.offset) == (complete, begins[complete])
        assert read_skipping(path)[0] == RECORDS[:complete]


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_every_corruption_of_compressed_data_raises(tmp_path, compression):
    path = tmp_path / "x"
    valid = build(path, compression=compression)
    for byte in range(len(valid)):
        corrupt = valid.copy()
        corrupt[byte] ^= 0x55
        path.write_bytes(corrupt)
        # A checksum of the compression or of the record fails; some header bytes are unused.
        if byte >= 10:
            with pytest.raises(CorruptRecordError, match=r"is corrupt|checksum is"):
                read(path, compression=compression)
        path.write_bytes(valid[:byte])
        if byte:
            with pytest.raises(CorruptRecordError, match="ends before its end mark"):
                read(path, compression=compression)
        records, _ = read_skipping(path, compression=compression)
        assert records == RECORDS[: len(records)]


def test_skip_warns_once(tmp_path):
    path = tmp_path / "x"
    corrupt = build(path)
    corrupt[12] ^= 1
    corrupt[21 + 16 + 12] ^= 1
    path.write_bytes(corrupt)
    with RecordReader(path, on_error="skip") as reader:
        with pytest.warns(SkippedRecordsWarning, match="skipped 2 corrupt parts") as caught:
            assert list(reader) == [b"", b"4"]
        assert len(caught) == 1
        assert [each.record for each in reader.skipped] == [0, 2]


def test_lengths_are_checked_without_verification(tmp_path):
    path = tmp_path / "x"
    corrupt = build(path)
    corrupt[12] ^= 1  # data of the first record
    path.write_bytes(corrupt)
    assert read(path, verify=False)[1:] == RECORDS[1:]
    corrupt[21:29] = (2**63).to_bytes(8, "little")
    path.write_bytes(corrupt)
    with pytest.raises(CorruptRecordError, match="the file ends after") as caught:
        read(path, verify=False)
    assert (caught.value.record, caught.value.offset) == (1, 21)


def test_read_at_a_wrong_offset(tmp_path):
    path = tmp_path / "x"
    valid = build(path)
    with RecordReader(path) as reader:
        for offset in (3, len(valid)):
            with pytest.raises(CorruptRecordError) as caught:
                reader.read_at(offset)
            assert (caught.value.path, caught.value.offset) == (str(path), offset)
        with pytest.raises(ValueError, match="must not be negative"):
            reader.read_at(-1)


def test_read_at_raises_with_on_error_skip(tmp_path):
    path = tmp_path / "x"
    corrupt = build(path)
    corrupt[12] ^= 1
    path.write_bytes(corrupt)
    with RecordReader(path, on_error="skip") as reader:
        with pytest.warns(SkippedRecordsWarning):
            locations = reader.locations()
        assert len(reader.skipped) == 1
        with pytest.raises(CorruptRecordError, match="data checksum") as caught:
            reader.read_at(0)
        assert caught.value.offset == 0
        assert reader.read_at(locations["offset"][0]) == b""
        assert len(reader.skipped) == 1  # that of the last pass
        for at in (2**62, 2**70):
            with pytest.raises(CorruptRecordError, match="the file ends before byte"):
                reader.read_at(at)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_many_corrupt_records(tmp_path, compression):
    path = tmp_path / "x"
    with RecordWriter(path) as writer:
        for _ in range(3000):
            writer.write(b"r" * 20)
    corrupt = bytearray(path.read_bytes())
    corrupt[12::36] = b"!" * 3000
    path.write_bytes(gzip.compress(corrupt) if compression else corrupt)
    with RecordReader(path, on_error="skip") as reader, warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedRecordsWarning)
        assert list(reader) == []
        assert [each.record for each in reader.skipped] == list(range(3000))


def test_data_before_corrupt_compression_is_read(tmp_path):
    """Deflate blocks of 20,000 bytes, of which one is corrupt, in several reads of the file."""
    path = tmp_path / "x"
    records = [b"%06d" % i * 20 for i in range(3000)]
    data = b"".join(map(frame, records))
    blocks = [data[at : at + 20_000] for at in range(0, len(data), 20_000)]
    lengths = [struct.pack("<BHH", 0, len(each), len(each) ^ 0xFFFF) for each in blocks]
    lengths[15] = bytes(5)
    stream = b"".join(map(bytes.__add__, lengths, blocks))
    path.write_bytes(b"\x1f\x8b\x08" + bytes(7) + stream)
    found, skipped = read_skipping(path)
    assert found == records[: 15 * 20_000 // 136]
    assert [(each.record, each.offset) for each in skipped] == [(len(found), len(found) * 136)]


def test_corrupt_plain_file_is_not_zlib(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\x08\x1d" + bytes(60))
    with RecordReader(path) as reader:
        assert reader.compression is None
