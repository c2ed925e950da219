"""Where a loader is, as a small JSON object."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import PlanError
from covey.plan import BalancedPlan, Plan
from covey.plan.balanced import Change

FORMAT = 1


def save(plan: Plan, batch: int) -> dict[str, Any]:
    """The state of a caller that has a plan, and is at a batch."""
    state: dict[str, Any] = {"format": FORMAT, "batch": batch, "plan": dict(plan.description)}
    if isinstance(plan, BalancedPlan) and plan.changes:
        state["weights"] = [[begin, _pack(quotas)] for begin, quotas in plan.changes]
    return state


def load(plan: Plan, state: Mapping[str, Any]) -> tuple[Plan, int]:
    """The plan of a state, and the batch that it is at.

    Args:
        plan: That of a caller that goes on.
        state: As :func:`save` gave it.

    Raises:
        PlanError: If it is not a state, or one of other batches.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise PlanError("this is not a state of a loader that this version of covey knows")
    batch, described = state.get("batch"), state.get("plan")
    last = plan.native.last_batch
    if type(batch) is not int or not 0 <= batch < last or not isinstance(described, Mapping):
        raise PlanError(f"the state of a loader is corrupt: its batch is {batch!r}")
    for name, expected in plan.description.items():
        if described.get(name) != expected:
            raise PlanError(
                f"the state is of other batches: its {name} is {described.get(name)!r}, here it is "
                f"{expected!r}; make the loader as it was, of the same data"
            )
    if isinstance(plan, BalancedPlan):
        return plan.with_changes(_changes(state.get("weights", []), last)), batch
    return plan, batch


def _changes(given: Any, last: int) -> list[Change]:
    changes: list[Change] = []
    for each in given if isinstance(given, list) else [None]:
        pair = each if isinstance(each, (list, tuple)) and len(each) == 2 else (None, None)
        begin, packed = pair
        least = changes[-1][0] + 1 if changes else 0
        if type(begin) is not int or not least <= begin < last:
            raise PlanError(f"the state of a loader is corrupt: weights are {str(each)[:60]!r}")
        changes.append((begin, _unpack(packed)))
    return changes


def _pack(quotas: NDArray[np.uint64] | None) -> str | None:
    if quotas is None:
        return None
    return base64.b64encode(zlib.compress(quotas.astype("<u8").tobytes())).decode()


def _unpack(packed: Any) -> NDArray[np.uint64] | None:
    if packed is None:
        return None
    try:
        data = zlib.decompress(base64.b64decode(packed, validate=True))
        return np.frombuffer(data, "<u8").astype(np.uint64)
    except (TypeError, ValueError, binascii.Error, zlib.error):
        raise PlanError("the state of a loader is corrupt: its weights cannot be read") from None
