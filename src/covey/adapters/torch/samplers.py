"""Batch samplers for map-style datasets of the user."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import Sampler

from covey.adapters import as_array
from covey.adapters.torch.epochs import EpochSampler
from covey.errors import PlanError
from covey.loader.iterator import Position
from covey.plan import BalancedPlan, Mode, Plan
from covey.plan.balanced import Epoch, Weights
from covey.plan.base import check_int
from covey.plan.weights import SmallClasses


class PlanBatchSampler(EpochSampler[list[int]]):
    """The record ids of any plan, for ``DataLoader(dataset, batch_sampler=...)``.

    Each iteration is the next epoch. The state counts the batches that were drawn; use a
    ``StatefulDataLoader`` of torchdata to count those that were returned.

    Args:
        plan: The plan; ``loader.plan``, for instance.

    >>> from covey.plan import ShuffledPlan
    >>> list(PlanBatchSampler(ShuffledPlan(5, 2, seed=1)))
    [[1, 0], [3, 4], [2]]
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(Position(plan))

    def item(self, batch: int) -> list[int]:
        """Return the record ids of a step."""
        ids, _ = self.plan.native.draw(0, 1, self.plan.share(batch))
        return list(ids[0].tolist())


class BalancedBatchSampler(PlanBatchSampler):
    """Batches of exactly P classes with exactly K distinct examples of each, of any dataset.

    Args:
        labels: Label of every example, as a tensor, an array or a list; or ``ds.classes`` of a
            dataset of covey.
        classes_per_batch: P, of all ranks together if they share a batch.
        examples_per_class: K.
        seed: Seed of all random choices.
        steps_per_epoch: As for :class:`covey.plan.BalancedPlan`, like the next four.
        class_list: Classes to draw from.
        total_examples_per_class: Maximum number of examples to use of each class.
        small_classes: How to handle classes with fewer than K examples.
        class_weights: Relative frequencies of the classes.
        rank: Index of this process (default: that of ``torch.distributed``, if initialised).
        world_size: Number of processes (default: that of ``torch.distributed``, if initialised).
        mode: ``"split"`` divides the classes of every batch among the ranks; ``"independent"``
            gives every rank batches of its own.

    >>> labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    >>> batches = BalancedBatchSampler(labels, classes_per_batch=2, examples_per_class=2, seed=1)
    >>> [labels[ids].tolist() for ids in batches]
    [[2, 2, 1, 1], [0, 0, 1, 1], [0, 0, 2, 2]]
    """

    def __init__(
        self,
        labels: Any,
        classes_per_batch: int,
        examples_per_class: int = 2,
        *,
        seed: int = 0,
        steps_per_epoch: Epoch = "examples",
        class_list: Iterable[int | str | bytes] | None = None,
        total_examples_per_class: int | None = None,
        small_classes: SmallClasses = "repeat",
        class_weights: Weights | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mode: Mode = "split",
    ) -> None:
        plan = BalancedPlan(
            as_array(labels) if isinstance(labels, torch.Tensor) else labels,
            classes_per_batch,
            examples_per_class,
            seed,
            class_list=class_list,
            total_examples_per_class=total_examples_per_class,
            small_classes=small_classes,
            class_weights=class_weights,
            steps_per_epoch=steps_per_epoch,
        )
        super().__init__(plan.for_rank(*find_rank(rank, world_size), mode))


class MPerClassError(PlanError, AssertionError):
    """Arguments for which ``MPerClassSampler`` of pytorch-metric-learning fails an assertion."""


class MPerClassSampler(Sampler[int]):
    """Replacement of ``MPerClassSampler`` of pytorch-metric-learning.

    It has the same lengths and the same guarantee: every `batch_size` consecutive examples are m of
    each of some classes. In addition it is seeded and fair: every class is drawn once before any
    class twice, and so is every example of a class. Each iteration draws other examples.

    Args:
        labels: Label of every example, as a tensor, an array or a list.
        m: Number of examples per class in a batch.
        batch_size: Number of examples per batch; None for m of every class.
        length_before_new_iter: Maximum number of examples per iteration.
        seed: Seed of all random choices.
        rank: Index of this process (default: that of ``torch.distributed``, if initialised). Every
            rank has batches of its own.
        world_size: Number of processes (default: that of ``torch.distributed``, if initialised).

    >>> labels = [0, 0, 0, 1, 1, 1, 2, 2]
    >>> sampler = MPerClassSampler(labels, m=2, batch_size=4, length_before_new_iter=10)
    >>> len(sampler), [labels[number] for number in sampler]
    (8, [2, 2, 0, 0, 1, 1, 2, 2])
    """

    def __init__(
        self,
        labels: Any,
        m: int,
        batch_size: int | None = None,
        length_before_new_iter: int = 100000,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        # Labels of any type are accepted, strings and fractions included.
        distinct, class_ids = np.unique(as_array(labels), return_inverse=True)
        self.labels: list[Any] = distinct.tolist()
        if not self.labels:
            raise PlanError(option="labels", found=[], allowed="at least one label")
        self.m_per_class = check_int("m", int(m), 1)
        self.batch_size = None if batch_size is None else int(batch_size)
        self.length_of_single_pass = self.m_per_class * len(self.labels)
        length = check_int("length_before_new_iter", int(length_before_new_iter), 1)
        size = self.length_of_single_pass if self.batch_size is None else self.batch_size
        if self.batch_size is not None:
            self._check(self.batch_size, length)
        self.list_size = length - length % size if size < length else length
        plan = BalancedPlan(
            class_ids,
            size // self.m_per_class,
            self.m_per_class,
            seed,
            steps_per_epoch=max(1, self.list_size // size),
        )
        self.batches = PlanBatchSampler(plan.for_rank(*find_rank(rank, world_size), "independent"))
        self.size = min(size, self.list_size)
        self.skip = 0
        """Number of examples of the next batch that were returned before."""
        self.last: ExampleIterator | None = None
        """The iteration that drew the last batch."""

    def _check(self, batch_size: int, length: int) -> None:
        if batch_size < 1 or batch_size % self.m_per_class:
            allowed = f"a multiple of m, which is {self.m_per_class}"
        elif batch_size > self.length_of_single_pass:
            allowed = f"<= {self.length_of_single_pass}, m examples of every class"
        elif batch_size > length:
            allowed = f"<= length_before_new_iter, which is {length}"
        else:
            return
        raise MPerClassError(option="batch_size", found=batch_size, allowed=allowed)

    def __len__(self) -> int:
        """Return the number of examples per iteration."""
        return self.list_size

    def __iter__(self) -> ExampleIterator:
        """Iterate over the next example ids."""
        return ExampleIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with `epoch`, or at the position that was loaded within it."""
        before = self.batches.cursor.next
        self.batches.set_epoch(epoch)
        self.last = None
        if self.batches.cursor.next != before:
            self.skip = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a JSON object."""
        if self.last is not None and self.last.left:
            return self.last.state_dict()
        return {**self.batches.state_dict(), "skip": self.skip}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of another sampler.

        Raises:
            PlanError: If it is not a valid state, or the state of other labels or another seed.
        """
        skip = state.get("skip", 0) if isinstance(state, Mapping) else 0
        if type(skip) is not int or not 0 <= skip < self.size:
            raise PlanError(
                "the state is corrupt",
                option="skip",
                found=skip,
                allowed=f"an integer from 0 to {self.size - 1}",
            )
        self.batches.load_state_dict(state)
        self.last, self.skip = None, skip


class ExampleIterator(Iterator[int]):
    """One iteration over the examples of a :class:`MPerClassSampler`."""

    def __init__(self, sampler: MPerClassSampler) -> None:
        self._sampler = sampler
        self._batches = iter(sampler.batches)
        self.left: list[int] = []
        """Rest of the last batch, in reverse order."""

    def __next__(self) -> int:
        sampler = self._sampler
        if not self.left:
            ids = next(self._batches)[: sampler.size]
            self.left = ids[sampler.skip :][::-1]
            sampler.skip, sampler.last = 0, self
        return self.left.pop()

    def state_dict(self) -> dict[str, Any]:
        """Return the position within this iteration."""
        state = self._batches.state_dict()
        if not self.left:
            return {**state, "skip": self._sampler.skip}
        # The batch that was drawn last must be drawn again.
        state.pop("drained", None)
        batch = state["batch"] - self._sampler.batches.plan.batches_per_step
        return {**state, "batch": batch, "skip": self._sampler.size - len(self.left)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position within another iteration."""
        self._sampler.load_state_dict(state)
        self._batches.load_state_dict(state)
        self.left = []


def find_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return rank and world size: the given ones, or those of ``torch.distributed``."""
    here, of = 0, 1
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        here, of = distributed.get_rank(), distributed.get_world_size()
    return here if rank is None else rank, of if world_size is None else world_size
