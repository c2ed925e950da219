"""A dataset is the old one or the new one at every moment, for every reader."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from faults import (
    NEW,
    OLD,
    OTHERS,
    become_other_user,
    public_directory,
    result_of,
    seen,
    snapshot,
    temporaries,
    visible,
    without_links,
)
from written import (
    check_index,
    content,
    files,
    index_paths,
    info,
    read,
    replaced,
    shard_paths,
    write,
)

import covey
from covey import CoveyError
from covey.cli import main
from covey.errors import DatasetError, DatasetExistsError
from covey.schema.tfds import features_from_tfds
from covey.writing.commit import Staging
from covey.writing.recovery import recover

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Killed and interrupted writers.


def test_write_after_a_killed_writer(tmp_path, run):
    run(killed_while_encoding, tmp_path / "birds")
    assert [path.name for path in (tmp_path / "birds").iterdir()] == [".covey-train.partial"]
    write(NEW, tmp_path / "birds", label="label")
    write(NEW, tmp_path / "clean" / "birds", label="label")
    assert files(tmp_path / "birds") == files(tmp_path / "clean" / "birds")


def killed_while_encoding(directory):
    def examples():
        yield from OLD
        os.kill(os.getpid(), signal.SIGKILL)

    assert result_of(lambda: write(examples(), directory, memory_limit=1)) is None


def test_repair_after_a_killed_writer(tmp_path, run):
    run(killed_while_encoding, tmp_path / "birds")
    assert main(["repair", str(tmp_path / "birds"), "--quiet"]) == 0
    assert os.listdir(tmp_path / "birds") == []
    with pytest.raises(DatasetError, match="the directory does not exist"):
        covey.repair(tmp_path / "nothing")


def after_switch(monkeypatch, strike):
    """Call a function right after dataset_info.json was replaced."""
    real = os.replace

    def replace(source, target):
        real(source, target)
        if str(target).endswith("dataset_info.json"):
            monkeypatch.setattr(os, "replace", real)
            strike()

    monkeypatch.setattr(os, "replace", replace)


def test_sigterm_after_the_switch_is_deferred(tmp_path, monkeypatch):
    write(OLD, tmp_path, label="label")
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        after_switch(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            write(OTHERS, tmp_path, label="label", mode="overwrite")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen(tmp_path)["train"] == sorted([each["x"], each["label"]] for each in OTHERS)
    assert not temporaries(tmp_path)


def test_cli_prints_the_message_of_an_interrupt(tmp_path):
    code = """if True:
        import os, signal, sys
        from covey.cli import main
        signal.signal(signal.SIGINT, signal.default_int_handler)
        real = os.replace
        def replace(source, target):
            real(source, target)
            if str(target).endswith("dataset_info.json"):
                os.kill(os.getpid(), signal.SIGINT)
        os.replace = replace
        sys.exit(main(sys.argv[1:]))
    """
    (tmp_path / "birds.csv").write_text("x,label\n1,a\n2,b\n")
    arguments = ["write", str(tmp_path / "birds.csv"), str(tmp_path / "d"), "--no-progress"]
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert run.returncode == 128 + signal.SIGINT
    assert run.stderr == f"covey: {tmp_path / 'd'}: interrupted; split 'train' is written\n"
    assert len(covey.open(tmp_path / "d")) == 2


def test_rollback_keeps_the_commit_of_another_process(tmp_path, monkeypatch):
    write(OLD, tmp_path, label="label")
    real, replaced = os.replace, []

    def replace(source, target):
        replaced.extend([target] * str(target).endswith("dataset_info.json"))
        if len(replaced) == 2:
            raise FULL
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    other = lambda: write(OTHERS, tmp_path, "test", label="label")  # noqa: E731
    with pytest.raises(DatasetError, match="nothing was changed"):
        write(while_writing(OTHERS, other), tmp_path, "val", label="label")
    assert features_from_tfds(tmp_path)["label"].names == ("a", "b", "c")
    assert {*seen(tmp_path)} == {"train", "test"}


# Readers beside writers.


@pytest.mark.parametrize("deletes", [False, True], ids=["kept", "deleted"])
def test_overwrite_at_every_step_of_a_reader(tmp_path, deletes, monkeypatch):
    """A reader finds one version; its files are deleted by the next writes, or by repair."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    real, directory, versions, count = os.open, tmp_path / "birds", [], 0
    write([{"x": -1, "label": "a"}] * 9, directory, label="label")
    while True:
        taken = 0

        def strike(path, *args, step=count, **options):
            nonlocal taken
            if str(path).startswith(str(directory)):
                taken += 1
                if taken == step + 1:
                    batch = [{"x": step, "label": "a"}] * (5 + step % 3)
                    write(batch, directory, label="label", mode="overwrite", shards=1 + step % 2)
                    if deletes:
                        covey.repair(directory)
            return real(path, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", strike)
            ds = covey.open(directory, progress=False)
            found = {count} if deletes else {*ds[:]["x"].tolist()}
        assert len(found) == 1
        versions += found
        if taken <= count:
            break
        count += 1
    assert count >= 2
    assert len({*versions}) > 1


@pytest.mark.parametrize("mmap", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_reader_keeps_its_version(tmp_path, mode, compression, mmap):
    """A loader finishes its epoch; shards that it has not opened were moved, in any number."""
    old = [{"x": n, "label": "ab"[n % 2]} for n in range(200)]
    write(old, tmp_path, label="label", shards=20, compression=compression)
    ds, late = (covey.open(tmp_path, mmap=mmap) for _ in range(2))
    expected = [x.tolist() for x, _ in ds.shuffled(4, seed=0)]
    assert sorted(itertools.chain(*expected)) == [*range(200)]
    steps = iter(late.shuffled(4, seed=0))
    found = [next(steps)[0].tolist()]
    before = pickle.dumps(late.shuffled(4, seed=0))
    for _ in range(3):
        write(NEW, tmp_path, label="label", mode=mode, shards=3)
    found += [x.tolist() for x, _ in steps]
    assert found == expected
    for pickled in (before, pickle.dumps(late.shuffled(4, seed=0))):
        assert [x.tolist() for x, _ in pickle.loads(pickled)] == expected
    count = 15 if mode == "overwrite" else 245
    assert len(covey.open(tmp_path)) == count


def test_readers_do_not_wait_for_a_lock(tmp_path):
    write(OLD, tmp_path, label="label")
    lock = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert len(covey.open(tmp_path)) == len(OLD)
        assert covey.verify(tmp_path, progress=False).is_valid
    finally:
        os.close(lock)


# Names and files of versions.


@pytest.fixture
def _after_retention(monkeypatch):
    """The retention time of replaced versions has passed."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 600)


@pytest.fixture
def _without_fsync(monkeypatch):
    """The system outlives these tests, and loses nothing."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_names_of_versions(tmp_path):
    directory = tmp_path / "birds"
    write(OLD, directory, label="label", shards=2)
    plain = [f"birds-train.tfrecord-0000{n}-of-00002" for n in (0, 1)]
    assert [path.name for path in shard_paths(directory)] == plain
    write(NEW, directory, label="label", mode="overwrite", shards=2)
    token = info(directory).splits[0].token
    versioned = [f"birds-train.{token}.tfrecord-0000{n}-of-00002" for n in (0, 1)]
    assert [path.name for path in shard_paths(directory)] == versioned
    assert {*plain} < replaced(directory).keys()  # until the next write


@pytest.mark.usefixtures("_after_retention")
def test_next_write_deletes_old_versions(tmp_path):
    own = {
        "notes.labels.txt": "mine",
        "my_mapping.json": "{}",
        "birds-train.tfrecord-00000-of-00009": "mine",
        "birds-train.txt": "mine",
    }
    directory, listed = tmp_path / "birds", []
    directory.mkdir()
    for name, text in own.items():
        (directory / name).write_text(text)
    for mode in ["error", "overwrite", "append", "overwrite", "append"]:
        write(OTHERS, directory, label="label", mode=mode)
        listed.append({*os.listdir(directory)} - {".covey-old"} | {*replaced(directory, own)})
    assert listed[0] <= listed[1]
    shared = {"dataset_info.json", "features.json", "label.labels.txt", *own}
    for older, before, now in zip(listed[1:], listed[2:], listed[3:], strict=False):
        assert now & older == shared | (now & older & before)
        assert not now & listed[0] - shared
    covey.repair(directory)
    assert {name: (directory / name).read_text() for name in own} == own


def test_repair_deletes_old_versions(tmp_path):
    directory = tmp_path / "birds"
    for mode in ["error", "overwrite", "append"]:
        write(NEW, directory, label="label", mode=mode)
    before = content(directory), seen(directory)
    (directory / "notes.txt").write_text("mine")
    result = covey.repair(directory)
    assert (result.records, result.lost) == (0, ())
    assert ".covey-old/birds-train.old-record-00000-of-00001" in result.deleted
    assert {*os.listdir(directory)} == {
        *(path.name for path in shard_paths(directory)),
        *(path.name for path in index_paths(directory).values()),
        *("dataset_info.json", "features.json", "label.labels.txt", "notes.txt"),
    }
    (directory / "notes.txt").unlink()
    assert (content(directory), seen(directory)) == before
    assert covey.repair(directory).deleted == ()


def test_repair_keeps_old_versions_if_a_shard_is_missing(tmp_path):
    write(OLD, tmp_path, label="label")
    write(NEW, tmp_path, label="label", mode="overwrite")
    shard_paths(tmp_path)[0].unlink()
    before = files(tmp_path)
    with pytest.raises(DatasetError, match="the shard is missing"):
        covey.repair(tmp_path)
    assert files(tmp_path) == before


def test_file_system_without_hard_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", without_links)
    for mode in ["error", "append", "overwrite"]:
        write(NEW, tmp_path / "birds", label="label", mode=mode)
        assert info(tmp_path / "birds").splits[0].token is not None
        check_index(tmp_path / "birds")
    assert not temporaries(tmp_path / "birds")


# Hostile datasets.


FOREIGN_SHARD = "birds-other.tfrecord-00000-of-00001"


def plant_staging_link(directory, outside):
    (directory / ".covey-train.partial").symlink_to(outside)


def plant_staged_links(directory, outside):
    staging = directory / ".covey-train.partial"
    staging.mkdir()
    (staging / "features.json").symlink_to(outside / "secret")
    (staging / "birds-train.tfrecord-00000-of-00001").symlink_to(outside / "secret")
    plant_journal(staging, names=["features.json", "birds-train.tfrecord-00000-of-00001"])


def plant_journal_link(directory, outside):
    (directory / ".covey-train.partial").mkdir()
    (outside / "secret").write_text("{}")
    (directory / ".covey-train.partial" / "journal").symlink_to(outside / "secret")


def plant_journal(staging, **changes):
    empty = {"names": [], "early": {}, "late": {}, "stale": [], "replaced": []}
    (staging / "journal").write_text(json.dumps({**empty, **changes}))


def plant_staged_names(directory, outside):
    staging = directory / ".covey-train.partial"
    staging.mkdir()
    # The commit looks as if it had happened, so that it is completed.
    shard = shard_paths(directory)[0]
    os.link(shard, staging / shard.name)
    (directory / "sub").symlink_to(outside)
    names = ("dataset_info.json", "notes.txt", "birds-train.index.json", "sub/x.labels.txt")
    plant_journal(
        staging,
        names=[shard.name, "sub/secret", "../outside/secret", "notes.txt"],
        early=dict.fromkeys(names, "overwritten"),
        late=dict.fromkeys(names, "overwritten"),
        stale=["sub/other.labels.txt", "../outside/other.labels.txt"],
        replaced=["sub/other.tfrecord", "../outside/secret", "notes.txt"],
    )


def plant_staged_names_to_undo(directory, outside):
    """The commit looks as if it had not happened, so that it is undone."""
    staging = directory / ".covey-train.partial"
    staging.mkdir()
    for path in (directory / "sub", staging / "sub"):
        path.symlink_to(outside)
    os.link(directory / "notes.txt", staging / "notes.txt")
    (staging / FOREIGN_SHARD).write_text("another file")
    plant_journal(staging, names=["sub/secret", "notes.txt", FOREIGN_SHARD])


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
    plant_staging_link,
    plant_staged_links,
    plant_journal_link,
    plant_staged_names,
    plant_staged_names_to_undo,
    plant_links_like_temporaries,
    plant_links_like_metadata,
    plant_template,
]
READS = [
    lambda directory: covey.open(directory),
    lambda directory: covey.info(directory),
    lambda directory: covey.verify(directory, progress=False),
    lambda directory: main(["show", str(directory), "--batch", "-p2", "-k2", "--quiet"]),
]
WRITES = [
    lambda directory: covey.build_index(directory, progress=False),
    lambda directory: covey.repair(directory),
    lambda directory: write(OTHERS, directory, "test", label="label"),
    lambda directory: write(OTHERS, directory, label="label", mode="append"),
    lambda directory: write([{"y": 1}], directory, mode="overwrite"),
]


@pytest.mark.usefixtures("_after_retention", "_without_fsync")
@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_outside_of_the_dataset_changes(tmp_path, plant):
    for number, actions in enumerate([READS, *([each] for each in WRITES)]):
        directory = tmp_path / str(number) / "birds"
        outside = tmp_path / str(number) / "outside"
        write(OLD, directory, label="label")
        outside.mkdir()
        own = [directory / "notes.txt", directory / FOREIGN_SHARD]
        for path in (outside / "secret", outside / "other.labels.txt", *own):
            path.write_text("mine")
        plant(directory, outside)
        before = snapshot(outside), snapshot(directory)
        for action in actions:
            with contextlib.suppress(CoveyError):
                action(directory)
        assert snapshot(outside) == before[0]
        assert [path.read_text() for path in own] == ["mine", "mine"]
        if actions is READS:
            assert snapshot(directory) == before[1]
        assert "overwritten" not in (directory / "dataset_info.json").read_text()
        assert "overwritten" not in index_paths(directory)["metadata"].read_text()


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json", "notes/README"])
def test_template_with_names_of_other_files(tmp_path, name):
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


@pytest.mark.usefixtures("_after_retention")
@pytest.mark.parametrize("name", ["x.labels.txt", "birds-train.tfrecord-00000-of-00001"])
def test_directory_with_the_name_of_a_file(tmp_path, name):
    directory = tmp_path / "birds"
    write(OLD, directory, label="label", mode="overwrite", shards=2)
    (directory / name).mkdir()
    for _ in range(3):
        write(NEW, directory, label="label", mode="overwrite")
    assert len(covey.open(directory)) == len(NEW)
    assert (directory / name).is_dir()


def test_broken_link_in_place_of_a_sidecar_file(tmp_path):
    write(OLD, tmp_path / "birds", label="label")
    (tmp_path / "birds" / "features.json").unlink()
    (tmp_path / "birds" / "features.json").symlink_to("nowhere")
    write(NEW, tmp_path / "birds", label="label", mode="overwrite")
    assert {*features_from_tfds(tmp_path / "birds")} == {"x", "label"}


def test_recovery_of_a_fifo_and_of_nested_directories(tmp_path):
    write(OLD, tmp_path, label="label")
    staging = tmp_path / ".covey-test.partial"
    staging.mkdir()
    plant_journal(staging, early={"a.labels.txt": "x"})
    os.mkfifo(tmp_path / "a.labels.txt")
    here = os.open(staging, os.O_RDONLY)
    for _ in range(1200):  # deeper than Python's stack, and longer than a path
        os.mkdir("d" * 20, dir_fd=here)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    recover(tmp_path)
    write(NEW, tmp_path, "test", label="label")
    assert {*seen(tmp_path)} == {"train", "test"}
    subprocess.run(["rm", "-rf", *tmp_path.glob(".covey-*")], check=True)


def test_append_to_shards_that_are_symbolic_links(tmp_path):
    write(OLD, tmp_path / "birds", label="label", shards=2)
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(shard_paths(tmp_path / "birds")):
        path.rename(tmp_path / "blobs" / str(number))
        path.symlink_to(f"../blobs/{number}")
    write(NEW, tmp_path / "birds", label="label", mode="append")
    assert len(covey.open(tmp_path / "birds")[:]["x"]) == len(OLD) + len(NEW)
    check_index(tmp_path / "birds")


# Files that belong to no dataset.

FOREIGN = [
    "birds-train.tfrecord-00000-of-00001",
    "features.json",
    "birds-train.index.npy",
    "birds-train.index.json",
    "label.labels.txt",
]


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.usefixtures("_without_fsync")
def test_foreign_files(tmp_path, name):
    directory = tmp_path / "a" / "birds"
    directory.mkdir(parents=True)
    (directory / name).write_bytes(b"mine")
    (directory / "notes.txt").write_bytes(b"mine")
    for mode in ("error", "append"):
        with pytest.raises(DatasetExistsError, match=r"move it away, or .*'overwrite'") as caught:
            write(OLD, directory, label="label", mode=mode)
        assert caught.value.path == str(directory / name)
        assert files(directory) == {name: b"mine", "notes.txt": b"mine"}
    write(OLD, directory, label="label", mode="overwrite")
    write(OLD, tmp_path / "b" / "birds", label="label")
    expected = {**content(tmp_path / "b" / "birds"), "notes.txt": b"mine"}
    assert content(directory) == expected
    moved = name.replace(".tfrecord", ".old-record")
    assert covey.repair(directory).deleted in [(), (f".covey-old/{moved}",)]


@pytest.mark.parametrize("mode", ["error", "append"])
def test_shards_without_dataset_info(tmp_path, mode):
    write(OLD, tmp_path / "birds", label="label")
    (tmp_path / "birds" / "dataset_info.json").unlink()
    before = files(tmp_path)
    with pytest.raises(DatasetExistsError, match="belongs to no split of this dataset"):
        write(NEW, tmp_path / "birds", label="label", mode=mode)
    assert files(tmp_path) == before


def test_shard_that_belongs_to_no_split(tmp_path):
    write(OLD, tmp_path / "birds", label="label")
    shard = tmp_path / "birds" / "birds-test.tfrecord-00000-of-00001"
    shard.write_bytes(b"mine")
    with pytest.raises(DatasetExistsError) as caught:
        write(NEW, tmp_path / "birds", "test", label="label")
    assert caught.value.path == str(shard)
    assert shard.read_bytes() == b"mine"
    assert {*seen(tmp_path / "birds")} == {"train"}


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_invalid_path(path):
    with pytest.raises(DatasetError) as caught:
        write(OLD, path, label="label")
    assert caught.value.option == "path"


# Locks and concurrent writers.


def test_lock_timeout(tmp_path):
    code = """if True:
        import fcntl, os, sys
        fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
        print("locked", flush=True)
        sys.stdin.read()
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], **pipes) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DatasetError, match="another process has held the lock"):
            Staging(tmp_path, "train", lock_timeout=0.1).open()
        holder.stdin.close()
    assert os.listdir(tmp_path) == []
    staging = Staging(tmp_path, "train")
    staging.open()
    staging.abort()


def while_writing(examples, action):
    """Yield examples, and call a function before the last of them."""
    yield from examples[:-1]
    action()
    yield examples[-1]


# The split that exists, the one that is written, the one that another writer writes meanwhile, and
# the error of the first writer. Locks are between open files: two writers of one process and of
# two processes are the same.
X, TEXT = [{"x": 1}] * 3, [{"x": "text"}] * 3
A, B, Z = [{"label": "a"}] * 3, [{"label": "b"}] * 3, [{"label": "z"}] * 3
OVERWRITE = {"mode": "overwrite"}
CONCURRENT = {
    "new splits": (None, (X, {}), (X, {"split": "test"}), None),
    "new splits, other classes": (
        None,
        (A, {}),
        (Z, {"split": "test"}),
        "other features or classes",
    ),
    "new splits, other names": (
        *(None, (X, {"name": "aaa"}), (X, {"split": "test", "name": "bbb"})),
        "named the dataset 'bbb', not 'aaa'",
    ),
    "overwrite": (X, (X, OVERWRITE), (X, {"split": "test"}), None),
    "overwrite, other type": (X, (TEXT, OVERWRITE), (X, {"split": "test"}), "another process has"),
    "overwrite, other width": (
        *(X, ([{"x": 1.5}] * 3, OVERWRITE), (X, {"split": "test"})),
        "another process has",
    ),
    "overwrite, other feature": (
        *(X, ([{"y": 1}] * 3, OVERWRITE), (X, {"split": "test"})),
        "another process has",
    ),
    "overwrite, other classes": (A, (Z, OVERWRITE), (A, {"split": "test"}), "another process has"),
    "overwrite, more classes": (A, (A, OVERWRITE), (B, {"split": "test"}), "another process has"),
    "new split of other features": (
        X,
        (X, {"split": "test"}),
        (TEXT, OVERWRITE),
        "another process has",
    ),
}


@pytest.mark.usefixtures("_without_fsync")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", CONCURRENT)
def test_concurrent_writers(tmp_path, case, workers):
    before, (examples, options), (others, other_options), error = CONCURRENT[case]
    label = "label" if "label" in examples[0] else None
    directory, after = tmp_path / "birds", []

    def other():
        staging = {name for name in os.listdir(directory) if name.startswith(".covey")}
        recover(directory)
        write(others, directory, label=label, **other_options)
        assert staging <= {*os.listdir(directory)}
        after.append(visible(directory))

    if before is not None:
        write(before, directory, label=label)
    expected = contextlib.nullcontext() if error is None else pytest.raises(DatasetError)
    options = {"workers": workers, "label": label, **options}
    with expected as caught:
        write(while_writing(examples, other), directory, **options)
    if error is not None:
        assert error in caught.value.reason
        assert visible(directory) == after[0]
    else:
        assert {split.name for split in info(directory).splits} == {"train", "test"}
    assert not temporaries(directory)
    for split in info(directory).splits:
        assert len(read(directory, split.name)) == 3
        check_index(directory, split.name)


def test_two_writers_of_one_split(tmp_path):
    def other():
        with pytest.raises(DatasetError, match="another process is writing split 'train'"):
            write(NEW, tmp_path / "birds", label="label", mode="overwrite")

    write(while_writing(OLD, other), tmp_path / "birds", label="label")
    assert len(seen(tmp_path / "birds")["train"]) == len(OLD)


def test_staging_directory_of_another_machine(tmp_path):
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


def test_staging_directory_of_another_user(run):
    run(blocked_by_another_user)


def blocked_by_another_user():
    with public_directory() as root:
        write(OLD, root / "birds", label="label")
        staging = root / "birds" / ".covey-test.partial"
        staging.mkdir()
        for path in (root / "birds", *(root / "birds").iterdir()):
            path.chmod(0o777 if path.is_dir() else 0o666)
        staging.chmod(0o700)

        def run():
            become_other_user()
            write(NEW, root / "birds", "val", label="label")
            write(NEW, root / "birds", "test", label="label")

        error = result_of(run)
        if os.getuid() == 0:
            assert isinstance(error, DatasetError)
            assert error.path == str(root / "birds")
            assert error.remedy.endswith("remove .covey-test.partial as user 0")
        assert {"train", "val"} <= {*seen(root / "birds")}


def test_forked_process_removes_nothing_and_holds_no_lock(tmp_path, run):
    run(fork_while_writing, tmp_path)


def fork_while_writing(tmp_path):
    class InChildError(Exception):
        pass

    unwound, end = os.pipe(), os.pipe()

    def examples():
        yield from OLD
        children.append(os.fork())
        if children == [0]:
            raise InChildError
        assert os.read(unwound[0], 1) == b"x"
        assert (tmp_path / ".covey-train.partial").is_dir()

    children = []
    try:
        write(examples(), tmp_path, label="label")
    except BaseException:
        if children != [0]:
            raise
        os.write(unwound[1], b"x")
        os.read(end[0], 1)
        os._exit(0)
    write(NEW, tmp_path, label="label", mode="append")  # while the child is alive
    os.write(end[1], b"x")
    os.waitpid(children[0], 0)
    assert len(covey.open(tmp_path)) == len(OLD) + len(NEW)


# Append to a corrupt index.


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


CORRUPTIONS = {
    "garbage": lambda path: path.write_bytes(b"garbage" * 99),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "pickled": lambda path: np.save(path, np.array([{"x": 1}], object), allow_pickle=True),
    "other dtype": lambda path: np.save(path, np.arange(40)),
    "fewer rows": lambda path: np.save(path, np.load(path)[:-1]),
    "without label": without("label"),
    "without offset": without("offset"),
    "without inner offset": without("inner_offset"),
    "offsets past the end": with_other("offset", 2**40),
    "offsets that overflow": with_other("offset", 2**64 - 20),
    "lengths past the end": with_other("length", 2**31),
    "shards that do not exist": with_other("shard", 7),
}


@pytest.mark.usefixtures("_without_fsync")
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_append_to_a_corrupt_index(tmp_path, compression):
    """The index is rebuilt from the shards."""
    before = tmp_path / "before" / "birds"
    write(OLD, before, label="label", compression=compression, shards=2)
    shutil.copytree(before, tmp_path / "after" / "birds")
    write(NEW, tmp_path / "after" / "birds", label="label", mode="append")
    for name, corrupt in CORRUPTIONS.items():
        directory = tmp_path / name / "birds"
        shutil.copytree(before, directory)
        corrupt(directory / "birds-train.index.npy")
        result = write(NEW, directory, label="label", mode="append")
        assert result.classes == {"a": 18, "b": 17}, name
        assert content(directory) == content(tmp_path / "after" / "birds"), name
