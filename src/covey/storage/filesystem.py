"""The fsspec filesystem of a URL.

Operations are coroutine functions of one argument, the driver. Asynchronous drivers run them on
fsspec's event loop; the methods of all other drivers are wrapped into coroutines that block.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from covey._fork import ForkAware
from covey.errors import StorageError
from covey.storage.errors import to_storage_error
from covey.urls import Url, find_secrets, redact

# An operation of a driver; its methods are called by the names of asynchronous ones (`_info`).
Call = Callable[[Any], Awaitable[Any]]

MAX_CONCURRENT_REQUESTS = 32

# Timeout of an HTTP connection without data.
_SOCKET_TIMEOUT_S = 30


class RemoteFilesystem(ForkAware):
    """The filesystem of a URL, connected when it is first used.

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
        self._driver_class = self._import_driver(url.protocol)
        self._is_async: bool | None = None
        self._shared: Any = None
        self._per_thread = threading.local()

    def _reset_after_fork(self) -> object:
        inherited = self._shared, self._per_thread
        self._shared, self._per_thread = None, threading.local()
        return inherited

    def path_of(self, url: str) -> str:
        """Return the path of a URL in the filesystem."""
        try:
            path: str = self._driver_class._strip_protocol(Url.parse(url).address)
            return path
        except (TypeError, ValueError, AttributeError, KeyError) as caught:
            error = caught
        raise to_storage_error(error, url, "parsing", 1, self.secrets(url))

    def secrets(self, url: str) -> set[str]:
        """Return the strings that messages about a URL must not contain."""
        return find_secrets(url, self._options) | find_secrets(str(self._url), {})

    @property
    def is_async(self) -> bool:
        """Whether operations run on an event loop."""
        if self._is_async is None:
            self._is_async = _is_async(self.filesystem)
        return self._is_async

    @property
    def supports_conditions(self) -> bool:
        """Whether a file can be written on the condition that it has not changed."""
        return _is_s3(self.filesystem)

    @property
    def driver(self) -> Any:
        """The filesystem with coroutine methods, as a :data:`Call` takes it."""
        filesystem = self.filesystem
        return filesystem if self.is_async else _BlockingDriver(filesystem)

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

    def _connect(self) -> Any:
        options = {**self._options, **_default_options(self._url, self._options)}
        try:
            # Not an instance that other code shares: its settings are changed here.
            options["skip_instance_cache"] = True
            if "::" not in self._url.address:
                connected, _ = self._fsspec.core.url_to_fs(str(self._url), **options)
            else:  # url_to_fs would split the address or the query at "::"
                found = self._driver_class._get_kwargs_from_urls(self._url.address)
                connected = self._fsspec.filesystem(self._url.protocol, **{**found, **options})
            if _is_s3(connected):
                connected.retries = 1  # covey.storage.requests counts the attempts
            return connected
        except Exception as caught:  # some drivers connect in their constructor
            error = caught
        # Not in the except clause: a traceback would show the driver error.
        secrets = self.secrets(str(self._url))
        if isinstance(error, (TypeError, ValueError, AttributeError, KeyError)):
            raise StorageError(
                f"the storage options {sorted(self._options)} are not valid for "
                f"{self._url.protocol}://: {redact(str(error), secrets)}",
                path=self._url.public,
            )
        raise to_storage_error(error, str(self._url), "connecting", 1, secrets)

    def _import_driver(self, protocol: str) -> Any:
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


class _BlockingDriver:
    """Coroutine methods for a driver that has none; they block until they are done."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._filesystem, name.removeprefix("_"))
        if not name.startswith("_"):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            return method(*args, **options)

        return call


def run_blocking(operation: Awaitable[Any]) -> Any:
    """Return the result of a coroutine of a driver that blocks."""
    steps = operation.__await__()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a blocking driver waits for an event loop")


def method_call(method: str, *args: Any, **options: Any) -> Call:
    """Return the call of one of fsspec's methods."""

    async def call(driver: Any) -> Any:
        return await getattr(driver, f"_{method}")(*args, **options)

    return call


def is_http(driver: Any) -> bool:
    """Return whether a driver is fsspec's HTTP driver."""
    return any(
        (base.__module__, base.__name__) == ("fsspec.implementations.http", "HTTPFileSystem")
        for base in type(driver).__mro__
    )


def _is_s3(filesystem: Any) -> bool:
    return type(filesystem).__module__.split(".")[0] == "s3fs"


def _is_async(filesystem: Any) -> bool:
    # fsspec's cache wrappers report the async_impl of the wrapped filesystem and DirFileSystem the
    # opposite, so the class is checked as well.
    base = importlib.import_module("fsspec.asyn").AsyncFileSystem
    return issubclass(type(filesystem), base) and bool(filesystem.async_impl)


def _import_fsspec(url: Url) -> Any:
    try:
        fsspec = importlib.import_module("fsspec")
        importlib.import_module("fsspec.core")
    except ImportError as error:
        raise StorageError(
            "URLs are read with fsspec, which is not installed",
            path=url.public,
            remedy="pip install 'covey[remote]'",
        ) from error
    return fsspec


def _default_options(url: Url, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return covey's defaults for the options of a driver, merged with the caller's options."""
    if url.head or url.tail:
        return {}
    if url.protocol in ("s3", "s3a"):
        config = {
            "retries": {"total_max_attempts": 1},
            "max_pool_connections": MAX_CONCURRENT_REQUESTS,
        }
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
