"""Reading TFRecord files."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import ClosedError, CorruptRecordError, SkippedRecordsWarning
from covey.records.block import FRAME_BYTES, HEADER_BYTES, Block
from covey.records.compression import (
    Compression,
    Inflater,
    detect_compression,
    parse_compression,
)
from covey.records.streams import MappedStream, PieceStream, Stream

OnError = Literal["raise", "skip"]
PathOrFile = str | os.PathLike[str] | BinaryIO

_PIECE_BYTES = 1 << 20
_UNLIMITED = 2**63

# One row per record: what RecordReader.read_at takes, and how long the record is.
PLACE_DTYPE = np.dtype([("offset", "<u8"), ("within", "<u8"), ("length", "<u8")])


@dataclass(frozen=True, slots=True)
class Skipped:
    """A stretch of a file that was left out because it is damaged."""

    name: str
    record: int
    """The number of the damaged record."""
    offset: int
    """Where its frame begins (in the decompressed data, if compressed)."""
    bytes: int | None
    """How much was left out; None for all that follows."""
    reason: str


class RecordReader:
    """Reads the records of one TFRecord file.

    Args:
        source: A path, or a binary file object, which is read from where it stands.
        compression: ``None``, ``"GZIP"`` or ``"ZLIB"``; ``"auto"`` finds out from the bytes.
        verify: Whether to check the checksums. Without, lengths are still checked against the file.
        on_error: ``"raise"``, or ``"skip"`` to go on after a damaged record as long as its length
            is trustworthy; :attr:`skipped` then lists what was left out, and a warning counts it.
        max_record_bytes: The largest record that is accepted from compressed data or a file object,
            where the size of the file does not bound it.

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
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}, must be 'raise' or 'skip'")
        if max_record_bytes < 0:
            raise ValueError(f"max_record_bytes is {max_record_bytes}, must be 0 or more")
        asked = None if compression == "auto" else parse_compression(compression)
        self._verify = verify
        self._on_error = on_error
        self._max_record_bytes = max_record_bytes
        self._closed = False
        self.skipped: list[Skipped] = []
        """What ``on_error="skip"`` has left out, since the last pass began."""

        self._path: str | None = None
        if isinstance(source, (str, os.PathLike)):
            self._path = os.fspath(source)
            self.name = self._path
            self._file: BinaryIO = open(self._path, "rb", buffering=0)  # noqa: SIM115
        else:
            self.name = str(getattr(source, "name", "<file>"))
            self._file = source
        self._peeked = b""
        self._passed = False
        self._start = self._file.tell() if self._seekable() else None
        try:
            self.compression: Compression = self._detect() if compression == "auto" else asked
        except BaseException:
            self.close()
            raise

    def _seekable(self) -> bool:
        return bool(getattr(self._file, "seekable", lambda: False)())

    def _detect(self) -> Compression:
        head = _read_exactly(self._file, 4096)
        if self._start is None:
            self._peeked = head  # a pipe: these bytes come first when it is read
        else:
            self._file.seek(self._start)
        return detect_compression(head)

    def __enter__(self) -> RecordReader:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if this reader opened it. Blocks that were read stay valid."""
        self._closed = True
        if self._path is not None:
            self._file.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.name}: this reader is closed; open another")

    def __iter__(self) -> Iterator[bytes]:
        """The records, from the first."""
        for block in self.blocks():
            yield from block

    def count(self) -> int:
        """How many records there are, all of them checked."""
        return sum(len(block) for block in self.blocks())

    def blocks(self, *, verify_data: bool = True) -> Iterator[Block]:
        """The records, many at a time.

        With ``verify_data=False`` only the lengths are verified, for a caller that goes on to
        verify the data as it decodes it.
        """
        return self._scan_all(self._stream()[0], self._level(verify_data))

    def _scan_all(self, stream: Stream, verify: int) -> Iterator[Block]:
        with closing(stream):
            yield from self._scan(stream, verify)

    def _level(self, verify_data: bool = True) -> int:
        if not self._verify:
            return _core.VERIFY_NOTHING
        return _core.VERIFY_ALL if verify_data else _core.VERIFY_LENGTHS

    def places(self) -> NDArray[Any]:
        """Where every record is: an array of (offset, within, length), which :meth:`read_at` takes.

        In a plain file ``within`` is 0. In a compressed one, ``offset`` is where a GZIP member
        begins (0 for ZLIB), and ``within`` where in its decompressed data the frame does.
        """
        stream, inflater = self._stream()
        tables = []
        for block in self._scan_all(stream, self._level()):
            table = np.zeros(len(block), PLACE_DTYPE)
            table["offset"] = block.offsets - np.uint64(HEADER_BYTES) + np.uint64(block.position)
            table["length"] = block.lengths
            tables.append(table)
        places = np.concatenate([np.zeros(0, PLACE_DTYPE), *tables])
        if inflater is not None:
            before, offset = np.array(inflater.members, np.uint64).T
            member = np.searchsorted(before, places["offset"], side="right") - 1
            places["within"] = places["offset"] - before[member]
            places["offset"] = offset[member]
        return places

    def read_at(self, offset: int, within: int = 0) -> bytes:
        """The record whose frame begins at a place that :meth:`places` gave.

        Raises:
            CorruptRecordError: If no sound record begins there.
        """
        if offset < 0 or within < 0:
            raise ValueError(f"the place is ({offset}, {within}), must not be negative")
        if self.compression is None:
            offset, within = offset + within, 0
        stream, _ = self._stream(offset)
        with closing(stream):
            passed = 0
            while passed < within:
                window, ended = self._window(stream, 0, 1, -1, passed)
                step = min(within - passed, len(window))
                if step == 0 and ended:
                    break
                passed += step
                self._window(stream, step, 0, -1, passed)
            for block in self._scan(stream, self._level(), limit=1, first=-1, at=offset):
                return next(iter(block))
        raise CorruptRecordError(
            f"{self.name}: no record begins at byte {offset}{f' + {within}' if within else ''}: "
            "the file ends there; take places from the file's own index",
            name=self.name,
            record=-1,
            offset=offset,
        )

    def _stream(self, offset: int = 0) -> tuple[Stream, Inflater | None]:
        """Open the bytes from ``offset`` on; the inflater tells of the members it meets."""
        self._check_open()
        if self._path is not None and self.compression is None:
            return MappedStream(self._file.fileno(), offset), None
        close = _nothing
        if self._path is not None:
            # A file of its own, so that several iterations do not disturb each other.
            file: BinaryIO = open(self._path, "rb", buffering=0)  # noqa: SIM115
            file.seek(offset)
            close = file.close
        else:
            file = self._file
            if self._start is not None:
                file.seek(self._start + offset)
            elif self._passed or offset:
                raise ClosedError(f"{self.name}: cannot seek, so it can be read only once")
            self._passed = True
        head, self._peeked = self._peeked, b""

        def read(size: int) -> bytes:
            nonlocal head
            if head:
                piece, head = head, b""
                return piece
            return file.read(size)

        if self.compression is None:
            return PieceStream(read, _PIECE_BYTES, close), None
        inflater = Inflater(read, self.compression, offset)
        return PieceStream(inflater.read, _PIECE_BYTES, close), inflater

    def _scan(
        self,
        stream: Stream,
        verify: int,
        *,
        limit: int = _UNLIMITED,
        first: int = 0,
        at: int = 0,
    ) -> Iterator[Block]:
        """Find the frames of a stream that begins at record ``first`` and byte ``at``."""
        self.skipped.clear()
        position = at
        record = first
        consumed = needed = 0
        while True:
            try:
                window, ended = self._window(stream, consumed, needed, record, position + consumed)
            except CorruptRecordError as error:
                if self._on_error == "raise":
                    raise
                self._skip(record, position + consumed, None, str(error))
                break
            position += consumed
            offsets, lengths, consumed, needed, fault = _core.scan_frames(window, limit, verify)
            if len(lengths):
                self._check_open()
                verified = verify != _core.VERIFY_LENGTHS
                yield Block(window, offsets, lengths, self.name, record, position, verified)
                record += len(lengths)
                if limit == 1:
                    return
            offset = position + consumed
            if fault is not None:
                skipped = self._damaged(window[consumed:], fault, record, offset)
                if skipped is None:
                    break
                consumed += skipped
                record += 1
                needed = 0
            elif ended and consumed == len(window):
                break
            elif ended:
                self._truncated(len(window) - consumed, needed, record, offset)
                break
            elif (
                not isinstance(stream, MappedStream)
                and needed > self._max_record_bytes + FRAME_BYTES
            ):
                self._fail(
                    record,
                    offset,
                    f"the record says that it has {needed - FRAME_BYTES} bytes, over the limit of "
                    f"{self._max_record_bytes}; pass a larger max_record_bytes if that is right",
                )
                break
        if self.skipped:
            warnings.warn(
                f"{self.name}: left out {len(self.skipped)} damaged "
                f"{'part' if len(self.skipped) == 1 else 'parts'}, the first at record "
                f"{self.skipped[0].record}: {self.skipped[0].reason}",
                SkippedRecordsWarning,
                stacklevel=3,
            )

    def _window(
        self, stream: Stream, consumed: int, needed: int, record: int, offset: int
    ) -> tuple[memoryview, bool]:
        """A stream's next window; damaged compression is a damaged record."""
        # Past the limit nothing is fetched: the caller sees the record cut, and says why.
        if not isinstance(stream, MappedStream):
            needed = min(needed, self._max_record_bytes + FRAME_BYTES)
        try:
            return stream.window(consumed, needed)
        except zlib.error as error:
            raise self._error(
                record, offset, f"the {self.compression} data is damaged: {error}"
            ) from None

    def _damaged(
        self, window: memoryview, fault: _core.FaultArgs, record: int, offset: int
    ) -> int | None:
        """Deal with a wrong checksum: how many bytes to skip, or None if that is unknown."""
        code, _, _, found, expected, _ = fault
        if code == "data_checksum":
            length: int = struct.unpack_from("<Q", window)[0] + FRAME_BYTES
            reason = f"data checksum is {found:#010x}, expected {expected:#010x}"
            self._fail(record, offset, reason, length)
            return length
        reason = f"length checksum is {found:#010x}, expected {expected:#010x}"
        if record == 0 and offset == 0:
            reason += ", so this may be no TFRecord file"
        self._fail(record, offset, reason)
        return None

    def _truncated(self, have: int, needed: int, record: int, offset: int) -> None:
        whole = f"the record's {needed} bytes" if needed else f"a header of {HEADER_BYTES} bytes"
        self._fail(record, offset, f"the file ends after {have} of {whole}")

    def _fail(self, record: int, offset: int, reason: str, length: int | None = None) -> None:
        if self._on_error == "raise":
            raise self._error(record, offset, reason)
        self._skip(record, offset, length, reason)

    def _skip(self, record: int, offset: int, length: int | None, reason: str) -> None:
        self.skipped.append(Skipped(self.name, record, offset, length, reason))

    def _error(self, record: int, offset: int, reason: str) -> CorruptRecordError:
        number = f"record {record} at" if record >= 0 else "record at"
        where = " of the decompressed data" if self.compression else ""
        return CorruptRecordError(
            f"{self.name}: {number} byte {offset}{where}: {reason}; "
            "open with on_error='skip' to read what is sound",
            name=self.name,
            record=record,
            offset=offset,
        )


def _nothing() -> None:
    """Close nothing: the file is the caller's."""


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    """Read so many bytes, or all there are; a raw file or a pipe may give fewer at once."""
    pieces = b""
    while len(pieces) < size:
        piece = file.read(size - len(pieces))
        if not piece:
            break
        pieces += piece
    return pieces
