"""The cache on disk: its directory, and LRU eviction of its entries."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey._files import remove_any
from covey.errors import CoveyError, StorageError
from covey.storage.cache_entry import DELETED_PREFIX, evict, stored_bytes
from covey.storage.local import remove_stale_temporaries

DEFAULT_CACHE_BYTES = 16 << 30

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

# Names of temporary files in the cache.
_HIDDEN = re.compile(r"\..+", re.DOTALL)


def cache_directory() -> Path:
    """Return the directory of the cache; create it if it does not exist.

    The directory is ``$COVEY_CACHE``, or a subdirectory of the user's cache directory. If it is not
    writable or belongs to another user, a directory among the temporary files is used. If
    ``$COVEY_CACHE`` is a directory that several users can write to, its subdirectory
    ``covey-<uid>`` is used. If other users can write to the directory, its mode is set to 0700.

    Raises:
        StorageError: If no directory can be used.
    """
    asked = os.environ.get("COVEY_CACHE")
    directory = Path(asked).expanduser().absolute() if asked else _user_directory()
    fallback = Path(tempfile.gettempdir()) / f"covey-cache-{os.getuid()}"
    reason = "there is no home directory"
    if directory is not None:
        if asked and _is_shared(directory):
            directory = directory / f"covey-{os.getuid()}"
            found = _find_fault(directory, links=False)
        else:
            found = _find_fault(directory, links=True)
        if found is None and not asked and not _is_of_user(directory.parent):
            found = _Fault("is in a directory of another user", is_unsafe=True)
        if found is None:
            return directory
        reason = f"{directory} {found.reason}"
        if asked or found.is_unsafe:
            name = "COVEY_CACHE: " if asked else ""
            warnings.warn(f"{name}{reason}; using {fallback}", stacklevel=2)
    found = _find_fault(fallback, links=False)
    if found is not None:
        raise StorageError(
            f"the cache directory {found.reason}, and {reason}",
            path=fallback,
            remedy="set COVEY_CACHE to a writable directory that belongs to you",
        )
    return fallback


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


def _user_directory() -> Path | None:
    if sys.platform != "darwin" and os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "covey"
    try:
        home = Path.home()
    except RuntimeError:  # the system does not know the user
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "covey"


@dataclass(frozen=True, slots=True)
class _Fault:
    """The reason not to use a directory."""

    reason: str
    is_unsafe: bool = False
    """Whether other users can change its content."""


def _is_shared(directory: Path) -> bool:
    """Return whether several users can write to a directory, this user among them."""
    try:
        link, found = os.lstat(directory), os.stat(directory)
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode) or (stat.S_ISLNK(link.st_mode) and not _is_own(link)):
        return False
    is_writable = os.access(directory, os.W_OK | os.X_OK)
    # A sticky directory, such as /tmp, is shared also if it belongs to this user (root).
    is_foreign = not _is_own(found) or bool(found.st_mode & stat.S_ISVTX)
    return is_writable and is_foreign and bool(found.st_mode & _OTHERS_WRITE)


def _find_fault(directory: Path, *, links: bool, mask: int = _OTHERS_WRITE) -> _Fault | None:
    """Create a directory; return the reason not to use it, or None.

    If it belongs to the user and has a permission of the mask, its mode is set to 0700.

    Args:
        directory: The directory.
        links: Whether it may be a symbolic link that belongs to the user.
        mask: The permissions that it must not have.
    """
    try:
        for each in (*reversed(directory.parents), directory):
            if not each.is_dir():
                with contextlib.suppress(FileExistsError):  # another process has created it
                    os.mkdir(each, 0o700)
        link, found = os.lstat(directory), os.stat(directory)
    except OSError:
        return _Fault("is not writable")
    if stat.S_ISLNK(link.st_mode) and (not links or not _is_own(link)):
        return _Fault("is a symbolic link of another user", is_unsafe=True)
    if not stat.S_ISDIR(found.st_mode):
        return _Fault("is not writable")
    if not _is_own(found):
        return _Fault(f"belongs to user {found.st_uid}", is_unsafe=True)
    if found.st_mode & mask:
        try:
            os.chmod(directory, 0o700)
        except OSError:
            mode = stat.S_IMODE(found.st_mode)
            return _Fault(f"has mode {mode:04o}; must be 0700", is_unsafe=True)
    return None if os.access(directory, os.W_OK | os.X_OK) else _Fault("is not writable")


def _is_of_user(directory: Path) -> bool:
    """Return whether a directory belongs to this user, or to the system."""
    found = os.stat(directory)
    return _is_own(found) or found.st_uid == 0


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid()


@dataclass(frozen=True, slots=True)
class _Usage:
    """The disk usage of an entry."""

    path: str
    used_ns: int
    """Time of the last use."""
    bytes: int


class DiskCache:
    """The cache directory, with LRU eviction of whole entries above a size limit.

    ::

        <cache>/blocks/<key>/       blocks of a remote file: see covey.storage.cache_entry
        <cache>/unpacked/<key>      the decompressed data of a shard
        <cache>/indexes/<key>/      the files of an index

    The mtime of an entry is the time of its last use. Names that begin with a dot are temporary.

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
        directory = os.path.join(self.root, kind)
        found = _find_fault(Path(directory), links=False, mask=stat.S_IRWXG | stat.S_IRWXO)
        if found is not None:
            raise StorageError(
                f"the directory {found.reason}",
                path=directory,
                remedy="remove it, or set COVEY_CACHE to another directory",
            )
        key = "\0".join(identity).encode("utf-8", "surrogatepass")
        return os.path.join(directory, hashlib.sha256(key).hexdigest()[:40])

    def make_room(self, growth: int, needed: Mapping[str, int]) -> None:
        """Evict entries that are not pinned, the least recently used first.

        Args:
            growth: The bytes to be added.
            needed: Entries that are not evicted, with the bytes of each that are in use.

        Raises:
            StorageError: If the bytes do not fit.
        """
        if not self.try_make_room(growth, needed):
            raise self.full_error(growth + sum(needed.values()))

    def try_make_room(self, growth: int, needed: Mapping[str, int]) -> bool:
        """Evict entries as :meth:`make_room` does; return whether the bytes fit."""
        if growth <= self._free:
            self._free -= growth
            return True
        self._free, spare = 0, self.limit // 16
        entries = list(self._scan())
        used = sum(entry.bytes for entry in entries)
        others = [entry for entry in entries if entry.path not in needed]
        for entry in sorted(others, key=lambda entry: entry.used_ns):
            if used + growth + spare <= self.limit:
                break
            if evict(entry.path):
                used -= entry.bytes
        if used + growth > self.limit:
            return False
        self._free = min(spare, self.limit - used - growth)
        return True

    def drop_unneeded(self, growth: int, needed: Mapping[str, int]) -> bool:
        """Evict entries of which only a part is needed, the largest first, until the bytes fit.

        Returns:
            Whether the bytes fit.
        """
        entries = list(self._scan())
        used = sum(entry.bytes for entry in entries)
        partial = [entry for entry in entries if needed.get(entry.path, entry.bytes) < entry.bytes]
        for entry in sorted(partial, key=lambda entry: -entry.bytes):
            if used + growth <= self.limit:
                break
            if evict(entry.path):
                used -= entry.bytes
                growth += needed[entry.path]
        return used + growth <= self.limit

    def full_error(self, size: int) -> StorageError:
        """Return the error for bytes that do not fit."""
        return StorageError(
            f"{size} bytes are needed at the same time, but the limit of the cache is {self.limit}",
            path=self.root,
            remedy="raise cache_bytes=, or set COVEY_CACHE_BYTES",
        )

    def _scan(self) -> Iterator[_Usage]:
        """Yield all entries; remove what killed processes left."""
        for kind, measure in _KINDS.items():
            directory = os.path.join(self.root, kind)
            remove_stale_temporaries(directory, _HIDDEN)
            try:
                entries = list(os.scandir(directory))
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.name.startswith(DELETED_PREFIX):
                    remove_any(Path(entry.path))
                if entry.name.startswith("."):
                    continue
                try:
                    used_ns = entry.stat(follow_symlinks=False).st_mtime_ns
                    yield _Usage(entry.path, used_ns, measure(entry.path))
                except OSError:  # another process has removed it
                    continue

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


def _index_bytes(directory: str) -> int:
    """Return the size of all files in a directory; remove what killed processes left."""
    remove_stale_temporaries(directory, _HIDDEN)
    with os.scandir(directory) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)


_KINDS: dict[str, Callable[[str], int]] = {
    "blocks": stored_bytes,
    "unpacked": lambda path: os.lstat(path).st_size,
    "indexes": _index_bytes,
}
