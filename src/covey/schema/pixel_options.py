"""Options of decoded images: size, crop, flip, views and accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from covey.errors import FeatureError

DEFAULT_MAX_PIXELS = 64_000_000

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
                raise FeatureError(option=option, found=found, choices=allowed)
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


def parse_size(size: Any) -> tuple[int, int]:
    """Return height and width; a single integer stands for both.

    >>> parse_size(224), parse_size([32, 64])
    ((224, 224), (32, 64))
    """
    pair = size if isinstance(size, (tuple, list)) else (size, size)
    valid = [
        isinstance(each, (int, np.integer)) and not isinstance(each, bool) and 0 < each < 2**15
        for each in pair
    ]
    if valid != [True, True]:
        raise FeatureError(
            option="image_size",
            found=size,
            allowed=f"an integer from 1 to {2**15 - 1} such as 224, or a pair (height, width) of "
            "them such as (224, 320)",
        )
    return int(pair[0]), int(pair[1])
