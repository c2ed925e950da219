"""Corrupt files: all that is valid is had, and every damage is named at its place."""

import gzip
import io
import os
import random
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
from covey.tfrecord.recovery import salvage

RECORDS = make_records(1, 30, [0, 8, 50, 200])
MIB = 1 << 20


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return corrupt_files(tmp_path_factory.mktemp("corrupt"))


def read(source, **options):
    """The records that are found, and the damages."""
    found = list(salvage(source, **options))
    records = [record for each in found if isinstance(each, Block) for record in each]
    return records, [each for each in found if isinstance(each, SkippedRecord)]


def places(damages):
    return [(damage.record, damage.offset) for damage in damages]


def read_data(data, **options):
    return read(io.BytesIO(data), **options)


def wrong(cases, is_right):
    """The files of which something does not hold: all of them, so that one run tells."""
    return [case.path.name for case in cases if not is_right(case)]


def test_there_are_enough_of_every_kind(cases):
    assert len(cases) >= 240
    assert {case.compression for case in cases} == {None, "GZIP", "ZLIB"}
    assert len({case.kind for case in cases}) > 60
    assert sum(case.path.stat().st_size for case in cases) / len(cases) < 16384


def test_the_sound_records_are_given_and_no_others(cases):
    assert wrong(cases, lambda case: read(case.path)[0] == case.survivors) == []


def test_the_first_damage_is_named_at_its_place(cases):
    def is_right(case):
        damages = read(case.path)[1]
        return places(damages[:1]) == ([case.first] if case.first else [])

    assert wrong(cases, is_right) == []


def test_every_damage_is_named_at_its_place(cases):
    known = [case for case in cases if case.damages is not None]
    assert len(known) > 200
    assert wrong(known, lambda case: places(read(case.path)[1]) == case.damages) == []


def test_damages_name_their_file(cases):
    def is_right(case):
        return all(each.path == str(case.path) for each in read(case.path)[1])

    assert wrong(cases, is_right) == []


def test_the_compression_need_not_be_found_out(cases):
    def is_right(case):
        return read(case.path, compression=case.compression) == read(case.path)

    # What nobody would take for the compression that it should have is corrupt in another way.
    known = [case for case in cases if case.first != (0, 0)]
    assert wrong(known, is_right) == []
    assert wrong(cases, lambda c: read(c.path, compression=c.compression)[0] == c.survivors) == []


def test_file_objects_are_read_like_files(cases):
    def is_right(case):
        with open(case.path, "rb") as file:
            return read(file) == read(case.path)

    assert wrong(cases[::3], lambda case: is_right(case) or "claim" in case.kind) == []


def test_blocks_and_damages_cover_a_plain_file_without_a_gap(cases):
    def is_right(case):
        at = record = 0
        for each in salvage(case.path, compression=None):
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

    assert wrong([case for case in cases if case.compression is None], is_right) == []


def test_an_ordinary_reader_stops_at_the_first_damage_for_the_same_reason(cases):
    def is_right(case):
        given = []
        damages = read(case.path, compression=case.compression)[1]
        try:
            with RecordReader(case.path, compression=case.compression) as reader:
                given.extend(reader)
        except CorruptRecordError as error:
            first = (error.record, error.offset)
            reason = damages[0].reason
            same = reason.startswith(error.reason) or error.reason.startswith(
                "the length of the record"
            )
            return first == case.first and same and given == case.survivors[: case.before]
        return case.first is None and given == case.survivors

    assert wrong(cases, is_right) == []


mutations = st.tuples(
    st.floats(0, 1),
    st.integers(0, 40),
    st.one_of(st.binary(max_size=40), st.integers(0, 60).map(bytes)),
)


def mutate(data, mutation):
    """Replace some bytes at a part of the file by others."""
    where, size, by = mutation
    at = int(where * len(data))
    return data[:at] + by + data[at + size :]


def first_difference(a, b):
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(st.lists(st.binary(max_size=80).filter(lambda r: len(r) != 8), max_size=12), mutations)
def test_a_damaged_file_gives_its_own_records(records, mutation):
    frames = [frame(record) for record in records]
    sound = b"".join(frames)
    damaged = mutate(sound, mutation)
    found, damages = read_data(damaged, compression=None)
    assert set(records).issuperset(found)
    at = first_difference(sound, damaged)
    ends = [sum(map(len, frames[: i + 1])) for i in range(len(frames))]
    before = sum(end <= at for end in ends)
    assert found[:before] == records[:before]
    # One damage costs no record that it does not touch.
    after = len(sound) - at - first_difference(sound[at:][::-1], damaged[at:][::-1])
    untouched = sum(end - len(each) >= at + after for end, each in zip(ends, frames, strict=True))
    assert found[len(found) - untouched :] == records[len(records) - untouched :]
    if damaged == sound:
        assert (found, damages) == (records, [])


def possible(records):
    """What corrupt data can give: the header of one record makes another of eight bytes whole."""
    return {*records, *(len(record).to_bytes(8, "little") for record in records)}


@given(
    st.lists(st.binary(max_size=80), max_size=12),
    st.sampled_from(["GZIP", "ZLIB"]),
    st.integers(1, 300),
    mutations,
)
def test_a_damaged_compressed_file_gives_its_own_records(records, compression, member, mutation):
    file = io.BytesIO()
    with RecordWriter(file, compression=compression, member_bytes=member) as writer:
        for record in records:
            writer.write(record)
    sound = file.getvalue()
    assert read_data(sound) == (records, [])
    damaged = mutate(sound, mutation)
    found, _ = read_data(damaged, compression=compression)
    assert possible(records).issuperset(found)
    if compression == "GZIP" and damaged[: len(sound)] != sound:
        # Members that lie wholly before the damage are had.
        with RecordReader(io.BytesIO(sound)) as reader:
            members = reader.places()["offset"].tolist()
        at = first_difference(sound, damaged)
        ends = [min([m for m in members if m > begin], default=len(sound)) for begin in members]
        before = sum(end <= at for end in ends)
        assert found[:before] == records[:before]


def test_a_record_in_which_bytes_are_missing_does_not_take_the_next_with_it():
    records = [b"long" * 200, b"next", b"last"]
    frames = [frame(record) for record in records]
    missing = len(frames[1])  # so that the length of the first leads exactly to the last
    data = frames[0][:-50] + frames[0][-50 + missing :] + frames[1] + frames[2]
    found, damages = read_data(data)
    assert found == records[1:]
    assert [(d.record, d.offset, d.bytes) for d in damages] == [(0, 0, len(frames[0]) - missing)]


def test_what_a_record_holds_is_given_where_nothing_tells():
    inner = [b"inner one", b"inner two"]
    outer = frame(b"".join(map(frame, inner)))
    data = frame(b"first") + flip(outer, 0, 8 * len(outer) - 1) + frame(b"last")
    found, damages = read_data(data)
    assert found == [b"first", *inner, b"last"]
    assert places(damages) == [(1, 21), (4, 21 + len(outer) - 4)]


def test_a_record_of_eight_bytes_is_no_header():
    # Its data and checksum are what a header would be, and here it is followed as one.
    lengths = [frame(n.to_bytes(8, "little")) for n in (5, 40, 100, 1 << 20, 1 << 27)]
    for number, each in enumerate(lengths):
        others = lengths[:number] + lengths[number + 1 :]
        data = b"".join(lengths[:number]) + flip(each, 70) + b"".join(lengths[number + 1 :])
        assert read_data(data) == read_data(data, compression=None)
        found, damages = read_data(data)
        assert found == [each[12:-4] for each in others]
        assert places(damages) == [(number, 24 * number)]


def bgzf(data, size):
    """GZIP members that take no notice of where records end."""
    return [gzip.compress(data[i : i + size], mtime=0) for i in range(0, len(data), size)]


def test_records_that_go_on_from_member_to_member_are_found_again():
    records = make_records(2, 40, [50, 300])
    data = b"".join(map(frame, records))
    members = bgzf(data, 700)
    assert read_data(b"".join(members)) == (records, [])
    for number in range(1, len(members)):
        damaged = [*members[:number], bytes(len(members[number])), *members[number + 1 :]]
        found, damages = read_data(b"".join(damaged))
        parts = data[: 700 * number], data[700 * (number + 1) :]
        assert found == [r for r in records if any(frame(r) in part for part in parts)]
        assert len(damages) == 1


def test_nested_gzip_is_not_taken_for_a_member():
    # What does not compress is stored as it is, GZIP members in it too.
    inner = gzip.compress(b"no records", mtime=0) + random.Random(1).randbytes(400)
    records = [b"first", inner, b"third"]
    members = [gzip.compress(frame(record), 0, mtime=0) for record in records]
    members[1] = members[1][:-200] + b"\xff" + members[1][-199:]
    found, damages = read_data(b"".join(members))
    assert found == [b"first", b"third"]
    assert places(damages) == [(1, 21)]


def test_a_plain_file_whose_first_header_is_lost_is_not_taken_for_what_it_holds():
    inner = gzip.compress(frame(b"inner"), mtime=0)
    records = [b"first", inner, b"third"]
    found, damages = read_data(flip(b"".join(map(frame, records)), 0))
    assert found == records[1:]
    assert places(damages) == [(0, 0)]


def test_the_checksum_of_a_member_costs_no_record(tmp_path):
    members = [gzip.compress(frame(record), mtime=0) for record in (b"one", b"two", b"three")]
    for number in range(3):
        for byte in (-8, -1):
            damaged = bytearray(members[number])
            damaged[byte] ^= 1
            file = b"".join([*members[:number], damaged, *members[number + 1 :]])
            found, damages = read_data(file)
            assert found == [b"one", b"two", b"three"]
            assert [(d.record, d.bytes) for d in damages] == [(number + 1, 0)]
            member = sum(map(len, members[:number]))
            assert f"in the GZIP member at byte {member} of the file" in damages[0].reason


def test_reasons_say_how_it_goes_on():
    members = [gzip.compress(frame(record), mtime=0) for record in (b"one", b"two", b"three")]
    lost = bytes(len(members[1]))
    third = len(members[0]) + len(lost)

    def reason(data, **options):
        return read_data(data, **options)[1][0].reason

    assert reason(members[0] + lost + members[2]) == (
        "the GZIP data is corrupt: Error -3 while decompressing data: incorrect header check; "
        f"the next GZIP member is at byte {third} of the file"
    )
    assert reason(members[0] + lost).endswith(
        f"check; no GZIP member follows the one at byte {len(members[0])} of the file"
    )
    assert reason(zlib.compress(frame(b"one"))[:-5]) == (
        "the ZLIB data ends before its end mark; the rest of a ZLIB stream cannot be read"
    )
    assert reason(b"text, and nothing but that") == (
        f"length checksum is {unmask(masked_crc(b'text, an')):#010x}, expected "
        f"{unmask(int.from_bytes(b'd no', 'little')):#010x}; the file may not be a TFRecord file"
    )
    assert reason(frame(b"one")[:-5]) == "the file ends after 14 of the record's 19 bytes"
    assert reason(frame(b"one") + b"!") == "the file ends after 1 of a header of 12"


def unmask(masked):
    rotated = (masked - 0xA282EAD8) % (1 << 32)
    return (rotated >> 17 | rotated << 15) % (1 << 32)


def piped(data, **options):
    """What is read from a pipe that some bytes are written to."""
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


def test_a_pipe_can_be_read_once():
    plain = [frame(record) for record in RECORDS]
    damaged = b"".join([*plain[:3], bytes(40), *plain[3:]])
    found, damages = piped(damaged)
    assert found == RECORDS
    assert places(damages) == [(3, sum(map(len, plain[:3])))]
    members = [gzip.compress(each, mtime=0) for each in plain]
    assert piped(b"".join(members)) == (RECORDS, [])
    found, damages = piped(b"".join([*members[:4], bytes(20), *members[4:]]))
    assert found == RECORDS[:4]
    assert "a file without seek" in damages[0].reason


def test_a_file_object_is_read_from_where_it_stands():
    members = b"".join(gzip.compress(frame(record), mtime=0) for record in RECORDS)
    for data in (b"".join(map(frame, RECORDS)), members, bytes(3) + members[3:]):
        file = io.BytesIO(b"before it" + data)
        file.seek(9)
        found, damages = read(file)
        assert found == RECORDS[len(damages) :]
        assert places(damages) == [(0, 0)][: len(damages)]


def test_a_record_over_the_limit_is_passed_over():
    file = io.BytesIO()
    with RecordWriter(file, compression="GZIP", compression_level=1) as writer:
        for record in (b"a", bytes(5 * MIB), b"c"):
            writer.write(record)
    file.seek(0)
    found, damages = read(file, max_record_bytes=4 * MIB)
    assert found == [b"a", b"c"]
    assert [(d.record, d.offset, d.bytes) for d in damages] == [(1, 17, 5 * MIB + 16)]
    limit = "5242880 bytes, over the limit of 4194304; pass a larger max_record_bytes"
    assert limit in damages[0].reason
    file.seek(0)
    assert read(file, max_record_bytes=5 * MIB)[1] == []


@pytest.mark.parametrize("compress", [bytes, lambda data: gzip.compress(data, 1)])
def test_windows_do_not_matter(compress, tmp_path):
    # Records around the sizes of windows and pieces, corrupt everywhere.
    sizes = [8 * MIB - 20, 10, MIB, 9 * MIB, 100, 2 * MIB, 30]
    records = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
    with RecordWriter(tmp_path / "sound") as writer:
        for record in records:
            writer.write(record)
    data = bytearray((tmp_path / "sound").read_bytes())
    begins = [sum(sizes[:i]) + 16 * i for i in range(len(sizes))]
    for lost in ((0, 4), (3,), (1, 5), (2, 6)):
        for at in (0, 11, 12, 20):  # in the header, or in the data
            damaged = data.copy()
            for number in lost:
                damaged[begins[number] + at] ^= 0x10
            path = tmp_path / "damaged"
            path.write_bytes(compress(bytes(damaged)))
            found, damages = read(path)
            assert found == [r for i, r in enumerate(records) if i not in lost]
            ends = [begins[n] + sizes[n] + 16 for n in lost]
            expected = [(n, begins[n], e - begins[n]) for n, e in zip(lost, ends, strict=True)]
            assert [(d.record, d.offset, d.bytes or 46) for d in damages] == expected


def peak_of(data):
    source = io.BytesIO(data)
    tracemalloc.start()
    for _ in salvage(source):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_decompression_bomb_takes_little_memory():
    zeros = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = zeros.compress(frame(b"first"))
    bomb += b"".join(zeros.compress(bytes(MIB)) for _ in range(64)) + zeros.flush()
    assert len(bomb) < MIB // 8
    assert peak_of(bomb) < 8 * MIB


def test_a_file_of_nothing_but_headers_is_read_in_time():
    # Each says that its record is all that follows: to try them all would take hours.
    count = MIB
    headers = bytearray()
    for claim in (3 * MIB, 5 * MIB):
        headers += header(claim) * (count // 2)
    found, damages = read_data(bytes(headers) + frame(b"last"))
    assert len(found) <= 1
    assert places(damages)[0] == (0, 0)


def test_arguments_are_checked_at_once():
    with pytest.raises(ValueError, match="compression is 'ZIP'; must be"):
        salvage("x", compression="ZIP")
    with pytest.raises(ValueError, match="max_record_bytes is -1; must be 0 or more"):
        salvage("x", max_record_bytes=-1)
    with pytest.raises(TypeError, match="of type int; must be a path or a binary file"):
        salvage(5)
    with pytest.raises(FileNotFoundError):
        list(salvage("there-is-no-such-file"))


def test_a_file_that_is_cut_meanwhile_is_a_damage(tmp_path):
    path = tmp_path / "x"
    record = bytes(3 * MIB)
    with RecordWriter(path) as writer:
        for _ in range(8):
            writer.write(record)
    found = salvage(path)
    assert list(next(found)) == [record, record]
    os.truncate(path, 100)
    (damage,) = found
    assert (damage.record, damage.bytes) == (2, None)
    assert "was truncated from" in damage.reason


def test_an_unfinished_reading_closes_its_file(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"".join(map(frame, RECORDS)))
    found = salvage(path)
    next(found)
    found.close()  # a file that is left open is a warning, and that an error
