"""The reduce stage: a task reads the buckets of one shard from all runs, and writes the shard."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._files import sync
from covey.engines.pools import Shared
from covey.errors import DuplicateKeyError
from covey.index.format import Shard, fingerprint, row_dtype
from covey.index.write import make_index_rows
from covey.schema import Features
from covey.schema.images import ImageSummary, ImageSurvey
from covey.shuffle.buckets import RunFile, RunReader, bucket_groups, key_of
from covey.shuffle.keys import ROW_DTYPE, RecordOrder, cut_by_bytes, find_duplicate
from covey.storage import open_storage
from covey.tfrecord import Block, RecordWriter
from covey.tfrecord.block import FRAME_BYTES
from covey.writing.runs import frame_offsets, load, scan_rows
from covey.writing.scratch import local_copy
from covey.writing.shards import Cuts

# Share of the memory limit of buckets that are read together. They are held as they were read; the
# rest is for sorting their rows, and for the buffers of the writer.
_GROUP_SHARE = 0.6
_CHECK_SHARE = 4


@dataclass(frozen=True)
class ReduceContext:
    """What all reduce tasks of a split share."""

    runs: tuple[RunFile, ...]
    final_ids: tuple[NDArray[np.int64] | None, ...]
    """Final class ids by the provisional ids in the rows of each run; None if those are final."""
    features: Features
    is_labelled: bool
    order: RecordOrder
    is_unique: bool
    """Whether records have keys, whose hashes must be distinct."""
    cuts: Cuts
    compression: str | None
    compression_level: int
    memory_limit: int
    target: ShardTarget


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


def write_shard(shared: Shared, task: ShardTask) -> ShardResult:
    """Write a shard; see :class:`ShardTask`."""
    context: ReduceContext = shared.get()
    with context.target.new_path(task.shard) as path:
        return _write_shard(context, task, path)


def _write_shard(context: ReduceContext, task: ShardTask, path: Path) -> ShardResult:
    writer = RecordWriter(
        path,
        compression=context.compression,
        compression_level=context.compression_level,
        track_locations=True,
    )
    images = ImageSurvey(context.features)
    labels: list[NDArray[np.int64]] = []
    first = -1
    with writer:
        for at, block, classes in _records(context, task):
            first = at if first < 0 else first
            images.add(block)
            writer.write_block(block)
            labels.append(classes)
    locations = writer.locations()
    dtype = row_dtype(compressed=context.compression is not None, labelled=context.is_labelled)
    classes = np.concatenate([np.zeros(0, np.int64), *labels])
    rows = make_index_rows(
        task.index_shard, locations, classes if context.is_labelled else None, dtype
    )
    if not len(rows):
        path.unlink()
        return ShardResult(task.shard, None, 0, rows, {})
    size, mark = path.stat().st_size, fingerprint(path)
    name = context.target.finish(path, task.shard)
    shard = Shard(name, len(rows), size, mark)
    return ShardResult(task.shard, shard, first, rows, images.summaries())


def has_records(shared: Shared, task: ShardTask) -> bool:
    """Return whether a shard has records: one that is longer than a shard may leave none."""
    context: ReduceContext = shared.get()
    return any(len(rows) for *_, rows in _sorted_rows(context, task, frames=False))


def _records(
    context: ReduceContext, task: ShardTask
) -> Iterator[tuple[int, Block, NDArray[np.int64]]]:
    """Yield the records of a shard in order, with the position of the first and the class ids."""
    for at, buffers, sources, offsets, rows in _sorted_rows(context, task, frames=True):
        lengths = np.ascontiguousarray(rows["length"])
        block: Any = None
        for begin, end in cut_by_bytes(lengths):
            part = slice(begin, end)
            block = _core.copy_frames(buffers, sources[part], offsets[part], lengths[part])
            yield at + begin, Block(*block), np.ascontiguousarray(rows["label"][part])
        del buffers, sources, offsets, rows, block  # before the next buckets are read


def _sorted_rows(
    context: ReduceContext, task: ShardTask, *, frames: bool
) -> Iterator[tuple[int, list[Any], NDArray[np.uint32], NDArray[np.uint64], NDArray[Any]]]:
    """Yield the rows of a shard in order, and where their frames are.

    Yields:
        Position of the first record in the split, buffers, and of each record the buffer, the
        offset in it and the row.
    """
    order, cuts = context.order, context.cuts
    checks = context.is_unique and order.fields == ("high", "low")
    records, size = task.records_before, task.bytes_before
    last = np.zeros(0, ROW_DTYPE)
    if not len(task.table):
        return
    ends = key_of(task.table[0]), key_of(task.table[-1])
    readers = [RunReader(run, *ends) for run in context.runs]
    for first_bucket, last_bucket in bucket_groups(
        task.table, int(context.memory_limit * _GROUP_SHARE)
    ):
        buffers: list[Any] = []
        data: Any = None
        parts = [np.zeros(0, ROW_DTYPE)]
        places = [np.zeros(0, np.uint64)]
        for position, rows, data in load(readers, first_bucket, last_bucket, frames=frames):
            ids = context.final_ids[position]
            if ids is not None:
                rows = rows.copy()
                rows["label"] = ids[rows["label"]]
            buffers.append(data)
            parts.append(rows)
            places.append(frame_offsets(rows))
        rows, offsets = np.concatenate(parts), np.concatenate(places)
        counts = [len(part) for part in parts[1:]]
        sources = np.repeat(np.arange(len(buffers), dtype=np.uint32), counts)
        permutation = order.sort(rows)
        rows = rows[permutation]
        if checks and len(rows):
            _check_neighbours(np.concatenate([last, rows]))
            last = rows[-1:].copy()
        sizes = rows["length"].astype(np.int64) + FRAME_BYTES
        begins = np.arange(records, records + len(rows))
        if cuts.unit == "bytes":
            begins = np.cumsum(sizes) - sizes + size
        inside = cuts.select(begins, task.cut)
        chosen = permutation[inside]
        yield records + inside.start, buffers, sources[chosen], offsets[chosen], rows[inside]
        records, size = records + len(rows), size + int(sizes.sum())
        del buffers, data, parts, places, rows, offsets, sources, permutation, chosen


def _check_neighbours(rows: NDArray[Any]) -> None:
    """Raise DuplicateKeyError if two sorted rows have the same hash; the key is not known here."""
    found = find_duplicate(rows)
    if found is not None:
        raise DuplicateKeyError("two examples have the same key", key=None, examples=found)


def check_unique(runs: Sequence[RunFile], memory_limit: int, part: int, parts: int) -> None:
    """Compare the hashes of all records in one of several ranges of hashes.

    It is used if records are not sorted by hash.

    Raises:
        DuplicateKeyError: If two records have the same key.
    """
    low, high = 2**64 * part // parts, 2**64 * (part + 1) // parts - 1
    chosen = [np.zeros(0, ROW_DTYPE)]
    for run in runs:
        for rows in scan_rows(run, memory_limit // _CHECK_SHARE):
            inside = (rows["high"] >= np.uint64(low)) & (rows["high"] <= np.uint64(high))
            chosen.append(rows[inside])
    joined = np.concatenate(chosen)
    _check_neighbours(joined[RecordOrder().sort(joined)])
