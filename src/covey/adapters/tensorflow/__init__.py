"""TensorFlow: a ``tf.data.Dataset`` over the batches of a loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters.tensorflow.steps import guard, reference
from covey.adapters.tensorflow.tensors import BatchSpec, find_spec, no_autograph, tensor, tf
from covey.errors import PlanError
from covey.loader import Loader

__all__ = ["position_callback", "tensor", "to_tf"]

# TensorFlow uses memory with this alignment, and copies other memory.
_ALIGNMENT = 64

# Small batches are passed to TensorFlow several per call, because a call costs more than they do.
_MAX_GROUPED_BATCHES = 8
_MAX_GROUPED_BYTES = 1 << 20


def to_tf(loader: Loader, *, element_spec: Any = None) -> Any:
    """Return a ``tf.data.Dataset`` over the batches of a loader.

    Each iteration is an epoch, which begins at the position of the loader and moves it to the
    following epoch: ``fit(ds, epochs=3)`` and ``ds.repeat(3)`` have the batches of three iterations
    over the loader, and so have three datasets of the same loader. tf.data prefetches, so the
    position does not count the batches within an epoch. To resume there, use
    :func:`position_callback` with Keras, or save an iterator of the dataset in a
    ``tf.train.Checkpoint``. In the latter case, call ``repeat`` before ``map`` and ``prefetch``:
    their threads reach the end of an epoch before the iterator does.

    Args:
        loader: The loader.
        element_spec: The type of a batch (default: follows from the features. If there are hooks,
            it is the type of the next batch of the loader, with None for the number of rows if the
            last batch of an epoch is shorter, and for dimensions that depend on the length of
            padded features without `pad_length`).

    Raises:
        FeatureError: If tf.data has no type for the batches.
        PlanError: If the loader reuses buffers.

    >>> import covey
    >>> birds = ({"size": float(n), "species": n % 3} for n in range(30))
    >>> _ = covey.write(birds, "birds", split="train", label="species", progress=False)
    >>> ds = to_tf(covey.open("birds").batches(2, 2, seed=1))
    >>> [tuple(each.shape) for each in ds.element_spec], int(ds.cardinality())
    ([(4,), (4,)], 8)
    """
    if loader.options.reuse_buffers:
        raise PlanError(
            "tf.data keeps batches", option="reuse_buffers", found=True, allowed="False"
        )
    spec = find_spec(loader, element_spec)
    is_cheap = loader.format.is_native and spec.is_fixed
    return make_dataset(loader, spec, group_size(spec.nbytes) if is_cheap else 1)


def make_dataset(loader: Loader, spec: BatchSpec, group: int) -> Any:
    """Return a ``tf.data.Dataset`` over batches of a known type.

    An epoch is a range of steps, so that TensorFlow can save the position. The last element of an
    epoch is a filter without result: it calls ``StepSource.end`` when the epoch is exhausted, also
    in an iterator that was restored from a checkpoint.

    Args:
        loader: The loader.
        spec: The type of a batch.
        group: Number of batches per call from TensorFlow, if all have the same shape.
    """
    group = group if spec.is_fixed else 1
    owned, find = reference(loader)

    def call(function: Callable[..., Any], arguments: list[Any], types: Any) -> Any:
        # Stateless, so that iterators can be saved in a checkpoint.
        return tf.numpy_function(guard(function), arguments, types, stateful=False)

    def read(start: Any, until: Any) -> list[NDArray[Any]]:
        packed = [spec.pack(batch) for batch in find().read(int(start), int(until))]
        return list(map(_stack, zip(*packed, strict=True))) if group > 1 else packed[0]

    @no_autograph  # type: ignore[untyped-decorator]
    def begin(number: Any) -> Any:  # without an argument, its result would be a constant
        scalars = call(lambda _: find().begin(), [number], [tf.int64] * 3)
        return tuple(tf.ensure_shape(each, []) for each in scalars)

    @no_autograph  # type: ignore[untyped-decorator]
    def end(start: Any, following: Any) -> Any:
        ended = call(lambda *each: find().end(*map(int, each)), [start, following], tf.bool)
        return tf.ensure_shape(ended, [])

    @no_autograph  # type: ignore[untyped-decorator]
    def steps(start: Any, stop: Any, following: Any) -> Any:
        @no_autograph  # type: ignore[untyped-decorator]
        def get(step: Any, *_: Any) -> Any:
            parts = call(read, [step, tf.minimum(step + group, stop)], spec.dtypes)
            return spec.unpack(parts, several=group > 1)

        batches = tf.data.Dataset.range(start, stop, group).map(get)
        nothing = tf.data.Dataset.from_tensors((start, following)).filter(end).map(get)
        batches = batches.concatenate(nothing)
        return batches.unbatch() if group > 1 else batches

    dataset = tf.data.Dataset.range(1).map(begin).flat_map(steps)
    if owned.is_complete:
        cardinality = loader.plan.steps_per_epoch
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(cardinality))
    if loader.plan.world_size > 1:  # the batches are those of this rank already
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
    dataset._covey_steps = owned  # is kept alive by derived datasets and iterators, too
    return dataset


def _stack(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return stacked arrays in memory that TensorFlow uses without a copy."""
    shape, dtype = (len(parts), *parts[0].shape), parts[0].dtype
    if dtype.kind == "O":
        return np.stack(parts)
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return np.stack(parts, out=memory[begin : begin + size].view(dtype).reshape(shape))


def group_size(nbytes: int) -> int:
    """Return the number of batches of `nbytes` bytes to pass per call."""
    return max(1, min(_MAX_GROUPED_BATCHES, _MAX_GROUPED_BYTES // max(1, nbytes)))


def position_callback(loader: Loader, *, first_step: int = 0) -> Any:
    """Return a Keras callback that moves a loader to the batch that follows the last trained one.

    Keras saves the number of batches that an optimizer was applied to, ``optimizer.iterations``.
    ``fit`` begins at that step of the loader, also if ``BackupAndRestore`` restored the optimizer
    after a batch within an epoch, and with any ``steps_per_execution``. The first epoch of ``fit``
    then has the remaining batches of that epoch.

    Steps that a loss scale skips, because gradients overflow, are not counted.

    Args:
        loader: The loader, whose ``to_tf()`` is passed to ``fit``.
        first_step: The step of the loader at which the optimizer was new.
    """
    left: list[int] = []  # batches of the first epoch, if it is incomplete

    def begin_training(logs: Any = None) -> None:
        left[:] = [-1]

    def begin_epoch(epoch: int, logs: Any = None) -> None:
        if left:  # other callbacks have restored the optimizer
            optimizer = callback.model.optimizer
            optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
            # Without the underscore, Keras 3 counts updates by several accumulated gradients.
            count = getattr(optimizer, "_iterations", optimizer.iterations)
            step = first_step + int(count.numpy())
            loader.seek(step)
            batch = loader.plan.batch_at(step)
            is_within = batch % loader.plan.batches_per_epoch
            left[:] = [loader.plan.steps_left(batch)] if is_within else []

    def end_batch(batch: int, logs: Any = None) -> None:
        if left and batch + 1 >= left[0]:
            callback.model.stop_training = True

    def end_epoch(epoch: int, logs: Any = None) -> None:
        if left:
            callback.model.stop_training = False
            left.clear()

    callback = tf.keras.callbacks.LambdaCallback(
        on_train_begin=begin_training,
        on_epoch_begin=begin_epoch,
        on_train_batch_end=end_batch,
        on_epoch_end=end_epoch,
    )
    return callback
