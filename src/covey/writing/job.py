"""A write: its stages, in this process or by the workers of an engine, with the same bytes.

The order of records is the order of the hashes of their keys. It does not depend on the process
that sorts them::

    map       one task per piece: read, encode, hash; sorted runs, with a table of their buckets
    rewrite   only records with other features than the final ones, or another order
    reduce    one task per shard: the buckets of the shard from all runs, sorted, written
    commit    by the main process

The main process sums the tables, and determines the features, the classes and the boundaries of the
shards. It holds no records of workers. Every task can be repeated: its files have names that no
other attempt has, in a directory or at a URL that all workers share. Without an engine, one task
maps the whole source, and its records stay in memory if they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey._progress import Progress
from covey.engines.pools import Here, Pool, Shared, ThisProcess
from covey.engines.tasks import Outcome, Task, run_call, run_tasks
from covey.errors import CoveyError, DuplicateKeyError, FormatError
from covey.labels import Classes, ClassIds
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import Rounding, add_rounding
from covey.shuffle.runs import TABLE_DTYPE, Run, RunFile, hash_bits
from covey.tfrecord.block import FRAME_BYTES
from covey.writing.hold_out import check_choice, choose_classes
from covey.writing.inputs import Input, name_classes
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.pieces import (
    Piece,
    PiecePlan,
    file_bytes,
    plan_pieces,
    plan_tables,
    undivided,
)
from covey.writing.plan import (
    BucketTotals,
    MappedPiece,
    Survey,
    first_inference,
    merge_features,
    merge_keys,
    plan_cuts,
    plan_shards,
)
from covey.writing.scratch import Scratch
from covey.writing.shards import (
    ReduceContext,
    ShardFormat,
    ShardResult,
    ShardTarget,
    ShardTask,
    check_unique,
    has_records,
    write_shard,
    write_shards,
)
from covey.writing.sort import RecordGroup, final_classes
from covey.writing.stages import (
    GroupRuns,
    MapContext,
    MapResult,
    RewriteContext,
    map_piece,
    rewrite_groups,
    task_options,
)
from covey.writing.tables import prepare_columns

_UNIQUE_BYTES_PER_RECORD = 200
_MIN_UNIQUE_BYTES = 1 << 22


def phase(name: str, done: int, total: int | None) -> str:
    """Return the name of a phase of the progress bar, with the number of tasks."""
    return f"{name} ({done}/{'?' if total is None else total} tasks)"


class OrderedRecords(Protocol):
    """Sorted records of a split."""

    uploads: bool
    """Whether workers write the shards of a URL there."""

    @property
    def records(self) -> int:
        """Number of records."""
        ...

    def write_shards(
        self,
        target: Callable[[int], ShardTarget],
        *,
        first: int,
        compression: str | None,
        progress: Progress,
    ) -> Iterator[ShardResult]:
        """Write the shards, and yield them in any order.

        Args:
            target: Function of the number of shards that returns where they are written.
            first: Number of the first shard in the index.
            compression: Compression, as for :class:`covey.RecordWriter`.
            progress: Progress bar.
        """
        ...


@dataclass(frozen=True)
class RecordsToWrite:
    """Records of a write; each split is sorted when its records are read."""

    features: Features
    classes: Classes
    splits: Sequence[OrderedRecords]
    """Records of each split."""
    rounding: Rounding = field(default_factory=dict)
    """Numbers in lists of Python floats that were rounded, if the features are inferred."""


@dataclass(frozen=True)
class _GroupOfTask:
    """A group of records of a write."""

    task: str
    """Name of the task that mapped it."""
    group: GroupRuns
    ids: NDArray[np.int32] | None = None
    """Class ids of this write by those of the rows, if these are provisional."""

    def final_ids(self, survey: Survey) -> NDArray[np.int64] | None:
        """Return the final class ids by those of the rows; None if these are final."""
        return None if self.ids is None else survey.final_ids[self.ids]


class WriteJob:
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
        self._in_memory = isinstance(pool, ThisProcess)
        self._total: int | None = None
        self._context: MapContext | None = None
        self._shared: Shared | None = None
        self._mapped: dict[int, MappedPiece] = {}
        self._groups: list[_GroupOfTask] = []
        self._class_ids = ClassIds(schema.known_classes)
        self._totals = BucketTotals()
        self._survey: Survey | None = None

    # Map.

    def run(self) -> RecordsToWrite:
        """Map all pieces; see :meth:`finish`."""
        plan, label = self._plan()
        self._total = plan.total
        self._context = self.context(plan.shared, label)
        self._shared = self.pool.share(self._context, self.directory)
        if self._in_memory:
            pieces = list(plan.pieces)
            self.add_result(pieces[0], map_piece(self._shared, *pieces), name="")
            return self.finish()
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
        if self.schema.features is None and not self._in_memory:
            base = first_inference(self._inputs, self.options, self.schema)
        found = MapContext(
            self.options,
            self.schema,
            self._joined.class_names,
            base,
            inputs,
            self.scratch,
            self._bits,
            label,
        )
        if self._in_memory:
            found = replace(found, in_memory=True, progress=self.progress.add)
        return found

    def add_result(self, piece: Piece, result: MapResult, name: str | None = None) -> None:
        """Add the result of a piece, without its tables and strings.

        Args:
            piece: The piece.
            result: Its result.
            name: Name for messages (default: the name of the piece); empty for none.
        """
        ids = None
        if result.has_strings:
            ids = self._class_ids.ids_of(result.strings).astype(np.int32)
        self.rounding = add_rounding([self.rounding, result.rounding])
        name = piece.name(self._total) if name is None else name
        for group in result.groups:
            self._add_group(name, group, ids if group.kind.has_provisional_ids else None)
        kept = replace(result, groups=(), strings=())
        self._mapped[piece.index] = MappedPiece(piece, name, kept)

    def _add_group(self, task: str, group: GroupRuns, ids: NDArray[np.int32] | None = None) -> None:
        self._totals.add(group)
        kind, empty = self._totals.find(group.kind), np.zeros(0, TABLE_DTYPE)
        self._groups.append(_GroupOfTask(task, replace(group, kind=kind, table=empty), ids))

    def _plan(self) -> tuple[PiecePlan, str | None]:
        workers = None if self._in_memory else self.pool.slots
        if self._joined.columns is not None:
            classes, tables = prepare_columns(self._inputs, self.options, self.schema)
            # The features and class ids of columns are final.
            self.schema = self.schema.with_final(classes.features, classes.label)
            self._columns = classes
            return plan_tables(tables, workers=workers, pieces=self._pieces), classes.label
        if workers is None:
            return undivided(self._inputs), None
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
                    name = piece.name(self._total)
                    yield Task(name, map_piece, (self._shared, piece), piece.index)

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

    # Between the stages.

    def finish(self) -> RecordsToWrite:
        """Determine the final features and classes, and rewrite records that need it.

        Returns:
            The records of all splits; without features if there are none.
        """
        pieces = [self._mapped[index] for index in sorted(self._mapped)]
        for mapped in pieces:
            for split, skipped in enumerate(mapped.result.skipped):
                self.skipped[split].extend(skipped)
        if not self._groups:
            return RecordsToWrite(Features({}), Classes(Features({}), None), [])
        self.has_keys = merge_keys(pieces)
        if self.options.is_divided:
            self.has_keys = dict.fromkeys(range(len(self.options.splits)), self.has_keys[0])
        survey = self._make_survey(pieces)
        hold_out = self.options.hold_out
        if hold_out is not None and self.options.holds_out_classes and self._columns is None:
            # The class ids of other groups are known after they were rewritten.
            self._rewrite(survey, lambda kind: kind.label != survey.classes.label)
            found = choose_classes(hold_out, survey.classes, self._labels(survey))
            survey = replace(survey, held_out=found)
        self._rewrite(survey, lambda kind: survey.needs_rewrite(kind, self.options.order))
        self._survey = survey
        splits = [self._records(split, survey) for split in range(len(self.options.splits))]
        if hold_out is not None and hold_out.fraction is not None:
            sizes = [each.records for each in splits]
            check_choice(hold_out, sizes[1], sum(sizes), "examples")
        classes = survey.classes
        return RecordsToWrite(classes.features, classes, splits, self.rounding)

    def _make_survey(self, pieces: Sequence[MappedPiece]) -> Survey:
        if self._columns is not None:
            return Survey(self._columns.features, self._columns, np.zeros(0, np.int64))
        features = self.schema.features
        if features is None:
            features = merge_features(pieces, self.options)
        features = name_classes(features, self._joined.class_names)
        encoded = [each.group.kind.features for each in self._groups]
        classes = final_classes(features, self.options, self.schema, self._class_ids, encoded)
        return Survey(features, classes, self._class_ids.final_ids())

    def _labels(self, survey: Survey) -> NDArray[np.int64]:
        """Return the class ids of all records, each of them once."""
        found = [np.zeros(0, np.int64)]
        for each in self._groups:
            labels, final = np.array(each.group.labels, np.int64), each.final_ids(survey)
            found.append(labels if final is None else final[labels])
        return np.unique(np.concatenate(found))

    # Rewrite.

    def _rewrite(self, survey: Survey, is_chosen: Callable[[RecordGroup], bool]) -> None:
        """Rewrite the groups of some kinds."""
        chosen = [each for each in self._groups if is_chosen(each.group.kind)]
        if not chosen:
            return
        context = RewriteContext(
            self.options if self._in_memory else task_options(self.options),
            survey.inferred,
            survey.classes,
            survey.held_out,
            self.scratch,
            self._bits,
            self._in_memory,
        )
        shared = self.pool.share(context, self.directory)
        pairs = [(each.group, each.final_ids(survey)) for each in chosen]
        tasks = [
            Task(each.task, rewrite_groups, (shared, pair), index)
            for index, (each, pair) in enumerate(zip(chosen, pairs, strict=True))
        ]
        if self._in_memory:  # one task: the memory limit is for all groups
            tasks = [Task("", rewrite_groups, (shared, *pairs))]
        self._groups = [each for each in self._groups if not is_chosen(each.group.kind)]
        self._totals.remove(is_chosen)
        total = sum(mapped.result.examples for mapped in self._mapped.values())
        self.progress.begin(phase("encoding", 0, len(tasks)), total)
        for done, (task, groups) in enumerate(run_tasks(self.pool, tasks), 1):
            for group in groups:
                self._add_group(task.name, group)
            self.progress.rename(phase("encoding", done, len(tasks)))
            runs = [run for group in groups for run in group.runs]
            self.progress.add(sum(run.records for run in runs), sum(run.bytes for run in runs))
            # Runs at a URL are removed at the end. Those of parts are kept until the commit.
            if self._shared is not None and not self.scratch.is_url:
                sources = chosen if self._in_memory else [chosen[task.index]]
                for run in (run for each in sources for run in each.group.runs):
                    if isinstance(run, RunFile):
                        run.remove()

    # Records of a split.

    def _records(self, split: int, survey: Survey) -> SortedRecords:
        table, longest = self._totals.of_split(split)
        runs = [
            (run, each.final_ids(survey))
            for each in self._groups
            if each.group.kind.split == split
            for run in each.group.runs
        ]
        return SortedRecords(
            self.pool,
            self.options,
            self.directory,
            survey.classes,
            runs,
            table,
            longest,
            self.has_keys.get(split, False),
            # A commit of parts needs no disk space for the shards of a URL.
            uploads=self._shared is None or not self._in_memory,
            locate=lambda error: self._locate_duplicate(error, split),
        )

    def _locate_duplicate(self, error: DuplicateKeyError, split: int) -> DuplicateKeyError:
        """Return the error for two examples with the same key, with their pieces."""
        a, b = (self._find_piece(each, split) for each in error.examples)
        if a is not None and b is not None and a.name:
            error.task = a.name if a is b else f"{a.name} and {b.name}"
            if a.piece.path == b.piece.path:
                error.path = a.piece.path
            else:
                error.task += f" ({a.piece.path} and {b.piece.path})"
        return error

    def _find_piece(self, position: int, split: int) -> MappedPiece | None:
        """Return the piece of an example of a split."""
        for mapped in self._mapped.values():
            piece, examples = mapped.piece, mapped.result.examples
            is_own = self.options.is_divided or piece.split == split
            if is_own and piece.first <= position < piece.first + examples:
                return mapped
        return None


@dataclass(frozen=True)
class SortedRecords(OrderedRecords):
    """Records of a split in sorted runs, which a task per shard reads."""

    pool: Pool
    options: WriteOptions
    directory: Path
    """Directory of temporary files."""
    classes: Classes
    runs: Sequence[tuple[Run, NDArray[np.int64] | None]]
    """The runs, and the final class ids by those of their rows if these are provisional."""
    table: NDArray[Any]
    """Buckets of all runs."""
    longest: int
    """Bytes of the longest record."""
    has_keys: bool
    """Whether the hashes of the rows must be distinct."""
    uploads: bool = False
    reads_labels: bool = False
    """Whether class ids are read from the records: the rows have none."""
    locate: Callable[[DuplicateKeyError], DuplicateKeyError] = lambda error: error
    """Function that returns the error of two examples with the same key, with their places."""

    @property
    def records(self) -> int:
        return int(self.table["records"].sum())

    def write_shards(
        self,
        target: Callable[[int], ShardTarget],
        *,
        first: int,
        compression: str | None,
        progress: Progress,
    ) -> Iterator[ShardResult]:
        self._check_unique()
        cuts = plan_cuts(self.table, self.options)
        planned = plan_shards(self.table, cuts)
        form = ShardFormat(
            self.classes.features,
            self.classes.label is not None,
            compression,
            self.options.compression_level,
            target(len(planned)),
        )
        context = ReduceContext(
            tuple(run for run, _ in self.runs),
            tuple(ids for _, ids in self.runs),
            self.options.order,
            self.has_keys,
            cuts,
            self.options.memory_limit,
            form,
            self.classes if self.reads_labels else None,
        )
        if cuts.unit == "bytes" and self.longest + FRAME_BYTES >= int(
            np.diff(cuts.ends, prepend=0).min()
        ):
            planned = self._drop_empty(planned, context)
            context = replace(context, format=replace(form, target=target(len(planned))))
        planned = [replace(task, index_shard=first + task.shard) for task in planned]
        results = self._write(planned, context, progress)
        for result in results:
            if result.info is None:  # the longest record of a part is not that of its content
                raise FormatError(f"shard {result.shard + 1} of {len(planned)} has no records")
            yield result

    def _write(
        self, planned: Sequence[ShardTask], context: ReduceContext, progress: Progress
    ) -> Iterator[ShardResult]:
        if isinstance(self.pool, ThisProcess) and context.format.target.directory is not None:
            with self._locating():
                yield from write_shards(
                    context, planned, self.pool.executor, self.pool.threads + 2, progress.add
                )
            return
        shared = self.pool.share(context, self.directory)
        progress.begin(phase("writing", 0, len(planned)), self.records)
        tasks = [
            Task(f"shard {task.shard + 1} of {len(planned)}", write_shard, (shared, task))
            for task in planned
        ]
        for done, (_, result) in enumerate(self._run(tasks), 1):
            progress.rename(phase("writing", done, len(planned)))
            if result.info is not None:
                progress.add(result.info.records, result.info.bytes)
            yield result

    def _drop_empty(self, planned: list[ShardTask], context: ReduceContext) -> list[ShardTask]:
        """Return the shards that have records: one that is longer than a shard may leave none."""
        shared = self.pool.share(context, self.directory)
        tasks = [
            Task(f"shard {task.shard + 1}", has_records, (shared, task), task.shard)
            for task in planned
        ]
        found = {task.index for task, has in self._run(tasks) if has}
        kept = (task for task in planned if task.shard in found)
        return [replace(task, shard=number) for number, task in enumerate(kept)]

    def _check_unique(self) -> None:
        """Compare keys now, if the reduce tasks do not read the records in the order of hashes."""
        if not self.has_keys or self.options.order.fields == ("high", "low"):
            return
        limit = max(self.options.memory_limit, _MIN_UNIQUE_BYTES)
        parts = max(1, self.records * _UNIQUE_BYTES_PER_RECORD // limit)
        runs = tuple(run for run, _ in self.runs)
        tasks = [
            Task(f"keys {part + 1} of {parts}", check_unique, (runs, limit, part, parts))
            for part in range(parts)
        ]
        for _ in self._run(tasks):
            pass

    def _run(self, tasks: Sequence[Task[Any]]) -> Iterator[tuple[Task[Any], Any]]:
        with self._locating():
            yield from run_tasks(self.pool, tasks)

    @contextmanager
    def _locating(self) -> Iterator[None]:
        try:
            yield
        except DuplicateKeyError as error:
            if error.key is not None:
                raise
            raise self.locate(error) from None
