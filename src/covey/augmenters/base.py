"""The interface of an augmenter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from covey.loader.options import accepted


class Augmenter(ABC):
    """Function from a batch to a batch, possibly with more examples; samplers and loaders call it.

    Its random choices should be functions of the step, and of `rng` or a seed of its own: a batch
    then is the same whenever it is built.

    >>> class Brighter(Augmenter):
    ...     def augment(self, x, y, examples_per_class, is_warmup):
    ...         return x * 2, y
    >>> Brighter()(3, 1, 2, False)
    (6, 1)
    """

    @abstractmethod
    def augment(self, x: Any, y: Any, examples_per_class: int, is_warmup: bool) -> Any:
        """Return x and y of the augmented batch.

        A subclass may add keyword parameters named ``step``, the index of the batch; ``row``, the
        index of its first row in the batch of all ranks; and ``rng``, a numpy Generator that is a
        function of the seed and the step.

        Args:
            x: The examples.
            y: Their class ids, or None.
            examples_per_class: Number of examples of each class in the batch; if each example is a
                class of its own, the number of examples to make of it.
            is_warmup: Whether the epoch is one of the warm-up.
        """

    def __call__(
        self,
        x: Any,
        y: Any,
        examples_per_class: int,
        is_warmup: bool = False,
        *,
        step: int = 0,
        row: int = 0,
        rng: Any = None,
    ) -> Any:
        """Call :meth:`augment` with those of `step`, `row` and `rng` that it accepts."""
        augment: Callable[..., Any] = self.augment
        seeded = {"step": step, "row": row, "rng": rng}
        used = {name: seeded[name] for name in accepted(augment)}
        return augment(x, y, examples_per_class, is_warmup, **used)
