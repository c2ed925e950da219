"""External sort of records, by runs and buckets.

A spool holds records in an arena, up to a limit. What exceeds it is spilled to disk as sorted runs.
Every run has a table of the buckets in it. The sum of the tables of all runs gives the size of
every bucket, from which the boundaries of the shards follow; a shard then reads its buckets from
all runs, and sorts them. The order does not depend on the limit, nor on the number of runs.

A bucket is a range of the order:

=====================  =====================  ==============================
order                  ``major``              ``minor``
=====================  =====================  ==============================
hash                   0                      first bits of the hash
position               position / 2**32       bits 8 to 31 of the position
class, then hash       class id               first 8 bits of the hash
class, then position   class id               bits 12 to 63 of the position
=====================  =====================  ==============================

A run is in memory (:class:`MemoryRun`) or in files (:class:`RunFile`). The rows of a table of
columns are a run in memory whose records are encoded when they are copied.
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FormatError
from covey.shuffle.keys import ROW_DTYPE, RecordOrder, cut_by_bytes, join_rows, take_rows
from covey.storage import is_remote, open_storage
from covey.tfrecord import Block
from covey.tfrecord.block import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES

HASH_BITS = 12
"""Bits of the hash that number a bucket: 4,096 buckets."""
MAX_HASH_BITS = 18
_CLASS_HASH_BITS = 8
_BUCKET_BYTES = 16 << 20
_SCAN_ROWS = 1 << 20
_BUFFER_BYTES = 16 << 20
MIN_READ_BYTES = 1 << 18
"""Size below which a limit of memory does not lead to more reads."""

TABLE_DTYPE = np.dtype(
    [("major", "<i8"), ("minor", "<u8"), ("records", "<u8"), ("bytes", "<u8")]  # sorted by bucket
)
# The table on disk: records, bytes and the CRC of the rows up to the end of each bucket.
_ENDS_DTYPE = np.dtype([*TABLE_DTYPE.descr, ("checksum", "<u8")])


# Buckets.


class Bucket(NamedTuple):
    """Key of a bucket; buckets are compared like the records in them."""

    major: int
    minor: int


def hash_bits(size: int) -> int:
    """Return the number of bits of a bucket, for records of about ``size`` bytes.

    >>> hash_bits(0), hash_bits(1 << 40)
    (12, 16)
    """
    return min(MAX_HASH_BITS, max(HASH_BITS, (size // _BUCKET_BYTES).bit_length() - 1))


def bucket_of(
    rows: NDArray[Any], order: RecordOrder, bits: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the keys of the buckets of rows, as two columns."""
    if order.by == "hash":
        bits = _CLASS_HASH_BITS if order.by_class else bits
        minor = rows["high"] >> np.uint64(64 - bits)
        major = rows["label"] if order.by_class else np.zeros(len(rows), np.int64)
        return major, minor
    position = rows["position"]
    if order.by_class:
        return rows["label"], position >> np.uint64(12)
    major = (position >> np.uint64(32)).astype(np.int64)
    return major, position >> np.uint64(8) & np.uint64((1 << 24) - 1)


def make_table(rows: NDArray[Any], order: RecordOrder, bits: int = HASH_BITS) -> NDArray[Any]:
    """Return the table of the buckets of sorted rows."""
    parts = [np.zeros(0, TABLE_DTYPE)]
    for begin in range(0, len(rows), _SCAN_ROWS):
        part = rows[begin : begin + _SCAN_ROWS]
        major, minor = bucket_of(part, order, bits)
        is_first = np.ones(len(part), bool)
        is_first[1:] = (major[1:] != major[:-1]) | (minor[1:] != minor[:-1])
        first = np.flatnonzero(is_first)
        table = np.zeros(len(first), TABLE_DTYPE)
        table["major"], table["minor"] = major[first], minor[first]
        table["records"] = np.diff(first, append=len(part))
        table["bytes"] = np.add.reduceat(part["length"] + np.uint64(FRAME_BYTES), first)
        parts.append(table)
    return add_tables(parts)


def add_tables(tables: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the sum of tables."""
    joined = np.concatenate(tables)
    joined = joined[np.lexsort([joined["minor"], joined["major"]])]
    if not len(joined):
        return joined
    is_first = np.ones(len(joined), bool)
    is_first[1:] = (joined["major"][1:] != joined["major"][:-1]) | (
        joined["minor"][1:] != joined["minor"][:-1]
    )
    first = np.flatnonzero(is_first)
    total = joined[first]
    for name in ("records", "bytes"):
        total[name] = np.add.reduceat(joined[name], first)
    return total


def class_sizes(table: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the records and the bytes of each class, of a table in an order by class."""
    labels, which = np.unique(table["major"], return_inverse=True)
    records, sizes = (
        np.bincount(which, table[name].astype(float), minlength=len(labels)).astype(np.int64)
        for name in ("records", "bytes")
    )
    return records, sizes


def bucket_groups(table: NDArray[Any], size: int) -> Iterator[tuple[Bucket, Bucket]]:
    """Yield the first and the last bucket of ranges that have about ``size`` bytes each.

    Args:
        table: The buckets.
        size: Bytes of frames and rows; a range has at least one bucket.
    """
    ends = np.cumsum(table["bytes"] + table["records"] * np.uint64(ROW_DTYPE.itemsize))
    begin = 0
    while begin < len(table):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, np.uint64(before + size), side="right")))
        yield key_of(table[begin]), key_of(table[end - 1])
        begin = end


def key_of(row: Any) -> Bucket:
    """Return the key of a row of a table."""
    return Bucket(int(row["major"]), int(row["minor"]))


def _bisect(table: NDArray[Any], bucket: Bucket, search: Callable[..., int]) -> int:
    """Find a bucket with few accesses to a mapped table."""
    return search(range(len(table)), bucket, key=lambda at: key_of(table[at]))


# Records of runs.


@dataclass(frozen=True, slots=True)
class Records:
    """Sorted rows, and where their records are."""

    rows: NDArray[Any]
    buffers: list[Any]
    sources: NDArray[np.uint32]
    """Buffer of each record."""
    offsets: NDArray[np.uint64]
    """Offset of each record in its buffer."""
    encode: Callable[[NDArray[np.uint64]], Block] | None = None
    """Function that returns the records at some positions, in place of buffers."""

    def __getitem__(self, part: slice | NDArray[np.intp]) -> Records:
        """Return some of the records."""
        rows = self.rows[part] if isinstance(part, slice) else take_rows(self.rows, part)
        return Records(rows, self.buffers, self.sources[part], self.offsets[part], self.encode)

    def copy(self) -> Block:
        """Return the records in their frames, without gaps."""
        if self.encode is not None:
            return self.encode(self.rows["position"])
        lengths = np.ascontiguousarray(self.rows["length"])
        return Block(*_core.copy_frames(self.buffers, self.sources, self.offsets, lengths))


def join_records(found: Sequence[Records], order: RecordOrder) -> Records:
    """Return the records of the same buckets of several runs, sorted."""
    if len(found) == 1:
        return found[0]
    counts = [len(each.rows) for each in found]
    first = np.cumsum([0, *(len(each.buffers) for each in found)]).astype(np.uint32)
    sources = [each.sources + before for each, before in zip(found, first, strict=False)]
    joined = Records(
        join_rows(each.rows for each in found),
        [buffer for each in found for buffer in each.buffers],
        np.concatenate(sources) if counts else np.zeros(0, np.uint32),
        np.concatenate([np.zeros(0, np.uint64), *(each.offsets for each in found)]),
    )
    return joined[order.sort(joined.rows)]


@dataclass(frozen=True)
class MemoryRun:
    """A run in memory."""

    sorted: Records
    table: NDArray[Any]
    arena: Arena | None = None
    """The same records in the order in which they were added."""

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.sorted.rows)

    @property
    def bytes(self) -> int:
        """Bytes of the frames."""
        return int(self.table["bytes"].sum())

    @property
    def longest(self) -> int:
        """Bytes of the longest record."""
        return int(self.sorted.rows["length"].max(initial=0))

    def open(self, first: Bucket | None = None, last: Bucket | None = None) -> MemoryRun:
        """Return the run: all buckets are in memory."""
        return self

    def read(self, first: Bucket, last: Bucket, *, frames: bool = True) -> Records:
        """Return the records of some buckets; see :meth:`RunReader.read`."""
        begin = _bisect(self.table, first, bisect.bisect_left)
        end = _bisect(self.table, last, bisect.bisect_right)
        before = int(self.table["records"][:begin].sum())
        inside = int(self.table["records"][begin:end].sum())
        return self.sorted[before : before + inside]

    def save(self, path: Path) -> RunFile:
        """Write the run to disk."""
        found = RunFile(str(path), self.records, self.bytes)
        rows, (frames_path, rows_path, table_path) = self.sorted.rows, found.files
        with open(frames_path, "wb", buffering=0) as file:
            for begin, end in cut_by_bytes(rows["length"]):
                _write_all(file, self.sorted[begin:end].copy().data)
        with open(rows_path, "wb", buffering=0) as file:
            _write_all(file, rows)
        ends = np.zeros(len(self.table), _ENDS_DTYPE)
        for name in ("major", "minor"):
            ends[name] = self.table[name]
        for name in ("records", "bytes"):
            ends[name] = np.cumsum(self.table[name])
        data, checksums = memoryview(rows.view(np.uint8).data), [0]
        offsets = [0, *(ends["records"] * ROW_DTYPE.itemsize).tolist()]
        for begin, end in itertools.pairwise(offsets):
            checksums.append(_core.crc32c(data[begin:end], checksums[-1]))
        ends["checksum"] = checksums[1:]
        ends.tofile(table_path)
        return found


def _write_all(file: Any, data: NDArray[Any]) -> None:
    view = memoryview(np.ascontiguousarray(data).view(np.uint8).data)
    while view.nbytes:
        view = view[file.write(view) :]


def sort_rows(
    rows: NDArray[Any],
    order: RecordOrder,
    bits: int,
    encode: Callable[[NDArray[np.uint64]], Block],
) -> MemoryRun:
    """Return the run of a table, whose rows are encoded in their final order."""
    rows = take_rows(rows, order.sort(rows))
    sources, offsets = np.zeros(len(rows), np.uint32), np.zeros(len(rows), np.uint64)
    return MemoryRun(Records(rows, [], sources, offsets, encode), make_table(rows, order, bits))


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run on disk or at a URL, with its table."""

    path: str
    """File of the frames; those of the rows and of the table have the same stem."""
    records: int
    bytes: int
    storage_options: Mapping[str, Any] | None = None
    """Storage options, if the path is a URL."""
    checksum: int | None = None
    """CRC of the table, if another write has made the run: then all its files are verified."""
    strings: int | None = None
    """Number of strings that the class ids of its rows refer to, if these are to be verified."""

    @property
    def files(self) -> tuple[str, str, str]:
        """The files of the frames, of the rows and of the table."""
        stem = self.path.removesuffix(".frames")
        return self.path, f"{stem}.rows", f"{stem}.table"

    @property
    def table(self) -> NDArray[Any]:
        """The table of the run.

        Raises:
            FormatError: If it is not the table of the run.
        """
        ends = self.open_ends()
        if self.checksum is not None and _core.crc32c(ends.tobytes()) != self.checksum:
            raise FormatError("the checksum does not match", path=self.files[2])
        table = np.zeros(len(ends), TABLE_DTYPE)
        for name in ("major", "minor"):
            table[name] = ends[name]
        for name in ("records", "bytes"):
            table[name] = np.diff(ends[name], prepend=np.uint64(0))
        major, minor = table["major"], table["minor"]
        is_after = (major[1:] > major[:-1]) | ((major[1:] == major[:-1]) & (minor[1:] > minor[:-1]))
        sizes = ((table["records"], self.records), (table["bytes"], self.bytes))
        if not is_after.all() or any(each.max(initial=0) > total for each, total in sizes):
            raise FormatError("the buckets are not sorted", path=self.files[2])
        return table

    def open_ends(self) -> NDArray[Any]:
        """Return the table on disk, which has the sums of records and bytes up to each bucket."""
        path = self.files[2]
        if is_remote(path):
            data: Any = np.frombuffer(open_storage(path, self.storage_options).read(path), np.uint8)
        else:
            size = os.path.getsize(path)
            data = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
        if len(data) % _ENDS_DTYPE.itemsize:
            raise FormatError(
                f"it has {len(data):,} bytes; it is not a table of buckets", path=path
            )
        table: NDArray[Any] = data.view(_ENDS_DTYPE)
        if _ends_before(table, len(table))[:2] != (self.records, self.bytes):
            raise FormatError(f"the buckets do not have {self.records:,} records", path=path)
        return table

    def open(self, first: Bucket | None = None, last: Bucket | None = None) -> RunReader:
        """Return a reader of some buckets (default: of all)."""
        return RunReader(self, first, last)

    def remove(self) -> None:
        """Delete the files of a run in a directory."""
        for path in self.files:
            Path(path).unlink(missing_ok=True)


Run = MemoryRun | RunFile


class RunReader:
    """Reads buckets of a run in files.

    Args:
        run: The run.
        first: First bucket that is read (default: the first one of the run).
        last: Last bucket that is read (default: the last one of the run).
    """

    def __init__(
        self, run: RunFile, first: Bucket | None = None, last: Bucket | None = None
    ) -> None:
        self.run = run
        table = run.open_ends()
        begin = 0 if first is None else _bisect(table, first, bisect.bisect_left)
        end = len(table) if last is None else _bisect(table, last, bisect.bisect_right)
        # Only these buckets are held: a task reads a few of many runs.
        self._table = np.array(table[begin:end])
        self._before = _ends_before(table, begin)

    def read(self, first: Bucket, last: Bucket, *, frames: bool = True) -> Records:
        """Return the records of some buckets.

        Args:
            first: First bucket.
            last: Last bucket, which is included.
            frames: Whether to read the frames.

        Raises:
            FormatError: If the files are corrupt.
        """
        begin = _bisect(self._table, first, bisect.bisect_left)
        end = _bisect(self._table, last, bisect.bisect_right)
        (row, offset, crc), (last_row, last_offset, last_crc) = (
            _ends_before(self._table, at) if at else self._before for at in (begin, end)
        )
        run, (data_path, rows_path, table_path) = self.run, self.run.files
        if not (0 <= row <= last_row <= run.records and 0 <= offset <= last_offset <= run.bytes):
            raise FormatError("the buckets are not those of its records", path=table_path)
        size = ROW_DTYPE.itemsize
        stored = _read_at(run, rows_path, row * size, (last_row - row) * size)
        if run.checksum is not None and _core.crc32c(stored, crc) != last_crc:
            raise FormatError("the checksum of its rows does not match", path=rows_path)
        data = _read_at(run, data_path, offset, last_offset - offset) if frames else b""
        rows = np.frombuffer(stored, ROW_DTYPE)
        if len(rows):
            _check_rows(rows, data, run, frames)
        sizes = rows["length"] + np.uint64(FRAME_BYTES)
        offsets = np.cumsum(sizes) - sizes + np.uint64(HEADER_BYTES)
        buffer = np.frombuffer(data, np.uint8)
        return Records(rows, [buffer], np.zeros(len(rows), np.uint32), offsets)


def _check_rows(rows: NDArray[Any], data: bytes, run: RunFile, frames: bool) -> None:
    """Check that the lengths of rows are those of the frames, and that class ids have strings.

    Raises:
        FormatError: If they are not, or a frame of a part is corrupt.
    """
    lengths, labels = rows["length"], rows["label"]
    if run.strings is not None and not 0 <= labels.min() <= labels.max() < run.strings:
        raise FormatError("a class id has no string", path=run.files[1])
    if not frames:
        return
    size = int(lengths.sum()) + FRAME_BYTES * len(rows)
    is_valid = int(lengths.max()) <= len(data) and size == len(data)
    if is_valid and run.checksum is not None:
        _, found, read, _, fault = _core.scan_frames(data, len(rows), _core.VERIFY_ALL)
        is_valid = fault is None and read == len(data) and np.array_equal(found, lengths)
    if not is_valid:
        raise FormatError("the frames are corrupt, or not those of the rows", path=run.path)


def _ends_before(table: NDArray[Any], at: int) -> tuple[int, int, int]:
    """Return the records, the bytes and the CRC of the rows before a bucket."""
    row = table[at - 1] if at else np.zeros((), _ENDS_DTYPE)
    return int(row["records"]), int(row["bytes"]), int(row["checksum"])


def _read_at(run: RunFile, path: str, offset: int, size: int) -> bytes:
    if not size:
        return b""
    opened = (
        open_storage(path, run.storage_options).open_stream(path)
        if is_remote(path)
        else open(path, "rb", buffering=0)  # noqa: SIM115
    )
    with opened as file:
        file.seek(offset)
        data = file.read(size)
        while len(data) < size:  # reads of more than 2 GiB are short
            part = file.read(size - len(data))
            if not part:
                raise FormatError(
                    f"it has {offset + len(data):,} bytes; must have {offset + size:,}", path=path
                )
            data += part
    return data


def scan(run: Run, size: int) -> Iterator[tuple[Block, NDArray[Any]]]:
    """Yield all records of a run with their rows, about ``size`` bytes at a time."""
    if isinstance(run, MemoryRun) and run.arena is not None:
        yield from run.arena.blocks()
        return
    reader = run.open()
    for first, last in bucket_groups(run.table, max(size, MIN_READ_BYTES)):
        found = reader.read(first, last)
        if isinstance(run, MemoryRun):
            yield found.copy(), found.rows
        else:
            lengths = np.ascontiguousarray(found.rows["length"])
            yield Block(found.buffers[0], found.offsets, lengths), found.rows


def scan_rows(run: Run, size: int) -> Iterator[NDArray[Any]]:
    """Yield the rows of all records of a run, about ``size`` bytes at a time."""
    reader = run.open()
    for first, last in bucket_groups(run.table, max(size, MIN_READ_BYTES)):
        yield reader.read(first, last, frames=False).rows


# Spools.


class Arena:
    """Blocks of records, copied into buffers, with their rows.

    The buffers are reused after :meth:`clear`: memory that the process has not touched before is
    slow, because the operating system provides it page by page.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes of the frames and rows."""
        self._buffers: list[NDArray[np.uint8]] = []
        self._used = 0  # bytes of the current buffer
        self._parts: list[tuple[int, NDArray[np.uint64], NDArray[Any]]] = []

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._parts)

    def add(self, block: Block, rows: NDArray[Any]) -> None:
        """Copy a block, whose frames are contiguous."""
        begin = int(block.offsets[0]) - HEADER_BYTES
        end = int(block.offsets[-1] + block.lengths[-1]) + FOOTER_BYTES
        at = self._parts[-1][0] if self._parts else 0
        if self._parts and self._used + end - begin > len(self._buffers[at]):
            at, self._used = at + 1, 0
        if at == len(self._buffers):
            self._buffers.append(np.empty(max(_BUFFER_BYTES, end - begin), np.uint8))
        elif self._used == 0 and end - begin > len(self._buffers[at]):
            self._buffers[at] = np.empty(end - begin, np.uint8)
        target = self._buffers[at][self._used : self._used + end - begin]
        target[:] = np.frombuffer(block.data, np.uint8)[begin:end]
        shift = np.uint64((self._used - begin) % 2**64)  # the sum wraps around
        self._parts.append((at, block.offsets + shift, rows))
        self._used += end - begin
        self.bytes += end - begin + rows.nbytes

    def clear(self) -> None:
        """Remove all blocks; keep the buffers."""
        self._parts, self._used, self.bytes = [], 0, 0

    def sort(self, order: RecordOrder, bits: int) -> MemoryRun:
        """Return the records as a run, which is valid until they are removed."""
        buffers, offsets, parts = zip(*self._parts, strict=True)
        sources = np.repeat(np.array(buffers, np.uint32), [len(part) for part in parts])
        rows = join_rows(parts)
        found = Records(rows, list(self._buffers), sources, np.concatenate(offsets))
        found = found[order.sort(rows)]
        return MemoryRun(found, make_table(found.rows, order, bits), self)

    def blocks(self) -> Iterator[tuple[Block, NDArray[Any]]]:
        """Yield all blocks, with their rows."""
        for at, offsets, rows in self._parts:
            yield Block(self._buffers[at], offsets, np.ascontiguousarray(rows["length"])), rows


class Spool:
    """Records that are added in any order, and become sorted runs.

    Args:
        directory: Directory of the runs.
        memory_limit: Approximate number of bytes in memory.
        order: Sort order.
        bits: Bits of the hash that number a bucket.
        prefix: Prefix of the names of the files, if several spools share the directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory_limit: int,
        order: RecordOrder,
        bits: int = HASH_BITS,
        prefix: str = "",
    ) -> None:
        self.order = order
        self.longest = 0
        """Bytes of the longest record that was spilled."""
        self._directory = directory
        self._memory_limit = memory_limit
        self._bits = bits
        self._prefix = prefix
        self._arena = Arena()
        self._files: list[RunFile] = []
        self._tables: list[NDArray[Any]] = []

    def add(self, block: Block, rows: NDArray[Any]) -> None:
        """Add records with their rows, which are sorted by position."""
        if len(block):
            self._arena.add(block, rows)
            if self._arena.bytes >= self._memory_limit:
                self.spill()

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self._arena.bytes

    def spill(self, *, keep_buffers: bool = True) -> None:
        """Sort the records in memory, and write them to disk as a run.

        Args:
            keep_buffers: Whether the next records use the same memory.
        """
        if len(self._arena):
            run = self._arena.sort(self.order, self._bits)
            name = f"{self._prefix}run-{len(self._files):06d}.frames"
            self._files.append(run.save(self._directory / name))
            self._tables.append(run.table)
            self.longest = max(self.longest, run.longest)
            self._arena.clear()
            if not keep_buffers:
                self._arena = Arena()

    def blocks(self) -> Iterator[Block]:
        """Yield all records, in any order."""
        for run in self._files:
            for block, _ in scan(run, self._memory_limit // 8):
                yield block
        yield from (block for block, _ in self._arena.blocks())

    def finish(self, *, in_memory: bool = False) -> Sorted:
        """Return all records; the spool is empty then.

        Args:
            in_memory: Whether the run remains in memory if no record was spilled.
        """
        if in_memory and not self._files and len(self._arena):
            run = self._arena.sort(self.order, self._bits)
            found = Sorted((run,), run.table, run.longest)
        else:
            self.spill()
            table = add_tables([np.zeros(0, TABLE_DTYPE), *self._tables])
            found = Sorted(tuple(self._files), table, self.longest)
        self._arena, self._files, self._tables = Arena(), [], []
        return found


class Sorted(NamedTuple):
    """Records as sorted runs."""

    runs: tuple[Run, ...]
    table: NDArray[Any]
    """Buckets of all runs."""
    longest: int
    """Bytes of the longest record."""


def limit_memory(spools: Iterable[Spool], limit: int) -> None:
    """Spill several spools if they hold more than a number of bytes together."""
    found = list(spools)
    if len(found) > 1 and sum(each.held for each in found) >= limit:
        for each in found:
            each.spill(keep_buffers=False)
