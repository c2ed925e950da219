"""Lines of text files, plain or compressed with GZIP."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from typing import Any

from covey.errors import SourceError
from covey.sources.source import source_error
from covey.untrusted import RegularFile

MAX_LINE_CHARACTERS = 256 << 20
"""Maximum length of a line."""
MAX_TEXT_CHARACTERS = 1 << 30
"""Maximum length of a compressed text that must be in memory as a whole."""

_ENCODING = "pass encoding= if it is another one, such as 'latin-1' or 'utf-16'"
# What decoding has in place of a byte that is not valid, and NUL, as UTF-16 has.
_INVALID = re.compile("[\udc80-\udcff\0]")


class TextLines:
    """The lines of a text file, with their line ends.

    Args:
        path: The file.
        encoding: The encoding (default: UTF-8, with or without a byte order mark).
    """

    line = 0
    """Number of lines that are read."""
    fault: SourceError | None = None
    """The error of the first line since it was set to None that is not valid UTF-8."""

    def __init__(self, path: str, encoding: str | None = None) -> None:
        self._path = path
        file: Any = io.BufferedReader(RegularFile(path))
        self._close = file.close
        if file.peek(2)[:2] == b"\x1f\x8b":
            file = gzip.GzipFile(fileobj=file, mode="rb")
        errors = "surrogateescape" if encoding is None else "strict"
        self._file = io.TextIOWrapper(file, encoding or "utf-8-sig", errors, newline="")

    def __enter__(self) -> TextLines:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._close()

    def __iter__(self) -> Iterator[str]:
        while line := self._read(self._file.readline, MAX_LINE_CHARACTERS + 1):
            self.line += 1
            if len(line) > MAX_LINE_CHARACTERS:
                reason = f"a line has more than {MAX_LINE_CHARACTERS:,} characters"
                raise source_error(self._path, reason, self.line)
            self._check(line, self.line)
            yield line

    def read(self) -> str:
        """Return the whole text.

        Raises:
            SourceError: If it is not valid, or if it is compressed and too long.
        """
        is_compressed = isinstance(self._file.buffer, gzip.GzipFile)
        limit = MAX_TEXT_CHARACTERS + 1 if is_compressed else -1
        text = self._read(self._file.read, limit)
        if len(text) == limit:
            raise source_error(
                self._path,
                f"the decompressed text has more than {MAX_TEXT_CHARACTERS:,} characters",
                remedy="decompress it, or convert it to JSON Lines or CSV",
            )
        self._check(text, 1)
        if self.fault is not None:
            raise self.fault
        return text

    def _read(self, read: Any, size: int) -> str:
        try:
            text: str = read(size)
        except (OSError, EOFError, zlib.error) as error:
            reason = f"the text from here on cannot be decompressed: {error}"
        except UnicodeError as error:
            reason = f"the text from here on is not valid {self._file.encoding}: {error}"
        else:
            return text
        raise source_error(self._path, reason, self.line + 1)

    def _check(self, text: str, line: int) -> None:
        """Keep the error of text that is not valid UTF-8."""
        if self.fault is not None or (text.isascii() and "\0" not in text):
            return
        found = _INVALID.search(text)
        if found is not None:
            line += text.count("\n", 0, found.start())
            byte = ord(found[0]) & 0xFF
            reason = f"byte {byte:#04x} is not valid UTF-8" if byte else "it has NUL bytes"
            self.fault = source_error(self._path, reason, line, remedy=_ENCODING)
