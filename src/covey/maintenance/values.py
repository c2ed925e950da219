"""Summaries of the values of examples: ranges, NaN, lengths and images."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseBatch, StringArray
from covey.results import ValueSummary
from covey.schema import ClassLabel, Features, Image
from covey.schema.columns import STRINGS
from covey.schema.image_summary import ImageSummary
from covey.schema.images import read_header


class ValueSurvey:
    """Summaries of the features of examples, which are added in batches of columns.

    Memory is bounded by the number of different lengths.

    Args:
        features: Features of the examples.
        label: Label feature, which is not summarized; None without classes.
    """

    def __init__(self, features: Features, label: str | None) -> None:
        self._features = features
        self._surveys = {
            name: _FeatureSurvey(kind)
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


class _FeatureSurvey:
    def __init__(self, kind: Any) -> None:
        self._is_image = isinstance(kind, Image)
        self._images = ImageSummary()
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
            for data in column:
                self._images += _image(data)
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

    def summary(self) -> ValueSummary:
        return ValueSummary(
            minimum=self._low,
            maximum=self._high,
            mean=self._sum / self._count if self._count else None,
            nan=self._nan if self._is_float else None,
            lengths=_quantiles(self._lengths) if self._lengths else None,
            images=self._images if self._is_image else None,
        )


def _image(data: bytes) -> ImageSummary:
    header = read_header(data)
    if header is None:
        return ImageSummary(unknown=1)
    size = header.height, header.width
    return ImageSummary(
        {header.format: 1},
        {header.channels: 1},
        {header.bits: 1},
        int(header.orientation != 1),
        0,
        size,
        size,
    )


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
