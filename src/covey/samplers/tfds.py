"""`TFDatasetMultiShotMemorySampler`: balanced batches of a TFDS dataset in memory."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from covey._progress import Progress
from covey.adapters import as_array
from covey.dataset.dataset import Dataset
from covey.dataset.layout import find_layout
from covey.dataset.open import open as open_dataset
from covey.errors import CoveyError, DatasetError, FeatureError, check, cpu_count
from covey.loader.options import add_location
from covey.samplers.base import Augmenting
from covey.samplers.inputs import check_function, check_shapes, told_of_arrays
from covey.samplers.memory import MultiShotMemorySampler
from covey.schema import Image
from covey.storage import is_remote
from covey.urls import AnyPath, parse_path, redact, shown

Preprocessing = Callable[[Any, Any], tuple[Any, Any]]

# Examples that are read at a time.
_CHUNK_ROWS = 256


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
        check("splits", splits, listed, "at least one split")
        directory = name if data_dir is None and _is_directory(name) else _prepare(name, data_dir)
        datasets = [open_dataset(directory, split=split) for split in listed]
        for option, key in (("x_key", x_key), ("y_key", y_key)):
            names = list(datasets[0].features)
            check(option, key, key in names, names, error=FeatureError, path=shown(directory))
        x, y = _read(datasets, x_key, y_key, preprocess_fn, progress)
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


def _read(
    datasets: Sequence[Dataset],
    x_key: str,
    y_key: str,
    preprocess: Preprocessing | None,
    progress: bool | None,
) -> tuple[Any, list[Any]]:
    """Return x and y of all examples."""
    x: list[Any] = []
    y: list[Any] = []
    with (
        Progress(progress, sum(map(len, datasets)), "reading") as bar,
        ThreadPoolExecutor(cpu_count(), "covey-preprocess") as threads,
    ):
        for dataset in datasets:
            selected = list(dict.fromkeys((x_key, y_key)))
            is_image = any(isinstance(dataset.features[key], Image) for key in selected)
            # Images of any size: preprocess_fn may give them one shape.
            size: Any = "ragged" if is_image else None
            with dataset:
                for batch in dataset.sequential(_CHUNK_ROWS, select=selected, image_size=size):
                    columns = batch if dataset.label is None else batch[0]
                    rows = [dataset.features.find(columns, key) for key in (x_key, y_key)]
                    pairs: Iterable[tuple[Any, Any]] = zip(*rows, strict=True)
                    if preprocess is not None:
                        call = partial(_preprocess, preprocess)
                        pairs = threads.map(call, itertools.count(len(y)), *rows)
                    for some_x, some_y in pairs:
                        x.append(some_x)
                        y.append(some_y)
                    bar.add(len(rows[0]), 0)
    return _move(x), y


def _move(rows: list[Any]) -> Any:
    """Return numbers as one array. Rows are released one by one: memory may hold them once only."""
    check_shapes(rows)
    dtypes = {np.asarray(row).dtype for row in rows}
    if not dtypes or any(each.kind not in "biufc" for each in dtypes):
        return rows
    moved = np.empty((len(rows), *np.shape(rows[0])), np.result_type(*dtypes))
    for number in range(len(rows)):
        moved[number], rows[number] = rows[number], None
    return moved


def _preprocess(function: Preprocessing, number: int, x: Any, y: Any) -> tuple[Any, Any]:
    try:
        with told_of_arrays("remove .numpy() from preprocess_fn"):
            pair = function(x, y)
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not is_pair or any(each is None for each in pair):
            raise FeatureError(f"preprocess_fn returned {str(pair)[:60]}; must be (x, y)")
    except Exception as error:
        add_location(error, f"in preprocess_fn of example {number}")
        raise
    x, y = pair
    return np.array(as_array(x)) if hasattr(x, "__array__") else x, y  # x may be used again
