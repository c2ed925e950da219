"""A dataset is the old one or the new one, whatever happens to the process that writes it."""

import builtins
import contextlib
import errno
import io
import multiprocessing
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
from written import check_index, files, fresh_process, info, read, shard_paths, write

from covey import ClassLabel, DatasetError, DatasetExistsError, RecordReader
from covey.features.tfds import features_from_tfds
from covey.writing import commit as committing
from covey.writing.commit import recover

OLD = [{"x": i, "label": "ab"[i % 2]} for i in range(40)]
NEW = [{"x": 100 + i, "label": "ab"[i % 2]} for i in range(30)]
OTHERS = [{"x": 100 + i, "label": "bc"[i % 2]} for i in range(30)]

# By these the names in a folder change; opening a file to write it is a step as well.
STEPS = ["rename", "replace", "link", "unlink", "rmdir", "mkdir"]


class Scene:
    """An old dataset, and a write that leads to another one.

    TFDS has the names of classes in a file of their own, which cannot change in the same moment as
    the list of shards. Where they do change, a write that was interrupted just then may leave the
    dataset without names, or none at all, until the next process has cleaned up; never a wrong one.
    """

    def __init__(self, before, examples=NEW, *, named=True, **options):
        self.before = before
        self.examples = examples
        self.named = named
        self.options = {"label": "label", **options}

    def prepare(self, folder):
        if self.before:
            write(OLD, folder, label="label", shards=2)

    def act(self, folder, times=1):
        write(self.examples * times, folder, **self.options)

    def seen(self, folder):
        return seen(folder, named=self.named)


SCENES = {
    "a new dataset": Scene(False),
    "a new split": Scene(True, split="test"),
    "a new split of new classes": Scene(True, OTHERS, named=False, split="test"),
    "overwrite, as many shards": Scene(True, mode="overwrite", shards=2),
    "overwrite, more shards": Scene(True, mode="overwrite", shards=3),
    "overwrite, fewer shards": Scene(True, mode="overwrite", shards=1),
    "overwrite, other classes": Scene(True, OTHERS, named=False, mode="overwrite", shards=2),
    "append": Scene(True, mode="append"),
    "append new classes": Scene(True, OTHERS, named=False, mode="append"),
}


def seen(folder, *, named=True):
    """The examples of each split with the names of their classes, as TFDS finds them.

    That is: by dataset_info.json, features.json and labels.txt alone.
    """
    if not (folder / "dataset_info.json").exists():
        return {}
    found = {}
    features = features_from_tfds(folder)
    names = features["label"].names
    for split in info(folder).splits:
        examples = []
        for path, count in zip(shard_paths(folder, split.name), split.shard_lengths, strict=True):
            with RecordReader(path) as reader:
                part = [features.decode(record) for record in reader]
            assert len(part) == count
            for each in part:
                x, label = int(each["x"]), int(each["label"])
                examples.append((x, names[label] if named else label))
        found[split.name] = sorted(examples)
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


def killed_at(step, action, folder):
    """Do it in a process that is killed before it takes the step of that number.

    A file that was opened to be written is a step by itself: it is empty then.
    """
    taken = 0

    def take_step():
        nonlocal taken
        if taken == step:
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1

    def counted(real):
        def call(*args, **kwargs):
            take_step()
            return real(*args, **kwargs)

        return call

    def opened(path, mode="r", *args, real=open, **kwargs):
        file = real(path, mode, *args, **kwargs)
        if "r" not in mode:
            take_step()
        return file

    def run():
        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        builtins.open = io.open = opened
        os.fsync = lambda descriptor: None  # the system outlives the process, and loses nothing
        action(folder)

    return in_child(run)


def clean_up(folder, old, new, again=True):
    """Whoever comes next finds the old dataset or the new one, and goes on with it."""
    recover(folder)
    now = seen(folder)
    assert now in (old, new)
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
    if again:
        for split in now:
            check_index(folder, split)
        write(NEW, folder, "next", label="label")
        assert {split: each for split, each in seen(folder).items() if split != "next"} == now


def outcomes(scene, tmp_path):
    """What is there before and after; as it is seen at once, and after recovery."""
    folder = tmp_path / "reference" / "birds"
    folder.mkdir(parents=True)
    scene.prepare(folder)
    old = scene.seen(folder), seen(folder)
    scene.act(folder)
    at_once, recovered = zip(old, (scene.seen(folder), seen(folder)), strict=True)
    return at_once if scene.named else (*at_once, {}), recovered


@pytest.fixture(scope="module")
def fresh():
    with fresh_process() as run:
        yield run


@pytest.mark.parametrize("name", SCENES)
def test_killed_before_every_step(tmp_path, name, fresh):
    fresh(kill_before_every_step, tmp_path, name)


def kill_before_every_step(tmp_path, name):
    scene = SCENES[name]
    allowed, (old, new) = outcomes(scene, tmp_path)
    assert old != new
    scene.prepare(tmp_path / "before" / "birds")
    ends = []
    for step in range(200):
        folder = tmp_path / f"killed-{step}" / "birds"
        if scene.before:
            shutil.copytree(tmp_path / "before" / "birds", folder)
        status = killed_at(step, scene.act, folder)
        found = scene.seen(folder)
        assert found in allowed, f"killed before step {step}"
        ends.append(found == allowed[1])
        if status == 0:
            break
        assert status == -signal.SIGKILL
        folder.mkdir(parents=True, exist_ok=True)
        clean_up(folder, old, new, again=step % 3 == 0)
    assert ends == sorted(ends)  # once it is the new one, it stays the new one
    assert 10 < len(ends) < 200
    assert ends[-1]


def test_killed_while_the_next_one_cleans_up(tmp_path, fresh):
    fresh(kill_while_the_next_one_cleans_up, tmp_path)


def kill_while_the_next_one_cleans_up(tmp_path):
    scene = SCENES["overwrite, as many shards"]
    _, (old, new) = outcomes(scene, tmp_path)
    scene.prepare(tmp_path / "before" / "birds")
    shutil.copytree(tmp_path / "before" / "birds", tmp_path / "a" / "birds")
    # The first step after the renaming that is the commit.
    for commit in range(200):
        shutil.rmtree(tmp_path / "a" / "birds")
        shutil.copytree(tmp_path / "before" / "birds", tmp_path / "a" / "birds")
        killed_at(commit, scene.act, tmp_path / "a" / "birds")
        if list((tmp_path / "a" / "birds").glob(".covey-*.commit")):
            break
    for step in range(200):
        folder = tmp_path / f"killed-{step}" / "birds"
        shutil.copytree(tmp_path / "a" / "birds", folder)
        status = killed_at(step, recover, folder)
        assert seen(folder) in (old, new)
        if status == 0:
            break
        clean_up(folder, new, new)
    assert seen(folder) == new
    assert step > 5


@pytest.mark.parametrize("name", ["overwrite, as many shards", "append", "a new split"])
def test_killed_at_any_moment(tmp_path, name, fresh):
    fresh(kill_at_any_moment, tmp_path, name)


def kill_at_any_moment(tmp_path, name):
    scene, moments = SCENES[name], random.Random(name)
    folder = tmp_path / "birds"
    scene.prepare(folder)
    old = seen(folder)
    began = time.perf_counter()
    shutil.copytree(folder, tmp_path / "timed" / "birds")
    scene.act(tmp_path / "timed" / "birds", 100)
    lasted, new = time.perf_counter() - began, seen(tmp_path / "timed" / "birds")
    shutil.copytree(folder, tmp_path / "before")
    for _ in range(12):
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                scene.act(folder, 100)
            os._exit(0)
        time.sleep(moments.uniform(0, 1.2 * lasted))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert seen(folder) in (old, new)
        recover(folder)
        assert seen(folder) in (old, new)
        assert not [each for each in os.listdir(folder) if each.startswith(".")]
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "before", folder)


def test_killed_between_features_that_differ(tmp_path, fresh):
    fresh(kill_between_features_that_differ, tmp_path)


def kill_between_features_that_differ(tmp_path):
    """Features and shards are in different files: covey's own readers never see them apart."""

    def act(folder):
        features = {"y": "str", "label": ClassLabel(names=["q"])}
        write([{"y": "z", "label": "q"}] * 5, folder, mode="overwrite", features=features)

    write(OLD, tmp_path / "before" / "birds", label="label")
    for step in range(200):
        folder = tmp_path / f"killed-{step}" / "birds"
        shutil.copytree(tmp_path / "before" / "birds", folder)
        status = killed_at(step, act, folder)
        recover(folder)
        examples, features = read(folder), features_from_tfds(folder)
        assert {*examples[0]} == {*features}
        assert len(examples) == (40 if "x" in features else 5)
        check_index(folder)
        if status == 0:
            break
    assert {*features} == {"y", "label"}


def test_the_debris_of_a_killed_process_is_removed_by_the_next(tmp_path, fresh):
    assert fresh(be_killed_while_encoding, tmp_path / "birds") == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "birds").iterdir()] == [".covey-train.partial"]
    write(NEW, tmp_path / "birds", label="label")
    write(NEW, tmp_path / "clean" / "birds", label="label")
    assert files(tmp_path / "birds") == files(tmp_path / "clean" / "birds")


def be_killed_while_encoding(folder):
    def killed():
        def examples():
            yield from OLD
            os.kill(os.getpid(), signal.SIGKILL)

        write(examples(), folder, memory=1)

    return in_child(killed)


# Several processes.


def writing(folder, split, begun, go_on, told, **options):
    """Write, and wait in the middle of it; tell how it went."""

    def examples():
        yield from OLD
        begun.set()
        assert go_on.wait(30)
        yield from NEW

    try:
        write(examples(), folder, split, label="label", **options)
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

    def start(folder, split, **options):
        begun = context.Event()
        arguments = (folder, split, begun, go_on, told)
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


def test_the_staging_folder_of_a_live_process_is_left_alone(tmp_path, side_by_side):
    folder = tmp_path / "birds"
    side_by_side(folder, "train")
    recover(folder)
    write(OLD + NEW, folder, "test", label="label")
    assert (folder / ".covey-train.partial").is_dir()
    assert side_by_side.finish() == {"train": None}
    assert {*seen(folder)} == {"train", "test"}


def test_classes_that_another_process_has_added_in_the_meantime(tmp_path, side_by_side):
    folder = tmp_path / "birds"
    side_by_side(folder, "train")
    write([{"x": 1, "label": "z"}], folder, "test", label="label")
    (told,) = side_by_side.finish().values()
    assert "another process has written split 'test' in the meantime" in told
    assert seen(folder) == {"test": [(1, "z")]}
    assert not list(folder.glob(".*"))


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

    with pytest.raises(DatasetError, match="another process has changed it"):
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

    with pytest.raises(DatasetError, match="has called the dataset 'bbb', not 'aaa'"):
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
    assert files(tmp_path / "a") == files(tmp_path / "b")


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


# What fails after the commit.


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
    ("name", "after"), [("_place", 0), ("_place", 1), ("_place", 3), ("_finish", 0)]
)
@pytest.mark.usefixtures("_quick_disk")
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_disk_that_fails_after_the_commit(tmp_path, mode, name, after, monkeypatch):
    write(OLD, tmp_path, label="label")
    options = {"label": "label", "mode": mode}
    with monkeypatch.context() as patch:
        failing_once(patch, name, FULL, after)
        with pytest.raises(DatasetError, match=r"'train' is written, but .*No space left") as told:
            write(NEW, tmp_path, **options)
    assert "nothing was changed" not in str(told.value)
    assert "do not write the same examples again" in str(told.value)
    write([OLD[0]], tmp_path, "test", label="label")
    expected = [*OLD, *NEW] if mode == "append" else NEW
    assert seen(tmp_path)["train"] == sorted((each["x"], each["label"]) for each in expected)
    check_index(tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_the_next_append_adds_to_what_was_committed(tmp_path, monkeypatch):
    write([{"x": 1}], tmp_path)
    with monkeypatch.context() as patch:
        failing_once(patch, "_place", FULL)
        with pytest.raises(DatasetError, match="is written"):
            write([{"x": 2}], tmp_path, mode="append")
    assert write([{"x": 3}], tmp_path, mode="append").records == 3
    assert sorted(each["x"] for each in read(tmp_path)) == [1, 2, 3]
    check_index(tmp_path)


def test_a_disk_that_fails_before_the_commit_changes_nothing(tmp_path, monkeypatch):
    write([{"x": 1}], tmp_path)
    before = files(tmp_path)
    with monkeypatch.context() as patch:
        failing_once(patch, "sync", FULL)
        with pytest.raises(DatasetError, match=r"No space left.*nothing was changed"):
            write([{"x": 2}], tmp_path, mode="append")
    assert files(tmp_path) == before
    assert write([{"x": 2}], tmp_path, mode="append").records == 2


@pytest.mark.parametrize("after", [0, 1])
def test_interrupted_after_the_commit(tmp_path, after, monkeypatch):
    write([{"x": 1}], tmp_path)
    with monkeypatch.context() as patch:
        failing_once(patch, "_place", KeyboardInterrupt(), after)
        with pytest.raises(KeyboardInterrupt):
            write([{"x": 2}], tmp_path, mode="append")
    assert sorted(each["x"] for each in read(tmp_path)) == [1, 2]
    assert not list(tmp_path.glob(".*"))
    check_index(tmp_path)


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
    folder = tmp_path_factory.mktemp("appended")
    write(OLD, folder / "birds", label="label", compression=request.param, shards=2)
    shutil.copytree(folder / "birds", folder / "before")
    write(NEW, folder / "birds", label="label", mode="append")
    return folder / "before", files(folder / "birds")


@pytest.mark.usefixtures("_quick_disk")
@pytest.mark.parametrize("damage", DAMAGE)
def test_append_to_a_damaged_index_reads_the_shards(tmp_path, appended, damage):
    before, after = appended
    shutil.copytree(before, tmp_path / "birds")
    DAMAGE[damage](tmp_path / "birds" / "birds-train.index.npy")
    written = write(NEW, tmp_path / "birds", label="label", mode="append")
    assert written.classes == {"a": 35, "b": 35}
    assert files(tmp_path / "birds") == after


def test_append_to_an_index_with_lengths_past_the_end(tmp_path):
    write(OLD, tmp_path / "birds", label="label")
    with_other("length", 2**31)(tmp_path / "birds" / "birds-train.index.npy")
    write(NEW, tmp_path / "birds", label="label", mode="append")
    check_index(tmp_path / "birds")


def test_append_to_a_compressed_index_without_within(tmp_path):
    write(OLD, tmp_path / "birds", label="label", compression="GZIP")
    without("within")(tmp_path / "birds" / "birds-train.index.npy")
    write(NEW, tmp_path / "birds", label="label", mode="append")
    check_index(tmp_path / "birds")
