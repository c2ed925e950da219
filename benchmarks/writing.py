"""Writing whole datasets, shuffled, sharded and indexed, against TFDS and a plain loop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import covey
from benchmarks.data import FOLDER, SHARDS, Data
from benchmarks.measure import Table, in_turn, rate

TARGET = FOLDER / "written"

# TFDS gets fewer examples, so that a round does not take minutes; its rate hardly depends on it.
TFDS_EXAMPLES = 40_000

MEMORY = 64 << 20
SIZES = (200_000, 2_000_000)


def clear() -> None:
    """Remove what was written, let the disk come to rest, and make sure of warm free memory."""
    shutil.rmtree(TARGET, ignore_errors=True)
    os.sync()
    np.ones(3 << 29, np.uint8)


def dicts(data: Data) -> list[dict[str, Any]]:
    """Examples as a person's generator yields them, made before the clock runs."""
    columns = data.columns
    images = [image.tobytes() for image in columns["image"]]
    return [
        {"image": image, "label": label}
        for image, label in zip(images, columns["label"].tolist(), strict=True)
    ]


def write(examples: Any, features: covey.Features | None, **options: Any) -> covey.Written:
    return covey.write(
        examples,
        TARGET,
        split="train",
        label="label",
        features=features,
        shards=SHARDS,
        progress=False,
        **options,
    )


def tensorflow_loop(examples: list[dict[str, Any]]) -> None:
    """The usual conversion: iterate, make an Example, serialise, write. It does not shuffle."""
    import tensorflow as tf

    from benchmarks.codec import tensorflow_example

    TARGET.mkdir()
    size = -(-len(examples) // SHARDS)
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(TARGET / f"{shard:05d}.tfrecord")) as writer:
            for example in examples[shard * size : (shard + 1) * size]:
                writer.write(tensorflow_example(example))


def tfds_builder(examples: list[dict[str, Any]]) -> None:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    class Glyphs(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            # Byte strings as they are: the fastest that TFDS has.
            features = {"image": tfds.features.Tensor(shape=(), dtype=tf.string), "label": tf.int64}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
            yield from enumerate(examples)

    Glyphs(data_dir=str(TARGET)).download_and_prepare()


def measure(data: Data, table: Table, rounds: int) -> None:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    examples = dicts(data)
    as_bytes = covey.Features({"image": "bytes", "label": "int64"})
    seconds = in_turn(
        {
            "columns": lambda: write(data.columns, data.features),
            "dicts": lambda: write((each for each in examples), as_bytes),
            "inferred": lambda: write((each for each in examples), None),
            "spilling": lambda: write((each for each in examples), as_bytes, memory=MEMORY),
            "gzip": lambda: write(data.columns, data.features, compression="GZIP", level=1),
            "loop": lambda: tensorflow_loop(examples),
            "tfds": lambda: tfds_builder(examples[:TFDS_EXAMPLES]),
        },
        rounds,
        before=clear,
    )
    clear()
    seconds["tfds"] *= data.rows / TFDS_EXAMPLES
    work = {
        "columns": "from columns",
        "dicts": "from a generator of dicts",
        "inferred": "from a generator of dicts, features inferred",
        "spilling": "from a generator of dicts, 64 MiB of memory",
        "gzip": "from columns, GZIP level 1",
    }
    table.add(
        "TFDS' own writer, GeneratorBasedBuilder.download_and_prepare",
        rate(data.rows, seconds["tfds"]),
        "1x",
        f"{seconds['loop'] / seconds['tfds']:.2f}x",
    )
    table.add(
        "tf.io.TFRecordWriter + tf.train.Example in a loop, not shuffled",
        rate(data.rows, seconds["loop"]),
        f"{seconds['tfds'] / seconds['loop']:.0f}x",
        "1x",
    )
    for name, what in work.items():
        table.add(
            f"covey.write, shuffled, indexed, synced to disk, {what}",
            rate(data.rows, seconds[name]),
            f"{seconds['tfds'] / seconds[name]:.0f}x",
            f"{seconds['loop'] / seconds[name]:.1f}x",
        )
    print(f"\nTensorFlow {tf.__version__}, TFDS {tfds.__version__}; TFDS with {TFDS_EXAMPLES:,}")


# Memory.


def generated(count: int) -> Iterator[dict[str, Any]]:
    """Examples that take no memory before they are made."""
    pool = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes()
    for i in range(count):
        begin = i * 7919 % (len(pool) - 784)
        yield {"image": pool[begin : begin + 784], "label": i % 1000}


def bounded(count: int) -> None:
    """Write so many examples in a process of their own, and say what it took."""
    start = time.perf_counter()
    features = covey.Features({"image": "bytes", "label": "int64"})
    write(generated(count), features, memory=MEMORY)
    seconds = time.perf_counter() - start
    # Not ru_maxrss: that also counts the process this one was forked from.
    status = Path("/proc/self/status").read_text()
    print(json.dumps([seconds, int(status.partition("VmHWM:")[2].split()[0]) / 1024]))


def memory(rounds: int) -> None:
    table = Table(
        "Writing with 64 MiB of memory, one process each, medians",
        ["examples", "seconds", "rate", "peak memory"],
    )
    table.begin()
    results: dict[int, list[list[float]]] = {count: [] for count in SIZES}
    for _ in range(rounds):
        for count in SIZES:
            clear()
            command = [sys.executable, "-m", "benchmarks.writing", str(count)]
            run = subprocess.run(command, check=True, capture_output=True, text=True)
            results[count].append(json.loads(run.stdout))
    each = []
    for count, measured in results.items():
        seconds, peak = np.median(np.array(measured), axis=0)
        each.append(seconds / count)
        table.add(f"{count:,}", f"{seconds:.2f}", rate(count, seconds), f"{peak:.0f} MiB")
    print(f"\nTime per example, {SIZES[1]:,} to {SIZES[0]:,}: {each[1] / each[0]:.2f}x")
    clear()


def run(data: Data, rounds: int) -> None:
    FOLDER.mkdir(exist_ok=True)
    table = Table(
        "Writing datasets: 400,000 x {784 bytes, int64}, shuffled into 8 shards, with an index",
        ["what", "examples/s", "x TFDS", "x loop"],
    )
    table.begin()
    measure(data, table, rounds)
    memory(rounds)


if __name__ == "__main__":
    bounded(int(sys.argv[1]))
