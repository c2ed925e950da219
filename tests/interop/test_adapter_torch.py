"""PyTorch without workers: tensors, the DataLoader of a loader, and samplers.

The contract of all adapters is tested in test_adapters.py: batches, positions, states, weights.
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
from torch.utils.data import DataLoader, DistributedSampler
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
    send,
    tensor,
)
from covey.arrays import RaggedArray, StringArray
from covey.classes import ClassTable
from covey.errors import PlanError, SmallClassesWarning
from covey.plan import BalancedPlan

# torchdata uses what this version of PyTorch calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

STRINGS = [f"{label:02}" for label in LABELS]

# First steps.


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"batch_size": 4, "shuffle": True}])
def test_a_data_loader_of_a_loader_names_to_torch(ds, options):
    with pytest.raises(PlanError, match=r"use loader\.to_torch\(\) in place of"):
        next(iter(DataLoader(load(ds), **options)))


def test_tensors_select_examples(ds):
    ids = [5, 3, -1]
    mask = torch.zeros(len(ds), dtype=torch.bool)
    mask[[3, 5]] = True
    for key, expected in [
        (torch.tensor(ids), ids),
        (torch.tensor(ids, dtype=torch.int32, requires_grad=False), ids),
        (torch.tensor([5]), [5]),
        (torch.randperm(0), []),
        (mask, [3, 5]),
    ]:
        assert numbers_of(ds[key]["x"]) == [each % len(ds) for each in expected]
        assert ds.raw[key] == ds.raw[expected]
        assert numbers_of(ds.select(key)[:]["x"]) == numbers_of(ds[key]["x"])
    assert numbers_of(ds[torch.tensor(7)]["x"][None]) == [7]
    with pytest.raises(TypeError):
        ds[torch.tensor([0.5])]


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
    array.flags.writeable = False  # it is copied
    found = tensor(array)
    found[0, 0] = 1
    assert (array[0, 0], array[1, 1]) == (0, 1)


def test_values_of_all_kinds():
    reverse, packed = np.arange(6).reshape(2, 3)[:, ::-1], np.ones(3, "i1,i4")["f1"]
    for array in (reverse, np.arange(4).astype(">i4"), packed, np.array(5)[()], np.zeros((0, 3))):
        found = tensor(array)
        assert isinstance(found, torch.Tensor)
        assert (found.tolist(), found.shape) == (array.tolist(), array.shape)
    unchanged = [np.array(["a", None]), np.array(["2024-01-01"], "M8"), torch.zeros(3)]
    for value in ("wren", b"wren", 3, 2.5, None, *unchanged):
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
    received += 1
    assert (received.tolist(), array[0, 0]) == ([[1, 2, 3], [4, 5, 6]], 0)
    for value in (np.zeros(2**21, np.uint8), np.array(["a"]), "string"):
        assert type(send(value)) is type(tensor(value))


# The DataLoader.


def test_types_and_options(ds):
    for x, y in load(ds).to_torch():
        assert (x.dtype, y.dtype, tuple(x.shape)) == (torch.float32, torch.int64, (8, 2, 3))
        assert y.tolist() == LABELS[numbers((x, y))].tolist()
    for device in (None, "cpu"):
        with pytest.warns(UserWarning, match="num_workers=2 without a hook.*omit num_workers"):
            batches = load(ds).to_torch(device=device, num_workers=2, prefetch_factor=4)
        assert isinstance(batches, DataLoader)
        assert (batches.num_workers, batches.prefetch_factor) == (2, 4)
        assert len(batches) == len(batches.sampler) == len(batches.dataset) == STEPS
    load(ds, batch_transform=lambda x, y: (x, y)).to_torch(num_workers=2)  # no warning
    sampler = load(ds, rank=1, world_size=2).to_torch().sampler
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.rank, sampler.num_replicas) == (1, 2)
    for option in ("batch_size", "shuffle", "sampler", "collate_fn"):
        with pytest.raises(PlanError) as caught:
            load(ds).to_torch(**{option: None})
        assert caught.value.option == option


@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 2, "mode": "independent"}])
def test_random_access_by_step(ds, options):
    for loader in (load(ds, **options), ds.shuffled(19, seed=1, **options)):
        dataset = loader.to_torch().dataset
        for step in (5, 0, 1, 2, *range(4 * STEPS), 40, 3):
            assert numbers(dataset[step]) == numbers_of(loader.batch(step)[0])
    # With the default sampler of PyTorch.
    batches = load(ds).to_torch()
    other = type(batches)(batches.dataset, batch_size=1, collate_fn=batches.collate_fn)
    assert read(other) == epoch(load(ds).plan, 0)


def test_consecutive_steps_are_prefetched(ds):
    built = []

    def record(x, y, step):
        built.append(step)
        return x, y

    dataset = load(ds, batch_transform=record, threads=2).to_torch().dataset
    found = [numbers(dataset[0])]
    assert settles(lambda: 3 - len(built), 0)
    found += [numbers(dataset[step]) for step in range(1, STEPS)]
    assert found == epoch(load(ds).plan, 0)
    assert sorted(built) == list(range(STEPS))


def test_pinned_memory_without_an_accelerator(ds):
    loader, found = load(ds), []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true but no accelerator")
        for step, batch in enumerate(loader.to_torch(pin_memory=True), 1):
            found.append(numbers(batch))
            assert loader.step == step
            if step == 3:
                loader.set_class_weights({1: 9.0})
    plan = load(ds).plan
    assert found == [*epoch(plan, 0)[:3], *epoch(plan.reweighted({1: 9.0}, batch=3), 0)[3:]]


@pytest.mark.parametrize("stop", [1, 3, STEPS])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_abandoned_iteration_leaves_no_threads(ds, device, stop):
    batches, before = load(ds, threads=3).to_torch(device=device), native_threads()
    for batch in itertools.islice(batches, stop):
        del batch
    assert settles(native_threads, before)


# Iterations, positions and states, of the DataLoader and of all samplers.


KINDS = {
    "batches": lambda ds, **options: load(ds, **options).to_torch(),
    "device": lambda ds, **options: load(ds, **options).to_torch(device="cpu"),
    "plan": lambda ds, **options: PlanBatchSampler(load(ds, **options).plan),
    "balanced": lambda ds, **options: balanced(seed=9, **options),
    "m per class": lambda ds, **options: MPerClassSampler(LABELS, 2, 8, 60, seed=9, **options),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def items(batches, stop=None):
    """Return the record ids of batches of tensors, or what a sampler yields."""
    found = itertools.islice(batches, stop)
    return [numbers(each) if isinstance(each, tuple) else each for each in found]


def epochs(ds, kind, *orders):
    """Return the items of epochs."""
    parts = [epoch(load(ds).plan, number) for number in orders]
    return [flat(part) for part in parts] if kind == "m per class" else parts


def test_each_iteration_is_the_next_epoch(ds, kind):
    batches = KINDS[kind](ds)
    first, second, third, fourth, fifth = epochs(ds, kind, 0, 1, 2, 3, 4)
    iter(batches)  # is not used
    assert [items(batches), items(batches)] == [first, second]
    assert items(batches, 3) == third[:3]  # is abandoned
    running = iter(batches)
    assert items(running, 2) == fourth[:2]
    batches.set_epoch(1)  # of the next iteration
    assert items(running) == fourth[2:]
    assert items(batches) == second
    assert items(batches, len(first)) == third  # its end is not requested
    assert items(batches) == fourth
    one, other = iter(batches), iter(batches)  # at the same time
    pairs = list(zip(one, other, strict=True))
    assert [items(part) for part in zip(*pairs, strict=True)] == [fifth, *epochs(ds, kind, 5)]
    for number, expected in ((4, fifth), (0, first), (4, fifth)):
        batches.set_epoch(number)
        assert items(batches) == expected
    for wrong in (-1, 1.5, "1", 2**62):
        with pytest.raises(PlanError) as caught:
            batches.set_epoch(wrong)
        assert (caught.value.option, caught.value.found) == ("epoch", wrong)


def test_the_state_after_each_item(ds, kind):
    batches, again = KINDS[kind](ds), KINDS[kind](ds)
    first, second, third, fourth = epochs(ds, kind, 0, 1, 2, 3)
    items(batches)
    running = iter(batches)
    for stop in range(1, len(first) + 1):
        assert items(running, 1) == second[stop - 1 : stop]
        state = json.loads(json.dumps(batches.state_dict()))
        for number in (None, 1, 0, 2):
            again.load_state_dict(state)
            assert again.state_dict() == state
            if number is not None:  # a loaded position in the epoch is kept
                again.set_epoch(number)
            rest = {0: [first, second], 2: [third, fourth]}.get(number, [second[stop:], third])
            assert items(again) == rest[0]
            assert items(again) == rest[1]
    assert items(running) == []
    again.load_state_dict(batches.state_dict())
    assert items(again) == third
    if kind != "m per class":
        loader = load(ds)
        loader.load_state_dict(state)
        assert [numbers_of(x) for x, _ in loader] == third


def test_states_of_earlier_versions(ds, kind):
    again = KINDS[kind](ds)
    state = {**again.state_dict(), "batch": STEPS}
    again.load_state_dict({**state, "drained": True})  # all of epoch 0 was yielded, but not its end
    assert [items(again), items(again)] == [[], *epochs(ds, kind, 1)]
    with pytest.raises(PlanError) as caught:
        again.load_state_dict({**state, "batch": -1})
    assert caught.value.option == "batch"
    for wrong in ({}, None, {**state, "plan": {**state["plan"], "seed": 8}}):
        with pytest.raises(PlanError):
            again.load_state_dict(wrong)
    assert [items(again)] == epochs(ds, kind, 2)


def test_a_copy_has_its_own_position(ds, kind):
    batches = KINDS[kind](ds)
    running = iter(batches)
    next(running)
    for other in (copy.deepcopy(batches), pickle.loads(pickle.dumps(batches))):
        other.set_epoch(1)
        assert [items(other)] == epochs(ds, kind, 1)
    assert [items(running)] == [epochs(ds, kind, 0)[0][1:]]


@pytest.mark.parametrize("mode", ["split", "independent"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 3), (3, 4)])
@pytest.mark.parametrize("kind", ["batches", "device", "balanced"])
def test_resume_with_another_number_of_ranks(ds, kind, mode, before, after):
    plan = load(ds).plan
    first = KINDS[kind](ds, rank=0, world_size=before, mode=mode)
    assert len(items(first, 3)) == 3
    at = 3 * (before if mode == "independent" else 1)
    found = []
    for rank in range(after):
        batches = KINDS[kind](ds, rank=rank, world_size=after, mode=mode)
        batches.load_state_dict(first.state_dict())
        found += items(batches, 1)
    if mode == "independent":
        assert found == plan.batches(at, at + after).tolist()
    else:
        assert flat(found) == plan.batch(at).tolist()


@pytest.mark.parametrize("rank", range(3))
def test_a_rank_with_fewer_steps(ds, rank):
    def ranked():  # 4 batches: the last step has one
        return ds.shuffled(50, seed=1, rank=rank, world_size=3, mode="independent")

    loader = ranked()
    expected = [[numbers_of(x) for x, _ in loader] for _ in range(3)]
    for new in (lambda: ranked().to_torch(), lambda: PlanBatchSampler(ranked().plan)):
        first, again = new(), new()
        assert [items(first), items(first)] == expected[:2]
        first.set_epoch(0)
        assert items(first, len(first)) == expected[0]  # the end of the epoch is not requested
        again.load_state_dict(first.state_dict())
        assert [items(again), items(again), items(first)] == [[], expected[1], expected[1]]


def test_an_error_of_a_hook_ends_the_iteration(ds):
    def fail(x, y, step):
        if step == 3:
            raise ValueError("step 3")
        return x, y

    for options in ({}, {"device": "cpu"}):
        loader = load(ds, batch_transform=fail, threads=2)
        batches = loader.to_torch(**options)
        running = iter(batches)
        assert items(running, 3) == epoch(load(ds).plan, 0)[:3]
        with pytest.raises(ValueError, match="step 3"):
            next(running)
        assert (loader.step, items(running)) == (3, [])
        loader.seek(4)
        assert items(batches) == epoch(load(ds).plan, 0)[4:]


# StatefulDataLoader.


STATEFUL = {
    "batches": lambda ds: stateful(load(ds).to_torch()),
    "finite epochs": lambda ds: stateful(ds.shuffled(50, seed=4).to_torch()),
    "sampler": lambda ds: StatefulDataLoader(ds, batch_sampler=balanced()),
    **{
        f"m per class, batches of {size}": lambda ds, size=size: StatefulDataLoader(
            ds, sampler=MPerClassSampler(LABELS, 2, 8, 60, seed=3), batch_size=size
        )
        for size in (8, 5)
    },
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_resume_with_a_stateful_dataloader(ds, kind):
    new = partial(STATEFUL[kind], ds)
    complete = new()
    expected = [read(complete) for _ in range(4)]
    for before, stop in itertools.product(range(2), [*range(len(expected[0]) + 1), None]):
        loader, again = new(), new()
        for _ in range(before):
            list(loader)
        found = read(itertools.islice(loader, stop))
        again.load_state_dict(loader.state_dict())
        if stop is not None:  # otherwise the end of the epoch was requested
            assert found + read(again) == expected[before]
        assert [read(again), read(again)] == expected[before + 1 : before + 3]


# Samplers for other datasets.


def test_balanced_batches_of_other_datasets(ds):
    for x, y in DataLoader(Users(), batch_sampler=balanced(steps_per_epoch=60)):
        assert sorted(Counter(y.tolist()).values()) == [2] * 4
        assert len(set(x.flatten().tolist())) == 8
    sampler = BalancedBatchSampler(ds.classes, 4, 2, seed=9, steps_per_epoch=STEPS)
    found = list(DataLoader(ds, batch_sampler=sampler))
    assert read(found) == epoch(load(ds).plan, 0)
    assert [each["label"].tolist() for each in found] == [y.tolist() for _, y in load(ds)]
    for remainder in ("keep", "drop", "fill"):
        loader = ds.shuffled(50, seed=4, remainder=remainder)
        batches = DataLoader(ds, batch_sampler=PlanBatchSampler(loader.plan))
        for _ in range(2):
            assert read(batches) == [numbers_of(x) for x, _ in loader]


LABEL_TYPES = {
    BalancedBatchSampler: [torch.tensor(LABELS), torch.tensor(LABELS, dtype=torch.uint8),
                           LABELS.tolist(), STRINGS, ClassTable.of(LABELS)],
    MPerClassSampler: [torch.tensor(LABELS / 2), (LABELS / 2).tolist(), STRINGS, np.array(STRINGS)],
}  # fmt: skip


@pytest.mark.parametrize("kind", LABEL_TYPES)
def test_label_types(kind):
    options = {BalancedBatchSampler: (4, 2), MPerClassSampler: (2, 8, 60)}[kind]
    expected = list(kind(LABELS, *options, seed=3))
    assert list(kind(LABELS, *options, seed=4)) != expected
    for labels in LABEL_TYPES[kind]:
        assert list(kind(labels, *options, seed=3)) == expected


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


@pytest.mark.parametrize(
    ("make", "option", "found"),
    [
        (lambda: BalancedBatchSampler(LABELS, 13), "classes_per_batch", 13),
        (lambda: BalancedBatchSampler(LABELS, 4, rank=2, world_size=2), "rank", 2),
        (lambda: MPerClassSampler(LABELS, 0), "m", 0),
        (lambda: MPerClassSampler([], 2), "labels", []),
        (lambda: MPerClassSampler(LABELS, 2, None, 0), "length_before_new_iter", 0),
        *(
            (lambda skip=skip: m_per_class().load_state_dict(
                {**m_per_class().state_dict(), "skip": skip}), "skip", skip)
            for skip in (-1, 8, 1.0, "1")
        ),
    ],
)  # fmt: skip
def test_invalid_arguments(make, option, found):
    with pytest.raises(PlanError) as caught:
        make()
    assert (caught.value.option, caught.value.found) == (option, found)


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
        assert found.labels_to_indices.keys() == expected.labels_to_indices.keys()
        for label, positions in expected.labels_to_indices.items():
            assert np.array_equal(found.labels_to_indices[label], positions)
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
    small = np.array([0, 0, 0, 0, 1, 2, 2, 2])
    with pytest.warns(SmallClassesWarning, match="2 classes have fewer than 4"):
        sampler = MPerClassSampler(small, 4, 8, 800)
    check_m_per_class(sampler, small, 4, 8)


def test_ranks_of_m_per_class():
    def ranked(rank):
        return MPerClassSampler(LABELS, 2, 8, 60, seed=3, rank=rank, world_size=2)

    plan = BalancedPlan(LABELS, 4, 2, 3, steps_per_epoch=7)
    parts = [np.reshape(list(ranked(rank)), (7, 8)) for rank in range(2)]
    assert np.array_equal(np.stack(parts, 1).reshape(14, 8), plan.batches(0, 14))
    sampler, again = ranked(1), ranked(1)
    begun = items(sampler, 19)
    again.load_state_dict(sampler.state_dict())
    assert [*begun, *again] == parts[1].ravel().tolist()
