"""The rows of an index against the records that are really in a shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.index import IndexMetadata
from covey.maintenance.examples import CheckedBlock
from covey.maintenance.report import Problems
from covey.results import SkippedRecord
from covey.tfrecord.block import HEADER_BYTES
from covey.tfrecord.locations import Members


class RowCheck:
    """Compares the rows of one shard with its records, as they are read from front to back.

    After a damage rows and records find each other by their places. In shards of GZIP members these
    are not known there, and rows that come after it are not compared.

    Args:
        about: What the index says of itself.
        rows: All of its rows.
        number: Of the shard, in the index.
        file: The file of the rows, for problems.
        members: Of the shard, if it is compressed, filled while it is read.
        problems: Where to note them.
    """

    def __init__(
        self,
        about: IndexMetadata,
        rows: NDArray[Any],
        number: int,
        file: str,
        members: Members,
        problems: Problems,
    ) -> None:
        self._about = about
        self._shard = about.shards[number]
        self._number = number
        self._first = sum(each.records for each in about.shards[:number])
        self._rows = rows[self._first : self._first + self._shard.records]
        self._file = file
        self._members = members
        self._member = 0  # the one that the last record was in
        self._problems = problems
        self._at = 0
        """The row that should be of the next record."""
        self._lost = False
        """Whether records were lost just before."""
        self._damaged = False

    @property
    def _by_member(self) -> bool:
        return self._about.compression is not None and not self._about.single_stream

    def pass_over(self, damage: SkippedRecord) -> None:
        """A part of the shard is corrupt."""
        self._damaged = True
        self._lost = self._lost or damage.lost

    def compare(self, looked: CheckedBlock) -> None:
        """Compare the rows of the records that follow."""
        block = looked.block
        if self._damaged and self._by_member:
            return
        offsets = block.offsets - np.uint64(HEADER_BYTES) + np.uint64(block.position)
        if self._lost:
            self._find(int(offsets[0]), block.first)
        rows = self._rows[self._at : self._at + len(block)]
        count, fields = len(rows), rows.dtype.names or ()
        expected: dict[str, Any] = {"length": block.lengths[:count]}
        expected["shard"] = np.full(count, self._number)
        places = self._places(offsets[:count])
        expected.update({name: each for name, each in places.items() if name in fields})
        if looked.labels is not None and "label" in fields:
            # Nobody knows the class of a record that does not fit; that it does not is told.
            expected["label"] = np.where(looked.fits[:count], looked.labels[:count], rows["label"])
        wrong = np.zeros(count, bool)
        for name, values in expected.items():
            wrong |= rows[name] != values
        if wrong.any():
            self._tell(rows, expected, wrong)
        self._at += len(block)

    def _find(self, offset: int, record: int) -> None:
        """Go to the row of the first record after a damage."""
        self._lost = False
        ahead = self._rows["offset" if self._about.compression is None else "inner_offset"][
            self._at :
        ]
        found = np.flatnonzero(ahead == offset)
        self._at = self._at + int(found[0]) if len(found) else max(self._at, record)

    def _places(self, offsets: NDArray[np.uint64]) -> dict[str, NDArray[np.uint64]]:
        """What rows should say about frames that begin here in the decompressed data."""
        if self._about.compression is None:
            return {"offset": offsets}
        if not self._by_member:
            return {"offset": np.zeros(len(offsets), np.uint64), "inner_offset": offsets}
        # None for a shard that is not compressed, which no index by members can reach.
        members = self._members[self._member :] or [(0, 0)]
        before, begins = np.array(members, np.uint64).T
        which = np.searchsorted(before, offsets, side="right") - 1
        self._member += int(which[-1]) if len(which) else 0
        return {"offset": begins[which], "inner_offset": offsets - before[which]}

    def _tell(self, rows: NDArray[Any], expected: dict[str, Any], wrong: NDArray[np.bool_]) -> None:
        """Note the rows that are wrong, those that follow each other together."""
        edges = np.flatnonzero(np.diff(np.concatenate([[False], wrong, [False]]).astype(np.int8)))
        for begin, end in edges.reshape(-1, 2).tolist():
            said = [
                self._difference(name, int(rows[name][begin]), int(values[begin]))
                for name, values in expected.items()
                if rows[name][begin] != values[begin]
            ]
            row = self._at + begin
            what = f"{', '.join(said)} for record {row} of {self._shard.name}"
            if end - begin > 1:
                what += f"; the {end - begin - 1:,} rows after it are wrong as well"
            self._problems.add(self._file, what, record=self._first + row)

    def _difference(self, field: str, found: int, expected: int) -> str:
        if field != "label":
            return f"{field} is {found}; must be {expected}"
        names = self._about.class_names
        is_new = self._about.label_strings is not None and expected < 0
        other = "one that the index does not know" if is_new else class_name(names, expected)
        return f"label is {class_name(names, found)}; must be {other}"

    def finish(self, records: int) -> None:
        """All records of the shard were seen, so many of them."""
        if self._damaged:
            return  # how many records there were is not known
        if records != self._shard.records:
            self._problems.add(
                self._file,
                f"it has {self._shard.records:,} rows for {self._shard.name}, which has "
                f"{records:,} records",
                record=self._first + min(records, self._shard.records),
            )


def class_name(names: Sequence[str] | None, label: int) -> str:
    """A class, for people.

    >>> class_name(("owl", "wren"), 1), class_name(None, 7)
    ("class 1 ('wren')", 'class 7')
    """
    known = names is not None and 0 <= label < len(names)
    return f"class {label} ({names[label]!r})" if names is not None and known else f"class {label}"
