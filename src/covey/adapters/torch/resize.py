"""Crops and resizing of many images at once, as products with matrices of weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

# Maximum size of the images that are resized at once, as floats and with padding.
_MAX_BYTES = 256 << 20


def resize(
    images: Sequence[torch.Tensor],
    boxes: NDArray[np.int64],
    flips: NDArray[np.bool_],
    size: tuple[int, int],
) -> torch.Tensor:
    """Return parts of images, resized with bilinear interpolation, antialiased.

    The result is within 1 level of Pillow's ``resize`` of the part. On a GPU the products are
    computed in float16 with sums in float32, which is exact to 1/4 level.

    Args:
        images: Images of uint8, (channels, height, width), on one device.
        boxes: The part of each image: top, left, bottom, right.
        flips: Whether each part is mirrored horizontally.
        size: Height and width of the result.

    Returns:
        A tensor of uint8, (rows, height, width, channels).
    """
    first = images[0]
    is_same = len({each.shape for each in images}) == 1
    is_complete = bool((boxes == (0, 0, *first.shape[1:])).all()) and not flips.any()
    if is_same and is_complete and tuple(first.shape[1:]) == size:
        return torch.stack(list(images)).permute(0, 2, 3, 1).contiguous()
    dtype = torch.float16 if first.is_cuda else torch.float32
    # Images of similar size are padded to the same size.
    order = sorted(range(len(images)), key=lambda row: images[row].shape[1:])
    out = torch.empty((len(images), *size, first.shape[0]), dtype=torch.uint8, device=first.device)
    begin = 0
    while begin < len(order):
        rows, begin = _next_group(images, order, begin, dtype.itemsize)
        padded = _pad([images[row] for row in rows], dtype)
        top, left, bottom, right = boxes[rows].T
        down = _weights(top, bottom, padded.shape[2], size[0], padded)
        across = _weights(left, right, padded.shape[3], size[1], padded, flips[rows])
        narrow = padded @ across.transpose(1, 2)[:, None]
        resized = (down[:, None] @ narrow).float().round_().clamp_(0, 255)
        out[rows] = resized.to(torch.uint8).permute(0, 2, 3, 1)
    return out


def _next_group(
    images: Sequence[torch.Tensor], order: list[int], begin: int, itemsize: int
) -> tuple[list[int], int]:
    """Return rows of bounded size after padding, and where the next ones begin."""
    height = width = 0
    end = begin
    while end < len(order):
        channels, own_height, own_width = images[order[end]].shape
        height, width = max(height, own_height), max(width, own_width)
        nbytes = (end - begin + 1) * channels * height * width * itemsize
        if end > begin and nbytes > _MAX_BYTES:
            break
        end += 1
    return order[begin:end], end


def _pad(images: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return images as one tensor of floats, with zeros at the bottom and on the right."""
    if len({each.shape for each in images}) == 1:
        return torch.stack(images).to(dtype)
    channels = images[0].shape[0]
    height = max(each.shape[1] for each in images)
    width = max(each.shape[2] for each in images)
    shape = len(images), channels, height, width
    padded = torch.zeros(shape, dtype=dtype, device=images[0].device)
    for place, each in zip(padded, images, strict=True):
        place[:, : each.shape[1], : each.shape[2]] = each
    return padded


def _weights(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    length: int,
    size: int,
    like: torch.Tensor,
    flips: NDArray[np.bool_] | None = None,
) -> torch.Tensor:
    """Return the weights of the pixels in each pixel of the result, (rows, size, length).

    Args:
        begins: First pixel of each part.
        ends: End of each part.
        length: Number of pixels.
        size: Number of pixels of the result.
        like: A tensor of the dtype and on the device of the result.
        flips: Whether the order of each part is reversed.
    """
    bounds = torch.from_numpy(np.stack([begins, ends]).astype(np.float32)).to(like.device)
    begin, end = bounds[:, :, None, None]
    scale = (end - begin) / size
    target = torch.arange(size, device=like.device, dtype=torch.float32)[:, None] + 0.5
    source = torch.arange(length, device=like.device, dtype=torch.float32) + 0.5
    # The triangle filter, as wide as a pixel of the result if the part is reduced.
    distance = (source - (begin + target * scale)).abs() / scale.clamp(min=1)
    weights: torch.Tensor = (1 - distance).clamp_(min=0)
    weights *= (source > begin) & (source < end)
    weights /= weights.sum(2, keepdim=True)
    if flips is not None and flips.any():
        flipped = torch.from_numpy(flips).to(like.device)[:, None, None]
        weights = torch.where(flipped, weights.flip(1), weights)
    return weights.to(like.dtype)
