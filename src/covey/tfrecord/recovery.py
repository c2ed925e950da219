"""Recovery of the valid records of a corrupt TFRecord file."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

from covey import _core
from covey.results import SkippedRecord
from covey.tfrecord.block import (
    FRAME_BYTES,
    HEADER_BYTES,
    Block,
    checksum_reason,
    limit_reason,
    starts_with_frame,
    truncation_reason,
)
from covey.tfrecord.segments import CorruptFile, Corruption, Segment
from covey.tfrecord.streams import WINDOW_BYTES, PathOrFile, check_source

_UNLIMITED = 2**63
# Frames longer than a window that one search reads: a hostile file consists of headers only.
_MAX_LONG_FRAMES = 16


def salvage(
    source: PathOrFile,
    *,
    compression: str | None = "auto",
    max_record_bytes: int = 1 << 28,
    mmap: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Block | SkippedRecord]:
    """Yield the valid records of a file, and a :class:`SkippedRecord` for each corrupt range.

    After corrupt data the next record is found by the length, which has its own checksum. After a
    corrupt length the next valid frame is searched byte by byte; the number of records in between
    is unknown and counts as one. A corrupt GZIP member loses its own records; a corrupt ZLIB
    stream, or a GZIP file of one member, loses all records that follow.

    A record may itself contain frames, for example a TFRecord file. Frames within a corrupt record
    are not yielded if its extent is known: from its length, or, if only its header is corrupt and
    it is smaller than 1 MiB, from the checksum of its data. Otherwise they are yielded.

    Args:
        source: Path, or binary file object, which is read from its current position.
        compression: ``None``, ``"GZIP"`` or ``"ZLIB"``; ``"auto"`` detects it from the content.
        max_record_bytes: Largest record of compressed data or a file object. The size of a plain
            file bounds its records.
        mmap: Map local files into memory; False reads them.
        window_bytes: Bytes that are mapped or read at a time, unless a record is larger.

    >>> with RecordWriter("three.tfrecord") as writer:
    ...     for record in (b"one", b"two", b"three"):
    ...         writer.write(record)
    >>> with open("three.tfrecord", "r+b") as file:
    ...     _ = file.seek(32), file.write(b"?")
    >>> for found in salvage("three.tfrecord"):
    ...     print(list(found) if isinstance(found, Block) else (found.record, found.offset))
    [b'one']
    (1, 19)
    [b'three']
    """
    check_source(source, compression, max_record_bytes)

    def recover() -> Iterator[Block | SkippedRecord]:
        file = CorruptFile(source, compression, mmap=mmap, window_bytes=window_bytes)
        with closing(file):
            yield from _Recovery(file, max_record_bytes).read()

    return recover()


class _Recovery:
    """One pass over a file."""

    def __init__(self, file: CorruptFile, max_record_bytes: int) -> None:
        self._file = file
        self._max_record_bytes = max_record_bytes
        self._record = 0
        self._open: SkippedRecord | None = None
        """Corrupt range whose end is not known yet."""
        self._last_corrupt = -1
        """Offset of the last corrupt range."""

    def read(self) -> Iterator[Block | SkippedRecord]:
        position: int | None = 0
        begin = 0
        while position is not None:
            segment = self._file.segment(position, begin)
            yield from self._read_segment(segment)
            position, begin = None, segment.end
            if segment.corruption is not None:
                position = segment.corruption.resume
                yield from self._end_segment(segment, segment.corruption)
        if self._open is not None:
            yield self._open

    def _read_segment(self, segment: Segment) -> Iterator[Block | SkippedRecord]:
        at = segment.begin
        while True:
            data = segment.rest(at)
            scan = _core.scan_frames(data, _UNLIMITED, _core.VERIFY_ALL)
            if segment.is_truncated(at):
                return
            offsets, lengths, consumed, needed, fault = scan
            if len(lengths):
                yield from self._close(at)
                yield Block(
                    data,
                    offsets,
                    lengths,
                    self._file.name,
                    self._record,
                    at,
                    mapped_from=segment.mapped_from,
                )
                self._record += len(lengths)
                at += consumed
            if fault is not None:
                skip = self._skip_data if fault.code == "data_checksum" else self._skip_length
                at = yield from skip(segment, at, checksum_reason(fault, self._record))
            elif needed > FRAME_BYTES + max(self._max_record_bytes, segment.bytes_left(at) or 0):
                at = yield from self._skip_too_long(segment, at, needed)
            elif not segment.ended:
                segment.move(at, needed)
            elif at < segment.end:
                at = yield from self._skip_rest(segment, at, needed)
            else:
                return

    # Each of these methods skips a corrupt range and returns the offset at which to resume.

    def _skip_data(
        self, segment: Segment, at: int, reason: str
    ) -> Generator[SkippedRecord, None, int]:
        """Skip a record with corrupt data and a valid length."""
        yield from self._close(at)
        self._begin(at, reason)
        (length,) = struct.unpack_from("<Q", segment.rest(at))
        # If bytes of the data are missing, the next frame begins before the recorded end.
        end = self._find(segment, at + 1, at + length + FRAME_BYTES)
        following = segment.peek(end, HEADER_BYTES)
        if not following or starts_with_frame(following):
            yield from self._close(end)
        return end

    def _skip_length(
        self, segment: Segment, at: int, reason: str
    ) -> Generator[SkippedRecord, None, int]:
        """Skip a record with a corrupt length."""
        if self._open is None:
            self._begin(at, reason)
            size = self._file.piece_bytes
            data = segment.peek(at, size)[:size]
            length = _core.find_end(data, segment.ended and at + len(data) == segment.end)
            if length:
                yield from self._close(at + length)
                return at + length
        return self._find(segment, at + 1)

    def _skip_too_long(
        self, segment: Segment, at: int, needed: int
    ) -> Generator[SkippedRecord, None, int]:
        """Skip a record with a length that exceeds the limit or the file."""
        yield from self._close(at)
        left = segment.bytes_left(at)
        if left:
            self._begin(at, truncation_reason(left, needed))
        else:
            self._begin(at, limit_reason(needed, self._max_record_bytes))
        return self._find(segment, at + 1)

    def _skip_rest(
        self, segment: Segment, at: int, needed: int
    ) -> Generator[SkippedRecord, None, int]:
        """Skip an incomplete record at the end of a segment."""
        if needed:
            yield from self._close(at)
        if self._open is None:
            corruption = segment.corruption
            reason = truncation_reason(segment.end - at, needed)
            self._begin(at, reason if corruption is None else corruption.reason)
        # If bytes of the record are missing, further frames follow within its recorded length.
        return self._find(segment, at + 1, segment.end)

    def _end_segment(self, segment: Segment, corruption: Corruption) -> Iterator[SkippedRecord]:
        if self._open is not None:
            if corruption.lost and self._open.reason != corruption.reason:
                reason = f"{self._open.reason}; {corruption.reason}"
                self._open = replace(self._open, reason=reason)
        elif corruption.lost:
            self._begin(segment.end, corruption.reason)
        elif self._last_corrupt < corruption.offset:  # else a corrupt record explains the checksum
            reason = f"{corruption.reason}; the checksums of its records are valid"
            yield SkippedRecord(
                self._record, reason, self._file.name, segment.end, bytes=0, lost=False
            )

    def _begin(self, at: int, reason: str) -> None:
        self._open = SkippedRecord(self._record, reason, self._file.name, at)
        self._record += 1
        self._last_corrupt = at

    def _close(self, at: int) -> Iterator[SkippedRecord]:
        if self._open is not None:
            yield replace(self._open, bytes=at - (self._open.offset or 0))
            self._open = None

    def _find(self, segment: Segment, begin: int, end: int | None = None) -> int:
        """Return the offset of the next frame; ``end`` if no frame leads there from before it."""
        limit = segment.bytes_left(segment.begin)
        max_bytes = self._max_record_bytes if limit is None else limit
        long_frames = 0
        while True:
            reach = 0 if end is None else max(0, end - segment.begin)
            found, needed = _core.find_frame(
                segment.data, begin - segment.begin, reach, max_bytes, segment.ended
            )
            begin = segment.begin + found
            if end is not None and begin >= end:
                return end
            if not needed:
                return begin
            window = self._file.window_bytes
            if needed > window:
                long_frames += 1
                max_bytes = max_bytes if long_frames < _MAX_LONG_FRAMES else window
            segment.move(begin, max(needed, self._file.piece_bytes))
