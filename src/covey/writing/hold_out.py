"""Hold-out: write some of the examples, or of the classes, as a second split.

The hash of a key or of a class name decides. The choice is the same in every run and on every
machine, and is made while the examples are written: no pass over them comes before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset_info import check_split_name
from covey.errors import DatasetError
from covey.labels import Classes, can_be_label
from covey.schema import ClassLabel, Features
from covey.shuffle.keys import Key, hash_keys

# Differs from any common seed, so that the choice is independent of the shuffled order.
_SALT = int.from_bytes(b"held out", "little")


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Examples that :func:`covey.write` writes as a second split.

    Exactly one of `fraction` and `classes` must be given.

    Args:
        fraction: Approximate fraction of the examples to hold out: those whose key has a hash below
            it. An example stays in its split when others are added or removed, and the examples
            that are held out for 0.1 are also held out for 0.2.
        classes: Classes to hold out, which the first split does not have: an integer is their exact
            number (those with the lowest hashes), a float their approximate fraction (those with a
            hash below it). Unlabelled examples (class -1) are not held out.
        by: Feature to divide by, with `fraction`: examples that have the same value are in the same
            split. It must be an integer, a string or a ClassLabel. The default is the key.
        split: Name of the second split.
        seed: Seed of the hashes. The `seed` of the order does not change them.

    Raises:
        DatasetError: If an option has an invalid value; ``option`` is ``"hold_out.fraction"``.

    >>> HoldOut(classes=10, split="unseen").split
    'unseen'
    """

    fraction: float | None = None
    classes: int | float | None = None
    by: str | None = None
    split: str = "val"
    seed: int = 0

    def __post_init__(self) -> None:
        check_split_name(self.split)
        if (self.fraction is None) == (self.classes is None):
            raise DatasetError(
                "exactly one of fraction and classes must be given", option="hold_out"
            )
        if self.by is not None and self.classes is not None:
            raise DatasetError(
                option="hold_out.by", found=self.by, allowed="given with fraction only"
            )
        is_count = type(self.classes) is int and self.classes >= 1
        for option in ("fraction", "classes"):
            value = getattr(self, option)
            is_fraction = isinstance(value, float) and 0 < value < 1
            if value is not None and not is_fraction and not (option == "classes" and is_count):
                raise DatasetError(
                    option=f"hold_out.{option}",
                    found=value,
                    allowed="between 0 and 1" + ", or an integer >= 1" * (option == "classes"),
                )
        if type(self.seed) is not int or not -(2**63) <= self.seed < 2**64:
            raise DatasetError(option="hold_out.seed", found=self.seed, allowed="a 64-bit integer")


def choose_keys(hold_out: HoldOut, keys: Sequence[Key]) -> NDArray[np.bool_]:
    """Return which keys, or values of the feature ``by``, are held out."""
    assert hold_out.fraction is not None
    return _hashes(hold_out, keys) < _threshold(hold_out.fraction)


def choose_classes(
    hold_out: HoldOut, classes: Classes, ids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the class ids that are held out.

    Args:
        hold_out: What to hold out.
        classes: Classes of the records.
        ids: The class ids of all records, each of them once.

    Raises:
        DatasetError: If there is no label, or one of the splits would have no classes.
    """
    if classes.label is None:
        raise DatasetError(
            "there is no label feature",
            option="hold_out.classes",
            found=hold_out.classes,
            remedy="pass label=",
        )
    feature = classes.features[classes.label]
    names = classes.strings or ()
    if isinstance(feature, ClassLabel):
        names, ids = feature.names or (), ids[ids >= 0]
    hashes = _hashes(hold_out, [_name(each, names) for each in ids.tolist()])
    if isinstance(hold_out.classes, int):
        chosen = ids[np.argsort(hashes, kind="stable")[: hold_out.classes]]
    else:
        assert hold_out.classes is not None
        chosen = ids[hashes < _threshold(hold_out.classes)]
    check_choice(hold_out, len(chosen), len(ids), "classes")
    return chosen


def check_choice(hold_out: HoldOut, held_out: int, total: int, noun: str) -> None:
    """Raise DatasetError if one of the splits would have no examples or classes."""
    if not 0 < held_out < total:
        option = "fraction" if hold_out.classes is None else "classes"
        raise DatasetError(
            f"{held_out:,} of {total:,} {noun} would be held out; both splits must have {noun}",
            option=f"hold_out.{option}",
            found=getattr(hold_out, option),
        )


def _hashes(hold_out: HoldOut, keys: Sequence[Key]) -> NDArray[np.uint64]:
    return hash_keys(keys, _SALT + hold_out.seed)[0]


def _threshold(fraction: float) -> np.uint64:
    return np.uint64(int(fraction * 2.0**64))


def group_keys(features: Features, by: str, column: Any) -> list[Key]:
    """Return the values of the feature that examples are divided by; those of classes are names.

    Raises:
        DatasetError: If the feature does not exist, or its values cannot be keys.
    """
    if by not in features or not can_be_label(features[by]):
        allowed = [name for name, feature in features.items() if can_be_label(feature)]
        raise DatasetError(option="hold_out.by", found=by, choices=allowed)
    feature = features[by]
    names = (feature.names or ()) if isinstance(feature, ClassLabel) else ()
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return [_name(value, names) for value in values]


def _name(value: Any, names: Sequence[str]) -> Key:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, str):
        return value
    number = int(value)
    return names[number] if 0 <= number < len(names) else number
