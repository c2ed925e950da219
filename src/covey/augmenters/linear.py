"""What is done to images, as matrices: all of it is linear, until values are cut off.

An image is planes, (channels, height, width). To crop, scale, flip and blur it is a matrix from the
left, which mixes its rows, and one from the right, which mixes its columns; to change its colours
is a matrix that mixes its planes. There is one of each for every image of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

# How bright the channels look, and the colours as YIQ has them.
_LUMA = np.array([0.299, 0.587, 0.114])
_YIQ = np.array([_LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_QUARTER = np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]])  # turns I to Q

# Products of matrices up to this are computed by the thread that asks for them: it is one of many,
# and to wait for others, which are as busy, costs a hundred times as much.
_SMALL = 1 << 18


def multiply(a: Floats, b: Floats) -> Floats:
    """``a @ b``, a part of each at a time."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    wide = min(columns, max(64, _SMALL // (rows * inner)))
    tall = max(1, _SMALL // (inner * wide))
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out: Floats = np.empty((*stack, rows, columns), a.dtype)
    for left in range(0, columns, wide):
        across = slice(left, left + wide)
        for top in range(0, rows, tall):
            down = slice(top, top + tall)
            np.matmul(a[..., down, :], b[..., across], out=out[..., down, across])
    return out


@dataclass(frozen=True, eq=False)
class Resampling:
    """Values made of a stretch of others, for each image of a batch.

    Args:
        places, weights: Which of the others, and how much of them: (others, images, values) each.
        size: How many others there are.
    """

    places: NDArray[np.int64]
    weights: Floats
    size: int

    @classmethod
    def of(cls, begin: Floats, length: Floats, size: int, out_size: int) -> Resampling:
        """Between two values there is a straight line.

        Where a stretch has more values than are made of it, each is the mean of those around it,
        with weights that fall off to both sides.

        Args:
            begin, length: The stretch of each image.
            size: How many values an image has,
            out_size: and how many are made.
        """
        scale = (length / out_size)[:, np.newaxis]
        support = np.maximum(scale, 1)
        centre = begin[:, np.newaxis] + (np.arange(out_size) + 0.5) * scale
        first = np.floor(centre - support - 0.5).astype(np.int64) + 1
        taps = np.arange(int(np.ceil(2 * support.max(initial=1))))
        places = first + taps[:, np.newaxis, np.newaxis]
        weights = np.maximum(0, 1 - abs(places + 0.5 - centre) / support)
        weights *= (places >= 0) & (places < size)
        return cls(places.clip(0, size - 1), weights / weights.sum(0), size)

    def flipped(self, which: NDArray[np.bool_]) -> Resampling:
        """The same in the other direction, for some images."""
        chosen = which[:, np.newaxis]
        places = np.where(chosen, self.places[..., ::-1], self.places)
        return Resampling(
            places, np.where(chosen, self.weights[..., ::-1], self.weights), self.size
        )

    def matrices(self, images: slice, dtype: Any) -> Floats:
        """One for each of some images, (values, others)."""
        places, weights = self.places[:, images], self.weights[:, images]
        made = np.zeros((*places.shape[1:], self.size), dtype)
        image, value = np.arange(made.shape[0])[:, np.newaxis], np.arange(made.shape[1])
        for place, weight in zip(places, weights, strict=True):
            made[image, value, place] += weight
        return made


def blurring(sigma: Floats, most: float, size: int, dtype: Any) -> Floats:
    """Matrices that blur ``size`` values, (size, size) each; the first and the last go on outside.

    Args:
        sigma: The width of the bell of each image; it ends where four times that is.
        most: The largest that there can be.
    """
    reach = max(int(4 * most + 0.5), size)
    offsets = np.arange(-reach, reach + 1)
    sigma = sigma[:, np.newaxis]
    bell = np.exp(-0.5 * (offsets / np.maximum(sigma, 1e-3)) ** 2)
    bell *= abs(offsets) <= 4 * sigma + 0.5
    bell /= bell.sum(1, keepdims=True)
    below = bell.cumsum(1)
    places = np.arange(size)
    made = bell.astype(dtype)[:, reach + places - places[:, np.newaxis]]
    made[:, :, 0] += below[:, reach - places - 1]
    made[:, :, -1] += 1 - below[:, reach + size - 1 - places]
    return made


def luma(channels: int) -> Floats:
    """How much each channel has of the brightness."""
    return _LUMA if channels == 3 else np.ones(1)


def colouring(gain: Floats, saturation: Floats, turn: Floats, channels: int, dtype: Any) -> Floats:
    """Matrices that mix channels, (channels, channels) each.

    Args:
        gain: How much brighter each image becomes.
        saturation: How colourful; 0 is grey.
        turn: How far its hues are turned around, in YIQ; 1 is once round.
    """
    same = np.eye(channels)
    colour = same - np.outer(np.ones(channels), luma(channels))  # what is not brightness
    across = np.linalg.inv(_YIQ) @ _QUARTER @ _YIQ if channels == 3 else np.zeros((1, 1))
    along = saturation * np.cos(2 * np.pi * turn)
    aside = saturation * np.sin(2 * np.pi * turn)
    gain, along, aside = (each[:, np.newaxis, np.newaxis] for each in (gain, along, aside))
    mixed: Floats = (gain * (same + (along - 1) * colour + aside * across)).astype(dtype)
    return mixed
