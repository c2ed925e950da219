"""The batches of a loader by step, and the calls from TensorFlow into Python."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from covey.errors import ClosedError, PlanError
from covey.loader import Loader

# One iterator per sequence of steps; several are in use if a dataset is iterated concurrently.
_MAX_ITERATORS = 4

# Time to wait at exit for running calls, and interval without a call that ends the wait.
_EXIT_TIMEOUT_S = 10.0
_QUIET_INTERVAL_S = 0.05


class StepSource:
    """The batches of a loader by step, for the threads of TensorFlow.

    TensorFlow prefetches. Therefore an iteration moves the loader to the following epoch when it
    begins.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._plan = plan = loader.plan
        self.is_complete = plan.batch_at(loader.step) % plan.batches_per_epoch == 0
        """Whether the first epoch is complete, so that all have the same number of steps."""
        self._lock = threading.Lock()
        self._iterators: dict[int, Iterator[Any]] = {}  # by next step, least recently used first
        self._begun: set[int] = set()  # first steps of epochs

    def begin(self) -> tuple[int, int, int]:
        """Begin an epoch; return its first step, its end, and the first step of the next one."""
        with self._lock:
            plan, start = self._loader.plan, self._loader.step
            if plan is not self._plan:  # class weights were changed
                if (plan.rank, plan.world_size) != (self._plan.rank, self._plan.world_size):
                    raise PlanError("the rank of the loader was changed", remedy="call to_tf again")
                self._plan = plan
                self._iterators.clear()
            batch = plan.batch_at(start)
            following = plan.step_at(plan.end_of_epoch(batch))
            self._loader.seek(following)
            self._begun.add(start)
            return start, start + plan.steps_left(batch), following

    def end(self, start: int, following: int) -> bool:
        """End an epoch, which may have begun in another process if it was restored."""
        with self._lock:
            if self.is_complete and self._plan.batch_at(start) % self._plan.batches_per_epoch:
                raise PlanError(
                    f"the loader was moved to step {start}, within an epoch, after to_tf: this "
                    "iteration has fewer batches than the dataset",
                    remedy="call to_tf again after moving the loader",
                )
            if start in self._begun:
                self._begun.remove(start)
            else:
                self._loader.seek(following)
        return False

    def read(self, start: int, until: int) -> list[Any]:
        """Return the batches of the steps ``[start, until)`` of an epoch."""
        with self._lock:
            iterator = self._iterators.pop(start, None)
        batches = [] if iterator is None else list(islice(iterator, until - start))
        if iterator is None or not batches:  # the iterator ended with its epoch
            loader = self._loader.copy()
            loader.seek(start)
            iterator = loader.take(sys.maxsize) if loader.plan.is_endless else iter(loader)
            batches = list(islice(iterator, until - start))
        with self._lock:
            self._iterators[until] = iterator
            while len(self._iterators) > _MAX_ITERATORS:
                del self._iterators[next(iter(self._iterators))]  # stops its threads
        return batches


def reference(loader: Loader) -> tuple[StepSource, Callable[[], StepSource]]:
    """Return the steps of a loader, and a function that returns them without a reference to them.

    TensorFlow keeps Python functions for ever. Therefore the dataset owns the steps, with their
    files, threads and buffers. If only a graph of TensorFlow refers to the dataset, others are made
    of the loader.
    """
    steps = StepSource(loader)
    owned, known = weakref.ref(steps), weakref.ref(loader)
    others: list[StepSource] = []

    def find() -> StepSource:
        found, owner = owned(), known()
        if found is not None:
            return found
        if not others:
            if owner is None:
                raise ClosedError(
                    "the dataset and its loader were deleted",
                    remedy="keep a reference to the loader",
                )
            others.append(StepSource(owner))
        return others[0]

    return steps, find


class _Calls:
    """Calls of Python functions from threads of TensorFlow, until the interpreter exits.

    A thread that enters Python during finalization never returns, and TensorFlow, whose iterators
    are freed last, would wait for it for ever. Therefore calls raise an error as soon as the exit
    begins, which fills the buffers of the threads, and the exit waits until no call is made.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._rejected = 0
        self._is_exiting = False
        self._process = os.getpid()

    def __enter__(self) -> None:
        with self._condition:
            if self._is_exiting:
                self._rejected += 1
                raise ClosedError("the interpreter is exiting")
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._running -= 1
            if self._is_exiting:
                self._condition.notify_all()

    def finish(self) -> None:
        """Reject all further calls, and wait until there are none."""
        if self._process != os.getpid():  # the threads belong to the parent process
            return
        until = time.monotonic() + _EXIT_TIMEOUT_S
        with self._condition:
            self._is_exiting = True
            self._condition.wait_for(lambda: self._running == 0, _EXIT_TIMEOUT_S)
        rejected = -1
        while rejected != self._rejected and time.monotonic() < until:
            rejected = self._rejected
            time.sleep(_QUIET_INTERVAL_S)


_CALLS = _Calls()
atexit.register(_CALLS.finish)


def guard(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises ClosedError as soon as the interpreter exits."""

    def call(*arguments: Any) -> Any:
        with _CALLS:
            return function(*arguments)

    return call
