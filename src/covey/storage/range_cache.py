"""Random access to remote files through blocks that are cached on disk."""

from __future__ import annotations

import os
import random
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from covey._fork import ForkAware
from covey.errors import ClosedError, StorageError
from covey.storage.base import Stat
from covey.storage.cache import DiskCache
from covey.storage.cache_entry import (
    BLOCK_BYTES,
    DATA,
    NEW_PREFIX,
    BlockEntry,
    CorruptCacheEntryError,
    block_count,
    create,
    discard,
)
from covey.storage.filesystem import RemoteFilesystem
from covey.storage.requests import (
    Request,
    download_call,
    range_call,
    run_all,
    run_one,
    unchanged_call,
)
from covey.untrusted import read_at
from covey.urls import shown

Offsets = NDArray[np.int64]

# Ranges with a gap of so many blocks are fetched by one request, and a longer range by several.
_MAX_GAP_BLOCKS = 4
_MAX_RANGE_BLOCKS = (8 << 20) // BLOCK_BYTES

# Responses that are held in memory until the state of their files is checked.
_MAX_BUFFERED_BYTES = 64 << 20

# Time to wait for other threads and processes to unpin entries.
_ROOM_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.02
_RANDOM = random.SystemRandom()

_CHUNK_BYTES = 16 * BLOCK_BYTES
_OPEN_ATTEMPTS = 8


class CachedFile(ForkAware):
    """A remote file whose blocks are cached on disk, in the state in which it was opened.

    The cache entry is pinned by :func:`fetched`. Between two uses another process may evict it; the
    next one creates another entry. Threads may share a file: they use the same entry as long as one
    of them pins it, and the entry stays readable if the user removes the cache directory.

    Args:
        filesystem: The filesystem of the file.
        cache: The cache.
        url: The URL of the file, with credentials.
        state: The state of the file.
        server: What identifies the file besides its URL: the address of the server.
    """

    def __init__(
        self,
        filesystem: RemoteFilesystem,
        cache: DiskCache,
        url: str,
        state: Stat,
        server: str,
    ) -> None:
        super().__init__()
        self.filesystem = filesystem
        self.cache = cache
        self.url = url
        self.state = state
        self.size = state.size
        self.ignores_ranges = False
        """Whether the server returns the whole file for any range."""
        self.fs_path = filesystem.path_of(url)
        # Without a version no later process can validate the blocks: they are removed on close.
        self._is_temporary = not state.version
        version = state.version or uuid.uuid4().hex
        self.directory = cache.entry_path("blocks", server, url, version, str(state.size))
        self.path = os.path.join(self.directory, DATA)
        self._closed = False
        self._pins = 0
        self._entry: BlockEntry | None = None
        self._known_id = b""
        self._valid = np.zeros(block_count(self.size), np.bool_)
        """The blocks of the entry that are known to be valid."""

    def _reset_after_fork(self) -> None:
        entry, self._entry, self._pins = self._entry, None, 0
        if entry is not None:
            os.close(entry.descriptor)  # without unlocking it, which would unpin the parent's

    @property
    def descriptor(self) -> int:
        """The open file with the blocks, while it is pinned."""
        return self._pinned_entry.descriptor

    @property
    def entry_id(self) -> bytes:
        """The id of the pinned cache entry, which differs from those of earlier entries."""
        return self._pinned_entry.id

    @property
    def _pinned_entry(self) -> BlockEntry:
        assert self._entry is not None
        return self._entry

    def read_at(self, begin: int, end: int) -> bytes:
        """Return bytes that :func:`fetched` has fetched, while the file is pinned."""
        return read_at(self.descriptor, begin, end - begin)

    def discard(self, begins: Offsets, ends: Offsets) -> None:
        """Invalidate the blocks of ranges, so that they are fetched again."""
        blocks = self.blocks(begins, ends)
        with self.pinned(), self._lock, self.cache.wrap_os_errors():
            self._valid[blocks] = False
            for block in blocks.tolist():
                self._pinned_entry.invalidate(block)

    def close(self) -> None:
        """Close the file. Its blocks stay in the cache."""
        if not self._closed and self._is_temporary:
            discard(self.directory)
        self._closed = True

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Pin the cache entry, and create it if it does not exist."""
        with self._lock:
            if self._entry is None:
                self._entry = self._open_entry()
                if self._entry.id != self._known_id:
                    self._known_id = self._entry.id
                    self._valid[:] = False
                with suppress(OSError):
                    os.utime(self.directory)
            self._pins += 1
        try:
            yield
        finally:
            with self._lock:
                self._pins -= 1
                if not self._pins and self._entry is not None:
                    self._entry.close()
                    self._entry = None

    def _open_entry(self) -> BlockEntry:
        with self.cache.wrap_os_errors():
            for attempt in range(_OPEN_ATTEMPTS):
                try:
                    return BlockEntry(self.directory, self.size)
                except (FileNotFoundError, CorruptCacheEntryError) as error:
                    # Another process may be about to rename the directory; a file that stays
                    # missing is lost.
                    if isinstance(error, CorruptCacheEntryError) or attempt > 2:
                        discard(self.directory)
                    create(self.directory, self.size)
        raise StorageError(
            "the cache entry is corrupt and cannot be removed",
            path=self.directory,
            remedy="remove it, or set COVEY_CACHE to another directory",
        )

    def blocks(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Return the sorted blocks that contain ranges."""
        if self._closed:
            raise ClosedError("the file is closed", path=shown(self.url), remedy="open it again")
        begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
        if begins.shape != ends.shape or begins.ndim != 1:
            raise ValueError(f"ranges have shapes {begins.shape} and {ends.shape}; must be 1-D")
        if ((begins < 0) | (begins > ends) | (ends > self.size)).any():
            raise ValueError(f"{shown(self.url)}: a range is not within its {self.size} bytes")
        first = begins // BLOCK_BYTES
        counts = np.where(begins < ends, -(-ends // BLOCK_BYTES) - first, 0)
        before = np.cumsum(counts) - counts
        return np.unique(np.repeat(first - before, counts) + np.arange(counts.sum()))

    def missing(self, blocks: Offsets) -> Offsets:
        """Return the blocks that the pinned entry does not have."""
        unknown = blocks[~self._valid[blocks]]
        if not len(unknown):
            return unknown
        with self._lock, self.cache.wrap_os_errors():
            self._valid[unknown[self._pinned_entry.valid_blocks(unknown)]] = True
        return unknown[~self._valid[unknown]]

    def store(self, first: int, data: bytes) -> None:
        """Write blocks to the pinned entry."""
        with self._lock, self.cache.wrap_os_errors():
            self._pinned_entry.write(first, data)
            self._valid[first : first + block_count(len(data))] = True

    def download(self) -> None:
        """Fetch the whole file into the pinned entry, by one request."""
        parent = os.path.dirname(self.directory)
        with (
            self.cache.wrap_os_errors(),
            tempfile.TemporaryDirectory(prefix=NEW_PREFIX, dir=parent) as directory,
        ):
            target = os.path.join(directory, DATA)
            call = download_call(self.fs_path, target, self.state)
            run_one(Request(self.filesystem, self.url, "reading", call, timeout_s=None))
            with open(target, "rb") as file:
                for first in range(0, block_count(self.size), _CHUNK_BYTES // BLOCK_BYTES):
                    self.store(first, file.read(_CHUNK_BYTES))


@dataclass(slots=True)
class _Need:
    """The blocks that are needed of one file."""

    file: CachedFile
    blocks: Offsets
    missing: Offsets = field(default_factory=lambda: np.zeros(0, np.int64))

    def find_missing(self) -> bool:
        """Find the missing blocks; return whether there are any."""
        self.missing = self.file.missing(self.blocks)
        if len(self.missing) and self.file.ignores_ranges:
            self.blocks = np.arange(block_count(self.file.size))
            self.missing = self.file.missing(self.blocks)
        return bool(len(self.missing))


@contextmanager
def fetched(requests: Sequence[tuple[CachedFile, Offsets, Offsets]]) -> Iterator[None]:
    """Fetch ranges of bytes of files into the cache, and pin the files until the context exits.

    Args:
        requests: Tuples of a file, the begins of its ranges and their ends.

    Raises:
        FileChangedError: If a file changed after it was opened.
        StorageError: If a range cannot be read, or the ranges exceed the limit of the cache.
    """
    needs: dict[int, _Need] = {}
    for file, begins, ends in requests:
        blocks = file.blocks(begins, ends)
        if id(file) in needs:
            blocks = np.union1d(blocks, needs[id(file)].blocks)
        needs[id(file)] = _Need(file, blocks)
    deadline = time.monotonic() + _ROOM_TIMEOUT_S
    while True:
        with ExitStack() as pins:
            for need in needs.values():
                pins.enter_context(need.file.pinned())
            while lacking := [need for need in needs.values() if need.find_missing()]:
                growth, stored = _sizes(needs)
                if not all(cache.try_make_room(size, stored) for cache, size in growth.items()):
                    break
                _fetch_missing(lacking)
            else:
                yield
                return
        # Blocks of these files that are not needed now fill the cache: drop whole entries.
        for cache, size in growth.items():
            if size + sum(stored.values()) > cache.limit or time.monotonic() > deadline:
                raise cache.full_error(size + sum(stored.values()))
            if not cache.drop_unneeded(size, stored):  # another thread or process pins entries
                time.sleep(_RANDOM.uniform(0, 2 * _POLL_INTERVAL_S))


def _sizes(needs: Mapping[int, _Need]) -> tuple[dict[DiskCache, int], dict[str, int]]:
    """Return the bytes to be added to each cache, and the bytes in use of each entry."""
    growth: dict[DiskCache, int] = defaultdict(int)
    stored: dict[str, int] = defaultdict(int)
    for need in needs.values():
        stored[need.file.directory] += (len(need.blocks) - len(need.missing)) * BLOCK_BYTES
        for first, last in merge(need.missing):
            growth[need.file.cache] += (last - first) * BLOCK_BYTES
    return growth, stored


def _fetch_missing(needs: Sequence[_Need]) -> None:
    targets: dict[Request, tuple[CachedFile, int]] = {}
    for need in needs:
        file = need.file
        if file.ignores_ranges:
            file.download()
            continue
        for first, last in merge(need.missing):
            begin, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, file.size)
            call = range_call(file.fs_path, begin, end, file.state)
            action = f"reading bytes {begin} to {end}"
            request = Request(file.filesystem, file.url, action, call, bytes=end - begin)
            targets[request] = file, first
    buffered: list[tuple[CachedFile, int, bytes]] = []
    for request, data in run_all(list(targets)):
        file, first = targets[request]
        if data is None:
            file.ignores_ranges = True  # there must be room for the whole file first
            continue
        buffered.append((file, first, data))
        if sum(len(data) for _, _, data in buffered) >= _MAX_BUFFERED_BYTES:
            _store(buffered)
    _store(buffered)


def _store(buffered: list[tuple[CachedFile, int, bytes]]) -> None:
    """Write responses to the cache, once it is known that their files are unchanged."""
    files = {id(file): file for file, _, _ in buffered}
    checks = [
        Request(file.filesystem, file.url, "reading", unchanged_call(file.fs_path, file.state))
        for file in files.values()
    ]
    for _ in run_all(checks):
        pass
    for file, first, data in buffered:
        file.store(first, data)
    buffered.clear()


def merge(blocks: Offsets) -> Iterator[tuple[int, int]]:
    """Yield ranges of blocks (first, last + 1) that cover sorted blocks, with small gaps."""
    if not len(blocks):
        return
    breaks = np.flatnonzero(np.diff(blocks) > 1 + _MAX_GAP_BLOCKS)
    firsts = blocks[np.concatenate([[0], breaks + 1])]
    lasts = blocks[np.concatenate([breaks, [len(blocks) - 1]])] + 1
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        for begin in range(first, last, _MAX_RANGE_BLOCKS):
            yield begin, min(begin + _MAX_RANGE_BLOCKS, last)
