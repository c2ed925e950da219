"""Columns of the rows that ``transform=`` returned, and padding of ragged columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray, StringArray
from covey.errors import FeatureError, check
from covey.loader.options import LoadOptions
from covey.schema import Features, Ragged, Sparse, Steps, Tensor
from covey.schema.codec import flat_items, nest
from covey.schema.columns import STRINGS
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
    allowed = "an array, a number, a string or a dict"
    if not path:
        allowed = "a dict of features, or one array, number or string"
    structures, values = [], []
    for row, each in enumerate(rows):
        cause = None
        try:
            structure, value = _parse(each, is_x=not path)
        except Exception as error:  # of any library
            structure, cause = None, error
        if structure is None:
            raise _invalid(each, allowed, locate(row), path) from cause
        structures.append(structure)
        values.append(value)
        if structure != structures[0]:
            raise _invalid(each, f"{describe(rows[0])}, as in the first row", locate(row), path)
    first = values[0]
    if structures[0] is np.ndarray:
        same_shape = len({each.shape for each in values}) == 1
        return np.stack(values) if same_shape else list(rows)
    if not isinstance(first, Mapping):
        return list(rows)
    for key in first:
        if not isinstance(key, str):
            raise _invalid(first, "a dict whose keys are strings", locate(0), path)
    return {key: stack([each[key] for each in rows], locate, (*path, key)) for key in first}


def _parse(value: Any, *, is_x: bool) -> tuple[Any, Any]:
    """Return what all rows have in common, and the value, as an array unless it is a dict or a row.

    The first is None if the value cannot be a row of a column.
    """
    if not isinstance(value, np.ndarray):
        if isinstance(value, (dict, Mapping)):
            return value.keys(), value
        for kind in _ROW_TYPES:
            if isinstance(value, kind):
                return kind, value
        # Tensors and pictures of other libraries are arrays. A tuple may be (x, y), or views.
        value = np.asarray(None if is_x and isinstance(value, tuple) else value)
    is_valid = value.dtype.kind in "biufcUS"
    if value.dtype == object and value.ndim:
        is_valid = all(isinstance(each, (str, bytes)) for each in value.flat)
    return np.ndarray if is_valid else None, value


def _invalid(found: Any, allowed: str, location: dict[str, Any], path: Path = ()) -> FeatureError:
    return FeatureError(
        **location,
        feature="/".join(path) or None,
        option="result of transform",
        found=describe(found),
        allowed=allowed,
        remedy="" if path else "to add values, return a dict: {**example, 'name': value}",
    )


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
    items = [
        type(each).__name__ if isinstance(each, (tuple, list, Mapping)) else describe(each)
        for each in value[:4]
    ]
    return f"{name} of ({', '.join(items)}{'' if len(value) <= 4 else ', ...'})"


def check_batch(batch: Any, step: int) -> None:
    """Check what ``batch_transform=`` returned: a batch has any structure, but is not None.

    Raises:
        FeatureError: If it is None, or a pair whose class ids are not those of its rows.
    """
    allowed, is_valid = "a batch, such as (x, y)", batch is not None
    if isinstance(batch, tuple) and len(batch) == 2:
        x, y = (tuple(getattr(each, "shape", ())) for each in batch)
        # Rows may be the second dimension, as recurrent networks require.
        is_valid = not x or len(y) != 1 or y[0] in x[:2]
        allowed = "(x, y) with one class id for each row"
    if not is_valid:
        raise FeatureError(
            step=step,
            option="result of batch_transform",
            found=None if batch is None else describe(batch),
            allowed=allowed,
            remedy="return the batch" if batch is None else "",
        )


class Padding:
    """Replaces ragged columns of a batch by arrays of one shape and the lengths of their rows.

    Args:
        features: The decoded features.
        names: The features of x.
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
        extra: int = 0,
    ) -> None:
        self._options = options
        self._extra = extra
        pad, lengths, has_transform = options.pad, options.pad_length, options.transform is not None
        ragged = [name for name in names if _is_ragged(features[name])]
        # The features that a transform returns are known only if they are named.
        self._is_partial = has_transform and not isinstance(pad, Mapping)
        if isinstance(pad, Mapping):
            values = dict(pad)
        else:
            values = dict.fromkeys(ragged, 0 if pad is True else pad)
            values |= {name: "" for name in ragged if _dtype(features[name]) in STRINGS}
        remedy = "name the features that transform= returns: pad={'name': 0}"
        reason = f"none of the features {', '.join(names)} is ragged"
        _check("pad", pad, values, "None", reason=reason, remedy=remedy if has_transform else "")
        _check_names("pad", values, values if has_transform else ragged)
        if isinstance(lengths, Mapping):
            _check_names("pad_length", lengths, values)
        self._padded: dict[Path, tuple[Any, int | None]] = {}
        for name, value in values.items():
            path = features.path_of(name) if name in features else tuple(name.split("/"))
            if self._is_partial or not has_transform:  # else a transform may return another type
                _check_feature(name, features[name])
                _check_value(name, value, _dtype(features[name]))
            length = lengths.get(name) if isinstance(lengths, Mapping) else lengths
            self._padded[path] = value, length
            self._check_name_of_lengths(path, {*names, label})

    def _check_name_of_lengths(self, path: Path, names: Set[str | None]) -> None:
        name = "/".join(_length_path(path))
        if self._options.pad_lengths and name in names:
            raise FeatureError(
                f"it is the name of the lengths of {'/'.join(path)!r}",
                feature=name,
                remedy="pass pad_lengths=False, or select= other features, or pad= others",
            )

    @property
    def is_open(self) -> bool:
        """Whether the length of a feature is that of the longest row of a batch."""
        return any(length is None for _, length in self._padded.values())

    def apply(self, columns: Mapping[str, Any], locate: Locate) -> dict[str, Any]:
        """Return columns with padded features, and their lengths if they are requested.

        Args:
            columns: The nested columns of a batch.
            locate: Returns the location of a row, for errors.
        """
        flat = dict(flat_items(columns))
        names = {"/".join(path) for path in flat}
        for path, (value, length) in self._padded.items():
            name = "/".join(path)
            if path not in flat and self._is_partial:  # the transform removed it from all examples
                continue
            if path not in flat:
                remedy = "return it, or do not name it in pad="
                raise FeatureError("transform did not return it", feature=name, remedy=remedy)
            self._check_name_of_lengths(path, names)
            rows = _as_ragged(name, flat[path], value)
            flat[path], lengths = self._pad(name, rows, value, length, locate)
            if self._options.pad_lengths:
                flat[_length_path(path)] = lengths
        for path, column in flat.items() if self._is_partial else ():
            if isinstance(column, list) and not isinstance(column[0], (str, bytes)):
                name = "/".join(path)
                raise FeatureError(
                    "transform returned rows of different shapes, and it is not a ragged feature "
                    "of the dataset",
                    feature=name,
                    option="pad",
                    remedy=f"name the features to pad: pad={{{name!r}: 0}}",
                )
        return nest(flat)

    def _pad(
        self, name: str, rows: RaggedArray, value: Any, length: int | None, locate: Locate
    ) -> tuple[Any, NDArray[np.int64]]:
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
        if isinstance(rows.values, np.ndarray):
            _check_value(name, value, rows.values.dtype.name)
        return rows.pad(value, length), lengths


def _check(option: str, found: Any, ok: object, allowed: str, **fields: Any) -> None:
    check(option, found, ok, allowed, error=FeatureError, **fields)


def _length_path(path: Path) -> Path:
    return (*path[:-1], f"{path[-1]}{LENGTH_SUFFIX}")


def _dtype(feature: Feature) -> str:
    return str(getattr(feature, "dtype", ""))


def _is_ragged(feature: Feature) -> bool:
    """Return whether the values of a feature have different shapes."""
    if isinstance(feature, Tensor):
        return None in feature.shape
    return isinstance(feature, (Ragged, Sparse, Steps))


def _check_names(option: str, given: Mapping[str, Any], known: Sequence[str] | Any) -> None:
    listed = ", ".join(map(repr, known))
    allowed = f"a dict of the ragged features {listed}" if listed else "None"
    for name in given:
        _check(option, dict(given), name in known, allowed, feature=name)


def _check_feature(name: str, feature: Feature) -> None:
    """Check that the values of a feature differ in their first dimension only."""
    if isinstance(feature, Tensor):
        is_valid = feature.shape[:1] == (None,) and None not in feature.shape[1:]
    else:
        is_valid = isinstance(feature, Steps) and None not in feature.shape
    if not is_valid:
        raise FeatureError(
            "only features whose first dimension alone is unknown are padded",
            feature=name,
            remedy="name the features to pad: pad={'name': 0}",
        )


def _check_value(name: str, value: Any, dtype: str) -> None:
    """Check that a padding value is a value of a dtype."""
    is_valid, allowed = False, f"a value of {dtype}"
    if dtype in STRINGS:
        is_valid, allowed = isinstance(value, str) and value == "", "''"
    elif isinstance(value, (bool, int, float, np.generic)):
        given, kind = np.asarray(value), np.dtype(dtype).kind
        if given.dtype.kind in {"b": "biu", "f": "iuf"}.get(kind, "iu"):
            with np.errstate(all="ignore"):
                stored = given.astype(dtype)
            # A number is rounded to a float, but must not become infinite.
            same = np.isfinite(stored) == np.isfinite(given) if kind == "f" else stored == given
            is_valid = bool(same)
    _check("pad", value, is_valid, allowed, feature=name, reason=f"the feature is {dtype}")


def _as_ragged(name: str, column: Any, value: Any) -> RaggedArray:
    """Return a column, which a transform may have returned, as ragged rows."""
    if isinstance(column, RaggedArray):
        return column
    rows: list[Any] = list(column)
    if not any(isinstance(each, _ROW_TYPES) for each in rows):
        rows = [np.asarray(each) for each in rows]
    is_valid = all(isinstance(each, np.ndarray) and each.ndim for each in rows)
    if is_valid and len({each.shape[1:] for each in rows}) == 1:
        splits = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(each) for each in rows], out=splits[1:])
        values: NDArray[Any] = np.concatenate(rows)
        if values.dtype.kind not in "OUS":
            return RaggedArray(values, splits)
        if values.ndim == 1 and value == "":
            return RaggedArray(StringArray.of(values.tolist()), splits)
    raise FeatureError(
        f"transform returned {describe(rows[0])}, which cannot be padded with {value!r}",
        feature=name,
        option="pad",
        remedy="return an array whose first dimension alone differs between examples",
    )
