"""Statistics of examples: summaries of their values, and examples of equal content.

The content of an example is hashed to 128 bits when it is read. Hashes are sorted at the end: at
most about 120 bytes of memory per example, whatever its size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.dataset.dataset import Dataset
from covey.labels import content_features
from covey.results import DuplicatePair, Duplicates, ValueSummary
from covey.schema import ClassLabel, Features, Image
from covey.schema.columns import STRINGS
from covey.schema.images import join_images
from covey.shuffle.keys import RecordOrder, hash_keys

MAX_PAIRS = 20
"""Most pairs of duplicates that are listed."""

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


# Duplicates.

_HASH_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8")])


class ContentHashes:
    """Hashes of the contents of examples, which are added split by split, in order."""

    def __init__(self) -> None:
        self._features: Features | None = None
        self._names: tuple[str, ...] | None = None
        self._is_comparable = True
        self._splits: dict[str, int] = {}
        self._split = ""
        self._hashes: list[NDArray[Any]] = [np.zeros(0, _HASH_DTYPE)]
        self._labels: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self._is_labelled = True
        self._classes: dict[str, int] = {}

    def begin(self, split: str, dataset: Dataset) -> None:
        """Begin a split.

        Args:
            split: Name of the split.
            dataset: The split.
        """
        self._split, self._splits[split] = split, 0
        if not len(dataset):
            return
        self._features = dataset.features
        names = content_features(dataset.features, dataset.label)
        if self._names is None:
            self._names = names
        self._is_comparable &= bool(names) and names == self._names
        if dataset.label is None:
            self._is_labelled = False
            return
        # Splits that were indexed separately may have different ids for the same class.
        classes = dataset.classes
        ids = [self._classes.setdefault(name, len(self._classes)) for name in classes]
        positions = np.searchsorted(classes.labels, dataset.labels)
        self._labels.append(np.array(ids, np.int64)[positions])

    def add(self, columns: Mapping[str, Any]) -> None:
        """Add examples of the split, by column."""
        if self._features is None or not self._names or not self._is_comparable:
            return
        parts = [self._features.find(columns, name) for name in self._names]
        words = [word for part in parts for word in hash_keys(list(map(_to_bytes, part)), 0)]
        if len(parts) > 1:
            joined = np.ascontiguousarray(np.stack(words, axis=1))
            words = list(hash_keys([row.tobytes() for row in joined], 0))
        hashes = np.zeros(len(words[0]), _HASH_DTYPE)
        hashes["high"], hashes["low"] = words
        self._hashes.append(hashes)
        self._splits[self._split] += len(hashes)

    def duplicates(self) -> Duplicates | None:
        """Return the examples of equal content; None if there are no features to compare."""
        if not self._names or not self._is_comparable:
            return None
        ids, begins = _groups(np.concatenate(self._hashes))
        names, ends = list(self._splits), np.cumsum(list(self._splits.values()))
        which = np.searchsorted(ends, ids, side="right")
        local = ids - np.concatenate([[0], ends])[which]  # in their splits
        groups, count = len(begins) - 1, len(names)
        group = np.repeat(np.arange(groups), np.diff(begins))
        counts = np.bincount(group * count + which, minlength=groups * count)
        counts = counts.reshape(groups, count)
        classes = list(self._classes)
        labels = np.concatenate(self._labels)[ids] if self._is_labelled else np.zeros_like(ids)
        conflicting = _differs(labels, begins)
        crossing = (counts > 0).sum(axis=1) > 1
        order = np.argsort(-(2 * conflicting.astype(np.int8) + crossing), kind="stable")

        def pair(number: int) -> DuplicatePair:
            first, end = begins[number : number + 2].tolist()
            key = labels if conflicting[number] else which if crossing[number] else ids
            second = first + int(np.argmax(key[first:end] != key[first]))
            return DuplicatePair(
                (names[which[first]], names[which[second]]),
                (int(local[first]), int(local[second])),
                (classes[labels[first]], classes[labels[second]]) if self._is_labelled else None,
            )

        return Duplicates(
            features=self._names,
            within={
                name: int(np.maximum(counts[:, at] - 1, 0).sum()) for at, name in enumerate(names)
            },
            between={
                (names[a], names[b]): common
                for a in range(count)
                for b in range(a + 1, count)
                if (common := int(counts[counts[:, a] > 0, b].sum()))
            },
            conflicts=int(conflicting.sum()),
            pairs=tuple(map(pair, order[:MAX_PAIRS].tolist())),
        )


def _groups(hashes: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids of examples of equal content, group after group, and where groups begin.

    The last begin is the end of the last group.
    """
    order = RecordOrder().sort(hashes)
    ordered = hashes[order]
    begins = np.flatnonzero(
        np.concatenate([np.ones(min(1, len(ordered)), bool), ordered[1:] != ordered[:-1]])
    )
    sizes = np.diff(np.append(begins, len(ordered)))
    ids = order[np.repeat(sizes > 1, sizes)].astype(np.int64)
    return ids, np.concatenate([[0], np.cumsum(sizes[sizes > 1])]).astype(np.int64)


def _differs(values: NDArray[np.int64], begins: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return for each group whether its values differ."""
    if len(begins) < 2:
        return np.zeros(0, bool)
    low, high = (each.reduceat(values, begins[:-1]) for each in (np.minimum, np.maximum))
    return np.asarray(low != high)


def _to_bytes(value: Any) -> bytes:
    """Return bytes that are equal only for equal values of one feature."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, RaggedArray):
        rows = [_to_bytes(each) for each in value]
        return b"".join([_sizes(len(rows), *map(len, rows)), *rows])
    if isinstance(value, SparseArray):
        return _sizes(len(value.values)) + value.indices.tobytes() + value.values.tobytes()
    array = np.asarray(value)
    if array.dtype == object:
        strings = [_to_bytes(each) for each in array.reshape(-1)]
        return b"".join([_sizes(*array.shape, *map(len, strings)), *strings])
    return (_sizes(*array.shape) if array.ndim else b"") + array.tobytes()


def _sizes(*sizes: int) -> bytes:
    return np.array(sizes, np.int64).tobytes()
