"""Small things that batches of records and of columns need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FeatureError
from covey.records import Block


def sort_out(
    records: Block | Sequence[Block] | Sequence[bytes],
) -> tuple[list[Block], list[bytes]]:
    """Tell blocks from single records."""
    if isinstance(records, Block):
        return [records], []
    given: Any = records
    if isinstance(given, (bytes, str)):
        raise TypeError("records are a list of bytes; for a single one use decode()")
    listed = list(given)
    blocks = [each for each in listed if isinstance(each, Block)]
    if blocks and len(blocks) != len(listed):
        raise TypeError("records must be all blocks or all bytes")
    return (blocks, []) if blocks else ([], listed)


def decode_blocks(
    decoder: _core.Decoder, blocks: Sequence[Block], dense: list[NDArray[Any] | None]
) -> list[_core.GrownColumn | None]:
    """Decode the records of blocks, one after the other, verifying them if that is still to do."""
    verify = not all(block.verified for block in blocks)
    if len(blocks) == 1:
        block = blocks[0]
        return decoder.decode_places(
            [block.data], None, block.offsets, block.lengths, verify, dense
        )
    counts = [len(block) for block in blocks]
    return decoder.decode_places(
        [block.data for block in blocks],
        np.repeat(np.arange(len(blocks), dtype=np.uint32), counts),
        np.concatenate([block.offsets for block in blocks]),
        np.concatenate([block.lengths for block in blocks]),
        verify,
        dense,
    )


def count_rows(columns: Mapping[str, Any]) -> int:
    """How many rows columns have, which must be the same for all."""
    lengths: dict[str, int] = {}
    for name, column in columns.items():
        try:
            lengths[name] = len(column)
        except TypeError:
            raise FeatureError(
                f"feature {name!r}: a column is of type {type(column).__name__}, must have rows"
            ) from None
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise FeatureError(f"columns have different numbers of rows: {listed}")
    return next(iter(lengths.values()), 0)


def first_row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The one example of columns that have one row."""
    return {
        name: first_row(column) if isinstance(column, dict) else column[0]
        for name, column in columns.items()
    }
