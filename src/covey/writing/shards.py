"""Divide sorted records into shards, and write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from covey._files import sync
from covey.errors import DatasetError
from covey.index.format import Shard, fingerprint
from covey.shuffle.keys import OrderedRecords, Part
from covey.tfrecord import Block, RecordWriter
from covey.tfrecord.block import FRAME_BYTES
from covey.untrusted import MAX_SHARDS
from covey.writing.options import WriteOptions


def plan_cuts(ordered: OrderedRecords, options: WriteOptions) -> Cuts:
    """Return the ends of the shards that the options request.

    Raises:
        DatasetError: If there would be more shards than a reader accepts.
    """
    total, size = ordered.records, options.records_per_shard
    if size is not None:
        count = _check_count(-(-total // size))
        return Cuts("records", np.minimum(np.arange(1, count + 1) * size, total))
    unit: Literal["records", "bytes"] = "bytes" if options.shards is None else "records"
    length = ordered.bytes if unit == "bytes" else total
    count = options.shards or max(1, -(-length // options.shard_bytes))
    count = _check_count(min(count, total))
    if options.sort_by_class and count > 1:
        classes = ordered.classes()
        sizes = classes.bytes if unit == "bytes" else classes.records
        ends = _ends_at_classes(np.cumsum(sizes), count)
        if ends is not None:
            return Cuts(unit, ends)
    # Python integers: the product may exceed 64 bits.
    return Cuts(unit, np.array([length * (i + 1) // count for i in range(count)], np.int64))


def _check_count(count: int) -> int:
    if count > MAX_SHARDS:
        raise DatasetError(
            f"there would be {count:,} shards; must be at most {MAX_SHARDS:,}",
            remedy="change shards=, records_per_shard= or shard_bytes=",
        )
    return count


def _ends_at_classes(ends: NDArray[np.int64], count: int) -> NDArray[np.int64] | None:
    """Return the ends of classes that are nearest to equal shares; None if there are too few."""
    if len(ends) < count:
        return None
    chosen: list[int] = []
    for shard in range(count):
        share = int(ends[-1]) * (shard + 1) // count
        above = int(np.searchsorted(ends, share))
        nearest = above - int(above > 0 and share - ends[above - 1] < ends[above] - share)
        # At least one class for this shard, and one for each that follows.
        first = chosen[-1] + 1 if chosen else 0
        chosen.append(min(max(nearest, first), len(ends) - count + shard))
    return ends[chosen]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Ends of shards, in records or in bytes of frames from the first record."""

    unit: Literal["records", "bytes"]
    ends: NDArray[np.int64]

    def select(self, begins: NDArray[np.int64], shard: int) -> slice:
        """Return which of consecutive records belong to a shard.

        A record belongs to the first shard that ends after its begin. The shard of a record that
        reaches several ends is followed by the last of these: the others have no records.

        Args:
            begins: Records, or bytes of frames, before each record.
            shard: Position of the shard in the cuts.
        """
        first = int(np.searchsorted(begins, self.ends[shard - 1])) if shard else 0
        return slice(first, int(np.searchsorted(begins, self.ends[shard])))

    def split(self, parts: Iterator[Part]) -> Iterator[tuple[bool, Part]]:
        """Yield parts that do not cross the end of a shard, and whether each one is its last."""
        done = 0
        for block, labels in parts:
            if self.unit == "records":
                sizes = np.ones(len(block), np.int64)
            else:
                sizes = block.lengths.astype(np.int64) + FRAME_BYTES
            ends = np.cumsum(sizes) + done
            # A shard ends after the last record that begins in it.
            shards = np.searchsorted(self.ends, ends - sizes, side="right")
            following = np.searchsorted(self.ends, ends, side="right")
            begin = 0
            while begin < len(block):
                stop = int(np.searchsorted(shards, shards[begin], side="right"))
                is_end = bool(following[stop - 1] != shards[begin])
                yield is_end, (block[begin:stop], None if labels is None else labels[begin:stop])
                begin = stop
            done = int(ends[-1]) if len(block) else done


class IndexSink(Protocol):
    """Receiver of the record locations of shards."""

    def add(self, shard: int, locations: NDArray[Any], labels: NDArray[np.int64] | None) -> None:
        """Add the locations and class ids of the records of a shard."""
        ...


def write_shards(
    parts: Iterator[Part],
    cuts: Cuts,
    directory: Path,
    index: IndexSink,
    *,
    first: int = 0,
    compression: str | None = None,
    compression_level: int = 6,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] = lambda records, size: None,
) -> list[Shard]:
    """Write shards, named by their index, and sync them to disk.

    Args:
        parts: Sorted records.
        cuts: Ends of the shards.
        directory: Directory of the shards.
        index: Receiver of the record locations.
        first: Index of the first shard.
        compression: Compression, as for :class:`covey.RecordWriter`.
        compression_level: Compression level, as for :class:`covey.RecordWriter`.
        executor: Executor of the compression.
        progress: Called with the number of records and bytes that were written.
    """
    shards: list[Shard] = []
    synced: list[Future[None]] = []
    writer: RecordWriter | None = None
    labels: list[NDArray[np.int64]] = []
    # Separate threads wait for the disk: those of the executor remain free.
    disk = ThreadPoolExecutor(4, thread_name_prefix="covey-sync")
    try:
        for is_end, (block, classes) in cuts.split(parts):
            path = directory / f"{first + len(shards):05d}"
            if writer is None:
                writer = RecordWriter(
                    path,
                    compression=compression,
                    compression_level=compression_level,
                    executor=executor,
                    track_locations=True,
                )
            writer.write_block(block)
            if classes is not None:
                labels.append(classes)
            progress(len(block), _frame_bytes(block))
            if is_end:
                writer.close()
                locations = writer.locations()
                index.add(
                    first + len(shards), locations, np.concatenate(labels) if labels else None
                )
                size = path.stat().st_size
                shards.append(Shard(path.name, len(locations), size, fingerprint(path)))
                writer, labels = None, []
                synced.append(disk.submit(sync, path))
        for future in synced:
            future.result()
    finally:
        if writer is not None:
            writer.close()
        disk.shutdown(cancel_futures=True)
    return shards


def _frame_bytes(block: Block) -> int:
    return int(block.lengths.sum()) + FRAME_BYTES * len(block)
