"""Looking through one shard: where its records are, their classes, and what they hold.

Making the index of shards that another program wrote, without changing them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._progress import Progress
from covey._threads import cpu_count, ordered_map
from covey.classes import class_table, number_dtype, sort_by_class
from covey.errors import DatasetError, ExampleError, FeatureError, FileChangedError
from covey.index.format import BY_FILE, IndexMetadata, Shard, fingerprint, fingerprint_of, row_dtype
from covey.index.labels import KnownLabels, Label, Labeller, make_labeller
from covey.index.read import Index
from covey.labels import Classes, guess_label
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.survey import survey_block, survey_kinds
from covey.storage import Stat, Storage
from covey.storage.local import local_stat
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.locations import RecordLocations
from covey.tfrecord.reader import OnError
from covey.tfrecord.streams import RegularFile

# Blocks that are under way while one is waited for.
_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Scanned:
    """What was found in a shard."""

    places: RecordLocations
    labels: NDArray[np.int64] | None
    surveys: list[_core.Survey]
    compression: str | None
    records: int
    skipped: tuple[SkippedRecord, ...]
    fingerprint: int
    """Of the file that was scanned."""


@dataclass(frozen=True, slots=True)
class Scan:
    """How to look through shards.

    Args:
        storage: Where they are.
        stats: The state of each shard when indexing began; none may change until it is scanned.
        labeller: Tells classes, if any are wanted.
        surveys: Whether to find out what records hold.
        on_error: ``"skip"`` leaves out what is corrupt.
        progress: Is told of records and bytes.
        executor: Where the blocks of a shard are looked through, if not one after the other.
        map_files: Map local shards into memory; False reads them.
    """

    storage: Storage
    stats: Sequence[Stat]
    labeller: Labeller | None
    surveys: bool
    on_error: OnError
    progress: Callable[[int, int], None]
    executor: Executor | None = None
    mmap: bool = True

    def __call__(self, number: int, path: str) -> Scanned:
        """Look through a shard.

        Raises:
            FileChangedError: If it is not the file that it was, or changes meanwhile.
        """
        labels: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        surveys: list[_core.Survey] = []
        records = 0
        with (
            open_shard(self.storage, path, self.stats[number]) as file,
            RecordReader(file, on_error=self.on_error, mmap=self.mmap) as reader,
        ):
            places = RecordLocations(reader.compression)
            # A caller that decodes the label verifies the data on the way, on its own core; but who skips
            # must know at once, and a survey must not be of corrupt data.
            decodes = self.labeller is not None and self.labeller.decodes
            later = decodes and not self.surveys and self.on_error == "raise"
            blocks = reader.blocks(verify_data=not later, members=places.members)
            tasks = (partial(self._look, block, number) for block in _noted(blocks, places))
            with closing(ordered_map(tasks, self.executor, _AHEAD)) as found:
                for classes, survey, count, size in found:
                    if classes is not None:
                        labels.append(classes)
                    if survey is not None:
                        surveys.append(survey)
                    records += count
                    self.progress(count, size)
            skipped = tuple(reader.skipped)
            mark = fingerprint_of(file, self.stats[number].size)
        joined = None if self.labeller is None else np.concatenate(labels)
        return Scanned(places, joined, surveys, reader.compression, records, skipped, mark)

    def _look(
        self, block: Block, shard: int
    ) -> tuple[NDArray[np.int64] | None, _core.Survey | None, int, int]:
        survey = _core.Survey() if self.surveys else None
        if survey is not None:
            survey_block(survey, block)
        classes = None if self.labeller is None else self.labeller.of(block, shard)
        return classes, survey, len(block), int(block.lengths.sum())


def _noted(blocks: Iterator[Block], places: RecordLocations) -> Iterator[Block]:
    for block in blocks:
        places.add(block)
        yield block


@contextmanager
def open_shard(storage: Storage, path: str, stat: Stat) -> Iterator[BinaryIO]:
    """Open a shard once, and make sure that it has the state ``stat`` all the time.

    Raises:
        FileChangedError: If it has not, in place of any other error.
    """
    if storage.is_remote:
        with storage.open_stream(path) as stream:
            yield stream
        return
    try:
        file = RegularFile(path)
    except FileNotFoundError:
        raise _changed(path) from None
    with file:
        try:
            yield file
        finally:
            if local_stat(file.stat()) != stat:
                raise _changed(path)


def _changed(path: str) -> FileChangedError:
    return FileChangedError(
        "the shard was changed while it was indexed; open the dataset again", path=path
    )


@contextmanager
def open_reader(storage: Storage, path: str, **options: Any) -> Iterator[RecordReader]:
    """A reader of a shard that may be anywhere.

    Raises:
        StorageError: If a local shard is not a regular file.
    """
    source: BinaryIO = storage.open_stream(path) if storage.is_remote else RegularFile(path)
    with source, RecordReader(source, **options) as reader:
        yield reader


GUESS = object()
"""In place of a label: whatever is most likely one."""


@dataclass(frozen=True)
class ShardFiles:
    """The shards of a split, wherever they are."""

    storage: Storage
    directory: str
    """What their names are relative to."""
    names: tuple[str, ...]
    keeps_index: bool = True
    """Whether an index may lie in the directory: it is theirs, and not one far above them."""

    @cached_property
    def paths(self) -> list[str]:
        """Where each is."""
        return [self.storage.join(self.directory, name) for name in self.names]


@dataclass(frozen=True)
class Indexing:
    """How shards are to be indexed.

    Args:
        features: Of their records, as their dataset says; None finds out.
        label: Who tells the class; :data:`GUESS` takes what is most likely, if it fits.
        declared: What a caller says of features, by which the label is read.
        order: How records were brought into order, if covey wrote them.
        on_error: ``"skip"`` leaves out corrupt records.
        map_files: Map local shards into memory; False reads them.
        threads: How many work; all CPU cores by default.
        progress: Whether to show how far it is; None if somebody looks.
    """

    features: Features | None = None
    label: Label | Labeller | object = GUESS
    _: KW_ONLY
    declared: Features | None = None
    order: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    mmap: bool = True
    threads: int | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise DatasetError(
                option="threads", found=self.threads, allowed="an integer, 1 or more"
            )

    def like(self, about: IndexMetadata) -> Indexing:
        """The way to make an index again that is no longer whole, as it was."""
        label: Label | Labeller = about.label
        if about.label not in (None, BY_FILE):
            label = KnownLabels(Classes(about.features, about.label, about.label_strings or ()))
        return replace(self, features=about.features, label=label, order=about.order)

    def build(self, files: ShardFiles) -> Index:
        """Index shards.

        Raises:
            CorruptRecordError, ExampleError: If a record is corrupt, saying which.
            DatasetError: If the label is none, or a shard is missing.
            FileChangedError: If a shard changes meanwhile.
        """
        stats = []
        for path, stat in zip(files.paths, files.storage.stat(files.paths), strict=True):
            if stat is None:
                raise DatasetError("the shard is missing", path=path)
            stats.append(stat)
        known = self.declared if self.declared is not None else self.features
        if known is None:
            known = self._first_features(files, stats)
        if self.label is not GUESS:
            return self._build(files, stats, known, cast("Label | Labeller", self.label))
        guess = guess_label(known)
        try:
            return self._build(files, stats, known, guess)
        except (ExampleError, FeatureError, DatasetError):
            if guess is None:
                raise
            return self._build(files, stats, known, None)  # it was only called like a label

    def _build(
        self,
        files: ShardFiles,
        stats: Sequence[Stat],
        known: Features,
        label: Label | Labeller,
    ) -> Index:
        features = self.features
        if features is None and self.on_error == "skip":
            features = self.declared  # no survey: records that are not Examples fail on access
        if callable(label) and self.declared is None and features is None:
            # A function gets whole examples: what all records hold must be known before.
            scanned = self._scan(files, stats, None, surveys=True)
            features = known = self._all_features(scanned, files)
        labeller = make_labeller(label, known, files.names) if known else None  # no records
        scanned = self._scan(files, stats, labeller, surveys=features is None)
        if features is None:
            features = self._all_features(scanned, files)
        shards = []
        for name, each, stat in zip(files.names, scanned, stats, strict=True):
            version = "" if self.order else stat.version
            shards.append(Shard(name, each.records, stat.size, each.fingerprint, version))
        return _assemble(features, labeller, tuple(shards), scanned, self.order)

    def _scan(
        self,
        files: ShardFiles,
        stats: Sequence[Stat],
        labeller: Labeller | None,
        *,
        surveys: bool,
    ) -> list[Scanned]:
        """Look through all shards, several at a time."""
        threads = self.threads or cpu_count()
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
                stats,
                labeller,
                surveys,
                self.on_error,
                progress,
                None if several or threads == 1 else pool,
                self.mmap,
            )
            tasks = (partial(scan, number, path) for number, path in enumerate(paths))
            return list(ordered_map(tasks, pool if several else None, threads))

    def _first_features(self, files: ShardFiles, stats: Sequence[Stat]) -> Features:
        """The features of the first record, by which a label is found before all are read."""
        for path, stat in zip(files.paths, stats, strict=True):
            with (
                open_shard(files.storage, path, stat) as file,
                RecordReader(file, on_error=self.on_error, mmap=self.mmap) as reader,
            ):
                for block in reader.blocks():
                    survey = _core.Survey()
                    survey_block(survey, block[:1])
                    features = Features(survey_kinds([survey]))
                    if isinstance(self.label, str) and self.label not in (BY_FILE, *features):
                        raise DatasetError(
                            f"record {block.first}: label is {self.label!r}, but there is "
                            f"no such feature; there are {', '.join(features)}",
                            path=path,
                        )
                    return features
        return Features({})

    def _all_features(self, scanned: Sequence[Scanned], files: ShardFiles) -> Features:
        surveys = [survey for each in scanned for survey in each.surveys]
        if not surveys:
            return Features({})
        try:
            return Features(survey_kinds(surveys))
        except FeatureError as error:
            if self.declared is not None:
                return self.declared
            count = len(files.names)
            many = "" if count == 1 else f" (counted through all {count} files)"
            raise DatasetError(f"{files.directory}: {error}{many}; pass features=") from None


def shard_fingerprint(storage: Storage, path: str, size: int) -> int:
    """What tells when another file has taken a shard's place."""
    if not storage.is_remote:
        return fingerprint(path)
    with storage.open_stream(path) as stream:
        return fingerprint_of(stream, size)


def _assemble(
    features: Features,
    labeller: Labeller | None,
    shards: tuple[Shard, ...],
    scanned: Sequence[Scanned],
    order: Mapping[str, Any],
) -> Index:
    """An index of what was found in shards."""
    compressions = [each.compression for each in scanned if each.compression is not None]
    compressed = bool(compressions)
    # One way to reach records for all shards: by members only if every one is of members.
    mixed = any(each.compression is None and each.records for each in scanned)
    # Of a member that is corrupt some records may be sound, but only a stream gives them.
    reachable = all(each.places.can_skip() and not each.skipped for each in scanned if each.records)
    single_stream = compressed and (mixed or not reachable)
    final, texts = (None, None) if labeller is None else labeller.finish()
    dtype = row_dtype(compressed=compressed, labelled=labeller is not None)
    rows = np.zeros(sum(each.records for each in scanned), dtype)
    begin = 0
    for number, each in enumerate(scanned):
        part = rows[begin : begin + each.records]
        begin += each.records
        part["shard"] = number
        each.places.fill(part, single_stream=single_stream)
        if each.labels is not None:
            part["label"] = each.labels if final is None else final[each.labels]
    classes = by_class = sums = None
    if labeller is not None:
        classes = class_table(rows["label"])
        by_class = np.zeros(len(rows), number_dtype(len(rows)))
        sort_by_class(rows["label"], classes, by_class)
        sums = (_core.crc32c(classes), _core.crc32c(by_class))
    about = IndexMetadata(
        features=features,
        label=None if labeller is None else labeller.label,
        label_strings=texts,
        compression=compressions[0] if compressions else None,
        records=len(rows),
        checksum=_core.crc32c(rows),
        class_checksums=sums,
        shards=shards,
        order=order,
        single_stream=single_stream,
    )
    skipped = tuple(part for each in scanned for part in each.skipped)
    return Index(about, rows, classes, by_class, skipped=skipped)
