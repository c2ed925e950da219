"""Where an index is stored, when it is used, and when it is rebuilt."""

import errno
import fcntl
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from corrupt_files import example, frame
from opened import SHARD_CHANGES, numbers, opened, put, put_numbers, replace_file
from written import files, limit, shard_paths, write

import covey
from covey.errors import CorruptRecordError, DatasetError, FileChangedError
from covey.index import index_names, read_index
from covey.storage.local import index_temporary

NAMES = sorted(index_names("covey-all").values())


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def directory(tmp_path):
    """Three TFRecord files without an index."""
    path = tmp_path / "data"
    for shard in range(3):
        put_numbers(path / f"{shard}.tfrecord", range(10 * shard, 10 * shard + 10))
    return path


def write_birds(path, first=0, count=90, **options):
    """Write a dataset whose shards are longer than the part that the fingerprint covers."""
    examples = [
        {"x": n, "label": n % 3, "other": n % 5, "pad": "p" * 400}
        for n in range(first, first + count)
    ]
    write(examples, path, label="label", shuffle=False, **options)
    return path


@pytest.fixture
def birds(tmp_path):
    return write_birds(tmp_path / "birds", shards=3)


def cached(cache):
    """The files of cached indexes, each with its identity: it changes if the index is rebuilt."""
    found = [path for path in cache.rglob("*") if path.is_file()]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


# Where an index is stored.


def test_index_built_by_open_is_cached(directory, cache):
    before = files(directory)
    first = opened(directory)
    built = cached(cache)
    assert sorted(built) == NAMES
    again = opened(directory)
    for ds in (first, again):
        assert (numbers(ds), ds.labels.tolist()) == (list(range(30)), [n % 3 for n in range(30)])
    assert again.features == first.features
    assert cached(cache) == built
    assert files(directory) == before


def test_index_of_covey_write_is_used(birds, cache):
    before = files(birds)
    ds = opened(birds)
    assert (numbers(ds), ds.labels.tolist()) == (list(range(90)), [n % 3 for n in range(90)])
    assert len(ds.where(label=2)) == 30
    assert (files(birds), cached(cache)) == (before, {})


def test_build_index_stores_the_index_beside_the_shards(directory, cache, tmp_path):
    before = files(directory)
    covey.build_index(directory, progress=False)
    after = files(directory)
    assert sorted(set(after) - set(before)) == NAMES
    assert {name: after[name] for name in before} == before
    rows, by_class, classes = (
        np.load(directory / f"covey-all.{name}.npy", mmap_mode="r")
        for name in ("index", "by_class", "classes")
    )
    assert rows["shard"].tolist() == [n // 10 for n in range(30)]
    assert rows["label"].tolist() == [n % 3 for n in range(30)]
    offset, length = int(rows[13]["offset"]), int(rows[13]["length"])
    assert after["1.tfrecord"][offset : offset + 8] == length.to_bytes(8, "little")
    assert [by_class[c["first"] : c["first"] + c["records"]].tolist() for c in classes] == [
        list(range(label, 30, 3)) for label in range(3)
    ]
    shutil.move(directory, tmp_path / "moved")
    assert numbers(opened(tmp_path / "moved")) == list(range(30))
    assert cached(cache) == {}


def test_index_of_files_in_several_directories_is_cached(tmp_path, cache):
    paths = [
        put_numbers(tmp_path / "all" / name, [n]) for n, name in enumerate(["a/x", "b/y", "z/c/x"])
    ]
    before = files(tmp_path / "all")
    assert numbers(opened(paths)) == [0, 1, 2]
    built = cached(cache)
    assert numbers(opened(paths)) == [0, 1, 2]
    assert (files(tmp_path / "all"), cached(cache)) == (before, built)


def test_each_label_has_its_own_cached_index(directory, cache):
    opened(directory)
    for _ in range(2):
        assert opened(directory, label="x").labels.tolist() == list(range(30))
        assert opened(directory, label="label").label == opened(directory).label == "label"
    assert len(list((cache / "indexes").iterdir())) == 2


def test_index_of_a_label_function_is_not_stored(directory, cache):
    calls = []

    def label(example):
        calls.append(1)
        return int(example["x"]) % 2

    for count in (30, 60):
        assert opened(directory, label=label).labels.tolist() == [0, 1] * 15
        assert len(calls) == count
    assert cached(cache) == {}


def make_unusable(cache):
    cache.mkdir()
    (cache / "indexes").write_bytes(b"not a directory")
    return limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)


def make_full(cache):
    return limit(resource.RLIMIT_FSIZE, 600)  # less than the metadata


@pytest.mark.parametrize("prepare", [make_unusable, make_full])
def test_cache_that_cannot_be_written(directory, cache, prepare):
    before = files(directory)
    with prepare(cache):
        ds = opened(directory)
        assert (numbers(ds), len(ds.where(label=1))) == (list(range(30)), 10)
    assert files(directory) == before
    assert set(cached(cache)) <= {"indexes"}


# Shards that another program wrote are indexed again when they change.


@pytest.mark.parametrize("change", ["write_bytes", "rename"])
def test_changed_files_are_indexed_again(directory, tmp_path, change):
    path = directory / "1.tfrecord"
    other = put_numbers(tmp_path / "other", range(50, 60)).read_bytes()
    more = put_numbers(tmp_path / "other", range(50, 53)).read_bytes()
    content = path.read_bytes()
    assert len(other) == len(content)
    opened(directory)
    for data, expected in [
        (other, list(range(50, 60))),
        (content, list(range(10, 20))),
        (content + more, [*range(10, 20), 50, 51, 52]),
        (content[: len(content) // 10 * 3], [10, 11, 12]),
        (b"", []),
        (other, list(range(50, 60))),
    ]:
        path.write_bytes(data) if change == "write_bytes" else replace_file(path, data)
        ds = opened(directory)
        values = [*range(10), *expected, *range(20, 30)]
        assert (numbers(ds), ds.labels.tolist()) == (values, [n % 3 for n in values])
        assert numbers(ds.where(label=1)) == [n for n in values if n % 3 == 1]


@pytest.mark.parametrize("classes", [[1, 2], ["owl", "jay"]])
def test_file_that_changes_outside_its_fingerprint_is_indexed_again(tmp_path, classes):
    path = tmp_path / "a.tfrecord"
    features = {"label": "str" if isinstance(classes[0], str) else "int64", "pad": "str"}
    examples = [{"label": classes[n % 2], "pad": "p" * 1000} for n in range(100)]
    put(path, examples, features)
    size = path.stat().st_size
    os.utime(path, ns=(1, time.time_ns() - 10**10))
    assert opened(path).classes.counts.tolist() == [50, 50]
    examples[50]["label"] = classes[1]
    put(path, examples, features)
    assert path.stat().st_size == size
    ds = opened(path)
    assert sorted(ds.classes.counts.tolist()) == [49, 51]
    assert ds.labels[50] == ds.labels[51] != ds.labels[52]
    ds[:]


def test_files_that_are_added_removed_and_renamed(directory):
    opened(directory)
    put_numbers(directory / "0b.tfrecord", [100])
    assert numbers(opened(directory)) == [*range(10), 100, *range(10, 30)]
    (directory / "0.tfrecord").unlink()
    assert numbers(opened(directory)) == [100, *range(10, 30)]
    (directory / "2.tfrecord").rename(directory / "0a.tfrecord")
    assert numbers(opened(directory)) == [*range(20, 30), 100, *range(10, 20)]


def test_file_that_becomes_corrupt(directory):
    opened(directory)
    path = directory / "1.tfrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError) as caught:
        opened(directory)
    assert (caught.value.path, caught.value.record) == (str(path), 5)


def test_index_of_other_shards_is_ignored(directory, tmp_path):
    for shard in range(3):
        put_numbers(tmp_path / f"twin/{shard}.tfrecord", range(100 * shard, 100 * shard + 10))
    covey.build_index(directory, progress=False)
    expected = numbers(opened(tmp_path / "twin"))
    for name in NAMES:
        shutil.copy(directory / name, tmp_path / "twin" / name)
    assert numbers(opened(tmp_path / "twin")) == expected


# Shards that covey wrote must not change.


@pytest.mark.parametrize("change", SHARD_CHANGES)
def test_changed_shard_of_covey(birds, tmp_path, change):
    path = shard_paths(birds)[1]
    content = path.read_bytes()
    other = shard_paths(write_birds(tmp_path / "other", 130, 30))[0].read_bytes()
    SHARD_CHANGES[change](path, other)
    for options in (
        {},
        {"split": "train[:5]"},
        {"label": "other"},
        {"label": "@file"},
        {"label": lambda example: 1},
        {"features": {"x": "int64"}},
        {"mmap": False},
    ):
        with pytest.raises(DatasetError) as caught:
            opened(birds, **options)
        assert caught.value.path == str(path)
    if change == "replaced":
        path.write_bytes(content)
        assert numbers(opened(birds)) == list(range(90))


def test_copied_dataset(birds, tmp_path, cache):
    shutil.copytree(birds, tmp_path / "copied" / "birds", copy_function=shutil.copyfile)
    assert numbers(opened(tmp_path / "copied" / "birds")) == list(range(90))
    assert cached(cache) == {}


def test_open_dataset_reads_its_version_after_an_overwrite(birds):
    used, unused = opened(birds), opened(birds)
    assert numbers(used) == list(range(90))
    new = [{"x": n, "label": 0} for n in range(500, 510)]
    write(new, birds, label="label", mode="overwrite")
    assert numbers(used) == numbers(unused) == list(range(90))
    assert sorted(numbers(opened(birds))) == list(range(500, 510))


def test_index_after_an_append(birds):
    write_birds(birds, 90, 10, mode="append")
    assert sorted(numbers(opened(birds))) == list(range(100))


# Concurrent processes and threads, and what killed processes leave.


def test_threads_that_build_the_same_index(directory):
    barrier = threading.Barrier(4)
    found = []

    def work():
        barrier.wait()
        found.append(numbers(opened(directory)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(30))] * 4


def test_rebuilt_index_does_not_affect_open_datasets(directory, cache):
    ds = opened(directory)
    shutil.rmtree(cache)
    opened(directory)
    assert numbers(ds) == list(range(30))
    assert numbers(ds.where(label=1)) == list(range(1, 30, 3))


def test_temporaries_of_writers_are_ignored(directory, birds):
    for path, count in ((directory, 30), (birds, 90)):
        for name in (".covey-train.partial", ".covey-x.debris", ".covey-index-abc"):
            (path / name).mkdir()
            (path / name / "x.tfrecord").write_bytes(b"half of a record")
        descriptor = os.open(path / ".covey-train.partial", os.O_RDONLY)
        try:
            assert numbers(opened(path)) == list(range(count))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            assert numbers(opened(path)) == list(range(count))
        finally:
            os.close(descriptor)
        assert (path / ".covey-train.partial" / "x.tfrecord").exists()


def put_temporaries(directory):
    """Create temporaries of a process that was killed long ago, and links to another directory."""
    outside = directory.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_bytes(b"unchanged")
    dead = directory / ".covey-index-dead"
    dead.mkdir()
    (dead / "x.index.npy").write_bytes(b"incomplete")
    (directory / ".covey-index-file").write_bytes(b"incomplete")
    (directory / ".covey-index-link").symlink_to(outside)
    (dead / "link").symlink_to(outside)
    for path in (*dead.iterdir(), *directory.glob(".covey-index-*")):
        os.utime(path, (0, 0), follow_symlinks=False)
    return outside


def test_build_index_removes_stale_temporaries(directory):
    outside = put_temporaries(directory)
    for name in NAMES:
        (directory / name).symlink_to(outside / "kept")
    (directory / ".covey-index-new").write_bytes(b"")
    locked = directory / ".covey-index-locked"
    locked.write_bytes(b"")
    os.utime(locked, (0, 0))
    with open(locked) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        covey.build_index(directory, progress=False)
    left = sorted(path.name for path in directory.iterdir() if path.name.startswith("."))
    assert left == [".covey-index-locked", ".covey-index-new"]
    assert (outside / "kept").read_bytes() == b"unchanged"
    assert not any((directory / name).is_symlink() for name in NAMES)
    assert numbers(opened(directory)) == list(range(30))


INDEX_SCRIPT = """
import sys
import numpy as np
import covey

save = np.save

def stop(file, array):
    save(file, array)
    print(flush=True)
    sys.stdin.readline()

np.save = stop
covey.build_index(sys.argv[1], force=True, progress=False)
"""


@pytest.mark.parametrize(
    "remove", [partial(covey.build_index, force=True, progress=False), covey.repair]
)
def test_temporaries_of_a_killed_process_are_removed_at_once(birds, remove):
    """Temporaries of processes that run are not."""
    command = [sys.executable, "-c", INDEX_SCRIPT, birds]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        try:
            assert process.stdout.readline() == b"\n"
            temporaries = {*birds.glob(".covey-index-*")}
            assert temporaries
            remove(birds)
            assert temporaries == {*birds.glob(".covey-index-*")}
        finally:
            process.kill()
    remove(birds)
    assert not list(birds.glob(".covey-*"))
    assert numbers(opened(birds)) == list(range(90))


def test_a_file_system_without_locks(directory, monkeypatch):
    """Temporaries are removed when they are an hour old."""

    def flock(descriptor, operation):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", flock)
    covey.build_index(directory, progress=False)
    assert not list(directory.glob(".covey-*"))
    with index_temporary(directory) as temporary:
        covey.build_index(directory, force=True, progress=False)
        assert temporary.exists()
        os.utime(temporary, (0, 0))
        covey.build_index(directory, force=True, progress=False)
        assert not temporary.exists()


def test_stale_temporaries_of_the_cache_are_removed(directory, cache):
    opened(directory)
    (entry,) = (cache / "indexes").iterdir()
    outside = put_temporaries(entry)
    unpacked = cache / "unpacked" / ".dead.1"
    unpacked.parent.mkdir()
    unpacked.write_bytes(b"incomplete")
    os.utime(unpacked, (0, 0))
    put_numbers(directory / "3.tfrecord", [30])
    opened(directory)
    assert [path.name for path in entry.iterdir() if path.name.startswith(".")] == []
    assert not unpacked.exists()
    assert (outside / "kept").exists()


def test_temporaries_have_random_names(tmp_path, cache, monkeypatch):
    """Two containers that share a cache may have the same process id."""
    path = put_numbers(tmp_path / "z.tfrecord.zz", range(1000), compression="ZLIB")
    opened(path)
    real, names = os.replace, []

    def replace(source, target):
        names.append(os.path.basename(source))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for _ in range(2):
        shutil.rmtree(cache / "unpacked", ignore_errors=True)
        assert opened(path)[5]["x"] == 5
    assert len(set(names)) == len(names) == 2


# Eviction and pickling.


def test_indexes_are_evicted_least_recently_used_first(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE_BYTES", str(250_000))
    directories = [tmp_path / f"data{i}" for i in range(9)]
    entries = []
    for path in directories:
        put_numbers(path / "0.tfrecord", range(1000))
        opened(path)
        entries += [each for each in (cache / "indexes").iterdir() if each not in entries]
        first = cached(entries[0])
        opened(directories[0])
        assert cached(entries[0]) == first  # not rebuilt
        size = sum(each.lstat().st_size for each in cache.rglob("*") if each.is_file())
        assert size <= 250_000
    assert entries[-1].exists()
    assert not entries[1].exists()
    assert numbers(opened(directories[1])) == list(range(1000))


@pytest.mark.parametrize("max_read_bytes", [16 << 20, 0], ids=["in memory", "mapped"])
def test_pickle_of_an_evicted_index(tmp_path, directory, cache, max_read_bytes):
    put_numbers(directory / "3.tfrecord", range(30, 3000))
    (built,) = covey.build_index(directory, progress=False)
    metadata = built.index.metadata
    index = read_index(directory, "covey-all", metadata, max_read_bytes=max_read_bytes)
    small = pickle.dumps(index)
    for name in NAMES:
        (directory / name).unlink()
    with pytest.raises(FileChangedError, match=r"open the dataset again.*COVEY_CACHE_BYTES") as e:
        pickle.loads(small)
    assert e.value.path == str(directory)
    large = pickle.dumps(index)
    assert len(small) < 4000 < len(large)
    for again in (pickle.loads(large), pickle.loads(pickle.dumps(pickle.loads(large)))):
        assert again.metadata == metadata
        for name in ("rows", "classes", "by_class"):
            assert getattr(again, name).tobytes() == getattr(index, name).tobytes()


def test_pickle_of_a_dataset_whose_index_was_evicted(directory, cache):
    ds = opened(directory)
    shutil.rmtree(cache)
    again = pickle.loads(pickle.dumps(ds))
    assert numbers(again) == list(range(30))
    assert numbers(again.where(label=1)) == list(range(1, 30, 3))


def test_features_are_inferred_from_all_shards(tmp_path):
    records = [
        [example(a=[1], b=[1.0, 2.0]), example(a=[2], b=[1.0, 2.0])],
        [example(a=[1], b=[1.0], c=[b"x"])],
        [],
        [example(a=[3]), example(a=[4], b=[0.5] * 3, c=[b"y", b"z"])],
    ]
    for shard, each in enumerate(records):
        (tmp_path / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, each)))
    (result,) = covey.build_index(tmp_path, progress=False)
    assert list(result.index.metadata.features) == ["a", "b", "c"]
    assert result.index.metadata.records == 5
    (tmp_path / "4.tfrecord").write_bytes(frame(example(a=[b"text"])))
    with pytest.raises(covey.CoveyError, match="record 5 has bytes, record 0 has int64"):
        covey.build_index(tmp_path, force=True, progress=False)
