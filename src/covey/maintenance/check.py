"""Check of shards, of their index, and of its features: the problems that verify reports."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import class_table, id_dtype, sort_by_class
from covey.dataset.layout import Layout, SplitFiles
from covey.errors import CoveyError, FileChangedError, FormatError, shorten
from covey.filenames import FEATURES_FILE, find_moved, label_file, strip_record_suffixes
from covey.index import (
    BY_FILE,
    Index,
    IndexMetadata,
    ShardFiles,
    index_names,
    read_index,
    read_metadata,
)
from covey.index.scan import ShardScan, scan_shard
from covey.labels import decode_strings, is_string
from covey.maintenance.report import MAX_PROBLEMS, Problems, reason_of
from covey.schema import ClassLabel, Features
from covey.schema.infer import survey_block
from covey.schema.merge import Difference, describe, differences
from covey.schema.tfds import features_from_tfds, features_to_tfds
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
    invalid: list[tuple[int, int, str]] = field(default_factory=list)
    """Id, offset of the frame in the (decompressed) file and reason of the records that are not
    examples or do not match the features, in order."""
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
                found.invalid.append((block.first + row, offset, result))
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
        wrong += block.invalid
        found.invalid += [record for record, _, _ in block.invalid]
        found.data_bytes += block.bytes
        found.strings |= block.strings
        found.surveys += block.surveys
    for record, offset, reason in sorted(wrong):
        found.problems.add(name, reason, record=record, offset=offset)
    return found


class IndexCheck:
    """The index beside the shards of a split, compared with the scans of the shards.

    Args:
        files: Shards of the split.
        stem: Common start of the names of the index files.
        problems: List to which the problems of the index files are added.
        stack: Keeps the copy of the index of remote shards.
    """

    metadata: IndexMetadata | None = None
    """Metadata of the index; None if there is none that can be read."""
    index: Index | None = None
    """The index; None if one of its files is corrupt."""

    def __init__(self, files: ShardFiles, stem: str, problems: Problems, stack: ExitStack) -> None:
        self.names = index_names(stem)
        directory = Path(files.directory)
        if files.storage.is_remote:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="covey-")))
            _copy(files, self.names.values(), directory)
        try:
            self.metadata = read_metadata(directory, stem)
            if self.metadata is not None:
                self.index = read_index(directory, stem, self.metadata)
            elif any((directory / name).exists() for name in self.names.values()):
                reason = "the file is missing, but the rest of the index exists"
                problems.add(self.names["metadata"], reason)
        except FormatError as error:
            problems.add(os.path.basename(error.path or ""), reason_of(error))
        shards = () if self.metadata is None else self.metadata.shards
        self._numbers = {shard.name: number for number, shard in enumerate(shards)}

    def compare_shard(self, shard: CheckedShard) -> None:
        """Compare a shard with its entry and its rows in the index; add problems to the shard."""
        if self.metadata is None or shard.scan is None or shard.name not in self._numbers:
            return
        number, scan = self._numbers[shard.name], shard.scan
        if self.index is not None:
            self._compare_rows(self.index, number, shard, scan)
        entry = self.metadata.shards[number]
        # The version of the file is not compared: all of its content was.
        if scan.stat.size != entry.bytes:
            shard.problems.add(
                shard.name,
                f"the shard has {scan.stat.size} bytes; it had {entry.bytes} when it was indexed",
            )
        elif not shard.corrupt and scan.fingerprint != entry.fingerprint:
            shard.problems.add(shard.name, "the shard was replaced after it was indexed")

    def _compare_rows(
        self, index: Index, number: int, shard: CheckedShard, scan: ShardScan[CheckedBlock]
    ) -> None:
        """Compare the rows of a shard with its records before the first corrupt one."""
        metadata = index.metadata
        if metadata.compression is None and scan.compression is not None:
            reason = f"the compression is None, but {shard.name} has {scan.compression}"
            shard.problems.add(self.names["metadata"], reason)
            return
        first, end = index.first_records[number : number + 2]
        rows = index.rows[first:end]
        expected = np.zeros(len(scan.locations), rows.dtype)
        try:
            scan.locations.fill(expected, single_stream=metadata.single_stream)
        except FormatError as error:
            shard.problems.add(self.names["rows"], reason_of(error), record=first)
            return
        expected["shard"] = number
        if scan.skipped:
            expected = expected[: scan.skipped[0].record]
            rows = rows[: len(expected)]
        if metadata.label is not None:
            count = min(len(rows), len(expected))
            # The class of an invalid record is unknown.
            labels, known = rows["label"][:count].copy(), np.ones(count, bool)
            known[[record for record in shard.invalid if record < count]] = False
            found = np.concatenate([labels[:0], *(block.labels for block in scan.blocks)])
            if len(found):
                labels[known] = found[:count][known]
            expected["label"][:count] = labels
        self._compare(shard.problems, "rows", rows, expected, first, f" of {shard.name}")

    def compare_classes(self, problems: Problems) -> None:
        """Compare the class table and the records by class with the rows."""
        index = self.index
        if index is None:
            return
        if index.classes is not None and index.by_class is not None:
            by_class = np.zeros(len(index), id_dtype(len(index)))
            classes = class_table(index.rows["label"])
            sort_by_class(index.rows["label"], classes, by_class)
            self._compare(problems, "classes", index.classes, classes)
            self._compare(problems, "by_class", index.by_class, by_class)
        try:
            index.check_read()
        except FileChangedError as error:
            problems.add(self.names["rows"], reason_of(error))

    def _compare(
        self,
        problems: Problems,
        which: str,
        found: NDArray[Any],
        expected: NDArray[Any],
        first: int = 0,
        of: str = "",
    ) -> None:
        """Add a problem with the first difference of two arrays and the number of differences."""
        count = min(len(found), len(expected))
        wrong = np.flatnonzero(found[:count] != expected[:count])
        if len(wrong):
            row = int(wrong[0])
            names = found.dtype.names or ()
            values = [(name, found[name][row], expected[name][row]) for name in names]
            reason = ", ".join(
                f"{name} is {self._shown(name, a)}; must be {self._shown(name, b)}"
                for name, a, b in values or [("the record", found[row], expected[row])]
                if a != b
            )
            reason += f" for record {row}{of}" if of else ""
            reason += f"; it is the first of {len(wrong):,} wrong rows" if len(wrong) > 1 else ""
            problems.add(self.names[which], reason, record=first + row)
        if len(found) != len(expected):
            reason = f"it has {len(found):,} rows{of}; must have {len(expected):,}"
            problems.add(self.names[which], reason, record=first + count)

    def _shown(self, field: str, value: int) -> str:
        """Return a value of a row for messages, with the name of a class."""
        names = () if self.metadata is None else self.metadata.class_names or ()
        if field != "label" or not names or value >= len(names):
            return str(value)
        return f"{value} ({names[value]!r})" if value >= 0 else f"{value} (not one of the index)"


def _copy(files: ShardFiles, names: Iterable[str], directory: Path) -> None:
    for name in names:
        try:
            stream = files.storage.open_stream(files.storage.join(files.directory, name))
        except FileNotFoundError:
            continue
        with stream, open(directory / name, "wb") as file:
            shutil.copyfileobj(stream, file, 1 << 20)


def compare_features(
    layout: Layout, metadata: IndexMetadata, index_file: str, problems: Problems
) -> None:
    """Compare the features of the index with those of TFDS."""
    if layout.features is None or layout.kind != "dataset":
        return
    try:
        found = feature_differences(layout.features, metadata.features)
    except CoveyError as error:
        problems.add(index_file, f"its features cannot be those of a dataset: {reason_of(error)}")
        return
    for each in found:
        changed = _changed_names(each.first, each.second)
        file = label_file(metadata.features.path_of(each.name)) if changed else None
        if file:
            number, name, expected = changed[0]
            more = f"; {len(changed) - 1:,} more differ" if len(changed) > 1 else ""
            problems.add(
                file,
                f"class {number} is {shorten(name)!r}; must be {shorten(expected)!r}, as in "
                f"{index_file}{more}; restore the file, or write a dataset with the names of the "
                "index by `covey repair`; if the file is right, remove the index and run "
                "`covey index`",
            )
            continue
        problems.add(
            FEATURES_FILE,
            f"feature {each.name!r} is {describe(each.second)}, but {describe(each.first)} in "
            f"{index_file}",
        )


def _changed_names(indexed: Any, known: Any) -> list[tuple[int, str, str]]:
    """Return the classes whose names are not those of the index: id, name and expected name."""
    if not isinstance(indexed, ClassLabel) or not isinstance(known, ClassLabel):
        return []
    names, expected = known.names or (), indexed.names or ()
    if len(names) < len(expected):
        return []
    pairs = zip(range(len(expected)), names, expected, strict=False)
    return [each for each in pairs if each[1] != each[2]]


def feature_differences(known: Features, indexed: Features) -> list[Difference]:
    """Return the features in which an index (first) and the files of TFDS (second) differ."""
    if known == indexed:
        return []
    return differences(_after_tfds(indexed), known, grow_classes=True)


def _after_tfds(features: Features) -> Features:
    """Return features as they are read back from TFDS' files."""
    content, labels = features_to_tfds(features.without_defaults())
    files: Mapping[str, str] = {
        FEATURES_FILE: json.dumps(content),
        **{name: "".join(f"{each}\n" for each in names) for name, names in labels.items()},
    }

    def read(name: str) -> bytes:
        if name not in files:
            raise FileNotFoundError(name)
        return files[name].encode()

    return features_from_tfds("", read)
