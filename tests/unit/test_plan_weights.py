"""Class weights: frequencies of classes, and weights that change between batches."""

import itertools
import math
from collections import Counter

import numpy as np
import plan_reference as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import (
    FAR,
    batch_by_class,
    class_table,
    make_plan,
    plans,
    seeds,
    steps,
    weighted_cases,
)
from plan_reference import SPANS

from covey.classes import ClassTable
from covey.errors import PlanError
from covey.plan import BalancedPlan


def span_of(plan):
    return -(-len(plan.labels) // plan.classes_per_batch)


def quotas_of(plan):
    """Return the number of visits of each class in a cycle, with the last weights."""
    return plan.changes[-1][1].astype(object)


def count_visits(plan, start, stop):
    """Return how many of the batches ``[start, stop)`` have each class."""
    _, labels = plan.native.draw(start, stop - start, plan.share())
    positions = np.searchsorted(plan.labels, labels)
    return np.bincount(positions.ravel(), minlength=len(plan.labels))


# Frequencies.


@given(
    weights=st.lists(st.just(0.0) | st.floats(0.01, 100), min_size=1, max_size=40), data=st.data()
)
def test_quotas_are_proportional_within_rounding(weights, data):
    positive = sum(each > 0 for each in weights)
    per_batch = data.draw(st.integers(1, max(positive, 1)))
    if positive == 0:
        weights[0] = positive = 1
    plan = BalancedPlan(class_table([2] * len(weights)), per_batch, class_weights=weights)
    quotas, limit = quotas_of(plan), SPANS * span_of(plan)
    shares = reference.shares_of(weights, per_batch)
    assert quotas.sum() == limit * per_batch
    assert quotas.max() <= limit
    # Every class with a weight has one visit, and then its share of the others.
    left = sum(share for share in shares if share < limit)
    for quota, share, weight in zip(quotas, shares, weights, strict=True):
        assert (quota > 0) == (weight > 0)
        if share in (0, limit):
            assert quota == share
        else:
            assert abs(quota - share) < 2 + share * positive / left


@pytest.mark.parametrize(
    ("weights", "per_batch", "expected"),
    [
        *(([heavy, 1, 2, 3], 2, [2, 1 / 3, 2 / 3, 1]) for heavy in (1e3, 1e13, 1e300)),
        ([1, 1e20, 2, 1e5, 3, 4], 3, [1 / 5, 2, 2 / 5, 2, 3 / 5, 4 / 5]),
        *((np.arange(1, 8) * scale, 3, np.arange(1, 8) * 9 / 28) for scale in (1e-300, 1e300)),
        ([0, 0.1, 0, 1e9, 0], 2, [0, 3, 0, 3, 0]),
        ([1, 0, 2, 0.0, 5], 2, [1, 0, 2, 0, 3]),
    ],
)
def test_quotas_of_extreme_weights(weights, per_batch, expected):
    plan = BalancedPlan(class_table([2] * len(weights)), per_batch, class_weights=weights)
    assert (quotas_of(plan) / SPANS).tolist() == pytest.approx(list(expected), abs=2e-4)


@pytest.mark.parametrize(("weights", "per_batch"), [([1, 1, 1], 2), ([5, 1, 0, 1, 1], 2)])
def test_a_cycle_has_exactly_the_quotas(weights, per_batch):
    plan = BalancedPlan(class_table([1] * len(weights)), per_batch, 1, 5, class_weights=weights)
    cycle = SPANS * span_of(plan)
    assert count_visits(plan, 7 * cycle, 8 * cycle).tolist() == quotas_of(plan).tolist()
    assert plan.native.count(10 * cycle).tolist() == (quotas_of(plan) * 10).tolist()


@settings(max_examples=40)
@given(case=weighted_cases(max_classes=20), seed=seeds, far=st.integers(0, FAR))
def test_visits_are_evenly_distributed_over_time(case, seed, far):
    (_, sizes, per_batch, _), weights = case
    plan = make_plan(class_table(sizes), per_batch, 1, seed, class_weights=weights)
    span, quotas = span_of(plan), quotas_of(plan)
    counts = [plan.native.count((far + i) * span).astype(object) for i in range(4)]
    for before, after in itertools.pairwise(counts):
        # Each span has the share of a class, rounded down or up.
        assert (after - before >= quotas // SPANS).all()
        assert (after - before <= -(-quotas // SPANS)).all()
    assert (abs(counts[0] * SPANS - far * quotas) < 8 * SPANS).all()
    start = far * span
    assert (counts[3] - counts[0] == count_visits(plan, start, start + 3 * span)).all()


@pytest.mark.parametrize("name", ["size", "sqrt"])
def test_weights_by_size(name):
    sizes = [4, 16, 100, 400, 36, 64]
    weights = sizes if name == "size" else np.sqrt(sizes)
    by_name = BalancedPlan(class_table(sizes), 2, 4, 1, class_weights=name)
    by_array = BalancedPlan(class_table(sizes), 2, 4, 1, class_weights=weights)
    assert (by_name.batches(0, 99) == by_array.batches(0, 99)).all()
    options = {"class_weights": name, "total_examples_per_class": 4}
    assert (quotas_of(BalancedPlan(class_table(sizes), 2, 4, 1, **options)) == SPANS).all()


# Changes.


@settings(max_examples=50)
@given(plan=plans(max_changes=6, max_batch=90, max_classes=8, max_examples=12))
def test_every_example_once_per_round_across_changes(plan):
    plan, sizes = plan
    drawn = {label: [] for label in sizes}
    for step in range(120):
        for label, examples in batch_by_class(plan, step):
            drawn[label] += examples
    for label, size in sizes.items():
        for begin in range(0, len(drawn[label]), size):
            examples = drawn[label][begin : begin + size]
            assert len(set(examples)) == len(examples)


@settings(max_examples=40)
@given(case=weighted_cases(max_classes=20), seed=seeds, batch=steps, data=st.data())
def test_change_does_not_affect_earlier_batches(case, seed, batch, data):
    (labels, sizes, per_batch, each), weights = case
    plan = make_plan(class_table(sizes, labels), per_batch, each, seed)
    if data.draw(st.booleans()):
        plan = plan.reweighted("size", batch=data.draw(st.integers(0, batch)))
    start = max(0, batch - 20)
    before, changes = plan.batches(start, batch + 20), plan.changes
    changed = plan.reweighted(weights, batch=batch)
    assert (changed.batches(start, batch) == before[: batch - start]).all()
    assert (changed.native.count(batch) == plan.native.count(batch)).all()
    grown = changed.native.count(batch + 50) - changed.native.count(batch)
    assert not grown[np.array(weights) == 0].any()
    assert grown.sum() == 50 * per_batch
    # The original plan is not modified.
    assert plan.changes == changes
    assert (plan.batches(start, batch + 20) == before).all()


@settings(max_examples=40)
@given(case=weighted_cases(max_classes=12), seed=seeds, batch=steps)
def test_with_changes_restores_a_plan(case, seed, batch):
    (labels, sizes, per_batch, each), weights = case
    table = class_table(sizes, labels)
    plan = make_plan(table, per_batch, each, seed, class_weights="sqrt")
    plan = plan.reweighted(weights, batch=batch).reweighted(None, batch=batch + 20)
    for other in (
        make_plan(table, per_batch, each, seed),
        make_plan(table, per_batch, each, seed, class_weights=weights),
        plan.reweighted("size", batch=3),
    ):
        restored = other.with_changes(plan.changes)
        assert restored.changes == plan.changes
        assert (restored.batches(batch, batch + 40) == plan.batches(batch, batch + 40)).all()


# Epochs.


@settings(max_examples=40)
@given(
    case=weighted_cases(max_classes=10, max_examples=20),
    seed=seeds,
    epoch=st.sampled_from(["classes", "examples"]),
)
def test_epoch_draws_all_classes_with_a_weight(case, seed, epoch):
    (labels, sizes, per_batch, each), weights = case
    weights = [w and min(max(w, 0.05), 2.0) for w in weights]  # bounds the number of steps
    plan = make_plan(
        class_table(sizes, labels), per_batch, each, seed,
        class_weights=weights, steps_per_epoch=epoch,
    )  # fmt: skip
    expected = Counter()
    for label, size, weight in zip(labels, sizes, weights, strict=True):
        expected[label] = 0 if weight == 0 else -(-size // each) if epoch == "examples" else 1
    batches = [batch_by_class(plan, step) for step in range(plan.steps_per_epoch)]
    assert reference.count(batches)[0] >= expected
    # The smallest number of complete spans.
    span = span_of(plan)
    assert len(batches) % span == 0
    assert len(batches) == span or not reference.count(batches[:-span])[0] >= expected


def test_epochs_of_many_weights_are_long_enough():
    random = np.random.default_rng(1)  # in one case, a class is late by more than two visits
    for seed in range(1000):
        count = int(random.integers(2, 8))
        sizes, weights = random.integers(1, 60, count), random.uniform(0.02, 2, count)
        per_batch = int(random.integers(1, min(count, 4) + 1))
        plan = BalancedPlan(class_table(sizes), per_batch, 1, seed, class_weights=weights)
        assert (plan.native.count(plan.steps_per_epoch) >= sizes).all()


def test_first_weights_determine_the_length_of_an_epoch():
    labels = [0] * 100 + [1] * 10 + [2] * 10
    even = BalancedPlan(labels, 2, 2)
    by_size = BalancedPlan(labels, 2, 2, class_weights="size")
    assert (even.steps_per_epoch, by_size.steps_per_epoch) == (75, 50)
    assert even.reweighted("size", batch=0).steps_per_epoch == 50
    assert even.reweighted("size", batch=1).steps_per_epoch == 75
    assert by_size.reweighted(None, batch=0).steps_per_epoch == 75
    assert by_size.reweighted(None, batch=1).steps_per_epoch == 50
    assert by_size.for_rank(1, 4, "independent").steps_per_epoch == 13
    assert by_size.for_rank(1, 2).steps_per_epoch == 50


# Errors.


@pytest.mark.parametrize(
    ("weights", "option"),
    [
        *((weights, "class_weights") for weights in ("cube", {"owl", "wren"}, ["a"] * 4, [1j] * 4)),
        *((weights, "the shape of class_weights") for weights in ([1, 2, 3], [[1, 2, 3, 4]], 1)),
        *(([1, 2, 3, weight], "the weight of class 'wren'") for weight in (None, math.nan, -0.5)),
        ([1, 2, math.inf, 4], "the weight of class 'owl'"),
        *(
            ({"owl": weight}, "the weight of class 'owl'")
            for weight in (math.nan, -1, "much", None, [1, 2])
        ),
        ([0, 0, 0, 0], "classes_per_batch"),
        ({"owl": 0, "kite": 0, "wren": 0}, "classes_per_batch"),
    ],
)
def test_invalid_weights(weights, option):
    table = ClassTable.parse(["owl", "wren", "kite", "crow"] * 5)
    with pytest.raises(PlanError) as error:
        BalancedPlan(table, 2, 2, class_weights=weights)
    assert error.value.option == option
    with pytest.raises(PlanError) as error:
        BalancedPlan(table, 2, 2).reweighted(weights, batch=3)
    assert error.value.option == option


def test_with_changes_of_another_plan():
    plan = BalancedPlan(class_table([5] * 6), 2, 2)
    other = BalancedPlan(class_table([5] * 7), 2, 2, class_weights="size")
    with pytest.raises(PlanError, match=r"^invalid class weights from batch 0 on: one quota per"):
        plan.with_changes(other.changes)
