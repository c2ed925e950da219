"""Remote files, through fsspec."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from covey.errors import StorageError, StorageNotFoundError
from covey.storage.base import Pattern, Stat, Storage, parse_pattern
from covey.storage.cache import DiskCache, cache_limit
from covey.storage.errors import UnsupportedOperationError
from covey.storage.filesystem import Call, RemoteFilesystem, is_http, method_call
from covey.storage.range_cache import CachedFile
from covey.storage.readahead import RemoteStream
from covey.storage.requests import (
    REQUEST_TIMEOUT_S,
    Request,
    check_size,
    download_call,
    info_call,
    read_call,
    run_all,
    run_one,
    version_of,
)
from covey.untrusted import MAX_METADATA_BYTES
from covey.urls import LOCATION_OPTIONS, AnyPath, Url, parse_path, shown

_builtin_list = list

_BUFFER_BYTES = 1 << 17


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
        self._filesystem = RemoteFilesystem(self._url, self._options)
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
        return replace(url, userinfo=userinfo, query=query, tail=self._url.tail)

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

    def stat(self, paths: Sequence[str]) -> _builtin_list[Stat | None]:
        urls = [self._parse(path) for path in paths]
        requests = [self._info_request(url) for url in urls]
        found = dict(run_all(requests))
        return [self._stat(url, found[each]) for url, each in zip(urls, requests, strict=True)]

    def _stat(self, url: Url, info: Mapping[str, Any] | None) -> Stat | None:
        if info is None or info["type"] == "directory":
            return None
        version = version_of(info)
        if info.get("size") is not None:
            return Stat(int(info["size"]), version)
        # The server does not report the size: read the file.
        with tempfile.TemporaryDirectory() as directory:
            target = os.path.join(directory, "file")
            call = download_call(self._fs_path(url), target, None)
            self._run(url, "reading", call, timeout_s=None)
            digest = hashlib.sha256()
            with open(target, "rb") as file:
                while chunk := file.read(_BUFFER_BYTES):
                    digest.update(chunk)
            return Stat(os.path.getsize(target), version or digest.hexdigest())

    def _stat_file(self, url: Url) -> Stat:
        state = self.stat([str(url)])[0]
        if state is None:
            raise StorageNotFoundError("there is no such file", path=url.public)
        return state

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
        call = info_call(self._fs_path(directory), method, **options)
        found = self._run(directory, "listing", call, timeout_s=None)
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
        if not is_http(self._filesystem.filesystem):
            check_size(self._stat_file(url).size, url.public, limit)
        call = read_call(self._fs_path(url), url.public, limit)
        data: bytes = self._run(url, "reading", call)
        return data

    def write(self, path: str, data: bytes) -> None:
        url = self._parse(path)
        self._put(url, method_call("pipe_file", self._fs_path(url), data))

    def replace(self, path: str, data: bytes, expected: Stat | None) -> None:
        url = self._parse(path)
        if self._filesystem.supports_conditions:
            condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected.version}
            try:
                self._put(url, method_call("pipe_file", self._fs_path(url), data, **condition))
                return
            except UnsupportedOperationError:  # by some servers with the interface of S3
                pass
        self.write(path, data)

    def upload(self, local: str, path: str) -> None:
        os.stat(local)  # a missing local file is not an error of the server
        url = self._parse(path)
        self._put(url, method_call("put_file", local, self._fs_path(url)))

    def _put(self, url: Url, call: Call) -> None:
        try:
            self._run(url, "writing", call, timeout_s=None)
        except StorageNotFoundError:
            # Create missing directories, but not buckets, which asynchronous drivers have.
            if self._filesystem.is_async:
                raise
            makedirs = method_call("makedirs", self._fs_path(url.parent), exist_ok=True)
            self._run(url.parent, "creating a directory", makedirs)
            self._run(url, "writing", call, timeout_s=None)

    def copy(self, source: str, target: str) -> None:
        url, other = self._parse(source), self._parse(target)
        call = method_call("cp_file", self._fs_path(url), self._fs_path(other))
        self._run(url, "copying", call, timeout_s=None)

    def remove(self, paths: Sequence[str]) -> None:
        for _ in run_all([self._info_request(self._parse(path), "rm_file") for path in paths]):
            pass

    def open_stream(self, path: str) -> BinaryIO:
        url = self._parse(path)
        state = self._stat_file(url)
        stream = RemoteStream(
            self._filesystem, str(url), state, lambda: self._open_cached(url, state)
        )
        return cast(BinaryIO, io.BufferedReader(stream, _BUFFER_BYTES))

    def open_cached(self, path: str) -> CachedFile:
        url = self._parse(path)
        return self._open_cached(url, self._stat_file(url))

    def _open_cached(self, url: Url, state: Stat) -> CachedFile:
        if self._cache is None:
            self._cache = DiskCache(self._limit)
        server = repr(_server(self._options))
        return CachedFile(self._filesystem, self._cache, str(url), state, server)

    def _fs_path(self, url: Url) -> str:
        return self._filesystem.path_of(str(url))

    def _find(self, url: Url, method: str = "info") -> Any:
        """Return fsspec's info of a path; None if it does not exist."""
        return run_one(self._info_request(url, method))

    def _info_request(self, url: Url, method: str = "info") -> Request:
        action = "removing" if method == "rm_file" else "looking up"
        call = info_call(self._fs_path(url), method)
        return Request(self._filesystem, str(url), action, call, missing_ok=True)

    def _run(
        self, url: Url, action: str, call: Call, *, timeout_s: float | None = REQUEST_TIMEOUT_S
    ) -> Any:
        return run_one(Request(self._filesystem, str(url), action, call, timeout_s=timeout_s))


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
