"""Batches of P classes x K examples by other libraries, in their recommended setup."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import covey
import covey.plan
from benchmarks.data import FOLDER, SHARDS, Data, write_array_record

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Opponent:
    """A way to get batches, the shards it requires, and the expected ratio."""

    name: str
    layout: str
    directory: str
    slower: int
    batches: Callable[[], Iterable[Any]]
    label_of: Callable[[Any], Any]

    def labels(self) -> Iterator[Ids]:
        for batch in self.batches():
            yield np.asarray(self.label_of(batch))


def versions() -> str:
    names = ("tensorflow-cpu", "torch", "grain", "array_record", "pytorch-metric-learning")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def of(data: Data, by_class: Ids, p: int, k: int) -> Iterator[Opponent]:
    """Yield the opponents, each constructed when it is measured."""
    paths = write(data, "contiguous", np.array_split(by_class, SHARDS))
    yield Opponent(
        "TensorFlow Similarity's pipeline (interleave, map parse_single_example, batch)",
        f"{SHARDS} shards, classes in order",
        str(FOLDER / "contiguous"),
        10 if data.name == "large" else 40,
        lambda: similarity(paths, data, p, k),
        lambda batch: batch["label"],
    )
    shutil.rmtree(FOLDER / "contiguous")
    if data.name == "large":
        return
    paths = write(data, "aligned", aligned(data.columns["label"], k, 64))
    yield Opponent(
        "tf.data by hand (blocks of K, interleaved, batched, parse_example)",
        "64 shards aligned by class and K",
        str(FOLDER / "aligned"),
        5,
        lambda: tuned(paths, data, p, k),
        lambda batch: batch["label"],
    )
    shutil.rmtree(FOLDER / "aligned")
    labels = data.columns["label"]
    path = write_array_record(data)
    write(data, "shuffled", np.array_split(np.arange(data.rows), SHARDS))
    directory = str(FOLDER / "shuffled")
    layout = f"{SHARDS} shards, any order"
    for workers in (0, 2):
        yield Opponent(
            f"MPerClassSampler, torch DataLoader over array_record, {workers} workers",
            layout,
            directory,
            60,
            lambda workers=workers: torch_records(path, labels, p, k, workers),
            lambda batch: batch[1],
        )
        yield Opponent(
            f"grain over array_record, P x K sampler, {workers} workers",
            layout,
            directory,
            100,
            lambda workers=workers: grain(path, labels, p, k, workers),
            lambda batch: batch[1],
        )
    images = data.columns["image"]
    yield Opponent(
        "MPerClassSampler, torch DataLoader over arrays in memory, batched fetch",
        layout,
        directory,
        5,
        lambda: torch_memory(images, labels, p, k),
        lambda batch: batch[1],
    )
    os.unlink(path)
    shutil.rmtree(directory)


def write(data: Data, name: str, parts: list[Ids]) -> list[str]:
    """Write shards with these records each."""
    directory = FOLDER / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    paths = []
    for number, ids in enumerate(parts):
        paths.append(str(directory / f"{name}-train.tfrecord-{number:05}-of-{len(parts):05}"))
        with covey.RecordWriter(paths[-1]) as writer:
            columns = {key: column[ids] for key, column in data.columns.items()}
            for block in data.features.encode_blocks(columns):
                writer.write_block(block)
    covey.open(directory, features=data.features, label="label", progress=False).close()
    return paths


def aligned(labels: Ids, k: int, shards: int) -> list[Ids]:
    """Return shards of complete classes, each truncated to a multiple of K examples."""
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], np.arange(labels.max() + 2))
    complete = [order[a : a + (b - a) // k * k] for a, b in pairwise(first)]
    return [np.concatenate(complete[shard::shards]) for shard in range(shards)]


# TensorFlow.


def spec(data: Data) -> dict[str, Any]:
    import tensorflow as tf

    kinds = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "vector": tf.io.FixedLenFeature([128], tf.float32),
    }
    return {name: kinds[name] for name in data.features}


def pixels(example: dict[str, Any], size: int) -> dict[str, Any]:
    import tensorflow as tf

    image = tf.io.decode_raw(example["image"], tf.uint8)
    return {**example, "image": tf.ensure_shape(image, [*image.shape[:-1], size])}


def similarity(paths: list[str], data: Data, p: int, k: int) -> Iterator[Any]:
    import tensorflow as tf

    size = data.columns["image"].shape[1]
    wanted = spec(data)
    shards = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    records = shards.interleave(
        tf.data.TFRecordDataset,
        cycle_length=len(paths),
        block_length=k,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    examples = records.map(
        lambda record: pixels(tf.io.parse_single_example(record, wanted), size),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    batches = examples.repeat().batch(p * k).prefetch(tf.data.AUTOTUNE)
    return batches.as_numpy_iterator()


def tuned(paths: list[str], data: Data, p: int, k: int) -> Iterator[Any]:
    import tensorflow as tf

    size = data.columns["image"].shape[1]
    wanted = spec(data)
    shards = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).repeat()
    blocks = shards.interleave(
        lambda path: tf.data.TFRecordDataset(path, buffer_size=1 << 18).batch(
            k, drop_remainder=True
        ),
        cycle_length=p,
        block_length=1,
    )
    batches = blocks.batch(p, drop_remainder=True).map(
        lambda records: pixels(tf.io.parse_example(tf.reshape(records, [-1]), wanted), size),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return batches.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


# array_record.


def parse(record: bytes) -> tuple[NDArray[np.uint8], int]:
    from tensorflow.core.example.example_pb2 import Example  # type: ignore[import-untyped]

    feature = Example.FromString(record).features.feature
    image = np.frombuffer(feature["image"].bytes_list.value[0], np.uint8)
    return image, feature["label"].int64_list.value[0]


class Records:
    """The records of an array_record file, for torch and for grain.

    A range of one is by far its fastest way to read a single record (5 us here; a list of one takes
    700 us, and of many 40 us each), so it is taken instead of what its own data source does.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader: Any = None
        self._records = self._open().num_records()

    def _open(self) -> Any:
        from array_record.python import array_record_module

        if self._reader is None:  # a process each
            options = "readahead_buffer_size:0"
            self._reader = array_record_module.ArrayRecordReader(self._path, options=options)
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None}

    def __len__(self) -> int:
        return int(self._records)

    def __getitem__(self, index: int) -> bytes:
        (record,) = self._open().read(index, index + 1)
        return record  # type: ignore[no-any-return]


class Examples(Records):
    """The same records, parsed."""

    def __getitem__(self, index: int) -> Any:
        image, label = parse(super().__getitem__(index))
        return image.copy(), label  # torch wants to write into it


def per_class(labels: Ids, p: int, k: int) -> Any:
    from pytorch_metric_learning.samplers import MPerClassSampler

    return MPerClassSampler(labels, m=k, batch_size=p * k, length_before_new_iter=len(labels))


def torch_records(path: str, labels: Ids, p: int, k: int, workers: int) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    records: Any = Examples(path)
    return DataLoader(
        records, batch_size=p * k, sampler=per_class(labels, p, k), num_workers=workers
    )


class Memory:
    """A torch dataset of arrays that returns a batch per index list."""

    def __init__(self, images: NDArray[np.uint8], labels: Ids) -> None:
        import torch

        self._images, self._labels = torch.from_numpy(images), torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self._images)

    def __getitems__(self, ids: list[int]) -> Any:
        return self._images[ids], self._labels[ids]


def keep(batch: Any) -> Any:
    return batch


def torch_memory(images: NDArray[np.uint8], labels: Ids, p: int, k: int) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    memory: Any = Memory(images, labels)
    return DataLoader(memory, batch_size=p * k, sampler=per_class(labels, p, k), collate_fn=keep)


def grain(path: str, labels: Ids, p: int, k: int, workers: int) -> Iterable[Any]:
    import absl.flags  # type: ignore[import-untyped]
    import grain.python as pygrain

    absl.flags.FLAGS.mark_as_parsed()  # its workers want to see them
    plan = covey.plan.BalancedPlan(labels, p, k, seed=1)

    class Sampler:
        def __getitem__(self, index: int) -> Any:
            step, within = divmod(index, p * k)
            return pygrain.RecordMetadata(
                index=index, record_key=int(self._batch(step)[within]), rng=None
            )

        def _batch(self, step: int) -> Ids:
            if getattr(self, "_step", None) != step:
                self._step, self._ids = step, plan.batch(step)
            return self._ids

    class Parse(pygrain.MapTransform):  # type: ignore[misc]
        def map(self, record: bytes) -> Any:
            return parse(record)

    return pygrain.DataLoader(  # type: ignore[no-any-return]
        data_source=Records(path),
        sampler=Sampler(),
        shard_options=pygrain.NoSharding(),
        operations=[Parse(), pygrain.Batch(p * k, drop_remainder=True)],
        worker_count=workers,
    )
