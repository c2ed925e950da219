"""Epochs of a plan, one per iteration of a sampler, with an exact state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from torch.utils.data import Sampler

from covey.errors import PlanError
from covey.loader import state as states
from covey.loader.iterator import Position
from covey.plan import Plan
from covey.plan.base import check_int

Item = TypeVar("Item", covariant=True)


class EpochSteps(NamedTuple):
    """The steps of an epoch, or of the rest of one."""

    first: int
    """Index of the first batch."""
    steps: int

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
    """

    def __init__(self, position: Position) -> None:
        self._position = position
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

    def move(self, batch: int, *, is_drained: bool = False) -> None:
        """Begin the next iteration with `batch`.

        Args:
            batch: Index of the batch.
            is_drained: All batches of the epoch before `batch` were returned, but not its end: the
                next iteration is empty.
        """
        self._next = self._position.batch = self._seen = batch
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

    @property
    def next(self) -> int:
        """Index of the batch with which the next iteration begins."""
        self._follow()
        return self._next

    def begin(self) -> EpochSteps:
        """Begin an iteration, and return its steps."""
        first, plan = self.next, self.plan
        epoch = EpochSteps(first, 0 if self._is_empty else plan.steps_left(first))
        if plan.is_endless:
            self._next = epoch.batch_after(epoch.steps, plan)
        elif not self._is_empty or first % plan.batches_per_epoch:
            self._next = plan.end_of_epoch(first)
        self._is_drained, self._is_empty, self._is_explicit = self._is_empty, False, False
        self._position.batch = self._seen = first
        return epoch

    def advance(self, epoch: EpochSteps, steps: int) -> None:
        """Record that `steps` steps of `epoch` were returned."""
        self._position.batch = self._seen = epoch.batch_after(steps, self.plan)
        self._is_drained = steps == epoch.steps

    def end(self) -> None:
        """Record that the end of the iteration was returned."""
        self._position.batch = self._seen = self._next
        self._is_drained = False

    def state_dict(self, epoch: EpochSteps | None = None, steps: int = 0) -> dict[str, Any]:
        """Return the position, or the position after `steps` steps of `epoch`."""
        self._follow()
        if self._saved is None or self._saved[0] is not self.plan:
            self._saved = self.plan, states.save(self.plan, 0)
        batch, is_drained = self._position.batch, self._is_drained
        if epoch is not None:
            batch, is_drained = epoch.batch_after(steps, self.plan), steps == epoch.steps
        return {**self._saved[1], "batch": batch, **({"drained": True} if is_drained else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at the position of `state`."""
        plan, batch = states.load(self.plan, state)
        is_drained = state.get("drained", False)
        if not isinstance(is_drained, bool):
            raise PlanError(
                "the state is corrupt", option="drained", found=is_drained, allowed="a bool"
            )
        self._position.plan = plan
        self.move(batch, is_drained=is_drained)


class EpochSampler(Sampler[Item]):
    """Base class of samplers whose iterations are epochs of a plan.

    Args:
        position: The plan, and the batch to begin with.
    """

    def __init__(self, position: Position) -> None:
        self.cursor = EpochCursor(position)

    def item(self, batch: int) -> Item:
        """Return what the sampler yields for the step that begins with `batch`."""
        raise NotImplementedError

    @property
    def plan(self) -> Plan:
        """The plan: which examples a batch has."""
        return self.cursor.plan

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

    def __next__(self) -> Item:
        cursor = self._sampler.cursor
        if self._epoch is None:
            self._epoch = cursor.begin()
        if self._drawn == self._epoch.steps:
            self._end()
            raise StopIteration
        batch = self._epoch.first + self._drawn * cursor.plan.batches_per_step
        self._drawn += 1
        self._advance(self._epoch, self._drawn)
        return self._sampler.item(batch)

    def _advance(self, epoch: EpochSteps, steps: int) -> None:
        self._sampler.cursor.advance(epoch, steps)

    def _end(self) -> None:
        self._sampler.cursor.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the position within this iteration."""
        cursor = self._sampler.cursor
        if self._epoch is not None:
            return cursor.state_dict(self._epoch, self._drawn)
        state = cursor.state_dict()
        return {**state, "batch": cursor.next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position within another iteration."""
        self._sampler.load_state_dict(state)
        self._epoch, self._drawn = self._sampler.cursor.begin(), 0
