"""Repairing: all that is valid of a dataset, as a new one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from covey._progress import Progress
from covey.dataset.layout import ALL, Layout, find_layout
from covey.dataset_info import check_split_name
from covey.errors import CoveyError, DatasetError, FeatureError
from covey.maintenance.dataset_files import check_threads, choose_splits, look, named
from covey.maintenance.repair_split import Mode, SplitRepair
from covey.maintenance.report import Problems
from covey.results import Problem, RepairResult
from covey.schema import Features
from covey.schema.merge import unify
from covey.schema.survey import survey_kinds
from covey.storage import is_remote, open_storage
from covey.untrusted import reports_errors
from covey.urls import shown
from covey.writing.recovery import clean_up
from covey.writing.target import TargetSplit


@reports_errors
def repair(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    features: Features | Mapping[str, Any] | None = None,
    mode: Mode = "error",
    mmap: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> RepairResult:
    """Copy all that is valid of a dataset, or of any TFRecord files, into a new dataset.

    Without ``output``, no record is looked at: writes of the dataset that were interrupted are
    completed or undone, and files of old versions are deleted.

    Records are copied as they are, in their order, into shards that end where they did; corrupt
    ones, and those that are no Examples or do not fit the features, are left out. The old dataset
    is not changed.

    Args:
        path: As for :func:`covey.open`.
        output: The directory of the new dataset, or a URL; None to clean up the dataset in place.
        split: Only this one, or several of them: ``"train+test"``.
        features: What records must fit; by default those of the dataset, or what fits all Examples.
        mode: ``"overwrite"`` replaces splits that are in ``output`` already.
        map_files: Map local files into memory; False reads them, which is slower.
        storage_options: What fsspec needs for a URL: credentials, an endpoint.
        threads: How many work; all CPU cores by default.
        progress: Show how far it is; by default where somebody looks.

    Raises:
        DatasetError: If nothing can be saved, or ``output`` is in the way.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> import pathlib
    >>> shard = pathlib.Path("birds/birds-train.tfrecord-00000-of-00001")
    >>> data = shard.read_bytes()
    >>> _ = shard.write_bytes(data[:20] + b"?" + data[21:])
    >>> mended = repair("birds", "mended")
    >>> mended.records, [problem.record for problem in mended.lost]
    (2, [0])
    """
    started = time.perf_counter()
    if mode not in ("error", "overwrite"):
        raise DatasetError(option="mode", found=mode, allowed="'error' or 'overwrite'")
    if output is None:
        if not isinstance(path, (str, os.PathLike)):
            raise DatasetError("output is None; must be a directory or URL for a list of files")
        deleted = clean_up(_find_dataset(os.fsdecode(path), storage_options), storage_options)
        seconds = time.perf_counter() - started
        return RepairResult(named(path), named(path), (), (), seconds, tuple(deleted))
    layout = look(path, storage_options, Problems())
    target = os.fsdecode(output)
    splits = {name: _target_split(name) for name in choose_splits(layout, split)}
    _check_target(layout, target, list(splits.values()), mode)
    count = check_threads(threads)
    declared = None if features is None else Features(features)
    with ExitStack() as stack:
        bar = stack.enter_context(Progress(progress, None, "reading"))
        jobs = [SplitRepair(layout, name, declared, stack, bar, count, mmap) for name in splits]
        common = _common(jobs, layout.path)
        for job in jobs:
            job.settle(common)
        lost = (
            *(each for job in jobs for shard in job.shards for each in shard.lost),
            *(
                Problem(absent, None, None, "the shard is missing", name)
                for name in splits
                for absent in layout.splits[name].absent
            ),
        )
        jobs = [job for job in jobs if job.records]
        if not jobs:
            reason = "; if there are shards that its description does not list, give them instead"
            if lost:
                reason = f"; the first: {lost[0].file}: {lost[0].reason}"
            raise DatasetError(f"there is no valid record to save{reason}", path=layout.path)
        written = [
            job.write(target, splits[job.name], mode, storage_options, common) for job in jobs
        ]
    seconds = time.perf_counter() - started
    return RepairResult(named(path), named(target), tuple(written), lost, seconds)


def _find_dataset(path: str, options: Mapping[str, Any] | None) -> str:
    """The directory of a dataset, which may be a version in this one; the path itself if none."""
    try:
        layout = find_layout(path, storage_options=options)
    except (CoveyError, OSError):
        return path
    return layout.storage.address(layout.path) if layout.kind == "dataset" else path


def _target_split(name: str) -> str:
    """What a split is called in the new dataset: files whose names tell none are for training."""
    name = "train" if name == ALL else name
    check_split_name(name)
    return name


def _check_target(layout: Layout, target: str, splits: list[str], mode: Mode) -> None:
    """Find out beforehand what would be in the way in the end."""
    storage = open_storage(target) if not is_remote(target) else None
    directories = {layout.path, *(split.files.directory for split in layout.splits.values())}
    for directory in directories:
        here, there = shown(target).rstrip("/"), directory.rstrip("/")
        if storage is not None and not layout.storage.is_remote:
            here, there = os.path.realpath(target), os.path.realpath(directory)
        if here == there:
            raise DatasetError(
                "this is what is to be repaired, and stays as it is; give another directory",
                path=shown(target),
            )
        if directory == layout.path and here.startswith((f"{there}/", f"{there}{os.sep}")):
            raise DatasetError(
                "it is in what is to be repaired, and would be found when that is opened; "
                "give another directory",
                path=shown(target),
            )
    for split in splits if storage is not None else ():
        try:
            TargetSplit.look(Path(os.path.abspath(target)), split, mode, None)
        except NotADirectoryError:
            raise DatasetError("it is a file; must be a directory", path=shown(target)) from None


def _common(jobs: list[SplitRepair], where: str) -> Features:
    """The features that fit all splits."""
    known = [job.features for job in jobs if job.features is not None]
    surveys = [
        survey
        for job in jobs
        if job.features is None
        for shard in job.shards
        for survey in shard.surveys
    ]
    try:
        if surveys:
            known.append(Features(survey_kinds(surveys)))
        return unify(*known) if known else Features({})
    except FeatureError as error:
        raise DatasetError(
            f"no features fit all records: {error}; pass features=", path=where
        ) from None
