"""The base class of plans: record ids by step, for one of several ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import PlanError, check, shorten
from covey.errors import check_int as check_int

Ids = NDArray[np.int64]
Mode = Literal["split", "independent"]
Self = TypeVar("Self", bound="Plan")

MODES = get_args(Mode)

check_option = partial(check, error=PlanError)

# Maximum number of classes or records that one call draws.
_MAX_DRAWN_UNITS = 2**32


class BatchKey(NamedTuple):
    """Identity of the rows of one rank in a batch, from which random numbers are derived."""

    seed: int
    step: int
    """Index of the batch over all epochs and ranks."""
    row: int = 0
    """Index, in the batch of all ranks, of the first row of this rank."""
    examples_per_class: int = 1
    """Number of consecutive rows of each class; 1 without classes."""

    def generator(self, row: int | None = None) -> np.random.Generator:
        """Return the generator of the batch, or of one of its rows.

        The streams are segments of one Philox sequence with the key (seed, step): they never
        overlap, and none has to be drawn to reach another.
        """
        counter = (0, 0, 1, 0) if row is None else (0, 0, 0, self.row + row + 1)
        key = np.array([self.seed, self.step], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=np.array(counter, np.uint64)))


class Plan(ABC):
    """The record ids of each step.

    A step of one process is one batch. With several ranks, a step is a part of a batch, or one of
    several batches; see :meth:`for_rank`.

    Args:
        units: Number of units of a batch, the parts that ranks share: classes or records.
    """

    rank = 0
    """Index of this process."""
    world_size = 1
    """Number of processes."""
    mode: Mode = "split"
    """How ranks share the batches."""

    seed: int
    """Seed of all random choices."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._native = self._make()

    @abstractmethod
    def _make(self) -> _core.Plan:
        """Return the plan of the native core."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._native = self._make()

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int:
        """Number of batches per epoch, of all ranks together."""

    # Steps, batches and epochs.

    @property
    def is_endless(self) -> bool:
        """Whether all steps are complete, so that steps continue across the end of an epoch."""
        return True

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch of this rank."""
        return self.steps_left(0)

    def batch_at(self, step: int) -> int:
        """Return the index of the first batch of `step`, over all ranks."""
        if self.is_endless:
            return step * self.batches_per_step
        epoch, within = divmod(step, self._max_steps)
        return epoch * self.batches_per_epoch + within * self.batches_per_step

    def step_at(self, batch: int) -> int:
        """Return the number of steps before `batch`."""
        if self.is_endless:
            return batch // self.batches_per_step
        epoch, within = divmod(batch, self.batches_per_epoch)
        return epoch * self._max_steps + -(-within // self.batches_per_step)

    def end_of_epoch(self, batch: int) -> int:
        """Return the index of the first batch of the epoch after that of `batch`."""
        return (batch // self.batches_per_epoch + 1) * self.batches_per_epoch

    def steps_left(self, batch: int) -> int:
        """Return the number of steps of this rank from `batch` to the end of its epoch.

        It may differ between ranks if an epoch ends with an incomplete step.
        """
        left = self.end_of_epoch(batch) - batch
        if not self.is_endless and self.mode == "independent":
            left -= self.rank
        return max(0, -(-left // self.batches_per_step))

    @property
    def _max_steps(self) -> int:
        """Number of steps per epoch of the rank with the most steps."""
        return -(-self.batches_per_epoch // self.batches_per_step)

    # Batches.

    def batch(self, step: int) -> Ids:
        """Return the record ids of `step`."""
        ids, _ = self._draw(check_step(step, self), 1)
        return np.asarray(ids[0])

    def batches(self, start: int, stop: int) -> Any:
        """Return the record ids of the steps ``[start, stop)``, as an array with one row per step.

        The result is a list of arrays if their lengths differ.
        """
        start, stop = check_step(start, self), check_step(stop, self)
        if stop <= start or self._have_equal_lengths(start, stop):
            return self._draw(start, max(0, stop - start))[0]
        batches = [self.batch(step) for step in range(start, stop)]
        return np.stack(batches) if len({len(ids) for ids in batches}) == 1 else batches

    def _have_equal_lengths(self, start: int, stop: int) -> bool:
        """Return whether the steps ``[start, stop)`` are known to have the same length."""
        return True

    def _draw(self, start: int, count: int) -> tuple[Ids, Ids | None]:
        if count > _MAX_DRAWN_UNITS // self._units:
            raise PlanError(f"{count} batches are too many for one call")
        return self._native.draw(start, count, self.share())

    def for_rank(self: Self, rank: int, world_size: int, mode: Mode = "split") -> Self:
        """Return the plan of one of several processes.

        Args:
            rank: Index of the process, from 0.
            world_size: Number of processes.
            mode: ``"split"`` divides batch s among the ranks as step s, by classes or, without
                classes, by records. ``"independent"`` gives every rank complete batches: step s is
                batch ``s * world_size + rank``.
        """
        rank, world_size = check_int("rank", rank, 0), check_int("world_size", world_size, 1)
        allowed = f"below world_size, which is {world_size}"
        check_option("rank", rank, rank < world_size, allowed)
        check_option("mode", mode, mode in MODES, MODES)
        if mode == "split" and world_size > self._units:
            raise PlanError(
                f"a batch of {self._units} units cannot be split over {world_size} ranks",
                remedy="use larger batches, or pass mode='independent'",
            )
        other = self._copy()
        other.__dict__.pop("batches_per_epoch", None)  # depends on the ranks
        other.rank, other.world_size, other.mode = rank, world_size, mode
        return other

    def _copy(self: Self) -> Self:
        """Return a copy whose attributes may be changed."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    @property
    def batches_per_step(self) -> int:
        """Number of batches per step, of all ranks together."""
        return self.world_size if self.mode == "independent" else 1

    def share(self, origin: int = 0) -> _core.Share:
        """Return the part of this rank for the native core, with step 0 at the batch `origin`."""
        return _core.Share(origin, self.rank, self.world_size, self.mode == "split")

    def key(self, step: int, origin: int = 0) -> BatchKey:
        """Return the identity of the batch of a step.

        Args:
            step: Index of the step, counted from `origin`.
            origin: Index of the batch of step 0.
        """
        rows = self._rows_per_unit
        if self.mode == "independent":
            return BatchKey(self.seed, origin + step * self.world_size + self.rank, 0, rows)
        batch = origin + step
        first = self._units_of(batch) * self.rank // self.world_size * rows
        return BatchKey(self.seed, batch, first, rows)

    _rows_per_unit = 1

    def _units_of(self, batch: int) -> int:
        """Return the number of units of `batch`."""
        return self._units

    @property
    def last_step(self) -> int:
        """Largest valid step."""
        return int(self._native.last_batch) // self.world_size - 2

    @property
    def native(self) -> _core.Plan:
        """The plan of the native core, for all ranks."""
        return self._native

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Parameters that determine the batches; a state is rejected if they differ."""

    def __repr__(self) -> str:
        # The checksum identifies a state; the type is the kind.
        shown = {k: v for k, v in self.description.items() if k not in ("kind", "sum")}
        parameters = ", ".join(f"{name}={shorten(repr(value))}" for name, value in shown.items())
        ranks = (
            f", rank {self.rank} of {self.world_size} ({self.mode})" if self.world_size > 1 else ""
        )
        return f"<{type(self).__name__}: {parameters}{ranks}>"


def check_step(step: Any, plan: Plan) -> int:
    """Return an argument as the index of a step of `plan`."""
    return check_int("step", step, 0, plan.last_step)


def check_seed(seed: Any) -> int:
    """Return an argument as a seed."""
    return check_int("seed", seed, 0, 2**64 - 1)
