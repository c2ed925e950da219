"""Recovery: all valid records of a corrupt file are yielded, and every corruption is located."""

import gzip
import io
import os
import threading
import tracemalloc
import zlib

import pytest
from corrupt_files import corrupt_files, flip, frame, header, make_records, masked_crc
from hypothesis import given
from hypothesis import strategies as st

from covey import RecordReader, RecordWriter
from covey.errors import CorruptRecordError
from covey.results import SkippedRecord
from covey.tfrecord import Block

RECORDS = make_records(1, 30, [0, 8, 50, 200])
MIB = 1 << 20


def scan(source, **options):
    """Yield the blocks and the skipped ranges."""
    with RecordReader(source, on_error="skip", **options) as reader:
        yield from reader.scan()


def read(source, **options):
    """The valid records, and the skipped ranges."""
    found = list(scan(source, **options))
    records = [record for each in found if isinstance(each, Block) for record in each]
    return records, [each for each in found if isinstance(each, SkippedRecord)]


def locations(skipped):
    return [(each.record, each.offset) for each in skipped]


def read_data(data, **options):
    return read(io.BytesIO(data), **options)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Corrupt files, each with its records and skipped ranges."""
    files = corrupt_files(tmp_path_factory.mktemp("corrupt"))
    return [(case, *read(case.path, compression=case.compression)) for case in files]


def failing(cases, is_right):
    """Names of the files for which a condition is false."""
    return [case.path.name for case, *found in cases if not is_right(case, *found)]


def test_corrupt_files_cover_every_kind(cases):
    assert len(cases) >= 240
    assert {case.compression for case, *_ in cases} == {None, "GZIP", "ZLIB"}
    assert len({case.kind for case, *_ in cases}) > 60
    assert sum(case.corruptions is not None for case, *_ in cases) > 200


def test_exactly_the_valid_records_are_yielded(cases):
    assert failing(cases, lambda case, records, _: records == case.survivors) == []


def test_every_corruption_is_located(cases):
    def is_right(case, _, skipped):
        found = locations(skipped)
        if case.corruptions is not None:
            return found == case.corruptions
        return found[:1] == [case.first] and all(each.path == str(case.path) for each in skipped)

    assert failing(cases, is_right) == []


def test_file_objects(cases):
    def is_right(case, *expected):
        with open(case.path, "rb") as file:
            return (
                read(file, compression=case.compression) == tuple(expected) or "claim" in case.kind
            )

    assert failing(cases[::3], is_right) == []


def test_blocks_and_skipped_ranges_cover_a_plain_file(cases):
    def is_right(case, *_):
        at = record = 0
        for each in scan(case.path, compression=None):
            if isinstance(each, SkippedRecord):
                begin, first, count, size = each.offset, each.record, 1, each.bytes
            else:
                begin, first, count = each.position, each.first, len(each)
                size = int(each.lengths.sum()) + 16 * count
            if (begin, first) != (at, record):
                return False
            at = case.path.stat().st_size if size is None else begin + size
            record += count
        return at == case.path.stat().st_size

    assert failing([each for each in cases if each[0].compression is None], is_right) == []


def test_reader_raises_at_the_first_corruption_with_the_same_reason(cases):
    def is_right(case, *_):
        records = []
        try:
            with RecordReader(case.path, compression=case.compression) as reader:
                records.extend(reader)
        except CorruptRecordError as error:
            skipped = read(case.path, compression=case.compression)[1]
            is_same = skipped[0].reason.startswith(error.reason)
            is_located = (error.record, error.offset) == case.first
            return is_located and is_same and records == case.survivors[: case.before]
        return case.first is None and records == case.survivors

    assert failing(cases, is_right) == []


mutations = st.tuples(
    st.floats(0, 1),
    st.integers(0, 40),
    st.one_of(st.binary(max_size=40), st.integers(0, 60).map(bytes)),
)


def mutate(data, mutation):
    """Replace some bytes."""
    where, size, by = mutation
    at = int(where * len(data))
    return data[:at] + by + data[at + size :]


def first_difference(a, b):
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(st.lists(st.binary(max_size=80).filter(lambda r: len(r) != 8), max_size=12), mutations)
def test_mutated_file_yields_its_own_records(records, mutation):
    frames = [frame(record) for record in records]
    valid = b"".join(frames)
    corrupt = mutate(valid, mutation)
    found, skipped = read_data(corrupt, compression=None)
    assert set(records).issuperset(found)
    at = first_difference(valid, corrupt)
    ends = [sum(map(len, frames[: i + 1])) for i in range(len(frames))]
    before = sum(end <= at for end in ends)
    assert found[:before] == records[:before]
    # Records outside the mutated range are yielded.
    after = len(valid) - at - first_difference(valid[at:][::-1], corrupt[at:][::-1])
    untouched = sum(end - len(each) >= at + after for end, each in zip(ends, frames, strict=True))
    assert found[len(found) - untouched :] == records[len(records) - untouched :]
    if corrupt == valid:
        assert (found, skipped) == (records, [])


def possible(records):
    """Records that corrupt data can contain: a header completes a record of eight bytes."""
    return {*records, *(len(record).to_bytes(8, "little") for record in records)}


@given(
    st.lists(st.binary(max_size=80), max_size=12),
    st.sampled_from(["GZIP", "ZLIB"]),
    st.integers(1, 300),
    mutations,
)
def test_mutated_compressed_file_yields_its_own_records(records, compression, member, mutation):
    file = io.BytesIO()
    with RecordWriter(file, compression=compression, member_bytes=member) as writer:
        for record in records:
            writer.write(record)
    valid = file.getvalue()
    assert read_data(valid) == (records, [])
    corrupt = mutate(valid, mutation)
    found, _ = read_data(corrupt, compression=compression)
    assert possible(records).issuperset(found)
    if compression == "GZIP" and corrupt[: len(valid)] != valid:
        # Members before the mutated range are yielded.
        with RecordReader(io.BytesIO(valid)) as reader:
            members = reader.locations()["offset"].tolist()
        at = first_difference(valid, corrupt)
        ends = [min([m for m in members if m > begin], default=len(valid)) for begin in members]
        before = sum(end <= at for end in ends)
        assert found[:before] == records[:before]


def test_record_with_missing_bytes_does_not_hide_the_next():
    records = [b"long" * 200, b"next", b"last"]
    frames = [frame(record) for record in records]
    missing = len(frames[1])  # the length of the first record ends at the last one
    data = frames[0][:-50] + frames[0][-50 + missing :] + frames[1] + frames[2]
    found, skipped = read_data(data)
    assert found == records[1:]
    assert [(d.record, d.offset, d.bytes) for d in skipped] == [(0, 0, len(frames[0]) - missing)]


def test_nested_frames_are_yielded_if_the_extent_is_unknown():
    inner = [b"inner one", b"inner two"]
    outer = frame(b"".join(map(frame, inner)))
    data = frame(b"first") + flip(outer, 0, 8 * len(outer) - 1) + frame(b"last")
    found, skipped = read_data(data)
    assert found == [b"first", *inner, b"last"]
    assert locations(skipped) == [(1, 21), (4, 21 + len(outer) - 4)]


def test_record_of_eight_bytes_is_not_a_header():
    # Its data and checksum have the form of a header.
    lengths = [frame(n.to_bytes(8, "little")) for n in (5, 40, 100, 1 << 20, 1 << 27)]
    for number, each in enumerate(lengths):
        others = lengths[:number] + lengths[number + 1 :]
        data = b"".join(lengths[:number]) + flip(each, 70) + b"".join(lengths[number + 1 :])
        assert read_data(data) == read_data(data, compression=None)
        found, skipped = read_data(data)
        assert found == [each[12:-4] for each in others]
        assert locations(skipped) == [(number, 24 * number)]


def test_nothing_is_read_after_corrupt_compressed_data():
    members = [gzip.compress(frame(record), mtime=0) for record in (b"one", b"two", b"three")]
    for byte, survivors in ((0, [b"one"]), (len(members[1]) - 8, [b"one", b"two"])):
        corrupt = flip(members[1], 8 * byte)
        found, skipped = read_data(b"".join([members[0], corrupt, members[2]]))
        assert found == survivors
        assert locations(skipped) == [(len(found), 19 * len(found))]
        assert "the GZIP data is corrupt" in skipped[0].reason


@pytest.mark.parametrize(
    "records",
    [
        [b"first", gzip.compress(frame(b"inner"), mtime=0), b"third"],
        [b"\x1f\x8b\x08" + bytes(100), b"second", b"third"],
    ],
)
def test_plain_file_of_gzip_data_with_a_corrupt_first_header(records):
    found, skipped = read_data(flip(b"".join(map(frame, records)), 0))
    assert found == records[1:]
    assert locations(skipped) == [(0, 0)]


def test_reasons():
    def reason(data):
        return read_data(data)[1][0].reason

    assert reason(gzip.compress(frame(b"one")) + bytes(30)) == (
        "the GZIP data is corrupt: Error -3 while decompressing data: incorrect header check"
    )
    assert reason(zlib.compress(frame(b"one"))[:-5]) == ("the ZLIB data ends before its end mark")
    assert reason(b"text, and nothing but that") == (
        f"length checksum is {unmask(masked_crc(b'text, an')):#010x}, expected "
        f"{unmask(int.from_bytes(b'd no', 'little')):#010x}; the file may not be a TFRecord file"
    )
    assert reason(frame(b"one")[:-5]) == "the file ends after 14 of the record's 19 bytes"
    assert reason(frame(b"one") + b"!") == "the file ends after 1 of a header of 12"


def unmask(masked):
    rotated = (masked - 0xA282EAD8) % (1 << 32)
    return (rotated >> 17 | rotated << 15) % (1 << 32)


def read_pipe(data, **options):
    """Read data through a pipe."""
    ends = os.pipe()

    def write():
        with open(ends[1], "wb") as file:
            file.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    with open(ends[0], "rb") as file:
        found = read(file, **options)
    writer.join()
    return found


def test_pipe():
    plain = [frame(record) for record in RECORDS]
    corrupt = b"".join([*plain[:3], bytes(40), *plain[3:]])
    found, skipped = read_pipe(corrupt)
    assert found == RECORDS
    assert locations(skipped) == [(3, sum(map(len, plain[:3])))]
    members = [gzip.compress(each, mtime=0) for each in plain]
    assert read_pipe(b"".join(members)) == (RECORDS, [])


def test_file_object_is_read_from_its_position():
    members = b"".join(gzip.compress(frame(record), mtime=0) for record in RECORDS)
    for data in (b"".join(map(frame, RECORDS)), members):
        file = io.BytesIO(b"before it" + data)
        file.seek(9)
        found, skipped = read(file)
        assert (found, skipped) == (RECORDS, [])


def test_record_over_the_limit_is_skipped():
    data = gzip.compress(b"".join(map(frame, (b"a", bytes(5000), b"c"))))
    found, skipped = read_data(data, max_record_bytes=4000, window_bytes=1000)
    assert found == [b"a", b"c"]
    assert [(d.record, d.offset, d.bytes) for d in skipped] == [(1, 17, 5016)]
    limit = "5000 bytes, over the limit of 4000"
    assert limit in skipped[0].reason
    assert read_data(data, max_record_bytes=5000, window_bytes=1000)[1] == []


@pytest.mark.parametrize("compress", [bytes, lambda data: gzip.compress(data, 1)])
def test_records_around_the_window_size(compress, tmp_path):
    window = 8192
    sizes = [window - 20, 10, window // 8, window + 1000, 100, window // 4, 30]
    records = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
    data = b"".join(map(frame, records))
    begins = [sum(sizes[:i]) + 16 * i for i in range(len(sizes))]
    path = tmp_path / "corrupt"
    for lost in ((0, 4), (3,), (1, 5), (2, 6)):
        for at in (0, 11, 12, 20):  # in the header, or in the data
            path.write_bytes(compress(flip(data, *(8 * (begins[n] + at) + 4 for n in lost))))
            found, skipped = read(path, window_bytes=window)
            assert found == [r for i, r in enumerate(records) if i not in lost]
            expected = [(n, begins[n], sizes[n] + 16) for n in lost]
            assert [(d.record, d.offset, d.bytes or 46) for d in skipped] == expected


def peak_of(data):
    source = io.BytesIO(data)
    tracemalloc.start()
    for _ in scan(source):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_of_a_decompression_bomb():
    zeros = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = zeros.compress(frame(b"first"))
    bomb += b"".join(zeros.compress(bytes(MIB)) for _ in range(24)) + zeros.flush()
    assert len(bomb) < MIB // 8
    assert peak_of(bomb) < 8 * MIB


def test_file_of_headers_is_read_in_linear_time(tmp_path):
    # Each length covers the rest of the file: to verify all of them takes quadratic time.
    data = b"".join(header(claim) * (MIB // 8) for claim in (MIB, 2 * MIB)) + frame(b"last")
    path = tmp_path / "x"
    path.write_bytes(data)
    for source in (path, io.BytesIO(data)):
        found, skipped = read(source, window_bytes=1 << 16)
        assert len(found) <= 1
        assert locations(skipped)[0] == (0, 0)


def test_file_is_truncated_during_the_read(tmp_path):
    path = tmp_path / "x"
    record = bytes(300)
    path.write_bytes(frame(record) * 8)
    found = scan(path, window_bytes=800)
    assert list(next(found)) == [record, record]
    os.truncate(path, 100)
    (each,) = found
    assert (each.record, each.offset, each.bytes) == (2, 632, None)
    assert "was truncated from" in each.reason


def test_unfinished_iteration_closes_the_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"".join(map(frame, RECORDS)))
    found = scan(path)
    next(found)
    found.close()  # an unclosed file is a ResourceWarning, which is an error
