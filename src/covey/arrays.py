"""Arrays of batches that numpy has no type for: strings, ragged rows, sparse tensors.

Each type has one item per example, supports ``column[3]`` and ``column[3:9]``, and consists of a
few flat numpy arrays, which are public.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RaggedArray", "SparseArray", "SparseBatch", "StringArray"]


_MAX_REPR_ROWS = 3
_MAX_REPR_BYTES = 24
_MAX_REPR_VALUES = 4


def _repr_string(data: NDArray[np.uint8], text: bool) -> str:
    few = data[:_MAX_REPR_BYTES].tobytes()
    more = "..." if len(data) > _MAX_REPR_BYTES else ""
    shown: object = few.decode(errors="replace") if text else few
    return f"{shown!r}{more}"


def _repr_row(row: Any) -> str:
    if isinstance(row, RaggedArray):
        return f"[{len(row):,} rows]"
    values = row.reshape(-1)
    few = ", ".join(repr(each)[:_MAX_REPR_BYTES] for each in values[:_MAX_REPR_VALUES].tolist())
    return f"[{few}{', ...' if len(values) > _MAX_REPR_VALUES else ''}]"


def _bounds(key: slice, rows: int) -> tuple[int, int]:
    """Return the first row of a slice, and the end."""
    start, stop, step = key.indices(rows)
    if step != 1:
        raise ValueError(f"the step of the slice is {step}; must be 1")
    return start, max(start, stop)


def _row(index: int, rows: int) -> int:
    if not -rows <= index < rows:
        raise IndexError(f"row {index} is out of range for a column of {rows} rows")
    return index % rows


@dataclass(frozen=True, slots=True, eq=False)
class StringArray:
    """Strings or byte strings, concatenated in one buffer.

    >>> names = StringArray.of(["wren", "owl"])
    >>> names[1], names.tolist()
    ('owl', ['wren', 'owl'])
    """

    data: NDArray[np.uint8]
    """The bytes of all strings, concatenated."""
    offsets: NDArray[np.int64]
    """Offset of each string in ``data``, and the end of the last one."""
    text: bool
    """Whether items are ``str`` (UTF-8) rather than ``bytes``."""
    row_shape: tuple[int, ...] = ()
    """The shape of one row; () if a row is one string."""
    rows: int = -1
    """Number of rows; derived from the offsets unless a row has no strings."""

    def __post_init__(self) -> None:
        if self.rows < 0:
            object.__setattr__(self, "rows", (len(self.offsets) - 1) // max(1, self._width))

    @classmethod
    def of(cls, strings: Sequence[str] | Sequence[bytes]) -> StringArray:
        """Build the array from strings that are all ``str`` or all ``bytes``."""
        kinds = set(map(type, strings))
        if not (kinds <= {str} or kinds <= {bytes}):
            raise TypeError("the strings must be all str or all bytes")
        text = kinds == {str}
        raw = [s.encode() if isinstance(s, str) else s for s in strings]
        offsets = np.zeros(len(raw) + 1, np.int64)
        np.cumsum([len(s) for s in raw], out=offsets[1:])
        return cls(np.frombuffer(b"".join(raw), np.uint8), offsets, text)

    def __repr__(self) -> str:
        count = len(self.offsets) - 1
        ends = [int(end) for end in self.offsets[: _MAX_REPR_ROWS + 1]]
        parts = [_repr_string(self.data[a:b], self.text) for a, b in itertools.pairwise(ends)]
        more = ", ..." if count > _MAX_REPR_ROWS else ""
        return f"<StringArray {self.shape}: {', '.join(parts)}{more}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and the shape of a row."""
        return (len(self), *self.row_shape)

    def __len__(self) -> int:
        return self.rows

    @property
    def _width(self) -> int:
        return int(np.prod(self.row_shape, dtype=np.int64))

    def _string(self, i: int) -> Any:
        raw = self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()
        return raw.decode() if self.text else raw

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop = _bounds(key, len(self))
            offsets = self.offsets[start * self._width : stop * self._width + 1]
            return StringArray(self.data, offsets, self.text, self.row_shape, stop - start)
        row = _row(int(key), len(self))
        if not self.row_shape:
            return self._string(row)
        return StringArray(
            self.data,
            self.offsets[row * self._width : (row + 1) * self._width + 1],
            self.text,
        ).to_numpy(self.row_shape)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def to_numpy(self, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
        """Return the strings as a numpy array of objects."""
        strings = np.empty(len(self.offsets) - 1, object)
        strings[:] = [self._string(i) for i in range(len(strings))]
        return strings.reshape(self.shape if shape is None else shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.to_numpy()
        return array if dtype is None else array.astype(dtype)

    def tolist(self) -> list[Any]:
        """Return the strings as nested lists."""
        return list(self.to_numpy().tolist())


@dataclass(frozen=True, slots=True, eq=False)
class RaggedArray:
    """Rows of different lengths: concatenated values, and the offset of each row.

    >>> rows = RaggedArray.of([[1, 2, 3], [], [4]])
    >>> rows[0], rows.row_splits
    (array([1, 2, 3]), array([0, 3, 3, 4]))
    """

    values: Any
    """All rows, concatenated: a numpy array, a StringArray or, if nested, a RaggedArray."""
    row_splits: NDArray[np.int64]
    """Offset of each row in ``values``, and the end of the last one."""
    row_shapes: tuple[int, ...] | NDArray[np.int64] | None = None
    """Shape of a row, if rows are multidimensional: one shape with a -1 for all rows, or one shape
    per row."""

    @classmethod
    def of(cls, rows: Sequence[Any], dtype: Any = None) -> RaggedArray:
        """Build the array from rows of numbers."""
        arrays = [np.asarray(row, dtype) for row in rows]
        splits = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=splits[1:])
        full = [array for array in arrays if len(array)]
        values = np.concatenate(full) if full else np.zeros(0, dtype or np.float32)
        return cls(values, splits)

    def __repr__(self) -> str:
        lengths = self.row_lengths
        span = f" of {lengths.min():,} to {lengths.max():,} values" if len(self) else ""
        kinds = {StringArray: "strings", RaggedArray: "ragged"}
        kind = kinds.get(type(self.values)) or self.values.dtype
        parts = [_repr_row(self[i]) for i in range(min(_MAX_REPR_ROWS, len(self)))]
        more = ", ..." if len(self) > _MAX_REPR_ROWS else ""
        return f"<RaggedArray: {len(self):,} rows{span}, {kind}: {', '.join(parts)}{more}>"

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            start, stop = _bounds(key, len(self))
            shapes = self.row_shapes
            if isinstance(shapes, np.ndarray):
                shapes = shapes[start:stop]
            first = int(self.row_splits[start])
            splits = self.row_splits[start : stop + 1]
            return RaggedArray(self.values[first : int(splits[-1])], splits - first, shapes)
        row = _row(int(key), len(self))
        values = self.values[int(self.row_splits[row]) : int(self.row_splits[row + 1])]
        if isinstance(values, StringArray):
            values = values.to_numpy()
        if self.row_shapes is None:
            return values
        shape = self.row_shapes
        return values.reshape(shape[row] if isinstance(shape, np.ndarray) else shape)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    @property
    def row_lengths(self) -> NDArray[np.int64]:
        """Length of each row."""
        return np.diff(self.row_splits)

    def pad(self, value: Any = 0, length: int | None = None) -> Any:
        """Return the rows as one array of shape ``(rows, length, ...)``.

        Args:
            value: Value of the elements after the end of a row; strings are always ``""``.
            length: Length of all rows; longer ones are truncated (default: the longest length).

        Raises:
            ValueError: If rows differ in other dimensions than the first one.

        >>> RaggedArray.of([[1, 2, 3], [], [4]]).pad(-1)
        array([[ 1,  2,  3],
               [-1, -1, -1],
               [ 4, -1, -1]])
        """
        if self.row_shapes is not None or isinstance(self.values, RaggedArray):
            raise ValueError("rows differ in other dimensions than the first one")
        lengths, first = self.row_lengths, int(self.row_splits[0])
        values = self.values[first : int(self.row_splits[-1])]  # a slice begins anywhere in them
        if length is None:
            length = int(lengths.max(initial=0))
        row_splits, keep = self.row_splits - first, None
        if (lengths > length).any():
            keep = np.arange(len(values)) - np.repeat(row_splits[:-1], lengths) < length
        if isinstance(values, StringArray):
            return _pad_strings(values, row_splits, length, keep)
        kept = values if keep is None else values[keep]
        padded = np.full((len(self), length, *values.shape[1:]), value, values.dtype)
        padded[np.arange(length) < lengths[:, np.newaxis]] = kept
        return padded

    def tolist(self) -> list[Any]:
        """Return the rows as nested lists."""
        return [row.tolist() for row in self]


def _pad_strings(
    strings: StringArray,
    row_splits: NDArray[np.int64],
    length: int,
    keep: NDArray[np.bool_] | None,
) -> StringArray:
    """Return rows of strings with empty strings after the end of each row.

    Args:
        strings: The strings of all rows.
        row_splits: Offset of each row in `strings`, and the end of the last one.
        length: Length of all rows.
        keep: Which items of `strings` are not truncated; None if all are kept.
    """
    data = strings.data[int(strings.offsets[0]) : int(strings.offsets[-1])]
    sizes = np.diff(strings.offsets).reshape(strings.shape)
    if keep is not None:
        kept = np.repeat(keep, max(1, strings._width))
        data = data[np.repeat(kept, sizes.ravel())]
    padded = RaggedArray(sizes, row_splits).pad(0, length)
    offsets = np.zeros(padded.size + 1, np.int64)
    np.cumsum(padded.ravel(), out=offsets[1:])
    row_shape = (length, *strings.row_shape)
    return StringArray(data, offsets, strings.text, row_shape, len(row_splits) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class SparseArray:
    """A sparse tensor: the indices and the values of the elements that are not zero.

    >>> SparseArray(np.array([[1], [3]]), np.array([5.0, 7.0]), (4,)).to_dense()
    array([0., 5., 0., 7.])
    """

    indices: NDArray[np.int64]
    """One row per value, one column per dimension."""
    values: NDArray[Any]
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<SparseArray {self.shape}: {len(self.values):,} values of {self.values.dtype}>"

    def to_dense(self) -> NDArray[Any]:
        """Return the dense tensor."""
        dense = np.zeros(self.shape, self.values.dtype)
        dense[tuple(self.indices.T)] = self.values
        return dense


@dataclass(frozen=True, slots=True, eq=False)
class SparseBatch:
    """Sparse tensors of one shape, one per example."""

    indices: tuple[RaggedArray, ...]
    """For each dimension, the indices of each example."""
    values: RaggedArray
    shape: tuple[int, ...]
    """Shape of one tensor."""

    def __repr__(self) -> str:
        values = self.values.values
        return (
            f"<SparseBatch: {len(self):,} tensors of shape {self.shape}, {len(values):,} values of "
            f"{values.dtype}>"
        )

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        indices = tuple(index[key] for index in self.indices)
        if isinstance(key, slice):
            return SparseBatch(indices, self.values[key], self.shape)
        return SparseArray(np.stack(indices, axis=-1), self.values[key], self.shape)

    def __iter__(self) -> Iterator[SparseArray]:
        return (self[i] for i in range(len(self)))

    def tolist(self) -> list[Any]:
        """Return the tensors as dense nested lists."""
        return [row.to_dense().tolist() for row in self]
