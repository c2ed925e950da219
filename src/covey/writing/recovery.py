"""Recovery: complete or undo the commits of killed writers, and remove the files that they left.

Names in a dataset directory are not trusted, and symbolic links are not followed. The content of a
staging directory is described in :mod:`covey.writing.commit`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey._files import (
    atomic_write,
    atomic_write_all,
    differs,
    is_directory,
    is_temporary,
    move_file,
    read_regular,
    remove_any,
    sync,
    temporary_name,
    unlink_file,
)
from covey._locks import locked, try_lock, unlock
from covey.dataset_info import DatasetInfo
from covey.errors import DatasetError, FormatError
from covey.filenames import (
    INFO_FILE,
    LABELS_SUFFIX,
    OLD_DIRECTORY,
    SHARD_INFO_FILE,
    has_token,
    is_record_file,
    is_sidecar,
    is_staging,
    is_version_file,
    old_name,
)
from covey.storage import LocalStorage, open_storage
from covey.storage.local import remove_stale_temporaries
from covey.untrusted import os_errors, parse_json, parsing, read_file
from covey.writing import versions
from covey.writing.part_files import find_parts, remove_committed, remove_parts
from covey.writing.typed_json import from_json, to_json
from covey.writing.versions import delete_obsolete, read_info, referenced_files

# Names in a staging directory.
JOURNAL, OWNER = "journal", "owner"


@dataclass(frozen=True)
class Journal:
    """The changes of a commit, stored in the staging directory before the first of them."""

    names: tuple[str, ...]
    """Staged files that get a name in the dataset: step 1."""
    early: Mapping[str, str]
    """Sidecar files to be replaced in step 1."""
    late: Mapping[str, str]
    """Sidecar files to be replaced in step 3."""
    stale: tuple[str, ...]
    """Label files to be removed in step 3."""
    replaced: tuple[str, ...]
    """Files of the replaced version, which step 3 moves."""

    def store(self, staging: Path) -> None:
        """Write the journal to a staging directory."""
        atomic_write(staging / JOURNAL, json.dumps(to_json(self), ensure_ascii=False).encode())

    @classmethod
    def load(cls, staging: Path) -> Journal | None:
        """Return the journal of a staging directory; None if the commit has not begun."""
        path = staging / JOURNAL
        try:
            with parsing(path):
                content = parse_json(read_regular(path), str(path))
                journal: Journal = from_json(Journal, content, "the journal")
                return journal
        except FileNotFoundError:
            return None
        except FormatError as error:
            error.remedy = error.remedy or "remove its directory"
            raise


def recover(directory: Path) -> None:
    """Complete or undo the commits of killed writers, and remove the files that they left."""
    with locked(directory):
        recover_locked(directory)


def clean_up(
    path: str, options: Mapping[str, Any] | None = None, *, delete_parts: bool = False
) -> tuple[list[str], list[str]]:
    """Recover a dataset, and delete the files of its old versions.

    Args:
        path: Directory of the dataset; or a URL, which is not recovered.
        options: Storage options of fsspec.
        delete_parts: Whether to delete parts that are not committed. Their jobs may be running, or
            be queued: neither their age nor a lock shows that they are abandoned.

    Returns:
        The names of the files that were deleted, and of the directories of parts that remain.
    """
    storage = open_storage(path, options)
    location = storage.clean(path)
    if storage.name(location) == INFO_FILE:
        location = storage.parent(location)
    if storage.is_remote:
        remove_committed(storage, location)
        deleted = delete_obsolete(storage, location)
    else:
        directory = Path(location)
        if not directory.is_dir():
            raise DatasetError("the directory does not exist", path=path)
        with os_errors(directory):
            before = _all_names(directory)
            recover(directory)
            with locked(directory):
                delete_obsolete(storage, location)
                if read_info(directory) is not None:
                    remove_any(directory / OLD_DIRECTORY)
            deleted = sorted(before - _all_names(directory))
    parts = find_parts(storage, location)
    if not (parts and delete_parts):
        return deleted, parts
    for name in parts:
        remove_parts(storage, storage.join(location, name))
    remaining = find_parts(storage, location)
    return sorted({*deleted, *parts} - {*remaining}), remaining


def _all_names(directory: Path) -> set[str]:
    """Return the names in a dataset directory, with those of the files of replaced versions."""
    names = {*os.listdir(directory)} - {OLD_DIRECTORY}
    if is_directory(directory / OLD_DIRECTORY):
        names.update(f"{OLD_DIRECTORY}/{name}" for name in os.listdir(directory / OLD_DIRECTORY))
    return names


def recover_locked(directory: Path, own: Path | None = None) -> None:
    """Recover a directory that the caller has locked.

    Args:
        directory: Directory of the dataset.
        own: Staging directory of the caller, which is not removed.
    """
    remove_stale_temporaries(directory)  # of `covey index`, which does not lock
    for name in sorted(os.listdir(directory)):
        path = directory / name
        if is_temporary(name):
            remove_any(path)
        elif is_staging(name) and path != own:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                remove_any(path)
                continue
            with contextlib.suppress(PermissionError):  # of another user; it blocks only its split
                _recover_staging(directory, path)
    remove_committed(LocalStorage(), os.fspath(directory))


def _recover_staging(directory: Path, path: Path) -> None:
    if _is_remote_writer(path):
        return
    lock = try_lock(path)
    if lock is None:  # its writer is alive
        return
    try:
        _complete_or_undo(directory, path)
        remove_staging(path)
    finally:
        unlock(lock)


def _is_remote_writer(staging: Path) -> bool:
    """Return whether a writer on another machine may be active."""
    host = _read_owner(staging).partition(" on ")[2]
    if not host or host == socket.gethostname():
        return False
    return time.time() - os.lstat(staging).st_mtime < versions.ABANDONED_S


def _complete_or_undo(directory: Path, staging: Path) -> None:
    """Complete the commit of a staging directory if the switch has happened; else undo it."""
    journal = Journal.load(staging)
    if journal is None:
        return
    names = [name for name in journal.names if is_version_file(name) or is_sidecar(name)]
    write_sidecars(directory, journal.early)
    info = read_info(directory)
    if info is not None and {*names} & referenced_files(info):
        finish(directory, journal, info)
        return
    for name in (each for each in names if "/" not in each):
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(directory / name)
            if has_token(name) and not os.path.lexists(staging / name):
                unlink_file(directory / name)  # renamed, on a file system without hard links
            elif stat.S_ISREG(found.st_mode) and os.path.samestat(found, os.lstat(staging / name)):
                os.unlink(directory / name)


def remove_staging(path: Path) -> None:
    """Remove a staging directory: rename it first, so that recovery never reads a part of it."""
    temporary = path.with_name(temporary_name())
    with contextlib.suppress(OSError):
        os.rename(path, temporary)
        remove_any(temporary)


def blocked_error(staging: Path, split: str) -> DatasetError:
    """Return the error for a split that has a staging directory of another writer."""
    found, user = _read_owner(staging), os.lstat(staging).st_uid
    return DatasetError(
        f"another process is writing split {split!r}" + (f" ({found})" if found else ""),
        path=staging.parent,
        remedy=f"wait for it to end; if it was interrupted, remove {staging.name} as user {user}",
    )


def _read_owner(staging: Path) -> str:
    """Return the owner of a staging directory; an empty string if it is unknown."""
    with contextlib.suppress(OSError, FormatError):
        text = read_regular(staging / OWNER).decode(errors="replace")
        if re.fullmatch(r"process \d{1,10} on [\w.-]{1,253}", text):
            return text
    return ""


# Sidecar files.


def read_sidecars(directory: Path) -> dict[str, bytes]:
    """Return the content of the sidecar files; that of a broken link is empty."""
    found = {}
    for name in os.listdir(directory):
        path = directory / name
        if is_sidecar(name) and not path.is_dir():
            found[name] = read_file(path) if path.exists() else b""
    return found


def finish(directory: Path, journal: Journal, info: DatasetInfo) -> list[Path]:
    """Do the changes after the switch; return the new paths of the files of replaced versions."""
    for name in journal.stale:
        if name.endswith(LABELS_SUFFIX) and "/" not in name:
            unlink_file(directory / name)
    write_sidecars(directory, journal.late)
    current, old = referenced_files(info), directory / OLD_DIRECTORY
    names = [
        name
        for name in journal.replaced
        if (is_version_file(name) or is_record_file(name)) and "/" not in name
    ]
    if not names:
        return []
    if not is_directory(old):
        remove_any(old)
        old.mkdir()
        # The next writer may be another user.
        old.chmod(stat.S_IMODE(directory.stat().st_mode))
    moved = {directory / name: old / old_name(name) for name in names if name not in current}
    for path, target in moved.items():
        move_file(path, target)
    sync(old)
    return list(moved.values())


def write_sidecars(directory: Path, files: Mapping[str, str]) -> None:
    """Replace the sidecar files that differ; other names are ignored."""
    changed = {
        name: text.encode()
        for name, text in files.items()
        if (is_sidecar(name) or name == SHARD_INFO_FILE)
        and "/" not in name
        and differs(directory / name, text.encode())
    }
    # TFDS accepts a label without class names, but not more names than features.json has classes.
    atomic_write_all(directory, changed, first=LABELS_SUFFIX)
