"""Indexes that are kept: where, for how long, and a caller that else makes one at the same time."""

import errno
import fcntl
import os
import pickle
import shutil
import stat
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from opened import Elsewhere, numbers, opened, put, put_numbers
from servers import Objects, directory_server, serving
from written import files, shard_paths, write

import covey
from covey import CoveyError, RecordReader, untrusted
from covey.cli import main
from covey.errors import CorruptRecordError, DatasetError, FileChangedError, StorageError
from covey.index import index_names, read, store
from covey.storage import remove_stale_temporaries
from covey.storage.local import new_temporary, remove_temporary


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "data"
    for shard in range(3):
        put_numbers(path / f"{shard}.tfrecord", range(10 * shard, 10 * shard + 10))
    return path


@pytest.fixture
def birds(tmp_path):
    """A dataset of covey's, of shards that are longer than what tells whether they have changed."""
    examples = [{"x": n, "label": n % 3, "other": n % 5, "pad": "p" * 400} for n in range(90)]
    write(examples, tmp_path / "birds", label="label", shuffle=False, shards=3)
    return tmp_path / "birds"


@pytest.fixture
def scans(monkeypatch):
    """The shards that were gone through."""
    seen = []
    real = RecordReader.__init__

    def count(self, file, *args, **kwargs):
        seen.append(os.path.basename(getattr(file, "name", file)))
        real(self, file, *args, **kwargs)

    monkeypatch.setattr(RecordReader, "__init__", count)
    return seen


INDEX = sorted(index_names("covey-all").values())


# Where it is.


def test_shards_are_gone_through_once(directory, scans):
    first = opened(directory)
    assert set(scans) == {"0.tfrecord", "1.tfrecord", "2.tfrecord"}
    scans.clear()
    again = opened(directory)
    assert numbers(again) == numbers(first) == list(range(30))
    assert again.labels.tolist() == first.labels.tolist()
    assert again.features == first.features
    assert scans == []


def test_what_covey_writes_is_never_gone_through(birds, scans, monkeypatch):
    before = files(birds)
    ds = opened(birds)
    assert (numbers(ds), ds.labels.tolist()) == (list(range(90)), [n % 3 for n in range(90)])
    assert len(ds.where(label=2)) == 30
    assert scans == []
    assert files(birds) == before


def test_an_index_is_what_numpy_reads(directory):
    covey.build_index(directory, progress=False)
    rows = np.load(directory / "covey-all.index.npy", mmap_mode="r")
    assert rows["shard"].tolist() == [n // 10 for n in range(30)]
    assert rows["label"].tolist() == [n % 3 for n in range(30)]
    content = (directory / "1.tfrecord").read_bytes()
    row = rows[13]
    at = int(row["offset"])
    assert content[at : at + 8] == int(row["length"]).to_bytes(8, "little")
    by_class, classes = (
        np.load(directory / f"covey-all.{name}.npy") for name in ("by_class", "classes")
    )
    assert [by_class[c["first"] : c["first"] + c["records"]].tolist() for c in classes] == [
        list(range(label, 30, 3)) for label in range(3)
    ]


def test_make_index_leaves_an_index_and_nothing_else(directory, tmp_path):
    before = files(directory)
    covey.build_index(directory, progress=False)
    now = files(directory)
    assert sorted(set(now) - set(before)) == INDEX
    assert {name: now[name] for name in before} == before
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_an_index_that_open_builds_goes_to_the_cache(directory, cache, scans):
    before = files(directory)
    assert numbers(opened(directory)) == list(range(30))
    assert files(directory) == before
    assert len(list(cache.rglob("*.index.npy"))) == 1
    scans.clear()
    ds = opened(directory)
    assert (numbers(ds), ds.labels.tolist()) == (list(range(30)), [n % 3 for n in range(30)])
    assert scans == []
    put_numbers(directory / "1.tfrecord", range(100, 105))
    assert numbers(opened(directory)) == [*range(10), *range(100, 105), *range(20, 30)]


def test_nowhere_if_nothing_can_be_written(directory, tmp_path, scans, monkeypatch):
    refuse(monkeypatch, OSError(errno.EROFS, "no"), tmp_path)
    before = files(tmp_path)
    for _ in range(2):
        scans.clear()
        ds = opened(directory)
        assert (numbers(ds), len(ds.where(label=1))) == (list(range(30)), 10)
        assert scans
    assert {name for name in files(tmp_path) if not name.startswith("cache")} == set(before)


def refuse(monkeypatch, error, *directories):
    """Let no file be made in some directories, as if the disk could not be written."""
    real_write = store.write_index

    def is_refused(path):
        return any(os.path.commonpath([path, each]) == str(each) for each in directories)

    def write_index(directory, *args, **kwargs):
        if is_refused(directory):
            raise error
        return real_write(directory, *args, **kwargs)

    monkeypatch.setattr(store, "write_index", write_index)


def test_a_disk_that_is_full_in_the_middle_leaves_nothing(directory, cache, monkeypatch):
    real = np.save

    def save(file, array, **kwargs):
        if str(cache) in str(file):
            raise OSError(errno.ENOSPC, "no space left")
        real(file, array, **kwargs)

    monkeypatch.setattr(np, "save", save)
    before = files(directory)
    assert numbers(opened(directory)) == list(range(30))
    assert files(directory) == before
    assert [path for path in cache.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("where", ["mkdir", "open_private"])
def test_a_cache_that_cannot_be_written_is_named(birds, cache, monkeypatch, where):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "no space left")

    with directory_server(birds) as url:
        owner = store.Path if where == "mkdir" else store
        monkeypatch.setattr(owner, where, fail)
        with pytest.raises(StorageError, match=f"^{cache}: .*no space left.*COVEY_CACHE") as caught:
            covey.open(f"{url}?sig=Zq7secret", split="train", progress=False)
    assert "Zq7secret" not in str(caught.value)


def test_a_remote_index_is_fetched_up_to_the_size_of_its_records(birds, cache):
    (array,) = birds.glob("*train*.index.npy")
    size = array.stat().st_size
    with open(array, "ab") as file:
        file.truncate(size + (8 << 20))
    objects = Objects()
    objects.files = {f"/{path.name}": path.read_bytes() for path in birds.iterdir()}
    with serving(objects.handler()) as url:
        assert len(covey.open(url, split="train", progress=False)) == 90
    (copy,) = cache.rglob(array.name)
    assert size <= copy.stat().st_size < size + (1 << 16)


def test_class_names_with_many_commas_do_not_corrupt_an_index(tmp_path, scans, monkeypatch):
    examples = [{"x": n, "label": f"{n},,,,,,,,,,"} for n in range(40)]
    write(examples, tmp_path / "names", label="label")
    monkeypatch.setattr(untrusted, "MAX_VALUES", 300)
    scans.clear()
    assert len(opened(tmp_path / "names").classes) == 40
    assert scans == []


def test_files_of_the_cache_are_private(directory, birds, cache):
    cache.mkdir(mode=0o755)
    cache.chmod(0o755)
    for name in ("indexes", "unpacked", "blocks"):  # of an earlier version
        (cache / name).mkdir()
        (cache / name).chmod(0o775)
    assert opened(put_zlib(directory.parent / "z.tfrecord.zz"))[5]["x"] == 5
    opened(directory)
    objects = Objects()
    objects.files = {f"/{path.name}": path.read_bytes() for path in birds.iterdir()}
    with serving(objects.handler()) as url:
        assert covey.open(url, split="train", progress=False)[0]["x"] == 0
    found = [*cache.rglob("*")]
    assert {path.parent.parent.name for path in found} >= {"blocks", "indexes"}
    assert any(path.parent.name == "unpacked" for path in found)
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in found}
    assert modes == {(True, 0o700), (False, 0o600)}
    assert stat.S_IMODE(cache.stat().st_mode) == 0o755


def put_zlib(path):
    """Write a shard that can only be read from its beginning."""
    with covey.RecordWriter(path, compression="ZLIB") as writer:
        for number in range(1000):
            writer.write(covey.Features({"x": "int64"}).encode({"x": number}))
    return path


def test_temporaries_of_an_unpacked_shard_have_random_names(directory, cache, monkeypatch):
    """Two containers that share a cache may both have the same process id."""
    path = put_zlib(directory.parent / "z.tfrecord.zz")
    opened(path)
    real, names = os.replace, []

    def replaced(source, target):
        names.append(Path(source).name)
        real(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    for _ in range(2):
        shutil.rmtree(cache / "unpacked", ignore_errors=True)
        assert opened(path)[5]["x"] == 5
    assert len(set(names)) == len(names) == 2


def test_another_label_is_kept_elsewhere(directory, scans):
    opened(directory)
    before = files(directory)
    for _ in range(2):
        assert opened(directory, label="x").labels.tolist() == list(range(30))
        assert opened(directory).label == "label"
        assert files(directory) == before
    scans.clear()
    opened(directory, label="x")
    opened(directory, label="label")
    assert scans == []


def test_files_of_several_directories_leave_nothing_above_them(tmp_path, scans):
    paths = [
        put_numbers(tmp_path / "all" / name, [n]) for n, name in enumerate(["a/x", "b/y", "z/c/x"])
    ]
    before = sorted((tmp_path / "all").iterdir())
    assert numbers(opened(paths)) == [0, 1, 2]
    assert sorted((tmp_path / "all").iterdir()) == before
    scans.clear()
    assert numbers(opened(paths)) == [0, 1, 2]
    assert scans == []


def test_a_function_is_not_kept(directory, scans):
    before = files(directory)
    for _ in range(2):
        scans.clear()
        assert (
            opened(directory, label=lambda each: int(each["x"]) % 2).labels.tolist() == [0, 1] * 15
        )
        assert set(scans) == {"0.tfrecord", "1.tfrecord", "2.tfrecord"}
    assert files(directory) == before


def test_a_directory_that_was_moved_keeps_its_index(directory, tmp_path, scans):
    covey.build_index(directory, progress=False)
    shutil.move(directory, tmp_path / "moved")
    scans.clear()
    assert numbers(opened(tmp_path / "moved")) == list(range(30))
    assert scans == []


# Foreign files that change.


def rename_over(path, content):
    beside = path.with_name(".beside")
    beside.write_bytes(content)
    os.replace(beside, path)


def test_a_foreign_shard_that_changes_is_indexed_anew(directory, tmp_path):
    path = directory / "1.tfrecord"
    other = put_numbers(tmp_path / "other", range(50, 60)).read_bytes()
    more = put_numbers(tmp_path / "other", range(50, 53)).read_bytes()
    content = path.read_bytes()
    assert len(other) == len(content)
    changes = [
        (other, list(range(50, 60))),
        (content, list(range(10, 20))),
        (content + more, [*range(10, 20), 50, 51, 52]),
        (content[: len(content) // 10 * 3], [10, 11, 12]),
        (b"", []),
        (other, list(range(50, 60))),
    ]
    opened(directory)
    for put_there in (lambda data: path.write_bytes(data), lambda data: rename_over(path, data)):
        for data, expected in changes:
            put_there(data)
            ds = opened(directory)
            values = [*range(10), *expected, *range(20, 30)]
            assert (numbers(ds), ds.labels.tolist()) == (values, [n % 3 for n in values])
            assert numbers(ds.where(label=1)) == [n for n in values if n % 3 == 1]


@pytest.mark.parametrize("kind", ["int64", "str"])
def test_a_foreign_shard_that_changes_in_its_middle_is_indexed_anew(tmp_path, kind):
    path = tmp_path / "a.tfrecord"
    features = {"label": kind, "pad": "str"}
    classes = [1, 2] if kind == "int64" else ["owl", "jay"]
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


def test_files_that_come_and_go(directory):
    opened(directory)
    put_numbers(directory / "0b.tfrecord", [100])
    assert numbers(opened(directory)) == [*range(10), 100, *range(10, 30)]
    (directory / "0.tfrecord").unlink()
    assert numbers(opened(directory)) == [100, *range(10, 30)]
    (directory / "2.tfrecord").rename(directory / "0a.tfrecord")
    assert numbers(opened(directory)) == [*range(20, 30), 100, *range(10, 20)]


def test_a_shard_that_is_damaged_later_is_named(directory):
    opened(directory)
    content = bytearray((directory / "1.tfrecord").read_bytes())
    content[len(content) // 2] ^= 1
    (directory / "1.tfrecord").write_bytes(content)
    with pytest.raises(CorruptRecordError, match=r"1.tfrecord: record 5 "):
        opened(directory)


# Shards of covey's that change.


def changes(tmp_path):
    """What can happen to a shard, by name."""
    examples = [{"x": n, "label": n % 3, "other": n % 5, "pad": "p" * 400} for n in range(130, 160)]
    write(examples, tmp_path / "other", label="label", shuffle=False)
    other = shard_paths(tmp_path / "other")[0].read_bytes()
    return {
        "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
        "cut by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
        "emptied": lambda path: os.truncate(path, 0),
        "grown": lambda path: path.write_bytes(path.read_bytes() + other[:463]),
        "replaced": lambda path: rename_over(path, other),
        "another of the same": lambda path: rename_over(path, path.with_name(
            path.name.replace("00001", "00002")).read_bytes()),
        "missing": lambda path: path.unlink(),
        "a directory": lambda path: (path.unlink(), path.mkdir()),
    }  # fmt: skip


CHANGES = [
    "cut",
    "cut by a byte",
    "emptied",
    "grown",
    "replaced",
    "another of the same",
    "missing",
    "a directory",
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_of_covey_that_changes_is_an_error_that_names_it(birds, tmp_path, change):
    path = shard_paths(birds)[1]
    changes(tmp_path)[change](path)
    for options in (
        {},
        {"split": "train[:5]"},
        {"label": "other"},
        {"label": "@file"},
        {"label": lambda example: 1},
        {"features": {"x": "int64"}},
        {"mmap": False},
    ):
        with pytest.raises(DatasetError, match=path.name):
            opened(birds, **options)


def test_a_changed_shard_stays_an_error(birds, tmp_path):
    path = shard_paths(birds)[1]
    content = path.read_bytes()
    changes(tmp_path)["replaced"](path)
    for _ in range(3):
        with pytest.raises(DatasetError, match=path.name):
            opened(birds)
    path.write_bytes(content)
    assert numbers(opened(birds)) == list(range(90))


def test_a_copy_of_a_dataset_of_covey_is_the_same(birds, tmp_path, scans):
    shutil.copytree(birds, tmp_path / "copied" / "birds", copy_function=shutil.copyfile)
    assert numbers(opened(tmp_path / "copied" / "birds")) == list(range(90))
    assert scans == []


def outcome(dataset, ids):
    """The numbers of examples, or the error."""
    try:
        return numbers(dataset, ids)
    except CoveyError as error:
        return str(error)


def changed_while_open(directory, tmp_path, change, mmap, used):
    """Change a shard of a dataset that is open; what is read then of it, and of the others."""
    path = shard_paths(directory)[1]
    do = changes(tmp_path)[change]
    ds = opened(directory, mmap=mmap)
    if used:
        assert numbers(ds) == list(range(90))
    do(path)
    first = outcome(ds, [45])
    return [first, outcome(ds, list(range(30, 60))), outcome(ds, [59]), outcome(ds, [3, 80])]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, closing(Elsewhere()) as run:
        patch.setenv("COVEY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield run


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_changes_while_it_is_open(
    tmp_path, elsewhere, change, compression, mmap, used
):
    examples = [{"x": n, "label": n % 3, "other": n % 5, "pad": "p" * 400} for n in range(90)]
    write(
        examples,
        tmp_path / "birds",
        label="label",
        shuffle=False,
        shards=3,
        compression=compression,
    )
    name = shard_paths(tmp_path / "birds")[1].name
    *found, others = elsewhere(changed_while_open, tmp_path / "birds", tmp_path, change, mmap, used)
    expected = [[45], list(range(30, 60)), [59]]
    for each, right in zip(found, expected, strict=True):
        assert each == right or name in each
    assert others == [3, 80]
    if not used:
        assert all(name in each for each in found)
    if change in ("cut", "emptied"):
        assert name in found[1]


def overwritten_while_open(directory, mmap, damage):
    """Write into a shard that is open."""
    path = shard_paths(directory)[1]
    ds = opened(directory, mmap=mmap)
    assert numbers(ds) == list(range(90))
    content = path.read_bytes()
    with open(path, "r+b") as file:
        if damage == "zeros":
            file.write(bytes(len(content)))
        elif damage == "moved":
            file.write(content[1:] + content[:1])
        else:
            for at in range(20, len(content), 100):
                file.seek(at)
                file.write(bytes([content[at] ^ 0x55]))
    return [outcome(ds, [number]) for number in range(90)]


@pytest.mark.parametrize("damage", ["zeros", "moved", "flips"])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_shard_that_is_overwritten_while_it_is_open(birds, elsewhere, damage, mmap):
    name = shard_paths(birds)[1].name
    for number, each in enumerate(elsewhere(overwritten_while_open, birds, mmap, damage)):
        assert each == [number] or (30 <= number < 60 and name in each)
        assert number not in range(31, 59) or name in each


def cut_again_and_again(directory):
    """Read while another program cuts a shard and mends it again, over and over."""
    path = shard_paths(directory)[1]
    content = path.read_bytes()
    ds = opened(directory, mmap=False)
    ds[:]
    stopped = threading.Event()

    def disturb():
        while not stopped.is_set():
            os.truncate(path, 5000)
            with open(path, "r+b") as file:
                file.seek(5000)
                file.write(content[5000:])

    thread = threading.Thread(target=disturb)
    thread.start()
    found = {number: {str(outcome(ds, [number])) for _ in range(20)} for number in range(25, 65)}
    stopped.set()
    thread.join()
    return found, outcome(ds, list(range(90)))


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_a_shard_that_is_cut_while_it_is_read_and_not_mapped(tmp_path, elsewhere, compression):
    noise = np.random.default_rng(0)
    examples = [{"x": n, "label": n % 3, "pad": noise.bytes(400)} for n in range(90)]
    write(
        examples,
        tmp_path / "birds",
        label="label",
        shuffle=False,
        shards=3,
        compression=compression,
    )
    name = shard_paths(tmp_path / "birds")[1].name
    found, after = elsewhere(cut_again_and_again, tmp_path / "birds")
    for number, outcomes in found.items():
        assert all(each == f"[{number}]" or name in each for each in outcomes)
    assert after == list(range(90))


@pytest.mark.parametrize("change", ["grown", "cut"])
def test_a_shard_that_changes_while_it_is_indexed(tmp_path, monkeypatch, change):
    path = put_numbers(tmp_path / "data/a.tfrecord", range(10))
    content = path.read_bytes()
    real, seen = RecordReader.__init__, []

    def init(self, *args, **kwargs):
        if len(seen) == 1:
            path.write_bytes(content * 2 if change == "grown" else content[: len(content) // 2])
        real(self, *args, **kwargs)
        seen.append(self)

    monkeypatch.setattr(RecordReader, "__init__", init)
    found = outcome_of_all(path)
    assert len(seen) > 1
    right = [*range(10), *range(10)] if change == "grown" else list(range(5))
    assert found == right or "a.tfrecord" in found
    assert outcome_of_all(path) == right


def outcome_of_all(path):
    try:
        return numbers(opened(path.parent))
    except CoveyError as error:
        return str(error)


def test_a_shard_that_is_overwritten_with_other_classes(birds):
    path = shard_paths(birds)[1]
    examples = [
        {"x": n, "label": (n + 1) % 3, "other": n % 5, "pad": "p" * 400} for n in range(30, 60)
    ]
    ds = opened(birds)
    assert numbers(ds) == list(range(90))
    write(examples, path.parent.parent / "other", label="label", shuffle=False)
    with open(path, "r+b") as file:
        file.write(shard_paths(path.parent.parent / "other")[0].read_bytes())
    with pytest.raises(FileChangedError) as caught:
        ds[45]
    assert caught.value.path == str(path)


# Others that index at the same time.


def at_once(directory, cache, labels, rounds):
    """Open a directory without an index in many processes at the same moment."""
    os.environ["COVEY_CACHE"] = str(cache)
    wrong = []
    for _ in range(rounds):
        for path in directory.glob("covey-*"):
            path.unlink()
        shutil.rmtree(os.environ["COVEY_CACHE"], ignore_errors=True)
        children = []
        begin, go = os.pipe()
        for label in labels:
            child = os.fork()
            if child == 0:
                os.close(go)
                os.read(begin, 1)  # until the parent closes its end
                try:
                    ds = opened(directory, label=label, threads=2)
                    assert label in (None, ds.label)
                    good = numbers(ds) == list(range(3000)) and ds.labels.tolist() == [
                        n if ds.label == "x" else n % 3 for n in range(3000)
                    ]
                except BaseException as error:
                    print(f"{label}: {error!r}", flush=True)
                    os._exit(2)
                os._exit(0 if good else 1)
            children.append(child)
        os.close(go)
        wrong += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        os.close(begin)
        assert numbers(opened(directory)) == list(range(3000))
    return wrong


@pytest.mark.parametrize(
    "labels",
    [["label"] * 2, ["label"] * 6, ["label", "x"] * 3, [None, "label", "x"] * 2],
    ids=["two", "six", "two labels", "three ways"],
)
def test_processes_that_index_at_once_all_end_well(tmp_path, elsewhere, labels):
    for shard in range(3):
        put_numbers(tmp_path / f"data/{shard}.tfrecord", range(1000 * shard, 1000 * (shard + 1)))
    assert (
        elsewhere(at_once, tmp_path / "data", tmp_path / "cache", labels, 5)
        == [0] * len(labels) * 5
    )
    left = {path.name for path in (tmp_path / "data").iterdir()}
    assert left == {"0.tfrecord", "1.tfrecord", "2.tfrecord"}


def test_threads_that_index_at_once_all_end_well(directory):
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


def test_an_index_that_is_made_anew_does_not_disturb_those_who_read(directory, cache):
    ds = opened(directory)
    shutil.rmtree(cache)
    opened(directory)
    assert numbers(ds) == list(range(30))
    assert numbers(ds.where(label=1)) == list(range(1, 30, 3))


# What others left.


def test_what_dead_processes_left_does_not_matter(directory, birds):
    for path in (directory, birds):
        for name in (".covey-train.partial", ".covey-x.debris", ".covey-index-abc"):
            (path / name).mkdir()
            (path / name / "x.tfrecord").write_bytes(b"half of a rec")
    assert numbers(opened(directory)) == list(range(30))
    assert numbers(opened(birds)) == list(range(90))


def test_what_a_living_process_writes_does_not_matter(directory, birds):
    for path, count in ((directory, 30), (birds, 90)):
        partial = path / ".covey-test.partial"
        partial.mkdir()
        (partial / "00000").write_bytes(b"half of a rec")
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            assert numbers(opened(path)) == list(range(count))
            assert (partial / "00000").exists()
        finally:
            os.close(descriptor)


def test_an_index_of_other_shards_is_none_of_these(directory, tmp_path):
    for shard in range(3):
        put_numbers(tmp_path / f"twin/{shard}.tfrecord", range(100 * shard, 100 * shard + 10))
    covey.build_index(directory, progress=False)
    expected = numbers(opened(tmp_path / "twin"))
    for name in INDEX:
        shutil.copy(directory / name, tmp_path / "twin" / name)
    assert numbers(opened(tmp_path / "twin")) == expected


def test_an_open_dataset_stays_the_version_that_it_was(birds, monkeypatch):
    mapped, unused, late = opened(birds), opened(birds), opened(birds)
    assert numbers(mapped) == list(range(90))
    new = [{"x": n, "label": 0} for n in range(500, 510)]
    write(new, birds, label="label", mode="overwrite")
    assert numbers(mapped) == list(range(90))
    assert numbers(unused) == list(range(90))  # the files of the replaced version are still there
    assert sorted(numbers(opened(birds))) == list(range(500, 510))
    monkeypatch.setattr("covey.writing.versions.RETENTION_S", 0)
    write(new, birds, label="label", mode="overwrite")
    assert numbers(mapped) == list(range(90))
    with pytest.raises(FileChangedError, match="open it again") as caught:
        late[0]
    assert os.path.basename(caught.value.path).startswith("birds-train")


def test_a_split_that_was_added_to(birds):
    more = [{"x": n, "label": n % 3, "other": 0, "pad": ""} for n in range(90, 100)]
    write(more, birds, label="label", mode="append", shuffle=False)
    ds = opened(birds)
    assert sorted(numbers(ds)) == list(range(100))
    assert isinstance(ds, covey.Dataset)


# Readers never write to a dataset.


def snapshot(directory):
    """All files of a directory: what they are, and when they were changed."""
    found = {}
    for path in (directory, *directory.rglob("*")):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path)] = (stat.st_ino, stat.st_mode, stat.st_mtime_ns, stat.st_uid, content)
    return found


def make_undescribed(directory):
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


def read_everything(directory, cache, user):
    """Use all that reads a dataset, as another user."""
    os.environ["COVEY_CACHE"] = str(cache)
    child = os.fork()
    if child == 0:
        try:
            os.setgid(user)
            os.setuid(user)
            with opened(directory) as ds:
                assert sorted(numbers(ds)) == list(range(30))
                next(iter(ds.batches(3, 2, seed=0)))
            covey.info(directory)
            covey.verify(directory, progress=False)
            assert main(["sample", str(directory), "--quiet"]) == 0
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("make", [make_undescribed, make_without_index, make_with_corrupt_index])
def test_readers_leave_a_dataset_exactly_as_it_was(elsewhere, make):
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        directory = Path(root, "data")
        directory.mkdir()
        make(directory)
        before = snapshot(directory)
        for user in (12345, 0):  # one that cannot write there, and one that can
            cache = Path(root, f"cache-{user}")
            cache.mkdir(mode=0o700)
            os.chown(cache, user, user)
            assert elsewhere(read_everything, directory, cache, user) == 0
            assert snapshot(directory) == before


# The cache of indexes, and what killed processes leave.


def test_indexes_are_evicted_least_recently_used_first(tmp_path, cache, scans, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE_BYTES", str(400_000))
    directories = [tmp_path / f"data{i}" for i in range(12)]
    for number, path in enumerate(directories):
        put_numbers(path / "0.tfrecord", range(1000))
        opened(path)
        opened(directories[0])
        size = sum(each.lstat().st_size for each in cache.rglob("*") if each.is_file())
        assert size <= 400_000, number
    scans.clear()
    for path in (directories[0], directories[-1]):
        opened(path)
    assert scans == []
    opened(directories[1])
    assert scans


@pytest.mark.parametrize("held_bytes", [16 << 20, 0], ids=["in memory", "mapped"])
def test_a_dataset_whose_index_was_evicted_can_be_pickled(tmp_path, cache, monkeypatch, held_bytes):
    monkeypatch.setenv("COVEY_CACHE_BYTES", str(200_000))
    monkeypatch.setattr(read, "_MAX_READ_BYTES", held_bytes)
    for name in ("a", "b"):
        put_numbers(tmp_path / name / "0.tfrecord", range(3000))
    ds = opened(tmp_path / "a")
    small = len(pickle.dumps(ds))
    opened(tmp_path / "b")
    assert len(list((cache / "indexes").iterdir())) == 1
    pickled = pickle.dumps(ds)
    assert small < 4000 < len(pickled)
    again = pickle.loads(pickled)
    assert numbers(again) == list(range(3000))
    assert numbers(again.where(label=1)) == list(range(1, 3000, 3))
    assert numbers(pickle.loads(pickle.dumps(again))) == list(range(3000))


def test_a_pickle_whose_index_was_removed_names_the_remedy(directory, cache):
    pickled = pickle.dumps(opened(directory))
    shutil.rmtree(cache)
    with pytest.raises(
        FileChangedError, match=r"open the dataset again.*COVEY_CACHE_BYTES"
    ) as caught:
        pickle.loads(pickled)
    assert caught.value.path.startswith(str(cache))


def put_temporaries(directory):
    """What a killed process leaves, long ago: the names of files, and a link that is not theirs."""
    (directory / ".covey-index-dead").mkdir()
    (directory / ".covey-index-dead" / "x.index.npy").write_bytes(b"half of it")
    (directory / ".covey-index-file").write_bytes(b"half of it")
    outside = directory.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_bytes(b"as it was")
    (directory / ".covey-index-link").symlink_to(outside)
    (directory / ".covey-index-dead" / "link").symlink_to(outside)
    for path in (
        directory / ".covey-index-dead" / "x.index.npy",
        directory / ".covey-index-dead" / "link",
        directory / ".covey-index-dead",
        directory / ".covey-index-file",
        directory / ".covey-index-link",
    ):
        os.utime(path, (0, 0), follow_symlinks=False)
    return outside


def test_make_index_removes_stale_temporaries_and_follows_no_link(directory):
    outside = put_temporaries(directory)
    for name in INDEX:
        (directory / name).symlink_to(outside / "kept")
    (directory / ".covey-index-young").write_bytes(b"")
    living = directory / ".covey-index-living"
    living.mkdir()
    os.utime(living, (0, 0))
    descriptor = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        covey.build_index(directory, progress=False)
    finally:
        os.close(descriptor)
    left = sorted(path.name for path in directory.iterdir() if path.name.startswith("."))
    assert left == [".covey-index-living", ".covey-index-young"]
    assert (outside / "kept").read_bytes() == b"as it was"
    assert not any((directory / name).is_symlink() for name in INDEX)
    assert numbers(opened(directory)) == list(range(30))


def test_a_writer_holds_its_temporaries(directory):
    path = Path(new_temporary(directory))
    os.utime(path, (0, 0))
    remove_stale_temporaries(directory)
    assert path.is_dir()
    remove_temporary(str(path))
    assert not path.exists()


def test_stale_temporaries_of_the_cache_are_removed(directory, cache):
    opened(directory)
    (kept,) = (cache / "indexes").iterdir()
    outside = put_temporaries(kept)
    unpacked = cache / "unpacked" / ".dead.1"
    unpacked.parent.mkdir()
    unpacked.write_bytes(b"half of it")
    os.utime(unpacked, (0, 0))
    put_numbers(directory / "3.tfrecord", [30])
    opened(directory)
    assert [path.name for path in kept.iterdir() if path.name.startswith(".")] == []
    assert not unpacked.exists()
    assert (outside / "kept").exists()
