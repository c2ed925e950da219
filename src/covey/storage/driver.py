"""The fsspec driver of a URL, and ranges of files in the state in which they were opened."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from covey._threads import DaemonThreads
from covey.errors import FileChangedError, StorageError
from covey.storage.errors import TruncatedResponseError, retry, to_storage_error
from covey.storage.local import Stat
from covey.untrusted import RegularFile
from covey.urls import Url

Result = TypeVar("Result")

Content = tuple[bytes | None, Stat | None]
"""Bytes of a file, None if they are not those of the requested range; and the state of the file."""

# Timeout of drivers without a timeout of their own, long enough for a few MiB on a slow connection,
# and of an HTTP connection without data.
_REQUEST_TIMEOUT_S = 300
_SOCKET_TIMEOUT_S = 30

# Limit on the requests in flight. Drivers without an event loop send one after the other.
_MAX_REQUESTS = 32

_CHUNK_BYTES = 1 << 20

# The fields of fsspec's info(), and of headers, that identify a state of a file, the most reliable
# first.
_VERSION_FIELDS = (
    "ETag etag generation md5Hash checksum sha blob_id mtime LastModified last_modified "
    "Last-Modified updated modified modify modificationTime created"
)


# Connections of the parent that a child must not close: closing a connection of fsspec removes it
# from the event loop, whose descriptors the two processes share.
_INHERITED: list[object] = []


class ForkAware:
    """An object whose lock and connections are reset in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _AWARE.add(self)

    def _reset_after_fork(self) -> object:
        """Drop all connections; the returned object is kept alive, so that they are not closed."""
        return None


_AWARE: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def _after_fork() -> None:
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:  # the thread of its event loop does not exist in the child
        asyn.reset_lock()
    for each in list(_AWARE):
        each._lock = threading.Lock()
        _INHERITED.append(each._reset_after_fork())


os.register_at_fork(after_in_child=_after_fork)


class _Threads(ForkAware):
    """The threads that send requests, of all storages of the process."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: DaemonThreads | None = None

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        with self._lock:
            if self._threads is None:
                self._threads = DaemonThreads(_MAX_REQUESTS, "covey-request")
            return self._threads.submit(task)

    def _reset_after_fork(self) -> object:
        inherited, self._threads = self._threads, None
        return inherited


_THREADS = _Threads()


class Driver(ForkAware):
    """The fsspec filesystem of a URL, connected when it is first used.

    Args:
        url: The URL of any file or directory in it.
        options: fsspec's storage options.

    Raises:
        StorageError: If the protocol is unknown, or fsspec or the driver is not installed.
    """

    def __init__(self, url: Url, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._url = url
        self._options = dict(options)
        self._fsspec = _import_fsspec(url)
        self._class = _import_class(self._fsspec, url)
        self._connected: Any = None
        self._serial = threading.Lock()

    def _reset_after_fork(self) -> object:
        inherited, self._connected = self._connected, None
        self._serial = threading.Lock()
        return inherited

    def path_of(self, url: Url) -> str:
        """Return the path of a URL in the filesystem."""
        try:
            path: str = self._class._strip_protocol(str(url))
            return path
        except (TypeError, ValueError, AttributeError, KeyError) as caught:
            error = caught
        raise to_storage_error(error, str(url), "parsing")

    @property
    def filesystem(self) -> Any:
        """The filesystem, which all threads share."""
        with self._lock:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    @property
    def is_async(self) -> bool:
        """Whether the driver runs on fsspec's event loop."""
        return _is_async(self.filesystem)

    @property
    def is_http(self) -> bool:
        """Whether the driver is fsspec's HTTP driver."""
        bases = type(self.filesystem).__mro__
        return any(base.__module__ == "fsspec.implementations.http" for base in bases)

    @property
    def is_s3(self) -> bool:
        """Whether the driver is s3fs, which supports conditional requests."""
        return _is_s3(self.filesystem)

    def call(
        self, method: str, *args: Any, timeout: float | None = _REQUEST_TIMEOUT_S, **options: Any
    ) -> Any:
        """Return the result of a method of fsspec, without retries.

        Args:
            method: The name of the method: ``"cat_file"``.
            args: The arguments of the method.
            timeout: The timeout in seconds of asynchronous drivers.
            options: The keyword arguments of the method.
        """
        filesystem = self.filesystem
        if not self.is_async:
            with self._serial:
                return getattr(filesystem, method)(*args, **options)
        return self.wait(getattr(filesystem, f"_{method}"), *args, timeout=timeout, **options)

    def wait(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return the result of a coroutine function that runs on the event loop."""
        return self._fsspec.asyn.sync(self.filesystem.loop, function, *args, **options)

    def info(self, path: str, method: str = "info", **options: Any) -> Any:
        """Return the result of ``info`` or a similar method, without a cache of listings."""
        self.filesystem.invalidate_cache()
        return self.call(method, path, **options)

    def get(self, path: str, limit: int, wanted: tuple[int, int] | None = None) -> Content:
        """Return the bytes of a file, and its state if the response has it.

        Args:
            path: The file in the filesystem.
            limit: The maximum number of bytes.
            wanted: The begin and the end of a range; by default the whole file.
        """
        if self.is_http or self.is_s3:
            get = _get_http if self.is_http else _get_s3
            found: Content = self.wait(get, self.filesystem, path, limit, wanted)
            return found
        if wanted is None:
            _check_size(self.info(path).get("size"), limit)
            return self.call("cat_file", path), None
        return self.call("cat_file", path, start=wanted[0], end=wanted[1]), None

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """Run a task that sends a request in another thread. It must not wait for other tasks."""
        return _THREADS.submit(task)

    def run_all(self, tasks: Iterable[Callable[[], Result]]) -> list[Result]:
        """Return the results of tasks that run concurrently."""
        futures = [self.submit(task) for task in tasks]
        return [future.result() for future in futures]

    def _connect(self) -> Any:
        options = {**self._options, **_default_options(self._url, self._options)}
        try:
            # Not an instance that other code shares: its settings are changed here.
            options["skip_instance_cache"] = True
            # url_to_fs would split the URL at "::", which its host or its query may have.
            found = self._class._get_kwargs_from_urls(str(self._url))
            connected = self._fsspec.filesystem(self._url.protocol, **{**found, **options})
            if _is_s3(connected):
                connected.retries = 1  # retry() counts the attempts
            return connected
        except Exception as caught:  # some drivers connect in their constructor
            error = caught
        # Not in the except clause: a traceback would show the driver error.
        if isinstance(error, (TypeError, ValueError, AttributeError, KeyError)):
            raise StorageError(
                f"the storage options {sorted(self._options)} are not valid for "
                f"{self._url.protocol}:// ({type(error).__name__})",
                path=self._url.public,
            )
        raise to_storage_error(error, str(self._url), "connecting")


def _is_s3(filesystem: Any) -> bool:
    return type(filesystem).__module__.split(".")[0] == "s3fs"


def _is_async(filesystem: Any) -> bool:
    # fsspec's cache wrappers report the async_impl of the wrapped filesystem and DirFileSystem the
    # opposite, so the class is checked as well.
    base = importlib.import_module("fsspec.asyn").AsyncFileSystem
    return issubclass(type(filesystem), base) and bool(filesystem.async_impl)


def _import_fsspec(url: Url) -> Any:
    try:
        for name in ("core", "asyn"):
            importlib.import_module(f"fsspec.{name}")
        return importlib.import_module("fsspec")
    except ImportError as error:
        reason = "URLs are read with fsspec, which is not installed"
        raise StorageError(reason, path=url.public, remedy="pip install 'covey[remote]'") from error


def _import_class(fsspec: Any, url: Url) -> Any:
    try:
        return fsspec.get_filesystem_class(url.protocol)
    except ValueError:
        supported = ", ".join(sorted(fsspec.available_protocols()))
        reason = f"unknown protocol {url.protocol!r}; supported protocols: {supported}"
        raise StorageError(reason, path=url.public) from None
    except ImportError as error:
        reason = f"the driver for {url.protocol}:// is not installed"
        raise StorageError(reason, path=url.public, remedy=str(error)) from error


def _default_options(url: Url, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return covey's defaults for the options of a driver, merged with the caller's options."""
    if url.protocol in ("s3", "s3a"):
        config = {"retries": {"total_max_attempts": 1}, "max_pool_connections": _MAX_REQUESTS}
        return {"config_kwargs": {**config, **(options.get("config_kwargs") or {})}}
    if not url.is_http:
        return {}
    # A range of a compressed response would not be a range of the file.
    headers = {"Accept-Encoding": "identity", **(options.get("headers") or {})}
    if "timeout" in options:
        return {"headers": headers}
    timeout = importlib.import_module("aiohttp").ClientTimeout(
        total=None, sock_connect=_SOCKET_TIMEOUT_S, sock_read=_SOCKET_TIMEOUT_S
    )
    client = {"timeout": timeout, **(options.get("client_kwargs") or {})}
    return {"headers": headers, "client_kwargs": client}


# fsspec's HTTP driver reads any body to its end, and neither driver returns the state of the file.
# The body of a server that ignores ranges would fill the memory, a wrong range would not be
# noticed, and a request for the state would have to follow each range.


async def _get_http(driver: Any, url: str, limit: int, wanted: tuple[int, int] | None) -> Content:
    session = await driver.set_session()
    options = dict(driver.kwargs)
    headers = {**options.pop("headers", {}), **_range_header(wanted)}
    async with session.get(driver.encode_url(url), headers=headers, **options) as response:
        response.raise_for_status()
        found = re.match(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        size = int(found[2]) if found else response.content_length
        if wanted is not None:
            # The whole file is a valid response to a range that has all of it.
            is_whole = wanted[0] == 0 and size is not None and size <= wanted[1]
            if response.status != 206 and not is_whole:
                return None, None
            if found is not None and int(found[1]) != wanted[0]:
                raise TruncatedResponseError()
        _check_size(response.content_length, limit)
        data = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            data += chunk
            _check_size(len(data), limit)
        return bytes(data), None if size is None else Stat(size, version_of(response.headers))


async def _get_s3(driver: Any, path: str, limit: int, wanted: tuple[int, int] | None) -> Content:
    bucket, key, version = driver.split_path(path)
    options = {**_range_header(wanted), **({"VersionId": version} if version else {})}
    response = await driver._call_s3("get_object", Bucket=bucket, Key=key, **options)
    try:
        _check_size(response.get("ContentLength"), limit)
        data: bytes = await response["Body"].read()
    finally:
        response["Body"].close()
    size = response.get("ContentRange", "").rpartition("/")[2]
    return data, Stat(int(size), version_of(response)) if size.isdecimal() else None


def _range_header(wanted: tuple[int, int] | None) -> dict[str, str]:
    return {} if wanted is None else {"Range": f"bytes={wanted[0]}-{wanted[1] - 1}"}


def _check_size(size: int | None, limit: int) -> None:
    if size is not None and size > limit:
        raise StorageError(f"the file has {size:,} bytes or more; must be at most {limit:,}")


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of a file from fsspec's info or from headers; "" if it has none."""
    return next((str(info[key]) for key in _VERSION_FIELDS.split() if info.get(key)), "")


class RemoteFile(ForkAware):
    """Reads ranges of a remote file in the state in which it was opened.

    Args:
        driver: The driver.
        url: The URL of the file.
        state: The state of the file.
    """

    def __init__(self, driver: Driver, url: Url, state: Stat) -> None:
        super().__init__()
        self.driver = driver
        self.url = str(url)
        self.state = state
        self.copy: RegularFile | None = None
        """A temporary copy, if the server returns the whole file for any range."""
        self._copying = threading.Lock()
        self._path = driver.path_of(url)
        self._checked = 0.0  # the time at which the file was known to be unchanged

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of a range.

        Raises:
            FileChangedError: If the file changed after it was opened.
        """
        action = f"reading bytes {begin} to {end}"
        data = None
        if self.copy is None:
            data = retry(lambda: self._read(begin, end), self.url, action)
        return self._open_copy().read_at(begin, end - begin) if data is None else data

    def _read(self, begin: int, end: int) -> bytes | None:
        data, state = self.driver.get(self._path, end - begin, (begin, end))
        if data is None:  # the server ignores ranges
            return None
        if len(data) == self.state.size:  # the driver ignores ranges
            data = data[begin:end]
        if state != self.state:
            self._check_unchanged(time.monotonic())
        if len(data) != end - begin:
            raise TruncatedResponseError()
        return bytes(data)

    def _check_unchanged(self, received: float) -> None:
        """Raise FileChangedError if the file changed before a response was received.

        One request confirms all responses that were received before it.
        """
        with self._lock:
            if self._checked > received:
                return
            now = time.monotonic()
            info, expected = self.driver.info(self._path), self.state
            size, version = info.get("size"), version_of(info)
            changed = version and expected.version and version != expected.version
            if changed or size not in (None, expected.size):
                raise FileChangedError()
            self._checked = now

    def _open_copy(self) -> RegularFile:
        """Return a temporary copy of the whole file, which is fetched by one request."""
        with self._copying, tempfile.TemporaryDirectory() as directory:
            target = os.path.join(directory, "copy")

            def call() -> None:
                self.driver.call("get_file", self._path, target, timeout=None)
                self._check_unchanged(time.monotonic())
                if os.path.getsize(target) != self.state.size:
                    raise TruncatedResponseError()

            if self.copy is None:
                retry(call, self.url, "reading")
                self.copy = RegularFile(target)  # the open file outlives its name
                weakref.finalize(self, self.copy.close)
            return self.copy
