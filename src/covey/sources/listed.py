"""Images and sounds that a table lists, with their labels and other features."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from covey._text import count_of
from covey.errors import SourceError
from covey.schema import Features
from covey.sources import arrow, csv, json
from covey.sources.media import IMAGES, SOUNDS, FileKind
from covey.sources.registry import METADATA_TABLES, ProbedPath, has_extension, register, walk
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    SourceOptions,
    SourceSplits,
    TableRows,
    add_notes,
    check_label,
    list_names,
    open_split_files,
    source_error,
)

FILE_COLUMN = "file_name"
"""Column of the files in a table of Hugging Face."""

_OPENERS = (
    (csv.EXTENSIONS, csv.open_tables),
    ((*json.LINES_EXTENSIONS, *json.EXTENSIONS), json.open_tables),
    ((*arrow.PARQUET_EXTENSIONS, *arrow.ARROW_EXTENSIONS), arrow.open_tables),
)
_FIRST_ROWS: dict[Any, Callable[[str], dict[str, Any]]] = {
    csv.open_tables: csv.first_row,
    json.open_tables: json.first_row,
}
_OPTIONS = ("images", "columns", "delimiter", "encoding", "field")
_INSPECTED_ROWS = 20


def _opener(path: str) -> Callable[[str, SourceOptions, list[str]], Source] | None:
    """Return the function that opens a table, by its extension."""
    found = (opener for extensions, opener in _OPENERS if has_extension(path, extensions))
    return next(found, None)


def tables(probed: ProbedPath) -> dict[str, list[str]]:
    """Return the tables of files at a path, by split: ``metadata.csv``, or the path itself."""
    if probed.is_file:
        return {"": [probed.path]} if _is_listing(probed.path) else {}
    found = {
        split: [file for file in files if os.path.basename(file) in METADATA_TABLES]
        for split, files in {"": probed.files, **probed.inner}.items()
        if split != "data"
    }
    return {split: files for split, files in found.items() if files}


def _is_listing(path: str) -> bool:
    """Return whether a text table has a column ``file_name`` of images or sounds that exist."""
    read = _FIRST_ROWS.get(_opener(path))
    name = "" if read is None else str(read(path).get(FILE_COLUMN) or "")
    return bool(name) and any(
        _Files(os.path.dirname(path), kind, is_named=True).find(name) for kind in (IMAGES, SOUNDS)
    )


class _Files:
    """The files that a table may list.

    Args:
        home: Directory of the table.
        kind: Kind of the files.
        is_named: Whether the caller named the table, which may then list files anywhere. A table
            that was found in a directory may list files of this directory only.
    """

    def __init__(self, home: str, kind: FileKind, *, is_named: bool) -> None:
        self._home = home or "."
        self.is_named = is_named
        self.paths = [path for path in walk(self._home) if kind.accepts(path)]
        self._by_stem: dict[str, list[str]] = {}
        for path in self.paths:
            self._by_stem.setdefault(_stem(os.path.basename(path)), []).append(path)

    def find(self, name: str) -> str | None:
        """Return the path of a file, relative to the home; None if there is none.

        Args:
            name: The end of the path, with or without the extension.

        Raises:
            SourceError: If it is the name of several files.
        """
        name = os.path.normpath(name)
        if self.is_named and (os.path.isabs(name) or name.startswith("..")):
            return name if os.path.isfile(os.path.join(self._home, name)) else None
        base = os.path.basename(name)
        found = [
            path
            for stem in dict.fromkeys((base, _stem(base)))
            for path in self._by_stem.get(stem, ())
            if any(f"/{each}".endswith(f"/{name}") for each in (path, _stem(path)))
        ]
        if len(found) > 1 and name not in found:
            raise SourceError(f"{name!r} is the name of several files: {list_names(found, 3)}")
        return name if name in found else found[0] if found else None


def _stem(path: str) -> str:
    return os.path.splitext(path)[0]


@dataclass(frozen=True, eq=False)
class _ListedFiles(LazyItems):
    home: str
    medium: FileKind
    table: TableRows
    path: str
    """Path of the table."""
    column: str
    rows: Sequence[tuple[int | None, dict[str, Any] | SourceError]]
    """Lines, and examples or errors."""
    found: Sequence[str | SourceError]
    """The file of each row."""
    repeated: bool
    """Whether a file occurs more than once, so that its name is not a unique key."""

    @classmethod
    def open(
        cls, found: _Files, files: FileKind, table: Any, path: str, column: str
    ) -> _ListedFiles:
        """Find the file of each row."""
        table, _ = table.declare({column: "str"}, ())
        rows = list(table.located())
        listed: list[str | SourceError] = []
        for _, row in rows:
            name = row.get(column) if isinstance(row, dict) else None
            try:
                file = found.find(str(name)) if name not in (None, "") else None
                listed.append(file or _missing(name, files))
            except SourceError as error:
                listed.append(error)
        names = [str(row.get(column)) for _, row in rows if isinstance(row, dict)]
        repeated = len(set(names)) < len(names)
        return cls(os.path.dirname(path), files, table, path, column, rows, listed, repeated)

    @property
    def path_feature(self) -> str:
        """Feature that has the name of the file."""
        return "filename" if self.column == self.medium.feature else self.column

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, position: int) -> Item:
        line, row = self.rows[position]
        if isinstance(row, SourceError):
            return row
        found = self.found[position]
        try:
            if isinstance(found, SourceError):
                raise found
            data = self.medium.read(os.path.join(self.home, found))
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


def _missing(name: Any, files: FileKind) -> SourceError:
    if name in (None, ""):
        return SourceError("the row names no file")
    return SourceError(f"there is no {files.noun} file {str(name)!r}")


def _recognise(files: FileKind, probed: ProbedPath) -> bool:
    homes = {os.path.dirname(each) for some in tables(probed).values() for each in some}
    return any(any(map(files.accepts, walk(home or "."))) for home in homes)


def _open(files: FileKind, probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open the files that tables list. The other columns of a table are features.

    ``metadata.csv`` in each directory of a split, or tables with names of splits, such as
    ``train.csv`` and ``test.csv``, are splits.
    """
    by_split = {} if options.images else tables(probed)
    if not by_split and probed.is_file:
        by_split = {"": [probed.path]}
    if not by_split:
        files_of = (probed.data_files(*extensions) for extensions, _ in _OPENERS)
        by_split = next(filter(None, files_of), tables(probed))
    if not by_split:
        raise source_error(
            probed.path,
            f"found {probed.describe()}, but no table of {files.noun}s",
            remedy=f"name a table, and pass images= for its column of {files.noun}s",
        )
    column = options.images or FILE_COLUMN
    opened: list[_ListedFiles] = []
    indexes: dict[str, _Files] = {}

    def open_some(paths: list[str]) -> Source:
        if len(paths) > 1:
            names = list_names(map(os.path.basename, paths))
            raise source_error(
                probed.path,
                f"several tables list {files.noun}s: {names}",
                remedy="open one of them",
            )
        home = os.path.dirname(paths[0])
        if home not in indexes:
            indexes[home] = _Files(home, files, is_named=probed.is_file)
        source, items = _open_table(paths[0], files, indexes[home], column, options)
        opened.append(items)
        return source

    if "" in by_split:
        found = open_split_files(by_split[""], open_some)
    else:
        found = SourceSplits({split: partial(open_some, by_split[split]) for split in by_split})
    if isinstance(found, Source):
        return add_notes(found, *_notes(opened, indexes))
    splits = dict(found)  # all are opened, because their rows are counted
    notes = (*found.notes, *_notes(opened, indexes))
    return SourceSplits({name: partial(splits.__getitem__, name) for name in splits}, notes=notes)


def _open_table(
    path: str, files: FileKind, found: _Files, column: str, options: SourceOptions
) -> tuple[Source, _ListedFiles]:
    opener = _opener(path) or csv.open_tables
    source = opener(path, options, [path])
    names = _names(source)
    if column not in names:
        raise source_error(path, "", option="images", found=column, choices=names)
    others = [name for name in names if name != column]
    check_label(options.label, others, path)
    if source.label is None and len(others) == 1:
        source = opener(path, replace(options, label=others[0]), [path])
    items = _ListedFiles.open(found, files, source.examples, path, column)
    taken = next((each for each in (files.feature, items.path_feature) if each in others), None)
    if taken is not None:
        raise source_error(path, f"another column has the reserved name {taken!r}", 1)
    if all(isinstance(each, SourceError) for each in items.found):
        first = items.found[0]
        raise source_error(path, f"no row has a file below {items.home or '.'!r}: {first}")
    features = source.features
    if features is not None:
        paths = (os.path.join(items.home, each) for each in items.found if isinstance(each, str))
        kinds = {name: features[name] for name in others}
        medium = {files.feature: files.infer_files(paths), items.path_feature: "str"}
        features = Features({**medium, **kinds})
    kind = f"{'image' if files is IMAGES else 'audio'} table"
    made = Source(kind, path, items, length=len(items), features=features, label=source.label)
    return made, items


def _names(source: Source) -> list[str]:
    """Return the columns of a table; of JSON, those of its first objects."""
    if source.features is not None:
        return list(source.features)
    first = (item for item in islice(source.examples, _INSPECTED_ROWS))
    return list(
        dict.fromkeys(name for each in first if isinstance(each, tuple) for name in each[1])
    )


def _notes(opened: Sequence[_ListedFiles], indexes: Mapping[str, _Files]) -> Iterator[str]:
    """Yield the notes of files that no row lists, and of rows without a file."""
    listed = {
        os.path.normpath(os.path.join(each.home, file))
        for each in opened
        for file in each.found
        if isinstance(file, str)
    }
    # A table that the caller named may be in a directory with any other files.
    directories = set(map(os.path.dirname, listed))
    unlisted = [
        path
        for home, found in indexes.items()
        for path in found.paths
        if (file := os.path.normpath(os.path.join(home, path))) not in listed
        and (not found.is_named or os.path.dirname(file) in directories)
    ]
    if unlisted:
        tables = list_names([os.path.basename(each.path) for each in opened])
        noun = opened[0].medium.noun
        yield f"{count_of(len(unlisted), noun)} in no row of {tables}: {list_names(unlisted, 3)}"
    for each in opened:
        missing = [file.reason for file in each.found if isinstance(file, SourceError)]
        if missing:
            rows = count_of(len(missing), "row")
            yield f"{rows} of {os.path.basename(each.path)} without a file: {missing[0]}"


@register(
    "image table",
    "images and a table that lists them with their labels",
    recognise=partial(_recognise, IMAGES),
    options=_OPTIONS,
)
def open_image_table(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open the images that a table lists; sounds, if there is no image."""
    home = os.path.dirname(probed.path) if probed.is_file else probed.path
    below = list(walk(home or "."))
    is_sound = any(map(SOUNDS.accepts, below)) and not any(map(IMAGES.accepts, below))
    return _open(SOUNDS if is_sound else IMAGES, probed, options)


@register(
    "audio table",
    "sounds and a table that lists them with their labels",
    recognise=partial(_recognise, SOUNDS),
    options=_OPTIONS,
)
def open_audio_table(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open the sounds that a table lists."""
    return _open(SOUNDS, probed, options)
