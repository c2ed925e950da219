"""TensorFlow: a ``tf.data.Dataset`` over the batches of a loader."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

from covey.adapters.tensorflow.steps import Steps, from_steps
from covey.adapters.tensorflow.tensors import BatchSpec, find_spec, tensor, tf
from covey.errors import ClosedError, PlanError
from covey.loader import Loader

__all__ = ["position_callback", "tensor", "to_tf"]

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
            "tf.data keeps batches",
            option="reuse_buffers",
            found=True,
            allowed="False",
        )
    spec = find_spec(loader, element_spec)
    is_cheap = loader.format.is_native and spec.is_fixed
    return make_dataset(loader, spec, group_size(spec.nbytes) if is_cheap else 1)


def make_dataset(loader: Loader, spec: BatchSpec, group: int) -> Any:
    """Return a ``tf.data.Dataset`` over batches of a known type.

    Args:
        loader: The loader.
        spec: The type of a batch.
        group: Number of batches per call from TensorFlow.
    """
    steps = Steps(loader, _open)
    dataset = from_steps(_reference(steps, loader), loader.plan, spec, group)
    if loader.plan.world_size > 1:  # the batches are those of this rank already
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
    dataset._covey_steps = steps  # is kept alive by derived datasets and iterators, too
    return dataset


def group_size(nbytes: int) -> int:
    """Return the number of batches of `nbytes` bytes to pass per call."""
    return max(1, min(_MAX_GROUPED_BATCHES, _MAX_GROUPED_BYTES // max(1, nbytes)))


def _open(loader: Any, step: int) -> Iterator[Any]:
    own = loader.copy()
    own.seek(step)
    batches: Iterator[Any] = own.take(sys.maxsize) if own.plan.is_endless else iter(own)
    return batches


def _reference(steps: Steps, loader: Loader) -> Any:
    """Return a function that returns `steps`, without a reference to them.

    TensorFlow keeps Python functions for ever. Therefore the dataset owns the steps, with their
    files, threads and buffers. If only a graph of TensorFlow refers to the dataset, others are made
    of the loader.
    """
    owned, known = weakref.ref(steps), weakref.ref(loader)
    others: list[Steps] = []

    def find() -> Steps:
        found = owned() or (others[0] if others else None)
        if found is None:
            owner = known()
            if owner is None:
                raise ClosedError(
                    "the dataset and its loader were deleted",
                    remedy="keep a reference to the loader",
                )
            found = Steps(owner, _open)
            others.append(found)
        return found

    return find


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
            step = first_step + int(getattr(optimizer, "_iterations", optimizer.iterations))
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
