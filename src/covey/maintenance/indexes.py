"""The files of an index: whether each is what it should be, and all of them fit together."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import CLASS_DTYPE, class_table, number_dtype
from covey.errors import FormatError
from covey.index import IndexMetadata, ShardFiles, index_names, read_metadata, row_dtype
from covey.index.read import ArrayFile
from covey.maintenance.report import Problems
from covey.maintenance.rows import class_name

# Rows that are looked at together.
_AT_ONCE = 1 << 18


@dataclass(frozen=True, eq=False)
class Found:
    """What is left of an index."""

    names: dict[str, str]
    """Of its files."""
    about: IndexMetadata | None = None
    rows: NDArray[Any] | None = None
    """None if they are of no use at all."""
    classes: NDArray[Any] | None = None
    by_class: NDArray[Any] | None = None
    is_intact: bool = False
    """Whether the rows are those that were written."""

    def check_read(self, problems: Problems) -> None:
        """Add a problem if a file was truncated while it was read."""
        arrays = {"rows": self.rows, "classes": self.classes, "by_class": self.by_class}
        for name, array in arrays.items():
            if array is not None and _core.has_faulted(array):
                problems.add(self.names[name], "it was truncated while it was read")


def find_index(directory: Path, stem: str, problems: Problems, *, mmap: bool = True) -> Found:
    """Read an index as far as that is possible."""
    names = index_names(stem)
    try:
        about = read_metadata(directory, stem)
    except FormatError as error:
        path = directory / names["metadata"]
        problems.add(names["metadata"], str(error).removeprefix(f"{path}: "))
        return Found(names)
    if about is None:
        left = [names[each] for each in ("rows", "classes", "by_class")]
        if any((directory / name).exists() for name in left):
            problems.add(names["metadata"], "it is missing, but the rest of the index is there")
        return Found(names)
    arrays = _Arrays(directory, problems, mmap)
    dtype = row_dtype(compressed=about.compression is not None, labelled=about.label is not None)
    rows = arrays.load(names["rows"], dtype, about.records)
    intact = rows is not None and arrays.compare(names["rows"], rows, about.checksum)
    if about.class_checksums is None:
        return Found(names, about, rows, is_intact=intact)
    found = []
    wanted = (
        ("classes", CLASS_DTYPE, None),
        ("by_class", number_dtype(about.records), about.records),
    )
    for (name, kind, count), checksum in zip(wanted, about.class_checksums, strict=True):
        array = arrays.load(names[name], kind, count)
        sound = array is not None and arrays.compare(names[name], array, checksum)
        found.append(array if sound else None)
    return Found(names, about, rows, found[0], found[1], intact)


@dataclass(frozen=True)
class _Arrays:
    """Opens the arrays of an index."""

    directory: Path
    problems: Problems
    mmap: bool

    def load(self, name: str, dtype: np.dtype[Any], rows: int | None) -> NDArray[Any] | None:
        """An array; None if it is none of the kind that it should be."""
        try:
            with ArrayFile(self.directory / name) as file:
                array, more = file.load(mmap=self.mmap), file.rest
        except FileNotFoundError:
            self.problems.add(name, "it is missing, but the rest of the index is there")
            return None
        except Exception as error:  # whatever Python's own parser says of a corrupt header
            self.problems.add(name, f"it is not an array that numpy can read: {error}")
            return None
        if array.ndim != 1 or array.dtype != dtype:
            found = f"{array.dtype} {array.shape}"
            self.problems.add(name, f"it has {found}, must have rows of {dtype}")
            return None
        if rows is not None and len(array) != rows:
            self.problems.add(name, f"it has {len(array)} rows, must have {rows}")
            return None
        if more:
            self.problems.add(name, f"{more} bytes follow its rows, where nothing must")
        return array

    def compare(self, name: str, array: NDArray[Any], checksum: int) -> bool:
        """Whether an array is as it was written."""
        found = 0
        for begin in range(0, len(array), _AT_ONCE):
            found = _core.crc32c(array[begin : begin + _AT_ONCE], found)
        if found == checksum:
            return True
        self.problems.add(
            name,
            f"the checksum of its rows is {found:#010x}; must be {checksum & 0xFFFFFFFF:#010x}",
        )
        return False


def check_classes(index: Found, problems: Problems) -> None:
    """Compare the tables by class with the rows."""
    about, rows, classes = index.about, index.rows, index.classes
    if about is None or rows is None or classes is None or not index.is_intact:
        return  # told already, and nothing to compare with
    expected = class_table(rows["label"])
    name = index.names["classes"]
    same = len(classes) == len(expected) and bool((classes == expected).all())
    if not same:
        counts = dict(zip(classes["label"].tolist(), classes["records"].tolist(), strict=True))
        for label, records in zip(
            expected["label"].tolist(), expected["records"].tolist(), strict=True
        ):
            found = counts.pop(label, 0)
            if found != records:
                what = f"it has {found:,} records of {class_name(about.class_names, label)}"
                problems.add(name, f"{what}, the rows have {records:,}")
        for label, found in counts.items():
            what = f"it has {found:,} records of {class_name(about.class_names, label)}"
            problems.add(name, f"{what}, the rows have none")
        if (classes["first"] != np.cumsum(classes["records"]) - classes["records"]).any() or (
            np.diff(classes["label"]) <= 0
        ).any():
            problems.add(name, "its classes are not in order, one after the other")
    if index.by_class is not None:
        _check_order(index.by_class, expected, rows, index.names["by_class"], problems)


def _check_order(
    by_class: NDArray[Any],
    classes: NDArray[Any],
    rows: NDArray[Any],
    name: str,
    problems: Problems,
) -> None:
    """Make sure that records are sorted by class, and by number within each.

    Then, since there are as many as there should be, every record is there once.
    """
    ends = np.cumsum(classes["records"]).astype(np.int64)
    before = -1
    for begin in range(0, len(by_class), _AT_ONCE):
        numbers = by_class[begin : begin + _AT_ONCE].astype(np.int64)
        places = np.arange(begin, begin + len(numbers))
        which = np.searchsorted(ends, places, side="right")
        inside = (numbers >= 0) & (numbers < len(rows))
        labels = rows["label"][np.where(inside, numbers, 0)]
        is_first = places == (ends - classes["records"].astype(np.int64))[which]
        rises = np.diff(numbers, prepend=before) > 0
        wrong = ~inside | (labels != classes["label"][which]) | ~(rises | is_first)
        if wrong.any():
            at = int(np.argmax(wrong))
            label = int(classes["label"][which[at]])
            problems.add(
                name,
                f"record {int(numbers[at])} is not the next one of class {label}"
                + (f"; {int(wrong.sum()) - 1:,} more are wrong" if wrong.sum() > 1 else ""),
                record=begin + at,
            )
        before = int(numbers[-1])


@contextmanager
def local_index(files: ShardFiles, stem: str) -> Iterator[Path]:
    """The directory that the files of an index are in; if they are remote, of copies."""
    storage = files.storage
    if not storage.is_remote:
        yield Path(files.directory)
        return
    with tempfile.TemporaryDirectory(prefix="covey-verify-") as directory:
        for name in index_names(stem).values():
            try:
                stream = storage.open_stream(storage.join(files.directory, name))
            except FileNotFoundError:
                continue
            with stream, open(Path(directory, name), "wb") as file:
                shutil.copyfileobj(stream, file, 1 << 20)
        yield Path(directory)
