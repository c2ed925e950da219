"""Blocks of records, and the locations of records in a file.

A block has many complete records in one buffer; it is the unit in which records are processed.

The location of a record is for random access. In a plain file it is the ``offset`` of the frame. In
a file of small GZIP members it is the ``offset`` of the member, and the ``inner_offset`` of the
frame in the decompressed member. Other compressed files can only be read from their beginning:
``offset`` is 0, and ``inner_offset`` is the offset in the decompressed file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FormatError

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Complete records, consecutive in a buffer, each in its frame.

    Iteration yields the records as bytes.
    """

    data: Any
    """The buffer."""
    offsets: NDArray[np.uint64]
    """Offset of each record's data in the buffer."""
    lengths: NDArray[np.uint64]
    """Length of each record's data."""
    name: str = "<memory>"
    """Path of the file that the records are from."""
    first: int = 0
    """Index of the first record in that file."""
    position: int = 0
    """Offset of the buffer in the (decompressed) file."""
    verified: bool = True
    """Whether the checksums of the data were verified."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[bytes]:
        try:
            return iter(_core.slice_records(self.data, self.offsets, self.lengths))
        except _core.Fault:
            raise ValueError(f"{self.name}: a record of the block is outside its data") from None

    def __getitem__(self, rows: slice) -> Block:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"the step of the slice is {step}; must be 1")
        return replace(
            self,
            offsets=self.offsets[start:stop],
            lengths=self.lengths[start:stop],
            first=self.first + start,
        )


def join_blocks(blocks: Sequence[Block]) -> Block:
    """Return the records of several blocks in one.

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
    return Block(*_core.copy_frames([each.data for each in blocks], sources, offsets, lengths))


def checksum_reason(fault: _core.Fault) -> str:
    """Return the reason of the error for a wrong checksum, a fault of the native core."""
    part = fault.code.removesuffix("_checksum")
    return f"{part} checksum is {fault.found:#010x}, expected {fault.expected:#010x}"


def starts_with_frame(data: bytes | memoryview) -> bool:
    """Return whether data begins with the header of a frame: a length and its checksum."""
    if len(data) < HEADER_BYTES:
        return False
    return _core.scan_frames(data[:HEADER_BYTES], 1, _core.VERIFY_LENGTHS)[-1] is None


# One row per record: the arguments of RecordReader.read_at, and the length of the record.
LOCATION_DTYPE = np.dtype([("offset", "<u8"), ("inner_offset", "<u8"), ("length", "<u8")])

# Of each member of a compressed file: (decompressed bytes before it, offset in the file).
Members = list[tuple[int, int]]

# Records in a member that exceeds this size by more than one record are not addressed by member.
MAX_MEMBER_BYTES = 4 << 20


def longest_member(lengths: NDArray[Any]) -> int:
    """Return the maximum size of the members through which records are addressed."""
    return MAX_MEMBER_BYTES + FRAME_BYTES + (int(lengths.max()) if len(lengths) else 0)


class RecordLocations:
    """Locations of the records of a file, collected block by block.

    Args:
        compression: Compression of the file.
    """

    def __init__(self, compression: str | None) -> None:
        self.members: Members = []
        """Members of a compressed file, filled by the caller."""
        self._compression = compression
        # Of each block: its position, and the offsets and lengths of its records.
        self._blocks: list[tuple[int, NDArray[np.uint64], NDArray[np.uint64]]] = []

    def __len__(self) -> int:
        return sum(len(lengths) for _, _, lengths in self._blocks)

    def add(self, block: Block) -> None:
        """Add the records of the next block."""
        self._blocks.append((block.position, block.offsets, block.lengths))

    def can_skip(self) -> bool:
        """Return whether every record can be read without all that precede it."""
        if self._compression is None or not self.members:
            return True
        if self._compression != "GZIP":
            return False
        locations = np.zeros(len(self), LOCATION_DTYPE)
        self._fill(locations)
        before, _ = np.array(self.members, np.uint64).T
        ends = locations["offset"] + locations["length"] + np.uint64(FRAME_BYTES)
        # The end of the last member is unknown; it has at least the last record.
        last = max(int(ends[-1]) if len(ends) else 0, int(before[-1]))
        following = np.append(before[1:], np.uint64(last))
        member = np.searchsorted(before, locations["offset"], side="right") - 1
        # If every member has complete records, each one ends where the next with records begins.
        full = len(np.unique(member)) == len(before)
        complete = bool((ends <= following[member]).all())
        longest = int((following - before).max())
        return full and complete and longest <= longest_member(locations["length"])

    def table(self) -> NDArray[Any]:
        """Return all locations: an array of (offset, inner_offset, length)."""
        locations = np.zeros(len(self), LOCATION_DTYPE)
        self.fill(locations, single_stream=not self.can_skip())
        return locations

    def fill(self, rows: NDArray[Any], *, single_stream: bool) -> None:
        """Fill the fields ``offset``, ``length`` and, if present, ``inner_offset`` of rows.

        Args:
            rows: One row per record.
            single_stream: Address records by their offset in the decompressed file, as if it could
                only be read from its beginning.
        """
        self._fill(rows)
        if single_stream:
            rows["inner_offset"], rows["offset"] = rows["offset"].copy(), 0
        elif self._compression is not None and len(rows):
            before, offset = np.array(self.members, np.uint64).T
            member = np.searchsorted(before, rows["offset"], side="right") - 1
            rows["inner_offset"] = rows["offset"] - before[member]
            rows["offset"] = offset[member]

    def _fill(self, rows: NDArray[Any]) -> None:
        """Fill the fields with offsets in the (decompressed) file."""
        most = np.iinfo(rows.dtype["length"]).max
        begin = 0
        for position, offsets, lengths in self._blocks:
            if len(lengths) and int(lengths.max()) > most:
                raise FormatError("a record exceeds 4 GiB, the limit of an index")
            part = rows[begin : begin + len(lengths)]
            part["length"] = lengths
            part["offset"] = offsets + np.uint64(position) - np.uint64(HEADER_BYTES)
            begin += len(lengths)
