"""PyTorch without workers: tensors, the DataLoader of a loader, and samplers.

The contract of all adapters is tested in test_adapters.py.
"""

import copy
import itertools
import json
import pickle
import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from loaded import LABELS, native_threads, numbers_of, settles
from pytorch_metric_learning.samplers import MPerClassSampler as OriginalSampler
from sampled import is_fair
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.data._utils.pin_memory import pin_memory
from torch_data import (
    STEPS,
    Users,
    balanced,
    epoch,
    flat,
    load,
    m_per_class,
    numbers,
    read,
    stateful,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from covey.adapters.torch import (
    BalancedBatchSampler,
    MPerClassError,
    MPerClassSampler,
    PlanBatchSampler,
    tensor,
)
from covey.adapters.torch.tensors import send
from covey.arrays import RaggedArray, StringArray
from covey.classes import ClassTable
from covey.errors import PlanError, SmallClassesWarning
from covey.plan import BalancedPlan

# torchdata uses what this version of PyTorch calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

# Tensors.


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "complex64", "int64", "int32", "int16", "int8", "uint8",
     "uint16", "uint32", "uint64", "bool"],
)  # fmt: skip
def test_a_tensor_shares_the_memory_of_its_array(dtype):
    array = np.zeros((3, 2), dtype)
    found = tensor(array)
    assert (str(found.dtype), tuple(found.shape)) == (f"torch.{dtype}", (3, 2))
    array[1, 1] = 1
    assert found[1, 1].item() == 1


def test_a_read_only_array_is_copied():
    array = np.arange(4)
    array.flags.writeable = False
    found = tensor(array)
    found[0] = 9
    assert (array.tolist(), found.tolist()) == ([0, 1, 2, 3], [9, 1, 2, 3])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3)[:, ::-1],
        np.arange(4).astype(">i4"),
        np.ones(3, "i1,i4")["f1"],
        np.array(5)[()],
        np.zeros((0, 3)),
    ],
)
def test_arrays_of_all_layouts(array):
    found = tensor(array)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == array.tolist()
    assert found.shape == array.shape


@pytest.mark.parametrize(
    "value",
    ["wren", b"wren", 3, 2.5, None, np.array(["a", None]), np.array(["2024-01-01"], "M8"),
     torch.zeros(3)],
)  # fmt: skip
def test_values_that_are_returned_unchanged(value):
    assert tensor(value) is value


def test_strings_and_ragged_arrays():
    assert tensor(StringArray.of(["wren", "owl"])) == ["wren", "owl"]
    assert tensor(StringArray.of([b"\xff", b""])) == [b"\xff", b""]
    rows = tensor(RaggedArray.of([[1, 2, 3], [], [4]]))
    assert [row.tolist() for row in rows] == [[1, 2, 3], [], [4]]
    assert len({row.untyped_storage().data_ptr() for row in rows}) == 1
    one_shape = RaggedArray(np.arange(12), np.array([0, 4, 12]), (-1, 2))
    assert [row.shape for row in tensor(one_shape)] == [(2, 2), (4, 2)]
    shapes = RaggedArray(np.arange(10), np.array([0, 4, 10]), np.array([[2, 2], [2, 3]]))
    assert [row.shape for row in tensor(shapes)] == [(2, 2), (2, 3)]
    nested = RaggedArray(RaggedArray.of([[1], [2, 3], []]), np.array([0, 2, 3]))
    assert [[row.tolist() for row in rows] for rows in tensor(nested)] == [[[1], [2, 3]], [[]]]
    strings = RaggedArray(StringArray.of(["a", "b", "c"]), np.array([0, 1, 3]))
    assert tensor(strings) == [["a"], ["b", "c"]]


def test_what_a_worker_sends():
    array = np.arange(6).reshape(2, 3)
    received = pickle.loads(pickle.dumps(send(array)))
    assert torch.equal(received, torch.arange(6).reshape(2, 3))
    received += 1
    assert array[0, 0] == 0
    for value in (np.zeros(2**21, np.uint8), np.array(["a"]), "string"):
        assert type(send(value)) is type(tensor(value))


# The DataLoader.


def test_types_and_options(ds):
    for x, y in load(ds).to_torch():
        assert (x.dtype, y.dtype, tuple(x.shape)) == (torch.float32, torch.int64, (8, 2, 3))
        assert y.tolist() == LABELS[numbers((x, y))].tolist()
    batches = load(ds).to_torch(num_workers=2, prefetch_factor=4, pin_memory=True)
    assert isinstance(batches, DataLoader)
    assert (batches.num_workers, batches.prefetch_factor, batches.pin_memory) == (2, 4, True)
    assert len(batches) == len(batches.sampler) == len(batches.dataset) == STEPS
    for option in ("batch_size", "shuffle", "sampler", "collate_fn"):
        with pytest.raises(PlanError) as caught:
            load(ds).to_torch(**{option: None})
        assert caught.value.option == option


def test_random_access_by_step(ds):
    loader = load(ds)
    dataset = loader.to_torch().dataset
    for step in (5, 0, 1, 2, 40, 3):
        assert numbers(dataset[step]) == loader.plan.batch(step).tolist()
    # With the default sampler of PyTorch.
    batches = loader.to_torch()
    other = type(batches)(batches.dataset, batch_size=1, collate_fn=batches.collate_fn)
    assert read(other) == epoch(loader.plan, 0)


@pytest.mark.parametrize("stop", [1, 3, STEPS])
def test_an_abandoned_iteration(ds, stop):
    loader = load(ds, threads=3)
    batches, before = loader.to_torch(), native_threads()
    iter(batches)  # one that is never used has no effect
    assert read(itertools.islice(batches, stop)) == epoch(loader.plan, 0)[:stop]
    assert settles(native_threads, before)
    assert read(batches) == epoch(loader.plan, 1)


def test_the_position_is_that_of_the_loader(ds):
    loader = load(ds)
    batches = loader.to_torch()
    next(iter(batches))
    assert loader.state_dict() == batches.state_dict()
    loader.seek(5 * STEPS - 2)
    assert read(batches) == epoch(loader.plan, 4)[-2:]
    assert read(loader.to_torch()) == epoch(loader.plan, 5)
    assert loader.epoch == 6


def test_class_weights_change_with_the_next_batch(ds):
    loader, found = load(ds), []
    for step, batch in enumerate(loader.to_torch()):
        found.append(numbers(batch))
        if step == 2:
            loader.set_class_weights({1: 9.0})
    plan = BalancedPlan(LABELS, 4, 2, 9)
    expected = [*plan.batches(0, 3), *plan.reweighted({1: 9.0}, batch=3).batches(3, STEPS)]
    assert found == [ids.tolist() for ids in expected]


def test_set_epoch(ds):
    loader = load(ds)
    batches = loader.to_torch()
    for number in (4, 0, 4):
        batches.set_epoch(number)
        assert read(batches) == epoch(loader.plan, number)
    found = []
    for step, batch in enumerate(batches):
        found.append(numbers(batch))
        if step == 2:
            batches.sampler.set_epoch(3)  # of the next iteration
    assert found == epoch(loader.plan, 5)
    assert read(batches) == epoch(loader.plan, 3)
    state = {**loader.state_dict(), "batch": 2 * STEPS + 3}
    for number, first in ((2, 3), (1, 0), (3, 0)):  # a loaded position in the epoch is kept
        batches.load_state_dict(state)
        batches.set_epoch(number)
        assert read(batches) == epoch(loader.plan, number)[first:]
    for wrong in (-1, 1.5, "1", 2**62):
        with pytest.raises(PlanError) as caught:
            batches.set_epoch(wrong)
        assert (caught.value.option, caught.value.found) == ("epoch", wrong)


def test_a_copy_has_its_own_position(ds):
    loader = load(ds)
    batches = loader.to_torch()
    next(iter(batches))
    for other in (copy.deepcopy(batches), pickle.loads(pickle.dumps(batches))):
        other.set_epoch(1)
        assert read(other) == epoch(loader.plan, 1)
    assert read(batches) == epoch(loader.plan, 1)


def test_the_sampler_is_a_distributed_sampler(ds):
    sampler = load(ds, rank=1, world_size=2).to_torch().sampler
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.rank, sampler.num_replicas) == (1, 2)


@pytest.mark.parametrize("kind", ["numbers", "many", "nested", "ragged", "strings"])
def test_pinned_memory(made, monkeypatch, kind):
    def tensors(value):
        if isinstance(value, torch.Tensor):
            return [value]
        parts = value.values() if isinstance(value, dict) else value
        return [each for part in parts if not isinstance(part, str) for each in tensors(part)]

    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    found = pin_memory(next(iter(load(made(kind)).to_torch())))
    assert {id(each) for each in pinned} == {id(each) for each in tensors(found)} != set()


def test_pinned_memory_without_an_accelerator(ds):
    batches = load(ds).to_torch(pin_memory=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true but no accelerator")
        assert read(batches) == epoch(load(ds).plan, 0)


# States.


def test_the_state_is_that_of_the_loader(ds):
    loader = load(ds)
    batches = loader.to_torch()
    assert len(list(itertools.islice(batches, 5))) == 5
    state = json.loads(json.dumps(batches.state_dict()))
    assert state == loader.state_dict()
    again = load(ds)
    again.load_state_dict(state)
    assert [numbers_of(x) for x, _ in again] == epoch(loader.plan, 0)[5:]
    for _ in range(2):
        batches.load_state_dict(state)
        assert batches.state_dict() == state
        next(iter(batches))
        batches.load_state_dict(state)
        assert read(batches) == epoch(loader.plan, 0)[5:]
    other = load(ds).to_torch()
    other.load_state_dict(batches.state_dict())  # the end of the epoch was requested
    assert read(other) == epoch(loader.plan, 1)


def test_a_state_after_the_last_batch_resumes_with_the_end_of_the_epoch(ds):
    loader = load(ds)
    batches = loader.to_torch()
    iterator = iter(batches)
    for _ in range(STEPS):
        next(iterator)
    state = batches.state_dict()
    other = load(ds).to_torch()
    other.load_state_dict(state)
    other.set_epoch(0)
    assert [read(other), read(other)] == [[], epoch(loader.plan, 1)]
    loader.load_state_dict(state)
    assert [numbers_of(x) for x, _ in loader] == epoch(loader.plan, 1)


@pytest.mark.parametrize("mode", ["split", "independent"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 3), (3, 4)])
def test_resume_with_another_number_of_ranks(ds, mode, before, after):
    plan = load(ds).plan
    first = load(ds, rank=0, world_size=before, mode=mode).to_torch()
    assert len(list(itertools.islice(first, 3))) == 3
    at = 3 * (before if mode == "independent" else 1)
    found = []
    for rank in range(after):
        batches = load(ds, rank=rank, world_size=after, mode=mode).to_torch()
        batches.load_state_dict(first.state_dict())
        found.append(numbers(next(iter(batches))))
    if mode == "independent":
        assert found == plan.batches(at, at + after).tolist()
    else:
        assert flat(found) == plan.batch(at).tolist()


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_with_fewer_steps_resumes_after_its_last_one(ds, rank):
    def ranked():
        return ds.shuffled(50, seed=1, rank=rank, world_size=3, mode="independent")

    loader = ranked()
    list(loader)
    expected = [numbers_of(x) for x, _ in loader]
    for new, ids_of in (
        (lambda: ranked().to_torch(), read),
        (lambda: PlanBatchSampler(ranked().plan), list),
    ):
        first, again = new(), new()
        for _ in itertools.islice(first, len(first)):  # the end of the epoch is not requested
            pass
        again.load_state_dict(first.state_dict())
        assert [ids_of(again), ids_of(again)] == [[], expected]


def test_invalid_states(ds):
    batches = load(ds).to_torch()
    state = batches.state_dict()
    for wrong, option in (
        ({**state, "drained": 1}, "drained"),
        ({**state, "skip": 1}, "skip"),
        ({**state, "batch": -1}, "batch"),
        ({}, None),
        (None, None),
        (ds.batches(4, 2, seed=8).state_dict(), "seed"),
    ):
        with pytest.raises(PlanError) as caught:
            batches.load_state_dict(wrong)
        assert caught.value.option == option
    assert read(batches) == epoch(load(ds).plan, 0)


# Samplers.


def test_balanced_batches_of_another_dataset():
    batches = DataLoader(Users(), batch_sampler=balanced(steps_per_epoch=60))
    assert len(batches) == 60
    for x, y in batches:
        assert sorted(Counter(y.tolist()).values()) == [2] * 4
        assert len(set(x.flatten().tolist())) == 8


def test_balanced_batches_of_a_covey_dataset(ds):
    sampler = BalancedBatchSampler(ds.classes, 4, 2, seed=9, steps_per_epoch=STEPS)
    found = list(DataLoader(ds, batch_sampler=sampler))
    assert read(found) == epoch(load(ds).plan, 0)
    assert [each["label"].tolist() for each in found] == [y.tolist() for _, y in load(ds)]


@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor(LABELS),
        torch.tensor(LABELS, dtype=torch.uint8),
        LABELS.tolist(),
        [f"{label:02}" for label in LABELS],
        ClassTable.of(LABELS),
    ],
)
def test_label_types(labels):
    sampler = BalancedBatchSampler(labels, 4, 2, seed=3, steps_per_epoch=STEPS)
    assert list(sampler) == epoch(balanced().plan, 0)


def test_options_of_the_plan():
    options = {
        "class_list": [1, 2, 3, 4, 5],
        "total_examples_per_class": 4,
        "small_classes": "error",
        "class_weights": {1: 2.0},
        "steps_per_epoch": "classes",
    }
    sampler = BalancedBatchSampler(LABELS, 4, 2, seed=3, **options)
    plan = BalancedPlan(LABELS, 4, 2, 3, **options)
    assert list(sampler) == plan.batches(0, plan.steps_per_epoch).tolist()
    for wrong, option in (({"classes_per_batch": 13}, "classes_per_batch"),
                          ({"rank": 2, "world_size": 2}, "rank")):  # fmt: skip
        with pytest.raises(PlanError) as caught:
            BalancedBatchSampler(**{"labels": LABELS, "classes_per_batch": 4, **wrong})
        assert caught.value.option == option


@pytest.mark.parametrize("mode", ["split", "independent"])
def test_ranks_of_a_sampler(mode):
    ranks = [balanced(rank=rank, world_size=2, mode=mode) for rank in range(2)]
    found = list(zip(*ranks, strict=True))
    plan = balanced().plan
    if mode == "split":
        assert [a + b for a, b in found] == epoch(plan, 0)
    else:
        assert [ids for step in found for ids in step] == plan.batches(0, 2 * STEPS).tolist()


def test_epochs_of_a_sampler():
    sampler = balanced()
    assert [list(sampler), list(sampler)] == [epoch(sampler.plan, 0), epoch(sampler.plan, 1)]
    iter(sampler)  # is not used
    next(iter(sampler))  # is abandoned
    assert list(sampler) == epoch(sampler.plan, 3)
    sampler.set_epoch(1)
    assert list(sampler) == epoch(sampler.plan, 1)


def test_the_state_of_an_iterator_before_its_first_item():
    for new in (balanced, m_per_class):
        sampler, other = new(), new()
        expected = [list(sampler) for _ in range(3)]
        sampler.set_epoch(0)
        next(iter(sampler))  # is abandoned
        other.load_state_dict(iter(sampler).state_dict())
        assert iter(other).state_dict() == iter(sampler).state_dict()
        assert [list(other), list(other)] == expected[1:]


def test_the_state_of_a_sampler_is_that_of_a_loader(ds):
    sampler = balanced(seed=9)
    assert len(list(itertools.islice(sampler, 3))) == 3
    state = json.loads(json.dumps(sampler.state_dict()))
    loader = load(ds)
    loader.load_state_dict(state)
    assert [numbers_of(x) for x, _ in loader] == epoch(sampler.plan, 0)[3:]
    other = balanced(seed=9)
    other.load_state_dict(state)
    other.set_epoch(0)
    assert list(other) == epoch(sampler.plan, 0)[3:]
    assert list(other) == epoch(sampler.plan, 1)
    with pytest.raises(PlanError) as caught:
        balanced().load_state_dict(state)
    assert (caught.value.option, caught.value.found) == ("seed", 9)


@pytest.mark.parametrize("remainder", ["keep", "drop", "fill"])
def test_a_sampler_of_any_plan(ds, remainder):
    loader = ds.shuffled(50, seed=4, remainder=remainder)
    batches = DataLoader(ds, batch_sampler=PlanBatchSampler(loader.plan))
    for _ in range(2):
        assert read(batches) == [numbers_of(x) for x, _ in loader]


# StatefulDataLoader.


STATEFUL = {
    "batches": lambda ds: stateful(load(ds).to_torch()),
    "finite epochs": lambda ds: stateful(ds.shuffled(50, seed=4).to_torch()),
    "sampler": lambda ds: StatefulDataLoader(ds, batch_sampler=balanced()),
    "m per class": lambda ds: StatefulDataLoader(ds, sampler=m_per_class(), batch_size=8),
    "other batches": lambda ds: StatefulDataLoader(ds, sampler=m_per_class(), batch_size=5),
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_resume_with_a_stateful_dataloader(ds, kind):
    new = partial(STATEFUL[kind], ds)
    complete = new()
    expected = [read(complete) for _ in range(5)]
    for before, stop in itertools.product(range(2), [*range(len(expected[0]) + 1), None]):
        loader, again = new(), new()
        for _ in range(before):
            list(loader)
        found = read(itertools.islice(loader, stop))
        again.load_state_dict(loader.state_dict())
        if stop is not None:  # otherwise the end of the epoch was requested
            assert found + read(again) == expected[before]
        assert [read(again), read(again)] == expected[before + 1 : before + 3]


# MPerClassSampler.


@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_lengths_and_errors_of_pytorch_metric_learning(m):
    sizes, lengths = [None, 4, 6, 8, 12, 24, 48, 96], [1, 5, 24, 50, 100, 1000]
    for batch_size, length in itertools.product(sizes, lengths):
        try:
            expected = OriginalSampler(LABELS, m, batch_size, length)
        except AssertionError:
            with pytest.raises(MPerClassError) as caught:
                MPerClassSampler(LABELS, m, batch_size, length)
            assert isinstance(caught.value, AssertionError)
            assert isinstance(caught.value, PlanError)
            continue
        found = MPerClassSampler(LABELS, m, batch_size, length)
        assert len(found) == len(expected) == len(list(found))
        for name in ("m_per_class", "batch_size", "length_of_single_pass", "list_size"):
            assert getattr(found, name) == getattr(expected, name)
        assert sorted(found.labels) == sorted(expected.labels)


def check_m_per_class(sampler, labels, m, batch_size):
    """Check that every batch has m of each class, and of a small class all examples."""
    for batch in np.array(list(sampler)).reshape(-1, batch_size):
        groups = Counter(labels[batch].tolist())
        assert set(groups.values()) == {m}
        for label in groups:
            drawn = set(batch[labels[batch] == label].tolist())
            assert len(drawn) == min(m, int((labels == label).sum()))


@pytest.mark.parametrize(("m", "batch_size"), [(2, 8), (4, 16), (3, 36), (5, None)])
def test_batches_of_m_per_class(m, batch_size):
    for kind in (OriginalSampler, MPerClassSampler):
        check_m_per_class(kind(LABELS, m, batch_size, 600), LABELS, m, batch_size or 12 * m)


def test_m_per_class_is_fair():
    ids = list(MPerClassSampler(LABELS[:50], 2, 4, 10_000))
    assert is_fair(LABELS[ids[::2]].tolist(), sorted(set(LABELS[:50].tolist())))
    for label in set(LABELS[:50].tolist()):
        own = np.flatnonzero(LABELS[:50] == label).tolist()
        assert len(own) < 2 or is_fair([number for number in ids if number in own], own)


def test_m_per_class_of_small_classes():
    labels = np.array([0, 0, 0, 0, 1, 2, 2, 2])
    with pytest.warns(SmallClassesWarning, match="2 classes have fewer than 4"):
        sampler = MPerClassSampler(labels, 4, 8, 800)
    check_m_per_class(sampler, labels, 4, 8)


def test_epochs_of_m_per_class():
    sampler = m_per_class()
    ids = flat(sampler.plan.batches(0, 3 * STEPS).tolist())
    first, second = list(sampler), list(sampler)
    assert (first, second) == (ids[:56], ids[56:112])
    assert list(MPerClassSampler(LABELS, 2, 8, 60, seed=4)) != first
    next(iter(sampler))  # is abandoned
    for number, expected in ((1, second), (0, first)):
        sampler.set_epoch(number)
        other = m_per_class()
        other.load_state_dict(sampler.state_dict())
        assert [list(sampler), list(other)] == [expected, expected]


@pytest.mark.parametrize("stop", range(0, 57, 5))
def test_the_state_of_m_per_class(stop):
    sampler = m_per_class()
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(0)
    assert list(itertools.islice(sampler, stop)) == first[:stop]
    state = json.loads(json.dumps(sampler.state_dict()))
    for number in (None, 0, 1):
        other = m_per_class()
        other.load_state_dict(state)
        assert other.state_dict() == state
        if number is not None:
            other.set_epoch(number)
        if number != 1:
            assert list(other) == first[stop:]
        assert list(other) == second


def test_label_types_of_m_per_class():
    halves, strings = LABELS / 2, [f"{label:02}" for label in LABELS]
    for labels in (torch.tensor(halves), halves.tolist(), strings, np.array(strings)):
        assert list(MPerClassSampler(labels, 2, 8, 60, seed=3)) == list(m_per_class())


def test_invalid_arguments_of_m_per_class():
    for option, value in (("m", 0), ("labels", []), ("length_before_new_iter", 0)):
        with pytest.raises(PlanError) as caught:
            MPerClassSampler(**{"labels": LABELS, "m": 2, option: value})
        assert (caught.value.option, caught.value.found) == (option, value)
    sampler = m_per_class()
    for skip in (-1, 8, 1.0, "1"):
        with pytest.raises(PlanError) as caught:
            sampler.load_state_dict({**sampler.state_dict(), "skip": skip})
        assert (caught.value.option, caught.value.found) == ("skip", skip)


def test_ranks_of_m_per_class():
    labels = [number % 6 for number in range(60)]

    def ranked(rank):
        return MPerClassSampler(labels, 2, 8, 80, seed=3, rank=rank, world_size=2)

    parts = [np.reshape(list(ranked(rank)), (10, 8)) for rank in range(2)]
    plan = BalancedPlan(labels, 4, 2, 3, steps_per_epoch=10)
    assert np.array_equal(np.stack(parts, 1).reshape(20, 8), plan.batches(0, 20))
    sampler, again = ranked(1), ranked(1)
    begun = list(itertools.islice(sampler, 19))
    again.load_state_dict(sampler.state_dict())
    assert [*begun, *again] == parts[1].ravel().tolist()
