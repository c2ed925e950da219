"""What examples and their records are, found out while they are written one by one."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covey import _core
from covey.errors import FeatureError
from covey.schema import Features, Image, Tensor
from covey.schema.columns import Shape
from covey.schema.datum import TYPES, DatumEntry, common_shape
from covey.schema.types import Feature
from covey.sources.image_formats import image_format

# By the numbers that the survey has for them; 0 is a feature without any list.
_TYPES = dict(enumerate(TYPES, 1))
_DTYPES = {"string": "bytes", "float": "float32", "int": "int64"}
_REMEDY = "list it in sparse_features"

# Types are compared once in so many examples.
_OFTEN = 1024


@dataclass(frozen=True, slots=True)
class _Shapes:
    """The shapes of one feature in the examples so far."""

    first: Shape | None
    """Of the first example that has it; None if that is not an array."""
    example: int
    common: Shape | None
    """What fits all."""
    last: Shape | None
    is_string: bool
    """Whether every value is a single text."""


class SchemaTracker:
    """Keeps account of all examples and their records, and says in the end what they are.

    Records tell the type and the number of values, examples their shape.

    Args:
        sparse: The features whose number of values may differ.
    """

    def __init__(self, sparse: Collection[str]) -> None:
        self._sparse = frozenset(sparse)
        self._survey = _core.Survey()
        self._shapes: dict[str, _Shapes] = {}
        self._lacks: dict[str, int] = {}  # the first example that does not have it
        self._images: dict[str, Image | None] = {}  # None before the first was looked at
        self._only: dict[str, Features] = {}

    def add(self, datum: Mapping[str, Any], record: bytes, number: int) -> None:
        """Look at an example and its record.

        Raises:
            FeatureError: If it cannot be read together with the ones before it, naming both.
        """
        try:
            self._survey.add(record)
        except _core.Fault as fault:
            raise FeatureError(
                f"example {number}: what the serializer made of it is not a tf.train.Example: byte "
                f"{fault.offset} ({fault.code})"
            ) from None
        known = self._shapes
        new = self._compare_names(datum, number) if datum.keys() != known.keys() else ()
        for name in new:
            if _may_be_image(datum[name]) and self._is_string(name):
                self._images[name] = None
        for name, value in datum.items():
            shape = shape_of(value)
            before = known[name]
            if before.last != shape:
                known[name] = before = self._widen(name, before, shape, number)
            if before.is_string and not isinstance(value, str):
                known[name] = replace(before, is_string=False)
            if name in self._images:
                self._look(name, record)
        if number % _OFTEN == _OFTEN - 1:  # rather than only when all have been made
            for name, seen in self._context().items():
                self._type(name, seen)

    def _compare_names(self, datum: Mapping[str, Any], number: int) -> list[str]:
        """Note which names there are; return those that are new."""
        for name in self._shapes.keys() - datum.keys():
            self._lacks.setdefault(name, number)
        new = [name for name in datum if name not in self._shapes]
        for name in new:
            shape, is_string = shape_of(datum[name]), isinstance(datum[name], str)
            self._shapes[name] = _Shapes(shape, number, shape, shape, is_string)
            if number:
                self._lacks[name] = 0
        return new

    def _is_string(self, name: str) -> bool:
        seen = self._context().get(name)
        return seen is not None and bool(seen[1][1])

    def _widen(self, name: str, before: _Shapes, shape: Shape | None, number: int) -> _Shapes:
        common = before.common
        seen = self._context().get(name)
        # One string, whatever the value is: something that the serializer encoded.
        encoded = seen is not None and seen[1][1] and seen[4] == 1
        if common is None or shape is None:
            return replace(before, common=None, last=shape)
        if name in self._sparse:
            if len(common) != len(shape) and max(len(common), len(shape)) > 1:
                raise FeatureError(
                    f"example {before.example} has {len(common)} dimensions, example "
                    f"{number} has {len(shape)}; give all the same number, also to those "
                    "that are empty, as in np.zeros((0, 4))",
                    feature=name,
                )
        elif seen is not None and not encoded:
            raise FeatureError(
                f"example {before.example} has shape {before.first}, example {number} has "
                f"{shape}; {_REMEDY}, so that its shape may differ",
                feature=name,
            )
        return replace(before, common=common_shape(common, shape), last=shape)

    def _look(self, name: str, record: bytes) -> None:
        """Find out whether a record holds an image, as those before it did."""
        if name not in self._only:
            self._only[name] = Features({name: Tensor("bytes", (None,), default=[])})
        (values,) = self._only[name].decode_batch([record])[name]
        found = _image(values[0]) if len(values) == 1 else None
        before = self._images[name]
        if found is None:
            del self._images[name]
        elif before != found:
            shape = common_shape((before or found).shape, found.shape)
            self._images[name] = replace(found, shape=shape)

    # What it comes to.

    def entries(self) -> dict[str, DatumEntry]:
        """What datum's reader is to be told.

        Raises:
            FeatureError: If there is nothing that it could be told, so that it reads all examples.
        """
        if self._survey.lists():
            raise FeatureError(
                "what the serializer makes are tf.train.SequenceExamples; must be tf.train.Examples"
            )
        entries = {name: self._entry(name, seen) for name, seen in self._context().items()}
        for name, shapes in self._shapes.items():
            if name not in entries and name not in self._sparse and 0 in (shapes.common or ()):
                raise _empty(name, shapes.example)
        for name, entry in entries.items():
            has_shape = f"{name}_shape" in entries and entry.type != "string"
            if has_shape and entry.dense and len(entry.shape) > 1:
                raise FeatureError(
                    f"feature {name!r} has {len(entry.shape)} dimensions and a feature "
                    f"'{name}_shape' beside it, by which datum's reader knows sparse features; "
                    f"rename that one, or {_REMEDY}"
                )
        return entries

    def _context(self) -> dict[str, _core.SeenTuple]:
        try:
            return self._survey.context()
        except UnicodeDecodeError as error:
            raise FeatureError(f"a feature's name is not a valid UTF-8: {error}") from None

    def _type(self, name: str, seen: _core.SeenTuple) -> tuple[str, bool]:
        """The type of a feature, and whether every record has it."""
        _, by_kind, first, *_ = seen
        kinds = [kind for kind in _TYPES if by_kind[kind]]
        if len(kinds) > 1:
            a, b = sorted(kinds, key=lambda kind: first[kind])[:2]
            raise FeatureError(
                f"feature {name!r}: example {first[a]} has type {_TYPES[a]}, example {first[b]} "
                f"has {_TYPES[b]}; make them one type, or name it: "
                f"Serializer({{{name!r}: 'float32', ...}})"
            )
        everywhere = sum(by_kind[1:]) == self._survey.records
        return _TYPES[kinds[0]] if kinds else "float", everywhere

    def _entry(self, name: str, seen: _core.SeenTuple) -> DatumEntry:
        kind, everywhere = self._type(name, seen)
        least, most = seen[3:]
        shapes = self._shapes.get(name)
        shape = None if shapes is None else shapes.common
        first = 0 if shapes is None else shapes.example
        if name in self._sparse:
            restored = f"{name}_shape" in self._context()
            if restored and shape is not None and kind != "string" and len(shape) > 1:
                return DatumEntry(kind, shape, False)
            if shape == () and least == most == 1:
                return DatumEntry(kind, (), False)
            # A string of two dimensions would be taken for an image.
            return DatumEntry(kind, (most,) if everywhere and least == most else (None,), False)
        if not everywhere:
            other, remedy = self._lacks.get(name, "?"), f"give it to all, or {_REMEDY}"
            if name.removesuffix("_shape") in self._sparse:
                name = name.removesuffix("_shape")
                remedy = "where there is nothing, give it an array that says so: np.zeros((0, 4))"
            raise FeatureError(
                f"example {first} has it, example {other} has not; {remedy}", feature=name
            )
        if most == 0:
            raise _empty(name, first)
        if least != most:
            raise FeatureError(
                f"some records have {least} values and some {most}; {_REMEDY}, so that the "
                "number may differ",
                feature=name,
            )
        image = self._images.get(name)
        if image is not None:
            height, width, channels = image.shape
            return DatumEntry(kind, (height, width) if channels == 1 else (height, width, 3), True)
        if kind == "string" and most > 1:
            raise FeatureError(
                f"example {first} has {most} strings, of which datum's reader expects one; "
                f"{_REMEDY}",
                feature=name,
            )
        if shape is not None and _holds(shape, most):
            return DatumEntry(kind, shape if kind != "string" else shape[:1], True)
        return DatumEntry(kind, () if most == 1 else (most,), True)

    @property
    def texts(self) -> set[str]:
        """The features of which every value is a single text."""
        return {name for name, shapes in self._shapes.items() if shapes.is_string}

    def features(self, entries: Mapping[str, DatumEntry], texts: Collection[str]) -> Features:
        """The features that fit all records.

        Args:
            entries: What :meth:`entries` gave.
            strings: The features that are strings in records, too.
        """
        kinds: dict[str, Feature] = {}
        for name, seen in self._context().items():
            shape = entries[name].shape
            dtype = "str" if name in texts else _DTYPES[entries[name].type]
            _, everywhere = self._type(name, seen)
            least, most = seen[3:]
            image = self._images.get(name)
            if image is not None and entries[name].is_image:
                kinds[name] = image
            elif everywhere and least == most:
                kinds[name] = Tensor(
                    dtype, shape if _holds(shape, most) else () if most == 1 else (most,)
                )
            else:
                # Values in a row restore one unknown dimension, the first.
                rows = len(shape) > 1 and shape[0] is None and all(shape[1:])
                kinds[name] = Tensor(dtype, shape if rows else (None,), default=[])
        return Features(kinds)


def _holds(shape: Shape, count: int) -> bool:
    """Whether a shape is known, and has so many values."""
    return None not in shape and math.prod(size or 0 for size in shape) == count


def shape_of(value: Any) -> Shape | None:
    """The shape of a value; None if it is not an array.

    >>> shape_of(1.5), shape_of([[1, 2, 3], [4, 5, 6]]), shape_of([[1], [2, 3]])
    ((), (2, 3), None)
    """
    if isinstance(value, (str, bytes, bytearray, int, float, os.PathLike)):
        return ()
    if isinstance(value, np.ndarray):
        return tuple(value.shape)
    if isinstance(value, Mapping):
        return None
    try:
        return tuple(np.shape(value))
    except (ValueError, TypeError, RuntimeError):
        return None


def _empty(name: str, example: int) -> FeatureError:
    return FeatureError(
        f"example {example} has no values, so that datum's reader would miss it; {_REMEDY}",
        feature=name,
    )


# Images.


def _may_be_image(value: Any) -> bool:
    """Whether a value may be stored as an image: the path of one, or pixels. Bytes stay bytes."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value).lower().endswith((".jpg", ".jpeg", ".png"))
    return isinstance(value, np.ndarray) and value.ndim in (2, 3)


def _image(data: bytes) -> Image | None:
    """What a JPEG or PNG of 8 bits is, by its header; None if it is something else.

    A palette counts as colours.
    """
    try:
        found = image_format(data[:32])
        if found == "PNG":
            width, height, bits, kind = struct.unpack_from(">II2B", data, 16)
            channels = {0: 1, 2: 3, 3: 3, 4: 1, 6: 4}[kind]
            return Image((height, width, channels)) if bits <= 8 else None
        if found == "JPEG":
            height, width, channels = _jpeg_size(data)
            return Image((height, width, channels), format="jpeg")
    except (struct.error, IndexError, KeyError):
        pass
    return None


def _jpeg_size(data: bytes) -> tuple[int, int, int]:
    """Height, width and components, from the header of the first frame."""
    at = 2
    while True:
        kind = data[at + 1]
        if kind == 0xFF:  # padding
            at += 1
        elif 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width, channels = struct.unpack_from(">HHB", data, at + 5)
            return height, width, {1: 1, 3: 3, 4: 3}[channels]
        else:
            at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
