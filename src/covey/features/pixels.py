"""Columns of encoded images, decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from covey.errors import ExampleError, FeatureError
from covey.features import Features, Image
from covey.features.explain import Place
from covey.features.images import import_pillow


def decode_images(
    features: Features, columns: Mapping[str, Any], place: Callable[[int], Place]
) -> dict[str, Any]:
    """The same columns with images as pixels: one array if all have one shape, else a list.

    Args:
        features: Of the columns.
        columns: With encoded images.
        place: Tells where the record of a row is, for messages.
    """
    import_pillow()  # says what is missing, which is no record's fault
    nested = dict(columns)
    for name, feature in features.items():
        if not isinstance(feature, Image):
            continue
        *parents, last = features.path_of(name)
        parent_of = nested
        for parent in parents:
            parent_of[parent] = dict(parent_of[parent])
            parent_of = parent_of[parent]
        parent_of[last] = _decode(name, feature, parent_of[last], place)
    return nested


def _decode(name: str, feature: Image, encoded: Any, place: Callable[[int], Place]) -> Any:
    if len(encoded) == 0 and None not in feature.shape:
        return np.zeros((0, *(size or 0 for size in feature.shape)), feature.dtype)
    images = []
    for row, each in enumerate(encoded):
        try:
            images.append(feature.decode(bytes(each)))
        except FeatureError as error:
            where = place(row)
            raise ExampleError(
                f"{where}: feature {name!r}: {error}",
                name=where.name,
                record=where.record,
                feature=name,
            ) from None
    if len({(image.shape, image.dtype) for image in images}) == 1:
        return np.stack(images)
    return images
