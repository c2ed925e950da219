"""The largest and the smallest records of a split or a class.

The search has to see all records, so it continues with each request, and its result is stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.index import Index, index_names
from covey.index.read import MAX_READ_BYTES, ArrayFile
from covey.view.search import SCAN_TIMEOUT_S, Ids, Listed, SplitExamples

MAX_ORDERED = 10_000
"""Number of records that are sorted by size."""
MAX_SCATTERED = 100_000
"""A class with more examples is found faster in all rows of the index than row by row."""

# Rows of the index that are read at once.
_CHUNK_ROWS = 1 << 17


class SizeOrder:
    """The largest or the smallest records of some examples; found step by step.

    Args:
        members: The examples.
        largest: Whether the largest are searched.
        count: Number of records to find.
        map_from: Size of index rows from which their file is read, because they are mapped.
        max_scattered: Number of examples of a class up to which their rows are read one by one;
            those of a larger class are found in all rows.
    """

    def __init__(
        self,
        members: SplitExamples,
        *,
        largest: bool,
        count: int = MAX_ORDERED,
        map_from: int = MAX_READ_BYTES,
        max_scattered: int = MAX_SCATTERED,
    ) -> None:
        self._sign = -1 if largest else 1
        self._count = count
        index = members.dataset.whole_index
        is_scattered = members.class_id is not None and members.length <= max_scattered
        if index is not None and not is_scattered and index.rows.nbytes > map_from:
            self._chunks = _lengths_of_rows(members, index)
        else:
            self._chunks = _lengths(members)
        self._ids = np.zeros(0, np.int64)
        self._keys = np.zeros(0, np.int64)
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self.scanned = 0
        self.is_done = False

    @property
    def is_failed(self) -> bool:
        """Whether the search ended with an error."""
        return self._error is not None

    def advance(self, timeout_s: float = SCAN_TIMEOUT_S) -> bool:
        """Continue the search for some time; return whether it is complete.

        Raises:
            CoveyError, OSError: If the index cannot be read, also of all later calls.
        """
        end = time.monotonic() + timeout_s
        with self._lock:
            while not self.is_done:
                if self._error is not None:  # a generator that raised an error ends
                    raise self._error
                try:
                    chunk = next(self._chunks, None)
                except Exception as error:
                    self._error = error
                    raise
                if chunk is None:
                    self.is_done = True
                else:
                    self._add(*chunk)
                if time.monotonic() > end:
                    break
            return self.is_done

    def _add(self, scanned: int, ids: Ids, lengths: NDArray[np.int64]) -> None:
        self.scanned = scanned
        keys = lengths * self._sign
        if len(self._ids) == self._count:  # equal sizes: the lower id is first
            better = keys < self._keys[-1]
            ids, keys = ids[better], keys[better]
        ids, keys = np.concatenate([self._ids, ids]), np.concatenate([self._keys, keys])
        best = np.lexsort((ids, keys))[: self._count]
        self._ids, self._keys = ids[best], keys[best]

    def found(self) -> Listed:
        """Return the records that were found."""
        return Listed(self._ids)


def _lengths(members: SplitExamples) -> Iterator[tuple[int, Ids, NDArray[np.int64]]]:
    """Yield parts of examples: how many were scanned, their ids, and the sizes of their records."""
    for begin in range(0, members.length, _CHUNK_ROWS):
        ids = members.slice(begin, begin + _CHUNK_ROWS)
        yield begin + len(ids), ids, members.dataset.raw.lengths(ids)


def _lengths_of_rows(
    members: SplitExamples, index: Index
) -> Iterator[tuple[int, Ids, NDArray[np.int64]]]:
    """Yield the same from the file of the index.

    It is read, because pages of the mapping that were touched count as memory of the process.
    """
    assert index.home is not None  # it is mapped from there
    path = Path(index.home[0]) / index_names(index.home[1])["rows"]
    done = matched = 0
    with ArrayFile(path) as file:
        if file.shape != index.rows.shape or file.dtype != index.rows.dtype:
            raise index.truncated()
        for chunk in file.chunks(_CHUNK_ROWS * file.dtype.itemsize):
            rows = np.frombuffer(chunk, file.dtype)
            ids = np.arange(done, done + len(rows), dtype=np.int64)
            done += len(rows)
            if members.class_id is not None:
                mine = rows["label"] == members.class_id
                rows, ids = rows[mine], ids[mine]
            matched += len(ids)
            yield matched, ids, rows["length"].astype(np.int64)


class SizeOrders:
    """Searches for the largest records, by their parameters; the last few are stored."""

    def __init__(self, max_stored: int = 8) -> None:
        self._max_stored = max_stored
        self._stored: dict[Any, SizeOrder] = {}
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], SizeOrder]) -> SizeOrder:
        """Return the search of a key, which is begun if it is not stored."""
        with self._lock:
            found = self._stored.pop(key, None)
            if found is None or found.is_failed:
                found = make()
            self._stored[key] = found
            while len(self._stored) > self._max_stored:
                self._stored.pop(next(iter(self._stored)))
            return found
