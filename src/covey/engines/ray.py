"""Engine of a Ray cluster.

Tasks write their files to a local directory of their node. An actor on every such node reads them
for the tasks of other nodes. If a node is lost, the tasks that wrote its files are run again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from covey.engines.base import (
    Engine,
    Files,
    NodeLostError,
    Outcome,
    Pool,
    Shared,
    WorkerLostError,
    check_integer,
    run_call,
)
from covey.errors import DatasetError, TaskError

T = TypeVar("T")

_PREFIX = "covey-engine-"
_LOST_REMEDY = (
    "pass an engine with more pieces or more memory per task, or pass a lower memory_limit=, if "
    "the worker lacks memory"
)
_ABANDONED_S = 86400.0
_CANCEL_TIMEOUT_S = 60.0
_SLOTS_AGE_S = 10.0
"""The size of the cluster, which may grow, is requested again after this time."""


@dataclass(frozen=True, kw_only=True)
class Ray(Engine):
    """A Ray cluster: the running one, or one that is started on this machine.

    covey must be installed on all nodes, and the path of the dataset must be a directory that all
    nodes share, or a URL.

    Args:
        address: Address of the cluster (default: as ``ray.init()``, which starts a cluster on this
            machine if none runs).
        num_cpus: CPUs of a task.
        memory: Bytes of memory of a task that Ray reserves (default: none).
        resources: Custom resources of a task, by name.
        scheduling_strategy: Placement of tasks, as for ``ray.remote``: ``"SPREAD"``, ``"DEFAULT"``
            or a strategy object, such as that of a placement group.
        runtime_env: Runtime environment of tasks, as for ``ray.remote``.
        pieces: Number of pieces that the source is divided into (default: four per CPU of the
            cluster, and more for large files).
        max_retries: How often a task is run again after its worker or its node was lost.

    Raises:
        DatasetError: If an option has an invalid value.

    >>> Ray(num_cpus=2, resources={"disk": 1}).max_retries
    3
    """

    address: str | None = None
    num_cpus: float = 1
    memory: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    scheduling_strategy: Any = "SPREAD"
    runtime_env: Mapping[str, Any] | None = None
    pieces: int | None = None
    max_retries: int = 3

    def __post_init__(self) -> None:
        check_integer("pieces", self.pieces, 1, optional=True)
        check_integer("memory", self.memory, 1, optional=True)
        check_integer("max_retries", self.max_retries, 0)
        is_number = isinstance(self.num_cpus, (int, float)) and not isinstance(self.num_cpus, bool)
        if not is_number or not self.num_cpus > 0:
            raise DatasetError(option="num_cpus", found=self.num_cpus, allowed="a number > 0")

    @property
    def name(self) -> str:
        return "ray"

    def start(self) -> Pool:
        return _RayPool(self)


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


class _RayPool(Pool):
    def __init__(self, options: Ray) -> None:
        self._ray = ray = _import_ray()
        self.max_retries = options.max_retries
        self._options = options
        self._is_own = not ray.is_initialized()
        if self._is_own:
            ray.init(address=options.address, log_to_driver=False, logging_level=logging.WARNING)
        self._files: list[_RayFiles] = []
        self._running: set[Any] = set()
        self._has_lost_workers = False
        self._slots = 0
        self._slots_until = 0.0
        settings: dict[str, Any] = {
            "num_cpus": options.num_cpus,
            "resources": dict(options.resources) or None,
            "scheduling_strategy": options.scheduling_strategy,
            "max_retries": 0,  # run_tasks repeats tasks
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

    def submit(self, call: Callable[[], Any]) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        reference = self._run.remote(call)
        self._running.add(reference)
        future.set_running_or_notify_cancel()
        reference.future().add_done_callback(functools.partial(self._done, future, reference))
        return future

    def _done(self, future: Future[Outcome], reference: Any, inner: Future[Outcome]) -> None:
        self._running.discard(reference)
        errors = self._ray.exceptions
        error = inner.exception()
        if error is None:
            future.set_result(inner.result())
        elif isinstance(error, errors.RayTaskError):  # the task could not be unpickled
            first = str(error.cause if hasattr(error, "cause") else error).strip()
            future.set_exception(
                TaskError(
                    f"the task failed on the node: {first}",
                    remedy="install covey, and the modules of the source, on all nodes",
                )
            )
        elif isinstance(error, errors.RayError):
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._has_lost_workers = True
            future.set_exception(
                WorkerLostError(f"the worker was lost: {reason}", remedy=_LOST_REMEDY)
            )
        else:
            future.set_exception(error)

    def share(self, value: Any, directory: Path) -> Shared:
        return _RayShared(self._ray.put(value), secrets.token_hex(8))

    def files(self, directory: Path) -> Files:
        files = _RayFiles(f"{_PREFIX}{secrets.token_hex(8)}")
        self._files.append(files)
        return files

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # a task that failed may have left files
            self._has_lost_workers = True
        self.close()

    def close(self) -> None:
        try:
            self._cancel()
            for files in self._files:
                # A worker that was killed has left files on its node.
                for node in self._ray.nodes() if self._has_lost_workers else ():
                    if node["Alive"]:
                        files.retain(node["NodeID"])
                files.remove()
        finally:
            if self._is_own:
                self._ray.shutdown()

    def _cancel(self) -> None:
        """Stop the tasks that run, and wait until they do not write any more."""
        running = list(self._running)
        for reference in running:
            self._has_lost_workers = True
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.cancel(reference, force=True)
        if running:
            self._ray.wait(running, num_returns=len(running), timeout=_CANCEL_TIMEOUT_S)


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _run_on_node(call: Callable[[], Any]) -> Outcome:
    import ray

    address = ray.util.get_node_ip_address()
    return run_call(call, f"node {address} ({_node()[:8]}), process {os.getpid()}")


@dataclass(frozen=True)
class _RayShared(Shared):
    """Object of the object store."""

    reference: Any
    key: str

    def get(self) -> Any:
        if self.key not in _shared:
            import ray

            while len(_shared) >= 4:
                _shared.pop(next(iter(_shared)))
            _shared[self.key] = ray.get(self.reference)
        return _shared[self.key]


_shared: dict[str, Any] = {}


class _NodeServer:
    """Actor that reads the files of its node for the tasks of other nodes."""

    def __init__(self, name: str) -> None:
        self._directory = _node_directory(name)
        _remove_abandoned(name)

    def call(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> Outcome:
        return run_call(functools.partial(_call_here, _node(), function, arguments), _node())

    def touch(self) -> None:
        """Show that the files are in use."""
        with contextlib.suppress(OSError):
            os.utime(self._directory)

    def remove(self) -> None:
        """Remove the files of the node."""
        shutil.rmtree(self._directory, ignore_errors=True)


def _call_here(node: str, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    try:
        return function(*arguments)
    except FileNotFoundError as error:  # the disk of the node was replaced
        raise NodeLostError(node) from error


def _node_directory(name: str) -> Path:
    return Path(tempfile.gettempdir(), f"{name}-{_node()[:16]}")


def _remove_abandoned(own: str) -> None:
    """Remove files of main processes that were killed, which nothing has used for a day."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if not path.name.startswith(own) and time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)


class _RayFiles(Files):
    """Files on the local disks of the nodes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._servers: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _RayFiles, (self._name,)

    def directory(self) -> Path:
        path = _node_directory(self._name)
        path.mkdir(mode=0o700, exist_ok=True)
        os.utime(path)
        return path

    def node(self) -> str:
        return _node()

    def retain(self, node: str) -> None:
        if not node or node in self._servers:
            return
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._servers[node] = (
            ray.remote(_NodeServer)
            .options(
                name=f"{self._name}-{node}",
                num_cpus=0,
                max_concurrency=16,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            .remote(self._name)
        )

    def call(self, node: str, function: Callable[..., T], *arguments: Any) -> T:
        import ray

        if not node:  # the files are shared
            return function(*arguments)
        if node == _node():
            return _call_here(node, function, arguments)
        try:
            server = ray.get_actor(f"{self._name}-{node}")
            outcome = ray.get(server.call.remote(function, arguments))
        except (ValueError, ray.exceptions.RayError) as error:
            raise NodeLostError(node) from error
        if outcome.error is not None:
            raise outcome.error
        result: T = outcome.result
        return result

    def remove(self) -> None:
        """Remove the files on all nodes, and stop the actors."""
        import ray

        servers, self._servers = self._servers, {}
        for server in servers.values():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(server.remove.remote(), timeout=60)
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(server)


# Blocks of Ray Datasets.


@dataclass(frozen=True)
class RayBlock:
    """Block of a Ray Dataset, which a task loads."""

    reference: Any
    begin: int = 0
    end: int | None = None

    def load(self) -> dict[str, Any]:
        """Return the columns: Arrow arrays or pandas series, and numpy arrays of tensors."""
        import ray

        block = ray.get(self.reference)
        if self.begin != 0 or self.end is not None:
            if hasattr(block, "iloc"):
                block = block.iloc[self.begin : self.end]
            else:
                block = block.slice(self.begin, None if self.end is None else self.end - self.begin)
        return block_columns(block)


@dataclass(frozen=True)
class LoadedBlock:
    """Block of a Ray Dataset in this process."""

    block: Any

    def load(self) -> dict[str, Any]:
        """Return the columns, as :meth:`RayBlock.load`."""
        return block_columns(self.block)


def block_columns(block: Any) -> dict[str, Any]:
    """Return the columns of a block: Arrow arrays or pandas series, and arrays of tensors."""
    from ray.data.block import BlockAccessor

    if hasattr(block, "iloc"):
        return {str(name): block[name] for name in block.columns}
    columns: dict[str, Any] = {}
    for name in block.schema.names:
        column = block.column(name)
        if hasattr(column.type, "storage_type"):  # a tensor
            column = BlockAccessor.for_block(block).to_numpy(name)
        columns[name] = column
    return columns


def dataset_blocks(dataset: Any) -> Iterator[tuple[RayBlock, int]]:
    """Execute a Ray Dataset; yield its blocks in order, with the number of their rows.

    The references keep the blocks in the object store, which spills them to disk: a block is read
    again if the node that encoded it is lost.
    """
    options = dataset.context.execution_options
    before = options.preserve_order
    options.preserve_order = True
    try:
        for bundle in dataset.iter_internal_ref_bundles():
            slices = getattr(bundle, "slices", None) or [None] * len(bundle.blocks)
            for entry, part in zip(bundle.blocks, slices, strict=True):
                is_entry = hasattr(entry, "ref")  # a pair in earlier versions of Ray
                reference, metadata = (entry.ref, entry.metadata) if is_entry else entry
                if part is None:
                    yield RayBlock(reference), metadata.num_rows
                else:
                    rows = part.end_offset - part.start_offset
                    yield RayBlock(reference, part.start_offset, part.end_offset), rows
    finally:
        options.preserve_order = before
