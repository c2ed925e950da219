"""Versions of a split: which files are read, and which are deleted."""

import shutil
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened import numbers, opened
from written import info, replaced, restore_replaced, shard_paths, write

from covey.dataset_info import DatasetInfo, SplitInfo
from covey.errors import DatasetError, FormatError, SourceError
from covey.filenames import versioned_template
from covey.sources import open_source
from covey.writing.versions import ABANDONED_S, find_obsolete, referenced_files

OLD, NEW = range(30), range(100, 120)


def examples(values):
    return [{"x": n, "label": n % 3} for n in values]


@pytest.fixture(scope="module", params=["overwrite", "append"])
def made(request, tmp_path_factory):
    """A dataset with two splits, of which one was replaced by a killed writer, or at a URL."""
    directory = tmp_path_factory.mktemp("versions") / "birds"
    write(examples(OLD), directory, label="label", shards=2)
    write(examples(range(50, 60)), directory, "test", label="label")
    write(examples(NEW), directory, label="label", shards=2, mode=request.param)
    assert replaced(directory)
    restore_replaced(directory)
    return directory


@pytest.fixture
def birds(made, tmp_path):
    """A copy of the dataset, for one test."""
    return shutil.copytree(made, tmp_path / "data" / "birds")


@pytest.fixture
def train(birds):
    """The numbers of the current version of the split that was replaced."""
    return sorted(numbers(opened(birds, split="train")))


# Reading.


@pytest.mark.parametrize("pattern", ["*", "*.tfrecord-*", "birds-t*"])
def test_pattern_of_current_versions(birds, train, pattern):
    found = opened(str(birds / pattern), split="train+test")
    assert sorted(numbers(found)) == sorted([*train, *range(50, 60)])


def test_pattern_of_several_directories(birds, train):
    shutil.copytree(birds, birds.with_name("more"))
    found = opened(str(birds.parent / "*" / "*-train.*tfrecord-*"))
    assert sorted(numbers(found)) == sorted(2 * train)


def test_pattern_of_a_replaced_version(birds):
    pattern = str(birds / "birds-train.tfrecord-*")
    with pytest.raises(DatasetError, match=r"birds-train\.tfrecord-0.* version that was replaced"):
        opened(pattern)
    with pytest.raises(SourceError, match=r"birds-train\.tfrecord-0.* version that was replaced"):
        open_source(pattern)


def test_list_of_files_of_a_replaced_version(birds):
    old = sorted(birds.glob("birds-train.tfrecord-*"))
    assert sorted(numbers(opened(old))) == list(OLD)


def test_pattern_with_a_corrupt_dataset_info(birds):
    (birds / "dataset_info.json").write_text("{")
    with pytest.raises(FormatError, match=r"dataset_info\.json"):
        opened(str(birds / "*.tfrecord-*"))
    assert sorted(numbers(opened(str(birds / "birds-train.tfrecord-*")))) == list(OLD)


def test_pattern_without_dataset_info(birds, train):
    (birds / "dataset_info.json").unlink()
    found = opened(str(birds / "birds-train.*tfrecord-*"))
    assert sorted(numbers(found)) == sorted([*OLD, *train])


def values(source):
    found = [example["x"] for _, example in source.examples]
    return sorted(int(each) for each in found)


@pytest.mark.parametrize("kind", [None, "TFRecords"])
def test_source_of_the_current_version(birds, train, kind):
    assert values(open_source(birds, kind=kind, split="train")) == train
    assert values(open_source(str(birds / "*-train.*"), kind=kind)) == train


def test_uncommitted_version(birds, train):
    for path in shard_paths(birds):
        token = info(birds).splits[0].token
        shutil.copy(path, birds / path.name.replace(token, "20991231T235959-00000000"))
    assert sorted(numbers(opened(birds, split="train"))) == train
    assert sorted(numbers(opened(str(birds / "*-train.*tfrecord-*")))) == train
    assert values(open_source(birds, kind="TFRecords", split="train")) == train


# Deleting.

HOUR = 3600
NOON = 1_800_000_000
RETENTION = 60


def token_at(seconds):
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}-0123abcd"


def version(seconds, split="train", shards=2):
    """Return a version with a token of a time, or without a token."""
    template = {} if seconds is None else {"template": versioned_template(token_at(seconds))}
    return SplitInfo(split, (3,) * shards, 100, **template)


def files_of(*versions, dataset="birds"):
    infos = [DatasetInfo(dataset, splits=(each,)) for each in versions]
    return set().union(*map(referenced_files, infos))


# Time of the version that was replaced last, another version, and whether that is obsolete.
CASES = {
    "older, replaced long ago": (NOON - HOUR, version(NOON - 2 * HOUR), True),
    "older, replaced just now": (NOON - 59, version(NOON - 2 * HOUR), False),
    "older, at the limit": (NOON - 60, version(NOON - 2 * HOUR), True),
    "the first, without token": (NOON - HOUR, version(None, shards=3), True),
    "the first, replaced just now": (NOON - 59, version(None, shards=3), False),
    "uncommitted before the last": (NOON - HOUR, version(NOON - HOUR - 1), True),
    "uncommitted, a write in progress": (NOON - HOUR, version(NOON - 600), False),
    "uncommitted, abandoned": (NOON - 50 * HOUR, version(NOON - ABANDONED_S), True),
    "uncommitted, the last has no token": (None, version(NOON - 600), False),
    "abandoned, the last has no token": (None, version(NOON - ABANDONED_S), True),
    "without token, as is the last": (None, version(None, shards=3), False),
    "a token that is not a date": (
        NOON - HOUR,
        "birds-train.99999999T999999-0123abcd.index.json",
        True,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_obsolete_files_after_a_commit(case):
    last, other, is_obsolete = CASES[case]
    new, old, test = version(NOON), version(last), version(NOON - 9 * HOUR, "test")
    others = {other} if isinstance(other, str) else files_of(other)
    kept = files_of(new, old, test) | {"dataset_info.json", "features.json", "label.labels.txt"}
    found = find_obsolete(
        sorted(kept | others),
        DatasetInfo("birds", splits=(test, new)),
        "train",
        replaced=old,
        now=NOON,
        retention=RETENTION,
    )
    assert set(found) == (others if is_obsolete else set())


def test_all_old_versions_are_obsolete():
    new, old = version(NOON), [version(None), version(NOON - 2 * HOUR), version(NOON - 1)]
    found = find_obsolete(
        files_of(new, *old),
        DatasetInfo("birds", splits=(new,)),
        "train",
        replaced=None,
        now=NOON,
        retention=0,
    )
    assert set(found) == files_of(*old)


FOREIGN = [
    *files_of(*(version(NOON - 99 * HOUR, name) for name in ("test", "train-more", "trai"))),
    *files_of(version(NOON - 99 * HOUR), dataset="bird"),
    *files_of(version(NOON - 99 * HOUR), dataset="my-birds"),
    "birds-train.tfrecord",
    "birds-train.backup.tfrecord-00000-of-00001",
    "birds-train.20000101T000000-0123abcd.tfrecord-00000-of-00001.gz",
    "birds-train.20000101T000000-0123ABCD.tfrecord-00000-of-00001",
    "birds-train.index.json.old",
    "notes.txt",
    ".covey-train.partial",
]
TIMES = st.none() | st.integers(NOON - 100 * HOUR, NOON)


@settings(max_examples=40)
@given(st.tuples(TIMES, TIMES, TIMES), st.booleans(), st.sampled_from([0, 60]))
def test_current_and_foreign_files_are_not_obsolete(times, keeps, retention):
    new, old, test = (
        version(*each) for each in zip(times, ("train", "train", "test"), strict=True)
    )
    kept = files_of(new, test, *([old] if keeps else [])) | set(FOREIGN)
    found = find_obsolete(
        sorted(kept | files_of(version(NOON - 99 * HOUR))),
        DatasetInfo("birds", splits=(new, test)),
        "train",
        replaced=old if keeps else None,
        now=NOON,
        retention=retention,
    )
    assert kept.isdisjoint(found)
