"""Arguments of samplers: examples, labels, class lists and slices; and `select_examples`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters import as_array
from covey.classes import ClassTable
from covey.errors import DatasetError, FeatureError, PlanError, check, check_int
from covey.loader.options import add_location
from covey.plan.balanced import check_seed

Ids = NDArray[np.int64]

# Attributes of arrays and tensors, not of sequences that are read item by item.
_ARRAYS = ("__array_interface__", "__dlpack__", "numpy", "to_numpy")


def check_function(option: str, function: Any, arguments: str) -> None:
    """Raise FeatureError unless an argument is a function or None."""
    is_valid = function is None or callable(function)
    check(option, function, is_valid, f"a function of {arguments}", error=FeatureError)


@contextmanager
def told_of_arrays(remedy: str) -> Iterator[None]:
    """Add `remedy` to the error of a function that calls ``numpy()`` of x or y."""
    try:
        yield
    except AttributeError as error:
        if error.name == "numpy":
            add_location(error, f"x and y are numpy arrays; {remedy}")
        raise


class ExampleRows:
    """Rows of an array, a tensor, or any other sequence. Only the rows of a batch are copied.

    Args:
        x: The sequence.
        load: A function that returns the example for an item.
    """

    def __init__(self, x: Any, load: Callable[[Any], Any] | None = None) -> None:
        check_function("load_example_fn", load, "an item")
        is_sequence = hasattr(x, "__getitem__") and not isinstance(x, (str, bytes, dict))
        self.items = as_array(x) if is_sequence and any(hasattr(x, each) for each in _ARRAYS) else x
        if not is_sequence or getattr(self.items, "ndim", 1) == 0:
            raise FeatureError(
                f"it is of type {type(x).__name__}; must be an array, a tensor, or a list",
                option="x",
            )
        self.load = load

    def __len__(self) -> int:
        return len(self.items)

    def take(self, ids: Ids) -> Any:
        """Return the rows at ``ids``, as one array."""
        if isinstance(self.items, np.ndarray) and self.load is None:
            return self.items[ids]
        rows = [self._row(number) for number in ids.tolist()]
        if rows and isinstance(rows[0], bytes):  # numpy's strings drop trailing zeros
            return np.array(rows, object)
        arrays = [np.asarray(row) for row in rows]
        check_shapes(arrays)
        return np.stack(arrays) if arrays else np.zeros(0)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return tuple(np.shape(self._row(0)))

    def _row(self, number: int) -> Any:
        item = self.items[number]
        if self.load is None:
            return item
        try:
            loaded = self.load(item)
            if loaded is None or isinstance(loaded, (dict, tuple)):
                kind = type(loaded).__name__
                raise FeatureError(f"load_example_fn returned {kind}; must be one array")
            return loaded
        except Exception as error:
            add_location(error, f"in load_example_fn of example {number}: {str(item)[:200]}")
            raise


def check_shapes(rows: Iterable[Any]) -> None:
    """Raise FeatureError unless examples have one shape."""
    shapes = sorted(set(map(np.shape, rows)))
    if len(shapes) > 1:
        raise FeatureError(
            f"examples have different shapes, {shapes[0]} and {shapes[1]}; must have one",
            remedy="resize them with load_example_fn= or preprocess_fn=",
        )


def labelled(
    x: Any, y: Any, load: Callable[[Any], Any] | None = None
) -> tuple[ExampleRows, NDArray[Any], ClassTable]:
    """Return the examples, their labels as an array with one item per row, and their classes."""
    rows = ExampleRows(x, load)
    given = [_untensor(each) for each in y] if isinstance(y, (list, tuple)) else y
    try:
        labels = as_array(given)
    except ValueError:  # lists of different lengths
        labels = np.zeros(())
    is_valid = labels.ndim > 0 and labels.size == len(labels)
    check("shape of y", labels.shape, is_valid, "(examples,), one label each")
    check("length of y", len(labels), len(rows) == len(labels), f"{len(rows)}, as of x")
    if labels.dtype.kind in "US" and given is not y:  # numpy converts integers beside strings
        return rows, labels, ClassTable.parse(np.array(given, object).reshape(-1).tolist())
    return rows, labels, parse_classes(labels)


def parse_classes(labels: NDArray[Any]) -> ClassTable:
    """Return the classes of an array of labels; floats must have integer values."""
    flat = labels.reshape(-1)
    if flat.dtype.kind != "f":
        return ClassTable.parse(flat)
    with np.errstate(invalid="ignore"):
        integers = flat.astype(np.int64)
    wrong = np.flatnonzero(integers != flat)
    if len(wrong):
        raise DatasetError(
            f"y has {flat[wrong[0]]} for example {wrong[0]:,}; must be an integer or a string"
        )
    return ClassTable.of(integers)


def parse_class_list(class_list: Iterable[Any] | None) -> list[Any] | None:
    """Return the classes in a list, an array or a tensor; integer values as integers."""
    if class_list is None:
        return None
    is_list = isinstance(class_list, Iterable) and not isinstance(class_list, (str, bytes))
    check("class_list", class_list, is_list, "a list of classes", error=PlanError)
    classes = []
    for item in map(_untensor, class_list):
        value = np.asarray(item)
        is_integer = value.size == 1 and value.dtype.kind in "biuf" and value.item() % 1 == 0
        classes.append(int(value.item()) if is_integer else item)
    return classes


def _untensor(item: Any) -> Any:
    """Return a tensor as a numpy array, and anything else unchanged."""
    return item.numpy() if hasattr(item, "numpy") else item


def parse_slice(begin: int, size: int, count: int) -> tuple[int, int]:
    """Return the begin and the end of a slice of `size` examples; -1 is all that follow.

    It ends at the last example. A negative `begin` counts from the end.
    """
    begin, size = operator.index(begin), check_int("size", size, -1)
    begin = max(0, begin + count) if begin < 0 else min(begin, count)
    return begin, count if size == -1 else min(begin + size, count)


def select_examples(
    x: Any,
    y: Any,
    class_list: Iterable[Any] | None = None,
    num_examples_per_class: int | None = None,
    *,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Return distinct examples of each class, shuffled.

    Args:
        x: The examples: an array, a tensor or a list.
        y: The labels of the examples.
        class_list: The classes to select from; by default all.
        num_examples_per_class: The maximum number of examples of each class; by default all.
        seed: The seed of the selection and of the order.

    Returns:
        x and y of the selected examples, as arrays.

    >>> x, y = select_examples(np.arange(12), np.arange(12) % 4, [1, 3], 2)
    >>> x, y
    (array([11,  3,  1,  9]), array([3, 3, 1, 1]))
    """
    rows, labels, classes = labelled(x, y)
    chosen_classes = parse_class_list(class_list)
    positions: Iterable[int] = range(len(classes))
    if chosen_classes is not None:
        positions = sorted({*map(classes.position, chosen_classes)})
    limit = None
    if num_examples_per_class is not None:
        limit = check_int("num_examples_per_class", num_examples_per_class, 1)
    random = np.random.Generator(np.random.Philox(check_seed(seed)))
    chosen = [random.permutation(classes.records(position))[:limit] for position in positions]
    ids = random.permutation(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    return rows.take(ids), labels[ids]
