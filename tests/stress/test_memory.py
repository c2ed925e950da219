"""Memory stays flat: a file ten times as large needs no more to be written or read."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
from covey import Features, RecordReader, RecordWriter, Tensor
from covey.reading import read_batches

path, rows, compression = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
features = Features({"x": Tensor("uint8", (10_000,), encoding="bytes"), "label": "int64"})
columns = {"x": np.zeros((100, 10_000), np.uint8), "label": np.arange(100)}
with RecordWriter(path, compression=compression, compression_level=1) as writer:
    for _ in range(rows // 100):
        for block in features.encode_blocks(columns):
            writer.write_block(block)
with RecordReader(path) as reader:
    assert reader.count() == rows
    for record in reader:
        pass
for batch in read_batches(path, features, 64, threads=2):
    pass
# Not ru_maxrss: that also counts the process this one was forked from.
print(int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]))
"""


def peak(path, rows, compression):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), str(rows), compression],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(run.stdout) / 1024


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_memory_is_flat(tmp_path, compression):
    small = peak(tmp_path / "small", 5_000, compression)  # 50 MB
    large = peak(tmp_path / "large", 50_000, compression)  # 500 MB
    assert large < small + 30  # MiB; the larger file is 450 more
