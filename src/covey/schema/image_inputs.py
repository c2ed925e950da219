"""Values of an image feature: files, images of Pillow, and images of Hugging Face datasets.

Pillow is recognised if the caller has imported it; it is imported only to encode an image, or to
identify a format that the native parser does not know.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.errors import FeatureError, StorageError
from covey.schema.images import Image, import_pillow, read_header
from covey.untrusted import read_file

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_IMAGE_BYTES = 1 << 30

# The formats that are decoded, by Pillow's names; an MPO file is a JPEG with more images.
_PILLOW_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
_NATIVE_FORMATS = {
    "JPEG": "jpeg",
    "MPO": "jpeg",
    "PNG": "png",
    "GIF": "gif",
    "BMP": "bmp",
    "WEBP": "webp",
}
_OTHER_SIGNATURES = (b"II*\0", b"MM\0*", *(b"P%d" % n for n in range(1, 7)))
# Modes that a format stores; others are converted.
_MODES = {
    "png": ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"),
    "jpeg": ("L", "RGB", "CMYK"),
}
_DEEP_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")


def is_picture(value: Any) -> bool:
    """Return whether a value is an image of Pillow."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def is_hugging_face_image(value: Any) -> bool:
    """Return whether a value is an image of a Hugging Face dataset that was not decoded.

    >>> is_hugging_face_image({"bytes": None, "path": "owl.jpg"})
    True
    """
    if not isinstance(value, Mapping) or value.keys() != {"bytes", "path"}:
        return False
    data, path = value["bytes"], value["path"]
    if data is None:
        return isinstance(path, str)
    return isinstance(data, bytes) and read_header(data) is not None


def picture_dtype(picture: Picture) -> str | None:
    """Return the dtype of an image feature that holds an image of Pillow; None if none does."""
    if picture.mode in _DEEP_MODES:
        return "uint16"
    return None if picture.mode == "F" else "uint8"


def value_to_bytes(value: Any, feature: Image) -> bytes | None:
    """Return the encoded image of a value that is neither bytes nor an array; None for others.

    Args:
        value: A path, a dict of Hugging Face, or an image of Pillow.
        feature: The feature, which determines how pixels are encoded.

    Raises:
        FeatureError: If a file cannot be read, or pixels cannot be encoded.
    """
    if isinstance(value, Mapping):
        if value.keys() != {"bytes", "path"}:
            return None
        data = value["bytes"]
        return _read(value["path"]) if data is None else bytes(data)
    if isinstance(value, (str, os.PathLike)):
        return _read(value)
    if not is_picture(value):
        return None
    found = _file_of(value)
    return _encode(value, feature) if found is None else found


def _read(path: Any) -> bytes:
    """Return the content of a file."""
    if not isinstance(path, (str, os.PathLike)):
        raise FeatureError(f"the image is a dict whose path is {path!r}, without bytes")
    try:
        return read_file(path, MAX_IMAGE_BYTES)
    except StorageError as error:
        raise FeatureError(f"the image cannot be read: {error}") from None
    except ValueError as error:
        raise FeatureError(f"the image is {path!r}, which is not a valid path: {error}") from None


def identify_size(data: bytes) -> tuple[int, int] | None:
    """Return height and width of an image that the native parser does not know.

    Returns None for a format that Pillow parses, if Pillow is not installed.

    Raises:
        FeatureError: If the bytes are not an image in a supported format.
    """
    try:
        pillow = import_pillow()
    except FeatureError:
        if data.startswith(_OTHER_SIGNATURES):
            return None
        raise _not_an_image(data) from None
    try:
        with pillow.open(io.BytesIO(data), formats=_PILLOW_FORMATS) as image:
            return int(image.height), int(image.width)
    except pillow.UnidentifiedImageError:  # its message has an address in memory
        raise _not_an_image(data) from None
    except Exception as error:  # Pillow raises many types for corrupt files
        raise FeatureError(f"the {len(data):,} bytes are not a valid image: {error}") from None


def _not_an_image(data: bytes) -> FeatureError:
    begin = f" that begin with {data[:8]!r}" if data else ""
    return FeatureError(
        f"the {len(data):,} bytes{begin} are not an image in a supported format: "
        f"{', '.join(_PILLOW_FORMATS)}"
    )


def _file_of(picture: Any) -> bytes | None:
    """Return the file that an image of Pillow was read from; None if the image was changed.

    Operations that return an image (convert, resize, crop) return one without a file. Others
    (paste, thumbnail, ImageDraw) change the image and keep its file name. Before the pixels are
    loaded no operation has changed them; afterwards they are compared with those of the file.
    """
    kind = _NATIVE_FORMATS.get(str(picture.format), "")
    if not kind or (hasattr(picture, "tell") and picture.tell() != 0):
        return None
    data = _content(picture)
    header = None if data is None else read_header(data)
    if data is None or header is None or header.format != kind:
        return None
    if (picture.height, picture.width) != (header.height, header.width):
        return None
    is_loaded = not getattr(picture, "tile", ())
    if not is_loaded and (kind != "jpeg" or len(picture.getbands()) == header.channels):
        return data
    with import_pillow().open(io.BytesIO(data)) as original:
        is_same = (
            original.mode == picture.mode
            and original.getpalette() == picture.getpalette()
            and original.tobytes() == picture.tobytes()
        )
    return data if is_same else None


def _content(picture: Any) -> bytes | None:
    """Return the content of the file of an image; None if it cannot be read."""
    file, name = getattr(picture, "fp", None), getattr(picture, "filename", "")
    try:
        if file is not None and not getattr(file, "closed", False):
            position = file.tell()
            try:
                file.seek(0)
                content = file.read(MAX_IMAGE_BYTES + 1)
            finally:
                file.seek(position)
            return content if isinstance(content, bytes) else None
        return read_file(name, MAX_IMAGE_BYTES) if name else None
    except (OSError, ValueError, AttributeError):
        return None


def _encode(picture: Any, feature: Image) -> bytes:
    """Encode an image of Pillow in the format of a feature."""
    if feature.dtype == "uint16" and picture.mode not in _DEEP_MODES:
        return feature.encode(np.asarray(picture))
    modes = _MODES[feature.format]
    mode = picture.mode
    try:
        if mode not in modes:
            is_gray = mode in ("1", "LA", "La") or mode in _DEEP_MODES
            picture = picture.convert("L" if is_gray and feature.format == "jpeg" else "RGB")
        out = io.BytesIO()
        picture.save(out, format=feature.format)
    except (OSError, TypeError, ValueError) as error:
        raise FeatureError(
            f"an image of Pillow of mode {mode} cannot be encoded as {feature.format}: {error}"
        ) from None
    return out.getvalue()
