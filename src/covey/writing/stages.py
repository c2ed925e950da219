"""The stages of a write, as a worker or this process runs them.

The map stage reads and encodes a piece, as sorted runs of its records. Records that were encoded
with other features than the final ones, or are sorted otherwise, are rewritten after all pieces are
known. The reduce stage reads the buckets of one shard from all runs, and writes the shard.
"""

from __future__ import annotations

import copy
import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey._files import sync
from covey._threads import ordered_map
from covey.engines.pools import Shared
from covey.errors import CoveyError, FeatureError
from covey.index.format import Shard, fingerprint, row_dtype
from covey.index.write import make_index_rows
from covey.labels import Classes
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import Rounding, add_rounding
from covey.schema.images import ImageSummary, ImageSurvey
from covey.schema.infer import Inference, integer_range
from covey.schema.lattice import join_ranges
from covey.shuffle.keys import (
    ROW_DTYPE,
    RecordOrder,
    cut_by_bytes,
    duplicate_error,
    find_duplicate,
    join_rows,
    make_rows,
    take_rows,
)
from covey.shuffle.runs import (
    MIN_READ_BYTES,
    Records,
    Run,
    RunFile,
    Sorted,
    Spool,
    bucket_groups,
    join_records,
    key_of,
    limit_memory,
    scan,
    scan_rows,
    sort_rows,
)
from covey.storage import open_storage
from covey.tfrecord import Block, RecordWriter
from covey.tfrecord.block import FRAME_BYTES
from covey.writing.encode import Chunk, ItemEncoder
from covey.writing.input_types import column_values
from covey.writing.inputs import Input, name_classes
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.pieces import Piece
from covey.writing.scratch import Attempt, Scratch, local_copy
from covey.writing.sort import RecordGroup, RecordSorter, select_records
from covey.writing.tables import (
    PreparedTable,
    check_columns,
    column_keys,
    fill_columns,
    flatten,
    round_lists,
)

# The records of a task are held once in memory; another share is for the examples and for sorting.
_ARENA_SHARE = 3
_SCAN_SHARE = 8
# Share of the memory limit of buckets that are read together. They are held as they were read; the
# rest is for sorting their rows, and for the buffers of the writer. Threads copy the records of a
# group while the next one is read.
_GROUP_SHARE = 0.6
_CHECK_SHARE = 4
_SYNC_THREADS = 4


def _ignore_progress(records: int, size: int) -> None:
    """Ignore the progress of a task of another process."""


# Mapping.


@dataclass(frozen=True)
class MapContext:
    """What all map tasks of a write share."""

    options: WriteOptions
    schema: WriteSchema
    class_names: Mapping[str, tuple[str, ...]] | None
    base: Inference | None
    """Features of the first example, which determines the names of the features."""
    inputs: tuple[Input, ...]
    scratch: Scratch
    bits: int
    """Bits of the hash that number a bucket."""
    label: str | None = None
    """Label feature of tables, whose class ids are final."""
    in_memory: bool = False
    """Whether runs that fit the memory limit remain in memory, for this process."""
    progress: Callable[[int, int], None] = _ignore_progress
    """Called with the number of records and bytes that were encoded."""

    @property
    def task_options(self) -> WriteOptions:
        """The options of a task, with the memory limit of its records."""
        return self.options if self.in_memory else task_options(self.options)


def task_options(options: WriteOptions) -> WriteOptions:
    """Return options with the memory limit of the records of a task."""
    return replace(options, memory_limit=max(1, options.memory_limit // _ARENA_SHARE))


@dataclass(frozen=True)
class GroupRuns:
    """Sorted runs of the records of a group."""

    kind: RecordGroup
    runs: tuple[Run, ...]
    table: NDArray[Any]
    """Buckets of all runs."""
    longest: int
    """Bytes of the longest record."""
    labels: tuple[int, ...] = ()
    """Distinct class ids of the rows, if classes are held out."""


@dataclass(frozen=True)
class MapResult:
    """Result of a map task."""

    piece: int
    groups: tuple[GroupRuns, ...]
    examples: int
    """Number of examples that were read."""
    has_keys: Mapping[int, bool]
    """Whether the examples of a split have keys."""
    strings: tuple[str, ...] = ()
    """Strings of the label, by provisional class id."""
    has_strings: bool = False
    inference: Inference | None = None
    skipped: tuple[tuple[SkippedRecord, ...], ...] = ()
    """The skipped examples of each split."""
    rounding: Rounding = field(default_factory=dict)
    """Numbers in lists of Python floats that were rounded."""

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(run.records for group in self.groups for run in group.runs)

    @property
    def bytes(self) -> int:
        """Bytes of all records, in their frames."""
        return sum(run.bytes for group in self.groups for run in group.runs)


def map_piece(shared: Shared, *pieces: Piece) -> MapResult:
    """Read and encode consecutive pieces, as sorted runs of their records."""
    context: MapContext = shared.get()
    options = context.task_options
    with (
        context.scratch.attempt() as attempt,
        RecordSorter(
            attempt.directory,
            options,
            context.schema,
            class_names=context.class_names,
            bits=context.bits,
            progress=context.progress,
        ) as sorter,
    ):
        encoder = ItemEncoder(options, context.schema, sorter)
        if context.base is not None:
            encoder.begin_with(copy.deepcopy(context.base))
        examples, inference = 0, encoder.inference
        groups: list[tuple[RecordGroup, Sorted, Iterable[int]]] = []
        rounding: list[Rounding] = []
        has_keys: dict[int, bool] = {}
        for piece in pieces:
            with _located(piece):
                sorter.begin_split(piece.split)
                if isinstance(piece.payload, PreparedTable):
                    rounding.append(_map_table(context, piece, piece.payload, attempt, groups))
                    has_keys |= dict.fromkeys(
                        range(piece.split, piece.split + len(piece.payload.chosen)),
                        piece.payload.keys is not None,
                    )
                    examples += len(piece.payload)
                elif piece.payload is None or isinstance(piece.payload, Input):
                    encoder.encode(piece.open(context.inputs), piece.first)
                    examples += encoder.position - piece.first
                else:
                    columns = _load_columns(piece.payload)
                    examples += len(next(iter(columns.values()), ()))
                    inference = _map_block(columns, piece, context, sorter, encoder)
                sorter.wait()
        groups += sorter.finish(in_memory=context.in_memory)
        return MapResult(
            pieces[0].index,
            tuple(_group_runs(attempt, *group) for group in groups),
            examples,
            has_keys | sorter.has_keys,
            tuple(sorter.class_ids.provisional()),
            sorter.class_ids.has_strings,
            inference,
            tuple(map(tuple, sorter.skipped)),
            add_rounding([sorter.rounding, *rounding]),
        )


@contextmanager
def _located(piece: Piece) -> Iterator[None]:
    """Name the source in errors of a piece, and count examples from its beginning."""
    try:
        yield
    except CoveyError as error:
        if error.example is not None and error.example >= piece.first:
            error.example -= piece.first - piece.begin
        if error.path is None and not error.option:
            error.path = piece.path
        raise


def _group_runs(
    attempt: Attempt, kind: RecordGroup, found: Sorted, labels: Iterable[int]
) -> GroupRuns:
    """Return the runs of a group as other tasks find them."""
    runs = tuple(attempt.publish(run) if isinstance(run, RunFile) else run for run in found.runs)
    return GroupRuns(kind, runs, found.table, found.longest, tuple(sorted(labels)))


def _load_columns(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a block, nested ones by path."""
    return flatten(
        {
            name: _plain(column if isinstance(column, np.ndarray) else column_values(column))
            for name, column in block.items()
        }
    )


def _plain(column: Any) -> Any:
    """Return an array of objects as a list."""
    is_object = isinstance(column, np.ndarray) and column.dtype == object
    return list(column) if is_object else column


def _map_block(
    columns: dict[str, Any],
    piece: Piece,
    context: MapContext,
    sorter: RecordSorter,
    encoder: ItemEncoder,
) -> Inference | None:
    """Encode the rows of a block of columns; return their features if these are inferred."""
    options, schema, rows = context.options, context.schema, len(next(iter(columns.values()), ()))
    keys = piece.block_keys(rows) if options.key is None else None
    if schema.features is not None or options.on_error == "skip" or not columns:
        values = zip(*columns.values(), strict=True)
        items: list[Any] = [dict(zip(columns, row, strict=True)) for row in values]
        encoder.encode(items if keys is None else zip(keys, items, strict=True), piece.first)
        return encoder.inference
    inference = Inference(options.defaults, options.types)
    for name, column in columns.items():
        inference.add_column(tuple(name.split("/")), column)
    try:
        features = name_classes(Features(inference.kinds()), context.class_names)
        fill_columns(features, columns, rows)
        checked = check_columns(features, columns)
    except FeatureError as error:
        if error.example is not None:
            error.example += piece.first
        raise
    if options.key is not None:
        keys = column_keys(columns, options.key)
    rounding = round_lists(features, columns)
    at = 0
    while at < len(checked):
        block = checked.encode_range(at, options.chunk_bytes)
        end = at + len(block)
        positions = np.arange(piece.first + at, piece.first + end, dtype=np.uint64)
        own = None if keys is None else keys[at:end]
        sorter.add(Chunk(block, features, positions, own, [], rounding))
        at, rounding = end, {}
    return inference


def _map_table(
    context: MapContext,
    piece: Piece,
    table: PreparedTable,
    attempt: Attempt,
    groups: list[tuple[RecordGroup, Sorted, Iterable[int]]],
) -> Rounding:
    """Sort the rows of columns whose features and class ids are final; return what was rounded."""
    options, features = context.task_options, context.schema.features
    assert features is not None
    checked = table.rows or features.check_columns(table.columns)
    lengths, bits = checked.measure(), context.bits
    for number, chosen in enumerate(table.chosen):
        split = piece.split + number
        keys = None if table.keys is None else [table.keys[row] for row in chosen.tolist()]
        positions = chosen.astype(np.uint64) + np.uint64(piece.first)
        rows = make_rows(positions, lengths[chosen], keys, options.seed)
        if table.labels is not None:
            rows["label"] = table.labels[chosen]
        if context.in_memory:
            run = sort_rows(rows, options.order, bits, checked.encode)
            found = Sorted((run,) if len(rows) else (), run.table, run.longest)
        else:
            spool = Spool(
                attempt.directory,
                memory_limit=options.memory_limit,
                order=options.order,
                bits=bits,
                prefix=f"{split}-",
            )
            for begin, end in cut_by_bytes(lengths[chosen], options.chunk_bytes):
                spool.add(checked.encode(chosen[begin:end]), rows[begin:end])
            found = spool.finish()
        groups.append((RecordGroup(features, split, context.label, options.order), found, ()))
    return {} if options.features is not None else round_lists(features, table.columns)


# Rewriting.


@dataclass(frozen=True)
class RewriteContext:
    """What all rewriting tasks of a write share."""

    options: WriteOptions
    inferred: Features
    """Features that fit all examples, before a string label became a ClassLabel."""
    classes: Classes
    held_out: NDArray[np.int64] | None
    """Class ids to be moved to the second split."""
    scratch: Scratch
    bits: int
    in_memory: bool


def rewrite_groups(
    shared: Shared, *groups: tuple[GroupRuns, NDArray[np.int64] | None]
) -> tuple[GroupRuns, ...]:
    """Write the records of groups with the final features, class ids, order and split.

    Args:
        shared: The :class:`RewriteContext`.
        groups: The groups, and the final class ids by those of their rows; None if these are final.
    """
    context: RewriteContext = shared.get()
    options, classes = context.options, context.classes
    targets: dict[int, Spool] = {}
    labels: dict[int, set[int]] = {}
    with context.scratch.attempt() as attempt:
        for split, block, rows in _converted(context, groups):
            if split not in targets:
                targets[split] = Spool(
                    attempt.directory,
                    memory_limit=options.memory_limit,
                    order=options.order,
                    bits=context.bits,
                    prefix=f"{split}-",
                )
                labels[split] = set()
            if options.holds_out_classes:
                labels[split].update(np.unique(rows["label"]).tolist())
            targets[split].add(block, rows)
            limit_memory(targets.values(), options.memory_limit)
        return tuple(
            _group_runs(
                attempt,
                RecordGroup(classes.features, split, classes.label, options.order),
                spool.finish(in_memory=context.in_memory),
                labels[split],
            )
            for split, spool in sorted(targets.items())
        )


def _converted(
    context: RewriteContext, groups: Iterable[tuple[GroupRuns, NDArray[np.int64] | None]]
) -> Iterator[tuple[int, Block, NDArray[Any]]]:
    """Yield the split, the records and the rows of groups, converted."""
    for group, final_ids in groups:
        kind = group.kind
        for run in group.runs:
            for block, rows in scan(run, context.options.memory_limit // _SCAN_SHARE):
                block, rows = kind.convert(
                    block, rows, context.inferred, context.classes, final_ids
                )
                if context.held_out is None:
                    yield kind.split, block, rows
                    continue
                mask = np.isin(rows["label"], context.held_out)
                for side in (0, 1):
                    chosen = np.flatnonzero(mask == side)
                    if len(chosen):
                        yield side, select_records(block, chosen), take_rows(rows, chosen)


def integer_ranges(group: GroupRuns, names: Sequence[str], size: int) -> dict[str, tuple[int, int]]:
    """Return the smallest and the largest integer of features in the records of a group, and 0."""
    found = dict.fromkeys(names, (0, 0))
    for run in group.runs:
        for block, _ in scan(run, size):
            for name in names:
                own = integer_range(group.kind.features, block, name)
                found[name] = join_ranges(found[name], own)
    return found


# Reducing.


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
    progress: Callable[[int, int], None] = _ignore_progress,
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
    progress: Callable[[int, int], None],
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
    progress: Callable[[int, int], None],
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
