"""Features that are displayed as images although they are not :class:`covey.Image`."""

from __future__ import annotations

import math

from covey.schema import Feature, Tensor

_MIN_FLAT_VALUES = 64


def pixels_shape(feature: Feature) -> tuple[int | None, ...] | None:
    """Return the shape of a tensor as an image; None if it is not an image.

    An image is a uint8 tensor of shape (h, w) or (h, w, 1 | 3 | 4), or a flat one of at least 64
    values that are a square of grey or RGB pixels.

    >>> pixels_shape(Tensor("uint8", (784,))), pixels_shape(Tensor("uint8", (32, 32, 3)))
    ((28, 28, 1), (32, 32, 3))
    """
    if not isinstance(feature, Tensor) or feature.dtype != "uint8":
        return None
    match feature.shape:
        case (_, _) | (_, _, 1 | 3 | 4):
            return feature.shape
        case (int(size),) if size >= _MIN_FLAT_VALUES:
            for channels in (1, 3):
                side = math.isqrt(size // channels)
                if side * side * channels == size:
                    return side, side, channels
    return None
