"""Records to columns: what the native decoder is told, and what is made of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.features.batches import allocate, check_output, check_size, decode_blocks, sort_out
from covey.features.columns import Column
from covey.features.explain import Place, explain_misfit, explain_record, place_in
from covey.features.kinds import Feature, MisfitError
from covey.records import Block

Run = Callable[[_core.Decoder, list[Any]], list[Any]]
"""Lets a decoder decode some records, into arrays where it has some."""

NativeDecoder = tuple[_core.Decoder, tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]]
"""A decoder that fills arrays, and nothing more is to be done; and of each the shape of a row, and
the type."""


class Decoding:
    """Decodes records by column, with flat names.

    Args:
        kinds: The features.
        columns: Those that each is stored in.
    """

    def __init__(
        self, kinds: Mapping[str, Feature], columns: Mapping[str, tuple[Column, ...]]
    ) -> None:
        self._kinds = kinds
        self._columns = columns
        self._physical = [column for parts in columns.values() for column in parts]
        self._owners = [name for name, parts in columns.items() for _ in parts]
        self._allocations = [column.allocation() for column in self._physical]
        self._least_bytes = sum(column.least_bytes() for column in self._physical)
        # The usual case: the arrays that are decoded into are the columns.
        filled = all(dtype is not None for _, dtype in self._allocations)
        self._is_direct = filled and all(kind.is_direct for kind in kinds.values())
        self._decoder = _core.Decoder([column.spec() for column in self._physical])

    def decode_batch(
        self,
        records: Block | Sequence[Block] | Sequence[bytes],
        out: Mapping[str, NDArray[Any]],
    ) -> dict[str, Any]:
        """Decode blocks, or single records."""
        blocks, raw = sort_out(records)
        rows = sum(map(len, blocks)) if blocks else len(raw)
        check_size(blocks, raw, rows, self._least_bytes)

        def run(decoder: _core.Decoder, dense: list[Any]) -> list[_core.GrownColumn | None]:
            return decode_blocks(decoder, blocks, dense) if blocks else decoder.decode(raw, dense)

        return self.decode_with(run, rows, partial(place_in, blocks), out)

    def decode_with(
        self,
        run: Run,
        rows: int,
        place: Callable[[int], Place],
        out: Mapping[str, NDArray[Any]],
    ) -> dict[str, Any]:
        """Decode records that somebody else finds; ``place`` tells where one is, for messages."""
        dense = [allocate(rows, *row) for row in self._allocations]
        for name, given in out.items():
            i = self._owners.index(name)
            dense[i] = check_output(name, given, self._physical[i], rows)
        try:
            grown = run(self._decoder, dense)
        except _core.Fault as fault:
            raise explain_record(fault, self._physical, self._owners, place) from None
        if self._is_direct:
            return dict(zip(self._kinds, dense, strict=True))
        parts = iter(
            array if part is None else column.wrap(part, rows)
            for column, array, part in zip(self._physical, dense, grown, strict=True)
        )
        result: dict[str, Any] = {}
        for name, feature in self._kinds.items():
            try:
                result[name] = feature.join([next(parts) for _ in self._columns[name]])
            except MisfitError as error:
                raise explain_misfit(error, name, place) from None
        return result

    def column_of(self, name: str) -> int | None:
        """Which of the native decoder's columns is a feature that is one int64; None if none is."""
        index = self._owners.index(name) if name in self._owners else None
        if index is None or self._allocations[index] != ((), np.dtype(np.int64)):
            return None
        return index

    @property
    def native_decoder(self) -> NativeDecoder | None:
        """The native decoder, if the arrays that it fills are the columns."""
        if not self._is_direct:
            return None
        columns = ((shape, dtype) for shape, dtype in self._allocations if dtype is not None)
        return self._decoder, tuple(columns)
