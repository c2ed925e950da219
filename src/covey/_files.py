"""Create, replace and remove files, without following symbolic links."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from covey.errors import FormatError
from covey.untrusted import MAX_METADATA_BYTES

_TEMPORARY = re.compile(r"\.covey-[0-9a-f]{16}\.tmp")


def is_hidden(name: str) -> bool:
    """Return whether a file or directory has no data: ``.git``; ``__MACOSX`` of a ZIP file."""
    return name.startswith(".") or name == "__MACOSX"


def temporary_name() -> str:
    """Return a name for a file or directory that a killed writer may leave behind."""
    return f".covey-{os.urandom(8).hex()}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether a name is one of :func:`temporary_name`."""
    return _TEMPORARY.fullmatch(name) is not None


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, temporary: str | None = None, durable: bool = True
) -> Iterator[str]:
    """Yield the path of a temporary file that replaces a file at the end of the block.

    The file is replaced by one rename. A symbolic link is replaced, not followed. If the block
    raises, the temporary file is deleted.

    Args:
        path: File to be created or replaced.
        temporary: Name of the temporary file; by default one of :func:`temporary_name`.
        durable: Whether to sync the content to disk before the rename.
    """
    target = os.path.join(os.path.dirname(path), temporary or temporary_name())
    try:
        yield target
        if durable:
            sync(target)
        os.replace(target, path)
    finally:
        # It exists if the block failed, or if both names were links to the same file.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target)


def open_private(path: str, flags: int) -> int:
    """Create a file that only the user may access: an ``opener`` of :func:`open`."""
    return os.open(path, flags, 0o600)


def atomic_write(path: Path, data: bytes) -> None:
    """Replace a file by one rename."""
    atomic_write_all(path.parent, {path.name: data})


def atomic_write_all(directory: Path, files: Mapping[str, bytes], first: str = "") -> None:
    """Replace files one by one, after all of them were written to temporary files.

    Args:
        directory: Directory of the files.
        files: Content of the files, by name.
        first: Suffix of files that are deleted before the other files are replaced.
    """
    with contextlib.ExitStack() as stack:
        # The stack renames in reverse order; a failed write undoes all of them.
        for name in sorted(files, key=lambda name: not (first and name.endswith(first))):
            temporary = stack.enter_context(replacing(directory / name, durable=False))
            _write_new(temporary, files[name])
        for name in files if first else ():
            if name.endswith(first):
                unlink_file(directory / name)


def _write_new(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_regular(path: Path) -> bytes:
    """Return the content of a small regular file that is not a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_METADATA_BYTES:
            raise FormatError(
                "it is not a regular file of at most 256 MiB", path=path, remedy="remove it"
            )
        return file.read(MAX_METADATA_BYTES)


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
    """Create a hard link to a file, or a copy if the file system has no hard links."""
    try:
        os.link(os.path.realpath(source), target)  # a symbolic link may be relative
    except OSError:
        import shutil

        shutil.copy2(source, target)
        sync(target)


def unlink_file(path: Path) -> None:
    """Remove a file or a symbolic link; do nothing if the path is a directory or missing."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)


def move_file(path: Path, target: Path) -> None:
    """Rename a file; do nothing if the path is a directory or missing.

    A symbolic link, which may be relative, becomes an absolute one.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            unlink_file(target)
            os.symlink(os.path.realpath(path), target)
            os.unlink(path)
        elif not stat.S_ISDIR(mode):
            os.rename(path, target)


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory, and not a symbolic link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def remove_any(path: Path) -> None:
    """Remove a directory, a file or a symbolic link, as far as permissions allow."""
    with contextlib.suppress(OSError, RecursionError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            import shutil

            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def sync(path: str | os.PathLike[str]) -> None:
    """Flush a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
