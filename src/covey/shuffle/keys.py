"""The order of records: hashes of their keys, and the sort by them.

The order depends on the hashes only: it is the same in every run, on every machine, for any number
of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import DuplicateKeyError, FeatureError
from covey.tfrecord.block import FRAME_BYTES

Key = str | bytes | int

ROW_DTYPE = np.dtype(
    [
        ("high", "<u8"),  # hash of the key
        ("low", "<u8"),
        ("position", "<u8"),  # position of the example in its source
        ("label", "<i8"),  # class id; 0 if the record is unlabelled
        ("length", "<u8"),  # bytes of the record
    ]
)

# Size of the parts of sorted records: large enough that the cost per part is negligible.
_PART_BYTES = 4 << 20


def hash_keys(keys: Sequence[Key], seed: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the 128-bit hashes of keys as two words. Each seed gives another order.

    >>> high, low = hash_keys(["a", "b"], seed=0)
    """
    try:
        return _core.hash_keys(keys, seed % 2**64)
    except _core.Fault as fault:
        key = keys[fault.row]
        reason = {
            "type": f"is of type {type(key).__name__}; must be a string, bytes or an integer",
            "range": "does not fit 64 bits; convert it to a string",
            "utf8": "is not valid UTF-8; convert it to bytes",
        }
        raise FeatureError(f"the key {key!r} {reason[fault.code]}") from None


def hash_positions(
    positions: NDArray[np.uint64], seed: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the hashes of examples without keys; no two high words are equal."""
    (salt,), _ = _core.hash_keys(["position"], seed % 2**64)
    # The finaliser of splitmix64, a bijection of 64-bit integers.
    mixed = (positions + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ salt
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31), positions


def make_rows(
    positions: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
    keys: Sequence[Key] | None,
    seed: int,
) -> NDArray[Any]:
    """Return the rows of records, by which they are sorted.

    Args:
        positions: Positions of the examples in their source.
        lengths: Bytes of the records.
        keys: Keys of the examples; None to hash the positions.
        seed: Seed of the hashes.
    """
    rows = np.zeros(len(positions), ROW_DTYPE)
    rows["position"] = positions
    rows["length"] = lengths
    hashes = hash_positions(positions, seed) if keys is None else hash_keys(keys, seed)
    rows["high"], rows["low"] = hashes
    return rows


def take_rows(rows: NDArray[Any], at: NDArray[np.intp]) -> NDArray[Any]:
    """Return some rows, faster than an index of a structured array."""
    words = np.ascontiguousarray(rows).view(np.uint64).reshape(-1, ROW_DTYPE.itemsize // 8)
    return np.take(words, at, axis=0).reshape(-1).view(ROW_DTYPE)


def join_rows(parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    """Return the rows of all parts, faster than a concatenation of structured arrays."""
    words = [np.ascontiguousarray(part).view(np.uint64) for part in parts]
    return np.concatenate([np.zeros(0, np.uint64), *words]).view(ROW_DTYPE)


def find_duplicate(rows: NDArray[Any]) -> tuple[int, int] | None:
    """Return the positions of two rows with the same hash; the rows are sorted by hash."""
    same = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    if not same.any():
        return None
    at = int(np.argmax(same))
    first, second = sorted(rows["position"][at : at + 2].tolist())
    return first, second


def duplicate_error(examples: tuple[int, int], key: Key | None) -> DuplicateKeyError:
    """Return the error for two examples with the same key; None if the key is not known."""
    first, second = examples
    both = "have the same key" if key is None else f"both have the key {key!r}"
    return DuplicateKeyError(
        f"examples {first} and {second} {both}; keys must be unique, because they determine the "
        "order",
        key=key,
        examples=(first, second),
        remedy="rename one, or pass examples without keys",
    )


def sort_words(words: NDArray[np.uint64]) -> NDArray[np.intp] | None:
    """Return the indices that sort hashes; None if their high bits are not distinct."""
    # Sorting integers is several times faster than an argsort. The index of each hash replaces its
    # lowest bits, which almost never decide.
    bits = np.uint64(max(1, len(words) - 1).bit_length())
    indices = np.arange(len(words), dtype=np.uint64)
    packed = words >> bits << bits | indices
    packed.sort()
    tops = packed >> bits
    if (tops[1:] == tops[:-1]).any():
        return None
    return (packed & (np.uint64(1) << bits) - np.uint64(1)).astype(np.intp)


@dataclass(frozen=True, slots=True)
class RecordOrder:
    """Sort order of records."""

    by_class: bool = False
    """Whether records are sorted by class id first."""
    by: Literal["hash", "position"] = "hash"
    """Order within a class, or of all records."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of a row that are compared, in this order."""
        rest = ("high", "low") if self.by == "hash" else ("position",)
        return ("label", *rest) if self.by_class else rest

    def sort(self, rows: NDArray[Any]) -> NDArray[np.intp]:
        """Return the indices that sort rows."""
        if self.by == "position":
            order = np.argsort(rows["position"], kind="stable")
        else:
            words = sort_words(np.ascontiguousarray(rows["high"]))
            order = np.lexsort([rows["low"], rows["high"]]) if words is None else words
        return order[np.argsort(rows["label"][order], kind="stable")] if self.by_class else order


def cut_by_bytes(lengths: NDArray[np.uint64], size: int = _PART_BYTES) -> Iterator[tuple[int, int]]:
    """Yield ranges of records that have about ``size`` bytes each.

    >>> list(cut_by_bytes(np.array([10, 10, 10], np.uint64), size=52))
    [(0, 2), (2, 3)]
    """
    ends = np.cumsum(lengths + np.uint64(FRAME_BYTES))
    begin = 0
    while begin < len(lengths):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, np.uint64(before + size), side="right")))
        yield begin, end
        begin = end
