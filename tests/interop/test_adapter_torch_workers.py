"""PyTorch with several processes: workers that are forked or spawned, and ranks.

All of it runs in processes without the threads of frameworks, which may fork.
"""

import itertools
import os
import threading
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest
import torch
import torch.distributed
from loaded import LABELS, digest, make, make_numbers, numbers_of
from opened import opened
from test_adapter_torch import (
    STEPS,
    Users,
    any_numbers,
    balanced,
    epoch,
    flat,
    load,
    m_per_class,
)
from test_adapter_torch import stateful as as_stateful
from test_adapters import HOOKS
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from written import fresh_process

from covey.adapters.torch import BalancedBatchSampler
from covey.errors import PlanError

WORKERS = [(1, False), (2, False), (2, True), (3, True)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("torch")
    make_numbers(directory / "numbers")
    return directory


@pytest.fixture(scope="module")
def run():
    """Runs a function in another process, where warnings are errors as they are here."""
    with fresh_process() as run:
        yield partial(run, strictly)


def strictly(action, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # which torchdata uses
        warnings.filterwarnings("ignore", "This DataLoader will create")  # for these few cores
        return action(*args)


def working(workers, persistent=False, start="fork"):
    """Options of a DataLoader."""
    if workers == 0:
        return {}
    return {
        "num_workers": workers,
        "persistent_workers": persistent,
        "multiprocessing_context": start,
        "timeout": 60,
    }


def loop(loader, *options):
    return loader.to_torch(**working(*options))


def read(batches):
    return list(map(any_numbers, batches))


# Forked workers.


def iterate(directory, workers, persistent):
    loader = load(opened(directory / "numbers"))
    batches = loop(loader, workers, persistent)
    found = [read(batches) for _ in range(3)]
    next(iter(batches))
    found.append(read(batches))
    for number in (0, 7):
        batches.set_epoch(number)
        found.append(read(batches))
    for _ in range(2):  # the same seeds of PyTorch
        torch.manual_seed(0)
        found.append(read(batches))
    state = batches.state_dict()
    batches.load_state_dict({**loader.state_dict(), "batch": STEPS + 2})
    found += [read(batches), read(batches)]
    batches.load_state_dict(state)
    found.append(read(batches))
    expected = [epoch(loader.plan, number) for number in (0, 1, 2, 4, 0, 7, 8, 9, 1, 2, 10)]
    expected[8] = expected[8][2:]
    assert found == expected
    assert len(batches) == STEPS


@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
def test_workers_give_the_batches_of_the_plan_in_order(directory, run, workers, persistent):
    run(iterate, directory, workers, persistent)


def iterate_epochs_that_end(directory):
    ds = opened(directory / "numbers")
    for options in (
        {},
        {"rank": 0, "world_size": 3, "mode": "independent"},
        {"rank": 1, "world_size": 3},
    ):
        loader = ds.shuffled(50, seed=4, **options)
        batches = loop(ds.shuffled(50, seed=4, **options), 2)
        for _ in range(2):
            assert read(batches) == [numbers_of(x) for x, _ in loader]
    few = ds.sequential(100)  # fewer batches than workers
    assert read(loop(few, 3)) == [list(range(100)), list(range(100, 180))]


def test_workers_of_epochs_that_end(directory, run):
    run(iterate_epochs_that_end, directory)


def mix_loops(directory):
    """Concurrent iterations, a loader that is moved, and other numbers of workers."""
    loader = load(opened(directory / "numbers"))
    pairs = list(zip(loop(loader, 2), loop(loader, 2), strict=True))
    found = sorted([any_numbers(batch) for batch in part] for part in zip(*pairs, strict=True))
    assert found == sorted(epoch(loader.plan, number) for number in (0, 1))
    loader.seek(2 * STEPS + 3)
    assert read(loop(loader, 2)) == epoch(loader.plan, 2)[3:]
    assert read(loop(loader, 0)) == epoch(loader.plan, 3)
    assert [numbers_of(x) for x, _ in loader] == epoch(loader.plan, 4)
    assert read(loop(loader, 3)) == epoch(loader.plan, 5)


def test_loops_of_all_kinds_over_one_loader(directory, run):
    run(mix_loops, directory)


def iterate_kind(directory, kind):
    ds = make(directory, kind)
    expected = [digest(as_arrays(batch)) for batch in load(ds).to_torch()]
    assert [digest(as_arrays(batch)) for batch in loop(load(ds), 2)] == expected


def as_arrays(value):
    if isinstance(value, dict):
        return {name: as_arrays(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_arrays(each) for each in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("kind", ["many", "ragged", "strings", "gzip", "where"])
def test_workers_of_datasets_of_all_kinds(tmp_path, run, kind):
    run(iterate_kind, tmp_path / kind, kind)


def count_threads(x, y):
    names = [thread.name for thread in threading.enumerate()]
    return x, y, np.array([os.getpid(), sum(name.startswith("covey") for name in names)])


def iterate_counting(directory):
    loader = load(opened(directory / "numbers"), batch_transform=count_threads, threads=2)
    found = [told.tolist() for *_, told in loop(loader, 2)]
    assert {threads for _, threads in found} == {0}
    processes = [process for process, _ in found]
    assert processes == (processes[:2] * STEPS)[:STEPS]
    assert len(set(processes)) == 2


def test_workers_take_turns_and_have_no_threads(directory, run):
    run(iterate_counting, directory)


# States.


def stateful(directory, kind, workers, persistent, every):
    ds = opened(directory / "numbers")
    options = {**working(workers, persistent), "snapshot_every_n_steps": every}
    if kind == "batches":
        return as_stateful(load(ds).to_torch(), **options)
    if kind == "m per class":
        return StatefulDataLoader(Users(), sampler=m_per_class(), batch_size=5, **options)
    return StatefulDataLoader(Users(), batch_sampler=balanced(), **options)


def go_on(directory, kind, workers, persistent, every, stops):
    again = partial(stateful, directory, kind, workers, persistent, every)
    complete = again()
    expected = [read(complete) for _ in range(4)]
    for before, stop in stops:
        loader = again()
        for _ in range(before):
            read(loader)
        found = read(itertools.islice(loader, stop))  # behind the end, if there is no stop
        other = again()
        other.load_state_dict(loader.state_dict())
        del loader
        if stop is not None:
            assert found + read(other) == expected[before]
        assert [read(other), read(other)] == expected[before + 1 : before + 3]


@pytest.mark.parametrize("kind", ["batches", "sampler", "m per class"])
def test_a_stateful_loader_with_workers_goes_on_exactly(directory, run, kind):
    run(go_on, directory, kind, 2, False, 1, [(0, 3), (1, 4), (0, None)])
    run(go_on, directory, kind, 2, True, 1, [(0, 0), (1, 2), (0, STEPS), (1, None)])
    run(go_on, directory, kind, 2, True, 3, [(0, 1), (0, 4), (0, None)])


def count_what_is_returned(directory, persistent):
    """The state of a DataLoader does not count what its workers have prefetched."""
    for stop in (1, 3, STEPS):
        loader = load(opened(directory / "numbers"))
        batches = loop(loader, 2, persistent)
        iterator = iter(batches)
        for step in range(stop):
            next(iterator)
            assert batches.state_dict()["batch"] == loader.state_dict()["batch"] == step + 1
        again = load(opened(directory / "numbers"))
        resumed = loop(again, 2)
        resumed.load_state_dict(batches.state_dict())
        assert read(resumed) == epoch(loader.plan, 0)[stop:]
        assert read(resumed) == epoch(loader.plan, 1)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_state_counts_batches_that_were_returned(directory, run, persistent):
    run(count_what_is_returned, directory, persistent)


# Class weights and hooks.


def change_weights(directory, persistent):
    loader = load(opened(directory / "numbers"))
    batches = loop(loader, 2, persistent)
    found = [read(batches)]
    loader.set_class_weights({1: 9.0})
    found += [read(batches), read(batches)]
    plan = load(opened(directory / "numbers")).plan
    weighted = plan.reweighted({1: 9.0}, batch=STEPS)
    assert found == [epoch(plan, 0), epoch(weighted, 1), epoch(weighted, 2)]
    assert found[1] != epoch(plan, 1)
    again = loop(load(opened(directory / "numbers")), 2, persistent)
    again.load_state_dict(batches.state_dict())
    assert read(again) == epoch(weighted, 3)
    with pytest.raises(PlanError, match="between epochs"):
        for _ in batches:
            loader.set_class_weights(None)


@pytest.mark.parametrize("persistent", [False, True])
def test_class_weights_change_between_epochs(directory, run, persistent):
    run(change_weights, directory, persistent)


def call_hooks(directory):
    ds = opened(directory / "numbers")
    expected = [digest(batch) for batch in load(ds, threads=0, **HOOKS)]
    for workers in (0, 2):
        found = loop(load(ds, **HOOKS), workers)
        assert [digest(tuple(as_arrays(batch))) for batch in found] == expected


def test_seeded_hooks_give_the_same_batches_in_workers(directory, run):
    run(call_hooks, directory)


# Errors.


def told(batches):
    """The message of the error of the next batch."""
    try:
        return f"nothing, {next(batches)}"
    except (PlanError, ValueError) as error:
        # The traceback refers to the iterator, whose workers would not be stopped.
        traceback.clear_frames(error.__traceback__)
        return str(error)


def fail_at_95(x, y):
    if 95 in numbers_of(x):
        raise ValueError("that is 95")
    return x, y


def fail_in_a_batch(directory):
    loader = opened(directory / "numbers").sequential(10, batch_transform=fail_at_95)
    batches = iter(loop(loader, 2))
    found = read(itertools.islice(batches, 9))
    assert "that is 95" in told(batches)
    found += read(batches)
    assert [ids[0] for ids in found] == [*range(0, 90, 10), *range(100, 180, 10)]


def test_a_batch_that_fails_is_told_and_others_are_in_their_places(directory, run):
    run(fail_in_a_batch, directory)


@contextmanager
def child(action, *args):
    """A forked process that is not a worker of a DataLoader."""
    context = get_context("fork")
    answers = context.Queue()
    process = context.Process(target=lambda: answers.put(action(*args)))
    process.start()
    yield answers.get(timeout=60)
    process.join()


def fork_elsewhere(directory):
    loader = load(opened(directory / "numbers"))
    batches = loop(loader, 0)
    next(iter(batches))

    with child(lambda: [read(batches), read(loop(loader, 2))]) as found:
        assert found == [epoch(loader.plan, 1), epoch(loader.plan, 2)]
    assert read(batches) == epoch(loader.plan, 1)


def test_a_forked_child_has_a_position_of_its_own(directory, run):
    run(fork_elsewhere, directory)


# Datasets of others.


def sample(directory, workers, persistent):
    ds = opened(directory / "numbers")
    sampler = balanced(seed=9)
    plan = sampler.plan
    users = DataLoader(Users(), batch_sampler=sampler, **working(workers, persistent))
    assert [read(users) for _ in range(2)] == [epoch(plan, 0), epoch(plan, 1)]
    next(iter(users))
    assert read(users) == epoch(plan, 3)
    sampler.set_epoch(0)
    assert read(users) == epoch(plan, 0)
    own = BalancedBatchSampler(ds.classes, 4, 2, seed=9, steps_per_epoch=STEPS)
    assert read(DataLoader(ds, batch_sampler=own, **working(workers))) == epoch(plan, 0)
    examples = m_per_class()
    each = DataLoader(Users(), sampler=examples, batch_size=8, **working(workers))
    assert [read(each) for _ in range(2)] == [epoch(examples.batches.plan, n) for n in range(2)]


@pytest.mark.parametrize(("workers", "persistent"), [(2, False), (2, True)])
def test_samplers_with_workers(directory, run, workers, persistent):
    run(sample, directory, workers, persistent)


# Spawned workers: what persists, and then what does not.


def spawn(directory):
    loader = load(opened(directory / "numbers"))
    persistent = loop(loader, 2, True, "spawn")
    assert [read(persistent), read(persistent)] == [epoch(loader.plan, n) for n in (0, 1)]
    del persistent
    assert read(loop(loader, 2, False, "spawn")) == epoch(loader.plan, 2)
    assert read(loop(loader, 2)) == epoch(loader.plan, 3)


def test_spawned_workers_give_the_batches_of_the_plan_in_order(directory, run):
    run(spawn, directory)


# Ranks.


def gathered(value):
    parts = [None, None]
    torch.distributed.all_gather_object(parts, value)
    return parts


def train(model, batches):
    """Two steps with the mean of what the model makes of a batch."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in itertools.islice(batches, 2):
        loss = (model(x.flatten(1) / 100).sum(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [each.tolist() for each in model.parameters()]


def new_model():
    torch.manual_seed(5)
    return torch.nn.Linear(6, 3)


def act_as(rank, directory, meeting):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
    )
    ds = opened(directory / "numbers")
    found = {}
    for mode in ("split", "independent"):
        loader = load(ds, mode=mode)  # rank and world size are those of torch.distributed
        # The number of workers may differ between ranks.
        found[mode] = [gathered(ids) for ids in read(loop(loader, 2 * rank))]
        sampler = balanced(seed=9, mode=mode)
        users = DataLoader(Users(), batch_sampler=sampler)
        assert [gathered(ids) for ids in read(users)] == found[mode]
    model = DistributedDataParallel(new_model())
    trained = train(model, load(ds).to_torch())
    torch.distributed.destroy_process_group()
    return found, trained


def test_two_ranks_have_the_batches_of_the_plan_together(directory, tmp_path):
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        ranks = [pool.submit(act_as, n, directory, tmp_path / "meeting") for n in range(2)]
        (first, trained), (second, trained_too) = [each.result(120) for each in ranks]
    loader = load(opened(directory / "numbers"))
    assert first == second
    assert list(map(flat, first["split"])) == epoch(loader.plan, 0)
    for parts in first["split"]:
        classes = [set(LABELS[ids].tolist()) for ids in parts]
        assert [len(each) for each in classes] == [2, 2]
    assert flat(first["independent"]) == loader.plan.batches(0, 2 * STEPS).tolist()
    # Both halves of a batch together teach what the whole of it does.
    alone = train(new_model(), loader.to_torch())
    assert trained == trained_too
    for a, b in zip(trained, alone, strict=True):
        assert np.allclose(a, b, atol=1e-5)
