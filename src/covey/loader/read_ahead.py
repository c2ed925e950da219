"""Fetching of remote records before the batches that contain them are built."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

# The records of several steps are requested together, which makes longer ranges of them: of as many
# as need between a quarter and a half of the bytes that are fetched ahead.
_MAX_AHEAD_BYTES = 64 << 20
_MAX_AHEAD_STEPS = 1024
_MAX_STEPS = 256


class ReadAhead:
    """Fetches the records of steps in order, a limited number of bytes ahead.

    Args:
        draw: Returns the ids of the examples of a step.
        prefetch: Starts to fetch examples if that needs at most a number of bytes, and returns the
            bytes; else returns None.
        steps: The number of steps.
    """

    def __init__(
        self, draw: Callable[[int], Ids], prefetch: Callable[[Ids, int], int | None], steps: int
    ) -> None:
        self._draw = draw
        self._prefetch = prefetch
        self._steps = steps
        self._next = 0
        self._together = 1
        self._requested: deque[tuple[int, int]] = deque()
        """The last step of each request, and its bytes."""

    def fetch(self, step: int) -> None:
        """Request the records of `step`, which is about to be built, and of those after it."""
        while self._requested and self._requested[0][0] < step:
            self._requested.popleft()
        ahead = sum(size for _, size in self._requested)
        while ahead < _MAX_AHEAD_BYTES and self._next < min(self._steps, step + _MAX_AHEAD_STEPS):
            end = min(self._next + self._together, self._steps)
            ids = np.concatenate([self._draw(each) for each in range(self._next, end)])
            size = self._prefetch(ids, _MAX_AHEAD_BYTES)
            if size is None and self._together > 1:
                self._together = max(1, self._together // 4)
                continue
            size = size or 0
            if size < _MAX_AHEAD_BYTES // 4:
                self._together = min(2 * self._together, _MAX_STEPS)
            elif size > _MAX_AHEAD_BYTES // 2:
                self._together = max(1, self._together // 2)
            self._requested.append((end - 1, size))
            self._next = end
            ahead += size
