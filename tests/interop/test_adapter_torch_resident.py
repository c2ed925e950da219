"""PyTorch batches that are gathered from a split on the device."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from loaded import COUNT, LABELS
from opened import opened
from torch_data import STEPS, epoch, load, read
from written import write

from covey.adapters.torch import BatchDataLoader, ResidentDataLoader
from covey.adapters.torch.resident import _BLOCK_STEPS
from covey.errors import PlanError
from covey.plan import BalancedPlan


def resident(loader, **options):
    batches = loader.to_torch(device="cpu", resident=True, **options)
    assert isinstance(batches, BatchDataLoader)
    return batches


def same(found, expected):
    """Return whether two nested batches of tensors have the same values."""
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[k], expected[k]) for k in expected)
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found.dtype == expected.dtype and torch.equal(found, expected)


PLANS = {
    "balanced": lambda ds, **options: load(ds, **options),
    "many steps": lambda ds, **options: load(ds, steps_per_epoch=2 * _BLOCK_STEPS + 3, **options),
    "some classes": lambda ds, **options: load(ds, class_list=[1, 2, 3, 5, 7, 8], **options),
    "few examples": lambda ds, **options: load(ds, total_examples_per_class=3, **options),
    "shuffled": lambda ds, **options: ds.shuffled(50, seed=4, **options),
    "one batch": lambda ds, **options: ds.shuffled(COUNT, seed=4, **options),
    "fill": lambda ds, **options: ds.shuffled(50, seed=4, remainder="fill", **options),
    "sequential": lambda ds, **options: ds.sequential(7, **options),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("mode", [None, "split", "independent"])
def test_batches_of_all_plans(ds, plan, mode):
    for rank in range(1 if mode is None else 3):
        ranks = {} if mode is None else {"rank": rank, "world_size": 3, "mode": mode}
        plain, found = PLANS[plan](ds, **ranks), resident(PLANS[plan](ds, **ranks))
        expected = plain.to_torch()
        assert len(found) == len(expected)
        for _ in range(2):
            assert all(same(*pair) for pair in zip(found, expected, strict=True))
        assert found.state_dict() == expected.state_dict()


@pytest.mark.parametrize("kind", ["many", "nested", "nested alone", "gzip", "where"])
@pytest.mark.parametrize("as_dict", [False, True])
def test_datasets_of_all_kinds(made, kind, as_dict):
    loader, other = (made(kind).batches(3, 2, seed=1, as_dict=as_dict) for _ in range(2))
    assert all(map(same, resident(loader), other.to_torch()))


@pytest.mark.parametrize("stop", range(STEPS + 1))
def test_resume(ds, stop):
    loader = load(ds)
    batches, plan = resident(loader), loader.plan
    for step, _ in enumerate(itertools.islice(batches, stop), 1):
        assert batches.state_dict()["batch"] == loader.state_dict()["batch"] == step
    again = resident(load(ds))
    again.load_state_dict(batches.state_dict())
    assert [read(again), read(again)] == [epoch(plan, 0)[stop:], epoch(plan, 1)]
    again.set_epoch(5)
    assert read(again) == epoch(plan, 5)


def test_class_weights_change_with_the_next_batch(ds):
    loader, found = load(ds), []
    for step, batch in enumerate(resident(loader)):
        found += read([batch])
        if step == 2:
            loader.set_class_weights({1: 9.0})
    plan = BalancedPlan(LABELS, 4, 2, 9, steps_per_epoch=STEPS)
    assert found == [*epoch(plan, 0)[:3], *epoch(plan.reweighted({1: 9.0}, batch=3), 0)[3:]]


def test_batches_do_not_share_memory(ds):
    batches = list(resident(load(ds)))
    expected = list(load(ds).to_torch())
    batches[0][0].zero_()
    assert all(map(same, batches[1:], expected[1:]))
    assert all(map(same, resident(load(ds)), expected))


def test_copies(ds):
    batches = resident(load(ds))
    plan = load(ds).plan
    next(iter(batches))
    shared = copy.deepcopy(batches)
    assert shared.split is batches.split
    for other in (shared, pickle.loads(pickle.dumps(batches))):
        assert isinstance(other, ResidentDataLoader)
        other.set_epoch(1)
        assert read(other) == epoch(plan, 1)
    assert read(batches) == epoch(plan, 1)


@pytest.mark.parametrize("height", [4, 5, 8])  # rows of 60, 75 and 120 bytes
def test_conversion_of_images(tmp_path, height):
    images = np.random.default_rng(0).integers(0, 256, (40, height, 5, 3), dtype=np.uint8)
    columns = {"image": images, "label": np.arange(40) % 5}
    write(columns, tmp_path / "images", label="label")
    with opened(tmp_path / "images") as ds:
        options = {"layout": "NCHW", "mean": (0.4, 0.5, 0.6), "std": 0.25, "dtype": "float16"}
        loaders = [ds.batches(4, 2, seed=3) for _ in range(2)]
        found = resident(loaders[0], **options)
        for (x, y), (expected, labels) in zip(
            found, loaders[1].to_torch(device="cpu", **options), strict=True
        ):
            assert torch.equal(x, expected)
            assert torch.equal(y, labels)
            assert x.is_contiguous(memory_format=torch.channels_last)


REFUSED = {
    "transform": {"transform": lambda example: example},
    "batch_transform": {"batch_transform": lambda x, y: (x, y)},
    "augmenter": {"augmenter": lambda x, y, examples_per_class, is_warmup: (x, y)},
}


@pytest.mark.parametrize("hook", REFUSED)
def test_hooks_are_refused(ds, hook):
    with pytest.raises(PlanError) as caught:
        resident(load(ds, **REFUSED[hook]))
    assert caught.value.option == "resident"


def test_columns_that_are_refused(made, tmp_path):
    names = ({"name": f"bird {number}", "label": number % 4} for number in range(40))
    write(names, tmp_path / "names", label="label")
    with opened(tmp_path / "names") as strings:
        for ds in (strings, made("ragged")):
            with pytest.raises(PlanError) as caught:
                resident(ds.batches(2, 2))
            assert caught.value.option == "resident"


def test_padded_columns(made):
    with pytest.raises(PlanError) as caught:
        resident(made("ragged").batches(2, 2, pad=0))
    assert caught.value.option == "resident"
    options = {"seed": 3, "pad": 0, "pad_length": 6}
    expected = made("ragged").batches(2, 2, **options).take(20)
    found = resident(made("ragged").batches(2, 2, **options))
    for (x, y), (right_x, right_y) in zip(found, expected, strict=False):
        assert {name: each.tolist() for name, each in x.items()} == {
            name: each.tolist() for name, each in right_x.items()
        }
        assert y.tolist() == right_y.tolist()


def test_options_of_a_dataloader_are_refused(ds):
    with pytest.raises(PlanError) as caught:
        resident(load(ds), num_workers=2)
    assert (caught.value.option, caught.value.found) == ("num_workers", 2)


def test_the_memory_that_is_needed(tmp_path, monkeypatch):
    images = np.zeros((64, 64, 64, 3), np.uint8)
    columns = {"image": images, "label": np.arange(64) % 4}
    empty = torch.empty

    def limited(*shape, **options):
        if shape == (64 * (64 * 64 * 3 + 8),):
            raise RuntimeError("not enough memory")
        return empty(*shape, **options)

    write(columns, tmp_path / "images", label="label")
    with opened(tmp_path / "images") as ds:
        monkeypatch.setattr(torch, "empty", limited)
        with pytest.raises(PlanError, match=r"0\.00 GiB on cpu") as caught:
            resident(ds.batches(2, 2))
    assert caught.value.option == "resident"
