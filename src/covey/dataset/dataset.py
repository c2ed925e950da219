"""An open dataset: random access to examples in local or remote shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from covey._text import outline
from covey.classes import ClassTable
from covey.dataset.batches import Loadable, RawRecords
from covey.dataset.selection import Ids, Selection, parse_ids
from covey.errors import DatasetError, FormatError, shorten
from covey.labels import decode_strings, is_string
from covey.loader.source import NativeSource
from covey.reading import Gatherer
from covey.results import SkippedRecord, count_of
from covey.schema import Features, Image
from covey.schema.codec import row_of
from covey.schema.diagnostics import RecordLocation
from covey.schema.pixel_options import check_max_pixels
from covey.schema.pixels import ImageColumn, decode_images


class Dataset(Loadable):
    """A sequence of examples; :func:`covey.open` returns it.

    ``ds[17]`` is an example, ``ds[10:20]`` and ``ds[[5, 3, 5]]`` are columns of examples. A dataset
    can be pickled, shared by threads, and used after a fork: each process opens the files when they
    are first needed, and closes them with the dataset.

    Args:
        gatherer: The reader of records.
        features: The features to decode them with.
        label: The label feature, ``"@file"`` or ``"@function"``; None without classes.
        names: The class name of each class id, if known.
        selection: The records of the dataset.
        class_ids: For each open split, the class id here of each class id in its index; None if
            they are the same.
        pixels: Whether images are decoded.
        max_pixels: The maximum number of pixels of an image to decode.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        features: Features,
        *,
        label: str | None,
        names: tuple[str, ...] | None,
        selection: Selection,
        class_ids: tuple[NDArray[np.int64], ...] | None = None,
        pixels: bool = False,
        max_pixels: int | None = None,
    ) -> None:
        self._features = features
        self._label = label
        self._gatherer = gatherer
        self._names = names
        self._selection = selection
        self._class_ids = class_ids
        self._pixels = pixels
        self._max_pixels = check_max_pixels(max_pixels)
        # A label that is a single int64 is compared with the index whenever it is decoded.
        self._label_column = self._find_label(features)

    @property
    def features(self) -> Features:
        """The features of an example."""
        return self._features

    @property
    def label(self) -> str | None:
        """The label feature; None if there are no classes."""
        return self._label

    @property
    def max_pixels(self) -> int:
        """The maximum number of pixels (height x width) of an image to decode."""
        return self._max_pixels

    def __len__(self) -> int:
        return len(self._selection)

    def __repr__(self) -> str:
        rows = ((name, feature.summary) for name, feature in self.features.items())
        return outline(f"<covey.Dataset: {self._counts()}>", rows)

    def _counts(self) -> str:
        count = count_of(len(self), "example")
        if self.label is None:
            return f"{count}, no label"
        classes = count_of(len(self.classes), "class", "classes")
        return f"{count}, {classes} of {shorten(self.label)!r}"

    def _repr_html_(self) -> str:
        from covey._html import dataset_html

        images = [name for name, kind in self.features.items() if isinstance(kind, Image)]
        return dataset_html(self, f"covey.Dataset: {self._counts()}", images)

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files, which are shared with the datasets that this one was selected from."""
        self._gatherer.close()

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: slice | Any) -> Any: ...

    def __getitem__(self, key: Any) -> Any:
        """Return one example, or columns of several.

        Raises:
            IndexError: If a position is out of range.
            CorruptRecordError, ExampleError: If a record is corrupt.
        """
        ids = parse_ids(key, len(self))
        if ids.ndim:
            return self._show(self.features, ids)
        return row_of(self._show(self.features, ids.reshape(1)), 0)

    def __getitems__(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return examples, read together; PyTorch's DataLoader calls this."""
        columns = self[list(ids)]
        return [row_of(columns, row) for row in range(len(ids))]

    def _show(self, features: Features, ids: Ids) -> dict[str, Any]:
        """Return columns of examples; images as pixels if the dataset decodes them."""
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
        """Return the column of the label, if it can be compared with the index; else -1."""
        column = None if self._label is None else features.column_of(self._label)
        return -1 if column is None else column

    def decode(self, features: Features, ids: Ids) -> dict[str, Any]:
        """Return columns of examples as stored: images are not decoded."""
        same = features is self.features
        label = self._label_column if same else self._find_label(features)
        taken = self._selection.take(ids)
        columns = self._gatherer.decode(features, taken, label=label)
        if self._class_ids_by_string and self.label is not None and self.label in features:
            self._check_strings(features.find(columns, self.label), taken)
        return columns

    @cached_property
    def _class_ids_by_string(self) -> dict[str, int]:
        """The class ids in the index of the label strings; empty if labels are not strings."""
        kind = None if self.label is None else self.features.get(self.label)
        if (
            self._names is None
            or kind is None
            or not is_string(kind)
            or self._class_ids is not None
        ):
            return {}
        return {name: number for number, name in enumerate(self._names)}

    def _check_strings(self, column: Any, taken: Ids) -> None:
        """Compare label strings with the index, as the native core does with integers."""
        found = [self._class_ids_by_string.get(string) for string in decode_strings(column)]
        expected = self._gatherer.rows.labels(taken).tolist()
        for row, (class_id, indexed) in enumerate(zip(found, expected, strict=True)):
            if class_id != indexed:
                raise DatasetError(
                    f"the class is {column[row]!r}, but its id in the index is {indexed}; the "
                    "shard was modified, or the index belongs to another dataset",
                    **self._gatherer.rows.location(int(taken[row])).fields,
                    remedy="run `covey index` to rebuild the index",
                )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the examples in order."""
        for ids in self.raw.chunks():
            columns = self._show(self.features, ids)
            for row in range(len(ids)):
                yield row_of(columns, row)

    @property
    def skipped(self) -> tuple[SkippedRecord, ...]:
        """The records that ``on_error="skip"`` skipped."""
        return tuple(part for table in self._gatherer.tables for part in table.index.skipped)

    def columns(self, names: Iterable[str] | str | None = None) -> dict[str, Any]:
        """Return columns of all examples.

        Args:
            names: The features to decode; by default all.
        """
        selected = [names] if isinstance(names, str) else names
        features = self.features if selected is None else self.features.select(selected)
        return self._show(features, np.arange(len(self), dtype=np.int64))

    @property
    def raw(self) -> RawRecords:
        """The serialized records: ``ds.raw[17]``."""
        return RawRecords(self, self._gatherer, self._selection)

    # Classes.

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class id of every example."""
        self._check_has_label()
        indexes = [table.index for table in self._gatherer.tables]
        if self._class_ids is None and self._selection.is_all and len(indexes) == 1:
            labels: NDArray[np.int64] = indexes[0].rows["label"]
            labels.flags.writeable = False
            return labels
        if self._class_ids is None:
            return self._gatherer.rows.labels(self._selection.all())
        mapped = [
            class_ids[index.rows["label"]]
            for index, class_ids in zip(indexes, self._class_ids, strict=True)
        ]
        joined: NDArray[np.int64] = np.concatenate(mapped)[self._selection.all()]
        return joined

    @cached_property
    def classes(self) -> ClassTable:
        """The classes of the examples: ``names``, ``labels`` and ``counts``."""
        self._check_has_label()
        index = self._gatherer.tables[0].index
        is_index = self._selection.is_all and len(self._gatherer.tables) == 1
        if is_index and self._class_ids is None and index.classes is not None:
            assert index.by_class is not None
            return ClassTable(index.classes, index.by_class, self._names)
        return ClassTable.of(self.labels, self._names)

    def where(self, *, label: int | str | bytes | Sequence[int | str | bytes]) -> Dataset:
        """Return the dataset of the examples of one or more classes.

        Args:
            label: A class id, a class name, or a list of them.
        """
        labels: Any = label if isinstance(label, (list, tuple, range, np.ndarray)) else [label]
        chosen = [self._records(self.classes.position(each)) for each in labels]
        positions = np.concatenate([np.zeros(0, np.int64), *chosen])
        return self._with(self._selection.take(np.unique(positions)))

    def _records(self, position: int) -> Ids:
        """Return the examples of a class, and check that its index lists match the rows."""
        ids = self.classes.records(position)
        # Distinct, and as many as the class has: then none is missing.
        is_valid = bool((np.diff(ids) > 0).all()) and int(ids[-1]) < len(self)
        if not is_valid or (self.labels[ids] != self.classes.labels[position]).any():
            raise FormatError(
                f"the index lists records of other classes in class "
                f"{self.classes.names[position]!r}",
                path=self._gatherer.tables[0].files.directory,
                remedy="rebuild it with `covey index`",
            )
        return ids

    def select(self, ids: Any) -> Dataset:
        """Return the dataset of some examples.

        Args:
            ids: Their positions, as in ``ds[ids]``.
        """
        positions = parse_ids(ids, len(self)).reshape(-1)
        return self._with(self._selection.take(positions, check=True))

    def _with(self, ids: Ids) -> Dataset:
        return Dataset(
            self._gatherer,
            self.features,
            label=self.label,
            names=self._names,
            selection=Selection(len(self._gatherer.rows), ids=ids),
            class_ids=self._class_ids,
            pixels=self._pixels,
            max_pixels=self._max_pixels,
        )

    # For loaders.

    def labels_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the class ids of examples."""
        if self._class_ids is not None:
            return np.asarray(self.labels[ids])
        return self._gatherer.rows.labels(self._selection.take(ids))

    def place(self, number: int) -> RecordLocation:
        """Return the location of an example."""
        return self._gatherer.rows.location(int(self._selection.take(np.array([number]))[0]))

    @cached_property
    def _numbers(self) -> Ids | None:
        return None if self._selection.is_all else self._selection.all()

    def native_source(
        self, features: Features, ids: Ids, images: Mapping[str, ImageColumn]
    ) -> NativeSource | None:
        """Return the source for reads by the native core; None if it cannot read the examples."""
        rows = {name: (image.shape, image.dtype) for name, image in images.items()}
        native = features.native_decoder(rows)
        if native is None or self._class_ids is not None:
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
            images=tuple(
                (position, images[name]) for position, name in enumerate(features) if name in images
            ),
        )

    def _check_has_label(self) -> None:
        if self.label is None:
            raise DatasetError(
                "the dataset has no label",
                remedy="open it with label=, which is a feature "
                f"({', '.join(self.features)}), a function of an example, or '@file'",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "label": self.label,
            "names": self._names,
            "selection": self._selection,
            "class_ids": self._class_ids,
            "pixels": self._pixels,
            "max_pixels": self._max_pixels,
        }
        return _restore, (self._gatherer, self.features, options)


def _restore(gatherer: Gatherer, features: Features, options: Mapping[str, Any]) -> Dataset:
    return Dataset(gatherer, features, **options)
