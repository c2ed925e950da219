"""Scans of shards by the workers of an engine: a task for each shard, or for a group of small ones.

The function that a task calls for a shard is the one that a scan in this process calls, so that the
results are the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np

from covey._progress import Progress
from covey.engines.base import Engine, Pool, Shared, run_call
from covey.engines.tasks import Task, run_tasks
from covey.errors import CoveyError
from covey.untrusted import os_errors

T = TypeVar("T")

_TASKS_PER_SLOT = 4
# Larger groups are divided, so that a task that is repeated is short.
_GROUP_BYTES = 256 << 20
# What it takes to open a shard, as the size of one that takes as long to scan.
_OPEN_BYTES = 1 << 18

AddProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class ShardItem:
    """A shard to be scanned."""

    number: int
    """Index that the caller assigned."""
    path: str
    size: int
    """Bytes of the file, by which shards are grouped; 0 if it is unknown."""


@dataclass(frozen=True)
class _GroupResult(Generic[T]):
    """Result of a task."""

    result: T
    records: int
    bytes: int


class ShardPool:
    """Workers of an engine that scan shards; started by the first scan. To be closed.

    Args:
        engine: The engine; its ``pieces`` are the number of tasks.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stack = ExitStack()
        self._started: tuple[Pool, Path] | None = None

    def __enter__(self) -> ShardPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._started = None
        self._stack.close()

    def scan(
        self,
        function: Callable[[Any, Sequence[tuple[int, Any]], AddProgress], T],
        context: Any,
        shards: Sequence[ShardItem],
        progress: Progress,
        phase: str,
        *,
        payload: Callable[[int], Any] | None = None,
    ) -> Iterator[tuple[range, T]]:
        """Yield the result of each group of shards when it is complete, in any order.

        Args:
            function: Function of a module that a worker calls for each group. It takes the context,
                the number and the payload of each shard, and a function of the number of records
                and bytes that were scanned.
            context: Picklable object that all tasks share.
            shards: The shards.
            progress: Progress bar.
            phase: Phase of the progress bar.
            payload: Function of the number of a shard, called in this process when its task is
                submitted, that returns a picklable object for this shard only.

        Yields:
            The positions of the shards of a group in `shards`, and the result of the function.

        Raises:
            CoveyError: The error of the first shard that cannot be scanned, as in this process;
                ``task`` has its node.
        """
        if not shards:
            return
        pool, directory = self._start()
        shared = pool.share(context, directory)

        def make(group: range) -> Callable[[], _GroupResult[T]]:
            numbers = [shards[position].number for position in group]
            items = [(each, None if payload is None else payload(each)) for each in numbers]
            return partial(_scan_group, shared, function, items)

        groups = group_shards(
            [each.size for each in shards],
            self._engine.pieces or _task_count(pool.slots, sum(each.size for each in shards)),
        )
        tasks = (
            Task(_name([shards[position] for position in group]), partial(make, group), index)
            for index, group in enumerate(groups)
        )
        done = 0
        progress.rename(f"{phase} (0/{len(shards):,} shards)")
        for task, found in run_tasks(pool, tasks, first_error=True):
            group = groups[task.index]
            done += len(group)
            progress.rename(f"{phase} ({done:,}/{len(shards):,} shards)")
            progress.add(found.records, found.bytes)
            yield group, found.result

    def _start(self) -> tuple[Pool, Path]:
        if self._started is None:
            directory = self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="covey-engine-")
            )
            self._started = self._stack.enter_context(self._engine.start()), Path(directory)
        return self._started


def group_shards(sizes: Sequence[int], groups: int) -> list[range]:
    """Divide shards into consecutive groups of about the same size, at most this number.

    >>> group_shards([10 << 20, 10 << 20, 90 << 20, 10 << 20], 3)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    weights = np.asarray(sizes, np.float64) + _OPEN_BYTES
    centers = np.cumsum(weights) - weights / 2
    group = np.floor(centers / weights.sum() * groups)
    begins = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(sizes)]
    return [range(begin, end) for begin, end in pairwise(begins)]


def _task_count(slots: int, size: int) -> int:
    return max(_TASKS_PER_SLOT * slots, -(-size // _GROUP_BYTES))


def _name(shards: Sequence[ShardItem]) -> str:
    first, last = (each.path.rpartition("/")[2] for each in (shards[0], shards[-1]))
    return f"shard {first}" if len(shards) == 1 else f"shards {first} to {last}"


def _scan_group(
    shared: Shared,
    function: Callable[[Any, Sequence[tuple[int, Any]], AddProgress], T],
    items: Sequence[tuple[int, Any]],
) -> _GroupResult[T]:
    """Run a task."""
    records = size = 0

    def add(count: int, read: int) -> None:
        nonlocal records, size
        records += count
        size += read

    result = function(shared.get(), items, add)
    return _GroupResult(result, records, size)


def scan_located(path: str, scan: Callable[[], T]) -> T:
    """Scan a shard in a worker; its errors have the path of the shard."""

    def call() -> T:
        with os_errors(path):
            return scan()

    outcome = run_call(call)
    if outcome.error is None:
        found: T = outcome.result
        return found
    if isinstance(outcome.error, CoveyError) and outcome.error.option is None:
        outcome.error.path = outcome.error.path or path
    raise outcome.error


__all__ = ["AddProgress", "ShardItem", "ShardPool", "group_shards", "scan_located"]
