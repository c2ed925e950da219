"""The classes that a plan draws from: those that are wanted, and large enough."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from covey.classes import ClassTable
from covey.errors import PlanError, SmallClassesWarning

SmallClasses = Literal["repeat", "drop", "error"]

SMALL_CLASSES = get_args(SmallClasses)

# How many classes a message names.
_FEW = 5


@dataclass(frozen=True, eq=False)
class Eligible:
    """Classes of a table, by their positions in it, and what is drawn of each."""

    table: ClassTable
    positions: NDArray[np.int64]
    firsts: NDArray[np.uint64]
    counts: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def labels(self) -> NDArray[np.int64]:
        """The number of each class."""
        return np.ascontiguousarray(self.table.labels[self.positions])


def choose(
    table: ClassTable,
    examples_per_class: int,
    *,
    class_list: Iterable[int | str | bytes] | None,
    total_examples_per_class: int | None,
    small_classes: SmallClasses,
) -> Eligible:
    """The classes to draw from; says once which are small.

    Raises:
        PlanError: If there are small ones, and there must be none.
        DatasetError: If a class that is wanted is not there.
    """
    if small_classes not in SMALL_CLASSES:
        allowed = ", ".join(map(repr, SMALL_CLASSES))
        raise PlanError(f"small_classes is {small_classes!r}, must be one of {allowed}")
    positions = np.arange(len(table), dtype=np.int64)
    if class_list is not None:
        if isinstance(class_list, (str, bytes)) or not isinstance(class_list, Iterable):
            raise PlanError(f"class_list is {class_list!r}, must be a list of classes")
        found = np.array([table.position(each) for each in class_list], np.int64)
        positions = np.unique(found)
    counts = table.counts[positions]
    if total_examples_per_class is not None:
        counts = np.minimum(counts, total_examples_per_class)
    small = counts < examples_per_class
    if small.any():
        _tell(table, positions[small], counts[small], examples_per_class, small_classes)
    if small_classes == "drop":
        positions, counts = positions[~small], counts[~small]
    return Eligible(
        table,
        positions,
        np.ascontiguousarray(table.firsts[positions]),
        counts.astype(np.uint64),
    )


def _tell(
    table: ClassTable,
    positions: NDArray[np.int64],
    counts: NDArray[Any],
    examples_per_class: int,
    small_classes: SmallClasses,
) -> None:
    pairs = zip(positions[:_FEW].tolist(), counts[:_FEW].tolist(), strict=True)
    few = ", ".join(f"{table.name(position)!r} ({count})" for position, count in pairs)
    more = ", ..." if len(positions) > _FEW else ""
    many = len(positions)
    told = (
        f"{many:,} {'class has' if many == 1 else 'classes have'} fewer than "
        f"{examples_per_class} examples: {few}{more}"
    )
    if small_classes == "error":
        raise PlanError(
            f"{told}; have fewer examples_per_class, or pass small_classes='repeat' or 'drop'"
        )
    done = "their examples are repeated" if small_classes == "repeat" else "they are left out"
    # Seen from whoever made the plan, or the loader.
    warnings.warn(f"{told}; {done}", SmallClassesWarning, stacklevel=_outside())


def _outside() -> int:
    """How far up the first caller is that is not of covey."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("covey."):
        frame = frame.f_back
        level += 1
    return level
