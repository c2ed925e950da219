"""How large the integers of records are: what decides whether floats hold them."""

from __future__ import annotations

from typing import Any

import numpy as np

from covey.schema.codec import leaf
from covey.schema.features import Features
from covey.tfrecord import Block


def integer_range(features: Features, block: Block, name: str) -> tuple[int, int]:
    """The smallest and the largest integer of a feature in some records, and 0."""
    if name not in features or not len(block):
        return 0, 0
    column: Any = leaf(features.decode_batch(block, [name]))
    while hasattr(column, "values"):  # ragged, or sparse, to any depth
        column = column.values
    values = np.asarray(column)
    if not values.size or values.dtype.kind not in "iu":
        return 0, 0
    return min(0, int(values.min())), max(0, int(values.max()))


def join_ranges(*ranges: tuple[int, int]) -> tuple[int, int]:
    """The range that has all of these in it."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)
