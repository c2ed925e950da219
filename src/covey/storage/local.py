"""The interface of storages, and files on a local disk."""

from __future__ import annotations

import abc
import fcntl
import fnmatch
import heapq
import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from covey._core import crc32c
from covey._files import is_hidden, link_or_copy, remove_any, replacing, sync
from covey.errors import StorageError, StorageNotFoundError
from covey.untrusted import (
    MAX_METADATA_BYTES,
    RegularFile,
    check_regular,
    os_errors,
    read_file,
)
from covey.urls import AnyPath, is_remote, local_path, parse_path, shown

if TYPE_CHECKING:
    from covey.storage.range_cache import CachedFile


_builtin_list = list  # Storage has a method of that name


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern for the paths below a directory."""

    directory: str
    """The longest leading path without special characters."""
    parts: tuple[str, ...]
    """The parts of the pattern below the directory."""

    @property
    def depth(self) -> int | None:
        """The number of directory levels of matching paths; None if it is unlimited."""
        return None if "**" in self.parts else len(self.parts)

    def matches(self, path: str) -> bool:
        """Return whether a path matches, relative to the directory."""
        return _match(path.split("/"), self.parts)


def parse_pattern(path: str, special: str = "*?[") -> Pattern | None:
    """Split a pattern with slashes; return None if it has no special characters."""
    first = re.search(f"[{re.escape(special)}]", path)
    if first is None:
        return None
    directory, _, rest = path[: first.start()].rpartition("/")
    return Pattern(directory, tuple((rest + path[first.start() :]).split("/")))


def _match(path: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return not path
    if parts[0] == "**":
        rest = parts[1:]
        if not rest:
            return all(not name.startswith(".") for name in path)
        visible = next((i for i, name in enumerate(path) if name.startswith(".")), len(path))
        return any(_match(path[skipped:], rest) for skipped in range(visible + 1))
    if not path or (path[0].startswith(".") and not parts[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(path[0], parts[0]) and _match(path[1:], parts[1:])


@dataclass(frozen=True, slots=True)
class Stat:
    """The state of a file."""

    size: int
    version: str
    """Changes whenever the file changes: an ETag, a modification time; "" if unknown."""


class Storage(abc.ABC):
    """File-system interface. Implementations are picklable, thread-safe and fork-safe.

    Methods accept paths in any notation, and return them as :meth:`clean` does.
    """

    is_remote: bool

    @abc.abstractmethod
    def clean(self, path: AnyPath) -> str:
        """Return the canonical notation of a path."""

    @abc.abstractmethod
    def join(self, directory: str, name: str) -> str:
        """Return the path of a file or directory in a directory."""

    @abc.abstractmethod
    def name(self, path: str) -> str:
        """Return the last part of a path."""

    @abc.abstractmethod
    def parent(self, path: str) -> str:
        """Return the directory of a file or directory."""

    @abc.abstractmethod
    def is_directory(self, path: str) -> bool:
        """Return whether a directory exists."""

    @abc.abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""

    @abc.abstractmethod
    def stat(self, paths: Sequence[str]) -> _builtin_list[Stat | None]:
        """Return the state of each file; None for a file that does not exist."""

    @abc.abstractmethod
    def list(self, directory: str, *, recursive: bool = False) -> _builtin_list[str]:
        """Return the sorted paths of the files in a directory that are not hidden.

        Raises:
            FileNotFoundError: If the directory does not exist.
        """

    @abc.abstractmethod
    def address(self, path: str) -> str:
        """Return a path with the credentials of its URL, to open another storage.

        It must not be shown.
        """

    @abc.abstractmethod
    def is_pattern(self, path: str) -> bool:
        """Return whether a path has special characters; the query of a URL does not count."""

    @abc.abstractmethod
    def glob(self, pattern: str) -> _builtin_list[str]:
        """Return the sorted paths of the files that match a pattern."""

    @abc.abstractmethod
    def read(self, path: str, limit: int = MAX_METADATA_BYTES) -> bytes:
        """Return the content of a small file.

        Args:
            path: The file.
            limit: The maximum size in bytes.

        Raises:
            FileNotFoundError: If the file does not exist.
            StorageError: If it is larger than `limit`.
        """

    @abc.abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Replace a file atomically; create missing directories."""

    def replace(self, path: str, data: bytes, expected: Stat | None) -> None:
        """Replace a file atomically if it is in the expected state; None if it does not exist.

        A storage without conditional requests only writes: the caller compares the state before.

        Raises:
            FileChangedError: If the file is in another state.
        """
        self.write(path, data)

    @abc.abstractmethod
    def upload(self, local: str, path: str) -> None:
        """Copy or link a local file, which does not change any more, to a path."""

    @abc.abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy a file within this storage."""

    @abc.abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; ignore those that do not exist."""

    @abc.abstractmethod
    def open_stream(self, path: str) -> BinaryIO:
        """Open a file for sequential access; it is seekable."""

    def open_cached(self, path: str) -> CachedFile:
        """Open a remote file for random access through the cache; local storages have none."""
        raise NotImplementedError


# Prefix of the temporary files of processes that do not lock the dataset, such as `covey index`.
INDEX_TEMPORARY = ".covey-index-"
_TEMPORARY = re.compile(rf"{re.escape(INDEX_TEMPORARY)}.+", re.DOTALL)

# The age at which a temporary file of another machine, or without a lock, is stale.
STALE_SECONDS = 3600.0


class LocalStorage(Storage):
    """The files of the local file system."""

    is_remote = False

    def clean(self, path: AnyPath) -> str:
        return os.path.abspath(_local(parse_path(path)))

    def join(self, directory: str, name: str) -> str:
        return os.path.join(_local(directory), name)

    def name(self, path: str) -> str:
        return os.path.basename(self.clean(path))

    def parent(self, path: str) -> str:
        return os.path.dirname(self.clean(path))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(self.clean(path))

    def exists(self, path: str) -> bool:
        return _find(self.clean(path)) is not None

    def stat(self, paths: Sequence[str]) -> _builtin_list[Stat | None]:
        return [_stat(self.clean(path)) for path in paths]

    def list(self, directory: str, *, recursive: bool = False) -> _builtin_list[str]:
        directory = self.clean(directory)
        depth = None if recursive else 1
        return sorted(
            os.path.join(directory, name) for name in _walk(directory, depth, hidden=False)
        )

    def is_pattern(self, path: str) -> bool:
        return parse_pattern(_local(path)) is not None

    def address(self, path: str) -> str:
        return self.clean(path)

    def glob(self, pattern: str) -> _builtin_list[str]:
        path = self.clean(pattern)
        parsed = parse_pattern(path.replace(os.sep, "/"))
        if parsed is None:
            return [path] if os.path.isfile(path) else []
        directory = os.path.normpath(parsed.directory or "/")
        if not os.path.isdir(directory):
            return []
        return sorted(
            os.path.join(directory, name)
            for name in _walk(directory, parsed.depth, hidden=True)
            if parsed.matches(name.replace(os.sep, "/"))
        )

    def read(self, path: str, limit: int = MAX_METADATA_BYTES) -> bytes:
        return read_file(self.clean(path), limit)

    def write(self, path: str, data: bytes) -> None:
        def create(temporary: str) -> None:
            with open(temporary, "xb") as file:
                file.write(data)

        _replace(self.clean(path), create)

    def upload(self, local: str, path: str) -> None:
        _replace(self.clean(path), lambda temporary: link_or_copy(Path(local), Path(temporary)))

    def copy(self, source: str, target: str) -> None:
        import shutil

        source = self.clean(source)
        _replace(self.clean(target), lambda temporary: shutil.copyfile(source, temporary))

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                os.unlink(self.clean(path))
            except FileNotFoundError:
                continue

    def open_stream(self, path: str) -> BinaryIO:
        return io.BufferedReader(RegularFile(self.clean(path)))


def open_storage(
    path: AnyPath,
    options: Mapping[str, Any] | None = None,
    *,
    cache_bytes: int | None = None,
) -> Storage:
    """Return the storage of a path or URL.

    Args:
        path: The path or URL of any file or directory in it, which need not exist.
        options: fsspec's storage options, for URLs.
        cache_bytes: Size limit of the cache on disk (default: ``$COVEY_CACHE_BYTES``, or 16 GiB).

    Raises:
        StorageError: If the protocol of a URL is unknown, or fsspec or its driver is not installed.

    >>> storage = open_storage("data")
    >>> storage.write("data/greeting.txt", b"hello")
    >>> [storage.name(path) for path in storage.list("data")]
    ['greeting.txt']
    """
    location = parse_path(path)
    if not is_remote(location):
        return LocalStorage()
    from covey.storage.remote import RemoteStorage

    return RemoteStorage(location, options, cache_bytes)


def index_temporary(directory: str | os.PathLike[str]) -> AbstractContextManager[Path]:
    """Return a locked directory for temporary files that replace files of a directory."""
    from covey._locks import locked_directory

    return locked_directory(Path(directory, f"{_own_prefix()}{os.urandom(8).hex()}"))


def _own_prefix() -> str:
    """Return the prefix of the temporaries of this machine, whose locks are known."""
    return f"{INDEX_TEMPORARY}{crc32c(os.uname().nodename.encode()):08x}-"


def remove_stale_temporaries(
    directory: str | os.PathLike[str], names: re.Pattern[str] = _TEMPORARY
) -> None:
    """Remove the temporary files and directories of killed processes from a directory.

    Files that are locked by a process are not removed; nor are files that were changed within the
    last hour, unless :func:`index_temporary` has created them on this machine. Symbolic links are
    not followed.

    Args:
        directory: The directory, which need not exist.
        names: Pattern of the names of temporary files.
    """
    from covey._locks import remove_unlocked

    try:
        remove_unlocked(Path(directory), re.compile(f"{re.escape(_own_prefix())}[0-9a-f]+"))
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if names.fullmatch(entry.name) and _is_stale(entry):
            remove_any(Path(entry.path))


def _is_stale(entry: os.DirEntry[str]) -> bool:
    """Return whether no process uses a temporary file or directory."""
    try:
        newest = entry.stat(follow_symlinks=False).st_mtime
        if entry.is_dir(follow_symlinks=False):
            with os.scandir(entry.path) as inside:
                for each in inside:
                    newest = max(newest, each.stat(follow_symlinks=False).st_mtime)
    except OSError:
        return False
    return time.time() - newest > STALE_SECONDS and not _is_locked(entry.path)


def _is_locked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError as error:  # on file systems without locks, nothing is locked
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)


def _local(path: str) -> str:
    local = local_path(path)
    if local is None:
        raise StorageError("a URL is not the path of a local file", path=shown(path))
    return local


def _find(path: str) -> os.stat_result | None:
    """Return the state of a file or directory; None if it does not exist."""
    try:
        with os_errors(path):
            return os.stat(path)
    except (StorageNotFoundError, ValueError):  # a path with a NUL character is not valid
        return None


def _stat(path: str) -> Stat | None:
    found = _find(path)
    if found is None or stat.S_ISDIR(found.st_mode):
        return None
    check_regular(found.st_mode, path)
    return local_stat(found)


def local_stat(found: os.stat_result) -> Stat:
    """Return the size and the version of a local file."""
    return Stat(found.st_size, local_version(found.st_mtime_ns, found.st_ino))


def local_version(modified_ns: int, inode: int) -> str:
    """Return the version of a local file."""
    return f"{modified_ns:x}-{inode:x}"


def _walk(directory: str, depth: int | None, *, hidden: bool) -> Iterator[str]:
    """Yield the files below a directory, relative to it. Symbolic links are followed.

    Args:
        directory: The directory.
        depth: The number of directory levels. None for all of them: each directory is read once, by
            its path without links if it has one.
        hidden: Whether hidden files and directories are included.
    """
    visited: set[tuple[int, int]] = set()
    waiting, links = [(0, "")], list[tuple[int, str]]()
    while waiting or links:
        # Links last, in order, so that the result does not depend on the order of entries.
        level, inner = waiting.pop() if waiting else heapq.heappop(links)
        with os_errors(directory):
            found = os.stat(os.path.join(directory, inner))
            identity = found.st_dev, found.st_ino
            if depth is None and identity in visited:
                continue
            visited.add(identity)
            with os.scandir(os.path.join(directory, inner)) as entries:
                inside = [entry for entry in entries if hidden or not is_hidden(entry.name)]
        for entry in inside:
            name = os.path.join(inner, entry.name)
            if _is_true(entry.is_file):
                yield name
            elif level + 1 != depth and _is_true(entry.is_dir) and entry.is_symlink():
                heapq.heappush(links, (level + 1, name))
            elif level + 1 != depth and _is_true(entry.is_dir):
                waiting.append((level + 1, name))


def _replace(path: str, create: Callable[[str], object]) -> None:
    """Replace a file by one that `create` writes; it is on disk before it is visible."""
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    with index_temporary(directory) as new:
        with replacing(path, temporary=f"{new.name}/file") as temporary:
            create(temporary)
        sync(directory)


def _is_true(check: Callable[[], bool]) -> bool:
    """Return the result of a method of a directory entry; False if it fails."""
    try:
        return check()
    except OSError:  # a link to itself
        return False
