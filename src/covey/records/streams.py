"""Where the bytes of a TFRecord file come from: a map of it, or pieces that are read.

A stream hands out windows. Each begins where the last was consumed to and holds at least what the
caller needs next, so that whoever looks for frames never has to care about pieces.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import BinaryIO, Protocol

# How much of a file is mapped at once: enough that mapping costs nothing, little enough that
# reading a file of any size takes no more memory than this.
WINDOW_BYTES = 8 << 20

# What is smaller is read: a map keeps a file descriptor as long as it lives.
_MAP_FROM = 1 << 20


class StreamError(Exception):
    """The bytes of a file cannot be had; the message says why."""


class Stream(Protocol):
    """Windows over the bytes of a file, in order."""

    def window(self, consumed: int, needed: int) -> tuple[memoryview, bool]:
        """Move on by ``consumed`` bytes; return what follows, and whether the file ends with it.

        The window has at least ``needed`` bytes unless the file ends before.

        Raises:
            StreamError: If the file cannot be read on.
        """
        ...

    def close(self) -> None:
        """Close what the stream opened. Windows stay valid."""
        ...


class MappedStream:
    """A stream over a regular file that is mapped into memory, a window at a time."""

    def __init__(self, file: BinaryIO, position: int) -> None:
        self._file = file
        self._position = position
        self._size = 0

    def window(self, consumed: int, needed: int) -> tuple[memoryview, bool]:
        self._position += consumed
        # Asked every time: touching a map beyond the end of its file kills the process.
        size = os.fstat(self._file.fileno()).st_size
        if size < self._size:
            raise StreamError(f"the file was cut from {self._size} to {size} bytes meanwhile")
        self._size = size
        if self._position >= size:
            return memoryview(b""), True
        end = min(size, self._position + max(needed, WINDOW_BYTES))
        return map_file(self._file.fileno(), self._position, end), end == size

    def close(self) -> None:
        """Nothing to close: the file is the reader's, and a map is gone with its last window."""


def map_file(descriptor: int, begin: int, end: int) -> memoryview:
    """Part of a file, its pages ready to be touched."""
    if end - begin < _MAP_FROM and hasattr(os, "pread"):
        return memoryview(os.pread(descriptor, end - begin, begin))
    start = begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    if hasattr(mmap, "MAP_POPULATE"):
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mapped = mmap.mmap(descriptor, end - start, flags=flags, prot=mmap.PROT_READ, offset=start)
    else:
        mapped = mmap.mmap(descriptor, end - start, access=mmap.ACCESS_READ, offset=start)
    return memoryview(mapped)[begin - start :]


class PieceStream:
    """A stream over anything that is read piece by piece: a file object, an inflater."""

    def __init__(
        self, read: Callable[[int], bytes], piece_bytes: int, close: Callable[[], None]
    ) -> None:
        self.close = close
        self._read = read
        self._piece_bytes = piece_bytes
        self._buffer = memoryview(b"")
        self._ended = False

    def window(self, consumed: int, needed: int) -> tuple[memoryview, bool]:
        # What is needed may be a hostile length: memory grows only as bytes really arrive.
        pieces = [self._buffer[consumed:]]
        have = len(pieces[0])
        needed = max(needed, have + 1)
        while have < needed and not self._ended:
            piece = self._read(self._piece_bytes)
            self._ended = not piece
            pieces.append(memoryview(piece))
            have += len(piece)
        self._buffer = memoryview(b"".join(pieces))
        return self._buffer, self._ended
