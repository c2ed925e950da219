"""Data of a TFRecord file that may be corrupt, in segments without a gap.

A plain file is one segment, and so is a valid ZLIB or GZIP file. A segment of a GZIP file ends at a
corrupt member; the next segment begins at the next member.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from covey import _core
from covey.tfrecord.block import HEADER_BYTES, SharedDescriptor, is_truncated, starts_with_frame
from covey.tfrecord.compression import Compression, Inflater, StreamError
from covey.tfrecord.streams import PIECE_BYTES, InputFile, PieceStream, Stream, truncated

_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_RESERVED_FLAGS = 0xE0
_GZIP_TRAILER_BYTES = 8  # CRC-32 and size of the decompressed data
_RAW_DEFLATE = -15
# Compressed bytes per call, and limit of decompressed bytes, of a trial decompression.
_TRIAL_INPUT_BYTES = 1 << 12
_MAX_TRIAL_BYTES = 4 << 20

ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Corruption:
    """Why a segment ends before its file."""

    reason: str
    lost: bool
    """Whether data is lost; False if only the trailer of a GZIP member is wrong."""
    offset: int
    """Offset of the corrupt member's data in the decompressed data."""
    resume: int | None
    """Byte of the file at which the next segment begins; None if there is none."""


class Segment:
    """Contiguous data of a file, seen through a window. Offsets are those in the file's data.

    Args:
        stream: The data.
        begin: Offset of its first byte.
        size: Size of a plain regular file; None for other files, whose size is unknown.
    """

    def __init__(self, stream: Stream, begin: int, size: int | None) -> None:
        self._stream = stream
        self._size = size
        self.begin = begin
        """Offset of the window."""
        self.corruption: Corruption | None = None
        """Why the segment ends, if the file does not end there."""
        self.data = memoryview(b"")
        """Content of the window."""
        self.ended = False
        """Whether the window reaches the end of the segment."""

    @property
    def end(self) -> int:
        """Offset of the end of the window."""
        return self.begin + len(self.data)

    @property
    def mapped_from(self) -> SharedDescriptor | None:
        """File that the window maps; None if it was read."""
        return self._stream.mapped_from

    def rest(self, at: int) -> memoryview:
        """Return the content of the window from an offset on."""
        return self.data[at - self.begin :]

    def bytes_left(self, at: int) -> int | None:
        """Return the number of bytes up to the end of the file; None if it is unknown."""
        return None if self._size is None else self._size - at

    def move(self, at: int, needed: int) -> None:
        """Move the window to an offset; it has at least ``needed`` bytes if as many follow."""
        try:
            self.data, self.ended = self._stream.window(at - self.begin, needed)
            self.begin = at
        except StreamError as error:
            self._end(at, error)

    def peek(self, at: int, needed: int) -> memoryview:
        """Return the data from an offset on, at least ``needed`` bytes if as many follow."""
        if self.end - at < needed and not self.ended:
            self.move(at, needed)
        return self.rest(at)

    def is_truncated(self, at: int) -> bool:
        """Return whether the file was truncated while the window was read; then end the segment."""
        if not is_truncated(self.data, self.mapped_from, self.end):
            return False
        self._end(at, truncated())
        return True

    def _end(self, at: int, error: StreamError) -> None:
        """End the segment at an offset."""
        self.begin, self.data, self.ended = at, memoryview(b""), True
        self.corruption = Corruption(str(error), True, at, None)


class CorruptFile(InputFile):
    """A file that may be corrupt, read in segments. To be closed.

    With ``compression="auto"`` the compression of a seekable file is also detected if its first
    bytes are corrupt.
    """

    def segment(self, position: int = 0, begin: int = 0) -> Segment:
        """Return the segment at a byte of the file; ``begin`` is its offset in the file's data."""
        if self.compression is None:
            return Segment(self.stream(), 0, self.size)
        members: list[tuple[int, int]] = []
        inflater = Inflater(self.reader(position), self.compression, position, members)
        produced = 0

        def read(size: int) -> bytes:
            nonlocal produced
            try:
                piece = inflater.read(size)
            except StreamError as error:
                # An exception would discard the data before it.
                before, member = members[-1]
                segment.corruption = self._corruption(
                    str(error), member, begin + before, produced - before
                )
                return b""
            produced += len(piece)
            return piece

        segment = Segment(PieceStream(read, self.piece_bytes), begin, None)
        return segment

    def _corruption(self, error: str, member: int, offset: int, inflated: int) -> Corruption:
        """Return what follows a corrupt GZIP member or ZLIB stream.

        Args:
            error: The error.
            member: Byte of the file at which the member begins.
            offset: Offset of the member's data.
            inflated: Number of bytes that were decompressed from the member.
        """
        if self.compression == "ZLIB":
            reason = f"{error}; the rest of a ZLIB stream cannot be read"
            return Corruption(reason, True, offset, None)
        if not self.is_seekable:
            reason = f"{error}; the next GZIP member cannot be searched in a file without seek"
            return Corruption(reason, True, offset, None)
        end = _end_of_member(self.read_at, member, inflated)
        if end is not None:
            reason = f"{error}, in the GZIP member at byte {member} of the file"
            if not self.read_at(end, 1):
                return Corruption(reason, False, offset, None)
            if find_member(self.read_at, end, end + 1) == end:
                return Corruption(reason, False, offset, end)
        resume = find_member(self.read_at, member + 1)
        if resume is None:
            reason = f"{error}; no GZIP member follows the one at byte {member} of the file"
        else:
            reason = f"{error}; the next GZIP member is at byte {resume} of the file"
        return Corruption(reason, True, offset, resume)

    def _detect(self, head: bytes) -> Compression:
        found = super()._detect(head)
        if found is None and head and self.is_seekable and not starts_with_frame(head):
            return self._detect_after_head(self.read_at(0, self.window_bytes))
        return found

    def _detect_after_head(self, data: bytes) -> Compression:
        """Detect the compression of a file whose first bytes are corrupt."""
        member = find_member(self.read_at, 0, len(data))
        if member is None:
            is_zlib = not _has_frame(data) and _has_frame(_inflate_zlib(data, self.window_bytes))
            return "ZLIB" if is_zlib else None
        # Stored GZIP data contains plain frames, and a plain record may contain GZIP data.
        at = _find_frame(data, 0)
        while at < member:
            at += _core.scan_frames(data[at:], len(data), _core.VERIFY_ALL)[2]
            if at > member:
                return None
            at = _find_frame(data, at)
        return "GZIP"


def _find_frame(data: bytes, begin: int) -> int:
    return _core.find_frame(data, begin, 0, len(data), True)[0]


def _has_frame(data: bytes) -> bool:
    return _find_frame(data, 0) < len(data)


def _inflate_zlib(data: bytes, max_bytes: int) -> bytes:
    """Return the beginning of a ZLIB stream, up to its first error."""
    inflater = Inflater(io.BytesIO(data).read, "ZLIB")
    pieces: list[bytes] = []
    try:
        while sum(map(len, pieces)) < max_bytes and (piece := inflater.read(PIECE_BYTES)):
            pieces.append(piece)
    except StreamError:
        pass
    return b"".join(pieces)


def find_member(read_at: ReadAt, begin: int, end: int | None = None) -> int | None:
    """Return the first byte in [begin, end) at which a GZIP member of records begins."""
    while end is None or begin < end:
        data = read_at(begin, PIECE_BYTES)
        if len(data) <= len(_GZIP_MAGIC):
            return None
        at = data.find(_GZIP_MAGIC)
        while 0 <= at < len(data) - len(_GZIP_MAGIC):
            if end is not None and begin + at >= end:
                return None
            flags = data[at + len(_GZIP_MAGIC)]
            if not flags & _GZIP_RESERVED_FLAGS and _is_member(read_at, begin + at):
                return begin + at
            at = data.find(_GZIP_MAGIC, at + 1)
        begin += len(data) - len(_GZIP_MAGIC)
    return None


def _is_member(read_at: ReadAt, at: int) -> bool:
    """Return whether a GZIP member begins here: the three bytes of the magic also occur in data.

    It does if its data begins with a frame; or, if a record extends over members, if the member is
    valid and followed by another one or the end of the file.
    """
    try:
        head = zlib.decompressobj(31).decompress(read_at(at, _TRIAL_INPUT_BYTES), HEADER_BYTES)
    except zlib.error:
        return False
    if starts_with_frame(head):
        return True
    found = _inflate(read_at, at, 31, _MAX_TRIAL_BYTES)
    return found is not None and read_at(found[1], len(_GZIP_MAGIC)) in (b"", _GZIP_MAGIC)


def _end_of_member(read_at: ReadAt, member: int, inflated: int) -> int | None:
    """Return the end of a GZIP member whose data is valid and whose trailer is not.

    Args:
        read_at: Reads the file.
        member: Byte of the file at which the member begins.
        inflated: Number of bytes that were decompressed before the error.

    Returns:
        The byte after the trailer; None if the data is corrupt or the trailer incomplete.
    """
    header = _gzip_header_bytes(read_at(member, PIECE_BYTES))
    found = None if header is None else _inflate(read_at, member + header, _RAW_DEFLATE)
    if found is None or found[0] != inflated:
        return None
    complete = len(read_at(found[1], _GZIP_TRAILER_BYTES)) == _GZIP_TRAILER_BYTES
    return found[1] + _GZIP_TRAILER_BYTES if complete else None


def _gzip_header_bytes(data: bytes) -> int | None:
    """Return the size of the header of a GZIP member (RFC 1952); None if it is incomplete."""
    if len(data) < 10:
        return None
    flags, at = data[3], 10
    if flags & 4:  # FEXTRA
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (8, 16):  # FNAME, FCOMMENT
        if flags & flag:
            at = data.find(b"\0", at) + 1
            if not at:
                return None
    return at + 2 if flags & 2 else at  # FHCRC


def _inflate(
    read_at: ReadAt, at: int, window_bits: int, max_bytes: int | None = None
) -> tuple[int, int] | None:
    """Decompress a stream to its end.

    Returns:
        Number of decompressed bytes, and the byte of the file after the stream; None if the stream
        is corrupt, incomplete, or longer than ``max_bytes``.
    """
    inflate = zlib.decompressobj(window_bits)
    produced = 0
    while not inflate.eof:
        piece = read_at(at, _TRIAL_INPUT_BYTES)
        if not piece or (max_bytes is not None and produced >= max_bytes):
            return None
        at += len(piece)
        try:
            produced += len(inflate.decompress(piece))
        except zlib.error:
            return None
    return produced, at - len(inflate.unused_data)
