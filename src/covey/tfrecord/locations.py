"""Where the records of a file are, so that each can be read by itself.

In a plain file the place of a record is the ``offset`` of its frame. In one of many small GZIP
members it is the ``offset`` of a member, and where ``inner_offset`` its decompressed data the frame is.
Other compressed files can only be read from their beginning: ``offset`` is 0, and ``inner_offset`` counts
through all of their data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FormatError
from covey.tfrecord.block import FRAME_BYTES, HEADER_BYTES, Block

# One row per record: what RecordReader.read_at takes, and how long the record is.
LOCATION_DTYPE = np.dtype([("offset", "<u8"), ("inner_offset", "<u8"), ("length", "<u8")])

# Of a compressed file: (decompressed bytes before it, where it begins in the file) of each member.
Members = list[tuple[int, int]]

# A record in a member that is longer, by more than one record, is not reached through it.
LONG_MEMBER = 4 << 20


def longest_member(lengths: NDArray[Any]) -> int:
    """The most bytes that a member may have through which records of these lengths are reached."""
    return LONG_MEMBER + FRAME_BYTES + (int(lengths.max()) if len(lengths) else 0)


class RecordLocations:
    """The places of a file's records, noted block by block while it is read.

    Args:
        compression: Of the file.
    """

    def __init__(self, compression: str | None) -> None:
        self.members: Members = []
        """To be filled by a caller that reads a compressed file."""
        self._compression = compression
        # Of each block: where it begins, and where in it its records are, and their lengths.
        self._blocks: list[tuple[int, NDArray[np.uint64], NDArray[np.uint64]]] = []

    def __len__(self) -> int:
        return sum(len(lengths) for _, _, lengths in self._blocks)

    def add(self, block: Block) -> None:
        """Note the records of the next block."""
        self._blocks.append((block.position, block.offsets, block.lengths))

    def can_skip(self) -> bool:
        """Whether every record can be reached without reading all that comes before it."""
        if self._compression is None or not self.members:
            return True
        if self._compression != "GZIP":
            return False
        places = np.zeros(len(self), LOCATION_DTYPE)
        self._fill(places)
        before, _ = np.array(self.members, np.uint64).T
        ends = places["offset"] + places["length"] + np.uint64(FRAME_BYTES)
        # The last member ends with the last record, as far as anybody knows.
        last = max(int(ends[-1]) if len(ends) else 0, int(before[-1]))
        following = np.append(before[1:], np.uint64(last))
        member = np.searchsorted(before, places["offset"], side="right") - 1
        # Only if every member has whole records does one end where the next with records begins.
        full = len(np.unique(member)) == len(before)
        complete = bool((ends <= following[member]).all())
        longest = int((following - before).max())
        return full and complete and longest <= longest_member(places["length"])

    def table(self) -> NDArray[Any]:
        """All of them: an array of (offset, inner_offset, length)."""
        places = np.zeros(len(self), LOCATION_DTYPE)
        self.fill(places, single_stream=not self.can_skip())
        return places

    def fill(self, rows: NDArray[Any], *, single_stream: bool) -> None:
        """Fill the fields ``offset``, ``length`` and, if it is there, ``inner_offset`` of rows.

        Args:
            rows: As many as there are records.
            single_stream: Whether to count through the whole of a file, as if it could only be read
                from its beginning.
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
        """The same, counted through the (decompressed) file."""
        most = np.iinfo(rows.dtype["length"]).max
        begin = 0
        for position, offsets, lengths in self._blocks:
            if len(lengths) and int(lengths.max()) > most:
                raise FormatError("a record is over 4 GiB, more than an index can hold")
            part = rows[begin : begin + len(lengths)]
            part["length"] = lengths
            part["offset"] = offsets + np.uint64(position) - np.uint64(HEADER_BYTES)
            begin += len(lengths)
