"""The engines and their options."""

from __future__ import annotations

import abc
import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from covey.engines.pools import Pool, ProcessPool, RayPool
from covey.errors import DatasetError, cpu_count


class Engine(abc.ABC):
    """Options of an engine."""

    pieces: int | None
    """Number of pieces that a source is divided into; None to choose it."""
    is_local: ClassVar[bool] = True
    """Whether the workers use the disks of this machine."""

    @abc.abstractmethod
    def start(self) -> Pool:
        """Start the workers, or connect to them."""


@dataclass(frozen=True, kw_only=True)
class Processes(Engine):
    """Processes of this machine, for sources whose examples are computed by Python.

    A script that uses it needs ``if __name__ == "__main__":``.

    Args:
        workers: Number of processes (default: one per CPU).
        pieces: Number of pieces that the source is divided into (default: four per process, and
            more for large files).
        max_retries: How often a task is run again after a process was killed.

    Raises:
        DatasetError: If an option has an invalid value.

    >>> Processes(workers=4).max_retries
    1
    """

    workers: int | None = None
    pieces: int | None = None
    max_retries: int = 1

    def __post_init__(self) -> None:
        _check_integer("workers", self.workers, 1, optional=True)
        _check_integer("pieces", self.pieces, 1, optional=True)
        _check_integer("max_retries", self.max_retries, 0)

    def start(self) -> Pool:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise DatasetError(
                "this process imports the script of the main process, which starts a write",
                option="engine",
                found="processes",
                remedy="call it below `if __name__ == '__main__':`",
            )
        return ProcessPool(self.workers or cpu_count(), self.max_retries)


@dataclass(frozen=True, kw_only=True)
class Ray(Engine):
    """A Ray cluster: the running one, or one that is started on this machine.

    covey must be installed on all nodes, and the path of the dataset must be a directory that all
    nodes share, or a URL: tasks write temporary files beside the dataset.

    Args:
        address: Address of the cluster (default: as ``ray.init()``, which starts a cluster on this
            machine if none runs).
        num_cpus: CPUs of a task.
        memory: Bytes of memory of a task that Ray reserves (default: none).
        resources: Custom resources of a task, by name.
        scheduling_strategy: Placement of tasks, as for ``ray.remote``: ``"SPREAD"``, ``"DEFAULT"``
            or a strategy object, such as ``PlacementGroupSchedulingStrategy``.
        runtime_env: Runtime environment of tasks, as for ``ray.remote``.
        pieces: Number of pieces that the source is divided into (default: four per CPU of the
            cluster, and more for large files).
        max_retries: How often Ray runs a task again after its worker or its node was lost.

    Raises:
        DatasetError: If an option has an invalid value.

    >>> Ray(num_cpus=2, resources={"disk": 1}).max_retries
    3
    """

    is_local: ClassVar[bool] = False
    address: str | None = None
    num_cpus: float = 1
    memory: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    scheduling_strategy: Any = "SPREAD"
    runtime_env: Mapping[str, Any] | None = None
    pieces: int | None = None
    max_retries: int = 3

    def __post_init__(self) -> None:
        _check_integer("pieces", self.pieces, 1, optional=True)
        _check_integer("memory", self.memory, 1, optional=True)
        _check_integer("max_retries", self.max_retries, 0)
        is_number = isinstance(self.num_cpus, (int, float)) and not isinstance(self.num_cpus, bool)
        if not is_number or not self.num_cpus > 0:
            raise DatasetError(option="num_cpus", found=self.num_cpus, allowed="a number > 0")

    def start(self) -> Pool:
        return RayPool(self)


EngineArgument = Engine | Literal["processes", "ray"] | None
"""An ``engine`` argument: an engine, the name of one, or None for this process."""


def find_engine(engine: EngineArgument) -> Engine | None:
    """Return the engine of an argument; None for this process.

    Raises:
        DatasetError: If it is not an engine.
    """
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


def _check_integer(option: str, value: Any, minimum: int, *, optional: bool = False) -> None:
    """Raise DatasetError unless an option of an engine is an integer of at least a minimum."""
    if not (optional and value is None) and not (type(value) is int and value >= minimum):
        raise DatasetError(option=option, found=value, allowed=f"an integer >= {minimum}")
