"""Parameters of requests: text that is converted to the types of a function, and checked."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from covey.dataset.dataset import Dataset
from covey.view.session import RequestError, Session

MAX_IDS = 200
"""Maximum number of ids of a request."""

Converter = Callable[[str, str], Any]
"""Function that returns the value of a parameter from its name and its text."""


def integer(low: int = 0, high: int = 2**63 - 1) -> Converter:
    """Return the converter of integers from `low` to `high`."""

    def convert(name: str, text: str) -> int:
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
        if value is None or not low <= value <= high:
            raise RequestError(f"{name} is {text[:40]!r}; must be an integer from {low} to {high}")
        return value

    return convert


def choice(choices: tuple[Any, ...]) -> Converter:
    """Return the converter of some strings."""

    def convert(name: str, text: str) -> str:
        if text not in choices:
            raise RequestError(f"{name} is {text[:40]!r}; must be one of {', '.join(choices)}")
        return text

    return convert


def parse_flag(name: str, text: str) -> bool:
    """Return whether a parameter is ``1``."""
    return choice(("0", "1"))(name, text) == "1"


def parse_ids(name: str, text: str) -> list[int]:
    """Return record ids that are separated by commas."""
    texts = text.split(",") if text else []
    if len(texts) > MAX_IDS:
        raise RequestError(f"{name} has {len(texts):,} ids; the limit is {MAX_IDS}")
    return [integer()(name, each) for each in texts]


def parse_json(name: str, text: str) -> Any:
    """Return values of JSON."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise RequestError(f"{name} is not valid JSON") from None


_CONVERTERS: dict[Any, Converter] = {
    int: integer(),
    bool: parse_flag,
    str: lambda name, text: text,
}


def arguments(
    function: Callable[..., Any], session: Session, query: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of a function from the parameters of a request.

    A parameter of type Dataset is the split that the request names; one that is a dataclass is made
    of the parameters with the names of its fields.

    >>> def find(limit: Annotated[int, integer(1, 100)], op: Literal["less", "greater"] = "less"):
    ...     pass
    >>> arguments(find, None, {"limit": "7"})
    {'limit': 7}
    """
    kinds = get_type_hints(function, include_extras=True)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, key = kinds[name], name.rstrip("_")
        if kind is Session:
            found[name] = session
        elif kind is Dataset:
            found[name] = session.open(query.get("split"))
        elif is_dataclass(kind):
            found[name] = kind(**arguments(kind, session, query))  # type: ignore[operator]
        elif query.get(key):
            found[name] = _converter(kind)(key, query[key])
        elif parameter.default is parameter.empty:
            raise RequestError(f"parameter {key!r} is missing")
    return found


def _converter(kind: Any) -> Converter:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        converter: Converter = inner[1]
        return converter
    if origin is Literal:
        return choice(inner)
    if origin in (Union, UnionType):
        return _converter(next(each for each in inner if each is not NoneType))
    return _CONVERTERS[kind]
