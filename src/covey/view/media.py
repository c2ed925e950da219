"""Images, sounds and arrays of examples, encoded again: the stored bytes are never sent.

An image is decoded and encoded as PNG or JPEG, so that a browser gets no SVG, no HTML and no file
that another decoder reads differently. A sound is sent as WAV, an array as at most some thousand
numbers for a plot.
"""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray, StringArray
from covey.dataset.dataset import Dataset
from covey.errors import FeatureError
from covey.schema import Audio, Image
from covey.schema.images import MissingLibraryError, import_pillow, read_header
from covey.schema.pixels import ImageColumn, ImageOptions, find_shape, read_pixels
from covey.view.kinds import decoded_sizes
from covey.view.messages import Columns, Query, RequestError, Response
from covey.view.pictures import encode_png, find_picture_size, pixels_shape, to_pixels
from covey.view.server import Handler
from covey.view.session import Session

MIN_SIDE = 16
MAX_THUMBNAIL_SIDE = 1024
MAX_SIDE = 2048
"""Maximum side of an image in pixels."""
MAX_RECORD_BYTES = 256 << 20
"""Maximum size of a record that is read."""
MAX_READ_BYTES = 16 << 20
"""Approximate size of the records that are read together."""
MAX_AUDIO_S = 600
MAX_AUDIO_BYTES = 32 << 20
"""Maximum length and size of a sound; a longer one is cut."""
MAX_VALUES = 2048
"""Maximum number of values of a plot."""
MAX_ENVELOPE = 1000
"""Maximum number of points of a waveform."""

_JPEG_QUALITY = 88
# Smaller images are PNG, which shows each pixel.
_MIN_JPEG_PIXELS = 64 * 64
_MAX_ARRAY_PIXELS = 1 << 24
_MAX_CHANNELS = 8
_INT16_SCALE = 32768


def locate(dataset: Dataset, query: Query) -> tuple[int, str]:
    """Return the id and the feature that a request names."""
    if not len(dataset):
        raise RequestError("the split is empty", 404)
    number = query.integer("id", high=len(dataset) - 1)
    name = query.string("feature")
    if name not in dataset.features:
        raise RequestError(f"there is no feature {name[:100]!r}", 404)
    return number, name


def read_value(dataset: Dataset, number: int, name: str) -> Any:
    """Return the value of a feature of an example, as it is stored.

    Raises:
        RequestError: If the record is too large.
    """
    ids = np.array([number], np.int64)
    check_size(dataset, ids)
    features = dataset.features.select([name])
    return features.find(dataset.decode(features, ids), name)[0]


def check_size(dataset: Dataset, ids: NDArray[np.int64]) -> None:
    """Raise RequestError if a record is too large to be displayed."""
    if len(ids) and int(dataset.raw.lengths(ids).max()) > MAX_RECORD_BYTES:
        raise RequestError(f"the record is larger than {MAX_RECORD_BYTES:,} bytes", 413)


def split_by_size(dataset: Dataset, ids: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return ids in parts to be read together, whose records have about MAX_READ_BYTES."""
    sizes = np.cumsum(decoded_sizes(dataset, ids))
    return np.split(ids, np.flatnonzero(np.diff(sizes // MAX_READ_BYTES)) + 1)


# Images.


def image(session: Session, query: Query) -> Response:
    """Return an image of an example as PNG or JPEG."""
    dataset = session.dataset(query)
    number, name = locate(dataset, query)
    side = MAX_SIDE
    if query.optional("side") is not None:
        side = query.integer("side", low=MIN_SIDE, high=MAX_THUMBNAIL_SIDE)
    pixels, is_photo = read_image(dataset, number, name, side)
    return encode_image(pixels, is_photo=is_photo)


def read_image(
    dataset: Dataset, number: int, name: str, side: int = MAX_SIDE
) -> tuple[NDArray[np.uint8], bool]:
    """Return the pixels of an image, and whether it is stored as JPEG.

    Args:
        dataset: The split.
        number: Id of the example.
        name: The feature.
        side: Maximum side in pixels; a larger image is reduced.

    Raises:
        RequestError: If the value is not an image, or the image is corrupt.
    """
    feature = dataset.features[name]
    value = read_value(dataset, number, name)
    if not isinstance(value, bytes):
        shape = pixels_shape(feature)
        if shape is not None and isinstance(value, np.ndarray) and value.ndim == 1:
            value = value.reshape(shape)
        return _reduce_array(value, side), False
    header = read_header(value)
    if header is None:
        raise RequestError("the value is not an image in a known format", 415)
    if not isinstance(feature, Image):
        dtype = "uint16" if header.format == "png" and header.bits == 16 else "uint8"
        feature = Image(dtype=dtype, channels=None)
    try:
        full = find_shape(feature, value, dataset.max_pixels)[:2]
        size = fit(full, side)
        pixels = read_pixels(
            feature, value, None if size == full else size, max_pixels=dataset.max_pixels
        )
    except FeatureError as error:
        status = 501 if isinstance(error, MissingLibraryError) else 422
        raise RequestError(str(dataset.place(number).error(error, name)), status) from None
    return to_uint8(pixels), header.format == "jpeg"


def fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return height and width with sides of at most `side` pixels, in the same ratio.

    >>> fit((600, 300), 100), fit((30, 40), 100), fit((1, 5000), 100)
    ((100, 50), (30, 40), (1, 100))
    """
    height, width = size
    longest = max(size)
    if longest <= side:
        return size
    return max(1, round(height * side / longest)), max(1, round(width * side / longest))


def _reduce_array(value: Any, side: int) -> NDArray[np.uint8]:
    size = find_picture_size(value)
    if size is None:
        raise RequestError("the value is not an image", 415)
    if value.size > _MAX_ARRAY_PIXELS:  # conversion to floats would need 8 bytes per value
        steps = [max(1, each // MAX_SIDE) if each in size else 1 for each in value.shape]
        value = value[tuple(slice(None, None, step) for step in steps)]
    return resize(to_pixels(value), side)


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


def to_uint8(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return decoded pixels as uint8: (h, w) or (h, w, 3 or 4)."""
    if pixels.dtype == np.uint16:
        pixels = pixels >> 8
    pixels = pixels.astype(np.uint8, copy=False)
    match pixels.shape[2:]:
        case (1,):
            return pixels[:, :, 0]
        case (2,):  # grey and alpha
            return np.ascontiguousarray(pixels[:, :, [0, 0, 0, 1]])
    return pixels


def encode_image(pixels: NDArray[np.uint8], *, is_photo: bool) -> Response:
    """Return pixels as PNG; as JPEG if a loss is acceptable, and Pillow is installed.

    Args:
        pixels: Grey, RGB or RGBA pixels.
        is_photo: Whether a loss is acceptable.
    """
    try:
        pillow = import_pillow()
    except MissingLibraryError:
        return Response(encode_png(pixels), "image/png", is_fixed=True)
    picture = pillow.fromarray(np.ascontiguousarray(pixels))
    buffer = io.BytesIO()
    is_large = pixels.shape[0] * pixels.shape[1] >= _MIN_JPEG_PIXELS
    if is_photo and is_large and picture.mode in ("L", "RGB"):
        picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
        return Response(buffer.getvalue(), "image/jpeg", is_fixed=True)
    picture.save(buffer, "PNG", compress_level=3)
    return Response(buffer.getvalue(), "image/png", is_fixed=True)


# Sounds.


def audio(session: Session, query: Query) -> Response:
    """Return a sound of an example as WAV with samples of 16 bits."""
    dataset = session.dataset(query)
    number, name = locate(dataset, query)
    feature = dataset.features[name]
    if not isinstance(feature, Audio):
        raise RequestError("the value is not a sound", 415)
    if feature.sample_rate is None:
        raise RequestError("the sampling rate is unknown", 415)
    samples = read_value(dataset, number, name)
    samples = (samples[:, np.newaxis] if samples.ndim == 1 else samples)[:, :_MAX_CHANNELS]
    frames = MAX_AUDIO_BYTES // (2 * max(1, samples.shape[1]))
    samples = samples[: min(frames, MAX_AUDIO_S * feature.sample_rate)]
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(max(1, samples.shape[1]))
        file.setsampwidth(2)
        file.setframerate(feature.sample_rate)
        file.writeframes(to_int16(samples).tobytes())
    return Response(buffer.getvalue(), "audio/wav", is_fixed=True)


def to_int16(samples: NDArray[Any]) -> NDArray[np.int16]:
    """Return samples as little-endian int16, as :class:`covey.Audio` stores floats; NaN is 0."""
    if samples.dtype.kind == "f":
        scaled = np.nan_to_num(samples.astype(np.float32) * _INT16_SCALE, nan=0)
        limits = np.iinfo(np.int16)
        samples = np.clip(np.rint(scaled), limits.min, limits.max)
    return samples.astype("<i2")


# Plots.


def values(session: Session, query: Query) -> Response:
    """Return the numbers of an example for a small plot."""
    dataset = session.dataset(query)
    number, name = locate(dataset, query)
    value = read_value(dataset, number, name)
    columns = Columns()
    shape: list[int] | None = None
    if isinstance(value, SparseArray):
        shape, value = list(value.shape), value.values
    while isinstance(value, RaggedArray):
        if "lengths" not in columns.arrays:
            columns.arrays["lengths"] = value.row_lengths[:MAX_VALUES].astype(np.uint32)
        value = value.values
    if isinstance(value, (str, bytes, StringArray)) or np.asarray(value).dtype == object:
        raise RequestError("the values are not numbers", 415)
    numbers = np.asarray(value)
    shape = list(numbers.shape) if shape is None else shape
    columns.values = {"shape": shape, "dtype": str(numbers.dtype), "count": numbers.size}
    is_audio = isinstance(dataset.features[name], Audio)
    limit = MAX_ENVELOPE if is_audio else MAX_VALUES
    points = numbers if is_audio else numbers.reshape(-1)
    is_long = is_audio or len(points) > limit
    columns.values["downsampled"] = is_long
    if is_long:
        columns.arrays |= envelope(points, limit)
    else:
        columns.arrays["values"] = _to_float32(points)
    response = columns.response()
    return Response(response.body, response.content_type, is_fixed=True)


def envelope(points: NDArray[Any], limit: int) -> dict[str, NDArray[np.float32]]:
    """Return the lowest and the highest value of consecutive ranges, without NaN.

    Args:
        points: Values; of several channels, all that belong to one time are a row.
        limit: Maximum number of ranges.
    """
    if not points.size:
        empty = np.zeros(0, np.float32)
        return {"low": empty, "high": empty}
    begins = np.unique(np.linspace(0, len(points), min(limit, len(points)) + 1).astype(int)[:-1])
    low, high = np.fmin.reduceat(points, begins, 0), np.fmax.reduceat(points, begins, 0)
    if points.ndim > 1:
        low, high = np.fmin.reduce(low, 1), np.fmax.reduce(high, 1)
    return {"low": _to_float32(low), "high": _to_float32(high)}


def _to_float32(numbers: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


ROUTES: dict[str, Handler] = {
    "/api/image": image,
    "/api/audio": audio,
    "/api/values": values,
}
