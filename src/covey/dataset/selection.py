"""The records of the open splits that a dataset contains: their ids, and their bytes."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from covey.loader import Loader, LoadOptions
from covey.loader.batch import RawFormat
from covey.plan import Plan
from covey.reading.gather import out_of_range

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset

Ids = NDArray[np.int64]

# Limits of one read when all records are iterated.
_MAX_READ_RECORDS = 256
_MAX_READ_BYTES = 16 << 20


class Selection:
    """A sequence of record ids. Ranges need no memory per record, also in a pickle.

    Args:
        records: The number of records in the open splits.
        ids: The selected record ids, an array or ranges; by default all.
    """

    def __init__(self, records: int, ids: Ids | Sequence[range] | None = None) -> None:
        self._ids = ids if isinstance(ids, np.ndarray) else None
        ranges = [range(records)] if ids is None else ids if self._ids is None else ()
        ranges = [each for each in ranges if each]
        self._ends = np.cumsum([len(each) for each in ranges], dtype=np.int64)
        self._shifts = np.array([each.stop for each in ranges], np.int64) - self._ends
        self.is_all = self._ids is None and len(ranges) < 2 and len(self) == records

    def __len__(self) -> int:
        if self._ids is not None:
            return len(self._ids)
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, positions: Ids, *, check: bool = False) -> Ids:
        """Return the record ids at positions of the selection.

        Args:
            positions: The positions; negative ones count from the end.
            check: Whether to check the range also where the reader of the records checks it.

        Raises:
            IndexError: If a position is out of range.
        """
        if self.is_all and not check:
            return positions
        length = len(self)
        wrong = positions[(positions < -length) | (positions >= length)]
        if len(wrong):
            raise out_of_range(int(wrong[0]), length)
        positions = np.where(positions < 0, positions + length, positions)
        if self._ids is not None:
            return self._ids[positions]
        part = np.searchsorted(self._ends, positions, side="right")
        return np.asarray(positions + self._shifts[part])

    def all(self) -> Ids:
        """Return all record ids, in order."""
        return self.take(np.arange(len(self), dtype=np.int64))


def parse_ids(key: Any, length: int) -> Ids:
    """Return the positions that an index expression selects, as an array; 0-d for a single integer.

    Args:
        key: An integer, a slice, integers, or a boolean mask; of Python, numpy or a framework.
        length: The length of the sequence that is indexed.

    Raises:
        IndexError: If a single integer is out of range, or the shape of a mask is wrong. Several
            integers are checked by the reader of the records.
        TypeError: If the key is of another type.
    """
    if type(key) is np.ndarray and key.dtype == np.int64 and key.ndim == 1:
        return key  # the most frequent case
    if isinstance(key, slice):
        return np.arange(*key.indices(length), dtype=np.int64)
    if hasattr(key, "detach"):  # a tensor of PyTorch, perhaps on a GPU
        key = key.detach().cpu()
    if hasattr(key, "__index__") and not isinstance(key, bool) and not getattr(key, "ndim", 0):
        number = operator.index(key)
        if not -length <= number < length:
            raise out_of_range(number, length)
        return np.array(number)
    try:
        array = np.asarray(key)
    except ValueError:  # lists of different lengths
        array = np.zeros((), object)
    if array.dtype == bool and array.shape == (length,):
        return np.flatnonzero(array)
    if array.dtype == bool:
        raise IndexError(f"the mask has shape {array.shape}; must be ({length},)")
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(
            f"the index is {str(key)[:60]!r} of type {type(key).__name__}; must be an integer, a "
            "slice, or a list of integers"
        )
    if array.dtype == np.uint64:  # the number that does not fit is out of range, too
        array = np.minimum(array, np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64)


class RawRecords(Sequence[bytes]):
    """Undecoded records of a dataset, by id.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @overload
    def __getitem__(self, key: int) -> bytes: ...

    @overload
    def __getitem__(self, key: slice | Any) -> list[bytes]: ...

    def __getitem__(self, key: Any) -> bytes | list[bytes]:
        ids = parse_ids(key, len(self))
        records = self.read(ids.reshape(-1))
        return records if ids.ndim else records[0]

    def __repr__(self) -> str:
        return f"<RawRecords: {len(self):,} records>"

    def read(self, ids: Ids) -> list[bytes]:
        """Return the records `ids`."""
        return self._dataset._gatherer.records(self._dataset._selection.take(ids))

    def __iter__(self) -> Iterator[bytes]:
        for ids in self.chunks():
            yield from self.read(ids)

    def chunks(
        self,
        begin: int = 0,
        end: int | None = None,
        *,
        max_records: int = _MAX_READ_RECORDS,
        max_bytes: int = _MAX_READ_BYTES,
    ) -> Iterator[Ids]:
        """Yield ids in order, in chunks of bounded size.

        Args:
            begin: The first id.
            end: The id after the last one (default: the number of records).
            max_records: Maximum number of records of a chunk.
            max_bytes: Maximum size of the records of a chunk, which may exceed it by one record.
        """
        end = len(self) if end is None else end
        for first in range(begin, end, max_records):
            ids = np.arange(first, min(first + max_records, end), dtype=np.int64)
            sizes = np.cumsum(self.lengths(ids))
            cuts = np.flatnonzero(np.diff(sizes // max_bytes)) + 1
            yield from np.split(ids, cuts)

    def lengths(self, ids: Ids) -> Ids:
        """Return the sizes of the records `ids` in bytes."""
        return self._dataset._gatherer.rows.lengths(self._dataset._selection.take(ids))

    def batches(self, plan: Plan, *, threads: int | None = None) -> Loader:
        """Return a loader of undecoded records; a batch is an array of bytes objects.

        Args:
            plan: Record ids of a batch.
            threads: Number of threads that prefetch batches, as for
                :class:`covey.loader.LoadOptions`; mapped records are never prefetched.
        """
        first = self._dataset._selection.take(plan.batch(0))
        is_mapped = self._dataset._gatherer.mapped(first) is not None
        options = LoadOptions(
            rank=plan.rank,
            world_size=plan.world_size,
            mode=plan.mode,
            threads=0 if is_mapped else threads,
        )
        return Loader(RawFormat(self._dataset), partial(_same, plan), options)


def _same(plan: Plan) -> Plan:
    return plan
