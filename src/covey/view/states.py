"""The state of a loader in pasted text: JSON, a Python literal, or the output of a checkpoint.

The text is not trusted. Only the dict that looks like a state is parsed: tokens are checked before
``ast.literal_eval``, whose parser may exhaust the stack with nested operators.
"""

from __future__ import annotations

import ast
import bisect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from covey.dataset.dataset import Dataset
from covey.errors import PlanError
from covey.loader import state as loader_state
from covey.plan import BalancedPlan, Plan
from covey.view.messages import RequestError
from covey.view.plans import (
    KINDS,
    MAX_BATCH,
    MAX_CHANGED_CLASSES,
    MAX_SEED,
    PlanOptions,
    make_quietly,
)

MAX_TEXT = 1 << 20
"""Maximum number of characters of a pasted text."""

_MAX_CANDIDATES = 16
_MAX_BRACES = 100
_MAX_CHANGES = 1000
_MAX_STATE_DEPTH = 6

_BRACE = re.compile(r"[{}]")

# The key of the plan in a state. Quotes are escaped if the state is a string of JSON.
_PLAN = re.compile(r"""\\?["']plan\\?["']\s*:\s*\{""")

# Strings without escapes, numbers, constants and punctuation: all that a state consists of.
_TOKEN = re.compile(
    r"""\s+|[\[\](){},:]|'[^'\\]*'|"[^"\\]*"|-?\d{1,30}(?:\.\d{0,30})?(?:[eE][-+]?\d{1,4})?"""
    r"""|\b(?:None|True|False|null|true|false)\b"""
)
_CONSTANTS = {"null": "None", "true": "True", "false": "False"}


def find_state(text: str) -> Mapping[str, Any]:
    """Return the state in a text.

    Raises:
        RequestError: If there is none.
    """
    if len(text) > MAX_TEXT:
        raise RequestError(f"the text is longer than {MAX_TEXT:,} characters", 413)
    for candidate in _candidates(text):
        found = _parse(candidate)
        if isinstance(found, dict) and {"format", "batch", "plan"} <= found.keys():
            return found
    raise RequestError(
        "the text has no state of a loader; a state is the result of loader.state_dict(): "
        '{"format": 1, "batch": 1200, "plan": {"kind": "balanced", ...}}'
    )


def _candidates(text: str) -> Iterator[str]:
    """Yield the dicts that have a dict `plan`. No string of a state has a brace."""
    braces = [match.start() for match in _BRACE.finditer(text)]
    for number, match in enumerate(_PLAN.finditer(text)):
        if number == _MAX_CANDIDATES:
            return
        opened = bisect.bisect_left(braces, match.end() - 1)  # the brace of the plan
        begin = _matching(text, braces[:opened][: -_MAX_BRACES - 1 : -1], "{")
        end = _matching(text, braces[opened + 1 : opened + _MAX_BRACES], "}", depth=2)
        if begin is not None and end is not None:
            yield text[begin : end + 1].replace('\\"', '"').replace("\\'", "'")


def _matching(text: str, braces: list[int], wanted: str, depth: int = 1) -> int | None:
    """Return the position of the brace that begins or ends a dict."""
    for at in braces:
        depth += -1 if text[at] == wanted else 1
        if depth == 0:
            return at
    return None


def _parse(text: str) -> Any:
    """Return a literal of Python or JSON; None if it is not one."""
    tokens, at, depth = [], 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        token = match.group()
        depth += (token in ("{", "[", "(")) - (token in ("}", "]", ")"))
        if depth > _MAX_STATE_DEPTH:
            return None
        tokens.append(_CONSTANTS.get(token, token))
        at = match.end()
    try:
        return ast.literal_eval("".join(tokens))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


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
            error.remedy = "use loader.view() if the batches have class_list="
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
    assert first is not None
    return options, first  # whose comparison with the state names what differs


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
