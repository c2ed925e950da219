"""The map stage: a task reads and encodes a piece, and writes sorted runs of its records.

A piece whose records were encoded with other features than the final ones, or are sorted otherwise,
is rewritten by a second task, after all pieces are known.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.engines.pools import Shared
from covey.errors import CoveyError, FeatureError
from covey.labels import Classes
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import Rounding
from covey.schema.infer import Inference, integer_range
from covey.schema.lattice import join_ranges
from covey.shuffle.buckets import (
    TABLE_DTYPE,
    RunFile,
    add_tables,
    finish_run,
    remove_run,
)
from covey.shuffle.external_sort import Run, Spool
from covey.shuffle.keys import Key, cut_by_bytes, make_rows
from covey.writing.columns import (
    PreparedTable,
    check_columns,
    column_keys,
    fill_columns,
    flatten,
    round_lists,
)
from covey.writing.encode import Chunk, ItemEncoder
from covey.writing.input_types import column_values
from covey.writing.inputs import Input, name_classes
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.order import RecordGroup, RecordSorter, select_records
from covey.writing.pieces import Piece
from covey.writing.runs import scan, scan_rows
from covey.writing.scratch import Attempt, Scratch

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


@dataclass(frozen=True)
class GroupRuns:
    """Sorted runs of the records of a group."""

    kind: RecordGroup
    runs: tuple[RunFile, ...]
    table: NDArray[Any]
    """Buckets of all runs."""
    longest: int
    """Bytes of the longest record."""


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


def map_piece(shared: Shared, piece: Piece) -> MapResult:
    """Read and encode a piece, and write its records as sorted runs."""
    context: MapContext = shared.get()
    with context.scratch.attempt() as attempt:
        try:
            if isinstance(piece.payload, PreparedTable):
                return _map_table(context, piece, piece.payload, attempt)
            return _map_items(context, piece, attempt)
        except CoveyError as error:
            is_shifted = error.example is not None and error.example >= piece.first
            if error.example is not None and is_shifted:
                error.example -= piece.first - piece.begin
            if error.path is None and not error.option:
                error.path = piece.path
            raise


def _task_options(options: WriteOptions) -> WriteOptions:
    return replace(options, memory_limit=max(1, options.memory_limit // _ARENA_SHARE))


def _map_items(context: MapContext, piece: Piece, attempt: Attempt) -> MapResult:
    options, schema = _task_options(context.options), context.schema
    with RecordSorter(
        attempt.directory, options, schema, class_names=context.class_names, check_keys=False
    ) as sorter:
        sorter.begin_split(piece.split)
        encoder = ItemEncoder(options, schema, sorter)
        if context.base is not None:
            encoder.begin_with(copy.deepcopy(context.base))
        inference = encoder.inference
        if piece.payload is None or isinstance(piece.payload, Input):
            encoder.encode(piece.open(context.inputs), piece.first)
            examples = encoder.position - piece.first
        else:
            assert not isinstance(piece.payload, PreparedTable)
            columns = _load_columns(piece.payload)
            examples = len(next(iter(columns.values()), ()))
            keys = piece.block_keys(examples) if options.key is None else None
            found = _encode_columns(columns, keys, context, sorter, piece.first)
            if found is None:
                values = zip(*columns.values(), strict=True)
                rows: list[Any] = [dict(zip(columns, row, strict=True)) for row in values]
                if keys is not None:
                    rows = list(zip(keys, rows, strict=True))
                encoder.encode(rows, piece.first)
            else:
                inference = found
        sorter.wait()
        groups = _finish(sorter.detach(), attempt, context.bits)
        return MapResult(
            piece.index,
            groups,
            examples,
            dict(sorter.has_keys),
            tuple(sorter.class_ids.provisional()),
            sorter.class_ids.has_strings,
            inference,
            tuple(map(tuple, sorter.skipped)),
            sorter.rounding,
        )


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


def _encode_columns(
    columns: dict[str, Any],
    keys: Sequence[Key] | None,
    context: MapContext,
    sorter: RecordSorter,
    first: int,
) -> Inference | None:
    """Encode the rows of a table; return None if they must be encoded one by one."""
    options, schema = context.options, context.schema
    if schema.features is not None or options.on_error == "skip" or not columns:
        return None
    inference = Inference(options.defaults, options.types)
    for name, column in columns.items():
        inference.add_column(tuple(name.split("/")), column)
    try:
        features = name_classes(Features(inference.kinds()), context.class_names)
        fill_columns(features, columns, len(next(iter(columns.values()))))
        rows = check_columns(features, columns)
    except FeatureError as error:
        if error.example is not None:
            error.example += first
        raise
    if options.key is not None:
        keys = column_keys(columns, options.key)
    rounding = round_lists(features, columns)
    at = 0
    while at < len(rows):
        block = rows.encode_range(at, options.chunk_bytes)
        end = at + len(block)
        positions = np.arange(first + at, first + end, dtype=np.uint64)
        own = None if keys is None else keys[at:end]
        sorter.add(Chunk(block, features, positions, own, [], rounding))
        at, rounding = end, {}
    return inference


def _map_table(
    context: MapContext, piece: Piece, table: PreparedTable, attempt: Attempt
) -> MapResult:
    """Encode rows of columns whose features and class ids are final."""
    options, features = context.options, context.schema.features
    assert features is not None
    rows = features.check_columns(table.columns)
    order, groups, has_keys = options.order, [], {}
    for number, chosen in enumerate(table.chosen):
        split = piece.split + number
        has_keys[split] = table.keys is not None
        limit = _task_options(options).memory_limit
        spool = Spool(attempt.directory, memory_limit=limit, order=order, prefix=f"{number}-")
        lengths = rows.measure()[chosen]
        for begin, end in cut_by_bytes(lengths, options.chunk_bytes):
            part = chosen[begin:end]
            block = rows.encode(part)
            keys = None if table.keys is None else [table.keys[row] for row in part.tolist()]
            positions = part.astype(np.uint64) + np.uint64(piece.first)
            found = make_rows(positions, block.lengths, keys, options.seed)
            if table.labels is not None:
                found["label"] = table.labels[part]
            spool.add(block, found)
        kind = RecordGroup(features, split, context.label, order)
        groups.append((kind, spool.detach()))
    done = _finish(groups, attempt, context.bits)
    rounding = {} if options.features is not None else round_lists(features, table.columns)
    return MapResult(piece.index, done, len(rows), has_keys, rounding=rounding)


def _finish(
    groups: Sequence[tuple[RecordGroup, list[Run]]], attempt: Attempt, bits: int
) -> tuple[GroupRuns, ...]:
    """Write the tables of runs."""
    found = []
    for kind, runs in groups:
        done = [finish_run(run, kind.order, bits) for run in runs]
        table = add_tables([np.zeros(0, TABLE_DTYPE), *(table for _, table, _ in done)])
        longest = max((longest for *_, longest in done), default=0)
        complete = tuple(attempt.publish(run) for run, *_ in done)
        found.append(GroupRuns(kind, complete, table, longest))
    return tuple(found)


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


def rewrite_group(
    shared: Shared, group: GroupRuns, final_ids: NDArray[np.int64]
) -> tuple[GroupRuns, ...]:
    """Write the records of a group with the final features, class ids, order and split."""
    context: RewriteContext = shared.get()
    options, classes = _task_options(context.options), context.classes
    order = options.order
    with context.scratch.attempt() as attempt:
        targets: dict[int, Spool] = {}
        for run in group.runs:
            for block, rows in scan(run, options.memory_limit // _SCAN_SHARE):
                block, rows = group.kind.convert(block, rows, context.inferred, classes, final_ids)
                for split, chosen in _divide(rows, group.kind.split, context.held_out):
                    if split not in targets:
                        targets[split] = Spool(
                            attempt.directory,
                            memory_limit=options.memory_limit,
                            order=order,
                            prefix=f"{split}-",
                        )
                    if len(chosen) == len(rows):
                        targets[split].add(block, rows)
                    else:
                        targets[split].add(select_records(block, chosen), rows[chosen])
        done = [
            (RecordGroup(classes.features, split, classes.label, order), spool.detach())
            for split, spool in sorted(targets.items())
        ]
        return _finish(done, attempt, context.bits)


def _divide(
    rows: NDArray[Any], split: int, held_out: NDArray[np.int64] | None
) -> Iterator[tuple[int, NDArray[np.intp]]]:
    if held_out is None:
        yield split, np.arange(len(rows))
        return
    mask = np.isin(rows["label"], held_out)
    for side in (0, 1):
        chosen = np.flatnonzero(mask == side)
        if len(chosen):
            yield side, chosen


# Queries of the main process.


def integer_ranges(group: GroupRuns, names: Sequence[str], size: int) -> dict[str, tuple[int, int]]:
    """Return the smallest and the largest integer of features in the records of a group, and 0."""
    found = dict.fromkeys(names, (0, 0))
    for run in group.runs:
        for block, _ in scan(run, size):
            for name in names:
                own = integer_range(group.kind.features, block, name)
                found[name] = join_ranges(found[name], own)
    return found


def find_labels(
    group: GroupRuns, inferred: Features, classes: Classes | None, size: int
) -> NDArray[np.int64]:
    """Return the distinct class ids of the records of a group, provisional if its rows have these.

    Args:
        group: The group.
        inferred: The features before a string label became a ClassLabel, with its default.
        classes: The final features and classes, if the rows of a group have no class ids.
        size: Bytes of records to read at once.
    """
    parts = [np.zeros(0, np.int64)]
    has_ids = classes is None or group.kind.label == classes.label
    for run in group.runs:
        if classes is None or has_ids:
            parts += [np.unique(rows["label"]) for rows in scan_rows(run, size)]
            continue
        for block, rows in scan(run, size):
            _, rows = group.kind.convert(block, rows, inferred, classes, parts[0])
            parts.append(np.unique(rows["label"]))
    return np.unique(np.concatenate(parts))


def remove_runs(runs: Sequence[RunFile]) -> None:
    """Delete runs in a directory."""
    for run in runs:
        remove_run(run)
