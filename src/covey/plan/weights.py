"""The classes that a plan draws from: those that are wanted, and large enough.

Weights of classes, and the quotas that the native core draws by.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import ClassTable
from covey.errors import DatasetError, PlanError, SmallClassesWarning

SmallClasses = Literal["repeat", "drop", "error"]

SMALL_CLASSES = get_args(SmallClasses)

# How many classes a message names.
_FEW = 5


@dataclass(frozen=True, eq=False)
class Eligible:
    """Classes of a table, by their positions in it, and what is drawn of each."""

    table: ClassTable
    positions: NDArray[np.int64]
    firsts: NDArray[np.uint64]
    counts: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def labels(self) -> NDArray[np.int64]:
        """The number of each class."""
        return np.ascontiguousarray(self.table.labels[self.positions])


def choose(
    table: ClassTable,
    examples_per_class: int,
    *,
    class_list: Iterable[int | str | bytes] | None,
    total_examples_per_class: int | None,
    small_classes: SmallClasses,
) -> Eligible:
    """The classes to draw from; says once which are small.

    Raises:
        PlanError: If there are small ones, and there must be none.
        DatasetError: If a class that is wanted is not there.
    """
    if small_classes not in SMALL_CLASSES:
        allowed = ", ".join(map(repr, SMALL_CLASSES))
        raise PlanError(option="small_classes", found=small_classes, allowed=f"one of {allowed}")
    positions = np.arange(len(table), dtype=np.int64)
    if class_list is not None:
        if isinstance(class_list, (str, bytes)) or not isinstance(class_list, Iterable):
            raise PlanError(option="class_list", found=class_list, allowed="a list of classes")
        found = np.array([table.position(each) for each in class_list], np.int64)
        positions = np.unique(found)
    counts = table.counts[positions]
    if total_examples_per_class is not None:
        counts = np.minimum(counts, total_examples_per_class)
    small = counts < examples_per_class
    if small.any():
        _tell(table, positions[small], counts[small], examples_per_class, small_classes)
    if small_classes == "drop":
        positions, counts = positions[~small], counts[~small]
    return Eligible(
        table,
        positions,
        np.ascontiguousarray(table.firsts[positions]),
        counts.astype(np.uint64),
    )


def _tell(
    table: ClassTable,
    positions: NDArray[np.int64],
    counts: NDArray[Any],
    examples_per_class: int,
    small_classes: SmallClasses,
) -> None:
    pairs = zip(positions[:_FEW].tolist(), counts[:_FEW].tolist(), strict=True)
    few = ", ".join(f"{table.name(position)!r} ({count})" for position, count in pairs)
    more = ", ..." if len(positions) > _FEW else ""
    many = len(positions)
    told = (
        f"{many:,} {'class has' if many == 1 else 'classes have'} fewer than "
        f"{examples_per_class} examples: {few}{more}"
    )
    if small_classes == "error":
        raise PlanError(
            f"{told}; have fewer examples_per_class, or pass small_classes='repeat' or 'drop'"
        )
    done = "their examples are repeated" if small_classes == "repeat" else "they are left out"
    # Seen from a caller that made the plan, or the loader.
    warnings.warn(f"{told}; {done}", SmallClassesWarning, stacklevel=_outside())


def _outside() -> int:
    """How far up the first caller is that is not of covey."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("covey."):
        frame = frame.f_back
        level += 1
    return level


NAMED = ("sqrt", "size")

_HUGE = 1e280
_LEAST = float(np.nextafter(0.0, 1.0))


def parse_weights(given: Any, eligible: Eligible) -> NDArray[np.float64]:
    """The weight of each eligible class.

    Args:
        given: One for each class of the table, as an array; or by class, where those that are not
            named have 1; or ``"size"``, as many as there are examples, or ``"sqrt"``, its root.
        eligible: The classes.
    """
    counts = eligible.counts.astype(np.float64)
    if isinstance(given, str):
        if given not in NAMED:
            raise PlanError(
                option="class_weights", found=given, allowed="'sqrt', 'size', an array or a dict"
            )
        return counts if given == "size" else np.sqrt(counts)
    weights = _of_all(given, eligible.table)[eligible.positions]
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        name = eligible.table.name(int(eligible.positions[wrong[0]]))
        raise PlanError(
            f"the weight of class {name!r} is {weights[wrong[0]]}; must be a number, 0 or more"
        )
    return weights


def _of_all(given: Any, table: ClassTable) -> NDArray[np.float64]:
    if isinstance(given, Mapping):
        weights = np.ones(len(table))
        for label, weight in given.items():
            try:
                weights[table.position(label)] = weight
            except (TypeError, ValueError) as error:
                if isinstance(error, DatasetError):  # there is no such class
                    raise
                raise PlanError(
                    f"the weight of class {label!r} is {weight!r}; must be a number, 0 or more"
                ) from None
        return weights
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise PlanError(
            f"class_weights is of type {type(given).__name__}; must be 'sqrt', 'size', an array "
            "or a dict"
        ) from None
    if weights.shape != (len(table),):
        raise PlanError(
            f"class_weights has the shape {weights.shape}, must have one for each of the "
            f"{len(table)} classes"
        )
    return weights


def quotas_of(weights: NDArray[np.float64], classes_per_batch: int) -> NDArray[np.uint64]:
    """How often each class comes in a cycle of the native core's schedule.

    As often as its weight says, but no more than once a batch; what a class cannot take goes to the
    others. Every class that has a weight comes.

    Raises:
        PlanError: If too few classes have a weight.
    """
    positive = int((weights > 0).sum())
    if positive < classes_per_batch:
        raise PlanError(
            f"classes_per_batch is {classes_per_batch}, but only {positive} classes have a weight "
            "above 0"
        )
    span = -(-len(weights) // classes_per_batch)
    most = _core.PLAN_SPANS * span
    total = most * classes_per_batch
    # One for each that has a weight, and the rest in proportion: no class is more than that one
    # above its share, and every one comes.
    ideal = _fill_up(weights, total - positive, most - 1)
    quotas = np.floor(ideal).astype(np.int64)
    # What rounding has left goes to those that have lost most by it.
    left = total - positive - int(quotas.sum())
    order = np.argsort(quotas - ideal, kind="stable")
    if left >= 0:
        chosen = order[(quotas[order] < most - 1) & (weights[order] > 0)][:left]
    else:  # a share was rounded up to an integer
        chosen = order[quotas[order] > 0][left:]
    quotas[chosen] += 1 if left >= 0 else -1
    return (quotas + (weights > 0)).astype(np.uint64)


def _fill_up(weights: NDArray[np.float64], total: int, most: int) -> NDArray[np.float64]:
    """Shares of a total in proportion to weights, none of which is more than ``most``.

    Sums are taken one by one (``cumsum``), from the lightest: they must not depend on how a
    processor likes to add, and a weight may be next to nothing beside another.
    """
    if weights.max() > _HUGE:  # their sum might be none any more
        weights = np.where(weights > 0, np.maximum(weights / 2.0**60, _LEAST), 0.0)
    order = np.argsort(-weights, kind="stable")
    rest = np.cumsum(weights[order][::-1])[::-1]
    # With the i heaviest at their most, do the others fit?
    left = np.maximum(total - np.arange(len(weights)) * most, 0).astype(np.float64)
    part = np.divide(weights[order], rest, out=np.zeros(len(weights)), where=rest > 0)
    fits = part * left <= most
    capped = int(np.argmax(fits)) if fits.any() else len(weights)
    shares: NDArray[np.float64] = np.full(len(weights), float(most))
    if capped < len(weights):
        others = order[capped:]
        shares[others] = weights[others] / max(rest[capped], _LEAST) * left[capped]
    return shares
