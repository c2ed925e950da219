"""Samplers whose iterations are epochs of a plan, with an exact state.

:class:`EpochSampler` is their base; the others draw record ids, for datasets of the user.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed
from torch.utils.data import Sampler

from covey.adapters import as_array
from covey.errors import PlanError
from covey.loader import state as states
from covey.loader.iterator import Position
from covey.loader.options import find_ray_rank
from covey.plan import BalancedPlan, Mode, Plan
from covey.plan.balanced import Epoch, Weights
from covey.plan.base import check_int
from covey.plan.weights import SmallClasses

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


class EpochSteps(NamedTuple):
    """The steps of an epoch, or of the rest of one."""

    first: int
    """Index of the first batch."""
    steps: int
    skip: int = 0
    """Number of items of the first step to skip."""

    def batch_after(self, steps: int, plan: Plan) -> int:
        """Return the index of the batch that follows the first `steps` steps."""
        batch = self.first + steps * plan.batches_per_step
        return batch if plan.is_endless else min(batch, plan.end_of_epoch(self.first))


class EpochCursor:
    """The epochs of a plan, one per iteration.

    An iteration is an epoch, or the rest of one after :meth:`move`. It begins with its first draw,
    so that an iterator that is never used has no effect. If it is abandoned, the next iteration is
    the next epoch, as for other datasets of PyTorch.

    Args:
        position: The plan, and the batch that follows those that were returned. If it is changed
            by others, the next iteration begins there.
        size: Number of items per step.
    """

    def __init__(self, position: Position, size: int = 1) -> None:
        self._position = position
        self._size = size
        self._saved: tuple[Plan, dict[str, Any]] | None = None
        self.move(position.batch)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self._position.plan

    @property
    def batch(self) -> int:
        """Index of the batch that follows those that were returned."""
        return self._position.batch

    def move(self, batch: int, *, skip: int = 0, is_drained: bool = False) -> None:
        """Begin the next iteration with `batch`.

        Args:
            batch: Index of the batch.
            skip: Number of items of the batch that were returned.
            is_drained: All batches of the epoch before `batch` were returned, but not its end: the
                next iteration is empty.
        """
        self._next = self._position.batch = self._seen = batch
        self._skip = skip
        self._is_empty = self._is_drained = is_drained
        self._is_explicit = True

    def _follow(self) -> None:
        if self._position.batch != self._seen:
            self.move(self._position.batch)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with `epoch`, or at the position that was loaded within it."""
        self._follow()
        length = self.plan.batches_per_epoch
        epoch = check_int("epoch", epoch, 0, self.plan.native.last_batch // length - 2)
        inside = self._next - 1 if self._is_empty else self._next
        if not self._is_explicit or inside // length != epoch:
            self.move(epoch * length)

    def begin(self) -> EpochSteps:
        """Begin an iteration, and return its steps."""
        self._follow()
        first, plan = self._next, self.plan
        steps = 0 if self._is_empty else plan.steps_left(first)
        epoch = EpochSteps(first, steps, self._skip if self._is_explicit else 0)
        if plan.is_endless:
            self._next = epoch.batch_after(epoch.steps, plan)
        elif not self._is_empty or first % plan.batches_per_epoch:
            self._next = plan.end_of_epoch(first)
        self._is_drained, self._is_empty, self._is_explicit = self._is_empty, False, False
        self._position.batch = self._seen = first
        return epoch

    def advance(self, epoch: EpochSteps, items: int) -> None:
        """Record that `items` items of `epoch` were returned."""
        steps, self._skip = divmod(items, self._size)
        self._position.batch = self._seen = epoch.batch_after(steps, self.plan)
        self._is_drained = steps == epoch.steps

    def end(self) -> None:
        """Record that the end of the iteration was returned."""
        self._position.batch = self._seen = self._next
        self._skip, self._is_drained = 0, False

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        self._follow()
        return self._state(self._position.batch, self._skip, self._is_drained)

    def next_state(self) -> dict[str, Any]:
        """Return the position at which the next iteration begins."""
        self._follow()
        return self._state(self._next, self._skip if self._is_explicit else 0, self._is_empty)

    def state_within(self, epoch: EpochSteps, items: int) -> dict[str, Any]:
        """Return the position after `items` items of `epoch`."""
        steps, skip = divmod(items, self._size)
        return self._state(epoch.batch_after(steps, self.plan), skip, steps == epoch.steps)

    def _state(self, batch: int, skip: int, is_drained: bool) -> dict[str, Any]:
        if self._saved is None or self._saved[0] is not self.plan:
            self._saved = self.plan, states.save(self.plan, 0)
        state = {**self._saved[1], "batch": batch}
        if skip:
            state["skip"] = skip
        if is_drained:
            state["drained"] = True
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at the position of `state`."""
        plan, batch = states.load(self.plan, state)
        skip, is_drained = state.get("skip", 0), state.get("drained", False)
        if type(skip) is not int or not 0 <= skip < self._size:
            allowed = f"an integer from 0 to {self._size - 1}"
            raise PlanError("the state is corrupt", option="skip", found=skip, allowed=allowed)
        if not isinstance(is_drained, bool):
            raise PlanError(
                "the state is corrupt", option="drained", found=is_drained, allowed="a bool"
            )
        self._position.plan = plan
        self.move(batch, skip=skip, is_drained=is_drained)


class EpochSampler(Sampler[Item]):
    """Base class of samplers whose iterations are epochs of a plan.

    Args:
        position: The plan, and the batch to begin with.
        size: Number of items per step.
    """

    def __init__(self, position: Position, size: int = 1) -> None:
        self.size = size
        self.cursor = EpochCursor(position, size)

    def items(self, batch: int) -> Sequence[Item]:
        """Return the items of the step that begins with `batch`."""
        raise NotImplementedError

    @property
    def plan(self) -> Plan:
        """The plan: which examples a batch has."""
        return self.cursor.plan

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} per epoch of {self.plan!r}>"

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self.plan.steps_per_epoch

    def __iter__(self) -> EpochIterator[Item]:
        """Iterate over the next epoch."""
        return EpochIterator(self)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with `epoch`, or at the position that was loaded within it."""
        self.cursor.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a JSON object, which loaders of the same batches accept."""
        return self.cursor.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of another sampler or loader, with any number of ranks.

        Raises:
            PlanError: If it is not a valid state, or the state of other batches.
        """
        self.cursor.load_state_dict(state)


class EpochIterator(Iterator[Item]):
    """One iteration over an :class:`EpochSampler`.

    Its state is the position within the epoch, also at its end; the state of the sampler then is
    the beginning of the next epoch. ``StatefulDataLoader`` saves both.

    Args:
        sampler: The sampler.
    """

    def __init__(self, sampler: EpochSampler[Item]) -> None:
        self._sampler = sampler
        self._epoch: EpochSteps | None = None
        self._drawn = 0
        self._items: Sequence[Item] = ()

    def __next__(self) -> Item:
        sampler = self._sampler
        epoch = self._begin() if self._epoch is None else self._epoch
        step, number = divmod(self._drawn, sampler.size)
        if step == epoch.steps:
            self._end()
            raise StopIteration
        if number == 0 or not self._items:
            self._items = sampler.items(epoch.first + step * sampler.plan.batches_per_step)
        self._drawn += 1
        self._advance(epoch)
        return self._items[number]

    def _begin(self) -> EpochSteps:
        self._epoch = self._sampler.cursor.begin()
        self._drawn = self._epoch.skip
        return self._epoch

    def _advance(self, epoch: EpochSteps) -> None:
        self._sampler.cursor.advance(epoch, self._drawn)

    def _end(self) -> None:
        self._sampler.cursor.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the position within this iteration."""
        cursor = self._sampler.cursor
        if self._epoch is None:
            return cursor.next_state()
        return cursor.state_within(self._epoch, self._drawn)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position within another iteration."""
        self._sampler.load_state_dict(state)
        self._items = ()
        self._begin()


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
        steps_per_epoch: As for :class:`covey.plan.BalancedPlan`, like the next four.
        class_list: Classes to draw from.
        total_examples_per_class: Maximum number of examples to use of each class.
        small_classes: How to handle classes with fewer than K examples.
        class_weights: Relative frequencies of the classes.
        rank: Index of this process (default: that of ``torch.distributed``, if initialised, or of
            Ray Train).
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
        plan = plan.for_rank(*find_rank(rank, world_size), "independent")
        super().__init__(Position(plan), min(size, self.list_size))

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

    def items(self, batch: int) -> list[int]:
        return _draw(self.plan, batch)[: self.size]


def _draw(plan: Plan, batch: int) -> list[int]:
    """Return the record ids of the step that begins with `batch`."""
    ids, _ = plan.native.draw(0, 1, plan.share(batch))
    return list(ids[0].tolist())
