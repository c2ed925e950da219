"""The kinds of features that have a structure of their own: ragged, sparse, steps."""

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
from covey.schema.types import REQUIRED, Feature, MisfitError


def _empty(default: Any) -> Any:
    """Check the default of a feature that has none but the empty one."""
    if default is REQUIRED:
        return REQUIRED
    if not hasattr(default, "__len__") or len(default):
        raise FeatureError(f"the default is {default!r}; for this kind only [] is possible")
    return ()


def _list_column(key: str, dtype: str, required: bool, shape: Shape = ()) -> Column:
    """A column of any number of values; none if it may be missing, and is."""
    column = Column(key, dtype, (None, *shape), layout="variable")
    if required:
        return column
    empty: Any = [] if column.is_string else np.zeros(0, column.numpy_dtype)
    return dataclasses.replace(column, required=False, default=empty)


def _row_of(column: RaggedArray, chosen: NDArray[np.bool_]) -> int:
    """The row that the first chosen value belongs to."""
    first = int(np.argmax(chosen))
    return int(np.searchsorted(column.row_splits, first, side="right")) - 1


@dataclass(frozen=True)
class Ragged(Feature):
    """Lists of lists, of any lengths: ``depth`` levels of them, and then values of one shape.

    ``default=[]`` lets an example lack it. Stored as TFDS stores nested sequences:
    ``<name>/ragged_flat_values`` and, for every level below the first,
    ``<name>/ragged_row_lengths_<level>``.

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
            raise FeatureError(f"the shape of a ragged feature's values is {shape}; must be known")
        if not 2 <= self.depth <= 16:
            raise FeatureError(
                f"depth of a ragged feature is {self.depth}; must be 2 to 16; "
                "for one level use Tensor with a shape of (None,)"
            )
        if self.dtype == "float64":
            raise FeatureError("ragged values cannot be float64: a list of them has only float32")
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
        # Each level has one length for every item of the level above, in every example.
        nested, ends = parts[0].values, parts[0].row_splits
        for level in reversed(parts[1:]):
            counts = level.values
            # Lengths come from the file: none may be negative, nor so large that sums overflow.
            wild = (counts < 0) | (counts > ends[-1])
            if wild.any():
                raise MisfitError(_row_of(level, wild), "a length of a ragged level is impossible")
            inner = np.zeros(len(counts) + 1, np.int64)
            np.cumsum(counts, out=inner[1:])
            apart = inner[level.row_splits] != ends
            if apart.any():
                row = max(0, int(np.argmax(apart)) - 1)
                raise MisfitError(row, "the lengths of a ragged level do not add up to its values")
            nested, ends = RaggedArray(nested, inner), level.row_splits
        return RaggedArray(nested, ends)


@dataclass(frozen=True)
class Sparse(Feature):
    """A tensor that is mostly zero, stored as the values that are not and where they are.

    Stored as ``<name>/values`` and ``<name>/indices`` (``<name>/indices_0`` and so on if there are
    several dimensions), which ``tf.io.SparseFeature`` reads. A value may be a :class:`SparseArray`,
    a pair (indices, values), anything with ``tocoo()`` (scipy), or a dense array; ``default=[]``
    lets an example lack it, which is then all zeros.
    """

    dtype: str
    shape: Shape
    _: KW_ONLY
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        if self.dtype in (*STRINGS, "float64"):
            raise FeatureError(f"a sparse feature of {self.dtype} is not possible")
        shape = tuple(self.shape)
        # Only what is not zero is stored, so the whole may be large; each index is an int64.
        if not shape or not all(isinstance(n, int) and 0 < n < 2**62 for n in shape):
            raise FeatureError(f"the shape of a sparse feature is {shape}; must be positive")
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
                raise FeatureError(f"a sparse value has {sorted(value)}, not indices and values")
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
                f"the sparse indices are {places.dtype} {places.shape}; must be integers "
                f"(values, {rank})"
            )
        places = places.astype(np.int64)
        inside = ((places >= 0) & (places < np.array(self._sizes))).all(axis=1)
        if not inside.all():
            bad = tuple(places[int(np.argmin(inside))].tolist())
            raise FeatureError(f"the sparse index {bad} lies outside the shape {self.shape}")
        values = as_array(values)
        if len(places) != values.size:
            raise FeatureError(f"{len(places)} sparse indices for {values.size} values")
        if not values.size:
            values = np.zeros(0, columns[0].numpy_dtype)  # an empty list has no type of its own
        return [values, *(np.ascontiguousarray(axis) for axis in places.T)]

    def join(self, parts: list[Any]) -> Any:
        values, *indices = parts
        for axis, size in zip(indices, self._sizes, strict=True):
            apart = axis.row_splits != values.row_splits
            if apart.any():
                row = max(0, int(np.argmax(apart)) - 1)
                raise MisfitError(row, "there are not as many sparse indices as values")
            outside = (axis.values < 0) | (axis.values >= size)
            if outside.any():
                row = _row_of(axis, outside)
                raise MisfitError(row, f"a sparse index lies outside the shape {self.shape}")
        return SparseBatch(tuple(indices), values, self._sizes)


@dataclass(frozen=True)
class Steps(Feature):
    """A feature list of a ``tf.train.SequenceExample``: one value for every step.

    covey reads SequenceExamples; it writes Examples, where a Tensor of shape (None, ...) does the
    same.

    Args:
        dtype: As for :class:`Tensor`.
        shape: Of one step; (None,) if steps differ.
        default: ``[]`` if the list may be missing, which is then one of no steps.
    """

    dtype: str
    shape: Shape = ()
    _: KW_ONLY
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", parse_dtype(self.dtype))
        shape = check_shape(self.shape, self.dtype)
        if None in shape and shape != (None,):
            raise FeatureError(f"the shape of a step is {shape}; an unknown one must be (None,)")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "default", _empty(self.default))

    def columns(self, name: str) -> tuple[Column, ...]:
        required = self.default is REQUIRED
        return (Column(name, self.dtype, self.shape, layout="steps", required=required),)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        raise FeatureError(
            "covey reads SequenceExamples but writes Examples; "
            "declare the feature as Tensor with a shape of (None, ...) to write it"
        )
