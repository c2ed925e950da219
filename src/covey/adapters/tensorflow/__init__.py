"""TensorFlow: batches as its tensors, and loaders as a ``tf.data.Dataset``."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from covey.adapters.step_reader import StepReader
from covey.adapters.tensorflow.spec import BatchSpec, find_spec
from covey.adapters.tensorflow.steps import from_steps
from covey.adapters.tensorflow.tensors import tensor, tf
from covey.errors import PlanError
from covey.loader import Loader

__all__ = ["tensor", "to_tf"]

# Small batches are returned some at a time: a call of Python costs more than they do.
_BATCHES_AT_ONCE = 8
_BYTES_AT_ONCE = 1 << 20


def to_tf(loader: Loader, *, element_spec: Any = None, at_once: int | None = None) -> Any:
    """The batches of a loader as a ``tf.data.Dataset``.

    An iteration over it is an epoch, and the next iteration the next epoch: ``fit(ds, epochs=3)``
    and ``ds.repeat(3)`` are what three loops over the loader are. The first one begins where the
    loader is now; the loader itself stays there. To go on somewhere, ``loader.seek(step)`` before;
    or save an iterator in a ``tf.train.Checkpoint``, which goes on exactly.

    Args:
        loader: Whose batches.
        element_spec: What batches are; by default found out from the first and the last one of an
            epoch. Dimensions in which these differ are None.
        at_once: How many batches are taken over in one call, if all have one shape; by default
            some, if they are small and made by native threads.

    Raises:
        FeatureError: If tf.data has nothing like these batches.
        PlanError: If the loader overwrites its batches.

    >>> import covey
    >>> birds = ({"size": float(n), "species": n % 3} for n in range(30))
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
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
    form = find_spec(loader, element_spec)
    if at_once is None:
        is_cheap = loader.format.is_native and form.is_fixed
        at_once = batches_at_once(form.nbytes) if is_cheap else 1
    return dataset_of(loader, form, at_once)


def dataset_of(loader: Loader, form: BatchSpec, at_once: int) -> Any:
    """The same, of batches whose form is known."""
    follower = StepReader(loader)
    following = _StepFunction(loader, follower)
    dataset = from_steps(following, loader.plan, loader.step, form, at_once)
    if loader.plan.world_size > 1:  # this rank has its part already
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
    dataset._covey_follower = follower  # datasets and iterators made of this one have it, too
    return dataset


def batches_at_once(nbytes: int) -> int:
    """How many batches of a size are returned in one call."""
    return max(1, min(_BATCHES_AT_ONCE, _BYTES_AT_ONCE // max(1, nbytes)))


class _StepFunction:
    """The batches of a loader by their steps, made ahead as long as somebody has the dataset.

    TensorFlow keeps functions of Python for ever. So what makes batches ahead, with its files,
    threads and buffers, belongs to the dataset. If only TensorFlow itself still has that, in a
    graph, it is begun again.
    """

    def __init__(self, loader: Loader, follower: StepReader) -> None:
        self._encode_again = _without_files(loader)
        self._follower = weakref.ref(follower)
        self._kept: StepReader | None = None

    def __call__(self, step: int) -> Any:
        follower = self._follower() or self._kept
        if follower is None:
            follower = self._kept = StepReader(self._encode_again())
        return follower[step]


def _without_files(loader: Loader) -> Callable[[], Loader]:
    """What makes a loader again, and does not keep what it has open, if that can be."""
    try:
        return partial(pickle.loads, pickle.dumps(loader))
    except Exception:  # of a hook, say: then it is kept
        return loader.copy
