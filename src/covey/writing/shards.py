"""The reduce stage: the buckets of one shard are read from all runs, sorted and written."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey._files import sync
from covey._threads import ordered_map
from covey.engines.pools import Shared
from covey.index.format import Shard, fingerprint, row_dtype
from covey.index.write import make_index_rows
from covey.labels import Classes
from covey.schema import Features
from covey.schema.images import ImageSummary, ImageSurvey
from covey.shuffle.keys import (
    ROW_DTYPE,
    RecordOrder,
    cut_by_bytes,
    duplicate_error,
    find_duplicate,
    join_rows,
    take_rows,
)
from covey.shuffle.runs import (
    MIN_READ_BYTES,
    Records,
    Run,
    bucket_groups,
    join_records,
    key_of,
    scan_rows,
)
from covey.storage import open_storage
from covey.tfrecord import Block, RecordWriter
from covey.tfrecord.block import FRAME_BYTES
from covey.writing.scratch import local_copy

# Share of the memory limit of buckets that are read together. They are held as they were read; the
# rest is for sorting their rows, and for the buffers of the writer. Threads copy the records of a
# group while the next one is read.
_GROUP_SHARE = 0.6
_CHECK_SHARE = 4
_SYNC_THREADS = 4


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


@dataclass(frozen=True)
class ShardTarget:
    """Where shards are written."""

    directory: str | None
    """Directory that all workers share; shards have names in it that are unique to an attempt."""
    url: str = ""
    """URL of the dataset, if there is no directory."""
    names: tuple[str, ...] = ()
    """Final names of the shards of a URL."""
    storage_options: Mapping[str, Any] | None = None

    @contextmanager
    def new_path(self, shard: int) -> Iterator[Path]:
        """Yield a new path for a shard; remove the file if the block raises."""
        with local_copy("task") if self.directory is None else nullcontext() as temporary:
            directory = temporary or Path(self.directory or "")
            path = directory / f"{shard:05d}-{secrets.token_hex(8)}"
            try:
                yield path
            except BaseException:
                path.unlink(missing_ok=True)
                raise

    def finish(self, path: Path, shard: int) -> str:
        """Sync or upload a complete shard; return its name.

        The bytes of a shard do not depend on the attempt: an attempt may replace the file of
        another one.
        """
        if self.directory is not None:
            sync(path)
            return path.name
        storage = open_storage(self.url, self.storage_options)
        storage.upload(os.fspath(path), storage.join(storage.clean(self.url), self.names[shard]))
        path.unlink()
        return self.names[shard]


@dataclass(frozen=True)
class ShardFormat:
    """What is written to shards, and where."""

    features: Features
    is_labelled: bool
    compression: str | None
    compression_level: int
    target: ShardTarget


@dataclass(frozen=True)
class ReduceContext:
    """What all reduce tasks of a split share."""

    runs: tuple[Run, ...]
    final_ids: tuple[NDArray[np.int64] | None, ...]
    """Final class ids by the provisional ids in the rows of each run; None if those are final."""
    order: RecordOrder
    is_unique: bool
    """Whether records have keys, whose hashes must be distinct."""
    cuts: Cuts
    memory_limit: int
    format: ShardFormat
    read_labels: Classes | None = None
    """Classes by which class ids are read from the records, if the rows have none."""


@dataclass(frozen=True)
class ShardTask:
    """One shard to be written."""

    shard: int
    """Position of the shard in the split, of those that have records."""
    cut: int
    """Position of its end in the cuts."""
    table: NDArray[Any]
    """Buckets that contain its records."""
    records_before: int
    """Records in the buckets before these."""
    bytes_before: int
    """Bytes of those records."""
    index_shard: int = 0
    """Number of the shard in the index, after the shards that it is appended to."""


@dataclass(frozen=True)
class ShardResult:
    """A shard that was written; ``info`` is None if it has no records."""

    shard: int
    info: Shard | None
    first: int
    """Position of its first record in the split."""
    rows: NDArray[Any]
    """Index rows of its records."""
    images: Mapping[str, ImageSummary]


@dataclass(frozen=True)
class ShardPart:
    """Consecutive records of a shard."""

    task: ShardTask
    first: int
    """Position of the first record in the split."""
    block: Block
    labels: NDArray[np.int64] | None
    images: ImageSurvey
    """Images of the shard so far."""


def write_shard(shared: Shared, task: ShardTask) -> ShardResult:
    """Write a shard; see :func:`write_shards`."""
    (result,) = write_shards(shared.get(), [task])
    return result


def write_shards(
    context: ReduceContext,
    tasks: Sequence[ShardTask],
    executor: Executor | None = None,
    in_flight: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[ShardResult]:
    """Write shards one after the other.

    Args:
        context: What the shards share.
        tasks: The shards.
        executor: Executor that copies and compresses records, also those of the next shard.
        in_flight: Maximum number of parts in flight.
        progress: Called with the number of records and bytes that were written.
    """
    parts = (part for task in tasks for part in _parts(context, task, executor is not None))
    found: set[int] = set()
    copied = ordered_map(parts, executor, in_flight)
    for result in write_parts(context.format, copied, executor, progress):
        found.add(result.shard)
        yield result
    for task in tasks:
        if task.shard not in found:
            yield ShardResult(task.shard, None, 0, np.zeros(0), {})


def write_parts(
    form: ShardFormat,
    parts: Iterator[ShardPart],
    executor: Executor | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[ShardResult]:
    """Write the parts of shards that follow each other; see :func:`write_shards`."""
    synced: list[Future[None]] = []
    # Separate threads wait for the disk: those of the executor remain free.
    disk = None if executor is None else ThreadPoolExecutor(_SYNC_THREADS, "covey-sync")
    try:
        for task, own in itertools.groupby(parts, lambda part: part.task):
            with form.target.new_path(task.shard) as path:
                shard, first, rows, images = _write_shard(form, task, own, path, executor, progress)
                if disk is None:
                    shard = replace(shard, name=form.target.finish(path, task.shard))
                else:
                    synced.append(disk.submit(sync, path))
            yield ShardResult(task.shard, shard, first, rows, images)
        for future in synced:
            future.result()
    finally:
        if disk is not None:
            disk.shutdown(cancel_futures=True)


def _write_shard(
    form: ShardFormat,
    task: ShardTask,
    parts: Iterator[ShardPart],
    path: Path,
    executor: Executor | None,
    progress: Callable[[int, int], None] | None,
) -> tuple[Shard, int, NDArray[Any], Mapping[str, ImageSummary]]:
    """Write the parts of a shard; return it, its first record, its index rows and its images."""
    labels: list[NDArray[np.int64]] = []
    images, first = ImageSurvey(form.features), -1
    with RecordWriter(
        path,
        compression=form.compression,
        compression_level=form.compression_level,
        executor=executor,
        track_locations=True,
    ) as writer:
        for part in parts:
            first = part.first if first < 0 else first
            images = part.images
            writer.write_block(part.block)
            if part.labels is not None:
                labels.append(part.labels)
            if progress is not None:
                size = int(part.block.lengths.sum()) + FRAME_BYTES * len(part.block)
                progress(len(part.block), size)
    dtype = row_dtype(compressed=form.compression is not None, labelled=form.is_labelled)
    classes = np.concatenate(labels) if form.is_labelled else None
    rows = make_index_rows(task.index_shard, writer.locations(), classes, dtype)
    shard = Shard(path.name, len(rows), path.stat().st_size, fingerprint(path))
    return shard, first, rows, images.summaries()


def has_records(shared: Shared, task: ShardTask) -> bool:
    """Return whether a shard has records: one that is longer than a shard may leave none."""
    context: ReduceContext = shared.get()
    return any(len(found.rows) for _, found in _sorted_records(context, task, 1, frames=False))


def _parts(
    context: ReduceContext, task: ShardTask, in_threads: bool
) -> Iterator[Callable[[], ShardPart]]:
    """Yield functions that copy the records of a shard in order, a part each."""
    images = ImageSurvey(context.format.features)
    for at, found in _sorted_records(context, task, 2 if in_threads else 1):
        for begin, end in cut_by_bytes(found.rows["length"]):
            yield partial(_copy, context, task, at + begin, found[begin:end], images)
        del found  # before the next buckets are read


def _copy(
    context: ReduceContext, task: ShardTask, first: int, found: Records, images: ImageSurvey
) -> ShardPart:
    block = found.copy()
    images.add(block)
    if context.read_labels is not None:
        return ShardPart(task, first, block, context.read_labels.of(block), images)
    return ShardPart(task, first, block, np.ascontiguousarray(found.rows["label"]), images)


def _sorted_records(
    context: ReduceContext, task: ShardTask, groups: int, *, frames: bool = True
) -> Iterator[tuple[int, Records]]:
    """Yield the records of a shard in order, with the position of the first one in the split.

    Args:
        context: What the shards share.
        task: The shard.
        groups: Number of groups of buckets that are in memory at the same time.
        frames: Whether to read the frames.
    """
    order, cuts = context.order, context.cuts
    checks = context.is_unique and order.fields == ("high", "low")
    records, size = task.records_before, task.bytes_before
    last = np.zeros(0, ROW_DTYPE)
    if not len(task.table):
        return
    ends = key_of(task.table[0]), key_of(task.table[-1])
    readers = [run.open(*ends) for run in context.runs]
    limit = max(int(context.memory_limit * _GROUP_SHARE) // groups, MIN_READ_BYTES)
    for bounds in bucket_groups(task.table, limit):
        found = join_records(
            [
                _with_labels(reader.read(*bounds, frames=frames), ids)
                for reader, ids in zip(readers, context.final_ids, strict=True)
            ],
            order,
        )
        if checks and len(found.rows):
            _check_neighbours(join_rows([last, found.rows]))
            last = found.rows[-1:].copy()
        sizes = found.rows["length"].astype(np.int64) + FRAME_BYTES
        begins = np.arange(records, records + len(sizes))
        if cuts.unit == "bytes":
            begins = np.cumsum(sizes) - sizes + size
        inside = cuts.select(begins, task.cut)
        at, found = records + inside.start, found[inside]
        records, size = records + len(sizes), size + int(sizes.sum())
        yield at, found
        del found


def _with_labels(found: Records, ids: NDArray[np.int64] | None) -> Records:
    """Return records with the final class ids."""
    if ids is None or not len(found.rows):
        return found
    rows = take_rows(found.rows, np.arange(len(found.rows)))
    rows["label"] = ids[rows["label"]]
    return replace(found, rows=rows)


def _check_neighbours(rows: NDArray[Any]) -> None:
    """Raise DuplicateKeyError if two sorted rows have the same hash; the key is not known here."""
    found = find_duplicate(rows)
    if found is not None:
        raise duplicate_error(found, None)


def check_unique(runs: Sequence[Run], memory_limit: int, part: int, parts: int) -> None:
    """Compare the hashes of all records in one of several ranges of hashes.

    It is used if records are not sorted by hash.

    Raises:
        DuplicateKeyError: If two records have the same key.
    """
    low, high = 2**64 * part // parts, 2**64 * (part + 1) // parts - 1
    chosen = []
    for run in runs:
        for rows in scan_rows(run, memory_limit // _CHECK_SHARE):
            inside = (rows["high"] >= np.uint64(low)) & (rows["high"] <= np.uint64(high))
            chosen.append(rows[inside])
    joined = join_rows(chosen)
    _check_neighbours(take_rows(joined, RecordOrder().sort(joined)))
