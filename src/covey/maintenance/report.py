"""What maintenance reports on: the layout at a path, its splits, and the problems found there."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from covey.dataset.layout import Layout, SplitFiles, find_layout
from covey.errors import CoveyError, DatasetError, FeatureError, FormatError, cpu_count, list_names
from covey.filenames import INFO_FILE, newest_versions, record_file_stem
from covey.results import Problem
from covey.schema import Features
from covey.schema.tfds import features_from_tfds
from covey.storage import Storage, open_storage
from covey.urls import AnyPath, is_path, parse_path, shown

_METADATA_SUFFIXES = (".json", ".txt")

MAX_PROBLEMS = 10_000
"""Most problems of one file that are listed by default."""


class Problems:
    """A list of problems; of each file at most ``max_per_file`` are listed, the rest are counted.

    Args:
        split: Split of the problems.
        max_per_file: Most problems of one file that are listed; None lists all.
    """

    def __init__(self, split: str | None = None, max_per_file: int | None = MAX_PROBLEMS) -> None:
        self.listed: list[Problem] = []
        self.unlisted = 0
        """Number of problems that were only counted."""
        self._split = split
        self._max_per_file = max_per_file
        self._counts: dict[str, int] = {}

    def add(
        self, file: str, reason: str, *, record: int | None = None, offset: int | None = None
    ) -> None:
        """Add a problem; the arguments are the fields of :class:`covey.results.Problem`."""
        count = self._counts[file] = self._counts.get(file, 0) + 1
        if self._max_per_file is not None and count > self._max_per_file:
            self.unlisted += 1
        else:
            self.listed.append(Problem(file, record, offset, reason, self._split))


def reason_of(error: Exception) -> str:
    """Return the message of an error without its location.

    >>> reason_of(FormatError("the checksum does not match", path="a.tfrecord", record=3))
    'the checksum does not match'
    """
    if isinstance(error, CoveyError):
        error = copy.copy(error)
        error.path = error.line = error.record = error.offset = None
    elif isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def find_readable_layout(
    path: AnyPath | Iterable[AnyPath], storage_options: Mapping[str, Any] | None, problems: Problems
) -> Layout:
    """Find the layout at a path, even if a metadata file of the dataset is corrupt.

    A corrupt metadata file is added to the problems. Splits are then found by the names of the
    shards, and features in the index.

    Raises:
        DatasetError: If there is no dataset and no TFRecord file.
    """
    layout = None
    try:
        layout = find_layout(path, storage_options=storage_options)
        layout.features  # noqa: B018 - raises if the files of TFDS or datum are corrupt
        return layout
    except (FormatError, FeatureError) as error:
        corrupt = error.path or ""
        if not corrupt.endswith(_METADATA_SUFFIXES) or not is_path(path):
            raise
        storage = open_storage(parse_path(path), storage_options)
        problems.add(storage.name(corrupt), reason_of(error))
        if layout is not None:
            return replace(layout, describe=lambda: None)
        return _find_shards(storage, storage.parent(corrupt), storage_options)


def _find_shards(storage: Storage, directory: str, options: Mapping[str, Any] | None) -> Layout:
    """Return the layout of a directory whose list of shards is corrupt."""
    describe = partial(_readable_features, storage, directory)
    kind = "dataset" if storage.exists(storage.join(directory, INFO_FILE)) else "datum"
    listed = newest_versions(storage.name(each) for each in storage.list(directory))
    names = [each for each in listed if record_file_stem(each)]
    shards = [storage.address(storage.join(directory, each)) for each in names]
    splits: dict[str, SplitFiles] = {}
    if shards:
        for name, split in find_layout(shards, storage_options=options).splits.items():
            # The index is named like the shards if they have one stem.
            first, *others = {record_file_stem(each) for each in split.files.names}
            splits[name] = replace(split, stem=first) if first and not others else split
    return Layout(kind, directory, storage, splits, describe)


def _readable_features(storage: Storage, directory: str) -> Features | None:
    try:
        return features_from_tfds(
            directory, lambda name: storage.read(storage.join(directory, name))
        )
    except (CoveyError, FileNotFoundError):
        return None


def choose_splits(layout: Layout, split: str | None) -> tuple[str, ...]:
    """Return the names of the splits: all, one, or several joined by ``+``."""
    if split is None:
        return tuple(layout.splits)
    chosen = tuple(dict.fromkeys(re.split(r"\s*\+\s*", split)))
    for name in chosen:
        if name not in layout.splits:
            raise DatasetError(
                path=layout.path,
                option="split",
                found=name,
                allowed=f"one of {list_names(layout.splits)}, or several joined by '+'",
                choices=layout.splits,
            )
    return chosen


def thread_count(threads: int | None) -> int:
    """Validate the option ``threads``; None is the number of CPU cores."""
    if threads is not None and (type(threads) is not int or threads < 1):
        raise DatasetError(option="threads", found=threads, allowed="an integer >= 1")
    return threads or cpu_count()


def shown_path(path: AnyPath | Iterable[AnyPath]) -> str:
    """Return the path for messages, without credentials."""
    return shown(parse_path(path)) if is_path(path) else "a list of files"
