"""The plan of balanced batches: P classes with K examples of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covey import _core
from covey.classes import ClassTable
from covey.errors import PlanError, check_int
from covey.plan.base import Ids, Plan, check_option, check_seed, check_step
from covey.plan.weights import Coverage, SmallClasses, choose, cover, parse_weights, quotas_of

Weights = ArrayLike | Mapping[int | str | bytes, float] | Literal["sqrt", "size"]
Epoch = int | Literal["classes", "examples"]
Change = tuple[int, NDArray[np.uint64] | None]


class BalancedPlan(Plan):
    """Batches of exactly P classes, with exactly K distinct examples of each.

    Every class is drawn once before any class twice, and every example of a class once before any
    example of it twice.

    Args:
        classes: The class table of a dataset, ``ds.classes``; or the label of every example.
        classes_per_batch: P.
        examples_per_class: K.
        seed: Seed of all random choices.
        class_list: Class ids or names to draw from (default: all).
        total_examples_per_class: Maximum number of examples to use of each class: the first ones.
        small_classes: How to handle classes with fewer than K examples: ``"repeat"`` examples
            within a batch, ``"drop"`` the class, or raise an ``"error"``. The first two warn.
        class_weights: Relative frequencies of the classes: an array in the order of
            ``ds.classes``; a dict by class, with 1 for other classes; ``"size"``, the number of
            examples of a class, or ``"sqrt"``, its square root. No class occurs twice in a batch.
        steps_per_epoch: An integer; ``"classes"``, enough steps to draw every class; or
            ``"examples"``, enough steps to draw every example.

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
        check_option(
            "classes_per_batch",
            classes_per_batch,
            self.classes_per_batch <= there,
            f"<= {there}, the number of classes to draw from",
        )
        quotas = None if class_weights is None else self._quotas(class_weights)
        # The quotas, and the batch from which each applies.
        self._changes: tuple[Change, ...] = () if quotas is None else ((0, quotas),)
        super().__init__(self.classes_per_batch)

    def _make(self) -> _core.Plan:
        by_class = self._eligible.table.by_class
        plan = _core.balanced_plan(
            self.seed,
            self._eligible.labels,
            self._eligible.keys,
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
        """Return the class ids of `step`."""
        _, labels = self._draw(check_step(step, self), 1)
        assert labels is not None
        return np.asarray(labels[0])

    @property
    def labels(self) -> Ids:
        """Class ids that are drawn from."""
        return self._eligible.labels

    @property
    def counts(self) -> NDArray[np.uint64]:
        """Number of examples of each class of `labels` that are drawn from."""
        return self._eligible.counts

    @property
    def records(self) -> Ids:
        """Record ids that are drawn from, in ascending order."""
        counts = self._eligible.counts.astype(np.int64)
        ends = counts.cumsum()
        # Offset of each class in the table, relative to its offset here.
        shifts = self._eligible.firsts.astype(np.int64) - (ends - counts)
        positions = np.arange(ends[-1]) + shifts.repeat(counts)
        return np.sort(self._eligible.table.by_class[positions]).astype(np.int64, copy=False)

    @property
    def examples(self) -> int:
        """Number of examples that are drawn from."""
        return int(self._eligible.counts.sum())

    # Weights.

    def reweighted(self, class_weights: Weights | None, *, batch: int) -> BalancedPlan:
        """Return a plan with other class weights from `batch` on.

        The order of examples continues: those of a class that were not drawn yet come first.

        Args:
            class_weights: As for the plan; None for equal weights.
            batch: Index of the first batch with these weights, the same on all ranks.
        """
        quotas = None if class_weights is None else self._quotas(class_weights)
        return self._change(check_step(batch, self), quotas)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Changes of class weights: the first batch and the quotas of each."""
        return self._changes

    def with_changes(self, changes: Iterable[Change]) -> BalancedPlan:
        """Return a plan with the changes of class weights of another one.

        Raises:
            PlanError: If they are not valid for this plan.
        """
        plan = self._change(0, None)
        for batch, quotas in changes:
            plan = plan._change(batch, quotas)
        return plan

    def _change(self, batch: int, quotas: NDArray[np.uint64] | None) -> BalancedPlan:
        other = self._copy()
        try:
            other._native = self._native.reweighted(batch, quotas)
        except (ValueError, IndexError) as error:
            raise PlanError(f"invalid class weights from batch {batch} on: {error}") from None
        kept = tuple(each for each in self._changes if each[0] < batch)
        is_default = batch == 0 and quotas is None
        other._changes = () if is_default else (*kept, (batch, quotas))
        if batch == 0:  # the first weights determine the length of an epoch
            other.__dict__.pop("batches_per_epoch", None)
        return other

    # Epochs.

    @cached_property
    def batches_per_epoch(self) -> int:
        per_step = self.batches_per_step
        if isinstance(self._epoch, int):
            return self._epoch * per_step
        counts = self._eligible.counts
        visits = np.ones_like(counts)
        if self._epoch == "examples":
            examples = np.uint64(self.examples_per_class)
            visits = (counts + examples - np.uint64(1)) // examples
        return -(-self._batches_until(visits) // per_step) * per_step

    def _batches_until(self, visits: NDArray[np.uint64]) -> int:
        """Return the number of batches that draw every class with a weight `visits` times."""
        begin, quotas = self._changes[0] if self._changes else (0, None)
        if begin > 0 or quotas is None:
            return -(-int(visits.max()) * len(visits) // self.classes_per_batch)
        plan = self._change(0, quotas)._native
        # The number of visits deviates by less than seven from its expectation: a binary search
        # over that range of complete spans finds the first one that suffices.
        span = -(-len(visits) // self.classes_per_batch)
        due = quotas > 0
        need, rate = visits[due].astype(np.float64), quotas[due] / _core.PLAN_SPANS
        low, high = int(((need - 7) / rate).max()), int(((need + 7) / rate).max()) + 1
        low = max(low - 1, 0)  # does not suffice, or is 0
        while high - low > 1:
            middle = (low + high) // 2
            enough = bool((plan.count(middle * span)[due] >= visits[due]).all())
            low, high = (low, middle) if enough else (middle, high)
        return high * span

    def coverage(self, steps: int) -> Coverage:
        """Return which part of the classes and examples the first `steps` steps draw.

        >>> print(BalancedPlan([0, 0, 0, 1, 1, 1, 2, 2, 2], 2, 2, seed=1).coverage(3))
        3 steps: 100.0% of the classes (2 times each), 100.0% of the examples (1 to 2 times each)
        """
        return cover(steps, self.visits(steps), self._eligible.counts, self.examples_per_class)

    def visits(self, steps: int) -> NDArray[np.uint64]:
        """Return how often the first `steps` steps of all ranks draw each class of `labels`."""
        return self._native.count(check_step(steps, self) * self.batches_per_step)

    # State.

    def _checksum(self) -> int:
        """Return a checksum of the classes, their names, and the first records of the class table.

        The bits from 2**32 on are those of the names. They are 0 if the names are the class ids,
        and in states that were saved before names were compared. The result is less than 2**53,
        which JSON readers of other languages keep exactly.
        """
        eligible = self._eligible
        table = eligible.table
        records = np.ascontiguousarray(table.by_class[:_CHECKSUM_RECORDS])
        # A state of a dataset is valid for the same dataset with other class ids.
        keys = eligible.labels if eligible.keys is None else eligible.keys
        found = _core.crc32c(records, _core.crc32c(eligible.counts, _core.crc32c(keys)))
        names = table.names[eligible.labels] if len(table.names.known) else []
        if names and names != list(map(str, keys.tolist())):
            text = "\n".join(names).encode(errors="surrogatepass")
            found |= (_core.crc32c(text) & 0x1FFFFF) << 32
        return found

    @cached_property
    def description(self) -> dict[str, Any]:
        eligible = self._eligible
        return {
            "kind": "balanced",
            "seed": self.seed,
            "classes_per_batch": self.classes_per_batch,
            "examples_per_class": self.examples_per_class,
            "classes": len(eligible),
            "examples": self.examples,
            "sum": self._checksum(),
        }


# Number of records in the checksum of a plan.
_CHECKSUM_RECORDS = 1 << 14


def _parse_epoch(steps: Any) -> Epoch:
    if isinstance(steps, str):
        names = ("classes", "examples")
        allowed = "an integer, 'classes' or 'examples'"
        check_option("steps_per_epoch", steps, steps in names, allowed, choices=names)
        return steps  # type: ignore[return-value]
    return check_int("steps_per_epoch", steps, 1, 2**62)
