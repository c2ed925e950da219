"""Errors for the faults that the native core finds: with file, record and feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from covey import _core
from covey.errors import (
    CorruptRecordError,
    CoveyError,
    DatasetError,
    ExampleError,
    FeatureError,
    FileChangedError,
    FormatError,
)
from covey.schema.columns import Column
from covey.tfrecord import Block
from covey.tfrecord.block import HEADER_BYTES, checksum_reason

_MEMORY = "<memory>"

_REBUILD = "the shard changed, or the index belongs to another shard; run `covey index`"

_LISTS = {0: "no list", 1: "a bytes list", 2: "a float list", 3: "an int64 list"}

_WIRE_FAULTS = {
    "varint": "a varint is truncated or too long",
    "tag": "a field has an invalid tag",
    "length": "a length exceeds the message",
    "group": "a group has no end, or groups are nested too deeply",
    "packed_floats": "the size of a packed list of floats is not a multiple of 4",
}


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Location of a record."""

    name: str
    """Path of the file."""
    record: int
    """Index of the record in the file."""
    offset: int
    """Byte offset of the frame (in the decompressed file)."""

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of an error at this location."""
        if self.name == _MEMORY:
            return {"record": self.record}
        return {"path": self.name, "record": self.record, "offset": self.offset}

    def error(self, error: CoveyError, feature: str) -> ExampleError:
        """Return the error for a record with an invalid value of `feature`."""
        names = ("option", "found", "allowed", "remedy")
        fields = {name: getattr(error, name) for name in names}
        return ExampleError(error.reason, feature=feature, **self.fields, **fields)

    def __str__(self) -> str:
        if self.name == _MEMORY:
            return f"record {self.record}"
        return f"{self.name}: record {self.record} at byte {self.offset}"


def add_feature(error: CoveyError, feature: str) -> CoveyError:
    """Set the feature of an error, and return the error."""
    error.feature = feature
    return error


def example_reason(fault: _core.Fault) -> str:
    """Return the reason of the error for a record that is not a protocol buffer."""
    return (
        f"{_WIRE_FAULTS[fault.code]} at byte {fault.offset} of the record; "
        "it is not a tf.train.Example"
    )


def record_error(
    fault: _core.Fault,
    where: RecordLocation,
    columns: Sequence[Column] = (),
    owners: Sequence[str] = (),
) -> CoveyError:
    """Return the error for a record that cannot be read or decoded.

    Args:
        fault: The fault that the native core raised.
        where: The location of the record.
        columns: The columns of the decoder.
        owners: The feature of each column.
    """
    found, expected, fields = fault.found, fault.expected, where.fields
    match fault.code:
        case "data_checksum" | "length_checksum":
            return corrupt_error(where, checksum_reason(fault))
        case "changed":
            return changed_error("the shard was truncated or overwritten", where.name)
        case "label":
            reason = f"the class id is {_signed(found)}, but in the index it is {_signed(expected)}"
            return DatasetError(reason, **fields, remedy=_REBUILD)
        case "length_mismatch":
            reason = f"the record has {found} bytes, but in the index it has {expected}"
            return FormatError(reason, **fields, remedy=_REBUILD)
        case "out_of_bounds":
            reason = f"it has {found} bytes at byte {fault.offset} of {expected} bytes"
            return FormatError(f"the record exceeds its file: {reason}", **fields, remedy=_REBUILD)
    if fault.column >= len(columns):
        return ExampleError(example_reason(fault), **fields)
    column, feature = columns[fault.column], owners[fault.column]
    is_wire = fault.code in _WIRE_FAULTS
    reason = example_reason(fault) if is_wire else _mismatch_reason(fault, column)
    if column.key != feature:
        reason += f" (stored as {column.key!r})"
    return ExampleError(reason, **fields, feature=feature)


def corrupt_error(where: RecordLocation, reason: str) -> CorruptRecordError:
    """Return the error for a corrupt record."""
    return CorruptRecordError(
        reason, **where.fields, remedy="run `covey verify` to list the corrupt records"
    )


def changed_error(reason: str, path: str) -> FileChangedError:
    """Return the error for a shard that is not the one that was opened or indexed."""
    return FileChangedError(
        f"{reason}; the dataset changed after it was opened or indexed",
        path=path,
        remedy="open it again, or rebuild its index with `covey index`",
    )


def locate_in(blocks: Sequence[Block], row: int) -> RecordLocation:
    """Return the location of a row of blocks; without blocks, of a record in memory."""
    for block in blocks:
        if row < len(block):
            offset = block.position + int(block.offsets[row]) - HEADER_BYTES
            return RecordLocation(block.name, block.first + row, offset)
        row -= len(block)
    return RecordLocation(_MEMORY, row, 0)


def _mismatch_reason(fault: _core.Fault, column: Column) -> str:
    """Return the reason of the error for a value that does not match its column."""
    found, expected = fault.found, fault.expected
    multiple = " or a multiple" if column.layout == "variable" else ""
    match fault.code:
        case "missing":
            return "it is missing; declare it with a default if records may lack it"
        case "kind":
            return f"it is stored as {_LISTS[found]}, expected {_LISTS[expected]}"
        case "count":
            return f"it has {found} values, expected {expected}{multiple if expected > 1 else ''}"
        case "bytes":
            kind = f"{column.dtype} {column.shape}"
            return f"it has {found} bytes, expected {expected}{multiple} for {kind}"
        case "utf8":
            return "a string is not valid UTF-8; declare the feature as bytes"
    return f"the value {_signed(found)} does not fit {column.dtype}"


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


def value_error(fault: _core.Fault, columns: Sequence[Column], owners: Sequence[str]) -> CoveyError:
    """Return the error for a value that cannot be encoded."""
    name, key = owners[fault.column], columns[fault.column].key
    reasons = {
        "missing": "it is missing; declare it with a default if examples may lack it",
        "inexact": "the value does not have the type of the feature",
        "string": "a value is not bytes and not a string that is valid UTF-8",
        "size": f"{key!r} has the wrong number of values",
        "splits": f"the row splits of {key!r} do not match its values",
    }
    return FeatureError(reasons.get(fault.code, "the value is invalid"), feature=name)
