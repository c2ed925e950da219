"""An open dataset: random access to examples in local or remote shards."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from covey._text import count_of, outline
from covey.classes import ClassNames, ClassTable, Renumbering
from covey.dataset.batches import RawRecords
from covey.dataset.operations import Operations
from covey.dataset.selection import Ids, Selection, parse_ids
from covey.errors import DatasetError, shorten
from covey.index import Index
from covey.labels import decode_strings, is_string
from covey.loader.source import NativeSource
from covey.reading import Gatherer
from covey.reading.rows import Table
from covey.results import SkippedRecord
from covey.schema import Features, Image
from covey.schema.codec import row_of
from covey.schema.diagnostics import RecordLocation
from covey.schema.image_summary import ImageSummary
from covey.schema.pixel_options import check_max_pixels
from covey.schema.pixels import ImageColumn, decode_images

if TYPE_CHECKING:
    from covey.view import View

# Selections of features whose decoders are kept.
_MAX_STORED = 16


class Dataset(Operations):
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
        renumbering: The class ids, if they are not those of the indexes.
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
        renumbering: Renumbering | None = None,
        pixels: bool = False,
        max_pixels: int | None = None,
    ) -> None:
        self._features = features
        self._label = label
        self._gatherer = gatherer
        self._names = names
        self._selection = selection
        self._renumbering = renumbering
        self._stored: dict[int, tuple[Features, Features]] = {}
        self._pixels = pixels
        self._max_pixels = check_max_pixels(max_pixels)
        # A label that is a single int64 is compared with the index whenever it is decoded.
        self._label_column = self._find_label(self._as_stored(features))

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
        same, stored = features is self.features, self._as_stored(features)
        label = self._label_column if same else self._find_label(stored)
        taken = self._selection.take(ids)
        columns = self._gatherer.decode(stored, taken, label=label)
        if self.label is None or self.label not in features:
            return columns
        if stored is not features:
            *parents, name = features.path_of(self.label)
            parent = columns
            for each in parents:
                parent = parent[each]
            parent[name] = self.labels_of(ids)
        elif self._class_ids_by_string:
            self._check_strings(features.find(columns, self.label), ids)
        return columns

    def _as_stored(self, features: Features) -> Features:
        """Return features with the label as it is stored, if its class ids are replaced."""
        stored = None if self._renumbering is None else self._renumbering.stored
        if stored is None or self._label is None or self._label not in features:
            return features
        found = self._stored.get(id(features))
        if found is None or found[0] is not features:
            if len(self._stored) >= _MAX_STORED:
                self._stored.clear()
            found = features, features.replace({self._label: stored})
            self._stored[id(features)] = found
        return found[1]

    @cached_property
    def _class_ids_by_string(self) -> dict[str, int]:
        """The class ids of the label strings; empty if labels are not strings."""
        kind = None if self.label is None else self.features.get(self.label)
        if self._names is None or kind is None or not is_string(kind):
            return {}
        return {name: number for number, name in enumerate(self._names)}

    def _check_strings(self, column: Any, ids: Ids) -> None:
        """Compare label strings with the index, as the native core does with integers."""
        found = [self._class_ids_by_string.get(string) for string in decode_strings(column)]
        expected = self.labels_of(ids).tolist()
        for row, (class_id, indexed) in enumerate(zip(found, expected, strict=True)):
            if class_id != indexed:
                raise DatasetError(
                    f"the class is {column[row]!r}, but its id in the index is {indexed}; the "
                    "shard was modified, or the index belongs to another dataset",
                    **self.place(int(ids[row])).fields,
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
        tables, rows, ids = self._gatherer.tables, self._gatherer.rows, self._selection.all()
        if self._selection.is_all and len(tables) == 1:
            labels: NDArray[np.int64] = tables[0].index.rows["label"]
        else:
            labels = rows.labels(ids)
        if self._renumbering is not None:
            labels = self._renumbering.apply(labels, rows.table_of(ids))
        labels.flags.writeable = False
        return labels

    @cached_property
    def classes(self) -> ClassTable:
        """The classes of the examples: ``labels``, their class ids, and ``counts``.

        ``list(ds.classes)`` is their names, in the order of the ids; ``ds.classes.names`` is
        :attr:`class_names`.
        """
        self._check_has_label()
        index = self.whole_index
        if index is not None and index.classes is not None:
            assert index.by_class is not None
            return ClassTable(index.classes, index.by_class, self._names)
        keys = None if self._renumbering is None else self._renumbering.keys
        return ClassTable.of(self.labels, self._names, keys)

    @property
    def class_names(self) -> ClassNames:
        """The name of each class id: ``ds.class_names[y]``, also for an array of class ids.

        A mapping from class ids, with the classes of the label feature that have no example here.
        A class without a name has its id as a name.
        """
        return self.classes.names

    def class_name(self, class_id: Any) -> Any:
        """Return the name of a class id, or a list of the names of several.

        Args:
            class_id: An integer, or an array of integers, of Python, numpy or a framework.

        Raises:
            UnknownClassError: If there is no such class.
        """
        return self.class_names[class_id]

    def _with(self, **changes: Any) -> Dataset:
        return Dataset(**{**self._arguments, **changes})

    def view(self, *, port: int = 0, browser: bool | None = None, embeddings: Any = None) -> View:
        """Show the examples, the classes and the batches in the browser, like ``covey view``.

        In a notebook the page is displayed below the cell.

        Args:
            port: Port of the server, which only this machine can connect to; 0 for any.
            browser: Whether to open the browser (default: unless this is a notebook).
            embeddings: An array with a vector for each example, or the path of a ``.npy`` file.

        Returns:
            The running server; it ends with ``close()``, or with the process.
        """
        view: View = importlib.import_module("covey.view").view_dataset(
            self, port=port, browser=browser, embeddings=embeddings
        )
        return view

    # For loaders, and for `covey view`.

    @property
    def tables(self) -> tuple[Table, ...]:
        """The splits that the dataset reads from: their indexes and their shards."""
        return self._gatherer.tables

    @property
    def whole_index(self) -> Index | None:
        """The index of the examples; None unless they are all of one split, with its class ids."""
        is_index = self._selection.is_all and len(self.tables) == 1 and self._renumbering is None
        return self.tables[0].index if is_index else None

    def labels_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the class ids of examples."""
        if self._renumbering is not None:
            return np.asarray(self.labels[ids])
        return self._gatherer.rows.labels(self._selection.take(ids))

    def place(self, number: int) -> RecordLocation:
        """Return the location of an example."""
        return self._gatherer.rows.location(int(self._selection.take(np.array([number]))[0]))

    def _image_summary(self, name: str) -> tuple[ImageSummary, bool] | None:
        summaries = [table.index.metadata.images or {} for table in self._gatherer.tables]
        known = [each[name] for each in summaries if name in each]
        if not known:
            return None
        return sum(known, ImageSummary()), self._selection.is_all

    @cached_property
    def _numbers(self) -> Ids | None:
        return None if self._selection.is_all else self._selection.all()

    def native_source(
        self, features: Features, ids: Ids, images: Mapping[str, ImageColumn]
    ) -> NativeSource | None:
        """Return the source for reads by the native core; None if it cannot read the examples."""
        rows = {name: (image.shape, image.dtype) for name, image in images.items()}
        stored = self._as_stored(features)
        label, native = self._find_label(stored), stored.native_decoder(rows)
        if native is None or (stored is not features and label < 0):
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
            label=label,
            has_labels=self.label is not None,
            numbers=self._numbers,
            class_ids=None if self._renumbering is None else self.labels,
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

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "gatherer": self._gatherer,
            "features": self.features,
            "label": self.label,
            "names": self._names,
            "selection": self._selection,
            "renumbering": self._renumbering,
            "pixels": self._pixels,
            "max_pixels": self._max_pixels,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._arguments,)


def _restore(arguments: Mapping[str, Any]) -> Dataset:
    return Dataset(**arguments)
