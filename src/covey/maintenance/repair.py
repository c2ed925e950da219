"""covey.repair: write the valid records of a dataset as a new dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import numpy as np

from covey._progress import Progress
from covey._threads import ordered_map
from covey.compat.datum_schema import datum_features
from covey.dataset.layout import ALL, Layout, find_layout
from covey.dataset_info import check_split_name
from covey.errors import (
    CoveyError,
    DatasetError,
    DatasetExistsError,
    FeatureError,
    FileChangedError,
)
from covey.filenames import ENTRIES_FILE, FEATURES_FILE, SHARD_INFO_FILE
from covey.index import IndexMetadata
from covey.index.scan import open_source, scan_shards, state_of
from covey.labels import Classes, can_be_label, extend_names, guess_label, is_string
from covey.maintenance.check import (
    CheckedShard,
    ExampleCheck,
    check_shard,
    feature_differences,
)
from covey.maintenance.info import read_index_metadata
from covey.maintenance.report import (
    Problems,
    choose_splits,
    find_readable_layout,
    shown_path,
    thread_count,
)
from covey.maintenance.verify import expected_features
from covey.results import Problem, RepairResult, WriteResult
from covey.schema import Features
from covey.schema.images import ImageSurvey
from covey.schema.infer import survey_kinds
from covey.schema.merge import add_classes, describe, differences, unify
from covey.shuffle.runs import TABLE_DTYPE
from covey.storage import LocalStorage, is_remote
from covey.tfrecord import Block, RecordReader
from covey.untrusted import reports_errors
from covey.urls import AnyPath, is_path, parse_path, shown
from covey.writing.job import OrderedRecords
from covey.writing.options import WriteOptions
from covey.writing.recovery import clean_up
from covey.writing.shards import (
    ShardFormat,
    ShardPart,
    ShardResult,
    ShardTarget,
    ShardTask,
    write_parts,
)
from covey.writing.split_writer import stage_split
from covey.writing.target import inspect

Mode = Literal["error", "overwrite"]


@reports_errors()
def repair(
    path: AnyPath | Iterable[AnyPath],
    output: AnyPath | None = None,
    *,
    split: str | None = None,
    features: Features | Mapping[str, Any] | None = None,
    mode: Mode = "error",
    delete_parts: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> RepairResult:
    """Copy the valid records of a dataset, or of TFRecord files, to a new dataset.

    The bytes, the order and the shard boundaries of the records are kept. Records that are corrupt,
    are not Examples or do not match the features are skipped and reported. The old dataset is not
    changed.

    Without ``output`` no record is read: interrupted writes of the dataset are completed or rolled
    back, and the files of old versions are deleted. Parts of a job array that are not committed
    remain, and are listed in ``parts`` of the result.

    Args:
        path: Dataset or files, as for :func:`covey.open`.
        output: Directory or URL of the new dataset; None cleans up the dataset in place.
        split: Name of the split to copy, or several: ``"train+test"`` (default: all).
        features: Features that the records must match (default: those of the dataset, or features
            that match all Examples).
        mode: ``"overwrite"`` replaces splits of ``output``; ``"error"`` raises if one exists.
        delete_parts: Without ``output``, delete parts of job arrays that are not committed, also
            those of jobs that are running.
        storage_options: Options of fsspec for a URL: credentials, an endpoint.
        threads: Number of threads (default: the number of CPU cores).
        progress: Show a progress bar (default: if stderr is a terminal).

    Raises:
        DatasetError: If there is no valid record, or ``output`` cannot be written.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> import pathlib
    >>> shard = pathlib.Path("birds/birds-train.tfrecord-00000-of-00001")
    >>> data = shard.read_bytes()
    >>> _ = shard.write_bytes(data[:20] + b"?" + data[21:])
    >>> repaired = repair("birds", "repaired")
    >>> repaired.records, [problem.record for problem in repaired.lost]
    (2, [0])
    """
    started = time.perf_counter()
    if mode not in ("error", "overwrite"):
        raise DatasetError(option="mode", found=mode, choices=("error", "overwrite"))
    if output is None:
        if not is_path(path):
            allowed = "a directory or URL if the path is a list of files"
            raise DatasetError(option="output", found=None, allowed=allowed)
        directory = _find_directory(parse_path(path), storage_options)
        deleted, parts = clean_up(directory, storage_options, delete_parts=delete_parts)
        seconds = time.perf_counter() - started
        name = shown_path(path)
        return RepairResult(name, name, (), (), seconds, tuple(deleted), tuple(parts))
    if delete_parts:
        raise DatasetError(option="delete_parts", found=True, allowed="False with output=")
    layout = find_readable_layout(path, storage_options, Problems())
    target = parse_path(output, "output")
    # Files whose names do not contain a split are training data.
    targets = {name: "train" if name == ALL else name for name in choose_splits(layout, split)}
    for name in targets.values():
        check_split_name(name)
    _check_target(layout, target, list(targets.values()), mode)
    declared = None if features is None else Features(features)
    count = thread_count(threads)
    with Progress(progress, None, "reading") as bar:
        splits = [_SplitRepair(layout, name, declared, bar, count) for name in targets]
        common = _common_features(splits, layout.path)
        lost = tuple(problem for each in splits for problem in each.lost)
        splits = [each for each in splits if each.records]
        if not splits:
            reason = f"; the first problem is {lost[0].file}: {lost[0].reason}" if lost else ""
            raise DatasetError(
                f"there are no valid records{reason}",
                path=layout.path,
                remedy=""
                if lost
                else "pass path= as a list of files if the metadata does not list them",
            )
        written = tuple(
            each.write(target, targets[each.name], mode, storage_options, common) for each in splits
        )
    seconds = time.perf_counter() - started
    return RepairResult(shown_path(path), shown_path(target), written, lost, seconds)


def _find_directory(path: str, options: Mapping[str, Any] | None) -> str:
    """Return the directory of the dataset at a path, which may be that of its versions."""
    try:
        layout = find_layout(path, storage_options=options)
    except (CoveyError, OSError):
        return path
    return layout.storage.address(layout.path) if layout.kind == "dataset" else path


def _check_target(layout: Layout, target: str, splits: list[str], mode: Mode) -> None:
    """Raise if the output cannot be written, before any record is read."""
    is_local = not is_remote(target)
    for directory in {layout.path, *(each.files.directory for each in layout.splits.values())}:
        new, old = shown(target).rstrip("/"), directory.rstrip("/")
        if is_local and not layout.storage.is_remote:
            new, old = os.path.realpath(target), os.path.realpath(directory)
        inside = directory == layout.path and new.startswith((f"{old}/", f"{old}{os.sep}"))
        if new == old or inside:
            allowed = "a directory outside the dataset that is repaired"
            raise DatasetError(option="output", found=shown(target), allowed=allowed)
    for split in splits if is_local else ():
        try:
            inspect(LocalStorage(), os.path.abspath(target), WriteOptions(split=split, mode=mode))
        except DatasetExistsError as error:
            error.remedy = "pass mode='overwrite' to replace it"  # a repair cannot append
            raise
        except NotADirectoryError:
            raise DatasetError("it is a file; must be a directory", path=shown(target)) from None


def _common_features(splits: Sequence[_SplitRepair], path: str) -> Features:
    """Return features that match the records of all splits."""
    known = [each.features for each in splits if each.features is not None]
    surveys = [survey for each in splits for shard in each.shards for survey in shard.surveys]
    try:
        if surveys:
            known.append(Features(survey_kinds(surveys)))
        return unify(*known) if known else Features({})
    except FeatureError as error:
        raise DatasetError(
            error.reason, path=path, feature=error.feature, remedy="pass features="
        ) from None


class _SplitRepair(OrderedRecords):
    """The valid records of one split: a scan finds them, and a write copies them in their order.

    Args:
        layout: The dataset.
        name: Name of the split.
        declared: Features that the caller passed.
        bar: Progress bar.
        threads: Number of threads.
    """

    uploads = False
    _classes: Classes
    """Classes of the copied records, known when they are written."""

    def __init__(
        self,
        layout: Layout,
        name: str,
        declared: Features | None,
        bar: Progress,
        threads: int,
    ) -> None:
        self.name = name
        self._layout = layout
        self._split = layout.splits[name]
        self._bar = bar
        self._threads = threads
        self._metadata, _ = read_index_metadata(self._split)
        self.features = declared
        if declared is None:
            self.features = expected_features(layout, name, self._metadata)
        self._label = _find_label(self.features, self._metadata)
        examples = ExampleCheck(self.features, self._label)

        def scan(number: int, executor: Executor | None) -> CheckedShard:
            shard = check_shard(self._split, name, number, examples, bar.add, executor, None)
            shard.scan = None  # it takes memory
            return shard

        scans = [partial(scan, number) for number in range(len(self._split.files.names))]
        self.shards = scan_shards(scans, threads)

    @property
    def records(self) -> int:
        """Number of valid records."""
        return sum(shard.valid for shard in self.shards)

    @property
    def lost(self) -> list[Problem]:
        """Records and shards that are not copied."""
        reason = "the shard is missing"
        missing = [Problem(each, None, None, reason, self.name) for each in self._split.missing]
        return [*(each for shard in self.shards for each in shard.problems.listed), *missing]

    def write(
        self,
        target: str,
        split: str,
        mode: Mode,
        options: Mapping[str, Any] | None,
        features: Features,
    ) -> WriteResult:
        """Write the valid records as a split of the new dataset."""
        with stage_split(target, self._options(split, mode), options) as writer:
            base, _ = writer.known_schema()
            features = _add_to(base, features, writer.target.path)
            label = self._label
            if self.features is None:  # the strings of a label are not known
                label = guess_label(features)
                label = None if label is None or is_string(features[label]) else label
            known = None if self._metadata is None else self._metadata.label_strings
            strings = {name for shard in self.shards for name in shard.strings}
            self._bar.begin("writing", self.records, subject=split)
            self._classes = Classes(features, label, extend_names(known or (), strings))
            (result,) = writer.write(
                [self],
                features,
                self._classes,
                self._bar,
                sidecars=self._sidecars(features),
                list_shards=self._has(SHARD_INFO_FILE),
            )
            return result

    def write_shards(
        self,
        target: Callable[[int], ShardTarget],
        *,
        first: int,
        compression: str | None,
        progress: Progress,
    ) -> Iterator[ShardResult]:
        """Write a shard for each one that has valid records."""
        form = ShardFormat(
            self._classes.features, self._classes.label is not None, compression, 6, target(0)
        )
        with ThreadPoolExecutor(self._threads, "covey-write") as executor:
            copied = ordered_map(self._parts(first), executor, self._threads + 2)
            yield from write_parts(form, copied, executor, progress.add)

    def _parts(self, first: int) -> Iterator[Callable[[], ShardPart]]:
        """Yield functions that return the valid records with their class ids, a part each."""
        shard, records = 0, 0
        for path, checked in zip(self._split.files.paths, self.shards, strict=True):
            if not checked.valid:
                continue
            task = ShardTask(shard, shard, np.zeros(0, TABLE_DTYPE), records, 0, first + shard)
            images = ImageSurvey(self._classes.features)
            for block in self._blocks(path, checked):
                yield partial(_read_labels, task, records, block, self._classes, images)
                records += len(block)
            if records - task.records_before != checked.valid:
                raise _changed(path)
            shard += 1

    def _blocks(self, path: str, shard: CheckedShard) -> Iterator[Block]:
        with (
            open_source(self._split.files.storage, path) as file,
            RecordReader(file, compression=shard.compression, on_error="skip") as reader,
        ):
            if state_of(file) not in (None, shard.stat):
                raise _changed(path)
            invalid = np.array(shard.invalid, np.int64)
            for block in reader.scan():
                if not isinstance(block, Block):
                    continue  # a corrupt range
                begin, end = np.searchsorted(invalid, [block.first, block.first + len(block)])
                at = 0
                for row in (*(invalid[begin:end] - block.first).tolist(), len(block)):
                    if row > at:
                        yield block[at:row]
                    at = row + 1

    def _options(self, split: str, mode: Mode) -> WriteOptions:
        compressions = [shard.compression for shard in self.shards if shard.valid]
        order = {} if self._metadata is None else self._metadata.order
        by, by_class, seed = order.get("by"), order.get("class"), order.get("seed")
        # The order is recorded in the index; the records stay in their order.
        return WriteOptions(
            split=split,
            mode=mode,
            shuffle=by == "hash",
            sort_by_class=by_class is True,
            seed=seed if type(seed) is int and by == "hash" else 0,
            compression=max(set(compressions), key=compressions.count),
            workers=self._threads,
            description="" if self._layout.info is None else self._layout.info.description,
        )

    def _has(self, name: str) -> bool:
        if self._layout.kind == "TFRecords":
            return False
        return self._layout.storage.exists(self._layout.storage.join(self._layout.path, name))

    def _sidecars(self, features: Features) -> dict[str, str]:
        """Return the metadata files of TFDS and datum that are copied: covey may not know all."""
        known, storage, directory = self._layout.features, self._layout.storage, self._layout.path

        def read(names: Iterable[str]) -> dict[str, str]:
            return {each: storage.read(storage.join(directory, each)).decode() for each in names}

        copied: dict[str, str] = {}
        with suppress(CoveyError, UnicodeError):
            described = known if self._layout.kind == "dataset" else None
            if described is not None and not feature_differences(described, features):
                names = [storage.name(each) for each in storage.list(directory)]
                labels = (each for each in names if each.endswith(".labels.txt"))
                copied |= read((FEATURES_FILE, *labels))
        with suppress(CoveyError, UnicodeError):
            if self._has(ENTRIES_FILE):
                datum_features(storage, directory)  # raises if the file is corrupt
                copied |= read((ENTRIES_FILE,))
        return copied


def _find_label(features: Features | None, metadata: IndexMetadata | None) -> str | None:
    """Return the label feature of the index, or a feature with the name of a label."""
    if features is None or (metadata is not None and metadata.label is None):
        return None
    label = None if metadata is None else metadata.label  # "@file": the new files have other names
    is_label = label is not None and label in features and can_be_label(features[label])
    return label if is_label else guess_label(features)


def _add_to(base: Features | None, features: Features, path: str) -> Features:
    """Return features that match the existing splits, too: labels may have more classes."""
    if base is None:
        return features
    merged = add_classes(base, features)
    for each in differences(merged, add_classes(features, base)):
        raise DatasetError(
            f"it is {describe(each.first)} in the existing splits, and {describe(each.second)} in "
            "the repaired dataset",
            path=path,
            feature=each.name,
            remedy="pass another output=",
        )
    return merged


def _read_labels(
    task: ShardTask, first: int, block: Block, classes: Classes, images: ImageSurvey
) -> ShardPart:
    images.add(block)
    return ShardPart(task, first, block, classes.of(block), images)


def _changed(path: str) -> FileChangedError:
    return FileChangedError(
        "the shard was changed while it was repaired", path=path, remedy="repair the dataset again"
    )
