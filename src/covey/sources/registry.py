"""The source formats, and the detection of the format of a path.

A format is a function with a decorator that names and describes it, and recognises its content::

    @register("sound directory", "a directory of WAV files", recognise=has_sounds)
    def open_sounds(probed, *, label, split):
        return Source("sound directory", probed.path, examples)
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from covey.errors import CoveyError, SourceError
from covey.sources.source import Source, as_source_error, list_names, source_error
from covey.untrusted import RegularFile
from covey.urls import AnyPath, parse_path

HEAD_BYTES = 1 << 16


@dataclass(frozen=True)
class ProbedPath:
    """A path, and what is needed to detect its format."""

    path: str
    head: bytes = b""
    """First bytes of a file; empty for a directory."""
    files: tuple[str, ...] = ()
    """Paths of the visible files in a directory, or of those that match a pattern."""
    directories: tuple[str, ...] = ()
    """Paths of the visible subdirectories of a directory."""
    is_file: bool = True

    @classmethod
    def probe(cls, path: str) -> ProbedPath:
        """Inspect a file, a directory, or the files that match a pattern.

        Raises:
            SourceError: If nothing exists at the path, or it cannot be read.
        """
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
            raise _unreadable(error, path) from None
        matching = sorted(each for each in glob.glob(path, recursive=True) if os.path.isfile(each))
        if not matching:
            pattern = glob.has_magic(path)
            raise source_error(path, "no file matches" if pattern else "no such file or directory")
        return cls(path, files=tuple(matching), is_file=False)

    def describe(self) -> str:
        """Return a description of the content, for messages."""
        if not self.is_file:
            if not self.files and not self.directories:
                return "an empty directory"
            parts = [
                f"{len(paths)} {what} ({list_names(map(os.path.basename, paths), 3)})"
                for what, paths in (("files", self.files), ("directories", self.directories))
                if paths
            ]
            return " and ".join(parts)
        if not self.head:
            return "an empty file"
        return f"a file that begins with {self.head[:24]!r}"


class OpenKind(Protocol):
    """Type of the functions that open a source."""

    def __call__(self, probed: ProbedPath, *, label: str | None, split: str | None) -> Source: ...


@dataclass(frozen=True)
class Kind:
    """A source format."""

    name: str
    description: str
    recognise: Callable[[ProbedPath], bool]
    """Returns whether a path has this format."""
    open: OpenKind
    rank: int = 0
    """Formats are tried in ascending order of rank."""


KINDS: dict[str, Kind] = {}
"""The formats by name, in the order in which they are tried."""


def register(
    name: str, description: str, *, recognise: Callable[[ProbedPath], bool], rank: int = 0
) -> Callable[[OpenKind], OpenKind]:
    """Return a decorator that registers a function as the opener of a format.

    Args:
        name: Name of the format.
        description: Description of the format, as a noun phrase.
        recognise: Function that returns whether a path has the format.
        rank: Position in the order of detection. Formats that match many files have a high rank.
    """

    def add(function: OpenKind) -> OpenKind:
        kinds = [*KINDS.values(), Kind(name, description, recognise, function, rank)]
        KINDS.clear()
        KINDS.update((kind.name, kind) for kind in sorted(kinds, key=lambda kind: kind.rank))
        return function

    return add


def open_source(
    path: AnyPath,
    *,
    kind: str | None = None,
    label: str | None = None,
    split: str | None = None,
) -> Source:
    r"""Open labelled data of any registered format.

    Args:
        path: File, directory, or pattern such as ``"birds/*.tfrecord"``.
        kind: Name of the format, one of :data:`KINDS` (default: detected from the content).
        label: Label feature (default: that of the format, or a feature with a common name).
        split: Split to read if the source has several; other sources ignore it.

    Raises:
        SourceError: If the path cannot be read, or no format matches.

    >>> with open("birds.csv", "w") as file:
    ...     _ = file.write("name,label\nhedwig,owl\n")
    >>> list(open_source("birds.csv").examples)
    [(0, {'name': 'hedwig', 'label': 'owl'})]
    """
    named = None if kind is None else find_kind(kind)
    probed = ProbedPath.probe(parse_path(path))
    try:
        found = named or next((each for each in KINDS.values() if each.recognise(probed)), None)
        if found is not None:
            return found.open(probed, label=label, split=split)
    except SourceError:
        raise
    except (CoveyError, OSError) as error:
        raise _unreadable(error, probed.path) from None
    except MemoryError:
        raise source_error(probed.path, "not enough memory to read it") from None
    supported = "; ".join(f"{each.name}: {each.description}" for each in KINDS.values())
    raise source_error(
        probed.path,
        f"found {probed.describe()}, which has no supported format ({supported})",
        remedy="specify kind if it has one of them",
    )


def find_kind(name: str) -> Kind:
    """Return the format of a name; case, ``-`` and ``_`` are ignored.

    Raises:
        SourceError: If there is no such format.
    """

    def fold(text: str) -> str:
        return text.lower().replace("-", " ").replace("_", " ")

    for kind in KINDS.values():
        if fold(kind.name) == fold(name):
            return kind
    raise SourceError(option="kind", found=name, allowed=f"one of {list_names(KINDS, 99)}")


def check_file(probed: ProbedPath, kind: str) -> str:
    """Return the path of a source that must be one file."""
    if not probed.is_file:
        raise source_error(probed.path, f"found {probed.describe()}; {kind} must be one file")
    return probed.path


def read_head(path: str, size: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file."""
    with RegularFile(path) as file:
        return file.read(size)


def _unreadable(error: CoveyError | OSError, path: str) -> SourceError:
    if isinstance(error, CoveyError):
        return as_source_error(error, path)
    return source_error(str(error.filename or path), f"cannot be read: {error.strerror or error}")
