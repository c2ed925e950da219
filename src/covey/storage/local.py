"""Files on a local disk."""

from __future__ import annotations

import contextlib
import heapq
import io
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

import numpy as np
from numpy.typing import NDArray

from covey._files import replacing, sync
from covey.errors import StorageError, StorageNotFoundError
from covey.storage.base import Stat, Storage, parse_pattern
from covey.untrusted import RegularFile, check_regular, os_errors, read_file
from covey.urls import local_path, shown

_builtin_list = list

# The temporary files that covey puts beside others.
INDEX_TEMPORARY = ".covey-index-"
_TEMPORARY = re.compile(r"\.covey-index-.+|\..+\.[0-9a-f]{32}\.new", re.DOTALL)

# The age at which a temporary file that is not locked is stale.
STALE_SECONDS = 3600.0

_held: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class FileBlocks:
    """The blocks of a local file, which are all there already."""

    path: str
    size: int
    generation: int = 0

    def ensure(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Nothing to wait for."""

    def discard(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Nothing is cached."""

    def close(self) -> None:
        """Nothing to close."""


class LocalStorage(Storage):
    """The files of this machine."""

    is_remote = False

    def clean(self, path: str | os.PathLike[str]) -> str:
        return os.path.abspath(_local(os.fspath(path)))

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
        wanted = parse_pattern(path.replace(os.sep, "/"))
        if wanted is None:
            return [path] if os.path.isfile(path) else []
        directory = os.path.normpath(wanted.directory or "/")
        if not os.path.isdir(directory):
            return []
        return sorted(
            os.path.join(directory, name)
            for name in _walk(directory, wanted.depth, hidden=True)
            if wanted.matches(name.replace(os.sep, "/"))
        )

    def read(self, path: str) -> bytes:
        return read_file(self.clean(path))

    def write(self, path: str, data: bytes) -> None:
        def fill(beside: str) -> None:
            with open(beside, "xb") as file:
                file.write(data)

        _replace(self.clean(path), fill)

    def upload(self, local: str, path: str) -> None:
        def fill(beside: str) -> None:
            try:
                os.link(local, beside)
            except OSError:  # another disk, or one that has no links
                shutil.copyfile(local, beside)

        _replace(self.clean(path), fill)

    def copy(self, source: str, target: str) -> None:
        source = self.clean(source)
        _replace(self.clean(target), lambda beside: shutil.copyfile(source, beside))

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                os.unlink(self.clean(path))
            except FileNotFoundError:
                continue

    def open_stream(self, path: str) -> BinaryIO:
        return io.BufferedReader(RegularFile(self.clean(path)))

    def open_blocks(self, path: str) -> FileBlocks:
        path = self.clean(path)
        with RegularFile(path) as file:
            return FileBlocks(path, os.fstat(file.fileno()).st_size)


def new_temporary(directory: str | os.PathLike[str]) -> str:
    """Create a temporary directory with a random name, and return its path.

    It is locked as long as this process lives, or until it is removed, so that
    :func:`remove_stale_temporaries` of another process leaves it.
    """
    path = tempfile.mkdtemp(prefix=INDEX_TEMPORARY, dir=directory)
    _hold(path)
    return path


def remove_temporary(path: str) -> None:
    """Remove a temporary directory of this process."""
    shutil.rmtree(path, ignore_errors=True)
    descriptor = _held.pop(path, None)
    if descriptor is not None:
        os.close(descriptor)


def remove_stale_temporaries(
    directory: str | os.PathLike[str], names: re.Pattern[str] = _TEMPORARY
) -> None:
    """Remove the temporary files and directories that killed processes have left in a directory.

    Those that were changed within the last hour stay, and those of living processes. Symbolic links
    are not followed.

    Args:
        directory: The directory, which need not exist.
        names: What temporary files are called there.
    """
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return
    for entry in entries:
        if names.fullmatch(entry.name) and _is_stale(entry):
            with contextlib.suppress(OSError):  # another process was faster, or it may not
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)


def _is_stale(entry: os.DirEntry[str]) -> bool:
    """Return whether no process works on a temporary file or directory."""
    try:
        newest = entry.stat(follow_symlinks=False).st_mtime
        if entry.is_dir(follow_symlinks=False):
            with os.scandir(entry.path) as inside:
                for each in inside:
                    newest = max(newest, each.stat(follow_symlinks=False).st_mtime)
    except OSError:
        return False
    return time.time() - newest > STALE_SECONDS and not _is_locked(entry)


def _hold(path: str) -> None:
    """Lock a file or directory of this process, where the system and the disk can do that."""
    if fcntl is not None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        _held[path] = descriptor
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_locked(entry: os.DirEntry[str]) -> bool:
    if fcntl is None or entry.is_symlink():
        return False
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # this disk has no locks
        return False
    finally:
        os.close(descriptor)
    return False


def _local(path: str) -> str:
    local = local_path(path)
    if local is None:
        raise StorageError("it is not a path of a local file", path=shown(path))
    return local


def _find(path: str) -> os.stat_result | None:
    """The state of a file or directory; None if there is none."""
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
    return Stat(found.st_size, f"{found.st_mtime_ns:x}-{found.st_ino:x}")


def _walk(directory: str, depth: int | None, *, hidden: bool) -> Iterator[str]:
    """Yield the files below a directory, relative to it. Symbolic links are followed.

    Args:
        directory: The directory.
        depth: How many levels of directories are read. None for all of them: each directory is
            read once, by its path without links if it has one.
        hidden: Whether names that begin with a dot are included.
    """
    visited: set[tuple[int, int]] = set()
    waiting, links = [(0, "")], list[tuple[int, str]]()
    while waiting or links:
        # Links last, in order, so that the result does not depend on the order of a directory.
        level, inner = waiting.pop() if waiting else heapq.heappop(links)
        with os_errors(directory):
            found = os.stat(os.path.join(directory, inner))
            identity = found.st_dev, found.st_ino
            if depth is None and identity in visited:
                continue
            visited.add(identity)
            with os.scandir(os.path.join(directory, inner)) as entries:
                for entry in entries:
                    if entry.name.startswith(".") and not hidden:
                        continue
                    name = os.path.join(inner, entry.name)
                    if _holds(entry.is_file):
                        yield name
                    elif level + 1 != depth and _holds(entry.is_dir):
                        if entry.is_symlink():
                            heapq.heappush(links, (level + 1, name))
                        else:
                            waiting.append((level + 1, name))


def _replace(path: str, fill: Callable[[str], object]) -> None:
    """Replace a file by one that a function writes; it is on disk before it is visible."""
    directory, name = os.path.split(path)
    os.makedirs(directory, exist_ok=True)
    with replacing(path, temporary=f".{name}.{uuid.uuid4().hex}.new") as temporary:
        fill(temporary)
    sync(directory)


def _holds(check: Callable[[], bool]) -> bool:
    """Return the result of a method of a directory entry."""
    try:
        return check()
    except OSError:  # a link to itself
        return False
