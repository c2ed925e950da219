"""Files that must be read, and written, in the same way for ever."""

import gzip
import io
import zlib

import numpy as np
import pytest
from golden_data import EXAMPLES, FEATURES, GOLDEN, tensorflow_example
from schemas import plain, same

from covey import Features, RecordReader, RecordWriter, Tensor
from covey.arrays import SparseArray

SUFFIXES = {"": None, ".gz": "GZIP", ".zlib": "ZLIB"}


def records(name):
    with RecordReader(GOLDEN / name) as reader:
        return list(reader)


def values(example):
    """An example in lists and Python numbers."""
    if isinstance(example, dict):
        return {name: values(value) for name, value in example.items()}
    if isinstance(example, SparseArray):
        return example.to_dense().tolist()
    return plain(example)


def expected(example):
    dense = np.zeros((3, 4), np.float32)
    dense[tuple(np.array(example["sparse"][0]).T)] = example["sparse"][1]
    return values({"maybe": 42, **example, "sparse": dense})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_covey_reads_its_old_files(suffix):
    found = [values(FEATURES.decode(record)) for record in records(f"covey.tfrecord{suffix}")]
    assert found == [expected(example) for example in EXAMPLES]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_covey_writes_as_it_did(suffix):
    out = io.BytesIO()
    with RecordWriter(out, compression=SUFFIXES[suffix], member_bytes=256) as writer:
        for example in EXAMPLES:
            writer.write(FEATURES.encode(example))
    inflate = {"": bytes, ".gz": gzip.decompress, ".zlib": zlib.decompress}[suffix]
    golden = (GOLDEN / f"covey.tfrecord{suffix}").read_bytes()
    assert inflate(out.getvalue()) == inflate(golden)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_covey_reads_tensorflows_files(suffix):
    features = Features(
        {
            "ints": Tensor("int64", (2,)),
            "floats": Tensor("float32", (None,)),
            "strings": Tensor("bytes", (2,)),
        }
    )
    found = [features.decode(record) for record in records(f"tensorflow.tfrecord{suffix}")]
    assert len(found) == 3
    for number, example in enumerate(found):
        held = tensorflow_example(number).features.feature
        assert example["ints"].tolist() == held["ints"].int64_list.value
        assert same(example["floats"].tolist(), list(held["floats"].float_list.value))
        assert example["strings"].tolist() == held["strings"].bytes_list.value


def test_covey_reads_a_sequence_example():
    (record,) = records("sequence.tfrecord")
    example = Features.infer_records([record]).decode(record)
    assert example["steps"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert example["ints"].tolist() == [1, -1]
