"""Features with a structure: ragged, sparse, and the steps of a SequenceExample."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema.arrays import RaggedArray, SparseArray, SparseBatch
from covey.schema.columns import (
    STRINGS,
    Column,
    Shape,
    as_array,
    check_shape,
    check_value_shape,
    parse_dtype,
)
from covey.schema.types import REQUIRED, Feature, InconsistentColumnsError


def _empty(default: Any) -> Any:
    """Check a default that can only be empty."""
    if default is REQUIRED:
        return REQUIRED
    if not hasattr(default, "__len__") or len(default):
        raise FeatureError(option="default", found=default, allowed="[]")
    return ()


def _list_column(key: str, dtype: str, required: bool, shape: Shape = ()) -> Column:
    """Return a column of any number of values."""
    column = Column(key, dtype, (None, *shape), layout="variable")
    if required:
        return column
    empty: Any = [] if column.is_string else np.zeros(0, column.numpy_dtype)
    return dataclasses.replace(column, required=False, default=empty)


def _row_of(column: RaggedArray, chosen: NDArray[np.bool_]) -> int:
    """Return the row of the first chosen value."""
    first = int(np.argmax(chosen))
    return int(np.searchsorted(column.row_splits, first, side="right")) - 1


@dataclass(frozen=True)
class Ragged(Feature):
    """Nested lists of any lengths: ``depth`` levels of lists, with values of one shape.

    Stored like the nested sequences of TFDS: ``<name>/ragged_flat_values`` and, for every level
    below the first, ``<name>/ragged_row_lengths_<level>``.

    Args:
        dtype: As for :class:`Tensor`, except float64.
        depth: Number of levels of lists, from 2 to 16.
        shape: Shape of one value.
        default: ``[]`` if examples may lack the feature.

    >>> Ragged("int64").depth
    2
    """

    dtype: str
    depth: int = 2
    shape: Shape = ()
    _: KW_ONLY
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        shape = check_shape(self.shape, self.dtype)
        if not all(shape):
            raise FeatureError(option="shape", found=shape, allowed="a tuple of integers >= 1")
        if not 2 <= self.depth <= 16:
            raise FeatureError(
                option="depth",
                found=self.depth,
                allowed="from 2 to 16",
                remedy="for one level of lists use Tensor with the shape (None,)",
            )
        if self.dtype == "float64":
            raise FeatureError("ragged float64 is not supported: a float list has only float32")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "default", _empty(self.default))

    def columns(self, name: str) -> tuple[Column, ...]:
        required = self.default is REQUIRED
        lengths = [f"{name}/ragged_row_lengths_{level}" for level in range(self.depth - 1)]
        return (
            _list_column(f"{name}/ragged_flat_values", self.dtype, required, self.shape),
            *(_list_column(key, "int64", required) for key in lengths),
        )

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        lengths: list[list[int]] = [[] for _ in range(self.depth - 1)]
        level = list(value)
        for each in lengths:
            for item in level:
                if isinstance(item, (str, bytes)) or not hasattr(item, "__len__"):
                    raise FeatureError(
                        f"{item!r} is not a list; expected {self.depth} levels of lists"
                    )
                each.append(len(item))
            level = [item for items in level for item in items]
        if not level and self.shape:
            return [np.zeros((0, *(n or 0 for n in self.shape)), columns[0].numpy_dtype), *lengths]
        return [level, *lengths]

    def join(self, parts: list[Any]) -> Any:
        # Each level has one length for every item of the level above.
        nested, ends = parts[0].values, parts[0].row_splits
        for level in reversed(parts[1:]):
            counts = level.values
            # Lengths come from a file: they must not be negative, nor so large that sums overflow.
            wild = (counts < 0) | (counts > ends[-1])
            if wild.any():
                raise InconsistentColumnsError(_row_of(level, wild), "a ragged length is invalid")
            inner = np.zeros(len(counts) + 1, np.int64)
            np.cumsum(counts, out=inner[1:])
            apart = inner[level.row_splits] != ends
            if apart.any():
                row = max(0, int(np.argmax(apart)) - 1)
                raise InconsistentColumnsError(row, "ragged lengths do not add up to the values")
            nested, ends = RaggedArray(nested, inner), level.row_splits
        return RaggedArray(nested, ends)


@dataclass(frozen=True)
class Sparse(Feature):
    """A sparse tensor, stored as the values that are not zero and their indices.

    Stored as ``<name>/values`` and ``<name>/indices`` (``<name>/indices_0`` and so on with several
    dimensions), which ``tf.io.SparseFeature`` reads. A value may be a :class:`SparseArray`, a pair
    (indices, values), an object with ``tocoo()`` (scipy), or a dense array.

    Args:
        dtype: A number type, except float64.
        shape: Shape of the dense tensor.
        default: ``[]`` if examples may lack the feature, which is then all zeros.
    """

    dtype: str
    shape: Shape
    _: KW_ONLY
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        if self.dtype in (*STRINGS, "float64"):
            raise FeatureError(option="dtype", found=self.dtype, allowed="a number, not float64")
        shape = tuple(self.shape)
        # Only the values that are not zero are stored, so the dense size is not limited.
        if not shape or not all(isinstance(n, int) and 0 < n < 2**62 for n in shape):
            raise FeatureError(option="shape", found=shape, allowed="a tuple of integers >= 1")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "default", _empty(self.default))

    def filler(self) -> Any:
        return REQUIRED if self.default is REQUIRED else ((), ())

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(size or 0 for size in self.shape)

    def columns(self, name: str) -> tuple[Column, ...]:
        rank = len(self.shape)
        keys = ["indices"] if rank == 1 else [f"indices_{i}" for i in range(rank)]
        required = self.default is REQUIRED
        return (
            _list_column(f"{name}/values", self.dtype, required),
            *(_list_column(f"{name}/{key}", "int64", required) for key in keys),
        )

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        if isinstance(value, SparseArray):
            indices, values = value.indices, value.values
        elif hasattr(value, "tocoo"):
            coo = value.tocoo()
            indices, values = np.stack([coo.row, coo.col], axis=-1), coo.data
        elif isinstance(value, Mapping):
            if set(value) != {"indices", "values"}:
                raise FeatureError(f"the keys are {sorted(value)}; must be indices and values")
            indices, values = value["indices"], value["values"]
        elif isinstance(value, tuple) and len(value) == 2:
            indices, values = value
        else:
            dense = as_array(value)
            check_value_shape(dense.shape, self.shape)
            indices, values = np.argwhere(dense), dense[np.nonzero(dense)]
        places = as_array(indices)
        rank = len(self.shape)
        if places.size == 0:
            places = np.zeros((0, rank), np.int64)
        if places.ndim == 1 and rank == 1:
            places = places[:, np.newaxis]
        if places.dtype.kind not in "iu" or places.ndim != 2 or places.shape[1] != rank:
            raise FeatureError(
                f"the sparse indices are {places.dtype} {places.shape}; must be integers of shape "
                f"(values, {rank})"
            )
        places = places.astype(np.int64)
        inside = ((places >= 0) & (places < np.array(self._sizes))).all(axis=1)
        if not inside.all():
            bad = tuple(places[int(np.argmin(inside))].tolist())
            raise FeatureError(f"the sparse index {bad} is outside the shape {self.shape}")
        values = as_array(values)
        if len(places) != values.size:
            raise FeatureError(f"{len(places)} sparse indices for {values.size} values")
        if not values.size:
            values = np.zeros(0, columns[0].numpy_dtype)  # an empty list has no dtype
        return [values, *(np.ascontiguousarray(axis) for axis in places.T)]

    def join(self, parts: list[Any]) -> Any:
        values, *indices = parts
        for axis, size in zip(indices, self._sizes, strict=True):
            apart = axis.row_splits != values.row_splits
            if apart.any():
                row = max(0, int(np.argmax(apart)) - 1)
                raise InconsistentColumnsError(
                    row, "the sparse indices and values differ in number"
                )
            outside = (axis.values < 0) | (axis.values >= size)
            if outside.any():
                row = _row_of(axis, outside)
                raise InconsistentColumnsError(
                    row, f"a sparse index is outside the shape {self.shape}"
                )
        return SparseBatch(tuple(indices), values, self._sizes)


@dataclass(frozen=True)
class Steps(Feature):
    """A feature list of a ``tf.train.SequenceExample``: one value per step.

    It can be read, not written: covey writes Examples, where a Tensor of shape (None, ...) has the
    same values.

    Args:
        dtype: As for :class:`Tensor`.
        shape: Shape of one step; (None,) if steps differ.
        default: ``[]`` if the list may be missing; it then has no steps.
    """

    dtype: str
    shape: Shape = ()
    _: KW_ONLY
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        shape = check_shape(self.shape, self.dtype)
        if None in shape and shape != (None,):
            raise FeatureError(option="shape", found=shape, allowed="known, or (None,)")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "default", _empty(self.default))

    def columns(self, name: str) -> tuple[Column, ...]:
        required = self.default is REQUIRED
        return (Column(name, self.dtype, self.shape, layout="steps", required=required),)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        raise FeatureError(
            "a SequenceExample cannot be written; declare the feature as Tensor with a shape of "
            "(None, ...)"
        )
