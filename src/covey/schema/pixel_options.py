"""Options of decoded images: size, crop, flip, views and accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from covey.errors import FeatureError, check

DEFAULT_MAX_PIXELS = 64_000_000

Crop = Literal["squash", "center", "random"]
Decode = Literal["exact", "fast"]
MAX_VIEWS = 16


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How the images of a batch are decoded, cropped and resized.

    Args:
        image_size: ``(height, width)`` of decoded images, or one integer for both. By default
            images keep their size, which must be the same for all; ``"ragged"`` returns a list of
            arrays of any size.
        crop: The part of an image that is resized to `image_size`: ``"squash"`` all of it, which
            changes the aspect ratio; ``"center"`` the largest central part of the right aspect
            ratio; ``"random"`` a random part of random area and aspect ratio.
        crop_scale: Smallest and largest area of a random crop, relative to the image.
        crop_ratio: Smallest and largest aspect ratio (width / height) of a random crop.
        flip: Mirror every image horizontally with probability 1/2.
        views: Number of versions of each image, with a random crop and flip each; x is a tuple of
            them if it is greater than 1. An image is decoded once.
        decode: ``"exact"`` returns the pixels that Pillow returns, within one level if they are
            resized. ``"fast"`` decodes JPEGs at 1/2, 1/4 or 1/8 of their size if `image_size` is
            smaller still.

    Raises:
        FeatureError: If an option is invalid, or requires another one.
    """

    image_size: int | tuple[int, int] | Literal["ragged"] | None = None
    crop: Crop = "squash"
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    views: int = 1
    decode: Decode = "exact"

    def __post_init__(self) -> None:
        if self.image_size not in (None, "ragged"):
            object.__setattr__(self, "image_size", parse_size(self.image_size))
        _check("crop", self.crop, self.crop in get_args(Crop), get_args(Crop))
        _check("decode", self.decode, self.decode in get_args(Decode), get_args(Decode))
        _check(
            "crop",
            self.crop,
            self.size is not None or self.crop == "squash",
            "'squash' without image_size=",
            reason="a crop is resized to image_size=",
        )
        _check_range("crop_scale", self.crop_scale, 1.0)
        _check_range("crop_ratio", self.crop_ratio, float("inf"))
        _check("flip", self.flip, isinstance(self.flip, bool), "True or False")
        is_integer = isinstance(self.views, int) and not isinstance(self.views, bool)
        is_valid = is_integer and 1 <= self.views <= MAX_VIEWS
        _check("views", self.views, is_valid, f"an integer from 1 to {MAX_VIEWS}")
        _check(
            "views",
            self.views,
            self.views == 1 or self.is_random,
            "1 without crop='random' and flip=True",
            reason="all views would be the same",
        )

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of decoded images; None if they keep their size."""
        return self.image_size if isinstance(self.image_size, tuple) else None

    @property
    def ragged(self) -> bool:
        """Whether images may have different sizes; a batch is a list of them then."""
        return self.image_size == "ragged"

    @property
    def is_random(self) -> bool:
        """Whether the pixels of an example depend on the seed and the step."""
        return self.crop == "random" or self.flip


def _check(option: str, found: Any, ok: object, allowed: Any, reason: str = "") -> None:
    check(option, found, ok, allowed, error=FeatureError, reason=reason)


def _check_range(option: str, found: Any, maximum: float) -> None:
    try:
        low, high = map(float, found)
        is_valid = 0 < low <= high <= maximum and high < float("inf")
    except (TypeError, ValueError):
        is_valid = False
    bounds = "" if maximum == float("inf") else f", at most {maximum:g}"
    _check(option, found, is_valid, f"(minimum, maximum), both above 0{bounds}")


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
