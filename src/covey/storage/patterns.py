"""Patterns of paths, with the same meaning in every storage.

``*`` and ``?`` stand for characters of one part of a path, ``[...]`` for one of some, and a part
``**`` for any number of folders. What is hidden is found only by a part that begins with a dot.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is matched against the parts of a path below a folder."""

    folder: str
    """The longest part that has nothing to be matched in it."""
    parts: tuple[str, ...]

    @property
    def is_deep(self) -> bool:
        """Whether what matches can be in folders of the folder."""
        return len(self.parts) > 1 or self.parts == ("**",)

    @property
    def depth(self) -> int | None:
        """How many levels of directories a path that matches has; None if there is no limit."""
        return None if "**" in self.parts else len(self.parts)

    def matches(self, path: str) -> bool:
        """Whether a path below the folder is meant, relative to it."""
        return _match(path.split("/"), self.parts)


def parse_pattern(text: str, magic: str = "*?[") -> Pattern | None:
    """Take a pattern with slashes apart; None if there is nothing to be matched in it."""
    first = re.search(f"[{re.escape(magic)}]", text)
    if first is None:
        return None
    folder, _, rest = text[: first.start()].rpartition("/")
    return Pattern(folder, tuple((rest + text[first.start() :]).split("/")))


def _match(path: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts:
        return not path
    if parts[0] == "**":
        rest = parts[1:]
        if not rest:
            return all(not name.startswith(".") for name in path)
        visible = next((i for i, name in enumerate(path) if name.startswith(".")), len(path))
        return any(_match(path[skipped:], rest) for skipped in range(visible + 1))
    if not path or (path[0].startswith(".") and not parts[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(path[0], parts[0]) and _match(path[1:], parts[1:])
