"""Columns of encoded images, decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.features import Features, Image
from covey.features.explain import Place, wrong_value
from covey.features.images import DEFAULT_MAX_PIXELS, import_pillow, read_pixels


def decode_images(
    features: Features,
    columns: Mapping[str, Any],
    place: Callable[[int], Place],
    *,
    size: tuple[int, int] | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> dict[str, Any]:
    """The same columns with images as pixels: one array if all have one shape, else a list.

    Args:
        features: Of the columns.
        columns: With encoded images.
        place: Tells where the record of a row is, for messages.
        size: Height and width that images are resized to; each column is one array then.
        max_pixels: The most pixels of an encoded image.
    """
    import_pillow()  # says what is missing, which is no record's fault
    size = None if size is None else parse_size(size)
    nested = dict(columns)
    for name, feature in features.items():
        if not isinstance(feature, Image):
            continue
        *parents, last = features.path_of(name)
        parent_of = nested
        for parent in parents:
            parent_of[parent] = dict(parent_of[parent])
            parent_of = parent_of[parent]
        parent_of[last] = _decode(name, feature, parent_of[last], place, size, max_pixels)
    return nested


def parse_size(size: Any) -> tuple[int, int]:
    """The height and width that somebody asks for, or one number for both.

    >>> parse_size(224), parse_size([32, 64])
    ((224, 224), (32, 64))
    """
    pair = size if isinstance(size, (tuple, list)) else (size, size)
    sound = [isinstance(each, (int, np.integer)) and 0 < each < 2**15 for each in pair]
    if sound != [True, True]:
        raise FeatureError(
            f"image_size is {size!r}, must be (height, width), each from 1 to {2**15 - 1}"
        )
    return int(pair[0]), int(pair[1])


def _decode(
    name: str,
    feature: Image,
    encoded: Any,
    place: Callable[[int], Place],
    size: tuple[int, int] | None,
    max_pixels: int,
) -> Any:
    shape = feature.shape if size is None else (*size, feature.shape[2])
    stacked = size is not None or None not in shape
    rows = len(encoded)
    if rows == 0 and stacked:
        return np.zeros((0, *(length or 0 for length in shape)), feature.dtype)
    # Made once an image has shown that the schema tells the truth.
    out: NDArray[Any] | None = None
    images: list[NDArray[Any]] = []
    for row, each in enumerate(encoded):
        try:
            if out is None:
                images.append(read_pixels(feature, bytes(each), size, max_pixels=max_pixels))
            else:
                found = read_pixels(feature, bytes(each), size, out[row], max_pixels=max_pixels)
                _check_channels(found, out)
        except FeatureError as error:
            raise wrong_value(error, name, place(row)) from None
        if row == 0 and rows > 1 and stacked:
            out = np.empty((rows, *images[0].shape), feature.dtype)
            out[0] = images[0]
    if out is not None:
        return out
    if rows == 1:
        return images[0][np.newaxis]
    return np.stack(images) if len({image.shape for image in images}) == 1 else images


def _check_channels(image: NDArray[Any], out: NDArray[Any]) -> None:
    """Make sure that an image was decoded into an array; all else about it was checked before."""
    found, expected = image.shape[2], out.shape[3]
    if found != expected:
        raise FeatureError(
            f"the image has {found} channels, the first one of the batch has {expected}; resized "
            f"images are one array: fix the channels, as in Image(shape=(None, None, {expected}))"
        )
