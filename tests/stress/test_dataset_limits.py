"""Datasets with few file descriptors, several processes, and other users."""

import os
import resource
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from loaded import with_maps
from opened import Elsewhere, numbers, opened, put_numbers
from written import write

import covey
from covey.cli import main
from covey.index import index_names
from covey.maintenance.verify import verify

# The limit on open files.


def limit_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


@pytest.fixture(scope="module")
def limited():
    """A process that may have 64 files open."""
    with closing(Elsewhere()) as run:
        run(limit_descriptors)
        yield run


def descriptors(directory):
    """Read datasets that are mapped and read; return the number of open descriptors of shards."""
    datasets = [opened(directory, mmap=mmap) for mmap in (True, False)]
    for each in datasets:
        assert sorted(numbers(each)) == list(range(400))
    links = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    return sum(os.path.dirname(each) == str(directory) for each in links)


def test_open_datasets_have_no_descriptors(tmp_path, limited):
    examples = [{"x": number, "label": number % 3} for number in range(400)]
    write(examples, tmp_path / "birds", label="label", shards=20)
    assert limited(descriptors, tmp_path / "birds") == 0


# The limit on maps.


def maps_of_datasets(directory):
    """Read datasets that may map 45 shards in total; return the number of maps after each."""

    def read():
        ds = with_maps(opened(directory), 45)
        for _ in range(2):
            assert ds[:]["x"].tolist() == list(range(400))
            assert sorted(np.concatenate([x for x, _ in ds.shuffled(30)])) == list(range(400))
        return ds

    def mapped():
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(str(directory) in each for each in lines)

    sets, found = [], []
    for _ in range(4):
        sets.append(read())
        found.append(mapped())
    sets.pop(0).close()
    found.append(mapped())
    sets.append(read())
    return [*found, mapped()]


def test_datasets_share_the_limit_of_maps(tmp_path, run):
    examples = [{"x": number, "label": number % 3} for number in range(400)]
    write(examples, tmp_path / "birds", label="label", shuffle=False, shards=20)
    assert run(maps_of_datasets, tmp_path / "birds") == [20, 40, 45, 45, 25, 45]


# Several processes.


@pytest.fixture(scope="module")
def forking():
    """A process that forks others."""
    with closing(Elsewhere()) as run:
        yield run


def index_in_processes(directory, cache, labels, rounds):
    """Open a directory without an index in several processes at once; return the exit statuses."""
    os.environ["COVEY_CACHE"] = str(cache)
    statuses = []
    for _ in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        children = []
        begin, go = os.pipe()
        for label in labels:
            child = os.fork()
            if child == 0:
                os.close(go)
                os.read(begin, 1)  # until the parent closes its end
                try:
                    ds = opened(directory, label=label, threads=2)
                    expected = [n if ds.label == "x" else n % 3 for n in range(3000)]
                    is_right = numbers(ds) == list(range(3000)) and ds.labels.tolist() == expected
                except BaseException as error:
                    print(f"{label}: {error!r}", flush=True)
                    os._exit(2)
                os._exit(0 if is_right and label in (None, ds.label) else 1)
            children.append(child)
        os.close(go)
        statuses += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        os.close(begin)
        assert numbers(opened(directory)) == list(range(3000))
    return statuses


def test_processes_that_build_an_index_at_once(tmp_path, forking):
    names = [f"{shard}.tfrecord" for shard in range(3)]
    for shard, name in enumerate(names):
        put_numbers(tmp_path / "data" / name, range(1000 * shard, 1000 * (shard + 1)))
    labels = [None, "label", "x"] * 2
    found = forking(index_in_processes, tmp_path / "data", tmp_path / "cache", labels, 4)
    assert found == [0] * len(labels) * 4
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == names


def snapshot(directory):
    """The state and the content of all files of a directory."""
    found = {}
    for path in (directory, *directory.rglob("*")):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (stat.st_ino, stat.st_mode, stat.st_mtime_ns, stat.st_uid, content)
    return found


def make_files(directory):
    for shard in range(3):
        put_numbers(directory / f"{shard}.tfrecord", range(10 * shard, 10 * shard + 10))


def make_without_index(directory):
    write([{"x": n, "label": n % 3} for n in range(30)], directory, label="label", shards=3)
    for name in index_names(f"{directory.name}-train").values():
        (directory / name).unlink()


def make_with_corrupt_index(directory):
    write([{"x": n, "label": n % 3} for n in range(30)], directory, label="label", shards=3)
    with open(directory / index_names(f"{directory.name}-train")["rows"], "r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"?????")


def read_everything(directory):
    """Read a dataset with all functions and commands."""
    with opened(directory) as ds:
        assert sorted(numbers(ds)) == list(range(30))
        next(iter(ds.batches(3, 2, seed=0)))
    covey.info(directory)
    verify(directory, progress=False)
    assert main(["show", str(directory), "--batch", "--quiet"]) == 0


def read_as(user, directory, cache):
    """Read a dataset as another user, who may have no permission to read modules of Python."""
    os.environ["COVEY_CACHE"] = str(cache)
    child = os.fork()
    if child == 0:
        try:
            with tempfile.TemporaryDirectory() as other:
                read_everything(shutil.copytree(directory, Path(other, "copy")))
            shutil.rmtree(cache, ignore_errors=True)
            cache.mkdir(mode=0o700)
            os.chown(cache, user, user)
            os.setgid(user)
            os.setuid(user)
            read_everything(directory)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("make", [make_files, make_without_index, make_with_corrupt_index])
def test_readers_do_not_write_to_a_dataset(make, forking):
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        directory = Path(root, "data")
        directory.mkdir()
        make(directory)
        before = snapshot(directory)
        for user in (12345, 0):  # without and with permission to write there
            cache = Path(root, f"cache-{user}")
            assert forking(read_as, user, directory, cache) == 0
            assert snapshot(directory) == before
