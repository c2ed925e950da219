"""The commit of a split: one rename makes a written version visible.

A split is written into a staging directory inside the dataset, which readers ignore::

    data/birds/.covey-train.partial/         locked by its writer; stale if the lock is free
        birds-train.tfrecord-00000-of-00002  whole and synced, with its final name
        birds-train.index.json ...
        before/features.json                 replaces the dataset's file before the switch
        after/features.json                  or after it

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
import importlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from covey.errors import CommittedError, CoveyError, DatasetError, FormatError
from covey.features.tfds import FEATURES_FILE
from covey.index import index_names
from covey.metadata import (
    INFO_FILE,
    SHARD_INFO_FILE,
    DatasetInfo,
    SplitInfo,
    is_staging,
    is_version_file,
    parse_version_file,
    staging_name,
    token_time,
)
from covey.shards import sync
from covey.storage import Storage, open_storage
from covey.storage.local import remove_stale_temporaries
from covey.untrusted import parse_json, read_file

# On systems without it, two writers of one split are not detected.
_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

LOCK_TIMEOUT_S = 60.0
RETENTION_S = 60.0
"""How long files of a replaced version stay at least, for readers that have just opened it."""
ABANDONED_S = 86400.0
"""How long files stay that may be of a write in progress."""

_TEMPORARY = re.compile(r"\.covey-[0-9a-f]{16}\.tmp")
_BEFORE, _AFTER = "before", "after"
_OWNER = "owner"
_MAX_SIDECAR_BYTES = 1 << 28

# Missing on Windows.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_BINARY = getattr(os, "O_BINARY", 0)


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


def read_info(directory: Path) -> DatasetInfo | None:
    """Return the content of ``dataset_info.json``; None if there is no such file."""
    path = directory / INFO_FILE
    try:
        return DatasetInfo.from_json(read_file(path), str(path))
    except FileNotFoundError:
        return None


def is_sidecar(name: str) -> bool:
    """Return whether a file describes the features of all splits."""
    return name == FEATURES_FILE or name.endswith((".labels.txt", "mapping.json"))


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
        self._lock: int | None = None
        self._lock_timeout = lock_timeout
        self._created: list[Path] = []
        self._before: dict[str, bytes] = {}

    def open(self) -> None:
        """Create and lock the staging directory, and the dataset directory if it does not exist.

        Raises:
            DatasetError: If another process is writing the same split.
        """
        try:
            with DeferredInterrupt():
                self._create_directory()
            with locked(self.directory, self._lock_timeout), DeferredInterrupt():
                _recover(self.directory)
                self._claim()
                self.can_link = self._note_owner()
                self._before = _read_sidecars(self.directory)
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
        except FileExistsError:  # _recover() leaves only those of living processes
            raise DatasetError(
                f"{self.directory}: another process is writing split {self.split!r}"
                f"{_read_owner(self.path)}; wait for it to end"
            ) from None
        self._lock = _try_lock(self.path)

    def _note_owner(self) -> bool:
        """Store who writes, for messages; return whether the file system has hard links."""
        owner = self.path / _OWNER
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        try:
            os.link(owner, self.path / f"{_OWNER}.link")
        except OSError:
            return False
        return True

    def commit(self, change: Change, check: Callable[[], None] = lambda: None) -> None:
        """Make the staged files the split.

        SIGINT is held back: before the switch it aborts the commit, after it the commit is
        completed first.

        Args:
            change: What is staged; its files are synced already.
            check: Raises if the dataset, which is locked then, does not allow the commit.

        Raises:
            CommittedError: If the split is written, but step 3 failed.
        """
        with locked(self.directory, self._lock_timeout):
            _recover(self.directory)
            self._check_dataset(change)
            check()
            info = read_info(self.directory) or DatasetInfo(change.name, change.version)
            if change.description:
                info = replace(info, description=change.description)
            info = info.with_split(change.split)
            with DeferredInterrupt() as interrupt:
                self._switch(change, info, interrupt)
                try:
                    sync(self.directory)
                    _replace_sidecars(self.directory, self.path / _AFTER)
                    remove_obsolete(self.directory, info, change)
                    self._remove()
                    sync(self.directory)
                except OSError as error:
                    raise CommittedError(
                        f"{self.directory}: split {change.split.name!r} is written, but the files "
                        f"of the old version could not all be replaced or deleted "
                        f"({error.strerror or error}); the next write completes that: do not write "
                        "the same examples again"
                    ) from error

    def _switch(self, change: Change, info: DatasetInfo, interrupt: DeferredInterrupt) -> None:
        """Do steps 1 and 2; undo step 1 if step 2 fails."""
        placed: list[str] = []
        try:
            new = self._stage_sidecars(change)
            _replace_sidecars(self.directory, self.path / _BEFORE)
            for name in (*change.files, *new):
                interrupt.deliver()
                place = os.link if self.can_link else os.rename
                place(self.path / name, self.directory / name)
                placed.append(name)
            sync(self.directory)
            interrupt.deliver()
            atomic_write(self.directory / INFO_FILE, info.to_json().encode())
            self.committed = True
            self._created = []
        except BaseException:
            with contextlib.suppress(OSError):
                for name in placed:
                    (self.directory / name).unlink(missing_ok=True)
                _write_sidecars(self.directory, self._before)
            raise

    def _stage_sidecars(self, change: Change) -> list[str]:
        """Stage the sidecar files; return the names of those that are new."""
        now = _read_sidecars(self.directory)
        changed = {
            name: text for name, text in change.sidecars.items() if now.get(name) != text.encode()
        }
        new = {name: text for name, text in changed.items() if name not in now}
        early = {name: text for name, text in changed.items() if name in now and change.keeps}
        late: dict[str, str] = {}
        if not change.keeps and (new != changed or self._stale_labels(change.sidecars)):
            late = dict(change.sidecars)
        if change.lists_shards is not None:
            path = self.directory / SHARD_INFO_FILE
            content = parse_json(read_file(path), str(path)) if path.exists() else {}
            if not isinstance(content, dict):
                raise FormatError(f"{path}: it is not a dict; remove it with its dataset")
            content[change.split.name] = dict(change.lists_shards)
            late[SHARD_INFO_FILE] = json.dumps(content, indent=1, ensure_ascii=False)
        for directory, texts in (("", new), (_BEFORE, early), (_AFTER, late)):
            path = self.path / (f"{directory}.partial" if directory else "")
            path.mkdir(exist_ok=True)
            for name, text in texts.items():
                atomic_write(path / name, text.encode())
            sync(path)
            if directory:  # it is complete, or has another name
                os.rename(path, self.path / directory)
        return list(new)

    def _stale_labels(self, sidecars: Mapping[str, str]) -> list[str]:
        return [
            path.name for path in self.directory.glob("*.labels.txt") if path.name not in sidecars
        ]

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
            if now.get(name) not in (self._before.get(name), text.encode()):
                raise DatasetError(
                    f"{self.directory / name}: another process has changed it while split "
                    f"{change.split.name!r} was written; write it again"
                )

    def abort(self) -> None:
        """Remove all traces of what was not committed; what was is left to the next writer."""
        if self.committed:
            _unlock(self._lock)
            self._lock = None
        self._remove()

    def _remove(self) -> None:
        with DeferredInterrupt():
            if self._lock is not None:
                _remove_staging(self.path)
                _unlock(self._lock)
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


class DeferredInterrupt:
    """Holds SIGINT back in the main thread, and delivers it at the end of the block."""

    def __init__(self) -> None:
        self._pending = False
        self._handler: Any = None

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):  # else it is ignored, or not Python's
                signal.signal(signal.SIGINT, self._note)
                self._handler = handler
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pending = True

    def deliver(self) -> None:
        """Deliver a signal that has been held back."""
        if self._pending:
            self._pending = False
            self._handler(signal.SIGINT, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self.deliver()


# Recovery.


def recover(directory: Path, *, lock_timeout: float = LOCK_TIMEOUT_S) -> None:
    """Complete or undo the commits of killed writers, and remove what they left."""
    if any(is_staging(name) or _TEMPORARY.fullmatch(name) for name in _names(directory)):
        with locked(directory, lock_timeout):
            _recover(directory)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _recover(directory: Path) -> None:
    """Do the same in a directory that is locked. Names from the directory are not trusted."""
    remove_stale_temporaries(directory)  # of `covey index`, which does not lock
    for name in sorted(_names(directory)):
        path = directory / name
        if _TEMPORARY.fullmatch(name):
            _remove_any(path)
        elif is_staging(name):
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                _remove_any(path)
                continue
            lock = _try_lock(path)
            if lock is None:  # its writer is alive
                continue
            try:
                _complete_or_undo(directory, path)
                _remove_staging(path)
            finally:
                _unlock(lock)


def _remove_staging(path: Path) -> None:
    """Remove a staging directory. A part of it must not be taken for the whole."""
    temporary = path.with_name(_temporary_name())
    with contextlib.suppress(OSError):
        os.rename(path, temporary)
        _remove_any(temporary)


def _remove_any(path: Path) -> None:
    """Remove a directory, a file, or a symbolic link itself, as far as that is possible."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _complete_or_undo(directory: Path, staging: Path) -> None:
    """Complete the commit of a staging directory if the switch has happened; else undo it."""
    info = read_info(directory)
    referenced = set() if info is None else referenced_files(info)
    with os.scandir(staging) as entries:
        staged = {
            entry.name: entry.inode()
            for entry in entries
            if entry.is_file(follow_symlinks=False)
            and (is_version_file(entry.name) or is_sidecar(entry.name))
        }
    _replace_sidecars(directory, staging / _BEFORE)
    if staged.keys() & referenced:
        _replace_sidecars(directory, staging / _AFTER)
        return
    for name, inode in staged.items():
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(directory / name)
            if stat.S_ISREG(found.st_mode) and found.st_ino == inode:
                os.unlink(directory / name)


def _replace_sidecars(directory: Path, staged: Path) -> None:
    """Let staged sidecar files replace those of the dataset."""
    try:
        if not stat.S_ISDIR(os.lstat(staged).st_mode):
            return
        with os.scandir(staged) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return
    texts = {
        name: _read_regular(staged / name)
        for name in sorted(names)
        if is_sidecar(name) or name == SHARD_INFO_FILE
    }
    if FEATURES_FILE in texts and staged.name == _AFTER:  # then all of them are staged
        for path in directory.glob("*.labels.txt"):
            if path.name not in texts:
                path.unlink(missing_ok=True)
    _write_sidecars(directory, texts)


def _write_sidecars(directory: Path, texts: Mapping[str, bytes]) -> None:
    changed = {name: text for name, text in texts.items() if _differs(directory / name, text)}
    for name in changed:
        # TFDS accepts classes without names, but not more names than features.json has classes.
        if name.endswith(".labels.txt"):
            (directory / name).unlink(missing_ok=True)
    for name in sorted(changed, key=lambda name: name.endswith(".labels.txt")):
        atomic_write(directory / name, changed[name])


# Files of old versions.


def referenced_files(info: DatasetInfo) -> set[str]:
    """Return the names of the shards and index files of the current version of every split."""
    names: set[str] = set()
    for split in info.splits:
        names.update(split.shard_names(info.name))
        names.update(index_names(split.stem(info.name)).values())
    return names


def find_obsolete(
    names: Iterable[str],
    info: DatasetInfo,
    split: str,
    *,
    replaced: SplitInfo | None,
    now: float,
    retention: float,
) -> list[str]:
    """Return the names of files of old versions of a split that may be deleted.

    The version that was replaced last stays. Those before it are deleted once ``retention`` seconds
    have passed since they were replaced, which is when that version was committed. Files that are
    newer were never committed: their writer was killed, or is still at work.

    Args:
        names: Of all files of the directory.
        info: Of the dataset as it is now.
        split: The split.
        replaced: The version that was replaced last, if it is to stay.
        now: The time.
        retention: In seconds.
    """
    keep = referenced_files(info)
    last = replaced
    if replaced is not None:
        keep |= referenced_files(replace(info, splits=(replaced,)))
    else:
        last = next((each for each in info.splits if each.name == split), None)
    since = None if last is None or last.token is None else token_time(last.token)
    found = []
    for name in names:
        is_own, token = parse_version_file(name, info.name, split)
        if not is_own or name in keep:
            continue
        made = None if token is None else token_time(token)
        if made is not None and (since is None or made > since):
            is_obsolete = now - made >= ABANDONED_S
        else:
            is_obsolete = since is not None and now - since >= retention
        if is_obsolete:
            found.append(name)
    return found


def clean_up(path: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """Complete or undo interrupted commits of a dataset, and delete the files of old versions.

    Returns:
        The names of the files that were deleted.
    """
    storage = open_storage(path, options)
    location = storage.clean(path)
    if storage.is_remote:
        return _delete_obsolete(storage, location)
    directory = Path(location)
    if not directory.is_dir():
        raise DatasetError(f"{path}: there is no such directory")
    with reporting_failures(directory, "*"), locked(directory):
        before = set(_names(directory))
        _recover(directory)
        _delete_obsolete(storage, location)
        return sorted(before - set(_names(directory)))


def _delete_obsolete(storage: Storage, location: str) -> list[str]:
    info_path = storage.join(location, INFO_FILE)
    try:
        info = DatasetInfo.from_json(storage.read(info_path), info_path)
    except FileNotFoundError:
        return []
    names = [storage.name(each) for each in storage.list(location)]
    found = [
        name
        for split in info.splits
        for name in find_obsolete(
            names, info, split.name, replaced=None, now=time.time(), retention=0
        )
    ]
    storage.remove([storage.join(location, name) for name in found])
    return sorted(found)


def remove_obsolete(directory: Path, info: DatasetInfo, change: Change) -> None:
    """Delete files of old versions of a split after a commit."""
    names = find_obsolete(
        _names(directory),
        info,
        change.split.name,
        replaced=change.replaced,
        now=time.time(),
        retention=RETENTION_S,
    )
    for name in names:
        (directory / name).unlink(missing_ok=True)
    if change.replaced is not None:
        _remove_foreign(directory, info, change.replaced)


def _remove_foreign(directory: Path, info: DatasetInfo, replaced: SplitInfo) -> None:
    """Delete replaced shards whose names do not tell that they are of this split."""
    current = referenced_files(info)
    for name in replaced.shard_names(info.name):
        if parse_version_file(name, info.name, replaced.name)[0] or name in current:
            continue
        path = directory / name
        inside = [each for each in path.parents if directory in each.parents]
        if not any(each.is_symlink() for each in inside):
            path.unlink(missing_ok=True)


# Files.


def atomic_write(path: Path, data: bytes) -> None:
    """Replace a file by one rename; a symbolic link is replaced, not followed."""
    temporary = path.with_name(_temporary_name())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _CLOSE_ON_EXEC | _BINARY
    descriptor = os.open(temporary, flags, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _temporary_name() -> str:
    return f".covey-{secrets.token_hex(8)}.tmp"


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
        sync(target)


def _read_regular(path: Path) -> bytes:
    """Return the content of a regular file that is not a symbolic link."""
    descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _CLOSE_ON_EXEC | _BINARY)
    with open(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_SIDECAR_BYTES:
            raise FormatError(f"{path}: it is not a regular file of at most 256 MiB; remove it")
        return file.read(_MAX_SIDECAR_BYTES)


def _read_sidecars(directory: Path) -> dict[str, bytes]:
    """Return the files that describe the features of all splits."""
    found = {}
    for name in _names(directory):
        if is_sidecar(name) and (directory / name).is_file():
            found[name] = read_file(directory / name)
    return found


def _differs(path: Path, data: bytes) -> bool:
    return path.is_symlink() or not path.exists() or path.read_bytes() != data


@contextmanager
def reporting_failures(
    directory: Path, split: str, is_committed: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Say in errors and interrupts whether the split was written."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise interrupted(str(directory), split, is_committed()) from interrupt
    except OSError as error:
        if isinstance(error, CoveyError):
            raise
        where = f" ({error.filename})" if error.filename else ""
        if is_committed():
            raise CommittedError(
                f"{directory}: split {split!r} is written, but then: {error.strerror or error}"
                f"{where}; do not write the same examples again"
            ) from error
        raise DatasetError(
            f"{directory}: writing split {split!r} failed: {error.strerror or error}"
            f"{where}; nothing was changed"
        ) from error


def interrupted(where: str, split: str, committed: bool) -> KeyboardInterrupt:
    """Return an interrupt that says whether the split was written."""
    state = "is written" if committed else "is not written, nothing was changed"
    return KeyboardInterrupt(f"{where}: interrupted; split {split!r} {state}")


# Locks.


@contextmanager
def locked(directory: Path, timeout: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of a dataset directory, which every writer takes to look at it or commit.

    Raises:
        DatasetError: If another process holds it for longer than ``timeout`` seconds.
    """
    if _fcntl is None:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY | _DIRECTORY | _CLOSE_ON_EXEC)
    try:
        deadline = time.monotonic() + timeout
        while not _take_lock(descriptor):
            if time.monotonic() > deadline:
                raise DatasetError(
                    f"{directory}: {_find_holder(descriptor)} has held the lock of the dataset "
                    f"for over {timeout:g} s; wait for it to end, or stop it"
                )
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int) -> bool:
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _find_holder(descriptor: int) -> str:
    """Return which process holds the lock of a directory, where the system tells."""
    found = os.fstat(descriptor)
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "FLOCK" in fields and "->" not in fields and fields[5] == device:
                process = int(fields[4])
                command = Path(f"/proc/{process}/comm").read_text().strip()
                return f"process {process} ({command})"
    return "another process"


def _try_lock(directory: Path) -> int | None:
    """Lock a staging directory unless a process holds it; return the descriptor of the lock."""
    if _fcntl is None:
        return -1
    descriptor = os.open(directory, os.O_RDONLY | _DIRECTORY | _NO_FOLLOW | _CLOSE_ON_EXEC)
    if _take_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _read_owner(staging: Path) -> str:
    """Return which process writes into a staging directory, for a message."""
    with contextlib.suppress(OSError, FormatError):
        text = _read_regular(staging / _OWNER).decode(errors="replace")
        found = re.fullmatch(r"process \d{1,10} on [\w.-]{1,253}", text)
        if found:
            return f" ({found[0]})"
    return ""


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None and descriptor >= 0:
        os.close(descriptor)
