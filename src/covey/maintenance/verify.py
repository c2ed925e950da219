"""covey.verify: compare all records, the index and the metadata of a dataset."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial
from typing import Any

from covey._progress import Progress
from covey.compat.datum_schema import datum_features, datum_splits
from covey.dataset.layout import Layout, SplitFiles
from covey.errors import CoveyError, DatasetError, FormatError
from covey.filenames import (
    ENTRIES_FILE,
    FEATURES_FILE,
    INFO_FILE,
    SHARD_INFO_FILE,
    has_token,
    parse_version_file,
    record_file_stem,
)
from covey.index import BY_FILE, IndexMetadata, ShardFiles
from covey.index.scan import scan_shards
from covey.labels import find_label
from covey.maintenance.check import (
    CheckedShard,
    ExampleCheck,
    IndexCheck,
    check_shard,
    compare_features,
)
from covey.maintenance.report import (
    Problems,
    choose_splits,
    find_readable_layout,
    reason_of,
    shown_path,
    thread_count,
)
from covey.results import Report
from covey.schema import Features
from covey.schema.merge import add_classes
from covey.untrusted import reports_errors
from covey.urls import AnyPath


@reports_errors()
def verify(
    path: AnyPath | Iterable[AnyPath],
    *,
    split: str | None = None,
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
    count = thread_count(threads)
    problems = Problems()
    layout = find_readable_layout(path, storage_options, problems)
    names = choose_splits(layout, split)
    _compare_directory(layout, names, problems, all_splits=split is None)
    with ExitStack() as stack:
        known = [layout.splits[name].records for name in names]
        total = None if None in known else sum(sum(each or ()) for each in known)
        bar = stack.enter_context(Progress(progress, total, "verifying"))
        splits = [_SplitCheck(layout, name, stack, bar.add) for name in names]
        scans = [scan for each in splits for scan in each.scans()]
        scanned = iter(scan_shards(scans, count))
        for each in splits:
            each.finish([next(scanned) for _ in each.files.names])
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


class _SplitCheck:
    """The verification of one split."""

    def __init__(
        self,
        layout: Layout,
        name: str,
        stack: ExitStack,
        progress: Callable[[int, int], None],
    ) -> None:
        self._layout = layout
        self._split = layout.splits[name]
        self.files = self._split.files
        self.shards: list[CheckedShard] = []
        self._index_problems = Problems(name)
        self._split_problems = Problems(name)
        for absent in self._split.missing:
            self._split_problems.add(absent, "the shard is missing")
        self._index = IndexCheck(self.files, self._split.stem, self._index_problems, stack)
        metadata, file = self._index.metadata, self._index.names["metadata"]
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
        self._check = partial(check_shard, self._split, name, examples=examples, progress=progress)

    def scans(self) -> list[Callable[[Executor | None], CheckedShard]]:
        """Return a function for each shard that scans it and compares it with the index."""
        return [partial(self._scan, number) for number in range(len(self.files.names))]

    def _scan(self, number: int, executor: Executor | None) -> CheckedShard:
        shard = self._check(number, executor=executor)
        self._index.compare_shard(shard)
        shard.scan, shard.surveys, shard.strings = None, [], set()  # they take memory
        return shard

    def finish(self, shards: list[CheckedShard]) -> None:
        """Compare all shards with the metadata."""
        self.shards = shards
        metadata = self._index.metadata
        _compare_split(self._split, self._layout.kind, shards, metadata, self._split_problems)
        self._index.compare_classes(self._index_problems)

    @property
    def problems(self) -> list[Problems]:
        """Problems of the index, of each shard, and of the split."""
        shards = [shard.problems for shard in self.shards]
        return [self._index_problems, *shards, self._split_problems]


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
    return add_classes(metadata.features, layout.features)


def _has_grown(files: ShardFiles, metadata: IndexMetadata) -> bool:
    """Return whether there are records that are not in the index."""
    sizes = {shard.name: shard.bytes for shard in metadata.shards}
    stats = zip(files.names, files.storage.stat(files.paths), strict=True)
    return any(stat is not None and stat.size > sizes.get(name, -1) for name, stat in stats)


def _compare_directory(
    layout: Layout, splits: Sequence[str], problems: Problems, *, all_splits: bool
) -> None:
    """Compare the metadata files of a dataset with each other and with the files that exist.

    Args:
        layout: The dataset.
        splits: Splits that are verified.
        problems: List to which problems are added.
        all_splits: Whether shards of other splits are compared too.
    """
    if layout.kind != "dataset":
        return
    names = [layout.storage.name(each) for each in layout.storage.list(layout.path)]
    if FEATURES_FILE not in names:
        problems.add(FEATURES_FILE, "the file is missing; TFDS cannot open the dataset")
    if SHARD_INFO_FILE in names:
        _compare_shard_info(layout, splits, problems)
    if ENTRIES_FILE in names:
        try:
            datum_features(layout.storage, layout.path)
        except CoveyError as error:
            problems.add(ENTRIES_FILE, reason_of(error))
    listed = {name for split in layout.splits.values() for name in split.files.names}
    info = layout.info
    stems = {layout.splits[split].stem for split in splits}
    replaced = [] if info is None else [each.name for each in info.splits if each.token]
    for name in names:
        is_old = info is not None and any(
            parse_version_file(name, info.name, split)[0] for split in replaced
        )
        if has_token(name) or is_old:
            continue  # of a version that was replaced or not committed
        stem = record_file_stem(name)
        if stem and (all_splits or stem in stems) and name not in listed:
            problems.add(name, f"the file is named like a shard, but {INFO_FILE} does not list it")


def _compare_shard_info(layout: Layout, splits: Sequence[str], problems: Problems) -> None:
    """Compare the list of shards for datum with that for TFDS."""
    try:
        found = datum_splits(layout.storage, layout.path) or {}
    except FormatError as error:
        problems.add(SHARD_INFO_FILE, reason_of(error))
        return

    def shown(count: int | None) -> str:
        return "no entry" if count is None else f"{count:,} records"

    for name in splits:
        split = layout.splits[name]
        if name not in found or split.records is None:
            continue
        expected = dict(zip(split.files.names, split.records, strict=True))
        for shard in dict.fromkeys((*expected, *found[name])):
            counts = found[name].get(shard), expected.get(shard)
            if counts[0] != counts[1]:
                problems.add(
                    SHARD_INFO_FILE,
                    f"split {name!r}: {shard} has {shown(counts[0])}, but {shown(counts[1])} in "
                    f"{INFO_FILE}",
                )


def _compare_split(
    split: SplitFiles,
    kind: str,
    shards: Sequence[CheckedShard],
    metadata: IndexMetadata | None,
    problems: Problems,
) -> None:
    """Compare the metadata of a split, and the shards of its index, with the shards."""
    file = SHARD_INFO_FILE if kind == "datum" else INFO_FILE
    for shard, expected in zip(shards, split.records or (), strict=False):
        found = shard.records + shard.corrupt
        if shard.stat is not None and found != expected:
            among = f", {shard.corrupt:,} of them corrupt" if shard.corrupt else ""
            problems.add(
                shard.name, f"the shard has {found:,} records{among}, but {expected:,} in {file}"
            )
    complete = all(shard.stat is not None and not shard.corrupt for shard in shards)
    size = sum(shard.stat.size for shard in shards if shard.stat is not None)
    data = sum(shard.data_bytes for shard in shards)
    # covey stores the size of the files, TFDS that of the records without frames, or 0.
    if complete and split.bytes and split.bytes not in (size, data):
        problems.add(
            file,
            f"the size is {split.bytes:,} bytes, but the shards have {size:,}, and their records "
            f"{data:,}",
        )
    if metadata is not None:
        indexed = {shard.name for shard in metadata.shards}
        for shard_info in metadata.shards:
            if shard_info.name not in split.files.names:
                problems.add(shard_info.name, "the shard is in the index, but not in the split")
        for shard in shards:
            if shard.name not in indexed and shard.stat is not None:
                problems.add(shard.name, "the shard is not in the index")
