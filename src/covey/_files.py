"""Create, replace and remove files of a dataset, without following symbolic links."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from covey.errors import FormatError

_TEMPORARY = re.compile(r"\.covey-[0-9a-f]{16}\.tmp")
_MAX_BYTES = 1 << 28

# Missing on Windows.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_FLAGS = _NO_FOLLOW | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def temporary_name() -> str:
    """Return a name for a file or directory that a killed writer may leave behind."""
    return f".covey-{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether a name is one of :func:`temporary_name`."""
    return _TEMPORARY.fullmatch(name) is not None


def atomic_write(path: Path, data: bytes) -> None:
    """Replace a file by one rename; a symbolic link is replaced, not followed."""
    atomic_write_all(path.parent, {path.name: data})


def atomic_write_all(directory: Path, files: Mapping[str, bytes], first: str = "") -> None:
    """Replace files one by one, once there is room for all of them.

    Args:
        directory: Of the files.
        files: Their content, by name.
        first: Files whose names end so are removed before the others are replaced.
    """
    temporaries: dict[str, Path] = {}
    try:
        for name, data in files.items():
            temporaries[name] = directory / temporary_name()
            _write_new(temporaries[name], data)
        for name in files if first else ():
            if name.endswith(first):
                unlink_file(directory / name)
        for name in sorted(files, key=lambda name: bool(first) and name.endswith(first)):
            os.replace(temporaries[name], directory / name)
    except BaseException:
        for temporary in temporaries.values():
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise


def _write_new(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_regular(path: Path) -> bytes:
    """Return the content of a small regular file that is not a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _FLAGS)
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            raise FormatError("it is not a regular file of at most 256 MiB; remove it", path=path)
        return file.read(_MAX_BYTES)


def differs(path: Path, data: bytes) -> bool:
    """Return whether a file is not a regular file with this content."""
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size != len(data):
            return True
        return read_regular(path) != data
    except FileNotFoundError:
        return True


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the file system has no hard links."""
    try:
        os.link(os.path.realpath(source), target)  # a symbolic link may be relative
    except OSError:
        shutil.copy2(source, target)
        sync(target)


def unlink_file(path: Path) -> None:
    """Remove a file, or a symbolic link itself; leave anything else where it is."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)


def remove_any(path: Path) -> None:
    """Remove a directory, a file, or a symbolic link itself, as far as that is possible."""
    with contextlib.suppress(OSError, RecursionError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    if os.name != "posix" and os.path.isdir(path):
        return  # directories cannot be opened there
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
