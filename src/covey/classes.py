"""The classes of a dataset: their labels, names and records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import DatasetError

CLASS_DTYPE = np.dtype([("label", "<i8"), ("first", "<u8"), ("records", "<u8")])

# Rows that are looked at together when records are sorted by class.
_ROWS_AT_ONCE = 1 << 20


class ClassTable:
    """The classes that records have, sorted by label.

    Args:
        table: One row per class: label, first, records.
        by_class: The numbers of all records, class after class.
        names: What labels stand for, by their numbers, if that is known.
    """

    def __init__(
        self, table: NDArray[Any], by_class: NDArray[Any], names: Sequence[str] | None
    ) -> None:
        self._table = table
        self._by_class = by_class
        self._names = names

    @classmethod
    def of(cls, labels: NDArray[np.int64], names: Sequence[str] | None = None) -> ClassTable:
        """The classes of records that have these labels."""
        table = class_table(labels)
        by_class = np.zeros(len(labels), id_dtype(len(labels)))
        sort_by_class(labels, table, by_class)
        return cls(table, by_class, names)

    @classmethod
    def parse(cls, labels: Any) -> ClassTable:
        """The classes of what has these labels: integers, or strings.

        >>> ClassTable.parse(["owl", "wren", "owl"]).names
        ('owl', 'wren')
        """
        try:
            array = np.asarray(labels)
        except ValueError:  # lists of different lengths
            array = np.zeros((), object)
        if array.ndim != 1:
            raise DatasetError(f"labels have the shape {array.shape}, must have one dimension")
        if (array.dtype.kind in "iub" and array.dtype != np.uint64) or len(array) == 0:
            return cls.of(array.astype(np.int64, copy=False))
        # Lists, and tables of pandas, may have anything in them: also numbers beside strings.
        given = labels if array.dtype.kind in "US" and array is not labels else array.tolist()
        kinds = {type(each) for each in given}
        if kinds <= {str, np.str_} or kinds <= {bytes, np.bytes_}:
            names, numbers = np.unique(np.array(list(given)), return_inverse=True)
            texts = [
                each if isinstance(each, str) else each.decode(errors="surrogateescape")
                for each in names.tolist()
            ]
            return cls.of(numbers.astype(np.int64), texts)
        if kinds == {int} and all(-(2**63) <= each < 2**63 for each in given):
            return cls.of(np.array(given, np.int64))
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DatasetError(f"labels are of the types {found}; must be all integers or strings")

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        counts = self.counts
        span = f", {counts.min():,} to {counts.max():,} records each" if len(counts) else ""
        return f"<{len(self):,} classes{span}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The number of each class."""
        return np.ascontiguousarray(self._table["label"])

    @property
    def by_class(self) -> NDArray[Any]:
        """The numbers of all records, class after class."""
        return self._by_class

    @property
    def firsts(self) -> NDArray[np.uint64]:
        """Where in ``by_class`` the records of each begin."""
        return np.ascontiguousarray(self._table["first"])

    @property
    def counts(self) -> NDArray[np.int64]:
        """How many records each has."""
        return self._table["records"].astype(np.int64)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each; its number, if it has none."""
        return tuple(map(self._name, self._table["label"].tolist()))

    def _name(self, label: int) -> str:
        known = self._names is not None and 0 <= label < len(self._names)
        return self._names[label] if known and self._names is not None else str(label)

    def name(self, position: int) -> str:
        """The name of the class at a position."""
        return self._name(int(self._table["label"][position]))

    def records(self, position: int) -> NDArray[np.int64]:
        """The numbers of the records of the class at a position, in order."""
        row = self._table[position]
        first = int(row["first"])
        return self._by_class[first : first + int(row["records"])].astype(np.int64)

    def position(self, label: int | str | bytes) -> int:
        """Where a class is in this table, by its number or its name.

        Raises:
            DatasetError: If no record is of such a class.
        """
        number = self._number(label)
        place = int(np.searchsorted(self.labels, number)) if number is not None else 0
        if number is None or place >= len(self) or int(self.labels[place]) != number:
            few = ", ".join(map(repr, map(self._name, self._table["label"][:8].tolist())))
            more = " and more" if len(self) > 8 else ""
            raise DatasetError(f"there is no record of class {label!r}; there are {few}{more}")
        return place

    def _number(self, label: int | str | bytes) -> int | None:
        text = label.decode(errors="replace") if isinstance(label, bytes) else label
        if isinstance(text, str):
            if text in self._numbers:
                return self._numbers[text]
            # Without names, classes are called by their numbers.
            is_number = self._names is None and re.fullmatch(r"-?[0-9]{1,19}", text)
            label = int(text) if is_number else -(2**64)
        if isinstance(label, (int, np.integer)) and not isinstance(label, bool):
            return int(label) if -(2**63) <= int(label) < 2**63 else None
        raise DatasetError(f"a class is {label!r}; must be a number or a name")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._names or ())}


def class_table(classes: NDArray[np.int64]) -> NDArray[Any]:
    """One row for every class that records have, sorted by label."""
    labels = np.zeros(0, np.int64)
    counts = np.zeros(0, np.int64)
    for part in _parts(classes):
        found, many = _count(part)
        together = np.union1d(labels, found)
        grown = np.zeros(len(together), np.int64)
        grown[np.searchsorted(together, labels)] = counts
        grown[np.searchsorted(together, found)] += many
        labels, counts = together, grown
    table = np.zeros(len(labels), CLASS_DTYPE)
    table["label"] = labels
    table["records"] = counts
    table["first"] = np.cumsum(counts) - counts
    return table


def sort_by_class(classes: NDArray[np.int64], table: NDArray[Any], ordered: NDArray[Any]) -> None:
    """Fill an array with the numbers of the records, class after class.

    Args:
        classes: Of the records.
        table: As :func:`class_table` gives it.
        ordered: The array.
    """
    labels = np.ascontiguousarray(table["label"])
    following = table["first"].copy()  # it is moved on
    begin = 0
    for part in _parts(classes):
        _core.sort_by_class(_find(labels, part), following, begin, ordered)
        begin += len(part)


def _count(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The labels that there are, and how often each."""
    low, high = int(labels.min()), int(labels.max())
    if high - low > 4 * len(labels):
        return np.unique(labels, return_counts=True)
    many = np.bincount(labels - low)  # much faster, and the usual case
    found = np.flatnonzero(many)
    return found + low, many[found]


def _find(labels: NDArray[np.int64], part: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The place of each of a part among all labels."""
    low, high = int(labels[0]), int(labels[-1])
    if high - low > 4 * len(part):
        return np.searchsorted(labels, part).astype(np.uint32)
    places = np.zeros(high - low + 1, np.uint32)
    places[labels - low] = np.arange(len(labels))
    return places[part - low]


def _parts(classes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, len(classes), _ROWS_AT_ONCE):
        yield np.ascontiguousarray(classes[begin : begin + _ROWS_AT_ONCE])


def id_dtype(records: int) -> np.dtype[Any]:
    """What the numbers of so many records are stored as."""
    return np.dtype(np.uint32 if records < 2**32 else np.uint64)
