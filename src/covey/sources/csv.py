"""CSV and TSV files with a header."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from covey.errors import SourceError
from covey.schema import ClassLabel, Features, Tensor
from covey.sources.registry import HEAD_BYTES, ProbedPath, check_file, read_head, register
from covey.sources.source import (
    Item,
    Source,
    SourceOptions,
    check_label,
    find_label_name,
    source_error,
)

_DELIMITERS = (",", "\t", ";", "|")
_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
# 007 is a string: as an integer it would lose its zeros.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE
)
# Limits of the integers and decimals that float32 stores.
_MAX_FLOAT32_INTEGER = 1 << 24
_MAX_FLOAT32 = 3.4028234e38


@dataclass(frozen=True)
class CsvRow:
    """A row of a CSV file."""

    line: int
    """First line of the row, from 1."""
    offset: int
    """Byte offset of the row."""
    cells: list[str] | SourceError
    """The cells, as many as in the header; or the error of the row."""


@dataclass(frozen=True)
class CsvTable:
    """A CSV file with a header."""

    path: str
    delimiter: str
    names: tuple[str, ...]

    @classmethod
    def open(cls, path: str) -> CsvTable:
        """Detect the delimiter of a file, and read its header."""
        head = read_head(path)
        if head[:2] in _UTF16_BOMS:
            raise source_error(path, "the encoding is UTF-16; must be UTF-8")
        if not head.strip():
            raise source_error(path, "the file is empty; the first line must be a header", 1)
        delimiter = sniff_delimiter(head) or ","
        header = next(cls(path, delimiter, ())._rows())
        if isinstance(header.cells, SourceError):
            raise header.cells
        names = [name.strip() or f"column_{i + 1}" for i, name in enumerate(header.cells)]
        if all(_DECIMAL.fullmatch(name) for name in names):
            raise source_error(
                path, f"the first row is {header.cells!r}; must be a header", header.line
            )
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise source_error(path, f"two columns have the name {repeated!r}", header.line)
        return cls(path, delimiter, tuple(names))

    def rows(self) -> Iterator[CsvRow]:
        """Yield the rows after the header."""
        rows = self._rows()
        next(rows)
        yield from rows

    def row_at(self, offset: int, line: int) -> CsvRow:
        """Return the row at an offset and line that :meth:`rows` yielded."""
        return next(self._rows(offset, line))

    def _rows(self, offset: int = 0, line: int = 1) -> Iterator[CsvRow]:
        import csv

        with open(self.path, "rb") as file:
            file.seek(offset)
            lines = _CsvLines(file, offset, line)
            reader = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=True)
            while True:
                # The reader has consumed all lines of the previous row, and no more.
                line, offset = lines.line, lines.offset
                cells: list[str] = []
                reason = ""
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    reason = f"the row cannot be parsed: {error}"
                if not cells and not reason:
                    continue  # a blank line
                wrong = self._check(cells, reason, lines, line)
                lines.undecoded = None
                yield CsvRow(line, offset, cells if wrong is None else wrong)

    def _check(
        self, cells: list[str], reason: str, lines: _CsvLines, line: int
    ) -> SourceError | None:
        if lines.undecoded is not None:
            line, byte = lines.undecoded
            return source_error(self.path, f"byte {byte:#04x} is not valid UTF-8", line)
        if not reason and self.names and len(cells) != len(self.names):
            reason = f"the row has {len(cells)} cells; the header has {len(self.names)}"
        return source_error(self.path, reason, line) if reason else None


class _CsvLines:
    """The decoded lines of a file, with the position that the csv module does not report."""

    def __init__(self, file: BinaryIO, offset: int, line: int) -> None:
        self._file = file
        self.offset = offset
        self.line = line
        self.undecoded: tuple[int, int] | None = None
        """Line and value of the first byte that is not valid UTF-8."""

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


def sniff_delimiter(head: bytes) -> str | None:
    r"""Return the delimiter that splits most of the first rows into as many cells as the header.

    >>> sniff_delimiter(b"name;weight\nowl;1,5\n")
    ';'
    """
    import csv

    text = head.removeprefix(_BOM).decode(errors="replace")
    lines = text.splitlines(keepends=True)[:100]
    if len(lines) > 1 and len(head) >= HEAD_BYTES:
        lines.pop()  # it may be truncated
    best: tuple[float, int] = (0.5, 0)
    found = None
    for delimiter in _DELIMITERS:
        try:
            reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
            sizes = [len(row) for row in reader if row]
        except csv.Error:
            continue
        if sizes and sizes[0] > 1:
            score = (sum(size == sizes[0] for size in sizes) / len(sizes), sizes[0])
            if score > best:
                best, found = score, delimiter
    return found


def looks_like_table(head: bytes) -> bool:
    """Return whether a file with this beginning is a table."""
    if head[:2] in _UTF16_BOMS:
        return True
    controls = sum(head.count(byte) for byte in range(32) if byte not in b"\t\n\r")
    return bool(head.strip()) and not controls and sniff_delimiter(head) is not None


class CellType:
    """The type of the cells of a column.

    Cells are strings, so their types are found by syntax, before schema inference.

    >>> column = CellType()
    >>> for cell in ["1", "", "2.5"]:
    ...     column.add(cell)
    >>> column.dtype()
    'float32'
    """

    _INTEGERS, _DECIMALS, _STRINGS = 1, 2, 3

    def __init__(self) -> None:
        self._kind = 0
        self._has_empty = False
        self._min = 0
        self._max = 0
        self._max_decimal = 0.0

    def add(self, cell: str) -> None:
        """Add a cell."""
        if self._kind == self._STRINGS:
            return
        cell = cell.strip()
        if not cell:
            self._has_empty = True
        elif _INTEGER.fullmatch(cell) and len(cell) < 30:
            value = int(cell)
            self._min, self._max = min(self._min, value), max(self._max, value)
            self._kind = max(self._kind, self._INTEGERS)
        elif _DECIMAL.fullmatch(cell):
            size = abs(float(cell))
            self._max_decimal = max(self._max_decimal, size if size < float("inf") else 0.0)
            self._kind = self._DECIMALS
        else:
            self._kind = self._STRINGS

    def dtype(self, *, is_label: bool = False) -> str:
        """Return the dtype that stores all cells; that of a label is an integer or a string."""
        integers = self._kind == self._INTEGERS and (is_label or not self._has_empty)
        if integers and self._min >= -(2**63) and self._max < 2**63:
            return "int64"
        if integers and self._min >= 0 and self._max < 2**64:
            return "uint64"
        if self._kind in (0, self._STRINGS) or is_label or integers:
            return "str"
        limit = _MAX_FLOAT32_INTEGER
        exact = self._min >= -limit and self._max <= limit and self._max_decimal <= _MAX_FLOAT32
        return "float32" if exact else "float64"


def _convert(cell: str, dtype: str) -> Any:
    """Return the value of a cell; an empty one is nan in a column of floats."""
    if dtype == "str":
        return cell
    if dtype.startswith("float"):
        return float(cell.strip() or "nan")
    return int(cell)


@dataclass(frozen=True)
class TypedTable:
    """A table with the types of its columns."""

    table: CsvTable
    dtypes: tuple[str, ...]
    label: str | None
    classes: tuple[str, ...] | None
    """Class names, if the label is a string."""
    length: int

    @classmethod
    def survey(cls, table: CsvTable, label: str | None) -> TypedTable:
        """Find the types of the columns from all rows."""
        columns = [CellType() for _ in table.names]
        at = None if label is None else table.names.index(label)
        classes: set[str] = set()
        length = 0
        for row in table.rows():
            length += 1
            if isinstance(row.cells, SourceError) or (at is not None and not row.cells[at]):
                continue
            for column, cell in zip(columns, row.cells, strict=True):
                column.add(cell)
            if at is not None:
                classes.add(row.cells[at])
        if not length:
            raise source_error(table.path, "there is no row after the header", 1)
        dtypes = tuple(column.dtype(is_label=i == at) for i, column in enumerate(columns))
        named = at is not None and dtypes[at] == "str"
        return cls(table, dtypes, label, tuple(sorted(classes)) if named else None, length)

    def example(self, row: CsvRow) -> dict[str, Any]:
        """Return the values of a row by column.

        Raises:
            SourceError: If the row is invalid, or has no label.
        """
        if isinstance(row.cells, SourceError):
            raise row.cells
        names, path = self.table.names, self.table.path
        if self.label is not None and not row.cells[names.index(self.label)]:
            raise source_error(path, "the label is empty", row.line, feature=self.label)
        try:
            return dict(zip(names, map(_convert, row.cells, self.dtypes), strict=True))
        except ValueError as error:
            reason = f"the row was changed after the file was opened: {error}"
            raise source_error(path, reason, row.line) from None

    def kinds(self) -> dict[str, Any]:
        """Return the feature of each column."""
        kinds: dict[str, Any] = {
            name: Tensor(dtype) for name, dtype in zip(self.table.names, self.dtypes, strict=True)
        }
        if self.label is not None and self.classes is not None:
            kinds[self.label] = ClassLabel(names=self.classes)
        return kinds


@dataclass(frozen=True, eq=False)
class _CsvItems:
    """The rows of a table, read in every pass."""

    typed: TypedTable

    def __iter__(self) -> Iterator[Item]:
        for position, row in enumerate(self.typed.table.rows()):
            try:
                yield position, self.typed.example(row)
            except SourceError as error:
                yield error

    def __len__(self) -> int:
        return self.typed.length


def _is_table(probed: ProbedPath) -> bool:
    return probed.is_file and looks_like_table(probed.head)


@register("CSV", "a CSV or TSV file with a header", recognise=_is_table, rank=6)
def open_csv(probed: ProbedPath, options: SourceOptions) -> Source:
    """Open a table. Its rows are keyed by their position, read twice, and not held in memory."""
    table = CsvTable.open(check_file(probed, "CSV"))
    check_label(options.label, table.names, table.path)
    label = options.label or find_label_name(table.names)
    typed = TypedTable.survey(table, label)
    return Source(
        "TSV" if table.delimiter == "\t" else "CSV",
        table.path,
        _CsvItems(typed),
        length=typed.length,
        features=Features(typed.kinds()),
        label=label,
    )
