"""Blocks of consecutive records of many shards in turn, by operations of tf.data alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from covey.adapters.tensorflow.map_examples import map_examples
from covey.adapters.tensorflow.tensors import no_autograph, tf
from covey.errors import DatasetError
from covey.index.build import open_reader
from covey.storage import Storage
from covey.tfrecord.compression import Compression

# Shards that are looked at before anything is streamed, and the records of all together.
_SHARDS_LOOKED_AT = 64
_RECORDS_LOOKED_AT = 4096


def stream(
    storage: Storage,
    files: Sequence[str],
    function: Callable[[Any], Any],
    *,
    classes: int,
    examples: int,
    cycle: int | None,
    compression: Compression,
    parallelism: int,
    threads: int | None,
    repeats: int,
    seed: int,
) -> Any:
    """Batches of so many blocks, each of so many consecutive records of a shard.

    Args:
        storage: Where the shards are;
        files: their paths.
        function: Makes an example of a record.
        classes: How many blocks a batch has,
        examples: and how many records a block.
        cycle: How many shards are read side by side; None for all.
        compression: Of the shards.
        parallelism: How many batches are decoded at once.
        threads: How many read shards, in whatever order they are done; None for one, in order.
        repeats: How often all of it comes; -1 for ever.
        seed: The order of shards.
    """
    cycle = min(cycle or len(files), len(files))
    _check_readable(storage, files[0])
    _look(storage, files, function, classes, examples, cycle, compression)

    @no_autograph  # type: ignore[untyped-decorator]
    def read(path: Any) -> Any:
        records = tf.data.TFRecordDataset(path, compression_type=compression or "")
        return records.batch(examples, drop_remainder=True)

    shards = tf.data.Dataset.from_tensor_slices(list(files)).shuffle(len(files), seed % 2**63)
    # A block is returned as one: the fewer steps there are between threads, the better.
    blocks = shards.interleave(
        read,
        cycle_length=cycle,
        num_parallel_calls=threads and min(threads, cycle),
        deterministic=None if threads is None else False,
    )
    size = classes * examples
    batches = blocks.repeat(repeats).batch(classes, drop_remainder=True)
    flat = batches.map(no_autograph(lambda records: tf.reshape(records, [size])))
    return map_examples(flat, function, size, parallelism=parallelism)


def _check_readable(storage: Storage, path: str) -> None:
    if not storage.is_remote:
        return
    try:
        tf.io.gfile.stat(path)
    except tf.errors.UnimplementedError:
        raise DatasetError(
            "TensorFlow cannot read such URLs, so these shards cannot be streamed; pass "
            "label= with the feature that tells the class, and covey reads them",
            path=path,
        ) from None


# The rule that examples of a class lie together.


def _look(
    storage: Storage,
    files: Sequence[str],
    function: Callable[[Any], Any],
    classes: int,
    examples: int,
    cycle: int,
    compression: Compression,
) -> None:
    """Look at the beginnings of shards, and warn if batches of them would not be balanced."""
    few = min(len(files), _SHARDS_LOOKED_AT)
    chosen = [files[number * len(files) // few] for number in range(few)]
    blocks_each = max(2, _RECORDS_LOOKED_AT // few // examples)
    # How many blocks of a shard a batch has.
    together = -(-classes // cycle)
    broken, alike, short = [], [], []
    heads = {
        path: _first_records(storage, path, blocks_each * examples, compression) for path in chosen
    }
    # Of all shards at once: to trace a function takes longer than to call it.
    labels = iter(_labels([each for records in heads.values() for each in records], function))
    for path, records in heads.items():
        if len(records) < examples:
            short.append(path)
        blocks = _cut(list(islice(labels, len(records))), examples)
        if any(len(set(block)) > 1 for block in blocks):
            broken.append(path)
        if any(len({block[0] for block in some}) < together for some in _cut(blocks, together)):
            alike.append(path)
    if broken:
        _warn(broken, f"examples of a class do not lie together, {examples} by {examples}")
    elif alike:
        _warn(
            alike,
            f"{together} blocks of {examples} in a row are of one class, and get into one batch, "
            f"as there are {cycle} shards in a cycle for {classes} classes",
        )
    if short:
        _warn(short, f"there are fewer than {examples} records, which are left out")


def _cut(items: list[Any], size: int) -> list[list[Any]]:
    """Pieces of so many; what is left over is left out."""
    return [items[end - size : end] for end in range(size, len(items) + 1, size)]


def _warn(shards: Sequence[str], what: str) -> None:
    others = f" and {len(shards) - 1} others" if len(shards) > 1 else ""
    warnings.warn(
        f"{shards[0]}{others}: {what}; batches will not be balanced: pass label= with the feature "
        "that tells the class, and shards may have any order",
        stacklevel=5,
    )


def _first_records(
    storage: Storage, path: str, count: int, compression: Compression
) -> list[bytes]:
    with open_reader(storage, path, on_error="raise") as reader:
        if reader.compression != compression and reader.compression is not None:
            raise DatasetError(
                f"the shard is {reader.compression}, but compression is {compression!r}; "
                f"pass compression={reader.compression!r}",
                path=path,
            )
        records = list(islice(reader, count))
    if records and reader.compression != compression:
        raise DatasetError(
            f"the shard is not compressed, but compression is {compression!r}; pass "
            "compression=None",
            path=path,
        )
    return records


def _labels(records: list[bytes], function: Callable[[Any], Any]) -> list[str]:
    """What tells the classes of records apart: the second part of what is made of them.

    Nothing, if there is no such part.
    """

    def label(record: Any) -> Any:
        made = function(record)
        is_pair = isinstance(made, tuple) and len(made) > 1 and tf.is_tensor(made[1])
        return made[1] if is_pair else tf.zeros([0])

    found = tf.data.Dataset.from_tensor_slices(records).map(label, num_parallel_calls=-1)
    if found.element_spec.shape == [0]:
        return []
    return [str(np.asarray(each).tolist()) for each in found.as_numpy_iterator()]
