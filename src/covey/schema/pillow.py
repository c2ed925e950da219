"""Decoding of images with Pillow and simplejpeg, for what the native core does not decode."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema.columns import Column, check_value_shape
from covey.schema.images import Image, import_pillow, read_header

# The formats that are decoded, by Pillow's names. Formats that embed images of other formats (ICO,
# ICNS) decode them before their size is known, and some start other programs (EPS).
DECODED_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
# Pillow's names of 8-bit images; each letter is a channel.
_EIGHT_BITS = ("L", "LA", "RGB", "RGBA")

_ORIENTATION = 0x0112


def too_large(height: int, width: int, max_pixels: int) -> FeatureError:
    """Return the error for an image with too many pixels."""
    return FeatureError(
        f"the image has {height} x {width} = {width * height:,} pixels",
        option="max_pixels",
        found=max_pixels,
        remedy="pass a larger max_pixels= if the data is trusted",
    )


@contextlib.contextmanager
def opened(data: bytes, max_pixels: int) -> Iterator[Any]:
    """Open an image with Pillow, and convert its errors."""
    pillow = import_pillow()
    try:
        with pillow.open(io.BytesIO(data), formats=DECODED_FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise too_large(image.height, image.width, max_pixels)
            yield image
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


def decode_in_python(feature: Image, data: bytes, max_pixels: int) -> NDArray[Any]:
    """Return the pixels of an image, decoded by Pillow or simplejpeg.

    Args:
        feature: The feature that the image must match.
        data: The encoded image.
        max_pixels: Maximum number of pixels.
    """
    check_bits(data)
    with opened(data, max_pixels) as image:
        is_rotated = feature.exif_orientation and orientation_of(image) != 1
        pixels = None if is_rotated else _read_jpeg(feature, data, image)
        if pixels is None:
            if is_rotated:
                image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
            pixels = _read(feature, data, image)
        check_value_shape(pixels.shape, feature.shape)
        return np.ascontiguousarray(pixels, feature.dtype)


def orientation_of(image: Any) -> int:
    """Return the EXIF orientation of an image that Pillow has opened."""
    if image.format == "TIFF":  # Pillow applies it
        return 1
    found = image.getexif().get(_ORIENTATION, 1)
    return found if found in range(1, 9) else 1


def has_pillow() -> bool:
    """Return whether Pillow is installed."""
    try:
        import_pillow()
    except FeatureError:
        return False
    return True


def check_bits(data: bytes) -> None:
    """Reject a JPEG of 12 bits, which no decoder supports."""
    header = read_header(data)
    if header is not None and header.format == "jpeg" and header.bits != 8:
        raise FeatureError(f"the JPEG image has {header.bits} bits per channel; must be 8")


def _read(feature: Image, data: bytes, image: Any) -> NDArray[Any]:
    """Return the pixels of an image that Pillow has opened."""
    header, mode, channels = read_header(data), mode_of(feature, image), feature.shape[2]
    is_deep = header is not None and header.bits == 16
    if is_deep and feature.dtype == "uint16" and not mode.startswith("I"):
        return _read_deep(feature, data)
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # Pillow warns of other conversions
    if mode != image.mode:
        image = image.convert(mode)
    pixels: NDArray[Any] = np.asarray(image)
    pixels = pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]
    if feature.dtype == "uint8" and (mode.startswith("I;16") or (mode == "I" and is_deep)):
        pixels = (pixels >> 8).astype(np.uint8)
    if mode.startswith("I") and channels is not None and channels > 1:
        pixels = np.repeat(pixels, channels, 2)
        if channels == 4:
            pixels[:, :, 3] = np.iinfo(feature.dtype).max
    if header is not None and header.channels == 2 and channels is None:
        pixels = pixels[:, :, [0, -1]]  # Pillow reads RGBA if there are 16 bits
    if mode in _EIGHT_BITS or pixels.dtype == feature.dtype:
        return pixels
    height, width, _ = feature.shape
    coerced: NDArray[Any] = Column("image", feature.dtype, (height, width, None)).coerce(pixels)
    return coerced


def _read_deep(feature: Image, data: bytes) -> NDArray[Any]:
    """Return the pixels of a PNG with 16 bits in several channels, of which Pillow reads 8.

    Grayscale, with or without alpha, is derived from what the native core decodes.
    """
    from covey.schema import pixels as native

    has_libpng, channels = "png" in native.native_formats(), feature.shape[2]
    if not has_libpng or channels not in (1, None):
        raise FeatureError(
            "the image has 16 bits in several channels, of which Pillow reads 8",
            remedy="declare Image(dtype='uint16'), without transparency"
            if has_libpng
            else "install a build of covey with libpng; `covey info --build` lists its decoders",
        )
    color = Image(
        dtype="uint16",
        channels=4 if channels is None else 3,
        exif_orientation=feature.exif_orientation,
    )
    pixels = native.read_pixels(color, data, max_pixels=np.iinfo(np.int64).max)  # checked already
    if channels is None:
        return pixels[:, :, [0, 3]]
    weights = np.array([19595, 38470, 7471], np.uint64)  # those of Pillow, in units of 2**-16
    return (pixels @ weights + 0x8000 >> 16)[:, :, np.newaxis].astype(np.uint16)


def mode_of(feature: Image, image: Any) -> str:
    """Return Pillow's name of the mode that an image is converted to: the feature's channels."""
    mode = str(image.mode)
    if mode.startswith("I"):  # 16 bits, which a conversion would reduce
        return mode
    fixed = {1: "L", 3: "RGB", 4: "RGBA"}.get(feature.shape[2] or 0)
    return fixed or {"P": "RGB", "CMYK": "RGB", "YCbCr": "RGB", "1": "L"}.get(mode, mode)


def _read_jpeg(feature: Image, data: bytes, image: Any) -> NDArray[Any] | None:
    """Decode a JPEG with simplejpeg.

    Returns None if Pillow must decode the image: it reports errors, and converts colours.
    """
    simplejpeg = find_simplejpeg()
    shape = (image.height, image.width, len(image.mode))
    if (
        simplejpeg is None
        or image.format != "JPEG"
        or image.mode not in ("L", "RGB")
        or image.mode != mode_of(feature, image)
        or feature.dtype != "uint8"
    ):
        return None
    try:
        colors = "GRAY" if image.mode == "L" else "RGB"
        pixels: NDArray[Any] = simplejpeg.decode_jpeg(data, colors)
    except ValueError:
        return None
    return pixels if pixels.shape == shape else None


@functools.cache
def find_simplejpeg() -> Any:
    """Return the module simplejpeg, if it is installed and decodes the same pixels as Pillow."""
    from PIL import features

    # Both use libjpeg-turbo then; other libraries round differently.
    if not features.check_feature("libjpeg_turbo"):
        return None
    return importlib.import_module("simplejpeg") if importlib.util.find_spec("simplejpeg") else None
