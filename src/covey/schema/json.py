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
            for each in (part.name for part in dataclasses.fields(feature) if part.init)
            # Older versions do not know exif_orientation.
            if getattr(feature, each) is not (False if each == "exif_orientation" else REQUIRED)
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
        version, entries = (expect_dict(content).get(key) for key in ("version", "features"))
        if type(version) is not int or version != VERSION:
            raise FormatError(
                option="version", found=version, allowed=f"{VERSION}", remedy="use a newer covey"
            )
        if not isinstance(entries, list) or len(entries) > MAX_FEATURES:
            allowed = f"a list of at most {MAX_FEATURES:,}"
            raise FormatError(option="features", found=entries, allowed=allowed)
        for index, entry in enumerate(entries):
            try:
                _insert(nested, *_read(entry))
            except (ValueError, TypeError) as error:
                raise FormatError(f"feature {index}: {error}") from None
        return Features(nested)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(f"the features are not valid: {error}", path=name) from None


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


def _read(entry: Any) -> tuple[tuple[str, ...], Feature]:
    """Return the path and the feature of an entry; the constructor checks its fields."""
    fields = dict(expect_dict(entry))
    path, kind = fields.pop("path", None), fields.pop("kind", None)
    if not isinstance(path, list) or not path or not all(isinstance(key, str) for key in path):
        raise FormatError(option="path", found=path, allowed="a list of strings")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise FormatError(option="kind", found=kind, choices=_KINDS)
    return tuple(path), _KINDS[kind](**{key: _from_json(each) for key, each in fields.items()})


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


def expect_dict(value: Any) -> dict[str, Any]:
    """Return a dict of JSON; any other value raises FormatError."""
    if not isinstance(value, dict):
        raise FormatError(f"found {brief(value)}, expected a dict")
    return value
