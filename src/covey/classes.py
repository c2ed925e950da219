"""Class tables: the class ids, names and records of a dataset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import DatasetError, list_names, shorten

CLASS_DTYPE = np.dtype([("label", "<i8"), ("first", "<u8"), ("records", "<u8")])

# Rows that are processed at a time when records are sorted by class.
_CHUNK_ROWS = 1 << 20


class ClassTable:
    """The classes of records, sorted by class id.

    Args:
        table: One row per class: label, first, records.
        by_class: The record ids, sorted by class.
        names: The class name of each class id, if known.
    """

    def __init__(
        self, table: NDArray[Any], by_class: NDArray[Any], names: Sequence[str] | None
    ) -> None:
        self._table = table
        self._by_class = by_class
        self._names = names

    @classmethod
    def of(cls, labels: NDArray[np.int64], names: Sequence[str] | None = None) -> ClassTable:
        """Return the table of records with these class ids."""
        table = class_table(labels)
        by_class = np.zeros(len(labels), id_dtype(len(labels)))
        sort_by_class(labels, table, by_class)
        return cls(table, by_class, names)

    @classmethod
    def parse(cls, labels: Any) -> ClassTable:
        """Return the table of examples with these labels: all integers, or all strings.

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
        return iter(self.names)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class id of each class."""
        return np.ascontiguousarray(self._table["label"])

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
    def names(self) -> tuple[str, ...]:
        """The name of each class; its class id if it has no name."""
        return tuple(map(self._name, self._table["label"].tolist()))

    def _name(self, label: int) -> str:
        known = self._names is not None and 0 <= label < len(self._names)
        return self._names[label] if known and self._names is not None else str(label)

    def name(self, position: int) -> str:
        """Return the name of the class at a position."""
        return self._name(int(self._table["label"][position]))

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
            DatasetError: If no record has this class.
        """
        class_id = self._class_id(label)
        position = int(np.searchsorted(self.labels, class_id)) if class_id is not None else 0
        if class_id is None or class_id not in self.labels[position : position + 1]:
            few = list_names(map(self._name, self._table["label"][:8].tolist()))
            more = f" and {len(self) - 8:,} more" if len(self) > 8 else ""
            shown = shorten(label) if isinstance(label, str) else label
            raise DatasetError(
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
