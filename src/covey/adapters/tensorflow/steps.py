"""A dataset of what a function of Python gives for each step of a plan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters.tensorflow.shutdown import stop_at_exit
from covey.adapters.tensorflow.spec import BatchSpec
from covey.adapters.tensorflow.tensors import no_autograph, tf
from covey.plan import Plan

# Memory that begins at a multiple of this is taken over by TensorFlow as it is, other is copied.
_ALIGNMENT = 64


def from_steps(
    batch: Callable[[int], Any], plan: Plan, first: int, form: BatchSpec, at_once: int = 1
) -> Any:
    """A dataset of what a function gives for each step of a plan; an iteration is an epoch.

    Args:
        batch: Gives the batch of a step.
        plan: Says how many steps an epoch has.
        first: The step that is the first.
        form: What a batch is.
        at_once: How many steps are asked for in one call, if all batches have one shape.
    """
    at_once = at_once if form.is_fixed else 1
    epochs = _Epochs(plan, first)
    make = stop_at_exit(partial(_make, batch, form, at_once > 1))
    begin_epoch, end_epoch = stop_at_exit(epochs.begin), stop_at_exit(epochs.end)
    dtypes = form.dtypes

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
            until = tf.minimum(step + at_once, stop)
            # Not stateful: else TensorFlow would save no iterator over it.
            parts = tf.numpy_function(make, [step, until], dtypes, stateful=False)
            return form.unpack(parts, several=at_once > 1)

        made = [
            tf.data.Dataset.range(start, stop, at_once).map(get),
            # Nothing, but asked for when an epoch is over: also by an iterator that was restored
            # just there, whose next epoch nobody has counted.
            tf.data.Dataset.from_tensors(following).filter(end).map(get),
        ]
        first, last = (each.unbatch() if at_once > 1 else each for each in made)
        return first.concatenate(last)

    dataset = tf.data.Dataset.range(1).map(begin).flat_map(steps)
    if plan.batch_at(first) % plan.batches_per_epoch:  # the first epoch is shorter than others
        return dataset
    return dataset.apply(tf.data.experimental.assert_cardinality(plan.steps_per_epoch))


def _scalars(tensors: Sequence[Any]) -> tuple[Any, ...]:
    for each in tensors:
        each.set_shape([])
    return tuple(tensors)


class _Epochs:
    """Which steps the next iteration has. TensorFlow asks, in threads of its own."""

    def __init__(self, plan: Plan, first: int) -> None:
        self._plan = plan
        self._next = first
        self._lock = threading.Lock()

    def begin(self, _: Any) -> tuple[int, int, int]:
        """The first step of the next epoch, the one behind its last, and that of the one after."""
        plan = self._plan
        with self._lock:
            start = self._next
            batch = plan.batch_at(start)
            self._next = plan.step_at(plan.end_of_epoch(batch))
            return start, start + plan.steps_left(batch), self._next

    def end(self, following: Any) -> bool:
        """Have the epoch follow that follows the one which was just gone through."""
        with self._lock:
            self._next = int(following)
        return False


def _make(
    batch: Callable[[int], Any], form: BatchSpec, several: bool, step: Any, until: Any
) -> list[NDArray[Any]]:
    """What TensorFlow gets of the batches of some steps."""
    if not several:
        return form.pack(batch(int(step)))
    steps = range(int(step), int(until))
    stacked: list[NDArray[Any]] = []
    for row, each in enumerate(steps):
        packed = form.pack(batch(each))
        if not stacked:
            stacked = [_aligned((len(steps), *part.shape), part.dtype) for part in packed]
        for complete, part in zip(stacked, packed, strict=True):
            complete[row] = part
    return stacked


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array that TensorFlow takes over without a copy."""
    if dtype.kind == "O":
        return np.empty(shape, dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)
