"""Classes as often as their weights say, and weights that change on the way."""

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
    assert_covers,
    cases,
    classes_of,
    drawn,
    meetings,
    quietly,
    seeds,
    steps,
)
from plan_reference import SPANS

from covey.classes import ClassTable
from covey.errors import DatasetError, PlanError
from covey.plan import BalancedPlan

weight = st.one_of(
    st.sampled_from([0.1, 0.5, 1.0, 2.0]),
    st.floats(1e-6, 1e6),
    st.floats(min_value=0, allow_infinity=False, exclude_min=True),
)


@st.composite
def weighted(draw, **limits):
    """A case of the plan, and a weight for each class, of which P at least are above 0."""
    case = draw(cases(**limits))
    _, sizes, per_batch, _ = case
    some = draw(st.lists(weight, min_size=per_batch, max_size=per_batch))
    more = len(sizes) - per_batch
    others = draw(st.lists(weight | st.just(0.0), min_size=more, max_size=more))
    return case, draw(st.permutations(some + others))


def span_of(plan):
    return -(-len(plan.labels) // plan.classes_per_batch)


def quotas_of(plan):
    """How often each class comes in a cycle, of the last weights."""
    return plan.changes[-1][1].astype(object)


def visits(plan, start, stop):
    """How many of some batches have each class, by its place in the list of them."""
    _, labels = plan.native.draw(start, stop - start, plan.share())
    places = np.searchsorted(plan.labels, labels)
    return np.bincount(places.ravel(), minlength=len(plan.labels))


# As often as the weights say, and never twice in a batch.


@settings(max_examples=150)
@given(case=weighted(), seed=seeds, step=steps)
def test_a_weighted_batch_has_p_classes_and_k_examples_of_each(case, seed, step):
    (labels, sizes, per_batch, each), weights = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed, class_weights=weights)
    found = drawn(plan, step)
    known = {label: (size, w) for label, size, w in zip(labels, sizes, weights, strict=True)}
    assert len(found) == len({label for label, _ in found}) == per_batch
    for label, examples in found:
        size, its_weight = known[label]
        assert its_weight > 0
        assert len(examples) == each
        assert max(examples) < size
        if size >= each:
            assert len(set(examples)) == each


@settings(max_examples=150)
@given(
    weights=st.lists(st.just(0.0) | st.floats(0.01, 100), min_size=1, max_size=40), data=st.data()
)
def test_quotas_are_in_proportion_within_rounding(weights, data):
    positive = sum(each > 0 for each in weights)
    per_batch = data.draw(st.integers(1, max(positive, 1)))
    if positive == 0:
        weights[0] = positive = 1
    plan = BalancedPlan(classes_of([2] * len(weights)), per_batch, class_weights=weights)
    quotas, most = quotas_of(plan), SPANS * span_of(plan)
    shares = reference.shares_of(weights, per_batch)
    assert quotas.sum() == most * per_batch
    assert quotas.max() <= most
    # Every class that has a weight gets one, and then its share of what is left.
    left = sum(share for share in shares if share < most)
    for quota, share, its_weight in zip(quotas, shares, weights, strict=True):
        assert (quota > 0) == (its_weight > 0)
        if share in (0, most):
            assert quota == share
        else:
            assert abs(quota - share) < 2 + share * positive / left


def test_a_weight_that_says_always_leaves_the_others_as_they_are():
    thirds = [SPANS / 3, SPANS * 2 / 3, SPANS]
    for always in [1e3, 1e9, 1e13, 1e300]:
        plan = BalancedPlan(classes_of([2] * 4), 2, class_weights=[always, 1, 2, 3])
        assert quotas_of(plan)[0] == SPANS * 2
        assert quotas_of(plan)[1:].tolist() == pytest.approx(thirds, abs=10)
    plan = BalancedPlan(classes_of([2] * 6), 3, class_weights=[1, 1e20, 2, 1e5, 3, 4])
    assert quotas_of(plan)[[1, 3]].tolist() == [SPANS * 2] * 2
    fifths = [SPANS / 5, SPANS * 2 / 5, SPANS * 3 / 5, SPANS * 4 / 5]
    assert quotas_of(plan)[[0, 2, 4, 5]].tolist() == pytest.approx(fifths, abs=10)


@pytest.mark.parametrize(
    ("weights", "per_batch"),
    [([1, 2, 3, 4], 2), ([1, 1, 1], 2), ([5, 1, 0, 1, 1], 2), ([1, 100, 100, 0.01], 3)],
)
def test_a_cycle_has_exactly_the_quotas(weights, per_batch):
    plan = BalancedPlan(classes_of([1] * len(weights)), per_batch, 1, 5, class_weights=weights)
    cycle = SPANS * span_of(plan)
    assert visits(plan, 0, cycle).tolist() == quotas_of(plan).tolist()
    assert visits(plan, 7 * cycle, 8 * cycle).tolist() == quotas_of(plan).tolist()
    assert plan.native.count(cycle).tolist() == quotas_of(plan).tolist()
    assert plan.native.count(10 * cycle).tolist() == (quotas_of(plan) * 10).tolist()


@settings(max_examples=60)
@given(case=weighted(most_classes=20), seed=seeds, far=st.integers(0, FAR))
def test_classes_come_evenly_in_time(case, seed, far):
    (_, sizes, per_batch, _), weights = case
    plan = quietly(classes_of(sizes), per_batch, 1, seed, class_weights=weights)
    span, quotas = span_of(plan), quotas_of(plan)
    counts = [plan.native.count((far + i) * span).astype(object) for i in range(4)]
    for before, after in itertools.pairwise(counts):
        # Every span has the share of a class, rounded down or up.
        assert (after - before >= quotas // SPANS).all()
        assert (after - before <= -(-quotas // SPANS)).all()
    assert (abs(counts[0] * SPANS - far * quotas) < 8 * SPANS).all()


@settings(max_examples=60)
@given(case=weighted(most_classes=20), seed=seeds, start=steps, count=st.integers(0, 60))
def test_counts_are_those_of_the_batches(case, seed, start, count):
    (_, sizes, per_batch, _), weights = case
    plan = quietly(classes_of(sizes), per_batch, 1, seed, class_weights=weights)
    grown = plan.native.count(start + count) - plan.native.count(start)
    assert grown.tolist() == visits(plan, start, start + count).tolist()


def test_classes_that_cannot_come_more_often_are_in_every_batch():
    plan = BalancedPlan(classes_of([9] * 12), 4, 2, class_weights=[50, 1, 1, 1] * 3)
    assert visits(plan, 0, 999).tolist()[::4] == [999] * 3
    others = np.delete(visits(plan, 0, 999), [0, 4, 8])
    assert others.tolist() == pytest.approx([111] * 9, abs=4)


def test_classes_without_weight_never_come():
    plan = BalancedPlan(classes_of([9] * 5), 2, 2, class_weights=[1, 0, 2, 0.0, 5])
    found = visits(plan, 0, 1000)
    assert found[[1, 3]].tolist() == [0, 0]
    # A class of weight 5 would be in more batches than there are.
    assert found.tolist() == pytest.approx([1000 / 3, 0, 2000 / 3, 0, 1000], abs=2)


def test_as_many_weights_as_classes_of_a_batch():
    plan = BalancedPlan(classes_of([9] * 5), 2, 2, class_weights=[0, 0.1, 0, 1e9, 0])
    assert visits(plan, 0, 50).tolist() == [0, 50, 0, 50, 0]


def test_one_class_of_many_has_nearly_all_the_weight():
    weights = np.full(20_000, 1e-15)
    weights[7] = 1
    quotas = quotas_of(BalancedPlan(classes_of([1] * 20_000), 1, 1, class_weights=weights))
    assert quotas[7] > 0.9999 * SPANS * 20_000
    assert set(np.delete(quotas, 7).tolist()) <= {1, 2}


def test_classes_in_every_batch_stay_there_however_many_others_there_are():
    weights = [1.0] * 4 + [1e-9] * 2000
    plan = BalancedPlan(classes_of([1] * 2004), 5, 1, class_weights=weights)
    assert quotas_of(plan)[:4].tolist() == [SPANS * span_of(plan)] * 4


@pytest.mark.parametrize("name", ["size", "sqrt"])
def test_weights_by_name(name):
    sizes = [4, 16, 100, 400, 36, 64]
    weights = sizes if name == "size" else np.sqrt(sizes)
    named = BalancedPlan(classes_of(sizes), 2, 4, 1, class_weights=name)
    given_so = BalancedPlan(classes_of(sizes), 2, 4, 1, class_weights=weights)
    assert (named.batches(0, 99) == given_so.batches(0, 99)).all()
    expected = np.array(weights) * 2 / sum(weights) * 3000
    if name == "sqrt":
        assert abs(visits(named, 0, 3000) - expected).max() < 4
    limited = BalancedPlan(
        classes_of(sizes), 2, 4, 1, class_weights="size", total_examples_per_class=4
    )
    assert (quotas_of(limited) == SPANS).all()


def test_weights_by_class():
    birds = ["owl", "wren", "kite", "crow"] * 5
    named = BalancedPlan(birds, 2, 2, class_weights={"owl": 0.5, b"kite": 2})
    numbered = BalancedPlan(birds, 2, 2, class_weights={2: 0.5, np.int64(1): 2})
    listed = BalancedPlan(birds, 2, 2, class_weights=[1, 2, 0.5, 1])
    assert quotas_of(named).tolist() == quotas_of(listed).tolist()
    assert (named.batches(0, 99) == listed.batches(0, 99)).all()
    assert (numbered.batches(0, 99) == listed.batches(0, 99)).all()


def test_weights_are_those_of_all_classes_also_if_some_are_not_drawn():
    birds = ["owl", "wren", "kite", "crow"] * 5
    plan = BalancedPlan(
        birds, 2, 2, class_list=["owl", "wren", "crow"], class_weights=[1, math.nan, 2, 1]
    )
    assert plan.labels.tolist() == [0, 2, 3]
    assert quotas_of(plan).tolist() == [SPANS, 2 * SPANS, SPANS]


def test_scale_does_not_matter():
    weights = np.array([1, 2, 3, 4, 5, 6, 7.0])
    for scale in [1e-300, 1e300, 0.1]:
        plan = BalancedPlan(classes_of([5] * 7), 3, 2, class_weights=weights * scale)
        exact = BalancedPlan(classes_of([5] * 7), 3, 2, class_weights=weights)
        assert abs(quotas_of(plan) - quotas_of(exact)).max() <= 1


# Examples are fair also where classes are not.


@settings(max_examples=60)
@given(case=weighted(most_classes=8, most_examples=12), seed=seeds, count=st.integers(1, 150))
def test_every_example_comes_once_a_pass_in_the_order_of_time(case, seed, count):
    (labels, sizes, per_batch, each), weights = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed, class_weights=weights)
    assert_whole_passes(plan, count, dict(zip(labels, sizes, strict=True)))


def assert_whole_passes(plan, count, sizes):
    shown = {label: [] for label in sizes}
    for step in range(count):
        for label, examples in drawn(plan, step):
            shown[label] += examples
    for label, size in sizes.items():
        for begin in range(0, len(shown[label]), size):
            one = shown[label][begin : begin + size]
            assert len(set(one)) == len(one)


@settings(max_examples=60)
@given(case=weighted(most_classes=30, most_examples=40), seed=seeds, data=st.data())
def test_weighted_batches_are_those_of_the_reference(case, seed, data):
    (labels, sizes, per_batch, each), weights = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed, class_weights=weights)
    for batch in sorted(data.draw(st.sets(st.integers(0, 40), max_size=3))):
        new = data.draw(st.sampled_from([None, "size", "sqrt"]) | st.permutations(weights))
        plan = plan.reweighted(new, batch=batch)
    changes = [(batch, None if q is None else q.tolist()) for batch, q in plan.changes]
    expected = reference.balanced(seed, labels, sizes, per_batch, each, changes)
    for step, batch in enumerate(itertools.islice(expected, 60)):
        assert drawn(plan, step) == batch


# Who meets whom.


@pytest.mark.parametrize(("count", "per_batch"), [(10, 3), (12, 4), (20, 15), (33, 16), (65, 32)])
def test_all_pairs_of_equal_weight_meet_equally_often(count, per_batch):
    plan = BalancedPlan(classes_of([1] * count), per_batch, 1, 1, class_weights=[1] * count)
    met, expected = meetings(plan, 30_000)
    assert abs(met - expected).max() < 5 * math.sqrt(expected)


def test_all_pairs_of_rare_classes_meet():
    plan = BalancedPlan(classes_of([1] * 40), 4, 1, 3, class_weights=[0.5] * 20 + [1.5] * 20)
    met, _ = meetings(plan, 100_000)
    first, second = np.triu_indices(40, 1)
    for kind in (second < 20, first >= 20, (first < 20) & (second >= 20)):
        expected = met[kind].mean()
        assert abs(met[kind] - expected).max() < 5 * math.sqrt(expected)


# Weights that change.


@settings(max_examples=60)
@given(case=weighted(most_classes=20), seed=seeds, batch=steps, data=st.data())
def test_the_past_does_not_change(case, seed, batch, data):
    (labels, sizes, per_batch, each), weights = case
    before = quietly(classes_of(sizes, labels), per_batch, each, seed)
    if data.draw(st.booleans()):
        before = before.reweighted("size", batch=data.draw(st.integers(0, batch)))
    after = before.reweighted(weights, batch=batch)
    start = max(0, batch - 20)
    assert (after.batches(start, batch) == before.batches(start, batch)).all()
    assert (after.native.count(batch) == before.native.count(batch)).all()
    zero = np.array(weights) == 0
    grown = after.native.count(batch + 50) - after.native.count(batch)
    assert not grown[zero].any()
    assert grown.sum() == 50 * per_batch


@settings(max_examples=60)
@given(case=weighted(most_classes=8, most_examples=12), seed=seeds, data=st.data())
def test_examples_go_on_where_they_were(case, seed, data):
    (labels, sizes, per_batch, each), weights = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed)
    for batch in sorted(data.draw(st.sets(st.integers(0, 90), max_size=6))):
        new = data.draw(st.sampled_from([None, "size", "sqrt"]) | st.permutations(weights))
        plan = plan.reweighted(new, batch=batch)
    assert_whole_passes(plan, 120, dict(zip(labels, sizes, strict=True)))


def test_a_change_at_the_first_batch_is_a_plan_with_these_weights():
    table = classes_of([5, 6, 7, 8])
    weights = [1, 2, 3, 4]
    changed = BalancedPlan(table, 2, 2, 9).reweighted(weights, batch=0)
    made_so = BalancedPlan(table, 2, 2, 9, class_weights=weights)
    assert (changed.batches(0, 99) == made_so.batches(0, 99)).all()
    even = made_so.reweighted(None, batch=0)
    assert (even.batches(0, 99) == BalancedPlan(table, 2, 2, 9).batches(0, 99)).all()


def test_who_goes_back_drops_what_came_later():
    plan = BalancedPlan(classes_of([5, 6, 7, 8]), 2, 2, 9)
    once = plan.reweighted([4, 3, 2, 1], batch=10)
    twice = once.reweighted("sqrt", batch=30).reweighted(None, batch=40)
    for batch, kept in [(35, 2), (30, 1), (20, 1), (10, 0), (5, 0), (0, 0)]:
        again = twice.reweighted([1, 2, 3, 4], batch=batch)
        assert [begin for begin, _ in again.changes] == [*[10, 30, 40][:kept], batch]
        expected = plan
        for begin, weights in [(10, [4, 3, 2, 1]), (30, "sqrt")][:kept]:
            expected = expected.reweighted(weights, batch=begin)
        expected = expected.reweighted([1, 2, 3, 4], batch=batch)
        assert (again.batches(0, 80) == expected.batches(0, 80)).all()


def test_plans_are_not_changed_themselves():
    plan = BalancedPlan(classes_of([5, 6, 7, 8]), 2, 2, 9)
    before = plan.batches(0, 50)
    changed = plan.reweighted("size", batch=10)
    assert (plan.batches(0, 50) == before).all()
    assert (changed.batches(0, 50) != before).any()
    assert plan.changes == ()


@given(case=weighted(most_classes=12), seed=seeds, batch=steps)
def test_changes_are_enough_to_make_it_again(case, seed, batch):
    (labels, sizes, per_batch, each), weights = case
    table = classes_of(sizes, labels)
    plan = quietly(table, per_batch, each, seed, class_weights="sqrt")
    plan = plan.reweighted(weights, batch=batch).reweighted(None, batch=batch + 20)
    for other in (
        quietly(table, per_batch, each, seed),
        quietly(table, per_batch, each, seed, class_weights=weights),
        plan.reweighted("size", batch=3),
    ):
        again = other.with_changes(plan.changes)
        assert again.changes == plan.changes
        assert (again.batches(batch, batch + 40) == plan.batches(batch, batch + 40)).all()


def test_changes_of_other_plans_are_refused():
    plan = BalancedPlan(classes_of([5] * 6), 2, 2)
    other = BalancedPlan(classes_of([5] * 7), 2, 2, class_weights="size")
    with pytest.raises(PlanError, match="batch 0 on: one quota per class"):
        plan.with_changes(other.changes)


def test_ranks_of_a_plan_with_weights():
    plan = BalancedPlan(classes_of(range(3, 13)), 4, 3, 2, class_weights="size")
    plan = plan.reweighted(range(10), batch=11)
    parts = [plan.for_rank(rank, 3).batches(0, 30) for rank in range(3)]
    assert (np.concatenate(parts, axis=1) == plan.batches(0, 30)).all()
    own = [plan.for_rank(rank, 3, "independent").batches(0, 10) for rank in range(3)]
    assert (np.stack(own, axis=1).reshape(30, -1) == plan.batches(0, 30)).all()
    late = plan.for_rank(1, 3, "independent").reweighted("sqrt", batch=20)
    expected = plan.reweighted("sqrt", batch=20)
    assert (late.batches(0, 20) == expected.for_rank(1, 3, "independent").batches(0, 20)).all()


def test_many_changes():
    plan = BalancedPlan(classes_of([7] * 6), 2, 3, 4)
    for batch in range(0, 600, 3):
        weights = [1.0 + (batch * i) % 5 for i in range(6)]
        plan = plan.reweighted(weights, batch=batch)
    assert len(plan.changes) == 200
    assert_whole_passes(plan, 620, dict.fromkeys(range(6), 7))


# Epochs.


@settings(max_examples=80)
@given(
    case=weighted(most_classes=10, most_examples=20),
    seed=seeds,
    epoch=st.sampled_from(["classes", "examples"]),
)
def test_an_epoch_shows_all_that_has_a_weight(case, seed, epoch):
    (labels, sizes, per_batch, each), weights = case
    # Not a million steps for a class that hardly ever comes.
    weights = [w and min(max(w, 0.05), 2.0) for w in weights]
    plan = quietly(
        classes_of(sizes, labels),
        per_batch,
        each,
        seed,
        class_weights=weights,
        steps_per_epoch=epoch,
    )
    wanted = Counter()
    for label, size, its_weight in zip(labels, sizes, weights, strict=True):
        wanted[label] = 0 if its_weight == 0 else -(-size // each) if epoch == "examples" else 1
    batches = [drawn(plan, step) for step in range(plan.steps_per_epoch)]
    shown, _ = reference.counts_of(batches)
    assert shown >= wanted
    # It is whole spans, of which one less would not do.
    span = span_of(plan)
    assert len(batches) % span == 0
    if len(batches) > span:
        shown, _ = reference.counts_of(batches[:-span])
        assert not shown >= wanted


def test_epochs_of_many_weights_are_long_enough():
    random = np.random.default_rng(1)  # one of these has a class that is late by more than two
    for seed in range(1000):
        count = int(random.integers(2, 8))
        sizes, weights = random.integers(1, 60, count), random.uniform(0.02, 2, count)
        per_batch = int(random.integers(1, min(count, 4) + 1))
        plan = BalancedPlan(classes_of(sizes), per_batch, 1, seed, class_weights=weights)
        assert (plan.native.count(plan.steps_per_epoch) >= sizes).all()


def test_an_epoch_is_that_of_the_first_weights():
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


@settings(max_examples=60)
@given(
    case=weighted(most_classes=10, most_examples=30),
    seed=seeds,
    count=st.integers(0, 40),
    change=st.integers(0, 40),
)
def test_coverage_of_weights_is_what_is_counted(case, seed, count, change):
    (labels, sizes, per_batch, each), weights = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed, class_weights=weights)
    plan = plan.reweighted("size", batch=change)
    batches = [drawn(plan, step) for step in range(count)]
    assert_covers(plan.coverage(count), count, batches, dict(zip(labels, sizes, strict=True)))


# What is wrong.


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("cube", "class_weights is 'cube'; must be 'sqrt', 'size', an array or a dict"),
        ([1, 2, 3], r"the shape of class_weights is \(3,\); must be \(4,\)"),
        ([[1, 2, 3, 4]], r"the shape of class_weights is \(1, 4\)"),
        (1, r"the shape of class_weights is \(\)"),
        ({"owl", "wren"}, "class_weights is 'set'"),
        (["a", "b", "c", "d"], "class_weights is 'list'"),
        ([1, 2, 3, None], "the weight of class 'wren' is nan"),
        ([1, 2, 3, 1j], "class_weights is 'list'"),
        ([1, math.nan, 3, 4], "the weight of class 'kite' is nan; must be a finite number >= 0"),
        ([1, 2, 3, -0.5], "the weight of class 'wren' is -0.5"),
        ([1, 2, math.inf, 4], "the weight of class 'owl' is inf"),
        ({"owl": math.nan}, "the weight of class 'owl' is nan"),
        ({"owl": -1}, "the weight of class 'owl' is -1"),
        ({"owl": "much"}, "the weight of class 'owl' is 'much'"),
        ({"owl": None}, "the weight of class 'owl' is "),
        ({"owl": [1, 2]}, "the weight of class 'owl' is "),
        ([0, 0, 0, 0], "classes_per_batch is 2; must be <= 0"),
        ([0, 1, 0, 0], "classes_per_batch is 2; must be <= 1"),
        ({"owl": 0, "kite": 0, "wren": 0}, "must be <= 1"),
    ],
)
def test_wrong_weights(weights, message):
    table = ClassTable.parse(["owl", "wren", "kite", "crow"] * 5)
    with pytest.raises(PlanError, match=message):
        BalancedPlan(table, 2, 2, class_weights=weights)
    with pytest.raises(PlanError, match=message):
        BalancedPlan(table, 2, 2).reweighted(weights, batch=3)


def test_weights_of_classes_that_are_not_there():
    with pytest.raises(DatasetError, match="there is no record of class 'eagle'"):
        BalancedPlan(["owl", "wren"] * 5, 2, 2, class_weights={"eagle": 2})
