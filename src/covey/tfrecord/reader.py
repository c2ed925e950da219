"""Reader of TFRecord files: regular files and file objects, plain or compressed."""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from numpy.typing import NDArray

from covey import _core
from covey.errors import ClosedError, CorruptRecordError, DatasetError, SkippedRecordsWarning
from covey.results import SkippedRecord
from covey.tfrecord.block import Block, Members, RecordLocations
from covey.tfrecord.compression import (
    Compression,
    Inflater,
    detect_compression,
    parse_compression,
    read_head,
)
from covey.tfrecord.scan import WINDOW_BYTES, FileWindow, OnError, PieceWindow, Scan, Window
from covey.untrusted import RegularFile, open_path, os_errors, read_at
from covey.urls import AnyPath, check_local, is_path

PathOrFile = AnyPath | BinaryIO

_MAX_OFFSET = 2**62

# Bytes that are read for a single record, if it is not longer.
_RECORD_BYTES = 1 << 16


class RecordReader:
    """Reader of the records of one TFRecord file.

    Args:
        source: A path, or a binary file object, which is read from its current position.
        compression: ``None``, ``"GZIP"`` or ``"ZLIB"``; ``"auto"`` detects it.
        verify: Verify the checksums. Lengths are checked against the size of the file in any case.
        on_error: ``"raise"``, or ``"skip"`` to continue at the next valid record; :attr:`skipped`
            then has the skipped parts, and a warning has their number. Nothing is read after
            corrupt compressed data.
        max_record_bytes: Maximum size of a record in compressed data or a file object. The size
            of an uncompressed file limits its records.
        window_bytes: Bytes that are read at a time, unless a record is larger.

    >>> with RecordWriter("two.tfrecord") as writer:
    ...     writer.write(b"one")
    ...     writer.write(b"two")
    >>> with RecordReader("two.tfrecord") as reader:
    ...     list(reader)
    [b'one', b'two']
    """

    def __init__(
        self,
        source: PathOrFile,
        *,
        compression: str | None = "auto",
        verify: bool = True,
        on_error: OnError = "raise",
        max_record_bytes: int = 1 << 28,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        check_path_or_file("source", source, "read")
        if max_record_bytes < 0:
            raise ValueError(f"max_record_bytes is {max_record_bytes}; must be an integer >= 0")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}; must be 'raise' or 'skip'")
        self.compression: Compression = None
        if compression != "auto":
            self.compression = parse_compression(compression)
        self._verify = verify
        self._on_error = on_error
        self._max_record_bytes = max_record_bytes
        self._window_bytes = window_bytes
        self.skipped: list[SkippedRecord] = []
        """Records that ``on_error="skip"`` has skipped in the last pass."""
        self._owned = is_path(source)
        self._is_closed = False
        if self._owned:
            self.name = check_local(source)
            self._file: BinaryIO = open_path(self.name)
        else:
            self.name = str(getattr(source, "name", "<file>"))
            self._file = cast(BinaryIO, source)
        self._regular = _regular_file(self._file, is_owned=self._owned)
        self._is_seekable = bool(getattr(self._file, "seekable", lambda: False)())
        self._head: bytes | None = b""
        """Bytes of a pipe that were read to detect the compression; None once it is read."""
        try:
            with os_errors(self.name):
                self._start = self._file.tell() if self._is_seekable else 0
                if compression == "auto":
                    head = read_head(self._file, is_pipe=not self._is_seekable)
                    self._head = b"" if self._is_seekable else head
                    self.compression = detect_compression(head)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RecordReader:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if this reader opened it. Its blocks stay valid."""
        self._is_closed = True
        if self._owned:
            self._file.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the reader is closed; open the file again", path=self.name)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the records, from the first."""
        for block in self.blocks():
            yield from block

    def count(self) -> int:
        """Return the number of records, all of them verified."""
        return sum(len(block) for block in self.blocks())

    def blocks(
        self, *, verify_data: bool = True, members: Members | None = None
    ) -> Iterator[Block]:
        """Yield blocks of records.

        Args:
            verify_data: Verify the checksums of the data; False is for callers that verify them
                while decoding.
            members: List that gets (decompressed bytes before it, file offset) of every member of a
                compressed file.
        """
        self.skipped.clear()
        return self._blocks(self.scan(verify_data=verify_data, members=members))

    def _blocks(self, found: Iterator[Block | SkippedRecord]) -> Iterator[Block]:
        for each in found:
            if isinstance(each, Block):
                yield each
            else:
                self.skipped.append(each)
        if self.skipped:
            warnings.warn(
                f"{self.name}: skipped {len(self.skipped)} corrupt "
                f"{'part' if len(self.skipped) == 1 else 'parts'}, the first at record "
                f"{self.skipped[0].record}: {self.skipped[0].reason}",
                SkippedRecordsWarning,
                stacklevel=3,
            )

    def scan(
        self, *, verify_data: bool = True, members: Members | None = None
    ) -> Iterator[Block | SkippedRecord]:
        """Yield blocks of records, and the skipped parts between them, in order.

        Args:
            verify_data, members: As for :meth:`blocks`.
        """
        yield from self._scan(self._window(0, members), self._on_error, verify_data)(0)

    def _level(self, verify_data: bool = True) -> int:
        if not self._verify:
            return _core.VERIFY_NOTHING
        return _core.VERIFY_ALL if verify_data else _core.VERIFY_LENGTHS

    def locations(self) -> NDArray[Any]:
        """Return the locations of all records: an array of (offset, inner_offset, length).

        See :mod:`covey.tfrecord.block`; :meth:`read_at` takes them.
        """
        locations = RecordLocations(self.compression)
        for block in self.blocks(members=locations.members):
            locations.add(block)
        return locations.table()

    def read_at(self, offset: int, inner_offset: int = 0) -> bytes:
        """Return the record at a location that :meth:`locations` returned.

        Raises:
            CorruptRecordError: If there is no valid record, also with ``on_error="skip"``.
        """
        offset, inner_offset = int(offset), int(inner_offset)
        if offset < 0 or inner_offset < 0:
            raise ValueError(f"the location is ({offset}, {inner_offset}); must not be negative")
        if self.compression is None:
            offset, inner_offset = offset + inner_offset, 0
        if offset + inner_offset > _MAX_OFFSET:
            raise self._no_record(offset, inner_offset)
        # The location in the data of a compressed file is unknown: that of the member is shown.
        window = self._window(offset, begin=offset - inner_offset, step=_RECORD_BYTES)
        while window.end < offset and not window.ended:
            window.move(window.end, 1)
        if window.end >= offset:
            scan = self._scan(window, "raise")
            scan.record, scan.limit = -1, 1
            for found in scan(offset):
                assert isinstance(found, Block)
                return next(iter(found))
        elif window.error:
            raise CorruptRecordError(window.error, path=self.name, offset=offset)
        raise self._no_record(offset, inner_offset)

    def _no_record(self, offset: int, inner_offset: int) -> CorruptRecordError:
        location = f"{offset} + {inner_offset}" if inner_offset else str(offset)
        return CorruptRecordError(
            f"the file ends before byte {location}; take locations from the index of the file",
            path=self.name,
            offset=offset,
        )

    def _scan(self, window: Window, on_error: OnError, verify_data: bool = True) -> Scan:
        inside = " (the offset is that in the decompressed data)" if self.compression else ""
        return Scan(
            window,
            self.name,
            on_error,
            self._level(verify_data),
            self._max_record_bytes,
            remedy=f"pass on_error='skip' to read the valid records{inside}",
        )

    def _window(
        self,
        offset: int = 0,
        members: Members | None = None,
        *,
        begin: int = 0,
        step: int = WINDOW_BYTES,
    ) -> Window:
        """Return a window over the (decompressed) data from an offset in the file on.

        Args:
            offset: The offset; that of a member if the file is compressed.
            members: List that gets (decompressed bytes before it, file offset) of every member.
            begin: The offset that the data of a compressed file gets.
            step: Bytes that are read at a time.
        """
        step = min(step, self._window_bytes)
        if self._regular is not None and self.compression is None:
            return FileWindow(self._read_bytes, self._size, offset, step)
        read = self._reader(offset)
        if self.compression is None:
            begin = offset
        else:
            read = Inflater(read, self.compression, offset, members).read
        return PieceWindow(read, begin, step)

    def _size(self) -> int:
        self._check_open()
        return os.fstat(self._file.fileno()).st_size

    def _reader(self, offset: int) -> Callable[[int], bytes]:
        """Return a function that reads the file sequentially from an offset on.

        Raises:
            ClosedError: If the file is not seekable, and was read before.
        """
        if not self._is_seekable:
            if self._head is None or offset:
                raise ClosedError("it is not seekable, so it can be read only once", path=self.name)
            head, self._head = [self._head], None

            def read_next(size: int) -> bytes:
                self._check_open()
                with os_errors(self.name):
                    return (head.pop() if head else b"") or self._file.read(size)

            return read_next

        def read(size: int) -> bytes:
            nonlocal offset
            piece = self._read_bytes(offset, size)
            offset += len(piece)
            return piece

        return read

    def _read_bytes(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes of a seekable file from ``offset``."""
        self._check_open()
        with os_errors(self.name):
            if self._regular is not None:
                return read_at(self._regular.fileno(), offset, size)
            self._file.seek(self._start + offset)  # another pass may have changed the position
            return self._file.read(size)


def check_path_or_file(option: str, value: object, method: str) -> None:
    """Raise DatasetError unless an argument is a path, or has the method of a file object."""
    if not is_path(value) and not hasattr(value, method):
        raise DatasetError(option=option, found=value, allowed="a path or a binary file")


def _regular_file(file: BinaryIO, *, is_owned: bool) -> io.FileIO | None:
    """Return a file that can be read at any offset; None for other file objects."""
    if not isinstance(file, io.FileIO) or not (is_owned or isinstance(file, RegularFile)):
        return None
    return file if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
