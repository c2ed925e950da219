"""The contract of storages, for every kind of storage; other programs write the files to read."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import s3_bucket, stand_alone
from storages import content, location, read_ranges

from covey.errors import FileChangedError, StorageError, StorageNotFoundError
from covey.storage import is_remote, open_storage
from covey.storage.errors import UnsupportedOperationError

KINDS = ["local", "memory", "asynchronous", "blocking", "http", "s3"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def s3():
    with s3_bucket() as found:
        yield found


@pytest.fixture
def place(request, tmp_path, s3):
    with location(request.param, tmp_path, s3) as found:
        yield found


def with_kinds(*excluded):
    """Run a test for all kinds of storages except some."""
    kinds = [kind for kind in KINDS if kind not in excluded]
    return pytest.mark.parametrize("place", kinds, indirect=True)


every_kind = with_kinds()
remote_kinds = with_kinds("local")
writable_kinds = with_kinds("http")


# Paths.


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://bucket/x", True),
        ("https://host/x?y=1", True),
        ("memory://x", True),
        ("simplecache::s3://bucket/x", True),
        ("zip://a::s3://bucket/x.zip", True),
        ("file:///x", False),
        ("local://x", False),
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
    ],
)
def test_join_and_split_urls(directory, name, path):
    storage = open_storage(directory)
    assert storage.join(directory, name) == storage.clean(path) == path
    assert storage.name(path) == name.rpartition("/")[2]
    assert storage.join(storage.parent(path), storage.name(path)) == path


@settings(max_examples=30)
@given(st.text(min_size=1).filter(lambda name: "/" not in name))
def test_quote_names_in_urls(name):
    storage = open_storage("https://host/a?key=1")
    assert storage.name(storage.join("https://host/a?key=1", name)) == name


def test_join_and_split_local_paths(tmp_path):
    storage = open_storage("data")
    assert storage.clean(f"file://{tmp_path}/") == storage.clean(tmp_path) == str(tmp_path)
    assert storage.clean("data") == os.path.abspath("data")
    path = storage.join(str(tmp_path), "x")
    assert (storage.parent(path), storage.name(path)) == (str(tmp_path), "x")


def test_path_of_another_storage(tmp_path):
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


@every_kind
def test_exists_and_is_directory(place):
    place.put("a/x", b"12345")
    found = {name: place.storage.exists(place.at(name)) for name in ("a", "a/x", "a/y", "b")}
    assert found == {"a": True, "a/x": True, "a/y": False, "b": False}
    found = {name: place.storage.is_directory(place.at(name)) for name in ("a", "a/x", "b")}
    assert found == {"a": True, "a/x": False, "b": False}


@every_kind
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


@every_kind
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


@every_kind
def test_glob(place):
    for name in ["a.rec", "b b.rec", "sub/c.rec", "sub/other", "sub/deep/d.rec", ".h.rec"]:
        place.put(name, b"1")
    for pattern, names in PATTERNS.items():
        found = place.storage.glob(f"{place.root}/{pattern}")
        assert found == [place.at(name) for name in names], pattern
        assert place.storage.is_pattern(f"{place.root}/{pattern}") == bool(set("*[") & {*pattern})


@every_kind
def test_read_is_limited(place):
    place.put("x y", content(100_000))
    place.put("z", bytes(100_001))
    assert place.storage.read(place.at("x y"), 100_000) == content(100_000)
    with pytest.raises(StorageError, match=r"100,001 bytes.*; must be at most 100,000") as caught:
        place.storage.read(place.at("z"), 100_000)
    assert caught.value.path == place.at("z")


@every_kind
def test_missing_files(place):
    place.put("x", b"1")
    methods = ["read", "open_stream", *(["open_cached"] if place.storage.is_remote else [])]
    for method in methods:
        with pytest.raises(StorageNotFoundError) as caught:
            getattr(place.storage, method)(place.at("no"))
        assert caught.value.path == place.at("no")


@every_kind
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


@every_kind
def test_empty_files(place):
    place.put("x", b"")
    with place.storage.open_stream(place.at("x")) as stream:
        assert stream.read() == b""
    if place.storage.is_remote:
        assert read_ranges(place.storage.open_cached(place.at("x")), [(0, 0)]) == [b""]


@remote_kinds
def test_random_access(place):
    data = content(200_005)
    place.put("x", data)
    pairs = [(5, 9), (65535, 65537), (7, 7), (200_000, 200_005), (0, 70_000)]
    opened = place.storage.open_cached(place.at("x"))
    for _ in range(2):
        assert read_ranges(opened, pairs) == [data[begin:end] for begin, end in pairs]
    opened.close()


@every_kind
def test_storages_are_picklable(place):
    place.put("x", b"12345")
    place.storage.read(place.at("x"))
    again = pickle.loads(pickle.dumps(place.storage))
    assert again.read(place.at("x")) == b"12345"
    assert again.is_remote == place.storage.is_remote == is_remote(place.root)


@remote_kinds
@pytest.mark.parametrize("size", [5_000_000, 100_000])
def test_states_of_a_file_are_not_mixed(place, size):
    old, new = content(5_000_000), content(size, seed=1)
    place.put("x", old)
    opened = place.storage.open_cached(place.at("x"))
    is_complete = place.root.startswith("http")  # that server ignores ranges
    assert read_ranges(opened, [(0, 5)]) == [old[:5]]
    with place.storage.open_stream(place.at("x")) as stream:
        assert stream.read(5) == old[:5]
        place.put("x", new)
        if is_complete:
            assert stream.read() == old[5:]
        else:
            with pytest.raises(FileChangedError) as caught:
                stream.read()
            assert caught.value.path == place.at("x")
            with pytest.raises(FileChangedError):
                read_ranges(opened, [(4_000_000, 4_000_005)])
    assert read_ranges(opened, [(0, 5)]) == [old[:5]]
    again = place.storage.open_cached(place.at("x"))
    assert read_ranges(again, [(0, 5)]) == [new[:5]]


# Writing.


@writable_kinds
def test_write(place):
    for data in [b"first", b"", content(200_000)]:
        place.storage.write(place.at("new/x"), data)
        assert place.storage.read(place.at("new/x")) == data
    assert place.storage.list(place.root, recursive=True) == [place.at("new/x")]


@writable_kinds
def test_replace(place):
    storage, path = place.storage, place.at("x")
    storage.replace(path, b"first", None)
    first = storage.stat([path])[0]
    storage.replace(path, b"second", first)
    assert storage.read(path) == b"second"
    if place.root.startswith("s3"):
        for expected in (first, None):
            with pytest.raises(FileChangedError) as caught:
                storage.replace(path, b"third", expected)
            assert caught.value.path == path
        assert storage.read(path) == b"second"


@writable_kinds
def test_upload(place, tmp_path):
    (tmp_path / "source").write_bytes(content(200_000))
    for _ in range(2):
        place.storage.upload(str(tmp_path / "source"), place.at("new/x"))
    assert place.storage.read(place.at("new/x")) == content(200_000)
    assert (tmp_path / "source").read_bytes() == content(200_000)
    with pytest.raises(FileNotFoundError, match="nothing"):
        place.storage.upload(str(tmp_path / "nothing"), place.at("y"))


@writable_kinds
def test_copy_and_remove(place):
    for name in ["x", "y", "z"]:
        place.put(name, content(200_000))
    place.storage.remove([place.at(name) for name in ["x", "no", "z"]])
    assert place.storage.list(place.root) == [place.at("y")]
    place.storage.copy(place.at("y"), place.at("copy"))
    assert place.storage.read(place.at("copy")) == content(200_000)
    with pytest.raises(FileNotFoundError):
        place.storage.copy(place.at("no"), place.at("z"))


def test_other_clients_read_what_was_written(s3):
    storage = open_storage("s3://bucket", s3.options)
    storage.write("s3://bucket/x", b"12345")
    assert s3.client.get_object(Bucket="bucket", Key="x")["Body"].read() == b"12345"


def test_missing_buckets_are_not_created(s3):
    storage = open_storage("s3://missing", s3.options)
    with pytest.raises(StorageNotFoundError) as caught:
        storage.write("s3://missing/x", b"1")
    assert caught.value.path == "s3://missing/x"
    assert not storage.exists("s3://missing")


def test_unsupported_operations(tmp_path, s3):
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


def test_local_write_is_atomic(local, monkeypatch):
    local.put("x", b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        local.storage.write(local.at("x"), b"new")
    assert os.listdir(local.root) == ["x"]
    assert local.storage.read(local.at("x")) == b"old"


def test_cycles_of_symbolic_links(local):
    local.put("a/x", b"1")
    os.symlink("..", local.at("a/up"))
    os.symlink("a", local.at("b"))
    os.symlink("self", local.at("self"))
    os.mkdir(local.at("z"))
    os.symlink("../a", local.at("z/a"))
    assert local.storage.list(local.root, recursive=True) == [local.at("a/x")]
    assert local.storage.glob(local.at("b*/x")) == [local.at("b/x")]
