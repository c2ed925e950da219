"""Which records of the splits that are open a dataset shows, and in which order."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Selection:
    """Stretches of records, or single ones, one after the other.

    Args:
        records: How many there are to choose from.
        stretches: (from, to) of each stretch; or
        numbers: the records, one by one.
    """

    def __init__(
        self,
        records: int,
        chunks: Iterable[tuple[int, int]] | None = None,
        numbers: Ids | None = None,
    ) -> None:
        self._numbers = numbers
        given = [(0, records)] if chunks is None else list(chunks)
        pairs = [(begin, end) for begin, end in given if end > begin]
        self._begins = np.array([begin for begin, _ in pairs], np.int64)
        lengths = np.array([end - begin for begin, end in pairs], np.int64)
        self._ends = np.cumsum(lengths)
        self.is_all = numbers is None and pairs == ([(0, records)] if records else [])
        self._length = len(numbers) if numbers is not None else int(lengths.sum())

    def __len__(self) -> int:
        return self._length

    def take(self, ids: Ids, *, check: bool = False) -> Ids:
        """The numbers, among all records, of those that are so numbered here.

        Args:
            ids: The numbers; those below 0 count from the end.
            check: Whether to check them even where a caller that reads them does that.

        Raises:
            IndexError: If there are none.
        """
        if self.is_all and not check:
            return ids
        ids = np.where(ids < 0, ids + len(self), ids)
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= len(self)):
            wrong = ids[(ids < 0) | (ids >= len(self))][0]
            raise IndexError(f"there is no record {wrong}; there are {len(self)}")
        if self._numbers is not None:
            return self._numbers[ids]
        if self.is_all:
            return ids
        if len(self._begins) == 1:
            shifted: Ids = ids + self._begins[0]
            return shifted
        stretch = np.searchsorted(self._ends, ids, side="right")
        lengths = np.diff(self._ends, prepend=0)
        return ids - (self._ends - lengths)[stretch] + self._begins[stretch]

    def all(self) -> Ids:
        """The numbers of all, in order."""
        return self.take(np.arange(len(self), dtype=np.int64))


def parse_ids(key: Any, length: int) -> Ids:
    """The numbers that somebody writes in brackets: an array, without dimensions for one number.

    Raises:
        IndexError, TypeError: If they are none.
    """
    if type(key) is np.ndarray and key.dtype == np.int64 and key.ndim == 1:
        return key  # the usual case in a hurry
    if isinstance(key, slice):
        return np.arange(*key.indices(length), dtype=np.int64)
    if hasattr(key, "__index__") and not isinstance(key, (bool, np.ndarray)):
        number = operator.index(key)
        if not -length <= number < length:
            raise IndexError(f"there is no record {number}; there are {length}")
        return np.array(number)
    try:
        array = np.asarray(key)
    except ValueError:  # lists of different lengths
        array = np.zeros((), object)
    if array.dtype == object and array.ndim == 1 and all(type(each) is int for each in key):
        raise IndexError(f"there is no record {max(key, key=abs)}; there are {length}")
    if array.dtype == bool:
        if array.shape != (length,):
            raise IndexError(f"a mask has the shape {array.shape}; must be ({length},)")
        return np.flatnonzero(array)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise TypeError(
            f"records are chosen by {_describe(key)}; must be an integer, a slice, or a list "
            "of integers"
        )
    if array.dtype.kind == "u" and int(array.max()) >= 2**63:
        raise IndexError(f"there is no record {array.max()}; there are {length}")
    # A single number is checked here, several are by a caller that reads them.
    return parse_ids(int(array), length) if array.ndim == 0 else np.asarray(array, np.int64)


def _describe(key: Any) -> str:
    if isinstance(key, np.ndarray):
        return f"an array of {key.dtype} {key.shape}"
    return f"{str(key)[:60]!r} of type {type(key).__name__}"
