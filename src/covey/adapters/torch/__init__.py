"""PyTorch: a ``DataLoader`` over the batches of a loader, and samplers for other datasets."""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "covey.adapters.torch requires PyTorch; install it with `pip install 'covey[torch]'`",
        name="torch",
    ) from error

from covey.adapters.torch.dataloader import BatchDataLoader, StepDataset, StepSampler, to_torch
from covey.adapters.torch.samplers import (
    BalancedBatchSampler,
    MPerClassError,
    MPerClassSampler,
    PlanBatchSampler,
)
from covey.adapters.torch.tensors import tensor

__all__ = [
    "BalancedBatchSampler",
    "BatchDataLoader",
    "MPerClassError",
    "MPerClassSampler",
    "PlanBatchSampler",
    "StepDataset",
    "StepSampler",
    "tensor",
    "to_torch",
]
