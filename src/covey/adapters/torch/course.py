"""Epochs of a plan, one after the other: what an iteration is, for PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from covey.errors import PlanError
from covey.plan import Plan
from covey.plan.base import check_int


class Epoch(NamedTuple):
    """An epoch, or what is left of one: the first batch, and how many steps there are."""

    first: int
    steps: int

    def after(self, steps: int, plan: Plan) -> int:
        """The batch that comes next after some steps."""
        batch = self.first + steps * plan.batches_per_step
        return batch if plan.is_endless else min(batch, plan.end_of_epoch(self.first))


@dataclass
class Course:
    """Where somebody is who goes through a plan by epochs.

    An iteration is an epoch, or what is left of one if somebody says where to begin. It has begun
    when its first batch is asked for: an iterator that is made and forgotten changes nothing. One
    that is left before its end is over all the same, and the next one begins the next epoch.
    """

    next: int
    """The batch that the next iteration begins with."""
    is_empty: bool
    """Whether that iteration ends at once: it is one that went on after its last batch."""
    is_given: bool
    """Whether somebody has said where it begins."""
    at: int
    """The batch that comes next, for a caller that has all that were returned."""
    is_drained: bool
    """Whether those were all of an epoch, whose iteration has not ended yet."""

    @classmethod
    def of(cls, batch: int) -> Course:
        """A course that begins with a batch."""
        return cls(batch, False, True, batch, False)

    def go_to(self, batch: int, *, is_drained: bool = False) -> None:
        """Begin the next iteration with a batch."""
        self.next = self.at = batch
        self.is_empty = self.is_drained = is_drained
        self.is_given = True

    def set_epoch(self, epoch: int, plan: Plan) -> None:
        """Begin the next iteration with an epoch; or in its midst, if that is where to go on."""
        length = plan.batches_per_epoch
        epoch = check_int("epoch", epoch, 0, plan.native.last_batch // length - 2)
        inside = self.next - 1 if self.is_empty else self.next
        if not self.is_given or inside // length != epoch:
            self.go_to(epoch * length)

    def begin(self, plan: Plan) -> Epoch:
        """Begin an iteration."""
        first = self.next
        epoch = Epoch(first, 0 if self.is_empty else plan.steps_left(first))
        if plan.is_endless:
            self.next = epoch.after(epoch.steps, plan)
        elif not self.is_empty or first % plan.batches_per_epoch:
            self.next = plan.end_of_epoch(first)
        self.is_drained, self.is_empty, self.is_given = self.is_empty, False, False
        self.at = first
        return epoch

    def emit(self, epoch: Epoch, steps: int, plan: Plan) -> None:
        """So many batches of an epoch were returned by now."""
        self.at = epoch.after(steps, plan)
        self.is_drained = steps == epoch.steps

    def end(self) -> None:
        """An iteration has ended."""
        self.at, self.is_drained = self.next, False

    def state(self, saved: dict[str, Any]) -> dict[str, Any]:
        """A state of a plan, at the batch that comes next."""
        return {**saved, "batch": self.at, **({"drained": True} if self.is_drained else {})}


def is_drained(state: Any) -> bool:
    """What a state says of an iteration that had no batches left.

    Raises:
        PlanError: If that cannot be.
    """
    found = state.get("drained", False)
    if not isinstance(found, bool):
        raise PlanError(f"the state of a loader is corrupt: drained is {found!r}")
    return found
