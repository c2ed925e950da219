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
import re
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.errors import CommittedError, CoveyError, DatasetError, FormatError
from covey.features.tfds import FEATURES_FILE, features_from_tfds, features_to_tfds
from covey.metadata import (
    ENTRIES_FILE,
    INFO_FILE,
    SHARD_INFO_FILE,
    DatasetInfo,
    SplitInfo,
    is_staging,
    is_version_file,
    staging_name,
)
from covey.shards import sync
from covey.storage import open_storage
from covey.storage.local import remove_stale_temporaries
from covey.untrusted import os_errors, parse_json, read_file
from covey.writing import versions
from covey.writing.files import (
    atomic_write,
    atomic_write_all,
    differs,
    is_temporary,
    read_regular,
    remove_any,
    temporary_name,
    unlink_file,
)
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
from covey.writing.versions import delete_obsolete, find_obsolete, read_info, referenced_files

_LABELS = ".labels.txt"
_BEFORE, _AFTER = "before", "after"
_NAMES, _STALE, _OWNER = "names", "stale", "owner"


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


def is_sidecar(name: str) -> bool:
    """Return whether a file describes the features of all splits."""
    return name in (FEATURES_FILE, ENTRIES_FILE) or name.endswith(_LABELS)


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
                _recover(self.directory)
                self._claim()
                self.can_link = self._note_owner()
                self._at_open = _read_sidecars(self.directory)
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
            raise DatasetError(_blocked(self.directory, self.path, self.split)) from None
        self._lock = try_lock(self.path)

    def _note_owner(self) -> bool:
        """Store which process writes; return whether the file system has hard links."""
        path = self.path / _OWNER
        path.write_text(owner(), encoding="utf-8")
        try:
            os.link(path, self.path / f"{_OWNER}.link")
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
            _recover(self.directory, own=self.path)
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
                    _replace_late_sidecars(self.directory, self.path)
                    _remove_obsolete(self.directory, info, change)
                    self._remove()
                    sync(self.directory)
                except OSError as error:
                    raise CommittedError(
                        f"{self.directory}: split {change.split.name!r} is written, but the files "
                        f"of the old version could not all be replaced or deleted "
                        f"({error.strerror or error}); the next write completes that: do not write "
                        "the same examples again"
                    ) from error

    def _switch(self, change: Change, info: DatasetInfo, signals: DeferredSignals) -> None:
        """Do steps 1 and 2; undo step 1 if step 2 has not happened."""
        before = _read_sidecars(self.directory)
        text = info.to_json().encode()
        placed: list[str] = []
        early: list[str] = []
        try:
            new, early = self._stage_sidecars(change, before)
            names = (*change.files, *new)
            atomic_write(self.path / _NAMES, "\n".join(names).encode())
            sync(self.path)
            _write_sidecars(self.directory, _staged_sidecars(self.path / _BEFORE))
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
                    _write_sidecars(self.directory, {name: before[name] for name in early})
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
                raise FormatError(f"{path}: it is not a dict; remove it with its dataset")
            content[change.split.name] = dict(change.lists_shards)
            late[SHARD_INFO_FILE] = json.dumps(content, indent=1, ensure_ascii=False).encode()
        atomic_write_all(self.path, {**new, _STALE: "\n".join(stale).encode()})
        for directory, texts in ((_BEFORE, early), (_AFTER, late)):
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
                f"{self.directory}: another process has called the dataset {info.name!r}, not "
                f"{change.name!r}; write it again"
            )
        now = _read_sidecars(self.directory)
        # A split that was added since then did not know of this one: both must say the same.
        is_new = new is not None and not change.keeps
        for name, text in change.sidecars.items():
            if is_new and now.get(name) != text.encode():
                raise DatasetError(
                    f"{self.directory}: another process has written split {new!r} in the meantime, "
                    f"with other features or classes; write {change.split.name!r} again"
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
                _remove_staging(self.path)
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


# Recovery. No name that is found in the directory is trusted.


def recover(directory: Path) -> None:
    """Complete or undo the commits of killed writers, and remove what they left."""
    with locked(directory):
        _recover(directory)


def clean_up(path: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """Recover a dataset, and delete the files of its old versions.

    Args:
        path: Of the dataset, or a URL, where only files of old versions are deleted.
        options: fsspec's storage options.

    Returns:
        The names of the files that were deleted.
    """
    storage = open_storage(path, options)
    location = storage.clean(path)
    if storage.name(location) == INFO_FILE:
        location = storage.parent(location)
    if storage.is_remote:
        return delete_obsolete(storage, location)
    directory = Path(location)
    if not directory.is_dir():
        raise DatasetError(f"{path}: there is no such directory")
    with os_errors(directory):
        before = {*os.listdir(directory)}
        recover(directory)
        with locked(directory):
            delete_obsolete(storage, location)
        return sorted(before - {*os.listdir(directory)})


def _recover(directory: Path, own: Path | None = None) -> None:
    """Recover a directory that is locked; leave the caller's own staging directory."""
    remove_stale_temporaries(directory)  # of `covey index`, which does not lock
    for name in sorted(os.listdir(directory)):
        path = directory / name
        if is_temporary(name):
            remove_any(path)
        elif is_staging(name) and path != own:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                remove_any(path)
                continue
            with contextlib.suppress(PermissionError):  # of another user: it blocks one split
                _recover_staging(directory, path)


def _recover_staging(directory: Path, path: Path) -> None:
    if _is_elsewhere(path):
        return
    lock = try_lock(path)
    if lock is None:  # its writer is alive
        return
    try:
        _complete_or_undo(directory, path)
        _remove_staging(path)
    finally:
        unlock(lock)


def _is_elsewhere(staging: Path) -> bool:
    """Return whether a writer on another machine may be at work."""
    host = _read_owner(staging).partition(" on ")[2]
    if not host or host == socket.gethostname():
        return False
    return time.time() - os.lstat(staging).st_mtime < versions.ABANDONED_S


def _complete_or_undo(directory: Path, staging: Path) -> None:
    """Complete the commit of a staging directory if the switch has happened; else undo it."""
    _write_sidecars(directory, _staged_sidecars(staging / _BEFORE))
    names = [
        name
        for name in _read_lines(staging / _NAMES)
        if is_version_file(name) or (is_sidecar(name) and "/" not in name)
    ]
    info = read_info(directory)
    if info is not None and {*names} & referenced_files(info):
        _replace_late_sidecars(directory, staging)
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found, staged = os.lstat(directory / name), os.lstat(staging / name)
            if stat.S_ISREG(found.st_mode) and os.path.samestat(found, staged):
                os.unlink(directory / name)


def _remove_staging(path: Path) -> None:
    """Remove a staging directory. A part of it must not be taken for the whole."""
    temporary = path.with_name(temporary_name())
    with contextlib.suppress(OSError):
        os.rename(path, temporary)
        remove_any(temporary)


def _blocked(directory: Path, staging: Path, split: str) -> str:
    """Return why a split cannot be written while it has a staging directory."""
    try:
        lock = None if _is_elsewhere(staging) else try_lock(staging)
    except OSError:
        lock = -1
    if lock is not None:
        unlock(lock)
        user = os.lstat(staging).st_uid
        return (
            f"{staging}: an interrupted write of user {user} left it, and it cannot be removed; "
            "remove it as that user"
        )
    found = _read_owner(staging)
    by = f" ({found})" if found else ""
    return f"{directory}: another process is writing split {split!r}{by}; wait for it to end"


def _read_owner(staging: Path) -> str:
    """Return which process writes into a staging directory; empty if nothing tells."""
    with contextlib.suppress(OSError, FormatError):
        text = read_regular(staging / _OWNER).decode(errors="replace")
        if re.fullmatch(r"process \d{1,10} on [\w.-]{1,253}", text):
            return text
    return ""


# Sidecar files.


def _read_sidecars(directory: Path) -> dict[str, bytes]:
    """Return the files that describe the features of all splits; a broken link is empty."""
    found = {}
    for name in os.listdir(directory):
        path = directory / name
        if is_sidecar(name) and not path.is_dir():
            found[name] = read_file(path) if path.exists() else b""
    return found


def _staged_sidecars(staged: Path) -> dict[str, bytes]:
    """Return staged sidecar files."""
    try:
        if not stat.S_ISDIR(os.lstat(staged).st_mode):
            return {}
        with os.scandir(staged) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return {}
    return {
        name: read_regular(staged / name)
        for name in sorted(names)
        if is_sidecar(name) or name == SHARD_INFO_FILE
    }


def _replace_late_sidecars(directory: Path, staging: Path) -> None:
    """Let the sidecar files of the new version replace those of the old one."""
    for name in _read_lines(staging / _STALE):
        if name.endswith(_LABELS) and "/" not in name:
            unlink_file(directory / name)
    _write_sidecars(directory, _staged_sidecars(staging / _AFTER))


def _write_sidecars(directory: Path, files: Mapping[str, bytes]) -> None:
    changed = {name: data for name, data in files.items() if differs(directory / name, data)}
    # TFDS accepts classes without names, but not more names than features.json has classes.
    atomic_write_all(directory, changed, first=_LABELS)


def _read_lines(path: Path) -> list[str]:
    try:
        return read_regular(path).decode(errors="replace").split("\n")
    except FileNotFoundError:
        return []


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
