"""Who tells the class of a record while shards are indexed: a feature, a function, or the file."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError, FeatureError
from covey.filenames import strip_record_suffixes
from covey.index.format import BY_FILE
from covey.labels import Classes, find_label, is_string, read_strings
from covey.schema import Features
from covey.schema.codec import row_of
from covey.tfrecord import Block

Label = str | Callable[[Mapping[str, Any]], int | str] | None


class Labeller(abc.ABC):
    """Tells the class of records, of many shards at once."""

    label: str | None
    """What is noted in the index: a feature, or what stands for another way to tell."""
    decodes: bool = True
    """Whether it decodes records, and so verifies them."""

    @abc.abstractmethod
    def of(self, block: Block, shard: int) -> NDArray[np.int64]:
        """The classes of the records of a shard, as numbers, which may be preliminary."""

    def finish(self) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
        """When all were seen: the final number of each preliminary one if they differ, and the
        strings that they stand for, if they do.
        """
        return None, None


class _Texts:
    """Numbers strings as they come, and by their order in the end.

    So the same strings always have the same numbers, a caller that saw them first.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def number(self, texts: Iterable[str]) -> NDArray[np.int64]:
        listed = list(texts)
        with self._lock:
            for text in set(listed).difference(self._numbers):
                self._numbers[text] = len(self._numbers)
        return np.array([self._numbers[text] for text in listed], np.int64)

    def finish(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        texts = tuple(sorted(self._numbers))
        final = np.zeros(len(texts), np.int64)
        for number, text in enumerate(texts):
            final[self._numbers[text]] = number
        return final, texts


class TextLabels(Labeller):
    """The value of a feature is the class, which is a string."""

    def __init__(self, features: Features, label: str) -> None:
        self.label: str = label
        self._features = features.select([label])
        self._texts = _Texts()

    def of(self, block: Block, shard: int) -> NDArray[np.int64]:
        numbers = range(block.first, block.first + len(block))
        try:
            texts = read_strings(self._features, self.label, block, numbers)
        except FeatureError as error:
            raise DatasetError(f"{error}", path=block.name) from None
        return self._texts.number(texts)

    def finish(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        return self._texts.finish()


class KnownLabels(Labeller):
    """Classes that have their numbers already."""

    def __init__(self, classes: Classes) -> None:
        self.label = classes.label
        self._classes = classes

    def of(self, block: Block, shard: int) -> NDArray[np.int64]:
        classes = self._classes.of(block)
        assert classes is not None
        return classes

    def finish(self) -> tuple[None, tuple[str, ...] | None]:
        return None, self._classes.texts


class FunctionLabels(Labeller):
    """A function of the decoded example tells the class: an integer, or a string."""

    label = "@function"

    def __init__(
        self, features: Features, function: Callable[[Mapping[str, Any]], int | str]
    ) -> None:
        self._features = features
        self._function = function
        self._texts = _Texts()
        self._kind: type | None = None

    def of(self, block: Block, shard: int) -> NDArray[np.int64]:
        columns = self._features.decode_batch(block)
        values = [self._call(columns, row, block) for row in range(len(block))]
        if self._kind is str:
            return self._texts.number(values)
        return np.array(values, np.int64)

    def _call(self, columns: Mapping[str, Any], row: int, block: Block) -> Any:
        value: Any = self._function(row_of(columns, row))
        kind: type = str if isinstance(value, str) else int
        if isinstance(value, (np.integer, int)) and not isinstance(value, bool):
            value = int(value)
        elif kind is str:
            value = str(value)  # numpy has strings of its own
        else:
            kind = type(value)
        if kind not in (str, int) or self._kind not in (None, kind):
            expected = "an integer or a string" if self._kind is None else self._kind.__name__
            raise DatasetError(
                f"record {block.first + row}: the label function gave {value!r}; must be "
                f"{expected}, as for the others",
                path=block.name,
            )
        if kind is int and not -(2**63) <= value < 2**63:
            raise DatasetError(
                f"record {block.first + row}: the label function gave {value}, which does "
                "not fit 64 bits",
                path=block.name,
            )
        self._kind = kind
        return value

    def finish(self) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
        return self._texts.finish() if self._kind is str else (None, None)


class FileLabels(Labeller):
    """All records of a file are of one class, which is called like the file."""

    label = BY_FILE
    decodes = False

    def __init__(self, names: Sequence[str]) -> None:
        classes = [strip_record_suffixes(name) for name in names]
        self._names = tuple(sorted(set(classes)))
        numbers = {name: number for number, name in enumerate(self._names)}
        self._shards = [numbers[name] for name in classes]

    def of(self, block: Block, shard: int) -> NDArray[np.int64]:
        return np.full(len(block), self._shards[shard], np.int64)

    def finish(self) -> tuple[None, tuple[str, ...]]:
        return None, self._names


def make_labeller(
    label: Label | Labeller, features: Features, names: Sequence[str]
) -> Labeller | None:
    """Who tells the class.

    Args:
        label: A feature, a function of an example, or :data:`covey.index.BY_FILE`; None for none.
        features: Of the records.
        names: Of the shards.
    """
    if label is None or isinstance(label, Labeller):
        return label
    if callable(label):
        return FunctionLabels(features, label)
    if not isinstance(label, str):
        raise DatasetError(
            option="label",
            found=label,
            allowed=f"the name of a feature, a function of an example, or {BY_FILE!r}",
        )
    if label == BY_FILE:
        return FileLabels(names)
    find_label(features, label)  # says what is wrong with it
    if is_string(features[label]):
        return TextLabels(features, label)
    return KnownLabels(Classes(features, label))
