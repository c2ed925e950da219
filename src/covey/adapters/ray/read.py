"""Datasets of Ray Data: read tasks that read ranges of examples.

A read task opens the dataset in its process, which keeps it for the next tasks. The pickle of a
dataset refers to the files of its index. On a node that does not have them, such as those in the
cache directory of another node, the dataset is opened again by its path.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.cloudpickle
import ray.data
from ray.data.block import BlockMetadata

from covey.adapters.ray.blocks import find_schema, make_block, tensor_shape
from covey.dataset.dataset import Dataset
from covey.dataset.export import ExportColumns
from covey.dataset.open import open as open_dataset
from covey.errors import FileChangedError, checks_keywords
from covey.schema import ClassLabel, Image, Sparse, Tensor
from covey.schema.columns import STRINGS
from covey.urls import AnyPath, local_path, parse_paths

_OPEN_OPTIONS = tuple(inspect.signature(open_dataset).parameters)

# Limits of one read; Ray combines its results to blocks.
_MAX_READ_ROWS = 8192
_MAX_READ_BYTES = 16 << 20

# Records whose lengths are looked up to estimate the size of all.
_MAX_SAMPLED = 4096

# Estimated bytes of pixels per byte of an encoded image, if the index does not know its size.
_PIXEL_RATIO = 16

# Datasets that a process keeps open.
_MAX_OPEN = 4


@checks_keywords(_OPEN_OPTIONS)
def read(
    path: AnyPath | Iterable[AnyPath],
    *,
    split: str | None = None,
    select: Iterable[str] | str | None = None,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> ray.data.Dataset:
    """Return the examples of a dataset, or of any TFRecord files, as a Ray Dataset.

    The dataset is opened here, which reads or builds its index; tasks of Ray read the examples.
    Their order is that of the split, if Ray preserves it
    (``DataContext.execution_options.preserve_order``). Schema and number of rows are known without
    reading an example.

    The columns are the features, by their full names (``"box/corner"``), and the class of a dataset
    whose label is not a feature. Class labels are integers and images are encoded bytes. Numbers of
    a known shape are tensors of Ray, numbers of any length are lists.

    Args:
        path: The dataset, as for :func:`covey.open`. All nodes must be able to read a local path.
        split: The records to read, as for :func:`covey.open`.
        select: The features, by default all. Others are not decoded.
        override_num_blocks: Number of read tasks (default: depends on the size of the dataset and
            the CPUs of the cluster).
        concurrency: Maximum number of read tasks that run at a time.
        ray_remote_args: Options of ``ray.remote`` for read tasks, such as ``num_cpus``.
        options: Options of :func:`covey.open`, such as `label`, `on_error`, `storage_options` or
            ``decode_images=True``, which returns images as tensors of pixels.

    Raises:
        DatasetError, StorageError: If the dataset cannot be opened.
        FeatureError: If a selected feature does not exist.

    A read task that finds a corrupt record raises the error of covey, with its path and record::

        birds = covey.adapters.ray.read("data/birds", split="train", select=["song", "species"])
        for batch in birds.iter_batches(batch_size=256):
            ...
    """
    source = Datasource(path, split=split, select=select, **options)
    keywords = {} if ray_remote_args is None else dict(ray_remote_args)
    named = inspect.signature(ray.data.read_datasource).parameters
    # Options that are not parameters of this version of Ray.
    others = {name: keywords.pop(name) for name in list(keywords) if name not in named}
    if others:
        keywords["ray_remote_args"] = others
    return ray.data.read_datasource(
        source, override_num_blocks=override_num_blocks, concurrency=concurrency, **keywords
    )


@dataclass(frozen=True, eq=False)
class _Source:
    """What a read task needs to open a dataset."""

    pickled: bytes
    """The dataset."""
    arguments: Mapping[str, Any]
    """Arguments of :func:`covey.open`."""
    shards: tuple[Any, ...]
    """The shards that were opened."""
    select: tuple[str, ...] | str | None

    def open(self) -> ExportColumns:
        """Open the dataset in this process."""
        try:
            dataset: Dataset = ray.cloudpickle.loads(self.pickled)
        except FileChangedError:  # this node does not have the files of the index
            dataset = open_dataset(**self.arguments)
            if _shards_of(dataset) != self.shards:
                raise FileChangedError(
                    "the dataset changed after covey.adapters.ray.read() was called",
                    path=dataset._gatherer.tables[0].files.directory,
                    remedy="call it again",
                ) from None
        return ExportColumns(dataset, self.select, pixels=True)


class Datasource(ray.data.Datasource):
    """The examples of a dataset, for ``ray.data.read_datasource``.

    Args:
        path: The dataset, as for :func:`covey.open`.
        select: The features, by default all.
        options: Options of :func:`covey.open`.
    """

    def __init__(
        self,
        path: AnyPath | Iterable[AnyPath],
        *,
        select: Iterable[str] | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        paths = parse_paths(path)
        # Workers have another working directory.
        paths = _absolute(paths) if isinstance(paths, str) else [_absolute(each) for each in paths]
        names = select if select is None or isinstance(select, str) else tuple(select)
        with open_dataset(paths, **options) as dataset:
            columns = ExportColumns(dataset, names, pixels=True)
            self._rows = len(dataset)
            self._schema = find_schema(columns.kinds, pixels=columns.pixels)
            self._row_bytes = _estimate_row(columns)
            source = _Source(
                pickled=ray.cloudpickle.dumps(dataset),
                arguments={**options, "path": paths, "progress": False},
                shards=_shards_of(dataset),
                select=names,
            )
        self._source = ray.put(source)

    def get_name(self) -> str:
        return "Covey"

    def estimate_inmemory_data_size(self) -> int:
        return math.ceil(self._rows * self._row_bytes)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,
    ) -> list[ray.data.ReadTask]:
        tasks = []
        count = max(1, min(parallelism, self._rows))
        # Older versions of Ray have no limit.
        limit = {} if per_task_row_limit is None else {"per_task_row_limit": per_task_row_limit}
        for number in range(count):
            begin, end = (self._rows * each // count for each in (number, number + 1))
            metadata = BlockMetadata(
                num_rows=end - begin,
                size_bytes=math.ceil((end - begin) * self._row_bytes),
                input_files=None,
                exec_stats=None,
            )
            task = partial(_read_blocks, self._source, begin, end, self._schema, self._row_bytes)
            tasks.append(ray.data.ReadTask(task, metadata, schema=self._schema, **limit))
        return tasks


def _absolute(path: str) -> str:
    local = local_path(path)
    return path if local is None else os.path.abspath(local)


def _shards_of(dataset: Dataset) -> tuple[Any, ...]:
    tables = dataset._gatherer.tables
    return tuple((table.files.directory, table.index.metadata.shards) for table in tables)


# Sizes.


def _estimate_row(columns: ExportColumns) -> float:
    """Return the estimated size of a row in memory, from the features and the index."""
    dataset = columns.dataset
    ids = np.linspace(0, len(dataset) - 1, min(len(dataset), _MAX_SAMPLED)).astype(np.int64)
    record = float(dataset.raw.lengths(ids).mean()) if len(ids) else 0.0
    size, has_others = 0.0, False
    for name, kind in columns.kinds.items():
        shape: Any = tensor_shape(kind, pixels=columns.pixels)
        if isinstance(kind, Image) and shape is not None:
            size += _estimate_pixels(dataset, name, kind) or record * _PIXEL_RATIO
        elif isinstance(kind, (Sparse, Tensor)) and shape is not None and None not in shape:
            size += math.prod(shape) * np.dtype(kind.dtype).itemsize
        elif isinstance(kind, ClassLabel) or _is_number(kind):
            size += 8
        else:  # its size is about that in the record
            has_others = True
    return size + record * has_others


def _is_number(kind: Any) -> bool:
    return isinstance(kind, Tensor) and kind.shape == () and kind.dtype not in STRINGS


def _estimate_pixels(dataset: Any, name: str, kind: Image) -> int | None:
    """Return the size of the largest decoded image; None if the index does not know it."""
    largest, (height, width, channels) = dataset.image_summary(name).largest, kind.shape
    if height is None or width is None:
        if largest is None:
            return None
        height, width = largest
    return height * width * (channels or 3) * np.dtype(kind.dtype).itemsize


# Read tasks.

_opened: dict[str, ExportColumns] = {}


def _open_once(source: ray.ObjectRef) -> ExportColumns:
    """Return the columns of a source, which the process keeps open."""
    key = source.hex()
    columns = _opened.pop(key, None)
    if columns is None:
        opener: _Source = ray.get(source)
        columns = opener.open()
    _opened[key] = columns  # the most recently used is the last
    while len(_opened) > _MAX_OPEN:
        _opened.pop(next(iter(_opened)), None)
    return columns


def _read_blocks(
    source: ray.ObjectRef, begin: int, end: int, schema: pa.Schema, row_bytes: float
) -> Iterator[pa.Table]:
    """Yield the examples of a range."""
    columns = _open_once(source)
    limit = ray.data.DataContext.get_current().target_max_block_size or _MAX_READ_BYTES
    limit = min(limit, _MAX_READ_BYTES)
    rows = max(1, min(_MAX_READ_ROWS, int(limit / max(1.0, row_bytes))))
    for ids in columns.dataset.raw.chunks(begin, end, max_records=rows, max_bytes=limit):
        yield make_block(columns.read(ids), schema)
