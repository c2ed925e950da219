"""Image and sound files. soundfile is imported when the first sound is read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
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
    """Files that a directory contains, or a table lists."""

    noun: str
    """What a file is: ``"image"``."""
    feature: str
    """Name of the feature that has the content of a file."""
    extensions: tuple[str, ...]
    """Extensions of the files, in lower case; other files are ignored."""
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
            data = read_file(path, self.max_bytes)
            return check_image(data) if self.feature == "image" else decode_sound(data)
        except StorageError as error:
            raise as_source_error(error, path) from None
        except SourceError as error:
            raise source_error(path, error.reason) from None

    def infer(self, paths: Iterable[str]) -> Feature:
        """Return the type of the feature, given the paths of all files."""

        def contents() -> Iterator[bytes]:
            for path in paths:
                with contextlib.suppress(StorageError):  # reading the example reports it
                    yield read_file(path, self.max_bytes)

        return Image() if self.feature == "image" else sound_feature(contents())


IMAGES = FileKind("image", "image", (*EXTENSIONS, *_UNSUPPORTED), MAX_IMAGE_BYTES)
SOUNDS = FileKind("sound", "audio", sounds.EXTENSIONS, MAX_AUDIO_BYTES)


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
            return data.find(b"\xff\xd9", _first_scan(data)) > 0
        case "png":
            return b"IEND\xaeB`\x82" in data
        case "gif":
            # The end of a block and the trailer. Two bytes may also occur in compressed data.
            return data.rfind(b"\0\x3b", 13) >= max(13, len(data) - _MAX_GIF_TRAILING_BYTES)
        case "bmp":
            return int.from_bytes(data[2:6], "little") <= len(data)
    return int.from_bytes(data[4:8], "little") + 8 <= len(data)


def _first_scan(data: bytes) -> int:
    """Return the offset of the first scan of a JPEG, after all segments of its header."""
    at = 2
    while at + 4 <= len(data) and data[at + 1] != 0xDA:
        at += 1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at


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
