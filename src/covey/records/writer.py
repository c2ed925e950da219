"""Writing TFRecord files."""

from __future__ import annotations

import io
import os
import threading
import warnings
import zlib
from typing import BinaryIO

import numpy as np

from covey import _core
from covey.errors import ClosedError
from covey.records.block import FOOTER_BYTES, HEADER_BYTES, Block
from covey.records.compression import GzipDeflater, parse_compression
from covey.records.reader import PathOrFile, RecordReader


class RecordWriter:
    """Writes records to one TFRecord file. Threads may share it.

    An error of the file (a full disk, say) closes the writer: what was not written is lost, and
    nothing is added after it.

    Args:
        target: A path, which is overwritten, or a binary file object.
        compression: ``None``, ``"GZIP"`` or ``"ZLIB"``.
        level: How hard to compress, 0 to 9.
        member_bytes: GZIP is written in members of whole records, each ended as soon as it holds
            this many bytes before compression, so that a reader can start in the middle.
        append: Add to an existing file, after checking that it ends on a whole record.
        buffer_bytes: How much to collect before the file is written to.

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
        level: int = 6,
        member_bytes: int = 1 << 16,
        append: bool = False,
        buffer_bytes: int = 1 << 20,
    ) -> None:
        self.compression = parse_compression(compression)
        if not 0 <= level <= 9:
            raise ValueError(f"level is {level}, must be 0 to 9")
        if member_bytes < 1 or buffer_bytes < 1:
            raise ValueError("member_bytes and buffer_bytes must be 1 or more")
        self._emitted = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._owned = isinstance(target, (str, os.PathLike))
        if not self._owned and not hasattr(target, "write"):
            raise TypeError(
                f"the target is of type {type(target).__name__}, must be a path or a binary file"
            )
        if isinstance(target, (str, os.PathLike)):
            self.name = os.fspath(target)
            if append and os.path.exists(self.name):
                self._check_end(self.name)
            self._file: BinaryIO = open(self.name, "ab" if append else "wb", buffering=0)  # noqa: SIM115
        else:
            self.name = str(getattr(target, "name", "<file>"))
            self._file = target
            if append:
                self._check_end(target)
                target.seek(0, os.SEEK_END)
        self._append = append
        self._member_bytes = member_bytes
        self._buffer_bytes = min(buffer_bytes, member_bytes) if compression else buffer_bytes
        self._buffer = _core.FrameBuffer(self._buffer_bytes)
        self._gzip = GzipDeflater(level) if self.compression == "GZIP" else None
        self._zlib = zlib.compressobj(level) if self.compression == "ZLIB" else None
        self._closed = False

    def _check_end(self, target: PathOrFile) -> None:
        """Make sure that what is appended to can be: whole records, of the same compression."""
        if not isinstance(target, (str, os.PathLike)):
            if not (target.readable() and target.seekable()):
                raise ValueError(
                    f"{self.name}: appending to a file object needs one that can be read and "
                    "seeked, so that its end can be checked; open it with mode 'r+b'"
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
            # Lengths are enough to find the end; compressed data is checked by inflating it.
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
            raise ClosedError(f"{self.name}: this writer failed earlier: {self._failure}")
        if self._closed:
            raise ClosedError(f"{self.name}: this writer is closed; open another, with append=True")

    def write(self, record: bytes) -> None:
        """Write one record."""
        if self._closed:
            self._check_open()
        try:
            size = self._buffer.append(record)  # natively, under the GIL: no lock is needed
        except BufferError as error:
            raise TypeError(f"a record must be contiguous bytes: {error}") from None
        if size >= self._buffer_bytes:
            with self._lock:
                self._drain()

    def write_block(self, block: Block) -> None:
        """Write many records, framed already."""
        with self._lock:
            self._check_open()
            self._drain()
            self._emit(block)

    @property
    def records(self) -> int:
        """Records written by this writer so far."""
        return self._emitted + len(self._buffer)

    def flush(self) -> None:
        """Hand everything to the file.

        A reader then sees whole records, except in ZLIB, which has no end before it is closed.
        """
        with self._lock:
            self._check_open()
            self._drain()
            if self._gzip is not None:
                self._put(self._gzip.finish())
            if self._zlib is not None:
                self._put(self._zlib.flush(zlib.Z_SYNC_FLUSH))
            self._flush_file()

    def close(self) -> None:
        """Write what is left and close the file, if this writer opened it."""
        with self._lock:
            if self._closed:
                return
            try:
                self._drain()
                if self._gzip is not None:
                    self._put(self._gzip.finish(last=not self._append))
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
        """Write the frames of a block, which lie one after another in its buffer."""
        if not len(block):
            return
        frames = memoryview(block.data).cast("B")
        ends = block.offsets + block.lengths + np.uint64(FOOTER_BYTES)
        begin = int(block.offsets[0]) - HEADER_BYTES
        end = int(ends[-1])
        if end - begin != int(block.lengths.sum()) + (HEADER_BYTES + FOOTER_BYTES) * len(block):
            raise ValueError(f"{block.name}: the frames of a block must follow one another")
        if self._zlib is not None:
            self._put(self._zlib.compress(frames[begin:end]))
        elif self._gzip is None:
            self._put(frames[begin:end])
        else:
            self._emit_members(frames, begin, ends)
        self._emitted += len(block)

    def _emit_members(
        self, frames: memoryview, begin: int, ends: np.ndarray[tuple[int], np.dtype[np.uint64]]
    ) -> None:
        """Add frames to the open GZIP member, ending it wherever it is full.

        Where members end depends on the records alone, not on how they arrive.
        """
        assert self._gzip is not None
        row = 0
        while row < len(ends):
            full = begin + self._member_bytes - self._gzip.member_bytes
            row = min(int(np.searchsorted(ends, np.uint64(full))), len(ends) - 1)
            self._put(self._gzip.compress(frames[begin : int(ends[row])]))
            begin = int(ends[row])
            row += 1
            if self._gzip.member_bytes >= self._member_bytes:
                self._put(self._gzip.finish())

    def _put(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view.nbytes:
                # A raw file may take less than it is given; some file objects do not say.
                taken: int | None = self._file.write(view)
                if taken == 0 or (taken is None and isinstance(self._file, io.RawIOBase)):
                    raise BlockingIOError(f"{self.name}: the file takes no more bytes")
                view = view[taken:] if taken is not None else view[:0]
        except BaseException as error:
            # Part of a frame may be in the file: whatever followed it could not be read.
            self._failure = error
            self._closed = True
            if self._owned:
                self._file.close()
            raise
