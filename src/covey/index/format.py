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
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import class_table, id_dtype, sort_by_class
from covey.errors import FormatError
from covey.filenames import sidecar_stem
from covey.schema import ClassLabel, Features
from covey.schema.features import features_from_json, features_to_json
from covey.schema.images import ImageSummary, parse_summary
from covey.tfrecord.block import FRAME_BYTES
from covey.untrusted import MAX_SHARDS, RegularFile, brief, check_path, os_errors, parse_json

FORMAT_VERSION = 1

BY_FILE = "@file"
"""The ``label`` of an index whose classes are the files of the records."""

FINGERPRINT_BYTES = 1 << 12
"""Bytes at the start and at the end of a shard that its fingerprint covers."""

_SCAN_BYTES = 16 << 20


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


# Writing arrays.


def make_index_rows(
    shard: int, locations: NDArray[Any], labels: NDArray[np.int64] | None, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return the rows of records of a shard.

    Args:
        shard: Number of the shard.
        locations: Locations of the records.
        labels: Their class ids; None if they are unlabelled.
        dtype: Dtype of the rows.
    """
    if len(locations) and locations["length"].max() >= 2**32:
        raise FormatError(f"shard {shard}: a record exceeds 4 GiB, the maximum of an index")
    rows = np.zeros(len(locations), dtype)
    rows["shard"] = shard
    rows["length"] = locations["length"]
    rows["offset"] = locations["offset"]
    if "inner_offset" in (dtype.names or ()):
        rows["inner_offset"] = locations["inner_offset"]
    if "label" in (dtype.names or ()):
        rows["label"] = labels
    return rows


class IndexWriter:
    """Writer of the rows of an index, used while the shards are written.

    Args:
        path: The file of the rows.
        records: The total number of records.
        compressed: Whether the shards are compressed.
        labelled: Whether the records have classes.
        single_stream: Whether records are addressed as :attr:`IndexMetadata.single_stream` says.
    """

    def __init__(
        self,
        path: Path,
        records: int,
        *,
        compressed: bool,
        labelled: bool,
        single_stream: bool = False,
    ) -> None:
        self.path = path
        self.single_stream = single_stream
        self._dtype = row_dtype(compressed=compressed, labelled=labelled)
        self._file = open(path, "w+b")  # noqa: SIM115
        _write_header(self._file, self._dtype, records)
        self._start = self._file.tell()
        self._is_ordered = True
        self._records = records
        self._written = 0
        self.checksum = 0
        """CRC-32C of the rows written so far."""

    def add(self, shard: int, locations: NDArray[Any], labels: NDArray[np.int64] | None) -> None:
        """Write the rows of the records of the next shard."""
        self.add_rows(self._addressed(make_index_rows(shard, locations, labels, self._dtype)))

    def add_rows(self, rows: NDArray[Any]) -> None:
        """Write existing rows, such as those of an index that is extended."""
        if rows.dtype != self._dtype:
            given, rows = rows, np.zeros(len(rows), self._dtype)
            for name in given.dtype.names or ():
                rows[name] = given[name]
        rows = np.ascontiguousarray(rows)
        self._file.write(rows.data)
        self._written += len(rows)
        self.checksum = _core.crc32c(rows, self.checksum)

    def write_at(self, first: int, rows: NDArray[Any]) -> None:
        """Write the rows of all records of a shard, which may be complete before others.

        Args:
            first: Position of the first row.
            rows: Rows of the dtype of the index.
        """
        if rows.dtype != self._dtype or first + len(rows) > self._records:
            raise AssertionError(f"{len(rows)} rows of {rows.dtype} at {first}")
        self._is_ordered = False
        self._file.seek(self._start + first * self._dtype.itemsize)
        self._file.write(np.ascontiguousarray(self._addressed(rows)).data)
        self._written += len(rows)

    def _addressed(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of a whole shard that covey wrote, addressed as the index does."""
        if self.single_stream:
            rows = rows.copy()
            sizes = rows["length"].astype(np.uint64) + np.uint64(FRAME_BYTES)
            rows["offset"], rows["inner_offset"] = 0, np.cumsum(sizes) - sizes
        return rows

    def close(self) -> None:
        """Flush and close the file."""
        if not self._is_ordered:
            self.checksum = 0
            self._file.seek(self._start)
            while data := self._file.read(_SCAN_BYTES):
                self.checksum = _core.crc32c(data, self.checksum)
        self._file.close()
        if self._written != self._records:
            raise AssertionError(f"{self._written} rows were written of {self._records}")

    def abandon(self) -> None:
        """Close the file without checking that it is complete."""
        self._file.close()


def write_classes(
    rows: Path, by_class: Path, classes: Path
) -> tuple[NDArray[Any], tuple[int, int]]:
    """Write the class table and the record ids sorted by class, in bounded memory.

    Returns:
        The class table; and the checksums of the class table and of the sorted record ids.
    """
    index = np.load(rows, mmap_mode="r")
    table = class_table(index["label"])
    np.save(classes, table)
    ordered = _map_array(by_class, id_dtype(len(index)), len(index))
    sort_by_class(index["label"], table, ordered)
    ordered.flush()
    return table, (_core.crc32c(table), _core.crc32c(ordered))


def _write_header(file: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(file, header)


def _map_array(path: Path, dtype: np.dtype[Any], rows: int) -> Any:
    """Return a new, writable, mapped array."""
    with open(path, "wb") as file:
        _write_header(file, dtype, rows)
        # Allocate now: a full disk raises OSError here, but SIGBUS in a mapped write.
        if rows and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), file.tell(), rows * dtype.itemsize)
        else:
            file.write(bytes(rows * dtype.itemsize))
    return np.load(path, mmap_mode="r+")


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
