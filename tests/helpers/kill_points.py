"""Named points of tasks, at which a test kills their node.

A test creates the file of a point. The first task that reaches the point renames it, writes the id
of its node to another file, and waits to be killed.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIRECTORY = "COVEY_TEST_KILL_POINTS"


def install() -> None:
    """Patch the tasks of this worker."""
    from covey.writing import shards, stages

    stages.map_piece = _with_points("map", stages.map_piece)
    stages.rewrite_groups = _with_points("rewrite", stages.rewrite_groups)
    shards.write_shard = _with_points("reduce", shards.write_shard)


def _with_points(name: str, task: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(task)
    def run(*args: Any) -> Any:
        _reach(f"{name} begins")
        result = task(*args)
        _reach(f"{name} ends")
        return result

    return run


def _reach(point: str) -> None:
    import ray

    directory = Path(os.environ[DIRECTORY])
    try:
        os.rename(directory / point, directory / f"{point}.reached")
    except FileNotFoundError:
        return
    (directory / "new").write_text(str(ray.get_runtime_context().get_node_id()))
    os.rename(directory / "new", directory / f"{point}.node")
    time.sleep(600)
