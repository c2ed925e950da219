"""TFRecord files that another program wrote."""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey import _core
from covey.dataset_info import ALL_REPLACED, drop_replaced
from covey.errors import (
    CorruptRecordError,
    ExampleError,
    FeatureError,
    SkippedRecordsWarning,
    SourceError,
)
from covey.filenames import INFO_FILE, is_record_file
from covey.schema import Feature, Features, Ragged, Steps, Tensor
from covey.schema.codec import row_of
from covey.schema.types import REQUIRED
from covey.sources.registry import ProbedPath, read_head, register
from covey.sources.source import Item, Source, check_label, fault, find_label
from covey.sources.splits import files_of_split
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.block import starts_with_frame
from covey.untrusted import read_file

# Rows that are decoded at once.
_ROWS = 256


def begins_like_records(head: bytes) -> bool:
    """Whether a file that begins so holds records: a length, and the checksum of it."""
    if head[:2] == b"\x1f\x8b" or head[:1] == b"\x78":
        try:
            head = zlib.decompressobj(47).decompress(head, 12)
        except zlib.error:
            return False
    return starts_with_frame(head)


def _record_files(place: ProbedPath) -> list[str]:
    """The files with records that something is or holds."""
    if place.is_file:
        return [place.path] if begins_like_records(place.head) else []
    files = drop_replaced(place.files, _read_info)
    if place.files and not files:
        raise fault(place.files[0], ALL_REPLACED)
    found = {file for file in files if begins_like_records(read_head(file, 4096))}
    if not found:
        return []
    # One of them that is corrupt from the start is not passed over in silence.
    return [f for f in files if f in found or (is_record_file(f) and os.path.getsize(f))]


def _read_info(directory: str) -> bytes | None:
    try:
        return read_file(Path(directory, INFO_FILE))
    except FileNotFoundError:
        return None


def read_blocks(path: str) -> Iterator[Block | SourceError]:
    """The records of a file, with an error in the place of what is corrupt."""
    given = 0
    try:
        with RecordReader(path, mmap=False) as reader:
            for block in reader.blocks():
                yield block
                given += len(block)
        return
    except CorruptRecordError:
        pass
    with RecordReader(path, on_error="skip", mmap=False) as reader:
        blocks = reader.blocks()
        told = 0
        while True:
            with warnings.catch_warnings():  # every corrupt part is told below
                warnings.simplefilter("ignore", SkippedRecordsWarning)
                found = next(blocks, None)
            for each in reader.skipped[told:]:
                rest = "all that follows is lost" if each.bytes is None else "the next one is valid"
                where = f"record {each.record} at byte {each.offset}"
                yield fault(path, f"{where}: {each.reason}; {rest}")
            told = len(reader.skipped)
            if found is None:
                return
            if found.first + len(found) > given:
                yield found[max(0, given - found.first) :]


@dataclass(frozen=True, eq=False)
class RecordItems:
    """The examples of TFRecord files, decoded with one schema, streamed in every pass."""

    files: tuple[str, ...]
    features: Features
    lengths: tuple[int, ...] | None = None
    """How many records each file should have, if that is known."""

    def __iter__(self) -> Iterator[Item]:
        home = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in self.files])
        for number, file in enumerate(self.files):
            name = os.path.relpath(file, home)
            found, damaged = 0, False
            for block in read_blocks(file):
                if isinstance(block, SourceError):
                    damaged = True
                    yield block
                    continue
                found += len(block)
                for start in range(0, len(block), _ROWS):
                    yield from self._items(name, block[start : start + _ROWS])
            expected = found if damaged or self.lengths is None else self.lengths[number]
            if found != expected:
                what = f"there are {found} records, but the dataset says {expected}"
                yield fault(file, f"{what}; some are lost, or the file was changed")

    def _items(self, name: str, block: Block) -> Iterator[Item]:
        try:
            columns = self.features.decode_batch(block)
        except ExampleError as error:
            if len(block) == 1:
                yield fault(block.name, str(error).removeprefix(f"{block.name}: "))
                return
            for row in range(len(block)):
                yield from self._items(name, block[row : row + 1])
            return
        for row in range(len(block)):
            yield f"{name}:{block.first + row}", row_of(columns, row)


def _survey(files: Sequence[str], path: str) -> tuple[Features, int]:
    """The features that fit all records which are Examples, and the number of all items."""
    count = 0

    def records() -> Iterator[bytes]:
        nonlocal count
        probe = _core.Survey()
        for file in files:
            for block in read_blocks(file):
                count += 1 if isinstance(block, SourceError) else len(block)
                for record in () if isinstance(block, SourceError) else block:
                    try:
                        probe.add(record)
                    except _core.Fault:
                        continue  # is told when the examples are read
                    yield record

    try:
        return Features.infer_records(records()), count
    except FeatureError as error:
        several = f" (records are counted through all {len(files)} files)" if files[1:] else ""
        what = str(error) if count else "there are no records"
        raise fault(path, what + several) from None


def _writable(feature: Feature) -> Feature:
    """What the steps of a SequenceExample are in an Example."""
    if not isinstance(feature, Steps):
        return feature
    default = REQUIRED if feature.default is REQUIRED else []
    if None in feature.shape:
        return Ragged(feature.dtype, default=default)
    return Tensor(feature.dtype, (None, *feature.shape), default=default)


@register(
    "TFRecords",
    "a TFRecord file of Examples, a directory or a pattern of them",
    recognise=lambda place: bool(_record_files(place)),
    rank=3,
)
def open_tfrecords(place: ProbedPath, *, label: str | None, split: str | None) -> Source:
    """The examples of records, keyed by file and number; read once to find their features."""
    found = _record_files(place) or list(place.files if not place.directories else ())
    if not found:
        raise fault(place.path, f"found {place.describe()}, but no TFRecord file")
    files = tuple(files_of_split(found, split, place.path))
    features, length = _survey(files, place.path)
    check_label(label, features, place.path, "feature")
    try:
        kinds = Features({name: _writable(feature) for name, feature in features.items()})
    except FeatureError as error:
        raise fault(place.path, str(error)) from None
    return Source(
        "TFRecords",
        place.path,
        RecordItems(files, features),
        length=length,
        features=kinds,
        label=label or find_label(features),
    )
