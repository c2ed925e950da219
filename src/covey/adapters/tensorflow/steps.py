"""A ``tf.data.Dataset`` over batches by step, and the calls from TensorFlow into Python."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey.adapters.tensorflow.tensors import BatchSpec, no_autograph, tf
from covey.errors import ClosedError, PlanError
from covey.plan import Plan

# TensorFlow uses memory with this alignment, and copies other memory.
_ALIGNMENT = 64

# One iterator per sequence of steps; several are in use if a dataset is iterated concurrently.
_MAX_ITERATORS = 4

# Time to wait at exit for running calls, and interval without a call that ends the wait.
_EXIT_TIMEOUT_S = 10.0
_QUIET_INTERVAL_S = 0.05


class Position(Protocol):
    """The step at which the next iteration begins; a loader is one."""

    @property
    def plan(self) -> Plan:
        """The plan, which determines the steps of an epoch."""

    @property
    def step(self) -> int:
        """The next step."""

    def seek(self, step: int) -> None:
        """Continue with `step`."""


class PlanPosition:
    """Position in a plan that has no loader."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.step = 0

    def seek(self, step: int) -> None:
        self.step = step


Open = Callable[[Position, int], Iterator[Any]]
"""Returns an iterator over the batches from a step to the end of its epoch, or further."""


def compute(batch: Callable[[int], Any]) -> Open:
    """Return the function that opens the results of a function of the step."""
    return lambda position, step: map(batch, count(step))


class Steps:
    """The batches of the steps of an epoch, for the threads of TensorFlow.

    TensorFlow prefetches. Therefore an iteration moves the position to the following epoch when it
    begins.

    Args:
        position: The position, which determines the epoch of the next iteration.
        open_batches: The batches.
    """

    def __init__(self, position: Position, open_batches: Open) -> None:
        self._position = position
        self._open = open_batches
        self._plan = plan = position.plan
        self.is_complete = plan.batch_at(position.step) % plan.batches_per_epoch == 0
        """Whether the first epoch is complete, so that all have the same number of steps."""
        self._lock = threading.Lock()
        self._iterators: dict[int, Iterator[Any]] = {}  # by next step, least recently used first
        self._begun: set[int] = set()  # first steps of epochs

    def begin(self, _: Any) -> tuple[int, int, int]:
        """Begin an epoch; return its first step, its end, and the first step of the next one."""
        with self._lock:
            plan, start = self._position.plan, self._position.step
            if plan is not self._plan:  # class weights were changed
                if (plan.rank, plan.world_size) != (self._plan.rank, self._plan.world_size):
                    raise PlanError("the rank of the loader was changed", remedy="call to_tf again")
                self._plan = plan
                self._iterators.clear()
            batch = plan.batch_at(start)
            following = plan.step_at(plan.end_of_epoch(batch))
            self._position.seek(following)
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
                self._position.seek(following)
        return False

    def read(self, start: int, until: int) -> list[Any]:
        """Return the batches of the steps ``[start, until)`` of an epoch."""
        with self._lock:
            iterator = self._iterators.pop(start, None)
        if iterator is None:
            iterator = self._open(self._position, start)
        batches = list(islice(iterator, until - start))
        if len(batches) < until - start:  # the iterator ended with its epoch
            iterator = self._open(self._position, start)
            batches = list(islice(iterator, until - start))
        with self._lock:
            self._iterators[until] = iterator
            while len(self._iterators) > _MAX_ITERATORS:
                del self._iterators[next(iter(self._iterators))]  # stops its threads
        return batches


def from_steps(find: Callable[[], Steps], plan: Plan, spec: BatchSpec, group: int = 1) -> Any:
    """Return a dataset whose iterations are epochs of a plan.

    The last element of an epoch is a filter without result: it calls ``Steps.end`` when the epoch
    is exhausted, also in an iterator that was restored from a checkpoint.

    Args:
        find: Function that returns the batches. TensorFlow keeps it for ever.
        plan: The plan.
        spec: The type of a batch.
        group: Number of steps per call, if all batches have the same shape.
    """
    group = group if spec.is_fixed else 1

    def call(function: Callable[..., Any], arguments: list[Any], types: Any) -> Any:
        # Stateless, so that iterators can be saved in a checkpoint.
        return tf.numpy_function(_guard(function), arguments, types, stateful=False)

    @no_autograph  # type: ignore[untyped-decorator]
    def begin(number: Any) -> Any:
        scalars = call(lambda each: find().begin(each), [number], [tf.int64] * 3)
        return tuple(tf.ensure_shape(each, []) for each in scalars)

    @no_autograph  # type: ignore[untyped-decorator]
    def end(start: Any, following: Any) -> Any:
        ended = call(lambda *each: find().end(*map(int, each)), [start, following], tf.bool)
        return tf.ensure_shape(ended, [])

    @no_autograph  # type: ignore[untyped-decorator]
    def steps(start: Any, stop: Any, following: Any) -> Any:
        @no_autograph  # type: ignore[untyped-decorator]
        def get(step: Any, *_: Any) -> Any:
            until = tf.minimum(step + group, stop)
            parts = call(partial(_read, find, spec, group), [step, until], spec.dtypes)
            return spec.unpack(parts, several=group > 1)

        batches = tf.data.Dataset.range(start, stop, group).map(get)
        nothing = tf.data.Dataset.from_tensors((start, following)).filter(end).map(get)
        batches = batches.concatenate(nothing)
        return batches.unbatch() if group > 1 else batches

    dataset = tf.data.Dataset.range(1).map(begin).flat_map(steps)
    if not find().is_complete:
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(plan.steps_per_epoch))


def _read(
    find: Callable[[], Steps], spec: BatchSpec, group: int, step: Any, until: Any
) -> list[NDArray[Any]]:
    """Return the arrays of the batches of the steps ``[step, until)``."""
    batches = find().read(int(step), int(until))
    if group == 1:
        return spec.pack(batches[0])
    stacked: list[NDArray[Any]] = []
    for row, batch in enumerate(batches):
        packed = spec.pack(batch)
        if not stacked:
            stacked = [_aligned((len(batches), *part.shape), part.dtype) for part in packed]
        for stack, part in zip(stacked, packed, strict=True):
            stack[row] = part
    return stacked


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array that TensorFlow uses without a copy."""
    if dtype.kind == "O":
        return np.empty(shape, dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


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

    def begin(self) -> None:
        with self._condition:
            if self._is_exiting:
                self._rejected += 1
                raise ClosedError("the interpreter is exiting")
            self._running += 1

    def end(self) -> None:
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


def _guard(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises ClosedError as soon as the interpreter exits."""

    def call(*arguments: Any) -> Any:
        _CALLS.begin()
        try:
            return function(*arguments)
        finally:
            _CALLS.end()

    return call
