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
from covey.schema.arrays import RaggedArray, StringArray

Shape = tuple[int | None, ...]
Wire = Literal["bytes", "floats", "ints"]
Layout = Literal["fixed", "variable", "steps"]

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


def parse_dtype(dtype: Any) -> str:
    """The name of a dtype: a name, a numpy dtype, or a Python type.

    >>> parse_dtype(np.uint8), parse_dtype(str), parse_dtype(float)
    ('uint8', 'str', 'float32')
    """
    if dtype is None:
        raise FeatureError(f"dtype is None; must be one of {', '.join(DTYPES)}")
    python = {str: "str", bytes: "bytes", bool: "bool", int: "int64", float: "float32"}
    if isinstance(dtype, type) and dtype in python:
        return python[dtype]
    if isinstance(dtype, str) and dtype in STRINGS:
        return dtype
    if isinstance(dtype, str) and dtype == "string":
        return "bytes"
    try:
        name = str(np.dtype(dtype).name)
    except (TypeError, ValueError):
        name = str(dtype)
    if name not in DTYPES:
        raise FeatureError(option="dtype", found=dtype, allowed=f"one of {', '.join(DTYPES)}")
    return name


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
    """What a string stands for, if the integers have names."""

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

    def spec(self) -> _core.ColumnSpec:
        """Return the column as the native codec takes it."""
        return _core.ColumnSpec(
            key=self.key,
            dtype=self.dtype,
            wire=self.wire,
            layout=self.layout,
            count=self.count,
            required=self.required,
            default=self.default,
            shape=[-1 if size is None else size for size in self.shape],
            bounds=self.bounds,
        )

    # One value in.

    def coerce(self, value: Any) -> Any:
        """Make a value what the native encoder takes: a number, an array, bytes, a list of bytes.

        Raises:
            FeatureError: If it is something else; the message does not name the feature.
        """
        if self.lookup is not None and isinstance(value, str):
            return self.lookup(value)
        if not self.is_string:
            return self._numbers(value, self.shape)
        if not self.shape:
            return self._string(value)
        strings: list[bytes] = []
        check_value_shape(self._flatten(value, self.shape, strings), self.shape)
        return strings

    def _numbers(self, value: Any, shape: Shape) -> NDArray[Any]:
        array = as_array(value)
        wanted = self.numpy_dtype
        if array.size == 0:
            # Nothing has no type of its own, and goes as deep as is wanted.
            array = np.zeros(_deepen(array.shape, shape), wanted)
        kind = array.dtype.kind
        if wanted == np.uint64 and kind in "fO" and isinstance(value, (int, list, tuple)):
            array, kind = _unsigned(value), "u"  # Python's integers, some of them above 2**63
        allowed = {"b": "b", "i": "bui", "u": "bui", "f": "buif"}[wanted.kind]
        if kind not in allowed and not (wanted.kind == "b" and kind in "ui"):
            raise _misfit(f"has dtype {array.dtype}, expected {self.dtype}")
        check_value_shape(array.shape, shape)
        if array.dtype != wanted or self.bounds is not None:  # else there is nothing to look for
            self._check_range(array)
        with np.errstate(over="ignore"):
            result = np.ascontiguousarray(array, dtype=wanted).reshape(array.shape)
        if wanted.kind == "f" and wanted.itemsize < array.dtype.itemsize:
            lost = np.isinf(result) & np.isfinite(array)
            if lost.any():
                raise _misfit(f"is {array[lost].flat[0]}, too large for {self.dtype}")
        return result

    def _check_range(self, array: NDArray[Any]) -> None:
        """Make sure that integers fit the dtype, and the bounds if there are any."""
        wanted = self.numpy_dtype
        if wanted.kind == "f" or array.size == 0:
            return
        low, high = self.bounds or ((0, 1) if wanted.kind == "b" else _limits(self.dtype))
        if wanted == np.uint64:
            low, high = 0, 2**64 - 1
        for extreme in (int(array.min()), int(array.max())):
            if not low <= extreme <= high:
                raise _misfit(f"is {extreme}; must be from {low} to {high}")

    def _string(self, value: Any) -> bytes:
        if not isinstance(value, (str, bytes, bytearray, memoryview)) and hasattr(
            value, "__array__"
        ):
            array = as_array(value)  # a numpy or framework scalar
            value = array.item() if array.shape == () else value
        try:
            if isinstance(value, str):
                return value.encode()
            if isinstance(value, (bytes, bytearray, memoryview)):
                raw = bytes(value)
                if self.dtype == "str":
                    raw.decode()
                return raw
        except UnicodeError as error:
            raise _misfit(f"is not a valid UTF-8: {error}") from None
        raise _misfit(f"is of type {type(value).__name__}, expected {self.dtype}")

    def _flatten(self, value: Any, shape: Shape, strings: list[bytes]) -> tuple[int, ...]:
        """Collect the strings of nested sequences, no deeper than ``shape``; return their shape."""
        if isinstance(value, StringArray):
            value = value.to_numpy()
        if hasattr(value, "__array__"):
            array = as_array(value)
            strings.extend(self._string(each) for each in array.ravel().tolist())
            return array.shape if array.size else _deepen(array.shape, shape)
        if not isinstance(value, (list, tuple)):
            raise _misfit(f"is of type {type(value).__name__}, expected a list of {self.dtype}")
        if not value:
            return (0, *(size or 0 for size in shape[1:]))
        if len(shape) == 1:
            strings.extend(self._string(each) for each in value)
            return (len(value),)
        shapes = {self._flatten(each, shape[1:], strings) for each in value}
        if len(shapes) != 1:
            raise _misfit(f"is ragged: its parts have shapes {sorted(shapes)}")
        return (len(value), *shapes.pop())

    # Many values in.

    def coerce_batch(self, batch: Any, rows: int) -> tuple[Any, NDArray[np.int64] | None]:
        """Make a column of values what the native encoder takes: (values, row splits or None)."""
        if self.layout == "fixed":
            if self.is_string:
                return self._string_batch(batch, (rows, *self.shape)), None
            return self._numbers(batch, (rows, *self.shape)), None
        rows_are_stretches = self.shape[0] is None and self.shape.count(None) == 1
        if isinstance(batch, RaggedArray) and batch.row_shapes is None and rows_are_stretches:
            splits = np.ascontiguousarray(batch.row_splits, np.int64)
            if splits.size and not 0 <= splits.min() <= splits.max() <= len(batch.values):
                raise FeatureError("the row splits do not fit the values")
            shape = (None, *self.shape[1:])
            if self.is_string:
                return self._string_batch(batch.values, shape), splits * self.count
            return self._numbers(batch.values, shape), splits * self.count
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

    def _string_batch(self, batch: Any, shape: Shape) -> Any:
        if isinstance(batch, StringArray) and (self.dtype == "bytes" or batch.text):
            check_value_shape(batch.shape, shape)
            return np.ascontiguousarray(batch.data), np.ascontiguousarray(batch.offsets)
        plain = {str} if self.dtype == "str" else {str, bytes}
        if isinstance(batch, list) and len(shape) == 1 and set(map(type, batch)) <= plain:
            return batch
        strings: list[bytes] = []
        check_value_shape(self._flatten(batch, shape, strings), shape)
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
        steps = self.layout == "steps"
        unknown = self.shape.count(None)
        # What one item of the values is: a step, an item along a first dimension that is unknown,
        # or else a single value.
        item: Shape = ()
        if steps and unknown == 0:
            item = self.shape
        elif not steps and unknown == 1 and self.shape[0] is None:
            item = self.shape[1:]
        sizes = tuple(size or 0 for size in item)
        width = int(np.prod(sizes, dtype=np.int64))
        values: Any
        if self.is_string:
            values = StringArray(data, offsets, self.dtype == "str", sizes)
        else:
            values = data.view(self.numpy_dtype)
            if sizes:
                count = len(step_splits) - 1 if steps else len(values) // width
                values = values.reshape(count, *sizes)
        if steps:
            return RaggedArray(RaggedArray(values, step_splits) if unknown else values, row_splits)
        if unknown == 1 and self.shape[0] is None:
            return RaggedArray(values, row_splits // width)
        # The unknown dimension is not the first: a row is a stretch that has to be reshaped. (With
        # several, the kind that made this column knows the shapes.)
        shapes: tuple[int, ...] | None = None
        if unknown == 1:
            shapes = tuple(-1 if size is None else size for size in self.shape)
        return RaggedArray(values, row_splits, shapes)


def _deepen(found: tuple[int, ...], expected: Shape) -> tuple[int, ...]:
    """The shape of something empty, with the dimensions that it does not show."""
    return (*found, *(size or 0 for size in expected[len(found) :]))


def as_array(value: Any) -> NDArray[Any]:
    """A value as numpy has it; whatever it or a framework says against that is a FeatureError."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        raise _misfit(f"is not an array: {error}") from None


def _unsigned(value: Any) -> NDArray[np.uint64]:
    """Python's integers, which numpy would make floats if only some of them need uint64."""
    array = np.array(value, object)
    if not all(isinstance(each, int) for each in array.flat):
        raise _misfit("holds something else than integers, expected uint64")
    try:
        return array.astype(np.uint64)
    except OverflowError as error:
        raise _misfit(f"is not an array of uint64: {error}") from None


def check_value_shape(found: tuple[int, ...], expected: Shape) -> None:
    """Make sure that a value has the shape that a feature wants."""
    fits = len(found) == len(expected) and all(
        size is None or size == seen for seen, size in zip(found, expected, strict=True)
    )
    if not fits:
        raise _misfit(f"has shape {found}, expected {expected}")


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
            raise FeatureError(
                f"shape {tuple(shape)!r}: {size!r} is not a dimension; use int or None"
            )
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
