"""Items of a source, one at a time: dicts, pairs of a key and a dict, tuples, or errors.

What examples may come as, brought into one of two forms: columns, or items one by one.

Tables, datasets and loaders are known by what they can do, never by their type: nothing is imported
that the caller did not import.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from covey.errors import CoveyError, DatasetError, FeatureError, SourceError
from covey.schema import ClassLabel, Features, SparseArray
from covey.shuffle.keys import Key
from covey.sources import Source
from covey.urls import shown

OnError = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class Rules:
    """How items become examples, and examples records. Goes to other processes."""

    features: Features | None = None
    """As declared; None to infer them."""
    otherwise: Features | None = None
    """Tried if those do not fit: the same, with a label whose classes may be new as a string."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] | None = None
    """What the parts of tuples are called."""
    key: str | None = None
    """The feature that is the key."""
    label: str | None = None
    """The feature that every example must have: its class."""
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise DatasetError(option="on_error", found=self.on_error, allowed="'raise' or 'skip'")
        for option, value in (("key", self.key), ("label", self.label)):
            if value is not None and not isinstance(value, str):
                raise DatasetError(f"{option} is {value!r}; must be the name of a feature")
        names = self.names or ()
        if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise DatasetError(f"names are {names}; must be strings, each another")

    @property
    def infers(self) -> bool:
        """Whether the features are to be found out."""
        return self.features is None


def take_item(item: Any, rules: Rules) -> tuple[Mapping[str, Any], Key | None]:
    """The example and the key, if it has one, of an item.

    Raises:
        CoveyError: If it is none; the message does not say which.
    """
    key: Key | None = None
    if isinstance(item, CoveyError):
        raise item
    if rules.names is None and isinstance(item, tuple) and _is_pair(item):
        key, item = _plain_key(item[0]), item[1]
    if not isinstance(item, Mapping):
        item = _name_parts(item, rules.names)
    if rules.key is not None:
        key = _find_key(item, rules.key)
    return item, key


def _is_pair(item: tuple[Any, ...]) -> bool:
    return len(item) == 2 and isinstance(item[1], Mapping)


def _name_parts(item: Any, names: tuple[str, ...] | None) -> dict[str, Any]:
    if not isinstance(item, (tuple, list)):
        raise FeatureError(
            f"it is of type {type(item).__name__}; must be a dict of values, or a pair of a key "
            "and such a dict"
        )
    if names is None:
        raise FeatureError(
            f"it is a {type(item).__name__} of {len(item)} parts; say what they are called, as in "
            "names=('image', 'label')"
        )
    if len(item) != len(names):
        raise FeatureError(
            f"it has {len(item)} parts, but there are {len(names)} names: {', '.join(names)}"
        )
    return dict(zip(names, item, strict=True))


def has_value(example: Mapping[str, Any], name: str) -> bool:
    """Whether an example has a value, and not None, under a name or a path, ``a/b``."""
    return _find(example, name) is not None


def _find(example: Mapping[str, Any], name: str) -> Any:
    if name in example:
        return example[name]
    found: Any = example
    for part in name.split("/"):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def _find_key(example: Mapping[str, Any], name: str) -> Key:
    key = _find(example, name)
    if key is None:
        raise FeatureError(f"it has no {name!r}, which is to be its key")
    return _plain_key(key)


def _plain_key(key: Any) -> Key:
    """A key as Python has it, if it is one."""
    if hasattr(key, "item") and getattr(key, "shape", None) == ():
        key = key.item()  # a scalar of numpy or of a framework
    if isinstance(key, str) and not key.isascii():
        try:
            key.encode()
        except UnicodeError:
            raise FeatureError(f"its key {key!r} is not a valid UTF-8; make it bytes") from None
    elif isinstance(key, (int, np.integer)):
        if not -(2**63) <= key < 2**63:
            raise FeatureError(f"its key {key} does not fit 64 bits; make it a string")
    elif not isinstance(key, (str, bytes)):
        raise FeatureError(
            f"its key {key!r} is of type {type(key).__name__}; must be a string, bytes or a whole "
            "number"
        )
    return key  # type: ignore[no-any-return]


def own(item: Any) -> Any:
    """An item with arrays of its own, which stays as it is when its source goes on."""
    match item:
        case np.ndarray() | bytearray():
            return item.copy()
        case dict():
            return {name: own(value) for name, value in item.items()}
        case list():
            return [own(value) for value in item]
        case tuple():
            return tuple(own(value) for value in item)
    is_plain = isinstance(item, (str, bytes, int, float, CoveyError, type(None)))
    return np.asarray(item).copy() if not is_plain and hasattr(item, "__array__") else item


def source_failed(number: int, error: Exception) -> SourceError:
    """What to say if a source raised an error of its own."""
    return SourceError(f"example {number}: the source failed: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Input:
    """Examples, by column or by item."""

    columns: Mapping[str, Any] | None = None
    items: Iterable[Any] | None = None
    """Dicts, (key, dict) pairs, tuples whose parts need names, or errors of a source."""
    length: int | None = None
    by_number: bool = False
    """Whether ``items[i]`` gives any item, so that several workers can fetch them."""
    features: Features | None = None
    """If the source knows them."""
    class_names: Mapping[str, tuple[str, ...]] | None = None
    """The names of classes that are given as integers, by feature, if the source knows them."""
    label: str | None = None


def normalize_input(examples: Any) -> Input:
    """Find out what examples are."""
    if isinstance(examples, Source):
        return _from_source(examples)
    if isinstance(examples, (str, bytes, os.PathLike)):
        raise DatasetError(
            f"examples is the path {shown(os.fsdecode(examples))!r}; open it first: "
            "covey.sources.open_source(path) reads directories of images, CSV, JSON, Parquet, NPZ and TFRecords"
        )
    _refuse_containers(examples)
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
    if _is_by_number(examples):
        return Input(items=examples, length=len(examples), by_number=True, class_names=names)
    if hasattr(examples, "__iter__") or hasattr(examples, "__next__"):
        return Input(items=examples, length=_length(examples), class_names=names)
    raise DatasetError(
        f"examples is of type {type(examples).__name__}; must be an iterable of dicts, a dict of "
        "columns, a table, a tf.data, torch or Hugging Face dataset, or a covey Source"
    )


def _is_by_number(examples: Any) -> bool:
    """Whether items are had by their number, and not only one after another."""
    if isinstance(examples, (list, tuple)) or not hasattr(examples, "__len__"):
        return False
    if not hasattr(examples, "__getitem__"):
        return False
    # What can be iterated knows best how, but for sequences, and Hugging Face's datasets; torch's
    # datasets that go by number cannot.
    is_sequence = isinstance(examples, Sequence) or hasattr(examples, "column_names")
    return is_sequence or not hasattr(examples, "__iter__")


def _refuse_containers(examples: Any) -> None:
    """Tell those who give something around examples what to give instead."""
    if isinstance(examples, Mapping) and any(hasattr(v, "column_names") for v in examples.values()):
        raise DatasetError(
            f"examples are several splits, {', '.join(map(str, examples))}; write one after the "
            f"other, as in examples[{next(iter(examples))!r}]"
        )
    if hasattr(examples, "collect") and hasattr(examples, "collect_schema"):
        raise DatasetError("examples are a polars LazyFrame; call collect() on it first")
    if hasattr(examples, "collate_fn") and hasattr(examples, "dataset"):
        raise DatasetError(
            "examples are a torch DataLoader, which gives batches; give its dataset instead"
        )


def _from_source(source: Source) -> Input:
    columns = getattr(source, "columns", None)
    if columns is not None:
        return Input(
            columns=columns, length=source.length, features=source.features, label=source.label
        )
    items = source.examples
    return Input(
        items=items,
        length=source.length,
        by_number=hasattr(items, "__getitem__") and hasattr(items, "__len__"),
        features=source.features,
        label=source.label,
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
    """The columns of a pandas or polars frame, or of an Arrow table, batch or stream."""
    if hasattr(examples, "read_all") and hasattr(examples, "schema"):  # a stream of batches
        examples = examples.read_all()
    if hasattr(examples, "schema") and hasattr(examples, "column"):  # pyarrow
        names = list(examples.schema.names)
    elif hasattr(examples, "columns") and hasattr(examples, "to_numpy"):  # pandas, polars
        names = list(examples.columns)
    else:
        return None
    if len(set(map(str, names))) != len(names):
        raise DatasetError(f"two columns of the table have the same name: {names}")
    take = getattr(examples, "column", None) or examples.__getitem__
    return {str(name): _values(take(name)) for name in names}


def _values(column: Any) -> Any:
    """A column of a table: an array of numbers, or Python's values, None where there is none."""
    missing = getattr(column, "null_count", 0)  # a method of polars, a number of Arrow
    if missing() if callable(missing) else missing:
        listed = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
        return _nested(listed)
    if str(column.dtype if hasattr(column, "dtype") else "").startswith("Struct"):  # polars
        return _nested(column.to_list())
    is_arrow = hasattr(column, "to_pylist")
    array = np.asarray(column.to_numpy(zero_copy_only=False) if is_arrow else column.to_numpy())
    if hasattr(column, "isna"):  # pandas, whose plain numbers have nan where they are missing
        nulls = np.asarray(column.isna())
        if nulls.any() and not isinstance(column.dtype, np.dtype):
            return [None if null else value for value, null in zip(column, nulls, strict=True)]
        if array.dtype == object:
            values = zip(array.tolist(), nulls.tolist(), strict=True)
            return _nested([None if null else value for value, null in values])
    return _nested(array.tolist()) if array.dtype == object else array


def _nested(values: list[Any]) -> Any:
    """Dicts of the same names become columns of their own."""
    if values and all(isinstance(value, dict) for value in values):
        names = values[0].keys()
        if all(value.keys() == names for value in values):
            return {name: _nested([value[name] for value in values]) for name in names}
    return values


def _from_tensorflow(dataset: Any) -> Input:
    """A tf.data.Dataset."""
    try:
        length: int | None = len(dataset)
    except TypeError as error:
        if "infinite" in str(error):
            raise DatasetError(
                "the tf.data dataset repeats without end; end it with take(), or leave out repeat()"
            ) from None
        length = None
    items: Iterable[Any] = dataset.as_numpy_iterator()
    spec = str(dataset.element_spec)
    if "RaggedTensorSpec" in spec or "SparseTensorSpec" in spec:
        items = map(_from_composite, dataset)
    return Input(items=items, length=length)


def _from_composite(value: Any) -> Any:
    """Tensors of TensorFlow, ragged and sparse ones among them, as features take them."""
    if isinstance(value, Mapping):
        return {name: _from_composite(each) for name, each in value.items()}
    if hasattr(value, "to_list") and hasattr(value, "row_splits"):
        return value.to_list()
    if hasattr(value, "dense_shape") and hasattr(value, "indices"):
        shape = tuple(value.dense_shape.numpy().tolist())
        return SparseArray(value.indices.numpy(), value.values.numpy(), shape)
    if isinstance(value, tuple):
        return tuple(map(_from_composite, value))
    return value.numpy() if hasattr(value, "numpy") else value


def _class_names(examples: Any) -> dict[str, tuple[str, ...]] | None:
    """The class names that a Hugging Face dataset knows."""
    features = getattr(examples, "features", None)
    if not isinstance(features, Mapping):
        return None
    named = {name: getattr(feature, "names", None) for name, feature in features.items()}
    return {name: tuple(names) for name, names in named.items() if names}


def name_classes(features: Features, names: Mapping[str, tuple[str, ...]] | None) -> Features:
    """Make integers whose classes have names, as their source says, class labels."""
    known = {
        name: ClassLabel(names=classes)
        for name, classes in (names or {}).items()
        if name in features
    }
    return features.replace(known) if known else features
