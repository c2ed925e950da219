"""Read, verify and decode records by their ids.

Shards are mapped into memory, and the native core reads all records of a batch in one call. Shards
of GZIP members, shards that must not be mapped, and datasets with too many shards for the maps of a
process, are read into buffers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._fork import ForkAware
from covey.errors import ClosedError, CoveyError
from covey.reading.decompressed import MemberError, decompress_to_cache, inflate_member
from covey.reading.open_files import MAPS, Reservations
from covey.reading.open_shards import OpenShards
from covey.reading.rows import (
    Ids,
    IndexRows,
    Segments,
    Table,
    corrupt_error,
    fault_error,
    out_of_range,
)
from covey.schema import Features
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES

Result = TypeVar("Result")

# Buffers, and for each record its buffer, its offset in the buffer and its length.
_Frames = tuple[list[bytes], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]

# Faults of index rows and shards, as opposed to those of the bytes of a record.
_INDEX_FAULTS = ("row", "changed", "index", "length_mismatch", "label", "out_of_bounds")


class _MemberFaultError(Exception):
    """The GZIP member of a record is corrupt."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class Gatherer(ForkAware):
    """Reads records of one or more splits. Record ids count through all of them.

    Threads may share it. A forked or unpickled copy opens the shards again.

    Args:
        tables: The splits.
        verify: Whether to verify the checksums of the data.
        mmap: Whether to map shards into memory; reading them is slower.
        cache_bytes: Size limit of the cache for remote and decompressed shards.
        maps: Maps that are left in the process. If the splits have more shards, they are read.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        verify: bool = True,
        mmap: bool = True,
        cache_bytes: int | None = None,
        maps: Reservations = MAPS,
    ) -> None:
        self.tables = tuple(tables)
        """The splits."""
        self.rows = IndexRows([decompress_to_cache(each, cache_bytes) for each in tables])
        self.options: dict[str, Any] = {"verify": verify, "mmap": mmap, "cache_bytes": cache_bytes}
        """The options, by name."""
        self._verify = verify
        self._cache_bytes = cache_bytes
        self._maps = (
            None if not mmap or any(each.has_members for each in self.rows.tables) else maps
        )
        self._opened: OpenShards | None = None
        self._closed = False
        super().__init__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.tables, self.options)

    def _open(self) -> OpenShards:
        opened = self._opened
        if opened is not None and opened.process == os.getpid():
            return opened
        if self._closed:
            raise ClosedError("the dataset is closed", remedy="open it again")
        with self._lock:
            if self._opened is None or self._opened.process != os.getpid():
                self._opened = OpenShards(self.rows.tables, self._cache_bytes, self._maps)
            return self._opened

    def _reset_after_fork(self) -> OpenShards | None:
        opened, self._opened = self._opened, None
        return opened

    def close(self) -> None:
        """Close all files."""
        self._closed = True
        opened, self._opened = self._opened, None
        if opened is not None and opened.process == os.getpid():
            opened.close()
        for table in self.rows.tables:
            if table.pins is not None:
                table.pins.close()

    def decode(
        self,
        features: Features,
        ids: Ids,
        *,
        label: int = -1,
        out: Mapping[str, NDArray[Any]] | None = None,
    ) -> dict[str, Any]:
        """Return the columns of records, in the order of their ids.

        Args:
            features: The features to decode.
            ids: The record ids; negative ones count from the end.
            label: The native column to compare with the class ids of the index, or -1.
            out: As for :meth:`Features.decode_batch`.
        """
        opened = self._open()
        check = self._check

        def run(decoder: _core.Decoder, dense: list[Any]) -> list[_core.GrownColumn | None]:
            if self._can_map(opened, ids):
                decode = partial(opened.gather.decode, decoder, ids, check, label, dense)
                return self._from_maps(opened, ids, decode, _INDEX_FAULTS)

            def decode_frames(frames: _Frames) -> list[_core.GrownColumn | None]:
                grown = decoder.decode_buffers(*frames, check, dense)
                self._check_labels(ids, None if label < 0 else dense[label])
                return grown

            return self._from_files(opened, ids, decode_frames, _INDEX_FAULTS)

        return features.decode_with(
            run, len(ids), lambda row: self.rows.location(int(ids[row])), out=out
        )

    def mapped(self, ids: Ids) -> tuple[_core.Gather, int] | None:
        """Return the native reader and its checks; None if shards are remote or are not mapped.

        The shards of `ids` are mapped now, if that is possible. The native reader reports shards
        that are not mapped.
        """
        opened = self._open()
        if not opened.is_mapped or opened.is_remote:
            return None
        with contextlib.suppress(CoveyError):  # raised again when the records are read
            opened.map(opened.gather.missing(ids))
        return opened.gather, self._check

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

    def _can_map(self, opened: OpenShards, ids: Ids) -> bool:
        """Return whether to read from maps; not if too many remote shards must be pinned."""
        if not opened.is_mapped or not opened.is_remote:
            return opened.is_mapped
        return len(np.unique(self.rows.take(ids)[1])) <= opened.max_pinned

    @property
    def _check(self) -> int:
        return _core.CHECK_FRAME if self._verify else _core.CHECK_NOTHING

    def records(self, ids: Ids) -> list[bytes]:
        """Return the serialized records."""
        opened = self._open()
        explained = (*_INDEX_FAULTS, "data_checksum", "length_checksum")
        if self._can_map(opened, ids):
            action = partial(opened.gather.slice, ids, self._verify)
            return self._from_maps(opened, ids, action, explained)
        return self._from_files(
            opened, ids, lambda frames: _core.read_records(*frames, self._verify), explained
        )

    def _check_labels(self, ids: Ids, found: NDArray[np.int64] | None) -> None:
        if found is None:
            return
        labels = self.rows.labels(ids)
        for row in np.flatnonzero(found != labels)[:1].tolist():
            expected = int(labels[row]) % 2**64
            raise _core.Fault("label", row, found=int(found[row]) % 2**64, expected=expected)

    # Errors.

    def _raise_fault(self, fault: _core.Fault, ids: Ids) -> NoReturn:
        record_id = int(ids[fault.row])
        if fault.code == "row":
            raise out_of_range(record_id, len(self.rows)) from None
        for table in self.rows.tables:
            table.index.check_read()
        raise fault_error(fault, self.rows.location(record_id)) from None

    def _discard(
        self, opened: OpenShards, ids: Ids, row: int, discarded: set[int], code: str = ""
    ) -> bool:
        """Remove a record that seems corrupt from the cache, once for each row.

        Returns:
            Whether to read it again.
        """
        if row in discarded or code in ("row", "changed", "index", "out_of_bounds"):
            return False
        discarded.add(row)
        replaced = opened.discard(self.rows.segments(ids[row : row + 1]))
        if replaced and opened.is_mapped:
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
        """Return if the record of a fault was in the cache and can be read again; else raise."""
        code, row = fault.code, fault.row
        if self._discard(opened, ids, row, discarded, code):
            return
        if code in explained:
            self._raise_fault(fault, ids)
        raise fault

    # Reading from maps.

    def _from_maps(
        self, opened: OpenShards, ids: Ids, action: Callable[[], Result], explained: Sequence[str]
    ) -> Result:
        """Return the result of the native core for records, once their shards are mapped.

        Args:
            opened: The shards.
            ids: The record ids.
            action: Calls the native core.
            explained: The faults that are converted into errors here.
        """
        discarded: set[int] = set()
        while True:
            try:
                if not opened.is_remote:
                    return action()
                segments = self.rows.segments(ids)
                with opened.fetched(segments, np.arange(len(ids))) as remote:
                    opened.map_pinned(remote)
                    return action()
            except _core.Fault as fault:
                if fault.code == "unmapped":
                    opened.map(opened.gather.missing(ids))
                else:
                    self._retry_or_raise(opened, ids, fault, discarded, explained)

    # Reading into buffers.

    def _from_files(
        self,
        opened: OpenShards,
        ids: Ids,
        action: Callable[[_Frames], Result],
        explained: Sequence[str],
    ) -> Result:
        """Return the result of the native core for frames of records, as `_from_maps` does."""
        discarded: set[int] = set()
        while True:
            try:
                return action(self._read(opened, ids))
            except _MemberFaultError as fault:
                if not self._discard(opened, ids, fault.row, discarded):
                    location = self.rows.location(int(ids[fault.row]))
                    raise corrupt_error(location, str(fault)) from None
            except _core.Fault as fault:
                self._retry_or_raise(opened, ids, fault, discarded, explained)

    def _read(self, opened: OpenShards, ids: Ids) -> _Frames:
        """Return the frames of records, each in a buffer, as the native decoder takes them."""
        segments = self.rows.segments(ids)
        frames = [b""] * len(ids)
        numbers = np.unique(segments.shards)
        for first in range(0, len(numbers), opened.max_pinned):
            part = numbers[first : first + opened.max_pinned]
            rows = np.flatnonzero(np.isin(segments.shards, part))
            try:
                with opened.fetched(segments, rows):
                    self._read_frames(opened, frames, segments, rows)
            except _MemberFaultError:
                opened.check_unchanged(part.tolist())
                raise
            opened.check_unchanged(part.tolist())
        count = len(ids)
        offsets = np.full(count, HEADER_BYTES, np.uint64)
        return frames, np.arange(count, dtype=np.uint32), offsets, segments.lengths

    def _read_frames(
        self,
        opened: OpenShards,
        frames: list[bytes],
        segments: Segments,
        rows: NDArray[np.intp],
    ) -> None:
        """Read the frames of some rows of a batch, ordered by segment: each is read once."""
        begins, shards, starts = segments.begins, segments.shards, segments.inner_offsets
        stops = starts + segments.lengths + np.uint64(FRAME_BYTES)
        last, data = (-1, -1), b""
        for row in rows[np.lexsort((begins[rows], shards[rows]))].tolist():
            segment = int(shards[row]), int(begins[row])
            if segment != last:
                data = opened.read(*segment, int(segments.ends[row]))
                data = self._inflate(data, segment[0], row)
                last = segment
            frames[row] = data[int(starts[row]) : int(stops[row])]

    def _inflate(self, data: bytes, shard: int, row: int) -> bytes:
        members = self.rows.members(shard)
        if members is None:
            return data
        try:
            return inflate_member(data, members.longest)
        except MemberError as error:
            raise _MemberFaultError(row, str(error)) from None


def _restore(tables: tuple[Table, ...], options: Mapping[str, Any]) -> Gatherer:
    return Gatherer(tables, **options)
