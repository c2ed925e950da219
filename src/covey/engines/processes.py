"""Engine of the processes of this machine."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from covey._files import temporary_name
from covey._threads import cpu_count
from covey.engines.base import (
    Engine,
    Files,
    Outcome,
    Pool,
    Shared,
    SharedFiles,
    WorkerLostError,
    check_integer,
    run_call,
)
from covey.errors import DatasetError

_LOST_REMEDY = (
    "pass an engine with more pieces, or pass a lower memory_limit=, if the worker lacks memory; a "
    "script needs `if __name__ == '__main__':`"
)


@dataclass(frozen=True, kw_only=True)
class Processes(Engine):
    """Processes of this machine, for sources whose examples are computed by Python.

    A script that uses it needs ``if __name__ == "__main__":``.

    Args:
        workers: Number of processes (default: one per CPU).
        pieces: Number of pieces that the source is divided into (default: four per process, and
            more for large files).
        max_retries: How often a task is run again after its process was killed.

    Raises:
        DatasetError: If an option has an invalid value.

    >>> Processes(workers=4).name
    'processes'
    """

    workers: int | None = None
    pieces: int | None = None
    max_retries: int = 1

    def __post_init__(self) -> None:
        check_integer("workers", self.workers, 1, optional=True)
        check_integer("pieces", self.pieces, 1, optional=True)
        check_integer("max_retries", self.max_retries, 0)

    @property
    def name(self) -> str:
        return "processes"

    def start(self) -> Pool:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise DatasetError(
                "this process imports the script of the main process, which starts a write",
                option="engine",
                found="processes",
                remedy="call it below `if __name__ == '__main__':`",
            )
        return _ProcessPool(self.workers or cpu_count(), self.max_retries)


class _ProcessPool(Pool):
    """Executors of one process each, so that a process that is killed is that of a known task."""

    def __init__(self, workers: int, max_retries: int) -> None:
        self.max_retries = max_retries
        self._workers = workers
        # Not fork: the process may have threads, such as those of TensorFlow.
        self._context = multiprocessing.get_context("spawn")
        self._lock = threading.RLock()
        self._idle = [self._new_worker() for _ in range(workers)]
        self._busy: set[ProcessPoolExecutor] = set()
        self._queue: deque[tuple[Future[Outcome], Callable[[], Any]]] = deque()
        self._broken: list[ProcessPoolExecutor] = []
        self._is_closed = False

    @property
    def slots(self) -> int:
        return self._workers

    def _new_worker(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, self._context, _start_worker)

    def submit(self, call: Callable[[], Any]) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        with self._lock:
            self._queue.append((future, call))
        self._dispatch()
        return future

    def _dispatch(self) -> None:
        while True:
            with self._lock:
                if self._is_closed or not self._queue or not self._idle:
                    return
                future, call = self._queue.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                worker = self._idle.pop()
                self._busy.add(worker)
            try:
                inner = worker.submit(run_call, call)
            except BrokenProcessPool as error:
                self._finish(worker, future, error)
            else:
                inner.add_done_callback(functools.partial(self._done, worker, future))

    def _done(
        self, worker: ProcessPoolExecutor, future: Future[Outcome], inner: Future[Outcome]
    ) -> None:
        self._finish(worker, future, None if inner.cancelled() else inner.exception(), inner)

    def _finish(
        self,
        worker: ProcessPoolExecutor,
        future: Future[Outcome],
        error: BaseException | None,
        inner: Future[Outcome] | None = None,
    ) -> None:
        is_broken = isinstance(error, BrokenProcessPool)
        with self._lock:
            self._busy.discard(worker)
            if not self._is_closed:
                self._idle.append(self._new_worker() if is_broken else worker)
        if is_broken:
            # This thread is that of the executor, which holds its lock: it is shut down at the end.
            with self._lock:
                self._broken.append(worker)
            future.set_exception(
                WorkerLostError("the worker process ended unexpectedly", remedy=_LOST_REMEDY)
            )
        elif error is not None:
            future.set_exception(_explain(error))
        elif inner is not None and not inner.cancelled():
            future.set_result(inner.result())
        else:
            future.set_exception(WorkerLostError("the worker process was stopped"))
        self._dispatch()

    def share(self, value: Any, directory: Path) -> Shared:
        try:
            data = pickle.dumps(value)
        except Exception as error:  # errors of any type from the source
            raise _explain(error) from error
        path = directory / temporary_name()
        path.write_bytes(data)
        return _PickledFile(str(path))

    def files(self, directory: Path) -> Files:
        return SharedFiles(str(directory))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            workers = [*self._idle, *self._busy]
            self._queue.clear()
            self._idle, self._busy = [], set()
            broken, self._broken = self._broken, []
        for worker in broken:
            worker.shutdown(wait=True)
        for worker in workers:
            # A task that still runs is of no use any more.
            for process in list((worker._processes or {}).values()):
                process.terminate()
            worker.shutdown(wait=True, cancel_futures=True)


def _explain(error: BaseException) -> BaseException:
    """Return the error for a task that cannot be sent to a process."""
    if not isinstance(error, (pickle.PicklingError, TypeError, AttributeError)):
        return error
    return DatasetError(
        f"the source cannot be sent to another process: {error}",
        option="engine",
        found="processes",
        remedy="use functions and classes of a module, not lambdas, local functions or open files",
    )


def _start_worker() -> None:
    # Ctrl-C reaches all processes of a terminal; the main process stops the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="covey-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@dataclass(frozen=True)
class _PickledFile(Shared):
    """Object in a file of the main process."""

    path: str

    def get(self) -> Any:
        return _load(self.path)


@functools.lru_cache(maxsize=4)
def _load(path: str) -> Any:
    return pickle.loads(Path(path).read_bytes())
