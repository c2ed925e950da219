"""Engines: where the tasks of :func:`covey.write` and :func:`covey.commit` run.

``engine="processes"`` and ``engine="ray"`` are engines with default options; an object of this
module has others::

    covey.write(photos, "data/birds", engine=covey.engines.Ray(num_cpus=2, max_retries=5))
"""

from covey.engines.options import Engine, EngineArgument, Processes, Ray, find_engine
from covey.engines.pools import Pool
from covey.engines.tasks import Task, run_tasks

__all__ = [
    "Engine",
    "EngineArgument",
    "Pool",
    "Processes",
    "Ray",
    "Task",
    "find_engine",
    "run_tasks",
]
