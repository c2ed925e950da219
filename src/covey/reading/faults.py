"""Turning what the native core found wrong with an index or its shards into errors."""

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

_ANEW = "the shard was changed, or the index is another's: run `covey index` to rebuild it"


def explain_fault(fault: _core.Fault, where: RecordLocation) -> CoveyError:
    """Say what is wrong with a record."""
    code, found, expected = fault.code, fault.found, fault.expected
    if code == "changed":
        return changed("the shard was truncated or overwritten", where.name)
    if code == "label":
        return DatasetError(
            f"its class is {_signed(found)}, but the index says {_signed(expected)}; {_ANEW}",
            **where.fields,
        )
    if code == "length_mismatch":
        return FormatError(
            f"a record of {found} bytes begins there, the index says {expected}; {_ANEW}",
            **where.fields,
        )
    if code == "out_of_bounds":
        return FormatError(
            f"the index has a record of {found} bytes at byte {fault.offset} of {expected}; {_ANEW}",
            **where.fields,
        )
    return damaged(where, checksum_reason(fault))


def changed(what: str, path: str) -> FileChangedError:
    """An error about a shard that is not the one that was opened or indexed."""
    return FileChangedError(
        f"{what}; the dataset was changed or replaced after it was opened or indexed",
        path=path,
        remedy="open it again, or rebuild its index with `covey index`",
    )


def damaged(where: RecordLocation, reason: str) -> CorruptRecordError:
    """An error about a record that is corrupt."""
    return CorruptRecordError(
        reason, **where.fields, remedy="run `covey verify` to list the corrupt records"
    )


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
