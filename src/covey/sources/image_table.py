"""Images that are listed in a CSV or TSV file, with their labels and other features."""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from covey._files import is_hidden
from covey._text import count_of
from covey.errors import FormatError, SourceError
from covey.labels import find_label_name
from covey.schema import Features, Image
from covey.sources.class_directory import walk_files
from covey.sources.csv import CsvRow, CsvTable, TypedTable, looks_like_table
from covey.sources.images import EXTENSIONS, is_image, read_image
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    SourceOptions,
    SourceSplits,
    add_notes,
    as_source_error,
    check_label,
    list_names,
    open_split_files,
    source_error,
)
from covey.untrusted import check_path

# Rows that are inspected to find the column of paths.
_INSPECTED_ROWS = 20


@dataclass(frozen=True)
class _Listing:
    """A table with a column of paths."""

    table: CsvTable
    column: int
    """Index of the column of paths."""
    directory: str
    """Directory that the paths are relative to."""
    confined: bool
    """Whether paths outside of the directory are errors."""

    def find(self, path: str) -> str:
        """Return the path of an image file.

        Raises:
            FormatError: If it is outside of the directory.
        """
        if self.confined:
            check_path(os.path.normpath(path).replace(os.sep, "/"), "the path of an image")
        return os.path.join(self.directory, path)


@dataclass(frozen=True, eq=False)
class _ListedImages(LazyItems):
    typed: TypedTable
    listing: _Listing
    offsets: array[int]
    """Byte offset of every row."""
    lines: array[int]
    """First line of every row."""
    path_feature: str
    repeated: bool
    """Whether a path occurs more than once, so that it is not a unique key."""

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, position: int) -> Item:
        table = self.listing.table
        row = table.row_at(self.offsets[position], self.lines[position])
        try:
            example = self.typed.example(row, table)
            del example[table.names[self.listing.column]]
            path = _path_of(row, self.listing.column)
            if path is None:
                raise source_error(table.path, "the row has no path of an image")
            file = self.listing.find(path)
            if not os.path.isfile(file):
                raise source_error(file, "no such file")
            data = read_image(file)
        except (SourceError, FormatError) as error:
            return self._with_line(error, row.line)
        key = f"{path}:{row.line}" if self.repeated else path
        return key, {"image": data, self.path_feature: path, **example}

    def read_feature(self, name: str) -> Iterator[Item]:
        """Yield the rows with one column only; the images are not read."""
        table = self.listing.table
        for position, row in enumerate(table.rows()):
            try:
                yield position, {name: self.typed.example(row, table)[self._column(name)]}
            except SourceError as error:
                yield error

    def declare(
        self, types: Mapping[str, str], optional: Collection[str]
    ) -> tuple[_ListedImages, dict[str, str]]:
        """Return the rows with declared types; see :meth:`TypedTable.declare`."""
        typed, found = self.typed.declare(types, optional)
        return replace(self, typed=typed), found

    def _column(self, name: str) -> str:
        """Return the column of a feature."""
        own = self.listing.table.names[self.listing.column]
        return own if name == self.path_feature else name

    def _with_line(self, error: SourceError | FormatError, line: int) -> SourceError:
        """Return the error of a row, or of the image that it lists."""
        table = self.listing.table.path
        if error.path in (None, table):
            error.line = line
            return as_source_error(error, table)
        return source_error(table, f"{error.path}: {error.reason}", line)


def _tables(probed: ProbedPath) -> list[str]:
    """Return the tables at a path."""
    if probed.is_file:
        return [probed.path] if looks_like_table(probed.head) else []
    if not os.path.isdir(probed.path):
        return []
    return [
        file
        for file in probed.files
        if os.path.splitext(file)[1].lower() not in EXTENSIONS and looks_like_table(read_head(file))
    ]


def _listing(path: str, confined: bool, options: SourceOptions) -> _Listing | None:
    """Return a table with the column whose values are paths of images; None if it has none.

    Args:
        path: Path of the table.
        confined: Whether images outside of the directory are errors.
        options: Options of the table.
    """
    try:
        table = CsvTable.open(path, options, strict=False)
    except SourceError:
        return None
    rows = [row.cells for row in islice(table.rows(), _INSPECTED_ROWS)]
    valid = [cells for cells in rows if not isinstance(cells, SourceError)]
    home = os.path.dirname(path)
    best, found = 0, None
    for directory in [home, *ProbedPath.probe(home or ".").directories]:
        for column in range(len(table.names)):
            listing = _Listing(table, column, directory, confined)
            count = sum(_is_listed(listing, cells[column]) for cells in valid if cells[column])
            if count > best:
                best, found = count, listing
    return found


def _is_listed(listing: _Listing, path: str) -> bool:
    try:
        file = listing.find(path)
    except FormatError:
        return False
    return os.path.isfile(file) and is_image(file)


def _listings(probed: ProbedPath, options: SourceOptions) -> Iterator[_Listing]:
    # A table that the caller named may list images anywhere. A table in a directory that the caller
    # named is not trusted: it may list images in that directory only.
    tables = _tables(probed)
    return filter(None, (_listing(each, not probed.is_file, options) for each in tables))


def _is_image_table(probed: ProbedPath) -> bool:
    return next(_listings(probed, SourceOptions()), None) is not None


@register(
    "image table",
    "images and a CSV file that lists them with their labels",
    recognise=_is_image_table,
    rank=1,
    options=("columns", "delimiter"),
)
def open_image_table(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open the images whose paths a table lists. The other columns of the table are features.

    Tables with names of splits, such as ``train.csv`` and ``test.csv``, are splits.
    """
    listings = {each.table.path: each for each in _listings(probed, options)}
    if not listings:
        raise source_error(
            probed.path,
            f"found {probed.describe()}, but no CSV or TSV file with a column of image paths, "
            "relative to the file or to a directory beside it",
        )
    opened = open_split_files(list(listings), partial(_open_tables, probed.path, listings, options))
    return add_notes(opened, *_unlisted_notes(list(listings.values())))


def _unlisted_notes(listings: Sequence[_Listing]) -> Iterator[str]:
    """Yield the note of images that no row lists."""
    listed: set[str] = set()
    for each in listings:
        paths = (_path_of(row, each.column) for row in each.table.rows())
        listed.update(os.path.join(each.directory, path) for path in paths if path)
    listed = set(map(os.path.normpath, listed))
    # A table that the caller named may be in a directory with any other files.
    is_named = not listings[0].confined
    directories = set(map(os.path.dirname, listed)) if is_named else {listings[0].directory}
    found = {
        os.path.normpath(os.path.join(directory, name))
        for directory in directories
        if os.path.isdir(directory)
        for name in (os.listdir(directory) if is_named else walk_files(directory, _has_extension))
        if _has_extension(name)
    }
    unlisted = sorted(os.path.relpath(path, listings[0].directory) for path in found - listed)
    if unlisted:
        tables = list_names([os.path.basename(each.table.path) for each in listings])
        yield f"{count_of(len(unlisted), 'image')} in no row of {tables}: {list_names(unlisted, 3)}"


def _has_extension(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in EXTENSIONS and not is_hidden(os.path.basename(path))


def _open_tables(
    path: str, listings: Mapping[str, _Listing], options: SourceOptions, tables: list[str]
) -> Source:
    """Open the only table of a split."""
    if len(tables) > 1:
        names = list_names(map(os.path.basename, tables))
        raise source_error(path, f"several tables list images: {names}", remedy="open one of them")
    table = CsvTable.open(tables[0], options)
    return _open_table(replace(listings[tables[0]], table=table), options.label)


def _open_table(listing: _Listing, label: str | None) -> Source:
    table = listing.table
    others = [name for i, name in enumerate(table.names) if i != listing.column]
    check_label(label, others, table.path)
    label = label or find_label_name(others) or (others[0] if len(others) == 1 else None)
    own = table.names[listing.column]
    path_feature = "filename" if own == "image" else own
    if "image" in others or path_feature in others:
        taken = "image" if "image" in others else path_feature
        raise source_error(table.path, f"another column has the reserved name {taken!r}", 1)
    typed = TypedTable.survey([table], label)
    offsets, lines = array("q"), array("q")
    seen: set[str] = set()
    repeated = False
    for row in table.rows():
        offsets.append(row.offset)
        lines.append(row.line)
        path = _path_of(row, listing.column)
        repeated = repeated or (path is not None and path in seen)
        seen.add(path or "")
    kinds = typed.kinds()
    del kinds[own]
    return Source(
        "image table",
        table.path,
        _ListedImages(typed, listing, offsets, lines, path_feature, repeated),
        length=typed.length,
        features=Features({"image": Image(), path_feature: "str", **kinds}),
        label=label,
    )


def _path_of(row: CsvRow, column: int) -> str | None:
    return None if isinstance(row.cells, SourceError) else row.cells[column] or None
