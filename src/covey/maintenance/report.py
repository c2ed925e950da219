"""What was found to be wrong with a dataset: problems, and the table that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from covey._progress import format_bytes
from covey.errors import escape

# Lines of a table that people still read.
LISTED = 50

# Problems of one file that are listed; more of them tell nobody more, and take memory.
_MOST_OF_FILE = 10_000


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    file: str
    """Relative to the directory of the dataset."""
    record: int | None
    """The number of the record in its file, or of the row in an index, if it is about one."""
    offset: int | None
    """Where the record begins in its file (in the decompressed data, if compressed)."""
    what: str
    split: str | None = None


class Problems:
    """Problems that are being found; of one file thousands are listed, and the rest counted."""

    def __init__(self, split: str | None = None) -> None:
        self.listed: list[Problem] = []
        self.more = 0
        """How many were only counted."""
        self._split = split
        self._of_file: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.listed) + self.more

    def add(
        self, file: str, what: str, *, record: int | None = None, offset: int | None = None
    ) -> None:
        """Note one."""
        count = self._of_file[file] = self._of_file.get(file, 0) + 1
        if count > _MOST_OF_FILE:
            self.more += 1
        else:
            self.listed.append(Problem(file, record, offset, what, self._split))


@dataclass(frozen=True)
class Report:
    """What :func:`covey.verify` found. Printed, it is a table of all problems."""

    path: str
    directory: str
    """What the files of problems are relative to."""
    splits: tuple[str, ...]
    files: int
    """The shards that were read;"""
    records: int
    """the records in them whose checksums are right;"""
    bytes: int
    """and all their bytes."""
    problems: tuple[Problem, ...]
    more: int
    """How many problems were found that are not listed, for their file has thousands of others."""
    seconds: float

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        return self.describe()

    def describe(self, rest: str = "`problems` has them all") -> str:
        """The report as a string.

        Args:
            rest: Where those are that a table has no room for.
        """
        count = len(self.problems) + self.more
        verdict = "nothing is wrong" if self.is_sound else many(count, "problem")
        checked = (
            f"{escape(self.path)}: {many(self.files, 'file')}, {many(self.records, 'record')} and "
            f"{format_bytes(self.bytes)} checked: {verdict}"
        )
        return "\n".join([checked, *listing(self.problems, self.more, rest)])

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "path": self.path,
            "directory": self.directory,
            "splits": list(self.splits),
            "sound": self.is_sound,
            "files": self.files,
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "more": self.more,
            "problems": [asdict(problem) for problem in self.problems],
        }


def listing(problems: Sequence[Problem], more: int, rest: str) -> Iterable[str]:
    """The lines of a table of problems.

    Args:
        problems: All of them.
        more: How many were only counted.
        rest: Where those are that the table has no room for.
    """
    if not problems:
        return
    rows = [("file", "record", "offset", "what")]
    rows += [
        (escape(each.file), _number(each.record), _number(each.offset), escape(each.what))
        for each in problems[:LISTED]
    ]
    file, record, offset, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for row in rows:
        yield f"  {row[0]:{file}}  {row[1]:>{record}}  {row[2]:>{offset}}  {row[3]}"
    left = len(problems) - LISTED
    if left > 0:
        yield f"  and {left:,} more; {rest}"
    if more:
        yield f"  and {more:,} more of files that have thousands of them, which are not listed"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def many(count: int, what: str) -> str:
    """A number of things.

    >>> many(1, "file"), many(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"
