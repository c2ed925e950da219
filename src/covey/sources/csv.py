"""CSV and TSV files: one, or several with the same columns."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from typing import Any, BinaryIO

from covey._text import count_of
from covey.errors import SourceError
from covey.labels import find_label_name
from covey.schema import ClassLabel, Features, Tensor
from covey.sources.cells import CellType, convert, guess_header
from covey.sources.registry import HEAD_BYTES, ProbedPath, read_head, register
from covey.sources.source import (
    Item,
    Source,
    SourceOptions,
    SourceSplits,
    check_label,
    list_names,
    open_split_files,
    source_error,
)
from covey.sources.text import (
    UTF8_BOM,
    check_encoding,
    extension,
    is_text,
    named_files,
    open_text,
    read_lines,
    text_head,
    utf8_error,
)

MAX_CELL_CHARACTERS = 64 << 20
"""Maximum length of a cell."""
TABLE_EXTENSIONS = frozenset((".csv", ".tsv", ".tab"))

_DELIMITERS = (",", "\t", ";", "|")
# Excel writes and reads a first line that contains the delimiter.
_SEP_LINE = re.compile(rb'"?sep=(.)"?\r?\n', re.IGNORECASE)
# Prose contains commas: every line of a file with one of these extensions must be a row.
_PROSE_EXTENSIONS = frozenset((".txt", ".md", ".rst", ".log", ".html", ".xml", ".py"))
# Rows that are compared with the first one, which may be a header.
_INSPECTED_ROWS = 1000
_INSPECTED_CHARACTERS = 16 << 20


@cache
def _csv() -> Any:
    """Return the C module of the csv module, as an instance with a limit of cells of its own.

    The limit of the csv module, 131,072 characters, is one for the process. It is not changed.
    """
    spec = importlib.util.find_spec("_csv")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.field_size_limit(MAX_CELL_CHARACTERS)
    return module


@dataclass(frozen=True)
class CsvRow:
    """A row of a CSV file."""

    line: int
    """First line of the row, from 1."""
    offset: int
    """Byte offset of the row in the text in UTF-8."""
    cells: list[str] | SourceError
    """The cells, as many as there are names; or the error of the row."""


@dataclass(frozen=True)
class CsvTable:
    """A CSV file, and the names of its columns."""

    path: str
    delimiter: str
    names: tuple[str, ...]
    offset: int = 0
    """Byte offset of the first row after the header."""
    line: int = 1
    """Line of that row."""
    label_hint: str = ""
    """What to do if no column is the label, as in :class:`Source`."""

    @classmethod
    def open(
        cls, path: str, options: SourceOptions | None = None, *, strict: bool = True
    ) -> CsvTable:
        """Detect the delimiter of a file, and find the names of its columns.

        Args:
            path: Path of the file.
            options: Options, of which this uses `columns` and `delimiter`.
            strict: Whether a table without names is an error; otherwise its columns have the names
                ``column_1``, ``column_2``, ...

        Raises:
            SourceError: If the file is not a table, or its first row is not a header and `columns`
                are not given.
        """
        options = options or SourceOptions()
        raw = read_head(path)
        check_encoding(path, raw)
        head = text_head(raw)
        if not head.strip():
            raise source_error(path, "the file is empty; the first line must be a header", 1)
        sep = _SEP_LINE.match(head)
        delimiter = _check_delimiter(options.delimiter, path) or (sep and sep[1].decode("latin-1"))
        detected = _delimiter_of(path, head)
        table = cls(path, delimiter or detected, ())
        if sep is not None:
            with open_text(path) as file:
                table = replace(table, offset=len(file.readline()), line=2)
        rows = list(table._first_rows())
        if not rows:
            raise source_error(path, f"there is no row after the line {head[:8].decode()!r}", 2)
        first = rows[0].cells
        if isinstance(first, SourceError):
            raise first
        hint = ""
        if options.delimiter is not None and len(first) == 1 and detected in first[0]:
            hint = f"omit delimiter= to use {detected!r}, which is detected"
        known = [row.cells for row in rows if not isinstance(row.cells, SourceError)]
        if options.columns is None:
            is_header, why = guess_header(known)
            names = _header_names(first)
            if is_header is False:
                if strict:
                    reason = f"; it is not a header: {why}"
                    raise _wrong_columns(path, rows[0], first, reason, hint)
                names = [f"column_{i + 1}" for i in range(len(first))]
            elif is_header is None:
                hint = hint or "pass columns= if the first row is not a header"
        else:
            names = list(options.columns)
            if len(names) != len(first):
                raise _wrong_columns(path, rows[0], first, "", hint, found=options.columns)
            is_header = _header_names(first) == names
            if not is_header and guess_header(known)[0]:
                raise source_error(
                    path,
                    f"the first row is {_show(first)}, which is a header",
                    rows[0].line,
                    option="columns",
                    found=options.columns,
                    remedy="columns are the names of a table without a header",
                )
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise source_error(path, f"two columns have the name {repeated!r}", rows[0].line)
        table = replace(table, names=tuple(names), label_hint=hint)
        return table if is_header is False else table._after(rows[0])

    def _after(self, header: CsvRow) -> CsvTable:
        """Return the table without its first row."""
        with open_text(self.path, header.offset) as file:
            lines = _CsvLines(file, self.path, header.offset, header.line)
            next(self._parse(lines))
            return replace(self, offset=lines.offset, line=lines.line)

    def _first_rows(self) -> Iterator[CsvRow]:
        """Yield the rows to inspect, fewer if their cells are long."""
        size = 0
        for row in islice(self.rows(), _INSPECTED_ROWS):
            yield row
            size += 0 if isinstance(row.cells, SourceError) else sum(map(len, row.cells))
            if size > _INSPECTED_CHARACTERS:
                return

    def rows(self) -> Iterator[CsvRow]:
        """Yield the rows after the header."""
        return self._rows(self.offset, self.line)

    def row_at(self, offset: int, line: int) -> CsvRow:
        """Return the row at an offset and line that :meth:`rows` yielded."""
        return next(self._rows(offset, line))

    def _rows(self, offset: int, line: int) -> Iterator[CsvRow]:
        with open_text(self.path, offset) as file:
            yield from self._parse(_CsvLines(file, self.path, offset, line))

    def _parse(self, lines: _CsvLines) -> Iterator[CsvRow]:
        csv = _csv()
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
            except SourceError as error:  # the rest of the file cannot be read
                error.line = lines.line
                yield CsvRow(line, offset, error)
                return
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
            return utf8_error(self.path, byte, line)
        if not reason and self.names and len(cells) != len(self.names):
            reason = f"the row has {len(cells)} cells; the header has {len(self.names)}"
        return source_error(self.path, reason, line) if reason else None


class _CsvLines:
    """The decoded lines of a file, with the position that the csv module does not report."""

    def __init__(self, file: BinaryIO, path: str, offset: int, line: int) -> None:
        self._file = file
        self._path = path
        self.offset = offset
        self.line = line
        self.undecoded: tuple[int, int] | None = None
        """Line and value of the first byte that is not valid UTF-8."""

    def __iter__(self) -> Iterator[str]:
        for raw in read_lines(self._file, self._path):
            start = len(UTF8_BOM) if self.offset == 0 and raw.startswith(UTF8_BOM) else 0
            try:
                text = raw[start:].decode()
            except UnicodeDecodeError as error:
                self.undecoded = self.undecoded or (self.line, raw[start + error.start])
                text = raw[start:].decode(errors="replace")
            self.line += 1
            self.offset += len(raw)
            yield text


def _header_names(cells: Sequence[str]) -> list[str]:
    return [name.strip() or f"column_{i + 1}" for i, name in enumerate(cells)]


def _show(cells: Sequence[str]) -> str:
    """Return the cells of a row for a message."""
    shown = [cell if len(cell) <= 40 else f"{cell[:37]}..." for cell in cells]
    return f"{count_of(len(cells), 'cell')}, {list_names(shown)}"


def _wrong_columns(
    path: str, row: CsvRow, first: Sequence[str], why: str, remedy: str, **fields: Any
) -> SourceError:
    reason = f"the first row is {_show(first)}{why}"
    allowed = f"the names of the {count_of(len(first), 'column')}"
    return source_error(
        path, reason, row.line, option="columns", allowed=allowed, remedy=remedy, **fields
    )


def _check_delimiter(delimiter: str | None, path: str) -> str | None:
    r"""Return a delimiter; ``tab`` and ``\t`` can be typed in a shell."""
    if delimiter in ("tab", "\\t"):
        return "\t"
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"\0'):
        raise source_error(path, "", option="delimiter", found=delimiter, allowed="one character")
    return delimiter


def _delimiter_of(path: str, head: bytes) -> str:
    """Return the delimiter of a file. The extension decides where the content does not."""
    if extension(path) in (".tsv", ".tab") and b"\t" in head:
        return "\t"
    return sniff_delimiter(head) or ","


def sniff_delimiter(head: bytes, share: float = 0.5) -> str | None:
    r"""Return the delimiter that splits most of the first rows into as many cells as the header.

    Args:
        head: Beginning of the text.
        share: Minimum share of the rows with as many cells as the header; it is exceeded, or 1.

    >>> sniff_delimiter(b"name;weight\nowl;1,5\n")
    ';'
    """
    csv = _csv()
    text = head.removeprefix(UTF8_BOM).decode(errors="replace")
    lines = text.splitlines(keepends=True)[:100]
    if len(lines) > 1 and len(head) >= HEAD_BYTES // 2 and len(lines) < 100:
        lines.pop()  # it may be truncated
    best: tuple[float, int] = (share, 0)
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


def looks_like_table(head: bytes, path: str = "") -> bool:
    """Return whether a file with these first bytes is a table.

    Args:
        head: First bytes of the file.
        path: Path of the file. Its extension counts where the content is ambiguous: a table of one
            column, or prose.
    """
    text = text_head(head)
    found = extension(path)
    if found in TABLE_EXTENSIONS:
        return is_text(text) or b"\0" in head[:2048]  # UTF-16 and UTF-32 have errors of their own
    if _SEP_LINE.match(text):
        return True
    share = 1.0 if found in _PROSE_EXTENSIONS else 0.5
    return is_text(text) and sniff_delimiter(text, share) is not None


@dataclass(frozen=True)
class TypedTable:
    """Tables with the same columns, and the types of these."""

    tables: tuple[CsvTable, ...]
    dtypes: tuple[str, ...]
    filled_dtypes: tuple[str, ...]
    """The types if empty cells have a default."""
    label: str | None
    classes: tuple[str, ...] | None
    """Class names, if the label is a string."""
    length: int
    optional: frozenset[str] = frozenset()
    """Columns whose empty cells are missing values."""

    @classmethod
    def survey(cls, tables: Sequence[CsvTable], label: str | None) -> TypedTable:
        """Find the types of the columns from all rows."""
        names = tables[0].names
        columns = [CellType() for _ in names]
        at = None if label is None else names.index(label)
        classes: set[str] = set()
        length = 0
        for row in chain.from_iterable(table.rows() for table in tables):
            length += 1
            if isinstance(row.cells, SourceError) or (at is not None and not row.cells[at]):
                continue
            for column, cell in zip(columns, row.cells, strict=True):
                column.add(cell)
            if at is not None:
                classes.add(row.cells[at])
        if not length:
            raise source_error(tables[0].path, "there is no row after the header", 1)
        dtypes, filled = (
            tuple(
                column.dtype(is_label=i == at, is_filled=each) for i, column in enumerate(columns)
            )
            for each in (False, True)
        )
        named = at is not None and dtypes[at] == "str"
        names_of_classes = tuple(sorted(classes)) if named else None
        return cls(tuple(tables), dtypes, filled, label, names_of_classes, length)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self.tables[0].names

    def example(self, row: CsvRow, table: CsvTable) -> dict[str, Any]:
        """Return the values of a row of a table by column.

        Raises:
            SourceError: If the row is invalid, or has no label.
        """
        if isinstance(row.cells, SourceError):
            raise row.cells
        if self.label is not None and not row.cells[self.names.index(self.label)]:
            raise source_error(table.path, "the label is empty", row.line, feature=self.label)
        try:
            if not self.optional:
                return dict(zip(self.names, map(convert, row.cells, self.dtypes), strict=True))
        except ValueError:
            pass  # the loop below finds the cell
        example = {}
        for name, cell, dtype in zip(self.names, row.cells, self.dtypes, strict=True):
            is_empty = not cell.strip()
            if is_empty and name in self.optional:
                continue
            try:
                example[name] = convert(cell, dtype)
            except ValueError:
                reason = f"the cell is {'empty' if is_empty else repr(cell)}; must be {dtype}"
                remedy = "pass defaults= for it" if is_empty else ""
                raise source_error(
                    table.path, reason, row.line, feature=name, remedy=remedy
                ) from None
        return example

    def declare(
        self, types: Mapping[str, str], optional: Collection[str]
    ) -> tuple[TypedTable, dict[str, str]]:
        """Return the table with declared types of some columns.

        Args:
            types: Declared dtypes, by column.
            optional: Columns whose empty cells are missing values, because they have a default.

        Returns:
            The table, and the dtypes of the columns that are integers because of their default.
        """
        chosen = [name in optional and name != self.label for name in self.names]
        found = {
            name: filled
            for name, filled, is_chosen in zip(self.names, self.filled_dtypes, chosen, strict=True)
            if is_chosen
        }
        dtypes = dict(zip(self.names, self.dtypes, strict=True)) | found
        dtypes |= {name: types[name] for name in self.names if name in types}
        typed = replace(self, dtypes=tuple(dtypes.values()), optional=frozenset(found))
        return typed, found

    def kinds(self) -> dict[str, Any]:
        """Return the feature of each column."""
        kinds: dict[str, Any] = {
            name: Tensor(dtype) for name, dtype in zip(self.names, self.dtypes, strict=True)
        }
        if self.label is not None and self.classes is not None:
            kinds[self.label] = ClassLabel(names=self.classes)
        return kinds


@dataclass(frozen=True, eq=False)
class _CsvItems:
    """The rows of tables, read in every pass."""

    typed: TypedTable

    def __iter__(self) -> Iterator[Item]:
        rows = ((table, row) for table in self.typed.tables for row in table.rows())
        for position, (table, row) in enumerate(rows):
            try:
                yield position, self.typed.example(row, table)
            except SourceError as error:
                yield error

    def __len__(self) -> int:
        return self.typed.length

    def declare(
        self, types: Mapping[str, str], optional: Collection[str]
    ) -> tuple[_CsvItems, dict[str, str]]:
        """Return the rows with declared types; see :meth:`TypedTable.declare`."""
        typed, found = self.typed.declare(types, optional)
        return _CsvItems(typed), found


def _table_files(probed: ProbedPath) -> list[str]:
    """Return the tables at a path: the file; or those that have the extension of one."""
    if probed.is_file:
        return [probed.path] if looks_like_table(probed.head, probed.path) else []
    return named_files(probed, TABLE_EXTENSIONS)


@register(
    "CSV",
    "a CSV or TSV file, a directory or a pattern of them",
    recognise=lambda probed: bool(_table_files(probed)),
    rank=6,
    options=("columns", "delimiter"),
)
def open_csv(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open tables. Their rows are keyed by position, read twice, and not held in memory."""
    files = [probed.path] if probed.is_file else _table_files(probed)
    if not files:
        raise source_error(probed.path, f"found {probed.describe()}; CSV must be a file or files")
    return open_split_files(files, partial(_open_tables, probed.path, options))


def _open_tables(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the files of one split."""
    tables = [CsvTable.open(file, options) for file in files]
    first = tables[0]
    for table in tables:
        if table.names != first.names:
            raise source_error(
                table.path,
                f"the columns are {list_names(table.names)}; those of {first.path} are "
                f"{list_names(first.names)}",
                remedy="open one of the files, or a pattern of files with the same columns",
            )
    check_label(options.label, first.names, first.path)
    label = options.label or find_label_name(first.names)
    typed = TypedTable.survey(tables, label)
    return Source(
        "TSV" if first.delimiter == "\t" else "CSV",
        files[0] if len(files) == 1 else path,
        _CsvItems(typed),
        length=typed.length,
        features=Features(typed.kinds()),
        label=label,
        label_hint=first.label_hint,
    )
