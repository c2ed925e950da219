"""covey.write to URLs, compared with the same write to a local disk; and writes that fail."""

import errno
import json
import os
import signal
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from opened import as_lists, opened
from servers import range_server, s3_bucket, stand_alone
from storages import COUNTER
from written import TOKEN, content, files, replaced, write

from covey.cli import main
from covey.dataset_info import has_token
from covey.errors import (
    CommittedError,
    DatasetError,
    DatasetExistsError,
    StorageError,
    StoragePermissionError,
)
from covey.writing.recovery import is_sidecar

INFO = "dataset_info.json"
SPECIES = ("jay", "owl", "wren")


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


# Servers and drivers.


def _hooked(method, position):
    """Return a method of a driver that calls the hook; its argument at a position is the file."""

    def hooked_method(self, *args, **options):
        def call():
            return getattr(MemoryFileSystem, method)(self, *args, **options)

        hook, name = HookedDriver.hook, args[position].rpartition("/birds/")[2]
        return call() if hook is None else hook(method, name, call)

    return hooked_method


class HookedDriver(MemoryFileSystem):
    """A driver whose calls a test observes, or replaces by failures."""

    protocol = "hooked"
    hook: Any = None
    """Function of a method, the name of a file and a function without arguments, the call."""

    cat_file = _hooked("cat_file", 0)
    pipe_file = _hooked("pipe_file", 0)
    rm_file = _hooked("rm_file", 0)
    put_file = _hooked("put_file", 1)
    cp_file = _hooked("cp_file", 1)

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace(f"{cls.protocol}://", "memory://"))


class DriverWithoutCopy(HookedDriver):
    protocol = "uncopied"

    def cp_file(self, source, path, **options):
        raise NotImplementedError


for driver in (HookedDriver, DriverWithoutCopy):
    fsspec.register_implementation(driver.protocol, driver, clobber=True)


@contextmanager
def hooked(hook):
    """Call a function in place of the calls of the driver."""
    HookedDriver.hook = staticmethod(hook)
    try:
        yield
    finally:
        HookedDriver.hook = None


@contextmanager
def failing(first=0, last=0):
    """Let changes fail by their numbers, all from the first if last is None; yield all changes."""
    changes = []

    def hook(method, name, call):
        if method == "cat_file":
            return call()
        number = len(changes)
        changes.append((method, name))
        if first <= number and (last is None or number < last):
            raise PermissionError("no access")
        return call()

    with hooked(hook):
        yield changes


@dataclass
class Target:
    """A directory to write to."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    log: Any = None
    """The log of requests of the S3 server."""

    def files(self):
        """Return the content of all files, read without covey."""
        driver, root = fsspec.core.url_to_fs(self.url, **self.options)
        driver.invalidate_cache()
        found = driver.find(root)
        return {path.removeprefix(f"{root}/"): driver.cat_file(path) for path in found}

    def open(self, **options):
        return opened(self.url, storage_options=self.options, **options)


def new_target(protocol="hooked", before=None):
    """Return a new directory in memory with some files."""
    path = f"directory{next(COUNTER)}/birds"
    for name, data in (before or {}).items():
        fsspec.filesystem("memory").pipe_file(f"/{path}/{name}", data)
    return Target(f"{protocol}://{path}")


@pytest.fixture
def memory():
    return new_target()


@pytest.fixture
def uncopied():
    return new_target("uncopied")


@pytest.fixture(scope="module")
def s3_server():
    with s3_bucket() as found:
        yield found


@pytest.fixture
def s3(s3_server):
    yield Target(f"s3://bucket/{next(COUNTER)}/birds", s3_server.options, s3_server.log)
    s3_server.log.fault = None


def examples(begin, end, **features):
    return [
        {"x": n, "species": SPECIES[n % 3], "noise": "n" * (n % 50), **features}
        for n in range(begin, end)
    ]


def put(target, examples, split="train", **options):
    options = {"label": "species", "shards": 2, **options}
    return write(examples, target.url, split, storage_options=target.options, **options)


# Content.


def refuse_once():
    """Return a fault for the first request of each method for each file, which is retried."""
    seen = Counter()

    def fault(method, path):
        seen[method, path] += 1
        return 503 if seen[method, path] == 1 else 0

    return fault


def names_without_tokens(names):
    return sorted(TOKEN.sub("", name) for name in names)


def check_same(found, directory):
    """Compare files with those of a local dataset, except the tokens of versions."""
    with tempfile.TemporaryDirectory() as copy:
        for name, data in found.items():
            Path(copy, name).write_bytes(data)
        assert content(Path(copy)) == content(directory)
    here = [name for name in files(directory) if not name.startswith(".covey-old")]
    assert names_without_tokens(found) == names_without_tokens([*here, *replaced(directory)])


@pytest.mark.parametrize("target", ["s3", "memory", "uncopied"])
def test_same_files_as_on_disk(request, target, tmp_path):
    target = request.getfixturevalue(target)
    for number, options in enumerate(
        [
            {},
            {"split": "test", "shards": 1},
            {"mode": "append"},
            {"mode": "overwrite", "shards": 4, "compression": "GZIP"},
        ]
    ):
        batch = examples(50 * number, 50 * number + 40)
        if target.log is not None:
            target.log.fault = refuse_once()
        result = put(target, batch, **options)
        if target.log is not None:
            target.log.fault = None
        expected = write(batch, tmp_path / "birds", **{"label": "species", "shards": 2, **options})
        assert result.path == target.url
        shards = [replace(each, name=TOKEN.sub("", each.name)) for each in result.shards]
        assert shards == [replace(each, name=TOKEN.sub("", each.name)) for each in expected.shards]
        assert all(has_token(each.name) for each in result.shards)
        check_same(target.files(), tmp_path / "birds")
    found, local = target.open(split="train+test"), opened(tmp_path / "birds", split="train+test")
    assert as_lists(found.columns()) == as_lists(local.columns())
    assert found.classes.counts.tolist() == local.classes.counts.tolist()


def test_directory_of_a_version(memory, tmp_path):
    memory.url += "/2.1.0"
    put(memory, examples(0, 9))
    write(examples(0, 9), tmp_path / "birds/2.1.0", label="species", shards=2)
    found = {name.removeprefix("2.1.0/"): data for name, data in memory.files().items()}
    check_same(found, tmp_path / "birds/2.1.0")
    assert memory.open().classes.counts.tolist() == [3, 3, 3]


def test_order_of_changes(memory):
    with failing() as changes:
        put(memory, examples(0, 30))
    (probe, *_, last) = changes
    assert ".tmp" in probe[1]
    assert last == ("pipe_file", INFO)
    assert [TOKEN.sub("", name) for _, name in changes if ".tmp" not in name] == [
        "birds-train.tfrecord-00000-of-00002",
        "birds-train.tfrecord-00001-of-00002",
        "birds-train.by_class.npy",
        "birds-train.classes.npy",
        "birds-train.index.npy",
        "birds-train.index.json",
        "features.json",
        "species.labels.txt",
        INFO,
    ]


@pytest.mark.parametrize(
    ("batch", "options", "is_late"),
    [
        (examples(30, 39, species="emu"), {"mode": "append"}, False),
        ([{"x": 1, "species": "emu"}], {"mode": "overwrite", "shards": 1}, True),
    ],
)
def test_order_of_sidecar_files(memory, batch, options, is_late):
    """Sidecar files that do not describe the old records are replaced after the switch."""
    put(memory, examples(0, 9))
    with failing() as changes:
        put(memory, batch, **options)
    names = [name for method, name in changes if method != "rm_file" and "-train" not in name]
    sidecars = ["features.json", "species.labels.txt"]
    assert names[1:] == ([INFO, *sidecars] if is_late else [*sidecars, INFO])


def test_server_copies_unchanged_shards(memory):
    put(memory, examples(0, 30))
    before = {name: data for name, data in memory.files().items() if has_token(name)}
    with failing() as changes:
        put(memory, examples(30, 60), mode="append")
    shards = [each for each in changes if ".tfrecord-" in each[1]]
    assert [method for method, _ in shards] == ["cp_file", "cp_file", "put_file", "put_file"]
    assert {name for _, name in changes}.isdisjoint(before)
    assert before.items() <= memory.files().items()


def test_old_versions_are_deleted(memory, monkeypatch):
    versions = []
    for number, retention in enumerate([60, 60, 0]):
        monkeypatch.setattr("covey.writing.versions.RETENTION_S", retention)
        before = {name for name in memory.files() if has_token(name)}
        written = put(memory, examples(0, 30 + number), mode="overwrite", shards=1)
        count = 0 if number == 0 else 1
        assert len(written.notes) == count
        assert all(
            f"1 shard of the replaced version kept beside the new ones, where patterns such as "
            f"*.tfrecord* match both; run covey.repair, or `covey repair {memory.url}`" in note
            for note in written.notes
        )
        after = {name for name in memory.files() if has_token(name)}
        versions.append(after - before)
        assert after == set().union(*(versions if retention else versions[-2:]))
    assert len(memory.open()) == 32


# Failures.


@dataclass
class Change:
    """A write to a dataset, or to an empty directory."""

    examples: Any
    options: dict[str, Any]
    is_first: bool = False

    def before(self):
        """Return the files before the write."""
        target = new_target()
        if not self.is_first:
            put(target, examples(0, 9), shards=1)
        return target.files()

    def apply(self, target, **options):
        put(target, self.examples, **{"shards": 1, **self.options, **options})


CHANGES = {
    "first": Change(examples(30, 39), {}, is_first=True),
    "new split": Change(examples(30, 39, species="emu"), {"split": "test"}),
    "append": Change(examples(30, 39, species="emu"), {"mode": "append"}),
    "overwrite, other features": Change(
        [{"x": n, "colour": f"colour {n % 2}"} for n in range(9)],
        {"mode": "overwrite", "label": "colour"},
    ),
}


def read_splits(target):
    """Return the records and class names of all splits."""
    content = target.files()
    splits = json.loads(content[INFO])["splits"] if INFO in content else []
    datasets = {each["name"]: target.open(split=each["name"]) for each in splits}
    return {name: (each.raw[:], tuple(each.classes)) for name, each in datasets.items()}


def sidecars(target):
    return {name: data for name, data in target.files().items() if is_sidecar(name)}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_failed_requests(change):
    """Before the switch nothing changes; a writer that is cut off leaves the old or the new."""
    before = change.before()
    done = new_target(before=before)
    old = read_splits(done)
    with failing() as changes:
        change.apply(done)
    new, names = read_splits(done), [name for _, name in changes]
    switch = names.index(INFO)
    assert all(".tmp" in name for name in names[:2])  # a file that is written and removed
    target = new_target(before=before)
    for number in (0, *range(2, switch + 1)):
        with failing(number, number + 1), pytest.raises(StoragePermissionError, match="refused"):
            change.apply(target)
        assert target.files() == before
    kept = {name: data for name, data in before.items() if has_token(name)}
    for number in range(2, len(names)):
        target, is_old = new_target(before=before), number <= switch
        with (
            failing(number, None),
            pytest.raises(StoragePermissionError if is_old else CommittedError, match="refused"),
        ):
            change.apply(target)
        assert read_splits(target) == (old if is_old else new)
        assert kept.items() <= target.files().items()
        # Without a dataset, a features.json may be of another program.
        mode = "overwrite" if change.is_first else "error"
        if is_old:
            put(target, examples(60, 70), "next", mode=mode, shards=1)
        else:
            change.apply(target, split="next", mode=mode)
            assert sidecars(done).items() <= sidecars(target).items()
        after = read_splits(target)
        assert len(after.pop("next")[0]) > 0
        assert after == (old if is_old else new)


@pytest.fixture
def _default_sigint():
    """Set Python's handler of SIGINT, which a process started in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_default_sigint")
@pytest.mark.parametrize("is_interrupted", [True, False])
@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("is_done", [True, False])
def test_outcome_of_the_switch(memory, is_done, is_readable, is_interrupted):
    """A failed PUT may have been carried out: its outcome is read, and reported if unknown."""
    put(memory, examples(0, 9))
    is_down = []

    def hook(method, name, call):
        if method == "cat_file" and is_down and not is_readable:
            raise PermissionError("no response")
        if (method, name) != ("pipe_file", INFO) or is_down:
            return call()
        if is_done:
            call()
        is_down.append(True)
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)
        raise PermissionError("no response")

    error = None
    with hooked(hook):
        try:
            put(memory, examples(0, 20), mode="append")
        except (DatasetError, StorageError, KeyboardInterrupt) as caught:
            error = caught
    if is_interrupted:
        state = "is written" if is_done else "is not written"
        assert type(error) is KeyboardInterrupt
        assert (state if is_readable else "may be written or not") in str(error)
    elif not is_readable:
        assert "unknown whether split 'train' is written" in str(error)
    else:
        assert (type(error) is StoragePermissionError) == (not is_done)
    assert len(memory.open()) == (29 if is_done else 9)


@pytest.mark.usefixtures("_default_sigint")
@pytest.mark.parametrize("name", [".tmp", "00001-of-00002", "index.json", INFO])
def test_interrupt(memory, name):
    put(memory, examples(0, 30))
    before, is_written = memory.files(), name == INFO

    def hook(method, changed, call):
        result = call()
        if method in ("pipe_file", "put_file") and changed.endswith(name):
            signal.raise_signal(signal.SIGINT)
        return result

    state = "is written" if is_written else "is not written, nothing was changed"
    with hooked(hook), pytest.raises(KeyboardInterrupt) as raised:
        put(memory, examples(0, 60), mode="overwrite")
    assert str(raised.value) == f"{memory.url}: interrupted; split 'train' {state}"
    assert len(memory.open()) == (60 if is_written else 30)
    if not is_written:
        after = memory.files()
        assert {each: after[each] for each in after if ".tmp" not in each} == before


def test_failure_of_the_local_disk(memory, monkeypatch):
    put(memory, examples(0, 30))
    before = memory.files()

    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DatasetError, match=r"No space left.*nothing was changed") as caught:
        put(memory, examples(30, 60), mode="append")
    assert caught.value.path == memory.url
    assert memory.files() == before


def test_append_reads_the_index(memory):
    """Old shards are neither downloaded nor uploaded, if the server copies files."""
    put(memory, examples(0, 30), compression="GZIP")
    read = []

    def hook(method, name, call):
        read.extend([name] * (method == "cat_file"))
        return call()

    with hooked(hook):
        put(memory, examples(30, 60), mode="append")
    assert [name for name in read if "index.npy" in name]
    assert not [name for name in read if "-of-" in name]
    assert len(memory.open()) == 60


def test_old_versions_that_cannot_be_deleted(memory, monkeypatch):
    monkeypatch.setattr("covey.writing.versions.RETENTION_S", 0)
    put(memory, examples(0, 30))
    put(memory, examples(0, 30), mode="overwrite")

    def hook(method, name, call):
        if method == "rm_file" and "-of-" in name:
            raise PermissionError
        return call()

    with hooked(hook), pytest.raises(CommittedError, match=r"is written, but .*deleted") as caught:
        put(memory, examples(0, 60), mode="overwrite", shards=3)
    assert caught.value.path == memory.url
    assert "do not write the same examples again" in caught.value.remedy
    assert len(memory.open()) == 60


@pytest.mark.parametrize(
    ("target", "split", "is_new"),
    [("s3", "test", False), *(("memory", *each) for each in product(["test", "train"], [1, 0]))],
)
def test_another_writer(request, target, split, is_new):
    target, after = request.getfixturevalue(target), {}
    if not is_new:
        put(target, examples(0, 9), "val")

    def interrupted():
        yield from examples(60, 69)
        put(target, examples(30, 39), split)
        after.update(target.files())

    with pytest.raises(DatasetError, match="another process has changed") as caught:
        put(target, interrupted())
    assert caught.value.path == target.url
    assert target.files() == after
    assert len(target.open(split=split)) == 9


def test_another_writer_during_the_upload(memory):
    put(memory, examples(0, 9), "val")
    after = {}

    def hook(method, name, call):
        if method == "put_file" and not after:
            after["first"] = b""
            put(memory, examples(30, 39), "train")
            after.clear()
            after.update(memory.files())
        return call()

    with hooked(hook), pytest.raises(DatasetError, match="another process has changed"):
        put(memory, examples(60, 69), "test")
    assert memory.files() == after
    assert len(memory.open(split="train")) == 9


def test_storage_is_checked_before_examples_are_read(s3):
    put(s3, examples(0, 30))
    before, batch = s3.files(), iter(examples(30, 60))
    s3.log.fault = lambda method, path: 403 if method == "PUT" else 0
    with pytest.raises(StoragePermissionError) as caught:
        put(s3, batch, mode="append")
    assert caught.value.path.startswith(s3.url)
    s3.log.fault = None
    with pytest.raises(StorageError, match="s3://missing/birds"):
        put(replace(s3, url="s3://missing/birds"), batch)
    with range_server() as (url, _), pytest.raises(StorageError, match="does not support writing"):
        put(Target(f"{url}/birds"), batch)
    assert len(list(batch)) == 30
    assert s3.files() == before


def test_errors_have_the_url_and_leave_no_local_files(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    put(memory, examples(0, 30))
    for batch, options, kind in (
        (examples(0, 30), {}, DatasetExistsError),
        (examples(0, 30), {"mode": "append", "compression": "GZIP"}, DatasetError),
        ([], {"split": "test"}, DatasetError),
    ):
        with pytest.raises(kind) as caught:
            put(memory, batch, **options)
        assert caught.value.path == memory.url
    assert list((tmp_path / "temporary").iterdir()) == []


# The command line.


def test_command_line(s3, tmp_path, capsys):
    lines = [json.dumps(each) for each in examples(0, 60)]
    (tmp_path / "birds.jsonl").write_text("\n".join(lines))
    command = ["write", str(tmp_path / "birds.jsonl"), s3.url, "--label", "species"]
    command += ["--hold-out-fraction", "0.3", "--shards", "2"]
    command += ["--storage-option", f"client_kwargs={json.dumps(s3.options['client_kwargs'])}"]
    assert main(command) == 1
    assert f"covey: error: {s3.url}" in (message := capsys.readouterr().err)
    assert "NoCredentialsError" in message
    assert s3.files() == {}
    command += ["--storage-option", "key=user", "--storage-option", "secret=nothing"]
    assert main(command) == 0
    assert f"\n{s3.url}: label 'species'\n" in capsys.readouterr().out
    assert len(s3.open(split="train+val")) == 60
    assert main(command) == 1
    message = capsys.readouterr().err
    assert f"error: {s3.url}: split 'train' exists; see --mode" in message
