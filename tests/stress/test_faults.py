"""A fault before every change of the file system leaves the old dataset or the new one.

Operations and faults are independent: a row of one table meets every row of the other.
"""

import contextlib
import os
import shutil
from functools import partial

import pytest
from faults import (
    FAULTS,
    NEW,
    OLD,
    OPERATIONS,
    Commit,
    OpenReaders,
    as_reader,
    clean,
    killed,
    killed_states,
    outcomes,
    public_directory,
    seen,
    seen_by_covey,
    states,
    visible,
)
from written import check_index, column, files, fresh_process, write

import covey
from covey.cli import main
from covey.errors import CommittedError, DatasetError, TaskError
from covey.schema.tfds import features_from_tfds
from covey.writing.recovery import recover


@pytest.fixture(scope="module")
def fresh():
    with fresh_process() as run:
        run(skip_sync)
        yield run


def skip_sync():
    """Do not sync files to disk: the system outlives the processes."""
    os.fsync = lambda descriptor: None


ERRORS = sorted({*FAULTS} - {"kill"})
REPORTING = [
    "new dataset",
    "overwrite with other features",
    "append new classes",
    "commit",
    "repair",
]


@pytest.mark.parametrize("fault", ERRORS)
@pytest.mark.parametrize("name", REPORTING)
def test_error_before_every_change(tmp_path, name, fault, fresh):
    fresh(error_before_every_change, tmp_path, name, fault)


def error_before_every_change(root, name, fault):
    """The error reports whether the split is written, and a repeated write does not double it."""
    operation, reported, repeated = OPERATIONS[name], set(), []
    _, (old, new), _ = outcomes(operation, root / "reference" / "birds")
    for step, directory, result in states(root, operation, fault):
        where = f"before change {step}: {result!r}"
        if isinstance(result, int):  # the fault was harmless, or there were fewer changes
            assert seen(directory) == new, where
            continue
        is_written = says_written(fault, result, directory)
        reported.add(is_written)
        if is_written:
            clean(directory)
        else:
            assert visible(directory) == visible(root / "before" / "birds"), where
            assert seen(directory) == old, where
            left = files(directory)
            if left in repeated:  # no other files than an error before left
                continue
            repeated.append(left)
            operation.run(directory)
        assert seen(directory) == new, where
        check_index(directory)
    assert reported == {False, True}


def says_written(fault, error, directory):
    """Return whether an error reports that the split is written."""
    message = str(error)
    if fault == "KeyboardInterrupt":
        assert isinstance(error, KeyboardInterrupt), repr(error)
        is_written = f"{directory}: interrupted; split 'train' is written" in message
        assert is_written or "split 'train' is not written, nothing was changed" in message
        return is_written
    if isinstance(error, CommittedError):
        assert error.path == str(directory)
        assert "split 'train' is written" in message
        return True
    if not isinstance(error, TaskError):
        assert isinstance(error, DatasetError), repr(error)
        assert "nothing was changed" in message, message
    return False


@pytest.mark.parametrize("name", OPERATIONS)
def test_kill_before_every_change(name, fresh):
    fresh(kill_before_every_change, name)


def kill_before_every_change(name):
    operation, is_new, readers = OPERATIONS[name], [], OpenReaders()
    with public_directory() as root:
        plain, recovered, own = outcomes(operation, root / "reference" / "birds")
        run_read_commands(root / "reference" / "birds")  # imports what others may not read
        for step, directory in killed_states(root, operation, readers.open):
            found = seen(directory, is_named=operation.is_named)
            assert found in plain, f"killed before change {step}"
            is_new.append(found == plain[1])
            directory.mkdir(parents=True, exist_ok=True)
            look = run_read_commands if step % 7 == 0 else seen_by_covey
            assert as_reader(directory, partial(read_both, readers, look)) == own[is_new[-1]]
            clean(directory)
            assert seen(directory) == recovered[is_new[-1]]
            readers.check()
            if step % 5 == 0:
                check_next_write(directory)
    assert is_new == sorted(is_new)
    assert is_new[-1]


def read_both(readers, look, directory):
    """Read the replaced version, and return what a function finds in the directory."""
    assert readers.read()
    return look(directory)


def run_read_commands(directory):
    """Run all readers of a dataset; return what covey.open finds."""
    found = seen_by_covey(directory)
    if found is not None:
        problems = covey.verify(directory).problems
        assert not [each for each in problems if each.record is not None]
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            assert main(["info", str(directory)]) == 0
            batch = ["--batch", "-p", "1", "-k", "2"]
            assert main(["show", str(directory), "--split", "train", *batch]) == 0
    return found


def check_next_write(directory):
    before = seen(directory) or {}
    for split in before:
        check_index(directory, split)
    features = features_from_tfds(directory) if before else {"x": "int64"}
    write([{**dict.fromkeys(features, 1), "label": "new"}], directory, "next", label="label")
    after = seen(directory)
    assert {split: after[split] for split in before} == before
    assert len(after["next"]) == 1


def test_kill_before_every_change_of_a_recovery(tmp_path, fresh):
    fresh(kill_before_every_change_of_a_recovery, tmp_path)


def kill_before_every_change_of_a_recovery(root):
    operation, recoveries = OPERATIONS["append new classes"], 0
    _, recovered, _ = outcomes(operation, root / "reference" / "birds")
    for step, state in killed_states(root, operation):
        if step % 4:
            continue
        directory = root / "recovered" / "birds"
        shutil.copytree(state.parent, directory.parent, copy_function=os.link)
        for _ in killed(directory, recover):
            recoveries += 1
            clean(directory)
            assert seen(directory) in recovered
    assert recoveries > 50


AGAIN = [{"x": 50 + i, "label": "ab"[i % 2]} for i in range(len(NEW))]
"""Other examples, whose records have the same size."""


@pytest.mark.parametrize(
    "way", ["append", "append twice", "overwrite", "some parts", "write of equal size"]
)
def test_parts_after_a_killed_commit(tmp_path, way, fresh):
    fresh(commit_parts_after_a_killed_commit, tmp_path, way)


def commit_parts_after_a_killed_commit(root, way):
    """A commit deletes parts that are committed, and no others."""
    is_first = way == "write of equal size"
    mode = "error" if is_first else "append" if "append" in way else "overwrite"
    operation, seen_states = Commit(options={"mode": mode}, is_first=is_first), set()
    for step, directory in killed_states(root, operation):
        before, where = numbers(directory), f"killed before change {step}"
        is_committed = before != numbers(root / "before" / "birds")
        seen_states.add(is_committed)
        if is_first:
            commit_parts_after_a_write(directory, is_committed)
            continue
        if way == "append twice":
            write(AGAIN, directory, label="label", mode="append")
            with contextlib.suppress(DatasetError):  # there are no parts
                covey.commit(directory, progress=False)
            assert numbers(directory) == sorted(each["x"] for each in (*OLD, *NEW, *AGAIN)), where
            continue
        parts, again = (("2/2",), NEW) if way == "some parts" else (("1/2", "2/2"), AGAIN)
        for part in parts:
            write(again, directory, label="label", part=part, mode=mode)
        if way == "some parts" and is_committed:
            with pytest.raises(DatasetError, match="part 1 of 2 is missing"):
                covey.commit(directory, progress=False)
            assert runs(directory) == ["00002"], where
            assert numbers(directory) == before, where
            continue
        assert covey.commit(directory, progress=False).notes == (), where
        expected = [each["x"] for each in again]
        assert numbers(directory) == sorted([*(before if mode == "append" else ()), *expected])
        assert runs(directory) == [], where
    assert seen_states == {False, True}


def commit_parts_after_a_write(directory, is_committed):
    """Commit parts after a write that has the names and sizes of the killed commit."""
    if not is_committed:
        write(AGAIN, directory, label="label")
    before = numbers(directory)
    with contextlib.suppress(DatasetError):
        covey.commit(directory, progress=False)
    assert runs(directory) == ([] if is_committed else ["00001", "00002"])
    assert numbers(directory) == before


def runs(directory):
    """Return the numbers of the parts that have a complete run."""
    return sorted(path.parent.name[:5] for path in directory.glob(".covey-parts-*/*/part.json"))


def numbers(directory):
    is_dataset = (directory / "dataset_info.json").exists()
    return sorted(column(directory, "x")) if is_dataset else []
