"""NPZ files of arrays with one row per example."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.schema import ClassLabel, Features
from covey.sources.registry import register_files
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    SourceOptions,
    SourceSplits,
    choose_label,
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
        row = {name: column[position] for name, column in self._columns.items()}
        strings = (np.str_, np.bytes_)
        return position, {k: v.item() if isinstance(v, strings) else v for k, v in row.items()}


@register_files("NPZ", "an NPZ file of arrays with a row per example", (".npz",))
def open_npz(path: str, options: SourceOptions, files: list[str]) -> Source | SourceSplits:
    """Open arrays, whose rows are keyed by their position. The arrays are held in memory.

    Strings of another length are the classes of the array that they name, or of the label. Scalars
    are ignored. Arrays with names such as ``x_train`` and ``x_test`` are those of several splits.
    """
    if len(files) != 1:
        raise source_error(path, f"found {len(files)} files; must have one file .npz")
    arrays = {member: array for member, array in _load(files[0]).items() if array.ndim}
    if not arrays:
        raise source_error(files[0], "there is no array with rows in this file")
    splits: dict[str, dict[str, str]] = {}
    for match in map(_SPLIT.fullmatch, arrays):
        if match is None:  # the names do not contain splits
            return _open_arrays(files[0], arrays, dict(zip(arrays, arrays, strict=True)), options)
        splits.setdefault(match[2], {})[match[1]] = match[0]
    open_split = partial(_open_arrays, files[0], arrays)
    return SourceSplits({name: partial(open_split, splits[name], options) for name in splits})


def _open_arrays(
    path: str, arrays: Arrays, members: Mapping[str, str], options: SourceOptions
) -> Source:
    """Open some members of an NPZ file, under the names that map to them."""
    given = {name: arrays[member] for name, member in members.items()}
    label = choose_label(options.label, given, path, ("y",))
    columns, names = _separate_names(given, label, path)
    members = {name: members[name] for name in columns}
    rows = _NpzItems(path, members, columns)
    if not len(rows):
        raise source_error(path, "the arrays have no rows")
    features = Features(_kinds(columns, names, label))
    size = len(rows)
    return Source("NPZ", path, rows, length=size, features=features, label=label, columns=columns)


def _separate_names(
    arrays: Arrays, label: str | None, path: str
) -> tuple[Arrays, dict[str, tuple[str, ...]]]:
    """Return the arrays with a row per example, and the class names of some of them."""
    # Most arrays have a row per example; strings may be class names.
    lengths = Counter(len(array) for array in arrays.values() if not _is_strings(array))
    rows = (lengths or Counter(map(len, arrays.values()))).most_common(1)[0][0]
    rows = len(arrays[label]) if label in arrays else rows
    columns = {name: array for name, array in arrays.items() if len(array) == rows}
    names: dict[str, tuple[str, ...]] = {}
    for name in [each for each in arrays if each not in columns]:
        stem = name.removesuffix("_names")
        named = stem if stem in columns else label or ""
        if named in names or not _names_classes(arrays[name], columns.get(named)):
            listed = ", ".join(f"{each!r} {len(array)}" for each, array in arrays.items())
            raise source_error(
                path,
                f"arrays have different numbers of rows ({listed}), and {name!r} does not contain "
                "the class names of another array",
            )
        names[named] = tuple(arrays[name].tolist())
    return columns, names


def _is_strings(array: NDArray[Any]) -> bool:
    return array.ndim == 1 and array.dtype.kind == "U"


def _names_classes(array: NDArray[Any], column: NDArray[Any] | None) -> bool:
    """Return whether an array has the names of the classes of a column."""
    return (
        _is_strings(array)
        and column is not None
        and column.dtype.kind in "iu"
        and column.ndim == 1
        and -1 <= column.min(initial=0) <= column.max(initial=0) < len(array)
    )


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
