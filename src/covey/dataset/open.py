"""Opening a dataset: what is there, its index, and the records that were asked for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.dataset.layout import Layout, find_layout
from covey.dataset.selection import Selection
from covey.errors import CoveyError, DatasetError, FeatureError, SkippedRecordsWarning
from covey.index import GUESS, Index, Indexing, IndexMetadata, find_or_build_index
from covey.labels import extend
from covey.reading import Gatherer, Table
from covey.schema import ClassLabel, Features
from covey.schema.merge import unify
from covey.splits import parse_split
from covey.tfrecord.reader import OnError
from covey.untrusted import reports_errors


@reports_errors
def open(  # noqa: A001 - of covey, as of gzip and others
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    split: str | None = None,
    label: str | Callable[[Mapping[str, Any]], int | str] | None = None,
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
    """Open a dataset, or any TFRecord files of Examples, as an array of examples.

    The index is taken from beside the shards, or from the cache. If there is none that is of these
    shards as they are now, all records are read once, and the new one is kept in the cache. Nothing
    is written to the directory of the dataset.

    Args:
        path: A directory that covey, TFDS or datum wrote; a directory, a pattern or a list of TFRecord
            files; or one file. Local, or a URL that fsspec knows.
        split: Which records: ``"train"``, ``"train[:80%]"``, ``"train[10000:]"``,
            ``"train+test"``. May be left out if there is only one split.
        label: What tells the class of an example: a feature (a ClassLabel, an integer or a
            text), a function of the example, or ``"@file"``, if each file holds one class. By
            default what the index says, or a feature that is called so.
        features: How to decode records; by default as the dataset says, or as its records allow.
        decode_images: Give images as pixels, which needs Pillow, and not as encoded bytes.
        max_pixels: The most pixels (height x width) of an image that is decoded, also by the
            loaders of the dataset; 64 million by default. A larger one is an error that names the
            record, raised before the image is decoded.
        verify: Check the checksums of what is read.
        map_files: Map local files into memory; False reads them, which is slower.
        on_error: ``"skip"`` looks through all records, whatever index there is, and leaves out the
            corrupt ones, which ``ds.skipped`` lists.
        storage_options: What fsspec needs for a URL: credentials, an endpoint.
        cache_bytes: How much of remote or unpacked shards is kept on disk; see docs/remote.md.
        threads: How many index; all CPU cores by default.
        progress: Show how far indexing is; by default where somebody looks.

    >>> birds = [{"song": [0.5, 1.0], "species": name} for name in ("owl", "wren", "owl")]
    >>> _ = write(birds, "birds", split="train", label="species", shuffle=False, progress=False)
    >>> ds = open("birds", split="train")
    >>> len(ds), ds.classes.names, ds.classes.counts.tolist()
    (3, ('owl', 'wren'), [2, 1])
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error is {on_error!r}; must be 'raise' or 'skip'")
    declared = None if features is None else Features(features)
    while True:
        layout = find_layout(path, storage_options=storage_options, cache_bytes=cache_bytes)
        indexing = Indexing(
            features=layout.features,
            declared=declared,
            label=GUESS if label is None else label,
            on_error=on_error,
            mmap=mmap,
            threads=threads,
            progress=progress,
        )
        indexes = _Indexes(layout, indexing)
        try:
            segments = parse_split(_check_split(split, layout), indexes, layout.path)
            tables = [
                Table(indexes.index(name), layout.splits[name].files)
                for name in dict.fromkeys(each.split for each in segments)
            ]
            break
        except (CoveyError, OSError):
            if not layout.is_replaced():
                raise
    gatherer = Gatherer(tables, verify=verify, mmap=mmap, cache_bytes=cache_bytes)
    # Of splits without records nothing is known.
    abouts = [table.index.metadata for table in tables]
    first_about = next((about for about in abouts if about.records), abouts[0])
    label_names, numbering = _join_classes(abouts)
    names = dict.fromkeys(each.split for each in segments)
    first = dict(zip(names, gatherer.first_records, strict=True))
    chosen = [(first[each.split] + each.begin, first[each.split] + each.end) for each in segments]
    return Dataset(
        gatherer,
        declared if declared is not None else _features(abouts, layout),
        label=first_about.label,
        names=_declared_names(declared, first_about) or label_names,
        selection=Selection(len(gatherer), chosen),
        numbering=numbering,
        pixels=decode_images,
        max_pixels=max_pixels,
    )


class _Indexes(Mapping[str, Sequence[int]]):
    """The records of each shard, by split; an index is found, or made, when it is asked for."""

    def __init__(self, layout: Layout, indexing: Indexing) -> None:
        self._layout = layout
        self._indexing = indexing
        self._found: dict[str, Index] = {}

    def index(self, split: str) -> Index:
        """The index of a split."""
        if split not in self._found:
            there = self._layout.splits[split]
            self._check_absent(there.absent)
            index, _ = find_or_build_index(there.files, there.stem, self._indexing)
            self._check(split, index)
            self._found[split] = index
            if self._indexing.label is GUESS and len(index):  # what the first says holds for all
                self._indexing = replace(self._indexing, label=index.metadata.label)
        return self._found[split]

    def _check_absent(self, absent: Sequence[str]) -> None:
        """Refuse files that are not all there."""
        if not absent:
            return
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        what = f"{self._layout.path}: missing shards: {', '.join(absent[:5])}{more}"
        if self._indexing.on_error == "raise":
            raise DatasetError(
                f"{what}; to open the others without them, pass a list of files, or on_error='skip'"
            )
        warnings.warn(what, SkippedRecordsWarning, stacklevel=5)

    def _check(self, split: str, index: Index) -> None:
        """Compare what was found with what the dataset says."""
        said = self._layout.splits[split].records
        if said is None or self._indexing.on_error == "skip":
            return
        for shard, records in zip(index.metadata.shards, said, strict=True):
            if shard.records != records:
                raise DatasetError(
                    f"{shard.name} has {shard.records} records, but the dataset says "
                    f"{records}; some are lost, or the file was changed",
                    path=self._layout.path,
                )

    def __getitem__(self, split: str) -> Sequence[int]:
        if split not in self._layout.splits:
            raise KeyError(split)
        return [shard.records for shard in self.index(split).metadata.shards]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.splits)

    def __len__(self) -> int:
        return len(self._layout.splits)

    def __contains__(self, split: object) -> bool:
        return split in self._layout.splits


def _check_split(split: str | None, layout: Layout) -> str:
    """The split that was asked for, or the only one."""
    there = list(layout.splits)
    if split is None and len(there) == 1:
        return there[0]
    if split is None:
        raise DatasetError(
            f"it holds the splits {', '.join(map(repr, there))}; pass split= with one of "
            "them, or several: 'train+test'",
            path=layout.path,
        )
    return split


def _features(abouts: Sequence[IndexMetadata], layout: Layout) -> Features:
    """The features that fit all splits."""
    full = [about.features for about in abouts if about.records] or [abouts[0].features]
    try:
        return unify(*full)
    except FeatureError as error:
        raise DatasetError(
            f"the splits have different features ({error}); pass features= that fit all",
            path=layout.path,
        ) from None


def _declared_names(declared: Features | None, about: IndexMetadata) -> tuple[str, ...] | None:
    """The names of classes that a caller knows, and the records do not say."""
    if declared is None or about.label is None or about.label_strings is not None:
        return None
    kind = declared.get(about.label)
    return kind.names if isinstance(kind, ClassLabel) else None


def _join_classes(
    abouts: Sequence[IndexMetadata],
) -> tuple[tuple[str, ...] | None, tuple[NDArray[np.int64], ...] | None]:
    """The names of the classes of all splits; and the numbers that those of each get, if others.

    Splits that have numbered their strings by themselves have other numbers for the same text.
    """
    known = [about.class_names for about in abouts if about.records] or [abouts[0].class_names]
    named = [each for each in known if each is not None]
    if not named or len(named) < len(known):
        return (named[0] if named else None), None
    names = named[0]
    for each in named[1:]:
        names = extend(names, each)
    if all(each == names[: len(each)] for each in named):
        return names, None  # later splits have only added classes
    place = {name: number for number, name in enumerate(names)}
    every = [about.class_names or () for about in abouts]
    return names, tuple(np.array([place[n] for n in each], np.int64) for each in every)
