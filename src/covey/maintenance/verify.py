"""covey.verify: compare all records, the index and the metadata of a dataset."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from covey._progress import Progress
from covey._threads import ordered_map
from covey.dataset.layout import Layout
from covey.errors import DatasetError
from covey.index import BY_FILE, IndexMetadata, ShardFiles
from covey.labels import find_label
from covey.maintenance.compare import (
    compare_classes,
    compare_directory,
    compare_features,
    compare_shard,
    compare_split,
    open_index,
)
from covey.maintenance.report import (
    Problems,
    choose_splits,
    find_readable_layout,
    reason_of,
    shown_path,
    thread_count,
)
from covey.maintenance.scan import ExampleCheck, ScannedShard, ShardScanner
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
    """Verify a dataset, or TFRecord files of Examples, and report all problems.

    The checksums of every record are verified, every example is compared with the features, the
    index is rebuilt and compared, and the metadata is compared with the files. Nothing is written.

    Args:
        path: Dataset or files, as for :func:`covey.open`.
        split: Name of the split to verify, or several: ``"train+test"`` (default: all).
        mmap: Map local files into memory; False reads them, which is slower.
        storage_options: Options of fsspec for a URL: credentials, an endpoint.
        threads: Number of threads (default: the number of CPU cores).
        progress: Show a progress bar (default: if stderr is a terminal).

    Raises:
        DatasetError: If there is no dataset and no TFRecord file, or no such split.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> verify("birds").is_valid
    True
    """
    started = time.perf_counter()
    problems = Problems()
    layout = find_readable_layout(path, storage_options, problems)
    names = choose_splits(layout, split)
    compare_directory(layout, names, problems, all_splits=split is None)
    with ExitStack() as stack:
        known = [layout.splits[name].records for name in names]
        total = None if None in known else sum(sum(each or ()) for each in known)
        bar = stack.enter_context(Progress(progress, total, "verifying"))
        splits = [_SplitCheck(layout, name, stack, locked_progress(bar), mmap) for name in names]
        _scan(splits, thread_count(threads))
        for each in splits:
            each.finish()
        found = [problems, *(part for each in splits for part in each.problems)]
        shards = [shard for each in splits for shard in each.shards if shard.stat is not None]
        return Report(
            path=shown_path(path),
            directory=next((each.files.directory for each in splits), layout.path),
            splits=names,
            files=len(shards),
            records=sum(shard.records for shard in shards),
            bytes=sum(shard.stat.size for shard in shards if shard.stat is not None),
            problems=tuple(problem for each in found for problem in each.listed),
            unlisted=sum(each.unlisted for each in found),
            seconds=time.perf_counter() - started,
        )


def locked_progress(bar: Progress) -> Callable[[int, int], None]:
    """Return a function that adds to a progress bar from several threads."""
    lock = threading.Lock()

    def add(records: int, size: int) -> None:
        with lock:
            bar.add(records, size)

    return add


class _SplitCheck:
    """The verification of one split."""

    def __init__(
        self,
        layout: Layout,
        name: str,
        stack: ExitStack,
        progress: Callable[[int, int], None],
        mmap: bool,
    ) -> None:
        self._layout = layout
        self._split = layout.splits[name]
        self.files = self._split.files
        self.shards: list[ScannedShard] = []
        self._index_problems = Problems(name)
        self._split_problems = Problems(name)
        for absent in self._split.absent:
            self._split_problems.add(absent, "the shard is missing")
        self._index = stack.enter_context(
            open_index(self.files, self._split.stem, self._index_problems, mmap=mmap)
        )
        metadata, file = self._index.metadata, self._index.names["about"]
        if metadata is not None:
            compare_features(layout, metadata, file, self._index_problems)
        features = expected_features(layout, name, metadata)
        label = None if metadata is None else metadata.label
        if label not in (None, BY_FILE):
            try:
                label = None if features is None else find_label(features, label)
            except DatasetError as error:
                self._index_problems.add(file, reason_of(error))
                label = None
        names = None if metadata is None else metadata.label_strings
        examples = ExampleCheck(features, label, names)
        self._scanner = ShardScanner(
            name, self.files, examples, progress, self._split.records, mmap
        )

    def check_shard(self, number: int, executor: Executor | None) -> ScannedShard:
        """Scan a shard, and compare it with the index."""
        shard = self._scanner.scan(number, executor, by_member=self._index.by_member)
        compare_shard(self._index, shard)
        shard.rows = None  # it takes memory
        return shard

    def finish(self) -> None:
        """Compare all shards with the metadata."""
        metadata = self._index.metadata
        compare_split(self._split, self._layout.kind, self.shards, metadata, self._split_problems)
        compare_classes(self._index, self._split_problems)
        self._index.check_read(self._index_problems)

    @property
    def problems(self) -> list[Problems]:
        """Problems of the index, of each shard, and of the split."""
        shards = [shard.problems for shard in self.shards]
        return [self._index_problems, *shards, self._split_problems]


def _scan(splits: list[_SplitCheck], threads: int) -> None:
    """Check the shards of all splits."""
    with ThreadPoolExecutor(threads, thread_name_prefix="covey-verify") as pool:
        # Shards in parallel if there are at least as many as threads, else the blocks of a shard.
        parallel = sum(len(each.files.names) for each in splits) >= threads
        blocks = None if parallel or threads == 1 else pool
        tasks = [
            partial(each.check_shard, number, blocks)
            for each in splits
            for number in range(len(each.files.names))
        ]
        found = ordered_map(tasks, pool if parallel else None, threads)
        for each in splits:
            each.shards = [next(found) for _ in each.files.names]


def expected_features(
    layout: Layout, split: str, metadata: IndexMetadata | None
) -> Features | None:
    """Return the features that the records of a split must match; None if they are unknown.

    Args:
        layout: The dataset.
        split: Name of the split.
        metadata: Metadata of the index, if there is an index.
    """
    if metadata is None:
        return layout.features
    if layout.features is None or layout.kind != "dataset":
        # Inferred features need not match records that were added later.
        inferred = layout.features is None and not metadata.order
        if inferred and _has_grown(layout.splits[split].files, metadata):
            return None
        return metadata.features
    # The index has details that TFDS' files lack, but a later split may have added classes.
    grown: dict[str, Feature] = {}
    for name, feature in metadata.features.items():
        other = layout.features.get(name)
        if isinstance(feature, ClassLabel) and isinstance(other, ClassLabel):
            # A killed writer may have left a file with other classes.
            names = feature.names or ()
            if (other.names or ())[: len(names)] == names:
                grown[name] = max((feature, other), key=lambda each: each.num_classes or 0)
    return metadata.features.replace(grown)


def _has_grown(files: ShardFiles, metadata: IndexMetadata) -> bool:
    """Return whether there are records that are not in the index."""
    sizes = {shard.name: shard.bytes for shard in metadata.shards}
    stats = zip(files.names, files.storage.stat(files.paths), strict=True)
    return any(stat is not None and stat.size > sizes.get(name, -1) for name, stat in stats)
