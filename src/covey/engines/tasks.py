"""Run tasks in a pool: a limited number in flight, retries, and errors that name the task."""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from covey.errors import CoveyError, TaskError

if TYPE_CHECKING:
    from covey.engines.pools import Pool

T = TypeVar("T")


@dataclass(frozen=True)
class Task(Generic[T]):
    """A function to be called by a worker. It can be repeated: its result does not change."""

    name: str
    """Name for messages: ``"piece 3 of 7"``."""
    function: Callable[..., T]
    arguments: tuple[Any, ...] = ()
    index: int = 0
    """Index that the caller assigned."""


@dataclass(frozen=True)
class Outcome:
    """What a worker returns: a result or an error, and the node that it ran on."""

    node: str
    result: Any = None
    error: BaseException | None = None


def run_call(function: Callable[..., Any], *arguments: Any, node: str = "") -> Outcome:
    """Call the function of a task in a worker."""
    node = node or f"node {socket.gethostname()}, process {os.getpid()}"
    try:
        return Outcome(node, function(*arguments))
    except (CoveyError, MemoryError) as error:
        try:
            pickle.dumps(error)
        except Exception:  # a field of an error of the source
            return Outcome(node, error=TaskError(str(error)))
        return Outcome(node, error=error)
    except Exception as error:  # it may not be picklable
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{at.filename}:{at.lineno}"
        return Outcome(node, error=TaskError(f"{type(error).__name__}: {error} ({where})"))


@dataclass
class _Attempt:
    task: Task[Any]
    position: int
    """Number of tasks before it."""
    number: int = 1


def run_tasks(
    pool: Pool, tasks: Iterable[Task[T]], *, first_error: bool = False
) -> Iterator[tuple[Task[T], T]]:
    """Yield the result of each task when it is complete, in any order.

    Args:
        pool: The workers.
        tasks: The tasks; the next one is requested when a worker is about to be free.
        first_error: Raise the error of the first task that fails, in the order of `tasks`, rather
            than the first error that occurs; the tasks before it are completed.

    Raises:
        TaskError: If the worker of a task was lost too often, or the task ran out of memory.
        CoveyError: The error of a task; ``task`` is its name and its node.
    """
    following: Iterator[_Attempt] = (
        _Attempt(task, position) for position, task in enumerate(tasks)
    )
    again: deque[_Attempt] = deque()
    running: dict[Future[Outcome], _Attempt] = {}
    failure: tuple[int, BaseException] | None = None
    try:
        while True:
            # A lost worker may end others: their tasks are repeated one by one, to find the cause.
            is_repeating = bool(again) or any(each.number > 1 for each in running.values())
            while len(running) < (1 if is_repeating else pool.in_flight):
                attempt = again.popleft() if again else next(following, None)
                if attempt is None:
                    break
                future = pool.submit(attempt.task.function, *attempt.task.arguments)
                running[future] = attempt
            if not running:
                return
            finished: list[tuple[Task[T], T]] = []
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                attempt = running.pop(future)
                outcome = _outcome(pool, future, attempt)
                if outcome is None:
                    again.append(replace(attempt, number=attempt.number + 1))
                elif outcome.error is None:
                    finished.append((attempt.task, outcome.result))
                elif failure is None or attempt.position < failure[0]:
                    failure = attempt.position, _located(outcome.error, attempt.task, outcome.node)
            yield from finished
            if failure is not None:
                position, error = failure
                following = iter(())
                again = deque(each for each in again if each.position < position)
                pending = [*again, *running.values()]
                if not first_error or all(each.position > position for each in pending):
                    raise error
    finally:
        for future in running:
            future.cancel()


def _outcome(pool: Pool, future: Future[Outcome], attempt: _Attempt) -> Outcome | None:
    """Return the outcome of an attempt; None if its worker was lost, and it may be repeated."""
    error = future.exception()
    if error is None:
        return future.result()
    if not pool.is_lost(error):
        return Outcome("", error=pool.explain(error))
    if attempt.number <= pool.max_retries:
        return None
    times = f"{attempt.number} attempt{'s' * (attempt.number > 1)}"
    lost = f"the worker process ended unexpectedly ({times})"
    return Outcome("", error=TaskError(lost, remedy=pool.lost_remedy))


def _located(error: BaseException, task: Task[Any], node: str) -> BaseException:
    """Return the error of a task, with the name of the task and of its node."""
    place = f"{task.name} on {node}" if node else task.name
    if isinstance(error, CoveyError):
        error.task = error.task or place
        return error
    if isinstance(error, MemoryError):
        return TaskError("not enough memory", task=place, remedy="pass more pieces")
    return error
