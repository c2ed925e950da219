"""What there is at a path: a dataset of covey, TFDS or datum, or just files of records."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import posixpath
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covey.dataset_info import ALL_REPLACED, DatasetInfo, drop_replaced, parse_version
from covey.errors import CoveyError, DatasetError, FeatureError, FormatError
from covey.filenames import INFO_FILE, has_sidecar_suffix, has_token, is_record_file, is_staging
from covey.index import ShardFiles
from covey.schema import Features
from covey.schema.datum import datum_features, datum_splits
from covey.schema.tfds import features_from_tfds
from covey.splits import split_of_file
from covey.storage import Storage, open_storage
from covey.tfrecord.compression import begins_like_records
from covey.untrusted import open_file, os_errors
from covey.urls import shown

# Shards that count each other.
_NUMBERED = re.compile(
    r"(?P<before>.*[-_.])(?P<number>[0-9]{1,9})-of-(?P<count>[0-9]{1,9})(?P<after>[^/]*)"
)
_MAX_ABSENT = 100

# How long a writer may take between two files that describe the features.
_REREAD_S = 0.05

# What files are called together whose names tell no splits.
ALL = "all"

Path_ = str | os.PathLike[str]


@dataclass(frozen=True)
class SplitFiles:
    """The shards of a split, as far as they are known before they are opened."""

    files: ShardFiles
    stem: str
    """How the files of its index are called."""
    records: tuple[int, ...] | None = None
    """How many records each should have, if something says so."""
    bytes: int | None = None
    """Of all together, if something says so."""
    absent: tuple[str, ...] = ()
    """Shards that should be there by the names of the others (``-00002-of-00004``); the first of
    them if they are many."""


@dataclass(frozen=True)
class Layout:
    """What was found at a path."""

    kind: str
    """``"dataset"`` (of covey or TFDS), ``"datum"`` or ``"TFRecords"``."""
    path: str
    storage: Storage
    splits: Mapping[str, SplitFiles]
    """By name. Files that tell no splits are one, which is called ``"all"``."""
    features: Features | None
    info: DatasetInfo | None = None

    def is_replaced(self) -> bool:
        """Return whether another version of the dataset was committed since this one was found."""
        if self.info is None:
            return False
        path = self.storage.join(self.path, INFO_FILE)
        try:
            return DatasetInfo.from_json(self.storage.read(path), path) != self.info
        except (CoveyError, OSError):
            return False


def find_layout(
    path: Path_ | Iterable[Path_],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache_bytes: int | None = None,
) -> Layout:
    """Look at what there is.

    Args:
        path: A directory, a file, a pattern of files, or a list of files; local, or a URL.
        storage_options: What fsspec needs to open a URL.
        cache_bytes: How much of remote files is kept on disk.

    Raises:
        DatasetError: If there is nothing that covey reads.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        listed = [os.fsdecode(each) for each in path]
        if not listed:
            raise DatasetError("the list of files to open is empty")
        storage = open_storage(listed[0], storage_options, cache_bytes=cache_bytes)
        return _files(storage, [storage.clean(each) for each in listed], f"{len(listed)} files")
    text = os.fsdecode(path)
    if not text:
        raise DatasetError("the path to open is empty; '.' is the current directory")
    storage = open_storage(text, storage_options, cache_bytes=cache_bytes)
    clean = storage.clean(text)
    if storage.is_pattern(text) and not storage.exists(clean):
        found = current_files(storage, storage.glob(text))
        if not found:
            raise DatasetError("no file fits this pattern", path=shown(text))
        return _files(storage, found, shown(text), pattern=posixpath.basename(shown(text)))
    if storage.name(clean) == INFO_FILE and storage.exists(clean):
        return _directory(storage, storage.parent(clean))
    if storage.is_remote:
        return _behind_url(storage, clean, shown(text))
    if storage.is_directory(clean):
        return _directory(storage, clean)
    if not storage.exists(clean):
        raise DatasetError("there is no such file or directory", path=shown(text))
    return _files(storage, [clean], shown(text))


def _behind_url(storage: Storage, url: str, text: str) -> Layout:
    """What a URL leads to, without looking into files, nor listing directories that are described.

    Many servers list nothing, and HTTP finds out what is a directory by reading it.
    """
    named = is_record_file(storage.name(url)) and not text.endswith("/")
    if named and storage.stat([url]) != [None]:
        return _files(storage, [url], text)
    described = _described(storage, url)
    if described is not None:
        return described
    if storage.is_directory(url):
        return _undescribed(storage, url)
    if named or not storage.exists(url):
        raise DatasetError(f"{text}: there is no such file or directory")
    return _files(storage, [url], text)


def _directory(storage: Storage, directory: str) -> Layout:
    """What a directory is."""
    return _described(storage, directory) or _undescribed(storage, directory)


def _described(storage: Storage, directory: str) -> Layout | None:
    """A directory in which something says what there is."""
    return _dataset(storage, directory) or _datum(storage, directory)


def _undescribed(storage: Storage, directory: str) -> Layout:
    """A directory of other directories, or of files."""
    files = storage.list(directory, recursive=True)
    inner = _inner_dataset(storage, directory, files)
    if inner is not None:
        return _directory(storage, inner)
    found_files = _record_files(storage, files)
    uncommitted = _uncommitted(storage, directory, found_files)
    if uncommitted:
        described = _described(storage, directory)  # a writer may have committed meanwhile
        if described is not None:
            return described
    if uncommitted and len(uncommitted) == len(found_files):
        raise DatasetError(
            f"there is no dataset ({INFO_FILE}), only shards of a write that was not "
            f"committed ({storage.name(min(uncommitted))}, ...); it is still running or "
            "was interrupted: write the dataset again, or open a list of these files",
            path=directory,
        )
    found_files = [each for each in found_files if each not in uncommitted]
    if not found_files:
        raise DatasetError(
            f"there is no dataset ({INFO_FILE}) and no TFRecord file in this directory",
            path=directory,
        )
    return _files(storage, found_files, directory, directory, pattern="*")


def current_files(storage: Storage, paths: Sequence[str]) -> list[str]:
    """The files with records among those that a pattern matches, without replaced versions.

    Raises:
        DatasetError: If all of them are of replaced versions.
    """

    def read(directory: str) -> bytes | None:
        try:
            return storage.read(storage.join(directory, INFO_FILE))
        except FileNotFoundError:
            return None

    files = [each for each in paths if not has_sidecar_suffix(each)]
    current = drop_replaced(files, read)
    if files and not current:
        raise DatasetError(f"{files[0]}: {ALL_REPLACED}")
    return current


def _uncommitted(storage: Storage, directory: str, files: Sequence[str]) -> set[str]:
    """The shards of a write whose ``dataset_info.json`` was not written."""
    staged: set[str] = set()
    if not storage.is_remote:
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                if is_staging(name):
                    staged.update(os.listdir(storage.join(directory, name)))
    names = {each: storage.name(each) for each in files if storage.parent(each) == directory}
    return {each for each, name in names.items() if has_token(name) or name in staged}


def _dataset(storage: Storage, directory: str) -> Layout | None:
    """A dataset as TFDS and covey lay it out."""
    path = storage.join(directory, INFO_FILE)
    try:
        info = DatasetInfo.from_json(storage.read(path), path)
    except FileNotFoundError:
        return None

    features = _features(storage, directory)
    splits = {}
    for split in info.splits:
        files = ShardFiles(storage, directory, split.shard_names(info.name))
        stem = split.stem(info.name)
        splits[split.name] = SplitFiles(files, stem, split.shard_lengths, split.num_bytes)
    return Layout("dataset", directory, storage, splits, features, info)


def _features(storage: Storage, directory: str) -> Features | None:
    """What TFDS' files say of the features; None if there are none: an index says more anyway.

    A writer replaces these files one by one. If they do not go together they are read again, until
    they do, or have not changed.
    """
    before: dict[str, bytes] | None = None
    while True:
        found: dict[str, bytes] = {}

        def read(name: str, found: dict[str, bytes] = found) -> bytes:
            found[name] = storage.read(storage.join(directory, name))
            return found[name]

        try:
            return features_from_tfds(directory, read)
        except FileNotFoundError:
            return None
        except (FormatError, FeatureError):
            if found == before:
                raise
            before = found
            time.sleep(_REREAD_S)


def _datum(storage: Storage, directory: str) -> Layout | None:
    """A directory that datum wrote."""
    found = datum_splits(storage, directory)
    if found is None:
        return None
    name = re.sub(r"\W", "_", storage.name(directory))
    splits = {
        split: SplitFiles(
            ShardFiles(storage, directory, tuple(shards)), f"{name}-{split}", tuple(shards.values())
        )
        for split, shards in found.items()
    }
    return Layout("datum", directory, storage, splits, datum_features(storage, directory))


def _inner_dataset(storage: Storage, directory: str, files: Sequence[str]) -> str | None:
    """The newest version of the one dataset that a directory holds, as TFDS lays them out.

    Raises:
        DatasetError: If it holds several datasets.
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
            f"it holds {len(versions)} datasets ({listed}); open one of them", path=directory
        )
    return max(next(iter(versions.values())))[1] if versions else None


def _record_files(storage: Storage, files: Sequence[str]) -> list[str]:
    """Those that have records in them, of the files of a directory and the directories in it."""
    found = [each for each in files if not has_sidecar_suffix(each)]
    if storage.is_remote:
        return [each for each in found if is_record_file(storage.name(each))]
    return [
        each for each in found if is_record_file(storage.name(each)) or _begins_like_records(each)
    ]


def _begins_like_records(path: str) -> bool:
    with open_file(path) as file, os_errors(path):
        return begins_like_records(file.read(4096))


def _files(
    storage: Storage,
    paths: Sequence[str],
    path: str,
    directory: str | None = None,
    *,
    pattern: str | None = None,
) -> Layout:
    """Files that nothing describes; their names may tell splits.

    Args:
        storage: Where they are.
        paths: The files.
        path: What was asked for.
        directory: The directory, if all of its files were asked for.
        pattern: The names that were asked for; None if every file was named.
    """
    stats = storage.stat(paths)
    for each, stat in zip(paths, stats, strict=True):
        if stat is None:
            what = "it is a directory" if storage.is_directory(each) else "there is no such file"
            raise DatasetError(f"{each}: {what}, where a TFRecord file was expected")
    root = directory if directory is not None else _common_directory(storage, paths)
    names = [_relative(storage, each, root) for each in paths]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DatasetError(f"{twice}: the file is listed twice")
    by_split: dict[str, list[str]] = {}
    for name in names:
        by_split.setdefault(split_of_file(name) or "", []).append(name)
    if "" in by_split:
        by_split = {ALL: names}
    together = directory is not None or not any("/" in name for name in names)
    splits = {
        split: SplitFiles(
            ShardFiles(storage, root, tuple(part), together),
            _stem(split, part, directory),
            absent=() if pattern is None else find_absent(part, pattern),
        )
        for split, part in by_split.items()
    }
    return Layout("TFRecords", path, storage, splits, None)


def find_absent(names: Sequence[str], pattern: str = "*") -> tuple[str, ...]:
    """Return the shards that are not there, though the names of others count them.

    Args:
        names: The shards that are there.
        pattern: Only those whose names match it are missed.

    >>> find_absent(["a-00000-of-00003.tfrecord", "a-00002-of-00003.tfrecord"])
    ('a-00001-of-00003.tfrecord',)
    """
    there: dict[tuple[str, int, str, str], set[int]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found is not None:
            key = found["before"], len(found["number"]), found["count"], found["after"]
            there.setdefault(key, set()).add(int(found["number"]))
    absent: list[str] = []
    for (before, digits, count, after), numbers in sorted(there.items()):
        for number in range(int(count)):
            if number not in numbers:
                name = f"{before}{number:0{digits}}-of-{count}{after}"
                if fnmatch.fnmatchcase(posixpath.basename(name), pattern):
                    absent.append(name)
            if len(absent) >= _MAX_ABSENT or number > len(numbers) + _MAX_ABSENT:
                break
    return tuple(absent[:_MAX_ABSENT])


def _stem(split: str, names: Sequence[str], directory: str | None) -> str:
    """How the index of some files is called: it must not be mistaken for that of others."""
    if directory is not None:
        return f"covey-{split}"
    if len(names) == 1:
        return posixpath.basename(names[0])
    text = "\0".join(names).encode(errors="surrogatepass")
    return f"covey-{hashlib.blake2b(text, digest_size=6).hexdigest()}"


def _common_directory(storage: Storage, paths: Sequence[str]) -> str:
    """The directory that all files are in, some of them perhaps deeper."""
    directory = storage.parent(paths[0])
    while not all(each.startswith(_with_slash(directory)) for each in paths):
        parent = storage.parent(directory)
        if parent == directory:
            raise DatasetError(f"{paths[0]} and {paths[-1]} have no directory in common")
        directory = parent
    return directory


def _with_slash(directory: str) -> str:
    return (
        directory
        if directory.endswith(("/", os.sep))
        else f"{directory}{os.sep if _is_local(directory) else '/'}"
    )


def _is_local(directory: str) -> bool:
    return "://" not in directory


def _relative(storage: Storage, path: str, directory: str) -> str:
    """The name of a file in a directory, with slashes."""
    name = path[len(_with_slash(directory)) :].replace(os.sep, "/")
    if storage.join(directory, name) != path:
        raise FormatError("the file has a name that covey cannot handle", path=path)
    return name
