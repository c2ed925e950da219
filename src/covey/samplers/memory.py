"""Balanced batches of examples in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters import Framework
from covey.classes import ClassTable
from covey.errors import DatasetError, PlanError
from covey.plan import BalancedPlan, Mode
from covey.plan.balanced import Weights
from covey.samplers.base import Augmenting, Sampler
from covey.samplers.rows import Ids, Rows, as_array


class MultiShotMemorySampler(Sampler):
    """Batches of exactly P classes with exactly K examples of each, of what is in memory.

    x stays where it is: only the examples of a batch are copied. Every class comes once before any
    comes twice, and so do the examples of a class.

    Args:
        x: The examples: an array, a tensor, a list; or what ``load_example_fn`` makes them of.
        y: Their classes: whole numbers, or texts.
        classes_per_batch, examples_per_class_per_batch, steps_per_epoch, augmenter, warmup: As for
            :class:`Sampler`.
        class_list: Draw from these classes only.
        total_examples_per_class: Use only so many examples of each class.
        load_example_fn: Takes an item of x, a path for instance, and returns the example. All must
            have the same shape.
        seed: Which batches.
        class_weights: How often classes come, as for :class:`covey.plan.BalancedPlan`.
        rank, world, mode: The part of one of several processes, as for
            :meth:`covey.plan.Plan.for_rank`.
        framework, options: As for :class:`Sampler`.

    Raises:
        ValueError: If there are not so many classes, or no such ones.

    >>> from covey.samplers import MultiShotMemorySampler
    >>> x, y = np.arange(12), np.arange(12) % 4
    >>> sampler = MultiShotMemorySampler(x, y, 3, 2, seed=1, framework="numpy")
    >>> sampler[0]
    (array([1, 9, 4, 0, 6, 2]), array([1, 1, 0, 0, 2, 2]))
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        classes_per_batch: int = 2,
        examples_per_class_per_batch: int = 2,
        steps_per_epoch: int = 1000,
        class_list: Iterable[Any] | None = None,
        total_examples_per_class: int | None = None,
        augmenter: Augmenting | None = None,
        load_example_fn: Callable[[Any], Any] | None = None,
        warmup: int = -1,
        *,
        seed: int = 0,
        class_weights: Weights | None = None,
        rank: int = 0,
        world: int = 1,
        mode: Mode = "split",
        framework: Framework | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            classes_per_batch,
            examples_per_class_per_batch,
            steps_per_epoch,
            augmenter,
            warmup,
            framework=framework,
            **options,
        )
        self._x, self._y = labelled(x, y, load_example_fn)
        self._classes = classes_of(self._y)
        self._draw_from = partial(
            BalancedPlan,
            self._classes,
            seed=seed,
            class_list=parse_class_list(class_list),
            total_examples_per_class=total_examples_per_class,
            class_weights=class_weights,
        )
        self._share = (rank, world, mode)
        self._plans: dict[tuple[int, int], BalancedPlan] = {}
        self._plan(self.classes_per_batch, self.examples_per_class_per_batch)

    def _plan(self, num_classes: int, examples_per_class: int) -> BalancedPlan:
        size = (num_classes, examples_per_class)
        if size not in self._plans:
            plan = self._draw_from(num_classes, examples_per_class)
            self._plans[size] = plan.for_rank(*self._share)
        return self._plans[size]

    @property
    def plan(self) -> BalancedPlan:
        """Which examples batches have."""
        return self._plan(self.classes_per_batch, self.examples_per_class_per_batch)

    def get_examples(
        self, batch_id: int, num_classes: int, examples_per_class: int
    ) -> tuple[Any, Any]:
        ids = self._plan(num_classes, examples_per_class).batch(self.step(batch_id))
        return self._x.take(ids), self._y[ids]

    @property
    def class_list(self) -> list[Any]:
        """The classes that are drawn from."""
        positions = np.searchsorted(self._classes.labels, self.plan.labels)
        first_of_each = self._classes.by_class[self._classes.firsts[positions]]
        return list(self._y[first_of_each].reshape(-1).tolist())

    @property
    def num_examples(self) -> int:
        """How many examples are drawn from."""
        return int(self.plan.description["examples"])

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return self._x.row_shape

    @cached_property
    def _ids(self) -> Ids:
        return self.plan.records

    def get_slice(self, begin: int = 0, size: int = -1) -> tuple[Any, Any]:
        """Some of the examples that are drawn from, x and y, in their order.

        Args:
            begin: The first one.
            size: How many; -1 for all from there on.
        """
        begin, end = parse_slice(begin, size, self.num_examples)
        ids = self._ids[begin:end]
        return self._hand_over(self._x.take(ids), self._y[ids])


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
    """The classes of labels; also of whole numbers that are floats, as text files give them."""
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
    """A class as a whole number, if it is one: also a float, or a bool."""
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
