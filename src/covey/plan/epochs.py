"""Plans without classes: all records once an epoch, shuffled or in order."""

from __future__ import annotations

from typing import Any, Literal, get_args

from covey import _core
from covey.errors import PlanError
from covey.plan.base import Plan, check_int, check_seed

Remainder = Literal["keep", "drop", "fill"]

# In the order of the native core's.
REMAINDERS = get_args(Remainder)


class _EpochPlan(Plan):
    _shuffled: bool

    def __init__(self, records: int, batch_size: int, seed: int, remainder: Remainder) -> None:
        self.records = check_int("the number of records", records, 1, 2**61)
        self.batch_size = check_int("batch_size", batch_size, 1, 2**40)
        self.seed = check_seed(seed)
        if remainder not in REMAINDERS:
            raise PlanError(
                option="remainder",
                found=remainder,
                allowed=f"one of {', '.join(map(repr, REMAINDERS))}",
            )
        if remainder == "drop" and records < batch_size:
            raise PlanError(
                f"batch_size is {batch_size}, but there are only {records} records, and remainder is "
                "'drop': there would be no batch"
            )
        self.remainder: Remainder = remainder
        self.is_endless = remainder == "fill"
        super().__init__(self.batch_size)

    def _make(self) -> _core.Plan:
        rest = REMAINDERS.index(self.remainder)
        return _core.epoch_plan(self.seed, self.records, self.batch_size, rest, self._shuffled)

    @property
    def batches_per_epoch(self) -> int:
        if self.remainder == "drop":
            return self.records // self.batch_size
        batches = -(-self.records // self.batch_size)
        if self.remainder == "keep":
            return batches
        return -(-batches // self.batches_per_step) * self.batches_per_step

    def _units_of(self, batch: int) -> int:
        first = batch % self.batches_per_epoch * self.batch_size
        is_last = self.remainder == "keep" and first + self.batch_size > self.records
        return self.records - first if is_last else self.batch_size

    def _are_alike(self, start: int, stop: int) -> bool:
        # Whether no epoch ends among them.
        first, end = start * self.batches_per_step, stop * self.batches_per_step
        return self.remainder != "keep" or first // self.batches_per_epoch == (
            end // self.batches_per_epoch
        )

    @property
    def description(self) -> dict[str, Any]:
        return {
            "kind": "shuffled" if self._shuffled else "sequential",
            "seed": self.seed,
            "records": self.records,
            "batch_size": self.batch_size,
            "remainder": self.remainder,
        }


class ShuffledPlan(_EpochPlan):
    """All records once an epoch, in an order that is another one each time.

    Args:
        records: How many there are.
        batch_size: How many a batch has.
        seed: Which orders.
        remainder: What becomes of those that do not fill the last batch of an epoch: ``"keep"``, they
            are a smaller one; ``"drop"``, they are left out; ``"fill"``, the batch is filled from
            the next epoch, which goes on behind it: all batches are full, no record comes twice in
            one (unless there are fewer than that), and each as often as any other.

    >>> epoch = ShuffledPlan(5, 2, seed=1).batches(0, 3)
    >>> [ids.tolist() for ids in epoch]
    [[1, 0], [3, 4], [2]]
    """

    _shuffled = True

    def __init__(
        self, records: int, batch_size: int, seed: int = 0, *, remainder: Remainder = "keep"
    ) -> None:
        super().__init__(records, batch_size, seed, remainder)


class SequentialPlan(_EpochPlan):
    """All records once an epoch, in their order.

    Args:
        records: How many there are.
        batch_size: How many a batch has.
        remainder: As for :class:`ShuffledPlan`.
    """

    _shuffled = False

    def __init__(self, records: int, batch_size: int, *, remainder: Remainder = "keep") -> None:
        super().__init__(records, batch_size, 0, remainder)
