"""Runs: sorted records that were spilled to disk.

Records held in memory, in large pieces that are used again and again.

Memory that a process has never touched is slow to get: the system makes it page by page. A spool
that is emptied and filled again touches only its own.

Bringing records into order with bounded memory.

Records are held in memory up to a bound; then they are sorted and spilled as a run on disk, and
the runs are merged at the end. The order never depends on the bound.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.shuffle.keys import (
    ROW_DTYPE,
    ClassSizes,
    Key,
    Part,
    RecordOrder,
    cut_by_bytes,
    find_duplicate,
    raise_duplicate,
)
from covey.tfrecord import Block
from covey.tfrecord.block import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES


@dataclass(slots=True)
class Run:
    """Records that were sorted and spilled: frames in one file, rows in another."""

    path: Path
    rows: int
    at: int = 0  # rows that were read
    offset: int = 0  # and bytes
    window: NDArray[Any] = field(default_factory=lambda: np.zeros(0, ROW_DTYPE))
    data: bytes = b""
    used: int = 0  # rows of the window that were taken
    used_bytes: int = 0

    @property
    def _rows_path(self) -> Path:
        return self.path.with_suffix(".rows")

    def is_open(self) -> bool:
        """Whether rows are left, read or not."""
        return self.used < len(self.window) or self.at < self.rows

    def fill(self, size: int) -> None:
        """Read the next window, of about so many bytes, once the last is used up."""
        if self.used < len(self.window) or self.at == self.rows:
            return
        # Files are opened for each window: there may be more runs than a process may have files.
        count = min(self.rows - self.at, max(1, size // ROW_DTYPE.itemsize))
        with open(self._rows_path, "rb") as file:
            file.seek(self.at * ROW_DTYPE.itemsize)
            rows = np.frombuffer(file.read(count * ROW_DTYPE.itemsize), ROW_DTYPE)
        ends = np.cumsum(rows["length"] + np.uint64(FRAME_BYTES))
        fitting = max(1, int(np.searchsorted(ends, np.uint64(size), side="right")))
        self.window = rows[:fitting]
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            self.data = file.read(int(ends[fitting - 1]))
        self.at += fitting
        self.offset += len(self.data)
        self.used = self.used_bytes = 0

    def take(self, count: int) -> tuple[NDArray[Any], NDArray[np.uint64]]:
        """The next rows of the window, and where their records begin in its data."""
        rows = self.window[self.used : self.used + count]
        sizes = rows["length"] + np.uint64(FRAME_BYTES)
        ends = np.cumsum(sizes) + np.uint64(self.used_bytes)
        self.used += count
        self.used_bytes = int(ends[-1]) if count else self.used_bytes
        return rows, ends - sizes + np.uint64(HEADER_BYTES)

    def pieces(self, size: int) -> Iterator[tuple[Block, NDArray[Any]]]:
        """All records, about so many bytes at a time."""
        while self.is_open():
            self.fill(size)
            rows, offsets = self.take(len(self.window))
            lengths = np.ascontiguousarray(rows["length"])
            yield Block(np.frombuffer(self.data, np.uint8), offsets, lengths), rows

    def delete(self) -> None:
        """Give the disk back."""
        self.path.unlink(missing_ok=True)
        self._rows_path.unlink(missing_ok=True)
        self.window, self.data = np.zeros(0, ROW_DTYPE), b""


class RunWriter:
    """Writes a run: frames into one file, rows into another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = 0
        self._frames = open(path, "wb", buffering=0)  # noqa: SIM115
        self._table = open(path.with_suffix(".rows"), "wb", buffering=0)  # noqa: SIM115

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._frames.close()
        self._table.close()

    def add(self, block: Block, rows: NDArray[Any]) -> None:
        """Add records, which come after those that were added."""
        _write_all(self._frames, block.data)
        _write_all(self._table, rows)
        self._rows += len(rows)

    def run(self) -> Run:
        """What was written."""
        return Run(self._path, self._rows)


def _write_all(file: Any, data: NDArray[Any]) -> None:
    view = memoryview(np.ascontiguousarray(data).view(np.uint8).data)
    while view.nbytes:
        view = view[file.write(view) :]


_PIECE_BYTES = 16 << 20


class Arena:
    """Blocks of records, copied together, each record with a row that says more about it."""

    def __init__(self) -> None:
        self.bytes = 0
        """Of what is held."""
        self._pieces: list[NDArray[np.uint8]] = []
        self._used = 0  # bytes of the last piece that is in use
        self._parts: list[tuple[int, NDArray[np.uint64], NDArray[Any]]] = []

    def __len__(self) -> int:
        """How many blocks are held."""
        return len(self._parts)

    def add(self, block: Block, rows: NDArray[Any]) -> None:
        """Take in a block, whose frames follow one another."""
        begin = int(block.offsets[0]) - HEADER_BYTES
        end = int(block.offsets[-1] + block.lengths[-1]) + FOOTER_BYTES
        at = self._parts[-1][0] if self._parts else 0
        if self._parts and self._used + end - begin > len(self._pieces[at]):
            at, self._used = at + 1, 0
        if at == len(self._pieces):
            self._pieces.append(np.empty(max(_PIECE_BYTES, end - begin), np.uint8))
        elif self._used == 0 and end - begin > len(self._pieces[at]):
            self._pieces[at] = np.empty(end - begin, np.uint8)
        piece = self._pieces[at]
        piece[self._used : self._used + end - begin] = np.frombuffer(block.data, np.uint8)[
            begin:end
        ]
        shift = np.uint64((self._used - begin) % 2**64)  # wraps around, as does the sum
        self._parts.append((at, block.offsets + shift, rows))
        self._used += end - begin
        self.bytes += end - begin + rows.nbytes

    def clear(self) -> None:
        """Let go of what is held, and keep the memory for what comes."""
        self._parts, self._used, self.bytes = [], 0, 0

    def places(
        self,
    ) -> tuple[list[Any], NDArray[np.uint32], NDArray[np.uint64], NDArray[Any]]:
        """Where all records lie: (buffers, which of them, offsets, rows)."""
        pieces, offsets, rows = zip(*self._parts, strict=True)
        sources = np.repeat(np.array(pieces, np.uint32), [len(part) for part in rows])
        return list(self._pieces), sources, np.concatenate(offsets), np.concatenate(rows)

    def blocks(self) -> Iterator[tuple[Block, NDArray[Any]]]:
        """All blocks, with their rows."""
        for at, offsets, rows in self._parts:
            yield Block(self._pieces[at], offsets, np.ascontiguousarray(rows["length"])), rows

    def rows(self) -> Iterator[NDArray[Any]]:
        """The rows of all blocks."""
        for *_, rows in self._parts:
            yield rows


# A run is read in pieces of at least this size; where that is too much memory for all runs, some
# are merged into longer ones first.
_LEAST_WINDOW = 1 << 18


class Spool:
    """Records on their way from their source to their place.

    Args:
        directory: Where runs are spilled.
        memory_limit: How many bytes to hold, about, before that.
        ordering: What to sort by.
        unique: Whether two records with one hash are an error; their keys are remembered for it.
        prefix: How the names of its files begin, if several share the directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory_limit: int,
        ordering: RecordOrder,
        unique: bool = False,
        prefix: str = "",
    ) -> None:
        self.records = 0
        self.bytes = 0
        self._directory = directory
        self._prefix = prefix
        self._memory_limit = memory_limit
        self._ordering = ordering
        self._unique = unique
        self._arena = Arena()
        self._key_bytes = 0
        self._runs: list[Run] = []
        self._made = 0
        self._classes = ClassSizes.of(np.zeros(0, np.int64), np.zeros(0, np.uint64))
        self._keys: list[tuple[NDArray[np.uint64], Sequence[Key]]] = []
        self._key_files: list[Path] = []

    def add(self, block: Block, rows: NDArray[Any], keys: Sequence[Key] | None = None) -> None:
        """Take in records with their rows, which are in the order of their positions."""
        if not len(block):
            return
        self._arena.add(block, rows)
        if self._unique and keys is not None:
            self._keys.append((rows["position"].copy(), keys))
            # A Python object takes about 60 bytes and its text.
            self._key_bytes += 60 * len(keys) + sum(
                len(key) for key in keys if isinstance(key, (str, bytes))
            )
        self.records += len(block)
        self.bytes += int(block.lengths.sum()) + FRAME_BYTES * len(block)
        if self._ordering.by_class:
            self._classes += ClassSizes.of(rows["label"], rows["length"])
        if self._arena.bytes + self._key_bytes >= self._memory_limit:
            self.spill()

    def classes(self) -> ClassSizes:
        """The classes in their order, if records are sorted by class."""
        return self._classes

    def spill(self) -> None:
        """Sort what is held, and write it to disk as a run."""
        if not len(self._arena):
            return
        if self._keys:
            path = self._directory / f"{self._prefix}keys-{len(self._key_files):06d}"
            path.write_bytes(pickle.dumps(self._keys))
            self._key_files.append(path)
            self._keys, self._key_bytes = [], 0
        self._runs.append(self._write_run(self._held_parts()))
        self._arena.clear()

    def _write_run(self, parts: Iterator[_Sorted]) -> Run:
        path = self._directory / f"{self._prefix}run-{self._made:06d}.frames"
        self._made += 1
        with RunWriter(path) as writer:
            for part in parts:
                writer.add(part.copy(), part.rows)
        return writer.run()

    def _held_parts(self) -> Iterator[_Sorted]:
        """What is held, in order."""
        if len(self._arena):
            yield from _in_order(*self._arena.places(), self._ordering)

    def tasks(self) -> Iterator[Callable[[], Part]]:
        """All records in order. A run is let go of when it was read: once.

        Raises:
            DuplicateKeyError: If two have the same key, naming it and both examples.
        """
        meet = self._ordering.fields == ("high", "low")
        if self._unique and not meet:
            self._check_unique()
        last: Any = None
        for part in self._sorted():
            if self._unique and meet:
                last = self._check_neighbours(part.rows, last)
            yield part.run

    def _sorted(self) -> Iterator[_Sorted]:
        if not self._runs:
            yield from self._held_parts()
            return
        self.spill()
        self._arena = Arena()  # its memory is for the windows now
        most = max(2, self._memory_limit // 2 // _LEAST_WINDOW)
        while len(self._runs) > most:
            first, self._runs = self._runs[:most], self._runs[most:]
            self._runs.append(self._write_run(self._merge(first)))
        yield from self._merge(self._runs)

    def _merge(self, runs: Sequence[Run]) -> Iterator[_Sorted]:
        """Merge runs a window at a time: all that comes before the first end of a window."""
        size = max(_LEAST_WINDOW, self._memory_limit // 2 // len(runs))
        waiting = list(runs)
        while waiting:
            for run in waiting:
                run.fill(size)
            ends = [run.window[-1] for run in waiting]
            bound = min(ends, key=lambda row: tuple(row[name] for name in self._ordering.fields))
            taken = []
            for run in waiting:
                count = self._ordering.up_to(run.window[run.used :], bound)
                taken.append((run.data, *run.take(count)))
            rows = np.concatenate([part for _, part, _ in taken])
            sources = np.repeat(
                np.arange(len(taken), dtype=np.uint32), [len(part) for _, part, _ in taken]
            )
            offsets = np.concatenate([places for *_, places in taken])
            buffers = [data for data, *_ in taken]
            yield from _in_order(buffers, sources, offsets, rows, self._ordering)
            for run in waiting:
                if not run.is_open():
                    run.delete()
            waiting = [run for run in waiting if run.is_open()]

    def look(self) -> Iterator[tuple[Block, NDArray[Any]]]:
        """All records with their rows, in no order, changing nothing."""
        for run in self._runs:
            yield from Run(run.path, run.rows).pieces(max(_LEAST_WINDOW, self._memory_limit // 8))
        yield from self._arena.blocks()

    def drain(self) -> Iterator[tuple[Block, NDArray[Any]]]:
        """All records with their rows, in no order, letting go of each."""
        runs, self._runs = self._runs, []
        for run in runs:
            yield from run.pieces(max(_LEAST_WINDOW, self._memory_limit // 8))
            run.delete()
        arena, self._arena = self._arena, Arena()
        yield from arena.blocks()

    def adopt_keys(self, other: Spool) -> None:
        """Take over the keys of a spool that is drained into this one."""
        self._keys += other._keys
        self._key_files += other._key_files

    # Keys that are there twice.

    def _check_neighbours(self, rows: NDArray[Any], last: Any) -> Any:
        """Compare each hash with the one before it; return the last."""
        if last is not None:
            rows = np.concatenate([last, rows])
        twice = find_duplicate(rows)
        if twice is not None:
            raise_duplicate(twice, self._find_key(twice[0]))
        return rows[-1:].copy()

    def _check_unique(self) -> None:
        """Compare all hashes, a part of them at a time that fits the memory."""
        memory = max(self._memory_limit, 1 << 22)
        parts = max(1, self.records * 2 * ROW_DTYPE.itemsize // memory)
        edges = [2**64 * i // parts for i in range(parts + 1)]
        for low, high in itertools.pairwise(edges):
            chosen = [np.zeros(0, ROW_DTYPE)]
            for rows in self._all_rows():
                inside = (rows["high"] >= np.uint64(low)) & (rows["high"] <= np.uint64(high - 1))
                chosen.append(rows[inside])
            together = np.concatenate(chosen)
            self._check_neighbours(together[RecordOrder().sort(together)], None)

    def _all_rows(self) -> Iterator[NDArray[Any]]:
        for run in self._runs:
            with open(run.path.with_suffix(".rows"), "rb") as file:
                while piece := file.read(ROW_DTYPE.itemsize << 16):
                    yield np.frombuffer(piece, ROW_DTYPE)
        yield from self._arena.rows()

    def _find_key(self, position: int) -> Key:
        for path in [*self._key_files, None]:
            parts = self._keys if path is None else pickle.loads(path.read_bytes())
            for positions, keys in parts:
                at = int(np.searchsorted(positions, np.uint64(position)))
                if at < len(positions) and positions[at] == position:
                    found: Key = keys[at]
                    return found
        raise AssertionError(f"example {position} was never added")


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Records that lie in buffers, to be copied together in their order."""

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
        copied = _core.copy_frames(self.buffers, self.sources, self.offsets, self.lengths)
        return Block(*copied)

    def run(self) -> Part:
        return self.copy(), None


def _in_order(
    buffers: list[Any],
    sources: NDArray[np.uint32],
    offsets: NDArray[np.uint64],
    rows: NDArray[Any],
    ordering: RecordOrder,
) -> Iterator[_Sorted]:
    """Sort records that lie in buffers, and cut them into parts."""
    order = ordering.sort(rows)
    sources, offsets = sources[order], offsets[order]
    lengths = np.ascontiguousarray(rows["length"])[order]
    for begin, end in cut_by_bytes(lengths):
        at = slice(begin, end)
        yield _Sorted(buffers, sources[at], offsets[at], lengths[at], rows, order[at])
