"""Examples to records by datum's rules: numbers and strings in a row, whatever their shape."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from covey.errors import FeatureError
from covey.schema import Features, Tensor
from covey.schema.columns import as_array
from covey.urls import shown


class Serializer:
    """Makes the bytes of a tf.train.Example of a dict of values.

    Args:
        features: How to store them. Without, integers and bools are stored as int64, floats as
            float32, strings and bytes as bytes, whatever the shape; what has no values is left out.
        images: The features that are paths of image files, of which the bytes are stored.

    >>> record = Serializer()({"label": 3, "song": [[0.5, 1.0], [1.5, 2.0]]})
    >>> Features({"song": Tensor("float32", (2, 2))}).decode(record)["song"][1]
    array([1.5, 2. ], dtype=float32)
    """

    def __init__(
        self,
        features: Features | Mapping[str, Any] | None = None,
        *,
        images: Iterable[str] = (),
    ) -> None:
        self.features = None if features is None else Features(features)
        self.images = frozenset([images] if isinstance(images, str) else images)
        self._known: dict[tuple[tuple[str, str, bool], ...], Features] = {}

    def __call__(self, datum: Mapping[str, Any]) -> bytes:
        """The record of one example."""
        if not isinstance(datum, Mapping):
            raise FeatureError(f"the datum is of type {type(datum).__name__}; must be a dict")
        if self.images:
            datum = {
                name: _read(name, value) if name in self.images else value
                for name, value in datum.items()
            }
        if self.features is not None:
            return self.with_shapes(datum).encode(datum)
        values: dict[str, Any] = {}
        kinds: list[tuple[str, str, bool]] = []
        for name, value in datum.items():
            try:
                dtype, single, flat = _flatten(value)
            except FeatureError as error:
                raise FeatureError(f"{error}", feature=name) from None
            if single or len(flat):
                values[name] = flat
                kinds.append((name, dtype, single))
        key = tuple(kinds)
        features = self._known.get(key)
        if features is None:
            if len(self._known) >= 256:  # examples that each have other names
                self._known.clear()
            features = Features(
                {name: Tensor(dtype, () if single else (None,)) for name, dtype, single in kinds}
            )
            self._known[key] = features
        return features.encode(values)

    def with_shapes(self, datum: Mapping[str, Any]) -> Features:
        """The features, with those that :meth:`TFRecordWriter.add_shape_fields` added."""
        features = self.features or Features({})
        added = tuple(
            (name, "int64", False)
            for name in datum
            if name not in features and name.removesuffix("_shape") in features
        )
        if not added:
            return features
        if added not in self._known:
            shapes = {name: Tensor("int64", (len(datum[name]),)) for name, *_ in added}
            self._known[added] = Features({**features.nest(features), **shapes})
        return self._known[added]


def _flatten(value: Any) -> tuple[str, bool, Any]:
    """The dtype of a value, whether it is a single one, and it or all of its values in a row."""
    if isinstance(value, (str, bytes)):
        return "bytes", True, value
    if isinstance(value, (bytearray, memoryview)):
        return "bytes", True, bytes(value)
    if isinstance(value, (bool, int)):
        return "int64", True, int(value)
    if isinstance(value, float):
        return "float32", True, value
    array = as_array(value)
    if array.dtype.kind in "SU" and isinstance(value, (list, tuple)):
        array = np.array(value, object)  # numpy's own strings lose the zero bytes at their end
    kind = array.dtype.kind
    if kind in "biu":
        return "int64", False, array.astype(np.int64 if kind == "b" else array.dtype).ravel()
    if kind == "f":
        return "float32", False, array.ravel()
    flat = array.ravel().tolist()
    wrong = next((each for each in flat if not isinstance(each, (str, bytes))), None)
    if kind not in "SUTO" or wrong is not None or None in flat:
        found = f"dtype {array.dtype}" if kind != "O" else f"a {type(wrong).__name__}"
        raise FeatureError(
            f"the value has {found} in it; must be numbers, or strings and bytes; nested lists must "
            "be of equal lengths"
        )
    return "bytes", False, flat


def _read(name: str, value: Any) -> Any:
    """The bytes of an image file."""
    if not isinstance(value, (str, os.PathLike)):
        return value
    try:
        return Path(value).read_bytes()
    except OSError as error:
        raise FeatureError(
            f"the image {shown(os.fspath(value))!r} cannot be read: {error.strerror}", feature=name
        ) from None
