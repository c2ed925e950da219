"""Sources that hold several splits: telling them apart, and choosing one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from covey.sources.source import fault
from covey.splits import SPLIT_ALIASES, split_of_file


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
    for same in SPLIT_ALIASES:
        found = [name for name in listed if name.lower() in same]
        if split in same and len(found) == 1:
            return found[0]
    asked = "none was asked for" if split is None else f"{split!r} was asked for"
    raise fault(
        path,
        f"it holds the splits {', '.join(map(repr, listed)) or 'none'}, and {asked}; "
        "pass split= with one of them",
    )


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
