"""What all plans have in common: batches by number, and their parts for ranks."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import PlanError

Ids = NDArray[np.int64]
Mode = Literal["split", "independent"]
Self = TypeVar("Self", bound="Plan")

MODES = get_args(Mode)

# Classes, or records, that are drawn at once: more is a mistake rather than a wish.
_MOST_AT_ONCE = 2**32


class Plan(ABC):
    """Batches of record ids, by their numbers.

    Step 0 is batch 0, unless :meth:`for_rank` says otherwise.
    """

    rank = 0
    """Which of the ranks this is the plan of,"""
    world_size = 1
    """of how many,"""
    mode: Mode = "split"
    """and what each takes."""

    is_endless = True
    """Whether batches go on beyond an epoch as if it had no end, or stop there."""

    seed: int

    def __init__(self, units: int) -> None:
        self._units = units  # of a batch: what ranks can share
        self._native = self._make()

    @abstractmethod
    def _make(self) -> _core.Plan:
        """The plan as the native core has it."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._native = self._make()

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int:
        """How many batches an epoch has, of all ranks together."""

    # Steps, batches and epochs.

    @property
    def steps_per_epoch(self) -> int:
        """How many steps an epoch has, on this rank."""
        return self.steps_left(0)

    def batch_at(self, step: int) -> int:
        """The first batch of a step, of all ranks together."""
        if self.is_endless:
            return step * self.batches_per_step
        epoch, within = divmod(step, self._most_steps)
        return epoch * self.batches_per_epoch + within * self.batches_per_step

    def step_at(self, batch: int) -> int:
        """How many steps there were before a batch."""
        if self.is_endless:
            return batch // self.batches_per_step
        epoch, within = divmod(batch, self.batches_per_epoch)
        return epoch * self._most_steps + -(-within // self.batches_per_step)

    def end_of_epoch(self, batch: int) -> int:
        """The first batch of the next epoch."""
        return (batch // self.batches_per_epoch + 1) * self.batches_per_epoch

    def steps_left(self, batch: int) -> int:
        """How many steps of this rank there are from a batch to the end of its epoch.

        Where batches end with the epoch, the last ones may be too few for all ranks.
        """
        left = self.end_of_epoch(batch) - batch
        if not self.is_endless and self.mode == "independent":
            left -= self.rank
        return max(0, -(-left // self.batches_per_step))

    @property
    def _most_steps(self) -> int:
        """The steps of an epoch on the rank that has most."""
        return -(-self.batches_per_epoch // self.batches_per_step)

    # Batches.

    def batch(self, step: int) -> Ids:
        """The ids of the records of a step, in order."""
        ids, _ = self._draw(check_step(step, self), 1)
        return np.asarray(ids[0])

    def batches(self, start: int, stop: int) -> Any:
        """The same of the steps ``[start, stop)``: an array with a row for each.

        If the last batch of an epoch is shorter and among them, it is a list of arrays.
        """
        start, stop = check_step(start, self), check_step(stop, self)
        if stop <= start or self._are_alike(start, stop):
            return self._draw(start, max(0, stop - start))[0]
        each = [self.batch(step) for step in range(start, stop)]
        return np.stack(each) if len({len(ids) for ids in each}) == 1 else each

    def _are_alike(self, start: int, stop: int) -> bool:
        """Whether batches are known to have all the same length."""
        return True

    def _draw(self, start: int, count: int) -> tuple[Ids, Ids | None]:
        if count > _MOST_AT_ONCE // self._units:
            raise PlanError(f"{count} batches are too many at once; ask for some at a time")
        return self._native.draw(start, count, self.share())

    def for_rank(self: Self, rank: int, world_size: int, mode: Mode = "split") -> Self:
        """The part of the plan that one of several processes takes.

        Args:
            rank: Which one, from 0.
            world: How many there are.
            mode: ``"split"``: step s of all ranks together is batch s, each has some classes of it
                (or some records, if there are no classes). ``"independent"``: each rank has whole batches;
                step s is batch s * world + rank.
        """
        rank, world_size = check_int("rank", rank, 0), check_int("world_size", world_size, 1)
        if rank >= world_size:
            raise PlanError(
                option="rank", found=rank, allowed=f"below world_size, which is {world_size}"
            )
        if mode not in MODES:
            raise PlanError(option="mode", found=mode, allowed="'split' or 'independent'")
        if mode == "split" and world_size > self._units:
            raise PlanError(
                f"a batch has {self._units} parts, which cannot be split over {world_size} ranks; have "
                "larger batches, or mode='independent'"
            )
        other = self._copy()
        other.__dict__.pop("batches_per_epoch", None)  # that was of so many ranks
        other.rank, other.world_size, other.mode = rank, world_size, mode
        return other

    def _copy(self: Self) -> Self:
        """The same plan, of which something may be changed."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @property
    def batches_per_step(self) -> int:
        """How many batches all ranks together take in a step."""
        return self.world_size if self.mode == "independent" else 1

    def share(self, origin: int = 0) -> _core.Share:
        """What this rank takes, as the native core has it, from a batch on."""
        return _core.Share(origin, self.rank, self.world_size, self.mode == "split")

    def key(self, step: int, origin: int = 0) -> tuple[int, int, int, int]:
        """Return what identifies the rows of this rank in a step, for random numbers.

        Args:
            step: Index of the step, counted from `origin`.
            origin: Index of the batch of step 0.

        Returns:
            The seed; the index of the batch; the index in it of the first row of this rank; the
            number of examples per class (1 without classes).
        """
        rows = self._rows_per_unit
        if self.mode == "independent":
            return self.seed, origin + step * self.world_size + self.rank, 0, rows
        batch = origin + step
        return self.seed, batch, self._units_of(batch) * self.rank // self.world_size * rows, rows

    _rows_per_unit = 1

    def _units_of(self, batch: int) -> int:
        """Return the number of units of a batch: of what ranks share."""
        return self._units

    @property
    def last_step(self) -> int:
        """The last step that there is: numbers of records in a row are below 2^62."""
        return int(self._native.last_batch) // self.world_size - 2

    @property
    def native(self) -> _core.Plan:
        """The plan as the native core has it, of all ranks."""
        return self._native

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What must be the same for batches to be the same, for a caller that resumes."""

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.description.items())
        ranks = (
            f", rank {self.rank} of {self.world_size} ({self.mode})" if self.world_size > 1 else ""
        )
        return f"<{type(self).__name__}: {told}{ranks}>"


def check_int(name: str, value: Any, minimum: int, maximum: int | None = None) -> int:
    """Return an argument as an integer.

    Args:
        name: Name of the argument.
        value: Its value; any type with ``__index__`` except bool.
        minimum: Smallest valid value.
        maximum: Largest valid value, if there is one.

    Raises:
        PlanError: If it is not an integer, or not within the bounds.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    is_large = maximum is not None and number > maximum
    if isinstance(value, (bool, np.bool_)) or number < minimum or is_large:
        bounds = f">= {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise PlanError(option=name, found=value, allowed=f"an integer {bounds}")
    return number


def check_step(step: Any, plan: Plan) -> int:
    """Return an argument as the index of a step of `plan`."""
    return check_int("step", step, 0, plan.last_step)


def check_seed(seed: Any) -> int:
    """Return an argument as a seed."""
    return check_int("seed", seed, 0, 2**64 - 1)
