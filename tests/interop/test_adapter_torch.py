"""PyTorch without workers: tensors, the DataLoader of a loader, and samplers."""

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
from loaded import COUNT, LABELS, make, make_numbers, native_threads, numbers_of, settles
from torch.utils.data import DataLoader, Dataset, DistributedSampler
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

STEPS = 7


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return make_numbers(tmp_path_factory.mktemp("torch") / "numbers")


def load(ds, **options):
    return ds.batches(4, 2, **{"seed": 9, "steps_per_epoch": STEPS, **options})


def numbers(batch):
    """The numbers of the examples of a batch of tensors."""
    x, _ = batch
    assert isinstance(x, torch.Tensor)
    return numbers_of(x.numpy())


def epoch(plan, number):
    return plan.batches(number * STEPS, (number + 1) * STEPS).tolist()


def flat(parts):
    return list(itertools.chain.from_iterable(parts))


# Tensors.


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "complex64", "int64", "int32", "int16", "int8", "uint8",
     "uint16", "uint32", "uint64", "bool"],
)  # fmt: skip
def test_a_tensor_has_the_memory_of_its_array(dtype):
    array = np.zeros((3, 2), dtype)
    found = tensor(array)
    assert (str(found.dtype), tuple(found.shape)) == (f"torch.{dtype}", (3, 2))
    array[1, 1] = 1
    assert found[1, 1].item() == 1


def test_an_array_that_must_not_be_written_is_copied():
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
def test_arrays_of_all_forms(array):
    found = tensor(array)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == array.tolist()
    assert found.shape == array.shape


@pytest.mark.parametrize(
    "value", ["wren", b"wren", 3, 2.5, None, np.array(["a", None]), np.array(["2024-01-01"], "M8")]
)
def test_what_torch_has_no_tensors_for_stays(value):
    assert tensor(value) is value


def test_a_tensor_stays_itself():
    value = torch.zeros(3)
    assert tensor(value) is value


def test_texts_are_lists():
    assert tensor(StringArray.of(["wren", "owl"])) == ["wren", "owl"]
    assert tensor(StringArray.of([b"\xff", b""])) == [b"\xff", b""]


def test_ragged_arrays_are_lists_of_tensors_in_one_memory():
    found = tensor(RaggedArray.of([[1, 2, 3], [], [4]]))
    assert [row.tolist() for row in found] == [[1, 2, 3], [], [4]]
    assert len({row.untyped_storage().data_ptr() for row in found}) == 1


def test_ragged_arrays_of_all_forms():
    one = RaggedArray(np.arange(12), np.array([0, 4, 12]), (-1, 2))
    assert [row.shape for row in tensor(one)] == [(2, 2), (4, 2)]
    each = RaggedArray(np.arange(10), np.array([0, 4, 10]), np.array([[2, 2], [2, 3]]))
    assert [row.shape for row in tensor(each)] == [(2, 2), (2, 3)]
    deep = RaggedArray(RaggedArray.of([[1], [2, 3], []]), np.array([0, 2, 3]))
    assert [[row.tolist() for row in rows] for rows in tensor(deep)] == [[[1], [2, 3]], [[]]]
    texts = RaggedArray(StringArray.of(["a", "b", "c"]), np.array([0, 1, 3]))
    assert tensor(texts) == [["a"], ["b", "c"]]


# Batches of a loader. What all adapters have in common is tested in test_adapters.


def test_the_types_of_a_batch(ds):
    for x, y in load(ds).to_torch():
        assert (x.dtype, y.dtype, tuple(x.shape)) == (torch.float32, torch.int64, (8, 2, 3))
        assert y.tolist() == LABELS[numbers((x, y))].tolist()


def test_it_is_a_dataloader_with_the_options_of_one(ds):
    batches = load(ds).to_torch(num_workers=2, prefetch_factor=4, pin_memory=True)
    assert isinstance(batches, DataLoader)
    assert (batches.num_workers, batches.prefetch_factor, batches.pin_memory) == (2, 4, True)
    assert len(batches) == len(batches.sampler) == len(batches.dataset) == STEPS
    for option in ("batch_size", "shuffle", "sampler", "collate_fn"):
        with pytest.raises(PlanError) as caught:
            load(ds).to_torch(**{option: None})
        assert caught.value.option == option


def test_the_dataset_has_random_access_by_step(ds):
    loader = load(ds)
    dataset = loader.to_torch().dataset
    for step in (5, 0, 1, 2, 40, 3):
        assert numbers(dataset[step]) == loader.plan.batch(step).tolist()


@pytest.mark.parametrize("stop", [1, 3, STEPS])
def test_an_abandoned_iteration_is_over(ds, stop):
    loader = load(ds)
    batches = loader.to_torch()
    iter(batches)  # one that is never used has no effect
    assert list(map(numbers, itertools.islice(batches, stop))) == epoch(loader.plan, 0)[:stop]
    assert list(map(numbers, batches)) == epoch(loader.plan, 1)


def test_an_abandoned_iteration_stops_its_threads(ds):
    before = native_threads()
    batches = load(ds, steps_per_epoch=1000, threads=3).to_torch()
    for _ in batches:
        assert native_threads() > before
        break
    assert settles(native_threads, before)


def test_the_position_of_the_loader_is_shared(ds):
    loader = load(ds)
    batches = loader.to_torch()
    next(iter(batches))
    assert loader.state_dict() == batches.state_dict()
    loader.seek(5 * STEPS - 2)
    assert list(map(numbers, batches)) == epoch(loader.plan, 4)[-2:]
    assert list(map(numbers, loader.to_torch())) == epoch(loader.plan, 5)
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
        assert list(map(numbers, batches)) == epoch(loader.plan, number)
    found = []
    for step, batch in enumerate(batches):
        found.append(numbers(batch))
        if step == 2:
            batches.sampler.set_epoch(3)  # of the next iteration
    assert found == epoch(loader.plan, 5)
    assert list(map(numbers, batches)) == epoch(loader.plan, 3)
    for wrong in (-1, 1.5, "1", 2**62):
        with pytest.raises(PlanError) as caught:
            batches.set_epoch(wrong)
        assert (caught.value.option, caught.value.found) == ("epoch", wrong)


def test_a_copy_has_a_position_of_its_own(ds):
    loader = load(ds)
    batches = loader.to_torch()
    next(iter(batches))
    for other in (copy.deepcopy(batches), pickle.loads(pickle.dumps(batches))):
        other.set_epoch(1)
        assert list(map(numbers, other)) == epoch(loader.plan, 1)
    assert list(map(numbers, batches)) == epoch(loader.plan, 1)


# Wrappers that rebuild a DataLoader, as accelerate and Lightning do.


def rebuilt(batches, batch_sampler):
    kept = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    options = {name: getattr(batches, name) for name in kept}
    return DataLoader(batches.dataset, batch_sampler=batch_sampler, **options)


def test_a_dataloader_that_is_rebuilt_has_the_same_epochs(ds):
    loader = load(ds)
    batches = loader.to_torch()
    other = rebuilt(batches, batches.batch_sampler)
    for number in range(2):
        assert list(map(numbers, other)) == epoch(loader.plan, number)
    assert loader.epoch == 2


def test_a_wrapper_that_shares_out_steps_keeps_batches(ds):
    class Shard:
        def __init__(self, batch_sampler, index):
            self.batch_sampler, self.index = batch_sampler, index

        def __iter__(self):
            return itertools.islice(self.batch_sampler, self.index, None, 2)

    found = []
    for index in range(2):
        batches = load(ds, rank=0, world_size=1).to_torch()
        found.append(list(map(numbers, rebuilt(batches, Shard(batches.batch_sampler, index)))))
    assert [ids for step in itertools.zip_longest(*found) for ids in step if ids] == epoch(
        load(ds).plan, 0
    )


def test_trainers_see_a_distributed_sampler(ds):
    sampler = load(ds, rank=1, world_size=2).to_torch().sampler
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.rank, sampler.num_replicas) == (1, 2)


def test_another_sampler_may_be_used(ds):
    batches = load(ds).to_torch()
    other = type(batches)(batches.dataset, batch_size=1, collate_fn=batches.collate_fn)
    assert list(map(numbers, other)) == epoch(load(ds).plan, 0)


# States.


def test_the_state_is_that_of_a_loader(ds):
    loader = load(ds)
    batches = loader.to_torch()
    assert len(list(itertools.islice(batches, 5))) == 5
    state = json.loads(json.dumps(batches.state_dict()))
    assert state == loader.state_dict()
    again = load(ds)
    again.load_state_dict(state)
    assert [numbers_of(x) for x, _ in again] == epoch(loader.plan, 0)[5:]


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
    assert [list(map(numbers, other)) for _ in range(2)] == [[], epoch(loader.plan, 1)]
    loader.load_state_dict(state)
    assert [numbers_of(x) for x, _ in loader] == epoch(loader.plan, 1)


def test_a_state_can_be_loaded_again(ds):
    loader = load(ds)
    batches = loader.to_torch()
    assert len(list(itertools.islice(batches, 3))) == 3
    state = batches.state_dict()
    for _ in range(2):
        batches.load_state_dict(state)
        assert batches.state_dict() == state
        next(iter(batches))
        batches.load_state_dict(state)
        assert list(map(numbers, batches)) == epoch(loader.plan, 0)[3:]


def test_set_epoch_keeps_a_position_within_the_epoch(ds):
    loader = load(ds)
    state = {**loader.state_dict(), "batch": 2 * STEPS + 3}
    batches = loader.to_torch()
    for number, first in ((2, 3), (1, 0), (3, 0)):
        batches.load_state_dict(state)
        batches.set_epoch(number)
        assert list(map(numbers, batches)) == epoch(loader.plan, number)[first:]


@pytest.mark.parametrize("mode", ["split", "independent"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (4, 3), (3, 4)])
def test_another_number_of_ranks_resumes(ds, mode, before, after):
    plan = load(ds).plan
    first = load(ds, rank=0, world_size=before, mode=mode).to_torch()
    assert len(list(itertools.islice(first, 3))) == 3
    at = 3 * (before if mode == "independent" else 1)
    state, found = first.state_dict(), []
    for rank in range(after):
        batches = load(ds, rank=rank, world_size=after, mode=mode).to_torch()
        batches.load_state_dict(state)
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
    for _ in loader:
        pass
    expected = [numbers_of(x) for x, _ in loader]
    for new in (lambda: ranked().to_torch(), lambda: PlanBatchSampler(ranked().plan)):
        first, again = new(), new()
        for _ in itertools.islice(first, len(first)):  # the end of the epoch is not requested
            pass
        again.load_state_dict(first.state_dict())
        found = [list(again), list(again)]
        assert found[0] == []
        ids = found[1] if isinstance(again, PlanBatchSampler) else list(map(numbers, found[1]))
        assert ids == expected


def test_invalid_states_are_rejected(ds):
    batches = load(ds).to_torch()
    state = batches.state_dict()
    for wrong, option in (
        ({**state, "drained": 1}, "drained"),
        ({**state, "batch": -1}, "batch"),
        ({}, None),
        (None, None),
        (ds.batches(4, 2, seed=8).state_dict(), "seed"),
    ):
        with pytest.raises(PlanError) as caught:
            batches.load_state_dict(wrong)
        assert caught.value.option == option
    assert list(map(numbers, batches)) == epoch(load(ds).plan, 0)


# Pinned memory. Without an accelerator PyTorch does not pin, and says so.


def test_a_loader_that_pins_memory_gets_all_batches(ds):
    loader = load(ds)
    batches = loader.to_torch(pin_memory=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true but no accelerator")
        assert list(map(numbers, batches)) == epoch(loader.plan, 0)


@pytest.mark.parametrize("kind", ["numbers", "many", "nested", "ragged", "strings"])
def test_all_tensors_of_a_batch_are_found_to_be_pinned(tmp_path, monkeypatch, kind):
    from torch.utils.data._utils.pin_memory import pin_memory

    def tensors(value):
        if isinstance(value, torch.Tensor):
            return [value]
        parts = value.values() if isinstance(value, dict) else value
        return [each for part in parts if not isinstance(part, str) for each in tensors(part)]

    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    batch = next(iter(load(make(tmp_path / kind, kind)).to_torch()))
    found = pin_memory(batch)
    assert {id(each) for each in pinned} == {id(each) for each in tensors(found)} != set()


# Samplers.


class Users(Dataset):
    """A dataset of another program."""

    def __len__(self):
        return COUNT

    def __getitem__(self, number):
        return torch.tensor([number]), int(LABELS[number])


def balanced(**options):
    return BalancedBatchSampler(LABELS, 4, 2, **{"seed": 3, "steps_per_epoch": STEPS, **options})


def test_batches_of_anybodys_dataset_are_exact():
    batches = DataLoader(Users(), batch_sampler=balanced(steps_per_epoch=60))
    assert len(batches) == 60
    for x, y in batches:
        assert set(Counter(y.tolist()).values()) == {2}
        assert len(set(y.tolist())) == 4
        assert len(set(x.flatten().tolist())) == 8


def test_a_dataset_of_covey_is_anybodys_dataset(ds):
    sampler = BalancedBatchSampler(ds.classes, 4, 2, seed=9, steps_per_epoch=STEPS)
    found = list(DataLoader(ds, batch_sampler=sampler))
    assert [numbers_of(each["x"]) for each in found] == epoch(load(ds).plan, 0)
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
def test_labels_of_all_kinds(labels):
    sampler = BalancedBatchSampler(labels, 4, 2, seed=3, steps_per_epoch=STEPS)
    assert list(sampler) == epoch(balanced().plan, 0)


def test_options_are_those_of_the_plan():
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
    with pytest.raises(PlanError, match="only 12 classes"):
        BalancedBatchSampler(LABELS, 13)
    with pytest.raises(PlanError, match="must be below world_size"):
        BalancedBatchSampler(LABELS, 4, rank=2, world_size=2)


@pytest.mark.parametrize("mode", ["split", "independent"])
def test_ranks_have_their_parts(mode):
    ranks = [balanced(rank=rank, world_size=2, mode=mode) for rank in range(2)]
    found = list(zip(*ranks, strict=True))
    plan = balanced().plan
    if mode == "split":
        assert [a + b for a, b in found] == epoch(plan, 0)
    else:
        assert [ids for step in found for ids in step] == plan.batches(0, 2 * STEPS).tolist()


def test_epochs_of_a_sampler_go_on_by_themselves():
    sampler = balanced()
    assert [list(sampler), list(sampler)] == [epoch(sampler.plan, 0), epoch(sampler.plan, 1)]
    iter(sampler)  # which is not used
    next(iter(sampler))  # which is left
    assert list(sampler) == epoch(sampler.plan, 3)
    sampler.set_epoch(1)
    assert list(sampler) == epoch(sampler.plan, 1)


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
        found = [numbers_of(batch["x"]) for batch in batches]
        assert found == [numbers_of(x) for x, _ in loader]


# A caller that has a StatefulDataLoader goes on exactly: of batches, of samplers, in any epoch.


def m_per_class(batch_size=8):
    return MPerClassSampler(LABELS, 2, batch_size, 60, seed=3)


def stateful(batches, **options):
    return StatefulDataLoader(batches.dataset, sampler=batches.sampler, batch_size=None, **options)


STATEFUL = {
    "batches": lambda ds: stateful(load(ds).to_torch()),
    "epochs that end": lambda ds: stateful(ds.shuffled(50, seed=4).to_torch()),
    "sampler": lambda ds: StatefulDataLoader(ds, batch_sampler=balanced()),
    "m per class": lambda ds: StatefulDataLoader(ds, sampler=m_per_class(), batch_size=8),
    "other batches": lambda ds: StatefulDataLoader(ds, sampler=m_per_class(), batch_size=5),
}


def any_numbers(batch):
    return numbers_of((batch["x"] if isinstance(batch, dict) else batch[0]).numpy())


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_stateful_loader_goes_on_exactly(ds, kind):
    make = partial(STATEFUL[kind], ds)
    complete = make()
    expected = [list(map(any_numbers, complete)) for _ in range(5)]
    steps = len(expected[0])
    for before, stop in itertools.product(range(2), range(steps + 1)):
        loader = make()
        for _ in range(before):
            list(loader)
        found = list(map(any_numbers, itertools.islice(loader, stop)))
        again = make()
        again.load_state_dict(loader.state_dict())
        # Behind the last batch, an epoch still has its end.
        assert found + list(map(any_numbers, again)) == expected[before]
        assert [list(map(any_numbers, again)) for _ in range(2)] == expected[
            before + 1 : before + 3
        ]


@pytest.mark.parametrize("kind", STATEFUL)
def test_a_stateful_loader_goes_on_behind_the_end_of_an_epoch(ds, kind):
    loader, again = STATEFUL[kind](ds), STATEFUL[kind](ds)
    for _ in loader:
        pass
    again.load_state_dict(loader.state_dict())
    for _ in range(2):
        assert list(map(any_numbers, again)) == list(map(any_numbers, loader))


# The place of MPerClassSampler.


def original(*args):
    # Imported here, as processes that only want what is above need not wait for it.
    from pytorch_metric_learning.samplers import MPerClassSampler as Original

    return Original(*args)


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_size", [None, 4, 6, 8, 12, 24, 48, 96])
@pytest.mark.parametrize("length", [1, 5, 24, 50, 100, 1000])
def test_lengths_and_errors_are_those_of_the_original(m, batch_size, length):
    try:
        expected = original(LABELS, m, batch_size, length)
    except AssertionError:
        with pytest.raises(AssertionError) as caught:
            MPerClassSampler(LABELS, m, batch_size, length)
        assert isinstance(caught.value, MPerClassError)
        assert isinstance(caught.value, PlanError)
        return
    found = MPerClassSampler(LABELS, m, batch_size, length)
    assert len(found) == len(expected) == len(list(found))
    for name in ("m_per_class", "batch_size", "length_of_single_pass", "list_size"):
        assert getattr(found, name) == getattr(expected, name)
    assert sorted(found.labels) == sorted(expected.labels)


def check_m_per_class(sampler, labels, m, batch_size):
    """What the original promises; and that a small class shows all that it has."""
    ids = list(sampler)
    for batch in np.array(ids).reshape(-1, batch_size):
        groups = Counter(labels[batch].tolist())
        assert set(groups.values()) == {m}
        for label in groups:
            there = int((labels == label).sum())
            drawn = set(batch[labels[batch] == label].tolist())
            assert len(drawn) == min(m, there)


@pytest.mark.parametrize(("m", "batch_size"), [(2, 8), (4, 16), (3, 36), (5, None)])
def test_it_draws_what_the_original_promises(m, batch_size):
    for kind in (original, MPerClassSampler):
        check_m_per_class(kind(LABELS, m, batch_size, 600), LABELS, m, batch_size or 12 * m)


def test_it_is_fair():
    counts = Counter(MPerClassSampler(LABELS[:50], 2, 4, 10_000))
    for label in set(LABELS[:50].tolist()):
        of_class = [counts[n] for n in np.flatnonzero(LABELS[:50] == label)]
        assert max(of_class) - min(of_class) <= 2


def test_small_classes_are_repeated_and_told():
    labels = np.array([0, 0, 0, 0, 1, 2, 2, 2])
    with pytest.warns(SmallClassesWarning, match="2 classes have fewer than 4"):
        sampler = MPerClassSampler(labels, 4, 8, 800)
    check_m_per_class(sampler, labels, 4, 8)


def test_each_iteration_gives_others_and_the_seed_tells_which():
    sampler = m_per_class()
    ids = flat(sampler.batches.plan.batches(0, 3 * STEPS).tolist())
    first, second = list(sampler), list(sampler)
    assert (first, second) == (ids[:56], ids[56:112])
    assert list(m_per_class()) == first
    assert list(MPerClassSampler(LABELS, 2, 8, 60, seed=4)) != first
    sampler.set_epoch(1)
    assert list(sampler) == second
    next(iter(sampler))
    sampler.set_epoch(0)
    other = m_per_class()
    other.load_state_dict(sampler.state_dict())
    assert [list(sampler), list(other)] == [first, first]


@pytest.mark.parametrize("stop", range(0, 57, 3))
def test_the_state_of_examples_is_exact(stop):
    sampler = m_per_class()
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(0)
    assert list(itertools.islice(sampler, stop)) == first[:stop]
    state = json.loads(json.dumps(sampler.state_dict()))
    for number in (None, 0):
        other = m_per_class()
        other.load_state_dict(state)
        assert other.state_dict() == state
        if number is not None:
            other.set_epoch(number)
        assert list(other) == first[stop:]
        assert list(other) == second
    other.load_state_dict(state)
    other.set_epoch(1)
    assert list(other) == second


def test_labels_may_be_anything_that_the_original_takes():
    halves, texts = LABELS / 2, [f"{label:02}" for label in LABELS]
    for labels in (torch.tensor(halves), halves.tolist(), texts, np.array(texts)):
        assert list(MPerClassSampler(labels, 2, 8, 60, seed=3)) == list(m_per_class())


def test_what_cannot_be_drawn_is_refused():
    for wrong in ({"m": 0}, {"labels": []}, {"length_before_new_iter": 0}):
        with pytest.raises(PlanError):
            MPerClassSampler(**{"labels": LABELS, "m": 2, **wrong})
    sampler = m_per_class()
    for skip in (-1, 8, 1.0, "1"):
        with pytest.raises(PlanError, match="skip is"):
            sampler.load_state_dict({**sampler.state_dict(), "skip": skip})


def test_ranks_of_an_m_per_class_sampler_have_batches_of_their_own():
    labels = [number % 6 for number in range(60)]
    samplers = [
        MPerClassSampler(labels, 2, 8, 80, seed=3, rank=rank, world_size=2) for rank in range(2)
    ]
    plan = BalancedPlan(labels, 4, 2, 3, steps_per_epoch=10)
    given = [np.reshape(list(sampler), (10, 8)) for sampler in samplers]
    together = np.stack(given, 1).reshape(20, 8)
    assert np.array_equal(together, plan.batches(0, 20))


def test_a_rank_goes_on_in_the_midst_of_a_batch():
    labels = [number % 6 for number in range(60)]
    options = {"m": 2, "batch_size": 8, "length_before_new_iter": 80, "rank": 1, "world_size": 2}
    complete = list(MPerClassSampler(labels, **options))
    sampler = MPerClassSampler(labels, **options)
    drawn = iter(sampler)
    begun = [next(drawn) for _ in range(19)]
    again = MPerClassSampler(labels, **options)
    again.load_state_dict(sampler.state_dict())
    assert [*begun, *again] == complete


def test_ranks_are_those_of_torch_distributed(ds, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    loader = load(ds, mode="independent")
    batches = loader.to_torch()
    assert (loader.plan.rank, loader.plan.world_size) == (1, 2)
    assert numbers(next(iter(batches))) == load(ds).plan.batch(1).tolist()
    alone = load(ds, rank=0, world_size=1)
    alone.to_torch()
    assert alone.plan.world_size == 1
    assert MPerClassSampler([0, 0, 1, 1], 2, 4).batches.plan.rank == 1


def test_what_a_worker_sends_arrives_as_a_tensor_of_its_own():
    array = np.arange(6).reshape(2, 3)
    arrived = pickle.loads(pickle.dumps(send(array)))
    assert torch.equal(arrived, torch.arange(6).reshape(2, 3))
    arrived += 1
    assert array[0, 0] == 0


@pytest.mark.parametrize("value", [np.zeros(2**21, np.uint8), np.array(["a"]), "text"])
def test_what_is_large_or_no_tensor_is_sent_as_it_is(value):
    assert type(send(value)) is type(tensor(value))
