"""``MPerClassSampler``, by the name that users of pytorch-metric-learning know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from covey.adapters import as_array
from covey.adapters.torch.samplers import PlanBatchSampler, ranks
from covey.errors import PlanError
from covey.plan import BalancedPlan


class MPerClassError(PlanError, AssertionError):
    """What ``MPerClassSampler`` of pytorch-metric-learning refuses as well, by an assertion."""


class MPerClassSampler(Sampler[int]):
    """Takes the place of ``MPerClassSampler`` of pytorch-metric-learning.

    The same lengths and the same promise: every ``batch_size`` examples in a row are m of each of
    some classes. Beyond that it is seeded, and fair: every class comes once before any comes twice,
    and so does every example of a class. Each iteration gives others.

    Args:
        labels: The label of every example, as a tensor, an array or a list.
        m: How many examples of a class there are in a batch.
        batch_size: How many examples a batch has; None for m of every class.
        length_before_new_iter: How many examples an iteration has, at the most.
        seed: Which ones.
        rank, world: Which process this is, of how many: each has batches of its own. By default,
            those of ``torch.distributed``, if that is initialised.

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
        super().__init__()
        # Labels may be anything there, also strings and fractions.
        found, numbers = np.unique(as_array(labels), return_inverse=True)
        self.labels: list[Any] = found.tolist()
        self.m_per_class = int(m)
        self.batch_size = None if batch_size is None else int(batch_size)
        self.length_of_single_pass = self.m_per_class * len(self.labels)
        length = int(length_before_new_iter)
        if not self.labels:
            raise PlanError("there are no labels, and nothing to draw from")
        if self.m_per_class < 1 or length < 1:
            raise PlanError(f"m is {m} and length_before_new_iter is {length}; must be 1 or more")
        each = self.length_of_single_pass if self.batch_size is None else self.batch_size
        if self.batch_size is not None:
            self._check(self.batch_size, length)
        self.list_size = length - length % each if each < length else length
        plan = BalancedPlan(
            numbers,
            each // self.m_per_class,
            self.m_per_class,
            seed,
            steps_per_epoch=max(1, self.list_size // each),
        )
        self.batches = PlanBatchSampler(plan.for_rank(*ranks(rank, world_size), "independent"))
        self.size = min(each, self.list_size)
        self.skip = 0  # so many of the next batch were returned before
        self.last: ExampleDrawing | None = None  # the iteration that has drawn the last batch

    def _check(self, batch_size: int, length: int) -> None:
        if batch_size < 1 or batch_size % self.m_per_class:
            raise MPerClassError(
                f"batch_size is {batch_size}; must be a multiple of m, which is {self.m_per_class}"
            )
        if batch_size > self.length_of_single_pass:
            raise MPerClassError(
                f"batch_size is {batch_size}, but m examples of each of the {len(self.labels)} "
                f"classes are only {self.length_of_single_pass}"
            )
        if batch_size > length:
            raise MPerClassError(
                f"length_before_new_iter is {length}; must be at least batch_size, which is "
                f"{batch_size}"
            )

    def __len__(self) -> int:
        """The examples of an iteration."""
        return self.list_size

    def __iter__(self) -> ExampleDrawing:
        """The numbers of the next examples."""
        return ExampleDrawing(self)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration as the one of this number.

        If a state was loaded that is in the midst of it, that is where the iteration goes on.
        """
        before = self.batches.course.next
        self.batches.set_epoch(epoch)
        self.last = None
        if self.batches.course.next != before:
            self.skip = 0

    def state_dict(self) -> dict[str, Any]:
        """What comes next, as a JSON object."""
        if self.last is not None and self.last.left:
            return self.last.state_dict()
        return {**self.batches.state_dict(), "skip": self.skip}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was.

        Raises:
            PlanError: If that had other labels, or another seed.
        """
        skip = state.get("skip", 0) if isinstance(state, Mapping) else 0
        if type(skip) is not int or not 0 <= skip < self.size:
            raise PlanError(f"the state of a sampler is corrupt: skip is {skip!r}")
        self.batches.load_state_dict(state)
        self.last, self.skip = None, skip


class ExampleDrawing(Iterator[int]):
    """One iteration over the examples of batches."""

    def __init__(self, sampler: MPerClassSampler) -> None:
        self._sampler = sampler
        self._batches = iter(sampler.batches)
        self.left: list[int] = []  # of the last batch, backwards

    def __next__(self) -> int:
        sampler = self._sampler
        if not self.left:
            ids = next(self._batches)[: sampler.size]
            self.left = ids[sampler.skip :][::-1]
            sampler.skip, sampler.last = 0, self
        return self.left.pop()

    def state_dict(self) -> dict[str, Any]:
        """What comes next in this iteration."""
        state = self._batches.state_dict()
        if not self.left:
            return {**state, "skip": self._sampler.skip}
        # A batch that was drawn is to be drawn once more.
        state.pop("drained", None)
        batch = state["batch"] - self._sampler.batches.plan.batches_per_step
        return {**state, "batch": batch, "skip": self._sampler.size - len(self.left)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with another iteration."""
        self._sampler.load_state_dict(state)
        self._batches.load_state_dict(state)
        self.left = []
