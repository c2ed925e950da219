"""Blocks of Ray Data: columns of examples as Arrow tables.

==================================  ==============================================================
feature                             column
==================================  ==============================================================
a number, a class label             a number of the same type; int64
a string, an encoded image          string, binary
numbers of known shape, sparse      tensors of Ray of one shape
numbers of unknown length           list
numbers of other unknown shapes     tensors of Ray of different shapes
several strings, nested lists       nested lists
decoded images                      tensors of Ray: of one shape if the feature declares it
==================================  ==============================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from ray.data.extensions import (
    ArrowTensorArray,
    ArrowVariableShapedTensorArray,
    ArrowVariableShapedTensorType,
)

from covey.arrays import RaggedArray, SparseBatch, StringArray
from covey.errors import DatasetError
from covey.schema import ClassLabel, Image, Ragged, Sparse, Steps, Tensor
from covey.schema.columns import MAX_EXAMPLE_BYTES, STRINGS, Shape
from covey.schema.types import Feature

_STRING_TYPES = {"str": pa.string(), "bytes": pa.binary()}


def find_schema(kinds: Mapping[str, Feature], *, pixels: bool) -> pa.Schema:
    """Return the schema of the blocks of features.

    Args:
        kinds: The features.
        pixels: Whether images are decoded.

    Raises:
        DatasetError: If a feature has no type in Arrow.
    """
    return pa.schema([(name, _type_of(name, kind, pixels)) for name, kind in kinds.items()])


def make_block(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return columns of examples as a block.

    Args:
        columns: The columns.
        schema: Schema of their features.
    """
    arrays = [_convert(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


# Types.


def tensor_shape(kind: Feature, *, pixels: bool) -> Shape | None:
    """Return the shape of a feature whose values are tensors of Ray; None for other features."""
    if isinstance(kind, Image):
        return kind.shape if pixels else None
    if isinstance(kind, Sparse):
        return kind.shape
    if not isinstance(kind, Tensor) or kind.dtype in STRINGS:
        return None
    return None if kind.shape in ((), (None,)) else kind.shape


def _type_of(name: str, kind: Any, pixels: bool) -> pa.DataType:
    shape = tensor_shape(kind, pixels=pixels)
    if shape is not None:
        return _tensor_type(name, np.dtype(kind.dtype), shape)
    if isinstance(kind, Image):
        return pa.binary()
    if isinstance(kind, ClassLabel):
        return pa.int64()
    if isinstance(kind, Tensor):
        levels = len(kind.shape)
    elif isinstance(kind, Ragged):
        levels = kind.depth + len(kind.shape)
    elif isinstance(kind, Steps):
        levels = 1 + len(kind.shape)
    else:
        raise DatasetError(
            f"it is {kind}, which has no counterpart in Ray",
            feature=name,
            remedy="pass select= without it",
        )
    found = _STRING_TYPES.get(kind.dtype) or pa.from_numpy_dtype(np.dtype(kind.dtype))
    for _ in range(levels):
        found = pa.list_(found)
    return found


def _tensor_type(name: str, dtype: np.dtype[Any], shape: Shape) -> pa.DataType:
    if None in shape:
        return ArrowVariableShapedTensorArray.from_numpy([np.zeros([1] * len(shape), dtype)]).type
    sizes = [size or 0 for size in shape]
    if math.prod(sizes) * dtype.itemsize > MAX_EXAMPLE_BYTES:  # a sparse tensor
        raise DatasetError(
            f"a dense tensor of shape {tuple(sizes)} exceeds 2 GiB",
            feature=name,
            remedy="pass select= without it",
        )
    return ArrowTensorArray.from_numpy(np.zeros([1, *sizes], dtype)).type


# Arrays.


def _convert(column: Any, kind: pa.DataType) -> pa.Array:
    """Return a column as an array of a type."""
    if isinstance(column, SparseBatch):
        column = np.stack([each.to_dense() for each in column])
    if isinstance(kind, pa.BaseExtensionType):
        is_ragged = not isinstance(column, np.ndarray)
        if is_ragged or isinstance(kind, ArrowVariableShapedTensorType):
            return ArrowVariableShapedTensorArray.from_numpy(list(column))
        return ArrowTensorArray.from_numpy(column)
    if isinstance(column, RaggedArray) and column.row_shapes is not None:
        return pa.array(column.tolist(), kind)  # strings of which an inner dimension is unknown
    return _nest(column)


def _nest(column: Any) -> pa.Array:
    """Return a column as an array of values or of nested lists."""
    if isinstance(column, RaggedArray):
        return pa.ListArray.from_arrays(_offsets(column.row_splits), _nest(column.values))
    rows, *sizes = column.shape
    if isinstance(column, StringArray):
        kind = _STRING_TYPES["str" if column.text else "bytes"]
        buffers = [None, _offsets(column.offsets).buffers()[1], pa.py_buffer(column.data)]
        values = pa.Array.from_buffers(kind, len(column.offsets) - 1, buffers)
    else:
        values = pa.array(column.reshape(-1))
    for axis in reversed(range(len(sizes))):
        count = rows * math.prod(sizes[:axis])
        values = pa.ListArray.from_arrays(_offsets(np.arange(count + 1) * sizes[axis]), values)
    return values


def _offsets(splits: NDArray[np.int64]) -> pa.Array:
    return pa.array(splits).cast(pa.int32())  # raises an error if they are too large
