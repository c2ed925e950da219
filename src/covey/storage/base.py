"""What a storage is: one place that files are in, whatever they are reached through."""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

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
    :meth:`ensure` begins it anew under the same path, and ``generation`` grows. So whoever maps the
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
        """How often the file at ``path`` was begun anew."""
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
    def join(self, folder: str, name: str) -> str:
        """The path of a file or folder in a folder."""

    @abc.abstractmethod
    def name(self, path: str) -> str:
        """The last part of a path."""

    @abc.abstractmethod
    def parent(self, path: str) -> str:
        """The folder that a file or folder is in."""

    @abc.abstractmethod
    def is_folder(self, path: str) -> bool:
        """Whether there is a folder."""

    @abc.abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""

    @abc.abstractmethod
    def stat(self, paths: Sequence[str]) -> _builtin_list[Stat | None]:
        """The state of each file, None where there is none."""

    @abc.abstractmethod
    def list(self, folder: str, *, recursive: bool = False) -> _builtin_list[str]:
        """The paths of all files in a folder that are not hidden, sorted.

        Raises:
            FileNotFoundError: If there is no such folder.
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
