"""Examples of equal content, within a split and between splits.

The content of an example is hashed to 128 bits when it is read. Hashes are sorted at the end: at
most about 120 bytes of memory per example, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.arrays import RaggedArray, SparseArray
from covey.dataset.dataset import Dataset
from covey.labels import content_features
from covey.results import DuplicatePair, Duplicates
from covey.schema import Features
from covey.shuffle.keys import RecordOrder, hash_keys

MAX_PAIRS = 20

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
