"""covey.write with a full disk, or few file descriptors."""

import os
import resource

import numpy as np
import pytest
from written import as_items, check_index, column, files, files_at_most, limit, write

from covey.errors import DatasetError, SourceError

OLD = {"x": [*range(9)], "label": [*"abcabcabc"]}


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
