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
    """Keyword arguments of ``to_torch`` and ``to_jax``: the fields of :class:`ImageFormat`."""

    layout: Layout
    dtype: Any
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None


@dataclass
class ImageFormat:
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

    >>> ImageFormat(dtype="float32", mean=0.5).coefficients("uint8", 1)
    (array([0.00392157]), array([-0.5]))
    """

    layout: Layout = "NHWC"
    dtype: Any = None
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        _check("layout", self.layout, self.layout in get_args(Layout), get_args(Layout))
        for option, allowed in (("mean", "finite numbers"), ("std", "finite numbers above 0")):
            if getattr(self, option) is not None:
                setattr(self, option, _channel_values(option, getattr(self, option), allowed))
        self.is_normalized = self.mean is not None or self.std is not None
        """Whether a mean is subtracted, or the result divided by a standard deviation."""
        if self.dtype is not None or self.is_normalized:  # the name of the type of the result
            self.dtype = _dtype_name("float32" if self.dtype is None else self.dtype)

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
        reason, allowed = f"images have {channels} channels", "one value, or one per channel"
        found = []
        for option, default in (("mean", 0.0), ("std", 1.0)):
            values = (default,) if getattr(self, option) is None else getattr(self, option)
            is_valid = len(values) in (1, channels)
            check(option, values, is_valid, allowed, error=FeatureError, reason=reason)
            found.append(np.broadcast_to(np.array(values), (channels,)))
        mean, std = found
        return 1.0 / (IMAGE_SCALES[dtype] * std), -mean / std


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
