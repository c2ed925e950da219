"""Positions of loaders: steps and epochs, states, class weights, ranks, random access."""

import base64
import itertools
import json
import pickle
import sys
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from loaded import CLASSES, COUNT, LABELS, numbers_of, same
from opened import opened
from plan_cases import class_table
from written import write

from covey import CoveyError
from covey.errors import ClosedError, PlanError
from covey.plan import BalancedPlan, state


def ids_in(batches):
    """Return the numbers of the examples of each batch."""
    return [numbers_of(x) for x, _ in batches]


def flat(lists):
    return list(itertools.chain(*lists))


# Steps and epochs.


def test_take(ds):
    assert list(ds.batches(4, 2).take(0)) == []
    for steps in (sys.maxsize, 10**30):
        iterator = ds.batches(4, 2, threads=2).take(steps)
        assert numbers_of(next(iterator)[0]) == BalancedPlan(LABELS, 4, 2).batch(0).tolist()
    for size, remainder in ((50, "fill"), (50, "drop"), (45, "keep")):
        for make in (ds.shuffled, ds.sequential):
            loader = make(size, remainder=remainder)
            found = [numbers_of(x) for x, _ in loader.take(9)]
            assert found == loader.plan.batches(0, 9).tolist()
            assert loader.step == 9
    independent = {"rank": 0, "world_size": 2, "mode": "independent"}
    for options in ({}, {"remainder": "drop", **independent}):
        with pytest.raises(PlanError, match="remainder='fill'"):
            ds.shuffled(50, **options).take(3)


# States.


# States of released formats: what was saved, and the examples that follow.
GOLDEN = [
    (
        lambda ds: ds.batches(4, 2, seed=5),
        {"format": 1, "batch": 6, "plan": {"kind": "balanced", "seed": 5, "classes_per_batch": 4,
         "examples_per_class": 2, "classes": 12, "examples": 180, "sum": 2414995236},
         "weights": [[3, "eJxjYGBmAIHSiwx46RIyaQCYHQ3/"]]},
        [162, 94, 102, 44, 133, 80, 112, 101],
    ),
    (
        lambda ds: ds.shuffled(33, seed=5),
        {"format": 1, "batch": 9, "plan": {"kind": "shuffled", "seed": 5, "records": 180,
         "batch_size": 33, "remainder": "keep"}},
        [5, 42, 10, 124, 9, 141],
    ),
    (
        lambda ds: ds.sequential(33),
        {"format": 1, "batch": 9, "plan": {"kind": "sequential", "seed": 0, "records": 180,
         "batch_size": 33, "remainder": "keep"}},
        [99, 100, 101, 102, 103, 104],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "saved", "expected"), GOLDEN)
def test_golden_states(ds, make, saved, expected):
    loader = make(ds)
    loader.load_state_dict(saved)
    assert loader.state_dict() == saved
    x, _ = next(iter(loader))
    assert numbers_of(x)[: len(expected)] == expected


def test_state_with_class_weights_is_small():
    plan, random = BalancedPlan(class_table([20] * 1000), 32, 4), np.random.default_rng(0)
    for batch in range(1, 11):
        plan = plan.reweighted(random.random(1000), batch=batch)
    saved = json.dumps(state.save(plan, 11))
    assert len(saved) < 10 * 1000 * 10
    loaded, batch = state.load(BalancedPlan(class_table([20] * 1000), 32, 4), json.loads(saved))
    assert batch == 11
    assert (loaded.batches(0, 30) == plan.batches(0, 30)).all()


OTHER_BATCHES = {
    "seed": lambda ds: ds.batches(4, 2, seed=6),
    "classes_per_batch": lambda ds: ds.batches(5, 2, seed=5),
    "examples_per_class": lambda ds: ds.batches(4, 3, seed=5),
    "classes": lambda ds: ds.batches(4, 2, seed=5, class_list=range(8)),
    "examples": lambda ds: ds.batches(4, 2, seed=5, total_examples_per_class=4),
    "sum": lambda ds: ds.select([*range(COUNT - 1), 0]).batches(4, 2, seed=5),
    "kind": lambda ds: ds.shuffled(8, seed=5),
}
OTHER_EPOCHS = {
    "seed": lambda ds: ds.shuffled(9, seed=1),
    "batch_size": lambda ds: ds.shuffled(8),
    "remainder": lambda ds: ds.shuffled(9, remainder="drop"),
    "kind": lambda ds: ds.sequential(9),
    "records": lambda ds: ds.select(range(100)).shuffled(9),
}


def test_state_of_other_batches(ds):
    cases = [
        *((ds.batches(4, 2, seed=5), name, make(ds)) for name, make in OTHER_BATCHES.items()),
        *((ds.shuffled(9), name, make(ds)) for name, make in OTHER_EPOCHS.items()),
    ]
    for loader, name, other in cases:
        loader.seek(3)
        for one, two in ((loader, other), (other, loader)):
            with pytest.raises(PlanError, match="the state belongs to other batches") as error:
                one.load_state_dict(two.state_dict())
            assert error.value.option == name
        assert (loader.step, other.step) == (3, 0)


def test_state_of_other_class_names(tmp_path):
    """The plans of both datasets are equal: only the names of their classes differ."""
    loaders = []
    for name, birds in {"a": ["owl", "wren", "crow"], "b": ["auk", "owl", "wren"]}.items():
        examples = [{"x": n, "label": sorted(birds)[n % 3]} for n in range(30)]
        write(examples, tmp_path / name, label="label")
        for options in ({}, {"labels": "contiguous"}):
            loaders.append((name, opened(tmp_path / name, **options).batches(2, 2, seed=5)))
    for (name, loader), (other_name, other) in itertools.product(loaders, loaders):
        assert (loader.plan.batches(0, 9) == other.plan.batches(0, 9)).all()
        loader.seek(3)
        saved = loader.state_dict()
        if name == other_name:
            other.load_state_dict(saved)
        else:
            with pytest.raises(PlanError, match="the state belongs to other batches") as error:
                other.load_state_dict(saved)
            assert error.value.option == "sum"
        # States of earlier versions do not have the names.
        old = {**saved["plan"], "sum": saved["plan"]["sum"] % 2**32}
        other.load_state_dict({**saved, "plan": old})
        assert other.step == 3


@pytest.mark.parametrize(
    "invalid",
    [
        *(None, 5, "state", [], {}),
        *({"format": value} for value in (2, "1")),
        *({"batch": value} for value in (None, -1, 1.0, "1", True, 2**63, 2**80)),
        *({"plan": value} for value in (None, [], {})),
        *({"weights": value} for value in (None, 5, "ab", {"a": 1}, [5], [[1]], [[1, None, None]])),
        *({"weights": [[begin, None]]} for begin in ("a", None, 0.5, True, -1, 2**70)),
        {"weights": [[5, None], [3, None]]},
        *({"weights": [[0, packed]]} for packed in (5, "AAAA", "?", "é")),
        {"weights": [[0, "eJxjYKAuAAAAUAAB"]]},  # ten zeros
        {"weights": [[0, "eJwDAAAAAAE="]]},  # no bytes
        {"weights": [[0, "eJxLBAAAYgBi"]]},  # one byte
    ],
)
def test_invalid_state(ds, invalid):
    loader = ds.batches(4, 2)
    loader.seek(3)
    is_part = isinstance(invalid, dict) and invalid
    with pytest.raises(PlanError, match=r"state|weights"):
        loader.load_state_dict({**loader.state_dict(), **invalid} if is_part else invalid)
    assert numbers_of(next(loader.take(1))[0]) == loader.plan.batch(3).tolist()


def test_weights_of_a_state_are_not_decompressed_without_a_limit(ds):
    """A megabyte of base64 would decompress to a gigabyte."""
    bomb = base64.b64encode(zlib.compress(bytes(64 << 20), 9)).decode()
    loader = ds.batches(4, 2)
    tracemalloc.start()
    try:
        with pytest.raises(PlanError, match="corrupt"):
            loader.load_state_dict({**loader.state_dict(), "weights": [[0, bomb]]})
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# Class weights.


def test_class_weights_before_the_first_batch(ds):
    for weights in ({0: 5.0}, "sqrt", None):
        expected = ds.batches(4, 2, class_weights=weights)
        for is_length_cached in (False, True):
            loader, other = ds.batches(4, 2), ds.batches(4, 2, class_weights={3: 2.0})
            if is_length_cached:
                assert len(loader) > 0 < len(other)
            loader.set_class_weights(weights)
            assert len(loader) == len(expected)
            assert ids_in(loader) == ids_in(expected)
            other.load_state_dict(loader.state_dict())
            assert (len(other), other.epoch) == (len(loader), 1)
            expected.seek(0)


def test_invalid_class_weights(ds):
    loader = ds.batches(4, 2, threads=2)
    iterator = loader.take(10)
    next(iterator)
    for weights in ([1.0], {0: -1.0}, {99: 1.0}, "cube", [0.0] * CLASSES):
        with pytest.raises(CoveyError):
            loader.set_class_weights(weights)
    assert ids_in(iterator) == [loader.plan.batch(step).tolist() for step in range(1, 10)]
    for other in (ds.shuffled(5), ds.sequential(5)):
        with pytest.raises(PlanError, match="only balanced batches have class weights"):
            other.set_class_weights({0: 2.0})


# All operations in any order.

PLANS = {
    "balanced": lambda ds, **options: ds.batches(4, 2, seed=3, steps_per_epoch=7, **options),
    "keep": lambda ds, **options: ds.shuffled(33, seed=3, **options),  # 6 batches, one is short
    "drop": lambda ds, **options: ds.shuffled(33, seed=3, remainder="drop", **options),
    "fill": lambda ds, **options: ds.shuffled(33, seed=3, remainder="fill", **options),
    "sequential": lambda ds, **options: ds.sequential(29, **options),
}
RANKS = [(0, 1, "split"), (1, 3, "independent"), (2, 4, "independent"), (2, 3, "split")]


class LoaderMachine(RuleBasedStateMachine):
    """A loader, compared with the index of its next batch, the ranks, and the class weights."""

    @initialize(
        kind=st.sampled_from(["numbers", "gzip", "ragged"]),
        plan=st.sampled_from(sorted(PLANS)),
        ranks=st.sampled_from(RANKS),
        prefetch=st.sampled_from([None, 1, 2, 30]),
    )
    def start(self, kind, plan, ranks, prefetch):
        self.ds, self.make, self.prefetch = self.made(kind), PLANS[plan], prefetch
        self.is_balanced, self.remainder = plan == "balanced", plan
        self.batch, self.changes, self.iterator, self.left = 0, {}, None, 0
        self.make_loader(ranks, 1)

    def make_loader(self, ranks, threads):
        self.rank, self.world_size, self.mode = ranks
        options = {"rank": self.rank, "world_size": self.world_size, "mode": self.mode}
        self.loader = self.make(self.ds, threads=threads, prefetch=self.prefetch, **options)
        self.per_step = self.world_size if self.mode == "independent" else 1
        # Batches continue after an epoch unless its last step is incomplete.
        one = self.per_step == 1
        self.is_endless = self.remainder in ("balanced", "fill") or (
            self.remainder == "drop" and one
        )
        whole = self.make(self.ds).plan
        # Of an epoch of all ranks, which is a number of steps if batches continue after it.
        self.batches = 7 * self.per_step if self.is_balanced else whole.batches_per_epoch
        if self.is_endless:
            self.batches += -self.batches % self.per_step
        self.end = None

    @property
    def step(self):
        if self.is_endless:
            return self.batch // self.per_step
        epoch, within = divmod(self.batch, self.batches)
        return epoch * -(-self.batches // self.per_step) + -(-within // self.per_step)

    @property
    def following_epoch(self):
        return (self.batch // self.batches + 1) * self.batches

    def expected(self):
        """Return the numbers of the examples of this rank in the next batch."""
        plan = self.make(self.ds).plan
        for begin, weights in sorted(self.changes.items()):
            plan = plan.reweighted(weights, batch=begin)
        if self.mode == "independent":
            return plan.batch(self.batch + self.rank).tolist()
        return plan.for_rank(self.rank, self.world_size).batch(self.batch).tolist()

    @rule(steps=st.integers(1, 5))
    def advance(self, steps):
        if self.iterator is None:
            self.iterate()
        for _ in range(steps):
            expected = self.expected() if self.left else None
            found = next(self.iterator, None)
            assert (found is None) == (self.left == 0)
            if found is None:
                self.batch = self.batch if self.end is None else self.end
                self.iterator = None
                break
            assert numbers_of(found[0]) == expected
            self.batch += self.per_step
            if self.end is not None:
                self.batch = min(self.batch, self.end)
            self.left -= 1
            assert self.loader.step == self.step

    @rule()
    def iterate(self):
        before, self.iterator = self.iterator, iter(self.loader)
        self.check_closed(before)
        self.end = None if self.is_endless else self.following_epoch
        ahead = 0 if self.is_endless or self.mode == "split" else self.rank
        self.left = max(0, -(-(self.following_epoch - self.batch - ahead) // self.per_step))

    @rule(steps=st.integers(0, 9))
    def take(self, steps):
        if not self.is_endless:
            with pytest.raises(PlanError, match="remainder='fill'"):
                self.loader.take(steps)
            return
        before, self.iterator = self.iterator, self.loader.take(steps)
        self.check_closed(before)
        self.left, self.end = steps, None

    @rule(step=st.one_of(st.integers(0, 40), st.just(10**12 + 3)))
    def seek(self, step):
        self.loader.seek(step)
        steps = -(-self.batches // self.per_step)  # of an epoch
        self.batch = step * self.per_step
        if not self.is_endless:
            self.batch = step // steps * self.batches + step % steps * self.per_step
        self.close_iterator()

    @rule()
    def close(self):
        self.loader.close()
        self.close_iterator()

    @rule()
    def load_own_state(self):
        self.loader.load_state_dict(self.loader.state_dict())
        self.close_iterator()

    def close_iterator(self):
        before, self.iterator = self.iterator, None
        self.check_closed(before)

    def check_closed(self, iterator):
        if iterator is not None and self.left:
            with pytest.raises(ClosedError):
                next(iterator)
            assert next(iterator, None) is None

    @precondition(lambda self: self.is_balanced)
    @rule(weights=st.sampled_from([{0: 9.0}, {1: 0.0, 2: 3.0}, "sqrt", None]))
    def set_class_weights(self, weights):
        self.loader.set_class_weights(weights)
        self.changes = {begin: each for begin, each in self.changes.items() if begin < self.batch}
        self.changes[self.batch] = weights

    @rule(threads=st.integers(0, 2), ranks=st.sampled_from(RANKS))
    def resume(self, threads, ranks):
        """Resume with other threads and ranks."""
        saved = json.dumps(self.loader.state_dict())
        assert self.changes or len(saved) < 400
        self.iterator = None
        self.make_loader(ranks, threads)
        self.loader.load_state_dict(json.loads(saved))

    @rule()
    def pickle(self):
        self.loader, self.iterator = pickle.loads(pickle.dumps(self.loader)), None

    @rule(step=st.integers(0, 20))
    def random_access(self, step):
        copy = self.loader.copy()
        copy.seek(step)
        expected = next(iter(copy), None)
        if expected is not None:
            assert same(self.loader.batch(step), expected)

    @invariant()
    def position(self):
        if hasattr(self, "loader"):
            assert self.loader.step == self.step
            assert self.loader.epoch == self.batch // self.batches
            assert f"the next is step {self.step:,}>" in repr(self.loader)


def test_any_sequence_of_operations(made):
    LoaderMachine.made = staticmethod(made)
    limits = settings(max_examples=60, stateful_step_count=30)
    run_state_machine_as_test(LoaderMachine, settings=limits)


# Ranks.

KINDS = {
    "balanced": lambda ds, **ranks: ds.batches(8, 2, steps_per_epoch=20, **ranks),
    "keep": lambda ds, **ranks: ds.shuffled(9, **ranks),  # 20 batches
    "keep short": lambda ds, **ranks: ds.shuffled(8, seed=2, **ranks),  # 22 batches and 4 examples
    "drop": lambda ds, **ranks: ds.shuffled(8, remainder="drop", **ranks),
    "fill": lambda ds, **ranks: ds.shuffled(8, remainder="fill", **ranks),
    "sequential": lambda ds, **ranks: ds.sequential(8, **ranks),
}


def make_ranks(ds, kind, world_size, mode, **options):
    ranks = [{"rank": rank, "world_size": world_size, "mode": mode} for rank in range(world_size)]
    return [KINDS[kind](ds, threads=1, **each, **options) for each in ranks]


def expected_ids(ds, kind):
    """Return an iterator of the numbers of the examples of all batches, in order."""
    plan = KINDS[kind](ds).plan
    return (number for step in itertools.count() for number in plan.batch(step).tolist())


def run_steps(loaders, steps):
    """Return the numbers of the examples of some steps of all ranks, up to the end of an epoch."""
    iterators, drawn = [iter(loader) for loader in loaders], []
    for _ in range(steps):
        found = [next(iterator, None) for iterator in iterators]
        drawn += flat(ids_in(batch for batch in found if batch is not None))
        if None in found:
            break
    return drawn


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("world_size", "mode"), [(1, "split"), (8, "split"), (3, "independent"), (30, "independent")]
)
def test_ranks_together_have_all_batches(ds, kind, world_size, mode):
    loaders = make_ranks(ds, kind, world_size, mode)
    expected = expected_ids(ds, kind)
    for epoch in (1, 2):
        drawn = run_steps(loaders, 1000)
        assert drawn == list(itertools.islice(expected, len(drawn)))
        if not loaders[0].plan.is_endless:
            assert len(drawn) == len(set(drawn)) == (176 if kind == "drop" else COUNT)
        assert {loader.epoch for loader in loaders} == {epoch}
        assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1


# Random access.


def test_rank_without_a_batch_in_a_step(ds):
    ranks = {"world_size": 4, "mode": "independent"}
    assert ds.sequential(60, rank=2, **ranks).batch(0)[1].shape == (60,)
    with pytest.raises(PlanError, match="rank 3 has no batch in step 0"):
        ds.sequential(60, rank=3, **ranks).batch(0)
