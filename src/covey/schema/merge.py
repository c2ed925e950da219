"""Comparison of schemas: where two differ, and the schema that fits both.

This is the only implementation. A split that is appended, opened together with another, repaired,
or verified is compared with the functions of this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from covey.errors import FeatureError
from covey.schema.audio import Audio, unify_audio
from covey.schema.columns import STRINGS, unify_shapes
from covey.schema.features import Features
from covey.schema.images import Image
from covey.schema.lattice import extends, unify_labels
from covey.schema.tensor import Tensor
from covey.schema.types import REQUIRED, ClassLabel, Feature

_MAX_SHOWN = 120
_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """A feature in which two schemas differ."""

    name: str
    first: Feature | None
    """The feature in the first schema; None if it is missing."""
    second: Feature | None

    def __str__(self) -> str:
        return f"{self.name!r} is {describe(self.first)} and {describe(self.second)}"


def describe(feature: Feature | None) -> str:
    """Return a short description of a feature, for messages.

    >>> describe(ClassLabel([f"bird {n}" for n in range(900)]))
    "a ClassLabel of 900 classes ('bird 0', 'bird 1', 'bird 2', 'bird 3', 'bird 4', ...)"
    """
    if feature is None:
        return "missing"
    if isinstance(feature, ClassLabel) and feature.names is None:
        return f"a ClassLabel of {feature.num_classes} classes without names"
    if isinstance(feature, ClassLabel):
        names = feature.names or ()
        shown = ", ".join(map(repr, names[:_MAX_NAMES])) + (", ..." * (len(names) > _MAX_NAMES))
        return f"a ClassLabel of {feature.num_classes} classes ({shown})"
    text = str(feature)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def differences(a: Features, b: Features, *, grow_classes: bool = False) -> list[Difference]:
    """Return the features in which two schemas differ, in the order of their names.

    Args:
        a: The first schema.
        b: The second schema.
        grow_classes: A label of `b` may have more classes than the label of `a`.

    >>> [str(each) for each in differences(Features({"x": "int64"}), Features({"y": "int64"}))][1]
    "'y' is missing and Tensor(dtype='int64', shape=(), encoding='list')"
    """
    pairs = (Difference(name, a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b)))
    return [
        each
        for each in pairs
        if each.first != each.second and not (grow_classes and extends(each.second, each.first))
    ]


def add_classes(features: Features, other: Features) -> Features:
    """Return `features`, with the labels of `other` that have more classes.

    Labels of `other` that have different classes are ignored: a file that an interrupted writer
    left may belong to another dataset.
    """
    grown = {
        name: label
        for name, kind in features.items()
        if isinstance(kind, ClassLabel)
        and (label := unify_labels(kind, other.get(name))) is not None
        and label != kind
    }
    return features.replace(grown) if grown else features


def unify(first: Features, *others: Features, allow_missing: bool = False) -> Features:
    """Return the schema that fits the records of all schemas.

    Labels get the classes of all, shapes and dtypes of lists are relaxed.

    Args:
        first: The schema that determines the order and the nesting.
        others: More schemas.
        allow_missing: A list that a schema lacks becomes optional, and a plain value takes the more
            specific type of the other schema: an integer the label, bytes the image.

    Raises:
        FeatureError: If no schema fits; ``feature`` is the name of the first that does not.

    >>> train, test = Features({"x": "int64"}), Features({"x": Tensor("int64", (2,))})
    >>> unify(train, test)["x"].shape
    (None,)
    """
    for other in others:
        kinds: dict[str, Feature] = {}
        for name in dict.fromkeys((*first, *other)):
            a, b = first.get(name), other.get(name)
            kind = _unify(a, b, allow_missing)
            if kind is None:
                raise FeatureError(
                    f"it is {describe(a)} in one schema and {describe(b)} in another", feature=name
                )
            kinds[name] = kind
        if dict(first) != kinds:
            same_names = first.keys() == kinds.keys()
            if dict(other) == kinds and not same_names:
                first = other
            else:
                first = first.replace(kinds) if same_names else Features(kinds)
    return first


def widen_floats(schemas: Sequence[Features]) -> list[Features]:
    """Return schemas in which single floats are float64 if they are in one of them.

    It is for schemas of sources, whose values are Python floats; stored float32 remains float32.
    """
    wide = {
        name: kind
        for each in schemas
        for name, kind in each.items()
        if isinstance(kind, Tensor) and (kind.dtype, kind.shape) == ("float64", ())
    }
    return [
        each.replace(
            {
                name: wide[name]
                for name, kind in each.items()
                if name in wide and kind == replace(wide[name], dtype="float32", encoding="list")
            }
        )
        for each in schemas
    ]


def _unify(a: Feature | None, b: Feature | None, allow_missing: bool) -> Feature | None:
    """Return the feature that fits the stored values of both; None if there is none."""
    if a == b:
        return a
    if a is None or b is None:
        present = a or b
        if not allow_missing or not isinstance(present, Tensor):
            return None
        return _unify_lists(present, replace(present, shape=(None,), default=[]), allow_missing)
    if isinstance(a, Audio) and isinstance(b, Audio):
        return unify_audio(a, b)
    for kind, other in ((a, b), (b, a)):
        if isinstance(kind, ClassLabel):
            is_integer = allow_missing and other == Tensor("int64")
            return kind if is_integer else unify_labels(kind, other)
        if isinstance(kind, Image):
            if isinstance(other, Image):
                relaxed = replace(kind, shape=unify_shapes(kind.shape, other.shape))
                return relaxed if relaxed == replace(other, shape=relaxed.shape) else None
            if allow_missing and other in (Tensor("bytes"), Tensor("str")):
                return kind
            # In records of others, images were recognised in all records of one schema only.
            is_string = other == Tensor("bytes") and kind.default is REQUIRED
            return other if is_string else None
        if isinstance(kind, Tensor) and kind.encoding != "list":
            return kind if allow_missing and other == Tensor("bytes") else None
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return None
    return _unify_lists(a, b, allow_missing)


def _unify_lists(a: Tensor, b: Tensor, any_dtype: bool) -> Tensor | None:
    dtype = a.dtype if a.dtype == b.dtype else _unify_dtypes(a.dtype, b.dtype)
    if (a.encoding, b.encoding) != ("list", "list") or dtype is None:
        return None
    if dtype != a.dtype and not any_dtype:
        return None
    shape = unify_shapes(a.shape, b.shape)
    is_optional = a.default is not REQUIRED or b.default is not REQUIRED
    # A list restores one unknown dimension only, and the default of any list is the empty one.
    if None in shape[1:] or 0 in shape or (is_optional and None not in shape):
        shape = (None,)
    return Tensor(dtype, shape, encoding="list", default=[] if is_optional else REQUIRED)


def _unify_dtypes(a: str, b: str) -> str | None:
    """Return the dtype of a list that holds the values of both; None if they are stored apart."""
    stored = {"bytes" if d in STRINGS else "float32" if d[0] == "f" else "int64" for d in (a, b)}
    return stored.pop() if len(stored) == 1 else None
