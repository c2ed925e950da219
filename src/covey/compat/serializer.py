"""datum's Serializer: a dict of values as a tf.train.Example."""

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

_MAX_SCHEMAS = 256


class Serializer:
    """Function that encodes a dict of values as a tf.train.Example.

    Args:
        features: Schema of the dicts. By default integers and bools are stored as int64, floats as
            float32, strings and bytes as bytes, arrays as flat lists; an empty array is omitted.
        images: Features that are paths of image files, whose content is stored.

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
        self._schemas: dict[tuple[tuple[str, str], ...], Features] = {}

    def __call__(self, datum: Mapping[str, Any]) -> bytes:
        """Return the record of an example."""
        if not isinstance(datum, Mapping):
            raise FeatureError(f"the datum is of type {type(datum).__name__}; must be a dict")
        values = {
            name: _read_image(name, value) if name in self.images else value
            for name, value in datum.items()
        }
        kinds: list[tuple[str, str]] = []
        for name in [name for name in values if self._is_undeclared(name)]:
            try:
                dtype, values[name] = _flatten(values[name])
            except FeatureError as error:
                error.feature = name
                raise
            if len(values[name]):
                kinds.append((name, dtype))
            else:
                del values[name]
        return self._schema(tuple(kinds)).encode(values)

    def _is_undeclared(self, name: str) -> bool:
        """Return whether the type of a feature is inferred: all, or the shape of a declared one."""
        declared = self.features
        if declared is None:
            return True
        is_shape = isinstance(name, str) and name.removesuffix("_shape") in declared
        return is_shape and name not in declared

    def _schema(self, kinds: tuple[tuple[str, str], ...]) -> Features:
        """Return the declared features, and lists of others."""
        if kinds not in self._schemas:
            if len(self._schemas) >= _MAX_SCHEMAS:
                self._schemas.clear()
            declared = {} if self.features is None else self.features.nest(self.features)
            others = {name: Tensor(dtype, (None,)) for name, dtype in kinds}
            self._schemas[kinds] = Features({**declared, **others})
        return self._schemas[kinds]


def _flatten(value: Any) -> tuple[str, Any]:
    """Return the dtype of a value, and its flat list of values."""
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    if isinstance(value, (str, bytes)):
        return "bytes", [value]
    array = as_array(value)
    if array.dtype.kind in "SU" and isinstance(value, (list, tuple)):
        array = np.array(value, object)  # strings of NumPy lose trailing zero bytes
    kind = array.dtype.kind
    if kind in "biu":
        return "int64", array.astype(np.int64 if kind == "b" else array.dtype).ravel()
    if kind == "f":
        return "float32", array.ravel()
    flat = array.ravel().tolist()
    others = [each for each in flat if not isinstance(each, (str, bytes))]
    if kind not in "SUTO" or others:
        found = f"dtype {array.dtype}" if kind != "O" else f"type {type(others[0]).__name__}"
        raise FeatureError(
            f"a value has {found}; must be numbers, or strings and bytes, in lists of equal lengths"
        )
    return "bytes", flat


def _read_image(name: str, value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike)):
        return value
    try:
        return Path(value).read_bytes()
    except OSError as error:
        reason = f"the image {shown(os.fspath(value))!r} cannot be read: {error.strerror}"
        raise FeatureError(reason, feature=name) from None
