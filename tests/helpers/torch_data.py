"""Loaders and samplers of numbered examples for PyTorch, in any process."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from loaded import COUNT, LABELS, numbers_of
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from covey.adapters.torch import BalancedBatchSampler, MPerClassSampler

STEPS = 7


def load(ds: Any, **options: Any) -> Any:
    """Return a loader of batches of 4 classes with 2 examples each."""
    return ds.batches(4, 2, **{"seed": 9, "steps_per_epoch": STEPS, **options})


def numbers(batch: Any) -> list[int]:
    """Return the numbers of the examples of a batch of tensors."""
    x = batch["x"] if isinstance(batch, dict) else batch[0]
    assert isinstance(x, torch.Tensor)
    return numbers_of(x.numpy())


def read(batches: Any) -> list[list[int]]:
    """Return the numbers of the examples of batches."""
    return list(map(numbers, batches))


def epoch(plan: Any, number: int) -> Any:
    """Return the record ids of an epoch."""
    return plan.batches(number * STEPS, (number + 1) * STEPS).tolist()


def flat(parts: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(parts))


class Users(Dataset):  # type: ignore[type-arg]
    """A dataset of another program."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> Any:
        return torch.tensor([number]), int(LABELS[number])


def balanced(**options: Any) -> BalancedBatchSampler:
    return BalancedBatchSampler(LABELS, 4, 2, **{"seed": 3, "steps_per_epoch": STEPS, **options})


def m_per_class(batch_size: int = 8) -> MPerClassSampler:
    return MPerClassSampler(LABELS, 2, batch_size, 60, seed=3)


def stateful(batches: Any, **options: Any) -> Any:
    """Return the StatefulDataLoader of a DataLoader of covey."""
    return StatefulDataLoader(batches.dataset, sampler=batches.sampler, batch_size=None, **options)
