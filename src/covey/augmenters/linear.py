"""Linear image operations as matrices.

An image has the shape (channels, height, width). Cropping, scaling, flipping and blurring multiply
it by a matrix from the left, for its rows, and from the right, for its columns; a change of colours
multiplies its channels by a matrix. Each image of a batch has its own matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]

# Luma coefficients, the conversion from RGB to YIQ, and a quarter turn of the hue.
_LUMA = np.array([0.299, 0.587, 0.114])
_YIQ = np.array([_LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_QUARTER = np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]])

# BLAS computes smaller products in the calling thread. Loader threads run in parallel already;
# waiting for BLAS threads would cost a hundred times as much.
_MAX_SERIAL_PRODUCT = 1 << 18


def multiply(a: Floats, b: Floats) -> Floats:
    """Return ``a @ b``, computed in blocks."""
    (rows, inner), columns = a.shape[-2:], b.shape[-1]
    wide = min(columns, max(64, _MAX_SERIAL_PRODUCT // (rows * inner)))
    tall = max(1, _MAX_SERIAL_PRODUCT // (inner * wide))
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
    """Linear interpolation of a range of values, for each image of a batch.

    Args:
        positions: Input positions of each output value, of shape (taps, images, values).
        weights: Weights of these positions, of the same shape.
        size: Number of input values.
    """

    positions: NDArray[np.int64]
    weights: Floats
    size: int

    @classmethod
    def of(cls, begin: Floats, length: Floats, size: int, out_size: int) -> Resampling:
        """Return the resampling of a range to `out_size` values, with a triangle filter.

        Args:
            begin: Begin of the range of each image.
            length: Length of the range of each image.
            size: Number of input values.
            out_size: Number of output values.
        """
        scale = (length / out_size)[:, np.newaxis]
        support = np.maximum(scale, 1)
        centre = begin[:, np.newaxis] + (np.arange(out_size) + 0.5) * scale
        first = np.floor(centre - support - 0.5).astype(np.int64) + 1
        taps = np.arange(int(np.ceil(2 * support.max(initial=1))))
        positions = first + taps[:, np.newaxis, np.newaxis]
        weights = np.maximum(0, 1 - abs(positions + 0.5 - centre) / support)
        weights *= (positions >= 0) & (positions < size)
        return cls(positions.clip(0, size - 1), weights / weights.sum(0), size)

    def flipped(self, which: NDArray[np.bool_]) -> Resampling:
        """Return the reversed resampling for the images `which`."""
        chosen = which[:, np.newaxis]
        positions = np.where(chosen, self.positions[..., ::-1], self.positions)
        return Resampling(
            positions, np.where(chosen, self.weights[..., ::-1], self.weights), self.size
        )

    def matrices(self, images: slice, dtype: Any) -> Floats:
        """Return the matrices of some images, each of shape (outputs, inputs)."""
        positions, weights = self.positions[:, images], self.weights[:, images]
        made = np.zeros((*positions.shape[1:], self.size), dtype)
        image, value = np.arange(made.shape[0])[:, np.newaxis], np.arange(made.shape[1])
        for position, weight in zip(positions, weights, strict=True):
            made[image, value, position] += weight
        return made


def blurring(sigma: Floats, max_sigma: float, size: int, dtype: Any) -> Floats:
    """Return matrices that blur `size` values; the edge values are extended outwards.

    Args:
        sigma: Standard deviation of the Gaussian of each image, which is truncated at 4 sigma.
        max_sigma: Upper bound of `sigma`.
        size: Number of values.
        dtype: Type of the matrices.
    """
    reach = max(int(4 * max_sigma + 0.5), size)
    offsets = np.arange(-reach, reach + 1)
    sigma = sigma[:, np.newaxis]
    bell = np.exp(-0.5 * (offsets / np.maximum(sigma, 1e-3)) ** 2)
    bell *= abs(offsets) <= 4 * sigma + 0.5
    bell /= bell.sum(1, keepdims=True)
    below = bell.cumsum(1)
    positions = np.arange(size)
    made = bell.astype(dtype)[:, reach + positions - positions[:, np.newaxis]]
    made[:, :, 0] += below[:, reach - positions - 1]
    made[:, :, -1] += 1 - below[:, reach + size - 1 - positions]
    return made


def luma(channels: int) -> Floats:
    """Return the luma coefficient of each channel."""
    return _LUMA if channels == 3 else np.ones(1)


def colouring(gain: Floats, saturation: Floats, turn: Floats, channels: int, dtype: Any) -> Floats:
    """Return colour matrices, each of shape (channels, channels).

    Args:
        gain: Brightness factor of each image.
        saturation: Saturation factor of each image; 0 is grey.
        turn: Rotation of the hue in YIQ, in turns.
        channels: Number of channels.
        dtype: Type of the matrices.
    """
    same = np.eye(channels)
    colour = same - np.outer(np.ones(channels), luma(channels))
    across = np.linalg.inv(_YIQ) @ _QUARTER @ _YIQ if channels == 3 else np.zeros((1, 1))
    along = saturation * np.cos(2 * np.pi * turn)
    aside = saturation * np.sin(2 * np.pi * turn)
    gain, along, aside = (each[:, np.newaxis, np.newaxis] for each in (gain, along, aside))
    mixed: Floats = (gain * (same + (along - 1) * colour + aside * across)).astype(dtype)
    return mixed
