"""One pass over a source, to learn what decides where its examples go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np

from covey.errors import CoveyError, FeatureError
from covey.labels import is_string
from covey.schema import ClassLabel, Features
from covey.shuffle.keys import Key
from covey.sources.hold_out_schema import SchemaInference
from covey.sources.source import Item, Source

_AT_ONCE = 4096


@runtime_checkable
class Peekable(Protocol):
    """Items that tell their key and their class without being read, which for images is long."""

    def peek(self, number: int) -> tuple[Key, Any] | None:
        """The key and the class of an item; None if it is a bad one."""
        ...


KeyAndLabel = tuple[Key, Any] | None
"""The key of an example and what its label says; None for an item that cannot be read."""


class Survey:
    """One pass over a source, and what it finds."""

    def __init__(
        self,
        source: Source,
        key: str | None,
        label: str | None,
        on_error: str,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._source = source
        self._key = key
        self._label = label
        self._skips = on_error == "skip"
        self._progress = progress
        self.learning: SchemaInference | None = None
        self._texts: set[str] = set()

    def outlines(self) -> Iterator[list[KeyAndLabel]]:
        """The outlines of all examples, a few at a time."""
        columns = self._source.columns
        found = self._of_items() if columns is None else self._of_columns(columns)
        while some := list(islice(found, _AT_ONCE)):
            if self.learning is not None:
                self.learning.finish_some()
            if self._progress is not None:
                self._progress(len(some), 0)
            yield some

    def _of_columns(self, columns: Mapping[str, Any]) -> Iterator[KeyAndLabel]:
        rows = self._source.length or 0
        keys = range(rows) if self._key is None else _values(columns, self._key)
        labels = [None] * rows if self._label is None else _values(columns, self._label)
        for key, label in zip(keys, labels, strict=True):
            yield key, self._class(label)

    def _of_items(self) -> Iterator[KeyAndLabel]:
        items: Any = self._source.examples
        if isinstance(items, Peekable) and self._key is None and self.learning is None:
            for number in range(len(items)):  # type: ignore[arg-type]
                peek = items.peek(number)
                yield None if peek is None else (peek[0], self._class(peek[1]))
            return
        for number, item in enumerate(items):
            try:
                yield self._of_item(item, number)
            except CoveyError:
                if not self._skips:
                    raise
                yield None

    def _of_item(self, item: Item | Mapping[str, Any], number: int) -> KeyAndLabel:
        if isinstance(item, CoveyError):
            raise item
        key, example = item if isinstance(item, tuple) else (number, item)
        if self._key is not None:
            key = _plain(_value(example, self._key, number))
        label = None
        if self._label is not None:
            label = self._class(_value(example, self._label, number))
        if self.learning is not None:
            self.learning.add(example, number)
        return key, label

    def _class(self, label: Any) -> Any:
        """The name of a class, or its number if it has none; None for unlabelled examples."""
        label = _plain(label)
        if isinstance(label, (bytes, bytearray)):
            label = bytes(label).decode(errors="backslashreplace")
        if isinstance(label, str):
            if self.learning is not None:
                self._texts.add(label)
            return label
        features = self._source.features
        kind = None if features is None or self._label is None else features.get(self._label)
        if isinstance(kind, ClassLabel) and isinstance(label, int):
            if label < 0:
                return None
            if kind.names is not None and label < len(kind.names):
                return kind.names[label]
        return label

    def features(self) -> Features | None:
        """Those of the source, or, if it does not know them, those that fit all its examples."""
        if self.learning is None:
            return self._source.features
        features = self.learning.features()
        label = self._label
        if label is not None and label in features and is_string(features[label]):
            features = features.replace({label: ClassLabel(names=tuple(sorted(self._texts)))})
        return features


def _values(columns: Mapping[str, Any], name: str) -> Sequence[Any]:
    column: Any = columns
    for part in [name] if name in columns else name.split("/"):
        if not isinstance(column, Mapping) or part not in column:
            raise FeatureError(f"there is no column {name!r}; there are {', '.join(columns)}")
        column = column[part]
    return column.tolist() if isinstance(column, np.ndarray) else list(column)


def _value(example: Mapping[str, Any], name: str, number: int) -> Any:
    value: Any = example
    for part in [name] if name in example else name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            raise FeatureError(f"example {number} has no {name!r}; it has {', '.join(example)}")
        value = value[part]
    return value


def _plain(value: Any) -> Any:
    """NumPy's single values as Python's."""
    is_single = isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0
    return value.item() if is_single else value
