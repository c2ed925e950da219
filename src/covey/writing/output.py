"""Ordered records to a split that is there: shards, index, metadata, commit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError
from covey.features import ClassLabel, Features
from covey.features.tfds import FEATURES_FILE, features_to_tfds
from covey.index import About, IndexWriter, index_names, write_classes
from covey.labels import Classes
from covey.metadata import SplitInfo, shard_name
from covey.pipeline import run_ahead
from covey.shards import Shard, Sharding, sync, write_shards
from covey.shuffle.ordering import Ordered, Ordering, Part
from covey.writing.commit import Manifest, Staging, link_or_copy
from covey.writing.existing import Existing
from covey.writing.progress import Progress


@dataclass(frozen=True)
class Output:
    """How a split is to be laid out."""

    ordering: Ordering
    seed: int
    sharding: Sharding
    compression: str | None
    level: int
    workers: int
    description: str = ""

    def write(
        self,
        ordered: Ordered,
        features: Features,
        classes: Classes,
        existing: Existing,
        staging: Staging,
        progress: Progress,
    ) -> tuple[tuple[Shard, ...], dict[Any, int]]:
        """Write the records and commit them.

        Returns:
            The shards of the split, and the number of examples of each class.
        """
        folder = staging.path
        names = index_names(existing.name, existing.split)
        old_shards, old_rows = self._old(features, classes, existing)
        compression = self._compression(existing, old_rows)
        index = IndexWriter(
            folder / names["rows"],
            len(old_rows) + ordered.records,
            compressed=compression is not None,
            labelled=classes.label is not None,
        )
        cuts = self.sharding.plan(ordered, by_class=self.ordering.by_class)
        threads = ThreadPoolExecutor(max(1, self.workers), thread_name_prefix="covey-write")
        try:
            index.add_rows(old_rows)
            with threads:
                shards = write_shards(
                    _with_classes(run_ahead(ordered.tasks(), threads, self.workers + 2), classes),
                    cuts,
                    folder,
                    index,
                    first=len(old_shards),
                    compression=compression,
                    level=self.level,
                    executor=threads,
                    progress=progress.add,
                )
            index.close()
        finally:
            index.abandon()
        return self._commit(old_shards, shards, features, classes, existing, staging, compression)

    def _old(
        self, features: Features, classes: Classes, existing: Existing
    ) -> tuple[list[Shard], NDArray[Any]]:
        if not existing.appends:
            return [], np.zeros(0, [("shard", "<u4")])
        return existing.old_index(features, classes.label)

    def _compression(self, existing: Existing, rows: NDArray[Any]) -> str | None:
        """As asked for, or as the shards are that are there."""
        if not existing.appends:
            return self.compression
        about = existing.about(existing.split)
        old = about.compression if about is not None else None
        if self.compression not in (None, old):
            raise DatasetError(
                f"{existing.folder}: compression is {self.compression}, but the shards of split "
                f"{existing.split!r} have {old}; append without compression= to do as they do"
            )
        return old

    def _commit(
        self,
        old_shards: list[Shard],
        new_shards: list[Shard],
        features: Features,
        classes: Classes,
        existing: Existing,
        staging: Staging,
        compression: str | None,
    ) -> tuple[tuple[Shard, ...], dict[Any, int]]:
        folder = staging.path
        names = index_names(existing.name, existing.split)
        count = len(old_shards) + len(new_shards)
        shards: list[Shard] = []
        for number, shard in enumerate((*old_shards, *new_shards)):
            name = shard_name(existing.name, existing.split, number, count)
            if number < len(old_shards):
                link_or_copy(existing.folder / shard.name, folder / name)
            else:
                os.rename(folder / shard.name, folder / name)
            shards.append(Shard(name, shard.records, shard.bytes, shard.fingerprint))
        files = [shard.name for shard in shards]
        counts: dict[Any, int] = {}
        index_files = [names["rows"], names["about"]]
        if classes.label is not None:
            table = write_classes(
                folder / names["rows"], folder / names["by_class"], folder / names["classes"]
            )
            counts = _counts(table, features, classes)
            index_files += [names["by_class"], names["classes"]]
        about = About(
            features=features,
            label=classes.label,
            class_texts=classes.texts,
            compression=compression,
            records=sum(shard.records for shard in shards),
            shards=tuple(shards),
            order={
                "by": self.ordering.by,
                "class": self.ordering.by_class,
                "seed": self.seed,
            },
        )
        (folder / names["about"]).write_text(about.to_json(), encoding="utf-8")
        for name in index_files:
            sync(folder / name)
        split = SplitInfo(
            existing.split,
            tuple(shard.records for shard in shards),
            sum(shard.bytes for shard in shards),
        )
        staging.commit(
            Manifest(
                split=split,
                files=(*files, *index_files),
                texts=_texts(features),
                replaced=existing.old_files(),
                name=existing.name,
                version=existing.version,
                description=self.description,
            )
        )
        return tuple(shards), counts


def _with_classes(parts: Iterator[Part], classes: Classes) -> Iterator[Part]:
    for block, labels in parts:
        yield block, classes.of(block) if labels is None else labels


def _texts(features: Features) -> dict[str, str]:
    """The small files of TFDS that say what the features are."""
    # Every record has every feature: what an example lacked was filled in.
    content, labels = features_to_tfds(features.without_defaults())
    texts = {FEATURES_FILE: json.dumps(content, indent=4, ensure_ascii=False)}
    for name, classes in labels.items():
        texts[name] = "".join(f"{each}\n" for each in classes)
    return texts


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
