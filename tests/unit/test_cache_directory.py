"""The directory of the cache: its path, its permissions and its limit."""

import os
import sys

import pytest

from covey.errors import StorageError
from covey.storage import cache, cache_directory, cache_limit


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    for name in ("COVEY_CACHE", "COVEY_CACHE_BYTES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))


def fallback(tmp_path):
    return tmp_path / f"covey-cache-{os.getuid()}"


OTHER_USER = 12345


@pytest.fixture
def owners(monkeypatch):
    """Owners of paths in the results of ``stat`` and ``lstat``; without root, chown is denied."""
    owners = {}

    def replaced(name, real):
        def call(path, *args, **options):
            found = real(path, *args, **options)
            uid = owners.get((name, str(path)), found.st_uid)
            return os.stat_result((*found[:4], uid, *found[5:]))

        return call

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, replaced(name, getattr(os, name)))
    return owners


def give_away(owners, path, *calls):
    for call in calls or ("stat", "lstat"):
        owners[call, str(path)] = OTHER_USER


def foreign_directory(owners, directory):
    directory.mkdir(parents=True)
    give_away(owners, directory)


def foreign_link(owners, directory):
    (directory.parent / "target").mkdir(parents=True)
    directory.symlink_to(directory.parent / "target")
    give_away(owners, directory, "lstat")


def foreign_target(owners, directory):
    (directory.parent / "target").mkdir(parents=True)
    directory.symlink_to(directory.parent / "target")
    give_away(owners, directory, "stat")


def test_path_of_each_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "mine"))
    assert cache_directory() == tmp_path / "mine"
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("COVEY_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "covey"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "covey"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == tmp_path / "home" / "Library" / "Caches" / "covey"


def test_directory_is_not_writable(monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert cache_directory() == fallback(tmp_path)
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="COVEY_CACHE.*is not writable"):
        assert cache_directory() == fallback(tmp_path)


@pytest.mark.parametrize("make", [foreign_directory, foreign_link, foreign_target])
@pytest.mark.parametrize(
    ("variable", "below"),
    [("COVEY_CACHE", "."), ("XDG_CACHE_HOME", "covey"), ("HOME", ".cache/covey")],
)
def test_directory_of_another_user(monkeypatch, tmp_path, owners, variable, below, make):
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    make(owners, tmp_path / "mine" / below)
    with pytest.warns(UserWarning, match=r"mine.* using .*covey-cache-"):
        assert cache_directory() == fallback(tmp_path)
    assert fallback(tmp_path).stat().st_mode & 0o7777 == 0o700


def test_parent_of_another_user(monkeypatch, tmp_path, owners):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    foreign_directory(owners, tmp_path / "theirs")
    with pytest.warns(UserWarning, match="directory of another user"):
        assert cache_directory() == fallback(tmp_path)


@pytest.mark.parametrize("mode", [0o770, 0o1777])
@pytest.mark.parametrize("variable", ["COVEY_CACHE", "XDG_CACHE_HOME"])
def test_mode_of_an_own_directory(monkeypatch, tmp_path, variable, mode):
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    directory = tmp_path / "mine" / {"COVEY_CACHE": "."}.get(variable, "covey")
    directory.mkdir(parents=True)
    directory.chmod(mode)
    expected = directory
    if variable == "COVEY_CACHE" and mode == 0o1777:  # sticky, as /tmp is
        expected = directory / f"covey-{os.getuid()}"
    assert cache_directory() == expected
    assert expected.stat().st_mode & 0o7777 == 0o700
    if expected != directory:
        assert directory.stat().st_mode & 0o7777 == mode


@pytest.mark.parametrize("mode", [0o777, 0o2775])
def test_shared_directory(monkeypatch, tmp_path, owners, mode):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "shared"))
    foreign_directory(owners, tmp_path / "shared")
    (tmp_path / "shared").chmod(mode)
    own = tmp_path / "shared" / f"covey-{os.getuid()}"
    assert cache_directory() == own
    assert own.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "shared").stat().st_mode & 0o7777 == mode
    give_away(owners, own)
    with pytest.warns(UserWarning, match=r"belongs to user 12345; using .*covey-cache-"):
        assert cache_directory() == fallback(tmp_path)


@pytest.mark.parametrize("make", [foreign_directory, foreign_link])
def test_subdirectory_of_another_user(monkeypatch, tmp_path, owners, make):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "mine"))
    make(owners, cache_directory() / "blocks")
    with pytest.raises(StorageError) as caught:
        cache.DiskCache(1).entry_path("blocks", "x")
    assert caught.value.path == str(tmp_path / "mine" / "blocks")


def test_no_usable_directory(monkeypatch, tmp_path, owners):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    foreign_directory(owners, fallback(tmp_path))
    with pytest.raises(StorageError) as caught:
        cache_directory()
    assert caught.value.path == str(fallback(tmp_path))
    assert "set COVEY_CACHE" in caught.value.remedy


def test_no_home_directory(monkeypatch, tmp_path):
    def home():
        raise RuntimeError

    monkeypatch.setattr(cache.Path, "home", home)
    assert cache_directory() == fallback(tmp_path)
    (tmp_path / "link").symlink_to(cache_directory())
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "link"))
    assert cache_directory() == tmp_path / "link"


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
