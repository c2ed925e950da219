"""Label features and the class ids of records."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError, FeatureError
from covey.schema import Audio, ClassLabel, Features, Image, Tensor
from covey.schema.codec import leaf
from covey.schema.columns import STRINGS, Column
from covey.schema.types import Feature, is_line, unknown_class
from covey.tfrecord import Block

Positions = Sequence[int] | NDArray[np.uint64]

AUTO = "auto"
"""Value of a ``label`` argument that requests :func:`guess_label`."""

LABEL_NAMES = (
    "label",
    "labels",
    "class",
    "classes",
    "target",
    "targets",
    "category",
    "intent",
    "species",
    "image/class/label",
)
"""Common names of label features; the first one that exists is used."""

ID_NAMES = ("filename", "file_name", "path", "file", "id", "key", "index")
"""Names of features that identify an example rather than describe it, also after a ``_``."""

_MEDIA = (Image, Audio)


def is_string(feature: Feature) -> bool:
    """Return whether a feature is a single string or byte string."""
    return isinstance(feature, Tensor) and feature.dtype in STRINGS and feature.shape == ()


def _is_integer(feature: Feature) -> bool:
    is_number = isinstance(feature, Tensor) and feature.shape == () and not is_string(feature)
    return is_number and np.dtype(feature.dtype).kind in "iub"  # type: ignore[attr-defined]


def can_be_label(feature: Feature) -> bool:
    """Return whether a feature is a ClassLabel, a single integer or a single string."""
    return isinstance(feature, ClassLabel) or is_string(feature) or _is_integer(feature)


def declared_label(features: Features | None, name: str | None) -> str | None:
    """Return the label that metadata declares; None if it is not a feature that can be a label."""
    if features is None or name is None or name not in features:
        return None
    return name if can_be_label(features[name]) else None


def find_label(features: Features, label: str) -> str:
    """Return the requested label feature.

    Args:
        features: Features of the records.
        label: Name of the requested feature.

    Raises:
        DatasetError: If the feature does not exist, or cannot be a label.
    """
    if label not in features:
        raise DatasetError(option="label", found=label, choices=features)
    if not can_be_label(features[label]):
        raise DatasetError(
            f"feature {label!r} is {features[label]}",
            option="label",
            found=label,
            allowed="a ClassLabel, an integer or a string",
        )
    return label


def guess_label(features: Features) -> str | None:
    """Return the most likely label feature: the only ClassLabel, or one with a common name.

    >>> guess_label(Features({"Image": "bytes", "Class": "int64"}))
    'Class'
    """
    labels = [name for name, feature in features.items() if isinstance(feature, ClassLabel)]
    if len(labels) == 1:
        return labels[0]
    return find_label_name(name for name, feature in features.items() if can_be_label(feature))


def find_label_name(names: Iterable[str], also: Sequence[str] = ()) -> str | None:
    """Return the first name that is a common name of a label, or None. Case is ignored.

    Args:
        names: Names of features whose types are not known, or that can be labels.
        also: Further common names, for one format.

    >>> find_label_name(["Image", "Class", "weight"])
    'Class'
    """
    lowered = {name.lower(): name for name in reversed(list(names))}
    found = (lowered[name] for name in (*LABEL_NAMES, *also) if name in lowered)
    return next(found, None)


def input_feature(features: Features, label: str | None) -> str | None:
    """Return the feature that a model gets as its input; None if it is ambiguous.

    It is the only image or audio feature, else the only feature. The label, other class labels, and
    strings and integers that identify an example by their name (``filename``, ``image_id``) do not
    count, unless such a name is the only one beside the label.

    Args:
        features: Features of the records.
        label: Label feature; None if the records are unlabelled.

    >>> input_feature(Features({"image": Image(), "label": "int64", "filename": "str"}), "label")
    'image'
    """
    found = [name for name in features if name != label]
    if len(found) > 1:
        found = [name for name in found if not _is_id(name, features[name])]
    media = [name for name in found if isinstance(features[name], _MEDIA)]
    others = [name for name in found if not isinstance(features[name], ClassLabel)]
    candidates = media or others
    return candidates[0] if len(candidates) == 1 else None


def content_features(features: Features, label: str | None) -> tuple[str, ...]:
    """Return the features by which examples are compared: the input, or all that describe it.

    >>> content_features(Features({"a": "str", "b": "int64", "id": "int64", "y": "str"}), "y")
    ('a', 'b')
    """
    found = input_feature(features, label)
    if found is not None:
        return (found,)
    return tuple(
        name
        for name, kind in features.items()
        if name != label and not isinstance(kind, ClassLabel) and not _is_id(name, kind)
    )


def _is_id(name: str, feature: Feature) -> bool:
    """Return whether a feature identifies an example: ``id``, ``image/filename``, ``user_id``."""
    last = name.rpartition("/")[2].lower()
    is_named = any(last == each or last.endswith(f"_{each}") for each in ID_NAMES)
    return is_named and (is_string(feature) or _is_integer(feature))


class Classes:
    """Class ids of records.

    Args:
        features: Features of the records.
        label: Label feature; None if the records are unlabelled.
        strings: Strings of a label that is stored as a string, by class id.
    """

    def __init__(self, features: Features, label: str | None, strings: Iterable[str] = ()) -> None:
        self.features = features
        self.label = label
        self._only = features if label is None else features.select([label])
        self.strings = tuple(strings) if label is not None and is_string(features[label]) else None
        self._ids = {string: class_id for class_id, string in enumerate(self.strings or ())}

    def of(self, block: Block) -> NDArray[np.int64] | None:
        """Return the class ids of the records of a block; None if they are unlabelled."""
        if self.label is None:
            return None
        column = leaf(self._only.decode_batch(block))
        if self.strings is None:
            return check_ids(self.label, column)
        found = decode_strings(column, label=self.label)
        unknown = next((string for string in found if string not in self._ids), None)
        if unknown is not None:
            raise FeatureError(
                f"{unknown!r} is not one of the {len(self.strings)} classes", feature=self.label
            )
        return np.array([self._ids[string] for string in found], np.int64)


class ClassIds:
    """Class ids that are assigned while records are read; used by several threads.

    The strings of a label are known only after the last record. Until then they have provisional
    ids. The final ids do not depend on the order in which strings are read.

    Args:
        known: Strings that have class ids already, by id. These ids are final.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._known = tuple(known)
        self._ids = {string: class_id for class_id, string in enumerate(self._known)}
        self._lock = threading.Lock()
        self.has_strings = False
        """Whether any label was a string."""

    def read(self, only: Features, block: Block, examples: Positions) -> NDArray[np.int64]:
        """Return the class ids of records, provisional if the label is a string.

        Args:
            only: The label feature alone.
            block: The records.
            examples: Positions of the examples in the source, for errors.
        """
        ((label, feature),) = only.items()
        column = leaf(only.decode_batch(block))
        if not is_string(feature):
            return check_ids(label, column)
        return self.ids_of(decode_strings(column, examples, label=label))

    def ids_of(self, strings: Sequence[str]) -> NDArray[np.int64]:
        """Return the provisional ids of strings."""
        with self._lock:
            self.has_strings = True
            ids = self._ids
            return np.array([ids.setdefault(string, len(ids)) for string in strings], np.int64)

    def provisional(self) -> tuple[str, ...]:
        """Return all strings, by provisional id."""
        return tuple(self._ids)

    def strings(self) -> tuple[str, ...]:
        """Return all strings, by final class id."""
        return extend_names(self._known, self._ids)

    def final_ids(self) -> NDArray[np.int64]:
        """Return the final class ids, by provisional id."""
        final = {string: class_id for class_id, string in enumerate(self.strings())}
        return np.array([final[string] for string in self._ids], np.int64)


def check_ids(label: str, column: Any) -> NDArray[np.int64]:
    """Return a column of integers as class ids."""
    ids = np.asarray(column)
    if ids.dtype == np.uint64 and ids.size and ids.max() >= 2**63:
        raise FeatureError(f"{ids.max()} is not a valid class id; must be < 2**63", feature=label)
    return ids.astype(np.int64)


def make_label(label: str, names: tuple[str, ...]) -> ClassLabel:
    """Return a ClassLabel.

    Raises:
        FeatureError: If a name cannot be a line of the file of class names.
    """
    for name in names:
        if not is_line(name):
            raise FeatureError(
                f"{name!r} is not a valid class name; must be a line of a file: not empty, "
                "without surrounding white space and line breaks",
                feature=label,
                remedy="change it, or declare the feature as a string",
            )
    return ClassLabel(names=names)


def extend_names(known: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    """Return the known names, followed by the new names in sorted order.

    >>> extend_names(["wren"], {"owl", "crow", "wren"})
    ('wren', 'crow', 'owl')
    """
    first = tuple(known)
    return (*first, *sorted(set(found).difference(first)))


def merge_names(
    known: Sequence[tuple[str, ...]],
) -> tuple[tuple[str, ...], list[NDArray[np.int64]] | None]:
    """Return the names of all classes, and for each argument the new ids of its classes.

    Those of the first stay. The second value is None if all ids stay.
    """
    names = known[0]
    for each in known[1:]:
        names = extend_names(names, each)
    if all(each == names[: len(each)] for each in known):
        return names, None
    ids = {name: number for number, name in enumerate(names)}
    return names, [np.array([ids[name] for name in each], np.int64) for each in known]


def decode_strings(
    column: Iterable[Any], examples: Positions | None = None, *, label: str | None = None
) -> list[str]:
    """Return the labels of a column as strings.

    Args:
        column: Strings, or byte strings in UTF-8.
        examples: Positions of the examples in the source, for errors; from 0 by default.
        label: Label feature, for errors.

    Raises:
        FeatureError: If a value is not a string, or not UTF-8.
    """
    strings: list[str] = []
    for row, value in enumerate(column):
        try:
            string = value.decode() if isinstance(value, bytes) else value
            string.encode()  # lone surrogates are not valid
        except (UnicodeError, AttributeError) as error:
            reason = f"the label {value!r} is not valid UTF-8, so it cannot be a class name"
            if isinstance(error, AttributeError):
                kind = type(value).__name__
                reason = f"the label is {value!r}, of type {kind}; other labels are strings"
            example = row if examples is None else int(examples[row])
            raise FeatureError(reason, example=example, feature=label) from None
        strings.append(string)
    return strings


def read_strings(
    features: Features, label: str, block: Block, examples: Positions | None = None
) -> list[str]:
    """Return the strings of the label feature in the records of a block."""
    return decode_strings(leaf(features.decode_batch(block, [label])), examples, label=label)


def join_strings(known: Iterable[str], columns: Iterable[Any], label: str) -> tuple[str, ...]:
    """Return the known strings, followed by the new ones of all columns that have strings.

    Args:
        known: Strings that have class ids already, by id.
        columns: Values of the label in several splits.
        label: Label feature, for errors.
    """
    found: set[str] = set()
    for column in columns:
        values = _with_strings(column) or ()
        found.update(decode_strings((v for v in values if not isinstance(v, int)), label=label))
    return extend_names(known, found)


def number_column(
    features: Features, label: str, column: Any, *, may_grow: bool, known: Iterable[str] = ()
) -> tuple[Features, Any, NDArray[np.int64], tuple[str, ...]]:
    """Assign class ids to a column of labels, which are integers or strings.

    Args:
        features: Features of the dataset.
        label: Label feature.
        column: Values of the label.
        may_grow: Whether new strings become classes of a ClassLabel.
        known: Strings that have class ids already, by id.

    Returns:
        The features, with the new classes; the column as it is stored; the class id of each row;
        and, if strings are stored, all strings by class id.
    """
    feature = features[label]
    values = _with_strings(column)
    if values is None:
        if is_string(feature):
            raise FeatureError(
                f"the feature is a string, but its column has {column[:3]!r}", feature=label
            )
        return features, column, _integer_ids(label, column), ()
    names = feature.names or () if isinstance(feature, ClassLabel) else ()
    if names:  # integers beside names are class ids
        values = [
            names[value] if type(value) is int and 0 <= value < len(names) else value
            for value in values
        ]
    strings = decode_strings(values, label=label)
    is_stored = is_string(feature) and not may_grow
    names = tuple(known) or names
    if is_stored or may_grow:
        names = extend_names(names, strings)
    ids = {name: class_id for class_id, name in enumerate(names)}
    unknown = next((row for row, string in enumerate(strings) if string not in ids), None)
    if unknown is not None:
        raise unknown_class(strings[unknown], names, example=unknown, feature=label)
    labels = np.array([ids[string] for string in strings], np.int64)
    if is_stored:
        return features, column, labels, names
    if may_grow:
        features = features.replace({label: make_label(label, names)})
    return features, labels, labels, ()


def _integer_ids(label: str, column: Any) -> NDArray[np.int64]:
    integers = Column(label, "int64")
    try:
        ids, _ = integers.coerce_batch(column, len(column))
    except FeatureError:
        for row, value in enumerate(column):
            try:
                integers.coerce(value)
            except FeatureError as error:
                error.example, error.feature = row, label
                raise
        raise
    return np.asarray(ids, np.int64)


def _with_strings(column: Any) -> list[Any] | None:
    """Return the values of a column that has strings; None if it has none."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return None
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    return values if any(isinstance(value, (str, bytes)) for value in values) else None
