"""covey.build_index: build the index of a dataset and store it beside the shards."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.dataset.layout import Layout, SplitFiles, find_layout
from covey.errors import DatasetError, ExampleError, FeatureError
from covey.index import BY_FILE, GUESS, Index, IndexBuilder, index_names
from covey.index.dali import export_dali
from covey.index.store import FoundIndex
from covey.index.write import write_index
from covey.maintenance.info import find_index_state
from covey.maintenance.report import choose_splits
from covey.results import IndexResult
from covey.untrusted import reports_errors
from covey.urls import AnyPath, parse_path


@reports_errors()
def build_index(
    path: AnyPath | Iterable[AnyPath],
    *,
    split: str | None = None,
    label: str | None = None,
    force: bool = False,
    to_dali: AnyPath | bool = False,
    storage_options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> tuple[IndexResult, ...]:
    """Build the index of a dataset, or of TFRecord files of Examples, beside the shards.

    A fresh index with the requested label is kept. The shards are not changed.

    Args:
        path: Dataset or files, as for :func:`covey.open`.
        split: Name of the split, or several: ``"train+test"`` (default: all).
        label: Label feature, or ``"@file"`` if each file holds one class (default: that of the
            existing index, or a feature with the name of a label).
        force: Rebuild a fresh index.
        to_dali: Write DALI's index files: True for beside the shards, or a directory.
        storage_options: Options of fsspec for a URL: credentials, an endpoint.
        threads: Number of threads (default: the number of CPU cores).
        progress: Show a progress bar (default: if stderr is a terminal).

    >>> with RecordWriter("birds.tfrecord") as writer:
    ...     writer.write(Features({"species": "str"}).encode({"species": "owl"}))
    >>> built, = build_index("birds.tfrecord", label="species")
    >>> built.is_new, len(built.index), built.index.metadata.label_strings
    (True, 1, ('owl',))
    """
    layout = find_layout(path, storage_options=storage_options)
    options = IndexBuilder(threads=threads, progress=progress)
    return tuple(
        _build_split(layout, name, label, options, force, to_dali)
        for name in choose_splits(layout, split)
    )


def _build_split(
    layout: Layout,
    name: str,
    label: str | None,
    options: IndexBuilder,
    force: bool,
    to_dali: AnyPath | bool,
) -> IndexResult:
    started = time.perf_counter()
    split = layout.splits[name]
    state = find_index_state(split)
    index = state.index
    is_new = force
    if index is None or is_new or label not in (None, index.metadata.label):
        is_new = True
        index = _build(layout, split, state, label, options)
        if state.metadata is not None and state.kind != "stale":
            index = replace(index, metadata=replace(index.metadata, parts=state.metadata.parts))
    if is_new or not state.is_beside:
        _store(split, index)
    exported: list[str] = []
    if to_dali is not False:
        directory = None if to_dali is True else parse_path(to_dali, "to_dali")
        exported = export_dali(index, split.files, directory)
    seconds = time.perf_counter() - started
    return IndexResult(name, index, is_new, tuple(exported), _differences(split, index), seconds)


def _build(
    layout: Layout,
    split: SplitFiles,
    state: FoundIndex,
    label: str | None,
    options: IndexBuilder,
) -> Index:
    metadata = state.metadata
    builder = replace(
        options,
        features=layout.features,
        label=GUESS if label is None else label,
        declared_label=layout.label,
    )
    if metadata is not None and metadata.order:  # covey's features have details that TFDS' lack
        order = {} if state.kind == "stale" else metadata.order
        builder = replace(builder, features=metadata.features, order=order)
    if metadata is not None and label in (None, metadata.label) and state.kind != "stale":
        # The features or classes of the old index may not be those of the records.
        with suppress(FeatureError):
            return builder.like(metadata).build(split.files)
    if metadata is not None and label is None and metadata.label in (BY_FILE, *metadata.features):
        # The records may no longer have the old label.
        with suppress(DatasetError, ExampleError, FeatureError):
            return replace(builder, label=metadata.label).build(split.files)
    return builder.build(split.files)


def _store(split: SplitFiles, index: Index) -> None:
    """Write an index beside its shards."""
    storage, directory, names = split.files.storage, split.files.directory, index_names(split.stem)
    written = [names["rows"], names["metadata"]]
    if index.classes is not None:
        written[1:1] = [names["classes"], names["by_class"]]
    if not storage.is_remote:
        try:
            write_index(Path(directory), split.stem, index)
        except OSError as error:
            raise DatasetError(
                f"the index cannot be written ({error.strerror or error})",
                path=directory,
                remedy="covey.open stores an index in its cache instead",
            ) from error
    else:
        with tempfile.TemporaryDirectory(prefix="covey-index-") as local:
            write_index(Path(local), split.stem, index)
            for name in written:  # the metadata last: it has the checksums of the others
                storage.upload(os.path.join(local, name), storage.join(directory, name))
    # An index without a label replaces one with a label.
    storage.remove(
        [storage.join(directory, each) for each in names.values() if each not in written]
    )


def _differences(split: SplitFiles, index: Index) -> tuple[str, ...]:
    counts = zip(index.metadata.shards, split.records or (), strict=False)
    return (
        *(
            f"{shard.name} has {shard.records:,} records, but {expected:,} in the metadata"
            for shard, expected in counts
            if shard.records != expected
        ),
        *(f"{name} is missing" for name in split.missing),
    )
