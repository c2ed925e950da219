"""Streaming of shards without a known label: blocks of consecutive records of shards in turn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from covey.adapters.tensorflow.map_examples import map_examples
from covey.adapters.tensorflow.tensors import no_autograph, tf
from covey.errors import DatasetError
from covey.index.build import open_reader
from covey.storage import Storage
from covey.tfrecord.compression import Compression

# Shards that are checked before streaming, and the records of all of them together.
_CHECKED_SHARDS = 64
_CHECKED_RECORDS = 4096


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
    """Return a tf.data.Dataset of batches of blocks of consecutive records.

    Args:
        storage: The storage of the shards.
        files: The paths of the shards.
        function: A function that returns an example for a record.
        classes: The number of blocks in a batch.
        examples: The number of records in a block.
        cycle: The number of shards that are read concurrently; None is all.
        compression: The compression of the shards.
        parallelism: The number of batches that are decoded in parallel.
        threads: The number of threads that read shards; None reads without threads. The batches
            are the same.
        repeats: The number of epochs; -1 is unlimited.
        seed: The seed of the order of the shards.

    Raises:
        DatasetError: If no shard has a block, or TensorFlow cannot read the shards.
    """
    cycle = min(cycle or len(files), len(files))
    _check_readable(storage, files[0])
    _check_blocks(storage, files, function, classes, examples, cycle, compression)

    @no_autograph  # type: ignore[untyped-decorator]
    def read(path: Any) -> Any:
        records = tf.data.TFRecordDataset(path, compression_type=compression or "")
        return records.batch(examples, drop_remainder=True)

    # A block is one element, so that few elements pass between threads.
    @no_autograph  # type: ignore[untyped-decorator]
    def epoch(order: Any) -> Any:
        shards = tf.data.Dataset.from_tensor_slices(tf.gather(list(files), order))
        return shards.interleave(
            read,
            cycle_length=cycle,
            num_parallel_calls=threads and min(threads, cycle),
            deterministic=None if threads is None else True,
        )

    blocks = _orders(len(files), classes, repeats, seed).flat_map(epoch)
    size = classes * examples
    batches = blocks.batch(classes, drop_remainder=True)
    if repeats == -1:
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        batches = batches.apply(endless)
    flat = batches.map(no_autograph(lambda records: tf.reshape(records, [size])))
    return map_examples(flat, function, size, parallelism=parallelism)


def _orders(shards: int, classes: int, repeats: int, seed: int) -> Any:
    """Return a dataset of the order of the shards in each epoch, a function of seed and epoch.

    A batch that straddles two epochs has blocks of the last shards of one and of the first shards
    of the next. These are distinct if all shards have the same number of blocks.
    """
    # The last shards of an epoch, and their first permitted positions in the next one. Epochs of
    # equal shards end `step`, 2 * `step`, ... blocks after the begin of a batch.
    step = math.gcd(shards, classes)
    count = classes - step if classes <= shards else 0
    permitted = classes - step * (np.arange(count)[::-1] // step + 1)

    @no_autograph  # type: ignore[untyped-decorator]
    def next_order(previous: Any, epoch: Any) -> Any:
        key = tf.stack([tf.constant(seed % 2**63, tf.int64), epoch])
        shuffled = tf.argsort(tf.random.stateless_uniform([shards], key), stable=True)
        last = previous[shards - count :, tf.newaxis]
        first = tf.scatter_nd(last, permitted.astype(np.int32), [shards])

        @no_autograph  # type: ignore[untyped-decorator]
        def place(position: Any, placed: Any, first: Any) -> Any:
            is_permitted = tf.gather(first, shuffled) <= position
            shard = shuffled[tf.argmax(tf.cast(is_permitted, tf.int32))]
            return (
                position + 1,
                tf.tensor_scatter_nd_update(placed, [[position]], [shard]),
                tf.tensor_scatter_nd_update(first, [[shard]], [shards]),
            )

        state = (0, tf.zeros_like(shuffled), first)
        _, placed, first = tf.while_loop(lambda position, *_: position < count, place, state)
        others = tf.boolean_mask(shuffled, tf.gather(first, shuffled) < shards)
        order = tf.ensure_shape(tf.concat([placed[:count], others], 0), [shards])
        return order, order

    epochs = tf.data.Dataset.range(2**62 if repeats == -1 else repeats)
    return epochs.scan(tf.range(shards), next_order)


def _check_readable(storage: Storage, path: str) -> None:
    if not storage.is_remote:
        return
    try:
        tf.io.gfile.stat(path)
    except tf.errors.UnimplementedError:
        raise DatasetError(
            "TensorFlow cannot read such URLs, so the shards cannot be streamed",
            path=path,
            remedy="pass label= with the label feature, so that covey reads them",
        ) from None


def _check_blocks(
    storage: Storage,
    files: Sequence[str],
    function: Callable[[Any], Any],
    classes: int,
    examples: int,
    cycle: int,
    compression: Compression,
) -> None:
    """Check the first records of shards, and warn if batches would not be balanced.

    Raises:
        DatasetError: If no shard has a block: an endless stream of them would never yield.
    """
    count = min(len(files), _CHECKED_SHARDS)
    checked = [files[number * len(files) // count] for number in range(count)]
    blocks_each = max(2, _CHECKED_RECORDS // count // examples)
    # Blocks of one shard in a batch.
    together = -(-classes // cycle)
    mixed, repeated, short = [], [], []
    heads = {
        path: _first_records(storage, path, blocks_each * examples, compression) for path in checked
    }
    others = (
        _first_records(storage, path, examples, compression) for path in files if path not in heads
    )
    if all(len(records) < examples for records in chain(heads.values(), others)):
        raise DatasetError(
            f"no shard has {examples} records, one block of a batch",
            path=files[0],
            option="example_per_class",
            found=examples,
        )
    # All shards in one pipeline: tracing the function takes longer than calling it.
    labels = iter(_labels([each for records in heads.values() for each in records], function))
    for path, records in heads.items():
        if len(records) < examples:
            short.append(path)
        blocks = _chunks(list(islice(labels, len(records))), examples)
        if any(len(set(block)) > 1 for block in blocks):
            mixed.append(path)
        if any(
            len({block[0] for block in group}) < together for group in _chunks(blocks, together)
        ):
            repeated.append(path)
    if mixed:
        _warn(mixed, f"examples of a class are not consecutive in blocks of {examples}")
    elif repeated:
        _warn(
            repeated,
            f"{together} consecutive blocks of {examples} have one class, and are in one batch, "
            f"because a cycle has {cycle} shards for {classes} classes",
        )
    if short:
        _warn(short, f"there are fewer than {examples} records, which are dropped")


def _chunks(items: list[Any], size: int) -> list[list[Any]]:
    """Return chunks of ``size`` items, without an incomplete last one."""
    return [items[end - size : end] for end in range(size, len(items) + 1, size)]


def _warn(shards: Sequence[str], reason: str) -> None:
    others = f" and {len(shards) - 1} others" if len(shards) > 1 else ""
    warnings.warn(
        f"{shards[0]}{others}: {reason}; batches will not be balanced: pass label= with the label "
        "feature, then the order of the records does not matter",
        stacklevel=5,
    )


def _first_records(
    storage: Storage, path: str, count: int, compression: Compression
) -> list[bytes]:
    with open_reader(storage, path, on_error="raise") as reader:
        if reader.compression != compression and reader.compression is not None:
            raise DatasetError(
                f"the shard is {reader.compression}",
                path=path,
                option="compression",
                found=compression,
                remedy=f"pass compression={reader.compression!r}",
            )
        records = list(islice(reader, count))
    if records and reader.compression != compression:
        raise DatasetError(
            "the shard is not compressed",
            path=path,
            option="compression",
            found=compression,
            remedy="pass compression=None",
        )
    return records


def _labels(records: list[bytes], function: Callable[[Any], Any]) -> list[str]:
    """Return the labels of records: the second component of their examples.

    The list is empty if the examples have no second component.
    """

    def label(record: Any) -> Any:
        made = function(record)
        is_pair = isinstance(made, tuple) and len(made) > 1 and tf.is_tensor(made[1])
        return made[1] if is_pair else tf.zeros([0])

    found = tf.data.Dataset.from_tensor_slices(records).map(label, num_parallel_calls=-1)
    if found.element_spec.shape == [0]:
        return []
    return [str(np.asarray(each).tolist()) for each in found.as_numpy_iterator()]
