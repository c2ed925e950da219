"""The shards that one process reads: mapped into memory, read into buffers, or cached blocks.

A local shard is compared with its description in the index when it is mapped. A shard that is not
mapped is opened for each batch, and compared after it was read.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import StorageError
from covey.filenames import find_moved
from covey.index import changed_state
from covey.index.format import FINGERPRINT_BYTES, Shard, fingerprint_from
from covey.schema.diagnostics import changed_error
from covey.storage import Stat
from covey.untrusted import check_regular, os_errors, read_at

if TYPE_CHECKING:
    from covey.reading.gather import Segments, Table
    from covey.storage.range_cache import CachedFile, Request

MAX_MAPS = 30_000
"""Maximum number of shards that a process maps. Linux limits its maps to 65,530 by default."""

# Remote shards that are opened concurrently, and the part of the cache that each of them may use.
_MAX_OPENING = 8
_OPENING_BYTES = 2 << 20

_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

# A file that is modified twice within this time may have the same times.
_TIME_GRANULARITY_NS = 1_000_000_000


class Shards:
    """The shards of one process, numbered through all tables. Threads may share them.

    Args:
        tables: The splits.
        cache_bytes: Size limit of the cache.
        max_maps: Maximum number of shards that the process maps; 0 to map none.
    """

    def __init__(self, tables: Sequence[Table], cache_bytes: int | None, max_maps: int) -> None:
        self._process = os.getpid()
        self.gather = _core.Gather(
            [_core.RowTable(each.index.rows, shards=len(each.files.names)) for each in tables]
        )
        self.is_remote = any(table.files.storage.is_remote for table in tables)
        self.is_mapped = max_maps > 0
        """Whether shards are mapped into memory; False once the limit is reached."""
        self._max_maps = max_maps
        self._is_all_mapped = False
        self._cache_bytes = cache_bytes
        self._shards: list[tuple[Table, Shard]] = [
            (table, shard) for table in tables for shard in table.index.metadata.shards
        ]
        self._paths = [path for table in tables for path in table.files.paths]
        # Of local shards that are not mapped: the times of the file that was compared last.
        self._times: dict[int, tuple[int, int]] = {}
        self._cached: dict[int, CachedFile] = {}
        # Of remote shards that are mapped: the id of the cache entry.
        self._entries: dict[int, tuple[int, int]] = {}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._scattered = sum(shard.bytes for _, shard in self._shards) > memory // 2

    def _is_remote(self, number: int) -> bool:
        return self.is_remote and self._shards[number][0].files.storage.is_remote

    # Local shards.

    def _open(self, number: int) -> int:
        """Return the descriptor of a local shard, which a write may have moved."""
        try:
            path = self._paths[number] = find_moved(self._paths[number])
            with os_errors(path):
                return os.open(path, _OPEN_FLAGS)
        except FileNotFoundError:
            raise changed_error("the shard is missing", self._paths[number]) from None

    def _check(self, number: int, descriptor: int) -> None:
        """Compare an open file with the shard that was indexed.

        Raises:
            FileChangedError: If it is another one. Once it was compared, it may be extended.
        """
        path, shard, known = self._paths[number], self._shards[number][1], self._times.get(number)
        found = os.fstat(descriptor)
        check_regular(found.st_mode, path)
        times = found.st_mtime_ns, found.st_ctime_ns
        size = found.st_size if known is None else min(found.st_size, shard.bytes)
        reason = changed_state(shard, Stat(size, ""))  # a copied file has another version
        if reason is None and times != known:
            crc = fingerprint_from(partial(read_at, descriptor), shard.bytes)
            if crc != shard.fingerprint:
                reason = "the shard is not the one that was indexed"
        if reason is not None:
            raise changed_error(reason, path)
        is_settled = time.time_ns() - max(times) > _TIME_GRANULARITY_NS
        self._times[number] = times if is_settled else (0, 0)

    # Maps.

    def map_all(self) -> None:
        """Map all shards, which are local."""
        if not self._is_all_mapped:
            self._is_all_mapped = True
            self.map(range(len(self._shards)))

    def map(self, numbers: Sequence[int]) -> None:
        """Map shards into memory; remote ones must be fetched.

        Raises:
            FileChangedError: If a shard is missing, or is not the one that was indexed.
            StorageError: If it cannot be mapped.
        """
        for is_last in (False, True):
            try:
                self._map(numbers)
                return
            except _core.Fault as fault:
                with self.reader(fault.offset):
                    pass  # raises the reason, unless a write has moved the shards
                if is_last:
                    path = self._paths[fault.offset]
                    raise changed_error("the shard has changed", path) from None
            for each in numbers:
                self._paths[each] = find_moved(self._paths[each])

    def _map(self, numbers: Sequence[int]) -> None:
        try:
            files = [self._file(number) for number in numbers]
            self.gather.map(files, scattered=self._scattered, limit=self._max_maps)
        except OSError as error:
            if error.errno == errno.ENOMEM:  # the limit: shards are read from now on
                self.is_mapped = False
                return
            raise StorageError(
                f"the file cannot be mapped into memory ({error.strerror})",
                path=os.fsdecode(error.filename),
                remedy="open the dataset with mmap=False",
            ) from None

    def _file(self, number: int) -> _core.ShardFile:
        shard, cached = self._shards[number][1], self._cached.get(number)
        if cached is None:
            path = os.fsencode(self._paths[number])
            return _core.ShardFile(number, path, shard.bytes, shard.fingerprint)
        path = os.fsencode(cached.path)
        return _core.ShardFile(number, path, shard.bytes, None, cached.descriptor)

    # Reading.

    @contextmanager
    def reader(self, number: int) -> Iterator[Callable[[int, int], bytes]]:
        """Yield a function of an offset and a size that returns bytes of a shard.

        A remote shard must be fetched. A local one is compared with the index at the end.
        """
        cached = self._cached.get(number)
        if cached is not None:
            yield lambda offset, size: cached.read_at(offset, offset + size)
            return
        descriptor = self._open(number)
        try:
            with os_errors(self._paths[number]):
                yield partial(read_at, descriptor)
        finally:
            try:
                self._check(number, descriptor)
            finally:
                os.close(descriptor)

    # Remote shards.

    def parts(self, shards: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
        """Yield the rows of a batch in parts with as many remote shards as may be pinned.

        Args:
            shards: The shard of each row.
        """
        numbers = np.unique(shards)
        step = _max_pinned() if self.is_remote else max(1, len(numbers))
        for first in range(0, len(numbers), step):
            yield np.flatnonzero(np.isin(shards, numbers[first : first + step]))

    @contextmanager
    def fetched(self, segments: Segments, rows: NDArray[np.intp]) -> Iterator[None]:
        """Fetch segments of remote shards, and pin them in the cache until the context exits.

        Args:
            segments: The segments of a batch.
            rows: The rows of the batch to fetch.
        """
        if not self.is_remote:
            yield
            return
        from covey.storage.range_cache import fetched

        requests = self._requests(segments, rows)
        with fetched(list(requests.values())):
            if self.is_mapped:
                stale = [n for n in requests if self._entries.get(n) != self._cached[n].entry_id]
                self._map(stale)
                self._entries.update((n, self._cached[n].entry_id) for n in stale)
            yield

    def prefetch(self, segments: Segments, limit: int) -> int | None:
        """Start to fetch segments of remote shards, as :meth:`Gatherer.prefetch` does."""
        from covey.storage.range_cache import prefetch

        rows = np.arange(len(segments.shards))
        return prefetch(list(self._requests(segments, rows).values()), limit)

    def _requests(self, segments: Segments, rows: NDArray[np.intp]) -> dict[int, Request]:
        """Return the ranges of each remote shard that segments need."""
        shards, begins, ends = segments.shards[rows], segments.begins[rows], segments.ends[rows]
        numbers = [number for number in np.unique(shards).tolist() if self._is_remote(number)]
        new = [number for number in numbers if number not in self._cached]
        from covey.storage.cache import cache_limit

        threads = min(len(new), _MAX_OPENING, cache_limit(self._cache_bytes) // _OPENING_BYTES)
        if threads > 1:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(threads, thread_name_prefix="covey-open") as pool:
                list(pool.map(self._open_cached, new))
        requests: dict[int, Request] = {}
        for number in numbers:
            mine, size = shards == number, self._shards[number][1].bytes
            requests[number] = (
                self._open_cached(number),
                begins[mine],
                np.minimum(ends[mine], size),
            )
        return requests

    def _open_cached(self, number: int) -> CachedFile:
        found = self._cached.get(number)
        if found is not None:
            return found
        (table, shard), path = self._shards[number], self._paths[number]
        try:
            cached = table.files.storage.open_cached(path)
        except FileNotFoundError:
            raise changed_error("the shard is missing", path) from None
        try:
            reason = changed_state(shard, cached.state)
            # A version that the index has identifies the content; otherwise the fingerprint does.
            is_known = shard.version and cached.state.version
            if reason is None and not is_known and _fingerprint(cached) != shard.fingerprint:
                reason = "the shard is not the one that was indexed"
            if reason is not None:
                raise changed_error(reason, path)
        except BaseException:
            cached.close()
            raise
        found = self._cached.setdefault(number, cached)
        if found is not cached:  # opened by another thread as well
            cached.close()
        return found

    def discard(self, segments: Segments) -> bool:
        """Remove segments from the cache; return whether they can be fetched again."""
        is_cached = False
        for number in np.unique(segments.shards).tolist():
            cached, path = self._cached.get(number), self._paths[number]
            if cached is not None:
                mine = segments.shards == number
                ends = np.minimum(segments.ends[mine], cached.size)
                cached.discard(segments.begins[mine], ends)
                is_cached = True
            elif path in self._shards[number][0].copies:
                with suppress(FileNotFoundError):
                    os.unlink(path)  # the dataset decompresses it again when it is opened
        return is_cached

    def close(self) -> None:
        """Close the remote shards."""
        while self._cached and self._process == os.getpid():
            self._cached.popitem()[1].close()

    def __del__(self) -> None:
        if hasattr(self, "_cached"):
            self.close()


def _fingerprint(cached: CachedFile) -> int:
    """Return the fingerprint of a remote shard."""
    from covey.storage.range_cache import fetched

    part = min(cached.size, FINGERPRINT_BYTES)
    begins = np.array([0, cached.size - part], np.int64)
    with fetched([(cached, begins, begins + part)]):
        return fingerprint_from(lambda at, size: cached.read_at(at, at + size), cached.size)


def _max_pinned() -> int:
    """Return the number of remote shards that may be pinned at once; each has a descriptor."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 256 if limit == resource.RLIM_INFINITY else max(1, min(256, limit // 4))
