"""What there is at a path, even if the files that describe it are corrupt."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from covey._threads import cpu_count
from covey.dataset.layout import Layout, SplitFiles, find_layout
from covey.dataset_info import DatasetInfo
from covey.errors import CoveyError, DatasetError, FeatureError, FormatError, escape
from covey.filenames import INFO_FILE, newest_versions, record_file_stem
from covey.index import ShardFiles
from covey.maintenance.report import Problems
from covey.schema import Features
from covey.schema.tfds import features_from_tfds
from covey.storage import Storage, open_storage
from covey.urls import shown

Path = str | os.PathLike[str]


def look(
    path: Path | Iterable[Path],
    storage_options: Mapping[str, Any] | None,
    problems: Problems,
) -> Layout:
    """Find what is there, as :func:`covey.dataset.layout.find_layout` does.

    A file that describes the dataset, but cannot be read, is a problem, and what it says is taken
    from elsewhere: splits from the names of files, features from the index.

    Raises:
        DatasetError: If there is nothing that covey reads.
    """
    try:
        return find_layout(path, storage_options=storage_options)
    except (FormatError, FeatureError) as error:
        if not isinstance(path, (str, os.PathLike)):
            raise
        storage = open_storage(path, storage_options)
        damaged = _to_blame(storage, storage.clean(path), str(error))
        if damaged is None:
            raise
        problems.add(storage.name(damaged), str(error).removeprefix(f"{damaged}: "))
        return _without(storage, damaged, storage_options)


def _to_blame(storage: Storage, path: str, message: str) -> str | None:
    """The file that an error is about, which begins with its path."""
    directories = [storage.parent(path)] if not storage.is_directory(path) else [path]
    directories += [
        storage.parent(each) for each in storage.glob(storage.join(path, f"*/{INFO_FILE}"))
    ]
    files = (file for directory in directories for file in storage.list(directory))
    return next(
        (file for file in files if message.startswith(escape(f"{file}: ", keep="\n"))), None
    )


def _without(storage: Storage, damaged: str, options: Mapping[str, Any] | None) -> Layout:
    """What there is without a file that is corrupt."""
    directory = storage.parent(damaged)
    features = _features(storage, directory)
    info_path = storage.join(directory, INFO_FILE)
    try:
        info = DatasetInfo.from_json(storage.read(info_path), info_path)
    except (FormatError, FileNotFoundError) as error:
        kind = "dataset" if isinstance(error, FormatError) else "datum"
        listed = newest_versions(storage.name(each) for each in storage.list(directory))
        names = [storage.join(directory, each) for each in listed if record_file_stem(each)]
        if not names:
            return Layout(kind, directory, storage, {}, features)
        found = find_layout([storage.address(each) for each in names], storage_options=options)
        splits = {name: replace(each, stem=_stem(each)) for name, each in found.splits.items()}
        return Layout(kind, directory, storage, splits, features)
    splits = {
        split.name: SplitFiles(
            ShardFiles(storage, directory, split.shard_names(info.name)),
            split.stem(info.name),
            split.shard_lengths,
            split.num_bytes,
        )
        for split in info.splits
    }
    return Layout("dataset", directory, storage, splits, features, info)


def _features(storage: Storage, directory: str) -> Features | None:
    try:
        return features_from_tfds(
            directory, lambda name: storage.read(storage.join(directory, name))
        )
    except (CoveyError, FileNotFoundError):
        return None


def _stem(split: SplitFiles) -> str:
    """What the files of an index are called, by the names of its shards."""
    first, *others = {record_file_stem(name) for name in split.files.names}
    return first if first and not others else split.stem


def choose_splits(layout: Layout, split: str | None) -> tuple[str, ...]:
    """The splits that were asked for: all, one, or several with a ``+`` between them."""
    if split is None:
        return tuple(layout.splits)
    asked = tuple(dict.fromkeys(re.split(r"\s*\+\s*", split)))
    for name in asked:
        if name not in layout.splits:
            there = ", ".join(map(repr, layout.splits)) or "none"
            raise DatasetError(
                f"split is {split!r}, but there is no split {name!r}; the splits are "
                f"{there}, and only whole ones can be chosen here",
                path=layout.path,
            )
    return asked


def check_threads(threads: int | None) -> int:
    """How many threads work: so many as were asked for, or as there are cores."""
    if threads is not None and (type(threads) is not int or threads < 1):
        raise DatasetError(option="threads", found=threads, allowed="an integer, 1 or more")
    return threads or cpu_count()


def named(path: Path | Iterable[Path]) -> str:
    """What was asked for, for people."""
    return shown(os.fsdecode(path)) if isinstance(path, (str, os.PathLike)) else "a list of files"
