"""Batches in notebooks: a table with thumbnails of images.

Every string is escaped. The size is bounded: rows, columns, characters of a cell, and bytes of all
thumbnails. Thumbnails are PNG files in ``data:`` URLs, so that a saved notebook contains them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from covey._html import MAX_CHARACTERS, MAX_ROWS, table, text, titled
from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.errors import check, shorten
from covey.view.media import as_pixels, encode_png, resize

MAX_COLUMNS = 14
MAX_SIDE = 48
"""Maximum side of a thumbnail in pixels."""
MAX_IMAGE_BYTES = 160_000
"""Maximum size of all thumbnails of a table, encoded."""

_FEW_VALUES = 6


class BatchView:
    """A batch to be displayed; :func:`covey.show` returns it.

    Args:
        batch: The batch.
        names: Class names by class id.
    """

    def __init__(self, batch: Any, names: Sequence[str] | Mapping[int, str] | None = None) -> None:
        self._columns = columns_of(batch)
        self._names = names

    def __repr__(self) -> str:
        columns = (f"{name} {_describe_column(each)}" for name, each in self._columns.items())
        return shorten(f"<{self._title()}: {', '.join(columns)}>", 400)

    def _title(self) -> str:
        return f"batch of {_rows_of(self._columns):,} examples"

    def _repr_html_(self) -> str:
        try:
            return titled(self._title(), self._table())
        except Exception as error:  # of the arrays of any library
            message = text(f"{type(error).__name__}: {error}", 500)
            return titled(self._title(), f"<pre>{message}</pre>")

    def _table(self) -> str:
        columns = dict(self._columns)
        if self._names is not None and "y" in columns:
            columns["class"] = [_class_name(each, self._names) for each in columns["y"][:MAX_ROWS]]
        names = list(columns)[:MAX_COLUMNS]
        budget, count = _ImageBudget(), _rows_of(columns)
        rows = [
            [budget.cell(columns[name][row]) for name in names]
            for row in range(min(count, MAX_ROWS))
        ]
        return table(names, rows, count, escaped=True)


def show(batch: Any, *, names: Sequence[str] | Mapping[int, str] | None = None) -> BatchView:
    """Return a batch as a table with thumbnails of its images, for a notebook.

    A batch is a tuple, a dict or an array, which have no display of their own.

    Args:
        batch: ``(x, y)``, or a dict of features; arrays of numpy, PyTorch, TensorFlow or JAX.
        names: Class names by class id, to show the name of each y.

    >>> show((np.zeros((2, 8, 8), np.uint8), np.array([0, 1])), names=["owl", "wren"])
    <batch of 2 examples: x uint8 (2, 8, 8), y int64 (2,)>
    """
    check(
        "batch",
        batch,
        not isinstance(batch, (str, bytes, os.PathLike)),
        "a batch of a loader",
        remedy="run `covey show PATH` to print a dataset",
    )
    return BatchView(batch, names)


def columns_of(batch: Any) -> dict[str, Any]:
    """Return a batch as named columns: x, y and the names of dicts."""
    if isinstance(batch, Mapping):
        return {str(name): _column(each) for name, each in batch.items()}
    if not isinstance(batch, tuple):
        return {"x": _column(batch)}
    columns: dict[str, Any] = {}
    names = ["x", "y", *(f"[{position}]" for position in range(2, len(batch)))]
    for name, part in zip(names, batch, strict=False):
        if isinstance(part, Mapping):
            columns.update((str(key), _column(each)) for key, each in part.items())
        elif isinstance(part, (tuple, list)) and part and all(np.ndim(each) > 1 for each in part):
            columns.update((f"{name}[{i}]", _column(each)) for i, each in enumerate(part))
        else:
            columns[name] = _column(part)
    return columns


def _column(value: Any) -> Any:
    """Return a sequence of rows; tensors of frameworks as numpy arrays."""
    if isinstance(value, (np.ndarray, RaggedArray, SparseBatch, StringArray, list)):
        return np.atleast_1d(value) if isinstance(value, np.ndarray) else value
    if hasattr(value, "detach"):  # a tensor of PyTorch, perhaps on a GPU
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.atleast_1d(np.asarray(value))


def _rows_of(columns: Mapping[str, Any]) -> int:
    return min((len(column) for column in columns.values()), default=0)


def _class_name(label: Any, names: Sequence[str] | Mapping[int, str]) -> str:
    if np.ndim(label) or np.asarray(label).dtype.kind not in "iu" or label < 0:
        return ""
    try:
        return names[int(label)]
    except (IndexError, KeyError):
        return ""


def _describe_column(column: Any) -> str:
    if isinstance(column, np.ndarray):
        return f"{column.dtype} {column.shape}"
    return repr(column) if not isinstance(column, list) else f"list of {len(column):,}"


class _ImageBudget:
    """Cells of a table, with thumbnails until their size exceeds the limit."""

    def __init__(self) -> None:
        self._left = MAX_IMAGE_BYTES

    def cell(self, value: Any) -> str:
        pixels = as_pixels(value)
        if pixels is None:
            return text(describe(value))
        data = base64.b64encode(encode_png(resize(pixels, MAX_SIDE))).decode()
        height, width = np.shape(value)[:2]
        if len(data) > self._left:
            return text(describe(value))
        self._left -= len(data)
        return f'<img alt="{height} x {width}" src="data:image/png;base64,{data}">'


def describe(value: Any) -> str:
    """Return a short description of a value of an example."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, np.bytes_)):
        return f"{len(value):,} bytes"
    if isinstance(value, (RaggedArray, SparseArray, StringArray)):
        return repr(value)
    array = np.asarray(value)
    if array.ndim == 0:
        return str(array.item())
    values = array.reshape(-1)
    if len(values) <= _FEW_VALUES and array.ndim == 1:
        return str(values.tolist())
    few = ", ".join(str(each)[:MAX_CHARACTERS] for each in values[:3].tolist())
    return f"{array.dtype} {array.shape}: {few}, ..."
