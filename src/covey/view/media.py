"""Images, sounds and plots of values, encoded again: the stored bytes are never sent.

An image is decoded and encoded as PNG or JPEG, so that a browser gets no SVG, no HTML and no file
that another decoder reads differently. A sound is sent as WAV, an array as the points of a plot.
:func:`covey.show` returns the table of a batch for a notebook: its thumbnails are PNG files in
``data:`` URLs, so that a saved notebook contains them; its size is bounded.
"""

from __future__ import annotations

import base64
import io
import math
import os
import struct
import wave
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey._html import MAX_CHARACTERS, MAX_ROWS, table, text, titled
from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.dataset.dataset import Dataset
from covey.errors import FeatureError, FormatError, check, shorten
from covey.schema import Audio, Feature, Image, Tensor
from covey.schema.images import MissingLibraryError, import_pillow, read_header
from covey.schema.pixels import ImageColumn, ImageOptions, find_shape, read_pixels
from covey.view.session import Ids, RequestError, integer

MAX_SIDE = 2048
"""Maximum side of an image in pixels."""
MAX_RECORD_BYTES = 256 << 20
"""Maximum size of a record that is read."""
MAX_READ_BYTES = 16 << 20
"""Approximate size of the records that are read together."""
MAX_AUDIO_S = 600
MAX_AUDIO_BYTES = 32 << 20
"""Maximum length and size of a sound; a longer one is cut."""
MAX_POINTS = 128
"""Maximum number of points of a plot."""

Side = Annotated[int, integer(16, 1024)]

MAX_TABLE_COLUMNS = 14
MAX_THUMBNAIL_SIDE = 48
"""Maximum side of a thumbnail in pixels."""
MAX_TABLE_BYTES = 160_000
"""Maximum size of all thumbnails of a table, encoded."""

_FEW_VALUES = 6
_JPEG_QUALITY = 88
# Smaller images are PNG, which shows each pixel.
_MIN_JPEG_PIXELS = 64 * 64
_MAX_ARRAY_PIXELS = 1 << 24
_MAX_CHANNELS = 8
_INT16_SCALE = 32768
_MIN_FLAT_VALUES = 64
# The most that zlib compresses.
_MAX_EXPANSION = 1032


class Media(NamedTuple):
    """A file to send."""

    data: bytes
    content_type: str


# Values.


def decoded_sizes(dataset: Dataset, ids: Ids) -> Ids:
    """Return upper bounds of the sizes of decoded records, except images, in bytes.

    A compressed tensor has the size of its shape; without one, it may expand a thousandfold.
    """
    sizes = dataset.raw.lengths(ids)
    for feature in dataset.features.values():
        if isinstance(feature, Tensor) and str(feature.encoding).startswith("zlib"):
            if None in feature.shape:
                return sizes * _MAX_EXPANSION
            sizes = sizes + math.prod(each or 0 for each in feature.shape) * 8
    return sizes


def split_by_size(dataset: Dataset, ids: Ids) -> list[Ids]:
    """Return ids in parts to be read together, whose records have about MAX_READ_BYTES."""
    sizes = np.cumsum(decoded_sizes(dataset, ids))
    return np.split(ids, np.flatnonzero(np.diff(sizes // MAX_READ_BYTES)) + 1)


def check_size(dataset: Dataset, ids: Ids) -> None:
    """Raise FormatError if a record is too large to be displayed."""
    if len(ids) and int(dataset.raw.lengths(ids).max()) > MAX_RECORD_BYTES:
        raise FormatError(f"the record is larger than {MAX_RECORD_BYTES:,} bytes")


def read_value(dataset: Dataset, number: int, name: str) -> Any:
    """Return the value of a feature of an example, as it is stored."""
    if not 0 <= number < len(dataset):
        raise RequestError(f"id is {number}; must be below {len(dataset):,}", 404)
    if name not in dataset.features:
        raise RequestError(f"there is no feature {name[:100]!r}", 404)
    ids = np.array([number], np.int64)
    check_size(dataset, ids)
    features = dataset.features.select([name])
    return features.find(dataset.decode(features, ids), name)[0]


# Images.


def image(dataset: Dataset, id: int, feature: str, side: Side = MAX_SIDE) -> Media:
    """Return an image of an example as PNG, or as JPEG if it is stored so and not small.

    Raises:
        RequestError: If the value is not an image, or the image is corrupt.
    """
    value, kind = read_value(dataset, id, feature), dataset.features[feature]
    if not isinstance(value, bytes):
        array = as_pixels(as_picture(value, kind))
        if array is None:
            raise RequestError("the value is not an image", 415)
        return Media(encode_png(resize(array, side)), "image/png")
    header = read_header(value)
    if header is None:
        raise RequestError("the value is not an image in a known format", 415)
    if not isinstance(kind, Image):
        is_deep = header.format == "png" and header.bits == 16
        kind = Image(dtype="uint16" if is_deep else "uint8", channels=None)
    try:
        full = find_shape(kind, value, dataset.max_pixels)[:2]
        size = fit(full, side)
        reduced = None if size == full else size
        stored = read_pixels(kind, value, reduced, max_pixels=dataset.max_pixels)
    except FeatureError as error:
        status = 501 if isinstance(error, MissingLibraryError) else 422
        raise RequestError(str(dataset.place(id).error(error, feature)), status) from None
    pixels, buffer = to_pixels(stored), io.BytesIO()
    is_opaque = pixels.shape[2:] in ((), (3,))
    if header.format == "jpeg" and is_opaque and size[0] * size[1] >= _MIN_JPEG_PIXELS:
        with suppress(MissingLibraryError):
            picture = import_pillow().fromarray(np.ascontiguousarray(pixels))
            picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
            return Media(buffer.getvalue(), "image/jpeg")
    return Media(encode_png(pixels), "image/png")


def fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return height and width with sides of at most `side` pixels, in the same ratio.

    >>> fit((600, 300), 100), fit((30, 40), 100), fit((1, 5000), 100)
    ((100, 50), (30, 40), (1, 100))
    """
    height, width = size
    scale = min(1, side / max(size))
    return max(1, round(height * scale)), max(1, round(width * scale))


def resize(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return grey, RGB or RGBA pixels with sides of at most `side`: bilinear, antialiased."""
    full = pixels.shape[0], pixels.shape[1]
    size = fit(full, side)
    if size == full:
        return pixels
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    column = ImageColumn(
        "image", Image(channels=channels), ImageOptions(image_size=size), (*size, channels)
    )
    reduced = np.empty((*size, channels), np.uint8)
    source = np.ascontiguousarray(pixels.reshape(*full, channels))
    if column.spec.frame(source, full, [reduced], 0, 0, 0) is not None:
        raise RequestError("the image cannot be resized", 422)
    return reduced[:, :, 0] if pixels.ndim == 2 else reduced


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG file of grey, RGB or RGBA pixels."""
    height, width = pixels.shape[:2]
    color = {1: 0, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]
    rows = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each row begins with its filter
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 3)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


# Arrays as images.


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


def as_picture(value: Any, feature: Feature) -> Any:
    """Return a value; a flat array of pixels in their shape."""
    shape = pixels_shape(feature)
    is_flat = shape is not None and isinstance(value, np.ndarray) and value.ndim == 1
    return value.reshape(shape) if is_flat else value


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
    size = find_picture_size(value)
    if size is None:
        return None
    if value.size > _MAX_ARRAY_PIXELS:  # conversion to floats would need 8 bytes per value
        steps = [max(1, each // MAX_SIDE) if each in size else 1 for each in value.shape]
        value = value[tuple(slice(None, None, step) for step in steps)]
    return to_pixels(value.transpose(1, 2, 0) if _has_channels_first(value.shape) else value)


def to_pixels(value: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array of shape (h, w) or (h, w, 1 to 4) as uint8 (h, w) or (h, w, 3 or 4)."""
    pixels = value
    if pixels.shape[2:] == (1,):
        pixels = pixels[:, :, 0]
    elif pixels.shape[2:] == (2,):  # grey and alpha
        pixels = np.ascontiguousarray(pixels[:, :, [0, 0, 0, 1]])
    if pixels.dtype == np.uint8:
        return np.asarray(pixels, np.uint8)
    if pixels.dtype == np.uint16:
        return np.asarray(pixels >> 8, np.uint8)
    numbers = np.nan_to_num(pixels.astype(np.float64), posinf=0, neginf=0)
    low, high = float(numbers.min()), float(numbers.max())
    return np.asarray((numbers - low) * (255 / ((high - low) or 1)), np.uint8)


# Sounds and plots.


def audio(dataset: Dataset, id: int, feature: str) -> Media:
    """Return a sound of an example as WAV with samples of 16 bits."""
    samples = read_value(dataset, id, feature)
    kind = dataset.features[feature]
    if not isinstance(kind, Audio) or kind.sample_rate is None:
        raise RequestError("the value is not a sound with a known sampling rate", 415)
    samples = (samples[:, np.newaxis] if samples.ndim == 1 else samples)[:, :_MAX_CHANNELS]
    frames = MAX_AUDIO_BYTES // (2 * max(1, samples.shape[1]))
    samples = samples[: min(frames, MAX_AUDIO_S * kind.sample_rate)]
    if samples.dtype.kind == "f":  # as covey.Audio stores floats; NaN is 0
        scaled = np.nan_to_num(samples.astype(np.float32) * _INT16_SCALE, nan=0)
        samples = np.clip(np.rint(scaled), -_INT16_SCALE, _INT16_SCALE - 1)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(max(1, samples.shape[1]))
        file.setsampwidth(2)
        file.setframerate(kind.sample_rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return Media(buffer.getvalue(), "audio/wav")


def flat_values(value: Any) -> NDArray[Any]:
    """Return the values of an array of any kind as one row."""
    while isinstance(value, (RaggedArray, SparseArray)):
        value = value.values
    if isinstance(value, StringArray):
        value = value.to_numpy((len(value),))
    return np.asarray(value).reshape(-1)


def plot(value: Any) -> dict[str, list[float]] | None:
    """Return the points of a small plot of numbers; None if the values are not numbers.

    Of many values, ``low`` and ``high`` are the range of consecutive ones, without NaN. The
    channels of a sound are one range.
    """
    frames = value if isinstance(value, np.ndarray) and value.ndim == 2 else flat_values(value)
    if frames.dtype.kind not in "buif" or frames.size < 2:
        return None
    begins = np.linspace(0, len(frames), min(MAX_POINTS, len(frames)) + 1).astype(int)[:-1]
    low, high = np.fmin.reduceat(frames, begins, 0), np.fmax.reduceat(frames, begins, 0)
    if frames.ndim > 1:
        low, high = np.fmin.reduce(low, 1), np.fmax.reduce(high, 1)
    points = {"low": [float(f"{each:.4g}") for each in low.tolist()]}
    if len(begins) < frames.size:
        points["high"] = [float(f"{each:.4g}") for each in high.tolist()]
    return points


# Batches in notebooks: a table with thumbnails of images.


class BatchView:
    """A batch to be displayed; :func:`covey.show` returns it.

    Args:
        batch: The batch.
        names: Class names by class id.
    """

    def __init__(self, batch: Any, names: Sequence[str] | Mapping[int, str] | None = None) -> None:
        self._columns = columns_of(batch)
        self._names = names
        self._rows = min((len(each) for each in self._columns.values()), default=0)
        self._title = f"batch of {self._rows:,} examples"

    def __repr__(self) -> str:
        columns = (f"{name} {_describe_column(each)}" for name, each in self._columns.items())
        return shorten(f"<{self._title}: {', '.join(columns)}>", 400)

    def _repr_html_(self) -> str:
        try:
            return titled(self._title, self._table())
        except Exception as error:  # of the arrays of any library
            message = text(f"{type(error).__name__}: {error}", 500)
            return titled(self._title, f"<pre>{message}</pre>")

    def _table(self) -> str:
        columns = dict(self._columns)
        if self._names is not None and "y" in columns:
            columns["class"] = [_class_name(each, self._names) for each in columns["y"][:MAX_ROWS]]
        names, left = list(columns)[:MAX_TABLE_COLUMNS], MAX_TABLE_BYTES
        rows: list[list[str]] = []
        for row in range(min(self._rows, MAX_ROWS)):
            cells = []
            for value in (columns[name][row] for name in names):
                pixels, data = as_pixels(value), ""
                if pixels is not None:
                    png = encode_png(resize(pixels, MAX_THUMBNAIL_SIDE))
                    data = base64.b64encode(png).decode()
                is_shown = 0 < len(data) <= left
                left -= len(data) * is_shown
                alt = "{} x {}".format(*np.shape(value)[:2]) if is_shown else ""
                image = f'<img alt="{alt}" src="data:image/png;base64,{data}">'
                cells.append(image if is_shown else text(describe(value)))
            rows.append(cells)
        return table(names, rows, self._rows, escaped=True)


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
