"""Running many calls at once, and those that fail again, up to a bound."""

from __future__ import annotations

import heapq
import queue
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, TypeVar

from covey.storage.errors import ErrorKind, classify, explain
from covey.storage.filesystem import (
    MAX_CONCURRENT_REQUESTS,
    Call,
    RemoteFilesystem,
    RequestExecutor,
)

MAX_ATTEMPTS = 5
BACKOFF_BASE_S = 0.5
_MOST_SECONDS = 20.0

# Of answers that are under way at the same time.
_MOST_BYTES = 32 << 20

Result = TypeVar("Result")

# Every process waits another time; forked ones would share the state of any other generator.
_RANDOM = random.SystemRandom()


@dataclass(slots=True)
class Retry:
    """How often something was tried."""

    connection: RemoteFilesystem
    url: str
    doing: str
    """What is done, for messages: "reading"."""
    failures: int = 0

    def failed(self, error: BaseException) -> float:
        """Count a failure; how long to wait until the next try.

        Must not be called while the error is handled: it would be the context of the new one, and
        tracebacks would show the text of the driver.

        Raises:
            StorageError: If there is to be none.
        """
        self.failures += 1
        if classify(error) is not ErrorKind.RETRY or self.failures >= MAX_ATTEMPTS:
            secrets = self.connection.secrets(self.url)
            raise explain(error, self.url, self.doing, self.failures, secrets)
        longest = min(BACKOFF_BASE_S * 2**self.failures, _MOST_SECONDS)
        return _RANDOM.uniform(longest / 4, longest / 2)

    def repeat(self, action: Callable[[], Result]) -> Result:
        """Do something until it succeeds."""
        while True:
            try:
                return action()
            except Exception as caught:
                error = caught
            time.sleep(self.failed(error))


@dataclass(slots=True)
class Task:
    """A call that is one of many."""

    connection: RemoteFilesystem
    call: Call
    attempts: Retry
    bytes: int = 0
    """Of its answer."""
    timed: bool = True
    """Whether it may take only so long."""


def run(
    tasks: Sequence[Task],
    receive: Callable[[Task, Any], None],
    settle: Callable[[Task, Exception], bool] = lambda task, error: False,
) -> None:
    """Run calls, several at a time, and hand over their results as they come.

    Args:
        tasks: The calls.
        receive: Takes a result, in this thread.
        settle: Takes an error, in this thread; False if it is an error indeed.

    Raises:
        StorageError: For the first call that cannot be helped; the others are given up.
    """
    waiting = deque(tasks)
    resting: list[tuple[float, int, Task]] = []
    flying: dict[Future[Any], Task] = {}
    landed: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    launchers: dict[int, RequestExecutor] = {}
    bytes_flying = rests = 0
    with ExitStack() as stack:
        for task in tasks:
            if id(task.connection) not in launchers:
                launcher = RequestExecutor(task.connection, alone=len(tasks) == 1)
                launchers[id(task.connection)] = stack.enter_context(closing(launcher))
        while waiting or resting or flying:
            while resting and resting[0][0] <= time.monotonic():
                waiting.appendleft(heapq.heappop(resting)[2])
            while waiting and _has_room(len(flying), bytes_flying, waiting[0].bytes):
                task = waiting.popleft()
                future = launchers[id(task.connection)].start(task.call, timed=task.timed)
                flying[future] = task
                bytes_flying += task.bytes
                future.add_done_callback(landed.put)
            try:
                rest = max(0.0, resting[0][0] - time.monotonic()) if resting else None
                future = landed.get(timeout=rest)
            except queue.Empty:
                continue
            task = flying.pop(future)
            bytes_flying -= task.bytes
            error = failure(future)
            if error is None:
                receive(task, future.result())
            elif not settle(task, error):
                rests += 1  # breaks ties, for tasks have no order
                heapq.heappush(
                    resting, (time.monotonic() + task.attempts.failed(error), rests, task)
                )


def failure(future: Future[Any]) -> Exception | None:
    """Wait for a call; the error that it ended with, if any."""
    try:
        future.result()
    except Exception as error:
        return error
    return None


def run_one(task: Task) -> Any:
    """Run one call; its result."""
    results: list[Any] = []
    run([task], lambda _, result: results.append(result))
    return results[0]


def _has_room(flying: int, bytes_flying: int, bytes: int) -> bool:
    return flying < MAX_CONCURRENT_REQUESTS and (not flying or bytes_flying + bytes <= _MOST_BYTES)
