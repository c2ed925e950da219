"""Selected records: split strings, and record ids.

Split strings are slices and sums of splits, with the syntax and rounding of TFDS.

::

    train                   all records
    train[100:200]          a range of records; negative bounds count from the end
    train[:80%]             percents; each bound is rounded to the nearest record
    train[2shard]           one shard; train[1shard:3shard] is two shards
    train[:10]+test         concatenation
    all                     every split, in the order of the dataset

A slice that selects no records of a split that has records is an error; TFDS returns no examples.

A string is parsed with the names of the splits, and resolved with the lengths of their shards:

>>> terms = parse_split("train[:80%]+test", ["train", "test"], "birds")
>>> resolve_split(terms, {"train": [6, 4], "test": [3]}, "birds")
(('train', range(0, 8)), ('test', range(0, 3)))
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError, closest, list_names

Ids = NDArray[np.int64]

SPLIT_ALIASES = (
    ("train", "training"),
    ("validation", "valid", "val", "dev"),
    ("test", "testing"),
    ("eval", "evaluation"),
)
"""Common names of splits; the names in a group are synonyms."""
SPLIT_NAMES = frozenset(name for group in SPLIT_ALIASES for name in group)

_IN_FILE_NAME = re.compile(rf"(?:^|[-_])({'|'.join(sorted(SPLIT_NAMES))})(?=[-_.])", re.IGNORECASE)
_TERM = re.compile(r"([\w-]+)(?:\[([\w%:.-]+)\])?$")
_SHARD = re.compile(r"(-?[\d_.]+)shard")
_SLICE = re.compile(r"(?:(-?[\d_.]+)(%|shard)?)?:(?:(-?[\d_.]+)(%|shard)?)?")


@dataclass(frozen=True, slots=True)
class SplitTerm:
    """One term of a split string: a split, or a slice of it."""

    split: str
    begin: float | None = None
    end: float | None = None
    unit: Literal["", "%", "shard"] = ""
    """Unit of the bounds; the empty string is records."""
    text: str = ""
    """The term as written, for error messages."""


def parse_split(spec: str, names: Iterable[str], path: str) -> tuple[SplitTerm, ...]:
    """Return the terms of a split string.

    Args:
        spec: The split string.
        names: The splits of the dataset, in order.
        path: The dataset, for error messages.

    Raises:
        DatasetError: If the string is not valid, or names a split that does not exist.
    """
    splits = list(names)
    if not isinstance(spec, str):
        raise _invalid(spec, path, "", splits, allowed="a string such as 'train[:80%]'")
    if spec in splits:
        return (SplitTerm(str(spec)),)
    terms: list[SplitTerm] = []
    for text in re.split(r"\s*\+\s*", spec):
        found = _TERM.match(text)
        term = None if found is None else _parse_slice(found[1], found[2], text)
        if term is None:
            raise _invalid(
                spec,
                path,
                f"{text[:60]!r} is not a split, nor a slice such as 'train[:80%]' or 'train[100:]'",
                splits,
            )
        if term.split == "all" and splits and "all" not in splits:
            if "[" in text:
                raise _invalid(spec, path, "'all' cannot be sliced", splits)
            terms += map(SplitTerm, splits)
        elif term.split not in splits:
            raise _invalid(
                spec, path, f"there is no split {term.split[:60]!r}", splits, unknown=term.split
            )
        else:
            terms.append(term)
    return tuple(terms)


def resolve_split(
    terms: Iterable[SplitTerm], shard_lengths: Mapping[str, Sequence[int]], path: str
) -> tuple[tuple[str, range], ...]:
    """Return the split and the records that each term selects, as TFDS does.

    Args:
        terms: The terms of a split string.
        shard_lengths: The number of records in each shard, by split.
        path: The dataset, for error messages.

    Raises:
        DatasetError: If a bound is outside the split, or a slice selects no records.
    """
    return tuple((each.split, _resolve(each, shard_lengths[each.split], path)) for each in terms)


def split_of_file(name: str) -> str | None:
    """Return the common split name that a file name contains; None if it contains none.

    >>> split_of_file("data/birds-train-00000-of-00002.tfrecord")
    'train'
    """
    found = _IN_FILE_NAME.search(os.path.basename(name))
    return found[1] if found else None


def split_order(name: str) -> tuple[int, str]:
    """Return the sort key of a split: common names come first, in their order.

    >>> sorted(["dev", "fold", "test", "Train"], key=split_order)
    ['Train', 'dev', 'test', 'fold']
    """
    groups = (i for i, group in enumerate(SPLIT_ALIASES) if name.lower() in group)
    return next(groups, len(SPLIT_ALIASES)), name


def _parse_slice(split: str, selector: str | None, text: str) -> SplitTerm | None:
    """Return the term for what stands in the brackets; None if it is not a valid slice."""
    if selector is None:
        return SplitTerm(split, text=text)
    try:
        if shard := _SHARD.fullmatch(selector):
            return SplitTerm(split, int(shard[1]), int(shard[1]) + 1, "shard", text)
        found = _SLICE.fullmatch(selector)
        if found is None or selector == ":":
            return None
        unit = found[2] or found[4] or ""  # the unit of one bound applies to both
        number = float if unit == "%" else int
        begin, end = (None if each is None else number(each) for each in found.group(1, 3))
    except ValueError:  # numbers such as 1.2.3
        return None
    return SplitTerm(split, begin, end, unit, text)  # type: ignore[arg-type]


def _resolve(term: SplitTerm, shards: Sequence[int], path: str) -> range:
    begin, end = term.begin, term.end
    records = sum(shards)
    if term.unit == "%":
        if max(abs(begin or 0), abs(end or 0)) > 100:
            raise _invalid(term.text, path, allowed="a slice from -100% to 100%")
        begin = begin and round(begin * records / 100)
        end = end and round(end * records / 100)
    elif term.unit == "shard":
        # As in TFDS: shards that do not exist shorten the slice, and an end of 0 is the end of
        # the last shard.
        begin = begin and sum(shards[: int(begin)])
        if end is not None:
            end = sum(shards[: int(end) if end > 0 else len(shards) + int(end)])
    first = 0 if begin is None else int(begin)
    last = records if end is None else int(end)
    if max(abs(first), abs(last)) > records:
        raise _invalid(
            term.text, path, allowed=f"a slice from {-records} to {records}, the size of the split"
        )
    first, last = first + records * (first < 0), last + records * (last < 0)
    is_slice = term.begin is not None or term.end is not None
    if is_slice and first >= last and records > 0:
        raise _invalid(
            term.text, path, f"it selects the records from {first:,} to {last:,}, which are none"
        )
    return range(first, max(first, last))


def _invalid(
    spec: object,
    path: str,
    reason: str = "",
    splits: Sequence[str] = (),
    *,
    allowed: str = "",
    unknown: str | None = None,
) -> DatasetError:
    # The suggestion is a split string, with the slice and the other terms of the invalid one.
    similar = None if unknown is None else closest(unknown, splits)
    choices = () if similar is None else (str(spec).replace(str(unknown), similar, 1),)
    remedy = f"the splits are {list_names(splits)}" if splits else ""
    return DatasetError(
        reason,
        path=path,
        option="split",
        found=spec,
        allowed=allowed,
        choices=choices,
        remedy=remedy,
    )


# Selected records.


class Selection:
    """A sequence of record ids. Ranges need no memory per record, also in a pickle.

    Args:
        records: The number of records in the open splits.
        ids: The selected record ids, an array or ranges; by default all.
    """

    def __init__(self, records: int, ids: Ids | Sequence[range] | None = None) -> None:
        self._ids = ids if isinstance(ids, np.ndarray) else None
        ranges = [range(records)] if ids is None else ids if self._ids is None else ()
        ranges = [each for each in ranges if each]
        self._ends = np.cumsum([len(each) for each in ranges], dtype=np.int64)
        self._shifts = np.array([each.stop for each in ranges], np.int64) - self._ends
        self.is_all = self._ids is None and len(ranges) < 2 and len(self) == records

    def __len__(self) -> int:
        if self._ids is not None:
            return len(self._ids)
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, positions: Ids, *, check: bool = False) -> Ids:
        """Return the record ids at positions of the selection.

        Args:
            positions: The positions; negative ones count from the end.
            check: Whether to check the range also where the reader of the records checks it.

        Raises:
            IndexError: If a position is out of range.
        """
        if self.is_all and not check:
            return positions
        length = len(self)
        wrong = positions[(positions < -length) | (positions >= length)]
        if len(wrong):
            raise out_of_range(int(wrong[0]), length)
        positions = np.where(positions < 0, positions + length, positions)
        if self._ids is not None:
            return self._ids[positions]
        part = np.searchsorted(self._ends, positions, side="right")
        return np.asarray(positions + self._shifts[part])

    def all(self) -> Ids:
        """Return all record ids, in order."""
        return self.take(np.arange(len(self), dtype=np.int64))


def parse_ids(key: Any, length: int) -> Ids:
    """Return the positions that an index expression selects, as an array; 0-d for a single integer.

    Args:
        key: An integer, a slice, integers, or a boolean mask; of Python, numpy or a framework.
        length: The length of the sequence that is indexed.

    Raises:
        IndexError: If a single integer is out of range, or the shape of a mask is wrong. Several
            integers are checked by the reader of the records.
        TypeError: If the key is of another type.
    """
    if type(key) is np.ndarray and key.dtype == np.int64 and key.ndim == 1:
        return key  # the most frequent case
    if isinstance(key, slice):
        return np.arange(*key.indices(length), dtype=np.int64)
    if hasattr(key, "detach"):  # a tensor of PyTorch, perhaps on a GPU
        key = key.detach().cpu()
    if hasattr(key, "__index__") and not isinstance(key, bool) and not getattr(key, "ndim", 0):
        number = operator.index(key)
        if not -length <= number < length:
            raise out_of_range(number, length)
        return np.array(number)
    try:
        array = np.asarray(key)
    except ValueError:  # lists of different lengths
        array = np.zeros((), object)
    if array.dtype == bool and array.shape == (length,):
        return np.flatnonzero(array)
    if array.dtype == bool:
        raise IndexError(f"the mask has shape {array.shape}; must be ({length},)")
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(
            f"the index is {str(key)[:60]!r} of type {type(key).__name__}; must be an integer, a "
            "slice, or a list of integers"
        )
    if array.dtype == np.uint64:  # the number that does not fit is out of range, too
        array = np.minimum(array, np.uint64(np.iinfo(np.int64).max))
    return array.astype(np.int64)


def out_of_range(record_id: int, records: int) -> IndexError:
    """Return the error for a record id that a sequence of records does not have."""
    return IndexError(f"record id {record_id} is out of range; the number of records is {records}")
