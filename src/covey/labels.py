"""The classes of examples: which feature tells them, and the numbers that strings stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError, FeatureError
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.codec import leaf
from covey.schema.columns import STRINGS, Column
from covey.schema.types import Feature
from covey.tfrecord import Block


def is_string(feature: Feature) -> bool:
    """Whether a feature is a single text, or bytes."""
    return isinstance(feature, Tensor) and feature.dtype in STRINGS and feature.shape == ()


def find_label(features: Features, label: str | None, *, needed: bool = False) -> str | None:
    """The feature that tells the class: the one asked for, or the only one that is a ClassLabel."""
    if label is None:
        labels = [name for name, kind in features.items() if isinstance(kind, ClassLabel)]
        if needed and len(labels) != 1:
            raise DatasetError("order is 'class', but no feature tells the class; pass label=")
        return labels[0] if len(labels) == 1 else None
    if label not in features:
        raise DatasetError(
            f"label is {label!r}, but there is no such feature; there are {', '.join(features)}"
        )
    kind = features[label]
    if not (isinstance(kind, ClassLabel) or is_string(kind) or _is_integer(kind)):
        raise DatasetError(
            f"label is {label!r}, which is {kind}; must be a ClassLabel, an integer or a string"
        )
    return label


# What people call the feature that holds the class; the first that is there is taken.
LABEL_NAMES = ("label", "labels", "class", "classes", "target", "targets")


def guess_label(features: Features) -> str | None:
    """The feature that most likely tells the class: the only ClassLabel, or what is called so.

    >>> guess_label(Features({"Image": "bytes", "Class": "int64"}))
    'Class'
    """
    found = find_label(features, None)
    if found is not None:
        return found
    lowered = {name.lower(): name for name in features}
    named = (lowered[name] for name in LABEL_NAMES if name in lowered)
    kinds = ((name, features[name]) for name in named)
    return next((name for name, kind in kinds if is_string(kind) or _is_integer(kind)), None)


def _is_integer(kind: Feature) -> bool:
    if not isinstance(kind, Tensor) or kind.shape != () or kind.dtype in STRINGS:
        return False
    return np.dtype(kind.dtype).kind in "iub"


class Classes:
    """The class of every record, as a number.

    Args:
        features: Of the records.
        label: The feature that tells it; None if none does.
        strings: If it is a string, all of them, in the order of their numbers.
    """

    def __init__(self, features: Features, label: str | None, texts: Iterable[str] = ()) -> None:
        self.features = features
        self.label = label
        self._only = features if label is None else features.select([label])
        self.texts = tuple(texts) if label is not None and is_string(features[label]) else None
        self._numbers = {text: i for i, text in enumerate(self.texts or ())}

    def of(self, block: Block) -> NDArray[np.int64] | None:
        """The classes of records."""
        if self.label is None:
            return None
        column = leaf(self._only.decode_batch(block))
        if self.texts is None:
            numbers = np.asarray(column)
            if numbers.dtype == np.uint64 and numbers.size and numbers.max() >= 2**63:
                raise FeatureError(
                    f"{numbers.max()} cannot be the number of a class; it must be below 2**63",
                    feature=self.label,
                )
            return numbers.astype(np.int64)
        texts = decode_strings(column)
        unknown = next((text for text in texts if text not in self._numbers), None)
        if unknown is not None:
            raise FeatureError(
                f"{unknown!r} is none of the {len(self.texts)} classes that have numbers",
                feature=self.label,
            )
        return np.array([self._numbers[text] for text in texts], np.int64)


def make_label(label: str, names: tuple[str, ...]) -> ClassLabel:
    """A ClassLabel of strings that were found, which must be fit to be names."""
    for name in names:
        if not name or name != name.strip() or "\n" in name or "\r" in name:
            raise FeatureError(
                f"label {label!r}: {name!r} cannot be the name of a class, which is a line of a "
                "file: not empty, without spaces around it, without line breaks; clean it up, or "
                "declare the feature as a string"
            )
    return ClassLabel(names=names)


def extend(known: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    """Names that are known, and after them, sorted, those that are new.

    >>> extend(["wren"], {"owl", "crow", "wren"})
    ('wren', 'crow', 'owl')
    """
    first = tuple(known)
    return (*first, *sorted(set(found).difference(first)))


def decode_strings(column: Any, numbers: Sequence[int] | None = None) -> list[str]:
    """A column of strings; bytes must be UTF-8.

    Args:
        column: The strings.
        numbers: Of the examples they are of, for messages; from 0 by default.
    """
    texts: list[str] = []
    for row, value in enumerate(column):
        number = row if numbers is None else numbers[row]
        if not isinstance(value, (str, bytes)):
            raise FeatureError(
                f"example {number}: its label is {value!r}, of type {type(value).__name__}, where "
                "others are strings"
            )
        try:
            texts.append(value if isinstance(value, str) else value.decode())
        except UnicodeDecodeError:
            raise FeatureError(
                f"example {number}: its label {value!r} is not a valid UTF-8, so it cannot be the "
                "name of a class"
            ) from None
    return texts


def read_strings(
    features: Features, label: str, block: Block, numbers: Sequence[int] | None = None
) -> list[str]:
    """The strings of a label in records."""
    return decode_strings(leaf(features.decode_batch(block, [label])), numbers)


def number_column(
    features: Features, label: str, column: Any, *, may_grow: bool, known: Iterable[str] = ()
) -> tuple[Features, Any, NDArray[np.int64], tuple[str, ...]]:
    """The classes of a whole column, which may be numbers or strings.

    Args:
        features: Of the dataset.
        label: The feature that tells the class.
        column: Its values.
        may_grow: Whether strings may become new classes of a ClassLabel.
        known: The strings that have numbers already.

    Returns:
        The features, with the classes that were found; the column as it is to be stored; the class
        of each row; and, if the strings themselves are stored, all of them.
    """
    kind = features[label]
    if not _has_texts(column):
        if is_string(kind):
            raise FeatureError(f"feature {label!r} is a string, but its column has {column[:3]!r}")
        return features, column, _numbers_of(label, column), ()
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    if isinstance(kind, ClassLabel) and kind.names:  # numbers beside names are those of classes
        values = [
            kind.names[each] if type(each) is int and 0 <= each < len(kind.names) else each
            for each in values
        ]
    texts = decode_strings(values)
    stored = is_string(kind) and not may_grow
    names = tuple(known)
    if not names and isinstance(kind, ClassLabel):
        names = kind.names or ()
    if stored or may_grow:
        names = extend(names, texts)
    place = {name: i for i, name in enumerate(names)}
    unknown = next((row for row, text in enumerate(texts) if text not in place), None)
    if unknown is not None:
        raise FeatureError(
            f"example {unknown}: feature {label!r}: there is no class {texts[unknown]!r} among the "
            f"{len(names)} names"
        )
    numbers = np.array([place[text] for text in texts], np.int64)
    if stored:
        return features, column, numbers, names
    if may_grow:
        features = features.replace({label: make_label(label, names)})
    return features, numbers, numbers, ()


def _numbers_of(label: str, column: Any) -> NDArray[np.int64]:
    complete = Column(label, "int64")
    try:
        numbers, _ = complete.coerce_batch(column, len(column))
    except FeatureError:
        for row, value in enumerate(column):
            try:
                complete.coerce(value)
            except FeatureError as error:
                raise FeatureError(f"example {row}: feature {label!r}: {error}") from None
        raise
    return np.asarray(numbers, np.int64)


def _has_texts(column: Any) -> bool:
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return False
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return any(isinstance(value, (str, bytes)) for value in values)
