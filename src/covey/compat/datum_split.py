"""Records that another program encoded, into a split: the other way into a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from covey import _core
from covey._locks import locked, reporting_failures
from covey._progress import Progress
from covey.errors import DatasetError, FeatureError
from covey.index.format import Shard
from covey.labels import Classes, find_label, is_string, read_strings
from covey.schema import Features
from covey.schema.merge import unify
from covey.schema.tfds import features_from_tfds
from covey.shuffle.external_sort import Spool
from covey.shuffle.keys import Key, make_rows
from covey.tfrecord import Block
from covey.writing.commit import Staging
from covey.writing.options import WriteOptions
from covey.writing.split_writer import SplitWriter
from covey.writing.target import TargetSplit

# Records are handed on when there are so many bytes of them, or so many.
_BLOCK_BYTES = 1 << 20
_BLOCK_RECORDS = 1024


class RawSplit:
    """Takes in records with their keys, and writes them as a split, in place of the old one.

    Args:
        directory: Of the dataset; made if there is none.
        options: Options of the write.
        progress: Is told of the records and bytes that were taken in.
    """

    def __init__(
        self,
        directory: Path,
        options: WriteOptions,
        *,
        progress: Callable[[int, int], None] = lambda records, size: None,
    ) -> None:
        self.directory = directory
        self.split = options.split
        self.records = 0
        self.bytes = 0
        """Of the records alone, without their frames."""
        self._options = options
        self._progress = progress
        self._frames = _core.FrameBuffer(_BLOCK_BYTES)
        self._keys: list[Key] = []
        self._staging = Staging(directory, options.split)
        with reporting_failures(self.directory, self.split):
            self._staging.open()
        self._spool = Spool(
            self._staging.path,
            memory_limit=options.memory_limit,
            order=options.order,
            unique=True,
        )

    def add(self, key: Key, record: bytes) -> None:
        """Take in one record."""
        held = self._frames.append(record)
        self._keys.append(key)
        self.records += 1
        self.bytes += len(record)
        if held >= _BLOCK_BYTES or len(self._keys) >= _BLOCK_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Put what was taken in into its order."""
        if not self._keys:
            return
        block, keys = Block(*self._frames.take()), self._keys
        self._keys = []
        positions = np.arange(self.records - len(block), self.records, dtype=np.uint64)
        rows = make_rows(positions, block.lengths, keys, self._options.seed)
        with reporting_failures(self.directory, self.split):
            self._spool.add(block, rows, keys)
        self._progress(len(block), block.data.nbytes)

    def write(
        self,
        features: Features,
        label: str | None,
        progress: Progress,
        texts: Mapping[str, str],
    ) -> tuple[Shard, ...]:
        """Write and commit all that was taken in.

        Args:
            features: What fits the records.
            label: The feature that tells their class, if one was asked for.
            progress: Is told.
            strings: More small files to be committed, by name.

        Raises:
            DuplicateKeyError: If two records have the same key.
            DatasetError: If features do not go together with those of the other splits.
        """
        self.flush()
        with reporting_failures(self.directory, self.split, lambda: self._staging.committed):
            with locked(self.directory):  # no other process changes it while it is looked at
                existing = TargetSplit.inspect(
                    self.directory, self.split, "overwrite", None, unique=not self._staging.can_link
                )
            features = _agree(existing, features)
            classes = self._classes(features, label)
            writer = SplitWriter(self._options, existing, self._staging, progress)
            shards, _ = writer.write(
                self._spool, features, classes, sidecars=texts, list_shards=True
            )
        return shards

    def _classes(self, features: Features, label: str | None) -> Classes:
        label = find_label(features, label)
        if label is None or not is_string(features[label]):
            return Classes(features, label)
        texts: set[str] = set()
        for block, _ in self._spool.blocks():
            texts.update(read_strings(features, label, block))
        return Classes(features, label, sorted(texts))

    def abort(self) -> None:
        """Remove all traces of what was not committed."""
        self._staging.abort()


def _agree(existing: TargetSplit, features: Features) -> Features:
    """The features that fit these records and those of all other splits."""
    splits = () if existing.info is None else existing.info.splits
    for split in splits:
        if split.name == existing.split:
            continue
        about = existing.index_metadata(split.name)
        known = features_from_tfds(existing.directory) if about is None else about.features
        try:
            features = unify(known, features, allow_missing=True)
        except FeatureError as error:
            raise DatasetError(
                f"{error.reason} in split {split.name!r} and in these records",
                path=existing.directory,
                feature=error.feature,
                remedy="splits of one dataset have the same features: write another dataset",
            ) from None
    return features
