"""Files on a local disk."""

from __future__ import annotations

import fcntl
import heapq
import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from covey._core import crc32c
from covey._files import is_hidden, link_or_copy, remove_any, replacing, sync
from covey._locks import locked_directory, remove_unlocked
from covey.errors import StorageError, StorageNotFoundError
from covey.storage.base import Stat, Storage, parse_pattern
from covey.untrusted import (
    MAX_METADATA_BYTES,
    RegularFile,
    check_regular,
    os_errors,
    read_file,
)
from covey.urls import AnyPath, local_path, parse_path, shown

_builtin_list = list

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


def index_temporary(directory: str | os.PathLike[str]) -> AbstractContextManager[Path]:
    """Return a locked directory for temporary files that replace files of a directory."""
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
                for entry in entries:
                    if is_hidden(entry.name) and not hidden:
                        continue
                    name = os.path.join(inner, entry.name)
                    if _is_true(entry.is_file):
                        yield name
                    elif level + 1 != depth and _is_true(entry.is_dir):
                        if entry.is_symlink():
                            heapq.heappush(links, (level + 1, name))
                        else:
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
