"""The base class of plans, record ids by step for one of several ranks; and of balanced batches.

A balanced batch has P classes with K examples of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from covey import _core
from covey.classes import ClassTable
from covey.errors import PlanError, check, check_int, shorten
from covey.plan.weights import Coverage, SmallClasses, choose, cover, parse_weights, quotas_of

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

    def share(self, origin: int = 0) -> _core.Rank:
        """Return the part of this rank for the native core, with step 0 at the batch `origin`."""
        return _core.Rank(origin, self.rank, self.world_size, self.mode == "split")

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
