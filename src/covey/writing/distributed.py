"""A write by the workers of an engine, with the bytes of a write by one process.

The order of records is that of the hashes of their keys, so that it does not depend on the process
that sorts them::

    map       one task per piece: read, encode, hash; sorted runs, with a table of their buckets
    rewrite   only pieces with other features than the final ones, or another order
    reduce    one task per shard: the buckets of the shard from all runs, sorted, written
    commit    by the main process, as for a local write

The main process sums the tables, and determines the features, the classes and the boundaries of the
shards as a local write does. It holds no records. Every task can be repeated: its files have names
that no other attempt has, in a directory or at a URL that all workers share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._progress import Progress
from covey.engines.pools import Here, Pool, Shared
from covey.engines.tasks import Outcome, Task, run_call, run_tasks
from covey.errors import CoveyError
from covey.labels import Classes, ClassIds
from covey.results import SkippedRecord
from covey.schema.codec import Rounding, add_rounding
from covey.shuffle.buckets import TABLE_DTYPE, RunFile, add_tables, hash_bits
from covey.writing.columns import prepare_columns
from covey.writing.hold_out import check_choice, choose_classes
from covey.writing.inputs import Input, name_classes
from covey.writing.map_stage import (
    GroupRuns,
    MapContext,
    MapResult,
    RewriteContext,
    map_piece,
    remove_runs,
    rewrite_group,
)
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.order import final_classes
from covey.writing.pieces import Piece, PiecePlan, file_bytes, plan_pieces, plan_tables
from covey.writing.scratch import Scratch
from covey.writing.survey import (
    BucketTotals,
    MappedPiece,
    Survey,
    find_classes,
    first_inference,
    merge_features,
    merge_keys,
)

_SCAN_SHARE = 8
_GROUP_BITS = 20


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
        scratch: Where tasks write runs (default: the directory).
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
        scratch: Scratch | None = None,
        pieces: int | None = None,
        columns: Classes | None = None,
        bits: int | None = None,
    ) -> None:
        self.pool = pool
        self.options = options
        self.schema = schema
        self.progress = progress
        self.scratch = Scratch(str(directory)) if scratch is None else scratch
        self.skipped: list[list[SkippedRecord]] = [[] for _ in options.splits]
        """The skipped examples of each split."""
        self.has_keys: dict[int, bool] = {}
        """Whether the examples of a split have keys."""
        self.rounding: Rounding = {}
        """Numbers in lists of Python floats that were rounded."""
        self.directory = directory
        self._inputs = inputs
        self._joined = joined
        self._pieces = pieces
        self._columns = columns
        self._bits = hash_bits(file_bytes(inputs)) if bits is None else bits
        self._total: int | None = None
        self._context: MapContext | None = None
        self._shared: Shared | None = None
        self._mapped: dict[int, MappedPiece] = {}
        self._class_ids = ClassIds(schema.known_classes)
        self._totals = BucketTotals()
        self._rewritten_totals = BucketTotals()
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
            self.scratch,
            self._bits,
            label,
        )

    def add_result(self, piece: Piece, result: MapResult) -> None:
        """Add the result of a piece."""
        ids = np.zeros(0, np.int32)
        if result.has_strings:
            ids = self._class_ids.ids_of(result.strings).astype(np.int32)
        self.rounding = add_rounding([self.rounding, result.rounding])
        for group in result.groups:
            self._totals.add(group)
        self._keep(piece, result, ids)

    def _keep(self, piece: Piece, result: MapResult, ids: NDArray[np.int32]) -> None:
        """Keep the runs of a piece, without its tables and strings."""
        empty = np.zeros(0, TABLE_DTYPE)
        groups = tuple(
            replace(group, kind=self._totals.find(group.kind), table=empty)
            for group in result.groups
        )
        kept = replace(result, groups=groups, strings=())
        self._mapped[piece.index] = MappedPiece(piece, piece.name(self._total), kept, ids)

    def _plan(self) -> tuple[PiecePlan, str | None]:
        workers = self.pool.slots
        if self._joined.columns is not None:
            classes, tables = prepare_columns(self._inputs, self.options, self.schema)
            # The features and class ids of columns are final.
            self.schema = self.schema.with_final(classes.features, classes.label)
            self._columns = classes
            return plan_tables(tables, workers=workers, pieces=self._pieces), classes.label
        return plan_pieces(self._inputs, workers=workers, pieces=self._pieces), None

    def _map(self, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, MapResult]]:
        """Yield the results of pieces; those that only this process can read are read here."""
        remote: dict[int, Piece] = {}
        local: list[Piece] = []

        def tasks() -> Iterator[Task[MapResult]]:
            for piece in pieces:
                if piece.is_local:
                    local.append(piece)
                else:
                    remote[piece.index] = piece
                    yield self._map_task(piece)

        for task, result in run_tasks(self.pool, tasks(), first_error=True):
            yield remote.pop(task.index), result
        for piece in local:
            assert self._context is not None
            outcome: Outcome = run_call(map_piece, Here(self._context), piece)
            if outcome.error is not None:
                if isinstance(outcome.error, CoveyError):
                    outcome.error.task = piece.name(self._total)
                raise outcome.error
            yield piece, outcome.result

    def _map_task(self, piece: Piece) -> Task[MapResult]:
        assert self._shared is not None
        return Task(piece.name(self._total), map_piece, (self._shared, piece), piece.index)

    # Between the stages.

    def finish(self) -> Survey | None:
        """Determine the final features and classes, and rewrite records that need it.

        Returns:
            The features and classes; None if there are no records.
        """
        pieces = self._in_order()
        for mapped in pieces:
            for split, skipped in enumerate(mapped.result.skipped):
                self.skipped[split].extend(skipped)
        if not any(mapped.result.groups for mapped in pieces):
            return None
        self.has_keys = merge_keys(pieces)
        if self.options.is_divided:
            self.has_keys = dict.fromkeys(range(len(self.options.splits)), self.has_keys[0])
        self._survey = self._make_survey(pieces)
        self._rewrite(self._survey)
        hold_out = self.options.hold_out
        if hold_out is not None and hold_out.fraction is not None:
            sizes = [int(self.total(split)[0]["records"].sum()) for split in range(2)]
            check_choice(hold_out, sizes[1], sum(sizes), "examples")
        return self._survey

    def _in_order(self) -> list[MappedPiece]:
        return [self._mapped[index] for index in sorted(self._mapped)]

    def _make_survey(self, pieces: Sequence[MappedPiece]) -> Survey:
        if self._columns is not None:
            return Survey(self._columns.features, self._columns, np.zeros(0, np.int64))
        features = self.schema.features
        if features is None:
            features = merge_features(pieces, self.options, self._query)
        features = name_classes(features, self._joined.class_names)
        encoded = [group.kind.features for mapped in pieces for group in mapped.result.groups]
        classes = final_classes(features, self.options, self.schema, self._class_ids, encoded)
        survey = Survey(features, classes, self._class_ids.final_ids())
        hold_out = self.options.hold_out
        if hold_out is not None and hold_out.fraction is None:
            found = choose_classes(hold_out, classes, find_classes(pieces, survey, self._query))
            survey = replace(survey, held_out=found)
        return survey

    def _query(
        self, mapped: MappedPiece, function: Callable[..., Any], *arguments: Any
    ) -> list[Any]:
        """Return the results of a function for each group of a piece, which workers call."""
        size = self.options.memory_limit // _SCAN_SHARE
        tasks = [
            Task(mapped.name, function, (group, *arguments, size), position)
            for position, group in enumerate(mapped.result.groups)
        ]
        results = run_tasks(self.pool, tasks)
        return [each for _, each in sorted((task.index, result) for task, result in results)]

    # Rewrite.

    def _rewrite(self, survey: Survey) -> None:
        context = RewriteContext(
            self.options, survey.inferred, survey.classes, survey.held_out, self.scratch, self._bits
        )
        shared = self.pool.share(context, self.directory)
        tasks = list(self._rewrite_tasks(survey, shared))
        if not tasks:
            return
        total = sum(mapped.result.records for mapped in self._mapped.values())
        self.progress.begin(phase("encoding", 0, len(tasks)), total)
        results = run_tasks(self.pool, tasks)
        for done, (task, groups) in enumerate(results, 1):
            for group in groups:
                self._rewritten_totals.add(group)
            self._keep_rewritten(task, groups)
            self.progress.rename(phase("encoding", done, len(tasks)))
            runs = [run for group in groups for run in group.runs]
            self.progress.add(sum(run.records for run in runs), sum(run.bytes for run in runs))

    def _rewrite_tasks(self, survey: Survey, shared: Shared) -> Iterator[Task[Any]]:
        """Yield the tasks that rewrite groups."""
        for index, mapped in sorted(self._mapped.items()):
            final_ids = survey.final_ids[mapped.ids]
            for position, group in enumerate(mapped.result.groups):
                if survey.needs_rewrite(group.kind, self.options.order):
                    number = index << _GROUP_BITS | position
                    yield Task(mapped.name, rewrite_group, (shared, group, final_ids), number)

    def _keep_rewritten(self, task: Task[Any], groups: tuple[GroupRuns, ...]) -> None:
        index, position = task.index >> _GROUP_BITS, task.index & (1 << _GROUP_BITS) - 1
        mapped, empty = self._mapped[index], np.zeros(0, TABLE_DTYPE)
        mapped.rewritten[position] = tuple(
            replace(group, kind=self._rewritten_totals.find(group.kind), table=empty)
            for group in groups
        )
        # Runs at a URL are removed at the end. Those of parts are kept until the commit.
        if self._shared is not None and not self.scratch.is_url:
            remove_runs(mapped.result.groups[position].runs)

    # Records of a split.

    def runs(self, split: int) -> Iterator[tuple[RunFile, NDArray[np.int64] | None]]:
        """Yield the final runs of a split, and final class ids if those of its rows are not."""
        assert self._survey is not None
        for mapped in self._in_order():
            for group, is_provisional in mapped.final_groups():
                if group.kind.split == split:
                    ids = self._survey.final_ids[mapped.ids] if is_provisional else None
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

    # Examples with equal keys.

    def find_piece(self, position: int, split: int) -> MappedPiece | None:
        """Return the piece of an example of a split."""
        for mapped in self._in_order():
            piece, examples = mapped.piece, mapped.result.examples
            is_own = self.options.is_divided or piece.split == split
            if is_own and piece.first <= position < piece.first + examples:
                return mapped
        return None
