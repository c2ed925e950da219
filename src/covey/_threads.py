"""Work that runs ahead of a caller that wants its results, in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


def cpu_count() -> int:
    """How many threads can run at once: what is used where nobody says how many."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered_map(
    tasks: Iterable[Callable[[], T]], executor: Executor | None, ahead: int
) -> Generator[T, None, None]:
    """The results of tasks, in their order, with up to ``ahead`` of them under way.

    A task that fails, or an iterable that does, is heard of after the results that come before it.
    Without an executor, tasks are run one by one as they are wanted.

    >>> list(run_ahead([lambda: 1, lambda: 2], None, 4))
    [1, 2]
    """
    if executor is None:
        for task in tasks:
            yield task()
        return
    waiting: deque[Future[T]] = deque()
    failure: Exception | None = None
    coming = iter(tasks)
    try:
        while failure is None:
            try:
                task = next(coming)
            except StopIteration:
                break
            except Exception as error:
                failure = error
                break
            waiting.append(executor.submit(task))
            del task
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        if failure is not None:
            raise failure
    finally:
        # Also when the consumer leaves early: nothing is done that nobody wants.
        for future in waiting:
            future.cancel()


class DaemonThreads(Executor):
    """Threads that do what is submitted, but need not have done it when the interpreter ends.

    Those of ``concurrent.futures`` would be waited for until all is done.
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
        """End the threads, after what was submitted and not cancelled.

        One of the threads, where the garbage collector may come along, does not wait for itself.
        """
        # Once: when the interpreter ends, a loop that is freed late finds no modules any more.
        threads, self.threads = self.threads, []
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            if wait and threading.current_thread() not in threads:
                thread.join()


def _work(tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (task := tasks.get()) is not None:
        _run(*task)
        del task  # it holds what it is about, and the next may be long in coming


def _run(future: Future[Any], task: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(task())
    except BaseException as error:
        future.set_exception(error)
        del future, task  # the error has this frame, which must not have the error


class SerialExecutor:
    """Another thread that does what it is told, in order, a few steps behind.

    An error of it is raised by the next call. Leaving the ``with`` waits for all that is under way.
    """

    def __init__(self, steps: int = 4) -> None:
        self._steps = steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="covey-behind")
        self._waiting: deque[Future[Any]] = deque()

    def __enter__(self) -> SerialExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def do(self, task: Callable[..., object], *arguments: Any) -> None:
        """Have something done, after what was asked for before."""
        self._waiting.append(self._thread.submit(task, *arguments))
        self._wait(self._steps)

    def wait(self) -> None:
        """Wait until all is done."""
        self._wait(0)

    def _wait(self, left: int) -> None:
        while len(self._waiting) > left:
            self._waiting.popleft().result()
