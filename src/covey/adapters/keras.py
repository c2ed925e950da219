"""Keras: what a sampler inherits from, so that ``fit`` takes it; and the backend in use."""

from __future__ import annotations

from typing import Any

from covey.adapters import FRAMEWORKS, Framework

try:
    import keras
except ImportError:  # Keras, or the backend that it is to use, is not installed
    keras = None


class _StandIn:
    """What samplers are where there is no Keras: the same settings, which nobody looks at."""

    def __init__(
        self, workers: int = 1, use_multiprocessing: bool = False, max_queue_size: int = 10
    ) -> None:
        self.workers = workers
        self.use_multiprocessing = use_multiprocessing
        self.max_queue_size = max_queue_size


PyDataset: Any = _StandIn if keras is None else keras.utils.PyDataset


def backend() -> Framework:
    """What computes for Keras; numpy, if that is something else, or there is no Keras."""
    used = "numpy" if keras is None else keras.backend.backend()
    return used if used in FRAMEWORKS else "numpy"
