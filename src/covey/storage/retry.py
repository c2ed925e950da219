"""Requests: their concurrency and their retries."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from covey.errors import StorageNotFoundError
from covey.storage.errors import ErrorKind, classify, to_storage_error
from covey.storage.filesystem import (
    MAX_CONCURRENT_REQUESTS,
    REQUEST_TIMEOUT_S,
    Call,
    RemoteFilesystem,
    run_blocking,
)

MAX_ATTEMPTS = 5
BACKOFF_BASE_S = 0.5
_MAX_BACKOFF_S = 20.0

# Limit on the bytes of all responses in flight.
_MAX_BYTES_IN_FLIGHT = 32 << 20

# Threads for drivers without an event loop.
_MAX_THREADS = 8

# Forked processes share the state of any other generator, and would retry at the same moment.
_RANDOM = random.SystemRandom()


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


class _Retry:
    """The number of failed attempts of a request."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._failures = 0

    def delay(self, error: Exception) -> float:
        """Count a failure; return the seconds to wait before the next attempt.

        Must not be called in an ``except`` clause: see :func:`to_storage_error`.

        Raises:
            StorageError: If the error is not transient, or the attempts are exhausted.
        """
        self._failures += 1
        request = self._request
        if classify(error) is not ErrorKind.RETRY or self._failures >= MAX_ATTEMPTS:
            secrets = request.filesystem.secrets(request.url)
            raise to_storage_error(error, request.url, request.action, self._failures, secrets)
        longest = min(BACKOFF_BASE_S * 2**self._failures, _MAX_BACKOFF_S)
        return _RANDOM.uniform(longest / 4, longest / 2)


class RequestExecutor:
    """Runs requests on fsspec's event loop, or in threads if their driver blocks."""

    def __init__(self) -> None:
        self._in_flight: set[Future[Any]] = set()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = threading.Event()

    def submit(self, request: Request) -> Future[Any]:
        """Start a request; the future has the result after retries, or a StorageError."""
        filesystem = request.filesystem
        if filesystem.is_async:
            driver = filesystem.driver
            future = asyncio.run_coroutine_threadsafe(_run_async(request, driver), driver.loop)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="covey-request")
            future = self._pool.submit(_run_blocking, request, self._closed)
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


def run_all(requests: Sequence[Request]) -> Iterator[tuple[Request, Any]]:
    """Run requests concurrently; yield each with its result as it completes.

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
            while waiting and _has_room(in_flight.values(), waiting[0].bytes):
                request = waiting.popleft()
                in_flight[executor.submit(request)] = request
            for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                yield in_flight.pop(future), future.result()
    finally:
        executor.close()


def run_one(request: Request) -> Any:
    """Run a request; return its result. No thread is started."""
    if not request.filesystem.is_async:
        return _run_blocking(request, threading.Event())
    executor = RequestExecutor()
    try:
        return executor.submit(request).result()
    finally:
        executor.close()


def _has_room(in_flight: Any, size: int) -> bool:
    if not in_flight:
        return True
    total = sum(request.bytes for request in in_flight)
    return len(in_flight) < MAX_CONCURRENT_REQUESTS and total + size <= _MAX_BYTES_IN_FLIGHT


async def _run_async(request: Request, driver: Any) -> Any:
    retry = _Retry(request)
    while True:
        try:
            return await asyncio.wait_for(request.call(driver), request.timeout_s)
        except Exception as caught:
            error = caught
        try:
            delay = retry.delay(error)
        except StorageNotFoundError:
            if request.missing_ok:
                return None
            raise
        await asyncio.sleep(delay)


def _run_blocking(request: Request, closed: threading.Event) -> Any:
    retry = _Retry(request)
    while True:
        try:
            return run_blocking(request.call(request.filesystem.driver))
        except Exception as caught:
            error = caught
        try:
            delay = retry.delay(error)
        except StorageNotFoundError:
            if request.missing_ok:
                return None
            raise
        if closed.wait(delay):
            raise error  # the caller does not read the result
