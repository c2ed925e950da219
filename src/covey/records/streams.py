"""Where the bytes of a TFRecord file come from: a map of it, a file object, or an inflater.

A stream hands out windows. Each begins where the last was consumed to and holds at least what the
caller needs next, so that whoever looks for frames never has to care about pieces.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Protocol

# How much of a file is mapped at once: enough that mapping costs nothing, little enough that
# reading a file of any size takes no more memory than this.
WINDOW_BYTES = 16 << 20


class Stream(Protocol):
    """Windows over the bytes of a file, in order."""

    def window(self, consumed: int, needed: int) -> tuple[memoryview, bool]:
        """Move on by ``consumed`` bytes; return what follows, and whether the file ends with it.

        The window has at least ``needed`` bytes unless the file ends before.
        """
        ...

    def close(self) -> None:
        """Close what the stream opened. Windows stay valid."""
        ...


class MappedStream:
    """A stream over a local file that is mapped into memory, a window at a time."""

    def __init__(self, descriptor: int, position: int) -> None:
        self._descriptor = descriptor
        self._position = position

    def window(self, consumed: int, needed: int) -> tuple[memoryview, bool]:
        self._position += consumed
        # Asked every time: a map that reaches past the end of a file kills the process.
        size = os.fstat(self._descriptor).st_size
        if self._position >= size:
            return memoryview(b""), True
        begin = self._position // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        end = min(size, self._position + max(needed, WINDOW_BYTES))
        mapped = map_file(self._descriptor, begin, end - begin)
        return memoryview(mapped)[self._position - begin :], end == size

    def close(self) -> None:
        """Nothing to close: a map is gone with its last window."""


def map_file(descriptor: int, begin: int, length: int) -> mmap.mmap:
    """Map part of a file for reading, its pages ready to be touched."""
    if hasattr(mmap, "MAP_POPULATE"):
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return mmap.mmap(descriptor, length, flags=flags, prot=mmap.PROT_READ, offset=begin)
    return mmap.mmap(descriptor, length, access=mmap.ACCESS_READ, offset=begin)


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
