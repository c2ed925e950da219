"""Sort encoded chunks through spools, one for each split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._threads import SerialExecutor
from covey.errors import FeatureError
from covey.labels import (
    Classes,
    ClassIds,
    can_be_label,
    decode_strings,
    guess_label,
    is_string,
    make_label,
)
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import Rounding, add_rounding, leaf
from covey.schema.lattice import is_decimal, restore_decimals
from covey.shuffle.keys import Key, RecordOrder, make_rows, take_rows
from covey.shuffle.runs import HASH_BITS, Sorted, Spool, limit_memory
from covey.tfrecord import Block
from covey.writing.encode import Chunk
from covey.writing.hold_out import choose_keys, group_keys, split_numbers
from covey.writing.inputs import name_classes
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.tables import choose_label, fill_columns, flatten, no_label_error

_MAX_UNLABELLED = 10_000
"""Examples without a label after which a write that infers the label fails."""


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """What records of one split have in common."""

    features: Features
    """Features that they were encoded with."""
    split: int
    """Position of the split in the splits of the write."""
    label: str | None
    """Name of the label feature, whose class ids the rows have; provisional ids of strings."""
    order: RecordOrder
    """Order of their runs."""

    @property
    def has_provisional_ids(self) -> bool:
        """Whether the label is a string, so that the class ids of the rows are not final."""
        return self.label is not None and is_string(self.features[self.label])

    def is_final(self, classes: Classes, order: RecordOrder) -> bool:
        """Return whether the records and their order need no change, except for class ids."""
        return (
            self.label == classes.label
            and self.order == order
            and self.features.is_stored_like(classes.features)
        )

    def convert(
        self,
        block: Block,
        rows: NDArray[Any],
        inferred: Features,
        classes: Classes,
        final_ids: NDArray[np.int64] | None,
    ) -> tuple[Block, NDArray[Any]]:
        """Return records and rows with the final features and class ids.

        Args:
            block: Records of the group.
            rows: Their rows.
            inferred: The features before a string label became a ClassLabel, with its default.
            classes: The final features and classes.
            final_ids: Final class ids by those of the rows; None if these are final.
        """
        rows, label = rows.copy(), classes.label
        if not self.features.is_stored_like(classes.features):
            block = _translate(block, self.features, inferred, classes.features, label)
            rows["length"] = block.lengths
        if label is None:
            rows["label"] = 0
        elif self.label != label:
            rows["label"] = classes.of(block)
        elif final_ids is not None:
            rows["label"] = final_ids[rows["label"]]
        return block, rows


@dataclass(frozen=True, slots=True)
class _Group:
    """Records of one split that were encoded with the same features."""

    kind: RecordGroup
    only_label: Features | None
    """The label feature alone."""
    spool: Spool
    labels: set[int] = field(default_factory=set)
    """Class ids of its rows, if classes are held out."""


def final_classes(
    features: Features,
    options: WriteOptions,
    schema: WriteSchema,
    class_ids: ClassIds,
    encoded: Iterable[Features],
) -> Classes:
    """Return the final features, label and classes of a write.

    Args:
        features: Features that fit all examples. A string label becomes a ClassLabel if the schema
            requests it.
        options: Options of the write.
        schema: Features and label.
        class_ids: The strings of the label.
        encoded: All features that records were encoded with.
    """
    label = choose_label(features, options, schema)
    if (
        label is not None
        and is_string(features[label])
        and label in features.optional
        and any(label not in each for each in encoded)
    ):  # the default is the class of their examples
        default = decode_strings([features[label].filler()], label=label)
        class_ids.ids_of(default)
    strings = class_ids.strings()
    if label is not None and schema.strings_to_classes and class_ids.has_strings:
        features = features.replace({label: make_label(label, strings)})
    return Classes(features, label, strings)


class RecordSorter:
    """Sink of encoded chunks that sorts their records.

    While features are inferred, later chunks may need other features than earlier ones. The records
    of each set of features have a spool of their own. Records whose features are not the final ones
    are rewritten later.

    Records are added to their spool by another thread, while the caller encodes the next ones. This
    thread also reads their class ids.

    Args:
        directory: Directory of the temporary files.
        options: Options of the write.
        schema: Features and label.
        class_names: Class names of integer features, by feature, as the source has them.
        bits: Bits of the hash that number a bucket.
        progress: Called with the number of records and bytes of each chunk.
    """

    def __init__(
        self,
        directory: Path,
        options: WriteOptions,
        schema: WriteSchema,
        *,
        class_names: Mapping[str, tuple[str, ...]] | None = None,
        bits: int = HASH_BITS,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._directory = directory
        self._options = options
        self._schema = schema
        self._class_names = class_names
        self._bits = bits
        self._collects_labels = options.holds_out_classes
        self._progress = progress
        self._groups: list[_Group] = []
        self.class_ids = ClassIds(schema.known_classes)
        """The strings of the label."""
        self._unlabelled = 0
        self.has_keys: dict[int, bool] = {}
        """Whether the examples of a split have keys."""
        self.rounding: Rounding = {}
        """Numbers in lists of Python floats that were rounded."""
        self._split = 0
        self._executor = SerialExecutor()
        self.skipped: list[list[SkippedRecord]] = [[] for _ in options.splits]
        """The skipped examples of each split."""

    def __enter__(self) -> RecordSorter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.close()

    def begin_split(self, split: int) -> None:
        """Add the next chunks to another split, by its position in the splits of the write."""
        self._split = split

    def wait(self) -> None:
        """Wait until all chunks are added, so that their errors are raised."""
        self._executor.wait()

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk."""
        self.skipped[self._split].extend(chunk.skipped)
        self.rounding = add_rounding([self.rounding, chunk.rounding])
        if len(chunk.block):
            self._executor.submit(self._add, chunk, self._split)
            if self._progress is not None:
                self._progress(len(chunk.block), chunk.block.data.nbytes)

    def _add(self, chunk: Chunk, split: int) -> None:
        block, keys = chunk.block, chunk.keys
        has_keys = keys is not None
        if self.has_keys.setdefault(split, has_keys) != has_keys:
            raise FeatureError(
                f"the example has {'a' if has_keys else 'no'} key, unlike those before it",
                example=int(chunk.positions[0]),
            )
        rows = make_rows(chunk.positions, block.lengths, keys, self._options.seed)
        for own_split, chosen in self._divide_chunk(chunk, split):
            group = self._find_group(chunk.features, own_split)
            own_block, own_rows = block, rows
            if len(chosen) < len(block):
                own_block, own_rows = select_records(block, chosen), take_rows(rows, chosen)
            if group.only_label is None:
                self._check_label(group.kind.features, len(own_block))
            else:
                ids = self.class_ids.read(group.only_label, own_block, own_rows["position"])
                own_rows["label"] = ids
            if self._collects_labels:
                group.labels.update(np.unique(own_rows["label"]).tolist())
            group.spool.add(own_block, own_rows)
            limit_memory((each.spool for each in self._groups), self._options.memory_limit)

    def _check_label(self, features: Features, examples: int) -> None:
        """Raise after many examples without a label, not after the last one."""
        self._unlabelled += examples
        if self._options.defaults:  # such a feature may occur later for the first time
            return
        if self._schema.infers_label and self._unlabelled >= _MAX_UNLABELLED:
            raise no_label_error(name_classes(features, self._class_names))

    def _divide_chunk(self, chunk: Chunk, split: int) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """Yield the rows of each split: that of the chunk, unless the options divide it."""
        hold_out, split_by = self._options.hold_out, self._options.split_by
        if split_by is not None:
            features, column = self._decode_feature(chunk, split_by)
            try:
                numbers = split_numbers(self._options.splits, features, split_by, column)
            except FeatureError as error:
                if error.example is not None:
                    error.example = int(chunk.positions[error.example])
                raise
        elif hold_out is not None and hold_out.fraction is not None:
            keys: Sequence[Key] = chunk.positions.tolist() if chunk.keys is None else chunk.keys
            if hold_out.by is not None:
                features, column = self._decode_feature(chunk, hold_out.by)
                keys = group_keys(features, hold_out.by, column)
            numbers = choose_keys(hold_out, keys).astype(np.intp)
        else:
            yield split, np.arange(len(chunk.block))
            return
        for number in np.unique(numbers).tolist():
            yield number, np.flatnonzero(numbers == number)

    def _decode_feature(self, chunk: Chunk, name: str) -> tuple[Features, Any]:
        """Return the features of a chunk, and the values of one of them; None if it has none."""
        features = name_classes(chunk.features, self._class_names)
        is_known = name in features
        return features, leaf(features.decode_batch(chunk.block, [name])) if is_known else None

    def _find_group(self, features: Features, split: int) -> _Group:
        for group in self._groups:
            known = group.kind.features
            if group.kind.split == split and (known is features or known == features):
                return group
        label = self._schema.label
        if self._schema.infers_label:
            label = guess_label(name_classes(features, self._class_names))
        elif label is not None and (label not in features or not can_be_label(features[label])):
            label = None
        order = self._options.order
        if order.by_class and (label is None or is_string(features[label])):
            order = RecordOrder(by=order.by)  # the class ids are not final
        only_label = None if label is None else features.select([label])
        spool = Spool(
            self._directory,
            memory_limit=self._options.memory_limit,
            order=order,
            bits=self._bits,
            prefix=f"{len(self._groups) + 1}-",
        )
        group = _Group(RecordGroup(features, split, label, order), only_label, spool)
        self._groups.append(group)
        return group

    def finish(self, *, in_memory: bool) -> list[tuple[RecordGroup, Sorted, set[int]]]:
        """Return all records as sorted runs, with the class ids of their rows.

        Args:
            in_memory: Whether runs remain in memory if they fit.
        """
        self._executor.wait()
        return [
            (group.kind, group.spool.finish(in_memory=in_memory), group.labels)
            for group in self._groups
        ]


def select_records(block: Block, rows: NDArray[np.intp]) -> Block:
    """Return a copy of some records of a block."""
    sources = np.zeros(len(rows), np.uint32)
    return Block(
        *_core.copy_frames([block.data], sources, block.offsets[rows], block.lengths[rows])
    )


def _translate(
    block: Block, known: Features, inferred: Features, features: Features, label: str | None
) -> Block:
    """Return records of some features as records of other features that fit them."""
    columns = flatten(known.decode_batch(block))
    for name in columns:
        if is_decimal(known[name]):
            columns[name] = restore_decimals(columns[name])
    if label in columns and not is_string(features[label]) and is_string(known[label]):
        columns[label] = decode_strings(columns[label], label=label)
    fill_columns(inferred, columns, len(block))
    return features.encode_batch(columns)
