"""A dataset that is open: an array of examples, wherever its shards are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from covey.classes import ClassTable
from covey.dataset.batches import Loadable
from covey.dataset.raw import RawRecords
from covey.dataset.selection import Ids, Selection, parse_ids
from covey.errors import DatasetError, FormatError, escape
from covey.labels import decode_strings, is_string
from covey.loader.batch import NativeSource
from covey.reading import Gatherer
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.codec import row_of
from covey.schema.diagnostics import RecordLocation
from covey.schema.images import check_max_pixels, decode_images


class Dataset(Loadable):
    """Examples by their numbers, as :func:`covey.open` gives them.

    ``ds[17]`` is an example, ``ds[10:20]`` and ``ds[[5, 3, 5]]`` are examples by column. It can be
    pickled, and used by several threads and after a fork: files are opened when they are first
    needed, in each process, and closed with the dataset.

    Args:
        gatherer: Reads the records.
        features: How to decode them.
        label: The feature that tells the class, or what else does; None if nothing does.
        names: What labels stand for, by their numbers, if that is known.
        selection: Which records there are.
        numbering: For each split, the numbers that classes have here instead of those in its index.
        pixels: Whether images are decoded.
        max_pixels: The most pixels of an image that is decoded.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        features: Features,
        *,
        label: str | None,
        names: tuple[str, ...] | None,
        selection: Selection,
        numbering: tuple[NDArray[np.int64], ...] | None = None,
        pixels: bool = False,
        max_pixels: int | None = None,
    ) -> None:
        self._features = features
        self._label = label
        self._gatherer = gatherer
        self._names = names
        self._selection = selection
        self._numbering = numbering
        self._pixels = pixels
        self._max_pixels = check_max_pixels(max_pixels)
        # A label that is one int64 is compared with the index whenever it is decoded.
        self._label_column = self._find_label(features)

    @property
    def features(self) -> Features:
        """What an example holds."""
        return self._features

    @property
    def label(self) -> str | None:
        """The feature that tells the class; None if there are no classes."""
        return self._label

    @property
    def max_pixels(self) -> int:
        """The most pixels (height x width) of an image that is decoded."""
        return self._max_pixels

    def __len__(self) -> int:
        return len(self._selection)

    def __repr__(self) -> str:
        classes = "" if self.label is None else f", {len(self.classes):,} classes of {self.label!r}"
        names = escape(", ".join(self.features))
        return f"<covey.Dataset: {len(self):,} examples of {names}{classes}>"

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files; also those of the datasets that this one was taken from."""
        self._gatherer.close()

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: slice | Any) -> Any: ...

    def __getitem__(self, key: Any) -> Any:
        """One example, or many by column.

        Raises:
            IndexError: If there is no such record.
            CorruptRecordError, ExampleError: If a record is corrupt, saying which.
        """
        ids = parse_ids(key, len(self))
        if ids.ndim:
            return self._show(self.features, ids)
        return row_of(self._show(self.features, ids.reshape(1)), 0)

    def __getitems__(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Examples by their numbers, read together: what a DataLoader of PyTorch asks for."""
        columns = self[list(ids)]
        return [row_of(columns, row) for row in range(len(ids))]

    def _show(self, features: Features, ids: Ids) -> dict[str, Any]:
        """Examples by column; images as pixels, if they were asked for."""
        columns = self.decode(features, ids)
        if not self._pixels:
            return columns
        return decode_images(
            features,
            columns,
            lambda row: self.place(int(ids[row])),
            max_pixels=self._max_pixels,
        )

    def _find_label(self, features: Features) -> int:
        """Where the label is among what is decoded, if it can be compared with the index."""
        column = None if self._label is None else features.column_of(self._label)
        return -1 if column is None else column

    def decode(self, features: Features, ids: Ids) -> dict[str, Any]:
        """Some features of examples, by column, as they are stored: images are not decoded."""
        same = features is self.features
        label = self._label_column if same else self._find_label(features)
        taken = self._selection.take(ids)
        columns = self._gatherer.decode(features, taken, label=label)
        if self._text_numbers and self.label is not None and self.label in features:
            self._check_texts(features.find(columns, self.label), taken)
        return columns

    @cached_property
    def _text_numbers(self) -> dict[str, int]:
        """The numbers that the index has for labels which are strings; empty if they are not."""
        kind = None if self.label is None else self.features.get(self.label)
        if (
            self._names is None
            or kind is None
            or not is_string(kind)
            or self._numbering is not None
        ):
            return {}
        return {text: number for number, text in enumerate(self._names)}

    def _check_texts(self, column: Any, taken: Ids) -> None:
        """Compare labels that are strings with the index, as the native core does with numbers."""
        found = [self._text_numbers.get(text) for text in decode_strings(column)]
        expected = self._gatherer.labels(taken).tolist()
        for row, (text, number) in enumerate(zip(found, expected, strict=True)):
            if text != number:
                raise DatasetError(
                    f"{self._gatherer.location(int(taken[row]))}: its class is {column[row]!r}, but "
                    f"the index says {number}; the shard was changed, or the index is another's: "
                    "run `covey index` to rebuild it"
                )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The examples, in order."""
        for ids in self.raw.chunks():
            columns = self._show(self.features, ids)
            for row in range(len(ids)):
                yield row_of(columns, row)

    @property
    def skipped(self) -> tuple[SkippedRecord, ...]:
        """What ``on_error="skip"`` has left out."""
        return tuple(part for table in self._gatherer.tables for part in table.index.skipped)

    def columns(self, names: Iterable[str] | str | None = None) -> dict[str, Any]:
        """All examples by column.

        Args:
            names: Only these features; the bytes of others are not touched.
        """
        wanted = [names] if isinstance(names, str) else names
        features = self.features if wanted is None else self.features.select(wanted)
        return self._show(features, np.arange(len(self), dtype=np.int64))

    @property
    def raw(self) -> RawRecords:
        """The bytes of records, as they are stored: ``ds.raw[17]``."""
        return RawRecords(self, self._gatherer, self._selection)

    # Classes.

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class of every example, as a number."""
        self._check_labelled()
        indexes = [table.index for table in self._gatherer.tables]
        if self._numbering is None and self._selection.is_all and len(indexes) == 1:
            labels: NDArray[np.int64] = indexes[0].rows["label"]
            labels.flags.writeable = False
            return labels
        if self._numbering is None:
            return self._gatherer.labels(self._selection.all())
        numbered = [
            numbers[index.rows["label"]]
            for index, numbers in zip(indexes, self._numbering, strict=True)
        ]
        joined: NDArray[np.int64] = np.concatenate(numbered)[self._selection.all()]
        return joined

    @cached_property
    def classes(self) -> ClassTable:
        """The classes that there are: their ``names``, ``labels`` and ``counts``."""
        self._check_labelled()
        index = self._gatherer.tables[0].index
        is_index = self._selection.is_all and len(self._gatherer.tables) == 1
        if is_index and self._numbering is None and index.classes is not None:
            assert index.by_class is not None
            return ClassTable(index.classes, index.by_class, self._names)
        return ClassTable.of(self.labels, self._names)

    def where(self, *, label: int | str | bytes | Sequence[int | str | bytes]) -> Dataset:
        """The examples of a class, or of some of them, as a dataset.

        Args:
            label: The number of a class, its name, or a list of either.
        """
        wanted: Any = label if isinstance(label, (list, tuple, range, np.ndarray)) else [label]
        chosen = [self._records(self.classes.position(each)) for each in wanted]
        numbers = np.concatenate([np.zeros(0, np.int64), *chosen])
        return self._with(self._selection.take(np.unique(numbers)))

    def _records(self, position: int) -> Ids:
        """The records of a class; what the index says of it is compared with its rows."""
        numbers = self.classes.records(position)
        # Each once, and as many as the class has: then none is missing.
        sound = bool((np.diff(numbers) > 0).all()) and int(numbers[-1]) < len(self)
        if not sound or (self.labels[numbers] != self.classes.labels[position]).any():
            raise FormatError(
                f"{self._gatherer.tables[0].files.directory}: the index has records in class "
                f"{self.classes.names[position]!r} that are not of it; rebuild it with "
                "`covey index`"
            )
        return numbers

    def select(self, ids: Any) -> Dataset:
        """Some examples, as a dataset.

        Args:
            ids: Their numbers, as in ``ds[ids]``.
        """
        numbers = parse_ids(ids, len(self)).reshape(-1)
        return self._with(self._selection.take(numbers, check=True))

    def _with(self, numbers: Ids) -> Dataset:
        return Dataset(
            self._gatherer,
            self.features,
            label=self.label,
            names=self._names,
            selection=Selection(len(self._gatherer), numbers=numbers),
            numbering=self._numbering,
            pixels=self._pixels,
            max_pixels=self._max_pixels,
        )

    # What loaders need.

    def labels_of(self, ids: Ids) -> NDArray[np.int64]:
        """The numbers of the classes of examples."""
        if self._numbering is not None:
            return np.asarray(self.labels[ids])
        return self._gatherer.labels(self._selection.take(ids))

    def place(self, number: int) -> RecordLocation:
        """Where an example is."""
        return self._gatherer.location(int(self._selection.take(np.array([number]))[0]))

    @cached_property
    def _numbers(self) -> Ids | None:
        return None if self._selection.is_all else self._selection.all()

    def native_source(self, features: Features, ids: Ids) -> NativeSource | None:
        """What the native core needs to read examples by itself; None if it cannot."""
        native = features.native_decoder
        if native is None or self._numbering is not None:
            return None
        found = self._gatherer.mapped(self._selection.take(ids))
        if found is None:
            return None
        gather, check = found
        decoder, columns = native
        return NativeSource(
            gather,
            decoder,
            check,
            label=self._find_label(features),
            has_labels=self.label is not None,
            numbers=self._numbers,
            columns=columns,
        )

    def _check_labelled(self) -> None:
        if self.label is None:
            raise DatasetError(
                "nothing tells the classes of these examples; open them with label=, which is a "
                f"feature ({', '.join(self.features)}), a function of an example, or '@file'"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "label": self.label,
            "names": self._names,
            "selection": self._selection,
            "numbering": self._numbering,
            "pixels": self._pixels,
            "max_pixels": self._max_pixels,
        }
        return _restore, (self._gatherer, self.features, options)


def _restore(gatherer: Gatherer, features: Features, options: Mapping[str, Any]) -> Dataset:
    return Dataset(gatherer, features, **options)
