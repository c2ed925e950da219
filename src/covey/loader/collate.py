"""Examples that ``transform=`` returned: the check of their structure, and their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from covey.arrays import RaggedArray, SparseArray
from covey.errors import FeatureError

Structure = Any
"""Structure of an example: nested dicts, with the kind of each value."""

MAX_DEPTH = 16

_ALLOWED = "a dict of features, or one array, number or string"
_ALLOWED_VALUE = "an array, a number, a string or a dict"
# Values that are not converted to arrays.
_KINDS = {str: "str", bytes: "bytes", RaggedArray: "ragged", SparseArray: "sparse"}

ROW_TYPES = tuple(_KINDS)
"""Types of values that are not converted to arrays: a column of them is a list."""

Locate = Callable[[int], dict[str, Any]]
"""Function that returns the fields of an error in a row."""


def structure_of(result: Any, path: tuple[str, ...] = ()) -> Structure:
    """Return the structure of an example that a transform returned.

    Raises:
        FeatureError: If the example, or a value of it, cannot be a row of a batch.

    >>> structure_of({"image": np.zeros((8, 8)), "crop": {"top": 3, "name": "a"}})
    {'image': 'array', 'crop': {'top': 'array', 'name': 'str'}}
    """
    if isinstance(result, np.ndarray) and result.dtype.kind in "biufcUS":
        return "array"
    for kind, name in _KINDS.items():
        if isinstance(result, kind):
            return name
    if isinstance(result, Mapping):
        if len(path) > MAX_DEPTH:
            raise FeatureError(f"transform returned more than {MAX_DEPTH} levels of dicts")
        for key in result:
            if not isinstance(key, str):
                raise _invalid(path, f"dict with the key {key!r}", "a dict whose keys are strings")
        return {key: structure_of(value, (*path, key)) for key, value in result.items()}
    # Tensors and pictures of other libraries are arrays. A tuple may be (x, y), or several views.
    if path or not isinstance(result, tuple):
        try:
            array = np.asarray(result)
        except (TypeError, ValueError):  # a list of rows of different lengths
            array = None
        if array is not None and _is_valid(array):
            return "array"
    raise _invalid(path, describe(result), _ALLOWED_VALUE if path else _ALLOWED)


def _is_valid(array: np.ndarray[Any, Any]) -> bool:
    if array.dtype != object:
        return array.dtype.kind in "biufcUS"
    return array.ndim > 0 and all(isinstance(each, (str, bytes)) for each in array.flat)


def _invalid(path: tuple[str, ...], found: str, allowed: str) -> FeatureError:
    return FeatureError(
        feature="/".join(path) or None,
        option="result of transform",
        found=found,
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
    is_short = len(value) <= 4
    items = [type(each).__name__ if isinstance(each, (tuple, list, Mapping)) else describe(each)
             for each in value[:4]]  # fmt: skip
    return f"{name} of ({', '.join(items)}{'' if is_short else ', ...'})"


def _outline(structure: Structure) -> str:
    if not isinstance(structure, dict):
        return str(structure)
    return f"dict of {', '.join(f'{key!r}: {_outline(each)}' for key, each in structure.items())}"


def _shape(value: Any) -> tuple[Any, ...]:
    """Return the shape of an array of any library; of other values ()."""
    try:
        return tuple(getattr(value, "shape", ()))
    except (TypeError, ValueError):
        return ()


def check_batch(batch: Any, step: int) -> None:
    """Check what ``batch_transform=`` returned: a batch has any structure, but is not None.

    Raises:
        FeatureError: If it is None, or a pair whose class ids are not those of its rows.
    """
    found, allowed = None, "a batch, such as (x, y)"
    if isinstance(batch, tuple) and len(batch) == 2:
        x, y = map(_shape, batch)
        # Rows may be the second dimension, as recurrent networks require.
        if not x or len(y) != 1 or y[0] in x[:2]:
            return
        found, allowed = describe(batch), "(x, y) with one class id for each row"
    elif batch is not None:
        return
    raise FeatureError(
        step=step,
        option="result of batch_transform",
        found=found,
        allowed=allowed,
        remedy="return the batch" if batch is None else "",
    )


class ResultCheck:
    """Checks the examples that a transform returns: all must have the same structure.

    Args:
        without_label: Function that returns a structure without the label; None if an example needs
            no other feature.
    """

    def __init__(self, without_label: Callable[[Structure], Structure] | None) -> None:
        self._without_label = without_label
        self._first: tuple[Structure, str] | None = None

    def __call__(self, result: Any, step: int, row: int) -> None:
        """Check an example.

        Raises:
            FeatureError: If it cannot be a row of a batch, or differs from the first example.
        """
        found = structure_of(result)
        if self._first is None:
            is_dict = isinstance(found, dict)
            if is_dict and self._without_label is not None and not self._without_label(found):
                raise _invalid((), describe(found), "a dict with a feature besides the label")
            # Threads may both set it: an example that differs from either is an error.
            self._first = found, f"step {step}, row {row}"
        expected, like = self._first
        if found != expected:
            raise FeatureError(
                option="result of transform",
                found=_outline(found),
                allowed=f"{_outline(expected)}, as in {like}",
                remedy="return the same features for all examples",
            )

    def collate(self, examples: Sequence[Any]) -> Any:
        """Return checked examples as columns.

        A column is an array if all rows have the same shape, otherwise a list.
        """
        first = examples[0]
        if isinstance(first, Mapping):
            return {key: self.collate([example[key] for example in examples]) for key in first}
        if isinstance(first, ROW_TYPES):
            return list(examples)
        arrays = [np.asarray(example) for example in examples]
        return np.stack(arrays) if len({array.shape for array in arrays}) == 1 else list(examples)
