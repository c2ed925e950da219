"""The contract of storages, for every kind of them; files are put there by other programs."""

import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from locations import content, location, memory_location, read_ranges
from servers import s3_server, stand_alone

from covey import untrusted
from covey.errors import FileChangedError, StorageError, StorageNotFoundError
from covey.storage import is_remote, open_storage, remote
from covey.storage.errors import UnsupportedOperationError

KINDS = ["local", "memory", "asynchronous", "blocking", "http", "s3"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def s3():
    with s3_server() as options:
        client = boto3.client(
            "s3",
            endpoint_url=options["client_kwargs"]["endpoint_url"],
            aws_access_key_id=options["key"],
            aws_secret_access_key=options["secret"],
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="birds")
        yield open_storage("s3://birds", options), client
        client.close()


@pytest.fixture(params=KINDS)
def place(request, tmp_path, s3, monkeypatch):
    monkeypatch.setattr(s3[0], "_cache", None)  # the cache of each test is another one
    with location(request.param, tmp_path, s3) as found:
        yield found


@pytest.fixture(params=[kind for kind in KINDS if kind != "http"])
def writable(request, tmp_path, s3):
    with location(request.param, tmp_path, s3) as found:
        yield found


@pytest.fixture(params=[kind for kind in KINDS if kind != "local"])
def remote_place(request, tmp_path, s3, monkeypatch):
    monkeypatch.setattr(s3[0], "_cache", None)
    with location(request.param, tmp_path, s3) as found:
        yield found


# Paths.


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bucket/x", True),
        ("https://host/x?y=1", True),
        ("memory://x", True),
        ("simplecache::s3://bucket/x", True),
        ("zip://a::/data/x.zip", True),
        ("file:///x", False),
        ("local://x", False),
        ("simplecache::file:///x", False),
        ("C:\\x", False),
        ("C://x", False),
        ("/x::y", False),
    ],
)
def test_is_remote(path, expected):
    assert is_remote(path) == expected


@pytest.mark.parametrize(
    ("directory", "name", "path"),
    [
        ("s3://bucket/a/", "x", "s3://bucket/a/x"),
        ("s3://bucket", "x/y", "s3://bucket/x/y"),
        ("memory:///a", "x", "memory://a/x"),
        ("http://host/a?key=1", "x y", "http://host/a/x%20y"),
        ("simplecache::s3://bucket/a", "x", "simplecache::s3://bucket/a/x"),
        ("zip://::memory://a.zip", "x", "zip://x::memory://a.zip"),
    ],
)
def test_urls_are_joined_and_split(directory, name, path):
    storage = open_storage(directory)
    assert storage.join(directory, name) == storage.clean(path) == path
    assert storage.name(path) == name.rpartition("/")[2]
    assert storage.join(storage.parent(path), storage.name(path)) == path


@given(st.text(min_size=1).filter(lambda name: "/" not in name))
def test_any_name_can_be_in_a_url(name):
    storage = open_storage("https://host/a?key=1")
    assert storage.name(storage.join("https://host/a?key=1", name)) == name


def test_local_paths_are_joined_and_split(tmp_path):
    storage = open_storage("data")
    assert storage.clean(f"file://{tmp_path}/") == storage.clean(tmp_path) == str(tmp_path)
    assert storage.clean("data") == os.path.abspath("data")
    path = storage.join(str(tmp_path), "x")
    assert (storage.parent(path), storage.name(path)) == (str(tmp_path), "x")


def test_paths_of_other_storages_are_refused(tmp_path):
    for storage in (open_storage("s3://bucket"), open_storage(tmp_path)):
        with pytest.raises(StorageError) as caught:
            storage.read("memory://x")
        assert caught.value.path == "memory://x"
    with pytest.raises(StorageError, match="loses a slash"):
        open_storage(Path("s3://bucket/x"))


def test_fsspec_is_imported_for_urls_only():
    code = (
        "import sys, covey.storage as s, covey.reading; s.open_storage('x').exists('x'); "
        "assert 'fsspec' not in sys.modules; s.open_storage('memory://x'); "
        "assert 'fsspec' in sys.modules and 's3fs' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Reading.


def test_files_and_directories_exist(place):
    place.put("a/x", b"12345")
    found = {name: place.storage.exists(place.at(name)) for name in ("a", "a/x", "a/y", "b")}
    assert found == {"a": True, "a/x": True, "a/y": False, "b": False}
    found = {name: place.storage.is_directory(place.at(name)) for name in ("a", "a/x", "b")}
    assert found == {"a": True, "a/x": False, "b": False}


def test_stat(place):
    place.put("x", b"12345")
    place.put("y", b"")
    found = place.storage.stat([place.at("x"), place.at("no"), place.at("y"), place.at("x")])
    assert [None if each is None else each.size for each in found] == [5, None, 0, 5]
    assert found[0] == found[3]
    assert found[0].version
    place.put("x", b"54321")
    assert place.storage.stat([place.at("x")]) != [found[0]]
    assert place.storage.stat([]) == []


def test_list(place):
    for name in ["b", "a", "sub/c", "sub/deep/d", ".hidden", "sub/.hidden/e"]:
        place.put(name, b"1")
    assert place.storage.list(place.root) == [place.at("a"), place.at("b")]
    below = place.storage.list(place.root, recursive=True)
    assert below == [place.at(name) for name in ["a", "b", "sub/c", "sub/deep/d"]]
    place.put("sub/new", b"1")
    assert place.storage.list(place.at("sub")) == [place.at("sub/c"), place.at("sub/new")]
    for recursive in (False, True):
        with pytest.raises(FileNotFoundError):
            place.storage.list(place.at("no"), recursive=recursive)


PATTERNS = {
    "*.rec": ["a.rec", "b b.rec"],
    "[bc]*.rec": ["b b.rec"],
    "*/*.rec": ["sub/c.rec"],
    "**/*.rec": ["a.rec", "b b.rec", "sub/c.rec", "sub/deep/d.rec"],
    "sub/**": ["sub/c.rec", "sub/deep/d.rec", "sub/other"],
    ".h*": [".h.rec"],
    "a.rec": ["a.rec"],
    "no*": [],
    "no": [],
    "no/*": [],
}


def test_glob(place):
    for name in ["a.rec", "b b.rec", "sub/c.rec", "sub/other", "sub/deep/d.rec", ".h.rec"]:
        place.put(name, b"1")
    for pattern, names in PATTERNS.items():
        found = place.storage.glob(f"{place.root}/{pattern}")
        assert found == [place.at(name) for name in names], pattern
        assert place.storage.is_pattern(f"{place.root}/{pattern}") == bool(set("*[") & {*pattern})


def test_read_is_limited(place, monkeypatch):
    monkeypatch.setattr(remote, "MAX_METADATA_BYTES", 100_000)
    monkeypatch.setattr(untrusted.read_file, "__defaults__", (100_000,))
    place.put("x y", content(100_000))
    place.put("z", bytes(100_001))
    assert place.storage.read(place.at("x y")) == content(100_000)
    with pytest.raises(StorageError, match=r"100,001 bytes.*; must be at most 100,000") as caught:
        place.storage.read(place.at("z"))
    assert caught.value.path == place.at("z")


def test_missing_files(place):
    place.put("x", b"1")
    methods = ["read", "open_stream", *(["open_cached"] if place.storage.is_remote else [])]
    for method in methods:
        with pytest.raises(StorageNotFoundError) as caught:
            getattr(place.storage, method)(place.at("no"))
        assert caught.value.path == place.at("no")


def test_stream(place):
    data = content(3_000_000)
    place.put("x", data)
    with place.storage.open_stream(place.at("x")) as stream:
        assert stream.read(10) == data[:10]
        assert stream.seek(0) == 0
        assert stream.read() == data
        assert stream.read() == b""
        assert stream.seek(-5, os.SEEK_END) == len(data) - 5
        assert stream.read(9) == data[-5:]
        assert stream.seek(1_000_000) == 1_000_000
        assert stream.read(9) == data[1_000_000:1_000_009]
        assert stream.tell() == 1_000_009
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)


def test_empty_files(place):
    place.put("x", b"")
    with place.storage.open_stream(place.at("x")) as stream:
        assert stream.read() == b""
    if place.storage.is_remote:
        assert read_ranges(place.storage.open_cached(place.at("x")), [(0, 0)]) == [b""]


def test_random_access(remote_place):
    data = content(200_005)
    remote_place.put("x", data)
    pairs = [(5, 9), (65535, 65537), (7, 7), (200_000, 200_005), (0, 70_000)]
    opened = remote_place.storage.open_cached(remote_place.at("x"))
    for _ in range(2):
        assert read_ranges(opened, pairs) == [data[begin:end] for begin, end in pairs]
    opened.close()


def test_storages_are_picklable(place):
    place.put("x", b"12345")
    place.storage.read(place.at("x"))
    again = pickle.loads(pickle.dumps(place.storage))
    assert again.read(place.at("x")) == b"12345"
    assert again.is_remote == place.storage.is_remote == is_remote(place.root)


@pytest.mark.parametrize("size", [5_000_000, 100_000])
def test_a_file_that_changes_is_not_mixed(remote_place, size):
    old, new = content(5_000_000), content(size, seed=1)
    remote_place.put("x", old)
    opened = remote_place.storage.open_cached(remote_place.at("x"))
    is_complete = remote_place.root.startswith("http")  # that server ignores ranges
    assert read_ranges(opened, [(0, 5)]) == [old[:5]]
    with remote_place.storage.open_stream(remote_place.at("x")) as stream:
        assert stream.read(5) == old[:5]
        remote_place.put("x", new)
        if is_complete:
            assert stream.read() == old[5:]
        else:
            with pytest.raises(FileChangedError) as caught:
                stream.read()
            assert caught.value.path == remote_place.at("x")
            with pytest.raises(FileChangedError):
                read_ranges(opened, [(4_000_000, 4_000_005)])
    assert read_ranges(opened, [(0, 5)]) == [old[:5]]
    again = remote_place.storage.open_cached(remote_place.at("x"))
    assert read_ranges(again, [(0, 5)]) == [new[:5]]


# Chains of URLs.


def test_an_archive():
    place = memory_location()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name in ["a/x", "a/y", "z"]:
            file.writestr(name, content(200_000, seed=ord(name[-1])))
    place.put("a.zip", archive.getvalue())
    root = f"zip://::{place.at('a.zip')}"
    storage = open_storage(root)
    below = [storage.join(root, name) for name in ["a/x", "a/y", "z"]]
    assert storage.list(root, recursive=True) == below
    assert storage.list(storage.join(root, "a")) == below[:2]
    assert storage.read(below[2]) == content(200_000, seed=ord("z"))
    found = read_ranges(storage.open_cached(below[1]), [(100_000, 150_000)])
    assert found == [content(200_000, seed=ord("y"))[100_000:150_000]]


def test_a_cache_of_fsspec(s3, tmp_path):
    with location("s3", tmp_path, s3) as place:
        place.put("x", content(200_000))
        root = f"simplecache::{place.root}"
    storage = open_storage(root, {"s3": s3[0]._options})
    path = storage.join(root, "x")
    assert storage.read(path) == content(200_000)
    assert storage.list(root) == [path]
    found = read_ranges(storage.open_cached(path), [(100_000, 150_000)])
    assert found == [content(200_000)[100_000:150_000]]


# Writing.


def test_write(writable):
    for data in [b"first", b"", content(200_000)]:
        writable.storage.write(writable.at("new/x"), data)
        assert writable.storage.read(writable.at("new/x")) == data
    assert writable.storage.list(writable.root, recursive=True) == [writable.at("new/x")]


def test_replace(writable):
    storage, path = writable.storage, writable.at("x")
    storage.replace(path, b"first", None)
    first = storage.stat([path])[0]
    storage.replace(path, b"second", first)
    assert storage.read(path) == b"second"
    if writable.root.startswith("s3"):
        for expected in (first, None):
            with pytest.raises(FileChangedError) as caught:
                storage.replace(path, b"third", expected)
            assert caught.value.path == path
        assert storage.read(path) == b"second"


def test_upload(writable, tmp_path):
    (tmp_path / "source").write_bytes(content(200_000))
    for _ in range(2):
        writable.storage.upload(str(tmp_path / "source"), writable.at("new/x"))
    assert writable.storage.read(writable.at("new/x")) == content(200_000)
    assert (tmp_path / "source").read_bytes() == content(200_000)
    with pytest.raises(FileNotFoundError, match="nothing"):
        writable.storage.upload(str(tmp_path / "nothing"), writable.at("y"))


def test_copy_and_remove(writable):
    for name in ["x", "y", "z"]:
        writable.put(name, content(200_000))
    writable.storage.remove([writable.at(name) for name in ["x", "no", "z"]])
    assert writable.storage.list(writable.root) == [writable.at("y")]
    writable.storage.copy(writable.at("y"), writable.at("copy"))
    assert writable.storage.read(writable.at("copy")) == content(200_000)
    with pytest.raises(FileNotFoundError):
        writable.storage.copy(writable.at("no"), writable.at("z"))


def test_other_clients_read_what_was_written(s3, tmp_path):
    with location("s3", tmp_path, s3) as place:
        place.storage.write(place.at("x"), b"12345")
    key = place.at("x").removeprefix("s3://birds/")
    assert s3[1].get_object(Bucket="birds", Key=key)["Body"].read() == b"12345"


def test_missing_buckets_are_not_created(s3):
    with pytest.raises(StorageNotFoundError) as caught:
        s3[0].write("s3://missing/x", b"1")
    assert caught.value.path == "s3://missing/x"
    assert not s3[0].exists("s3://missing")


def test_operations_that_a_server_does_not_support(tmp_path, s3):
    with location("http", tmp_path, s3) as place:
        place.put("x", b"1")
        for use in (
            lambda: place.storage.write(place.at("x"), b"1"),
            lambda: place.storage.remove([place.at("x")]),
        ):
            with pytest.raises(UnsupportedOperationError) as caught:
                use()
            assert caught.value.path == place.at("x")


# The local file system.


@pytest.fixture
def local(tmp_path, s3):
    with location("local", tmp_path, s3) as found:
        yield found


def test_local_files_are_replaced_atomically(local, monkeypatch):
    local.put("x", b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        local.storage.write(local.at("x"), b"new")
    assert os.listdir(local.root) == ["x"]
    assert local.storage.read(local.at("x")) == b"old"


def test_cycles_of_symbolic_links_end(local):
    local.put("a/x", b"1")
    os.symlink("..", local.at("a/up"))
    os.symlink("a", local.at("b"))
    assert local.storage.list(local.root, recursive=True) == [local.at("a/x")]
    assert local.storage.glob(local.at("b*/x")) == [local.at("b/x")]


def test_symbolic_links_are_followed_in_order(local, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").write_bytes(b"1")
    local.put("y", b"1")
    for name in ("c", "a", "b"):
        os.symlink(tmp_path / "other", local.at(name))
    os.symlink("self", local.at("self"))
    found = local.storage.list(local.root, recursive=True)
    assert found == [local.at("a/x"), local.at("y")]
