"""Type inference: the feature of one value, and the feature that fits several values.

Floats of Python, and so of CSV and JSON, have no precision of their own:

====================  ============================================================================
single floats         float32 if the shortest decimal form of every value is the same in float32,
                      such as 0.1, otherwise float64. While later values are unknown, they are
                      encoded as float32; if one of these requires float64, the decimal forms of
                      the others give their float64
lists of floats       float32; how many values are rounded is counted
integers beside them  exact, up to 2**24 in float32 and 2**53 in float64; others are errors
====================  ============================================================================

Scalars and arrays of numpy keep their dtype. Beside Python floats, numpy floats become float64.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.arrays import SparseArray
from covey.errors import FeatureError, escape
from covey.schema.audio import Audio, guess_audio, is_hugging_face_audio
from covey.schema.columns import NUMBERS, STRINGS, Shape, as_array, inexact_integer, unify_shapes
from covey.schema.images import Image, is_hugging_face_image, is_picture, picture_dtype
from covey.schema.tensor import Tensor
from covey.schema.types import ClassLabel, Feature, Ragged, Sparse

# Arrays of these are stored as raw bytes: a list would take two to ten times the space.
_RAW_IN_ARRAYS = ("int8", "uint8", "int16", "uint16", "float16", "float64")
# Integers up to these magnitudes are exact in float32 and float64.
_MAX_EXACT = 1 << 24
MAX_EXACT_FLOAT64 = 1 << 53
_MAX_LIST_DEPTH = 16
_PYTHON_NUMBERS = {bool, int, float}

DECIMAL = Tensor("float64", encoding="list")
"""Feature of Python floats that are the same in float32, until all values are known."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The feature that fits some values, and what it does not show of them."""

    feature: Feature
    example: int = 0
    """The first example that has this feature, for messages."""
    count: int = 1
    """Number of the values."""
    low: int = 0
    """Minimum of 0 and the integers."""
    high: int = 0
    """Maximum of 0 and the integers."""
    is_array: bool = False
    """Whether the values are arrays rather than Python numbers."""
    is_empty: bool = False
    """Whether all values are empty lists, so that their dtype is not known."""
    is_loaded: bool = False
    """Whether a value is an image of Pillow rather than an encoded one."""

    @property
    def dtype(self) -> str | None:
        """The dtype of the values; None if it is not known."""
        if self.is_empty or isinstance(self.feature, Audio):
            return None
        return "bytes" if isinstance(self.feature, Image) else getattr(self.feature, "dtype", None)

    @property
    def is_decimal(self) -> bool:
        """Whether the values are Python floats that are the same in float32."""
        return self.feature == _FLOAT32 and not (self.is_array or self.is_empty)

    def has_type_of(self, other: Seen) -> bool:
        """Return whether the type of both is the same."""
        return (self.feature, self.is_array, self.is_empty) == (
            other.feature,
            other.is_array,
            other.is_empty,
        )

    def with_dtype(self, dtype: str) -> Seen:
        """Return values that are stored with a declared dtype."""
        feature = self.feature
        if self.is_empty or isinstance(feature, Audio):
            return self
        if isinstance(feature, (Ragged, Sparse)):
            feature = dataclasses.replace(feature, dtype=dtype)
        else:
            shape = feature.shape if isinstance(feature, Tensor) else ()
            feature = _tensor(dtype, shape, self.is_array)
        return dataclasses.replace(self, feature=feature, low=0, high=0)


def is_decimal(feature: Feature) -> bool:
    """Return whether a feature is :data:`DECIMAL`, with any default."""
    return isinstance(feature, Tensor) and (
        (feature.dtype, feature.shape, feature.encoding) == ("float64", (), "list")
    )


def restore_decimals(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of a :data:`DECIMAL` feature, of which float32 was stored."""
    with np.errstate(over="ignore"):
        return _core.widen_by_decimal(np.ascontiguousarray(values, np.float32))


def with_dtype(feature: Feature, dtype: str) -> Feature:
    """Return a feature of the same shape with another dtype."""
    if isinstance(feature, (Ragged, Sparse)):
        return dataclasses.replace(feature, dtype=dtype)
    if type(feature) is not Tensor:
        return Tensor(dtype)
    is_raw = feature.encoding != "list" and feature.dtype != "float64" and dtype not in STRINGS
    encoding = feature.encoding if is_raw else None
    return dataclasses.replace(feature, dtype=dtype, encoding=encoding)


def count_rounded(values: Any) -> tuple[int, int]:
    """Return how many numbers of lists float32 rounds, and how many there are.

    Numbers whose shortest decimal form is the same in float32 are not rounded.
    """
    level: list[Any] = [each for each in values if isinstance(each, (list, tuple))]
    while level and all(isinstance(each, (list, tuple)) for each in level):
        level = list(itertools.chain.from_iterable(level))
    floats = np.array([each for each in level if isinstance(each, float)], np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        is_exact = floats.astype(np.float32) == floats
    is_same = _core.are_same_in_float32(floats).view(np.bool_)
    return int((~(is_exact | is_same)).sum()), len(level)


# The feature of values.


def look_at(value: Any, example: int = 0) -> Seen:
    """Return the feature of a value of the example at this position."""
    if isinstance(value, SparseArray):
        return Seen(Sparse(dtype_of(value.values), value.shape), example, is_array=True)
    if isinstance(value, str):
        return Seen(_STR, example)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Seen(_feature_of_bytes(value), example)
    if is_hugging_face_audio(value):
        return Seen(guess_audio(value), example)
    if is_hugging_face_image(value):
        data = value["bytes"]
        feature = Image() if data is None else _feature_of_bytes(data)
        return Seen(feature, example, is_loaded=True)
    if is_picture(value) and (dtype := picture_dtype(value)):
        return Seen(Image(dtype=dtype), example, is_loaded=True)
    if value is None:
        raise FeatureError(
            "the value is None",
            remedy="remove it, or pass defaults= if other examples have a value",
        )
    if isinstance(value, (list, tuple)):
        return _look_at_list(value, example)
    if isinstance(value, float):
        return Seen(_tensor("float32" if _core.is_same_in_float32(value) else "float64"), example)
    if isinstance(value, int):
        dtype, low, high = _look_at_numbers([value])
        return Seen(_tensor(dtype), example, low=low, high=high)
    return look_at_array(as_array(value), example)


def look_at_array(array: NDArray[Any], example: int = 0) -> Seen:
    """Return the feature of an array."""
    low, high = integer_limits(array)
    feature = _tensor(dtype_of(array), array.shape, is_array=True)
    return Seen(feature, example, low=low, high=high, is_array=True)


def look_at_column(column: Any) -> Seen | None:
    """Return the feature that fits all values of a column; None if each must be inspected."""
    if isinstance(column, np.ndarray) and column.dtype != object:
        return _row_of(look_at_array(column), len(column))
    if not isinstance(column, list) or not column:
        return None
    types = set(map(type, column))
    if types == {bytes}:
        return Seen(reduce(_unify_images, set(map(_feature_of_bytes, column))), 0, len(column))
    if types != {list}:
        return None
    try:
        seen = _look_at_list(column, 0)
    except FeatureError:  # the error of a row names it
        return None
    if seen.is_empty or not isinstance(seen.feature, Tensor):
        return None
    return _row_of(seen, len(column))


def _row_of(seen: Seen, rows: int) -> Seen:
    """Return the feature of the rows of an array or a list."""
    shape = seen.feature.shape[1:] if isinstance(seen.feature, Tensor) else ()
    feature = _tensor(str(seen.dtype), shape, seen.is_array)
    return dataclasses.replace(seen, feature=feature, count=rows)


def _feature_of_bytes(data: bytes | bytearray | memoryview) -> Feature:
    """Return the image feature of an encoded image, or the feature of other bytes."""
    header = _core.image_header(data)
    if header is None:
        return _BYTES
    return Image(dtype="uint16" if header[4] == 16 else "uint8")


def _look_at_list(value: list[Any] | tuple[Any, ...], example: int) -> Seen:
    """Return the feature of a list of numbers, strings or arrays, or of nested lists."""
    if value and isinstance(value[0], Mapping):
        names = ", ".join(f"{escape(str(name))!r}: [...]" for name in list(value[0])[:3])
        raise FeatureError(
            "the value is a list of dicts",
            remedy=f"convert it to a dict of lists, {{{names}}}, which is how TFDS stores a "
            "Sequence of dicts",
        )
    if value and all(isinstance(each, np.ndarray) and each.ndim for each in value):
        if len({each.shape for each in value}) == 1:
            return look_at_array(np.stack(value), example)
        if any(each.ndim != 1 for each in value):
            raise FeatureError("a list has arrays of different shapes")
        return Seen(Ragged(dtype_of(np.concatenate(value))), example)
    lengths: list[int | None] = []
    level: list[Any] = [value]
    types: set[type] = {list}
    while types and all(issubclass(each, (list, tuple)) for each in types):
        if len(lengths) == _MAX_LIST_DEPTH:
            raise FeatureError(f"lists are nested deeper than {_MAX_LIST_DEPTH} levels")
        sizes = set(map(len, level))
        lengths.append(sizes.pop() if len(sizes) == 1 else None)
        level = list(itertools.chain.from_iterable(level))
        types = set(map(type, level))
    if any(issubclass(each, (list, tuple, np.ndarray)) for each in types):
        raise FeatureError("lists and single values are mixed at one level")
    dtype, low, high = _look_at_numbers(level) if level else ("float32", 0, 0)
    feature = Ragged(dtype, len(lengths)) if None in lengths else _tensor(dtype, tuple(lengths))
    return Seen(feature, example, low=low, high=high, is_empty=not level)


def _look_at_numbers(values: list[Any]) -> tuple[str, int, int]:
    """Return the dtype of numbers or strings of Python, and the limits of the integers."""
    types = set(map(type, values))
    is_plain = types <= _PYTHON_NUMBERS
    if not is_plain and (texts := {each for each in types if issubclass(each, (str, bytes))}):
        if texts != types:
            raise FeatureError("strings and numbers are mixed in a list")
        return ("str" if all(issubclass(each, str) for each in texts) else "bytes"), 0, 0
    integers = [] if types == {float} else [each for each in values if isinstance(each, int)]
    low, high = min(integers, default=0), max(integers, default=0)
    if len(integers) < len(values):  # some are floats or scalars of numpy
        if not is_plain and (array := as_array(values)).dtype != np.float64:
            return dtype_of(array), *integer_limits(array)
        if max(-low, high) > MAX_EXACT_FLOAT64:
            raise inexact_integer(max(integers, key=abs), "float64")
        return float_dtype(max(-low, high)), 0, 0
    limits = min(low, 0), max(high, 0)
    if low >= -(2**63) and high < 2**63:
        return ("bool" if types == {bool} else "int64"), *limits
    if low < 0 or high >= 2**64:
        raise FeatureError(f"no dtype holds integers from {low} to {high}")
    return "uint64", *limits


def float_dtype(largest: int, *, is_float32: bool = True) -> str:
    """Return the dtype of floats beside integers.

    Args:
        largest: Largest magnitude of the integers.
        is_float32: Whether float32 holds the floats.
    """
    return "float32" if is_float32 and largest <= _MAX_EXACT else "float64"


def integer_limits(array: NDArray[Any]) -> tuple[int, int]:
    """Return the minimum and the maximum of 0 and the integers of an array."""
    if array.size == 0 or array.dtype.kind not in "iuO":
        return 0, 0
    if not isinstance(array.flat[0], (int, np.integer)):
        return 0, 0
    return min(0, int(array.min())), max(0, int(array.max()))


def dtype_of(array: NDArray[Any]) -> str:
    """Return the dtype of a feature that holds an array."""
    if array.dtype.kind in "UT":
        return "str"
    if array.dtype.kind == "S":
        return "bytes"
    if array.dtype.kind == "O" and array.size:
        kinds = {type(each) for each in array.ravel().tolist()}
        if kinds <= {str, bytes}:
            return "str" if kinds == {str} else "bytes"
    if array.dtype.name not in NUMBERS:
        raise FeatureError(f"the value has dtype {array.dtype}, which a feature cannot have")
    return str(array.dtype.name)


@lru_cache(maxsize=1024)
def _tensor(dtype: str, shape: Shape = (), is_array: bool = False) -> Tensor:
    """Return the feature of tensors; arrays of small types are stored as raw bytes."""
    is_raw = (is_array and shape and dtype in _RAW_IN_ARRAYS) or shape.count(None) > 1
    return Tensor(dtype, shape, encoding="bytes" if is_raw else None)


_FLOAT32, _STR, _BYTES = map(_tensor, ("float32", "str", "bytes"))


# The feature that fits several values.


def unify_labels(a: ClassLabel, b: Feature | None) -> ClassLabel | None:
    """Return the label that has the classes of both; names that are missing are no conflict."""
    if not isinstance(b, ClassLabel):
        return None
    for more, less in ((a, b), (b, a)):
        unnamed = less.names is None and (more.num_classes or 0) >= (less.num_classes or 0)
        if extends(more, less) or unnamed:
            return more
    return None


def extends(feature: Feature | None, base: Feature | None) -> bool:
    """Return whether `feature` is `base`, or a label with the classes of `base` and more.

    >>> extends(ClassLabel(["owl", "wren"]), ClassLabel(["owl"]))
    True
    """
    if not isinstance(feature, ClassLabel) or not isinstance(base, ClassLabel):
        return feature == base
    if feature.names is None or base.names is None:
        more = (feature.num_classes or 0) >= (base.num_classes or 0)
        return feature.names is base.names and more
    return feature.names[: len(base.names)] == base.names


FLOATS = ("float16", "float32", "float64")


class _ConflictError(Exception):
    """No feature fits both values: what differs, and the two."""


def widen(a: Seen, b: Seen) -> Seen:
    """Return the feature that fits the values of both, of which those of `b` follow.

    Raises:
        FeatureError: If there is none.
    """
    try:
        return _widen(a, b)
    except _ConflictError as conflict:
        what, x, y = conflict.args
        raise FeatureError(
            f"example {a.example} has {what} {x}, example {b.example} has {y}; no feature fits both"
        ) from None


def _widen(a: Seen, b: Seen) -> Seen:
    low, high = min(a.low, b.low), max(a.high, b.high)
    is_array = a.is_array or b.is_array
    if a.has_type_of(b) and not a.is_empty:
        feature: Feature = a.feature
    elif isinstance(a.feature, Audio) or isinstance(b.feature, Audio):
        feature = _unify_audio(a, b)
    else:
        feature = _unify_images(a.feature, b.feature)
        if (a.is_loaded or b.is_loaded) and not isinstance(feature, Image):
            # Images of Pillow cannot be stored with other bytes in one feature.
            raise _ConflictError("the type", _shown_type(a), _shown_type(b))
        if not isinstance(feature, Image):
            feature, is_array = _unify_lists(a, b)
    is_empty = a.is_empty and b.is_empty
    first = a if feature == a.feature and a.is_empty == is_empty else b
    is_loaded, count = a.is_loaded or b.is_loaded, a.count + b.count
    return Seen(feature, first.example, count, low, high, is_array, is_empty, is_loaded)


def _unify_audio(a: Seen, b: Seen) -> Audio:
    x, y = a.feature, b.feature
    if not isinstance(x, Audio) or not isinstance(y, Audio):
        raise _ConflictError("the type", _shown_type(a), _shown_type(b))
    if x.sample_rate != y.sample_rate:
        raise _ConflictError("a sampling rate of", f"{x.sample_rate} Hz", f"{y.sample_rate} Hz")
    if x.shape != y.shape:
        raise _ConflictError("a number of channels of", x.channels, y.channels)
    return x if x.dtype == y.dtype else Audio(x.sample_rate, shape=x.shape)


def _unify_images(a: Feature, b: Feature) -> Feature:
    """Return the image that fits both; the feature of bytes if one is not an image."""
    if not isinstance(a, Image) or not isinstance(b, Image):
        return _BYTES
    # Decoding reduces 16 bits to 8, but cannot give an image of 8 bits the range of 16.
    dtype = a.dtype if a.dtype == b.dtype else "uint8"
    return dataclasses.replace(a, dtype=dtype, shape=unify_shapes(a.shape, b.shape))


def _unify_lists(a: Seen, b: Seen) -> tuple[Feature, bool]:
    """Return the feature that fits numbers and strings, and whether they count as arrays."""
    x, y = (_BYTES if isinstance(each.feature, Image) else each.feature for each in (a, b))
    dtype = _unify_dtypes(a, b)
    shapes = _shape_of(x), _shape_of(y)
    if Sparse in map(type, (x, y)):
        if type(x) is not type(y) or shapes[0] != shapes[1]:
            raise _ConflictError("shape", *shapes)
        return Sparse(dtype, shapes[0]), True
    # Integers of numpy do not give floats of Python a precision.
    levels = [each.depth if isinstance(each, Ragged) else len(_shape_of(each)) for each in (x, y)]
    floats = [each for each in (a, b) if not any(levels) and each.dtype in FLOATS]
    if len({each.is_array for each in floats}) > 1:
        dtype = "float64"
    is_array = any(each.is_array for each in floats or (a, b))
    if Ragged in map(type, (x, y)):
        # Lists of equal lengths, and empty lists, fit a ragged feature of the same depth.
        for each, own in zip((a, b), levels, strict=True):
            if own != max(levels) and not each.is_empty:
                raise _ConflictError("depth", levels[0], levels[1])
        return Ragged(dtype, max(levels)), is_array
    # An empty list fits lists of any depth.
    (short, is_empty), (deep, _) = sorted(
        zip(shapes, (a.is_empty, b.is_empty), strict=True), key=lambda each: len(each[0])
    )
    rank = len(short)
    if rank < len(deep) and not (is_empty and rank):
        raise _ConflictError("shape", *shapes)
    shape = (*unify_shapes(short, deep[:rank]), *deep[rank:])
    if None in shape:
        shape = tuple(size or None for size in shape)  # a shape has no 0 beside None
        if shape.count(None) > 1 and not is_array:
            return Ragged(dtype, len(shape)), is_array  # Python lists
    return _tensor(dtype, shape, is_array), is_array


def _shape_of(feature: Feature) -> Shape:
    return feature.shape if isinstance(feature, (Tensor, Sparse)) else ()


def _unify_dtypes(a: Seen, b: Seen) -> str:
    """Return the dtype of the values of both."""
    x, y = a.dtype, b.dtype
    if x is None or y is None or x == y:
        return x or y or "float32"
    low, high = min(a.low, b.low), max(a.high, b.high)
    if {x, y} == {"str", "bytes"}:
        return "bytes"
    kinds = {"" if each in STRINGS else np.dtype(each).kind for each in (x, y)}
    if "f" in kinds and len(kinds) > 1 and "" not in kinds:
        largest = max(low, high, key=abs)
        if abs(largest) > MAX_EXACT_FLOAT64:
            raise inexact_integer(largest, "float64")
        return float_dtype(abs(largest), is_float32="float64" not in (x, y))
    is_outside = "uint64" in (x, y) and kinds == {"i", "u"} and low < 0
    if "" in kinds or is_outside or (low < 0 and high >= 2**63):
        raise _ConflictError("dtype", x, y)
    if "uint64" in (x, y) and kinds == {"i", "u"}:
        return "uint64"
    return str(np.promote_types(x, y).name)


def _shown_type(seen: Seen) -> str:
    if isinstance(seen.feature, (Audio, Image)):
        return type(seen.feature).__name__.lower()
    return str(seen.dtype or "an empty list")
