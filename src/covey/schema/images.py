"""The image feature: encoded images in a record, the values it accepts, and their summary.

Pillow is imported only when an image is encoded, or has a format that the native core cannot parse.
Images of Pillow are recognised if the caller has imported it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.arrays import StringArray
from covey.errors import CoveyError, FeatureError, StorageError
from covey.schema.columns import Column, Shape, as_array, check, check_shape
from covey.schema.types import REQUIRED, Feature
from covey.tfrecord import Block
from covey.untrusted import read_file

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

IMAGE_FORMATS = {
    "png": (".png",),
    "jpeg": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "gif": (".gif",),
    "bmp": (".bmp", ".dib"),
    "webp": (".webp",),
    "tiff": (),
    "ppm": (),
}
"""Formats that are decoded, with their extensions in sources, which do not read TIFF and PPM: only
Pillow parses them."""
EXTENSIONS = tuple(each for extensions in IMAGE_FORMATS.values() for each in extensions)
"""Extensions of image files."""
MAX_IMAGE_BYTES = 1 << 30

# Pillow's modes of pixels of 16 bits, and the modes that a format stores; others are converted.
DEEP_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_MODES = {"png": ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"), "jpeg": ("L", "RGB", "CMYK")}
FORMATS = tuple(_MODES)
"""Formats in which pixels are encoded."""
_PILLOW_SIGNATURES = (b"II*\0", b"MM\0*", *(b"P%d" % n for n in range(1, 7)))


class ImageHeader(NamedTuple):
    """The header of an encoded image."""

    format: str
    """``"jpeg"``, ``"png"``, ``"gif"``, ``"bmp"`` or ``"webp"``."""
    height: int
    width: int
    channels: int
    """Channels as stored; an image with a palette has 3."""
    bits: int
    """Bits of a channel as stored; of a PNG with a palette, those of an index."""
    orientation: int
    """EXIF orientation, from 1 to 8; 1 if there is none."""

    def size(self, *, oriented: bool) -> tuple[int, int]:
        """Return height and width of the pixels.

        Args:
            oriented: Whether pixels are rotated according to EXIF.
        """
        if oriented and self.orientation >= 5:
            return self.width, self.height
        return self.height, self.width


def read_header(data: bytes | bytearray | memoryview) -> ImageHeader | None:
    """Return the header of a JPEG, PNG, GIF, BMP or WebP image; None for other or incomplete data.

    >>> read_header(b"GIF89a" + bytes([5, 0, 4, 0, 0, 0, 0]))
    ImageHeader(format='gif', height=4, width=5, channels=3, bits=8, orientation=1)
    """
    found = _core.image_header(data)
    return None if found is None else ImageHeader(*found)


class _DefaultChannels(int):
    """The default of ``channels=``, which differs from a 3 that the caller passes."""


_DEFAULT_CHANNELS = _DefaultChannels(3)


@dataclass(frozen=True, init=False)
class Image(Feature):
    """An encoded image. Encoded images are stored unchanged; pixels are encoded.

    ``Image()`` means RGB: images with one channel, a palette, an alpha channel or CMYK have 3
    channels when they are decoded.

    Args:
        shape: Height, width and channels; None where images differ.
        dtype: ``"uint8"`` or, for PNG, ``"uint16"``.
        format: Format in which pixels are encoded: ``"png"`` or ``"jpeg"``.
        channels: Channels of decoded images: 1, 3, 4, or None for those of the encoded image
            (default: those of `shape`, or 3).
        exif_orientation: Whether decoded images are rotated according to their EXIF orientation.
        default: Encoded image of examples that lack the feature.

    A value is an encoded image (bytes), the path of one (str or os.PathLike), an image of Pillow,
    an array of (height, width[, channels]), or a dict ``{"bytes": ..., "path": ...}`` of Hugging
    Face. An image of Pillow that was opened and not loaded is stored as the bytes of its file;
    other images of Pillow are encoded. An array has the channels of the feature, or one channel.

    Decoding a record returns the encoded bytes; :meth:`decode` returns the pixels of PNG, JPEG,
    GIF, BMP, WebP, TIFF and PPM images.

    >>> Image().shape, Image((32, 32, 1)).channels, Image(channels=None).shape
    ((None, None, 3), 1, (None, None, None))
    """

    shape: Shape
    dtype: str
    format: str
    exif_orientation: bool
    default: Any = field(default=REQUIRED)

    def __init__(
        self,
        shape: Sequence[int | None] | None = None,
        dtype: str = "uint8",
        format: str = "png",
        *,
        channels: int | None = _DEFAULT_CHANNELS,
        exif_orientation: bool = False,
        default: Any = REQUIRED,
    ) -> None:
        check("dtype", dtype, dtype in ("uint8", "uint16"), ("uint8", "uint16"))
        check("format", format, format in FORMATS, FORMATS)
        is_bool = isinstance(exif_orientation, bool)
        check("exif_orientation", exif_orientation, is_bool, "True or False")
        is_valid = default is REQUIRED or isinstance(default, bytes)
        check("default", default, is_valid, "encoded bytes")
        values = (_complete_shape(shape, dtype, channels), dtype, format, exif_orientation, default)
        for name, value in zip(self.__dataclass_fields__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def summary(self) -> str:
        rotated = ", rotated according to EXIF" if self.exif_orientation else ""
        return f"Image {self.shape} of {self.dtype}{rotated}".replace("None", "any")

    @property
    def channels(self) -> int | None:
        """Channels of decoded images; None for those of the encoded image."""
        return self.shape[2]

    @property
    def is_plain(self) -> bool:
        return True

    def columns(self, name: str) -> tuple[Column, ...]:
        height, width, _ = (-1 if size is None else size for size in self.shape)
        column = Column(
            name,
            "bytes",
            required=self.default is REQUIRED,
            default=None if self.default is REQUIRED else [self.default],
            image=(height, width, self.dtype == "uint16"),
            convert=self.to_bytes,
        )
        return (column,)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        return [self.to_bytes(value)]

    def prepare(self, batch: Any) -> Any:
        if isinstance(batch, StringArray) and not batch.text and not batch.row_shape:
            for value in batch:
                self.check(value)
            return batch
        return [self.to_bytes(value) for value in batch]

    def to_bytes(self, value: Any) -> bytes:
        """Return the encoded image of a value.

        Raises:
            FeatureError: If it is not an image, or does not match the feature; ``feature`` is not
                set.
        """
        if isinstance(value, (bytes, bytearray, memoryview)):
            data: bytes | None = bytes(value)
        elif isinstance(value, (str, os.PathLike)):
            data = read_encoded(value, "image", MAX_IMAGE_BYTES)
        elif isinstance(value, Mapping):
            data = file_of(value, "image", MAX_IMAGE_BYTES)
        elif is_picture(value):
            data = _file_of(value) or _encode(value, self)
        elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
            return self.encode(as_array(value))
        else:
            data = None
        if data is None:
            raise FeatureError(
                f"the image is of type {type(value).__name__}; must be encoded bytes, a path, an "
                "image of Pillow, an array of pixels, or a dict with 'bytes' or 'path'"
            )
        self.check(data)
        return data

    def check(self, data: bytes) -> None:
        """Check the header of an encoded image.

        Raises:
            FeatureError: If the format is not supported, or height and width are not those of the
                feature.
        """
        expected, header = self.shape[:2], _core.image_header(data)
        if header is not None and expected == (None, None):
            return
        if header is not None:
            size = ImageHeader(*header).size(oriented=self.exif_orientation)
        elif self.default is not REQUIRED and data == self.default:
            return
        elif not has_pillow():
            if not data.startswith(_PILLOW_SIGNATURES):
                raise _not_an_image(data)
            return
        else:
            with open_picture(data) as picture:
                size = int(picture.height), int(picture.width)
        if any(n is not None and n != found for n, found in zip(expected, size, strict=True)):
            required = " x ".join("any" if n is None else str(n) for n in expected)
            raise FeatureError(
                f"the image has height x width {size[0]} x {size[1]}; must be {required}"
            )

    def encode(self, pixels: NDArray[Any]) -> bytes:
        """Encode pixels, (height, width[, channels]), of this feature's shape.

        Pixels may have one channel in place of the feature's: they are stored as a grayscale image.
        """
        pixels = as_array(pixels)
        complete = pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
        is_gray = complete.ndim == 3 and complete.shape[2] == 1
        shape = (*self.shape[:2], 1) if is_gray else self.shape
        checked = Column("image", self.dtype, shape).coerce(complete)
        stored = checked[:, :, 0] if is_gray else checked
        what = f"pixels of {stored.dtype} {stored.shape}"
        return _save(lambda: import_pillow().fromarray(stored), self.format, what)

    def decode(self, data: bytes, *, max_pixels: int | None = None) -> NDArray[Any]:
        """Decode an image into pixels, (height, width, channels), of this feature's shape.

        Args:
            data: The encoded image.
            max_pixels: Maximum number of pixels (height x width), 64 million by default. A larger
                image is rejected before it is decoded.
        """
        from covey.schema.pixels import check_max_pixels, read_pixels

        return read_pixels(self, data, max_pixels=check_max_pixels(max_pixels))


def _complete_shape(
    shape: Sequence[int | None] | None, dtype: str, channels: int | None
) -> tuple[int | None, ...]:
    """Return height, width and channels."""
    is_default = channels is _DEFAULT_CHANNELS
    is_valid = not isinstance(channels, bool) and channels in (1, 3, 4, None)
    check("channels", channels, is_valid, "1, 3, 4 or None")
    if shape is None:
        return None, None, None if channels is None else int(channels)
    checked = check_shape(shape, dtype)
    check("shape", checked, len(checked) == 3, "of three dimensions")
    if is_default or channels == checked[2]:
        return checked
    check("channels", channels, checked[2] is None, f"{checked[2]}, that of the shape")
    return check_shape((*checked[:2], channels), dtype)


# Files and libraries.


class MissingLibraryError(FeatureError):
    """A library is not installed, which is not the fault of a record."""


@contextmanager
def explained_import(library: str, extra: str) -> Iterator[None]:
    """Raise MissingLibraryError if a library cannot be imported.

    Args:
        library: Its name and purpose: ``"Pillow, which decodes images,"``.
        extra: The extra that installs it.
    """
    try:
        yield
    except (ImportError, OSError):  # OSError: a shared library is missing
        raise MissingLibraryError(
            f"{library} is not installed; run: pip install 'covey[{extra}]'"
        ) from None


def import_pillow() -> Any:
    """Import Pillow."""
    with explained_import("Pillow, which encodes and decodes images,", "images"):
        from PIL import Image
    return Image


def has_pillow() -> bool:
    """Return whether Pillow is installed."""
    try:
        import_pillow()
    except MissingLibraryError:
        return False
    return True


def read_encoded(path: str | os.PathLike[str], noun: str, max_bytes: int) -> bytes:
    """Return the content of the file of an image or a sound, which errors call `noun`."""
    try:
        return read_file(path, max_bytes)
    except StorageError as error:
        raise FeatureError(f"the {noun} cannot be read: {error}") from None
    except ValueError as error:
        raise FeatureError(f"the {noun} is {path!r}, which is not a valid path: {error}") from None


def file_of(value: Mapping[str, Any], noun: str, max_bytes: int) -> bytes | None:
    """Return the encoded file of a dict of Hugging Face, or None if it has none."""
    data, path = value.get("bytes"), value.get("path")
    if data is not None:
        return bytes(data)
    if "array" in value or not isinstance(path, (str, os.PathLike)):
        return None
    return read_encoded(path, noun, max_bytes)


@contextmanager
def open_picture(data: bytes) -> Iterator[Any]:
    """Open an encoded image with Pillow. Errors of Pillow, of any type, become FeatureErrors."""
    pillow = import_pillow()
    try:
        formats = [each.upper() for each in IMAGE_FORMATS]
        with pillow.open(io.BytesIO(data), formats=formats) as picture:
            yield picture
    except CoveyError:
        raise
    except pillow.UnidentifiedImageError:  # its message has an address in memory
        raise _not_an_image(data) from None
    except MemoryError:
        raise FeatureError("there is not enough memory to decode the image") from None
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise FeatureError(f"{error} Pillow's own limit is PIL.Image.MAX_IMAGE_PIXELS") from None
    except Exception as error:
        raise invalid_image(data, str(error)) from None


def invalid_image(data: bytes, reason: str) -> FeatureError:
    """Return the error for an image that cannot be decoded."""
    return FeatureError(f"the {len(data):,} bytes are not a valid image: {reason}")


def _not_an_image(data: bytes) -> FeatureError:
    begin = f" that begin with {data[:8]!r}" if data else ""
    return FeatureError(
        f"the {len(data):,} bytes{begin} are not an image in a supported format: "
        f"{', '.join(IMAGE_FORMATS).upper()}"
    )


# Images of Pillow, and of Hugging Face.


def is_picture(value: Any) -> bool:
    """Return whether a value is an image of Pillow."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def picture_dtype(picture: Picture) -> str | None:
    """Return the dtype of an image feature that holds an image of Pillow; None if none does."""
    if picture.mode in DEEP_MODES:
        return "uint16"
    return None if picture.mode == "F" else "uint8"


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


def _file_of(picture: Any) -> bytes | None:
    """Return the file of an image of Pillow; None if its pixels are loaded, and may be changed."""
    file = getattr(picture, "fp", None)  # Pillow sets it to None when it loads the pixels
    if file is None or picture.tell() != 0:
        return None
    try:
        position = file.tell()
        file.seek(0)
        data = file.read(MAX_IMAGE_BYTES + 1)
        file.seek(position)
    except (OSError, ValueError):
        return None
    header = read_header(data)
    if header is None or header.size(oriented=False) != (picture.height, picture.width):
        return None
    # `draft` changes the size or the mode of a JPEG.
    is_draft = header.format == "jpeg" and header.channels != len(picture.getbands())
    return None if is_draft else data


def _encode(picture: Any, feature: Image) -> bytes:
    """Encode an image of Pillow in the format of a feature."""
    mode = picture.mode
    if feature.dtype == "uint16" and mode not in DEEP_MODES:
        return feature.encode(np.asarray(picture))
    is_gray = mode in ("1", "LA", "La", *DEEP_MODES) and feature.format == "jpeg"
    stored = mode if mode in _MODES[feature.format] else "L" if is_gray else "RGB"
    what = f"an image of Pillow of mode {mode}"
    return _save(lambda: picture.convert(stored), feature.format, what)


def _save(make: Callable[[], Any], format: str, what: str) -> bytes:
    out = io.BytesIO()
    try:
        make().save(out, format=format)
    except (OSError, TypeError, ValueError) as error:
        raise FeatureError(f"{what} cannot be encoded as {format}: {error}") from None
    return out.getvalue()


# Images in records.


def recorded_image(counts: Sequence[int]) -> Image | None:
    """Return the feature of byte strings that are all encoded images, or None.

    Args:
        counts: Records by list type, as :class:`covey._core.Survey` counts them.
    """
    _, strings, _, _, images, deep = counts
    if not images + deep or images + deep != strings:
        return None
    return Image(dtype="uint8" if images else "uint16")


ImageSummary = dict[str, Any]
"""Statistics of the images of one feature, as values of JSON.

``formats``, ``channels`` and ``bits``, as they are stored, are dicts of numbers of images;
``oriented`` images have an EXIF orientation other than 1; ``unknown`` images have another format,
such as TIFF, and are not counted otherwise. ``smallest`` and ``largest`` are height and width of
the images of the fewest and of the most pixels; they are equal only if all images have one size.
"""


def join_images(parts: Iterable[ImageSummary]) -> ImageSummary:
    """Return the summary of the images of all parts."""
    total: ImageSummary = {"formats": {}, "channels": {}, "bits": {}, "oriented": 0, "unknown": 0}
    sizes: list[tuple[int, int]] = []
    for part in parts:
        for name in ("formats", "channels", "bits"):
            keys = sorted({*total[name], *part[name]}, key=lambda key: key.rjust(2))  # 8, 16
            total[name] = {key: total[name].get(key, 0) + part[name].get(key, 0) for key in keys}
        for name in ("oriented", "unknown"):
            total[name] += part[name]
        sizes += [(size[0], size[1]) for size in (part["smallest"], part["largest"]) if size]
    sizes.sort(key=lambda size: (size[0] * size[1], size[0]))
    first, last = (sizes[0], sizes[-1]) if sizes else (None, None)
    return {**total, "smallest": first, "largest": last}


def join_summaries(
    parts: Iterable[Mapping[str, ImageSummary] | None],
) -> dict[str, ImageSummary] | None:
    """Return the summaries of all parts of a split, by feature; None if one is unknown."""
    known = list(parts)
    if None in known:
        return None
    found = [(name, each) for part in known for name, each in (part or {}).items()]
    return {name: join_images(each for key, each in found if key == name) for name, _ in found}


def parse_summary(content: Any) -> ImageSummary:
    """Return a summary of JSON, which is not trusted.

    Raises:
        ValueError, TypeError, LookupError, AttributeError: If it is not valid.
    """
    counts = [content["oriented"], content["unknown"]]
    for name in ("formats", "channels", "bits"):
        counts += content[name].values()
        if len(content[name]) > 64 or not all(key.isalnum() for key in content[name]):
            raise ValueError(f"the {name} of images are not valid")
    for height, width in filter(None, (content["smallest"], content["largest"])):
        counts += height, width
    if not all(type(each) is int and 0 <= each < 2**62 for each in counts):
        raise ValueError("a number of images is not an integer >= 0")
    return join_images([content])


def describe_images(summary: ImageSummary) -> str:
    """Return a summary as one line.

    >>> describe_images(_core.image_summary(b"GIF89a" + bytes([5, 0, 4, 0, 0, 0, 0])))
    '1 image: gif; all 4 x 5; 3 channels; 8 bits'
    """

    def listed(counts: Mapping[str, int]) -> str:
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        return ", ".join(key if len(counts) == 1 else f"{key} ({n:,})" for key, n in ordered)

    others = {"other": summary["unknown"]} if summary["unknown"] else {}
    parts = [listed({**summary["formats"], **others})]
    if summary["smallest"]:
        small, large = ("{} x {}".format(*summary[name]) for name in ("smallest", "largest"))
        parts.append(f"all {small}" if small == large else f"{small} to {large}")
        parts += [f"{listed(summary['channels'])} channels", f"{listed(summary['bits'])} bits"]
    if summary["oriented"]:
        parts.append(f"{summary['oriented']:,} with an EXIF orientation")
    count = sum(summary["formats"].values(), summary["unknown"])
    return f"{count:,} image{'' if count == 1 else 's'}: {'; '.join(parts)}"


class ImageSurvey:
    """Summaries of the images of records, which may be added by several threads.

    Args:
        features: Features of the records, by name.
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self._names = [name for name, kind in features.items() if isinstance(kind, Image)]
        self._found = {name: [join_images([])] for name in self._names}

    def add(self, block: Block) -> None:
        """Add the records of a block."""
        if not self._names:
            return
        survey = _core.ImageSurvey(self._names)
        survey.add_records(block.data, block.offsets, block.lengths)
        for name, found in zip(self._names, survey.results(), strict=True):
            self._found[name].append(found)  # atomic

    def summaries(self) -> dict[str, ImageSummary]:
        """Return the summary of each image feature."""
        return {name: join_images(found) for name, found in self._found.items()}
