"""Class tables: the class ids, names and records of a dataset."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import (
    DatasetError,
    FormatError,
    UnknownClassError,
    check,
    list_names,
    shorten,
    shown_value,
)

Labels = Literal["contiguous"]

CLASS_DTYPE = np.dtype([("label", "<i8"), ("first", "<u8"), ("records", "<u8")])

# Rows that are processed at a time when records are sorted by class.
_CHUNK_ROWS = 1 << 20

# Classes in a message, and characters of their names.
_MAX_LISTED = 8
_MAX_NAME = 60


class ClassNames(Mapping[int, str]):
    """The name of each class id.

    It has the ids of the known names and the ids of the records. An id without a name has its
    decimal digits as a name.

    Args:
        names: The name of each class id from 0 on, if known.
        labels: The class ids of the records, in ascending order.

    >>> names = ClassNames(["owl", "wren", "crow"], np.array([0, 2]))
    >>> names[2], names[np.array([2, 0])], len(names)
    ('crow', ['crow', 'owl'], 3)
    >>> dict(ClassNames(None, np.array([7, 10**9])))
    {7: '7', 1000000000: '1000000000'}
    """

    def __init__(self, names: Sequence[str] | None, labels: NDArray[np.int64]) -> None:
        self._names = () if names is None else names
        self._others = labels[(labels < 0) | (labels >= len(self._names))]

    @property
    def known(self) -> Sequence[str]:
        """The name of each class id from 0 on, as far as the classes have names."""
        return self._names

    @overload
    def __getitem__(self, class_id: int) -> str: ...

    @overload
    def __getitem__(self, class_id: Any) -> Any: ...

    def __getitem__(self, class_id: Any) -> Any:
        """Return the name of a class id, or a list of the names of several.

        Args:
            class_id: An integer: of Python, of numpy, or a tensor without dimensions. Or a list,
                an array or a tensor of class ids.

        Raises:
            UnknownClassError: If there is no such class.
        """
        if getattr(class_id, "ndim", 0) or isinstance(class_id, (list, tuple)):
            given = class_id if hasattr(class_id, "tolist") else np.asarray(class_id)
            return self._nested(given.tolist())
        try:
            number = operator.index(class_id)
        except TypeError:
            raise UnknownClassError(
                option="class id", found=class_id, allowed="an integer, or an array of integers"
            ) from None
        if 0 <= number < len(self._names):
            return self._names[number]
        position = int(np.searchsorted(self._others, number)) if abs(number) < 2**63 else 0
        if number not in self._others[position : position + 1].tolist():
            raise UnknownClassError(option="class id", found=number, allowed=self._range)
        return str(number)

    def _nested(self, ids: list[Any]) -> list[Any]:
        return [self._nested(each) if isinstance(each, list) else self[each] for each in ids]

    @property
    def _range(self) -> str:
        parts = [f"from 0 to {len(self._names) - 1}"] if len(self._names) else []
        few = self._others[:_MAX_LISTED].tolist()
        if few:
            more = " and others" if len(self._others) > _MAX_LISTED else ""
            parts.append(f"one of {', '.join(map(str, few))}{more}")
        return ", or ".join(parts) or "absent: there are no classes"

    def __len__(self) -> int:
        return len(self._names) + len(self._others)

    def __iter__(self) -> Iterator[int]:
        others: list[int] = self._others.tolist()
        yield from (each for each in others if each < 0)
        yield from range(len(self._names))
        yield from (each for each in others if each >= 0)

    def __repr__(self) -> str:
        few = [
            f"{each}: {shown_value(self[each], _MAX_NAME)}" for each in islice(self, _MAX_LISTED)
        ]
        return f"{{{', '.join(few)}{', ...' if len(self) > _MAX_LISTED else ''}}}"


class ClassTable:
    """The classes of records, sorted by class id.

    Iteration yields the names of the classes that have records, in this order.

    Args:
        table: One row per class: label, first, records.
        by_class: The record ids, sorted by class.
        names: The class name of each class id, if known.
        keys: The number of each class that its random draws are derived from; by default its id.
    """

    def __init__(
        self,
        table: NDArray[Any],
        by_class: NDArray[Any],
        names: Sequence[str] | None,
        keys: NDArray[np.int64] | None = None,
    ) -> None:
        self._table = table
        self._by_class = by_class
        self._names = names
        self._keys = keys

    @classmethod
    def of(
        cls,
        labels: NDArray[np.int64],
        names: Sequence[str] | None = None,
        keys: NDArray[np.int64] | None = None,
    ) -> ClassTable:
        """Return the table of records.

        Args:
            labels: The class id of each record.
            names: The class name of each class id, if known.
            keys: The key of each class id from 0 on; by default the id.
        """
        table = class_table(labels)
        by_class = np.zeros(len(labels), id_dtype(len(labels)))
        sort_by_class(labels, table, by_class)
        return cls(table, by_class, names, None if keys is None else keys[table["label"]])

    @classmethod
    def parse(cls, labels: Any) -> ClassTable:
        """Return the table of examples with these labels: all integers, or all strings.

        >>> ClassTable.parse(["owl", "wren", "owl"]).names
        {0: 'owl', 1: 'wren'}
        """
        try:
            array = np.asarray(labels)
        except ValueError:  # lists of different lengths
            array = np.zeros((), object)
        if array.ndim != 1:
            raise DatasetError(f"labels have the shape {array.shape}, must have one dimension")
        if (array.dtype.kind in "iub" and array.dtype != np.uint64) or len(array) == 0:
            return cls.of(array.astype(np.int64, copy=False))
        # Lists and pandas columns may mix integers and strings.
        given = labels if array.dtype.kind in "US" and array is not labels else array.tolist()
        kinds = {type(each) for each in given}
        if kinds <= {str, np.str_} or kinds <= {bytes, np.bytes_}:
            names, ids = np.unique(np.array(list(given)), return_inverse=True)
            strings = [
                each if isinstance(each, str) else each.decode(errors="surrogateescape")
                for each in names.tolist()
            ]
            return cls.of(ids.astype(np.int64), strings)
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
        return iter(self.names[self.labels])

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class id of each class."""
        return np.ascontiguousarray(self._table["label"])

    @property
    def keys(self) -> NDArray[np.int64] | None:
        """The number of each class that its random draws are derived from; None for the labels."""
        return self._keys

    @property
    def by_class(self) -> NDArray[Any]:
        """The record ids, sorted by class."""
        return self._by_class

    @property
    def firsts(self) -> NDArray[np.uint64]:
        """The position in ``by_class`` of the first record of each class."""
        return np.ascontiguousarray(self._table["first"])

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of records of each class."""
        return self._table["records"].astype(np.int64)

    @cached_property
    def names(self) -> ClassNames:
        """The name of each class id, also of classes without records."""
        return ClassNames(self._names, self.labels)

    def records(self, position: int) -> NDArray[np.int64]:
        """Return the record ids of the class at a position, in order."""
        row = self._table[position]
        first = int(row["first"])
        return self._by_class[first : first + int(row["records"])].astype(np.int64)

    def position(self, label: int | str | bytes) -> int:
        """Return the position of a class in the table.

        Args:
            label: The class id or the class name.

        Raises:
            UnknownClassError: If no record has this class.
        """
        class_id = self._class_id(label)
        position = int(np.searchsorted(self.labels, class_id)) if class_id is not None else 0
        if class_id is None or class_id not in self.labels[position : position + 1]:
            few = list_names(self.names[self.labels[:_MAX_LISTED]])
            more = f" and {len(self) - _MAX_LISTED:,} more" if len(self) > _MAX_LISTED else ""
            shown = shorten(label) if isinstance(label, str) else label
            raise UnknownClassError(
                f"there is no record of class {shown!r}; there are {few}{more}",
                found=label,
                choices=self,
            )
        return position

    def _class_id(self, label: int | str | bytes) -> int | None:
        text = label.decode(errors="replace") if isinstance(label, bytes) else label
        if isinstance(text, str):
            if text in self._ids:
                return self._ids[text]
            # Without names, the name of a class is its id.
            is_number = self._names is None and re.fullmatch(r"-?[0-9]{1,19}", text)
            label = int(text) if is_number else -(2**64)
        if isinstance(label, (int, np.integer)) and not isinstance(label, bool):
            return int(label) if -(2**63) <= int(label) < 2**63 else None
        raise DatasetError(f"a class is {label!r}; must be a class id or a class name")

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._names or ())}


def renumber(
    labels: NDArray[np.int64], old: NDArray[np.int64], new: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the new class ids of records.

    Args:
        labels: The class ids of the records.
        old: The class ids that have a new one, in ascending order.
        new: The new id of each.

    Raises:
        FormatError: If a class id has no new one; the ids of an index are not trusted.
    """
    positions = np.minimum(np.searchsorted(old, labels), max(len(old) - 1, 0))
    wrong = old[positions] != labels if len(old) else np.ones(len(labels), bool)
    if wrong.any():
        raise FormatError(
            f"the index has a record of class {labels[wrong][0]}, which is not one of its classes",
            remedy="rebuild it with `covey index`",
        )
    return new[positions] if len(old) else np.zeros(0, np.int64)


def check_labels(labels: Any) -> None:
    """Raise DatasetError if the option `labels` is not valid."""
    is_valid = labels in (None, "contiguous")
    check("labels", labels, is_valid, "'contiguous' or None", choices=("contiguous",))


def class_table(classes: NDArray[np.int64]) -> NDArray[Any]:
    """Return one row per class of the records, sorted by class id."""
    labels = np.zeros(0, np.int64)
    counts = np.zeros(0, np.int64)
    for part in _chunks(classes):
        new_labels, new_counts = _count(part)
        merged = np.union1d(labels, new_labels)
        sums = np.zeros(len(merged), np.int64)
        sums[np.searchsorted(merged, labels)] = counts
        sums[np.searchsorted(merged, new_labels)] += new_counts
        labels, counts = merged, sums
    table = np.zeros(len(labels), CLASS_DTYPE)
    table["label"] = labels
    table["records"] = counts
    table["first"] = np.cumsum(counts) - counts
    return table


def sort_by_class(classes: NDArray[np.int64], table: NDArray[Any], ordered: NDArray[Any]) -> None:
    """Fill an array with the record ids, sorted by class.

    Args:
        classes: The class id of each record.
        table: The result of :func:`class_table`.
        ordered: The array to fill.
    """
    labels = np.ascontiguousarray(table["label"])
    next_positions = table["first"].copy()  # advanced by the native function
    begin = 0
    for part in _chunks(classes):
        _core.sort_by_class(_positions(labels, part), next_positions, begin, ordered)
        begin += len(part)


def _count(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct labels and their counts."""
    low, high = int(labels.min()), int(labels.max())
    if high - low > 4 * len(labels):
        return np.unique(labels, return_counts=True)
    counts = np.bincount(labels - low)  # much faster, and the usual case
    found = np.flatnonzero(counts)
    return found + low, counts[found]


def _positions(labels: NDArray[np.int64], part: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the position in ``labels`` of each label of a chunk."""
    low, high = int(labels[0]), int(labels[-1])
    if high - low > 4 * len(part):
        return np.searchsorted(labels, part).astype(np.uint32)
    positions = np.zeros(high - low + 1, np.uint32)
    positions[labels - low] = np.arange(len(labels))
    return positions[part - low]


def _chunks(classes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, len(classes), _CHUNK_ROWS):
        yield np.ascontiguousarray(classes[begin : begin + _CHUNK_ROWS])


def id_dtype(records: int) -> np.dtype[Any]:
    """Return the dtype of the record ids of ``records`` records."""
    return np.dtype(np.uint32 if records < 2**32 else np.uint64)
