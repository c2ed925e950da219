"""`select_examples`: a random selection of examples of each class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from covey.plan.base import check_int, check_seed
from covey.samplers.inputs import labelled, parse_class_list


def select_examples(
    x: Any,
    y: Any,
    class_list: Iterable[Any] | None = None,
    num_examples_per_class: int | None = None,
    *,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Return distinct examples of each class, shuffled.

    Args:
        x: The examples: an array, a tensor or a list.
        y: The labels of the examples.
        class_list: The classes to select from; by default all.
        num_examples_per_class: The maximum number of examples of each class; by default all.
        seed: The seed of the selection and of the order.

    Returns:
        x and y of the selected examples, as arrays.

    >>> x, y = select_examples(np.arange(12), np.arange(12) % 4, [1, 3], 2)
    >>> x, y
    (array([11,  3,  1,  9]), array([3, 3, 1, 1]))
    """
    rows, labels, classes = labelled(x, y)
    chosen_classes = parse_class_list(class_list)
    positions: Iterable[int] = range(len(classes))
    if chosen_classes is not None:
        positions = sorted({*map(classes.position, chosen_classes)})
    limit = None
    if num_examples_per_class is not None:
        limit = check_int("num_examples_per_class", num_examples_per_class, 1)
    random = np.random.Generator(np.random.Philox(check_seed(seed)))
    chosen = [random.permutation(classes.records(position))[:limit] for position in positions]
    ids = random.permutation(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)
    return rows.take(ids), labels[ids]
