"""The image feature: encoded images in a record.

Pillow is imported only when an image is encoded or decoded.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.arrays import StringArray
from covey.errors import FeatureError
from covey.schema.columns import Column, Shape, as_array, check_shape
from covey.schema.types import REQUIRED, Feature

FORMATS = ("png", "jpeg")
_CHANNELS = (1, 3, 4, None)


class ImageHeader(NamedTuple):
    """The header of an encoded image."""

    format: str
    """``"jpeg"``, ``"png"``, ``"gif"``, ``"bmp"`` or ``"webp"``."""
    height: int
    width: int
    channels: int
    """Channels as stored; an image with a palette has 3."""
    bits: int
    """Bits of a channel as stored; of a PNG with a palette, those of an index."""
    orientation: int
    """EXIF orientation, from 1 to 8; 1 if there is none."""

    def size(self, *, oriented: bool) -> tuple[int, int]:
        """Return height and width of the pixels.

        Args:
            oriented: Whether pixels are rotated according to EXIF.
        """
        if oriented and self.orientation >= 5:
            return self.width, self.height
        return self.height, self.width


def read_header(data: bytes | bytearray | memoryview) -> ImageHeader | None:
    """Return the header of a JPEG, PNG, GIF, BMP or WebP image; None for other or incomplete data.

    >>> read_header(b"GIF89a" + bytes([5, 0, 4, 0, 0, 0, 0]))
    ImageHeader(format='gif', height=4, width=5, channels=3, bits=8, orientation=1)
    """
    found = _core.image_header(data)
    return None if found is None else ImageHeader(*found)


class _DefaultChannels(int):
    """The default of ``channels=``, which differs from a 3 that the caller passes."""


_DEFAULT_CHANNELS = _DefaultChannels(3)


@dataclass(frozen=True, init=False)
class Image(Feature):
    """An encoded image. Encoded images are stored unchanged; pixels are encoded.

    ``Image()`` means RGB: images with one channel, a palette, an alpha channel or CMYK have 3
    channels when they are decoded.

    Args:
        shape: Height, width and channels; None where images differ.
        dtype: ``"uint8"`` or, for PNG, ``"uint16"``.
        format: Format in which pixels are encoded: ``"png"`` or ``"jpeg"``.
        channels: Channels of decoded images: 1, 3, 4, or None for those of the encoded image
            (default: those of `shape`, or 3).
        exif_orientation: Whether decoded images are rotated according to their EXIF orientation.
        default: Encoded image of examples that lack the feature.

    A value is an encoded image (bytes), the path of one (str or os.PathLike), an image of Pillow,
    an array of (height, width[, channels]), or a dict ``{"bytes": ..., "path": ...}`` of Hugging
    Face. An image of Pillow that was read from a file and not changed is stored as the bytes of
    the file. An array has the channels of the feature, or one channel.

    Decoding a record returns the encoded bytes; :meth:`decode` returns the pixels of PNG, JPEG,
    GIF, BMP, WebP, TIFF and PPM images.

    >>> Image().shape, Image((32, 32, 1)).channels, Image(channels=None).shape
    ((None, None, 3), 1, (None, None, None))
    """

    shape: Shape
    dtype: str
    format: str
    exif_orientation: bool
    default: Any = field(default=REQUIRED)

    def __init__(
        self,
        shape: Sequence[int | None] | None = None,
        dtype: str = "uint8",
        format: str = "png",
        *,
        channels: int | None = _DEFAULT_CHANNELS,
        exif_orientation: bool = False,
        default: Any = REQUIRED,
    ) -> None:
        if dtype not in ("uint8", "uint16"):
            raise FeatureError(option="dtype", found=dtype, choices=("uint8", "uint16"))
        if format not in FORMATS:
            raise FeatureError(option="format", found=format, choices=FORMATS)
        if not isinstance(exif_orientation, bool):
            raise FeatureError(
                option="exif_orientation", found=exif_orientation, allowed="True or False"
            )
        if default is not REQUIRED and not isinstance(default, bytes):
            raise FeatureError(option="default", found=default, allowed="encoded bytes")
        values = {
            "shape": _complete_shape(shape, dtype, channels),
            "dtype": dtype,
            "format": format,
            "exif_orientation": exif_orientation,
            "default": default,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def summary(self) -> str:
        rotated = ", rotated according to EXIF" if self.exif_orientation else ""
        return f"Image {self.shape} of {self.dtype}{rotated}".replace("None", "any")

    @property
    def channels(self) -> int | None:
        """Channels of decoded images; None for those of the encoded image."""
        return self.shape[2]

    @property
    def is_plain(self) -> bool:
        return True

    def columns(self, name: str) -> tuple[Column, ...]:
        height, width, _ = (-1 if size is None else size for size in self.shape)
        column = Column(
            name,
            "bytes",
            required=self.default is REQUIRED,
            default=None if self.default is REQUIRED else [self.default],
            image=(height, width, self.dtype == "uint16"),
            convert=self.to_bytes,
        )
        return (column,)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        return [self.to_bytes(value)]

    def split_batch(
        self, batch: Any, rows: int, columns: Sequence[Column]
    ) -> list[tuple[Any, NDArray[np.int64] | None]]:
        if isinstance(batch, StringArray) and not batch.text and not batch.row_shape:
            for value in batch:
                self.check(value)
        else:
            batch = [self.to_bytes(value) for value in batch]
        return [columns[0].coerce_batch(batch, rows)]

    def to_bytes(self, value: Any) -> bytes:
        """Return the encoded image of a value.

        Raises:
            FeatureError: If it is not an image, or does not match the feature; ``feature`` is not
                set.
        """
        if isinstance(value, (bytes, bytearray, memoryview)):
            data = bytes(value)
            self.check(data)
            return data
        from covey.schema.image_inputs import value_to_bytes

        found = value_to_bytes(value, self)
        if found is not None:
            self.check(found)
            return found
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return self.encode(as_array(value))
        raise FeatureError(
            f"the image is of type {type(value).__name__}; must be encoded bytes, a path, an image "
            "of Pillow, or an array of pixels"
        )

    def check(self, data: bytes) -> None:
        """Check the header of an encoded image.

        Raises:
            FeatureError: If the format is not supported, or height and width are not those of the
                feature.
        """
        expected = self.shape[:2]
        header = _core.image_header(data)
        if header is not None:
            if expected == (None, None):
                return
            size = ImageHeader(*header).size(oriented=self.exif_orientation)
        elif self.default is not REQUIRED and data == self.default:
            return
        else:
            from covey.schema.image_inputs import identify_size

            found = identify_size(data)
            if found is None:
                return  # a format that only Pillow can parse, which is not installed
            size = found
        if any(n is not None and n != found for n, found in zip(expected, size, strict=True)):
            required = " x ".join("any" if n is None else str(n) for n in expected)
            raise FeatureError(
                f"the image has height x width {size[0]} x {size[1]}; must be {required}"
            )

    def encode(self, pixels: NDArray[Any]) -> bytes:
        """Encode pixels, (height, width[, channels]), of this feature's shape.

        Pixels may have one channel in place of the feature's: they are stored as a grayscale image.
        """
        pixels = as_array(pixels)
        complete = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
        is_gray = complete.ndim == 3 and complete.shape[2] == 1
        shape = (*self.shape[:2], 1) if is_gray else self.shape
        checked = Column("image", self.dtype, shape).coerce(complete)
        return encode_pixels(checked, self.format)

    def decode(self, data: bytes, *, max_pixels: int | None = None) -> NDArray[Any]:
        """Decode an image into pixels, (height, width, channels), of this feature's shape.

        Args:
            data: The encoded image.
            max_pixels: Maximum number of pixels (height x width), 64 million by default. A larger
                image is rejected before it is decoded.
        """
        from covey.schema.pixel_options import check_max_pixels
        from covey.schema.pixels import read_pixels

        return read_pixels(self, data, max_pixels=check_max_pixels(max_pixels))


def _complete_shape(
    shape: Sequence[int | None] | None, dtype: str, channels: int | None
) -> tuple[int | None, ...]:
    """Return height, width and channels."""
    is_default = channels is _DEFAULT_CHANNELS
    if not is_default and (isinstance(channels, bool) or channels not in _CHANNELS):
        raise FeatureError(option="channels", found=channels, allowed="1, 3, 4 or None")
    if shape is None:
        return None, None, None if channels is None else int(channels)
    checked = check_shape(shape, dtype)
    if len(checked) != 3:
        raise FeatureError(option="shape", found=checked, allowed="of three dimensions")
    if is_default or channels == checked[2]:
        return checked
    if checked[2] is not None:
        raise FeatureError(
            option="channels", found=channels, allowed=f"{checked[2]}, that of the shape"
        )
    return check_shape((*checked[:2], channels), dtype)


class MissingPillowError(FeatureError):
    """Pillow is not installed, which is not the fault of a record."""


def import_pillow() -> Any:
    """Import Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingPillowError(
            "Pillow, which encodes and decodes images, is not installed; "
            "run: pip install 'covey[images]'"
        ) from None
    return Image


def encode_pixels(pixels: NDArray[Any], format: str) -> bytes:
    """Encode pixels, (height, width) or (height, width, channels)."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    out = io.BytesIO()
    pillow = import_pillow()
    try:
        pillow.fromarray(pixels).save(out, format=format)
    except (OSError, TypeError, ValueError) as error:
        raise FeatureError(
            f"pixels of {pixels.dtype} {pixels.shape} cannot be encoded as {format}: {error}"
        ) from None
    return out.getvalue()
