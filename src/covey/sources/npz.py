"""NPZ files of arrays with one row per example."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.labels import find_label_name
from covey.schema import ClassLabel, Features
from covey.sources.registry import ProbedPath, register
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    SourceOptions,
    SourceSplits,
    as_source_error,
    check_label,
    source_error,
)
from covey.splits import SPLIT_NAMES

Arrays = dict[str, NDArray[Any]]

_SPLIT = re.compile(rf"(.+)_({'|'.join(sorted(SPLIT_NAMES))})", re.IGNORECASE)


def _load(path: str) -> Arrays:
    """Return the arrays of a file.

    Raises:
        SourceError: If the file is corrupt, or an array needs pickle.
    """
    import zipfile
    import zlib

    arrays: Arrays = {}
    member = ""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            for member in archive.files:
                value = archive[member]
                if not isinstance(value, np.ndarray):
                    raise source_error(path, f"member {member!r} is not a NumPy array")
                arrays[member] = value
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        where = f"array {member!r}" if member else "the archive"
        raise source_error(path, f"{where} cannot be read: {error}") from None
    return arrays


class _NpzItems(LazyItems):
    """The rows of the arrays of a file. The pickle contains the path, not the arrays."""

    def __init__(self, path: str, members: Mapping[str, str], columns: Arrays) -> None:
        self._path = path
        self._members = dict(members)
        self._columns: Arrays | None = columns
        self._length = len(next(iter(columns.values())))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": None}

    def __len__(self) -> int:
        return self._length

    def read(self, position: int) -> Item:
        if self._columns is None:
            arrays = _load(self._path)
            self._columns = {name: arrays[member] for name, member in self._members.items()}
        return position, {
            name: _as_python(column[position]) for name, column in self._columns.items()
        }


def _as_python(value: Any) -> Any:
    """Return a row; a string of NumPy is converted to a Python string."""
    return value.item() if isinstance(value, (np.str_, np.bytes_)) else value


@register(
    "NPZ",
    "an NPZ file of arrays with a row per example",
    recognise=lambda probed: bool(probed.data_files(".npz")),
)
def open_npz(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open arrays, whose rows are keyed by their position. The arrays are held in memory.

    Strings of another length are the classes of the array that they name, or of the label. Scalars
    are ignored. Arrays with names such as ``x_train`` and ``x_test`` are those of several splits.
    """
    files = [probed.path] if probed.is_file else probed.data_files(".npz").get("", [])
    if len(files) != 1:
        raise source_error(probed.path, f"found {probed.describe()}; must have one file .npz")
    path = files[0]
    arrays = {member: array for member, array in _load(path).items() if array.ndim}
    by_split = _split_members(arrays)
    if not by_split:
        return _open_arrays(path, arrays, {member: member for member in arrays}, options.label)
    return SourceSplits(
        {
            split: partial(_open_arrays, path, arrays, members, options.label)
            for split, members in by_split.items()
        }
    )


def _open_arrays(
    path: str, arrays: Arrays, members: Mapping[str, str], label: str | None
) -> Source:
    """Open some members of an NPZ file, under the names that map to them."""
    given = {name: arrays[member] for name, member in members.items()}
    if not given:
        raise source_error(path, "there is no array with rows in this file")
    check_label(label, given, path)
    label = label or find_label_name(given, ("y",))
    columns, names = _separate_names(given, label, path)
    members = {name: members[name] for name in columns}
    rows = _NpzItems(path, members, columns)
    if not len(rows):
        raise source_error(path, "the arrays have no rows")
    try:
        features = Features(_kinds(columns, names, label))
    except FeatureError as error:
        raise as_source_error(error, path) from None
    return Source(
        "NPZ", path, rows, length=len(rows), features=features, label=label, columns=columns
    )


def _split_members(arrays: Arrays) -> dict[str, dict[str, str]]:
    """Return the member of each array, by split; empty if the names do not contain splits."""
    splits: dict[str, dict[str, str]] = {}
    for member in arrays:
        match = _SPLIT.fullmatch(member)
        if match is None:
            return {}
        splits.setdefault(match[2], {})[match[1]] = member
    return splits


def _separate_names(
    arrays: Arrays, label: str | None, path: str
) -> tuple[Arrays, dict[str, tuple[str, ...]]]:
    """Return the arrays with a row per example, and the class names of some of them."""
    if label in arrays:
        rows = len(arrays[label])
    else:
        # Most arrays have a row per example; the others may be class names.
        lengths = Counter(len(array) for array in arrays.values() if not _is_strings(array))
        rows = (lengths or Counter(map(len, arrays.values()))).most_common(1)[0][0]
    columns = {name: array for name, array in arrays.items() if len(array) == rows}
    names: dict[str, tuple[str, ...]] = {}
    for name, array in arrays.items():
        if name in columns:
            continue
        named = _named_by(name, array, columns, label)
        if named is None or named in names:
            listed = ", ".join(f"{each!r} {len(array)}" for each, array in arrays.items())
            raise source_error(
                path,
                f"arrays have different numbers of rows ({listed}), and {name!r} does not contain "
                "the class names of another array",
            )
        names[named] = tuple(array.tolist())
    return columns, names


def _is_strings(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype.kind == "U"


def _named_by(name: str, array: NDArray[Any], columns: Arrays, label: str | None) -> str | None:
    """Return the column whose classes these strings name: NAME of NAME_names, or the label."""
    stem = name.removesuffix("_names")
    column = columns.get(stem if stem in columns else label or "")
    if not _is_strings(array) or column is None or column.dtype.kind not in "iu":
        return None
    is_named = column.ndim == 1 and column.size and -1 <= column.min() <= column.max() < len(array)
    return (stem if stem in columns else label) if is_named else None


def _kinds(
    columns: Arrays, names: Mapping[str, tuple[str, ...]], label: str | None
) -> dict[str, Any]:
    """Return the features of the arrays, from their first rows."""
    first = {name: np.asarray(column[0]) for name, column in columns.items()}
    kinds: dict[str, Any] = dict(Features.infer([first]))
    for name, classes in names.items():
        kinds[name] = ClassLabel(names=classes)
    if label is not None and _is_strings(columns[label]):
        kinds[label] = ClassLabel(names=tuple(np.unique(columns[label]).tolist()))
    return kinds
