"""Reading all that is valid out of corrupt TFRecord files, and saying what is not."""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import BinaryIO

from covey import _core
from covey.results import SkippedRecord
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES, Block
from covey.tfrecord.compression import parse_compression
from covey.tfrecord.segments import CorruptFile, Segment, begins_a_frame
from covey.tfrecord.streams import WINDOW_BYTES

_UNLIMITED = 2**63
# What is seen at least of the bytes in which a frame is searched.
_SEARCH_BYTES = 1 << 20
# Frames longer than a window that one search follows; a file can be made of nothing but headers.
_LONG_FRAMES = 16


def salvage(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    compression: str | None = "auto",
    max_record_bytes: int = 1 << 28,
    mmap: bool = True,
) -> Iterator[Block | SkippedRecord]:
    """Read the valid records of a file, with a :class:`SkippedRecord` in the place of what is not sound.

    After wrong data the next record follows by the length, whose own checksum is right. After a
    wrong length the next sound frame is searched, byte by byte; how many records lie between is
    unknown, and counted as one. A corrupt member of GZIP loses its own records, and one stream, as
    others write it, all that follow.

    A record may hold frames itself, a TFRecord file say. They are not taken for records of this
    one if anything tells that they lie within a corrupt record: its length, or, where only its
    header is corrupt and it has less than a MiB, the checksum of its data. If nothing does, they
    are given.

    Args:
        source: A path, or a binary file object, which is read from where it stands.
        compression: ``None``, ``"GZIP"`` or ``"ZLIB"``; ``"auto"`` finds out from the bytes.
        max_record_bytes: The largest record that is accepted where the size of a file does not
            bound it.
        map_files: As for :class:`covey.RecordReader`.

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
    if compression != "auto":
        parse_compression(compression)
    if max_record_bytes < 0:
        raise ValueError(f"max_record_bytes is {max_record_bytes}; must be 0 or more")
    if not isinstance(source, (str, os.PathLike)) and not hasattr(source, "read"):
        raise TypeError(
            f"the source is of type {type(source).__name__}; must be a path or a binary file"
        )
    return _salvage(source, compression, max_record_bytes, mmap)


def _salvage(
    source: str | os.PathLike[str] | BinaryIO,
    compression: str | None,
    most: int,
    mmap: bool,
) -> Iterator[Block | SkippedRecord]:
    with closing(CorruptFile(source, compression, mmap=mmap)) as file:
        yield from _Salvage(file, most).read()


class _Salvage:
    """The reading of one file."""

    def __init__(self, file: CorruptFile, most: int) -> None:
        self._file = file
        self._most = most
        self._record = 0
        self._open: SkippedRecord | None = None
        """A damage whose end is not known yet."""
        self._told = -1
        """Where the last damage begins."""

    def read(self) -> Iterator[Block | SkippedRecord]:
        at: int | None = 0
        begin = 0
        while at is not None:
            segment = self._file.segment(at, begin)
            yield from self._read(segment)
            at, begin = None, segment.end
            if segment.gap is not None:
                at = segment.gap.resume
                yield from self._cross(segment)
        if self._open is not None:
            yield self._open

    def _read(self, segment: Segment) -> Iterator[Block | SkippedRecord]:
        """All of a stretch."""
        at = segment.begin
        while True:
            data = segment.rest(at)
            scan = _core.scan_frames(data, _UNLIMITED, _core.VERIFY_ALL)
            if segment.is_truncated(at):
                return
            offsets, lengths, passed, needed, fault = scan
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
                at += passed
            if fault is not None and fault[0] == "data_checksum":
                at = yield from self._pass_data(segment, at, _mismatch(fault, self._record))
            elif fault is not None:
                at = yield from self._pass_length(segment, at, _mismatch(fault, self._record))
            elif needed > FRAME_BYTES + max(self._most, segment.most(at, 0)):
                at = yield from self._pass_claim(segment, at, needed)
            elif not segment.ended:
                segment.move(at, needed)
            elif at < segment.end:
                at = yield from self._pass_rest(segment, at, needed)
            else:
                return

    def _pass_data(
        self, segment: Segment, at: int, reason: str
    ) -> Generator[SkippedRecord, None, int]:
        """Pass over a record whose data is wrong; return where to go on."""
        yield from self._close(at)
        self._begin(at, reason)
        (length,) = struct.unpack_from("<Q", segment.rest(at))
        # Bytes may be missing from the data, so that the next frame is nearer than that.
        end = self._find(segment, at + 1, at + length + FRAME_BYTES)
        following = segment.see(end, HEADER_BYTES)
        if not following or begins_a_frame(following):
            yield from self._close(end)
        return end

    def _pass_length(
        self, segment: Segment, at: int, reason: str
    ) -> Generator[SkippedRecord, None, int]:
        """Pass over a record whose length is wrong, to wherever the next sound one is."""
        if self._open is None:
            self._begin(at, reason)
            data = segment.see(at, _SEARCH_BYTES)[:_SEARCH_BYTES]
            length = _core.find_end(data, segment.ended and at + len(data) == segment.end)
            if length:
                yield from self._close(at + length)
                return at + length
        return self._find(segment, at + 1)

    def _pass_claim(
        self, segment: Segment, at: int, needed: int
    ) -> Generator[SkippedRecord, None, int]:
        """Pass over a record that says it is longer than any can be, to the next sound one."""
        yield from self._close(at)
        left = segment.most(at, 0)
        if left:
            reason = _cut(left, needed)
        else:
            reason = (
                f"the record says that it has {needed - FRAME_BYTES} bytes, over the limit of "
                f"{self._most}; pass a larger max_record_bytes if that is right"
            )
        self._begin(at, reason)
        return self._find(segment, at + 1)

    def _pass_rest(
        self, segment: Segment, at: int, needed: int
    ) -> Generator[SkippedRecord, None, int]:
        """Pass over a record that the stretch does not hold the whole of."""
        if needed:
            yield from self._close(at)
        if self._open is None:
            left = segment.end - at
            self._begin(at, _cut(left, needed) if segment.gap is None else segment.gap.reason)
        # Bytes may be missing before, so that more frames are here than its length says.
        return self._find(segment, at + 1, segment.end)

    def _cross(self, segment: Segment) -> Iterator[SkippedRecord]:
        """Go on from the end of a stretch to the next."""
        gap = segment.gap
        assert gap is not None
        if self._open is not None:
            if gap.lost and self._open.reason != gap.reason:
                reason = f"{self._open.reason}; {gap.reason}"
                self._open = replace(self._open, reason=reason)
        elif gap.lost:
            self._begin(segment.end, gap.reason)
        elif self._told < gap.member:  # a damage in it is reason enough for its checksum
            reason = f"{gap.reason}; its records are valid by their own"
            yield SkippedRecord(self._record, reason, self._file.name, segment.end, 0, lost=False)

    def _begin(self, at: int, reason: str) -> None:
        self._open = SkippedRecord(self._record, reason, self._file.name, at)
        self._record += 1
        self._told = at

    def _close(self, at: int) -> Iterator[SkippedRecord]:
        if self._open is not None:
            yield replace(self._open, bytes=at - (self._open.offset or 0))
            self._open = None

    def _find(self, segment: Segment, begin: int, end: int | None = None) -> int:
        """Where the next sound frame is, or ``end``, if no frames lead there from before it."""
        most = segment.most(segment.begin, self._most)
        long_frames = 0
        while True:
            reach = 0 if end is None else max(0, end - segment.begin)
            found, needed = _core.find_frame(
                segment.data, begin - segment.begin, reach, most, segment.ended
            )
            begin = segment.begin + found
            if end is not None and begin >= end:
                return end
            if not needed:
                return begin
            if needed > WINDOW_BYTES:
                long_frames += 1
                most = most if long_frames < _LONG_FRAMES else WINDOW_BYTES
            segment.move(begin, max(needed, _SEARCH_BYTES))


def _mismatch(fault: _core.FaultArgs, record: int) -> str:
    code, _, _, found, expected, _ = fault
    what = "data" if code == "data_checksum" else "length"
    reason = f"{what} checksum is {found:#010x}, expected {expected:#010x}"
    if what == "length" and record == 0:
        reason += ", so this may be no TFRecord file"
    return reason


def _cut(left: int, needed: int) -> str:
    complete = f"the record's {needed} bytes" if needed else f"a header of {HEADER_BYTES}"
    return f"the file ends after {left} of {complete}"
