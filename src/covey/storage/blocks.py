"""Random access to a remote file, through blocks that are fetched once and kept on disk."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.errors import ClosedError, StorageError
from covey.storage.answers import Body, range_call, tells_state
from covey.storage.base import Stat
from covey.storage.cache import DiskCache
from covey.storage.connection import Connection
from covey.storage.fetch import fetch
from covey.storage.forks import ForkAware
from covey.storage.sparse import (
    BLOCK_BYTES,
    DATA,
    Entry,
    UnsoundError,
    block_count,
    count_marked,
    create,
    discard,
    read_token,
)
from covey.storage.tries import Attempts, Task
from covey.urls import shown

_BODY_BYTES = 16 * BLOCK_BYTES

# How exactly it is known when a file was used last.
_TOUCH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Known:
    """What this process knows about the folder that has a token."""

    token: bytes
    generation: int
    sound: NDArray[np.bool_]
    """The blocks that are there for certain."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Blocks that were written but not marked, and the token of the folder that they are in."""

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
        connection: Connection,
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
        self.folder = cache.place(where, url, version, str(state.size))
        self.path = os.path.join(self.folder, DATA)
        self._closed = False
        self._touched = -_TOUCH_SECONDS
        self._known = _Known(b"", -1, np.zeros(block_count(self.size), np.bool_))
        self.missing(np.zeros(0, np.int64))

    @property
    def generation(self) -> int:
        """How often the file at ``path`` was begun anew."""
        return self._known.generation

    def ensure(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Wait until these ranges of bytes are there."""
        fetch([(self, begins, ends)])

    def close(self) -> None:
        """Let go of it."""
        if not self._closed and self._once:
            discard(self.folder)
        self._closed = True

    def numbers(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """The blocks that ranges lie in, sorted."""
        if self._closed:
            raise ClosedError(f"{shown(self.url)}: these blocks are closed; open them again")
        begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
        if begins.shape != ends.shape or begins.ndim != 1:
            raise ValueError(f"ranges have shapes {begins.shape} and {ends.shape}, must be lists")
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
        """Those of some blocks that are not there, once there is a folder for them."""
        known = self._known
        if read_token(self.folder) != known.token or not known.sound[numbers].all():
            known = self._look(numbers)
        if time.monotonic() - self._touched >= _TOUCH_SECONDS:
            self._touch()
        return numbers[~known.sound[numbers]]

    def _look(self, numbers: NDArray[np.int64]) -> _Known:
        """Find out what is there, and begin anew if that is nothing, or nothing good."""
        for attempt in range(8):
            with self.cache.failing_well():
                try:
                    entry = Entry(self.folder, self.size)
                except (FileNotFoundError, UnsoundError) as error:
                    # Another process may just be making the folder, or removing it; a file that is
                    # missing from it still, is missing for good.
                    if isinstance(error, UnsoundError) or attempt > 2:
                        discard(self.folder)
                    create(self.folder, self.size)
                    continue
                with entry:
                    known = self._recognise(entry.token)
                    unsure = numbers[~known.sound[numbers]]
                    known.sound[unsure[entry.present(unsure)]] = True
                    return known
        raise StorageError(
            f"{self.folder}: it is damaged, and cannot be removed; do that, or set COVEY_CACHE to "
            "a folder elsewhere"
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
            os.utime(self.folder, ns=(now, now))
        except OSError:  # removed meanwhile, or somebody else's
            return

    def task(self, first: int, last: int) -> Task:
        """What fetches some blocks."""
        begin, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, self.size)
        call = range_call(self._fs_path, begin, end, self.state)
        attempts = Attempts(self.connection, self.url, f"reading bytes {begin} to {end}")
        return Task(self.connection, call, attempts, bytes=end - begin)

    def write(self, first: int, data: bytes) -> Receipt | None:
        """Write blocks; None if the folder is gone, which the next round sees to."""
        with self.cache.failing_well():
            try:
                entry = Entry(self.folder, self.size)
            except (FileNotFoundError, UnsoundError):
                return None
            with entry:
                receipt = Receipt(entry.token, first, entry.write(first * BLOCK_BYTES, data))
        self._touch()
        return receipt

    def mark(self, receipt: Receipt | None) -> None:
        """Say that blocks are there, now that they are known to be right."""
        with self.cache.failing_well():
            try:
                entry = Entry(self.folder, self.size)
            except (FileNotFoundError, UnsoundError):
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
        with self.cache.failing_well():
            try:
                entry = Entry(self.folder, self.size)
            except (FileNotFoundError, UnsoundError):
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

        Attempts(self.connection, self.url, "reading").repeat(action)
