"""Memory of writing and reading does not depend on the size of a file."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
from covey import Features, RecordReader, RecordWriter, Tensor

path, compression = sys.argv[1], sys.argv[2] or None
features = Features({"x": Tensor("uint8", (10_000,), encoding="bytes"), "label": "int64"})
columns = {"x": np.zeros((100, 10_000), np.uint8), "label": np.arange(100)}
for rows in (2_000, 20_000):  # 20 and 200 MB
    with RecordWriter(path, compression=compression, compression_level=1) as writer:
        for _ in range(rows // 100):
            for block in features.encode_blocks(columns):
                writer.write_block(block)
    with RecordReader(path) as reader:
        assert reader.count() == rows
        for block in reader.blocks(verify_data=False):
            features.decode_batch(block)
    # Not ru_maxrss, which includes the process that forked this one.
    print(int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]))
"""


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_memory_does_not_depend_on_the_size_of_a_file(tmp_path, compression):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "a.tfrecord"), compression]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    small, large = map(int, found.stdout.split())
    assert large < small + (30 << 10)  # KiB
