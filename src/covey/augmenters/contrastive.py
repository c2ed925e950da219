"""Views of images for contrastive learning: cropped, flipped, in other colours, blurred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.augmenters.base import Augmenter
from covey.augmenters.linear import Resampling, blurring, colouring, luma, multiply
from covey.plan.base import check_int, check_seed
from covey.schema.images import parse_size

# What is left to chance of a view, in the order of its random numbers. New ones go to the end, and
# all are always drawn: no option changes what another one does.
_CHANCES = ("area", "ratio", "top", "left", "flip", "jitter", "brightness", "contrast",
            "saturation", "hue", "grayscale", "blur", "sigma")  # fmt: skip
_NUMBERS = 16

# Values that are worked on at once: they and what is made of them should stay near the processor.
_AT_ONCE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ContrastiveAugmenter(Augmenter):
    """Makes views of images: random crops, flips, colours and blur, as SimCLR has them.

    Where each example is a class of its own, ``examples_per_class`` views are made of each, side by
    side. A batch that has so many of each class in a row already, as those of a multi-shot sampler
    do, keeps its size: each example becomes one view. A view is a function of the seed, the step,
    its image and its place in the batch. In warm-up, views are the images as they are, in their new
    size.

    Args:
        seed: Which views. Ranks that share a step should have different ones.
        views: How many are made of each example, whatever the batch is.
        size: (height, width) of views, or one number for both; that of the images if None.
        crop: The least and the largest part of an image that a view shows; None for all of it,
        ratio: and its width by its height. A crop that fits into no image so is a smaller one.
        flip: How likely it is that left and right change places.
        jitter: How likely that colours change,
        brightness, contrast, saturation: by a factor of at most this much below or above 1,
        hue: and by a turn in YIQ of at most this much of a whole one to either side.
        grayscale: How likely that a view is grey.
        blur: How likely that it is blurred,
        sigma: by a Gaussian of this width in pixels of the view, from the least to the largest.

    Colours change in that order, and values are cut off once, at the end.

    >>> augment = ContrastiveAugmenter(seed=7, size=24)
    >>> x, y = augment(np.zeros((8, 32, 32, 3), np.uint8), np.arange(8), 2, step=5)
    >>> x.shape, y[:4].tolist()
    ((16, 24, 24, 3), [0, 0, 1, 1])
    """

    seed: int = 0
    views: int | None = None
    size: int | tuple[int, int] | None = None
    crop: tuple[float, float] | None = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grayscale: float = 0.2
    blur: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.views is not None:
            check_int("views", self.views, 1)
        if self.size is not None:
            parse_size(self.size)
        for name in ("flip", "jitter", "grayscale", "blur", "brightness", "contrast", "saturation"):
            _check(name, getattr(self, name), 0, 1)
        _check("hue", self.hue, 0, 0.5)
        if self.crop is not None:
            _check("crop", self.crop, 1e-6, 1, pair=True)
        _check("ratio", self.ratio, 1e-3, 1e3, pair=True)
        _check("sigma", self.sigma, 0, 100, pair=True)

    def augment(
        self,
        x: Any,
        y: Any,
        examples_per_class: int,
        is_warmup: bool,
        *,
        step: int = 0,
        row: int = 0,
    ) -> tuple[NDArray[Any], Any]:
        """Return views of images, and their class ids.

        Args:
            x: Array of shape (images, height, width, 1 or 3) or (images, height, width), of uint8
                or of floats from 0 to 1.
            y: Class ids, or None.
            examples_per_class: As for :meth:`Augmenter.augment`, like the others.
            is_warmup: Return the images unchanged, except for their size.
            step: Index of the batch.
            row: Index of the first image in the batch of all ranks.

        Raises:
            ValueError: If x is not such an array.
        """
        if is_warmup:
            plain = replace(self, crop=None, flip=0, jitter=0, grayscale=0, blur=0)
            return plain.augment(x, y, examples_per_class, False, step=step, row=row)
        images = _images(x)
        if y is not None:
            y = np.asarray(y)
            if y.ndim == 0 or len(y) != len(images):
                raise ValueError(f"there are {len(images)} images, and classes of shape {y.shape}")
        per_class = check_int("examples_per_class", examples_per_class, 1)
        views = self.views
        if views is None:
            views = 1 if _is_complete(y, per_class) else per_class
        step = check_int("step", step, 0, 2**64 - 1)
        chances = _chances(self.seed, step, check_int("row", row, 0) * views, len(images) * views)
        out = self._views(images, views, chances)
        y = None if y is None else y.repeat(views, 0)
        return out.reshape(out.shape[: np.ndim(x)]), y

    def _views(
        self, images: NDArray[Any], views: int, chances: dict[str, NDArray[Any]]
    ) -> NDArray[Any]:
        count, height, width, channels = images.shape
        size = (height, width) if self.size is None else parse_size(self.size)
        out = np.empty((count * views, *size, channels), images.dtype)
        dtype = np.float64 if images.dtype == np.float64 else np.float32
        top, left, crop_height, crop_width = self._boxes(height, width, chances)
        down = Resampling.of(top, crop_height, height, size[0])
        across = Resampling.of(left, crop_width, width, size[1]).flipped(
            chances["flip"] < self.flip
        )
        is_blurred = chances["blur"] < self.blur
        sigma = _between(self.sigma, chances["sigma"])
        colours, share = self._colours(channels, chances, dtype)

        values = views * channels * max(height, size[0]) * max(width, size[1])
        at_once = max(1, _AT_ONCE // values)
        for begin in range(0, count, at_once):
            planes = np.ascontiguousarray(
                images[begin : begin + at_once].transpose(0, 3, 1, 2), dtype
            )
            rows = slice(begin * views, (begin + len(planes)) * views)
            left_side, right_side = down.matrices(rows, dtype), across.matrices(rows, dtype)
            blurred = np.flatnonzero(is_blurred[rows])
            if len(blurred):
                widths = sigma[rows][blurred]
                bells = {each: blurring(widths, self.sigma[1], each, dtype) for each in set(size)}
                for side in (left_side, right_side):
                    side[blurred] = multiply(bells[side.shape[1]], side[blurred])
            _fill(out[rows], planes, left_side, right_side, colours[rows], share[rows])
        return out

    def _boxes(self, height: int, width: int, chances: dict[str, NDArray[Any]]) -> Any:
        """(top, left, height, width) of what each view shows."""
        if self.crop is None:
            none, ones = np.zeros(len(chances["area"])), np.ones(len(chances["area"]))
            return none, none, ones * height, ones * width
        area, aspect = _between(self.crop, chances["area"]), width / height
        # Of the ratios that were asked for, those with which such an area is within the image.
        least = np.maximum(self.ratio[0], aspect * area)
        most = np.minimum(self.ratio[1], aspect / area)
        ratio = np.where(
            least <= most,
            least * (most / least) ** chances["ratio"],
            np.clip(aspect, *self.ratio),
        )
        crop_width = np.sqrt(area * height * width * ratio)
        crop_height = crop_width / ratio
        fitting = np.minimum(1, np.minimum(height / crop_height, width / crop_width))
        crop_height, crop_width = crop_height * fitting, crop_width * fitting
        top, left = chances["top"] * (height - crop_height), chances["left"] * (width - crop_width)
        return top, left, crop_height, crop_width

    def _colours(
        self, channels: int, chances: dict[str, NDArray[Any]], dtype: Any
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """How channels are mixed, and how much of an image's mean brightness is added to them."""
        is_changed = chances["jitter"] < self.jitter
        brightness, contrast, saturation = (
            1 + is_changed * _between((-most, most), chances[name])
            for name, most in (
                ("brightness", self.brightness),
                ("contrast", self.contrast),
                ("saturation", self.saturation),
            )
        )
        turn = is_changed * _between((-self.hue, self.hue), chances["hue"])
        saturation = saturation * (chances["grayscale"] >= self.grayscale)
        matrix = colouring(brightness * contrast, saturation, turn, channels, dtype)
        return matrix, (1 - contrast) * brightness


def _fill(
    out: NDArray[Any],
    planes: NDArray[Any],
    left: NDArray[Any],
    right: NDArray[Any],
    colours: NDArray[Any],
    share: NDArray[Any],
) -> None:
    """Make views of some images.

    Args:
        out: Where they go, (views, height, width, channels).
        planes: The images, (images, channels, height, width).
        left, right, colours: The matrices of each view.
        share: How much of its mean brightness is added to it.
    """
    count, channels, height, width = planes.shape
    views, out_height, out_width, _ = out.shape
    rows = multiply(left.reshape(count, -1, 1, out_height, height), planes[:, np.newaxis])
    pixels = multiply(
        rows.reshape(views, channels * out_height, width),
        np.ascontiguousarray(right.transpose(0, 2, 1)),
    ).reshape(views, channels, out_height * out_width)
    grey = (pixels.mean(2) * luma(channels)).sum(1) * share
    pixels = multiply(colours, pixels)
    # What becomes an integer is rounded by cutting off what is behind the point.
    half, most = (0.5, 255) if out.dtype == np.uint8 else (0, 1)
    pixels += (grey + half).astype(pixels.dtype)[:, np.newaxis, np.newaxis]
    np.clip(pixels, 0, most + half, out=pixels)
    for channel in range(channels):
        out[..., channel] = pixels[:, channel].reshape(views, out_height, out_width)


def _check(name: str, given: Any, least: float, most: float, *, pair: bool = False) -> None:
    numbers = given if pair else (given, given)
    sound = isinstance(numbers, (tuple, list)) and len(numbers) == 2
    sound = sound and all(isinstance(each, (int, float, np.number)) for each in numbers)
    if not sound or not least <= numbers[0] <= numbers[1] <= most:
        kind = "(least, largest), both" if pair else "a number"
        raise ValueError(f"{name} is {given!r}; must be {kind} from {least:g} to {most:g}")


def _images(x: Any) -> NDArray[Any]:
    images = np.asarray(x)
    shaped = images[..., np.newaxis] if images.ndim == 3 else images
    if shaped.ndim != 4 or shaped.shape[3] not in (1, 3) or 0 in shaped.shape[1:]:
        raise ValueError(
            f"x has the shape {images.shape}; must be (images, height, width, channels) with 1 or "
            "3 channels, or (images, height, width)"
        )
    if images.dtype not in (np.uint8, np.float16, np.float32, np.float64):
        raise ValueError(f"x is of {images.dtype}; must be uint8, or floats from 0 to 1")
    if images.dtype != np.uint8 and images.size:
        least, most = images.min(), images.max()
        if not (least >= 0 and most <= 1):
            raise ValueError(
                f"x has values from {least} to {most}, but floats must be from 0 to 1; divide them "
                "by 255 if that is what white is, and normalise them after this"
            )
    return shaped


def _is_complete(y: Any, per_class: int) -> bool:
    """Whether a batch has so many examples of each class in a row."""
    if y is None or len(y) % per_class:
        return False
    rows = y.reshape(-1, per_class, *y.shape[1:])
    return bool((rows == rows[:, :1]).all())


def _chances(seed: int, step: int, first: int, rows: int) -> dict[str, NDArray[Any]]:
    """Return random numbers in [0, 1) for the views from `first` on, by option."""
    # One value of the counter yields four numbers.
    counter = np.array([first * _NUMBERS // 4, 0, 0, 0], np.uint64)
    philox = np.random.Philox(key=np.array([seed, step], np.uint64), counter=counter)
    bits = philox.random_raw(rows * _NUMBERS)
    numbers = (bits >> np.uint64(11)).reshape(rows, _NUMBERS) * 2.0**-53
    return dict(zip(_CHANCES, np.ascontiguousarray(numbers.T), strict=False))


def _between(bounds: Sequence[float], chance: NDArray[Any]) -> NDArray[Any]:
    least, most = bounds
    return least + (most - least) * chance
