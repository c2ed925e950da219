"""Class ids of records while shards are indexed: from a label feature, a function, or the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError, FeatureError
from covey.filenames import strip_record_suffixes
from covey.index.format import BY_FILE
from covey.labels import Classes, ClassIds, find_label, is_string
from covey.schema import Features
from covey.schema.codec import row_of
from covey.tfrecord import Block

LabelFunction = Callable[[Mapping[str, Any]], int | str]
Label = str | LabelFunction | None


@runtime_checkable
class LabelReader(Protocol):
    """Reader of the class ids of blocks of records; used by several threads."""

    label: str | None
    """The ``label`` of the index."""
    decodes: bool
    """Whether it decodes the records, and so verifies their checksums."""

    def labels_of(self, block: Block, shard: int) -> NDArray[np.int64]:
        """Return the class ids of the records of a block; they may be provisional."""
        ...

    def finish(self) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
        """Return the final id of each provisional id, if they differ, and the label strings.

        To be called after all blocks.
        """
        ...


class StringLabels:
    """Classes from a string feature."""

    decodes = True

    def __init__(self, features: Features, label: str) -> None:
        self.label: str | None = label
        self._features = features.select([label])
        self._ids = ClassIds()

    def labels_of(self, block: Block, shard: int) -> NDArray[np.int64]:
        numbers = range(block.first, block.first + len(block))
        try:
            return self._ids.read(self._features, block, numbers)
        except FeatureError as error:
            raise DatasetError(f"{error}", path=block.name) from None

    def finish(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        return self._ids.final_ids(), self._ids.strings()


class KnownLabels:
    """Classes from a label feature whose class ids are known."""

    decodes = True

    def __init__(self, classes: Classes) -> None:
        self.label = classes.label
        self._classes = classes

    def labels_of(self, block: Block, shard: int) -> NDArray[np.int64]:
        labels = self._classes.of(block)
        assert labels is not None
        return labels

    def finish(self) -> tuple[None, tuple[str, ...] | None]:
        return None, self._classes.strings


class FunctionLabels:
    """Classes from a function of the decoded example, which returns an integer or a string."""

    decodes = True

    def __init__(self, features: Features, function: LabelFunction) -> None:
        self.label: str | None = "@function"
        self._features = features
        self._function = function
        self._ids = ClassIds()
        self._type: type | None = None

    def labels_of(self, block: Block, shard: int) -> NDArray[np.int64]:
        columns = self._features.decode_batch(block)
        values = [
            self._check(self._function(row_of(columns, row)), block, row)
            for row in range(len(block))
        ]
        return self._ids.ids_of(values) if self._type is str else np.array(values, np.int64)

    def _check(self, value: Any, block: Block, row: int) -> Any:
        """Return the value as a Python int or str; all records must have the same type."""
        if isinstance(value, str):
            value = str(value)  # not numpy's subclass
        elif isinstance(value, (np.integer, int)) and not isinstance(value, bool):
            value = int(value)
        allowed = "an integer or a string" if self._type is None else self._type.__name__
        if (
            type(value) not in ((str, int) if self._type is None else (self._type,))
            or (type(value) is int and not -(2**63) <= value < 2**63)
        ):  # fmt: skip
            raise DatasetError(
                f"the label function returned {value!r}; must be {allowed} as for the other "
                "records, and fit in 64 bits",
                path=block.name,
                record=block.first + row,
            )
        self._type = type(value)
        return value

    def finish(self) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
        if self._type is not str:
            return None, None
        return self._ids.final_ids(), self._ids.strings()


class FileLabels:
    """Classes from file names: all records of a file have one class."""

    decodes = False

    def __init__(self, names: Sequence[str]) -> None:
        self.label: str | None = BY_FILE
        classes = [strip_record_suffixes(name) for name in names]
        self._names = tuple(sorted(set(classes)))
        ids = {name: number for number, name in enumerate(self._names)}
        self._shards = [ids[name] for name in classes]

    def labels_of(self, block: Block, shard: int) -> NDArray[np.int64]:
        return np.full(len(block), self._shards[shard], np.int64)

    def finish(self) -> tuple[None, tuple[str, ...]]:
        return None, self._names


def label_reader(
    label: Label | LabelReader, features: Features, names: Sequence[str]
) -> LabelReader | None:
    """Return the reader of class ids for a ``label`` argument; None if it is None.

    Args:
        label: A feature, a function of an example, or :data:`covey.index.BY_FILE`; None for none.
        features: The features of the records.
        names: The file names of the shards.
    """
    if label is None or isinstance(label, LabelReader):
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
    find_label(features, label)  # raises if it cannot be a label
    if is_string(features[label]):
        return StringLabels(features, label)
    return KnownLabels(Classes(features, label))
