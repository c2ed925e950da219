"""Where blocks of remote files are kept, and how many of them."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from covey.errors import CoveyError, StorageError
from covey.storage.sparse import GONE, NEW, bytes_present, discard

DEFAULT_BYTES = 16 << 30

# What a dead process was making is removed after so long.
_DEBRIS_SECONDS = 3600


def cache_folder() -> Path:
    """The folder that covey keeps fetched data in; it is made if need be.

    That is ``$COVEY_CACHE``, or a folder in the user's cache; and if that cannot be written, one
    among the temporary files.
    """
    asked = os.environ.get("COVEY_CACHE")
    folder = Path(asked).expanduser().absolute() if asked else _user_folder()
    if _is_writable(folder):
        return folder
    beside = Path(tempfile.gettempdir()) / f"covey-cache-{getattr(os, 'getuid', lambda: 'user')()}"
    if asked:
        warnings.warn(f"COVEY_CACHE: {folder} cannot be written; using {beside}", stacklevel=2)
    if not _is_writable(beside) or not _is_own(beside):
        raise StorageError(
            f"{folder}: fetched data cannot be kept there, nor in {beside}; set COVEY_CACHE to a "
            "folder that can be written"
        )
    return beside


def cache_limit(cache_bytes: int | None = None) -> int:
    """How many bytes may be kept: as given, or ``$COVEY_CACHE_BYTES``, or 16 GiB."""
    text = os.environ.get("COVEY_CACHE_BYTES", "").strip()
    name, value = "cache_bytes", cache_bytes
    if value is None and text:
        name, value = "COVEY_CACHE_BYTES", int(text) if text.isdecimal() else None
        if value is None:
            raise ValueError(f"{name} is {text!r}, must be a whole number of bytes")
    if value is None:
        return DEFAULT_BYTES
    if value < 1:
        raise ValueError(f"{name} is {value}, must be 1 or more")
    return value


def _user_folder() -> Path:
    try:
        home = Path.home()
    except RuntimeError:  # nobody's
        home = Path(tempfile.gettempdir())
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "covey"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home) / "covey" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "covey"


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _is_own(folder: Path) -> bool:
    """Whether nobody else can put anything there: temporary folders are everybody's."""
    found = folder.lstat()
    is_mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and is_mine


@dataclass(frozen=True, slots=True)
class _Kept:
    """One remote file's blocks."""

    folder: str
    used_ns: int
    bytes: int


class BlockCache:
    """The folder of all blocks, which stays below a limit.

    Args:
        limit: In bytes. Several processes that grow at once may each pass it by a sixteenth, for a
            moment.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.folder = os.path.join(cache_folder(), "blocks")
        self._room = 0  # what may be added before the folder is looked at again

    def place(self, *identity: str) -> str:
        """The folder of a remote file's blocks."""
        text = "\0".join(identity).encode("utf-8", "surrogatepass")
        return os.path.join(self.folder, hashlib.sha256(text).hexdigest()[:40])

    def make_room(self, growth: int, needed: Mapping[str, int]) -> bool:
        """Remove what was not used for longest, until so many more bytes have room.

        Args:
            growth: The bytes that will be added.
            needed: Folders that are needed now, and how many bytes of those that are there. They
                are begun anew only if nothing else can go, the largest first.

        Returns:
            Whether none of those had to go. If one had, there is more to be added.

        Raises:
            StorageError: If what is needed at the same time is more than the limit.
        """
        if growth <= self._room:
            self._room -= growth
            return True
        self._room = 0
        kept = list(self._scan())
        used = sum(each.bytes for each in kept)
        spare = self.limit // 16
        others = [each for each in kept if each.folder not in needed]
        for each in sorted(others, key=lambda each: each.used_ns):
            if used + growth + spare <= self.limit:
                break
            if discard(each.folder):
                used -= each.bytes
        own = [each for each in kept if each.folder in needed]
        complete = True
        for each in sorted(own, key=lambda each: -each.bytes):
            if used + growth <= self.limit:
                break
            if each.bytes > needed[each.folder] and discard(each.folder):
                used -= each.bytes
                growth += needed[each.folder]
                complete = False
        if used + growth > self.limit:
            raise StorageError(
                f"{self.folder}: {growth + sum(needed.values())} bytes are needed at the same time,"
                f" but the limit is {self.limit}; raise cache_bytes= or COVEY_CACHE_BYTES"
            )
        if complete:
            self._room = min(spare, self.limit - used - growth)
        return complete

    def _scan(self) -> Iterator[_Kept]:
        try:
            entries = list(os.scandir(self.folder))
        except FileNotFoundError:
            return
        for entry in entries:
            try:
                changed_ns = entry.stat(follow_symlinks=False).st_mtime_ns
            except FileNotFoundError:
                continue
            age = time.time() - changed_ns / 1e9
            if entry.name.startswith(GONE) or (
                entry.name.startswith(NEW) and age > _DEBRIS_SECONDS
            ):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif not entry.name.startswith("."):
                yield _Kept(entry.path, changed_ns, bytes_present(entry.path))

    @contextmanager
    def failing_well(self) -> Iterator[None]:
        """Say which disk fails, and what to do about it."""
        try:
            yield
        except OSError as error:
            if isinstance(error, CoveyError):
                raise
            raise StorageError(
                f"{self.folder}: fetched data cannot be kept there: {error.strerror or error}; "
                "make room, lower COVEY_CACHE_BYTES, or set COVEY_CACHE to a folder elsewhere"
            ) from error
