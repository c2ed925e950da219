"""Faults of the file system, injected into a forked process; and what readers see after them.

A change is a call that creates, renames, links or deletes a name, writes to a file, or syncs it.
Audit events report all calls that change names, of any module.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import pickle
import shutil
import signal
import stat
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from written import files, info, shard_paths, write

import covey
from covey import ClassLabel, RecordReader
from covey.errors import DatasetError
from covey.schema.tfds import features_from_tfds
from covey.writing.recovery import recover

OLD = [{"x": i, "label": "ab"[i % 2]} for i in range(20)]
NEW = [{"x": 100 + i, "label": "ab"[i % 2]} for i in range(15)]
OTHERS = [{"x": 100 + i, "label": "bc"[i % 2]} for i in range(15)]
MAX_CHANGES = 600


# Faults.


def _fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def _exhaust_memory() -> None:
    raise MemoryError


def _send(number: int) -> None:
    os.kill(os.getpid(), number)


FAULTS: dict[str, Callable[[], None]] = {
    "ENOSPC": partial(_fail, errno.ENOSPC),
    "MemoryError": _exhaust_memory,
    "KeyboardInterrupt": partial(_send, signal.SIGINT),
    "kill": partial(_send, signal.SIGKILL),
}

_NAMES = {"os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


class _Changes:
    """Counts the changes of this process, and calls a function before each of them."""

    def __init__(self, strike: Callable[[int], object]) -> None:
        self.count = 0
        self._strike = strike
        self._lock = threading.Lock()

    def add(self) -> None:
        with self._lock:
            number = self.count
            self.count += 1
            self._strike(number)

    def install(self) -> None:
        """Count until the process ends: an audit hook cannot be removed."""
        real, changes = io.open, self

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event in _NAMES:
                self.add()
            elif event == "open":
                flags = arguments[2]  # io.open has none; its FileIO is the second event
                if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                    self.add()

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                changes.add()
                return super().write(data)

        def opened(path: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any):
            if "r" in mode or not isinstance(path, (str, os.PathLike)):
                return real(path, mode, buffering, *args, **options)
            raw = File(path, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
            return kind(raw) if "b" in mode else io.TextIOWrapper(kind(raw), *args, **options)

        builtins.open = io.open = opened  # type: ignore[assignment]
        os.fsync = lambda descriptor: self.add()  # the system outlives the process
        sys.addaudithook(audit)


def struck(step: int, fault: str, action: Callable[[], Any]) -> Any:
    """Run an action in a forked process, with a fault before change number `step`.

    Returns:
        The number of changes; the exception that was raised; or None if the process was killed.
    """

    def run() -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        changes = _Changes(lambda number: FAULTS[fault]() if number == step else None)
        changes.install()
        action()
        return changes.count

    return result_of(run)


def result_of(action: Callable[[], Any]) -> Any:
    """Return the result of an action in a forked process, or the exception that it raised.

    The result is None if the process was killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = action()
        except BaseException as error:
            result = error
        with contextlib.suppress(BaseException):
            os.write(writing, pickle.dumps(result))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return pickle.loads(data) if status == 0 else None


def killed(directory: Path, action: Callable[[Path], Any]) -> Iterator[int]:
    """Yield the number of each change of an action, with a dataset as a kill before it leaves it.

    The action runs once, in a forked process that is stopped before each change, with all of its
    threads. It has another directory: `directory` is a copy, whose files share their content. A
    number is left out if nothing has changed since the number before, as after a sync. At the last
    number, the action has ended.

    Args:
        directory: The dataset.
        action: Function of the directory to change.
    """
    root, original = directory.parent, directory.parent.with_name(f"{directory.parent.name}-alive")
    root.rename(original)
    child = os.fork()
    if child == 0:
        try:
            _Changes(lambda number: _send(signal.SIGSTOP)).install()
            action(original / directory.name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    is_stopped, step, looked_at = True, 0, None
    try:
        while is_stopped:
            status = os.waitpid(child, os.WUNTRACED)[1]
            is_stopped = os.WIFSTOPPED(status)
            assert is_stopped or status == 0
            found = _state(original)
            if found != looked_at:
                looked_at = found
                shutil.copytree(original, root, copy_function=os.link)
                yield step
                shutil.rmtree(root)
            if is_stopped:
                os.kill(child, signal.SIGCONT)
            step += 1
    finally:
        if is_stopped:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    shutil.rmtree(original)


def _state(directory: Path) -> list[tuple[Any, ...]]:
    """Return the names, the identities, the sizes and the times of all files."""
    found = []
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        is_file = stat.S_ISREG(status.st_mode)
        found.append((path, status.st_ino, is_file and (status.st_size, status.st_mtime_ns)))
    return found


# Operations.


def without_links(*args: Any, **options: Any) -> None:
    raise OSError(errno.EPERM, "not supported")


@dataclass
class Operation:
    """A change of a dataset.

    TFDS has the names of classes in a file of their own, which cannot be replaced together with
    dataset_info.json. Where classes are renumbered, only covey's own readers are always consistent.
    """

    examples: list[dict[str, Any]] = field(default_factory=lambda: NEW)
    options: dict[str, Any] = field(default_factory=dict)
    is_first: bool = False
    """Whether there is no dataset before the write."""
    is_named: bool = True
    """Whether a reader of TFDS' files finds the right class names at every moment."""
    has_links: bool = True

    def prepare(self, directory: Path) -> None:
        if not self.is_first:
            write(OLD, directory, label="label", shards=2)

    def run(self, directory: Path) -> None:
        real = os.link
        os.link = real if self.has_links else without_links
        try:
            self.change(directory)
        finally:
            os.link = real

    def change(self, directory: Path) -> None:
        write(self.examples, directory, **{"label": "label", **self.options})


class Commit(Operation):
    """A commit of parts, which are written before."""

    def prepare(self, directory: Path) -> None:
        super().prepare(directory)
        for part in ("1/2", "2/2"):
            write(self.examples, directory, label="label", part=part, **self.options)

    def change(self, directory: Path) -> None:
        covey.commit(directory, progress=False)


class Repair(Operation):
    """A repair of a dataset with a corrupt record, in place of another dataset."""

    def prepare(self, directory: Path) -> None:
        super().prepare(directory)
        write(NEW, self._source(directory), label="label")
        (path,) = shard_paths(self._source(directory))
        path.write_bytes(path.read_bytes()[:-1])

    def change(self, directory: Path) -> None:
        covey.repair(self._source(directory), directory, mode="overwrite", progress=False)

    def _source(self, directory: Path) -> Path:
        return directory.parent / "corrupt"


HALF = covey.HoldOut(fraction=0.5)
OTHER_FEATURES: dict[str, Any] = {
    "examples": [{"y": 7, "label": "q"}] * 5,
    "is_named": False,
    "options": {
        "mode": "overwrite",
        "features": {"y": "int64", "label": ClassLabel(names=["q"])},
    },
}
OPERATIONS = {
    "new dataset": Operation(is_first=True),
    "new split with new classes": Operation(OTHERS, {"split": "test"}, is_named=False),
    "overwrite": Operation(options={"mode": "overwrite", "shards": 2}),
    "overwrite with other features": Operation(**OTHER_FEATURES),
    "overwrite without hard links": Operation(**OTHER_FEATURES, has_links=False),
    "append": Operation(options={"mode": "append"}),
    "append new classes": Operation(OTHERS, {"mode": "append"}, is_named=False),
    "new dataset with hold-out": Operation(options={"hold_out": HALF}, is_first=True),
    "overwrite with hold-out": Operation(options={"mode": "overwrite", "hold_out": HALF}),
    "commit": Commit(options={"mode": "overwrite"}),
    "commit of an append": Commit(OTHERS, {"mode": "append"}, is_named=False),
    "repair": Repair(),
}


def states(
    root: Path,
    operation: Operation,
    fault: str,
) -> Iterator[tuple[int, Path, Any]]:
    """Yield the number, the dataset and the result of an error before every change.

    Args:
        root: Directory of all datasets.
        operation: The operation.
        fault: Name of the fault.
    """
    (root / "before").mkdir()
    operation.prepare(root / "before" / "birds")
    for step in range(MAX_CHANGES):
        directory = root / f"struck-{step}" / "birds"
        shutil.copytree(root / "before", directory.parent)
        result = struck(step, fault, partial(operation.run, directory))
        yield step, directory, result
        if isinstance(result, int) and result <= step:
            break
        shutil.rmtree(directory.parent)
    assert 10 < step < MAX_CHANGES - 1


def killed_states(
    root: Path,
    operation: Operation,
    prepare: Callable[[Path], object] = lambda directory: None,
) -> Iterator[tuple[int, Path]]:
    """Yield the number and the dataset of a kill before every change, and after the last one.

    Args:
        root: Directory of all datasets.
        operation: The operation.
        prepare: Function that is called with the dataset before the operation.
    """
    (root / "before").mkdir()
    operation.prepare(root / "before" / "birds")
    directory = root / "killed" / "birds"
    shutil.copytree(root / "before", directory.parent)
    prepare(directory)
    for step in killed(directory, operation.run):
        yield step, directory
    assert step > 10


# Readers.


def seen(directory: Path, *, is_named: bool = True) -> Any:
    """Return the examples of each split as a plain reader of dataset_info.json finds them.

    Class names are those of features.json and labels.txt.
    """
    if not (directory / "dataset_info.json").exists():
        return None
    found = {}
    features = features_from_tfds(directory) if is_named else None
    for split in info(directory).splits:
        examples: list[Any] = []
        paths = shard_paths(directory, split.name)
        for path, count in zip(paths, split.shard_lengths, strict=True):
            with RecordReader(path) as reader:
                records = list(reader)
            assert len(records) == count
            examples += records
        if features is not None:
            examples = [named_values(features, features.decode(each)) for each in examples]
        found[split.name] = sorted(examples)
    return found


def named_values(features: Any, example: Any) -> list[Any]:
    """Return the values of an example, with the name of its class."""
    names = features["label"].names
    return [
        names[int(example[name])] if name == "label" else int(example[name]) for name in example
    ]


def seen_by_covey(directory: Path) -> Any:
    """Return the examples of each split as covey.open finds them; None if there is no dataset."""
    if not (directory / "dataset_info.json").exists():
        with pytest.raises(DatasetError):
            covey.info(directory)
        return None
    found = {}
    for split in covey.info(directory).splits:
        ds = covey.open(directory, split=split.name, progress=False)
        examples = [ds[i] for i in range(len(ds))]
        assert [*ds.features] == [*examples[0]]
        found[split.name] = sorted(named_values(ds.features, each) for each in examples)
    return found


class OpenReaders:
    """Datasets that are opened before an operation, and read after it."""

    def __init__(self) -> None:
        self._opened: list[covey.Dataset] = []

    def open(self, directory: Path) -> None:
        """Open a dataset; none of its shards is open then."""
        is_dataset = (directory / "dataset_info.json").exists()
        self._opened = [
            covey.open(directory, split="train", mmap=mmap, progress=False)
            for mmap in ((True, False) if is_dataset else ())
        ]

    def check(self) -> None:
        """Read the replaced version in a forked process."""
        assert result_of(self.read) is True

    def read(self) -> bool:
        """Compare the replaced version with `OLD`: as it was opened, and after pickling."""
        copies = [pickle.loads(pickle.dumps(each)) for each in self._opened]
        for each in (*self._opened, *copies):
            assert sorted(each[:]["x"].tolist()) == [old["x"] for old in OLD]
        return True


def outcomes(operation: Operation, directory: Path) -> Any:
    """Return pairs of what is seen before and after.

    They are the pairs of a plain reader, of a plain reader after recovery, and of covey.
    """

    def look() -> Any:
        return (
            seen(directory, is_named=operation.is_named),
            seen(directory),
            seen_by_covey(directory),
        )

    directory.mkdir(parents=True)
    operation.prepare(directory)
    before = look()
    operation.run(directory)
    return zip(before, look(), strict=True)


def visible(directory: Path) -> dict[str, bytes]:
    """Return the files of a directory without those of hidden directories."""
    found = files(directory) if directory.exists() else {}
    return {name: data for name, data in found.items() if not name.startswith(".")}


def clean(directory: Path) -> None:
    """Recover a dataset; no temporary file remains, except parts that are not committed.

    Patterns of other readers match the shards of the dataset, and no others.
    """
    recover(directory)
    assert temporaries(directory) <= {".covey-parts-train"}
    if (directory / "dataset_info.json").exists():
        splits = info(directory).splits
        shards = [path for split in splits for path in shard_paths(directory, split.name)]
        visible = list(directory.glob("*.tfrec*"))
        assert sorted(visible) == sorted(shards)


def temporaries(directory: Path) -> set[str]:
    """Return the names of hidden files, without the directory of replaced versions."""
    return {path.name for path in directory.glob(".*")} - {".covey-old"}


# Readers without permission to write.


@contextlib.contextmanager
def public_directory() -> Iterator[Path]:
    """Yield a directory that every user can read, unlike that of pytest."""
    path = Path(tempfile.mkdtemp(prefix="covey-test-"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        for each in (path, *path.rglob("*")):
            if each.is_dir() and not each.is_symlink():
                each.chmod(0o755)
        shutil.rmtree(path)


def become_other_user() -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def as_reader(directory: Path, action: Callable[[Path], Any]) -> Any:
    """Run an action as a user who may not write to the dataset; nothing of it may change."""
    before = snapshot(directory)
    for each in (directory, *directory.rglob("*")):
        each.chmod(0o555 if each.is_dir() else 0o444)

    def run() -> Any:
        become_other_user()
        with tempfile.TemporaryDirectory(prefix="covey-test-cache-") as cache:
            os.environ["COVEY_CACHE"] = cache
            return action(directory)

    result = result_of(run)
    for each in (directory, *directory.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    assert snapshot(directory) == before
    if isinstance(result, BaseException):
        raise result
    return result


def snapshot(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return all that a reader could change."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = status.st_ino, status.st_mtime_ns, data
    return found
