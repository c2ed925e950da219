"""The commit of a split: one rename makes a written version visible.

A split is written into a staging directory inside the dataset, which readers ignore::

    data/birds/.covey-train.partial/         locked by its writer; stale if the lock is free
        birds-train.tfrecord-00000-of-00002  whole and synced, with its final name
        birds-train.index.json ...
        before/features.json                 replaces the dataset's file before the switch
        after/features.json                  or after it
        names, stale, owner                  what is placed, label files to be removed, the writer

The commit, under the lock of the dataset directory:

1. Every staged file gets its name in the dataset directory, as a hard link. No other file has that
   name: a version that replaces another one has a token in its names. Sidecar files that describe
   old and new records alike replace the old ones.
2. ``dataset_info.json`` is replaced by one rename. This is the switch.
3. Sidecar files that describe only the new records replace the old ones, files of versions before
   the replaced one are deleted, and the staging directory is removed.

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

from covey._files import atomic_write, atomic_write_all, sync, unlink_file
from covey.dataset_info import DatasetInfo, SplitInfo
from covey.errors import CommittedError, CoveyError, DatasetError, FormatError
from covey.filenames import INFO_FILE, SHARD_INFO_FILE, staging_name
from covey.schema.tfds import features_from_tfds, features_to_tfds
from covey.untrusted import parse_json, read_file
from covey.writing import versions
from covey.writing.locks import (
    COMMIT_TIMEOUT_S,
    LOCK_TIMEOUT_S,
    DeferredSignals,
    locked,
    owner,
    reporting_failures,
    try_lock,
    unlock,
)
from covey.writing.recovery import (
    AFTER,
    BEFORE,
    NAMES,
    OWNER,
    STALE,
    explain_blocked,
    read_sidecars,
    recover_locked,
    remove_staging,
    replace_late_sidecars,
    staged_sidecars,
    write_sidecars,
)
from covey.writing.versions import find_obsolete, read_info


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit changes in a dataset."""

    split: SplitInfo
    """The new version."""
    replaced: SplitInfo | None
    """The version that it replaces."""
    files: tuple[str, ...]
    """The staged shards and index files, by their final names."""
    sidecars: Mapping[str, str]
    """The files that describe the features of all splits, by name."""
    lists_shards: Mapping[str, int] | None
    """The entry of the split in datum's ``shard_info.json``, if there is to be one."""
    keeps: bool
    """Whether records of the old dataset stay: then new sidecar files describe these as well."""
    name: str
    version: str
    description: str = ""


class Staging:
    """The directory that a split is written into, until it is committed or aborted.

    Args:
        directory: Of the dataset.
        split: The split.
        lock_timeout: Seconds to wait for another process that commits to the dataset.
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
        """The sidecar files when the write began."""

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
            raise DatasetError(f"{wrong}: it is {what}; must be a directory") from None

    def _claim(self) -> None:
        """Create and lock the staging directory."""
        try:
            self.path.mkdir()
        except FileExistsError:
            raise DatasetError(explain_blocked(self.directory, self.path, self.split)) from None
        self._lock = try_lock(self.path)

    def _note_owner(self) -> bool:
        """Store which process writes; return whether the file system has hard links."""
        path = self.path / OWNER
        path.write_text(owner(), encoding="utf-8")
        try:
            os.link(path, self.path / f"{OWNER}.link")
        except OSError:
            return False
        return True

    def commit(self, change: Change, check: Callable[[], None] = lambda: None) -> None:
        """Make the staged files the split.

        SIGINT and SIGTERM are held back: before the switch they abort the commit, after it the
        commit is completed first.

        Args:
            change: What is staged; its files are synced already.
            check: Raises if the dataset, which is locked then, does not allow the commit.

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
            info = info.with_split(change.split)
            with DeferredSignals() as signals:
                self._switch(change, info, signals)
                try:
                    sync(self.directory)
                    replace_late_sidecars(self.directory, self.path)
                    _remove_obsolete(self.directory, info, change)
                    self._remove()
                    sync(self.directory)
                except OSError as error:
                    raise CommittedError(
                        f"split {change.split.name!r} is written, but the files of the old "
                        f"version could not all be replaced or deleted ({error.strerror or error}); "
                        "the next write completes that: do not write the same examples "
                        "again",
                        path=self.directory,
                    ) from error

    def _switch(self, change: Change, info: DatasetInfo, signals: DeferredSignals) -> None:
        """Do steps 1 and 2; undo step 1 if step 2 has not happened."""
        before = read_sidecars(self.directory)
        text = info.to_json().encode()
        placed: list[str] = []
        early: list[str] = []
        try:
            new, early = self._stage_sidecars(change, before)
            names = (*change.files, *new)
            atomic_write(self.path / NAMES, "\n".join(names).encode())
            sync(self.path)
            write_sidecars(self.directory, staged_sidecars(self.path / BEFORE))
            for name in names:
                signals.deliver()
                place = os.link if self.can_link else os.rename
                place(self.path / name, self.directory / name)
                placed.append(name)
            sync(self.directory)
            # On a file system whose locks do not reach other machines, one may have removed them.
            for name in placed:
                os.lstat(self.directory / name)
            signals.deliver()
            atomic_write(self.directory / INFO_FILE, text)
            self.committed = True
        except BaseException:
            # An exception may come right after the rename.
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
        if change.lists_shards is not None:
            path = self.directory / SHARD_INFO_FILE
            content = parse_json(read_file(path), str(path)) if path.exists() else {}
            if not isinstance(content, dict):
                raise FormatError("it is not a dict; remove it with its dataset", path=path)
            content[change.split.name] = dict(change.lists_shards)
            late[SHARD_INFO_FILE] = json.dumps(content, indent=1, ensure_ascii=False).encode()
        atomic_write_all(self.path, {**new, STALE: "\n".join(stale).encode()})
        for directory, texts in ((BEFORE, early), (AFTER, late)):
            path = self.path / f"{directory}.partial"
            path.mkdir()
            atomic_write_all(path, texts)
            sync(path)
            os.rename(path, self.path / directory)  # it is complete, or has another name
        return list(new), list(early)

    def _stale_labels(self, change: Change) -> list[str]:
        """Return the label files of the old features that the new features do not have."""
        if change.replaced is None:
            return []
        with contextlib.suppress(OSError, CoveyError):
            _, labels = features_to_tfds(features_from_tfds(self.directory))
            return [name for name in labels if name not in change.sidecars]
        return []

    def _check_dataset(self, change: Change) -> None:
        """Raise if another process has changed the dataset since this write began."""
        info = read_info(self.directory)
        others = () if info is None else info.splits
        new = next((each.name for each in others if each.name != change.split.name), None)
        if info is not None and info.name != change.name:
            raise DatasetError(
                f"another process has called the dataset {info.name!r}, not "
                f"{change.name!r}; write it again",
                path=self.directory,
            )
        now = read_sidecars(self.directory)
        # A split that was added since then did not know of this one: both must say the same.
        is_new = new is not None and not change.keeps
        for name, text in change.sidecars.items():
            if is_new and now.get(name) != text.encode():
                raise DatasetError(
                    f"another process has written split {new!r} in the meantime, with "
                    f"other features or classes; write {change.split.name!r} again",
                    path=self.directory,
                )
            if now.get(name) not in (self._at_open.get(name), text.encode()):
                raise DatasetError(
                    f"{self.directory / name}: another process has changed it while split "
                    f"{change.split.name!r} was written; write it again"
                )

    def abort(self) -> None:
        """Remove all traces of what was not committed; what was is left to the next writer."""
        if os.getpid() != self._process:  # a forked process has only a copy
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
    """Write a split: yield its staging directory, and remove it if it is not committed."""
    staging = Staging(directory, split)
    with reporting_failures(directory, split, lambda: staging.committed):
        try:
            staging.open()
            yield staging
        finally:
            staging.abort()


def _remove_obsolete(directory: Path, info: DatasetInfo, change: Change) -> None:
    """Delete files of old versions of a split after a commit."""
    names = find_obsolete(
        os.listdir(directory),
        info,
        change.split.name,
        replaced=change.replaced,
        now=time.time(),
        retention=versions.RETENTION_S,
    )
    for name in names:
        unlink_file(directory / name)
