"""Dataclasses as JSON, by the types of their fields: parts of a write, the journal of a commit."""

from __future__ import annotations

import base64
import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Union

import numpy as np

from covey.errors import CoveyError, FormatError
from covey.schema import Features
from covey.schema.features import features_from_json, features_to_json
from covey.schema.infer import Inference
from covey.schema.infer import Path as FeaturePath
from covey.schema.lattice import Seen
from covey.schema.types import Feature
from covey.shuffle.runs import TABLE_DTYPE, Run, RunFile
from covey.untrusted import brief


def to_json(value: Any) -> Any:
    """Return a value for ``json.dumps``: a dataclass is a dict of its fields.

    Characters that UTF-8 lacks, as in the names of some files, are escaped.

    Raises:
        TypeError: If a value is of another type.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return value.encode(errors="backslashreplace").decode()
        case float() if math.isfinite(value):
            return float(value)
        case bytes():
            return {"__bytes__": base64.b64encode(value).decode()}
        case Features():
            return features_to_json(value)
        case Feature():
            return features_to_json(Features({"value": value}))
        case Inference():
            return {"count": value.count, "found": to_json(value.found)}
        case Mapping() if all(isinstance(key, str) for key in value):
            return {to_json(key): to_json(each) for key, each in value.items()}
        case Mapping():
            return [[to_json(key), to_json(each)] for key, each in value.items()]
        case list() | tuple():
            return [to_json(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _fields(type(value))}
    array = np.asarray(value)
    if array.dtype == TABLE_DTYPE:
        return None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{type(value).__name__} is not supported")
    data = base64.b64encode(array.tobytes()).decode()
    return {"__array__": data, "dtype": array.dtype.str, "shape": list(array.shape)}


def from_json(kind: Any, content: Any, name: str) -> Any:
    """Return the value of :func:`to_json`.

    Args:
        kind: Type of the value, as in an annotation. For ``Any``, tuples become lists.
        content: The result of ``json.loads``.
        name: Name of the value, for errors.

    Raises:
        FormatError: If the content is not of this type.
    """
    kind = RunFile if kind == Run else kind  # parts have no runs in memory
    fields = _fields(kind) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    is_list, is_dict = isinstance(content, list), isinstance(content, dict)
    if kind is Any:
        return _any_from_json(content)
    if kind in (Features, Feature):
        with _naming(name):
            found = features_from_json(content, name)
        return found if kind is Features else found["value"]
    if kind is Inference and is_dict:
        inference = Inference()
        inference.count = from_json(int, content["count"], f"{name}.count")
        inference.found = from_json(dict[FeaturePath, Seen], content["found"], f"{name}.found")
        return inference
    if origin in (Union, types.UnionType):
        rest = [each for each in members if each is not types.NoneType]
        if content is None and len(rest) < len(members):
            return None
        if len(rest) == 1 or type(content) in rest:
            return from_json(rest[0] if len(rest) == 1 else type(content), content, name)
    elif origin is np.ndarray and content is None:
        return np.zeros(0, TABLE_DTYPE)
    elif kind in (bool, int, float, str) and type(content) is kind:
        if kind is not str or content.encode(errors="replace").decode() == content:
            return content
    elif origin is Literal and content in members:
        return content
    elif origin in (tuple, Sequence) and is_list:
        kinds = members if members[1:] not in ((), (...,)) else members[:1] * len(content)
        return tuple(
            from_json(each, value, f"{name}[{at}]")
            for at, (each, value) in enumerate(zip(kinds, content, strict=True))
        )
    elif origin in (dict, Mapping) and (is_list or is_dict):
        pairs = content.items() if is_dict else content
        own, other = members
        return {from_json(own, a, f"a key of {name}"): from_json(other, b, name) for a, b in pairs}
    elif fields is not None and is_dict and content.keys() == fields.keys():
        values = {
            field: from_json(own, content[field], f"{name}.{field}")
            for field, own in fields.items()
        }
        with _naming(name):
            return kind(**values)
    expected = f"a dict of {', '.join(fields)}" if fields else inspect.formatannotation(kind)
    raise FormatError(f"{name} is {brief(content)}; must be {expected}")


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Raise FormatError with the name of a value for any error of covey."""
    try:
        yield
    except CoveyError as error:
        error.path = name
        raise FormatError(str(error)) from None


def _any_from_json(content: Any) -> Any:
    match content:
        case list():
            return [_any_from_json(each) for each in content]
        case {"__bytes__": text}:
            return base64.b64decode(text, validate=True)
        case {"__array__": text, "dtype": str(name), "shape": shape}:
            dtype = np.dtype(name)
            return np.frombuffer(base64.b64decode(text, validate=True), dtype).reshape(shape)[()]
        case dict():
            return {key: _any_from_json(each) for key, each in content.items()}
    return content


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.init}
