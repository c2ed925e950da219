"""Open files of local shards: their identity, and the limit on their number."""

from __future__ import annotations

import errno
import os
import time
from collections import OrderedDict

from covey._fork import ForkAware
from covey.index.format import fingerprint_of
from covey.tfrecord.streams import RegularFile

# Two modifications within this time may have the same modification time.
_TIME_GRANULARITY_NS = 1_000_000_000


class FileIdentity:
    """Recognizes a file that was opened before, if it is unchanged.

    Args:
        found: The state of the file when it was opened.
        fingerprint: The checksum of its first and last bytes.
    """

    def __init__(self, found: os.stat_result, fingerprint: int) -> None:
        self.fingerprint = fingerprint
        self._size = found.st_size
        self._inode = found.st_dev, found.st_ino
        self._modified = found.st_mtime_ns
        self._is_settled = _is_settled(found)

    def matches(self, file: RegularFile) -> bool:
        """Return whether an open file is that file. It may be touched or extended."""
        found = file.stat()
        is_same = (found.st_dev, found.st_ino) == self._inode
        is_untouched = found.st_mtime_ns == self._modified
        if is_same and is_untouched and self._is_settled and found.st_size >= self._size:
            return True
        # Some network filesystems return another inode each time.
        if found.st_size < self._size or not (is_same or is_untouched):
            return False
        if fingerprint_of(file, self._size) != self.fingerprint:
            return False
        self._modified, self._is_settled = found.st_mtime_ns, _is_settled(found)
        return True


def _is_settled(found: os.stat_result) -> bool:
    """Return whether a later modification will have another modification time."""
    return abs(time.time_ns() - found.st_mtime_ns) > _TIME_GRANULARITY_NS


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

    A file in use is not in the pool. The pool has at most a quarter of the files that the process may
    open; the least recently used ones are closed.
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
        """Open a file; close the files of the pool if the process has too many."""
        try:
            return RegularFile(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self.close()
        return RegularFile(path)

    def _reset_after_fork(self) -> None:
        self.close()  # the descriptors of the child are its own
