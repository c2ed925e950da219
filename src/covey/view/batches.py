"""Batches of a training run: any step, for any number of ranks, as the loader returns them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from covey.plan import BalancedPlan
from covey.plan import state as loader_state
from covey.view import contents
from covey.view.messages import Columns, Query, Response, json_response
from covey.view.plans import MAX_BATCH, ShownPlan, find_plan, parse_ranks
from covey.view.server import Handler
from covey.view.session import Session
from covey.view.states import match_state, parse_state

MAX_POINTS = 100
"""Maximum number of points of a curve."""
CURVE_TIME_S = 0.3
"""Time after which a curve has no more points."""

_MAX_NAME = 1000


def _parse_step(shown: ShownPlan, query: Query) -> int:
    return query.integer("step", 0, high=shown.plan.last_step)


def batch(session: Session, query: Query) -> Response:
    """Return the ids of the examples of a step, for every rank."""
    shown = find_plan(session, query)
    plan, step = shown.plan, _parse_step(shown, query)
    left, ranks = MAX_BATCH, []
    for rank in range(plan.world_size):
        if left == 0:
            break
        described, rows = _describe_rank(shown, step, rank, left)
        ranks.append(described)
        left -= rows
    description = {name: value for name, value in plan.description.items() if name != "sum"}
    return json_response(
        {
            "step": step,
            "epoch": plan.batch_at(step) // plan.batches_per_epoch,
            "steps_per_epoch": plan.steps_per_epoch,
            "last_step": plan.last_step,
            "plan": description,
            "examples_per_class": getattr(plan, "examples_per_class", None),
            "world_size": plan.world_size,
            "mode": plan.mode,
            "ranks": ranks,
            "omitted_ranks": plan.world_size - len(ranks),
            "warnings": list(shown.warnings),
        }
    )


def _describe_rank(shown: ShownPlan, step: int, rank: int, limit: int) -> tuple[Any, int]:
    """Return the batch of a rank, and the number of its examples that are listed."""
    drawn = shown.draw(step, rank)
    if drawn is None:
        return {"rank": rank, "batch": None, "row": 0, "rows": 0, "classes": []}, 0
    ids, labels, key = drawn
    each = len(ids) if labels is None else key.examples_per_class
    groups: list[dict[str, Any]] = []
    for position, begin in enumerate(range(0, min(len(ids), limit), max(1, each))):
        group: dict[str, Any] = {"id": None, "name": None}
        if labels is not None:
            class_id = int(labels[position])
            group = {"id": class_id, "name": shown.dataset.class_name(class_id)[:_MAX_NAME]}
        groups.append({**group, "ids": ids[begin : min(begin + each, limit)].tolist()})
    described = {
        "rank": rank,
        "batch": key.step,
        "row": key.row,
        "rows": len(ids),
        "classes": groups,
    }
    return described, min(len(ids), limit)


def coverage(session: Session, query: Query) -> Response:
    """Return which part of the classes and examples is drawn up to some steps."""
    shown = find_plan(session, query)
    plan, step = shown.plan, _parse_step(shown, query)
    until = query.integer("until", min(plan.steps_per_epoch, plan.last_step), high=plan.last_step)
    # By integers: a float near the last step may exceed it.
    last = MAX_POINTS - 1
    steps = np.unique(np.array([until * i // last for i in range(MAX_POINTS)], np.int64))
    # The middle of the largest gap is next, so that a curve with fewer points is even as well.
    order = sorted(range(len(steps)), key=lambda i: _reversed_bits(i, len(steps)))
    deadline = time.monotonic() + CURVE_TIME_S
    points: dict[int, tuple[float, float]] = {}
    for position in order:
        points[position] = _fractions(shown, int(steps[position]))
        if time.monotonic() > deadline and len(points) > 1:
            break
    found = sorted(points)
    columns = Columns(values={"step": step, "until": until, "at": _coverage_at(shown, step)})
    columns.arrays = {
        "step": steps[found].astype(np.float64),
        "classes": np.array([points[each][0] for each in found], np.float32),
        "examples": np.array([points[each][1] for each in found], np.float32),
    }
    return columns.response()


def _reversed_bits(position: int, length: int) -> tuple[bool, int]:
    """Return a key by which positions are sorted: both ends first, then ever smaller steps."""
    width = max(1, (length - 1).bit_length())
    is_end = position in (0, length - 1)
    return not is_end, int(f"{position:0{width}b}"[::-1], 2)


def _fractions(shown: ShownPlan, step: int) -> tuple[float, float]:
    plan = shown.plan
    if isinstance(plan, BalancedPlan):
        found = plan.coverage(step)
        return found.classes, found.examples
    return float("nan"), _epoch_fraction(shown, step)


def _epoch_fraction(shown: ShownPlan, step: int) -> float:
    """Return the part of the examples that the first epoch of a plan draws up to a step."""
    plan: Any = shown.plan
    drawn = min(plan.batch_at(step), plan.batches_per_epoch) * plan.batch_size
    return float(min(1.0, drawn / plan.records))


def _coverage_at(shown: ShownPlan, step: int) -> dict[str, Any]:
    plan = shown.plan
    if isinstance(plan, BalancedPlan):
        return asdict(plan.coverage(step))
    fraction = _epoch_fraction(shown, step)
    return {"steps": step, "classes": None, "examples": fraction, "visits": None, "times": None}


def state(session: Session, query: Query) -> Response:
    """Return the options and the step of a state that was pasted."""
    dataset, found, loader = session.dataset(query), parse_state(query), session.loader
    world_size, mode = parse_ranks(query, loader)
    parameters: dict[str, Any]
    if loader is not None:
        plan, index = loader_state.load(loader.plan, found)
        changes = loader_state.save_weights(plan)
        weights = changes if changes != loader_state.save_weights(loader.plan) else None
        parameters = {}
    else:
        options, plan, index, weights = match_state(dataset, found)
        parameters = options.parameters
    if weights is not None:
        parameters["weights"] = session.plans.add_weights(weights)
    parameters["step"] = plan.for_rank(0, world_size, mode).step_at(index)
    return json_response({"parameters": parameters, "batch": index, "weights": weights is not None})


ROUTES: dict[str, Handler] = {
    "/api/batch": batch,
    "/api/batch/x": contents.values,
    "/api/batch/image": contents.image,
    "/api/coverage": coverage,
    "/api/state": state,
}
"""The function for each URL path."""
