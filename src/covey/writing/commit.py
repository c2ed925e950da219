"""The commit of a split: one rename makes a written version visible.

A split is written into a staging directory inside the dataset, which readers ignore::

    data/birds/.covey-train.partial/         locked by its writer; stale if the lock is free
        birds-train.tfrecord-00000-of-00002  complete and synced, with its final name
        birds-train.index.json ...
        early/features.json                  replaces the dataset's file before the switch
        late/features.json                   or after it
        names, owner                         files of step 1, the writer
        stale, replaced                      label files to remove, files of the replaced version

The commit, under the lock of the dataset directory:

1. Every staged file gets its name in the dataset directory, as a hard link. No other file has that
   name: a version that replaces another one has a token in its names. Sidecar files that describe
   both old and new records replace the old ones.
2. ``dataset_info.json`` is replaced by one rename. This is the switch.
3. Sidecar files that describe only the new records replace the old ones, the files of the replaced
   version are moved to ``.covey-old``, those of versions before it are deleted, and the staging
   directory is removed.

Other readers find shards by patterns such as ``*.tfrecord*``, which match nothing in
``.covey-old``. A reader that opened the replaced version finds its files there (``find_moved``).

A writer that is killed before step 2 leaves the old dataset, and one that is killed after it the
new one. The next writer, or ``covey repair``, undoes step 1 or completes step 3. Readers follow
``dataset_info.json``: they never lock, recover or write.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from covey._files import atomic_write, atomic_write_all, is_directory, sync, unlink_file
from covey._locks import (
    COMMIT_TIMEOUT_S,
    LOCK_TIMEOUT_S,
    DeferredSignals,
    cause,
    locked,
    owner,
    reporting_failures,
    try_lock,
    unlock,
)
from covey.dataset_info import DatasetInfo, SplitInfo
from covey.errors import CommittedError, CoveyError, DatasetError, FormatError
from covey.filenames import (
    INFO_FILE,
    OLD_DIRECTORY,
    SHARD_INFO_FILE,
    name_of_old,
    staging_name,
)
from covey.schema.tfds import features_from_tfds, features_to_tfds
from covey.untrusted import parse_json, read_file
from covey.writing import versions
from covey.writing.recovery import (
    EARLY,
    LATE,
    NAMES,
    OWNER,
    REPLACED,
    STALE,
    blocked_error,
    move_replaced,
    read_sidecars,
    recover_locked,
    remove_staging,
    replace_late_sidecars,
    staged_sidecars,
    write_sidecars,
)
from covey.writing.versions import find_obsolete, read_info, referenced_files

ReplacedFiles = Literal["move", "delete", "keep"]
"""What a commit does with the files of the replaced versions of its splits."""


@dataclass(frozen=True, slots=True)
class Change:
    """Changes of a commit."""

    splits: tuple[SplitInfo, ...]
    """New versions of the splits."""
    replaced: tuple[SplitInfo, ...]
    """Versions that they replace."""
    files: tuple[str, ...]
    """Final names of the staged shards and index files."""
    sidecars: Mapping[str, str]
    """Content of the sidecar files, by name."""
    listed_shards: Mapping[str, Mapping[str, int]] | None
    """Entries of the splits in datum's ``shard_info.json``; None to omit that file."""
    keeps: bool
    """Whether old records remain, so that new sidecar files describe both old and new records."""
    name: str
    version: str
    description: str = ""
    supervised_keys: tuple[str, str] | None = None
    """Input feature and label feature of the new records."""
    replaced_files: ReplacedFiles = "move"


class Staging:
    """Staging directory of a split, until it is committed or aborted.

    Args:
        directory: Directory of the dataset.
        split: Name of the split.
        lock_timeout: Seconds to wait for the lock of the dataset.
    """

    def __init__(
        self, directory: Path, split: str, *, lock_timeout: float = LOCK_TIMEOUT_S
    ) -> None:
        self.directory = directory
        self.split = split
        self.committed = False
        """Whether the switch has happened."""
        self.can_link = False
        """Whether the file system has hard links."""
        self.path = directory / staging_name(split)
        self._process = os.getpid()
        self._lock: int | None = None
        self._lock_timeout = lock_timeout
        self._created: list[Path] = []
        self._at_open: dict[str, bytes] = {}
        """Content of the sidecar files at the beginning of the write."""

    def open(self) -> None:
        """Create and lock the staging directory, and the dataset directory if it does not exist.

        Raises:
            DatasetError: If another process is writing the same split.
        """
        try:
            with DeferredSignals():
                self._create_directory()
            with locked(self.directory, self._lock_timeout), DeferredSignals():
                recover_locked(self.directory)
                self._claim()
                self.can_link = self._note_owner()
                self._at_open = read_sidecars(self.directory)
        except BaseException:
            self.abort()
            raise

    def _create_directory(self) -> None:
        directory = self.directory
        for each in (directory, *directory.parents):
            if each.exists():
                break
            self._created.append(each)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            wrong = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
            what = "a broken symbolic link" if wrong.is_symlink() else "a file"
            raise DatasetError(f"it is {what}; must be a directory", path=wrong) from None

    def _claim(self) -> None:
        """Create and lock the staging directory."""
        try:
            self.path.mkdir()
        except FileExistsError:
            raise blocked_error(self.directory, self.path, self.split) from None
        self._lock = try_lock(self.path)

    def _note_owner(self) -> bool:
        """Write the owner file; return whether the file system has hard links."""
        path = self.path / OWNER
        path.write_text(owner(), encoding="utf-8")
        try:
            os.link(path, self.path / f"{OWNER}.link")
        except OSError:
            return False
        return True

    def commit(self, change: Change, check: Callable[[], None] = lambda: None) -> None:
        """Make the staged files the current version of the split.

        SIGINT and SIGTERM are deferred: before the switch they abort the commit, after it they are
        delivered when the commit is complete.

        Args:
            change: Staged changes, whose files are synced.
            check: Called under the dataset lock before the switch; raises to abort.

        Raises:
            CommittedError: If the split is written, but step 3 failed.
        """
        with locked(self.directory, max(self._lock_timeout, COMMIT_TIMEOUT_S)):
            recover_locked(self.directory, own=self.path)
            self._check_dataset(change)
            check()
            info = read_info(self.directory) or DatasetInfo(change.name, change.version)
            if change.description:
                info = replace(info, description=change.description)
            if not change.keeps or not info.has_supervised_keys:
                info = info.with_supervised_keys(change.supervised_keys)
            for split in change.splits:
                info = info.with_split(split)
            with DeferredSignals() as signals:
                self._switch(change, info, signals)
                try:
                    sync(self.directory)
                    replace_late_sidecars(self.directory, self.path)
                    moved = move_replaced(self.directory, self.path, info)
                    for path in moved if change.replaced_files == "delete" else ():
                        unlink_file(path)
                    _remove_obsolete(self.directory, info, change)
                    self._remove()
                    sync(self.directory)
                except (OSError, MemoryError) as error:
                    raise CommittedError(
                        f"split {self.split!r} is written, but some files of the old version "
                        f"could not be replaced or deleted: {cause(error)}",
                        path=self.directory,
                        remedy="do not write the same examples again; the next write completes it",
                    ) from error

    def _switch(self, change: Change, info: DatasetInfo, signals: DeferredSignals) -> None:
        """Do steps 1 and 2; undo step 1 if step 2 has not happened."""
        before = read_sidecars(self.directory)
        text = info.to_json().encode()
        placed: list[str] = []
        early: list[str] = []
        try:
            new, early = self._stage_sidecars(change, before)
            replaced = self._replaced_files(info, change)
            atomic_write(self.path / REPLACED, "\n".join(replaced).encode())
            names = (*change.files, *new)
            atomic_write(self.path / NAMES, "\n".join(names).encode())
            sync(self.path)
            write_sidecars(self.directory, staged_sidecars(self.path / EARLY))
            for name in names:
                signals.deliver()
                place = os.link if self.can_link else os.rename
                place(self.path / name, self.directory / name)
                placed.append(name)
            sync(self.directory)
            # Another machine may have removed them, if the locks of the file system are local.
            for name in placed:
                os.lstat(self.directory / name)
            signals.deliver()
            atomic_write(self.directory / INFO_FILE, text)
            self.committed = True
        except BaseException:
            # The exception may have occurred after the rename.
            with contextlib.suppress(OSError, CoveyError):
                self.committed = read_file(self.directory / INFO_FILE) == text
            if not self.committed:
                with contextlib.suppress(OSError):
                    for name in placed:
                        unlink_file(self.directory / name)
                    write_sidecars(self.directory, {name: before[name] for name in early})
            raise
        finally:
            if self.committed:
                self._created = []

    def _stage_sidecars(
        self, change: Change, now: Mapping[str, bytes]
    ) -> tuple[list[str], list[str]]:
        """Stage the sidecar files; return the names of the new ones, and of those of step 1."""
        changed = {
            name: text.encode()
            for name, text in change.sidecars.items()
            if now.get(name) != text.encode()
        }
        new = {name: text for name, text in changed.items() if name not in now}
        early = {name: text for name, text in changed.items() if name in now and change.keeps}
        late = {name: text for name, text in changed.items() if name in now and not change.keeps}
        stale = [] if change.keeps else self._stale_labels(change)
        if change.listed_shards is not None:
            path = self.directory / SHARD_INFO_FILE
            content = parse_json(read_file(path), str(path)) if path.exists() else {}
            if not isinstance(content, dict):
                raise FormatError(
                    "the content is not a dict", path=path, remedy="remove it with its dataset"
                )
            content.update(change.listed_shards)
            late[SHARD_INFO_FILE] = json.dumps(content, indent=1, ensure_ascii=False).encode()
        atomic_write_all(self.path, {**new, STALE: "\n".join(stale).encode()})
        for directory, texts in ((EARLY, early), (LATE, late)):
            path = self.path / f"{directory}.partial"
            path.mkdir()
            atomic_write_all(path, texts)
            sync(path)
            os.rename(path, self.path / directory)  # a directory of this name is complete
        return list(new), list(early)

    def _stale_labels(self, change: Change) -> list[str]:
        """Return the label files of the old features that the new features do not have."""
        if not change.replaced:
            return []
        with contextlib.suppress(OSError, CoveyError):
            _, labels = features_to_tfds(features_from_tfds(self.directory))
            return [name for name in labels if name not in change.sidecars]
        return []

    def _replaced_files(self, info: DatasetInfo, change: Change) -> list[str]:
        """Return the files that step 3 moves: all those of old versions of the splits."""
        if change.replaced_files == "keep":
            return []
        names = os.listdir(self.directory)
        found = referenced_files(replace(info, splits=change.replaced)) & {*names}
        for split in change.splits:
            found.update(
                find_obsolete(names, info, split.name, replaced=None, now=time.time(), retention=0)
            )
        return sorted(found - referenced_files(info))

    def _check_dataset(self, change: Change) -> None:
        """Raise if another process has changed the dataset since this write began."""
        info = read_info(self.directory)
        own = {split.name for split in change.splits}
        others = () if info is None else info.splits
        new = next((each.name for each in others if each.name not in own), None)
        if info is not None and info.name != change.name:
            raise DatasetError(
                f"another process has named the dataset {info.name!r}, not {change.name!r}",
                path=self.directory,
                remedy=f"write split {self.split!r} again",
            )
        now = read_sidecars(self.directory)
        # A split that was added meanwhile must have the same features and classes.
        is_new = new is not None and not change.keeps
        for name, text in change.sidecars.items():
            if is_new and now.get(name) != text.encode():
                raise DatasetError(
                    f"another process has written split {new!r} with other features or classes",
                    path=self.directory,
                    remedy=f"write split {self.split!r} again",
                )
            if now.get(name) not in (self._at_open.get(name), text.encode()):
                raise DatasetError(
                    f"another process has changed this file while split {self.split!r} was written",
                    path=self.directory / name,
                    remedy=f"write split {self.split!r} again",
                )

    def abort(self) -> None:
        """Remove everything that is not committed; the next writer completes a commit."""
        if os.getpid() != self._process:  # a forked process does not own it
            return
        if self.committed:
            unlock(self._lock)
            self._lock = None
        self._remove()

    def _remove(self) -> None:
        with DeferredSignals():
            if self._lock is not None:
                remove_staging(self.path)
                unlock(self._lock)
                self._lock = None
            for each in self._created:
                try:
                    each.rmdir()
                except OSError:  # it is not empty
                    break
            self._created = []


@contextmanager
def staged(directory: Path, split: str) -> Iterator[Staging]:
    """Yield the staging directory of a split; remove it at the end of the block."""
    staging = Staging(directory, split)
    with reporting_failures(directory, split, lambda: staging.committed):
        try:
            staging.open()
            yield staging
        finally:
            staging.abort()


def _remove_obsolete(directory: Path, info: DatasetInfo, change: Change) -> None:
    """Delete files of versions before the replaced ones after a commit."""
    replaced = {split.name: split for split in change.replaced}
    names = {name: name for name in os.listdir(directory)}
    if change.replaced_files != "keep":
        directory /= OLD_DIRECTORY
        if not is_directory(directory):
            return
        names = {name_of_old(name): name for name in os.listdir(directory)}
    for split in change.splits:
        obsolete = find_obsolete(
            names,
            info,
            split.name,
            replaced=replaced.get(split.name),
            now=time.time(),
            retention=versions.RETENTION_S,
        )
        for name in obsolete:
            unlink_file(directory / names[name])
    if directory.name == OLD_DIRECTORY:
        with contextlib.suppress(OSError):  # it is not empty
            directory.rmdir()
