"""The workers of an engine: this process, processes of this machine, or a Ray cluster."""

from __future__ import annotations

import abc
import contextlib
import logging
import multiprocessing
import os
import pickle
import secrets
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from covey._files import temporary_name
from covey.engines.tasks import Outcome, run_call
from covey.errors import DatasetError, TaskError

if TYPE_CHECKING:
    from covey.engines.options import Ray

_LOST_REMEDY = (
    "pass an engine with more pieces, or pass a lower memory_limit=, if the worker lacks memory"
)
_CANCEL_TIMEOUT_S = 60.0
_SLOTS_AGE_S = 10.0
"""The size of a Ray cluster, which may grow, is requested again after this time."""


class Shared(abc.ABC):
    """Object that many tasks use. The pickle of an instance does not contain it."""

    @abc.abstractmethod
    def get(self) -> Any:
        """Return the object; a worker loads it once."""


@dataclass(frozen=True)
class Here(Shared):
    """Object of this process."""

    value: Any

    def get(self) -> Any:
        return self.value


class Pool(abc.ABC):
    """Workers of an engine that has been started."""

    max_retries = 0
    """How often :func:`run_tasks` repeats a task after its worker was lost."""
    lost_remedy = _LOST_REMEDY

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    @abc.abstractmethod
    def slots(self) -> int:
        """Number of tasks that can run at the same time."""

    @property
    def in_flight(self) -> int:
        """Number of tasks that are submitted before results are read."""
        return 2 * self.slots + 2

    @abc.abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Outcome]:
        """Call a function in a worker."""

    @abc.abstractmethod
    def share(self, value: Any, directory: Path) -> Shared:
        """Return a reference to a picklable object.

        Args:
            value: The object.
            directory: Directory of temporary files of the caller.
        """

    def is_lost(self, error: BaseException) -> bool:
        """Return whether the error of a future is that its worker ended, so that it is repeated."""
        return False

    def explain(self, error: BaseException) -> BaseException:
        """Return the error to be raised for the error of a future."""
        return error

    @abc.abstractmethod
    def close(self) -> None:
        """Stop the workers, and remove their files."""


class ThisProcess(Pool):
    """This process: a task runs when it is submitted, and raises its errors.

    Args:
        threads: Number of threads that a task may use.
    """

    slots = 1
    in_flight = 1

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix="covey-write")

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        future.set_result(Outcome("", function(*arguments)))
        return future

    def share(self, value: Any, directory: Path) -> Shared:
        return Here(value)

    def close(self) -> None:
        self.executor.shutdown(cancel_futures=True)


class ProcessPool(Pool):
    """Processes of this machine. If one is killed, the others end, and their tasks are repeated."""

    lost_remedy = f"{_LOST_REMEDY}; a script needs `if __name__ == '__main__':`"

    def __init__(self, workers: int, max_retries: int) -> None:
        self.max_retries = max_retries
        self._workers = workers
        self._start()

    def _start(self) -> None:
        # Not fork: the process may have threads, such as threads of TensorFlow.
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(self._workers, context, _start_worker)

    @property
    def slots(self) -> int:
        return self._workers

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Outcome]:
        try:
            return self._executor.submit(run_call, function, *arguments)
        except BrokenProcessPool:
            self._executor.shutdown()
            self._start()
            return self._executor.submit(run_call, function, *arguments)

    def share(self, value: Any, directory: Path) -> Shared:
        try:
            data = pickle.dumps(value)
        except Exception as error:  # errors of any type from the source
            raise self.explain(error) from error
        path = directory / temporary_name()
        path.write_bytes(data)
        return _PickledFile(str(path))

    def is_lost(self, error: BaseException) -> bool:
        return isinstance(error, BrokenProcessPool)

    def explain(self, error: BaseException) -> BaseException:
        if not isinstance(error, (pickle.PicklingError, TypeError, AttributeError)):
            return error
        return DatasetError(
            f"the source cannot be sent to another process: {error}",
            option="engine",
            found="processes",
            remedy="use functions and classes of a module, not lambdas, local functions or open "
            "files",
        )

    def close(self) -> None:
        # A task that still runs is of no use any more.
        for process in list((self._executor._processes or {}).values()):
            process.terminate()
        self._executor.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Ignore Ctrl-C, which the main process handles, and end with the main process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


_loaded: dict[str, Any] = {}
"""The objects that this worker has loaded."""


def _load(key: str, load: Callable[[], Any]) -> Any:
    if key not in _loaded:
        while len(_loaded) >= 4:
            _loaded.pop(next(iter(_loaded)))
        _loaded[key] = load()
    return _loaded[key]


@dataclass(frozen=True)
class _PickledFile(Shared):
    """Object in a file."""

    path: str

    def get(self) -> Any:
        return _load(self.path, lambda: pickle.loads(Path(self.path).read_bytes()))


class RayPool(Pool):
    """Workers of a Ray cluster. Ray repeats tasks whose worker or node is lost."""

    def __init__(self, options: Ray) -> None:
        self._ray = ray = _import_ray()
        self._options = options
        self._is_own = not ray.is_initialized()
        if self._is_own:
            ray.init(address=options.address, log_to_driver=False, logging_level=logging.WARNING)
        self._running: set[Any] = set()
        self._slots = 0
        self._slots_until = 0.0
        settings: dict[str, Any] = {
            "num_cpus": options.num_cpus,
            "resources": dict(options.resources) or None,
            "scheduling_strategy": options.scheduling_strategy,
            "max_retries": options.max_retries,
            "name": "covey",
        }
        if options.memory is not None:
            settings["memory"] = options.memory
        if options.runtime_env is not None:
            settings["runtime_env"] = dict(options.runtime_env)
        self._run = ray.remote(_run_on_node).options(**settings)

    @property
    def slots(self) -> int:
        now = time.monotonic()
        if not self._slots or now >= self._slots_until:
            cpus = self._ray.cluster_resources().get("CPU", 1)
            self._slots = max(1, int(cpus // self._options.num_cpus))
            self._slots_until = now + _SLOTS_AGE_S
        return self._slots

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Outcome]:
        reference = self._run.remote(function, *arguments)
        future: Future[Outcome] = Future()
        future.set_running_or_notify_cancel()  # a future that is cancelled has no result
        self._running.add(reference)

        def finish(done: Future[Outcome]) -> None:
            self._running.discard(reference)
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        reference.future().add_done_callback(finish)
        return future

    def share(self, value: Any, directory: Path) -> Shared:
        return _RayShared(self._ray.put(value), secrets.token_hex(8))

    def explain(self, error: BaseException) -> BaseException:
        errors = self._ray.exceptions
        if isinstance(error, errors.RayTaskError):  # the task could not be unpickled
            first = str(error.cause if hasattr(error, "cause") else error).strip()
            return TaskError(
                f"the task failed on the node: {first}",
                remedy="install covey, and the modules of the source, on all nodes",
            )
        if not isinstance(error, errors.RayError):
            return error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        times = self._options.max_retries + 1
        return TaskError(
            f"the worker was lost: {reason} ({times} attempt{'s' * (times > 1)})",
            remedy=_LOST_REMEDY,
        )

    def close(self) -> None:
        """Stop the tasks that run, and wait until they do not write any more."""
        try:
            running = list(self._running)
            for reference in running:
                with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                    self._ray.cancel(reference, force=True)
            if running:
                self._ray.wait(running, num_returns=len(running), timeout=_CANCEL_TIMEOUT_S)
        finally:
            if self._is_own:
                self._ray.shutdown()


def _run_on_node(function: Callable[..., Any], *arguments: Any) -> Outcome:
    import ray

    address = ray.util.get_node_ip_address()
    node = str(ray.get_runtime_context().get_node_id())
    name = f"node {address} ({node[:8]}), process {os.getpid()}"
    return run_call(function, *arguments, node=name)


@dataclass(frozen=True)
class _RayShared(Shared):
    """Object of the object store."""

    reference: Any
    key: str

    def get(self) -> Any:
        import ray

        return _load(self.key, lambda: ray.get(self.reference))


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise DatasetError(
            "Ray is not installed",
            option="engine",
            found="ray",
            remedy="run `pip install 'covey[ray]'`",
        ) from None
    return ray
