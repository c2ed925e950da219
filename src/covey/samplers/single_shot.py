"""Batches of examples of which each is a class of its own."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from covey.adapters import Framework
from covey.errors import PlanError
from covey.plan import Mode, ShuffledPlan
from covey.plan.base import check_int
from covey.samplers.base import Augmenting
from covey.samplers.inputs import Ids, Rows, parse_slice
from covey.samplers.memory import MemorySampler


class SingleShotMemorySampler(MemorySampler):
    """Batches of different examples, each a class of its own; the augmenter makes the others of it.

    Every example comes once before any comes twice. However many there are, nothing is made for
    each: only the examples of a batch are copied.

    Args:
        x: The examples: an array, a tensor, a list.
        augmenter: Takes (x, y, examples per class, is_warmup), where y are the numbers of the
            examples, and returns x and y with so many of each.
        class_per_batch: How many examples a batch has before that,
        examples_per_batch: which is also called so.
        steps_per_epoch, warmup: As for :class:`Sampler`.
        num_augmentations_per_example: What the augmenter is told to make of each.
        seed: Which batches.
        rank, world, mode: The part of one of several processes, as for
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
                f"{examples_per_batch}, which mean the same; pass one of them"
            )
        if not callable(augmenter):
            raise PlanError(
                option="augmenter",
                found=augmenter,
                allowed="a function: it makes the examples of a class",
            )
        rows = Rows(x, "x")
        super().__init__(
            rows,
            partial(_draw, len(rows), seed),
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
        """The examples of a batch, and their numbers; of each class there is one.

        How many there are to be of a class, by either name, is for the augmenter.
        """
        return super().get_examples(batch_id, num_classes, 1)

    def get_slice(self, begin: int = 0, size: int = -1) -> tuple[Any, Any]:
        """Some of the examples, x and y, in their order, augmented as those of a first batch.

        Args:
            begin: The first one.
            size: How many; -1 for all from there on.
        """
        begin, end = parse_slice(begin, size, self.num_examples)
        ids = np.arange(begin, end)
        return self._to_tensors(*self._augment(self._x.take(ids), ids, 0))


def _draw(records: int, seed: int, num_classes: int, _: int) -> ShuffledPlan:
    if num_classes > records:
        raise PlanError(f"a batch is to have {num_classes} examples, but there are only {records}")
    return ShuffledPlan(records, num_classes, seed, remainder="fill")
