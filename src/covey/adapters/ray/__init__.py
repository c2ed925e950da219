"""Ray: a Ray Dataset of the examples of a dataset, and a Datasink that writes one."""

from __future__ import annotations

try:
    import ray.data  # noqa: F401
except ImportError as error:
    raise ImportError(
        "covey.adapters.ray requires Ray; install it with `pip install 'covey[ray]'`",
        name="ray",
    ) from error

from covey.adapters.ray.datasink import Datasink
from covey.adapters.ray.read import read

__all__ = ["Datasink", "read"]
