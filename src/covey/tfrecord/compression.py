"""GZIP and ZLIB compression of TFRecord files: detection, and streaming decompression.

A GZIP file is written as many members, each of complete records. Other readers see one GZIP file; a
reader that has the offset of a member can start there. ZLIB has no members (and TensorFlow silently
stops after the first of several streams), so a ZLIB file is one stream.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import BinaryIO, Literal

from covey.tfrecord.block import HEADER_BYTES, starts_with_frame

Compression = Literal["GZIP", "ZLIB"] | None

# Compressed bytes that are read at once. zlib copies the part it does not use, so that larger
# pieces of highly compressed data cost more than they save.
_INPUT_BYTES = 1 << 16

# Bytes that are inspected to detect the compression.
_HEAD_BYTES = 4096

# Ten bytes: magic, deflate, no flags, no time, no extra flags, and the operating system "unknown",
# so that equal records give equal bytes on every machine.
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


class StreamError(Exception):
    """The bytes of a file cannot be read."""


def parse_compression(value: str | None) -> Compression:
    """Return a valid name of a compression; ``""`` is none, as in TensorFlow.

    >>> parse_compression("gzip")
    'GZIP'
    """
    if value is None or value == "":
        return None
    name = str(value).upper()
    if name == "GZIP":
        return "GZIP"
    if name == "ZLIB":
        return "ZLIB"
    raise ValueError(f"compression is {value!r}; must be None, 'GZIP' or 'ZLIB'")


def detect_compression(head: bytes) -> Compression:
    """Detect the compression of a file from its first bytes.

    A plain TFRecord file begins with a length and its checksum, a compressed file does not. Of
    other files, those that inflate to such a header are compressed.
    """
    if not head or starts_with_frame(head):
        return None
    if head[:3] == b"\x1f\x8b\x08":
        return "GZIP"
    # The two bytes of a ZLIB header are not sufficient.
    if len(head) >= 2 and head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0:
        try:
            inflated = zlib.decompressobj().decompress(head, HEADER_BYTES)
        except zlib.error:
            return None
        if len(inflated) < HEADER_BYTES or starts_with_frame(inflated):
            return "ZLIB"
    return None


def read_head(file: BinaryIO, *, is_pipe: bool) -> bytes:
    """Return the first bytes of a file, for detection; the position is not restored."""
    head = b""
    while len(head) < _HEAD_BYTES:
        # A pipe may have no more bytes for a while; a header is sufficient.
        piece = getattr(file, "read1", file.read)(_HEAD_BYTES - len(head))
        head += piece
        if not piece or (is_pipe and len(head) >= HEADER_BYTES):
            break
    return head


def begins_like_records(head: bytes) -> bool:
    """Return whether `head` is the beginning of a TFRecord file, plain or compressed."""
    if head[:2] == b"\x1f\x8b" or head[:1] == b"\x78":
        try:
            head = zlib.decompressobj(47).decompress(head, HEADER_BYTES)
        except zlib.error:
            return False
    return starts_with_frame(head)


class Inflater:
    """Stream of the decompressed bytes of a file.

    Args:
        read: Function that returns up to `size` next bytes of the file; ``b""`` at its end.
        compression: ``"GZIP"`` or ``"ZLIB"``.
        offset: Offset in the file at which `read` begins.
        members: List that gets (decompressed bytes before it, file offset) of every member.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        compression: Compression,
        offset: int = 0,
        members: list[tuple[int, int]] | None = None,
    ) -> None:
        self._read = read
        self._window = 31 if compression == "GZIP" else 15
        self._name = compression
        self._inflate = zlib.decompressobj(self._window)
        self._input = b""
        self._consumed = offset  # offset in the file up to which members were read
        self._produced = 0
        self._begun = False
        self._error: str | None = None
        self._members = members
        if members is not None:
            members.append((0, offset))

    def read(self, size: int) -> bytes:
        """Return the next decompressed bytes, from 1 to `size`; ``b""`` at the end.

        Raises:
            StreamError: If the data is corrupt, truncated, or followed by other data; raised after
                all bytes before that were returned.
        """
        while True:
            if self._error is not None:
                raise StreamError(f"the {self._name} data is corrupt: {self._error}")
            if self._inflate.eof and not self._next_member():
                return b""
            if not self._input:
                self._input = self._read(_INPUT_BYTES)
                if not self._input and not self._begun:
                    return b""  # an empty file is valid
                if not self._input:
                    raise StreamError(f"the {self._name} data ends before its end mark")
            self._begun = True
            before = len(self._input)
            piece = self._decompress(size)
            self._consumed += before - len(self._input)
            self._produced += len(piece)
            if piece:
                return piece

    def _decompress(self, size: int) -> bytes:
        """Inflate some of the input; of corrupt input, everything before the corruption."""
        backup = self._inflate.copy()  # zlib discards the output of a call that fails
        try:
            piece = self._inflate.decompress(self._input, size)
        except zlib.error as error:
            self._error = str(error)
        else:
            self._input = self._inflate.unconsumed_tail or self._inflate.unused_data
            return piece
        pieces: list[bytes] = []
        try:
            for at in range(len(self._input)):
                pieces.append(backup.decompress(self._input[at : at + 1]))
        except zlib.error:
            pass
        return b"".join(pieces)

    def _next_member(self) -> bool:
        """Start the next member, if there is one."""
        if not self._input:
            self._input = self._read(_INPUT_BYTES)
        if not self._input:
            return False
        if self._name == "ZLIB":
            raise StreamError(
                "bytes follow the end of the ZLIB stream, which other readers ignore silently"
            )
        self._inflate = zlib.decompressobj(self._window)
        if self._members is not None:
            self._members.append((self._produced, self._consumed))
        return True


def gzip_member(data: bytes | bytearray | memoryview, level: int) -> bytes:
    """Return a complete GZIP member.

    >>> import gzip
    >>> gzip.decompress(gzip_member(b"a", 6) + gzip_member(b"b", 6))
    b'ab'
    """
    deflate = zlib.compressobj(level, zlib.DEFLATED, -15)
    tail = struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((_GZIP_HEADER, deflate.compress(data), deflate.flush(), tail))
