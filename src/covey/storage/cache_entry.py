"""Entries of the disk cache: locks, removal, and the blocks of one remote file.

An entry is a file or a directory. A process that uses an entry pins it with a shared ``flock``;
eviction takes an exclusive lock without waiting, or skips the entry. The lock is on the ``data``
file of an entry with blocks, else on the entry itself. Filesystems without locks lose only that
protection: an entry is removed by renaming it, so that open and mapped files stay valid.

::

    <cache>/blocks/<key>/data     size of the remote file, with holes for missing blocks
    <cache>/blocks/<key>/map      16 bytes of magic, a random id of 16 bytes, 4 bytes per block

The map has a little-endian u32 per block: 0 if the block is missing, else its CRC-32C, or 1 if that
is 0. It is written after the block, and a block is used only if its checksum matches: blocks that a
crash interrupted, or a failing disk lost, count as missing. Processes that fetch the same block
write the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._files import open_private, remove_any

BLOCK_BYTES = 1 << 16

DATA = "data"
_MAP = "map"
_MAGIC = b"covey blocks 3\n\0"
_HEADER_BYTES = len(_MAGIC) + 16
_CHECKSUM = np.dtype("<u4")

# Prefixes of entries that are being created and removed.
NEW_PREFIX = ".new-"
DELETED_PREFIX = ".gone-"


class CorruptCacheEntryError(Exception):
    """The files of an entry are not valid."""


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
        descriptor = os.open(path, flags)
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
    data = os.path.join(path, DATA)
    target = data if os.path.isfile(data) else path
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except OSError:
        return discard(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _is_at(descriptor, target) and discard(path)
    except BlockingIOError:
        return False
    except OSError:  # the filesystem has no locks
        return discard(path)
    finally:
        os.close(descriptor)


def discard(path: str) -> bool:
    """Remove an entry, pinned or not; return False if the system does not allow it."""
    deleted = os.path.join(os.path.dirname(path), f"{DELETED_PREFIX}{uuid.uuid4().hex}")
    try:
        os.rename(path, deleted)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    remove_any(Path(deleted))
    return True


def _is_at(descriptor: int, path: str) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def block_count(size: int) -> int:
    """Return the number of blocks of a file."""
    return -(-size // BLOCK_BYTES)


class BlockEntry:
    """The blocks of one remote file, pinned. Only one thread may call its methods at a time.

    Raises:
        FileNotFoundError: If the entry does not exist.
        CorruptCacheEntryError: If it is not an entry for a file of this size.
    """

    def __init__(self, directory: str, size: int) -> None:
        self._map = os.path.join(directory, _MAP)
        try:
            self.descriptor = open_pinned(os.path.join(directory, DATA), os.O_RDWR)
        except NotADirectoryError:
            raise CorruptCacheEntryError from None
        try:
            found = os.fstat(self.descriptor)
            with open(self._map, "rb", buffering=0) as file:
                header = file.read(_HEADER_BYTES)
                sizes = found.st_size, os.fstat(file.fileno()).st_size
            self.id = header[len(_MAGIC) :]
            """Distinguishes the entry from earlier ones with the same path."""
            if not header.startswith(_MAGIC) or sizes != (size, _map_offset(block_count(size))):
                raise CorruptCacheEntryError
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unpin the entry."""
        unpin(self.descriptor)

    def valid_blocks(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which blocks are stored and match their checksums; `blocks` is sorted."""
        valid = np.zeros(len(blocks), np.bool_)
        if not len(blocks):
            return valid
        first, last = int(blocks[0]), int(blocks[-1])
        try:
            with open(self._map, "rb", buffering=0) as file:
                file.seek(_map_offset(first))
                content = file.read((last + 1 - first) * _CHECKSUM.itemsize)
        except FileNotFoundError:  # the user removed the cache directory
            return valid
        checksums = np.frombuffer(content, _CHECKSUM)[blocks - first]
        for row in np.flatnonzero(checksums):
            block = os.pread(self.descriptor, BLOCK_BYTES, int(blocks[row]) * BLOCK_BYTES)
            valid[row] = checksum(block) == checksums[row]
        return valid

    def write(self, first: int, data: bytes) -> None:
        """Write whole blocks, then their checksums."""
        _write(self.descriptor, first * BLOCK_BYTES, data)
        view = memoryview(data)
        steps = range(0, len(data), BLOCK_BYTES)
        checksums = [checksum(view[step : step + BLOCK_BYTES]) for step in steps]
        self._write_map(first, np.array(checksums, _CHECKSUM).tobytes())

    def invalidate(self, block: int) -> None:
        """Mark a block as missing."""
        self._write_map(block, bytes(_CHECKSUM.itemsize))

    def _write_map(self, first: int, checksums: bytes) -> None:
        try:
            descriptor = os.open(self._map, os.O_WRONLY)
        except FileNotFoundError:  # the user removed the cache directory
            return
        try:
            _write(descriptor, _map_offset(first), checksums)
        finally:
            os.close(descriptor)


def create(directory: str, size: int) -> None:
    """Create an entry without blocks; do nothing if another process has created it."""
    parent = os.path.dirname(directory)
    os.makedirs(parent, mode=0o700, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=NEW_PREFIX, dir=parent))
    try:
        with open(new / _MAP, "wb", opener=open_private) as file:
            file.write(_MAGIC + uuid.uuid4().bytes + bytes(block_count(size) * _CHECKSUM.itemsize))
        with open(new / DATA, "wb", opener=open_private) as file:
            file.truncate(size)
        os.rename(new, directory)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        # Another process may have created it, and a third one may have removed that.
        is_created = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not is_created and not os.path.isdir(directory):
            raise


def stored_bytes(directory: str) -> int:
    """Return the approximate disk usage of the blocks of an entry."""
    try:
        with open(os.path.join(directory, _MAP), "rb", buffering=0) as file:
            content = file.read()[_HEADER_BYTES:]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    whole = len(content) // _CHECKSUM.itemsize * _CHECKSUM.itemsize
    return int(np.count_nonzero(np.frombuffer(content[:whole], _CHECKSUM))) * BLOCK_BYTES


def _map_offset(block: int) -> int:
    """Return the offset of the checksum of a block in the map."""
    return _HEADER_BYTES + block * _CHECKSUM.itemsize


def checksum(block: bytes | memoryview) -> int:
    """Return the entry of a block in the map."""
    return _core.crc32c(block) or 1


def _write(descriptor: int, offset: int, data: bytes) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, memoryview(data)[written:], offset + written)
