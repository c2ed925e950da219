"""The directories of parts, below the directory of the dataset; see :mod:`covey.writing.parts`.

The index of a version that ``covey.commit`` has written names the runs of its parts. The switch to
this version commits them: from then on they are obsolete, and the next writer removes those that a
killed commit has left.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from covey._locks import remove_unlocked
from covey.dataset_info import DatasetInfo
from covey.errors import CoveyError
from covey.filenames import INFO_FILE
from covey.index import IndexMetadata, index_names
from covey.storage import Storage

PART_FILE = "part.json"
PARTS_PREFIX = ".covey-parts-"


def parts_directory(splits: Sequence[str]) -> str:
    """Return the name of the directory of the parts of splits."""
    return f"{PARTS_PREFIX}{'+'.join(splits)}"


def temporary_run(name: str) -> str:
    """Return the name of the directory of a run that is not complete."""
    return f".{name}.tmp"


def find_parts(storage: Storage, root: str, files: str = "**") -> list[str]:
    """Return the names of the directories of parts of a dataset.

    Args:
        storage: Storage of the dataset.
        root: Directory of the dataset.
        files: Pattern of the files that a directory at a URL must have one of.
    """
    if storage.is_remote:
        found = storage.glob(storage.join(root, f"{PARTS_PREFIX}*/{files}"))
        return sorted({file[len(root) :].strip("/").split("/")[0] for file in found})
    names = os.listdir(root) if os.path.isdir(root) else []
    return sorted(name for name in names if name.startswith(PARTS_PREFIX))


def list_runs(storage: Storage, location: str) -> list[str]:
    """Return the names of the complete runs of parts."""
    if not storage.is_remote:
        path = Path(location)
        names = [each.name for each in path.iterdir()] if path.is_dir() else []
        complete = (name for name in names if not name.startswith("."))
        return sorted(name for name in complete if (path / name / PART_FILE).is_file())
    try:
        files = storage.list(location, recursive=True)
    except FileNotFoundError:
        return []
    found = [file[len(location) :].strip("/").split("/") for file in files]
    return sorted(each[0] for each in found if len(each) == 2 and each[1] == PART_FILE)


def find_committed(storage: Storage, root: str, name: str) -> set[str]:
    """Return the names of the runs of a directory of parts that are committed.

    Args:
        storage: Storage of the dataset.
        root: Directory of the dataset.
        name: Name of the directory of parts.
    """
    found: set[str] = set()
    with contextlib.suppress(OSError, CoveyError):  # without an index, the runs are not known
        path = storage.join(root, INFO_FILE)
        info = DatasetInfo.from_json(storage.read(path), path)
        for split in info.splits:
            if split.name in name[len(PARTS_PREFIX) :].split("+"):
                path = storage.join(root, index_names(split.stem(info.name))["metadata"])
                found.update(IndexMetadata.from_json(storage.read(path), path).parts)
    return found


def remove_committed(storage: Storage, root: str) -> dict[str, list[str]]:
    """Remove the runs that are committed.

    Args:
        storage: Storage of the dataset.
        root: Directory of the dataset.

    Returns:
        The names of the runs that were removed, by directory of parts.
    """
    removed = {}
    for name in find_parts(storage, root, f"*/{PART_FILE}"):
        location = storage.join(root, name)
        committed = find_committed(storage, root, name)
        removed[name] = [run for run in list_runs(storage, location) if run in committed]
        for run in removed[name]:
            remove_parts(storage, storage.join(location, run))
        if removed[name]:
            remove_empty(storage, location)
    return removed


def remove_killed(storage: Storage, location: str, prefix: str = "") -> None:
    """Delete incomplete runs of killed processes; files at a URL have no locks, and remain.

    Args:
        storage: Storage of the parts.
        location: Directory of the parts.
        prefix: Prefix of the names of the runs.
    """
    if not storage.is_remote:
        remove_unlocked(Path(location), re.compile(rf"\.{re.escape(prefix)}[\w-]+\.tmp"))


def remove_empty(storage: Storage, location: str) -> None:
    """Delete incomplete runs of killed processes, and the directory of parts if it is empty."""
    remove_killed(storage, location)
    if not storage.is_remote:
        with contextlib.suppress(OSError):
            os.rmdir(location)


def remove_parts(storage: Storage, location: str) -> None:
    """Delete a run of a part, or a directory of parts."""
    if not storage.is_remote:
        shutil.rmtree(location, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        files = storage.list(location, recursive=True)
        # A run is incomplete without its last file.
        storage.remove([file for file in files if storage.name(file) == PART_FILE])
        storage.remove(files)
