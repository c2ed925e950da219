"""The features of several splits that are read as one."""

from __future__ import annotations

from collections.abc import Sequence

from covey.errors import FeatureError
from covey.schema.features import Features
from covey.schema.types import ClassLabel, Feature, Tensor


def common_features(features: Sequence[Features]) -> Features:
    """The features that fit the records of all splits.

    Lists that are longer in one split than in another get any length, classes that a later split
    has added are there.

    Raises:
        FeatureError: If nothing fits, saying which feature.

    >>> train, test = Features({"x": "int64"}), Features({"x": Tensor("int64", (2,))})
    >>> common_features([train, test])["x"].shape
    (None,)
    """
    first = features[0]
    for name in dict.fromkeys(name for each in features for name in each):
        if any(name not in each for each in features):
            raise FeatureError(f"only some have {name!r}")
    kinds = {name: _common(name, [each[name] for each in features]) for name in first}
    return first.replace(kinds)


def _common(name: str, kinds: Sequence[Feature]) -> Feature:
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    labels = [kind for kind in kinds if isinstance(kind, ClassLabel)]
    if len(labels) == len(kinds):
        return max(labels, key=lambda kind: kind.num_classes or 0)
    lists = [kind for kind in kinds if isinstance(kind, Tensor) and kind.encoding == "list"]
    if len(lists) < len(kinds) or len({kind.dtype for kind in lists}) > 1:
        raise FeatureError(f"{name!r} is {' and '.join(map(str, dict.fromkeys(kinds)))}")
    return Tensor(lists[0].dtype, (None,), default=[])
