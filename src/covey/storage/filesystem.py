"""The way to the filesystem behind a URL: fsspec, its drivers, and what runs their calls.

Calls run in fsspec's event loop if the driver is made for it, and in threads if not. Either way
there is a future to wait for.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from covey._fork import ForkAware
from covey.errors import StorageError
from covey.storage.errors import explain
from covey.urls import Url, find_secrets, redact

# Given the filesystem, it begins a call: a coroutine of an asynchronous driver, else the result.
Call = Callable[[Any], Any]

# As many requests as are under way at once; drivers that need threads get fewer.
MAX_CONCURRENT_REQUESTS = 32
_THREADS = 8

# No connection may say nothing for so long. For drivers that do not watch it themselves, a whole
# request of a few MiB gets a time that even a slow line can keep.
_SILENT_SECONDS = 30
_REQUEST_SECONDS = 300


class RemoteFilesystem(ForkAware):
    """The filesystem that a URL lies in, made when it is first needed.

    Raises:
        StorageError: If the protocol is unknown, or fsspec or its driver is not installed.
    """

    def __init__(self, url: Url, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._url = url
        self._options = dict(options)
        self._fsspec = _import_fsspec(url)
        self._addressed = self._driver(url.protocol)
        self._is_asynchronous: bool | None = None
        self._shared: Any = None
        self._own = threading.local()

    def _reset_after_fork(self) -> object:
        held = self._shared, self._own
        self._shared, self._own = None, threading.local()
        return held

    def path_of(self, url: str) -> str:
        """What a URL is called in the filesystem."""
        try:
            path: str = self._addressed._strip_protocol(Url.parse(url).address)
            return path
        except (TypeError, ValueError, AttributeError, KeyError) as caught:
            error = caught
        raise explain(error, url, "parsing", 1, self.secrets(url))

    def secrets(self, url: str) -> set[str]:
        """Return what messages about a URL must not have."""
        return find_secrets(url, self._options) | find_secrets(str(self._url), {})

    @property
    def is_asynchronous(self) -> bool:
        """Whether calls run in an event loop."""
        if self._is_asynchronous is None:
            self._is_asynchronous = _is_asynchronous(self.filesystem)
        return self._is_asynchronous

    @property
    def filesystem(self) -> Any:
        """The one for all threads if its driver is asynchronous, else that of this thread."""
        shared = self._shared
        if shared is None and not hasattr(self._own, "filesystem"):
            with self._lock:
                if self._shared is None:
                    made = self._make()
                    if not _is_asynchronous(made):
                        self._own.filesystem = made
                        return made
                    self._shared = made
                shared = self._shared
        return self._own.filesystem if shared is None else shared

    def _make(self) -> Any:
        options = {**self._options, **_settings(self._url, self._options)}
        try:
            # Not shared with anybody else, so that it can be set up as is needed here.
            options["skip_instance_cache"] = True
            if "::" not in self._url.address:
                made, _ = self._fsspec.core.url_to_fs(str(self._url), **options)
            else:  # url_to_fs would split the address or the query at it
                found = self._addressed._get_kwargs_from_urls(self._url.address)
                made = self._fsspec.filesystem(self._url.protocol, **{**found, **options})
            if type(made).__module__.startswith("s3fs"):
                made.retries = 1  # tries are counted here, not there
            return made
        except Exception as caught:  # some drivers connect at once
            error = caught
        # Here, and not where it was caught: tracebacks would show the driver's error.
        secrets = self.secrets(str(self._url))
        if isinstance(error, (TypeError, ValueError, AttributeError, KeyError)):
            raise StorageError(
                f"{self._url.public}: the storage options {sorted(self._options)} do not fit "
                f"{self._url.protocol}://: {redact(str(error), secrets)}"
            )
        raise explain(error, str(self._url), "connecting", 1, secrets)

    def _driver(self, protocol: str) -> Any:
        try:
            return self._fsspec.get_filesystem_class(protocol)
        except ValueError:
            known = ", ".join(sorted(self._fsspec.available_protocols()))
            raise StorageError(
                f"{self._url.public}: unknown protocol {protocol!r}; supported protocols: {known}"
            ) from None
        except ImportError as error:
            known = importlib.import_module("fsspec.registry").known_implementations
            package = known[protocol]["class"].split(".")[0]
            remedy = f"pip install {package}" if package != "fsspec" else str(error)
            if protocol in ("s3", "s3a", "http", "https"):
                remedy = "pip install 'covey[remote]'"
            raise StorageError(
                f"{self._url.public}: the driver for {protocol}:// is not installed; {remedy}"
            ) from error


class RequestExecutor:
    """Begins calls, and ends those that nobody waits for any more when it is closed.

    Args:
        connection: What they are calls of.
        alone: Whether there is only one at a time, which needs no thread of its own.
    """

    def __init__(self, connection: RemoteFilesystem, *, alone: bool = False) -> None:
        self._connection = connection
        self._flying: set[Future[Any]] = set()
        needs_threads = not (connection.is_asynchronous or alone)
        self._pool = ThreadPoolExecutor(_THREADS) if needs_threads else None

    def start(self, call: Call, *, timed: bool = True) -> Future[Any]:
        """Begin a call."""
        future: Future[Any] = Future()
        if self._connection.is_asynchronous:
            filesystem = self._connection.filesystem
            seconds = _REQUEST_SECONDS if timed else None
            limited = asyncio.wait_for(call(filesystem), seconds)
            future = asyncio.run_coroutine_threadsafe(limited, filesystem.loop)
        elif self._pool is not None:
            future = self._pool.submit(lambda: call(self._connection.filesystem))
        else:
            try:
                future.set_result(call(self._connection.filesystem))
            except Exception as error:
                future.set_exception(error)
        self._flying.add(future)
        future.add_done_callback(self._flying.discard)
        return future

    def close(self) -> None:
        """Cancel what is under way; threads are gone when this returns."""
        for future in tuple(self._flying):
            future.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def named(method: str, *args: Any, **options: Any) -> Call:
    """The call of one of fsspec's methods."""

    def call(filesystem: Any) -> Any:
        name = f"_{method}" if _is_asynchronous(filesystem) else method
        return getattr(filesystem, name)(*args, **options)

    return call


def _is_asynchronous(filesystem: Any) -> bool:
    # Caches say of themselves what is true of what they cache, and directories the other way round.
    base = importlib.import_module("fsspec.asyn").AsyncFileSystem
    return issubclass(type(filesystem), base) and bool(filesystem.async_impl)


def _import_fsspec(url: Url) -> Any:
    try:
        fsspec = importlib.import_module("fsspec")
        importlib.import_module("fsspec.core")
    except ImportError as error:
        raise StorageError(
            f"{url.public}: URLs are read with fsspec, which is not installed; "
            "pip install 'covey[remote]'"
        ) from error
    return fsspec


def _settings(url: Url, options: Mapping[str, Any]) -> dict[str, Any]:
    """What is set up differently from the driver's own ways, where the caller does not say."""
    if url.head or url.tail:
        return {}
    if url.protocol in ("s3", "s3a"):
        own = {
            "retries": {"total_max_attempts": 1},
            "max_pool_connections": MAX_CONCURRENT_REQUESTS,
        }
        return {"config_kwargs": {**own, **(options.get("config_kwargs") or {})}}
    if url.is_http and "timeout" not in options:
        aiohttp = importlib.import_module("aiohttp")
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_SILENT_SECONDS, sock_read=_SILENT_SECONDS
        )
        return {"client_kwargs": {"timeout": timeout, **(options.get("client_kwargs") or {})}}
    return {}
