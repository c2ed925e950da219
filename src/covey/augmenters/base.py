"""What an augmenter is."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class Augmenter(ABC):
    """Takes a batch and returns one, possibly a larger one; samplers call it.

    What it does by chance should be a function of the step, and of a seed that it has: then a batch
    is the same whenever it is made.

    >>> class Brighter(Augmenter):
    ...     def augment(self, x, y, examples_per_class, is_warmup, *, step=0):
    ...         return x * 2, y
    >>> Brighter()(3, 1, 2, False)
    (6, 1)
    """

    @abstractmethod
    def augment(
        self, x: Any, y: Any, examples_per_class: int, is_warmup: bool, *, step: int = 0
    ) -> Any:
        """The batch that takes the place of another.

        Args:
            x, y: The examples, and their classes.
            examples_per_class: How many of each class a sampler is to give; where each example is a
                class of its own, how many are to be made of it.
            is_warmup: Whether training has only begun.
            step: The number of the batch. An augmenter that does not take it is not told.
        """

    def __call__(
        self, x: Any, y: Any, examples_per_class: int, is_warmup: bool = False, *, step: int = 0
    ) -> Any:
        """:meth:`augment`, whether that takes the step or not."""
        augment: Callable[..., Any] = self.augment
        told = {"step": step} if takes_step(augment) else {}
        return augment(x, y, examples_per_class, is_warmup, **told)


def takes_step(function: Callable[..., Any]) -> bool:
    """Whether an augmenter is to be told the step."""
    try:
        return "step" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # it is of a kind that does not tell its parameters
        return False
