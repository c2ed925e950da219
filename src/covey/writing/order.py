"""Sort records: encoded chunks through a spool, or the rows of columns in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._threads import SerialExecutor
from covey.errors import FeatureError
from covey.labels import (
    Classes,
    ClassIds,
    can_be_label,
    decode_strings,
    find_label,
    is_string,
    make_label,
)
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import Rows, flat_items
from covey.schema.infer import integer_range, join_ranges
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
from covey.writing.encode import Chunk
from covey.writing.inputs import name_classes
from covey.writing.options import WriteOptions, WriteSchema


@dataclass(frozen=True, slots=True)
class _Group:
    """Records that were encoded with the same features."""

    features: Features
    label: str | None
    """Name of the label feature."""
    only_label: Features | None
    """The label feature alone, if the rows have the class ids; None if they do not."""
    spool: Spool

    @property
    def has_ids(self) -> bool:
        """Whether the rows have the class ids, or the records are unlabelled."""
        return self.label is None or self.only_label is not None


class RecordSorter:
    """Sink of encoded chunks that sorts their records.

    While features are inferred, later chunks may need other features than earlier ones. The records
    of each set of features have a spool of their own. At the end, records whose features are not
    the final ones are decoded and encoded again.

    Records are added to their spool by another thread, while the caller encodes the next ones.

    Class ids are read from each chunk if the order depends on them, or if they are strings, which
    must all be known at the end. Otherwise they are read when the sorted records are written: in
    larger blocks, on several threads.

    Args:
        directory: Directory of the temporary files.
        options: Options of the write.
        schema: Features and label.
        class_names: Class names of integer features, by feature, as the source has them.
        progress: Called with the number of records and bytes of each chunk.
    """

    def __init__(
        self,
        directory: Path,
        options: WriteOptions,
        schema: WriteSchema,
        *,
        class_names: Mapping[str, tuple[str, ...]] | None = None,
        progress: Callable[[int, int], None] = lambda records, size: None,
    ) -> None:
        self._directory = directory
        self._options = options
        self._schema = schema
        self._class_names = class_names
        self._progress = progress
        self._groups: list[_Group] = []
        self._class_ids = ClassIds(schema.known_classes)
        self._has_keys: bool | None = None
        self._executor = SerialExecutor()
        self.skipped: list[SkippedRecord] = []

    def __enter__(self) -> RecordSorter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.close()

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk."""
        self.skipped.extend(chunk.skipped)
        if len(chunk.block):
            self._executor.submit(self._add, chunk)
            self._progress(len(chunk.block), chunk.block.data.nbytes)

    def integer_range(self, name: str) -> tuple[int, int]:
        """Return the smallest and the largest integer of a feature in all records, and 0."""
        self._executor.wait()
        ranges = (
            integer_range(group.features, block, name)
            for group in self._groups
            for block, _ in group.spool.blocks()
        )
        return join_ranges((0, 0), *ranges)

    def _add(self, chunk: Chunk) -> None:
        block = chunk.block
        has_keys = chunk.keys is not None
        if self._has_keys is None:
            self._has_keys = has_keys
        if self._has_keys != has_keys:
            raise FeatureError(
                f"the example has {'a' if has_keys else 'no'} key, unlike those before it",
                example=int(chunk.positions[0]),
            )
        rows = make_rows(chunk.positions, block.lengths, chunk.keys, self._options.seed)
        group = self._find_group(chunk.features)
        if group.only_label is not None:
            rows["label"] = self._class_ids.read(group.only_label, block, chunk.positions)
        group.spool.add(block, rows, chunk.keys)

    def _find_group(self, features: Features) -> _Group:
        for group in self._groups:
            if group.features is features or group.features == features:
                return group
        for group in self._groups:
            group.spool.spill()  # all spools together hold at most the memory limit
        label = self._schema.label
        if label is None:
            label = find_label(name_classes(features, self._class_names), None)
        elif label not in features or not can_be_label(features[label]):
            label = None
        order = self._options.order
        if order.by_class and (label is None or is_string(features[label])):
            order = RecordOrder(by=order.by)  # the class ids are not final
        spool = self._new_spool(order, f"{len(self._groups)}-")
        only_label = None
        if label is not None and (self._options.order.by_class or is_string(features[label])):
            only_label = features.select([label])
        self._groups.append(_Group(features, label, only_label, spool))
        return self._groups[-1]

    def _new_spool(self, order: RecordOrder, prefix: str) -> Spool:
        return Spool(
            self._directory,
            memory_limit=self._options.memory_limit,
            order=order,
            unique=bool(self._has_keys),
            prefix=prefix,
        )

    def is_empty(self) -> bool:
        """Return whether there are no records."""
        self._executor.wait()
        return not self._groups

    def finish(self, features: Features) -> tuple[Spool, Features, Classes]:
        """Return all records, their final features and their classes.

        Args:
            features: Features that fit all examples. A string label becomes a ClassLabel if the
                schema requests it.
        """
        self._executor.wait()
        features = name_classes(features, self._class_names)
        order = self._options.order
        label = find_label(features, self._schema.label, needed=order.by_class)
        strings = self._class_ids.strings()
        if label is not None and self._schema.strings_to_classes and self._class_ids.has_strings:
            features = features.replace({label: make_label(label, strings)})
        classes = Classes(features, label, strings)
        final_ids = self._class_ids.final_ids()
        has_ids = order.by_class or all(group.has_ids for group in self._groups)
        group = self._groups[0]
        is_final = (
            len(self._groups) == 1
            and group.label == label
            and group.spool.order == order
            and group.features.is_stored_like(features)
        )
        if is_final:
            spool = group.spool
            has_strings = label is not None and is_string(group.features[label])
            spool.final_ids = final_ids if has_strings else None
        else:
            spool = self._merge_groups(features, classes, final_ids, has_ids)
        spool.is_labelled = label is not None and has_ids
        return spool, features, classes

    def _merge_groups(
        self, features: Features, classes: Classes, final_ids: NDArray[np.int64], has_ids: bool
    ) -> Spool:
        """Bring all records into one spool, with the final features and class ids.

        Args:
            features: The final features.
            classes: The final classes.
            final_ids: Final class ids, by provisional id.
            has_ids: Whether the rows of the spool need class ids.
        """
        target = self._new_spool(self._options.order, "all-")
        label = classes.label
        for group in self._groups:
            target.adopt_keys(group.spool)
            is_same = group.features.is_stored_like(features)
            for block, rows in group.spool.drain():
                rows = rows.copy()
                if not is_same:
                    block = _translate(block, group.features, features, label)
                    rows["length"] = block.lengths
                if not has_ids or label is None:
                    rows["label"] = 0
                elif group.label != label:
                    rows["label"] = classes.of(block)
                elif is_string(group.features[label]):
                    rows["label"] = final_ids[rows["label"]]
                target.add(block, rows)
        return target


def _translate(block: Block, known: Features, features: Features, label: str | None) -> Block:
    """Return records of some features as records of other features that fit them."""
    columns = flatten(known.decode_batch(block))
    if label in columns and not is_string(features[label]) and is_string(known[label]):
        columns[label] = decode_strings(columns[label])
    fill_columns(features, columns, len(block))
    return features.encode_batch(columns)


class ColumnOrder:
    """Rows of columns, sorted.

    Args:
        rows: The rows.
        labels: Class id of each row; None if they are unlabelled.
        keys: Key of each row; None to use the positions of the rows.
        order: Order of the records.
        seed: Seed of the hashes.
    """

    def __init__(
        self,
        rows: Rows,
        labels: NDArray[np.int64] | None,
        keys: Sequence[Key] | None,
        order: RecordOrder,
        seed: int,
    ) -> None:
        self.records = len(rows)
        self._rows = rows
        self._labels = labels
        self._lengths = rows.measure()
        self.bytes = int(self._lengths.sum()) + FRAME_BYTES * self.records
        self._permutation = self._sort(keys, order, seed)

    def _sort(self, keys: Sequence[Key] | None, order: RecordOrder, seed: int) -> NDArray[np.intp]:
        positions = np.arange(self.records, dtype=np.uint64)
        if keys is None and not order.by_class:
            if order.by == "position":
                return positions.astype(np.intp)
            permutation = sort_words(hash_positions(positions, seed)[0])
            if permutation is not None:
                return permutation
        table = make_rows(positions, self._lengths, keys, seed)
        duplicate = None if keys is None else find_duplicate(table[RecordOrder().sort(table)])
        if keys is not None and duplicate is not None:
            raise_duplicate(duplicate, keys[duplicate[0]])
        if order.by_class and self._labels is not None:
            table["label"] = self._labels
        return order.sort(table)

    def classes(self) -> ClassSizes:
        """Return the sizes of the classes, if records are sorted by class."""
        assert self._labels is not None
        return ClassSizes.of(self._labels, self._lengths)

    def tasks(self) -> Iterator[Callable[[], Part]]:
        """Yield functions that return the records in order, a part each."""
        for begin, end in cut_by_bytes(self._lengths[self._permutation]):
            yield partial(self._encode, self._permutation[begin:end])

    def _encode(self, rows: NDArray[np.intp]) -> Part:
        return self._rows.encode(rows), None if self._labels is None else self._labels[rows]


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
        raise FeatureError(
            option="key", found=name, allowed=f"one of the columns {', '.join(columns)}"
        )
    column = columns[name]
    return list(column.tolist() if isinstance(column, np.ndarray) else column)
