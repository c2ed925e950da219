"""datum's TFRecordWriter and Serializer.

The directory that they write can be opened by datum, TFDS and covey.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from covey._files import atomic_write
from covey._locks import locked
from covey._progress import Progress
from covey.compat.datum_schema import DatumSchema, shape_of
from covey.compat.datum_split import RecordCache
from covey.dataset_info import check_split_name
from covey.errors import CoveyError, DatasetError, FeatureError, SourceError
from covey.filenames import ENTRIES_FILE, SHARD_INFO_FILE
from covey.schema import Features, Tensor
from covey.schema.columns import as_array
from covey.schema.datum import (
    ShardInfo,
    check_shard_info,
    check_split,
    entries_to_json,
    merge_entries,
    read_entries,
    read_shard_info,
    shard_info_to_json,
)
from covey.shuffle.keys import Key
from covey.storage import LocalStorage
from covey.urls import check_local, shown
from covey.writing.options import WriteOptions
from covey.writing.split_writer import stage_split

__all__ = ["CountWarning", "Serializer", "TFRecordWriter"]

_MAX_SCHEMAS = 256


class CountWarning(UserWarning):
    """The number of examples of a generator is not `total_examples`."""


class Serializer:
    """Function that encodes a dict of values as a tf.train.Example.

    Args:
        features: Schema of the dicts. By default integers and bools are stored as int64, floats as
            float32, strings and bytes as bytes, arrays as flat lists; an empty array is omitted.
        images: Features that are paths of image files, whose content is stored.

    >>> record = Serializer()({"label": 3, "song": [[0.5, 1.0], [1.5, 2.0]]})
    >>> Features({"song": Tensor("float32", (2, 2))}).decode(record)["song"][1]
    array([1.5, 2. ], dtype=float32)
    """

    def __init__(
        self,
        features: Features | Mapping[str, Any] | None = None,
        *,
        images: Iterable[str] = (),
    ) -> None:
        self.features = None if features is None else Features(features)
        self.images = frozenset([images] if isinstance(images, str) else images)
        self._schemas: dict[tuple[tuple[str, str, Any], ...], Features] = {}

    def __call__(self, datum: Mapping[str, Any]) -> bytes:
        """Return the record of an example."""
        if not isinstance(datum, Mapping):
            raise FeatureError(f"the datum is of type {type(datum).__name__}; must be a dict")
        values = {
            name: _read_image(name, value) if name in self.images else value
            for name, value in datum.items()
        }
        kinds: list[tuple[str, str, Any]] = []
        declared = self.features or Features({})
        if self.features is not None:
            # The shapes that add_shape_fields() adds are not declared.
            for name in values:
                if name not in declared and name.removesuffix("_shape") in declared:
                    kinds.append((name, "int64", (len(values[name]),)))
        else:
            for name in tuple(values):
                try:
                    dtype, is_scalar, value = _flatten(values.pop(name))
                except FeatureError as error:
                    error.feature = name
                    raise
                if is_scalar or len(value):
                    values[name] = value
                    kinds.append((name, dtype, () if is_scalar else (None,)))
        return self._schema(tuple(kinds)).encode(values)

    def _schema(self, kinds: tuple[tuple[str, str, Any], ...]) -> Features:
        """Return the declared features and others."""
        if kinds not in self._schemas:
            if len(self._schemas) >= _MAX_SCHEMAS:
                self._schemas.clear()
            declared = {} if self.features is None else self.features.nest(self.features)
            others = {name: Tensor(dtype, shape) for name, dtype, shape in kinds}
            self._schemas[kinds] = Features({**declared, **others})
        return self._schemas[kinds]


def _flatten(value: Any) -> tuple[str, bool, Any]:
    """Return the dtype of a value, whether it is a scalar, and the value or flat list of values."""
    if isinstance(value, (str, bytes)):
        return "bytes", True, value
    if isinstance(value, (bytearray, memoryview)):
        return "bytes", True, bytes(value)
    if isinstance(value, (bool, int)):
        return "int64", True, int(value)
    if isinstance(value, float):
        return "float32", True, value
    array = as_array(value)
    if array.dtype.kind in "SU" and isinstance(value, (list, tuple)):
        array = np.array(value, object)  # strings of NumPy lose trailing zero bytes
    kind = array.dtype.kind
    if kind in "biu":
        return "int64", False, array.astype(np.int64 if kind == "b" else array.dtype).ravel()
    if kind == "f":
        return "float32", False, array.ravel()
    flat = array.ravel().tolist()
    others = [each for each in flat if not isinstance(each, (str, bytes))]
    if kind not in "SUTO" or others:
        found = f"dtype {array.dtype}" if kind != "O" else f"type {type(others[0]).__name__}"
        raise FeatureError(
            f"a value has {found}; must be numbers, or strings and bytes, in lists of equal lengths"
        )
    return "bytes", False, flat


def _read_image(name: str, value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike)):
        return value
    try:
        return Path(value).read_bytes()
    except OSError as error:
        reason = f"the image {shown(os.fspath(value))!r} cannot be read: {error.strerror}"
        raise FeatureError(reason, feature=name) from None


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
    shard_bytes: int = 256 << 20
    """Approximate size of each shard, if ``shards`` and ``records_per_shard`` are None."""
    memory_limit: int = 512 << 20
    """Approximate number of bytes of records in memory; more are spilled to disk."""
    seed: int = 0
    """Seed of the shuffled order."""
    progress: bool | None = None
    """Show a progress bar (default: if stderr is a terminal)."""

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
                option="total_examples", found=total_examples, allowed="an integer >= 0, or None"
            )
        self.generator = generator
        self.serializer = serializer
        self.path = check_local(path)
        # Absolute, because the generator may change the working directory.
        self._directory = Path(os.path.abspath(path))
        self.split = split
        self.total_examples = None if total_examples is None else int(total_examples)
        self.sparse_features = list(sparse_features or ())
        self.gen_kwargs = {**gen_kwargs, "split": split}
        self.current_examples = 0
        """Number of cached examples."""
        self._cache: tuple[RecordCache, DatumSchema] | None = None
        self._staging = ExitStack()
        self._finalizer: Any = None  # deletes a cache that is not flushed

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
        if self._cache is not None:
            self._finalizer()
            self._cache = None
        schema = DatumSchema(self.sparse_features)
        options = self._options()
        with ExitStack() as stack:
            writer = stack.enter_context(stage_split(str(self._directory), options))
            title = f"caching {self.split}"
            with Progress(self.progress, self.total_examples, title) as bar:
                cache = RecordCache(writer, options, bar.add)
                for key, datum, record in self._records():
                    schema.add(datum, record)
                    cache.add(key, record)
                cache.flush()
            self._check_count(cache.records)
            schema.entries()
            self._staging = stack.pop_all()
        self.current_examples = cache.records
        self._cache = cache, schema
        self._finalizer = weakref.finalize(self, self._staging.close)

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
        generator: Iterator[Any] = iter(())
        while True:
            try:
                if not position:
                    generator = iter(self.generator(**self.gen_kwargs))
                item = next(generator, None)
            except CoveyError:
                raise
            except Exception as error:
                reason = f"the generator failed: {type(error).__name__}: {error}"
                raise SourceError(reason, example=position) from error
            if item is None:
                return
            is_pair = isinstance(item, (tuple, list)) and len(item) == 2
            if not is_pair or not isinstance(item[1], Mapping):
                reason = f"the generator yielded {str(item)[:60]!r}; must be a pair of key and dict"
                raise FeatureError(reason, example=position)
            try:
                yield self._record(*item)
            except CoveyError as error:
                error.example = position if error.example is None else error.example
                raise
            position += 1

    def _record(self, key: Any, datum: Mapping[str, Any]) -> tuple[Key, Mapping[str, Any], bytes]:
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
                if list(given) != sizes:
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
        (cache, schema), self._cache = self._cache, None
        with self._staging:
            entries = schema.entries()
            if read_shard_info(self._directory).keys() - {self.split}:
                known = read_entries(LocalStorage(), str(self._directory))
                if known is not None:
                    entries = merge_entries(known, entries, str(self._directory))
            with Progress(self.progress, cache.records, f"writing {self.split}") as bar:
                sidecars = {ENTRIES_FILE: entries_to_json(entries)}
                shards = cache.write(self._features(schema), self.label, bar, sidecars)
        shard_info = {self.split: {shard.name: shard.records for shard in shards}}
        self.save_shard_info(shard_info)
        return shard_info, cache.bytes

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

    def save_shard_info(self, shard_info: ShardInfo) -> None:
        """Replace the splits of `shard_info` in ``shard_info.json``."""
        checked = check_shard_info(shard_info)
        path = self._directory / SHARD_INFO_FILE
        with locked(self._directory):
            known = read_shard_info(self._directory)
            if {**known, **checked} != known or not path.exists():
                atomic_write(path, shard_info_to_json({**known, **checked}).encode())
