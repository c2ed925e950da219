"""PyTorch: batches for a ``DataLoader``, and samplers for a dataset of one's own."""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "covey.adapters.torch needs PyTorch, which cannot be imported; install it with "
        "`pip install 'covey[torch]'`",
        name="torch",
    ) from error

from covey.adapters.torch.batches import Batches, to_torch
from covey.adapters.torch.m_per_class import MPerClassError, MPerClassSampler
from covey.adapters.torch.samplers import BalancedBatchSampler, PlanBatchSampler
from covey.adapters.torch.tensors import tensor

__all__ = [
    "BalancedBatchSampler",
    "Batches",
    "MPerClassError",
    "MPerClassSampler",
    "PlanBatchSampler",
    "tensor",
    "to_torch",
]
