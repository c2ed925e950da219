"""Files of earlier versions and of TensorFlow, which every version reads and writes equally."""

import gzip
import io
import zlib

import numpy as np
import pytest
from golden_data import EXAMPLES, FEATURES, FOREIGN, GOLDEN, STEPS
from schemas import plain

from covey import Features, RecordReader, RecordWriter, Tensor

SUFFIXES = {"": None, ".gz": "GZIP", ".zlib": "ZLIB"}


def records(name):
    with RecordReader(GOLDEN / name) as reader:
        return list(reader)


def values(example):
    """An example as lists and Python numbers."""
    if isinstance(example, dict):
        return {name: values(value) for name, value in example.items()}
    return plain(example)


def expected(example):
    dense = np.zeros((3, 4), np.float32)
    dense[tuple(np.array(example["sparse"][0]).T)] = example["sparse"][1]
    return values({"maybe": 42, **example, "sparse": dense})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_read(suffix):
    found = [values(FEATURES.decode(record)) for record in records(f"covey.tfrecord{suffix}")]
    assert found == [expected(example) for example in EXAMPLES]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_write(suffix):
    out = io.BytesIO()
    features = FEATURES.replace({"image": "bytes"})  # only the signature of an image
    with RecordWriter(out, compression=SUFFIXES[suffix], member_bytes=256) as writer:
        for example in EXAMPLES:
            writer.write(features.encode(example))
    inflate = {"": bytes, ".gz": gzip.decompress, ".zlib": zlib.decompress}[suffix]
    golden = (GOLDEN / f"covey.tfrecord{suffix}").read_bytes()
    assert inflate(out.getvalue()) == inflate(golden)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_read_files_of_tensorflow(suffix):
    features = Features(
        {
            "ints": Tensor("int64", (2,)),
            "floats": Tensor("float32", (None,)),
            "strings": Tensor("bytes", (2,)),
        }
    )
    found = [values(features.decode(record)) for record in records(f"tensorflow.tfrecord{suffix}")]
    assert found == FOREIGN


def test_read_a_sequence_example():
    (record,) = records("sequence.tfrecord")
    example = Features.infer_records([record]).decode(record)
    assert example["steps"].tolist() == STEPS
    assert example["ints"].tolist() == [1, -1]
