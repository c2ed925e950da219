"""Read runs of records, which may be on other nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.engines.base import Files
from covey.errors import FormatError
from covey.shuffle.buckets import Bucket, RunFile, bucket_groups, read_all_buckets, read_tables
from covey.shuffle.keys import ROW_DTYPE
from covey.tfrecord import Block
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES


def load(
    runs: Sequence[RunFile], files: Files, first: Bucket, last: Bucket, *, frames: bool = True
) -> Iterator[tuple[int, NDArray[Any], NDArray[np.uint8]]]:
    """Yield the rows and frames of some buckets of runs, with the position of the run.

    Raises:
        NodeLostError: If a node that has some of the runs is lost.
    """
    by_node: dict[str, list[int]] = {}
    for position, run in enumerate(runs):
        by_node.setdefault(run.node, []).append(position)
    for node, positions in by_node.items():
        own = [runs[position] for position in positions]
        found = files.call(node, read_all_buckets, own, first, last, frames)
        for position, (rows, data) in zip(positions, found, strict=True):
            if rows:
                checked = _check_rows(np.frombuffer(rows, ROW_DTYPE), data, runs[position], frames)
                yield position, checked, np.frombuffer(data, np.uint8)


def _check_rows(rows: NDArray[Any], data: bytes, run: RunFile, frames: bool) -> NDArray[Any]:
    """Return rows whose lengths are those of the frames.

    Raises:
        FormatError: If they are not, or a frame of a part is corrupt.
    """
    lengths = rows["length"]
    if not frames:
        return rows
    size = int(lengths.sum()) + FRAME_BYTES * len(rows)
    is_valid = int(lengths.max()) <= len(data) and size == len(data)
    if is_valid and not run.is_trusted:
        _, found, read, _, fault = _core.scan_frames(data, len(rows), _core.VERIFY_ALL)
        is_valid = fault is None and read == len(data) and np.array_equal(found, lengths)
    if not is_valid:
        raise FormatError("the frames are corrupt, or not those of the rows", path=run.path)
    return rows


def scan(run: RunFile, files: Files, size: int) -> Iterator[tuple[Block, NDArray[Any]]]:
    """Yield all records of a run with their rows, about ``size`` bytes at a time."""
    (table,) = files.call(run.node, read_tables, [run])
    for first, last in bucket_groups(table, size):
        for _, rows, data in load([run], files, first, last):
            yield as_block(rows, data), rows


def scan_rows(run: RunFile, files: Files, size: int) -> Iterator[NDArray[Any]]:
    """Yield the rows of all records of a run, about ``size`` bytes at a time."""
    (table,) = files.call(run.node, read_tables, [run])
    for first, last in bucket_groups(table, size):
        for _, rows, _ in load([run], files, first, last, frames=False):
            yield rows


def as_block(rows: NDArray[Any], data: NDArray[np.uint8]) -> Block:
    """Return frames without gaps as a block."""
    return Block(data, frame_offsets(rows), np.ascontiguousarray(rows["length"]))


def frame_offsets(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the offsets of records whose frames have no gaps."""
    sizes = rows["length"] + np.uint64(FRAME_BYTES)
    offsets: NDArray[np.uint64] = np.cumsum(sizes) - sizes + np.uint64(HEADER_BYTES)
    return offsets
