"""Batches in notebooks: a table with thumbnails of images, and what is displayed as an image.

Every string is escaped. The size is bounded: rows, columns, characters of a cell, and bytes of all
thumbnails. Thumbnails are PNG files in ``data:`` URLs, so that a saved notebook contains them.
"""

from __future__ import annotations

import base64
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._html import MAX_CHARACTERS, MAX_ROWS, table, text, titled
from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.errors import check, shorten
from covey.schema import Feature, Tensor

MAX_COLUMNS = 14
MAX_SIDE = 48
"""Maximum side of a thumbnail in pixels."""
MAX_IMAGE_BYTES = 160_000
"""Maximum size of all thumbnails of a table, encoded."""

_FEW_VALUES = 6
_MIN_FLAT_VALUES = 64


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
        data = base64.b64encode(encode_png(shrink(pixels))).decode()
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


# Thumbnails.


def find_picture_size(value: Any) -> tuple[int, int] | None:
    """Return height and width of an array that is an image; None if the value is not an image."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "buif" or not value.size:
        return None
    shape = value.shape
    if _has_channels_first(shape):
        shape = (*shape[1:], shape[0])
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    return shape[:2] if is_image and min(shape[:2]) >= 4 else None


def _has_channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[2] not in (1, 3, 4) and shape[0] in (1, 3)


def as_pixels(value: Any) -> NDArray[np.uint8] | None:
    """Return an image as uint8 (h, w) or (h, w, 3 or 4); None if the value is not an image."""
    return None if find_picture_size(value) is None else to_pixels(value)


def to_pixels(value: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array that is an image as uint8 (h, w) or (h, w, 3 or 4)."""
    if _has_channels_first(value.shape):
        value = value.transpose(1, 2, 0)
    pixels = value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value
    if pixels.dtype == np.uint8:
        return np.asarray(pixels, np.uint8)
    if pixels.dtype == np.uint16:
        return np.asarray(pixels >> 8, np.uint8)
    numbers = np.nan_to_num(pixels.astype(np.float64), posinf=0, neginf=0)
    low, high = float(numbers.min()), float(numbers.max())
    return np.asarray((numbers - low) * (255 / ((high - low) or 1)), np.uint8)


def shrink(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return an image of at most :data:`MAX_SIDE` pixels per side: means of squares."""
    factor = -(-max(pixels.shape[:2]) // MAX_SIDE)
    if factor == 1:
        return pixels
    height, width = (max(1, size // factor) for size in pixels.shape[:2])
    rows, columns = min(factor, pixels.shape[0]), min(factor, pixels.shape[1])
    squares = pixels[: height * rows, : width * columns]
    shape = (height, rows, width, columns, *pixels.shape[2:])
    return np.asarray(squares.reshape(shape).mean((1, 3)), np.uint8)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG file of grey, RGB or RGBA pixels."""
    height, width = pixels.shape[:2]
    color = {1: 0, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]
    rows = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each row begins with its filter
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pixels_shape(feature: Feature) -> tuple[int | None, ...] | None:
    """Return the shape of a tensor as an image; None if it is not an image.

    An image is a uint8 tensor of shape (h, w) or (h, w, 1 | 3 | 4), or a flat one of at least 64
    values that are a square of grey or RGB pixels.

    >>> pixels_shape(Tensor("uint8", (784,))), pixels_shape(Tensor("uint8", (32, 32, 3)))
    ((28, 28, 1), (32, 32, 3))
    """
    if not isinstance(feature, Tensor) or feature.dtype != "uint8":
        return None
    match feature.shape:
        case (_, _) | (_, _, 1 | 3 | 4):
            return feature.shape
        case (int(size),) if size >= _MIN_FLAT_VALUES:
            for channels in (1, 3):
                side = math.isqrt(size // channels)
                if side * side * channels == size:
                    return side, side, channels
    return None
