"""Weights of classes, and the quotas that the native core draws by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import ClassTable
from covey.errors import PlanError
from covey.plan.eligible import Eligible

NAMED = ("sqrt", "size")


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
                f"class_weights is {given!r}, must be 'sqrt', 'size', an array or a dict"
            )
        return counts if given == "size" else np.sqrt(counts)
    weights = _of_all(given, eligible.table)[eligible.positions]
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        name = eligible.table.name(int(eligible.positions[wrong[0]]))
        raise PlanError(
            f"the weight of class {name!r} is {weights[wrong[0]]}, must be a number, 0 or more"
        )
    return weights


def _of_all(given: Any, table: ClassTable) -> NDArray[np.float64]:
    if isinstance(given, Mapping):
        weights = np.ones(len(table))
        for label, weight in given.items():
            weights[table.position(label)] = weight
        return weights
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise PlanError(
            f"class_weights is of type {type(given).__name__}, must be 'sqrt', 'size', an array "
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
    ideal = _fill_up(weights / weights.max(), most * classes_per_batch, most)
    quotas = np.floor(ideal).astype(np.int64)
    quotas[(quotas == 0) & (weights > 0)] = 1
    left = most * classes_per_batch - int(quotas.sum())
    # What is left goes to those that were rounded off most, and comes from those with most.
    while left != 0:
        room = (quotas < most) & (weights > 0) if left > 0 else quotas > 1
        order = np.argsort(-(ideal - quotas) if left > 0 else -quotas, kind="stable")
        chosen = order[room[order]][: abs(left)]
        quotas[chosen] += 1 if left > 0 else -1
        left -= len(chosen) if left > 0 else -len(chosen)
    return quotas.astype(np.uint64)


def _fill_up(weights: NDArray[np.float64], total: int, most: int) -> NDArray[np.float64]:
    """Shares of a total in proportion to weights, none of which is more than ``most``."""
    order = np.argsort(-weights, kind="stable")
    sorted_weights = weights[order]
    # Summed from the smallest, so that what is left of the heavy ones is exact enough.
    rest = np.cumsum(sorted_weights[::-1])[::-1]
    # With the i heaviest at their most, do the others fit?
    i = np.arange(len(weights))
    left = np.maximum(total - i * float(most), 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        next_share = np.where(rest > 0, sorted_weights * left / rest, 0.0)
    capped = int(np.argmax(next_share <= most)) if (next_share <= most).any() else len(weights)
    shares: NDArray[np.float64] = np.full(len(weights), float(most))
    if capped < len(weights):
        scale = left[capped] / math.fsum(sorted_weights[capped:].tolist())
        shares[order[capped:]] = sorted_weights[capped:] * scale
    np.minimum(shares, float(most), out=shares)
    return shares
