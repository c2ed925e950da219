"""The image feature: encoded images in a record.

Pillow is imported only when an image is encoded or decoded.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema.columns import Column, Shape, as_array, check_shape
from covey.schema.types import REQUIRED, Feature

FORMATS = ("png", "jpeg")


@dataclass(frozen=True)
class Image(Feature):
    """An encoded image. Bytes are stored unchanged; pixels are encoded.

    Args:
        shape: Height, width and channels; None where images differ.
        dtype: ``"uint8"`` or, for PNG, ``"uint16"``.
        format: Format in which pixels are encoded: ``"png"`` or ``"jpeg"``.
        default: Encoded image of examples that lack the feature.

    Decoding a record returns the encoded bytes; :meth:`decode` returns the pixels of PNG, JPEG,
    GIF, BMP, WebP, TIFF and PPM images.
    """

    shape: Shape = (None, None, None)
    dtype: str = "uint8"
    format: str = "png"
    _: KW_ONLY
    exif_orientation: bool = False
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        if self.dtype not in ("uint8", "uint16"):
            raise FeatureError(option="dtype", found=self.dtype, allowed="'uint8' or 'uint16'")
        if self.format not in FORMATS:
            raise FeatureError(option="format", found=self.format, allowed=f"one of {FORMATS}")
        shape = check_shape(self.shape, self.dtype)
        if len(shape) != 3:
            raise FeatureError(option="shape", found=shape, allowed="of three dimensions")
        object.__setattr__(self, "shape", shape)
        if self.default is not REQUIRED and not isinstance(self.default, bytes):
            raise FeatureError(option="default", found=self.default, allowed="encoded bytes")

    def columns(self, name: str) -> tuple[Column, ...]:
        if self.default is REQUIRED:
            return (Column(name, "bytes"),)
        return (Column(name, "bytes", required=False, default=[self.default]),)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return [bytes(value)]
        if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return [self.encode(as_array(value))]
        raise FeatureError(
            f"the image is of type {type(value).__name__}; must be encoded bytes or pixels"
        )

    def encode(self, pixels: NDArray[Any]) -> bytes:
        """Encode pixels, (height, width[, channels]), of this feature's shape."""
        pixels = as_array(pixels)
        complete = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
        checked = Column("image", self.dtype, self.shape).coerce(complete)
        return _encode(checked, self.format)

    def decode(self, data: bytes, *, max_pixels: int | None = None) -> NDArray[Any]:
        """Decode an image into pixels, (height, width, channels), of this feature's shape.

        Args:
            data: The encoded image.
            max_pixels: Maximum number of pixels (height x width), 64 million by default. A larger
                image is rejected before it is decoded.
        """
        from covey.schema.pixels import check_max_pixels, read_pixels

        return read_pixels(self, data, max_pixels=check_max_pixels(max_pixels))


def import_pillow() -> Any:
    """Import Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise FeatureError(
            "Pillow, which encodes and decodes images, is not installed; "
            "run: pip install 'covey[images]'"
        ) from None
    return Image


def _encode(pixels: NDArray[Any], format: str) -> bytes:
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
