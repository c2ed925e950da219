"""PyTorch samplers whose iterations are epochs of a plan; those for users draw record ids."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed
from torch.utils.data import Sampler

from covey.adapters import as_array
from covey.errors import PlanError, check, check_int
from covey.loader import Loader
from covey.loader.options import find_ray_rank
from covey.plan import BalancedPlan, Mode, Plan
from covey.plan import state as states
from covey.plan.balanced import Ids

_check = partial(check, error=PlanError)

Item = TypeVar("Item", covariant=True)


def find_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return rank and world size: the given ones, or those of ``torch.distributed`` or Ray Train.

    With accelerate they are 0 and 1: ``Accelerator.prepare`` divides the batches of a
    ``DataLoader`` among the processes.
    """
    distributed, accelerate = torch.distributed, sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.is_initialized():
        here, of = 0, 1
    elif distributed.is_available() and distributed.is_initialized():
        here, of = distributed.get_rank(), distributed.get_world_size()
    else:
        here, of = find_ray_rank() if rank is None and world_size is None else (0, 1)
    return here if rank is None else rank, of if world_size is None else world_size


class Position:
    """The position in the batches of a plan; a :class:`covey.Loader` is one, too.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.move(plan, 0)

    def move(self, plan: Plan, batch: int) -> None:
        self.plan, self._batch = plan, batch

    def state_dict(self) -> dict[str, Any]:
        return states.save(self.plan, self._batch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.move(*states.load(self.plan, state))


class EpochSampler(Sampler[Item]):
    """Base class of samplers whose iterations are epochs of a plan.

    An iteration begins at the position and ends with the epoch. The position is moved before an
    item is yielded. If an iteration is abandoned, the next one is the next epoch, as for other
    datasets of PyTorch.

    Args:
        position: The position, which the iterations move.
        size: Number of items per step.
    """

    def __init__(self, position: Position | Loader, size: int = 1) -> None:
        self.size = size
        self._position = position
        self._skip = 0  # items of the present batch that were yielded
        self._left: tuple[int, int] | None = None  # where the last iteration has moved the position
        self._next = 0  # first batch of the next iteration
        self._is_drained = False  # all steps before the position were yielded, but not their end

    def items(self, batch: int) -> Sequence[Item]:
        """Return the items of the step that begins with `batch`."""
        raise NotImplementedError

    @property
    def plan(self) -> Plan:
        """The plan: which examples a batch has."""
        return self._position.plan

    @property
    def batch(self) -> int:
        """Index of the first batch of the next step, over all ranks."""
        return int(self._position.state_dict()["batch"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} per epoch of {self.plan!r}>"

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self.plan.steps_per_epoch

    def __iter__(self) -> EpochIterator[Item]:
        """Iterate over the next epoch."""
        return EpochIterator(self)

    def iterate(self, steps: range | None = None) -> Iterator[Item]:
        """Yield the items of the iteration that :meth:`begin` has begun, or of the next one."""
        steps, skip = self.begin() if steps is None else steps, self._skip
        for batch in steps:
            items = self.items(batch)
            for number in range(skip, self.size):
                self.reach(batch, number + 1)
                yield items[number]
            skip = 0
        self.end()

    def begin(self) -> range:
        """Begin an iteration, and return the index of the first batch of each step."""
        if self._left == (self.batch, self._skip):
            self._move(self._next)
        plan, first = self.plan, self.batch
        steps = 0 if self._is_drained else plan.steps_left(first)
        self._next = first + steps * plan.batches_per_step
        if not (plan.is_endless or (self._is_drained and first % plan.batches_per_epoch == 0)):
            self._next = plan.end_of_epoch(first)
        self._left, self._is_drained = None, False
        return range(first, first + steps * plan.batches_per_step, plan.batches_per_step)

    def reach(self, batch: int, items: int) -> None:
        """Move to the item `items` of the step that begins with `batch`."""
        if items == self.size:
            plan, items, first = self.plan, 0, batch
            batch = first + plan.batches_per_step
            if not plan.is_endless:
                batch = min(batch, plan.end_of_epoch(first))
        self._move(batch, items)
        self._left, self._is_drained = (batch, items), batch == self._next

    def end(self) -> None:
        """Move to the next epoch."""
        self._move(self._next)
        self._left = self._next, 0

    def _move(self, batch: int, skip: int = 0) -> None:
        self._position.move(self.plan, batch)  # may be within a step, unlike seek()
        self._skip, self._left, self._is_drained = skip, None, False

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with `epoch`, or at the position that was loaded within it."""
        length = self.plan.batches_per_epoch
        epoch = check_int("epoch", epoch, 0, self.plan.native.last_batch // length - 2)
        is_reached = self._left == (self.batch, self._skip)
        if is_reached or (self.batch - self._is_drained) // length != epoch:
            self._next = epoch * length
            self._move(self._next)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a JSON object, which loaders of the same batches accept."""
        state = self._position.state_dict()
        if self._skip:
            state["skip"] = self._skip
        if self._is_drained:  # the next iteration is empty
            state["drained"] = True
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of another sampler or loader, with any number of ranks.

        Raises:
            PlanError: If it is not a valid state, or the state of other batches.
        """
        skip = state.get("skip", 0) if isinstance(state, Mapping) else 0
        is_valid = type(skip) is int and 0 <= skip < self.size
        _check("skip", skip, is_valid, f"an integer from 0 to {self.size - 1}")
        self._position.load_state_dict(state)
        self._move(self.batch, skip)
        self._is_drained = state.get("drained") is True


class EpochIterator(Iterator[Item]):
    """One iteration over an :class:`EpochSampler`, with a state for ``StatefulDataLoader``.

    At its end, its state is the end of the epoch; the state of the sampler is the next epoch.

    Args:
        sampler: The sampler.
    """

    def __init__(self, sampler: EpochSampler[Item]) -> None:
        self._sampler = sampler
        self._items = sampler.iterate()
        self._has_ended = False

    def __next__(self) -> Item:
        for item in self._items:
            return item
        self._has_ended = True
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """Return the position within this iteration."""
        state = self._sampler.state_dict()
        return {**state, "drained": True} if self._has_ended else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position within another iteration."""
        self._sampler.load_state_dict(state)
        self._items = self._sampler.iterate(self._sampler.begin())


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

    def items(self, batch: int) -> list[list[int]]:
        return [_draw(self.plan, batch)]


class BalancedBatchSampler(PlanBatchSampler):
    """Batches of exactly P classes with exactly K distinct examples of each, of any dataset.

    Args:
        labels: Label of every example, as a tensor, an array or a list; or ``ds.classes`` of a
            dataset of covey.
        classes_per_batch: P, of all ranks together if they share a batch.
        examples_per_class: K.
        seed: Seed of all random choices.
        rank: Index of this process (default: that of ``torch.distributed``, if initialised, or of
            Ray Train).
        world_size: Number of processes (default: that of ``torch.distributed``, if initialised).
        mode: ``"split"`` divides the classes of every batch among the ranks; ``"independent"``
            gives every rank batches of its own.
        options: `steps_per_epoch`, `class_list`, `total_examples_per_class`, `small_classes` and
            `class_weights`, as for :class:`covey.plan.BalancedPlan`.

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
        rank: int | None = None,
        world_size: int | None = None,
        mode: Mode = "split",
        **options: Any,
    ) -> None:
        given = as_array(labels) if isinstance(labels, torch.Tensor) else labels
        plan = BalancedPlan(given, classes_per_batch, examples_per_class, seed, **options)
        super().__init__(plan.for_rank(*find_rank(rank, world_size), mode))


class MPerClassError(PlanError, AssertionError):
    """Arguments for which ``MPerClassSampler`` of pytorch-metric-learning fails an assertion."""


class MPerClassSampler(EpochSampler[int]):
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
        rank: Index of this process (default: that of ``torch.distributed``, if initialised, or of
            Ray Train). Every rank has batches of its own.
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
        self._class_ids = class_ids.reshape(-1)
        _check("labels", [], self.labels, "at least one label")
        self.m_per_class = check_int("m", int(m), 1)
        self.batch_size = None if batch_size is None else int(batch_size)
        self.length_of_single_pass = self.m_per_class * len(self.labels)
        length = check_int("length_before_new_iter", int(length_before_new_iter), 1)
        size = self.length_of_single_pass if self.batch_size is None else self.batch_size
        bounds = (
            (size > 0 and size % self.m_per_class == 0, f"a multiple of m, {self.m_per_class}"),
            (size <= self.length_of_single_pass, f"<= {self.length_of_single_pass}, m per class"),
            (size <= length, f"<= length_before_new_iter, which is {length}"),
        )
        for is_valid, allowed in bounds if self.batch_size is not None else ():
            check("batch_size", size, is_valid, allowed, error=MPerClassError)
        self.list_size = length - length % size if size < length else length
        plan = BalancedPlan(
            class_ids,
            size // self.m_per_class,
            self.m_per_class,
            seed,
            steps_per_epoch=max(1, self.list_size // size),
        )
        plan = plan.for_rank(*find_rank(rank, world_size), "independent")
        super().__init__(Position(plan), min(size, self.list_size))

    @property
    def labels_to_indices(self) -> dict[Any, Ids]:
        """The positions of the examples of each label."""
        order = np.argsort(self._class_ids, kind="stable")
        ends = np.cumsum(np.bincount(self._class_ids))[:-1]
        return dict(zip(self.labels, np.split(order, ends), strict=True))

    def __len__(self) -> int:
        """Return the number of examples per iteration."""
        return self.list_size

    def items(self, batch: int) -> list[int]:
        return _draw(self.plan, batch)[: self.size]


def _draw(plan: Plan, batch: int) -> list[int]:
    """Return the record ids of the step that begins with `batch`."""
    ids, _ = plan.native.draw(0, 1, plan.share(batch))
    return list(ids[0].tolist())
