"""Files behind a URL, through fsspec."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

from covey.errors import StorageError, StorageNotFoundError
from covey.storage.base import Pattern, Stat, Storage, parse_pattern
from covey.storage.cache import DiskCache, cache_limit
from covey.storage.errors import ErrorKind, classify
from covey.storage.filesystem import Call, RemoteFilesystem, named
from covey.storage.range_cache import RemoteBlocks
from covey.storage.range_requests import can_compare, measure, version_of, whole_call
from covey.storage.readahead import RemoteStream
from covey.storage.retry import Retry, Task, run, run_one
from covey.untrusted import MAX_METADATA_BYTES
from covey.urls import LOCATION_OPTIONS, Url, shown

_builtin_list = list

_BUFFER_BYTES = 1 << 17


class RemoteStorage(Storage):
    """The files that a URL leads to.

    Paths that methods return have no user name, password or query, so that they can be shown. The
    storage knows them and adds them to each request.

    Args:
        url: Of any file or directory in it.
        options: fsspec's storage options.
        cache_bytes: How much of it may be kept on disk.
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
        self._connection = RemoteFilesystem(self._url, self._options)
        self._cache: DiskCache | None = None
        self._access: dict[str, tuple[str, str]] = {}
        """User name and password, and query, by path, where they differ from those of the URL."""
        self.clean(url)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = str(self._url), self._options, self._cache_bytes
        return RemoteStorage, arguments, {"_access": self._access}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._access.update(state["_access"])

    def __repr__(self) -> str:
        return f"RemoteStorage({self._url.public!r})"

    def clean(self, path: str | os.PathLike[str]) -> str:
        url = self._parse(os.fspath(path))
        access = url.userinfo, url.query
        if access != self._default_access(url):
            self._access[url.path] = access
        return url.public

    def _parse(self, path: str) -> Url:
        """A URL with its user name, password and query, whether or not the path has them."""
        url = Url.parse(path)
        if url.public != replace(self._url, path=url.path).public:
            raise StorageError(f"it is not in the storage that {self!r} is", path=shown(path))
        userinfo, query = self._access.get(url.path) or self._default_access(url)
        if url.userinfo or url.query:
            userinfo, query = url.userinfo or userinfo, url.query
        return replace(url, userinfo=userinfo, query=query, tail=self._url.tail)

    def _default_access(self, url: Url) -> tuple[str, str]:
        # With other protocols than HTTP, a query is of one file: the version of an object.
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
        if url.is_http:  # where whatever has links is a directory, and a file as well
            return bool(self._try(url, "looking", self._named("isdir", url)))
        info = self._try(url, "looking", self._named("info", url))
        return info is not None and info["type"] == "directory"

    def exists(self, path: str) -> bool:
        url = self._parse(path)
        return self._try(url, "looking", self._named("info", url)) is not None

    def stat(self, paths: Sequence[str]) -> _builtin_list[Stat | None]:
        urls = [self._parse(path) for path in paths]
        tasks = [self._task(url, "looking", self._named("info", url)) for url in urls]
        found: dict[int, Mapping[str, Any]] = {}
        run(tasks, lambda task, info: found.update({id(task): info}), _is_missing)
        return [
            self._state(url, found.get(id(task))) for url, task in zip(urls, tasks, strict=True)
        ]

    def _state(self, url: Url, info: Mapping[str, Any] | None) -> Stat | None:
        if info is None or info["type"] == "directory":
            return None
        version = version_of(info)
        if info.get("size") is not None:
            return Stat(int(info["size"]), version)
        path = self._connection.path_of(str(url))
        attempts = Retry(self._connection, str(url), "reading, to know its size,")
        return attempts.repeat(lambda: measure(self._connection, path, version))

    def _state_of(self, url: Url) -> Stat:
        state = self.stat([str(url)])[0]
        if state is None:
            raise StorageNotFoundError(f"{url.public}: there is no such file")
        return state

    def list(self, directory: str, *, recursive: bool = False) -> _builtin_list[str]:
        url = self._parse(directory)
        return sorted(url.join(name).public for name in self._names(url, recursive, False))

    def is_pattern(self, path: str) -> bool:
        return _pattern(self._parse(path)) is not None

    def glob(self, pattern: str) -> _builtin_list[str]:
        url = self._parse(pattern)
        wanted = _pattern(url)
        if wanted is None:
            return [url.public] if self.stat([str(url)])[0] is not None else []
        directory = replace(url, path=wanted.directory)
        try:
            names = self._names(directory, wanted.is_deep, True)
        except StorageNotFoundError:
            return []
        return sorted(directory.join(name).public for name in names if wanted.matches(name))

    def _names(self, directory: Url, recursive: bool, hidden: bool) -> set[str]:
        """The files in a directory, relative to it."""
        if recursive:
            found = self._one(directory, "listing", self._named("find", directory), timed=False)
        else:
            listing = self._named("ls", directory, detail=True)
            infos = self._one(directory, "listing", listing, timed=False)
            found = [info["name"] for info in infos if info["type"] == "file"]
        base = self._connection.path_of(str(replace(directory, query=""))).strip("/")
        names = set()
        for path in found:
            if not path.strip("/").startswith(base):  # a link to elsewhere
                continue
            name = path.strip("/")[len(base) :].lstrip("/")
            if directory.is_http:
                # Pages have links that sort their tables, too.
                name = unquote(name) if not set("?#") & set(name) else ""
            if name and not path.endswith("/"):
                names.add(name)
        if not names and not self.is_directory(str(directory)):
            how = ", or its server does not list it" if directory.is_http else ""
            raise StorageNotFoundError(f"{directory.public}: there is no such directory{how}")
        return {name for name in names if hidden or not f"/{name}".count("/.")}

    def read(self, path: str) -> bytes:
        url = self._parse(path)
        fs_path = self._connection.path_of(str(url))
        call = whole_call(fs_path, url.public, MAX_METADATA_BYTES)
        data: bytes = self._one(url, "reading", call)
        return data

    def write(self, path: str, data: bytes) -> None:
        self._put(self._parse(path), "pipe_file", lambda fs_path: (fs_path, data))

    def replace(self, path: str, data: bytes, expected: Stat | None) -> None:
        if not can_compare(self._connection):
            self.write(path, data)
            return
        condition = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected.version}
        try:
            self._put(self._parse(path), "pipe_file", lambda fs_path: (fs_path, data), **condition)
        except StorageError as error:
            # Some servers that are like S3 do not know conditions.
            if not isinstance(error.__cause__, NotImplementedError):
                raise
            self.write(path, data)

    def upload(self, local: str, path: str) -> None:
        os.stat(local)  # what is missing here is not to be looked for there
        self._put(self._parse(path), "put_file", lambda fs_path: (local, fs_path))

    def _put(self, url: Url, method: str, arguments: Any, **options: Any) -> None:
        call = named(method, *arguments(self._connection.path_of(str(url))), **options)
        try:
            self._one(url, "writing", call, timed=False)
        except StorageNotFoundError:
            # Where there are real directories, they have to be made; buckets, nobody asked for.
            if self._connection.is_asynchronous:
                raise
            parent = self._connection.path_of(str(url.parent))
            self._one(url.parent, "making a directory", named("makedirs", parent, exist_ok=True))
            self._one(url, "writing", call, timed=False)

    def copy(self, source: str, target: str) -> None:
        url, other = self._parse(source), self._connection.path_of(self.address(target))
        self._one(url, "copying", self._named("cp_file", url, other), timed=False)

    def remove(self, paths: Sequence[str]) -> None:
        urls = [self._parse(path) for path in paths]
        tasks = [self._task(url, "removing", self._named("rm_file", url)) for url in urls]
        run(tasks, lambda task, result: None, _is_missing)

    def open_stream(self, path: str) -> BinaryIO:
        url = self._parse(path)
        text, state = str(url), self._state_of(url)
        stream = RemoteStream(self._connection, text, state, lambda: self.stat([text])[0])
        return cast(BinaryIO, io.BufferedReader(stream, _BUFFER_BYTES))

    def open_blocks(self, path: str) -> RemoteBlocks:
        url = self._parse(path)
        if self._cache is None:
            self._cache = DiskCache(self._limit)
        where = repr(_where(self._options))
        state = self._state_of(url)
        return RemoteBlocks(self._connection, self._cache, str(url), state, where, self.stat)

    def _named(self, method: str, url: Url, *args: Any, **options: Any) -> Call:
        """A call of one of fsspec's methods that sees what is there now, and not just before."""
        path = self._connection.path_of(str(url))

        def call(filesystem: Any) -> Any:
            filesystem.invalidate_cache()
            return named(method, path, *args, **options)(filesystem)

        return call

    def _task(self, url: Url, doing: str, call: Call, *, timed: bool = True) -> Task:
        attempts = Retry(self._connection, str(url), doing)
        return Task(self._connection, call, attempts, timed=timed)

    def _one(self, url: Url, doing: str, call: Call, *, timed: bool = True) -> Any:
        return run_one(self._task(url, doing, call, timed=timed))

    def _try(self, url: Url, doing: str, call: Call) -> Any:
        """The result of a call; None if something is missing."""
        try:
            return self._one(url, doing, call)
        except StorageNotFoundError:
            return None


def _pattern(url: Url) -> Pattern | None:
    """The pattern that a path is; a query never is one."""
    # A "?" in a URL of HTTP begins its query. The brackets of an IPv6 address match nothing.
    host = re.match(r"(\[[^\]/]*:[^\]/]*\])?", url.path)
    assert host is not None
    path = url.path[host.end() :]
    found = parse_pattern(unquote(path), "*[") if url.is_http else parse_pattern(path)
    return None if found is None else replace(found, directory=f"{host[0]}{found.directory}")


def _is_missing(task: Task, error: Exception) -> bool:
    return classify(error) is ErrorKind.MISSING


def _where(options: Mapping[str, Any]) -> Any:
    """What of the options tells one server's files from another's."""
    found = {}
    for key, value in sorted(options.items()):
        if isinstance(value, Mapping):
            found[key] = _where(value)
        elif key in LOCATION_OPTIONS:
            found[key] = str(value)
    return {key: value for key, value in found.items() if value}
