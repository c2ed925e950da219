"""Tables of text, CSV and TSV: their rows one at a time, with the line that each begins on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from covey.errors import SourceError
from covey.schema import ClassLabel, Features, Tensor
from covey.sources.registry import HEAD_BYTES, ProbedPath, one_file, read_head, register
from covey.sources.source import Item, Source, check_label, fault, find_label

_DELIMITERS = (",", "\t", ";", "|")
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
# 007 is a name, not a number: its zeros would be lost.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE
)
# Up to these, integers and decimals are held by float32.
_EXACT = 1 << 24
_MOST_FLOAT32 = 3.4028234e38


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    line: int
    """The line that it begins on, from 1."""
    offset: int
    """The byte that it begins at."""
    cells: list[str] | SourceError
    """As many as the header has, or what is wrong."""


@dataclass(frozen=True)
class Table:
    """A file of rows, of which the first is the header."""

    path: str
    delimiter: str
    names: tuple[str, ...]

    @classmethod
    def open(cls, path: str) -> Table:
        """Find out how a table is delimited, and read its header."""
        head = read_head(path)
        if head[:2] in _WIDE_BOMS:
            raise fault(path, "this is UTF-16, not UTF-8; save it as UTF-8")
        if not head.strip():
            raise fault(path, "this file is empty; the first line must name the columns", 1)
        delimiter = sniff_delimiter(head) or ","
        header = next(cls(path, delimiter, ())._rows())
        if isinstance(header.cells, SourceError):
            raise header.cells
        names = [name.strip() or f"column_{i + 1}" for i, name in enumerate(header.cells)]
        if all(_DECIMAL.fullmatch(name) for name in names):
            raise fault(
                path,
                f"the first row is {header.cells!r}, which is data; it must name the columns",
                header.line,
            )
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise fault(path, f"two columns have the name {twice!r}; rename one", header.line)
        return cls(path, delimiter, tuple(names))

    def rows(self) -> Iterator[Row]:
        """The rows after the header."""
        rows = self._rows()
        next(rows)
        yield from rows

    def row_at(self, offset: int, line: int) -> Row:
        """The row that begins at a byte, and a line, that :meth:`rows` gave."""
        return next(self._rows(offset, line))

    def _rows(self, offset: int = 0, line: int = 1) -> Iterator[Row]:
        import csv

        with open(self.path, "rb") as file:
            file.seek(offset)
            lines = _Lines(file, offset, line)
            reader = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=True)
            while True:
                # What the reader has not asked for yet is where the next row begins.
                line, offset = lines.line, lines.offset
                cells, problem = [], None
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    problem = f"this row cannot be read: {error}{_remedy(error)}"
                if not cells and problem is None:
                    continue  # a blank line
                wrong = self._fault(cells, problem, lines, line)
                lines.undecoded = None
                yield Row(line, offset, cells if wrong is None else wrong)

    def _fault(
        self, cells: list[str], problem: str | None, lines: _Lines, line: int
    ) -> SourceError | None:
        if lines.undecoded is not None:
            where, byte = lines.undecoded
            return fault(
                self.path, f"byte {byte:#04x} is not an UTF-8; save the file as UTF-8", where
            )
        if problem is None and self.names and len(cells) != len(self.names):
            problem = (
                f"this row has {len(cells)} cells, the header has {len(self.names)}; "
                "quote a cell that holds the delimiter"
            )
        return None if problem is None else fault(self.path, problem, line)


class _Lines:
    """The lines of a file for the csv module, which does not say where it is."""

    def __init__(self, file: BinaryIO, offset: int, line: int) -> None:
        self._file = file
        self.offset = offset
        self.line = line
        self.undecoded: tuple[int, int] | None = None
        """The line and the first byte of what is not an UTF-8."""

    def __iter__(self) -> Iterator[str]:
        for raw in self._file:
            start = len(_BOM) if self.offset == 0 and raw.startswith(_BOM) else 0
            try:
                text = raw[start:].decode()
            except UnicodeDecodeError as error:
                self.undecoded = self.undecoded or (self.line, raw[start + error.start])
                text = raw[start:].decode(errors="replace")
            self.line += 1
            self.offset += len(raw)
            yield text


def _remedy(error: Exception) -> str:
    if "unexpected end" in str(error):
        return "; a quote that begins in it is never closed"
    return "; csv.field_size_limit() allows larger ones" if "limit" in str(error) else ""


def sniff_delimiter(head: bytes) -> str | None:
    r"""The delimiter that cuts most of the first rows into as many cells as the header has.

    >>> sniff_delimiter(b"name;weight\nowl;1,5\n")
    ';'
    """
    import csv

    text = head.removeprefix(_BOM).decode(errors="replace")
    lines = text.splitlines(keepends=True)[:100]
    if len(lines) > 1 and len(head) >= HEAD_BYTES:
        lines.pop()  # most likely cut off
    best: tuple[float, int] = (0.5, 0)
    found = None
    for delimiter in _DELIMITERS:
        try:
            reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
            rows = [len(row) for row in reader if row]
        except csv.Error:
            continue
        if rows and rows[0] > 1:
            fit = (sum(count == rows[0] for count in rows) / len(rows), rows[0])
            if fit > best:
                best, found = fit, delimiter
    return found


def looks_like_table(head: bytes) -> bool:
    """Whether a file that begins so is text in columns."""
    if head[:2] in _WIDE_BOMS:
        return True
    controls = sum(head.count(byte) for byte in range(32) if byte not in b"\t\n\r")
    return bool(head.strip()) and not controls and sniff_delimiter(head) is not None


class Column:
    """What the cells of a column have been so far.

    >>> column = Column()
    >>> for cell in ["1", "", "2.5"]:
    ...     column.see(cell)
    >>> column.dtype()
    'float32'
    """

    def __init__(self) -> None:
        self._kind = 0  # 1 integers, 2 decimals too, 3 text
        self._empty = False
        self._low = 0
        self._high = 0
        self._large = 0.0

    def see(self, cell: str) -> None:
        """Take another cell into account."""
        if self._kind == 3:
            return
        cell = cell.strip()
        if not cell:
            self._empty = True
        elif _INTEGER.fullmatch(cell) and len(cell) < 30:
            value = int(cell)
            self._low, self._high = min(self._low, value), max(self._high, value)
            self._kind = max(self._kind, 1)
        elif _DECIMAL.fullmatch(cell):
            size = abs(float(cell))
            self._large = max(self._large, size if size < float("inf") else 0.0)
            self._kind = 2
        else:
            self._kind = 3

    def dtype(self, *, label: bool = False) -> str:
        """The dtype that holds all cells; a label is an integer or a string."""
        complete = self._kind == 1 and (label or not self._empty)
        if complete and self._low >= -(2**63) and self._high < 2**63:
            return "int64"
        if complete and self._low >= 0 and self._high < 2**64:
            return "uint64"
        if self._kind in (0, 3) or label or complete:
            return "str"
        exact = self._low >= -_EXACT and self._high <= _EXACT and self._large <= _MOST_FLOAT32
        return "float32" if exact else "float64"


def convert(cell: str, dtype: str) -> Any:
    """The value of a cell; an empty one is nan among numbers."""
    if dtype == "str":
        return cell
    if dtype.startswith("float"):
        return float(cell.strip() or "nan")
    return int(cell)


@dataclass(frozen=True)
class TypedTable:
    """A table of which every column's type is known."""

    table: Table
    dtypes: tuple[str, ...]
    label: str | None
    classes: tuple[str, ...] | None
    """The names of the classes, if the label is a string."""
    length: int

    @classmethod
    def survey(cls, table: Table, label: str | None) -> TypedTable:
        """Find out, from all rows, what the columns hold."""
        columns = [Column() for _ in table.names]
        at = None if label is None else table.names.index(label)
        classes: set[str] = set()
        length = 0
        for row in table.rows():
            length += 1
            if isinstance(row.cells, SourceError) or (at is not None and not row.cells[at]):
                continue
            for column, cell in zip(columns, row.cells, strict=True):
                column.see(cell)
            if at is not None:
                classes.add(row.cells[at])
        if not length:
            raise fault(table.path, "there is no row after the header", 1)
        dtypes = tuple(column.dtype(label=i == at) for i, column in enumerate(columns))
        named = at is not None and dtypes[at] == "str"
        return cls(table, dtypes, label, tuple(sorted(classes)) if named else None, length)

    def example(self, row: Row) -> dict[str, Any] | SourceError:
        """The values of a row by the names of their columns."""
        if isinstance(row.cells, SourceError):
            return row.cells
        names = self.table.names
        if self.label is not None and not row.cells[names.index(self.label)]:
            what = f"the label is missing: {self.label!r} is empty"
            return fault(self.table.path, what, row.line)
        try:
            return dict(zip(names, map(convert, row.cells, self.dtypes), strict=True))
        except ValueError as error:  # the file has changed since it was surveyed
            return fault(self.table.path, f"this row is not what it was before: {error}", row.line)

    def kinds(self) -> dict[str, Any]:
        """The kinds of features that the columns are."""
        kinds: dict[str, Any] = {
            name: Tensor(dtype) for name, dtype in zip(self.table.names, self.dtypes, strict=True)
        }
        if self.label is not None and self.classes is not None:
            kinds[self.label] = ClassLabel(names=self.classes)
        return kinds


@dataclass(frozen=True, eq=False)
class _TableItems:
    """The rows of a table, streamed in every pass."""

    typed: TypedTable

    def __iter__(self) -> Iterator[Item]:
        for number, row in enumerate(self.typed.table.rows()):
            example = self.typed.example(row)
            yield example if isinstance(example, SourceError) else (number, example)

    def __len__(self) -> int:
        return self.typed.length


def _is_table(place: ProbedPath) -> bool:
    return place.is_file and looks_like_table(place.head)


@register("CSV", "a CSV or TSV file with a header", recognise=_is_table, rank=6)
def open_csv(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """The rows of a table, keyed by their number from 0; read twice, and never held."""
    table = Table.open(one_file(place, "CSV"))
    check_label(label, table.names, table.path, "column")
    label = label or find_label(table.names)
    typed = TypedTable.survey(table, label)
    return Source(
        "TSV" if table.delimiter == "\t" else "CSV",
        table.path,
        _TableItems(typed),
        length=typed.length,
        features=Features(typed.kinds()),
        label=label,
    )
