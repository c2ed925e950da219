"""Sort the rows of columns, which are encoded in their final order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._core import crc32c
from covey._text import list_names
from covey.errors import DatasetError, FeatureError
from covey.labels import (
    Classes,
    can_be_label,
    find_label,
    find_label_name,
    guess_label,
    is_string,
    join_strings,
    number_column,
)
from covey.schema import ClassLabel, Features
from covey.schema.codec import Rounding, Rows, count_rows, flat_items
from covey.schema.infer import infer_column_kinds
from covey.schema.lattice import count_rounded
from covey.shuffle.keys import Key
from covey.writing.hold_out import (
    HoldOut,
    check_choice,
    choose_classes,
    choose_keys,
    group_keys,
    split_numbers,
)
from covey.writing.inputs import Input, located, name_classes
from covey.writing.options import WriteOptions, WriteSchema


def choose_label(features: Features, options: WriteOptions, schema: WriteSchema) -> str | None:
    """Return the label feature of a write; None if it is unlabelled.

    Args:
        features: Features of all examples.
        options: Options of the write.
        schema: The label, or the request to infer it.

    Raises:
        DatasetError: If the requested feature cannot be a label, none is found, or unlabelled
            examples are sorted by class.
    """
    if schema.infers_label:
        label = guess_label(features)
        if label is None:
            raise no_label_error(features)
        return label
    if schema.label is not None:
        return find_label(features, schema.label)
    if options.sort_by_class:
        raise DatasetError(
            "there is no label feature",
            option="sort_by_class",
            found=True,
            remedy="pass label=",
        )
    return None


def no_label_error(features: Features) -> DatasetError:
    """Return the error of examples for which :func:`covey.labels.guess_label` finds no label."""
    named = find_label_name(features)
    unfit = ""
    if named is not None and not can_be_label(features[named]):
        unfit = f"feature {named!r} is {features[named].summary}"
    candidates = [name for name, feature in features.items() if can_be_label(feature)]
    if not candidates:
        reason = "not given, and no feature is a ClassLabel, an integer or a string"
        return DatasetError(
            reason + (unfit and f"; {unfit}"),
            option="label",
            remedy="pass label=None if the data is unlabelled",
        )
    return DatasetError(
        f"not given{unfit and f'; {unfit}, not a class'}; candidates: {list_names(candidates)}",
        option="label",
        remedy="pass label= with one of these names, or label=None if the data is unlabelled",
    )


@dataclass(frozen=True)
class PreparedTable:
    """Columns of one input, as they are stored."""

    columns: Mapping[str, Any]
    labels: NDArray[np.int64] | None
    """Class id of each row; None if they are unlabelled."""
    keys: Sequence[Key] | None
    """Key of each row; None to use the positions of the rows."""
    chosen: Sequence[NDArray[np.intp]]
    """Positions of the rows of each split that the input is divided into, ascending."""
    rows: Rows | None = None
    """The rows, checked."""
    path: str | None = None
    """Path of the source, for errors."""

    def __len__(self) -> int:
        return sum(map(len, self.chosen))

    def slice(self, begin: int, end: int) -> PreparedTable:
        """Return some rows."""
        return PreparedTable(
            {name: column[begin:end] for name, column in self.columns.items()},
            None if self.labels is None else self.labels[begin:end],
            None if self.keys is None else self.keys[begin:end],
            [each[(each >= begin) & (each < end)] - begin for each in self.chosen],
            path=self.path,
        )

    def checksum_of_ends(self) -> int | None:
        """Return the CRC of the first and the last row; None if there are none."""
        if not self.rows:
            return None
        return crc32c(self.rows.encode(np.array([0, len(self.rows) - 1])).data)


def prepare_columns(
    sources: Sequence[Input], options: WriteOptions, schema: WriteSchema
) -> tuple[Classes, list[PreparedTable]]:
    """Return the features and classes of the columns of all inputs, and the columns of each.

    Args:
        sources: Inputs of the splits of the write. Several inputs have declared features.
        options: Options of the write.
        schema: Features and label.
    """
    tables = [flatten(source.columns or {}) for source in sources]
    features = schema.features
    if features is None:
        kinds = infer_column_kinds(sources[0].columns or {}, options.defaults, options.types)
        features = Features(kinds)
        features = name_classes(features, sources[0].class_names)
    label = choose_label(features, options, schema)
    known = schema.known_classes
    for source, columns in zip(sources, tables, strict=True):
        with located(source):
            fill_columns(features, columns, count_rows(columns))
            if label is not None and label in columns and is_string(features[label]):
                columns[label] = _names_of_ids(source.features, label, columns[label])
    if label is not None and (schema.strings_to_classes or is_string(features[label])):
        # All splits have the classes of all.
        known = join_strings(known, [columns.get(label, ()) for columns in tables], label)
    numbered = []
    for source, columns in zip(sources, tables, strict=True):
        labels: NDArray[np.int64] | None = None
        strings: tuple[str, ...] = ()
        own = features
        if label is not None and label in columns:
            may_grow = schema.strings_to_classes
            with located(source):
                own, columns[label], labels, strings = number_column(
                    features, label, columns[label], may_grow=may_grow, known=known
                )
        numbered.append((own, labels, strings))
    features, _, strings = numbered[0]
    classes = Classes(features, label, strings)
    found = []
    for source, columns, (_, labels, _) in zip(sources, tables, numbered, strict=True):
        with located(source):
            found.append(_prepare(source, columns, labels, classes, options))
    return classes, found


def _prepare(
    source: Input,
    columns: Mapping[str, Any],
    labels: NDArray[np.int64] | None,
    classes: Classes,
    options: WriteOptions,
) -> PreparedTable:
    checked = check_columns(classes.features, columns)
    rows = len(checked)
    keys = None if options.key is None else column_keys(columns, options.key)
    chosen = [np.arange(rows)]
    if options.hold_out is not None and rows:
        held_out = _held_out_rows(options.hold_out, keys, columns, classes, labels)
        check_choice(options.hold_out, int(held_out.sum()), rows, "examples")
        chosen = [np.flatnonzero(~held_out), np.flatnonzero(held_out)]
    elif options.split_by is not None:
        column = columns.get(options.split_by)
        numbers = split_numbers(options.splits, classes.features, options.split_by, column)
        chosen = [np.flatnonzero(numbers == split) for split in range(len(options.splits))]
    return PreparedTable(columns, labels, keys, chosen, checked, source.path)


def round_lists(features: Features, columns: Mapping[str, Any]) -> Rounding:
    """Return how many numbers in lists of Python floats are rounded to float32."""
    found = {
        name: count_rounded(column)
        for name, column in columns.items()
        if getattr(features.get(name), "dtype", "") == "float32" and isinstance(column, list)
    }
    return {name: counts for name, counts in found.items() if counts[1]}


def _held_out_rows(
    hold_out: HoldOut,
    keys: Sequence[Key] | None,
    columns: Mapping[str, Any],
    classes: Classes,
    labels: NDArray[np.int64] | None,
) -> NDArray[np.bool_]:
    rows = count_rows(columns)
    if hold_out.fraction is None:
        ids = np.zeros(rows, np.int64) if labels is None else labels
        return np.isin(ids, choose_classes(hold_out, classes, np.unique(ids)))
    if hold_out.by is not None:
        keys = group_keys(classes.features, hold_out.by, columns.get(hold_out.by))
    return choose_keys(hold_out, range(rows) if keys is None else keys)


def _names_of_ids(features: Features | None, label: str, column: Any) -> Any:
    """Return a column of class names for one of class ids, if the source has class names."""
    feature = None if features is None else features.get(label)
    names = feature.names if isinstance(feature, ClassLabel) else None
    if names is None:
        return column
    for row, value in enumerate(column):
        if not isinstance(value, str) and not 0 <= value < len(names):
            raise FeatureError(f"class {value} has no name", example=row, feature=label)
    return [value if isinstance(value, str) else names[value] for value in column]


def fill_columns(features: Features, columns: dict[str, Any], rows: int) -> None:
    """Insert the defaults of features that are missing, or None in some rows."""
    for name in features.optional:
        filler = features[name].filler()
        column = columns.get(name)
        if column is None:
            columns[name] = [filler] * rows
        elif not isinstance(column, np.ndarray) or column.dtype.kind == "O":
            columns[name] = [filler if value is None else value for value in column]


def check_columns(features: Features, columns: Mapping[str, Any]) -> Rows:
    """Return the rows of columns.

    Raises:
        FeatureError: If a row does not fit the features; ``example`` is its position.
    """
    try:
        return features.check_columns(columns)
    except FeatureError:
        for name, column in columns.items():
            only = features.select([name]) if name in features else None
            for row, value in enumerate(column if only is not None else ()):
                try:
                    assert only is not None
                    only.encode({name: value})
                except FeatureError as error:
                    error.example = row
                    raise
        raise


def flatten(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested columns by path, ``a/b``."""
    return {"/".join(path): column for path, column in flat_items(columns)}


def column_keys(columns: Mapping[str, Any], name: str) -> list[Key]:
    """Return the column that has the key of each row."""
    if name not in columns:
        raise FeatureError(option="key", found=name, choices=columns)
    column = columns[name]
    return list(column.tolist() if isinstance(column, np.ndarray) else column)
