"""Directories of sounds, with one subdirectory per class.

soundfile, which decodes the files, is imported when the first file is read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from typing import Any

from covey.errors import CoveyError, FeatureError, StorageError
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
from covey.sources.source import Source, SourceOptions, SourceSplits, as_source_error, source_error
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
    data = _read(path)
    try:
        samples, rate = decode_audio(data, "float32")
    except MissingSoundfileError:
        raise
    except FeatureError as error:
        raise source_error(path, error.reason) from None
    return {"array": samples[:, 0] if samples.shape[1] == 1 else samples, "sampling_rate": rate}


def infer_sound(paths: Iterable[str]) -> Audio:
    """Return the feature of the first valid file: its sampling rate and number of channels."""
    for path in paths:
        try:
            header = read_audio_header(_read(path))
        except MissingSoundfileError:
            raise
        except CoveyError:
            continue  # reading the example reports it
        channels = header.channels
        return Audio(header.sample_rate, shape=(None,) if channels == 1 else (None, channels))
    return Audio()


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
)
def open_audio_directory(probed: ProbedPath, options: SourceOptions) -> Source | SourceSplits:
    """Open sounds in class directories. An example has the samples and the sampling rate."""
    return open_class_directory(probed, options, _SOUNDS)
