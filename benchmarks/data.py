"""The two datasets of the benchmarks, in eight shards each.

SMALL: 400,000 x {784 bytes, int64 label} in 1,000 classes.
LARGE: 20,000 x {50 KB, int64, 128 floats}.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import covey

FOLDER = Path(__file__).parent / "data"
SHARDS = 8


@dataclass(frozen=True)
class Data:
    """A dataset: its columns in memory and the paths of its shards."""

    name: str
    features: covey.Features
    columns: dict[str, NDArray[Any]]

    @property
    def rows(self) -> int:
        return len(self.columns["label"])

    @property
    def shards(self) -> list[str]:
        return [str(FOLDER / f"{self.name}-{i}.tfrecord") for i in range(SHARDS)]

    def part(self, shard: int) -> dict[str, NDArray[Any]]:
        """Return the columns of one shard."""
        size = self.rows // SHARDS
        return {
            name: column[shard * size : (shard + 1) * size] for name, column in self.columns.items()
        }

    def write(self) -> None:
        """Write the shards that the reading benchmarks read."""
        FOLDER.mkdir(exist_ok=True)
        for i, path in enumerate(self.shards):
            with covey.RecordWriter(path) as writer:
                for block in self.features.encode_blocks(self.part(i)):
                    writer.write_block(block)


def write_array_record(data: Data) -> str:
    """Write the same examples as an array_record file, one record per group."""
    from array_record.python.array_record_module import ArrayRecordWriter

    FOLDER.mkdir(exist_ok=True)
    path = str(FOLDER / f"{data.name}.array_record")
    writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
    for block in data.features.encode_blocks(data.columns):
        for record in block:
            writer.write(record)
    writer.close()
    return path


def small() -> Data:
    rng = np.random.default_rng(0)
    columns = {
        "image": rng.integers(0, 256, (400_000, 784), dtype=np.uint8),
        "label": rng.integers(0, 1000, 400_000),
    }
    image = covey.Tensor("uint8", (784,), encoding="bytes")
    return Data("small", covey.Features({"image": image, "label": "int64"}), columns)


def large() -> Data:
    rng = np.random.default_rng(0)
    columns = {
        "image": rng.integers(0, 256, (20_000, 50_000), dtype=np.uint8),
        "label": rng.integers(0, 1000, 20_000),
        "vector": rng.random((20_000, 128), dtype=np.float32),
    }
    features = {
        "image": covey.Tensor("uint8", (50_000,), encoding="bytes"),
        "label": "int64",
        "vector": covey.Tensor("float32", (128,)),
    }
    return Data("large", covey.Features(features), columns)
