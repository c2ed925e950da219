"""Base class of features, class labels, and features with a structure: ragged and sparse.

A feature defines the columns it is stored in, and how a value or a batch of values is split into
them and joined again. :mod:`covey.schema.tensor` and :mod:`covey.schema.images` have the others.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._text import count_of
from covey.arrays import RaggedArray, SparseArray, SparseBatch
from covey.errors import FeatureError, list_names, shorten
from covey.schema.columns import (
    STRINGS,
    Column,
    Shape,
    as_array,
    check,
    check_shape,
    check_value_shape,
    parse_dtype,
    splits_of,
)


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()
"""The default of a required feature."""


class InconsistentColumnsError(FeatureError):
    """The columns of a feature contradict each other in one row of a batch."""

    row: int

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason, row=row)


def check_rows(
    wrong: NDArray[np.bool_], reason: str | Callable[[int], str], column: Any = None
) -> None:
    """Raise InconsistentColumnsError if a value of a column is wrong.

    Args:
        wrong: Whether each value is wrong.
        reason: The reason, or a function that returns it for the index of the first wrong value.
        column: The column (default: one value per row).
    """
    if wrong.any():
        first = int(np.argmax(wrong))
        row = first if column is None else _row_at(column, first)
        raise InconsistentColumnsError(row, reason if isinstance(reason, str) else reason(first))


def _row_at(column: Any, index: int) -> int:
    """Return the row of the value at a flat index of a column."""
    if isinstance(column, RaggedArray):
        item = _row_at(column.values, index)
        return int(np.searchsorted(column.row_splits, item, side="right")) - 1
    return index // max(1, int(np.prod(column.shape[1:], dtype=np.int64)))


@dataclass(frozen=True)
class Feature:
    """Base class of features."""

    def columns(self, name: str) -> tuple[Column, ...]:
        """Return the columns that the feature `name` is stored in."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """A short description."""
        return shorten(repr(self), 60)

    @property
    def is_plain(self) -> bool:
        """Whether values are stored unchanged, in one column with the name of the feature."""
        return False

    @property
    def is_exact(self) -> bool:
        """Whether the encoded values show if the feature would be inferred from them."""
        return self.is_plain

    @property
    def is_direct(self) -> bool:
        """Whether decoded values need no :meth:`join`."""
        return False

    def filler(self) -> Any:
        """Return the value of an example that lacks the feature; REQUIRED if there is none."""
        return getattr(self, "default", REQUIRED)

    def _set(self, **fields: Any) -> None:
        """Set fields in a constructor."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        """Split a value into its columns; None for an absent column."""
        return [value]

    def prepare(self, batch: Any) -> Any:
        """Return a batch of values that the column takes, of a feature that is plain."""
        return batch

    def split_batch(
        self, batch: Any, rows: int, columns: Sequence[Column]
    ) -> list[tuple[Any, NDArray[np.int64] | None]]:
        """Split a batch of values into the (values, row splits) of its columns."""
        if self.is_plain:
            return [columns[0].coerce_batch(self.prepare(batch), rows)]
        table = [self.split(value, columns) for value in batch]
        return [
            column.coerce_batch([row[i] for row in table], rows) for i, column in enumerate(columns)
        ]

    def join(self, parts: list[Any]) -> Any:
        """Join decoded columns to a batch of values.

        Raises:
            InconsistentColumnsError: If the columns contradict each other, which an untrusted file
                can cause.
        """
        return parts[0]


@dataclass(frozen=True)
class ClassLabel(Feature):
    """The class of an example: an integer from 0, with or without a name.

    Args:
        names: Names of the classes, in order. Values may then be names, too.
        num_classes: Number of classes, if they have no names. The value -1 (unknown class) is
            always valid, as in TFDS.
        default: Class of examples that lack the feature, as integer or name.

    >>> ClassLabel(names=["wren", "owl"]).index("owl")
    1
    """

    names: tuple[str, ...] | None = None
    num_classes: int | None = None
    _: KW_ONLY
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        count: Any = self.num_classes
        if self.names is not None:
            given: Any = self.names
            names = tuple(given)
            is_strings = all(issubclass(each, str) for each in set(map(type, names)))
            check("names", given, is_strings and not isinstance(given, str), "a list of strings")
            if len(set(names)) != len(names):
                (twice, _), *_ = Counter(names).most_common(1)
                raise FeatureError(f"the name {twice!r} occurs twice", option="names")
            allowed = f"{len(names)}, the number of names"
            check("num_classes", count, count in (None, len(names)), allowed)
            self._set(names=names, num_classes=len(names))
        elif count is not None:
            is_valid = isinstance(count, (int, np.integer)) and 0 <= count < 2**62
            check("num_classes", count, is_valid, "an integer >= 0")
        if self.default is not REQUIRED:
            self._set(default=int(self._column("default").coerce(self.default)))

    def __repr__(self) -> str:
        parts = [] if self.num_classes is None else [f"num_classes={self.num_classes}"]
        if self.names is not None:
            parts = [f"names=[{list_names(self.names, 6)}]"]
        parts += [] if self.default is REQUIRED else [f"default={self.default!r}"]
        return f"ClassLabel({', '.join(parts)})"

    @property
    def summary(self) -> str:
        return f"ClassLabel of {self.num_classes:,} classes" if self.num_classes else "ClassLabel"

    @property
    def is_plain(self) -> bool:
        return True

    @property
    def is_direct(self) -> bool:
        return self.num_classes is None

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names or ())}

    def index(self, name: str) -> int:
        """Return the integer of a class name."""
        if self.names is None:
            raise FeatureError(f"the class is the string {name!r}, but the label has no names")
        found = self._positions.get(name)
        if found is None:
            raise unknown_class(name, self.names)
        return found

    def _column(self, name: str, default: NDArray[np.int64] | None = None) -> Column:
        bounds = None if self.num_classes is None else (-1, self.num_classes - 1)
        return Column(
            name,
            "int64",
            required=default is None,
            default=default,
            bounds=bounds,
            lookup=self.index,
        )

    def columns(self, name: str) -> tuple[Column, ...]:
        if self.default is REQUIRED:
            return (self._column(name),)
        return (self._column(name, np.array(self.default, np.int64)),)

    def prepare(self, batch: Any) -> Any:
        kind = getattr(getattr(batch, "dtype", None), "kind", "O")
        if kind not in "biuf" and any(isinstance(each, str) for each in batch):
            return [self.index(str(each)) if isinstance(each, str) else each for each in batch]
        return batch

    def join(self, parts: list[Any]) -> Any:
        (labels,) = parts
        if self.num_classes is not None:
            last = self.num_classes - 1
            check_rows(
                (labels < -1) | (labels > last),
                lambda row: f"the class is {labels[row]}; must be from -1 to {last}",
            )
        return labels


def is_line(name: str) -> bool:
    """Return whether a class name can be a line of a label file, as TFDS reads it."""
    return bool(name) and name == name.strip() and "\n" not in name and "\r" not in name


def unknown_class(name: str, names: Sequence[str], **fields: Any) -> FeatureError:
    """Return the error of a class name that is not one of the names of a label."""
    listed = list_names(names[:8]) + (", ..." if len(names) > 8 else "")
    reason = f"unknown class {name!r}; the label has {count_of(len(names), 'name')}: {listed}"
    return FeatureError(reason, found=name, choices=names, **fields)


def check_empty(default: Any) -> Any:
    """Check a default that can only be empty."""
    if default is REQUIRED:
        return REQUIRED
    check("default", default, hasattr(default, "__len__") and not len(default), "[]")
    return ()


def _list_column(key: str, dtype: str, required: bool, shape: Shape = ()) -> Column:
    """Return a column of any number of values; those of float64 are one raw byte string."""
    column = Column(key, dtype, (None, *shape), raw=dtype == "float64", layout="variable")
    if required:
        return column
    empty: Any = [] if column.is_string else np.zeros(0, column.numpy_dtype)
    return dataclasses.replace(column, required=False, default=empty)


@dataclass(frozen=True)
class Ragged(Feature):
    """Nested lists of any lengths: ``depth`` levels of lists, with values of one shape.

    Stored like the nested sequences of TFDS: ``<name>/ragged_flat_values`` and, for every level
    below the first, ``<name>/ragged_row_lengths_<level>``.

    Args:
        dtype: As for :class:`Tensor`. The values of float64 are stored as one byte string.
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
        dtype = parse_dtype(self.dtype)
        shape = check_shape(self.shape, dtype)
        check("shape", shape, all(shape), "a tuple of integers >= 1")
        remedy = "for one level of lists use Tensor with the shape (None,)"
        check("depth", self.depth, 2 <= self.depth <= 16, "from 2 to 16", remedy=remedy)
        self._set(dtype=dtype, shape=shape, default=check_empty(self.default))

    def columns(self, name: str) -> tuple[Column, ...]:
        required = self.default is REQUIRED
        lengths = [f"{name}/ragged_row_lengths_{level}" for level in range(self.depth - 1)]
        return (
            _list_column(f"{name}/ragged_flat_values", self.dtype, required, self.shape),
            *(_list_column(key, "int64", required) for key in lengths),
        )

    @property
    def is_exact(self) -> bool:
        return True

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
            has_arrays = any(
                isinstance(items, np.ndarray) and items.dtype.kind in "biuf" for items in level
            )
            level = [item for items in level for item in items]
        if not level and self.shape:
            return [np.zeros((0, *(n or 0 for n in self.shape)), columns[0].numpy_dtype), *lengths]
        # Arrays have a dtype, which a list of their elements would hide.
        return [as_array(level) if level and has_arrays else level, *lengths]

    def join(self, parts: list[Any]) -> Any:
        # Each level has one length for every item of the level above.
        nested, ends = parts[0].values, parts[0].row_splits
        for level in reversed(parts[1:]):
            counts = level.values
            # Lengths come from a file: they must not be negative, nor so large that sums overflow.
            wrong = (counts < 0) | (counts > ends[-1])
            check_rows(wrong, "a ragged length is invalid", level)
            inner = splits_of(counts)
            wrong = (inner[level.row_splits] != ends)[1:]
            check_rows(wrong, "ragged lengths do not add up to the values")
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
        dtype, shape = parse_dtype(self.dtype), tuple(self.shape)
        check("dtype", dtype, dtype not in (*STRINGS, "float64"), "a number, not float64")
        # Only the values that are not zero are stored, so the dense size is not limited.
        is_valid = shape and all(isinstance(n, int) and 0 < n < 2**62 for n in shape)
        check("shape", shape, is_valid, "a tuple of integers >= 1")
        self._set(dtype=dtype, shape=shape, default=check_empty(self.default))

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
        points = as_array(indices)
        rank = len(self.shape)
        if points.size == 0:
            points = np.zeros((0, rank), np.int64)
        if points.ndim == 1 and rank == 1:
            points = points[:, np.newaxis]
        if points.dtype.kind not in "iu" or points.ndim != 2 or points.shape[1] != rank:
            raise FeatureError(
                f"the sparse indices are {points.dtype} {points.shape}; must be integers of shape "
                f"(values, {rank})"
            )
        points = points.astype(np.int64)
        inside = ((points >= 0) & (points < np.array(self._sizes))).all(axis=1)
        if not inside.all():
            bad = tuple(points[int(np.argmin(inside))].tolist())
            raise FeatureError(f"the sparse index {bad} is outside the shape {self.shape}")
        values = as_array(values)
        if len(points) != values.size:
            raise FeatureError(f"{len(points)} sparse indices for {values.size} values")
        if not values.size:
            values = np.zeros(0, columns[0].numpy_dtype)  # an empty list has no dtype
        return [values, *(np.ascontiguousarray(axis) for axis in points.T)]

    def join(self, parts: list[Any]) -> Any:
        values, *indices = parts
        for axis, size in zip(indices, self._sizes, strict=True):
            wrong = (axis.row_splits != values.row_splits)[1:]
            check_rows(wrong, "the sparse indices and values differ in number")
            wrong = (axis.values < 0) | (axis.values >= size)
            check_rows(wrong, f"a sparse index is outside the shape {self.shape}", axis)
        return SparseBatch(tuple(indices), values, self._sizes)
