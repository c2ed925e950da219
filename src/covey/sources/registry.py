"""The source formats, and the detection of the format of a path.

A format is a function with a decorator that names and describes it, and recognises its content::

    @register("words", "a file of words", recognise=has_words, options=("delimiter",))
    def open_words(probed, options):
        return Source("words", probed.path, examples)
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from covey._files import is_hidden
from covey.errors import CoveyError, SourceError
from covey.sources.source import (
    Source,
    SourceOptions,
    SourceSplits,
    add_notes,
    as_source_error,
    choose_split,
    list_names,
    source_error,
)
from covey.untrusted import RegularFile
from covey.urls import AnyPath, parse_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from covey.sources.source import SourceKeywords

HEAD_BYTES = 1 << 16
_METADATA_TABLES = ("metadata.csv", "metadata.jsonl")
"""Tables that describe the images of a directory, and are not data of their own."""


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
                    inside = sorted(entry.path for entry in entries if not is_hidden(entry.name))
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

    def __call__(self, probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits: ...


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
    options: frozenset[str] = frozenset()
    """Names of the options of :class:`SourceOptions` that the format has, except ``label``."""
    is_below: bool = False
    """Whether its files may be at any depth below a directory."""

    def check_options(self, options: SourceOptions, path: str) -> None:
        """Raise SourceError if an option is given that the format does not have."""
        for option in options.given():
            if option != "label" and option not in self.options:
                allowed = sorted(self.options)
                raise source_error(
                    path,
                    f"the format of this source is {self.name!r}, whose options are "
                    f"{list_names(['label', *allowed])}",
                    option=option,
                    found=getattr(options, option),
                    allowed="omitted",
                )


KINDS: dict[str, Kind] = {}
"""The formats by name, in the order in which they are tried."""


def register(
    name: str,
    description: str,
    *,
    recognise: Callable[[ProbedPath], bool],
    rank: int = 0,
    options: Iterable[str] = (),
    is_below: bool = False,
) -> Callable[[OpenKind], OpenKind]:
    """Return a decorator that registers a function as the opener of a format.

    Args:
        name: Name of the format.
        description: Description of the format, as a noun phrase.
        recognise: Function that returns whether a path has the format.
        rank: Position in the order of detection. Formats that match many files have a high rank.
        options: Names of the options of :class:`SourceOptions` that the format has, except
            ``label``, which all formats have.
        is_below: Whether its files may be at any depth below a directory. If the directory itself
            has files of another format, it has that format.
    """
    own = frozenset(options)

    def add(function: OpenKind) -> OpenKind:
        kinds = [*KINDS.values(), Kind(name, description, recognise, function, rank, own, is_below)]
        KINDS.clear()
        KINDS.update((kind.name, kind) for kind in sorted(kinds, key=lambda kind: kind.rank))
        return function

    return add


def open_source(
    path: AnyPath,
    *,
    kind: str | None = None,
    split: str | None = None,
    **options: Unpack[SourceKeywords],
) -> Source:
    r"""Open labelled data of any registered format.

    Args:
        path: File, directory, or pattern such as ``"birds/*.tfrecord"``.
        kind: Name of the format, one of :data:`KINDS` (default: detected from the content).
        split: Split to read if the source has several; other sources ignore it.
        options: Options of :class:`SourceOptions`, such as ``label="species"``.

    Raises:
        SourceError: If the path cannot be read, no format matches, or the source has several splits
            and `split` is not one of them.

    >>> with open("birds.csv", "w") as file:
    ...     _ = file.write("name,label\nhedwig,owl\n")
    >>> list(open_source("birds.csv").examples)
    [(0, {'name': 'hedwig', 'label': 'owl'})]
    """
    where = parse_path(path)
    found = open_splits(where, kind=kind, **options)
    return found if isinstance(found, Source) else found[choose_split(found, split, where)]


def open_splits(
    path: AnyPath, *, kind: str | None = None, **options: Unpack[SourceKeywords]
) -> Source | SourceSplits:
    """Open labelled data of any registered format, with all its splits.

    Args:
        path: File, directory, or pattern such as ``"birds/*.tfrecord"``.
        kind: Name of the format, one of :data:`KINDS` (default: detected from the content).
        options: Options of :class:`SourceOptions`, such as ``label="species"``.

    Returns:
        The splits by name, each opened when it is first accessed; or the source, if it does not
        have splits.
    """
    where = parse_path(path)
    with _reading(where):
        found = _open(where, kind, SourceOptions(**options))
    if isinstance(found, Source):
        return found
    openers = {split: partial(_open_split, found, split, where) for split in found}
    return SourceSplits(openers, notes=found.notes)


def _open_split(splits: SourceSplits, split: str, path: str) -> Source:
    with _reading(path):
        return splits[split]


def _open(path: str, kind: str | None, options: SourceOptions) -> Source | SourceSplits:
    named = None if kind is None else find_kind(kind)
    probed = ProbedPath.probe(path)
    found, other = (named, None) if named is not None else detect(probed)
    if found is not None:
        found.check_options(options, path)
        opened = found.open(probed, options)
        if other is None:
            return opened
        note = f"read as {found.name!r}, not as {other.name!r}; kind= (--kind) decides otherwise"
        return add_notes(opened, note)
    supported = "; ".join(f"{each.name}: {each.description}" for each in KINDS.values())
    raise source_error(
        probed.path,
        f"found {probed.describe()}, which has no supported format ({supported})",
        remedy="pass kind= if it has one of them",
    )


def detect(probed: ProbedPath) -> tuple[Kind | None, Kind | None]:
    """Return the format of a path, and another format that files below its tables have.

    Files at the top level of a directory decide before files in its subdirectories: a table beside
    ``plots/1.png`` is the data. Tables that describe images, such as ``metadata.csv``, are not.
    """
    found = next((each for each in KINDS.values() if each.recognise(probed)), None)
    if found is None or not found.is_below:
        return found, None
    files = [each for each in probed.files if os.path.basename(each) not in _METADATA_TABLES]
    top = replace(probed, files=tuple(files), directories=())
    others = (each for each in KINDS.values() if not each.is_below and each.recognise(top))
    table = next(others, None)
    return (found, None) if table is None else (table, found)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Raise the errors of a path as SourceErrors."""
    try:
        yield
    except SourceError:
        raise
    except (CoveyError, OSError) as error:
        raise _unreadable(error, path) from None
    except MemoryError:
        raise source_error(path, "not enough memory to read it") from None


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
    raise SourceError(option="kind", found=name, choices=KINDS)


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
