"""Keras: the base class of samplers, so that ``fit`` accepts them, and its hooks."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import Any

from covey._threads import DaemonThreads, ordered_map
from covey.adapters import FRAMEWORKS, Framework

try:
    import keras
except ImportError:  # Keras, or its backend, is not installed
    keras = None


class _Settings:
    """Base class of samplers without Keras: the settings of ``PyDataset``, unused."""

    def __init__(self, use_multiprocessing: bool = False, max_queue_size: int = 10) -> None:
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

    Args:
        workers: Number of threads or processes that prefetch batches; 0 and 1 prefetch none.
        use_multiprocessing: Prefetch in processes.
        max_queue_size: Number of prefetched batches; at least two per worker.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        sequence = _find_keras_2_sequence()
        if sequence is not None and not issubclass(KerasDataset, sequence):
            KerasDataset.__bases__ = (*KerasDataset.__bases__, sequence)
        return super().__new__(cls)

    def __init__(
        self, workers: int = 1, use_multiprocessing: bool = False, max_queue_size: int = 10
    ) -> None:
        super().__init__(use_multiprocessing=use_multiprocessing, max_queue_size=max_queue_size)
        self.workers = workers

    @property
    def workers(self) -> int:
        """Always 0: Keras prefetches nothing. Setting it sets :attr:`prefetch_workers`.

        If Keras 3 has to build the model, it requests a batch before the first epoch. Its own
        queue, which it starts if ``workers > 1``, then returns the batches that it prefetched for
        this request in the first epoch, in addition to the others.
        """
        return 0

    @workers.setter
    def workers(self, workers: int) -> None:
        self.prefetch_workers = int(workers)

    @property
    def _prefetches(self) -> bool:
        return self.prefetch_workers > (0 if self.use_multiprocessing else 1)


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


# Names of worker threads begin with it.
_THREADS = "covey-sampler"

# The sampler of a worker process.
_dataset: Any = None


def _start_worker(dataset: Any) -> None:
    global _dataset
    _dataset = dataset


def _generate(batch_id: int) -> Any:
    return _dataset.generate_batch(batch_id)


def is_worker() -> bool:
    """Return whether this is a worker process, of a sampler or of Keras 2."""
    name = multiprocessing.current_process().name
    return _dataset is not None or name.startswith("Keras_worker")


def is_prefetching() -> bool:
    """Return whether this is a worker, thread or process, that makes a batch before its request."""
    return is_worker() or threading.current_thread().name.startswith(_THREADS)


class Prefetcher:
    """Makes batches in threads or processes before they are requested.

    The first request tells the order: the shuffle of ``fit(shuffle=True)``, or else
    ascending. A batch that is requested out of this order is made when it is requested.

    Args:
        dataset: A sampler.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.random_state: Any = None
        """State of the module ``random`` before Keras shuffled the batch ids."""
        self._lock = threading.Lock()
        self._executor: Executor | None = None
        self._order: deque[int] | None = None  # the prefetched batches that were not requested
        self._batches: Iterator[Any] = iter(())

    def take(self, batch_id: int) -> Any:
        """Return a batch."""
        dataset = self._dataset
        with self._lock:
            if self._order is None:
                self._start(batch_id)
            if self._order and self._order[0] == batch_id:
                self._order.popleft()
                for batch in self._batches:  # not after an error; a process returns arrays
                    return dataset._to_tensors(*batch) if dataset.use_multiprocessing else batch
        return dataset.generate_batch(batch_id)

    def close(self) -> None:
        """Stop the workers. Later requests, of a thread of TensorFlow, make their batch."""
        with self._lock:
            self._order, self._batches = deque(), iter(())
        if self._executor is not None:
            self._executor.shutdown()

    def __del__(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def _start(self, batch_id: int) -> None:
        dataset, order = self._dataset, list(range(len(self._dataset)))
        if self.random_state is not None and batch_id != 0:
            shuffle = random.Random()
            shuffle.setstate(self.random_state)
            shuffle.shuffle(order)
        if order[0] != batch_id:  # Keras continues an epoch
            order = list(range(batch_id, len(order)))
        self._order, workers = deque(order), dataset.prefetch_workers
        if dataset.use_multiprocessing:
            make = _generate
            self._executor = ProcessPoolExecutor(
                workers, initializer=_start_worker, initargs=(dataset,)
            )
        else:
            make = dataset.generate_batch
            self._executor = DaemonThreads(workers, _THREADS)
        in_flight = max(2 * workers, dataset.max_queue_size)
        tasks = (partial(make, each) for each in order)
        self._batches = ordered_map(tasks, self._executor, in_flight)


class EpochCounter:
    """Decides which calls of ``on_epoch_end`` end an epoch.

    After ``on_epoch_begin``, a call counts if all batches were requested. Keras calls both around
    an epoch, and around the request of one batch with which it builds a model. It also calls both
    if ``fit`` or ``evaluate`` has fewer steps than the sampler, and continues after it: the
    requests of several such calls are added.

    Without ``on_epoch_begin``, a call counts if a batch was requested since the last call, as in
    Keras 2 and in loops of the caller. Keras 3 calls ``on_epoch_end`` so too, before an epoch, and
    may have requested batches to learn their types; it reads ``num_batches`` before this call.

    Args:
        batches: Number of batches per epoch.
    """

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._is_open = False
        self._is_partial = False  # the last on_epoch_end was called before all were requested
        self._requested: set[int] = set()
        self._has_request = False

    def request(self, batch_id: int) -> None:
        """Record the request of a batch."""
        self._has_request = True
        if (self._is_open or self._is_partial) and batch_id < self._batches:
            self._requested.add(batch_id)

    def begin(self, *, is_open: bool = True) -> None:
        """Record a call of ``on_epoch_begin``; of a loop over the sampler if not `is_open`."""
        self._is_open = is_open
        if not self._is_partial:
            self._requested.clear()

    def prepare(self) -> None:
        """Record that Keras read ``num_batches``."""
        self._has_request = False
        if not self._is_open:
            self._is_partial = False

    def end(self) -> bool:
        """Record a call of ``on_epoch_end``, and return whether an epoch has ended."""
        is_complete = len(self._requested) == self._batches
        counts = is_complete if self._is_open else self._has_request
        self._is_partial = self._is_open and not is_complete
        self._is_open = self._has_request = False
        if counts:
            self._requested.clear()
        return counts
