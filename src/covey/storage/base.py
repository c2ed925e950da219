"""Patterns of paths, with the same meaning in every storage.

``*`` and ``?`` stand for characters of one part of a path, ``[...]`` for one of some, and a part
``**`` for any number of directories. What is hidden is found only by a part that begins with a dot.

What a storage is: one place that files are in, whatever they are reached through.
"""

from __future__ import annotations

import abc
import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is matched against the parts of a path below a directory."""

    directory: str
    """The longest part that has nothing to be matched in it."""
    parts: tuple[str, ...]

    @property
    def is_deep(self) -> bool:
        """Whether what matches can be in directories of the directory."""
        return len(self.parts) > 1 or self.parts == ("**",)

    @property
    def depth(self) -> int | None:
        """How many levels of directories a path that matches has; None if there is no limit."""
        return None if "**" in self.parts else len(self.parts)

    def matches(self, path: str) -> bool:
        """Whether a path below the directory is meant, relative to it."""
        return _match(path.split("/"), self.parts)


def parse_pattern(text: str, magic: str = "*?[") -> Pattern | None:
    """Take a pattern with slashes apart; None if there is nothing to be matched in it."""
    first = re.search(f"[{re.escape(magic)}]", text)
    if first is None:
        return None
    directory, _, rest = text[: first.start()].rpartition("/")
    return Pattern(directory, tuple((rest + text[first.start() :]).split("/")))


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


_builtin_list = list  # a storage has a method of that name


@dataclass(frozen=True, slots=True)
class Stat:
    """What tells one state of a file from another."""

    size: int
    version: str
    """Changes when the file does; empty if nothing tells."""


class LocalBlocks(Protocol):
    """The bytes of a file, to be read at ``path`` as far as :meth:`ensure` was asked for them.

    Other processes share what lies there, and may remove it when there is no room: then
    :meth:`ensure` begins it rebuild under the same path, and ``generation`` grows. So a caller that maps the
    file does that before, and looks whether it still is the same one after::

        while True:
            if mapped_generation != blocks.generation:
                mapped_generation, mapped = blocks.generation, map_file(blocks.path)
            blocks.ensure(begins, ends)
            if mapped_generation == blocks.generation:
                break

    A path that is not there while it is being mapped was removed just then, and is there again
    after :meth:`ensure`.
    """

    @property
    def size(self) -> int:
        """Of the file."""
        ...

    @property
    def path(self) -> str:
        """Of a local file that has the size of the real one; it stays as long as this is open."""
        ...

    @property
    def generation(self) -> int:
        """How often the file at ``path`` was begun again."""
        ...

    def ensure(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Wait until these ranges of bytes are there."""
        ...

    def discard(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Forget what is cached of ranges of bytes: :meth:`ensure` fetches them again."""
        ...

    def close(self) -> None:
        """Let go of it. What is there stays for the next one."""
        ...


class Storage(abc.ABC):
    """A place that files are in. Can be pickled, and used by several threads, and after a fork."""

    is_remote: bool

    @abc.abstractmethod
    def clean(self, path: str | os.PathLike[str]) -> str:
        """The one way to write this path; all other methods give paths like that, and take any."""

    @abc.abstractmethod
    def join(self, directory: str, name: str) -> str:
        """The path of a file or directory in a directory."""

    @abc.abstractmethod
    def name(self, path: str) -> str:
        """The last part of a path."""

    @abc.abstractmethod
    def parent(self, path: str) -> str:
        """The directory that a file or directory is in."""

    @abc.abstractmethod
    def is_directory(self, path: str) -> bool:
        """Whether there is a directory."""

    @abc.abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""

    @abc.abstractmethod
    def stat(self, paths: Sequence[str]) -> _builtin_list[Stat | None]:
        """The state of each file, None where there is none."""

    @abc.abstractmethod
    def list(self, directory: str, *, recursive: bool = False) -> _builtin_list[str]:
        """The paths of all files in a directory that are not hidden, sorted.

        Raises:
            FileNotFoundError: If there is no such directory.
        """

    @abc.abstractmethod
    def address(self, path: str) -> str:
        """Return a path with the credentials of its URL, to open another storage; never show it."""

    @abc.abstractmethod
    def is_pattern(self, path: str) -> bool:
        """Return whether a path is a pattern of files; the query of a URL never is one."""

    @abc.abstractmethod
    def glob(self, pattern: str) -> _builtin_list[str]:
        """The paths of all files that a pattern (``*``, ``?``, ``[...]``, ``**``) means, sorted."""

    @abc.abstractmethod
    def read(self, path: str) -> bytes:
        """The whole of a small file.

        Raises:
            FileNotFoundError: If there is none.
        """

    @abc.abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Write a whole file at once: others see the old one or the new one."""

    def replace(self, path: str, data: bytes, expected: Stat | None) -> None:
        """Write a whole file at once, if it is in the expected state; None if it does not exist.

        A storage that cannot compare and write in one request only writes: the caller compares
        before.

        Raises:
            FileChangedError: If it is in another state.
        """
        self.write(path, data)

    @abc.abstractmethod
    def upload(self, local: str, path: str) -> None:
        """Bring a local file, which nobody changes any more, to a path."""

    @abc.abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy a file within this storage."""

    @abc.abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove files, as far as they are there."""

    @abc.abstractmethod
    def open_stream(self, path: str) -> BinaryIO:
        """Open a file that is to be read from front to back; it can be sought in, too."""

    @abc.abstractmethod
    def open_blocks(self, path: str) -> LocalBlocks:
        """Open a file that is to be read here and there."""
