"""TFRecord files and TFDS directories, read through :func:`covey.open`."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.dataset.dataset import Dataset
from covey.dataset.layout import Layout, find_layout
from covey.dataset.open import open as open_dataset
from covey.dataset_info import ALL_REPLACED, drop_replaced
from covey.errors import (
    CorruptRecordError,
    ExampleError,
    FileChangedError,
    SkippedRecordsWarning,
    SourceError,
)
from covey.filenames import FEATURES_FILE, INFO_FILE, is_record_file
from covey.labels import guess_label
from covey.schema import Feature, Features, Ragged, Steps, Tensor
from covey.schema.codec import row_of
from covey.schema.merge import add_classes
from covey.schema.types import REQUIRED
from covey.sources.registry import ProbedPath, open_source, register
from covey.sources.source import (
    Item,
    Source,
    SourceOptions,
    SourceSplits,
    as_source_error,
    check_label,
    open_split_files,
    source_error,
)
from covey.tfrecord import RecordReader
from covey.untrusted import read_file

# Records that are decoded together.
_BATCH = 256


@dataclass(frozen=True, eq=False)
class _DatasetItems:
    """The examples of a dataset, keyed by file and record, after the errors of corrupt parts.

    Every pass reads them in order, in batches.
    """

    dataset: Dataset
    root: str
    """Directory that the file names in keys are relative to."""
    errors: Sequence[SourceError] = field(default=(), repr=False)
    opened: tuple[Any, Mapping[str, Any]] = ((), {})
    """Arguments of :func:`_open`, to open the dataset on another machine."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (pickle.dumps(self.dataset), self.root, self.errors, self.opened)

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the records; those of all splits, if they are in a directory."""
        path, _ = self.opened
        if not isinstance(path, str):
            return tuple(path)
        return tuple(os.path.join(path, each) for each in os.listdir(path) if is_record_file(each))

    def __len__(self) -> int:
        return len(self.errors) + len(self.dataset)

    def __iter__(self) -> Iterator[Item]:
        return self.read_range(0, len(self))

    def read_range(self, begin: int, end: int) -> Iterator[Item]:
        """Yield the items from one position to another."""
        yield from self.errors[begin:end]
        corrupt = self._corrupt_records()
        before = len(self.errors)
        first, last = max(0, begin - before), max(0, end - before)
        for start in range(first, last, _BATCH):
            ids = range(start, min(start + _BATCH, last))
            keys = self._keys(ids, corrupt)
            try:
                columns = self.dataset[ids.start : ids.stop]
            except (CorruptRecordError, ExampleError):
                yield from map(self._read, ids, keys)
                continue
            for row, key in enumerate(keys):
                yield key, row_of(columns, row)

    def _read(self, position: int, key: str) -> Item:
        try:
            return key, self.dataset[position]
        except (CorruptRecordError, ExampleError) as error:
            return as_source_error(error, self.root)

    def _corrupt_records(self) -> dict[str, NDArray[np.int64]]:
        """The ids of the corrupt records of each file."""
        found: dict[str, list[int]] = {}
        for error in self.errors:
            if error.record is not None:
                found.setdefault(error.path or "", []).append(error.record)
        return {path: np.array(sorted(ids), np.int64) for path, ids in found.items()}

    def _keys(self, ids: range, corrupt: Mapping[str, NDArray[np.int64]]) -> list[str]:
        """The keys of consecutive examples; corrupt records are counted too."""
        first, last = self.dataset.place(ids[0]), self.dataset.place(ids[-1])
        if first.name != last.name:
            middle = len(ids) // 2
            return self._keys(ids[:middle], corrupt) + self._keys(ids[middle:], corrupt)
        records = first.record + np.arange(len(ids))
        skipped = corrupt.get(first.name)
        if skipped is not None:
            records += np.searchsorted(skipped - np.arange(len(skipped)), records, side="right")
        name = os.path.relpath(first.name, self.root)
        return [f"{name}:{record}" for record in records.tolist()]


def _restore(
    pickled: bytes, root: str, errors: Sequence[SourceError], opened: tuple[Any, Mapping[str, Any]]
) -> _DatasetItems:
    """Restore items in another process, whose machine may not have the cached index."""
    try:
        dataset: Dataset = pickle.loads(pickled)
    except FileChangedError:
        path, options = opened
        dataset, found = _open(path, **options)
        if len(found) != len(errors):
            raise
    return _DatasetItems(dataset, root, errors, opened)


def _open(path: str | Sequence[str], **options: Any) -> tuple[Dataset, list[SourceError]]:
    """Open records; return the dataset of the valid ones, and the errors of the others."""
    with warnings.catch_warnings():  # the errors are items of the source
        warnings.simplefilter("ignore", SkippedRecordsWarning)
        dataset = open_dataset(path, on_error="skip", progress=False, **options)
    errors = []
    for part in dataset.skipped:
        rest = "the rest of the file is lost" if part.bytes is None else "the next record is valid"
        reason = f"{part.reason}; {rest}"
        errors.append(source_error(part.path or "", reason, record=part.record, offset=part.offset))
    return dataset, errors


# TFRecord files.


def _record_files(probed: ProbedPath) -> list[str]:
    """Return the TFRecord files at a path, by name."""
    found = [file for file in probed.files if is_record_file(os.path.basename(file))]
    current = found if probed.is_file else drop_replaced(found, _read_info)
    if found and not current:
        raise source_error(found[0], ALL_REPLACED)
    return current


def _read_info(directory: str) -> bytes | None:
    try:
        return read_file(Path(directory, INFO_FILE))
    except FileNotFoundError:
        return None


@register(
    "TFRecords",
    "a TFRecord file of Examples, a directory or a pattern of them",
    recognise=lambda probed: bool(_record_files(probed)) and not _prepared(probed),
)
def open_tfrecords(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open TFRecord files. All records are read once to infer their features."""
    found = _record_files(probed) or list(probed.files if not probed.directories else ())
    if not found:
        raise source_error(probed.path, f"found {probed.describe()}, but no TFRecord file")
    return open_split_files(
        list(map(os.path.abspath, found)), partial(_open_files, probed.path, options.label)
    )


def _open_files(path: str, label: str | None, files: list[str]) -> Source:
    """Open the files of one split."""
    options: dict[str, Any] = {"split": "all"}
    try:
        dataset, errors = _open(files, **options)
    except ExampleError:  # this record is an unreadable item, not an unreadable source
        options["features"] = _infer_valid(files)
        dataset, errors = _open(files, **options)
    if not len(dataset) and not errors:
        raise source_error(path, "there are no records")
    features = Features({name: _writable(kind) for name, kind in dataset.features.items()})
    check_label(label, features, path)
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    items = _DatasetItems(dataset, root, errors, (files, options))
    return Source(
        "TFRecords",
        path,
        items,
        length=len(items),
        features=features,
        label=label or guess_label(features),
    )


def _infer_valid(files: Sequence[str]) -> Features:
    """Infer features from the records that are Examples."""

    def records() -> Iterator[bytes]:
        probe = _core.Survey()
        for file in files:
            with RecordReader(file, on_error="skip") as reader:
                for record in reader:
                    try:
                        probe.add(record)
                    except _core.Fault:
                        continue
                    yield record

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedRecordsWarning)
        return Features.infer_records(records())


def _writable(kind: Feature) -> Feature:
    """Return the feature of an Example that stores the steps of a SequenceExample."""
    if not isinstance(kind, Steps):
        return kind
    default = REQUIRED if kind.default is REQUIRED else []
    if None in kind.shape:
        return Ragged(kind.dtype, default=default)
    return Tensor(kind.dtype, (None, *kind.shape), default=default)


# TFDS directories.


def _prepared(probed: ProbedPath) -> bool:
    """Return whether a directory, or one below it, has the metadata of a dataset."""
    files = {*probed.below}
    homes = (os.path.dirname(path) for path in files if os.path.basename(path) == INFO_FILE)
    return any(os.path.join(home, FEATURES_FILE) in files for home in homes)


@register("TFDS directory", "a directory that TFDS or covey wrote", recognise=_prepared)
def open_tfds(probed: ProbedPath, options: SourceOptions) -> SourceSplits:
    """Open the splits of a TFDS directory. Images stay encoded."""
    if not _prepared(probed):
        raise source_error(
            probed.path, f"found {probed.describe()}, but not {INFO_FILE} and {FEATURES_FILE}"
        )
    layout = find_layout(probed.path)
    return SourceSplits(
        {split: partial(_open_split, layout, split, options.label) for split in layout.splits}
    )


def _open_split(layout: Layout, split: str, label: str | None) -> Source:
    directory = layout.path
    dataset, errors = _open(directory, split=split)
    expected = sum(layout.splits[split].records or ())
    if not errors and len(dataset) != expected:
        reason = f"split {split!r} has {len(dataset)} records; {INFO_FILE} lists {expected}"
        errors.append(source_error(directory, reason))
    features = dataset.features
    if layout.features is not None:  # which may have classes of other splits
        features = add_classes(features, layout.features)
    check_label(label, features, directory)
    items = _DatasetItems(dataset, layout.path, errors, (directory, {"split": split}))
    return Source(
        "TFDS directory",
        directory,
        items,
        length=len(items),
        features=features,
        label=label or layout.label or guess_label(features),
    )


def from_tfds_builder(
    builder: Any, split: str | None = None, *, label: str | None = None
) -> Source:
    """Open a split that a TFDS builder prepared, without TFDS.

    Args:
        builder: Result of ``tfds.builder("mnist")``, after ``download_and_prepare()``.
        split: Name of the split (default: the only one).
        label: Label feature (default: that of the dataset).
    """
    directory = getattr(builder, "data_dir", None)
    if not isinstance(directory, (str, os.PathLike)):
        raise TypeError(
            f"builder is of type {type(builder).__name__}; must be a TFDS builder with a data_dir"
        )
    directory = os.fspath(directory)
    if not os.path.isfile(os.path.join(directory, INFO_FILE)):
        raise source_error(
            directory,
            "the dataset is not prepared",
            remedy="call download_and_prepare() of the builder first",
        )
    return open_source(directory, kind="TFDS directory", label=label, split=split)
