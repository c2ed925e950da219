"""Plans without classes: all records once per epoch, shuffled or in order."""

from __future__ import annotations

from typing import Any, Literal, get_args

from covey import _core
from covey.errors import check_int
from covey.plan.balanced import Plan, check_option, check_seed

Remainder = Literal["keep", "drop", "fill"]

REMAINDERS = get_args(Remainder)


class _EpochPlan(Plan):
    _shuffled: bool

    def __init__(self, records: int, batch_size: int, seed: int, remainder: Remainder) -> None:
        self.records = check_int("records", records, 1, 2**61)
        self.batch_size = check_int("batch_size", batch_size, 1, 2**40)
        self.seed = check_seed(seed)
        check_option("remainder", remainder, remainder in REMAINDERS, REMAINDERS)
        check_option(
            "batch_size",
            batch_size,
            remainder != "drop" or batch_size <= records,
            f"<= {records}, the number of records",
            reason="with remainder='drop' an epoch would have no batch",
        )
        self.remainder: Remainder = remainder
        super().__init__(self.batch_size)

    def _make(self) -> _core.Plan:
        return _core.epoch_plan(
            self.seed, self.records, self.batch_size, self.remainder, self._shuffled
        )

    @property
    def is_endless(self) -> bool:
        if self.remainder == "fill":
            return True
        is_short = self.remainder == "keep" and self.records % self.batch_size > 0
        # Several batches per step: an epoch may end with an incomplete step.
        return not is_short and self.batches_per_step == 1

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

    def _have_equal_lengths(self, start: int, stop: int) -> bool:
        # No epoch ends between them.
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
    """All records once per epoch, in a different order in each epoch.

    Args:
        records: Number of records.
        batch_size: Number of records per batch.
        seed: Seed of the orders.
        remainder: How to handle records that do not fill the last batch of an epoch: ``"keep"``
            returns a smaller batch; ``"drop"`` omits them; ``"fill"`` completes the batch with
            records of the next epoch, which continues after it. With ``"fill"`` all batches have
            the same size, no batch contains a record twice (unless there are fewer records), and
            all records are drawn equally often.

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
    """All records once per epoch, in order.

    Args:
        records: Number of records.
        batch_size: Number of records per batch.
        remainder: As for :class:`ShuffledPlan`.
    """

    _shuffled = False

    def __init__(self, records: int, batch_size: int, *, remainder: Remainder = "keep") -> None:
        super().__init__(records, batch_size, 0, remainder)
