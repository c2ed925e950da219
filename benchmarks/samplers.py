"""The samplers and adapters, P = 32 classes x K = 4, against the original implementations."""

from __future__ import annotations

import glob
import importlib.metadata
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

import covey
from benchmarks import opponents
from benchmarks.data import FOLDER, SHARDS, Data, write_array_record
from benchmarks.loading import BATCH, K, P, endless, exact, use
from benchmarks.measure import Table, in_turn, rate
from benchmarks.reading import dataset
from covey.samplers import MultiShotMemorySampler, SingleShotMemorySampler

ROWS, CLASSES = 60_000, 1000


def versions() -> str:
    names = ("tensorflow-cpu", "keras", "torch", "jax", "pytorch-metric-learning", "array_record")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


# The algorithm of TensorFlow Similarity's memory samplers, reimplemented: the package itself
# requires a Keras older than 3.


class TheirMultiShot:
    """Two indexes built by a loop over all examples, a copy of x, and a list of rows per batch."""

    def __init__(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        import tensorflow as tf

        self.classes = list({int(each) for each in y})
        wanted = defaultdict(list)
        for number, each in enumerate([int(each) for each in y]):
            wanted[each].append(number)
        chosen = [number for each in self.classes for number in wanted[each]]
        random.shuffle(chosen)
        with tf.device("/cpu:0"):
            self.x = tf.gather(x, chosen)
            self.y = tf.gather(y, chosen)
        self.by_class = defaultdict(list)
        for number, each in enumerate([int(each) for each in y]):
            self.by_class[each].append(number)
        # The fastest way to serve: tensors by item are slower.
        self.x, self.y = self.x.numpy(), self.y.numpy()

    def batch(self) -> Any:
        import tensorflow as tf

        chosen: list[int] = []
        for each in random.sample(self.classes, k=P):
            chosen.extend(random.sample(self.by_class[each], k=K))
        # Via numpy: a list of rows takes a hundred times as long.
        x = np.array([self.x[number] for number in chosen])
        y = np.array([self.y[number] for number in chosen])
        return tf.convert_to_tensor(x), tf.convert_to_tensor(y)


def their_single_shot(x: NDArray[Any]) -> Any:
    import tensorflow as tf

    drawn = tf.random.uniform((BATCH,), maxval=len(x), dtype="int32")
    y = tf.convert_to_tensor([int(number) for number in drawn])
    return tf.convert_to_tensor([x[number] for number in y]), y


def memory(table: Table, rounds: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (ROWS, 28, 28, 1), dtype=np.uint8)
    y = rng.permutation(np.arange(ROWS) % CLASSES)
    ours = MultiShotMemorySampler(x, y, P, K, 10**9, seed=1, framework="numpy")
    theirs = TheirMultiShot(x, y)
    planned = iter(ours.plan.batches(0, 1000 * (rounds + 1)))

    def index() -> None:
        for ids in islice(planned, 1000):
            _ = x[ids], y[ids]

    same = SingleShotMemorySampler(
        x, lambda x, y, count, is_warmup: (x, y), BATCH, 10**9, seed=1, framework="numpy"
    )
    sides: dict[str, Callable[[], object]] = {
        "make": lambda: MultiShotMemorySampler(x, y, P, K, framework="numpy"),
        "their making": lambda: TheirMultiShot(x, y),
        "serve": use(map(ours.__getitem__, range(10**9)), 1000),
        "numpy": index,
        "their serving": use(endless(lambda: [theirs.batch()]), 100),
        "single": use(map(same.__getitem__, range(10**9)), 1000),
        "their single": use(endless(lambda: [their_single_shot(x)]), 10),
    }
    for run in sides.values():
        run()
    found = in_turn(sides, rounds)
    data = f"{ROWS:,} x 28 x 28 x 1, {CLASSES:,} classes"
    table.add(
        "make a MultiShotMemorySampler",
        data,
        f"{found['make'] * 1000:.1f} ms",
        f"TensorFlow Similarity's logic {found['their making'] * 1000:.0f} ms",
        f"{found['their making'] / found['make']:.0f}x",
        "20x",
    )
    each = {name: found[name] / 1000 for name in ("serve", "numpy", "single")}
    each["their serving"] = found["their serving"] / 100
    each["their single"] = found["their single"] / 10
    for name, work, other, asked in (
        ("serve", "MultiShotMemorySampler, numpy batches", "numpy", "0.7x"),
        ("serve", "the same", "their serving", ""),
        (
            "single",
            "SingleShotMemorySampler, an augmenter that does nothing",
            "their single",
            "200x",
        ),
    ):
        said = "numpy `x[ids]`, `y[ids]`" if other == "numpy" else "TensorFlow Similarity's logic"
        ratio = each[other] / each[name]
        table.add(
            work,
            data,
            f"{1 / each[name]:,.0f} batches/s",
            f"{said} {1 / each[other]:,.0f} batches/s",
            f"{ratio:.2f}x" if ratio < 2 else f"{ratio:.0f}x",
            asked,
        )


# TensorFlow.


def deserialize(record: Any) -> Any:
    """A parse function as TensorFlow Similarity expects."""
    import tensorflow as tf

    example = tf.io.parse_single_example(
        record,
        {
            "image": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    return tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), (784,)), example["label"]


def documented(paths: list[str]) -> Any:
    """The pipeline of the documentation: blocks of K by interleaving, all in tf.data."""
    import tensorflow as tf

    shards = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    records = shards.interleave(
        tf.data.TFRecordDataset,
        cycle_length=len(paths),
        block_length=K,
        num_parallel_calls=1,
        deterministic=False,
    )
    examples = records.map(deserialize, num_parallel_calls=tf.data.AUTOTUNE)
    return examples.repeat().batch(BATCH).prefetch(10)


def tensorflow(data: Data, table: Table, rounds: int) -> None:
    from covey.samplers import TFRecordDatasetSampler

    by_class = np.argsort(data.columns["label"], kind="stable")
    columns = {name: column[by_class] for name, column in data.columns.items()}
    in_order = Data("contiguous", data.features, columns)
    ds = dataset(in_order, in_order.name)
    directory = str(FOLDER / in_order.name)
    paths = sorted(glob.glob(f"{directory}/*.tfrecord-*"))
    options: dict[str, Any] = {"shard_suffix": "*.tfrecord-*"}
    datasets = {
        "documented": documented(paths),
        "same": TFRecordDatasetSampler(directory, deserialize, K, BATCH, **options),
        "native": TFRecordDatasetSampler(directory, None, K, BATCH, **options),
        "to_tf": ds.batches(P, K, seed=1).to_tf().repeat(),
    }
    sides, right = {}, {}
    for name, batches in datasets.items():
        sides[name] = use(iter(batches), 100 if name == "documented" else 500)
        right[name] = exact(np.asarray(y) for _, y in islice(iter(batches), 40))
        sides[name]()
    found = in_turn(sides, rounds)
    other = found["documented"] / 100
    for name, work, asked in (
        ("same", "TFRecordDatasetSampler, the same deserialization_fn", "3x"),
        ("native", "TFRecordDatasetSampler, deserialization_fn=None", "12x"),
        ("to_tf", "`ds.batches(...).to_tf()`", ""),
    ):
        each = found[name] / 500
        table.add(
            f"{work}, through tf.data, {right[name]}",
            data.name.upper(),
            rate(BATCH, each),
            f"the documented interleave pipeline {rate(BATCH, other)}, {right['documented']}",
            f"{other / each:.1f}x",
            asked,
        )
    shutil.rmtree(directory)


# PyTorch.


def torch(data: Data, table: Table, rounds: int) -> None:
    labels = data.columns["label"]
    opponents.write(data, "shuffled", np.array_split(np.arange(data.rows), SHARDS))
    path = write_array_record(data)
    ds = covey.open(FOLDER / "shuffled", features=data.features, label="label")
    for workers in (0, 2):
        loader = ds.batches(P, K, seed=1)
        batches = loader.to_torch(num_workers=workers, persistent_workers=workers > 0)
        other = opponents.torch_records(path, labels, P, K, workers)
        ours, theirs = endless(lambda batches=batches: batches), endless(lambda other=other: other)
        right = exact(np.asarray(y) for _, y in islice(ours, 40))
        sides = {"covey": use(ours, 500), "other": use(theirs, 50)}
        for run in sides.values():
            run()
        found = in_turn(sides, rounds)
        each, their = found["covey"] / 500, found["other"] / 50
        table.add(
            f"`ds.batches(...).to_torch()`, {workers} workers, {right}",
            data.name.upper(),
            rate(BATCH, each),
            f"MPerClassSampler, DataLoader over array_record, {workers} workers "
            f"{rate(BATCH, their)}",
            f"{their / each:.0f}x",
            "10x",
        )
        del batches, other, ours, theirs
    os.unlink(path)
    shutil.rmtree(FOLDER / "shuffled")


def jax(data: Data, table: Table, rounds: int) -> None:
    """There is no other implementation; batches of numpy are the upper bound."""
    opponents.write(data, "shuffled", np.array_split(np.arange(data.rows), SHARDS))
    ds = covey.open(FOLDER / "shuffled", features=data.features, label="label")
    loaders = [ds.batches(P, K, seed=1) for _ in range(2)]
    arrays: Iterator[Any] = endless(loaders[0].to_jax)
    sides = {"jax": use(arrays, 500), "numpy": use(endless(lambda: loaders[1]), 500)}
    for run in sides.values():
        run()
    found = in_turn(sides, rounds)
    table.add(
        "`ds.batches(...).to_jax()`",
        data.name.upper(),
        rate(500 * BATCH, found["jax"]),
        f"the loader's numpy batches {rate(500 * BATCH, found['numpy'])}",
        f"{found['numpy'] / found['jax']:.2f}x",
        "",
    )
    shutil.rmtree(FOLDER / "shuffled")


def run(small: Data, rounds: int) -> Table:
    header = ["work", "data", "covey", "other", "ratio", "target"]
    table = Table(f"Samplers and adapters (covey {covey.__version__}, {versions()})", header)
    table.begin()
    FOLDER.mkdir(exist_ok=True)
    memory(table, rounds)
    tensorflow(small, table, rounds)
    torch(small, table, rounds)
    jax(small, table, rounds)
    return table
