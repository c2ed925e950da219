"""The layout of a dataset: which splits and shards a path contains.

A path is a dataset of covey, TFDS or datum, or TFRecord files without metadata.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from covey.dataset_info import ALL_REPLACED, DatasetInfo, drop_replaced, parse_version
from covey.errors import CoveyError, DatasetError, FormatError
from covey.filenames import (
    INFO_FILE,
    SHARD_INFO_FILE,
    find_missing,
    has_sidecar_suffix,
    has_token,
    is_record_file,
    is_staging,
    unique_sidecar_stem,
)
from covey.index import ShardFiles
from covey.labels import declared_label
from covey.schema import Features, Tensor
from covey.splits import SplitTerm, split_of_file
from covey.storage import Storage, open_storage
from covey.tfrecord.compression import begins_like_records
from covey.untrusted import RegularFile, os_errors
from covey.urls import AnyPath, parse_paths, shown

_HEAD_BYTES = 4096
# Records from which features are inferred that the metadata does not describe.
_MAX_INFERRED = 1000

ALL = "all"
"""The split of files whose names contain no split."""


@dataclass(frozen=True)
class SplitFiles:
    """The shards of a split, as far as known without opening them."""

    files: ShardFiles
    stem: str
    """The common start of the names of the index files."""
    records: tuple[int, ...] | None = None
    """The number of records of each shard, if the dataset declares it."""
    bytes: int | None = None
    """The total size of the shards, if the dataset declares it."""
    missing: tuple[str, ...] = ()
    """Shards that do not exist although the names of others count them (``-00002-of-00004``);
    at most 100 of them."""


@dataclass(frozen=True)
class Layout:
    """The splits and shards at a path."""

    kind: str
    """``"dataset"`` (of covey or TFDS), ``"datum"`` or ``"TFRecords"``."""
    path: str
    storage: Storage
    splits: Mapping[str, SplitFiles]
    """The splits by name. Files without splits in their names are the split ``"all"``."""
    describe: Callable[[], Features | None] = lambda: None
    """Function that returns the features that the metadata describes; None if there is none."""
    info: DatasetInfo | None = None

    @cached_property
    def features(self) -> Features | None:
        """The features that the metadata describes; None if there is none.

        They are read when they are needed: an index of covey has the same features.
        """
        return self.describe()

    @property
    def label(self) -> str | None:
        """The label feature that the metadata declares; None if it declares none."""
        name = None if self.info is None else self.info.supervised_label
        return None if name is None else declared_label(self.features, name)

    def is_replaced(self) -> bool:
        """Return whether another version of the dataset was committed after this one was found."""
        if self.info is None:
            return False
        path = self.storage.join(self.path, INFO_FILE)
        try:
            return DatasetInfo.from_json(self.storage.read(path), path) != self.info
        except (CoveyError, OSError):
            return False

    def terms_of(self, paths: Iterable[str]) -> tuple[SplitTerm, ...] | None:
        """Return the splits and shards that files are; None if one is not a shard."""
        left = set(paths)
        terms: list[SplitTerm] = []
        for name, split in self.splits.items():
            chosen = [path in left for path in split.files.paths]
            left.difference_update(split.files.paths)
            if chosen and all(chosen):
                terms.append(SplitTerm(name))
            else:
                numbers = [number for number, is_chosen in enumerate(chosen) if is_chosen]
                terms += [SplitTerm(name, number, number + 1, "shard") for number in numbers]
        return None if left else tuple(terms)


def find_layout(
    path: AnyPath | Iterable[AnyPath],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache_bytes: int | None = None,
) -> Layout:
    """Return the layout of a path.

    Args:
        path: A directory, a file, a glob pattern or a list of files; local or URLs.
        storage_options: The fsspec options for a URL.
        cache_bytes: The limit of the disk cache for remote files.

    Raises:
        DatasetError: If there are no TFRecord files.
    """
    text = parse_paths(path)
    if not isinstance(text, str):
        if not text:
            raise DatasetError("the list of files to open is empty")
        storage = open_storage(text[0], storage_options, cache_bytes=cache_bytes)
        return files_layout(storage, [storage.clean(each) for each in text])
    if not text:
        raise DatasetError("the path to open is empty", remedy="'.' is the current directory")
    storage = open_storage(text, storage_options, cache_bytes=cache_bytes)
    clean = storage.clean(text)
    if storage.is_pattern(text) and not storage.exists(clean):
        found = current_files(storage, storage.glob(text))
        if not found:
            raise DatasetError("no file matches this pattern", path=shown(text))
        if not storage.is_remote:
            _refuse_source(text, found[0])
        return files_layout(storage, found, shown(text), pattern=posixpath.basename(shown(text)))
    if storage.name(clean) == INFO_FILE and storage.exists(clean):
        return _directory(storage, storage.parent(clean))
    if storage.is_remote:
        return _remote(storage, clean, shown(text))
    if storage.is_directory(clean):
        return _directory(storage, clean)
    if not storage.exists(clean):
        raise DatasetError("there is no such file or directory", path=shown(text))
    _refuse_source(text, clean)
    return files_layout(storage, [clean], shown(text))


def _refuse_source(path: str, file: str | None = None) -> None:
    """Raise DatasetError if a local path is a source; `file` of it must not be a TFRecord file."""
    if file is None or not (is_record_file(os.path.basename(file)) or _has_records(file)):
        # covey.sources imports this module, and is not needed to open a dataset.
        error = importlib.import_module("covey.sources.registry").source_hint(path)
        if error is not None:
            raise error


def _remote(storage: Storage, url: str, text: str) -> Layout:
    """Return the layout of a URL, with as few listings as possible.

    Many servers cannot list directories, and HTTP reads a path to find out if it is a directory.
    """
    is_named = is_record_file(storage.name(url)) and not text.endswith("/")
    if is_named and storage.stat([url]) != [None]:
        return files_layout(storage, [url], text)
    described = _described(storage, url)
    if described is not None:
        return described
    if storage.is_directory(url):
        return _undescribed(storage, url)
    if is_named or not storage.exists(url):
        raise DatasetError("there is no such file or directory", path=text)
    return files_layout(storage, [url], text)


def _directory(storage: Storage, directory: str) -> Layout:
    return _described(storage, directory) or _undescribed(storage, directory)


def _described(storage: Storage, directory: str) -> Layout | None:
    """Return the layout of a directory with metadata; None if it has none."""
    return _dataset(storage, directory) or _datum(storage, directory)


def _undescribed(storage: Storage, directory: str) -> Layout:
    """Return the layout of a directory without metadata: of a dataset in it, or of its files."""
    listed = storage.list(directory, recursive=True)
    inner = _inner_dataset(storage, directory, listed)
    if inner is not None:
        return _directory(storage, inner)
    files = _record_files(storage, listed)
    uncommitted = _uncommitted(storage, directory, files)
    if uncommitted and len(uncommitted) == len(files):
        raise DatasetError(
            f"there is no dataset ({INFO_FILE}), only shards of a write that was not committed "
            f"({storage.name(min(uncommitted))}, ...); it is running or was interrupted",
            path=directory,
            remedy="write the dataset again, or open a list of these files",
        )
    files = [each for each in files if each not in uncommitted]
    if not files:
        if not storage.is_remote:
            _refuse_source(directory)
        raise DatasetError(
            f"the directory contains neither a dataset ({INFO_FILE}) nor a TFRecord file",
            path=directory,
        )
    return files_layout(storage, files, directory, directory, pattern="*")


def current_files(storage: Storage, paths: Sequence[str]) -> list[str]:
    """Return the record files that a pattern matched, without files of replaced versions.

    Raises:
        DatasetError: If all of them are files of replaced versions.
    """

    def read(directory: str) -> bytes | None:
        try:
            return storage.read(storage.join(directory, INFO_FILE))
        except FileNotFoundError:
            return None

    files = [each for each in paths if not has_sidecar_suffix(each)]
    current = drop_replaced(files, read)
    if files and not current:
        raise DatasetError(ALL_REPLACED, path=files[0])
    return current


def _uncommitted(storage: Storage, directory: str, files: Sequence[str]) -> set[str]:
    """Return the shards of a write whose ``dataset_info.json`` was not written."""
    staged: set[str] = set()
    if not storage.is_remote:
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                if is_staging(name):
                    staged.update(os.listdir(storage.join(directory, name)))
    names = {each: storage.name(each) for each in files if storage.parent(each) == directory}
    return {each for each, name in names.items() if has_token(name) or name in staged}


def _dataset(storage: Storage, directory: str) -> Layout | None:
    """Return the layout of a dataset of TFDS or covey; None if there is none."""
    path = storage.join(directory, INFO_FILE)
    try:
        info = DatasetInfo.from_json(storage.read(path), path)
    except FileNotFoundError:
        return None
    splits: dict[str, SplitFiles] = {}
    for split in info.splits:
        files = ShardFiles(storage, directory, split.shard_names(info.name))
        stem = split.stem(info.name)
        splits[split.name] = SplitFiles(files, stem, split.shard_lengths, split.num_bytes)
    describe = partial(_features, storage, directory, splits)
    return Layout("dataset", directory, storage, splits, describe, info)


def _features(
    storage: Storage, directory: str, splits: Mapping[str, SplitFiles]
) -> Features | None:
    """Return the features in TFDS' files; None if there are no such files."""
    from covey.schema.tfds import features_from_tfds

    def read(name: str) -> bytes:
        return storage.read(storage.join(directory, name))

    try:
        return features_from_tfds(directory, read, partial(_infer, storage, splits))
    except FileNotFoundError:
        return None


def _infer(storage: Storage, splits: Mapping[str, SplitFiles]) -> Features:
    """Return the features of the values in the first records; lists may have any length."""
    from covey.tfrecord import RecordReader

    for path in (path for split in splits.values() for path in split.files.paths):
        source = storage.open_stream(path) if storage.is_remote else RegularFile(path)
        with source as file, RecordReader(file) as reader:
            records = list(itertools.islice(reader, _MAX_INFERRED))
        if records:
            found = Features.infer_records(records)
            lists = {
                name: Tensor(kind.dtype, (None,), default=[])
                for name, kind in found.items()
                if isinstance(kind, Tensor) and kind.shape
            }
            return found.replace(lists)
    return Features({})


def _datum(storage: Storage, directory: str) -> Layout | None:
    """Return the layout of a directory that datum wrote; None if it is not one."""
    if not storage.exists(storage.join(directory, SHARD_INFO_FILE)):
        return None
    # covey.compat imports this module, and is not needed for other datasets.
    datum = importlib.import_module("covey.compat.datum_schema")
    found = datum.datum_splits(storage, directory)
    name = re.sub(r"\W", "_", storage.name(directory))
    splits = {
        split: SplitFiles(
            ShardFiles(storage, directory, tuple(shards)), f"{name}-{split}", tuple(shards.values())
        )
        for split, shards in found.items()
    }
    describe = partial(datum.datum_features, storage, directory)
    return Layout("datum", directory, storage, splits, describe)


def _inner_dataset(storage: Storage, directory: str, files: Sequence[str]) -> str | None:
    """Return the directory of the newest version of the one dataset below a directory.

    Raises:
        DatasetError: If there are several datasets.
    """
    versions: dict[str, list[tuple[tuple[int, ...], str]]] = {}
    for path in files:
        if storage.name(path) == INFO_FILE:
            inner = storage.parent(path)
            version = parse_version(storage.name(inner))
            dataset = inner if version is None else storage.parent(inner)
            versions.setdefault(dataset, []).append((version or (), inner))
    if directory in versions:
        return max(versions[directory])[1]
    if len(versions) > 1:
        listed = ", ".join(_relative(storage, each, directory) for each in sorted(versions)[:5])
        raise DatasetError(
            f"the directory contains {len(versions)} datasets ({listed})",
            path=directory,
            remedy="open one of them",
        )
    return max(next(iter(versions.values())))[1] if versions else None


def _record_files(storage: Storage, files: Sequence[str]) -> list[str]:
    """Return the TFRecord files among the files of a directory."""
    found = [each for each in files if not has_sidecar_suffix(each)]
    if storage.is_remote:
        return [each for each in found if is_record_file(storage.name(each))]
    return [each for each in found if is_record_file(storage.name(each)) or _has_records(each)]


def _has_records(path: str) -> bool:
    with RegularFile(path) as file, os_errors(path):
        return begins_like_records(file.read(_HEAD_BYTES))


def files_layout(
    storage: Storage,
    paths: Sequence[str],
    path: str | None = None,
    directory: str | None = None,
    *,
    pattern: str | None = None,
) -> Layout:
    """Return the layout of files without metadata; their names may contain splits.

    Args:
        storage: The storage of the files.
        paths: The files.
        path: The path that was opened, for messages.
        directory: The directory, if these are all of its files.
        pattern: The pattern that the names match; None if the files were listed.
    """
    for each, stat in zip(paths, storage.stat(paths), strict=True):
        if stat is None:
            is_directory = storage.is_directory(each)
            reason = "it is a directory" if is_directory else "there is no such file"
            raise DatasetError(f"{reason}; must be a TFRecord file", path=each)
    root = directory if directory is not None else _common_directory(storage, paths)
    names = [_relative(storage, each, root) for each in paths]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DatasetError("the file is listed twice", path=twice)
    by_split: dict[str, list[str]] = {}
    for name in names:
        by_split.setdefault(split_of_file(name) or "", []).append(name)
    if "" in by_split:
        by_split = {ALL: names}
    keeps_index = directory is not None or not any("/" in name for name in names)
    splits = {
        split: SplitFiles(
            ShardFiles(storage, root, tuple(part), keeps_index),
            unique_sidecar_stem(part) if directory is None else f"covey-{split}",
            missing=() if pattern is None else find_missing(part, pattern),
        )
        for split, part in by_split.items()
    }
    return Layout("TFRecords", path or f"{len(paths)} files", storage, splits)


def _common_directory(storage: Storage, paths: Sequence[str]) -> str:
    """Return the deepest directory that contains all files."""
    directory = storage.parent(paths[0])
    while not all(each.startswith(_with_slash(directory)) for each in paths):
        parent = storage.parent(directory)
        if parent == directory:
            raise DatasetError(f"{paths[0]} and {paths[-1]} have no common directory")
        directory = parent
    return directory


def _with_slash(directory: str) -> str:
    if directory.endswith(("/", os.sep)):
        return directory
    return f"{directory}{'/' if '://' in directory else os.sep}"


def _relative(storage: Storage, path: str, directory: str) -> str:
    """Return the path of a file relative to a directory, separated by slashes."""
    name = path[len(_with_slash(directory)) :].replace(os.sep, "/")
    if storage.join(directory, name) != path:
        raise FormatError("the file name is not supported", path=path)
    return name
