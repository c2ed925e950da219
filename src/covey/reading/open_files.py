"""Open files of local shards, and the limits on their number and on that of maps."""

from __future__ import annotations

import errno
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable

from covey._fork import ForkAware
from covey.filenames import find_moved
from covey.untrusted import RegularFile


def max_open_files() -> int:
    """Return the number of files that the process may have open."""
    try:
        import resource
    except ImportError:
        return 512
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 16 if limit == resource.RLIM_INFINITY else max(64, min(limit, 1 << 16))


class FilePool(ForkAware):
    """Open files of all datasets of the process, by dataset and shard.

    A file in use is not in the pool. The pool has at most a quarter of the files that the process
    may open; the least recently used ones are closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._files: OrderedDict[tuple[int, int], RegularFile] = OrderedDict()

    def take(self, key: tuple[int, int]) -> RegularFile | None:
        """Remove a file from the pool and return it; None if it is not there."""
        with self._lock:
            return self._files.pop(key, None)

    def put(self, key: tuple[int, int], file: RegularFile) -> None:
        """Add or return a file."""
        limit = max_open_files() // 4
        surplus = []
        with self._lock:
            if key in self._files:
                surplus.append(self._files.pop(key))
            self._files[key] = file
            while len(self._files) > limit:
                surplus.append(self._files.popitem(last=False)[1])
        for each in surplus:
            each.close()

    def close(self, owner: int | None = None) -> None:
        """Close the files of one dataset, or of all."""
        with self._lock:
            keys = [key for key in self._files if owner in (None, key[0])]
            files = [self._files.pop(key) for key in keys]
        for each in files:
            each.close()

    def open(self, path: str) -> RegularFile:
        """Open a shard; close the files of the pool if the process has too many."""
        try:
            return self._open(path)
        except FileNotFoundError:
            return self._open(find_moved(path))  # the split was overwritten

    def _open(self, path: str) -> RegularFile:
        try:
            return RegularFile(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self.close()
        return RegularFile(path)

    def _reset_after_fork(self) -> None:
        self.close()  # the descriptors of the child are its own


class Reservations(ForkAware):
    """What the shards of all datasets of the process may hold of a limited resource.

    Args:
        limit: Function that returns the limit.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        super().__init__()
        self._limit = limit
        self._counts: dict[int, int] = {}
        self._keys = itertools.count()

    def reserve(self, owner: object, count: int) -> bool:
        """Reserve `count` for the lifetime of `owner`; return False if there are too few."""
        with self._lock:
            if sum(list(self._counts.values())) + count > self._limit():
                return False
            key = next(self._keys)
            self._counts[key] = count
        # Without the lock: the garbage collector may run while this thread holds it.
        weakref.finalize(owner, self._counts.pop, key)
        return True


DESCRIPTORS = Reservations(lambda: max_open_files() // 2)
"""Descriptors that mapped shards keep open."""

# Linux limits the maps of a process to 65,530 by default; other libraries have maps too.
MAX_MAPS = 30_000
MAPS = Reservations(lambda: MAX_MAPS)
"""Maps of shards. A forked child has the maps of its parent, too."""
