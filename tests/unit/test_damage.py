"""Corrupt files: what is wrong is said exactly, and what is valid can be had."""

import gzip
import warnings

import pytest

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
    sound = build(path)
    for number, (begin, length) in enumerate(frames()):
        for byte in range(begin, begin + length + 16):
            damaged = sound.copy()
            damaged[byte] ^= 0x40
            path.write_bytes(damaged)
            yield number, begin, length, byte


def test_every_flipped_byte_is_found_at_its_record(tmp_path):
    path = tmp_path / "x"
    for number, begin, _, byte in flipped(path):
        # Not "auto": a corrupt first header would also be no sign of a plain file.
        with pytest.raises(CorruptRecordError) as caught:
            read(path, compression=None)
        assert (caught.value.record, caught.value.offset) == (number, begin)
        which = "length" if byte < begin + 12 else "data"
        assert f"{which} checksum is 0x" in str(caught.value)
        assert str(path) in str(caught.value)


def test_skipping_goes_on_where_the_length_is_sound(tmp_path):
    path = tmp_path / "x"
    for number, begin, length, byte in flipped(path):
        records, skipped = read_skipping(path, compression=None)
        assert len(skipped) == 1
        assert (skipped[0].record, skipped[0].offset) == (number, begin)
        if byte < begin + 12:  # nothing tells where the next record is
            assert records == RECORDS[:number]
            assert skipped[0].bytes is None
        else:
            assert records == RECORDS[:number] + RECORDS[number + 1 :]
            assert skipped[0].bytes == length + 16


def test_every_truncation_is_found(tmp_path):
    path = tmp_path / "x"
    sound = build(path)
    begins = [begin for begin, _ in frames()] + [len(sound)]
    for size in range(len(sound)):
        path.write_bytes(sound[:size])
        complete = max(i for i, begin in enumerate(begins) if begin <= size)
        if size in begins:
            assert read(path) == RECORDS[:complete]
            continue
        with pytest.raises(CorruptRecordError, match="the file ends after") as caught:
            read(path)
        assert (caught.value.record, caught.value.offset) == (complete, begins[complete])
        assert read_skipping(path)[0] == RECORDS[:complete]


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_every_damage_to_compressed_data_is_found(tmp_path, compression):
    path = tmp_path / "x"
    sound = build(path, compression=compression)
    for byte in range(len(sound)):
        damaged = sound.copy()
        damaged[byte] ^= 0x55
        path.write_bytes(damaged)
        # Either the compression notices, or the record's own checksum does first; only bytes of the
        # header that mean nothing to the data may change unpunished.
        if byte >= 10:
            with pytest.raises(CorruptRecordError, match=r"is corrupt|checksum is"):
                read(path, compression=compression)
        path.write_bytes(sound[:byte])
        if byte:
            with pytest.raises(CorruptRecordError, match="ends before its end mark"):
                read(path, compression=compression)
        records, _ = read_skipping(path, compression=compression)
        assert records == RECORDS[: len(records)]


def test_skipping_warns_once_and_counts(tmp_path):
    path = tmp_path / "x"
    damaged = build(path)
    damaged[12] ^= 1
    damaged[21 + 16 + 12] ^= 1
    path.write_bytes(damaged)
    with RecordReader(path, on_error="skip") as reader:
        with pytest.warns(SkippedRecordsWarning, match="left out 2 corrupt parts") as caught:
            assert list(reader) == [b"", b"4"]
        assert len(caught) == 1
        assert [each.record for each in reader.skipped] == [0, 2]


def test_a_length_of_2_to_the_63_is_not_believed(tmp_path):
    from covey import _core

    path = tmp_path / "x"
    for length in (2**63, 2**64 - 1, 2**64 - 16, 2**40):
        header = length.to_bytes(8, "little")
        crc = _core.crc32c(header)
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        path.write_bytes(header + masked.to_bytes(4, "little") + bytes(100))
        with pytest.raises(CorruptRecordError, match="the file ends after 112 of"):
            read(path)


def test_what_is_no_tfrecord_says_so(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"This is a string, not a TFRecord file.")
    with pytest.raises(CorruptRecordError, match="may not be a TFRecord file"):
        read(path)


def test_reading_at_a_wrong_place(tmp_path):
    path = tmp_path / "x"
    sound = build(path)
    with RecordReader(path) as reader:
        for offset in (3, len(sound)):
            with pytest.raises(CorruptRecordError) as caught:
                reader.read_at(offset)
            assert (caught.value.path, caught.value.offset) == (str(path), offset)
        with pytest.raises(ValueError, match="must not be negative"):
            reader.read_at(-1)


def test_skipping_never_makes_read_at_give_another_record(tmp_path):
    path = tmp_path / "x"
    damaged = build(path)
    damaged[12] ^= 1
    path.write_bytes(damaged)
    with RecordReader(path, on_error="skip") as reader:
        with pytest.warns(SkippedRecordsWarning):
            places = reader.places()
        assert len(reader.skipped) == 1
        with pytest.raises(CorruptRecordError, match="data checksum") as caught:
            reader.read_at(0)
        assert caught.value.offset == 0
        assert reader.read_at(places["offset"][0]) == b""
        assert len(reader.skipped) == 1  # still that of the last pass
        for place in (2**62, 2**70):
            with pytest.raises(CorruptRecordError, match="no record begins at byte"):
                reader.read_at(place)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_many_damaged_records_take_no_more_memory(tmp_path, compression):
    path = tmp_path / "x"
    with RecordWriter(path) as writer:
        for _ in range(3000):
            writer.write(b"r" * 20)
    damaged = bytearray(path.read_bytes())
    damaged[12::36] = b"!" * 3000
    path.write_bytes(gzip.compress(damaged) if compression else damaged)
    with RecordReader(path, on_error="skip") as reader, warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedRecordsWarning)
        assert list(reader) == []
        assert [each.record for each in reader.skipped] == list(range(3000))


def test_what_comes_before_damaged_compression_is_read(tmp_path):
    path = tmp_path / "x"
    records = [b"%06d" % i * 20 for i in range(3000)]
    with RecordWriter(path, compression="GZIP", member_bytes=10**9) as writer:
        for record in records:
            writer.write(record)
    damaged = bytearray(path.read_bytes())
    place = len(damaged) * 3 // 4
    damaged[place] ^= 0x10
    path.write_bytes(damaged)
    found, skipped = read_skipping(path)
    sound = [record for record in found if record in set(records)]
    assert found == sound
    assert len(found) > 2000  # about three quarters, whatever the size of a window
    assert skipped


def test_a_damaged_plain_file_is_not_taken_for_zlib(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\x08\x1d" + bytes(60))
    with RecordReader(path) as reader:
        assert reader.compression is None


def test_unknown_policy(tmp_path):
    build(tmp_path / "x")
    with pytest.raises(ValueError, match="on_error is 'ignore'"):
        RecordReader(tmp_path / "x", on_error="ignore")
