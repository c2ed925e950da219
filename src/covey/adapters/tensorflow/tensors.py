"""The arrays of a column, and the tensor that they compose."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema import Image, RaggedArray, SparseArray, SparseBatch, StringArray

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


def spec_of(value: Any, relaxed: Mapping[int, Image] | None = None) -> Any:
    """Return the ``tf.TypeSpec`` of a column.

    Args:
        value: The column.
        relaxed: Image features of variable size, by the identity of their columns.
    """
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
    shape = list(parts[0].shape)
    if relaxed and id(value) in relaxed:
        shape[1:] = relaxed[id(value)].shape
    return tf.TensorSpec(shape, dtypes[0])


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
