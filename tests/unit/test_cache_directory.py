"""The directory of the cache: its path, its permissions and its limit."""

import os
import sys
import tempfile

import pytest

from covey.errors import StorageError
from covey.storage import cache
from covey.storage.cache import cache_directory, cache_limit


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    for name in ("COVEY_CACHE", "COVEY_CACHE_BYTES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


OTHER_USER = 12345


@pytest.fixture
def owners(monkeypatch):
    """Owners of paths in the results of ``stat``; without root, chown is denied."""
    owners, real = {}, os.stat

    def stat(path, *args, **options):
        found = real(path, *args, **options)
        uid = owners.get(str(path), found.st_uid)
        return os.stat_result((*found[:4], uid, *found[5:]))

    monkeypatch.setattr(os, "stat", stat)
    return owners


def test_path_of_each_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "below" / "mine"))
    assert cache_directory() == tmp_path / "below" / "mine"
    assert (tmp_path / "below" / "mine").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("COVEY_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "covey"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "covey"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == tmp_path / "home" / "Library" / "Caches" / "covey"
    (tmp_path / "link").symlink_to(tmp_path / "home")
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "link"))
    assert cache_directory() == tmp_path / "link"


def no_home(monkeypatch, tmp_path, owners):
    def home():
        raise RuntimeError

    monkeypatch.setattr(cache.Path, "home", home)


def unwritable_home(monkeypatch, tmp_path, owners):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))


def home_of_another_user(monkeypatch, tmp_path, owners):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".cache" / "covey").mkdir(parents=True)
    owners[str(tmp_path / "home" / ".cache" / "covey")] = OTHER_USER


@pytest.mark.parametrize("change", [no_home, unwritable_home, home_of_another_user])
def test_no_directory_of_the_user(monkeypatch, tmp_path, owners, change):
    change(monkeypatch, tmp_path, owners)
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_directory() == tmp_path / f"covey-cache-{os.getuid()}"
    owners[str(cache_directory())] = OTHER_USER
    with pytest.raises(StorageError, match="belongs to user 12345"):
        cache_directory()


def test_refused_directories(monkeypatch, tmp_path, owners):
    directory = tmp_path / "mine"
    monkeypatch.setenv("COVEY_CACHE", str(directory))
    directory.write_bytes(b"a file")
    with pytest.raises(StorageError, match="not a writable directory; set COVEY_CACHE") as caught:
        cache_directory()
    assert caught.value.path == str(directory)
    directory.unlink()
    for name in (".", "blocks"):
        (directory / name).mkdir(parents=True, exist_ok=True)
        owners.clear()
        owners[str(directory / name)] = OTHER_USER
        with pytest.raises(StorageError, match="belongs to user 12345; set COVEY_CACHE") as caught:
            cache.DiskCache(1).entry_path("blocks", "x")
        assert caught.value.path == str(directory / name)
    owners.clear()
    (directory / "blocks").rmdir()
    (directory / "blocks").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="not a writable directory"):
        cache.DiskCache(1).entry_path("blocks", "x")


def test_modes(monkeypatch, tmp_path):
    """Only the subdirectories are private: the directory may be one that others list."""
    directory = tmp_path / "mine"
    (directory / "blocks").mkdir(parents=True)
    for path in (directory, directory / "blocks"):
        path.chmod(0o775)
    monkeypatch.setenv("COVEY_CACHE", str(directory))
    cache.DiskCache(1).entry_path("blocks", "x")
    modes = [path.stat().st_mode & 0o7777 for path in (directory, directory / "blocks")]
    assert modes == [0o775, 0o700]


def test_cache_limit(monkeypatch):
    assert cache_limit(None) == 16 << 30
    monkeypatch.setenv("COVEY_CACHE_BYTES", "1000")
    assert (cache_limit(None), cache_limit(7)) == (1000, 7)
    monkeypatch.setenv("COVEY_CACHE_BYTES", "much")
    with pytest.raises(ValueError, match="COVEY_CACHE_BYTES is 'much'"):
        cache_limit(None)
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"cache_bytes is {value}"):
            cache_limit(value)
