"""Remote files through the drivers of fsspec: connection, retries, errors, and ranges of files.

Drivers raise exceptions of their own libraries (botocore, aiohttp, google-auth), which are not
imported here. They are classified by HTTP status, then by type; class names are used only for
errors that have neither. Messages show the URL without credentials, the type of the exception and
its status, never its text, which may contain credentials.
"""

from __future__ import annotations

import errno
import http.client
import importlib
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from covey._fork import ForkAware
from covey._threads import DaemonThreads
from covey.errors import (
    FileChangedError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
)
from covey.storage.base import Stat
from covey.urls import Url, shown

Result = TypeVar("Result")

MAX_ATTEMPTS = 5
BACKOFF_BASE_S = 0.5
_MAX_BACKOFF_S = 20.0

# Forked processes share the state of any other generator, and would retry at the same moment.
_RANDOM = random.SystemRandom()

# Timeout of drivers without a timeout of their own, long enough for a few MiB on a slow connection,
# and of an HTTP connection without data.
_REQUEST_TIMEOUT_S = 300
_SOCKET_TIMEOUT_S = 30

MAX_REQUESTS = 32
"""The maximum number of requests in flight."""
_MAX_BLOCKING_REQUESTS = 8  # of drivers without an event loop: each thread has a connection

_CHUNK_BYTES = 1 << 20

# The fields of fsspec's info() that identify a state of a file, the most reliable first.
_VERSION_FIELDS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "checksum",
    "sha",
    "blob_id",
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "modified",
    "modify",
    "modificationTime",
    "created",
)


# Errors.


class TruncatedResponseError(ConnectionError):
    """A response does not have the requested bytes."""


class UnsupportedOperationError(StorageError, NotImplementedError):
    """A driver or server does not implement an operation."""


# The error to raise; None for errors that may be transient. Other 5xx are transient as well.
_STATUSES: dict[int, type[StorageError] | None] = {
    401: StoragePermissionError,
    403: StoragePermissionError,
    404: StorageNotFoundError,
    407: StoragePermissionError,
    408: None,
    410: StorageNotFoundError,
    412: FileChangedError,
    416: FileChangedError,  # the range is beyond the end of the file
    425: None,
    429: None,
    501: UnsupportedOperationError,
    505: StorageError,
}
_TYPES: tuple[tuple[type[BaseException], type[StorageError] | None], ...] = (
    (FileChangedError, FileChangedError),
    (StorageError, StorageError),
    (FileNotFoundError, StorageNotFoundError),
    (PermissionError, StoragePermissionError),
    (FileExistsError, StorageError),
    (IsADirectoryError, StorageError),
    (NotADirectoryError, StorageError),
    (NotImplementedError, UnsupportedOperationError),
    (ssl.SSLCertVerificationError, StorageError),
    (ConnectionError, None),
    (TimeoutError, None),
    (EOFError, None),
    (http.client.IncompleteRead, None),
)
# Client libraries raise these before a response exists, and derive them from Exception.
_REFUSALS = re.compile("Credential|Authentication|SSOToken|TokenRetrieval|ProfileNot|RefreshError")
_LOST_CONNECTIONS = re.compile(
    "ClientConnection|ClientPayload|HTTPClient|IncompleteRead|ResponseParser|SSH"
)
# None: some drivers raise an OSError without errno for any failure of the connection.
_TRANSIENT = {None, errno.EAGAIN, errno.EBUSY, errno.EIO, errno.ENETDOWN, errno.ENETUNREACH}
_TRANSIENT |= {errno.EHOSTUNREACH, errno.ETIMEDOUT, getattr(errno, "EREMOTEIO", errno.EIO)}

_CREDENTIALS = {
    ("s3", "s3a"): "key and secret, anon for public data, AWS_ACCESS_KEY_ID, AWS_PROFILE",
    ("gs", "gcs"): "token, GOOGLE_APPLICATION_CREDENTIALS",
    ("http", "https"): "headers with Authorization",
    ("az", "abfs"): "account_name and account_key, AZURE_STORAGE_CONNECTION_STRING",
}


def classify(error: BaseException) -> type[StorageError] | None:
    """Return the type of the error to raise for a driver error; None if it may be transient."""
    # The innermost cause is the most specific: fsspec's HTTP driver raises FileNotFoundError also
    # if the server is down.
    causes = [*_causes(error)][::-1]
    for status in map(_status, causes):
        if status in _STATUSES:
            return _STATUSES[status]
        if status is not None and status >= 500:
            return None
    for cause in causes:
        for base, found in _TYPES:
            if isinstance(cause, base):
                return found
        names = " ".join(base.__name__ for base in type(cause).__mro__)
        if _REFUSALS.search(names):
            return StoragePermissionError
        if _LOST_CONNECTIONS.search(names):
            return None
        if isinstance(cause, OSError):
            return None if cause.errno in _TRANSIENT else StorageError
    return StorageError


def to_storage_error(
    error: BaseException, url: str, action: str, attempts: int = 1
) -> StorageError:
    """Return the error to raise in place of a driver error.

    Raise it outside of the ``except`` clause: a traceback shows the context of an exception.

    Args:
        error: The driver error.
        url: The URL of the file.
        action: The operation that failed, as a gerund: ``"reading"``.
        attempts: The number of attempts.
    """
    kind, path = classify(error), shown(url)
    causes = [*_causes(error)]
    reason = type(causes[-1]).__name__
    status = next((found for each in causes if (found := _status(each))), None)
    if status is not None:
        reason = f"HTTP status {status}, {reason}"
    if kind is FileChangedError:
        remedy = "open it again"
        return FileChangedError("the file changed after it was opened", path=path, remedy=remedy)
    if isinstance(error, StorageError):
        return error
    if kind is None:
        return StorageError(
            f"{action} failed {attempts} times; the last error is {reason}",
            path=path,
            remedy="check the connection and the server",
        )
    protocol = Url.parse(url).protocol
    if kind is StorageNotFoundError:
        return kind("there is no such file or directory", path=path)
    if kind is UnsupportedOperationError:
        return kind(f"{protocol}:// does not support {action}", path=path)
    if kind is StoragePermissionError:
        known = (options for names, options in _CREDENTIALS.items() if protocol in names)
        return kind(
            f"{action} is refused ({reason})",
            path=path,
            remedy="pass credentials in storage_options= or in the environment "
            f"({next(known, 'the options of its driver')}); some servers also refuse access to "
            "files that do not exist",
        )
    return StorageError(f"{action} failed with {reason}", path=path)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the chain of its causes."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, from the attribute that its library uses."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = iter([response.get("ResponseMetadata", {}).get("HTTPStatusCode")])
    else:
        names = ("status", "status_code", "code")
        found = (getattr(owner, name, None) for owner in (error, response) for name in names)
    for value in found:
        if isinstance(value, (int, str)) and str(value).isdecimal() and 100 <= int(value) < 600:
            return int(value)
    return None


def retry(call: Callable[[], Result], url: str, action: str) -> Result:
    """Return the result of a call of a driver; repeat it after transient errors.

    Args:
        call: The call.
        url: The URL of the file, for the error.
        action: The operation, for the error, as a gerund: ``"reading"``.

    Raises:
        StorageError: If an error is not transient, or the attempts are exhausted.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return call()
        except Exception as caught:
            error = caught
        if classify(error) is not None or attempt == MAX_ATTEMPTS:
            break
        longest = min(BACKOFF_BASE_S * 2**attempt, _MAX_BACKOFF_S)
        time.sleep(_RANDOM.uniform(longest / 4, longest / 2))
    # Not in the except clause: a traceback would show the driver error.
    raise to_storage_error(error, url, action, attempt)


# Drivers.


class _Threads(ForkAware):
    """The threads that send requests, of all storages of the process."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._threads: DaemonThreads | None = None

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        with self._lock:
            if self._threads is None:
                self._threads = DaemonThreads(self._count, "covey-request")
            return self._threads.submit(task)

    def _reset_after_fork(self) -> object:
        inherited, self._threads = self._threads, None
        return inherited


_ASYNC, _BLOCKING = _Threads(MAX_REQUESTS), _Threads(_MAX_BLOCKING_REQUESTS)


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
        self._class = self._import_class(url.protocol)
        self._shared: Any = None
        self._per_thread = threading.local()

    def _reset_after_fork(self) -> object:
        inherited = self._shared, self._per_thread
        self._shared, self._per_thread = None, threading.local()
        return inherited

    def path_of(self, url: Url) -> str:
        """Return the path of a URL in the filesystem."""
        try:
            path: str = self._class._strip_protocol(url.address)
            return path
        except (TypeError, ValueError, AttributeError, KeyError) as caught:
            error = caught
        raise to_storage_error(error, str(url), "parsing")

    @property
    def filesystem(self) -> Any:
        """The filesystem: one for all threads if it is asynchronous, else one per thread."""
        shared = self._shared
        if shared is None and not hasattr(self._per_thread, "filesystem"):
            with self._lock:
                if self._shared is None:
                    connected = self._connect()
                    if not _is_async(connected):
                        self._per_thread.filesystem = connected
                        return connected
                    self._shared = connected
                shared = self._shared
        return self._per_thread.filesystem if shared is None else shared

    @property
    def is_async(self) -> bool:
        """Whether the driver runs on fsspec's event loop."""
        return _is_async(self.filesystem)

    @property
    def is_http(self) -> bool:
        """Whether the driver is fsspec's HTTP driver."""
        name = ("fsspec.implementations.http", "HTTPFileSystem")
        bases = type(self.filesystem).__mro__
        return any((base.__module__, base.__name__) == name for base in bases)

    @property
    def is_s3(self) -> bool:
        """Whether the driver is s3fs, which supports conditional requests."""
        return type(self.filesystem).__module__.split(".")[0] == "s3fs"

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
            return getattr(filesystem, method)(*args, **options)
        return self.wait(getattr(filesystem, f"_{method}"), *args, timeout=timeout, **options)

    def wait(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return the result of a coroutine function that runs on the event loop."""
        return self._fsspec.asyn.sync(self.filesystem.loop, function, *args, **options)

    def info(self, path: str, method: str = "info", **options: Any) -> Any:
        """Return the result of ``info`` or a similar method, without a cache of listings."""
        self.filesystem.invalidate_cache()
        return self.call(method, path, **options)

    def run(self, url: Url, action: str, method: str, *args: Any, **options: Any) -> Any:
        """Return the result of :meth:`call`, after retries."""
        return retry(lambda: self.call(method, *args, **options), str(url), action)

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """Run a task that sends a request in another thread. It must not wait for other tasks."""
        return (_ASYNC if self.is_async else _BLOCKING).submit(task)

    def run_all(self, tasks: Iterable[Callable[[], Result]]) -> list[Result]:
        """Return the results of tasks that run concurrently."""
        waiting = list(tasks)
        if len(waiting) == 1:
            return [waiting[0]()]
        futures = [self.submit(task) for task in waiting]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _connect(self) -> Any:
        options = {**self._options, **_default_options(self._url, self._options)}
        try:
            # Not an instance that other code shares: its settings are changed here.
            options["skip_instance_cache"] = True
            if "::" not in self._url.address:
                connected, _ = self._fsspec.core.url_to_fs(str(self._url), **options)
            else:  # url_to_fs would split the address or the query at "::"
                found = self._class._get_kwargs_from_urls(self._url.address)
                connected = self._fsspec.filesystem(self._url.protocol, **{**found, **options})
            if type(connected).__module__.split(".")[0] == "s3fs":
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

    def _import_class(self, protocol: str) -> Any:
        try:
            return self._fsspec.get_filesystem_class(protocol)
        except ValueError:
            supported = ", ".join(sorted(self._fsspec.available_protocols()))
            raise StorageError(
                f"unknown protocol {protocol!r}; supported protocols: {supported}",
                path=self._url.public,
            ) from None
        except ImportError as error:
            known = importlib.import_module("fsspec.registry").known_implementations
            package = known[protocol]["class"].split(".")[0]
            remedy = f"pip install {package}" if package != "fsspec" else str(error)
            if protocol in ("s3", "s3a", "http", "https"):
                remedy = "pip install 'covey[remote]'"
            raise StorageError(
                f"the driver for {protocol}:// is not installed",
                path=self._url.public,
                remedy=remedy,
            ) from error


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
        raise StorageError(
            "URLs are read with fsspec, which is not installed",
            path=url.public,
            remedy="pip install 'covey[remote]'",
        ) from error


def _default_options(url: Url, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return covey's defaults for the options of a driver, merged with the caller's options."""
    if url.head or url.tail:
        return {}
    if url.protocol in ("s3", "s3a"):
        config = {"retries": {"total_max_attempts": 1}, "max_pool_connections": MAX_REQUESTS}
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


# Files.


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of a file from fsspec's info or from headers; "" if it has none."""
    return next((str(info[key]) for key in _VERSION_FIELDS if info.get(key)), "")


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
        self.url = url
        self.state = state
        self.ignores_ranges = False
        """Whether the server returns the whole file for any range."""
        self._path = driver.path_of(url)
        self._checked = 0.0  # the time at which the file was known to be unchanged

    def read(self, begin: int, end: int) -> bytes | None:
        """Return the bytes of a range; None if the server ignores ranges.

        Raises:
            FileChangedError: If the file changed after it was opened.
        """
        action = f"reading bytes {begin} to {end}"
        return retry(lambda: self._read(begin, end), str(self.url), action)

    def _read(self, begin: int, end: int) -> bytes | None:
        driver, state = self.driver, None
        if driver.is_http:
            data, state = driver.wait(_read_http, driver.filesystem, self._path, begin, end)
            if data is None:
                self.ignores_ranges = True
                return None
        elif driver.is_s3:
            data, state = driver.wait(_read_s3, driver.filesystem, self._path, begin, end)
        else:
            data = driver.call("cat_file", self._path, start=begin, end=end)
            if len(data) == self.state.size:  # the driver ignores ranges
                data = data[begin:end]
        if state != self.state:
            self.check_unchanged(time.monotonic())
        if len(data) != end - begin:
            raise TruncatedResponseError(f"{len(data)} of {end - begin} bytes were received")
        return bytes(data)

    def check_unchanged(self, received: float) -> None:
        """Raise FileChangedError unless the file was unchanged at a time, as ``monotonic()``.

        One request confirms all responses that were received before it.
        """
        with self._lock:
            if self._checked > received:
                return
            now = time.monotonic()
            info = self.driver.info(self._path)
            size, version, expected = info.get("size"), version_of(info), self.state
            changed = version and expected.version and version != expected.version
            if changed or (size is not None and size != expected.size):
                raise FileChangedError()
            self._checked = now

    def download(self, target: str) -> None:
        """Copy the whole file to a local path, by one request."""

        def call() -> None:
            self.driver.call("get_file", self._path, target, timeout=None)
            self.check_unchanged(time.monotonic())
            if os.path.getsize(target) != self.state.size:
                raise TruncatedResponseError(f"{os.path.getsize(target)} bytes were received")

        retry(call, str(self.url), "reading")


# fsspec's HTTP driver reads any body to its end, and neither driver returns the state of the file.
# The body of a server that ignores ranges would fill the memory, a wrong range would not be
# noticed, and a request for the state would have to follow each range.


async def _read_http(
    driver: Any, url: str, begin: int, end: int
) -> tuple[bytes | None, Stat | None]:
    """Return a range and the state of the file; None if the server ignores ranges."""
    async with await request_http(driver, url, {"Range": f"bytes={begin}-{end - 1}"}) as response:
        found = re.match(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        size = int(found[2]) if found else response.content_length
        if response.status != 206 and size != end - begin:
            return None, None
        if found is not None and int(found[1]) != begin:
            raise TruncatedResponseError(f"bytes from {found[1]} were received, not from {begin}")
        data: bytes = await response.read()
        return data, None if size is None else Stat(size, version_of(response.headers))


async def request_http(driver: Any, url: str, headers: Mapping[str, str] | None = None) -> Any:
    """Return the response to a GET request, whose body is not read yet."""
    session = await driver.set_session()
    options = dict(driver.kwargs)
    headers = {**options.pop("headers", {}), **(headers or {})}
    response = await session.get(driver.encode_url(url), headers=headers, **options)
    try:
        response.raise_for_status()
    except BaseException:
        response.close()
        raise
    return response


async def _read_s3(driver: Any, path: str, begin: int, end: int) -> tuple[bytes, Stat | None]:
    """Return a range and the state of an object."""
    response, data = await _request_s3(driver, path, Range=f"bytes={begin}-{end - 1}")
    size = response.get("ContentRange", "").rpartition("/")[2]
    return data, Stat(int(size), version_of(response)) if size.isdecimal() else None


async def _request_s3(
    driver: Any, path: str, name: str = "", limit: float = float("inf"), **options: str
) -> tuple[Mapping[str, Any], bytes]:
    """Return the response to a GET request, and its body."""
    bucket, key, version = driver.split_path(path)
    if version:
        options["VersionId"] = version
    response = await driver._call_s3("get_object", Bucket=bucket, Key=key, **options)
    try:
        check_size(response.get("ContentLength"), name, limit)
        return response, await response["Body"].read()
    finally:
        response["Body"].close()


def check_size(size: int | None, path: str, limit: float) -> None:
    """Raise StorageError if a file is too large to be read into memory."""
    if size is not None and size > limit:
        raise StorageError(
            f"the file has {size:,} bytes or more; must be at most {limit:,}", path=path
        )


async def read_s3_file(driver: Any, path: str, name: str, limit: int) -> bytes:
    """Return the content of a small object, as :func:`read_http_file`."""
    return (await _request_s3(driver, path, name, limit))[1]


async def read_http_file(driver: Any, url: str, name: str, limit: int) -> bytes:
    """Return the content of a small file; the response is not read beyond the limit.

    Args:
        driver: fsspec's HTTP driver.
        url: The file.
        name: The file in messages.
        limit: The maximum size in bytes.
    """
    chunks = bytearray()
    async with await request_http(driver, url) as response:
        check_size(response.content_length, name, limit)
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            chunks += chunk
            check_size(len(chunks), name, limit)
    return bytes(chunks)
