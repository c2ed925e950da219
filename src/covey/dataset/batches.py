"""Loaders of a dataset: balanced, shuffled, or in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from covey.classes import ClassTable
from covey.loader import Examples, Loader, LoadOptions
from covey.loader.batch import BatchFormat
from covey.plan import BalancedPlan, Plan, SequentialPlan, ShuffledPlan
from covey.plan.balanced import Epoch, Weights
from covey.plan.epochs import Remainder
from covey.plan.weights import SmallClasses

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from covey.loader.options import LoadKeywords


class Loadable(Examples, ABC):
    """Examples that can be loaded in batches."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def classes(self) -> ClassTable:
        """Class ids, names and record ids."""

    def batches(
        self,
        classes_per_batch: int,
        examples_per_class: int = 2,
        *,
        seed: int = 0,
        steps_per_epoch: Epoch = "examples",
        class_list: Iterable[int | str | bytes] | None = None,
        total_examples_per_class: int | None = None,
        small_classes: SmallClasses = "repeat",
        class_weights: Weights | None = None,
        **options: Unpack[LoadKeywords],
    ) -> Loader:
        """Return a loader of balanced batches: exactly P classes, K distinct examples of each.

        Args:
            classes_per_batch: P.
            examples_per_class: K.
            seed: Seed of all random choices.
            steps_per_epoch: As for :class:`covey.plan.BalancedPlan`, like the next four.
            class_list: Classes to draw from.
            total_examples_per_class: Maximum number of examples to use of each class.
            small_classes: How to handle classes with fewer than K examples.
            class_weights: Relative frequencies of the classes.
            options: Options of :class:`covey.loader.LoadOptions`.

        Raises:
            PlanError, DatasetError, FeatureError: If such batches cannot be drawn.
        """
        keywords = {
            "seed": seed,
            "steps_per_epoch": steps_per_epoch,
            # An iterator can be consumed only once; the plan is made again in other processes.
            "class_list": _listed(class_list),
            "total_examples_per_class": total_examples_per_class,
            "small_classes": small_classes,
            "class_weights": class_weights,
        }
        make_plan = partial(_balanced, self, classes_per_batch, examples_per_class, **keywords)
        return self._load(make_plan, options)

    def shuffled(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        remainder: Remainder = "keep",
        **options: Unpack[LoadKeywords],
    ) -> Loader:
        """Return a loader of all examples once per epoch, in a different order in each epoch.

        Args:
            batch_size: Number of examples per batch.
            seed: Seed of all random choices.
            remainder: How to handle an incomplete last batch, as for
                :class:`covey.plan.ShuffledPlan`.
            options: Options of :class:`covey.loader.LoadOptions`. Without classes, a batch is x
                alone.
        """
        make_plan = partial(ShuffledPlan, len(self), batch_size, seed, remainder=remainder)
        return self._load(make_plan, options)

    def sequential(
        self, batch_size: int, *, remainder: Remainder = "keep", **options: Unpack[LoadKeywords]
    ) -> Loader:
        """Return a loader of all examples once per epoch, in the order of the dataset.

        Args:
            batch_size: Number of examples per batch.
            remainder: How to handle an incomplete last batch, as for
                :class:`covey.plan.SequentialPlan`.
            options: Options of :class:`covey.loader.LoadOptions`. Without classes, a batch is x
                alone.
        """
        make_plan = partial(SequentialPlan, len(self), batch_size, remainder=remainder)
        return self._load(make_plan, options)

    def _load(self, make_plan: Callable[[], Plan], keywords: LoadKeywords) -> Loader:
        options = LoadOptions(**keywords)
        return Loader(BatchFormat(self, options), make_plan, options)


def _balanced(examples: Loadable, *arguments: int, **keywords: Any) -> BalancedPlan:
    # The class table is not pickled with a loader: a process reads it from the index.
    return BalancedPlan(examples.classes, *arguments, **keywords)


def _listed(class_list: Any) -> Any:
    is_iterable = isinstance(class_list, Iterable) and not isinstance(class_list, (str, bytes))
    return list(class_list) if is_iterable else class_list
