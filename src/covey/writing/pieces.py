"""Divide inputs into pieces, which workers read and encode independently."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from covey.shuffle.keys import Key
from covey.writing.inputs import Input
from covey.writing.tables import PreparedTable

PIECE_BYTES = 160 << 20
"""Approximate size of a piece of a file: its records are one run with the default memory limit."""
_PIECES_PER_WORKER = 4


@dataclass(frozen=True)
class Piece:
    """Consecutive examples of a source."""

    index: int
    split: int
    """Position of the split in the splits of the write."""
    first: int
    """Position of the first example."""
    path: str | None
    """Path of the source, for errors."""
    count: int | None = None
    """Number of examples, if known."""
    source: int | None = None
    """Index of the input that the examples are read from, in those that workers share."""
    begin: int = 0
    """First example in that input."""
    payload: Input | PreparedTable | Mapping[str, Any] | None = None
    """The examples themselves, in place of a shared input; columns of a Ray Dataset."""
    is_local: bool = False
    """Whether only the main process can read it."""
    key_prefix: str = ""
    """Prefix of the keys of a block whose position is not known."""

    def block_keys(self, rows: int) -> list[Key] | None:
        """Return the keys of the rows of a block; None if their positions are known."""
        return [f"{self.key_prefix}:{row}" for row in range(rows)] if self.key_prefix else None

    def name(self, total: int | None) -> str:
        """Return the name for messages.

        Args:
            total: Number of pieces, if known.
        """
        name = f"piece {self.index + 1}" + ("" if total is None else f" of {total}")
        if self.count is None:
            return name
        last = self.begin + self.count - 1
        return f"{name} (examples {self.begin} to {last})" if self.count else f"{name} (empty)"

    def open(self, inputs: Sequence[Input]) -> Iterable[Any]:
        """Return the items, if the piece is not a table.

        Args:
            inputs: The inputs that workers share.
        """
        found = self.payload if self.source is None else inputs[self.source]
        assert isinstance(found, Input)
        end = None if self.count is None else self.begin + self.count
        return found.read(self.begin, end)


@dataclass(frozen=True)
class PiecePlan:
    """The pieces of a write."""

    pieces: Iterable[Piece]
    total: int | None
    """Number of pieces, if known."""
    shared: tuple[Input, ...]
    """Inputs that workers share."""


def undivided(inputs: Sequence[Input]) -> PiecePlan:
    """Return one piece for each source of inputs, which this process reads."""
    parts = [(split, part) for split, each in enumerate(inputs) for part in each.parts]
    pieces = [
        Piece(index, split, part.first, part.path, payload=part)
        for index, (split, part) in enumerate(parts)
    ]
    return PiecePlan(pieces, len(pieces), ())


def plan_pieces(
    inputs: Sequence[Input],
    *,
    workers: int,
    pieces: int | None = None,
    divide_all: bool = False,
) -> PiecePlan:
    """Divide the examples of inputs into pieces.

    Inputs that can be read by range are divided; the items of a list are sent to the workers. An
    input that can only be read from the start is one piece, which the main process reads if the
    input cannot be pickled.

    Args:
        inputs: Input of each split.
        workers: Number of workers.
        pieces: Number of pieces (default: several for each worker).
        divide_all: Whether to divide inputs that can only be read from the start as well: each
            worker reads and drops the examples before its own.
    """
    parts = [(split, part) for split, each in enumerate(inputs) for part in each.parts]
    sizes = [_size(part) for _, part in parts]
    wanted = pieces or max(workers * _PIECES_PER_WORKER, sum(sizes) // PIECE_BYTES)
    weights = [size or part.length or 1 for size, (_, part) in zip(sizes, parts, strict=True)]
    total = max(1, sum(weights))
    found: list[Piece] = []
    shared: list[Input] = []
    for (split, part), weight in zip(parts, weights, strict=True):
        ranges: Iterable[tuple[int, int | None]] = [(0, None)]
        if part.length is not None and (part.can_be_divided or divide_all):
            ranges = _divide(part.length, wanted * weight / total)
        is_list = isinstance(part.items, (list, tuple))
        is_local = not is_list and not _can_be_sent(part)
        source = None
        if not is_list and not is_local:
            source = len(shared)
            shared.append(part)
        for begin, end in ranges:
            payload: Input | None = part if source is None else None
            if is_list and end is not None:
                payload = _slice(part, begin, end)
            found.append(
                Piece(
                    index=len(found),
                    split=split,
                    first=part.first + begin,
                    path=part.path,
                    count=None if end is None else end - begin,
                    source=source,
                    begin=begin,
                    payload=payload,
                    is_local=is_local,
                )
            )
    return PiecePlan(found, len(found), tuple(shared))


def file_bytes(inputs: Sequence[Input]) -> int:
    """Return the size of all files of inputs; an input that is not a file has 0 bytes."""
    return sum(_size(part) for each in inputs for part in each.parts)


def source_files(part: Input) -> list[str]:
    """Return the files of an input, if it is not a directory of one file per example."""
    paths = getattr(part.items, "files", None) or ([part.path] if part.path else [])
    try:
        return [path for path in paths if os.path.isfile(path)]
    except (ValueError, TypeError):
        return []


def _size(part: Input) -> int:
    """Return the size of the files of an input; 0 if it has none."""
    try:
        return sum(map(os.path.getsize, source_files(part)))
    except OSError:
        return 0


def can_be_fetched(part: Input) -> bool:
    """Return whether several processes can each read a range of an input that is not a list."""
    return part.can_be_divided and not isinstance(part.items, (list, tuple)) and _can_be_sent(part)


def _can_be_sent(part: Input) -> bool:
    if not part.is_repeatable:
        return False
    try:
        pickle.dumps(part.items)
    except Exception:  # errors of any type from the source
        return False
    return True


@dataclass(frozen=True)
class _Slice:
    """Items of a list, from a position on."""

    items: Sequence[Any]
    begin: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def read_range(self, begin: int, end: int) -> Sequence[Any]:
        """Return the items from one position of the list to another."""
        return self.items[begin - self.begin : end - self.begin]


def _slice(part: Input, begin: int, end: int) -> Input:
    items: Any = part.items
    kept = _Slice(items[begin:end], begin)
    return replace(part, items=kept, length=end + 1)  # never read as a whole


def _divide(length: int, share: float) -> Iterator[tuple[int, int]]:
    """Return the begin and the end of ranges of about the same length; ``share`` is their number.

    There is at least one range, and none is empty unless the length is 0.
    """
    count = max(1, min(round(share), length))
    return itertools.pairwise(length * i // count for i in range(count + 1))


def plan_tables(
    tables: Sequence[PreparedTable], *, workers: int | None, pieces: int | None = None
) -> PiecePlan:
    """Divide the rows of tables in memory into pieces.

    Args:
        tables: The tables.
        workers: Number of workers; None for this process, for which a table is one piece.
        pieces: Number of pieces (default: several for each worker).
    """
    wanted = pieces or (workers or 0) * _PIECES_PER_WORKER
    total = max(1, sum(map(len, tables)))
    found: list[Piece] = []
    split = 0
    for table in tables:
        rows = len(table)
        for begin, end in _divide(rows, 1 if workers is None else wanted * rows / total):
            part = table if workers is None else table.slice(begin, end)
            piece = Piece(len(found), split, begin, table.path, end - begin, begin=begin)
            found.append(replace(piece, payload=part))
        split += len(table.chosen)
    return PiecePlan(found, len(found), ())
