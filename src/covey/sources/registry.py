"""The kinds of sources, and finding out which of them something is.

A kind is one function with a decorator that says what it is called, what it is, and how to
recognise it by its contents::

    @register("sound directory", "a directory of WAV files", recognise=holds_sounds)
    def open_sounds(place, *, label, split):
        return Source("sound directory", place.path, examples)
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from covey.errors import CoveyError, SourceError
from covey.sources.source import Source, enumerate_names, fault
from covey.untrusted import RegularFile

HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class ProbedPath:
    """Something that may be a source, as far as a first look goes."""

    path: str
    head: bytes = b""
    """How a file begins; nothing for a directory."""
    files: tuple[str, ...] = ()
    """The paths of the visible files directly in a directory, or those that a pattern matches."""
    directories: tuple[str, ...] = ()
    """The paths of the visible directories directly in it."""
    is_file: bool = True

    @classmethod
    def look(cls, path: str) -> ProbedPath:
        """Look at a file, a directory, or what matches a pattern."""
        try:
            if os.path.isdir(path):
                with os.scandir(path) as entries:
                    inside = sorted(entry.path for entry in entries if entry.name[0] != ".")
                directories = tuple(each for each in inside if os.path.isdir(each))
                files = tuple(each for each in inside if os.path.isfile(each))
                return cls(path, files=files, directories=directories, is_file=False)
            if os.path.exists(path):
                return cls(path, read_head(path), files=(path,))
        except OSError as error:
            reason = error.strerror or str(error).removeprefix(f"{path}: ")
            raise fault(path, f"it cannot be read: {reason}") from None
        matching = sorted(each for each in glob.glob(path, recursive=True) if os.path.isfile(each))
        if not matching:
            what = "no file matches it" if glob.has_magic(path) else "there is no file or directory"
            raise fault(path, f"{what}; give the path of what holds the data")
        return cls(path, files=tuple(matching), is_file=False)

    def describe(self) -> str:
        """Say what was seen, for a message."""
        if not self.is_file:
            if not self.files and not self.directories:
                return "an empty directory"
            parts = [
                f"{len(paths)} {what} ({enumerate_names(map(os.path.basename, paths), 3)})"
                for what, paths in (("files", self.files), ("directories", self.directories))
                if paths
            ]
            return " and ".join(parts)
        if not self.head:
            return "an empty file"
        return f"a file that begins with {self.head[:24]!r}"


class OpenKind(Protocol):
    """What opens a source of one kind."""

    def __call__(self, place: ProbedPath, *, label: str | None, split: str | None) -> Source: ...


@dataclass(frozen=True)
class Kind:
    """One kind of source."""

    name: str
    what: str
    """What it is, in a few words."""
    recognise: Callable[[ProbedPath], bool]
    """Whether something is of this kind, by what is in it."""
    open: OpenKind
    rank: int = 0
    """Those of a lower rank are tried first."""


KINDS: dict[str, Kind] = {}
"""All kinds by their name, in the order in which they are tried."""


def register(
    name: str, what: str, *, recognise: Callable[[ProbedPath], bool], rank: int = 0
) -> Callable[[OpenKind], OpenKind]:
    """Make a function that opens a source known as a kind.

    Args:
        name: What the kind is called.
        what: What it is, in a few words.
        recognise: Whether something is of this kind, by what is in it.
        rank: Kinds of a lower rank are tried first; those that many things could be come last.
    """

    def add(function: OpenKind) -> OpenKind:
        kinds = [*KINDS.values(), Kind(name, what, recognise, function, rank)]
        KINDS.clear()
        KINDS.update((kind.name, kind) for kind in sorted(kinds, key=lambda kind: kind.rank))
        return function

    return add


def open_source(
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    label: str | None = None,
    split: str | None = None,
) -> Source:
    r"""Open labelled data, whatever its kind.

    Args:
        path: A file, a directory, or a pattern such as ``"birds/*.tfrecord"``.
        kind: One of :data:`KINDS`; found out from the contents if not given.
        label: The feature that holds the class; the natural one of the source if not given.
        split: Which split to read, of a source that holds several; others do not ask.

    Raises:
        SourceError: If there is nothing, or nothing that is of a known kind.

    >>> with open("birds.csv", "w") as file:
    ...     _ = file.write("name,label\nhedwig,owl\n")
    >>> list(open_source("birds.csv").examples)
    [(0, {'name': 'hedwig', 'label': 'owl'})]
    """
    named = None if kind is None else _named(kind)
    place = ProbedPath.look(os.fspath(path))
    try:
        found = named or next((each for each in KINDS.values() if each.recognise(place)), None)
        if found is not None:
            return found.open(place, label=label, split=split)
    except OSError as error:
        if isinstance(error, CoveyError):  # which names the file
            raise SourceError(str(error), path=place.path) from None
        what = f"it cannot be read: {error.strerror or error}"
        raise fault(str(error.filename or place.path), what) from None
    except MemoryError:
        raise fault(place.path, "there is not enough memory to read it") from None
    known = "; ".join(f"{each.name}: {each.what}" for each in KINDS.values())
    raise fault(
        place.path,
        f"found {place.describe()}, which is not a kind of source that is known. They are {known}. "
        "If it is one of them, pass kind=",
    )


def _named(kind: str) -> Kind:
    def plain(name: str) -> str:
        return name.lower().replace("-", " ").replace("_", " ")

    for each in KINDS.values():
        if plain(each.name) == plain(kind):
            return each
    raise ValueError(f"kind is {kind!r}; must be one of {', '.join(map(repr, KINDS))}")


def one_file(place: ProbedPath, kind: str) -> str:
    """The path of a place that must be a single file."""
    if not place.is_file:
        raise fault(place.path, f"found {place.describe()}, but {kind} is read from one file")
    return place.path


def read_head(path: str, size: int = HEAD_BYTES) -> bytes:
    """How a file begins."""
    with RegularFile(path) as file:
        return file.read(size)
