"""Where a loader is: steps and epochs, states, weights that change, and ranks."""

import itertools
import json
import pickle
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from loaded import CLASSES, COUNT, LABELS, copied, numbers_of, same
from opened import opened
from written import write

from covey import CoveyError
from covey.errors import ClosedError, PlanError
from covey.plan import BalancedPlan, SequentialPlan, ShuffledPlan


def ids_in(loop):
    """The numbers of the examples of each batch."""
    return [numbers_of(x) for x, _ in loop]


def flat(lists):
    return list(itertools.chain(*lists))


# Where a loader is.


def test_steps_and_epochs(ds):
    loader = ds.batches(4, 2, steps_per_epoch=5)
    assert (len(loader), loader.step, loader.epoch) == (5, 0, 0)
    assert len(list(loader)) == 5
    assert (loader.step, loader.epoch) == (5, 1)
    for _ in loader:
        break
    assert (loader.step, loader.epoch) == (6, 1)
    assert len(list(loader)) == 4  # to the end of the epoch
    assert (loader.step, loader.epoch) == (10, 2)
    assert len(list(loader.take(7))) == 7
    assert (loader.step, loader.epoch) == (17, 3)
    assert len(list(loader)) == 3
    assert "step 20 " in repr(loader)


def test_an_epoch_shows_every_example(ds):
    loader = ds.batches(4, 2)
    assert {number for ids in ids_in(loader) for number in ids} == set(range(COUNT))
    assert len(ids_in(ds.batches(5, 2, steps_per_epoch="classes"))) == 3


@pytest.mark.parametrize("kind", ["numbers", "gzip"])
@pytest.mark.parametrize("threads", [0, 2])
def test_steps_are_those_that_were_handed_over(made, kind, threads):
    loader = made(kind).batches(4, 2, threads=threads, prefetch=8)
    loop = loader.take(20)
    assert loader.step == 0
    for step in range(20):
        next(loop)
        assert loader.step == step + 1
    assert list(loop) == []
    assert loader.step == 20


def test_seeking(ds):
    for loader, plan in (
        (ds.batches(4, 2, seed=1, threads=2), BalancedPlan(LABELS, 4, 2, 1)),
        (ds.shuffled(50, seed=1, remainder="fill"), ShuffledPlan(COUNT, 50, 1, remainder="fill")),
        (ds.shuffled(50, seed=1, threads=1), ShuffledPlan(COUNT, 50, 1)),
        (ds.sequential(50, threads=0), SequentialPlan(COUNT, 50)),
    ):
        for step in (7, 0, 3, 10**6, 10**12, 10**12 + 3, 2):
            loader.seek(step)
            assert loader.step == step
            x, _ = next(iter(loader))
            assert numbers_of(x) == plan.batch(step).tolist()
            assert loader.step == step + 1


def test_seeking_ends_the_loop(ds):
    loader = ds.batches(4, 2)
    loop = loader.take(10)
    next(loop)
    loader.seek(5)
    with pytest.raises(ClosedError):
        next(loop)
    assert loader.step == 5


@pytest.mark.parametrize("step", [-1, 1.5, "3", None, True, 2**62, 2**64, 10**30])
def test_steps_that_there_are_not(ds, step):
    for loader in (ds.batches(4, 2), ds.shuffled(50), ds.sequential(50, rank=1, world_size=3)):
        with pytest.raises(PlanError, match="step"):
            loader.seek(step)
            next(iter(loader))
    if not isinstance(step, int) or step < 0 or step is True:
        with pytest.raises(PlanError, match="steps"):
            next(ds.batches(4, 2).take(step))


def test_as_many_steps_as_there_are(ds):
    loop = ds.batches(4, 2, threads=2).take(10**30)
    assert numbers_of(next(loop)[0]) == BalancedPlan(LABELS, 4, 2).batch(0).tolist()
    loop = ds.batches(4, 2).take(sys.maxsize)
    next(loop)
    assert list(ds.batches(4, 2).take(0)) == []


def test_epochs_that_end_cannot_be_taken_from(ds):
    for remainder in ("keep", "drop"):
        with pytest.raises(PlanError, match="'fill'"):
            ds.shuffled(50, remainder=remainder).take(3)
    assert len(list(ds.shuffled(50, remainder="fill").take(9))) == 9


def test_filled_epochs_go_on(ds):
    loader = ds.shuffled(50, remainder="fill", threads=2)
    assert len(loader) == 4
    numbers = [number for _ in range(9) for ids in ids_in(loader) for number in ids]
    assert all(len(set(numbers[n : n + 50])) == 50 for n in range(0, len(numbers), 50))
    assert set(np.bincount(numbers).tolist()) == {10}  # 9 epochs of 4 batches of 50: 1800


# States.


def test_a_state_is_small_json(ds):
    for loader in (ds.batches(4, 2), ds.shuffled(50), ds.sequential(50, rank=1, world_size=2)):
        loader.seek(10**9)
        text = json.dumps(loader.state_dict())
        assert len(text) < 400
        assert json.loads(text) == loader.state_dict()


def loaders_of(ds, **options):
    return [
        ds.batches(4, 2, seed=5, **options),
        ds.shuffled(33, seed=5, **options),
        ds.shuffled(33, seed=5, remainder="drop", **options),
        ds.shuffled(33, seed=5, remainder="fill", **options),
        ds.sequential(33, **options),
    ]


def endless(loader):
    while True:
        yield from loader


@pytest.mark.parametrize("kind", ["numbers", "gzip", "ragged"])
def test_going_on_from_a_state(made, kind):
    ds = made(kind)
    for number, loader in enumerate(loaders_of(ds, threads=2)):
        expected = [copied(batch) for batch in itertools.islice(endless(loader), 17)]
        for stop in (0, 1, 5, 6, 11, 16):
            first = loaders_of(ds, threads=stop % 3)[number]
            for _ in itertools.islice(endless(first), stop):
                pass
            assert first.step == stop
            state = json.loads(json.dumps(first.state_dict()))
            second = loaders_of(ds, threads=(stop + 1) % 3, prefetch=7)[number]
            second.load_state_dict(state)
            assert (second.step, second.epoch) == (first.step, first.epoch)
            rest = itertools.islice(endless(second), 17 - stop)
            assert all(map(same, rest, expected[stop:]))
            assert (second.step, second.epoch) == (loader.step, loader.epoch)


def test_a_state_in_the_middle_of_a_loop_ends_it(ds):
    loader = ds.batches(4, 2, threads=2)
    loop = loader.take(10)
    next(loop)
    state = loader.state_dict()
    next(loop)
    loader.load_state_dict(state)
    with pytest.raises(ClosedError):
        next(loop)
    assert numbers_of(next(loader.take(1))[0]) == loader.plan.batch(1).tolist()


OTHER_BATCHES = {
    "seed": lambda ds: ds.batches(4, 2, seed=6),
    "classes_per_batch": lambda ds: ds.batches(5, 2, seed=5),
    "examples_per_class": lambda ds: ds.batches(4, 3, seed=5),
    "classes": lambda ds: ds.batches(4, 2, seed=5, class_list=range(8)),
    "examples": lambda ds: ds.batches(4, 2, seed=5, total_examples_per_class=4),
    "sum": lambda ds: ds.select([*range(COUNT - 1), 0]).batches(4, 2, seed=5),
    "kind": lambda ds: ds.shuffled(8, seed=5),
}


@pytest.mark.parametrize("name", OTHER_BATCHES)
def test_a_state_of_other_batches_is_refused(ds, name):
    loader, other = ds.batches(4, 2, seed=5), OTHER_BATCHES[name](ds)
    loader.seek(3)
    for one, two in ((loader, other), (other, loader)):
        with pytest.raises(PlanError) as caught:
            two.load_state_dict(one.state_dict())
        assert caught.value.option in (name, "seed", "kind")
    assert (loader.step, other.step) == (3, 0)


EPOCHS = {
    "seed": lambda ds: ds.shuffled(9, seed=1),
    "batch_size": lambda ds: ds.shuffled(8),
    "remainder": lambda ds: ds.shuffled(9, remainder="drop"),
    "kind": lambda ds: ds.sequential(9),
    "records": lambda ds: ds.select(range(100)).shuffled(9),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_a_state_of_other_epochs_is_refused(ds, name):
    with pytest.raises(PlanError) as caught:
        ds.shuffled(9).load_state_dict(EPOCHS[name](ds).state_dict())
    assert caught.value.option == name


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        "state",
        [],
        {},
        {"format": 2},
        {"format": "1"},
        {"batch": None},
        {"batch": -1},
        {"batch": 1.0},
        {"batch": "1"},
        {"batch": True},
        {"batch": 2**63},
        {"batch": 2**80},
        {"plan": None},
        {"plan": []},
        {"plan": {}},
        {"weights": None},
        {"weights": 5},
        {"weights": "ab"},
        {"weights": {"a": 1}},
        {"weights": [5]},
        {"weights": [[1]]},
        {"weights": [[1, None, None]]},
        {"weights": [["a", None]]},
        {"weights": [[None, None]]},
        {"weights": [[0.5, None]]},
        {"weights": [[True, None]]},
        {"weights": [[-1, None]]},
        {"weights": [[2**70, None]]},
        {"weights": [[5, None], [3, None]]},
        {"weights": [[0, 5]]},
        {"weights": [[0, "AAAA"]]},
        {"weights": [[0, "?"]]},
        {"weights": [[0, "é"]]},
        {"weights": [[0, "eJxjYKAuAAAAUAAB"]]},  # ten zeros
        {"weights": [[0, "eJwDAAAAAAE="]]},  # nothing
        {"weights": [[0, "eJxLBAAAYgBi"]]},  # a byte
    ],
)
def test_no_state(ds, wrong):
    loader = ds.batches(4, 2)
    loader.seek(3)
    state = {**loader.state_dict(), **wrong} if isinstance(wrong, dict) and wrong else wrong
    with pytest.raises(PlanError, match=r"state|weights"):
        loader.load_state_dict(state)
    assert loader.step == 3
    assert numbers_of(next(loader.take(1))[0]) == loader.plan.batch(3).tolist()


# Weights that change.


@pytest.mark.parametrize("kind", ["numbers", "gzip"])
@pytest.mark.parametrize(("threads", "prefetch"), [(0, None), (2, 1), (2, 30)])
def test_weights_change_from_the_next_batch_on(made, kind, threads, prefetch):
    ds = made(kind)
    loader = ds.batches(4, 2, threads=threads, prefetch=prefetch)
    plan = BalancedPlan(LABELS, 4, 2)
    changes = {3: {0: 50.0}, 4: "size", 9: None, 15: [1.0] * CLASSES, 16: [*[0.0] * 8, *[1.0] * 4]}
    seen = []
    for step, (x, y) in enumerate(loader.take(60)):
        assert numbers_of(x) == plan.batch(step).tolist()
        seen.append(copied((x, y)))
        if step + 1 in changes:
            loader.set_class_weights(changes[step + 1])
            plan = plan.reweighted(changes[step + 1], batch=step + 1)
    assert {label for x, y in seen[16:] for label in y.tolist()} == {8, 9, 10, 11}
    # All of it again, from any state.
    state = json.loads(json.dumps(loader.state_dict()))
    for start in (0, 2, 3, 10, 40):
        again = ds.batches(4, 2, threads=1)
        again.load_state_dict({**state, "batch": start})
        assert all(map(same, again.take(60 - start), seen[start:]))
    # What was set later is not known earlier.
    loader.seek(10)
    loader.set_class_weights("sqrt")
    plan = plan.reweighted("sqrt", batch=10)
    assert ids_in(loader.take(20)) == [plan.batch(step).tolist() for step in range(10, 30)]


def test_weights_before_the_first_batch(ds):
    for weights in ({0: 5.0}, "sqrt", None):
        given_at_once = ds.batches(4, 2, class_weights=weights)
        for asked in (False, True):
            loader = ds.batches(4, 2)
            assert not asked or len(loader) > 0
            loader.set_class_weights(weights)
            assert len(loader) == len(given_at_once)
            assert ids_in(loader) == ids_in(given_at_once)
            again = ds.batches(4, 2, class_weights={3: 2.0})
            assert not asked or len(again) > 0
            again.load_state_dict(loader.state_dict())
            assert (len(again), again.epoch) == (len(loader), 1)
            loader.seek(0)
            given_at_once.seek(0)


def test_weights_that_cannot_be(ds):
    loader = ds.batches(4, 2, threads=2)
    loop = loader.take(10)
    next(loop)
    for weights in ([1.0], {0: -1.0}, {99: 1.0}, "cube", [0.0] * CLASSES, {0: float("nan")}):
        with pytest.raises(CoveyError):
            loader.set_class_weights(weights)
    assert ids_in(loop) == [loader.plan.batch(step).tolist() for step in range(1, 10)]
    for other in (ds.shuffled(5), ds.sequential(5)):
        with pytest.raises(PlanError, match="weights"):
            other.set_class_weights({0: 2.0})


def test_states_with_weights_stay_small(directory):
    count = 20_000
    columns = {"x": np.arange(count), "label": np.arange(count) % 1000}
    write(columns, directory / "thousand", label="label", shuffle=False)
    loader = opened(directory / "thousand").batches(32, 4)
    rng = np.random.default_rng(0)
    for step in range(1, 11):
        loader.seek(step)
        loader.set_class_weights(rng.random(1000))
    assert len(json.dumps(loader.state_dict())) < 10 * 1000 * 10


# Anything, in any order.


class AnyUse(RuleBasedStateMachine):
    """A loader, compared with the number of the next batch and the weights that were set."""

    @initialize(
        kind=st.sampled_from(["numbers", "gzip"]),
        mode=st.sampled_from([(0, 1, "split"), (1, 3, "independent"), (2, 3, "split")]),
    )
    def begin(self, kind, mode):
        self.kind, (self.rank, self.world_size, self.mode) = kind, mode
        self.each = self.world_size if self.mode == "independent" else 1
        self.batch, self.changes, self.loop, self.left = 0, {}, None, 0
        self.loader = self.make_loader(1)

    def make_loader(self, threads):
        ranks = {"rank": self.rank, "world_size": self.world_size, "mode": self.mode}
        ds = self.made(self.kind)
        return ds.batches(4, 2, seed=3, steps_per_epoch=7, threads=threads, prefetch=2, **ranks)

    def expected(self, batch):
        """The numbers of the examples of a batch, of this rank."""
        plan = BalancedPlan(LABELS, 4, 2, 3)
        for begin, weights in sorted(self.changes.items()):
            plan = plan.reweighted(weights, batch=begin)
        if self.mode == "independent":
            return plan.batch(batch + self.rank).tolist()
        return plan.for_rank(self.rank, self.world_size).batch(batch).tolist()

    @rule(times=st.integers(1, 5))
    def go_on(self, times):
        for _ in range(times if self.loop is not None else 0):
            found = next(self.loop, None)
            assert (found is None) == (self.left == 0)
            if found is None:
                break
            assert numbers_of(found[0]) == self.expected(self.batch)
            self.batch += self.each
            self.left -= 1

    @rule()
    def begin_an_epoch(self):
        self.loop, self.left = iter(self.loader), 7 - self.batch // self.each % 7

    @rule(steps=st.integers(0, 9))
    def take(self, steps):
        self.loop, self.left = self.loader.take(steps), steps

    @rule(step=st.integers(0, 40))
    def seek(self, step):
        self.loader.seek(step)
        self.batch = step * self.each
        self.check_the_loop_is_closed()

    @rule()
    def close(self):
        self.loader.close()
        self.check_the_loop_is_closed()

    def check_the_loop_is_closed(self):
        if self.loop is not None and self.left:
            with pytest.raises(ClosedError):
                next(self.loop)
        self.loop = None

    @rule(weights=st.sampled_from([{0: 9.0}, {1: 0.0, 2: 3.0}, "sqrt", None]))
    def set_weights(self, weights):
        self.loader.set_class_weights(weights)
        self.changes = {at: each for at, each in self.changes.items() if at < self.batch}
        self.changes[self.batch] = weights

    @rule(threads=st.integers(0, 2))
    def go_on_elsewhere(self, threads):
        state = json.loads(json.dumps(self.loader.state_dict()))
        self.loader = self.make_loader(threads)
        self.loader.load_state_dict(state)
        self.loop = None

    @rule()
    def pickle(self):
        self.loader, self.loop = pickle.loads(pickle.dumps(self.loader)), None

    @rule()
    def load_its_own_state(self):
        self.loader.load_state_dict(self.loader.state_dict())
        self.check_the_loop_is_closed()

    @invariant()
    def knows_where_it_is(self):
        if hasattr(self, "loader"):
            assert self.loader.step == self.batch // self.each
            assert self.loader.epoch == self.batch // self.each // 7
            assert len(self.loader) == 7


def test_any_use(made):
    AnyUse.made = staticmethod(made)
    run_state_machine_as_test(AnyUse, settings=settings(max_examples=60, stateful_step_count=30))


# Ranks.


def ranked(make_loader, world_size, mode):
    return [make_loader(rank=rank, world_size=world_size, mode=mode) for rank in range(world_size)]


KINDS = {
    "balanced": lambda ds, **ranks: ds.batches(8, 2, steps_per_epoch=20, **ranks),
    "short": lambda ds, **ranks: ds.shuffled(9, **ranks),  # 20 batches
    "short rest": lambda ds, **ranks: ds.shuffled(8, seed=2, **ranks),  # 22 and 4 examples
    "drop": lambda ds, **ranks: ds.shuffled(8, remainder="drop", **ranks),
    "fill": lambda ds, **ranks: ds.shuffled(8, remainder="fill", **ranks),
    "sequential": lambda ds, **ranks: ds.sequential(9, **ranks),
    "sequential rest": lambda ds, **ranks: ds.sequential(8, **ranks),
}


def batches_of(ds, kind):
    """The numbers of the examples of all batches, in order, for ever."""
    plan = KINDS[kind](ds).plan
    return (plan.batch(step).tolist() for step in itertools.count())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_share_every_batch(ds, kind, world_size):
    loaders = ranked(lambda **ranks: KINDS[kind](ds, threads=1, **ranks), world_size, "split")
    assert len({len(loader) for loader in loaders}) == 1
    expected = batches_of(ds, kind)
    for _ in range(2):
        for parts in zip(*loaders, strict=True):
            assert flat(ids_in(parts)) == next(expected)
            assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
            if kind == "balanced":
                classes = [set(y.tolist()) for _, y in parts]
                assert sum(map(len, classes)) == len(set.union(*classes)) == 8
        assert {loader.epoch for loader in loaders} == {loaders[0].epoch}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 3, 8, 30])
def test_ranks_have_batches_of_their_own(ds, kind, world_size):
    loaders = ranked(lambda **ranks: KINDS[kind](ds, threads=1, **ranks), world_size, "independent")
    for epoch in range(3):
        found = [ids_in(loader) for loader in loaders]
        each = KINDS[kind](ds).plan
        first = sum(map(len, found)) * epoch if each.is_endless else epoch * each.batches_per_epoch
        assert [len(batches) for batches in found] == [len(loader) for loader in loaders]
        # Step by step, over all ranks: batch after batch.
        steps = itertools.zip_longest(*found)
        together = [ids for step in steps for ids in step if ids is not None]
        assert together == [each.batch(first + n).tolist() for n in range(len(together))]
        if not each.is_endless:
            numbers = flat(together)
            assert len(set(numbers)) == len(numbers) == (176 if kind == "drop" else COUNT)
        assert {loader.epoch for loader in loaders} == {epoch + 1}
        assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["independent", "split"])
@pytest.mark.parametrize(("before", "after"), [(8, 6), (3, 8), (1, 5)])
def test_other_ranks_go_on_and_nothing_is_lost_or_repeated(ds, kind, mode, before, after):
    def run(loaders, steps):
        """Some steps of all ranks, within an epoch; and whether it went on so long."""
        loops = [iter(loader) for loader in loaders]
        for _ in range(steps):
            found = [next(loop, None) for loop in loops]
            yield from ids_in(batch for batch in found if batch is not None)
            if None in found:
                break

    for stop in (1, 2, 3, 22):
        first = ranked(lambda **ranks: KINDS[kind](ds, threads=0, **ranks), before, mode)
        handed = list(run(first, stop))
        # The first rank has a part of every step.
        state = first[0].state_dict()
        second = ranked(lambda **ranks: KINDS[kind](ds, threads=1, **ranks), after, mode)
        for loader in second:
            loader.load_state_dict(state)
        for _ in range(2):
            handed += run(second, 1000)
        numbers = flat(handed)
        expected = [number for ids in itertools.islice(batches_of(ds, kind), 500) for number in ids]
        assert sorted(numbers) == sorted(expected[: len(numbers)])
        if mode == "split":
            assert numbers == expected[: len(numbers)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [("independent", "split"), ("split", "independent")])
def test_another_mode_goes_on(ds, kind, before, after):
    first = ranked(partial(KINDS[kind], ds), 3, before)
    loops = [iter(loader) for loader in first]
    handed = [ids_in(map(next, loops)) for _ in range(4)]
    second = ranked(partial(KINDS[kind], ds), 2, after)
    for loader in second:
        loader.load_state_dict(first[0].state_dict())
    loops = [iter(loader) for loader in second]
    handed += [ids_in(map(next, loops)) for _ in range(4)]
    numbers = flat(flat(handed))
    assert numbers == flat(itertools.islice(batches_of(ds, kind), 20))[: len(numbers)]


@pytest.mark.parametrize("kind", ["short", "drop", "short rest", "sequential"])
@pytest.mark.parametrize("world_size", [3, 8, 30])
def test_the_state_after_the_last_batch_is_that_of_the_next_epoch(ds, kind, world_size):
    for rank in range(world_size):
        loader = KINDS[kind](ds, rank=rank, world_size=world_size, mode="independent")
        complete = KINDS[kind](ds).plan.batches_per_epoch
        steps = -(-complete // world_size)
        list(loader)
        assert (loader.step, loader.epoch) == (steps, 1)
        end = loader.state_dict()
        for _ in range(2):  # left behind the last batch, and not by the end of the loop
            loader.seek(0)
            loop = iter(loader)
            for _ in range(len(loader)):
                next(loop)
            if len(loader) == steps:
                assert (loader.step, loader.epoch, loader.state_dict()) == (steps, 1, end)
                loop.close()
                assert loader.state_dict() == end
                x, _ = next(iter(loader))
                assert numbers_of(x) == KINDS[kind](ds).plan.batch(complete + rank).tolist()


def test_weights_of_ranks(ds):
    for mode in ("independent", "split"):
        loaders = ranked(lambda **ranks: ds.batches(8, 2, **ranks), 3, mode)
        loops = [loader.take(10) for loader in loaders]
        plan, each = BalancedPlan(LABELS, 8, 2), 3 if mode == "independent" else 1
        for step in range(10):
            found = ids_in(map(next, loops))
            expected = [
                plan.batch(batch).tolist() for batch in range(step * each, (step + 1) * each)
            ]
            assert flat(found) == flat(expected)
            if step == 4:
                for loader in loaders:
                    loader.set_class_weights({1: 9.0})
                plan = plan.reweighted({1: 9.0}, batch=5 * each)
        assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1


def test_a_part_of_a_short_batch_may_be_empty(ds):
    for options in ({}, {"threads": 0}, {"transform": lambda each: each}):
        found = [list(ds.sequential(179, rank=rank, world_size=4, **options)) for rank in range(4)]
        assert [len(each) for each in found] == [2] * 4
        assert [len(x) for (x, _) in (each[1] for each in found)] == [0, 0, 0, 1]
        for (x, y), (first, _) in ((each[1], each[0]) for each in found):
            assert (x.shape[1:], x.dtype, y.dtype) == (first.shape[1:], first.dtype, np.int64)
