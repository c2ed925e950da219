"""Image files, recognised by their signatures, and directories of them with one per class."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

from covey.errors import StorageError
from covey.schema import Image
from covey.schema.image_inputs import MAX_IMAGE_BYTES
from covey.sources.class_directory import OPTIONS, FileKind, has_files, open_class_directory
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import Source, SourceOptions, SourceSplits, as_source_error, source_error
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


def _has_images(probed: ProbedPath) -> bool:
    return has_files(probed, is_image)


def _infer(paths: Iterable[str]) -> Image:
    return Image()


_IMAGES = FileKind("image directory", "image", "image", is_image, read_image, _infer)


@register(
    "image directory",
    "a directory with a subdirectory of images per class",
    recognise=_has_images,
    rank=2,
    options=OPTIONS,
    is_below=True,
)
def open_image_directory(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open images in class directories. An example has the encoded image."""
    return open_class_directory(probed, options, _IMAGES)
