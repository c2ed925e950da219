"""Indexes of remote datasets, and their copies in the cache."""

import resource
import stat

import pytest
from opened import opened, put_numbers
from storages import memory_location
from written import limit, write

import covey
from covey.errors import StorageError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def birds(tmp_path):
    examples = [{"x": n, "label": n % 3} for n in range(90)]
    write(examples, tmp_path / "birds", label="label", shuffle=False)
    return tmp_path / "birds"


def upload(directory):
    """Copy a dataset to a remote storage, and return its URL."""
    location = memory_location()
    for path in directory.iterdir():
        location.put(path.name, path.read_bytes())
    return location.root


def test_index_cannot_be_copied_to_the_cache(birds, cache):
    url = upload(birds)
    with limit(resource.RLIMIT_FSIZE, 600), pytest.raises(StorageError) as caught:
        opened(url, split="train")
    assert caught.value.path == str(cache)
    assert "File too large" in caught.value.reason
    assert "COVEY_CACHE" in caught.value.remedy
    (cache / "indexes").rename(cache / "other")
    (cache / "indexes").write_bytes(b"not a directory")
    with pytest.raises(StorageError) as caught:
        opened(url, split="train")
    assert str(cache) in caught.value.path


def test_index_is_copied_up_to_the_size_of_its_records(birds, cache):
    (array,) = birds.glob("*.index.npy")
    size = array.stat().st_size
    with open(array, "ab") as file:
        file.truncate(size + (8 << 20))
    assert len(opened(upload(birds), split="train")) == 90
    (copy,) = cache.rglob(array.name)
    assert size <= copy.stat().st_size < size + (1 << 16)


def test_files_of_the_cache_are_private(birds, cache, tmp_path):
    cache.mkdir(mode=0o755)
    cache.chmod(0o755)
    zlib = put_numbers(tmp_path / "z.tfrecord.zz", range(1000), compression="ZLIB")
    assert opened(zlib)[5]["x"] == 5
    assert covey.open(upload(birds), split="train", progress=False)[0]["x"] == 0
    found = [*cache.rglob("*")]
    parents = {path.parent.name for path in found} | {path.parent.parent.name for path in found}
    assert parents >= {"blocks", "indexes", "unpacked"}
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in found}
    assert modes == {(True, 0o700), (False, 0o600)}
    assert stat.S_IMODE(cache.stat().st_mode) == 0o755
