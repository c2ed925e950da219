"""The type of a batch: its decomposition into arrays, and its composition of tensors."""

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
    """The type of a batch.

    Args:
        spec: Nested ``tf.TypeSpec``.
        checks: Whether each batch is compared with it.
        lists_are_tuples: Whether a list is a tuple of arrays rather than a column of rows.
    """

    spec: Any
    checks: bool = False
    lists_are_tuples: bool = False

    @property
    def _leaves(self) -> list[Any]:
        return list(tf.nest.flatten(self.spec))

    @property
    def is_fixed(self) -> bool:
        """Whether all batches are dense tensors of known shapes."""
        leaves = self._leaves
        dense = all(isinstance(each, tf.TensorSpec) for each in leaves)
        return dense and all(each.shape.is_fully_defined() for each in leaves)

    @property
    def nbytes(self) -> int:
        """Size of a batch in bytes, if it is fixed."""
        return sum(each.shape.num_elements() * each.dtype.size for each in self._leaves)

    @property
    def dtypes(self) -> list[Any]:
        """Types of the arrays of a batch."""
        return [dtype for each in self._leaves for dtype in part_dtypes(each)]

    def pack(self, batch: Any) -> list[NDArray[Any]]:
        """Return the arrays of a batch."""
        if not self.checks:
            return [part for value in tf.nest.flatten(batch) for part in parts_of(value)]
        tidy = _tidy(batch, self.lists_are_tuples)
        try:
            tf.nest.assert_same_structure(self.spec, tidy)
        except (TypeError, ValueError) as error:
            raise FeatureError(f"the structure of a batch differs from others: {error}") from None
        packed = []
        for spec, value in zip(self._leaves, tf.nest.flatten(tidy), strict=True):
            found = spec_of(value)
            if not spec.is_compatible_with(found):
                raise FeatureError(
                    f"a batch has {_describe(found)}, but others have {_describe(spec)}",
                    remedy=f"{_REMEDY}, or pass element_spec= to to_tf",
                )
            packed += parts_of(value)
        return packed

    def unpack(self, parts: Sequence[Any], *, several: bool) -> Any:
        """Return the tensors of a batch, or of several batches of known shapes."""
        rest = list(parts)
        values = []
        for spec in self._leaves:
            count = len(part_dtypes(spec))
            own, rest = rest[:count], rest[count:]
            values.append(join(spec, own, several))
        return tf.nest.pack_sequence_as(self.spec, values)


_REMEDY = "give them one shape with batch_transform=, or image_size= if they are images"


def find_spec(loader: Loader, spec: Any = None) -> BatchSpec:
    """Return the type of the batches of a loader.

    Args:
        loader: The loader; the first batch of its epoch is built, and the last one if it may
            differ.
        spec: Nested ``tf.TypeSpec`` (default: that of these batches).
    """
    batch_format = loader.format
    assert isinstance(batch_format, BatchFormat)
    lists_are_tuples = batch_format.returns_tuples
    if spec is not None:
        return BatchSpec(spec, True, lists_are_tuples)
    plan = loader.plan
    first = plan.step_at(loader.epoch * plan.batches_per_epoch)
    last = first + max(1, plan.steps_per_epoch) - 1
    steps = {first}
    if not batch_format.is_native or len(plan.batch(first)) != len(plan.batch(last)):
        steps.add(last)
    specs = []
    for step in sorted(steps):
        batch = loader.batch(step)
        get_spec = partial(spec_of, relaxed=_unsized_images(batch_format, batch))
        specs.append(tf.nest.map_structure(get_spec, _tidy(batch, lists_are_tuples)))
    try:
        spec = tf.nest.map_structure(_common, specs[0], specs[-1])
    except (TypeError, ValueError) as error:
        raise FeatureError(
            f"the batches of the steps {first} and {last} have different types: {error}"
        ) from None
    return BatchSpec(spec, not batch_format.is_native, lists_are_tuples)


def _common(left: Any, right: Any) -> Any:
    common = left.most_specific_common_supertype([right])
    if common is None:
        raise TypeError(f"{_describe(left)} and {_describe(right)}")
    return common


def _unsized_images(format: BatchFormat, batch: Any) -> dict[int, Image]:
    """Return the image features of variable size by the identity of their columns."""
    if not format.has_images or format.options.image_size is not None or format.has_hooks:
        return {}
    x = batch[0] if isinstance(batch, tuple) else batch
    found = {}
    for name in format.names:
        kind = format.features[name]
        if isinstance(kind, Image) and None in kind.shape:
            found[id(format.features.find(x, name) if isinstance(x, Mapping) else x)] = kind
    return found


def _describe(spec: Any) -> str:
    kind = type(spec).__name__.removesuffix("Spec")
    return f"a {kind} of {spec.dtype.name} {tuple(spec.shape)}"


def _tidy(value: Any, lists_are_tuples: bool = False) -> Any:
    """Return a batch of dicts and tuples, with an array for each column."""
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
            f"the rows of a batch have different shapes, such as {sorted(shapes)[:2]}",
            remedy=_REMEDY,
        )
    return np.stack([np.asarray(each) for each in value])
