"""The order of records: the hashes of their keys, and what is sorted by them.

The order of a dataset is that of its keys' hashes, so that it is the same in every run, on every
machine, and whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import DuplicateKeyError, FeatureError
from covey.tfrecord import Block
from covey.tfrecord.block import FRAME_BYTES

Key = str | bytes | int

ROW_DTYPE = np.dtype(
    [
        ("high", "<u8"),  # the hash of the key
        ("low", "<u8"),
        ("position", "<u8"),  # the number of the example in its source
        ("label", "<i8"),  # its class, 0 if there are none
        ("length", "<u8"),  # of the record
    ]
)

# What is handed on at once: enough that handing it on costs nothing.
_BLOCK_BYTES = 4 << 20


def hash_keys(keys: Sequence[Key], seed: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The hashes of keys, in two words. Another seed gives another order.

    >>> high, low = hash_keys(["a", "b"], seed=0)
    """
    try:
        return _core.hash_keys(keys, seed % 2**64)
    except _core.Fault as fault:
        found = keys[fault.row]
        allowed = {
            "type": f"is of type {type(found).__name__}; must be a string, bytes or an integer",
            "range": "does not fit 64 bits; make it a string",
            "utf8": "is not a valid UTF-8; make it bytes",
        }
        raise FeatureError(f"the key {found!r} {allowed[fault.code]}") from None


def hash_positions(
    positions: NDArray[np.uint64], seed: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The same for examples without keys, by their number; no two high words are equal."""
    (salt,), _ = _core.hash_keys(["position"], seed % 2**64)
    # The finaliser of splitmix64, which maps 64 bits to 64 bits one to one.
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
    """The rows of records: of their numbers, lengths, and keys if they have any."""
    rows = np.zeros(len(positions), ROW_DTYPE)
    rows["position"] = positions
    rows["length"] = lengths
    hashes = hash_positions(positions, seed) if keys is None else hash_keys(keys, seed)
    rows["high"], rows["low"] = hashes
    return rows


def find_duplicate(rows: NDArray[Any]) -> tuple[int, int] | None:
    """The positions of two rows with the same hash, of rows that are sorted by it."""
    same = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    if not same.any():
        return None
    at = int(np.argmax(same))
    first, second = sorted(rows["position"][at : at + 2].tolist())
    return first, second


def raise_duplicate(examples: tuple[int, int], key: Key) -> NoReturn:
    """Say which two examples have the same key."""
    first, second = examples
    raise DuplicateKeyError(
        f"examples {first} and {second} both have the key {key!r}; keys must be unique, for they "
        "decide the order: rename one, or give examples without keys",
        key=key,
        examples=(first, second),
    )


def sort_words(words: NDArray[np.uint64]) -> NDArray[np.intp] | None:
    """The order of hashes, or None if two are so near that more than one word must decide."""
    # Sorting numbers is several times faster than sorting places by numbers: so the place of each
    # is put into its lowest bits, which hardly ever matter.
    bits = np.uint64(max(1, len(words) - 1).bit_length())
    places = np.arange(len(words), dtype=np.uint64)
    packed = words >> bits << bits | places
    packed.sort()
    tops = packed >> bits
    if (tops[1:] == tops[:-1]).any():
        return None
    return (packed & (np.uint64(1) << bits) - np.uint64(1)).astype(np.intp)


@dataclass(frozen=True, slots=True)
class RecordOrder:
    """What records are sorted by."""

    by_class: bool = False
    """Class after class, for streaming readers that need them so."""
    by: Literal["hash", "position"] = "hash"
    """Within that, or altogether."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a row that are compared, the first one first."""
        rest = ("high", "low") if self.by == "hash" else ("position",)
        return ("label", *rest) if self.by_class else rest

    def sort(self, rows: NDArray[Any]) -> NDArray[np.intp]:
        """Which row comes first, second, ..."""
        fields = self.fields
        if fields == ("position",):
            return np.argsort(rows["position"], kind="stable")
        if fields == ("high", "low"):
            order = sort_words(np.ascontiguousarray(rows["high"]))
            if order is not None:
                return order
        return np.lexsort([rows[name] for name in reversed(fields)])

    def up_to(self, rows: NDArray[Any], bound: Any) -> int:
        """How many of sorted rows do not come after the bound."""
        at_most = np.ones(len(rows), bool)
        for name in reversed(self.fields):
            at_most = (rows[name] < bound[name]) | ((rows[name] == bound[name]) & at_most)
        return int(at_most.sum())


Part = tuple[Block, NDArray[np.int64] | None]
"""Some records in their frames, and their classes if they are known."""


class OrderedRecords(Protocol):
    """Records in their order, however they are held."""

    records: int
    bytes: int
    """Of all records, in their frames."""

    def tasks(self) -> Iterator[Callable[[], Part]]:
        """The records, one part after the other. Threads may run the tasks."""
        ...

    def classes(self) -> ClassSizes:
        """The classes in their order, if records are sorted by class."""
        ...


@dataclass(frozen=True, slots=True)
class ClassSizes:
    """How many records each class has, in the order of the classes, and how many bytes."""

    labels: NDArray[np.int64]
    records: NDArray[np.int64]
    bytes: NDArray[np.int64]

    @classmethod
    def of(cls, labels: NDArray[np.int64], lengths: NDArray[np.uint64]) -> ClassSizes:
        """Count records."""
        found, which = np.unique(labels, return_inverse=True)
        sizes = np.bincount(which, lengths + np.uint64(FRAME_BYTES), minlength=len(found))
        counts = np.bincount(which, minlength=len(found))
        return cls(found, counts.astype(np.int64), sizes.astype(np.int64))

    def __add__(self, other: ClassSizes) -> ClassSizes:
        labels = np.union1d(self.labels, other.labels)
        records, sizes = np.zeros((2, len(labels)), np.int64)
        for each in (self, other):
            at = np.searchsorted(labels, each.labels)
            records[at] += each.records
            sizes[at] += each.bytes
        return ClassSizes(labels, records, sizes)


def cut_by_bytes(
    lengths: NDArray[np.uint64], size: int = _BLOCK_BYTES
) -> Iterator[tuple[int, int]]:
    """Cut records of these lengths into stretches of about so many bytes.

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
