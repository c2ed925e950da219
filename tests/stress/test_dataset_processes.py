"""Datasets that are pickled, forked, shared by threads and closed; open files and memory."""

import gc
import gzip
import multiprocessing
import os
import pickle
import resource
import signal
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from opened import numbers, opened, put, put_numbers
from written import limit, write

from covey import CoveyError, _core
from covey.errors import ClosedError
from covey.reading import shards

SIZE = 600
KINDS = ["mapped", "read", "GZIP", "foreign GZIP", "joined"]


pytestmark = pytest.mark.usefixtures("cache")


def make(directory, kind):
    """Write and open a dataset of numbered examples in several shards."""
    examples = [{"x": n, "label": f"class {n % 3}", "pad": "p" * (n % 100)} for n in range(SIZE)]
    features = {"x": "int64", "label": "str", "pad": "str"}
    options = {"features": features, "label": "label", "shuffle": False, "shards": 5}
    if kind == "foreign GZIP":
        return opened(long_stream(directory), label="label")
    if kind == "joined":
        write(examples[:400], directory / "set", **options)
        write(examples[400:], directory / "set", "test", **{**options, "compression": "GZIP"})
        return opened(directory / "set", split="train+test")
    write(examples, directory / "set", compression="GZIP" if kind == "GZIP" else None, **options)
    return opened(directory / "set", mmap=kind != "read")


def long_stream(directory):
    """Write a GZIP file of one stream that is decompressed into the cache."""
    examples = [{"x": n, "label": f"class {n % 3}", "pad": "p" * 9000} for n in range(SIZE)]
    path = put(directory / "x", examples, {"x": "int64", "label": "str", "pad": "str"})
    (directory / "x.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    path.unlink()
    return directory / "x.gz"


def descriptors():
    return sorted(os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
                  if os.path.exists(f"/proc/self/fd/{each}"))  # fmt: skip


@pytest.fixture(params=KINDS)
def dataset(tmp_path, request):
    return make(tmp_path, request.param)


# Pickle.


def test_pickle_has_no_data(dataset):
    numbers(dataset)
    _ = dataset.labels, dataset.classes
    assert len(pickle.dumps(dataset)) < 4000


def test_pickle_of_a_slice_is_small(tmp_path):
    write([{"x": n} for n in range(20_000)], tmp_path, shuffle=False)
    assert len(pickle.dumps(opened(tmp_path, split="train[:50%]+train[60%:]"))) < 4000


def test_pickle_round_trip(dataset):
    again = pickle.loads(pickle.dumps(dataset))
    assert numbers(again) == numbers(dataset)
    assert again.labels.tolist() == dataset.labels.tolist()
    assert (again.features, again.label) == (dataset.features, dataset.label)
    assert tuple(again.classes) == tuple(dataset.classes) == ("class 0", "class 1", "class 2")
    some = pickle.loads(pickle.dumps(dataset.where(label="class 1").select(slice(5))))
    assert numbers(some) == [1, 4, 7, 10, 13]


def test_pickle_has_the_options(tmp_path):
    ds = opened(
        put_numbers(tmp_path / "a.tfrecord", range(9)), label=lambda each: int(each["x"]) // 3
    )
    again = pickle.loads(pickle.dumps(ds.select([1, 5])))
    assert (numbers(again), again.labels.tolist()) == ([1, 5], [0, 1])
    content = bytearray((tmp_path / "a.tfrecord").read_bytes())
    content[20] ^= 1
    for verify in (True, False):
        ds = pickle.loads(pickle.dumps(opened(tmp_path / "a.tfrecord", verify=verify)))
        (tmp_path / "a.tfrecord").write_bytes(content)
        with pytest.raises(CoveyError):
            ds[0]
        content[20] ^= 1
        (tmp_path / "a.tfrecord").write_bytes(content)
        content[20] ^= 1


def test_pickle_after_the_shard_was_replaced(tmp_path):
    path = put_numbers(tmp_path / "a.tfrecord", range(9))
    pickled = pickle.dumps(opened(path))
    put_numbers(path, range(100, 120))
    with pytest.raises(CoveyError):
        pickle.loads(pickled)[0]
    opened(path)  # is indexed again
    with pytest.raises(CoveyError):
        pickle.loads(pickled)[0]


# Processes.

# Functions that are called while shards are opened.
STEPS = {"Gather": _core, "changed_state": shards}


def read_some(dataset, ids):
    return numbers(dataset, ids), dataset.labels[ids].tolist(), dataset.raw[ids[0]]


def test_spawned_processes(tmp_path, run):
    for kind in KINDS:
        dataset = make(tmp_path / kind, kind)
        expected = read_some(dataset, [5, 599, 0])
        assert run(read_some, dataset, [5, 599, 0]) == expected


def forked(directory, kind):
    """Use a dataset in this process, in forked processes, and in this process again."""
    dataset = make(directory, kind)
    some = dataset.where(label="class 0")
    ids = np.random.default_rng(0).permutation(SIZE)[:200]
    expected = read_some(dataset, ids)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.starmap(read_some, [(dataset, ids)] * 6) == [expected] * 6
    for use in (lambda: numbers(some, [0, -1]) == [0, 597], lambda: dataset.close() is None):
        child = os.fork()
        if child == 0:
            os._exit(0 if use() and not wrong(dataset, expected, ids, use) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert read_some(dataset, ids) == expected
    return "ok"


def wrong(dataset, expected, ids, use):
    try:
        return read_some(dataset, ids) != expected
    except ClosedError:
        return False


@pytest.mark.parametrize("kind", KINDS)
def test_forked_processes(tmp_path, kind, run):
    assert run(forked, tmp_path, kind) == "ok"


def forked_while_opening(directory, kind, used, name):
    """Fork while another thread opens shards; the child does not have that thread."""
    module = STEPS[name]
    real = getattr(module, name)
    inside, proceed = threading.Event(), threading.Event()

    def wait(*args, **kwargs):
        if threading.current_thread() is thread:
            inside.set()
            proceed.wait()
        return real(*args, **kwargs)

    dataset = make(directory, kind)
    if used:
        numbers(dataset, [1])
        dataset = pickle.loads(pickle.dumps(dataset))
    thread = threading.Thread(target=numbers, args=(dataset, [2]))
    setattr(module, name, wait)
    thread.start()
    assert inside.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a deadlock
        os._exit(0 if numbers(dataset, [3, 599]) == [3, 599] else 1)
    proceed.set()
    thread.join()
    setattr(module, name, real)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("kind", "used", "step"),
    [
        ("mapped", False, "Gather"),
        ("mapped", True, "Gather"),
        ("GZIP", False, "changed_state"),
    ],
)
def test_fork_while_another_thread_opens(tmp_path, kind, used, step, run):
    assert run(forked_while_opening, tmp_path, kind, used, step) == 0


# Threads.


def test_threads_share_a_dataset(dataset):
    barrier = threading.Barrier(8)

    def work(seed):
        rng = np.random.default_rng(seed)
        barrier.wait()
        for _ in range(10):
            ids = rng.integers(-SIZE, SIZE, 50)
            columns = dataset[ids]
            assert columns["x"].tolist() == (ids % SIZE).tolist()
            one = int(ids[0])
            assert dataset[one]["x"] == one % SIZE
            assert dataset.labels[one] == one % SIZE % 3
            assert dataset.features.decode(dataset.raw[one])["x"] == one % SIZE
        return len(dataset.where(label="class 1"))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [SIZE // 3] * 8


def closed_while_read(directory, kind):
    """Close a dataset while threads read it; they return records or raise ClosedError."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        dataset = make_once(directory, kind)
        ready = threading.Barrier(5)

        def work(dataset=dataset, ready=ready):
            ready.wait()
            for number in range(600):
                try:
                    assert numbers(dataset, [number % SIZE]) == [number % SIZE]
                except ClosedError:
                    return "closed"
            return "read"

        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(work) for _ in range(4)]
            ready.wait()
            dataset.close()
            assert {each.result() for each in working} <= {"closed", "read"}
        del dataset, work, working
        gc.collect()
    return len(os.listdir("/proc/self/fd")) - before


def make_once(directory, kind):
    return (
        make(directory, kind)
        if not (directory / "set").exists()
        else opened(directory / "set", mmap=kind != "read")
    )


@pytest.mark.parametrize("kind", ["mapped", "read", "GZIP"])
def test_close_while_threads_read(tmp_path, kind, run):
    assert run(closed_while_read, tmp_path, kind) == 0


# Open files.


def test_closed_dataset(dataset):
    some, ids = dataset.where(label="class 1"), iter(dataset)
    assert next(ids)["x"] == 0
    dataset.close()
    dataset.close()
    uses = [
        lambda: dataset[0],
        lambda: dataset[[]],
        lambda: dataset[3:5],
        lambda: dataset.raw[0],
        lambda: dataset.columns("x"),
        lambda: next(iter(dataset)),
        lambda: some[0],
        lambda: list(ids)[SIZE - 2],
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert len(dataset) == SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_opened_on_first_use_and_closed(tmp_path, kind, run):
    assert run(open_and_close, tmp_path, kind) == "ok"


def open_and_close(directory, kind):
    path = long_paths(directory, kind)
    make(directory, kind).close()
    gc.collect()
    before = descriptors()
    ds = reopen(path, kind)
    assert not [each for each in descriptors() if "tfrecord" in each or each.endswith("x.gz")]
    numbers(ds)
    some = ds.select([1])
    ds.close()
    assert descriptors() == before
    del ds, some
    with reopen(path, kind) as ds:
        numbers(ds)
    assert descriptors() == before
    ds = reopen(path, kind)
    numbers(ds)
    some = ds.labels, ds.classes, ds.where(label="class 1")
    del ds, some
    gc.collect()
    assert descriptors() == before
    return "ok"


def long_paths(directory, kind):
    return directory / "x.gz" if kind == "foreign GZIP" else directory / "set"


def reopen(path, kind):
    if kind == "foreign GZIP":
        return opened(path, label="label")
    return opened(path, split="train+test" if kind == "joined" else None, mmap=kind != "read")


def test_more_shards_than_descriptors(tmp_path, run):
    assert run(many_shards, tmp_path) == "ok"


def many_shards(directory):
    for shard in range(1500):
        put_numbers(directory / f"data/{shard:05}.tfrecord", [2 * shard, 2 * shard + 1])
    with limit(resource.RLIMIT_NOFILE, 128):
        ds = opened(directory / "data")
        assert len(ds) == 3000
        ids = np.random.default_rng(0).permutation(3000)
        assert numbers(ds, ids) == ids.tolist()
        assert [each["x"] for each in ds] == list(range(3000))
        again = opened(directory / "data", mmap=False)
        assert numbers(again, ids) == ids.tolist()
        with open(os.devnull, "rb"):  # a descriptor is left
            return "ok"


# Memory.


def test_rows_are_not_in_memory(tmp_path):
    count = 1_000_000
    columns = {"x": np.arange(count), "label": np.arange(count) % 1000}
    write(columns, tmp_path, label="label", shuffle=False)
    rows = (tmp_path / f"{tmp_path.name}-train.index.npy").stat().st_size
    assert rows > 24_000_000
    tracemalloc.start()
    try:
        ds = opened(tmp_path)
        assert ds[[5, 999_999]]["x"].tolist() == [5, 999_999]
        assert len(ds.classes) == 1000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000
