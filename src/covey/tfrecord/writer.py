"""Writer of TFRecord files."""

from __future__ import annotations

import io
import os
import threading
import warnings
import zlib
from collections import deque
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import ClosedError
from covey.tfrecord.block import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    Block,
    RecordLocations,
)
from covey.tfrecord.compression import gzip_member, parse_compression
from covey.tfrecord.reader import PathOrFile, RecordReader, check_path_or_file
from covey.urls import check_local, is_path

# Maximum number of members that are being compressed or wait to be written.
_MAX_PENDING_MEMBERS = 16


class RecordWriter:
    """Writer of the records of one TFRecord file. Threads may share it.

    An error of the file (a full disk, say) closes the writer: what was not written is lost, and
    nothing is added after it.

    Args:
        target: A path, which is overwritten, or a binary file object.
        compression: ``None``, ``"GZIP"`` or ``"ZLIB"``.
        compression_level: Compression level, from 0 to 9.
        member_bytes: Minimum size of a GZIP member before compression. Members have complete
            records, so that a reader can start at any of them.
        append: Append to an existing file, after checking that it ends with a complete record.
        buffer_bytes: Size of the write buffer.
        executor: Executor that compresses GZIP members concurrently; the file is the same.
        track_locations: Keep the location of each record, for :meth:`locations`.

    >>> with RecordWriter("small.tfrecord.gz", compression="GZIP") as writer:
    ...     writer.write(b"a record")
    >>> writer.records
    1
    """

    def __init__(
        self,
        target: PathOrFile,
        *,
        compression: str | None = None,
        compression_level: int = 6,
        member_bytes: int = 1 << 16,
        append: bool = False,
        buffer_bytes: int = 1 << 20,
        executor: Executor | None = None,
        track_locations: bool = False,
    ) -> None:
        self.compression = parse_compression(compression)
        if not 0 <= compression_level <= 9:
            raise ValueError(f"compression_level is {compression_level}; must be from 0 to 9")
        if member_bytes < 1 or buffer_bytes < 1:
            raise ValueError("member_bytes and buffer_bytes must be integers >= 1")
        if append and track_locations:
            raise ValueError("track_locations and append cannot be combined")
        self._emitted = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        check_path_or_file("target", target, "write")
        self._owned = is_path(target)
        if self._owned:
            self.name = check_local(target)
            if append and os.path.exists(self.name):
                self._check_end(self.name)
            self._file: BinaryIO = open(self.name, "ab" if append else "wb", buffering=0)  # noqa: SIM115
        else:
            self.name = str(getattr(target, "name", "<file>"))
            self._file = cast(BinaryIO, target)
            if append:
                self._check_end(self._file)
                self._file.seek(0, os.SEEK_END)
        self._append = append
        self._member_bytes = member_bytes
        self._buffer_bytes = min(buffer_bytes, member_bytes) if compression else buffer_bytes
        self._buffer = _core.FrameBuffer(self._buffer_bytes)
        self._compression_level = compression_level
        self._executor = executor
        self._member = bytearray()  # GZIP: complete frames, not yet compressed
        self._member_begin = 0  # GZIP: offset of the open member in the uncompressed data
        self._compressing: deque[tuple[int, Future[bytes]]] = deque()
        self._zlib = zlib.compressobj(compression_level) if self.compression == "ZLIB" else None
        self._locations = RecordLocations(self.compression) if track_locations else None
        if self._locations is not None and self.compression == "ZLIB":
            self._locations.members.append((0, 0))
        self._data_bytes = 0  # uncompressed
        self._file_bytes = 0  # of GZIP members
        self._closed = False

    def _check_end(self, target: str | BinaryIO) -> None:
        """Check that the file ends with a complete record, and has the same compression."""
        if not isinstance(target, str):
            if not (target.readable() and target.seekable()):
                raise ValueError(
                    f"{self.name}: the file object must be readable and seekable to append, "
                    "because its end is checked; open it with mode 'r+b'"
                )
            if target.seek(0, os.SEEK_END) == 0:
                return
            target.seek(0)
        elif os.path.getsize(target) == 0:
            return
        with RecordReader(target) as reader:
            if reader.compression != self.compression:
                raise ValueError(
                    f"{self.name}: cannot append with compression {self.compression} to a file "
                    f"with {reader.compression}; pass compression={reader.compression!r}"
                )
            if self.compression == "ZLIB":
                raise ValueError(
                    f"{self.name}: cannot append to a ZLIB file: readers would stop at the end of "
                    "its first stream; write a new file, or use GZIP"
                )
            # Lengths suffice to find the end; inflating checks compressed data.
            for _ in reader.blocks(verify_data=False):
                pass

    def __enter__(self) -> RecordWriter:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(
                f"{self.name}: a RecordWriter was not closed, so its last records are lost; "
                "use it in a with statement",
                ResourceWarning,
                stacklevel=2,
            )
            if self._owned:
                self._file.close()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise ClosedError(f"the writer failed earlier: {self._failure}", path=self.name)
        if self._closed:
            raise ClosedError(
                "the writer is closed; open the file again with append=True", path=self.name
            )

    def write(self, record: bytes) -> None:
        """Write one record."""
        if self._closed:
            self._check_open()
        try:
            size = self._buffer.append(record)  # native and under the GIL: needs no lock
        except BufferError as error:
            raise TypeError(f"the record is not contiguous bytes: {error}") from None
        if size >= self._buffer_bytes:
            with self._lock:
                self._drain()

    def write_block(self, block: Block) -> None:
        """Write the framed records of a block."""
        with self._lock:
            self._check_open()
            self._drain()
            self._emit(block)

    def locations(self) -> NDArray[Any]:
        """Return the location of every record, like :meth:`covey.RecordReader.locations`.

        The writer must be closed.
        """
        if self._locations is None or not self._closed:
            raise ValueError(
                f"{self.name}: locations are available after the writer is closed, with "
                "track_locations=True"
            )
        return self._locations.table()

    @property
    def records(self) -> int:
        """Number of records written by this writer."""
        return self._emitted + len(self._buffer)

    def flush(self) -> None:
        """Write all buffered records to the file.

        A reader then sees complete records, except in ZLIB, which ends when the file is closed.
        """
        with self._lock:
            self._check_open()
            self._drain()
            self._end_member()
            self._put_compressed(0)
            if self._zlib is not None:
                self._put(self._zlib.flush(zlib.Z_SYNC_FLUSH))
            self._flush_file()

    def close(self) -> None:
        """Write the remaining records, and close the file if this writer opened it."""
        with self._lock:
            if self._closed:
                return
            try:
                self._drain()
                # An empty GZIP file still has a member.
                self._end_member(is_last=not self._append)
                self._put_compressed(0)
                if self._zlib is not None:
                    self._put(self._zlib.flush())
                self._flush_file()
            finally:
                self._closed = True
                if self._owned:
                    self._file.close()

    def _flush_file(self) -> None:
        flush = getattr(self._file, "flush", None)
        if flush is not None:
            flush()

    def _drain(self) -> None:
        data, offsets, lengths = self._buffer.take()
        if len(lengths):
            self._emit(Block(data, offsets, lengths))

    def _emit(self, block: Block) -> None:
        """Write the frames of a block, which are consecutive in its buffer."""
        if not len(block):
            return
        frames = memoryview(block.data).cast("B")
        begin = int(block.offsets[0]) - HEADER_BYTES
        end = int(block.offsets[-1] + block.lengths[-1]) + FOOTER_BYTES
        if end - begin != int(block.lengths.sum()) + FRAME_BYTES * len(block):
            raise ValueError(f"{block.name}: the frames of the block are not consecutive")
        if self._locations is not None:
            offsets = block.offsets - np.uint64(begin)
            self._locations.add(replace(block, offsets=offsets, position=self._data_bytes))
        self._data_bytes += end - begin
        if self.compression == "GZIP":
            ends = block.offsets + block.lengths + np.uint64(FOOTER_BYTES)
            self._emit_members(frames, begin, ends)
        else:
            data = frames[begin:end]
            self._put(data if self._zlib is None else self._zlib.compress(data))
        self._emitted += len(block)

    def _emit_members(self, frames: memoryview, begin: int, ends: NDArray[np.uint64]) -> None:
        """Add frames to the open GZIP member, and end it whenever it is full.

        Where members end depends on the records alone, not on how they arrive.

        Args:
            frames: The buffer of the frames.
            begin: Offset of the first frame.
            ends: Offset of the end of each frame.
        """
        row = 0
        while row < len(ends):
            full = begin + self._member_bytes - len(self._member)
            last = min(int(np.searchsorted(ends, np.uint64(full))), len(ends) - 1)
            self._member += frames[begin : int(ends[last])]
            row, begin = last + 1, int(ends[last])
            if len(self._member) >= self._member_bytes:
                self._end_member()

    def _end_member(self, *, is_last: bool = False) -> None:
        """Compress the open GZIP member, if it has records or is the only one."""
        is_needed = self._member or (is_last and not self._member_begin)
        if self.compression != "GZIP" or not is_needed:
            return
        data, self._member = self._member, bytearray()
        begin, self._member_begin = self._member_begin, self._member_begin + len(data)
        if self._executor is None:
            self._put_member(begin, gzip_member(data, self._compression_level))
            return
        future = self._executor.submit(gzip_member, data, self._compression_level)
        self._compressing.append((begin, future))
        self._put_compressed(_MAX_PENDING_MEMBERS)

    def _put_compressed(self, pending: int) -> None:
        """Write compressed members in order, until at most `pending` remain."""
        while len(self._compressing) > pending:
            begin, future = self._compressing.popleft()
            self._put_member(begin, future.result())

    def _put_member(self, begin: int, member: bytes) -> None:
        if self._locations is not None:
            self._locations.members.append((begin, self._file_bytes))
        self._file_bytes += len(member)
        self._put(member)

    def _put(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view.nbytes:
                # A raw file may accept fewer bytes; some file objects return None.
                taken: int | None = self._file.write(view)
                if taken == 0 or (taken is None and isinstance(self._file, io.RawIOBase)):
                    raise BlockingIOError(f"{self.name}: the file accepts no more bytes")
                view = view[taken:] if taken is not None else view[:0]
        except BaseException as error:
            # The file may have part of a frame, so records after it could not be read.
            self._failure = error
            self._closed = True
            if self._owned:
                self._file.close()
            raise
