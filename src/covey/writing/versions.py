"""Versions of splits: which files a dataset refers to, and which are obsolete."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from covey.dataset_info import DatasetInfo, SplitInfo
from covey.errors import DatasetError
from covey.filenames import (
    INFO_FILE,
    parse_version_file,
    shard_of_version_file,
    split_of_version_file,
    token_time,
)
from covey.index import index_names
from covey.storage import LocalStorage, Storage

RETENTION_S = 60.0
"""Minimum time that files of a replaced version remain, for readers that have just opened it."""
ABANDONED_S = 86400.0
"""Time after which a write without a commit is considered abandoned."""


def read_info(
    location: str | Path,
    storage: Storage = LocalStorage(),  # noqa: B008
) -> DatasetInfo | None:
    """Return the content of ``dataset_info.json``; None if there is no such file."""
    path = storage.join(os.fspath(location), INFO_FILE)
    try:
        return DatasetInfo.from_json(storage.read(path), path)
    except FileNotFoundError:
        return None


def list_names(storage: Storage, location: str) -> set[str]:
    """Return the names in a dataset directory, or of the files of a URL."""
    try:
        if not storage.is_remote:
            return {*os.listdir(location)}
        return {storage.name(path) for path in storage.list(location)}
    except FileNotFoundError:
        return set()


def referenced_files(info: DatasetInfo) -> set[str]:
    """Return the names of the shards and index files of the current version of every split."""
    names: set[str] = set()
    for split in info.splits:
        names.update(split.shard_names(info.name))
        names.update(index_names(split.stem(info.name)).values())
    return names


def find_obsolete(
    names: Iterable[str],
    info: DatasetInfo,
    split: str,
    *,
    replaced: SplitInfo | None,
    now: float,
    retention: float,
) -> list[str]:
    """Return the names of files of old versions of a split that may be deleted.

    The version that was replaced last remains. Those before it are deleted ``retention`` seconds
    after they were replaced, which is when that version was committed. Newer files were never
    committed: their writer was killed, or is active. Files without a token are a version only if
    all its shards exist.

    Args:
        names: Names of all files of the directory.
        info: Current content of ``dataset_info.json``.
        split: Name of the split.
        replaced: Version that was replaced last; None to delete that as well.
        now: Present time, in seconds since the epoch.
        retention: Retention time in seconds.
    """
    keep = referenced_files(info)
    last = replaced
    if replaced is not None:
        keep |= referenced_files(replace(info, splits=(replaced,)))
    else:
        last = next((each for each in info.splits if each.name == split), None)
    since = None if last is None or last.token is None else token_time(last.token)
    found: list[str] = []
    plain: list[str] = []
    for name in names:
        is_own, token = parse_version_file(name, info.name, split)
        if not is_own or name in keep:
            continue
        if token is None:
            plain.append(name)
            continue
        made = token_time(token)
        if since is None or made > since:
            is_obsolete = now - made >= ABANDONED_S
        else:
            is_obsolete = now - since >= retention
        if is_obsolete:
            found.append(name)
    if since is not None and now - since >= retention:
        found += _complete(plain)
    return found


def find_all_obsolete(
    names: Iterable[str],
    info: DatasetInfo,
    splits: Iterable[str],
    replaced: Sequence[SplitInfo] = (),
    retention: float = 0,
) -> list[str]:
    """Return the result of :func:`find_obsolete` for several splits, at the present time.

    Args:
        names: Names of all files of the directory.
        info: Current content of ``dataset_info.json``.
        splits: Names of the splits.
        replaced: Versions that were replaced last, which remain.
        retention: Retention time in seconds.
    """
    last = {split.name: split for split in replaced}
    names, now = list(names), time.time()
    return [
        name
        for split in splits
        for name in find_obsolete(
            names, info, split, replaced=last.get(split), now=now, retention=retention
        )
    ]


def _complete(names: list[str]) -> list[str]:
    """Return the names of index files, and of shards whose version is complete."""
    index = []
    sets: dict[int, dict[int, str]] = defaultdict(dict)
    for name in names:
        shard = shard_of_version_file(name)
        if shard is None:
            index.append(name)
        else:
            sets[shard[1]][shard[0]] = name
    complete = [each for count, each in sets.items() if each.keys() == {*range(count)}]
    return [*index, *(name for each in complete for name in each.values())]


def delete_obsolete(storage: Storage, location: str) -> list[str]:
    """Delete the files of all old versions in a dataset directory; return their names.

    Raises:
        DatasetError: If a shard of the current version is missing: the old version may be needed.
    """
    info = read_info(location, storage)
    if info is None:
        return []
    shards = [name for split in info.splits for name in split.shard_names(info.name)]
    found = storage.stat([storage.join(location, name) for name in shards])
    for name, state in zip(shards, found, strict=True):
        if state is None:
            raise DatasetError(
                "the shard is missing, so that files of old versions are not deleted",
                path=storage.join(location, name),
                remedy="write the split again, or restore the shard",
            )
    names = [storage.name(each) for each in storage.list(location)]
    splits = {each.name for each in info.splits}
    splits.update(filter(None, (split_of_version_file(name, info.name) for name in names)))
    obsolete = sorted(find_all_obsolete(names, info, splits))
    storage.remove([storage.join(location, name) for name in obsolete])
    return obsolete
