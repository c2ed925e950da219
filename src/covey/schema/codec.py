"""Small things that batches of records and of columns need.

Examples and columns to records: what the native encoder is given, and what it finds wrong.

Records to columns: what the native decoder is told, and what is made of the result.

Blocks of records in the making: from examples one by one, or from rows of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import ExampleError, FeatureError
from covey.schema.columns import Column
from covey.schema.diagnostics import (
    RecordLocation,
    explain_misfit,
    explain_record,
    explain_value,
    locate_in,
)
from covey.schema.types import Feature, MisfitError
from covey.tfrecord import Block
from covey.tfrecord.block import reading


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
        return decoder.decode_buffers(data, sources, offsets, lengths, check, dense)


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
            path=blocks[0].name if blocks else None,
            record=blocks[0].first if blocks else 0,
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
            f"the array to decode into is {given.dtype} {given.shape}, expected contiguous "
            f"{column.dtype} {shape}",
            feature=column.key,
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
                f"a column is of type {type(column).__name__}, must have rows", feature=name
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


T = TypeVar("T")


class Encoding:
    """Encodes examples.

    Args:
        kinds: The features.
        columns: Those that each is stored in.
        flatten: Brings an example or columns into flat form, and checks their names.
        is_plain: Whether values are stored as they are, under names that are not nested.
    """

    def __init__(
        self,
        kinds: Mapping[str, Feature],
        columns: Mapping[str, tuple[Column, ...]],
        flatten: Callable[[Mapping[str, Any]], dict[str, Any]],
        is_plain: bool,
    ) -> None:
        for name, (column, *_) in columns.items():
            if column.layout == "steps":
                kinds[name].split(None, ())  # says that they cannot be written
        self.is_plain = is_plain
        self._kinds = kinds
        self._columns = columns
        self._flatten = flatten
        self._physical = [column for parts in columns.values() for column in parts]
        self._owners = [name for name, parts in columns.items() for _ in parts]
        self.encoder = _core.Encoder([column.spec() for column in self._physical])

    def encode(self, example: Mapping[str, Any]) -> bytes:
        """The record of one example."""
        return self.run(self.encoder.encode_example, example, self.coerce)

    def run(self, encode: Callable[..., T], example: Mapping[str, Any], coerce: Any) -> T:
        """Let an example be encoded, in the form that the native encoder takes."""
        plain = self.is_plain and type(example) is dict
        try:
            return encode(example if plain else self._split(example), coerce)
        except _core.Fault as fault:
            reason = fault
        try:
            if reason.code == "extra":
                # Says which name is too much, unless there is nothing behind it.
                return encode(self._split(example), coerce)
        except _core.Fault as fault:
            reason = fault
        raise explain_value(reason, self._physical, self._owners)

    def coerce(self, index: int, value: Any) -> Any:
        """A value as the column at an index takes it."""
        try:
            return self._physical[index].coerce(value)
        except FeatureError as error:
            raise _about(self._owners[index], error) from None

    def _split(self, example: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in self._flatten(example).items():
            columns = self._columns[name]
            if value is None and not columns[0].required:
                continue
            try:
                parts = self._kinds[name].split(value, columns)
            except FeatureError as error:
                raise _about(name, error) from None
            values.update(zip((column.key for column in columns), parts, strict=True))
        return values

    def check_columns(self, columns: Mapping[str, Any]) -> tuple[_core.ColumnSet, int]:
        """Check columns once: (what the native encoder takes, rows)."""
        flat = self._flatten(columns)
        rows = count_rows(flat)
        given: list[Any] = []
        for name, physical in self._columns.items():
            if name not in flat:
                given.extend(None for _ in physical)
                continue
            try:
                given.extend(self._kinds[name].split_batch(flat[name], rows, physical))
            except FeatureError as error:
                raise _about(name, error) from None
        try:
            return self.encoder.columns(given, rows), rows
        except _core.Fault as fault:
            raise explain_value(fault, self._physical, self._owners) from None


def _about(name: str, error: FeatureError) -> FeatureError:
    return FeatureError(f"{error}", feature=name)


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

        return self.decode_with(run, rows, partial(locate_in, blocks), out)

    def decode_with(
        self,
        run: Run,
        rows: int,
        place: Callable[[int], RecordLocation],
        out: Mapping[str, NDArray[Any]],
    ) -> dict[str, Any]:
        """Decode records that another program finds; ``place`` tells where one is, for messages."""
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
