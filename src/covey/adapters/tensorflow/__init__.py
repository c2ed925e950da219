"""TensorFlow: a ``tf.data.Dataset`` over the batches of a loader."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from covey.adapters.step_reader import StepReader
from covey.adapters.tensorflow.steps import from_steps
from covey.adapters.tensorflow.tensors import BatchSpec, find_spec, tensor, tf
from covey.errors import PlanError
from covey.loader import Loader

__all__ = ["tensor", "to_tf"]

# Small batches are passed to TensorFlow several per call, because a call costs more than they do.
_MAX_GROUPED_BATCHES = 8
_MAX_GROUPED_BYTES = 1 << 20


def to_tf(loader: Loader, *, element_spec: Any = None, group: int | None = None) -> Any:
    """Return a ``tf.data.Dataset`` over the batches of a loader.

    Each iteration is the next epoch: ``fit(ds, epochs=3)`` and ``ds.repeat(3)`` have the batches of
    three iterations over the loader. The first one begins at the position of the loader, which does
    not change. To resume, move the loader before with ``seek`` or ``load_state_dict``, or save an
    iterator of the dataset in a ``tf.train.Checkpoint``. In the latter case, call ``repeat`` before
    ``map`` and ``prefetch``: their threads reach the end of an epoch before the iterator does.

    Args:
        loader: The loader.
        element_spec: The type of a batch (default: that of the first and the last batch of an
            epoch, with None for dimensions in which they differ, and for the length of padded
            features without `pad_length`).
        group: Number of batches per call from TensorFlow, if all have the same shape (default:
            several, if they are small and built by native threads).

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
    if group is None:
        is_cheap = loader.format.is_native and spec.is_fixed
        group = group_size(spec.nbytes) if is_cheap else 1
    return make_dataset(loader, spec, group)


def make_dataset(loader: Loader, spec: BatchSpec, group: int) -> Any:
    """Return a ``tf.data.Dataset`` over batches of a known type.

    Args:
        loader: The loader.
        spec: The type of a batch.
        group: Number of batches per call from TensorFlow.
    """
    reader = StepReader(loader)
    build = _StepFunction(loader, reader)
    dataset = from_steps(build, loader.plan, loader.step, spec, group)
    if loader.plan.world_size > 1:  # the batches are those of this rank already
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
    dataset._covey_reader = reader  # is kept alive by derived datasets and iterators, too
    return dataset


def group_size(nbytes: int) -> int:
    """Return the number of batches of `nbytes` bytes to pass per call."""
    return max(1, min(_MAX_GROUPED_BATCHES, _MAX_GROUPED_BYTES // max(1, nbytes)))


class _StepFunction:
    """Function from a step to its batch, prefetched as long as the dataset is referenced.

    TensorFlow keeps Python functions for ever. Therefore the dataset owns the reader, with its
    files, threads and buffers. If only a graph of TensorFlow refers to the dataset, another reader
    is created.
    """

    def __init__(self, loader: Loader, reader: StepReader) -> None:
        self._reload = _without_files(loader)
        self._reader = weakref.ref(reader)
        self._other: StepReader | None = None

    def __call__(self, step: int) -> Any:
        reader = self._reader() or self._other
        if reader is None:
            reader = self._other = StepReader(self._reload())
        return reader[step]


def _without_files(loader: Loader) -> Callable[[], Loader]:
    """Return a function that restores a loader, without a reference to its open files."""
    try:
        return partial(pickle.loads, pickle.dumps(loader))
    except Exception:  # a hook cannot be pickled
        return loader.copy
