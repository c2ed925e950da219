"""Directories of images, one directory per class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import SourceError, StorageError
from covey.schema import ClassLabel, Features, Image, Tensor
from covey.sources.image_formats import EXTENSIONS, image_fault, image_format
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import Item, LazyItems, Source, enumerate_names, fault
from covey.sources.splits import choose_split
from covey.splits import SPLIT_NAMES
from covey.untrusted import read_file

_SHOWN = 3
MAX_IMAGE_BYTES = 1 << 30


def is_image(path: str) -> bool:
    """Whether a file is an image by its name, or by what is in it."""
    if os.path.splitext(path)[1].lower() in EXTENSIONS:
        return True
    try:
        return image_format(read_head(path, 32)) is not None
    except OSError:
        return False


def read_image(path: str) -> bytes | SourceError:
    """The bytes of an image file, or what is wrong with it."""
    try:
        data = read_file(path, MAX_IMAGE_BYTES)
    except StorageError as error:
        return fault(path, f"the image cannot be read: {str(error).removeprefix(f'{path}: ')}")
    wrong = image_fault(data)
    return data if wrong is None else fault(path, f"this is not an image that can be read: {wrong}")


def walk_images(directory: str) -> Iterator[str]:
    """The images below a directory, as paths relative to it with slashes; hidden ones are left out."""
    return _walk(directory, "", ())


def _walk(directory: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    status = os.stat(directory)
    here = (status.st_dev, status.st_ino)
    if here in above:  # a link that leads back up
        return
    with os.scandir(directory) as entries:
        visible = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    for entry in visible:
        if entry.is_dir():
            yield from _walk(entry.path, f"{prefix}{entry.name}/", (*above, here))
        elif is_image(entry.path):
            yield prefix + entry.name


@dataclass(frozen=True, eq=False)
class _ImageFolder(LazyItems):
    root: str
    paths: Sequence[str]
    label: str

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> Item:
        relative = self.paths[number]
        path = f"{self.root}/{relative}"
        directory, _, _ = relative.rpartition("/")
        if not directory:
            return fault(path, "this image is in no class directory, so it has no label")
        if not _is_utf8(relative):
            return fault(path, "the name of this file is not a valid UTF-8; rename it")
        data = read_image(path)
        if isinstance(data, SourceError):
            return data
        return relative, {"image": data, self.label: directory, "filename": relative}

    def peek(self, number: int) -> tuple[str, str] | None:
        """The key and the class of an image, which its path tells; None if it is in no class."""
        relative = self.paths[number]
        directory, _, _ = relative.rpartition("/")
        return (relative, directory) if directory and _is_utf8(relative) else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True


def _holds_images(place: ProbedPath) -> bool:
    return os.path.isdir(place.path) and next(walk_images(place.path), None) is not None


@register(
    "image directory",
    "a directory with a directory of images per class",
    recognise=_holds_images,
    rank=2,
)
def open_image_folder(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """Images in class directories. A class is the path of its directory, so directories may be nested.

    An example has the image's bytes as they are, the class, and the file's path.
    """
    root = place.path
    name = label or "label"
    if name in ("image", "filename"):
        raise fault(root, f"the label cannot be called {name!r}, which is another feature's name")
    if not os.path.isdir(root):
        raise fault(root, f"found {place.describe()}, but an image directory is a directory")
    splits = _split_directories(place)
    chosen = choose_split(splits, split, root) if splits else ""
    names: set[str] = set()
    # A class has one number in all splits, also if one of them lacks it.
    for each in splits or [chosen]:
        found = list(walk_images(os.path.join(root, each)))
        names.update(path.rpartition("/")[0] for path in found)
        if each == chosen:
            paths = sorted(found)
    root = os.path.join(root, chosen).rstrip("/")
    if not paths:
        raise fault(root, "there is no image in this directory, nor in those below it")
    names.discard("")
    if not names:
        raise fault(
            root,
            f"there are {len(paths)} images here ({enumerate_names(paths, _SHOWN)}) but no class "
            "directories and no table of labels; make a directory for each class, or a CSV file with the "
            "names of the images and their labels",
        )
    wrong = next((each for each in sorted(names) if not _is_utf8(each)), None)
    if wrong is not None:
        raise fault(f"{root}/{wrong}", "the name of this class is not a valid UTF-8; rename it")
    kinds: dict[str, Any] = {"image": Image(), name: ClassLabel(names=tuple(sorted(names)))}
    return Source(
        "image directory",
        root,
        _ImageFolder(root, paths, name),
        length=len(paths),
        features=Features({**kinds, "filename": Tensor("str")}),
        label=name,
    )


def _split_directories(place: ProbedPath) -> list[str]:
    """The names of the directories that are splits rather than classes: all of them, or none."""
    names = [os.path.basename(directory) for directory in place.directories]
    if not names or not all(name.lower() in SPLIT_NAMES for name in names):
        return []
    for directory in place.directories:
        if any(map(is_image, ProbedPath.look(directory).files)):
            return []  # images right below it: it is a class that happens to have such a name
    return names
