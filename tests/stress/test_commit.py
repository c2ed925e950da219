"""A dataset is the old one or the new one at every moment, for every reader."""

import builtins
import contextlib
import errno
import fcntl
import importlib
import io
import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from written import (
    check_index,
    content,
    files,
    fresh_process,
    index_paths,
    info,
    read,
    shard_paths,
    write,
)

import covey
from covey import ClassLabel, CoveyError, RecordReader
from covey import _files as writing_files
from covey import _locks as locks
from covey.cli import main
from covey.errors import CommittedError, DatasetError, DatasetExistsError
from covey.schema.tfds import features_from_tfds
from covey.writing import commit as committing
from covey.writing import versions
from covey.writing.commit import Staging
from covey.writing.recovery import recover

OLD = [{"x": i, "label": "ab"[i % 2]} for i in range(40)]
NEW = [{"x": 100 + i, "label": "ab"[i % 2]} for i in range(30)]
OTHERS = [{"x": 100 + i, "label": "bc"[i % 2]} for i in range(30)]

# Calls that change names in a directory; opening a file for writing is a step as well.
STEPS = ["rename", "replace", "link", "unlink", "rmdir", "mkdir"]


class Scene:
    """An old dataset, and a write that leads to another one.

    TFDS has the names of classes in a file of their own, which cannot be replaced together with
    dataset_info.json. Where classes are renumbered, only covey's own readers are always consistent.
    """

    def __init__(self, before, examples=NEW, *, named=True, **options):
        self.before = before
        self.examples = examples
        self.named = named
        self.options = {"label": "label", **options}

    def prepare(self, directory):
        if self.before:
            write(OLD, directory, label="label", shards=2)

    def act(self, directory, times=1):
        write(self.examples * times, directory, **self.options)

    def seen(self, directory):
        return seen(directory, named=self.named)


SCENES = {
    "new dataset": Scene(False),
    "new split": Scene(True, split="test"),
    "new split with new classes": Scene(True, OTHERS, named=False, split="test"),
    "overwrite, same number of shards": Scene(True, mode="overwrite", shards=2),
    "overwrite, more shards": Scene(True, mode="overwrite", shards=3),
    "overwrite, fewer shards": Scene(True, mode="overwrite", shards=1),
    "overwrite, other classes": Scene(True, OTHERS, named=False, mode="overwrite", shards=2),
    "append": Scene(True, mode="append"),
    "append new classes": Scene(True, OTHERS, named=False, mode="append"),
}


def seen(directory, *, named=True):
    """The examples of each split as a plain reader of dataset_info.json finds them.

    Class names are those of features.json and labels.txt.
    """
    if not (directory / "dataset_info.json").exists():
        return {}
    found = {}
    features = features_from_tfds(directory) if named else None
    for split in info(directory).splits:
        examples = []
        for path, count in zip(
            shard_paths(directory, split.name), split.shard_lengths, strict=True
        ):
            with RecordReader(path) as reader:
                records = list(reader)
            assert len(records) == count
            for record in records:
                if features is None:
                    examples.append(record)
                else:
                    each = features.decode(record)
                    examples.append((int(each["x"]), features["label"].names[int(each["label"])]))
        found[split.name] = sorted(examples)
    return found


def seen_by_covey(directory):
    """The examples of each split as covey.open gives them; None if there is no dataset."""
    try:
        splits = [each.name for each in covey.info(directory).splits]
    except DatasetError as error:
        is_missing = "dataset (dataset_info.json)" in error.reason and error.path == str(directory)
        if not is_missing or (directory / "dataset_info.json").exists():
            raise
        return None
    found = {}
    for split in splits:
        ds = covey.open(directory, split=split, progress=False)
        columns = ds[:]
        names = ds.features["label"].names
        found[split] = sorted(
            (x, names[label])
            for x, label in zip(columns["x"].tolist(), columns["label"].tolist(), strict=True)
        )
    return found


def in_child(action):
    """Run in a process of its own; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def result_of(action):
    """The result of an action in a process of its own, or the exception that it raised."""
    reading, writing = os.pipe()

    def run():
        try:
            result = action()
        except BaseException as error:
            result = error
        os.write(writing, pickle.dumps(result))

    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            run()
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    assert data
    return pickle.loads(data)


def at_step(step, strike, action, *, after=False):
    """Do it, and strike before (or after) the step of that number; return how many were taken.

    A file that was opened for writing is a step: it is empty then.
    """
    taken = 0

    def take_step():
        nonlocal taken
        taken += 1
        if taken == step + 1:
            strike()

    def counted(real):
        def call(*args, **kwargs):
            if not after:
                take_step()
            result = real(*args, **kwargs)
            if after:
                take_step()
            return result

        return call

    def opened(path, mode="r", *args, real=open, **kwargs):
        file = real(path, mode, *args, **kwargs)
        if "r" not in mode:
            take_step()
        return file

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    builtins.open = io.open = opened
    os.fsync = lambda descriptor: None  # the system outlives the process, and loses nothing
    action()
    return taken


def killed_at(step, action, directory):
    """Do it in a process that is killed before the step of that number."""
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    return in_child(lambda: at_step(step, kill, lambda: action(directory)))


def clean_up(directory, old, new, again=True):
    """Recovery gives the old dataset or the new one, and the next write continues with it."""
    recover(directory)
    now = seen(directory)
    assert now in (old, new)
    assert not [name for name in os.listdir(directory) if name.startswith(".")]
    if again:
        for split in now:
            check_index(directory, split)
        write(NEW, directory, "next", label="label")
        assert {split: each for split, each in seen(directory).items() if split != "next"} == now


def outcomes(scene, directory):
    """What is seen before and after: by a plain reader at once, after recovery, and by covey."""
    directory.mkdir(parents=True)
    scene.prepare(directory)
    before = (
        scene.seen(directory),
        seen(directory),
        seen_by_covey(directory) if scene.before else None,
    )
    scene.act(directory)
    after = scene.seen(directory), seen(directory), seen_by_covey(directory)
    return zip(before, after, strict=True)


@pytest.fixture(scope="module")
def fresh():
    with fresh_process() as run:
        yield run


@contextlib.contextmanager
def public_directory():
    """A directory that every user can reach, unlike pytest's."""
    path = Path(tempfile.mkdtemp(prefix="covey-test-"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        for each in (path, *path.rglob("*")):
            if each.is_dir() and not each.is_symlink():
                each.chmod(0o755)
        shutil.rmtree(path)


def as_reader(directory, action):
    """Do it as another user, who may not write to the dataset; nothing of it may change."""
    before = snapshot(directory)
    for each in (directory, *directory.rglob("*")):
        each.chmod(0o555 if each.is_dir() else 0o444)

    def run():
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        with tempfile.TemporaryDirectory(prefix="covey-test-cache-") as cache:
            os.environ["COVEY_CACHE"] = cache
            return action(directory)

    result = result_of(run)
    for each in (directory, *directory.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    assert snapshot(directory) == before
    return result


def snapshot(directory):
    """All that a reader could change."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = status.st_ino, status.st_mtime_ns, data
    return found


@pytest.mark.parametrize("name", SCENES)
def test_killed_before_every_step(tmp_path, name, fresh):
    fresh(kill_before_every_step, tmp_path, name)


def kill_before_every_step(tmp_path, name):
    scene = SCENES[name]
    plain, (old, new), own = outcomes(scene, tmp_path / "reference" / "birds")
    assert old != new
    scene.prepare(tmp_path / "before" / "birds")
    ends = []
    for step in range(200):
        directory = tmp_path / f"killed-{step}" / "birds"
        if scene.before:
            shutil.copytree(tmp_path / "before" / "birds", directory)
        status = killed_at(step, scene.act, directory)
        found = scene.seen(directory)
        assert found in plain, f"killed before step {step}"
        ends.append(found == plain[1])
        if status == 0:
            break
        assert status == -signal.SIGKILL
        directory.mkdir(parents=True, exist_ok=True)
        assert seen_by_covey(directory) == own[ends[-1]]
        clean_up(directory, old, new, again=step % 3 == 0)
    assert ends == sorted(ends)  # once it is the new one, it stays the new one
    assert 10 < len(ends) < 200
    assert ends[-1]
    return len(ends)


@pytest.mark.parametrize("name", SCENES)
def test_every_state_opens_read_only(name, fresh):
    fresh(open_every_state_read_only, name)


def open_every_state_read_only(name):
    """Whatever state a killed writer leaves, a user who may not write opens the dataset."""
    scene = SCENES[name]

    def look(directory):
        found = seen_by_covey(directory)
        if found is not None:
            assert not [
                each for each in covey.verify(directory).problems if each.record is not None
            ]
            with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
                sample = ["sample", str(directory), "--split", "train", "-p", "2", "-k", "2"]
                assert main(["info", str(directory)]) == 0
                assert main([*sample, "--no-save"]) == 0
        return found

    with public_directory() as root:
        _, _, own = outcomes(scene, root / "reference" / "birds")
        look(root / "reference" / "birds")  # imports what the other user may not read
        scene.prepare(root / "before" / "birds")
        for step in range(200):
            directory = root / f"killed-{step}" / "birds"
            if scene.before:
                shutil.copytree(root / "before" / "birds", directory)
            status = killed_at(step, scene.act, directory)
            directory.mkdir(parents=True, exist_ok=True)
            found = as_reader(directory, look)
            if isinstance(found, BaseException):
                raise found
            assert found in own
            if status == 0:
                break
        assert found == own[1]
        return step + 1


def test_killed_during_recovery(tmp_path, fresh):
    fresh(kill_during_recovery, tmp_path)


def kill_during_recovery(tmp_path):
    scene = SCENES["append new classes"]
    _, (old, new), _ = outcomes(scene, tmp_path / "reference" / "birds")
    scene.prepare(tmp_path / "before" / "birds")
    recoveries = 0
    for commit in range(200):
        state = tmp_path / f"state-{commit}" / "birds"
        shutil.copytree(tmp_path / "before" / "birds", state)
        if killed_at(commit, scene.act, state) == 0:
            break
        for step in range(200):
            directory = tmp_path / f"state-{commit}" / f"killed-{step}"
            subprocess.run(["cp", "-al", state, directory], check=True)
            if killed_at(step, recover, directory) == 0:
                break
            recoveries += 1
            clean_up(directory, old, new, again=step % 7 == 0)
            shutil.rmtree(directory)
    assert recoveries > 100
    return recoveries


@pytest.mark.parametrize("name", ["overwrite, same number of shards", "append", "new split"])
def test_killed_at_any_moment(tmp_path, name, fresh):
    fresh(kill_at_any_moment, tmp_path, name)


def kill_at_any_moment(tmp_path, name):
    scene, moments = SCENES[name], random.Random(name)
    directory = tmp_path / "birds"
    scene.prepare(directory)
    old = seen(directory)
    began = time.perf_counter()
    shutil.copytree(directory, tmp_path / "timed" / "birds")
    scene.act(tmp_path / "timed" / "birds", 100)
    lasted, new = time.perf_counter() - began, seen(tmp_path / "timed" / "birds")
    shutil.copytree(directory, tmp_path / "before")
    for _ in range(12):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                scene.act(directory, 100)
            os._exit(0)
        time.sleep(moments.uniform(0, 1.2 * lasted))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert seen(directory) in (old, new)
        recover(directory)
        assert seen(directory) in (old, new)
        assert not [each for each in os.listdir(directory) if each.startswith(".")]
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "before", directory)


def test_killed_between_features_that_differ(tmp_path, fresh):
    fresh(kill_between_features_that_differ, tmp_path)


def kill_between_features_that_differ(tmp_path):
    """Features and shards are in different files: covey's own readers never see them apart."""

    def act(directory):
        features = {"y": "str", "label": ClassLabel(names=["q"])}
        write([{"y": "z", "label": "q"}] * 5, directory, mode="overwrite", features=features)

    write(OLD, tmp_path / "before" / "birds", label="label")
    for step in range(200):
        directory = tmp_path / f"killed-{step}" / "birds"
        shutil.copytree(tmp_path / "before" / "birds", directory)
        status = killed_at(step, act, directory)
        ds = covey.open(directory)
        assert ({*ds.features}, len(ds), ds.classes.names) in [
            ({"x", "label"}, 40, ("a", "b")),
            ({"y", "label"}, 5, ("q",)),
        ]
        recover(directory)
        examples, features = read(directory), features_from_tfds(directory)
        assert {*examples[0]} == {*features}
        assert len(examples) == (40 if "x" in features else 5)
        check_index(directory)
        if status == 0:
            break
    assert {*features} == {"y", "label"}


def test_the_next_write_removes_what_a_killed_writer_left(tmp_path, fresh):
    assert fresh(be_killed_while_encoding, tmp_path / "birds") == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "birds").iterdir()] == [".covey-train.partial"]
    write(NEW, tmp_path / "birds", label="label")
    write(NEW, tmp_path / "clean" / "birds", label="label")
    assert files(tmp_path / "birds") == files(tmp_path / "clean" / "birds")


def be_killed_while_encoding(directory):
    def killed():
        def examples():
            yield from OLD
            os.kill(os.getpid(), signal.SIGKILL)

        write(examples(), directory, memory_limit=1)

    return in_child(killed)


# Ctrl-C.


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", ["new dataset", "overwrite, other classes", "append"])
def test_interrupted_at_every_step(tmp_path, name, after, fresh):
    fresh(interrupt_at_every_step, tmp_path, name, after)


def interrupt_at_every_step(tmp_path, name, after):
    """The message of the interrupt is true, and a write that is repeated by it is not doubled."""
    scene = SCENES[name]
    _, (old, new), _ = outcomes(scene, tmp_path / "reference" / "birds")
    scene.prepare(tmp_path / "before" / "birds")
    told = []
    for step in range(200):
        directory = tmp_path / f"interrupted-{step}" / "birds"
        if scene.before:
            shutil.copytree(tmp_path / "before" / "birds", directory)

        def act(directory=directory, step=step):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
            return at_step(step, interrupt, lambda: scene.act(directory), after=after)

        result = result_of(act)
        if isinstance(result, int) and result <= step:
            break
        if isinstance(result, int):
            # After the last step the write was complete before the signal came.
            assert seen(directory) == new
            continue
        assert isinstance(result, KeyboardInterrupt), result
        told.append("is written" in str(result))
        assert f"{directory}: interrupted; split 'train' is " in str(result)
        assert ("nothing was changed" in str(result)) is not told[-1]
        assert seen(directory) == (new if told[-1] else old), f"step {step}: {result}"
        if not told[-1]:
            unchanged = files(tmp_path / "before" / "birds") if scene.before else None
            now = files(directory) if directory.exists() else None
            assert now == unchanged, f"step {step}: {list(now or ())}"
            scene.act(directory)
        assert seen(directory) == new
        check_index(directory)
    assert told == sorted(told)
    assert {*told} == {False, True}
    return len(told)


def test_the_command_line_prints_what_an_interrupt_says(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from covey.cli import main\n"
        "from covey.writing import commit\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "real = os.replace\n"
        "def replace(source, target):\n"
        "    real(source, target)\n"
        "    if str(target).endswith('dataset_info.json'):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "os.replace = replace\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    (tmp_path / "birds.csv").write_text("x,label\n1,a\n2,b\n")
    command = [
        sys.executable,
        "-c",
        code,
        "write",
        str(tmp_path / "birds.csv"),
        str(tmp_path / "d"),
    ]
    run = subprocess.run([*command, "--no-progress"], capture_output=True, text=True)
    assert run.returncode == 128 + signal.SIGINT
    assert run.stderr == f"covey: {tmp_path / 'd'}: interrupted; split 'train' is written\n"
    assert len(covey.open(tmp_path / "d")) == 2


# Readers beside writers.


def overwrite_forever(directory, split):
    """Write versions of a split, in each of which all records have the same number."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number = 0
    while True:
        number += 1
        batch = [{"x": number, "label": "ab"[i % 2]} for i in range(60 + number % 5)]
        write(batch, directory, split, label="label", mode="overwrite", shards=1 + number % 4)


def plain_numbers(directory, split):
    """The numbers that a plain reader of dataset_info.json finds."""
    content = json.loads((directory / "dataset_info.json").read_bytes())
    (found,) = [each for each in content["splits"] if each["name"] == split]
    lengths, template = found["shardLengths"], found["filepathTemplate"]
    numbers = []
    features = covey.Features({"x": "int64"})
    for shard, length in enumerate(lengths):
        path = directory / template.format(
            DATASET=content["name"],
            SPLIT=split,
            FILEFORMAT="tfrecord",
            SHARD_X_OF_Y=f"{shard:05}-of-{len(lengths):05}",
        )
        with open(path, "rb") as file, RecordReader(io.BytesIO(file.read())) as reader:
            records = list(reader)
        assert len(records) == int(length), "mixed"
        numbers += [int(features.decode(record)["x"]) for record in records]
    return numbers


def test_readers_beside_two_writers(tmp_path):
    """No reader finds records of two versions, a missing file, or a dataset that it refuses."""
    directory = tmp_path / "birds"
    context = multiprocessing.get_context("spawn")
    for split in ("train", "test"):
        write(OLD[:1] * 60, directory, split, label="label")
    writers = [
        context.Process(target=overwrite_forever, args=(directory, split), daemon=True)
        for split in ("train", "test")
    ]
    for writer in writers:
        writer.start()
    found_versions, number = set(), 0
    try:
        while number < 300 or len(found_versions) < 10:
            number += 1
            split = ("train", "test")[number % 2]
            assert len({*plain_numbers(directory, split)}) == 1
            ds = covey.open(directory, split=split, progress=False)
            found = {*ds[:]["x"].tolist()}
            assert len(found) == 1
            found_versions |= found
            ds.close()
            assert all(writer.is_alive() for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.join()


def test_a_reader_keeps_its_version(tmp_path):
    write(OLD, tmp_path, label="label", shards=2)
    ds = covey.open(tmp_path)
    for _ in range(3):
        write(NEW, tmp_path, label="label", mode="overwrite", shards=3)
    assert sorted(ds[:]["x"].tolist()) == [each["x"] for each in OLD]
    assert sorted(covey.open(tmp_path)[:]["x"].tolist()) == [each["x"] for each in NEW]


def test_open_succeeds_if_a_version_is_deleted_meanwhile(tmp_path, monkeypatch):
    """A reader that has read the old dataset_info.json starts again with the new one."""
    write(OLD, tmp_path, label="label", shards=2)
    opening = importlib.import_module("covey.dataset.open")

    real, overwritten = opening.find_layout, []

    def find_layout(*args, **options):
        layout = real(*args, **options)
        if len(overwritten) < 3:
            write(NEW, tmp_path, label="label", mode="overwrite")
            overwritten.append(covey.repair(tmp_path))  # deletes what the layout refers to
        return layout

    monkeypatch.setattr(opening, "find_layout", find_layout)
    assert len(covey.open(tmp_path)) == len(NEW)
    assert len(overwritten) == 3


# Names of versions.


def test_a_new_split_has_plain_names_and_its_successor_has_not(tmp_path):
    directory = tmp_path / "birds"
    write(OLD, directory, label="label", shards=2)
    plain = [f"birds-train.tfrecord-0000{n}-of-00002" for n in (0, 1)]
    assert [path.name for path in shard_paths(directory)] == plain
    write(NEW, directory, label="label", mode="overwrite", shards=2)
    versioned = [path.name for path in shard_paths(directory)]
    token = info(directory).splits[0].token
    assert versioned == [f"birds-train.{token}.tfrecord-0000{n}-of-00002" for n in (0, 1)]
    assert all((directory / name).exists() for name in plain)  # until the next write


def test_old_versions_are_deleted_by_the_next_write(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "RETENTION_S", 0)
    listed = []
    for mode in ["error", "overwrite", "append", "overwrite", "append"]:
        write(NEW, tmp_path / "birds", label="label", mode=mode)
        listed.append({path.name for path in (tmp_path / "birds").iterdir()})
    assert listed[0] <= listed[1]
    shared = {"dataset_info.json", "features.json", "label.labels.txt"}
    for before, older, now in zip(listed[2:], listed[1:], listed[3:], strict=False):
        assert now & older == shared | (now & older & before)
        assert not now & listed[0] - shared


def test_repair_in_place_deletes_old_versions(tmp_path):
    directory = tmp_path / "birds"
    for mode in ["error", "overwrite", "append"]:
        write(NEW, directory, label="label", mode=mode)
    before = content(directory), seen(directory)
    (directory / "notes.txt").write_text("precious")
    result = covey.repair(directory)
    assert (result.records, result.lost) == (0, ())
    assert "birds-train.tfrecord-00000-of-00001" in result.deleted
    assert {*os.listdir(directory)} == {
        *(path.name for path in shard_paths(directory)),
        *(path.name for path in index_paths(directory).values()),
        *("dataset_info.json", "features.json", "label.labels.txt", "notes.txt"),
    }
    (directory / "notes.txt").unlink()
    assert (content(directory), seen(directory)) == before
    assert covey.repair(directory).deleted == ()


def test_repair_in_place_completes_and_undoes(tmp_path, fresh):
    assert fresh(be_killed_while_encoding, tmp_path / "birds") == -signal.SIGKILL
    assert main(["repair", str(tmp_path / "birds"), "--quiet"]) == 0
    assert os.listdir(tmp_path / "birds") == []
    with pytest.raises(DatasetError, match="the directory does not exist"):
        covey.repair(tmp_path / "nothing")


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def link(*args, **options):
        raise OSError(errno.EPERM, "not supported")

    monkeypatch.setattr(os, "link", link)
    for mode in ["error", "append", "overwrite"]:
        write(NEW, tmp_path / "birds", label="label", mode=mode)
        assert info(tmp_path / "birds").splits[0].token is not None
        check_index(tmp_path / "birds")
    assert not list((tmp_path / "birds").glob(".*"))


# Hostile datasets.


def plant_manifest(directory, outside):
    """What recovery followed once: a manifest, and a link that leads out of the dataset."""
    (directory / "sub").symlink_to(outside)
    staged = directory / ".covey-train.commit"
    staged.mkdir()
    split = {"name": "train", "shard_lengths": [40], "num_bytes": 1}
    names = {"files": ["sub/secret"], "replaced": ["sub/other"], "entries": {}, "keeps": True}
    texts = {"texts": {"sub/secret": "overwritten"}, "name": "birds", "version": "1.0.0"}
    (staged / "manifest.json").write_text(json.dumps({"split": split, **names, **texts}))
    (staged / "sub").symlink_to(outside)


def plant_staging_link(directory, outside):
    (directory / ".covey-train.partial").symlink_to(outside)


def plant_staged_links(directory, outside):
    staging = directory / ".covey-train.partial"
    staging.mkdir()
    (staging / "features.json").symlink_to(outside / "secret")
    (staging / "before").symlink_to(outside)
    (staging / "after").mkdir()
    (staging / "after" / "features.json").symlink_to(outside / "secret")
    (staging / "birds-train.tfrecord-00000-of-00001").symlink_to(outside / "secret")


def plant_staged_names(directory, outside):
    staging = directory / ".covey-train.partial"
    (staging / "after").mkdir(parents=True)
    # The commit looks as if it had happened, so that it is completed.
    os.link(shard_paths(directory)[0], staging / shard_paths(directory)[0].name)
    for name in ("dataset_info.json", "notes.txt", "birds-train.index.json"):
        (staging / "after" / name).write_text("overwritten")


def plant_links_like_temporaries(directory, outside):
    for name in (
        ".features.json.new",
        ".dataset_info.json.new",
        ".covey-0123456789abcdef.tmp",
        f".{shard_paths(directory)[0].name}.new",
    ):
        (directory / name).symlink_to(outside / "secret")
    (directory / ".covey-fedcba9876543210.tmp").symlink_to(outside)


def plant_links_like_metadata(directory, outside):
    for name in ("dataset_info.json", "features.json", "label.labels.txt"):
        shutil.copy(directory / name, outside / name)
        (directory / name).unlink()
        (directory / name).symlink_to(outside / name)


def plant_template(directory, outside):
    """Shards in a directory that is a link: overwriting the split deletes its old files."""
    for path in shard_paths(directory):
        shutil.copy(path, outside / path.name)
    (directory / "sub").symlink_to(outside)
    text = (directory / "dataset_info.json").read_text()
    (directory / "dataset_info.json").write_text(text.replace("{DATASET}-", "sub/{DATASET}-"))


PLANTS = [
    plant_manifest,
    plant_staging_link,
    plant_staged_links,
    plant_staged_names,
    plant_links_like_temporaries,
    plant_links_like_metadata,
    plant_template,
]
ACTIONS = {
    "open": lambda directory: covey.open(directory),
    "info": lambda directory: covey.info(directory),
    "verify": lambda directory: covey.verify(directory, progress=False),
    "sample": lambda directory: main(["sample", str(directory), "-p", "2", "-k", "2", "--quiet"]),
    "index": lambda directory: covey.build_index(directory, progress=False),
    "repair": lambda directory: covey.repair(directory),
    "new split": lambda directory: write(OTHERS, directory, "test", label="label"),
    "append": lambda directory: write(OTHERS, directory, label="label", mode="append"),
    "overwrite": lambda directory: write([{"y": 1}], directory, mode="overwrite"),
}
READS = {"open", "info", "verify", "sample"}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_outside_of_the_dataset_changes(tmp_path, plant, action, monkeypatch):
    monkeypatch.setattr(versions, "RETENTION_S", 0)
    directory, outside = tmp_path / "birds", tmp_path / "outside"
    write(OLD, directory, label="label")
    outside.mkdir()
    (outside / "secret").write_text("precious")
    (outside / "other").write_text("precious")
    (directory / "notes.txt").write_text("precious")
    plant(directory, outside)
    before = snapshot(outside), snapshot(directory)
    with contextlib.suppress(CoveyError):
        ACTIONS[action](directory)
    assert snapshot(outside) == before[0]
    assert (directory / "notes.txt").read_text() == "precious"
    if action in READS:
        assert snapshot(directory) == before[1]
    assert "overwritten" not in (directory / "dataset_info.json").read_text()
    assert "overwritten" not in index_paths(directory)["metadata"].read_text()


# Locks.


def test_a_lock_has_a_timeout_and_names_its_holder(tmp_path):
    code = (
        "import fcntl, os, sys, time\n"
        "lock = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\n"
        "time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DatasetError, match=rf"process {holder.pid} \(.*\) has held the lock"):
            Staging(tmp_path, "train", lock_timeout=0.1).open()
    finally:
        holder.kill()
        holder.communicate()
    assert os.listdir(tmp_path) == []
    staging = Staging(tmp_path, "train")
    staging.open()
    staging.abort()


def test_readers_do_not_wait_for_a_lock(tmp_path):
    write(OLD, tmp_path, label="label")
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert len(covey.open(tmp_path)) == 40
        assert covey.verify(tmp_path, progress=False).is_valid
    finally:
        os.close(lock)


# Several processes.


def writing(directory, split, begun, go_on, told, **options):
    """Write, and wait in the middle of it; tell how it went."""

    def examples():
        yield from OLD
        begun.set()
        assert go_on.wait(30)
        yield from NEW

    try:
        write(examples(), directory, split, label="label", **options)
    except DatasetError as error:
        told.put((split, str(error)))
    else:
        told.put((split, None))


@pytest.fixture
def side_by_side():
    """Starts processes that write; they wait for one another, and are gone in the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["written"])
    told, go_on, started = context.SimpleQueue(), context.Event(), []

    def start(directory, split, **options):
        begun = context.Event()
        arguments = (directory, split, begun, go_on, told)
        process = context.Process(target=writing, args=arguments, kwargs=options)
        process.start()
        started.append(process)
        while not begun.wait(0.1):
            assert process.is_alive()
        return process

    def finish():
        go_on.set()
        for process in started:
            process.join(30)
        return dict(told.get() for process in started if process.exitcode == 0)

    start.finish = finish
    yield start
    for process in started:
        process.kill()
        process.join()


def test_two_processes_write_the_same_split(tmp_path, side_by_side):
    side_by_side(tmp_path / "birds", "train")
    with pytest.raises(DatasetError, match="another process is writing split 'train'"):
        write(NEW, tmp_path / "birds", label="label", mode="overwrite")
    assert side_by_side.finish() == {"train": None}
    assert len(seen(tmp_path / "birds")["train"]) == 70
    assert not list((tmp_path / "birds").glob(".*"))


def test_two_processes_write_different_splits(tmp_path, side_by_side):
    side_by_side(tmp_path / "birds", "train")
    side_by_side(tmp_path / "birds", "test")
    assert side_by_side.finish() == {"train": None, "test": None}
    assert {split: len(each) for split, each in seen(tmp_path / "birds").items()} == {
        "train": 70,
        "test": 70,
    }
    for split in ["train", "test"]:
        check_index(tmp_path / "birds", split)
    assert not list((tmp_path / "birds").glob(".*"))


def test_the_staging_directory_of_a_live_process_is_left_alone(tmp_path, side_by_side):
    directory = tmp_path / "birds"
    side_by_side(directory, "train")
    recover(directory)
    write(OLD + NEW, directory, "test", label="label")
    assert (directory / ".covey-train.partial").is_dir()
    assert side_by_side.finish() == {"train": None}
    assert {*seen(directory)} == {"train", "test"}


def test_classes_that_another_process_has_added_during_the_write(tmp_path, side_by_side):
    directory = tmp_path / "birds"
    side_by_side(directory, "train")
    write([{"x": 1, "label": "z"}], directory, "test", label="label")
    (told,) = side_by_side.finish().values()
    assert "another process has written split 'test' with other features or classes" in told
    assert seen(directory) == {"test": [(1, "z")]}
    assert not list(directory.glob(".*"))


def test_a_process_that_was_killed_holds_no_lock(tmp_path, side_by_side):
    process = side_by_side(tmp_path / "birds", "train")
    process.kill()
    process.join()
    write(NEW, tmp_path / "birds", label="label")
    assert not list((tmp_path / "birds").glob(".*"))


def test_two_threads_write_the_same_split(tmp_path):
    def examples():
        yield from OLD
        with pytest.raises(DatasetError, match="is writing split 'train'"):
            write(NEW, tmp_path / "birds", label="label")

    write(examples(), tmp_path / "birds", label="label")
    assert len(seen(tmp_path / "birds")["train"]) == 40


@pytest.fixture
def _quick_disk(monkeypatch):
    """The system outlives these tests, and loses nothing."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# Writers one inside the other: the second is done while the first still takes in examples.


def while_writing(examples, action):
    """Examples, and something else that happens before the last of them."""
    yield from examples[:-1]
    action()
    yield examples[-1]


@pytest.mark.parametrize(
    ("old", "new", "added"),
    [
        ({"x": 1}, {"x": "text"}, {"x": 2}),
        ({"x": 1}, {"x": 1.5}, {"x": 2}),
        ({"x": 1}, {"y": 1}, {"x": 2}),
        ({"label": "a"}, {"label": "zz"}, {"label": "a"}),
        ({"label": "a"}, {"label": "a"}, {"label": "b"}),
    ],
    ids=["type", "width", "names", "classes", "more classes"],
)
@pytest.mark.usefixtures("_quick_disk")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_split_that_comes_while_the_only_one_is_replaced(tmp_path, old, new, added, workers):
    label = "label" if "label" in old else None
    write([old], tmp_path, label=label)

    def add():
        write([added], tmp_path, "test", label=label)
        before.append(files(tmp_path))

    before, options = [], {"label": label, "mode": "overwrite", "workers": workers}
    with pytest.raises(DatasetError, match="another process has"):
        write(while_writing([new] * 3, add), tmp_path, **options)
    after = {name: each for name, each in files(tmp_path).items() if ".covey" not in name}
    assert after == {name: each for name, each in before[0].items() if ".covey" not in name}
    assert not list(tmp_path.glob(".*"))
    names = features_from_tfds(tmp_path)["label"].names if label else None
    for split, example in [("train", old), ("test", added)]:
        (found,) = read(tmp_path, split)
        assert found == ({"label": names.index(example["label"])} if label else example)


def test_a_split_that_comes_while_the_only_one_is_replaced_by_the_like(tmp_path):
    write(OLD, tmp_path, label="label")

    def add():
        write(NEW, tmp_path, "test", label="label")

    write(while_writing(NEW, add), tmp_path, label="label", mode="overwrite")
    assert {split: len(each) for split, each in seen(tmp_path).items()} == {"train": 30, "test": 30}
    for split in ["train", "test"]:
        check_index(tmp_path, split)


def test_a_split_that_goes_while_another_is_added(tmp_path):
    write([{"x": 1}], tmp_path)

    def replace():
        write([{"x": "text"}], tmp_path, mode="overwrite")

    with pytest.raises(DatasetError, match="another process has changed this file"):
        write(while_writing([{"x": 2}] * 3, replace), tmp_path, "test")
    assert read(tmp_path) == [{"x": "text"}]
    assert not list(tmp_path.glob(".*"))


def test_two_splits_of_a_new_dataset(tmp_path):
    def other():
        write([{"x": 5}], tmp_path / "birds", "test")

    write(while_writing([{"x": 1}] * 3, other), tmp_path / "birds")
    assert {split.name: split.num_examples for split in info(tmp_path / "birds").splits} == {
        "test": 1,
        "train": 3,
    }


def test_two_names_for_a_new_dataset(tmp_path):
    def other():
        write([{"x": 2}], tmp_path, "test", name="bbb")

    with pytest.raises(DatasetError, match="has named the dataset 'bbb', not 'aaa'"):
        write(while_writing([{"x": 1}] * 3, other), tmp_path, name="aaa")
    assert read(tmp_path, "test") == [{"x": 2}]
    assert [split.name for split in info(tmp_path).splits] == ["test"]
    assert not list(tmp_path.glob("aaa*"))
    assert not list(tmp_path.glob(".*"))


# Files that belong to no dataset.

FOREIGN = [
    "birds-train.tfrecord-00000-of-00001",
    "features.json",
    "birds-train.index.npy",
    "birds-train.index.json",
    "label.labels.txt",
]


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.usefixtures("_quick_disk")
@pytest.mark.parametrize("mode", ["error", "append"])
def test_files_of_others_are_not_replaced(tmp_path, name, mode):
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds" / name).write_bytes(b"precious")
    with pytest.raises(DatasetExistsError, match=rf"{name}: .*move it away, or .*'overwrite'"):
        write(OLD, tmp_path / "birds", label="label", mode=mode)
    assert files(tmp_path / "birds") == {name: b"precious"}


@pytest.mark.usefixtures("_quick_disk")
@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others_are_overwritten_if_asked(tmp_path, name):
    (tmp_path / "a" / "birds").mkdir(parents=True)
    (tmp_path / "a" / "birds" / name).write_bytes(b"precious")
    write(OLD, tmp_path / "a" / "birds", label="label", mode="overwrite")
    write(OLD, tmp_path / "b" / "birds", label="label")
    assert content(tmp_path / "a" / "birds") == content(tmp_path / "b" / "birds")
    assert covey.repair(tmp_path / "a" / "birds").deleted in [(), (name,)]


def test_other_files_stay_where_they_are(tmp_path):
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds" / "notes.txt").write_bytes(b"precious")
    for mode in ["error", "append", "overwrite"]:
        write(OLD, tmp_path / "birds", label="label", mode=mode)
        assert (tmp_path / "birds" / "notes.txt").read_bytes() == b"precious"


@pytest.mark.parametrize("mode", ["error", "append"])
def test_shards_without_their_description_are_not_replaced(tmp_path, mode):
    write(OLD, tmp_path / "birds", label="label")
    (tmp_path / "birds" / "dataset_info.json").unlink()
    before = files(tmp_path)
    with pytest.raises(DatasetExistsError, match="belongs to no split of this dataset"):
        write(NEW, tmp_path / "birds", label="label", mode=mode)
    assert files(tmp_path) == before


def test_a_shard_that_no_split_names_is_not_replaced_in_a_dataset_either(tmp_path):
    write(OLD, tmp_path / "birds", label="label")
    shard = tmp_path / "birds" / "birds-test.tfrecord-00000-of-00001"
    shard.write_bytes(b"precious")
    with pytest.raises(DatasetExistsError, match=shard.name):
        write(NEW, tmp_path / "birds", "test", label="label")
    assert shard.read_bytes() == b"precious"
    assert {*seen(tmp_path / "birds")} == {"train"}


# What fails.


def failing_once(monkeypatch, name, error, after=0):
    """Let a function of the commit fail, once, after so many calls that do not."""
    real, calls = getattr(committing, name), []

    def fail(*args, **kwargs):
        calls.append(name)
        if len(calls) == after + 1:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(committing, name, fail)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("name", "after"), [("sync", 0), ("sync", 3), ("atomic_write", 0), ("atomic_write", 1)]
)
@pytest.mark.usefixtures("_quick_disk")
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_disk_that_fails_before_the_switch(tmp_path, mode, name, after, monkeypatch):
    write(OLD, tmp_path, label="label")
    before = files(tmp_path)
    with monkeypatch.context() as patch:
        failing_once(patch, name, FULL, after)
        with pytest.raises(DatasetError, match=r"No space left.*nothing was changed"):
            write(OTHERS, tmp_path, label="label", mode=mode)
    assert files(tmp_path) == before
    write(OTHERS, tmp_path, label="label", mode=mode)
    check_index(tmp_path)


@pytest.mark.parametrize("name", ["replace_late_sidecars", "_remove_obsolete"])
@pytest.mark.usefixtures("_quick_disk")
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_disk_that_fails_after_the_switch(tmp_path, mode, name, monkeypatch):
    write(OLD, tmp_path, label="label")
    with monkeypatch.context() as patch:
        failing_once(patch, name, FULL)
        with pytest.raises(
            CommittedError, match=r"'train' is written, but .*No space left"
        ) as told:
            write(OTHERS, tmp_path, label="label", mode=mode)
    assert "nothing was changed" not in str(told.value)
    assert "do not write the same examples again" in str(told.value)
    write([OTHERS[0]], tmp_path, "test", label="label")
    expected = [*OLD, *OTHERS] if mode == "append" else OTHERS
    assert seen(tmp_path)["train"] == sorted((each["x"], each["label"]) for each in expected)
    check_index(tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_the_next_append_adds_to_what_was_committed(tmp_path, monkeypatch):
    write([{"x": 1}], tmp_path)
    with monkeypatch.context() as patch:
        failing_once(patch, "_remove_obsolete", FULL)
        with pytest.raises(CommittedError, match="is written"):
            write([{"x": 2}], tmp_path, mode="append")
    assert write([{"x": 3}], tmp_path, mode="append").records == 3
    assert sorted(each["x"] for each in read(tmp_path)) == [1, 2, 3]
    check_index(tmp_path)


# Faults around the switch.


def after_the_switch(monkeypatch, strike):
    """Let something happen right after dataset_info.json was replaced."""
    real = os.replace

    def replace(source, target):
        real(source, target)
        if str(target).endswith("dataset_info.json"):
            monkeypatch.setattr(os, "replace", real)
            strike()

    monkeypatch.setattr(os, "replace", replace)


def raise_error(error):
    raise error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(1), SystemExit),
        (MemoryError(), MemoryError),
        (FileNotFoundError(errno.ENOENT, "gone"), CommittedError),
    ],
)
def test_an_exception_right_after_the_switch_loses_nothing(tmp_path, monkeypatch, error, told):
    write(OLD, tmp_path, label="label")
    with monkeypatch.context() as patch:
        after_the_switch(patch, lambda: raise_error(error))
        with pytest.raises(told) as caught:
            write(OTHERS, tmp_path, label="label", mode="overwrite")
    assert "nothing was changed" not in str(caught.value)
    assert len(covey.open(tmp_path)) == len(OTHERS)
    recover(tmp_path)
    assert seen(tmp_path)["train"] == sorted((each["x"], each["label"]) for each in OTHERS)
    check_index(tmp_path)


def test_sigterm_after_the_switch_is_held_back(tmp_path, monkeypatch):
    def terminate(number, frame):
        sys.exit(128 + number)

    write(OLD, tmp_path, label="label")
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        after_the_switch(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            write(OTHERS, tmp_path, label="label", mode="overwrite")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen(tmp_path)["train"] == sorted((each["x"], each["label"]) for each in OTHERS)
    assert not list(tmp_path.glob(".*"))


def test_repair_keeps_old_versions_if_the_current_one_is_not_whole(tmp_path):
    write(OLD, tmp_path, label="label")
    write(NEW, tmp_path, label="label", mode="overwrite")
    shard_paths(tmp_path)[0].unlink()
    before = files(tmp_path)
    with pytest.raises(DatasetError, match="the shard is missing"):
        covey.repair(tmp_path)
    assert files(tmp_path) == before


def test_the_staging_directory_of_another_machine_is_left(tmp_path):
    write(OLD, tmp_path, label="label")
    staging = tmp_path / ".covey-test.partial"
    staging.mkdir()
    (staging / "owner").write_text("process 7 on another.machine")
    write(NEW, tmp_path, label="label", mode="append")
    assert staging.is_dir()
    with pytest.raises(DatasetError, match=r"'test' \(process 7 on another.machine\)"):
        write(NEW, tmp_path, "test", label="label")
    os.utime(staging, (0, 0))
    write(NEW, tmp_path, "test", label="label")
    assert not staging.exists()


def test_append_to_shards_that_are_symbolic_links(tmp_path):
    write(OLD, tmp_path / "birds", label="label", shards=2)
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(shard_paths(tmp_path / "birds")):
        path.rename(tmp_path / "blobs" / str(number))
        path.symlink_to(f"../blobs/{number}")
    write(NEW, tmp_path / "birds", label="label", mode="append")
    assert len(covey.open(tmp_path / "birds")[:]["x"]) == 70
    check_index(tmp_path / "birds")


def test_files_that_covey_did_not_write_are_not_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "RETENTION_S", 0)
    own = {
        "notes.labels.txt": "mine",
        "my_mapping.json": "{}",
        "birds-train.tfrecord-00000-of-00009": "mine",
        "birds-train.txt": "mine",
    }
    directory = tmp_path / "birds"
    directory.mkdir()
    for name, text in own.items():
        (directory / name).write_text(text)
    for mode in ["error", "overwrite", "append", "overwrite", "append"]:
        write(OTHERS, directory, label="label", mode=mode)
    covey.repair(directory)
    assert {name: (directory / name).read_text() for name in own} == own


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "notes/README"])
def test_a_template_that_names_other_files_deletes_none(tmp_path, name):
    write(OLD, tmp_path, label="label")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README").write_text("mine")
    text = (tmp_path / "dataset_info.json").read_text()
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    (tmp_path / "dataset_info.json").write_text(text.replace(template, name))
    write(NEW, tmp_path, label="label", mode="overwrite")
    assert (tmp_path / "notes" / "README").read_text() == "mine"
    assert len(covey.open(tmp_path)) == len(NEW)
    assert {*features_from_tfds(tmp_path)} == {"x", "label"}


def test_a_rollback_keeps_what_another_process_has_committed(tmp_path, monkeypatch):
    write(OLD, tmp_path, label="label")

    def examples():
        yield from OTHERS
        write(OTHERS, tmp_path, "test", label="label")

    with monkeypatch.context() as patch:
        failing_once(patch, "atomic_write", FULL, 1 + 2)  # of the other process, and this one
        with pytest.raises(DatasetError, match="nothing was changed"):
            write(examples(), tmp_path, "val", label="label")
    assert features_from_tfds(tmp_path)["label"].names == ("a", "b", "c")
    assert {*seen(tmp_path)} == {"train", "test"}


def test_a_full_disk_does_not_lose_class_names(tmp_path, monkeypatch):
    write(OLD, tmp_path, label="label")
    before = files(tmp_path)
    real, calls = writing_files._write_new, []

    def fail(path, data):
        if os.path.dirname(path) == str(tmp_path) and b"c" in data:
            calls.append(path)
            raise FULL
        real(path, data)

    monkeypatch.setattr(writing_files, "_write_new", fail)
    with pytest.raises(DatasetError, match="nothing was changed"):
        write(OTHERS, tmp_path, label="label", mode="append")
    assert calls
    assert files(tmp_path) == before


def test_without_hard_links_a_killed_commit_is_completed(tmp_path, fresh):
    fresh(complete_without_hard_links, tmp_path)


def complete_without_hard_links(tmp_path):
    def link(*args, **options):
        raise OSError(errno.EPERM, "not supported")

    def act(directory):
        os.link = link
        features = {"y": "str", "label": ClassLabel(names=["q"])}
        write([{"y": "z", "label": "q"}] * 5, directory, mode="overwrite", features=features)

    write(OLD, tmp_path / "before" / "birds", label="label")
    for step in range(200):
        directory = tmp_path / f"killed-{step}" / "birds"
        shutil.copytree(tmp_path / "before" / "birds", directory)
        status = killed_at(step, act, directory)
        recover(directory)
        examples, features = read(directory), features_from_tfds(directory)
        assert {*examples[0]} == {*features}
        if status == 0:
            break


def test_a_staging_directory_of_another_user_blocks_only_its_split(fresh):
    fresh(be_blocked_by_another_user)


def be_blocked_by_another_user():
    with public_directory() as root:
        write(OLD, root / "birds", label="label")
        staging = root / "birds" / ".covey-test.partial"
        staging.mkdir(mode=0o700)
        for path in (root / "birds", *(root / "birds").iterdir()):
            os.chmod(path, 0o777 if path.is_dir() else 0o666)
        staging.chmod(0o700)

        def act():
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            write(NEW, root / "birds", "val", label="label")
            write(NEW, root / "birds", "test", label="label")

        told = result_of(act)
        if os.getuid() == 0:
            assert isinstance(told, DatasetError)
            assert told.path == str(staging)
            assert "an interrupted write of user 0 left this directory" in told.reason
        assert {"train", "val"} <= {*seen(root / "birds")}


@pytest.mark.parametrize("name", ["x.labels.txt", "birds-train.tfrecord-00000-of-00001"])
def test_a_directory_with_the_name_of_a_file_does_not_block(tmp_path, name, monkeypatch):
    monkeypatch.setattr(versions, "RETENTION_S", 0)
    directory = tmp_path / "birds"
    write(OLD, directory, label="label", mode="overwrite", shards=2)
    (directory / name).mkdir()
    for _ in range(3):
        write(NEW, directory, label="label", mode="overwrite")
    assert len(covey.open(directory)) == len(NEW)
    assert (directory / name).is_dir()


def test_a_broken_link_in_place_of_a_sidecar_file_is_replaced(tmp_path):
    write(OLD, tmp_path / "birds", label="label")
    (tmp_path / "birds" / "features.json").unlink()
    (tmp_path / "birds" / "features.json").symlink_to("nowhere")
    write(NEW, tmp_path / "birds", label="label", mode="overwrite")
    assert {*features_from_tfds(tmp_path / "birds")} == {"x", "label"}


def test_recovery_waits_for_no_fifo_and_no_depth(tmp_path):
    write(OLD, tmp_path, label="label")
    staging = tmp_path / ".covey-test.partial"
    (staging / "before").mkdir(parents=True)
    (staging / "before" / "a.labels.txt").write_text("x")
    os.mkfifo(tmp_path / "a.labels.txt")
    deep = staging
    for _ in range(60):
        deep = deep / ("d" * 20)
    deep.mkdir(parents=True)
    here = os.open(deep, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    recover(tmp_path)
    write(NEW, tmp_path, "test", label="label")
    assert {*seen(tmp_path)} == {"train", "test"}
    subprocess.run(["rm", "-rf", *tmp_path.glob(".covey-*")], check=True)


def test_a_system_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_fcntl", None)
    for mode in ["error", "append", "overwrite"]:
        write(NEW, tmp_path, label="label", mode=mode)
    assert len(covey.open(tmp_path)) == len(NEW)


def test_a_forked_process_removes_nothing_and_holds_no_lock(tmp_path, fresh):
    fresh(fork_while_writing, tmp_path)


def fork_while_writing(tmp_path):
    def examples():
        yield from OLD
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            staging = Staging(tmp_path, "train")
            staging._process -= 1  # as it is for a copy of the parent's
            staging.abort()
            os.read(reading, 1)
            os._exit(0)
        assert (tmp_path / ".covey-train.partial").is_dir()
        children.append((child, writing))

    children = []
    write(examples(), tmp_path, label="label")
    write(NEW, tmp_path, label="label", mode="append")  # while the child is alive
    for child, writing in children:
        os.write(writing, b"x")
        os.waitpid(child, 0)
    assert len(covey.open(tmp_path)) == 70


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_path_that_cannot_be(path):
    with pytest.raises(DatasetError, match="must be the path of a directory"):
        write(OLD, path, label="label")


# An index that is not what it was.


def without(name):
    def change(path):
        rows = np.load(path)
        np.save(path, rows[[each for each in rows.dtype.names if each != name]].copy())

    return change


def with_other(name, value):
    def change(path):
        rows = np.load(path)
        rows[name] = value
        np.save(path, rows)

    return change


DAMAGE = {
    "garbage": lambda path: path.write_bytes(b"garbage" * 99),
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "pickled": lambda path: np.save(path, np.array([{"x": 1}], object), allow_pickle=True),
    "something else": lambda path: np.save(path, np.arange(40)),
    "fewer rows": lambda path: np.save(path, np.load(path)[:-1]),
    "without label": without("label"),
    "without offset": without("offset"),
    "offsets past the end": with_other("offset", 2**40),
    "shards that are not there": with_other("shard", 7),
    "offsets that overflow": with_other("offset", 2**64 - 20),
}


@pytest.fixture(scope="module", params=[None, "GZIP"])
def appended(request, tmp_path_factory):
    """A dataset, and what it is after an append."""
    directory = tmp_path_factory.mktemp("appended")
    write(OLD, directory / "birds", label="label", compression=request.param, shards=2)
    shutil.copytree(directory / "birds", directory / "before")
    write(NEW, directory / "birds", label="label", mode="append")
    return directory / "before", content(directory / "birds")


@pytest.mark.usefixtures("_quick_disk")
@pytest.mark.parametrize("damage", DAMAGE)
def test_append_to_a_damaged_index_reads_the_shards(tmp_path, appended, damage):
    before, after = appended
    shutil.copytree(before, tmp_path / "birds")
    DAMAGE[damage](tmp_path / "birds" / "birds-train.index.npy")
    written = write(NEW, tmp_path / "birds", label="label", mode="append")
    assert written.classes == {"a": 35, "b": 35}
    assert content(tmp_path / "birds") == after


def test_append_to_an_index_with_lengths_past_the_end(tmp_path):
    write(OLD, tmp_path / "birds", label="label")
    with_other("length", 2**31)(tmp_path / "birds" / "birds-train.index.npy")
    write(NEW, tmp_path / "birds", label="label", mode="append")
    check_index(tmp_path / "birds")


def test_append_to_a_compressed_index_without_within(tmp_path):
    write(OLD, tmp_path / "birds", label="label", compression="GZIP")
    without("inner_offset")(tmp_path / "birds" / "birds-train.index.npy")
    write(NEW, tmp_path / "birds", label="label", mode="append")
    check_index(tmp_path / "birds")
