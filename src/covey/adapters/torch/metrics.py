"""Operations of :mod:`covey.metrics` on tensors of PyTorch, on their device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class TorchArrays:
    """Operations on tensors of one device.

    Args:
        device: The device of the embeddings.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def embeddings(self, values: Any) -> Any:
        tensor = torch.as_tensor(values, device=self._device).detach()
        is_wide = tensor.dtype in (torch.float32, torch.float64)
        return tensor if is_wide else tensor.float()

    def integers(self, values: NDArray[np.int64]) -> Any:
        return torch.as_tensor(values.astype(np.int32), device=self._device)

    def normalize(self, embeddings: Any) -> Any:
        return torch.nn.functional.normalize(embeddings, eps=torch.finfo(embeddings.dtype).tiny)

    def mask(self, values: Any, keep: Any) -> Any:
        return values.masked_fill(~keep, -torch.inf)

    def exclude(self, values: Any, columns: Any) -> Any:
        values[torch.arange(len(values), device=self._device), columns] = -torch.inf
        return values

    def maximum(self, values: Any) -> Any:
        return values.amax(1)

    def largest(self, values: Any, count: int) -> Any:
        return values.topk(count, dim=1).values

    def count_at_least(self, values: Any, thresholds: Any, most: int) -> Any:
        # searchsorted needs ascending rows.
        negative = (-self.largest(values, most)).contiguous()
        return torch.searchsorted(negative, (-thresholds).contiguous(), right=True)

    def to_numpy(self, values: Any) -> NDArray[Any]:
        return np.asarray(values.cpu())
