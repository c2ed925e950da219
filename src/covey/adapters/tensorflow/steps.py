"""A ``tf.data.Dataset`` over the results of a Python function of the step."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from covey.adapters.tensorflow.tensors import BatchSpec, no_autograph, tf
from covey.errors import ClosedError
from covey.plan import Plan

Result = TypeVar("Result")

# TensorFlow uses memory with this alignment, and copies other memory.
_ALIGNMENT = 64

# Time to wait at exit for running calls, and interval without a call that ends the wait.
_EXIT_TIMEOUT_S = 10.0
_QUIET_INTERVAL_S = 0.05


def from_steps(
    batch: Callable[[int], Any], plan: Plan, first: int, spec: BatchSpec, group: int = 1
) -> Any:
    """Return a dataset whose iterations are epochs of a plan.

    Its elements are the results of `batch` for the steps ``[start, stop)`` of an epoch, which
    ``begin`` returns when an iteration starts. The last element of the inner dataset is a filter
    without result: it calls ``end`` when an epoch is exhausted, also in an iterator that was
    restored from a checkpoint, so that the next iteration is the epoch that follows.

    Args:
        batch: Function from a step to its batch.
        plan: The plan, which determines the steps of an epoch.
        first: First step.
        spec: The type of a batch.
        group: Number of steps per call, if all batches have the same shape.
    """
    group = group if spec.is_fixed else 1
    epochs = _Epochs(plan, first)
    make = _stop_at_exit(partial(_make, batch, spec, group > 1))
    begin_epoch, end_epoch = _stop_at_exit(epochs.begin), _stop_at_exit(epochs.end)
    dtypes = spec.dtypes

    @no_autograph  # type: ignore[untyped-decorator]
    def begin(number: Any) -> Any:
        return _scalars(tf.numpy_function(begin_epoch, [number], [tf.int64] * 3, stateful=False))

    @no_autograph  # type: ignore[untyped-decorator]
    def end(following: Any) -> Any:
        return tf.ensure_shape(
            tf.numpy_function(end_epoch, [following], tf.bool, stateful=False), []
        )

    @no_autograph  # type: ignore[untyped-decorator]
    def steps(start: Any, stop: Any, following: Any) -> Any:
        @no_autograph  # type: ignore[untyped-decorator]
        def get(step: Any) -> Any:
            until = tf.minimum(step + group, stop)
            # Stateless, so that iterators can be saved in a checkpoint.
            parts = tf.numpy_function(make, [step, until], dtypes, stateful=False)
            return spec.unpack(parts, several=group > 1)

        made = [
            tf.data.Dataset.range(start, stop, group).map(get),
            tf.data.Dataset.from_tensors(following).filter(end).map(get),
        ]
        first, last = (each.unbatch() if group > 1 else each for each in made)
        return first.concatenate(last)

    dataset = tf.data.Dataset.range(1).map(begin).flat_map(steps)
    if plan.batch_at(first) % plan.batches_per_epoch:  # the first epoch is incomplete
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(plan.steps_per_epoch))


def _scalars(tensors: Sequence[Any]) -> tuple[Any, ...]:
    for each in tensors:
        each.set_shape([])
    return tuple(tensors)


class _Epochs:
    """The steps of the next iteration, for the threads of TensorFlow."""

    def __init__(self, plan: Plan, first: int) -> None:
        self._plan = plan
        self._next = first
        self._lock = threading.Lock()

    def begin(self, _: Any) -> tuple[int, int, int]:
        """Begin an epoch; return its first step, its end, and the first step of the next one."""
        plan = self._plan
        with self._lock:
            start = self._next
            batch = plan.batch_at(start)
            self._next = plan.step_at(plan.end_of_epoch(batch))
            return start, start + plan.steps_left(batch), self._next

    def end(self, following: Any) -> bool:
        """Continue with the epoch that begins with `following`."""
        with self._lock:
            self._next = int(following)
        return False


def _make(
    batch: Callable[[int], Any], spec: BatchSpec, several: bool, step: Any, until: Any
) -> list[NDArray[Any]]:
    """Return the arrays of the batches of the steps ``[step, until)``."""
    if not several:
        return spec.pack(batch(int(step)))
    steps = range(int(step), int(until))
    stacked: list[NDArray[Any]] = []
    for row, number in enumerate(steps):
        packed = spec.pack(batch(number))
        if not stacked:
            stacked = [_aligned((len(steps), *part.shape), part.dtype) for part in packed]
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


def _stop_at_exit(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that raises ClosedError as soon as the interpreter exits."""

    def call(*arguments: Any) -> Result:
        _CALLS.begin()
        try:
            return function(*arguments)
        finally:
            _CALLS.end()

    return call
