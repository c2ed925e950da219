"""The state of a loader, pasted as JSON: the options of its plan, and its next batch.

A state does not name all options of its plan: those that are missing are found by the numbers of
classes and examples, and by the checksum. The state is not trusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from covey.dataset.combine import hash_classes
from covey.dataset.dataset import Dataset
from covey.errors import PlanError
from covey.plan import BalancedPlan, Plan
from covey.plan import state as loader_state
from covey.view.messages import Query, RequestError
from covey.view.plans import (
    KINDS,
    MAX_BATCH,
    MAX_CHANGED_CLASSES,
    MAX_SEED,
    PlanOptions,
    make_quietly,
    open_part,
)

_MAX_CHANGES = 1000

# Examples that are read to find a part of split_classes(); two parts are compared at least.
_MAX_PART_EXAMPLES = 20_000_000


def parse_state(query: Query) -> Mapping[str, Any]:
    """Return the state in the body of a request.

    Raises:
        RequestError: If it is not the state of a loader.
    """
    try:
        found = query.json()
    except RequestError:
        found = None
    if isinstance(found, dict) and {"format", "batch", "plan"} <= found.keys():
        return found
    raise RequestError(
        "this is not the state of a loader; must be the JSON of loader.state_dict(): "
        '{"format": 1, "batch": 1200, "plan": {"kind": "balanced", ...}}'
    )


def match_state(
    dataset: Dataset, state: Mapping[str, Any]
) -> tuple[PlanOptions, Plan, int, list[Any] | None]:
    """Return the options of the plan of a state, the plan, its next batch, and its weights.

    Args:
        dataset: The split that the state is compared with.
        state: The state.

    Raises:
        PlanError: If the state is not valid, or belongs to other batches.
    """
    described, weights = state["plan"], state.get("weights", [])
    kind = described.get("kind") if isinstance(described, Mapping) else None
    if kind not in KINDS:
        raise PlanError("the state is corrupt", option="kind", found=kind, choices=KINDS)
    options = _options(kind, described)
    if kind == "balanced":
        _check_changes(weights, len(dataset.classes))
    found, plan = _fit(dataset, options, described)
    try:
        loaded, batch = loader_state.load(plan, state)
    except PlanError as error:
        if error.option in ("classes", "examples", "sum"):
            error.allowed = error.allowed and error.allowed.replace("this loader", "this dataset")
            error.remedy = (
                "use loader.view() if the batches have class_list=, or are of a part of "
                "split_classes() with another seed"
            )
        raise
    if not isinstance(loaded, BalancedPlan) or not loaded.changes:
        return found, loaded, batch, None
    for name in ("size", "sqrt"):
        named = replace(found, class_weights=name)
        same, _ = make_quietly(partial(named.make, dataset))
        if loader_state.save_weights(same) == weights:
            return named, same, batch, None
    return found, loaded, batch, weights


def _options(kind: Any, described: Mapping[str, Any]) -> PlanOptions:
    names = ("seed", "batch_size") if kind != "balanced" else ("seed", *_BALANCED)
    values: dict[str, Any] = {}
    for name in names:
        value = described.get(name)
        low = 0 if name == "seed" else 1
        if type(value) is not int or not low <= value <= MAX_SEED:
            raise PlanError(
                "the state is corrupt", option=name, found=value, allowed=f"an integer >= {low}"
            )
        values[name] = value
    if math.prod(value for name, value in values.items() if name != "seed") > MAX_BATCH:
        raise RequestError(f"batches of more than {MAX_BATCH:,} examples are not shown")
    remainder = described.get("remainder", "keep")
    return PlanOptions(kind=kind, remainder=remainder, **values)


_BALANCED = ("classes_per_batch", "examples_per_class")


def _check_changes(weights: Any, classes: int) -> None:
    count = len(weights) if isinstance(weights, list) else 0
    if count > _MAX_CHANGES or count * classes > MAX_CHANGED_CLASSES:
        raise RequestError(
            f"the state has {count:,} changes of the weights of {classes:,} classes, which "
            "is too much to be shown"
        )


def _fit(
    dataset: Dataset, options: PlanOptions, described: Mapping[str, Any]
) -> tuple[PlanOptions, Plan]:
    """Return the options whose plan has the numbers of classes and examples of a state.

    A state does not name all options of its plan; the numbers depend on them.
    """
    candidates = [options]
    if options.kind == "balanced":
        dropped = replace(options, small_classes="drop")
        candidates.append(dropped)
        counts = dataset.classes.counts
        large = counts[counts >= options.examples_per_class]
        for each, those in ((options, counts), (dropped, large)):
            total = _total(those, described.get("examples"))
            if total is not None:
                candidates.append(replace(each, total_examples_per_class=total))
    first: Plan | None = None
    for candidate in candidates:
        try:
            plan, _ = make_quietly(partial(candidate.make, dataset))
        except PlanError:
            if first is None and candidate is candidates[-1]:
                raise
            continue
        if loader_state.find_difference(plan, described) is None:
            return candidate, plan
        first = plan if first is None else first
    for text, part in _parts(dataset, options, described):
        plan, _ = make_quietly(partial(options.make, part))
        if loader_state.find_difference(plan, described) is None:
            return replace(options, class_part=text), plan
    assert first is not None
    return options, first  # whose comparison with the state names what differs


def _parts(
    dataset: Dataset, options: PlanOptions, described: Mapping[str, Any]
) -> Iterator[tuple[str, Dataset]]:
    """Yield the parts of split_classes() with the numbers of classes and examples of a state.

    A part has consecutive classes in the order of their hashes. The seed of the parts is not in a
    state: it is the default, or equal to the seed of the batches.
    """
    count, examples = described.get("classes"), described.get("examples")
    if options.kind != "balanced" or type(count) is not int or type(examples) is not int:
        return
    table = dataset.classes
    for seed in dict.fromkeys((0, options.seed)):
        labels, hashes = hash_classes(dataset, seed)
        if not options.classes_per_batch <= count < len(labels):
            return
        counts = table.counts[np.searchsorted(table.labels, labels)]
        ends = np.cumsum(np.append(0, counts[np.argsort(hashes, kind="stable")]))
        begins = np.flatnonzero(ends[count:] - ends[:-count] == examples)
        # The first and the last part are usual.
        begins = begins[np.argsort((begins > 0) & (begins < len(labels) - count), kind="stable")]
        for begin in begins[: max(2, _MAX_PART_EXAMPLES // len(dataset))].tolist():
            text = f"{seed}:{begin}:{count}"
            yield text, open_part(dataset, text)


def _total(counts: Any, examples: Any) -> int | None:
    """Return the limit of examples per class with which the classes have `examples` examples."""
    if type(examples) is not int or not len(counts) <= examples < counts.sum():
        return None
    low, high = 1, int(counts.max())
    while low < high:
        middle = (low + high) // 2
        if int(np.minimum(counts, middle).sum()) < examples:
            low = middle + 1
        else:
            high = middle
    return low if int(np.minimum(counts, low).sum()) == examples else None
