"""Pixels of encoded images: decoding, cropping and resizing.

The native core decodes JPEG and PNG if it was built with libjpeg-turbo and libpng; Pillow, and
simplejpeg for JPEG, decode everything else. Crops and resizing are native in any case.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.arrays import StringArray
from covey.errors import FeatureError, ImageSizeError
from covey.schema.columns import check_value_shape
from covey.schema.diagnostics import RecordLocation
from covey.schema.features import Features
from covey.schema.images import Image, MissingPillowError, read_header
from covey.schema.pillow import (
    check_bits,
    decode_in_python,
    has_pillow,
    mode_of,
    opened,
    orientation_of,
    too_large,
)
from covey.schema.pixel_options import DEFAULT_MAX_PIXELS, ImageOptions

# Formats that the native core decodes if it has the library.
_NATIVE_FORMATS = {"jpeg": "libjpeg-turbo", "png": "libpng"}
_NATIVE_PREFIXES = (b"\xff\xd8\xff", b"\x89PNG")

Locate = Callable[[int], RecordLocation]
"""Returns the location of a row, for messages."""
RowKey = tuple[int, int, int]
"""Seed, index of the batch, and index of its first row in the batch of all ranks: random crops and
flips are derived from it."""
Size = tuple[int, int]
"""Height and width."""
PixelShape = tuple[int, int, int]
"""Height, width and channels of a decoded image."""
Fault = tuple[int, str, int, int, int, str]
"""Row, code, height, width, channels and message."""


_AS_STORED = ImageOptions()


@functools.cache
def native_formats() -> tuple[str, ...]:
    """Return the formats that the native core decodes; without any, Python decodes all images."""
    libraries = [each.split()[0] for each in _core.image_decoders()]
    return tuple(name for name, library in _NATIVE_FORMATS.items() if library in libraries)


def count_native(encoded: StringArray) -> int:
    """Return how many images are in a format that the native core decodes."""
    formats = native_formats()
    headers = (read_header(bytes(each)) for each in encoded) if formats else ()
    return sum(header is not None and header.format in formats for header in headers)


class ImageColumn:
    """Decodes the images of one feature to arrays of one shape.

    Args:
        name: The feature.
        feature: Its type.
        options: How images are decoded.
        shape: Shape of a decoded image.
        max_pixels: Maximum number of pixels of an encoded image.
    """

    def __init__(
        self,
        name: str,
        feature: Image,
        options: ImageOptions,
        shape: PixelShape,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(feature.dtype)
        self._feature = feature
        self._max_pixels = max_pixels
        self._is_resized = options.size is not None
        height, width, _ = feature.shape
        self.spec = _core.ImageSpec(
            size=shape[:2],
            channels=shape[2],
            is_deep=feature.dtype == "uint16",
            as_stored=feature.shape[2] is None,
            crop=options.crop if self._is_resized else "none",
            scale=options.crop_scale,
            ratio=options.crop_ratio,
            flip=options.flip,
            fast=options.decode == "fast",
            orient=feature.exif_orientation,
            views=options.views,
            required=(height or 0, width or 0),
            max_pixels=max_pixels,
        )
        self.views = options.views

    def allocate(self, rows: int) -> list[NDArray[Any]]:
        """Return the arrays of `rows` images, one for each view."""
        return [np.empty((rows, *self.shape), self.dtype) for _ in range(self.views)]

    def decode(
        self,
        encoded: StringArray,
        locate: Locate | None,
        key: RowKey = (0, 0, 0),
        out: list[NDArray[Any]] | None = None,
    ) -> list[NDArray[Any]]:
        """Decode images; return the array of each view.

        Args:
            encoded: The encoded images.
            locate: Function that returns the location of a row; None for an image that is not in a
                record.
            key: Identity of the rows.
            out: Arrays to decode into (default: new ones).
        """
        views = self.allocate(len(encoded)) if out is None else out
        row = 0
        while True:
            if native_formats():
                fault = self.spec.decode(encoded.data, encoded.offsets, views, *key, row)
            else:
                fault = (row, "unsupported", 0, 0, 0, "") if row < len(encoded) else None
            if fault is None:
                return views
            row = fault[0]
            try:
                if fault[1] != "unsupported":
                    raise self._error(fault, encoded)
                self._decode_in_python(encoded, row, key, views)
            except (MissingPillowError, ImageSizeError) as error:
                error.feature = self.name
                raise
            except FeatureError as error:
                if locate is None:
                    raise
                raise locate(row).error(error, self.name) from None
            row += 1

    def _decode_in_python(
        self, encoded: StringArray, row: int, key: RowKey, views: list[NDArray[Any]]
    ) -> None:
        pixels = decode_in_python(self._feature, bytes(encoded[row]), self._max_pixels)
        if pixels.shape[2] != self.shape[2]:
            raise self._error((row, "channels", 0, 0, pixels.shape[2], ""), encoded)
        seed, batch, first = key
        rows = [view[row] for view in views]
        size = pixels.shape[:2]
        fault = self.spec.frame(pixels, size, rows, seed, batch, first + row)
        if fault is not None:
            raise self._error((row, *fault[1:]), encoded)

    def _error(self, fault: Fault, encoded: StringArray) -> FeatureError:
        """Return the error for an image that cannot be decoded."""
        row, code, height, width, channels, message = fault
        data = bytes(encoded[row])
        if code == "too_large":
            return too_large(height, width, self._max_pixels)
        if code == "memory":
            return FeatureError("there is not enough memory to decode the image")
        if code == "channels":
            expected = self.shape[2]
            declared = 3 if expected == 2 else expected
            return FeatureError(
                f"the image has {channels} channels, the first has {expected}",
                remedy=f"declare the number of channels: Image(channels={declared})",
            )
        if code == "size":
            try:
                check_value_shape((height, width, self.shape[2]), self._feature.shape)
            except FeatureError as error:
                return error
            return different_sizes({self.shape[:2], *find_sizes(self._feature, encoded)})
        check_bits(data)
        return FeatureError(f"the {len(data)} bytes are not a valid image: {message}")


def find_sizes(feature: Image, encoded: StringArray) -> set[Size]:
    """Return the sizes of decoded images, from the headers of those that are valid."""
    sizes = set()
    for row in range(len(encoded)):
        with contextlib.suppress(FeatureError):
            sizes.add(find_shape(feature, bytes(encoded[row]))[:2])
    return sizes


def different_sizes(sizes: Iterable[Size], *, feature: str | None = None) -> ImageSizeError:
    """Return the error for images of different sizes.

    Args:
        sizes: Some of the sizes.
        feature: The feature.
    """
    listed = [f"{height} x {width}" for height, width in sorted(sizes)]
    others = "" if len(listed) <= 4 else f" and {len(listed) - 4} others"
    return ImageSizeError(
        f"images have different sizes: {', '.join(listed[:4])}{others}",
        feature=feature,
        option="image_size",
        found=None,
        allowed="an integer such as 224, (height, width) such as (224, 320), or 'ragged' for a "
        "list of arrays",
    )


def find_shape(feature: Image, data: bytes, max_pixels: int = DEFAULT_MAX_PIXELS) -> PixelShape:
    """Return the shape of a decoded image, from its header.

    Raises:
        FeatureError: If the data is not an image, or has too many pixels.
    """
    check_bits(data)
    header = read_header(data)
    if header is not None and header.format in _NATIVE_FORMATS:
        name, height, width, channels, _, orientation = header
        channels = 3 if name == "jpeg" and channels == 4 else channels
    else:
        if data.startswith(_NATIVE_PREFIXES) and not has_pillow():
            raise FeatureError(f"the {len(data)} bytes are not a valid image")
        with opened(data, max_pixels) as image:
            height, width, channels = image.height, image.width, len(mode_of(feature, image))
            orientation = orientation_of(image) if feature.exif_orientation else 1
            channels = 1 if image.mode.startswith(("I", "F")) else channels
    if height * width > max_pixels:
        raise too_large(height, width, max_pixels)
    if feature.exif_orientation and orientation >= 5:
        height, width = width, height
    return height, width, feature.shape[2] or channels


def read_pixels(
    feature: Image,
    data: bytes,
    size: tuple[int, int] | None = None,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> NDArray[Any]:
    """Decode an image into pixels, (height, width, channels), of a feature's shape.

    Args:
        feature: The feature that the image must match.
        data: The encoded image.
        size: Height and width of the result: resized with bilinear interpolation, antialiased.
        max_pixels: Maximum number of pixels (height x width) of the encoded image.
    """
    shape = find_shape(feature, data, max_pixels)
    check_value_shape(shape, feature.shape)
    shape = shape if size is None else (*size, shape[2])
    column = ImageColumn("image", feature, ImageOptions(image_size=size), shape, max_pixels)
    encoded = StringArray(np.frombuffer(data, np.uint8), np.array([0, len(data)]), False)
    (pixels,) = column.decode(encoded, None)
    result: NDArray[Any] = pixels[0]
    return result


def decode_images(
    features: Features,
    columns: Mapping[str, Any],
    locate: Locate,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> dict[str, Any]:
    """Return the columns with images decoded: an array if all have one shape, else a list.

    Args:
        features: Features of the columns.
        columns: Columns with encoded images.
        locate: Function that returns the location of a row, for messages.
        max_pixels: Maximum number of pixels of an encoded image.
    """
    flat = {name: features.find(columns, name) for name in features}
    for name, feature in features.items():
        if isinstance(feature, Image):
            flat[name] = _decode_column(name, feature, flat[name], locate, max_pixels)
    return features.nest(flat)


def decode_each(
    name: str,
    feature: Image,
    encoded: StringArray,
    locate: Locate,
    *,
    options: ImageOptions | None = None,
    key: RowKey = (0, 0, 0),
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> list[list[NDArray[Any]]]:
    """Decode images of any size; return the list of arrays of each view.

    Args:
        name: The feature.
        feature: Its type.
        encoded: The encoded images.
        locate: Function that returns the location of a row, for messages.
        options: How images are decoded; they keep their size.
        key: Identity of the rows.
        max_pixels: Maximum number of pixels of an encoded image.
    """
    options = _AS_STORED if options is None else options
    views: list[list[NDArray[Any]]] = [[] for _ in range(options.views)]
    seed, batch, first = key
    for row in range(len(encoded)):
        shape = locate_shape(name, feature, encoded, row, locate, max_pixels)
        column = ImageColumn(name, feature, options, shape, max_pixels)
        found = column.decode(
            encoded[row : row + 1], partial(_locate_at, locate, row), (seed, batch, first + row)
        )
        for view, pixels in zip(views, found, strict=True):
            view.append(pixels[0])
    return views


def _locate_at(locate: Locate, row: int, _: int) -> RecordLocation:
    return locate(row)


def locate_shape(
    name: str, feature: Image, encoded: StringArray, row: int, locate: Locate, max_pixels: int
) -> PixelShape:
    """Return the shape of a decoded image, as `find_shape`; errors name its record."""
    try:
        shape = find_shape(feature, bytes(encoded[row]), max_pixels)
        check_value_shape(shape, feature.shape)
    except MissingPillowError as error:
        error.feature = name
        raise
    except FeatureError as error:
        raise locate(row).error(error, name) from None
    return shape


def _decode_column(
    name: str, feature: Image, encoded: StringArray, locate: Locate, max_pixels: int
) -> Any:
    rows = range(len(encoded))
    if not rows:
        shape = tuple(length or 0 for length in feature.shape)
        return np.zeros((0, *shape), feature.dtype)
    shapes = {locate_shape(name, feature, encoded, row, locate, max_pixels) for row in rows}
    if len(shapes) > 1:
        return decode_each(name, feature, encoded, locate, max_pixels=max_pixels)[0]
    column = ImageColumn(name, feature, _AS_STORED, shapes.pop(), max_pixels)
    return column.decode(encoded, locate)[0]
