"""Tensors of columns, and the type of a batch: its arrays, and the tensors that they compose."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.loader import Loader
from covey.loader.batch import BatchFormat
from covey.schema import RaggedArray, SparseArray, SparseBatch, StringArray

try:
    tf: Any = importlib.import_module("tensorflow")
except ImportError as error:
    raise ImportError(
        "covey.adapters.tensorflow requires TensorFlow; install it with "
        "`pip install 'covey[tensorflow]'`",
        name="tensorflow",
    ) from error

no_autograph: Any = tf.autograph.experimental.do_not_convert
"""Decorator of functions that build a graph, whose source must not be converted."""


def tensor(value: Any) -> Any:
    """Return the tensor of an array: ragged, sparse, or of strings, like the array.

    Raises:
        FeatureError: If TensorFlow has no such tensors.

    >>> tensor(np.arange(3)).dtype, tensor(RaggedArray.of([[1, 2], []])).shape
    (tf.int64, TensorShape([2, None]))
    """
    if tf.is_tensor(value):
        return value
    parts = parts_of(value)
    if isinstance(value, RaggedArray):
        return _join_ragged([tf.convert_to_tensor(part) for part in parts])
    if isinstance(value, (SparseBatch, SparseArray)):
        return tf.SparseTensor(*parts)
    return tf.convert_to_tensor(parts[0])


def spec_of(value: Any) -> Any:
    """Return the ``tf.TypeSpec`` of a column."""
    if tf.is_tensor(value):
        return tf.type_spec_from_value(value)
    parts = parts_of(value)
    dtypes = [tf.string if part.dtype == object else tf.as_dtype(part.dtype) for part in parts]
    if isinstance(value, RaggedArray):
        depth = len(parts) - 1
        shape = [len(value), *[None] * depth, *parts[0].shape[1:]]
        return tf.RaggedTensorSpec(shape, dtypes[0], depth)
    if isinstance(value, SparseBatch):
        return tf.SparseTensorSpec([len(value), *value.shape], dtypes[1])
    return tf.TensorSpec(parts[0].shape, dtypes[0])


def part_dtypes(spec: Any) -> list[Any]:
    """Return the types of the arrays of a column."""
    if isinstance(spec, tf.RaggedTensorSpec):
        return [spec.dtype, *[tf.int64] * spec.ragged_rank]
    if isinstance(spec, tf.SparseTensorSpec):
        return [tf.int64, spec.dtype, tf.int64]
    return [spec.dtype]


def parts_of(value: Any) -> list[NDArray[Any]]:
    """Return the arrays of a column."""
    if type(value) is np.ndarray and value.dtype.kind in "biufc":
        return [value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))]
    if isinstance(value, StringArray):  # TensorFlow stores strings as bytes
        return [replace(value, text=False).to_numpy()]
    if isinstance(value, RaggedArray):
        return _ragged_parts(value)
    if isinstance(value, (SparseBatch, SparseArray)):
        return _sparse_parts(value)
    if isinstance(value, tf.RaggedTensor):
        splits = [each.numpy().astype(np.int64) for each in value.nested_row_splits]
        return [value.flat_values.numpy(), *splits]
    if isinstance(value, tf.SparseTensor):
        return [each.numpy() for each in (value.indices, value.values, value.dense_shape)]
    array = np.asarray(value)
    if array.dtype.kind in "US":
        array = array.astype(object)
    has_strings = array.dtype == object and all(
        isinstance(item, (str, bytes)) for item in array.flat
    )
    if array.dtype.kind not in "biufc" and not has_strings:
        raise FeatureError(
            f"TensorFlow has no tensor for a {type(value).__name__} of {array.dtype}",
            remedy="convert it in batch_transform= or an augmenter",
        )
    return [array]


def _ragged_parts(value: RaggedArray) -> list[NDArray[Any]]:
    """Return the values of all rows, and the row splits of each level, outermost first."""
    splits: list[NDArray[Any]] = []
    inner: Any = value
    while isinstance(inner, RaggedArray):
        if inner.row_shapes is not None:
            raise FeatureError(
                "the shapes of rows differ in more than the first dimension, for which TensorFlow "
                "has no ragged tensor",
                remedy="pad them in batch_transform=",
            )
        # The rows of a slice begin anywhere in the values.
        splits.append(inner.row_splits - inner.row_splits[0])
        inner = inner.values[int(inner.row_splits[0]) : int(inner.row_splits[-1])]
    return [*parts_of(inner), *splits]


def _sparse_parts(value: SparseBatch | SparseArray) -> list[NDArray[Any]]:
    """Return the indices in row-major order, the values, and the shape."""
    if isinstance(value, SparseArray):
        indices, values, shape = value.indices, value.values, value.shape
    else:
        rows = np.repeat(np.arange(len(value)), value.values.row_lengths)
        indices = np.stack([rows, *(axis.values for axis in value.indices)], axis=-1)
        values, shape = value.values.values, (len(value), *value.shape)
    order = np.lexsort(indices.T[::-1])
    return [indices[order], values[order], np.array(shape, np.int64)]


def _join_ragged(parts: Sequence[Any]) -> Any:
    return tf.RaggedTensor.from_nested_row_splits(parts[0], list(parts[1:]), validate=False)


def join(spec: Any, parts: Sequence[Any], several: bool) -> Any:
    """Return the tensor of a column in a graph, with its static shape."""
    if isinstance(spec, tf.SparseTensorSpec):
        indices, values, shape = parts
        indices.set_shape([None, spec.shape.rank])
        values.set_shape([None])
        shape.set_shape([spec.shape.rank])
        sparse = tf.SparseTensor(indices, values, shape)
        sparse.set_shape(spec.shape)
        return sparse
    if isinstance(spec, tf.RaggedTensorSpec):
        values, *splits = parts
        values.set_shape([None, *spec.shape[spec.ragged_rank + 1 :]])
        rows = spec.shape[0]
        for level, each in enumerate(splits):
            each.set_shape([None if level or rows is None else rows + 1])
        return _join_ragged(parts)
    parts[0].set_shape([None, *spec.shape] if several else spec.shape)
    return parts[0]


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
            reason = str(error).rpartition("More specifically: ")[2].partition("\n")[0]
            raise FeatureError(f"the structure of a batch differs from others: {reason}") from None
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


_REMEDY = "use pad=, or use image_size= for images, or give them one shape in batch_transform="


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
    is_ragged = batch_format.has_images and batch_format.options.images.ragged
    if is_ragged and not batch_format.has_hooks:
        raise FeatureError(
            "tf.data has no lists of arrays",
            option="image_size",
            found="ragged",
            allowed="(height, width), or a hook that returns arrays",
        )
    plan = loader.plan
    first = plan.step_at(loader.epoch * plan.batches_per_epoch)
    last = first + max(1, plan.steps_per_epoch) - 1
    steps = {first}
    if not batch_format.is_native or len(plan.batch(first)) != len(plan.batch(last)):
        steps.add(last)
    batches = [loader.batch(step) for step in sorted(steps)]
    if batch_format.pads_to_longest:
        # Both may have rows of the same length by chance: the same batch with more padding shows
        # which dimensions differ.
        batches.append(loader.copy(format=batch_format.with_extra_padding()).batch(first))
    specs = [tf.nest.map_structure(spec_of, _tidy(batch, lists_are_tuples)) for batch in batches]
    try:
        spec = specs[0]
        for other in specs[1:]:
            spec = tf.nest.map_structure(_common, spec, other)
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
