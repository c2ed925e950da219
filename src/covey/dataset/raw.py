"""The records of a dataset as they are stored, one by one or in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from covey.dataset.selection import Ids, Selection, parse_ids
from covey.loader import Examples, Loader
from covey.loader.batch import BatchFormat
from covey.plan import Plan
from covey.reading import Gatherer

# Records that are read at once when all are gone through.
_ROWS_AT_ONCE = 256
_BYTES_AT_ONCE = 16 << 20


class RawRecords(Sequence[bytes]):
    """The records of a dataset as bytes, by their numbers.

    Args:
        examples: Of the dataset.
        gatherer: Reads the records.
        selection: Which of them are the dataset's.
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
        """The records of some numbers."""
        return self._gatherer.records(self._selection.take(ids))

    def __iter__(self) -> Iterator[bytes]:
        for ids in self.chunks():
            yield from self.read(ids)

    def chunks(self) -> Iterator[Ids]:
        """All numbers in order, as many at once as are not too large together."""
        for begin in range(0, len(self), _ROWS_AT_ONCE):
            ids = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(self)), dtype=np.int64)
            sizes = np.cumsum(self._gatherer.lengths(self._selection.take(ids)))
            cuts = np.flatnonzero(np.diff(sizes // _BYTES_AT_ONCE)) + 1
            yield from np.split(ids, cuts)

    def batches(self, plan: Plan, *, threads: int | None = None) -> Loader:
        """Batches of records, each an array of bytes, which another program decodes.

        Args:
            plan: Which records they have.
            threads: As for :meth:`covey.Dataset.batches`; none where records are mapped, for they
                are there at once.
        """
        first = self._selection.take(plan.batch(0))
        is_mapped = self._gatherer.mapped(first) is not None
        return Loader(
            _RawRecipe(self._examples, read=self.read),
            plan,
            threads=0 if is_mapped else threads,
            factory=partial(self.batches, plan, threads=threads),
        )


class _RawRecipe(BatchFormat):
    """Makes batches of records as they are."""

    def __init__(self, examples: Examples, read: Callable[[Ids], list[bytes]]) -> None:
        super().__init__(examples)
        object.__setattr__(self, "_read", read)

    @property
    def is_plain(self) -> bool:
        return False

    def make(self, ids: Ids, classes: Ids | None, go_on: Callable[[], None]) -> Any:
        go_on()
        read: Callable[[Ids], list[bytes]] = self.__dict__["_read"]
        return np.array(read(ids), object)
