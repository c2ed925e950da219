"""Encoded images, by Pillow, which is imported only when an image is really coded."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError

FORMATS = ("png", "jpeg")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise FeatureError(
            "coding images needs Pillow, which is not installed; run: pip install 'covey[images]'"
        ) from None
    return Image


def encode_image(pixels: NDArray[Any], format: str) -> bytes:
    """Encode pixels, (height, width) or (height, width, channels)."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    out = io.BytesIO()
    pillow = _pillow()
    try:
        pillow.fromarray(pixels).save(out, format=format)
    except (OSError, TypeError, ValueError) as error:
        raise FeatureError(
            f"pixels of {pixels.dtype} {pixels.shape} cannot be encoded as {format}: {error}"
        ) from None
    return out.getvalue()


def decode_image(data: bytes, channels: int | None = None) -> NDArray[Any]:
    """Decode an image into (height, width, channels)."""
    from_pillow = _pillow()
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
