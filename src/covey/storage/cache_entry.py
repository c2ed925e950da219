"""The blocks of one remote file on disk, as far as they were fetched.

::

    <cache>/blocks/<key>/data     as long as the file, with holes where blocks are missing
    <cache>/blocks/<key>/map      16 bytes of magic, 16 of a token, then 4 bytes per block

The map has a little-endian u32 per block: 0 if the block is missing, else its CRC-32C, or 1 if that
is 0. It is written after the block: whatever is interrupted, and whatever a disk loses when the
power fails, is missing then. The two files come and go together with their directory, by renaming it,
and the token tells one directory of a name from the next. So a file is never cut or changed under a
process that has it mapped, and several processes need no locks: they write the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covey import _core

BLOCK_BYTES = 1 << 16

DATA = "data"
_MAP = "map"
_MAGIC = b"covey blocks 2\n\0"
_TOKEN_BYTES = 16
_HEADER_BYTES = len(_MAGIC) + _TOKEN_BYTES
_CHECKSUM = np.dtype("<u4")
_FLAGS = os.O_RDWR | getattr(os, "O_BINARY", 0)

# How directories are called that are not there yet, and no longer.
NEW = ".new-"
DELETED_PREFIX = ".gone-"


def block_count(size: int) -> int:
    """How many blocks a file of a size has."""
    return -(-size // BLOCK_BYTES)


class CorruptCacheEntryError(Exception):
    """What is in the cache is corrupt, or not covey's."""


class CacheEntry:
    """The files of a directory, open for a moment, so that others can remove it whenever they like.

    Raises:
        FileNotFoundError: If they are not there.
        UnsoundError: If they are not the blocks of a file of this size.
    """

    def __init__(self, directory: str, size: int) -> None:
        self._blocks = block_count(size)
        descriptor = None
        if not os.path.isdir(directory) and os.path.lexists(directory):
            raise CorruptCacheEntryError
        if os.open in os.supports_dir_fd:  # both files are of one directory, even if it is replaced
            descriptor = os.open(directory, os.O_RDONLY)
        self._files: list[int] = []
        try:
            for name in (DATA, _MAP):
                path = name if descriptor is not None else os.path.join(directory, name)
                self._files.append(os.open(path, _FLAGS, dir_fd=descriptor))
            self._data, self._map = self._files
            header = os.read(self._map, _HEADER_BYTES)
            sizes = [os.fstat(file).st_size for file in self._files]
            if not header.startswith(_MAGIC) or sizes != [size, _map_bytes(self._blocks)]:
                raise CorruptCacheEntryError
            self.token = header[len(_MAGIC) :]
        except BaseException:
            self.close()
            raise
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def __enter__(self) -> CacheEntry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close both files."""
        for file in self._files:
            os.close(file)
        self._files = []

    def present(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which blocks are there and whole; the numbers are sorted."""
        found = np.zeros(len(numbers), np.bool_)
        if not len(numbers):
            return found
        first, last = int(numbers[0]), int(numbers[-1])
        os.lseek(self._map, _map_bytes(first), os.SEEK_SET)
        read = os.read(self._map, _map_bytes(last + 1) - _map_bytes(first))
        marks = np.frombuffer(read, _CHECKSUM)[numbers - first]
        for place in np.flatnonzero(marks):
            os.lseek(self._data, int(numbers[place]) * BLOCK_BYTES, os.SEEK_SET)
            found[place] = _check(os.read(self._data, BLOCK_BYTES)) == marks[place]
        return found

    def write(self, begin: int, data: bytes) -> bytes:
        """Write whole blocks; what :meth:`mark` takes to say that they are there."""
        _write(self._data, begin, data)
        view = memoryview(data)
        steps = range(0, len(data), BLOCK_BYTES)
        checks = [_check(view[step : step + BLOCK_BYTES]) for step in steps]
        return np.array(checks, _CHECKSUM).tobytes()

    def mark(self, first: int, checks: bytes) -> None:
        """Say that blocks are there."""
        _write(self._map, _map_bytes(first), checks)

    def unmark(self, number: int) -> None:
        """Mark a block as missing."""
        _write(self._map, _map_bytes(number), bytes(_CHECKSUM.itemsize))


def read_id(directory: str) -> bytes | None:
    """The token of a directory; None if there is none."""
    try:
        with open(os.path.join(directory, _MAP), "rb", buffering=0) as file:
            return file.read(_HEADER_BYTES)[len(_MAGIC) :]
    except (FileNotFoundError, NotADirectoryError):
        return None


def bytes_present(directory: str) -> int:
    """What the blocks of a directory take, about."""
    try:
        with open(os.path.join(directory, _MAP), "rb", buffering=0) as file:
            read = file.read()[_HEADER_BYTES:]
            marks = np.frombuffer(read[: len(read) // 4 * 4], _CHECKSUM)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return int(np.count_nonzero(marks)) * BLOCK_BYTES


def create(directory: str, size: int) -> None:
    """Make a directory without any blocks; nothing happens if another process was faster."""
    parent = os.path.dirname(directory)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=NEW, dir=parent))
    try:
        blank = bytes(_map_bytes(block_count(size)) - _HEADER_BYTES)
        with open(new / _MAP, "wb", opener=_open_private) as file:
            file.write(_MAGIC + uuid.uuid4().bytes + blank)
        with open(new / DATA, "wb", opener=_open_private) as file:
            file.truncate(size)
        os.rename(new, directory)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        # Another one was there, though it may be gone again.
        was_there = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not was_there and not os.path.isdir(directory):
            raise


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as an ``opener`` of :func:`open`."""
    return os.open(path, flags, 0o600)


def discard(directory: str) -> bool:
    """Remove a directory; False if that is not possible, for some systems protect what is open."""
    gone = os.path.join(os.path.dirname(directory), f"{DELETED_PREFIX}{uuid.uuid4().hex}")
    try:
        os.rename(directory, gone)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if os.path.isdir(gone):
        shutil.rmtree(gone, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):  # another process has seen it, too
            os.unlink(gone)
    return True


def count_marked(checks: bytes) -> int:
    """Return how many blocks the checksums of :meth:`CacheEntry.write` are of."""
    return len(checks) // _CHECKSUM.itemsize


def _map_bytes(blocks: int) -> int:
    """Where in the map the checksum of a block is, or where it ends after so many of them."""
    return _HEADER_BYTES + blocks * _CHECKSUM.itemsize


def _check(block: bytes | memoryview) -> int:
    return _core.crc32c(block) or 1


def _write(file: int, begin: int, data: bytes) -> None:
    os.lseek(file, begin, os.SEEK_SET)
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
