"""Methods that return other datasets: selections, sums, parts, and those of other libraries."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from covey.classes import Labels, Renumbering, check_labels
from covey.dataset.batches import Loadable, RawRecords
from covey.dataset.combine import add, divide, number_classes
from covey.dataset.selection import Ids, Selection, parse_ids
from covey.errors import DatasetError, FormatError, checks_keywords
from covey.loader.options import add_location
from covey.plan.base import check_seed
from covey.reading import Gatherer
from covey.schema import Features
from covey.schema.codec import row_of

if TYPE_CHECKING:
    import datasets
    import pandas as pd

    from covey.classes import ClassNames
    from covey.dataset.dataset import Dataset

Class = int | str | bytes


class Operations(Loadable):
    """Methods of a dataset that return other datasets."""

    _gatherer: Gatherer
    _selection: Selection
    _names: tuple[str, ...] | None
    _renumbering: Renumbering | None
    _pixels: bool

    @property
    @abstractmethod
    def labels(self) -> NDArray[np.int64]: ...

    @property
    @abstractmethod
    def class_names(self) -> ClassNames: ...

    @property
    @abstractmethod
    def raw(self) -> RawRecords: ...

    @abstractmethod
    def _show(self, features: Features, ids: Ids) -> dict[str, Any]: ...

    @abstractmethod
    def _with(self, **changes: Any) -> Dataset:
        """Return a dataset with other arguments of its constructor."""

    def _at(self, record_ids: Ids) -> Dataset:
        return self._with(selection=Selection(len(self._gatherer.rows), ids=record_ids))

    # Selections.

    @checks_keywords()
    def select(self, ids: Any) -> Dataset:
        """Return the dataset of some examples.

        Args:
            ids: Their positions, as in ``ds[ids]``.
        """
        positions = parse_ids(ids, len(self)).reshape(-1)
        return self._at(self._selection.take(positions, check=True))

    @checks_keywords()
    def where(self, *, label: Class | Sequence[Class]) -> Dataset:
        """Return the dataset of the examples of one or more classes.

        Args:
            label: A class id, a class name, or a list of them.

        Raises:
            UnknownClassError: If no example has a class.
        """
        labels: Any = label if isinstance(label, (list, tuple, range, np.ndarray)) else [label]
        chosen = [self._records(self.classes.position(each)) for each in labels]
        positions = np.concatenate([np.zeros(0, np.int64), *chosen])
        return self._at(self._selection.take(np.unique(positions)))

    def _records(self, position: int) -> Ids:
        """Return the examples of a class, and check that its index lists match the rows."""
        ids, label = self.classes.records(position), self.classes.labels[position]
        # Distinct, and as many as the class has: then none is missing.
        is_valid = bool((np.diff(ids) > 0).all()) and int(ids[-1]) < len(self)
        if not is_valid or (self.labels[ids] != label).any():
            raise FormatError(
                f"the index lists records of other classes in class {self.class_names[label]!r}",
                path=self._gatherer.tables[0].files.directory,
                remedy="rebuild it with `covey index`",
            )
        return ids

    @checks_keywords()
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
        if function is None:
            if classes is None or select is not None:
                option = "select" if classes is not None else "filter()"
                raise DatasetError(
                    option=option, allowed="given with a function, or replaced by classes"
                )
            return self.where(label=classes)
        if classes is not None:
            return self.where(label=classes).filter(function, select=select)
        if not callable(function):
            raise DatasetError(
                option="function",
                found=function,
                allowed="a function of an example",
                remedy="pass class names by the keyword classes",
            )
        names = [select] if isinstance(select, str) else select
        features = self.features if names is None else self.features.select(names)
        kept: list[int] = []
        for ids in self.raw.chunks():
            columns = self._show(features, ids)
            for row, number in enumerate(ids.tolist()):
                if self._keeps(function, row_of(columns, row), number):
                    kept.append(number)
        return self.select(np.array(kept, np.int64))

    def _keeps(
        self, function: Callable[[dict[str, Any]], bool], example: dict[str, Any], number: int
    ) -> bool:
        try:
            result: Any = function(example)
        except Exception as error:
            add_location(error, f"in the function of filter() for {self.place(number)}")
            raise
        if not isinstance(result, (bool, np.bool_)):
            raise DatasetError(
                f"the function of filter() returned {type(result).__name__} for example {number}; "
                "must return bool",
                **self.place(number).fields,
            )
        return bool(result)

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
        return add(self, other) if isinstance(other, Operations) else NotImplemented

    @checks_keywords(None)
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
        chosen = [self._at(self._selection.take(ids)) for ids in found]
        return tuple(each if labels is None else number_classes(each) for each in chosen)

    # Other libraries.

    @checks_keywords()
    def to_pandas(self, select: Iterable[str] | str | None = None) -> pd.DataFrame:
        """Return the examples as a DataFrame; requires pandas.

        A ClassLabel with names is a Categorical of the names, and the class of a dataset whose
        label is not a feature is the column ``label``. Images are encoded bytes; features with
        dimensions are arrays.

        Args:
            select: The features, by default all.
        """
        from covey.dataset.export import to_pandas

        return to_pandas(self, select)

    @checks_keywords()
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
        from covey.dataset.export import to_hf

        return to_hf(self, select, streaming=streaming)

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
        from covey.dataset.export import from_hf

        return from_hf(dataset, path, split=split, **options)
