"""Columns of encoded images, decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from covey.errors import FeatureError
from covey.features import Features, Image


def decode_images(features: Features, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The same columns with images as pixels: one array if all have one shape, else a list."""
    nested = dict(columns)
    for name, feature in features.items():
        if not isinstance(feature, Image):
            continue
        *parents, last = features.path_of(name)
        place = nested
        for parent in parents:
            place[parent] = dict(place[parent])
            place = place[parent]
        place[last] = _decode(name, feature, place[last])
    return nested


def _decode(name: str, feature: Image, encoded: Any) -> Any:
    images = []
    for row, each in enumerate(encoded):
        try:
            images.append(feature.decode(bytes(each)))
        except FeatureError as error:
            raise FeatureError(f"feature {name!r}: image {row} of these: {error}") from None
    if len({(image.shape, image.dtype) for image in images}) == 1:
        return np.stack(images)
    return images
