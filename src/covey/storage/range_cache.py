"""Random access to remote files through blocks that are cached on disk.

::

    <key>        size of the remote file, with holes for missing blocks
    <key>.map    magic and size of the file (16 bytes), then a byte per block: 1 if present

A block is written before its byte of the map, and processes that fetch the same block write the
same bytes. Blocks have no checksums: records have them, and one that seems corrupt is fetched
again.
"""

from __future__ import annotations

import os
import random
import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from covey.errors import ClosedError
from covey.storage.cache import MAP_SUFFIX, DiskCache, evict, open_pinned, unpin
from covey.storage.driver import ForkAware, RemoteFile
from covey.untrusted import read_at
from covey.urls import shown

Offsets = NDArray[np.int64]

BLOCK_BYTES = 1 << 16

# Ranges with a gap of so many missing blocks are fetched by one request, and a longer range by
# several.
_MAX_GAP_BLOCKS = 4
_MAX_RANGE_BLOCKS = (2 << 20) // BLOCK_BYTES

# Of the cache, the part that one call of prefetch() may fill.
_PREFETCHED_PART = 4

_HEADER = struct.Struct("<8sQ")
_MAGIC = b"covey 4\n"

# Time to wait for other threads and processes to unpin entries.
_ROOM_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.02
_RANDOM = random.SystemRandom()

_CHUNK_BYTES = 16 * BLOCK_BYTES


class CachedFile(ForkAware):
    """A remote file whose blocks are cached on disk, in the state in which it was opened.

    The cache entry is pinned by :func:`fetched`. Between two uses another process may evict it; the
    next one creates another entry. Threads may share a file: they use the same entry as long as one
    of them pins it, and the entry stays readable if the user removes the cache directory.

    Args:
        file: The remote file.
        cache: The cache.
        server: What identifies the file besides its URL: the address of the server.
    """

    def __init__(self, file: RemoteFile, cache: DiskCache, server: str) -> None:
        super().__init__()
        self.file = file
        self.cache = cache
        self.state = file.state
        self.size = file.state.size
        # Without a version no later process can validate the blocks: they are removed on close.
        self._is_temporary = not file.state.version
        version = file.state.version or uuid.uuid4().hex
        self.path = cache.entry_path("blocks", server, file.url, version, str(self.size))
        self._closed = False
        self._pins = 0
        self.descriptor = -1
        """The open file with the blocks, while it is pinned."""
        self._map = -1
        self._present = np.zeros(-(-self.size // BLOCK_BYTES), np.bool_)
        """The blocks that the pinned entry is known to have."""

    def _reset_after_fork(self) -> None:
        if self.descriptor >= 0:  # without unlocking the entry, which would unpin the parent's
            os.close(self.descriptor)
            os.close(self._map)
        self._pins, self.descriptor = 0, -1

    @property
    def entry_id(self) -> tuple[int, int]:
        """The identity of the pinned entry, which differs from other mapped ones."""
        found = os.fstat(self.descriptor)
        return found.st_dev, found.st_ino

    def read_at(self, begin: int, end: int) -> bytes:
        """Return bytes that :func:`fetched` has fetched, while the file is pinned."""
        return read_at(self.descriptor, begin, end - begin)

    def discard(self, begins: Offsets, ends: Offsets) -> None:
        """Forget the blocks of ranges, so that they are fetched again."""
        blocks = self.blocks(begins, ends)
        with self.pinned(), self._lock, self.cache.wrap_os_errors():
            self._present[blocks] = False
            for block in blocks.tolist():
                os.pwrite(self._map, b"\0", _HEADER.size + block)

    def close(self) -> None:
        """Close the file. Its blocks stay in the cache."""
        if not self._closed and self._is_temporary:
            evict(self.path)
        self._closed = True

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Pin the cache entry, and create it if it does not exist."""
        with self._lock:
            if self.descriptor < 0:
                with self.cache.wrap_os_errors():
                    self.descriptor = self._open()
            self._pins += 1
        try:
            yield
        finally:
            with self._lock:
                self._pins = max(0, self._pins - 1)  # a forked child has none
                if not self._pins and self.descriptor >= 0:
                    os.close(self._map)
                    unpin(self.descriptor)
                    self.descriptor = -1

    def _open(self) -> int:
        while True:
            try:
                descriptor = open_pinned(self.path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:  # the user removed the cache directory
                self.cache.entry_path("blocks")
                continue
            stored = os.fstat(descriptor).st_size
            if stored in (0, self.size):
                break
            os.unlink(self.path)  # another program has changed it
            unpin(descriptor)
        try:
            self._map = os.open(self.path + MAP_SUFFIX, os.O_RDWR | os.O_CREAT, 0o600)
            header = _HEADER.pack(_MAGIC, self.size)
            size = len(header) + len(self._present)
            is_valid = os.fstat(self._map).st_size == size and stored == self.size
            if not is_valid or os.pread(self._map, len(header), 0) != header:
                os.ftruncate(self._map, 0)
                os.ftruncate(self._map, size)
                os.pwrite(self._map, header, 0)
            # The map of a new entry is valid first: it may be that of an entry that was removed.
            os.ftruncate(descriptor, self.size)
            self._present[:] = False
            self._update()
            with suppress(OSError):
                os.utime(descriptor, ns=(time.time_ns(), time.time_ns()))
        except BaseException:
            unpin(descriptor)
            raise
        return descriptor

    def _update(self) -> None:
        """Add the blocks that other files and processes have written to the entry."""
        found = np.frombuffer(read_at(self._map, _HEADER.size, len(self._present)), np.uint8)
        self._present[: len(found)] |= found == 1

    def blocks(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Return the sorted blocks that contain ranges."""
        if self._closed:
            raise ClosedError(
                "the file is closed", path=shown(self.file.url), remedy="open it again"
            )
        begins, ends = np.asarray(begins, np.int64), np.asarray(ends, np.int64)
        if begins.shape != ends.shape or begins.ndim != 1:
            raise ValueError(f"ranges have shapes {begins.shape} and {ends.shape}; must be 1-D")
        if ((begins < 0) | (begins > ends) | (ends > self.size)).any():
            url = shown(self.file.url)
            raise ValueError(f"{url}: a range is not within its {self.size} bytes")
        first = begins // BLOCK_BYTES
        counts = np.where(begins < ends, -(-ends // BLOCK_BYTES) - first, 0)
        before = np.cumsum(counts) - counts
        return np.unique(np.repeat(first - before, counts) + np.arange(counts.sum()))

    def missing(self, blocks: Offsets, *, update: bool = False) -> Offsets:
        """Return the blocks that the pinned entry does not have.

        Args:
            blocks: The blocks.
            update: Whether to read the map again, for the blocks of other processes.
        """
        found = blocks[~self._present[blocks]]
        if update and len(found):
            with self._lock, self.cache.wrap_os_errors():
                self._update()
            found = blocks[~self._present[blocks]]
        return found

    def ranges(
        self, blocks: Offsets, in_flight: Mapping[int, object], max_gap: int
    ) -> Iterator[tuple[int, int]]:
        """Yield ranges of blocks (first, last + 1) to fetch, none of them twice.

        Args:
            blocks: The sorted blocks, which are missing and not in flight.
            in_flight: The blocks that are being fetched.
            max_gap: Maximum number of other missing blocks between two of a range.
        """
        present = self._present.copy()
        present[list(in_flight)] = True
        before = np.cumsum(present)
        distant = np.diff(blocks) > 1 + max_gap
        breaks = np.flatnonzero(distant | (before[blocks[1:]] > before[blocks[:-1]]))
        firsts = blocks[np.concatenate([[0], breaks + 1])]
        lasts = blocks[np.concatenate([breaks, [len(blocks) - 1]])] + 1
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            for begin in range(first, last, _MAX_RANGE_BLOCKS):
                yield begin, min(begin + _MAX_RANGE_BLOCKS, last)

    def fetch(self, first: int, last: int) -> None:
        """Fetch blocks and write them to the pinned entry; all blocks if there is a copy."""
        self._store(first, self.file.read(first * BLOCK_BYTES, min(last * BLOCK_BYTES, self.size)))
        if self.file.copy is None or self._present.all():
            return
        if self.cache.try_make_room(self.size):
            for begin in range(0, self.size, _CHUNK_BYTES):
                end = min(begin + _CHUNK_BYTES, self.size)
                self._store(begin // BLOCK_BYTES, self.file.read(begin, end))

    def _store(self, first: int, data: bytes) -> None:
        count = -(-len(data) // BLOCK_BYTES)
        with self.cache.wrap_os_errors():
            written = 0
            while written < len(data):
                rest = memoryview(data)[written:]
                written += os.pwrite(self.descriptor, rest, first * BLOCK_BYTES + written)
            os.pwrite(self._map, b"\1" * count, _HEADER.size + first)
        with self._lock:
            self._present[first : first + count] = True


class _InFlight(ForkAware):
    """The blocks that threads of the process are fetching, by entry; none is fetched twice."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: defaultdict[str, dict[int, Future[None]]] = defaultdict(dict)

    def _reset_after_fork(self) -> None:
        self._blocks.clear()

    def request(
        self, needs: Sequence[tuple[CachedFile, Offsets]], limit: float = float("inf")
    ) -> tuple[list[Future[None]], int] | None:
        """Request the missing blocks of pinned files.

        Returns:
            The requests to wait for, also of other threads, and the bytes that were requested; None
            if they are more than `limit`, or the cache has no room for them.
        """
        with self._lock:
            found: list[Future[None]] = []
            wanted: list[tuple[CachedFile, Offsets]] = []
            for file, blocks in needs:
                flying = self._blocks[file.path]
                missing = file.missing(blocks, update=True).tolist()
                found += {flying[block] for block in missing if block in flying}
                new = [block for block in missing if block not in flying]
                if new:
                    wanted.append((file, np.array(new, np.int64)))
            for max_gap in (_MAX_GAP_BLOCKS, 0):
                ranges = [
                    (file, *each)
                    for file, new in wanted
                    for each in file.ranges(new, self._blocks[file.path], max_gap)
                ]
                growth: dict[DiskCache, int] = defaultdict(int)
                for file, first, last in ranges:
                    growth[file.cache] += (last - first) * BLOCK_BYTES
                if sum(growth.values()) > limit:
                    continue
                if all(cache.try_make_room(size) for cache, size in growth.items()):
                    found += [self._submit(*each) for each in ranges]
                    return found, sum(growth.values())
            return None

    def _submit(self, file: CachedFile, first: int, last: int) -> Future[None]:
        flying = self._blocks[file.path]
        pin = ExitStack()
        pin.enter_context(file.pinned())

        def task() -> None:
            try:
                file.fetch(first, last)
            finally:
                with self._lock:
                    for block in range(first, last):
                        flying.pop(block, None)
                pin.close()

        future = file.file.driver.submit(task)
        flying.update(dict.fromkeys(range(first, last), future))
        return future


_IN_FLIGHT = _InFlight()

Request = tuple[CachedFile, Offsets, Offsets]
"""A file, the begins of ranges of it, and their ends."""


def _merge(requests: Sequence[Request]) -> list[tuple[CachedFile, Offsets]]:
    """Return the blocks of each file."""
    needs: dict[CachedFile, Offsets] = {}
    for file, begins, ends in requests:
        blocks = file.blocks(begins, ends)
        needs[file] = np.union1d(blocks, needs[file]) if file in needs else blocks
    return list(needs.items())


@contextmanager
def fetched(requests: Sequence[Request]) -> Iterator[None]:
    """Fetch ranges of files into the cache, and pin the files until the context exits.

    Raises:
        FileChangedError: If a file changed after it was opened.
        StorageError: If a range cannot be read, or the ranges exceed the limit of the cache.
    """
    needs = _merge(requests)
    deadline = time.monotonic() + _ROOM_TIMEOUT_S
    while True:
        with ExitStack() as pins:
            for file, _ in needs:
                pins.enter_context(file.pinned())
            while any(len(file.missing(blocks)) for file, blocks in needs):
                found = _IN_FLIGHT.request(needs)
                if found is None:
                    break
                for future in found[0]:
                    future.result()
            else:
                yield
                return
        _drop_unneeded(needs, deadline)


def prefetch(requests: Sequence[Request], limit: int) -> int | None:
    """Start to fetch ranges of files into the cache.

    Returns:
        The bytes that were requested, without those that are in the cache or in flight; None if
        they are more than `limit`, or than the cache has room for.
    """
    needs = _merge(requests)
    if not needs:
        return 0
    limit = min(limit, *(file.cache.limit // _PREFETCHED_PART for file, _ in needs))
    with ExitStack() as pins:
        for file, _ in needs:
            pins.enter_context(file.pinned())
        found = _IN_FLIGHT.request(needs, limit)
    return None if found is None else found[1]


def _drop_unneeded(needs: Sequence[tuple[CachedFile, Offsets]], deadline: float) -> None:
    """Evict the entry with the most blocks that are not needed, or wait for other threads.

    Raises:
        StorageError: If the needed blocks exceed the limit of the cache, or the time has passed.
    """
    sizes: dict[DiskCache, int] = defaultdict(int)
    for file, blocks in needs:
        sizes[file.cache] += len(blocks) * BLOCK_BYTES
    for cache, size in sizes.items():
        if size > cache.limit or time.monotonic() > deadline:
            raise cache.full_error(size)
    unneeded = {f: int(f._present.sum() - f._present[blocks].sum()) for f, blocks in needs}
    partial = sorted((f for f in unneeded if unneeded[f]), key=lambda f: -unneeded[f])
    if not any(evict(file.path) for file in partial):
        time.sleep(_RANDOM.uniform(0, 2 * _POLL_INTERVAL_S))
