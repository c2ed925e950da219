"""An open dataset: random access to examples in local or remote shards."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from covey._text import count_of, outline
from covey.classes import ClassNames, ClassTable, Labels, check_labels
from covey.dataset.combine import add, divide, number_classes
from covey.dataset.raw import RawRecords
from covey.errors import (
    DatasetError,
    FormatError,
    check,
    checks_keywords,
    shorten,
)
from covey.index import Index
from covey.labels import decode_strings, is_string
from covey.loader import Loader, LoadOptions
from covey.loader.batch import BatchFormat
from covey.loader.options import LoadKeywords, add_location
from covey.loader.prefetch import NativeSource
from covey.plan import BalancedPlan, Plan, SequentialPlan, ShuffledPlan
from covey.plan.balanced import Epoch, Weights, check_seed
from covey.plan.epochs import Remainder
from covey.plan.weights import SmallClasses
from covey.reading import Gatherer
from covey.reading.gather import Table
from covey.schema import Features, Image
from covey.schema.codec import row_of
from covey.schema.diagnostics import RecordLocation
from covey.schema.images import ImageSummary, join_images
from covey.schema.pixels import ImageColumn, check_max_pixels, decode_images, different_sizes
from covey.schema.types import Feature
from covey.splits import Ids, Selection, parse_ids

if TYPE_CHECKING:
    import datasets
    import pandas as pd
    from typing_extensions import Unpack

    from covey.results import SkippedRecord
    from covey.view import View

Class = int | str | bytes

_OPTIONS = tuple(LoadKeywords.__annotations__)
_NO_BATCH_SIZE = (
    "a batch has classes_per_batch * examples_per_class examples: batches(8, 4) has 32; "
    "shuffled(32) has 32 examples of any classes"
)

# Arguments of a dataset, which are its attributes.
_ARGUMENTS = ("gatherer", "features", "label", "names", "selection", "labels", "keys",
              "stored_label", "pixels", "max_pixels")  # fmt: skip

# Selections of features whose decoders are kept.
_MAX_STORED = 16


class Dataset:
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
        labels: The class id of each example; None for the ids in the indexes.
        keys: The key of each class id from 0 on, by which its examples are drawn; None for the ids.
        stored_label: With `labels`, the label feature as records have it; None if the label is a
            string, or is not a feature.
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
        labels: NDArray[np.int64] | None = None,
        keys: NDArray[np.int64] | None = None,
        stored_label: Feature | None = None,
        pixels: bool = False,
        max_pixels: int | None = None,
    ) -> None:
        self._features = features
        self._label = label
        self._gatherer = gatherer
        self._names = names
        self._selection = selection
        self._labels = labels
        self._keys = keys
        self._stored_label = stored_label
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
        from covey._html import features_html

        return features_html(f"covey.Dataset: {self._counts()}", self.features)

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
        elif self._names is not None and is_string(features[self.label]):
            self._check_strings(features.find(columns, self.label), ids)
        return columns

    @property
    def prefetch(self) -> Callable[[Ids, int], int | None] | None:
        """Starts to fetch remote examples, as `Gatherer.prefetch`; None if they are local."""
        if not self._gatherer.is_remote:
            return None
        return lambda ids, limit: self._gatherer.prefetch(self._selection.take(ids), limit)

    def _as_stored(self, features: Features) -> Features:
        """Return features with the label as it is stored, if its class ids are replaced."""
        stored = self._stored_label
        if stored is None or self._label is None or self._label not in features:
            return features
        found = self._stored.get(id(features))
        if found is None or found[0] is not features:
            if len(self._stored) >= _MAX_STORED:
                self._stored.clear()
            found = features, features.replace({self._label: stored})
            self._stored[id(features)] = found
        return found[1]

    def _check_strings(self, column: Any, ids: Ids) -> None:
        """Compare label strings with the index, as the native core does with integers."""
        known, found = self._names or (), decode_strings(column)
        for row, class_id in enumerate(self.labels_of(ids).tolist()):
            if not 0 <= class_id < len(known) or found[row] != known[class_id]:
                raise DatasetError(
                    f"the class is {column[row]!r}, but its id in the index is {class_id}; the "
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
        return self._show(self._features_of(names), np.arange(len(self), dtype=np.int64))

    def _features_of(self, names: Iterable[str] | str | None) -> Features:
        """Return the features with these names; all for None."""
        selected = [names] if isinstance(names, str) else names
        return self.features if selected is None else self.features.select(selected)

    @property
    def raw(self) -> RawRecords:
        """The serialized records: ``ds.raw[17]``."""
        return RawRecords(self)

    # Classes.

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class id of every example."""
        self._check_has_label()
        tables = self._gatherer.tables
        labels: NDArray[np.int64]
        if self._labels is not None:
            labels = self._labels
        elif self._selection.is_all and len(tables) == 1:
            labels = tables[0].index.rows["label"]
        else:
            labels = self._gatherer.rows.labels(self._selection.all())
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
        return ClassTable.of(self.labels, self._names, self._keys)

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

    # Batches.

    @checks_keywords(_OPTIONS, {"batch_size": _NO_BATCH_SIZE})
    def batches(
        self,
        classes_per_batch: int,
        examples_per_class: int = 2,
        *,
        seed: int = 0,
        steps_per_epoch: Epoch = "examples",
        class_list: Iterable[int | str | bytes] | None = None,
        total_examples_per_class: int | None = None,
        small_classes: SmallClasses = "repeat",
        class_weights: Weights | None = None,
        **options: Unpack[LoadKeywords],
    ) -> Loader:
        """Return a loader of balanced batches: exactly P classes, K distinct examples of each.

        Args:
            classes_per_batch: P.
            examples_per_class: K.
            seed: Seed of all random choices.
            steps_per_epoch: As for :class:`covey.plan.BalancedPlan`, like the next four.
            class_list: Classes to draw from.
            total_examples_per_class: Maximum number of examples to use of each class.
            small_classes: How to handle classes with fewer than K examples.
            class_weights: Relative frequencies of the classes.
            options: Options of :class:`covey.loader.LoadOptions`.

        Raises:
            PlanError, DatasetError, FeatureError: If such batches cannot be drawn.
        """
        keywords = {
            "seed": seed,
            "steps_per_epoch": steps_per_epoch,
            # An iterator can be consumed only once; the plan is made again in other processes.
            "class_list": _listed(class_list),
            "total_examples_per_class": total_examples_per_class,
            "small_classes": small_classes,
            "class_weights": class_weights,
        }
        make_plan = partial(_balanced, self, classes_per_batch, examples_per_class, **keywords)
        return self._load(make_plan, options)

    @checks_keywords(_OPTIONS)
    def shuffled(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        remainder: Remainder = "keep",
        **options: Unpack[LoadKeywords],
    ) -> Loader:
        """Return a loader of all examples once per epoch, in a different order in each epoch.

        Args:
            batch_size: Number of examples per batch.
            seed: Seed of all random choices.
            remainder: How to handle an incomplete last batch, as for
                :class:`covey.plan.ShuffledPlan`.
            options: Options of :class:`covey.loader.LoadOptions`. Without classes, a batch is x
                alone.
        """
        make_plan = partial(ShuffledPlan, len(self), batch_size, seed, remainder=remainder)
        return self._load(make_plan, options)

    @checks_keywords(_OPTIONS)
    def sequential(
        self, batch_size: int, *, remainder: Remainder = "keep", **options: Unpack[LoadKeywords]
    ) -> Loader:
        """Return a loader of all examples once per epoch, in the order of the dataset.

        Args:
            batch_size: Number of examples per batch.
            remainder: How to handle an incomplete last batch, as for
                :class:`covey.plan.SequentialPlan`.
            options: Options of :class:`covey.loader.LoadOptions`. Without classes, a batch is x
                alone.
        """
        make_plan = partial(SequentialPlan, len(self), batch_size, remainder=remainder)
        return self._load(make_plan, options)

    def _load(self, make_plan: Callable[[], Plan], keywords: LoadKeywords) -> Loader:
        options = LoadOptions.of(**keywords)
        loader = Loader(BatchFormat(self, options), make_plan, options)
        self._check_image_sizes(loader)
        return loader

    def _check_image_sizes(self, loader: Loader) -> None:
        """Raise an error if the index knows that the images of a feature have different sizes.

        It knows the sizes in all of its records. If a part of them is drawn, or images are rotated,
        the batch that has different sizes raises the error.
        """
        content, plan = loader.format, loader.plan
        assert isinstance(content, BatchFormat)
        is_part = isinstance(plan, BalancedPlan) and plan.examples < len(self)
        if content.options.images.image_size is not None or is_part or not self._selection.is_all:
            return
        for name in content.image_names:
            feature, known = content.features[name], self.image_summary(name)
            sizes = {size for size in (known["smallest"], known["largest"]) if size}
            assert isinstance(feature, Image)
            is_rotated = feature.exif_orientation and known["oriented"] > 0
            if None in feature.shape[:2] and len(sizes) > 1 and not is_rotated:
                raise content.explain_sizes(different_sizes(sizes, feature=name))

    def image_summary(self, name: str) -> ImageSummary:
        """Return what the index knows of the images of a feature, in all of its records."""
        summaries = [table.index.metadata.images or {} for table in self.tables]
        return join_images(each[name] for each in summaries if name in each)

    # Selections.

    def select(self, ids: Any) -> Dataset:
        """Return the dataset of some examples.

        Args:
            ids: Their positions, as in ``ds[ids]``.
        """
        positions = parse_ids(ids, len(self)).reshape(-1)
        return self._at(positions)

    def where(self, *, label: Class | Sequence[Class]) -> Dataset:
        """Return the dataset of the examples of one or more classes.

        Args:
            label: A class id, a class name, or a list of them.

        Raises:
            UnknownClassError: If no example has a class.
        """
        labels: Any = label if isinstance(label, (list, tuple, range, np.ndarray)) else [label]
        table, positions = self.classes, {self.classes.position(each) for each in labels}
        chosen = [table.records(each) for each in positions]
        classes = table.labels[np.array([*positions], np.int64)].repeat([*map(len, chosen)])
        ids, order = np.unique(np.concatenate([np.zeros(0, np.int64), *chosen]), return_index=True)
        # Lists with an example twice are wrong, too: another one is missing.
        self.check_classes(ids, classes[order] if len(ids) == len(classes) else classes)
        return self._at(ids)

    def filter(
        self,
        function: Callable[[dict[str, Any]], bool] | None = None,
        *,
        classes: Class | Sequence[Class] | None = None,
        select: Iterable[str] | str | None = None,
    ) -> Dataset:
        """Return the dataset of the examples that a function accepts, or of some classes.

        Args:
            function: Function of an example that returns whether to keep it. It is called once for
                each example, in the order of the dataset, before this method returns.
            classes: Classes to keep, as for :meth:`where`, which reads no example. `function` is
                called for examples of these classes only.
            select: Features of the example that `function` receives, by default all. Others are
                not decoded.

        Raises:
            DatasetError: If the function returns another type than bool.
            UnknownClassError: If no example has a class.
        """
        if function is None and (classes is None or select is not None):
            option = "select" if classes is not None else "filter()"
            raise DatasetError(
                option=option, allowed="given with a function, or replaced by classes"
            )
        if classes is not None:
            chosen = self.where(label=classes)
            return chosen if function is None else chosen.filter(function, select=select)
        check(
            "function",
            function,
            callable(function),
            "a function of an example",
            remedy="pass class names by the keyword classes",
        )
        assert function is not None
        features = self._features_of(select)
        kept: list[int] = []
        for ids in self.raw.chunks():
            columns = self._show(features, ids)
            for row, number in enumerate(ids.tolist()):
                try:
                    result: Any = function(row_of(columns, row))
                except Exception as error:
                    add_location(error, f"in the function of filter() for {self.place(number)}")
                    raise
                if not isinstance(result, (bool, np.bool_)):
                    raise DatasetError(
                        f"the function of filter() returned {type(result).__name__} for example "
                        f"{number}; must return bool",
                        **self.place(number).fields,
                    )
                kept += [number] if result else []
        return self.select(kept)

    def map(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise DatasetError: a dataset has the examples of its files.

        Loaders change examples with ``transform=``, ``batch_transform=`` and ``augmenter=``.
        """
        raise DatasetError(
            "a dataset has the examples of its files, and cannot map them",
            remedy="pass transform= (a function of an example) to batches(), shuffled() or "
            "sequential(), or write the changed examples: covey.write(map(f, ds), path, ...)",
        )

    # Sums and parts.

    def __add__(self, other: object) -> Dataset:
        """Return the dataset of the examples of both, in order.

        Classes with the same name are one class. The class ids of the first dataset stay; new names
        of the second follow, in sorted order. Class ids without names are the same class if they
        are equal.

        Raises:
            DatasetError: If the datasets have different features or labels, or were opened with
                different options.
        """
        return add(self, other) if isinstance(other, Dataset) else NotImplemented

    def split_classes(
        self, *, seed: int = 0, labels: Labels | None = None, **parts: float
    ) -> tuple[Dataset, ...]:
        """Return datasets of disjoint classes, for evaluation on classes that were not trained.

        ``train, test = ds.split_classes(train=0.8)``; or
        ``train, val, test = ds.split_classes(train=0.8, val=0.1, test=0.1)``. The hash of the name
        of a class (of its id if it has no name) determines its part: it stays there when other
        classes or examples are added. Unlabelled examples (class -1 of a ClassLabel) are in no
        part.

        Args:
            seed: Seed of the hashes.
            labels: ``"contiguous"`` numbers the classes of each part from 0 on, as for
                :func:`covey.open`; by default the class ids stay.
            parts: The size of each part, in order. Floats are approximate fractions of the classes,
                integers exact numbers of classes. The classes that remain are one more part. The
                names of the parts occur in errors only.

        Raises:
            DatasetError: If sizes are not valid, or a part would have no classes.
        """
        check_labels(labels)
        found = divide(self, parts, check_seed(seed))
        chosen = [self._at(ids) for ids in found]
        return tuple(each if labels is None else number_classes(each) for each in chosen)

    # Other libraries.

    def to_pandas(self, select: Iterable[str] | str | None = None) -> pd.DataFrame:
        """Return the examples as a DataFrame; requires pandas.

        A ClassLabel with names is a Categorical of the names, and the class of a dataset whose
        label is not a feature is the column ``label``. Images are encoded bytes; features with
        dimensions are arrays.

        Args:
            select: The features, by default all.
        """
        from covey.dataset import export

        return export.to_pandas(self, select)

    def to_hf(
        self, select: Iterable[str] | str | None = None, *, streaming: bool = False
    ) -> datasets.Dataset | datasets.IterableDataset:
        """Return the examples as a dataset of Hugging Face; requires ``datasets``.

        Class labels keep their names. Images stay encoded: ``datasets`` decodes them on access.

        Args:
            select: The features, by default all.
            streaming: Return an IterableDataset that reads the shards when it is iterated. By
                default all examples are read into memory.
        """
        from covey.dataset import export

        return export.to_hf(self, select, streaming=streaming)

    @staticmethod
    def from_hf(
        dataset: datasets.Dataset | datasets.IterableDataset,
        path: str | os.PathLike[str],
        *,
        split: str | None = None,
        **options: Any,
    ) -> Dataset:
        """Write a dataset of Hugging Face to `path`, and open it.

        A covey dataset is backed by shards: this is :func:`covey.write`, then :func:`covey.open`.
        Images are copied, not encoded again.

        Args:
            dataset: The dataset, such as ``datasets.load_dataset("beans", split="train")``.
            path: Directory or URL of the new dataset.
            split: Name of the split; by default that of the dataset, or ``"train"``.
            options: Options of :func:`covey.write`, such as `label` or ``mode="overwrite"``.
        """
        from covey.dataset import export

        return export.from_hf(dataset, path, split=split, **options)

    # Display.

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
        is_index = self._selection.is_all and len(self.tables) == 1 and self._labels is None
        return self.tables[0].index if is_index else None

    def labels_of(self, ids: Ids) -> NDArray[np.int64]:
        """Return the class ids of examples."""
        if self._labels is not None:
            return np.asarray(self._labels[ids])
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
            class_ids=self._labels,
            columns=columns,
            images=tuple(
                (position, images[name]) for position, name in enumerate(features) if name in images
            ),
        )

    def _with(self, **changes: Any) -> Dataset:
        """Return a dataset with other arguments of its constructor."""
        return Dataset(**{**self._arguments, **changes})

    def with_labels(
        self, label: str, labels: NDArray[np.int64], names: Sequence[str] | None
    ) -> Dataset:
        """Return the dataset with labels that are not in its index: one class id per example."""
        return self._with(label=label, labels=labels, names=names)

    def _at(self, positions: Ids) -> Dataset:
        """Return the dataset of the examples at `positions`."""
        ids = self._selection.take(positions, check=True)
        return self._with(
            selection=Selection(len(self._gatherer.rows), ids),
            labels=None if self._labels is None else self._labels[positions],
        )

    def check_classes(self, ids: Ids, classes: Ids) -> None:
        """Compare the class ids of examples in the class table of the index with those in its rows.

        Raises:
            FormatError: If they differ.
        """
        try:
            agree = np.array_equal(self.labels_of(ids), classes)
        except IndexError:
            agree = False
        if not agree:
            raise FormatError(
                "the class table of the index lists records of other classes under the class ids "
                f"{np.unique(classes)[:5]}",
                remedy="rebuild the index with `covey index`",
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
        return {name: getattr(self, f"_{name}") for name in _ARGUMENTS}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Dataset, **self._arguments), ()


def _balanced(dataset: Dataset, *arguments: int, **keywords: Any) -> BalancedPlan:
    # The class table is not pickled with a loader: a process reads it from the index.
    return BalancedPlan(dataset.classes, *arguments, **keywords)


def _listed(class_list: Any) -> Any:
    is_iterable = isinstance(class_list, Iterable) and not isinstance(class_list, (str, bytes))
    return list(class_list) if is_iterable else class_list
