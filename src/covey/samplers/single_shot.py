"""`SingleShotMemorySampler`: batches in which every example is a class of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from covey.adapters import Framework
from covey.errors import PlanError
from covey.plan import Mode, ShuffledPlan
from covey.plan.base import check_int
from covey.samplers.base import Augmenting
from covey.samplers.inputs import ExampleRows, Ids, parse_slice
from covey.samplers.memory import MemorySampler


class SingleShotMemorySampler(MemorySampler):
    """Batches of distinct examples, each a class of its own, which the augmenter multiplies.

    Every example is drawn once before any is drawn twice. Only the examples of a batch are copied.

    Args:
        x: The examples: an array, a tensor or a list.
        augmenter: A function of (x, y, examples per class, is_warmup), where y are the positions of
            the examples; it returns x and y with that number of examples per class.
        class_per_batch: The number of examples in a batch before augmentation.
        examples_per_batch: Another name of ``class_per_batch``.
        steps_per_epoch, warmup: As for :class:`Sampler`.
        num_augmentations_per_example: The number of examples per class that is passed to the
            augmenter.
        seed: The seed of the batches.
        rank, world_size, mode: The share of one of several processes, as for
            :meth:`covey.plan.Plan.for_rank`.
        framework, options: As for :class:`Sampler`.

    >>> from covey.samplers import SingleShotMemorySampler
    >>> twice = lambda x, y, count, is_warmup: (x.repeat(count), y.repeat(count))
    >>> sampler = SingleShotMemorySampler(range(100, 150), twice, 3, seed=1, framework="numpy")
    >>> [part.tolist() for part in sampler[0]]
    [[108, 108, 102, 102, 111, 111], [8, 8, 2, 2, 11, 11]]
    """

    def __init__(
        self,
        x: Any,
        augmenter: Augmenting,
        class_per_batch: int | None = None,
        steps_per_epoch: int = 1000,
        warmup: int = -1,
        *,
        examples_per_batch: int | None = None,
        num_augmentations_per_example: int = 2,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        mode: Mode = "split",
        framework: Framework | None = None,
        **options: Any,
    ) -> None:
        if (class_per_batch is None) == (examples_per_batch is None):
            raise PlanError(
                f"class_per_batch is {class_per_batch} and examples_per_batch is "
                f"{examples_per_batch}; exactly one of them must be passed"
            )
        if not callable(augmenter):
            raise PlanError(
                option="augmenter",
                found=augmenter,
                allowed="a function",
            )
        rows = ExampleRows(x, "x")
        super().__init__(
            rows,
            partial(_make_plan, len(rows), seed),
            (rank, world_size, mode),
            examples_per_batch if class_per_batch is None else class_per_batch,
            1,
            steps_per_epoch,
            augmenter,
            warmup,
            framework=framework,
            **options,
        )
        self.num_augmentations_per_example = check_int(
            "num_augmentations_per_example", num_augmentations_per_example, 1
        )

    def _labels(self, ids: Ids) -> Any:
        return ids

    @property
    def _augmented_examples_per_class(self) -> int:
        return self.num_augmentations_per_example

    def get_examples(
        self,
        batch_id: int,
        num_classes: int,
        examples_per_class: int = 1,
        *,
        example_per_class: int = 1,
    ) -> tuple[Any, Any]:
        """Return the examples of a batch and their positions: one example of each class.

        The number of examples per class, by either name, applies to the augmenter only.
        """
        return super().get_examples(batch_id, num_classes, 1)

    def get_slice(self, begin: int = 0, size: int = -1) -> tuple[Any, Any]:
        """Return a slice of the examples, x and y, in order, augmented like the first batch.

        Args:
            begin: The position of the first example.
            size: The number of examples; -1 is all that follow.
        """
        begin, end = parse_slice(begin, size, self.num_examples)
        ids = np.arange(begin, end)
        return self._to_tensors(*self._augment(self._x.take(ids), ids, 0))


def _make_plan(records: int, seed: int, num_classes: int, _: int) -> ShuffledPlan:
    if num_classes > records:
        raise PlanError(f"a batch has {num_classes} examples, but there are only {records}")
    return ShuffledPlan(records, num_classes, seed, remainder="fill")
