"""Image files, recognised by their signatures, and directories of them with one per class."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from covey.errors import SourceError, StorageError
from covey.schema import ClassLabel, Features, Image, Tensor
from covey.schema.image_inputs import MAX_IMAGE_BYTES
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import (
    Item,
    LazyItems,
    Source,
    SourceOptions,
    SourceSplits,
    as_source_error,
    list_names,
    source_error,
)
from covey.splits import SPLIT_NAMES
from covey.untrusted import read_file

# A file with one of these extensions that is not an image is an error; other files are ignored.
_SUPPORTED = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".webp")
_UNSUPPORTED = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2")
EXTENSIONS = frozenset((*_SUPPORTED, *_UNSUPPORTED))
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP")

_MAX_GIF_TRAILING_BYTES = 1024
_BMP_HEADER_BYTES = (12, 16, 40, 52, 56, 64, 108, 124)


def image_format(head: bytes) -> str | None:
    """Return the format of an image by its first bytes; None if it is not one of FORMATS.

    >>> image_format(b"GIF89a")
    'GIF'
    """
    if head[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "PNG"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    # The signature has only two bytes, so the size of the header is checked too.
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADER_BYTES:
        return "BMP"
    return None


def image_fault(data: bytes) -> str | None:
    """Return the reason why bytes are not a complete image; None if they are.

    Only the signature and the end are checked. Data after the end is allowed, because many programs
    append metadata or padding.

    >>> image_fault(b"GIF89a")
    'truncated GIF of 6 bytes'
    """
    if not data:
        return "it is empty"
    found = image_format(data[:32])
    if found is None:
        return f"it begins with {data[:8]!r}; supported formats: {', '.join(FORMATS)}"
    return None if _has_end(found, data) else f"truncated {found} of {len(data)} bytes"


def _has_end(found: str, data: bytes) -> bool:
    match found:
        case "JPEG":  # a thumbnail in the header has an end marker of its own
            scans = [offset for marker, offset in jpeg_segments(data) if marker == 0xDA]
            return bool(scans) and data.find(b"\xff\xd9", scans[0]) > 0
        case "PNG":
            return b"IEND\xaeB`\x82" in data
        case "GIF":
            # The end of a block and the trailer. Two bytes may also occur in compressed data.
            return data.rfind(b"\0\x3b", 13) >= max(13, len(data) - _MAX_GIF_TRAILING_BYTES)
        case "BMP":
            return int.from_bytes(data[2:6], "little") <= len(data)
    return int.from_bytes(data[4:8], "little") + 8 <= len(data)


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker and the payload offset of each segment, up to the start of the scan."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
        else:
            yield marker, at + 4
            if marker == 0xDA:
                return
            at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])


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
def open_image_directory(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open images in class directories.

    The class of an image is the path of its directory, so directories may be nested. An example has
    the encoded image, the class, and the path of the file.
    """
    root = probed.path
    name = options.label or "label"
    if name in ("image", "filename"):
        raise source_error(
            root, "", option="label", found=name, allowed="a name other than 'image', 'filename'"
        )
    if not os.path.isdir(root):
        raise source_error(
            root, f"found {probed.describe()}, but an image directory is a directory"
        )
    splits = _split_directories(probed)
    found = {each: sorted(walk_images(os.path.join(root, each))) for each in splits or [""]}
    # A class has the same id in all splits, also in one that lacks it.
    names = {path.rpartition("/")[0] for paths in found.values() for path in paths}
    if not splits:
        return _open_directory(root, found[""], name, names)
    return SourceSplits(
        {
            split: partial(_open_directory, os.path.join(root, split), paths, name, names)
            for split, paths in found.items()
        }
    )


def _open_directory(root: str, paths: Sequence[str], name: str, names: set[str]) -> Source:
    """Open the images of one split, whose classes have names that all splits share."""
    root = root.rstrip("/")
    if not paths:
        raise source_error(root, "there is no image in this directory or below it")
    names = names - {""}
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
