"""Runs: sorted records that were put aside on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.records import Block
from covey.records.block import FRAME_BYTES, HEADER_BYTES
from covey.shuffle.ordering import ROW_DTYPE


@dataclass(slots=True)
class Run:
    """Records that were sorted and put aside: frames in one file, rows in another."""

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
