"""Images, sounds and arrays of examples, encoded anew: the stored bytes are never sent."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._html import as_pixels, encode_png
from covey.dataset.dataset import Dataset
from covey.errors import FeatureError
from covey.schema import Image
from covey.schema.images import MissingPillowError, import_pillow, read_header
from covey.schema.pixels import find_shape, read_pixels
from covey.view.messages import Query, RequestError, Response
from covey.view.server import Handler
from covey.view.session import Session

MIN_SIDE = 16
MAX_THUMBNAIL_SIDE = 1024
MAX_SIDE = 2048
"""Maximum side of an image in pixels."""

_JPEG_QUALITY = 88
_MIN_JPEG_PIXELS = 64 * 64


def image(session: Session, query: Query) -> Response:
    """Return an image of an example as PNG or JPEG."""
    dataset = session.dataset(query)
    number, name = _locate(dataset, query)
    side = MAX_SIDE
    if "side" in query:
        side = query.integer("side", low=MIN_SIDE, high=MAX_THUMBNAIL_SIDE)
    key = query.string("split", ""), number, name, side
    response = session.images.get(key)
    if response is None:
        pixels, is_photo = _read_pixels(dataset, number, name, side)
        response = encode_image(pixels, is_photo=is_photo)
        session.images.put(key, response)
    return response


def _locate(dataset: Dataset, query: Query) -> tuple[int, str]:
    """Return the id and the feature that a request names."""
    if not len(dataset):
        raise RequestError("the split is empty", 404)
    number = query.integer("id", high=len(dataset) - 1)
    name = query.string("feature")
    if name not in dataset.features:
        raise RequestError(f"there is no feature {name[:100]!r}", 404)
    return number, name


def read_value(dataset: Dataset, number: int, name: str) -> Any:
    """Return the value of a feature of an example, as it is stored."""
    features = dataset.features.select([name])
    return features.find(dataset.decode(features, np.array([number], np.int64)), name)[0]


def _read_pixels(
    dataset: Dataset, number: int, name: str, side: int
) -> tuple[NDArray[np.uint8], bool]:
    """Return the pixels of an image, and whether it is stored as JPEG."""
    feature = dataset.features[name]
    value = read_value(dataset, number, name)
    if isinstance(value, bytes):
        header = read_header(value)
        if header is None:
            raise RequestError("the value is not an image in a known format", 415)
        kind = feature if isinstance(feature, Image) else Image(channels=None)
        try:
            shape = find_shape(kind, value, dataset.max_pixels)
            size = fit(shape[:2], side)
            pixels = read_pixels(
                kind,
                value,
                None if size == shape[:2] else size,
                max_pixels=dataset.max_pixels,
            )
        except FeatureError as error:
            status = 501 if isinstance(error, MissingPillowError) else 422
            raise RequestError(str(dataset.place(number).error(error, name)), status) from None
        return to_uint8(pixels), header.format == "jpeg"
    found = as_pixels(value)
    if found is None:
        raise RequestError("the value is not an image", 415)
    return resize(found, side), False


def fit(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return height and width with sides of at most `side` pixels, in the same ratio."""
    height, width = size
    longest = max(size)
    if longest <= side:
        return size
    return max(1, round(height * side / longest)), max(1, round(width * side / longest))


def to_uint8(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return pixels as uint8: (h, w) or (h, w, 3 or 4)."""
    if pixels.dtype == np.uint16:
        pixels = pixels >> 8
    pixels = pixels.astype(np.uint8, copy=False)
    match pixels.shape[2:]:
        case (1,):
            return pixels[:, :, 0]
        case (2,):  # grey and alpha
            return np.ascontiguousarray(pixels[:, :, [0, 0, 0, 1]])
    return pixels


def resize(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return pixels with sides of at most `side`: means of squares."""
    factor = -(-max(pixels.shape[:2]) // side)
    if factor == 1:
        return pixels
    height, width = (max(1, size // factor) for size in pixels.shape[:2])
    rows, columns = min(factor, pixels.shape[0]), min(factor, pixels.shape[1])
    squares = pixels[: height * rows, : width * columns]
    shape = (height, rows, width, columns, *pixels.shape[2:])
    return np.asarray(squares.reshape(shape).mean((1, 3)), np.uint8)


def encode_image(pixels: NDArray[np.uint8], *, is_photo: bool) -> Response:
    """Return pixels as PNG; as JPEG if they come from one, and Pillow is installed.

    Args:
        pixels: Grey, RGB or RGBA pixels.
        is_photo: Whether a loss is acceptable.
    """
    try:
        pillow = import_pillow()
    except MissingPillowError:
        return Response(encode_png(pixels), "image/png", is_fixed=True)
    picture = pillow.fromarray(np.ascontiguousarray(pixels))
    buffer = io.BytesIO()
    is_large = pixels.shape[0] * pixels.shape[1] >= _MIN_JPEG_PIXELS
    if is_photo and is_large and picture.mode in ("L", "RGB"):
        picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
        return Response(buffer.getvalue(), "image/jpeg", is_fixed=True)
    picture.save(buffer, "PNG", compress_level=3)
    return Response(buffer.getvalue(), "image/png", is_fixed=True)


ROUTES: dict[str, Handler] = {"/api/image": image}
