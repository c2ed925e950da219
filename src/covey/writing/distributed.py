"""A write by the workers of an engine, with the bytes of a write by one process.

The order of records is that of the hashes of their keys, so that it does not depend on who sorts
them::

    map       one task per piece: read, encode, hash; sorted runs, with a table of their buckets
    rewrite   only pieces with other features than the final ones, or another order
    reduce    one task per shard: the buckets of the shard from all runs, sorted, written
    commit    by the main process, as for a local write

The main process sums the tables, and determines the features, the classes and the boundaries of the
shards as a local write does. It holds no records. Every task can be repeated: its files have names
that no other attempt has. If a node is lost, the pieces whose runs it had are read again.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._progress import Progress
from covey.engines.base import Here, Outcome, Pool, Shared, run_call
from covey.engines.tasks import Task, run_tasks
from covey.errors import CoveyError, DuplicateKeyError, FeatureError, TaskError
from covey.labels import Classes, ClassIds
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.columns import NUMBERS
from covey.schema.infer import Inference, join_ranges
from covey.shuffle.buckets import (
    HASH_BITS,
    MAX_HASH_BITS,
    TABLE_DTYPE,
    RunFile,
    add_tables,
)
from covey.shuffle.keys import RecordOrder, duplicate_error
from covey.writing.columns import PreparedTable, column_keys, prepare_columns
from covey.writing.encode import ItemEncoder
from covey.writing.hold_out import check_choice, choose_classes
from covey.writing.inputs import Input, name_classes, split_item
from covey.writing.label_candidates import LabelCandidates
from covey.writing.map_stage import (
    GroupRuns,
    MapContext,
    MapResult,
    RewriteContext,
    find_labels,
    integer_ranges,
    load_columns,
    map_piece,
    remove_runs,
    rewrite_group,
)
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.order import RecordGroup, final_classes
from covey.writing.pieces import Piece, PiecePlan, file_bytes, plan_pieces, plan_tables

_BUCKET_BYTES = 16 << 20
_SCAN_SHARE = 8
_GROUP_BITS = 20


def hash_bits(size: int) -> int:
    """Return the number of bits of a bucket, for records of about ``size`` bytes.

    >>> hash_bits(0), hash_bits(1 << 40)
    (12, 16)
    """
    return min(MAX_HASH_BITS, max(HASH_BITS, (size // _BUCKET_BYTES).bit_length() - 1))


@dataclass
class _Mapped:
    """A piece that was mapped."""

    piece: Piece
    result: MapResult
    """Its runs; strings and tables are not kept."""
    ids: NDArray[np.int32]
    """Class ids of this write, by the provisional ids of the piece."""
    rewritten: dict[int, tuple[GroupRuns, ...]] = dataclasses.field(default_factory=dict)
    """Groups that were rewritten, by their position."""


@dataclass(frozen=True)
class Survey:
    """What the main process knows after the map stage."""

    inferred: Features
    """Features that fit all examples."""
    classes: Classes
    final_ids: NDArray[np.int64]
    """Final class ids by those of this write."""
    held_out: NDArray[np.int64] | None = None
    """Class ids of the second split, if classes are held out."""

    def needs_rewrite(self, kind: RecordGroup, order: RecordOrder) -> bool:
        """Return whether the records of a group must be written again."""
        return self.held_out is not None or not kind.is_final(self.classes, order)


class _Totals:
    """Sums of the tables of groups of the same kind."""

    def __init__(self) -> None:
        self._kinds: list[RecordGroup] = []
        self._tables: list[NDArray[Any]] = []
        self._longest: list[int] = []

    def add(self, group: GroupRuns) -> None:
        """Add the table of a group."""
        try:
            at = self._kinds.index(group.kind)
        except ValueError:
            at = len(self._kinds)
            self._kinds.append(group.kind)
            self._tables.append(np.zeros(0, TABLE_DTYPE))
            self._longest.append(0)
        self._tables[at] = add_tables([self._tables[at], group.table])
        self._longest[at] = max(self._longest[at], group.longest)

    def find(self, kind: RecordGroup) -> RecordGroup:
        """Return the object for all groups of a kind: class names are not held for every piece."""
        return next((each for each in self._kinds if each == kind), kind)

    def of_split(
        self, split: int, is_included: Callable[[RecordGroup], bool]
    ) -> tuple[NDArray[Any], int]:
        """Return the sum of the tables of some groups of a split, and their longest record."""
        chosen = [
            at for at, kind in enumerate(self._kinds) if kind.split == split and is_included(kind)
        ]
        tables = [self._tables[at] for at in chosen]
        longest = max((self._longest[at] for at in chosen), default=0)
        return add_tables([np.zeros(0, TABLE_DTYPE), *tables]), longest


def phase(name: str, done: int, total: int | None) -> str:
    """Return the name of a phase of the progress bar, with the number of tasks."""
    return f"{name} ({done}/{'?' if total is None else total} tasks)"


class DistributedWrite:
    """The map and rewrite stages of a write.

    Args:
        pool: The workers.
        options: Options of the write.
        schema: Features and label.
        inputs: Input of each split.
        joined: The schema of all splits.
        directory: Directory of temporary files.
        progress: Progress bar.
        pieces: Number of pieces; None to choose it.
        columns: Final features and classes, if the inputs are columns.
        bits: Bits of the hash that number a bucket (default: by the size of the files). The result
            does not depend on it.
    """

    def __init__(
        self,
        pool: Pool,
        options: WriteOptions,
        schema: WriteSchema,
        inputs: Sequence[Input],
        joined: Input,
        directory: Path,
        progress: Progress,
        *,
        pieces: int | None = None,
        columns: Classes | None = None,
        bits: int | None = None,
    ) -> None:
        self.pool = pool
        self.options = options
        self.schema = schema
        self.progress = progress
        self.files = pool.files(directory)
        self.skipped: list[list[SkippedRecord]] = [[] for _ in options.splits]
        """The skipped examples of each split."""
        self.has_keys: dict[int, bool] = {}
        """Whether the examples of a split have keys."""
        self.directory = directory
        self._inputs = inputs
        self._joined = joined
        self._pieces = pieces
        self._columns = columns
        self._bits = hash_bits(file_bytes(inputs)) if bits is None else bits
        self._total: int | None = None
        self._context: MapContext | None = None
        self._shared: Shared | None = None
        self._rewriting: Shared | None = None
        self._known: dict[int, Piece] = {}
        self._mapped: dict[int, _Mapped] = {}
        self._class_ids = ClassIds(schema.known_classes)
        self._candidates = LabelCandidates()
        self._totals = _Totals()
        self._rewritten_totals = _Totals()
        self._survey: Survey | None = None

    # Map.

    def run(self) -> Survey | None:
        """Map all pieces, and rewrite those that need it; see :meth:`finish`."""
        plan, label = self._plan()
        self._total = plan.total
        self._context = self.context(plan.shared, label)
        self._shared = self.pool.share(self._context, self.directory)
        self.progress.begin(phase("reading", 0, plan.total), self._joined.length)
        for piece, result in self._map(plan.pieces):
            self.add_result(piece, result)
            self.progress.rename(phase("reading", len(self._mapped), plan.total))
            self.progress.add(result.examples, result.bytes)
        return self.finish()

    def context(self, inputs: tuple[Input, ...] = (), label: str | None = None) -> MapContext:
        """Return what map tasks share.

        Args:
            inputs: Inputs that pieces refer to.
            label: Label feature of tables, whose class ids are final.
        """
        base = None
        if self.schema.features is None:
            base = first_inference(self._inputs, self.options, self.schema)
        return MapContext(
            self.options,
            self.schema,
            self._joined.class_names,
            base,
            inputs,
            self.files,
            self._bits,
            label,
        )

    def add_result(self, piece: Piece, result: MapResult) -> None:
        """Add the result of a piece."""
        ids = np.zeros(0, np.int32)
        if result.has_strings:
            ids = self._class_ids.ids_of(result.strings).astype(np.int32)
        self._candidates.merge(result.candidates)
        for group in result.groups:
            self._totals.add(group)
        self._known[piece.index] = piece
        self._keep(piece, result, ids)

    def _keep(self, piece: Piece, result: MapResult, ids: NDArray[np.int32]) -> None:
        """Keep the runs of a piece, without its tables and strings."""
        self.files.retain(result.node)
        empty = np.zeros(0, TABLE_DTYPE)
        groups = tuple(
            replace(group, kind=self._totals.find(group.kind), table=empty)
            for group in result.groups
        )
        self._mapped[piece.index] = _Mapped(piece, replace(result, groups=groups, strings=()), ids)

    def _plan(self) -> tuple[PiecePlan, str | None]:
        workers = self.pool.slots
        if self._joined.columns is not None and self._joined.blocks is None:
            classes, tables = prepare_columns(self._inputs, self.options, self.schema)
            # The features and class ids of columns are final.
            self.schema = self.schema.with_final(classes.features, classes.label)
            self._columns = classes
            return plan_tables(tables, workers=workers, pieces=self._pieces), classes.label
        return plan_pieces(self._inputs, workers=workers, pieces=self._pieces), None

    def _map(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, MapResult]]:
        """Yield the results of pieces; those that only this process can read are read here."""
        local: list[Piece] = []

        def tasks() -> Iterator[Task[MapResult]]:
            for piece in pieces:
                self._known[piece.index] = piece
                if piece.is_local:
                    local.append(piece)
                else:
                    yield self._map_task(piece)

        for task, result in run_tasks(self.pool, tasks(), first_error=True):
            yield self._known[task.index], result
        for piece in local:
            assert self._context is not None
            outcome: Outcome = run_call(partial(map_piece, Here(self._context), piece))
            if outcome.error is not None:
                if isinstance(outcome.error, CoveyError):
                    outcome.error.task = piece.name(self._total)
                raise outcome.error
            yield piece, outcome.result

    def _map_task(self, piece: Piece) -> Task[MapResult]:
        assert self._shared is not None
        call = partial(map_piece, self._shared, piece)
        return Task(piece.name(self._total), lambda: call, piece.index)

    # Between the stages.

    def finish(self) -> Survey | None:
        """Determine the final features and classes, and rewrite records that need it.

        Returns:
            The features and classes; None if there are no records.
        """
        ordered = [self._mapped[index] for index in sorted(self._mapped)]
        for mapped in ordered:
            for split, skipped in enumerate(mapped.result.skipped):
                self.skipped[split].extend(skipped)
        if not any(mapped.result.groups for mapped in ordered):
            return None
        self._check_keys(ordered)
        self._survey = self._make_survey(ordered)
        self._rewrite(self._survey)
        hold_out = self.options.hold_out
        if hold_out is not None and hold_out.fraction is not None:
            sizes = [int(self.total(split)[0]["records"].sum()) for split in range(2)]
            check_choice(hold_out, sizes[1], sum(sizes), "examples")
        return self._survey

    def _check_keys(self, ordered: Sequence[_Mapped]) -> None:
        known: dict[int, tuple[bool, Piece]] = {}
        for mapped in ordered:
            for split, has_keys in mapped.result.has_keys.items():
                before, piece = known.setdefault(split, (has_keys, mapped.piece))
                if before != has_keys:
                    with_keys, without = (piece, mapped.piece) if before else (mapped.piece, piece)
                    raise FeatureError(
                        f"the examples of {with_keys.name(self._total)} have keys, those of "
                        f"{without.name(self._total)} do not"
                    )
        self.has_keys = {split: has_keys for split, (has_keys, _) in known.items()}

    def _make_survey(self, ordered: Sequence[_Mapped]) -> Survey:
        if self._columns is not None:
            return Survey(self._columns.features, self._columns, np.zeros(0, np.int64))
        results = [mapped.result for mapped in ordered]
        features = name_classes(self._final_features(results), self._joined.class_names)
        encoded = [group.kind.features for result in results for group in result.groups]
        classes = final_classes(
            features, self.options, self.schema, self._class_ids, self._candidates, encoded
        )
        survey = Survey(features, classes, self._class_ids.final_ids())
        hold_out = self.options.hold_out
        if hold_out is not None and hold_out.fraction is None:
            found = choose_classes(hold_out, classes, self._find_classes(survey))
            survey = replace(survey, held_out=found)
        return survey

    def _final_features(self, results: Sequence[MapResult]) -> Features:
        """Return the features that fit the examples of all pieces, as a local write infers them."""
        if self.schema.features is not None:
            return self.schema.features
        found = [
            (result, result.inference)
            for result in results
            if result.inference is not None and not result.inference.is_empty
        ]
        merged = Inference(self.options.defaults)
        names = self._names_of_mixed_dtypes([inference for _, inference in found])
        for result, inference in found:
            own = copy.deepcopy(inference)
            if names:
                own.set_integer_ranges(self._integer_ranges(result, names))
            if not merged.is_empty:
                self._check_names(merged, own, result)
            try:
                merged.merge(own)
            except FeatureError as error:
                error.task = self._known[result.piece].name(self._total)
                raise
        return Features(merged.finish())

    def _check_names(self, merged: Inference, own: Inference, result: MapResult) -> None:
        for name in merged.names ^ own.names:
            if name not in self.options.defaults:
                has = "has it, but those before do not" if name in own.names else "lacks it"
                raise FeatureError(
                    f"an example of this piece {has}",
                    task=self._known[result.piece].name(self._total),
                    feature=name,
                    remedy="pass defaults=, or pass features=",
                )

    @staticmethod
    def _names_of_mixed_dtypes(found: Sequence[Inference]) -> list[str]:
        """Return features whose type depends on the range of their integers."""
        dtypes: dict[str, set[str | None]] = {}
        for inference in found:
            for name, dtype in inference.dtypes().items():
                dtypes.setdefault(name, set()).add(dtype)
        return [name for name, each in dtypes.items() if len(each) > 1 and each & {*NUMBERS}]

    def _integer_ranges(
        self, result: MapResult, names: Sequence[str]
    ) -> dict[str, tuple[int, int]]:
        found = dict.fromkeys(names, (0, 0))
        ranges = self._ask(result.piece, partial(integer_ranges, names=tuple(names)))
        for own in ranges:
            for name in names:
                found[name] = join_ranges(found[name], own[name])
        return found

    def _ask(self, index: int, function: Callable[..., Any]) -> list[Any]:
        """Return the results of a function for each group of a piece, which workers call."""

        def make(position: int) -> Callable[[], Any]:
            group = self._mapped[index].result.groups[position]
            size = self.options.memory_limit // _SCAN_SHARE
            return partial(function, group, files=self.files, size=size)

        name = self._known[index].name(self._total)
        tasks = [
            Task(name, partial(make, position), position)
            for position in range(len(self._mapped[index].result.groups))
        ]
        results = run_tasks(self.pool, tasks, recover=self.recover)
        return [each for _, each in sorted((task.index, result) for task, result in results)]

    def _find_classes(self, survey: Survey) -> NDArray[np.int64]:
        """Return the class ids of all records, each of them once."""
        parts = [np.zeros(0, np.int64)]
        for index in sorted(self._mapped):
            found = self._ask(index, find_labels)
            mapped = self._mapped[index]
            for group, ids in zip(mapped.result.groups, found, strict=True):
                if group.kind.label == survey.classes.label:
                    is_string = group.kind.has_provisional_ids
                    parts.append(survey.final_ids[mapped.ids[ids]] if is_string else ids)
        return np.unique(np.concatenate(parts))

    # Rewrite.

    def _rewrite(self, survey: Survey) -> None:
        context = RewriteContext(
            self.options, survey.inferred, survey.classes, survey.held_out, self.files, self._bits
        )
        self._rewriting = self.pool.share(context, self.directory)
        tasks = [task for index in sorted(self._mapped) for task in self._rewrite_tasks(index)]
        if not tasks:
            return
        total = sum(mapped.result.records for mapped in self._mapped.values())
        self.progress.begin(phase("encoding", 0, len(tasks)), total)
        results = run_tasks(self.pool, tasks, recover=self.recover)
        for done, (task, groups) in enumerate(results, 1):
            for group in groups:
                self._rewritten_totals.add(group)
            self._keep_rewritten(task, groups)
            self.progress.rename(phase("encoding", done, len(tasks)))
            runs = [run for group in groups for run in group.runs]
            self.progress.add(sum(run.records for run in runs), sum(run.bytes for run in runs))

    def _rewrite_tasks(self, index: int) -> list[Task[tuple[GroupRuns, ...]]]:
        """Return the tasks that rewrite groups of a piece."""
        assert self._survey is not None
        return [
            Task(
                self._known[index].name(self._total),
                partial(self._make_rewrite, index, position),
                index << _GROUP_BITS | position,
            )
            for position, group in enumerate(self._mapped[index].result.groups)
            if self._survey.needs_rewrite(group.kind, self.options.order)
        ]

    def _make_rewrite(self, index: int, position: int) -> Callable[[], tuple[GroupRuns, ...]]:
        assert self._rewriting is not None
        assert self._survey is not None
        mapped = self._mapped[index]
        final_ids = self._survey.final_ids[mapped.ids]
        return partial(rewrite_group, self._rewriting, mapped.result.groups[position], final_ids)

    def _keep_rewritten(self, task: Task[Any], groups: tuple[GroupRuns, ...]) -> None:
        index, position = task.index >> _GROUP_BITS, task.index & (1 << _GROUP_BITS) - 1
        mapped, empty = self._mapped[index], np.zeros(0, TABLE_DTYPE)
        for run in _runs(groups):
            self.files.retain(run.node)
        mapped.rewritten[position] = tuple(
            replace(group, kind=self._rewritten_totals.find(group.kind), table=empty)
            for group in groups
        )
        # Runs on other nodes are removed at the end. Those of parts are kept until the commit.
        if self._shared is not None:
            own = self.files.node()
            remove_runs([run for run in mapped.result.groups[position].runs if run.node == own])

    # Lost nodes.

    def recover(self, nodes: tuple[str, ...]) -> None:
        """Map the pieces again whose runs were on lost nodes; the results are the same.

        Raises:
            TaskError: If a piece cannot be read again.
        """
        pieces = {}
        for index, mapped in self._mapped.items():
            final = (
                groups if (groups := mapped.rewritten.get(position)) is not None else (group,)
                for position, group in enumerate(mapped.result.groups)
            )
            if any(run.node in nodes for groups in final for run in _runs(groups)):
                pieces[index] = mapped
        if self._shared is None and pieces:
            raise TaskError(
                "its records are lost with their node, and cannot be read again",
                task=self._known[min(pieces)].name(self._total),
                remedy="write again",
            )
        for piece, result in self._map([mapped.piece for mapped in pieces.values()]):
            before = pieces[piece.index]
            self._keep(piece, result, before.ids)
            if before.rewritten:
                tasks = self._rewrite_tasks(piece.index)
                for task, groups in run_tasks(self.pool, tasks, recover=self.recover):
                    self._keep_rewritten(task, groups)

    # Records of a split.

    def runs(self, split: int) -> Iterator[tuple[RunFile, NDArray[np.int64] | None]]:
        """Yield the final runs of a split, and final class ids if those of its rows are not."""
        assert self._survey is not None
        for index in sorted(self._mapped):
            mapped = self._mapped[index]
            for position, group in enumerate(mapped.result.groups):
                rewritten = mapped.rewritten.get(position)
                if rewritten is not None:
                    own = (each for each in rewritten if each.kind.split == split)
                    yield from ((run, None) for run in _runs(own))
                elif group.kind.split == split:
                    ids = None
                    if group.kind.has_provisional_ids:
                        ids = self._survey.final_ids[mapped.ids]
                    yield from ((run, ids) for run in group.runs)

    def total(self, split: int) -> tuple[NDArray[Any], int]:
        """Return the buckets of the final runs of a split, and the longest record."""
        survey, order = self._survey, self.options.order
        assert survey is not None
        kept, longest = self._totals.of_split(
            split, lambda kind: not survey.needs_rewrite(kind, order)
        )
        new, longest_new = self._rewritten_totals.of_split(split, lambda kind: True)
        return add_tables([kept, new]), max(longest, longest_new)

    def duplicate_error(self, error: DuplicateKeyError, split: int) -> CoveyError:
        """Return the error for two examples of a split with the same key, with their pieces."""
        found = [self._find_example(position, split) for position in error.examples]
        places = [each for each in found if each is not None]
        if len(places) < 2:
            return error
        (first, a), (second, b) = places
        key = self._find_key(first, a)
        is_one = first.path == second.path
        names = [first.name(self._total), second.name(self._total)]
        where = f"{names[0]} and {names[1]}" if first is not second else names[0]
        paths = "" if is_one else f" ({first.path} and {second.path})"
        named = duplicate_error((a, b), key)
        named.task = f"{where}{paths}"
        named.path = first.path if is_one else None
        return named

    def _find_example(self, position: int, split: int) -> tuple[Piece, int] | None:
        """Return the piece of an example, and its position in its source."""
        is_divided = self.options.hold_out is not None
        for index in sorted(self._mapped):
            piece, result = self._mapped[index].piece, self._mapped[index].result
            is_own = is_divided or piece.split == split
            if is_own and piece.first <= position < piece.first + result.examples:
                return piece, position - piece.first + piece.begin
        return None

    def _find_key(self, piece: Piece, example: int) -> Any:
        """Return the key of an example, which is read again; None if that is not possible."""
        if piece.is_local or self._shared is None:
            return None
        call = partial(find_key, self._shared, piece, example - piece.begin)
        ((_, key),) = run_tasks(self.pool, [Task("key", lambda: call)])
        return key


def first_inference(
    inputs: Sequence[Input], options: WriteOptions, schema: WriteSchema
) -> Inference | None:
    """Return the features of the first valid example, with which all pieces begin.

    A local write takes the names of the features from it.
    """
    part = inputs[0].parts[0]
    if not part.is_repeatable:
        return None
    encoder = ItemEncoder(options, schema, _NullSink())
    for item in part.read():
        try:
            encoder.encode([item])
        except CoveyError:  # the map task reports it
            return None
        if encoder.inference is not None and not encoder.inference.is_empty:
            return encoder.inference
    return None


def find_key(shared: Shared, piece: Piece, offset: int) -> Any:
    """Return the key of an example of a piece; None if it has none."""
    context: MapContext = shared.get()
    options, payload = context.options, piece.payload
    if isinstance(payload, PreparedTable):
        return None if payload.keys is None else payload.keys[offset]
    if payload is not None and not isinstance(payload, Input):
        key = options.key
        return None if key is None else column_keys(load_columns(payload), key)[offset]
    for position, item in enumerate(piece.open(context.inputs)):
        if position == offset:
            return split_item(item, options)[1]
    return None


def _runs(groups: Iterable[GroupRuns]) -> Iterator[RunFile]:
    for group in groups:
        yield from group.runs


class _NullSink:
    """Receiver that drops chunks."""

    def add(self, chunk: Any) -> None:
        return

    def integer_range(self, name: str) -> tuple[int, int]:
        return 0, 0
