"""Errors for the faults that the native codec finds: with file, record and feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey import _core
from covey.errors import CorruptRecordError, CoveyError, ExampleError, FeatureError
from covey.schema.columns import Column
from covey.tfrecord import Block
from covey.tfrecord.block import HEADER_BYTES, checksum_reason

_MEMORY = "<memory>"

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
        return ExampleError(
            error.reason,
            **self.fields,
            feature=feature,
            option=error.option,
            found=error.found,
            allowed=error.allowed,
            remedy=error.remedy,
        )

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
    columns: Sequence[Column],
    owners: Sequence[str],
    locate: Callable[[int], RecordLocation],
) -> CoveyError:
    """Return the error for a record that cannot be decoded.

    Args:
        fault: The fault that the decoder raised.
        columns: The columns of the decoder.
        owners: The feature of each column.
        locate: Function that returns the location of a row.
    """
    fields = locate(fault.row).fields
    if fault.code in ("data_checksum", "length_checksum"):
        remedy = "pass on_error='skip' to read the valid records"
        return CorruptRecordError(checksum_reason(fault), **fields, remedy=remedy)
    if fault.code == "out_of_bounds":
        reason = (
            f"the record has {fault.found} bytes at byte {fault.offset} of a buffer of "
            f"{fault.expected} bytes"
        )
        return ExampleError(reason, **fields)
    is_wire = fault.code in _WIRE_FAULTS
    if fault.column >= len(columns):
        return ExampleError(example_reason(fault), **fields)
    column, feature = columns[fault.column], owners[fault.column]
    reason = example_reason(fault) if is_wire else _mismatch_reason(fault, column)
    if column.key != feature:
        reason += f" (stored as {column.key!r})"
    return ExampleError(reason, **fields, feature=feature)


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
    signed = found - 2**64 if found >= 2**63 else found
    return f"the value {signed} does not fit {column.dtype}"


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
