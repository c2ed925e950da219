"""Which records a split string stands for: slices and sums of splits, as TFDS has them.

::

    train                   all of it
    train[100:200]          records; a number below 0 counts from the end
    train[:80%]             percents; each end is rounded to the nearest record
    train[2shard]           a whole shard; train[1shard:3shard] is two of them
    train[:10]+test         one after the other
    all                     every split, in the order in which the dataset has them

>>> parse_split("train[:80%]+test", {"train": [6, 4], "test": [3]}, "birds")
(Stretch(split='train', begin=0, end=8), Stretch(split='test', begin=0, end=3))
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from covey.errors import DatasetError

_TERM = re.compile(r"([\w-]+)(?:\[([\w%:.-]+)\])?$")
_SHARD = re.compile(r"(-?[\d_.]+)shard")
_SLICE = re.compile(r"(?:(-?[\d_.]+)(%|shard)?)?:(?:(-?[\d_.]+)(%|shard)?)?")

_Bounds = tuple[float | None, float | None, str]
"""Where a slice begins and ends, if it says, and in what: "", "%" or "shard"."""


@dataclass(frozen=True, slots=True)
class SplitSlice:
    """Records [begin, end) of a split."""

    split: str
    begin: int
    end: int


def parse_split(
    spec: str, splits: Mapping[str, Sequence[int]], where: str
) -> tuple[SplitSlice, ...]:
    """The records that TFDS gives for a split string: a stretch for each of its terms.

    Args:
        spec: The split string.
        splits: For every split, the records of each of its shards.
        where: The dataset, for messages.

    Raises:
        DatasetError: If it is none, there is no such split, or the split has fewer records.
    """
    if not isinstance(spec, str):
        raise DatasetError(
            f"split is {repr(spec)[:60]} of type {type(spec).__name__}; must be a string "
            f"such as 'train[:80%]'; {_there_are(splits)}",
            path=where,
        )
    if spec in splits:
        return (SplitSlice(spec, 0, sum(splits[spec])),)
    stretches: list[SplitSlice] = []
    for term in re.split(r"\s*\+\s*", spec):
        of = "" if term == spec else f" of {spec[:60]!r}"
        stretches += _parse_term(term, splits, f"{where}: split {term[:60]!r}{of}")
    return tuple(stretches)


def _parse_term(term: str, splits: Mapping[str, Sequence[int]], asked: str) -> Iterable[SplitSlice]:
    """What stands between two ``+``."""
    found = _TERM.match(term)
    try:
        bounds = _parse_slice(found[2]) if found else None
    except ValueError:  # numbers such as 1.2.3
        bounds = None
    if found is None or bounds is None:
        raise DatasetError(
            f"{asked} has no meaning; write the name of a split, and perhaps records, percents or "
            f"shards of it, as in 'train[:80%]' or 'train[100:]'; {_there_are(splits)}"
        )
    name = found[1]
    if name == "all" and splits and name not in splits:
        if found[2] is not None:
            raise DatasetError(f"{asked}: 'all' cannot be sliced; {_there_are(splits)}")
        return (SplitSlice(each, 0, sum(shards)) for each, shards in splits.items())
    if name not in splits:
        raise DatasetError(f"{asked}: there is no split {name[:60]!r}; {_there_are(splits)}")
    begin, end = _resolve(bounds, splits[name], asked)
    return (SplitSlice(name, begin, max(begin, end)),)


def _parse_slice(selector: str | None) -> _Bounds | None:
    """What stands in the brackets, if it is a slice."""
    if selector is None:
        return None, None, ""
    if one := _SHARD.fullmatch(selector):
        return int(one[1]), int(one[1]) + 1, "shard"
    found = _SLICE.fullmatch(selector)
    if found is None or selector == ":":
        return None
    unit = found[2] or found[4] or ""  # that of one bound holds for the other
    number = float if unit == "%" else int
    begin, end = (None if each is None else number(each) for each in found.group(1, 3))
    return begin, end, unit


def _resolve(bounds: _Bounds, shards: Sequence[int], asked: str) -> tuple[int, int]:
    """The first record of a slice and that behind its last, which may lie before the first."""
    begin, end, unit = bounds
    records = sum(shards)
    if unit == "%":
        if max(abs(begin or 0), abs(end or 0)) > 100:
            raise DatasetError(f"{asked}: percents must be from -100 to 100")
        begin = begin and round(begin * records / 100)
        end = end and round(end * records / 100)
    elif unit == "shard":
        # Shards that are not there shorten a slice, as in Python, and an end of 0 is that of the
        # last shard: so it is in TFDS, and the same string should be the same records.
        begin = begin and sum(shards[: int(begin)])
        if end is not None:
            end = sum(shards[: int(end) if end > 0 else len(shards) + int(end)])
    first = 0 if begin is None else int(begin)
    last = records if end is None else int(end)
    if max(abs(first), abs(last)) > records:
        raise DatasetError(
            f"{asked}: these are records {first} to {last}; must be from {-records} to {records}: "
            f"the split has {records}"
        )
    return first + records * (first < 0), last + records * (last < 0)


def _there_are(splits: Mapping[str, Sequence[int]]) -> str:
    return f"the splits are {', '.join(map(repr, splits))}" if splits else "there are no splits"


# Names of the same split; a request for one of them matches any other.
SPLIT_SYNONYMS = (
    ("train", "training"),
    ("validation", "valid", "val", "dev"),
    ("test", "testing"),
    ("eval", "evaluation"),
)
SPLIT_NAMES = frozenset(name for synonyms in SPLIT_SYNONYMS for name in synonyms)
_IN_FILE_NAME = re.compile(rf"(?:^|[-_])({'|'.join(sorted(SPLIT_NAMES))})(?=[-_.])", re.IGNORECASE)


def split_of_file(name: str) -> str | None:
    """Return the split that the name of a file contains, or None.

    >>> split_of_file("data/birds-train-00000-of-00002.tfrecord")
    'train'
    """
    found = _IN_FILE_NAME.search(os.path.basename(name))
    return found[1] if found else None
