"""The cache on disk: where it is, and which entries it keeps."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey._fork import ForkAware
from covey.errors import CoveyError, StorageError
from covey.storage.cache_entry import DELETED_PREFIX, bytes_present, discard
from covey.storage.local import remove_stale_temporaries

DEFAULT_BYTES = 16 << 30

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

# Temporary files of the cache.
_HIDDEN = re.compile(r"\..+", re.DOTALL)


def cache_directory() -> Path:
    """Return the directory of the cache, which is created if it does not exist.

    It is ``$COVEY_CACHE``, or a directory in the user's cache, or one among the temporary files if
    that cannot be used: it cannot be written, or belongs to another user. If ``$COVEY_CACHE`` is a
    directory that several users can write, it is a subdirectory of the user's own,
    ``covey-<uid>``. Only the user can write in it: its mode is set to 0700 if others can.
    """
    asked = os.environ.get("COVEY_CACHE")
    directory = Path(asked).expanduser().absolute() if asked else _user_directory()
    fallback = (
        Path(tempfile.gettempdir()) / f"covey-cache-{getattr(os, 'getuid', lambda: 'user')()}"
    )
    why = "there is no home directory"
    if directory is not None:
        if asked and _is_shared(directory):
            directory = directory / f"covey-{os.getuid()}"
            found = _find_fault(directory, links=False)
        else:
            found = _find_fault(directory, links=True)
        if found is None and not asked and not _is_of_user(directory.parent):
            found = _Fault("lies in a directory of another user", is_unsafe=True)
        if found is None:
            return directory
        why = f"{directory} {found.what}"
        if asked or found.is_unsafe:
            name = "COVEY_CACHE: " if asked else ""
            warnings.warn(f"{name}{why}; using {fallback}", stacklevel=2)
    found = _find_fault(fallback, links=False)
    if found is not None:
        raise StorageError(
            f"{why}, and {fallback} {found.what}; set COVEY_CACHE to a directory of your own that "
            "can be written"
        )
    return fallback


def cache_subdirectory(name: str) -> Path:
    """Return a directory in the cache, which is created if it does not exist, with mode 0700.

    Raises:
        StorageError: If it belongs to another user, or cannot be created.
    """
    directory = cache_directory() / name
    _make_private(directory)
    return directory


def cache_limit(cache_bytes: int | None = None) -> int:
    """How many bytes may be kept: as given, or ``$COVEY_CACHE_BYTES``, or 16 GiB."""
    text = os.environ.get("COVEY_CACHE_BYTES", "").strip()
    name, value = "cache_bytes", cache_bytes
    if value is None and text:
        name, value = "COVEY_CACHE_BYTES", int(text) if text.isdecimal() else None
        if value is None:
            raise ValueError(f"{name} is {text!r}; must be an integer of bytes")
    if value is None:
        return DEFAULT_BYTES
    if value < 1:
        raise ValueError(f"{name} is {value}; must be 1 or more")
    return value


def _user_directory() -> Path | None:
    try:
        home = Path.home()
    except RuntimeError:  # the user is not known to the system
        home = None
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "covey" / "cache"
    if sys.platform not in ("darwin", "win32") and os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "covey"
    if home is None:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "covey"
    return home / "covey" / "cache" if sys.platform == "win32" else home / ".cache" / "covey"


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why a directory is not used."""

    what: str
    is_unsafe: bool = False
    """Whether other users can change what is in it."""


def _make_private(directory: Path) -> None:
    """Create a directory in the cache, or set the mode of an existing one."""
    found = _find_fault(directory, links=False, mask=stat.S_IRWXG | stat.S_IRWXO)
    if found is not None:
        raise StorageError(
            f"{directory} {found.what}; remove it, or set COVEY_CACHE to another directory"
        )


def _is_shared(directory: Path) -> bool:
    """Return whether a directory is meant for several users, of which this one may write in it."""
    if not hasattr(os, "getuid"):
        return False
    try:
        link, found = os.lstat(directory), os.stat(directory)
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode) or (stat.S_ISLNK(link.st_mode) and not _is_own(link)):
        return False
    is_writable = os.access(directory, os.W_OK | os.X_OK)
    # A sticky directory, such as /tmp, stays shared even if it is the user's own (root's).
    is_foreign = not _is_own(found) or bool(found.st_mode & stat.S_ISVTX)
    return is_writable and is_foreign and bool(found.st_mode & _OTHERS_WRITE)


def _find_fault(directory: Path, *, links: bool, mask: int = _OTHERS_WRITE) -> _Fault | None:
    """Create a directory, and return what is wrong with it.

    If it is the user's own and has a permission of the mask, its mode is set to 0700.

    Args:
        directory: The directory.
        links: Whether it may be a symbolic link of the user's own.
        mask: The permissions that it must not have.
    """
    try:
        for each in (*reversed(directory.parents), directory):
            if not each.is_dir():
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.mkdir(each, 0o700)
        link, found = os.lstat(directory), os.stat(directory)
    except OSError:
        return _Fault("cannot be written")
    if stat.S_ISLNK(link.st_mode) and (not links or not _is_own(link)):
        return _Fault("is a symbolic link of another user", is_unsafe=True)
    if not stat.S_ISDIR(found.st_mode):
        return _Fault("cannot be written")
    if not _is_own(found):
        return _Fault(f"belongs to user {found.st_uid}", is_unsafe=True)
    if hasattr(os, "getuid") and found.st_mode & mask:
        try:
            os.chmod(directory, 0o700)
        except OSError:
            mode = stat.S_IMODE(found.st_mode)
            return _Fault(f"has mode {mode:04o}; must be 0700", is_unsafe=True)
    return None if os.access(directory, os.W_OK | os.X_OK) else _Fault("cannot be written")


def _is_of_user(directory: Path) -> bool:
    """Return whether a directory belongs to this user, or to the system."""
    found = os.stat(directory)
    return _is_own(found) or found.st_uid == 0


def _is_own(found: os.stat_result) -> bool:
    return not hasattr(os, "getuid") or found.st_uid == os.getuid()


@dataclass(frozen=True, slots=True)
class _Kept:
    """An entry of the cache: the blocks of a file, an unpacked shard, or an index."""

    path: str
    used_ns: int
    bytes: int


class _Pinned(ForkAware):
    """The entries that this process uses, and does not remove."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: Counter[str] = Counter()

    @property
    def lock(self) -> threading.Lock:
        return self._lock


_pinned = _Pinned()


def pin(path: str) -> None:
    """Keep an entry from being removed by this process."""
    with _pinned.lock:
        _pinned.paths[path] += 1


def unpin(path: str) -> None:
    """Allow an entry to be removed, once it is unpinned as often as it was pinned."""
    with _pinned.lock:
        _pinned.paths -= Counter([path])


class DiskCache:
    """The directory of all that is cached, with LRU eviction above a limit.

    ::

        <cache>/blocks/<key>/       blocks of a remote file: see covey.storage.cache_entry
        <cache>/unpacked/<key>      the data of a compressed shard
        <cache>/indexes/<key>/      an index, as it lies beside shards

    The time of an entry's last use is its mtime. Names that begin with a dot are temporary.

    Args:
        limit: In bytes, for all entries together. Several processes that grow at once may each
            exceed it by a sixteenth, for a moment.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.root = os.fspath(cache_directory())
        self.directory = os.path.join(self.root, "blocks")
        self._room = 0  # what may be added before the directory is scanned again

    def place(self, *identity: str) -> str:
        """The directory of a remote file's blocks."""
        _make_private(Path(self.directory))
        text = "\0".join(identity).encode("utf-8", "surrogatepass")
        return os.path.join(self.directory, hashlib.sha256(text).hexdigest()[:40])

    def make_room(self, growth: int, needed: Mapping[str, int]) -> bool:
        """Remove what was not used for longest, until so many more bytes have room.

        Args:
            growth: The bytes that will be added.
            needed: Entries that are needed now, and how many bytes of those that are there. They
                are begun again only if nothing else can go, the largest first.

        Returns:
            Whether none of those had to go. If one had, there is more to be added.

        Raises:
            StorageError: If what is needed at the same time is more than the limit.
        """
        if growth <= self._room:
            self._room -= growth
            return True
        self._room = 0
        kept = list(self._scan())
        used = sum(each.bytes for each in kept)
        spare = self.limit // 16
        with _pinned.lock:
            pinned = set(_pinned.paths)
        others = [each for each in kept if each.path not in needed and each.path not in pinned]
        for each in sorted(others, key=lambda each: each.used_ns):
            if used + growth + spare <= self.limit:
                break
            if discard(each.path):
                used -= each.bytes
        own = [each for each in kept if each.path in needed]
        complete = True
        for each in sorted(own, key=lambda each: -each.bytes):
            if used + growth <= self.limit:
                break
            if each.bytes > needed[each.path] and discard(each.path):
                used -= each.bytes
                growth += needed[each.path]
                complete = False
        if used + growth > self.limit:
            raise StorageError(
                f"{growth + sum(needed.values())} bytes are needed at the same time, but "
                f"the limit is {self.limit}; raise cache_bytes= or COVEY_CACHE_BYTES",
                path=self.directory,
            )
        if complete:
            self._room = min(spare, self.limit - used - growth)
        return complete

    def _scan(self) -> Iterator[_Kept]:
        """All entries; what killed processes left is removed."""
        for kind, measure in _KINDS.items():
            directory = os.path.join(self.root, kind)
            remove_stale_temporaries(directory, _HIDDEN)
            try:
                entries = list(os.scandir(directory))
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.name.startswith(DELETED_PREFIX):
                    shutil.rmtree(entry.path, ignore_errors=True)
                if entry.name.startswith("."):
                    continue
                try:
                    used_ns = entry.stat(follow_symlinks=False).st_mtime_ns
                    yield _Kept(entry.path, used_ns, measure(entry.path))
                except OSError:  # another process has removed it
                    continue

    @contextmanager
    def wrap_os_errors(self) -> Iterator[None]:
        """Say which disk fails, and what to do about it."""
        try:
            yield
        except OSError as error:
            if isinstance(error, CoveyError):
                raise
            raise StorageError(
                f"fetched data cannot be kept there: {error.strerror or error}; make room, "
                "lower COVEY_CACHE_BYTES, or set COVEY_CACHE to a directory elsewhere",
                path=self.root,
            ) from error


def _bytes_of_index(directory: str) -> int:
    """The bytes of all files in a directory; what killed processes left is removed."""
    remove_stale_temporaries(directory, _HIDDEN)
    with os.scandir(directory) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)


_KINDS: dict[str, Callable[[str], int]] = {
    "blocks": bytes_present,
    "unpacked": lambda path: os.lstat(path).st_size,
    "indexes": _bytes_of_index,
}
