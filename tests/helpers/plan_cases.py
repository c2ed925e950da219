"""Strategies that draw balanced plans, and functions that count what plans draw."""

import warnings

import numpy as np
import plan_reference as reference
import pytest
from hypothesis import strategies as st

from covey.classes import CLASS_DTYPE, ClassTable
from covey.errors import SmallClassesWarning
from covey.plan import BalancedPlan

FAR = 10**12

seeds = st.integers(0, 2**64 - 1)
steps = st.integers(0, 50) | st.integers(0, FAR)
weights = st.one_of(
    st.sampled_from([0.1, 0.5, 1.0, 2.0]),
    st.floats(1e-6, 1e6),
    st.floats(min_value=0, allow_infinity=False, exclude_min=True),
)

RECORDS = np.arange(10**6, dtype=np.uint32)


def class_table(sizes, labels=None):
    """Return classes of these sizes that share their records: an id is an index in its class."""
    table = np.zeros(len(sizes), CLASS_DTYPE)
    table["label"] = range(len(sizes)) if labels is None else labels
    table["records"] = sizes
    return ClassTable(table, RECORDS, None)


@st.composite
def cases(draw, max_classes=60, max_examples=10**6):
    """Draw class ids, sizes, P and K; many at the edges where draws straddle rounds."""
    count = draw(st.integers(1, max_classes))
    per_batch = draw(st.integers(1, count))
    if draw(st.booleans()):
        count = min(count, draw(st.integers(per_batch, 2 * per_batch)))
    per_class = draw(st.integers(1, 9))
    size = st.integers(1, 3 * per_class) | st.integers(1, max_examples)
    sizes = draw(st.lists(size, min_size=count, max_size=count))
    label = st.integers(-(2**63), 2**63 - 1)
    labels = st.lists(label, min_size=count, max_size=count, unique=True).map(sorted)
    return draw(labels | st.just(list(range(count)))), sizes, per_batch, per_class


@st.composite
def weighted_cases(draw, **limits):
    """Draw a case, and a weight of each class, of which at least P are positive."""
    case = draw(cases(**limits))
    _, sizes, per_batch, _ = case
    positive = draw(st.lists(weights, min_size=per_batch, max_size=per_batch))
    rest = len(sizes) - per_batch
    others = draw(st.lists(weights | st.just(0.0), min_size=rest, max_size=rest))
    return case, draw(st.permutations(positive + others))


@st.composite
def plans(draw, max_changes=3, max_batch=40, **limits):
    """Draw a balanced plan with up to `max_changes` changes of class weights, and its sizes."""
    (labels, sizes, per_batch, per_class), some = draw(weighted_cases(**limits))
    plan = make_plan(class_table(sizes, labels), per_batch, per_class, draw(seeds))
    given = st.sampled_from([None, "size", "sqrt"]) | st.permutations(some)
    for batch in sorted(draw(st.sets(st.integers(0, max_batch), max_size=max_changes))):
        plan = plan.reweighted(draw(given), batch=batch)
    return plan, dict(zip(labels, sizes, strict=True))


def make_plan(*arguments, **options):
    """Return a plan without the warning about small classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallClassesWarning)
        return BalancedPlan(*arguments, **options)


def batch_by_class(plan, step):
    """Return the class ids of a batch, each with its record ids."""
    ids = plan.batch(step).reshape(-1, plan.examples_per_class)
    return list(zip(plan.classes(step).tolist(), ids.tolist(), strict=True))


def reference_batches(plan, sizes):
    """Return an iterator of the batches of `plan`, as the reference computes them."""
    changes = [(batch, None if q is None else q.tolist()) for batch, q in plan.changes]
    arguments = plan.classes_per_batch, plan.examples_per_class, changes
    return reference.balanced(plan.seed, list(sizes), list(sizes.values()), *arguments)


def count_meetings(plan, steps):
    """Return in how many batches each pair of classes occurs, and the expected number."""
    _, labels = plan.native.draw(0, steps, plan.share())
    count, per_batch = len(plan.labels), plan.classes_per_batch
    occurs = np.zeros((steps, count), np.float32)
    np.put_along_axis(occurs, labels, 1, axis=1)
    met = (occurs.T @ occurs)[np.triu_indices(count, 1)]
    return met, steps * per_batch * (per_batch - 1) / count / (count - 1)


def assert_coverage(found, steps, batches, sizes):
    visits, times = reference.count(batches)
    visited = [visits[label] for label in sizes]
    drawn = [times[label, i] for label, size in sizes.items() for i in range(size)]
    assert found.steps == steps
    assert found.classes == pytest.approx(sum(n > 0 for n in visited) / len(visited))
    assert found.examples == pytest.approx(sum(n > 0 for n in drawn) / len(drawn))
    assert found.visits == (min(visited), max(visited))
    assert found.times == (min(drawn), max(drawn))
