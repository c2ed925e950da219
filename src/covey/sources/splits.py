"""Sources that hold several splits: telling them apart, and choosing one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from covey.sources.source import fault

# Names for the same thing; somebody who asks for one of them is content with another.
_SAME = (
    ("train", "training"),
    ("validation", "valid", "val", "dev"),
    ("test", "testing"),
    ("eval", "evaluation"),
)
SPLIT_NAMES = frozenset(name for same in _SAME for name in same)
_IN_FILE_NAME = re.compile(rf"(?:^|[-_])({'|'.join(sorted(SPLIT_NAMES))})(?=[-_.])", re.IGNORECASE)


def choose_split(names: Iterable[str], split: str | None, path: str) -> str:
    """The one of these splits that was asked for, or the only one.

    >>> choose_split(["train", "val"], "validation", "birds")
    'val'
    """
    listed = sorted(names)
    if split is None and len(listed) == 1:
        return listed[0]
    if split in listed:
        return split
    for same in _SAME:
        found = [name for name in listed if name.lower() in same]
        if split in same and len(found) == 1:
            return found[0]
    asked = "none was asked for" if split is None else f"{split!r} was asked for"
    raise fault(
        path,
        f"it holds the splits {', '.join(map(repr, listed)) or 'none'}, and {asked}; "
        "pass split= with one of them",
    )


def split_of_file(name: str) -> str | None:
    """The split that the name of a file tells, if it does.

    >>> split_of_file("data/birds-train-00000-of-00002.tfrecord")
    'train'
    """
    found = _IN_FILE_NAME.search(os.path.basename(name))
    return found[1] if found else None


def files_of_split(files: Sequence[str], split: str | None, path: str) -> list[str]:
    """Of files whose names tell several splits apart, those of the one that was asked for.

    >>> files_of_split(["train-0.parquet", "train-1.parquet", "test-0.parquet"], "test", "birds")
    ['test-0.parquet']
    """
    by_split: dict[str, list[str]] = {}
    for file in files:
        by_split.setdefault(split_of_file(file) or "", []).append(file)
    if len(by_split) < 2 or "" in by_split:
        return list(files)
    return by_split[choose_split(by_split, split, path)]
