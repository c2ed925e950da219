"""Hostile files raise the expected error, in bounded memory."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from covey import CoveyError, Features, RecordReader
from covey.errors import CorruptRecordError, ExampleError

FILES = sorted((Path(__file__).parents[1] / "hostile").glob("*.tfrecord"))
FEATURES = Features({"x": "int64"})


def decode_all(path, features=FEATURES):
    with RecordReader(path) as reader:
        for block in reader.blocks(verify_data=False):
            features.decode_batch(block)


def test_hostile_files_exist():
    assert len(FILES) >= 35


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_hostile_file_raises(path):
    is_example = path.stem.startswith("example-")
    expected = ExampleError if is_example else CorruptRecordError
    with pytest.raises(expected) as caught:
        decode_all(path)
    assert caught.value.path == str(path)
    assert caught.value.record is not None
    with RecordReader(path) as reader:
        if is_example:
            assert reader.count() == 1
        else:
            with pytest.raises(CorruptRecordError):
                reader.count()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
@pytest.mark.filterwarnings("ignore::covey.errors.SkippedRecordsWarning")
def test_no_crash_with_any_compression(path, compression):
    with RecordReader(path, compression=compression, on_error="skip") as reader:
        for record in reader:
            try:
                FEATURES.decode(record)
                Features.infer_records([record])
            except CoveyError:
                pass
    with (
        contextlib.suppress(CoveyError),
        RecordReader(path, compression=compression, verify=False) as reader,
    ):
        reader.count()


LIMITED = """
import resource, sys
from covey import CoveyError, Features, RecordReader
features = Features({"x": "int64"})
features.decode(features.encode({"x": 1}))
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + (128 << 20),) * 2)
for path in sys.argv[1:]:
    try:
        with RecordReader(path) as reader:
            for block in reader.blocks(verify_data=False):
                features.decode_batch(block)
    except CoveyError:
        continue
    sys.exit(f"{path} was read")
"""


def test_memory_is_bounded():
    # 128 MiB more than covey has when it is loaded: less than the lengths in the files.
    subprocess.run([sys.executable, "-c", LIMITED, *map(str, FILES)], check=True)
