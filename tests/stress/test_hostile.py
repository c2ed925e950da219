"""Hostile files: every one is refused with a clear error, quickly, and within little memory."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from covey import CoveyError, Features, RecordReader
from covey.errors import CorruptRecordError, ExampleError
from covey.reading import read_batches

FILES = sorted((Path(__file__).parents[1] / "hostile").glob("*.tfrecord"))
FEATURES = Features({"x": "int64"})


def test_there_are_hostile_files():
    assert len(FILES) >= 35


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_is_refused(path):
    is_example = path.stem.startswith("example-")
    expected = ExampleError if is_example else CorruptRecordError
    with pytest.raises(expected) as caught:
        list(read_batches(path, FEATURES, threads=1))
    assert str(path) in str(caught.value)
    assert "record " in str(caught.value)
    with RecordReader(path) as reader:
        if is_example:
            assert reader.count() == 1
        else:
            with pytest.raises(CorruptRecordError):
                reader.count()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
@pytest.mark.filterwarnings("ignore::covey.errors.SkippedRecordsWarning")
def test_never_crashes_whatever_it_is_taken_for(path, compression):
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
from covey import CoveyError, Features
from covey.reading import read_batches
features = Features({"x": "int64"})
features.decode(features.encode({"x": 1}))
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + (128 << 20),) * 2)
for path in sys.argv[1:]:
    try:
        list(read_batches(path, features, threads=1, compression="auto"))
    except CoveyError:
        continue
    sys.exit(f"{path} was read")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits address space as Linux does")
def test_no_giant_allocation():
    # 128 MiB more than covey has when it is loaded: a length that is believed would not fit.
    subprocess.run([sys.executable, "-c", LIMITED, *map(str, FILES)], check=True)
