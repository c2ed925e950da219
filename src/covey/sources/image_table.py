"""Images that are listed in a table, which says more about each: its label, for one."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from covey.errors import FormatError, SourceError
from covey.schema import Features, Image
from covey.sources.csv import Row, Table, TypedTable, looks_like_table
from covey.sources.image_folder import is_image, read_image
from covey.sources.image_formats import EXTENSIONS
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    check_label,
    enumerate_names,
    fault,
    find_label,
)
from covey.untrusted import check_path

# Rows that are looked at to find the column that holds the paths.
_LOOKED_AT = 20


@dataclass(frozen=True)
class _Listing:
    """A table, the column of it that holds paths, and the directory that they are relative to."""

    table: Table
    column: int
    directory: str
    confined: bool
    """Whether images outside of the directory are refused."""

    def find(self, path: str) -> str:
        """The file of an image."""
        if self.confined:
            check_path(os.path.normpath(path).replace(os.sep, "/"), "the path of an image")
        return os.path.join(self.directory, path)


@dataclass(frozen=True, eq=False)
class _ListedImages(LazyItems):
    typed: TypedTable
    listing: _Listing
    offsets: array[int]
    """Where every row begins,"""
    lines: array[int]
    """and on which line."""
    path_feature: str
    repeated: bool
    """Whether a path comes more than once, so that it is not a key by itself."""

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, number: int) -> Item:
        table = self.listing.table
        row = table.row_at(self.offsets[number], self.lines[number])
        example = self.typed.example(row)
        path = _path_of(row, self.listing.column)
        if isinstance(example, SourceError):
            return example
        del example[table.names[self.listing.column]]
        if path is None:
            return fault(table.path, "this row names no image", row.line)
        try:
            file = self.listing.find(path)
        except FormatError as error:
            return fault(table.path, str(error), row.line)
        if not os.path.isfile(file):
            return fault(table.path, f"there is no file {file!r}, which this row names", row.line)
        data = read_image(file)
        if isinstance(data, SourceError):
            return fault(table.path, str(data), row.line)
        key = f"{path}:{row.line}" if self.repeated else path
        return key, {"image": data, self.path_feature: path, **example}


def _tables(place: ProbedPath) -> list[str]:
    """The tables that something is or holds."""
    if place.is_file:
        return [place.path] if looks_like_table(place.head) else []
    if not os.path.isdir(place.path):
        return []
    return [
        file
        for file in place.files
        if os.path.splitext(file)[1].lower() not in EXTENSIONS and looks_like_table(read_head(file))
    ]


def _listing(path: str, confined: bool) -> _Listing | None:
    """Find the column whose values name images, and the directory that has them.

    Args:
        path: The table.
        confined: Whether images outside of the directory are refused.
    """
    try:
        table = Table.open(path)
    except SourceError:
        return None
    rows = [row.cells for row in islice(table.rows(), _LOOKED_AT)]
    sound = [cells for cells in rows if not isinstance(cells, SourceError)]
    home = os.path.dirname(path)
    best, found = 0, None
    for directory in [home, *ProbedPath.look(home or ".").directories]:
        for column in range(len(table.names)):
            listing = _Listing(table, column, directory, confined)
            hits = sum(_is_hit(listing, cells[column]) for cells in sound if cells[column])
            if hits > best:
                best, found = hits, listing
    return found


def _is_hit(listing: _Listing, path: str) -> bool:
    try:
        file = listing.find(path)
    except FormatError:
        return False
    return os.path.isfile(file) and is_image(file)


def _listings(place: ProbedPath) -> Iterator[_Listing]:
    # A table that was chosen by itself may list images anywhere. One that was found in a directory may
    # have come with it: then only the directory is read.
    return filter(None, (_listing(each, not place.is_file) for each in _tables(place)))


def _is_image_table(place: ProbedPath) -> bool:
    return next(_listings(place), None) is not None


@register(
    "image table",
    "images and a CSV file that lists them with their labels",
    recognise=_is_image_table,
    rank=1,
)
def open_image_table(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """Images that a table lists by their path; its other columns are features too."""
    listings = list(_listings(place))
    if not listings:
        raise fault(
            place.path,
            f"found {place.describe()}, but no CSV or TSV file with a column of paths of images; "
            "paths are relative to the file, or to a directory beside it",
        )
    if len(listings) > 1:
        tables = enumerate_names(os.path.basename(each.table.path) for each in listings)
        raise fault(place.path, f"several tables list images: {tables}; give the path of one")
    (listing,) = listings
    table = listing.table
    others = [name for i, name in enumerate(table.names) if i != listing.column]
    check_label(label, others, table.path, "column")
    label = label or find_label(others) or (others[0] if len(others) == 1 else None)
    own = table.names[listing.column]
    path_feature = "filename" if own == "image" else own
    if "image" in others or path_feature in others:
        taken = "image" if "image" in others else path_feature
        raise fault(table.path, f"a column beside the paths is called {taken!r}; rename it", 1)
    typed = TypedTable.survey(table, label)
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


def _path_of(row: Row, column: int) -> str | None:
    return None if isinstance(row.cells, SourceError) else row.cells[column] or None
