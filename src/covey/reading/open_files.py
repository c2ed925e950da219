"""Open files of shards: whether one is still the file that was opened, and how many are kept."""

from __future__ import annotations

import errno
from collections import OrderedDict

from covey._fork import ForkAware
from covey.untrusted import RegularFile


def max_open_files() -> int:
    """How many files the process may have open."""
    try:
        import resource
    except ImportError:
        return 512
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 16 if limit == resource.RLIM_INFINITY else max(64, min(limit, 1 << 16))


class FilePool(ForkAware):
    """The open files of all datasets of the process that are read and not mapped.

    A file that is in use is not in the pool. Of the others, as many are kept as fit into a quarter
    of the limit on open files; the least recently used ones are closed.
    """

    def __init__(self) -> None:
        super().__init__()
        # By dataset and shard: the file, and the generation of its blocks.
        self._files: OrderedDict[tuple[int, int], tuple[RegularFile, int]] = OrderedDict()

    def take(self, key: tuple[int, int]) -> tuple[RegularFile, int] | None:
        """A file, for the caller alone."""
        with self._lock:
            return self._files.pop(key, None)

    def put(self, key: tuple[int, int], file: tuple[RegularFile, int]) -> None:
        """Return a file, or add one."""
        limit = max_open_files() // 4
        spare = []
        with self._lock:
            if key in self._files:
                spare.append(self._files.pop(key))
            self._files[key] = file
            while len(self._files) > limit:
                spare.append(self._files.popitem(last=False)[1])
        for each, _ in spare:
            each.close()

    def close(self, owner: int | None = None) -> None:
        """Close the files of a dataset, or of all."""
        with self._lock:
            keys = [key for key in self._files if owner in (None, key[0])]
            spare = [self._files.pop(key) for key in keys]
        for each, _ in spare:
            each.close()

    def open(self, path: str) -> RegularFile:
        """Open a file; make room for it if the limit is reached."""
        try:
            return RegularFile(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self.close()
        return RegularFile(path)

    def _reset_after_fork(self) -> None:
        self.close()  # a child has descriptors of its own
