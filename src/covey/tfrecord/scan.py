"""The frame scanner: the valid records of a file in blocks, and its corrupt ranges.

A window is the part of the (decompressed) data of a file that is in memory. The scanner moves it
over the file, so that a frame is never split between two windows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from covey import _core
from covey.errors import CorruptRecordError
from covey.results import SkippedRecord
from covey.tfrecord.block import (
    FRAME_BYTES,
    HEADER_BYTES,
    Block,
    checksum_reason,
    starts_with_frame,
)
from covey.tfrecord.compression import StreamError

OnError = Literal["raise", "skip"]

WINDOW_BYTES = 1 << 20
"""Bytes that are read or decompressed at a time, unless a record is larger. They stay in the cache
of the CPU until they are verified."""

# Frames longer than a window that one search reads: a hostile file consists of headers only.
_MAX_LONG_FRAMES = 16


class Window:
    """The data of a file from an offset on. Offsets are those in the file's data.

    Args:
        begin: The offset at which the data begins.
        step: Bytes that are read at a time, unless more are needed.
    """

    size: int | None = None
    """Size of the data; None if it is unknown: of compressed files and file objects."""

    def __init__(self, begin: int, step: int) -> None:
        self.begin = begin
        self.step = step
        self.data = memoryview(b"")
        """Content of the window."""
        self.ended = False
        """Whether the data ends with the window."""
        self.error = ""
        """Why the data ends, if it cannot be read further."""

    @property
    def end(self) -> int:
        """Offset of the end of the window."""
        return self.begin + len(self.data)

    def rest(self, at: int) -> memoryview:
        """Return the content of the window from an offset on."""
        return self.data[at - self.begin :]

    def bytes_left(self, at: int) -> int:
        """Return the number of bytes up to the end of the data; 0 if it is unknown."""
        return 0 if self.size is None else self.size - at

    def peek(self, at: int, needed: int) -> memoryview:
        """Return the data from an offset on, at least ``needed`` bytes if as many follow."""
        if self.end - at < needed and not self.ended:
            self.move(at, needed)
        return self.rest(at)

    def move(self, at: int, needed: int) -> None:
        """Move the window to an offset in it; it has ``needed`` bytes if as many follow."""
        raise NotImplementedError


class FileWindow(Window):
    """A window over a regular file, whose size limits it.

    Args:
        read_at: Function that reads up to a number of bytes from an offset.
        size_of: Function that returns the size of the file.
        begin, step: As for :class:`Window`.
    """

    def __init__(
        self,
        read_at: Callable[[int, int], bytes],
        size_of: Callable[[], int],
        begin: int,
        step: int,
    ) -> None:
        super().__init__(begin, step)
        self._read_at = read_at
        self._size_of = size_of
        self.size: int = size_of()

    def move(self, at: int, needed: int) -> None:
        before, self.size = self.size, self._size_of()
        wanted = max(0, min(self.size - at, max(needed, self.step)))
        data = self._read_at(at, wanted)
        if self.size < before:
            self.error = f"the file was truncated from {before} to {self.size} bytes"
        elif len(data) < wanted:
            self.error = "the file was truncated while it was read"
        self.begin, self.data = at, memoryview(data)
        self.ended = bool(self.error) or at + wanted >= self.size


class PieceWindow(Window):
    """A window over a function that reads up to a number of bytes: a file object, an inflater."""

    def __init__(self, read: Callable[[int], bytes], begin: int, step: int) -> None:
        super().__init__(begin, step)
        self._read = read

    def move(self, at: int, needed: int) -> None:
        # `needed` may be an untrusted length: memory grows only with the bytes that arrive.
        pieces = [self.rest(at)]
        have = len(pieces[0])
        needed = max(needed, have + 1)
        while have < needed and not self.ended:
            try:
                piece = self._read(self.step)
            except StreamError as error:
                self.error, piece = str(error), b""
            self.ended = not piece
            pieces.append(memoryview(piece))
            have += len(piece)
        self.begin, self.data = at, memoryview(b"".join(pieces))


@dataclass
class Scan:
    """One pass over the frames of a file.

    After corrupt data the next record is found by the length, which has its own checksum. After a
    corrupt length the next valid frame is searched byte by byte; the number of records in between
    is unknown and counts as one. Corrupt compressed data ends the file.

    A record may itself contain frames, for example a TFRecord file. Frames within a corrupt record
    are not yielded if its extent is known: from its length, or, if only its header is corrupt and
    it is smaller than 1 MiB, from the checksum of its data. Otherwise they are yielded.
    """

    window: Window
    name: str
    """Path of the file."""
    on_error: OnError
    """``"raise"`` raises CorruptRecordError in place of the first corrupt range."""
    verify: int
    """What is verified: a level of ``_core.scan_frames``."""
    max_record_bytes: int
    """Maximum size of a record, if the size of the file is unknown."""
    remedy: str
    record: int = 0
    """Number of the next record; a corrupt range counts as one. -1 if it is unknown."""
    limit: int = 2**63
    """Number of records at which the pass ends."""
    _open: SkippedRecord | None = None
    """The corrupt range whose end is not known yet."""

    def __call__(self, at: int) -> Iterator[Block | SkippedRecord]:
        """Yield the records from an offset on, in order, and a SkippedRecord per corrupt range."""
        window = self.window
        while True:
            data = window.rest(at)
            scanned = _core.scan_frames(data, self.limit, self.verify)
            offsets, lengths, consumed, needed, fault = scanned
            if len(lengths):
                yield from self._close(at)
                verified = self.verify != _core.VERIFY_LENGTHS
                yield Block(data, offsets, lengths, self.name, self.record, at, verified)
                self.record += len(lengths)
                at += consumed
                if len(lengths) == self.limit:
                    return
            if fault is not None:
                reason = self._checksum_reason(fault)
                skip = self._skip_data if fault.code == "data_checksum" else self._skip_length
                at = yield from skip(at, reason)
            elif needed > FRAME_BYTES + max(self.max_record_bytes, window.bytes_left(at)):
                at = yield from self._skip_too_long(at, needed)
            elif not window.ended:
                window.move(at, needed)
            elif at < window.end:
                at = yield from self._skip_rest(at, needed)
            else:
                break
        if self._open is None and window.error:
            self._begin(at, window.error)
        elif self._open is not None and window.error not in ("", self._open.reason):
            self._open = replace(self._open, reason=f"{self._open.reason}; {window.error}")
        if self._open is not None:
            yield self._open

    # Each of these methods skips a corrupt range and returns the offset at which to resume.

    def _skip_data(self, at: int, reason: str) -> Generator[SkippedRecord, None, int]:
        """Skip a record with corrupt data and a valid length."""
        yield from self._close(at)
        self._begin(at, reason)
        (length,) = struct.unpack_from("<Q", self.window.rest(at))
        # If bytes of the data are missing, the next frame begins before the recorded end.
        end = self._find(at + 1, at + length + FRAME_BYTES)
        following = self.window.peek(end, HEADER_BYTES)
        if not following or starts_with_frame(following):
            yield from self._close(end)
        return end

    def _skip_length(self, at: int, reason: str) -> Generator[SkippedRecord, None, int]:
        """Skip a record with a corrupt length."""
        if self._open is None:
            self._begin(at, reason)
            data = self.window.peek(at, self.window.step)[: self.window.step]
            is_rest = self.window.ended and at + len(data) == self.window.end
            length = _core.find_end(data, is_rest)
            if length:
                yield from self._close(at + length)
                return at + length
        return self._find(at + 1)

    def _skip_too_long(self, at: int, needed: int) -> Generator[SkippedRecord, None, int]:
        """Skip a record with a length that exceeds the limit or the file."""
        yield from self._close(at)
        left, limit = self.window.bytes_left(at), self.max_record_bytes
        if left:
            self._begin(at, _truncation_reason(left, needed))
        else:
            self.remedy = f"pass a larger max_record_bytes= if it is correct, or {self.remedy}"
            length = needed - FRAME_BYTES
            self._begin(
                at, f"the length of the record is {length} bytes, over the limit of {limit}"
            )
        return self._find(at + 1)

    def _skip_rest(self, at: int, needed: int) -> Generator[SkippedRecord, None, int]:
        """Skip an incomplete record at the end of the data."""
        if needed:
            yield from self._close(at)
        end = self.window.end
        if self._open is None:
            self._begin(at, self.window.error or _truncation_reason(end - at, needed))
        # If bytes of the record are missing, further frames follow within its recorded length.
        return self._find(at + 1, end)

    def _begin(self, at: int, reason: str) -> None:
        """Begin a corrupt range."""
        if self.on_error == "raise":
            record = None if self.record < 0 else self.record
            raise CorruptRecordError(
                reason, path=self.name, record=record, offset=at, remedy=self.remedy
            )
        self._open = SkippedRecord(self.record, reason, self.name, at)
        self.record += 1

    def _close(self, at: int) -> Iterator[SkippedRecord]:
        """End the corrupt range."""
        if self._open is not None:
            yield replace(self._open, bytes=at - (self._open.offset or 0))
            self._open = None

    def _find(self, begin: int, end: int | None = None) -> int:
        """Return the offset of the next frame; ``end`` if no frame leads there from before it."""
        window = self.window
        max_bytes = self.max_record_bytes if window.size is None else window.size
        long_frames = 0
        while True:
            reach = 0 if end is None else max(0, end - window.begin)
            found, needed = _core.find_frame(
                window.data, begin - window.begin, reach, max_bytes, window.ended
            )
            begin = window.begin + found
            if end is not None and begin >= end:
                return end
            if not needed:
                return begin
            if needed > window.step:
                long_frames += 1
                max_bytes = max_bytes if long_frames < _MAX_LONG_FRAMES else window.step
            window.move(begin, max(needed, window.step))

    def _checksum_reason(self, fault: _core.Fault) -> str:
        reason = checksum_reason(fault)
        if fault.code == "length_checksum" and self.record == 0:
            reason += "; the file may not be a TFRecord file"
        return reason


def _truncation_reason(available: int, needed: int) -> str:
    """Return the reason of the error for a truncated frame.

    Args:
        available: Bytes of the frame that the file has.
        needed: Bytes of the complete frame; 0 if its header is truncated.
    """
    expected = f"the record's {needed} bytes" if needed else f"a header of {HEADER_BYTES}"
    return f"the file ends after {available} of {expected}"
