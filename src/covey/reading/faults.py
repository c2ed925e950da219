"""Errors for the faults that the native core reports."""

from __future__ import annotations

from covey import _core
from covey.errors import (
    CorruptRecordError,
    CoveyError,
    DatasetError,
    FileChangedError,
    FormatError,
)
from covey.schema.diagnostics import RecordLocation
from covey.tfrecord.block import checksum_reason

_REBUILD = "the shard changed, or the index belongs to another shard; run `covey index`"


def fault_error(fault: _core.Fault, where: RecordLocation) -> CoveyError:
    """Return the error for a fault of a record."""
    code, found, expected = fault.code, fault.found, fault.expected
    if code == "changed":
        return changed_error("the shard was truncated or overwritten", where.name)
    if code == "label":
        return DatasetError(
            f"the class id is {_signed(found)}, but in the index it is {_signed(expected)}",
            **where.fields,
            remedy=_REBUILD,
        )
    if code == "length_mismatch":
        return FormatError(
            f"the record has {found} bytes, but in the index it has {expected}",
            **where.fields,
            remedy=_REBUILD,
        )
    if code == "out_of_bounds":
        return FormatError(
            f"the index has a record of {found} bytes at byte {fault.offset}, but the shard has "
            f"{expected} bytes",
            **where.fields,
            remedy=_REBUILD,
        )
    return corrupt_error(where, checksum_reason(fault))


def changed_error(reason: str, path: str) -> FileChangedError:
    """Return the error for a shard that is not the one that was opened or indexed."""
    return FileChangedError(
        f"{reason}; the dataset changed after it was opened or indexed",
        path=path,
        remedy="open it again, or rebuild its index with `covey index`",
    )


def corrupt_error(where: RecordLocation, reason: str) -> CorruptRecordError:
    """Return the error for a corrupt record."""
    return CorruptRecordError(
        reason, **where.fields, remedy="run `covey verify` to list the corrupt records"
    )


def out_of_range(record_id: int, records: int) -> IndexError:
    """Return the error for a record id that a sequence of records does not have."""
    return IndexError(f"record id {record_id} is out of range; the number of records is {records}")


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
