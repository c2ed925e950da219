"""Balanced batches of a dataset of TFDS, which is read into memory."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

import covey
from covey.errors import DatasetError, FeatureError
from covey.pipeline import cores, run_ahead
from covey.progress import Progress
from covey.samplers.base import Augmenting
from covey.samplers.memory import MultiShotMemorySampler
from covey.storage import is_remote

Preprocessing = Callable[[Any, Any], tuple[Any, Any]]
Chunk = tuple[Any, Any]

# Examples that a thread takes at once.
_ROWS_AT_ONCE = 64


class TFDatasetMultiShotMemorySampler(MultiShotMemorySampler):
    """Balanced batches of a dataset of TFDS, which is read into memory once.

    Args:
        dataset_name: A name in the catalogue of TFDS, which downloads and prepares it; or a folder
            that was prepared, which is read without TensorFlow.
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
            raise FeatureError(f"preprocess_fn is {preprocess_fn!r}, must be a function of (x, y)")
        name = os.fspath(dataset_name)
        listed = [splits] if isinstance(splits, str) else list(splits)
        if not listed:
            raise DatasetError("splits is an empty list; name at least one")
        is_folder = os.path.isdir(name) or is_remote(name)
        builder = None if is_folder else _prepare(name, data_dir)
        keys = (x_key, y_key)
        found = [
            _Folder(name, split, keys) if builder is None else _Prepared(builder, split, keys)
            for split in listed
        ]
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


class _Folder:
    """A split of a folder that was prepared."""

    def __init__(self, folder: str, split: str, keys: tuple[str, str]) -> None:
        self._dataset = covey.open(folder, split=split)
        self._keys = keys
        _check_keys(keys, self._dataset.features, folder)

    def __len__(self) -> int:
        return len(self._dataset)

    def chunks(self) -> Iterator[Chunk]:
        """The examples, some at a time: x and y."""
        with self._dataset as dataset:
            wanted = list(dict.fromkeys(self._keys))
            for batch in dataset.sequential(_ROWS_AT_ONCE, features=wanted):
                columns = batch if dataset.label is None else batch[0]
                x, y = (dataset.features.find(columns, key) for key in self._keys)
                yield x, y


class _Prepared:
    """A split of a dataset that TFDS has prepared."""

    def __init__(self, builder: Any, split: str, keys: tuple[str, str]) -> None:
        self._builder = builder
        self._split = split
        self._keys = keys
        _check_keys(keys, builder.info.features, builder.info.name)
        if split not in builder.info.splits:  # which also knows "train[:10%]"
            there = ", ".join(map(repr, builder.info.splits))
            raise DatasetError(
                f"{builder.info.name}: there is no split {split!r}; there are {there}"
            )

    def __len__(self) -> int:
        return int(self._builder.info.splits[self._split].num_examples)

    def chunks(self) -> Iterator[Chunk]:
        """The examples, some at a time: x and y."""
        x_key, y_key = self._keys
        tfds = importlib.import_module("tensorflow_datasets")
        # Other features are not decoded.
        wanted = tfds.decode.PartialDecoding(dict.fromkeys(self._keys, True))
        examples = iter(tfds.as_numpy(self._builder.as_dataset(split=self._split, decoders=wanted)))
        while chunk := list(islice(examples, _ROWS_AT_ONCE)):
            yield [each[x_key] for each in chunk], [each[y_key] for each in chunk]


def _prepare(name: str, data_dir: str | os.PathLike[str] | None) -> Any:
    """The builder of a dataset of the catalogue, which is there when this is done."""
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError:
        raise ImportError(
            f"{name!r} is no folder, and for a name of its catalogue TFDS is needed; run: "
            "pip install 'covey[tensorflow,tfds]'"
        ) from None
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise DatasetError(
            f"{name!r} is neither a folder that is there nor a dataset of TFDS: {error}"
        ) from None
    builder.download_and_prepare()
    return builder


def _check_keys(keys: tuple[str, str], features: Iterable[str], name: str) -> None:
    there = list(features)
    for argument, key in zip(("x_key", "y_key"), keys, strict=True):
        if key not in there:
            listed = ", ".join(map(repr, there))
            raise FeatureError(f"{name}: {argument} is {key!r}, must be one of {listed}")


def _read(
    found: Sequence[_Folder | _Prepared], preprocess: Preprocessing | None, progress: bool | None
) -> Chunk:
    """All examples: x and y."""
    total = sum(map(len, found))
    x, y = _Collected(total), _Collected(total)
    chunks = (chunk for split in found for chunk in split.chunks())
    tasks = (partial(_preprocess, chunk, preprocess) for chunk in chunks)
    with (
        Progress(progress, total, "reading") as bar,
        ThreadPoolExecutor(cores(), "covey-preprocess") as threads,
    ):
        for some_x, some_y in run_ahead(tasks, threads if preprocess else None, 2 * cores()):
            x.extend(some_x)
            y.extend(some_y)
            bar.add(len(some_x), 0)
    return x.rows, y.rows


def _preprocess(chunk: Chunk, preprocess: Preprocessing | None) -> Chunk:
    if preprocess is None:
        return chunk
    done = []
    for x, y in zip(*chunk, strict=True):
        pair = preprocess(x, y)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise FeatureError(f"preprocess_fn gives {type(pair).__name__}, must return x and y")
        done.append(pair)
    return [x for x, _ in done], [y for _, y in done]


class _Collected:
    """Rows, in one array that is made once; in a list, if they are of different shapes."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._there = 0
        self.rows: Any = []

    def extend(self, rows: Any) -> None:
        """Add some."""
        arrays = [np.asarray(row) for row in rows]
        first = arrays[0]
        if self._there == 0 and first.dtype.kind in "biufc":
            self.rows = np.empty((self._total, *first.shape), first.dtype)
        if isinstance(self.rows, np.ndarray):
            same = {(each.shape, each.dtype) for each in arrays}
            if same == {(self.rows.shape[1:], self.rows.dtype)}:
                self.rows[self._there : self._there + len(arrays)] = arrays
            else:
                self.rows = list(self.rows[: self._there])
        if isinstance(self.rows, list):
            self.rows.extend(rows)
        self._there += len(arrays)
