"""Corrupt TFRecord files, each with the records that can be recovered from it.

The expectations do not come from covey. A record survives if its frame is still in the file's data,
byte for byte. The data of a corrupt GZIP or ZLIB file is what zlib yields for its members, byte by
byte, before it fails; nothing after that can be read. A range without a surviving frame is corrupt.
"""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PAGE = 4096


@dataclass(frozen=True)
class Case:
    """A file, corrupt or valid."""

    kind: str
    """Format and corruption: ``"plain-flip-length"``.

    It is part of the file name, so it must not contain the name of a split, such as "valid".
    """
    path: Path
    compression: str | None
    """None, "GZIP" or "ZLIB"."""
    survivors: list[bytes]
    """The valid records, in order."""
    first: tuple[int, int] | None
    """Record id and offset (in the decompressed data) of the first corruption; None if valid."""
    corruptions: list[tuple[int, int]] | None
    """Record id and offset of every corruption; None if only the first is determined."""
    before: int
    """Number of records before ``first``, which an ordinary reader yields."""


@dataclass
class _Directory:
    path: Path
    make: Callable[[int, int, Sequence[int]], list[bytes]]
    cases: list[Case] = field(default_factory=list)

    def add(
        self,
        kind: str,
        data: bytes,
        compression: str | None,
        survivors: list[bytes],
        corruptions: list[tuple[int, int]] | None,
        first: tuple[int, int] | None = None,
    ) -> None:
        if corruptions is not None:
            first = corruptions[0] if corruptions else None
        before = len(survivors) if first is None else first[0]
        path = self.path / f"{len(self.cases):03}-{kind}.tfrecord"
        path.write_bytes(data)
        self.cases.append(Case(kind, path, compression, survivors, first, corruptions, before))


# The format, independent of covey.


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc32c_table()


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def header(length: int) -> bytes:
    size = struct.pack("<Q", length)
    return size + struct.pack("<I", masked_crc(size))


def frame(record: bytes) -> bytes:
    return header(len(record)) + record + struct.pack("<I", masked_crc(record))


def make_records(seed: int, count: int, sizes: Sequence[int]) -> list[bytes]:
    """Different records of sizes from a list; half of each is compressible."""
    rng = random.Random(seed)
    records = []
    for number in range(count):
        size = rng.choice(sizes)
        half = rng.randbytes(size // 2) + b"abcdefgh" * (size // 8 + 1)
        records.append((struct.pack("<I", number) + half)[:size])
    return records


def example(**features: Sequence[int] | Sequence[float] | Sequence[bytes]) -> bytes:
    """A tf.train.Example, serialized without protobuf."""
    entries = b""
    for name, values in features.items():
        if isinstance(values[0], bytes):
            kind, content = 1, b"".join(_field(1, value) for value in values)
        elif isinstance(values[0], float):
            kind, content = 2, _field(1, struct.pack(f"<{len(values)}f", *values))
        else:
            kind, content = 3, _field(1, b"".join(_varint(value % 2**64) for value in values))
        entries += _field(1, _field(1, name.encode()) + _field(2, _field(kind, content)))
    return _field(1, entries)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([each | 0x80 for each in low[:-1]] + low[-1:])


# Expectations.


def _surviving(data: bytes, frames: Sequence[bytes]) -> list[tuple[int, int]]:
    """(begin, end) of all frames in some data, except those within corrupt records."""
    found = {}
    for each in set(frames):
        at = data.find(each)
        while at >= 0:
            found[at] = at + len(each)
            at = data.find(each, at + 1)
    kept = []
    covered = inside = 0  # end of the last kept frame, and of a corrupt record
    for begin in sorted(found):
        if begin > covered:
            inside = max(inside, _claimed_end(data, covered))
        reached = begin
        while reached in found and reached < inside:
            reached = found[reached]
        if reached >= inside or reached == len(data):
            kept.append((begin, found[begin]))
            covered = found[begin]
            inside = 0
    return kept


def _claimed_end(data: bytes, begin: int) -> int:
    """End of a record by its length, if the checksum of the length is valid; else 0."""
    if len(data) < begin + 12 or header(length := _length(data, begin)) != data[begin : begin + 12]:
        return 0
    return 0 if length > 1 << 28 else begin + length + 16


def _length(data: bytes, begin: int) -> int:
    return int(struct.unpack_from("<Q", data, begin)[0])


def _expect(
    data: bytes, frames: Sequence[bytes], breaks: Sequence[int] = ()
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The records that survive in some data, and (record, offset) of each range without one.

    Args:
        data: The decompressed data.
        frames: The frames of the valid file.
        breaks: Offsets at which data is missing.
    """
    survivors: list[bytes] = []
    corruptions: list[tuple[int, int]] = []
    pending = list(breaks)
    at = record = 0
    for begin, end in [*_surviving(data, frames), (len(data), len(data))]:
        within = [offset for offset in pending if offset <= begin]
        pending = pending[len(within) :]
        if begin > at or within:
            corruptions.append((record, at))
            record += 1
        if end > begin:
            survivors.append(data[begin + 12 : end - 4])
            record += 1
            at = end
    return survivors, corruptions


@cache
def _inflate(data: bytes, window: int) -> tuple[bytes, str | None]:
    """The data that zlib yields for a stream before it fails, and its error."""
    inflate = zlib.decompressobj(window)
    pieces = []
    for begin in range(0, len(data), 256):
        backup = inflate.copy()
        part = data[begin : begin + 256]
        try:
            pieces.append(inflate.decompress(part))
        except zlib.error as error:
            # A call that fails yields nothing: repeat it byte by byte.
            with contextlib.suppress(zlib.error):
                for at in range(len(part)):
                    pieces.append(backup.decompress(part[at : at + 1]))
            return b"".join(pieces), str(error)
        if inflate.eof:
            return b"".join(pieces), None
    return b"".join(pieces), "ends early"


# Plain files.


class _Plain:
    """A valid plain file and its corruptions."""

    def __init__(self, directory: _Directory, seed: int, count: int, sizes: Sequence[int]) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.records = directory.make(seed, count, sizes)
        self.frames = [frame(record) for record in self.records]
        self.begins = [sum(map(len, self.frames[:i])) for i in range(count + 1)]
        self.data = b"".join(self.frames)

    def add(self, kind: str, data: bytes, *, several: bool = False) -> None:
        """Add a corrupt file; ``several`` if one range of it may be several corruptions."""
        survivors, corruptions = _expect(data, self.frames)
        kind = f"plain-{kind}"
        if several and corruptions:
            self.directory.add(kind, data, None, survivors, None, corruptions[0])
        else:
            self.directory.add(kind, data, None, survivors, corruptions)

    def patch(self, kind: str, begin: int, end: int, by: bytes, *, several: bool = False) -> None:
        self.add(kind, self.data[:begin] + by + self.data[end:], several=several)

    def flip(self, kind: str, *bits: int) -> None:
        self.add(kind, flip(self.data, *bits))


def flip(data: bytes, *bits: int) -> bytes:
    flipped = bytearray(data)
    for bit in bits:
        flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def _add_flips(plain: _Plain) -> None:
    last = len(plain.records) - 1
    for number in (0, 1, 7, last // 2, last - 1, last):
        begin, end = plain.begins[number], plain.begins[number + 1]
        parts = {
            "length": (begin, begin + 8),
            "length-crc": (begin + 8, begin + 12),
            "data": (begin + 12, end - 4),
            "data-crc": (end - 4, end),
        }
        for part, (low, high) in parts.items():
            if high > low:
                bits = plain.rng.sample(range(8 * low, 8 * high), 3)
                plain.flip(f"flip-{part}", bits[0])
                plain.flip(f"flips-{part}", *bits)
    for _ in range(8):
        # Not adjacent: no frame survives between adjacent records.
        numbers = plain.rng.sample(range(0, last, 3), 3)
        bits = [8 * plain.begins[n] + plain.rng.randrange(8 * 16) for n in numbers]
        plain.flip("flips-in-three-records", *bits)


def _add_cuts(plain: _Plain) -> None:
    size = len(plain.data)
    for number in (0, 3, len(plain.records) - 1):
        begin, end = plain.begins[number], plain.begins[number + 1]
        for cut in (begin + 1, begin + 8, begin + 11, begin + 12, begin + 13, end - 4, end - 1):
            plain.patch("cut", cut, size, b"")
        plain.patch("cut-between-records", end, size, b"")


def _add_shifts(plain: _Plain) -> None:
    size = len(plain.data)
    for _ in range(6):
        at = plain.rng.randrange(size)
        plain.patch("insert-one", at, at, plain.rng.randbytes(1))
        plain.patch("insert-some", at, at, plain.rng.randbytes(plain.rng.randrange(2, 300)))
        plain.patch("insert-zeros", at, at, bytes(plain.rng.randrange(2, 300)))
        plain.patch("delete-one", at, at + 1, b"")
        plain.patch("delete-some", at, at + plain.rng.randrange(2, 300), b"")
        plain.patch("delete-much", at // 2, at // 2 + PAGE, b"")
    for number in (0, 5, len(plain.records)):
        at = plain.begins[number]
        plain.patch("insert-between-records", at, at, plain.rng.randbytes(77))
        plain.patch("insert-zeros-between-records", at, at, bytes(100))
    for size_of_tail in (1, 11, 12, 16, 1000):
        plain.add("garbage-at-end", plain.data + plain.rng.randbytes(size_of_tail))
        plain.add("zeros-at-end", plain.data + bytes(size_of_tail))
        plain.add("garbage-at-begin", plain.rng.randbytes(size_of_tail) + plain.data)


def _add_pages(plain: _Plain) -> None:
    pages = len(plain.data) // PAGE
    for page in range(pages):
        begin, end = page * PAGE, (page + 1) * PAGE
        plain.patch("zero-page", begin, end, bytes(PAGE))
        plain.patch("random-page", begin, end, plain.rng.randbytes(PAGE))
        plain.patch("lost-page", begin, end, b"")
        other = (page + 1) % pages * PAGE
        copy = plain.data[other : other + PAGE]
        plain.patch("other-page", begin, end, copy, several=True)
        plain.patch("page-twice", begin, begin, plain.data[begin:end], several=True)
        if page + 1 < pages:
            swapped = plain.data[end : end + PAGE] + plain.data[begin:end]
            plain.patch("swapped-pages", begin, end + PAGE, swapped, several=True)
    plain.patch("zero-tail", PAGE, len(plain.data), bytes(len(plain.data) - PAGE))
    plain.patch("zero-tail-of-record", plain.begins[4] + 5, len(plain.data), bytes(3 * PAGE))


def _add_whole_frames(plain: _Plain) -> None:
    """Frames that are moved or removed as a whole, which cannot be detected."""
    for number in (0, 6, len(plain.records) - 2):
        low, middle, high = plain.begins[number : number + 3]
        frames = plain.data[low:high]
        plain.patch("records-twice", low, low, frames)
        plain.patch("records-gone", low, high, b"")
        swapped = plain.data[middle:high] + plain.data[low:middle]
        plain.patch("records-swapped", low, high, swapped)


def _add_large(directory: _Directory) -> None:
    """Corruption within records that are larger than pages."""
    plain = _Plain(directory, 3, 6, [2 * PAGE + 100, 3 * PAGE, 30])
    for page in range(len(plain.data) // PAGE):
        plain.patch("zero-page-of-large", page * PAGE, (page + 1) * PAGE, bytes(PAGE))
        plain.patch("lost-page-of-large", page * PAGE, (page + 1) * PAGE, b"")


def _add_neighbours(directory: _Directory) -> None:
    """Adjacent corrupt records, which their lengths separate."""
    plain = _Plain(directory, 4, 12, [20, 40, 80])
    begins = plain.begins
    for numbers in ((0, 1), (4, 5, 6), (10, 11), tuple(range(12))):
        data = flip(plain.data, *(8 * (begins[n] + 12) for n in numbers))
        survivors = [r for n, r in enumerate(plain.records) if n not in numbers]
        corruptions = [(n, begins[n]) for n in numbers]
        directory.add("plain-neighbours-data", data, None, survivors, corruptions)
        if numbers[1:] != (1,):
            # After a corrupt length the number of records is unknown.
            data = flip(data, 8 * begins[numbers[0]])
            first = (numbers[0], begins[numbers[0]])
            directory.add("plain-neighbours-length", data, None, survivors, None, first)


def _add_nested(directory: _Directory) -> None:
    """Records that contain TFRecord files, whose frames are not records of the outer file."""
    inner = b"".join(map(frame, [*directory.make(5, 9, [8, 30, 100]), b"eight by"]))
    payloads = {"bare": inner, "wrapped": b"\x0a\x7f" + inner + b"tail", "empty": frame(b"")}
    for name, payload in payloads.items():
        records = [b"first", payload, b"third", payload + b"!", b"last"]
        frames = [frame(record) for record in records]
        data = b"".join(frames)
        for number in (1, 3):
            begin = sum(map(len, frames[:number]))
            end = begin + len(frames[number])
            survivors = records[:number] + records[number + 1 :]
            corruptions = [(number, begin)]
            zeros = data[:begin] + bytes(12) + data[begin + 12 :]
            for part, corrupt in (
                ("length", flip(data, 8 * begin)),
                ("length-crc", flip(data, 8 * begin + 75)),
                ("zeros", zeros),
                ("data", flip(data, 8 * ((begin + end) // 2))),
                ("data-crc", flip(data, 8 * end - 1)),
            ):
                directory.add(f"plain-nested-{name}-{part}", corrupt, None, survivors, corruptions)
            cut = data[: end - 6]
            directory.add(f"plain-nested-{name}-cut", cut, None, records[:number], corruptions)


def _add_claims(directory: _Directory) -> None:
    """Impossible lengths with valid checksums."""
    records = directory.make(6, 8, [10, 50, 200])
    frames = [frame(record) for record in records]
    for claim in (1 << 29, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 16, (1 << 64) - 1):
        for number in (0, 4, 8):
            before = b"".join(frames[:number])
            data = before + header(claim) + b"".join(frames[number:])
            corruptions = [(number, len(before))]
            directory.add("plain-claim", data, None, records, corruptions)
    many = b"".join(header(n) for n in range(500, 4000))
    data = frames[0] + many + frames[1]
    directory.add("plain-headers-only", data, None, records[:2], None, (1, len(frames[0])))


def _add_others(directory: _Directory) -> None:
    """Files that are not TFRecord files, or are empty."""
    rng = random.Random(7)
    contents = {
        "text": b"label,file\n" * 300,
        "random": rng.randbytes(5000),
        "zeros": bytes(PAGE),
        "ones": b"\xff" * PAGE,
        "one-byte": b"\x05",
        "eleven-bytes": bytes(11),
        "png": b"\x89PNG\r\n\x1a\n" + rng.randbytes(500),
        "gzip-magic": b"\x1f\x8b",
        "zlib-magic": b"\x78\x9c",
        "header": header(5),
    }
    for name, data in contents.items():
        directory.add(f"plain-no-records-{name}", data, None, [], [(0, 0)])
    for name, compression in (("plain", None), ("gzip", "GZIP"), ("zlib", "ZLIB")):
        directory.add(f"{name}-empty", b"", compression, [], [])
    for name, compress in (("gzip", _gzip), ("zlib", zlib.compress)):
        directory.add(f"{name}-no-records", compress(contents["text"]), name.upper(), [], [(0, 0)])
        directory.add(f"{name}-nothing", compress(b""), name.upper(), [], [])


# Compressed files.


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


class _Compressed:
    """A valid file of compressed parts and its corruptions."""

    def __init__(
        self, directory: _Directory, name: str, parts: int, compress: Callable[[bytes], bytes]
    ) -> None:
        self.directory = directory
        self.name = name
        self.compression = "ZLIB" if name == "zlib" else "GZIP"
        self.rng = random.Random(len(name))
        records = directory.make(8, 48, [0, 8, 60, 300, 500])
        self.frames = [frame(record) for record in records]
        each = len(records) // parts
        self.parts = [
            compress(b"".join(self.frames[i : i + each])) for i in range(0, len(records), each)
        ]

    def add(self, kind: str, *parts: bytes, garbage: bool = False) -> None:
        """Add a file of these parts; if ``garbage``, the last one is not a member."""
        data = b"".join(parts)
        had = b""
        breaks: list[int] = []
        for number, part in enumerate(parts):
            # A part without its end continues with the next one.
            rest = part + b"".join(parts[number + 1 :])
            given, error = _inflate(rest, 31 if self.compression == "GZIP" else 15)
            had += given
            if error is not None and rest:
                breaks.append(len(had))
                break
        survivors, corruptions = _expect(had, self.frames, breaks)
        kind = f"{self.name}-{kind}"
        # The data after a corruption that zlib has not detected yet is not determined.
        first = corruptions[0] if corruptions else None
        only = corruptions if len(corruptions) == 0 or garbage else None
        self.directory.add(kind, data, self.compression, survivors, only, first)

    def corrupt(self, kind: str, part: int, corrupt: bytes) -> None:
        self.add(kind, *self.parts[:part], corrupt, *self.parts[part + 1 :])


def _add_compressed(directory: _Directory, file: _Compressed) -> None:
    rng, parts = file.rng, file.parts
    head, tail = (10, 8) if file.compression == "GZIP" else (2, 4)
    numbers = sorted({0, len(parts) // 2, len(parts) - 1})
    for number in numbers:
        part = parts[number]
        size = len(part)
        for _ in range(6):
            bit = rng.randrange(8 * head, 8 * (size - tail))
            file.corrupt("flip-data", number, flip(part, bit))
        for at in range(size - tail, size, 3):
            file.corrupt("flip-trailer", number, flip(part, 8 * at + rng.randrange(8)))
        middle = rng.randrange(head + 100, size - tail - 100)
        file.corrupt("zeros", number, part[:middle] + bytes(64) + part[middle + 64 :])
        file.corrupt("random", number, part[:middle] + rng.randbytes(64) + part[middle + 64 :])
        file.corrupt("insert", number, part[:middle] + rng.randbytes(5) + part[middle:])
        file.corrupt("delete", number, part[:middle] + part[middle + 5 :])
        for cut in (head, head + 1, middle, size - tail, size - 1):
            file.add("cut", *parts[:number], part[:cut])
    if len(parts) > 1:
        _add_members(file)
    if file.compression == "GZIP":
        for garbage in (b"x", rng.randbytes(500), bytes(512)):
            file.add("garbage-at-end", *parts, garbage, garbage=True)


def _add_members(file: _Compressed) -> None:
    """Corruption of whole members, or of their order."""
    rng, parts = file.rng, file.parts
    for number in range(len(parts)):
        part = parts[number]
        for bit in (0, 9, 17, 8 * 3 + 5):  # the two bytes of magic, the method, a reserved flag
            file.corrupt("flip-header", number, flip(part, bit))
        file.corrupt("zero-member", number, bytes(len(part)))
        file.corrupt("random-member", number, rng.randbytes(len(part)))
        file.corrupt("lost-header", number, part[10:])
        file.corrupt("zero-time", number, part[:4] + b"\1\2\3\4" + part[8:])
    for number in range(len(parts) - 1):
        two = parts[number], parts[number + 1]
        before, after = parts[:number], parts[number + 2 :]
        file.add("members-swapped", *before, two[1], two[0], *after)
        file.add("member-twice", *before, two[0], *two, *after)
        file.add("members-gone", *before, *after)
        # Zeros from the end of one, its checksum with it, into the next.
        zeros = bytes(40)
        file.add("zeros-over-both", *before, two[0][:-40] + zeros, zeros + two[1][40:], *after)
        file.add("trailer-and-next", *before, two[0][:-4] + bytes(4), bytes(len(two[1])), *after)


def corrupt_files(
    directory: Path, make: Callable[[int, int, Sequence[int]], list[bytes]] = make_records
) -> list[Case]:
    """Write several hundred small files to a directory, the same in every run.

    Args:
        directory: The directory.
        make: Function of a seed, a count and a list of sizes that returns the records.
    """
    made = _Directory(Path(directory), make)
    plain = _Plain(made, 1, 120, [0, 8, 30, 100, 250, 400])
    plain.add("unchanged", plain.data)
    for add in (_add_flips, _add_cuts, _add_shifts, _add_pages, _add_whole_frames):
        add(plain)
    for build in (_add_large, _add_neighbours, _add_nested, _add_claims, _add_others):
        build(made)
    for name, parts, compress in (
        ("gzip-members", 6, _gzip),
        ("gzip-stored", 4, lambda data: gzip.compress(data, 0, mtime=0)),
        ("gzip-stream", 1, _gzip),
        ("zlib", 1, zlib.compress),
    ):
        file = _Compressed(made, name, parts, compress)
        file.add("unchanged", *file.parts)
        _add_compressed(made, file)
    return made.cases
