"""The Source class, and functions that several formats use."""

from __future__ import annotations

import abc
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from covey._text import count_of, outline
from covey.errors import CoveyError, SourceError, check, list_names, shorten
from covey.labels import find_label_name
from covey.schema import Features
from covey.splits import SPLIT_ALIASES, SPLIT_NAMES, split_of_file
from covey.urls import shown

if TYPE_CHECKING:
    from typing_extensions import Self

# A number in a file name, or a checksum.
_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
# A file of a split of any name, as Hugging Face writes it.
_SHARD_OF_SPLIT = re.compile(r"([\w-]+)-\d{5}-of-\d{5}\.")

_FIELDS = ("line", "example", "record", "offset", "feature", "option", "found", "allowed", "remedy")

Item = tuple[str | int, dict[str, Any]] | SourceError
Row = dict[str, Any] | SourceError


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Options of a source. None means that the format decides.

    An option that the format of a source does not have is an error.

    Args:
        label: Label feature (default: the label of the format, or a feature with a common name).
            The label of class directories has this name (default: ``"label"``).
        columns: Names of the columns of a table without a header.
        delimiter: Delimiter of a table (default: detected).
        encoding: Encoding of a table or of JSON, such as ``"latin-1"`` or ``"utf-16"`` (default:
            UTF-8).
        field: Path of the list of examples in a JSON file, such as ``"data.items"``.
        images: Column of a table that names the file of an image or a sound for each row. The files
            are in the directory of the table or below it; a name may lack its directory and its
            extension.
        splits: Names of the directories that are splits, as a list or as ``"train,val"``; the
            others are not read. ``"none"`` or an empty list if none are (default: the first
            directories, if all have common names of splits).
        class_from: What names the class of a file in a directory: ``"path"``, the path of all
            directories above it; ``"last"``, the last of them; or a regular expression with one
            group ``label``, such as ``r"^(?P<label>[^_]+)_"``, which is searched in the path of the
            file below the split (default: the first directory).

    Raises:
        SourceError: If an option has an invalid value; ``option`` is its name.
    """

    label: str | None = None
    columns: Sequence[str] | None = None
    delimiter: str | None = None
    encoding: str | None = None
    field: str | None = None
    images: str | None = None
    splits: Sequence[str] | str | None = None
    class_from: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.splits, str):
            listed = [] if self.splits == "none" else self.splits.split(",")
            object.__setattr__(self, "splits", tuple(map(str.strip, listed)))
        for option in self.given():
            value = getattr(self, option)
            if option in ("columns", "splits"):
                ok, allowed = _are_names(value), "a list of distinct names"
            elif option == "class_from":
                ok = _names_classes(value)
                allowed = "'path', 'last', or a regular expression with one group (?P<label>...)"
            else:
                ok = isinstance(value, str) and value != ""
                allowed = "a string that is not empty"
            check(option, value, ok, allowed, error=SourceError)
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError:
            check("encoding", self.encoding, False, "an encoding of Python", error=SourceError)

    def given(self) -> tuple[str, ...]:
        """Return the names of the options that are not None."""
        names = (each.name for each in fields(self))
        return tuple(name for name in names if getattr(self, name) is not None)


def _are_names(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, (str, bytes))
        and all(isinstance(each, str) and each for each in value)
        and len(set(value)) == len(value)
    )


def _names_classes(rule: object) -> bool:
    try:
        return rule in ("path", "last") or (
            isinstance(rule, str) and list(re.compile(rule).groupindex) == ["label"]
        )
    except re.error:
        return False


class PathKeywords(TypedDict, total=False):
    """The options of :class:`SourceOptions` as keyword arguments, except ``label``."""

    columns: Sequence[str] | None
    delimiter: str | None
    encoding: str | None
    field: str | None
    images: str | None
    splits: Sequence[str] | str | None
    class_from: str | None


class SourceKeywords(PathKeywords, total=False):
    """The options of :class:`SourceOptions` as keyword arguments."""

    label: str | None


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
    """The items; a picklable sequence if they can be read by position. An object with a method
    ``read_range(begin, end)`` yields the items of a range, so that several processes can read it
    together; one with a method ``read_feature(name)`` yields items that have only this feature,
    without reading the others."""
    _: KW_ONLY
    length: int | None = None
    """Number of items, unreadable ones included; None if counting them is expensive."""
    features: Features | None = None
    """Schema of the examples; None if it must be inferred."""
    label: str | None = None
    """Label feature; None if the format does not define one."""
    columns: Mapping[str, Any] | None = None
    """The same data by column, if the format stores columns."""
    notes: tuple[str, ...] = ()
    """What a summary should mention, such as files that are not read."""
    label_hint: str = ""
    """What to do if no label is found, as a clause: ``"pass columns= if ..."``."""

    def __repr__(self) -> str:
        count = "" if self.length is None else f", {count_of(self.length, 'example')}"
        label = "no label" if self.label is None else f"label {shorten(self.label)!r}"
        rows = ((name, each.summary) for name, each in (self.features or {}).items())
        return outline(f"<Source: {self.kind} {shorten(self.path, 80)}{count}, {label}>", rows)


class SourceSplits(Mapping[str, Source]):
    """The splits of a source, by name. A split is opened when it is first accessed.

    Args:
        openers: A function for each split that opens it.
        notes: What a summary should mention, such as files that are not read.
    """

    def __init__(
        self, openers: Mapping[str, Callable[[], Source]], *, notes: Sequence[str] = ()
    ) -> None:
        self._openers = dict(openers)
        self._opened: dict[str, Source] = {}
        self.notes = tuple(notes)

    def __getitem__(self, split: str) -> Source:
        if split not in self._opened:
            self._opened[split] = self._openers[split]()
        return self._opened[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._openers)

    def __len__(self) -> int:
        return len(self._openers)

    def __repr__(self) -> str:
        return f"<SourceSplits: {list_names(self)}>"


class LazyItems(Sequence[Item], abc.ABC):
    """Items that are read on access. The pickle of an instance contains no examples."""

    @abc.abstractmethod
    def read(self, position: int) -> Item:
        """Return the item at a position in ``range(len(self))``."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self.read(position) for position in range(*key.indices(len(self)))]
        if not -len(self) <= key < len(self):
            raise IndexError(f"item {key} of a source of {len(self)}")
        return self.read(key % len(self))


@dataclass(frozen=True, eq=False, kw_only=True)
class TableRows(abc.ABC):
    """The rows of the files of a table, read in every pass and keyed by their position."""

    files: tuple[str, ...]
    label: str | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """The dtypes of the columns of numbers and strings."""
    filled: Mapping[str, str] = field(default_factory=dict)
    """The dtypes of those that differ if missing values have a default."""
    optional: frozenset[str] = frozenset()
    """Columns that have a default: their missing values are omitted."""

    @abc.abstractmethod
    def located(self) -> Iterator[tuple[int | None, Row]]:
        """Yield the example of each row, or its error, with its line in a text file."""

    def __iter__(self) -> Iterator[Item]:
        for position, (_, item) in enumerate(self.located()):
            yield item if isinstance(item, SourceError) else (position, item)

    def declare(
        self, types: Mapping[str, str], optional: Collection[str]
    ) -> tuple[Self, dict[str, str]]:
        """Return the rows with declared types of some columns.

        Args:
            types: Declared dtypes, by column.
            optional: Columns that have a default.

        Returns:
            The rows, and the dtypes that differ because of a default.
        """
        missing = frozenset(optional) - {self.label}
        found = {name: dtype for name, dtype in self.filled.items() if name in missing}
        declared = {name: types[name] for name in self.dtypes if name in types}
        dtypes = {**self.dtypes, **found, **declared}
        return replace(self, dtypes=dtypes, optional=missing), found


def source_error(path: str, reason: str, line: int | None = None, **fields: Any) -> SourceError:
    """Return the error of a file, or of a line of it, without the credentials of a URL.

    >>> str(source_error("birds.csv", "the label is empty", 7))
    'birds.csv:7: the label is empty'
    """
    return SourceError(reason, path=shown(path), line=line, **fields)


def as_source_error(error: CoveyError, path: str) -> SourceError:
    """Return a SourceError with the fields of another error; `path` is used if it has none."""
    fields = {name: getattr(error, name) for name in _FIELDS}
    return source_error(error.path or path, error.reason, **fields)


def choose_label(
    label: str | None, names: Iterable[str], path: str, also: Sequence[str] = ()
) -> str | None:
    """Return the requested label, or a feature with a common name of a label.

    Args:
        label: The requested label.
        names: Names of the features.
        path: Path of the source, for the error.
        also: Further common names of labels.

    Raises:
        SourceError: If the requested label is not one of the features.
    """
    listed = list(names)
    if label is not None and label not in listed:
        raise source_error(path, "", option="label", found=label, choices=listed)
    return label or find_label_name(listed, also)


def first_names(items: Iterable[Item], error: SourceError, label: str | None = None) -> list[str]:
    """Return the features of the first valid examples, up to one that has the requested label.

    Raises:
        SourceError: If there is no valid example: the first error, or `error` if there is none.
    """
    names: dict[str, None] = {}
    for position, item in enumerate(items):
        if isinstance(item, SourceError):
            error = item if position == 0 else error
            continue
        names.update(dict.fromkeys(item[1]))
        if label is None or label in names:
            break
    if not names:
        raise error
    return list(names)


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


def renaming_note(found: str, split: str) -> str:
    """Return the note of a split that is written under another name than that of the source."""
    return f"split {found!r} of the source is written as {split!r}"


def open_split_files(
    files: Sequence[str], open_files: Callable[[list[str]], Source]
) -> Source | SourceSplits:
    """Open files as splits if the name of each has that of a split; otherwise as one source.

    Args:
        files: Paths of the files.
        open_files: Function that opens some of them as one source.
    """
    by_split: dict[str, list[str]] = {}
    for file in files:
        hub = _SHARD_OF_SPLIT.match(os.path.basename(file))
        by_split.setdefault(split_of_file(file) or (hub[1] if hub else ""), []).append(file)
    is_named = any(split.lower() in SPLIT_NAMES for split in by_split) and "" not in by_split
    by_split = by_split if is_named else {"": list(files)}
    notes = tuple(
        f"{len(found):,} files are read as {f'split {split!r}' if split else 'one split'}: "
        f"{list_names(map(os.path.basename, found), 5)}"
        for split, found in by_split.items()
        if len({_NUMBER.sub("", os.path.basename(file)) for file in found}) > 1
    )
    if len(by_split) == 1:
        source = open_files(list(files))
        return replace(source, notes=(*notes, *source.notes)) if notes else source
    openers = {split: partial(open_files, found) for split, found in by_split.items()}
    return SourceSplits(openers, notes=notes)
