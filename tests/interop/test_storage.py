"""Files on disk and behind URLs, with real servers, Amazon's own client and fsspec as judges."""

import asyncio
import errno
import io
import itertools
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import boto3
import fsspec
import numpy as np
import pytest
import servers
from aiobotocore.session import AioSession
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import directory_server, range_server, s3_server, stand_alone

from covey import untrusted
from covey._core import crc32c
from covey.errors import (
    ClosedError,
    FileChangedError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
)
from covey.storage import (
    Storage,
    cache,
    cache_directory,
    cache_entry,
    cache_limit,
    fetch_many,
    filesystem,
    is_remote,
    open_storage,
    range_cache,
    remote,
    retry,
)
from covey.storage.errors import ErrorKind, classify
from covey.storage.filesystem import RemoteFilesystem
from covey.urls import Url

BLOCK = cache_entry.BLOCK_BYTES
COUNTER = itertools.count()


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    stand_alone(monkeypatch, tmp_path)


def content(size, seed=0):
    return np.random.default_rng(seed).bytes(size)


@dataclass
class Place:
    """A directory in a storage, and a way to put files there that covey has no part in."""

    storage: Storage
    root: str
    put: Any

    def at(self, name):
        return self.storage.join(self.root, name)


@pytest.fixture(scope="module")
def s3():
    with s3_server() as options:
        client = boto3.client(
            "s3",
            endpoint_url=options["client_kwargs"]["endpoint_url"],
            aws_access_key_id="nobody",
            aws_secret_access_key="nothing",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="birds")
        yield open_storage("s3://birds", options), client
        client.close()


@pytest.fixture
def s3_place(s3, monkeypatch):
    storage, client = s3
    monkeypatch.setattr(storage, "_cache", None)  # every test has its own
    directory = f"folder{next(COUNTER)}"

    def put(name, data):
        client.put_object(Bucket="birds", Key=f"{directory}/{name}", Body=data)

    return Place(storage, f"s3://birds/{directory}", put)


@pytest.fixture
def memory_place():
    root = f"memory://folder{next(COUNTER)}"
    files = fsspec.filesystem("memory")
    return Place(
        open_storage(root), root, lambda name, data: files.pipe_file(f"{root}/{name}", data)
    )


class Shelf(LocalFileSystem):
    """A driver without an event loop, for a disk with real directories."""

    protocol = "shelf"

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(path.removeprefix("shelf://"))


class Nest(AsyncFileSystemWrapper):
    """A driver with an event loop that covey knows nothing about."""

    protocol = "nest"

    def __init__(self, **options):
        super().__init__(fsspec.filesystem("memory"), **options)

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("nest://", "memory://"))


fsspec.register_implementation("shelf", Shelf, clobber=True)
fsspec.register_implementation("nest", Nest, clobber=True)


@pytest.fixture
def shelf_place(tmp_path):
    directory = tmp_path / "files"
    return Place(open_storage(f"shelf://{directory}"), f"shelf://{directory}", filing(directory))


@pytest.fixture
def nest_place(memory_place):
    root = memory_place.root.replace("memory", "nest")
    return Place(open_storage(root), root, memory_place.put)


@pytest.fixture
def local_place(tmp_path):
    return Place(open_storage(tmp_path), str(tmp_path / "files"), filing(tmp_path / "files"))


@pytest.fixture
def directory_place(tmp_path):
    with directory_server(tmp_path / "files") as url:
        yield Place(open_storage(url), url, filing(tmp_path / "files"))


def filing(directory):
    def put(name, data):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (next(COUNTER), next(COUNTER)))  # the server's clock knows seconds only

    return put


@pytest.fixture
def web():
    with range_server() as (url, objects):
        yield url, objects


@pytest.fixture(params=["local", "memory", "s3", "directory", "shelf", "nest"])
def place(request):
    return request.getfixturevalue(f"{request.param}_place")


@pytest.fixture(params=["local", "memory", "s3", "shelf", "nest"])
def writable(request):
    return request.getfixturevalue(f"{request.param}_place")


@pytest.fixture
def web_place(web):
    return Place(open_storage(web[0]), f"{web[0]}/birds", serving(web[1]))


@pytest.fixture(scope="module")
def session():
    """What takes long to make for every client of S3, and can be shared."""
    return AioSession()


@pytest.fixture
def web_s3_place(web, session):
    """The same server, with enough of S3 to read from."""
    endpoint = {"endpoint_url": web[0]}
    options = {"key": "a", "secret": "b", "client_kwargs": endpoint, "session": session}
    return Place(open_storage("s3://birds", options), "s3://birds", serving(web[1]))


def serving(objects):
    def put(name, data):
        objects.files[f"/birds/{name}"] = data

    put.objects = objects
    return put


@pytest.fixture(params=["web", "web_s3"])
def faulty(request):
    return request.getfixturevalue(f"{request.param}_place")


def ranges(*pairs):
    return tuple(np.array(each, np.int64) for each in zip(*pairs, strict=True))


def read_mapped(opened, begins, ends):
    """Read ranges in the way that covey.storage.LocalBlocks tells to."""
    while True:
        generation = opened.generation
        try:
            with open(opened.path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            opened.ensure(begins[:0], ends[:0])
            continue
        with mapped:
            opened.ensure(begins, ends)
            if opened.generation == generation:
                return [mapped[begin:end] for begin, end in zip(begins, ends, strict=True)]


def bytes_kept():
    return sum(
        cache_entry.bytes_present(str(path)) for path in (cache_directory() / "blocks").iterdir()
    )


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "remote"),
        [
            ("s3://bucket/x", True),
            ("gs://bucket", True),
            ("https://host/x?y=1", True),
            ("memory://x", True),
            ("simplecache::s3://bucket/x", True),
            ("zip://a::s3://bucket/x.zip", True),
            ("zip://a::/data/x.zip", True),
            ("file:///x", False),
            ("local://x", False),
            ("simplecache::file:///x", False),
            ("C:\\x", False),
            ("C:/x", False),
            ("C://x", False),
            ("/x", False),
            ("x", False),
            ("/x::y", False),
        ],
    )
    def test_what_is_remote(self, path, remote):
        assert is_remote(path) == remote

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
    def test_urls_are_joined_and_taken_apart(self, directory, name, path):
        storage = open_storage(directory)
        assert storage.join(directory, name) == storage.clean(path) == path
        assert storage.name(path) == name.rpartition("/")[2]
        assert storage.join(storage.parent(path), storage.name(path)) == path

    @given(st.text(min_size=1).filter(lambda name: "/" not in name))
    def test_any_name_can_be_in_a_url(self, name):
        storage = open_storage("https://host/a?key=1")
        assert storage.name(storage.join("https://host/a?key=1", name)) == name

    def test_local_paths_are_joined_and_taken_apart(self, tmp_path):
        storage = open_storage("data")
        assert storage.clean(f"file://{tmp_path}/") == storage.clean(tmp_path) == str(tmp_path)
        assert storage.clean("data") == os.path.abspath("data")
        path = storage.join(str(tmp_path), "x")
        assert (storage.parent(path), storage.name(path)) == (str(tmp_path), "x")

    def test_a_url_is_no_path(self):
        with pytest.raises(StorageError, match="loses a slash"):
            open_storage(Path("s3://bucket/x"))

    def test_other_storages_are_told_apart(self, tmp_path):
        with pytest.raises(StorageError, match="not in the storage"):
            open_storage("s3://bucket").read("memory://x")
        with pytest.raises(StorageError, match="no path of a local file"):
            open_storage(tmp_path).read("memory://x")

    def test_fsspec_is_loaded_for_urls_only(self, tmp_path):
        code = (
            "import sys, covey.storage as s; s.open_storage('x').exists('x'); "
            "assert 'fsspec' not in sys.modules; s.open_storage('memory://x'); "
            "assert 'fsspec' in sys.modules and 's3fs' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestReading:
    def test_what_is_there(self, place):
        place.put("a/x", b"12345")
        storage = place.storage
        assert storage.exists(place.at("a"))
        assert storage.exists(place.at("a/x"))
        assert not storage.exists(place.at("a/y"))
        assert storage.is_directory(place.at("a"))
        assert not storage.is_directory(place.at("a/x"))
        assert not storage.is_directory(place.at("b"))

    def test_stat(self, place):
        place.put("x", b"12345")
        place.put("y", b"")
        found = place.storage.stat([place.at("x"), place.at("no"), place.at("y")])
        assert [None if each is None else each.size for each in found] == [5, None, 0]

    def test_version_changes_with_the_file(self, place):
        place.put("x", b"12345")
        first, again = place.storage.stat([place.at("x")] * 2)
        place.put("x", b"54321")
        assert first == again
        assert first.version
        assert place.storage.stat([place.at("x")]) != [first]

    def test_list(self, place):
        for name in ["b", "a", "sub/c", "sub/deep/d", ".hidden", "sub/.hidden/e"]:
            place.put(name, b"1")
        listed = place.storage.list(place.root)
        assert listed == [place.at("a"), place.at("b")]
        below = place.storage.list(place.root, recursive=True)
        assert below == [place.at(name) for name in ["a", "b", "sub/c", "sub/deep/d"]]
        assert place.storage.list(place.at("sub")) == [place.at("sub/c")]

    def test_list_sees_what_is_new(self, place):
        place.put("a", b"1")
        assert len(place.storage.list(place.root)) == 1
        place.put("b", b"1")
        assert len(place.storage.list(place.root)) == 2

    @pytest.mark.parametrize("recursive", [False, True])
    def test_list_nothing(self, place, recursive):
        place.put("a", b"1")
        with pytest.raises(FileNotFoundError):
            place.storage.list(place.at("no"), recursive=recursive)

    @pytest.mark.parametrize(
        ("pattern", "names"),
        [
            ("*.rec", ["a.rec", "b b.rec"]),
            ("[bc]*.rec", ["b b.rec"]),
            ("*/*.rec", ["sub/c.rec"]),
            ("**/*.rec", ["a.rec", "b b.rec", "sub/c.rec", "sub/deep/d.rec"]),
            ("sub/**", ["sub/c.rec", "sub/deep/d.rec", "sub/other"]),
            (".h*", [".h.rec"]),
            ("a.rec", ["a.rec"]),
            ("no*", []),
            ("no", []),
            ("no/*", []),
        ],
    )
    def test_glob(self, place, pattern, names):
        for name in ["a.rec", "b b.rec", "sub/c.rec", "sub/other", "sub/deep/d.rec", ".h.rec"]:
            place.put(name, b"1")
        found = place.storage.glob(place.root + "/" + pattern)
        assert found == [place.at(name) for name in names]

    def test_a_file_that_is_too_large_is_not_read(self, place, monkeypatch):
        monkeypatch.setattr(remote, "MAX_METADATA_BYTES", 10)
        monkeypatch.setattr(untrusted.read_file, "__defaults__", (10,))
        place.put("x", bytes(10))
        place.put("y", bytes(11))
        assert place.storage.read(place.at("x")) == bytes(10)
        with pytest.raises(StorageError, match=r"y: it has 11 bytes.*; must be at most 10"):
            place.storage.read(place.at("y"))

    def test_a_body_without_an_end_is_not_read(self, monkeypatch):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                for _ in range(64):
                    self.wfile.write(bytes(1 << 20))
                complete.append(True)

        complete = []
        monkeypatch.setattr(remote, "MAX_METADATA_BYTES", 1 << 20)
        with (
            servers.serving(Handler) as url,
            pytest.raises(StorageError, match="at most 1,048,576"),
        ):
            open_storage(url).read(f"{url}/x")
        assert not complete

    def test_read(self, place):
        place.put("x y", content(100_000))
        assert place.storage.read(place.at("x y")) == content(100_000)

    @pytest.mark.parametrize("method", ["read", "open_stream", "open_blocks"])
    def test_missing(self, place, method):
        place.put("x", b"1")
        with pytest.raises(FileNotFoundError, match="no"):
            getattr(place.storage, method)(place.at("no"))

    def test_stream(self, place):
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

    def test_blocks(self, place):
        data = content(3 * BLOCK + 5)
        place.put("x", data)
        wanted = ranges((5, 9), (BLOCK - 1, BLOCK + 1), (7, 7), (3 * BLOCK, 3 * BLOCK + 5))
        opened = place.storage.open_blocks(place.at("x"))
        assert (opened.size, os.path.getsize(opened.path)) == (len(data), len(data))
        assert read_mapped(opened, *wanted) == [
            data[begin:end] for begin, end in zip(*wanted, strict=True)
        ]
        opened.close()

    def test_empty_file(self, place):
        place.put("x", b"")
        opened = place.storage.open_blocks(place.at("x"))
        opened.ensure(*ranges((0, 0)))
        assert (opened.size, os.path.getsize(opened.path)) == (0, 0)
        with place.storage.open_stream(place.at("x")) as stream:
            assert stream.read() == b""

    def test_pickle(self, place):
        place.put("x", b"12345")
        place.storage.read(place.at("x"))
        again = pickle.loads(pickle.dumps(place.storage))
        assert again.read(place.at("x")) == b"12345"
        assert again.is_remote == place.storage.is_remote == is_remote(place.root)


class TestChains:
    def test_an_archive(self, memory_place):
        content_of_archive = io.BytesIO()
        with zipfile.ZipFile(content_of_archive, "w") as archive:
            for name in ["a/x", "a/y", "z"]:
                archive.writestr(name, content(200_000, seed=ord(name[-1])))
        memory_place.put("a.zip", content_of_archive.getvalue())
        root = f"zip://::{memory_place.at('a.zip')}"
        storage = open_storage(root)
        below = [storage.join(root, name) for name in ["a/x", "a/y", "z"]]
        assert storage.list(root, recursive=True) == below
        assert storage.list(storage.join(root, "a")) == below[:2]
        assert storage.read(below[2]) == content(200_000, seed=ord("z"))
        wanted = ranges((100_000, 150_000))
        found = read_mapped(storage.open_blocks(below[1]), *wanted)
        assert found == [content(200_000, seed=ord("y"))[100_000:150_000]]

    def test_a_cache_of_fsspec(self, s3, s3_place):
        s3_place.put("x", content(200_000))
        root = f"simplecache::{s3_place.root}"
        storage = open_storage(root, {"s3": s3[0]._options})
        path = storage.join(root, "x")
        assert storage.read(path) == content(200_000)
        assert storage.list(root) == [path]
        wanted = ranges((100_000, 150_000))
        assert read_mapped(storage.open_blocks(path), *wanted) == [
            content(200_000)[100_000:150_000]
        ]


class TestWriting:
    def test_write(self, writable):
        for data in [b"first", b"", content(200_000)]:
            writable.storage.write(writable.at("new/x"), data)
            assert writable.storage.read(writable.at("new/x")) == data
        assert writable.storage.list(writable.root, recursive=True) == [writable.at("new/x")]

    def test_amazon_reads_what_was_written(self, s3, s3_place):
        s3_place.storage.write(s3_place.at("x"), b"12345")
        key = s3_place.at("x").removeprefix("s3://birds/")
        assert s3[1].get_object(Bucket="birds", Key=key)["Body"].read() == b"12345"

    def test_upload(self, writable, tmp_path):
        (tmp_path / "local").write_bytes(content(200_000))
        for _ in range(2):
            writable.storage.upload(str(tmp_path / "local"), writable.at("new/x"))
        assert writable.storage.read(writable.at("new/x")) == content(200_000)
        assert (tmp_path / "local").read_bytes() == content(200_000)
        with pytest.raises(FileNotFoundError, match="nothing"):
            writable.storage.upload(str(tmp_path / "nothing"), writable.at("y"))

    def test_copy(self, writable):
        writable.put("x", content(200_000))
        writable.storage.copy(writable.at("x"), writable.at("y"))
        assert writable.storage.read(writable.at("y")) == content(200_000)
        with pytest.raises(FileNotFoundError):
            writable.storage.copy(writable.at("no"), writable.at("z"))

    def test_remove(self, writable):
        for name in ["x", "y", "z"]:
            writable.put(name, b"1")
        writable.storage.remove([writable.at(name) for name in ["x", "no", "z"]])
        assert writable.storage.list(writable.root) == [writable.at("y")]

    def test_local_files_are_replaced_whole(self, local_place, monkeypatch):
        local_place.put("x", b"old")
        monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            local_place.storage.write(local_place.at("x"), b"new")
        assert os.listdir(local_place.root) == ["x"]
        assert local_place.storage.read(local_place.at("x")) == b"old"

    def test_links_in_a_circle_end(self, local_place):
        local_place.put("a/x", b"1")
        os.symlink("..", local_place.at("a/up"))
        os.symlink("a", local_place.at("b"))
        found = local_place.storage.list(local_place.root, recursive=True)
        assert found == [local_place.at("a/x")]
        assert local_place.storage.glob(local_place.at("b*/x")) == [local_place.at("b/x")]

    def test_links_out_of_a_directory_are_followed_in_order(self, local_place, tmp_path):
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "x").write_bytes(b"1")
        local_place.put("y", b"1")
        for name in ("c", "a", "b"):
            os.symlink(tmp_path / "other", local_place.at(name))
        os.symlink("self", local_place.at("self"))
        found = local_place.storage.list(local_place.root, recursive=True)
        assert found == [local_place.at("a/x"), local_place.at("y")]

    def test_missing_buckets_are_not_made(self, s3):
        with pytest.raises(StorageNotFoundError, match="s3://nobodys/x"):
            s3[0].write("s3://nobodys/x", b"1")
        assert not s3[0].exists("s3://nobodys")

    @pytest.mark.parametrize("method", ["write", "remove"])
    def test_what_cannot_be_written_says_so(self, directory_place, method):
        directory_place.put("x", b"1")
        arguments = {"write": ("/x", b"1"), "remove": (["/x"],)}[method]
        with pytest.raises(StorageError, match=r"http://127.*(writing|removing)"):
            root = directory_place.root
            first = root + arguments[0] if method == "write" else [root + arguments[0][0]]
            getattr(directory_place.storage, method)(first, *arguments[1:])


class TestBlocks:
    @pytest.mark.parametrize("kind", ["memory", "s3", "faulty"])
    def test_any_ranges(self, kind, request, web):
        data = content(40 * BLOCK + 77)
        if kind == "faulty":
            web[1].files["/x"] = data
            web[1].fault = lambda method, path, attempt: ["drop", "500", ""][min(attempt, 2)]
            opened = open_storage(web[0]).open_blocks(f"{web[0]}/x")
        else:
            place = request.getfixturevalue(f"{kind}_place")
            place.put("x", data)
            opened = place.storage.open_blocks(place.at("x"))
        edges = st.integers(0, len(data))

        @settings(max_examples=25)
        @given(st.lists(st.tuples(edges, st.integers(0, 3 * BLOCK)), min_size=1, max_size=8))
        def check(pairs):
            wanted = ranges(*((begin, min(begin + size, len(data))) for begin, size in pairs))
            expected = [data[begin:end] for begin, end in zip(*wanted, strict=True)]
            assert read_mapped(opened, *wanted) == expected

        check()
        assert opened.generation == 0

    def test_neighbours_are_fetched_together(self, web):
        url, objects = web
        objects.files["/x"] = content(400 * BLOCK)
        opened = open_storage(url).open_blocks(f"{url}/x")
        pairs = [(0, 1), (BLOCK, BLOCK + 1), (5 * BLOCK, 6 * BLOCK), (20 * BLOCK, 21 * BLOCK)]
        opened.ensure(*ranges(*pairs))
        assert sorted(objects.reads()) == [
            f"bytes=0-{6 * BLOCK - 1}",
            f"bytes={20 * BLOCK}-{21 * BLOCK - 1}",
        ]
        opened.ensure(*ranges(*pairs))
        assert len(objects.reads()) == 2

    def test_long_ranges_are_split(self, web):
        url, objects = web
        objects.files["/x"] = content(300 * BLOCK)
        opened = open_storage(url).open_blocks(f"{url}/x")
        opened.ensure(*ranges((0, 300 * BLOCK)))
        assert sorted(len(each.split("-")) for each in objects.reads()) == [2, 2, 2]
        assert Path(opened.path).read_bytes() == objects.files["/x"]

    def test_files_are_fetched_at_the_same_time(self, web):
        url, objects = web
        together = threading.Barrier(4, timeout=20)
        storage = open_storage(url)
        wanted = []
        for name in "abcd":
            objects.files[f"/{name}"] = content(BLOCK, seed=ord(name))
            wanted.append((storage.open_blocks(f"{url}/{name}"), *ranges((1, BLOCK))))

        def fault(method, path, attempt):
            together.wait()
            return ""

        objects.fault = fault
        fetch_many(wanted)
        for name, (opened, *_) in zip("abcd", wanted, strict=True):
            assert Path(opened.path).read_bytes() == objects.files[f"/{name}"]

    def test_little_is_under_way_at_once(self, monkeypatch):
        monkeypatch.setattr(retry, "_MOST_BYTES", 2 * BLOCK)
        monkeypatch.setattr(retry, "MAX_CONCURRENT_REQUESTS", 3)
        flying, most = 0, []

        async def fly(_):
            nonlocal flying
            flying += 1
            most.append(flying)
            await asyncio.sleep(0.01)
            flying -= 1

        nest = RemoteFilesystem(Url.parse("nest://x"), {})
        for size, bound in [(BLOCK, 2), (9 * BLOCK, 1), (0, 3)]:
            most.clear()
            attempts = retry.Retry(nest, "nest://x", "flying")
            tasks = [retry.Task(nest, fly, attempts, size) for _ in range(10)]
            retry.run(tasks, lambda task, result: None)
            assert len(most) == 10
            assert max(most) <= bound

    def test_local_and_remote_files_together(self, local_place, memory_place):
        wanted = []
        for place in (local_place, memory_place):
            place.put("x", content(2 * BLOCK))
            wanted.append((place.storage.open_blocks(place.at("x")), *ranges((5, BLOCK + 5))))
        fetch_many([*wanted, wanted[1]])
        for opened, *_ in wanted:
            assert (
                Path(opened.path).read_bytes()[5 : BLOCK + 5] == content(2 * BLOCK)[5 : BLOCK + 5]
            )

    @pytest.mark.parametrize("pair", [(-1, 5), (5, 4), (0, 11)])
    def test_ranges_are_checked(self, memory_place, pair):
        memory_place.put("x", b"0123456789")
        opened = memory_place.storage.open_blocks(memory_place.at("x"))
        with pytest.raises(ValueError, match="not within its 10 bytes"):
            opened.ensure(*ranges(pair))

    def test_closed(self, memory_place):
        memory_place.put("x", b"0123456789")
        opened = memory_place.storage.open_blocks(memory_place.at("x"))
        opened.close()
        with pytest.raises(ClosedError, match=r"memory://.*closed"):
            opened.ensure(*ranges((0, 1)))

    def test_what_has_no_version_is_not_kept(self, memory_place, monkeypatch):
        monkeypatch.setattr("covey.storage.remote.version_of", lambda info: "")
        memory_place.put("x", b"0123456789")
        opened = memory_place.storage.open_blocks(memory_place.at("x"))
        opened.ensure(*ranges((0, 10)))
        assert bytes_kept() == BLOCK
        opened.close()
        assert bytes_kept() == 0


class TestCache:
    def open_all(self, web, names, size, **options):
        url, objects = web
        storage = open_storage(url, **options)
        for name in names:
            objects.files[f"/{name}"] = content(size, seed=ord(name))
        return [storage.open_blocks(f"{url}/{name}") for name in names]

    def test_it_stays_below_its_limit(self, web):
        limit = 8 * BLOCK
        for opened in self.open_all(web, "abcdefgh", 3 * BLOCK, cache_bytes=limit):
            opened.ensure(*ranges((0, 3 * BLOCK)))
            assert bytes_kept() <= limit
        assert bytes_kept() > limit // 2

    def test_what_was_used_last_stays(self, web):
        first, second, third = self.open_all(web, "abc", 3 * BLOCK, cache_bytes=8 * BLOCK)
        everything = ranges((0, 3 * BLOCK))
        for opened in (first, second, first, third):
            opened.ensure(*everything)
        assert len(web[1].reads()) == 3
        first.ensure(*everything)
        assert len(web[1].reads()) == 3
        second.ensure(*everything)
        assert len(web[1].reads()) == 4
        assert [each.generation for each in (first, second, third)] == [0, 1, 0]

    def test_what_is_mapped_stays_as_it_is(self, web):
        first, second = self.open_all(web, "ab", 3 * BLOCK, cache_bytes=4 * BLOCK)
        everything = ranges((0, 3 * BLOCK))
        first.ensure(*everything)
        with open(first.path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        path = first.path
        second.ensure(*everything)
        assert not os.path.exists(first.path)
        with mapped:
            assert mapped[:] == web[1].files["/a"]
        assert read_mapped(first, *everything) == [web[1].files["/a"]]
        assert (first.path, first.generation) == (path, 1)

    def test_a_file_larger_than_the_cache(self, web):
        (opened,) = self.open_all(web, "a", 64 * BLOCK, cache_bytes=8 * BLOCK)
        data = web[1].files["/a"]
        for number in np.random.default_rng(3).permutation(64):
            begin = int(number) * BLOCK
            assert read_mapped(opened, *ranges((begin, begin + BLOCK))) == [
                data[begin : begin + BLOCK]
            ]
            assert bytes_kept() <= 8 * BLOCK
        assert opened.generation >= 7

    def test_many_files_larger_than_the_cache(self, web):
        opened = self.open_all(web, "abcd", 16 * BLOCK, cache_bytes=20 * BLOCK)
        for number in range(16):
            wanted = ranges((number * BLOCK, (number + 1) * BLOCK))
            fetch_many([(each, *wanted) for each in opened])
            for name, each in zip("abcd", opened, strict=True):
                part = slice(number * BLOCK, (number + 1) * BLOCK)
                assert Path(each.path).read_bytes()[part] == web[1].files[f"/{name}"][part]
            assert bytes_kept() <= 20 * BLOCK
        # Room is made with one file at a time, and not with all of them.
        assert len(web[1].reads()) < 16 * 4 + 16

    def test_more_is_needed_than_it_may_hold(self, web):
        (opened,) = self.open_all(web, "a", 9 * BLOCK, cache_bytes=8 * BLOCK)
        with pytest.raises(StorageError, match=r"589824 bytes.* 524288; raise .*COVEY_CACHE_BYTES"):
            opened.ensure(*ranges((0, 9 * BLOCK)))
        opened.ensure(*ranges((0, 8 * BLOCK)))

    def test_others_find_what_was_fetched(self, web):
        first, _ = self.open_all(web, "ab", 3 * BLOCK)
        first.ensure(*ranges((0, BLOCK)))
        (again, _) = self.open_all(web, "ab", 3 * BLOCK)
        assert read_mapped(again, *ranges((0, BLOCK))) == [web[1].files["/a"][:BLOCK]]
        assert len(web[1].reads()) == 1

    def test_servers_are_told_apart(self, web, session):
        paths = set()
        with range_server() as other:
            for url, objects in (web, other, web):
                objects.files["/birds/x"] = content(100)
                endpoint = {"endpoint_url": url}
                options = {"key": "a", "secret": "b", "client_kwargs": endpoint, "session": session}
                paths.add(open_storage("s3://birds", options).open_blocks("s3://birds/x").path)
        assert len(paths) == 2

    def damage_data(self, directory):
        with open(directory / "data", "r+b") as file:
            file.seek(BLOCK + 7)
            file.write(b"damaged")

    def damage_size(self, directory):
        os.truncate(directory / "data", 5)

    def damage_map(self, directory):
        os.truncate(directory / "map", 33)

    def damage_head(self, directory):
        (directory / "map").write_bytes(b"\1" * 35)

    def damage_missing(self, directory):
        (directory / "data").unlink()

    def damage_directory(self, directory):
        directory.rename(directory.parent / "elsewhere")
        directory.write_bytes(b"a file")

    @pytest.mark.parametrize("damage", ["data", "size", "map", "head", "missing", "directory"])
    def test_damage_is_fetched_again(self, web, damage):
        self.open_all(web, "a", 3 * BLOCK)[0].ensure(*ranges((0, 3 * BLOCK)))
        (directory,) = (cache_directory() / "blocks").iterdir()
        getattr(self, f"damage_{damage}")(directory)
        (again,) = self.open_all(web, "a", 3 * BLOCK)
        assert read_mapped(again, *ranges((0, 3 * BLOCK))) == [web[1].files["/a"]]
        assert len(web[1].reads()) == 2

    def test_a_change_that_one_byte_of_checksum_misses_is_found(self, web):
        """CRC-32C modulo 255 is the same before and after."""
        self.open_all(web, "a", 3 * BLOCK)[0].ensure(*ranges((0, 3 * BLOCK)))
        (directory,) = (cache_directory() / "blocks").iterdir()
        block = bytearray(web[1].files["/a"][:BLOCK])
        before = crc32c(block)
        while crc32c(block) == before or crc32c(block) % 255 != before % 255:
            block[7] = (block[7] + 1) % 256
            block[8] = (block[8] + (block[7] == 0)) % 256
        with open(directory / "data", "r+b") as file:
            file.write(block)
        (again,) = self.open_all(web, "a", 3 * BLOCK)
        assert read_mapped(again, *ranges((0, BLOCK))) == [web[1].files["/a"][:BLOCK]]

    def test_what_is_discarded_is_fetched_again(self, web):
        (opened,) = self.open_all(web, "a", 3 * BLOCK)
        opened.ensure(*ranges((0, 3 * BLOCK)))
        with open(opened.path, "r+b") as file:
            file.seek(BLOCK + 7)
            file.write(b"other")
        opened.discard(*ranges((BLOCK + 5, BLOCK + 9)))
        assert read_mapped(opened, *ranges((0, 3 * BLOCK))) == [web[1].files["/a"]]
        assert web[1].reads()[1:] == [f"bytes={BLOCK}-{2 * BLOCK - 1}"]
        assert opened.generation == 0

    def test_what_is_not_marked_is_not_there(self, web):
        (opened,) = self.open_all(web, "a", 3 * BLOCK)
        with open(opened.path, "r+b") as file:
            file.write(b"half of a block")
        assert read_mapped(opened, *ranges((0, 9))) == [web[1].files["/a"][:9]]

    def test_it_can_be_removed_at_any_time(self, web):
        (opened,) = self.open_all(web, "a", 3 * BLOCK)
        opened.ensure(*ranges((0, BLOCK)))
        shutil.rmtree(cache_directory())
        assert read_mapped(opened, *ranges((0, 9))) == [web[1].files["/a"][:9]]
        assert opened.generation == 1

    def test_debris_is_removed(self, web):
        (opened,) = self.open_all(web, "a", 3 * BLOCK)
        directory = cache_directory() / "blocks"
        for name in [".gone-1", ".new-1", ".new-2"]:
            (directory / name).mkdir()
            (directory / name / "data").write_bytes(b"1")
        for path in (directory / ".new-1" / "data", directory / ".new-1"):
            os.utime(path, (0, 0))
        opened.ensure(*ranges((0, BLOCK)))
        hidden = [path.name for path in directory.iterdir() if path.name.startswith(".")]
        assert hidden == [".new-2"]

    def test_a_full_disk(self, web, monkeypatch):
        (opened,) = self.open_all(web, "a", 3 * BLOCK)

        def write(file, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "write", write)
        message = r"cache: .*No space left.*COVEY_CACHE "
        with pytest.raises(StorageError, match=message):
            opened.ensure(*ranges((0, BLOCK)))

    def test_damage_that_stays(self, web, monkeypatch):
        (opened,) = self.open_all(web, "a", 3 * BLOCK)
        (directory,) = (cache_directory() / "blocks").iterdir()
        self.damage_size(directory)
        monkeypatch.setattr(range_cache, "discard", lambda directory: False)
        with pytest.raises(StorageError, match=r"corrupt, and cannot be removed.*COVEY_CACHE"):
            opened.ensure(*ranges((0, BLOCK)))

    def test_threads_share_it(self, web):
        opened = self.open_all(web, "abcd", 16 * BLOCK, cache_bytes=40 * BLOCK)
        wrong = []

        def work(seed):
            random = np.random.default_rng(seed)
            for _ in range(12):
                which = int(random.integers(4))
                begin = int(random.integers(15 * BLOCK))
                found = read_mapped(opened[which], *ranges((begin, begin + BLOCK)))
                if found != [web[1].files["/" + "abcd"[which]][begin : begin + BLOCK]]:
                    wrong.append((which, begin))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    def test_processes_share_it(self, web):
        url, objects = web
        for name in "abcd":
            objects.files[f"/{name}"] = content(8 * BLOCK, seed=ord(name))
        code = """
import sys
import numpy as np
from test_storage import BLOCK, content, open_storage, ranges, read_mapped

url, seed = sys.argv[1:]
storage = open_storage(url, cache_bytes=20 * BLOCK)
files = [(storage.open_blocks(f"{url}/{name}"), content(8 * BLOCK, ord(name))) for name in "abcd"]
random = np.random.default_rng(int(seed))
for _ in range(40):
    blocks, data = files[random.integers(4)]
    begin = int(random.integers(7 * BLOCK))
    assert read_mapped(blocks, *ranges((begin, begin + BLOCK))) == [data[begin : begin + BLOCK]]
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        processes = [
            subprocess.Popen([sys.executable, "-c", code, url, str(seed)], env=environment)
            for seed in range(2)
        ]
        assert [process.wait() for process in processes] == [0, 0]

    def test_a_forked_child_reads_on(self, web):
        url, objects = web
        objects.files["/x"] = content(8 * BLOCK)
        code = """
import os, sys
from test_storage import BLOCK, content, open_storage, ranges, read_mapped

url, data = sys.argv[1], content(8 * BLOCK)
storage = open_storage(url)
blocks = storage.open_blocks(f"{url}/x")
stream = storage.open_stream(f"{url}/x")

def check(number):
    begin = number * BLOCK
    assert read_mapped(blocks, *ranges((begin, begin + 9))) == [data[begin : begin + 9]]
    assert stream.read(9) == data[number * 9 : number * 9 + 9]
    assert storage.read(f"{url}/x") == data

check(0)
child = os.fork()
if not child:
    try:
        check(1)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
check(1)
"""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", code, url], env=environment, check=True, timeout=60)

    def test_where_it_is(self, monkeypatch, tmp_path):
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
        monkeypatch.setattr(sys, "platform", "win32")
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
        assert cache_directory() == tmp_path / "local" / "covey" / "cache"

    def test_where_it_is_if_that_cannot_be_written(self, monkeypatch, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path / "file"))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.delenv("COVEY_CACHE")
        directory = cache_directory()
        assert directory.parent == tmp_path
        assert directory.name.startswith("covey-cache-")
        monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "file"))
        with pytest.warns(UserWarning, match="COVEY_CACHE.*cannot be written"):
            assert cache_directory() == directory

    def others_directory(self, directory):
        directory.mkdir(parents=True)
        os.chown(directory, 12345, 12345)

    def others_link(self, directory):
        (directory.parent / "target").mkdir(parents=True)
        directory.symlink_to(directory.parent / "target")
        os.chown(directory, 12345, 12345, follow_symlinks=False)

    def others_target(self, directory):
        self.others_directory(directory.parent / "target")
        directory.symlink_to(directory.parent / "target")

    def writable_by_group(self, directory):
        directory.mkdir(parents=True)
        directory.chmod(0o770)

    def writable_by_all(self, directory):
        directory.mkdir(parents=True)
        directory.chmod(0o1777)

    UNSAFE = ("others_directory", "others_link", "others_target")

    @pytest.mark.parametrize("how", UNSAFE)
    @pytest.mark.parametrize("where", ["COVEY_CACHE", "XDG_CACHE_HOME", "HOME"])
    def test_a_directory_that_others_can_change_is_not_used(
        self, monkeypatch, tmp_path, where, how
    ):
        monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
        monkeypatch.delenv("COVEY_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv(where, str(tmp_path / "mine"))
        below = {"COVEY_CACHE": ".", "XDG_CACHE_HOME": "covey", "HOME": ".cache/covey"}
        getattr(self, how)(tmp_path / "mine" / below[where])
        with pytest.warns(UserWarning, match=r"mine.* using .*covey-cache-"):
            directory = cache_directory()
        assert directory == tmp_path / f"covey-cache-{os.getuid()}"
        assert directory.stat().st_mode & 0o7777 == 0o700

    @pytest.mark.parametrize("how", ["writable_by_group", "writable_by_all"])
    @pytest.mark.parametrize("where", ["COVEY_CACHE", "XDG_CACHE_HOME"])
    def test_the_mode_of_a_directory_of_ones_own_is_set(self, monkeypatch, tmp_path, where, how):
        monkeypatch.delenv("COVEY_CACHE")
        monkeypatch.setenv(where, str(tmp_path / "mine"))
        expected = tmp_path / "mine" / {"COVEY_CACHE": "."}.get(where, "covey")
        getattr(self, how)(expected)
        if where == "COVEY_CACHE" and how == "writable_by_all":  # sticky, as /tmp is
            shared, expected = expected, expected / f"covey-{os.getuid()}"
        assert cache_directory() == expected
        assert expected.stat().st_mode & 0o7777 == 0o700
        if expected.name.startswith("covey-"):
            assert shared.stat().st_mode & 0o7777 == 0o1777

    @pytest.mark.parametrize("mode", [0o777, 0o2775])
    def test_a_subdirectory_of_a_shared_directory_is_used(self, monkeypatch, tmp_path, mode):
        monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
        monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "shared"))
        self.others_directory(tmp_path / "shared")
        (tmp_path / "shared").chmod(mode)
        own = tmp_path / "shared" / f"covey-{os.getuid()}"
        assert cache_directory() == own
        assert own.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "shared").stat().st_mode & 0o7777 == mode
        os.chown(own, 12345, 12345)
        with pytest.warns(UserWarning, match=r"belongs to user 12345; using .*covey-cache-"):
            assert cache_directory() == tmp_path / f"covey-cache-{os.getuid()}"

    @pytest.mark.parametrize("how", ["others_directory", "others_link"])
    def test_a_subdirectory_of_another_user_is_not_used(self, web, how):
        getattr(self, how)(cache_directory() / "blocks")
        with pytest.raises(StorageError, match=r"blocks .*another|blocks belongs"):
            self.open_all(web, "a", BLOCK)

    def test_a_fallback_of_another_user_is_not_used(self, monkeypatch, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
        monkeypatch.delenv("COVEY_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        self.others_directory(tmp_path / f"covey-cache-{os.getuid()}")
        with pytest.raises(StorageError, match="set COVEY_CACHE"):
            cache_directory()

    def test_without_a_home_the_cache_of_another_user_is_not_used(self, monkeypatch, tmp_path):
        def home():
            raise RuntimeError

        monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
        monkeypatch.delenv("COVEY_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(cache.Path, "home", home)
        self.others_directory(tmp_path / ".cache" / "covey")
        assert cache_directory() == tmp_path / f"covey-cache-{os.getuid()}"
        (tmp_path / "link").symlink_to(cache_directory())
        monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "link"))
        assert cache_directory() == tmp_path / "link"

    def test_a_parent_of_another_user_is_not_used(self, monkeypatch, tmp_path):
        monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
        monkeypatch.delenv("COVEY_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
        self.others_directory(tmp_path / "theirs")
        with pytest.warns(UserWarning, match="directory of another user"):
            assert cache_directory() == tmp_path / f"covey-cache-{os.getuid()}"

    def test_how_much_it_holds(self, monkeypatch):
        assert cache_limit(None) == 16 << 30
        monkeypatch.setenv("COVEY_CACHE_BYTES", "1000")
        assert (cache_limit(None), cache_limit(7)) == (1000, 7)
        monkeypatch.setenv("COVEY_CACHE_BYTES", "much")
        with pytest.raises(ValueError, match="COVEY_CACHE_BYTES is 'much'"):
            open_storage("memory://x")
        with pytest.raises(ValueError, match="cache_bytes is 0"):
            open_storage("memory://x", cache_bytes=0)


def first_times(*faults):
    """Every request fails in these ways, one after another, and then no more."""
    return lambda method, path, attempt: [*faults, ""][min(attempt, len(faults))]


READ = {
    "read": lambda place: place.storage.read(place.at("x")),
    "stat": lambda place: place.storage.stat([place.at("x")]),
    "stream": lambda place: place.storage.open_stream(place.at("x")).read(),
    "blocks": lambda place: read_mapped(place.storage.open_blocks(place.at("x")), *ranges((5, 9))),
}


class TestFailing:
    @pytest.mark.parametrize("fault", ["drop", "short", "500", "503", "429"])
    def test_what_fails_is_tried_again(self, faulty, fault):
        data = content(5_000_000)
        faulty.put("x", data)
        faulty.put.objects.fault = lambda method, path, attempt: (
            fault if attempt < 3 and method == "GET" else ""
        )
        opened = faulty.storage.open_blocks(faulty.at("x"))
        wanted = ranges((5, 9), (2_000_000, 3_000_000), (4_999_999, 5_000_000))
        assert read_mapped(opened, *wanted) == [
            data[begin:end] for begin, end in zip(*wanted, strict=True)
        ]
        with faulty.storage.open_stream(faulty.at("x")) as stream:
            assert stream.read() == data

    def test_other_ranges_are_not_taken(self, faulty):
        data = content(5 * BLOCK)
        faulty.put("x", data)
        faulty.put.objects.fault = lambda method, path, attempt: (
            "shift" if attempt < 3 and method == "GET" else ""
        )
        opened = faulty.storage.open_blocks(faulty.at("x"))
        assert read_mapped(opened, *ranges((2 * BLOCK, 3 * BLOCK))) == [data[2 * BLOCK : 3 * BLOCK]]

    @pytest.mark.parametrize(
        ("error", "verdict"),
        [
            (OSError(), ErrorKind.RETRY),
            (OSError(errno.EBUSY, "SlowDown"), ErrorKind.RETRY),
            (TimeoutError(), ErrorKind.RETRY),
            (EOFError(), ErrorKind.RETRY),
            (OSError(errno.EINVAL, "no"), ErrorKind.FATAL),
            (OSError(errno.ENOSPC, "full"), ErrorKind.FATAL),
            (StorageError("explained"), ErrorKind.FATAL),
            (NotImplementedError(), ErrorKind.FATAL),
            (KeyError("x"), ErrorKind.FATAL),
            (IsADirectoryError(), ErrorKind.FATAL),
            (FileNotFoundError(), ErrorKind.MISSING),
            (PermissionError(), ErrorKind.REFUSED),
            (FileChangedError(), ErrorKind.CHANGED),
        ],
        ids=repr,
    )
    def test_what_errors_mean(self, error, verdict):
        assert classify(error) is verdict

    @pytest.mark.parametrize("how", READ)
    def test_all_requests_are_tried_again(self, faulty, how):
        faulty.put("x", content(100_000))
        faulty.put.objects.fault = first_times("500", "503", "500", "429")
        assert READ[how](faulty)

    def test_silence_is_a_failure(self, faulty, monkeypatch):
        monkeypatch.setattr(filesystem, "_SILENT_SECONDS", 0.2)
        monkeypatch.setattr(filesystem, "_REQUEST_SECONDS", 0.5)
        faulty.put("x", content(100_000))
        over = threading.Event()

        def fault(method, path, attempt):
            if method == "GET" and attempt == 0:
                over.wait(timeout=20)
            return ""

        faulty.put.objects.fault = fault
        assert faulty.storage.read(faulty.at("x")) == content(100_000)
        over.set()

    # aiohttp asks once more by itself if a server hangs up without a word.
    @pytest.mark.parametrize(
        ("fault", "times", "reason"), [("503", 5, "503"), ("mute", 10, "closed|disconnected")]
    )
    @pytest.mark.parametrize("how", READ)
    def test_tries_are_counted(self, faulty, how, fault, times, reason):
        faulty.put("x", content(100_000))
        faulty.put.objects.fault = lambda method, path, attempt: fault
        message = rf"birds/x: .* failed 5 times.*({reason})"
        with pytest.raises(StorageError, match=message) as caught:
            READ[how](faulty)
        assert type(caught.value) is StorageError
        assert set(Counter(faulty.put.objects.asked).values()) == {times}

    @pytest.mark.parametrize("how", READ)
    def test_what_is_refused_is_not_tried_again(self, faulty, how):
        faulty.put("x", content(100_000))
        faulty.put.objects.fault = lambda method, path, attempt: "403"
        with pytest.raises(PermissionError, match=r"birds/x: .*403.*storage_options=.*environ"):
            READ[how](faulty)
        assert len(faulty.put.objects.asked) <= 2

    def test_what_is_refused_later(self, faulty):
        faulty.put("x", content(100_000))
        opened = faulty.storage.open_blocks(faulty.at("x"))
        faulty.put.objects.fault = lambda method, path, attempt: "401"
        with pytest.raises(StoragePermissionError):
            opened.ensure(*ranges((0, 1)))

    def test_no_credentials(self, web):
        storage = open_storage("s3://birds", {"client_kwargs": {"endpoint_url": web[0]}})
        with pytest.raises(StoragePermissionError, match=r"s3://birds/x: .*AWS_ACCESS_KEY_ID"):
            storage.read("s3://birds/x")
        assert web[1].asked == []

    @pytest.mark.parametrize("how", ["read", "stream", "blocks"])
    def test_missing(self, faulty, how):
        with pytest.raises(StorageNotFoundError, match=r"birds/x: there is no such file"):
            READ[how](faulty)
        assert len(faulty.put.objects.asked) <= 3

    def test_nobody_listens(self):
        with range_server() as (url, _):
            pass
        with pytest.raises(StorageError, match=r"failed 5 times.*Connect"):
            open_storage(url).read(f"{url}/x")

    @pytest.mark.parametrize("kind", ["memory", "nest", "s3", "web"])
    @pytest.mark.parametrize("size", [5_000_000, 100_000])
    def test_a_file_that_changes_is_not_mixed(self, kind, size, request):
        place = request.getfixturevalue(f"{kind}_place")
        old = content(5_000_000)
        place.put("x", old)
        opened = place.storage.open_blocks(place.at("x"))
        assert read_mapped(opened, *ranges((0, 5))) == [old[:5]]
        with place.storage.open_stream(place.at("x")) as stream:
            assert stream.read(5) == old[:5]
            place.put("x", content(size, seed=1))
            with pytest.raises(FileChangedError, match=r"x: it has changed"):
                stream.read()
        with pytest.raises(FileChangedError, match=r"x: it has changed"):
            opened.ensure(*ranges((4_000_000, 4_000_005)))
        assert read_mapped(opened, *ranges((0, 5))) == [old[:5]]
        again = place.storage.open_blocks(place.at("x"))
        assert read_mapped(again, *ranges((0, 5))) == [content(size, seed=1)[:5]]

    def test_servers_without_ranges(self, web):
        url, objects = web
        data = objects.files["/x"] = content(50 * BLOCK + 3)
        objects.fault = lambda method, path, attempt: "whole"
        opened = open_storage(url).open_blocks(f"{url}/x")
        assert read_mapped(opened, *ranges((5, 9), (40 * BLOCK, 41 * BLOCK))) == [
            data[5:9],
            data[40 * BLOCK : 41 * BLOCK],
        ]
        assert objects.reads().count("") == 1
        assert Path(opened.path).read_bytes() == data
        asked = len(objects.asked)
        opened.ensure(*ranges((0, len(data))))
        assert len(objects.asked) == asked

    def test_servers_without_ranges_that_hang_up(self, web):
        url, objects = web
        data = objects.files["/x"] = content(3_000_000)
        objects.fault = lambda method, path, attempt: ["whole drop", "500", "whole"][
            min(attempt, 2)
        ]
        storage = open_storage(url)
        opened = storage.open_blocks(f"{url}/x")
        assert read_mapped(opened, *ranges((2_000_000, 2_000_009))) == [data[2_000_000:2_000_009]]
        objects.fault = lambda method, path, attempt: "whole drop" if attempt % 2 else "whole"
        with storage.open_stream(f"{url}/x") as stream:
            assert stream.read() == data
            assert stream.seek(5) == 5
            assert stream.read(4) == data[5:9]

    def test_servers_without_ranges_need_room_for_all(self, web):
        url, objects = web
        objects.files["/x"] = content(9 * BLOCK)
        objects.fault = lambda method, path, attempt: "whole"
        opened = open_storage(url, cache_bytes=8 * BLOCK).open_blocks(f"{url}/x")
        with pytest.raises(StorageError, match="COVEY_CACHE_BYTES"):
            opened.ensure(*ranges((0, 1)))

    def test_servers_that_do_not_say_how_long(self, web):
        url, objects = web
        data = objects.files["/x"] = content(200_000)
        objects.has_length = False
        storage = open_storage(url)
        assert [each.size for each in storage.stat([f"{url}/x"])] == [200_000]
        opened = storage.open_blocks(f"{url}/x")
        assert read_mapped(opened, *ranges((5, 100_000))) == [data[5:100_000]]

    def test_servers_that_compress(self, web_place):
        web_place.put("x", content(200_000))
        web_place.put.objects.compresses = True
        assert web_place.storage.read(web_place.at("x")) == content(200_000)
        opened = web_place.storage.open_blocks(web_place.at("x"))
        assert read_mapped(opened, *ranges((5, 9))) == [content(200_000)[5:9]]

    def test_fsspec_is_not_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "fsspec", None)
        with pytest.raises(StorageError, match=r"s3://b/x: .*pip install 'covey\[remote\]'"):
            open_storage("s3://b/x")

    def test_a_driver_is_not_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        with pytest.raises(StorageError, match=r"gs://b/x: .*not installed; pip install gcsfs"):
            open_storage("gs://b/x")

    def test_nobody_knows_it(self):
        with pytest.raises(
            StorageError, match=r"unknown protocol 'owl'; supported protocols: .*memory.*s3"
        ):
            open_storage("owl://nest")

    def test_options_that_do_not_fit(self):
        storage = open_storage("dir://x")
        with pytest.raises(StorageError, match=r"dir://x: the storage options \[\] do not fit"):
            storage.read("dir://x")


class TestStream:
    def test_a_glance_costs_little(self, web):
        url, objects = web
        objects.files["/x"] = content(5_000_000)
        with open_storage(url).open_stream(f"{url}/x") as stream:
            assert stream.read(10) == objects.files["/x"][:10]
        assert objects.reads() == ["bytes=0-262143"]

    def test_pieces_are_read_ahead(self, web):
        url, objects = web
        objects.files["/x"] = content(20_000_000)
        sixth, in_time = threading.Event(), []

        def fault(method, path, attempt):
            if len(objects.reads()) == 6:
                sixth.set()
            if len(objects.reads()) == 4:  # not answered before two more have come
                in_time.append(sixth.wait(timeout=20))
            return ""

        objects.fault = fault
        with open_storage(url).open_stream(f"{url}/x") as stream:
            assert stream.read() == objects.files["/x"]
        assert in_time == [True]

    @pytest.mark.parametrize("kind", ["memory", "s3"])
    def test_closing_early_leaves_no_thread(self, kind, request):
        place = request.getfixturevalue(f"{kind}_place")
        place.put("x", content(10_000_000))
        place.storage.read(place.at("x"))  # fsspec's own thread is there now
        before = set(threading.enumerate())
        stream = place.storage.open_stream(place.at("x"))
        assert len(stream.read(600_000)) == 600_000
        stream.close()
        mine = [each for each in set(threading.enumerate()) - before if "request" not in each.name]
        assert mine == []

    def test_a_small_buffer(self, memory_place):
        data = content(1_000_000)
        memory_place.put("x", data)
        with memory_place.storage.open_stream(memory_place.at("x")) as stream:
            pieces = [stream.raw.read(70_001) for _ in range(20)]
        assert b"".join(pieces) == data

    @pytest.mark.parametrize(("offset", "whence"), [(-1, 0), (-11, 2), (0, 9)])
    def test_impossible_positions(self, memory_place, offset, whence):
        memory_place.put("x", b"0123456789")
        with (
            memory_place.storage.open_stream(memory_place.at("x")) as stream,
            pytest.raises(ValueError, match=r"negative|whence"),
        ):
            stream.raw.seek(offset, whence)
