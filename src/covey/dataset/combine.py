"""Other class ids of a dataset, sums of datasets, and parts of disjoint classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey.classes import renumber
from covey.errors import DatasetError, FeatureError, check
from covey.labels import is_string, merge_names
from covey.reading import Gatherer
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.types import REQUIRED, Feature
from covey.splits import Ids, Selection

if TYPE_CHECKING:
    from covey.dataset.dataset import Dataset

# Fractions whose sum differs from 1 by rounding only.
_ROUNDING = 1e-9

# Differs from the salt of HoldOut: the classes that a write held out are not those of one part.
_SALT = int.from_bytes(b"class of", "little")


# Class ids.


def stored_label(features: Features, label: str | None) -> Feature | None:
    """Return the label feature as its class ids are decoded from records; None for strings.

    The names of a ClassLabel, and so its bounds, are not those of the stored class ids.
    """
    kind = None if label is None else features.get(label)
    if kind is None or is_string(kind):
        return None
    if isinstance(kind, ClassLabel) or (isinstance(kind, Tensor) and kind.encoding == "list"):
        default = kind.default
        return Tensor("int64", default=default if default is REQUIRED else int(default))
    return kind


def number_classes(dataset: Dataset) -> Dataset:
    """Return the dataset with class ids from 0 on, in the order of the present ones.

    The plans of both draw the same examples.
    """
    classes, label = dataset.classes, dataset.label
    names = tuple(classes)
    features, stored = dataset.features, _stored_label_of(dataset)
    if label is not None and stored is not None:
        features = features.replace({label: ClassLabel(names=names)})
    return dataset._with(
        features=features,
        names=names,
        labels=renumber(dataset.labels, classes.labels, np.arange(len(classes))),
        keys=classes.labels if classes.keys is None else classes.keys,
        stored_label=stored,
    )


def _stored_label_of(dataset: Dataset) -> Feature | None:
    """Return the label feature of a dataset as it is stored."""
    if dataset._labels is None:
        return stored_label(dataset.features, dataset.label)
    return dataset._stored_label


# Sums.


def add(first: Dataset, second: Dataset) -> Dataset:
    """Return the dataset of the examples of both, in order."""
    _check_same_options(first, second)
    if _have_same_source(first, second):
        return _concatenate(first, second)
    names, new_ids = _merge_names(first, second)
    features, stored = _merge_features(first, second, names)
    labels = None
    if first._labels is not None or second._labels is not None or new_ids is not None:
        others = second.labels
        if new_ids is not None:  # -1 is the unknown class of a ClassLabel
            others = renumber(others, np.arange(-1, len(new_ids)), np.append(-1, new_ids))
        labels = np.concatenate([first.labels, others])
    gatherer = Gatherer(
        (*first._gatherer.tables, *second._gatherer.tables), **first._gatherer.options
    )
    ids = [first._selection.all(), second._selection.all() + len(first._gatherer.rows)]
    is_all = first._selection.is_all and second._selection.is_all
    return first._with(
        gatherer=gatherer,
        features=features,
        names=names,
        selection=Selection(len(gatherer.rows), None if is_all else np.concatenate(ids)),
        labels=labels,
        keys=None,
        stored_label=None if labels is None else stored,
    )


def _have_same_source(first: Dataset, second: Dataset) -> bool:
    """Return whether both are selections of one dataset, with the same class ids."""
    is_same = (first._labels is None) == (second._labels is None)
    names = ("_gatherer", "_names", "_keys")
    return is_same and all(getattr(first, name) is getattr(second, name) for name in names)


def _concatenate(first: Dataset, second: Dataset) -> Dataset:
    labels = None
    if first._labels is not None and second._labels is not None:
        labels = np.concatenate([first._labels, second._labels])
    ids = np.concatenate([first._selection.all(), second._selection.all()])
    return first._with(selection=Selection(len(first._gatherer.rows), ids), labels=labels)


def _check_same_options(first: Dataset, second: Dataset) -> None:
    """Raise DatasetError if the datasets were opened with different options."""
    a, b = (
        {"label": each.label, "decode_images": each._pixels, "max_pixels": each.max_pixels}
        | each._gatherer.options
        for each in (first, second)
    )
    for name in a:
        reason = f"the datasets to add have different values of {name}: {a[name]!r} and {b[name]!r}"
        if a[name] != b[name]:
            raise DatasetError(reason, option=name, remedy="open both with the same options")


def _merge_names(first: Dataset, second: Dataset) -> tuple[tuple[str, ...] | None, Ids | None]:
    """Return the class names of both, and the new ids of the classes of the second."""
    a, b = first._names, second._names
    if first.label is None or (a is None and b is None):
        return None, None
    if a is None or b is None:
        raise DatasetError(
            "the classes of one of the datasets to add have names, those of the other only ids",
            feature=first.label,
            remedy="open the other with features= in which the label is a ClassLabel with names",
        )
    if b[: len(a)] == a or a[: len(b)] == b:  # the ids of the second stay, too
        return max(a, b, key=len), None
    names, new_ids = merge_names([a, b])
    return names, None if new_ids is None else new_ids[1]


def _merge_features(
    first: Dataset, second: Dataset, names: tuple[str, ...] | None
) -> tuple[Features, Any]:
    """Return the features that match both datasets, and the label as it is stored."""
    label, given = first.label, [first.features, second.features]
    stored = [_stored_label_of(each) for each in (first, second)]
    if label is not None and names is not None:
        for number, each in enumerate(given):
            kind = each.get(label)
            if isinstance(kind, ClassLabel):
                kind = ClassLabel(names=names, default=kind.default)
                given[number] = each.replace({label: kind})
    try:
        from covey.schema.merge import unify

        features = unify(*given)
    except FeatureError as error:
        raise DatasetError(
            f"the datasets to add have different features: {error.reason}",
            feature=error.feature,
            remedy="open both with features= that they have in common",
        ) from None
    if stored[0] != stored[1]:
        raise DatasetError(
            "the datasets to add have different defaults of the label", feature=label
        )
    return features, stored[0]


# Parts.


def divide(dataset: Dataset, parts: Mapping[str, Any], seed: int) -> list[Ids]:
    """Return the examples of each part, in order."""
    labels, hashes = hash_classes(dataset, seed)
    part_of, count = _part_of_each(hashes, parts)
    for number, size in enumerate(np.bincount(part_of, minlength=count).tolist()):
        if not size:
            name = list(parts)[number] if number < len(parts) else "the rest"
            raise DatasetError(
                f"none of the {len(labels)} classes is in the part {name!r}",
                option=name,
                found=parts.get(name, "the rest"),
                remedy="pass integers, which are exact numbers of classes, or another seed",
            )
    return [
        np.flatnonzero(np.isin(dataset.labels, labels[part_of == number]))
        for number in range(count)
    ]


def hash_classes(dataset: Dataset, seed: int) -> tuple[Ids, NDArray[np.uint64]]:
    """Return the ids of the classes that are divided, and the hash that determines their part."""
    # Lazily: opening a dataset needs no hashes.
    from covey.shuffle.keys import hash_keys

    labels = dataset.classes.labels
    if dataset.label is not None and isinstance(dataset.features.get(dataset.label), ClassLabel):
        labels = labels[labels >= 0]  # unlabelled examples are in no part
    known = dataset._names or ()
    keys = [known[each] if 0 <= each < len(known) else each for each in labels.tolist()]
    return labels, hash_keys(keys, _SALT + seed)[0]


def _part_of_each(
    hashes: NDArray[np.uint64], parts: Mapping[str, Any]
) -> tuple[NDArray[np.int64], int]:
    """Return the part of each class, and the number of parts."""
    sizes = list(parts.values())
    if sizes and all(type(each) is int and each >= 1 for each in sizes):
        if sum(sizes) > len(hashes):
            raise DatasetError(
                f"the parts have {sum(sizes)} classes, the dataset has {len(hashes)}",
                option="parts",
                found=dict(parts),
            )
        ranks = np.argsort(np.argsort(hashes, kind="stable"), kind="stable")
        part_of = np.searchsorted(np.cumsum(sizes), ranks, side="right")
        return part_of, len(sizes) + (sum(sizes) < len(hashes))
    is_valid = all(isinstance(each, float) and 0 < each <= 1 for each in sizes)
    check(
        "parts",
        dict(parts),
        sizes and is_valid and sum(sizes) <= 1 + _ROUNDING,
        "fractions between 0.0 and 1.0 with a sum of at most 1.0, or integers >= 1",
    )
    ends = np.cumsum(sizes)
    if ends[-1] > 1 - _ROUNDING:
        ends = ends[:-1]
    return np.searchsorted(ends, hashes / 2.0**64, side="right"), len(ends) + 1
