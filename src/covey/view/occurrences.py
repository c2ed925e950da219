"""The next step that draws an example.

A balanced plan draws the examples of a class in an order of their own: visit i of the class has the
same examples, whichever step it falls on. So the search first finds the visit, in the plan of that
class alone, then its batch, by bisection over the number of visits. A plan without classes is
scanned.

A search returns after a time limit with a cursor, from which the next request continues; every
request gets further::

    batch                       without classes: the next batch to look at
    start.visit                 the next visit to look at, and the first one of this round
    start.visit.low.high        the visit is after `low` batches, and within the first `high`
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import numpy as np

from covey import _core
from covey.errors import PlanError
from covey.plan import BalancedPlan, Plan
from covey.view.messages import RequestError
from covey.view.plans import ShownPlan

SEARCH_TIME_S = 0.3
"""Time after which a search returns a cursor."""

CHUNK_EXAMPLES = 1 << 16
"""Number of examples that are drawn at a time."""

# Epochs that are searched: an epoch that drops its remainder does not have all examples.
_MAX_EPOCHS = 8

_CURSOR = re.compile(r"\d{1,19}(?:\.\d{1,19}(?:\.\d{1,19}\.\d{1,19})?)?", re.ASCII)
_ALL_RANKS = _core.Share(0, 0, 1, True)


@dataclass(frozen=True)
class Occurrence:
    """The result of a search.

    Args:
        step: The first step that draws the example; None if none was found.
        batch: Index of the batch.
        rank: The rank that draws it.
        row: Its row in the batch of that rank.
        cursor: Where to continue; None at the end of the search.
        reason: Why the example is never drawn.
    """

    step: int | None = None
    batch: int | None = None
    rank: int | None = None
    row: int | None = None
    cursor: str | None = None
    reason: str | None = None


class Search:
    """A search for an example, from a step on.

    Args:
        shown: The plan.
        example: Id of the example.
        step: The first step to look at.
        rank: The rank that draws it; None for any.
        time_limit: Time in seconds after which the search returns a cursor.
        chunk: Number of examples that are drawn at a time.
    """

    def __init__(
        self,
        shown: ShownPlan,
        example: int,
        step: int,
        rank: int | None = None,
        *,
        time_limit: float = SEARCH_TIME_S,
        chunk: int = CHUNK_EXAMPLES,
    ) -> None:
        self._shown = shown
        self._example = example
        self._first = shown.plan.batch_at(step)
        self._rank = rank
        self._chunk = chunk
        self._deadline = time.monotonic() + time_limit

    def run(self, cursor: str | None = None) -> Occurrence:
        """Search, or continue at a cursor of an earlier result."""
        plan = self._shown.plan
        if cursor is not None and _CURSOR.fullmatch(cursor) is None:
            raise RequestError("the cursor is not valid")
        numbers = [] if cursor is None else [int(each) for each in cursor.split(".")]
        if any(number >= plan.native.last_batch for number in numbers):
            raise RequestError("the cursor is not valid")
        if isinstance(plan, BalancedPlan):
            return self._by_class(plan, *numbers)
        return self._by_epoch(plan, *numbers[:1])

    @property
    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    # Balanced plans.

    def _by_class(
        self, plan: BalancedPlan, start: int = 0, visit: int = 0, low: int = 0, high: int = 0
    ) -> Occurrence:
        label = int(self._shown.dataset.labels_of(np.array([self._example], np.int64))[0])
        try:
            alone = plan.of_class(label)
        except PlanError:
            return Occurrence(reason="the plan does not draw from the class of the example")
        column = int(np.searchsorted(plan.labels, label))
        before = self._visits(plan, self._first, column)
        start, visit = max(start, before), max(visit, before)
        while True:
            if high <= low:
                found = self._scan(alone, start, visit)
                if isinstance(found, Occurrence):
                    return found
                visit = found
            batch = self._bisect(plan, column, start, visit, before, low, high)
            if isinstance(batch, Occurrence):
                return batch
            occurrence = self._locate(batch)
            if self._rank is None or occurrence.rank == self._rank:
                return occurrence
            start, visit, low, high = visit + 1, visit + 1, 0, 0
            if self._is_late:
                return Occurrence(cursor=f"{start}.{visit}")

    def _scan(self, alone: BalancedPlan, start: int, visit: int) -> int | Occurrence:
        """Return the first visit of a class, from `visit` on, that draws the example."""
        each = alone.examples_per_class
        # A round over the class has every example once, and a visit may be in two rounds.
        end = min(start + 2 * -(-alone.examples // each) + 1, alone.last_step)
        while visit < end:
            stop = min(end, visit + max(1, self._chunk // each))
            hits = np.flatnonzero((alone.batches(visit, stop) == self._example).any(axis=1))
            if len(hits):
                return visit + int(hits[0])
            visit = stop
            if self._is_late and visit < end:
                return Occurrence(cursor=f"{start}.{visit}")
        return Occurrence(reason="the plan does not draw from the example")

    def _bisect(
        self,
        plan: BalancedPlan,
        column: int,
        start: int,
        visit: int,
        before: int,
        low: int,
        high: int,
    ) -> int | Occurrence:
        """Return the batch of a visit of the class at a column, between the bounds of a cursor."""
        last = plan.native.last_batch - 1
        if high <= low:
            # With equal weights a round of all classes has one visit: these are bounds at once.
            classes = int(plan.description["classes"])
            rounds = max(0, visit - before - 1)
            guess = self._first + rounds * classes // plan.classes_per_batch
            low = self._first
            if low < guess < last and self._visits(plan, guess, column) <= visit:
                low = guess
            width = 2 * -(-classes // plan.classes_per_batch) + 1
            high = min(last, low + width)
            while self._visits(plan, high, column) <= visit:
                if high == last or width > 1 << 48:
                    return Occurrence(reason="the class of the example is not drawn from then on")
                low, width = high, 2 * width
                high = min(last, low + width)
        while high - low > 1:
            middle = (low + high) // 2
            if self._visits(plan, middle, column) <= visit:
                low = middle
            else:
                high = middle
            if self._is_late and high - low > 1:
                return Occurrence(cursor=f"{start}.{visit}.{low}.{high}")
        return low

    @staticmethod
    def _visits(plan: BalancedPlan, batches: int, column: int) -> int:
        return int(plan.native.count(batches)[column])

    # Plans without classes.

    def _by_epoch(self, plan: Plan, batch: int = 0) -> Occurrence:
        batch = max(batch, self._first)
        end = self._first + _MAX_EPOCHS * plan.batches_per_epoch
        end = min(end, plan.native.last_batch - 1)
        while batch < end:
            size = max(1, plan.native.draw(batch, 1, _ALL_RANKS)[0].size)
            # The last batch of an epoch may be shorter: it is drawn alone.
            left = plan.end_of_epoch(batch) - 1 - batch
            count = max(1, min(self._chunk // size, left, end - batch))
            ids, _ = plan.native.draw(batch, count, _ALL_RANKS)
            for row in np.flatnonzero((ids == self._example).any(axis=1)).tolist():
                occurrence = self._locate(batch + row)
                if self._rank is None or occurrence.rank == self._rank:
                    return occurrence
            batch += count
            if self._is_late:
                return Occurrence(cursor=str(batch))
        return Occurrence(reason=f"none of the next {_MAX_EPOCHS} epochs has the example")

    def _locate(self, batch: int) -> Occurrence:
        """Return the step, the rank and the row of the example in a batch."""
        plan = self._shown.plan
        within = batch if plan.is_endless else batch % plan.batches_per_epoch
        first = batch - within % plan.batches_per_step
        step = plan.step_at(first)
        ranks = range(plan.world_size) if plan.mode == "split" else (batch - first,)
        for rank in ranks:
            drawn = self._shown.draw(step, rank)
            rows = [] if drawn is None else np.flatnonzero(drawn.ids == self._example).tolist()
            if rows:
                return Occurrence(step, batch, rank, rows[0])
        raise AssertionError(f"batch {batch} does not have example {self._example}")
