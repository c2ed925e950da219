"""Pixels of encoded images: columns of decoded images, with crops and resizing."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema.columns import Column, check_value_shape
from covey.schema.diagnostics import RecordLocation
from covey.schema.features import Features
from covey.schema.images import Image, import_pillow

# The formats that are decoded, by Pillow's names. Formats that embed images of other formats (ICO,
# ICNS) decode them before their size is known, and some start other programs (EPS).
DECODED_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
DEFAULT_MAX_PIXELS = 64_000_000
# Pillow's names of 8-bit images; each letter is a channel.
_EIGHT_BITS = ("L", "LA", "RGB", "RGBA")


Crop = Literal["squash", "center", "random"]
Decode = Literal["exact", "fast"]
MAX_VIEWS = 16


@dataclass(frozen=True, kw_only=True)
class PixelOptions:
    """How the images of a batch are decoded, cropped and resized.

    Args:
        size: Height and width of the result (default: as stored).
        ragged: Whether images may have different sizes; a batch is a list of them then.
        crop, crop_scale, crop_ratio, flip, views, decode: As for
            :class:`covey.loader.LoadOptions`.

    Raises:
        FeatureError: If an option is invalid, or requires another one.
    """

    size: tuple[int, int] | None = None
    ragged: bool = False
    crop: Crop = "squash"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    views: int = 1
    decode: Decode = "exact"

    def __post_init__(self) -> None:
        for option, allowed in (("crop", get_args(Crop)), ("decode", get_args(Decode))):
            found = getattr(self, option)
            if found not in allowed:
                listed = ", ".join(map(repr, allowed))
                raise FeatureError(option=option, found=found, allowed=f"one of {listed}")
        if self.size is None and self.crop != "squash":
            raise FeatureError(
                "a crop is resized to image_size=",
                option="crop",
                found=self.crop,
                allowed="'squash' without image_size=",
            )
        _check_range("crop_scale", self.crop_scale, 1.0)
        _check_range("crop_ratio", self.crop_ratio, float("inf"))
        if not isinstance(self.flip, bool):
            raise FeatureError(option="flip", found=self.flip, allowed="True or False")
        is_integer = isinstance(self.views, int) and not isinstance(self.views, bool)
        if not is_integer or not 1 <= self.views <= MAX_VIEWS:
            raise FeatureError(
                option="views", found=self.views, allowed=f"an integer from 1 to {MAX_VIEWS}"
            )
        if self.views > 1 and not self.is_random:
            raise FeatureError(
                "all views would be the same",
                option="views",
                found=self.views,
                allowed="1 without crop='random' and flip=True",
            )

    @property
    def is_random(self) -> bool:
        """Whether the pixels of an example depend on the seed and the step."""
        return self.crop == "random" or self.flip


def _check_range(option: str, found: Any, maximum: float) -> None:
    try:
        low, high = map(float, found)
        is_valid = 0 < low <= high <= maximum and high < float("inf")
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        bounds = "" if maximum == float("inf") else f", at most {maximum:g}"
        raise FeatureError(
            option=option, found=found, allowed=f"(minimum, maximum), both above 0{bounds}"
        )


def check_max_pixels(value: Any) -> int:
    """Return the limit, or the default one for None."""
    if value is None:
        return DEFAULT_MAX_PIXELS
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise FeatureError(option="max_pixels", found=value, allowed="an integer >= 1")
    return int(value)


def read_pixels(
    feature: Image,
    data: bytes,
    size: tuple[int, int] | None = None,
    out: NDArray[Any] | None = None,
    *,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> NDArray[Any]:
    """Decode an image into pixels, (height, width, channels), of a feature's shape.

    Args:
        feature: The feature that the image must match.
        data: The encoded image.
        size: Height and width of the result: resized with bilinear interpolation, antialiased.
        out: An array of the feature's dtype. If it has the shape of the result it is filled and
            returned, else a new array is returned.
        max_pixels: Maximum number of pixels (height x width) of the encoded image.
    """
    pillow = import_pillow()
    try:
        with pillow.open(io.BytesIO(data), formats=DECODED_FORMATS) as image:
            _check_pixels(image, max_pixels)  # from the header, before decoding
            pixels = _read_jpeg(feature, data, image, size, out)
            if pixels is not None:
                return pixels
            pixels = _read(feature, data, image, size)
    except FeatureError:
        raise
    except pillow.UnidentifiedImageError:  # its message has an address in memory
        raise FeatureError(
            f"the {len(data)} bytes are not an image in a supported format: "
            f"{', '.join(DECODED_FORMATS)}"
        ) from None
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise FeatureError(
            f"{error}; max_pixels is {max_pixels:,}, and Pillow's own limit is "
            "PIL.Image.MAX_IMAGE_PIXELS"
        ) from None
    except MemoryError:
        raise FeatureError("there is not enough memory to decode the image") from None
    except (OSError, ValueError, SyntaxError) as error:
        raise FeatureError(f"the {len(data)} bytes are not a valid image: {error}") from None
    if out is None or out.shape != pixels.shape:
        out = np.empty(pixels.shape, feature.dtype)
    out[...] = pixels
    return out


def _check_pixels(image: Any, max_pixels: int) -> None:
    """Reject an image that needs too much memory."""
    if image.width * image.height > max_pixels:
        raise FeatureError(
            f"the image has {image.height} x {image.width} = {image.width * image.height:,} pixels",
            option="max_pixels",
            found=max_pixels,
            remedy="pass a larger value if the data is trusted",
        )


def _read(feature: Image, data: bytes, image: Any, size: tuple[int, int] | None) -> NDArray[Any]:
    """Return the pixels of an image that Pillow has opened."""
    mode = _mode(feature, image)
    if feature.dtype == "uint16" and not mode.startswith("I") and _is_deep(data):
        raise FeatureError(
            "the image has 16 bits in several channels, of which Pillow reads 8",
            remedy="read the encoded image, and decode it with tf.io.decode_png(data, "
            "dtype=tf.uint16)",
        )
    if mode != image.mode:
        image = image.convert(mode)
    if size == (image.height, image.width):
        size = None
    if mode not in _EIGHT_BITS:
        column = Column("image", feature.dtype, feature.shape)
        pixels: NDArray[Any] = column.coerce(_with_channels(np.asarray(image)))
        return pixels if size is None else _resize(pixels, size)
    check_value_shape((image.height, image.width, len(mode)), feature.shape)
    return _with_channels(np.asarray(image if size is None else _scale(image, size)))


def _mode(feature: Image, image: Any) -> str:
    """Return Pillow's name of the mode that an image is converted to: the feature's channels."""
    mode = str(image.mode)
    if mode.startswith("I"):  # 16 bits, which a conversion would reduce
        return mode
    fixed = {1: "L", 3: "RGB", 4: "RGBA"}.get(feature.shape[2] or 0)
    return fixed or {"P": "RGB", "CMYK": "RGB", "YCbCr": "RGB", "1": "L"}.get(mode, mode)


def _with_channels(pixels: NDArray[Any]) -> NDArray[Any]:
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def _is_deep(data: bytes) -> bool:
    """Return whether the data is a PNG of 16 bits."""
    return data.startswith(b"\x89PNG") and data[24:25] == b"\x10"


def _resize(pixels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Resize an image of more than 8 bits: as floats, which every Pillow supports."""
    channels = np.moveaxis(pixels, 2, 0).astype(np.float32)
    resized = [np.asarray(_scale(import_pillow().fromarray(each), size)) for each in channels]
    rounded: NDArray[Any] = np.rint(np.stack(resized, 2))
    return rounded


def _scale(image: Any, size: tuple[int, int]) -> Any:
    # Not with `draft`, the scaled decoding of JPEG: it is off by several levels at sharp edges.
    return image.resize(size[::-1], import_pillow().Resampling.BILINEAR)


def _read_jpeg(
    feature: Image,
    data: bytes,
    image: Any,
    size: tuple[int, int] | None,
    out: NDArray[Any] | None,
) -> NDArray[Any] | None:
    """Decode a JPEG with simplejpeg, directly into the result.

    Returns None if Pillow must decode the image: it resizes as fast, and reports errors.
    """
    simplejpeg = find_simplejpeg()
    shape = (image.height, image.width, len(image.mode))
    if (
        simplejpeg is None
        or image.format != "JPEG"
        or image.mode not in ("L", "RGB")
        or image.mode != _mode(feature, image)
        or feature.dtype != "uint8"
        or size not in (None, shape[:2])
    ):
        return None
    check_value_shape(shape, feature.shape)
    pixels = np.empty(shape, np.uint8) if out is None or out.shape != shape else out
    try:
        colors = "GRAY" if image.mode == "L" else "RGB"
        found = simplejpeg.decode_jpeg(data, colors, buffer=pixels)
    except ValueError:
        return None
    return pixels if found.shape == shape else None


@functools.cache
def find_simplejpeg() -> Any:
    """Return the module simplejpeg, if it is installed and decodes the same pixels as Pillow."""
    from PIL import features

    # Both use libjpeg-turbo then; other libraries round differently.
    if not features.check_feature("libjpeg_turbo"):
        return None
    return importlib.import_module("simplejpeg") if importlib.util.find_spec("simplejpeg") else None


def decode_images(
    features: Features,
    columns: Mapping[str, Any],
    locate: Callable[[int], RecordLocation],
    *,
    size: tuple[int, int] | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> dict[str, Any]:
    """Return the columns with images decoded: an array if all have one shape, else a list.

    Args:
        features: Features of the columns.
        columns: Columns with encoded images.
        locate: Function that returns the location of a row, for messages.
        size: Height and width that images are resized to; the columns are then arrays.
        max_pixels: Maximum number of pixels of an encoded image.
    """
    import_pillow()  # raises here if missing: not the error of a record
    size = None if size is None else parse_size(size)
    flat = {name: features.find(columns, name) for name in features}
    for name, feature in features.items():
        if isinstance(feature, Image):
            flat[name] = _decode(name, feature, flat[name], locate, size, max_pixels)
    return features.nest(flat)


def parse_size(size: Any) -> tuple[int, int]:
    """Return height and width; a single integer stands for both.

    >>> parse_size(224), parse_size([32, 64])
    ((224, 224), (32, 64))
    """
    pair = size if isinstance(size, (tuple, list)) else (size, size)
    valid = [isinstance(each, (int, np.integer)) and 0 < each < 2**15 for each in pair]
    if valid != [True, True]:
        raise FeatureError(
            option="image_size", found=size, allowed=f"(height, width), each from 1 to {2**15 - 1}"
        )
    return int(pair[0]), int(pair[1])


def _decode(
    name: str,
    feature: Image,
    encoded: Any,
    locate: Callable[[int], RecordLocation],
    size: tuple[int, int] | None,
    max_pixels: int,
) -> Any:
    shape = feature.shape if size is None else (*size, feature.shape[2])
    stacked = size is not None or None not in shape
    rows = len(encoded)
    if rows == 0 and stacked:
        return np.zeros((0, *(length or 0 for length in shape)), feature.dtype)
    # Allocated after the first image, which proves that the shape of the schema is right.
    out: NDArray[Any] | None = None
    images: list[NDArray[Any]] = []
    for row, each in enumerate(encoded):
        try:
            if out is None:
                images.append(read_pixels(feature, bytes(each), size, max_pixels=max_pixels))
            else:
                found = read_pixels(feature, bytes(each), size, out[row], max_pixels=max_pixels)
                _check_channels(found, out)
        except FeatureError as error:
            raise locate(row).error(error, name) from None
        if row == 0 and rows > 1 and stacked:
            out = np.empty((rows, *images[0].shape), feature.dtype)
            out[0] = images[0]
    if out is not None:
        return out
    if rows == 1:
        return images[0][np.newaxis]
    return np.stack(images) if len({image.shape for image in images}) == 1 else images


def _check_channels(image: NDArray[Any], out: NDArray[Any]) -> None:
    """Check that an image was decoded into `out`; its size was checked before."""
    found, expected = image.shape[2], out.shape[3]
    if found != expected:
        raise FeatureError(
            f"the image has {found} channels, the first of the batch has {expected}",
            remedy="declare the number of channels to get one array: "
            f"Image(shape=(None, None, {expected}))",
        )
