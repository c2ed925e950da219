"""Bringing records into order with bounded memory.

Records are held in memory up to a bound; then they are sorted and put aside as a run on disk, and
the runs are merged at the end. The order never depends on the bound.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.records import Block
from covey.records.block import FRAME_BYTES
from covey.shuffle.arena import Arena
from covey.shuffle.ordering import (
    ROW_DTYPE,
    ClassSizes,
    Key,
    Ordering,
    Part,
    cut_by_bytes,
    find_duplicate,
    raise_duplicate,
)
from covey.shuffle.runs import Run, RunWriter

# A run is read in pieces of at least this size; where that is too much memory for all runs, some
# are merged into longer ones first.
_LEAST_WINDOW = 1 << 18


class Spool:
    """Records on their way from their source to their place.

    Args:
        folder: Where runs are put aside.
        memory: How many bytes to hold, about, before that.
        ordering: What to sort by.
        unique: Whether two records with one hash are an error; their keys are remembered for it.
        prefix: How the names of its files begin, if several share the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        memory: int,
        ordering: Ordering,
        unique: bool = False,
        prefix: str = "",
    ) -> None:
        self.records = 0
        self.bytes = 0
        self._folder = folder
        self._prefix = prefix
        self._memory = memory
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
        if self._arena.bytes + self._key_bytes >= self._memory:
            self.put_aside()

    def classes(self) -> ClassSizes:
        """The classes in their order, if records are sorted by class."""
        return self._classes

    def put_aside(self) -> None:
        """Sort what is held, and write it to disk as a run."""
        if not len(self._arena):
            return
        if self._keys:
            path = self._folder / f"{self._prefix}keys-{len(self._key_files):06d}"
            path.write_bytes(pickle.dumps(self._keys))
            self._key_files.append(path)
            self._keys, self._key_bytes = [], 0
        self._runs.append(self._write_run(self._held_parts()))
        self._arena.clear()

    def _write_run(self, parts: Iterator[_Sorted]) -> Run:
        path = self._folder / f"{self._prefix}run-{self._made:06d}.frames"
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
        self.put_aside()
        self._arena = Arena()  # its memory is for the windows now
        most = max(2, self._memory // 2 // _LEAST_WINDOW)
        while len(self._runs) > most:
            first, self._runs = self._runs[:most], self._runs[most:]
            self._runs.append(self._write_run(self._merge(first)))
        yield from self._merge(self._runs)

    def _merge(self, runs: Sequence[Run]) -> Iterator[_Sorted]:
        """Merge runs a window at a time: all that comes before the first end of a window."""
        size = max(_LEAST_WINDOW, self._memory // 2 // len(runs))
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
            yield from Run(run.path, run.rows).pieces(max(_LEAST_WINDOW, self._memory // 8))
        yield from self._arena.blocks()

    def drain(self) -> Iterator[tuple[Block, NDArray[Any]]]:
        """All records with their rows, in no order, letting go of each."""
        runs, self._runs = self._runs, []
        for run in runs:
            yield from run.pieces(max(_LEAST_WINDOW, self._memory // 8))
            run.delete()
        arena, self._arena = self._arena, Arena()
        yield from arena.blocks()

    def take_keys(self, other: Spool) -> None:
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
        memory = max(self._memory, 1 << 22)
        parts = max(1, self.records * 2 * ROW_DTYPE.itemsize // memory)
        edges = [2**64 * i // parts for i in range(parts + 1)]
        for low, high in itertools.pairwise(edges):
            chosen = [np.zeros(0, ROW_DTYPE)]
            for rows in self._all_rows():
                inside = (rows["high"] >= np.uint64(low)) & (rows["high"] <= np.uint64(high - 1))
                chosen.append(rows[inside])
            together = np.concatenate(chosen)
            self._check_neighbours(together[Ordering().sort(together)], None)

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
    ordering: Ordering,
) -> Iterator[_Sorted]:
    """Sort records that lie in buffers, and cut them into parts."""
    order = ordering.sort(rows)
    sources, offsets = sources[order], offsets[order]
    lengths = np.ascontiguousarray(rows["length"])[order]
    for begin, end in cut_by_bytes(lengths):
        at = slice(begin, end)
        yield _Sorted(buffers, sources[at], offsets[at], lengths[at], rows, order[at])
