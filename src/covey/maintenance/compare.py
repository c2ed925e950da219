"""Comparison of an index with the shards, and of its features with those of TFDS."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.classes import class_table, id_dtype, sort_by_class
from covey.dataset.layout import Layout
from covey.errors import CoveyError, FileChangedError, FormatError, shorten
from covey.filenames import FEATURES_FILE, label_file
from covey.index import (
    Index,
    IndexMetadata,
    ShardFiles,
    index_names,
    read_index,
    read_metadata,
)
from covey.index.scan import ShardScan
from covey.maintenance.report import Problems, reason_of
from covey.maintenance.scan import CheckedBlock, CheckedShard
from covey.schema import ClassLabel, Features
from covey.schema.merge import Difference, describe, differences
from covey.schema.tfds import features_from_tfds, features_to_tfds


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
