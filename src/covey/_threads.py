"""Executors that return results in order, and threads that do not delay the exit of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def ordered_map(
    tasks: Iterable[Callable[[], T]], executor: Executor | None, in_flight: int
) -> Generator[T, None, None]:
    """Yield the results of tasks in order, with a limited number of tasks in flight.

    An exception of a task, or of the iterable, is raised after the results before it.

    Args:
        tasks: Functions to call.
        executor: Executor of the tasks. None calls each one when its result is requested.
        in_flight: Maximum number of tasks in flight.

    >>> list(ordered_map([lambda: 1, lambda: 2], None, 4))
    [1, 2]
    """
    if executor is None:
        for task in tasks:
            result = task()
            del task  # it may hold much memory
            yield result
        return
    futures: deque[Future[T]] = deque()
    try:
        for task in _with_failure(tasks):
            futures.append(executor.submit(task))
            del task
            if len(futures) > in_flight:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        # Also if the consumer stops early.
        for future in futures:
            future.cancel()


def _with_failure(tasks: Iterable[Callable[[], T]]) -> Iterator[Callable[[], T]]:
    """Yield tasks; an exception of the iterable becomes a task that raises it."""

    def fail(error: Exception) -> T:
        raise error

    try:
        yield from tasks
    except Exception as error:
        yield partial(fail, error)


class DaemonThreads(Executor):
    """Executor whose threads end with the interpreter, even if a task is not complete.

    The interpreter waits for the threads of ``concurrent.futures`` when it exits.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.threads = [
            threading.Thread(target=_work, args=(self._tasks,), name=f"{name}-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self._tasks.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the threads after the tasks that were submitted and not cancelled.

        It does not wait if it runs in one of the threads: the garbage collector may call it there.
        """
        # Only once: at interpreter exit, modules that a second call needs may be gone.
        threads, self.threads = self.threads, []
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            if wait and threading.current_thread() not in threads:
                thread.join()


def _work(tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (task := tasks.get()) is not None:
        _run(*task)
        del task  # its arguments would live until the next task


def _run(future: Future[Any], task: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(task())
    except BaseException as error:
        future.set_exception(error)
        del future, task  # the error refers to this frame, which must not refer to the error


class SerialExecutor:
    """Thread that runs tasks in order, with a limited number of tasks in flight.

    An exception of a task is raised by a later call of :meth:`submit` or :meth:`wait`.
    """

    def __init__(self, in_flight: int = 4) -> None:
        self._in_flight = in_flight
        self._thread = DaemonThreads(1, "covey-serial")
        self._futures: deque[Future[Any]] = deque()

    def submit(self, task: Callable[..., object], *arguments: Any) -> None:
        """Run a task after those before it; wait while too many are in flight."""
        self._futures.append(self._thread.submit(task, *arguments))
        self._wait(self._in_flight)

    def wait(self) -> None:
        """Wait until all tasks are complete."""
        self._wait(0)

    def close(self) -> None:
        """Cancel the tasks that have not started, and wait for the one that has."""
        for future in self._futures:
            future.cancel()
        self._thread.shutdown()

    def _wait(self, remaining: int) -> None:
        while len(self._futures) > remaining:
            self._futures.popleft().result()
