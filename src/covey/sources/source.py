"""The Source class, and functions that several formats use."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, overload

from covey._text import outline
from covey.errors import CoveyError, SourceError, shorten
from covey.errors import list_names as list_names
from covey.labels import LABEL_NAMES
from covey.results import count_of
from covey.schema import Features
from covey.splits import SPLIT_ALIASES, split_of_file
from covey.urls import shown

Key = str | int
Item = tuple[Key, dict[str, Any]] | SourceError


@dataclass(frozen=True, eq=False)
class Source:
    """Labelled data in a file or directory.

    Every pass over ``examples`` yields the same items in the same order: (key, example) pairs with
    unique keys, and a :class:`SourceError` in place of an item that cannot be read. The consumer
    raises the error or skips the item.
    """

    kind: str
    """Name of the format: ``"image directory"``, ``"CSV"``."""
    path: str
    """Path of the file or directory."""
    examples: Iterable[Item]
    """The items; a picklable sequence if they can be read by position."""
    _: KW_ONLY
    length: int | None = None
    """Number of items, unreadable ones included; None if counting them is expensive."""
    features: Features | None = None
    """Schema of the examples; None if it must be inferred."""
    label: str | None = None
    """Label feature; None if the format does not define one."""
    columns: Mapping[str, Any] | None = None
    """The same data by column, if the format stores columns."""

    def __repr__(self) -> str:
        count = "" if self.length is None else f", {count_of(self.length, 'example')}"
        label = "no label" if self.label is None else f"label {shorten(self.label)!r}"
        rows = ((name, each.summary) for name, each in (self.features or {}).items())
        return outline(f"<Source: {self.kind} {shorten(self.path, 80)}{count}, {label}>", rows)


class LazyItems(Sequence[Item], abc.ABC):
    """Items that are read on access. The pickle of an instance contains no examples."""

    @abc.abstractmethod
    def read(self, position: int) -> Item:
        """Return the item at a position in ``range(len(self))``."""

    @overload
    def __getitem__(self, key: int) -> Item: ...

    @overload
    def __getitem__(self, key: slice) -> list[Item]: ...

    def __getitem__(self, key: int | slice) -> Item | list[Item]:
        if isinstance(key, slice):
            return [self.read(position) for position in range(*key.indices(len(self)))]
        if not -len(self) <= key < len(self):
            raise IndexError(f"item {key} of a source of {len(self)}")
        return self.read(key % len(self))


def source_error(path: str, reason: str, line: int | None = None, **fields: Any) -> SourceError:
    """Return the error of a file, or of a line of it, without the credentials of a URL.

    >>> str(source_error("birds.csv", "the label is empty", 7))
    'birds.csv:7: the label is empty'
    """
    return SourceError(reason, path=shown(path), line=line, **fields)


def as_source_error(error: CoveyError, path: str) -> SourceError:
    """Return a SourceError with the fields of another error; `path` is used if it has none."""
    names = (
        "line",
        "example",
        "record",
        "offset",
        "feature",
        "option",
        "found",
        "allowed",
        "remedy",
    )
    fields = {name: getattr(error, name) for name in names}
    return source_error(error.path or path, error.reason, **fields)


def find_label_name(names: Iterable[str], also: Sequence[str] = ()) -> str | None:
    """Return the first name that is a common name of a label, or None.

    >>> find_label_name(["Image", "Class", "weight"])
    'Class'
    """
    lowered = {name.lower(): name for name in names}
    found = (lowered[name] for name in (*LABEL_NAMES, *also) if name in lowered)
    return next(found, None)


def check_label(label: str | None, names: Iterable[str], path: str) -> None:
    """Raise SourceError if the requested label is not one of the features."""
    listed = list(names)
    if label is not None and label not in listed:
        raise source_error(path, "", option="label", found=label, choices=listed)


def choose_split(names: Iterable[str], split: str | None, path: str) -> str:
    """Return the requested split, under its name in the source; or the only split.

    >>> choose_split(["train", "val"], "validation", "birds")
    'val'
    """
    listed = sorted(names)
    if split is None and len(listed) == 1:
        return listed[0]
    if split in listed:
        return split
    for synonyms in SPLIT_ALIASES:
        found = [name for name in listed if name.lower() in synonyms]
        if split in synonyms and len(found) == 1:
            return found[0]
    raise source_error(path, "", option="split", found=split, choices=listed)


def files_of_split(files: Sequence[str], split: str | None, path: str) -> list[str]:
    """Return the files of the requested split; all files if their names do not contain splits.

    >>> files_of_split(["train-0.parquet", "train-1.parquet", "test-0.parquet"], "test", "birds")
    ['test-0.parquet']
    """
    by_split: dict[str, list[str]] = {}
    for file in files:
        by_split.setdefault(split_of_file(file) or "", []).append(file)
    if len(by_split) < 2 or "" in by_split:
        return list(files)
    return by_split[choose_split(by_split, split, path)]
