"""The codec between examples and records, on top of the native encoder and decoder.

:class:`ExampleEncoder` and :class:`RecordDecoder` belong to one schema.
:class:`Rows` encodes rows of columns in any order, :class:`ExampleBlock` collects single examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import CoveyError, ExampleError, FeatureError
from covey.schema.audio import is_hugging_face_file
from covey.schema.diagnostics import (
    RecordLocation,
    add_feature,
    locate_in,
    record_error,
    value_error,
)
from covey.schema.types import InconsistentColumnsError
from covey.tfrecord import Block

if TYPE_CHECKING:
    from covey.schema.features import Features

Rounding = Mapping[str, tuple[int, int]]
"""How many numbers in the lists of a feature were rounded to float32, and how many there are."""


def add_rounding(parts: Iterable[Rounding]) -> Rounding:
    """Return the sums of what was rounded in several parts of the examples."""
    found: dict[str, tuple[int, int]] = {}
    for part in parts:
        for name, (rounded, total) in part.items():
            before = found.get(name, (0, 0))
            found[name] = (before[0] + rounded, before[1] + total)
    return found


MAX_DEPTH = 32
"""Maximum number of levels of nested features."""


def split_records(
    records: Block | Sequence[Block] | Sequence[bytes],
) -> tuple[list[Block], list[bytes]]:
    """Return the blocks and the single records; one of the two lists is empty."""
    if isinstance(records, Block):
        return [records], []
    given: Any = records
    if isinstance(given, (bytes, str)):
        raise TypeError("records is a single record; must be a list of bytes, or use decode()")
    listed = list(given)
    blocks = [each for each in listed if isinstance(each, Block)]
    if blocks and len(blocks) != len(listed):
        raise TypeError("records must be all blocks or all bytes")
    return (blocks, []) if blocks else ([], listed)


# Arrays up to this size are allocated as the schema requires; larger ones only if the records have
# enough bytes to fill them.
_TRUSTED_BYTES = 64 << 20


def count_rows(columns: Mapping[str, Any]) -> int:
    """Return the number of rows of columns, which must be equal."""
    lengths: dict[str, int] = {}
    for name, column in columns.items():
        try:
            lengths[name] = len(column)
        except TypeError:
            raise FeatureError(
                f"the column is of type {type(column).__name__}; must be a sequence", feature=name
            ) from None
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        raise FeatureError(f"columns have different numbers of rows: {listed}")
    return next(iter(lengths.values()), 0)


def nest(values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Return values by path as nested dicts.

    >>> nest({("box", "corner"): 1, ("box", "size"): 2, ("x",): 3})
    {'box': {'corner': 1, 'size': 2}, 'x': 3}
    """
    nested: dict[str, Any] = {}
    for (*parents, last), value in values.items():
        target = nested
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return nested


def flat_items(
    nested: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of nested dicts with their paths."""
    if len(path) > MAX_DEPTH:
        raise FeatureError(f"examples are nested deeper than {MAX_DEPTH} levels")
    for key, value in nested.items():
        if not isinstance(key, str):
            raise FeatureError(f"the name of a feature is {key!r}; must be a string")
        if isinstance(value, Mapping) and not is_hugging_face_file(value):
            yield from flat_items(value, (*path, key))
        else:
            yield (*path, key), value


def row_of(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return one example of columns."""
    return {
        name: row_of(column, row) if isinstance(column, dict) else column[row]
        for name, column in columns.items()
    }


def leaf(columns: Any) -> Any:
    """Return the column of a selection of one feature."""
    while isinstance(columns, dict):
        (columns,) = columns.values()
    return columns


T = TypeVar("T")


class ExampleEncoder:
    """Encoder of the examples of one schema.

    Args:
        features: The schema.
    """

    def __init__(self, features: Features) -> None:
        for name, (column, *_) in features.storage.items():
            if column.layout == "steps":
                features[name].split(None, ())  # raises: steps cannot be written
        self.is_plain = features.is_plain
        self._features = features
        self._physical, self.owners = features.physical, features.owners
        self.encoder = _core.Encoder([column.spec() for column in self._physical])

    def encode(self, example: Mapping[str, Any]) -> bytes:
        """Return the record of one example."""
        return self.run(self.encoder.encode_example, example, self.coerce)

    def run(self, encode: Callable[..., T], example: Mapping[str, Any], coerce: Any) -> T:
        """Call a native encoder with an example in its flat form."""
        plain = self.is_plain and type(example) is dict
        try:
            return encode(example if plain else self._split(example), coerce)
        except _core.Fault as fault:
            first = fault
        try:
            if first.code == "extra":
                # The split form names the unknown feature, unless its value is an empty dict.
                return encode(self._split(example), coerce)
        except _core.Fault as fault:
            first = fault
        raise value_error(first, self._physical, self.owners)

    def coerce(self, index: int, value: Any) -> Any:
        """Convert a value to the type of the column at `index`."""
        try:
            return self._physical[index].coerce(value)
        except FeatureError as error:
            raise add_feature(error, self.owners[index]) from None

    def _split(self, example: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in self._features.flatten(example).items():
            columns = self._features.storage[name]
            if value is None and not columns[0].required:
                continue
            try:
                parts = self._features[name].split(value, columns)
            except FeatureError as error:
                raise add_feature(error, name) from None
            values.update(zip((column.key for column in columns), parts, strict=True))
        return values

    def check_columns(self, columns: Mapping[str, Any]) -> tuple[_core.ColumnSet, int]:
        """Check columns once; return them in the form of the native encoder, and the row count."""
        flat = self._features.flatten(columns)
        rows = count_rows(flat)
        given: list[Any] = []
        for name, physical in self._features.storage.items():
            if name not in flat:
                given.extend(None for _ in physical)
                continue
            try:
                given.extend(self._features[name].split_batch(flat[name], rows, physical))
            except FeatureError as error:
                raise add_feature(error, name) from None
        try:
            return self.encoder.columns(given, rows), rows
        except _core.Fault as fault:
            raise value_error(fault, self._physical, self.owners) from None


RowArray = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype of one row of a column."""
NativeDecoder = tuple[_core.Decoder, tuple[RowArray, ...]]
"""A decoder whose arrays are the columns, and the shape of a row and the dtype of each array."""


class RecordDecoder:
    """Decoder of the records of one schema.

    To decode records: :meth:`allocate`, a call of the native core, :meth:`assemble`. A fault of
    either has the row of its record, which the caller locates for :meth:`error`.

    Args:
        features: The schema.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._physical = features.physical
        self._allocations = [column.allocation() for column in self._physical]
        self._min_bytes = sum(column.min_bytes() for column in self._physical)
        # The common case: the arrays that the native decoder fills are the result.
        filled = all(dtype is not None for _, dtype in self._allocations)
        self._is_direct = filled and all(kind.is_direct for kind in features.values())
        self.native = _core.Decoder([column.spec() for column in self._physical])

    def allocate(self, rows: int) -> list[NDArray[Any] | None]:
        """Return the arrays that records are decoded into; None where the native decoder grows it.

        Args:
            rows: Number of records.
        """
        return [
            None if dtype is None else np.empty((rows, *shape), dtype)
            for shape, dtype in self._allocations
        ]

    def assemble(
        self, dense: list[NDArray[Any] | None], grown: list[_core.GrownColumn | None], rows: int
    ) -> dict[str, Any]:
        """Return the columns of decoded records.

        Args:
            dense: The arrays of :meth:`allocate`, filled.
            grown: What the native decoder returned.
            rows: Number of records.

        Raises:
            InconsistentColumnsError: If the columns of a feature contradict each other in a row.
        """
        if self._is_direct:
            return self._features.nest(dict(zip(self._features, dense, strict=True)))
        parts = iter(
            array if part is None else column.wrap(part, rows)
            for column, array, part in zip(self._physical, dense, grown, strict=True)
        )
        result: dict[str, Any] = {}
        for name, feature in self._features.items():
            try:
                result[name] = feature.join([next(parts) for _ in self._features.storage[name]])
            except InconsistentColumnsError as error:
                raise add_feature(error, name) from None
        return self._features.nest(result)

    def error(
        self, fault: _core.Fault | InconsistentColumnsError, where: RecordLocation
    ) -> CoveyError:
        """Return the error for a record at a location."""
        if isinstance(fault, InconsistentColumnsError):
            return where.error(fault, fault.feature or "")
        return record_error(fault, where, self._physical, self._features.owners)

    def decode_batch(self, records: Block | Sequence[Block] | Sequence[bytes]) -> dict[str, Any]:
        """Decode blocks, or single records."""
        blocks, raw = split_records(records)
        rows = sum(map(len, blocks)) if blocks else len(raw)
        self._check_size(blocks, raw, rows)
        dense = self.allocate(rows)
        try:
            grown = self._decode(blocks, dense) if blocks else self.native.decode(raw, dense)
            return self.assemble(dense, grown, rows)
        except (_core.Fault, InconsistentColumnsError) as fault:
            raise self.error(fault, locate_in(blocks, fault.row)) from None

    def _decode(
        self, blocks: Sequence[Block], dense: list[NDArray[Any] | None]
    ) -> list[_core.GrownColumn | None]:
        """Decode the records of blocks in order, and verify their checksums if not done yet."""
        verified = all(block.verified for block in blocks)
        check = _core.CHECK_NOTHING if verified else _core.CHECK_DATA
        counts = [len(block) for block in blocks]
        sources = np.repeat(np.arange(len(blocks), dtype=np.uint32), counts)
        offsets = np.concatenate([block.offsets for block in blocks])
        lengths = np.concatenate([block.lengths for block in blocks])
        data = [block.data for block in blocks]
        return self.native.decode_buffers(data, sources, offsets, lengths, check, dense)

    def _check_size(self, blocks: Sequence[Block], raw: Sequence[bytes], rows: int) -> None:
        """Check that records have enough bytes for the arrays that their features require."""
        needed = rows * self._min_bytes
        if needed <= _TRUSTED_BYTES:
            return
        size = sum(int(block.lengths.sum()) for block in blocks) + sum(map(len, raw))
        if needed > size:
            raise ExampleError(
                f"the {rows} records have {size} bytes in total, but records of these features "
                f"have at least {self._min_bytes} bytes each",
                **locate_in(blocks, 0).fields,
            )

    def column_of(self, name: str) -> int | None:
        """Return the native column of a feature that is a single int64; None for others."""
        owners = self._features.owners
        index = owners.index(name) if name in owners else None
        if index is None or self._allocations[index] != ((), np.dtype(np.int64)):
            return None
        return index

    def native_decoder(self, images: Mapping[str, RowArray]) -> NativeDecoder | None:
        """Return the native decoder, if its arrays are the columns; else None.

        Args:
            images: The shape and dtype of the decoded images of each image feature.
        """
        columns: list[RowArray] = []
        for name, kind in self._features.items():
            shape, dtype = self._allocations[len(columns)]
            if name in images:
                columns.append(images[name])
            elif kind.is_direct and dtype is not None:
                columns.append((shape, dtype))
            else:
                return None
        return self.native, tuple(columns)


class Rows:
    """Checked columns, whose rows can be encoded in any order, by several threads."""

    def __init__(self, encoder: _core.Encoder, columns: _core.ColumnSet, rows: int) -> None:
        self._encoder = encoder
        self._columns = columns
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def measure(self) -> NDArray[np.uint64]:
        """Return the length of the record of each row."""
        return self._encoder.measure(self._columns)

    def encode(self, rows: NDArray[np.integer[Any]]) -> Block:
        """Return the records of rows, in this order."""
        return Block(*self._encoder.encode_rows(self._columns, rows.astype(np.uint64)))

    def encode_range(self, begin: int, bytes: int) -> Block:
        """Return records from row `begin` on, until they have `bytes` bytes."""
        frames = self._encoder.encode(self._columns, begin, self._rows, bytes)
        return Block(*frames, first=begin)


class ExampleBlock:
    """A block of records that is filled with examples.

    Args:
        encoding: The encoder.
        observes: Whether to know what is rounded, and the ranges of integers.
    """

    def __init__(self, encoding: ExampleEncoder, *, observes: bool = False) -> None:
        self._encoding = encoding
        self._buffer = _core.ExampleBuffer(encoding.encoder, observes)

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def bytes(self) -> int:
        """Size of the frames in bytes."""
        return self._buffer.bytes

    @property
    def rounding(self) -> Rounding:
        """Numbers of lists in the block that were rounded to float32, if they are observed."""
        counted = zip(self._encoding.owners, self._buffer.rounding, strict=False)
        return {name: counts for name, counts in counted if counts[1]}

    @property
    def integer_ranges(self) -> dict[str, tuple[int, int]]:
        """The minimum and the maximum of 0 and all integers of each feature that were added."""
        found: dict[str, tuple[int, int]] = {}
        for name, limits in zip(self._encoding.owners, self._buffer.integer_ranges, strict=False):
            found.setdefault(name, limits)  # the values of a feature are its first column
        return found

    def append(self, example: Mapping[str, Any]) -> None:
        """Encode an example like :meth:`Features.encode`.

        Raises:
            FeatureError: If the example does not match the features; the block is unchanged.
        """
        self._append(example, self._encoding.coerce)

    def append_exact(self, example: Mapping[str, Any]) -> None:
        """Encode an example whose values need no conversion; others raise FeatureError."""
        self._append(example, None)

    def extend(
        self, items: Iterator[Any], keys: list[Any], *, exact: bool, bytes: int, count: int
    ) -> tuple[str, Any]:
        """Encode dicts, or pairs of a key and a dict; each before the next is requested.

        Args:
            items: The items.
            keys: List that the keys are appended to.
            exact: Reject values that need a conversion.
            bytes: Stop when the block has this size.
            count: Stop after this number of items.

        Returns:
            ``("end", None)`` if the items are exhausted, ``("full", None)`` at a limit, or
            ``("item", item)`` for an item that could not be encoded.
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
        """Return the block, and start the next one, whose numbers are counted from 0."""
        return Block(*self._buffer.take())
