"""The main process of a write by an engine: memory and time of a write of a billion records.

    python -m benchmarks.driver --records 1000000000 --directory DIRECTORY

The classes are those of a real write, from the plan of the pieces to the commit. Only the workers
are replaced: `SimulatedPool` makes their results in place of running their tasks. The dataset has
the index of the records, and empty shards; it is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Table, machine
from covey._progress import Progress
from covey.classes import id_dtype
from covey.engines.pools import Pool, Shared
from covey.engines.tasks import Outcome
from covey.index.format import Shard, row_dtype
from covey.index.write import make_index_rows
from covey.labels import Classes
from covey.schema import Features
from covey.schema.infer import Inference
from covey.shuffle.keys import ROW_DTYPE, RecordOrder
from covey.shuffle.runs import TABLE_DTYPE, RunFile, add_tables, hash_bits
from covey.tfrecord import LOCATION_DTYPE
from covey.tfrecord.block import FRAME_BYTES
from covey.writing.input_types import normalize_input
from covey.writing.job import WriteJob
from covey.writing.options import DEFAULT_MEMORY_LIMIT, DEFAULT_SHARD_BYTES, WriteOptions
from covey.writing.pieces import PIECE_BYTES, Piece
from covey.writing.shards import (
    ReduceContext,
    ShardResult,
    ShardTask,
    write_shard,
)
from covey.writing.sort import RecordGroup
from covey.writing.split_writer import stage_split
from covey.writing.stages import (
    GroupRuns,
    MapResult,
    RewriteContext,
    map_piece,
    rewrite_groups,
)
from covey.writing.write_steps import resolve_schema, write_ordered

# Share of the memory limit that the records of a map task have; see covey.writing.stages.
ARENA_SHARE = 3
SAMPLE_S = 0.02


@dataclass(frozen=True)
class Scale:
    """Sizes of a simulated write."""

    records: int
    record_bytes: int
    """Bytes of a record with its frame."""
    classes: int
    has_strings: bool
    """Whether the label is a string, which becomes a class id: all records are rewritten."""
    piece_bytes: int
    shard_bytes: int
    workers: int
    bits: int

    @property
    def pieces(self) -> int:
        return max(1, self.records * self.record_bytes // self.piece_bytes)

    @property
    def index_bytes(self) -> int:
        row = row_dtype(compressed=False, labelled=True).itemsize
        return self.records * (row + id_dtype(self.records).itemsize)

    def name_of(self, label: int) -> str | int:
        return f"class {label:09d}" if self.has_strings else label


class Examples:
    """Map-style dataset, of which only the first example is read."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale

    def __len__(self) -> int:
        return self._scale.records

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": bytes(784), "label": self._scale.name_of(index % self._scale.classes)}


# Results of workers.


def make_runs(scale: Scale, kind: RecordGroup, seed: int, records: int) -> GroupRuns:
    """Return runs of records whose hashes are uniform."""
    rng = np.random.default_rng([seed, records])
    size = records * (scale.record_bytes + ROW_DTYPE.itemsize)
    count = max(1, -(-size // (DEFAULT_MEMORY_LIMIT // ARENA_SHARE)))
    runs, tables = [], []
    for number in range(count):
        own = records * (number + 1) // count - records * number // count
        found = np.bincount(rng.integers(0, 1 << scale.bits, own, np.uint32))
        table = np.zeros(np.count_nonzero(found), TABLE_DTYPE)
        table["minor"] = np.flatnonzero(found)
        table["records"] = found[table["minor"].astype(np.int64)]
        table["bytes"] = table["records"] * np.uint64(scale.record_bytes)
        path = f"/tmp/covey-engine-{'0' * 32}/runs-{secrets.token_hex(8)}/1-run-{number:06d}.frames"
        runs.append(RunFile(path, own, own * scale.record_bytes))
        tables.append(table)
    return GroupRuns(kind, tuple(runs), add_tables(tables), scale.record_bytes - FRAME_BYTES)


def map_result(scale: Scale, piece: Piece) -> MapResult:
    """Return the result of a map task."""
    assert piece.count is not None
    inference = Inference()
    inference.add(Examples(scale)[0], 0)
    kind = RecordGroup(Features(inference.kinds()), piece.split, "label", RecordOrder())
    strings: tuple[str, ...] = ()
    if scale.has_strings:
        strings = tuple(str(scale.name_of(each)) for each in range(scale.classes))
    return MapResult(
        piece.index,
        (make_runs(scale, kind, piece.index, piece.count),),
        piece.count,
        {piece.split: False},
        strings,
        scale.has_strings,
        inference,
    )


def rewritten(scale: Scale, classes: Classes, group: GroupRuns) -> tuple[GroupRuns, ...]:
    """Return the result of a rewriting task."""
    kind = RecordGroup(classes.features, group.kind.split, classes.label, RecordOrder())
    records = sum(run.records for run in group.runs)
    return (make_runs(scale, kind, records, records),)


def shard_result(scale: Scale, context: ReduceContext, task: ShardTask) -> ShardResult:
    """Return the result of a reduce task, with an index row for each record."""
    cuts = context.cuts
    # A record belongs to the first shard that ends after its begin.
    before = int(cuts.ends[task.cut - 1]) if task.cut else 0
    first, last = (-(-int(end) // scale.record_bytes) for end in (before, cuts.ends[task.cut]))
    locations = np.zeros(last - first, LOCATION_DTYPE)
    locations["offset"] = np.arange(last - first) * scale.record_bytes
    locations["length"] = scale.record_bytes - FRAME_BYTES
    labels = np.random.default_rng(task.shard).integers(0, scale.classes, last - first)
    dtype = row_dtype(compressed=False, labelled=True)
    rows = make_index_rows(task.index_shard, locations, labels, dtype)
    with context.format.target.new_path(task.shard) as path:
        path.touch()  # an empty file: the shard itself is not simulated
    shard = Shard(path.name, len(rows), len(rows) * scale.record_bytes, task.shard)
    return ShardResult(task.shard, shard, first, rows, {})


@dataclass(frozen=True)
class Pickled(Shared):
    """Object in a file, which the main process does not keep."""

    path: str

    def get(self) -> Any:
        raise AssertionError("there are no workers")


class SimulatedPool(Pool):
    """Pool that makes the results of tasks; tasks and results are pickled, as for a worker."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="simulated")
        self._reduce: ReduceContext | None = None
        self._classes: Classes | None = None

    @property
    def slots(self) -> int:
        return self._scale.workers

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Outcome]:
        pickle.dumps((function, arguments))
        return self._executor.submit(self._run, function, arguments)

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Outcome:
        result: Any
        if function is map_piece:
            result = map_result(self._scale, arguments[1])
        elif function is rewrite_groups:
            assert self._classes is not None
            result = rewritten(self._scale, self._classes, arguments[1][0])
        elif function is write_shard:
            assert self._reduce is not None
            result = shard_result(self._scale, self._reduce, arguments[1])
        else:
            raise AssertionError(f"{function} is not simulated")
        return Outcome("node", pickle.loads(pickle.dumps(result)))

    def share(self, value: Any, directory: Path) -> Shared:
        if isinstance(value, ReduceContext):
            self._reduce = value
        elif isinstance(value, RewriteContext):
            self._classes = value.classes
        path = directory / f"shared-{secrets.token_hex(8)}"
        path.write_bytes(pickle.dumps(value))
        return Pickled(str(path))

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


# Measurement.


def memory(name: str) -> int:
    """Return a size of /proc/self/status in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


class Stages(Progress):
    """Progress bar that shows nothing, and measures the time and the memory of each phase."""

    def __init__(self) -> None:
        super().__init__(False, None, "")
        self.seconds: dict[str, float] = {}
        self.anonymous: dict[str, int] = {}
        self._stage, self._since = "opening", time.perf_counter()
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def begin(
        self, phase: str, total: int | None, *, unit: str = "examples", subject: str | None = None
    ) -> None:
        self.rename(phase)

    def rename(self, phase: str) -> None:
        name = phase.partition(" (")[0]
        if name != self._stage:
            now = time.perf_counter()
            before = self.seconds.get(self._stage, 0.0)
            self.seconds[self._stage] = before + now - self._since
            self._stage, self._since = name, now

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            stage = self._stage
            self.anonymous[stage] = max(self.anonymous.get(stage, 0), memory("RssAnon"))

    def finish(self) -> None:
        """Complete the last stage."""
        self.rename("end")
        self._done.set()
        self._sampler.join()


def simulate(scale: Scale, directory: Path) -> tuple[Stages, int]:
    """Write a dataset; return its stages, and the number of its shards."""
    options = WriteOptions(split="train", label="label", shard_bytes=scale.shard_bytes)
    source = normalize_input(Examples(scale))
    stages = Stages()
    try:
        with stage_split(str(directory), options) as writer, SimulatedPool(scale) as pool:
            schema = resolve_schema(options, source, writer.targets, writer.known_schema())
            work = WriteJob(
                pool,
                options,
                schema,
                [source],
                source,
                writer.staging.path,
                stages,
                pieces=scale.pieces,
                bits=scale.bits,
            )
            result = write_ordered(writer, work.run(), options, [source], work.skipped, stages)
    finally:
        stages.finish()
    assert result.records == scale.records
    assert sum(result.classes.values()) == scale.records
    return stages, len(result.shards)


def report(scale: Scale, directory: Path) -> None:
    """Simulate a write, and print what it took."""
    before = memory("RssAnon")
    stages, shards = simulate(scale, directory)
    print(
        f"{scale.records:,} records of {scale.record_bytes} bytes, {scale.classes:,} classes "
        f"({'strings' if scale.has_strings else 'integers'}), {scale.pieces:,} pieces, "
        f"{shards:,} shards, 2**{scale.bits} buckets, {scale.workers} workers"
    )
    table = Table("Main process", ["stage", "seconds", "peak anonymous memory"])
    table.begin()
    table.add("before", "", f"{before / 2**20:.0f} MiB")
    for stage, seconds in stages.seconds.items():
        table.add(stage, f"{seconds:.1f}", f"{stages.anonymous.get(stage, 0) / 2**20:.0f} MiB")
    peak = max(stages.anonymous.values())
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    table.add("all", f"{sum(stages.seconds.values()):.1f}", f"{peak / 2**20:.0f} MiB")
    print(f"\npeak resident memory, with pages of mapped files: {resident / 2**20:.0f} MiB")
    for path in sorted(directory.iterdir()):
        if ".tfrecord" not in path.name and path.stat().st_size >= 1 << 10:
            print(f"{path.name}: {path.stat().st_size:,} bytes")


def parse_arguments() -> tuple[Scale, Path]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--record-bytes", type=int, default=839, help="with the frame")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--strings", action="store_true", help="the label is a string")
    parser.add_argument("--piece-bytes", type=int, default=PIECE_BYTES)
    parser.add_argument("--shard-bytes", type=int, default=DEFAULT_SHARD_BYTES)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--bits", type=int, help="(default: by the size of the records)")
    parser.add_argument("--directory", type=Path, required=True, help="of the temporary dataset")
    options = vars(parser.parse_args())
    directory: Path = options.pop("directory")
    options["has_strings"] = options.pop("strings")
    if options["bits"] is None:
        options["bits"] = hash_bits(options["records"] * options["record_bytes"])
    return Scale(**options), directory


def main() -> None:
    scale, parent = parse_arguments()
    parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(parent).free
    if scale.index_bytes > 0.9 * free:
        sys.exit(f"the index has {scale.index_bytes:,} bytes; {free:,} are free in {parent}")
    print(machine(), flush=True)
    directory = parent / f"driver_{os.getpid()}"
    try:
        report(scale, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
