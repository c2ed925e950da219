"""Where the records of a file are, so that each can be read by itself.

In a plain file the place of a record is the ``offset`` of its frame. In one of many small GZIP
members it is the ``offset`` of a member, and where ``within`` its decompressed data the frame is.
Other compressed files can only be read from their beginning: ``offset`` is 0, and ``within`` counts
through all of their data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.records.block import FRAME_BYTES, HEADER_BYTES, Block

# One row per record: what RecordReader.read_at takes, and how long the record is.
PLACE_DTYPE = np.dtype([("offset", "<u8"), ("within", "<u8"), ("length", "<u8")])

# Of a compressed file: (decompressed bytes before it, where it begins in the file) of each member.
Members = list[tuple[int, int]]

# A record in a member that is longer, by more than one record, is not reached through it.
LONG_MEMBER = 4 << 20


def longest_member(lengths: NDArray[Any]) -> int:
    """The most bytes that a member may have through which records of these lengths are reached."""
    return LONG_MEMBER + FRAME_BYTES + (int(lengths.max()) if len(lengths) else 0)


class Places:
    """The places of a file's records, noted block by block while it is read.

    Args:
        compression: Of the file.
    """

    def __init__(self, compression: str | None) -> None:
        self.members: Members = []
        """To be filled by whoever reads a compressed file."""
        self._compression = compression
        self._tables = [np.zeros(0, PLACE_DTYPE)]

    def add(self, block: Block) -> None:
        """Note the records of the next block."""
        table = np.zeros(len(block), PLACE_DTYPE)
        table["offset"] = block.offsets - np.uint64(HEADER_BYTES) + np.uint64(block.position)
        table["length"] = block.lengths
        self._tables.append(table)

    def can_skip(self) -> bool:
        """Whether every record can be reached without reading all that comes before it."""
        if self._compression is None or not self.members:
            return True
        if self._compression != "GZIP":
            return False
        places = self._join()
        before, _ = np.array(self.members, np.uint64).T
        ends = places["offset"] + places["length"] + np.uint64(FRAME_BYTES)
        # The last member ends with the last record, as far as anybody knows.
        last = max(int(ends[-1]) if len(ends) else 0, int(before[-1]))
        following = np.append(before[1:], np.uint64(last))
        member = np.searchsorted(before, places["offset"], side="right") - 1
        # Only if every member has whole records does one end where the next with records begins.
        full = len(np.unique(member)) == len(before)
        whole = bool((ends <= following[member]).all())
        longest = int((following - before).max())
        return full and whole and longest <= longest_member(places["length"])

    def table(self, *, streamed: bool | None = None) -> NDArray[Any]:
        """All of them: an array of (offset, within, length).

        Args:
            streamed: Whether to count through the whole of a compressed file; by default only where
                its records cannot be reached otherwise.
        """
        places = self._join()
        if self._compression is None or not len(places):
            return places
        places = places.copy()
        if streamed if streamed is not None else not self.can_skip():
            places["within"] = places["offset"]
            places["offset"] = 0
            return places
        before, offset = np.array(self.members, np.uint64).T
        member = np.searchsorted(before, places["offset"], side="right") - 1
        places["within"] = places["offset"] - before[member]
        places["offset"] = offset[member]
        return places

    def _join(self) -> NDArray[Any]:
        if len(self._tables) > 1:
            self._tables = [np.concatenate(self._tables)]
        return self._tables[0]
