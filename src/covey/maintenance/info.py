"""What a dataset holds, without reading it: features, splits, sizes, classes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from covey import _core
from covey.classes import ClassTable
from covey.dataset.layout import Layout, find_layout
from covey.errors import CoveyError
from covey.index import ShardFiles
from covey.index.build import open_reader
from covey.maintenance.dataset_files import choose_splits, named
from covey.maintenance.index_state import State, find_state
from covey.maintenance.shard_reader import find_compression
from covey.results import Info, SplitOverview
from covey.schema import Features
from covey.schema.survey import survey_block, survey_kinds
from covey.untrusted import reports_errors


@reports_errors
def info(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Info:
    """Say what a dataset holds, as far as its index and its descriptions tell.

    Nothing is written, and no record is read, unless nothing else tells the features: then one is.

    Args:
        path: As for :func:`covey.open`.
        split: Only this one, or several of them: ``"train+test"``.
        storage_options: What fsspec needs for a URL: credentials, an endpoint.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> _ = write(birds, "birds", split="train", label="species", progress=False)
    >>> train, = info("birds").splits
    >>> train.records, train.index, train.classes.counts.tolist()
    (3, 'fresh', [2, 1])
    """
    layout = find_layout(path, storage_options=storage_options)
    names = choose_splits(layout, split)
    states = {name: find_state(layout.splits[name]) for name in names}
    known = [state.about.features for state in states.values() if state.about is not None]
    features = known[0] if known else layout.features
    is_guess = features is None
    if features is None:
        features = _first_features([layout.splits[name].files for name in names])
    splits = tuple(_overview(layout, name, state) for name, state in states.items())
    return Info(named(path), layout.kind, features, is_guess, splits)


def _overview(layout: Layout, name: str, state: State) -> SplitOverview:
    split = layout.splits[name]
    storage, paths = split.files.storage, split.files.paths
    stats = dict(zip(paths, storage.stat(paths), strict=True))
    there = [path for path in paths if stats[path] is not None]
    index, about = state.index, state.about
    records = sum(split.records) if split.records is not None else None
    if index is not None:
        records = len(index)
    compression = None if about is None else about.compression
    if index is None and there:
        compression = find_compression(storage, there[0])
    classes = None
    if index is not None and index.classes is not None and index.by_class is not None:
        classes = ClassTable(index.classes, index.by_class, index.metadata.class_names)
    return SplitOverview(
        name=name,
        records=records,
        shards=len(paths),
        missing=(
            *(
                name
                for name, path in zip(split.files.names, paths, strict=True)
                if path not in there
            ),
            *split.absent,
        ),
        bytes=sum(stat.size for stat in stats.values() if stat is not None),
        compression=compression,
        index=state.kind,
        reason=state.why,
        label=None if about is None else about.label,
        classes=classes,
    )


def _first_features(files: list[ShardFiles]) -> Features | None:
    """The features of the first record, if it is an Example."""
    try:
        for each in files:
            for path in each.paths:
                with open_reader(each.storage, path) as reader:
                    for block in reader.blocks():
                        survey = _core.Survey()
                        survey_block(survey, block[:1])
                        return Features(survey_kinds([survey]))
    except (CoveyError, OSError):
        return None
    return None


def histogram(counts: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, int, int]]:
    """Sizes of classes in up to twelve bins: (the smallest, the largest, how many classes).

    One for each size if they are few; else all equally wide; or if some classes are much larger
    than others, each wider than the one before.

    >>> histogram(np.array([3, 3, 4]))
    [(3, 3, 2), (4, 4, 1)]
    >>> histogram(np.array([1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377]))[-1]
    (200, 499, 2)
    """
    sizes, many = np.unique(counts, return_counts=True)
    if not len(sizes):
        return []
    low, high = int(sizes[0]), int(sizes[-1])
    if len(sizes) <= _MOST_BINS:
        bins = [(size, size) for size in sizes.tolist()]
    elif high >= 8 * max(1, low):
        bins = _growing_bins(low, high)
    else:
        step = _nice_step(-(-(high - low + 1) // _MOST_BINS))
        begins = range(low // step * step, high + 1, step)
        bins = [(begin, begin + step - 1) for begin in begins]
    found = []
    for begin, end in bins:
        inside = (sizes >= begin) & (sizes <= end)
        found.append((begin, end, int(many[inside].sum())))
    return found


_MOST_BINS = 12


def _nice_step(least: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that is not a smaller.

    >>> [_nice_step(least) for least in (1, 3, 11, 50)]
    [1, 5, 20, 50]
    """
    scale = 1
    while True:
        for first in (1, 2, 5):
            if first * scale >= least:
                return first * scale
        scale *= 10


def _growing_bins(low: int, high: int) -> list[tuple[int, int]]:
    """Bins that begin at 1, 2, 5, 10, 20, ...; or at 1, 10, 100, ... if these are too many."""
    for firsts in ((1, 2, 5), (1,)):
        begins = [first * 10**power for power in range(19) for first in firsts]
        used = [
            (begin, following - 1)
            for begin, following in itertools.pairwise(begins)
            if following > low and begin <= high
        ]
        if len(used) <= _MOST_BINS:
            break
    return used
