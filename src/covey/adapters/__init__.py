"""Batches as the frameworks want them: one small module each, with the same verbs.

A module is imported when it is asked for, and imports its framework then. Each has ``tensor``,
which makes a tensor of an array, and a function that takes a loader's batches over.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Framework = Literal["tensorflow", "torch", "jax", "numpy"]

FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)


def check_framework(framework: Framework) -> Framework:
    """A framework that somebody names.

    Raises:
        ValueError: If there is no such one.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(
            f"framework is {framework!r}; must be one of {', '.join(map(repr, FRAMEWORKS))}"
        )
    return framework


def tensors(framework: Framework) -> Callable[[Any], Any]:
    """What makes a batch one of a framework's: its arrays become tensors, whatever they are in.

    Raises:
        ImportError: If it is not installed.
    """
    if framework == "numpy":
        return lambda batch: convert(batch, _array)
    adapter = importlib.import_module(f"covey.adapters.{framework}")
    return lambda batch: convert(batch, adapter.tensor)


def convert(batch: Any, tensor: Callable[[Any], Any]) -> Any:
    """The same batch with something else in place of its arrays."""
    if isinstance(batch, Mapping):
        return {name: convert(value, tensor) for name, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        parts = [convert(value, tensor) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return tensor(batch)


def _array(value: Any) -> Any:
    return as_array(value) if hasattr(value, "__array__") else value


def as_array(value: Any) -> NDArray[Any]:
    """Return a value as a numpy array, which shares the memory of a tensor on the CPU."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def is_installed(framework: str) -> bool:
    """Whether a framework can be imported; it is not."""
    try:
        return importlib.util.find_spec(framework) is not None
    except ValueError:  # somebody has blocked it
        return False
