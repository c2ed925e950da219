"""Verifying: everything that can be wrong with a dataset, not only the first of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from covey._progress import Progress
from covey._threads import ordered_map
from covey.dataset.layout import Layout
from covey.errors import DatasetError
from covey.index import BY_FILE, IndexMetadata, ShardFiles
from covey.labels import find_label
from covey.maintenance.dataset_files import check_threads, choose_splits, look, named
from covey.maintenance.examples import Examples
from covey.maintenance.indexes import Found, check_classes, find_index, local_index
from covey.maintenance.metadata import check_directory, check_features, check_split
from covey.maintenance.report import Problems
from covey.maintenance.shards import Shard, ShardCheck
from covey.results import Report
from covey.schema import ClassLabel, Feature, Features
from covey.untrusted import reports_errors


@reports_errors
def verify(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    split: str | None = None,
    mmap: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> Report:
    """Check all of a dataset, or of any TFRecord files of Examples, and list all that is wrong.

    Every checksum of every record, every example against the features, every row of the index
    against the records, and what describes the dataset against what is there. Nothing is written.

    Args:
        path: As for :func:`covey.open`.
        split: Only this one, or several of them: ``"train+test"``.
        map_files: Map local files into memory; False reads them, which is slower.
        storage_options: What fsspec needs for a URL: credentials, an endpoint.
        threads: How many work; all CPU cores by default.
        progress: Show how far it is; by default where somebody looks.

    Raises:
        DatasetError: If there is nothing at this path that covey reads, or no such split.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> verify("birds").is_valid
    True
    """
    started = time.perf_counter()
    complete = Problems()
    layout = look(path, storage_options, complete)
    splits = choose_splits(layout, split)
    check_directory(layout, splits, complete, all_splits=split is None)
    with ExitStack() as stack:
        known = [layout.splits[name].records for name in splits]
        total = None if None in known else sum(sum(each or ()) for each in known)
        shown = stack.enter_context(Progress(progress, total, "verifying"))
        jobs = [_Split(layout, name, stack, mmap) for name in splits]
        checked = _check_shards(jobs, check_threads(threads), shown)
        for job, shards in zip(jobs, checked, strict=True):
            job.finish(shards)
        found = [complete, *(each for job in jobs for each in job.problems)]
        read = [shard for shards in checked for shard in shards if shard.size is not None]
        return Report(
            path=named(path),
            directory=next((job.files.directory for job in jobs), layout.path),
            splits=splits,
            files=len(read),
            records=sum(shard.records for shard in read),
            bytes=sum(shard.size or 0 for shard in read),
            problems=tuple(problem for each in found for problem in each.listed),
            unlisted=sum(each.more for each in found),
            seconds=time.perf_counter() - started,
        )


class _Split:
    """One split, while it is checked."""

    def __init__(self, layout: Layout, name: str, stack: ExitStack, mmap: bool) -> None:
        self.name = name
        self._map_files = mmap
        self.files = layout.splits[name].files
        self._layout = layout
        self._of_index = Problems(name)
        self._of_split = Problems(name)
        for absent in layout.splits[name].absent:
            self._of_split.add(absent, "the shard is missing")
        self._shards: list[Shard] = []
        stem = layout.splits[name].stem
        directory = stack.enter_context(local_index(self.files, stem))
        self.index = find_index(directory, stem, self._of_index, mmap=mmap)
        if self.index.about is not None:
            check_features(layout, self.index.about, self.index.names["metadata"], self._of_index)

    def check(self, progress: Any) -> ShardCheck:
        """How its shards are checked."""
        about = self.index.about
        features = known_features(self._layout, self.name, self.index)
        texts = None if about is None else about.label_strings
        label = None if about is None else about.label
        if label not in (None, BY_FILE):
            try:
                label = None if features is None else find_label(features, label)
            except DatasetError as error:
                self._of_index.add(self.index.names["metadata"], str(error))
                label = None
        examples = Examples(features, label, texts)
        return ShardCheck(self.name, self.files, self.index, examples, progress, self._map_files)

    def finish(self, shards: list[Shard]) -> None:
        """All shards were read."""
        split = self._layout.splits[self.name]
        self._shards = shards
        check_split(split, self._layout.kind, shards, self.index.about, self._of_split)
        check_classes(self.index, self._of_split)
        self.index.check_read(self._of_index)

    @property
    def problems(self) -> list[Problems]:
        """All that were found."""
        return [self._of_index, *(shard.problems for shard in self._shards), self._of_split]


def known_features(layout: Layout, split: str, index: Found) -> Features | None:
    """The features that records of a split should fit; None if nothing tells."""
    about = index.about
    if about is None:
        return layout.features
    if layout.features is None or layout.kind != "dataset":
        # Features that were found out are those of the records of then.
        found_out = layout.features is None and not about.order
        if found_out and _has_grown(layout.splits[split].files, about):
            return None
        return about.features
    # The index says more than TFDS can; but a later split may have brought more classes.
    grown: dict[str, Feature] = {}
    for name, kind in about.features.items():
        now = layout.features.get(name)
        if not isinstance(kind, ClassLabel) or not isinstance(now, ClassLabel):
            continue
        # A file that a killed writer left behind may be of other classes.
        if (now.names or ())[: len(kind.names or ())] == (kind.names or ()):
            grown[name] = max((kind, now), key=lambda each: each.num_classes or 0)
    return about.features.replace(grown)


def _has_grown(files: ShardFiles, about: IndexMetadata) -> bool:
    """Whether there are records that an index cannot know of."""
    sizes = {shard.name: shard.bytes for shard in about.shards}
    found = zip(files.names, files.storage.stat(files.paths), strict=True)
    return any(stat is not None and stat.size > sizes.get(name, -1) for name, stat in found)


def _check_shards(jobs: list[_Split], threads: int, shown: Progress) -> list[list[Shard]]:
    """Check the shards of all splits, several at a time."""
    lock = threading.Lock()

    def progress(records: int, size: int) -> None:
        with lock:
            shown.add(records, size)

    with ThreadPoolExecutor(threads, thread_name_prefix="covey-verify") as pool:
        # Shards side by side if they are enough for all threads, else the blocks of each.
        count = sum(len(job.files.names) for job in jobs)
        several = count >= threads
        inner = None if several or threads == 1 else pool
        tasks = []
        for job in jobs:
            check = job.check(progress)
            tasks += [partial(check, name, inner) for name in job.files.names]
        found = ordered_map(tasks, pool if several else None, threads)
        return [[next(found) for _ in job.files.names] for job in jobs]
