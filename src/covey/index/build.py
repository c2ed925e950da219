"""Builds the index of shards by scanning them; the shards are not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._progress import Progress
from covey.classes import class_table, id_dtype, sort_by_class
from covey.errors import DatasetError, ExampleError, FeatureError, FileChangedError, cpu_count
from covey.index.format import (
    BY_FILE,
    IndexMetadata,
    Shard,
    fingerprint_of,
    row_dtype,
)
from covey.index.labels import Label, LabelReader, label_reader
from covey.index.scan import map_blocks, open_source, scan_shards, state_of
from covey.index.store import GUESS, Index, IndexBuilder, ShardFiles
from covey.labels import guess_label
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.images import ImageSummary, ImageSurvey, join_summaries
from covey.schema.infer import RecordCounts, record_kinds, survey_block, survey_kinds
from covey.storage import Stat, Storage
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.block import RecordLocations
from covey.tfrecord.scan import OnError


@dataclass(frozen=True, slots=True)
class ScannedShard:
    """The result of scanning a shard."""

    locations: RecordLocations
    labels: NDArray[np.int64] | None
    counts: RecordCounts
    """Statistics of the records, if the features are inferred."""
    compression: str | None
    records: int
    skipped: tuple[SkippedRecord, ...]
    fingerprint: int
    images: Mapping[str, ImageSummary] | None
    """The images of each image feature; None if the features are not known."""


def build(builder: IndexBuilder, files: ShardFiles) -> Index:
    """Return the index of the shards.

    Raises:
        CorruptRecordError, ExampleError: If a record is corrupt.
        DatasetError: If the label is not valid, or a shard is missing.
        FileChangedError: If a shard changes while it is scanned.
    """
    if builder.describe is not None:
        features, label = builder.describe()
        described = replace(builder, features=features, declared_label=label, describe=None)
        return build(described, files)
    stats = []
    for path, stat in zip(files.paths, files.storage.stat(files.paths), strict=True):
        if stat is None:
            raise DatasetError("the shard is missing", path=path)
        stats.append(stat)
    known = builder.declared if builder.declared is not None else builder.features
    if known is None:
        known = _first_features(builder, files, stats)
    if builder.label is not GUESS:
        return _build(builder, files, stats, known, cast("Label | LabelReader", builder.label))
    guess = builder.declared_label if builder.declared_label in known else guess_label(known)
    try:
        return _build(builder, files, stats, known, guess)
    except (ExampleError, FeatureError, DatasetError):
        if guess is None:
            raise
        return _build(builder, files, stats, known, None)  # only its name is the name of a label


def _build(
    builder: IndexBuilder,
    files: ShardFiles,
    stats: Sequence[Stat],
    known: Features,
    label: Label | LabelReader,
) -> Index:
    features = builder.features
    if features is None and builder.on_error == "skip":
        features = builder.declared  # no survey: records that are not Examples fail on access
    if callable(label) and builder.declared is None and features is None:
        # The function takes complete examples, so all features must be known first.
        scanned = _scan(builder, files, stats, None, surveys=True)
        features = known = _all_features(builder, scanned, files)
    reader = None  # without records
    if known or isinstance(label, LabelReader):
        reader = label_reader(label, known, files.names)
    scanned = _scan(builder, files, stats, reader, surveys=features is None)
    if features is None:
        features = _all_features(builder, scanned, files)
    shards = []
    for name, each, stat in zip(files.names, scanned, stats, strict=True):
        version = "" if builder.order else stat.version
        shards.append(Shard(name, each.records, stat.size, each.fingerprint, version))
    return _assemble(features, reader, tuple(shards), scanned, builder.order)


def _scan(
    builder: IndexBuilder,
    files: ShardFiles,
    stats: Sequence[Stat],
    reader: LabelReader | None,
    *,
    surveys: bool,
) -> list[ScannedShard]:
    """Scan all shards.

    Args:
        files: The shards.
        stats: Their states.
        reader: Reader of the class ids.
        surveys: Whether to survey the features of the records.
    """
    features = builder.features if builder.features is not None else builder.declared
    with Progress(builder.progress, None, "indexing") as bar:
        scan = _Scan(files, stats, reader, surveys, features, builder.on_error, bar.add)
        scans = [partial(scan.shard, number) for number in range(len(stats))]
        return scan_shards(scans, builder.threads or cpu_count())


def _first_features(builder: IndexBuilder, files: ShardFiles, stats: Sequence[Stat]) -> Features:
    """Return the features of the first record, to find the label before all are read."""
    for path, stat in zip(files.paths, stats, strict=True):
        with (
            open_shard(files.storage, path, stat) as file,
            RecordReader(file, on_error=builder.on_error) as reader,
        ):
            for block in reader.blocks():
                survey = _core.Survey()
                survey_block(survey, block[:1])
                features = Features(survey_kinds([survey]))
                if isinstance(builder.label, str) and builder.label not in (BY_FILE, *features):
                    raise DatasetError(
                        path=path,
                        record=block.first,
                        option="label",
                        found=builder.label,
                        choices=features,
                    )
                return features
    return Features({})


def _all_features(
    builder: IndexBuilder, scanned: Sequence[ScannedShard], files: ShardFiles
) -> Features:
    counts = RecordCounts.join(each.counts for each in scanned)
    if not counts.records:
        return Features({})
    try:
        return Features(record_kinds(counts))
    except FeatureError as error:
        if builder.declared is not None:
            return builder.declared
        count = len(files.names)
        note = "" if count == 1 else f" (records are counted through all {count} files)"
        raise DatasetError(
            f"{error}{note}", path=files.directory, remedy="pass features="
        ) from None


@dataclass(frozen=True, slots=True)
class _Scan:
    """One pass over the shards of a split."""

    files: ShardFiles
    stats: Sequence[Stat]
    """State of each shard before the scan."""
    label_reader: LabelReader | None
    surveys: bool
    """Whether to survey the features of the records."""
    features: Features | None
    """The features of the records, if they are known."""
    on_error: OnError
    progress: Callable[[int, int], None]
    """Called with the records and bytes of each block."""

    def shard(self, number: int, executor: Executor | None) -> ScannedShard:
        """Scan a shard.

        Args:
            number: Number of the shard.
            executor: Executor for its blocks; None scans them sequentially.

        Raises:
            FileChangedError: If the shard changes during the scan.
        """
        labels: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        surveys: list[_core.Survey] = []
        images = None if self.features is None else ImageSurvey(self.features)
        records = 0
        stat = self.stats[number]
        with (
            open_shard(self.files.storage, self.files.paths[number], stat) as file,
            RecordReader(file, on_error=self.on_error) as reader,
        ):
            locations = RecordLocations(reader.compression)
            # Decoding the label verifies the checksum as well, on the core that decodes. To skip
            # records, or to survey them, they must be verified before.
            decodes = self.label_reader is not None and self.label_reader.decodes
            verify = not decodes or self.surveys or self.on_error == "skip"
            blocks = reader.blocks(verify_data=verify, members=locations.members)
            check = partial(self._block, shard=number, images=images)
            for ids, survey, count, size in map_blocks(
                check, _located(blocks, locations), executor
            ):
                if ids is not None:
                    labels.append(ids)
                if survey is not None:
                    surveys.append(survey)
                records += count
                self.progress(count, size)
            skipped = tuple(reader.skipped)
            crc = fingerprint_of(file, stat.size)
        joined = None if self.label_reader is None else np.concatenate(labels)
        counts = RecordCounts.join(map(RecordCounts.of, surveys))
        compression = reader.compression
        summaries = None if images is None else images.summaries()
        return ScannedShard(
            locations, joined, counts, compression, records, skipped, crc, summaries
        )

    def _block(
        self, block: Block, shard: int, images: ImageSurvey | None
    ) -> tuple[NDArray[np.int64] | None, _core.Survey | None, int, int]:
        survey = _core.Survey() if self.surveys else None
        if survey is not None:
            survey_block(survey, block)
        if images is not None:
            images.add(block)
        ids = None if self.label_reader is None else self.label_reader.labels_of(block, shard)
        return ids, survey, len(block), int(block.lengths.sum())


def _located(blocks: Iterator[Block], locations: RecordLocations) -> Iterator[Block]:
    for block in blocks:
        locations.add(block)
        yield block


@contextmanager
def open_shard(storage: Storage, path: str, stat: Stat) -> Iterator[BinaryIO]:
    """Open a shard, and check before and after that its state is ``stat``.

    Raises:
        FileChangedError: If it is not, in place of any other error.
    """
    try:
        file = open_source(storage, path)
    except FileNotFoundError:
        raise _changed(path) from None
    with file:
        try:
            yield file
        finally:
            if state_of(file) not in (None, stat):
                raise _changed(path)


def _changed(path: str) -> FileChangedError:
    return FileChangedError(
        "the shard was modified while it was indexed", path=path, remedy="open the dataset again"
    )


def _assemble(
    features: Features,
    reader: LabelReader | None,
    shards: tuple[Shard, ...],
    scanned: Sequence[ScannedShard],
    order: Mapping[str, Any],
) -> Index:
    """Return the index of scanned shards."""
    compressions = [each.compression for each in scanned if each.compression is not None]
    compressed = bool(compressions)
    # All shards are addressed in the same way: by members only if every shard has members, and
    # none is corrupt, because a record may be valid in a member that is not.
    mixed = any(each.compression is None and each.records for each in scanned)
    seekable = all(
        each.locations.can_skip() and not each.skipped for each in scanned if each.records
    )
    single_stream = compressed and (mixed or not seekable)
    final, strings = (None, None) if reader is None else reader.finish()
    dtype = row_dtype(compressed=compressed, labelled=reader is not None)
    rows = np.zeros(sum(each.records for each in scanned), dtype)
    begin = 0
    for number, each in enumerate(scanned):
        part = rows[begin : begin + each.records]
        begin += each.records
        part["shard"] = number
        each.locations.fill(part, single_stream=single_stream)
        if each.labels is not None:
            part["label"] = each.labels if final is None else final[each.labels]
    classes = by_class = sums = None
    if reader is not None:
        classes = class_table(rows["label"])
        by_class = np.zeros(len(rows), id_dtype(len(rows)))
        sort_by_class(rows["label"], classes, by_class)
        sums = (_core.crc32c(classes), _core.crc32c(by_class))
    metadata = IndexMetadata(
        features=features,
        label=None if reader is None else reader.label,
        label_strings=strings,
        compression=compressions[0] if compressions else None,
        records=len(rows),
        checksum=_core.crc32c(rows),
        class_checksums=sums,
        shards=shards,
        order=order,
        single_stream=single_stream,
        images=join_summaries(each.images for each in scanned),
    )
    skipped = tuple(part for each in scanned for part in each.skipped)
    return Index(metadata, rows, classes, by_class, skipped=skipped)
