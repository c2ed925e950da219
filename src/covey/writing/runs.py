"""Read runs of records, from a disk or a URL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FormatError
from covey.shuffle.buckets import Bucket, RunFile, RunReader, bucket_groups, read_table
from covey.shuffle.keys import ROW_DTYPE
from covey.tfrecord import Block
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES


def load(
    readers: Sequence[RunReader], first: Bucket, last: Bucket, *, frames: bool = True
) -> Iterator[tuple[int, NDArray[Any], NDArray[np.uint8]]]:
    """Yield the rows and frames of some buckets of runs, with the position of the run."""
    for position, reader in enumerate(readers):
        rows, data = reader.read(first, last, frames=frames)
        if rows:
            checked = _check_rows(np.frombuffer(rows, ROW_DTYPE), data, reader.run, frames)
            yield position, checked, np.frombuffer(data, np.uint8)


def _check_rows(rows: NDArray[Any], data: bytes, run: RunFile, frames: bool) -> NDArray[Any]:
    """Return rows whose lengths are those of the frames, and whose class ids have strings.

    Raises:
        FormatError: If they are not, or a frame of a part is corrupt.
    """
    lengths, labels = rows["length"], rows["label"]
    if run.strings is not None and not 0 <= labels.min() <= labels.max() < run.strings:
        raise FormatError("a class id has no string", path=run.files[1])
    if not frames:
        return rows
    size = int(lengths.sum()) + FRAME_BYTES * len(rows)
    is_valid = int(lengths.max()) <= len(data) and size == len(data)
    if is_valid and run.checksum is not None:
        _, found, read, _, fault = _core.scan_frames(data, len(rows), _core.VERIFY_ALL)
        is_valid = fault is None and read == len(data) and np.array_equal(found, lengths)
    if not is_valid:
        raise FormatError("the frames are corrupt, or not those of the rows", path=run.path)
    return rows


def scan(run: RunFile, size: int) -> Iterator[tuple[Block, NDArray[Any]]]:
    """Yield all records of a run with their rows, about ``size`` bytes at a time."""
    reader = RunReader(run)
    for first, last in bucket_groups(read_table(run), size):
        for _, rows, data in load([reader], first, last):
            yield as_block(rows, data), rows


def scan_rows(run: RunFile, size: int) -> Iterator[NDArray[Any]]:
    """Yield the rows of all records of a run, about ``size`` bytes at a time."""
    reader = RunReader(run)
    for first, last in bucket_groups(read_table(run), size):
        for _, rows, _ in load([reader], first, last, frames=False):
            yield rows


def as_block(rows: NDArray[Any], data: NDArray[np.uint8]) -> Block:
    """Return frames without gaps as a block."""
    return Block(data, frame_offsets(rows), np.ascontiguousarray(rows["length"]))


def frame_offsets(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the offsets of records whose frames have no gaps."""
    sizes = rows["length"] + np.uint64(FRAME_BYTES)
    offsets: NDArray[np.uint64] = np.cumsum(sizes) - sizes + np.uint64(HEADER_BYTES)
    return offsets
