"""A model of Lightning that records its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from torch_data import numbers


class Recorder(lightning.LightningModule):
    """A model that records the numbers of the examples of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)
        self.seen: list[list[int]] = []
        self.validated: list[list[int]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.seen.append(numbers(batch))
        return self.linear(batch[0].flatten(1) / 100).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated.append(numbers(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def new_trainer(directory: Path, **options: Any) -> lightning.Trainer:
    """Return a trainer on the CPU that prints nothing."""
    return lightning.Trainer(
        accelerator="cpu",
        default_root_dir=directory,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"devices": 1, "enable_checkpointing": False, **options},
    )
