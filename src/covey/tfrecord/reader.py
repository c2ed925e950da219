"""Reader of TFRecord files."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from typing import Any, Literal

from numpy.typing import NDArray

from covey import _core
from covey.errors import CorruptRecordError, SkippedRecordsWarning
from covey.results import SkippedRecord
from covey.tfrecord.block import (
    FRAME_BYTES,
    Block,
    Members,
    RecordLocations,
    checksum_reason,
    is_truncated,
    limit_reason,
    truncation_reason,
)
from covey.tfrecord.compression import Compression, StreamError
from covey.tfrecord.streams import (
    WINDOW_BYTES,
    FileStream,
    InputFile,
    PathOrFile,
    Stream,
    check_source,
    truncated,
)
from covey.untrusted import storage_error

OnError = Literal["raise", "skip"]

_UNLIMITED = 2**63
_MAX_OFFSET = 2**62


class RecordReader:
    """Reader of the records of one TFRecord file.

    Args:
        source: A path, or a binary file object, which is read from its current position.
        compression: ``None``, ``"GZIP"`` or ``"ZLIB"``; ``"auto"`` detects it.
        verify: Verify the checksums. Lengths are checked against the size of the file in any case.
        on_error: ``"raise"``, or ``"skip"`` to continue after a corrupt record if its length is
            valid; :attr:`skipped` then has the skipped parts, and a warning has their number.
        max_record_bytes: Maximum size of a record in compressed data or a file object. The size
            of an uncompressed file limits its records.
        mmap: Map the file into memory; False reads it, which is slower. Only uncompressed files
            that are given by their path are mapped.
        window_bytes: Bytes that are mapped or read at a time, unless a record is larger.

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
        mmap: bool = True,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        check_source(source, compression, max_record_bytes)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}; must be 'raise' or 'skip'")
        self._verify = verify
        self._on_error = on_error
        self._max_record_bytes = max_record_bytes
        self.skipped: list[SkippedRecord] = []
        """Records that ``on_error="skip"`` has skipped in the last pass."""
        self._input = InputFile(source, compression, mmap=mmap, window_bytes=window_bytes)
        self.name = self._input.name
        self.compression: Compression = self._input.compression

    def __enter__(self) -> RecordReader:
        self._input.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if this reader opened it. Its blocks stay valid."""
        self._input.close()

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
        return self._scan_all(self._level(verify_data), members)

    def _scan_all(self, verify: int, members: Members | None) -> Iterator[Block]:
        yield from self._scan(self._input.stream(0, members), verify, self._on_error)
        if self.skipped:
            warnings.warn(
                f"{self.name}: skipped {len(self.skipped)} corrupt "
                f"{'part' if len(self.skipped) == 1 else 'parts'}, the first at record "
                f"{self.skipped[0].record}: {self.skipped[0].reason}",
                SkippedRecordsWarning,
                stacklevel=3,
            )

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
        stream = self._input.stream(offset)
        passed = 0
        while passed < inner_offset:
            window, ended = self._window(stream, 0, 1, -1, offset)
            step = min(inner_offset - passed, len(window))
            if step == 0 and ended:
                break
            passed += step
            self._window(stream, step, 0, -1, offset)
        blocks = self._scan(stream, self._level(), "raise", limit=1, record=-1, position=offset)
        for block in blocks:
            return next(iter(block))
        raise self._no_record(offset, inner_offset)

    def _no_record(self, offset: int, inner_offset: int) -> CorruptRecordError:
        location = f"{offset} + {inner_offset}" if inner_offset else str(offset)
        return CorruptRecordError(
            f"the file ends before byte {location}; take locations from the index of the file",
            path=self.name,
            offset=offset,
        )

    def _scan(
        self,
        stream: Stream,
        verify: int,
        on_error: OnError,
        *,
        limit: int = _UNLIMITED,
        record: int = 0,
        position: int = 0,
    ) -> Iterator[Block]:
        """Yield the blocks of a stream that begins at a record and a byte of the file."""
        consumed = needed = 0
        try:
            while True:
                window, ended = self._window(stream, consumed, needed, record, position + consumed)
                position += consumed
                consumed = 0
                while True:
                    rest = window[consumed:]
                    found = _core.scan_frames(rest, limit, verify)
                    at = position + consumed
                    if is_truncated(rest, stream.mapped_from, at + len(rest)):
                        raise self._error(record, at, str(truncated()))
                    offsets, lengths, passed, needed, fault = found
                    if len(lengths):
                        yield Block(
                            rest,
                            offsets,
                            lengths,
                            self.name,
                            first=record,
                            position=at,
                            verified=verify != _core.VERIFY_LENGTHS,
                            mapped_from=stream.mapped_from,
                        )
                        if limit == 1:
                            return
                    record += len(lengths)
                    consumed += passed
                    if fault is None:
                        break
                    error = self._error(record, position + consumed, checksum_reason(fault, record))
                    # After corrupt data the next frame is known, after a corrupt length it is not.
                    if on_error == "raise" or fault.code != "data_checksum":
                        raise error
                    length: int = struct.unpack_from("<Q", rest, passed)[0] + FRAME_BYTES
                    self._skip(error, length)
                    consumed += length
                    record += 1
                if ended and consumed < len(window):
                    reason = truncation_reason(len(window) - consumed, needed)
                    raise self._error(record, position + consumed, reason)
                if ended:
                    return
                self._check_needed(stream, needed, record, position + consumed)
        except CorruptRecordError as error:
            if on_error == "raise":
                raise
            self._skip(error, None)

    def _window(
        self, stream: Stream, consumed: int, needed: int, record: int, offset: int
    ) -> tuple[memoryview, bool]:
        """Return the next window of a stream; raise CorruptRecordError if it cannot be read."""
        self._input.check_open()
        try:
            return stream.window(consumed, needed)
        except StreamError as error:
            raise self._error(record, offset, str(error)) from None
        except OSError as error:
            raise storage_error(error, self.name) from error

    def _check_needed(self, stream: Stream, needed: int, record: int, offset: int) -> None:
        """Check the size of a record that the size of the file does not limit."""
        limit = self._max_record_bytes
        if needed > limit + FRAME_BYTES and not isinstance(stream, FileStream):
            error = self._error(record, offset, limit_reason(needed, limit))
            error.remedy = f"pass a larger max_record_bytes= if it is correct, or {error.remedy}"
            raise error

    def _skip(self, error: CorruptRecordError, length: int | None) -> None:
        self.skipped.append(
            SkippedRecord(error.record or 0, error.reason, self.name, error.offset or 0, length)
        )

    def _error(self, record: int, offset: int, reason: str) -> CorruptRecordError:
        # Locations in a compressed file are those of its members; record indexes count the records
        # of the decompressed data.
        is_inside = self.compression is not None and record >= 0
        return CorruptRecordError(
            reason,
            path=self.name,
            record=record if record >= 0 else None,
            offset=offset,
            remedy="pass on_error='skip' to read the valid records"
            + (" (the offset is that in the decompressed data)" if is_inside else ""),
        )
