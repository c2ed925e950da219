"""covey.info: the splits, features, classes, values, duplicates and index of a dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from covey._progress import Progress
from covey.classes import ClassTable
from covey.dataset.layout import Layout, SplitFiles, find_layout
from covey.dataset.open import open_layout
from covey.errors import CoveyError, DatasetError, FeatureError, FormatError
from covey.index import (
    Index,
    IndexBuilder,
    IndexMetadata,
    ShardFiles,
    find_changed,
    read_metadata,
)
from covey.index.scan import find_first_features, open_reader
from covey.index.store import FoundIndex, find_index
from covey.maintenance.report import choose_splits, shown_path
from covey.maintenance.statistics import ContentHashes, ValueSurvey
from covey.results import Duplicates, Info, SplitOverview, ValueSummary
from covey.schema import Features
from covey.schema.merge import unify
from covey.splits import SplitTerm
from covey.untrusted import reports_errors
from covey.urls import AnyPath

MAX_SAMPLE_EXAMPLES = 1000
"""Number of examples of a split whose values are summarized without ``deep=True``."""
# Each is limited in records and bytes.
_MAX_SAMPLE_READS = 4


@reports_errors()
def info(
    path: AnyPath | Iterable[AnyPath],
    *,
    split: str | None = None,
    deep: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Info:
    """Return an overview of a dataset: splits, features, classes, values, duplicates.

    Nothing is written beside the shards. Without ``deep=True``, the first examples of each split
    are read for ``values``, if it has an index: at most 1,000, and at most 256 of a URL.

    Args:
        path: Dataset or files, as for :func:`covey.open`.
        split: Name of the split, or several: ``"train+test"`` (default: all).
        deep: Read all examples: ``values`` are those of all examples, and ``duplicates`` are found
            within and between the splits. Indexes that do not exist are built, as by
            :func:`covey.open`.
        storage_options: Options of fsspec for a URL: credentials, an endpoint.
        progress: Show a progress bar if `deep` (default: if stderr is a terminal).

    Raises:
        CorruptRecordError, ExampleError: If `deep`, and a record is corrupt.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> train, = info("birds").splits
    >>> train.records, train.index, train.classes.counts.tolist(), train.values["song"].maximum
    (3, 'fresh', [2, 1], 1.0)
    >>> info("birds", deep=True).duplicates.conflicts
    1
    """
    layout = find_layout(path, storage_options=storage_options)
    names = choose_splits(layout, split)
    values: dict[str, _Values] = {}
    duplicates = None
    if deep and names:
        values, duplicates = _read_all(layout, names, progress)
    states = {name: find_index_state(layout.splits[name]) for name in names}
    known = [state.metadata.features for state in states.values() if state.metadata is not None]
    features = _common_features(known) if known else layout.features
    is_guess = features is None
    if features is None:
        features = _first_features([layout.splits[name].files for name in names])
    for name, state in states.items():
        if name not in values and state.index is not None:
            values[name] = _read_first(layout, name, state.index)
    splits = tuple(
        _overview(layout, name, state, values.get(name, _Values()))
        for name, state in states.items()
    )
    return Info(shown_path(path), layout.kind, features, is_guess, splits, duplicates)


@dataclass(frozen=True)
class _Values:
    """Values of a split."""

    summaries: Mapping[str, ValueSummary] = field(default_factory=dict)
    examples: int = 0
    error: str = ""


def _read_first(layout: Layout, name: str, index: Index) -> _Values:
    """Summarize the first examples of a split; an error is part of the result."""
    builder = IndexBuilder(progress=False)
    try:
        terms = [SplitTerm(name)]
        with open_layout(layout, terms, builder, indexes={name: index}) as dataset:
            survey = ValueSurvey(dataset.features, dataset.label)
            examples = 0
            reads = 1 if layout.storage.is_remote else _MAX_SAMPLE_READS
            for chunk in itertools.islice(dataset.raw.chunks(), reads):
                ids = chunk[: MAX_SAMPLE_EXAMPLES - examples]
                survey.add(dataset.decode(dataset.features, ids))
                examples += len(ids)
            return _Values(survey.summaries() if examples else {}, examples)
    except (CoveyError, OSError) as error:
        return _Values(error=str(error))


def _read_all(
    layout: Layout, names: Sequence[str], progress: bool | None
) -> tuple[dict[str, _Values], Duplicates | None]:
    """Summarize all examples of splits, and find those of equal content."""
    values: dict[str, _Values] = {}
    contents = ContentHashes()
    known = [layout.splits[name].records for name in names]
    total = None if None in known else sum(sum(each or ()) for each in known)
    builder = IndexBuilder(progress=progress)
    with Progress(progress, total, "reading") as bar:
        for name in names:
            with open_layout(layout, [SplitTerm(name)], builder) as dataset:
                survey = ValueSurvey(dataset.features, dataset.label)
                contents.begin(name, dataset)
                for ids in dataset.raw.chunks():
                    columns = dataset.decode(dataset.features, ids)
                    survey.add(columns)
                    contents.add(columns)
                    bar.add(len(ids), 0)
                values[name] = _Values(survey.summaries() if len(dataset) else {}, len(dataset))
        bar.rename("comparing")
        return values, contents.duplicates()


def _overview(layout: Layout, name: str, state: FoundIndex, values: _Values) -> SplitOverview:
    split = layout.splits[name]
    storage, paths = split.files.storage, split.files.paths
    stats = storage.stat(paths)
    index, metadata = state.index, state.metadata
    records = None if split.records is None else sum(split.records)
    compression = None if metadata is None else metadata.compression
    classes = None
    if index is not None:
        records = len(index)
        if index.classes is not None and index.by_class is not None:
            classes = ClassTable(index.classes, index.by_class, index.metadata.class_names)
    else:
        existing = next((path for path, stat in zip(paths, stats, strict=True) if stat), None)
        if existing is not None:
            with open_reader(storage, existing) as reader:
                compression = reader.compression
    missing = [file for file, stat in zip(split.files.names, stats, strict=True) if stat is None]
    return SplitOverview(
        name=name,
        records=records,
        shards=len(paths),
        missing=(*missing, *split.missing),
        bytes=sum(stat.size for stat in stats if stat is not None),
        compression=compression,
        index=state.kind,
        reason=state.reason,
        label=None if metadata is None else metadata.label,
        classes=classes,
        images={} if index is None else index.metadata.images or {},
        values=values.summaries,
        values_of=values.examples,
        values_error=values.error,
    )


def _common_features(known: Sequence[Features]) -> Features:
    """Return the features of all splits; those of the first one if there are no common ones."""
    try:
        return unify(*known)
    except FeatureError:
        return known[0]


def _first_features(files: list[ShardFiles]) -> Features | None:
    """Return the features of the first record; None if it is not an Example."""
    with suppress(CoveyError, OSError):
        found = (find_first_features(each) for each in files)
        return next((features for features, _ in found if features), None)
    return None


def find_index_state(split: SplitFiles) -> FoundIndex:
    """Find the index of a split, beside the shards or in the cache, and why it is not fresh."""
    files = split.files
    metadata, problem = read_index_metadata(split)
    try:
        found = find_index(files, split.stem)
    except DatasetError as error:  # a shard of a dataset that covey wrote was changed
        return FoundIndex("stale", str(error), metadata=metadata)
    if found.kind == "fresh":
        return found
    if metadata is None:
        return FoundIndex("corrupt" if problem else "missing", problem)
    if tuple(shard.name for shard in metadata.shards) != files.names:
        return FoundIndex("stale", "its shards are not those of the split", metadata=metadata)
    changed = find_changed(files, metadata.shards)
    if changed is not None:
        return FoundIndex("stale", f"{changed.path}: {changed.reason}", metadata=metadata)
    return FoundIndex("corrupt", "its files do not match each other", metadata=metadata)


def read_index_metadata(split: SplitFiles) -> tuple[IndexMetadata | None, str]:
    """Return the metadata of the index beside the shards, or why it cannot be read.

    Raises:
        StorageError: If a URL cannot be read.
    """
    try:
        return read_metadata(split.files.directory, split.stem, split.files.storage), ""
    except FormatError as error:
        return None, str(error)
