"""Adapters: batches as tensors of a framework.

Each module imports its framework, and is imported on first use. It has a function ``tensor``, which
converts an array, and a function ``to_<framework>``, which converts the batches of a loader.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")
Framework = Literal["tensorflow", "torch", "jax", "numpy"]

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)

_ADAPTERS = ("jax", "keras", "ray", "tensorflow", "torch")


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def import_framework(name: str) -> Any:
    """Import a framework; the error has the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        command = f"pip install 'covey[{name}]'"
        message = f"covey.adapters.{name} requires {name}; install it with `{command}`"
        raise ImportError(message, name=name) from error


def to_framework(framework: Framework, batch: Any) -> Any:
    """Return the arrays of a nested batch as tensors of a framework.

    Raises:
        ImportError: If the framework is not installed.
    """
    if framework == "numpy":
        return convert(
            batch, lambda value: as_array(value) if hasattr(value, "__array__") else value
        )
    return convert(batch, importlib.import_module(f"{__name__}.{framework}").tensor)


def convert(batch: Any, tensor: Callable[[Any], Any]) -> Any:
    """Return a nested batch with `tensor` applied to its leaves."""
    if isinstance(batch, np.ndarray):  # first, because a batch of small arrays takes microseconds
        return tensor(batch)
    if isinstance(batch, (tuple, list)):
        parts = [convert(value, tensor) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, Mapping):
        return {name: convert(value, tensor) for name, value in batch.items()}
    return tensor(batch)


def as_array(value: Any) -> NDArray[Any]:
    """Return a value as a numpy array, which shares the memory of a tensor on the CPU."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def made_ahead(items: Iterable[Item], count: int) -> Iterator[Item]:
    """Yield items, `count` of which are made before they are requested.

    An error is raised in place of the item that it belongs to.
    """
    ready = deque[Item]()
    try:
        for item in items:
            ready.append(item)
            del item  # its memory is reused if the caller drops it
            if len(ready) > count:
                yield ready.popleft()
    except Exception:
        yield from ready
        raise
    yield from ready


def is_installed(framework: str) -> bool:
    """Return whether a framework is installed, without importing it."""
    try:
        return importlib.util.find_spec(framework) is not None
    except ValueError:  # its entry in sys.modules is None
        return False
