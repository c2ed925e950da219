"""Locations in storages of every kind, and functions to put files there without covey."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from servers import S3, Objects, directory_server, range_server

from covey.storage import Storage, open_storage
from covey.storage.range_cache import BLOCK_BYTES, CachedFile, fetched

COUNTER = itertools.count()


@dataclass
class Location:
    """A directory in a storage, and a function that writes its files without covey."""

    storage: Storage
    root: str
    put: Callable[[str, bytes], Any]
    options: dict[str, Any] = field(default_factory=dict)
    """Storage options."""
    objects: Any = None
    """The files and requests of a server of ranges."""

    def at(self, name: str) -> str:
        return self.storage.join(self.root, name)


class BlockingDriver(LocalFileSystem):
    """A driver without an event loop, with real directories."""

    protocol = "blocking"

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(path.removeprefix("blocking://"))


class AsyncDriver(AsyncFileSystemWrapper):
    """An asynchronous driver that covey does not know."""

    protocol = "asynchronous"

    def __init__(self, **options):
        super().__init__(fsspec.filesystem("memory"), **options)

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("asynchronous://", "memory://"))


fsspec.register_implementation("blocking", BlockingDriver, clobber=True)
fsspec.register_implementation("asynchronous", AsyncDriver, clobber=True)


def content(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def file_writer(directory: Path) -> Callable[[str, bytes], None]:
    def put(name: str, data: bytes) -> None:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (next(COUNTER), next(COUNTER)))  # HTTP servers round times to seconds

    return put


def memory_location(protocol: str = "memory") -> Location:
    name = f"directory{next(COUNTER)}"
    files = fsspec.filesystem("memory")
    root = f"{protocol}://{name}"
    return Location(
        open_storage(root), root, lambda each, data: files.pipe_file(f"/{name}/{each}", data)
    )


def web_location(root: str, objects: Objects, options: dict[str, Any] | None = None) -> Location:
    """Return the directory ``birds`` of a server of ranges."""

    def put(name: str, data: bytes) -> None:
        objects.files[f"/birds/{name}"] = data

    return Location(open_storage(root, options), root, put, options or {}, objects)


@contextmanager
def location(kind: str, tmp_path: Path, s3: S3) -> Iterator[Location]:
    """Yield a new location of a kind: local, memory, asynchronous, blocking, http, web or s3.

    The server of http lists files and ignores ranges; that of web supports ranges, and does not
    list files.
    """
    directory = tmp_path / "files"
    if kind in ("memory", "asynchronous"):
        yield memory_location(kind)
    elif kind == "local":
        yield Location(open_storage(directory), str(directory), file_writer(directory))
    elif kind == "blocking":
        root = f"blocking://{directory}"
        yield Location(open_storage(root), root, file_writer(directory))
    elif kind == "http":
        with directory_server(directory) as url:
            yield Location(open_storage(url), url, file_writer(directory))
    elif kind == "web":
        with range_server() as (url, objects):
            yield web_location(f"{url}/birds", objects)
    else:
        key = f"directory{next(COUNTER)}"
        root = f"s3://bucket/{key}"
        put = partial(_put_object, s3.client, key)
        yield Location(open_storage(root, s3.options), root, put, s3.options)


def _put_object(client: Any, key: str, name: str, data: bytes) -> None:
    client.put_object(Bucket="bucket", Key=f"{key}/{name}", Body=data)


def ranges(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    begins, ends = zip(*pairs, strict=True)
    return np.array(begins, np.int64), np.array(ends, np.int64)


def read_ranges(file: CachedFile, pairs: Sequence[tuple[int, int]]) -> list[bytes]:
    """Fetch ranges of a file and read them."""
    with fetched([(file, *ranges(*pairs))]):
        return [file.read_at(begin, end) for begin, end in pairs]


def read_at_random(files: Sequence[tuple[CachedFile, bytes]], seed: int, times: int = 20) -> None:
    """Read random ranges of files, and compare them with their content."""
    rng = np.random.default_rng(seed)
    for _ in range(times):
        opened, data = files[int(rng.integers(len(files)))]
        begin = int(rng.integers(len(data) - BLOCK_BYTES))
        pair = (begin, begin + BLOCK_BYTES)
        assert read_ranges(opened, [pair]) == [data[slice(*pair)]]
