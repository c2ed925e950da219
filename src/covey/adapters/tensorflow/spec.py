"""What batches are: how they are taken apart into arrays, and put together as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters.tensorflow.tensors import join, part_dtypes, parts_of, spec_of, tf
from covey.errors import FeatureError
from covey.loader import Loader
from covey.loader.batch import BatchFormat
from covey.schema import Image


@dataclass(frozen=True)
class BatchSpec:
    """How a batch is taken apart into arrays, and put together as tensors.

    Args:
        spec: What it is, in TensorFlow's words.
        checks: Whether each batch is compared with that.
        lists_are_tuples: Whether a list of a function is several things, or one for each example.
    """

    spec: Any
    checks: bool = False
    lists_are_tuples: bool = False

    @property
    def _leaves(self) -> list[Any]:
        return list(tf.nest.flatten(self.spec))

    @property
    def is_fixed(self) -> bool:
        """Whether all batches are tensors of known shapes."""
        leaves = self._leaves
        dense = all(isinstance(each, tf.TensorSpec) for each in leaves)
        return dense and all(each.shape.is_fully_defined() for each in leaves)

    @property
    def nbytes(self) -> int:
        """Of a batch, if it is fixed."""
        return sum(each.shape.num_elements() * each.dtype.size for each in self._leaves)

    @property
    def dtypes(self) -> list[Any]:
        """Of the arrays that a batch is taken apart into."""
        return [dtype for each in self._leaves for dtype in part_dtypes(each)]

    def pack(self, batch: Any) -> list[NDArray[Any]]:
        """The arrays of a batch."""
        if not self.checks:
            return [part for value in tf.nest.flatten(batch) for part in parts_of(value)]
        tidy = _tidy(batch, self.lists_are_tuples)
        try:
            tf.nest.assert_same_structure(self.spec, tidy)
        except (TypeError, ValueError) as error:
            raise FeatureError(f"a batch has another structure than others: {error}") from None
        packed = []
        for spec, value in zip(self._leaves, tf.nest.flatten(tidy), strict=True):
            found = spec_of(value)
            if not spec.is_compatible_with(found):
                raise FeatureError(
                    f"a batch has {_told(found)}, but others have {_told(spec)}; {_REMEDY}, or say "
                    "what differs: covey.adapters.tensorflow.to_tf(loader, element_spec=...)"
                )
            packed += parts_of(value)
        return packed

    def unpack(self, parts: Sequence[Any], *, several: bool) -> Any:
        """The tensors of a batch, or of several that all have known shapes."""
        rest = list(parts)
        values = []
        for spec in self._leaves:
            count = len(part_dtypes(spec))
            own, rest = rest[:count], rest[count:]
            values.append(join(spec, own, several))
        return tf.nest.pack_sequence_as(self.spec, values)


_REMEDY = "have batch_transform= make them one shape, or image_size= if they are images"


def find_spec(loader: Loader, spec: Any = None) -> BatchSpec:
    """What the batches of a loader are.

    Args:
        loader: Its first and its last batch of an epoch are made, if others may differ from these.
        spec: What they are, if somebody says so.
    """
    format = loader.format
    assert isinstance(format, BatchFormat)
    lists_are_tuples = format.returns_tuples
    if spec is not None:
        return BatchSpec(spec, True, lists_are_tuples)
    plan = loader.plan
    first = plan.step_at(loader.epoch * plan.batches_per_epoch)
    last = first + max(1, plan.steps_per_epoch) - 1
    looked_at = {first}
    if not format.is_native or len(plan.batch(first)) != len(plan.batch(last)):
        looked_at.add(last)
    specs = []
    for step in sorted(looked_at):
        batch = loader.batch(step)
        tell = partial(spec_of, relaxed=_unsized_images(format, batch))
        specs.append(tf.nest.map_structure(tell, _tidy(batch, lists_are_tuples)))
    try:
        spec = tf.nest.map_structure(_common, specs[0], specs[-1])
    except (TypeError, ValueError) as error:
        raise FeatureError(
            f"the batches of the steps {first} and {last} are of different kinds: {error}"
        ) from None
    return BatchSpec(spec, not format.is_native, lists_are_tuples)


def _common(left: Any, right: Any) -> Any:
    common = left.most_specific_common_supertype([right])
    if common is None:
        raise TypeError(f"{_told(left)} and {_told(right)}")
    return common


def _unsized_images(format: BatchFormat, batch: Any) -> dict[int, Image]:
    """Columns of images whose sizes may differ, by their identity, if no function changes them."""
    if not format.has_images or format.options.image_size is not None or format.has_hooks:
        return {}
    x = batch[0] if isinstance(batch, tuple) else batch
    found = {}
    for name in format.names:
        kind = format.features[name]
        if isinstance(kind, Image) and None in kind.shape:
            found[id(format.features.find(x, name) if isinstance(x, Mapping) else x)] = kind
    return found


def _told(spec: Any) -> str:
    kind = type(spec).__name__.removesuffix("Spec")
    return f"a {kind} of {spec.dtype.name} {tuple(spec.shape)}"


def _tidy(value: Any, lists_are_tuples: bool = False) -> Any:
    """A batch in dicts and tuples, with an array of some kind for each column."""
    if isinstance(value, list) and lists_are_tuples:
        return tuple(map(_tidy, value))
    if isinstance(value, Mapping):
        return {name: _tidy(each) for name, each in value.items()}
    if isinstance(value, tuple):
        inner = map(_tidy, value)
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    if not isinstance(value, list):
        return value
    if all(isinstance(each, (str, bytes)) for each in value):
        return np.array(value, object)
    shapes = {np.shape(each) for each in value}
    if len(shapes) > 1:
        raise FeatureError(
            f"examples of a batch have different shapes, such as {sorted(shapes)[:2]}; {_REMEDY}"
        )
    return np.stack([np.asarray(each) for each in value])
