"""The bytes of a file that may be corrupt, in stretches: each as far as it goes without a gap.

A plain file is one stretch, and so are ZLIB and GZIP that are valid. Where a member of GZIP is
corrupt the stretch ends, and the next one begins at the next member.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from covey import _core
from covey.tfrecord.block import HEADER_BYTES
from covey.tfrecord.compression import (
    Compression,
    Inflater,
    detect_compression,
    parse_compression,
    read_head,
)
from covey.tfrecord.streams import (
    WINDOW_BYTES,
    FileStream,
    PieceStream,
    SharedDescriptor,
    Stream,
    StreamError,
    is_truncated,
    truncated,
)
from covey.untrusted import RegularFile, open_path
from covey.urls import check_local

_PIECE_BYTES = 1 << 20
_MEMBER = b"\x1f\x8b\x08"
# The bits of a GZIP header's flags that must not be set.
_RESERVED_FLAGS = 0xE0
# Compressed bytes at once, and inflated ones in all, when something may or may not be a member.
_TRIAL_INPUT = 1 << 14
_TRIAL_BYTES = 4 << 20

# The last bytes of a member are the checksum of its data, and then its length.
_WRONG_CHECKSUM = "incorrect data check"
_WRONG_LENGTH = "incorrect length check"

ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Corruption:
    """Why a stretch ends before its file does."""

    reason: str
    lost: bool
    """Whether data is lost; if not, only what a member says of itself is wrong."""
    member: int
    """Where the data of the corrupt member begins."""
    resume: int | None
    """The byte of the file at which the next stretch begins, if there is one."""


class Segment:
    """Bytes without a gap, seen through a window; places are offsets in all data of the file."""

    def __init__(self, stream: Stream, begin: int, bound: int | None) -> None:
        self._stream = stream
        self._bound = bound
        self.begin = begin
        """Where the window begins."""
        self.gap: Corruption | None = None
        """Why it ends, once it has, unless the file ends there too."""
        self.data = memoryview(b"")
        """What the window shows."""
        self.ended = False
        """Whether nothing follows."""

    @property
    def end(self) -> int:
        """Where the window ends."""
        return self.begin + len(self.data)

    def rest(self, at: int) -> memoryview:
        """What the window shows from a place on."""
        return self.data[at - self.begin :]

    def most(self, at: int, otherwise: int) -> int:
        """How many bytes can follow, or ``otherwise`` if nothing bounds them."""
        return otherwise if self._bound is None else self._bound - at

    def move(self, at: int, needed: int) -> None:
        """Begin the window here, and show at least so many bytes if there are as many."""
        try:
            self.data, self.ended = self._stream.window(at - self.begin, needed)
        except StreamError as error:
            self._end(at, error)
        self.begin = at

    @property
    def mapped_from(self) -> SharedDescriptor | None:
        """The file that the window is a map of, if it is."""
        return self._stream.mapped_from

    def is_truncated(self, at: int) -> bool:
        """Whether the file was truncated while the window was read; then the stretch ends here."""
        if is_truncated(self.data, self.mapped_from, self.end):
            self._end(at, truncated())
            self.begin = at
            return True
        return False

    def _end(self, at: int, error: StreamError) -> None:
        self.data, self.ended = memoryview(b""), True
        self.gap = Corruption(str(error), True, at, None)

    def see(self, at: int, needed: int) -> memoryview:
        """What is from here on, at least so many bytes if there are as many."""
        if self.end - at < needed and not self.ended:
            self.move(at, needed)
        return self.rest(at)


class CorruptFile:
    """A file whose bytes are had as far as they can be. To be closed.

    Args:
        source: A path, or a binary file object, which is read from where it stands.
        compression: As for :class:`covey.RecordReader`. ``"auto"`` also finds out about a file
            whose first bytes are corrupt, if it can be seeked.
        map_files: As for :class:`covey.RecordReader`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        compression: str | None = "auto",
        *,
        mmap: bool = True,
    ) -> None:
        self._owned = isinstance(source, (str, os.PathLike))
        self._map_files = mmap
        if isinstance(source, (str, os.PathLike)):
            self.name = check_local(source)
            self._file: BinaryIO = open_path(self.name)
        else:
            self.name = str(getattr(source, "name", "<file>"))
            self._file = source
        seekable = getattr(self._file, "seekable", lambda: False)()
        self._start = self._file.tell() if seekable else None
        self._peeked = b""
        try:
            self.compression: Compression = (
                self._detect() if compression == "auto" else parse_compression(compression)
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owned:
            self._file.close()

    def segment(self, at: int = 0, begin: int = 0) -> Segment:
        """The bytes from byte ``at`` of the file on; ``begin`` is what the first one is called."""
        if self.compression is None:
            return self._plain()
        members: list[tuple[int, int]] = []
        inflater = Inflater(self._reader(at), self.compression, at, members)

        def read(size: int) -> bytes:
            try:
                return inflater.read(size)
            except StreamError as error:
                # Not raised: what was read before it would be lost with it.
                inflated, member = members[-1]
                segment.gap = self._gap(str(error), member, begin + inflated)
                return b""

        segment = Segment(PieceStream(read, _PIECE_BYTES, _nothing), begin, None)
        return segment

    def _plain(self) -> Segment:
        if isinstance(self._file, RegularFile) or (
            self._owned and isinstance(self._file, io.FileIO)
        ):
            status = os.fstat(self._file.fileno())
            if stat.S_ISREG(status.st_mode):
                stream = FileStream(self._file, 0, mmap=self._map_files)
                return Segment(stream, 0, status.st_size)
        return Segment(PieceStream(self._reader(0), _PIECE_BYTES, _nothing), 0, None)

    def _gap(self, error: str, member: int, inflated: int) -> Corruption:
        """What follows the corrupt member at byte ``member``."""
        if self.compression == "ZLIB":
            reason = f"{error}; nothing can be read of one ZLIB stream after that"
            return Corruption(reason, True, inflated, None)
        if self._start is None:
            reason = f"{error}; what follows cannot be searched in a file that cannot be seeked"
            return Corruption(reason, True, inflated, None)
        if error.endswith((_WRONG_CHECKSUM, _WRONG_LENGTH)):
            end = _end_of_member(self._read_at, member)
            reason = f"{error}, in the GZIP member at byte {member} of the file"
            if not self._read_at(end, 1):
                return Corruption(reason, False, inflated, None)
            if find_member(self._read_at, end, end + 1) == end:
                return Corruption(reason, False, inflated, end)
        resume = find_member(self._read_at, member + 1)
        if resume is None:
            reason = f"{error}; no GZIP member follows the one at byte {member} of the file"
        else:
            reason = f"{error}; the next GZIP member is at byte {resume} of the file"
        return Corruption(reason, True, inflated, resume)

    def _read_at(self, at: int, size: int) -> bytes:
        assert self._start is not None
        self._file.seek(self._start + at)
        return self._file.read(size)

    def _reader(self, at: int) -> Callable[[int], bytes]:
        """A way to read the file on and on."""
        if self._start is None:
            head = [self._peeked]
            return lambda size: (head.pop() if head else b"") or self._file.read(size)

        def read(size: int) -> bytes:
            nonlocal at
            piece = self._read_at(at, size)
            at += len(piece)
            return piece

        return read

    def _detect(self) -> Compression:
        head = read_head(self._file, is_pipe=self._start is None)
        if self._start is None:
            self._peeked = head
            return detect_compression(head)
        self._file.seek(self._start)
        found = detect_compression(head)
        if found is None and head and not begins_a_frame(head):
            return self._guess(self._read_at(0, WINDOW_BYTES))
        return found

    def _guess(self, data: bytes) -> Compression:
        """How a file is compressed whose beginning is corrupt."""
        member = find_member(self._read_at, 0, len(data))
        if member is None:
            in_zlib = not _holds_a_frame(data) and _holds_a_frame(_inflate(data))
            return "ZLIB" if in_zlib else None
        # GZIP that could not compress holds frames as they are; a plain file may hold GZIP as data.
        at = _find_frame(data, 0)
        while at < member:
            at += _core.scan_frames(data[at:], len(data), _core.VERIFY_ALL)[2]
            if at > member:
                return None
            at = _find_frame(data, at)
        return "GZIP"


def begins_a_frame(data: bytes | memoryview) -> bool:
    """Whether these bytes begin with a length and its checksum."""
    if len(data) < HEADER_BYTES:
        return False
    return _core.scan_frames(data[:HEADER_BYTES], 1, _core.VERIFY_LENGTHS)[-1] is None


def _find_frame(data: bytes, begin: int) -> int:
    return _core.find_frame(data, begin, 0, len(data), True)[0]


def _holds_a_frame(data: bytes) -> bool:
    return _find_frame(data, 0) < len(data)


def _inflate(data: bytes) -> bytes:
    """What can be had of the beginning of a ZLIB stream, not more than there is of it."""
    inflater = Inflater(io.BytesIO(data).read, "ZLIB")
    pieces = [b""]
    try:
        while sum(map(len, pieces)) < WINDOW_BYTES:
            pieces.append(inflater.read(_PIECE_BYTES))
            if not pieces[-1]:
                break
    except StreamError:
        pass
    return b"".join(pieces)


def find_member(read_at: ReadAt, begin: int, end: int | None = None) -> int | None:
    """The byte from ``begin`` on, and before ``end``, at which a GZIP member of records begins."""
    while end is None or begin < end:
        data = read_at(begin, _PIECE_BYTES)
        if len(data) <= len(_MEMBER):
            return None
        at = data.find(_MEMBER)
        while 0 <= at < len(data) - len(_MEMBER):
            place = begin + at
            if end is not None and place >= end:
                return None
            if not data[at + len(_MEMBER)] & _RESERVED_FLAGS and _is_member(read_at, place):
                return place
            at = data.find(_MEMBER, at + 1)
        begin += len(data) - len(_MEMBER)
    return None


def _is_member(read_at: ReadAt, at: int) -> bool:
    """Whether a GZIP member begins here, and is not three bytes that only look like it.

    It is one if it inflates to something that begins with a frame, or else, for records that go
    on from the member before, if it is valid and nothing or another one follows it.
    """
    inflate = zlib.decompressobj(31)
    piece = read_at(at, _TRIAL_INPUT)
    at += len(piece)
    given = 0
    try:
        if begins_a_frame(inflate.decompress(piece, HEADER_BYTES)):
            return True
        while not inflate.eof and piece and given < _TRIAL_BYTES:
            piece = inflate.unconsumed_tail
            if not piece:
                piece = read_at(at, _TRIAL_INPUT)
                at += len(piece)
            given += len(inflate.decompress(piece, _TRIAL_BYTES))
    except zlib.error:
        return False
    if not inflate.eof:
        return False
    after = inflate.unused_data[: len(_MEMBER)]
    after += read_at(at, len(_MEMBER) - len(after))
    return after in (b"", _MEMBER)


def _end_of_member(read_at: ReadAt, at: int) -> int:
    """Where a member ends that is valid but for what stands at its end."""
    inflate = zlib.decompressobj(31)
    while piece := read_at(at, _TRIAL_INPUT):
        before = inflate.copy()
        try:
            inflate.decompress(piece)
        except zlib.error:
            for byte in range(len(piece)):
                try:
                    before.decompress(piece[byte : byte + 1])
                except zlib.error as error:
                    # The checksum is looked at as soon as it is there, the length after it.
                    left = 4 if str(error).endswith(_WRONG_CHECKSUM) else 0
                    return at + byte + 1 + left
        at += len(piece)
    return at


def _nothing() -> None:
    """Close nothing: a caller that has the file closes it."""
