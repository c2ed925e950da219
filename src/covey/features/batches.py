"""Small things that batches of records and of columns need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import ExampleError, FeatureError
from covey.features.columns import Column
from covey.records import Block
from covey.records.block import reading


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
    verified = all(block.verified for block in blocks)
    check = _core.CHECK_NOTHING if verified else _core.CHECK_DATA
    if len(blocks) == 1:
        block = blocks[0]
        sources, offsets, lengths = None, block.offsets, block.lengths
    else:
        counts = [len(block) for block in blocks]
        sources = np.repeat(np.arange(len(blocks), dtype=np.uint32), counts)
        offsets = np.concatenate([block.offsets for block in blocks])
        lengths = np.concatenate([block.lengths for block in blocks])
    with reading(blocks):
        data = [block.data for block in blocks]
        return decoder.decode_places(data, sources, offsets, lengths, check, dense)


# Arrays up to this size are made because a schema says so; larger ones only if the records have the
# bytes to fill them.
_TRUSTED_BYTES = 64 << 20


def check_size(blocks: Sequence[Block], raw: Sequence[bytes], rows: int, least: int) -> None:
    """Make sure that records have the bytes for the memory that their features ask for.

    Args:
        blocks, raw: The records.
        rows: How many they are.
        least: The fewest bytes that one of them can have.
    """
    if rows * least <= _TRUSTED_BYTES:
        return
    size = sum(int(block.lengths.sum()) for block in blocks) + sum(map(len, raw))
    if rows * least > size:
        raise ExampleError(
            f"these {rows} records have {size} bytes, but {least} each are the least that these "
            "features need; they are not of these features",
            name=blocks[0].name if blocks else "<memory>",
            record=blocks[0].first if blocks else 0,
            feature=None,
        )


def allocate(rows: int, shape: tuple[int, ...], dtype: np.dtype[Any] | None) -> NDArray[Any] | None:
    """The array that a column is decoded into, if it has one."""
    return None if dtype is None else np.empty((rows, *shape), dtype)


def check_output(name: str, given: Any, column: Column, rows: int) -> NDArray[Any]:
    """Make sure that a feature can be decoded into an array that was given for it."""
    has_array = column.allocation()[1] is not None and column.key == name
    if not has_array or not isinstance(given, np.ndarray):
        raise FeatureError(f"feature {name!r} is not decoded into an array that is given")
    shape = (rows, *column.shape)
    fits = given.dtype == column.numpy_dtype and given.shape == shape
    if not fits or not given.flags.c_contiguous:
        raise FeatureError(
            f"feature {column.key!r}: the array to decode into is {given.dtype} {given.shape}, "
            f"expected contiguous {column.dtype} {shape}"
        )
    return given


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


def row_of(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    """One example of columns."""
    return {
        name: row_of(column, row) if isinstance(column, dict) else column[row]
        for name, column in columns.items()
    }


def leaf(columns: Any) -> Any:
    """The one column of features of which one was selected."""
    while isinstance(columns, dict):
        (columns,) = columns.values()
    return columns
