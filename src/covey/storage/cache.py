"""The cache on disk: its directory, locks, and LRU eviction above a size limit.

::

    <cache>/blocks/<key>        blocks of a remote file: a sparse file of its size
    <cache>/blocks/<key>.map    the blocks that it has: see covey.storage.range_cache
    <cache>/unpacked/<key>      the decompressed data of a shard
    <cache>/indexes/<key>/      the files of an index

The mtime of an entry is the time of its last use. Names that begin with a dot are temporary. A
process that uses an entry pins it with a shared ``flock``; eviction takes an exclusive lock without
waiting, or skips the entry. Filesystems without locks lose only that protection: open and mapped
files stay valid when they are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from covey._files import remove_any
from covey.errors import CoveyError, StorageError
from covey.storage.local import remove_stale_temporaries

DEFAULT_CACHE_BYTES = 16 << 30
MAP_SUFFIX = ".map"

_KINDS = ("blocks", "unpacked", "indexes")
_HIDDEN = re.compile(r"\..+", re.DOTALL)  # names of temporary files
_SECTOR_BYTES = 512  # the unit of st_blocks


def cache_directory() -> Path:
    """Return the directory of the cache; create it with mode 0700 if it does not exist.

    The directory is ``$COVEY_CACHE``, or a subdirectory of the user's cache directory; if that
    cannot be created, a directory among the temporary files.

    Raises:
        StorageError: If it cannot be created, or belongs to another user.
    """
    asked = os.environ.get("COVEY_CACHE")
    if asked:
        return _own_directory(Path(asked).expanduser().absolute())
    with contextlib.suppress(StorageError, RuntimeError):  # the system does not know the user
        return _own_directory(_user_directory())
    import tempfile

    return _own_directory(Path(tempfile.gettempdir()) / f"covey-cache-{os.getuid()}")


def cache_limit(cache_bytes: int | None = None) -> int:
    """Return the size limit of the cache: the argument, ``$COVEY_CACHE_BYTES``, or 16 GiB."""
    variable = os.environ.get("COVEY_CACHE_BYTES", "").strip()
    if cache_bytes is None and not variable:
        return DEFAULT_CACHE_BYTES
    name = "COVEY_CACHE_BYTES" if cache_bytes is None else "cache_bytes"
    value: int | str = variable if cache_bytes is None else cache_bytes
    if not str(value).isdecimal() or int(value) < 1:
        raise ValueError(f"{name} is {value!r}; must be an integer >= 1")
    return int(value)


def _user_directory() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/covey"
    found = os.environ.get("XDG_CACHE_HOME")
    return (Path(found) if found else Path.home() / ".cache") / "covey"


def _own_directory(directory: Path, *, links: bool = True) -> Path:
    """Create a directory of the user with mode 0700, and return it.

    Args:
        directory: The directory.
        links: Whether it may be a symbolic link.
    """
    try:
        for each in (*reversed(directory.parents), directory):
            with contextlib.suppress(FileExistsError):
                if not each.is_dir():
                    os.mkdir(each, 0o700)
        found = os.stat(directory, follow_symlinks=links)
        reason = None
        if found.st_uid != os.getuid():
            reason = f"the directory belongs to user {found.st_uid}"
        elif not stat.S_ISDIR(found.st_mode) or not os.access(directory, os.W_OK | os.X_OK):
            reason = "it is not a writable directory"
    except OSError as error:
        reason = f"the directory cannot be created ({error.strerror})"
    if reason is not None:
        raise StorageError(
            reason,
            path=directory,
            remedy="set COVEY_CACHE to a directory that belongs to you, or does not exist yet",
        )
    return directory


# Locks.


def pin(descriptor: int, path: str) -> bool:
    """Lock an open file of the cache; return False if it was evicted before.

    The entry is pinned until :func:`unpin`, or until the descriptor and its duplicates are closed.
    """
    with contextlib.suppress(OSError):  # the filesystem has no locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return _is_at(descriptor, path)


def open_pinned(path: str, flags: int) -> int:
    """Open a file of the cache and pin it; return its descriptor."""
    while True:
        descriptor = os.open(path, flags, 0o600)
        try:
            if pin(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def unpin(descriptor: int) -> None:
    """Release the lock of :func:`pin`, also of duplicates, and close the descriptor."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def evict(path: str) -> bool:
    """Remove an entry unless it is pinned; return whether it is removed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return not os.path.lexists(path)
    try:
        with contextlib.suppress(OSError):  # the filesystem has no locks
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        if not _is_at(descriptor, path):
            return False
        # The map first: with the lock, no process opens it.
        remove_any(Path(path + MAP_SUFFIX))
        remove_any(Path(path))
        return not os.path.lexists(path)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


# Eviction.


class DiskCache:
    """The cache directory, with LRU eviction of whole entries above a size limit.

    Args:
        limit: Size limit in bytes for all entries together. Processes that add entries at the same
            time may each exceed it by a sixteenth.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.root = os.fspath(cache_directory())
        self._free = 0  # bytes that can be added before the next scan

    def entry_path(self, kind: str, *identity: str) -> str:
        """Return the path of an entry; create its parent with mode 0700 if it does not exist.

        Args:
            kind: The subdirectory of the cache.
            identity: Strings that identify the content.

        Raises:
            StorageError: If the parent belongs to another user, or cannot be created.
        """
        import hashlib

        directory = _own_directory(Path(self.root, kind), links=False)
        if directory.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            directory.chmod(0o700)
        key = "\0".join(identity).encode("utf-8", "surrogatepass")
        return os.path.join(directory, hashlib.sha256(key).hexdigest()[:40])

    def make_room(self, growth: int, needed: Container[str] = ()) -> None:
        """Evict entries that are not pinned, the least recently used first.

        Args:
            growth: The bytes to be added.
            needed: The paths of entries that are not evicted.

        Raises:
            StorageError: If the bytes do not fit.
        """
        if not self.try_make_room(growth, needed):
            raise self.full_error(growth)

    def try_make_room(self, growth: int, needed: Container[str] = ()) -> bool:
        """Evict entries as :meth:`make_room` does; return whether the bytes fit."""
        if growth <= self._free:
            self._free -= growth
            return True
        self._free, spare = 0, self.limit // 16
        entries = sorted(self._scan())
        used = sum(size for _, _, size in entries)
        for _, path, size in entries:
            if used + growth + spare <= self.limit:
                break
            if path not in needed and evict(path):
                used -= size
        if used + growth > self.limit:
            return False
        self._free = min(spare, self.limit - used - growth)
        return True

    def full_error(self, size: int) -> StorageError:
        """Return the error for bytes that do not fit."""
        return StorageError(
            f"{size} bytes are needed at the same time, but the limit of the cache is {self.limit}",
            path=self.root,
            remedy="raise cache_bytes=, or set COVEY_CACHE_BYTES",
        )

    def _scan(self) -> Iterator[tuple[int, str, int]]:
        """Yield the time of the last use, the path and the disk usage of each entry."""
        for kind in _KINDS:
            directory = os.path.join(self.root, kind)
            remove_stale_temporaries(directory, _HIDDEN)  # of killed processes
            with contextlib.suppress(FileNotFoundError):
                for entry in os.scandir(directory):
                    if entry.name.startswith(".") or entry.name.endswith(MAP_SUFFIX):
                        continue
                    with contextlib.suppress(OSError):  # another process has removed it
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime_ns, entry.path, stored_bytes(entry.path)

    @contextmanager
    def wrap_os_errors(self) -> Iterator[None]:
        """Raise StorageError with the path of the cache in place of an OSError."""
        try:
            yield
        except OSError as error:
            if isinstance(error, CoveyError):
                raise
            raise StorageError(
                f"the cache cannot be written: {error.strerror or error}",
                path=self.root,
                remedy="free disk space, lower COVEY_CACHE_BYTES, or set COVEY_CACHE to another "
                "directory",
            ) from error


def stored_bytes(path: str) -> int:
    """Return the disk usage of an entry; remove what killed processes left in a directory."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return found.st_blocks * _SECTOR_BYTES
    remove_stale_temporaries(path, _HIDDEN)
    with os.scandir(path) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
