"""Ray on this machine, for tests that other programs may delay."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# A node that was killed refuses connections, and is found by five checks, which take a second. A
# node that answers late is alive, and the memory of other programs ends no worker.
SYSTEM_CONFIG = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 60_000,
    "memory_monitor_refresh_ms": 0,
    "worker_register_timeout_seconds": 300,
    "agent_register_timeout_ms": 300_000,
    "gcs_rpc_server_connect_timeout_s": 300,
}


@contextmanager
def local_ray(module: ModuleType) -> Iterator[None]:
    """Run Ray with two CPUs; workers receive the functions of a module by value."""
    import ray

    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=200 << 20,
        _system_config=SYSTEM_CONFIG,
    )
    ray.cloudpickle.register_pickle_by_value(module)  # workers cannot import it
    yield
    ray.cloudpickle.unregister_pickle_by_value(module)
    ray.shutdown()
