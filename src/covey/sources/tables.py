"""CSV, TSV, JSON and JSON Lines files. Rows are read in every pass and keyed by their position."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from covey._core import is_same_in_float32
from covey._text import list_names
from covey.errors import SourceError, check
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.lattice import MAX_EXACT_FLOAT64, float_dtype
from covey.sources.registry import FILE_COLUMN, has_extension, register_files
from covey.sources.source import (
    Row,
    Source,
    SourceOptions,
    TableRows,
    choose_label,
    first_names,
    source_error,
)
from covey.untrusted import RegularFile, brief

CSV_EXTENSIONS = (".csv", ".tsv", ".tab")
LINES_EXTENSIONS = (".jsonl", ".ndjson", ".jsonlines")
JSON_EXTENSIONS = (".json",)
MAX_CELL_CHARACTERS = 64 << 20
"""Maximum length of a cell."""
MAX_TEXT_CHARACTERS = 1 << 30
"""Maximum length of a line, and of a JSON file that must be in memory as a whole."""

_FILES_NOTE = (
    f"column {FILE_COLUMN!r} is read as strings; images={FILE_COLUMN!r} (--images {FILE_COLUMN}) "
    "reads the files that it names"
)
_DELIMITERS = (",", "\t", ";", "|")
_CHUNK_ROWS = 4096
_ENCODING = "pass encoding= if it is another one, such as 'latin-1' or 'utf-16'"
# What decoding has in place of a byte that is not valid, and NUL, as UTF-16 has.
_INVALID = re.compile("[\udc80-\udcff\0]")
# 007 is a string: as an integer it would lose its zeros.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE
)
_BOOLS = {"true": True, "1": True, "false": False, "0": False}

# The limit of the csv module, 131,072 characters, is one for the process. It is only raised.
csv.field_size_limit(max(MAX_CELL_CHARACTERS, csv.field_size_limit()))


# Text.


def _read_text(path: str, encoding: str | None, *, is_lines: bool = True) -> Generator[str]:
    """Yield the lines of a text file, plain or compressed with GZIP; or its whole text.

    A byte that is not valid UTF-8 becomes a surrogate, which :func:`_fault` finds.

    Raises:
        SourceError: If a line or the text is too long, or the rest of the file cannot be read.
    """
    line = 0
    with io.BufferedReader(RegularFile(path)) as file:
        content: Any = file
        if file.peek(2)[:2] == b"\x1f\x8b":
            content = gzip.GzipFile(fileobj=file)
        errors = "strict" if encoding else "surrogateescape"
        text = io.TextIOWrapper(content, encoding or "utf-8-sig", errors, newline="")
        read = text.readline if is_lines else text.read
        try:
            while found := read(MAX_TEXT_CHARACTERS + 1):
                line += 1
                if len(found) > MAX_TEXT_CHARACTERS:
                    what = "a line" if is_lines else "the text"
                    reason = f"{what} has more than {MAX_TEXT_CHARACTERS:,} characters"
                    raise source_error(path, reason, line)
                yield found
            return
        except (OSError, EOFError, zlib.error) as error:
            reason = f"the text from here on cannot be decompressed: {error}"
        except UnicodeError as error:
            reason = f"the text from here on is not valid {encoding}: {error}"
    raise source_error(path, reason, line + 1)


def _fault(text: str, path: str, line: int) -> SourceError | None:
    """Return the error of text, which begins at a line, that is not valid UTF-8."""
    found = None if text.isascii() and "\0" not in text else _INVALID.search(text)
    if found is None:
        return None
    byte = ord(found[0]) & 0xFF
    reason = f"byte {byte:#04x} is not valid UTF-8" if byte else "it has NUL bytes"
    line += text.count("\n", 0, found.start())
    return source_error(path, reason, line, remedy=_ENCODING)


# CSV.


@dataclass(frozen=True)
class _CsvFile:
    """A CSV file, and the names of its columns."""

    path: str
    delimiter: str
    encoding: str | None
    names: tuple[str, ...] = ()
    has_header: bool = False

    @classmethod
    def open(cls, path: str, options: SourceOptions) -> _CsvFile:
        """Find the delimiter of a file, and the names of its columns.

        Raises:
            SourceError: If the file is not a table.
        """
        given = options.delimiter
        delimiter = "\t" if given in ("tab", "\\t") else given or _delimiter(path, options.encoding)
        ok = len(delimiter) == 1 and delimiter not in '\r\n"\0'
        check("delimiter", given, ok, "one character", error=SourceError, path=path)
        table = cls(path, delimiter, options.encoding)
        with closing(table.all_rows()) as rows:
            line, first = next(rows, (1, []))
        if isinstance(first, SourceError):
            raise first
        if not first:
            raise source_error(path, "the file is empty; the first line must be a header", 1)
        header = tuple(name.strip() or f"column_{i + 1}" for i, name in enumerate(first))
        names = tuple(options.columns or header)
        if len(names) != len(first):
            reason = f"the first row has {len(first)} cells, {list_names(first, 5)}"
            allowed = f"the names of the {len(first)} columns"
            where = {"option": "columns", "found": options.columns, "allowed": allowed}
            raise source_error(path, reason, line, **where)
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise source_error(path, f"two columns have the name {repeated!r}", line)
        return replace(table, names=names, has_header=names == header)

    def rows(self) -> Iterator[tuple[int, list[str] | SourceError]]:
        """Yield the line and the cells of each row after the header, as many as there are names."""
        count = len(self.names)
        for line, cells in islice(self.all_rows(), int(self.has_header), None):
            if isinstance(cells, SourceError) or len(cells) == count:
                yield line, cells
            else:
                reason = f"the row has {len(cells)} cells; the header has {count}"
                yield line, source_error(self.path, reason, line)

    def all_rows(self) -> Generator[tuple[int, list[str] | SourceError]]:
        """Yield the line and the cells of each row that is not blank."""
        with closing(_read_text(self.path, self.encoding)) as lines:
            reader = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=True)
            while True:
                line = reader.line_num + 1
                cells: list[str] | SourceError
                try:
                    cells = next(reader)
                    cells = _fault("\n".join(cells), self.path, line) or cells
                except StopIteration:
                    return
                except csv.Error as error:
                    cells = source_error(self.path, f"the row cannot be parsed: {error}", line)
                except SourceError as error:  # the rest of the file cannot be read
                    yield line, error
                    return
                if cells:
                    yield line, cells


def _delimiter(path: str, encoding: str | None) -> str:
    """Return the delimiter that splits the header into the most cells; a comma if none does."""
    with closing(_read_text(path, encoding)) as lines:
        try:
            header = next((line for line in lines if line.strip()), "")
        except SourceError:
            return ","  # reading the rows reports it
    if has_extension(path, (".tsv", ".tab")) and "\t" in header:
        return "\t"

    def count(delimiter: str) -> int:
        return len(next(csv.reader([header], delimiter=delimiter, skipinitialspace=True), ()))

    return max(_DELIMITERS, key=count)


class _CellType:
    """The type of the cells of a column, which are strings.

    >>> column = _CellType()
    >>> column.add(["1", "", "2.5"])
    >>> column.dtype()
    'float32'
    """

    _INTEGERS, _DECIMALS, _STRINGS = 1, 2, 3

    def __init__(self) -> None:
        self._kind = self._min = self._max = 0
        self._has_empty, self._is_float32 = False, True

    def add(self, cells: Iterable[str]) -> None:
        """Add cells."""
        for cell in cells:
            if self._kind == self._STRINGS:
                return
            cell = cell.strip()
            if not cell:
                self._has_empty = True
            elif _INTEGER.fullmatch(cell) and len(cell) < 30:
                self._min, self._max = min(self._min, int(cell)), max(self._max, int(cell))
                self._kind = max(self._kind, self._INTEGERS)
            elif _DECIMAL.fullmatch(cell):
                self._is_float32 = self._is_float32 and is_same_in_float32(float(cell))
                self._kind = self._DECIMALS
            else:
                self._kind = self._STRINGS

    def dtype(self, *, is_label: bool = False, is_filled: bool = False) -> str:
        """Return the dtype that stores all cells.

        Args:
            is_label: Whether it is the label, which is an integer or a string.
            is_filled: Whether empty cells have a default. Without it, integers beside them are
                floats.
        """
        has_empty = self._has_empty and not (is_label or is_filled)
        integers = self._kind == self._INTEGERS and not has_empty
        if integers and self._min >= -(2**63) and self._max < 2**63:
            return "int64"
        if integers and self._min >= 0 and self._max < 2**64:
            return "uint64"
        if self._kind in (0, self._STRINGS) or is_label or integers:
            return "str"
        return float_dtype(max(-self._min, self._max), is_float32=self._is_float32)


def _float(cell: str) -> float:
    """Return the number in a cell; an empty one is nan.

    The encoder raises if a float does not hold an integer, which is returned as it is.
    """
    value = float(cell) if cell and not cell.isspace() else float("nan")
    is_large = abs(value) >= MAX_EXACT_FLOAT64 and _INTEGER.fullmatch(cell.strip())
    return int(cell) if is_large else value


def _converter(dtype: str) -> Callable[[str], Any]:
    """Return a function that returns the value of a cell, or raises ValueError or KeyError."""
    if dtype.startswith("float"):
        return _float
    others: dict[str, Callable[[str], Any]] = {
        "str": str,
        "bytes": str.encode,
        "bool": lambda cell: _BOOLS[cell.strip().lower()],
    }
    return others.get(dtype, int)


@dataclass(frozen=True, eq=False, kw_only=True)
class _CsvRows(TableRows):
    """The rows of tables with the same columns."""

    tables: tuple[_CsvFile, ...]
    classes: tuple[str, ...] | None
    """Class names, if the label is a string."""
    length: int

    @classmethod
    def survey(cls, tables: Sequence[_CsvFile], label: str | None) -> _CsvRows:
        """Find the types of the columns from all rows."""
        names = tables[0].names
        columns = {name: _CellType() for name in names}
        at = None if label is None else names.index(label)
        classes: set[str] = set()
        length = 0
        rows = (cells for table in tables for _, cells in table.rows())
        while chunk := list(islice(rows, _CHUNK_ROWS)):
            length += len(chunk)
            valid = [row for row in chunk if isinstance(row, list) and (at is None or row[at])]
            for name, cells in zip(names, zip(*valid, strict=True), strict=bool(valid)):
                columns[name].add(set(cells))
                classes.update(cells if name == label else ())
        if not length:
            raise source_error(tables[0].path, "there is no row after the header", 1)
        dtypes, filled = (
            {
                name: column.dtype(is_label=name == label, is_filled=is_filled)
                for name, column in columns.items()
            }
            for is_filled in (False, True)
        )
        return cls(
            files=tuple(table.path for table in tables),
            tables=tuple(tables),
            dtypes=dtypes,
            filled=filled,
            label=label,
            classes=tuple(sorted(classes)) if label and dtypes[label] == "str" else None,
            length=length,
        )

    def __len__(self) -> int:
        return self.length

    def located(self) -> Iterator[tuple[int, Row]]:
        """Yield the line and the example of each row, or its error."""
        for table in self.tables:
            for line, cells in table.rows():
                yield line, self._example(cells, table.path, line)

    def _example(self, cells: list[str] | SourceError, path: str, line: int) -> Row:
        if isinstance(cells, SourceError):
            return cells
        example: dict[str, Any] = {}
        for (name, convert, is_optional), cell in zip(self._columns, cells, strict=True):
            if name == self.label and not cell:
                return source_error(path, "the label is empty", line, feature=name)
            if is_optional and not cell.strip():
                continue
            try:
                example[name] = convert(cell)
            except (ValueError, KeyError):
                found, remedy = (
                    (repr(cell), "") if cell.strip() else ("empty", "pass defaults= for it")
                )
                reason = f"the cell is {found}; must be {self.dtypes[name]}"
                return source_error(path, reason, line, feature=name, remedy=remedy)
        return example

    @cached_property
    def _columns(self) -> list[tuple[str, Callable[[str], Any], bool]]:
        """The name and the converter of each column, and whether it has a default."""
        names = self.tables[0].names
        return [(name, _converter(self.dtypes[name]), name in self.optional) for name in names]

    def __getstate__(self) -> dict[str, Any]:
        return {name: each for name, each in self.__dict__.items() if name != "_columns"}


@register_files("CSV", "CSV or TSV files", CSV_EXTENSIONS, ("columns", "delimiter", "encoding"))
def open_csv_files(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the tables of one split."""
    tables = [_CsvFile.open(file, options) for file in files]
    first = tables[0]
    for table in tables:
        if table.names != first.names:
            raise source_error(
                table.path,
                f"the columns are {list_names(table.names)}; those of {first.path} are "
                f"{list_names(first.names)}",
                remedy="open one of the files, or a pattern of files with the same columns",
            )
    rows = _CsvRows.survey(tables, choose_label(options.label, first.names, first.path))
    kinds: dict[str, Any] = {name: Tensor(each) for name, each in rows.dtypes.items()}
    if rows.label is not None and rows.classes is not None:
        kinds[rows.label] = ClassLabel(names=rows.classes)
    return Source(
        "TSV" if first.delimiter == "\t" else "CSV",
        files[0] if len(files) == 1 else path,
        rows,
        length=rows.length,
        features=Features(kinds),
        label=rows.label,
        notes=(_FILES_NOTE,) if FILE_COLUMN in first.names else (),
        label_hint="" if options.columns else "pass columns= if the first row is not a header",
    )


# JSON.


def _parse(text: str, path: str, line: int) -> Any:
    """Parse JSON that begins at a line of a file; raise SourceError with the line if it fails."""
    fault = _fault(text, path, line)
    if fault is not None:
        raise fault
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        reason = f"is not valid JSON: {error.msg} at column {error.colno}"
    except (RecursionError, ValueError) as error:  # also an integer with too many digits
        reason = f"is not valid JSON: {error}"
    raise source_error(path, reason, line)


def _has_lines(path: str, encoding: str | None) -> bool:
    """Return whether a file has one object per line, by its extension or its first lines."""
    if has_extension(path, LINES_EXTENSIONS):
        return True
    with closing(_read_text(path, encoding)) as lines:
        try:
            first, second = islice((each for each in lines if each.strip()), 2)
            return isinstance(json.loads(first), dict) and second.lstrip()[:1] == "{"
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True, eq=False, kw_only=True)
class _JsonRows(TableRows):
    """The objects in JSON files, whose types are those of the values."""

    encoding: str | None = None
    field: str | None = None

    def located(self) -> Iterator[tuple[int | None, Row]]:
        """Yield the line and the example of each object, or its error."""
        for path in self.files:
            try:
                if not _has_lines(path, self.encoding):
                    for record, value in enumerate(self._list(path)):
                        yield None, self._example(value, path, record=record)
                    continue
                for line, text in enumerate(_read_text(path, self.encoding), 1):
                    if text.strip():
                        yield line, self._parsed(text.strip(), path, line)
            except SourceError as error:  # the rest of the file cannot be read
                yield error.line, error

    def _parsed(self, text: str, path: str, line: int) -> Row:
        try:
            return self._example(_parse(text, path, line), path, line=line)
        except SourceError as error:
            return error

    def _list(self, path: str) -> list[Any]:
        """Return the list of objects of a file, which is held in memory."""
        text = _read_text(path, self.encoding, is_lines=False)
        content = value = _parse("".join(text), path, 1)
        for name in self.field.split(".") if self.field else ():
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, list) and any(isinstance(each, dict) for each in value or [{}]):
            return value
        inside = content if value is None else value
        items = inside.items() if isinstance(inside, dict) else ()
        lists = [k for k, v in items if isinstance(v, list) and v and isinstance(v[0], dict)]
        raise source_error(
            path,
            f"found {brief(inside)}",
            option="field",
            found=self.field,
            allowed="the path of a list of objects",
            remedy=f"pass field={lists[0]!r}" if lists else "",
        )

    def _example(self, value: Any, path: str, **where: int) -> Row:
        """Return an object without names whose value is null, or an error."""
        if not isinstance(value, dict):
            return source_error(path, f"found {brief(value)}; must be an object", **where)
        example = {name: each for name, each in value.items() if each is not None}
        if self.label is not None and example.get(self.label, "") == "":
            found = f"the label is missing; the object has {list_names(example)}"
            return source_error(path, found, feature=self.label, **where)
        return example


@register_files("JSON", "JSON files with a list of objects", JSON_EXTENSIONS, ("field", "encoding"))
@register_files("JSON Lines", "files of JSON Lines", LINES_EXTENSIONS, ("field", "encoding"))
def open_json_files(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the files of one split."""
    rows = _JsonRows(files=tuple(files), encoding=options.encoding, field=options.field)
    error = source_error(files[0], "there is no example in this file")
    label = choose_label(options.label, first_names(rows, error, options.label), files[0])
    is_lines = all(_has_lines(file, options.encoding) for file in files)
    return Source(
        "JSON Lines" if is_lines else "JSON",
        files[0] if len(files) == 1 else path,
        replace(rows, label=label),
        label=label,
    )
