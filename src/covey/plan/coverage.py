"""The part of a dataset that the first steps of a plan draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Coverage:
    """What all ranks together draw in a number of steps.

    Args:
        steps: Number of steps.
        classes: Fraction of the classes that are drawn.
        examples: Fraction of the examples that are drawn.
        visits: Smallest and largest number of times that a class is drawn.
        times: Smallest and largest number of times that an example is drawn.
    """

    steps: int
    classes: float
    examples: float
    visits: tuple[int, int]
    times: tuple[int, int]

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps: {self.classes:.1%} of the classes ({_times(self.visits)}), "
            f"{self.examples:.1%} of the examples ({_times(self.times)})"
        )


def _times(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return f"{low:,} times each" if low == high else f"{low:,} to {high:,} times each"


def cover(
    steps: int,
    visits: NDArray[np.uint64],
    counts: NDArray[np.uint64],
    examples_per_class: int,
) -> Coverage:
    """Return the coverage of a number of visits to each class.

    Args:
        steps: Number of steps.
        visits: Number of times that each class is drawn.
        counts: Number of examples of each class.
        examples_per_class: Number of examples per visit, which continue with the next ones.
    """
    drawn = visits * np.uint64(examples_per_class)
    distinct = np.minimum(drawn, counts)
    fewest = drawn // counts
    most = fewest + (drawn % counts > 0)
    return Coverage(
        steps,
        classes=float((visits > 0).mean()),
        examples=float(distinct.sum() / counts.sum()),
        visits=(int(visits.min()), int(visits.max())),
        times=(int(fewest.min()), int(most.max())),
    )
