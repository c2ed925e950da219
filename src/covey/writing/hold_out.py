"""Division of one source into splits while its examples are written.

``hold_out`` writes some of the examples, or of the classes, as a second split. The hash of a key or
of a class name decides. The choice is the same in every run and on every machine, and no pass over
the examples comes before.

``split_by`` writes a split for each value of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset_info import check_split_name
from covey.errors import DatasetError, FeatureError, FormatError, shorten
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


def group_keys(features: Features, by: str, column: Any, option: str = "hold_out.by") -> list[Key]:
    """Return the values of the feature that examples are divided by; those of classes are names.

    Raises:
        DatasetError: If the feature does not exist, or its values cannot be keys.
    """
    check_feature(features, by, option)
    feature = features[by]
    names = (feature.names or ()) if isinstance(feature, ClassLabel) else ()
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return [_name(value, names) for value in values]


def check_feature(features: Features, by: str, option: str) -> None:
    """Raise DatasetError unless examples can be divided by a feature."""
    if by not in features or not can_be_label(features[by]):
        allowed = [name for name, feature in features.items() if can_be_label(feature)]
        raise DatasetError(option=option, found=by, choices=allowed)


def split_numbers(
    splits: Sequence[str], features: Features, by: str, column: Any
) -> NDArray[np.intp]:
    """Return the position of the split of each example, for the option ``split_by``.

    Args:
        splits: Names of the splits, which the values of the feature are.
        features: Features of the examples.
        by: The feature.
        column: Its values.

    Raises:
        FeatureError: If a value is not one of the splits.
    """
    numbers = {name: number for number, name in enumerate(splits)}
    names = list(map(str, group_keys(features, by, column, "split_by")))
    unknown = next((row for row, name in enumerate(names) if name not in numbers), None)
    if unknown is not None:
        raise FeatureError(
            f"the value is {shorten(names[unknown])!r}, which no example had before the write: the "
            "source was changed",
            feature=by,
            example=unknown,
        )
    return np.array([numbers[name] for name in names], np.intp)


def split_name(value: Any, names: Sequence[str], by: str) -> str:
    """Return the name of the split that an example with this value belongs to.

    Args:
        value: Value of the feature.
        names: Class names, if the feature is a ClassLabel that has them.
        by: The feature.

    Raises:
        FeatureError: If the value is missing, or is not a valid name of a split.
    """
    value = value.item() if isinstance(value, np.generic) else value
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_nan = isinstance(value, float) and value != value
    if value is None or value in ("", b"") or is_nan or (is_number and names and value < 0):
        raise FeatureError(
            "the value is missing", feature=by, remedy="every example must have a split"
        )
    if not is_number and not isinstance(value, (str, bytes)):
        raise FeatureError(
            f"the value {shorten(str(value))} is of type {type(value).__name__}; must be a string "
            "or an integer",
            feature=by,
            remedy="every example must have a split",
        )
    name = str(_name(value, names))
    try:
        check_split_name(name)
    except FormatError as error:
        raise FeatureError(error.reason, feature=by, remedy="change this value") from None
    return name


def _name(value: Any, names: Sequence[str]) -> Key:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, str):
        return value
    number = int(value)
    return names[number] if 0 <= number < len(names) else number
