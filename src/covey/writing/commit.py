"""Making a written split visible all at once, or not at all.

A split is written into a folder of its own inside the dataset, which readers pass over::

    data/birds/.covey-train.partial/     being written; debris, if nobody holds its lock
    data/birds/.covey-train.commit/      whole and on disk: the renaming was the commit

What remains to be done after the commit is bringing the files to their places, and can be done
again as often as it is interrupted. Whoever comes next, and finds such a folder, does it first. In
the meantime ``dataset_info.json`` always describes shards that are whole: the old ones, the new
ones where they were written, or the new ones in their places. So a process may be killed at any
moment, and the dataset is the old one or the new one.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from covey.errors import CommittedError, CoveyError, DatasetError, FormatError
from covey.features.spec import parse_json
from covey.metadata import DEFAULT_TEMPLATE, INFO_FILE, DatasetInfo, SplitInfo
from covey.shards import sync

# Elsewhere than on Unix, two writers of one split are not kept apart.
_fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a commit brings, and what it replaces."""

    split: SplitInfo
    files: tuple[str, ...]
    """What is in the staging folder, by the name that it has there and in the dataset."""
    texts: Mapping[str, str]
    """Small files of the whole dataset (features.json and so on), by name."""
    replaced: tuple[str, ...]
    """Files of the dataset that are no longer needed."""
    entries: Mapping[str, Mapping[str, Any]]
    """JSON files of the whole dataset, by name, and what each gets, or gets anew, by key."""
    keeps: bool
    """Whether records stay that are there: then the texts say more than before, nothing else."""
    name: str
    version: str
    description: str = ""

    def __post_init__(self) -> None:
        for name in (*self.files, *self.texts, *self.replaced, *self.entries):
            parts = PurePosixPath(name).parts
            if not parts or "/" in parts or ".." in parts:
                raise FormatError(f"{name!r} is no file of the dataset")

    def to_json(self) -> str:
        """As it is stored."""
        content = {
            "split": {
                "name": self.split.name,
                "shard_lengths": self.split.shard_lengths,
                "num_bytes": self.split.num_bytes,
            },
            "files": self.files,
            "texts": dict(self.texts),
            "replaced": self.replaced,
            "entries": dict(self.entries),
            "keeps": self.keeps,
            "name": self.name,
            "version": self.version,
            "description": self.description,
        }
        return json.dumps(content, indent=1)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read what was stored."""
        try:
            content = json.loads(path.read_bytes())
            split = content.pop("split")
            split["shard_lengths"] = tuple(split["shard_lengths"])
            content["files"] = tuple(content["files"])
            content["replaced"] = tuple(content["replaced"])
            return cls(split=SplitInfo(**split), **content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"{path}: it is no manifest of a commit: {error}") from None


def read_info(folder: Path) -> DatasetInfo | None:
    """The description of a dataset, if there is one."""
    path = folder / INFO_FILE
    try:
        return DatasetInfo.from_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None


class Staging:
    """The folder that a split is written into, until it is committed or given up.

    Args:
        folder: Of the dataset; made if there is none.
        split: The split.

    Raises:
        DatasetError: If another process is writing the same split.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self.folder = folder
        self._made: list[Path] = []
        for each in (folder, *folder.parents):
            if each.exists():
                break
            self._made.append(each)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            wrong = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
            what = "a link to nothing" if wrong.is_symlink() else "a file"
            raise DatasetError(f"{wrong}: it is {what}, must be a folder") from None
        self.path = folder / f".covey-{split}.partial"
        self._target = folder / f".covey-{split}.commit"
        try:
            with locked(folder):
                _recover(folder)
                self._lock = self._claim(split)
                self._before = _texts(folder)
        except BaseException:
            self._remove_folders()
            raise

    def _claim(self, split: str) -> int | None:
        """Make the staging folder, and lock it."""
        try:
            self.path.mkdir()
        except FileExistsError:  # what is left of dead processes is gone: this one is alive
            raise DatasetError(
                f"{self.folder}: another process is writing split {split!r}; wait for it"
            ) from None
        return _try_lock(self.path)

    def commit(self, manifest: Manifest, check: Callable[[], None] = lambda: None) -> None:
        """Make what was written the split.

        Args:
            manifest: What was written; its files must be on disk already.
            check: Says what is against it, at a moment when no other process changes the dataset.
        """
        path = self.path / _MANIFEST
        path.write_text(manifest.to_json())
        sync(path)
        sync(self.path)
        with locked(self.folder):
            self._check_dataset(manifest)
            check()
            os.rename(self.path, self._target)
            self._made = []
            try:
                sync(self.folder)
                _finish(self._target)
            except KeyboardInterrupt:  # it is written: no reason to leave it half in place
                _finish(self._target)
                raise
            except OSError as error:
                raise CommittedError(
                    f"{self.folder}: split {manifest.split.name!r} is written, but its files could "
                    f"not all be brought to their places ({error.strerror or error}); the next "
                    "write does that first: do not write the same examples again"
                ) from error
        self._release()

    def _check_dataset(self, manifest: Manifest) -> None:
        """Make sure that nobody has changed the dataset in the meantime."""
        info = read_info(self.folder)
        others = () if info is None else info.splits
        new = next((each.name for each in others if each.name != manifest.split.name), None)
        if info is not None and info.name != manifest.name:
            raise DatasetError(
                f"{self.folder}: another process has called the dataset {info.name!r}, not "
                f"{manifest.name!r}; write it again"
            )
        now = _texts(self.folder)
        # A split that has come since then did not know of this one: they must say the same.
        is_new = new is not None and not manifest.keeps
        for name, text in manifest.texts.items():
            if is_new and now.get(name) != text.encode():
                raise DatasetError(
                    f"{self.folder}: another process has written split {new!r} in the meantime, "
                    f"with other features or classes; write {manifest.split.name!r} again"
                )
            if now.get(name) not in (self._before.get(name), text.encode()):
                raise DatasetError(
                    f"{self.folder / name}: another process has changed it while split "
                    f"{manifest.split.name!r} was written; write it again"
                )

    def give_up(self) -> None:
        """Remove all traces."""
        if self._lock is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        self._release()
        self._remove_folders()

    def _remove_folders(self) -> None:
        """Remove the folders that were made for the dataset."""
        for each in self._made:
            try:
                each.rmdir()
            except OSError:  # somebody has put something there
                break

    def _release(self) -> None:
        _unlock(self._lock)
        self._lock = None


def recover(folder: Path) -> None:
    """Finish the commits that were interrupted, and remove what dead processes left."""
    if any(folder.glob(".covey-*")):
        with locked(folder):
            _recover(folder)


def _recover(folder: Path) -> None:
    for path in sorted(folder.glob(".covey-*.commit")):
        _finish(path)
    for path in folder.glob(".covey-*.debris"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".covey-*.partial"):
        lock = _try_lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
        _unlock(lock)


def _finish(staged: Path) -> None:
    """Bring committed files to their places. May be interrupted, and done again."""
    folder = staged.parent
    manifest = Manifest.read(staged / _MANIFEST)
    before = read_info(folder) or read_info(staged)
    info = before or DatasetInfo(manifest.name, manifest.version)
    if manifest.description:
        info = replace(info, description=manifest.description)
    shards = manifest.split.shard_names(info.name)
    changed = {name: text for name, text in manifest.texts.items() if _differs(folder / name, text)}
    if changed and before is not None and not manifest.keeps:
        # The records that are there are not what the new features and classes say. No two files
        # change at once: until all have, there is no dataset, rather than a wrong one.
        _replace_text(staged / INFO_FILE, info.to_json())
        (folder / INFO_FILE).unlink(missing_ok=True)
        sync(folder)
    for name in changed:
        # Classes without names for a moment, rather than more names than features.json has classes.
        if name.endswith(".labels.txt"):
            (folder / name).unlink(missing_ok=True)
    for name, text in changed.items():
        _replace_text(folder / name, text)
    for name, entries in manifest.entries.items():
        _replace_text(folder / name, _merged(folder / name, entries))
    if any(_is_other(folder / name, staged / name) for name in shards):
        # Shards are about to be replaced one by one: until that is done, readers find the new ones
        # where they were written.
        there = replace(manifest.split, template=f"{staged.name}/{DEFAULT_TEMPLATE}")
        _replace_text(folder / INFO_FILE, info.with_split(there).to_json())
    for name in manifest.files:
        _place(staged / name, folder / name)
    sync(folder)
    _replace_text(folder / INFO_FILE, info.with_split(manifest.split).to_json())
    sync(folder)
    for name in manifest.replaced:
        if name not in manifest.files:
            (folder / name).unlink(missing_ok=True)
    # Removed in part, it would look damaged: it is called something else first.
    debris = staged.with_suffix(".debris")
    shutil.rmtree(debris, ignore_errors=True)
    os.rename(staged, debris)
    shutil.rmtree(debris, ignore_errors=True)
    sync(folder)


def _merged(path: Path, entries: Mapping[str, Any]) -> str:
    """A JSON file with some entries anew."""
    content = parse_json(path.read_bytes(), str(path)) if path.exists() else {}
    if not isinstance(content, dict):
        raise FormatError(f"{path}: it is no dict; remove it with its dataset")
    return json.dumps({**content, **entries}, indent=1, ensure_ascii=False)


def _place(source: Path, target: Path) -> None:
    """Give a file a second name, in place of whatever has it now."""
    if target.exists() and not _is_other(target, source):
        return
    beside = target.with_name(f".{target.name}.new")
    beside.unlink(missing_ok=True)
    link_or_copy(source, beside)
    os.replace(beside, target)


def _is_other(path: Path, staged: Path) -> bool:
    return path.exists() and not os.path.samefile(path, staged)


def _texts(folder: Path) -> dict[str, bytes]:
    """The small files that describe the whole dataset."""
    paths = [folder / "features.json", *folder.glob("*.labels.txt"), *folder.glob("*mapping.json")]
    return {path.name: path.read_bytes() for path in paths if path.exists()}


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system cannot do that, copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
        sync(target)


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or path.read_bytes() != text.encode()


def _replace_text(path: Path, text: str) -> None:
    """Replace a small file at once."""
    if not _differs(path, text):
        return
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    sync(beside)
    os.replace(beside, path)


@contextmanager
def failing_well(folder: Path, split: str) -> Iterator[None]:
    """Say what was being done when a disk fails."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CoveyError):
            raise
        raise DatasetError(
            f"{folder}: writing split {split!r} failed: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}; nothing was changed"
        ) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other writers out of a dataset's metadata."""
    if _fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try_lock(folder: Path) -> int | None:
    """Lock a folder unless another process holds it; the descriptor that holds the lock."""
    if _fcntl is None:
        return -1
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None and descriptor >= 0:
        os.close(descriptor)
