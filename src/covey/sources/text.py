"""Text files: UTF-8, or UTF-16 with a byte order mark; plain, or compressed with GZIP."""

from __future__ import annotations

import codecs
import io
import os
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, BinaryIO, cast

from covey.errors import SourceError
from covey.sources.registry import HEAD_BYTES, ProbedPath
from covey.sources.source import source_error

MAX_LINE_BYTES = 256 << 20
"""Maximum length of a line."""
MAX_TEXT_BYTES = 1 << 30
"""Maximum size of a compressed text that must be in memory as a whole."""

UTF8_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_UTF32_BOMS = (b"\xff\xfe\0\0", b"\0\0\xfe\xff")
_CHUNK_BYTES = 1 << 18
_PROBE_BYTES = 4096


def text_head(head: bytes) -> bytes:
    """Return the beginning of a text in UTF-8, for the first bytes of its file.

    At most HEAD_BYTES are decompressed.

    >>> text_head("a;é".encode("utf-16")).decode()
    'a;é'
    """
    head = decompressed_head(head)
    if head[:2] in _UTF16_BOMS and head[:4] not in _UTF32_BOMS:
        return head.decode("utf-16", errors="ignore").encode()
    return head.removeprefix(UTF8_BOM)


def decompressed_head(head: bytes) -> bytes:
    """Return the first bytes of a file that GZIP may compress; at most HEAD_BYTES."""
    if head[:2] != _GZIP:
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        return b""


def is_text(head: bytes) -> bool:
    """Return whether the beginning of a text has no control characters but white space."""
    return bool(head.strip()) and not any(
        head.count(byte) for byte in range(32) if byte not in b"\t\n\r\f"
    )


def check_encoding(path: str, head: bytes) -> None:
    """Raise SourceError if the first bytes of a file are those of an unsupported encoding."""
    head = decompressed_head(head)
    found = None
    if head[:4] in _UTF32_BOMS:
        found = "UTF-32"
    elif b"\0" in head and head[:2] not in _UTF16_BOMS:
        found = "not UTF-8: it has NUL bytes, as UTF-16 without a byte order mark has"
    if found is not None:
        raise source_error(
            path,
            f"the encoding is {found}; must be UTF-8, or UTF-16 with a byte order mark",
            remedy="convert the file to UTF-8",
        )


def utf8_error(path: str, byte: int, line: int) -> SourceError:
    """Return the error of a byte that is not valid UTF-8."""
    return source_error(
        path,
        f"byte {byte:#04x} is not valid UTF-8",
        line,
        remedy="convert the file to UTF-8; its encoding may be Latin-1 or Windows-1252",
    )


def extension(path: str) -> str:
    """Return the extension of a file in lower case, without that of GZIP.

    >>> extension("birds/Train.CSV.gz")
    '.csv'
    """
    name = os.path.basename(path).lower().removesuffix(".gz")
    return os.path.splitext(name)[1]


class _ConvertedText(io.RawIOBase):
    """A stream of UTF-8, from a compressed file or another encoding.

    Args:
        file: The file.
        path: Its path, for errors.
        decoder: Decoder of the encoding; None if it is UTF-8.
    """

    def __init__(
        self, file: io.BufferedReader, path: str, decoder: codecs.IncrementalDecoder | None
    ) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._decoder = decoder
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._pending:
            try:
                raw = self._file.read1(_CHUNK_BYTES)
                text = raw if self._decoder is None else self._decode(raw)
            except (OSError, EOFError, zlib.error) as error:
                reason = f"the text from here on cannot be decompressed: {error}"
                raise source_error(self._path, reason) from None
            except UnicodeDecodeError as error:
                reason = f"the text from here on is not valid UTF-16: {error.reason}"
                raise source_error(self._path, reason) from None
            if not raw and not text:
                return 0
            self._pending = memoryview(text)
        size = min(len(buffer), len(self._pending))
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size

    def _decode(self, raw: bytes) -> bytes:
        assert self._decoder is not None
        return self._decoder.decode(raw, final=not raw).encode()

    def close(self) -> None:
        self._file.close()
        super().close()


def open_text(path: str, offset: int = 0) -> BinaryIO:
    """Open a text file as UTF-8.

    Args:
        path: The file.
        offset: Number of bytes of UTF-8 before the position. If it is large, the text of a file
            without random access is read into memory.
    """
    file = open(path, "rb")  # noqa: SIM115 - returned
    try:
        stream = _convert(file, path)
        if stream is None:
            file.seek(offset)
            return file
        if offset <= HEAD_BYTES:
            stream.read(offset)
            return stream
        status = os.fstat(file.fileno())
        stream.close()
        return io.BytesIO(_converted(path, status.st_size, status.st_mtime_ns)[offset:])
    except BaseException:
        file.close()
        raise


def _convert(file: io.BufferedReader, path: str) -> BinaryIO | None:
    """Return a stream of UTF-8; None if the file is one."""
    import gzip

    head = file.read(_PROBE_BYTES)
    file.seek(0)
    compressed = head[:2] == _GZIP
    is_utf16 = decompressed_head(head)[:2] in _UTF16_BOMS
    if not compressed and not is_utf16:
        return None
    text: Any = gzip.GzipFile(fileobj=file, mode="rb") if compressed else file
    if compressed:
        text.myfileobj = file  # closed with the stream
    decoder = codecs.getincrementaldecoder("utf-16")() if is_utf16 else None
    return cast("BinaryIO", io.BufferedReader(_ConvertedText(text, path, decoder)))


@lru_cache(maxsize=1)
def _converted(path: str, size: int, mtime_ns: int) -> bytes:
    """Return the text of a file that has no random access; a table of images is read by rows."""
    return read_text(path)


def read_text(path: str) -> bytes:
    """Return the content of a text file as UTF-8, without a byte order mark.

    Raises:
        SourceError: If a compressed file has more than MAX_TEXT_BYTES.
    """
    with open_text(path) as file:
        limit = -1 if file.seekable() else MAX_TEXT_BYTES + 1
        text = file.read(limit)
    if len(text) == limit:
        raise source_error(
            path,
            f"the decompressed text has more than {MAX_TEXT_BYTES:,} bytes",
            remedy="decompress it, or convert it to JSON Lines or CSV",
        )
    return text.removeprefix(UTF8_BOM)


def read_lines(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Yield the lines of a text.

    Raises:
        SourceError: If a line is longer than MAX_LINE_BYTES.
    """
    read: Callable[[], bytes] = partial(file.readline, MAX_LINE_BYTES + 1)
    for line in iter(read, b""):
        if len(line) > MAX_LINE_BYTES:
            raise source_error(path, f"a line has more than {MAX_LINE_BYTES:,} bytes")
        yield line


def named_files(probed: ProbedPath, extensions: frozenset[str]) -> list[str]:
    """Return the files with one of some extensions in a directory, or that match a pattern."""
    if probed.is_file:
        return []
    return [file for file in probed.files if extension(file) in extensions]
