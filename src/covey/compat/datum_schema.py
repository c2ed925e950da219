"""The schema of examples that a serializer has encoded, for datum's reader and for covey.

Types and numbers of values come from a native survey of the records, shapes from the examples.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey import _core
from covey.errors import ExampleError, FeatureError
from covey.schema import Features, Image, Steps, Tensor
from covey.schema.columns import Shape, unify_shapes
from covey.schema.datum import DTYPES, DatumEntry
from covey.schema.infer import survey_kinds
from covey.schema.types import Feature
from covey.sources.image_formats import image_format, jpeg_segments

_TYPES = {dtype: name for name, dtype in DTYPES.items()}
_REMEDY = "list it in sparse_features"
_CHECK_INTERVAL = 1024


@dataclass(slots=True)
class _Shapes:
    """The shapes of a feature in the examples; a shape is None if the value is not an array."""

    first: Shape | None
    example: int
    """First example that has the feature."""
    common: Shape | None
    last: Shape | None
    other: tuple[int, Shape | None] | None = None
    """First example with another shape, and its shape."""
    rank: tuple[int, Shape | None] | None = None
    """First example with another number of dimensions, and its shape."""
    is_string: bool = True

    def add(self, shape: Shape | None, example: int) -> None:
        """Add a shape that differs from the last one."""
        self.last = shape
        if shape != self.first:
            self.other = self.other or (example, shape)
        if shape is None or self.common is None:
            self.common = None
            return
        if len(shape) != len(self.common) and max(len(shape), len(self.common)) > 1:
            self.rank = self.rank or (example, shape)
        self.common = unify_shapes(self.common, shape)


class DatumSchema:
    """The schema of the examples added so far.

    Args:
        sparse: Features whose number of values may differ.
    """

    def __init__(self, sparse: Collection[str]) -> None:
        self._sparse = frozenset(sparse)
        self._survey = _core.Survey()
        self._shapes: dict[str, _Shapes] = {}
        self._missing: dict[str, int] = {}  # first example that lacks the feature
        self._images: dict[str, Image | None] = {}  # features of which all values are images

    def add(self, datum: Mapping[str, Any], record: bytes) -> None:
        """Add an example and its record.

        Raises:
            FeatureError: If the record is not an Example, or datum cannot describe the examples.
        """
        example = self._survey.records
        try:
            self._survey.add(record)
        except _core.Fault as fault:
            reason = f"the serializer returned an invalid tf.train.Example (byte {fault.offset})"
            raise FeatureError(reason, example=example) from None
        if datum.keys() != self._shapes.keys():
            self._add_names(datum, example)
        for name, value in datum.items():
            shapes = self._shapes[name]
            shape = shape_of(value)
            if shape != shapes.last:
                shapes.add(shape, example)
            if shapes.is_string and not isinstance(value, str):
                shapes.is_string = False
        for name in tuple(self._images):
            self._add_image(name, record)
        if (example + 1) % _CHECK_INTERVAL == 0:
            self.entries()

    def _add_names(self, datum: Mapping[str, Any], example: int) -> None:
        for name in self._shapes.keys() - datum.keys():
            self._missing.setdefault(name, example)
        for name in [name for name in datum if name not in self._shapes]:
            shape = shape_of(datum[name])
            self._shapes[name] = _Shapes(shape, example, shape, shape)
            if example:
                self._missing[name] = 0
            if _may_be_image(datum[name]):
                self._images[name] = None

    def _add_image(self, name: str, record: bytes) -> None:
        """Unify an image with those before it, or note that the feature is not an image."""
        found = None
        try:
            decoded = Features({name: Tensor("bytes", (None,), default=[])}).decode(record)[name]
            found = image_of(decoded[0]) if len(decoded) == 1 else None
        except ExampleError:
            pass
        known = self._images.pop(name)
        if found is not None:
            shape = found.shape if known is None else unify_shapes(known.shape, found.shape)
            self._images[name] = Image(shape, format=found.format)

    def entries(self) -> dict[str, DatumEntry]:
        """Return datum's description of the features.

        Raises:
            FeatureError: If no description lets datum's reader read all examples.
        """
        kinds = self._kinds()
        entries = {name: self._entry(name, kind) for name, kind in kinds.items()}
        for name, shapes in self._shapes.items():
            if name not in entries and name not in self._sparse and 0 in (shapes.common or ()):
                raise _invalid(name, shapes.example, "has no values")
        for name, entry in entries.items():
            is_array = entry.dense and len(entry.shape) > 1 and entry.type != "string"
            if is_array and f"{name}_shape" in entries:
                raise FeatureError(
                    f"is dense, and the feature '{name}_shape' marks it as sparse for datum",
                    feature=name,
                    remedy=f"rename '{name}_shape', or {_REMEDY}",
                )
        return entries

    def _kinds(self) -> dict[str, Tensor]:
        """The features of the records, by the native survey."""
        try:
            kinds = survey_kinds([self._survey])
        except FeatureError as error:
            if error.feature is not None:
                error.remedy = (
                    f"declare its type: Serializer({{{error.feature!r}: 'float32', ...}})"
                )
            raise
        if any(isinstance(kind, Steps) for kind in kinds.values()):
            raise FeatureError("the serializer returned SequenceExamples; must be Examples")
        found = {name: kind for name, kind in kinds.items() if isinstance(kind, Tensor)}
        # A key without values has no type.
        empty = Tensor("float32", (None,), default=[])
        return {name: found.get(name, empty) for name in self._survey.context()}

    def _entry(self, name: str, kind: Tensor) -> DatumEntry:
        _, _, _, least, most = self._survey.context()[name]
        shapes = self._shapes.get(name) or _Shapes(None, 0, None, None)
        shape, example, type_ = shapes.common, shapes.example, _TYPES[kind.dtype]
        is_fixed = None not in kind.shape
        if name in self._sparse:
            if shapes.rank is not None:
                reason = f"has shape {shapes.first}, example {shapes.rank[0]} {shapes.rank[1]}"
                remedy = "use one number of dimensions, also for empty arrays: np.zeros((0, 4))"
                raise _invalid(name, example, reason, remedy)
            has_shape = f"{name}_shape" in self._survey.context()
            if has_shape and shape is not None and type_ != "string" and len(shape) > 1:
                return DatumEntry(type_, shape, False)
            if shape == () and least == most == 1:
                return DatumEntry(type_, (), False)
            # A string with two dimensions would be an image.
            return DatumEntry(type_, (most,) if is_fixed else (None,), False)
        is_encoded = type_ == "string" and most == 1
        if shapes.other is not None and not is_encoded and None not in (shapes.first, shape):
            reason = f"has shape {shapes.first}, example {shapes.other[0]} has {shapes.other[1]}"
            raise _invalid(name, example, reason)
        if name in self._missing and not is_fixed:
            self._raise_missing(name, example)
        if most == 0:
            raise _invalid(name, example, "has no values")
        if not is_fixed:
            raise _invalid(name, None, f"records have from {least} to {most} values")
        image = self._images.get(name)
        if image is not None:
            height, width, channels = image.shape
            return DatumEntry(type_, (height, width) if channels == 1 else (height, width, 3), True)
        if type_ == "string" and most > 1:
            raise _invalid(name, example, f"has {most} strings; a dense feature has one")
        if shape is not None and _has_size(shape, most):
            return DatumEntry(type_, shape if type_ != "string" else shape[:1], True)
        return DatumEntry(type_, () if most == 1 else (most,), True)

    def _raise_missing(self, name: str, example: int) -> None:
        reason = f"has it, example {self._missing[name]} does not"
        if name.removesuffix("_shape") in self._sparse:
            remedy = "use an empty array with all dimensions: np.zeros((0, 4))"
            raise _invalid(name.removesuffix("_shape"), example, reason, remedy)
        raise _invalid(name, example, reason)

    def features(self, *, strings: Collection[str] = ()) -> Features:
        """Return the features of the records.

        Args:
            strings: Features whose bytes are strings.
        """
        entries = self.entries()
        kinds: dict[str, Feature] = {}
        for name, kind in self._kinds().items():
            shape = entries[name].shape
            dtype = "str" if name in strings and kind.dtype == "bytes" else kind.dtype
            image = self._images.get(name)
            if image is not None and entries[name].is_image:
                kinds[name] = image
            elif None not in kind.shape:
                is_shaped = _has_size(shape, math.prod(size or 0 for size in kind.shape))
                kinds[name] = Tensor(dtype, shape if is_shaped else kind.shape)
            else:
                # A list of values restores one unknown dimension, the first.
                is_shaped = len(shape) > 1 and shape[0] is None and all(shape[1:])
                kinds[name] = Tensor(dtype, shape if is_shaped else (None,), default=[])
        return Features(kinds)

    @property
    def strings(self) -> set[str]:
        """The features of which all values are strings."""
        return {name for name, shapes in self._shapes.items() if shapes.is_string}


def _invalid(name: str, example: int | None, reason: str, remedy: str = _REMEDY) -> FeatureError:
    return FeatureError(reason, feature=name, example=example, remedy=remedy)


def _has_size(shape: Shape, size: int) -> bool:
    return None not in shape and math.prod(each or 0 for each in shape) == size


def shape_of(value: Any) -> Shape | None:
    """Return the shape of a value; None if it is not an array.

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


def _may_be_image(value: Any) -> bool:
    """Return whether a serializer may store a value as an image: a path or pixels, not bytes."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value).lower().endswith((".jpg", ".jpeg", ".png"))
    return isinstance(value, np.ndarray) and value.ndim in (2, 3)


def image_of(data: bytes) -> Image | None:
    """Return the feature of an 8-bit JPEG or PNG, from its header; None for other data."""
    try:
        if image_format(data[:32]) == "PNG":
            width, height, bits, color = struct.unpack_from(">II2B", data, 16)
            channels = {0: 1, 2: 3, 3: 3, 4: 1, 6: 4}[color]  # a palette has colors
            return Image((height, width, channels)) if bits <= 8 else None
        for marker, at in jpeg_segments(data) if data[:2] == b"\xff\xd8" else ():
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                height, width, components = struct.unpack_from(">HHB", data, at + 1)
                return Image((height, width, {1: 1, 3: 3, 4: 3}[components]), format="jpeg")
    except (struct.error, KeyError):
        pass
    return None
