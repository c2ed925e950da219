"""Records by their numbers: found in the index, checked, read and decoded.

Shards are mapped into memory, and the native core does all of it in one call. Shards of GZIP
members, and those that must not be mapped, are read instead.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._fork import ForkAware
from covey.errors import ClosedError, CoveyError, FormatError
from covey.reading.decompressed import MemberError, inflate_member
from covey.reading.faults import damaged, explain_fault
from covey.reading.local_shards import HeldShards, Table
from covey.reading.open_shards import OpenShards
from covey.schema import Features
from covey.schema.diagnostics import RecordLocation
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES

Ids = NDArray[np.int64]
Result = TypeVar("Result")

# Buffers, and for each record its buffer, its offset in it and its length.
_Frames = tuple[list[bytes], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]

# What the native core finds wrong with rows and shards, and not with the bytes of a record.
_OF_INDEX = ("row", "changed", "index", "length_mismatch", "label", "out_of_bounds")


class _MemberFaultError(Exception):
    """A GZIP member of a record cannot be decompressed."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class Gatherer(ForkAware):
    """Gathers records of some splits, which are numbered one after the other.

    Args:
        tables: The splits.
        verify: Whether to check the checksums of the data.
        map_files: Map shards into memory; False reads them, which is slower.
        cache_bytes: How much of remote and unpacked shards is kept on disk.

    Threads may share it. What it opened belongs to a process: another one opens it again.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        verify: bool = True,
        mmap: bool = True,
        cache_bytes: int | None = None,
    ) -> None:
        self.tables = tuple(tables)
        self._verify = verify
        self._cache_bytes = cache_bytes
        self._first_record = np.cumsum([0, *(len(each.index) for each in tables)]).tolist()
        shards = [len(each.index.metadata.shards) for each in tables]
        self._first_shard = np.cumsum([0, *shards]).tolist()
        members = [_has_members(each) for each in tables]
        self._map_files = mmap
        self._maps = mmap and not any(members)
        self._members = members
        self._opened: OpenShards | None = None
        self._closed = False
        super().__init__()

    def __len__(self) -> int:
        return int(self._first_record[-1])

    @property
    def first_records(self) -> list[int]:
        """The number of the first record of each split."""
        return list(self._first_record[:-1])

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "verify": self._verify,
            "mmap": self._map_files,
            "cache_bytes": self._cache_bytes,
        }
        return _restore, (self.tables, options)

    def _open(self) -> OpenShards:
        opened = self._opened
        if opened is not None and opened.process == os.getpid():
            return opened
        if self._closed:
            raise ClosedError("this dataset is closed; open it again")
        with self._lock:
            if self._opened is None or self._opened.process != os.getpid():
                self._opened = OpenShards(self.tables, self._cache_bytes)
            return self._opened

    def _reset_after_fork(self) -> OpenShards | None:
        opened, self._opened = self._opened, None
        return opened

    def close(self) -> None:
        """Close all files, and let go of all maps."""
        self._closed = True
        opened, self._opened = self._opened, None
        if opened is not None and opened.process == os.getpid():
            opened.shards.close()

    def decode(
        self,
        features: Features,
        ids: Ids,
        *,
        label: int = -1,
        out: Mapping[str, NDArray[Any]] | None = None,
    ) -> dict[str, Any]:
        """Records by column, in this order; numbers below 0 count from the end.

        Args:
            features: What to decode.
            ids: The numbers of the records.
            label: The native column to compare with the classes of the index, or -1.
            out: As for :meth:`Features.decode_batch`.
        """
        opened = self._open()
        check = self._check

        def run(decoder: _core.Decoder, dense: list[Any]) -> list[_core.GrownColumn | None]:
            if self._maps:
                decode = partial(opened.gather.decode, decoder, ids, check, label, dense)
                return self._from_maps(opened, ids, decode, _OF_INDEX)

            def decode_frames(frames: _Frames) -> list[_core.GrownColumn | None]:
                grown = decoder.decode_buffers(*frames, check, dense)
                self._check_labels(ids, None if label < 0 else dense[label])
                return grown

            return self._from_files(opened, ids, decode_frames, _OF_INDEX)

        return features.decode_with(run, len(ids), lambda row: self.place(int(ids[row])), out=out)

    def mapped(self, ids: Ids) -> tuple[_core.Gather, int] | None:
        """What the native core needs to read records by itself, and how much it should check.

        None if shards are not mapped, or must be fetched first. The shards of some records are
        mapped now, if they can be; of others, the native core tells that they are not.
        """
        opened = self._open()
        if not self._maps or opened.shards.is_remote:
            return None
        with contextlib.suppress(CoveyError):  # raised when they are read
            opened.map(opened.gather.missing(ids))
        return opened.gather, self._check

    @property
    def _check(self) -> int:
        return _core.CHECK_FRAME if self._verify else _core.CHECK_NOTHING

    def records(self, ids: Ids) -> list[bytes]:
        """The bytes of records."""
        opened = self._open()
        explained = (*_OF_INDEX, "data_checksum", "length_checksum")
        if self._maps:
            action = partial(opened.gather.slice, ids, self._verify)
            return self._from_maps(opened, ids, action, explained)
        return self._from_files(
            opened, ids, lambda frames: _core.read_records(*frames, self._verify), explained
        )

    # The rows of records.

    def rows(self, ids: Ids) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The index rows of records, and their shards, numbered through all tables.

        Of several tables, only the fields that all have are there.
        """
        ids = np.where(ids < 0, ids + len(self), ids)
        if len(ids) and (ids.min() < 0 or ids.max() >= len(self)):
            wrong = ids[(ids < 0) | (ids >= len(self))][0]
            raise IndexError(f"there is no record {wrong}; there are {len(self)}")
        if len(self.tables) == 1:
            rows = self.tables[0].index.rows[ids]
            self.tables[0].index.check_read()
            return rows, self._check_shards(rows["shard"].astype(np.int64), 0)
        which = np.searchsorted(self._first_record, ids, side="right") - 1
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
        """Number shards through all tables; an index may say anything."""
        count = len(self.tables[table].index.metadata.shards)
        if len(shards) and shards.max() >= count:
            raise FormatError(
                f"{self.tables[table].files.directory}: a row of the index is of shard "
                f"{shards.max()}, but there are {count}; index the dataset again"
            )
        numbered: NDArray[np.int64] = shards + self._first_shard[table]
        return numbered

    def lengths(self, ids: Ids) -> NDArray[np.int64]:
        """The bytes of records."""
        rows, _ = self.rows(ids)
        return rows["length"].astype(np.int64)

    def labels(self, ids: Ids) -> NDArray[np.int64]:
        """The classes of records, as the index has them."""
        rows, _ = self.rows(ids)
        return np.ascontiguousarray(rows["label"])

    def _check_labels(self, ids: Ids, found: NDArray[np.int64] | None) -> None:
        if found is None:
            return
        labels = self.labels(ids)
        for row in np.flatnonzero(found != labels)[:1].tolist():
            expected = int(labels[row]) % 2**64
            raise _core.Fault("label", row, found=int(found[row]) % 2**64, expected=expected)

    # What goes wrong.

    def place(self, number: int) -> RecordLocation:
        """Where a record is, for messages."""
        number += len(self) if number < 0 else 0
        table = bisect.bisect_right(self._first_record, number) - 1
        index = self.tables[table].index
        within = number - self._first_record[table]
        row = index.rows[within]
        shards = index.metadata.shards
        shard = min(int(row["shard"]), len(shards) - 1)
        before = index.first_records[shard]
        single_stream = index.metadata.single_stream
        offset = int(row["inner_offset"] if single_stream else row["offset"])
        return RecordLocation(self.tables[table].files.paths[shard], within - before, offset)

    def _explain(self, fault: _core.Fault, ids: Ids) -> NoReturn:
        number = int(ids[fault.row])
        if fault.code == "row":
            raise IndexError(f"there is no record {number}; there are {len(self)}") from None
        for table in self.tables:
            table.index.check_read()
        raise explain_fault(fault, self.place(number)) from None

    def _discard(
        self, opened: OpenShards, ids: Ids, row: int, discarded: set[int], code: str = ""
    ) -> bool:
        """Discard what the cache has of a record that seems corrupt, once for each row.

        Returns:
            Whether it is worth reading again.
        """
        if row in discarded or code in ("row", "changed", "index", "out_of_bounds"):
            return False
        discarded.add(row)
        rows, shards = self.rows(ids[row : row + 1])
        begins, ends, _ = self._segments(rows, shards)
        replaced = opened.shards.discard(shards, begins, ends)
        if replaced and self._maps:
            opened.map(replaced)
        return replaced is not None

    def _retry_or_raise(
        self,
        opened: OpenShards,
        ids: Ids,
        fault: _core.Fault,
        discarded: set[int],
        explained: Sequence[str],
    ) -> None:
        """Return if the record of a fault was cached and is worth reading again; else raise."""
        if self._discard(opened, ids, fault.row, discarded, fault.code):
            return
        if fault.code in explained:
            self._explain(fault, ids)
        raise fault

    # Reading from maps.

    def _from_maps(
        self, opened: OpenShards, ids: Ids, action: Callable[[], Result], explained: Sequence[str]
    ) -> Result:
        """What the native core does with records, once their shards are there and mapped.

        Args:
            opened: The shards.
            ids: The records.
            action: What is done with them.
            explained: The faults that are to be explained here.
        """
        discarded: set[int] = set()
        while True:
            held: HeldShards = ()
            if opened.shards.is_remote:
                rows, shards = self.rows(ids)
                begins, ends, _ = self._segments(rows, shards)
                held = opened.shards.fetch(shards, begins, ends, opened.map)
            try:
                result = action()
                if opened.shards.still_holds(held):
                    return result
            except _core.Fault as fault:
                if fault.code == "unmapped":
                    opened.map(opened.gather.missing(ids))
                elif opened.shards.still_holds(held):
                    self._retry_or_raise(opened, ids, fault, discarded, explained)

    # Reading instead of mapping.

    def _from_files(
        self,
        opened: OpenShards,
        ids: Ids,
        action: Callable[[_Frames], Result],
        explained: Sequence[str],
    ) -> Result:
        """What the native core does with the frames of records; see :meth:`_from_maps`."""
        discarded: set[int] = set()
        while True:
            frames = self._read(opened, ids, discarded)
            try:
                return action(frames)
            except _core.Fault as fault:
                self._retry_or_raise(opened, ids, fault, discarded, explained)

    def _read(self, opened: OpenShards, ids: Ids, discarded: set[int]) -> _Frames:
        """The frames of records, each in a buffer: what the native decoder takes."""
        rows, shards = self.rows(ids)
        begins, ends, within = self._segments(rows, shards)
        while True:
            held: HeldShards = ()
            if opened.shards.is_remote:
                held = opened.shards.fetch(shards, begins, ends, opened.shards.hold)
            try:
                frames = self._frames(opened, ids, rows, (shards, begins, ends, within))
                opened.shards.check_unchanged(np.unique(shards).tolist())
            except _MemberFaultError as fault:  # it is corrupt, or not there any more
                opened.shards.check_unchanged(np.unique(shards).tolist())
                row = fault.row
                if opened.shards.still_holds(held) and not self._discard(
                    opened, ids, row, discarded
                ):
                    raise damaged(self.place(int(ids[row])), str(fault)) from None
                continue
            if opened.shards.still_holds(held):
                break
        count = len(ids)
        offsets = np.full(count, HEADER_BYTES, np.uint64)
        return frames, np.arange(count, dtype=np.uint32), offsets, rows["length"].astype(np.uint64)

    def _frames(
        self, opened: OpenShards, ids: Ids, rows: NDArray[Any], chunks: tuple[NDArray[Any], ...]
    ) -> list[bytes]:
        shards, begins, ends, within = chunks
        frames = [b""] * len(ids)
        stops = (within + rows["length"] + np.uint64(FRAME_BYTES)).tolist()
        starts = within.tolist()
        last, data = (-1, -1), b""
        # By members, each of which is decompressed once, and no longer held than it is needed.
        for row in np.lexsort((begins, shards)).tolist():
            stretch = int(shards[row]), int(begins[row])
            if stretch != last:
                data = opened.shards.read(*stretch, int(ends[row]))
                data = self._inflate(opened, data, stretch[0], row)
                last = stretch
            frames[row] = data[starts[row] : stops[row]]
        return frames

    def _inflate(self, opened: OpenShards, data: bytes, shard: int, row: int) -> bytes:
        table = bisect.bisect_right(self._first_shard, shard) - 1
        if not self._members[table]:
            return data
        members = opened.members(self.tables[table], shard - self._first_shard[table])
        try:
            return inflate_member(data, members.longest)
        except MemberError as error:
            raise _MemberFaultError(row, str(error)) from None

    def _segments(
        self, rows: NDArray[Any], shards: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """What to read of shards for records: from, to, and where in it their frames begin."""
        begins = np.zeros(len(rows), np.int64)
        ends = np.zeros(len(rows), np.int64)
        within = np.zeros(len(rows), np.uint64)
        table_of = np.searchsorted(self._first_shard, shards, side="right") - 1
        for number in np.unique(table_of).tolist():
            mine = table_of == number
            if self._members[number]:
                begins[mine] = np.minimum(rows["offset"][mine], np.uint64(2**62))
                ends[mine] = self._member_ends(shards[mine], rows["offset"][mine], number)
                within[mine] = rows["inner_offset"][mine]
            else:
                single_stream = self.tables[number].index.metadata.single_stream
                at = rows["inner_offset" if single_stream else "offset"][mine]
                begins[mine] = np.minimum(at, np.uint64(2**62))
                ends[mine] = begins[mine] + rows["length"][mine] + FRAME_BYTES
        return begins, ends, within

    def _member_ends(
        self, shards: NDArray[np.int64], offsets: NDArray[np.uint64], table: int
    ) -> NDArray[np.int64]:
        """Where members end: where the next one begins, or the shard ends."""
        ends = np.zeros(len(offsets), np.int64)
        opened = self._open()
        for shard in np.unique(shards).tolist():
            mine = shards == shard
            edges = opened.members(self.tables[table], shard - self._first_shard[table]).edges
            following = np.searchsorted(edges, offsets[mine], side="right")
            ends[mine] = edges[np.minimum(following, len(edges) - 1)]
        return ends


# The fields of rows of several tables.
_COMMON = np.dtype(
    [("length", "<u4"), ("offset", "<u8"), ("inner_offset", "<u8"), ("label", "<i8")]
)


def _has_members(table: Table) -> bool:
    about = table.index.metadata
    return about.compression is not None and not about.single_stream


def _restore(tables: tuple[Table, ...], options: Mapping[str, Any]) -> Gatherer:
    return Gatherer(tables, **options)
