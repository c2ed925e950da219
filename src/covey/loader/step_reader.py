"""Batches by their steps, for another program's loop that asks for one step after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from covey.loader.loader import Loader

# Loops that go on at the same time: those of several iterators over one dataset.
_LOOPS = 4


class StepReader:
    """Batches of a loader by their steps; where steps are in a row, what comes is made ahead.

    A framework that asks for batches by number, in its own thread, may begin again somewhere else at
    any time; the loader itself stays where it is.

    Args:
        loader: Whose batches.

    >>> import covey
    >>> birds = ({"size": n, "species": n % 3} for n in range(30))
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> loader = covey.open("birds").batches(2, 2, seed=1)
    >>> follower = Follower(loader)
    >>> [follower[step][1].tolist() for step in (0, 1)] == [y.tolist() for _, y in loader.take(2)]
    True
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader.copy()
        self._lock = threading.Lock()
        self._loops: dict[int, Iterator[Any]] = {}  # by the step that each is at, oldest first

    def __getitem__(self, step: int) -> Any:
        """The batch of a step."""
        with self._lock:
            loop = self._loops.pop(step, None)
        if loop is None:
            loop = self._begin(step)
        try:
            batch = next(loop)
        except StopIteration:  # the loop was that of an epoch, which has ended
            loop = self._begin(step)
            batch = next(loop)
        with self._lock:
            self._loops[step + 1] = loop
            while len(self._loops) > _LOOPS:
                del self._loops[next(iter(self._loops))]  # its threads end with it
        return batch

    def _begin(self, step: int) -> Iterator[Any]:
        loader = self._loader.copy()
        loader.seek(step)
        if loader.plan.is_endless:
            return loader.take(loader.plan.last_step - step)
        return iter(loader)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._loader,)
