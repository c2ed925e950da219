"""The shards that one process has open, as local files.

A shard is opened when it is first needed, and compared once with its description in the index. The
local file is the shard itself, or the cached blocks of a remote shard.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FileChangedError, StorageError
from covey.index import changed_state
from covey.index.format import FINGERPRINT_BYTES, FileIdentity, Shard, fingerprint_of
from covey.reading.open_files import DESCRIPTORS, FilePool, Reservations, max_open_files
from covey.reading.rows import Segments, Table, changed_error
from covey.storage import Stat, cache_limit
from covey.untrusted import RegularFile

if TYPE_CHECKING:
    from covey.storage.range_cache import CachedFile, Request

# Remote shards that are opened concurrently, and the part of the cache that each of them may use.
_MAX_OPENING = 8
_OPENING_BYTES = 2 << 20

_POOL = FilePool()
_OWNERS = itertools.count()


@dataclass(eq=False)
class OpenShard:
    """An open shard."""

    path: str
    """The local file."""
    size: int
    identity: FileIdentity | None = None
    """The identity of a local shard; None for a remote one."""
    cached: CachedFile | None = None
    """The blocks of a remote shard."""
    mapped: tuple[int, int] | None = None
    """The id of the cache entry that is mapped."""


class OpenShards:
    """The open shards of one process, numbered through all tables. Threads may share it.

    Args:
        tables: The splits.
        cache_bytes: Size limit of the cache.
        maps: Maps that are left in the process; None to map no shard.
    """

    def __init__(
        self, tables: Sequence[Table], cache_bytes: int | None, maps: Reservations | None
    ) -> None:
        self.process = os.getpid()
        self.gather = _core.Gather([_row_table(table) for table in tables])
        self.is_remote = any(table.files.storage.is_remote for table in tables)
        self._cache_bytes = cache_bytes
        self._shards: list[tuple[Table, int, str, Shard]] = [
            (table, number, path, shard)
            for table in tables
            for number, (path, shard) in enumerate(
                zip(table.files.paths, table.index.metadata.shards, strict=True)
            )
        ]
        self._opened: dict[int, OpenShard] = {}
        self._owner = next(_OWNERS)
        self._lock = threading.Lock()  # of one process: a forked child opens the shards again
        self._mapping = threading.Lock()
        self.is_mapped = maps is not None and maps.reserve(self, len(self._shards))
        """Whether shards are mapped into memory."""
        self._keep_open = self.is_mapped and DESCRIPTORS.reserve(self, len(self._shards))
        size = sum(shard.bytes for _, _, _, shard in self._shards)
        self._scattered = size > _memory_bytes() // 2

    @property
    def max_pinned(self) -> int:
        """The number of remote shards that may be pinned at the same time."""
        return max_open_files() // 4

    def open(self, number: int) -> OpenShard:
        """Open a shard.

        Raises:
            FileChangedError: If the shard is missing, or is not the one that was indexed.
            StorageError: If it is not a regular file.
        """
        found = self._opened.get(number)
        if found is not None:
            return found
        opened = self._open_remote(number) if self._is_remote(number) else self._open_local(number)
        with self._lock:
            found = self._opened.setdefault(number, opened)
        if found is not opened and opened.cached is not None:  # opened by another thread as well
            opened.cached.close()
        return found

    def _is_remote(self, number: int) -> bool:
        return self._shards[number][0].files.storage.is_remote

    def _open_remote(self, number: int) -> OpenShard:
        table, _, path, shard = self._shards[number]
        try:
            cached = table.files.storage.open_cached(path)
        except FileNotFoundError:
            raise changed_error("the shard is missing", path) from None
        try:
            _check_state(path, shard, cached.state)
            # A version that the index has identifies the content; otherwise the fingerprint does.
            is_known = shard.version and cached.state.version
            if not is_known and _remote_fingerprint(cached) != shard.fingerprint:
                raise _replaced_error(path)
        except BaseException:
            cached.close()
            raise
        return OpenShard(cached.path, shard.bytes, cached=cached)

    def _open_local(self, number: int) -> OpenShard:
        _, _, path, shard = self._shards[number]
        file, found = self._open_file(number)
        opened = OpenShard(path, shard.bytes, FileIdentity(found, shard.fingerprint))
        _POOL.put((self._owner, number), file)
        return opened

    def _open_file(self, number: int) -> tuple[RegularFile, os.stat_result]:
        """Open a local shard and compare it with the index; what is checked is what is read."""
        table, _, path, shard = self._shards[number]
        try:
            file = _POOL.open(path)
        except FileNotFoundError:
            raise changed_error("the shard is missing", path) from None
        try:
            found = file.stat()
            # Without the version, which changes when a file is touched or copied.
            _check_state(path, shard, Stat(found.st_size, ""))
            # The index was validated with the same file, unless that was in another process.
            verified = table.index.verified.get(shard.name)
            is_verified = verified is not None and verified.matches(file)
            if not is_verified and fingerprint_of(file, shard.bytes) != shard.fingerprint:
                raise _replaced_error(path)
        except BaseException:
            file.close()
            raise
        return file, found

    @contextmanager
    def fetched(self, segments: Segments, rows: NDArray[np.intp]) -> Iterator[list[int]]:
        """Fetch segments of remote shards, and pin them in the cache until the context exits.

        Args:
            segments: The segments of a batch.
            rows: The rows of the batch to fetch.

        Yields:
            The remote shards of these rows.
        """
        requests = self._requests(segments, rows)
        from covey.storage.range_cache import fetched  # remote shards only

        with fetched(list(requests.values())):
            yield list(requests)

    def prefetch(self, segments: Segments, limit: int) -> int | None:
        """Start to fetch segments of remote shards, as :meth:`Gatherer.prefetch` does."""
        from covey.storage.range_cache import prefetch  # remote shards only

        rows = np.arange(len(segments.shards))
        return prefetch(list(self._requests(segments, rows).values()), limit)

    def _requests(self, segments: Segments, rows: NDArray[np.intp]) -> dict[int, Request]:
        """Return the ranges of each remote shard that segments need."""
        shards, begins, ends = segments.shards[rows], segments.begins[rows], segments.ends[rows]
        numbers = [number for number in np.unique(shards).tolist() if self._is_remote(number)]
        self._open_concurrently([number for number in numbers if number not in self._opened])
        requests: dict[int, Request] = {}
        for number in numbers:
            opened, mine = self.open(number), shards == number
            if opened.cached is not None:
                ends_in_file = np.minimum(ends[mine], opened.size)
                requests[number] = opened.cached, begins[mine], ends_in_file
        return requests

    def _open_concurrently(self, numbers: Sequence[int]) -> None:
        """Open remote shards, several at a time if the cache is large enough."""
        limit = cache_limit(self._cache_bytes) // _OPENING_BYTES
        threads = min(len(numbers), _MAX_OPENING, limit)
        if threads > 1:
            with ThreadPoolExecutor(threads, thread_name_prefix="covey-open") as pool:
                list(pool.map(self.open, numbers))

    def read(self, number: int, begin: int, end: int) -> bytes:
        """Return bytes of a shard; fewer if it ends before. Remote shards must be fetched."""
        cached = self.open(number).cached
        if cached is not None:
            return cached.read_at(begin, end)
        with self._taken(number) as file:
            return file.read_at(begin, end - begin)

    def check_unchanged(self, numbers: Sequence[int]) -> None:
        """Check after reading that local shards are the files that were opened.

        Raises:
            FileChangedError: If a shard was truncated or overwritten.
        """
        for number in numbers:
            identity = self.open(number).identity
            if identity is not None:
                with self._taken(number) as file:
                    if not identity.matches(file):
                        path = self._shards[number][2]
                        raise changed_error("the shard was truncated or overwritten", path)

    @contextmanager
    def _taken(self, number: int) -> Iterator[RegularFile]:
        """Take the file of a shard from the pool, and return it afterwards."""
        file = self._take(number)
        try:
            yield file
        finally:
            _POOL.put((self._owner, number), file)

    def _take(self, number: int) -> RegularFile:
        opened = self.open(number)
        file = _POOL.take((self._owner, number))
        if file is not None:
            return file
        try:
            file = _POOL.open(opened.path)
        except FileNotFoundError:
            raise changed_error("the shard is missing", opened.path) from None
        if opened.identity is not None and not opened.identity.matches(file):
            file.close()
            raise _replaced_error(opened.path)
        return file

    def map(self, numbers: Sequence[int]) -> None:
        """Map shards into memory: the files that were checked, not their paths."""
        # Each shard needs a descriptor until it is mapped.
        step = min(16, max_open_files() // 64)
        for begin in range(0, len(numbers), step):
            part = numbers[begin : begin + step]
            for number in part:
                self.open(number)  # may take long: without the lock
            with self._mapping, ExitStack() as stack:
                self._map(part, stack)

    def map_pinned(self, numbers: Sequence[int]) -> None:
        """Map remote shards whose cache entry is not the one that is mapped."""
        opened = [(number, self.open(number)) for number in numbers]
        self.map([n for n, each in opened if each.cached and each.mapped != each.cached.entry_id])

    def _map(self, numbers: Sequence[int], stack: ExitStack) -> None:
        files: list[_core.ShardFile] = []
        for number in numbers:
            opened = self.open(number)
            if opened.cached is not None:
                descriptor = opened.cached.descriptor
            else:
                descriptor = stack.enter_context(self._take(number)).fileno()
            fingerprint = None if opened.identity is None else opened.identity.fingerprint
            files.append(
                _core.ShardFile(
                    shard=number,
                    path=os.fsencode(opened.path),
                    descriptor=descriptor,
                    size=opened.size,
                    fingerprint=fingerprint,
                )
            )
        try:
            self.gather.set_shards(files, keep_open=self._keep_open, scattered=self._scattered)
        except OSError as error:
            raise StorageError(
                f"the file cannot be mapped into memory ({error.strerror})",
                path=os.fsdecode(error.filename),
                remedy="open the dataset with mmap=False",
            ) from None
        except _core.Fault as fault:
            path_changed = self._shards[fault.offset][2]
            raise changed_error("the shard was truncated or extended", path_changed) from None
        for number in numbers:
            opened = self.open(number)
            opened.mapped = None if opened.cached is None else opened.cached.entry_id

    def discard(self, segments: Segments) -> list[int] | None:
        """Remove segments of shards from the cache.

        Returns:
            The shards that must be mapped again; remote blocks are fetched when they are next read.
            None if nothing was cached, because the shards are local files.
        """
        is_cached = False
        for number in np.unique(segments.shards).tolist():
            opened, mine = self.open(number), segments.shards == number
            if opened.cached is not None:
                ends = np.minimum(segments.ends[mine], opened.size)
                opened.cached.discard(segments.begins[mine], ends)
                is_cached = True
            elif opened.path in self._shards[number][0].copies:
                with suppress(FileNotFoundError):
                    os.unlink(opened.path)  # the dataset decompresses it again when it is opened
        return [] if is_cached else None

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            opened = list(self._opened.values())
            self._opened.clear()
        _POOL.close(self._owner)
        for each in opened:
            if each.cached is not None:
                each.cached.close()

    def __del__(self) -> None:
        if hasattr(self, "_scattered"):
            self.close()


def _remote_fingerprint(cached: CachedFile) -> int:
    """Return the checksum of the first and last bytes of a remote file."""
    size = cached.size
    begins = np.array([0, max(0, size - FINGERPRINT_BYTES)], np.int64)
    ends = np.minimum(begins + FINGERPRINT_BYTES, size)
    checksum = 0
    from covey.storage.range_cache import fetched  # remote shards only

    with fetched([(cached, begins, ends)]):
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            checksum = _core.crc32c(cached.read_at(begin, end), checksum)
    return checksum


def _check_state(path: str, shard: Shard, stat: Stat | None) -> None:
    reason = changed_state(shard, stat)
    if reason is not None:
        raise changed_error(reason, path)


def _replaced_error(path: str) -> FileChangedError:
    return changed_error("the shard is not the one that was indexed", path)


def _row_table(table: Table) -> _core.RowTable:
    metadata = table.index.metadata
    return _core.RowTable(
        table.index.rows, shards=len(metadata.shards), single_stream=metadata.single_stream
    )


def _memory_bytes() -> int:
    """Return the size of the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30
