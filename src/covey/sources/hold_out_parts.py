"""The sides of a source that was divided, read as lazily as the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.sources.source import Item, LazyItems, Source, fault


@dataclass(frozen=True, eq=False)
class HeldOutPart(Source):
    """One side of a source that was divided; its examples are read when they are asked for."""

    chosen: NDArray[np.bool_] = field(kw_only=True, repr=False)
    """For every item of the whole source, whether it is on this side."""

    def number(self, item: int) -> int:
        """The number in the whole source of an item of this side."""
        return int(np.flatnonzero(self.chosen)[item])


def part_of(source: Source, chosen: NDArray[np.bool_]) -> HeldOutPart:
    """The chosen items of a source."""
    complete: Any = source.examples
    items: Iterable[Item]
    if hasattr(complete, "__getitem__") and hasattr(complete, "__len__"):
        items = _Picked(complete, np.flatnonzero(chosen))
    else:
        items = _Sifted(complete, chosen, source.path)
    return HeldOutPart(
        source.kind,
        source.path,
        items,
        length=int(chosen.sum()),
        features=source.features,
        label=source.label,
        columns=None if source.columns is None else _Rows(source.columns, chosen),
        chosen=chosen,
    )


@dataclass(frozen=True, eq=False)
class _Picked(LazyItems):
    """Some of the items of a sequence."""

    items: Sequence[Item]
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, number: int) -> Item:
        return self.items[int(self.numbers[number])]


@dataclass(frozen=True, eq=False)
class _Sifted:
    """Some of the items of a stream, which every pass goes through as a whole."""

    items: Iterable[Item]
    chosen: NDArray[np.bool_]
    path: str

    def __iter__(self) -> Iterator[Item]:
        chosen = self.chosen.tobytes()
        count = 0
        for item in self.items:
            if count < len(chosen) and chosen[count]:
                yield item
            count += 1
        if count != len(chosen):
            what = f"it had {len(chosen):,} examples a moment ago and has {count:,} now"
            raise fault(self.path, f"{what}; leave it alone while it is read")


class _Rows(Mapping[str, Any]):
    """Some of the rows of columns, copied when a column is asked for."""

    def __init__(self, columns: Mapping[str, Any], chosen: NDArray[np.bool_]) -> None:
        self._columns = columns
        self._chosen = chosen

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if isinstance(column, Mapping):
            return _Rows(column, self._chosen)
        if isinstance(column, np.ndarray):
            return column[self._chosen]
        return list(compress(column, self._chosen))
