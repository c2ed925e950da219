"""How much of a dataset some steps of a plan show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Coverage:
    """What some steps show, of all ranks together."""

    steps: int
    classes: float
    """The share of the classes that are seen;"""
    examples: float
    """and of the examples."""
    visits: tuple[int, int]
    """How often a class is seen: the least, and the most;"""
    times: tuple[int, int]
    """and an example."""

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps: {self.classes:.1%} of the classes ({_often(self.visits)}), "
            f"{self.examples:.1%} of the examples ({_often(self.times)})"
        )


def _often(span: tuple[int, int]) -> str:
    least, most = span
    return f"{least:,} times each" if least == most else f"{least:,} to {most:,} times each"


def cover(
    steps: int,
    visits: NDArray[np.uint64],
    counts: NDArray[np.uint64],
    examples_per_class: int,
) -> Coverage:
    """What visits to classes show; each takes the next examples, and then begins again.

    Args:
        steps: How many.
        visits: To each class, in these steps.
        counts: The examples of each class.
        examples_per_class: That a visit shows.
    """
    shown = visits * np.uint64(examples_per_class)
    seen = np.minimum(shown, counts)
    often = shown // counts
    most = often + (shown % counts > 0)
    return Coverage(
        steps,
        classes=float((visits > 0).mean()),
        examples=float(seen.sum() / counts.sum()),
        visits=(int(visits.min()), int(visits.max())),
        times=(int(often.min()), int(most.max())),
    )
