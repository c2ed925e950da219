"""The directories of parts, below the directory of the dataset; see :mod:`covey.writing.parts`.

The index of a version that ``covey.commit`` has written names the runs of its parts. The switch to
this version commits them: from then on they are obsolete, and the next writer removes those that a
killed commit has left.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey._files import sync
from covey._locks import locked_directory, remove_unlocked
from covey._text import list_names
from covey.errors import CoveyError, DatasetError
from covey.index import read_metadata
from covey.storage import Storage
from covey.urls import shown
from covey.writing.scratch import local_copy
from covey.writing.versions import read_info

PART_FILE = "part.json"
PARTS_PREFIX = ".covey-parts-"
MAX_PARTS = 100_000
_NAME = re.compile(r"(\d{5,9})-of-(\d{5,9})-\d{20}-[0-9a-f]{8}")
_MAX_NAMED = 10


def parts_directory(splits: Sequence[str]) -> str:
    """Return the name of the directory of the parts of splits."""
    return f"{PARTS_PREFIX}{'+'.join(splits)}"


def splits_of(name: str) -> list[str]:
    """Return the splits of :func:`parts_directory`."""
    return name[len(PARTS_PREFIX) :].split("+")


def find_parts(storage: Storage, root: str) -> list[str]:
    """Return the names of the directories of parts of a dataset."""
    if storage.is_remote:
        found = storage.glob(storage.join(root, f"{PARTS_PREFIX}*/**"))
        return sorted({file[len(root) :].strip("/").split("/")[0] for file in found})
    names = os.listdir(root) if os.path.isdir(root) else []
    return sorted(name for name in names if name.startswith(PARTS_PREFIX))


def list_runs(storage: Storage, location: str) -> list[str]:
    """Return the names of the complete runs of parts."""
    try:
        files = storage.list(location, recursive=True)
    except FileNotFoundError:
        return []
    found = [file[len(location) :].strip("/").split("/") for file in files]
    return sorted(each[0] for each in found if len(each) == 2 and each[1] == PART_FILE)


def find_one(storage: Storage, path: str, split: str | None) -> str:
    """Return the directory of the parts of a dataset."""
    root = storage.clean(path)
    by_splits = {name: splits_of(name) for name in find_parts(storage, root)}
    matching = [name for name, splits in by_splits.items() if split is None or split in splits]
    if len(matching) == 1:
        return storage.join(root, matching[0])
    if not matching:
        raise DatasetError(
            "there are no parts" + ("" if split is None else f" of split {split!r}"),
            path=shown(path),
            remedy="write them with `covey write SOURCE TARGET --part K/N`",
        )
    splits = sorted({each for name in matching for each in by_splits[name]})
    raise DatasetError(
        f"there are parts of several writes, of the splits {list_names(splits)}",
        path=shown(path),
        remedy=f"pass split={splits[0]!r} to commit one of them",
    )


@dataclass(frozen=True)
class Part:
    """A complete run of a part."""

    number: int
    total: int
    name: str
    location: str

    @property
    def file(self) -> str:
        """The file that completes it."""
        return f"{self.location}/{PART_FILE}"


def find_last_runs(
    storage: Storage, location: str, removed: Sequence[str]
) -> tuple[list[Part], tuple[str, ...]]:
    """Return the last run of each part, in order, and notes about parts that were run again.

    Args:
        storage: Storage of the parts.
        location: Directory of the parts.
        removed: Names of runs that were committed before, for the error.

    Raises:
        DatasetError: If a part is missing.
    """
    names = filter(_NAME.fullmatch, list_runs(storage, location))  # in the order of their tokens
    by_total: dict[int, dict[int, Part]] = {}
    repeated = set()
    for name in names:
        number, total = int(name.split("-")[0]), int(name.split("-")[2])
        found = by_total.setdefault(total, {})
        repeated.update({number} & found.keys())
        found[number] = Part(number, total, name, storage.join(location, name))
    path = shown(location)
    if not by_total:
        raise DatasetError("no part is complete", path=path)
    if len(by_total) > 1:
        counts = (f"{_listed(sorted(by_total[total]))} of {total}" for total in sorted(by_total))
        raise DatasetError(
            f"there are parts of different numbers of parts: {'; '.join(counts)}",
            path=path,
            remedy="remove the parts of one of them",
        )
    ((total, parts),) = by_total.items()
    missing = [number for number in range(1, total + 1) if number not in parts]
    if missing:
        before = sorted({int(name.partition("-")[0]) for name in removed})
        raise DatasetError(
            f"{_listed(missing)} of {total} {'is' if len(missing) == 1 else 'are'} missing"
            + (f"; {_listed(before)} of an earlier run were committed before" if before else ""),
            path=path,
            remedy=f"run `covey write SOURCE TARGET --part {missing[0]}/{total}`",
        )
    notes = (f"{_listed(sorted(repeated))} of {total}: the last run is used",) * bool(repeated)
    return [parts[number] for number in range(1, total + 1)], notes


def _listed(numbers: Sequence[int]) -> str:
    shown_numbers = ", ".join(map(str, numbers[:_MAX_NAMED]))
    more = len(numbers) - _MAX_NAMED
    rest = f" and {more:,} more" if more > 0 else ""
    return f"part{'s' * (len(numbers) > 1)} {shown_numbers}{rest}"


def parse_part(part: str) -> tuple[int, int]:
    """Return the number of a part, from 1, and the number of parts.

    Raises:
        DatasetError: If it is not of this form.
    """
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", part) if isinstance(part, str) else None
    if match is not None and 1 <= int(match[1]) <= int(match[2]) <= MAX_PARTS:
        return int(match[1]), int(match[2])
    raise DatasetError(
        option="part",
        found=part,
        allowed=f"'K/N', with K from 1 to N and N at most {MAX_PARTS:,}",
    )


def remove_committed(storage: Storage, root: str) -> dict[str, list[str]]:
    """Remove the runs that are committed: those that the index of a split names.

    Args:
        storage: Storage of the dataset.
        root: Directory of the dataset.

    Returns:
        The names of the runs that were removed, by directory of parts.
    """
    removed = {}
    for name in find_parts(storage, root):
        location, committed = storage.join(root, name), set[str]()
        with contextlib.suppress(OSError, CoveyError):  # without an index, the runs are not known
            if (info := read_info(root, storage)) is not None:
                for split in (each for each in info.splits if each.name in splits_of(name)):
                    metadata = read_metadata(root, split.stem(info.name), storage)
                    committed.update(() if metadata is None else metadata.parts)
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


@contextlib.contextmanager
def new_run(storage: Storage, location: str, number: int, total: int) -> Iterator[Path]:
    """Yield a local directory for a run of a part; publish its files at the end of the block.

    Earlier runs of the part are removed then.

    Args:
        storage: Storage of the parts.
        location: Directory of the parts.
        number: Number of the part.
        total: Number of parts.
    """
    prefix = f"{number:05d}-of-{total:05d}-"
    name = f"{prefix}{time.time_ns():020d}-{secrets.token_hex(4)}"
    # The clocks of nodes differ: an earlier run may have a later name.
    earlier = {each for each in list_runs(storage, location) if each.startswith(prefix)}
    remove_killed(storage, location, prefix)
    if storage.is_remote:
        with local_copy("part") as directory:
            yield directory
            files = sorted(path for path in directory.rglob("*") if path.is_file())
            files.sort(key=lambda each: each.name == PART_FILE)  # the last one completes the part
            for path in files:
                relative = f"{name}/{path.relative_to(directory).as_posix()}"
                storage.upload(str(path), storage.join(location, relative))
    else:
        with _local_run(Path(location), name) as directory:
            yield directory
    for old in list_runs(storage, location):
        if old in earlier or (old.startswith(prefix) and old < name):
            remove_parts(storage, storage.join(location, old))


@contextlib.contextmanager
def _local_run(parent: Path, name: str) -> Iterator[Path]:
    is_new = not parent.parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    try:
        with locked_directory(parent / f".{name}.tmp") as temporary:
            try:
                yield temporary
                for file in temporary.rglob("*"):
                    sync(file)
                sync(temporary)
                temporary.rename(parent / name)
                sync(parent)
            except FileNotFoundError as error:
                if temporary.exists():
                    raise
                raise DatasetError(
                    "the parts were committed or removed while this part was written",
                    path=parent,
                ) from error
    except BaseException:
        with contextlib.suppress(OSError):  # it has other parts
            parent.rmdir()
            if is_new:
                parent.parent.rmdir()
        raise
