"""datum's TFRecordWriter.

The directory that it writes can be opened by datum, TFDS and covey.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from covey import _core
from covey._files import atomic_write
from covey._locks import locked
from covey._progress import Progress
from covey.compat.datum_schema import (
    DatumSchema,
    ShardInfo,
    check_shard_info,
    datum_splits,
    entries_to_json,
    merge_entries,
    read_entries,
    shape_of,
)
from covey.compat.serializer import Serializer
from covey.dataset_info import check_split_name
from covey.engines.pools import ThisProcess
from covey.errors import CoveyError, DatasetError, FeatureError, SourceError
from covey.filenames import ENTRIES_FILE, SHARD_INFO_FILE
from covey.index.format import Shard
from covey.labels import Classes, find_label, guess_label, is_string, read_strings
from covey.schema import Features
from covey.schema.merge import unify
from covey.shuffle.keys import Key, make_rows
from covey.shuffle.runs import Spool
from covey.storage import LocalStorage
from covey.tfrecord import Block
from covey.urls import AnyPath, check_local
from covey.writing.job import SortedRecords
from covey.writing.options import DEFAULT_MEMORY_LIMIT, DEFAULT_SHARD_BYTES, WriteOptions
from covey.writing.split_writer import SplitWriter, stage_split
from covey.writing.target import TargetSplit

__all__ = ["CountWarning", "Serializer", "TFRecordWriter"]

_BLOCK_BYTES = 1 << 20
_BLOCK_RECORDS = 1024


class CountWarning(UserWarning):
    """The number of examples of a generator is not `total_examples`."""


class TFRecordWriter:
    """Writer of the examples of a generator as a split, in place of an existing one.

    The files of datum, TFDS and covey are replaced in one commit.

    Args:
        generator: Function that is called with ``split`` and ``gen_kwargs`` and yields (key, dict)
            pairs. The hash of the key determines the position in the shuffled order.
        serializer: Function that returns the record of a dict, such as a :class:`Serializer`.
        path: Directory of the dataset; created if it does not exist.
        split: Name of the split.
        total_examples: Number of examples of the generator; None if it is unknown.
        sparse_features: Features that some examples lack, or whose shape differs.
        gen_kwargs: Other arguments of the generator.

    >>> def birds(split):
    ...     yield "a", {"song": [0.5, 1.0], "species": "owl"}
    ...     yield "b", {"song": [1.5, 2.0], "species": "wren"}
    >>> writer = TFRecordWriter(birds, Serializer(), "birds", "train", total_examples=2)
    >>> writer.create_records()
    """

    # Options that datum does not have: attributes, set before the records are cached.
    label: str | None = None
    """Label feature (default: the only ClassLabel)."""
    shards: int | None = None
    """Number of shards."""
    records_per_shard: int | None = None
    """Number of records of each shard, if ``shards`` is None."""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    """Approximate size of each shard, if ``shards`` and ``records_per_shard`` are None."""
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    """Approximate number of bytes of records in memory; more are spilled to disk."""
    seed: int = 0
    """Seed of the shuffled order."""
    progress: bool | None = None
    """Show a progress bar (default: if stderr is a terminal)."""

    def __init__(
        self,
        generator: Callable[..., Iterable[tuple[Any, Mapping[str, Any]]]],
        serializer: Callable[[Any], bytes],
        path: AnyPath,
        split: str,
        total_examples: int | None,
        sparse_features: Iterable[str] | None = None,
        **gen_kwargs: Any,
    ) -> None:
        check_split_name(split)
        if not re.fullmatch(r"\w+", split):
            allowed = "letters, digits and '_', for datum's reader"
            raise DatasetError(option="split", found=split, allowed=allowed)
        if isinstance(sparse_features, str):
            raise FeatureError(
                option="sparse_features", found=sparse_features, allowed="a list of names"
            )
        if total_examples is not None and (
            not isinstance(total_examples, (int, np.integer)) or total_examples < 0
        ):
            raise DatasetError(
                option="total_examples", found=total_examples, allowed="an integer >= 0, or None"
            )
        self.generator = generator
        self.serializer = serializer
        self.path = check_local(path)
        # Absolute, because the generator may change the working directory.
        self._directory = Path(os.path.abspath(self.path))
        self.split = split
        self.total_examples = None if total_examples is None else int(total_examples)
        self.sparse_features = [] if sparse_features is None else list(map(str, sparse_features))
        self.gen_kwargs = {**gen_kwargs, "split": split}
        self.current_examples = 0
        """Number of cached examples."""
        self._cache: _RecordCache | None = None
        self._staging = ExitStack()  # deletes a cache that is not flushed

    def create_records(self) -> None:
        """Run the generator and write its examples."""
        self.cache_records()
        self.flush()

    def cache_records(self) -> None:
        """Run the generator, and serialize and sort its examples. The split does not change yet.

        Raises:
            FeatureError: If datum cannot describe all examples.
            SourceError: If the generator fails.
            DatasetError: If there are no examples.
        """
        self._staging.close()
        self._cache, options = None, self._options()
        with ExitStack() as stack:
            writer = stack.enter_context(stage_split(str(self._directory), options))
            cache = _RecordCache(writer, options, DatumSchema(self.sparse_features))
            with Progress(self.progress, self.total_examples, "reading", subject=self.split) as bar:
                for key, datum, record in self._records():
                    cache.add(key, datum, record, bar)
                cache.spill(bar)
            self._check_count(cache.records)
            cache.schema.entries()
            self._staging = stack.pop_all()
        weakref.finalize(self, self._staging.close)
        self.current_examples = cache.records
        self._cache = cache

    def _options(self) -> WriteOptions:
        # Without compression, which datum's reader does not support.
        return WriteOptions(
            split=self.split,
            seed=self.seed,
            shards=self.shards,
            records_per_shard=self.records_per_shard,
            shard_bytes=self.shard_bytes,
            mode="overwrite",
            memory_limit=self.memory_limit,
            workers=1,
        )

    def _records(self) -> Iterator[tuple[Key, Mapping[str, Any], bytes]]:
        """Yield the key, the dict and the record of each example."""
        position = 0
        try:
            for item in self.generator(**self.gen_kwargs):
                yield self._record(item)
                position += 1
        except CoveyError as error:
            error.example = position if error.example is None else error.example
            raise
        except Exception as error:
            reason = f"the generator failed: {type(error).__name__}: {error}"
            raise SourceError(reason, example=position) from error

    def _record(self, item: Any) -> tuple[Key, Mapping[str, Any], bytes]:
        is_pair = isinstance(item, (tuple, list)) and len(item) == 2
        if not is_pair or not isinstance(item[1], Mapping):
            raise FeatureError(
                f"the generator yielded {str(item)[:60]!r}; must be a pair of key and dict"
            )
        key, datum = item
        datum = self.add_shape_fields(datum) if self.sparse_features else datum
        try:
            record = self.serializer(datum)
        except CoveyError:
            raise
        except Exception as error:
            reason = f"the serializer failed: {type(error).__name__}: {error}"
            raise FeatureError(reason) from error
        if not isinstance(record, bytes):
            raise FeatureError(f"the serializer returned {type(record).__name__}; must be bytes")
        return key if isinstance(key, (str, bytes)) else str(key), datum, record

    def _check_count(self, count: int) -> None:
        if count == 0:
            reason = f"split {self.split!r} has no examples: the generator yielded none"
            raise DatasetError(reason, path=self.path)
        if self.total_examples not in (None, count):
            warnings.warn(
                f"split {self.split!r}: total_examples is {self.total_examples}, but the generator "
                f"yielded {count}; all of them are written",
                CountWarning,
                stacklevel=3,
            )

    def add_shape_fields(self, datum: Mapping[str, Any]) -> dict[str, Any]:
        """Return the dict with ``<name>_shape`` for each sparse feature of 2 or more dimensions."""
        shapes: dict[str, list[int]] = {}
        for name in self.sparse_features:
            shape = shape_of(datum[name]) if name in datum else ()
            if shape is None:
                raise FeatureError("is not an array; lists must have equal lengths", feature=name)
            if len(shape) > 1:
                sizes = [int(size or 0) for size in shape]
                given = datum.get(f"{name}_shape", sizes)
                if np.ravel(given).tolist() != sizes:
                    raise FeatureError(
                        f"is {given}; the name is reserved for the shape {sizes} of {name!r}",
                        feature=f"{name}_shape",
                    )
                shapes[f"{name}_shape"] = sizes
        return {**datum, **shapes}

    def flush(self) -> None:
        """Write the cached records."""
        self.flush_records()

    def flush_records(self) -> tuple[ShardInfo, int]:
        """Write the cached records.

        Returns:
            The number of records of each shard of the split, and the total size of the records.
        """
        if self._cache is None:
            raise DatasetError(
                f"no records are cached for split {self.split!r}",
                path=self.path,
                remedy="call cache_records() before flush()",
            )
        cache, self._cache = self._cache, None
        with self._staging:
            entries = cache.schema.entries()
            if self._shard_info().keys() - {self.split}:
                known = read_entries(LocalStorage(), str(self._directory))
                if known is not None:
                    entries = merge_entries(known, entries, str(self._directory))
            with Progress(self.progress, cache.records, "writing", subject=self.split) as bar:
                features = self._features(cache.schema)
                shards = cache.write(features, self.label, bar, entries_to_json(entries))
        return {self.split: {shard.name: shard.records for shard in shards}}, cache.bytes

    def _features(self, schema: DatumSchema) -> Features:
        serializer = self.serializer
        if not isinstance(serializer, Serializer):
            return schema.features()  # it is unknown which bytes are strings
        features = schema.features(strings=schema.strings - serializer.images)
        declared = serializer.features
        if declared is None:
            return features
        shapes = {
            name: features[name]
            for name in features
            if name not in declared and name.removesuffix("_shape") in self.sparse_features
        }
        return Features({**declared.nest(declared), **shapes}) if shapes else declared

    def _shard_info(self) -> ShardInfo:
        return datum_splits(LocalStorage(), str(self._directory)) or {}

    def save_shard_info(self, shard_info: ShardInfo) -> None:
        """Replace the splits of `shard_info` in ``shard_info.json``."""
        checked = check_shard_info(shard_info)
        with locked(self._directory):
            text = json.dumps({**self._shard_info(), **checked}, indent=1, ensure_ascii=False)
            atomic_write(self._directory / SHARD_INFO_FILE, text.encode())


class _RecordCache:
    """The records of a split, sorted by the hashes of their keys.

    Args:
        writer: Writer of the split.
        options: Options of the write.
        schema: Schema of the examples.
    """

    def __init__(self, writer: SplitWriter, options: WriteOptions, schema: DatumSchema) -> None:
        self.schema = schema
        self.records = 0
        self.bytes = 0
        """Size of the records, without their frames."""
        self._writer = writer
        self._options = options
        self._frames = _core.FrameBuffer(_BLOCK_BYTES)
        self._keys: list[Key] = []
        self._spool = Spool(
            writer.staging.path,
            memory_limit=options.memory_limit,
            order=options.order,
        )

    def add(self, key: Key, datum: Mapping[str, Any], record: bytes, progress: Progress) -> None:
        """Add an example and its record."""
        self.schema.add(datum, record)
        size = self._frames.append(record)
        self._keys.append(key)
        self.records += 1
        self.bytes += len(record)
        if size >= _BLOCK_BYTES or len(self._keys) >= _BLOCK_RECORDS:
            self.spill(progress)

    def spill(self, progress: Progress) -> None:
        """Move the records of the buffer to the spool."""
        if not self._keys:
            return
        block, keys = Block(*self._frames.take()), self._keys
        self._keys = []
        positions = np.arange(self.records - len(block), self.records, dtype=np.uint64)
        self._spool.add(block, make_rows(positions, block.lengths, keys, self._options.seed))
        progress.add(len(block), block.data.nbytes)

    def write(
        self, features: Features, label: str | None, progress: Progress, entries: str
    ) -> tuple[Shard, ...]:
        """Write and commit the records.

        Args:
            features: Features of the records.
            label: Label feature; None for the most likely one.
            progress: Progress bar.
            entries: Content of datum's description.

        Raises:
            DuplicateKeyError: If two records have the same key.
            DatasetError: If the features differ from those of the other splits.
        """
        self._writer.inspect()  # other splits may have been written since the records were added
        features = _unify_splits(self._writer.target, features)
        label = guess_label(features) if label is None else find_label(features, label)
        names: set[str] = set()
        if label is not None and is_string(features[label]):
            for block in self._spool.blocks():
                names.update(read_strings(features, label, block))
        classes = Classes(features, label, sorted(names))
        sidecars = {ENTRIES_FILE: entries}
        found = self._spool.finish(in_memory=True)
        with ThisProcess(self._options.write_threads) as pool:
            ordered = SortedRecords(
                pool,
                self._options,
                self._writer.staging.path,
                classes,
                [(run, None) for run in found.runs],
                found.table,
                found.longest,
                has_keys=True,
                reads_labels=True,
            )
            (result,) = self._writer.write(
                [ordered],
                features,
                classes,
                progress,
                sidecars=sidecars,
                list_shards=True,
                replaced_files="delete",  # datum replaces files in place
            )
        return result.shards


def _unify_splits(target: TargetSplit, features: Features) -> Features:
    """Return the features that fit the records and those of the other splits."""
    splits = () if target.info is None else target.info.splits
    for split in splits:
        if split.name == target.split:
            continue
        metadata = target.index_metadata(split.name)
        known = target.described_features() if metadata is None else metadata.features
        try:
            features = unify(known, features, allow_missing=True)
        except FeatureError as error:
            raise DatasetError(
                f"{error.reason}; all splits of a dataset must have the same features",
                path=target.path,
                feature=error.feature,
                remedy="write to another directory",
            ) from None
    return features
