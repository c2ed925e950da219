"""Shards and indexes that are truncated, overwritten or replaced while they are used."""

import contextlib
import itertools
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing

import numpy as np
import pytest
from opened import SHARD_CHANGES, Elsewhere, numbers, opened
from written import shard_paths, write

import covey
from covey import CoveyError, RecordReader, _core
from covey.errors import CorruptRecordError, FileChangedError
from covey.index import store
from covey.maintenance.repair import repair
from covey.maintenance.verify import verify
from covey.storage import LocalStorage

MAX_ATTEMPTS = 40
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
    """A process that truncates files on request."""

    def __init__(self):
        self._requests, requests = os.pipe()
        replies, self._replies = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(requests)
            with contextlib.suppress(BaseException):
                self._work()
            os._exit(0)
        os.close(self._requests)
        os.close(self._replies)
        self._requests, self._replies = requests, replies

    def _work(self):
        with open(self._requests) as requests:
            for line in requests:
                delay, size, path = line.rstrip("\n").split(" ", 2)
                end = time.perf_counter() + float(delay)
                while time.perf_counter() < end:
                    pass
                os.truncate(path, int(size))
                os.write(self._replies, b".")

    def begin(self, path, size, delay):
        os.write(self._requests, f"{delay} {size} {path}\n".encode())

    def is_done(self):
        return bool(select.select([self._replies], [], [], 0)[0])

    def finish(self):
        os.read(self._replies, 1)

    def close(self):
        os.close(self._requests)
        os.close(self._replies)
        os.waitpid(self._process, 0)


def read_batches(directory, path, mmap):
    with opened(directory, mmap=mmap) as ds:
        batches = repeat_batches(ds, threads=2)

        def action():
            x, y = next(batches)
            assert (x["pad"] == PADS[x["x"]]).all()
            assert (y == x["x"] % 6).all()

        yield action


def repeat_batches(ds, threads):
    loader = ds.batches(classes_per_batch=4, examples_per_class=8, seed=1, threads=threads)
    return itertools.chain.from_iterable(itertools.repeat(loader))


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
        indexing = covey.index.IndexBuilder(None, "label", threads=2, progress=False)
        assert len(indexing.build(files)) == RECORDS

    yield action


def read_records(directory, path, mmap):
    with RecordReader(path) as reader:
        expected = list(reader)

    def action():
        with RecordReader(path) as reader:
            assert list(reader) == expected

    yield action


def verify_all(directory, path, mmap):
    def action():
        report = verify(directory, threads=2, progress=False)
        if not report.is_valid:
            assert all(problem.file == path.name for problem in report.problems)
            raise CorruptRecordError(str(report), path=path.name, record=0, offset=0)
        assert report.records == RECORDS

    yield action


def repair_all(directory, path, mmap):
    target = directory.parent / "repaired"

    def action():
        shutil.rmtree(target, ignore_errors=True)
        found = repair(directory, target, threads=2, progress=False)
        if found.lost:
            raise CorruptRecordError(str(found), path=path.name, record=0, offset=0)
        with opened(target) as ds:
            check_rows(ds[:], np.arange(RECORDS))

    yield action


def race(kind, directory, mmap, attempts):
    """Truncate a shard while it is read, several times; return the number of failed reads."""
    path = shard_paths(directory)[1]
    content = path.read_bytes()
    rng = random.Random(kind)
    failed = 0
    with closing(Truncator()) as truncator:
        for _ in range(attempts):
            with contextlib.contextmanager(globals()[kind])(directory, path, mmap) as action:
                # Not at the end of a record, where the truncated file is valid.
                size = rng.choice([1, 4097, len(content) // 2 + 7, len(content) - 5001])
                truncator.begin(path, size, rng.random() * 0.004)
                # A read that begins before the truncation returns the right records or fails; the
                # last read begins after it.
                try:
                    is_done = False
                    while not is_done:
                        is_done = truncator.is_done()
                        action()
                except (CorruptRecordError, FileChangedError):
                    failed += 1
                truncator.finish()
            with open(path, "r+b") as file:
                file.write(content)
    return failed


MAPPED = [read_batches, read_ids, read_raw]
READ = [index_shards, read_records, verify_all, repair_all]
RACES = [(kind, mmap) for kind in MAPPED for mmap in (True, False)] + [
    (kind, False) for kind in READ
]


@pytest.mark.parametrize(("kind", "mmap"), RACES, ids=lambda each: getattr(each, "__name__", each))
def test_shard_truncated_during_a_read(copy, elsewhere, kind, mmap):
    attempts = 6 if kind is repair_all else MAX_ATTEMPTS
    assert elsewhere(race, kind.__name__, copy, mmap, attempts) > 0


def test_compressed_shard_truncated_during_a_read(tmp_path, elsewhere):
    options = {"features": FEATURES, "label": "label", "compression": "GZIP"}
    write(columns(), tmp_path / "birds", shuffle=False, shards=2, **options)
    assert elsewhere(race, "read_ids", tmp_path / "birds", True, MAX_ATTEMPTS // 2) > 0


def truncate_index(directory, name, kind):
    """Truncate a mapped file of an index, and return the error of the next reads."""
    store.MAX_READ_BYTES = 0
    (path,) = directory.glob(f"*.{name}.npy")
    with opened(directory) as ds:
        batches = repeat_batches(ds, threads=1)
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
    return "no error"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("index", "batches"), ("index", "ids"), ("index", "labels"), ("by_class", "batches")],
)
def test_mapped_index_is_truncated(copy, elsewhere, name, kind):
    found = elsewhere(truncate_index, copy, name, kind)
    assert found in ("FileChangedError", "FormatError")


@pytest.mark.parametrize("verify", [False, True])
def test_file_truncated_during_a_scan(copy, monkeypatch, verify):
    path = shard_paths(copy)[1]
    real = _core.scan_frames

    def scan_frames(*args):
        os.truncate(path, path.stat().st_size - 1)
        return real(*args)

    monkeypatch.setattr(_core, "scan_frames", scan_frames)
    message = "the file was truncated from"
    with RecordReader(path, verify=verify) as r, pytest.raises(CorruptRecordError, match=message):
        r.count()


# Other handlers of SIGBUS.


def run_script(script, directory, **environment):
    """Run a script in which `cut()` truncates a shard; return the exit status and the output."""
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


def test_handler_in_python_is_called_for_other_signals(copy):
    script = f"""
        signal.signal(signal.SIGBUS, lambda number, frame: print("called"))
        ds[{RECORDS - 1}]
        os.kill(os.getpid(), signal.SIGBUS)
        cut()
    """
    assert run_script(script, copy) == (0, "called\nchanged\n")


def test_guard_is_disabled(copy):
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
@pytest.mark.parametrize("kind", ["ids", "raw", "batches"])
def test_shard_overwritten_in_place(copy, mmap, kind):
    path, other = shard_paths(copy)[1], other_version(copy)
    ds = opened(copy, mmap=mmap)
    action = {
        "ids": lambda: ds[np.arange(RECORDS)],
        "raw": lambda: ds.raw[RECORDS - 1],
        "batches": repeat_batches(ds, threads=1).__next__,
    }
    for age in (1000, 100, 0):  # a change of the time alone is not an error
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


def outcome(dataset, ids):
    """The numbers of examples, or the path of the error."""
    try:
        return numbers(dataset, ids)
    except CoveyError as error:
        return error.path


def change_open_shard(directory, change, other, mmap, is_used):
    """Change the second of three shards of an open dataset, and read records of all shards."""
    ds = opened(directory, mmap=mmap)
    if is_used:
        assert numbers(ds) == list(range(90))
    SHARD_CHANGES[change](shard_paths(directory)[1], other)
    return [outcome(ds, ids) for ids in ([45], list(range(30, 60)), [59], [3, 80])]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_change_of_an_open_shard(tmp_path, elsewhere, compression, mmap):
    def make(name, first, count, shards):
        examples = [{"x": n, "label": n % 3, "pad": "p" * 400} for n in range(first, first + count)]
        options = {"label": "label", "compression": compression}
        write(examples, tmp_path / name / "birds", shuffle=False, shards=shards, **options)
        return tmp_path / name / "birds"

    birds = make("original", 0, 90, 3)
    other = shard_paths(make("other", 130, 30, 1))[0].read_bytes()
    for change, is_used in itertools.product(SHARD_CHANGES, (True, False)):
        copy = shutil.copytree(birds, tmp_path / f"{change} {is_used}" / "birds")
        path = str(shard_paths(copy)[1])
        *found, others = elsewhere(change_open_shard, copy, change, other, mmap, is_used)
        assert others == [3, 80]
        for each, expected in zip(found, ([45], list(range(30, 60)), [59]), strict=True):
            assert each == path or (is_used and each == expected), change
        if change in ("truncated", "emptied"):
            assert found[1] == path


def overwrite_open_shard(directory, mmap, content):
    path = shard_paths(directory)[1]
    ds = opened(directory, mmap=mmap)
    ds[:]
    with open(path, "r+b") as file:
        file.write(content)
    return [outcome(ds, [number]) for number in range(0, RECORDS, 25)]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        lambda content: bytes(len(content)),
        lambda content: content[1:] + content[:1],
        lambda content: bytes(b ^ 0x55 if at % 100 == 20 else b for at, b in enumerate(content)),
    ],
    ids=["zeros", "shifted", "flipped"],
)
def test_corruption_of_an_open_shard(copy, elsewhere, change, mmap):
    path = shard_paths(copy)[1]
    found = elsewhere(overwrite_open_shard, copy, mmap, change(path.read_bytes()))
    expected = [[n] if n < RECORDS // 2 else str(path) for n in range(0, RECORDS, 25)]
    assert found == expected


@pytest.mark.parametrize("mmap", [True, False])
def test_shard_replaced_before_it_is_opened(copy, mmap):
    path, other = shard_paths(copy)[1], other_version(copy)
    ds = opened(copy, mmap=mmap)
    ds[0 if mmap else RECORDS - 1]  # a shard that is not mapped is opened for each batch
    os.replace(other, path)
    for _ in range(2):
        with pytest.raises(FileChangedError, match="open it again") as caught:
            ds[RECORDS - 1]
        assert caught.value.path == str(path)
    path.unlink()
    with pytest.raises(FileChangedError, match=r"missing.* open it again"):
        ds[RECORDS - 1]


@pytest.mark.parametrize("mmap", [True, False])
def test_touched_or_copied_shard_is_unchanged(copy, tmp_path, monkeypatch, mmap):
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


def change_during_indexing(directory, change, other):
    """Change a shard between the passes over the shards, in the label function."""
    path = shard_paths(directory)[1]
    is_changed = False

    def label(example):
        nonlocal is_changed
        if not is_changed:
            SHARD_CHANGES[change](path, other)
            is_changed = True
        return int(example["label"])

    for each in [*directory.glob("*.npy"), *directory.glob("*.json")]:
        each.unlink()
    try:
        opened(directory, label=label, threads=1)
    except FileChangedError as error:
        return error.path


@pytest.mark.parametrize("change", ["replaced", "extended", "truncated", "missing"])
def test_change_of_a_shard_during_indexing(copy, elsewhere, change):
    path, other = shard_paths(copy)[1], other_version(copy).read_bytes()
    assert elsewhere(change_during_indexing, copy, change, other) == str(path)


# Shards that are not regular files; tests/interop/test_hostile_datasets.py opens and verifies them.


def use_special(kind, directory, use):
    """Read or index a shard that is not a regular file; return the error."""
    signal.alarm(20)  # a FIFO may block
    paths = shard_paths(directory)
    try:
        ds = opened(directory) if use == "read" else None
        paths[1].unlink()
        if kind == "FIFO":
            os.mkfifo(paths[1])
        elif kind == "directory":
            paths[1].mkdir()
        else:
            paths[1].symlink_to("/dev/zero")
        if ds is not None:
            ds[RECORDS - 1]
        else:
            for each in [*directory.glob("*.npy"), *directory.glob("*.json")]:
                each.unlink()
            opened(paths)
    except CoveyError as error:
        return error.path, error.reason
    finally:
        signal.alarm(0)


@pytest.mark.parametrize("use", ["read", "index"])
@pytest.mark.parametrize("kind", ["FIFO", "directory", "character device"])
def test_shard_that_is_not_a_regular_file(copy, elsewhere, kind, use):
    path = str(shard_paths(copy)[1])
    found_path, reason = elsewhere(use_special, kind, copy, use)
    assert found_path == path
    assert use == "index" or "it is not a regular file" in reason
