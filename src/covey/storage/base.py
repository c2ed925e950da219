"""The interface of storages, and the patterns of paths that all of them have.

``*`` and ``?`` match characters of one part of a path, ``[...]`` matches one of several characters,
and a part ``**`` matches any number of directories. Hidden files match only a part that begins with
a dot.
"""

from __future__ import annotations

import abc
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from covey.untrusted import MAX_METADATA_BYTES
from covey.urls import AnyPath

if TYPE_CHECKING:
    from covey.storage.range_cache import CachedFile

_builtin_list = list  # Storage has a method of that name


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern for the paths below a directory."""

    directory: str
    """The longest leading path without special characters."""
    parts: tuple[str, ...]
    """The parts of the pattern below the directory."""

    @property
    def depth(self) -> int | None:
        """The number of directory levels of matching paths; None if it is unlimited."""
        return None if "**" in self.parts else len(self.parts)

    def matches(self, path: str) -> bool:
        """Return whether a path matches, relative to the directory."""
        return _match(path.split("/"), self.parts)


def parse_pattern(path: str, special: str = "*?[") -> Pattern | None:
    """Split a pattern with slashes; return None if it has no special characters."""
    first = re.search(f"[{re.escape(special)}]", path)
    if first is None:
        return None
    directory, _, rest = path[: first.start()].rpartition("/")
    return Pattern(directory, tuple((rest + path[first.start() :]).split("/")))


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


@dataclass(frozen=True, slots=True)
class Stat:
    """The state of a file."""

    size: int
    version: str
    """Changes whenever the file changes: an ETag, a modification time; "" if unknown."""


class Storage(abc.ABC):
    """File-system interface. Implementations are picklable, thread-safe and fork-safe.

    Methods accept paths in any notation, and return them as :meth:`clean` does.
    """

    is_remote: bool

    @abc.abstractmethod
    def clean(self, path: AnyPath) -> str:
        """Return the canonical notation of a path."""

    @abc.abstractmethod
    def join(self, directory: str, name: str) -> str:
        """Return the path of a file or directory in a directory."""

    @abc.abstractmethod
    def name(self, path: str) -> str:
        """Return the last part of a path."""

    @abc.abstractmethod
    def parent(self, path: str) -> str:
        """Return the directory of a file or directory."""

    @abc.abstractmethod
    def is_directory(self, path: str) -> bool:
        """Return whether a directory exists."""

    @abc.abstractmethod
    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""

    @abc.abstractmethod
    def stat(self, paths: Sequence[str]) -> _builtin_list[Stat | None]:
        """Return the state of each file; None for a file that does not exist."""

    @abc.abstractmethod
    def list(self, directory: str, *, recursive: bool = False) -> _builtin_list[str]:
        """Return the sorted paths of the files in a directory that are not hidden.

        Raises:
            FileNotFoundError: If the directory does not exist.
        """

    @abc.abstractmethod
    def address(self, path: str) -> str:
        """Return a path with the credentials of its URL, to open another storage.

        It must not be shown.
        """

    @abc.abstractmethod
    def is_pattern(self, path: str) -> bool:
        """Return whether a path has special characters; the query of a URL does not count."""

    @abc.abstractmethod
    def glob(self, pattern: str) -> _builtin_list[str]:
        """Return the sorted paths of the files that match a pattern."""

    @abc.abstractmethod
    def read(self, path: str, limit: int = MAX_METADATA_BYTES) -> bytes:
        """Return the content of a small file.

        Args:
            path: The file.
            limit: The maximum size in bytes.

        Raises:
            FileNotFoundError: If the file does not exist.
            StorageError: If it is larger than `limit`.
        """

    @abc.abstractmethod
    def write(self, path: str, data: bytes) -> None:
        """Replace a file atomically; create missing directories."""

    def replace(self, path: str, data: bytes, expected: Stat | None) -> None:
        """Replace a file atomically if it is in the expected state; None if it does not exist.

        A storage without conditional requests only writes: the caller compares the state before.

        Raises:
            FileChangedError: If the file is in another state.
        """
        self.write(path, data)

    @abc.abstractmethod
    def upload(self, local: str, path: str) -> None:
        """Copy or link a local file, which does not change any more, to a path."""

    @abc.abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy a file within this storage."""

    @abc.abstractmethod
    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; ignore those that do not exist."""

    @abc.abstractmethod
    def open_stream(self, path: str) -> BinaryIO:
        """Open a file for sequential access; it is seekable."""

    def open_cached(self, path: str) -> CachedFile:
        """Open a remote file for random access through the cache; local storages have none."""
        raise NotImplementedError
