"""The interface of engines, and the engine that an argument names."""

from __future__ import annotations

import abc
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from covey._threads import cpu_count
from covey.errors import CoveyError, DatasetError, TaskError

T = TypeVar("T")


class WorkerLostError(Exception):
    """The worker of a task was killed, or its node was lost: the task may be run again.

    Args:
        reason: What happened, as a clause.
        remedy: What the caller can do.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


class NodeLostError(Exception):
    """Files of an earlier task are lost with their node.

    Args:
        nodes: Nodes that are lost.
    """

    def __init__(self, *nodes: str) -> None:
        super().__init__(*nodes)
        self.nodes = nodes


@dataclass(frozen=True)
class Outcome:
    """What a worker returns: a result or an error, and the node that it ran on."""

    node: str
    result: Any = None
    error: BaseException | None = None


def run_call(call: Callable[[], Any], node: str = "") -> Outcome:
    """Run a task in a worker."""
    node = node or f"node {socket.gethostname()}, process {os.getpid()}"
    try:
        return Outcome(node, call())
    except (CoveyError, NodeLostError, MemoryError) as error:
        try:
            pickle.dumps(error)
        except Exception:  # a field of an error of the source
            return Outcome(node, error=TaskError(str(error)))
        return Outcome(node, error=error)
    except Exception as error:  # it may not be picklable
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{at.filename}:{at.lineno}"
        return Outcome(node, error=TaskError(f"{type(error).__name__}: {error} ({where})"))


class Shared(abc.ABC):
    """Object that many tasks use. The pickle of an instance does not contain it."""

    @abc.abstractmethod
    def get(self) -> Any:
        """Return the object; a worker loads it once."""


class Files(abc.ABC):
    """Files that tasks write to local disks, and other tasks read. Instances are picklable."""

    @abc.abstractmethod
    def directory(self) -> Path:
        """Return the directory on this node for new files."""

    @abc.abstractmethod
    def node(self) -> str:
        """Return the id of this node; an empty string if all nodes share the directory."""

    def retain(self, node: str) -> None:
        """Keep the files of a node available to other nodes. The main process calls it."""
        return

    @abc.abstractmethod
    def call(self, node: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function on the node that has the files in its arguments.

        Raises:
            NodeLostError: If the node is lost.
        """


@dataclass(frozen=True)
class SharedFiles(Files):
    """Files in a directory that all tasks share."""

    path: str

    def directory(self) -> Path:
        return Path(self.path)

    def node(self) -> str:
        return ""

    def call(self, node: str, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)


class Pool(abc.ABC):
    """Workers of an engine that has been started."""

    max_retries: int
    """How often a task is run again after its worker was lost."""

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

    @abc.abstractmethod
    def submit(self, call: Callable[[], Any]) -> Future[Outcome]:
        """Run a picklable function in a worker; WorkerLostError is set if the worker is lost."""

    @abc.abstractmethod
    def share(self, value: Any, directory: Path) -> Shared:
        """Return a reference to an object.

        Args:
            value: A picklable object.
            directory: Directory of temporary files of the caller.
        """

    @abc.abstractmethod
    def files(self, directory: Path) -> Files:
        """Return the files of tasks.

        Args:
            directory: Directory of temporary files of the caller. Files are written to it if all
                workers run on this machine.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Stop the workers, and remove their files."""


class Engine(abc.ABC):
    """Options of an engine."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name of the engine, for messages."""

    pieces: int | None
    """Number of pieces that a source is divided into; None to choose it."""

    @abc.abstractmethod
    def start(self) -> Pool:
        """Start the workers, or connect to them."""


class Here(Shared):
    """Object of this process."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        return self._value


class Threads(Pool):
    """Workers that are threads of this process.

    Args:
        workers: Number of threads (default: one per CPU).
    """

    max_retries = 0

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or cpu_count()
        self._executor = ThreadPoolExecutor(self._workers, thread_name_prefix="covey-task")

    @property
    def slots(self) -> int:
        return self._workers

    def submit(self, call: Callable[[], Any]) -> Future[Outcome]:
        return self._executor.submit(run_call, call)

    def share(self, value: Any, directory: Path) -> Shared:
        return Here(value)

    def files(self, directory: Path) -> Files:
        return SharedFiles(str(directory))

    def close(self) -> None:
        self._executor.shutdown(cancel_futures=True)


EngineArgument = Engine | Literal["processes", "ray"] | None
"""An ``engine`` argument: an engine, the name of one, or None for this process."""


def find_engine(engine: EngineArgument) -> Engine | None:
    """Return the engine of an argument; None for this process.

    Raises:
        DatasetError: If it is not an engine.
    """
    from covey.engines.processes import Processes
    from covey.engines.ray import Ray

    if engine is None or isinstance(engine, Engine):
        return engine
    if engine == "processes":
        return Processes()
    if engine == "ray":
        return Ray()
    raise DatasetError(
        option="engine",
        found=engine,
        allowed="None, 'processes', 'ray' or an object of covey.engines",
    )


def check_integer(option: str, value: Any, minimum: int, *, optional: bool = False) -> None:
    """Raise DatasetError unless an option of an engine is an integer of at least a minimum."""
    if not (optional and value is None) and not (type(value) is int and value >= minimum):
        raise DatasetError(option=option, found=value, allowed=f"an integer >= {minimum}")
