"""Scan of a shard: the valid records, the corrupt ranges, and the records that are not examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.dataset.layout import SplitFiles
from covey.errors import CoveyError, FileChangedError
from covey.filenames import find_moved, strip_record_suffixes
from covey.index import BY_FILE
from covey.index.scan import ShardScan, scan_shard
from covey.labels import decode_strings, is_string
from covey.maintenance.report import MAX_PROBLEMS, Problems, reason_of
from covey.schema import Features
from covey.schema.infer import survey_block
from covey.storage import Stat
from covey.tfrecord import Block
from covey.tfrecord.block import HEADER_BYTES


@dataclass(frozen=True, slots=True)
class CheckedBlock:
    """The records of a block, compared with the features."""

    labels: NDArray[np.int64]
    """Class id of every row, 0 for invalid rows; empty without a label."""
    bytes: int
    """Size of the records without their frames."""
    invalid: list[tuple[int, int, int, str]] = field(default_factory=list)
    """Id, offset of the frame in the (decompressed) file, size and reason of the records that are
    not examples or do not match the features, in order."""
    strings: set[str] = field(default_factory=set)
    """Class names of the valid rows, if the label is a string."""
    surveys: list[_core.Survey] = field(default_factory=list)
    """Surveys of the valid rows, if the features are unknown."""


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
        labels = np.zeros(0 if self._path is None else len(block), np.int64)
        if self._by_file:
            labels = np.full(len(block), self._ids.get(strip_record_suffixes(file), -1), np.int64)
        found = CheckedBlock(labels, int(block.lengths.sum()))
        for row, result in self._divide(block, 0):
            if isinstance(result, str):
                offset = block.position + int(block.offsets[row]) - HEADER_BYTES
                found.invalid.append((block.first + row, offset, int(block.lengths[row]), result))
            elif isinstance(result, _core.Survey):
                found.surveys.append(result)
            elif result is not None and not self._by_file:
                if isinstance(result, list):
                    found.strings.update(result)
                    result = [self._ids.get(name, -1) for name in result]
                labels[row : row + len(result)] = result
        return found

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
    """State of the file; None if it is missing or cannot be read."""
    compression: str | None = None
    records: int = 0
    """Number of records with valid checksums."""
    corrupt: int = 0
    """Number of corrupt ranges, each of which has a record id."""
    data_bytes: int = 0
    """Size of the records without their frames."""
    invalid: list[int] = field(default_factory=list)
    """Ids of the records that are not examples or do not match the features."""
    invalid_bytes: int = 0
    """Size of these records without their frames."""
    strings: set[str] = field(default_factory=set)
    """Class names, if the label is a string."""
    surveys: list[_core.Survey] = field(default_factory=list)
    """Surveys of the valid records, if the features are unknown."""
    scan: ShardScan[CheckedBlock] | None = None
    """The scan, until it is compared with the index."""

    @property
    def valid(self) -> int:
        """Number of valid records."""
        return self.records - len(self.invalid)


def check_shard(
    split: SplitFiles,
    split_name: str,
    number: int,
    examples: ExampleCheck,
    progress: Callable[[int, int], None],
    executor: Executor | None = None,
    max_problems: int | None = MAX_PROBLEMS,
) -> CheckedShard:
    """Scan a shard and check its records; corrupt and invalid ones are problems.

    Args:
        split: Split of the shard.
        split_name: Name of the split.
        number: Number of the shard.
        examples: Check of the records.
        progress: Called with the records and bytes of each block.
        executor: Executor that checks the blocks; None checks them in this thread.
        max_problems: Most problems that are listed; None lists all.
    """
    files = split.files
    name, storage = files.names[number], files.storage
    found = CheckedShard(name, Problems(split_name, max_problems))
    try:
        path = files.paths[number]
        path = path if storage.is_remote else find_moved(path)  # by a write meanwhile
        (stat,) = storage.stat([path])
        if stat is None:
            known = "" if split.records is None else f", with {split.records[number]:,} records"
            found.problems.add(name, f"the shard is missing{known}")
            return found
        check = partial(examples.check, file=name)
        found.scan = scan = scan_shard(
            storage, path, stat, check, executor, progress=progress, on_error="skip", warns=False
        )
    except OSError as error:
        # Records that were read before the error are not used: another pass may not find them.
        reason = f"the shard cannot be read: {reason_of(error)}"
        is_changed = isinstance(error, FileChangedError)
        found.problems.add(
            name, "the shard was changed while it was read" if is_changed else reason
        )
        return found
    found.stat, found.compression = stat, scan.compression
    found.records, found.corrupt = len(scan.locations), len(scan.skipped)
    wrong = [(each.record, each.offset or 0, each.reason) for each in scan.skipped]
    for block in scan.blocks:
        for record, offset, size, reason in block.invalid:
            wrong.append((record, offset, reason))
            found.invalid.append(record)
            found.invalid_bytes += size
        found.data_bytes += block.bytes
        found.strings |= block.strings
        found.surveys += block.surveys
    for record, offset, reason in sorted(wrong):
        found.problems.add(name, reason, record=record, offset=offset)
    return found
