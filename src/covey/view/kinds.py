"""How values of a feature are displayed and compared."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.schema import Audio, ClassLabel, Feature, Image, Ragged, Sparse, Tensor
from covey.schema.columns import STRINGS
from covey.view.pictures import pixels_shape

# The most that zlib compresses.
_MAX_EXPANSION = 1032


def decoded_sizes(dataset: Dataset, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return upper bounds of the sizes of decoded records, except images, in bytes.

    A compressed tensor has the size of its shape; without one, it may expand a thousandfold.
    """
    sizes = dataset.raw.lengths(ids)
    for feature in dataset.features.values():
        if isinstance(feature, Tensor) and str(feature.encoding).startswith("zlib"):
            if None in feature.shape:
                return dataset.raw.lengths(ids) * _MAX_EXPANSION
            sizes = sizes + math.prod(each or 0 for each in feature.shape) * 8
    return sizes


def feature_kind(feature: Feature) -> str:
    """Return how values of a feature are displayed."""
    match feature:
        case Image():
            return "image"
        case ClassLabel():
            return "class"
        case Audio():
            return "audio"
        case Ragged():
            return "ragged"
        case Sparse():
            return "sparse"
    if pixels_shape(feature) is not None:
        return "image"
    if getattr(feature, "shape", ()):
        return "array"
    dtype = getattr(feature, "dtype", "")
    if dtype in STRINGS:
        return "string" if dtype == "str" else "bytes"
    return "number"


def operators_of(feature: Feature) -> tuple[str, ...]:
    """Return the operators of a search that a feature has; none for an image."""
    if isinstance(feature, Image):
        return ()
    if isinstance(feature, ClassLabel):
        return ("equals", "contains", "less", "greater")
    if getattr(feature, "dtype", "") in STRINGS:
        return ("contains", "equals")
    is_float = str(getattr(feature, "dtype", "")).startswith("float")
    return ("equals", "less", "greater", *(("nan",) if is_float else ()))
