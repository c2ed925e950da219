"""Features as JSON, without loss.

One entry per feature, in order, with its path, which distinguishes a name that has a slash from a
nested name::

    {"version": 1, "features": [
        {"path": ["box", "corner"], "kind": "tensor", "dtype": "float32", "shape": [2], ...},
        {"path": ["label"], "kind": "label", "names": ["wren", "owl"], "num_classes": 2}]}

A default is present only if the feature has one. JSON has neither bytes nor infinity:
``{"base64": "..."}`` and ``{"float": "inf"}`` represent them.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from covey.errors import FeatureError, FormatError
from covey.schema.audio import Audio
from covey.schema.columns import DTYPES
from covey.schema.features import Features
from covey.schema.images import Image
from covey.schema.tensor import Steps, Tensor
from covey.schema.types import REQUIRED, ClassLabel, Feature, Ragged, Sparse
from covey.untrusted import MAX_FEATURES, brief

VERSION = 1

_KINDS: dict[str, type[Feature]] = {
    "tensor": Tensor,
    "label": ClassLabel,
    "image": Image,
    "audio": Audio,
    "ragged": Ragged,
    "sparse": Sparse,
    "steps": Steps,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
# A default of REQUIRED, and fields that older versions do not write.
_OPTIONAL = ("default", "exif_orientation")
# Above the number of dimensions that a shape can have.
_MAX_DEPTH = 33


def features_to_json(features: Features) -> Any:
    """Return the features as lists, dicts, strings and numbers, for ``json.dumps``.

    >>> features_to_json(Features({"x": "int64"}))["features"][0]["path"]
    ['x']
    """
    entries = []
    for name, feature in features.items():
        kind = _NAMES.get(type(feature))
        if kind is None:
            raise FeatureError(
                f"a {type(feature).__name__} cannot be stored as JSON",
                feature=name,
                remedy=f"use one of {', '.join(each.__name__ for each in _NAMES)}",
            )
        fields = {
            each: _to_json(getattr(feature, each))
            for each in _fields(type(feature))
            if getattr(feature, each) is not REQUIRED and not _is_omitted(feature, each)
        }
        entries.append({"path": list(features.path_of(name)), "kind": kind, **fields})
    return {"version": VERSION, "features": entries}


def features_from_json(content: Any, name: str) -> Features:
    """Return the features that :func:`features_to_json` wrote.

    Args:
        content: The result of ``json.loads``.
        name: Path of the file, for errors.

    Raises:
        FormatError: If the content is not valid.
    """
    nested: dict[str, Any] = {}
    try:
        for index, entry in enumerate(_entries(content)):
            try:
                _insert(nested, *_read(entry))
            except ValueError as error:
                raise FormatError(f"feature {index}: {error}") from None
        return Features(nested)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(f"the features are not valid: {error}", path=name) from None


def _is_omitted(feature: Feature, field: str) -> bool:
    """Return whether a field has the meaning of older versions, which do not know it."""
    return field == "exif_orientation" and getattr(feature, field) is False


def _fields(kind: type[Feature]) -> list[str]:
    """Return the names of the constructor arguments of a feature type."""
    return [each.name for each in dataclasses.fields(kind) if each.init]


def _to_json(value: Any) -> Any:
    """Return a field value for JSON; numpy scalars and arrays become Python values."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _from_json(value: Any, depth: int = 0) -> Any:
    """Return the field value of :func:`_to_json`."""
    if depth > _MAX_DEPTH:
        raise FormatError(f"a value is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, list):
        if set(map(type, value)) == {str}:  # a million class names
            return tuple(value)
        return tuple(_from_json(each, depth + 1) for each in value)
    if not isinstance(value, Mapping):
        return value
    match dict(value):
        case {"base64": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"float": ("nan" | "inf" | "-inf") as text, **rest} if not rest:
            return float(text)
    raise FormatError(f"{brief(value)} is neither a value, {{'base64': ...}} nor {{'float': ...}}")


def _entries(content: Any) -> list[Any]:
    if not isinstance(content, Mapping):
        raise FormatError(f"found {brief(content)}, expected a dict with version and features")
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        raise FormatError(
            option="version", found=version, allowed=f"{VERSION}", remedy="use a newer covey"
        )
    entries = content.get("features")
    if not isinstance(entries, list):
        raise FormatError(option="features", found=entries, allowed="a list")
    if len(entries) > MAX_FEATURES:
        raise FormatError(f"there are {len(entries):,} features; the limit is {MAX_FEATURES:,}")
    return entries


def _read(entry: Any) -> tuple[tuple[str, ...], Feature]:
    """Return the path and the feature of an entry."""
    if not isinstance(entry, Mapping):
        raise FormatError(f"found {brief(entry)}, expected a dict")
    fields = dict(entry)
    path, kind = fields.pop("path", None), fields.pop("kind", None)
    if not isinstance(path, list) or not path or not all(isinstance(key, str) for key in path):
        raise FormatError(option="path", found=path, allowed="a list of strings")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise FormatError(option="kind", found=kind, choices=_KINDS)
    expected = _fields(_KINDS[kind])
    for field in fields:
        if field not in expected:
            raise FormatError(f"{brief(field)} is not a field of {kind}; the fields are {expected}")
    for field in expected:
        if field not in fields and field not in _OPTIONAL:
            raise FormatError(f"{field} is missing; the fields of {kind} are {expected}")
    for field, value in fields.items():
        if field != "default":
            _check(field, value)
    return tuple(path), _KINDS[kind](**{key: _from_json(each) for key, each in fields.items()})


def _check(field: str, value: Any) -> None:
    """Check the type of a field; the constructor of the feature checks its value."""
    match field:
        case "dtype":
            fits, allowed = value in DTYPES if isinstance(value, str) else False, f"one of {DTYPES}"
        case "shape":
            fits = isinstance(value, list) and all(
                size is None or type(size) is int for size in value
            )
            allowed = "a list of integers and null"
        case "names":
            fits = value is None or isinstance(value, list)
            allowed = "a list of strings, or null"
        case "num_classes" | "sample_rate":
            fits, allowed = value is None or type(value) is int, "an integer, or null"
        case "exif_orientation":
            fits, allowed = isinstance(value, bool), "true or false"
        case "depth":
            fits, allowed = type(value) is int, "an integer"
        case _:
            fits, allowed = isinstance(value, str), "a string"
    if not fits:
        raise FormatError(option=field, found=value, allowed=allowed)


def _insert(nested: dict[str, Any], path: tuple[str, ...], feature: Feature) -> None:
    """Insert a feature at its path."""
    parent = nested
    for key in path[:-1]:
        parent = parent.setdefault(key, {})
        if not isinstance(parent, dict):
            raise FormatError(f"path {brief(list(path))} leads through a feature")
    if path[-1] in parent:
        raise FormatError(f"path {brief(list(path))} occurs twice")
    parent[path[-1]] = feature
