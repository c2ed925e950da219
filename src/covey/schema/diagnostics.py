"""Turning what the native codec found wrong into errors that name file, record and feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covey import _core
from covey.errors import CorruptRecordError, CoveyError, ExampleError, FeatureError
from covey.schema.columns import Column
from covey.schema.types import MisfitError
from covey.tfrecord import Block
from covey.tfrecord.block import HEADER_BYTES, checksum_reason

_MEMORY = "<memory>"

_KINDS = {0: "no list", 1: "a bytes list", 2: "a float list", 3: "an int64 list"}

_WIRE_FAULTS = {
    "varint": "a varint is cut off or too long",
    "tag": "a field has an impossible tag",
    "length": "a length points past the end",
    "group": "a group is not closed, or nested too deeply",
    "packed_floats": "a packed list of floats has a size that is not a multiple of 4",
}


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Where a record is."""

    name: str
    """The file."""
    record: int
    """Its number in the file."""
    offset: int
    """Where its frame begins (in the decompressed file)."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an error at this location."""
        if self.name == _MEMORY:
            return {"record": self.record}
        return {"path": self.name, "record": self.record, "offset": self.offset}

    def __str__(self) -> str:
        if self.name == _MEMORY:
            return f"record {self.record}"
        return f"{self.name}: record {self.record} at byte {self.offset}"


def explain_record(
    fault: _core.Fault,
    columns: Sequence[Column],
    owners: Sequence[str],
    find: Callable[[int], RecordLocation],
) -> CoveyError:
    """Say which record cannot be decoded, and why.

    Args:
        fault: What the decoder found.
        columns: The columns it decoded, and
        owners: the name of the feature that each belongs to.
        find: Tells where a record is.
    """
    code, found, expected, index = fault.code, fault.found, fault.expected, fault.column
    where = find(fault.row)
    if code in ("data_checksum", "length_checksum"):
        return CorruptRecordError(
            checksum_reason(fault),
            **where.fields,
            remedy="pass on_error='skip' to read the valid records",
        )
    feature = owners[index] if index < len(columns) else None
    if code in _WIRE_FAULTS:
        what = f"{_WIRE_FAULTS[code]} (byte {fault.offset} of it), so it is not a tf.train.Example"
    elif code == "out_of_bounds":
        what = f"its place, {found} bytes at {fault.offset}, lies outside the {expected} that are there"
    else:
        what = _misfit(code, found, expected, columns[index])
    if feature is not None:
        key = columns[index].key
        stored = "" if key == feature else f" (stored as {key!r})"
        what += stored
    return ExampleError(what, **where.fields, feature=feature)


def explain_misfit(
    error: MisfitError, feature: str, find: Callable[[int], RecordLocation]
) -> CoveyError:
    """Say in which record the columns of a feature contradict each other."""
    return wrong_value(error, feature, find(error.row))


def wrong_value(error: Exception, feature: str, where: RecordLocation) -> ExampleError:
    """An error about the value of a feature, of a record that is somewhere."""
    return ExampleError(str(error), **where.fields, feature=feature)


def locate_in(blocks: Sequence[Block], row: int) -> RecordLocation:
    """Where a row of some blocks is; of none, if records were single bytes."""
    for block in blocks:
        if row < len(block):
            offset = block.position + int(block.offsets[row]) - HEADER_BYTES
            return RecordLocation(block.name, block.first + row, offset)
        row -= len(block)
    return RecordLocation(_MEMORY, row, 0)


def _misfit(code: str, found: int, expected: int, column: Column) -> str:
    if code == "missing":
        return "it is not there; if it may be missing, declare it with a default"
    if code == "kind":
        return f"it holds {_KINDS[found]}, expected {_KINDS[expected]}"
    if code == "count":
        multiple = " or a multiple" if column.layout == "variable" and expected > 1 else ""
        return f"it has {found} values, expected {expected}{multiple}"
    if code == "bytes":
        multiple = " or a multiple" if column.layout == "variable" else ""
        return (
            f"it has {found} bytes, expected {expected}{multiple} for {column.dtype} {column.shape}"
        )
    if code == "utf8":
        return "it holds a string that is not a valid UTF-8; declare it as bytes"
    signed = found - 2**64 if found >= 2**63 else found
    return f"it holds {signed}, which is no {column.dtype}"


def explain_value(
    fault: _core.Fault, columns: Sequence[Column], owners: Sequence[str]
) -> CoveyError:
    """Say which value cannot be encoded, and why."""
    name, key = owners[fault.column], columns[fault.column].key
    reasons = {
        "missing": "it is missing; declare it with a default if it may be",
        "inexact": "the value is not of the type of its feature",
        "string": "a value is neither bytes nor a string that is valid UTF-8",
        "size": f"{key!r} has the wrong number of values",
        "splits": f"the row splits of {key!r} do not fit its values",
    }
    return FeatureError(f"{reasons.get(fault.code, 'its values do not fit')}", feature=name)
