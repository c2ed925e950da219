"""Builds the index of shards by scanning them; the shards are not changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._progress import Progress
from covey.classes import class_table, id_dtype, sort_by_class
from covey.errors import DatasetError, ExampleError, FeatureError, cpu_count
from covey.index.format import (
    BY_FILE,
    IndexMetadata,
    Shard,
    row_dtype,
)
from covey.index.labels import Label, LabelReader, label_reader
from covey.index.scan import ShardScan, find_first_features, scan_shard, scan_shards
from covey.index.store import GUESS, Index, IndexBuilder, ShardFiles
from covey.labels import guess_label
from covey.schema import Features
from covey.schema.images import ImageSummary, ImageSurvey, join_summaries
from covey.schema.infer import RecordCounts, record_kinds, survey_block
from covey.storage import Stat
from covey.tfrecord import Block


@dataclass(frozen=True, slots=True)
class _Scanned:
    """Scan of a shard, and the content of its records."""

    scan: ShardScan[Any]
    labels: NDArray[np.int64]
    """Class ids, provisional ones for strings; empty without a label."""
    counts: RecordCounts
    """Statistics of the records, if the features are inferred."""
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
        known = _first_features(builder, files)
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
    for name, each in zip(files.names, (each.scan for each in scanned), strict=True):
        version = "" if builder.order else each.stat.version
        records = len(each.locations)
        shards.append(Shard(name, records, each.stat.size, each.fingerprint, version))
    return _assemble(features, reader, tuple(shards), scanned, builder.order)


def _scan(
    builder: IndexBuilder,
    files: ShardFiles,
    stats: Sequence[Stat],
    reader: LabelReader | None,
    *,
    surveys: bool,
) -> list[_Scanned]:
    """Scan all shards.

    Args:
        files: The shards.
        stats: Their states.
        reader: Reader of the class ids.
        surveys: Whether to survey the features of the records.
    """
    features = builder.features if builder.features is not None else builder.declared
    # Decoding the label verifies the checksum as well, on the core that decodes. To skip records,
    # or to survey them, they must be verified before.
    decodes = reader is not None and reader.decodes
    verify = not decodes or surveys or builder.on_error == "skip"
    no_labels = np.zeros(0, np.int64)

    def scan(number: int, executor: Executor | None) -> _Scanned:
        images = None if features is None else ImageSurvey(features)

        def check(block: Block) -> tuple[NDArray[np.int64], RecordCounts]:
            survey = _core.Survey()
            if surveys:
                survey_block(survey, block)
            if images is not None:
                images.add(block)
            labels = no_labels if reader is None else reader.labels_of(block, number)
            return labels, RecordCounts.of(survey)

        found = scan_shard(
            files.storage,
            files.paths[number],
            stats[number],
            check,
            executor,
            progress=bar.add,
            on_error=builder.on_error,
            verify_data=verify,
        )
        labels = np.concatenate([no_labels, *(labels for labels, _ in found.blocks)])
        counts = RecordCounts.join(counts for _, counts in found.blocks)
        found.blocks.clear()
        return _Scanned(found, labels, counts, None if images is None else images.summaries())

    with Progress(builder.progress, None, "indexing") as bar:
        scans = [partial(scan, number) for number in range(len(stats))]
        return scan_shards(scans, builder.threads or cpu_count())


def _first_features(builder: IndexBuilder, files: ShardFiles) -> Features:
    """Return the features of the first record, to find the label before all are read."""
    features, block = find_first_features(files, builder.on_error)
    is_name = isinstance(builder.label, str) and block is not None
    if block is not None and is_name and builder.label not in (BY_FILE, *features):
        raise DatasetError(
            path=block.name,
            record=block.first,
            option="label",
            found=builder.label,
            choices=features,
        )
    return features


def _all_features(
    builder: IndexBuilder, scanned: Sequence[_Scanned], files: ShardFiles
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


def _assemble(
    features: Features,
    reader: LabelReader | None,
    shards: tuple[Shard, ...],
    scanned: Sequence[_Scanned],
    order: Mapping[str, Any],
) -> Index:
    """Return the index of scanned shards."""
    found = [each.scan for each in scanned]
    compressions = [each.compression for each in found if each.compression is not None]
    compressed = bool(compressions)
    # All shards are addressed in the same way: by members only if every shard has members, and
    # none is corrupt, because a record may be valid in a member that is not.
    mixed = any(each.compression is None and len(each.locations) for each in found)
    seekable = all(
        each.locations.can_skip() and not each.skipped for each in found if len(each.locations)
    )
    single_stream = compressed and (mixed or not seekable)
    final, strings = (None, None) if reader is None else reader.finish()
    dtype = row_dtype(compressed=compressed, labelled=reader is not None)
    rows = np.zeros(sum(shard.records for shard in shards), dtype)
    begin = 0
    for number, each in enumerate(found):
        part = rows[begin : begin + len(each.locations)]
        begin += len(part)
        part["shard"] = number
        each.locations.fill(part, single_stream=single_stream)
        if reader is not None and len(part):
            labels = scanned[number].labels
            part["label"] = labels if final is None else final[labels]
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
    skipped = tuple(part for each in found for part in each.skipped)
    return Index(metadata, rows, classes, by_class, skipped=skipped)
