"""What was found to be wrong with a dataset: problems, and the table that shows them."""

from __future__ import annotations

from covey.results import Problem

# Problems of one file that are listed; more of them tell nobody more, and take memory.
_MOST_OF_FILE = 10_000


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
