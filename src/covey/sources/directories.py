"""Images and sounds in class directories, or listed by a table with their labels.

::

    owl/1.jpg             the class 'owl'
    owl/young/1.jpg       the class 'owl'; with class_from="path", 'owl/young'
    train/owl/1.jpg       the class 'owl' of the split 'train'
    metadata.csv          a table: file_name,label
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from covey._text import count_of, list_names
from covey.errors import SourceError
from covey.schema import ClassLabel, Features
from covey.schema.types import is_line
from covey.sources import arrow, tables
from covey.sources.media import IMAGES, SOUNDS, FileKind
from covey.sources.registry import (
    FILE_COLUMN,
    METADATA_TABLES,
    ProbedPath,
    has_extension,
    register,
    walk,
    write_arguments,
)
from covey.sources.source import (
    Item,
    LazyItems,
    Row,
    Source,
    SourceOptions,
    SourceSplits,
    TableRows,
    choose_label,
    first_names,
    open_split_files,
    source_error,
)
from covey.splits import SPLIT_NAMES, split_order

_TABLES: tuple[tuple[tuple[str, ...], Callable[[str, SourceOptions, list[str]], Source]], ...] = (
    (tables.CSV_EXTENSIONS, tables.open_csv_files),
    ((*tables.LINES_EXTENSIONS, *tables.JSON_EXTENSIONS), tables.open_json_files),
    ((*arrow.PARQUET_EXTENSIONS, *arrow.ARROW_EXTENSIONS), arrow.open_arrow_files),
)


# Class directories.


@dataclass(frozen=True, eq=False)
class _ClassFiles(LazyItems):
    directory: str
    paths: Sequence[str]
    """Paths of the files, relative to the directory; they are the keys."""
    classes: Sequence[str | None]
    label: str
    medium: FileKind

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, position: int) -> Item:
        key, name = self.paths[position], self.classes[position]
        file = f"{self.directory}/{key}"
        try:
            if name is None:
                raise source_error(file, f"the {self.medium.noun} is not in a class directory")
            if not _is_utf8(key):
                raise source_error(file, "the file name is not valid UTF-8")
            value = self.medium.read(file)
        except SourceError as error:
            return error
        return key, {self.medium.feature: value, self.label: name, "filename": key}


def _open_directory(
    medium: FileKind, probed: ProbedPath, options: SourceOptions
) -> Source | SourceSplits:
    """Open files in class directories.

    An example has the content of the file, the class, and the path of the file below the directory
    of the split. A class has the same id in all splits, also in one that lacks it.

    Raises:
        SourceError: If there are no files, none is in a class directory, or only some of the first
            directories have names of splits.
    """
    root = probed.path.rstrip("/") or "/"
    label = options.label or "label"
    if label in (medium.feature, "filename"):
        allowed = f"a name other than {medium.feature!r}, 'filename'"
        raise source_error(root, "", option="label", found=label, allowed=allowed)
    paths = [path for path in probed.below if medium.accepts(path)]
    if not paths or not probed.is_directory:
        raise source_error(root, f"found {probed.describe()}, but no directory of {medium.noun}s")
    chosen, notes = _split(root, paths, medium, options.splits)
    classes = {
        split: [_class_of(path, options.class_from) for path in found]
        for split, found in chosen.items()
    }
    _check_classes(root, chosen, classes, medium, options.class_from)
    names = tuple(sorted({each for found in classes.values() for each in found if each}))
    feature = medium.infer(f"{root}/{path}" for path in paths)
    features = Features(
        {medium.feature: feature, label: ClassLabel(names=names), "filename": "str"}
    )

    def open_split(split: str) -> Source:
        home = os.path.join(root, split) if split else root
        items = _ClassFiles(home, chosen[split], classes[split], label, medium)
        kind = f"{medium.feature} directory"
        return Source(kind, home, items, length=len(items), features=features, label=label)

    if set(chosen) == {""}:
        return open_split("")
    return SourceSplits({split: partial(open_split, split) for split in chosen}, notes=notes)


def _split(
    root: str, paths: Sequence[str], medium: FileKind, names: Sequence[str] | str | None
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the files below each split, and a note about directories that are not read."""
    by_first: dict[str, list[str]] = {}
    for path in paths:
        first, slash, rest = path.partition("/")
        by_first.setdefault(first if slash else ".", []).append(rest or first)
    if names is None:
        names = _common_splits(root, by_first, medium)
    if not names:
        return {"": list(paths)}, ()
    missing = next((name for name in names if name not in by_first), None)
    if missing is not None:
        raise source_error(
            root,
            f"there is no directory {missing!r} with {medium.noun}s; the directories are "
            f"{list_names(by_first)}",
            option="splits",
            found=tuple(names),
        )
    others = [name for name in by_first if name not in names]
    notes = (f"not read: {list_names(others)}",) if others else ()
    return {name: by_first[name] for name in names}, notes


def _common_splits(root: str, by_first: Mapping[str, Sequence[str]], medium: FileKind) -> list[str]:
    """Return the first directories if all have names of splits; none if none of them has.

    Raises:
        SourceError: If only some of them have.
    """
    splits = sorted((name for name in by_first if name.lower() in SPLIT_NAMES), key=split_order)
    others = [name for name in by_first if name not in splits and name != "."]
    if splits and others:
        raise source_error(
            root,
            f"some directories have names of splits, {list_names(splits)}, and others have not, "
            f"{list_names(others)}",
            remedy=f"pass splits='{','.join(splits)}' to read these only, or pass splits='none' if "
            "all are classes",
        )
    return splits


def _class_of(path: str, rule: str | None) -> str | None:
    """Return the class of a file, by its path below the split; None if it has none."""
    if rule not in (None, "path", "last"):
        match = re.search(rule or "", path)
        return match["label"] or None if match else None
    parts = path.split("/")[:-1]
    if not parts:
        return None
    return "/".join(parts) if rule == "path" else parts[-1 if rule == "last" else 0]


def _check_classes(
    root: str,
    chosen: Mapping[str, Sequence[str]],
    classes: Mapping[str, Sequence[str | None]],
    medium: FileKind,
    rule: str | None,
) -> None:
    """Check the classes of all files.

    Raises:
        SourceError: If no file has a class, a regular expression does not match a file, or the name
            of a directory is not the name of a class.
    """
    found = [
        (os.path.join(split, path), name)
        for split, paths in chosen.items()
        for path, name in zip(paths, classes[split], strict=True)
    ]
    unnamed = [path for path, name in found if name is None]
    if unnamed and rule not in (None, "path", "last"):
        reason = f"{len(unnamed):,} of {count_of(len(found), medium.noun)} do not match, such as "
        raise source_error(root, f"{reason}{unnamed[0]!r}", option="class_from", found=rule)
    if len(unnamed) == len(found):
        table = os.path.join(root, "TABLE.csv")
        raise source_error(
            root,
            f"found {count_of(len(found), medium.noun)} without class directories",
            remedy=f"`covey {write_arguments(root)} --class-from '(?P<label>PATTERN)'` reads file "
            f"names, `covey {write_arguments(table)} --images COLUMN` a table; splits='none' makes "
            "the first directories classes",
        )
    for path, name in found:
        if name is None or (_is_utf8(name) and is_line(name)):
            continue
        directory = f"{root}/{path[: path.index(name) + len(name)]}"
        if not _is_utf8(name):
            raise source_error(directory, "the name of this class is not valid UTF-8")
        clean = os.path.join(os.path.dirname(directory), " ".join(name.split()))
        raise source_error(
            root,
            f"{name!r} is not a valid class name: it begins or ends with a blank, or has a line "
            "break",
            remedy=f"rename it: `mv {shlex.quote(directory)} {shlex.quote(clean)}`",
        )


def _is_utf8(text: str) -> bool:
    return text.encode(errors="replace").decode() == text


# Tables of files.


class _Files:
    """The files that a table may list.

    Args:
        home: Directory of the table.
        medium: Kind of the files.
        is_named: Whether the caller named the table, which may then list files anywhere. A table
            that was found in a directory may list files of this directory only.
    """

    def __init__(self, home: str, medium: FileKind, *, is_named: bool) -> None:
        self.home, self.noun, self.is_named = home, medium.noun, is_named
        self.paths = [path for path in walk(home or ".") if medium.accepts(path)]
        self._by_name: dict[str, list[str]] = {}
        for path in self.paths:
            stem = os.path.splitext(path)[0]
            for name in {path, stem, os.path.basename(path), os.path.basename(stem)}:
                self._by_name.setdefault(name, []).append(path)

    def find(self, cell: Any) -> str:
        """Return the path of a file, relative to the home.

        Args:
            cell: The path, or the name, with or without the extension.

        Raises:
            SourceError: If there is no such file, or it is the name of several files.
        """
        if cell in (None, ""):
            raise SourceError("the row names no file")
        name = os.path.normpath(str(cell))
        is_elsewhere = os.path.isabs(name) or name.startswith("..")
        if self.is_named and is_elsewhere and os.path.isfile(os.path.join(self.home, name)):
            return name
        found = self._by_name.get(name, [])
        if len(found) == 1 or name in found:
            return name if name in found else found[0]
        if found:
            raise SourceError(f"{name!r} is the name of several files: {list_names(found, 3)}")
        raise SourceError(f"there is no {self.noun} file {str(cell)!r}")


@dataclass(frozen=True, eq=False)
class _ListedFiles(LazyItems):
    path: str
    """Path of the table."""
    medium: FileKind
    table: TableRows
    column: str
    rows: Sequence[tuple[int | None, Row]]
    """Lines, and examples or errors."""
    found: Sequence[str | SourceError]
    """The file of each row, relative to the table."""
    repeated: bool
    """Whether a file occurs more than once, so that its name is not a unique key."""

    @classmethod
    def open(
        cls, path: str, files: _Files, medium: FileKind, table: Any, column: str
    ) -> _ListedFiles:
        """Find the file of each row."""
        table, _ = table.declare({column: "str"}, ())
        rows = list(table.located())
        found: list[str | SourceError] = []
        for _, row in rows:
            try:
                found.append(files.find(None if isinstance(row, SourceError) else row.get(column)))
            except SourceError as error:
                found.append(error)
        names = [str(row.get(column)) for _, row in rows if isinstance(row, dict)]
        return cls(path, medium, table, column, rows, found, len(set(names)) < len(names))

    @property
    def path_feature(self) -> str:
        """Feature that has the name of the file."""
        return "filename" if self.column == self.medium.feature else self.column

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, position: int) -> Item:
        (line, row), found = self.rows[position], self.found[position]
        if isinstance(row, SourceError):
            return row
        try:
            if isinstance(found, SourceError):
                raise found
            data = self.medium.read(os.path.join(os.path.dirname(self.path), found))
        except SourceError as error:
            where = f"{error.path}: " if error.path else ""
            record = position if line is None else None
            return source_error(self.path, f"{where}{error.reason}", line, record=record)
        name = str(row[self.column])
        key = f"{name}:{position if line is None else line}" if self.repeated else name
        others = {each: value for each, value in row.items() if each != self.column}
        return key, {self.medium.feature: data, self.path_feature: name, **others}

    def read_feature(self, name: str) -> Iterator[Item]:
        """Yield the rows with one column only; the files are not read."""
        column = self.column if name == self.path_feature else name
        for position, (_, row) in enumerate(self.rows):
            yield row if isinstance(row, SourceError) else (position, {name: row.get(column)})

    def declare(
        self, types: Mapping[str, str], optional: Collection[str]
    ) -> tuple[_ListedFiles, dict[str, str]]:
        """Return the rows with declared types; see :meth:`TableRows.declare`."""
        table, found = self.table.declare({**types, self.column: "str"}, optional)
        return replace(self, table=table, rows=list(table.located())), found


def _find_tables(probed: ProbedPath) -> dict[str, list[str]]:
    """Return the metadata tables at a path, by split."""
    if not probed.is_directory:
        is_table = probed.is_file and os.path.basename(probed.path) in METADATA_TABLES
        return {"": [probed.path]} if is_table else {}
    found: dict[str, list[str]] = {}
    for each in probed.below:
        home, name = os.path.split(each)
        if name in METADATA_TABLES and (not home or home.lower() in SPLIT_NAMES):
            found.setdefault(home, []).append(os.path.join(probed.path, each))
    return found


def _open_tables(
    medium: FileKind, probed: ProbedPath, options: SourceOptions
) -> Source | SourceSplits:
    """Open the files that tables list. The other columns of a table are features.

    ``metadata.csv`` in each directory of a split, or tables with names of splits, such as
    ``train.csv`` and ``test.csv``, are splits.
    """
    found = [probed.data_files(*extensions) for extensions, _ in _TABLES]
    found = [*found, _find_tables(probed)] if options.images else [_find_tables(probed), *found]
    by_split = {"": [probed.path]} if probed.is_file else next(filter(None, found), {})
    below = walk((os.path.dirname(probed.path) if probed.is_file else probed.path) or ".")
    if any(map(SOUNDS.accepts, below)) and not any(map(IMAGES.accepts, below)):
        medium = SOUNDS
    if not by_split:
        raise source_error(
            probed.path,
            f"found {probed.describe()}, but no table of {medium.noun}s",
            remedy=f"name a table, and pass images= for its column of {medium.noun}s",
        )
    opened: list[_ListedFiles] = []
    homes: dict[str, _Files] = {}

    def open_some(paths: list[str]) -> Source:
        if len(paths) > 1:
            reason = (
                f"several tables list {medium.noun}s: {list_names(map(os.path.basename, paths))}"
            )
            raise source_error(probed.path, reason, remedy="open one of them")
        home = os.path.dirname(paths[0])
        if home not in homes:
            homes[home] = _Files(home, medium, is_named=probed.is_file)
        source, items = _open_table(paths[0], medium, homes[home], options)
        opened.append(items)
        return source

    if "" in by_split:
        source = open_split_files(by_split[""], open_some)
        if isinstance(source, Source):
            return replace(source, notes=(*source.notes, *_notes(opened, homes)))
        splits = dict(source)  # all are opened, because their rows are counted
    else:
        splits = {split: open_some(files) for split, files in by_split.items()}
    openers = {name: partial(splits.__getitem__, name) for name in splits}
    return SourceSplits(openers, notes=tuple(_notes(opened, homes)))


def _open_table(
    path: str, medium: FileKind, files: _Files, options: SourceOptions
) -> tuple[Source, _ListedFiles]:
    column = options.images or FILE_COLUMN
    openers = (opener for extensions, opener in _TABLES if has_extension(path, extensions))
    opener = next(openers, tables.open_csv_files)
    source = opener(path, options, [path])
    known: Any = source.features
    if known is None:
        known = first_names(source.examples, source_error(path, "there is no row"), column)
    if column not in known:
        raise source_error(path, "", option="images", found=column, choices=known)
    others = [name for name in known if name != column]
    choose_label(options.label, others, path)
    if source.label is None and len(others) == 1:
        source = opener(path, replace(options, label=others[0]), [path])
    items = _ListedFiles.open(path, files, medium, source.examples, column)
    taken = next((each for each in (medium.feature, items.path_feature) if each in others), None)
    if taken is not None:
        raise source_error(path, f"another column has the reserved name {taken!r}", 1)
    if all(isinstance(each, SourceError) for each in items.found):
        reason = f"no row has a file below {files.home or '.'!r}: {items.found[0]}"
        raise source_error(path, reason)
    features = source.features
    if features is not None:
        below = (os.path.join(files.home, each) for each in items.found if isinstance(each, str))
        made = {medium.feature: medium.infer(below), items.path_feature: "str"}
        features = Features({**made, **{name: features[name] for name in others}})
    kind = f"{medium.feature} table"
    source = replace(source, kind=kind, examples=items, length=len(items), features=features)
    return replace(source, notes=()), items


def _notes(opened: Sequence[_ListedFiles], homes: Mapping[str, _Files]) -> Iterator[str]:
    """Yield the notes of files that no row lists, and of rows without a file."""
    listed = {
        os.path.normpath(os.path.join(os.path.dirname(each.path), file))
        for each in opened
        for file in each.found
        if isinstance(file, str)
    }
    # A table that the caller named may be in a directory with any other files.
    directories = set(map(os.path.dirname, listed))
    unlisted = [
        path
        for home, files in homes.items()
        for path in files.paths
        if (file := os.path.normpath(os.path.join(home, path))) not in listed
        and (not files.is_named or os.path.dirname(file) in directories)
    ]
    if unlisted:
        names = list_names([os.path.basename(each.path) for each in opened])
        count = count_of(len(unlisted), opened[0].medium.noun)
        yield f"{count} in no row of {names}: {list_names(unlisted, 3)}"
    for each in opened:
        missing = [file.reason for file in each.found if isinstance(file, SourceError)]
        if missing:
            name = os.path.basename(each.path)
            yield f"{count_of(len(missing), 'row')} of {name} without a file: {missing[0]}"


# Formats.


def _has_table(medium: FileKind, probed: ProbedPath) -> bool:
    found = [path for paths in _find_tables(probed).values() for path in paths]
    homes = {os.path.dirname(path) or "." for path in found}
    return any(any(map(medium.accepts, walk(home))) for home in homes)


def _has_files(medium: FileKind, probed: ProbedPath) -> bool:
    has_files = probed.is_directory and any(map(medium.accepts, probed.below))
    return has_files and not _find_tables(probed)


def _register(medium: FileKind) -> None:
    name, noun = medium.feature, medium.noun
    register(
        f"{name} table",
        f"{noun}s and a table that lists them with their labels",
        recognise=partial(_has_table, medium),
        options=("images", "columns", "delimiter", "encoding", "field"),
    )(partial(_open_tables, medium))
    register(
        f"{name} directory",
        f"a directory with a subdirectory of {noun}s per class",
        recognise=partial(_has_files, medium),
        options=("splits", "class_from"),
    )(partial(_open_directory, medium))


_register(IMAGES)
_register(SOUNDS)
