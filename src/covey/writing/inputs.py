"""Input of a write: columns, or items one by one.

Tables, datasets and loaders are recognized by their attributes, never by their type: nothing is
imported that the caller did not import.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from covey.engines.ray import dataset_blocks
from covey.errors import CoveyError, DatasetError, FeatureError, SourceError
from covey.schema import ClassLabel, Features, SparseArray
from covey.schema.guess import is_hugging_face_file
from covey.schema.image_inputs import is_picture
from covey.shuffle.keys import Key
from covey.sources import Source
from covey.writing.options import WriteOptions

# Items.


def split_item(item: Any, options: WriteOptions) -> tuple[Mapping[str, Any], Key | None]:
    """Return the example and the key of an item.

    Args:
        item: A dict; a pair of a key and a dict; a tuple, if the options have names for its
            elements; or the error of a source, which is raised.
        options: Options of the write.

    Raises:
        CoveyError: If the item is not an example; ``example`` is not set.
    """
    key: Key | None = None
    if isinstance(item, CoveyError):
        raise item
    is_pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping)
    if is_pair and options.names is None:
        key, item = _check_key(item[0]), item[1]
    if not isinstance(item, Mapping):
        item = _name_elements(item, options.names)
    if options.key is not None:
        value = get_value(item, options.key)
        if value is None:
            raise FeatureError("the key is missing", feature=options.key)
        key = _check_key(value)
    return item, key


def _name_elements(item: Any, names: Sequence[str] | None) -> dict[str, Any]:
    kind = type(item).__name__
    if not isinstance(item, (tuple, list)):
        raise FeatureError(
            f"the item is of type {kind}; must be a dict of values, or a pair of a key and a dict"
        )
    if names is None:
        raise FeatureError(
            f"the item is a {kind} of {len(item)} elements",
            remedy="name the elements, as in names=('image', 'label')",
        )
    if len(item) != len(names):
        raise FeatureError(
            f"the item has {len(item)} elements, but there are {len(names)} names: "
            f"{', '.join(names)}"
        )
    return dict(zip(names, item, strict=True))


def get_value(example: Mapping[str, Any], name: str) -> Any:
    """Return the value of a name or path, ``a/b``; None if it does not exist."""
    if name in example:
        return example[name]
    value: Any = example
    for part in name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _check_key(key: Any) -> Key:
    """Return a key as a string, bytes or an integer of Python."""
    if hasattr(key, "item") and getattr(key, "shape", None) == ():
        key = key.item()  # a scalar of numpy or of a framework
    if isinstance(key, str) and not key.isascii():
        try:
            key.encode()
        except UnicodeError:
            raise FeatureError(
                f"the key {key!r} is not valid UTF-8", remedy="convert it to bytes"
            ) from None
    elif isinstance(key, (int, np.integer)):
        if not -(2**63) <= key < 2**63:
            raise FeatureError(f"the key {key} does not fit 64 bits; convert it to a string")
    elif not isinstance(key, (str, bytes)):
        raise FeatureError(
            f"the key {key!r} is of type {type(key).__name__}; must be a string, bytes or an "
            "integer"
        )
    return key  # type: ignore[no-any-return]


def copy_arrays(item: Any) -> Any:
    """Return an item with copies of its arrays, so that its source may reuse them."""
    match item:
        case np.ndarray() | bytearray():
            return item.copy()
        case dict():
            return {name: copy_arrays(value) for name, value in item.items()}
        case list():
            return [copy_arrays(value) for value in item]
        case tuple():
            return tuple(copy_arrays(value) for value in item)
    is_plain = isinstance(item, (str, bytes, int, float, CoveyError, type(None)))
    is_plain = is_plain or is_picture(item)
    return np.asarray(item).copy() if not is_plain and hasattr(item, "__array__") else item


def source_failed(example: int, error: Exception) -> SourceError:
    """Return the error for an exception of a source."""
    return SourceError(f"the source failed: {type(error).__name__}: {error}", example=example)


# Input.


class TableBlock(Protocol):
    """Rows of a table that a worker loads. Instances are picklable."""

    def load(self) -> Mapping[str, Any]:
        """Return the columns: arrays of numpy or Arrow, or series of pandas or polars."""
        ...


@dataclass(frozen=True)
class Input:
    """Examples as columns, or as items."""

    columns: Mapping[str, Any] | None = None
    """Columns, which are used in place of items."""
    items: Iterable[Any] | None = None
    """Dicts, (key, dict) pairs, tuples whose elements need names, or errors of a source."""
    length: int | None = None
    by_index: bool = False
    """Whether ``items[i]`` returns any item, so that several workers can fetch items."""
    features: Features | None = None
    """Features of the source, if it has any."""
    class_names: Mapping[str, tuple[str, ...]] | None = None
    """Class names of integer features of the source, by feature."""
    label: str | None = None
    """Label feature of the source."""
    path: str | None = None
    """Path of the source, for errors."""
    label_hint: str = ""
    """What to do if the source lacks a label, for the error."""
    adds_classes: bool = False
    """Whether the label is a string in ``features`` because several splits have other classes."""
    blocks: Callable[[], Iterator[tuple[TableBlock, int]]] | None = None
    """Function that yields tables that workers load, with the number of their rows; they are used
    in place of items."""
    sources: tuple[Input, ...] = ()
    """Inputs that follow each other, which are used in place of items."""
    number: int | None = None
    """Number of the input among several sources."""
    key_prefix: str = ""
    """Name of the source among several sources, which precedes its keys."""

    @property
    def parts(self) -> tuple[Input, ...]:
        """The inputs that follow each other; this one, if there is only one."""
        return self.sources or (self,)

    @property
    def first(self) -> int:
        """Position of the first example."""
        return (self.number or 0) << SOURCE_BITS

    def locate(self, position: int) -> tuple[str | None, int]:
        """Return the path of the source of an example, and its position in that source."""
        found = next((each for each in self.sources if each.first <= position < each.end), self)
        return found.path, position - found.first

    @property
    def end(self) -> int:
        """Position after all examples that the input can have."""
        return self.first + (1 << SOURCE_BITS)

    @property
    def is_repeatable(self) -> bool:
        """Whether the items can be read more than once."""
        items: Any = self.items
        if items is None or hasattr(items, "__next__"):
            return False
        if self.by_index or hasattr(items, "read_range") or isinstance(items, (list, tuple)):
            return True
        try:
            first, second = (items() if callable(items) else iter(items) for _ in range(2))
        except CoveyError:
            raise
        except Exception as error:
            raise source_failed(0, error) from error
        return first is not second or isinstance(first, (list, tuple))

    @property
    def can_be_divided(self) -> bool:
        """Whether several readers can each read a range of the examples."""
        is_list = isinstance(self.items, (list, tuple))
        has_ranges = self.by_index or hasattr(self.items, "read_range")
        return self.length is not None and (is_list or has_ranges)

    def read(self, begin: int = 0, end: int | None = None) -> Iterable[Any]:
        """Return the items of a range; all items by default."""
        items: Any = self.items
        if items is None:
            found: Iterable[Any] = ()
        elif begin == 0 and end in (None, self.length) and not self.by_index:
            found = items() if callable(items) else items
        elif isinstance(items, (list, tuple)):
            found = items[begin:end]
        elif hasattr(items, "read_range"):
            found = items.read_range(begin, self.length if end is None else end)
        elif self.by_index:
            found = fetch(items, range(begin, (self.length or 0) if end is None else end))
        else:
            found = itertools.islice(items() if callable(items) else items, begin, end)
        return found if self.number is None else self._keyed(found, begin)

    def _keyed(self, items: Iterable[Any], begin: int) -> Iterator[Any]:
        """Yield items with keys that are unique among several sources."""
        prefix = self.key_prefix
        for position, item in enumerate(items, begin):
            if type(item) is tuple and len(item) == 2 and isinstance(item[1], (dict, Mapping)):
                key, example = item
                if isinstance(key, bytes):
                    key = key.decode(errors="backslashreplace")
                yield (f"{prefix}:{key}", example) if prefix else item
            elif isinstance(item, CoveyError):
                yield item
            else:
                yield f"{self.number}:{position}", item


SOURCE_BITS = 40
"""Bits of a position in one of several sources; the number of the source precedes them."""


def fetch(source: Any, indices: range) -> Iterator[Any]:
    """Yield items by index, and an error in place of each that cannot be fetched."""
    for index in indices:
        try:
            item = source[index]
        except CoveyError as error:
            item = error
        except Exception as error:
            item = source_failed(index, error)
        yield item


def normalize_input(examples: Any) -> Input:
    """Return the input for examples of any supported type."""
    if isinstance(examples, Source):
        return _from_source(examples)
    if callable(examples) and not hasattr(examples, "__iter__"):
        return Input(items=examples, path=getattr(examples, "__name__", None))
    if hasattr(examples, "iter_internal_ref_bundles"):  # a Ray Dataset
        return Input(blocks=partial(dataset_blocks, examples))
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


def name_classes(features: Features, names: Mapping[str, tuple[str, ...]] | None) -> Features:
    """Return features in which integers with class names are class labels."""
    known = {
        name: ClassLabel(names=classes)
        for name, classes in (names or {}).items()
        if name in features
    }
    return features.replace(known) if known else features
