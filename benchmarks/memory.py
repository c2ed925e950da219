"""Peak memory of writing and reading files of 100 MB and of 4 GB, generated as they are written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import covey
from benchmarks.data import FOLDER
from benchmarks.measure import Table

ROW_BYTES = 50_000
SIZES = {"100 MB": 2_000, "4 GB": 80_000}


def features() -> covey.Features:
    image = covey.Tensor("uint8", (ROW_BYTES,), encoding="bytes")
    return covey.Features({"image": image, "label": "int64"})


def write(rows: int) -> None:
    rng = np.random.default_rng(0)
    with covey.RecordWriter(FOLDER / "memory.tfrecord") as writer:
        for start in range(0, rows, 100):
            images = rng.integers(0, 256, (100, ROW_BYTES), dtype=np.uint8)
            columns = {"image": images, "label": np.arange(start, start + 100)}
            for block in features().encode_blocks(columns):
                writer.write_block(block)


def scan(rows: int) -> None:
    with covey.RecordReader(FOLDER / "memory.tfrecord") as reader:
        assert reader.count() == rows


def decode(rows: int) -> None:
    schema, found = features(), 0
    with covey.RecordReader(FOLDER / "memory.tfrecord") as reader:
        for block in reader.blocks(verify_data=False):
            for first in range(0, len(block), 128):
                found += len(schema.decode_batch(block[first : first + 128])["label"])
    assert found == rows


WORK = {"write": write, "scan": scan, "read + decode": decode}


def peak(work: str, rows: int) -> float:
    """Return the peak memory in MiB of a separate process."""
    command = [sys.executable, "-m", "benchmarks.memory", work, str(rows)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(run.stdout))


def run() -> Table:
    FOLDER.mkdir(exist_ok=True)
    table = Table("Peak memory, one process each", ["work", *SIZES])
    table.begin()
    peaks: dict[str, list[str]] = {work: [] for work in WORK}
    for rows in SIZES.values():
        for work in WORK:
            peaks[work].append(f"{peak(work, rows):.0f} MiB")
    for work, cells in peaks.items():
        table.add(work, *cells)
    (FOLDER / "memory.tfrecord").unlink()
    return table


if __name__ == "__main__":
    WORK[sys.argv[1]](int(sys.argv[2]))
    # Not ru_maxrss, which includes the parent process before exec.
    status = Path("/proc/self/status").read_text()
    print(json.dumps(int(status.partition("VmHWM:")[2].split()[0]) / 1024))
