"""Encoded chunks into a spool, in the features that fit all of them.

Columns that are in memory already: their order is known at once, and nothing is spilled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._threads import SerialExecutor
from covey.errors import FeatureError
from covey.labels import (
    Classes,
    decode_strings,
    extend,
    find_label,
    is_string,
    make_label,
    read_strings,
)
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import Rows
from covey.schema.infer import leaves
from covey.schema.survey import integer_range, join_ranges
from covey.shuffle.external_sort import Spool
from covey.shuffle.keys import (
    ClassSizes,
    Key,
    Part,
    RecordOrder,
    cut_by_bytes,
    find_duplicate,
    hash_positions,
    make_rows,
    raise_duplicate,
    sort_words,
)
from covey.tfrecord import Block
from covey.tfrecord.block import FRAME_BYTES
from covey.writing.encode import Chunk, Encoding


class Spooling:
    """Takes in chunks, and gives all records in the end, in the features that fit them all.

    While features are inferred, a later chunk may need others than an earlier one did. Each kind of
    record has a spool of its own; what is not as it should be at the end is decoded and encoded
    again.

    Args:
        directory: Where spools put records aside.
        memory_limit: How much they may hold.
        ordering: What records are sorted by.
        seed: Of the hashes.
        label: The feature that tells the class, if one was asked for.
        may_number: Whether a label that is a string is to become a ClassLabel.
        known_texts: The strings that have numbers already.
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory_limit: int,
        ordering: RecordOrder,
        seed: int,
        label: str | None,
        may_number: bool,
        known_texts: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._memory_limit = memory_limit
        self._ordering = ordering
        self._seed = seed
        self._label = label
        self._may_number = may_number
        self._known_texts = known_texts
        self._spools: list[tuple[Features, Spool]] = []
        self._has_keys: bool | None = None
        self._texts: set[str] = set()
        self.left_out: list[SkippedRecord] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was taken in."""
        return not self._spools

    def run(self, encoding: Encoding, progress: Callable[[int, int], None]) -> None:
        """Take in all that there is."""
        # Records are put into their spool by another thread, while this one encodes the next.
        with SerialExecutor() as behind:

            def integers(name: str) -> tuple[int, int]:
                behind.wait()
                return self._integers(name)

            for chunk in encoding.chunks(integers):
                self.left_out.extend(chunk.left_out)
                if len(chunk.block):
                    behind.do(self._add, chunk)
                    progress(len(chunk.block), chunk.block.data.nbytes)
            behind.wait()

    def _add(self, chunk: Chunk) -> None:
        block, features = chunk.block, chunk.features
        if self._has_keys is None:
            self._has_keys = chunk.keys is not None
        if self._has_keys != (chunk.keys is not None):
            first = int(chunk.positions[0])
            raise FeatureError(f"example {first}: some examples have keys and some have none")
        rows = make_rows(chunk.positions, block.lengths, chunk.keys, self._seed)
        label = self._label
        if label is not None and label in features and is_string(features[label]):
            self._texts.update(read_strings(features, label, block, chunk.positions.tolist()))
        self._spool_for(features).add(block, rows, chunk.keys)

    def _spool_for(self, features: Features) -> Spool:
        for known, spool in self._spools:
            if known == features:
                return spool
        for _, spool in self._spools:
            spool.spill()  # so that all spools together hold no more than one may
        # Its order does not matter if it is not the last; and if it is, it is the right one.
        ordering = RecordOrder(by=self._ordering.by) if self._ordering.by_class else self._ordering
        spool = Spool(
            self._directory,
            memory_limit=self._memory_limit,
            ordering=ordering,
            unique=bool(self._has_keys),
            prefix=f"{len(self._spools)}-",
        )
        self._spools.append((features, spool))
        return spool

    def _integers(self, name: str) -> tuple[int, int]:
        """The smallest and the largest integer of a feature in all records so far."""
        return join_ranges(
            (0, 0),
            *(
                integer_range(features, block, name)
                for features, spool in self._spools
                for block, _ in spool.look()
            ),
        )

    def finish(self, features: Features) -> tuple[Spool, Features, Classes]:
        """All records, in these features; a label that is a string becomes a ClassLabel."""
        label = find_label(features, self._label, needed=self._ordering.by_class)
        if label is not None and self._may_number and self._texts:
            names = extend(self._known_texts, self._texts)
            features = features.replace({label: make_label(label, names)})
        classes = Classes(features, label, extend(self._known_texts, self._texts))
        by_class = self._ordering.by_class
        if len(self._spools) == 1 and not by_class:
            known, spool = self._spools[0]
            if known.is_stored_like(features):
                return spool, features, classes
        return self._rewrite(features, classes), features, classes

    def _rewrite(self, features: Features, classes: Classes) -> Spool:
        """Bring all records into one spool."""
        target = Spool(
            self._directory,
            memory_limit=self._memory_limit,
            ordering=self._ordering,
            unique=bool(self._has_keys),
            prefix="all-",
        )
        for known, spool in self._spools:
            target.adopt_keys(spool)
            same = known.is_stored_like(features)
            for block, rows in spool.drain():
                rows = rows.copy()
                if not same:
                    block = _translate(block, known, features, classes.label)
                    rows["length"] = block.lengths
                if self._ordering.by_class:
                    rows["label"] = classes.of(block)
                target.add(block, rows)
        return target


def _translate(block: Block, known: Features, features: Features, label: str | None) -> Block:
    """Records of some features as records of others that fit them too."""
    columns = flatten(known.decode_batch(block))
    if label in columns and not is_string(features[label]) and is_string(known[label]):
        columns[label] = decode_strings(columns[label])
    fill_columns(features, columns, len(block))
    return features.encode_batch(columns)


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
        ordering: RecordOrder,
        seed: int,
    ) -> None:
        self.records = len(rows)
        self._rows = rows
        self._labels = labels
        self._lengths = rows.measure()
        self.bytes = int(self._lengths.sum()) + FRAME_BYTES * self.records
        self._order = self._sort(keys, ordering, seed)

    def _sort(
        self, keys: Sequence[Key] | None, ordering: RecordOrder, seed: int
    ) -> NDArray[np.intp]:
        positions = np.arange(self.records, dtype=np.uint64)
        if keys is None and not ordering.by_class:
            if ordering.by == "position":
                return positions.astype(np.intp)
            order = sort_words(hash_positions(positions, seed)[0])
            if order is not None:
                return order
        table = make_rows(positions, self._lengths, keys, seed)
        twice = None if keys is None else find_duplicate(table[RecordOrder().sort(table)])
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
