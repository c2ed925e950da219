"""The directories of parts, below the directory of the dataset; see :mod:`covey.writing.parts`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from covey.storage import Storage

PART_FILE = "part.json"
PARTS_PREFIX = ".covey-parts-"


def parts_directory(splits: Sequence[str]) -> str:
    """Return the name of the directory of the parts of splits."""
    return f"{PARTS_PREFIX}{'+'.join(splits)}"


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
        return sorted(name for name in names if (path / name / PART_FILE).is_file())
    try:
        files = storage.list(location, recursive=True)
    except FileNotFoundError:
        return []
    found = [file[len(location) :].strip("/").split("/") for file in files]
    return sorted(each[0] for each in found if len(each) == 2 and each[1] == PART_FILE)


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
