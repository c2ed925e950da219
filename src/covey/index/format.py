"""The index of a split: the place, the length and the class of every record.

Four files beside the shards, each of which any Python reads::

    birds-train.index.npy     one row per record, in the order of the shards:
                              shard, length, offset[, within][, label]
    birds-train.by_class.npy  the numbers of the records, class after class
    birds-train.classes.npy   one row per class: label, first, records;
                              its records are by_class[first : first + records]
    birds-train.index.json    the features, and for each shard what tells that it has changed

``offset`` is where the record's frame begins in the shard. In a compressed shard it is where the
frame's GZIP member begins, and ``inner_offset`` is where the frame begins in that member's data; if the
shard is one long stream, ``offset`` is 0.

What the rows of an index do not say: features, classes, and shards as they were.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.classes import class_table, number_dtype, sort_by_class
from covey.errors import FormatError
from covey.schema import ClassLabel, Features
from covey.schema.json import features_from_json, features_to_json
from covey.tfrecord.streams import RegularFile
from covey.untrusted import MAX_SHARDS, brief, check_path, os_errors, parse_json


def row_dtype(*, compressed: bool, labelled: bool) -> np.dtype[Any]:
    """The fields of an index row, of which only those are there that are needed."""
    fields: list[tuple[str, str]] = [("shard", "<u4"), ("length", "<u4"), ("offset", "<u8")]
    if compressed:
        fields.append(("inner_offset", "<u8"))
    if labelled:
        fields.append(("label", "<i8"))
    return np.dtype(fields)


def index_names(stem: str) -> dict[str, str]:
    """The names of the files, by what they are; the stem is ``<dataset>-<split>``."""
    return {
        "rows": f"{stem}.index.npy",
        "by_class": f"{stem}.by_class.npy",
        "classes": f"{stem}.classes.npy",
        "metadata": f"{stem}.index.json",
    }


class IndexWriter:
    """Writes an index row by row, while the shards are written.

    Args:
        path: The file of the rows.
        records: How many there will be.
        compressed: Whether shards are.
        labelled: Whether records have classes.
    """

    def __init__(self, path: Path, records: int, *, compressed: bool, labelled: bool) -> None:
        self.path = path
        self._dtype = row_dtype(compressed=compressed, labelled=labelled)
        self._file = open(path, "wb")  # noqa: SIM115
        _write_header(self._file, self._dtype, records)
        self._records = records
        self._written = 0
        self.checksum = 0
        """Of all rows so far."""

    def add(self, shard: int, places: NDArray[Any], labels: NDArray[np.int64] | None) -> None:
        """Note the records of a shard, which come after those of the one before."""
        if len(places) and places["length"].max() >= 2**32:
            raise FormatError(f"shard {shard}: a record is over 4 GiB, more than an index can hold")
        rows = np.zeros(len(places), self._dtype)
        rows["shard"] = shard
        rows["length"] = places["length"]
        rows["offset"] = places["offset"]
        if "inner_offset" in rows.dtype.names:
            rows["inner_offset"] = places["inner_offset"]
        if "label" in rows.dtype.names:
            rows["label"] = labels
        self.add_rows(rows)

    def add_rows(self, rows: NDArray[Any]) -> None:
        """Add rows that are there already, of an index that this one continues."""
        if rows.dtype != self._dtype:
            given, rows = rows, np.zeros(len(rows), self._dtype)
            for name in set(self._dtype.names or ()).intersection(given.dtype.names or ()):
                rows[name] = given[name]
        rows = np.ascontiguousarray(rows)
        self._file.write(rows.data)
        self._written += len(rows)
        self.checksum = _core.crc32c(rows, self.checksum)

    def close(self) -> None:
        """Write what is left."""
        self._file.close()
        if self._written != self._records:
            raise AssertionError(f"{self._written} rows were written of {self._records}")

    def abandon(self) -> None:
        """Close the file as it is, for nobody will read it."""
        self._file.close()


def _write_header(file: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(file, header)


def _map_array(path: Path, dtype: np.dtype[Any], rows: int) -> Any:
    """A new array in a file, to be filled in any order."""
    with open(path, "wb") as file:
        _write_header(file, dtype, rows)
        # A full disk is found out here, where it is an error, and not in the middle of filling.
        if rows and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), file.tell(), rows * dtype.itemsize)
        else:
            file.write(bytes(rows * dtype.itemsize))
    return np.load(path, mmap_mode="r+")


def write_classes(
    rows: Path, by_class: Path, classes: Path
) -> tuple[NDArray[Any], tuple[int, int]]:
    """Sort the records of an index by class, with memory for a part of it only.

    Returns:
        The class table; and the checksums of its rows, and of the records in order.
    """
    index = np.load(rows, mmap_mode="r")
    table = class_table(index["label"])
    np.save(classes, table)
    ordered = _map_array(by_class, number_dtype(len(index)), len(index))
    sort_by_class(index["label"], table, ordered)
    ordered.flush()
    return table, (_core.crc32c(table), _core.crc32c(ordered))


FORMAT = 1

# What `label` is if no feature tells the class, but the file that a record is in.
BY_FILE = "@file"


# How much of the beginning and of the end of a shard its fingerprint looks at.
FINGERPRINT_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class Shard:
    """One TFRecord file of a split."""

    name: str
    """Of the file, in the dataset's directory."""
    records: int
    bytes: int
    """Of the file."""
    fingerprint: int
    """A checksum of how it begins and ends, which tells when another file has taken its place."""
    version: str = ""
    """What its storage said of its state when it was indexed; empty if covey wrote it, for then it
    may be copied."""


def fingerprint(path: str | os.PathLike[str]) -> int:
    """The checksum of a file's first and last bytes."""
    with RegularFile(path) as file, os_errors(path):
        return fingerprint_of(file, file.stat().st_size)


def fingerprint_of(file: BinaryIO, size: int) -> int:
    """The same of a file that is open."""
    part = min(size, FINGERPRINT_BYTES)
    file.seek(0)
    crc = _core.crc32c(file.read(part))
    file.seek(size - part)
    return _core.crc32c(file.read(part), crc)


@dataclass(frozen=True, slots=True)
class IndexMetadata:
    """The description of an index, which lies beside its rows as ``.index.json``."""

    features: Features
    label: str | None
    """The feature that tells the class, or :data:`BY_FILE`."""
    label_strings: tuple[str, ...] | None
    """What the labels stand for, where they are strings that the index has numbered."""
    compression: str | None
    records: int
    checksum: int
    """Of the index rows."""
    class_checksums: tuple[int, int] | None
    """Of the rows of the class table, and of the records sorted by class, if there is a label."""
    shards: tuple[Shard, ...]
    order: Mapping[str, Any]
    """How the records were brought into order; empty if covey did not write them."""
    single_stream: bool = False
    """Whether records of compressed shards can only be reached from the beginning: then ``offset``
    is 0, and ``inner_offset`` counts through the whole shard."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """What the labels stand for, by their numbers, if that is known."""
        if self.label_strings is not None or self.label is None:
            return self.label_strings
        kind = self.features.get(self.label)
        return kind.names if isinstance(kind, ClassLabel) else None

    def to_json(self) -> str:
        """As it is stored."""
        content: dict[str, Any] = {
            "covey_index": FORMAT,
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
        content["content_checksum"] = _checksum(content)
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> IndexMetadata:
        """Read what was stored, which may be corrupt, or worse."""
        try:
            content = parse_json(text, name)
            if content["covey_index"] != FORMAT:
                raise FormatError(
                    f"the index has format {brief(content['covey_index'])}, this covey "
                    f"reads {FORMAT}; update covey, or rebuild the index",
                    path=name,
                )
            if content.pop("content_checksum") != _checksum(content):
                raise FormatError("its content is not what was written", path=name)
            names = content["label_strings"]
            sums = content["class_checksums"]
            about = cls(
                features=features_from_json(content["features"], name),
                label=_typed(content["label"], str, None),
                label_strings=None if names is None else tuple(_typed(n, str) for n in names),
                compression=_typed(content["compression"], str, None),
                records=_typed(content["records"], int),
                checksum=_typed(content["checksum"], int),
                class_checksums=None if sums is None else _pair(sums),
                shards=tuple(_shard(each, name) for each in _shards(content["shards"])),
                order=_typed(content["order"], dict),
                single_stream=_typed(content["single_stream"], bool),
            )
        except (
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            RecursionError,
        ) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(
                f"it is not an index description that can be read: {type(error).__name__}: {error}",
                path=name,
            ) from None
        about._check(name)
        return about

    def _check(self, name: str) -> None:
        """Make sure that its parts agree."""
        if self.compression not in (None, "GZIP", "ZLIB"):
            raise FormatError(f"its compression is {self.compression[:60]!r}", path=name)
        if self.label not in (None, BY_FILE) and self.label not in self.features:
            raise FormatError(f"its label {self.label!r} is none of its features", path=name)
        if (self.label is None) != (self.class_checksums is None):
            raise FormatError("it has a label but no classes, or classes but no label", path=name)
        if self.single_stream and self.compression is None:
            raise FormatError("its shards are single_stream, but not compressed", path=name)
        if self.records != sum(shard.records for shard in self.shards):
            raise FormatError(
                f"its shards do not have its {self.records} records together", path=name
            )


_ANY: Any = object()


def _shards(content: Any) -> list[Any]:
    if len(_typed(content, list)) > MAX_SHARDS:
        raise ValueError(f"it has {len(content):,} shards; must have at most {MAX_SHARDS:,}")
    return list(content)


def _typed(value: Any, kind: type, otherwise: Any = _ANY) -> Any:
    if value is otherwise or type(value) is kind:
        return value
    raise TypeError(f"{brief(value)} is no {kind.__name__}")


def _pair(content: Any) -> tuple[int, int]:
    first, second = content
    return _typed(first, int), _typed(second, int)


def _checksum(content: Mapping[str, Any]) -> int:
    """Of what a description says, however it is laid out."""
    return _core.crc32c(json.dumps(content, sort_keys=True).encode())


def _shard(content: Mapping[str, Any], file: str) -> Shard:
    shard = Shard(
        name=_typed(content["name"], str),
        records=_typed(content["records"], int),
        bytes=_typed(content["bytes"], int),
        fingerprint=_typed(content["fingerprint"], int),
        version=_typed(content["version"], str),
    )
    check_path(shard.name, f"{file}: the name of a shard")
    if not (0 <= shard.records < 2**62 and 0 <= shard.bytes < 2**62):
        raise ValueError(f"{str(shard)[:200]} cannot be a shard of this directory")
    return shard
