"""Search in a split: the examples of a class, and those with a value.

A scan stops after a short time and returns a cursor, the position to resume at; nothing of it is
stored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseBatch, StringArray
from covey.dataset.dataset import Dataset
from covey.errors import CoveyError
from covey.schema import ClassLabel, Features
from covey.schema.columns import STRINGS
from covey.view.kinds import decoded_sizes, operators_of
from covey.view.messages import Query, RequestError

Ids = NDArray[np.int64]

OPERATORS = ("contains", "equals", "less", "greater", "nan")

SCAN_TIMEOUT_S = 0.3
"""Time after which a scan returns what it found."""

# Examples and bytes that are read at once; the first read of a scan is small.
_FIRST_READ_EXAMPLES = 256
_MAX_READ_EXAMPLES = 8192
_MAX_READ_BYTES = 8 << 20


class SplitExamples:
    """The examples of a split, or of one of its classes, in the order of their ids.

    Args:
        dataset: The split.
        class_id: The class; None for all examples.
    """

    def __init__(self, dataset: Dataset, class_id: int | None = None) -> None:
        self.dataset = dataset
        self.class_id = class_id
        self.length = len(dataset)
        self._by_class: NDArray[Any] | None = None
        self._first = 0
        if class_id is not None:
            table = dataset.classes
            position = table.position(class_id)
            self._by_class = table.by_class
            self._first = int(table.firsts[position])
            self.length = int(table.counts[position])

    def slice(self, begin: int, end: int) -> Ids:
        """Return the ids at some positions."""
        end = min(end, self.length)
        begin = min(begin, end)
        if self._by_class is None:
            return np.arange(begin, end, dtype=np.int64)
        return self._by_class[self._first + begin : self._first + end].astype(np.int64)


# Values.


@dataclass(frozen=True, eq=False)
class Predicate:
    """A condition of a feature. An array matches if any of its values does.

    Strings are compared without regard to case by ``contains``. A class matches by its id or by
    its name. Of a sparse tensor, the stored values are compared.

    Args:
        features: The feature alone.
        name: Its name.
        operator: One of :data:`OPERATORS`.
        value: The value to compare with.
    """

    features: Features
    name: str
    operator: str
    value: str = ""

    @classmethod
    def parse(cls, features: Features, query: Query) -> Predicate | None:
        """Return the predicate of a request; None if it has none."""
        name = query.optional("feature")
        if name is None:
            return None
        if name not in features:
            raise RequestError(f"there is no feature {name[:100]!r}", 404)
        operator = query.choice("op", OPERATORS)
        found = cls(features.select([name]), name, operator, query.string("value", ""))
        found.check()
        return found

    def check(self) -> None:
        """Raise RequestError if the operator or the value does not suit the feature."""
        feature = self.features[self.name]
        allowed = operators_of(feature)
        if self.operator not in allowed:
            limits = f"op must be one of {', '.join(allowed)}" if allowed else "it has no search"
            raise RequestError(f"{self.name[:100]!r} is {feature.summary}; {limits}")
        is_name = isinstance(feature, ClassLabel) and self.operator in ("contains", "equals")
        if self.operator == "nan" or is_name or getattr(feature, "dtype", "") in STRINGS:
            return
        if not _is_number(self.value):
            raise RequestError(f"value is {self.value[:40]!r}; must be a number")

    def matches(self, dataset: Dataset, ids: Ids) -> NDArray[np.bool_]:
        """Return which of some examples match."""
        column = self.features.find(dataset.decode(self.features, ids), self.name)
        if isinstance(self.features[self.name], ClassLabel) and self._compares_strings:
            if self._wanted is None:  # the name of a class without a name is its id
                return self._match_strings([str(each) for each in column.tolist()])
            known = (column >= 0) & (column < len(self._wanted))
            return np.asarray(known & self._wanted[np.where(known, column, 0)])
        values, splits = _flatten(column)
        if isinstance(values, StringArray):
            strings = values.to_numpy((len(values.offsets) - 1,)).tolist()
            found = self._match_strings(strings)
        else:
            found = compare(values, self.operator, self.value)
        return found if splits is None else any_of_rows(found, splits)

    @property
    def _compares_strings(self) -> bool:
        return self.operator in ("contains", "equals")

    @cached_property
    def _wanted(self) -> NDArray[np.bool_] | None:
        """Which classes match by their names; None if they have no names."""
        feature = self.features[self.name]
        names = feature.names if isinstance(feature, ClassLabel) else None
        if names is None:
            return None
        wanted = np.append(self._match_strings(list(names)), False)  # never empty
        number = _to_integer(self.value) if _is_number(self.value) else None
        if self.operator == "equals" and number is not None and 0 <= number < len(names):
            wanted[number] = True
        return wanted

    def _match_strings(self, strings: list[Any]) -> NDArray[np.bool_]:
        decoded = (
            each.decode(errors="replace") if isinstance(each, bytes) else each for each in strings
        )
        if self.operator == "equals":
            return np.fromiter((each == self.value for each in decoded), bool, len(strings))
        wanted = self.value.casefold()
        return np.fromiter((wanted in each.casefold() for each in decoded), bool, len(strings))


def _is_number(text: str) -> bool:
    try:
        return len(text) <= 100 and math.isfinite(float(text))
    except ValueError:
        return False


def _flatten(column: Any) -> tuple[Any, NDArray[np.int64] | None]:
    """Return all values of a column as one array, and the range of each row; None if it is 1."""
    if isinstance(column, SparseBatch):
        column = column.values
    splits: NDArray[np.int64] | None = None
    while isinstance(column, RaggedArray):
        splits = column.row_splits if splits is None else column.row_splits[splits]
        column = column.values
    if isinstance(column, StringArray):
        count, rows = len(column.offsets) - 1, len(column)
    else:
        count, rows = column.size, len(column)
        column = column.reshape(-1)
    width = count // max(1, rows)
    if splits is not None:
        return column, splits * width
    if width == 1 and count == rows:
        return column, None
    return column, np.arange(rows + 1, dtype=np.int64) * width


def any_of_rows(found: NDArray[np.bool_], splits: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each row whether any of its values is true; an empty row has none."""
    is_filled = np.diff(splits) > 0
    result = np.zeros(len(is_filled), bool)
    if is_filled.any():
        begins = splits[:-1][is_filled]
        result[is_filled] = np.logical_or.reduceat(found[: splits[-1]], begins)
    return result


def compare(values: NDArray[Any], operator: str, text: str) -> NDArray[np.bool_]:
    """Return which numbers match.

    The value is rounded to the type of floats, so that 0.1 equals a float32 that was written as
    0.1. Integers are compared exactly.

    >>> compare(np.array([0.1, np.nan], np.float32), "equals", "0.1").tolist()
    [True, False]
    >>> compare(np.array([2, 3]), "greater", "2.5").tolist()
    [False, True]
    """
    is_float = values.dtype.kind == "f"
    if operator == "nan":
        return np.isnan(values) if is_float else np.zeros(len(values), bool)
    if is_float:
        with np.errstate(over="ignore"):
            wanted: Any = values.dtype.type(text)
        if operator == "equals":
            return np.asarray(values == wanted)
        return np.asarray(values < wanted if operator == "less" else values > wanted)
    if values.dtype == bool:
        values = values.view(np.uint8)
    number: Any = _to_integer(text)
    if number is None:  # a fraction lies between two integers
        number = float(text)
        if operator == "equals":
            return np.zeros(len(values), bool)
        number = math.ceil(number) if operator == "less" else math.floor(number)
    limits = np.iinfo(values.dtype)
    if not limits.min <= number <= limits.max:
        is_match = operator == ("less" if number > limits.max else "greater")
        return np.full(len(values), is_match)
    number = values.dtype.type(number)
    if operator == "equals":
        return np.asarray(values == number)
    return np.asarray(values < number if operator == "less" else values > number)


def _to_integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else None


@dataclass(frozen=True, eq=False)
class Found:
    """Result of a scan."""

    ids: list[int]
    cursor: int | None
    """Position of the next example; None at the end."""
    scanned: int
    """Position of the next example."""
    corrupt: int
    """Number of examples that could not be read."""


def scan(
    members: SplitExamples,
    predicate: Predicate,
    cursor: int,
    limit: int,
    *,
    timeout_s: float = SCAN_TIMEOUT_S,
    after_read: Callable[[], None] = lambda: None,
) -> Found:
    """Find examples that match, from a position on, until there are enough or time is up.

    Args:
        members: The examples to scan.
        predicate: The condition.
        cursor: Position of the first example.
        limit: Maximum number of ids.
        timeout_s: Time after which no further example is read; at least one read is done.
        after_read: Function that is called after each read.
    """
    dataset = members.dataset
    ids: list[int] = []
    corrupt, size = 0, _FIRST_READ_EXAMPLES
    end = time.monotonic() + timeout_s
    while cursor < members.length and len(ids) < limit:
        part = members.slice(cursor, cursor + size)
        sizes = np.cumsum(decoded_sizes(dataset, part))
        part = part[: max(1, int(np.searchsorted(sizes, _MAX_READ_BYTES)))]
        try:
            rows = np.flatnonzero(predicate.matches(dataset, part))[: limit - len(ids)]
        except (CoveyError, OSError):
            if len(part) > 1:  # fewer, until the one that cannot be read is alone
                size = len(part) // 2
                continue
            rows = np.zeros(0, np.int64)
            corrupt += 1
        ids += part[rows].tolist()
        # A full page ends right after its last example: the next one begins there.
        cursor += int(rows[-1]) + 1 if len(ids) == limit else len(part)
        after_read()
        if time.monotonic() > end:
            break
        size = min(2 * size, _MAX_READ_EXAMPLES)
    return Found(ids, cursor if cursor < members.length else None, cursor, corrupt)
