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

# TFDS gets fewer examples: a round would take minutes, and its rate hardly depends on the count.
TFDS_EXAMPLES = 40_000
TFDS_UINT8_EXAMPLES = 10_000

LIST_EXAMPLES = 20_000

MEMORY = 64 << 20
SIZES = (200_000, 2_000_000)


def clear(memory: int = 3 << 29) -> None:
    """Remove output files, flush the disk, and allocate free memory once.

    On a virtual machine, memory that was free for a while is given back to the host and is slow to
    get again, also for the page cache: a large write would pay for it, and a small one would not.
    """
    shutil.rmtree(TARGET, ignore_errors=True)
    os.sync()
    np.ones(memory, np.uint8)


def dicts(data: Data) -> list[dict[str, Any]]:
    """Examples as a generator yields them, made before the measurement."""
    columns = data.columns
    images = [image.tobytes() for image in columns["image"]]
    return [
        {"image": image, "label": label}
        for image, label in zip(images, columns["label"].tolist(), strict=True)
    ]


def write(
    examples: Any, features: covey.Features | None, **options: Any
) -> covey.results.WriteResult:
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
    """The usual loop: build an Example, serialise, write. It does not shuffle."""
    import tensorflow as tf

    from benchmarks.codec import tensorflow_example

    TARGET.mkdir()
    size = -(-len(examples) // SHARDS)
    for shard in range(SHARDS):
        with tf.io.TFRecordWriter(str(TARGET / f"{shard:05d}.tfrecord")) as writer:
            for example in examples[shard * size : (shard + 1) * size]:
                writer.write(tensorflow_example(example))


def tfds_builder(examples: list[dict[str, Any]], image: Any) -> None:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    class Glyphs(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            features = tfds.features.FeaturesDict({"image": image, "label": tf.int64})
            return self.dataset_info_from_configs(features=features)

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
    pixels = [
        {"image": image, "label": label}
        for image, label in zip(data.columns["image"], data.columns["label"].tolist(), strict=False)
    ][:TFDS_UINT8_EXAMPLES]
    as_bytes = covey.Features({"image": "bytes", "label": "int64"})
    string = tfds.features.Tensor(shape=(), dtype=tf.string)
    uint8 = tfds.features.Tensor(shape=(784,), dtype=tf.uint8)
    seconds = in_turn(
        {
            "columns": lambda: write(data.columns, data.features),
            "dicts": lambda: write((each for each in examples), as_bytes),
            "inferred": lambda: write((each for each in examples), None),
            "spilling": lambda: write((each for each in examples), as_bytes, memory_limit=MEMORY),
            "gzip": lambda: write(
                data.columns, data.features, compression="GZIP", compression_level=1
            ),
            "loop": lambda: tensorflow_loop(examples),
            "string": lambda: tfds_builder(examples[:TFDS_EXAMPLES], string),
            "uint8": lambda: tfds_builder(pixels, uint8),
        },
        rounds,
        before=clear,
    )
    clear()
    seconds["string"] *= data.rows / TFDS_EXAMPLES
    seconds["uint8"] *= data.rows / TFDS_UINT8_EXAMPLES
    work = {
        "uint8": "TFDS' own writer, GeneratorBasedBuilder, the image a Tensor of uint8",
        "string": "the same, the image a byte string",
        "loop": "tf.io.TFRecordWriter + tf.train.Example in a loop, which does not shuffle",
        "columns": "covey.write from columns",
        "dicts": "covey.write from a generator of dicts",
        "inferred": "the same, features inferred",
        "spilling": "the same, features declared, 64 MiB of memory",
        "gzip": "covey.write from columns, GZIP level 1",
    }
    for name, what in work.items():
        ratios = [f"{seconds[each] / seconds[name]:.1f}x" for each in ("uint8", "string", "loop")]
        table.add(what, rate(data.rows, seconds[name]), *ratios)
    print(
        f"\ncovey {covey.__version__}, TensorFlow {tf.__version__}, TFDS {tfds.__version__}, "
        f"{rounds} rounds in turn, medians; TFDS with {TFDS_EXAMPLES:,} byte strings and "
        f"{TFDS_UINT8_EXAMPLES:,} tensors"
    )


# Lists.


def lists(rounds: int) -> None:
    """Measure examples whose numbers are in Python lists, as in JSON, in CPU time."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(LIST_EXAMPLES, 128)).astype(np.float32)
    integers = rng.integers(0, 1000, (LIST_EXAMPLES, 128)).tolist()
    values = {
        "arrays of 128 float32": list(rows),
        "lists of 128 floats": rows.tolist(),
        "lists of 128 integers": integers,
        "lists of 1 to 128 integers": [row[: i % 128 + 1] for i, row in enumerate(integers)],
        "64 x 2 lists": rows.reshape(-1, 64, 2).tolist(),
        "2 lists of different lengths": [
            [row[: i % 64 + 1], row[64:]] for i, row in enumerate(integers)
        ],
    }
    table = Table(
        f"Writing {LIST_EXAMPLES:,} examples with lists of numbers, features inferred, medians",
        ["value", "examples per CPU second"],
    )
    table.begin()
    seconds: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(rounds):
        for name, column in values.items():
            shutil.rmtree(TARGET, ignore_errors=True)
            start = time.process_time()
            write(({"x": value, "label": i % 10} for i, value in enumerate(column)), None)
            seconds[name].append(time.process_time() - start)
    for name, measured in seconds.items():
        table.add(name, rate(LIST_EXAMPLES, float(np.median(measured))))
    clear()


# Memory.


def generated(count: int) -> Iterator[dict[str, Any]]:
    """Yield examples that are generated on the fly."""
    pool = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes()
    for i in range(count):
        begin = i * 7919 % (len(pool) - 784)
        yield {"image": pool[begin : begin + 784], "label": i % 1000}


def bounded(count: int) -> None:
    """Write a number of examples in a separate process and return its time and memory."""
    start = time.perf_counter()
    features = covey.Features({"image": "bytes", "label": "int64"})
    write(generated(count), features, memory_limit=MEMORY)
    seconds = time.perf_counter() - start
    # Not ru_maxrss, which includes the parent process before exec.
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
            clear(5 << 30)
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
        ["what", "examples/s", "x TFDS, uint8", "x TFDS, bytes", "x loop"],
    )
    table.begin()
    measure(data, table, rounds)
    lists(rounds)
    memory(rounds)


if __name__ == "__main__":
    bounded(int(sys.argv[1]))
