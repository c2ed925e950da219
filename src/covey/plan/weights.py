"""The classes that a plan draws from: the choice, their weights and quotas, what steps cover."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import ClassTable
from covey.errors import DatasetError, PlanError, SmallClassesWarning, check

SmallClasses = Literal["repeat", "drop", "error"]

SMALL_CLASSES = get_args(SmallClasses)

# Number of classes in a message.
_MAX_NAMED = 5

_collected: ContextVar[list[str] | None] = ContextVar("_collected", default=None)

_WEIGHTS = "'sqrt', 'size', an array or a dict"

_check = partial(check, error=PlanError)

NAMED = ("sqrt", "size")

# Larger weights are scaled, so that their sum is finite.
_MAX_UNSCALED = 1e280
_MIN_POSITIVE = float(np.nextafter(0.0, 1.0))


@dataclass(frozen=True, eq=False)
class Eligible:
    """The classes of a table that a plan draws from.

    Args:
        table: The class table.
        positions: Position of each class in the table.
        firsts: Position of the first record of each class in the table.
        counts: Number of records to use of each class.
    """

    table: ClassTable
    positions: NDArray[np.int64]
    firsts: NDArray[np.uint64]
    counts: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class ids."""
        return np.ascontiguousarray(self.table.labels[self.positions])

    @property
    def keys(self) -> NDArray[np.int64] | None:
        """Numbers that the draws of the classes are derived from; None for the class ids."""
        keys = self.table.keys
        return None if keys is None else np.ascontiguousarray(keys[self.positions])


def choose(
    table: ClassTable,
    examples_per_class: int,
    *,
    class_list: Iterable[int | str | bytes] | None,
    total_examples_per_class: int | None,
    small_classes: SmallClasses,
) -> Eligible:
    """Return the classes to draw from, and warn if some are small.

    Args:
        table: The class table.
        examples_per_class: Number of examples below which a class is small.
        class_list: Class ids or names; None for all.
        total_examples_per_class: Maximum number of examples to use of each class.
        small_classes: How to handle small classes.

    Raises:
        PlanError: If there are small classes, and `small_classes` is ``"error"``; or if all are
            small, and would be dropped.
        DatasetError: If a class of `class_list` does not exist.
    """
    _check("small_classes", small_classes, small_classes in SMALL_CLASSES, SMALL_CLASSES)
    positions = np.arange(len(table), dtype=np.int64)
    if class_list is not None:
        is_list = isinstance(class_list, Iterable) and not isinstance(class_list, (str, bytes))
        _check("class_list", class_list, is_list, "a list of classes")
        found = np.array([table.position(each) for each in class_list], np.int64)
        positions = np.unique(found)
    counts = table.counts[positions]
    if total_examples_per_class is not None:
        counts = np.minimum(counts, total_examples_per_class)
    small = counts < examples_per_class
    if small_classes == "drop" and len(counts) and small.all():
        raise PlanError(
            f"no class has {examples_per_class:,} examples; the largest has {counts.max():,}",
            option="examples_per_class",
            found=examples_per_class,
            allowed=f"<= {counts.max():,} with small_classes='drop'",
        )
    if small.any():
        _report(table, positions[small], counts[small], examples_per_class, small_classes)
    if small_classes == "drop":
        positions, counts = positions[~small], counts[~small]
    return Eligible(
        table,
        positions,
        np.ascontiguousarray(table.firsts[positions]),
        counts.astype(np.uint64),
    )


def _report(
    table: ClassTable,
    positions: NDArray[np.int64],
    counts: NDArray[Any],
    examples_per_class: int,
    small_classes: SmallClasses,
) -> None:
    names = table.names[table.labels[positions[:_MAX_NAMED]]]
    pairs = zip(names, counts[:_MAX_NAMED].tolist(), strict=True)
    named = ", ".join(f"{name!r} ({count})" for name, count in pairs)
    more = ", ..." if len(positions) > _MAX_NAMED else ""
    number = len(positions)
    reason = (
        f"{number:,} {'class has' if number == 1 else 'classes have'} fewer than "
        f"{examples_per_class} examples: {named}{more}"
    )
    if small_classes == "error":
        raise PlanError(
            reason,
            remedy="reduce examples_per_class=, or pass small_classes='repeat', or pass "
            "small_classes='drop'",
        )
    action = "their examples are repeated" if small_classes == "repeat" else "they are dropped"
    collected = _collected.get()
    if collected is not None:
        collected.append(f"{reason}; {action}")
    else:
        warnings.warn(f"{reason}; {action}", SmallClassesWarning, stacklevel=_stack_level())


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings about small classes of this thread in a list, instead of issuing them.

    The filters of ``warnings.catch_warnings`` are shared by all threads.
    """
    found: list[str] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def _stack_level() -> int:
    """Return the stack level of the first caller outside covey."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("covey."):
        frame = frame.f_back
        level += 1
    return level


def parse_weights(given: Any, eligible: Eligible) -> NDArray[np.float64]:
    """Return the weight of each eligible class.

    Args:
        given: The argument `class_weights` of a plan.
        eligible: The classes.
    """
    counts = eligible.counts.astype(np.float64)
    if isinstance(given, str):
        _check("class_weights", given, given in NAMED, _WEIGHTS, choices=NAMED)
        return counts if given == "size" else np.sqrt(counts)
    weights = _of_all(given, eligible.table)[eligible.positions]
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        name = eligible.table.names[eligible.labels[wrong[0]]]
        raise _invalid_weight(name, float(weights[wrong[0]]))
    return weights


def _invalid_weight(name: Any, weight: Any) -> PlanError:
    return PlanError(
        option=f"the weight of class {name!r}", found=weight, allowed="a finite number >= 0"
    )


def _of_all(given: Any, table: ClassTable) -> NDArray[np.float64]:
    if isinstance(given, Mapping):
        weights = np.ones(len(table))
        for label, weight in given.items():
            try:
                weights[table.position(label)] = weight
            except (TypeError, ValueError) as error:
                if isinstance(error, DatasetError):  # an unknown class
                    raise
                raise _invalid_weight(label, weight) from None
        return weights
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise PlanError(
            option="class_weights", found=type(given).__name__, allowed=_WEIGHTS
        ) from None
    shape = (len(table),)
    allowed = f"{shape}, one weight per class"
    _check("the shape of class_weights", weights.shape, weights.shape == shape, allowed)
    return weights


def quotas_of(weights: NDArray[np.float64], classes_per_batch: int) -> NDArray[np.uint64]:
    """Return the number of visits of each class in a cycle of the schedule of the native core.

    Visits are proportional to the weights, but at most one per batch; the excess of a class goes to
    the others. Every class with a positive weight is visited.

    Raises:
        PlanError: If fewer than `classes_per_batch` classes have a positive weight.
    """
    positive = int((weights > 0).sum())
    allowed = f"<= {positive}, the number of classes with a weight > 0"
    _check("classes_per_batch", classes_per_batch, classes_per_batch <= positive, allowed)
    span = -(-len(weights) // classes_per_batch)
    limit = _core.PLAN_SPANS * span
    total = limit * classes_per_batch
    # One visit per class with a weight, and the others in proportion: every class is visited, and
    # none exceeds its share by more than one.
    ideal = _distribute(weights, total - positive, limit - 1)
    quotas = np.floor(ideal).astype(np.int64)
    # The visits that rounding has removed go to the classes that lost most.
    left = total - positive - int(quotas.sum())
    order = np.argsort(quotas - ideal, kind="stable")
    if left >= 0:
        chosen = order[(quotas[order] < limit - 1) & (weights[order] > 0)][:left]
    else:  # a share was rounded up to an integer
        chosen = order[quotas[order] > 0][left:]
    quotas[chosen] += 1 if left >= 0 else -1
    return (quotas + (weights > 0)).astype(np.uint64)


def _distribute(weights: NDArray[np.float64], total: int, limit: int) -> NDArray[np.float64]:
    """Return shares of `total` in proportion to weights, each at most `limit`.

    Sums are accumulated in order with ``cumsum``, smallest weights first: the result must not
    depend on the vector width of a processor, and weights may differ by orders of magnitude.
    """
    if weights.max() > _MAX_UNSCALED:
        weights = np.where(weights > 0, np.maximum(weights / 2.0**60, _MIN_POSITIVE), 0.0)
    order = np.argsort(-weights, kind="stable")
    rest = np.cumsum(weights[order][::-1])[::-1]
    # Find the smallest i for which the others fit if the i heaviest have the limit.
    left = np.maximum(total - np.arange(len(weights)) * limit, 0).astype(np.float64)
    part = np.divide(weights[order], rest, out=np.zeros(len(weights)), where=rest > 0)
    fits = part * left <= limit
    capped = int(np.argmax(fits)) if fits.any() else len(weights)
    shares: NDArray[np.float64] = np.full(len(weights), float(limit))
    if capped < len(weights):
        others = order[capped:]
        shares[others] = weights[others] / max(rest[capped], _MIN_POSITIVE) * left[capped]
    return shares


@dataclass(frozen=True)
class Coverage:
    """What all ranks together draw in a number of steps.

    Args:
        steps: Number of steps.
        classes: Fraction of the classes that are drawn.
        examples: Fraction of the examples that are drawn.
        visits: Smallest and largest number of times that a class is drawn.
        times: Smallest and largest number of times that an example is drawn.
    """

    steps: int
    classes: float
    examples: float
    visits: tuple[int, int]
    times: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps: {self.classes:.1%} of the classes ({_times(self.visits)}), "
            f"{self.examples:.1%} of the examples ({_times(self.times)})"
        )


def _times(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return f"{low:,} times each" if low == high else f"{low:,} to {high:,} times each"


def cover(
    steps: int,
    visits: NDArray[np.uint64],
    counts: NDArray[np.uint64],
    examples_per_class: int,
) -> Coverage:
    """Return the coverage of a number of visits to each class.

    Args:
        steps: Number of steps.
        visits: Number of times that each class is drawn.
        counts: Number of examples of each class.
        examples_per_class: Number of examples per visit, which continue with the next ones.
    """
    drawn = visits * np.uint64(examples_per_class)
    distinct = np.minimum(drawn, counts)
    fewest = drawn // counts
    most = fewest + (drawn % counts > 0)
    return Coverage(
        steps,
        classes=float((visits > 0).mean()),
        examples=float(distinct.sum() / counts.sum()),
        visits=(int(visits.min()), int(visits.max())),
        times=(int(fewest.min()), int(most.max())),
    )
