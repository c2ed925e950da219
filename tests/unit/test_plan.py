"""Which records a batch has: exact, fair, and the same for ever."""

import itertools
import json
import math
import pickle
import threading

import numpy as np
import pandas as pd
import plan_reference as reference
import pytest
from golden_plans import FOLDER, PLANS, build, golden_of
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
from scipy import stats

from covey import _core
from covey.classes import CLASS_DTYPE, ClassTable
from covey.errors import DatasetError, PlanError, SmallClassesWarning
from covey.plan import BalancedPlan, SequentialPlan, ShuffledPlan

# Exactly P classes, exactly K examples of each.


@settings(max_examples=200)
@given(case=cases(), seed=seeds, step=steps)
def test_a_batch_has_p_classes_and_k_examples_of_each(case, seed, step):
    labels, sizes, per_batch, each = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed)
    found = drawn(plan, step)
    size_of = dict(zip(labels, sizes, strict=True))
    assert len(found) == len({label for label, _ in found}) == per_batch
    for label, examples in found:
        assert len(examples) == each
        assert min(examples) >= 0
        assert max(examples) < size_of[label]
        # All different; or if there are fewer, each as often as any other, within one.
        times = np.bincount(np.unique(examples, return_inverse=True)[1])
        assert len(times) == min(each, size_of[label])
        assert max(times) - min(times) <= 1


@pytest.mark.parametrize("labels", [["owl", "wren", "owl", "kite", "wren"], [7, -3, 7, 5, -3]])
def test_examples_are_of_the_classes_that_they_are_said_to_be_of(labels):
    plan = quietly(labels, 2, 2, seed=3)
    table = ClassTable.parse(labels)
    for step in range(20):
        for label, ids in drawn(plan, step):
            assert set(ids) <= set(table.records(table.position(label)).tolist())


def test_numbers_of_records_may_be_wide():
    table = classes_of([5, 900, 70])
    rows = np.array([(i, 0, n) for i, n in enumerate([5, 900, 70])], table._table.dtype)
    wide = ClassTable(rows, 2**40 + np.arange(1000, dtype=np.uint64), None)
    narrow = BalancedPlan(table, 2, 4).batches(0, 50)
    assert (BalancedPlan(wide, 2, 4).batches(0, 50) == narrow + 2**40).all()


# Fair: whole rounds of classes, whole passes of examples.

TIGHT = [(n, k) for k in range(1, 10) for n in range(1, 3 * k + 2)]


@pytest.mark.parametrize("far", [0, 1, FAR // 7])
def test_every_class_comes_once_a_round(far):
    for count, per_batch in TIGHT:
        if per_batch <= count:
            plan = BalancedPlan(classes_of([1] * count), per_batch, 1, seed=count)
            # As many batches as there are classes are P whole rounds, wherever they begin.
            start = far * count
            found = np.stack([plan.classes(start + i) for i in range(count)])
            assert (np.sort(found.reshape(per_batch, count)) == np.arange(count)).all()
            assert all(len(set(batch)) == per_batch for batch in found.tolist())


@pytest.mark.parametrize("far", [0, 1, FAR // 7])
def test_every_example_comes_once_a_pass(far):
    for size, each in TIGHT:
        plan = quietly(classes_of([size] * 3), 3, each, seed=size)  # every class in every batch
        ids = plan.batches(far * size, far * size + size).reshape(size, 3, each)
        order = np.argsort([plan.classes(far * size + i) for i in range(size)], axis=1)
        for which in range(3):
            draws = ids[np.arange(size), order[:, which]]
            assert (np.sort(draws.reshape(each, size)) == np.arange(size)).all()
            for draw in draws:
                times = np.bincount(draw, minlength=size)
                assert max(times) == -(-each // size)
                assert min(times) == each // size


@settings(max_examples=60)
@given(case=cases(most_classes=12, most_examples=40), seed=seeds, count=st.integers(1, 80))
def test_visits_differ_by_one_at_most_at_any_time(case, seed, count):
    labels, sizes, per_batch, each = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed)
    visits, times = reference.counts_of(drawn(plan, step) for step in range(count))
    assert max(visits[label] for label in labels) - min(visits[label] for label in labels) <= 1
    for label, size in zip(labels, sizes, strict=True):
        shown = [times[label, example] for example in range(size)]
        assert max(shown) - min(shown) <= 1
        assert sum(shown) == visits[label] * each


# A pure function of the seed and the step.


@settings(max_examples=60)
@given(case=cases(), seed=seeds, start=steps, count=st.integers(0, 20))
def test_batches_are_one_batch_after_the_other(case, seed, start, count):
    labels, sizes, per_batch, each = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed)
    found = plan.batches(start, start + count)
    assert found.shape == (count, per_batch * each)
    assert found.dtype == np.int64
    again = quietly(classes_of(sizes, labels), per_batch, each, seed)
    for i in reversed(range(count)):
        assert (again.batch(start + i) == found[i]).all()


def test_no_batches():
    plan = BalancedPlan(classes_of([5] * 9), 2, 3)
    assert plan.batches(7, 7).shape == plan.batches(7, 3).shape == (0, 6)


def test_other_seeds_have_other_batches():
    table = classes_of([50] * 50)
    firsts = {tuple(BalancedPlan(table, 4, 4, seed).batch(0).tolist()) for seed in range(500)}
    assert len(firsts) == 500


def test_plans_can_be_pickled():
    even = BalancedPlan(classes_of(range(4, 24)), 6, 4, seed=5)
    for plan in (
        even,
        BalancedPlan(["owl", "wren"] * 9, 2, 3, class_weights={"owl": 2}),
        even.reweighted("sqrt", batch=7).reweighted(None, batch=20).for_rank(1, 3, "independent"),
        ShuffledPlan(50, 8, seed=3).for_rank(1, 2),
        SequentialPlan(50, 8, remainder="drop"),
    ):
        again = pickle.loads(pickle.dumps(plan))
        assert repr(again) == repr(plan)
        assert again.steps_per_epoch == plan.steps_per_epoch
        for step in range(40):
            assert again.batch(step).tolist() == plan.batch(step).tolist()


def test_threads_may_share_a_plan():
    even = BalancedPlan(classes_of([30] * 40), 6, 4, seed=5)
    plans = [even, even.reweighted("size", batch=0), even.reweighted(range(40), batch=30)]
    expected = [plan.batches(0, 300).tolist() for plan in plans]
    found = {}

    def ask(name, plan, order):
        found[name] = {step: plan.batch(step).tolist() for step in order}

    orders = [range(300), range(299, -1, -1), [step * 7 % 300 for step in range(300)]]
    asked = list(itertools.product(range(3), range(3)))
    threads = [threading.Thread(target=ask, args=((i, j), plans[i], orders[j])) for i, j in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, j in asked:
        assert [found[i, j][step] for step in range(300)] == expected[i]


# As the design says, written down a second time.


@settings(max_examples=60)
@given(case=cases(most_classes=45, most_examples=60), seed=seeds)
def test_batches_are_those_of_the_reference(case, seed):
    labels, sizes, per_batch, each = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed)
    expected = reference.balanced(seed, labels, sizes, per_batch, each)
    for step, batch in enumerate(itertools.islice(expected, 40)):
        assert drawn(plan, step) == batch


# The grid of the network is about square: squares and their neighbours are its edges.
sizes_of_orders = st.one_of(
    st.integers(1, 2000),
    st.integers(1, 2**61 - 1),
    st.builds(lambda root, more: root**2 + more, st.integers(6, 2**30 - 1), st.integers(-1, 1)),
)


@settings(max_examples=300)
@given(size=sizes_of_orders, seed=seeds, epoch=st.integers(0, 1), data=st.data())
def test_shuffled_orders_are_those_of_the_reference(size, seed, epoch, data):
    number = data.draw(st.integers(0, size - 1))
    key = reference.derive(reference.derive(seed, reference.EPOCHS), epoch)
    (found,) = ShuffledPlan(size, 1, seed).batch(epoch * size + number)
    assert found == reference.place(key, size, number)


@pytest.mark.parametrize("name", PLANS)
def test_a_seed_means_the_same_batches_for_ever(name):
    golden = golden_of(name)
    plan = build(golden["plan"])
    assert golden["batches"]
    for step, ids in golden["batches"].items():
        assert plan.batch(int(step)).tolist() == ids
    for step, labels in golden.get("classes", {}).items():
        assert plan.classes(int(step)).tolist() == labels
    assert json.loads(json.dumps(plan.description)) == golden["description"]
    assert plan.steps_per_epoch == golden["steps_per_epoch"]


def test_every_golden_plan_is_looked_at():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PLANS)


# Draws are uniform. Seeds are fixed, so these hold always or never.


def assert_uniform(counts):
    assert stats.chisquare(np.ravel(counts)).pvalue > 0.001


def pairs(first, second, size):
    return np.bincount(first * size + second, minlength=size**2).reshape(size, size)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_of_a_few_are_equally_likely(size):
    found = BalancedPlan(classes_of([size]), 1, size, seed=size).batches(0, 50_000)
    orders, counts = np.unique(found, axis=0, return_counts=True)
    assert len(orders) == math.factorial(size)
    assert_uniform(counts)


@pytest.mark.parametrize("size", [31, 32, 33, 36, 37, 50, 90])
def test_pairs_of_places_are_uniform(size):
    found = ShuffledPlan(size, size, seed=size, remainder="drop").batches(0, 60_000)
    unequal = ~np.eye(size, dtype=bool)
    for one, other in [(0, 1), (0, size - 1), (size // 2, size // 2 + 1)]:
        assert_uniform(pairs(found[:, one], found[:, other], size)[unequal])
    assert_uniform(np.bincount(found[:, 3], minlength=size))
    # The same place of two rounds.
    assert_uniform(pairs(found[:-1, 0], found[1:, 0], size))


@pytest.mark.parametrize("size", [10_000, 999_900, 10**12])
def test_large_orders_are_uniform(size):
    begins = ShuffledPlan(size, 4, seed=1, remainder="drop")
    # The first four of many epochs.
    found = begins.for_rank(0, begins.batches_per_epoch, "independent").batches(0, 60_000)
    parts = found // (size // 20)
    assert_uniform(pairs(parts[:, 0], parts[:, 1], 20))
    assert_uniform(pairs(parts[:, 1], parts[:, 3], 20))
    assert_uniform(np.bincount(found[:, 2] % 100))


def test_classes_are_uniform_over_seeds():
    table = classes_of([4] * 40)
    found = np.array([BalancedPlan(table, 3, 1, seed).classes(0) for seed in range(8000)])
    for place in range(3):
        assert_uniform(np.bincount(found[:, place], minlength=40))


def test_examples_are_uniform_and_those_of_two_classes_are_independent():
    plan = BalancedPlan(classes_of([30, 30]), 2, 2, seed=9)
    ids = plan.batches(0, 60_000).reshape(-1, 2, 2)
    labels = np.array([plan.classes(step) for step in range(60_000)])
    of_first, of_second = ids[labels == 0], ids[labels == 1]
    assert_uniform(pairs(of_first[::15, 0], of_second[::15, 0], 30))  # where passes begin
    assert_uniform(pairs(of_first[7::15, 0], of_second[7::15, 0], 30))
    assert_uniform(np.bincount(of_first[::15, 1], minlength=30))


@pytest.mark.parametrize(("count", "per_batch"), [(10, 3), (12, 4), (20, 15), (33, 16), (65, 32)])
def test_all_pairs_of_classes_meet_equally_often(count, per_batch):
    plan = BalancedPlan(classes_of([1] * count), per_batch, 1, seed=1)
    met, expected = meetings(plan, 30_000)
    assert abs(met - expected).max() < 5 * math.sqrt(expected)


# Small classes.

BIRDS = ["owl"] * 5 + ["wren"] * 2 + ["kite"] * 9 + ["crow"] * 3 + ["finch"] * 4


def test_small_classes_are_repeated_with_one_warning():
    with pytest.warns(SmallClassesWarning) as caught:
        plan = BalancedPlan(BIRDS, 5, 4)
    (warning,) = caught
    assert str(warning.message) == (
        "2 classes have fewer than 4 examples: 'crow' (3), 'wren' (2); their examples are repeated"
    )
    assert warning.filename == __file__
    for step in range(30):
        for label, ids in drawn(plan, step):
            name = sorted(set(BIRDS))[label]
            assert {BIRDS[each] for each in ids} == {name}
            assert len(set(ids)) == 4 or name in ("crow", "wren")
    plan.for_rank(0, 2).reweighted("size", batch=3)  # says nothing again


def test_small_classes_are_dropped_with_one_warning():
    with pytest.warns(SmallClassesWarning, match="^2 classes .*; they are dropped$") as caught:
        plan = BalancedPlan(BIRDS, 3, 4, small_classes="drop")
    assert len(caught) == 1
    assert plan.labels.tolist() == [1, 2, 3]  # finch, kite, owl
    assert {BIRDS[each] for each in plan.batches(0, 50).ravel()} == {"finch", "kite", "owl"}


def test_small_classes_are_refused():
    with pytest.raises(PlanError) as caught:
        BalancedPlan(BIRDS, 3, 5, small_classes="error")
    assert str(caught.value) == (
        "3 classes have fewer than 5 examples: 'crow' (3), 'finch' (4), 'wren' (2); reduce "
        "examples_per_class, or pass small_classes='repeat' or 'drop'"
    )
    assert BalancedPlan(BIRDS, 3, 2, small_classes="error").batch(0).shape == (6,)


def test_many_small_classes_are_counted_and_a_few_named():
    with pytest.warns(SmallClassesWarning) as caught:
        BalancedPlan(classes_of([1] * 1234 + [9]), 3, 2)
    assert str(caught[0].message).startswith("1,234 classes have fewer than 2 examples: '0' (1), ")
    assert "'4' (1), ...; " in str(caught[0].message)
    with pytest.warns(SmallClassesWarning, match="^1 class has fewer than 2 examples: '0' "):
        BalancedPlan(classes_of([1, 9]), 1, 2)


def test_too_many_small_classes_are_dropped():
    with (
        pytest.warns(SmallClassesWarning),
        pytest.raises(PlanError, match="classes_per_batch is 3; must be <= 1"),
    ):
        BalancedPlan(BIRDS, 3, 9, small_classes="drop")


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    each=st.integers(1, 12),
    seed=seeds,
)
def test_dropping_leaves_the_others_as_if_they_were_alone(sizes, each, seed):
    large = [(label, size) for label, size in enumerate(sizes) if size >= each]
    if large:
        labels, counts = zip(*large, strict=True)
        alone = BalancedPlan(classes_of(counts, labels), 1, each, seed)
        left = quietly(classes_of(sizes), 1, each, seed, small_classes="drop")
        assert (left.batches(0, 30) == alone.batches(0, 30)).all()


# Some classes only, some examples only.


def test_class_list_by_label_and_by_name():
    by_name = BalancedPlan(BIRDS, 2, 2, class_list=["owl", b"kite", "owl"])
    by_number = BalancedPlan(BIRDS, 2, 2, class_list=np.array([2, 3]))
    by_stream = BalancedPlan(BIRDS, 2, 2, class_list=iter((np.int32(3), "kite")))
    assert {BIRDS[each] for each in by_name.batches(0, 50).ravel()} == {"owl", "kite"}
    assert (by_name.batches(0, 50) == by_number.batches(0, 50)).all()
    assert (by_name.batches(0, 50) == by_stream.batches(0, 50)).all()
    assert by_name.labels.tolist() == [2, 3]


def test_small_classes_that_are_not_wanted_are_not_spoken_of():
    BalancedPlan(BIRDS, 2, 4, class_list=["owl", "kite"])


@given(st.sets(st.integers(0, 19), min_size=3), seeds)
def test_a_class_shows_the_same_examples_whatever_else_is_drawn(chosen, seed):
    table = classes_of(range(3, 23))
    plan = BalancedPlan(table, 3, 3, seed, class_list=chosen)
    shown = {label: [] for label in chosen}
    for step in range(30):
        for label, ids in drawn(plan, step):
            shown[label] += ids
    for label, ids in shown.items():
        alone = BalancedPlan(table, 1, 3, seed, class_list=[label])
        assert ids == alone.batches(0, len(ids) // 3).ravel().tolist()


def test_the_first_examples_of_each_class_only():
    plan = quietly(BIRDS, 5, 2, total_examples_per_class=3)
    shown = set(plan.batches(0, 50).ravel().tolist())
    assert shown == {0, 1, 2, 5, 6, 7, 8, 9, 16, 17, 18, 19, 20, 21}
    with pytest.warns(SmallClassesWarning, match="5 classes have fewer than 4 examples"):
        BalancedPlan(BIRDS, 5, 4, total_examples_per_class=3)


def test_more_examples_than_there_are():
    for total in [9, 10**6, np.int64(2**62)]:
        plan = quietly(BIRDS, 5, 4, total_examples_per_class=total)
        assert (plan.batches(0, 9) == quietly(BIRDS, 5, 4).batches(0, 9)).all()


# Ranks.


@settings(max_examples=60)
@given(case=cases(most_classes=30, small=False), seed=seeds, start=steps, data=st.data())
def test_ranks_split_a_batch_by_class(case, seed, start, data):
    labels, sizes, per_batch, each = case
    plan = BalancedPlan(classes_of(sizes, labels), per_batch, each, seed)
    world_size = data.draw(st.integers(1, per_batch))
    parts = [plan.for_rank(rank, world_size) for rank in range(world_size)]
    for step in range(start, start + 3):
        batches = [part.batch(step) for part in parts]
        assert (np.concatenate(batches) == plan.batch(step)).all()
        assert (np.concatenate([part.classes(step) for part in parts]) == plan.classes(step)).all()
        counts = [len(batch) for batch in batches]
        assert all(count % each == 0 for count in counts)
        assert max(counts) - min(counts) <= each
        assert min(counts) > 0


@settings(max_examples=60)
@given(
    case=cases(most_classes=30, small=False), seed=seeds, start=steps, world_size=st.integers(1, 9)
)
def test_ranks_take_batches_of_their_own(case, seed, start, world_size):
    labels, sizes, per_batch, each = case
    plan = BalancedPlan(classes_of(sizes, labels), per_batch, each, seed)
    parts = [
        plan.for_rank(rank, world_size, "independent").batches(start, start + 3)
        for rank in range(world_size)
    ]
    together = np.stack(parts, axis=1).reshape(3 * world_size, -1)
    assert (together == plan.batches(start * world_size, (start + 3) * world_size)).all()


@given(
    worlds=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 6)), min_size=1, max_size=5),
    seed=seeds,
)
def test_other_numbers_of_ranks_lose_and_repeat_nothing(worlds, seed):
    plan = BalancedPlan(classes_of(range(4, 14)), 3, 4, seed)
    shown, origin = [], 0
    for world_size, count in worlds:
        parts = [plan.for_rank(rank, world_size, "independent") for rank in range(world_size)]
        rows = [part.native.draw(0, count, part.share(origin))[0] for part in parts]
        shown += np.stack(rows, axis=1).reshape(count * world_size, 12).tolist()
        origin += count * world_size
    assert shown == plan.batches(0, origin).tolist()


def test_eight_ranks_go_on_as_six():
    plan = BalancedPlan(classes_of([20] * 12), 4, 4, seed=8)
    before = [
        plan.for_rank(rank, 8, "independent").batch(step) for step in range(3) for rank in range(8)
    ]
    six = [plan.for_rank(rank, 6, "independent") for rank in range(6)]
    after = [part.native.draw(step, 1, part.share(24))[0][0] for step in range(6) for part in six]
    # 60 batches of 4 classes are 20 rounds, in which each class shows each example four times.
    times = np.bincount(np.concatenate([*before, *after]), minlength=20)
    assert (np.stack([*before, *after]) == plan.batches(0, 60)).all()
    assert (times == 12 * 20 * 4 // 20).all()


def test_the_plan_of_a_rank_knows_who_it_is():
    plan = BalancedPlan(classes_of([5] * 9), 4, 2)
    part = plan.for_rank(2, 3, "independent")
    assert (part.rank, part.world_size, part.mode, part.batches_per_step) == (
        2,
        3,
        "independent",
        3,
    )
    assert (plan.rank, plan.world_size, plan.mode, plan.batches_per_step) == (0, 1, "split", 1)
    assert repr(part).endswith(", rank 2 of 3 (independent)>")
    assert (part.for_rank(0, 1).batches(0, 9) == plan.batches(0, 9)).all()
    assert part.description == plan.description


@pytest.mark.parametrize(
    ("rank", "world_size", "mode", "message"),
    [
        (-1, 2, "split", "rank is -1; must be an integer >= 0"),
        (2, 2, "split", "rank is 2; must be below world_size, which is 2"),
        (0, 0, "independent", "world_size is 0; must be an integer >= 1"),
        (0.0, 1, "independent", "rank is 0.0"),
        (False, 1, "independent", "rank is False"),
        (0, None, "independent", "world_size is None"),
        (0, 2, "both", "mode is 'both'; must be 'split' or 'independent'"),
        (0, 2, ["independent"], "mode is "),
        (0, 5, "split", "a batch of 4 units cannot be split over 5 ranks"),
    ],
)
def test_impossible_ranks(rank, world_size, mode, message):
    with pytest.raises(PlanError, match=message):
        BalancedPlan(classes_of([5] * 9), 4, 2).for_rank(rank, world_size, mode)


# Epochs.


@settings(max_examples=60)
@given(case=cases(most_classes=12, most_examples=40), seed=seeds)
def test_an_epoch_of_classes_shows_every_class(case, seed):
    labels, sizes, per_batch, each = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed, steps_per_epoch="classes")
    shown = [set(plan.classes(step).tolist()) for step in range(plan.steps_per_epoch)]
    assert set().union(*shown) == set(labels)
    assert set().union(*shown[:-1]) != set(labels)


@settings(max_examples=60)
@given(case=cases(most_classes=12, most_examples=40), seed=seeds, world_size=st.integers(1, 4))
def test_an_epoch_of_examples_shows_every_example(case, seed, world_size):
    labels, sizes, per_batch, each = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed)
    own = plan.for_rank(0, world_size, "independent")
    batches = own.steps_per_epoch * world_size
    assert batches - world_size < plan.steps_per_epoch <= batches
    _, times = reference.counts_of(drawn(plan, step) for step in range(plan.steps_per_epoch))
    assert len(times) == sum(sizes)
    # It takes no more rounds than the largest class needs.
    needed = -(-max(sizes) // each)
    assert plan.steps_per_epoch == -(-needed * len(sizes) // per_batch)


@given(
    count=st.integers(1, 12),
    size=st.integers(1, 20),
    each=st.integers(1, 6),
    seed=seeds,
    data=st.data(),
)
def test_a_step_less_does_not_show_every_example_of_classes_that_are_alike(
    count, size, each, seed, data
):
    plan = quietly(classes_of([size] * count), data.draw(st.integers(1, count)), each, seed)
    assert plan.coverage(plan.steps_per_epoch).examples == 1
    if plan.steps_per_epoch > 1:
        assert plan.coverage(plan.steps_per_epoch - 1).examples < 1


def test_an_epoch_of_so_many_steps():
    for given_steps in [7, np.int64(7)]:
        plan = BalancedPlan(classes_of([5] * 9), 4, 2, steps_per_epoch=given_steps)
        assert plan.steps_per_epoch == plan.for_rank(1, 3, "independent").steps_per_epoch == 7


@settings(max_examples=60)
@given(
    case=cases(most_classes=12, most_examples=30),
    seed=seeds,
    count=st.integers(0, 40),
    world_size=st.integers(1, 3),
)
def test_coverage_is_what_is_counted(case, seed, count, world_size):
    labels, sizes, per_batch, each = case
    plan = quietly(classes_of(sizes, labels), per_batch, each, seed)
    batches = [drawn(plan, step) for step in range(count * world_size)]
    found = plan.for_rank(world_size - 1, world_size, "independent").coverage(count)
    assert_covers(found, count, batches, dict(zip(labels, sizes, strict=True)))
    if world_size <= per_batch:
        assert plan.for_rank(0, world_size).coverage(count) == plan.coverage(count)


def test_coverage_far_away():
    plan = BalancedPlan(classes_of([100] * 10), 3, 4)
    found = plan.coverage(FAR)
    assert found.visits == (3 * FAR // 10, 3 * FAR // 10)
    assert found.times == (3 * FAR // 10 * 4 // 100, 3 * FAR // 10 * 4 // 100)
    assert str(found).startswith("1,000,000,000,000 steps: 100.0% of the classes (300,000,000,000 ")


# Plans without classes.

REMAINDERS = ["keep", "drop", "fill"]


@settings(max_examples=150)
@given(
    records=st.integers(1, 120),
    batch_size=st.integers(1, 50),
    remainder=st.sampled_from(REMAINDERS),
    is_shuffled=st.booleans(),
    seed=seeds,
)
def test_epochs_are_those_of_the_reference(records, batch_size, remainder, is_shuffled, seed):
    if remainder == "drop":
        batch_size = min(batch_size, records)
    if is_shuffled:
        plan = ShuffledPlan(records, batch_size, seed, remainder=remainder)
    else:
        plan = SequentialPlan(records, batch_size, remainder=remainder)
    expected = reference.epochs(seed, records, batch_size, remainder, is_shuffled=is_shuffled)
    batches = list(itertools.islice(expected, 3 * plan.batches_per_epoch + 2))
    assert [plan.batch(step).tolist() for step in range(len(batches))] == batches
    assert [ids.tolist() for ids in plan.batches(0, len(batches))] == batches
    assert [ids.tolist() for ids in plan.batches(1, len(batches) - 1)] == batches[1:-1]


@pytest.mark.parametrize("records", [1, 7, 32, 33, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 32, 40])
def test_a_shuffled_epoch_has_every_record_once(records, batch_size):
    plan = ShuffledPlan(records, batch_size, seed=5)
    for start in [0, plan.steps_per_epoch, FAR * plan.steps_per_epoch]:
        epoch = np.concatenate(list(plan.batches(start, start + plan.steps_per_epoch)))
        assert sorted(epoch.tolist()) == list(range(records))


@pytest.mark.parametrize("records", [5, 7, 12, 33, 100])
def test_filled_batches_are_full_and_have_no_record_twice(records):
    for batch_size in range(1, min(records, 40) + 1):
        plan = ShuffledPlan(records, batch_size, seed=5, remainder="fill")
        for start in [0, FAR // records * records]:
            found = plan.batches(start, start + records)
            assert all(len(set(ids)) == batch_size for ids in found.tolist())
            # So many batches are whole epochs, one behind the other.
            epochs = np.sort(found.reshape(batch_size, records))
            assert (epochs == np.arange(records)).all()


def test_dropped_records_are_others_in_each_epoch():
    plan = ShuffledPlan(10, 4, seed=2, remainder="drop")
    assert plan.steps_per_epoch == 2
    left = [
        frozenset(range(10)) - set(plan.batches(epoch * 2, epoch * 2 + 2).ravel().tolist())
        for epoch in range(40)
    ]
    assert all(len(each) == 2 for each in left)
    assert frozenset().union(*left) == frozenset(range(10))


def test_sequential_batches():
    assert [ids.tolist() for ids in SequentialPlan(5, 2).batches(0, 4)] == [
        [0, 1], [2, 3], [4], [0, 1]
    ]  # fmt: skip
    assert SequentialPlan(5, 2, remainder="drop").batches(0, 3).tolist() == [[0, 1], [2, 3], [0, 1]]
    assert SequentialPlan(5, 2, remainder="fill").batches(0, 3).tolist() == [[0, 1], [2, 3], [4, 0]]
    assert SequentialPlan(3, 8).batches(0, 2).tolist() == [[0, 1, 2], [0, 1, 2]]


@settings(max_examples=150)
@given(
    records=st.integers(1, 60),
    batch_size=st.integers(1, 30),
    remainder=st.sampled_from(REMAINDERS),
    world_size=st.integers(1, 8),
    step=st.integers(0, 40) | st.integers(0, FAR),
)
def test_ranks_split_records(records, batch_size, remainder, world_size, step):
    if remainder == "drop":
        batch_size = min(batch_size, records)
    plan = ShuffledPlan(records, batch_size, 3, remainder=remainder)
    if world_size <= batch_size:
        parts = [plan.for_rank(rank, world_size).batch(step) for rank in range(world_size)]
        assert (np.concatenate(parts) == plan.batch(step)).all()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    own = [
        plan.for_rank(rank, world_size, "independent").batch(step).tolist()
        for rank in range(world_size)
    ]
    assert own == [plan.batch(step * world_size + rank).tolist() for rank in range(world_size)]


@given(
    records=st.integers(1, 60),
    batch_size=st.integers(1, 30),
    world_size=st.integers(1, 8),
    mode=st.sampled_from(["split", "independent"]),
)
def test_the_first_epoch_of_all_ranks_has_every_record_once(records, batch_size, world_size, mode):
    batch_size = max(batch_size, world_size)
    plan = ShuffledPlan(records, batch_size, 3)
    parts = [plan.for_rank(rank, world_size, mode) for rank in range(world_size)]
    shown = [list(part.batches(0, part.steps_per_epoch)) for part in parts]
    assert sorted(np.concatenate([ids for rows in shown for ids in rows])) == list(range(records))
    assert max(map(len, shown)) == parts[0].steps_per_epoch


@pytest.mark.parametrize(
    ("records", "batch_size", "remainder", "expected"),
    [(10, 4, "keep", 3), (10, 4, "drop", 2), (10, 4, "fill", 3), (8, 4, "keep", 2)],
)
def test_steps_of_an_epoch_of_records(records, batch_size, remainder, expected):
    for plan in [
        ShuffledPlan(records, batch_size, remainder=remainder),
        SequentialPlan(records, batch_size, remainder=remainder),
    ]:
        assert plan.steps_per_epoch == plan.batches_per_epoch == expected
        assert plan.is_endless == (remainder == "fill")


@given(
    records=st.integers(1, 60),
    batch_size=st.integers(1, 8),
    remainder=st.sampled_from(REMAINDERS),
    world_size=st.integers(1, 8),
    mode=st.sampled_from(["split", "independent"]),
    batch=st.integers(0, 200),
)
def test_ranks_share_out_what_is_left_of_an_epoch(
    records, batch_size, remainder, world_size, mode, batch
):
    if remainder == "drop":
        batch_size = min(batch_size, records)
    plan = ShuffledPlan(records, batch_size, remainder=remainder)
    if mode == "split":
        world_size = min(world_size, batch_size)
    parts = [plan.for_rank(rank, world_size, mode) for rank in range(world_size)]
    end = parts[0].end_of_epoch(batch)
    assert all(part.end_of_epoch(batch) == end for part in parts)
    assert batch < end <= batch + parts[0].batches_per_epoch
    assert end % parts[0].batches_per_epoch == 0
    each = parts[0].batches_per_step
    taken = sorted(
        batch + step * each + (part.rank if mode == "independent" else 0)
        for part in parts
        for step in range(part.steps_left(batch))
        if mode == "independent" or part.rank == 0
    )
    if plan.is_endless:  # all ranks have equally many
        assert taken == list(range(batch, batch + -(-(end - batch) // each) * each))
    else:
        assert taken == list(range(batch, end))


@given(
    records=st.integers(1, 60),
    batch_size=st.integers(1, 8),
    remainder=st.sampled_from(REMAINDERS),
    world_size=st.integers(1, 8),
    step=st.integers(0, 500),
)
def test_steps_and_batches_are_translated(records, batch_size, remainder, world_size, step):
    if remainder == "drop":
        batch_size = min(batch_size, records)
    plan = ShuffledPlan(records, batch_size, remainder=remainder).for_rank(
        0, world_size, "independent"
    )
    batch = plan.batch_at(step)
    assert plan.step_at(batch) == step
    assert plan.batch_at(step + 1) == min(
        batch + world_size, batch + world_size if plan.is_endless else plan.end_of_epoch(batch)
    )
    assert plan.batch_at(plan.steps_per_epoch) == plan.batches_per_epoch
    even = BalancedPlan(classes_of([5] * 9), 4, 2).for_rank(0, world_size, "independent")
    assert (even.batch_at(step), even.step_at(step * world_size)) == (step * world_size, step)


# What is wrong.

LABELS = [i % 10 for i in range(100)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_batch": 0}, "classes_per_batch is 0; must be an integer >= 1"),
        ({"classes_per_batch": -3}, "classes_per_batch is -3"),
        ({"classes_per_batch": True}, "classes_per_batch is True"),
        ({"classes_per_batch": np.bool_(True)}, "classes_per_batch is "),
        ({"classes_per_batch": 2.0}, "classes_per_batch is 2.0"),
        ({"classes_per_batch": "2"}, "classes_per_batch is '2'"),
        ({"classes_per_batch": None}, "classes_per_batch is None"),
        ({"classes_per_batch": 11}, "classes_per_batch is 11; must be <= 10"),
        ({"classes_per_batch": 2**70}, "must be <= 10"),
        ({"examples_per_class": 0}, "examples_per_class is 0; must be an integer from 1 to"),
        ({"examples_per_class": 2**70}, "examples_per_class is 1180591620717411303424"),
        ({"examples_per_class": [2]}, r"examples_per_class is \[2\]"),
        ({"seed": -1}, "seed is -1; must be an integer from 0 to 18446744073709551615"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"seed": None}, "seed is None"),
        ({"small_classes": "ignore"}, "small_classes is 'ignore'; must be one of 'repeat', 'drop'"),
        ({"small_classes": None}, "small_classes is None"),
        ({"total_examples_per_class": 0}, "total_examples_per_class is 0"),
        ({"total_examples_per_class": 1.5}, "total_examples_per_class is 1.5"),
        ({"total_examples_per_class": True}, "total_examples_per_class is True"),
        ({"total_examples_per_class": 2**70}, "total_examples_per_class is 1180591620717411303424"),
        ({"class_list": "owl"}, "class_list is 'owl'; must be a list of classes"),
        ({"class_list": b"owl"}, "class_list is b'owl'"),
        ({"class_list": 5}, "class_list is 5; must be a list of classes"),
        ({"class_list": []}, "must be <= 0"),
        ({"class_list": [1]}, "must be <= 1"),
        ({"steps_per_epoch": 0}, "steps_per_epoch is 0"),
        ({"steps_per_epoch": "all"}, "steps_per_epoch is 'all'; must be .*'classes'.*'examples'"),
        ({"steps_per_epoch": None}, "steps_per_epoch is None"),
        ({"steps_per_epoch": True}, "steps_per_epoch is True"),
        ({"steps_per_epoch": 1.5}, "steps_per_epoch is 1.5"),
        ({"steps_per_epoch": 2**70}, "steps_per_epoch is 1180591620717411303424"),
        ({"steps_per_epoch": np.array([1, 2])}, "steps_per_epoch is "),
    ],
)
def test_wrong_wishes(options, message):
    with pytest.raises(PlanError, match=message):
        BalancedPlan(LABELS, **{"classes_per_batch": 2, **options})


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([77, 1], "there is no record of class 77; there are '0', '1', .* and more"),
        (["owl"], "there is no record of class 'owl'"),
        ([2**70], "there is no record of class 1180591620717411303424"),
        ([1.0], "a class is 1.0; must be a class id or a class name"),
        ([True], "a class is True"),
        ([None], "a class is None"),
    ],
)
def test_classes_without_records(wanted, message):
    with pytest.raises(DatasetError, match=message):
        BalancedPlan(LABELS, 1, class_list=wanted)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, 1.0], "labels are of the types float; must be all integers or strings"),
        ([[0, 1], [1, 0]], r"labels have the shape \(2, 2\), must have one dimension"),
        (3, r"labels have the shape \(\)"),
        (None, r"labels have the shape \(\)"),
        ("owl", r"labels have the shape \(\)"),
        ([1 + 1j], "labels are of the types complex"),
        (np.array(["2024-01-01"], "M8[D]"), "labels are of the types date"),
        ([1, "owl"], "labels are of the types int, str"),
        ([b"wren", "owl"], "labels are of the types bytes, str"),
        ([1, None], "labels are of the types NoneType, int"),
        ([[1], [1, 2]], "labels have the shape"),
        ([2**63], "labels are of the types int"),
        ([{}], "labels are of the types dict"),
    ],
)
def test_wrong_labels(labels, message):
    with pytest.raises(DatasetError, match=message):
        BalancedPlan(labels, 1)


def test_no_labels():
    for labels in ([], np.zeros(0, np.int64), np.zeros(0, "U3")):
        with pytest.raises(PlanError, match="must be <= 0"):
            BalancedPlan(labels, 1)


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64, ">i4", bool, "U8", "S8"])
def test_labels_of_any_kind(kind):
    labels = np.array([i % 2 for i in range(20)]).astype(kind)
    expected = BalancedPlan([i % 2 for i in range(20)], 2, 3).batches(0, 20)
    assert (BalancedPlan(labels, 2, 3).batches(0, 20) == expected).all()


def test_labels_of_tables():
    birds = ["owl", "wren", "owl", "kite", "wren", "kite"]
    expected = BalancedPlan(birds, 2, 2, seed=3).batches(0, 20)
    for column in (
        pd.Series(birds),
        pd.Series(birds, dtype="category"),
        pd.Series(birds, dtype="object"),
        np.array(birds, object),
        [each.encode() for each in birds],
        tuple(map(np.str_, birds)),
    ):
        assert (BalancedPlan(column, 2, 2, seed=3).batches(0, 20) == expected).all()
    numbers = pd.Series([5, 7, 5, 6, 7, 6], dtype="object")
    assert BalancedPlan(numbers, 2, 2).labels.tolist() == [5, 6, 7]
    assert BalancedPlan(pd.array([5, 6, 5, 6], "Int64"), 2, 2).labels.tolist() == [5, 6]


@pytest.mark.parametrize("step", [-1, True, 1.0, "1", None, [0], np.float64(1)])
def test_wrong_steps(step):
    plan = BalancedPlan(LABELS, 2)
    for ask in (plan.batch, plan.classes, plan.coverage, lambda step: plan.batches(0, step)):
        with pytest.raises(PlanError, match=r"step is .*; must be an integer from 0 to"):
            ask(step)
    with pytest.raises(PlanError, match="must be an integer from 0 to"):
        plan.reweighted("size", batch=step)


@pytest.mark.parametrize("step", [2**61, 2**62, 2**63, 2**64 - 2, 2**64 - 1, 2**64, 2**70])
def test_steps_that_are_too_far_away(step):
    plan = BalancedPlan(LABELS, 2)
    for ask in (
        plan.batch,
        plan.classes,
        plan.coverage,
        plan.for_rank(1, 2).batch,
        plan.for_rank(1, 2, "independent").batch,
        lambda step: plan.batches(step, step + 9),
        lambda step: plan.batches(0, step),
        lambda step: plan.reweighted("size", batch=step),
        ShuffledPlan(10, 4).batch,
        SequentialPlan(10, 4).batch,
    ):
        with pytest.raises(PlanError):
            ask(step)


def test_the_last_steps_that_there_are():
    plan = BalancedPlan(classes_of([7] * 10), 4, 4)
    for part in (
        plan,
        plan.for_rank(2, 3),
        plan.for_rank(1, 3, "independent"),
        ShuffledPlan(10, 4),
    ):
        last = part.last_step
        assert last > 10**17
        assert len(part.batch(last)) > 0
        assert len(part.batches(last - 1, last)) == 1
        with pytest.raises(PlanError, match=f"step is {last + 1}; must be .* to {last}"):
            part.batch(last + 1)
    assert all(len(set(ids)) == 4 for _, ids in drawn(plan, plan.last_step))
    assert plan.coverage(plan.last_step).visits[0] == plan.last_step * 4 // 10


def test_more_batches_at_once_than_memory_can_hold():
    for many in [10**13, 10**17]:
        with pytest.raises(PlanError, match=f"{many} batches are too many for one call"):
            BalancedPlan(LABELS, 2).batches(0, many)


@pytest.mark.parametrize("plan", [ShuffledPlan, SequentialPlan])
@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((0, 1), {}, "records is 0; must be an integer from 1 to"),
        ((-5, 1), {}, "records is -5"),
        ((True, 1), {}, "records is True"),
        ((5.0, 1), {}, "records is 5.0"),
        ((2**62, 1), {}, "records is 4611686018427387904"),
        ((2**70, 1), {}, "records is 1180591620717411303424"),
        ((5, 0), {}, "batch_size is 0; must be an integer from 1 to"),
        ((5, None), {}, "batch_size is None"),
        ((5, 2**70), {}, "batch_size is 1180591620717411303424"),
        (
            (5, 2),
            {"remainder": "short"},
            "remainder is 'short'; must be one of 'keep', 'drop', 'fill'",
        ),
        ((5, 6), {"remainder": "drop"}, "batch_size is 6; must be <= 5"),
    ],
)
def test_wrong_epochs(plan, args, options, message):
    with pytest.raises(PlanError, match=message):
        plan(*args, **options)


def test_record_ranges_of_the_class_table_are_checked():
    def plan(first, records):
        table = np.array([(0, first, records)], CLASS_DTYPE)
        return BalancedPlan(ClassTable(table, np.arange(10, dtype=np.uint32), None), 1, 2)

    assert sorted(plan(8, 2).batch(0).tolist()) == [8, 9]
    for first, records in [(9, 2), (0, 11), (2**63, 2), (2**64 - 1, 2), (0, 2**63 - 1)]:
        with pytest.raises(ValueError, match="the records of a class are out of range"):
            plan(first, records)


def test_what_the_native_core_is_given_is_checked():
    ones, by_class = np.ones(3, np.uint64), np.arange(9, dtype=np.uint32)
    good = {
        "seed": 0,
        "labels": np.arange(3),
        "first": ones,
        "records": ones,
        "by_class": by_class,
        "wide": False,
        "classes_per_batch": 2,
        "records_per_class": 1,
    }
    plan = _core.balanced_plan(**good)
    ids, labels = plan.draw(0, 1, _core.Share(0, 0, 1, True))
    assert (ids.shape, labels.shape) == ((1, 2), (1, 2))
    for wrong in [
        {"first": ones[:2]},
        {"records": np.zeros(3, np.uint64)},
        {"by_class": by_class[:1]},
        {"wide": True, "by_class": by_class[:8], "first": ones * np.uint64(4)},
        {"classes_per_batch": 0},
        {"classes_per_batch": 4},
        {"records_per_class": 0},
    ]:
        with pytest.raises(ValueError, match=r"[a-z]"):
            _core.balanced_plan(**{**good, **wrong})
    full = _core.PLAN_SPANS * 2
    for quotas in ([full] * 2, [full + 1, full - 1, 0], [full, full, 1], [full, full - 1, 0]):
        with pytest.raises(ValueError, match="quota"):
            plan.reweighted(0, np.array(quotas, np.uint64))
    with pytest.raises(ValueError, match="no such rank"):
        _core.Share(0, 2, 2, True)


def test_plans_are_described():
    plan = BalancedPlan(BIRDS, 2, 2, seed=7)
    again = BalancedPlan(list(BIRDS), 2, 2, seed=7)
    assert json.loads(json.dumps(plan.description)) == again.description
    others = [
        BalancedPlan(BIRDS, 2, 2),
        BalancedPlan(BIRDS, 3, 2, seed=7),
        BalancedPlan(BIRDS, 2, 1, seed=7),
        BalancedPlan(BIRDS[1:], 2, 2, seed=7),
        BalancedPlan(BIRDS, 2, 2, seed=7, class_list=["owl", "kite"]),
        BalancedPlan(BIRDS, 2, 2, seed=7, total_examples_per_class=3),
        ShuffledPlan(23, 4, seed=7),
    ]
    assert all(other.description != plan.description for other in others)
    assert repr(plan).startswith("<BalancedPlan: kind='balanced', seed=7, classes_per_batch=2, ")
