"""The state of a loader, its plan and its position, as a small JSON object."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import PlanError
from covey.plan.balanced import BalancedPlan, Change, Plan

FORMAT = 1


def save(plan: Plan, batch: int) -> dict[str, Any]:
    """Return the state of a loader with `plan` whose next batch is `batch`."""
    state: dict[str, Any] = {"format": FORMAT, "batch": batch, "plan": dict(plan.description)}
    weights = save_weights(plan)
    return {**state, "weights": weights} if weights else state


def load(plan: Plan, state: Mapping[str, Any]) -> tuple[Plan, int]:
    """Return the plan of a state, and the index of its next batch.

    Args:
        plan: Plan of the loader that loads the state; it may have other ranks.
        state: A result of :func:`save`.

    Raises:
        PlanError: If it is not a valid state, or the state of other batches.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise PlanError("not the state of a loader of this version of covey")
    batch, described = state.get("batch"), state.get("plan")
    end = plan.native.last_batch
    if type(batch) is not int or not 0 <= batch < end or not isinstance(described, Mapping):
        raise PlanError(
            "the state is corrupt", option="batch", found=batch, allowed="the index of a batch"
        )
    name = find_difference(plan, described)
    if name is not None:
        what = "the checksum of the classes, their names and examples" if name == "sum" else "as"
        raise PlanError(
            "the state belongs to other batches",
            option=name,
            found=described.get(name),
            allowed=f"{plan.description[name]!r}, {what} in this loader",
        )
    return load_weights(plan, state.get("weights", [])), batch


def find_difference(plan: Plan, described: Mapping[str, Any]) -> str | None:
    """Return the first parameter in which a plan differs from that of a state; None if in none."""
    for name, expected in plan.description.items():
        found = described.get(name)
        # Without the names of the classes, as in older states.
        if found != expected and (name != "sum" or found != expected % 2**32):
            return name
    return None


def save_weights(plan: Plan) -> list[list[Any]]:
    """Return the changes of class weights of a plan as JSON."""
    if not isinstance(plan, BalancedPlan):
        return []
    return [[begin, None if quotas is None else _pack(quotas)] for begin, quotas in plan.changes]


def _pack(quotas: NDArray[np.uint64]) -> str:
    return base64.b64encode(zlib.compress(quotas.astype("<u8").tobytes())).decode()


def load_weights(plan: Plan, weights: Any) -> Plan:
    """Return `plan` with the changes of class weights that :func:`save_weights` returned.

    Raises:
        PlanError: If they are not valid.
    """
    if not isinstance(plan, BalancedPlan):
        return plan
    changes: list[Change] = []
    try:
        for begin, packed in weights:
            first = changes[-1][0] + 1 if changes else 0
            if type(begin) is not int or not first <= begin < plan.native.last_batch:
                raise ValueError
            quotas = None if packed is None else _unpack(packed, 8 * plan.description["classes"])
            changes.append((begin, quotas))
    except (TypeError, ValueError, zlib.error):
        raise PlanError(
            "the state is corrupt", option="weights", found=weights, allowed="pairs (batch, quotas)"
        ) from None
    return plan.with_changes(changes)


def _unpack(packed: Any, size: int) -> NDArray[np.uint64]:
    # A state is not trusted: a few bytes may decompress to gigabytes.
    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(packed, validate=True), size + 1)
    if len(data) != size or not stream.eof:
        raise ValueError
    return np.frombuffer(data, "<u8").astype(np.uint64)
