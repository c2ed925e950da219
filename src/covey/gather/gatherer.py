"""Records by their numbers: found in the index, checked, read and decoded.

Shards are mapped into memory, and the native core does all of it in one call. Shards of GZIP
members, and those that must not be mapped, are read instead.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import ClosedError, CorruptRecordError, DatasetError, FormatError
from covey.features import Features
from covey.features.explain import Place
from covey.gather.members import MemberError, inflate_member
from covey.gather.shards import LocalShards, Table
from covey.records.block import FRAME_BYTES, HEADER_BYTES

Ids = NDArray[np.int64]


class Gatherer:
    """Gathers records of some splits, which are numbered one after the other.

    Args:
        tables: The splits.
        verify: Whether to check the checksums of the data.
        map_files: Whether to map shards into memory; False reads them, which is slower, but sound
            even if somebody cuts a shard at the same moment.
        cache_bytes: How much of remote and unpacked shards is kept on disk.

    Threads may share it. What it opened belongs to a process: another one opens it again.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        verify: bool = True,
        map_files: bool = True,
        cache_bytes: int | None = None,
    ) -> None:
        self.tables = tuple(tables)
        self._options = {"verify": verify, "map_files": map_files, "cache_bytes": cache_bytes}
        self._verify = verify
        self._cache_bytes = cache_bytes
        self._first_record = np.cumsum([0, *(len(each.index) for each in tables)]).tolist()
        shards = [len(each.index.about.shards) for each in tables]
        self._first_shard = np.cumsum([0, *shards]).tolist()
        members = [_has_members(each) for each in tables]
        self._maps = map_files and not any(members)
        self._members = members
        self._opened: _Opened | None = None
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return int(self._first_record[-1])

    @property
    def first_records(self) -> list[int]:
        """The number of the first record of each split."""
        return list(self._first_record[:-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.tables, self._options)

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is not None and opened.process == os.getpid():
            return opened
        if self._closed:
            raise ClosedError("this dataset is closed; open it again")
        # Whoever forked may have held the lock in another thread, which is not here.
        if opened is not None and opened.process != os.getpid():
            self._lock = threading.Lock()
        with self._lock:
            if self._opened is None or self._opened.process != os.getpid():
                self._opened = _Opened(self.tables, self._cache_bytes)
            return self._opened

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
        check = _core.CHECK_FRAME if self._verify else _core.CHECK_NOTHING

        def run(decoder: _core.Decoder, dense: list[Any]) -> list[_core.GrownColumn | None]:
            if self._maps:
                while True:
                    opened.fetch(self, ids)
                    try:
                        return opened.gather.decode(decoder, ids, check, label, dense)
                    except _core.Fault as fault:
                        self._mend(opened, fault, ids)
            buffers, sources, offsets, lengths = self._read(opened, ids)
            grown = decoder.decode_places(buffers, sources, offsets, lengths, check, dense)
            self._check_labels(ids, None if label < 0 else dense[label])
            return grown

        return features.decode_with(run, len(ids), lambda row: self._place(int(ids[row])), out=out)

    def records(self, ids: Ids) -> list[bytes]:
        """The bytes of records."""
        opened = self._open()
        if self._maps:
            while True:
                opened.fetch(self, ids)
                try:
                    return opened.gather.slice(ids, self._verify)
                except _core.Fault as fault:
                    if fault.args[0] in ("data_checksum", "length_checksum"):
                        self._explain(fault, ids)
                    self._mend(opened, fault, ids)
        buffers, sources, offsets, lengths = self._read(opened, ids)
        try:
            return _core.read_records(buffers, sources, offsets, lengths, self._verify)
        except _core.Fault as fault:
            self._explain(fault, ids)

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
            return rows, self._check_shards(rows["shard"].astype(np.int64), 0)
        which = np.searchsorted(self._first_record, ids, side="right") - 1
        common = np.zeros(len(ids), _COMMON)
        shards = np.zeros(len(ids), np.int64)
        for number in np.unique(which).tolist():
            mine = which == number
            rows = self.tables[number].index.rows[ids[mine] - self._first_record[number]]
            for name in _COMMON.names or ():
                if name in (rows.dtype.names or ()):
                    common[name][mine] = rows[name]
            shards[mine] = self._check_shards(rows["shard"].astype(np.int64), number)
        return common, shards

    def _check_shards(self, shards: NDArray[np.int64], table: int) -> NDArray[np.int64]:
        """Number shards through all tables; an index may say anything."""
        count = len(self.tables[table].index.about.shards)
        if len(shards) and shards.max() >= count:
            raise FormatError(
                f"{self.tables[table].files.folder}: a row of the index is of shard "
                f"{shards.max()}, but there are {count}; index the dataset anew"
            )
        numbered: NDArray[np.int64] = shards + self._first_shard[table]
        return numbered

    def labels(self, ids: Ids) -> NDArray[np.int64]:
        """The classes of records, as the index has them."""
        rows, _ = self.rows(ids)
        return np.asarray(rows["label"])

    def _check_labels(self, ids: Ids, found: NDArray[np.int64] | None) -> None:
        if found is None:
            return
        labels = self.labels(ids)
        for row in np.flatnonzero(found != labels)[:1].tolist():
            expected = int(labels[row]) % 2**64
            fault = _core.Fault("label", row, 0, int(found[row]) % 2**64, expected, 0)
            self._explain(fault, ids)

    # What goes wrong.

    def _place(self, number: int) -> Place:
        """Where a record is, for messages."""
        number += len(self) if number < 0 else 0
        table = bisect.bisect_right(self._first_record, number) - 1
        index = self.tables[table].index
        within = number - self._first_record[table]
        row = index.rows[within]
        shards = index.about.shards
        shard = min(int(row["shard"]), len(shards) - 1)
        before = sum(each.records for each in shards[:shard])
        streamed = index.about.streamed
        offset = int(row["within"] if streamed else row["offset"])
        return Place(self.tables[table].files.paths[shard], within - before, offset)

    def _mend(self, opened: _Opened, fault: _core.Fault, ids: Ids) -> None:
        """Map shards that are not there yet; anything else is an error."""
        code = fault.args[0]
        if code == "unmapped":
            opened.map(opened.gather.missing(ids))
            return
        if code in ("row", "cut", "moved", "label", "out_of_bounds"):
            self._explain(fault, ids)
        raise fault

    def _explain(self, fault: _core.Fault, ids: Ids) -> NoReturn:
        code, row, offset, found, expected, _ = fault.args
        if code == "row":
            number = int(ids[row])
            raise IndexError(f"there is no record {number}; there are {len(self)}") from None
        where = self._place(int(ids[row]))
        if code == "cut":
            raise DatasetError(
                f"{where.name}: the shard was cut, it had {expected} bytes when it was indexed; "
                "run `covey verify` to see what is left"
            ) from None
        if code == "label":
            signed = found - 2**64 if found >= 2**63 else found
            known = expected - 2**64 if expected >= 2**63 else expected
            raise DatasetError(
                f"{where}: its class is {signed}, but the index says {known}; the shard was "
                "changed, or the index is another's: run `covey index` to make it anew"
            ) from None
        if code in ("moved", "out_of_bounds"):
            what = (
                f"a record of {found} bytes begins there, the index says {expected}"
                if code == "moved"
                else f"the index has a record of {found} bytes at {offset}, the file {expected}"
            )
            raise FormatError(
                f"{where}: {what}; the shard was changed, or the index is another's: run "
                "`covey index` to make it anew"
            ) from None
        what = code.removesuffix("_checksum")
        reason = f"{what} checksum is {found:#010x}, expected {expected:#010x}"
        raise CorruptRecordError(
            f"{where}: {reason}; run `covey verify` to list the damage",
            name=where.name,
            record=where.record,
            offset=where.offset,
            reason=reason,
        ) from None

    # Reading instead of mapping.

    def _read(
        self, opened: _Opened, ids: Ids
    ) -> tuple[list[bytes], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]:
        """The frames of records, in buffers: what the native decoder takes."""
        rows, shards = self.rows(ids)
        begins, ends, offsets = self._stretches(rows, shards)
        if opened.shards.is_remote:
            opened.shards.fetch(shards, begins, ends)
        buffers: list[bytes] = []
        known: dict[tuple[int, int], int] = {}
        sources = np.zeros(len(ids), np.uint32)
        for row, stretch in enumerate(zip(shards.tolist(), begins.tolist(), strict=True)):
            found = known.get(stretch)
            if found is None:
                found = known[stretch] = len(buffers)
                shard, begin = stretch
                data = opened.shards.read(shard, begin, int(ends[row]))
                buffers.append(self._inflate(data, shard, int(ids[row])))
            sources[row] = found
        return buffers, sources, offsets, rows["length"].astype(np.uint64)

    def _inflate(self, data: bytes, shard: int, number: int) -> bytes:
        table = bisect.bisect_right(self._first_shard, shard) - 1
        if not self._members[table]:
            return data
        try:
            return inflate_member(data)
        except MemberError as error:
            where = self._place(number)
            raise CorruptRecordError(
                f"{where}: {error}; run `covey verify` to list the damage",
                name=where.name,
                record=where.record,
                offset=where.offset,
                reason=str(error),
            ) from None

    def _stretches(
        self, rows: NDArray[Any], shards: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
        """What to read of shards for records: from, to, and where in it their data begins."""
        begins = np.zeros(len(rows), np.int64)
        ends = np.zeros(len(rows), np.int64)
        offsets = np.full(len(rows), HEADER_BYTES, np.uint64)
        table_of = np.searchsorted(self._first_shard, shards, side="right") - 1
        for number in np.unique(table_of).tolist():
            mine = table_of == number
            if self._members[number]:
                begins[mine] = np.minimum(rows["offset"][mine], np.uint64(2**62))
                ends[mine] = self._member_ends(shards[mine], rows["offset"][mine], number)
                offsets[mine] += rows["within"][mine]
            else:
                streamed = self.tables[number].index.about.streamed
                at = rows["within" if streamed else "offset"][mine]
                begins[mine] = np.minimum(at, np.uint64(2**62))
                ends[mine] = begins[mine] + rows["length"][mine] + FRAME_BYTES
        return begins, ends, offsets

    def _member_ends(
        self, shards: NDArray[np.int64], offsets: NDArray[np.uint64], table: int
    ) -> NDArray[np.int64]:
        """Where members end: where the next one begins, or the shard ends."""
        ends = np.zeros(len(offsets), np.int64)
        opened = self._open()
        for shard in np.unique(shards).tolist():
            mine = shards == shard
            starts = opened.member_starts(self.tables[table], shard - self._first_shard[table])
            following = np.searchsorted(starts, offsets[mine], side="right")
            ends[mine] = starts[np.minimum(following, len(starts) - 1)]
        return ends


# The fields of rows of several tables.
_COMMON = np.dtype([("length", "<u4"), ("offset", "<u8"), ("within", "<u8"), ("label", "<i8")])


def _has_members(table: Table) -> bool:
    about = table.index.about
    return about.compression is not None and not about.streamed


class _Opened:
    """What one process has open."""

    def __init__(self, tables: Sequence[Table], cache_bytes: int | None) -> None:
        self.process = os.getpid()
        self.shards = LocalShards(tables, cache_bytes)
        self.gather = _core.Gather([_native(table) for table in tables])
        self._starts: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._keep_open = len(self.shards) <= _descriptors()
        size = sum(shard.bytes for table in tables for shard in table.index.about.shards)
        self._scattered = size > _memory() // 2

    def map(self, numbers: Sequence[int]) -> None:
        """Map shards into memory."""
        opened = [(number, self.shards.open(number)) for number in numbers]
        try:
            self.gather.set_shards(
                [(number, os.fsencode(each.path), each.size) for number, each in opened],
                self._keep_open,
                self._scattered,
            )
        except _core.Fault as fault:
            _, _, number, _, expected, _ = fault.args
            raise DatasetError(
                f"{self.shards.path(number)}: the shard has no longer {expected} bytes; open the "
                "dataset again"
            ) from None

    def fetch(self, gatherer: Gatherer, ids: Ids) -> None:
        """Fetch what is needed of remote shards."""
        if not self.shards.is_remote:
            return
        rows, shards = gatherer.rows(ids)
        begins, ends, _ = gatherer._stretches(rows, shards)
        if self.shards.fetch(shards, begins, ends):
            self.map(np.unique(shards).tolist())

    def member_starts(self, table: Table, shard: int) -> NDArray[np.int64]:
        """Where the members of a shard begin, and where the shard ends."""
        key = id(table), shard
        found = self._starts.get(key)
        if found is None:
            shards = table.index.about.shards
            first = sum(each.records for each in shards[:shard])
            rows = table.index.rows[first : first + shards[shard].records]
            starts = np.unique(np.minimum(rows["offset"], np.uint64(2**62))).astype(np.int64)
            found = self._starts[key] = np.append(starts, shards[shard].bytes)
        return found


def _native(table: Table) -> tuple[Any, int, int, int, int, int, int, int]:
    """A table as the native core takes it."""
    rows, about = table.index.rows, table.index.about
    fields = rows.dtype.fields
    assert fields is not None
    at = {name: int(field[1]) for name, field in fields.items()}
    offset = at["within"] if about.streamed else at["offset"]
    shards = len(about.shards)
    label = at.get("label", -1)
    return rows, len(rows), rows.dtype.itemsize, at["shard"], at["length"], offset, label, shards


def _descriptors() -> int:
    """How many files may be kept open."""
    try:
        import resource
    except ImportError:
        return 512
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def _memory() -> int:
    """The bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def _restore(tables: tuple[Table, ...], options: Mapping[str, Any]) -> Gatherer:
    return Gatherer(tables, **options)
