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
from typing import TYPE_CHECKING, Any, TypeVar

from covey._files import is_hidden
from covey._text import count_of, list_names
from covey.errors import CoveyError, DatasetError, SourceError, check
from covey.filenames import ENTRIES_FILE, FEATURES_FILE, INFO_FILE, SHARD_INFO_FILE
from covey.sources.source import (
    Source,
    SourceOptions,
    SourceSplits,
    as_source_error,
    choose_split,
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
FILE_COLUMN = "file_name"
"""Their column of the files."""
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
    below: tuple[str, ...]
    """Visible files below a directory, relative to it, in sorted order; the file itself, or those
    that match a pattern."""
    is_directory: bool = False

    @classmethod
    def probe(cls, path: str) -> ProbedPath:
        """Inspect a file, a directory, or the files that match a pattern.

        Raises:
            SourceError: If nothing exists at the path, or it cannot be read.
        """
        try:
            if os.path.isdir(path):
                return cls(path, tuple(walk(path)), is_directory=True)
            if os.path.exists(path):
                RegularFile(path).close()
                return cls(path, (path,))
        except (OSError, CoveyError) as error:
            raise _unreadable(error, path) from None
        matching = sorted(each for each in glob.glob(path, recursive=True) if os.path.isfile(each))
        if not matching:
            pattern = glob.has_magic(path)
            raise source_error(path, "no file matches" if pattern else "no such file or directory")
        return cls(path, tuple(matching))

    @property
    def is_file(self) -> bool:
        """Whether the path is a file, and not a directory or a pattern."""
        return self.below == (self.path,)

    @cached_property
    def head(self) -> bytes:
        """First bytes of a file; empty for a directory."""
        if not self.is_file:
            return b""
        with RegularFile(self.path) as file:
            return file.read(HEAD_BYTES)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the visible files in a directory; of all files otherwise."""
        if not self.is_directory:
            return self.below
        return tuple(os.path.join(self.path, each) for each in self.below if "/" not in each)

    @cached_property
    def _homes(self) -> dict[str, list[str]]:
        """Names of the files in each directory that may have those of a source."""
        homes: dict[str, list[str]] = {}
        for each in self.below:
            home, name = os.path.split(each) if self.is_directory else ("", each)
            if home in ("", "data") or home.lower() in SPLIT_NAMES:
                homes.setdefault(home, []).append(name)
        return homes

    def data_files(self, *extensions: str) -> dict[str, list[str]]:
        """Return the files with some extensions, by split.

        The split is ``""`` for files at the top level, in a pattern, or in ``data/``. If there are
        none, they are those of directories that have names of splits.
        """
        root = self.path if self.is_directory else ""
        found = {
            home: [os.path.join(root, home, each) for each in names if self._has(each, extensions)]
            for home, names in self._homes.items()
        }
        files = found.pop("", None) or found.pop("data", None)
        if files:
            return {"": files}
        return {home: found[home] for home in sorted(found, key=split_order) if found[home]}

    def _has(self, name: str, extensions: tuple[str, ...]) -> bool:
        is_metadata = _is_metadata(os.path.basename(name)) and not self.is_file
        return has_extension(name, extensions) and not is_metadata

    def describe(self) -> str:
        """Return a description of the content, for messages."""
        if self.is_file:
            return f"a file that begins with {self.head[:24]!r}" if self.head else "an empty file"
        files = [os.path.basename(each) for each in self.files]
        inner = {each.split("/")[0] for each in self.below if "/" in each and self.is_directory}
        nouns = ((files, ("file",)), (sorted(inner), ("directory", "directories")))
        parts = [f"{count_of(len(e), *noun)} ({list_names(e, 3)})" for e, noun in nouns if e]
        return " and ".join(parts) or "an empty directory"


def has_extension(file: str, extensions: tuple[str, ...]) -> bool:
    """Return whether a file has one of some extensions, also before ``.gz``."""
    return file.lower().removesuffix(".gz").endswith(extensions)


def _is_metadata(name: str) -> bool:
    return name in _METADATA or name.endswith(".index.json")


def walk(root: str) -> list[str]:
    """Return the paths of the visible files below a directory, relative to it, in sorted order.

    Symbolic links are followed, but not to a directory above, and not to one that another link led
    to, so that directories that link to each other do not have an unlimited number of paths.
    """
    linked: set[str] = set()

    def is_entered(directory: str) -> bool:
        if is_hidden(os.path.basename(directory)) or not os.path.islink(directory):
            return not is_hidden(os.path.basename(directory))
        target = os.path.realpath(directory)
        above = os.path.realpath(os.path.dirname(directory))
        is_new = target not in linked and os.path.commonpath([target, above]) != target
        linked.add(target)
        return is_new

    def fail(error: OSError) -> None:
        raise error

    found: list[str] = []
    for directory, names, files in os.walk(root, followlinks=True, onerror=fail):
        prefix = os.path.relpath(directory, root) + "/" if directory != root else ""
        found += [prefix + name for name in files if not is_hidden(name)]
        names[:] = [name for name in sorted(names) if is_entered(os.path.join(directory, name))]
    return sorted(found)


OpenKind = Callable[[ProbedPath, SourceOptions], Source | SourceSplits]
OpenFiles = TypeVar(
    "OpenFiles", bound=Callable[[str, SourceOptions, list[str]], Source | SourceSplits]
)


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
    3. ``metadata.csv`` or ``metadata.jsonl`` above images or sounds: the files that its column
       ``file_name`` lists (``"image table"``, ``"audio table"``). `images` names the column of
       any other table.
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
    listings = [each for each in found if each.name.endswith(" table")]
    return listings if listings and probed.is_file else found


def _likely_commands(probed: ProbedPath) -> list[str]:
    """Return two commands for a path that no rule fits: for what is in it, or with a format."""
    tops = dict.fromkeys(each.split("/")[0] for each in probed.below if probed.is_directory)
    inner = [os.path.join(probed.path, each) for each in list(tops)[:_MAX_TRIED]]
    likely = [each for each in inner if recognise(ProbedPath.probe(each))]
    kinds = ("CSV", "JSON-Lines") if probed.files else ("image-directory", "TFRecords")
    commands = [write_arguments(each) for each in likely]
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
    names = {each.lower(): each for each in KINDS}
    found = names.get(name.lower().replace("-", " ").replace("_", " "), "")
    check("kind", name, found, tuple(KINDS), error=SourceError)
    return KINDS[found]


def open_files(
    extensions: tuple[str, ...],
    function: Callable[[str, SourceOptions, list[str]], Any],
    probed: ProbedPath,
    options: SourceOptions,
) -> Source | SourceSplits:
    """Open a file, or the files at a path that have some extensions, with their splits."""
    found = probed.data_files(*extensions)
    if not found and probed.is_directory:
        reason = f"found {probed.describe()}, but no file {', '.join(extensions)}"
        raise source_error(probed.path, reason)
    open_some = partial(function, probed.path, options)
    if "" in found or not found:
        return open_split_files(found.get("", probed.files), open_some)
    return SourceSplits({split: partial(open_some, files) for split, files in found.items()})


def register_files(
    name: str, description: str, extensions: tuple[str, ...], options: Iterable[str] = ()
) -> Callable[[OpenFiles], OpenFiles]:
    """Return a decorator that registers the opener of the files of one split.

    Args:
        name, description, options: As for :func:`register`.
        extensions: Extensions of the files, which do not matter for a file or a pattern.
    """

    def recognise(probed: ProbedPath) -> bool:
        return bool(probed.data_files(*extensions))

    def add(function: OpenFiles) -> OpenFiles:
        open_kind = partial(open_files, extensions, function)
        register(name, description, recognise=recognise, options=options)(open_kind)
        return function

    return add


def _unreadable(error: CoveyError | OSError, path: str) -> SourceError:
    if isinstance(error, CoveyError):
        return as_source_error(error, path)
    return source_error(str(error.filename or path), f"cannot be read: {error.strerror or error}")
