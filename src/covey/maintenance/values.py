"""Summaries of the values of examples: ranges, NaN, lengths, images and histograms."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.arrays import RaggedArray, SparseBatch, StringArray
from covey.results import ValueSummary
from covey.schema import ClassLabel, Features, Image
from covey.schema.columns import STRINGS
from covey.schema.images import join_images

MAX_BINS = 40
"""Most bins of a histogram."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of values, or of lengths, between edges."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    is_lengths: bool = False
    """Whether lengths of strings or rows are counted, not values."""


class ValueSurvey:
    """Summaries of the features of examples, which are added in batches of columns.

    Memory is bounded by the number of different lengths, and by `max_values`.

    Args:
        features: Features of the examples.
        label: Label feature, which is not summarized; None without classes.
        max_values: Number of values of a feature that are stored for its histogram; 0 for no
            histograms.
    """

    def __init__(self, features: Features, label: str | None, *, max_values: int = 0) -> None:
        self._features = features
        self._surveys = {
            name: _FeatureSurvey(kind, max_values)
            for name, kind in features.items()
            if name != label and not isinstance(kind, ClassLabel)
        }

    def add(self, columns: dict[str, Any]) -> None:
        """Add examples; images are encoded."""
        for name, survey in self._surveys.items():
            survey.add(self._features.find(columns, name))

    def summaries(self) -> dict[str, ValueSummary]:
        """Return the summary of each feature."""
        return {name: survey.summary() for name, survey in self._surveys.items()}

    def histograms(self) -> dict[str, Histogram]:
        """Return the histograms of numbers, or else of lengths; a feature may have none."""
        found = {name: survey.histogram() for name, survey in self._surveys.items()}
        return {name: each for name, each in found.items() if each is not None}

    def image_sizes(self) -> dict[str, Counter[tuple[int, int]]]:
        """Return how many images have each height and width, if there are histograms."""
        return {name: survey.sizes for name, survey in self._surveys.items() if survey.sizes}


class _FeatureSurvey:
    def __init__(self, kind: Any, max_values: int) -> None:
        self._is_image = isinstance(kind, Image)
        self._images = join_images([])
        self.sizes: Counter[tuple[int, int]] = Counter()
        self._stored = _ValueSample(max_values)
        self._is_float = False
        self._low: Any = None
        self._high: Any = None
        self._sum = 0.0
        self._count = 0
        self._nan = 0
        self._lengths: Counter[int] = Counter()
        self._is_string = getattr(kind, "dtype", "") in STRINGS
        self._has_lengths = self._is_string or None in (getattr(kind, "shape", None) or ())

    def add(self, column: Any) -> None:
        if self._is_image:
            found = [_core.image_summary(data) for data in column]
            self._images = join_images([self._images, *found])
            if self._stored.limit:
                self.sizes.update(each["smallest"] for each in found if each["smallest"])
            return
        if isinstance(column, (RaggedArray, SparseBatch)):
            self._has_lengths = True
        if self._has_lengths:
            lengths, counts = np.unique(_lengths(column), return_counts=True)
            self._lengths.update(dict(zip(lengths.tolist(), counts.tolist(), strict=True)))
        numbers = _numbers(column)
        if numbers is not None:
            self._add_numbers(numbers)

    def _add_numbers(self, numbers: NDArray[Any]) -> None:
        if numbers.dtype.kind == "f":
            self._is_float = True
            valid = numbers[~np.isnan(numbers)]
            self._nan += numbers.size - valid.size
            numbers = valid
        elif numbers.dtype == bool:
            numbers = numbers.view(np.uint8)
        if not numbers.size:
            return
        low, high = numbers.min().item(), numbers.max().item()
        self._low = low if self._low is None else min(self._low, low)
        self._high = high if self._high is None else max(self._high, high)
        with np.errstate(all="ignore"):  # the sum of infinities is NaN
            self._sum += float(numbers.sum(dtype=np.float64))
        self._count += numbers.size
        self._stored.add(numbers)

    def histogram(self) -> Histogram | None:
        if not self._stored.limit:
            return None
        values = self._stored.values()
        if values.size:
            return _bin(values, np.ones(values.size, np.int64), is_integer=not self._is_float)
        if self._lengths and not self._count:
            lengths = np.array(list(self._lengths), np.float64)
            counts = np.array(list(self._lengths.values()), np.int64)
            return _bin(lengths, counts, is_integer=True, is_lengths=True)
        return None

    def summary(self) -> ValueSummary:
        return ValueSummary(
            minimum=self._low,
            maximum=self._high,
            mean=self._sum / self._count if self._count else None,
            nan=self._nan if self._is_float else None,
            lengths=_quantiles(self._lengths) if self._lengths else None,
            images=self._images if self._is_image else None,
        )


class _ValueSample:
    """Every n-th of some numbers, where n is a power of 2 that grows with their number.

    Args:
        limit: Maximum number of values that are stored.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._step = 1
        self._parts: list[NDArray[Any]] = []
        self._size = 0

    def add(self, numbers: NDArray[Any]) -> None:
        """Add numbers."""
        if not self.limit:
            return
        # Before they are copied: an array may be much larger than the sample.
        while self._size + -(-numbers.size // self._step) > self.limit:
            self._step *= 2
            self._parts = [np.concatenate([np.zeros(0), *self._parts])[::2]]
            self._size = self._parts[0].size
        part = np.array(numbers[:: self._step], np.float64)
        self._parts.append(part)
        self._size += part.size

    def values(self) -> NDArray[np.float64]:
        """Return the values that are finite."""
        values = np.concatenate([np.zeros(0), *self._parts])
        finite: NDArray[np.float64] = values[np.isfinite(values)]
        return finite


def _bin(
    values: NDArray[np.float64],
    counts: NDArray[np.int64],
    *,
    is_integer: bool,
    is_lengths: bool = False,
) -> Histogram | None:
    """Return a histogram of values that occur some times; of few integers, one bin for each."""
    low, high = float(values.min()), float(values.max())
    span = high - low
    if not math.isfinite(span):
        return None
    if is_integer:
        width = max(1, math.ceil((span + 1) / MAX_BINS))  # the same number of integers in each bin
        bins = math.ceil((span + 1) / width)
        edges = low - 0.5 + width * np.arange(bins + 1, dtype=np.float64)
    else:
        if not span:
            low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
        edges = np.linspace(low, high, MAX_BINS + 1)
    if not (np.diff(edges) > 0).all():  # neighbouring floats
        return None
    binned, _ = np.histogram(values, edges, weights=counts)
    return Histogram(edges, binned.astype(np.int64), is_lengths)


def _numbers(column: Any) -> NDArray[Any] | None:
    """Return the numbers of a column, flat; None for strings."""
    if isinstance(column, SparseBatch):
        column = column.values
    while isinstance(column, RaggedArray):
        column = column.values
    return None if isinstance(column, StringArray) else column.reshape(-1)


def _lengths(column: Any) -> NDArray[np.int64]:
    """Return the length of each string, or of each row."""
    if isinstance(column, SparseBatch):
        return column.values.row_lengths
    strings = column
    while isinstance(strings, RaggedArray):
        strings = strings.values
    if isinstance(strings, StringArray):
        if not strings.text:
            return np.diff(strings.offsets)
        # Characters are the bytes that do not continue a UTF-8 sequence.
        begins = np.zeros(len(strings.data) + 1, np.int64)
        np.cumsum((strings.data & 0xC0) != 0x80, out=begins[1:])
        return np.diff(begins[strings.offsets])
    if isinstance(column, RaggedArray):
        shapes = column.row_shapes
        if isinstance(shapes, np.ndarray):
            return shapes[:, 0]
        if shapes is not None and shapes[0] >= 0:
            return np.full(len(column), shapes[0], np.int64)
        rest = int(np.prod(shapes[1:])) if shapes else 1
        return column.row_lengths // max(1, rest)
    return np.full(len(column), column.shape[1] if column.ndim > 1 else 1, np.int64)


def _quantiles(lengths: Counter[int]) -> tuple[int, int, int]:
    """Return the smallest, the median and the largest length."""
    ordered = sorted(lengths)
    ends = np.cumsum([lengths[each] for each in ordered])
    middle = int(np.searchsorted(ends, (int(ends[-1]) - 1) // 2, side="right"))
    return ordered[0], ordered[middle], ordered[-1]
