"""read_batches: sequential reading of files, in batches of columns."""

import threading

import numpy as np
import pytest
from written import files_at_most

from covey import Features, RecordReader, RecordWriter, Tensor
from covey.errors import CorruptRecordError, ExampleError, SkippedRecordsWarning
from covey.reading import read_batches

FEATURES = Features(
    {"id": "int64", "v": Tensor("float32", (None,)), "s": "str", "n": {"x": Tensor("int8", (2,))}}
)
PADDED = Features({"id": "int64", "pad": "bytes"})
COUNTS = [70, 0, 1, 129]


def example(i):
    return {"id": i, "v": np.arange(i % 5), "s": f"s{i}", "n": {"x": [i % 100, 1]}}


def write(path, examples, features=FEATURES, **options):
    with RecordWriter(path, **options) as writer:
        for each in examples:
            writer.write(features.encode(each))
    return path


def ids(batches):
    return np.concatenate([batch["id"] for batch in batches]).tolist()


@pytest.fixture(scope="module", params=[None, "GZIP", "ZLIB"])
def shards(tmp_path_factory, request):
    directory, numbers = tmp_path_factory.mktemp("shards"), iter(range(sum(COUNTS)))
    return [
        write(
            directory / f"{shard}.tfrecord",
            [example(next(numbers)) for _ in range(count)],
            compression=request.param,
        )
        for shard, count in enumerate(COUNTS)
    ]


@pytest.mark.parametrize(("batch_size", "threads"), [(1, 2), (7, 1), (7, 5), (128, 2), (1000, 5)])
def test_batches(shards, threads, batch_size):
    batches = list(read_batches(shards, FEATURES, batch_size, threads=threads))
    assert ids(batches) == list(range(200))
    assert all(len(batch["id"]) == batch_size for batch in batches[:-1])
    for batch in batches:
        for row, i in enumerate(batch["id"].tolist()):
            assert batch["v"][row].tolist() == list(range(i % 5))
            assert batch["s"][row] == f"s{i}"
            assert batch["n"]["x"][row].tolist() == [i % 100, 1]


def test_options(shards):
    batches = list(read_batches(shards, FEATURES, 64, drop_remainder=True))
    assert [len(batch["id"]) for batch in batches] == [64, 64, 64]
    assert all(list(batch) == ["s"] for batch in read_batches(shards, FEATURES, names=["s"]))
    assert ids(read_batches(str(shards[0]), FEATURES)) == list(range(70))
    with pytest.raises(ValueError, match="batch_size is 0"):
        read_batches(shards, FEATURES, 0)
    with pytest.raises(ValueError, match="threads is 0"):
        read_batches(shards, FEATURES, threads=0)


def test_close_stops_the_threads(shards):
    batches = read_batches(shards, FEATURES, 1, threads=4)
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("covey-decode")]


def test_records_of_changing_size(tmp_path):
    # 20 MB: several tasks of decoding threads, with different numbers of batches, and two windows.
    rng = np.random.default_rng(0)
    sizes = [int(rng.integers(10 if i // 100 % 2 else 80_000)) for i in range(1000)]
    examples = ({"id": i, "pad": bytes(size)} for i, size in enumerate(sizes))
    path = write(tmp_path / "x", examples, PADDED)
    batches = list(read_batches(path, PADDED, 16, threads=2))
    assert all(len(batch["id"]) == 16 for batch in batches[:-1])
    assert ids(batches) == list(range(1000))


def test_files_of_different_record_sizes(tmp_path):
    sizes = {"small": [1] * 130, "large": [4 << 20] * 5, "small again": [1] * 130}
    paths = [
        write(tmp_path / name, ({"id": 0, "pad": bytes(size)} for size in each), PADDED)
        for name, each in sizes.items()
    ]
    batches = read_batches(paths, PADDED, 128, names=["id"])
    assert [len(batch["id"]) for batch in batches] == [128, 128, 9]


def test_more_files_than_descriptors(tmp_path):
    features = Features({"id": "int64"})
    free = 100
    paths = [write(tmp_path / str(i), [{"id": i}], features) for i in range(2 * free)]
    with files_at_most(free):
        assert ids(read_batches(paths, features, 100)) == list(range(2 * free))


@pytest.mark.parametrize("threads", [1, 3])
def test_corrupt_record(tmp_path, threads):
    path = write(tmp_path / "x", map(example, range(300)))
    data = bytearray(path.read_bytes())
    offset = data.index(b"s234")
    data[offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="data checksum") as caught:
        list(read_batches(path, FEATURES, 32, threads=threads))
    assert caught.value.record == 234
    assert caught.value.offset < offset
    skipped = []
    with pytest.warns(SkippedRecordsWarning, match="the first at record 234"):
        batches = list(
            read_batches(path, FEATURES, 32, threads=threads, on_error="skip", skipped=skipped)
        )
    assert ids(batches) == [i for i in range(300) if i != 234]
    assert [(each.path, each.record) for each in skipped] == [(str(path), 234)]
    assert skipped[0].reason.startswith("data checksum is 0x")
    assert len(ids(read_batches(path, FEATURES, 300, verify=False))) == 300


def test_batches_before_an_error(tmp_path):
    examples = ({"id": i, "pad": bytes(20_000)} for i in range(400))  # four tasks
    path = write(tmp_path / "x", examples, PADDED)
    path.write_bytes(path.read_bytes()[:-3])
    found = []
    for threads in (1, 2, 8):
        batches = []
        with pytest.raises(CorruptRecordError) as caught:
            batches.extend(read_batches(path, PADDED, 10, threads=threads))
        assert caught.value.record == 399
        found.append(ids(batches))
    assert found[0] == found[1] == found[2] == list(range(len(found[0])))
    assert found[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_record_of_another_type(tmp_path, threads):
    other = Features({"id": "float32"})
    path = tmp_path / "x"
    with RecordWriter(path) as writer:
        for i in range(50):
            writer.write(FEATURES.encode(example(i)))
        writer.write(other.encode({"id": 0.5}))
    with pytest.raises(ExampleError, match="stored as a float list, expected an int64") as caught:
        list(read_batches(path, FEATURES, 8, threads=threads))
    error = caught.value
    assert (error.path, error.record, error.feature) == (str(path), 50, "id")
    with RecordReader(path) as reader:
        assert other.decode(reader.read_at(error.offset)) == {"id": 0.5}
