"""Write sorted records as new versions of splits: staging, shards, index, metadata, commit."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._files import link_or_copy, sync
from covey._progress import Progress
from covey._text import count_of
from covey.engines import Engine
from covey.errors import DatasetError
from covey.filenames import FEATURES_FILE, fill_template
from covey.index import IndexMetadata, index_names
from covey.index.format import Shard, row_dtype
from covey.index.write import IndexWriter, write_classes
from covey.labels import Classes, input_feature, make_label
from covey.results import WriteResult
from covey.schema import ClassLabel, Features, Steps
from covey.schema.images import ImageSummary, join_summaries
from covey.schema.tfds import features_to_tfds
from covey.storage import LocalStorage, is_remote
from covey.urls import shown
from covey.writing.commit import Change, ReplacedFiles, StagedSplit, Staging, staged
from covey.writing.job import OrderedRecords
from covey.writing.options import WriteOptions
from covey.writing.part_files import parts_directory
from covey.writing.publish import RemoteStaging, published
from covey.writing.scratch import Scratch
from covey.writing.shards import ShardTarget
from covey.writing.target import TargetSplit, inspect


@contextmanager
def stage_split(
    path: str, options: WriteOptions, storage_options: Mapping[str, Any] | None = None
) -> Iterator[SplitWriter]:
    """Yield the writer of splits, and remove what it has not committed at the end of the block.

    Args:
        path: Directory or URL of the dataset.
        options: Options of the write.
        storage_options: Options of fsspec for a URL.
    """
    staging: AbstractContextManager[Staging | RemoteStaging]
    if is_remote(path):
        staging = published(path, options.splits, storage_options)
    else:
        # An absolute path: the source may change the current directory.
        staging = staged(Path(LocalStorage().clean(path)), options.splits)
    with staging as found:
        yield SplitWriter(path, options, found)


class SplitWriter:
    """Writer of new versions of splits, which are committed together.

    Args:
        path: Directory or URL of the dataset.
        options: Options of the write.
        staging: Staged files.
    """

    targets: tuple[TargetSplit, ...]
    """The splits, and the dataset before the write."""
    parts: tuple[str, ...] = ()
    """Names of the runs of parts whose records are written."""

    def __init__(self, path: str, options: WriteOptions, staging: Staging | RemoteStaging) -> None:
        self.staging = staging
        self._path = path
        self._options = options
        self._started = time.perf_counter()
        self.inspect()

    def inspect(self) -> None:
        """Read the dataset, while no other process commits to it.

        Raises:
            DatasetError: As :func:`covey.writing.target.inspect`.
        """
        staging = self.staging
        with staging.locked():
            self.targets = inspect(
                staging.storage, staging.location, self._options, unique=staging.unique
            )

    @property
    def target(self) -> TargetSplit:
        """The first split, and the dataset before the write."""
        return self.targets[0]

    def known_schema(self) -> tuple[Features | None, str | None]:
        """Return the features and the label of the records that remain; None if none do."""
        with self.staging.locked():
            return self.target.known_schema()

    @contextmanager
    def scratch(self, engine: Engine | None) -> Iterator[Scratch]:
        """Yield where the tasks of an engine write runs.

        These are beside a dataset at a URL if the workers are on other machines. A main process
        that is killed leaves them there, as it leaves parts.
        """
        staging = self.staging
        if isinstance(staging, Staging) or engine is None or engine.is_local:
            yield Scratch(str(staging.path))
            return
        storage, options = staging.storage, staging.storage_options
        parent = storage.join(staging.location, parts_directory(self._options.splits))
        found = Scratch(storage.join(parent, f"engine-{secrets.token_hex(8)}"), True, options)
        try:
            yield found
        finally:
            found.remove()

    def write(
        self,
        ordered: Sequence[OrderedRecords],
        features: Features,
        classes: Classes,
        progress: Progress,
        *,
        sidecars: Mapping[str, str] | None = None,
        list_shards: bool = False,
        replaced_files: ReplacedFiles = "move",
    ) -> list[WriteResult]:
        """Write records and commit them; return the result of each split.

        Args:
            ordered: Sorted records of each split.
            features: Features of the records.
            classes: Classes of the records.
            progress: Progress bar.
            sidecars: Content of further sidecar files, by name.
            list_shards: Whether to write datum's ``shard_info.json``. If the dataset has that
                file, it is always updated.
            replaced_files: What to do with the files of the replaced version. A URL keeps them.
        """
        splits = [
            self._stage(target, records, features, classes, progress)
            for target, records in zip(self.targets, ordered, strict=True)
        ]
        change = Change(
            tuple(splits),
            {**_sidecars(features), **(sidecars or {})},
            list_shards,
            self._options.description,
            _supervised_keys(features, classes.label),
            "keep" if self.staging.is_remote else replaced_files,
        )
        self.staging.commit(change, progress)
        return [
            WriteResult(
                path=shown(self._path),
                split=split.target.split,
                shards=split.shards,
                records=sum(shard.records for shard in split.shards),
                bytes=sum(shard.bytes for shard in split.shards),
                label=classes.label,
                classes=split.counts,
                features=features,
                skipped=(),
                seconds=time.perf_counter() - self._started,
                replaced=split.target.old_shards(),
                kept_splits=self._kept_splits(),
                notes=self._notes() if split is splits[0] else (),
            )
            for split in splits
        ]

    def _notes(self) -> tuple[str, ...]:
        """Return the note of shards that patterns of other readers find beside the new ones."""
        old = sum(len(each.old_shards()) for each in self.targets)
        if not self.staging.is_remote or not old:
            return ()
        return (
            f"{count_of(old, 'shard')} of the replaced version kept beside the new ones, where "
            "patterns such as *.tfrecord* match both; run covey.repair, or `covey repair "
            f"{shown(self._path)}`, to delete them",
        )

    def _kept_splits(self) -> tuple[str, ...]:
        """Return the splits of the dataset that are not written."""
        names = () if self.target.info is None else (each.name for each in self.target.info.splits)
        return tuple(name for name in names if name not in self._options.splits)

    def _stage(
        self,
        target: TargetSplit,
        ordered: OrderedRecords,
        features: Features,
        classes: Classes,
        progress: Progress,
    ) -> StagedSplit:
        """Write the shards and the index of a split into the staging directory."""
        progress.rename("writing")
        old = target.old_index(classes) if target.appends else None
        compression = self._choose_compression(target, old)
        directory, rows = self.staging.path, self.staging.path / "rows.npy"
        # Workers upload shards under their final names.
        uploads = self.staging.is_remote and ordered.uploads
        target = target.with_new_token() if uploads else target
        new, written, images = self._write_shards(
            target, ordered, classes, rows, old, compression, progress
        )
        progress.rename("indexing")
        target = target if uploads else target.with_new_token()
        names = index_names(target.stem)
        os.rename(rows, directory / names["rows"])
        old_shards = () if old is None else old[0].shards
        shards, copied = self._name_shards(target, old_shards, new, is_uploaded=uploads)
        uploaded = {shard.name: shard.bytes for shard in shards[len(old_shards) :] if uploads}
        index_files = [names["rows"], names["metadata"]]
        counts: dict[Any, int] = {}
        class_checksums: tuple[int, int] | None = None
        if classes.label is not None:
            table, class_checksums = write_classes(
                directory / names["rows"],
                directory / names["by_class"],
                directory / names["classes"],
            )
            counts = _class_counts(table, features, classes)
            index_files += [names["by_class"], names["classes"]]
        order = self._options.order
        metadata = IndexMetadata(
            features=features,
            label=classes.label,
            label_strings=classes.strings,
            compression=compression,
            records=sum(shard.records for shard in shards),
            checksum=written.checksum,
            class_checksums=class_checksums,
            shards=shards,
            single_stream=written.single_stream,
            order={
                "by": order.by,
                "class": order.by_class and not target.appends,
                "seed": self._options.seed,
            },
            images=images,
            parts=self.parts,
        )
        (directory / names["metadata"]).write_text(metadata.to_json(), encoding="utf-8")
        for name in index_files:
            sync(directory / name)
        return StagedSplit(target, shards, tuple(index_files), counts, copied, uploaded)

    def _name_shards(
        self,
        target: TargetSplit,
        old: Sequence[Shard],
        new: Sequence[Shard],
        *,
        is_uploaded: bool,
    ) -> tuple[tuple[Shard, ...], dict[str, str]]:
        """Give all shards of a split their final names, in the staging directory.

        Returns:
            The shards; and the names of the old ones of a URL, by their final names.
        """
        names = target.version_info((*old, *new)).shard_names(target.name)
        directory, copied = self.staging.path, {}
        for name, shard in zip(names, old, strict=False):
            if self.staging.is_remote:
                copied[name] = shard.name
            else:
                link_or_copy(Path(target.location, shard.name), directory / name)
        for name, shard in zip(names[len(old) :], new, strict=True):
            if not is_uploaded:
                os.rename(directory / shard.name, directory / name)
        named = zip((*old, *new), names, strict=True)
        return tuple(replace(shard, name=name) for shard, name in named), copied

    def _choose_compression(
        self, target: TargetSplit, old: tuple[IndexMetadata, NDArray[Any]] | None
    ) -> str | None:
        """Return the compression of the options, or that of the shards before appended ones.

        Of shards with and without compression, those with compression decide.
        """
        requested = self._options.compression
        if old is None or not old[0].records:
            return requested
        found = old[0].compression
        if requested not in (None, found):
            raise DatasetError(
                f"the shards of split {target.split!r} have compression {found}",
                path=target.path,
                option="compression",
                found=requested,
                remedy="append without compression= to use theirs",
            )
        return found

    def _write_shards(
        self,
        target: TargetSplit,
        ordered: OrderedRecords,
        classes: Classes,
        rows: Path,
        old: tuple[IndexMetadata, NDArray[Any]] | None,
        compression: str | None,
        progress: Progress,
    ) -> tuple[list[Shard], IndexWriter, Mapping[str, ImageSummary] | None]:
        """Write shards and index rows.

        Returns:
            New shards, the closed writer of the rows, and the images of all shards.
        """
        compressed = compression is not None
        old_rows = np.zeros(0, row_dtype(compressed=compressed, labelled=False))
        old_images: Mapping[str, ImageSummary] | None = {}
        single_stream, first = compression == "ZLIB", 0
        if old is not None:
            metadata, old_rows = old
            old_images, first = metadata.images, len(metadata.shards)
            single_stream |= metadata.single_stream
        index = IndexWriter(
            rows,
            len(old_rows) + ordered.records,
            compressed=compressed,
            labelled=classes.label is not None,
            single_stream=single_stream,
        )
        shards: dict[int, Shard] = {}
        images: list[Mapping[str, ImageSummary] | None] = [old_images]
        try:
            index.add_rows(old_rows)
            for result in ordered.write_shards(
                partial(self._shard_target, target, first, ordered.uploads),
                first=first,
                compression=compression,
                progress=progress,
            ):
                assert result.info is not None
                index.write_at(len(old_rows) + result.first, result.rows)
                shards[result.shard] = result.info
                images.append(result.images)
            index.close()
        finally:
            index.abandon()
        return [shards[n] for n in sorted(shards)], index, join_summaries(images)

    def _shard_target(
        self, target: TargetSplit, before: int, uploads: bool, shards: int
    ) -> ShardTarget:
        """Return where shards are written.

        Args:
            target: The split.
            before: Number of the shards before the new ones.
            uploads: Whether workers upload the shards of a URL.
            shards: Number of the new shards.
        """
        staging = self.staging
        if isinstance(staging, Staging) or not uploads:
            return ShardTarget(str(staging.path))
        total = before + shards
        names = tuple(
            fill_template(target.template, target.name, target.split, number, total)
            for number in range(before, total)
        )
        staging.expect(names)
        return ShardTarget(None, self._path, names, staging.storage_options)


def _sidecars(features: Features) -> dict[str, str]:
    """Return TFDS' files that describe the features."""
    # Every record has every feature: defaults were filled in.
    content, labels = features_to_tfds(features.without_defaults())
    named = [each for each in features.values() if isinstance(each, ClassLabel) and each.names]
    if len(labels) < len(named):
        _raise_for_names(features)
    sidecars = {FEATURES_FILE: json.dumps(content, indent=4, ensure_ascii=False)}
    for name, classes in labels.items():
        sidecars[name] = "".join(f"{each}\n" for each in classes)
    return sidecars


def _supervised_keys(features: Features, label: str | None) -> tuple[str, str] | None:
    """Return TFDS' supervised keys, which cannot be nested."""
    if label is None or label not in features:
        return None
    found = input_feature(features, label)
    if found is None or isinstance(features[found], Steps):
        return None
    is_nested = any(len(features.path_of(name)) > 1 for name in (found, label))
    return None if is_nested else (found, label)


def _raise_for_names(features: Features) -> None:
    """Raise the error for class names that their file cannot hold."""
    for name, feature in features.items():
        if isinstance(feature, ClassLabel) and feature.names:
            make_label(name, feature.names)
    raise DatasetError(
        "the class names of two labels would have the same file, or an invalid file name",
        remedy=f"rename one of {', '.join(features)}",
    )


def _class_counts(table: NDArray[Any], features: Features, classes: Classes) -> dict[Any, int]:
    """Return the number of examples of each class, by name if it has one."""
    assert classes.label is not None
    feature = features[classes.label]
    names = classes.strings or (feature.names if isinstance(feature, ClassLabel) else None) or ()
    counts: dict[Any, int] = {}
    for label, records in zip(table["label"].tolist(), table["records"].tolist(), strict=True):
        counts[names[label] if 0 <= label < len(names) else label] = records
    return counts
