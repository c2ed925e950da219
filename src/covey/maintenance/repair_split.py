"""One split, while it is repaired: what is valid in it is found, and written again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from covey._progress import Progress
from covey.dataset.layout import Layout, SplitFiles
from covey.errors import CoveyError, DatasetError
from covey.filenames import ENTRIES_FILE, SHARD_INFO_FILE
from covey.index import BY_FILE, IndexMetadata
from covey.labels import Classes, extend, find_label, guess_label, is_string
from covey.maintenance.examples import Examples
from covey.maintenance.indexes import find_index, local_index
from covey.maintenance.metadata import differences
from covey.maintenance.report import Problems
from covey.maintenance.salvage import Saving, ShardingAsBefore, SoundRecords, SoundShard
from covey.maintenance.verify import known_features
from covey.results import WriteResult
from covey.schema import ClassLabel, Features
from covey.schema.datum import datum_features
from covey.schema.merge import unify
from covey.schema.tfds import FEATURES_FILE
from covey.shuffle.keys import RecordOrder
from covey.storage import is_remote
from covey.writing.commit import staged
from covey.writing.locks import locked
from covey.writing.publish import RemoteStaging
from covey.writing.split_writer import SplitWriter
from covey.writing.target import TargetSplit

Mode = Literal["error", "overwrite"]


class SplitRepair:
    """One split, while it is repaired."""

    def __init__(
        self,
        layout: Layout,
        name: str,
        declared: Features | None,
        stack: ExitStack,
        shown: Progress,
        threads: int,
        mmap: bool = True,
    ) -> None:
        self.name = name
        self._map_files = mmap
        self._layout = layout
        self._there: SplitFiles = layout.splits[name]
        self._shown = shown
        self._threads = threads
        directory = stack.enter_context(local_index(self._there.files, self._there.stem))
        index = find_index(directory, self._there.stem, Problems(), mmap=mmap)
        self._about = index.about
        self.features = declared if declared is not None else known_features(layout, name, index)
        self.label = _label(self.features, self._about)
        self.shards = self._find(self.features, self.label)

    @property
    def records(self) -> int:
        """How many are valid."""
        return sum(shard.records for shard in self.shards)

    def _find(self, features: Features | None, label: str | None) -> list[SoundShard]:
        lock = threading.Lock()

        def progress(records: int, size: int) -> None:
            with lock:
                self._shown.add(records, size)

        examples = Examples(features, label)
        saving = Saving(
            self.name,
            self._there.files,
            examples,
            self._there.records,
            progress,
            self._map_files,
        )
        with ThreadPoolExecutor(self._threads, thread_name_prefix="covey-repair") as pool:
            return saving.find(pool if self._threads > 1 else None, self._threads)

    def settle(self, features: Features) -> None:
        """Take the features that all splits have; and if it had none itself, a label."""
        if self.features is not None:
            return
        self.label = guess_label(features)
        if self.label is not None and is_string(features[self.label]):
            found = self._find(features, self.label)
            if [shard.misfits for shard in found] != [shard.misfits for shard in self.shards]:
                self.label = None  # it was only called like a label
            else:
                self.shards = found

    def write(
        self,
        target: str,
        split: str,
        mode: Mode,
        options: Mapping[str, Any] | None,
        features: Features,
    ) -> WriteResult:
        """Write what is valid as a split of the new dataset."""
        if not is_remote(target):
            directory = Path(os.path.abspath(target))
            return self._write(target, directory, split, mode, features)
        with RemoteStaging(target, split, appends=False, options=options) as mirror:
            written = self._write(target, mirror.directory, split, mode, features)
            mirror.publish()
        return written

    def _write(
        self, target: str, directory: Path, split: str, mode: Mode, features: Features
    ) -> WriteResult:
        started = time.perf_counter()
        with staged(directory, split) as staging:
            unique = is_remote(target) or not staging.can_link
            with locked(directory):
                existing = TargetSplit.look(directory, split, mode, None, unique=unique)
                features = _agree(existing, features)
            classes = Classes(features, self.label, self._texts())
            self._shown.begin(f"writing {split}", self.records)
            shards, counts = self._output().write(
                SoundRecords(self._there.files, self.shards),
                features,
                classes,
                existing,
                staging,
                self._shown,
                texts={**self._described(features), **self._datum()},
                shard_info=self._has(SHARD_INFO_FILE),
            )
        return WriteResult(
            path=target,
            split=split,
            shards=shards,
            records=sum(shard.records for shard in shards),
            bytes=sum(shard.bytes for shard in shards),
            label=self.label,
            classes=counts,
            features=features,
            skipped=(),
            seconds=time.perf_counter() - started,
        )

    def _texts(self) -> tuple[str, ...]:
        """The strings that classes are, each with the number that it had."""
        known = None if self._about is None else self._about.label_strings
        found = {text for shard in self.shards for text in shard.texts}
        return extend(known or (), found)

    def _output(self) -> SplitWriter:
        compressions = [shard.compression for shard in self.shards if shard.records]
        order = {} if self._about is None else self._about.order
        by, by_class, seed = order.get("by"), order.get("class"), order.get("seed")
        ends = [0]
        for shard in self.shards:
            ends.append(ends[-1] + shard.records)
        return SplitWriter(
            # The records stay in the order they are in, whatever that is.
            ordering=RecordOrder(by_class is True, "hash" if by == "hash" else "position"),
            seed=seed if type(seed) is int and by == "hash" else 0,
            sharding=ShardingAsBefore(ends=tuple(ends)),
            compression=max(set(compressions), key=compressions.count),
            compression_level=6,
            workers=self._threads,
            description="" if self._layout.info is None else self._layout.info.description,
        )

    def _has(self, name: str) -> bool:
        if self._layout.kind == "TFRecords":
            return False
        return self._layout.storage.exists(self._layout.storage.join(self._layout.path, name))

    def _described(self, features: Features) -> dict[str, str]:
        """What describes the features for TFDS, as it was: covey may not know all of it."""
        known, storage, directory = self._layout.features, self._layout.storage, self._layout.path
        try:
            if known is None or self._layout.kind != "dataset" or differences(known, features):
                return {}
            names = [storage.name(each) for each in storage.list(directory)]
            wanted = [each for each in names if each.endswith(".labels.txt")]
            return {
                each: storage.read(storage.join(directory, each)).decode()
                for each in (FEATURES_FILE, *wanted)
            }
        except (CoveyError, UnicodeError):
            return {}

    def _datum(self) -> dict[str, str]:
        """What datum's reader needs beside the shards, if it was there."""
        if not self._has(ENTRIES_FILE):
            return {}
        storage, directory = self._layout.storage, self._layout.path
        try:
            datum_features(storage, directory)
            return {ENTRIES_FILE: storage.read(storage.join(directory, ENTRIES_FILE)).decode()}
        except (CoveyError, UnicodeError):
            return {}


def _label(features: Features | None, about: IndexMetadata | None) -> str | None:
    """The feature that tells the class, as in the index; or else what is most likely one."""
    if features is None:
        return None
    if about is None or about.label == BY_FILE:  # files have other names in the new dataset
        return guess_label(features)
    try:
        return None if about.label is None else find_label(features, about.label)
    except DatasetError:
        return guess_label(features)


def _agree(existing: TargetSplit, features: Features) -> Features:
    """The features of the splits that are there already, which must be the same."""
    base, _ = existing.base()
    if base is None or base == features:
        return features
    for name in dict.fromkeys((*base, *features)):
        known, found = base.get(name), features.get(name)
        if known != found and not (isinstance(known, ClassLabel) and isinstance(found, ClassLabel)):
            raise DatasetError(
                f"{existing.directory}: feature {name!r} is {known} in the splits that are there, and "
                f"{found} in what is to be saved; give another directory"
            )
    return unify(base, features)
