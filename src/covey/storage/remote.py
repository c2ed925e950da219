"""Remote files, through fsspec."""

from __future__ import annotations

import io
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from covey.errors import StorageError, StorageNotFoundError
from covey.storage.cache import DiskCache, cache_limit
from covey.storage.driver import Driver, RemoteFile, version_of
from covey.storage.errors import UnsupportedOperationError, retry
from covey.storage.local import Pattern, Stat, Storage, parse_pattern
from covey.storage.range_cache import CachedFile
from covey.untrusted import MAX_METADATA_BYTES
from covey.urls import LOCATION_OPTIONS, AnyPath, Url, parse_path, shown

_builtin_list = list

_BUFFER_BYTES = 1 << 17

# The first range of a stream is short, so that reading the head of a file costs little.
_FIRST_RANGE_BYTES = 1 << 18
_MAX_RANGE_BYTES = 1 << 22
_MAX_PREFETCHED = 4


class RemoteStorage(Storage):
    """The files of a server or bucket.

    Paths that methods return have no user name, password and query, so that messages can show them.
    The storage adds them to each request.

    Args:
        url: The URL of any file or directory in it.
        options: fsspec's storage options.
        cache_bytes: Size limit of the cache on disk.
    """

    is_remote = True

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._url = Url.parse(url)
        self._options = dict(options or {})
        self._cache_bytes = cache_bytes
        self._limit = cache_limit(cache_bytes)
        self._driver = Driver(self._url, self._options)
        self._cache: DiskCache | None = None
        self._access: dict[str, tuple[str, str]] = {}
        """User name and password, and query, of the paths whose differ from those of the URL."""
        self.clean(url)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = str(self._url), self._options, self._cache_bytes
        return RemoteStorage, arguments, {"_access": self._access}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._access.update(state["_access"])

    def __repr__(self) -> str:
        return f"RemoteStorage({self._url.public!r})"

    def clean(self, path: AnyPath) -> str:
        url = self._parse(parse_path(path))
        access = url.userinfo, url.query
        if access != self._default_access(url):
            self._access[url.path] = access
        return url.public

    def _parse(self, path: str) -> Url:
        """Parse a URL; add its user name, password and query if it has none."""
        url = Url.parse(path)
        if url.public != replace(self._url, path=url.path).public:
            raise StorageError(f"the URL is not in {self!r}", path=shown(path))
        userinfo, query = self._access.get(url.path) or self._default_access(url)
        if url.userinfo or url.query:
            userinfo, query = url.userinfo or userinfo, url.query
        return replace(url, userinfo=userinfo, query=query)

    def _default_access(self, url: Url) -> tuple[str, str]:
        # With protocols other than HTTP, a query belongs to one file: the version of an object.
        return self._url.userinfo, self._url.query if url.is_http else ""

    def address(self, path: str) -> str:
        return str(self._parse(path))

    def join(self, directory: str, name: str) -> str:
        return self._parse(directory).join(name).public

    def name(self, path: str) -> str:
        return self._parse(path).name

    def parent(self, path: str) -> str:
        return self._parse(path).parent.public

    def is_directory(self, path: str) -> bool:
        url = self._parse(path)
        if url.is_http:  # there, a page with links is a file and a directory
            return bool(self._find(url, "isdir"))
        info = self._find(url)
        return info is not None and info["type"] == "directory"

    def exists(self, path: str) -> bool:
        return self._find(self._parse(path)) is not None

    def _find(self, url: Url, method: str = "info", action: str = "looking up") -> Any:
        """Return the result of a method of fsspec, by default its info; None for missing files."""
        call = partial(self._driver.info, self._fs_path(url), method)
        try:
            return retry(call, str(url), action)
        except StorageNotFoundError:
            return None

    def stat(self, paths: Sequence[str]) -> _builtin_list[Stat | None]:
        return self._driver.run_all([partial(self._stat, self._parse(path)) for path in paths])

    def _stat(self, url: Url) -> Stat | None:
        info = self._find(url)
        if info is None or info["type"] == "directory":
            return None
        if info.get("size") is None:
            raise StorageError(
                "the server does not report the size of the file",
                path=url.public,
                remedy="copy it to a local disk, or use a server that sends Content-Length",
            )
        return Stat(int(info["size"]), version_of(info))

    def _open(self, path: str) -> RemoteFile:
        url = self._parse(path)
        state = self._stat(url)
        if state is None:
            raise StorageNotFoundError("there is no such file", path=url.public)
        return RemoteFile(self._driver, url, state)

    def list(self, directory: str, *, recursive: bool = False) -> _builtin_list[str]:
        url = self._parse(directory)
        return sorted(url.join(name).public for name in self._names(url, recursive, False))

    def is_pattern(self, path: str) -> bool:
        return _pattern(self._parse(path)) is not None

    def glob(self, pattern: str) -> _builtin_list[str]:
        url = self._parse(pattern)
        parsed = _pattern(url)
        if parsed is None:
            return [url.public] if self.stat([str(url)])[0] is not None else []
        directory = replace(url, path=parsed.directory)
        try:
            names = self._names(directory, parsed.depth != 1, True)
        except StorageNotFoundError:
            return []
        return sorted(directory.join(name).public for name in names if parsed.matches(name))

    def _names(self, directory: Url, recursive: bool, hidden: bool) -> set[str]:
        """Return the files in a directory, relative to it."""
        method, options = ("find", {}) if recursive else ("ls", {"detail": True})
        path = self._fs_path(directory)
        list_files = partial(self._driver.info, path, method, timeout=None, **options)
        found = retry(list_files, str(directory), "listing")
        if not recursive:
            found = [info["name"] for info in found if info["type"] == "file"]
        base = self._fs_path(replace(directory, query="")).strip("/")
        names = set()
        for path in found:
            if not path.strip("/").startswith(base):  # a link to another site
                continue
            name = path.strip("/")[len(base) :].lstrip("/")
            if directory.is_http:  # pages also have links that sort their tables
                name = unquote(name) if not set("?#") & set(name) else ""
            if name and not path.endswith("/"):
                names.add(name)
        if not names and not self.is_directory(str(directory)):
            hint = ", or its server does not list it" if directory.is_http else ""
            raise StorageNotFoundError(f"there is no such directory{hint}", path=directory.public)
        return {name for name in names if hidden or not f"/{name}".count("/.")}

    def read(self, path: str, limit: int = MAX_METADATA_BYTES) -> bytes:
        url = self._parse(path)
        get = partial(self._driver.get, self._fs_path(url), limit)
        return bytes(retry(get, str(url), "reading")[0] or b"")

    def write(self, path: str, data: bytes) -> None:
        url = self._parse(path)
        self._put(url, "pipe_file", self._fs_path(url), data)

    def replace(self, path: str, data: bytes, expected: Stat | None) -> None:
        url = self._parse(path)
        if self._driver.is_s3:
            condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected.version}
            try:
                self._put(url, "pipe_file", self._fs_path(url), data, **condition)
                return
            except UnsupportedOperationError:  # by some servers with the interface of S3
                pass
        self.write(path, data)

    def upload(self, local: str, path: str) -> None:
        os.stat(local)  # a missing local file is not an error of the server
        url = self._parse(path)
        self._put(url, "put_file", local, self._fs_path(url))

    def _put(self, url: Url, method: str, *args: Any, **options: Any) -> None:
        put = partial(self._driver.call, method, *args, timeout=None, **options)
        try:
            retry(put, str(url), "writing")
        except StorageNotFoundError:
            # Create missing directories, but not buckets, which asynchronous drivers have.
            if self._driver.is_async:
                raise
            self._run(url.parent, "creating a directory", "makedirs", exist_ok=True)
            retry(put, str(url), "writing")

    def copy(self, source: str, target: str) -> None:
        self._run(self._parse(source), "copying", "cp_file", self._fs_path(self._parse(target)))

    def remove(self, paths: Sequence[str]) -> None:
        urls = [self._parse(path) for path in paths]
        self._driver.run_all([partial(self._find, url, "rm_file", "removing") for url in urls])

    def open_stream(self, path: str) -> BinaryIO:
        stream = RemoteStream(self._open(path))
        return cast(BinaryIO, io.BufferedReader(stream, _BUFFER_BYTES))

    def open_cached(self, path: str) -> CachedFile:
        file = self._open(path)
        if self._cache is None:
            self._cache = DiskCache(self._limit)
        return CachedFile(file, self._cache, repr(_server(self._options)))

    def _fs_path(self, url: Url) -> str:
        return self._driver.path_of(url)

    def _run(self, url: Url, action: str, method: str, *args: Any, **options: Any) -> None:
        """Call a method of fsspec whose first argument is a path, without a timeout."""
        call = partial(self._driver.call, method, self._fs_path(url), *args, **options)
        retry(partial(call, timeout=None), str(url), action)


class RemoteStream(io.RawIOBase):
    """The bytes of a remote file, in order, with prefetched ranges.

    Memory is bounded by the prefetched ranges. Their number and their sizes grow while the file is
    read in order.

    Args:
        file: The file.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self.name = shown(file.url)
        self._file = file
        self._position = 0
        self._ranges: deque[tuple[int, int, Future[bytes]]] = deque()
        """The begin, end and bytes of the range at the position, and of those that follow it."""
        self._requested = 0
        self._pid = os.getpid()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_CUR: self._position, io.SEEK_END: self._file.state.size}.get(whence, 0)
        if base + offset < 0:
            raise ValueError(f"position is {base + offset}; must be an integer >= 0")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._file.state.size - self._position)]
        if not view:
            return 0
        begin, future = self._prefetch()
        data = memoryview(future.result())[self._position - begin :][: len(view)]
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Cancel the requests that are not in flight yet."""
        for _, _, future in self._ranges:
            future.cancel()
        super().close()

    def _prefetch(self) -> tuple[int, Future[bytes]]:
        """Return the range at the position, and request those that follow it."""
        is_near = self._ranges and self._ranges[0][0] <= self._position <= self._ranges[-1][1]
        if not is_near or self._pid != os.getpid():  # requests of the parent of a forked child
            self._ranges.clear()
            self._requested, self._pid = 0, os.getpid()
        while self._ranges and self._ranges[0][1] <= self._position:
            self._ranges.popleft()
        begin = self._ranges[-1][1] if self._ranges else self._position
        prefetched = min(1 + self._requested - len(self._ranges), _MAX_PREFETCHED)
        while begin < self._file.state.size and len(self._ranges) < prefetched:
            length = min(_FIRST_RANGE_BYTES << min(self._requested, 8), _MAX_RANGE_BYTES)
            end = min(begin + length, self._file.state.size)
            future = self._file.driver.submit(partial(self._file.read, begin, end))
            self._ranges.append((begin, end, future))
            self._requested += 1
            begin = end
        return self._ranges[0][0], self._ranges[0][2]


def _pattern(url: Url) -> Pattern | None:
    """Parse the path of a URL as a pattern; the query is not part of it."""
    # A "?" in an HTTP URL begins the query. The brackets of an IPv6 address are not a pattern.
    host = re.match(r"(\[[^\]/]*:[^\]/]*\])?", url.path)
    assert host is not None
    path = url.path[host.end() :]
    found = parse_pattern(unquote(path), "*[") if url.is_http else parse_pattern(path)
    return None if found is None else replace(found, directory=f"{host[0]}{found.directory}")


def _server(options: Mapping[str, Any]) -> Any:
    """Return the storage options that identify the server."""
    found = {}
    for key, value in sorted(options.items()):
        if isinstance(value, Mapping):
            found[key] = _server(value)
        elif key in LOCATION_OPTIONS:
            found[key] = str(value)
    return {key: value for key, value in found.items() if value}
