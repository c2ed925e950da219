"""Buckets of sorted records, by which several machines sort together.

Every run of records has a table of the buckets in it. The sum of the tables of all runs gives the
size of every bucket, from which the boundaries of the shards follow; a task then reads the same
buckets of all runs, and sorts them. A bucket is a range of the order:

=====================  =====================  ==============================
order                  ``major``              ``minor``
=====================  =====================  ==============================
hash                   0                      first bits of the hash
position               position / 2**32       bits 8 to 31 of the position
class, then hash       class id               first 8 bits of the hash
class, then position   class id               bits 12 to 63 of the position
=====================  =====================  ==============================
"""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey._core import crc32c
from covey.errors import FormatError
from covey.shuffle.external_sort import Run
from covey.shuffle.keys import ROW_DTYPE, ClassSizes, RecordOrder
from covey.storage import is_remote, open_storage
from covey.tfrecord.block import FRAME_BYTES

HASH_BITS = 12
"""Bits of the hash that number a bucket: 4,096 buckets."""
MAX_HASH_BITS = 18
_CLASS_HASH_BITS = 8
_BUCKET_BYTES = 16 << 20
_SCAN_ROWS = 1 << 20

TABLE_DTYPE = np.dtype(
    [("major", "<i8"), ("minor", "<u8"), ("records", "<u8"), ("bytes", "<u8")]  # sorted by bucket
)
# The table on disk: records, bytes and the CRC of the rows up to the end of each bucket.
_ENDS_DTYPE = np.dtype([*TABLE_DTYPE.descr, ("checksum", "<u8")])


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


def class_sizes(table: NDArray[Any]) -> ClassSizes:
    """Return the sizes of the classes of a table in an order by class."""
    labels, which = np.unique(table["major"], return_inverse=True)
    records, sizes = (
        np.bincount(which, table[name].astype(float), minlength=len(labels)).astype(np.int64)
        for name in ("records", "bytes")
    )
    return ClassSizes(labels, records, sizes)


# Runs on disk.


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
        return self.path, f"{_stem(self.path)}.rows", f"{_stem(self.path)}.table"


def _stem(path: str) -> str:
    return path.removesuffix(".frames")


def finish_run(run: Run, order: RecordOrder, bits: int) -> tuple[RunFile, NDArray[Any], int]:
    """Write the table of a run; return the run, the table and the length of the longest record."""
    rows: Any = np.zeros(0, ROW_DTYPE)
    if run.rows:
        rows = np.memmap(run.rows_path, ROW_DTYPE, "r", shape=(run.rows,))
    table = make_table(rows, order, bits)
    found = RunFile(str(run.path), run.rows, int(table["bytes"].sum()))
    ends = np.zeros(len(table), _ENDS_DTYPE)
    for name in ("major", "minor"):
        ends[name] = table[name]
    for name in ("records", "bytes"):
        ends[name] = np.cumsum(table[name])
    data, checksums = memoryview(rows.view(np.uint8)), [0]
    offsets = [0, *(ends["records"] * ROW_DTYPE.itemsize).tolist()]
    for begin, end in itertools.pairwise(offsets):
        checksums.append(crc32c(data[begin:end], checksums[-1]))
    ends["checksum"] = checksums[1:]
    ends.tofile(found.files[2])
    return found, table, int(rows["length"].max()) if run.rows else 0


class RunReader:
    """Reads buckets of a run.

    Args:
        run: The run.
        first: First bucket that is read (default: the first one of the run).
        last: Last bucket that is read (default: the last one of the run).
    """

    def __init__(
        self, run: RunFile, first: Bucket | None = None, last: Bucket | None = None
    ) -> None:
        self.run = run
        table = _open_ends(run)
        begin = 0 if first is None else _bisect(table, first, bisect.bisect_left)
        end = len(table) if last is None else _bisect(table, last, bisect.bisect_right)
        # Only these buckets are held: a task reads a few of many runs.
        self._table = np.array(table[begin:end])
        self._before = _ends_before(table, begin)

    def read(self, first: Bucket, last: Bucket, *, frames: bool = True) -> tuple[bytes, bytes]:
        """Return the rows and the frames of buckets.

        Args:
            first: First bucket.
            last: Last bucket, which is included.
            frames: Whether to read the frames.
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
        rows = _read_at(run, rows_path, row * size, (last_row - row) * size)
        if run.checksum is not None and crc32c(rows, crc) != last_crc:
            raise FormatError("the checksum of its rows does not match", path=rows_path)
        return rows, _read_at(run, data_path, offset, last_offset - offset) if frames else b""


def _bisect(table: NDArray[Any], bucket: Bucket, search: Callable[..., int]) -> int:
    """Find a bucket with few accesses to a mapped table."""
    return search(range(len(table)), bucket, key=lambda at: key_of(table[at]))


def _ends_before(table: NDArray[Any], at: int) -> tuple[int, int, int]:
    """Return the records, the bytes and the CRC of the rows before a bucket."""
    row = table[at - 1] if at else np.zeros((), _ENDS_DTYPE)
    return int(row["records"]), int(row["bytes"]), int(row["checksum"])


def _open_ends(run: RunFile) -> NDArray[Any]:
    """Return the table on disk, which has the sums of records and bytes up to each bucket."""
    path = run.files[2]
    if is_remote(path):
        data: Any = np.frombuffer(open_storage(path, run.storage_options).read(path), np.uint8)
    else:
        size = os.path.getsize(path)
        data = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
    if len(data) % _ENDS_DTYPE.itemsize:
        raise FormatError(f"it has {len(data):,} bytes; it is not a table of buckets", path=path)
    table: NDArray[Any] = data.view(_ENDS_DTYPE)
    if _ends_before(table, len(table))[:2] != (run.records, run.bytes):
        raise FormatError(f"the buckets do not have {run.records:,} records", path=path)
    return table


def read_table(run: RunFile) -> NDArray[Any]:
    """Return the table of a run.

    Raises:
        FormatError: If it is not the table of the run.
    """
    ends = _open_ends(run)
    if run.checksum is not None and crc32c(ends.tobytes()) != run.checksum:
        raise FormatError("the checksum does not match", path=run.files[2])
    table = np.zeros(len(ends), TABLE_DTYPE)
    for name in ("major", "minor"):
        table[name] = ends[name]
    for name in ("records", "bytes"):
        table[name] = np.diff(ends[name], prepend=np.uint64(0))
    major, minor = table["major"], table["minor"]
    is_after = (major[1:] > major[:-1]) | ((major[1:] == major[:-1]) & (minor[1:] > minor[:-1]))
    sizes = ((table["records"], run.records), (table["bytes"], run.bytes))
    if not is_after.all() or any(each.max(initial=0) > total for each, total in sizes):
        raise FormatError("the buckets are not sorted", path=run.files[2])
    return table


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


def remove_run(run: RunFile) -> None:
    """Delete the files of a run."""
    for path in run.files:
        Path(path).unlink(missing_ok=True)
