"""Batches of P classes with K examples of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covey import _core
from covey.classes import ClassTable
from covey.errors import PlanError
from covey.plan.base import Ids, Plan, check_int, check_seed, check_step
from covey.plan.coverage import Coverage, cover
from covey.plan.weights import SmallClasses, choose, parse_weights, quotas_of

Weights = ArrayLike | Mapping[int | str | bytes, float] | Literal["sqrt", "size"]
Epoch = int | Literal["classes", "examples"]
Change = tuple[int, NDArray[np.uint64] | None]


class BalancedPlan(Plan):
    """Batches of exactly P classes, with exactly K different examples of each.

    Every class comes once before any comes twice, and every example of a class once before any
    comes twice. A batch is a function of the seed and its number.

    Args:
        classes: The classes of a dataset, ``ds.classes``; or the label of every example.
        classes_per_batch: P.
        examples_per_class: K.
        seed: Which batches.
        class_list: Draw from these classes only; by their labels or names.
        total_examples_per_class: Use only the first so many examples of each class.
        small_classes: What becomes of classes with fewer than K examples: ``"repeat"`` some of
            them in a batch, ``"drop"`` the class, or ``"error"``. The first two warn.
        class_weights: How often classes come, as compared with each other: an array in the order of
            ``ds.classes``; a dict by class, where others have 1; ``"size"``, as many as a class has
            examples, or ``"sqrt"``, its root. No class comes more than once a batch.
        steps_per_epoch: A number; ``"classes"``, as many as show every class; or ``"examples"``, as
            many as show every example.

    >>> plan = BalancedPlan(["owl", "wren", "owl", "owl", "wren", "crow", "crow"], 2, 2, seed=1)
    >>> plan.batch(0).tolist(), plan.classes(0).tolist()
    ([1, 4, 0, 3], [2, 1])
    """

    def __init__(
        self,
        classes: ClassTable | ArrayLike,
        classes_per_batch: int,
        examples_per_class: int = 2,
        seed: int = 0,
        *,
        class_list: Iterable[int | str | bytes] | None = None,
        total_examples_per_class: int | None = None,
        small_classes: SmallClasses = "repeat",
        class_weights: Weights | None = None,
        steps_per_epoch: Epoch = "examples",
    ) -> None:
        table = classes if isinstance(classes, ClassTable) else ClassTable.parse(classes)
        self.classes_per_batch = check_int("classes_per_batch", classes_per_batch, 1)
        self.examples_per_class = check_int("examples_per_class", examples_per_class, 1, 2**32)
        self.seed = check_seed(seed)
        if total_examples_per_class is not None:
            check_int("total_examples_per_class", total_examples_per_class, 1, 2**62)
        self._epoch = _parse_epoch(steps_per_epoch)
        self._eligible = choose(
            table,
            self.examples_per_class,
            class_list=class_list,
            total_examples_per_class=total_examples_per_class,
            small_classes=small_classes,
        )
        there = len(self._eligible)
        if there < self.classes_per_batch:
            raise PlanError(
                f"classes_per_batch is {classes_per_batch}, but there are only {there} classes to "
                "draw from"
            )
        quotas = None if class_weights is None else self._quotas(class_weights)
        # The quotas from each batch on.
        self._changes: tuple[Change, ...] = () if quotas is None else ((0, quotas),)
        super().__init__(self.classes_per_batch)

    def _make(self) -> _core.Plan:
        by_class = self._eligible.table.by_class
        plan = _core.balanced_plan(
            self.seed,
            self._eligible.labels,
            self._eligible.firsts,
            self._eligible.counts,
            by_class,
            by_class.dtype.itemsize == 8,
            self.classes_per_batch,
            self.examples_per_class,
        )
        for batch, quotas in self._changes:
            plan = plan.reweighted(batch, quotas)
        return plan

    @property
    def _rows_per_unit(self) -> int:  # type: ignore[override]
        return self.examples_per_class

    def _quotas(self, class_weights: Weights) -> NDArray[np.uint64]:
        return quotas_of(parse_weights(class_weights, self._eligible), self.classes_per_batch)

    def classes(self, step: int) -> Ids:
        """The labels of the classes of a step, in order."""
        _, labels = self._draw(check_step(step, self), 1)
        assert labels is not None
        return np.asarray(labels[0])

    @property
    def labels(self) -> Ids:
        """The labels of all classes that are drawn from."""
        return self._eligible.labels

    @property
    def records(self) -> Ids:
        """The numbers of all records that are drawn from, in order."""
        counts = self._eligible.counts.astype(np.int64)
        ends = counts.cumsum()
        # Where each class begins in its table, less where it begins here.
        shifts = self._eligible.firsts.astype(np.int64) - (ends - counts)
        places = np.arange(ends[-1]) + shifts.repeat(counts)
        return np.sort(self._eligible.table.by_class[places]).astype(np.int64, copy=False)

    # Weights.

    def reweighted(self, class_weights: Weights | None, *, batch: int) -> BalancedPlan:
        """The same plan up to a batch, and with other weights from it on.

        Examples go on where they were: those of a class that were not shown yet come first.

        Args:
            class_weights: As for the plan; None for equally many of all.
            batch: The number of the first batch that is to be other. Of several ranks, all say the
                same.
        """
        quotas = None if class_weights is None else self._quotas(class_weights)
        return self._change(check_step(batch, self), quotas)

    @property
    def changes(self) -> tuple[Change, ...]:
        """How weights have changed: from which batch on, and the quotas that they came to."""
        return self._changes

    def with_changes(self, changes: Iterable[Change]) -> BalancedPlan:
        """The same plan with the changes of another one, instead of its own.

        Raises:
            PlanError: If they are not those of such a plan.
        """
        plan = self._change(0, None)
        plan._changes = ()
        for batch, quotas in changes:
            plan = plan._change(batch, quotas)
        return plan

    def _change(self, batch: int, quotas: NDArray[np.uint64] | None) -> BalancedPlan:
        other = self._copy()
        try:
            other._native = self._native.reweighted(batch, quotas)
        except (ValueError, IndexError) as error:
            raise PlanError(f"weights from batch {batch} on cannot be: {error}") from None
        kept = tuple(each for each in self._changes if each[0] < batch)
        other._changes = (*kept, (batch, quotas))
        if batch == 0:  # an epoch is as long as the first weights make it
            other.__dict__.pop("batches_per_epoch", None)
        return other

    # Epochs.

    @cached_property
    def batches_per_epoch(self) -> int:
        each = self.batches_per_step
        if isinstance(self._epoch, int):
            return self._epoch * each
        counts = self._eligible.counts
        wanted = np.ones_like(counts)
        if self._epoch == "examples":
            examples = np.uint64(self.examples_per_class)
            wanted = (counts + examples - np.uint64(1)) // examples
        return -(-self._batches_until(wanted) // each) * each

    def _batches_until(self, wanted: NDArray[np.uint64]) -> int:
        """How many batches visit every class so often; of those that have a weight."""
        first = self._changes[0] if self._changes else (1, None)
        if first[0] > 0 or first[1] is None:
            return -(-int(wanted.max()) * len(wanted) // self.classes_per_batch)
        plan, quotas = self.with_changes((first,))._native, first[1]
        # Visits are less than seven off what they should be; whole spans are looked for.
        span = -(-len(wanted) // self.classes_per_batch)
        due = quotas > 0
        need, rate = wanted[due].astype(np.float64), quotas[due] / _core.PLAN_SPANS
        least, most = int(((need - 7) / rate).max()), int(((need + 7) / rate).max()) + 1
        least = max(least - 1, 0)  # is not enough, or nothing
        while most - least > 1:
            middle = (least + most) // 2
            enough = bool((plan.count(middle * span)[due] >= wanted[due]).all())
            least, most = (least, middle) if enough else (middle, most)
        return most * span

    def coverage(self, steps: int) -> Coverage:
        """How much of the classes and examples the first steps show, and how often.

        >>> print(BalancedPlan([0, 0, 0, 1, 1, 1, 2, 2, 2], 2, 2, seed=1).coverage(3))
        3 steps: 100.0% of the classes (2 times each), 100.0% of the examples (1 to 2 times each)
        """
        visits = self._native.count(check_step(steps, self) * self.batches_per_step)
        return cover(steps, visits, self._eligible.counts, self.examples_per_class)

    # What is needed to go on.

    def _checksum(self) -> int:
        """Of the classes, and of what tells that their records are others."""
        eligible = self._eligible
        records = np.ascontiguousarray(eligible.table.by_class[:_RECORDS_COMPARED])
        found = _core.crc32c(eligible.labels)
        return _core.crc32c(records, _core.crc32c(eligible.counts, found))

    @cached_property
    def description(self) -> dict[str, Any]:
        eligible = self._eligible
        return {
            "kind": "balanced",
            "seed": self.seed,
            "classes_per_batch": self.classes_per_batch,
            "examples_per_class": self.examples_per_class,
            "classes": len(eligible),
            "examples": int(eligible.counts.sum()),
            "sum": self._checksum(),
        }


# Of the records of classes, so many are compared when somebody goes on: a little of everything.
_RECORDS_COMPARED = 1 << 14


def _parse_epoch(steps: Any) -> Epoch:
    if isinstance(steps, str):
        if steps not in ("classes", "examples"):
            raise PlanError(
                option="steps_per_epoch", found=steps, allowed="a number, 'classes' or 'examples'"
            )
        return steps  # type: ignore[return-value]
    return check_int("steps_per_epoch", steps, 1, 2**62)
