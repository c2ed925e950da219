"""The files of an index, which stores the location, the length and the class of every record.

Four files beside the shards; ``np.load`` opens the arrays::

    birds-train.index.npy     one row per record, in the order of the shards:
                              shard, length, offset[, inner_offset][, label]
    birds-train.by_class.npy  record ids, sorted by class
    birds-train.classes.npy   one row per class: label, first, records;
                              its record ids are by_class[first : first + records]
    birds-train.index.json    metadata: features, label, checksums, fingerprints of the shards

``offset`` is the offset of the record's frame in the shard. In a compressed shard it is the offset
of the GZIP member, and ``inner_offset`` is the offset of the frame in the decompressed data of that
member; if the shard is a single stream, ``offset`` is 0.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FormatError
from covey.filenames import find_moved, sidecar_stem
from covey.schema import ClassLabel, Features
from covey.schema.features import features_from_json, features_to_json
from covey.schema.images import ImageSummary, parse_summary
from covey.untrusted import MAX_SHARDS, RegularFile, brief, check_path, os_errors, parse_json

FORMAT_VERSION = 1

BY_FILE = "@file"
"""The ``label`` of an index whose classes are the files of the records."""

FINGERPRINT_BYTES = 1 << 12
"""Bytes at the start and at the end of a shard that its fingerprint covers."""

MAX_HEADER_BYTES = 10_000
"""Maximum size of the header of an array."""


def row_dtype(*, compressed: bool, labelled: bool) -> np.dtype[Any]:
    """Return the dtype of an index row."""
    fields: list[tuple[str, str]] = [("shard", "<u4"), ("length", "<u4"), ("offset", "<u8")]
    if compressed:
        fields.append(("inner_offset", "<u8"))
    if labelled:
        fields.append(("label", "<i8"))
    return np.dtype(fields)


def index_names(stem: str) -> dict[str, str]:
    """Return the file names of an index by content; the stem is ``<dataset>-<split>``."""
    stem = sidecar_stem(stem)  # the name of a dataset is read from a file
    return {
        "rows": f"{stem}.index.npy",
        "by_class": f"{stem}.by_class.npy",
        "classes": f"{stem}.classes.npy",
        "metadata": f"{stem}.index.json",
    }


# Shards.


@dataclass(frozen=True, slots=True)
class Shard:
    """One TFRecord file of a split."""

    name: str
    """Path relative to the dataset's directory."""
    records: int
    bytes: int
    """Size of the file."""
    fingerprint: int
    """CRC-32C of the start and the end of the file; detects a replaced file."""
    version: str = ""
    """Version that the storage reported when the shard was indexed (mtime or ETag); empty for a
    shard that covey wrote, because it may be copied."""


def fingerprint(path: str | os.PathLike[str]) -> int:
    """Return the fingerprint of a local file."""
    with RegularFile(path) as file, os_errors(path):
        return fingerprint_of(file, file.stat().st_size)


def fingerprint_of(file: BinaryIO, size: int) -> int:
    """Return the fingerprint of an open file of `size` bytes."""

    def read(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    return fingerprint_from(read, size)


def fingerprint_from(read: Callable[[int, int], bytes], size: int) -> int:
    """Return the CRC-32C of the first and the last bytes of a file of `size` bytes.

    Args:
        read: Function of an offset and a size that returns bytes of the file.
        size: Size of the file.
    """
    part = min(size, FINGERPRINT_BYTES)
    return _core.crc32c(read(size - part, part), _core.crc32c(read(0, part)))


# Metadata.


@dataclass(frozen=True, slots=True)
class IndexMetadata:
    """The content of ``.index.json``."""

    features: Features
    label: str | None
    """The label feature, :data:`BY_FILE`, or None."""
    label_strings: tuple[str, ...] | None
    """The string of each class id, if the label feature is a string."""
    compression: str | None
    records: int
    checksum: int
    """CRC-32C of the rows."""
    class_checksums: tuple[int, int] | None
    """CRC-32C of the class table and of the sorted record ids; None without a label."""
    shards: tuple[Shard, ...]
    order: Mapping[str, Any]
    """How covey ordered the records; empty if covey did not write them."""
    single_stream: bool = False
    """Whether records of compressed shards can only be read from the start of the shard: then
    ``offset`` is 0, and ``inner_offset`` is the offset in all decompressed data of the shard."""
    images: Mapping[str, ImageSummary] | None = None
    """The images of each image feature; None if they were not counted."""
    parts: tuple[str, ...] = ()
    """Names of the runs of parts that ``covey.commit`` has written; empty for any other write."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The name of each class id, if known."""
        if self.label_strings is not None or self.label is None:
            return self.label_strings
        kind = self.features.get(self.label)
        return kind.names if isinstance(kind, ClassLabel) else None

    @property
    def row_dtype(self) -> np.dtype[Any]:
        """The dtype of the rows."""
        return row_dtype(compressed=self.compression is not None, labelled=self.label is not None)

    def to_json(self) -> str:
        """Return the content of the file."""
        content: dict[str, Any] = {
            "covey_index": FORMAT_VERSION,
            "records": self.records,
            "checksum": self.checksum,
            "class_checksums": self.class_checksums,
            "label": self.label,
            "label_strings": self.label_strings,
            "compression": self.compression,
            "single_stream": self.single_stream,
            "order": dict(self.order),
            "shards": [asdict(shard) for shard in self.shards],
            "features": features_to_json(self.features),
        }
        if self.images:
            content["images"] = dict(self.images)
        if self.parts:
            content["parts"] = self.parts
        content["content_checksum"] = content_checksum(content)
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, path: str) -> IndexMetadata:
        """Parse the content of a file.

        Raises:
            FormatError: If it is not valid.
        """
        content = parse_json(text, path)
        try:
            if content["covey_index"] != FORMAT_VERSION:
                raise FormatError(
                    f"the index has format version {brief(content['covey_index'])}; must be "
                    f"{FORMAT_VERSION}",
                    path=path,
                    remedy="update covey, or rebuild the index with `covey index`",
                )
            if content.pop("content_checksum") != content_checksum(content):
                raise FormatError("the checksum of the content does not match", path=path)
            strings = content["label_strings"]
            sums = content["class_checksums"]
            images = _typed(content.get("images"), dict, None)
            shards = _typed(content["shards"], list)
            if len(shards) > MAX_SHARDS:
                raise ValueError(f"{len(shards):,} shards; must be at most {MAX_SHARDS:,}")
            found = cls(
                features=features_from_json(content["features"], path),
                label=_typed(content["label"], str, None),
                label_strings=None if strings is None else tuple(_typed(s, str) for s in strings),
                compression=_typed(content["compression"], str, None),
                records=_typed(content["records"], int),
                checksum=_typed(content["checksum"], int),
                class_checksums=None if sums is None else _pair(sums),
                shards=tuple(_shard_from_json(each, path) for each in shards),
                order=_typed(content["order"], dict),
                single_stream=_typed(content["single_stream"], bool),
                images=images and {name: parse_summary(each) for name, each in images.items()},
                parts=tuple(_typed(each, str) for each in _typed(content.get("parts", []), list)),
            )
        except FormatError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise FormatError(
                f"it is not the metadata of an index: {type(error).__name__}: {error}", path=path
            ) from None
        found._check(path)
        return found

    def _check(self, path: str) -> None:
        """Raise FormatError unless the fields are consistent."""
        if self.compression not in (None, "GZIP", "ZLIB"):
            raise FormatError(f"the compression is {self.compression[:60]!r}", path=path)
        if self.label not in (None, BY_FILE) and self.label not in self.features:
            raise FormatError(f"the label {self.label!r} is not one of the features", path=path)
        if (self.label is None) != (self.class_checksums is None):
            raise FormatError("it must have both a label and classes, or neither", path=path)
        if self.single_stream and self.compression is None:
            raise FormatError("single_stream is true, but the shards are not compressed", path=path)
        if self.records != sum(shard.records for shard in self.shards):
            raise FormatError(f"the shards do not have {self.records} records in total", path=path)


_NOT_OPTIONAL: Any = object()


def _typed(value: Any, kind: type, otherwise: Any = _NOT_OPTIONAL) -> Any:
    if value is otherwise or type(value) is kind:
        return value
    raise TypeError(f"{brief(value)} is not of type {kind.__name__}")


def _pair(content: Any) -> tuple[int, int]:
    first, second = content
    return _typed(first, int), _typed(second, int)


def content_checksum(content: Mapping[str, Any]) -> int:
    """Return the CRC-32C of a JSON object, independent of its formatting."""
    return _core.crc32c(json.dumps(content, sort_keys=True).encode())


def _shard_from_json(content: Mapping[str, Any], path: str) -> Shard:
    shard = Shard(
        name=_typed(content["name"], str),
        records=_typed(content["records"], int),
        bytes=_typed(content["bytes"], int),
        fingerprint=_typed(content["fingerprint"], int),
        version=_typed(content["version"], str),
    )
    check_path(shard.name, f"{path}: the name of a shard")
    if not (0 <= shard.records < 2**62 and 0 <= shard.bytes < 2**62):
        raise ValueError(f"{str(shard)[:200]} is not a valid shard")
    return shard


# Reading arrays.


def open_array(path: Path) -> ArrayFile:
    """Open the file of an array, or where it was moved when the split was overwritten."""
    try:
        return ArrayFile(path)
    except FileNotFoundError:
        return ArrayFile(Path(find_moved(str(path))))


class ArrayFile:
    """An open ``.npy`` file. Use it as a context manager.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError, StorageError: If it is not a valid ``.npy`` file, or is truncated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = RegularFile(path)
        try:
            head = self._file.read_at(0, 12)
            # numpy allocates the length that the header states, before it checks it.
            size = head[8:10] if head[6:7] == b"\1" else head[8:12]
            if int.from_bytes(size, "little") > MAX_HEADER_BYTES:
                raise ValueError(f"the header is longer than {MAX_HEADER_BYTES} bytes")
            version = np.lib.format.read_magic(self._file)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"version {version} of the format is not supported")
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            self.shape, _, self.dtype = read(self._file)
            if self.dtype.hasobject:
                raise ValueError("it has Python objects")
            self._begin = self._file.tell()
            self.nbytes = math.prod(self.shape) * self.dtype.itemsize
            self.rest = self._file.stat().st_size - self._begin - self.nbytes
            """Number of bytes after the array."""
            if self.rest < 0:
                raise ValueError(f"the file ends {-self.rest} bytes before the array")
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def chunks(self, size: int) -> Iterator[memoryview]:
        """Yield the bytes of the array in chunks of complete items, in one reused buffer."""
        item = self.dtype.itemsize
        buffer = memoryview(bytearray(min(self.nbytes, max(1, size // item) * item)))
        self._file.seek(self._begin)
        left = self.nbytes
        while left:
            count = min(left, len(buffer))
            self._fill(buffer[:count])
            yield buffer[:count]
            left -= count

    def load(self, map_from: int | None) -> NDArray[Any]:
        """Return the array: mapped if it has more than ``map_from`` bytes, else read."""
        if map_from is not None and self.nbytes > map_from:
            end = self._begin + self.nbytes
            mapped = _core.map_file(self._file.fileno(), self._begin, end, False)
            return mapped.view(self.dtype).reshape(self.shape)
        array = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self._file.seek(self._begin)
            self._fill(array.reshape(-1).view(np.uint8).data)
        return array

    def _fill(self, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            count = self._file.readinto(buffer[done:])
            if not count:
                raise FormatError("the file ends before its rows", path=self._path)
            done += count
