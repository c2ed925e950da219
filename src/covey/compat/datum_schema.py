"""datum's description of a directory, and of examples that a serializer has encoded.

A directory has two JSON files::

    shard_info.json                          {split: {file: number of records}}
    datum_to_type_and_shape_mapping.json     {feature: {"type", "shape", "dense"}}, for all splits

``type`` is int, float or string. A dense feature has the same shape in all examples. A sparse
feature has any number of values; if it has two or more dimensions, the feature ``<name>_shape``
stores its shape. A string with two or three dimensions is an encoded image, grey or RGB.

Types and numbers of values come from a native survey of the records, shapes from the examples.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covey import _core
from covey.errors import DatasetError, ExampleError, FeatureError, FormatError
from covey.filenames import ENTRIES_FILE, SHARD_INFO_FILE
from covey.schema import Features, Image, Steps, Tensor
from covey.schema.columns import Shape, unify_shapes
from covey.schema.images import read_header
from covey.schema.infer import survey_kinds
from covey.schema.types import Feature
from covey.storage import Storage
from covey.untrusted import MAX_FEATURES, MAX_SHARDS, brief, check_name, check_path, parse_json

ShardInfo = dict[str, dict[str, int]]

DTYPES = {"int": "int64", "float": "float32", "string": "bytes"}


@dataclass(frozen=True, slots=True)
class DatumEntry:
    """datum's description of a feature."""

    type: str
    shape: Shape
    dense: bool

    def __post_init__(self) -> None:
        sizes = [size for size in self.shape if size is not None]
        if self.type not in DTYPES or not isinstance(self.dense, bool):
            raise ValueError(f"type is {self.type!r}, dense is {self.dense!r}")
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"shape is {self.shape}")

    def __str__(self) -> str:
        return f"{'dense' if self.dense else 'sparse'} {self.type} {list(self.shape)}"

    @property
    def is_image(self) -> bool:
        """Whether datum's reader decodes the values as images."""
        return self.type == "string" and len(self.shape) in (2, 3)

    def feature(self) -> Image | Tensor:
        """Return the feature of the records."""
        dtype = DTYPES[self.type]
        if self.is_image and self.dense:
            return Image((None, None, 1 if len(self.shape) == 2 else 3))
        if not self.dense:
            return Tensor(dtype, (None,), default=[])
        return Tensor(dtype, () if dtype == "bytes" else tuple(size or 0 for size in self.shape))


def entries_to_json(entries: Mapping[str, DatumEntry]) -> str:
    """Return the content of the file of entries."""
    content = {
        name: {"type": entry.type, "shape": list(entry.shape), "dense": entry.dense}
        for name, entry in entries.items()
    }
    return json.dumps(content, ensure_ascii=False)


def read_entries(storage: Storage, directory: str) -> dict[str, DatumEntry] | None:
    """Return the entries of a directory; None if it has none."""
    path = storage.join(directory, ENTRIES_FILE)
    content = _read(storage, path)
    if content is None:
        return None
    try:
        if len(content) > MAX_FEATURES:
            raise ValueError(f"{len(content):,} features; must be at most {MAX_FEATURES:,}")
        return {
            feature: DatumEntry(each["type"], tuple(each["shape"]), each["dense"])
            for feature, each in content.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"is not a description of datum: {error}", path=path) from None


def datum_features(storage: Storage, directory: str) -> Features | None:
    """Return the features of the records of a directory; None if it has no entries.

    A sparse feature is a list of any length.
    """
    entries = read_entries(storage, directory)
    if entries is None:
        return None
    return Features({name: entry.feature() for name, entry in entries.items()})


def datum_splits(storage: Storage, directory: str) -> ShardInfo | None:
    """Return the shards of every split of a directory; None if it is not one of datum."""
    path = storage.join(directory, SHARD_INFO_FILE)
    content = _read(storage, path)
    if content is None:
        return None
    try:
        return check_shard_info(content)
    except FormatError as error:
        error.path = path
        raise


def check_shard_info(content: Any) -> ShardInfo:
    """Return valid shard info.

    Raises:
        FormatError: If the content is not valid, or a path leaves the directory.
    """
    if not isinstance(content, Mapping):
        raise FormatError(f"is a {type(content).__name__}; must be a dict of splits")
    for split, shards in content.items():
        check_name(split, "the name of a split")
        is_valid = isinstance(shards, Mapping) and all(
            isinstance(name, str) and type(count) is int and count >= 0
            for name, count in shards.items()
        )
        if not is_valid:
            raise FormatError(
                f"split {brief(split)} is {brief(shards)}; must be a dict of files and their "
                "numbers of records"
            )
        for name in shards:
            check_path(name, f"split {brief(split)}: the name of a shard")
    if sum(map(len, content.values())) > MAX_SHARDS:
        raise FormatError(f"there are more than {MAX_SHARDS:,} shards")
    return {split: dict(shards) for split, shards in content.items()}


def _read(storage: Storage, path: str) -> Any:
    try:
        content = parse_json(storage.read(path), path)
    except FileNotFoundError:
        return None
    if not isinstance(content, dict):
        raise FormatError(f"is a {type(content).__name__}; must be a JSON object", path=path)
    return content


# Examples.

_TYPES = {dtype: name for name, dtype in DTYPES.items()}
_REMEDY = "list it in sparse_features"
_CHECK_INTERVAL = 1024


@dataclass(slots=True)
class _FeatureValues:
    """The values of a feature."""

    example: int | None
    """First example that has the feature."""
    shape: Shape | None
    """Shape that fits all values; None if one is not an array."""
    is_string: bool
    """Whether all values are strings."""
    image: Image | None
    """Feature that fits all images; None if a value is not stored as an image."""
    difference: str = ""
    """The first two shapes that differ, for messages."""


class DatumSchema:
    """The schema of the examples added so far.

    Args:
        sparse: Features whose number of values may differ.
    """

    def __init__(self, sparse: Collection[str]) -> None:
        self._sparse = frozenset(sparse)
        self._survey = _core.Survey()
        self._values: dict[str, _FeatureValues] = {}

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
        for name, value in datum.items():
            shape, is_string = shape_of(value), isinstance(value, str)
            seen = self._values.get(name)
            if seen is None:
                image = _image(name, record) if _may_be_image(value) else None
                self._values[name] = _FeatureValues(example, shape, is_string, image)
                continue
            seen.is_string = seen.is_string and is_string
            if seen.image is not None:
                seen.image = _image(name, record, seen.image.shape)
            if shape != seen.shape and not seen.difference:
                seen.difference = f"has shape {seen.shape}, example {example} has {shape}"
            is_array = shape is not None and seen.shape is not None
            seen.shape = unify_shapes(seen.shape or (), shape or ()) if is_array else None
        if (example + 1) % _CHECK_INTERVAL == 0:
            self.entries()

    def entries(self) -> dict[str, DatumEntry]:
        """Return datum's description of the features.

        Raises:
            FeatureError: If no description lets datum's reader read all examples.
        """
        counts = self._survey.context()
        entries: dict[str, DatumEntry] = {}
        for name, kind in self._kinds().items():
            seen = self._values.get(name) or _FeatureValues(None, None, False, None)
            shape, found, is_string = kind.shape, seen.shape, kind.dtype == "bytes"
            if name in self._sparse:
                # A string with two dimensions would be an image.
                has_shape = f"{name}_shape" in counts and not is_string
                if has_shape and found is not None and len(found) > 1:
                    shape = found
                else:
                    is_scalar = found == () and counts[name][3:] == (1, 1)
                    shape = () if is_scalar else shape or (1,)
            else:
                self._check_dense(name, kind, seen, counts[name])
                if seen.image is not None:
                    height, width, channels = seen.image.shape
                    shape = (height, width) if channels == 1 else (height, width, 3)
                elif found is not None and _has_size(found, counts[name][4]):
                    shape = found[:1] if is_string else found
            entries[name] = DatumEntry(_TYPES[kind.dtype], shape, name not in self._sparse)
        for name, seen in self._values.items():
            if name not in entries and name not in self._sparse and 0 in (seen.shape or ()):
                raise _invalid(name, seen.example, "has no values")
        for name, entry in entries.items():
            is_array = entry.dense and len(entry.shape) > 1 and entry.type != "string"
            if is_array and f"{name}_shape" in entries:
                raise FeatureError(
                    f"is dense, and the feature '{name}_shape' marks it as sparse for datum",
                    feature=name,
                    remedy=f"rename '{name}_shape', or {_REMEDY}",
                )
        return entries

    def _check_dense(
        self, name: str, kind: Tensor, seen: _FeatureValues, counts: _core.SeenTuple
    ) -> None:
        """Raise if the number or the shape of the values of a dense feature varies."""
        present, _, _, low, high = counts
        sparse = name.removesuffix("_shape")
        if sparse in self._sparse and None in kind.shape:
            reason = "has different numbers of dimensions, or is missing in some examples"
            remedy = "use arrays with the same dimensions, also if they are empty: np.zeros((0, 4))"
            raise _invalid(sparse, seen.example, reason, remedy)
        is_array = seen.shape is not None and (kind.dtype != "bytes" or high > 1)
        if is_array and seen.difference:
            raise _invalid(name, seen.example, seen.difference)
        if present < self._survey.records:
            reason = f"has it, but only {present} of {self._survey.records} examples do"
            raise _invalid(name, seen.example, reason)
        if high == 0:
            raise _invalid(name, seen.example, "has no values")
        if None in kind.shape:
            raise _invalid(name, None, f"records have from {low} to {high} values")
        if kind.dtype == "bytes" and high > 1:
            raise _invalid(name, seen.example, f"has {high} strings; a dense feature has one")

    def _kinds(self) -> dict[str, Tensor]:
        """Return the features of the records, by the native survey."""
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
        found = {
            name: Tensor("bytes") if isinstance(kind, Image) else kind
            for name, kind in kinds.items()
            if isinstance(kind, (Image, Tensor))
        }
        # A key without values has no type.
        empty = Tensor("float32", (None,), default=[])
        return {name: found.get(name, empty) for name in self._survey.context()}

    def features(self, *, strings: Collection[str] = ()) -> Features:
        """Return the features of the records.

        Args:
            strings: Features whose bytes are strings.
        """
        entries = self.entries()
        kinds: dict[str, Feature] = {}
        for name, kind in self._kinds().items():
            shape, seen = entries[name].shape, self._values.get(name)
            dtype = "str" if name in strings and kind.dtype == "bytes" else kind.dtype
            if seen is not None and seen.image is not None and entries[name].is_image:
                kinds[name] = seen.image
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
        return {name for name, seen in self._values.items() if seen.is_string}


def _invalid(name: str, example: int | None, reason: str, remedy: str = _REMEDY) -> FeatureError:
    return FeatureError(reason, feature=name, example=example, remedy=remedy)


def merge_entries(
    known: Mapping[str, DatumEntry], found: Mapping[str, DatumEntry], path: str
) -> dict[str, DatumEntry]:
    """Return the entries for the splits that exist and another one.

    Args:
        known: Entries of the splits that exist.
        found: Entries of the other split.
        path: Directory, for messages.

    Raises:
        DatasetError: If a feature has no entry that fits both; ``feature`` is its name.
    """
    merged: dict[str, DatumEntry] = {}
    for name in dict.fromkeys((*known, *found)):
        a, b = known.get(name), found.get(name)
        entry = _unify_entries(a or b, b or a)
        if entry is None or (entry.dense and None in (a, b)):
            raise DatasetError(
                f"is {a or 'missing'} in the splits that exist and {b or 'missing'} in this one; "
                "datum has one description for all splits",
                path=path,
                feature=name,
                remedy="write to another directory",
            )
        merged[name] = entry
    return merged


def _unify_entries(a: DatumEntry | None, b: DatumEntry | None) -> DatumEntry | None:
    """Return the entry that fits both; None if there is none."""
    if a is None or b is None or a == b:
        return a
    if (a.type, a.dense, a.is_image) != (b.type, b.dense, b.is_image):
        return None
    if a.is_image:
        return replace(a, shape=(None, None, *max(a.shape[2:], b.shape[2:])))
    if a.dense or (len(a.shape) != len(b.shape) and max(len(a.shape), len(b.shape)) > 1):
        return None
    return replace(a, shape=unify_shapes(a.shape, b.shape))


def _has_size(shape: Shape, size: int) -> bool:
    return None not in shape and math.prod(each or 0 for each in shape) == size


def shape_of(value: Any) -> Shape | None:
    """Return the shape of a value; None if it is not an array.

    >>> shape_of(1.5), shape_of([[1, 2, 3], [4, 5, 6]]), shape_of([[1], [2, 3]])
    ((), (2, 3), None)
    """
    if isinstance(value, (str, bytes, bytearray, int, float, os.PathLike)):
        return ()
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


def _image(name: str, record: bytes, shape: Shape | None = None) -> Image | None:
    """Return the feature of the 8-bit JPEG or PNG in a record; None for other data.

    Args:
        name: Name of the feature.
        record: The record.
        shape: Shape of the images of the records before it.
    """
    values: Any = ()
    with suppress(ExampleError):
        values = Features({name: Tensor("bytes", (None,), default=[])}).decode(record)[name]
    header = read_header(values[0]) if len(values) == 1 else None
    if header is None or header.format not in ("png", "jpeg") or header.bits > 8:
        return None
    channels = 1 if header.channels < 3 else 3 if header.format == "jpeg" else header.channels
    found = (header.height, header.width, channels)
    return Image(found if shape is None else unify_shapes(shape, found), format=header.format)
