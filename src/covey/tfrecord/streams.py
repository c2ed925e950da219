"""Streams: the bytes of a TFRecord file, mapped into memory or read in pieces.

A stream returns windows. Each begins at the end of the consumed bytes, and has at least the bytes
that the caller needs next, so that a frame is never split between pieces.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, Protocol

from covey import _core
from covey.untrusted import read_at

# Size of a mapped window: large enough that the cost of mapping is negligible, and an upper bound
# of the memory for reading a file of any size.
WINDOW_BYTES = 8 << 20

_MAP_FROM = 1 << 20


class StreamError(Exception):
    """The bytes of a file cannot be read."""


class SharedDescriptor:
    """A duplicate of the descriptor of a file, closed with the last reference to it.

    Args:
        descriptor: The descriptor; the caller keeps it.
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
    """The file of the last window, if it is mapped; else None."""

    def window(self, consumed: int, needed: int) -> tuple[memoryview, bool]:
        """Advance by `consumed` bytes; return the next window, and whether the file ends with it.

        The window has at least ``needed`` bytes unless the file ends before.

        Raises:
            StreamError: If the file cannot be read.
        """
        ...

    def close(self) -> None:
        """Release the resources of the stream. Windows stay valid."""
        ...


class FileStream:
    """A stream over a regular file; its size limits the windows.

    Args:
        file: The file; its position is unused.
        position: Offset of the first window.
        mmap: Map windows into memory; False reads them.
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
            raise StreamError(f"the file was truncated from {self._size} to {size} bytes")
        self._size = size
        if self._position >= size:
            return memoryview(b""), True
        end = min(size, self._position + max(needed, WINDOW_BYTES))
        # Reading is faster than mapping for small windows.
        if self._map_files and end - self._position >= _MAP_FROM:
            if self._shared is None:
                self._shared = SharedDescriptor(self._file.fileno())
            self.mapped_from = self._shared
            mapped: Any = _core.map_file(self._file.fileno(), self._position, end, True)
            return memoryview(mapped), end == size
        data = read_at(self._file.fileno(), self._position, end - self._position)
        if len(data) < end - self._position:
            raise truncated()
        return memoryview(data), end == size

    def close(self) -> None:
        """Do nothing: the reader owns the file, and a map is released with its last window."""


def truncated() -> StreamError:
    """Return the error for a window that was truncated while it was read."""
    return StreamError("the file was truncated while it was read")


def is_truncated(window: Any, mapped_from: SharedDescriptor | None, end: int) -> bool:
    """Return whether a window may have been read as zeros because its file was truncated.

    To be called after each read.

    Args:
        window: Bytes of a file.
        mapped_from: The file, if the window is mapped.
        end: The offset in the file at which the window ends.
    """
    # Bytes after the end of the file in its last page are zeros, and raise no fault.
    return _core.has_faulted(window) or (mapped_from is not None and mapped_from.size() < end)


class PieceStream:
    """A stream over a function that reads pieces: a file object, an inflater."""

    def __init__(
        self,
        read: Callable[[int], bytes],
        piece_bytes: int,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.close = close
        self.mapped_from: SharedDescriptor | None = None
        self._read = read
        self._piece_bytes = piece_bytes
        self._buffer = memoryview(b"")
        self._ended = False

    def window(self, consumed: int, needed: int) -> tuple[memoryview, bool]:
        # `needed` may be an untrusted length: memory grows only with the bytes that arrive.
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
