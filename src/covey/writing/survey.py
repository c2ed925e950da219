"""The results of the map stage, merged: features, keys, classes and buckets of all pieces.

The merged features and classes are those that a local write determines from all examples.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._core import crc32c
from covey.errors import CoveyError, FeatureError
from covey.labels import Classes
from covey.schema import Features
from covey.schema.columns import NUMBERS
from covey.schema.infer import Inference, Path
from covey.schema.lattice import join_ranges
from covey.shuffle.buckets import TABLE_DTYPE, add_tables
from covey.shuffle.keys import RecordOrder
from covey.writing.encode import Chunk, ItemEncoder
from covey.writing.inputs import Input
from covey.writing.map_stage import GroupRuns, MapResult, find_labels, integer_ranges
from covey.writing.options import WriteOptions, WriteSchema
from covey.writing.order import RecordGroup
from covey.writing.pieces import Piece


@dataclass
class MappedPiece:
    """A piece that was mapped."""

    piece: Piece
    name: str
    """Name of the piece, for messages."""
    result: MapResult
    """Its runs; strings and tables are not kept."""
    ids: NDArray[np.int32]
    """Class ids of this write, by the provisional ids of the piece."""
    rewritten: dict[int, tuple[GroupRuns, ...]] = field(default_factory=dict)
    """Groups that were rewritten, by their position."""

    def final_groups(self) -> Iterator[tuple[GroupRuns, bool]]:
        """Yield each group, rewritten if it was, and whether its class ids are provisional."""
        for position, group in enumerate(self.result.groups):
            if position in self.rewritten:
                yield from ((each, False) for each in self.rewritten[position])
            else:
                yield group, group.kind.has_provisional_ids


Query = Callable[..., list[Any]]
"""Function that returns the results of another function for each group of a piece. Workers call it,
with the group, the arguments, and the bytes of records to read at once."""


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

    def of_split(
        self, split: int, is_included: Callable[[RecordGroup], bool]
    ) -> tuple[NDArray[Any], int]:
        """Return the sum of the tables of some groups of a split, and their longest record."""
        chosen = [
            at for at, kind in enumerate(self._kinds) if kind.split == split and is_included(kind)
        ]
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

    def integer_range(self, name: str) -> tuple[int, int]:
        return 0, 0


def merge_features(pieces: Sequence[MappedPiece], options: WriteOptions, query: Query) -> Features:
    """Return the features that fit the examples of all pieces, as a local write infers them.

    Args:
        pieces: The pieces, in order.
        options: Options of the write.
        query: Function that queries the records of a piece.

    Raises:
        FeatureError: If no features fit; ``task`` is the name of the piece.
    """
    found = [
        (mapped, mapped.result.inference)
        for mapped in pieces
        if mapped.result.inference is not None and mapped.result.inference.found
    ]
    merged = Inference(options.defaults, options.types)
    paths = _paths_of_mixed_dtypes([inference for _, inference in found])
    for mapped, inference in found:
        own = copy.deepcopy(inference)
        for path, limits in (_integer_ranges(mapped, paths, query) if paths else {}).items():
            if path in own.found:
                own.found[path] = own.found[path].with_integers(limits)
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


def _paths_of_mixed_dtypes(found: Sequence[Inference]) -> list[Path]:
    """Return features whose type depends on the range of their integers."""
    dtypes: dict[Path, set[str | None]] = {}
    for inference in found:
        for path, seen in inference.found.items():
            dtypes.setdefault(path, set()).add(seen.dtype)
    return [path for path, each in dtypes.items() if len(each) > 1 and each & {*NUMBERS}]


def _integer_ranges(
    mapped: MappedPiece, paths: Sequence[Path], query: Query
) -> dict[Path, tuple[int, int]]:
    names = tuple(map("/".join, paths))
    ranges = query(mapped, integer_ranges, names)
    return {
        path: join_ranges((0, 0), *(own[name] for own in ranges))
        for path, name in zip(paths, names, strict=True)
    }


# Classes.


def find_classes(pieces: Sequence[MappedPiece], survey: Survey, query: Query) -> NDArray[np.int64]:
    """Return the class ids of all records, each of them once."""
    parts, label = [np.zeros(0, np.int64)], survey.classes.label
    for mapped in pieces:
        kinds = [group.kind for group in mapped.result.groups]
        # Examples that lack the label have its default, and rows without class ids.
        has_ids = all(kind.label == label for kind in kinds)
        classes = None if has_ids else survey.classes
        found = query(mapped, find_labels, survey.inferred, classes)
        for kind, ids in zip(kinds, found, strict=True):
            is_provisional = kind.label == label and kind.has_provisional_ids
            parts.append(survey.final_ids[mapped.ids[ids]] if is_provisional else ids)
    return np.unique(np.concatenate(parts))
