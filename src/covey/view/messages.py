"""Requests and responses: parameters that are checked, JSON, and columns as binary data.

Columns are one block of bytes, which the page maps as typed arrays without parsing::

    u32 little-endian   N, the size of the header
    N bytes             JSON: {"columns": {name: {"dtype", "shape", "offset"}}, ...}
    arrays              little-endian, each at a multiple of 8 bytes

The offset of an array counts from the first byte after the header, which is padded so that this
byte is at a multiple of 8. A column of strings ``s`` is two arrays: ``s.offsets`` (u4) and
``s.data`` (UTF-8).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import numpy as np
from numpy.typing import NDArray

from covey.errors import CoveyError

JSON = "application/json"
BINARY = "application/octet-stream"

MAX_IDS = 10_000
"""Maximum number of ids in one request."""

_ALIGNMENT = 8
_MAX_PARAMETERS = 64
_MAX_STRING = 20_000
# Integers that numbers of JavaScript represent exactly.
_MAX_EXACT = 2**53


class RequestError(CoveyError):
    """A request that is not valid.

    Args:
        message: What is wrong.
        status: The HTTP status.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Response:
    """The answer to a request."""

    body: bytes
    content_type: str
    status: int = 200
    is_fixed: bool = False
    """Whether the same URL has the same answer as long as the server runs."""


class Query:
    """Parameters of a request; none of them is trusted.

    Args:
        text: The query string of the URL.
        body: The body of a POST request.

    >>> query = Query("step=7&split=train")
    >>> query.integer("step", 0, high=10), query.string("split"), query.integer("k", 4)
    (7, 'train', 4)
    """

    def __init__(self, text: str, body: bytes = b"") -> None:
        try:
            found = parse_qs(
                text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS
            )
        except ValueError:
            raise RequestError("the query string is not valid") from None
        repeated = next((name for name, values in found.items() if len(values) > 1), None)
        if repeated is not None:
            raise RequestError(f"parameter {repeated[:100]!r} is given twice")
        self.values = {name: values[0] for name, values in found.items()}
        self.body = body

    def string(self, name: str, default: str | None = None) -> str:
        """Return a string.

        Args:
            name: Name of the parameter.
            default: Its value if it is not given; None if it is required.
        """
        value = self.values.get(name, default)
        if value is None:
            raise RequestError(f"parameter {name!r} is missing")
        if len(value) > _MAX_STRING:
            raise RequestError(f"parameter {name!r} is longer than {_MAX_STRING:,} characters")
        return value

    def optional(self, name: str) -> str | None:
        """Return a string; None if it is not given, or empty."""
        return self.string(name, "") or None

    def integer(
        self, name: str, default: int | None = None, *, low: int = 0, high: int = 2**63 - 1
    ) -> int:
        """Return an integer from `low` to `high`."""
        text = self.string(name, None if default is None else str(default))
        digits = text[1:] if text[:1] == "-" else text
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
        if value is None or not low <= value <= high:
            raise RequestError(f"{name} is {text[:40]!r}; must be an integer from {low} to {high}")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return one of some strings."""
        text = self.string(name, default)
        if text not in choices:
            raise RequestError(f"{name} is {text[:40]!r}; must be one of {', '.join(choices)}")
        return text

    def flag(self, name: str) -> bool:
        """Return whether a parameter is ``1``."""
        return self.choice(name, ("0", "1"), "0") == "1"

    def ids(self, name: str, length: int) -> NDArray[np.int64]:
        """Return record ids below `length`: integers that are separated by commas."""
        text = self.string(name)
        parts = text.split(",") if text else []
        if len(parts) > MAX_IDS:
            raise RequestError(f"{name} has {len(parts):,} ids; the limit is {MAX_IDS:,}")
        for each in parts:
            if not (each.isascii() and each.isdigit() and len(each) < 19 and int(each) < length):
                raise RequestError(f"{name} has {each[:40]!r}; must be an integer below {length}")
        return np.array(parts, np.int64)

    def json(self) -> Any:
        """Return the body of a POST request."""
        try:
            return json.loads(self.body, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise RequestError("the body is not valid JSON") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def json_response(content: Any) -> Response:
    """Return values of JSON; NaN and infinities become null, large integers strings."""
    text = json.dumps(to_json(content), allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), JSON)


def to_json(content: Any) -> Any:
    """Return nested values as values of JSON that JavaScript represents exactly."""
    if isinstance(content, dict):
        return {str(name): to_json(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [to_json(value) for value in content]
    if isinstance(content, np.generic):
        content = content.item()
    if isinstance(content, bytes):
        return content.decode(errors="replace")
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, int) and not isinstance(content, bool) and abs(content) > _MAX_EXACT:
        return str(content)
    if isinstance(content, str):  # a lone surrogate is not valid in UTF-8
        return content.encode(errors="replace").decode()
    return content


@dataclass
class Columns:
    """Arrays to send, and values of JSON about them."""

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def add_strings(self, name: str, strings: Sequence[str]) -> None:
        """Add a column of strings."""
        joined = "".join(strings)
        if joined.isascii():  # a character is a byte: a million names are not encoded one by one
            data, sizes = joined.encode(), map(len, strings)
        else:
            encoded = [each.encode(errors="replace") for each in strings]
            data, sizes = b"".join(encoded), map(len, encoded)
        offsets = np.zeros(len(strings) + 1, np.uint32)
        np.cumsum(np.fromiter(sizes, np.int64, len(strings)), out=offsets[1:])
        self.arrays[f"{name}.offsets"] = offsets
        self.arrays[f"{name}.data"] = np.frombuffer(data, np.uint8)

    def response(self) -> Response:
        """Return the arrays as binary data."""
        described: dict[str, Any] = {}
        parts: list[bytes] = []
        size = 0
        for name, array in self.arrays.items():
            data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
            kind = f"{array.dtype.kind}{array.dtype.itemsize}"
            described[name] = {"dtype": kind, "shape": list(array.shape), "offset": size}
            padding = -len(data) % _ALIGNMENT
            parts += [data, bytes(padding)]
            size += len(data) + padding
        content = to_json({**self.values, "columns": described})
        header = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        header += b" " * (-(4 + len(header)) % _ALIGNMENT)
        start = np.array(len(header), "<u4").tobytes()
        return Response(b"".join([start, header, *parts]), BINARY)
