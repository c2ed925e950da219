"""Augmenters, and one that returns random views of images for contrastive learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FeatureError, PlanError, check, check_int
from covey.loader.options import accepted
from covey.plan.balanced import check_seed
from covey.schema.pixels import parse_size

__all__ = ["Augmenter", "ContrastiveAugmenter"]


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
        """Call :meth:`augment`, with `step`, `row` and `rng` if it accepts them."""
        augment: Callable[..., Any] = self.augment
        seeded = {"step": step, "row": row, "rng": rng}
        used = {name: seeded[name] for name in accepted(augment)}
        return augment(x, y, examples_per_class, is_warmup, **used)


_check_array = partial(check, error=FeatureError)

# The random choices of a view, in the order of its random numbers; the core chooses the crops. All
# are always drawn, so that no option changes the effect of another; new ones are appended.
_CHANCES = ("flip", "jitter", "brightness", "contrast", "saturation", "hue", "grayscale", "blur",
            "sigma")  # fmt: skip
_NUMBERS = 16
_FIRST_NUMBER = 4

# Number of values processed together: they should fit into the cache of a core.
_CHUNK_VALUES = 1 << 16

# BLAS computes smaller products in the calling thread. Loader threads run in parallel already;
# waiting for BLAS threads would cost a hundred times as much.
_MAX_SERIAL_PRODUCT = 1 << 18

_WHITE = 65535
"""White in the 16 bits in which the core crops and resizes floats."""

# Luma coefficients of images with 1 and 3 channels, and a quarter turn of the hue in YIQ.
_LUMA = {1: np.ones(1), 3: np.array([0.299, 0.587, 0.114])}
_YIQ = np.array([_LUMA[3], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_TURN = {
    1: np.zeros((1, 1)),
    3: np.linalg.inv(_YIQ) @ np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ _YIQ,
}


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
        size: ``(height, width)`` of views, or one integer for both (default: as the images).
        crop: Smallest and largest fraction of the area of an image that a view shows; None
            disables cropping.
        ratio: Smallest and largest ratio of width to height of a crop.
        flip: Probability of a horizontal flip.
        jitter: Probability of a change of colours.
        brightness: Maximum deviation from 1 of the brightness factor.
        contrast: Maximum deviation from 1 of the contrast factor.
        saturation: Maximum deviation from 1 of the saturation factor.
        hue: Maximum rotation of the hue in YIQ, in turns.
        grayscale: Probability of a grey view.
        blur: Probability of Gaussian blur.
        sigma: Smallest and largest standard deviation of the blur, in pixels of the view.

    ``ds.batches(crop="random")`` returns the same crops: boxes as torchvision's RandomResizedCrop
    chooses them, resized as by Pillow; floats are resized in 16 bits. Colours change in the order
    of the arguments. Values are clipped once, at the end.

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
            is_valid = y.ndim > 0 and len(y) == len(images)
            _check_array("shape of y", y.shape, is_valid, f"({len(images)}, ...), as x")
        per_class = check_int("examples_per_class", examples_per_class, 1)
        views = self.views
        if views is None:
            views = 1 if _is_complete(y, per_class) else per_class
        step, row = check_int("step", step, 0, 2**64 - 1), check_int("row", row, 0)
        out = self._crop(images, views, step, row)
        self._change(out, _chances(self.seed, step, row * views, len(out)))
        y = None if y is None else y.repeat(views, 0)
        return out.reshape(out.shape[: np.ndim(x)]), y

    def _crop(self, images: NDArray[Any], views: int, step: int, row: int) -> NDArray[Any]:
        """Return the views of images, cropped and resized."""
        count, height, width, channels = images.shape
        size = (height, width) if self.size is None else parse_size(self.size)
        if self.crop is None and size == (height, width):
            return images.repeat(views, 0)
        is_float, dtype = images.dtype != np.uint8, np.result_type(images, np.float32)
        spec = _core.ImageSpec(
            size=size,
            channels=channels,
            is_deep=is_float,
            crop="squash" if self.crop is None else "random",
            scale=self.crop or (1, 1),
            ratio=self.ratio,
            views=views,
            max_pixels=height * width,
        )
        pixels = np.ascontiguousarray(images, dtype if is_float else None)
        if is_float:
            pixels = (pixels * _WHITE + 0.5).astype(np.uint16)
        out = np.empty((count, views, *size, channels), pixels.dtype)
        for number, (image, into) in enumerate(zip(pixels, out, strict=True)):
            fault = spec.frame(image, (height, width), list(into), self.seed, step, row + number)
            if fault is not None:
                raise MemoryError("there is not enough memory to resize an image")
        out = out.reshape(-1, *out.shape[2:])
        if is_float:
            out = np.divide(out, _WHITE, dtype=dtype).astype(images.dtype, copy=False)
        return out

    def _change(self, out: NDArray[Any], chances: dict[str, NDArray[Any]]) -> None:
        """Flip, blur and colour views in place."""
        is_flipped = chances["flip"] < self.flip
        out[is_flipped] = out[is_flipped, :, ::-1]
        _, height, width, channels = out.shape
        dtype = np.result_type(out, np.float32)
        is_blurred, sigma = chances["blur"] < self.blur, _between(self.sigma, chances["sigma"])
        is_coloured, colours, share = self._colours(channels, chances)
        # Conversion to integers truncates; adding 0.5 rounds.
        half, white = (0.5, 255) if out.dtype == np.uint8 else (0, 1)
        changed = np.flatnonzero(is_blurred | is_coloured)
        chunk = max(1, _CHUNK_VALUES // (channels * height * width))
        for begin in range(0, len(changed), chunk):
            rows = changed[begin : begin + chunk]
            planes = np.ascontiguousarray(out[rows].transpose(0, 3, 1, 2), dtype)
            blurred = is_blurred[rows]
            if blurred.any():
                planes[blurred] = self._blur(planes[blurred], sigma[rows[blurred]])
            pixels = planes.reshape(len(rows), channels, height * width)
            grey = (pixels.mean(2) @ _LUMA[channels]) * share[rows]
            pixels = _multiply(colours[rows].astype(dtype), pixels)
            pixels += (grey + half).astype(dtype)[:, np.newaxis, np.newaxis]
            np.clip(pixels, 0, white + half, out=pixels)
            out[rows] = pixels.reshape(planes.shape).transpose(0, 2, 3, 1)

    def _blur(self, planes: NDArray[Any], sigma: NDArray[Any]) -> NDArray[Any]:
        """Return planes of shape (images, channels, height, width), blurred by a Gaussian.

        It is truncated at 4 sigma, and edge values are extended outwards.
        """
        sides = {}
        for size in set(planes.shape[2:]):
            reach = max(int(4 * self.sigma[1] + 0.5), size)
            offsets = np.arange(-reach, reach + 1)
            bell = np.exp(-0.5 * (offsets / np.maximum(sigma, 1e-3)[:, np.newaxis]) ** 2)
            bell *= abs(offsets) <= 4 * sigma[:, np.newaxis] + 0.5
            bell /= bell.sum(1, keepdims=True)
            below, positions = bell.cumsum(1), np.arange(size)
            side = bell.astype(planes.dtype)[:, reach + positions - positions[:, np.newaxis]]
            side[:, :, 0] += below[:, reach - positions - 1]
            side[:, :, -1] += 1 - below[:, reach + size - 1 - positions]
            sides[size] = side[:, np.newaxis]
        down, across = (sides[size] for size in planes.shape[2:])
        return _multiply(_multiply(down, planes), np.ascontiguousarray(across.swapaxes(2, 3)))

    def _colours(
        self, channels: int, chances: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.bool_], NDArray[Any], NDArray[Any]]:
        """Return which views change, their matrices, and the factors of their mean brightness."""
        is_changed, is_grey = chances["jitter"] < self.jitter, chances["grayscale"] < self.grayscale
        brightness, contrast, saturation, turn = (
            is_changed * _between((-getattr(self, name), getattr(self, name)), chances[name])
            for name in ("brightness", "contrast", "saturation", "hue")
        )
        brightness, saturation, turn = 1 + brightness, (1 + saturation) * ~is_grey, 2 * np.pi * turn
        same = np.eye(channels)
        colour = same - np.outer(np.ones(channels), _LUMA[channels])
        matrices = same + np.multiply.outer(saturation * np.cos(turn) - 1, colour)
        matrices += np.multiply.outer(saturation * np.sin(turn), _TURN[channels])
        matrices *= (brightness * (1 + contrast))[:, np.newaxis, np.newaxis]
        return is_changed | is_grey, matrices, -contrast * brightness


def _multiply(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return ``a @ b``, computed in blocks."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    wide = min(columns, max(64, _MAX_SERIAL_PRODUCT // (rows * inner)))
    tall = max(1, _MAX_SERIAL_PRODUCT // (inner * wide))
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out: NDArray[Any] = np.empty((*stack, rows, columns), a.dtype)
    for left in range(0, columns, wide):
        across = slice(left, left + wide)
        for top in range(0, rows, tall):
            down = slice(top, top + tall)
            np.matmul(a[..., down, :], b[..., across], out=out[..., down, across])
    return out


def _check(name: str, value: Any, low: float, high: float, *, pair: bool = False) -> None:
    bounds = value if pair else (value, value)
    is_valid = isinstance(bounds, (tuple, list)) and len(bounds) == 2
    is_valid = is_valid and all(isinstance(bound, (int, float, np.number)) for bound in bounds)
    if not is_valid or not low <= bounds[0] <= bounds[1] <= high:
        kind = "a pair (smallest, largest)" if pair else "a number"
        raise PlanError(option=name, found=value, allowed=f"{kind} from {low:g} to {high:g}")


def _images(x: Any) -> NDArray[Any]:
    try:
        images = np.asarray(x)
    except (NotImplementedError, RuntimeError, TypeError) as error:  # symbolic, or on a GPU
        raise ValueError(
            f"x is a {type(x).__module__}.{type(x).__name__} that is not an array of numpy; pass "
            f"the augmenter to ds.batches(augmenter=...) or to a sampler: {error}"
        ) from None
    shaped = images[..., np.newaxis] if images.ndim == 3 else images
    is_valid = shaped.ndim == 4 and shaped.shape[3] in (1, 3) and 0 not in shaped.shape[1:]
    allowed = "(images, height, width, channels) with 1 or 3 channels, or (images, height, width)"
    _check_array("shape of x", images.shape, is_valid, allowed)
    is_valid = images.dtype in (np.uint8, np.float16, np.float32, np.float64)
    _check_array("dtype of x", str(images.dtype), is_valid, "uint8 or float")
    if images.dtype != np.uint8 and images.size:
        low, high = images.min(), images.max()
        remedy = "divide by 255 if white is 255, and normalise after the augmenter"
        found, is_valid = (float(low), float(high)), low >= 0 and high <= 1
        _check_array("range of x", found, is_valid, "from 0 to 1", remedy=remedy)
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
    columns = np.ascontiguousarray(numbers.T)[_FIRST_NUMBER:]
    return dict(zip(_CHANCES, columns, strict=False))


def _between(bounds: Sequence[float], chance: NDArray[Any]) -> NDArray[Any]:
    low, high = bounds
    return low + (high - low) * chance
