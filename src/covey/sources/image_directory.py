"""Directories of images, with a subdirectory per class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from covey.errors import SourceError, StorageError
from covey.schema import ClassLabel, Features, Image, Tensor
from covey.sources.image_formats import EXTENSIONS, image_fault, image_format
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    as_source_error,
    choose_split,
    list_names,
    source_error,
)
from covey.splits import SPLIT_NAMES
from covey.untrusted import read_file

MAX_IMAGE_BYTES = 1 << 30


def is_image(path: str) -> bool:
    """Return whether a file is an image by its extension or its signature."""
    if os.path.splitext(path)[1].lower() in EXTENSIONS:
        return True
    try:
        return image_format(read_head(path, 32)) is not None
    except OSError:
        return False


def read_image(path: str) -> bytes:
    """Return the content of an image file.

    Raises:
        SourceError: If it cannot be read, or is not a complete image.
    """
    try:
        data = read_file(path, MAX_IMAGE_BYTES)
    except StorageError as error:
        raise as_source_error(error, path) from None
    reason = image_fault(data)
    if reason is not None:
        raise source_error(path, f"not a valid image: {reason}")
    return data


def walk_images(directory: str) -> Iterator[str]:
    """Yield the paths of the images below a directory, relative to it; hidden files are ignored."""
    return _walk(directory, "", ())


def _walk(directory: str, prefix: str, parents: tuple[tuple[int, int], ...]) -> Iterator[str]:
    status = os.stat(directory)
    identity = (status.st_dev, status.st_ino)
    if identity in parents:  # a symbolic link to a parent directory
        return
    with os.scandir(directory) as entries:
        visible = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    for entry in visible:
        if entry.is_dir():
            yield from _walk(entry.path, f"{prefix}{entry.name}/", (*parents, identity))
        elif is_image(entry.path):
            yield prefix + entry.name


@dataclass(frozen=True, eq=False)
class _ImageFiles(LazyItems):
    root: str
    paths: Sequence[str]
    label: str

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, position: int) -> Item:
        relative = self.paths[position]
        path = f"{self.root}/{relative}"
        directory, _, _ = relative.rpartition("/")
        try:
            if not directory:
                raise source_error(path, "the image is not in a class directory")
            if not _is_utf8(relative):
                raise source_error(path, "the file name is not valid UTF-8")
            data = read_image(path)
        except SourceError as error:
            return error
        return relative, {"image": data, self.label: directory, "filename": relative}


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True


def _has_images(probed: ProbedPath) -> bool:
    return os.path.isdir(probed.path) and next(walk_images(probed.path), None) is not None


@register(
    "image directory",
    "a directory with a subdirectory of images per class",
    recognise=_has_images,
    rank=2,
)
def open_image_directory(probed: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """Open images in class directories.

    The class of an image is the path of its directory, so directories may be nested. An example has
    the encoded image, the class, and the path of the file.
    """
    root = probed.path
    name = label or "label"
    if name in ("image", "filename"):
        raise source_error(
            root, "", option="label", found=name, allowed="a name other than 'image', 'filename'"
        )
    if not os.path.isdir(root):
        raise source_error(
            root, f"found {probed.describe()}, but an image directory is a directory"
        )
    splits = _split_directories(probed)
    chosen = choose_split(splits, split, root) if splits else ""
    names: set[str] = set()
    # A class has the same id in all splits, also in one that lacks it.
    for each in splits or [chosen]:
        found = list(walk_images(os.path.join(root, each)))
        names.update(path.rpartition("/")[0] for path in found)
        if each == chosen:
            paths = sorted(found)
    root = os.path.join(root, chosen).rstrip("/")
    if not paths:
        raise source_error(root, "there is no image in this directory or below it")
    names.discard("")
    if not names:
        raise source_error(
            root,
            f"there are {len(paths)} images ({list_names(paths, 3)}) without class directories or "
            "a table of labels",
            remedy="create a directory for each class, or a CSV file of file names and labels",
        )
    invalid = next((each for each in sorted(names) if not _is_utf8(each)), None)
    if invalid is not None:
        raise source_error(f"{root}/{invalid}", "the name of this class is not valid UTF-8")
    kinds: dict[str, Any] = {"image": Image(), name: ClassLabel(names=tuple(sorted(names)))}
    return Source(
        "image directory",
        root,
        _ImageFiles(root, paths, name),
        length=len(paths),
        features=Features({**kinds, "filename": Tensor("str")}),
        label=name,
    )


def _split_directories(probed: ProbedPath) -> list[str]:
    """Return the names of the subdirectories if all of them are splits rather than classes."""
    names = [os.path.basename(directory) for directory in probed.directories]
    if not names or not all(name.lower() in SPLIT_NAMES for name in names):
        return []
    for directory in probed.directories:
        if any(map(is_image, ProbedPath.probe(directory).files)):
            return []  # it contains images, so it is a class with the name of a split
    return names
