"""Blocks of records in the making: from examples one by one, or from rows of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.features.encoding import Encoding
from covey.records import Block


class Rows:
    """Columns that were checked: their rows are encoded in any order, by several threads."""

    def __init__(self, encoder: _core.Encoder, columns: _core.ColumnSet, rows: int) -> None:
        self._encoder = encoder
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def measure(self) -> NDArray[np.uint64]:
        """How long the record of each row will be."""
        return self._encoder.measure(self._columns)

    def encode(self, rows: NDArray[np.integer[Any]]) -> Block:
        """The records of these rows, in this order."""
        return Block(*self._encoder.encode_rows(self._columns, rows.astype(np.uint64)))

    def encode_range(self, begin: int, bytes: int) -> Block:
        """The records from this row on, as many as begin within so many bytes."""
        frames = self._encoder.encode(self._columns, begin, self._rows, bytes)
        return Block(*frames, first=begin)


class ExampleBlock:
    """A block of records in the making."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._buffer = _core.ExampleBuffer(encoding.encoder)

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def bytes(self) -> int:
        """Of the records so far, in their frames."""
        return self._buffer.bytes

    def append(self, example: Mapping[str, Any]) -> None:
        """Encode one more example, as :meth:`Features.encode` does.

        Raises:
            FeatureError: If the example does not fit; the block is as it was.
        """
        self._append(example, self._encoding.coerce)

    def append_exact(self, example: Mapping[str, Any]) -> None:
        """The same, but a value that would have to be converted does not fit."""
        self._append(example, None)

    def extend(
        self, items: Iterator[Any], keys: list[Any], *, exact: bool, bytes: int, count: int
    ) -> tuple[str, Any]:
        """Encode dicts, or pairs of a key and a dict, each before the next is asked for.

        Args:
            items: Where they come from.
            keys: Gets their keys.
            exact: Whether a value that would have to be converted does not fit.
            bytes: Stop when the block has so many, or
            count: after so many items.

        Returns:
            ``"end"`` of the items; ``"full"``; or ``"item"``, and one that does not fit at once.
        """
        if not self._encoding.is_plain:
            for item in items:
                return "item", item
            return "end", None
        coerce = None if exact else self._encoding.coerce
        return self._buffer.extend(items, coerce, keys, bytes, count)

    def _append(self, example: Mapping[str, Any], coerce: Callable[[int, Any], Any] | None) -> None:
        self._encoding.run(self._buffer.append, example, coerce)

    def take(self) -> Block:
        """The records so far; the next block begins."""
        return Block(*self._buffer.take())
