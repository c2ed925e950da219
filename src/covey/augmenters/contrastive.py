"""Augmenters, and one that returns random views of images for contrastive learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.augmenters.linear import Resampling, blurring, colouring, luma, multiply
from covey.errors import PlanError
from covey.loader.options import accepted
from covey.plan.base import check_int, check_seed
from covey.schema.pixel_options import parse_size


class Augmenter(ABC):
    """Function from a batch to a batch, possibly with more examples; samplers and loaders call it.

    Its random choices should be functions of the step, and of `rng` or a seed of its own: a batch
    then is the same whenever it is built.

    >>> class Brighter(Augmenter):
    ...     def augment(self, x, y, examples_per_class, is_warmup):
    ...         return x * 2, y
    >>> Brighter()(3, 1, 2, False)
    (6, 1)
    """

    @abstractmethod
    def augment(self, x: Any, y: Any, examples_per_class: int, is_warmup: bool) -> Any:
        """Return x and y of the augmented batch.

        A subclass may add keyword parameters named ``step``, the index of the batch; ``row``, the
        index of its first row in the batch of all ranks; and ``rng``, a numpy Generator that is a
        function of the seed and the step.

        Args:
            x: The examples.
            y: Their class ids, or None.
            examples_per_class: Number of examples of each class in the batch; if each example is a
                class of its own, the number of examples to make of it.
            is_warmup: Whether the epoch is one of the warm-up.
        """

    def __call__(
        self,
        x: Any,
        y: Any,
        examples_per_class: int,
        is_warmup: bool = False,
        *,
        step: int = 0,
        row: int = 0,
        rng: Any = None,
    ) -> Any:
        """Call :meth:`augment` with those of `step`, `row` and `rng` that it accepts."""
        augment: Callable[..., Any] = self.augment
        seeded = {"step": step, "row": row, "rng": rng}
        used = {name: seeded[name] for name in accepted(augment)}
        return augment(x, y, examples_per_class, is_warmup, **used)


# The random choices of a view, in the order of its random numbers. All are always drawn, so that no
# option changes the effect of another; new ones are appended.
_CHANCES = ("area", "ratio", "top", "left", "flip", "jitter", "brightness", "contrast",
            "saturation", "hue", "grayscale", "blur", "sigma")  # fmt: skip
_NUMBERS = 16

# Number of values processed together: they should fit into the cache of a core.
_CHUNK_VALUES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ContrastiveAugmenter(Augmenter):
    """Returns random views of images: crops, flips, colour jitter and blur, as in SimCLR.

    If each example is a class of its own, ``examples_per_class`` consecutive views are made of
    each. A batch that already has that number of consecutive examples of each class, like those of
    a multi-shot sampler, keeps its size: each example becomes one view. A view is a function of the
    seed, the step, its image and its row. During warm-up, views are the images in their new size.

    Args:
        seed: Seed of all random choices.
        views: Number of views per example (default: as described above).
        size: ``(height, width)`` of views, or one integer for both (default: that of the images).
        crop: Smallest and largest fraction of the area of an image that a view shows; None
            disables cropping.
        ratio: Smallest and largest ratio of width to height of a crop; it is reduced to fit into
            the image.
        flip: Probability of a horizontal flip.
        jitter: Probability of a change of colours.
        brightness: Maximum deviation from 1 of the brightness factor.
        contrast: Maximum deviation from 1 of the contrast factor.
        saturation: Maximum deviation from 1 of the saturation factor.
        hue: Maximum rotation of the hue in YIQ, in turns.
        grayscale: Probability of a grey view.
        blur: Probability of Gaussian blur.
        sigma: Smallest and largest standard deviation of the blur, in pixels of the view.

    Colours change in that order. Values are clipped once, at the end.

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
                raise ValueError(f"y has the shape {y.shape}; must be ({len(images)}, ...), as x")
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
        chunk = max(1, _CHUNK_VALUES // values)
        for begin in range(0, count, chunk):
            planes = np.ascontiguousarray(
                images[begin : begin + chunk].transpose(0, 3, 1, 2), dtype
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
        """Return (top, left, height, width) of the crop of each view."""
        if self.crop is None:
            zeros, ones = np.zeros(len(chances["area"])), np.ones(len(chances["area"]))
            return zeros, zeros, ones * height, ones * width
        area, aspect = _between(self.crop, chances["area"]), width / height
        # The ratios within the bounds with which a crop of that area fits into the image.
        low = np.maximum(self.ratio[0], aspect * area)
        high = np.minimum(self.ratio[1], aspect / area)
        ratio = np.where(
            low <= high,
            low * (high / low) ** chances["ratio"],
            np.clip(aspect, *self.ratio),
        )
        crop_width = np.sqrt(area * height * width * ratio)
        crop_height = crop_width / ratio
        scale = np.minimum(1, np.minimum(height / crop_height, width / crop_width))
        crop_height, crop_width = crop_height * scale, crop_width * scale
        top, left = chances["top"] * (height - crop_height), chances["left"] * (width - crop_width)
        return top, left, crop_height, crop_width

    def _colours(
        self, channels: int, chances: dict[str, NDArray[Any]], dtype: Any
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the colour matrix of each view, and the factor of its mean brightness."""
        is_changed = chances["jitter"] < self.jitter
        brightness, contrast, saturation = (
            1 + is_changed * _between((-deviation, deviation), chances[name])
            for name, deviation in (
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
    """Compute the views of some images.

    Args:
        out: Output, of shape (views, height, width, channels).
        planes: Images, of shape (images, channels, height, width).
        left: Row matrix of each view.
        right: Column matrix of each view.
        colours: Colour matrix of each view.
        share: Factor of the mean brightness that is added to each view.
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
    # Conversion to integers truncates; adding 0.5 rounds.
    half, white = (0.5, 255) if out.dtype == np.uint8 else (0, 1)
    pixels += (grey + half).astype(pixels.dtype)[:, np.newaxis, np.newaxis]
    np.clip(pixels, 0, white + half, out=pixels)
    for channel in range(channels):
        out[..., channel] = pixels[:, channel].reshape(views, out_height, out_width)


def _check(name: str, value: Any, low: float, high: float, *, pair: bool = False) -> None:
    bounds = value if pair else (value, value)
    is_valid = isinstance(bounds, (tuple, list)) and len(bounds) == 2
    is_valid = is_valid and all(isinstance(bound, (int, float, np.number)) for bound in bounds)
    if not is_valid or not low <= bounds[0] <= bounds[1] <= high:
        kind = "a pair (smallest, largest)" if pair else "a number"
        raise PlanError(option=name, found=value, allowed=f"{kind} from {low:g} to {high:g}")


def _images(x: Any) -> NDArray[Any]:
    images = np.asarray(x)
    shaped = images[..., np.newaxis] if images.ndim == 3 else images
    if shaped.ndim != 4 or shaped.shape[3] not in (1, 3) or 0 in shaped.shape[1:]:
        raise ValueError(
            f"x has the shape {images.shape}; must be (images, height, width, channels) with 1 or "
            "3 channels, or (images, height, width)"
        )
    if images.dtype not in (np.uint8, np.float16, np.float32, np.float64):
        raise ValueError(f"the dtype of x is {images.dtype}; must be uint8 or float")
    if images.dtype != np.uint8 and images.size:
        low, high = images.min(), images.max()
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"x has values from {low} to {high}; floats must be from 0 to 1; divide by 255 if "
                "white is 255, and normalise after the augmenter"
            )
    return shaped


def _is_complete(y: Any, per_class: int) -> bool:
    """Return whether a batch has `per_class` consecutive examples of each class."""
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
    low, high = bounds
    return low + (high - low) * chance
