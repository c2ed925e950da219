"""External merge sort of records, with bounded memory.

A spool holds records in an arena of large buffers, up to a limit. Then it sorts them and spills
them to disk as a run. At the end, the runs are merged. The order does not depend on the limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.shuffle.keys import (
    ROW_DTYPE,
    ClassSizes,
    Part,
    RecordOrder,
    cut_by_bytes,
    duplicate_error,
    find_duplicate,
)
from covey.tfrecord import Block
from covey.tfrecord.block import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES

# Runs are read in windows of at least this size. If the windows of all runs exceed the memory
# limit, some runs are merged first.
MIN_WINDOW_BYTES = 1 << 18
_BUFFER_BYTES = 16 << 20


@dataclass(slots=True)
class Run:
    """Sorted records on disk: frames in one file, rows in another."""

    path: Path
    rows: int
    rows_read: int = 0
    bytes_read: int = 0
    window: NDArray[Any] = field(default_factory=lambda: np.zeros(0, ROW_DTYPE))
    data: bytes = b""
    rows_taken: int = 0  # of the window
    bytes_taken: int = 0

    @property
    def rows_path(self) -> Path:
        """File of the rows."""
        return self.path.with_suffix(".rows")

    def is_exhausted(self) -> bool:
        """Return whether all rows were taken."""
        return self.rows_taken >= len(self.window) and self.rows_read == self.rows

    def fill(self, size: int) -> None:
        """Read the next window of about ``size`` bytes, if all rows of the last one were taken."""
        if self.rows_taken < len(self.window) or self.rows_read == self.rows:
            return
        # Files are opened for each window: there may be more runs than file descriptors.
        count = min(self.rows - self.rows_read, max(1, size // ROW_DTYPE.itemsize))
        with open(self.rows_path, "rb") as file:
            file.seek(self.rows_read * ROW_DTYPE.itemsize)
            rows = np.frombuffer(file.read(count * ROW_DTYPE.itemsize), ROW_DTYPE)
        ends = np.cumsum(rows["length"] + np.uint64(FRAME_BYTES))
        fitting = max(1, int(np.searchsorted(ends, np.uint64(size), side="right")))
        self.window = rows[:fitting]
        with open(self.path, "rb") as file:
            file.seek(self.bytes_read)
            self.data = file.read(int(ends[fitting - 1]))
        self.rows_read += fitting
        self.bytes_read += len(self.data)
        self.rows_taken = self.bytes_taken = 0

    def take(self, count: int) -> tuple[NDArray[Any], NDArray[np.uint64]]:
        """Return the next rows of the window, and the offsets of their records in its data."""
        rows = self.window[self.rows_taken : self.rows_taken + count]
        sizes = rows["length"] + np.uint64(FRAME_BYTES)
        ends = np.cumsum(sizes) + np.uint64(self.bytes_taken)
        self.rows_taken += count
        self.bytes_taken = int(ends[-1]) if count else self.bytes_taken
        return rows, ends - sizes + np.uint64(HEADER_BYTES)

    def blocks(self, size: int) -> Iterator[tuple[Block, NDArray[Any]]]:
        """Yield the records that are not taken, with their rows, about ``size`` bytes at a time."""
        while not self.is_exhausted():
            self.fill(size)
            rows, offsets = self.take(len(self.window))
            lengths = np.ascontiguousarray(rows["length"])
            yield Block(np.frombuffer(self.data, np.uint8), offsets, lengths), rows

    def delete(self) -> None:
        """Delete the files."""
        self.path.unlink(missing_ok=True)
        self.rows_path.unlink(missing_ok=True)
        self.window, self.data = np.zeros(0, ROW_DTYPE), b""


class RunWriter:
    """Writer of a run."""

    def __init__(self, path: Path) -> None:
        self._run = Run(path, 0)
        self._frames = open(path, "wb", buffering=0)  # noqa: SIM115
        self._rows = open(self._run.rows_path, "wb", buffering=0)  # noqa: SIM115

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.close()
        self._rows.close()

    def add(self, block: Block, rows: NDArray[Any]) -> None:
        """Append records, which come after those before them."""
        _write_all(self._frames, block.data)
        _write_all(self._rows, rows)
        self._run.rows += len(rows)

    def run(self) -> Run:
        """Return the run."""
        return self._run


def _write_all(file: Any, data: NDArray[Any]) -> None:
    view = memoryview(np.ascontiguousarray(data).view(np.uint8).data)
    while view.nbytes:
        view = view[file.write(view) :]


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

    def locations(
        self,
    ) -> tuple[list[Any], NDArray[np.uint32], NDArray[np.uint64], NDArray[Any]]:
        """Return the buffers, and the buffer index, offset and row of every record."""
        buffers, offsets, rows = zip(*self._parts, strict=True)
        sources = np.repeat(np.array(buffers, np.uint32), [len(part) for part in rows])
        return list(self._buffers), sources, np.concatenate(offsets), np.concatenate(rows)

    def blocks(self) -> Iterator[tuple[Block, NDArray[Any]]]:
        """Yield all blocks, with their rows."""
        for at, offsets, rows in self._parts:
            yield Block(self._buffers[at], offsets, np.ascontiguousarray(rows["length"])), rows

    def rows(self) -> Iterator[NDArray[Any]]:
        """Yield the rows of all blocks."""
        for *_, rows in self._parts:
            yield rows


class Spool:
    """Records that are added in any order and returned in sorted order.

    Args:
        directory: Directory of the runs.
        memory_limit: Approximate number of bytes in memory.
        order: Sort order.
        unique: Whether two records with the same hash are an error.
        prefix: Prefix of the names of the files, if several spools share the directory.
        window_bytes: Minimum size of the windows in which runs are read.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory_limit: int,
        order: RecordOrder,
        unique: bool = False,
        prefix: str = "",
        window_bytes: int = MIN_WINDOW_BYTES,
    ) -> None:
        self.records = 0
        self.bytes = 0
        self.order = order
        self.is_labelled = False
        """Whether the rows have class ids, which :meth:`tasks` returns then."""
        self.final_ids: NDArray[np.int64] | None = None
        """Final class ids by the ids in the rows, if these are provisional."""
        self._directory = directory
        self._prefix = prefix
        self._memory_limit = memory_limit
        self._unique = unique
        self._window_bytes = window_bytes
        self._arena = Arena()
        self._runs: list[Run] = []
        self._runs_written = 0
        self._classes = ClassSizes.of(np.zeros(0, np.int64), np.zeros(0, np.uint64))

    def add(self, block: Block, rows: NDArray[Any]) -> None:
        """Add records with their rows, which are sorted by position."""
        if not len(block):
            return
        self._arena.add(block, rows)
        self.records += len(block)
        self.bytes += int(block.lengths.sum()) + FRAME_BYTES * len(block)
        if self.order.by_class:
            self._classes += ClassSizes.of(rows["label"], rows["length"])
        if self._arena.bytes >= self._memory_limit:
            self.spill()

    def classes(self) -> ClassSizes:
        """Return the sizes of the classes, if records are sorted by class."""
        return self._classes

    def spill(self) -> None:
        """Sort the records in memory, and write them to disk as a run."""
        if not len(self._arena):
            return
        self._runs.append(self._write_run(self._sort_arena()))
        self._arena.clear()

    def _write_run(self, parts: Iterator[_SortedPart]) -> Run:
        path = self._directory / f"{self._prefix}run-{self._runs_written:06d}.frames"
        self._runs_written += 1
        with RunWriter(path) as writer:
            for part in parts:
                writer.add(part.copy(), part.rows)
        return writer.run()

    def _sort_arena(self) -> Iterator[_SortedPart]:
        if len(self._arena):
            yield from _sort(*self._arena.locations(), self.order)

    def tasks(self) -> Iterator[Callable[[], Part]]:
        """Yield functions that return the records in order, a part each.

        A run is deleted after it was read: the records can be read only once.

        Raises:
            DuplicateKeyError: If two records have the same key, which is not known here.
        """
        sorts_by_hash = self.order.fields == ("high", "low")
        if self._unique and not sorts_by_hash:
            self._check_unique()
        last: Any = None
        for part in self._sorted():
            if self._unique and sorts_by_hash:
                last = self._check_neighbours(part.rows, last)
            yield partial(self._read, part)

    def _read(self, part: _SortedPart) -> Part:
        if not self.is_labelled:
            return part.copy(), None
        return part.copy(), self.class_ids(part.all_rows["label"][part.order])

    def class_ids(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the final class ids for those in rows."""
        return labels if self.final_ids is None else self.final_ids[labels]

    def _sorted(self) -> Iterator[_SortedPart]:
        if not self._runs:
            yield from self._sort_arena()
            return
        self.spill()
        self._arena = Arena()  # its memory is used for the windows
        max_runs = max(2, self._memory_limit // 2 // self._window_bytes)
        while len(self._runs) > max_runs:
            first, self._runs = self._runs[:max_runs], self._runs[max_runs:]
            self._runs.append(self._write_run(self._merge(first)))
        yield from self._merge(self._runs)

    def _merge(self, runs: Sequence[Run]) -> Iterator[_SortedPart]:
        """Merge runs a window at a time: the rows up to the first end of a window."""
        size = max(self._window_bytes, self._memory_limit // 2 // len(runs))
        remaining = list(runs)
        while remaining:
            for run in remaining:
                run.fill(size)
            ends = [run.window[-1] for run in remaining]
            bound = min(ends, key=lambda row: tuple(row[name] for name in self.order.fields))
            taken = []
            for run in remaining:
                count = self.order.count_up_to(run.window[run.rows_taken :], bound)
                taken.append((run.data, *run.take(count)))
            buffers = [data for data, *_ in taken]
            rows = np.concatenate([part for _, part, _ in taken])
            counts = [len(part) for _, part, _ in taken]
            sources = np.repeat(np.arange(len(taken), dtype=np.uint32), counts)
            offsets = np.concatenate([part for *_, part in taken])
            yield from _sort(buffers, sources, offsets, rows, self.order)
            for run in remaining:
                if run.is_exhausted():
                    run.delete()
            remaining = [run for run in remaining if not run.is_exhausted()]

    def blocks(self) -> Iterator[tuple[Block, NDArray[Any]]]:
        """Yield all records with their rows, in any order."""
        for run in self._runs:
            yield from Run(run.path, run.rows).blocks(self._scan_bytes)
        yield from self._arena.blocks()

    def drain(self) -> Iterator[tuple[Block, NDArray[Any]]]:
        """Yield all records with their rows, in any order, and remove them."""
        runs, self._runs = self._runs, []
        for run in runs:
            yield from run.blocks(self._scan_bytes)
            run.delete()
        arena, self._arena = self._arena, Arena()
        yield from arena.blocks()

    @property
    def _scan_bytes(self) -> int:
        return max(self._window_bytes, self._memory_limit // 8)

    def detach(self) -> list[Run]:
        """Return all records as sorted runs on disk, which the caller owns."""
        self.spill()
        runs, self._runs = self._runs, []
        self._arena = Arena()
        return runs

    # Duplicate keys.

    def _check_neighbours(self, rows: NDArray[Any], last: Any) -> Any:
        """Compare each hash with the one before it; return the last row."""
        if last is not None:
            rows = np.concatenate([last, rows])
        duplicate = find_duplicate(rows)
        if duplicate is not None:
            raise duplicate_error(duplicate, None)
        return rows[-1:].copy()

    def _check_unique(self) -> None:
        """Compare all hashes, one range of hashes at a time, so that the rows fit the memory."""
        memory = max(self._memory_limit, 1 << 22)
        parts = max(1, self.records * 2 * ROW_DTYPE.itemsize // memory)
        edges = [2**64 * i // parts for i in range(parts + 1)]
        for low, high in itertools.pairwise(edges):
            chosen = [np.zeros(0, ROW_DTYPE)]
            for rows in self.rows():
                inside = (rows["high"] >= np.uint64(low)) & (rows["high"] <= np.uint64(high - 1))
                chosen.append(rows[inside])
            joined = np.concatenate(chosen)
            self._check_neighbours(joined[RecordOrder().sort(joined)], None)

    def rows(self) -> Iterator[NDArray[Any]]:
        """Yield the rows of all records, in any order."""
        for run in self._runs:
            with open(run.rows_path, "rb") as file:
                while data := file.read(ROW_DTYPE.itemsize << 16):
                    yield np.frombuffer(data, ROW_DTYPE)
        yield from self._arena.rows()


@dataclass(frozen=True, slots=True)
class _SortedPart:
    """Consecutive sorted records, to be copied from their buffers."""

    buffers: list[Any]
    sources: NDArray[np.uint32]
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    all_rows: NDArray[Any]
    order: NDArray[np.intp]

    @property
    def rows(self) -> NDArray[Any]:
        part: NDArray[Any] = self.all_rows[self.order]
        return part

    def copy(self) -> Block:
        return Block(*_core.copy_frames(self.buffers, self.sources, self.offsets, self.lengths))


def _sort(
    buffers: list[Any],
    sources: NDArray[np.uint32],
    offsets: NDArray[np.uint64],
    rows: NDArray[Any],
    order: RecordOrder,
) -> Iterator[_SortedPart]:
    """Sort records in buffers, and yield them in parts."""
    permutation = order.sort(rows)
    sources, offsets = sources[permutation], offsets[permutation]
    lengths = np.ascontiguousarray(rows["length"])[permutation]
    for begin, end in cut_by_bytes(lengths):
        at = slice(begin, end)
        yield _SortedPart(buffers, sources[at], offsets[at], lengths[at], rows, permutation[at])
