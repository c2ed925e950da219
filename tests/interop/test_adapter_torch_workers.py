"""PyTorch with several processes: workers that are forked or spawned, and ranks.

The tests run in processes without the threads of frameworks, so that they may fork.
"""

import itertools
import os
import threading
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest
import torch
import torch.distributed
from loaded import LABELS, digest, make, make_numbers, numbers_of
from opened import opened
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch_data import STEPS, Users, balanced, epoch, flat, load, m_per_class, read, stateful
from torchdata.stateful_dataloader import StatefulDataLoader
from written import fresh_process

from covey.adapters.torch import BalancedBatchSampler, MPerClassSampler
from covey.errors import PlanError


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("torch")
    make_numbers(directory / "numbers")
    return directory


@pytest.fixture(scope="module")
def run():
    """Run functions in another process, in which warnings are errors."""
    with fresh_process() as run:
        yield partial(run, strictly)


def strictly(action, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # by torchdata
        warnings.filterwarnings("ignore", "This DataLoader will create")  # on few cores
        warnings.filterwarnings("ignore", "num_workers=")  # without a hook
        return action(*args)


def workers(count, persistent=False, start="fork"):
    """Return the options of a DataLoader."""
    if count == 0:
        return {}
    return {
        "num_workers": count,
        "persistent_workers": persistent,
        "multiprocessing_context": start,
        "timeout": 60,
    }


def load_numbers(directory, **options):
    return load(opened(directory / "numbers"), **options)


# Batches and epochs.


def iterate(directory, device, options):
    loader = load_numbers(directory)
    batches = loader.to_torch(device=device, **options)
    found = [read(batches), read(batches)]
    next(iter(batches))  # is abandoned
    found.append(read(batches))
    for number in (0, 7):
        batches.set_epoch(number)
        found.append(read(batches))
    for _ in range(2):  # the same seed of PyTorch
        torch.manual_seed(0)
        found.append(read(batches))
    batches.load_state_dict({**loader.state_dict(), "batch": STEPS + 2})
    found += [read(batches), read(batches)]
    pairs = list(zip(batches, batches, strict=True)) if not batches.persistent_workers else []
    found += map(read, zip(*pairs, strict=True))
    expected = [epoch(loader.plan, number) for number in (0, 1, 3, 0, 7, 8, 9, 1, 2, 3, 4)]
    expected[7] = expected[7][2:]
    assert found == expected[: len(found)]
    assert len(batches) == STEPS
    again = load_numbers(directory)
    resumed = again.to_torch(**workers(2))
    for step, _ in enumerate(batches, 1):  # whatever workers have built
        assert batches.state_dict()["batch"] % STEPS == loader.step % STEPS == step % STEPS
        if step == 3:
            resumed.load_state_dict(batches.state_dict())
            assert read(resumed) == epoch(loader.plan, loader.epoch)[3:]


@pytest.mark.parametrize(
    ("device", "options"),
    [("cpu", workers(1)), (None, workers(3, True)), ("cpu", workers(2, True, "spawn"))],
    ids=["forked", "persistent", "spawned"],
)
def test_workers_return_the_batches_of_the_plan_in_order(directory, run, device, options):
    run(iterate, directory, device, options)


def iterate_finite_epochs(directory):
    ds = opened(directory / "numbers")
    for options in ({}, {"rank": 0, "world_size": 3, "mode": "independent"},
                    {"rank": 1, "world_size": 3}):  # fmt: skip
        loader = ds.shuffled(50, seed=4, **options)
        batches = ds.shuffled(50, seed=4, **options).to_torch(**workers(2))
        for _ in range(2):
            assert read(batches) == [numbers_of(x) for x, _ in loader]
    few = ds.sequential(100)  # fewer batches than workers
    assert read(few.to_torch(**workers(3))) == [list(range(100)), list(range(100, 180))]


def test_finite_epochs(directory, run):
    run(iterate_finite_epochs, directory)


def as_arrays(value):
    if isinstance(value, dict):
        return {name: as_arrays(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_arrays(each) for each in value]
    return value.numpy() if isinstance(value, torch.Tensor) else value


def iterate_kinds(directory):
    for kind in ("many", "ragged", "strings", "gzip", "where"):
        ds = make(directory / kind, kind)
        padding = [{"pad": 0}, {"pad": -1, "pad_length": 9}] if kind == "ragged" else []
        for options in ({}, *padding):
            expected = [digest(as_arrays(batch)) for batch in load(ds, **options).to_torch()]
            found = load(ds, **options).to_torch(**workers(2))
            assert [digest(as_arrays(batch)) for batch in found] == expected, kind


def test_datasets_of_all_kinds(tmp_path, run):
    run(iterate_kinds, tmp_path)


def count_threads(x, y):
    names = [thread.name for thread in threading.enumerate()]
    return x, y, np.array([os.getpid(), sum(name.startswith("covey") for name in names)])


def iterate_counting(directory):
    loader = load_numbers(directory, batch_transform=count_threads, threads=2)
    found = [counts.tolist() for *_, counts in loader.to_torch(**workers(2))]
    assert {threads for _, threads in found} == {0}
    processes = [process for process, _ in found]
    assert processes == (processes[:2] * STEPS)[:STEPS]
    assert len(set(processes)) == 2


def test_workers_take_turns_and_start_no_threads(directory, run):
    run(iterate_counting, directory)


# States.


def new_stateful(directory, kind, **options):
    if kind == "batches":
        return stateful(load_numbers(directory).to_torch(), **options)
    if kind == "m per class":
        return StatefulDataLoader(Users(), sampler=m_per_class(), batch_size=5, **options)
    return StatefulDataLoader(Users(), batch_sampler=balanced(), **options)


def resume(directory, kind, persistent, every, stops):
    options = {**workers(2, persistent), "snapshot_every_n_steps": every}
    new = partial(new_stateful, directory, kind, **options)
    complete = new_stateful(directory, kind)
    expected = [read(complete) for _ in range(4)]
    for before, stop in stops:
        loader = new()
        for _ in range(before):
            read(loader)
        found = read(itertools.islice(loader, stop))
        other = new()
        other.load_state_dict(loader.state_dict())
        del loader
        if stop is not None:  # otherwise the end of the epoch was requested
            assert found + read(other) == expected[before]
        assert read(other) == expected[before + 1]


@pytest.mark.parametrize("kind", ["batches", "sampler", "m per class"])
def test_resume_with_a_stateful_dataloader(directory, run, kind):
    run(resume, directory, kind, False, 1, [(1, 4), (0, None)])
    run(resume, directory, kind, True, 3, [(0, 0), (0, 4), (0, STEPS)])


def change_weights(directory, persistent):
    loader = load_numbers(directory)
    batches = loader.to_torch(**workers(2, persistent))
    found = [read(batches)]
    loader.set_class_weights({1: 9.0})
    found += [read(batches), read(batches)]
    plan = load_numbers(directory).plan
    weighted = plan.reweighted({1: 9.0}, batch=STEPS)
    assert found == [epoch(plan, 0), epoch(weighted, 1), epoch(weighted, 2)]
    assert found[1] != epoch(plan, 1)
    again = load_numbers(directory).to_torch(**workers(2, persistent))
    again.load_state_dict(batches.state_dict())
    assert read(again) == epoch(weighted, 3)
    assert again.state_dict()["batch"] == 4 * STEPS
    with pytest.raises(PlanError, match="between epochs"):
        for _ in batches:
            loader.set_class_weights(None)
    assert loader.step == 3 * STEPS + 1


@pytest.mark.parametrize("persistent", [False, True])
def test_class_weights_change_between_epochs(directory, run, persistent):
    run(change_weights, directory, persistent)


# Errors and forks.


def fail_at_95(x, y):
    if 95 in numbers_of(x):
        raise ValueError("that is 95")
    return x, y


def fail(directory):
    loader = opened(directory / "numbers").sequential(10, batch_transform=fail_at_95)
    batches = iter(loader.to_torch(**workers(2)))
    found = read(itertools.islice(batches, 9))
    assert loader.step == 9
    with pytest.raises(ValueError, match="that is 95") as caught:
        next(batches)
    # The traceback refers to the iterator, whose workers would not be stopped.
    traceback.clear_frames(caught.tb)
    del caught
    assert (loader.step, read(batches)) == (9, [])
    loader.seek(10)
    found += read(loader.to_torch(**workers(2)))
    assert [ids[0] for ids in found] == [*range(0, 90, 10), *range(100, 180, 10)]


def test_an_error_of_a_hook_ends_the_iteration(directory, run):
    run(fail, directory)


def fork(directory):
    loader = load_numbers(directory)
    batches = loader.to_torch()
    next(iter(batches))  # is abandoned
    context = get_context("fork")
    results = context.Queue()
    process = context.Process(
        target=lambda: results.put([read(batches), read(loader.to_torch(**workers(2)))])
    )
    process.start()
    assert results.get(timeout=60) == [epoch(loader.plan, 1), epoch(loader.plan, 2)]
    process.join()
    assert read(batches) == epoch(loader.plan, 1)


def test_a_forked_process_has_its_own_position(directory, run):
    run(fork, directory)


# Samplers for other datasets.


def sample(directory, persistent):
    ds = opened(directory / "numbers")
    sampler = balanced(seed=9)
    plan = sampler.plan
    users = DataLoader(Users(), batch_sampler=sampler, **workers(2, persistent))
    assert [read(users) for _ in range(2)] == [epoch(plan, 0), epoch(plan, 1)]
    next(iter(users))  # is abandoned
    assert read(users) == epoch(plan, 3)
    sampler.set_epoch(0)
    assert read(users) == epoch(plan, 0)
    own = BalancedBatchSampler(ds.classes, 4, 2, seed=9, steps_per_epoch=STEPS)
    assert read(DataLoader(ds, batch_sampler=own, **workers(2))) == epoch(plan, 0)
    examples = m_per_class()
    each = DataLoader(Users(), sampler=examples, batch_size=8, **workers(2))
    assert [read(each) for _ in range(2)] == [epoch(examples.plan, n) for n in range(2)]


@pytest.mark.parametrize("persistent", [False, True])
def test_samplers(directory, run, persistent):
    run(sample, directory, persistent)


# Ranks.


def gathered(value):
    parts = [None, None]
    torch.distributed.all_gather_object(parts, value)
    return parts


def train(model, batches):
    """Train two steps, and return the parameters."""
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


def train_with_lightning(ds, directory):
    from trainers import Recorder, new_trainer

    model = Recorder()
    trainer = new_trainer(directory, max_epochs=2, devices=2, strategy="ddp")
    trainer.fit(model, load(ds).to_torch())
    return [gathered(ids) for ids in model.seen]


def iterate_with_accelerate(ds):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    found = [gathered(ids) for ids in read(accelerator.prepare(load(ds).to_torch()))]
    users = DataLoader(Users(), batch_sampler=balanced(seed=9))
    assert [gathered(ids) for ids in read(accelerator.prepare(users))] == found
    return found


def act_as(rank, directory, rendezvous):
    """Return the batches of a rank, as a process that torchrun started."""
    os.environ.update(
        {
            "TORCHELASTIC_RUN_ID": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "1",
        }
    )
    warnings.simplefilter("ignore")  # of Lightning
    ds = opened(directory / "numbers")
    early = {
        # The number of workers may differ between ranks.
        mode: load(ds, mode=mode).to_torch(**workers(2 * rank, start="fork"))
        for mode in ("split", "independent")
    }
    assert early["split"].sampler.num_replicas == 1
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2
    )
    found = {}
    for mode, batches in early.items():
        assert len(batches) == STEPS
        assert (batches.sampler.rank, batches.sampler.num_replicas) == (rank, 2)
        found[mode] = [gathered(ids) for ids in read(batches)]
        assert [gathered(ids) for ids in read(load(ds, mode=mode).to_torch())] == found[mode]
        users = DataLoader(Users(), batch_sampler=balanced(seed=9, mode=mode))
        assert [gathered(ids) for ids in read(users)] == found[mode]
    assert read(load(ds, rank=0, world_size=1).to_torch()) == epoch(load(ds).plan, 0)
    assert MPerClassSampler([0, 0, 1, 1], 2, 4).plan.rank == rank
    found["model"] = train(DistributedDataParallel(new_model()), load(ds).to_torch())
    found["lightning"] = train_with_lightning(ds, directory)
    found["accelerate"] = iterate_with_accelerate(ds)
    torch.distributed.destroy_process_group()
    return found


def test_two_ranks(directory, tmp_path):
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        ranks = [pool.submit(act_as, n, directory, tmp_path / "rendezvous") for n in range(2)]
        found, other = [each.result(240) for each in ranks]
    assert found == other
    loader = load_numbers(directory)
    plan = loader.plan
    assert list(map(flat, found["split"])) == epoch(plan, 0)
    for parts in found["split"]:
        assert [len(set(LABELS[ids].tolist())) for ids in parts] == [2, 2]
    assert flat(found["independent"]) == plan.batches(0, 2 * STEPS).tolist()
    assert list(map(flat, found["lightning"])) == epoch(plan, 0) + epoch(plan, 1)
    # accelerate gives complete batches to the ranks in turn, and fills the last step.
    assert flat(found["accelerate"]) == [*epoch(plan, 0), plan.batch(0).tolist()]
    # Two halves of a batch train like the complete batch.
    for ours, alone in zip(found["model"], train(new_model(), loader.to_torch()), strict=True):
        assert np.allclose(ours, alone, atol=1e-5)
