"""covey.write with a full disk, few file descriptors, or failing system calls."""

import errno
import itertools
import os
import resource
import shutil
import time

import numpy as np
import pytest
from written import as_items, check_index, column, files, files_at_most, limit, write

from covey.errors import CommittedError, DatasetError, SourceError

OLD = {"x": [*range(9)], "label": [*"abcabcabc"]}
NEW = {"x": [*range(20, 27)], "label": [*"abcdabc"]}


@pytest.fixture
def old(tmp_path):
    """A dataset that must not change."""
    write(OLD, tmp_path / "old" / "birds", "test", label="label")
    return tmp_path / "old" / "birds"


@pytest.mark.parametrize("options", [{}, {"memory_limit": 200_000}, {"workers": 2, "shards": 2}])
def test_full_disk(tmp_path, old, options):
    before = files(tmp_path)
    examples = [{"x": np.full(1000, i), "label": i % 2} for i in range(400)]
    with limit(resource.RLIMIT_FSIZE, 150_000):
        for directory, split in [(old, "test"), (tmp_path / "new" / "birds", "train")]:
            with pytest.raises(DatasetError, match=r"failed: File too large.*nothing was changed"):
                write(examples, directory, split, label="label", mode="overwrite", **options)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["link", "replace", "rename", "fsync", "unlink"])
def test_full_disk_at_every_system_call(tmp_path, old, name, monkeypatch):
    """The old dataset, or the new one with CommittedError; the next write recovers."""
    write(OLD, old, "test", label="label", mode="overwrite")
    before, real, clock = visible(old), getattr(os, name), time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 120)  # the retention time is over

    def overwrite(directory, allowed):
        calls = itertools.count()

        def failing(*args, **kwargs):
            if next(calls) >= allowed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            write(NEW, directory, "test", label="label", mode="overwrite")

    outcomes = []
    # The first link tests whether the file system has hard links.
    for allowed in range(int(name == "link"), 100):
        directory = shutil.copytree(old, tmp_path / str(allowed) / old.name)
        try:
            overwrite(directory, allowed)
            break
        except DatasetError as error:
            failure = error
        assert "No space left" in str(failure)
        outcomes.append("committed" if isinstance(failure, CommittedError) else "failed")
        if outcomes[-1] == "committed":
            assert sorted(column(directory, "x", "test")) == NEW["x"]
        else:
            assert visible(directory) == before
        write(OLD, directory, "other", label="label")
        assert not [name for name in os.listdir(directory) if name.startswith(".")]
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) >= ({"committed"} if name == "unlink" else {"failed"})
    assert sorted(column(directory, "x", "test")) == NEW["x"]


def visible(directory):
    """Return all files except those of staging directories, which readers ignore."""
    return {name: data for name, data in files(directory).items() if not name.startswith(".covey-")}


@pytest.mark.parametrize("options", [{}, {"sort_by_class": True}, {"workers": 2}, {"shards": 300}])
def test_open_files(tmp_path, options):
    """Many runs and shards need few file descriptors, and none remains open."""
    columns = {"x": [*range(1200)], "label": [i % 7 for i in range(1200)]}
    write(OLD, tmp_path / "first")
    before = sorted(os.listdir("/proc/self/fd"))
    with files_at_most(64):
        write(as_items(columns), tmp_path, label="label", memory_limit=3_000, **options)
    assert sorted(column(tmp_path, "x")) == columns["x"]
    check_index(tmp_path)

    def failing():
        yield from as_items(columns)
        raise ValueError

    with pytest.raises(SourceError):
        write(failing(), tmp_path / "second", label="label", memory_limit=3_000, **options)
    assert sorted(os.listdir("/proc/self/fd")) == before
