"""Blocks: many whole records in one buffer, the unit in which covey hands records over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FileChangedError
from covey.tfrecord.streams import SharedDescriptor, is_truncated

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole records that lie one after another in a buffer, each in its frame.

    Iterating gives the records as bytes.
    """

    data: Any
    """The buffer."""
    offsets: NDArray[np.uint64]
    """Where each record's own bytes begin in the buffer."""
    lengths: NDArray[np.uint64]
    """And how many they are."""
    name: str = "<memory>"
    """The file the records came from."""
    first: int = 0
    """The number of the first record in that file."""
    position: int = 0
    """Where the buffer begins in the (decompressed) file."""
    verified: bool = True
    """Whether the checksums of the data are known to be right."""
    mapped_from: SharedDescriptor | None = None
    """The file, if the buffer is a map of it."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        try:
            with reading([self]):
                return iter(_core.slice_records(self.data, self.offsets, self.lengths))
        except _core.Fault:
            raise ValueError(f"{self.name}: the places of a block lie outside its data") from None

    def __getitem__(self, rows: slice) -> Block:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"a block is sliced with step 1, not {step}")
        return Block(
            self.data,
            self.offsets[start:stop],
            self.lengths[start:stop],
            self.name,
            self.first + start,
            self.position,
            self.verified,
            self.mapped_from,
        )


@contextmanager
def reading(blocks: Sequence[Block]) -> Iterator[None]:
    """Make sure that what is read from blocks meanwhile is still in their files.

    The data of a block may be a map of its file, which reads as zeros once the file is truncated.

    Raises:
        FileChangedError: If it is not, in place of any other error.
    """
    try:
        yield
    finally:
        for block in blocks:
            if is_truncated(block.data, block.mapped_from, block.position + len(block.data)):
                raise FileChangedError("the file was truncated while it was read", path=block.name)


def join_blocks(blocks: Sequence[Block]) -> Block:
    """The records of several blocks in one.

    >>> len(join_blocks([]))
    0
    """
    blocks = [block for block in blocks if len(block)]
    if len(blocks) == 1:
        return blocks[0]
    sources = np.repeat(np.arange(len(blocks), dtype=np.uint32), [len(block) for block in blocks])
    empty = [np.zeros(0, np.uint64)]
    offsets = np.concatenate(empty + [block.offsets for block in blocks])
    lengths = np.concatenate(empty + [block.lengths for block in blocks])
    with reading(blocks):
        joined = _core.copy_frames([block.data for block in blocks], sources, offsets, lengths)
    return Block(*joined)


def checksum_reason(fault: _core.Fault, record: int | None = None) -> str:
    """Return the reason of the error for a wrong checksum.

    Args:
        fault: A fault with the code ``length_checksum`` or ``data_checksum``.
        record: Index of the record in its file; a wrong length of the first record suggests that
            the file has another format.
    """
    part = fault.code.removesuffix("_checksum")
    reason = f"{part} checksum is {fault.found:#010x}, expected {fault.expected:#010x}"
    if part == "length" and record == 0:
        reason += "; the file may not be a TFRecord file"
    return reason


def truncation_reason(available: int, needed: int) -> str:
    """Return the reason of the error for a truncated frame.

    Args:
        available: Bytes of the frame that the file has.
        needed: Bytes of the whole frame; 0 if its header is truncated.
    """
    expected = f"the record's {needed} bytes" if needed else f"a header of {HEADER_BYTES}"
    return f"the file ends after {available} of {expected}"


def limit_reason(needed: int, limit: int) -> str:
    """Return the reason of an error for a frame whose record exceeds ``max_record_bytes``."""
    return (
        f"the length of the record is {needed - FRAME_BYTES} bytes, over the limit of {limit}; "
        "pass a larger max_record_bytes if it is correct"
    )


def starts_with_frame(data: bytes | memoryview) -> bool:
    """Return whether data begins with the header of a frame: a length and its checksum."""
    if len(data) < HEADER_BYTES:
        return False
    return _core.scan_frames(data[:HEADER_BYTES], 1, _core.VERIFY_LENGTHS)[-1] is None
