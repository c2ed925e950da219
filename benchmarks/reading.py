"""Indexing, opening and random access, against TensorFlow, numpy, array_record and libdeflate."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import covey
from benchmarks.data import FOLDER, SHARDS, Data, write_array_record
from benchmarks.measure import Table, in_turn, rate

BATCH = 128
BATCHES = 1000
MANY = 10_000_000


# Indexing.


def build_index(paths: list[str], features: covey.Features | None) -> None:
    """Scan and verify all records and find their classes; store nothing."""
    from covey.index import IndexBuilder, ShardFiles
    from covey.storage import LocalStorage

    files = ShardFiles(LocalStorage(), str(FOLDER), tuple(os.path.basename(p) for p in paths))
    index = IndexBuilder(features, "label", threads=2, progress=False).build(files)
    if len(index) == 0 or index.classes is None or len(index.classes) != 1000:
        raise SystemExit("the index is not what it should be")


def indexing(data: Data, table: Table, rounds: int) -> None:
    from benchmarks.codec import SCAN_SETTINGS, check, fastest, tensorflow_scan

    data.write()
    best = fastest(
        {each: lambda each=each: tensorflow_scan(data.shards, *each) for each in SCAN_SETTINGS}
    )
    seconds = in_turn(
        {
            "known": lambda: build_index(data.shards, data.features),
            "unknown": lambda: build_index(data.shards, None),
            "tensorflow": lambda: check(tensorflow_scan(data.shards, *best), data.rows),
        },
        rounds,
    )
    for side, what in (("known", "features known"), ("unknown", "features inferred")):
        table.add(
            f"build the index with full checksums and classes, two threads, {what}",
            rate(data.rows, seconds[side]),
            f"iterating with tf.data, best of {len(SCAN_SETTINGS)} settings (batch, buffer, files "
            f"at once {best}) {rate(data.rows, seconds['tensorflow'])}",
            f"{seconds['tensorflow'] / seconds[side]:.1f}x",
        )


# Random access.


def dataset(data: Data, name: str, **options: Any) -> covey.Dataset:
    directory = FOLDER / name
    shutil.rmtree(directory, ignore_errors=True)
    covey.write(
        data.columns,
        directory,
        split="train",
        label="label",
        features=data.features,
        shuffle=False,
        shards=SHARDS,
        progress=False,
        **options,
    )
    return covey.open(directory)


def parse(records: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Decode with protobuf and numpy."""
    from tensorflow.core.example.example_pb2 import Example  # type: ignore[import-untyped]

    images, labels = [], []
    for record in records:
        feature = Example.FromString(record).features.feature
        images.append(np.frombuffer(feature["image"].bytes_list.value[0], np.uint8))
        labels.append(feature["label"].int64_list.value[0])
    return np.stack(images), np.array(labels)


def random_access(data: Data, table: Table, rounds: int) -> None:
    from array_record.python.array_record_module import ArrayRecordReader

    ds = dataset(data, "small")
    reader = ArrayRecordReader(write_array_record(data))
    images, labels = data.columns["image"], data.columns["label"]
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, data.rows, BATCH) for _ in range(BATCHES)]
    few = batches[: BATCHES // 20]
    found = ds[batches[0]]
    if not np.array_equal(found["image"], images[batches[0]]):
        raise SystemExit("covey gives other examples")
    if not np.array_equal(parse(reader.read(batches[0].tolist()))[0], found["image"]):
        raise SystemExit("array_record gives other examples")

    def numpy_side() -> None:
        for ids in batches:
            _ = images[ids], labels[ids]

    def covey_side() -> None:
        for ids in batches:
            _ = ds[ids]

    def array_record_side() -> None:
        for ids in few:
            _ = parse(reader.read(ids.tolist()))

    sides = {"covey": covey_side, "numpy": numpy_side, "array_record": array_record_side}
    for run in sides.values():
        run()
    seconds = in_turn(sides, rounds)
    count = BATCH * BATCHES
    ours = seconds["covey"]
    table.add(
        f"`ds[ids]`, {BATCH} random records, one thread",
        rate(count, ours),
        f"numpy `x[ids]`, `y[ids]` in memory {rate(count, seconds['numpy'])}",
        f"{seconds['numpy'] / ours:.2f}x",
    )
    theirs = seconds["array_record"] * len(batches) / len(few)
    table.add(
        f"`ds[ids]`, {BATCH} random records, one thread",
        rate(count, ours),
        f"array_record {importlib.metadata.version('array_record')} + protobuf "
        f"{rate(count, theirs)}",
        f"{theirs / ours:.0f}x",
    )


# GZIP in members.


def members(data: Data, table: Table, rounds: int) -> None:
    import deflate

    # Random pixels do not compress; drawings do, by about as much as these.
    rng = np.random.default_rng(2)
    rows = 100_000
    pixels = rng.integers(0, 256, (rows, 784), dtype=np.uint8)
    pixels[rng.random((rows, 784)) < 0.8] = 0
    drawings = Data("gzip", data.features, {"image": pixels, "label": data.columns["label"][:rows]})
    directory = FOLDER / "gzip"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    paths = []
    for shard in range(SHARDS):
        paths.append(str(directory / f"gzip-{shard}.tfrecord.gz"))
        with covey.RecordWriter(paths[-1], compression="GZIP", member_bytes=16 << 10) as writer:
            for block in drawings.features.encode_blocks(drawings.part(shard)):
                writer.write_block(block)
    ds = covey.open(paths, features=data.features, label="label", progress=False)
    batches = [rng.integers(0, rows, BATCH) for _ in range(20)]
    if not np.array_equal(ds[batches[0]]["image"], pixels[batches[0]]):
        raise SystemExit("covey gives other examples")
    touched = [members_of(ds, paths, ids) for ids in batches]

    def covey_side() -> None:
        for ids in batches:
            _ = ds[ids]

    def libdeflate_side() -> None:
        for batch in touched:
            for member, size in batch:
                deflate.gzip_decompress(member, size)

    sides = {"covey": covey_side, "libdeflate": libdeflate_side}
    for run in sides.values():
        run()
    seconds = in_turn(sides, rounds)
    count = BATCH * len(batches)
    table.add(
        f"`ds[ids]`, {BATCH} random records of GZIP in members of 16 KiB, one thread",
        rate(count, seconds["covey"]),
        f"libdeflate (deflate {importlib.metadata.version('deflate')}) alone on the members "
        f"touched {rate(count, seconds['libdeflate'])}",
        f"{seconds['covey'] / seconds['libdeflate']:.2f}x its time",
    )


def members_of(
    ds: covey.Dataset, paths: list[str], ids: NDArray[np.int64]
) -> list[tuple[bytes, int]]:
    """Return the GZIP members of records, each once, and the sizes of their data."""
    rows = ds._gatherer.tables[0].index.rows
    members = sorted({(int(row["shard"]), int(row["offset"])) for row in rows[ids]})
    found = []
    for shard, offset in members:
        starts = np.unique(rows["offset"][rows["shard"] == shard])
        starts = np.append(starts, os.path.getsize(paths[shard]))
        end = int(starts[np.searchsorted(starts, offset, side="right")])
        with open(paths[shard], "rb") as file:
            file.seek(offset)
            member = file.read(end - offset)
        found.append((member, struct.unpack("<I", member[-4:])[0]))
    return found


# Opening.


def make_many(directory: Path) -> None:
    """A dataset of ten million records that consists of an index; its shard is never read."""
    from covey import _core
    from covey.classes import class_table, id_dtype, sort_by_class
    from covey.dataset_info import DatasetInfo, SplitInfo
    from covey.index import Index, IndexMetadata, row_dtype
    from covey.index.format import Shard, fingerprint
    from covey.index.write import write_index

    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    rows = np.zeros(MANY, row_dtype(compressed=False, labelled=True))
    rows["length"] = 16
    rows["offset"] = np.arange(MANY, dtype=np.uint64) * 32
    rows["label"] = np.random.default_rng(0).integers(0, 100_000, MANY)
    classes = class_table(rows["label"])
    by_class = np.zeros(MANY, id_dtype(MANY))
    sort_by_class(rows["label"], classes, by_class)
    split = SplitInfo("train", (MANY,), MANY * 32)
    (name,) = split.shard_names("many")
    with open(directory / name, "wb") as file:
        file.truncate(MANY * 32)
    features = covey.Features({"label": "int64"})
    shard = Shard(name, MANY, MANY * 32, fingerprint(directory / name))
    sums = _core.crc32c(classes), _core.crc32c(by_class)
    metadata = IndexMetadata(
        features, "label", None, None, MANY, _core.crc32c(rows), sums, (shard,), {"by": "none"}
    )
    write_index(directory, "many-train", Index(metadata, rows, classes, by_class))
    (directory / "dataset_info.json").write_text(DatasetInfo("many", splits=(split,)).to_json())


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def open_many(directory: str) -> tuple[float, float]:
    """Return seconds and MiB to open a dataset in a process that has imported covey."""
    open_dataset = covey.open  # imports the modules
    before = resident()
    started = time.perf_counter()
    ds = open_dataset(directory)
    if len(ds) != MANY or len(ds.classes) != 100_000:
        raise SystemExit("the dataset is not what it should be")
    return time.perf_counter() - started, resident() - before


def opening(table: Table, rounds: int) -> None:
    directory = FOLDER / "many"
    make_many(directory)
    command = [sys.executable, "-m", "benchmarks.reading", str(directory)]
    runs = []
    for _ in range(rounds + 1):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    seconds, memory = (statistics.median(each) for each in zip(*runs[1:], strict=True))
    table.add(
        f"open {MANY:,} records in 100,000 classes from a warm index",
        f"{seconds * 1000:.0f} ms, {memory:.0f} MiB",
        "",
        "",
    )
    shutil.rmtree(directory)


def run(data: Data, rounds: int) -> Table:
    versions = f"covey {covey.__version__}, numpy {np.__version__}"
    table = Table(f"Indexing and random access, SMALL ({versions})", ["work", "covey", "other", ""])
    table.begin()
    FOLDER.mkdir(exist_ok=True)
    opening(table, rounds)
    random_access(data, table, rounds)
    members(data, table, rounds)
    indexing(data, table, rounds)
    return table


if __name__ == "__main__":
    print(json.dumps(open_many(sys.argv[1])))
