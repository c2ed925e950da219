"""Writing, scanning and decoding whole TFRecord files, against TensorFlow."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

import covey
from benchmarks.data import FOLDER, SHARDS, Data
from benchmarks.measure import Table, in_turn, rate


def clear() -> None:
    """Remove output files, flush the disk, and allocate free memory once.

    On a virtual machine, memory that was free for a while is given back to the host and is slow to
    get again; without this, a caller that comes after a slow side would pay for it.
    """
    for path in FOLDER.glob("written-*"):
        path.unlink()
    os.sync()
    np.ones(3 << 29, np.uint8)


# Writing.


def write_columns(data: Data) -> None:
    for shard in range(SHARDS):
        with covey.RecordWriter(FOLDER / f"written-{shard}") as writer:
            for block in data.features.encode_blocks(data.part(shard)):
                writer.write_block(block)


def dicts(data: Data, shard: int) -> list[dict[str, Any]]:
    """Examples as dicts: bytes, an int, and a numpy array of floats."""
    columns = data.part(shard)
    names = list(columns)
    return [
        {
            name: value.tobytes() if name == "image" else value if value.ndim else int(value)
            for name, value in zip(names, row, strict=True)
        }
        for row in zip(*columns.values(), strict=True)
    ]


def write_dicts(features: covey.Features, shards: list[list[dict[str, Any]]]) -> None:
    for i, examples in enumerate(shards):
        with covey.RecordWriter(FOLDER / f"written-{i}") as writer:
            for example in examples:
                writer.write(features.encode(example))


def tensorflow_example(example: dict[str, Any]) -> bytes:
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[example["image"]])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[example["label"]])),
    }
    if "vector" in example:
        floats = tf.train.FloatList(value=example["vector"])
        feature["vector"] = tf.train.Feature(float_list=floats)
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def tensorflow_write(shards: list[list[dict[str, Any]]]) -> None:
    for i, examples in enumerate(shards):
        with tf.io.TFRecordWriter(str(FOLDER / f"written-{i}")) as writer:
            for example in examples:
                writer.write(tensorflow_example(example))


def writing(data: Data, table: Table, rounds: int) -> None:
    # Dicts, made before the measurement, for both sides.
    shards = [dicts(data, shard) for shard in range(SHARDS)]
    as_dicts = covey.Features({**data.features, "image": "bytes"})
    seconds = in_turn(
        {
            "columns": lambda: write_columns(data),
            "dicts": lambda: write_dicts(as_dicts, shards),
            "tensorflow": lambda: tensorflow_write(shards),
        },
        rounds,
        before=clear,
    )
    clear()
    for name, what in (("columns", "from columns"), ("dicts", "from dicts, one at a time")):
        table.add(
            f"encode + write {what}, one thread",
            data.name.upper(),
            rate(data.rows, seconds[name]),
            f"tf.io.TFRecordWriter + tf.train.Example {rate(data.rows, seconds['tensorflow'])}",
            f"{seconds['tensorflow'] / seconds[name]:.1f}x",
        )


# Scanning.


def scan(paths: list[str]) -> int:
    count = 0
    for path in paths:
        with covey.RecordReader(path) as reader:
            count += reader.count()
    return count


def tensorflow_scan(paths: list[str], batch: int, buffer: int, cycle: int) -> int:
    """Batch within the pipeline of each file, then interleave batches."""
    files = tf.data.Dataset.from_tensor_slices(paths)
    records = files.interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=buffer).batch(batch),
        cycle_length=cycle,
        num_parallel_calls=cycle,
        deterministic=False,
    ).prefetch(4)
    return sum(int(each.shape[0]) for each in records)


SCAN_SETTINGS = list(itertools.product((32, 128, 1024), (256 << 10, 8 << 20), (1, 2, 4)))


def scanning(data: Data, table: Table, rounds: int) -> None:
    best = fastest(
        {each: lambda each=each: tensorflow_scan(data.shards, *each) for each in SCAN_SETTINGS}
    )
    sides = {
        "covey": lambda: check(scan(data.shards), data.rows),
        "tensorflow": lambda: check(tensorflow_scan(data.shards, *best), data.rows),
    }
    seconds = in_turn(sides, rounds)
    table.add(
        "scan with full checksums, one thread",
        data.name.upper(),
        rate(data.rows, seconds["covey"]),
        f"tf.data.TFRecordDataset, best of {len(SCAN_SETTINGS)} settings (batch, buffer, files at "
        f"once {best}) {rate(data.rows, seconds['tensorflow'])}",
        f"{seconds['tensorflow'] / seconds['covey']:.1f}x",
    )


# Decoding.


def read_blocks(data: Data) -> Iterator[covey.tfrecord.Block]:
    """Yield the blocks of tasks of decoding threads: 2 MiB, or one batch if that is more."""
    for path in data.shards:
        with covey.RecordReader(path) as reader:
            for block in reader.blocks(verify_data=False):
                rows = max(1, (2 << 20) // (128 * int(block.lengths.mean()))) * 128
                yield from (block[i : i + rows] for i in range(0, len(block), rows))


def decode(data: Data, blocks: Iterable[covey.tfrecord.Block] | None = None) -> int:
    """Decode blocks in two threads; by default those of the files."""
    count = 0
    with ThreadPoolExecutor(2) as pool:
        waiting: deque[Any] = deque()
        for block in read_blocks(data) if blocks is None else blocks:
            waiting.append(pool.submit(data.features.decode_batch, block))
            if len(waiting) > 3:
                count += len(waiting.popleft().result()["label"])
        return count + sum(len(each.result()["label"]) for each in waiting)


def tensorflow_decode(data: Data, cycle: int, buffer: int) -> int:
    specs = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    if "vector" in data.features:
        specs["vector"] = tf.io.FixedLenFeature([128], tf.float32)

    def batches(path: Any) -> Any:
        records = tf.data.TFRecordDataset(path, buffer_size=buffer).batch(128)
        return records.map(lambda batch: tf.io.parse_example(batch, specs))

    dataset = (
        tf.data.Dataset.from_tensor_slices(data.shards)
        .interleave(batches, cycle_length=cycle, num_parallel_calls=cycle, deterministic=False)
        .prefetch(4)
    )
    return sum(int(batch["label"].shape[0]) for batch in dataset)


DECODE_SETTINGS = list(itertools.product((2, 4, 8), (256 << 10, 8 << 20)))


def decoding(data: Data, table: Table, rounds: int) -> None:
    best = fastest(
        {each: lambda each=each: tensorflow_decode(data, *each) for each in DECODE_SETTINGS}
    )
    blocks = list(read_blocks(data))
    sides = {
        "covey": lambda: check(decode(data), data.rows),
        "mapped": lambda: check(decode(data, blocks), data.rows),
        "tensorflow": lambda: check(tensorflow_decode(data, *best), data.rows),
    }
    seconds = in_turn(sides, rounds)
    work = "read + decode into batches of 128 columns, two threads"
    for name, what in (("covey", work), ("mapped", f"{work}, files already mapped")):
        table.add(
            what,
            data.name.upper(),
            rate(data.rows, seconds[name]),
            f"tf.data with parse_example in each file's pipeline, best of {len(DECODE_SETTINGS)} "
            f"settings (files at once, buffer {best}) {rate(data.rows, seconds['tensorflow'])}",
            f"{seconds['tensorflow'] / seconds[name]:.1f}x",
        )


def fastest(sides: dict[Any, Any]) -> Any:
    """Return the fastest setting of the opponent, from two runs each."""
    seconds = in_turn(sides, 2)
    return min(seconds, key=seconds.__getitem__)


def check(found: int, expected: int) -> None:
    if found != expected:
        raise SystemExit(f"{found} records were read, {expected} were written")


def versions() -> Iterator[str]:
    yield f"covey {covey.__version__}"
    yield f"TensorFlow {tf.__version__}"


def run(datasets: list[Data], rounds: int) -> Table:
    table = Table(
        f"Writing and reading whole files ({', '.join(versions())})",
        ["work", "data", "covey", "other", "ratio"],
    )
    table.begin()
    for data in datasets:
        data.write()
        writing(data, table, rounds)
        scanning(data, table, rounds)
        decoding(data, table, rounds)
    return table
