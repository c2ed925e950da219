"""Telling encoded images by their bytes, and whole ones from those that are cut off.

Nothing is decoded, so that this costs next to nothing and needs no library.
"""

from __future__ import annotations

import struct

# What people name images; a file with such a name that is not an image is an error, not ignored.
_KNOWN = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib", ".webp")
_UNKNOWN = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2")
EXTENSIONS = frozenset((*_KNOWN, *_UNKNOWN))
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP")

_OTHERS = {b"II*\x00": "TIFF", b"MM\x00*": "TIFF"}
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)


def image_format(head: bytes) -> str | None:
    """The format of an image, from the first bytes of it; None if it is none of FORMATS.

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
    # Two letters prove nothing; the size of the header that follows them does.
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "BMP"
    return None


def image_fault(data: bytes) -> str | None:
    """What keeps bytes from being a whole image; None if nothing does.

    >>> image_fault(b"GIF89a")
    'it is a GIF that is cut off after 6 bytes'
    """
    if not data:
        return "it is empty"
    found = image_format(data[:32])
    if found is None:
        other = next((name for magic, name in _OTHERS.items() if data.startswith(magic)), None)
        seen = f"it is a {other}" if other else f"it begins with {data[:8]!r}"
        return f"{seen}, which is none of the images that are known: {', '.join(FORMATS)}"
    try:
        complete = _IS_WHOLE[found](data)
    except (struct.error, IndexError):
        complete = False
    return None if complete else f"it is a {found} that is cut off after {len(data)} bytes"


def _whole_jpeg(data: bytes) -> bool:
    """Whether an end mark follows the first scan; a thumbnail before it has one of its own."""
    at = 2
    while True:
        mark, kind = data[at], data[at + 1]
        if mark != 0xFF:
            return False
        if kind == 0xFF:  # padding
            at += 1
        elif kind == 0xDA:
            return data.rfind(b"\xff\xd9", at) > 0
        elif kind == 0x01 or 0xD0 <= kind <= 0xD8:  # marks without a length
            at += 2
        else:
            at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])


def _whole_png(data: bytes) -> bool:
    """Whether chunks follow one another up to IEND."""
    at = 8
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        at += 12 + length
        if kind == b"IEND":
            return bool(at <= len(data))


def _whole_gif(data: bytes) -> bool:
    """Whether blocks follow one another up to the trailer."""
    at = 13 + _colours(data[10])
    while data[at] != 0x3B:
        if data[at] == 0x21:  # an extension
            at += 2
        elif data[at] == 0x2C:  # a picture
            at += 11 + _colours(data[at + 9])
        else:
            return False
        while data[at]:
            at += 1 + data[at]
        at += 1
    return True


def _colours(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _whole_bmp(data: bytes) -> bool:
    size, pixels = struct.unpack_from("<2xI4xI", data)
    return bool(size <= len(data) and 14 < pixels < len(data))


def _whole_webp(data: bytes) -> bool:
    return bool(struct.unpack_from("<4xI", data)[0] + 8 <= len(data))


_IS_WHOLE = {
    "JPEG": _whole_jpeg,
    "PNG": _whole_png,
    "GIF": _whole_gif,
    "BMP": _whole_bmp,
    "WebP": _whole_webp,
}
