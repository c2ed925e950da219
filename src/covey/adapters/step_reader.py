"""Random access to batches by step; sequential access is prefetched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from covey.loader import Loader

# One iterator per sequence of steps; several are in use if a dataset is iterated concurrently.
_MAX_ITERATORS = 4


class StepReader:
    """Random access to the batches of a loader; sequential access is prefetched.

    It may be used by several threads. The position of the loader does not change.

    Args:
        loader: The loader; the reader has its present plan.

    >>> import covey
    >>> birds = ({"size": n, "species": n % 3} for n in range(30))
    >>> _ = covey.write(birds, "birds", split="train", label="species", progress=False)
    >>> loader = covey.open("birds").batches(2, 2, seed=1)
    >>> reader = StepReader(loader)
    >>> [reader[step][1].tolist() for step in (0, 1)] == [y.tolist() for _, y in loader.take(2)]
    True
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader.copy()
        self._lock = threading.Lock()
        self._iterators: dict[int, Iterator[Any]] = {}  # by next batch, least recently used first

    def __getitem__(self, step: int) -> Any:
        """Return the batch of `step`."""
        return self.read(self._loader.plan.batch_at(step))

    def read(self, batch: int) -> Any:
        """Return the batch of the step that begins with the batch `batch` of all ranks."""
        with self._lock:
            iterator = self._iterators.pop(batch, None)
        if iterator is None:
            iterator = self._start(batch)
        try:
            result = next(iterator)
        except StopIteration:  # the iterator ended with its epoch
            iterator = self._start(batch)
            result = next(iterator)
        following = batch + self._loader.plan.batches_per_step
        with self._lock:
            self._iterators[following] = iterator
            while len(self._iterators) > _MAX_ITERATORS:
                del self._iterators[next(iter(self._iterators))]  # stops its threads
        return result

    def _start(self, batch: int) -> Iterator[Any]:
        loader = self._loader.copy(batch=batch)
        plan = loader.plan
        return loader.take(plan.last_step - loader.step) if plan.is_endless else iter(loader)

    def close(self) -> None:
        """Stop all prefetching."""
        with self._lock:
            self._iterators.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._loader,)
