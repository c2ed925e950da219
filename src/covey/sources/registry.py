"""The source formats, and the rules that find the format of a path.

A format is a function with a decorator that names and describes it, and recognises its paths::

    @register("words", "a file of words", recognise=has_words, options=("delimiter",))
    def open_words(probed, options):
        return Source("words", probed.path, examples)
"""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from covey._files import is_hidden
from covey._text import count_of
from covey.errors import CoveyError, DatasetError, SourceError
from covey.filenames import ENTRIES_FILE, FEATURES_FILE, INFO_FILE, SHARD_INFO_FILE
from covey.sources.source import (
    Source,
    SourceOptions,
    SourceSplits,
    as_source_error,
    choose_split,
    list_names,
    open_split_files,
    source_error,
)
from covey.splits import SPLIT_NAMES, split_order
from covey.untrusted import RegularFile
from covey.urls import AnyPath, parse_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from covey.sources.source import SourceKeywords

HEAD_BYTES = 1 << 16
METADATA_TABLES = ("metadata.csv", "metadata.jsonl")
"""Tables that list the files of a directory, as Hugging Face names them."""
STATE_FILE, DICT_FILE = "state.json", "dataset_dict.json"
"""Metadata of what ``datasets.save_to_disk`` writes: a dataset, a dictionary of datasets."""

# Files that describe other files.
_METADATA = frozenset(
    (
        *(INFO_FILE, "dataset_infos.json", FEATURES_FILE, SHARD_INFO_FILE, ENTRIES_FILE),
        *(STATE_FILE, DICT_FILE, *METADATA_TABLES),
    )
)
_DATASETS = ("TFDS directory", "TFRecords")
_MAX_TRIED = 20


@dataclass(frozen=True)
class ProbedPath:
    """A path, and what is needed to find its format."""

    path: str
    files: tuple[str, ...] = ()
    """The file; or the visible files in a directory, or those that match a pattern."""
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
                return cls(path, files, directories, is_file=False)
            if os.path.exists(path):
                RegularFile(path).close()
                return cls(path, (path,))
        except (OSError, CoveyError) as error:
            raise _unreadable(error, path) from None
        matching = sorted(each for each in glob.glob(path, recursive=True) if os.path.isfile(each))
        if not matching:
            pattern = glob.has_magic(path)
            raise source_error(path, "no file matches" if pattern else "no such file or directory")
        return cls(path, tuple(matching), is_file=False)

    @cached_property
    def head(self) -> bytes:
        """First bytes of a file; empty for a directory."""
        if not self.is_file:
            return b""
        with RegularFile(self.path) as file:
            return file.read(HEAD_BYTES)

    @cached_property
    def below(self) -> tuple[str, ...]:
        """Visible files below a directory, relative to it, in sorted order."""
        return tuple(walk(self.path)) if os.path.isdir(self.path) else ()

    def data_files(self, *extensions: str) -> dict[str, list[str]]:
        """Return the files with some extensions, by split.

        The split is ``""`` for files at the top level, in a pattern, or in ``data/``. If there are
        none, they are those of directories that have names of splits.
        """
        if self.is_file:
            return {"": [self.path]} if has_extension(self.path, extensions) else {}
        found = _data_files(self.files, extensions)
        if found:
            return {"": found}
        inner = {name: _data_files(files, extensions) for name, files in self.inner.items()}
        if inner.get("data"):
            return {"": inner["data"]}
        return {name: files for name, files in inner.items() if files}

    @cached_property
    def inner(self) -> dict[str, tuple[str, ...]]:
        """Files of the directories that may have those of a source."""
        names = {os.path.basename(each): each for each in self.directories}
        return {
            name: ProbedPath.probe(each).files
            for name, each in names.items()
            if name == "data" or name.lower() in SPLIT_NAMES
        }

    def describe(self) -> str:
        """Return a description of the content, for messages."""
        if not self.is_file:
            parts = [
                f"{count_of(len(paths), *noun)} ({list_names(map(os.path.basename, paths), 3)})"
                for noun, paths in (
                    (("file",), self.files),
                    (("directory", "directories"), self.directories),
                )
                if paths
            ]
            return " and ".join(parts) or "an empty directory"
        if not self.head:
            return "an empty file"
        return f"a file that begins with {self.head[:24]!r}"


def has_extension(file: str, extensions: tuple[str, ...]) -> bool:
    """Return whether a file has one of some extensions, also before ``.gz``."""
    return file.lower().removesuffix(".gz").endswith(extensions)


def _data_files(files: Iterable[str], extensions: tuple[str, ...]) -> list[str]:
    """Return the files with one of some extensions that are not metadata."""
    return [
        file
        for file in files
        if has_extension(file, extensions) and not _is_metadata(os.path.basename(file))
    ]


def _is_metadata(name: str) -> bool:
    return name in _METADATA or name.endswith(".index.json")


def walk(root: str) -> Iterator[str]:
    """Yield the paths of the visible files below a directory, relative to it, in sorted order.

    Symbolic links are followed, but not to a directory above, and not to one that another link led
    to, so that directories that link to each other do not have an unlimited number of paths.
    """
    linked: set[str] = set()
    found: list[str] = []
    for directory, names, files in os.walk(root, followlinks=True, onerror=_raise):
        prefix = os.path.relpath(directory, root) + "/" if directory != root else ""
        found += [prefix + name for name in files if not is_hidden(name)]
        names[:] = [
            name
            for name in sorted(names)
            if not is_hidden(name) and _is_entered(os.path.join(directory, name), linked)
        ]
    yield from sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _is_entered(directory: str, linked: set[str]) -> bool:
    if not os.path.islink(directory):
        return True
    target = os.path.realpath(directory)
    above = os.path.realpath(os.path.dirname(directory))
    if target in linked or os.path.commonpath([target, above]) == target:
        return False
    linked.add(target)
    return True


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
    options: frozenset[str] = frozenset()
    """Names of the options of :class:`SourceOptions` that the format has, except ``label``."""

    def check_options(self, options: SourceOptions, path: str) -> None:
        """Raise SourceError if an option is given that the format does not have."""
        for option in options.given():
            if option != "label" and option not in self.options:
                raise source_error(
                    path,
                    f"the format of this source is {self.name!r}, whose options are "
                    f"{list_names(['label', *sorted(self.options)])}",
                    option=option,
                    found=getattr(options, option),
                    allowed="omitted",
                )


KINDS: dict[str, Kind] = {}
"""The formats by name, in the order of the rules."""


def register(
    name: str,
    description: str,
    *,
    recognise: Callable[[ProbedPath], bool],
    options: Iterable[str] = (),
) -> Callable[[OpenKind], OpenKind]:
    """Return a decorator that registers a function as the opener of a format.

    Args:
        name: Name of the format.
        description: Description of the format, as a noun phrase.
        recognise: Function that returns whether a path has the format.
        options: Names of the options of :class:`SourceOptions` that the format has, except
            ``label``, which all formats have.
    """

    def add(function: OpenKind) -> OpenKind:
        KINDS[name] = Kind(name, description, recognise, function, frozenset(options))
        return function

    return add


def open_source(
    path: AnyPath,
    *,
    kind: str | None = None,
    split: str | None = None,
    **options: Unpack[SourceKeywords],
) -> Source:
    r"""Open labelled data in a file, in a directory, or in the files that match a pattern.

    The format follows from names, by these rules. If two rules fit, an error names both formats,
    and `kind` decides. The content of files is not inspected.

    1. ``dataset_info.json`` with ``features.json``, in the directory or in one below it: the
       dataset, which TFDS or covey wrote (``"TFDS directory"``). ``*.tfrecord*``: ``"TFRecords"``.
       ``*.npz``: ``"NPZ"``. ``*.tar``, ``*.tar.gz``, ``*.tgz``: ``"WebDataset"``.
    2. ``*.csv``, ``*.tsv``: ``"CSV"``. ``*.json``: ``"JSON"``. ``*.jsonl``: ``"JSON Lines"``.
       ``*.parquet``: ``"Parquet"``. ``*.arrow``, or what ``datasets.save_to_disk`` wrote:
       ``"Arrow"``. The files are in the directory; if it has none, in ``data/``, as in
       a snapshot of the Hugging Face Hub; or in directories that have names of splits. Files with
       the name of a split, such as ``train-*`` and ``test.csv``, are splits. Text files may also
       be compressed: ``*.csv.gz``.
    3. ``metadata.csv`` or ``metadata.jsonl`` above images or sounds, or a table with a column
       ``file_name`` that is opened by its own path: the files that the table lists
       (``"image table"``, ``"audio table"``). `images` names another column of any table.
    4. Images or sounds in directories: ``"image directory"``, ``"audio directory"``. The first
       directories are splits if all have names of splits; if only some of them have, it is an
       error, and `splits` decides. The class is the first directory below the split; `class_from`
       decides otherwise.

    Hidden files, ``__MACOSX`` and files of metadata do not count.

    Args:
        path: File, directory, or pattern such as ``"birds/*.tfrecord"``.
        kind: Name of the format, one of :data:`KINDS` (default: see above).
        split: Split to read if the source has several; other sources ignore it.
        options: Options of :class:`SourceOptions`, such as ``label="species"``.

    Raises:
        SourceError: If the path cannot be read, no rule or more than one rule fits, or the source
            has several splits and `split` is not one of them.

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
    """Open labelled data with all its splits.

    Args:
        path: File, directory, or pattern such as ``"birds/*.tfrecord"``.
        kind: Name of the format, one of :data:`KINDS` (default: see :func:`open_source`).
        options: Options of :class:`SourceOptions`, such as ``label="species"``.

    Returns:
        The splits by name, each opened when it is first accessed; or the source, if it does not
        have splits.
    """
    where = parse_path(path)
    with _reading(where):
        given = SourceOptions(**options)
        probed = ProbedPath.probe(where)
        chosen = find_kind(kind) if kind is not None else _detect(probed, given)
        chosen.check_options(given, where)
        found = chosen.open(probed, given)
    if isinstance(found, Source):
        return found
    openers = {split: partial(_open_split, found, split, where) for split in found}
    return SourceSplits(openers, notes=found.notes)


def _open_split(splits: SourceSplits, split: str, path: str) -> Source:
    with _reading(path):
        return splits[split]


def _detect(probed: ProbedPath, options: SourceOptions) -> Kind:
    """Return the format of a path.

    Raises:
        SourceError: If no rule fits, or more than one.
    """
    if options.images is not None:
        return KINDS["image table"]
    found = recognise(probed)
    if len(found) == 1:
        return found[0]
    if found:
        remedies = [f"pass kind={each.name.replace(' ', '-')!r}" for each in found[:2]]
        if "delimiter" in found[0].options and "class_from" in found[-1].options:
            remedies.append("pass images= for the column of the table that names the files")
        raise source_error(
            probed.path,
            f"found {probed.describe()}, which can be read as {found[0].name!r} or as "
            f"{found[1].name!r}",
            remedy=", or ".join(remedies),
        )
    commands = " or ".join(f"`covey {each}`" for each in _likely_commands(probed))
    raise source_error(probed.path, f"found {probed.describe()}", remedy=f"try {commands}")


def recognise(probed: ProbedPath) -> list[Kind]:
    """Return the formats whose rules fit a path; for a file, a table of files before a table."""
    found = [each for each in KINDS.values() if each.recognise(probed)]
    listings = [each for each in found if each.name in ("image table", "audio table")]
    return listings if listings and probed.is_file else found


def _likely_commands(probed: ProbedPath) -> list[str]:
    """Return two commands for a path that no rule fits: for what is in it, or with a format."""
    inner = [] if probed.is_file else [*probed.directories, *probed.files][:_MAX_TRIED]
    likely = [each for each in inner if recognise(ProbedPath.probe(each))]
    commands = [write_arguments(each) for each in likely[:2]]
    kinds = ("CSV", "JSON-Lines") if probed.files else ("image-directory", "TFRecords")
    commands += [f"{write_arguments(probed.path)} --kind {each}" for each in kinds]
    return commands[:2]


def write_arguments(path: str) -> str:
    """Return the arguments of ``covey`` that write a source as a dataset."""
    path = min(path, os.path.relpath(path), key=len)
    stem = os.path.basename(os.path.abspath(path)).split(".")[0].strip("*-_")
    target = "".join(each if each.isalnum() or each in "-_" else "_" for each in stem)
    return f"write {shlex.quote(path)} data/{target or 'dataset'}"


def source_hint(path: str) -> DatasetError | None:
    """Return the error of a path that is a source and not a dataset; None if it is not a source.

    Args:
        path: Local file, directory or pattern.
    """
    try:
        found = recognise(ProbedPath.probe(path))
    except (CoveyError, OSError):
        return None
    if not found or found[0].name in _DATASETS:
        return None
    return DatasetError(
        f"it is a source ({found[0].name}), not a dataset",
        path=path,
        remedy=f"write it as a dataset: `covey {write_arguments(path)}`",
    )


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


def open_files(
    probed: ProbedPath, extensions: tuple[str, ...], open_some: Callable[[list[str]], Source]
) -> Source | SourceSplits:
    """Open a file, or the files at a path that have some extensions, with their splits.

    Args:
        probed: The path.
        extensions: The extensions, which do not matter for a file or a pattern.
        open_some: Function that opens some of the files as one source.
    """
    found = probed.data_files(*extensions)
    if not found and not os.path.isdir(probed.path):
        found = {"": list(probed.files)}
    if not found:
        raise source_error(
            probed.path, f"found {probed.describe()}, but no file {', '.join(extensions)}"
        )
    if "" in found:
        return open_split_files(found[""], open_some)
    splits = sorted(found, key=split_order)
    return SourceSplits({split: partial(open_some, found[split]) for split in splits})


def _unreadable(error: CoveyError | OSError, path: str) -> SourceError:
    if isinstance(error, CoveyError):
        return as_source_error(error, path)
    return source_error(str(error.filename or path), f"cannot be read: {error.strerror or error}")
