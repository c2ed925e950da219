"""Methods that return loaders of a dataset, and access to its undecoded records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from covey.classes import ClassTable
from covey.dataset.selection import Ids, Selection, parse_ids
from covey.errors import CoveyError, checks_keywords
from covey.loader import Examples, Loader, LoadOptions
from covey.loader.batch import BatchFormat
from covey.loader.source import check_classes
from covey.plan import BalancedPlan, Plan, SequentialPlan, ShuffledPlan
from covey.plan.balanced import Epoch, Weights
from covey.plan.base import BatchKey
from covey.plan.epochs import Remainder
from covey.plan.weights import SmallClasses
from covey.reading import Gatherer
from covey.schema import Image
from covey.schema.codec import leaf
from covey.schema.image_summary import ImageSummary
from covey.schema.pixels import different_sizes, find_sizes

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from covey.loader.options import LoadKeywords


_OPTIONS = tuple(field.name for field in fields(LoadOptions))

# Number of images of a part of a dataset whose sizes are compared.
_PROBED_IMAGES = 32


class Loadable(Examples, ABC):
    """Examples that can be loaded in batches."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def classes(self) -> ClassTable:
        """Class ids, names and record ids."""

    @abstractmethod
    def _image_summary(self, name: str) -> tuple[ImageSummary, bool] | None:
        """Return the summary of the images of a feature, and whether it has these examples only.

        None if no index has one.
        """

    @checks_keywords(_OPTIONS)
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
        options = LoadOptions(**keywords)
        loader = Loader(BatchFormat(self, options), make_plan, options)
        self._check_image_sizes(loader)
        return loader

    def _check_image_sizes(self, loader: Loader) -> None:
        """Raise an error if it is known that the images of a feature have different sizes.

        The index knows the sizes in all of its records. If a part of them is drawn, or images are
        rotated, the sizes of some examples decide. Other differences are found in the batch that
        has them.
        """
        content, plan = loader.format, loader.plan
        pixels = loader.options.pixels
        if not isinstance(content, BatchFormat) or pixels.size is not None or pixels.ragged:
            return
        for name in content.image_names:
            feature, found = content.features[name], self._image_summary(name)
            assert isinstance(feature, Image)
            if None not in feature.shape[:2] or found is None:
                continue
            summary, is_exact = found
            sizes = {size for size in (summary.smallest, summary.largest) if size is not None}
            is_part = isinstance(plan, BalancedPlan) and plan.examples < len(self)
            is_rotated = feature.exif_orientation and summary.oriented > 0
            if len(sizes) > 1 and (is_part or is_rotated or not is_exact):
                ids = plan.records if isinstance(plan, BalancedPlan) else np.arange(len(self))
                ids = ids[:: max(1, len(ids) // _PROBED_IMAGES)]
                sizes = set()
                with suppress(CoveyError):  # the batch that has the record raises it
                    columns = self.decode(self.features.select((name,)), ids)
                    sizes = find_sizes(feature, leaf(columns))
            if len(sizes) > 1:
                raise different_sizes(sizes, feature=name)


def _balanced(examples: Loadable, *arguments: int, **keywords: Any) -> BalancedPlan:
    # The class table is not pickled with a loader: a process reads it from the index.
    return BalancedPlan(examples.classes, *arguments, **keywords)


def _listed(class_list: Any) -> Any:
    is_iterable = isinstance(class_list, Iterable) and not isinstance(class_list, (str, bytes))
    return list(class_list) if is_iterable else class_list


# Limits of one read when all records are iterated.
_MAX_READ_RECORDS = 256
_MAX_READ_BYTES = 16 << 20


class RawRecords(Sequence[bytes]):
    """Undecoded records of a dataset, by id.

    Args:
        examples: The dataset.
        gatherer: Reader of the records.
        selection: The records that belong to the dataset.
    """

    def __init__(self, examples: Examples, gatherer: Gatherer, selection: Selection) -> None:
        self._examples = examples
        self._gatherer = gatherer
        self._selection = selection

    def __len__(self) -> int:
        return len(self._selection)

    @overload
    def __getitem__(self, key: int) -> bytes: ...

    @overload
    def __getitem__(self, key: slice | Any) -> list[bytes]: ...

    def __getitem__(self, key: Any) -> bytes | list[bytes]:
        ids = parse_ids(key, len(self))
        records = self.read(ids.reshape(-1))
        return records if ids.ndim else records[0]

    def __repr__(self) -> str:
        return f"<RawRecords: {len(self):,} records>"

    def read(self, ids: Ids) -> list[bytes]:
        """Return the records `ids`."""
        return self._gatherer.records(self._selection.take(ids))

    def __iter__(self) -> Iterator[bytes]:
        for ids in self.chunks():
            yield from self.read(ids)

    def chunks(
        self,
        begin: int = 0,
        end: int | None = None,
        *,
        max_records: int = _MAX_READ_RECORDS,
        max_bytes: int = _MAX_READ_BYTES,
    ) -> Iterator[Ids]:
        """Yield ids in order, in chunks of bounded size.

        Args:
            begin: The first id.
            end: The id after the last one (default: the number of records).
            max_records: Maximum number of records of a chunk.
            max_bytes: Maximum size of the records of a chunk, which may exceed it by one record.
        """
        end = len(self) if end is None else end
        for first in range(begin, end, max_records):
            ids = np.arange(first, min(first + max_records, end), dtype=np.int64)
            sizes = np.cumsum(self.lengths(ids))
            cuts = np.flatnonzero(np.diff(sizes // max_bytes)) + 1
            yield from np.split(ids, cuts)

    def lengths(self, ids: Ids) -> Ids:
        """Return the sizes of the records `ids` in bytes."""
        return self._gatherer.rows.lengths(self._selection.take(ids))

    def batches(self, plan: Plan, *, threads: int | None = None) -> Loader:
        """Return a loader of undecoded records; a batch is an array of bytes objects.

        Args:
            plan: Record ids of a batch.
            threads: Number of threads that prefetch batches, as for
                :class:`covey.loader.LoadOptions`; mapped records are never prefetched.
        """
        first = self._selection.take(plan.batch(0))
        is_mapped = self._gatherer.mapped(first) is not None
        options = LoadOptions(
            rank=plan.rank,
            world_size=plan.world_size,
            mode=plan.mode,
            threads=0 if is_mapped else threads,
        )
        return Loader(RawFormat(self._examples, self), partial(_same, plan), options)


class RawFormat:
    """Builds batches of undecoded records.

    Args:
        examples: The dataset.
        records: Its records.
    """

    is_native = False

    def __init__(self, examples: Examples, records: RawRecords) -> None:
        self._examples = examples
        self._records = records

    def build(
        self, ids: Ids, classes: Ids | None, key: BatchKey, check_cancelled: Callable[[], None]
    ) -> Any:
        """Return the records `ids` as an array of bytes objects."""
        if classes is not None:
            check_classes(self._examples, ids, classes)
        return np.array(self._records.read(ids), object)


def _same(plan: Plan) -> Plan:
    return plan
