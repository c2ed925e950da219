"""Columns of the rows that ``transform=`` returned, and padding of ragged columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray, StringArray
from covey.errors import FeatureError, check
from covey.loader.options import LoadOptions
from covey.schema import Features, Ragged, Sparse, Steps, Tensor
from covey.schema.codec import flat_items, nest
from covey.schema.types import Feature

LENGTH_SUFFIX = "_length"
"""Suffix of the feature that has the lengths of a padded feature."""

Locate = Callable[[int], dict[str, Any]]
"""Function that returns the fields of an error in a row."""

Path = tuple[str, ...]

# Values that are not converted to arrays: a column of them is a list.
_ROW_TYPES = (str, bytes, RaggedArray, SparseArray)


def stack(rows: Sequence[Any], locate: Locate, path: Path = ()) -> Any:
    """Return the examples of a batch as columns, with the structure of the first one.

    A column is an array if all rows have the same shape, otherwise a list.

    Args:
        rows: Dicts of values, or values.
        locate: Returns the location of a row, for errors.
        path: Names of the dicts that contain the values.

    Raises:
        FeatureError: If a value cannot be a row of a batch, or differs in structure.

    >>> stack([{"size": 1, "name": "a"}, {"size": 2, "name": "b"}], lambda row: {"row": row})
    {'size': array([1, 2]), 'name': ['a', 'b']}
    """
    values: list[Any] = []
    for row, each in enumerate(rows):
        allowed = "an array, a number, a string or a dict of features with strings as names"
        remedy = "" if path else "to add values, return a dict: {**example, 'name': value}"
        value, cause = None, None
        try:
            value = _as_row(each, is_x=not path)
        except Exception as error:  # of any library
            cause = error
        if value is not None and values and _structure(value) != _structure(values[0]):
            value, allowed, remedy = None, f"{describe(rows[0])}, as in the first row", ""
        if value is None:
            raise FeatureError(
                **locate(row),
                feature="/".join(path) or None,
                option="result of transform",
                found=describe(each),
                allowed=allowed,
                remedy=remedy,
            ) from cause
        values.append(value)
    first = values[0]
    if isinstance(first, Mapping):
        return {key: stack([each[key] for each in values], locate, (*path, key)) for key in first}
    if isinstance(first, np.ndarray) and len({each.shape for each in values}) == 1:
        return np.stack(values)
    return list(rows)


def _as_row(value: Any, *, is_x: bool) -> Any:
    """Return a value as an array unless it is a dict or a row; None if it cannot be a row."""
    if isinstance(value, Mapping):
        return value if all(isinstance(name, str) for name in value) else None
    if isinstance(value, _ROW_TYPES):
        return value
    # Tensors and pictures of other libraries are arrays. A tuple may be (x, y), or views.
    array = np.asarray(None if is_x and isinstance(value, tuple) else value)
    is_text = array.ndim > 0 and all(isinstance(each, (str, bytes)) for each in array.flat)
    return array if array.dtype.kind in "biufcUS" or is_text else None


def _structure(value: Any) -> Any:
    """Return what the rows of a column have in common."""
    return value.keys() if isinstance(value, Mapping) else type(value)


def describe(value: Any) -> str:
    """Return a short description of a value.

    >>> describe((np.zeros((2, 3), np.float32), 1))
    'tuple of (float32 array of shape (2, 3), int)'
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    if isinstance(value, Mapping):
        return f"dict of {', '.join(map(repr, value)) or 'nothing'}"
    name = type(value).__name__
    if not isinstance(value, (tuple, list)):
        return name
    return f"{name} of ({', '.join(map(describe, value[:4]))}{', ...' if len(value) > 4 else ''})"


class Padding:
    """Replaces ragged columns of a batch by arrays of one shape and the lengths of their rows.

    Args:
        features: The decoded features.
        names: The features of x.
        options: The options `pad`, `pad_length`, `pad_lengths` and `truncate`, and whether there is
            a transform, which may return other features.
        extra: Number of values that are added to the longest row, if its length is not given: a
            dimension that changes with it is not fixed.

    Raises:
        FeatureError: If there is no such ragged feature.
    """

    def __init__(
        self, features: Features, names: tuple[str, ...], options: LoadOptions, extra: int = 0
    ) -> None:
        self._options = options
        self._extra = extra
        pad, lengths, has_transform = options.pad, options.pad_length, options.transform is not None
        ragged = [name for name in names if _is_ragged(features[name])]
        self._is_named = isinstance(pad, Mapping)
        values = dict.fromkeys(ragged, 0 if pad is True else pad)
        if isinstance(pad, Mapping):
            values = dict(pad)
        remedy = "name the features that transform= returns: pad={'name': 0}"
        reason = f"none of the features {', '.join(names)} is ragged"
        _check("pad", pad, values, "None", reason=reason, remedy=remedy if has_transform else "")
        # The features that a transform returns are known only if they are named.
        known = values if has_transform else ragged
        for option, given, each in (("pad", pad, known), ("pad_length", lengths, values)):
            listed = ", ".join(map(repr, each))
            allowed = f"a dict of the ragged features {listed}" if listed else "None"
            for name in given if isinstance(given, Mapping) else ():
                _check(option, given, name in each, allowed, feature=name)
        self._padded: dict[Path, tuple[Any, int | None]] = {}
        for name, value in values.items():
            path = features.path_of(name) if name in features else tuple(name.split("/"))
            length = lengths.get(name) if isinstance(lengths, Mapping) else lengths
            self._padded[path] = value, length

    @property
    def is_open(self) -> bool:
        """Whether the length of a feature is that of the longest row of a batch."""
        return any(length is None for _, length in self._padded.values())

    def apply(self, columns: Mapping[str, Any], locate: Locate) -> dict[str, Any]:
        """Return columns with padded features, and their lengths if they are requested.

        Args:
            columns: The nested columns of a batch.
            locate: Returns the location of a row, for errors.

        Raises:
            FeatureError: If a feature cannot be padded, or not with that value.
        """
        flat = dict(flat_items(columns))
        for path, (value, length) in self._padded.items():
            name, length_path = "/".join(path), (*path[:-1], f"{path[-1]}{LENGTH_SUFFIX}")
            if path not in flat:
                if not self._is_named:  # the transform removed it from all examples
                    continue
                remedy = "return it, or do not name it in pad="
                raise FeatureError("transform did not return it", feature=name, remedy=remedy)
            flat[path], lengths = self._pad(name, flat[path], value, length, locate)
            if self._options.pad_lengths and length_path in flat:
                raise FeatureError(
                    f"it is the name of the lengths of {name!r}",
                    feature="/".join(length_path),
                    remedy="pass pad_lengths=False, or select= other features, or pad= others",
                )
            if self._options.pad_lengths:
                flat[length_path] = lengths
        return nest(flat)

    def _pad(
        self, name: str, column: Any, value: Any, length: int | None, locate: Locate
    ) -> tuple[Any, NDArray[np.int64]]:
        rows = _as_ragged(column)
        if rows is None:
            raise FeatureError(
                "only rows that differ in their first dimension alone are padded",
                feature=name,
                option="pad",
                remedy="name the features to pad: pad={'name': 0}",
            )
        dtype = rows.values.dtype.name if isinstance(rows.values, np.ndarray) else "str"
        if dtype == "str" and not self._is_named:
            value = ""
        is_valid, allowed = _is_value(value, dtype), f"a value of {dtype}"
        _check("pad", value, is_valid, "''" if dtype == "str" else allowed, feature=name)
        lengths = rows.row_lengths
        longest = int(lengths.max(initial=0))
        if length is None:
            length = longest + self._extra
        elif longest > length:
            if not self._options.truncate:
                _check(
                    "pad_length",
                    length,
                    False,
                    f"an integer >= {longest}",
                    reason=f"the row has {longest} items, the most of this batch",
                    feature=name,
                    remedy="pass truncate=True to drop the items that follow",
                    **locate(int(np.argmax(lengths))),
                )
            lengths = np.minimum(lengths, length)
        return rows.pad(value, length), lengths


_check = partial(check, error=FeatureError)


def _is_ragged(feature: Feature) -> bool:
    """Return whether the values of a feature have different shapes."""
    if isinstance(feature, Tensor):
        return None in feature.shape
    return isinstance(feature, (Ragged, Sparse, Steps))


def _is_value(value: Any, dtype: str) -> bool:
    """Return whether a padding value is a value of a dtype."""
    if dtype == "str":
        return isinstance(value, str) and value == ""
    given = np.asarray(value)
    if given.ndim or given.dtype.kind not in ("biu" if dtype == "bool" else "iuf"):
        return False
    with np.errstate(all="ignore"):
        stored = given.astype(dtype)
    # A number is rounded to a float, but must not become infinite.
    is_float = stored.dtype.kind == "f"
    return bool(np.isfinite(stored) == np.isfinite(given) if is_float else stored == given)


def _as_ragged(column: Any) -> RaggedArray | None:
    """Return a column as ragged rows; None if they differ in other dimensions."""
    if isinstance(column, RaggedArray):
        is_plain = column.row_shapes is None and not isinstance(column.values, RaggedArray)
        return column if is_plain else None
    rows: list[Any] = list(column)
    if not any(isinstance(each, _ROW_TYPES) for each in rows):
        rows = [np.asarray(each) for each in rows]
    is_valid = all(isinstance(each, np.ndarray) and each.ndim for each in rows)
    if not is_valid or len({each.shape[1:] for each in rows}) != 1:
        return None
    splits = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(each) for each in rows], out=splits[1:])
    values: Any = np.concatenate(rows)
    if values.dtype.kind in "OUS":
        if values.ndim > 1:
            return None
        values = StringArray.of(values.tolist())
    return RaggedArray(values, splits)
