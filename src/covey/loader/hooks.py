"""Calls of user functions with arguments that are derived from the seed and the step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from covey.errors import FeatureError, PlanError

SEEDED = ("rng", "step", "row")


class BatchKey(NamedTuple):
    """Identity of a batch, from which the random numbers of its hooks are derived."""

    seed: int
    step: int
    """Index of the batch over all epochs and ranks."""
    row: int = 0
    """Index, in the batch of all ranks, of the first row of this rank."""
    examples_per_class: int = 1

    def generator(self, row: int | None = None) -> np.random.Generator:
        """Return the generator of the batch, or of one of its rows.

        The streams are segments of one Philox sequence with the key (seed, step): they never
        overlap, and none has to be drawn to reach another.
        """
        counter = (0, 0, 1, 0) if row is None else (0, 0, 0, self.row + row + 1)
        key = np.array([self.seed, self.step], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=np.array(counter, np.uint64)))


class Hook:
    """A user function, and which of ``rng``, ``step`` and ``row`` it accepts.

    Args:
        option: Name of the argument that it was passed as.
        function: The function.

    >>> hook = Hook("batch_transform", lambda x, rng, step: (x, rng.integers(100), step))
    >>> hook(0, key=BatchKey(seed=1, step=5)) == hook(0, key=BatchKey(seed=1, step=5))
    True
    """

    def __init__(self, option: str, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise FeatureError(option=option, found=function, allowed="a function")
        self.option = option
        self.function = function
        self._names = accepted(function)

    def __call__(self, *arguments: Any, key: BatchKey, row: int | None = None) -> Any:
        seeded: dict[str, Any] = {}
        for name in self._names:
            if name == "rng":
                seeded[name] = key.generator(row)
            else:
                seeded[name] = key.step if name == "step" else key.row + (row or 0)
        return self.function(*arguments, **seeded)


def accepted(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return those of ``rng``, ``step`` and ``row`` that a function accepts as keywords."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return ()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(name for name in SEEDED if name in parameters and parameters[name].kind in kinds)


def augment(hook: Hook, x: Any, y: Any, key: BatchKey, *, is_warmup: bool = False) -> Any:
    """Return x and y as an augmenter returns them; lists of scalars become arrays.

    Raises:
        PlanError: If it does not return a pair.
    """
    result = hook(x, y, key.examples_per_class, is_warmup, key=key)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise PlanError(
            option="result of the augmenter", found=type(result).__name__, allowed="a pair (x, y)"
        )
    return tuple(map(_stack_scalars, result))


def _stack_scalars(value: Any) -> Any:
    # A list of arrays, views for instance, remains a list.
    is_flat = isinstance(value, list) and all(np.ndim(item) == 0 for item in value)
    return np.asarray(value) if is_flat else value


def add_location(error: Exception, location: str) -> None:
    """Add to an error of a user function where it was raised."""
    if hasattr(error, "add_note"):  # since Python 3.11
        error.add_note(location)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({location})", *error.args[1:])
