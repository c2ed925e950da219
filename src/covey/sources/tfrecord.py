"""TFRecord files and TFDS directories, read through :func:`covey.open`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from covey.dataset.dataset import Dataset
from covey.dataset.layout import Layout, find_layout
from covey.dataset.open import open as open_dataset
from covey.dataset_info import ALL_REPLACED, drop_replaced
from covey.errors import CorruptRecordError, ExampleError, FileChangedError
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
    choose_label,
    open_split_files,
    source_error,
)
from covey.untrusted import read_file

# Records that are decoded together.
_BATCH = 256


@dataclass(frozen=True, eq=False)
class _DatasetItems:
    """The examples of a dataset, keyed by file and record. Every pass reads them in batches."""

    dataset: Dataset
    root: str
    """Directory that the file names in keys are relative to."""
    path: str | Sequence[str]
    split: str

    def __reduce__(self) -> tuple[Any, ...]:
        # The machine may not have the cached index: the dataset is opened there.
        return _restore, (self.root, self.path, self.split, len(self.dataset))

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the records; those of all splits, if they are in a directory."""
        if not isinstance(self.path, str):
            return tuple(self.path)
        names = filter(is_record_file, os.listdir(self.path))
        return tuple(os.path.join(self.path, each) for each in names)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Item]:
        return self.read_range(0, len(self))

    def read_range(self, begin: int, end: int) -> Iterator[Item]:
        """Yield the items from one position to another."""
        for start in range(begin, end, _BATCH):
            ids = range(start, min(start + _BATCH, end))
            try:
                columns = self.dataset[ids.start : ids.stop]
            except (CorruptRecordError, ExampleError):
                yield from map(self._read, ids, self._keys(ids))
                continue
            for row, key in enumerate(self._keys(ids)):
                yield key, row_of(columns, row)

    def _read(self, position: int, key: str) -> Item:
        try:
            return key, self.dataset[position]
        except (CorruptRecordError, ExampleError) as error:
            return as_source_error(error, self.root)

    def _keys(self, ids: range) -> list[str]:
        """Return the keys of consecutive examples."""
        first, last = self.dataset.place(ids[0]), self.dataset.place(ids[-1])
        if first.name != last.name:
            middle = len(ids) // 2
            return self._keys(ids[:middle]) + self._keys(ids[middle:])
        name = os.path.relpath(first.name, self.root)
        return [f"{name}:{first.record + i}" for i in range(len(ids))]


def _restore(root: str, path: str | Sequence[str], split: str, length: int) -> _DatasetItems:
    """Restore items in another process."""
    dataset = _open(path, split)
    if len(dataset) != length:
        raise FileChangedError(f"there were {length} records, now {len(dataset)}", path=root)
    return _DatasetItems(dataset, root, path, split)


def _open(path: str | Sequence[str], split: str) -> Dataset:
    """Open records; raise SourceError if one of them is corrupt."""
    try:
        return open_dataset(path, split=split, progress=False)
    except (CorruptRecordError, ExampleError) as error:
        found = as_source_error(error, str(path))
        found.remedy = "`covey repair` writes the valid records to another dataset"
    raise found


# TFRecord files.


def _record_files(probed: ProbedPath) -> list[str]:
    """Return the TFRecord files at a path, by name."""

    def read_info(directory: str) -> bytes | None:
        path = os.path.join(directory, INFO_FILE)
        return read_file(path) if os.path.isfile(path) else None

    found = [file for file in probed.files if is_record_file(os.path.basename(file))]
    current = found if probed.is_file else drop_replaced(found, read_info)
    if found and not current:
        raise source_error(found[0], ALL_REPLACED)
    return current


@register(
    "TFRecords",
    "a TFRecord file of Examples, a directory or a pattern of them",
    recognise=lambda probed: bool(_record_files(probed)) and not _prepared(probed),
)
def open_tfrecords(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open TFRecord files. All records are read once to infer their features."""
    found = _record_files(probed) or list(probed.files)
    if not found:
        raise source_error(probed.path, f"found {probed.describe()}, but no TFRecord file")
    return open_split_files(
        list(map(os.path.abspath, found)), partial(_open_files, probed.path, options.label)
    )


def _open_files(path: str, label: str | None, files: list[str]) -> Source:
    """Open the files of one split."""
    dataset = _open(files, "all")
    if not len(dataset):
        raise source_error(path, "there are no records")
    features = Features({name: _writable(kind) for name, kind in dataset.features.items()})
    choose_label(label, features, path)
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    items = _DatasetItems(dataset, root, files, "all")
    label = label or guess_label(features)
    return Source("TFRecords", path, items, length=len(items), features=features, label=label)


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
    files = {os.path.split(path) for path in probed.below}
    return any((home, FEATURES_FILE) in files for home, name in files if name == INFO_FILE)


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
    path = layout.path
    dataset = _open(path, split)
    features = dataset.features
    if layout.features is not None:  # which may have classes of other splits
        features = add_classes(features, layout.features)
    choose_label(label, features, path)
    items = _DatasetItems(dataset, path, path, split)
    label = label or layout.label or guess_label(features)
    return Source("TFDS directory", path, items, length=len(items), features=features, label=label)


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
        found = type(builder).__name__
        raise TypeError(f"builder is of type {found}; must be a TFDS builder with a data_dir")
    directory = os.fspath(directory)
    if not os.path.isfile(os.path.join(directory, INFO_FILE)):
        remedy = "call download_and_prepare() of the builder first"
        raise source_error(directory, "the dataset is not prepared", remedy=remedy)
    return open_source(directory, kind="TFDS directory", label=label, split=split)
