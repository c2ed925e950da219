"""Ray: a Ray Dataset of the examples of a dataset, and a Datasink that writes one.

A read task opens the dataset in its process, which keeps it for the next tasks. The pickle of a
dataset refers to the files of its index. On a node that does not have them, such as those in the
cache directory of another node, the dataset is opened again by its path.

The blocks are Arrow tables:

==================================  ==============================================================
feature                             column
==================================  ==============================================================
a number, a class label             a number of the same type; int64
a string, an encoded image          string, binary
numbers of known shape, sparse      tensors of Ray of one shape
numbers of unknown length           list
numbers of other unknown shapes     tensors of Ray of different shapes
several strings, nested lists       nested lists
decoded images                      tensors of Ray: of one shape if the feature declares it
==================================  ==============================================================
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import ray.data
except ImportError as error:
    raise ImportError(
        "covey.adapters.ray requires Ray; install it with `pip install 'covey[ray]'`",
        name="ray",
    ) from error

import pyarrow as pa
import ray.cloudpickle
from ray.data.block import BlockMetadata
from ray.data.extensions import (
    ArrowTensorArray,
    ArrowVariableShapedTensorArray,
    ArrowVariableShapedTensorType,
)

from covey.arrays import RaggedArray, SparseBatch, StringArray
from covey.dataset.dataset import Dataset
from covey.dataset.export import ExportColumns
from covey.dataset.open import open as open_dataset
from covey.errors import DatasetError, FileChangedError, checks_keywords
from covey.schema import ClassLabel, Image, Ragged, Sparse, Steps, Tensor
from covey.schema.columns import MAX_EXAMPLE_BYTES, STRINGS, Shape
from covey.schema.types import Feature
from covey.urls import AnyPath, local_path, parse_paths
from covey.writing.datasink import Datasink

__all__ = ["Datasink", "read"]

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

_STRING_TYPES = {"str": pa.string(), "bytes": pa.binary()}


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
        elif isinstance(kind, ClassLabel) or (
            isinstance(kind, Tensor) and kind.shape == () and kind.dtype not in STRINGS
        ):
            size += 8
        else:  # its size is about the same as in the record
            has_others = True
    return size + record * has_others


def _estimate_pixels(dataset: Any, name: str, kind: Image) -> int | None:
    """Return the size of the largest decoded image; None if the index does not know it."""
    largest, (height, width, channels) = dataset.image_summary(name)["largest"], kind.shape
    if height is None or width is None:
        if largest is None:
            return None
        height, width = largest
    return height * width * (channels or 3) * np.dtype(kind.dtype).itemsize


# Read tasks.


@lru_cache(maxsize=_MAX_OPEN)
def _open_once(source: ray.ObjectRef) -> ExportColumns:
    """Return the columns of a source, which the process keeps open."""
    opener: _Source = ray.get(source)
    return opener.open()


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


# Blocks.


def find_schema(kinds: Mapping[str, Feature], *, pixels: bool) -> pa.Schema:
    """Return the schema of the blocks of features.

    Args:
        kinds: The features.
        pixels: Whether images are decoded.

    Raises:
        DatasetError: If a feature has no type in Arrow.
    """
    return pa.schema([(name, _type_of(name, kind, pixels)) for name, kind in kinds.items()])


def make_block(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Return columns of examples as a block.

    Args:
        columns: The columns.
        schema: Schema of their features.
    """
    arrays = [_convert(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


# Types.


def tensor_shape(kind: Feature, *, pixels: bool) -> Shape | None:
    """Return the shape of a feature whose values are tensors of Ray; None for other features."""
    if isinstance(kind, Image):
        return kind.shape if pixels else None
    if isinstance(kind, Sparse):
        return kind.shape
    if not isinstance(kind, Tensor) or kind.dtype in STRINGS:
        return None
    return None if kind.shape in ((), (None,)) else kind.shape


def _type_of(name: str, kind: Any, pixels: bool) -> pa.DataType:
    shape = tensor_shape(kind, pixels=pixels)
    if shape is not None:
        return _tensor_type(name, np.dtype(kind.dtype), shape)
    if isinstance(kind, Image):
        return pa.binary()
    if isinstance(kind, ClassLabel):
        return pa.int64()
    if isinstance(kind, Tensor):
        levels = len(kind.shape)
    elif isinstance(kind, Ragged):
        levels = kind.depth + len(kind.shape)
    elif isinstance(kind, Steps):
        levels = 1 + len(kind.shape)
    else:
        raise DatasetError(
            f"it is {kind}, which has no counterpart in Ray",
            feature=name,
            remedy="pass select= without it",
        )
    found = _STRING_TYPES.get(kind.dtype) or pa.from_numpy_dtype(np.dtype(kind.dtype))
    for _ in range(levels):
        found = pa.list_(found)
    return found


def _tensor_type(name: str, dtype: np.dtype[Any], shape: Shape) -> pa.DataType:
    if None in shape:
        return ArrowVariableShapedTensorArray.from_numpy([np.zeros([1] * len(shape), dtype)]).type
    sizes = [size or 0 for size in shape]
    if math.prod(sizes) * dtype.itemsize > MAX_EXAMPLE_BYTES:  # a sparse tensor
        raise DatasetError(
            f"a dense tensor of shape {tuple(sizes)} exceeds 2 GiB",
            feature=name,
            remedy="pass select= without it",
        )
    return ArrowTensorArray.from_numpy(np.zeros([1, *sizes], dtype)).type


# Arrays.


def _convert(column: Any, kind: pa.DataType) -> pa.Array:
    """Return a column as an array of a type."""
    if isinstance(column, SparseBatch):
        column = np.stack([each.to_dense() for each in column])
    if isinstance(kind, pa.BaseExtensionType):
        is_ragged = not isinstance(column, np.ndarray)
        if is_ragged or isinstance(kind, ArrowVariableShapedTensorType):
            return ArrowVariableShapedTensorArray.from_numpy(list(column))
        return ArrowTensorArray.from_numpy(column)
    if isinstance(column, RaggedArray) and column.row_shapes is not None:
        return pa.array(column.tolist(), kind)  # strings of which an inner dimension is unknown
    return _nest(column)


def _nest(column: Any) -> pa.Array:
    """Return a column as an array of values or of nested lists."""
    if isinstance(column, RaggedArray):
        return pa.ListArray.from_arrays(_offsets(column.row_splits), _nest(column.values))
    rows, *sizes = column.shape
    if isinstance(column, StringArray):
        kind = _STRING_TYPES["str" if column.text else "bytes"]
        buffers = [None, _offsets(column.offsets).buffers()[1], pa.py_buffer(column.data)]
        values = pa.Array.from_buffers(kind, len(column.offsets) - 1, buffers)
    else:
        values = pa.array(column.reshape(-1))
    for axis in reversed(range(len(sizes))):
        count = rows * math.prod(sizes[:axis])
        values = pa.ListArray.from_arrays(_offsets(np.arange(count + 1) * sizes[axis]), values)
    return values


def _offsets(splits: NDArray[np.int64]) -> pa.Array:
    return pa.array(splits).cast(pa.int32())  # raises an error if they are too large
