"""Encoded images; Pillow is imported only when one is really encoded or decoded."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.features.columns import Column, Shape, as_array, check_shape
from covey.features.kinds import REQUIRED, Feature

FORMATS = ("png", "jpeg")


@dataclass(frozen=True)
class Image(Feature):
    """An encoded image. Bytes are stored as they are; pixels are encoded first.

    Args:
        shape: Height, width and channels; None where images differ.
        dtype: ``"uint8"`` or, for PNG, ``"uint16"``.
        format: How pixels are encoded: ``"png"`` or ``"jpeg"``.
        default: The encoded image of an example that lacks the feature.

    Decoding gives the encoded bytes; :meth:`decode` gives pixels.
    """

    shape: Shape = (None, None, None)
    dtype: str = "uint8"
    format: str = "png"
    _: KW_ONLY
    default: Any = field(default=REQUIRED)

    def __post_init__(self) -> None:
        if self.dtype not in ("uint8", "uint16"):
            raise FeatureError(f"dtype of an image is {self.dtype!r}, must be 'uint8' or 'uint16'")
        if self.format not in FORMATS:
            raise FeatureError(f"format of an image is {self.format!r}, must be one of {FORMATS}")
        shape = check_shape(self.shape, self.dtype)
        if len(shape) != 3:
            raise FeatureError(f"shape of an image is {shape}, must have three dimensions")
        object.__setattr__(self, "shape", shape)
        if self.default is not REQUIRED and not isinstance(self.default, bytes):
            raise FeatureError("the default of an image must be encoded bytes")

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
            f"an image is of type {type(value).__name__}, must be encoded bytes or pixels"
        )

    def encode(self, pixels: NDArray[Any]) -> bytes:
        """Encode pixels of this feature's shape, (height, width[, channels])."""
        pixels = as_array(pixels)
        whole = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
        checked = Column("image", self.dtype, self.shape).coerce(whole)
        return _encode(checked, self.format)

    def decode(self, data: bytes) -> NDArray[Any]:
        """Decode an image into pixels, (height, width, channels), of this feature's shape."""
        pixels = _decode(data, self.shape[2])
        return np.asarray(Column("image", self.dtype, self.shape).coerce(pixels))


def import_pillow() -> Any:
    """Pillow, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise FeatureError(
            "coding images needs Pillow, which is not installed; run: pip install 'covey[images]'"
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


def _decode(data: bytes, channels: int | None = None) -> NDArray[Any]:
    """Decode an image into (height, width, channels)."""
    from_pillow = import_pillow()
    try:
        with from_pillow.open(io.BytesIO(data)) as image:
            mode = {1: "L", 3: "RGB", 4: "RGBA"}.get(channels or 0)
            if image.mode in ("P", "CMYK", "YCbCr", "1") and mode is None:
                mode = "RGB" if image.mode != "1" else "L"
            if mode is not None and image.mode != mode and not image.mode.startswith("I"):
                image = image.convert(mode)
            pixels = np.asarray(image)
    except (OSError, ValueError, SyntaxError, from_pillow.DecompressionBombError) as error:
        raise FeatureError(
            f"these {len(data)} bytes are no image that can be read: {error}"
        ) from None
    if pixels.dtype == np.int32:  # how Pillow holds 16-bit grey
        pixels = pixels.astype(np.uint16)
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]
