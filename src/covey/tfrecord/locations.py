"""Locations of the records of a file, for random access.

In a plain file the location of a record is the ``offset`` of its frame. In a file of small GZIP
members it is the ``offset`` of the member, and the ``inner_offset`` of the frame in the
decompressed member. Other compressed files can only be read from their beginning: ``offset`` is 0,
and ``inner_offset`` is the offset in the decompressed file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FormatError
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES, Block

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
        places = np.zeros(len(self), LOCATION_DTYPE)
        self._fill(places)
        before, _ = np.array(self.members, np.uint64).T
        ends = places["offset"] + places["length"] + np.uint64(FRAME_BYTES)
        # The end of the last member is unknown; it has at least the last record.
        last = max(int(ends[-1]) if len(ends) else 0, int(before[-1]))
        following = np.append(before[1:], np.uint64(last))
        member = np.searchsorted(before, places["offset"], side="right") - 1
        # If every member has complete records, each one ends where the next with records begins.
        full = len(np.unique(member)) == len(before)
        complete = bool((ends <= following[member]).all())
        longest = int((following - before).max())
        return full and complete and longest <= longest_member(places["length"])

    def table(self) -> NDArray[Any]:
        """Return all locations: an array of (offset, inner_offset, length)."""
        places = np.zeros(len(self), LOCATION_DTYPE)
        self.fill(places, single_stream=not self.can_skip())
        return places

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
