"""Plans: exact and fair batches, as functions of the seed and the step."""

import itertools
import json
import math
import pickle

import numpy as np
import plan_reference as reference
import pytest
from golden_plans import FOLDER, PLANS, build, read_golden
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import (
    FAR,
    assert_coverage,
    batch_by_class,
    cases,
    class_table,
    count_meetings,
    make_plan,
    plans,
    reference_batches,
    seeds,
    steps,
)

from covey import _core
from covey.classes import CLASS_DTYPE, ClassTable
from covey.errors import DatasetError, PlanError, SmallClassesWarning, check_int
from covey.plan import BalancedPlan, SequentialPlan, ShuffledPlan, state

REMAINDERS = ["keep", "drop", "fill"]


@st.composite
def epoch_plans(draw, max_records=60, max_batch_size=30):
    """Draw a plan without classes."""
    records = draw(st.integers(1, max_records))
    remainder = draw(st.sampled_from(REMAINDERS))
    largest = min(max_batch_size, records) if remainder == "drop" else max_batch_size
    batch_size = draw(st.integers(1, largest))
    if draw(st.booleans()):
        return SequentialPlan(records, batch_size, remainder=remainder)
    return ShuffledPlan(records, batch_size, draw(seeds), remainder=remainder)


any_plan = plans(max_classes=30).map(lambda drawn: drawn[0]) | epoch_plans()

# Exact: P classes with K examples of each.


@settings(max_examples=60)
@given(plan=plans(max_classes=30), step=steps)
def test_batch_has_p_classes_with_k_examples_each(plan, step):
    plan, sizes = plan
    found = batch_by_class(plan, step)
    assert len(found) == len({label for label, _ in found}) == plan.classes_per_batch
    quotas = dict(zip(plan.labels.tolist(), quotas_at(plan, step), strict=True))
    for label, examples in found:
        assert quotas[label] > 0
        assert len(examples) == plan.examples_per_class
        assert 0 <= min(examples) <= max(examples) < sizes[label]
        # Distinct; in a small class, all equally often, within one.
        times = np.bincount(np.unique(examples, return_inverse=True)[1])
        assert len(times) == min(plan.examples_per_class, sizes[label])
        assert max(times) - min(times) <= 1


def quotas_at(plan, batch):
    quotas = [quotas for begin, quotas in plan.changes if begin <= batch]
    return quotas[-1] if quotas and quotas[-1] is not None else np.ones(len(plan.labels))


@pytest.mark.parametrize("labels", [["owl", "wren", "owl", "kite", "wren"], [7, -3, 7, 5, -3]])
def test_examples_belong_to_their_classes(labels):
    plan, table = make_plan(labels, 2, 2, seed=3), ClassTable.parse(labels)
    for step in range(20):
        for label, ids in batch_by_class(plan, step):
            assert set(ids) <= set(table.records(table.position(label)).tolist())


def test_64_bit_record_ids():
    rows = np.array([(i, 0, n) for i, n in enumerate([5, 900, 70])], CLASS_DTYPE)
    wide = ClassTable(rows, 2**40 + np.arange(1000, dtype=np.uint64), None)
    narrow = BalancedPlan(class_table([5, 900, 70]), 2, 4).batches(0, 50)
    assert (BalancedPlan(wide, 2, 4).batches(0, 50) == narrow + 2**40).all()


# Fair: complete rounds of classes and of examples.

TIGHT = [(n, k) for k in range(1, 10) for n in range(1, 3 * k + 2)]


@pytest.mark.parametrize("far", [0, FAR // 7])
def test_every_class_once_per_round(far):
    for count, per_batch in TIGHT:
        if per_batch <= count:
            plan = BalancedPlan(class_table([1] * count), per_batch, 1, seed=count)
            # As many batches as there are classes are P complete rounds.
            found = np.stack([plan.classes(far * count + i) for i in range(count)])
            assert (np.sort(found.reshape(per_batch, count)) == np.arange(count)).all()
            assert all(len(set(batch)) == per_batch for batch in found.tolist())


@pytest.mark.parametrize("far", [0, FAR // 7])
def test_every_example_once_per_round(far):
    for size, each in TIGHT:
        plan = make_plan(class_table([size] * 3), 3, each, seed=size)  # all classes in each batch
        ids = plan.batches(far * size, far * size + size).reshape(size, 3, each)
        order = np.argsort([plan.classes(far * size + i) for i in range(size)], axis=1)
        for which in range(3):
            draws = ids[np.arange(size), order[:, which]]
            assert (np.sort(draws.reshape(each, size)) == np.arange(size)).all()
            for draw in draws:
                times = np.bincount(draw, minlength=size)
                assert (min(times), max(times)) == (each // size, -(-each // size))


# A pure function of the seed and the step.


@settings(max_examples=40)
@given(plan=any_plan, start=steps, count=st.integers(0, 20))
def test_batches_equal_single_batches(plan, start, count):
    found = plan.batches(start, start + count)
    assert len(found) == count
    for i in reversed(range(count)):
        assert found[i].dtype == np.int64
        assert found[i].tolist() == plan.batch(start + i).tolist()
    assert len(plan.batches(start + count, start)) == 0


# Equal to the reference implementation and to the golden files.


@settings(max_examples=40)
@given(plan=plans(max_classes=30, max_examples=50))
def test_balanced_plan_equals_reference(plan):
    plan, sizes = plan
    for step, batch in enumerate(itertools.islice(reference_batches(plan, sizes), 50)):
        assert batch_by_class(plan, step) == batch


@settings(max_examples=80)
@given(plan=epoch_plans(max_records=120, max_batch_size=50))
def test_epoch_plan_equals_reference(plan):
    is_shuffled = isinstance(plan, ShuffledPlan)
    arguments = plan.seed, plan.records, plan.batch_size, plan.remainder
    expected = reference.epochs(*arguments, is_shuffled=is_shuffled)
    batches = list(itertools.islice(expected, 3 * plan.batches_per_epoch + 2))
    assert [ids.tolist() for ids in plan.batches(0, len(batches))] == batches
    assert [ids.tolist() for ids in plan.batches(1, len(batches) - 1)] == batches[1:-1]


# The grid of the Feistel network is about square: squares and their neighbours are its edges.
permutation_sizes = st.one_of(
    st.integers(1, 2000),
    st.integers(1, 2**61 - 1),
    st.builds(lambda root, more: root**2 + more, st.integers(6, 2**30 - 1), st.integers(-1, 1)),
)


@settings(max_examples=150)
@given(size=permutation_sizes, seed=seeds, epoch=st.integers(0, 1), data=st.data())
def test_permutations_equal_reference(size, seed, epoch, data):
    number = data.draw(st.integers(0, size - 1))
    key = reference.derive(reference.derive(seed, reference.EPOCHS), epoch)
    (found,) = ShuffledPlan(size, 1, seed).batch(epoch * size + number)
    assert found == reference.permuted(key, size, number)


@pytest.mark.parametrize("name", PLANS)
def test_plan_equals_golden_file(name):
    golden = read_golden(name)
    plan = build(golden["plan"])
    assert golden["batches"]
    for step, ids in golden["batches"].items():
        assert plan.batch(int(step)).tolist() == ids
    for step, labels in golden.get("classes", {}).items():
        assert plan.classes(int(step)).tolist() == labels
    # "names" was stored before the checksum had the names of the classes; its states are valid.
    described = json.loads(json.dumps(plan.description))
    assert (described == golden["description"]) == (name != "names")
    _, batch = state.load(plan, {"format": 1, "batch": 7, "plan": golden["description"]})
    assert batch == 7
    assert plan.steps_per_epoch == golden["steps_per_epoch"]


def test_golden_files_are_complete():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PLANS)


# Uniform. Seeds are fixed, so that the results never change. The native tests have other cases.


def assert_uniform(counts):
    """Assert that p > 0.001 in a chi-squared test, by the approximation of Wilson and Hilferty."""
    counts = np.ravel(counts)
    freedom, expected = len(counts) - 1, counts.mean()
    statistic = ((counts - expected) ** 2 / expected).sum()
    variance = 2 / (9 * freedom)
    assert ((statistic / freedom) ** (1 / 3) - (1 - variance)) / math.sqrt(variance) < 3.09


def count_pairs(first, second, size):
    return np.bincount(first * size + second, minlength=size**2)


@pytest.mark.parametrize("size", [33, 10_000, 10**12])
def test_permutations_are_uniform(size):
    begins = ShuffledPlan(size, 4, seed=1, remainder="drop")
    # The first four records of many epochs.
    found = begins.for_rank(0, begins.batches_per_epoch, "independent").batches(0, 60_000)
    parts = found if size == 33 else found // (size // 20)
    kinds = 33 if size == 33 else 20
    for one, other in [(0, 1), (1, 3)]:
        counts = count_pairs(parts[:, one], parts[:, other], kinds).reshape(kinds, kinds)
        assert_uniform(counts[~np.eye(kinds, dtype=bool)])
    assert_uniform(np.bincount(found[:, 2] % min(size, 100)))
    assert_uniform(count_pairs(parts[:-1, 0], parts[1:, 0], kinds))


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize(("count", "per_batch"), [(10, 3), (20, 15), (33, 16)])
def test_all_pairs_of_classes_meet_equally_often(count, per_batch, is_weighted):
    plan = BalancedPlan(class_table([1] * count), per_batch, 1, seed=1)
    if is_weighted:
        plan = plan.reweighted([1] * count, batch=0)
    met, expected = count_meetings(plan, 15_000)
    assert abs(met - expected).max() < 5 * math.sqrt(expected)


# Small classes, class_list, total_examples_per_class.

BIRDS = ["owl"] * 5 + ["wren"] * 2 + ["kite"] * 9 + ["crow"] * 3 + ["finch"] * 4


def test_small_classes():
    with pytest.warns(SmallClassesWarning) as caught:
        plan = BalancedPlan(BIRDS, 5, 4)
    (warning,) = caught
    assert str(warning.message) == (
        "2 classes have fewer than 4 examples: 'crow' (3), 'wren' (2); their examples are repeated"
    )
    assert warning.filename == __file__
    plan.for_rank(0, 2).reweighted("size", batch=3)  # does not warn again
    with pytest.warns(SmallClassesWarning, match="^2 classes .*; they are dropped$"):
        plan = BalancedPlan(BIRDS, 3, 4, small_classes="drop")
    expected = BalancedPlan(BIRDS, 3, 4, class_list=["owl", "kite", "finch"])
    assert plan.labels.tolist() == expected.labels.tolist() == [1, 2, 3]
    assert (plan.batches(0, 50) == expected.batches(0, 50)).all()
    with pytest.raises(PlanError, match=r"'finch' \(4\), .* pass small_classes=") as error:
        BalancedPlan(BIRDS, 3, 5, small_classes="error")
    assert error.value.reason.startswith("3 classes have fewer than 5 examples: 'crow' (3), ")
    with pytest.warns(SmallClassesWarning), pytest.raises(PlanError) as error:
        BalancedPlan(BIRDS, 3, 9, small_classes="drop")
    assert (error.value.option, error.value.allowed[:4]) == ("classes_per_batch", "<= 1")
    with pytest.raises(PlanError) as error:  # without a warning
        BalancedPlan(["owl"] * 14 + ["wren"] * 3, 2, 20, small_classes="drop")
    assert (error.value.option, error.value.found) == ("examples_per_class", 20)
    assert error.value.reason == "no class has 20 examples; the largest has 14"


@settings(max_examples=30)
@given(st.sets(st.integers(0, 19), min_size=3), seeds)
def test_examples_of_a_class_do_not_depend_on_other_classes(chosen, seed):
    table = class_table(range(3, 23))
    plan = BalancedPlan(table, 3, 3, seed, class_list=chosen)
    drawn = {label: [] for label in chosen}
    for step in range(30):
        for label, ids in batch_by_class(plan, step):
            drawn[label] += ids
    for label, ids in drawn.items():
        alone = BalancedPlan(table, 1, 3, seed, class_list=[label])
        assert ids == alone.batches(0, len(ids) // 3).ravel().tolist()


# Ranks.


@settings(max_examples=50)
@given(plan=any_plan, start=steps, world_size=st.integers(1, 9))
def test_ranks_share_batches(plan, start, world_size):
    own = [plan.for_rank(rank, world_size, "independent") for rank in range(world_size)]
    for step in range(start, start + 3):
        expected = plan.batches(step * world_size, (step + 1) * world_size)
        assert [part.batch(step).tolist() for part in own] == [ids.tolist() for ids in expected]
    is_balanced = isinstance(plan, BalancedPlan)
    units = plan.classes_per_batch if is_balanced else plan.batch_size
    if world_size <= units:
        parts = [plan.for_rank(rank, world_size) for rank in range(world_size)]
        for step in range(start, start + 3):
            batches = [part.batch(step) for part in parts]
            assert (np.concatenate(batches) == plan.batch(step)).all()
            if is_balanced:
                classes = np.concatenate([part.classes(step) for part in parts])
                assert (classes == plan.classes(step)).all()
            sizes = np.array([len(ids) for ids in batches])
            rows = plan.examples_per_class if is_balanced else 1
            assert not (sizes % rows).any()
            assert sizes.max() - sizes.min() <= rows


@settings(max_examples=50)
@given(
    worlds=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 6)), min_size=1, max_size=5),
    seed=seeds,
)
def test_changing_the_number_of_ranks_loses_and_repeats_nothing(worlds, seed):
    plan = BalancedPlan(class_table(range(4, 14)), 3, 4, seed)
    drawn, origin = [], 0
    for world_size, count in worlds:
        parts = [plan.for_rank(rank, world_size, "independent") for rank in range(world_size)]
        rows = [part.native.draw(0, count, part.share(origin))[0] for part in parts]
        drawn += np.stack(rows, axis=1).reshape(count * world_size, 12).tolist()
        origin += count * world_size
    assert drawn == plan.batches(0, origin).tolist()


# Epochs and coverage.


@settings(max_examples=60)
@given(case=cases(max_classes=12, max_examples=40), seed=seeds, world_size=st.integers(1, 4))
def test_epoch_draws_all_classes_or_all_examples(case, seed, world_size):
    labels, sizes, per_batch, each = case
    table = class_table(sizes, labels)
    plan = make_plan(table, per_batch, each, seed, steps_per_epoch="classes")
    drawn = [set(plan.classes(step).tolist()) for step in range(plan.steps_per_epoch)]
    assert set().union(*drawn) == set(labels)
    assert set().union(*drawn[:-1]) != set(labels)
    plan = make_plan(table, per_batch, each, seed)
    _, times = reference.count(batch_by_class(plan, step) for step in range(plan.steps_per_epoch))
    assert len(times) == sum(sizes)
    # As many rounds as the largest class needs.
    rounds = math.ceil(max(sizes) / each)
    assert plan.steps_per_epoch == math.ceil(rounds * len(sizes) / per_batch)
    own = plan.for_rank(0, world_size, "independent")
    assert own.steps_per_epoch == -(-plan.steps_per_epoch // world_size)


@settings(max_examples=40)
@given(
    plan=plans(max_classes=12, max_examples=30),
    count=st.integers(0, 40),
    world_size=st.integers(1, 3),
)
def test_coverage(plan, count, world_size):
    plan, sizes = plan
    batches = [batch_by_class(plan, step) for step in range(count * world_size)]
    found = plan.for_rank(world_size - 1, world_size, "independent").coverage(count)
    assert_coverage(found, count, batches, sizes)
    if world_size <= plan.classes_per_batch:
        assert plan.for_rank(0, world_size).coverage(count) == plan.coverage(count)


@pytest.mark.parametrize("records", [1, 7, 33, 100])
def test_shuffled_epoch_has_every_record_once(records):
    for batch_size in (1, 3, 7, 32, 40):
        plan = ShuffledPlan(records, batch_size, seed=5)
        for start in (0, FAR * plan.steps_per_epoch):
            epoch = np.concatenate(list(plan.batches(start, start + plan.steps_per_epoch)))
            assert sorted(epoch.tolist()) == list(range(records))
    for batch_size in range(1, min(records, 40) + 1):
        plan = ShuffledPlan(records, batch_size, seed=5, remainder="fill")
        for start in (0, FAR // records * records):
            found = plan.batches(start, start + records)
            assert all(len(set(ids)) == batch_size for ids in found.tolist())
            # As many batches as there are records are complete epochs.
            assert (np.sort(found.reshape(batch_size, records)) == np.arange(records)).all()


@settings(max_examples=80)
@given(
    plan=epoch_plans(max_batch_size=8),
    world_size=st.integers(1, 8),
    mode=st.sampled_from(["split", "independent"]),
    batch=st.integers(0, 200),
)
def test_steps_left_of_an_epoch(plan, world_size, mode, batch):
    if mode == "split":
        world_size = min(world_size, plan.batch_size)
    parts = [plan.for_rank(rank, world_size, mode) for rank in range(world_size)]
    per_step, epoch = parts[0].batches_per_step, parts[0].batches_per_epoch
    (end,) = {part.end_of_epoch(batch) for part in parts}
    assert batch < end <= batch + epoch
    assert end % epoch == 0
    drawn = sorted(
        batch + step * per_step + (part.rank if mode == "independent" else 0)
        for part in parts
        for step in range(part.steps_left(batch))
        if mode == "independent" or part.rank == 0
    )
    if parts[0].is_endless:  # all ranks have the same number of steps
        end = batch + -(-(end - batch) // per_step) * per_step
    assert drawn == list(range(batch, end))


@given(
    plan=st.just(BalancedPlan(class_table([5] * 9), 8, 2)) | epoch_plans(max_batch_size=8),
    world_size=st.integers(1, 8),
    step=st.integers(0, 500),
)
def test_steps_and_batches_are_converted(plan, world_size, step):
    plan = plan.for_rank(0, world_size, "independent")
    batch = plan.batch_at(step)
    assert plan.step_at(batch) == step
    following = batch + world_size
    if not plan.is_endless:
        following = min(following, plan.end_of_epoch(batch))
    assert plan.batch_at(step + 1) == following
    for between in range(batch + 1, following):  # after a change of the number of ranks
        assert plan.step_at(between) == (step if plan.is_endless else step + 1)
    assert plan.batch_at(plan.steps_per_epoch) == plan.batches_per_epoch


# Errors.


@pytest.mark.parametrize("value", [0, -3, 8, 2**70, True, np.bool_(True), 2.0, "2", None, [2]])
def test_check_int(value):
    with pytest.raises(PlanError) as error:
        check_int("number", value, 1, 7)
    assert (error.value.option, error.value.found) == ("number", value)
    assert error.value.allowed == "an integer from 1 to 7"
    assert check_int("number", np.int8(7), 1, 7) == check_int("number", 7, 1) == 7


@pytest.mark.parametrize(
    "labels",
    [
        [0.0, 1.0],
        [[0, 1], [1, 0]],
        3,
        None,
        "owl",
        [1 + 1j],
        np.array(["2024-01-01"], "M8[D]"),
        [1, "owl"],
        [b"wren", "owl"],
        [1, None],
        [[1], [1, 2]],
        [2**63],
        [{}],
    ],
)
def test_invalid_labels(labels):
    with pytest.raises(DatasetError, match=r"^labels (are of the types|have the shape) "):
        BalancedPlan(labels, 1)


@pytest.mark.parametrize("kind", [np.int8, np.uint16, ">i4", bool, "U8", "S8", object])
def test_types_of_labels(kind):
    labels = np.array([i % 2 for i in range(20)]).astype(kind)
    expected = BalancedPlan([i % 2 for i in range(20)], 2, 3).batches(0, 20)
    assert (BalancedPlan(labels, 2, 3).batches(0, 20) == expected).all()
    assert (BalancedPlan(list(labels), 2, 3).batches(0, 20) == expected).all()


def test_last_step():
    plan = BalancedPlan(class_table([7] * 10), 4, 4)
    independent = plan.for_rank(1, 3, "independent")
    for part in (plan, plan.for_rank(2, 3), independent, ShuffledPlan(10, 4)):
        last = part.last_step
        assert last > 10**17
        assert len(part.batch(last)) > 0
        assert len(part.batches(last - 1, last)) == 1
        with pytest.raises(PlanError) as error:
            part.batch(last + 1)
        assert error.value.allowed == f"an integer from 0 to {last}"
    assert all(len(set(ids)) == 4 for _, ids in batch_by_class(plan, plan.last_step))
    found = plan.coverage(plan.last_step)
    assert found.visits[0] == plan.last_step * 4 // 10
    assert str(found).startswith(f"{plan.last_step:,} steps: 100.0% of the classes (")
    for many in (10**13, 10**17):
        with pytest.raises(PlanError, match=f"^{many} batches are too many for one call$"):
            plan.batches(0, many)


def test_record_ranges_of_the_class_table():
    def plan(first, records):
        table = np.array([(0, first, records)], CLASS_DTYPE)
        return BalancedPlan(ClassTable(table, np.arange(10, dtype=np.uint32), None), 1, 2)

    assert sorted(plan(8, 2).batch(0).tolist()) == [8, 9]
    for first, records in [(9, 2), (0, 11), (2**63, 2), (2**64 - 1, 2), (0, 2**63 - 1)]:
        with pytest.raises(ValueError, match="the records of a class are out of range"):
            plan(first, records)


def test_arguments_of_the_native_core():
    ones, by_class = np.ones(3, np.uint64), np.arange(9, dtype=np.uint32)
    valid = {
        "seed": 0,
        "labels": np.arange(3),
        "keys": None,
        "first": ones,
        "records": ones,
        "by_class": by_class,
        "classes_per_batch": 2,
        "records_per_class": 1,
    }
    plan = _core.balanced_plan(**valid)
    ids, labels = plan.draw(0, 1, _core.Rank(0, 0, 1, True))
    assert (ids.shape, labels.shape) == ((1, 2), (1, 2))
    for invalid in [
        {"first": ones[:2]},
        {"keys": np.arange(2)},
        {"records": np.zeros(3, np.uint64)},
        {"by_class": by_class[:1]},
        {"by_class": by_class.astype(np.uint16)},
        {"classes_per_batch": 0},
        {"classes_per_batch": 4},
        {"records_per_class": 0},
    ]:
        with pytest.raises(ValueError, match=r"[a-z]"):
            _core.balanced_plan(**{**valid, **invalid})
    full = _core.PLAN_SPANS * 2
    for quotas in ([full] * 2, [full + 1, full - 1, 0], [full, full, 1], [full, full - 1, 0]):
        with pytest.raises(ValueError, match="quota"):
            plan.reweighted(0, np.array(quotas, np.uint64))
    with pytest.raises(ValueError, match="no such rank"):
        _core.Rank(0, 2, 2, True)


def test_pickle():
    even = BalancedPlan(class_table(range(4, 24)), 6, 4, seed=5)
    for plan in (
        BalancedPlan(["owl", "wren"] * 9, 2, 3, class_weights={"owl": 2}),
        even.reweighted("sqrt", batch=7).reweighted(None, batch=20).for_rank(1, 3, "independent"),
        ShuffledPlan(50, 8, seed=3).for_rank(1, 2),
        SequentialPlan(50, 8, remainder="drop"),
    ):
        copy = pickle.loads(pickle.dumps(plan))
        assert repr(copy) == repr(plan)
        assert copy.steps_per_epoch == plan.steps_per_epoch
        for step in range(40):
            assert copy.batch(step).tolist() == plan.batch(step).tolist()


def test_total_examples_per_class():
    plan = make_plan(BIRDS, 5, 2, total_examples_per_class=3)
    expected = [0, 1, 2, 5, 6, 7, 8, 9, 16, 17, 18, 19, 20, 21]
    assert sorted(set(plan.batches(0, 50).ravel().tolist())) == plan.records.tolist() == expected
    with pytest.warns(SmallClassesWarning, match="5 classes have fewer than 4 examples"):
        BalancedPlan(BIRDS, 5, 4, total_examples_per_class=3)
    for total in (9, np.int64(2**62)):
        plan = make_plan(BIRDS, 5, 4, total_examples_per_class=total)
        assert (plan.batches(0, 9) == make_plan(BIRDS, 5, 4).batches(0, 9)).all()


def test_steps_per_epoch():
    for steps_per_epoch in (7, np.int64(7)):
        plan = BalancedPlan(class_table([5] * 9), 4, 2, steps_per_epoch=steps_per_epoch)
        assert plan.steps_per_epoch == plan.for_rank(1, 3, "independent").steps_per_epoch == 7
    for records, remainder, expected in [(10, "keep", 3), (10, "drop", 2), (10, "fill", 3)]:
        for kind in (ShuffledPlan, SequentialPlan):
            plan = kind(records, 4, remainder=remainder)
            assert plan.steps_per_epoch == plan.batches_per_epoch == expected
            assert plan.is_endless == (remainder != "keep")
