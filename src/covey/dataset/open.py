"""`covey.open`: find the layout, find or build the indexes, select the records."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey.classes import Labels, check_labels, renumber
from covey.dataset.combine import number_classes, stored_label
from covey.dataset.dataset import Dataset
from covey.dataset.layout import Layout, SplitFiles, find_layout
from covey.errors import (
    CoveyError,
    DatasetError,
    FeatureError,
    SkippedRecordsWarning,
    check,
    list_names,
)
from covey.index import GUESS, Index, IndexBuilder, IndexMetadata, find_or_build_index
from covey.labels import merge_names
from covey.reading import Gatherer, Table
from covey.schema import ClassLabel, Features
from covey.splits import Selection, SplitTerm, parse_split, resolve_split
from covey.untrusted import reports_errors
from covey.urls import AnyPath

if TYPE_CHECKING:
    from covey.tfrecord.scan import OnError

# Missing shards that a message lists.
_MAX_LISTED = 5


@reports_errors()
def open(  # noqa: A001 - like gzip.open
    path: AnyPath | Iterable[AnyPath],
    *,
    split: str | None = None,
    label: str | Callable[[Mapping[str, Any]], int | str] | None = None,
    labels: Labels | None = None,
    features: Features | Mapping[str, Any] | None = None,
    decode_images: bool = False,
    max_pixels: int | None = None,
    verify: bool = True,
    mmap: bool = True,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    cache_bytes: int | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> Dataset:
    """Open a dataset, or any TFRecord files of Examples, for random access.

    The index is read from beside the shards, or from the cache. If neither has an index that
    matches the shards, all records are scanned once, and the new index is stored in the cache.
    Nothing is written to the directory of the dataset.

    Args:
        path: The directory of a dataset that covey, TFDS or datum wrote; or a directory, a glob
            pattern or a list of TFRecord files, or one file. Local paths or URLs that fsspec
            supports.
        split: The records to open: ``"train"``, ``"train[:80%]"``, ``"train[10000:]"``,
            ``"train+test"``. Optional if there is only one split.
        label: The label feature (a ClassLabel, an integer or a string), a function of the example,
            or ``"@file"`` if each file holds one class. By default the label of the index, or a
            feature with a common name such as ``"label"``.
        labels: ``"contiguous"`` numbers the classes of the opened records from 0 on, in the order
            of their class ids; by default their ids are those of the dataset, which may have other
            classes too.
        features: The features to decode records with; by default those of the dataset, or those
            inferred from its records.
        decode_images: Return images as pixels, not as encoded bytes. JPEG and PNG are decoded
            natively, other formats by Pillow.
        max_pixels: The maximum number of pixels (height x width) of an image to decode, 64 million
            by default; it applies to the loaders of the dataset too. A larger image raises an error
            with its record before it is decoded.
        verify: Verify the checksums of the records that are read.
        mmap: Map local files into memory; False reads them, which is slower.
        on_error: ``"skip"`` scans all records, even if there is an index, and skips the corrupt
            ones; ``ds.skipped`` lists them.
        storage_options: The fsspec options for a URL, such as credentials or an endpoint.
        cache_bytes: The limit of the disk cache for remote or decompressed shards; see
            docs/remote.md.
        threads: The number of indexing threads; by default the number of CPU cores.
        progress: Show a progress bar while indexing (default: if stderr is a terminal).

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> _ = write(birds, "birds", split="train", label="species", shuffle=False, progress=False)
    >>> ds = open("birds", split="train")
    >>> len(ds), dict(ds.class_names), ds.classes.counts.tolist()
    (3, {0: 'owl', 1: 'wren'}, [2, 1])
    """
    check("on_error", on_error, on_error in ("raise", "skip"), ("raise", "skip"))
    check_labels(labels)
    builder = IndexBuilder(
        declared=None if features is None else Features(features),
        label=GUESS if label is None else label,
        on_error=on_error,
        mmap=mmap,
        threads=threads,
        progress=progress,
    )
    for is_last in (False, True):
        layout = find_layout(path, storage_options=storage_options, cache_bytes=cache_bytes)
        try:
            terms = parse_split(_only_split(layout, split), layout.splits, layout.path)
            dataset = open_layout(
                layout,
                terms,
                builder,
                decode_images=decode_images,
                max_pixels=max_pixels,
                verify=verify,
                cache_bytes=cache_bytes,
            )
            return dataset if labels is None else number_classes(dataset)
        except (CoveyError, OSError):
            if is_last or not layout.is_replaced():
                raise
    raise AssertionError


def open_layout(
    layout: Layout,
    terms: Sequence[SplitTerm],
    builder: IndexBuilder,
    *,
    indexes: Mapping[str, Index] | None = None,
    decode_images: bool = False,
    max_pixels: int | None = None,
    verify: bool = True,
    cache_bytes: int | None = None,
) -> Dataset:
    """Open splits, or slices of splits, of a layout.

    Args:
        layout: The layout.
        terms: The slices, in order.
        builder: The builder of indexes that do not exist; its features are those of the layout.
        indexes: Indexes that were found already, by split.
        decode_images, max_pixels, verify, cache_bytes: As for :func:`open`.
    """
    builder = replace(builder, describe=lambda: (layout.features, layout.label))
    found: dict[str, Index] = {}
    for name in dict.fromkeys(term.split for term in terms):
        split = layout.splits[name]
        _check_missing(split, layout, builder.on_error)
        index = (indexes or {}).get(name)
        if index is None:
            index = find_or_build_index(split.files, split.stem, builder)
        _check_records(split, index, builder.on_error)
        if builder.label is GUESS and len(index):  # all splits have the label of the first
            builder = replace(builder, label=index.metadata.label)
        found[name] = index
    lengths = {
        name: [shard.records for shard in index.metadata.shards] for name, index in found.items()
    }
    slices = resolve_split(terms, lengths, layout.path)
    tables = [Table(index, layout.splits[name].files) for name, index in found.items()]
    gatherer = Gatherer(tables, verify=verify, mmap=builder.mmap, cache_bytes=cache_bytes)
    first = dict(zip(found, gatherer.rows.first_records, strict=True))
    chosen = [range(first[name] + each.start, first[name] + each.stop) for name, each in slices]
    if all(before.stop == after.start for before, after in pairwise(chosen)):
        chosen = [range(chosen[0].start, chosen[-1].stop)]
    # A split without records has no known features or classes.
    metadata = [index.metadata for index in found.values() if len(index)]
    metadata = metadata or [next(iter(found.values())).metadata]
    declared, label = builder.declared, metadata[0].label
    features = declared if declared is not None else _merge_features(metadata, layout)
    names, new_ids = _merge_classes(metadata, list(found.values()))
    selection = Selection(len(gatherer.rows), chosen)
    labels = None if new_ids is None else _renumber(gatherer, selection.all(), new_ids)
    return Dataset(
        gatherer,
        features,
        label=label,
        names=_declared_names(declared, metadata[0]) or names,
        selection=selection,
        labels=labels,
        stored_label=None if labels is None else stored_label(features, label),
        pixels=decode_images,
        max_pixels=max_pixels,
    )


def _only_split(layout: Layout, split: str | None) -> str:
    """Return ``split``, or the only split of the layout if it is None."""
    names = list(layout.splits)
    if split is not None:
        return split
    if len(names) == 1:
        return names[0]
    raise DatasetError(
        f"the dataset has the splits {', '.join(map(repr, names))}",
        path=layout.path,
        remedy="pass split= with one of them, or several: 'train+test'",
    )


def _check_missing(split: SplitFiles, layout: Layout, on_error: OnError) -> None:
    """Raise DatasetError, or warn, if shards are missing from a numbered set of files."""
    missing = split.missing
    if not missing:
        return
    reason = f"missing shards: {list_names(missing, _MAX_LISTED)}"
    if on_error == "raise":
        raise DatasetError(
            reason,
            path=layout.path,
            remedy="pass path= as a list of files to open the others, or pass on_error='skip'",
        )
    warnings.warn(f"{layout.path}: {reason}", SkippedRecordsWarning, stacklevel=5)


def _check_records(split: SplitFiles, index: Index, on_error: OnError) -> None:
    """Raise DatasetError unless the index has the record counts that the dataset declares."""
    if split.records is None or on_error == "skip":
        return
    for path, shard, records in zip(
        split.files.paths, index.metadata.shards, split.records, strict=True
    ):
        if shard.records != records:
            raise DatasetError(
                f"the shard has {shard.records} records, but the metadata of the dataset declares "
                f"{records}: records are lost, or the file was modified",
                path=path,
            )


def _merge_features(metadata: Sequence[IndexMetadata], layout: Layout) -> Features:
    """Return the features that match all splits."""
    if len(metadata) == 1:
        return metadata[0].features
    from covey.schema.merge import unify

    try:
        return unify(*(each.features for each in metadata))
    except FeatureError as error:
        raise DatasetError(
            f"the splits have different features: {error.reason}",
            path=layout.path,
            feature=error.feature,
            remedy="pass features= that match all splits",
        ) from None


def _declared_names(declared: Features | None, metadata: IndexMetadata) -> tuple[str, ...] | None:
    """Return the class names that the caller declared for an integer label."""
    if declared is None or metadata.label is None or metadata.label_strings is not None:
        return None
    kind = declared.get(metadata.label)
    return kind.names if isinstance(kind, ClassLabel) else None


def _merge_classes(
    metadata: Sequence[IndexMetadata], indexes: Sequence[Index]
) -> tuple[tuple[str, ...] | None, list[NDArray[np.int64]] | None]:
    """Return the class names of all splits, and for each index the new ids of its classes.

    Splits that were indexed separately may have different ids for the same label string. The second
    value is None if no id changes.
    """
    known = [each.class_names for each in metadata]
    named = [each for each in known if each is not None]
    if not named or len(named) < len(known):
        return (named[0] if named else None), None
    names, new_ids = merge_names(named)
    if new_ids is None:
        return names, None
    found = iter(new_ids)
    return names, [next(found) if len(index) else np.zeros(0, np.int64) for index in indexes]


def _renumber(
    gatherer: Gatherer, ids: NDArray[np.int64], new_ids: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return the class ids of records.

    Args:
        gatherer: The reader of the records.
        ids: The records.
        new_ids: For each index, the new id of each of its class ids.
    """
    labels, tables = np.array(gatherer.rows.labels(ids)), gatherer.rows.table_of(ids)
    for number, each in enumerate(new_ids):
        mine = tables == number
        labels[mine] = renumber(labels[mine], np.arange(len(each)), each)
    return labels
