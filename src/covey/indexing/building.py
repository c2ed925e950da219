"""Making the index of shards that somebody else wrote, without changing them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from covey import _core
from covey.errors import DatasetError, FeatureError, FormatError
from covey.features import Features
from covey.features.surveys import survey_block, survey_kinds
from covey.index import About, Index, class_table, number_dtype, row_dtype, sort_by_class
from covey.indexing.labelling import Label, Labeller, make_labeller
from covey.indexing.scanning import Scan, Scanned, open_reader
from covey.labels import guess_label
from covey.pipeline import run_ahead
from covey.progress import Progress
from covey.records.reader import OnError
from covey.shards import Shard, fingerprint
from covey.storage import Storage

# How much of a remote shard's beginning and end its fingerprint looks at.
_ENDS = 1 << 12

GUESS = object()
"""In place of a label: whatever is most likely one."""


@dataclass(frozen=True)
class ShardFiles:
    """The shards of a split, wherever they are."""

    storage: Storage
    folder: str
    """What their names are relative to."""
    names: tuple[str, ...]

    @property
    def paths(self) -> list[str]:
        """Where each is."""
        return [self.storage.join(self.folder, name) for name in self.names]


@dataclass(frozen=True)
class Indexing:
    """How shards are to be indexed.

    Args:
        features: Of their records; None finds out.
        label: Who tells the class; :data:`GUESS` takes what is most likely.
        on_error: ``"skip"`` leaves out damaged records.
        threads: How many work; all cores by default.
        progress: Whether to show how far it is; None if somebody looks.
    """

    features: Features | None = None
    label: Label | Labeller | object = GUESS
    on_error: OnError = "raise"
    threads: int | None = None
    progress: bool | None = None

    def build(self, files: ShardFiles) -> Index:
        """Index shards.

        Raises:
            CorruptRecordError, ExampleError: If a record is damaged, saying which.
            DatasetError: If the label is none, or a shard is missing.
        """
        paths = files.paths
        stats = files.storage.stat(paths)
        for path, stat in zip(paths, stats, strict=True):
            if stat is None:
                raise DatasetError(f"{path}: the shard is missing")
        features = self.features
        known = features if features is not None else _first_features(files)
        label = self._label(known)
        labeller = make_labeller(label, known, files.names)
        scanned = self._scan(files, labeller, surveys=features is None)
        if features is None:
            features = _all_features(scanned, files)
        sizes = [0 if stat is None else stat.size for stat in stats]
        shards = tuple(
            Shard(name, each.records, size, shard_fingerprint(files.storage, path, size))
            for name, path, each, size in zip(files.names, paths, scanned, sizes, strict=True)
        )
        return _assemble(features, labeller, shards, scanned)

    def _label(self, features: Features) -> Label | Labeller:
        if self.label is GUESS:
            return guess_label(features)
        label: Label | Labeller = self.label  # type: ignore[assignment]
        return label

    def _scan(
        self, files: ShardFiles, labeller: Labeller | None, *, surveys: bool
    ) -> list[Scanned]:
        """Look through all shards, several at a time."""
        threads = self.threads or os.cpu_count() or 1
        lock = threading.Lock()
        paths = files.paths
        with (
            Progress(self.progress, None, "indexing") as shown,
            ThreadPoolExecutor(threads, thread_name_prefix="covey-index") as pool,
        ):

            def progress(records: int, size: int) -> None:
                with lock:
                    shown.add(records, size)

            # Shards side by side if they are enough for all threads, else the blocks of each.
            several = len(paths) >= threads
            scan = Scan(
                files.storage,
                labeller,
                surveys,
                self.on_error,
                progress,
                None if several or threads == 1 else pool,
            )
            tasks = (partial(scan, number, path) for number, path in enumerate(paths))
            return list(run_ahead(tasks, pool if several else None, threads))


def shard_fingerprint(storage: Storage, path: str, size: int) -> int:
    """What tells when another file has taken a shard's place."""
    if not storage.is_remote:
        return fingerprint(path)
    blocks = storage.open_blocks(path)
    try:
        begins = np.array([0, max(0, size - _ENDS)], np.int64)
        blocks.ensure(begins, np.minimum(begins + _ENDS, size))
        return fingerprint(blocks.path)
    finally:
        blocks.close()


def _first_features(files: ShardFiles) -> Features:
    """The features of the first record, by which a label is found before all are read."""
    for path in files.paths:
        with open_reader(files.storage, path) as reader:
            for block in reader.blocks():
                survey = _core.Survey()
                survey_block(survey, block[:1])
                return Features(survey_kinds([survey]))
    return Features({})


def _all_features(scanned: Sequence[Scanned], files: ShardFiles) -> Features:
    surveys = [survey for each in scanned for survey in each.surveys]
    if not surveys:
        return Features({})
    try:
        return Features(survey_kinds(surveys))
    except FeatureError as error:
        many = "" if len(files.names) == 1 else f" (counted through all {len(files.names)} files)"
        raise DatasetError(f"{files.folder}: {error}{many}; pass features=") from None


def _assemble(
    features: Features,
    labeller: Labeller | None,
    shards: tuple[Shard, ...],
    scanned: Sequence[Scanned],
) -> Index:
    """An index of what was found in shards."""
    compressions = [each.compression for each in scanned if each.compression is not None]
    compressed = bool(compressions)
    # One way to reach records for all shards: by members only if every one is of members.
    mixed = compressed and len(compressions) < sum(each.records > 0 for each in scanned)
    streamed = compressed and (mixed or not all(each.places.can_skip() for each in scanned))
    final, texts = (None, None) if labeller is None else labeller.finish()
    dtype = row_dtype(compressed=compressed, labelled=labeller is not None)
    rows = np.zeros(sum(each.records for each in scanned), dtype)
    begin = 0
    for number, each in enumerate(scanned):
        part = rows[begin : begin + each.records]
        begin += each.records
        places = each.places.table(streamed=streamed)
        if len(places) and int(places["length"].max()) >= 2**32:
            raise FormatError(
                f"{shards[number].name}: a record is over 4 GiB, more than an index holds"
            )
        part["shard"] = number
        part["length"] = places["length"]
        part["offset"] = places["offset"]
        if compressed:
            part["within"] = places["within"]
        if streamed and each.compression is None:
            part["within"], part["offset"] = places["offset"], 0
        if each.labels is not None:
            part["label"] = each.labels if final is None else final[each.labels]
    classes = by_class = sums = None
    if labeller is not None:
        classes = class_table(rows["label"])
        by_class = np.zeros(len(rows), number_dtype(len(rows)))
        sort_by_class(rows["label"], classes, by_class)
        sums = (_core.crc32c(classes), _core.crc32c(by_class))
    about = About(
        features=features,
        label=None if labeller is None else labeller.label,
        class_texts=texts,
        compression=compressions[0] if compressions else None,
        records=len(rows),
        checksum=_core.crc32c(rows),
        class_checksums=sums,
        shards=shards,
        order={},
        streamed=streamed,
    )
    return Index(about, rows, classes, by_class)
