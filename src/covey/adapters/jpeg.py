"""Headers of many JPEGs at once, read with numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

# Images with more segments before the frame header are left to another decoder.
_MAX_SEGMENTS = 64

_START, _END, _SCAN, _ADOBE = 0xD8, 0xD9, 0xDA, 0xEE
# Frame headers of the baseline, extended sequential and progressive modes.
_FRAMES = (0xC0, 0xC1, 0xC2)
# Markers without a length.
_BARE = (0x01, *range(0xD0, 0xD8))


class JpegHeaders(NamedTuple):
    """Properties of images, one value each; 0 for data that is not a JPEG of a supported kind."""

    heights: Ints
    widths: Ints
    components: Ints
    """1 or 3: grayscale or YCbCr. Other color spaces are not supported."""


def read_headers(data: NDArray[np.uint8], offsets: Ints) -> JpegHeaders:
    """Return the headers of images that are concatenated in one buffer.

    The images advance by one segment per iteration, all at once::

        FF D8 | FF marker length(2) ... | ... | FF C0 length(2) bits height(2) width(2) components

    Args:
        data: The bytes of all images.
        offsets: Offset of each image, and the end of the last one.
    """
    rows = len(offsets) - 1
    found = np.zeros((3, rows), np.int64)
    is_adobe_rgb = np.zeros(rows, bool)
    if len(data) == 0:
        return JpegHeaders(*found)
    last = len(data) - 1

    def byte(positions: Ints) -> Ints:
        # A position after the end of an image is rejected later.
        return data[np.minimum(positions, last)].astype(np.int64)

    def two(positions: Ints) -> Ints:
        return byte(positions) << 8 | byte(positions + 1)

    begins, ends = offsets[:-1], offsets[1:]
    active = np.flatnonzero(
        (ends - begins >= 4) & (byte(begins) == 0xFF) & (byte(begins + 1) == _START)
    )
    at = begins[active] + 2
    for _ in range(_MAX_SEGMENTS):
        marker = byte(at + 1)
        is_fill = marker == 0xFF
        is_bare = np.isin(marker, _BARE)
        length = two(at + 2)
        next_at = at + np.where(is_fill, 1, np.where(is_bare, 2, 2 + length))
        is_valid = (byte(at) == 0xFF) & (at + 4 <= ends[active])
        is_valid &= (is_fill | is_bare | (length >= 2)) & ~np.isin(marker, (_START, _END, _SCAN))

        is_frame = is_valid & np.isin(marker, _FRAMES) & (next_at <= ends[active])
        here, frames = at[is_frame], active[is_frame]
        components = byte(here + 9)
        # The first component of an RGB image is named "R".
        is_known = (byte(here + 4) == 8) & ((components == 1) | (components == 3))
        is_known &= (length[is_frame] >= 8 + 3 * components) & (byte(here + 10) != ord("R"))
        found[:, frames] = np.where(is_known, [two(here + 5), two(here + 7), components], 0)

        # An Adobe segment with the transform 0 marks an RGB image.
        adobe = is_valid & (marker == _ADOBE) & (length >= 14)
        here = at[adobe]
        is_adobe_rgb[active[adobe]] |= (two(here + 4) == 0x4164) & (byte(here + 15) == 0)

        kept = is_valid & ~np.isin(marker, range(0xC0, 0xD0), assume_unique=False)
        kept |= is_valid & np.isin(marker, (0xC4, 0xC8, 0xCC))  # tables, not frames
        active, at = active[kept], next_at[kept]
        if len(active) == 0:
            break
    found[:, is_adobe_rgb & (found[2] == 3)] = 0
    found[:, (found[0] == 0) | (found[1] == 0)] = 0
    return JpegHeaders(*found)
