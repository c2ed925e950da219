"""Samplers: which examples a batch has, for a ``DataLoader`` of somebody's own dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed
from torch.utils.data import Sampler

from covey.adapters import as_array
from covey.adapters.torch.course import Course, Epoch, is_drained
from covey.loader import state as states
from covey.plan import BalancedPlan, Mode, Plan
from covey.plan.balanced import Epoch as EpochLength
from covey.plan.balanced import Weights
from covey.plan.weights import SmallClasses


class PlanBatchSampler(Sampler[list[int]]):
    """The batches of any plan, for ``DataLoader(dataset, batch_sampler=...)``.

    Each iteration is the next epoch; one that is left early is over. The state counts batches that
    were drawn: a ``StatefulDataLoader`` of torchdata knows which of them were returned.

    Args:
        plan: Which batches; that of a loader, ``loader.plan``, say.

    >>> from covey.plan import ShuffledPlan
    >>> list(PlanBatchSampler(ShuffledPlan(5, 2, seed=1)))
    [[1, 0], [3, 4], [2]]
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.course = Course.of(0)
        self.saved = states.save(plan, 0)

    def __len__(self) -> int:
        """The steps of an epoch."""
        return self.plan.steps_per_epoch

    def __iter__(self) -> Drawing:
        """The batches of the next epoch."""
        return Drawing(self)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with this epoch.

        If a state was loaded that is in the midst of it, that is where the iteration goes on.
        """
        self.course.set_epoch(epoch, self.plan)

    def state_dict(self) -> dict[str, Any]:
        """What comes next: a JSON object, which loaders of the same batches take, too."""
        return self.course.state(self.saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was, which may have had another number of ranks.

        Raises:
            PlanError: If that had other batches.
        """
        self.plan, batch = states.load(self.plan, state)
        self.saved = states.save(self.plan, 0)
        self.course.go_to(batch, is_drained=is_drained(state))


class Drawing(Iterator[list[int]]):
    """One iteration over the batches of a plan.

    It begins when the first batch is asked for: a DataLoader makes iterators that it does not use.
    Its state stays that of its own end, where that of the sampler is the next beginning.
    """

    def __init__(self, sampler: PlanBatchSampler) -> None:
        self._sampler = sampler
        self._epoch: Epoch | None = None
        self._drawn = 0

    def __next__(self) -> list[int]:
        plan, course = self._sampler.plan, self._sampler.course
        if self._epoch is None:
            self._epoch = course.begin(plan)
        if self._drawn == self._epoch.steps:
            course.end()
            raise StopIteration
        ids, _ = plan.native.draw(self._drawn, 1, plan.share(self._epoch.first))
        self._drawn += 1
        course.emit(self._epoch, self._drawn, plan)
        return list(ids[0].tolist())

    def state_dict(self) -> dict[str, Any]:
        """What comes next in this iteration."""
        course = replace(self._sampler.course)
        if self._epoch is None:
            course.go_to(course.next, is_drained=course.is_empty)
        else:
            course.emit(self._epoch, self._drawn, self._sampler.plan)
        return course.state(self._sampler.saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with another iteration."""
        self._sampler.load_state_dict(state)
        self._epoch, self._drawn = self._sampler.course.begin(self._sampler.plan), 0


class BalancedBatchSampler(PlanBatchSampler):
    """Batches of exactly P classes with exactly K different examples of each, of any dataset.

    Args:
        labels: The label of every example, as a tensor, an array or a list; or the classes of a
            dataset of covey, ``ds.classes``.
        classes_per_batch, examples_per_class: P and K, of all ranks together if these share a
            batch.
        seed, steps_per_epoch, class_list, total_examples_per_class, small_classes,
            class_weights: Which batches, as for :class:`covey.plan.BalancedPlan`.
        rank, world: The part of one of several processes; by default, those of
            ``torch.distributed``, if that is initialised.
        mode: ``"split"``: all ranks together have one batch, each has some classes of it.
            ``"independent"``: each has whole batches.

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
        steps_per_epoch: EpochLength = "examples",
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
        super().__init__(plan.for_rank(*ranks(rank, world_size), mode))


def ranks(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Which process this is, of how many: as somebody says, or as ``torch.distributed`` does."""
    here, of = 0, 1
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        here, of = distributed.get_rank(), distributed.get_world_size()
    return here if rank is None else rank, of if world_size is None else world_size
