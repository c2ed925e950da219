"""Fetching the missing blocks of many files in one go.

Random access to a remote file, through blocks that are fetched once and kept on disk.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from covey._fork import ForkAware
from covey.errors import ClosedError, FileChangedError, StorageError
from covey.storage.base import Stat
from covey.storage.cache import DiskCache
from covey.storage.cache_entry import (
    BLOCK_BYTES,
    DATA,
    CacheEntry,
    CorruptCacheEntryError,
    block_count,
    count_marked,
    create,
    discard,
    read_id,
)
from covey.storage.errors import explain
from covey.storage.filesystem import RemoteFilesystem
from covey.storage.range_requests import Body, RangeNotSupportedError, range_call, tells_state
from covey.storage.retry import Retry, Task, run
from covey.urls import shown

if TYPE_CHECKING:
    pass


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
        f"{lacking[0].blocks.cache.directory}: other processes remove what was fetched before it can "
        "be used; raise cache_bytes= or COVEY_CACHE_BYTES, so that there is room for all of them"
    )


def _make_room(needs: Collection[_Need]) -> bool:
    """Make room for all that is missing; False if more is missing for that."""
    present: dict[str, int] = defaultdict(int)
    growth: dict[int, int] = defaultdict(int)
    caches = {id(need.blocks.cache): need.blocks.cache for need in needs}
    for need in needs:
        present[need.blocks.directory] += (len(need.numbers) - len(need.missing)) * BLOCK_BYTES
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
        if isinstance(error, RangeNotSupportedError):
            places[id(task)][0].in_one = True  # there must be room for it first
            return True
        return False

    complete = [need.blocks for need in lacking if need.blocks.in_one]
    run(tasks, receive, settle)
    for blocks in complete:
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


_BODY_BYTES = 16 * BLOCK_BYTES

# How exactly it is known when a file was used last.
_TOUCH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Known:
    """What this process knows about the directory that has a token."""

    token: bytes
    generation: int
    sound: NDArray[np.bool_]
    """The blocks that are there for certain."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Blocks that were written but not marked, and the token of the directory that they are in."""

    token: bytes
    first: int
    checks: bytes


class RemoteBlocks(ForkAware):
    """The blocks of a remote file; see :class:`covey.storage.LocalBlocks`.

    Args:
        connection: To the filesystem.
        cache: Where blocks are kept.
        url: Of the file.
        state: Of the file, now.
        where: What else tells the file from others: a server, for one.
        stat: Says what the state of files is, for drivers whose answers do not.
    """

    def __init__(
        self,
        connection: RemoteFilesystem,
        cache: DiskCache,
        url: str,
        state: Stat,
        where: str,
        stat: Callable[[Sequence[str]], list[Stat | None]],
    ) -> None:
        super().__init__()
        self.connection = connection
        self.cache = cache
        self.url = url
        self.size = state.size
        self.state = state
        self.stat = stat
        self.tells_state = tells_state(connection)
        self.in_one = False
        """Whether the server gives the file only as a whole."""
        self._fs_path = connection.path_of(url)
        # What nothing tells from its next state is of no use to anybody later.
        self._once = not state.version
        version = uuid.uuid4().hex if self._once else state.version
        self.directory = cache.place(where, url, version, str(state.size))
        self.path = os.path.join(self.directory, DATA)
        self._closed = False
        self._touched = -_TOUCH_SECONDS
        self._known = _Known(b"", -1, np.zeros(block_count(self.size), np.bool_))
        self.missing(np.zeros(0, np.int64))

    @property
    def generation(self) -> int:
        """How often the file at ``path`` was begun again."""
        return self._known.generation

    def ensure(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Wait until these ranges of bytes are there."""
        fetch([(self, begins, ends)])

    def close(self) -> None:
        """Let go of it."""
        if not self._closed and self._once:
            discard(self.directory)
        self._closed = True

    def numbers(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The blocks that ranges lie in, sorted."""
        if self._closed:
            raise ClosedError("these blocks are closed; open them again", path=shown(self.url))
        begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
        if begins.shape != ends.shape or begins.ndim != 1:
            raise ValueError(f"ranges have shapes {begins.shape} and {ends.shape}; must be lists")
        if ((begins < 0) | (begins > ends) | (ends > self.size)).any():
            raise ValueError(f"{shown(self.url)}: a range is not within its {self.size} bytes")
        first = begins // BLOCK_BYTES
        counts = np.where(begins < ends, -(-ends // BLOCK_BYTES) - first, 0)
        before = np.cumsum(counts) - counts
        return np.unique(np.repeat(first - before, counts) + np.arange(counts.sum()))

    def all_numbers(self) -> NDArray[np.int64]:
        """All blocks of the file."""
        return np.arange(block_count(self.size))

    def missing(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some blocks that are not there, once there is a directory for them."""
        known = self._known
        if read_id(self.directory) != known.token or not known.sound[numbers].all():
            known = self._look(numbers)
        if time.monotonic() - self._touched >= _TOUCH_SECONDS:
            self._touch()
        return numbers[~known.sound[numbers]]

    def _look(self, numbers: NDArray[np.int64]) -> _Known:
        """Find out what is there, and begin again if that is nothing, or nothing good."""
        for attempt in range(8):
            with self.cache.wrap_os_errors():
                try:
                    entry = CacheEntry(self.directory, self.size)
                except (FileNotFoundError, CorruptCacheEntryError) as error:
                    # Another process may just be making the directory, or removing it; a file that is
                    # missing from it still, is missing for good.
                    if isinstance(error, CorruptCacheEntryError) or attempt > 2:
                        discard(self.directory)
                    create(self.directory, self.size)
                    continue
                with entry:
                    known = self._recognise(entry.token)
                    unsure = numbers[~known.sound[numbers]]
                    known.sound[unsure[entry.present(unsure)]] = True
                    return known
        raise StorageError(
            "it is corrupt, and cannot be removed; do that, or set COVEY_CACHE to a "
            "directory elsewhere",
            path=self.directory,
        )

    def _recognise(self, token: bytes) -> _Known:
        with self._lock:
            if token != self._known.token:
                sound = np.zeros(len(self._known.sound), np.bool_)
                self._known = _Known(token, self._known.generation + 1, sound)
            return self._known

    def _touch(self) -> None:
        """Note that the file was used."""
        self._touched = time.monotonic()
        now = time.time_ns()
        try:
            os.utime(self.directory, ns=(now, now))
        except OSError:  # removed meanwhile, or another program's
            return

    def task(self, first: int, last: int) -> Task:
        """What fetches some blocks."""
        begin, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, self.size)
        call = range_call(self._fs_path, begin, end, self.state)
        attempts = Retry(self.connection, self.url, f"reading bytes {begin} to {end}")
        return Task(self.connection, call, attempts, bytes=end - begin)

    def write(self, first: int, data: bytes) -> Receipt | None:
        """Write blocks; None if the directory is gone, which the next round sees to."""
        with self.cache.wrap_os_errors():
            try:
                entry = CacheEntry(self.directory, self.size)
            except (FileNotFoundError, CorruptCacheEntryError):
                return None
            with entry:
                receipt = Receipt(entry.token, first, entry.write(first * BLOCK_BYTES, data))
        self._touch()
        return receipt

    def mark(self, receipt: Receipt | None) -> None:
        """Say that blocks are there, now that they are known to be right."""
        with self.cache.wrap_os_errors():
            try:
                entry = CacheEntry(self.directory, self.size)
            except (FileNotFoundError, CorruptCacheEntryError):
                return
            with entry:
                if receipt is not None and entry.token == receipt.token:
                    entry.mark(receipt.first, receipt.checks)
                    known = self._recognise(entry.token)
                    last = receipt.first + count_marked(receipt.checks)
                    known.sound[receipt.first : last] = True

    def discard(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Forget the blocks of ranges, so that they are fetched again."""
        numbers = self.numbers(begins, ends)
        with self.cache.wrap_os_errors():
            try:
                entry = CacheEntry(self.directory, self.size)
            except (FileNotFoundError, CorruptCacheEntryError):
                return
            with entry:
                known = self._recognise(entry.token)
                for number in numbers.tolist():
                    entry.unmark(number)
                known.sound[numbers] = False

    def download(self) -> None:
        """Fetch all blocks in one go."""

        def action() -> None:
            with closing(Body(self.connection, self._fs_path, self.state)) as body:
                while (begin := body.position) < self.size:
                    pieces = []
                    end = min(begin + _BODY_BYTES, self.size)
                    while body.position < end:
                        pieces.append(body.read(end - body.position))
                    self.mark(self.write(begin // BLOCK_BYTES, b"".join(pieces)))

        Retry(self.connection, self.url, "reading").repeat(action)
