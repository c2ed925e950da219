"""The reduce stage of a distributed write, as the main process runs it: a task per shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from covey._progress import Progress
from covey.engines.pools import Shared
from covey.engines.tasks import Task, run_tasks
from covey.errors import DuplicateKeyError, FormatError
from covey.index.format import Shard
from covey.index.write import IndexWriter
from covey.labels import Classes
from covey.schema import Features
from covey.schema.images import ImageSummary, join_summaries
from covey.shuffle.buckets import class_sizes
from covey.shuffle.keys import ClassSizes, Part
from covey.tfrecord.block import FRAME_BYTES
from covey.writing.columns import RecordsToWrite
from covey.writing.distributed import DistributedWrite, phase
from covey.writing.reduce_stage import (
    ReduceContext,
    ShardResult,
    ShardTarget,
    ShardTask,
    check_unique,
    has_records,
    write_shard,
)
from covey.writing.shards import Cuts
from covey.writing.survey import Survey

_UNIQUE_BYTES_PER_RECORD = 200


def records_of(write: DistributedWrite, survey: Survey | None) -> RecordsToWrite:
    """Return the records of all splits of a write, which workers have sorted.

    Args:
        write: The write, after its map stage.
        survey: Its features and classes; None if there are no records.
    """
    if survey is None:
        return RecordsToWrite(Features({}), Classes(Features({}), None), [])
    splits = [
        DistributedRecords(write, split, survey) for split in range(len(write.options.splits))
    ]
    classes = survey.classes
    return RecordsToWrite(classes.features, classes, splits, write.rounding)


class DistributedRecords:
    """Records of a split in the runs of workers.

    Args:
        write: The write.
        split: Position of the split in the splits of the write.
        survey: Features and classes.
    """

    def __init__(self, write: DistributedWrite, split: int, survey: Survey) -> None:
        self._write = write
        self._split = split
        self._classes = survey.classes
        self._table, self._longest = write.total(split)
        self.records = int(self._table["records"].sum())
        self.bytes = int(self._table["bytes"].sum())

    def tasks(self) -> Iterator[Callable[[], Part]]:
        """Raise: the records are not in this process."""
        raise AssertionError("write_shards writes these records")

    def classes(self) -> ClassSizes:
        """Return the sizes of the classes, if records are sorted by class."""
        return class_sizes(self._table)

    def write_shards(
        self,
        cuts: Cuts,
        index: IndexWriter,
        target: Callable[[int], ShardTarget],
        *,
        first: int,
        records_before: int,
        compression: str | None,
        compression_level: int,
        progress: Progress,
    ) -> tuple[list[Shard], dict[str, ImageSummary]]:
        """Write the shards.

        Args:
            cuts: Ends of the shards.
            index: Writer of the index rows.
            target: Function of the number of shards that returns where they are written.
            first: Number of the first shard in the index.
            records_before: Records of the shards before the first one.
            compression: Compression, as for :class:`covey.RecordWriter`.
            compression_level: Compression level, as for :class:`covey.RecordWriter`.
            progress: Progress bar.

        Returns:
            The shards and the summaries of their images.
        """
        self._check_unique()
        planned = self._plan(cuts)

        def share() -> Shared:
            return self._context(cuts, target(len(planned)), compression, compression_level)

        shared = share()
        if cuts.unit == "bytes" and self._longest + FRAME_BYTES >= int(
            np.diff(cuts.ends, prepend=0).min()
        ):
            planned = self._drop_empty(planned, shared)
            shared = share()
        progress.begin(phase("writing", 0, len(planned)), self.records)
        shards: dict[int, Shard] = {}
        images: list[Any] = []
        tasks = [
            Task(
                f"shard {task.shard + 1} of {len(planned)}",
                write_shard,
                (shared, replace(task, index_shard=first + task.shard)),
                task.shard,
            )
            for task in planned
        ]
        result: ShardResult
        for _, result in self._run(tasks):
            if result.info is None:  # the longest record of a part is not that of its content
                raise FormatError(f"shard {result.shard + 1} of {len(planned)} has no records")
            index.write_at(records_before + result.first, result.rows)
            shards[result.shard] = result.info
            images.append(result.images)
            progress.rename(phase("writing", len(shards), len(planned)))
            progress.add(result.info.records, result.info.bytes)
        return [shards[n] for n in sorted(shards)], join_summaries(images) or {}

    def _drop_empty(self, planned: list[ShardTask], shared: Shared) -> list[ShardTask]:
        """Return the shards that have records: one that is longer than a shard may leave none."""
        tasks = [
            Task(f"shard {task.shard + 1}", has_records, (shared, task), task.shard)
            for task in planned
        ]
        found = {task.index for task, has in self._run(tasks) if has}
        kept = (task for task in planned if task.shard in found)
        return [replace(task, shard=number) for number, task in enumerate(kept)]

    def _run(self, tasks: Sequence[Task[Any]]) -> Iterator[tuple[Task[Any], Any]]:
        try:
            yield from run_tasks(self._write.pool, tasks)
        except DuplicateKeyError as error:
            if error.key is not None:
                raise
            raise self._locate_duplicate(error) from None

    def _locate_duplicate(self, error: DuplicateKeyError) -> DuplicateKeyError:
        """Return the error for two examples with the same key, with their pieces."""
        a, b = (self._write.find_piece(each, self._split) for each in error.examples)
        if a is not None and b is not None:
            error.task = a.name if a is b else f"{a.name} and {b.name}"
            if a.piece.path == b.piece.path:
                error.path = a.piece.path
            else:
                error.task += f" ({a.piece.path} and {b.piece.path})"
        return error

    def _check_unique(self) -> None:
        """Compare keys now, if the reduce tasks do not read the records in the order of hashes."""
        write = self._write
        if not write.has_keys.get(self._split) or write.options.order.fields == ("high", "low"):
            return
        parts = max(1, self.records * _UNIQUE_BYTES_PER_RECORD // write.options.memory_limit)
        runs = tuple(run for run, _ in write.runs(self._split))
        tasks = [
            Task(
                f"keys {part + 1} of {parts}",
                check_unique,
                (runs, write.options.memory_limit, part, parts),
            )
            for part in range(parts)
        ]
        for _ in self._run(tasks):
            pass

    def _context(
        self, cuts: Cuts, target: ShardTarget, compression: str | None, compression_level: int
    ) -> Shared:
        write, classes = self._write, self._classes
        pairs = list(write.runs(self._split))
        context = ReduceContext(
            tuple(run for run, _ in pairs),
            tuple(ids for _, ids in pairs),
            classes.features,
            classes.label is not None,
            write.options.order,
            write.has_keys.get(self._split, False),
            cuts,
            compression,
            compression_level,
            write.options.memory_limit,
            target,
        )
        return write.pool.share(context, write.directory)

    def _plan(self, cuts: Cuts) -> list[ShardTask]:
        """Return a task for each shard, with the buckets that have its records."""
        table = self._table
        records, sizes = (np.cumsum(table[name].astype(np.int64)) for name in ("records", "bytes"))
        ends = records if cuts.unit == "records" else sizes
        tasks = []
        for cut, end in enumerate(cuts.ends.tolist()):
            begin = int(cuts.ends[cut - 1]) if cut else 0
            first = int(np.searchsorted(ends, begin, side="right"))
            last = int(np.searchsorted(ends, end))
            before = first - 1
            tasks.append(
                ShardTask(
                    cut,
                    cut,
                    table[first : last + 1],
                    int(records[before]) if first else 0,
                    int(sizes[before]) if first else 0,
                )
            )
        return tasks
