"""Ordered records to a split that is there: shards, index, metadata, commit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._files import link_or_copy, sync
from covey._progress import Progress
from covey._threads import ordered_map
from covey.errors import DatasetError
from covey.filenames import SHARD_INFO_FILE
from covey.index import IndexMetadata, IndexWriter, index_names, write_classes
from covey.index.format import Shard
from covey.labels import Classes, make_label
from covey.schema import ClassLabel, Features
from covey.schema.tfds import FEATURES_FILE, features_to_tfds
from covey.shuffle.keys import OrderedRecords, Part, RecordOrder
from covey.tfrecord.compression import parse_compression
from covey.writing.commit import Change, Staging
from covey.writing.shards import Sharding, write_shards
from covey.writing.target import TargetSplit


@dataclass(frozen=True)
class SplitWriter:
    """How a split is to be laid out."""

    ordering: RecordOrder
    seed: int
    sharding: Sharding
    compression: str | None
    compression_level: int
    workers: int
    description: str = ""

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not -(2**63) <= self.seed < 2**64:
            raise DatasetError(option="seed", found=self.seed, allowed="an integer of 64 bits")
        if type(self.compression_level) is not int or not 0 <= self.compression_level <= 9:
            raise DatasetError(
                option="compression_level",
                found=self.compression_level,
                allowed="an integer, 0 to 9",
            )
        try:
            object.__setattr__(self, "compression", parse_compression(self.compression))
        except ValueError as error:
            raise DatasetError(str(error)) from None

    def write(
        self,
        ordered: OrderedRecords,
        features: Features,
        classes: Classes,
        existing: TargetSplit,
        staging: Staging,
        progress: Progress,
        *,
        texts: Mapping[str, str] | None = None,
        shard_info: bool = False,
    ) -> tuple[tuple[Shard, ...], dict[Any, int]]:
        """Write the records and commit them.

        Args:
            ordered: The records.
            features: What they are;
            classes: and what tells their class.
            existing: What is there already.
            staging: Where to write.
            progress: Is told.
            strings: More small files to be committed, by name.
            shard_info: Whether to list the shards for datum's reader too; in a dataset that has
                such a list it is always kept.

        Returns:
            The shards of the split, and the number of examples of each class.
        """
        compression = self._compression(existing)
        directory, rows = staging.path, staging.path / "rows.npy"
        old, new, checksum = self._write_shards(
            ordered, classes, existing, directory, rows, compression, progress
        )
        existing = existing.with_new_token()
        names = index_names(existing.stem)
        os.rename(rows, directory / names["rows"])
        shards = _name_shards(old, new, existing, directory)
        index_files = [names["rows"], names["metadata"]]
        counts: dict[Any, int] = {}
        class_checksums: tuple[int, int] | None = None
        if classes.label is not None:
            table, class_checksums = write_classes(
                directory / names["rows"],
                directory / names["by_class"],
                directory / names["classes"],
            )
            counts = _counts(table, features, classes)
            index_files += [names["by_class"], names["classes"]]
        about = IndexMetadata(
            features=features,
            label=classes.label,
            label_strings=classes.texts,
            compression=compression,
            records=sum(shard.records for shard in shards),
            checksum=checksum,
            class_checksums=class_checksums,
            shards=shards,
            single_stream=compression == "ZLIB",
            order={
                "by": self.ordering.by,
                "class": self.ordering.by_class and not existing.appends,
                "seed": self.seed,
            },
        )
        (directory / names["metadata"]).write_text(about.to_json(), encoding="utf-8")
        for name in index_files:
            sync(directory / name)
        described = {**_texts(features), **(texts or {})}
        files = (*(shard.name for shard in shards), *index_files)
        listed = None
        if shard_info or (existing.directory / SHARD_INFO_FILE).exists():
            listed = {shard.name: shard.records for shard in shards}
        staging.commit(
            Change(
                split=existing.version_info(shards),
                replaced=existing.old,
                files=files,
                sidecars=described,
                lists_shards=listed,
                keeps=existing.keeps,
                name=existing.name,
                version=existing.version,
                description=self.description,
            ),
            check=partial(existing.check_foreign, (*files, *described)),
        )
        return shards, counts

    def _compression(self, existing: TargetSplit) -> str | None:
        """As asked for, or as the shards are that are there."""
        if not existing.appends:
            return self.compression
        about = existing.about(existing.split)
        old = about.compression if about is not None else None
        if self.compression not in (None, old):
            raise DatasetError(
                f"{existing.directory}: compression is {self.compression}, but the shards of split "
                f"{existing.split!r} have {old}; append without compression= to do as they do"
            )
        return old

    def _write_shards(
        self,
        ordered: OrderedRecords,
        classes: Classes,
        existing: TargetSplit,
        directory: Path,
        rows: Path,
        compression: str | None,
        progress: Progress,
    ) -> tuple[list[Shard], list[Shard], int]:
        """Write shards and the rows of the index: (old shards, new ones, checksum of the rows)."""
        old: list[Shard] = []
        old_rows = np.zeros(0, np.int64)
        if existing.appends:
            old, old_rows = existing.old_index(classes)
        index = IndexWriter(
            rows,
            len(old_rows) + ordered.records,
            compressed=compression is not None,
            labelled=classes.label is not None,
        )
        cuts = self.sharding.plan(ordered, by_class=self.ordering.by_class)
        try:
            index.add_rows(old_rows)
            with ThreadPoolExecutor(self.workers, thread_name_prefix="covey-write") as threads:
                tasks = (partial(_run, task, classes) for task in ordered.tasks())
                new = write_shards(
                    ordered_map(tasks, threads, self.workers + 2),
                    cuts,
                    directory,
                    index,
                    first=len(old),
                    compression=compression,
                    compression_level=self.compression_level,
                    executor=threads,
                    progress=progress.add,
                )
            index.close()
        finally:
            index.abandon()
        return old, new, index.checksum


def _name_shards(
    old: list[Shard], new: list[Shard], existing: TargetSplit, directory: Path
) -> tuple[Shard, ...]:
    """Give all shards of a split the names that they have together."""
    names = existing.version_info((*old, *new)).shard_names(existing.name)
    shards: list[Shard] = []
    for number, (name, shard) in enumerate(zip(names, (*old, *new), strict=True)):
        if number < len(old):
            link_or_copy(existing.directory / shard.name, directory / name)
        else:
            os.rename(directory / shard.name, directory / name)
        shards.append(replace(shard, name=name))
    return tuple(shards)


def _run(task: Callable[[], Part], classes: Classes) -> Part:
    """Make a part, and find the classes of its records if they are not known yet."""
    block, labels = task()
    return block, classes.of(block) if labels is None else labels


def _texts(features: Features) -> dict[str, str]:
    """The small files of TFDS that say what the features are."""
    # Every record has every feature: what an example lacked was filled in.
    content, labels = features_to_tfds(features.without_defaults())
    named = [kind for kind in features.values() if isinstance(kind, ClassLabel) and kind.names]
    if len(labels) < len(named):
        _refuse_names(features)
    texts = {FEATURES_FILE: json.dumps(content, indent=4, ensure_ascii=False)}
    for name, classes in labels.items():
        texts[name] = "".join(f"{each}\n" for each in classes)
    return texts


def _refuse_names(features: Features) -> None:
    """Say which classes have names that their file, with a line for each, cannot hold."""
    for name, kind in features.items():
        if isinstance(kind, ClassLabel) and kind.names:
            make_label(name, kind.names)
    raise DatasetError(
        "the names of classes of two labels would be in one file, or in one with an impossible "
        f"name; rename one of {', '.join(features)}"
    )


def _counts(table: NDArray[Any], features: Features, classes: Classes) -> dict[Any, int]:
    """Examples of each class, by name if it has one."""
    assert classes.label is not None
    kind = features[classes.label]
    names = classes.texts or (kind.names if isinstance(kind, ClassLabel) else None)
    counts: dict[Any, int] = {}
    for label, records in zip(table["label"].tolist(), table["records"].tolist(), strict=True):
        named = names is not None and 0 <= label < len(names)
        counts[names[label] if named and names is not None else label] = records
    return counts
