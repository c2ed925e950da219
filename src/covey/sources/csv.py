"""CSV and TSV files: one, or several with the same columns."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import islice
from typing import Any

from covey._core import is_same_in_float32
from covey.errors import SourceError
from covey.labels import find_label_name
from covey.schema import ClassLabel, Feature, Features, Tensor
from covey.schema.lattice import MAX_EXACT_FLOAT64, float_dtype
from covey.sources.registry import ProbedPath, open_files, register
from covey.sources.source import (
    Source,
    SourceOptions,
    SourceSplits,
    TableRows,
    check_label,
    list_names,
    source_error,
)
from covey.sources.text import TextLines

MAX_CELL_CHARACTERS = 64 << 20
"""Maximum length of a cell."""
EXTENSIONS = (".csv", ".tsv", ".tab")

_DELIMITERS = (",", "\t", ";", "|")
_CHUNK_ROWS = 4096
# 007 is a string: as an integer it would lose its zeros.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE
)
_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_HINT = "pass columns= if the first row is not a header"


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
class CsvTable:
    """A CSV file, and the names of its columns."""

    path: str
    delimiter: str
    encoding: str | None
    names: tuple[str, ...] = ()
    has_header: bool = False

    @classmethod
    def open(cls, path: str, options: SourceOptions) -> CsvTable:
        """Find the delimiter of a file, and the names of its columns.

        Raises:
            SourceError: If the file is not a table.
        """
        delimiter = "\t" if options.delimiter in ("tab", "\\t") else options.delimiter
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"\0'):
            raise source_error(
                path, "", option="delimiter", found=delimiter, allowed="one character"
            )
        table = cls(path, delimiter or _sniff(path, options.encoding), options.encoding)
        with closing(table._rows()) as rows:
            line, first = next(rows, (1, []))
        if isinstance(first, SourceError):
            raise first
        if not first:
            raise source_error(path, "the file is empty; the first line must be a header", 1)
        header = tuple(name.strip() or f"column_{i + 1}" for i, name in enumerate(first))
        names = options.columns or header
        if len(names) != len(first):
            raise source_error(
                path,
                f"the first row has {len(first)} cells, {list_names(first, 5)}",
                line,
                option="columns",
                found=options.columns,
                allowed=f"the names of the {len(first)} columns",
            )
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise source_error(path, f"two columns have the name {repeated!r}", line)
        return replace(table, names=tuple(names), has_header=tuple(names) == header)

    def rows(self) -> Generator[tuple[int, list[str] | SourceError]]:
        """Yield the line and the cells of each row after the header, as many as there are names."""
        count = len(self.names)
        for line, cells in islice(self._rows(), int(self.has_header), None):
            if isinstance(cells, SourceError) or len(cells) == count:
                yield line, cells
            else:
                reason = f"the row has {len(cells)} cells; the header has {count}"
                yield line, source_error(self.path, reason, line)

    def _rows(self) -> Generator[tuple[int, list[str] | SourceError]]:
        csv = _csv()
        with TextLines(self.path, self.encoding) as lines:
            reader = csv.reader(lines, delimiter=self.delimiter, skipinitialspace=True, strict=True)
            while True:
                # The reader has consumed all lines of the previous row, and no more.
                line = lines.line + 1
                cells: list[str] | SourceError
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    cells = source_error(self.path, f"the row cannot be parsed: {error}", line)
                except SourceError as error:  # the rest of the file cannot be read
                    yield line, error
                    return
                if lines.fault is not None:
                    cells, lines.fault = lines.fault, None
                if cells:  # not a blank line
                    yield line, cells


def first_row(path: str) -> dict[str, str]:
    """Return the first row of a table by column; empty if it cannot be read."""
    try:
        table = CsvTable.open(path, SourceOptions())
        with closing(table.rows()) as rows:
            _, cells = next(rows, (0, []))
    except SourceError:
        return {}
    return {} if isinstance(cells, SourceError) else dict(zip(table.names, cells, strict=False))


def _sniff(path: str, encoding: str | None) -> str:
    """Return the delimiter that splits the header into the most cells; a comma if none does."""
    with TextLines(path, encoding) as lines:
        try:
            header = next((line for line in lines if line.strip()), "")
        except SourceError:
            return ","  # reading the rows reports it
    if path.lower().removesuffix(".gz").endswith((".tsv", ".tab")) and "\t" in header:
        return "\t"

    def count(delimiter: str) -> int:
        return len(next(_csv().reader([header], delimiter=delimiter, skipinitialspace=True), ()))

    return max(_DELIMITERS, key=count)


# Types.


class _CellType:
    """The type of the cells of a column, which are strings.

    >>> column = _CellType()
    >>> column.add(["1", "", "2.5"])
    >>> column.dtype()
    'float32'
    """

    _INTEGERS, _DECIMALS, _STRINGS = 1, 2, 3

    def __init__(self) -> None:
        self._kind = 0
        self._has_empty = False
        self._min = 0
        self._max = 0
        self._is_float32 = True

    def add(self, cells: Iterable[str]) -> None:
        """Add cells."""
        for cell in cells:
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


def _bool(cell: str) -> bool:
    value = _BOOLS.get(cell.strip().lower())
    if value is None:
        raise ValueError(f"invalid bool: {cell!r}")
    return value


def _converter(dtype: str) -> Callable[[str], Any]:
    """Return a function that returns the value of a cell, or raises ValueError."""
    if dtype.startswith("float"):
        return _float
    others: dict[str, Callable[[str], Any]] = {"str": str, "bytes": str.encode, "bool": _bool}
    return others.get(dtype, int)


# TableRows.


@dataclass(frozen=True, eq=False, kw_only=True)
class CsvItems(TableRows):
    """The rows of tables with the same columns."""

    tables: tuple[CsvTable, ...]
    classes: tuple[str, ...] | None
    """Class names, if the label is a string."""
    length: int

    @classmethod
    def survey(cls, tables: Sequence[CsvTable], label: str | None) -> CsvItems:
        """Find the types of the columns from all rows."""
        names = tables[0].names
        columns = [_CellType() for _ in names]
        at = None if label is None else names.index(label)
        classes: set[str] = set()
        length = 0
        rows = (cells for table in tables for _, cells in table.rows())
        while chunk := list(islice(rows, _CHUNK_ROWS)):
            length += len(chunk)
            valid = [row for row in chunk if isinstance(row, list) and (at is None or row[at])]
            for i, cells in enumerate(zip(*valid, strict=True)):
                distinct = set(cells)
                columns[i].add(distinct)
                if i == at:
                    classes |= distinct
        if not length:
            raise source_error(tables[0].path, "there is no row after the header", 1)
        at_label = [name == label for name in names]
        dtypes, filled = (
            {
                name: column.dtype(is_label=is_label, is_filled=is_filled)
                for name, column, is_label in zip(names, columns, at_label, strict=True)
            }
            for is_filled in (False, True)
        )
        return cls(
            tables=tuple(tables),
            dtypes=dtypes,
            filled=filled,
            label=label,
            classes=tuple(sorted(classes)) if label and dtypes[label] == "str" else None,
            length=length,
        )

    def __len__(self) -> int:
        return self.length

    def located(self) -> Iterator[tuple[int, dict[str, Any] | SourceError]]:
        """Yield the line and the example of each row, or its error."""
        for table in self.tables:
            for line, cells in table.rows():
                yield line, self._example(cells, table.path, line)

    def _example(
        self, cells: list[str] | SourceError, path: str, line: int
    ) -> dict[str, Any] | SourceError:
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
            except ValueError:
                is_empty = not cell.strip()
                found = "empty" if is_empty else repr(cell)
                reason = f"the cell is {found}; must be {self.dtypes[name]}"
                remedy = "pass defaults= for it" if is_empty else ""
                return source_error(path, reason, line, feature=name, remedy=remedy)
        return example

    @cached_property
    def _columns(self) -> list[tuple[str, Callable[[str], Any], bool]]:
        """The name and the converter of each column, and whether it has a default."""
        names = self.tables[0].names
        return [(name, _converter(self.dtypes[name]), name in self.optional) for name in names]

    def features(self) -> dict[str, Feature]:
        """Return the feature of each column."""
        kinds: dict[str, Feature] = {name: Tensor(each) for name, each in self.dtypes.items()}
        if self.label is not None and self.classes is not None:
            kinds[self.label] = ClassLabel(names=self.classes)
        return kinds


@register(
    "CSV",
    "a CSV or TSV file, a directory or a pattern of them",
    recognise=lambda probed: bool(probed.data_files(*EXTENSIONS)),
    options=("columns", "delimiter", "encoding"),
)
def open_csv(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open tables. Their rows are keyed by position, read twice, and not held in memory."""
    return open_files(probed, EXTENSIONS, partial(open_tables, probed.path, options))


def open_tables(path: str, options: SourceOptions, files: list[str]) -> Source:
    """Open the tables of one split."""
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
    rows = CsvItems.survey(tables, options.label or find_label_name(first.names))
    return Source(
        "TSV" if first.delimiter == "\t" else "CSV",
        files[0] if len(files) == 1 else path,
        rows,
        length=rows.length,
        features=Features(rows.features()),
        label=rows.label,
        label_hint="" if options.columns else _HINT,
    )
