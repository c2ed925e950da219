"""Balanced batches of a dataset of TFDS, which is read into memory."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from covey._progress import Progress
from covey._threads import cpu_count, ordered_map
from covey.dataset.layout import find_layout
from covey.dataset.open import open as open_dataset
from covey.errors import CoveyError, DatasetError, FeatureError
from covey.loader.hooks import add_location
from covey.samplers.base import Augmenting
from covey.samplers.memory import MultiShotMemorySampler
from covey.storage import is_remote
from covey.urls import redact, shown

Preprocessing = Callable[[Any, Any], tuple[Any, Any]]
Chunk = tuple[Any, Any]

# Examples that a thread takes at once.
_ROWS_AT_ONCE = 64


class TFDatasetMultiShotMemorySampler(MultiShotMemorySampler):
    """Balanced batches of a dataset of TFDS, which is read into memory once.

    Args:
        dataset_name: A directory that TFDS prepared, or covey wrote; or a name in the catalogue of
            TFDS, which downloads and prepares it. Only for that TensorFlow is needed.
        classes_per_batch, examples_per_class_per_batch, steps_per_epoch, class_list,
            total_examples_per_class, augmenter, warmup, options: As for
            :class:`MultiShotMemorySampler`.
        x_key: The feature that is x,
        y_key: and the one that tells the class.
        splits: The split, or several, one after the other.
        preprocess_fn: Takes x and y of an example, and returns both; called once for each, by
            several threads.
        data_dir: Where TFDS keeps what it prepares.
        progress: Show how far it is; by default where somebody looks.

    Raises:
        ValueError: If there is no such feature; it lists those that there are.
    """

    def __init__(
        self,
        dataset_name: str | os.PathLike[str],
        classes_per_batch: int,
        x_key: str = "image",
        y_key: str = "label",
        splits: str | Sequence[str] = ("train", "test"),
        examples_per_class_per_batch: int = 2,
        steps_per_epoch: int = 1000,
        class_list: Iterable[Any] | None = None,
        total_examples_per_class: int | None = None,
        preprocess_fn: Preprocessing | None = None,
        augmenter: Augmenting | None = None,
        warmup: int = -1,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> None:
        if preprocess_fn is not None and not callable(preprocess_fn):
            raise FeatureError(
                option="preprocess_fn", found=preprocess_fn, allowed="a function of (x, y)"
            )
        name = os.fspath(dataset_name)
        listed = [splits] if isinstance(splits, str) else list(splits)
        if not listed:
            raise DatasetError("splits is an empty list; name at least one")
        directory = name if data_dir is None and _is_directory(name) else _prepare(name, data_dir)
        found = [_Split(directory, split, (x_key, y_key)) for split in listed]
        x, y = _read(found, preprocess_fn, progress)
        super().__init__(
            x,
            y,
            classes_per_batch,
            examples_per_class_per_batch,
            steps_per_epoch,
            class_list,
            total_examples_per_class,
            augmenter,
            warmup=warmup,
            **options,
        )


def _is_directory(name: str) -> bool:
    """Whether this is not a name of the catalogue. There may well be an empty directory "mnist" here."""
    if is_remote(name) or os.path.isabs(name) or name.startswith((".", "~")):
        return True
    try:
        return os.path.isdir(name) and bool(find_layout(name).splits)
    except CoveyError:
        return False


def _prepare(name: str, data_dir: str | os.PathLike[str] | None) -> str:
    """The directory of a dataset of the catalogue, which TFDS prepares if it is not there."""
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError:
        raise ImportError(
            f"{shown(name)!r} is not a directory with a dataset, and TFDS, whose catalogue may have it, "
            "is not installed; run: pip install 'covey[tensorflow,tfds]'"
        ) from None
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise DatasetError(
            f"{shown(name)!r} is neither a directory with a dataset nor a dataset that TFDS knows: "
            f"{redact(str(error))}"
        ) from None
    builder.download_and_prepare()
    return str(builder.data_dir)


class _Split:
    """A split of a directory that was prepared."""

    def __init__(self, directory: str, split: str, keys: tuple[str, str]) -> None:
        self._dataset = open_dataset(directory, split=split)
        self._keys = keys
        there = list(self._dataset.features)
        for argument, key in zip(("x_key", "y_key"), keys, strict=True):
            if key not in there:
                listed = ", ".join(map(repr, there))
                raise FeatureError(
                    f"{argument} is {key!r}; must be one of {listed}", path=shown(directory)
                )

    def __len__(self) -> int:
        return len(self._dataset)

    def chunks(self) -> Iterator[Chunk]:
        """The examples, some at a time: x and y."""
        with self._dataset as dataset:
            wanted = list(dict.fromkeys(self._keys))
            for batch in dataset.sequential(_ROWS_AT_ONCE, select=wanted):
                columns = batch if dataset.label is None else batch[0]
                x, y = (dataset.features.find(columns, key) for key in self._keys)
                yield x, y


def _read(
    found: Sequence[_Split], preprocess: Preprocessing | None, progress: bool | None
) -> Chunk:
    """All examples: x and y."""
    total = sum(map(len, found))
    x, y = _Collected("x", total), _Collected("y", total)
    chunks = (chunk for split in found for chunk in split.chunks())
    tasks = (partial(_preprocess, *numbered, preprocess) for numbered in _number(chunks))
    with (
        Progress(progress, total, "reading") as bar,
        ThreadPoolExecutor(cpu_count(), "covey-preprocess") as threads,
    ):
        for some_x, some_y in ordered_map(tasks, threads if preprocess else None, 2 * cpu_count()):
            x.extend(some_x)
            y.extend(some_y)
            bar.add(len(some_x), 0)
    return x.rows, y.rows


def _number(chunks: Iterable[Chunk]) -> Iterator[tuple[int, Chunk]]:
    """Chunks, and the number of the first example of each."""
    first = 0
    for chunk in chunks:
        yield first, chunk
        first += len(chunk[0])


def _preprocess(first: int, chunk: Chunk, preprocess: Preprocessing | None) -> Chunk:
    if preprocess is None:
        return chunk
    done = []
    for number, (x, y) in enumerate(zip(*chunk, strict=True), first):
        try:
            pair = preprocess(x, y)
            if (
                not isinstance(pair, (tuple, list))
                or len(pair) != 2
                or any(each is None for each in pair)
            ):
                raise FeatureError(f"preprocess_fn gives {str(pair)[:60]}, must return (x, y)")
        except Exception as error:
            add_location(error, f"in preprocess_fn of example {number}")
            raise
        done.append(pair)
    return [x for x, _ in done], [y for _, y in done]


class _Collected:
    """Rows of one kind, in an array that is made once; strings in a list."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._there = 0
        self.rows: Any = []

    def extend(self, rows: Any) -> None:
        """Add some."""
        arrays = [np.asarray(row) for row in rows]
        if self._there == 0 and arrays[0].dtype.kind in "biufc":
            self.rows = np.empty((self._total, *arrays[0].shape), arrays[0].dtype)
        if isinstance(self.rows, list):
            self.rows.extend(rows)
            self._there += len(arrays)
            return
        for array in arrays:
            if (array.shape, array.dtype) != (self.rows.shape[1:], self.rows.dtype):
                raise FeatureError(
                    f"{self._name} of example {self._there} is {array.dtype} {array.shape}, and "
                    f"others are {self.rows.dtype} {self.rows.shape[1:]}; must be the same: make "
                    "them so with preprocess_fn="
                )
            self.rows[self._there] = array
            self._there += 1
