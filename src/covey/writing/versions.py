"""Versions of splits: which files a dataset refers to, and which are obsolete."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
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
from covey.storage import Storage
from covey.untrusted import read_file

RETENTION_S = 60.0
"""How long files of a replaced version stay at least, for readers that have just opened it."""
ABANDONED_S = 86400.0
"""How long files stay that may be of a write in progress."""


def read_info(directory: Path) -> DatasetInfo | None:
    """Return the content of ``dataset_info.json``; None if there is no such file."""
    path = directory / INFO_FILE
    try:
        return DatasetInfo.from_json(read_file(path), str(path))
    except FileNotFoundError:
        return None


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

    The version that was replaced last stays. Those before it are deleted once ``retention`` seconds
    have passed since they were replaced, which is when that version was committed. Files that are
    newer were never committed: their writer was killed, or is still at work. Files without a token
    are those of a version only if all its shards are there.

    Args:
        names: Of all files of the directory.
        info: Of the dataset as it is now.
        split: The split.
        replaced: The version that was replaced last, if it is to stay.
        now: The time.
        retention: In seconds.
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


def _complete(names: list[str]) -> list[str]:
    """Return the names of index files, and of shards of which all are there."""
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
        DatasetError: If a shard of the current version is missing. The old one may be needed then.
    """
    info_path = storage.join(location, INFO_FILE)
    try:
        info = DatasetInfo.from_json(storage.read(info_path), info_path)
    except FileNotFoundError:
        return []
    names = [storage.name(each) for each in storage.list(location)]
    shards = [name for split in info.splits for name in split.shard_names(info.name)]
    found = storage.stat([storage.join(location, name) for name in shards])
    for name, state in zip(shards, found, strict=True):
        if state is None:
            raise DatasetError(
                "the shard is missing, so that files of old versions are not deleted; "
                "write the split again, or restore the shard",
                path=storage.join(location, name),
            )
    splits = {each.name for each in info.splits}
    splits.update(filter(None, (split_of_version_file(name, info.name) for name in names)))
    obsolete = [
        name
        for split in sorted(splits)
        for name in find_obsolete(names, info, split, replaced=None, now=time.time(), retention=0)
    ]
    storage.remove([storage.join(location, name) for name in obsolete])
    return sorted(obsolete)
