"""The input for examples of any supported type.

Tables, datasets and loaders are recognized by their attributes, never by their type: nothing is
imported that the caller did not import.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from covey.errors import DatasetError
from covey.schema import SparseArray
from covey.schema.audio import is_hugging_face_file
from covey.sources import Source
from covey.writing.inputs import Input


def normalize_input(examples: Any) -> Input:
    """Return the input for examples of any supported type."""
    if isinstance(examples, Source):
        return _from_source(examples)
    if callable(examples) and not hasattr(examples, "__iter__"):
        return Input(items=examples, path=getattr(examples, "__name__", None))
    if is_ray_dataset(examples):
        raise DatasetError(
            "a Ray Dataset is written as one split",
            option="examples",
            remedy="pass the Ray Dataset itself, and split=",
        )
    _reject_containers(examples)
    if isinstance(examples, Mapping):
        return Input(columns=examples, length=_rows(examples))
    if isinstance(examples, np.ndarray) and examples.dtype.names:
        named = {name: examples[name] for name in examples.dtype.names}
        return Input(columns=named, length=len(examples))
    table = _table(examples)
    if table is not None:
        return Input(columns=table, length=_rows(table))
    if hasattr(examples, "as_numpy_iterator"):
        return _from_tensorflow(examples)
    names = _class_names(examples)
    examples = _without_decoding(examples)
    if _is_by_index(examples):
        return Input(items=examples, length=len(examples), by_index=True, class_names=names)
    if hasattr(examples, "__iter__") or hasattr(examples, "__next__"):
        return Input(items=examples, length=_length(examples), class_names=names)
    raise DatasetError(
        f"it is of type {type(examples).__name__}",
        option="examples",
        allowed="an iterable of dicts, a dict of columns, a table, a tf.data, torch or Hugging "
        "Face dataset, or a covey Source",
    )


def is_ray_dataset(examples: Any) -> bool:
    """Return whether examples are a Ray Dataset."""
    return hasattr(examples, "iter_internal_ref_bundles")


def is_source_list(examples: Any) -> bool:
    """Return whether examples are a list of paths, sources and functions that yield examples."""
    return (
        isinstance(examples, (list, tuple))
        and bool(examples)
        and all(
            isinstance(each, (str, bytes, os.PathLike, Source))
            or (callable(each) and not isinstance(each, Mapping))
            for each in examples
        )
    )


def _is_by_index(examples: Any) -> bool:
    """Return whether items are accessed by index rather than by iteration."""
    if isinstance(examples, (list, tuple)) or not hasattr(examples, "__len__"):
        return False
    if not hasattr(examples, "__getitem__"):
        return False
    # Iterables are iterated, except sequences and datasets of Hugging Face. Map-style datasets of
    # torch are not iterable.
    is_sequence = isinstance(examples, Sequence) or hasattr(examples, "column_names")
    return is_sequence or not hasattr(examples, "__iter__")


def _reject_containers(examples: Any) -> None:
    """Raise an error for objects that contain examples, but are not supported themselves."""
    reason = remedy = ""
    if hasattr(examples, "collect") and hasattr(examples, "collect_schema"):
        reason, remedy = "it is a polars LazyFrame", "call collect() on it"
    elif hasattr(examples, "collate_fn") and hasattr(examples, "dataset"):
        reason, remedy = "it is a torch DataLoader of batches", "pass its dataset"
    if reason:
        raise DatasetError(reason, option="examples", remedy=remedy)


def _from_source(source: Source) -> Input:
    items = source.examples
    return Input(
        columns=source.columns,
        items=items,
        length=source.length,
        by_index=hasattr(items, "__getitem__") and hasattr(items, "__len__"),
        features=source.features,
        label=source.label,
        path=source.path,
        label_hint=source.label_hint,
    )


def _rows(columns: Mapping[str, Any]) -> int | None:
    for column in columns.values():
        return _rows(column) if isinstance(column, Mapping) else _length(column)
    return 0


def _length(items: Any) -> int | None:
    try:
        return len(items)
    except TypeError:
        return None


def _table(examples: Any) -> dict[str, Any] | None:
    """Return the columns of a pandas or polars frame, or an Arrow table, batch or stream."""
    if hasattr(examples, "read_all") and hasattr(examples, "schema"):  # a stream of batches
        examples = examples.read_all()
    if hasattr(examples, "schema") and hasattr(examples, "column"):  # pyarrow
        names = list(examples.schema.names)
    elif hasattr(examples, "columns") and hasattr(examples, "to_numpy"):  # pandas, polars
        names = list(examples.columns)
    else:
        return None
    if len(set(map(str, names))) != len(names):
        raise DatasetError(
            f"two columns of the table have the same name: {names}", option="examples"
        )
    take = getattr(examples, "column", None) or examples.__getitem__
    return {str(name): column_values(take(name)) for name in names}


def column_values(column: Any) -> Any:
    """Return a column of a table as an array, or as a list with None for missing values."""
    missing = getattr(column, "null_count", 0)  # a method in polars, an integer in Arrow
    if missing() if callable(missing) else missing:
        listed = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
        return _nested(listed)
    if str(column.dtype if hasattr(column, "dtype") else "").startswith("Struct"):  # polars
        return _nested(column.to_list())
    is_arrow = hasattr(column, "to_pylist")
    array = np.asarray(column.to_numpy(zero_copy_only=False) if is_arrow else column.to_numpy())
    if hasattr(column, "isna"):  # pandas, where missing values of plain dtypes are NaN
        nulls = np.asarray(column.isna())
        if nulls.any() and not isinstance(column.dtype, np.dtype):
            return [None if null else value for value, null in zip(column, nulls, strict=True)]
        if array.dtype == object:
            values = zip(array.tolist(), nulls.tolist(), strict=True)
            return _nested([None if null else value for value, null in values])
    return _nested(array.tolist()) if array.dtype == object else array


def _nested(values: list[Any]) -> Any:
    """Return nested columns for dicts that all have the same names."""
    if any(map(is_hugging_face_file, values)):
        return values
    if values and all(isinstance(value, dict) for value in values):
        names = values[0].keys()
        if all(value.keys() == names for value in values):
            return {name: _nested([value[name] for value in values]) for name in names}
    return values


def _from_tensorflow(dataset: Any) -> Input:
    """Return the input for a tf.data.Dataset."""
    cardinality = int(dataset.cardinality())  # -1 if it is infinite, -2 if it is unknown
    if cardinality == -1:
        raise DatasetError(
            "the tf.data dataset is infinite", option="examples", remedy="use take(), not repeat()"
        )
    length = cardinality if cardinality >= 0 else None
    items: Iterable[Any] = dataset.as_numpy_iterator()
    spec = str(dataset.element_spec)
    if "RaggedTensorSpec" in spec or "SparseTensorSpec" in spec:
        items = map(_from_composite, dataset)
    return Input(items=items, length=length)


def _from_composite(value: Any) -> Any:
    """Convert tensors of TensorFlow, including ragged and sparse ones, for encoding."""
    if isinstance(value, Mapping):
        return {name: _from_composite(part) for name, part in value.items()}
    if hasattr(value, "to_list") and hasattr(value, "row_splits"):
        return value.to_list()
    if hasattr(value, "dense_shape") and hasattr(value, "indices"):
        shape = tuple(value.dense_shape.numpy().tolist())
        return SparseArray(value.indices.numpy(), value.values.numpy(), shape)
    if isinstance(value, tuple):
        return tuple(map(_from_composite, value))
    return value.numpy() if hasattr(value, "numpy") else value


def _class_names(examples: Any) -> dict[str, tuple[str, ...]] | None:
    """Return the class names of a Hugging Face dataset, by feature."""
    features = getattr(examples, "features", None)
    if not isinstance(features, Mapping):
        return None
    named = {name: getattr(feature, "names", None) for name, feature in features.items()}
    return {name: tuple(names) for name, names in named.items() if names}


def _without_decoding(examples: Any) -> Any:
    """Return a Hugging Face dataset whose images and sounds are not decoded.

    A dataset with a format or a transform is returned unchanged: it defines the values.
    """
    features, formatted = getattr(examples, "features", None), getattr(examples, "format", None)
    if not isinstance(features, Mapping) or not hasattr(examples, "cast_column"):
        return examples
    if isinstance(formatted, Mapping) and formatted.get("type") not in (None, "python"):
        return examples
    for name, feature in features.items():
        is_file = getattr(feature, "_type", None) in ("Image", "Audio")
        if is_file and getattr(feature, "decode", False):
            examples = examples.cast_column(name, dataclasses.replace(feature, decode=False))
    return examples
