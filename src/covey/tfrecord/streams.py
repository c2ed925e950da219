"""Input files: their bytes, mapped into memory, read in pieces, or decompressed.

A stream returns windows. Each begins at the end of the consumed bytes, and has at least the bytes
that the caller needs next, so that a frame is never split between pieces.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol, cast

from covey import _core
from covey.errors import ClosedError, DatasetError
from covey.tfrecord.block import Members, SharedDescriptor
from covey.tfrecord.compression import (
    Compression,
    Inflater,
    StreamError,
    detect_compression,
    parse_compression,
    read_head,
)
from covey.untrusted import RegularFile, open_path, os_errors, read_at
from covey.urls import AnyPath, check_local, is_path

PathOrFile = AnyPath | BinaryIO

# Size of a mapped window: large enough that the cost of mapping is negligible, and an upper bound
# of the memory for reading a file of any size.
WINDOW_BYTES = 8 << 20

PIECE_BYTES = 1 << 20
"""Maximum number of bytes that are read or decompressed at a time."""

_MIN_MAPPED_BYTES = 1 << 20


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


class FileStream:
    """A stream over a regular file; its size limits the windows.

    Args:
        file: The file; its position is unused.
        position: Offset of the first window.
        window_bytes: Size of a window, unless more bytes are needed.
        mmap: Map windows into memory; False reads them.
    """

    def __init__(self, file: io.FileIO, position: int, window_bytes: int, *, mmap: bool) -> None:
        self._file = file
        self._position = position
        self._window_bytes = window_bytes
        self._mmap = mmap
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
        end = min(size, self._position + max(needed, self._window_bytes))
        # Reading is faster than mapping for small windows.
        if self._mmap and end - self._position >= _MIN_MAPPED_BYTES:
            if self._shared is None:
                self._shared = SharedDescriptor(self._file.fileno())
            self.mapped_from = self._shared
            mapped: Any = _core.map_file(self._file.fileno(), self._position, end, True)
            return memoryview(mapped), end == size
        data = read_at(self._file.fileno(), self._position, end - self._position)
        if len(data) < end - self._position:
            raise truncated()
        return memoryview(data), end == size


def truncated() -> StreamError:
    """Return the error for a window that was truncated while it was read."""
    return StreamError("the file was truncated while it was read")


class PieceStream:
    """A stream over a function that reads pieces: a file object, an inflater."""

    def __init__(self, read: Callable[[int], bytes], piece_bytes: int) -> None:
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


class InputFile:
    """A TFRecord file that is read. To be closed.

    Args:
        source: A path, or a binary file object, which is read from its current position.
        compression: ``None``, ``"GZIP"`` or ``"ZLIB"``; ``"auto"`` detects it.
        mmap: Map local files into memory; False reads them.
        window_bytes: Bytes that are mapped or read at a time, unless a record is larger.
    """

    def __init__(
        self,
        source: PathOrFile,
        compression: str | None = "auto",
        *,
        mmap: bool = True,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._mmap = mmap
        self.window_bytes = window_bytes
        self.piece_bytes = min(window_bytes, PIECE_BYTES)
        self._owned = is_path(source)
        self.is_closed = False
        if self._owned:
            self.name = check_local(source)
            self._file: BinaryIO = open_path(self.name)
        else:
            self.name = str(getattr(source, "name", "<file>"))
            self._file = cast(BinaryIO, source)
        self._regular = _regular_file(self._file, is_owned=self._owned)
        self.is_seekable = bool(getattr(self._file, "seekable", lambda: False)())
        self._start = self._file.tell() if self.is_seekable else 0
        self._head = b""
        """Bytes of a pipe that were read to detect the compression."""
        self._is_consumed = False
        """Whether a pipe was read."""
        self.compression: Compression
        try:
            with os_errors(self.name):
                if compression == "auto":
                    head = read_head(self._file, is_pipe=not self.is_seekable)
                    self._head = b"" if self.is_seekable else head
                    self.compression = self._detect(head)
                else:
                    self.compression = parse_compression(compression)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, if it was opened here."""
        self.is_closed = True
        if self._owned:
            self._file.close()

    def check_open(self) -> None:
        """Raise ClosedError if the file was closed."""
        if self.is_closed:
            raise ClosedError("the reader is closed; open the file again", path=self.name)

    @property
    def size(self) -> int | None:
        """Size of the data; None if it is unknown: of compressed files and file objects."""
        if self._regular is None or self.compression is not None:
            return None
        return os.fstat(self._regular.fileno()).st_size

    def stream(self, offset: int = 0, members: Members | None = None) -> Stream:
        """Return a stream of the (decompressed) bytes from an offset in the file on.

        Args:
            offset: The offset; that of a member if the file is compressed.
            members: List that gets (decompressed bytes before it, file offset) of every member.
        """
        if self._regular is not None and self.compression is None:
            return FileStream(self._regular, offset, self.window_bytes, mmap=self._mmap)
        read = self.reader(offset)
        if self.compression is not None:
            read = Inflater(read, self.compression, offset, members).read
        return PieceStream(read, self.piece_bytes)

    def reader(self, offset: int) -> Callable[[int], bytes]:
        """Return a function that reads the file sequentially from an offset on.

        Raises:
            ClosedError: If the file is not seekable, and was read before.
        """
        if not self.is_seekable:
            if self._is_consumed or offset:
                raise ClosedError("it is not seekable, so it can be read only once", path=self.name)
            self._is_consumed = True
            head = [self._head]
            return lambda size: (head.pop() if head else b"") or self._file.read(size)

        def read(size: int) -> bytes:
            nonlocal offset
            piece = self.read_at(offset, size)
            offset += len(piece)
            return piece

        return read

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes of a seekable file from ``offset``."""
        self.check_open()
        if self._regular is not None:
            return read_at(self._regular.fileno(), offset, size)
        self._file.seek(self._start + offset)  # another iteration may have changed the position
        return self._file.read(size)

    def _detect(self, head: bytes) -> Compression:
        """Return the compression of a file that begins with ``head``."""
        return detect_compression(head)


def check_path_or_file(option: str, value: object, method: str) -> None:
    """Raise DatasetError unless an argument is a path, or has the method of a file object."""
    if not is_path(value) and not hasattr(value, method):
        raise DatasetError(option=option, found=value, allowed="a path or a binary file")


def check_source(source: PathOrFile, compression: str | None, max_record_bytes: int = 0) -> None:
    """Raise ValueError if the arguments of a reader are not valid."""
    check_path_or_file("source", source, "read")
    if compression != "auto":
        parse_compression(compression)
    if max_record_bytes < 0:
        raise ValueError(f"max_record_bytes is {max_record_bytes}; must be an integer >= 0")


def _regular_file(file: BinaryIO, *, is_owned: bool) -> io.FileIO | None:
    """Return a file that can be read at any offset; None for other file objects."""
    if not isinstance(file, io.FileIO) or not (is_owned or isinstance(file, RegularFile)):
        return None
    return file if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
