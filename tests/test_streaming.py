"""Reading whole files into batches of columns."""

import threading

import numpy as np
import pytest

from covey import (
    CorruptRecordError,
    ExampleError,
    Features,
    RecordWriter,
    SkippedRecordsWarning,
    Tensor,
    read_batches,
)

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
    from covey import streaming
    from covey.records import streams

    monkeypatch.setattr(streaming, "_TASK_BYTES", 3000)
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


@pytest.mark.parametrize("threads", [1, 3])
def test_a_record_that_does_not_fit_is_named(tmp_path, threads):
    path = tmp_path / "x"
    with RecordWriter(path) as writer:
        for i in range(50):
            writer.write(FEATURES.encode(example(i)))
        writer.write(Features({"id": "float32"}).encode({"id": 0.5}))
    with pytest.raises(ExampleError, match=r"record 50 at byte .*feature 'id': it holds a float"):
        list(read_batches(path, FEATURES, 8, threads=threads))


def test_bad_options(shards):
    with pytest.raises(ValueError, match="batch_size is 0"):
        read_batches(shards, FEATURES, 0)
    with pytest.raises(ValueError, match="threads is 0"):
        read_batches(shards, FEATURES, threads=0)
