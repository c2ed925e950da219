"""Requests to remote files: calls of drivers, checks of their results, concurrency and retries."""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from covey.errors import FileChangedError, StorageError
from covey.storage.base import Stat
from covey.storage.errors import ErrorKind, TruncatedResponseError, classify, to_storage_error
from covey.storage.filesystem import (
    MAX_CONCURRENT_REQUESTS,
    Call,
    RemoteFilesystem,
    is_http,
    run_blocking,
)

MAX_ATTEMPTS = 5
BACKOFF_BASE_S = 0.5
_MAX_BACKOFF_S = 20.0

# Timeout of drivers without a timeout of their own, long enough for a few MiB on a slow connection.
REQUEST_TIMEOUT_S = 300

# Limit on the bytes of all responses in flight.
_MAX_BYTES_IN_FLIGHT = 32 << 20

# Threads for drivers without an event loop.
_MAX_THREADS = 8

_CHUNK_BYTES = 1 << 20

# Forked processes share the state of any other generator, and would retry at the same moment.
_RANDOM = random.SystemRandom()

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


# Concurrency and retries.


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """An operation on a remote file, with what its errors need."""

    filesystem: RemoteFilesystem
    url: str
    action: str
    """The operation for messages, as a gerund: ``"reading"``."""
    call: Call
    bytes: int = 0
    """Expected size of the response."""
    timeout_s: float | None = REQUEST_TIMEOUT_S
    missing_ok: bool = False
    """Whether the result is None if the file does not exist."""


class RequestExecutor:
    """Runs requests on fsspec's event loop, or in threads if their driver blocks."""

    def __init__(self) -> None:
        self._in_flight: set[Future[Any]] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = threading.Event()

    def submit(self, request: Request) -> Future[Any]:
        """Start a request; the future has the result after retries, or a StorageError."""
        if request.filesystem.is_async:
            loop = request.filesystem.driver.loop
            future = asyncio.run_coroutine_threadsafe(_run(request, self._closed), loop)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="covey-request")
            future = self._pool.submit(lambda: run_blocking(_run(request, self._closed)))
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        return future

    def close(self) -> None:
        """Cancel the requests in flight, and join the threads."""
        self._closed.set()
        for future in tuple(self._in_flight):
            future.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def run_all(
    requests: Sequence[Request],
    *,
    max_requests: int = MAX_CONCURRENT_REQUESTS,
    max_bytes: int = _MAX_BYTES_IN_FLIGHT,
) -> Iterator[tuple[Request, Any]]:
    """Run requests concurrently; yield each with its result as it completes.

    Args:
        requests: The requests.
        max_requests: Maximum number of requests in flight.
        max_bytes: Limit on the bytes of all responses in flight.

    Raises:
        StorageError: That of the first request that fails; the others are cancelled.
    """
    if len(requests) == 1:
        yield requests[0], run_one(requests[0])
        return
    waiting = deque(requests)
    in_flight: dict[Future[Any], Request] = {}
    executor = RequestExecutor()
    try:
        while waiting or in_flight:
            size = sum(request.bytes for request in in_flight.values())
            while waiting and (
                not in_flight
                or (len(in_flight) < max_requests and size + waiting[0].bytes <= max_bytes)
            ):
                request = waiting.popleft()
                size += request.bytes
                in_flight[executor.submit(request)] = request
            for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                yield in_flight.pop(future), future.result()
    finally:
        executor.close()


def run_one(request: Request) -> Any:
    """Run a request; return its result. No thread is started."""
    if not request.filesystem.is_async:
        return run_blocking(_run(request, threading.Event()))
    executor = RequestExecutor()
    try:
        return executor.submit(request).result()
    finally:
        executor.close()


async def _run(request: Request, closed: threading.Event) -> Any:
    """Return the result of a request; retry transient errors.

    Args:
        request: The request.
        closed: Set if the caller does not read the result; ends the waits of blocking drivers.

    Raises:
        StorageError: If an error is not transient, or the attempts are exhausted.
    """
    filesystem, failures = request.filesystem, 0
    while True:
        try:
            operation = request.call(filesystem.driver)
            if filesystem.is_async:
                return await asyncio.wait_for(operation, request.timeout_s)
            return await operation
        except Exception as caught:
            error = caught
        # Not in the except clause: a traceback would show the driver error.
        failures += 1
        kind = classify(error)
        if kind is ErrorKind.MISSING and request.missing_ok:
            return None
        if kind is not ErrorKind.RETRY or failures >= MAX_ATTEMPTS:
            secrets = filesystem.secrets(request.url)
            raise to_storage_error(error, request.url, request.action, failures, secrets)
        longest = min(BACKOFF_BASE_S * 2**failures, _MAX_BACKOFF_S)
        delay = _RANDOM.uniform(longest / 4, longest / 2)
        if filesystem.is_async:
            await asyncio.sleep(delay)
        elif closed.wait(delay):
            raise error


# Calls.


def version_of(info: Mapping[str, Any]) -> str:
    """Return the version of a file from fsspec's info; "" if it has none."""
    return next((str(info[key]) for key in _VERSION_FIELDS if info.get(key)), "")


def info_call(path: str, method: str = "info", **options: Any) -> Call:
    """Return the call of fsspec's ``info``, or a similar method, without its cache of listings."""

    async def call(driver: Any) -> Any:
        driver.invalidate_cache()
        return await getattr(driver, f"_{method}")(path, **options)

    return call


def unchanged_call(path: str, expected: Stat) -> Call:
    """Return the call that raises FileChangedError unless a file is in the expected state."""

    async def call(driver: Any) -> None:
        info = await info_call(path)(driver)
        size, version = info.get("size"), version_of(info)
        changed = version and expected.version and version != expected.version
        if changed or (size is not None and size != expected.size):
            raise FileChangedError()

    return call


def range_call(path: str, begin: int, end: int, expected: Stat, *, check: bool = False) -> Call:
    """Return the call that reads a range of a file; None if the server ignores ranges.

    Args:
        path: The file in the filesystem.
        begin: The first byte.
        end: The byte after the last one.
        expected: The state of the file.
        check: Whether to check afterwards that the file is in that state.
    """

    async def call(driver: Any) -> bytes | None:
        if is_http(driver):
            data = await _read_http(driver, path, begin, end, expected.size)
            if data is None:
                return None
        else:
            data = await driver._cat_file(path, start=begin, end=end)
            if len(data) == expected.size:  # the driver ignores ranges
                data = data[begin:end]
        if check or len(data) != end - begin:
            await unchanged_call(path, expected)(driver)
        if len(data) != end - begin:
            raise TruncatedResponseError(f"{len(data)} of {end - begin} bytes were received")
        return bytes(data)

    return call


def check_size(size: int | None, path: str, limit: int) -> None:
    """Raise StorageError if a file is too large to be read into memory."""
    if size is not None and size > limit:
        raise StorageError(
            f"the file has {size:,} bytes or more; must be at most {limit:,}", path=path
        )


def read_call(path: str, name: str, limit: int) -> Call:
    """Return the call that reads a small file.

    Args:
        path: The file in the filesystem.
        name: The file in messages.
        limit: The maximum size in bytes. HTTP responses are not read beyond it; the size of other
            files is checked before.
    """

    async def call(driver: Any) -> bytes:
        if not is_http(driver):
            data: bytes = await driver._cat_file(path)
            return data
        chunks = bytearray()
        async with await _request_http(driver, path) as response:
            check_size(response.content_length, name, limit)
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                chunks += chunk
                check_size(len(chunks), name, limit)
        return bytes(chunks)

    return call


def download_call(path: str, target: str, expected: Stat | None) -> Call:
    """Return the call that copies a file to a local path.

    Args:
        path: The file in the filesystem.
        target: The local path.
        expected: The state of the file; None if its size is unknown.
    """

    async def call(driver: Any) -> None:
        await driver._get_file(path, target)
        if expected is not None:
            await unchanged_call(path, expected)(driver)
            if os.path.getsize(target) != expected.size:
                raise TruncatedResponseError(f"{os.path.getsize(target)} bytes were received")

    return call


# fsspec's HTTP driver reads any body to its end, and returns neither status nor headers. The body
# of a server that ignores ranges would fill the memory, and a wrong range would not be noticed.


async def _read_http(driver: Any, url: str, begin: int, end: int, size: int) -> bytes | None:
    headers = {"Range": f"bytes={begin}-{end - 1}"}
    async with await _request_http(driver, url, headers) as response:
        if response.status != 206 and end - begin < size:
            return None
        found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if found is not None and int(found[1]) != begin:
            raise TruncatedResponseError(f"bytes from {found[1]} were received, not from {begin}")
        data: bytes = await response.read()
        return data


async def _request_http(driver: Any, url: str, headers: Mapping[str, str] | None = None) -> Any:
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
