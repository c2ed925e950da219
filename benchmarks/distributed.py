"""Writing by the workers of an engine: against Ray Data, one process, and a local write.

    python -m benchmarks.distributed [--rounds 3] [--only ray processes scaling overhead memory]

A Ray cluster of all cores of this machine is started before the clock.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import covey
from benchmarks.data import FOLDER, Data, small
from benchmarks.measure import Table, in_turn, machine, rate
from covey.engines import Processes
from covey.errors import cpu_count

TARGET = FOLDER / "distributed"
PARQUET = FOLDER / "small-parquet"
SHARDS = 8
OVERHEAD_RECORDS = 2_400_000  # 2 GB
MEMORY_RECORDS = 10_000_000
MEMORY_LIMIT = 256 << 20


def clear() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    os.sync()


def cores() -> int:
    return cpu_count()


def start_ray() -> Any:
    import ray

    ray.init(
        num_cpus=cores(), include_dashboard=False, log_to_driver=False, logging_level="warning"
    )
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    return ray


def parquet_files(data: Data) -> list[str]:
    """Write SMALL as 16 Parquet files of bytes and an integer."""
    import pyarrow as pa
    import pyarrow.parquet

    shutil.rmtree(PARQUET, ignore_errors=True)
    PARQUET.mkdir(parents=True)
    images = [each.tobytes() for each in data.columns["image"]]
    labels = data.columns["label"]
    step = -(-data.rows // 16)
    for number in range(16):
        part = slice(number * step, (number + 1) * step)
        table = pa.table({"image": images[part], "label": labels[part]})
        pyarrow.parquet.write_table(table, PARQUET / f"{number:02d}.parquet")
    return sorted(map(str, PARQUET.glob("*.parquet")))


def against_ray(rounds: int) -> None:
    """Ray Data's own writer, shuffled, and covey with the same cluster and the same data."""
    ray, data = start_ray(), small()
    files = parquet_files(data)
    dataset = ray.data.read_parquet(str(PARQUET)).materialize()
    options = {"label": "label", "shards": SHARDS, "progress": False}
    features = {"image": "bytes", "label": "int64"}

    def ray_writer(source: Any, **settings: Any) -> None:
        source.random_shuffle(seed=1).write_tfrecords(str(TARGET), **settings)

    def from_files() -> Any:
        return ray.data.read_parquet(str(PARQUET))

    best = {
        "default": {},
        "8 files": {"min_rows_per_file": data.rows // SHARDS},
    }
    sides: dict[str, Any] = {}
    for name, settings in best.items():
        sides[f"Ray, dataset, {name}"] = lambda s=settings: ray_writer(dataset, **s)
        sides[f"Ray, files, {name}"] = lambda s=settings: ray_writer(from_files(), **s)
    sides["covey, dataset"] = lambda: covey.write(dataset, TARGET, **options)
    sides["covey, files"] = lambda: covey.write(files, TARGET, engine="ray", **options)
    sides["covey, files through Ray Data"] = lambda: covey.write(from_files(), TARGET, **options)
    sides["covey, declared features, dataset"] = lambda: covey.write(
        dataset, TARGET, features=features, **options
    )
    for each in ("covey, dataset", "Ray, dataset, default"):  # workers are started before the clock
        clear()
        sides[each]()
    seconds = in_turn(sides, rounds, clear)
    table = Table(
        f"SMALL, {data.rows:,} records, {cores()} cores, Ray {ray.__version__}",
        ["side", "records/s", "per core", "to Ray's best"],
    )
    table.begin()
    ray_best = {
        kind: min(value for name, value in seconds.items() if name.startswith(f"Ray, {kind}"))
        for kind in ("dataset", "files")
    }
    for name, value in seconds.items():
        kind = "files" if "files" in name.partition(",")[2] else "dataset"
        ratio = "" if name.startswith("Ray") else f"{ray_best[kind] / value:.1f}x"
        table.add(name, rate(data.rows, value), rate(data.rows, value * cores()), ratio)
    ray.shutdown()


class Computed:
    """Examples that Python computes: about 50 us each."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        value = float(index)
        for step in range(600):
            value = math.sin(value + step)
        return {"x": np.full(64, value, np.float32), "label": index % 100}


def generate(begin: int, end: int) -> Any:
    examples = Computed(end)
    for index in range(begin, end):
        yield examples[index]


def processes(rounds: int) -> None:
    """A source bound by Python: one process, and one per core."""
    count = 160_000 * cores()
    step = count // 16
    functions = [partial(generate, i * step, (i + 1) * step) for i in range(16)]
    options = {"label": "label", "shards": 4, "progress": False}
    sides = {
        "sequence, one process": lambda: covey.write(Computed(count), TARGET, **options),
        "sequence, processes": lambda: covey.write(
            Computed(count), TARGET, engine=Processes(), **options
        ),
        "16 generators, one process": lambda: covey.write(functions, TARGET, **options),
        "16 generators, processes": lambda: covey.write(
            functions, TARGET, engine=Processes(), **options
        ),
    }
    seconds = in_turn(sides, rounds, clear)
    table = Table(
        f"{count:,} examples computed by Python, {cores()} cores",
        ["side", "examples/s", "to one process"],
    )
    table.begin()
    for name, value in seconds.items():
        one = seconds[f"{name.partition(',')[0]}, one process"]
        table.add(name, rate(count, value), f"{one / value:.2f}x")


def compute(part: range) -> int:
    examples = Computed(part.stop)
    return sum(int(examples[index]["label"]) for index in part)


def scaling(rounds: int) -> None:
    """By number of processes: a write, and a bare loop that computes the same."""
    from multiprocessing import get_context

    count = 120_000 * cores()
    options = {"label": "label", "shards": SHARDS, "progress": False}

    def loop(workers: int) -> None:
        parts = [range(i * count // 64, (i + 1) * count // 64) for i in range(64)]
        with get_context("spawn").Pool(workers) as pool:
            pool.map(compute, parts, chunksize=1)

    table = Table(
        f"{count:,} examples computed by Python, {cores()} cores",
        ["processes", "bare loop", "covey.write", "to the loop"],
    )
    table.begin()
    for workers in [2**n for n in range(cores().bit_length()) if 2**n <= cores()]:
        write = partial(
            covey.write, Computed(count), TARGET, engine=Processes(workers=workers), **options
        )
        seconds = in_turn({"loop": partial(loop, workers), "write": write}, rounds, clear)
        ratio = f"{seconds['loop'] / seconds['write']:.2f}"
        table.add(str(workers), rate(count, seconds["loop"]), rate(count, seconds["write"]), ratio)


def big(records: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (100_000, 784), np.uint8)
    return {
        "image": np.concatenate([rows] * -(-records // len(rows)))[:records],
        "label": rng.integers(0, 1000, records),
    }


class Rows:
    """Sequence of SMALL's records, which are made on access."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._images: Any = None

    def __len__(self) -> int:
        return self.length

    def __getstate__(self) -> dict[str, Any]:
        return {"length": self.length, "_images": None}

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._images is None:
            rng = np.random.default_rng(0)
            self._images = [each.tobytes() for each in rng.integers(0, 256, (1000, 784), np.uint8)]
        return {"image": self._images[index % 1000], "label": index * 7919 % 1000}


def overhead(rounds: int) -> None:
    """2 GB of records: a local write, processes, and Ray on one node."""
    ray = start_ray()
    files = write_tfrecords(OVERHEAD_RECORDS)
    features = {"image": "bytes", "label": "int64"}
    options = {"label": "label", "shard_bytes": 256 << 20, "progress": False, "features": features}
    sides = {
        "local": lambda: covey.write(Rows(OVERHEAD_RECORDS), TARGET, **options),
        "processes": lambda: covey.write(
            Rows(OVERHEAD_RECORDS), TARGET, engine="processes", **options
        ),
        "ray": lambda: covey.write(Rows(OVERHEAD_RECORDS), TARGET, engine="ray", **options),
        "local, TFRecords": lambda: covey.write(files, TARGET, **options),
        "processes, TFRecords": lambda: covey.write(files, TARGET, engine="processes", **options),
        "ray, TFRecords": lambda: covey.write(files, TARGET, engine="ray", **options),
    }
    clear()
    covey.write(Rows(10_000), TARGET, engine="ray", **options)
    seconds = in_turn(sides, rounds, clear)
    table = Table(
        f"{OVERHEAD_RECORDS:,} records of SMALL (2 GB), one node of {cores()} cores",
        ["side", "seconds", "records/s", "to local"],
    )
    table.begin()
    for name, value in seconds.items():
        local = seconds["local" + name[len(name.partition(",")[0]) :]]
        table.add(name, f"{value:.1f}", rate(OVERHEAD_RECORDS, value), f"{value / local:.2f}x")
    ray.shutdown()


def write_tfrecords(records: int) -> list[str]:
    """Write records as 16 TFRecord files."""
    folder = FOLDER / "overhead"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    features = covey.Features({"image": "bytes", "label": "int64"})
    step = records // 16
    rows = Rows(records)
    for number in range(16):
        path = folder / f"{number:02d}.tfrecord"
        with covey.RecordWriter(path) as writer:
            for begin in range(number * step, (number + 1) * step, 10_000):
                part = [rows[i] for i in range(begin, min(begin + 10_000, (number + 1) * step))]
                columns = {name: [each[name] for each in part] for name in ("image", "label")}
                for block in features.encode_blocks(columns):
                    writer.write_block(block)
    return sorted(map(str, folder.glob("*.tfrecord")))


def memory() -> None:
    """Peak memory of worker processes, which have 256 MiB each."""
    code = (
        "from benchmarks.distributed import write_in_memory_limit as run\n"
        "if __name__ == '__main__': run()"
    )
    script = FOLDER / "memory_limit.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, str(script)], check=True, env=environment)


def write_in_memory_limit() -> None:
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        own = os.getpid()
        while not done.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/status"):
                try:
                    text = path.read_text()
                except OSError:
                    continue
                fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
                if int(fields["PPid"]) == own and "RssAnon" in fields:
                    size = int(fields["RssAnon"].split()[0]) << 10
                    peaks[int(fields["Pid"])] = max(peaks.get(int(fields["Pid"]), 0), size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    clear()
    started = time.perf_counter()
    features = {"image": "bytes", "label": "int64"}
    covey.write(
        Rows(MEMORY_RECORDS),
        TARGET,
        label="label",
        features=features,
        engine=Processes(),
        memory_limit=MEMORY_LIMIT,
        progress=False,
    )
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    workers = sorted(size >> 20 for size in peaks.values() if size > 30 << 20)
    main = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    table = Table(
        f"{MEMORY_RECORDS:,} records of SMALL, 256 MiB per task",
        ["records/s", "peak anonymous memory of a worker", "peak memory of the main process"],
    )
    table.begin()
    table.add(
        rate(MEMORY_RECORDS, seconds),
        f"{statistics.median(workers)} to {max(workers)} MiB",
        f"{main} MiB",
    )
    clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parts = ["ray", "processes", "scaling", "overhead", "memory"]
    parser.add_argument("--only", nargs="*", choices=parts, default=parts)
    options = parser.parse_args()
    print(machine())
    FOLDER.mkdir(exist_ok=True)
    if "ray" in options.only:
        against_ray(options.rounds)
    if "processes" in options.only:
        processes(options.rounds)
    if "scaling" in options.only:
        scaling(options.rounds)
    if "overhead" in options.only:
        overhead(options.rounds)
    if "memory" in options.only:
        memory()


if __name__ == "__main__":
    main()
