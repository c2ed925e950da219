"""`TFDatasetMultiShotMemorySampler`: balanced batches of a TFDS dataset in memory."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from covey._progress import Progress
from covey._threads import cpu_count, ordered_map
from covey.dataset.dataset import Dataset
from covey.dataset.layout import find_layout
from covey.dataset.open import open as open_dataset
from covey.errors import CoveyError, DatasetError, FeatureError
from covey.loader.options import add_location
from covey.samplers.base import Augmenting
from covey.samplers.inputs import check_function, told_of_arrays
from covey.samplers.memory import MultiShotMemorySampler
from covey.schema import Image
from covey.storage import is_remote
from covey.urls import AnyPath, parse_path, redact, shown

Preprocessing = Callable[[Any, Any], tuple[Any, Any]]
Chunk = tuple[int, Any, Any]

# Examples that a thread processes at a time.
_CHUNK_ROWS = 64


class TFDatasetMultiShotMemorySampler(MultiShotMemorySampler):
    """Balanced batches of a TFDS dataset, which is read into memory once.

    Args:
        dataset_name: A directory that TFDS prepared or covey wrote; or a name in the TFDS
            catalogue, which TFDS downloads and prepares. Only that requires TensorFlow.
        classes_per_batch, examples_per_class_per_batch, steps_per_epoch, class_list,
            total_examples_per_class, augmenter, warmup, options: As for
            :class:`MultiShotMemorySampler`.
        x_key: The feature that is x.
        y_key: The label feature.
        splits: A split, or a list of splits, which are concatenated.
        preprocess_fn: A function of x and y of an example that returns both; called once for each
            example, by several threads.
        data_dir: The directory of the datasets that TFDS prepares.
        progress: Show a progress bar (default: if stderr is a terminal).

    Raises:
        ValueError: If a feature does not exist.
    """

    def __init__(
        self,
        dataset_name: AnyPath,
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
        data_dir: AnyPath | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> None:
        check_function("preprocess_fn", preprocess_fn, "(x, y)")
        name = parse_path(dataset_name, "dataset_name")
        data_dir = None if data_dir is None else parse_path(data_dir, "data_dir")
        listed = [splits] if isinstance(splits, str) else list(splits)
        if not listed:
            raise DatasetError(option="splits", found=splits, allowed="at least one split")
        directory = name if data_dir is None and _is_directory(name) else _prepare(name, data_dir)
        keys = {"x_key": x_key, "y_key": y_key}
        found = [_open(directory, split, keys) for split in listed]
        x, y = _read(found, (x_key, y_key), preprocess_fn, progress)
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
    """Return whether a name is a directory with a dataset, not a name in the TFDS catalogue."""
    if is_remote(name) or os.path.isabs(name) or name.startswith((".", "~")):
        return True
    try:
        return os.path.isdir(name) and bool(find_layout(name).splits)
    except CoveyError:
        return False


def _prepare(name: str, data_dir: AnyPath | None) -> str:
    """Return the directory of a dataset in the catalogue; TFDS prepares it if necessary."""
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError:
        raise ImportError(
            f"{shown(name)!r} is not a directory with a dataset, and TFDS is not installed; run: "
            "pip install 'covey[tensorflow,tfds]'"
        ) from None
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        # The message of DatasetNotFoundError has the catalogue, in hundreds of lines.
        reason = redact(str(error)).partition("\n")[0]
        raise DatasetError(
            reason,
            option="dataset_name",
            found=shown(name),
            allowed="a directory with a dataset, or a name in the TFDS catalogue",
            choices=tfds.list_builders(with_community_datasets=False),
        ) from None
    builder.download_and_prepare()
    return str(builder.data_dir)


def _open(directory: str, split: str, keys: Mapping[str, str]) -> Dataset:
    """Return a split of a prepared dataset, which has the features that `keys` selects."""
    dataset = open_dataset(directory, split=split)
    features = list(dataset.features)
    for option, key in keys.items():
        if key not in features:
            raise FeatureError(path=shown(directory), option=option, found=key, choices=features)
    return dataset


def _chunks(datasets: Iterable[Dataset], keys: Collection[str]) -> Iterator[Chunk]:
    """Yield the number of the first example, and x and y, of chunks of examples."""
    first = 0
    for dataset in datasets:
        selected = list(dict.fromkeys(keys))
        is_image = any(isinstance(dataset.features[key], Image) for key in selected)
        # Images of any size: preprocess_fn may give them one shape.
        size: Any = "ragged" if is_image else None
        with dataset:
            for batch in dataset.sequential(_CHUNK_ROWS, select=selected, image_size=size):
                columns = batch if dataset.label is None else batch[0]
                x, y = (dataset.features.find(columns, key) for key in keys)
                yield first, x, y
                first += len(x)


def _read(
    datasets: Sequence[Dataset],
    keys: Collection[str],
    preprocess: Preprocessing | None,
    progress: bool | None,
) -> tuple[Any, Any]:
    """Return x and y of all examples."""
    total = sum(map(len, datasets))
    x, y = _ColumnBuffer("x", total), _ColumnBuffer("y", total)
    tasks = (partial(_preprocess, chunk, preprocess) for chunk in _chunks(datasets, keys))
    with (
        Progress(progress, total, "reading") as bar,
        ThreadPoolExecutor(cpu_count(), "covey-preprocess") as threads,
    ):
        for some_x, some_y in ordered_map(tasks, threads if preprocess else None, 2 * cpu_count()):
            x.extend(some_x)
            y.extend(some_y)
            bar.add(len(some_x), 0)
    return x.rows, y.rows


def _preprocess(chunk: Chunk, preprocess: Preprocessing | None) -> tuple[Any, Any]:
    first, *columns = chunk
    if preprocess is None:
        return columns[0], columns[1]
    pairs = []
    for number, (x, y) in enumerate(zip(*columns, strict=True), first):
        try:
            with told_of_arrays("remove .numpy() from preprocess_fn"):
                pair = preprocess(x, y)
            is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
            if not is_pair or any(each is None for each in pair):
                raise FeatureError(f"preprocess_fn returned {str(pair)[:60]}; must be (x, y)")
        except Exception as error:
            add_location(error, f"in preprocess_fn of example {number}")
            raise
        pairs.append(pair)
    return [x for x, _ in pairs], [y for _, y in pairs]


class _ColumnBuffer:
    """Rows of one column: an array that is allocated once, or a list of strings."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._count = 0
        self.rows: Any = []

    def extend(self, rows: Any) -> None:
        """Append rows."""
        arrays = [np.asarray(row) for row in rows]
        if self._count == 0 and arrays[0].dtype.kind in "biufc":
            self.rows = np.empty((self._total, *arrays[0].shape), arrays[0].dtype)
        if isinstance(self.rows, list):
            self.rows.extend(rows)
            self._count += len(arrays)
            return
        for array in arrays:
            if (array.shape, array.dtype) != (self.rows.shape[1:], self.rows.dtype):
                raise FeatureError(
                    f"{self._name} of example {self._count} is {array.dtype} {array.shape}, but "
                    f"others are {self.rows.dtype} {self.rows.shape[1:]}; must be the same",
                    remedy="convert them with preprocess_fn=",
                )
            self.rows[self._count] = array
            self._count += 1
