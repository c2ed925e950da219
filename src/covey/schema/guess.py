"""Type inference: the type of one value, and the type that fits several values.

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
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.arrays import SparseArray
from covey.errors import FeatureError, escape
from covey.schema.audio import Audio, guess_audio, is_hugging_face_audio
from covey.schema.columns import NUMBERS, STRINGS, Shape, as_array, inexact_integer, unify_shapes
from covey.schema.image_inputs import is_hugging_face_image, is_picture, picture_dtype
from covey.schema.images import Image
from covey.schema.tensor import Tensor
from covey.schema.types import Feature, Ragged, Sparse

# Arrays of these are stored as raw bytes: a list would take two to ten times the space.
_RAW_IN_ARRAYS = ("int8", "uint8", "int16", "uint16", "float16", "float64")
# Integers up to these magnitudes are exact in float32 and float64.
_MAX_EXACT = 1 << 24
MAX_EXACT_FLOAT64 = 1 << 53
_MAX_LIST_DEPTH = 16


@dataclass(slots=True)
class Guess:
    """The type that fits the values of a feature so far."""

    example: int
    """The first example that has this type, for messages."""
    dtype: str | None
    """None if all values are empty lists."""
    shape: Shape = ()
    depth: int = 0
    """Levels of lists of different lengths; 0 for a tensor."""
    sparse: bool = False
    array: bool = False
    """Whether a value is an array rather than Python numbers."""
    low: int = 0
    """Minimum of 0 and the integers."""
    high: int = 0
    """Maximum of 0 and the integers."""
    image: str = ""
    """The dtype of the pixels, ``"uint8"`` or ``"uint16"``, if all values are images; their own
    dtype is bytes then."""
    encoded: bool = True
    """Whether all values are encoded already; False if an image of Pillow is one of them."""
    audio: Audio | None = None
    """The feature of the values, if they are sounds."""

    @property
    def form(self) -> tuple[Any, ...]:
        """The fields that determine the feature."""
        return self.dtype, self.shape, self.depth, self.sparse, self.array, self.image, self.audio

    @property
    def is_decimal(self) -> bool:
        """Whether the values are Python floats that are the same in float32."""
        return self.dtype == "float32" and not (self.array or self.shape or self.depth)

    def feature(self, *, is_final: bool = True) -> Feature:
        """Return the feature of this type.

        Args:
            is_final: Whether all values are known. Otherwise, Python floats that are the same in
                float32 are float64, stored as float32; see :func:`restore_decimals`.
        """
        if self.is_decimal and not is_final:
            return DECIMAL
        dtype = self.dtype or "float32"
        if self.audio is not None:
            return self.audio
        if self.image:
            return Image(dtype=self.image)
        if self.sparse:
            return Sparse(dtype, self.shape)
        if self.depth:
            return Ragged(dtype, self.depth)
        raw = self.array and self.shape and dtype in _RAW_IN_ARRAYS
        if self.shape.count(None) > 1:
            raw = True
        return Tensor(dtype, self.shape, encoding="bytes" if raw else None)


DECIMAL = Tensor("float64", encoding="list")
"""Feature of Python floats that are the same in float32, until all values are known."""


def is_decimal(feature: Feature) -> bool:
    """Return whether a feature is :data:`DECIMAL`, with any default."""
    return isinstance(feature, Tensor) and (feature.dtype, feature.shape, feature.encoding) == (
        DECIMAL.dtype,
        DECIMAL.shape,
        DECIMAL.encoding,
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


def is_hugging_face_file(value: Any) -> bool:
    """Return whether a value is a dict that represents an image or a sound."""
    return is_hugging_face_image(value) or is_hugging_face_audio(value)


def guess_value(value: Any, example: int) -> Guess:
    """Return the type of a value of the example at this position."""
    if isinstance(value, SparseArray):
        return Guess(example, dtype_of(value.values), value.shape, sparse=True, array=True)
    if isinstance(value, str):
        return Guess(example, "str")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Guess(example, "bytes", image=_image_dtype(value))
    if is_hugging_face_audio(value):
        return Guess(example, None, audio=guess_audio(value))
    if is_hugging_face_image(value):
        data = value["bytes"]
        image = "uint8" if data is None else _image_dtype(data)
        return Guess(example, "bytes", image=image, encoded=False)
    if is_picture(value) and (dtype := picture_dtype(value)):
        return Guess(example, "bytes", image=dtype, encoded=False)
    if value is None:
        raise FeatureError(
            "the value is None",
            remedy="remove it, or pass defaults= if other examples have a value",
        )
    if isinstance(value, (list, tuple)):
        return _guess_list(value, example)
    if isinstance(value, float):
        return Guess(example, "float32" if _core.is_same_in_float32(value) else "float64")
    array = as_array(value)
    low, high = integer_limits(array)
    if isinstance(value, (bool, int)):
        return Guess(example, _python_dtype([value], array), low=low, high=high)
    return Guess(example, dtype_of(array), array.shape, array=True, low=low, high=high)


def guess_default(default: Any, guess: Guess) -> Guess:
    """Return the type of the default of values of some type.

    A float of Python has the dtype of numpy floats that hold it.
    """
    own = guess_value(default, guess.example)
    if own.is_decimal and guess.array and guess.shape == () and guess.dtype == "float32":
        return dataclasses.replace(own, array=True)
    return own


def _image_dtype(data: bytes | bytearray | memoryview) -> str:
    """Return the dtype of the pixels of an encoded image; empty if the bytes are not one."""
    header = _core.image_header(data)
    if header is None:
        return ""
    return "uint16" if header[4] == 16 else "uint8"


def _guess_list(value: list[Any] | tuple[Any, ...], example: int) -> Guess:
    """Return the type of a list of numbers, strings or arrays, or of nested lists."""
    if value and isinstance(value[0], Mapping):
        names = ", ".join(f"{escape(str(name))!r}: [...]" for name in list(value[0])[:3])
        raise FeatureError(
            "the value is a list of dicts",
            remedy=f"convert it to a dict of lists, {{{names}}}, which is how TFDS stores a "
            "Sequence of dicts",
        )
    if value and all(isinstance(each, np.ndarray) and each.ndim for each in value):
        if len({each.shape for each in value}) == 1:
            return guess_value(np.stack(value), example)
        if any(each.ndim != 1 for each in value):
            raise FeatureError("a list has arrays of different shapes")
        return Guess(example, dtype_of(np.concatenate(value)), depth=2)
    lengths: list[int | None] = []
    level: list[Any] = [value]
    while level and all(isinstance(each, (list, tuple)) for each in level):
        if len(lengths) == _MAX_LIST_DEPTH:
            raise FeatureError(f"lists are nested deeper than {_MAX_LIST_DEPTH} levels")
        sizes = {len(each) for each in level}
        lengths.append(sizes.pop() if len(sizes) == 1 else None)
        level = [item for each in level for item in each]
    if any(isinstance(each, (list, tuple, np.ndarray)) for each in level):
        raise FeatureError("lists and single values are mixed at one level")
    array = _leaf_array(level) if level else np.zeros(0)
    dtype = _python_dtype(level, array) if level else None
    low, high = integer_limits(array)
    if None in lengths:
        return Guess(example, dtype, depth=len(lengths), low=low, high=high)
    return Guess(example, dtype, tuple(lengths), low=low, high=high)


def _leaf_array(values: list[Any]) -> NDArray[Any]:
    """Return Python values as an array, without loss of precision."""
    if any(isinstance(value, (str, bytes)) for value in values):
        if not all(isinstance(value, (str, bytes)) for value in values):
            raise FeatureError("strings and numbers are mixed in a list")
        return np.array([None] * len(values))  # only their types are used
    array = as_array(values)
    if array.dtype.kind in "fO" and all(isinstance(value, int) for value in values):
        array = np.array(values, object)  # integers outside int64, which numpy converts to floats
    return array


def _python_dtype(values: list[Any], array: NDArray[Any]) -> str:
    """Return the dtype of a Python integer, or of the values of a list."""
    if isinstance(values[0], (str, bytes)):
        return "str" if all(isinstance(value, str) for value in values) else "bytes"
    if array.dtype.kind == "O" and all(isinstance(value, int) for value in values):
        if min(values) < 0 or max(values) >= 2**64:
            raise FeatureError(f"no dtype holds integers from {min(values)} to {max(values)}")
        return "uint64"
    dtype = dtype_of(array)
    if dtype != "float64":
        return dtype
    largest = max((value for value in values if isinstance(value, int)), key=abs, default=0)
    if abs(largest) > MAX_EXACT_FLOAT64:
        raise inexact_integer(largest, "float64")
    return float_dtype(abs(largest))


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


def widen(before: Guess, now: Guess, name: str) -> Guess:
    """Return the type that fits both, for the feature `name`."""

    def conflict(what: str, a: object, b: object) -> FeatureError:
        return FeatureError(
            f"example {before.example} has {what} {a}, example {now.example} has {b}; no "
            "feature fits both",
            feature=name,
        )

    if before.audio is not None or now.audio is not None:
        if before.audio is None or now.audio is None:
            raise conflict("the type", *(_shown_type(guess) for guess in (before, now)))
        return _widen_audio(before, now.audio, conflict)
    # Bytes that are not images: images of Pillow cannot be stored with them in one feature.
    image = _widen_images(before.image, now.image)
    encoded = before.encoded and now.encoded
    if not image and not encoded:
        raise conflict("the type", *(_shown_type(guess) for guess in (before, now)))
    low, high = min(before.low, now.low), max(before.high, now.high)
    dtype = _widen_dtype(before.dtype, now.dtype, low, high)
    if dtype is None and before.dtype is not None and now.dtype is not None:
        if any(map(_is_float, (before, now))) and max(-low, high) > MAX_EXACT_FLOAT64:
            error = inexact_integer(max(low, high, key=abs), "float64")
            error.feature = name
            raise error
        raise conflict("dtype", before.dtype, now.dtype)
    if before.sparse != now.sparse or (before.sparse and before.shape != now.shape):
        raise conflict("shape", before.shape, now.shape)
    # Integers of numpy do not give floats of Python a precision.
    is_single = not (before.shape or now.shape or before.depth or now.depth)
    floats = [guess for guess in (before, now) if is_single and _is_float(guess)]
    if len({guess.array for guess in floats}) > 1:
        dtype = "float64"
    array = any(guess.array for guess in floats or (before, now))
    levels = [guess.depth or len(guess.shape) for guess in (before, now)]
    depth = max(levels) if before.depth or now.depth else 0
    shape: Shape = ()
    if depth:
        # Lists of equal lengths, and empty lists, fit a ragged feature of the same depth.
        for guess, own in zip((before, now), levels, strict=True):
            if own != depth and guess.dtype is not None:
                raise conflict("depth", *levels)
    else:
        # An empty list fits lists of any depth.
        short, deep = sorted((before, now), key=lambda guess: len(guess.shape))
        rank = len(short.shape)
        if rank < len(deep.shape) and (short.dtype is not None or not rank):
            raise conflict("shape", before.shape, now.shape)
        shape = (*unify_shapes(short.shape, deep.shape[:rank]), *deep.shape[rank:])
    if None in shape:
        shape = tuple(size or None for size in shape)  # a shape has no 0 beside None
        if shape.count(None) > 1 and not array:
            depth, shape = len(shape), ()  # Python lists: ragged
    form = (before.dtype, before.shape, before.depth, before.image)
    example = now.example if (dtype, shape, depth, image) != form else before.example
    return Guess(
        example, dtype, shape, depth, before.sparse, array, low, high, image=image, encoded=encoded
    )


def _is_float(guess: Guess) -> bool:
    return guess.dtype in ("float16", "float32", "float64")


def guess_lists(values: Sequence[Any]) -> Guess | None:
    """Return the type that fits all values, if they are lists of numbers of the same lengths.

    None is returned if they are not, or if each value must be inspected.
    """
    level, types = values, set(map(type, values))
    while types == {list}:
        level = list(itertools.chain.from_iterable(level))
        types = set(map(type, level))
    if level is values or not types or not types <= {bool, int, float}:
        return None
    try:
        array = np.array(values)
    except ValueError:  # lists of different lengths
        return None
    if array.dtype not in (np.bool_, np.int64, np.float64):
        return None
    dtype = "float32" if array.dtype == np.float64 else dtype_of(array)
    # Beside floats, an integer that float32 does not hold makes the feature float64.
    if dtype == "float32" and types != {float} and not (np.abs(array) <= _MAX_EXACT).all():
        return None
    low, high = integer_limits(array)
    return Guess(0, dtype, array.shape[1:], low=low, high=high)


def guess_bytes(values: Sequence[bytes]) -> Guess:
    """Return the type that fits all values, of which there is at least one."""
    return Guess(0, "bytes", image=functools.reduce(_widen_images, set(map(_image_dtype, values))))


def _widen_images(a: str, b: str) -> str:
    """Return the dtype of the pixels of both; empty if one is not an image."""
    if not a or not b:
        return ""
    # Decoding reduces 16 bits to 8, but cannot give an image of 8 bits the range of 16.
    return a if a == b else "uint8"


def _widen_audio(
    before: Guess, now: Audio, conflict: Callable[[str, object, object], FeatureError]
) -> Guess:
    """Return the type of sounds that fits both."""
    audio = before.audio
    assert audio is not None
    if audio.sample_rate != now.sample_rate:
        raise conflict("a sampling rate of", f"{audio.sample_rate} Hz", f"{now.sample_rate} Hz")
    if audio.shape != now.shape:
        raise conflict("a number of channels of", audio.channels, now.channels)
    if audio.dtype == now.dtype:
        return before
    return dataclasses.replace(before, audio=Audio(now.sample_rate, shape=now.shape))


def _shown_type(guess: Guess) -> str:
    if guess.audio is not None:
        return "audio"
    return "image" if guess.image else str(guess.dtype or "an empty list")


def _widen_dtype(a: str | None, b: str | None, low: int, high: int) -> str | None:
    """Return the dtype of both, whose integers are from `low` to `high`; None if none fits."""
    if low < 0 and high >= 2**63:
        return None
    if a is None or b is None or a == b:
        return a or b
    if {a, b} == {"str", "bytes"}:
        return "bytes"
    if "str" in (a, b) or "bytes" in (a, b):
        return None
    kinds = {np.dtype(a).kind, np.dtype(b).kind}
    if "f" in kinds and len(kinds) > 1:
        largest = max(-low, high)
        if largest > MAX_EXACT_FLOAT64:
            return None
        return float_dtype(largest, is_float32="float64" not in (a, b))
    if "uint64" in (a, b) and kinds == {"i", "u"}:
        return "uint64" if low >= 0 else None
    return str(np.promote_types(a, b).name)
