"""What the main process determines between the stages of a write.

The results of the map stage are merged: features, keys, classes and buckets of all pieces. From
these follow the final features, the class ids, and the ends of the shards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey._core import crc32c
from covey.errors import CoveyError, DatasetError, FeatureError
from covey.labels import Classes
from covey.schema import Features
from covey.schema.infer import Inference
from covey.shuffle.keys import RecordOrder
from covey.shuffle.runs import TABLE_DTYPE, add_tables, class_sizes
from covey.untrusted import MAX_SHARDS
from covey.writing.encode import Chunk, ItemEncoder
from covey.writing.inputs import Input
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.pieces import Piece
from covey.writing.shards import Cuts, ShardTask
from covey.writing.sort import RecordGroup
from covey.writing.stages import GroupRuns, MapResult


@dataclass
class MappedPiece:
    """A piece that was mapped."""

    piece: Piece
    name: str
    """Name of the piece, for messages."""
    result: MapResult
    """Its features, keys and skipped examples, without runs and strings."""


@dataclass(frozen=True)
class Survey:
    """What the main process knows after the map stage."""

    inferred: Features
    """Features that fit all examples."""
    classes: Classes
    final_ids: NDArray[np.int64]
    """Final class ids by those of this write."""
    held_out: NDArray[np.int64] | None = None
    """Class ids of the second split, if classes are held out."""

    def needs_rewrite(self, kind: RecordGroup, order: RecordOrder) -> bool:
        """Return whether the records of a group must be written again."""
        return self.held_out is not None or not kind.is_final(self.classes, order)


class BucketTotals:
    """Sums of the tables of groups of the same kind."""

    def __init__(self) -> None:
        self._kinds: list[RecordGroup] = []
        self._tables: list[NDArray[Any]] = []
        self._longest: list[int] = []

    def add(self, group: GroupRuns) -> None:
        """Add the table of a group."""
        try:
            at = self._kinds.index(group.kind)
        except ValueError:
            at = len(self._kinds)
            self._kinds.append(group.kind)
            self._tables.append(np.zeros(0, TABLE_DTYPE))
            self._longest.append(0)
        self._tables[at] = add_tables([self._tables[at], group.table])
        self._longest[at] = max(self._longest[at], group.longest)

    def find(self, kind: RecordGroup) -> RecordGroup:
        """Return the object for all groups of a kind: class names are not held for every piece."""
        return next((each for each in self._kinds if each == kind), kind)

    def remove(self, is_removed: Callable[[RecordGroup], bool]) -> None:
        """Remove the groups of some kinds."""
        for at in reversed(range(len(self._kinds))):
            if is_removed(self._kinds[at]):
                del self._kinds[at], self._tables[at], self._longest[at]

    def of_split(self, split: int) -> tuple[NDArray[Any], int]:
        """Return the sum of the tables of a split, and its longest record."""
        chosen = [at for at, kind in enumerate(self._kinds) if kind.split == split]
        tables = [self._tables[at] for at in chosen]
        longest = max((self._longest[at] for at in chosen), default=0)
        return add_tables([np.zeros(0, TABLE_DTYPE), *tables]), longest


def merge_keys(pieces: Sequence[MappedPiece]) -> dict[int, bool]:
    """Return whether the examples of each split have keys.

    Raises:
        FeatureError: If those of one piece have keys, and those of another do not.
    """
    known: dict[int, tuple[bool, MappedPiece]] = {}
    for mapped in pieces:
        for split, has_keys in mapped.result.has_keys.items():
            before, first = known.setdefault(split, (has_keys, mapped))
            if before != has_keys:
                with_keys, without = (first, mapped) if before else (mapped, first)
                raise FeatureError(
                    f"the examples of {with_keys.name} have keys, those of {without.name} do not"
                )
    return {split: has_keys for split, (has_keys, _) in known.items()}


# Features.


def first_inference(
    inputs: Sequence[Input], options: WriteOptions, schema: WriteSchema
) -> Inference | None:
    """Return the features of the first valid example, with which all pieces begin.

    A local write takes the names of the features from it.
    """
    part = inputs[0].parts[0]
    if not part.is_repeatable:
        return None
    encoder = ItemEncoder(options, schema, _NullSink())
    for item in part.read():
        try:
            encoder.encode([item])
        except CoveyError:  # the map task reports it
            return None
        if encoder.inference is not None and encoder.inference.found:
            return encoder.inference
    return None


def checksum_of_ends(part: Input, options: WriteOptions, schema: WriteSchema) -> int | None:
    """Return the CRC of the first and the last example of an input; None if it is not in memory.

    An example that is not valid is left out: its map task reports it.
    """
    in_memory = part.path is None or isinstance(part.items, (list, tuple))
    if not (in_memory and part.can_be_divided and part.length):
        return None
    sink = _NullSink()
    for position in (0, part.length - 1):
        with contextlib.suppress(CoveyError):
            ItemEncoder(options, schema, sink).encode(part.read(position, position + 1))
    return sink.checksum


class _NullSink:
    """Receiver that drops chunks."""

    def __init__(self) -> None:
        self.checksum = 0
        """CRC of the chunks."""

    def add(self, chunk: Chunk) -> None:
        keys = repr(chunk.keys).encode(errors="backslashreplace")
        self.checksum = crc32c(chunk.block.data, crc32c(keys, self.checksum))


def merge_features(pieces: Sequence[MappedPiece], options: WriteOptions) -> Features:
    """Return the features that fit the examples of all pieces, as a local write infers them.

    Args:
        pieces: The pieces, in order.
        options: Options of the write.

    Raises:
        FeatureError: If no features fit; ``task`` is the name of the piece.
    """
    merged = Inference(options.defaults, options.types)
    for mapped in pieces:
        own = mapped.result.inference
        if own is None or not own.found:
            continue
        try:
            if merged.found:
                _check_names(merged, own)
            merged.merge(own)
        except FeatureError as error:
            error.task = mapped.name
            raise
    return Features(merged.finish())


def _check_names(merged: Inference, own: Inference) -> None:
    for path in merged.found.keys() ^ own.found.keys():
        if (name := "/".join(path)) not in merged.defaults:
            has = "has it, but those before do not" if path in own.found else "lacks it"
            raise FeatureError(
                f"an example of this piece {has}",
                feature=name,
                remedy="pass defaults=, or pass features=",
            )


# Shards.


def plan_cuts(table: NDArray[Any], options: WriteOptions) -> Cuts:
    """Return the ends of the shards that the options request, for records of these buckets.

    Raises:
        DatasetError: If there would be more shards than a reader accepts.
    """
    total, size = int(table["records"].sum()), options.records_per_shard
    if size is not None:
        count = _check_count(-(-total // size))
        return Cuts("records", np.minimum(np.arange(1, count + 1) * size, total))
    unit: Literal["records", "bytes"] = "bytes" if options.shards is None else "records"
    length = int(table["bytes"].sum()) if unit == "bytes" else total
    count = options.shards or max(1, -(-length // options.shard_bytes))
    count = _check_count(min(count, total))
    if options.sort_by_class and count > 1:
        records, sizes = class_sizes(table)
        sizes = sizes if unit == "bytes" else records
        ends = _ends_at_classes(np.cumsum(sizes), count)
        if ends is not None:
            return Cuts(unit, ends)
    # Python integers: the product may exceed 64 bits.
    return Cuts(unit, np.array([length * (i + 1) // count for i in range(count)], np.int64))


def _check_count(count: int) -> int:
    if count > MAX_SHARDS:
        raise DatasetError(
            f"there would be {count:,} shards; must be at most {MAX_SHARDS:,}",
            remedy="change shards=, records_per_shard= or shard_bytes=",
        )
    return count


def _ends_at_classes(ends: NDArray[np.int64], count: int) -> NDArray[np.int64] | None:
    """Return the ends of classes that are nearest to equal shares; None if there are too few."""
    if len(ends) < count:
        return None
    chosen: list[int] = []
    for shard in range(count):
        share = int(ends[-1]) * (shard + 1) // count
        above = int(np.searchsorted(ends, share))
        nearest = above - int(above > 0 and share - ends[above - 1] < ends[above] - share)
        # At least one class for this shard, and one for each that follows.
        first = chosen[-1] + 1 if chosen else 0
        chosen.append(min(max(nearest, first), len(ends) - count + shard))
    return ends[chosen]


def plan_shards(table: NDArray[Any], cuts: Cuts) -> list[ShardTask]:
    """Return a task for each shard, with the buckets that have its records."""
    records, sizes = (np.cumsum(table[name].astype(np.int64)) for name in ("records", "bytes"))
    ends = records if cuts.unit == "records" else sizes
    tasks = []
    for cut, end in enumerate(cuts.ends.tolist()):
        begin = int(cuts.ends[cut - 1]) if cut else 0
        first = int(np.searchsorted(ends, begin, side="right"))
        last = int(np.searchsorted(ends, end))
        before = first - 1
        tasks.append(
            ShardTask(
                cut,
                cut,
                table[first : last + 1],
                int(records[before]) if first else 0,
                int(sizes[before]) if first else 0,
            )
        )
    return tasks
