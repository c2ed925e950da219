"""How values of a feature are displayed and compared."""

from __future__ import annotations

from covey.dataset.pictures import pixels_shape
from covey.schema import Audio, ClassLabel, Feature, Image, Ragged, Sparse
from covey.schema.columns import STRINGS


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
