"""`MultiShotMemorySampler`: balanced batches of examples in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

import numpy as np

from covey.adapters import Framework
from covey.plan import BalancedPlan, Mode, Plan
from covey.plan.balanced import Weights
from covey.plan.base import BatchKey
from covey.samplers.base import Augmenting, Sampler
from covey.samplers.inputs import ExampleRows, Ids, labelled, parse_class_list, parse_slice


class MemorySampler(Sampler):
    """Base class of the samplers of examples in memory.

    Args:
        x: The examples.
        make_plan: A function of the number of classes and of examples per class that returns the
            plan of the batches.
        share: Rank, world size and mode.
        arguments, options: As for :class:`Sampler`.
    """

    def __init__(
        self,
        x: ExampleRows,
        make_plan: Callable[[int, int], Plan],
        share: tuple[int, int, Mode],
        *arguments: Any,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._x = x
        self._make_plan = make_plan
        self._share = share
        self._plans: dict[tuple[int, int], Plan] = {}
        self._plan(self.classes_per_batch, self.examples_per_class_per_batch)

    def _plan(self, num_classes: int, examples_per_class: int) -> Plan:
        size = (num_classes, examples_per_class)
        if size not in self._plans:
            self._plans[size] = self._make_plan(*size).for_rank(*self._share)
        return self._plans[size]

    @property
    def plan(self) -> Plan:
        """The plan of the batches."""
        return self._plan(self.classes_per_batch, self.examples_per_class_per_batch)

    @abstractmethod
    def _labels(self, ids: Ids) -> Any:
        """Return the labels of examples."""

    def get_examples(
        self, batch_id: int, num_classes: int, examples_per_class: int
    ) -> tuple[Any, Any]:
        ids = self._plan(num_classes, examples_per_class).batch(self.step(batch_id))
        return self._x.take(ids), self._labels(ids)

    def _key(self, step: int) -> BatchKey:
        key = self.plan.key(step)
        return key._replace(examples_per_class=self._augmented_examples_per_class)

    @property
    def num_examples(self) -> int:
        """The number of examples that are drawn from."""
        return len(self._x)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return self._x.row_shape


class MultiShotMemorySampler(MemorySampler):
    """Batches of exactly P classes with exactly K examples of each, from examples in memory.

    Only the examples of a batch are copied. Every class is drawn once before any is drawn twice,
    and so are the examples of a class.

    Args:
        x: The examples: an array, a tensor or a list; or the arguments of ``load_example_fn``.
        y: The labels of the examples: integers or strings.
        classes_per_batch, examples_per_class_per_batch, steps_per_epoch, augmenter, warmup: As for
            :class:`Sampler`.
        class_list: The classes to draw from; by default all.
        total_examples_per_class: The maximum number of examples to use of each class.
        load_example_fn: A function that returns the example for an item of x, such as a path. All
            examples must have the same shape.
        seed: The seed of the batches.
        class_weights: The relative frequencies of the classes, as for
            :class:`covey.plan.BalancedPlan`.
        rank, world_size, mode: The share of one of several processes, as for
            :meth:`covey.plan.Plan.for_rank`.
        framework, options: As for :class:`Sampler`.

    Raises:
        ValueError: If there are fewer classes than a batch has, or a class does not exist.

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
        world_size: int = 1,
        mode: Mode = "split",
        framework: Framework | None = None,
        **options: Any,
    ) -> None:
        rows, self._y, self._classes = labelled(x, y, load_example_fn)
        make_plan = partial(
            BalancedPlan,
            self._classes,
            seed=seed,
            class_list=parse_class_list(class_list),
            total_examples_per_class=total_examples_per_class,
            class_weights=class_weights,
        )
        super().__init__(
            rows,
            make_plan,
            (rank, world_size, mode),
            classes_per_batch,
            examples_per_class_per_batch,
            steps_per_epoch,
            augmenter,
            warmup,
            framework=framework,
            **options,
        )

    def _labels(self, ids: Ids) -> Any:
        return self._y[ids]

    @property
    def class_list(self) -> list[Any]:
        """The classes that are drawn from, as in y."""
        positions = np.searchsorted(self._classes.labels, self._balanced.labels)
        first_of_each = self._classes.by_class[self._classes.firsts[positions]]
        return list(self._y[first_of_each].reshape(-1).tolist())

    @property
    def num_examples(self) -> int:
        return int(self.plan.description["examples"])

    @property
    def _balanced(self) -> BalancedPlan:
        assert isinstance(self.plan, BalancedPlan)
        return self.plan

    @cached_property
    def _ids(self) -> Ids:
        return self._balanced.records

    def get_slice(self, begin: int = 0, size: int = -1) -> tuple[Any, Any]:
        """Return a slice of the examples that are drawn from, x and y, in their order.

        Args:
            begin: The position of the first example.
            size: The number of examples; -1 is all that follow.
        """
        begin, end = parse_slice(begin, size, self.num_examples)
        ids = self._ids[begin:end]
        return self._to_tensors(self._x.take(ids), self._labels(ids))
