"""Image and sound files. soundfile is imported when the first sound is read."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from covey.errors import FeatureError, SourceError, StorageError
from covey.schema import Audio, Feature, Image
from covey.schema import audio as sounds
from covey.schema.audio import MAX_AUDIO_BYTES
from covey.schema.images import EXTENSIONS, MAX_IMAGE_BYTES, MissingLibraryError, read_header
from covey.sources.source import as_source_error, source_error
from covey.untrusted import read_file

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP")
_UNSUPPORTED = (".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2")
_MAX_GIF_TRAILING_BYTES = 1024


@dataclass(frozen=True)
class FileKind:
    """Files that a directory contains, or a table lists. The functions are picklable."""

    noun: str
    """What a file is: ``"image"``."""
    feature: str
    """Name of the feature that has the content of a file."""
    extensions: tuple[str, ...]
    """Extensions of the files, in lower case; other files are ignored."""
    decode: Callable[[bytes], Any]
    """Returns the value of the feature; raises SourceError if the content is not valid."""
    infer: Callable[[Iterable[bytes]], Feature]
    """Returns the type of the feature, given the contents of all files."""
    max_bytes: int

    def accepts(self, path: str) -> bool:
        """Return whether a path is that of such a file, by its extension."""
        return path.lower().endswith(self.extensions)

    def read(self, path: str) -> Any:
        """Return the value of the feature that has the content of a file.

        Raises:
            SourceError: If it cannot be read, or is not a complete file.
        """
        try:
            return self.decode(read_file(path, self.max_bytes))
        except StorageError as error:
            raise as_source_error(error, path) from None
        except SourceError as error:
            raise source_error(path, error.reason) from None

    def infer_files(self, paths: Iterable[str]) -> Feature:
        """Return the type of the feature, given the paths of all files."""
        return self.infer(map(self._read_or_empty, paths))

    def _read_or_empty(self, path: str) -> bytes:
        try:
            return read_file(path, self.max_bytes)
        except StorageError:
            return b""  # reading the example reports it


# Images.


def check_image(data: bytes) -> bytes:
    """Return the content of an image file.

    Data after the end of the image is allowed: many programs append metadata or padding.

    Raises:
        SourceError: If it is not a complete image.
    """
    header = read_header(data)
    if not data:
        reason = "it is empty"
    elif header is None:
        formats = ", ".join(FORMATS)
        reason = f"it begins with {data[:8]!r}, without a complete header of {formats}"
    elif not _has_end(header.format, data):
        reason = f"truncated {header.format.upper()} of {len(data)} bytes"
    else:
        return data
    raise SourceError(f"not a valid image: {reason}")


def _has_end(found: str, data: bytes) -> bool:
    match found:
        case "jpeg":  # a thumbnail in the header has an end marker of its own
            scans = [offset for marker, offset in jpeg_segments(data) if marker == 0xDA]
            return bool(scans) and data.find(b"\xff\xd9", scans[0]) > 0
        case "png":
            return b"IEND\xaeB`\x82" in data
        case "gif":
            # The end of a block and the trailer. Two bytes may also occur in compressed data.
            return data.rfind(b"\0\x3b", 13) >= max(13, len(data) - _MAX_GIF_TRAILING_BYTES)
        case "bmp":
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


def _image_feature(files: Iterable[bytes]) -> Image:
    return Image()


IMAGES = FileKind(
    "image",
    "image",
    (*EXTENSIONS, *_UNSUPPORTED),
    check_image,
    _image_feature,
    MAX_IMAGE_BYTES,
)


# Sounds.


def decode_sound(data: bytes) -> dict[str, Any]:
    """Return the samples of the content of an audio file as float32, with its sampling rate.

    Raises:
        SourceError: If it is not a complete audio file.
    """
    try:
        samples, rate = sounds.decode_audio(data, "float32")
    except MissingLibraryError:
        raise
    except FeatureError as error:
        raise SourceError(error.reason) from None
    return {"array": samples[:, 0] if samples.shape[1] == 1 else samples, "sampling_rate": rate}


def sound_feature(files: Iterable[bytes]) -> Audio:
    """Return the feature of the first valid content: its sampling rate and number of channels."""
    for data in files:
        try:
            return sounds.infer_audio(data)
        except MissingLibraryError:
            raise
        except FeatureError:
            continue  # reading the example reports it
    return Audio()


SOUNDS = FileKind("sound", "audio", sounds.EXTENSIONS, decode_sound, sound_feature, MAX_AUDIO_BYTES)
