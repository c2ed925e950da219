"""Keras: what a sampler inherits from, so that ``fit`` takes it; and the backend in use."""

from __future__ import annotations

import multiprocessing
import sys
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


# Before Keras 3 there was none.
PyDataset: Any = getattr(getattr(keras, "utils", None), "PyDataset", _StandIn)


def backend() -> Framework:
    """What computes for Keras; numpy, if that is something else, or there is no Keras 3."""
    used = "numpy" if PyDataset is _StandIn else keras.backend.backend()
    return used if used in FRAMEWORKS else "numpy"


def is_worker() -> bool:
    """Whether this is a process that Keras has made to make batches."""
    return multiprocessing.current_process().name.startswith("Keras_worker")


def is_peek() -> bool:
    """Whether the epoch that Keras says has ended was none, seen from ``on_epoch_end``.

    Before its first epoch, ``fit`` looks at a batch to build what is not built, and then begins
    again: ``EpochIterator.reset`` calls ``on_epoch_end`` through the adapter of the dataset. A caller that
    counts epochs would count one too many; and what workers have made by then is kept for the epoch
    that begins, which makes it all again. Keras has no other way to tell, so its calls are looked
    at, and what was kept is dropped.
    """
    frame, adapter = sys._getframe(1), None
    while frame.f_code.co_name == "on_epoch_end" and frame.f_back is not None:
        adapter = frame.f_locals.get("self")
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "")
    if frame.f_code.co_name != "reset" or not name.endswith("epoch_iterator"):
        return False
    kept = getattr(getattr(adapter, "enqueuer", None), "ready_queue", None)
    while kept is not None and not kept.empty():
        kept.get()
    return True
