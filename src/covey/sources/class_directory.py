"""Files in class directories, which may be in directories of splits.

::

    owl/1.jpg                  the class 'owl'
    greek/alpha/1.jpg          the class 'greek/alpha', if all files are at this depth
    train/owl/1.jpg            the class 'owl' of the split 'train'

Whether directories are splits, classes or parts of the name of a class follows from their names and
from the depth of the files. A tree that can be read in several ways is an error, which lists its
directories and the options that decide.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from covey._files import is_hidden
from covey.errors import SourceError
from covey.schema import ClassLabel, Feature, Features, Tensor
from covey.sources.registry import ProbedPath
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

OPTIONS = ("splits", "class_depth", "class_from")
"""Options of formats that are read by :func:`open_class_directory`."""

_MAX_LISTED = 8

Parts = tuple[str, ...]
"""The directories above a file, below the root."""


@dataclass(frozen=True)
class FileKind:
    """Files that class directories contain. The functions must be picklable."""

    kind: str
    """Name of the format: ``"image directory"``."""
    noun: str
    """What a file is, for messages: ``"image"``."""
    feature: str
    """Name of the feature that has the content of a file."""
    accepts: Callable[[str], bool]
    """Returns whether a path is that of such a file; other files are ignored."""
    read: Callable[[str], Any]
    """Returns the value of the feature; raises SourceError if the file is not valid."""
    infer: Callable[[Iterable[str]], Feature]
    """Returns the type of the feature, given the paths of all files."""

    def count(self, files: int) -> str:
        """Return a number of files, for messages."""
        return f"{files:,} {self.noun}{'' if files == 1 else 's'}"


def walk_files(directory: str, accepts: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of the files below a directory, relative to it; hidden ones are ignored.

    Symbolic links are followed. Below a link, directories that were read before are skipped, so
    that directories that link to each other do not have an unlimited number of paths.

    Args:
        directory: The directory.
        accepts: Returns whether to yield a file, given its path.
    """
    return _walk(directory, "", (), set(), accepts, below_link=False)


def _walk(
    directory: str,
    prefix: str,
    parents: tuple[tuple[int, int], ...],
    read: set[tuple[int, int]],
    accepts: Callable[[str], bool],
    *,
    below_link: bool,
) -> Iterator[str]:
    status = os.stat(directory)
    identity = (status.st_dev, status.st_ino)
    if identity in (read if below_link else parents):
        return
    read.add(identity)
    parents = (*parents, identity)
    # The target of the first link is read even if it was before: a class may be a link to another.
    below_link = below_link or bool(prefix and os.path.islink(directory))
    with os.scandir(directory) as entries:
        visible = sorted((e for e in entries if not is_hidden(e.name)), key=lambda e: e.name)
    for entry in visible:
        if entry.is_dir():
            inner = f"{prefix}{entry.name}/"
            yield from _walk(entry.path, inner, parents, read, accepts, below_link=below_link)
        elif accepts(entry.path):
            yield prefix + entry.name


def has_files(probed: ProbedPath, accepts: Callable[[str], bool]) -> bool:
    """Return whether there is a file in a directory or below it."""
    if not os.path.isdir(probed.path):
        return False
    found = _walk(probed.path, "", (), set(), accepts, below_link=True)
    return next(found, None) is not None


def open_class_directory(
    probed: ProbedPath, options: SourceOptions, files: FileKind
) -> Source | SourceSplits:
    """Open files in class directories.

    An example has the content of the file, the class, and the path of the file below the directory
    of the split. A class has the same id in all splits, also in one that lacks it.

    Args:
        probed: The directory.
        options: Options of the source.
        files: Kind of the files.

    Raises:
        SourceError: If there are no files, none is in a class directory, or the tree can be read in
            several ways.
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
            root, f"found {probed.describe()}; {files.kind!r} must be the path of a directory"
        )
    paths = sorted(walk_files(root, files.accepts))
    layout = _Tree(root, Counter(map(_parts, paths)), options, files).layout()
    chosen: dict[str, list[str]] = {split: [] for split in layout.roots}
    for path in paths:
        split = layout.splits.get(_parts(path))
        if split is not None:
            chosen[split].append(path)
    every = (f"{root}/{path}" for each in chosen.values() for path in each)
    names = tuple(sorted({each for each in layout.classes.values() if each is not None}))
    kinds: dict[str, Any] = {files.feature: files.infer(every), name: ClassLabel(names=names)}
    features = Features({**kinds, "filename": Tensor("str")})
    items = {
        split: _ClassFiles(root, layout.roots[split], each, layout.classes, name, files)
        for split, each in chosen.items()
    }
    if set(items) == {""}:
        return _open_split(items[""], features, layout.notes)
    return SourceSplits(
        {split: partial(_open_split, each, features) for split, each in items.items()},
        notes=layout.notes,
    )


def _parts(path: str) -> Parts:
    return tuple(path.split("/")[:-1])


@dataclass(frozen=True, eq=False)
class _ClassFiles(LazyItems):
    root: str
    directory: Parts
    """Directory that the keys are relative to."""
    paths: Sequence[str]
    """Paths of the files, relative to the root."""
    classes: Mapping[Parts, str | None]
    """Class of the files of each directory; None if they are not in a class directory."""
    label: str
    files: FileKind

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, position: int) -> Item:
        path = self.paths[position]
        file = f"{self.root}/{path}"
        name = self.classes[_parts(path)]
        try:
            if name is None:
                raise source_error(file, f"the {self.files.noun} is not in a class directory")
            if not _is_utf8(path):
                raise source_error(file, "the file name is not valid UTF-8")
            value = self.files.read(file)
        except SourceError as error:
            return error
        key = "/".join(path.split("/")[len(self.directory) :])
        return key, {self.files.feature: value, self.label: name, "filename": key}


def _open_split(items: _ClassFiles, features: Features, notes: tuple[str, ...] = ()) -> Source:
    return Source(
        items.files.kind,
        os.path.join(items.root, *items.directory),
        items,
        length=len(items),
        features=features,
        label=items.label,
        notes=notes,
    )


@dataclass(frozen=True)
class _Layout:
    """How a tree is read."""

    roots: Mapping[str, Parts]
    """The directory of each split, or the common one of all splits; '' if there are no splits."""
    splits: Mapping[Parts, str]
    """The split of each directory of files that is read."""
    classes: Mapping[Parts, str | None]
    """The class of each of these directories."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Tree:
    """The directories that contain files.

    The depth of a file is the number of directories above it, below the root. The level of a
    directory is the depth of the files that it contains, less one.
    """

    root: str
    counts: Mapping[Parts, int]
    """Number of files in each directory."""
    options: SourceOptions
    files: FileKind

    def layout(self) -> _Layout:
        """Return how the tree is read.

        Raises:
            SourceError: If there is none, or more than one way.
        """
        if not self.counts:
            raise source_error(
                self.root, f"there is no {self.files.noun} in this directory or below it"
            )
        level = self._split_level()
        if level is None:
            return self._with_classes(dict.fromkeys(self.counts, ""), {"": ()}, -1)
        names = self.options.splits
        splits = {
            parts: parts[level]
            for parts in self.counts
            if len(parts) > level and (names is None or parts[level] in names)
        }
        prefixes = {parts[:level] for parts in splits}
        common = next(iter(prefixes)) if len(prefixes) == 1 else None
        roots = {
            split: () if common is None else (*common, split)
            for split in (names or dict.fromkeys(sorted(splits.values(), key=split_order)))
        }
        return self._with_classes(splits, roots, level)

    def _split_level(self) -> int | None:
        """Return the level of the directories that are splits; None if there are none."""
        names = self.options.splits
        if names is not None:
            return self._named_level(names)
        levels = range(max(map(len, self.counts)))
        level = next((each for each in levels if self._names(each, SPLIT_NAMES)), None)
        if level is None:
            return None
        found = [parts for parts in self.counts if _is_split(parts, level)]
        others = [
            parts for parts in self.counts if len(parts) > level and not _is_split(parts, level)
        ]
        above = [parts for parts in self.counts if 0 < len(parts) <= level]
        splits = sorted({parts[level] for parts in found}, key=split_order)
        is_leaf = all(len(parts) == level + 1 for parts in found)
        if others or above:
            groups = {split_order(split)[0] for split in splits}
            all_leaf = is_leaf and all(len(parts) == level + 1 for parts in (*others, *above))
            if all_leaf and len(groups) == 1:
                return None  # one class has the name of a split
            has_classes = not is_leaf or level > 0
            remedies = self._decide(splits if has_classes else ())
            raise self._ambiguous("directories of splits are mixed with others", *remedies)
        if len({parts[:level] for parts in found}) > 1:
            raise self._ambiguous("directories of splits are below others", *self._decide(splits))
        if is_leaf:
            raise self._ambiguous(
                f"directories of splits contain {self.files.noun}s, but no class directories",
                "pass splits='none' if they are classes",
                "create a directory for each class in each of them",
            )
        return level

    def _named_level(self, names: Sequence[str]) -> int | None:
        """Return the level of the directories with given names, the highest if there are several.

        Raises:
            SourceError: If there is no directory of one of the names at this level.
        """
        if not names:
            return None
        levels = range(max(map(len, self.counts)))
        level = next((each for each in levels if self._names(each, names)), 0)
        found = self._names(level, names)
        missing = next((name for name in names if name not in found), None)
        if missing is not None:
            directories = sorted({parts[level] for parts in self.counts if len(parts) > level})
            raise source_error(
                self.root,
                f"there is no directory {missing!r} with {self.files.noun}s; the directories are "
                f"{list_names(directories)}",
                option="splits",
                found=tuple(names),
            )
        return level

    def _names(self, level: int, names: Iterable[str]) -> set[str]:
        """Return the directories of a level that have one of the names."""
        own = set(names)
        is_common = own == SPLIT_NAMES
        at_level = {parts[level] for parts in self.counts if len(parts) > level}
        return {each for each in at_level if (each.lower() if is_common else each) in own}

    def _with_classes(
        self, splits: Mapping[Parts, str], roots: Mapping[str, Parts], level: int
    ) -> _Layout:
        below = {parts: parts[level + 1 :] for parts in splits}
        if not any(below.values()):  # the classes may be above the splits
            below = {parts: parts[: max(level, 0)] for parts in splits}
        depths = {len(each) for each in below.values()} - {0}
        depth, source = self.options.class_depth, self.options.class_from
        if not depths:
            files = sum(self.counts[parts] for parts in splits)
            raise source_error(
                self.root,
                f"found {self.files.count(files)} without class directories or a table of "
                f"labels: {self._overview()}",
                remedy="create a directory for each class, or a CSV file of file names and labels",
            )
        names = _names_of_splits(below.values()) if self.options.splits == () else []
        if names and source is None:
            raise self._ambiguous(
                f"{list_names(names)} would be part of class names; the directories are", *_NAMING
            )
        if len(depths) > 1 and depth is None and source is None:
            raise self._ambiguous(
                f"{self.files.noun}s are at different depths" + " below the splits" * (level >= 0),
                f"pass class_depth={min(depths)} to name classes by the first "
                f"{min(depths)} of the directories above a file",
                *_NAMING,
            )
        classes: dict[Parts, str | None] = {}
        for parts, each in below.items():
            directories = each if depth is None else each[:depth]
            is_class = bool(directories) and (depth is None or len(each) >= depth)
            name = directories[-1] if source == "last" and is_class else "/".join(directories)
            classes[parts] = name if is_class else None
        if not any(name is not None for name in classes.values()):
            raise source_error(
                self.root,
                f"{self.files.noun}s are at depth {min(depths)} to {max(depths)}",
                option="class_depth",
                found=depth,
                allowed=f"an integer from 1 to {max(depths)}",
            )
        invalid = next((each for each in classes.values() if each and not _is_utf8(each)), None)
        if invalid is not None:
            raise source_error(
                f"{self.root}/{invalid}", "the name of this class is not valid UTF-8"
            )
        omitted = {parts: n for parts, n in self.counts.items() if parts not in splits}
        notes = (f"not read: {self._overview(omitted)}",) if omitted else ()
        return _Layout(roots, splits, classes, notes)

    def _decide(self, splits: Sequence[str]) -> Iterator[str]:
        """Yield the options that decide whether directories are splits."""
        if splits:
            yield f"pass splits='{','.join(splits)}' to read these directories only"
        depths = {len(parts) for parts in self.counts} - {0}
        if len(depths) > 1 or _names_of_splits(self.counts):
            yield "pass splits='none' and class_from='path' if they are parts of class names"
        else:
            yield "pass splits='none' if they are classes"

    def _ambiguous(self, reason: str, *remedies: str) -> SourceError:
        """Return the error of a tree that can be read in several ways."""
        return source_error(
            self.root, f"{reason}: {self._overview()}", remedy=", or ".join(remedies)
        )

    def _overview(self, counts: Mapping[Parts, int] | None = None) -> str:
        """Return the directories of the first level with the number and depth of their files."""
        totals: Counter[str] = Counter()
        depths: dict[str, set[int]] = {}
        for parts, files in (self.counts if counts is None else counts).items():
            name = parts[0] if parts else "."
            totals[name] += files
            depths.setdefault(name, set()).add(len(parts))
        listed = []
        for name in sorted(totals, key=split_order)[:_MAX_LISTED]:
            low, high = min(depths[name]), max(depths[name])
            depth = f"{low}" if low == high else f"{low} to {high}"
            listed.append(f"{name!r} ({self.files.count(totals[name])} at depth {depth})")
        more = len(totals) - len(listed)
        return ", ".join(listed) + (f" and {more:,} more" if more else "")


_NAMING = (
    "pass class_from='last' to name classes by the last directory",
    "pass class_from='path' to name classes by all directories",
)


def _names_of_splits(directories: Iterable[Parts]) -> list[str]:
    """Return the directories above those of the files that have common names of splits."""
    above = {name for parts in directories for name in parts[:-1] if name.lower() in SPLIT_NAMES}
    return sorted(above, key=split_order)


def _is_split(parts: Parts, level: int) -> bool:
    return len(parts) > level and parts[level].lower() in SPLIT_NAMES


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True
