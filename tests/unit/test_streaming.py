"""Reading whole files into batches of columns."""

import threading

import numpy as np
import pytest

from covey import Features, RecordReader, RecordWriter, Tensor
from covey.errors import CorruptRecordError, ExampleError, SkippedRecordsWarning
from covey.reading import read_batches

FEATURES = Features(
    {"id": "int64", "v": Tensor("float32", (None,)), "s": "str", "n": {"x": Tensor("int8", (2,))}}
)
COUNTS = [70, 0, 1, 129]


def example(i):
    return {"id": i, "v": np.arange(i % 5), "s": f"s{i}", "n": {"x": [i % 100, 1]}}


@pytest.fixture(params=[None, "GZIP", "ZLIB"])
def shards(tmp_path, request):
    paths, number = [], 0
    for shard, count in enumerate(COUNTS):
        paths.append(tmp_path / f"{shard}.tfrecord")
        with RecordWriter(paths[-1], compression=request.param) as writer:
            for _ in range(count):
                writer.write(FEATURES.encode(example(number)))
                number += 1
    return paths


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 7, 128, 1000])
def test_all_in_order_in_whole_batches(shards, threads, batch_size):
    batches = list(read_batches(shards, FEATURES, batch_size, threads=threads))
    sizes = [len(batch["id"]) for batch in batches]
    assert sum(sizes) == 200
    assert all(size == batch_size for size in sizes[:-1])
    i = 0
    for batch in batches:
        for row in range(len(batch["id"])):
            assert batch["id"][row] == i
            assert batch["v"][row].tolist() == list(range(i % 5))
            assert batch["s"][row] == f"s{i}"
            assert batch["n"]["x"][row].tolist() == [i % 100, 1]
            i += 1


def test_tasks_of_several_batches(tmp_path, monkeypatch):
    from covey.reading import stream
    from covey.tfrecord import streams

    monkeypatch.setattr(stream, "_TASK_BYTES", 3000)
    monkeypatch.setattr(streams, "WINDOW_BYTES", 5000)
    features = Features({"id": "int64", "pad": "bytes"})
    rng = np.random.default_rng(0)
    with RecordWriter(tmp_path / "x") as writer:
        for i in range(3000):  # lengths that change by the hundreds, so that tasks change size
            pad = bytes(int(rng.integers(0, 10 if i // 300 % 2 else 900)))
            writer.write(features.encode({"id": i, "pad": pad}))
    batches = list(read_batches(tmp_path / "x", features, 16, threads=2))
    assert all(len(batch["id"]) == 16 for batch in batches[:-1])
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == list(range(3000))


def test_files_of_very_different_records(tmp_path):
    features = Features({"id": "int64", "pad": "bytes"})
    for name, count, size in (("tiny", 130, 1), ("huge", 5, 4 << 20), ("tiny again", 130, 1)):
        with RecordWriter(tmp_path / name) as writer:
            for i in range(count):
                writer.write(features.encode({"id": i, "pad": bytes(size)}))
    paths = [tmp_path / name for name in ("tiny", "huge", "tiny again")]
    sizes = [len(batch["id"]) for batch in read_batches(paths, features, 128, names=["id"])]
    assert sizes == [128, 128, 9]


def test_thousands_of_small_files(tmp_path):
    import resource

    features = Features({"id": "int64"})
    paths = [tmp_path / str(i) for i in range(1500)]
    for i, path in enumerate(paths):
        with RecordWriter(path) as writer:
            writer.write(features.encode({"id": i}))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        batches = list(read_batches(paths, features, 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert np.concatenate([batch["id"] for batch in batches]).tolist() == list(range(1500))


def test_drop_remainder(shards):
    batches = list(read_batches(shards, FEATURES, 64, drop_remainder=True))
    assert [len(batch["id"]) for batch in batches] == [64, 64, 64]


def test_subset(shards):
    for batch in read_batches(shards, FEATURES, 64, names=["s"]):
        assert list(batch) == ["s"]


def test_one_path(shards):
    assert sum(len(batch["id"]) for batch in read_batches(str(shards[0]), FEATURES)) == 70


def test_leaving_early_stops_the_threads(shards):
    batches = read_batches(shards, FEATURES, 1, threads=4)
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("covey-decode")]


@pytest.mark.parametrize("threads", [1, 3])
def test_damage_reaches_the_consumer_with_its_place(tmp_path, threads):
    path = tmp_path / "x"
    with RecordWriter(path) as writer:
        for i in range(300):
            writer.write(FEATURES.encode(example(i)))
    data = bytearray(path.read_bytes())
    place = data.index(b"s234")
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="data checksum") as caught:
        list(read_batches(path, FEATURES, 32, threads=threads))
    assert caught.value.record == 234
    assert caught.value.offset < place
    with pytest.warns(SkippedRecordsWarning, match="the first at record 234"):
        batches = list(read_batches(path, FEATURES, 32, threads=threads, on_error="skip"))
    ids = np.concatenate([batch["id"] for batch in batches])
    assert ids.tolist() == [i for i in range(300) if i != 234]
    assert len(next(iter(read_batches(path, FEATURES, 300, verify=False)))["id"]) == 300


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_what_is_read_before_an_error_does_not_depend_on_threads(tmp_path, monkeypatch, threads):
    from covey.reading import stream

    monkeypatch.setattr(stream, "_TASK_BYTES", 1000)
    path = tmp_path / "x"
    with RecordWriter(path) as writer:
        for i in range(1000):
            writer.write(FEATURES.encode(example(i)))
    path.write_bytes(path.read_bytes()[:-3])
    rows = 0
    with pytest.raises(CorruptRecordError, match="record 999 at byte"):
        for batch in read_batches(path, FEATURES, 10, threads=threads):
            rows += len(batch["id"])
    assert rows == 990


def test_skipped_records_are_reported(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        with RecordWriter(path) as writer:
            for i in range(3):
                writer.write(FEATURES.encode(example(i)))
        data = bytearray(path.read_bytes())
        data[14] ^= 1
        path.write_bytes(data)
    skipped = []
    with pytest.warns(SkippedRecordsWarning):
        batches = list(read_batches(paths, FEATURES, on_error="skip", skipped=skipped))
    assert [len(batch["id"]) for batch in batches] == [4]
    assert [(each.path, each.record) for each in skipped] == [(str(path), 0) for path in paths]
    assert skipped[0].reason.startswith("data checksum is 0x")


@pytest.mark.parametrize("threads", [1, 3])
def test_a_record_with_another_type_is_an_error(tmp_path, threads):
    path = tmp_path / "x"
    with RecordWriter(path) as writer:
        for i in range(50):
            writer.write(FEATURES.encode(example(i)))
        writer.write(Features({"id": "float32"}).encode({"id": 0.5}))
    with pytest.raises(ExampleError, match="stored as a float list, expected an int64") as caught:
        list(read_batches(path, FEATURES, 8, threads=threads))
    error = caught.value
    assert (error.path, error.record, error.feature) == (str(path), 50, "id")
    with RecordReader(path) as reader:
        assert Features({"id": "float32"}).decode(reader.read_at(error.offset)) == {"id": 0.5}


def test_bad_options(shards):
    with pytest.raises(ValueError, match="batch_size is 0"):
        read_batches(shards, FEATURES, 0)
    with pytest.raises(ValueError, match="threads is 0"):
        read_batches(shards, FEATURES, threads=0)
