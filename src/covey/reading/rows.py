"""Index rows of records: where they are stored, and the errors for those that cannot be read."""

from __future__ import annotations

import bisect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FormatError
from covey.index import Index, ShardFiles
from covey.schema.diagnostics import RecordLocation
from covey.tfrecord.block import FRAME_BYTES, longest_member

Ids = NDArray[np.int64]

# The common fields of rows of several tables.
_COMMON = np.dtype(
    [("length", "<u4"), ("offset", "<u8"), ("inner_offset", "<u8"), ("label", "<i8")]
)

_MAX_PINS = 64

# Larger offsets are not valid, and do not fit signed arithmetic.
_MAX_OFFSET = np.uint64(2**62)


class Pins:
    """Pins of files in the cache, which are not evicted until the pins are closed."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def add(self, descriptor: int) -> None:
        """Keep a pinned file open; only up to a number, as each needs a descriptor."""
        if len(self._descriptors) < _MAX_PINS:
            self._descriptors.append(os.dup(descriptor))

    def close(self) -> None:
        """Allow the cache to evict the files."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    __del__ = close


@dataclass(frozen=True, eq=False)
class Table:
    """A split to read from: its index and its shards."""

    index: Index
    files: ShardFiles
    origin: Table | None = None
    """The compressed shards, if the files are their decompressed copies."""
    copies: frozenset[str] = frozenset()
    """Paths of the copies in the cache."""
    pins: Pins | None = None
    """Pins of the copies."""

    @property
    def has_members(self) -> bool:
        """Whether records are read by decompressing one GZIP member."""
        return self.index.metadata.compression is not None


@dataclass(frozen=True, eq=False)
class Members:
    """The GZIP members of a shard."""

    edges: NDArray[np.int64]
    """The offset of each member, and the size of the shard."""
    longest: int
    """The maximum size of the decompressed data of a member."""


@dataclass(frozen=True, eq=False)
class Segments:
    """The bytes to read for records."""

    shards: NDArray[np.int64]
    """The shards, numbered through all tables."""
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    inner_offsets: NDArray[np.uint64]
    """The offsets of the frames in the segments, after decompression."""
    lengths: NDArray[np.uint64]
    """The sizes of the records."""


class IndexRows:
    """The index rows of one or more splits. Record ids and shards count through all of them.

    Args:
        tables: The splits.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tuple(tables)
        self._first_record = np.cumsum([0, *(len(each.index) for each in tables)]).tolist()
        shards = [len(each.index.metadata.shards) for each in tables]
        self._first_shard = np.cumsum([0, *shards]).tolist()
        self._members: dict[int, Members] = {}

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self._first_record[-1])

    @property
    def first_records(self) -> list[int]:
        """The id of the first record of each split."""
        return list(self._first_record[:-1])

    def table_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the position in `tables` of the split of each record."""
        return np.searchsorted(self._first_record, ids, side="right") - 1

    def take(self, ids: Ids) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the index rows of records, and their shards.

        Rows of several tables have only the common fields.

        Raises:
            IndexError: If an id is out of range.
            FormatError: If the index has a shard that does not exist.
        """
        if len(ids) and (ids.min() < -len(self) or ids.max() >= len(self)):
            wrong = ids[(ids < -len(self)) | (ids >= len(self))][0]
            raise out_of_range(int(wrong), len(self))
        ids = np.where(ids < 0, ids + len(self), ids)
        if len(self.tables) == 1:
            rows = self.tables[0].index.rows[ids]
            self.tables[0].index.check_read()
            return rows, self._check_shards(rows["shard"].astype(np.int64), 0)
        which = self.table_of(ids)
        common = np.zeros(len(ids), _COMMON)
        shards = np.zeros(len(ids), np.int64)
        for number in np.unique(which).tolist():
            mine = which == number
            rows = self.tables[number].index.rows[ids[mine] - self._first_record[number]]
            self.tables[number].index.check_read()
            for name in _COMMON.names or ():
                if name in (rows.dtype.names or ()):
                    common[name][mine] = rows[name]
            shards[mine] = self._check_shards(rows["shard"].astype(np.int64), number)
        return common, shards

    def _check_shards(self, shards: NDArray[np.int64], table: int) -> NDArray[np.int64]:
        """Return shard numbers through all tables; those of the index are not trusted."""
        count = len(self.tables[table].index.metadata.shards)
        if len(shards) and shards.max() >= count:
            raise FormatError(
                f"the index has a record in shard {shards.max()}, but there are {count} shards",
                path=self.tables[table].files.directory,
                remedy="rebuild the index with `covey index`",
            )
        numbered: NDArray[np.int64] = shards + self._first_shard[table]
        return numbered

    def lengths(self, ids: Ids) -> NDArray[np.int64]:
        """Return the sizes of records in bytes."""
        rows, _ = self.take(ids)
        return rows["length"].astype(np.int64)

    def labels(self, ids: Ids) -> NDArray[np.int64]:
        """Return the class ids of records."""
        rows, _ = self.take(ids)
        return np.ascontiguousarray(rows["label"])

    def location(self, record_id: int) -> RecordLocation:
        """Return the location of a record, for messages."""
        record_id += len(self) if record_id < 0 else 0
        table = bisect.bisect_right(self._first_record, record_id) - 1
        index = self.tables[table].index
        number = record_id - self._first_record[table]
        row = index.rows[number]
        index.check_read()
        shard = min(int(row["shard"]), len(index.metadata.shards) - 1)
        files = (self.tables[table].origin or self.tables[table]).files
        first = index.first_records[shard]
        return RecordLocation(files.paths[shard], number - first, int(row["offset"]))

    def segments(self, ids: Ids) -> Segments:
        """Return the bytes to read for records: frames, or GZIP members."""
        rows, shards = self.take(ids)
        begins = np.zeros(len(rows), np.int64)
        ends = np.zeros(len(rows), np.int64)
        inner_offsets = np.zeros(len(rows), np.uint64)
        table_of = np.searchsorted(self._first_shard, shards, side="right") - 1
        for number in np.unique(table_of).tolist():
            table, mine = self.tables[number], table_of == number
            begins[mine] = np.minimum(rows["offset"][mine], _MAX_OFFSET)
            if table.has_members:
                ends[mine] = self._member_ends(shards[mine], begins[mine])
                inner_offsets[mine] = rows["inner_offset"][mine]
            else:
                ends[mine] = begins[mine] + rows["length"][mine] + FRAME_BYTES
        return Segments(shards, begins, ends, inner_offsets, rows["length"].astype(np.uint64))

    def _member_ends(self, shards: NDArray[np.int64], begins: NDArray[np.int64]) -> Ids:
        """Return the ends of GZIP members: the begin of the next one, or the end of the shard."""
        ends = np.zeros(len(begins), np.int64)
        for shard in np.unique(shards).tolist():
            mine = shards == shard
            members = self.members(shard)
            assert members is not None
            following = np.searchsorted(members.edges, begins[mine], side="right")
            ends[mine] = members.edges[np.minimum(following, len(members.edges) - 1)]
        return ends

    def members(self, shard: int) -> Members | None:
        """Return the GZIP members of a shard; None if it does not consist of members."""
        found = self._members.get(shard)
        if found is None:
            number = bisect.bisect_right(self._first_shard, shard) - 1
            table = self.tables[number]
            if not table.has_members:
                return None
            found = find_members(table.index, shard - self._first_shard[number])
            self._members[shard] = found
        return found


def find_members(index: Index, shard: int) -> Members:
    """Return the GZIP members of a shard from the rows of its index."""
    first, end = index.first_records[shard : shard + 2]
    rows = index.rows[first:end]
    starts = np.unique(np.minimum(rows["offset"], _MAX_OFFSET)).astype(np.int64)
    edges = np.append(starts, index.metadata.shards[shard].bytes)
    return Members(edges, longest_member(rows["length"]))


def out_of_range(record_id: int, records: int) -> IndexError:
    """Return the error for a record id that a sequence of records does not have."""
    return IndexError(f"record id {record_id} is out of range; the number of records is {records}")
