"""datum's writer, on covey's engine: a generator and a serializer to a dataset.

The directory is one that covey and TFDS open, and datum's reader does.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covey._progress import Progress
from covey.compat.datum_schema import SchemaTracker, shape_of
from covey.compat.datum_split import RawSplit
from covey.compat.serializer import Serializer
from covey.dataset_info import check_split_name
from covey.errors import CoveyError, DatasetError, FeatureError, SourceError
from covey.filenames import ENTRIES_FILE
from covey.schema import Features
from covey.schema.datum import (
    DatumEntry,
    ShardInfo,
    check_shard_info,
    check_split,
    entries_to_json,
    merge_entries,
    read_entries,
    read_shard_info,
    save_shard_info,
)
from covey.shuffle.keys import RecordOrder
from covey.urls import check_local
from covey.writing.shards import Sharding
from covey.writing.split_writer import SplitWriter

__all__ = ["CountWarning", "Serializer", "TFRecordWriter"]


class CountWarning(UserWarning):
    """A generator yielded more or fewer examples than it was said to."""


class TFRecordWriter:
    """Writes what a generator yields as a split of a dataset, in place of the old one.

    Beside the files of covey and TFDS, datum's reader finds its own. Either all of them are the new
    ones, or nothing has changed.

    Args:
        generator: Called with ``split`` and ``gen_kwargs``; yields pairs of a key, which decides
            the place in the shuffled order, and a dict of values.
        serializer: Makes the bytes of a tf.train.Example of such a dict: a :class:`Serializer`, or
            anything that can be called.
        path: The directory of the dataset; made if there is none.
        split: What these examples are: ``"train"``, ``"val"``, ...
        total_examples: How many the generator will yield; None if nobody knows.
        sparse_features: The features whose shape differs between examples, or that some lack.
        gen_kwargs: For the generator.

    >>> def birds(split):
    ...     yield "a", {"song": [0.5, 1.0], "species": "owl"}
    ...     yield "b", {"song": [1.5, 2.0], "species": "wren"}
    >>> writer = TFRecordWriter(birds, Serializer(), "birds", "train", total_examples=2)
    >>> writer.create_records()
    """

    # What datum has no arguments for: set these on a writer, or in a class of your own, before
    # records are cached.
    label: str | None = None
    """The feature that tells the class; by default the only ClassLabel, if there is one."""
    shards: int | None = None
    """How many files; or"""
    records_per_shard: int | None = None
    """how many examples in each; or"""
    shard_bytes: int = 256 << 20
    """about how many bytes in each."""
    memory_limit: int = 512 << 20
    """About how many bytes of records to hold before they are spilled to disk."""
    seed: int = 0
    """Another one gives another order."""
    progress: bool | None = None
    """Whether to show how far it is; by default where somebody looks."""

    def __init__(
        self,
        generator: Callable[..., Iterable[tuple[Any, Mapping[str, Any]]]],
        serializer: Callable[[Any], bytes],
        path: str | os.PathLike[str],
        split: str,
        total_examples: int | None,
        sparse_features: Iterable[str] | None = None,
        **gen_kwargs: Any,
    ) -> None:
        check_split_name(split)
        check_split(split)
        if isinstance(sparse_features, str):
            raise FeatureError(
                option="sparse_features", found=sparse_features, allowed="a list of names"
            )
        if total_examples is not None and (
            not isinstance(total_examples, (int, np.integer)) or total_examples < 0
        ):
            raise DatasetError(
                option="total_examples",
                found=total_examples,
                allowed="an integer, 0 or more, or None",
            )
        self.generator = generator
        self.serializer = serializer
        self.path = check_local(path)
        # Absolute, for whatever makes the examples may change the directory it works in.
        self._directory = Path(os.path.abspath(path))
        self.split = split
        self.total_examples = None if total_examples is None else int(total_examples)
        self.sparse_features = list(sparse_features or ())
        self.gen_kwargs = {**gen_kwargs, "split": split}
        self.current_examples = 0
        """How many were cached."""
        self._cache: tuple[RawSplit, SchemaTracker] | None = None
        self._finalizer: Any = None  # removes a cache that nobody flushed

    def create_records(self) -> None:
        """Run the generator, and write what it yields."""
        self.cache_records()
        self.flush()

    def cache_records(self) -> None:
        """Run the generator, serialise what it yields, and put it into its order.

        Nothing of it can be seen before :meth:`flush`.

        Raises:
            FeatureError: If examples cannot be read together, naming them.
            SourceError: If the generator fails.
            DatasetError: If it yields nothing.
        """
        if self._cache is not None:
            self._finalizer()
            self._cache = None
        account = SchemaTracker(self.sparse_features)
        with Progress(self.progress, self.total_examples, f"caching {self.split}") as shown:
            raw = RawSplit(
                self._directory,
                self.split,
                output=self._output(),
                memory_limit=self.memory_limit,
                progress=shown.add,
            )
            try:
                for number, (key, datum) in enumerate(self._examples()):
                    if self.sparse_features:
                        datum = self._about(number, key, self.add_shape_fields, datum)
                    record = self._about(number, key, self.serializer, datum)
                    if not isinstance(record, bytes):
                        raise FeatureError(
                            f"example {number} (key {key!r}): the serializer returned "
                            f"{type(record).__name__}; must be bytes"
                        )
                    account.add(datum, record, number)
                    raw.add(key if isinstance(key, (str, bytes)) else str(key), record)
                raw.flush()
                self._check_count(raw.records)
                account.entries()  # says now what would keep them from being read
            except BaseException:
                raw.abort()
                raise
        self.current_examples = raw.records
        self._cache = raw, account
        self._finalizer = weakref.finalize(self, raw.abort)

    def _output(self) -> SplitWriter:
        return SplitWriter(
            ordering=RecordOrder(),
            seed=self.seed,
            sharding=Sharding(self.shards, self.records_per_shard, self.shard_bytes),
            compression=None,  # datum's reader knows none
            compression_level=0,
            workers=1,
        )

    def _examples(self) -> Iterator[tuple[Any, Any]]:
        number = 0
        try:
            for item in self.generator(**self.gen_kwargs):
                try:
                    key, datum = item
                except (TypeError, ValueError):
                    key, datum = None, None
                if not isinstance(datum, Mapping):
                    raise FeatureError(
                        f"example {number}: the generator yielded {str(item)[:60]!r}; must be a "
                        "pair of a key and a dict of values"
                    )
                yield key, datum
                number += 1
        except CoveyError:
            raise
        except Exception as error:
            raise SourceError(
                f"example {number}: the generator failed: {type(error).__name__}: {error}",
            ) from error

    def _about(self, number: int, key: Any, make: Callable[[Any], Any], datum: Any) -> Any:
        """Do something with an example, and name it if that fails."""
        try:
            return make(datum)
        except CoveyError as error:
            raise FeatureError(f"example {number} (key {key!r}): {error}") from None
        except Exception as error:
            raise FeatureError(
                f"example {number} (key {key!r}): the serializer failed: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _check_count(self, found: int) -> None:
        if found == 0:
            raise DatasetError(
                f"there are no examples to write as split {self.split!r}: the generator "
                "yielded none",
                path=self.path,
            )
        if self.total_examples not in (None, found):
            warnings.warn(
                f"split {self.split!r}: total_examples is {self.total_examples}, but the generator "
                f"yielded {found}; all of those are written",
                CountWarning,
                stacklevel=3,
            )

    def add_shape_fields(self, datum: Mapping[str, Any]) -> dict[str, Any]:
        """The datum, with ``<name>_shape`` for each sparse feature of two or more dimensions."""
        shapes: dict[str, list[int]] = {}
        for name in self.sparse_features:
            shape = shape_of(datum[name]) if name in datum else ()
            if shape is None:
                raise FeatureError(
                    f"feature {name!r} is not an array; nested lists must be of equal lengths"
                )
            if len(shape) > 1:
                sizes = [int(size or 0) for size in shape]
                given = datum.get(f"{name}_shape", sizes)
                if list(given) != sizes:
                    raise FeatureError(
                        f"feature '{name}_shape' is {given}, but that name is for the shape of the "
                        f"sparse feature {name!r}, {sizes}; rename it"
                    )
                shapes[f"{name}_shape"] = sizes
        return {**datum, **shapes}

    def flush(self) -> None:
        """Write what was cached."""
        self.flush_records()

    def flush_records(self) -> tuple[ShardInfo, int]:
        """Write what was cached, and say of it what is to be said, in all files at once.

        Returns:
            The number of records in each file of the split, and the bytes of all records.
        """
        if self._cache is None:
            raise DatasetError(
                f"nothing is cached for split {self.split!r}; call cache_records() before "
                "flush(), or create_records() for both",
                path=self.path,
            )
        (raw, account), self._cache = self._cache, None
        found = account.entries()
        try:
            texts = {ENTRIES_FILE: entries_to_json(self._merge(raw.directory, found))}
            with Progress(self.progress, raw.records, f"writing {self.split}") as shown:
                shards = raw.write(self._features(account, found), self.label, shown, texts)
        finally:
            self._finalizer()
        shard_info = {self.split: {shard.name: shard.records for shard in shards}}
        self.save_shard_info(shard_info)
        return shard_info, raw.bytes

    def _features(self, account: SchemaTracker, entries: Mapping[str, DatumEntry]) -> Features:
        serializer = self.serializer
        if not isinstance(serializer, Serializer):
            return account.features(entries, ())  # who knows what became of strings
        features = account.features(entries, account.texts - serializer.images)
        declared = serializer.features
        if declared is None:
            return features
        shapes = {
            name: features[name]
            for name in features
            if name not in declared and name.removesuffix("_shape") in self.sparse_features
        }
        return Features({**declared.nest(declared), **shapes}) if shapes else declared

    def _merge(self, directory: Path, found: Mapping[str, DatumEntry]) -> Mapping[str, DatumEntry]:
        """What fits this split and all others."""
        others = read_shard_info(directory).keys() - {self.split}
        known = read_entries(directory) if others else None
        if known is None:
            return found
        return merge_entries(known, found, f"{directory}: split {', '.join(sorted(others))}")

    def save_shard_info(self, shard_info: ShardInfo) -> None:
        """Put shards in the place of what ``shard_info.json`` has of the same splits."""
        save_shard_info(self._directory, check_shard_info(shard_info))
