"""The map stage of a write: pieces are read and encoded, as sorted runs of their records.

Records that were encoded with other features than the final ones, or are sorted otherwise, are
rewritten after all pieces are known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.engines.pools import Shared
from covey.errors import CoveyError, FeatureError
from covey.labels import Classes
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import Rounding, Rows, add_rounding
from covey.schema.infer import Inference
from covey.shuffle.keys import (
    cut_by_bytes,
    make_rows,
    take_rows,
)
from covey.shuffle.runs import (
    Run,
    RunFile,
    Sorted,
    Spool,
    limit_memory,
    scan,
    sort_rows,
)
from covey.tfrecord import Block
from covey.writing.encode import Chunk, ItemEncoder
from covey.writing.input_types import column_values
from covey.writing.inputs import Input, name_classes
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.pieces import Piece
from covey.writing.scratch import Attempt, Scratch
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
    progress: Callable[[int, int], None] | None = None
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
    inference = Inference(options.defaults, options.types) if schema.features is None else None
    table: tuple[Features, Rows] | None = None
    if columns and options.on_error != "skip" and (inference is not None or options.features):
        try:
            table = _check_block(columns, rows, context, inference)
        except FeatureError as error:
            if inference is not None:
                if error.example is not None:
                    error.example += piece.first
                raise
    if table is None:  # rows may be skipped, or have the strings of other classes
        values = zip(*columns.values(), strict=True)
        items: list[Any] = [dict(zip(columns, row, strict=True)) for row in values]
        encoder.encode(items if keys is None else zip(keys, items, strict=True), piece.first)
        return encoder.inference
    features, checked = table
    if options.key is not None:
        keys = column_keys(columns, options.key)
    rounding = round_lists(features, columns) if options.features is None else {}
    at = 0
    while at < len(checked):
        block = checked.encode_range(at, options.chunk_bytes)
        end = at + len(block)
        positions = np.arange(piece.first + at, piece.first + end, dtype=np.uint64)
        own = None if keys is None else keys[at:end]
        sorter.add(Chunk(block, features, positions, own, [], rounding))
        at, rounding = end, {}
    return inference


def _check_block(
    columns: dict[str, Any], rows: int, context: MapContext, inference: Inference | None
) -> tuple[Features, Rows]:
    """Return the features of a block, inferred or declared, and its rows."""
    features = context.schema.features
    if inference is not None:
        for name, column in columns.items():
            inference.add_column(tuple(name.split("/")), column)
        features = name_classes(Features(inference.kinds()), context.class_names)
    assert features is not None
    fill_columns(features, columns, rows)
    return features, check_columns(features, columns)


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
