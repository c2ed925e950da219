"""Some examples of each class, chosen at random."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from covey.plan.base import check_int, check_seed
from covey.samplers.inputs import classes_of, labelled, parse_class_list


def select_examples(
    x: Any,
    y: Any,
    class_list: Iterable[Any] | None = None,
    num_examples_per_class: int | None = None,
    *,
    seed: int = 0,
) -> tuple[Any, Any]:
    """At most so many different examples of each class, shuffled.

    Args:
        x: The examples: an array, a tensor, a list.
        y: Their classes.
        class_list: Only these classes; all by default.
        num_examples_per_class: How many of each; all by default.
        seed: Which ones, and in which order.

    Returns:
        x and y of those that were chosen, as arrays.

    >>> x, y = select_examples(np.arange(12), np.arange(12) % 4, [1, 3], 2)
    >>> x, y
    (array([11,  3,  1,  9]), array([3, 3, 1, 1]))
    """
    rows, labels = labelled(x, y)
    classes = classes_of(labels)
    wanted = parse_class_list(class_list)
    positions = range(len(classes)) if wanted is None else sorted({*map(classes.position, wanted)})
    most = None
    if num_examples_per_class is not None:
        most = check_int("num_examples_per_class", num_examples_per_class, 1)
    random = np.random.Generator(np.random.Philox(check_seed(seed)))
    chosen = [random.permutation(classes.records(position))[:most] for position in positions]
    ids = random.permutation(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    return rows.take(ids), labels[ids]
