"""Comparison of an index with the shards, and of its features with those of TFDS."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import CLASS_DTYPE, class_table, id_dtype, sort_by_class
from covey.dataset.layout import Layout
from covey.errors import CoveyError, FormatError, shorten
from covey.filenames import FEATURES_FILE, label_file
from covey.index import IndexMetadata, ShardFiles, index_names, read_metadata, row_dtype
from covey.index.read import MAX_READ_BYTES, ArrayFile
from covey.maintenance.report import Problems, reason_of
from covey.maintenance.scan import CheckedShard, ScannedRows
from covey.schema import ClassLabel, Features
from covey.schema.merge import Difference, describe, differences
from covey.schema.tfds import features_from_tfds, features_to_tfds

# Rows whose checksum is computed at once.
_CHECKSUM_ROWS = 1 << 18
_MISSING = "the file is missing, but other files of the index exist"


# The index.


@dataclass(frozen=True, eq=False)
class LoadedIndex:
    """The files of an index, as far as they can be read."""

    names: dict[str, str]
    """Names of the files."""
    metadata: IndexMetadata | None = None
    rows: NDArray[Any] | None = None
    classes: NDArray[Any] | None = None
    by_class: NDArray[Any] | None = None
    is_intact: bool = False
    """Whether the checksum of the rows is valid."""

    @property
    def by_member(self) -> bool | None:
        """Whether the rows address members of GZIP files; None if there is no index."""
        if self.metadata is None:
            return None
        return self.metadata.compression is not None and not self.metadata.single_stream

    def rows_of(self, name: str) -> NDArray[Any] | None:
        """Return the rows of a shard; None if there are none that can be read."""
        if self.metadata is None or self.rows is None or name not in self.entries:
            return None
        number, first = self.entries[name]
        return self.rows[first : first + self.metadata.shards[number].records]

    @cached_property
    def entries(self) -> dict[str, tuple[int, int]]:
        """Position of each shard in the index, and its first row, by name."""
        found: dict[str, tuple[int, int]] = {}
        first = 0
        for number, shard in enumerate(() if self.metadata is None else self.metadata.shards):
            found.setdefault(shard.name, (number, first))
            first += shard.records
        return found

    def check_read(self, problems: Problems) -> None:
        """Add a problem for each file that was truncated while it was mapped."""
        arrays = {"rows": self.rows, "classes": self.classes, "by_class": self.by_class}
        for name, array in arrays.items():
            if array is not None and _core.has_faulted(array):
                problems.add(self.names[name], "the file was truncated while it was read")


@contextmanager
def open_index(files: ShardFiles, stem: str, problems: Problems) -> Iterator[LoadedIndex]:
    """Load the index beside the shards; remote files are copied to a temporary directory."""
    storage = files.storage
    if not storage.is_remote:
        yield _load_index(Path(files.directory), stem, problems)
        return
    with tempfile.TemporaryDirectory(prefix="covey-verify-") as directory:
        for name in index_names(stem).values():
            try:
                stream = storage.open_stream(storage.join(files.directory, name))
            except FileNotFoundError:
                continue
            with stream, open(Path(directory, name), "wb") as file:
                shutil.copyfileobj(stream, file, 1 << 20)
        yield _load_index(Path(directory), stem, problems)


def _load_index(directory: Path, stem: str, problems: Problems) -> LoadedIndex:
    names = index_names(stem)
    try:
        metadata = read_metadata(directory, stem)
    except FormatError as error:
        problems.add(names["metadata"], reason_of(error))
        return LoadedIndex(names)
    if metadata is None:
        if any((directory / names[each]).exists() for each in ("rows", "classes", "by_class")):
            problems.add(names["metadata"], _MISSING)
        return LoadedIndex(names)

    def load(which: str, dtype: np.dtype[Any], rows: int | None) -> NDArray[Any] | None:
        return _load_array(directory / names[which], dtype, rows, problems)

    def is_intact(which: str, array: NDArray[Any] | None, checksum: int) -> bool:
        return array is not None and _check_checksum(names[which], array, checksum, problems)

    records = metadata.records
    dtype = row_dtype(
        compressed=metadata.compression is not None, labelled=metadata.label is not None
    )
    rows = load("rows", dtype, records)
    intact = is_intact("rows", rows, metadata.checksum)
    if metadata.class_checksums is None:
        return LoadedIndex(names, metadata, rows, is_intact=intact)
    arrays = load("classes", CLASS_DTYPE, None), load("by_class", id_dtype(records), records)
    classes, by_class = (
        array if is_intact(which, array, checksum) else None
        for which, array, checksum in zip(
            ("classes", "by_class"), arrays, metadata.class_checksums, strict=True
        )
    )
    return LoadedIndex(names, metadata, rows, classes, by_class, intact)


def _load_array(
    path: Path, dtype: np.dtype[Any], rows: int | None, problems: Problems
) -> NDArray[Any] | None:
    """Load an array; None if it does not have the expected type and length."""
    try:
        with ArrayFile(path) as file:
            array, trailing = file.load(MAX_READ_BYTES), file.rest
    except FileNotFoundError:
        problems.add(path.name, _MISSING)
        return None
    except Exception as error:  # numpy evaluates the header: any exception is possible
        problems.add(path.name, f"the file is not a valid .npy file: {reason_of(error)}")
        return None
    if array.ndim != 1 or array.dtype != dtype:
        found = f"{array.dtype} {array.shape}"
        problems.add(path.name, f"the array is {found}; must be one-dimensional, of {dtype}")
        return None
    if rows is not None and len(array) != rows:
        problems.add(path.name, f"the array has {len(array):,} rows; must have {rows:,}")
        return None
    if trailing:
        problems.add(path.name, f"{trailing:,} bytes follow the array")
    return array


def _check_checksum(name: str, array: NDArray[Any], checksum: int, problems: Problems) -> bool:
    found = 0
    for begin in range(0, len(array), _CHECKSUM_ROWS):
        found = _core.crc32c(array[begin : begin + _CHECKSUM_ROWS], found)
    if found == checksum:
        return True
    expected = f"{checksum & 0xFFFFFFFF:#010x}"
    problems.add(name, f"the checksum of the rows is {found:#010x}; must be {expected}")
    return False


def compare_shard(index: LoadedIndex, rows: NDArray[Any] | None, shard: CheckedShard) -> None:
    """Compare a shard with its entry and its rows in the index; add problems to the shard.

    Args:
        index: The index, which may be without arrays.
        rows: Rows of the shard; None if they cannot be read.
        shard: The shard.
    """
    metadata = index.metadata
    if metadata is None or shard.stat is None:
        return
    if shard.name not in index.entries:
        return
    entry = metadata.shards[index.entries[shard.name][0]]
    if shard.rows is not None and rows is not None:
        if metadata.compression is None:
            is_reachable = shard.compression is None
        else:
            is_reachable = shard.compression is not None or not index.by_member
        if entry.records and not is_reachable:
            shard.problems.add(
                index.names["metadata"],
                f"the compression is {metadata.compression}, but that of {shard.name} is "
                f"{shard.compression}; its rows are not compared",
            )
        else:
            _compare_rows(index, rows, shard, shard.rows)
    # The version of the file is not compared: all of its content was.
    if shard.stat.size != entry.bytes:
        shard.problems.add(
            shard.name,
            f"the shard has {shard.stat.size} bytes; it had {entry.bytes} when it was indexed",
        )
    elif not shard.is_corrupt and shard.fingerprint not in (None, entry.fingerprint):
        shard.problems.add(shard.name, "the shard was replaced after it was indexed")


def _compare_rows(
    index: LoadedIndex, rows: NDArray[Any], shard: CheckedShard, scanned: ScannedRows
) -> None:
    """Rebuild the rows of a shard and compare them with those of the index.

    After a lost record, rows and records are aligned by their locations.
    """
    metadata = index.metadata
    assert metadata is not None
    number, first = index.entries[shard.name]
    count = metadata.shards[number].records
    rebuilt = np.zeros(len(scanned.locations), rows.dtype)
    try:
        scanned.locations.fill(rebuilt, single_stream=metadata.single_stream)
    except FormatError as error:
        shard.problems.add(index.names["rows"], reason_of(error), record=first)
        return
    rebuilt["shard"] = number
    fields = {name: np.ones(len(rebuilt), bool) for name in rows.dtype.names or ()}
    labels = scanned.labels()
    if "label" in fields:
        known: Any = False
        if labels is not None:
            rebuilt["label"], known = labels
        fields["label"] &= known  # the class of an invalid record is unknown
    location = "offset" if metadata.compression is None else "inner_offset"
    at = 0
    for (begin, record), (end, _) in pairwise([*scanned.runs, (len(rebuilt), 0)]):
        if begin == end:
            continue
        if record:
            found = np.flatnonzero(rows[location][at:] == rebuilt[location][begin])
            at = at + int(found[0]) if len(found) else max(at, record)
        end = min(end, begin + max(0, len(rows) - at))
        compared = rows[at : at + end - begin]
        wrong = {
            name: (compared[name] != rebuilt[name][begin:end]) & is_known[begin:end]
            for name, is_known in fields.items()
        }
        for row, length in _runs_of(np.logical_or.reduce(list(wrong.values()))):
            differences = [
                _difference(metadata, name, compared[name][row], rebuilt[name][begin + row])
                for name, is_wrong in wrong.items()
                if is_wrong[row]
            ]
            reason = f"{', '.join(differences)} for record {at + row} of {shard.name}"
            if length > 1:
                reason += f"; the {length - 1:,} rows after it are wrong as well"
            shard.problems.add(index.names["rows"], reason, record=first + at + row)
        at += end - begin
    if not shard.is_corrupt and shard.records != count:
        shard.problems.add(
            index.names["rows"],
            f"the index has {count:,} rows for {shard.name}, which has {shard.records:,} records",
            record=first + min(shard.records, count),
        )


def _runs_of(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the first position and the length of each run of true values."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2).tolist():
        yield begin, end - begin


def _difference(metadata: IndexMetadata, field: str, found: int, expected: int) -> str:
    if field != "label":
        return f"{field} is {found}; must be {expected}"
    if metadata.label_strings is not None and expected < 0:
        return f"label is {_shown_class(metadata, found)}; must be a class that is not in the index"
    return f"label is {_shown_class(metadata, found)}; must be {_shown_class(metadata, expected)}"


def _shown_class(metadata: IndexMetadata, label: int) -> str:
    names = metadata.class_names
    if names is None or not 0 <= label < len(names):
        return f"class {label}"
    return f"class {label} ({names[label]!r})"


def compare_classes(index: LoadedIndex, problems: Problems) -> None:
    """Rebuild the class table and the records by class from the rows, and compare them."""
    metadata, rows, classes = index.metadata, index.rows, index.classes
    if metadata is None or rows is None or classes is None or not index.is_intact:
        return  # a problem is reported already
    by_class = np.zeros(len(rows), id_dtype(len(rows)))
    expected = class_table(rows["label"])
    sort_by_class(rows["label"], expected, by_class)
    file = index.names["classes"]
    if not np.array_equal(classes, expected):
        counts = dict(zip(classes["label"].tolist(), classes["records"].tolist(), strict=True))
        right = dict(zip(expected["label"].tolist(), expected["records"].tolist(), strict=True))
        for label in dict.fromkeys((*right, *counts)):
            found, count = counts.get(label, 0), right.get(label, 0)
            if found != count:
                name = _shown_class(metadata, label)
                problems.add(file, f"{name} has {found:,} records; the rows have {count:,}")
        if counts == right:
            problems.add(file, "the classes are not sorted, or their first records are wrong")
    if index.by_class is not None and (wrong := index.by_class != by_class).any():
        row, count = int(np.argmax(wrong)), int(wrong.sum())
        more = f"; {count - 1:,} more rows are wrong" if count > 1 else ""
        problems.add(
            index.names["by_class"],
            f"the record is {index.by_class[row]}; must be {by_class[row]}{more}",
            record=row,
        )


# The features.


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
