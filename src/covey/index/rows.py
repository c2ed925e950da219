"""The index of a split: the place, the length and the class of every record.

Four files beside the shards, each of which any Python reads::

    birds-train.index.npy     one row per record, in the order of the shards:
                              shard, length, offset[, within][, label]
    birds-train.by_class.npy  the numbers of the records, class after class
    birds-train.classes.npy   one row per class: label, first, records;
                              its records are by_class[first : first + records]
    birds-train.index.json    the features, and for each shard what tells that it has changed

``offset`` is where the record's frame begins in the shard. In a compressed shard it is where the
frame's GZIP member begins, and ``within`` is where the frame begins in that member's data; if the
shard is one long stream, ``offset`` is 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FormatError

CLASS_DTYPE = np.dtype([("label", "<i8"), ("first", "<u8"), ("records", "<u8")])

# Rows that are looked at together when records are sorted by class.
_ROWS_AT_ONCE = 1 << 20


def row_dtype(*, compressed: bool, labelled: bool) -> np.dtype[Any]:
    """The fields of an index row, of which only those are there that are needed."""
    fields: list[tuple[str, str]] = [("shard", "<u4"), ("length", "<u4"), ("offset", "<u8")]
    if compressed:
        fields.append(("within", "<u8"))
    if labelled:
        fields.append(("label", "<i8"))
    return np.dtype(fields)


def number_dtype(records: int) -> np.dtype[Any]:
    """What the numbers of so many records are stored as."""
    return np.dtype(np.uint32 if records < 2**32 else np.uint64)


def index_names(stem: str) -> dict[str, str]:
    """The names of the files, by what they are; the stem is ``<dataset>-<split>``."""
    return {
        "rows": f"{stem}.index.npy",
        "by_class": f"{stem}.by_class.npy",
        "classes": f"{stem}.classes.npy",
        "about": f"{stem}.index.json",
    }


class IndexWriter:
    """Writes an index row by row, while the shards are written.

    Args:
        path: The file of the rows.
        records: How many there will be.
        compressed: Whether shards are.
        labelled: Whether records have classes.
    """

    def __init__(self, path: Path, records: int, *, compressed: bool, labelled: bool) -> None:
        self.path = path
        self._dtype = row_dtype(compressed=compressed, labelled=labelled)
        self._file = open(path, "wb")  # noqa: SIM115
        _write_header(self._file, self._dtype, records)
        self._records = records
        self._written = 0
        self.checksum = 0
        """Of all rows so far."""

    def add(self, shard: int, places: NDArray[Any], labels: NDArray[np.int64] | None) -> None:
        """Note the records of a shard, which come after those of the one before."""
        if len(places) and places["length"].max() >= 2**32:
            raise FormatError(f"shard {shard}: a record is over 4 GiB, more than an index can hold")
        rows = np.zeros(len(places), self._dtype)
        rows["shard"] = shard
        rows["length"] = places["length"]
        rows["offset"] = places["offset"]
        if "within" in rows.dtype.names:
            rows["within"] = places["within"]
        if "label" in rows.dtype.names:
            rows["label"] = labels
        self.add_rows(rows)

    def add_rows(self, rows: NDArray[Any]) -> None:
        """Add rows that are there already, of an index that this one continues."""
        if rows.dtype != self._dtype:
            given, rows = rows, np.zeros(len(rows), self._dtype)
            for name in set(self._dtype.names or ()).intersection(given.dtype.names or ()):
                rows[name] = given[name]
        rows = np.ascontiguousarray(rows)
        self._file.write(rows.data)
        self._written += len(rows)
        self.checksum = _core.crc32c(rows, self.checksum)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
        if self._written != self._records:
            raise AssertionError(f"{self._written} rows were written of {self._records}")

    def abandon(self) -> None:
        """Close the file as it is, for nobody will read it."""
        self._file.close()


def _write_header(file: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(file, header)


def _map_array(path: Path, dtype: np.dtype[Any], rows: int) -> Any:
    """A new array in a file, to be filled in any order."""
    with open(path, "wb") as file:
        _write_header(file, dtype, rows)
        # A full disk is found out here, where it is an error, and not in the middle of filling.
        if rows and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), file.tell(), rows * dtype.itemsize)
        else:
            file.write(bytes(rows * dtype.itemsize))
    return np.load(path, mmap_mode="r+")


def write_classes(
    rows: Path, by_class: Path, classes: Path
) -> tuple[NDArray[Any], tuple[int, int]]:
    """Sort the records of an index by class, with memory for a part of it only.

    Returns:
        The class table; and the checksums of its rows, and of the records in order.
    """
    index = np.load(rows, mmap_mode="r")
    table = class_table(index["label"])
    np.save(classes, table)
    ordered = _map_array(by_class, number_dtype(len(index)), len(index))
    sort_by_class(index["label"], table, ordered)
    ordered.flush()
    return table, (_core.crc32c(table), _core.crc32c(ordered))


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
