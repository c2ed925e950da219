"""Fetching the missing blocks of many files in one go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from covey.errors import FileChangedError, StorageError
from covey.storage.answers import IgnoresRangeError
from covey.storage.failures import explain
from covey.storage.sparse import BLOCK_BYTES
from covey.storage.tries import Task, run

if TYPE_CHECKING:
    from covey.storage.blocks import Receipt, RemoteBlocks

# A gap that is cheaper to fetch than another request is, and the longest range of one request.
_GAP_BLOCKS = 4
_RANGE_BLOCKS = (8 << 20) // BLOCK_BYTES

# Other processes may take away what was just fetched, if the limit is too low for all of them.
_ROUNDS = 8


@dataclass(slots=True)
class _Need:
    """What is needed of one file, and what of it is missing."""

    blocks: RemoteBlocks
    numbers: NDArray[np.int64]
    missing: NDArray[np.int64]

    def look(self) -> None:
        """Find out what is missing now."""
        self.missing = self.blocks.missing(self.numbers)
        if len(self.missing) and self.blocks.in_one:
            self.numbers = self.blocks.all_numbers()
            self.missing = self.blocks.missing(self.numbers)


def fetch(
    wanted: Sequence[tuple[RemoteBlocks, NDArray[np.int64], NDArray[np.int64]]],
) -> None:
    """Wait until ranges of bytes of many files are all there, at the same time.

    Raises:
        StorageError: If they cannot be had, or have no room.
    """
    needs: dict[int, _Need] = {}
    for blocks, begins, ends in wanted:
        numbers = blocks.numbers(begins, ends)
        if id(blocks) in needs:
            numbers = np.union1d(numbers, needs[id(blocks)].numbers)
        needs[id(blocks)] = _Need(blocks, numbers, numbers)
    for _ in range(_ROUNDS):
        for need in needs.values():
            need.look()
        lacking = [need for need in needs.values() if len(need.missing)]
        if not lacking:
            return
        if _make_room(needs.values()):
            _fetch_missing(lacking)
    raise StorageError(
        f"{lacking[0].blocks.cache.folder}: other processes remove what was fetched before it can "
        "be used; raise cache_bytes= or COVEY_CACHE_BYTES, so that there is room for all of them"
    )


def _make_room(needs: Collection[_Need]) -> bool:
    """Make room for all that is missing; False if more is missing for that."""
    present: dict[str, int] = defaultdict(int)
    growth: dict[int, int] = defaultdict(int)
    caches = {id(need.blocks.cache): need.blocks.cache for need in needs}
    for need in needs:
        present[need.blocks.folder] += (len(need.numbers) - len(need.missing)) * BLOCK_BYTES
        for first, last in merge(need.missing):
            growth[id(need.blocks.cache)] += (last - first) * BLOCK_BYTES
    return all(caches[key].make_room(more, present) for key, more in growth.items())


def _fetch_missing(lacking: Sequence[_Need]) -> None:
    places: dict[int, tuple[RemoteBlocks, int]] = {}
    unmarked: dict[int, list[Receipt | None]] = defaultdict(list)
    tasks: list[Task] = []
    for need in lacking:
        for first, last in merge(need.missing) if not need.blocks.in_one else ():
            tasks.append(need.blocks.task(first, last))
            places[id(tasks[-1])] = need.blocks, first

    def receive(task: Task, data: bytes) -> None:
        blocks, first = places[id(task)]
        receipt = blocks.write(first, data)
        if blocks.tells_state:
            blocks.mark(receipt)
        else:
            unmarked[id(blocks)].append(receipt)

    def settle(task: Task, error: Exception) -> bool:
        if isinstance(error, IgnoresRangeError):
            places[id(task)][0].in_one = True  # there must be room for it first
            return True
        return False

    whole = [need.blocks for need in lacking if need.blocks.in_one]
    run(tasks, receive, settle)
    for blocks in whole:
        blocks.download()
    _mark([need.blocks for need in lacking if id(need.blocks) in unmarked], unmarked)


def _mark(files: Sequence[RemoteBlocks], unmarked: dict[int, list[Receipt | None]]) -> None:
    """Say that blocks are there, once it is known that no file has changed meanwhile."""
    storages: dict[int, list[RemoteBlocks]] = defaultdict(list)
    for blocks in files:
        storages[id(blocks.connection)].append(blocks)
    for members in storages.values():
        states = members[0].stat([blocks.url for blocks in members])
        for blocks, state in zip(members, states, strict=True):
            if state != blocks.state:
                raise explain(FileChangedError(), blocks.url, "reading", 1)
            for receipt in unmarked[id(blocks)]:
                blocks.mark(receipt)


def merge(numbers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of blocks, from one up to another, that hold all of some sorted ones."""
    if not len(numbers):
        return
    breaks = np.flatnonzero(np.diff(numbers) > 1 + _GAP_BLOCKS)
    firsts = numbers[np.concatenate([[0], breaks + 1])]
    lasts = numbers[np.concatenate([breaks, [len(numbers) - 1]])] + 1
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        for begin in range(first, last, _RANGE_BLOCKS):
            yield begin, min(begin + _RANGE_BLOCKS, last)
