"""Items of a source, one at a time: dicts, pairs of a key and a dict, tuples, or errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from covey.errors import CoveyError, DatasetError, FeatureError, SourceError
from covey.features import Features
from covey.shuffle.ordering import Key

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An example that was not written, because ``on_error="skip"`` was asked for."""

    example: int
    """Its number in the source, from 0."""
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """How items become examples, and examples records. Goes to other processes."""

    features: Features | None = None
    """As declared; None to infer them."""
    otherwise: Features | None = None
    """Tried if those do not fit: the same, with a label whose classes may be new as a text."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    """What the parts of tuples are called."""
    key: str | None = None
    """The feature that is the key."""
    label: str | None = None
    """The feature that every example must have: its class."""
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise DatasetError(f"on_error is {self.on_error!r}, must be 'raise' or 'skip'")
        for option, value in (("key", self.key), ("label", self.label)):
            if value is not None and not isinstance(value, str):
                raise DatasetError(f"{option} is {value!r}, must be the name of a feature")
        names = self.names or ()
        if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise DatasetError(f"names are {names}, must be texts, each another")

    @property
    def infers(self) -> bool:
        """Whether the features are to be found out."""
        return self.features is None


def take_item(item: Any, rules: Rules) -> tuple[Mapping[str, Any], Key | None]:
    """The example and the key, if it has one, of an item.

    Raises:
        CoveyError: If it is none; the message does not say which.
    """
    key: Key | None = None
    if isinstance(item, CoveyError):
        raise item
    if rules.names is None and isinstance(item, tuple) and _is_pair(item):
        key, item = _plain_key(item[0]), item[1]
    if not isinstance(item, Mapping):
        item = _name_parts(item, rules.names)
    if rules.key is not None:
        key = _find_key(item, rules.key)
    return item, key


def _is_pair(item: tuple[Any, ...]) -> bool:
    return len(item) == 2 and isinstance(item[1], Mapping)


def _name_parts(item: Any, names: tuple[str, ...] | None) -> dict[str, Any]:
    if not isinstance(item, (tuple, list)):
        raise FeatureError(
            f"it is of type {type(item).__name__}, must be a dict of values, or a pair of a key "
            "and such a dict"
        )
    if names is None:
        raise FeatureError(
            f"it is a {type(item).__name__} of {len(item)} parts; say what they are called, as in "
            "names=('image', 'label')"
        )
    if len(item) != len(names):
        raise FeatureError(
            f"it has {len(item)} parts, but there are {len(names)} names: {', '.join(names)}"
        )
    return dict(zip(names, item, strict=True))


def has_value(example: Mapping[str, Any], name: str) -> bool:
    """Whether an example has a value, and not None, under a name or a path, ``a/b``."""
    return _find(example, name) is not None


def _find(example: Mapping[str, Any], name: str) -> Any:
    if name in example:
        return example[name]
    found: Any = example
    for part in name.split("/"):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _find_key(example: Mapping[str, Any], name: str) -> Key:
    key = _find(example, name)
    if key is None:
        raise FeatureError(f"it has no {name!r}, which is to be its key")
    return _plain_key(key)


def _plain_key(key: Any) -> Key:
    """A key as Python has it, if it is one."""
    if hasattr(key, "item") and getattr(key, "shape", None) == ():
        key = key.item()  # a scalar of numpy or of a framework
    if isinstance(key, str) and not key.isascii():
        try:
            key.encode()
        except UnicodeError:
            raise FeatureError(f"its key {key!r} is no valid UTF-8; make it bytes") from None
    elif isinstance(key, (int, np.integer)):
        if not -(2**63) <= key < 2**63:
            raise FeatureError(f"its key {key} does not fit 64 bits; make it a text")
    elif not isinstance(key, (str, bytes)):
        raise FeatureError(
            f"its key {key!r} is of type {type(key).__name__}, must be a text, bytes or a whole "
            "number"
        )
    return key  # type: ignore[no-any-return]


def own(item: Any) -> Any:
    """An item with arrays of its own, which stays as it is when its source goes on."""
    match item:
        case np.ndarray() | bytearray():
            return item.copy()
        case dict():
            return {name: own(value) for name, value in item.items()}
        case list():
            return [own(value) for value in item]
        case tuple():
            return tuple(own(value) for value in item)
    is_plain = isinstance(item, (str, bytes, int, float, CoveyError, type(None)))
    return np.asarray(item).copy() if not is_plain and hasattr(item, "__array__") else item


def source_failed(number: int, error: Exception) -> SourceError:
    """What to say if a source raised an error of its own."""
    return SourceError(
        f"example {number}: the source failed: {type(error).__name__}: {error}", name="<examples>"
    )
