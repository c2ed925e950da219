"""HTML of datasets, batches and results in notebooks: a table, with thumbnails of images.

Every string is escaped. The size is bounded: rows, columns, characters of a cell, and bytes of all
thumbnails. Thumbnails are PNG files in ``data:`` URLs, so that a saved notebook contains them.

What is shown must not fail: an error of a file or of a hook is shown in place of the table.
"""

from __future__ import annotations

import base64
import html
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.errors import DatasetError, shorten

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset
    from covey.loader import Loader
    from covey.results import Info
    from covey.schema import Features

MAX_ROWS = 20
MAX_COLUMNS = 12
MAX_CHARACTERS = 80
MAX_SIDE = 48
"""Maximum side of a thumbnail in pixels."""
MAX_IMAGE_BYTES = 160_000
"""Maximum size of all thumbnails of a table, encoded."""

_FEW_VALUES = 6
_STYLE = "border-collapse:collapse;text-align:left"


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
        return _guarded(self._title(), self._table)

    def _table(self) -> str:
        columns = dict(self._columns)
        if self._names is not None and "y" in columns:
            columns["class"] = [_class_name(each, self._names) for each in columns["y"][:MAX_ROWS]]
        return _table_of_columns(columns, range(_rows_of(self._columns)))


def show(batch: Any, *, names: Sequence[str] | Mapping[int, str] | None = None) -> BatchView:
    """Return a batch as a table with thumbnails of its images, for a notebook.

    A batch is a tuple, a dict or an array, which have no display of their own. A dataset, a loader
    and the result of :func:`covey.info` need no call.

    Args:
        batch: ``(x, y)``, or a dict of features; arrays of numpy, PyTorch, TensorFlow or JAX.
        names: Class names by class id, to show the name of each y.

    >>> show((np.zeros((2, 8, 8), np.uint8), np.array([0, 1])), names=["owl", "wren"])
    <batch of 2 examples: x uint8 (2, 8, 8), y int64 (2,)>
    """
    if isinstance(batch, (str, bytes, os.PathLike)):
        raise DatasetError(
            option="batch",
            found=batch,
            allowed="a batch of a loader",
            remedy="run `covey show PATH` to print a dataset",
        )
    return BatchView(batch, names)


def dataset_html(dataset: Dataset, title: str, images: Sequence[str]) -> str:
    """Return the first examples of a dataset.

    Args:
        dataset: The dataset.
        title: Title of the table.
        images: Features that are encoded images.
    """
    return _guarded(title, lambda: _examples(dataset, images))


def loader_html(loader: Loader, title: str) -> str:
    """Return the next batch of a loader, whose position does not change."""

    def table() -> str:
        plan = loader.plan
        batch = columns_of(loader.batch(loader.step))
        ids = plan.batch(loader.step)
        examples: Any = getattr(loader.format, "examples", None)
        if len(ids) == _rows_of(batch):  # an augmenter may return other examples
            batch = {"id": ids, **batch}
            if examples is not None and getattr(examples, "label", None) is not None:
                batch["class"] = _names_of(examples, ids[:MAX_ROWS])
        return _table_of_columns(batch, range(_rows_of(batch)))

    return _guarded(title, table)


def info_html(info: Info) -> str:
    """Return the splits and the features of a dataset."""

    def tables() -> str:
        from covey._progress import format_bytes

        header = ["split", "examples", "classes", "shards", "size", "index"]
        rows = [
            [
                each.name,
                "" if each.records is None else f"{each.records:,}",
                "" if each.classes is None else f"{len(each.classes):,} of {each.label}",
                f"{each.shards:,}",
                format_bytes(each.bytes),
                each.index,
            ]
            for each in info.splits
        ]
        return _table(header, rows, len(rows)) + _features_table(info.features)

    return _guarded(f"{info.path}: {info.kind}", tables)


def features_html(features: Features) -> str:
    """Return the names and types of features."""
    return _guarded(f"{len(features):,} features", lambda: _features_table(features))


def _features_table(features: Features | None) -> str:
    if features is None:
        return ""
    rows = [[name, kind.summary] for name, kind in list(features.items())[:MAX_ROWS]]
    return _table(["feature", "type"], rows, len(features))


def _guarded(title: str, content: Callable[[], str]) -> str:
    """Return a title and the content; an error in place of content that cannot be shown."""
    try:
        body = content()
    except Exception as error:
        body = f"<pre>{_text(f'{type(error).__name__}: {error}', 500)}</pre>"
    return f"<div><p><b>{_text(title, 200)}</b></p>{body}</div>"


# Examples and batches as columns.


def _examples(dataset: Dataset, images: Sequence[str]) -> str:
    ids = np.arange(min(len(dataset), MAX_ROWS), dtype=np.int64)
    names = list(dataset.features)[:MAX_COLUMNS]
    features = dataset.features.select(names)
    found = dataset.decode(features, ids)
    columns = {name: features.find(found, name) for name in names}
    for name in images:
        if name in columns:
            kind: Any = features[name]
            columns[name] = [_decoded(kind, each, dataset.max_pixels) for each in columns[name]]
    if dataset.label is not None:
        columns["class"] = _names_of(dataset, ids)
    rows = {"id": ids, **columns}
    omitted = len(dataset.features) - len(names)
    note = f"<p>and {omitted:,} more features</p>" if omitted else ""
    return _table_of_columns(rows, range(len(dataset))) + note


def _decoded(kind: Any, data: Any, max_pixels: int) -> Any:
    try:
        return kind.decode(data, max_pixels=max_pixels)
    except Exception as error:
        # One corrupt image, or a missing decoder, does not hide the other examples.
        return f"{type(error).__name__}: {error}"


def _names_of(examples: Any, ids: NDArray[Any]) -> list[str]:
    names: list[str] = examples.classes.names[examples.labels_of(ids)]
    return names


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


# Tables.


def _table_of_columns(columns: Mapping[str, Any], rows: range) -> str:
    names = list(columns)[: MAX_COLUMNS + 2]
    budget = _ImageBudget()
    cells = [[budget.cell(columns[name][row]) for name in names] for row in rows[:MAX_ROWS]]
    return _table(names, cells, len(rows), escaped=True)


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], count: int, *, escaped: bool = False
) -> str:
    """Return a table of at most :data:`MAX_ROWS` of `count` rows."""
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    lines = [
        "".join(f"<td>{cell if escaped else _text(cell)}</td>" for cell in row)
        for row in rows[:MAX_ROWS]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>and {count - len(lines):,} more</p>" if count > len(lines) else ""
    return (
        f'<table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'
    )


def _text(value: object, width: int = MAX_CHARACTERS) -> str:
    return html.escape(shorten(str(value), width))


class _ImageBudget:
    """Cells of a table, with thumbnails until their size exceeds the limit."""

    def __init__(self) -> None:
        self._left = MAX_IMAGE_BYTES

    def cell(self, value: Any) -> str:
        pixels = as_pixels(value)
        if pixels is None:
            return _text(describe(value))
        data = base64.b64encode(encode_png(shrink(pixels))).decode()
        height, width = np.shape(value)[:2]
        if len(data) > self._left:
            return _text(describe(value))
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
