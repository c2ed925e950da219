"""Cells of tables: the types of columns, and whether the first row is a header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from covey._core import is_same_in_float32
from covey.labels import LABEL_NAMES
from covey.schema.lattice import MAX_EXACT_FLOAT64, float_dtype

# 007 is a string: as an integer it would lose its zeros.
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE
)
_BOOLS = {"true": True, "1": True, "false": False, "0": False}

_SHAPES = {
    "a number": _DECIMAL,
    "a file name": re.compile(
        r"\S.*\.(jpe?g|png|gif|bmp|webp|tiff?|wav|flac|mp3|ogg|npy|txt)", re.IGNORECASE
    ),
    "a date": re.compile(r"\d{4}-\d\d-\d\d([ T].*)?|\d{1,2}[./]\d{1,2}[./]\d{4}"),
    "a URL": re.compile(r"\w+://\S+"),
}
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "nil", "-", "?"))
COMMON_NAMES = frozenset(
    (
        *(*LABEL_NAMES, "class_name", "class_id", "label_name"),
        *("id", "index", "text", "sentence", "utterance", "question", "query", "name", "title"),
        *("file", "filename", "file_name", "filepath", "path", "image", "image_path", "image_id"),
        *("audio", "url", "split", "x", "y"),
    )
)
_YEARS = range(1900, 2101)


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
        self._is_float32 = True

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


def convert(cell: str, dtype: str) -> Any:
    """Return the value of a cell; an empty one is nan in a column of floats.

    Raises:
        ValueError: If the cell does not have the dtype.
    """
    if dtype == "str":
        return cell
    if dtype == "bytes":
        return cell.encode()
    text = cell.strip()
    if dtype == "bool":
        if text.lower() not in _BOOLS:
            raise ValueError(f"invalid bool: {cell!r}")
        return _BOOLS[text.lower()]
    if dtype.startswith("float"):
        value = float(text or "nan")
        # The encoder raises if a float does not hold the integer.
        is_large = abs(value) >= MAX_EXACT_FLOAT64 and _INTEGER.fullmatch(text)
        return int(text) if is_large else value
    return int(text)


def guess_header(rows: Sequence[Sequence[str]]) -> tuple[bool | None, str]:
    """Compare the first row with those below it.

    Args:
        rows: The first rows of a table; those with another number of cells are ignored.

    Returns:
        Whether the first row is a header, None if that is not known; and why it is not.

    >>> guess_header([["5.1", "setosa"], ["4.9", "virginica"]])
    (False, "'5.1' is a number, like the cells below it")
    >>> guess_header([["length", "kind"], ["4.9", "virginica"]])
    (True, '')
    >>> guess_header([["hello", "hi"], ["bye", "ciao"]])
    (None, '')
    """
    first = [cell.strip() for cell in rows[0]]
    # A row that is equal to the first one is a header that was concatenated.
    others = [row for row in rows[1:] if len(row) == len(first) and row != rows[0]]
    below = [[cell.strip() for cell in row] for row in others]
    counted = _counts(first)
    is_header: bool | None = None
    reason = ""
    for i, cell in enumerate(first):
        column = {row[i] for row in below} - {""}
        shape, shapes = _shape(cell), {_shape(each) for each in column}
        if not cell or (counted and shape == "a number"):
            continue
        common = next(iter(shapes)) if len(shapes) == 1 else ""
        if cell in column and shape != "a number":
            reason = reason or f"{cell!r} occurs again below"
        elif cell.lower() in COMMON_NAMES:
            return True, ""
        elif shape and (shape == common or not below):
            reason = reason or f"{cell!r} is {shape}" + (", like the cells below it" * bool(below))
        elif common and shape != common and cell.lower() not in _MISSING:
            is_header = True
    return (False, reason) if reason else (is_header, "")


def _shape(cell: str) -> str:
    return next((name for name, shape in _SHAPES.items() if shape.fullmatch(cell)), "")


def _counts(cells: Sequence[str]) -> bool:
    """Return whether the numbers of a row are 0, 1, 2, ... as in pandas, or consecutive years."""
    numbers = [int(cell) for cell in cells if _INTEGER.fullmatch(cell) and len(cell) < 10]
    if len(numbers) < 3 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return False
    return numbers[0] == 0 or (numbers[0] in _YEARS and numbers[-1] in _YEARS)
