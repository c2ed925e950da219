"""What a source is: (key, example) pairs, and what is known about them beforehand."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, overload

from covey.errors import SourceError
from covey.labels import LABEL_NAMES
from covey.schema import Features
from covey.urls import shown

Key = str | int
Item = tuple[Key, dict[str, Any]] | SourceError


@dataclass(frozen=True, eq=False)
class Source:
    """Labelled data that was found somewhere, ready to be written.

    Every pass over ``examples`` gives the same items in the same order: (key, example) pairs whose
    keys are unique, and a :class:`SourceError` in the place of an item that cannot be read. A caller that
    reads decides whether to raise it or to leave the item out.
    """

    kind: str
    """What it is, as people say it: ``"image directory"``, ``"CSV"``."""
    path: str
    examples: Iterable[Item]
    """A sequence that can be pickled, if every item can be read by its number."""
    _: KW_ONLY
    length: int | None = None
    """How many items there are, the bad ones included; None if finding out is not cheap."""
    features: Features | None = None
    """The schema, if the source is sure of it; None leaves it to be inferred."""
    label: str | None = None
    """The feature that holds the class, if there is a natural one."""
    columns: Mapping[str, Any] | None = None
    """The same data by column, if the source has it that way."""


class LazyItems(Sequence[Item], abc.ABC):
    """Items that are read when they are asked for; pickled, they are a recipe and no data."""

    @abc.abstractmethod
    def read(self, number: int) -> Item:
        """The item with this number, from 0 to below the length."""

    @overload
    def __getitem__(self, key: int) -> Item: ...

    @overload
    def __getitem__(self, key: slice) -> list[Item]: ...

    def __getitem__(self, key: int | slice) -> Item | list[Item]:
        if isinstance(key, slice):
            return [self.read(number) for number in range(*key.indices(len(self)))]
        if not -len(self) <= key < len(self):
            raise IndexError(f"item {key} of a source of {len(self)}")
        return self.read(key % len(self))


def fault(name: str, what: str, line: int | None = None) -> SourceError:
    """An error about a file, or a line of it, with where it is in front.

    >>> fault("birds.csv", "the label is empty", 7)
    SourceError('the label is empty')
    """
    # File systems allow what UTF-8 does not.
    name = shown(name).encode(errors="backslashreplace").decode()
    return SourceError(what, path=name, line=line)


def find_label(names: Iterable[str], also: Sequence[str] = ()) -> str | None:
    """The name that is most likely that of the class, if any is.

    >>> find_label(["Image", "Class", "weight"])
    'Class'
    """
    lowered = {name.lower(): name for name in names}
    found = (lowered[name] for name in (*LABEL_NAMES, *also) if name in lowered)
    return next(found, None)


def check_label(label: str | None, names: Iterable[str], path: str, what: str) -> None:
    """Make sure that a label which was asked for is there at all."""
    listed = list(names)
    if label is not None and label not in listed:
        raise fault(
            path,
            f"there is no {what} {label!r} to take the label from; "
            f"there are {enumerate_names(listed)}",
        )


def enumerate_names(names: Iterable[str], most: int = 8) -> str:
    """Names for a message; not all if they are many.

    >>> enumerate_names("abcd", most=2)
    "'a', 'b' and 2 more"
    """
    listed = [repr(name) for name in names]
    if len(listed) > most:
        return f"{', '.join(listed[:most])} and {len(listed) - most} more"
    return ", ".join(listed) or "none"
