"""Run tasks in a pool: a limited number in flight, retries, and errors that name the task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from covey.engines.base import NodeLostError, Outcome, Pool, WorkerLostError
from covey.errors import CoveyError, TaskError

T = TypeVar("T")

_LOST_DATA_RETRIES = 8


@dataclass(frozen=True)
class Task(Generic[T]):
    """A unit of work that can be repeated: its result does not depend on the attempt."""

    name: str
    """Name for messages: ``"piece 3 of 7"``."""
    make: Callable[[], Callable[[], T]]
    """Return the picklable function to run. It is called for every attempt, in this process."""
    index: int = 0
    """Index that the caller assigned."""


@dataclass
class _Attempt:
    task: Task[Any]
    position: int
    """Number of tasks before it."""
    number: int = 0
    """Attempts before this one."""
    lost_data: int = 0


def run_tasks(
    pool: Pool,
    tasks: Iterable[Task[T]],
    *,
    recover: Callable[[tuple[str, ...]], None] | None = None,
    first_error: bool = False,
) -> Iterator[tuple[Task[T], T]]:
    """Yield the result of each task when it is complete, in any order.

    Args:
        pool: The workers.
        tasks: The tasks; the next one is requested when a worker is about to be free.
        recover: Called with the lost nodes if a task needs files of them; restores the files. The
            task is run again.
        first_error: Raise the error of the first task that fails, in the order of `tasks`, rather
            than the first error that occurs; the tasks before it are completed.

    Raises:
        TaskError: If the worker of a task was lost too often, or the task ran out of memory.
        CoveyError: The error of a task; ``task`` is its name and its node.
    """
    iterator = enumerate(tasks)
    again: deque[_Attempt] = deque()
    running: dict[Future[Outcome], _Attempt] = {}
    is_exhausted = False
    failure: tuple[int, BaseException] | None = None
    try:
        while True:
            limit = 2 * pool.slots + 2
            while len(running) < limit and (again or not is_exhausted):
                if again:
                    attempt = again.popleft()
                else:
                    following = next(iterator, None)
                    if following is None:
                        is_exhausted = True
                        continue
                    position, task = following
                    attempt = _Attempt(task, position)
                running[pool.submit(attempt.task.make())] = attempt
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            lost: set[str] = set()
            finished: list[tuple[Task[T], T]] = []
            for future in done:
                attempt = running.pop(future)
                outcome = _outcome(future, attempt, pool.max_retries)
                if outcome is None:
                    again.append(replace(attempt, number=attempt.number + 1))
                elif isinstance(outcome.error, NodeLostError) and recover is not None:
                    if attempt.lost_data >= _LOST_DATA_RETRIES:
                        raise TaskError(
                            f"files of other nodes were lost {attempt.lost_data + 1} times",
                            task=attempt.task.name,
                        )
                    lost.update(outcome.error.nodes)
                    again.append(replace(attempt, lost_data=attempt.lost_data + 1))
                elif outcome.error is not None:
                    error = _located(outcome.error, attempt.task, outcome.node)
                    if not first_error:
                        raise error
                    if failure is None or attempt.position < failure[0]:
                        failure = attempt.position, error
                else:
                    finished.append((attempt.task, outcome.result))
            yield from finished
            if failure is not None:
                position, error = failure
                is_exhausted = True
                again = deque(each for each in again if each.position < position)
                if not again and all(each.position > position for each in running.values()):
                    raise error
            if lost and recover is not None:
                recover(tuple(sorted(lost)))
    finally:
        for future in running:
            future.cancel()


def _outcome(future: Future[Outcome], attempt: _Attempt, max_retries: int) -> Outcome | None:
    """Return the outcome of an attempt; None if its worker was lost, and it may be repeated."""
    try:
        return future.result()
    except WorkerLostError as error:
        if attempt.number < max_retries:
            return None
        times = attempt.number + 1
        raise TaskError(
            f"{error.reason} ({times} attempt{'s' * (times > 1)})",
            task=attempt.task.name,
            remedy=error.remedy,
        ) from error


def _located(error: BaseException, task: Task[Any], node: str) -> BaseException:
    """Return the error of a task, with the name of the task and of its node."""
    place = _place(task, node)
    if isinstance(error, CoveyError):
        error.task = error.task or place
        return error
    if isinstance(error, MemoryError):
        return TaskError("not enough memory", task=place, remedy="pass more pieces")
    return error


def _place(task: Task[Any], node: str) -> str:
    return f"{task.name} on {node}" if node else task.name
