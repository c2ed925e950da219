"""NPZ files: arrays with one row per example."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema import ClassLabel, Features
from covey.sources.registry import ProbedPath, one_file, register
from covey.sources.source import Item, LazyItems, Source, check_label, fault, find_label
from covey.sources.splits import choose_split
from covey.splits import SPLIT_NAMES

Arrays = dict[str, NDArray[Any]]

_ZIP = b"PK\x03\x04"
_SPLIT = re.compile(rf"(.+)_({'|'.join(sorted(SPLIT_NAMES))})", re.IGNORECASE)
_NAMES = re.compile(r"_?names?$", re.IGNORECASE)
_OF_THE_LABEL = ("", "class", "classes", "label", "labels", "target")


def _load(path: str) -> Arrays:
    """All arrays of a file; those that would need pickle are refused."""
    import zipfile
    import zlib

    arrays: Arrays = {}
    member = ""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            for member in archive.files:
                value = archive[member]
                if not isinstance(value, np.ndarray):
                    raise fault(path, f"member {member!r} is not an array in NumPy's format")
                arrays[member] = value
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, ValueError) and "Object arrays" in str(error):
            what = (
                f"array {member!r} is of objects, which only pickle can read; save it by its type"
            )
            raise fault(path, what) from None
        where = f"array {member!r}" if member else "it"
        raise fault(path, f"{where} cannot be read: {error}") from None
    return arrays


class _Rows(LazyItems):
    """The rows of a file's arrays; pickled, only where to find them."""

    def __init__(self, path: str, members: Mapping[str, str], columns: Arrays) -> None:
        self._path = path
        self._members = dict(members)
        self._columns: Arrays | None = columns
        self._length = len(next(iter(columns.values())))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": None}

    def __len__(self) -> int:
        return self._length

    def read(self, number: int) -> Item:
        if self._columns is None:
            arrays = _load(self._path)
            self._columns = {name: arrays[member] for name, member in self._members.items()}
        return number, {name: _plain(column[number]) for name, column in self._columns.items()}


def _plain(value: Any) -> Any:
    """A row as it is, but NumPy's strings as Python's."""
    return value.item() if isinstance(value, (np.str_, np.bytes_)) else value


def _is_npz(place: ProbedPath) -> bool:
    import zipfile

    if not place.is_file or not place.head.startswith(_ZIP):
        return False
    try:
        with zipfile.ZipFile(place.path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return b".npy" in place.head[:512]  # a corrupt one: say so when it is opened


@register("NPZ", "an NPZ file of arrays with a row per example", recognise=_is_npz)
def open_npz(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """The rows of arrays, keyed by their number from 0; the arrays are held in memory.

    Strings of another length that name the classes of an array become its names; single values are
    left out. Names such as ``x_train`` and ``x_test`` tell splits apart.
    """
    path = one_file(place, "NPZ")
    arrays = {member: array for member, array in _load(path).items() if array.ndim}
    members = _of_split(arrays, split, path)
    given = {name: arrays[member] for name, member in members.items()}
    if not given:
        raise fault(path, "there is no array with rows in this file")
    check_label(label, given, path, "array")
    label = label or find_label(given, ("y",))
    columns, names = _tell_apart(given, label, path)
    members = {name: members[name] for name in columns}
    rows = _Rows(path, members, columns)
    if not len(rows):
        raise fault(path, "the arrays have no rows")
    try:
        features = Features(_kinds(columns, names, label))
    except FeatureError as error:
        raise fault(path, str(error)) from None
    return Source(
        "NPZ", path, rows, length=len(rows), features=features, label=label, columns=columns
    )


def _of_split(arrays: Arrays, split: str | None, path: str) -> dict[str, str]:
    """For every name the member that holds it, in the split that was asked for."""
    found = {member: _SPLIT.fullmatch(member) for member in arrays}
    splits = {match[2] for match in found.values() if match}
    if not all(found.values()) or not splits:
        return {member: member for member in arrays}
    chosen = choose_split(splits, split, path)
    return {match[1]: member for member, match in found.items() if match and match[2] == chosen}


def _tell_apart(
    arrays: Arrays, label: str | None, path: str
) -> tuple[Arrays, dict[str, tuple[str, ...]]]:
    """The arrays that have a row per example, and the names of classes, by the array they name."""
    if label in arrays:
        rows = len(arrays[label])
    else:
        # Most arrays have a row per example; of strings, those that do not may be names.
        lengths = Counter(len(array) for array in arrays.values() if not _is_text(array))
        rows = (lengths or Counter(map(len, arrays.values()))).most_common(1)[0][0]
    columns = {name: array for name, array in arrays.items() if len(array) == rows}
    names: dict[str, tuple[str, ...]] = {}
    for name, array in arrays.items():
        if name in columns:
            continue
        named = _named_by(name, array, columns, label)
        if named is None:
            listed = ", ".join(f"{each!r} {len(array)}" for each, array in arrays.items())
            raise fault(
                path,
                f"arrays have different numbers of rows: {listed}; {name!r} does not name the "
                "classes of another array either. Save it apart",
            )
        names[named] = tuple(array.tolist())
    return columns, names


def _is_text(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype.kind == "U"


def _named_by(name: str, array: NDArray[Any], columns: Arrays, label: str | None) -> str | None:
    """The column whose classes these strings name: by what they are called, and by their number."""
    if not _is_text(array):
        return None
    stem = _NAMES.sub("", name)
    wanted = [stem, f"{stem}s", f"{stem}es", stem.removesuffix("s")]
    if stem.lower() in _OF_THE_LABEL and label is not None:
        wanted.append(label)
    for each in wanted:
        column = columns.get(each)
        if column is None or column.ndim != 1 or column.dtype.kind not in "iu" or not column.size:
            continue
        if column.min() >= -1 and column.max() < len(array):
            return each
    return None


def _kinds(
    columns: Arrays, names: Mapping[str, tuple[str, ...]], label: str | None
) -> dict[str, Any]:
    """What the arrays are: an array's rows are all alike, so the first tells."""
    first = {name: np.asarray(column[0]) for name, column in columns.items()}
    kinds: dict[str, Any] = dict(Features.infer([first]))
    for name, classes in names.items():
        kinds[name] = ClassLabel(names=classes)
    if label is not None and _is_text(columns[label]):
        kinds[label] = ClassLabel(names=tuple(np.unique(columns[label]).tolist()))
    return kinds
