"""Records to shards: where one ends and the next begins, and writing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey._files import sync
from covey.errors import DatasetError
from covey.index.format import Shard, fingerprint
from covey.shuffle.keys import OrderedRecords, Part
from covey.tfrecord import Block, RecordWriter
from covey.tfrecord.block import FRAME_BYTES
from covey.untrusted import MAX_SHARDS


@dataclass(frozen=True, slots=True)
class Sharding:
    """How many shards there are.

    Args:
        count: So many, with as many records in each.
        records: Or as many as it takes for so many records in each.
        bytes: Or as many as it takes for about so many bytes in each.
    """

    count: int | None = None
    records: int | None = None
    bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.count is not None and self.records is not None:
            raise DatasetError(
                f"shards is {self.count} and records_per_shard {self.records}; give only one"
            )
        named = {"shards": self.count, "records_per_shard": self.records, "shard_bytes": self.bytes}
        for name, value in named.items():
            if value is not None and (type(value) is not int or value < 1):
                raise DatasetError(f"{name} is {value!r}; must be an integer, 1 or more")

    def check(self, ordered: OrderedRecords) -> None:
        """Refuse a number of shards that no reader would accept."""
        if self.records is not None:
            count = -(-ordered.records // self.records)
        else:
            count = min(ordered.records, self.count or -(-ordered.bytes // self.bytes))
        if count > MAX_SHARDS:
            raise DatasetError(
                f"there would be {count:,} shards; must be at most {MAX_SHARDS:,}: change "
                "shards=, records_per_shard= or shard_bytes="
            )

    def plan(self, ordered: OrderedRecords, *, by_class: bool) -> Cuts:
        """Where the shards of these records end."""
        total = ordered.records
        if self.records is not None:
            count = -(-total // self.records)
            ends = [min(total, (i + 1) * self.records) for i in range(count)]
            return Cuts("records", np.array(ends, np.int64))
        if self.count is not None:
            count = min(self.count, total)
            if by_class:
                classes = ordered.classes()
                edges = _at_classes(np.cumsum(classes.records), count)
                if edges is not None:
                    return Cuts("records", edges)
            return Cuts("records", np.arange(1, count + 1, dtype=np.int64) * total // count)
        count = max(1, min(-(-ordered.bytes // self.bytes), total))
        if by_class and count > 1:
            classes = ordered.classes()
            edges = _at_classes(np.cumsum(classes.bytes), count)
            if edges is not None:
                return Cuts("bytes", edges)
        shares = [ordered.bytes * (i + 1) // count for i in range(count)]
        return Cuts("bytes", np.array(shares, np.int64))


def _at_classes(ends: NDArray[np.int64], count: int) -> NDArray[np.int64] | None:
    """The ends of classes that are nearest to equal shares; None if there are too few."""
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
    """Where shards end: after so many records, or so many bytes of frames."""

    unit: str
    ends: NDArray[np.int64]

    def split(self, parts: Iterator[Part]) -> Iterator[tuple[bool, Part]]:
        """Cut parts where shards end; True comes with the last part of each."""
        done, shard = 0, 0
        for block, labels in parts:
            if self.unit == "records":
                ends = np.arange(1, len(block) + 1, dtype=np.int64) + done
            else:
                sizes = block.lengths.astype(np.int64) + FRAME_BYTES
                ends = np.cumsum(sizes) + done
            begin = 0
            while begin < len(block):
                # The first record that reaches the end of this shard is its last.
                last = int(np.searchsorted(ends, self.ends[shard]))
                stop = min(last + 1, len(block))
                is_end = last < len(block)
                part = block[begin:stop], None if labels is None else labels[begin:stop]
                if is_end:
                    # A record that reaches over several ends makes one shard of them.
                    shard = int(np.searchsorted(self.ends, ends[last], side="right"))
                yield is_end, part
                begin = stop
            done = int(ends[-1]) if len(block) else done


class IndexSink(Protocol):
    """What is told of every shard that is written."""

    def add(self, shard: int, places: NDArray[Any], labels: NDArray[np.int64] | None) -> None:
        """So the records of a shard lie, and these are their classes."""
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
    """Write shards into a directory, named by their number from ``first`` on, and sync them to disk.

    Args:
        parts: The records in order.
        cuts: Where shards end.
        directory: Where to.
        index: Is told where records lie.
        first: The number of the first shard.
        compression, compression_level: As for :class:`covey.RecordWriter`.
        executor: Where other threads compress.
        progress: Is told of the records and bytes that were written.
    """
    shards: list[Shard] = []
    synced: list[Future[None]] = []
    writer: RecordWriter | None = None
    labels: list[NDArray[np.int64]] = []
    # Waiting for the disk is not a work: other threads do that, and take no worker's place.
    disk = ThreadPoolExecutor(4, thread_name_prefix="covey-sync")
    try:
        for is_end, (block, classes) in cuts.split(parts):
            path = directory / f"{first + len(shards):05d}"
            if writer is None:
                # Blocks come large: a buffer would only be filled and emptied once more.
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
                places = writer.places()
                index.add(first + len(shards), places, np.concatenate(labels) if labels else None)
                size = path.stat().st_size
                shards.append(Shard(path.name, len(places), size, fingerprint(path)))
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
