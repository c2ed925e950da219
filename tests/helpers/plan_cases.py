"""Plans of every kind, and what they draw."""

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

NUMBERS = np.arange(10**6, dtype=np.uint32)


def classes_of(sizes, labels=None):
    """Classes of these sizes that all share the same records, so that a million cost nothing: an id
    is the number of an example in its class.
    """
    table = np.zeros(len(sizes), CLASS_DTYPE)
    table["label"] = range(len(sizes)) if labels is None else labels
    table["records"] = sizes
    return ClassTable(table, NUMBERS, None)


@st.composite
def cases(draw, most_classes=60, most_examples=10**6, small=True):
    """Labels and sizes of classes, P and K; many at the edges where draws straddle."""
    count = draw(st.integers(1, most_classes))
    per_batch = draw(st.integers(1, count))
    if draw(st.booleans()):
        count = min(count, draw(st.integers(per_batch, 2 * per_batch)))
    each = draw(st.integers(1, 9))
    least = 1 if small else each
    sizes = draw(
        st.lists(
            st.integers(least, 3 * each) | st.integers(least, most_examples),
            min_size=count,
            max_size=count,
        )
    )
    labels = st.lists(
        st.integers(-(2**63), 2**63 - 1), min_size=count, max_size=count, unique=True
    ).map(sorted)
    return draw(labels | st.just(list(range(count)))), sizes, per_batch, each


def quietly(*args, **options):
    """A plan that says nothing of small classes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallClassesWarning)
        return BalancedPlan(*args, **options)


def drawn(plan, step):
    """The labels of a batch, and the examples of each."""
    ids = plan.batch(step).reshape(-1, plan.examples_per_class)
    return list(zip(plan.classes(step).tolist(), ids.tolist(), strict=True))


def meetings(plan, steps):
    """How many batches each pair of classes has in common; and how many it should be."""
    _, labels = plan.native.draw(0, steps, plan.share())
    count, per_batch = len(plan.labels), plan.classes_per_batch
    there = np.zeros((steps, count), np.float32)
    np.put_along_axis(there, labels, 1, axis=1)
    met = (there.T @ there)[np.triu_indices(count, 1)]
    return met, steps * per_batch * (per_batch - 1) / count / (count - 1)


def assert_covers(found, count, batches, sizes):
    visits, times = reference.counts_of(batches)
    visited = [visits[label] for label in sizes]
    shown = [times[label, i] for label, size in sizes.items() for i in range(size)]
    assert found.steps == count
    assert found.classes == pytest.approx(sum(n > 0 for n in visited) / len(visited))
    assert found.examples == pytest.approx(sum(n > 0 for n in shown) / len(shown))
    assert found.visits == (min(visited), max(visited))
    assert found.times == (min(shown), max(shown))
