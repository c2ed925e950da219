"""The audio feature: the samples of a sound at one sampling rate.

Samples are stored raw, in two bytes (int16) or four (float32), as TFDS' ``Audio`` with
``encoding="bytes"`` stores them; a list of int64 would take up to ten. They are read like any other
tensor, by the native decoder.

soundfile is imported only when an encoded file must be decoded.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray
from covey.errors import FeatureError
from covey.schema.columns import MAX_EXAMPLE_BYTES, Column, Shape, as_array, check
from covey.schema.images import explained_import, file_of, is_hugging_face_image
from covey.schema.tensor import Tensor
from covey.schema.types import REQUIRED

MAX_AUDIO_BYTES = 1 << 31
"""Maximum size of an encoded file."""
FORMATS = ("WAV", "FLAC", "OGG", "MP3")
EXTENSIONS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3")
"""Extensions of encoded files."""

AUDIO_DTYPES = ("float32", "int16")
MAX_SAMPLE_RATE = 2**31 - 1

_SCALE = 32768.0
# Files are decoded in blocks: a header may claim any number of samples.
_BLOCK_SAMPLES = 1 << 22
# Sizes of a WAV file that was written to a pipe are unknown, and at least this.
_UNKNOWN_WAV_BYTES = 0x7FFF0000


@dataclass(frozen=True, init=False, repr=False)
class Audio(Tensor):
    """The samples of a sound, with or without several channels.

    Args:
        sample_rate: Samples per second; None if unknown. Encoded files then cannot be written.
        dtype: ``"float32"``, samples from -1 to 1, or ``"int16"``, samples from -32768 to 32767.
        shape: ``(None,)`` for one channel, ``(None, channels)`` for several; a length in place of
            None if all sounds have the same.
        encoding: ``"bytes"`` stores the samples raw, ``"zlib"`` compressed, and ``"list"`` as a
            list of numbers, which takes up to ten bytes per sample.
        default: Samples of examples that lack the feature.

    A value is an array of samples, (length,) or (length, channels); the bytes of a WAV, FLAC, OGG
    or MP3 file; or a dict of Hugging Face, ``{"array": ..., "sampling_rate": ...}`` or ``{"bytes":
    ..., "path": ...}``. A sound of another sampling rate or with another number of channels is an
    error: sounds are neither resampled nor mixed.

    int16 samples become float32 by division by 32768. Floats become int16 by multiplication with
    32768, rounding, and clipping to the range of int16.

    Decoding a record returns the samples.

    >>> Audio(8000).shape, Audio(8000, "int16", shape=(None, 2)).channels
    ((None,), 2)
    """

    sample_rate: int | None = None

    def __init__(
        self,
        sample_rate: int | None = None,
        dtype: str = "float32",
        *,
        shape: Shape = (None,),
        encoding: Literal["bytes", "zlib", "list"] = "bytes",
        default: Any = REQUIRED,
    ) -> None:
        is_integer = isinstance(sample_rate, (int, np.integer)) and sample_rate is not True
        is_valid = sample_rate is None or (is_integer and 0 < sample_rate <= MAX_SAMPLE_RATE)
        check("sample_rate", sample_rate, is_valid, "an integer >= 1, or None")
        rate = None if sample_rate is None else int(sample_rate)
        self._set(sample_rate=rate, dtype=dtype, shape=shape, encoding=encoding, default=REQUIRED)
        super().__post_init__()
        check("dtype", dtype, self.dtype in AUDIO_DTYPES, AUDIO_DTYPES)
        is_valid = len(self.shape) in (1, 2) and all(self.shape[1:])
        check("shape", self.shape, is_valid, "(length,) or (length, channels)")
        if default is not REQUIRED:
            self._set(default=self.to_samples(default))
            super().__post_init__()

    def __repr__(self) -> str:
        parts = [f"sample_rate={self.sample_rate}", f"dtype={self.dtype!r}", f"shape={self.shape}"]
        if self.encoding != "bytes":
            parts.append(f"encoding={self.encoding!r}")
        if self.default is not REQUIRED:
            parts.append(f"default={self.default!r}")
        return f"Audio({', '.join(parts)})"

    @property
    def summary(self) -> str:
        rate = "unknown rate" if self.sample_rate is None else f"{self.sample_rate:,} Hz"
        return f"Audio of {super().summary}, {rate}"

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.shape[1] or 1 if len(self.shape) == 2 else 1

    def _column(self, key: str, default: Any = None) -> Column:
        column = super()._column(key, default)
        return column if self.encoding == "zlib" else replace(column, convert=self.to_samples)

    def split(self, value: Any, columns: Sequence[Column]) -> list[Any]:
        return super().split(self.to_samples(value), columns)

    def prepare(self, batch: Any) -> Any:
        if isinstance(batch, RaggedArray) and isinstance(batch.values, np.ndarray):
            return RaggedArray(self._convert(batch.values), batch.row_splits, batch.row_shapes)
        if isinstance(batch, np.ndarray) and batch.dtype != object:
            return self._convert(batch)
        # The column converts values of any length one by one.
        return batch if None in self.shape else [self.to_samples(value) for value in batch]

    def to_samples(self, value: Any) -> NDArray[Any]:
        """Return the samples of a value, with the dtype and shape of the feature.

        Args:
            value: An array, the bytes of a file, or a dict of Hugging Face.

        Raises:
            FeatureError: If it is not a sound, or does not match the feature; ``feature`` is not
                set.
        """
        data = _file_of(value) if isinstance(value, Mapping) else value
        if isinstance(data, (str, os.PathLike)):
            raise FeatureError(
                f"the audio is of type {type(value).__name__}; must be an array, or the bytes of a "
                "file",
                remedy="read the file: pathlib.Path(path).read_bytes()",
            )
        is_dict = isinstance(value, Mapping) and data is None
        if is_dict and not {"array", "sampling_rate"} <= value.keys():
            raise FeatureError(
                f"the audio is a dict of {', '.join(map(repr, value))}; must have 'bytes', or "
                "'array' and 'sampling_rate'"
            )
        if isinstance(data, (bytes, bytearray, memoryview)):
            samples, rate = decode_audio(bytes(data), self.dtype)
        elif is_dict:
            samples, rate = as_array(value["array"]), value["sampling_rate"]
        else:
            return self._fit(as_array(data))
        if rate is None or rate != self.sample_rate:
            allowed, remedy = "the feature has none", f"declare the feature as covey.Audio({rate})"
            if self.sample_rate is not None:
                allowed, remedy = f"must be {self.sample_rate} Hz", "resample it before writing"
            raise FeatureError(
                f"the audio has a sampling rate of {rate} Hz; {allowed}", remedy=remedy
            )
        return self._fit(samples)

    def _fit(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Return samples with the dtype and the number of dimensions of the feature."""
        samples = self._convert(samples)
        if samples.ndim == 2 and len(self.shape) == 1 and samples.shape[1] == 1:
            samples = samples[:, 0]
        if samples.ndim == 1 and len(self.shape) == 2 and self.channels == 1:
            samples = samples[:, np.newaxis]
        if samples.ndim not in (1, 2):
            raise FeatureError(
                f"the samples have shape {samples.shape}; must be (length,) or (length, channels)"
            )
        channels = samples.shape[1] if samples.ndim == 2 else 1
        if channels != self.channels and samples.size:
            raise FeatureError(
                f"the audio has {_count(channels)}; must have {_count(self.channels)}",
                remedy=f"declare the feature as covey.Audio(shape={_shape_of(channels)}), or "
                "convert the samples before writing, such as to the mean of the channels",
            )
        return Column("", self.dtype, self.shape).coerce(samples)  # type: ignore[no-any-return]

    def _convert(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Return samples with the dtype of the feature."""
        kind, is_float = samples.dtype.kind, self.dtype == "float32"
        if is_float and kind == "i" and samples.dtype.itemsize == 2:
            return samples.astype(np.float32) / np.float32(_SCALE)
        if not is_float and kind == "f":
            return to_int16(samples)
        if samples.size and kind not in ("f" if is_float else "iu"):  # the column checks ranges
            raise FeatureError(
                f"the samples have dtype {samples.dtype}; must be int16 or floats",
                remedy="convert them: integers of other sizes have another range",
            )
        return samples


def to_int16(samples: NDArray[Any]) -> NDArray[np.int16]:
    """Return floats from -1 to 1 as int16; larger ones are clipped.

    Raises:
        FeatureError: If a sample is not a number.
    """
    if np.isnan(samples).any():
        raise FeatureError("a sample is NaN, which int16 does not have")
    wide = np.asarray(samples, np.result_type(samples, np.float32))
    scaled = np.rint(wide * wide.dtype.type(_SCALE))
    clipped: NDArray[np.int16] = np.clip(scaled, -_SCALE, _SCALE - 1).astype(np.int16)
    return clipped


def _count(channels: int) -> str:
    return "one channel" if channels == 1 else f"{channels} channels"


# Values of Hugging Face datasets.


def is_hugging_face_audio(value: Any) -> bool:
    """Return whether a value is a sound of a Hugging Face dataset.

    >>> is_hugging_face_audio({"array": np.zeros(3), "sampling_rate": 8000, "path": None})
    True
    """
    if not isinstance(value, Mapping):
        return False
    keys = value.keys()
    if keys == {"bytes", "path"}:
        data, path = value["bytes"], value["path"]
        if isinstance(data, bytes):
            return audio_format(data[:64]) is not None
        return data is None and isinstance(path, str) and path.lower().endswith(EXTENSIONS)
    return {"array", "sampling_rate"} <= keys <= {"array", "sampling_rate", "path"}


def guess_audio(value: Mapping[str, Any]) -> Audio:
    """Return the feature of a sound of a Hugging Face dataset."""
    data = _file_of(value)
    if data is not None:
        return infer_audio(data)
    samples = as_array(value["array"])
    dtype = "int16" if samples.dtype == np.int16 else "float32"
    channels = samples.shape[1] if samples.ndim == 2 else 1
    return Audio(value["sampling_rate"], dtype, shape=_shape_of(channels))


def infer_audio(data: bytes) -> Audio:
    """Return the feature of an encoded file.

    Raises:
        FeatureError: If it is not a file of a supported format.
    """
    with _opened(data) as file:
        return Audio(file.samplerate, shape=_shape_of(file.channels))


def _shape_of(channels: int) -> Shape:
    return (None,) if channels == 1 else (None, channels)


def unify_audio(a: Audio, b: Audio) -> Audio | None:
    """Return the feature that fits both, which may differ in length; None if there is none."""
    if len(a.shape) != len(b.shape):
        return None
    relaxed = replace(a, shape=(None, *a.shape[1:]))
    return relaxed if relaxed == replace(b, shape=(None, *b.shape[1:])) else None


def _file_of(value: Mapping[str, Any]) -> bytes | None:
    """Return the encoded file of a dict of Hugging Face; None if it has none."""
    return file_of(value, "audio", MAX_AUDIO_BYTES)


# Encoded files.


def import_soundfile() -> Any:
    """Import soundfile."""
    with explained_import("soundfile, which decodes audio files,", "audio"):
        import soundfile
    return soundfile


def encode_wav(samples: NDArray[Any], feature: Audio) -> bytes:
    """Return samples as a WAV file, without loss."""
    file = io.BytesIO()
    subtype = "PCM_16" if feature.dtype == "int16" else "FLOAT"
    import_soundfile().write(file, samples, feature.sample_rate, subtype, format="WAV")
    return file.getvalue()


def audio_format(head: bytes) -> str | None:
    """Return the format of a file by its first bytes; None if it is not one of FORMATS.

    >>> audio_format(b"fLaC")
    'FLAC'
    """
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "WAV"
    if head[:4] == b"fLaC":
        return "FLAC"
    if head[:4] == b"OggS":
        return "OGG"
    # An ID3 tag, or the sync bits of a frame of layer 3.
    is_frame = head[:1] == b"\xff" and len(head) > 2 and head[1] & 0xE6 == 0xE2
    return "MP3" if head[:3] == b"ID3" or is_frame else None


def decode_audio(data: bytes, dtype: str) -> tuple[NDArray[Any], int]:
    """Return the samples, (length, channels), and the sampling rate of an encoded file.

    Args:
        data: Content of a WAV, FLAC, OGG or MP3 file.
        dtype: ``"float32"`` or ``"int16"``.

    Raises:
        FeatureError: If it is not a complete file of a supported format.
    """
    with _opened(data) as file:
        count = max(1, _BLOCK_SAMPLES // file.channels)
        left = MAX_EXAMPLE_BYTES // 4 // file.channels
        blocks: list[NDArray[Any]] = []
        while not blocks or len(blocks[-1]) == count:
            # As floats, which libsndfile has for all formats, and which hold 16 bits exactly.
            blocks.append(file.read(count, dtype="float32", always_2d=True))
            left -= len(blocks[-1])
            if left < 0:
                raise _invalid(f"it has over {MAX_EXAMPLE_BYTES >> 30} GiB of samples")
        samples = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
        if len(samples) < file.frames or _is_truncated(data):
            raise _invalid(f"truncated {audio_format(data[:64])} of {len(data)} bytes")
        return to_int16(samples) if dtype == "int16" else samples, file.samplerate


@contextmanager
def _opened(data: bytes) -> Iterator[Any]:
    """Yield the soundfile.SoundFile of an encoded file."""
    if not data:
        raise _invalid("it is empty")
    if audio_format(data[:64]) is None:
        raise _invalid(f"it begins with {data[:8]!r}; supported formats: {', '.join(FORMATS)}")
    soundfile = import_soundfile()
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            yield file
    except soundfile.SoundFileError as error:
        # The prefix of the message names a temporary object.
        reason = getattr(error, "error_string", str(error))
        raise _invalid(reason.removeprefix("Error : ").rstrip(".")) from None


def _invalid(reason: str) -> FeatureError:
    return FeatureError(f"not valid audio: {reason}")


def _is_truncated(data: bytes) -> bool:
    """Return whether a file ends before its samples, in the cases that libsndfile accepts."""
    if data[:4] == b"RIFF":
        at = 12
        while at + 8 <= len(data):
            name, size = struct.unpack_from("<4sI", data, at)
            if name == b"data":
                return bool(size < _UNKNOWN_WAV_BYTES and at + 8 + size > len(data))
            at += 8 + size + size % 2
    if data[:4] == b"OggS":  # the last page must be complete
        page = data[data.rindex(b"OggS") :]
        lengths = page[27 : 27 + page[26]] if len(page) > 26 else b""
        return len(page) <= 26 or 27 + page[26] + sum(lengths) > len(page)
    return False


def is_hugging_face_file(value: Any) -> bool:
    """Return whether a value is a dict that represents an image or a sound."""
    return is_hugging_face_image(value) or is_hugging_face_audio(value)
