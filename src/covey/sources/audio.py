"""Directories of sounds, with one subdirectory per class.

soundfile, which decodes the files, is imported when the first file is read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

from covey.errors import FeatureError, SourceError, StorageError
from covey.schema import Audio
from covey.schema.audio import (
    EXTENSIONS,
    MAX_AUDIO_BYTES,
    MissingSoundfileError,
    decode_audio,
    read_audio_header,
)
from covey.sources import images
from covey.sources.class_directory import OPTIONS, FileKind, open_class_directory, walk_files
from covey.sources.registry import ProbedPath, register
from covey.sources.source import Source, SourceOptions, SourceSplits, as_source_error
from covey.untrusted import read_file

# Files that are counted to decide between sounds and images, such as the covers of albums.
_MAX_PROBED_FILES = 1000


def is_sound(path: str) -> bool:
    """Return whether a file is a sound by its extension."""
    return path.lower().endswith(EXTENSIONS)


def read_sound(path: str) -> dict[str, Any]:
    """Return the samples of an audio file as float32, with its sampling rate.

    Raises:
        SourceError: If it cannot be read, or is not a complete audio file.
    """
    return decode_sound(_read(path), path)


def decode_sound(data: bytes, path: str | None = None) -> dict[str, Any]:
    """Return the samples of the content of an audio file as float32, with its sampling rate.

    Raises:
        SourceError: If it is not a complete audio file.
    """
    try:
        samples, rate = decode_audio(data, "float32")
    except MissingSoundfileError:
        raise
    except FeatureError as error:
        raise SourceError(error.reason, path=path) from None
    return {"array": samples[:, 0] if samples.shape[1] == 1 else samples, "sampling_rate": rate}


def infer_sound(paths: Iterable[str]) -> Audio:
    """Return the feature of the first valid file: its sampling rate and number of channels."""
    return infer_content(map(_read_or_empty, paths))


def infer_content(files: Iterable[bytes]) -> Audio:
    """Return the feature of the first valid content of an audio file."""
    for data in files:
        try:
            header = read_audio_header(data)
        except MissingSoundfileError:
            raise
        except FeatureError:
            continue  # reading the example reports it
        channels = header.channels
        return Audio(header.sample_rate, shape=(None,) if channels == 1 else (None, channels))
    return Audio()


def _read_or_empty(path: str) -> bytes:
    try:
        return _read(path)
    except SourceError:
        return b""


def _read(path: str) -> bytes:
    try:
        return read_file(path, MAX_AUDIO_BYTES)
    except StorageError as error:
        raise as_source_error(error, path) from None


def _has_sounds(probed: ProbedPath) -> bool:
    """Return whether a directory has sounds, and not more images than sounds."""
    if not os.path.isdir(probed.path):
        return False
    found = walk_files(probed.path, lambda path: is_sound(path) or _is_named_image(path))
    sounds = [is_sound(path) for path in itertools.islice(found, _MAX_PROBED_FILES)]
    return any(sounds) and 2 * sum(sounds) >= len(sounds)


def _is_named_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in images.EXTENSIONS


_SOUNDS = FileKind("audio directory", "sound", "audio", is_sound, read_sound, infer_sound)


@register(
    "audio directory",
    "a directory with a subdirectory of WAV, FLAC, OGG or MP3 files per class",
    recognise=_has_sounds,
    rank=1,
    options=OPTIONS,
    is_below=True,
)
def open_audio_directory(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open sounds in class directories. An example has the samples and the sampling rate."""
    return open_class_directory(probed, options, _SOUNDS)
