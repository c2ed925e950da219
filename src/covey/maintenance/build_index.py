"""Making indexes: beside the shards, wherever these are."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.dataset.layout import Layout, SplitFiles, find_layout
from covey.errors import DatasetError, ExampleError, FeatureError
from covey.index import BY_FILE, GUESS, Index, Indexing, index_names, write_index
from covey.index.dali import DaliIndexing, export_dali
from covey.maintenance.dataset_files import choose_splits
from covey.maintenance.index_state import State, find_state
from covey.results import IndexResult
from covey.untrusted import reports_errors


@reports_errors
def build_index(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    split: str | None = None,
    label: str | None = None,
    force: bool = False,
    from_dali: str | bool = False,
    to_dali: str | bool = False,
    mmap: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> tuple[IndexResult, ...]:
    """Make the index of a dataset, or of any TFRecord files of Examples, beside the shards.

    One that is there, is of these shards as they are now, and has the label that is asked for, is
    left as it is. The shards are not changed.

    Args:
        path: As for :func:`covey.open`.
        split: Only this one, or several of them: ``"train+test"``.
        label: The feature that tells the class, or ``"@file"`` if each file holds one class. By
            default that of the old index, or a feature that is called so.
        force: Make it again in any case.
        from_dali: Make it of DALI's index files: those beside the shards, or in this directory.
        to_dali: Write DALI's index files, beside the shards or into this directory.
        map_files: Map local shards into memory; False reads them, which is slower.
        storage_options: What fsspec needs for a URL: credentials, an endpoint.
        threads: How many work; all CPU cores by default.
        progress: Show how far it is; by default where somebody looks.

    >>> with RecordWriter("birds.tfrecord") as writer:
    ...     writer.write(Features({"species": "str"}).encode({"species": "owl"}))
    >>> made, = make_index("birds.tfrecord", label="species")
    >>> made.is_new, len(made.index), made.index.metadata.label_strings
    (True, 1, ('owl',))
    """
    layout = find_layout(path, storage_options=storage_options)
    common = Indexing(mmap=mmap, threads=threads, progress=progress)
    return tuple(
        _make(layout, name, label, common, force, from_dali, to_dali)
        for name in choose_splits(layout, split)
    )


def _make(
    layout: Layout,
    name: str,
    label: str | None,
    common: Indexing,
    force: bool,
    from_dali: str | bool,
    to_dali: str | bool,
) -> IndexResult:
    started = time.perf_counter()
    split = layout.splits[name]
    state = find_state(split)
    index = state.index
    is_new = force or from_dali is not False
    if index is None or is_new or label not in (None, index.metadata.label):
        is_new = True
        index = _build(layout, split, state, label, common, from_dali)
    if is_new or not state.beside:  # a fresh one may lie in the cache only
        _put(split, index)
    exported: list[str] = []
    if to_dali is not False:
        exported = export_dali(index, split.files, to_dali if isinstance(to_dali, str) else None)
    seconds = time.perf_counter() - started
    return IndexResult(name, index, is_new, tuple(exported), _differences(split, index), seconds)


def _build(
    layout: Layout,
    split: SplitFiles,
    state: State,
    label: str | None,
    common: Indexing,
    from_dali: str | bool,
) -> Index:
    about = state.about
    indexing = replace(common, features=layout.features, label=GUESS if label is None else label)
    if about is not None and about.order:  # covey's own: its features say more than those of TFDS
        order = {} if state.kind == "stale" else about.order
        indexing = replace(indexing, features=about.features, order=order)
    if from_dali is not False:
        directory = from_dali if isinstance(from_dali, str) else None
        indexing = DaliIndexing(
            indexing.features,
            indexing.label,
            order=indexing.order,
            mmap=common.mmap,
            threads=common.threads,
            progress=common.progress,
            directory=directory,
        )
    if about is not None and label in (None, about.label) and state.kind != "stale":
        # Unless its features, or classes, are not those of the records.
        with contextlib.suppress(FeatureError):
            return indexing.like(about).build(split.files)
    if about is not None and label is None and about.label in (BY_FILE, *about.features):
        # Unless the records have no such label any more.
        with contextlib.suppress(DatasetError, ExampleError, FeatureError):
            return replace(indexing, label=about.label).build(split.files)
    return indexing.build(split.files)


def _put(split: SplitFiles, index: Index) -> None:
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
                f"the index cannot be written there ({error.strerror or error}); "
                "covey.open keeps one in its cache by itself",
                path=directory,
            ) from error
    else:
        with tempfile.TemporaryDirectory(prefix="covey-index-") as local:
            write_index(Path(local), split.stem, index)
            for name in written:  # the description last: it has the checksums of the others
                storage.upload(os.path.join(local, name), storage.join(directory, name))
    # Of an index that had a label.
    left = [storage.join(directory, name) for name in names.values() if name not in written]
    storage.remove(left)


def _differences(split: SplitFiles, index: Index) -> tuple[str, ...]:
    found = zip(index.metadata.shards, split.records or (), strict=False)
    return (
        *(
            f"{shard.name} has {shard.records:,} records, but the dataset says {said:,}"
            for shard, said in found
            if shard.records != said
        ),
        *(f"{name} is missing" for name in split.absent),
    )
