"""Read, verify and decode records by their ids: their index rows, and their bytes.

Shards are mapped into memory, and the native core reads all records of a batch in one call. Shards
of GZIP members, shards that must not be mapped, and datasets with too many shards for the maps of a
process, are read into buffers.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import ClosedError, CorruptRecordError, CoveyError, FormatError
from covey.index import Index, ShardFiles
from covey.reading.shards import MAX_MAPS, Shards
from covey.schema import Features
from covey.schema.diagnostics import RecordLocation, corrupt_error, record_error
from covey.schema.types import InconsistentColumnsError
from covey.splits import out_of_range
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES, longest_member

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


Result = TypeVar("Result")

# Buffers, and for each record its buffer, its offset in the buffer and its length.
Frames = tuple[list[bytes], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]

# Faults of ids, of the index or of a shard, which reading again does not change.
_FINAL_FAULTS = ("row", "changed", "index", "out_of_bounds")


class Gatherer:
    """Reads records of one or more splits. Record ids count through all of them.

    Threads may share it. A forked or unpickled copy opens the shards again.

    Args:
        tables: The splits.
        verify: Whether to verify the checksums of the data.
        mmap: Whether to map shards into memory; reading them is slower.
        cache_bytes: Size limit of the cache for remote and decompressed shards.
        max_maps: Maximum number of shards that the process maps; further ones are read.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        verify: bool = True,
        mmap: bool = True,
        cache_bytes: int | None = None,
        max_maps: int = MAX_MAPS,
    ) -> None:
        self.tables = tuple(tables)
        """The splits."""
        self.rows = IndexRows([_plain(each, cache_bytes) for each in tables])
        self.options: dict[str, Any] = {"verify": verify, "mmap": mmap, "cache_bytes": cache_bytes}
        """The options, by name."""
        self._check = _core.CHECK_FRAME if verify else _core.CHECK_NOTHING
        self._cache_bytes = cache_bytes
        has_members = any(each.has_members for each in self.rows.tables)
        self._max_maps = 0 if not mmap or has_members else max_maps
        # By process: a forked child does not use, or close, the shards of its parent.
        self._opened: dict[int, Shards] = {}
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.tables, self.options)

    def _open(self) -> Shards:
        opened = self._opened.get(os.getpid())
        if opened is not None:
            return opened
        if self._closed:
            raise ClosedError("the dataset is closed", remedy="open it again")
        shards = Shards(self.rows.tables, self._cache_bytes, self._max_maps)
        return self._opened.setdefault(os.getpid(), shards)

    def close(self) -> None:
        """Close all files."""
        self._closed = True
        opened = self._opened.pop(os.getpid(), None)
        if opened is not None:
            opened.close()
        for table in self.rows.tables:
            if table.pins is not None:
                table.pins.close()

    def decode(self, features: Features, ids: Ids, *, label: int = -1) -> dict[str, Any]:
        """Return the columns of records, in the order of their ids.

        Args:
            features: The features to decode.
            ids: The record ids; negative ones count from the end.
            label: The native column to compare with the class ids of the index, or -1.
        """
        decoder = features.decoder
        dense = decoder.allocate(len(ids))

        def decode(source: _core.Gather | Frames) -> list[_core.GrownColumn | None]:
            if not isinstance(source, tuple):
                return source.decode(decoder.native, ids, self._check, label, dense)
            grown = decoder.native.decode_buffers(*source, self._check, dense)
            self._check_labels(ids, None if label < 0 else dense[label])
            return grown

        try:
            return decoder.assemble(dense, self._read(ids, decode), len(ids))
        except (_core.Fault, InconsistentColumnsError) as fault:
            raise decoder.error(fault, self.rows.location(int(ids[fault.row]))) from None

    def records(self, ids: Ids) -> list[bytes]:
        """Return the serialized records."""
        verify = self._check == _core.CHECK_FRAME

        def read(source: _core.Gather | Frames) -> list[bytes]:
            if isinstance(source, tuple):
                return _core.read_records(*source, verify)
            return source.slice(ids, verify)

        try:
            return self._read(ids, read)
        except _core.Fault as fault:
            raise record_error(fault, self.rows.location(int(ids[fault.row]))) from None

    def mapped(self, ids: Ids) -> tuple[_core.Gather, int] | None:
        """Return the native reader and its checks; None if shards are remote or are not mapped.

        The native reader reports shards that cannot be mapped.
        """
        shards = self._open()
        if shards.is_remote:
            return None
        with contextlib.suppress(CoveyError):  # raised again when the records are read
            shards.map_all()
        return (shards.gather, self._check) if shards.is_mapped else None

    @property
    def is_remote(self) -> bool:
        """Whether shards are remote."""
        return any(table.files.storage.is_remote for table in self.rows.tables)

    def prefetch(self, ids: Ids, limit: int) -> int | None:
        """Start to fetch remote records into the cache, so that reading them does not wait.

        Returns:
            The bytes that were requested, without those in the cache; None if more than `limit`
            bytes, or more than the cache has room for, are missing.
        """
        with contextlib.suppress(CoveyError):  # raised again when the records are read
            return self._open().prefetch(self.rows.segments(ids), limit)
        return 0

    def _check_labels(self, ids: Ids, found: NDArray[np.int64] | None) -> None:
        if found is None:
            return
        labels = self.rows.labels(ids)
        for row in np.flatnonzero(found != labels)[:1].tolist():
            expected = int(labels[row]) % 2**64
            raise _core.Fault("label", row, found=int(found[row]) % 2**64, expected=expected)

    def _read(self, ids: Ids, action: Callable[[_core.Gather | Frames], Result]) -> Result:
        """Return the result of `action` for the mapped shards, or for the frames of the records.

        Records that seem corrupt are fetched once more if they were cached.
        """
        shards, is_fresh = self._open(), False
        while True:
            try:
                if shards.is_mapped and not shards.is_remote:
                    return action(shards.gather)
                segments = self.rows.segments(ids)
                parts = list(shards.parts(segments.shards))
                if not shards.is_mapped or len(parts) > 1:
                    return action(self._frames(shards, ids, segments, parts))
                with shards.fetched(segments, np.arange(len(ids))):
                    return action(shards.gather)
            except (_core.Fault, CorruptRecordError) as fault:
                code = fault.code if isinstance(fault, _core.Fault) else "member"
                if code == "unmapped":
                    shards.map(shards.gather.missing(ids))
                elif (
                    is_fresh or code in _FINAL_FAULTS or not shards.discard(self.rows.segments(ids))
                ):
                    raise
                else:
                    is_fresh = True

    def _frames(
        self, shards: Shards, ids: Ids, segments: Segments, parts: Sequence[NDArray[np.intp]]
    ) -> Frames:
        """Return the frames of records, each in a buffer, as the native decoder takes them."""
        frames = [b""] * len(ids)
        for rows in parts:
            with shards.fetched(segments, rows):
                for number in np.unique(segments.shards[rows]).tolist():
                    mine = rows[segments.shards[rows] == number]
                    with shards.reader(number) as read:
                        self._read_shard(read, number, ids, segments, mine, frames)
        count = len(ids)
        offsets = np.full(count, HEADER_BYTES, np.uint64)
        return frames, np.arange(count, dtype=np.uint32), offsets, segments.lengths

    def _read_shard(
        self,
        read: Callable[[int, int], bytes],
        number: int,
        ids: Ids,
        segments: Segments,
        rows: NDArray[np.intp],
        frames: list[bytes],
    ) -> None:
        """Read the frames of some rows of a batch from their shard; each segment once."""
        members = self.rows.members(number)
        if members is not None:
            from covey.reading.decompressed import MemberError, inflate_member
        last, data = -1, b""
        for row in rows[np.argsort(segments.begins[rows], kind="stable")].tolist():
            begin, start = int(segments.begins[row]), int(segments.inner_offsets[row])
            if begin != last:
                last, data = begin, read(begin, int(segments.ends[row]) - begin)
                if members is not None:
                    try:
                        data = inflate_member(data, members.longest)
                    except MemberError as error:
                        location = self.rows.location(int(ids[row]))
                        raise corrupt_error(location, str(error)) from None
            frames[row] = data[start : start + int(segments.lengths[row]) + FRAME_BYTES]


def _plain(table: Table, cache_bytes: int | None) -> Table:
    """Return a table without compressed shards that can only be read from their beginning."""
    if not table.index.metadata.single_stream:
        return table
    from covey.reading.decompressed import decompress_to_cache

    return decompress_to_cache(table, cache_bytes)


def _restore(tables: tuple[Table, ...], options: Mapping[str, Any]) -> Gatherer:
    return Gatherer(tables, **options)
