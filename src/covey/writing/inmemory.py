"""Columns that are in memory already: their order is known at once, and nothing is put aside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.features import Features
from covey.features.blocks import Rows
from covey.features.inference import leaves
from covey.records.block import FRAME_BYTES
from covey.shuffle.ordering import (
    ClassSizes,
    Key,
    Ordering,
    Part,
    cut_by_bytes,
    find_duplicate,
    hash_positions,
    make_rows,
    raise_duplicate,
    sort_words,
)


class ColumnOrder:
    """The rows of columns in the order of their records.

    Args:
        rows: The columns.
        labels: The class of each row, or None.
        keys: The key of each row; their numbers by default.
        ordering: What to sort by.
        seed: Of the hashes.
    """

    def __init__(
        self,
        rows: Rows,
        labels: NDArray[np.int64] | None,
        keys: Sequence[Key] | None,
        ordering: Ordering,
        seed: int,
    ) -> None:
        self.records = len(rows)
        self._rows = rows
        self._labels = labels
        self._lengths = rows.measure()
        self.bytes = int(self._lengths.sum()) + FRAME_BYTES * self.records
        self._order = self._sort(keys, ordering, seed)

    def _sort(self, keys: Sequence[Key] | None, ordering: Ordering, seed: int) -> NDArray[np.intp]:
        positions = np.arange(self.records, dtype=np.uint64)
        if keys is None and not ordering.by_class:
            if ordering.by == "position":
                return positions.astype(np.intp)
            order = sort_words(hash_positions(positions, seed)[0])
            if order is not None:
                return order
        table = make_rows(positions, self._lengths, keys, seed)
        twice = None if keys is None else find_duplicate(table[Ordering().sort(table)])
        if keys is not None and twice is not None:
            raise_duplicate(twice, keys[twice[0]])
        if ordering.by_class and self._labels is not None:
            table["label"] = self._labels
        return ordering.sort(table)

    def classes(self) -> ClassSizes:
        """The classes in their order, if records are sorted by class."""
        assert self._labels is not None
        return ClassSizes.of(self._labels, self._lengths)

    def tasks(self) -> Iterator[Callable[[], Part]]:
        """All records in order."""
        for begin, end in cut_by_bytes(self._lengths[self._order]):
            yield partial(self._encode, self._order[begin:end])

    def _encode(self, rows: NDArray[np.intp]) -> Part:
        return self._rows.encode(rows), None if self._labels is None else self._labels[rows]


def fill_columns(features: Features, columns: dict[str, Any], rows: int) -> None:
    """Give columns the defaults of what they lack, whole or in some rows."""
    for name in features.optional:
        filler = features[name].filler()
        column = columns.get(name)
        if column is None:
            columns[name] = [filler] * rows
        elif not isinstance(column, np.ndarray) or column.dtype.kind == "O":
            columns[name] = [filler if value is None else value for value in column]


def check_columns(features: Features, columns: Mapping[str, Any]) -> Rows:
    """Check columns, and say which row is to blame if they do not fit."""
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
                    raise FeatureError(f"example {row}: {error}") from None
        raise


def flatten(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Nested columns by their path, ``a/b``."""
    return {"/".join(path): column for path, column in leaves(columns)}


def column_keys(columns: Mapping[str, Any], name: str) -> list[Key]:
    """The column that is the key of each row."""
    if name not in columns:
        raise FeatureError(
            f"key is {name!r}, but there is no such column; there are {', '.join(columns)}"
        )
    column = columns[name]
    return list(column.tolist() if isinstance(column, np.ndarray) else column)
