"""Padding of ragged features: which features, with which value, and to which length."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, StringArray
from covey.errors import FeatureError
from covey.loader.collate import ROW_TYPES, Locate, describe
from covey.loader.options import LoadOptions
from covey.schema import Features, Ragged, Sparse, Steps, Tensor
from covey.schema.codec import flat_items, nest
from covey.schema.columns import STRINGS
from covey.schema.types import Feature

LENGTH_SUFFIX = "_length"
"""Suffix of the feature that has the lengths of a padded feature."""

Path = tuple[str, ...]


@dataclass(frozen=True)
class _PaddedFeature:
    """How one feature is padded."""

    name: str
    path: Path
    value: Any
    length: int | None

    @property
    def length_path(self) -> Path:
        return (*self.path[:-1], f"{self.path[-1]}{LENGTH_SUFFIX}")


class Padding:
    """Replaces ragged columns of a batch by arrays of one shape and the lengths of their rows.

    Args:
        features: The decoded features.
        names: Those of x.
        label: The label feature, or None.
        options: The options `pad`, `pad_length`, `pad_lengths` and `truncate`, and whether there is
            a transform, which may return other features.
        extra: Number of values that are added to the longest row, if its length is not given: a
            dimension that changes with it is not fixed.

    Raises:
        FeatureError: If a feature cannot be padded, or not with that value.
    """

    def __init__(
        self,
        features: Features,
        names: tuple[str, ...],
        label: str | None,
        options: LoadOptions,
        *,
        extra: int = 0,
    ) -> None:
        self._extra = extra
        self._truncate = options.truncate
        self._adds_lengths = options.pad_lengths
        self._is_partial = False
        self._padded: list[_PaddedFeature] = []
        has_transform = options.transform is not None
        if isinstance(options.pad, Mapping):
            values = dict(options.pad)
        else:
            # A transform may return other ragged features; their names are not known.
            self._is_partial = has_transform
            number = 0 if options.pad is True else options.pad
            ragged = [name for name in names if is_ragged(features[name])]
            values = {name: "" if _is_strings(features[name]) else number for name in ragged}
        if not values:
            raise FeatureError(
                f"none of the features {', '.join(names)} is ragged",
                option="pad",
                found=options.pad,
                allowed="None",
                remedy="name the features that transform= returns: pad={'name': 0}"
                if has_transform
                else "",
            )
        lengths = options.pad_length
        if isinstance(lengths, Mapping):
            _check_names("pad_length", lengths, list(values))
        if not has_transform:
            _check_names("pad", values, [each for each in names if is_ragged(features[each])])
        for name, value in values.items():
            if self._is_partial or not has_transform:  # else a transform may return another type
                _check_feature(name, features[name], value)
            path = features.path_of(name) if name in features else tuple(name.split("/"))
            length = lengths.get(name) if isinstance(lengths, Mapping) else lengths
            padded = _PaddedFeature(name, path, value, length)
            if self._adds_lengths and "/".join(padded.length_path) in (*names, label):
                raise FeatureError(
                    f"it is the name of the lengths of {name!r}",
                    feature="/".join(padded.length_path),
                    remedy="pass pad_lengths=False, or select= other features, or pad= others",
                )
            self._padded.append(padded)

    @property
    def is_open(self) -> bool:
        """Whether the length of a feature is that of the longest row of a batch."""
        return any(each.length is None for each in self._padded)

    def apply(self, columns: Mapping[str, Any], locate: Locate) -> dict[str, Any]:
        """Return columns with padded features, and their lengths if they are requested.

        Args:
            columns: The nested columns of a batch.
            locate: Returns the location of a row, for errors.
        """
        flat = dict(flat_items(columns))
        for feature in self._padded:
            if feature.path not in flat:
                if self._is_partial:  # the transform removed it from all examples
                    continue
                raise FeatureError(
                    "transform did not return it",
                    feature=feature.name,
                    remedy="return it, or do not name it in pad=",
                )
            if self._adds_lengths and feature.length_path in flat:
                raise FeatureError(
                    f"transform returned it; it is the name of the lengths of {feature.name!r}",
                    feature="/".join(feature.length_path),
                    remedy="return it under another name, or pass pad_lengths=False",
                )
            rows = _as_ragged(feature, flat[feature.path])
            flat[feature.path], lengths = self._pad(feature, rows, locate)
            if self._adds_lengths:
                flat[feature.length_path] = lengths
        if self._is_partial:
            _check_lists(flat)
        return nest(flat)

    def _pad(
        self, feature: _PaddedFeature, rows: RaggedArray, locate: Locate
    ) -> tuple[Any, NDArray[np.int64]]:
        lengths, length = rows.row_lengths, feature.length
        if length is None:
            length = int(lengths.max(initial=0)) + self._extra
        elif (lengths > length).any():
            if not self._truncate:
                row = int(np.argmax(lengths))
                raise FeatureError(
                    f"the row has {lengths[row]} items, the most of this batch",
                    **locate(row),
                    feature=feature.name,
                    option="pad_length",
                    found=length,
                    allowed=f"an integer >= {lengths[row]}",
                    remedy="pass truncate=True to drop the items that follow",
                )
            lengths = np.minimum(lengths, length)
        if isinstance(rows.values, np.ndarray):
            check_value(feature.name, feature.value, rows.values.dtype.name)
        return rows.pad(feature.value, length), lengths


def is_ragged(feature: Feature) -> bool:
    """Return whether the values of a feature have different shapes."""
    if isinstance(feature, Tensor):
        return None in feature.shape
    return isinstance(feature, (Ragged, Sparse, Steps))


def can_pad(feature: Feature) -> bool:
    """Return whether the values of a feature differ in their first dimension only."""
    if isinstance(feature, Tensor):
        return bool(feature.shape) and feature.shape[0] is None and None not in feature.shape[1:]
    return isinstance(feature, Steps) and None not in feature.shape


def _is_strings(feature: Feature) -> bool:
    return getattr(feature, "dtype", None) in STRINGS


def _check_names(option: str, given: Mapping[str, Any], allowed: list[str]) -> None:
    for name in given:
        if name not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise FeatureError(
                option=option,
                found=dict(given),
                feature=name,
                allowed=f"a dict of the ragged features {listed}" if listed else "None",
            )


def _check_feature(name: str, feature: Feature, value: Any) -> None:
    """Check that a feature of the dataset can be padded with a value."""
    if not can_pad(feature):
        raise FeatureError(
            "only features whose first dimension alone is unknown are padded",
            feature=name,
            remedy="name the features to pad: pad={'name': 0}",
        )
    check_value(name, value, str(getattr(feature, "dtype", "")))


def check_value(name: str, value: Any, dtype: str) -> None:
    """Check that a padding value is a value of a dtype.

    Raises:
        FeatureError: If it is not.
    """
    if dtype in STRINGS:
        is_valid, allowed = isinstance(value, str) and value == "", "''"
    elif dtype == "bool":
        is_valid, allowed = _is_in(value, 0, 1), "False or True"
    elif np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
        is_valid = not isinstance(value, (bool, np.bool_)) and _is_in(value, low, high)
        allowed = f"an integer from {low} to {high}"
    else:
        is_valid, allowed = _is_float(value, dtype), f"a number in the range of {dtype}"
    if not is_valid:
        raise FeatureError(
            f"the feature is {dtype}", feature=name, option="pad", found=value, allowed=allowed
        )


def _is_in(value: Any, low: int, high: int) -> bool:
    try:
        return low <= operator.index(value) <= high
    except TypeError:
        return False


def _is_float(value: Any, dtype: str) -> bool:
    if isinstance(value, (bool, np.bool_, str, bytes)) or np.ndim(value):
        return False
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not math.isfinite(number) or abs(number) <= float(np.finfo(dtype).max)


def _as_ragged(feature: _PaddedFeature, column: Any) -> RaggedArray:
    """Return a column, which a transform may have returned, as ragged rows."""
    if isinstance(column, RaggedArray):
        return column
    found = describe(column[0] if isinstance(column, list) else column)
    rows: list[Any] | NDArray[Any] = column
    if isinstance(column, list) and not any(isinstance(each, ROW_TYPES) for each in column):
        rows = [np.asarray(each) for each in column]
    is_valid = all(isinstance(each, np.ndarray) and each.ndim for each in rows)
    if is_valid and len({each.shape[1:] for each in rows}) == 1:
        splits = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(each) for each in rows], out=splits[1:])
        values = np.concatenate(list(rows))
        if values.dtype.kind not in "OUS":
            return RaggedArray(values, splits)
        if values.ndim == 1 and feature.value == "":
            return RaggedArray(StringArray.of(values.tolist()), splits)
    raise FeatureError(
        f"transform returned {found}, which cannot be padded with {feature.value!r}",
        feature=feature.name,
        option="pad",
        remedy="return an array whose first dimension alone differs between examples",
    )


def _check_lists(flat: Mapping[Path, Any]) -> None:
    """Reject columns of arrays of different shapes, which a transform returned."""
    for path, column in flat.items():
        if isinstance(column, list) and not isinstance(column[0], (str, bytes)):
            name = "/".join(path)
            raise FeatureError(
                "transform returned rows of different shapes, and it is not a ragged feature of "
                "the dataset",
                feature=name,
                option="pad",
                remedy=f"name the features to pad: pad={{{name!r}: 0}}",
            )
