"""Columns: how one key of a tf.train.Example lies in the record, and how values get in and out.

Every feature of a schema is made of one or a few of these; the native codec knows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FeatureError
from covey.features.arrays import RaggedArray, StringArray

Shape = tuple[int | None, ...]
Wire = Literal["bytes", "floats", "ints"]
Layout = Literal["fixed", "variable", "steps"]

_WIRES = {"bytes": 1, "floats": 2, "ints": 3}
_LAYOUTS = {"fixed": 0, "variable": 1, "steps": 2}
# In the order of the native Element.
NUMBERS = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "float16",
    "float32",
    "float64",
)
STRINGS = ("str", "bytes")
DTYPES = (*NUMBERS, *STRINGS)

# The largest message that protobuf can hold: nothing in one example can be larger.
MOST_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class Column:
    """One key of an Example."""

    key: str
    dtype: str
    shape: Shape = ()
    """Of one row; at most one dimension is None, unless ``raw``."""
    raw: bool = False
    """Whether the numbers are stored as their memory, in one byte string."""
    layout: Layout = "fixed"
    required: bool = True
    default: Any = None
    """What an example gets that lacks an optional key: an array, or a list of bytes."""
    bounds: tuple[int, int] | None = None
    """The smallest and largest integer, if narrower than the dtype's."""
    lookup: Callable[[str], int] | None = field(default=None, compare=False)
    """What a text stands for, if the integers have names."""

    @property
    def wire(self) -> Wire:
        """Which of the three lists of tf.train.Feature holds the values."""
        if self.raw or self.is_string:
            return "bytes"
        return "floats" if self.dtype.startswith("float") else "ints"

    @property
    def is_string(self) -> bool:
        """Whether the values are ``str`` or ``bytes``."""
        return self.dtype in STRINGS

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype in memory."""
        return np.dtype(object if self.is_string else self.dtype)

    @property
    def count(self) -> int:
        """Values in a row, or, of variable layout, the number whose multiple they are."""
        known = [size for size in self.shape if size is not None]
        # More than one unknown dimension: any number of values.
        if self.shape.count(None) > 1:
            return 1
        return int(np.prod(known, dtype=np.int64))

    def least_bytes(self) -> int:
        """The fewest bytes of a record that this column takes up."""
        if self.layout != "fixed" or not self.required:
            return 0
        if self.raw:
            return self.count * self.numpy_dtype.itemsize
        return self.count * {"ints": 1, "floats": 4, "bytes": 2}[self.wire]

    def spec(self) -> _core.ColumnTuple:
        """What the native codec is told."""
        element = len(NUMBERS) if self.is_string else NUMBERS.index(self.dtype)
        low, high = _limits(self.dtype) if self.bounds is None else self.bounds
        return (
            self.key,
            _WIRES[self.wire],
            element,
            _LAYOUTS[self.layout],
            self.count,
            self.required,
            self.default,
            tuple(-1 if size is None else size for size in self.shape),
            low,
            high,
            self.bounds is not None,
            self.dtype == "str",
        )

    # One value in.

    def coerce(self, value: Any) -> Any:
        """Make a value what the native encoder takes: a numpy array, bytes, or a list of bytes."""
        if self.lookup is not None and isinstance(value, str):
            return self.lookup(value)
        if not self.is_string:
            return self._numbers(value, self.shape)
        if not self.shape:
            return self._string(value)
        strings: list[bytes] = []
        self.check_value_shape(self._flatten(value, strings), self.shape)
        return strings

    def _numbers(self, value: Any, shape: Shape) -> NDArray[Any]:
        try:
            array = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise _misfit(f"is no array: {error}") from None
        kind = array.dtype.kind
        wanted = self.numpy_dtype
        if array.size == 0 and isinstance(value, (list, tuple)):
            array = array.astype(wanted)  # an empty list has no type of its own
            kind = wanted.kind
        allowed = {"b": "b", "i": "bui", "u": "bui", "f": "buif"}[wanted.kind]
        if kind not in allowed and not (wanted.kind == "b" and kind in "ui"):
            raise _misfit(f"has dtype {array.dtype}, expected {self.dtype}")
        self.check_value_shape(array.shape, shape)
        if array.dtype != wanted or self.bounds is not None:  # else there is nothing to look for
            self._check_range(array)
        return np.ascontiguousarray(array, dtype=wanted).reshape(array.shape)

    def _check_range(self, array: NDArray[Any]) -> None:
        """Make sure that integers fit the dtype, and the bounds if there are any."""
        wanted = self.numpy_dtype
        if wanted.kind == "f" or array.dtype.kind == "b" or array.size == 0:
            return
        low, high = self.bounds or ((0, 1) if wanted.kind == "b" else _limits(self.dtype))
        if wanted == np.uint64:
            low, high = 0, 2**64 - 1
        for extreme in (int(array.min()), int(array.max())):
            if not low <= extreme <= high:
                raise _misfit(f"is {extreme}, must be from {low} to {high}")

    def _string(self, value: Any) -> bytes:
        if isinstance(value, np.ndarray) and value.shape == ():
            value = value.item()
        try:
            if isinstance(value, str):
                return value.encode()
            if isinstance(value, (bytes, bytearray, memoryview)):
                raw = bytes(value)
                if self.dtype == "str":
                    raw.decode()
                return raw
        except UnicodeError as error:
            raise _misfit(f"is no valid UTF-8: {error}") from None
        array = getattr(value, "__array__", None)
        if array is not None and np.asarray(value).shape == ():
            return self._string(np.asarray(value).item())
        raise _misfit(f"is of type {type(value).__name__}, expected {self.dtype}")

    def _flatten(self, value: Any, strings: list[bytes]) -> tuple[int, ...]:
        """Collect the strings of nested sequences; return their shape."""
        if isinstance(value, StringArray):
            value = value.to_numpy()
        if hasattr(value, "__array__"):
            array = np.asarray(value)
            strings.extend(self._string(each) for each in array.ravel().tolist())
            return array.shape
        if not isinstance(value, (list, tuple)):
            raise _misfit(f"is of type {type(value).__name__}, expected a list of {self.dtype}")
        if not value or isinstance(value[0], (str, bytes, bytearray, memoryview)):
            strings.extend(self._string(each) for each in value)
            return (len(value),) + (0,) * (len(self.shape) - 1 if not value else 0)
        shapes = {self._flatten(each, strings) for each in value}
        if len(shapes) != 1:
            raise _misfit(f"is ragged: its parts have shapes {sorted(shapes)}")
        return (len(value), *shapes.pop())

    @staticmethod
    def check_value_shape(found: tuple[int, ...], expected: Shape) -> None:
        """Make sure that a value has the shape that a feature wants."""
        fits = len(found) == len(expected) and all(
            size is None or size == seen for seen, size in zip(found, expected, strict=True)
        )
        if not fits:
            raise _misfit(f"has shape {found}, expected {expected}")

    # Many values in.

    def coerce_batch(self, batch: Any, rows: int) -> tuple[Any, NDArray[np.int64] | None]:
        """Make a column of values what the native encoder takes: (values, row splits or None)."""
        if self.layout == "fixed":
            if self.is_string:
                return self._string_batch(batch, rows * self.count), None
            return self._numbers(batch, (rows, *self.shape)), None
        if isinstance(batch, RaggedArray) and batch.row_shapes is None:
            splits = np.ascontiguousarray(batch.row_splits, np.int64)
            if self.is_string:
                return self._string_batch(batch.values, None), splits
            values = self._numbers(batch.values, (None, *self.shape[1:]))
            return values, splits * self.count
        if isinstance(batch, np.ndarray) and batch.dtype != object and not self.is_string:
            values = self._numbers(batch, (rows, *self.shape))
            return values, np.arange(rows + 1, dtype=np.int64) * (values.size // max(1, rows))
        pieces = [self.coerce(row) for row in batch]
        splits = np.zeros(len(pieces) + 1, np.int64)
        if self.is_string:
            np.cumsum([len(piece) for piece in pieces], out=splits[1:])
            return [string for piece in pieces for string in piece], splits
        np.cumsum([piece.size for piece in pieces], out=splits[1:])
        flat = [piece.ravel() for piece in pieces]
        return np.concatenate(flat or [np.zeros(0, self.numpy_dtype)]), splits

    def _string_batch(self, batch: Any, values: int | None) -> Any:
        if isinstance(batch, StringArray):
            if self.dtype == "bytes" or batch.text:
                return np.ascontiguousarray(batch.data), np.ascontiguousarray(batch.offsets)
            batch = batch.to_numpy()
        if isinstance(batch, list) and self.dtype == "bytes" and not self.shape:
            return batch  # the native side checks each for bytes or str
        strings: list[bytes] = []
        self._flatten(batch, strings)
        if values is not None and len(strings) != values:
            raise _misfit(f"has {len(strings)} strings, expected {values}")
        return strings

    # Many values out.

    def allocation(self) -> tuple[tuple[int, ...], np.dtype[Any] | None]:
        """Shape and dtype of a row of the array that the native decoder fills, if there is one."""
        if self.layout != "fixed" or self.is_string:
            return (), None
        return tuple(size or 0 for size in self.shape), self.numpy_dtype

    def wrap(self, grown: _core.GrownColumn, rows: int) -> Any:
        """Make what the native decoder grew a column for people."""
        data, offsets, row_splits, step_splits = grown
        if self.layout == "fixed":
            sizes = tuple(size or 0 for size in self.shape)
            return StringArray(data, offsets, self.dtype == "str", sizes, rows)
        values: Any
        if self.is_string:
            values = StringArray(data, offsets, self.dtype == "str")
        else:
            values = data.view(self.numpy_dtype)
        if self.layout == "steps":
            return _steps(values, row_splits, step_splits, self.shape)
        unknown = self.shape.count(None)
        if unknown == 1 and self.shape[0] is None:
            if len(self.shape) > 1 and not self.is_string:
                inner = tuple(size or 0 for size in self.shape[1:])
                return RaggedArray(values.reshape(-1, *inner), row_splits // self.count)
            return RaggedArray(values, row_splits)
        # The unknown dimension is not the first: a row is a stretch that has to be reshaped. (With
        # several, the kind that made this column knows the shapes.)
        shapes = (
            tuple(-1 if size is None else size for size in self.shape) if unknown == 1 else None
        )
        return RaggedArray(values, row_splits, shapes)


def _steps(
    values: Any,
    row_splits: NDArray[np.int64],
    step_splits: NDArray[np.int64],
    shape: Shape,
) -> RaggedArray:
    """The steps of SequenceExamples: dense if every step has the same shape, else ragged."""
    if None in shape:
        return RaggedArray(RaggedArray(values, step_splits), row_splits)
    if not shape or isinstance(values, StringArray):
        return RaggedArray(values, row_splits)
    sizes = tuple(size or 0 for size in shape)
    return RaggedArray(values.reshape(len(step_splits) - 1, *sizes), row_splits)


def _misfit(what: str) -> FeatureError:
    return FeatureError(f"the value {what}")


def _limits(dtype: str) -> tuple[int, int]:
    """The integers of a dtype that a native int64 can hold."""
    if np.dtype(object if dtype in STRINGS else dtype).kind not in "iu":
        return -(2**63), 2**63 - 1
    info = np.iinfo(dtype)
    return int(info.min), min(int(info.max), 2**63 - 1)


def check_shape(shape: Sequence[int | None], dtype: str) -> Shape:
    """Check the shape of a schema, which may come from a hostile file."""
    checked: list[int | None] = []
    for size in shape:
        if size is not None and (isinstance(size, bool) or not isinstance(size, (int, np.integer))):
            raise FeatureError(f"shape {tuple(shape)!r}: {size!r} is no dimension; use int or None")
        if size is not None and not 0 <= size <= MOST_BYTES:
            raise FeatureError(f"shape {tuple(shape)!r}: {size} is not between 0 and {MOST_BYTES}")
        checked.append(None if size is None else int(size))
    if len(checked) > 32:
        raise FeatureError(f"a shape has {len(checked)} dimensions, at most 32 are allowed")
    if None in checked and 0 in checked:
        raise FeatureError(f"shape {tuple(shape)!r}: a dimension of 0 beside an unknown one")
    total = 2 if dtype in STRINGS else np.dtype(dtype).itemsize
    for size in checked:
        total *= 1 if size is None else size
    if total > MOST_BYTES:
        raise FeatureError(
            f"shape {tuple(shape)!r} of {dtype} is over 2 GiB, more than an Example holds"
        )
    return tuple(checked)
