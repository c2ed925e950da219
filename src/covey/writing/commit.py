"""The commit of a split: one rename makes a written version visible.

A split is written into a staging directory inside the dataset, which readers ignore::

    data/birds/.covey-train.partial/         locked by its writer; stale if the lock is free
        birds-train.tfrecord-00000-of-00002  complete and synced, with its final name
        birds-train.index.json ...
        features.json                        a new sidecar file
        journal                              the changes of the commit
        owner                                the writer

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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

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
from covey._progress import Progress
from covey.dataset_info import DatasetInfo, SplitInfo
from covey.errors import CommittedError, CoveyError, DatasetError, FormatError
from covey.filenames import (
    INFO_FILE,
    LABELS_SUFFIX,
    OLD_DIRECTORY,
    SHARD_INFO_FILE,
    name_of_old,
    staging_name,
)
from covey.index.format import Shard
from covey.schema.tfds import features_from_tfds, features_to_tfds
from covey.storage import LocalStorage
from covey.untrusted import parse_json, read_file
from covey.writing import versions
from covey.writing.recovery import (
    OWNER,
    Journal,
    blocked_error,
    finish,
    read_sidecars,
    recover_locked,
    remove_staging,
    write_sidecars,
)
from covey.writing.target import TargetSplit
from covey.writing.versions import find_all_obsolete, read_info, referenced_files

ReplacedFiles = Literal["move", "delete", "keep"]
"""What a commit does with the files of the replaced versions of its splits."""


@dataclass(frozen=True, slots=True)
class StagedSplit:
    """New version of a split in a staging directory, with final names."""

    target: TargetSplit
    """The split, and the dataset before the write."""
    shards: tuple[Shard, ...]
    index_files: tuple[str, ...]
    counts: Mapping[Any, int]
    """Number of examples of each class."""
    copied: Mapping[str, str] = field(default_factory=dict)
    """Shards of the old version at a URL, which are not staged, by their final names."""
    uploaded: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the shards that workers have uploaded."""

    @property
    def info(self) -> SplitInfo:
        """Entry of the split in ``dataset_info.json``."""
        return self.target.version_info(self.shards)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the shards and index files."""
        return (*(shard.name for shard in self.shards), *self.index_files)


@dataclass(frozen=True, slots=True)
class Change:
    """Changes of a commit."""

    splits: tuple[StagedSplit, ...]
    sidecars: Mapping[str, str]
    """Content of the sidecar files, by name."""
    lists_shards: bool
    """Whether to create datum's ``shard_info.json``; an existing one is always updated."""
    description: str = ""
    supervised_keys: tuple[str, str] | None = None
    """Input feature and label feature of the new records."""
    replaced_files: ReplacedFiles = "move"

    @property
    def target(self) -> TargetSplit:
        """The first split, and the dataset before the write."""
        return self.splits[0].target

    @property
    def replaced(self) -> tuple[SplitInfo, ...]:
        """The replaced versions."""
        return tuple(old for split in self.splits if (old := split.target.old) is not None)

    @property
    def files(self) -> tuple[str, ...]:
        """Final names of the shards and index files."""
        return tuple(name for split in self.splits for name in split.files)

    def check_foreign(self, names: Collection[str]) -> None:
        """Raise DatasetExistsError if a file of the dataset is not its own."""
        for split in self.splits:
            split.target.check_foreign((*split.files, *self.sidecars), names)

    def find_obsolete(self, names: Iterable[str], info: DatasetInfo) -> list[str]:
        """Return the names of files of versions before the replaced ones."""
        splits = self.target.splits
        return find_all_obsolete(names, info, splits, self.replaced, versions.RETENTION_S)

    def new_info(self, old: DatasetInfo | None) -> DatasetInfo:
        """Return the new ``dataset_info.json``."""
        info = old or DatasetInfo(self.target.name, self.target.version)
        if self.description:
            info = replace(info, description=self.description)
        if not self.target.keeps or not info.has_supervised_keys:
            info = info.with_supervised_keys(self.supervised_keys)
        for split in self.splits:
            info = info.with_split(split.info)
        return info

    def journal(self, now: Mapping[str, bytes], replaced: Iterable[str], path: str) -> Journal:
        """Return the journal of the commit.

        Args:
            now: Content of the sidecar files and of ``shard_info.json``.
            replaced: Files of the replaced versions, which are moved.
            path: Path of the dataset, for errors.
        """
        changed = {
            name: text for name, text in self.sidecars.items() if now.get(name) != text.encode()
        }
        new = [name for name in changed if name not in now]
        replacing = {name: text for name, text in changed.items() if name in now}
        early, late = (replacing, {}) if self.target.keeps else ({}, replacing)
        if self.lists_shards or SHARD_INFO_FILE in now:
            file = f"{path}/{SHARD_INFO_FILE}"
            content = parse_json(now.get(SHARD_INFO_FILE, b"{}"), file)
            if not isinstance(content, dict):
                raise FormatError(
                    "the content is not a dict", path=file, remedy="remove it with its dataset"
                )
            for split in self.splits:
                content[split.target.split] = {each.name: each.records for each in split.shards}
            late = {**late, SHARD_INFO_FILE: json.dumps(content, indent=1, ensure_ascii=False)}
        stale = self._stale_labels(now, path)
        return Journal((*self.files, *new), early, late, tuple(stale), tuple(replaced))

    def new_sidecars(self, journal: Journal) -> dict[str, str]:
        """Return the sidecar files that do not exist yet."""
        return {name: text for name, text in self.sidecars.items() if name in journal.names}

    def _stale_labels(self, now: Mapping[str, bytes], path: str) -> list[str]:
        """Return the label files of the old features that the new features do not have."""
        if self.target.keeps or not self.replaced:
            return []

        def read(name: str) -> bytes:
            if name not in now:
                raise FileNotFoundError(name)
            return now[name]

        with contextlib.suppress(OSError, CoveyError):
            _, labels = features_to_tfds(features_from_tfds(path, read))
            return [name for name in labels if name not in self.sidecars]
        return []


def committed_error(split: str, path: str, error: BaseException) -> CommittedError:
    """Return the error of a step after the switch."""
    return CommittedError(
        f"split {split!r} is written, but some files of the old version could not be replaced or "
        f"deleted: {cause(error)}",
        path=path,
        remedy="do not write the same examples again; the next write completes it",
    )


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
        self.storage = LocalStorage()
        self.location = os.fspath(directory)
        self.directory = directory
        self.split = split
        self.committed = False
        """Whether the switch has happened."""
        self.can_link = False
        """Whether the file system has hard links."""
        self.is_remote = False
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
            raise blocked_error(self.path, self.split) from None
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

    @property
    def unique(self) -> bool:
        """Whether a version needs file names that no other version has."""
        return not self.can_link

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from committing until the end of the block."""
        return locked(self.directory)

    def commit(
        self,
        change: Change,
        progress: Progress | None = None,
    ) -> None:
        """Make the staged files the current version of the split.

        SIGINT and SIGTERM are deferred: before the switch they abort the commit, after it they are
        delivered when the commit is complete.

        Args:
            change: Staged changes, whose files are synced.
            progress: Progress bar of uploads.

        Raises:
            CommittedError: If the split is written, but step 3 failed.
        """
        with locked(self.directory, max(self._lock_timeout, COMMIT_TIMEOUT_S)):
            recover_locked(self.directory, own=self.path)
            self._check_dataset(change)
            change.check_foreign(os.listdir(self.directory))
            info = change.new_info(read_info(self.directory))
            with DeferredSignals() as signals:
                journal = self._switch(change, info, signals)
                try:
                    sync(self.directory)
                    moved = finish(self.directory, journal, info)
                    for path in moved if change.replaced_files == "delete" else ():
                        unlink_file(path)
                    _remove_obsolete(self.directory, info, change)
                    self._remove()
                    sync(self.directory)
                except (OSError, MemoryError) as error:
                    raise committed_error(self.split, self.location, error) from error

    def _switch(self, change: Change, info: DatasetInfo, signals: DeferredSignals) -> Journal:
        """Do steps 1 and 2; undo step 1 if step 2 has not happened."""
        before = read_sidecars(self.directory)
        listed = self.directory / SHARD_INFO_FILE
        now = {**before, SHARD_INFO_FILE: read_file(listed)} if listed.exists() else before
        journal = change.journal(now, self._replaced_files(info, change), self.location)
        text = info.to_json().encode()
        placed: list[str] = []
        try:
            new = change.new_sidecars(journal).items()
            atomic_write_all(self.path, {name: content.encode() for name, content in new})
            journal.store(self.path)
            sync(self.path)
            write_sidecars(self.directory, journal.early)
            for name in journal.names:
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
                    atomic_write_all(
                        self.directory,
                        {name: before[name] for name in journal.early},
                        first=LABELS_SUFFIX,
                    )
            raise
        finally:
            if self.committed:
                self._created = []
        return journal

    def _replaced_files(self, info: DatasetInfo, change: Change) -> list[str]:
        """Return the files that step 3 moves: all those of old versions of the splits."""
        if change.replaced_files == "keep":
            return []
        names = {*os.listdir(self.directory)}
        found = referenced_files(replace(info, splits=change.replaced)) & names
        found.update(find_all_obsolete(names, info, change.target.splits))
        return sorted(found - referenced_files(info))

    def _check_dataset(self, change: Change) -> None:
        """Raise if another process has changed the dataset since this write began."""
        info = read_info(self.directory)
        own = change.target.splits
        others = () if info is None else info.splits
        is_new = not change.target.keeps and any(each.name not in own for each in others)
        if info is not None and info.name != change.target.name:
            raise DatasetError(
                f"another process has named the dataset {info.name!r}, not {change.target.name!r}",
                path=self.directory,
                remedy=f"write split {self.split!r} again",
            )
        now = read_sidecars(self.directory)
        # A split that was added meanwhile must have the same features and classes.
        for name, text in change.sidecars.items():
            found, data = now.get(name), text.encode()
            if found != data and (is_new or found != self._at_open.get(name)):
                raise DatasetError(
                    "another process has written other features or classes while split "
                    f"{self.split!r} was written",
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
def staged(directory: Path, splits: Sequence[str]) -> Iterator[Staging]:
    """Yield the staging directory of the first split; remove it at the end of the block.

    Other processes cannot write the further splits, whose files are staged with the first.
    """
    with contextlib.ExitStack() as stack:
        for claim in (Staging(directory, split) for split in splits[1:]):
            stack.callback(claim.abort)
            with reporting_failures(directory, claim.split):
                claim.open()
        staging = Staging(directory, splits[0])
        with reporting_failures(directory, splits[0], lambda: staging.committed):
            try:
                staging.open()
                yield staging
            finally:
                staging.abort()


def _remove_obsolete(directory: Path, info: DatasetInfo, change: Change) -> None:
    """Delete files of versions before the replaced ones after a commit."""
    names = {name: name for name in os.listdir(directory)}
    if change.replaced_files != "keep":
        directory /= OLD_DIRECTORY
        if not is_directory(directory):
            return
        names = {name_of_old(name): name for name in os.listdir(directory)}
    for name in change.find_obsolete(names, info):
        unlink_file(directory / names[name])
    if directory.name == OLD_DIRECTORY:
        with contextlib.suppress(OSError):  # it is not empty
            directory.rmdir()
