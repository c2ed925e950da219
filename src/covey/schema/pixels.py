"""Pixels of encoded images: options, decoding, cropping and resizing.

The native core decodes JPEG and PNG if it was built with libjpeg-turbo and libpng; Pillow decodes
everything else. Crops and resizing are native in any case.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.arrays import StringArray
from covey.errors import FeatureError, ImageSizeError
from covey.schema.columns import Column, check, check_value_shape
from covey.schema.diagnostics import RecordLocation
from covey.schema.features import Features
from covey.schema.images import (
    Image,
    ImageHeader,
    MissingLibraryError,
    has_pillow,
    invalid_image,
    open_picture,
    read_header,
)

DEFAULT_MAX_PIXELS = 64_000_000
MAX_SIDE = 1 << 16
"""Maximum height and width of a decoded image."""
MAX_VIEWS = 16

Crop = Literal["squash", "center", "random"]
Decode = Literal["exact", "fast"]
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

# Formats that the native core decodes if it has the library, and their first bytes.
_NATIVE = {"jpeg": ("libjpeg-turbo", b"\xff\xd8\xff"), "png": ("libpng", b"\x89PNG")}
_RANGE = "(minimum, maximum), both above 0"
_ORIENTATION = 0x0112


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How the images of a batch are decoded, cropped and resized.

    Args:
        image_size: ``(height, width)`` of decoded images, or one integer for both. By default
            images keep their size, which must be the same for all; ``"ragged"`` returns a list of
            arrays of any size.
        crop: The part of an image that is resized to `image_size`: ``"squash"`` all of it, which
            changes the aspect ratio; ``"center"`` the largest central part of the right aspect
            ratio; ``"random"`` a random part of random area and aspect ratio.
        crop_scale: Smallest and largest area of a random crop, relative to the image.
        crop_ratio: Smallest and largest aspect ratio (width / height) of a random crop.
        flip: Mirror every image horizontally with probability 1/2.
        views: Number of versions of each image, with a random crop and flip each; x is a tuple of
            them if it is greater than 1. An image is decoded once.
        decode: ``"exact"`` returns the pixels that Pillow returns, within one level if they are
            resized. ``"fast"`` decodes JPEGs at 1/2, 1/4 or 1/8 of their size if `image_size` is
            smaller still.

    Raises:
        FeatureError: If an option is invalid, or requires another one.
    """

    image_size: int | tuple[int, int] | Literal["ragged"] | None = None
    crop: Crop = "squash"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    views: int = 1
    decode: Decode = "exact"

    def __post_init__(self) -> None:
        if self.image_size not in (None, "ragged"):
            object.__setattr__(self, "image_size", parse_size(self.image_size))
        views = f"an integer from 1 to {MAX_VIEWS}"
        for option, is_valid, allowed in (
            ("crop", self.crop in get_args(Crop), get_args(Crop)),
            ("decode", self.decode in get_args(Decode), get_args(Decode)),
            ("crop_scale", _is_range(self.crop_scale, 1.0), f"{_RANGE}, at most 1"),
            ("crop_ratio", _is_range(self.crop_ratio, np.finfo(float).max), _RANGE),
            ("flip", isinstance(self.flip, bool), "True or False"),
            ("views", is_integer(self.views) and 1 <= self.views <= MAX_VIEWS, views),
        ):
            check(option, getattr(self, option), is_valid, allowed)
        allowed, is_squash = "'squash' without image_size=", self.crop == "squash"
        check("crop", self.crop, self.size or is_squash, allowed, reason="a crop is resized")
        allowed, is_one = "1 without crop='random' and flip=True", self.views == 1
        reason = "all views would be the same"
        check("views", self.views, is_one or self.is_random, allowed, reason=reason)

    @property
    def size(self) -> Size | None:
        """Height and width of decoded images; None if they keep their size."""
        return self.image_size if isinstance(self.image_size, tuple) else None

    @property
    def ragged(self) -> bool:
        """Whether images may have different sizes; a batch is a list of them then."""
        return self.image_size == "ragged"

    @property
    def is_random(self) -> bool:
        """Whether the pixels of an example depend on the seed and the step."""
        return self.crop == "random" or self.flip


def _is_range(found: Any, maximum: float) -> bool:
    try:
        low, high = map(float, found)
    except (TypeError, ValueError):
        return False
    return 0 < low <= high <= maximum


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer, of Python or numpy, and not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_max_pixels(value: Any) -> int:
    """Return the limit, or the default one for None."""
    if value is None:
        return DEFAULT_MAX_PIXELS
    check("max_pixels", value, is_integer(value) and value >= 1, "an integer >= 1")
    return int(value)


def parse_size(size: Any) -> Size:
    """Return height and width; a single integer stands for both.

    >>> parse_size(224), parse_size([32, 64])
    ((224, 224), (32, 64))
    """
    pair = size if isinstance(size, (tuple, list)) else (size, size)
    is_valid = len(pair) == 2 and all(is_integer(each) and 0 < each < 2**15 for each in pair)
    allowed = (
        f"an integer from 1 to {2**15 - 1} such as 224, or a pair (height, width) of them such as "
        "(224, 320)"
    )
    check("image_size", size, is_valid, allowed)
    return int(pair[0]), int(pair[1])


_AS_STORED = ImageOptions()

# Limits, and the errors of images.


def different_sizes(sizes: Iterable[Size], *, feature: str | None = None) -> ImageSizeError:
    """Return the error for images of different sizes, some of which are `sizes`."""
    listed = ", ".join(f"{height} x {width}" for height, width in sorted(sizes))
    return ImageSizeError(
        f"images have different sizes: {listed}",
        feature=feature,
        option="image_size",
        found=None,
        allowed="an integer such as 224, (height, width) such as (224, 320), or 'ragged' for a "
        "list of arrays",
    )


def _too_large(height: int, width: int, max_pixels: int) -> FeatureError:
    return FeatureError(
        f"the image has {height} x {width} = {width * height:,} pixels",
        option="max_pixels",
        found=max_pixels,
        remedy="pass a larger max_pixels= if the data is trusted",
    )


def _check_scans(data: bytes, height: int, width: int, max_pixels: int) -> None:
    """Reject a JPEG of so many scans that decoding it takes too long."""
    found, allowed = _core.jpeg_scans(data, height * width, max_pixels)
    if found > allowed:
        raise FeatureError(
            f"the JPEG image of {height} x {width} pixels has {found:,} scans; must have at most "
            f"{allowed:,}, because decoding each takes as long as decoding a baseline image"
        )


def _header_of(data: bytes) -> ImageHeader | None:
    """Return the header of an image, if the native core can parse it.

    Raises:
        FeatureError: If it is a JPEG of 12 bits, which no decoder supports.
    """
    header = read_header(data)
    if header is not None and header.format == "jpeg" and header.bits != 8:
        raise FeatureError(f"the JPEG image has {header.bits} bits per channel; must be 8")
    return header


@dataclass(slots=True)
class _Located:
    """Adds the feature, and the location of a record, to the errors of its image."""

    name: str
    locate: Locate | None
    row: int

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, (MissingLibraryError, ImageSizeError)):  # not the fault of a record
            error.feature = self.name
        elif isinstance(error, FeatureError) and self.locate is not None:
            raise self.locate(self.row).error(error, self.name) from None


# Decoding.


@functools.cache
def native_formats() -> tuple[str, ...]:
    """Return the formats that the native core decodes; Pillow decodes the others."""
    libraries = [each.split()[0] for each in _core.image_decoders()]
    return tuple(name for name, (library, _) in _NATIVE.items() if library in libraries)


def count_native(encoded: StringArray) -> int:
    """Return how many images are in a format that the native core decodes."""
    formats = native_formats()
    headers = (read_header(bytes(each)) for each in encoded) if formats else ()
    return sum(header is not None and header.format in formats for header in headers)


@dataclass(eq=False, slots=True)
class ImageColumn:
    """Decodes the images of one feature to arrays of one shape.

    Args:
        name: The feature.
        feature: Its type.
        options: How images are decoded.
        shape: Shape of a decoded image.
        max_pixels: Maximum number of pixels of an encoded image.
    """

    name: str
    feature: Image
    options: ImageOptions
    shape: PixelShape
    max_pixels: int = DEFAULT_MAX_PIXELS
    spec: _core.ImageSpec = field(init=False)

    def __post_init__(self) -> None:
        feature, options, shape = self.feature, self.options, self.shape
        if options.size is None and shape[0] * shape[1] > self.max_pixels:
            raise _too_large(*shape[:2], self.max_pixels)
        if not 0 < min(shape) <= max(shape) <= MAX_SIDE:
            raise FeatureError(
                f"the decoded image has {shape[0]:,} x {shape[1]:,} pixels; sides must be from 1 "
                f"to {MAX_SIDE:,}",
                feature=self.name,
                remedy="pass image_size=",
            )
        height, width, _ = feature.shape
        self.spec = _core.ImageSpec(
            size=shape[:2],
            channels=shape[2],
            is_deep=feature.dtype == "uint16",
            as_stored=feature.shape[2] is None,
            crop="none" if options.size is None else options.crop,
            scale=options.crop_scale,
            ratio=options.crop_ratio,
            flip=options.flip,
            fast=options.decode == "fast",
            orient=feature.exif_orientation,
            views=options.views,
            required=(height or 0, width or 0),
            max_pixels=self.max_pixels,
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the pixels."""
        return np.dtype(self.feature.dtype)

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
        views, row = out, 0
        if views is None:
            shape = (len(encoded), *self.shape)
            views = [np.empty(shape, self.dtype) for _ in range(self.options.views)]
        while True:
            if native_formats():
                fault = self.spec.decode(encoded.data, encoded.offsets, views, *key, row)
            else:
                fault = (row, "unsupported", 0, 0, 0, "") if row < len(encoded) else None
            if fault is None:
                return views
            row = fault[0]
            data = bytes(encoded[row])
            with _Located(self.name, locate, row):
                if fault[1] == "unsupported":
                    pixels = _decode_with_pillow(self.feature, data, self.max_pixels)
                    height, width, channels = pixels.shape
                    if channels == self.shape[2]:
                        seed, batch, first = key
                        rows = [view[row] for view in views]
                        size = (height, width)
                        fault = self.spec.frame(pixels, size, rows, seed, batch, first + row)
                    else:
                        fault = (row, "channels", height, width, channels, "")
                if fault is not None:
                    self._raise(fault, data)
            row += 1

    def _raise(self, fault: Fault, data: bytes) -> NoReturn:
        """Raise the error for an image that cannot be decoded."""
        _, code, height, width, channels, message = fault
        if code == "too_large":
            raise _too_large(height, width, self.max_pixels)
        if code == "scans":
            _check_scans(data, height, width, self.max_pixels)
        if code == "size":
            check_value_shape((height, width, self.shape[2]), self.feature.shape)
            raise different_sizes({self.shape[:2], (height, width)})
        if code == "channels":
            expected = self.shape[2]
            declared = 3 if expected == 2 else expected
            raise FeatureError(
                f"the image has {channels} channels, the first has {expected}",
                remedy=f"declare the number of channels: Image(channels={declared})",
            )
        if code == "memory":
            raise FeatureError("there is not enough memory to decode the image")
        raise invalid_image(data, message)


def find_shape(feature: Image, data: bytes, max_pixels: int = DEFAULT_MAX_PIXELS) -> PixelShape:
    """Return the shape of a decoded image, from its header.

    Raises:
        FeatureError: If the data is not an image, or has too many pixels.
    """
    header = _header_of(data)
    if header is not None and header.format in _NATIVE:
        name, height, width, channels, _, orientation = header
        channels = 3 if name == "jpeg" and channels == 4 else channels
    else:
        if data.startswith(tuple(magic for _, magic in _NATIVE.values())) and not has_pillow():
            raise invalid_image(data, "its header is corrupt")
        with open_picture(data) as picture:
            height, width, mode = picture.height, picture.width, str(picture.mode)
            channels = 1 if mode.startswith(("I", "F")) else len(_mode_of(feature, mode))
            orientation = _orientation_of(picture)
    if height * width > max_pixels:
        raise _too_large(height, width, max_pixels)
    if feature.exif_orientation and orientation >= 5:
        height, width = width, height
    return height, width, feature.shape[2] or channels


def locate_shape(
    name: str, feature: Image, encoded: StringArray, row: int, locate: Locate, max_pixels: int
) -> PixelShape:
    """Return the shape of a decoded image, as `find_shape`; errors name its record."""
    with _Located(name, locate, row):
        shape = find_shape(feature, bytes(encoded[row]), max_pixels)
        check_value_shape(shape, feature.shape)
    return shape


def read_pixels(
    feature: Image, data: bytes, size: Size | None = None, *, max_pixels: int = DEFAULT_MAX_PIXELS
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
    options = _AS_STORED if size is None else ImageOptions(image_size=size)
    column = ImageColumn("image", feature, options, (*(size or shape[:2]), shape[2]), max_pixels)
    encoded = StringArray(np.frombuffer(data, np.uint8), np.array([0, len(data)]), False)
    pixels: NDArray[Any] = column.decode(encoded, None)[0][0]
    return pixels


def decode_each(
    name: str,
    feature: Image,
    encoded: StringArray,
    locate: Locate,
    *,
    options: ImageOptions = _AS_STORED,
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
    views: list[list[NDArray[Any]]] = [[] for _ in range(options.views)]
    seed, batch, first = key
    for row in range(len(encoded)):
        shape = locate_shape(name, feature, encoded, row, locate, max_pixels)
        with _Located(name, locate, row):
            column = ImageColumn(name, feature, options, shape, max_pixels)
            found = column.decode(encoded[row : row + 1], None, (seed, batch, first + row))
        for view, pixels in zip(views, found, strict=True):
            view.append(pixels[0])
    return views


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
        if not isinstance(feature, Image):
            continue
        encoded: StringArray = flat[name]
        rows = range(len(encoded))
        shapes = {locate_shape(name, feature, encoded, row, locate, max_pixels) for row in rows}
        if len(shapes) == 1:
            with _Located(name, locate, 0):
                column = ImageColumn(name, feature, _AS_STORED, shapes.pop(), max_pixels)
            flat[name] = column.decode(encoded, locate)[0]
        elif shapes:
            flat[name] = decode_each(name, feature, encoded, locate, max_pixels=max_pixels)[0]
        else:
            empty = [length or 0 for length in feature.shape]
            flat[name] = np.zeros((0, *empty), feature.dtype)
    return features.nest(flat)


# Pillow.


def _decode_with_pillow(feature: Image, data: bytes, max_pixels: int) -> NDArray[Any]:
    """Return the pixels of an image, (height, width, channels), of a feature's shape."""
    header = _header_of(data)
    with open_picture(data) as picture:
        if picture.width * picture.height > max_pixels:
            raise _too_large(picture.height, picture.width, max_pixels)
        if header is not None and header.format == "jpeg":
            _check_scans(data, picture.height, picture.width, max_pixels)
        if feature.exif_orientation and _orientation_of(picture) != 1:
            picture = importlib.import_module("PIL.ImageOps").exif_transpose(picture)
        pixels = _convert(feature, header, picture)
    check_value_shape(pixels.shape, feature.shape)
    return np.ascontiguousarray(pixels, feature.dtype)


def _convert(feature: Image, header: ImageHeader | None, picture: Any) -> NDArray[Any]:
    """Return the pixels of an image of Pillow, with the channels and the dtype of a feature."""
    mode, channels = _mode_of(feature, str(picture.mode)), feature.shape[2]
    is_deep, is_png16 = mode.startswith("I"), header is not None and header.bits == 16
    if is_png16 and feature.dtype == "uint16" and not is_deep:
        raise FeatureError(
            "the image has 16 bits in several channels, of which Pillow reads 8",
            remedy="declare Image(dtype='uint16'), without transparency, and install a build of "
            "covey with libpng; `covey info --build` lists its decoders",
        )
    if picture.mode == "P" and isinstance(picture.info.get("transparency"), bytes):
        picture = picture.convert("RGBA")  # Pillow warns of other conversions
    pixels: NDArray[Any] = np.asarray(picture if picture.mode == mode else picture.convert(mode))
    pixels = pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]
    if is_deep and feature.dtype == "uint8" and (mode != "I" or is_png16):
        pixels = (pixels >> 8).astype(np.uint8)
    if is_deep and channels in (3, 4):
        pixels = np.repeat(pixels, channels, 2)
        pixels[:, :, 3:] = np.iinfo(feature.dtype).max
    if header is not None and header.channels == 2 and channels is None:
        pixels = pixels[:, :, [0, -1]]  # Pillow reads RGBA if there are 16 bits
    if pixels.dtype in (np.uint8, feature.dtype):
        return pixels
    height, width, _ = feature.shape
    coerced: NDArray[Any] = Column("image", feature.dtype, (height, width, None)).coerce(pixels)
    return coerced


def _mode_of(feature: Image, mode: str) -> str:
    """Return Pillow's name of the mode that an image is converted to: the feature's channels."""
    if mode.startswith("I"):  # 16 bits, which a conversion would reduce
        return mode
    fixed = {1: "L", 3: "RGB", 4: "RGBA"}.get(feature.shape[2] or 0)
    return fixed or {"P": "RGB", "CMYK": "RGB", "YCbCr": "RGB", "1": "L"}.get(mode, mode)


def _orientation_of(picture: Any) -> int:
    """Return the EXIF orientation of an image that Pillow has opened."""
    if picture.format == "TIFF":  # Pillow applies it
        return 1
    found = picture.getexif().get(_ORIENTATION, 1)
    return found if found in range(1, 9) else 1
