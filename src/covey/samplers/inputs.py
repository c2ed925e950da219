"""Examples in memory, by their numbers; nothing is copied but what a batch takes.

Arguments of samplers: labels, class lists and slices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.adapters import as_array
from covey.classes import ClassTable
from covey.errors import DatasetError, FeatureError, PlanError
from covey.loader.hooks import add_location

Ids = NDArray[np.int64]

# Kinds of numpy that are plain bytes: bool, whole and real and complex numbers.
_PLAIN = "biufc"


def is_in_memory(x: Any) -> bool:
    """Whether this is an array or a tensor, and not something that would be read to become one."""
    known = ("__array_interface__", "__dlpack__", "numpy", "to_numpy")
    return any(hasattr(x, name) for name in known)


class Rows:
    """The rows of what somebody has: an array, a tensor, or any other sequence.

    Args:
        x: It has a length, and items by number.
        name: What it is called in messages.
        load: What makes an example of an item.
    """

    def __init__(self, x: Any, name: str, load: Callable[[Any], Any] | None = None) -> None:
        if load is not None and not callable(load):
            raise FeatureError(
                option="load_example_fn", found=load, allowed="a function of an item"
            )
        if not hasattr(x, "__getitem__") or isinstance(x, (str, bytes, dict)):
            raise FeatureError(
                f"{name} is of type {type(x).__name__}; must be an array, a tensor, or a list"
            )
        self.items = as_array(x) if is_in_memory(x) else x
        if isinstance(self.items, np.ndarray) and self.items.ndim == 0:
            raise FeatureError(f"{name} is one value; must be examples, one after the other")
        self._load = load
        self._row_bytes = 0
        if isinstance(self.items, np.ndarray) and load is None:
            is_plain = self.items.dtype.kind in _PLAIN and self.items.flags.c_contiguous
            self._row_bytes = self.items[:1].nbytes if is_plain else 0

    def __len__(self) -> int:
        return len(self.items)

    def take(self, ids: Ids) -> Any:
        """The rows of these numbers, as one array."""
        if self._row_bytes:
            rows = np.empty((len(ids), *self.items.shape[1:]), self.items.dtype)
            _core.take_rows(self.items, self._row_bytes, ids, rows)
            return rows
        if isinstance(self.items, np.ndarray) and self._load is None:
            return self.items[ids]
        return _stack([self._row(number) for number in ids.tolist()])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return tuple(np.shape(self._row(0)))

    def _row(self, number: int) -> Any:
        item = self.items[number]
        if self._load is None:
            return item
        try:
            loaded = self._load(item)
            if loaded is None or isinstance(loaded, (dict, tuple)):
                kind = type(loaded).__name__
                raise FeatureError(f"load_example_fn gives {kind}, must return one array")
            return loaded
        except Exception as error:
            add_location(error, f"in load_example_fn of example {number}: {str(item)[:200]}")
            raise


def _stack(rows: list[Any]) -> Any:
    if rows and isinstance(rows[0], bytes):  # of which an array of strings would lose zeros
        return np.array(rows, object)
    arrays = [np.asarray(row) for row in rows]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise FeatureError(
            f"examples have different shapes, {shapes[0]} and {shapes[1]}, and make no batch; have "
            "them resized, with load_example_fn= for instance"
        )
    return np.stack(arrays)


def labelled(x: Any, y: Any, load: Callable[[Any], Any] | None = None) -> tuple[Rows, NDArray[Any]]:
    """Examples and their labels, which are as they were given, in an array of one item a row."""
    rows = Rows(x, "x", load)
    given = [_value(each) for each in y] if isinstance(y, (list, tuple)) else y
    try:
        labels = as_array(given)
    except ValueError:  # lists of different lengths
        labels = np.zeros(())
    if labels.dtype.kind in "US" and given is not y:  # numpy makes strings of numbers beside them
        kinds = {type(each) for each in np.array(given, object).flat}
        if not kinds <= {str, np.str_, bytes, np.bytes_}:
            found = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise DatasetError(f"y has {found}; must be all integers or all strings")
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
            complete = flat.astype(np.int64)
        wrong = np.flatnonzero(complete != flat)
        if len(wrong):
            raise DatasetError(
                f"y has {flat[wrong[0]]} for example {wrong[0]:,}; must be an integer or a string"
            )
        flat = complete
    return ClassTable.parse(flat)


def parse_class_list(class_list: Iterable[Any] | None) -> list[Any] | None:
    """Classes, whatever kind of array or tensor they are in."""
    if class_list is None:
        return None
    if isinstance(class_list, (str, bytes)) or not isinstance(class_list, Iterable):
        raise PlanError(option="class_list", found=class_list, allowed="a list of classes")
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
