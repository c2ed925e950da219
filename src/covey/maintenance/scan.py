"""Scan of a shard: the valid records, the corrupt ranges, and the records that are not examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import CoveyError, FileChangedError
from covey.filenames import find_moved, strip_record_suffixes
from covey.index import BY_FILE, ShardFiles
from covey.index.format import fingerprint_of
from covey.index.scan import map_blocks, open_source, state_of
from covey.labels import decode_strings, is_string
from covey.maintenance.report import MAX_PROBLEMS, Problems, reason_of
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.infer import survey_block
from covey.storage import Stat
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.block import HEADER_BYTES, RecordLocations


@dataclass(frozen=True, slots=True)
class CheckedBlock:
    """The records of a block, compared with the features."""

    block: Block
    labels: NDArray[np.int64] | None
    """Class id of every row, if there is a label; 0 for invalid rows."""
    invalid: list[tuple[int, str]] = field(default_factory=list)
    """Rows that are not examples or do not match the features, in order, with the reason."""
    strings: set[str] = field(default_factory=set)
    """Class names of the valid rows, if the label is a string."""
    surveys: list[_core.Survey] = field(default_factory=list)
    """Surveys of the valid rows, if the features are unknown."""

    def offset(self, row: int) -> int:
        """Return the offset of a record's frame in the (decompressed) file."""
        return self.block.position + int(self.block.offsets[row]) - HEADER_BYTES


class ExampleCheck:
    """Compares records with features, and reads their classes.

    Args:
        features: Features that the records must match; None if they must only be Examples.
        label: Label feature, or ``"@file"``; None reads no classes.
        class_names: Class names in the order of their ids, if the label is a string.
    """

    def __init__(
        self,
        features: Features | None,
        label: str | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self._features = features
        self._by_file = label == BY_FILE
        self._path: tuple[str, ...] | None = None
        self._is_string = False
        if features is not None and label is not None and not self._by_file:
            self._path = tuple(features.path_of(label))
            self._is_string = is_string(features[label])
        self._ids = {name: number for number, name in enumerate(class_names or ())}

    def check(self, block: Block, file: str) -> CheckedBlock:
        """Check the records of a block, whose checksums are valid, of a file."""
        found = CheckedBlock(block, self._no_labels(len(block), file))
        for row, result in self._divide(block, 0):
            if isinstance(result, str):
                found.invalid.append((row, result))
            elif isinstance(result, _core.Survey):
                found.surveys.append(result)
            elif result is not None and found.labels is not None:
                if isinstance(result, list):
                    found.strings.update(result)
                    result = [self._ids.get(name, -1) for name in result]
                found.labels[row : row + len(result)] = result
        return found

    def _no_labels(self, rows: int, file: str) -> NDArray[np.int64] | None:
        if self._by_file:
            return np.full(rows, self._ids.get(strip_record_suffixes(file), -1), np.int64)
        return None if self._path is None else np.zeros(rows, np.int64)

    def _divide(self, block: Block, row: int) -> Iterator[tuple[int, Any]]:
        """Bisect a block into ranges of valid records and single invalid records.

        Yields:
            The first row of each range, and the reason why the record is invalid, or a survey, or
            the classes of the range.
        """
        try:
            yield row, self._decode(block)
        except FileChangedError:  # the record may be valid
            raise
        except CoveyError as error:
            if len(block) == 1:
                yield row, reason_of(error)
                return
            half = len(block) // 2
            yield from self._divide(block[:half], row)
            yield from self._divide(block[half:], row + half)

    def _decode(self, block: Block) -> _core.Survey | list[str] | NDArray[np.int64] | None:
        if self._features is None:
            survey = _core.Survey()
            survey_block(survey, block)
            return survey
        column: Any = self._features.decode_batch(block)
        if self._path is None:
            return None
        for key in self._path:
            column = column[key]
        return decode_strings(column) if self._is_string else np.asarray(column).astype(np.int64)


@dataclass
class CheckedShard:
    """Result of the scan of a shard."""

    name: str
    problems: Problems
    stat: Stat | None = None
    """State of the file when it was opened; None if it is missing or cannot be read."""
    compression: str | None = None
    records: int = 0
    """Number of records with valid checksums."""
    record_ids: int = 0
    """Number of record ids: the records, and the corrupt ranges."""
    data_bytes: int = 0
    """Size of the records without their frames."""
    is_corrupt: bool = False
    invalid: list[int] = field(default_factory=list)
    """Ids of the records that are not examples or do not match the features."""
    invalid_bytes: int = 0
    """Size of these records without their frames."""
    strings: set[str] = field(default_factory=set)
    """Class names, if the label is a string."""
    surveys: list[_core.Survey] = field(default_factory=list)
    """Surveys of the valid records, if the features are unknown."""
    rows: ScannedRows | None = None
    """Rows of an index of the shard, if they were requested."""
    fingerprint: int | None = None
    """Fingerprint of the file, if the rows were requested."""

    @property
    def valid(self) -> int:
        """Number of valid records."""
        return self.records - len(self.invalid)


class ScannedRows:
    """Locations and classes of the records of a shard, from which the rows of an index follow."""

    complete: int | None = None
    """Number of records before the first corrupt one; None if none is corrupt."""

    def __init__(self, compression: str | None) -> None:
        self.locations = RecordLocations(compression)
        self._labels = [np.zeros(0, np.int64)]
        self._known = [np.zeros(0, bool)]

    def add(self, found: CheckedBlock | SkippedRecord) -> None:
        """Add the records of a block, or note a corrupt range."""
        if isinstance(found, SkippedRecord):
            if self.complete is None:
                self.complete = len(self.locations)
            return
        self.locations.add(found.block)
        rows = len(found.block)
        known = np.full(rows, found.labels is not None)
        known[[row for row, _ in found.invalid]] = False
        self._labels.append(np.zeros(rows, np.int64) if found.labels is None else found.labels)
        self._known.append(known)

    def labels(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the class ids of the first records, and which of them are known."""
        return np.concatenate(self._labels)[:count], np.concatenate(self._known)[:count]


@dataclass(frozen=True)
class ShardScanner:
    """Scans the shards of a split.

    Args:
        split: Name of the split.
        files: Shards of the split.
        examples: Check of the records.
        progress: Function that is called with the number of records and bytes that were scanned.
        expected: Number of records of each shard by the metadata of the dataset, if it is known.
        max_problems: Most problems of a shard that are listed; None lists all.
    """

    split: str
    files: ShardFiles
    examples: ExampleCheck
    progress: Callable[[int, int], None]
    expected: Sequence[int] | None = None
    max_problems: int | None = MAX_PROBLEMS

    def scan(
        self, number: int, executor: Executor | None = None, *, rows: bool = False
    ) -> CheckedShard:
        """Scan a shard.

        Args:
            number: Index of the shard.
            executor: Executor that checks the blocks; None checks them in this thread.
            rows: Whether the rows of an index are collected.
        """
        name, path, storage = self.files.names[number], self.files.paths[number], self.files.storage
        path = path if storage.is_remote else find_moved(path)  # by a write meanwhile
        found = self._new(name)
        try:
            (stat,) = storage.stat([path])
            if stat is None:
                known = "" if self.expected is None else f", with {self.expected[number]:,} records"
                found.problems.add(name, f"the shard is missing{known}")
                return found
            with open_source(storage, path) as file:
                found.stat = state_of(file) or stat
                self._read(file, found, executor, rows)
                if rows:
                    found.fingerprint = fingerprint_of(file, found.stat.size)
                if state_of(file) not in (None, found.stat):
                    found.problems.add(name, "the shard was changed while it was read")
                    found.is_corrupt = True
        except OSError as error:
            # Records that were read before the error are not used: another pass may not find them.
            found = self._new(name)
            found.problems.add(name, f"the shard cannot be read: {reason_of(error)}")
        return found

    def _new(self, name: str) -> CheckedShard:
        return CheckedShard(name, Problems(self.split, self.max_problems))

    def _read(
        self, file: BinaryIO, found: CheckedShard, executor: Executor | None, rows: bool
    ) -> None:
        with RecordReader(file, on_error="skip") as reader:
            found.compression = reader.compression
            if rows:
                found.rows = ScannedRows(reader.compression)
            members = None if found.rows is None else found.rows.locations.members
            check = partial(self._check, name=found.name)
            for each in map_blocks(check, reader.scan(members=members), executor):
                if found.rows is not None:
                    found.rows.add(each)
                if isinstance(each, SkippedRecord):
                    found.is_corrupt = True
                    found.record_ids += 1
                    found.problems.add(
                        found.name, each.reason, record=each.record, offset=each.offset
                    )
                else:
                    self._count(found, each)

    def _check(self, found: Block | SkippedRecord, name: str) -> CheckedBlock | SkippedRecord:
        return found if isinstance(found, SkippedRecord) else self.examples.check(found, name)

    def _count(self, found: CheckedShard, checked: CheckedBlock) -> None:
        block = checked.block
        for row, reason in checked.invalid:
            record = block.first + row
            found.problems.add(found.name, reason, record=record, offset=checked.offset(row))
            found.invalid.append(record)
            found.invalid_bytes += int(block.lengths[row])
        size = int(block.lengths.sum())
        found.records += len(block)
        found.record_ids += len(block)
        found.data_bytes += size
        found.strings |= checked.strings
        found.surveys += checked.surveys
        self.progress(len(block), size)
