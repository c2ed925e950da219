"""Images and sounds in class directories, which may be in directories of splits.

::

    owl/1.jpg             the class 'owl'
    owl/young/1.jpg       the class 'owl'; with class_from="path", 'owl/young'
    train/owl/1.jpg       the class 'owl' of the split 'train'
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from covey._text import count_of
from covey.errors import SourceError
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.types import is_line
from covey.sources import listed
from covey.sources.media import IMAGES, SOUNDS, FileKind
from covey.sources.registry import ProbedPath, register, write_arguments
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    SourceOptions,
    SourceSplits,
    list_names,
    source_error,
)
from covey.splits import SPLIT_NAMES, split_order

OPTIONS = ("splits", "class_from")
_MAX_LISTED = 8

Parts = tuple[str, ...]
"""The directories above a file, below the root."""


def _has_files(files: FileKind, probed: ProbedPath) -> bool:
    return any(map(files.accepts, probed.below)) and not listed.tables(probed)


@register(
    "image directory",
    "a directory with a subdirectory of images per class",
    recognise=partial(_has_files, IMAGES),
    options=OPTIONS,
)
def open_image_directory(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open images in class directories. An example has the encoded image."""
    return _open("image directory", IMAGES, probed, options)


@register(
    "audio directory",
    "a directory with a subdirectory of WAV, FLAC, OGG or MP3 files per class",
    recognise=partial(_has_files, SOUNDS),
    options=OPTIONS,
)
def open_audio_directory(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open sounds in class directories. An example has the samples and the sampling rate."""
    return _open("audio directory", SOUNDS, probed, options)


def _open(
    kind: str, files: FileKind, probed: ProbedPath, options: SourceOptions
) -> Source | SourceSplits:
    """Open files in class directories.

    An example has the content of the file, the class, and the path of the file below the directory
    of the split. A class has the same id in all splits, also in one that lacks it.

    Raises:
        SourceError: If there are no files, none is in a class directory, or only some of the first
            directories have names of splits.
    """
    root = probed.path.rstrip("/") or "/"
    name = options.label or "label"
    if name in (files.feature, "filename"):
        taken = list_names([files.feature, "filename"])
        raise source_error(
            root, "", option="label", found=name, allowed=f"a name other than {taken}"
        )
    if not os.path.isdir(root):
        raise source_error(
            root, f"found {probed.describe()}; {kind!r} must be the path of a directory"
        )
    paths = [path for path in probed.below if files.accepts(path)]
    if not paths:
        raise source_error(root, f"there is no {files.noun} in this directory or below it")
    chosen, unread = _split(root, paths, files, options)
    classes = _classes(root, chosen, files, options.class_from)
    _check_names(root, classes)
    names = tuple(sorted({each for each in classes.values() if each is not None}))
    every = [path for each in chosen.values() for path in each.paths]
    feature = files.infer_files(f"{root}/{path}" for path in every)
    kinds: dict[str, Any] = {files.feature: feature, name: ClassLabel(names=names)}
    features = Features({**kinds, "filename": Tensor("str")})

    def open_split(split: _Split, notes: tuple[str, ...] = ()) -> Source:
        items = _ClassFiles(
            root, split.root, split.paths, [classes[path] for path in split.paths], name, files
        )
        path = os.path.join(root, split.root) if split.root else root
        return Source(
            kind, path, items, length=len(items), features=features, label=name, notes=notes
        )

    if set(chosen) == {""}:
        return open_split(chosen[""], unread)
    openers = {split: partial(open_split, each) for split, each in chosen.items()}
    return SourceSplits(openers, notes=unread)


@dataclass
class _Split:
    """The files of a split."""

    root: str
    """Directory that the keys are relative to, below the root of the source."""
    level: int
    """Number of directories above the one that is the split; -1 if there are no splits."""
    paths: list[str]


def _parts(path: str) -> Parts:
    return tuple(path.split("/")[:-1])


def _split(
    root: str, paths: Sequence[str], files: FileKind, options: SourceOptions
) -> tuple[dict[str, _Split], tuple[str, ...]]:
    """Return the files by split, and a note about files that are not read."""
    names = options.splits
    parents = [_parts(path) for path in paths]
    level = 0
    if names is None:
        names = _common_splits(root, parents, files)
    elif names:
        found = (parts.index(name) for parts in parents for name in names if name in parts)
        level = min(found, default=0)
    if not names:
        return {"": _Split("", -1, list(paths))}, ()
    by_split: dict[str, list[str]] = {name: [] for name in names}
    others: list[Parts] = []
    for path, parts in zip(paths, parents, strict=True):
        if len(parts) > level and parts[level] in by_split:
            by_split[parts[level]].append(path)
        else:
            others.append(parts)
    missing = next((name for name, found in by_split.items() if not found), None)
    if missing is not None:
        directories = sorted({parts[level] for parts in parents if len(parts) > level})
        raise source_error(
            root,
            f"there is no directory {missing!r} with {files.noun}s; the directories are "
            f"{list_names(directories)}",
            option="splits",
            found=tuple(names),
        )
    above = {_parts(path)[:level] for found in by_split.values() for path in found}
    common = "/".join(next(iter(above))) if len(above) == 1 else None
    chosen = {
        name: _Split("" if common is None else os.path.join(common, name), level, found)
        for name, found in by_split.items()
    }
    return chosen, (f"not read: {_overview(others, files)}",) if others else ()


def _common_splits(root: str, parents: Sequence[Parts], files: FileKind) -> list[str]:
    """Return the first directories if all have names of splits; none if none of them has.

    Raises:
        SourceError: If only some of them have.
    """
    first = {parts[0] for parts in parents if parts}
    splits = sorted((name for name in first if name.lower() in SPLIT_NAMES), key=split_order)
    if not splits:
        return []
    if len(splits) < len(first):
        raise source_error(
            root,
            f"some directories have names of splits, others have not: {_overview(parents, files)}",
            remedy=f"pass splits='{','.join(splits)}' to read these only, or pass splits='none' if "
            "all are classes",
        )
    if not any(len(parts) > 1 for parts in parents):
        raise source_error(
            root,
            f"{list_names(splits)} are splits by their names, but have no class directories",
            remedy="pass splits='none' if they are classes",
        )
    return splits


def _classes(
    root: str, chosen: Mapping[str, _Split], files: FileKind, rule: str | None
) -> dict[str, str | None]:
    """Return the class of each file; None if it is not in a class directory.

    Raises:
        SourceError: If no file has a class, or a regular expression does not match a file.
    """
    name_of = _namer(rule)
    found = {path: name_of(path, split.level) for split in chosen.values() for path in split.paths}
    unnamed = [path for path, name in found.items() if name is None]
    is_pattern = rule not in (None, "path", "last")
    if unnamed and is_pattern:
        raise source_error(
            root,
            f"{len(unnamed):,} of {count_of(len(found), files.noun)} do not match, such as "
            f"{unnamed[0]!r}",
            option="class_from",
            found=rule,
        )
    if len(unnamed) == len(found):
        table = os.path.join(root, "TABLE.csv")
        raise source_error(
            root,
            f"found {count_of(len(found), files.noun)} without class directories",
            remedy=f"`covey {write_arguments(root)} --class-from '(?P<label>PATTERN)'` reads file "
            f"names; `covey {write_arguments(table)} --images COLUMN` reads a table",
        )
    return found


def _namer(rule: str | None) -> Callable[[str, int], str | None]:
    """Return a function of a path and the level of its split that returns the class."""

    def from_directories(path: str, level: int) -> str | None:
        parts = _parts(path)
        # Directories of classes may also be above the splits.
        below = parts[level + 1 :] or parts[: max(level, 0)]
        if not below:
            return None
        return "/".join(below) if rule == "path" else below[-1 if rule == "last" else 0]

    if rule in (None, "path", "last"):
        return from_directories
    pattern = re.compile(rule or "")

    def from_path(path: str, level: int) -> str | None:
        match = pattern.search("/".join(path.split("/")[level + 1 :]))
        return None if match is None else match["label"] or None

    return from_path


def _check_names(root: str, classes: Mapping[str, str | None]) -> None:
    """Raise SourceError if the name of a directory cannot be the name of a class."""
    for path, name in classes.items():
        if name is None or (_is_utf8(name) and is_line(name)):
            continue
        if not _is_utf8(name):
            raise source_error(f"{root}/{name}", "the name of this class is not valid UTF-8")
        directory = f"{root}/{path[: path.index(name) + len(name)]}"
        clean = os.path.join(os.path.dirname(directory), " ".join(name.split()))
        raise source_error(
            root,
            f"{name!r} is not a valid class name: it begins or ends with a blank, or has a line "
            "break",
            remedy=f"rename it: `mv {shlex.quote(directory)} {shlex.quote(clean)}`",
        )


def _overview(parents: Sequence[Parts], files: FileKind) -> str:
    """Return the first directories with the number of their files."""
    totals = Counter(parts[0] if parts else "." for parts in parents)
    shown = sorted(totals, key=split_order)[:_MAX_LISTED]
    more = f" and {len(totals) - len(shown):,} more" if len(totals) > len(shown) else ""
    return ", ".join(f"{each!r} ({count_of(totals[each], files.noun)})" for each in shown) + more


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class _ClassFiles(LazyItems):
    root: str
    directory: str
    """Directory that the keys are relative to, below the root."""
    paths: Sequence[str]
    """Paths of the files, relative to the root."""
    classes: Sequence[str | None]
    label: str
    medium: FileKind

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, position: int) -> Item:
        path, name = self.paths[position], self.classes[position]
        file = f"{self.root}/{path}"
        try:
            if name is None:
                raise source_error(file, f"the {self.medium.noun} is not in a class directory")
            if not _is_utf8(path):
                raise source_error(file, "the file name is not valid UTF-8")
            value = self.medium.read(file)
        except SourceError as error:
            return error
        key = path[len(self.directory) :].lstrip("/")
        return key, {self.medium.feature: value, self.label: name, "filename": key}
