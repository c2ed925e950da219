"""Records that a serializer has encoded, written as a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from covey import _core
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
from covey.writing.options import WriteOptions
from covey.writing.split_writer import SplitWriter
from covey.writing.target import TargetSplit

_BLOCK_BYTES = 1 << 20
_BLOCK_RECORDS = 1024


class RecordCache:
    """Records and their keys, sorted, and written as a split in place of the old one.

    Args:
        writer: Writer of the split.
        options: Options of the write.
        progress: Function that is called with numbers of records and bytes.
    """

    def __init__(
        self,
        writer: SplitWriter,
        options: WriteOptions,
        progress: Callable[[int, int], None],
    ) -> None:
        self.records = 0
        self.bytes = 0
        """Size of the records, without their frames."""
        self._options = options
        self._progress = progress
        self._frames = _core.FrameBuffer(_BLOCK_BYTES)
        self._keys: list[Key] = []
        self._writer = writer
        self._spool = Spool(
            self._writer.staging.path,
            memory_limit=options.memory_limit,
            order=options.order,
            unique=True,
        )

    def add(self, key: Key, record: bytes) -> None:
        """Add a record."""
        size = self._frames.append(record)
        self._keys.append(key)
        self.records += 1
        self.bytes += len(record)
        if size >= _BLOCK_BYTES or len(self._keys) >= _BLOCK_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Move the added records to the spool."""
        if not self._keys:
            return
        block, keys = Block(*self._frames.take()), self._keys
        self._keys = []
        positions = np.arange(self.records - len(block), self.records, dtype=np.uint64)
        rows = make_rows(positions, block.lengths, keys, self._options.seed)
        self._spool.add(block, rows, keys)
        self._progress(len(block), block.data.nbytes)

    def write(
        self, features: Features, label: str | None, progress: Progress, sidecars: Mapping[str, str]
    ) -> tuple[Shard, ...]:
        """Write and commit the records.

        Args:
            features: Features of the records.
            label: Label feature, if it is specified.
            progress: Progress bar.
            sidecars: Other files to commit, by name.

        Raises:
            DuplicateKeyError: If two records have the same key.
            DatasetError: If the features differ from those of the other splits.
        """
        self._writer.inspect()  # other splits may have been written since the records were added
        features = _unify_splits(self._writer.target, features)
        classes = self._classes(features, label)
        result = self._writer.write(
            [self._spool], features, classes, progress, sidecars=sidecars, list_shards=True
        )
        return result.shards

    def _classes(self, features: Features, label: str | None) -> Classes:
        label = find_label(features, label)
        if label is None or not is_string(features[label]):
            return Classes(features, label)
        names: set[str] = set()
        for block, _ in self._spool.blocks():
            names.update(read_strings(features, label, block))
        return Classes(features, label, sorted(names))


def _unify_splits(target: TargetSplit, features: Features) -> Features:
    """Return the features that fit the records and those of the other splits."""
    splits = () if target.info is None else target.info.splits
    for split in splits:
        if split.name == target.split:
            continue
        metadata = target.index_metadata(split.name)
        known = features_from_tfds(target.directory) if metadata is None else metadata.features
        try:
            features = unify(known, features, allow_missing=True)
        except FeatureError as error:
            raise DatasetError(
                f"{error.reason}; all splits of a dataset must have the same features",
                path=target.directory,
                feature=error.feature,
                remedy="write to another directory",
            ) from None
    return features
