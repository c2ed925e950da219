"""Undecoded records of a dataset, by id or in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from covey.dataset.selection import Ids, Selection, parse_ids
from covey.loader import Examples, Loader, LoadOptions
from covey.loader.batch import check_classes
from covey.loader.hooks import BatchKey
from covey.plan import Plan
from covey.reading import Gatherer

# Limits of one read when all records are iterated.
_MAX_READ_RECORDS = 256
_MAX_READ_BYTES = 16 << 20


class RawRecords(Sequence[bytes]):
    """Undecoded records of a dataset, by id.

    Args:
        examples: The dataset.
        gatherer: Reader of the records.
        selection: The records that belong to the dataset.
    """

    def __init__(self, examples: Examples, gatherer: Gatherer, selection: Selection) -> None:
        self._examples = examples
        self._gatherer = gatherer
        self._selection = selection

    def __len__(self) -> int:
        return len(self._selection)

    @overload
    def __getitem__(self, key: int) -> bytes: ...

    @overload
    def __getitem__(self, key: slice | Any) -> list[bytes]: ...

    def __getitem__(self, key: Any) -> bytes | list[bytes]:
        ids = parse_ids(key, len(self))
        records = self.read(ids.reshape(-1))
        return records if ids.ndim else records[0]

    def read(self, ids: Ids) -> list[bytes]:
        """Return the records `ids`."""
        return self._gatherer.records(self._selection.take(ids))

    def __iter__(self) -> Iterator[bytes]:
        for ids in self.chunks():
            yield from self.read(ids)

    def chunks(self) -> Iterator[Ids]:
        """Yield all ids in order, in chunks of bounded size."""
        for begin in range(0, len(self), _MAX_READ_RECORDS):
            ids = np.arange(begin, min(begin + _MAX_READ_RECORDS, len(self)), dtype=np.int64)
            sizes = np.cumsum(self._gatherer.lengths(self._selection.take(ids)))
            cuts = np.flatnonzero(np.diff(sizes // _MAX_READ_BYTES)) + 1
            yield from np.split(ids, cuts)

    def batches(self, plan: Plan, *, threads: int | None = None) -> Loader:
        """Return a loader of undecoded records; a batch is an array of bytes objects.

        Args:
            plan: Record ids of a batch.
            threads: Number of threads that prefetch batches, as for
                :class:`covey.loader.LoadOptions`; mapped records are never prefetched.
        """
        first = self._selection.take(plan.batch(0))
        is_mapped = self._gatherer.mapped(first) is not None
        options = LoadOptions(
            rank=plan.rank,
            world_size=plan.world_size,
            mode=plan.mode,
            threads=0 if is_mapped else threads,
        )
        return Loader(RawFormat(self._examples, self), partial(_same, plan), options)


class RawFormat:
    """Builds batches of undecoded records.

    Args:
        examples: The dataset.
        records: Its records.
    """

    is_native = False

    def __init__(self, examples: Examples, records: RawRecords) -> None:
        self._examples = examples
        self._records = records

    def native_source(self, ids: Ids) -> None:
        """Return None: the native core does not build such batches."""

    def build(
        self, ids: Ids, classes: Ids | None, key: BatchKey, check_cancelled: Callable[[], None]
    ) -> Any:
        """Return the records `ids` as an array of bytes objects."""
        if classes is not None:
            check_classes(self._examples, ids, classes)
        return np.array(self._records.read(ids), object)


def _same(plan: Plan) -> Plan:
    return plan
