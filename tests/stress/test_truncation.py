"""Files that are truncated, overwritten or replaced while they are read."""

import contextlib
import itertools
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from opened import Elsewhere, opened
from written import shard_paths, write

import covey
from covey import CoveyError, RecordReader, _core
from covey.errors import CorruptRecordError, FileChangedError, StorageError
from covey.index import read
from covey.maintenance.repair import repair
from covey.maintenance.verify import verify
from covey.reading import open_files
from covey.storage import LocalStorage
from covey.tfrecord.recovery import salvage

MAX_ATTEMPTS = 100
RECORDS = 1200
FEATURES = covey.Features({"x": "int64", "label": "int64", "pad": covey.Tensor("uint8", (2000,))})
PADS = np.random.default_rng(0).integers(0, 256, (RECORDS, 2000), np.uint8)


def columns():
    numbers = np.arange(RECORDS)
    return {"x": numbers, "label": numbers % 6, "pad": PADS}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, closing(Elsewhere()) as run:
        patch.setenv("COVEY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield run


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Two shards of 1.2 MB, which are large enough to be mapped by every reader."""
    path = tmp_path_factory.mktemp("truncated") / "birds"
    write(columns(), path, features=FEATURES, label="label", shuffle=False, shards=2)
    return path


@pytest.fixture
def copy(directory, tmp_path):
    return shutil.copytree(directory, tmp_path / "birds")


def check_rows(found, ids):
    assert found["x"].tolist() == list(ids)
    assert (found["pad"] == PADS[ids]).all()


class Truncator:
    """Another process, which truncates files when it is told to."""

    def __init__(self):
        self._orders, orders = os.pipe()
        answers, self._answers = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(orders)
            with contextlib.suppress(BaseException):
                self._work()
            os._exit(0)
        os.close(self._orders)
        os.close(self._answers)
        self._orders, self._answers = orders, answers

    def _work(self):
        with open(self._orders) as orders:
            for line in orders:
                delay, size, path = line.rstrip("\n").split(" ", 2)
                end = time.perf_counter() + float(delay)
                while time.perf_counter() < end:
                    pass
                os.truncate(path, int(size))
                os.write(self._answers, b".")

    def begin(self, path, size, delay):
        os.write(self._orders, f"{delay} {size} {path}\n".encode())

    def is_done(self):
        return bool(select.select([self._answers], [], [], 0)[0])

    def finish(self):
        os.read(self._answers, 1)

    def close(self):
        os.close(self._orders)
        os.close(self._answers)
        os.waitpid(self._process, 0)


def read_batches(directory, path, mmap):
    with opened(directory, mmap=mmap) as ds:
        loader = ds.batches(classes_per_batch=4, examples_per_class=8, seed=1, threads=2)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))

        def action():
            x, y = next(batches)
            assert (x["pad"] == PADS[x["x"]]).all()
            assert (y == x["x"] % 6).all()

        yield action


def read_ids(directory, path, mmap):
    rng = np.random.default_rng()
    with opened(directory, mmap=mmap) as ds:
        yield lambda: check_rows(ds[ids], ids) if len(ids := rng.integers(0, RECORDS, 64)) else 0


def read_raw(directory, path, mmap):
    with opened(directory, mmap=mmap) as ds:
        expected = [ds.raw[number] for number in range(0, RECORDS, 40)]

        def action():
            assert [ds.raw[number] for number in range(0, RECORDS, 40)] == expected

        yield action


def index_shards(directory, path, mmap):
    paths = sorted(map(str, shard_paths(directory)))

    def action():
        files = covey.index.ShardFiles(
            LocalStorage(), str(directory), tuple(os.path.basename(each) for each in paths)
        )
        indexing = covey.index.IndexBuilder(None, "label", mmap=mmap, threads=2, progress=False)
        assert len(indexing.build(files)) == RECORDS

    yield action


def read_records(directory, path, mmap):
    with RecordReader(path) as reader:
        expected = list(reader)

    def action():
        with RecordReader(path, mmap=mmap) as reader:
            assert list(reader) == expected

    yield action


def stream_batches(directory, path, mmap):
    paths = sorted(shard_paths(directory))

    def action():
        found = covey.reading.read_batches(paths, FEATURES, 100, mmap=mmap, threads=2)
        at = 0
        for each in found:
            check_rows(each, np.arange(at, at + len(each["x"])))
            at += len(each["x"])
        assert at == RECORDS

    yield action


def verify_all(directory, path, mmap):
    def action():
        report = verify(directory, mmap=mmap, threads=2, progress=False)
        if not report.is_valid:
            assert all(problem.file == path.name for problem in report.problems)
            raise CorruptRecordError(str(report), path=path.name, record=0, offset=0)
        assert report.records == RECORDS

    yield action


def repair_all(directory, path, mmap):
    target = directory.parent / "repaired"

    def action():
        shutil.rmtree(target, ignore_errors=True)
        found = repair(directory, target, mmap=mmap, threads=2, progress=False)
        if found.lost:
            raise CorruptRecordError(str(found), path=path.name, record=0, offset=0)
        with opened(target) as ds:
            check_rows(ds[:], np.arange(RECORDS))

    yield action


def race(kind, directory, mmap, tries):
    """Truncate a shard while it is read, again and again; how many reads have failed."""
    path = shard_paths(directory)[1]
    content = path.read_bytes()
    rng = random.Random(kind)
    failed = 0
    with closing(Truncator()) as truncator:
        for _ in range(tries):
            with contextlib.contextmanager(globals()[kind])(directory, path, mmap) as action:
                # Not where a record ends: then the shorter file would be valid.
                size = rng.choice([1, 4097, len(content) // 2 + 7, len(content) - 5001])
                truncator.begin(path, size, rng.random() * 0.004)
                # What begins before the file is truncated is right or fails.
                try:
                    while not truncator.is_done():
                        action()
                except (CorruptRecordError, FileChangedError):
                    failed += 1
                truncator.finish()
            with open(path, "r+b") as file:
                file.write(content)
    return failed


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "kind",
    [
        "read_batches",
        "read_ids",
        "read_raw",
        "index_shards",
        "read_records",
        "stream_batches",
        "verify_all",
        "repair_all",
    ],
)
def test_a_shard_that_is_truncated_while_it_is_read(copy, elsewhere, kind, mmap):
    tries = MAX_ATTEMPTS if kind != "repair_all" else 10
    assert elsewhere(race, kind, copy, mmap, tries) > 0


def truncate_index(directory, name, kind):
    """Truncate a mapped file of an index; what the next reads do."""
    read.MAX_READ_BYTES = 0
    (path,) = directory.glob(f"*.{name}.npy")
    with opened(directory) as ds:
        loader = ds.batches(classes_per_batch=4, examples_per_class=8, threads=1)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        action = {
            "batches": lambda: next(batches),
            "ids": lambda: ds[np.arange(RECORDS)],
            "labels": lambda: ds.where(label=3)[:],
        }[kind]
        action()
        os.truncate(path, 200)
        try:
            for _ in range(100):
                action()
        except CoveyError as error:
            return type(error).__name__
    return "nothing"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("index", "batches"),
        ("index", "ids"),
        ("index", "labels"),
        ("by_class", "batches"),
    ],
)
def test_an_index_that_is_truncated_while_it_is_mapped(copy, elsewhere, name, kind):
    found = elsewhere(truncate_index, copy, name, kind)
    assert found in ("FileChangedError", "FormatError")


def use_block_after_truncation(directory):
    """Read from a block, which is a map of its file, after the file was truncated."""
    path = shard_paths(directory)[1]
    found = []
    with RecordReader(path) as reader:
        (block,) = reader.blocks()
        os.truncate(path, 0)
        target = directory.parent / "written"
        with contextlib.ExitStack() as stack:
            writer = stack.enter_context(covey.RecordWriter(target))
            for use in (
                lambda: list(block),
                lambda: FEATURES.decode_batch(block),
                lambda: writer.write_block(block),
            ):
                with contextlib.suppress(CoveyError):
                    try:
                        use()
                    except FileChangedError as error:
                        found.append(error.path)
                        raise
    return found


def test_a_block_of_a_file_that_was_truncated(copy, elsewhere):
    assert elsewhere(use_block_after_truncation, copy) == [str(shard_paths(copy)[1])] * 3


@pytest.mark.parametrize("use", ["iterate", "slice", "decode", "join", "write", "closed"])
@pytest.mark.parametrize("salvaged", [False, True])
def test_a_block_of_a_file_that_was_truncated_in_its_last_page(copy, tmp_path, use, salvaged):
    # An access to the last page of a file raises no signal: what is missing there is zeros.
    def write_block(block):
        with covey.RecordWriter(tmp_path / "x") as writer:
            writer.write_block(block)

    path = shard_paths(copy)[1]
    size = path.stat().st_size
    with RecordReader(path) as reader:
        (block,) = salvage(path) if salvaged else reader.blocks()
        os.truncate(path, size - 1)
        assert (size - 1) // 4096 == (size - 2) // 4096
        if use == "closed":
            reader.close()
        action = {
            "iterate": lambda: list(block),
            "slice": lambda: list(block[5:9]),
            "decode": lambda: FEATURES.decode_batch(block),
            "join": lambda: FEATURES.decode_batch([block, block]),
            "write": lambda: write_block(block),
            "closed": lambda: list(block),
        }
        with pytest.raises(FileChangedError) as caught:
            action[use]()
        assert caught.value.path == str(path)


def test_a_descriptor_lives_as_long_as_mapped_blocks(copy):
    path = shard_paths(copy)[1]

    def count():
        links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(each) == str(path.resolve()) for each in links)

    with RecordReader(path) as reader:
        (block,) = reader.blocks()
        part = block[5:9]
    del block
    assert count() == 1
    del part
    assert count() == 0


@pytest.mark.parametrize("verify", [False, True])
def test_a_file_that_is_truncated_in_its_last_page_while_it_is_scanned(copy, monkeypatch, verify):
    path = shard_paths(copy)[1]
    real = _core.scan_frames

    def scan_frames(*args):
        os.truncate(path, path.stat().st_size - 1)
        return real(*args)

    monkeypatch.setattr(_core, "scan_frames", scan_frames)
    message = "the file was truncated while it was read"
    with RecordReader(path, verify=verify) as r, pytest.raises(CorruptRecordError, match=message):
        r.count()


# Handlers of others.


def run_script(script, directory, **environment):
    """Run a script in which `cut()` truncates a shard; the exit status, and the output."""
    begin = f"""
        import os, signal, sys, faulthandler
        import covey
        path = {str(shard_paths(directory)[1])!r}
        ds = covey.open({str(directory)!r}, progress=False)
        def cut():
            os.truncate(path, 0)
            try:
                ds[{RECORDS - 1}]
            except covey.errors.FileChangedError:
                print("changed")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("first", [True, False])
def test_faulthandler_and_the_guard(copy, first):
    script = f"""
        if {first}:
            faulthandler.enable()
        ds[0]  # maps the first shard
        faulthandler.enable()
        ds[{RECORDS - 1}]  # maps the second
        cut()
        os.kill(os.getpid(), signal.SIGBUS)
    """
    assert run_script(script, copy) == (-signal.SIGBUS, "changed\n")


def test_a_handler_in_python_is_called_for_other_signals(copy):
    script = f"""
        signal.signal(signal.SIGBUS, lambda number, frame: print("called"))
        ds[{RECORDS - 1}]
        os.kill(os.getpid(), signal.SIGBUS)
        cut()
    """
    assert run_script(script, copy) == (0, "called\nchanged\n")


def test_the_guard_can_be_disabled(copy):
    script = f"ds[{RECORDS - 1}]\ncut()"
    assert run_script(script, copy, COVEY_SIGBUS_HANDLER="1") == (0, "changed\n")
    shutil.rmtree(copy)
    write(columns(), copy, features=FEATURES, label="label", shuffle=False, shards=2)
    assert run_script(script, copy, COVEY_SIGBUS_HANDLER="0") == (-signal.SIGBUS, "")


# Shards that are replaced or overwritten.


def other_version(directory):
    """The second shard of another dataset, whose records have the same lengths and classes."""
    other = directory.parent / "other"
    changed = {**columns(), "pad": PADS ^ 1}
    write(changed, other, features=FEATURES, label="label", shuffle=False, shards=2)
    return shard_paths(other)[1]


@pytest.mark.parametrize("mmap", [True, False])
def test_what_is_checked_is_what_is_read(copy, monkeypatch, mmap):
    # The shard is replaced at the moment at which its fingerprint is known.
    path, other = shard_paths(copy)[1], other_version(copy)
    ds = opened(copy, mmap=mmap)
    real, calls = _core.crc32c, itertools.count(1)

    def crc32c(*args):
        found = real(*args)
        if next(calls) == 2:
            os.replace(other, path)
        return found

    monkeypatch.setattr(_core, "crc32c", crc32c)
    ids = np.arange(RECORDS // 2, RECORDS)
    check_rows(ds[ids], ids)
    assert not other.exists()
    check_rows(ds[ids], ids)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", ["ids", "raw", "batches"])
def test_a_shard_that_is_overwritten_in_place(copy, mmap, kind):
    path, other = shard_paths(copy)[1], other_version(copy)
    ds = opened(copy, mmap=mmap)
    loader = ds.batches(classes_per_batch=4, examples_per_class=8, threads=1)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    ids = np.arange(RECORDS)
    action = {
        "ids": lambda: ds[ids],
        "raw": lambda: ds.raw[RECORDS - 1],
        "batches": batches.__next__,
    }
    for age in (1000, 100, 0):  # a file that is only touched is the same
        os.utime(path, (time.time() - age, time.time() - age))
        action[kind]()
    content = other.read_bytes()
    assert len(content) == path.stat().st_size
    with open(path, "r+b") as file:
        file.write(content)
    with pytest.raises(FileChangedError) as caught:
        for _ in range(500):
            action[kind]()
            time.sleep(0.001)
    assert caught.value.path == str(path)
    with pytest.raises(FileChangedError):
        action["ids"]()


@pytest.mark.parametrize("mmap", [True, False])
def test_a_shard_that_is_replaced_before_it_is_opened(copy, mmap):
    path, other = shard_paths(copy)[1], other_version(copy)
    ds = opened(copy, mmap=mmap)
    ds[0]
    os.replace(other, path)
    for _ in range(2):
        with pytest.raises(FileChangedError, match="open it again") as caught:
            ds[RECORDS - 1]
        assert caught.value.path == str(path)
    path.unlink()
    with pytest.raises(FileChangedError, match=r"missing.* open it again"):
        ds[RECORDS - 1]


@pytest.mark.parametrize("mmap", [True, False])
def test_a_shard_that_is_only_touched_before_it_is_opened(copy, tmp_path, monkeypatch, mmap):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    paths = shard_paths(copy)
    ds = opened(paths, mmap=mmap)  # without the index that covey wrote
    os.utime(paths[0], (0, 0))
    shutil.copyfile(paths[1], tmp_path / "copy")
    os.replace(tmp_path / "copy", paths[1])
    ids = np.arange(RECORDS)
    check_rows(ds[ids], ids)
    with open(paths[1], "ab") as file:
        file.write(b"x")
    check_rows(ds[ids], ids)


def replaced_after_eviction(directory, other):
    """Replace a shard whose descriptor was closed to make room for others."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    ds = opened(directory, mmap=False)
    path = shard_paths(directory)[1]
    ds[RECORDS - 1]
    crowd = [opened(directory, mmap=False) for _ in range(40)]
    for each in crowd:
        each[0]
    os.replace(other, path)
    try:
        return ds[RECORDS - 1]["pad"].tolist()
    except FileChangedError as error:
        return error.path


def test_a_shard_that_is_replaced_while_its_descriptor_is_closed(copy, elsewhere):
    path, other = shard_paths(copy)[1], other_version(copy)
    found = elsewhere(replaced_after_eviction, copy, other)
    assert found == str(path)


def replaced_while_indexed(directory, other):
    """Replace a shard between the passes of indexing."""
    path = shard_paths(directory)[1]

    def look(example):
        if other.exists():
            os.replace(other, path)
        return int(example["label"])

    for each in [*directory.glob("*.npy"), *directory.glob("*.json")]:
        each.unlink()
    try:
        opened(directory, label=look, threads=1)
    except FileChangedError as error:
        return error.path
    return "nothing"


def test_a_shard_that_is_replaced_while_it_is_indexed(copy, elsewhere):
    path, other = shard_paths(copy)[1], other_version(copy)
    assert elsewhere(replaced_while_indexed, copy, other) == str(path)


# What is not a file.


def make_special(kind, path):
    path.unlink()
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


def use_special(kind, directory, use, mmap):
    """Use a shard that is not a regular file; the error. A process that waits is killed."""
    signal.alarm(20)
    paths = shard_paths(directory)
    path = paths[1]
    try:
        ds = opened(directory, mmap=mmap) if use == "read" else None
        make_special(kind, path)
        if use == "read":
            ds[RECORDS - 1]
        elif use == "open":
            opened(directory, mmap=mmap)
        elif use == "index":
            for each in [*directory.glob("*.npy"), *directory.glob("*.json")]:
                each.unlink()
            opened(paths, mmap=mmap)
        else:
            return [str(each) for each in verify(directory, progress=False).problems]
    except CoveyError as error:
        return [str(error)]
    finally:
        signal.alarm(0)
    return []


@pytest.mark.parametrize("kind", ["FIFO", "directory", "character device"])
def test_a_shard_that_is_not_a_regular_file(directory, tmp_path, elsewhere, kind):
    for use in ("read", "open", "index", "verify"):
        copy = shutil.copytree(directory, tmp_path / use / "birds")
        path = shard_paths(copy)[1]
        found = elsewhere(use_special, kind, copy, use, True)
        assert any(path.name in each for each in found)
        if use == "read":
            assert f"{path}: it is a {kind}; must be a regular file" in found[0]


def test_a_fingerprint_is_of_a_regular_file(tmp_path):
    with pytest.raises(StorageError, match="it is a directory; must be a regular file"):
        covey.index.format.fingerprint(tmp_path)


# The limit on open files.


def descriptors_of_two_datasets(directory):
    """Read two datasets in two threads; how many descriptors of shards stay open."""

    def max_open_files():
        time.sleep(0.2)  # the other thread asks meanwhile
        return 64

    open_files.max_open_files = max_open_files
    sets = [opened(directory) for _ in range(2)]
    threads = [threading.Thread(target=ds.__getitem__, args=(slice(None),)) for ds in sets]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    links = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    return sum(os.path.dirname(each) == str(directory) for each in links)


def test_datasets_that_are_opened_at_once_share_the_limit(tmp_path):
    write(columns(), tmp_path / "birds", features=FEATURES, label="label", shards=20)
    with closing(Elsewhere()) as run:
        assert run(descriptors_of_two_datasets, tmp_path / "birds") == 20


def read_with_few_descriptors(directory, mmap):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    sets = [opened(directory, mmap=mmap) for _ in range(3)]
    failures = []

    def read(ds, seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(20):
                ids = rng.integers(0, 400, 50)
                assert ds[ids]["x"].tolist() == ids.tolist()
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=read, args=(ds, s)) for s, ds in enumerate(sets * 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return failures


def test_many_shards_and_few_descriptors(tmp_path, elsewhere):
    examples = [{"x": number, "label": number % 3} for number in range(400)]
    write(examples, tmp_path / "many", label="label", shuffle=False, shards=200)
    for mmap in (True, False):
        assert elsewhere(read_with_few_descriptors, tmp_path / "many", mmap) == []
