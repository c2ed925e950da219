"""Arguments of samplers: labels, class lists and slices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters import as_array
from covey.classes import ClassTable
from covey.errors import DatasetError, PlanError
from covey.samplers.rows import Rows


def labelled(x: Any, y: Any, load: Callable[[Any], Any] | None = None) -> tuple[Rows, NDArray[Any]]:
    """Examples and their labels, which are as they were given, in an array of one item a row."""
    rows = Rows(x, "x", load)
    given = [_value(each) for each in y] if isinstance(y, (list, tuple)) else y
    try:
        labels = as_array(given)
    except ValueError:  # lists of different lengths
        labels = np.zeros(())
    if labels.dtype.kind in "US" and given is not y:  # numpy makes texts of numbers beside them
        kinds = {type(each) for each in np.array(given, object).flat}
        if not kinds <= {str, np.str_, bytes, np.bytes_}:
            found = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise DatasetError(f"y has {found}; must be all whole numbers or all texts")
    if labels.ndim == 0 or labels.size != len(labels):
        raise DatasetError(
            f"y has the shape {labels.shape}, must have one label for each example, (examples,)"
        )
    if len(rows) != len(labels):
        raise DatasetError(
            f"x has {len(rows):,} examples and y has {len(labels):,}; must have the same"
        )
    return rows, labels


def classes_of(labels: NDArray[Any]) -> ClassTable:
    """Return the classes of labels. Floats must have integer values."""
    flat = labels.reshape(-1)
    if flat.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            whole = flat.astype(np.int64)
        wrong = np.flatnonzero(whole != flat)
        if len(wrong):
            raise DatasetError(
                f"y has {flat[wrong[0]]} for example {wrong[0]:,}, must be a whole number or a text"
            )
        flat = whole
    return ClassTable.parse(flat)


def parse_class_list(class_list: Iterable[Any] | None) -> list[Any] | None:
    """Classes, whatever kind of array or tensor they are in."""
    if class_list is None:
        return None
    if isinstance(class_list, (str, bytes)) or not isinstance(class_list, Iterable):
        raise PlanError(f"class_list is {class_list!r}, must be a list of classes")
    return [_label(_value(each)) for each in class_list]


def _value(item: Any) -> Any:
    """What a tensor of one holds; anything else as it is."""
    return item.numpy() if hasattr(item, "numpy") else item


def _label(value: Any) -> Any:
    """Return a class as an integer if its value is one, also as a float or a bool."""
    found = np.asarray(value)
    is_whole = found.size == 1 and found.dtype.kind in "biuf" and found.item() % 1 == 0
    return int(found.item()) if is_whole else value


def parse_slice(begin: int, size: int, there: int) -> tuple[int, int]:
    """The first of some examples, and the one behind the last."""
    begin, size = operator.index(begin), operator.index(size)
    end = there if size == -1 else begin + size
    if not 0 <= begin <= end <= there:
        raise PlanError(
            f"begin is {begin} and size is {size}, but there are {there:,} examples; begin + size "
            "must not be more"
        )
    return begin, end
