"""Layout, dtype and normalization of the images of a batch, for all frameworks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError, PlanError, check

Layout = Literal["NHWC", "NCHW"]

_check = partial(check, error=PlanError)

FLOATS = ("float16", "bfloat16", "float32", "float64")
# Types of images, and the value that becomes 1.
IMAGE_SCALES = {"uint8": 255.0, "uint16": 65535.0, **dict.fromkeys(FLOATS, 1.0)}


class ImageKeywords(TypedDict, total=False):
    """Keyword arguments of :class:`ImageConversion`, for signatures that accept all of them."""

    layout: Layout
    dtype: Any
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None


@dataclass(frozen=True)
class ImageConversion:
    """What happens to the images of a batch on the device.

    Images are the arrays of four dimensions (rows, height, width, channels) of uint8, uint16 or
    floats. Others, such as labels, are not changed.

    Args:
        layout: ``"NHWC"`` or ``"NCHW"``, the order of dimensions.
        dtype: Floating point type. Integer images are divided by their largest value (255 or
            65535), as by ``ToDtype(scale=True)`` of torchvision (default: not converted, or
            ``float32`` with `mean` or `std`).
        mean: Mean of each channel, or of all channels, subtracted after that division.
        std: Standard deviation of each channel, or of all channels, by which the result is divided.

    Raises:
        PlanError: If an option is invalid.

    >>> ImageConversion(dtype="float32", mean=0.5).coefficients("uint8", 1)
    (array([0.00392157]), array([-0.5]))
    """

    layout: Layout = "NHWC"
    dtype: Any = None
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        _check("layout", self.layout, self.layout in get_args(Layout), get_args(Layout))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        for option, allowed in (("mean", "finite numbers"), ("std", "finite numbers above 0")):
            value = getattr(self, option)
            if value is not None:
                object.__setattr__(self, option, _channel_values(option, value, allowed))
        lengths = {len(each) for each in (self.mean, self.std) if isinstance(each, tuple)} - {1}
        reason = f"mean= has {len(self._tuple('mean'))} values"
        _check("std", self.std, len(lengths) <= 1, "as many", reason=reason)

    @property
    def is_identity(self) -> bool:
        """Whether images are not changed."""
        return self.layout == "NHWC" and self.result_dtype is None

    @property
    def result_dtype(self) -> str | None:
        """Name of the type of converted images, or None if they are not converted."""
        if self.dtype is None and self.mean is None and self.std is None:
            return None
        return str(self.dtype or "float32")

    @property
    def is_normalized(self) -> bool:
        """Whether a mean is subtracted, or the result divided by a standard deviation."""
        return self.mean is not None or self.std is not None

    def coefficients(
        self, dtype: str, channels: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return a and b of each channel, so that a converted value is ``a * value + b``.

        Args:
            dtype: Name of the type of the images.
            channels: Number of channels of the images.

        Raises:
            FeatureError: If `mean` or `std` has another number of channels.
        """
        mean, std = self._tuple("mean", 0.0), self._tuple("std", 1.0)
        for option, values in (("mean", mean), ("std", std)):
            check(
                option,
                values,
                len(values) in (1, channels),
                "one value, or one per channel",
                error=FeatureError,
                reason=f"images have {channels} channels",
            )
        deviation = np.broadcast_to(np.array(std), (channels,))
        scale = 1.0 / (IMAGE_SCALES[dtype] * deviation)
        return scale, -np.broadcast_to(np.array(mean), (channels,)) / deviation

    def _tuple(self, option: str, default: float = 0.0) -> tuple[float, ...]:
        value = getattr(self, option)
        return value if isinstance(value, tuple) else (default,)


def _dtype_name(dtype: Any) -> str:
    """Return the name of a floating point type of any framework."""
    name = str(dtype).removeprefix("torch.")
    if name not in FLOATS:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = ""
    _check("dtype", dtype, name in FLOATS, FLOATS)
    return name


def _channel_values(option: str, value: Any, allowed: str) -> tuple[float, ...]:
    try:
        values = tuple(float(each) for each in np.atleast_1d(np.asarray(value, np.float64)))
    except (TypeError, ValueError):
        values = ()
    is_valid = bool(values) and all(map(math.isfinite, values))
    is_valid = is_valid and (option != "std" or min(values) > 0)
    _check(option, value, is_valid, f"{allowed}, one or one per channel")
    return values
