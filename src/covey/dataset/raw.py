"""The undecoded records of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from covey.loader import Loader, LoadOptions
from covey.loader.batch import RawFormat
from covey.plan import Plan
from covey.splits import parse_ids

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset

Ids = NDArray[np.int64]

# Limits of one read when all records are iterated.
_MAX_READ_RECORDS = 256
_MAX_READ_BYTES = 16 << 20


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
