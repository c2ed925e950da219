"""Records held in memory, in large pieces that are used again and again.

Memory that a process has never touched is slow to get: the system makes it page by page. A spool
that is emptied and filled again touches only its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.records import Block
from covey.records.block import FOOTER_BYTES, HEADER_BYTES

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
