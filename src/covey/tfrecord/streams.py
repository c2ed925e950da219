"""Where the bytes of a TFRecord file come from: a map of it, or pieces that are read.

A stream hands out windows. Each begins where the last was consumed to and holds at least what the
caller needs next, so that a caller that looks for frames never has to care about pieces.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, Protocol

from covey import _core
from covey.untrusted import read_at

# How much of a file is mapped at once: enough that mapping costs nothing, little enough that
# reading a file of any size takes no more memory than this.
WINDOW_BYTES = 8 << 20

_MAP_FROM = 1 << 20


class StreamError(Exception):
    """The bytes of a file cannot be had; the message says why."""


class SharedDescriptor:
    """A duplicate of the descriptor of a file, closed with the last reference to it.

    Args:
        descriptor: The descriptor; it stays the caller's.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)

    def size(self) -> int:
        """Return the size of the file now."""
        return os.fstat(self._descriptor).st_size

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class Stream(Protocol):
    """Windows over the bytes of a file, in order."""

    mapped_from: SharedDescriptor | None
    """The file that the last window is a map of; None if the window was read."""

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


class FileStream:
    """A stream over a regular file, whose size bounds what a window can have.

    Args:
        file: The file; its position is not used.
        position: Where the first window begins.
        map_files: Map windows into memory; False reads them.
    """

    def __init__(self, file: io.FileIO, position: int, *, mmap: bool) -> None:
        self._file = file
        self._position = position
        self._map_files = mmap
        self._size = 0
        self._shared: SharedDescriptor | None = None
        self.mapped_from: SharedDescriptor | None = None

    def window(self, consumed: int, needed: int) -> tuple[memoryview, bool]:
        self._position += consumed
        self.mapped_from = None
        size = os.fstat(self._file.fileno()).st_size
        if size < self._size:
            raise StreamError(f"the file was truncated from {self._size} to {size} bytes meanwhile")
        self._size = size
        if self._position >= size:
            return memoryview(b""), True
        end = min(size, self._position + max(needed, WINDOW_BYTES))
        # What is smaller is read: it is faster than a map.
        if self._map_files and end - self._position >= _MAP_FROM:
            if self._shared is None:
                self._shared = SharedDescriptor(self._file.fileno())
            self.mapped_from = self._shared
            mapped: Any = _core.map_file(self._file.fileno(), self._position, end, True)
            return memoryview(mapped), end == size
        data = read_at(self._file, self._position, end - self._position)
        if len(data) < end - self._position:
            raise truncated()
        return memoryview(data), end == size

    def close(self) -> None:
        """Nothing to close: the file is the reader's, and a map is gone with its last window."""


def truncated() -> StreamError:
    """The error of a window that was truncated while it was read."""
    return StreamError("the file was truncated while it was read")


def is_truncated(window: Any, mapped_from: SharedDescriptor | None, end: int) -> bool:
    """Return whether a window may have been read as zeros because its file was truncated.

    To be called after each read.

    Args:
        window: Bytes of a file.
        mapped_from: The file, if the window is a map of it.
        end: The offset in the file at which the window ends.
    """
    # Bytes behind the end of the file, but in its last page, are zeros and raise no fault.
    return _core.has_faulted(window) or (mapped_from is not None and mapped_from.size() < end)


class PieceStream:
    """A stream over anything that is read piece by piece: a file object, an inflater."""

    def __init__(
        self, read: Callable[[int], bytes], piece_bytes: int, close: Callable[[], None]
    ) -> None:
        self.close = close
        self.mapped_from: SharedDescriptor | None = None
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
