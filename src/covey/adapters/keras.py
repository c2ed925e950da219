"""Keras: the base class of samplers, so that ``fit`` accepts them, and its hooks."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import threading
from types import FrameType
from typing import Any

from covey.adapters import FRAMEWORKS, Framework

try:
    import keras
except ImportError:  # Keras, or its backend, is not installed
    keras = None


class _Settings:
    """Base class of samplers without Keras: the settings of ``PyDataset``, unused."""

    def __init__(
        self, workers: int = 1, use_multiprocessing: bool = False, max_queue_size: int = 10
    ) -> None:
        self.workers = workers
        self.use_multiprocessing = use_multiprocessing
        self.max_queue_size = max_queue_size


PyDataset: Any = getattr(getattr(keras, "utils", None), "PyDataset", _Settings)


class KerasDataset(PyDataset):
    """Dataset that ``fit`` and ``evaluate`` of Keras 3 and of Keras 2 accept.

    Keras 2 is the package ``tf_keras``, which ``tf.keras`` returns if the environment variable
    TF_USE_LEGACY_KERAS is set; the models of TensorFlow Similarity require it. It accepts instances
    of its own class ``Sequence`` only. Importing it loads TensorFlow, so ``Sequence`` becomes a
    base class of this class when an object is created or unpickled, if TF_USE_LEGACY_KERAS is set
    or ``tf_keras`` was imported before.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        sequence = _find_keras_2_sequence()
        if sequence is not None and not issubclass(KerasDataset, sequence):
            KerasDataset.__bases__ = (*KerasDataset.__bases__, sequence)
        return super().__new__(cls)


def _is_legacy() -> bool:
    """Return whether ``tf.keras`` is Keras 2."""
    return os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")


def _find_keras_2_sequence() -> Any:
    """Return the class ``Sequence`` of Keras 2 if it is in use, or None."""
    if _is_legacy():
        try:
            importlib.import_module("tf_keras")
        except ImportError:  # not installed
            return None
    # None if another thread is importing it.
    return getattr(getattr(sys.modules.get("tf_keras"), "utils", None), "Sequence", None)


def backend() -> Framework:
    """Return the backend of Keras, or ``"numpy"`` for other backends and without Keras."""
    if _is_legacy() and _find_keras_2_sequence() is not None:
        return "tensorflow"
    used = "numpy" if PyDataset is _Settings else keras.backend.backend()
    return used if used in FRAMEWORKS else "numpy"


def is_worker() -> bool:
    """Return whether this is a worker process of Keras."""
    return multiprocessing.current_process().name.startswith("Keras_worker")


def _is_evaluation() -> bool:
    """Return whether ``evaluate`` or ``predict`` of Keras is calling, not ``fit``.

    Keras calls the same hooks of a dataset for all of them, in the thread of the caller, and passes
    no arguments: only the stack tells them apart.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        is_keras = str(frame.f_globals.get("__name__")).startswith("keras.")
        if is_keras and name in ("fit", "evaluate", "predict"):
            return name != "fit"
        frame = frame.f_back
    return False


class EpochCounter:
    """Decides which calls of ``on_epoch_end`` end an epoch.

    Keras calls ``on_epoch_begin`` and ``on_epoch_end`` around each epoch. It also calls
    ``on_epoch_end`` when ``fit`` or ``evaluate`` resets its iterator; and, if the model or its loss
    is not built, it requests one batch between both calls first. These calls are recognised by the
    batches that were requested, and do not count. Without ``on_epoch_begin``, a call counts if all
    batches of an epoch were requested, as in a loop of the user. Calls from ``evaluate`` and
    ``predict``, and from the validation in ``fit``, do not count.

    If workers prefetch, the requests that build the model look like an epoch, which is counted.
    Keras then returns the batches of that epoch that were prefetched before those of the next one:
    no batch is repeated, but the others of that epoch are skipped. To avoid it, build the model,
    its loss and its optimizer before ``fit``, with ``model.train_on_batch`` for instance.

    Args:
        batches: Number of batches per epoch.
    """

    # Keras before 3.6 does not call on_epoch_begin.
    _has_begin = hasattr(PyDataset, "on_epoch_begin")

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._is_running = False
        self._is_evaluation = False
        # The thread of a completed evaluation: others may still prefetch for it.
        self._evaluator: int | None = None
        self._was_reset = False
        self._first_requests: set[int] = set()  # at most two
        self._ends_requested: set[int] = set()  # of the first and the last batch

    def request(self, batch_id: int) -> None:
        """Record the request of a batch."""
        if self._is_evaluation or self._evaluator not in (None, threading.get_ident()):
            return
        if len(self._first_requests) < 2:
            self._first_requests.add(batch_id)
        if batch_id in (0, self._batches - 1):
            self._ends_requested.add(batch_id)

    def begin(self) -> None:
        """Record a call of ``on_epoch_begin``."""
        self._is_evaluation = _is_evaluation()
        if self._is_evaluation:
            return
        self._evaluator = None
        self._is_running = True
        self._first_requests, self._ends_requested = set(), set()

    def end(self) -> bool:
        """Record a call of ``on_epoch_end``, and return whether an epoch has ended."""
        self._is_evaluation, self._evaluator = False, None
        if _is_evaluation():
            self._evaluator = threading.get_ident()
            return False
        was_running, requests, ends = self._is_running, self._first_requests, self._ends_requested
        self._is_running = False
        self._first_requests, self._ends_requested = set(), set()
        if not self._has_begin:
            return True
        if not was_running:
            self._was_reset = True
            return ends == {0, self._batches - 1}
        is_build = len(requests) == 1 < self._batches and not self._was_reset
        self._was_reset = is_build
        return not is_build
