"""Columns: the storage of one key of a tf.train.Example, and the conversion of its values.

Each feature of a schema is stored in one or more columns; the native codec has no other unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey import _core, errors
from covey.arrays import RaggedArray, StringArray
from covey.errors import FeatureError

Shape = tuple[int | None, ...]
Wire = Literal["bytes", "floats", "ints"]
Layout = Literal["fixed", "variable", "steps"]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = (*_INTEGERS, "bool", "float16", "float32", "float64")
STRINGS = ("str", "bytes")
DTYPES = (*NUMBERS, *STRINGS)


def check(option: str, value: Any, ok: object, allowed: str | Sequence[str], **fields: str) -> None:
    """Raise FeatureError unless an argument of a feature is valid."""
    if not ok:
        errors.check(option, value, False, allowed, error=FeatureError, **fields)


# The largest message that protobuf can read, hence the largest value of an example.
MAX_EXAMPLE_BYTES = 1 << 31
_SIZES = f"a tuple of integers from 0 to {MAX_EXAMPLE_BYTES} and None"


def parse_dtype(dtype: Any) -> str:
    """Return the name of a dtype that is given as a name, a numpy dtype or a Python type.

    >>> parse_dtype(np.uint8), parse_dtype(str), parse_dtype(float)
    ('uint8', 'str', 'float32')
    """
    python = {str: "str", bytes: "bytes", bool: "bool", int: "int64", float: "float32"}
    if isinstance(dtype, type) and dtype in python:
        return python[dtype]
    if isinstance(dtype, str) and dtype in STRINGS:
        return dtype
    if isinstance(dtype, str) and dtype == "string":
        return "bytes"
    try:
        name = "" if dtype is None else str(np.dtype(dtype).name)
    except (TypeError, ValueError):
        name = str(dtype)
    check("dtype", dtype, name in DTYPES, DTYPES)
    return name


@dataclass(frozen=True, slots=True)
class Column:
    """One key of an Example."""

    key: str
    dtype: str
    shape: Shape = ()
    """Shape of one row; at most one dimension is None, unless ``raw``."""
    raw: bool = False
    """The numbers are stored as one byte string, in their memory layout."""
    layout: Layout = "fixed"
    required: bool = True
    default: Any = None
    """Value of an example that lacks an optional key: an array, or a list of bytes."""
    bounds: tuple[int, int] | None = None
    """Minimum and maximum of the integers, if narrower than those of the dtype."""
    lookup: Callable[[str], int] | None = field(default=None, compare=False)
    """Function that maps a name to its integer, if the integers have names."""
    image: tuple[int, int, bool] | None = None
    """Height and width (-1 if unknown) of encoded images, and whether they have 16 bits."""
    convert: Callable[[Any], Any] | None = field(default=None, compare=False)
    """Function that converts a value to bytes or an array, in place of :meth:`coerce`."""

    @property
    def wire(self) -> Wire:
        """The list of tf.train.Feature that holds the values."""
        if self.raw or self.is_string:
            return "bytes"
        return "floats" if self.dtype.startswith("float") else "ints"

    @property
    def is_string(self) -> bool:
        """Whether values are ``str`` or ``bytes``."""
        return self.dtype in STRINGS

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the values."""
        return np.dtype(object if self.is_string else self.dtype)

    @property
    def count(self) -> int:
        """Number of values of a row; with variable layout, the number that it is a multiple of."""
        known = [size for size in self.shape if size is not None]
        # Several unknown dimensions: any number of values.
        if self.shape.count(None) > 1:
            return 1
        return int(np.prod(known, dtype=np.int64))

    def min_bytes(self) -> int:
        """Return the minimum number of bytes that the column takes in a record."""
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
            image=self.image,
        )

    # Encoding of single values.

    def coerce(self, value: Any) -> Any:
        """Convert a value to a form that the native encoder takes.

        These are a number, an array, bytes, or a list of bytes.

        Raises:
            FeatureError: If the value does not match the column; ``feature`` is not set.
        """
        if self.convert is not None:
            return self.convert(value)
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
        target = self.numpy_dtype
        if array.size == 0:
            # An empty value has no dtype, and may have fewer dimensions.
            array = np.zeros(_deepen(array.shape, shape), target)
        if target.kind == "f":
            self._check_exact(value, array)
        kind = array.dtype.kind
        if target == np.uint64 and kind in "fO" and isinstance(value, (int, list, tuple)):
            array, kind = _unsigned(value), "u"  # Python integers, some of them above 2**63
        allowed = {"b": "b", "i": "bui", "u": "bui", "f": "buif"}[target.kind]
        if kind not in allowed and not (target.kind == "b" and kind in "ui"):
            raise _mismatch(f"has dtype {array.dtype}, expected {self.dtype}")
        check_value_shape(array.shape, shape)
        if array.dtype != target or self.bounds is not None:
            self._check_range(array)
        with np.errstate(over="ignore"):
            result = np.ascontiguousarray(array, dtype=target).reshape(array.shape)
        if target.kind == "f" and target.itemsize < array.dtype.itemsize:
            lost = np.isinf(result) & np.isfinite(array)
            if lost.any():
                raise _mismatch(f"is {array[lost].flat[0]}, too large for {self.dtype}")
        return result

    def _check_exact(self, value: Any, array: NDArray[Any]) -> None:
        """Check that the column holds integers exactly."""
        target = self.numpy_dtype
        limit = 1 << (np.finfo(target).nmant + 1)
        integers: Any = ()
        if array.dtype.kind == "f":  # which may be integers and floats of Python
            is_large = isinstance(value, (int, list, tuple)) and (abs(array) >= limit).any()
            integers = _integers_in(value) if is_large else ()
        elif array.dtype.kind in "iu":
            integers = array[(array > limit) | (array < -limit)]
        elif array.dtype.kind == "O" and isinstance(value, int):
            integers = [value]
        for each in map(int, integers):
            with np.errstate(over="ignore"):
                stored = float(target.type(each))
            if np.isfinite(stored) and int(stored) != each:
                raise inexact_integer(each, self.dtype)

    def _check_range(self, array: NDArray[Any]) -> None:
        """Check that integers fit the dtype and the bounds."""
        target = self.numpy_dtype
        if target.kind == "f" or array.size == 0:
            return
        low, high = (0, 1) if target.kind == "b" else _limits(target)
        if self.bounds is not None:
            low, high = self.bounds
        for extreme in (int(array.min()), int(array.max())):
            if not low <= extreme <= high:
                raise _mismatch(f"is {extreme}; must be from {low} to {high}")

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
            raise _mismatch(f"is not valid UTF-8: {error}") from None
        raise _mismatch(f"is of type {type(value).__name__}, expected {self.dtype}")

    def _flatten(self, value: Any, shape: Shape, strings: list[bytes]) -> tuple[int, ...]:
        """Append the strings of nested sequences to `strings`; return the shape."""
        if isinstance(value, StringArray):
            value = value.to_numpy()
        if hasattr(value, "__array__"):
            array = as_array(value)
            strings.extend(self._string(each) for each in array.ravel().tolist())
            return array.shape if array.size else _deepen(array.shape, shape)
        if not isinstance(value, (list, tuple)):
            raise _mismatch(f"is of type {type(value).__name__}, expected a list of {self.dtype}")
        if not value:
            return (0, *(size or 0 for size in shape[1:]))
        if len(shape) == 1:
            strings.extend(self._string(each) for each in value)
            return (len(value),)
        shapes = {self._flatten(each, shape[1:], strings) for each in value}
        if len(shapes) != 1:
            raise _mismatch(f"is ragged: its items have shapes {sorted(shapes)}")
        return (len(value), *shapes.pop())

    # Encoding of columns.

    def coerce_batch(self, batch: Any, rows: int) -> tuple[Any, NDArray[np.int64] | None]:
        """Convert a column to the form of the native encoder: (values, row splits or None)."""
        if self.layout == "fixed":
            return self._values(batch, (rows, *self.shape)), None
        rows_are_slices = self.shape[0] is None and self.shape.count(None) == 1
        if isinstance(batch, RaggedArray) and batch.row_shapes is None and rows_are_slices:
            splits = np.ascontiguousarray(batch.row_splits, np.int64)
            if splits.size and not 0 <= splits.min() <= splits.max() <= len(batch.values):
                raise FeatureError("the row splits do not match the values")
            return self._values(batch.values, (None, *self.shape[1:])), splits * self.count
        if isinstance(batch, np.ndarray) and batch.dtype != object and not self.is_string:
            values = self._numbers(batch, (rows, *self.shape))
            return values, np.arange(rows + 1, dtype=np.int64) * (values.size // max(1, rows))
        pieces = [self.coerce(row) for row in batch]
        if self.is_string:
            splits = splits_of([len(piece) for piece in pieces])
            return [string for piece in pieces for string in piece], splits
        flat = [piece.ravel() for piece in pieces]
        values = np.concatenate(flat or [np.zeros(0, self.numpy_dtype)])
        return values, splits_of([len(piece) for piece in flat])

    def _values(self, batch: Any, shape: Shape) -> Any:
        return self._strings(batch, shape) if self.is_string else self._numbers(batch, shape)

    def _strings(self, batch: Any, shape: Shape) -> Any:
        if isinstance(batch, StringArray) and (self.dtype == "bytes" or batch.text):
            check_value_shape(batch.shape, shape)
            return np.ascontiguousarray(batch.data), np.ascontiguousarray(batch.offsets)
        plain = {str} if self.dtype == "str" else {str, bytes}
        if isinstance(batch, list) and len(shape) == 1 and set(map(type, batch)) <= plain:
            return batch
        strings: list[bytes] = []
        check_value_shape(self._flatten(batch, shape, strings), shape)
        return strings

    # Decoding of columns.

    def allocation(self) -> tuple[tuple[int, ...], np.dtype[Any] | None]:
        """Return the row shape and the dtype of the array that the decoder fills, if any."""
        if self.layout != "fixed" or self.is_string:
            return (), None
        return tuple(size or 0 for size in self.shape), self.numpy_dtype

    def wrap(self, grown: _core.GrownColumn, rows: int) -> Any:
        """Return the column for the arrays that the native decoder allocated."""
        data, offsets, row_splits, step_splits = grown
        if self.layout == "fixed":
            sizes = tuple(size or 0 for size in self.shape)
            return StringArray(data, offsets, self.dtype == "str", sizes, rows)
        steps = self.layout == "steps"
        unknown = self.shape.count(None)
        # The item of `values`: a step, an item along an unknown first dimension, or a single value.
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
        # The unknown dimension is not the first one: each row is reshaped. With several unknown
        # dimensions, the feature has the shapes.
        shapes: tuple[int, ...] | None = None
        if unknown == 1:
            shapes = tuple(-1 if size is None else size for size in self.shape)
        return RaggedArray(values, row_splits, shapes)


def splits_of(lengths: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    """Return the row splits of rows of these lengths.

    >>> splits_of([2, 0, 1]).tolist()
    [0, 2, 2, 3]
    """
    splits = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=splits[1:])
    return splits


def _deepen(found: tuple[int, ...], expected: Shape) -> tuple[int, ...]:
    """Return the shape of an empty value, with the dimensions that it lacks."""
    return (*found, *(size or 0 for size in expected[len(found) :]))


def as_array(value: Any) -> NDArray[Any]:
    """Return a value as a numpy array; errors of numpy and of frameworks become FeatureError."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        raise _mismatch(f"is not an array: {error}") from None


def _integers_in(value: Any) -> Iterator[int]:
    """Yield the integers of nested lists."""
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _integers_in(each)
    elif isinstance(value, int):
        yield value


def inexact_integer(value: int, dtype: str) -> FeatureError:
    """Return the error of an integer that must be stored as float, but is not exact in it."""
    return FeatureError(
        f"the value is the integer {value}, which {dtype} does not hold exactly",
        remedy="pass defaults= if empty cells make the integers floats, or types= to store strings",
    )


def _unsigned(value: Any) -> NDArray[np.uint64]:
    """Return Python integers as uint64; numpy converts mixed ones to floats."""
    array = np.array(value, object)
    if not all(isinstance(each, int) for each in array.flat):
        raise _mismatch("has items that are not integers, expected uint64")
    try:
        return array.astype(np.uint64)
    except OverflowError as error:
        raise _mismatch(f"is not an array of uint64: {error}") from None


def check_value_shape(found: tuple[int, ...], expected: Shape) -> None:
    """Check that a value has the shape of its feature."""
    fits = len(found) == len(expected) and all(
        size is None or size == seen for seen, size in zip(found, expected, strict=True)
    )
    if not fits:
        raise _mismatch(f"has shape {found}, expected {expected}")


def _mismatch(reason: str) -> FeatureError:
    return FeatureError(f"the value {reason}")


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the range of an integer dtype."""
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def unify_shapes(a: Shape, b: Shape) -> Shape:
    """Return the shape that fits both; (None,) if they differ in the number of dimensions."""
    if len(a) != len(b):
        return (None,)
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def check_shape(shape: Sequence[int | None], dtype: str) -> Shape:
    """Check the shape of a schema, which may come from an untrusted file."""
    found = tuple(shape)
    known = [size for size in found if size is not None]
    is_valid = all(isinstance(n, (int, np.integer)) and type(n) is not bool for n in known)
    check("shape", found, is_valid, "a tuple of integers and None")
    check("shape", found, all(0 <= size <= MAX_EXAMPLE_BYTES for size in known), _SIZES)
    checked = tuple(None if size is None else int(size) for size in found)
    if len(checked) > 32:
        raise FeatureError(f"the shape has {len(checked)} dimensions; must have at most 32")
    if None in checked and 0 in checked:
        raise FeatureError(f"shape {found!r} has both an unknown and an empty dimension")
    item = 2 if dtype in STRINGS else np.dtype(dtype).itemsize
    if math.prod(map(int, known), start=item) > MAX_EXAMPLE_BYTES:
        raise FeatureError(
            f"a value of {dtype} with shape {found!r} exceeds 2 GiB, the limit of an Example"
        )
    return checked
