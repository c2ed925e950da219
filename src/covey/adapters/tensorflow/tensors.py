"""Tensors of columns, and the type of a batch: its arrays, and the tensors that they compose."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.loader import Loader
from covey.loader.batch import BatchFormat
from covey.plan.base import BatchKey
from covey.schema import RaggedArray, SparseArray, SparseBatch, StringArray

try:
    tf: Any = importlib.import_module("tensorflow")
except ImportError as error:
    raise ImportError(
        "covey.adapters.tensorflow requires TensorFlow; install it with "
        "`pip install 'covey[tensorflow]'`",
        name="tensorflow",
    ) from error

no_autograph: Any = tf.autograph.experimental.do_not_convert
"""Decorator of functions that build a graph, whose source must not be converted."""


def tensor(value: Any) -> Any:
    """Return the tensor of an array: ragged, sparse, or of strings, like the array.

    Raises:
        FeatureError: If TensorFlow has no such tensors.

    >>> tensor(np.arange(3)).dtype, tensor(RaggedArray.of([[1, 2], []])).shape
    (tf.int64, TensorShape([2, None]))
    """
    if tf.is_tensor(value):
        return value
    first, *others = parts_of(value)
    if isinstance(value, RaggedArray):
        return tf.RaggedTensor.from_nested_row_splits(first, others, validate=False)
    return tf.SparseTensor(first, *others) if others else tf.convert_to_tensor(first)


def spec_of(value: Any) -> Any:
    """Return the ``tf.TypeSpec`` of a column."""
    if type(value) is np.ndarray and value.dtype.kind in "biufc":
        return tf.TensorSpec(value.shape, value.dtype.newbyteorder("="))
    return tf.type_spec_from_value(tensor(value))


def parts_of(value: Any) -> list[NDArray[Any]]:
    """Return the arrays of a column, in the order of the components of its tensor."""
    if type(value) is np.ndarray and value.dtype.kind in "biufc":
        return [value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))]
    if isinstance(value, StringArray):  # TensorFlow stores strings as bytes
        return [replace(value, text=False).to_numpy()]
    if isinstance(value, RaggedArray):
        return _ragged_parts(value)
    if isinstance(value, (SparseBatch, SparseArray)):
        return _sparse_parts(value)
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return [each.numpy() for each in tf.nest.flatten(value, expand_composites=True)]
    array = np.asarray(value)
    if array.dtype.kind in "US":
        array = array.astype(object)
    has_strings = array.dtype == object and all(
        isinstance(item, (str, bytes)) for item in array.flat
    )
    if array.dtype.kind not in "biufc" and not has_strings:
        raise FeatureError(
            f"TensorFlow has no tensor for a {type(value).__name__} of {array.dtype}",
            remedy="convert it in batch_transform= or an augmenter",
        )
    return [array]


def _ragged_parts(value: RaggedArray) -> list[NDArray[Any]]:
    """Return the values of all rows, and the row splits of each level, outermost first."""
    splits: list[NDArray[Any]] = []
    inner: Any = value
    while isinstance(inner, RaggedArray):
        if inner.row_shapes is not None:
            raise FeatureError(
                "the shapes of rows differ in more than the first dimension, for which TensorFlow "
                "has no ragged tensor",
                remedy="pad them in batch_transform=",
            )
        # The rows of a slice begin anywhere in the values.
        splits.append(inner.row_splits - inner.row_splits[0])
        inner = inner.values[int(inner.row_splits[0]) : int(inner.row_splits[-1])]
    return [*parts_of(inner), *splits]


def _sparse_parts(value: SparseBatch | SparseArray) -> list[NDArray[Any]]:
    """Return the indices in row-major order, the values, and the shape."""
    if isinstance(value, SparseArray):
        indices, values, shape = value.indices, value.values, value.shape
    else:
        rows = np.repeat(np.arange(len(value)), value.values.row_lengths)
        indices = np.stack([rows, *(axis.values for axis in value.indices)], axis=-1)
        values, shape = value.values.values, (len(value), *value.shape)
    order = np.lexsort(indices.T[::-1])
    return [indices[order], values[order], np.array(shape, np.int64)]


@dataclass(frozen=True)
class BatchSpec:
    """The type of a batch.

    Args:
        spec: Nested ``tf.TypeSpec``.
        checks: Whether each batch is compared with it.
        lists_are_tuples: Whether a list is a tuple of arrays rather than a column of rows.
    """

    spec: Any
    checks: bool = False
    lists_are_tuples: bool = False

    @property
    def _components(self) -> list[Any]:
        """The types of the arrays of a batch."""
        return list(tf.nest.flatten(self.spec, expand_composites=True))

    @property
    def is_fixed(self) -> bool:
        """Whether all batches are dense tensors of known shapes."""
        leaves = tf.nest.flatten(self.spec)
        dense = all(isinstance(each, tf.TensorSpec) for each in leaves)
        return dense and all(each.shape.is_fully_defined() for each in leaves)

    @property
    def nbytes(self) -> int:
        """Size of a batch in bytes, if it is fixed."""
        return sum(each.shape.num_elements() * each.dtype.size for each in self._components)

    @property
    def dtypes(self) -> list[Any]:
        """Data types of the arrays of a batch."""
        return [each.dtype for each in self._components]

    def pack(self, batch: Any) -> list[NDArray[Any]]:
        """Return the arrays of a batch."""
        if not self.checks:
            return [part for value in tf.nest.flatten(batch) for part in parts_of(value)]
        tidy = _tidy(batch, self.lists_are_tuples)
        try:
            tf.nest.assert_same_structure(self.spec, tidy)
        except (TypeError, ValueError) as error:
            reason = str(error).rpartition("More specifically: ")[2].partition("\n")[0]
            raise FeatureError(f"the structure of a batch differs from others: {reason}") from None
        packed = []
        for spec, value in zip(tf.nest.flatten(self.spec), tf.nest.flatten(tidy), strict=True):
            found = spec_of(value)
            if not spec.is_compatible_with(found):
                raise FeatureError(
                    f"a batch has {_describe(found)}, but others have {_describe(spec)}",
                    remedy=f"{_REMEDY}, or pass element_spec= to to_tf",
                )
            packed += parts_of(value)
        return packed

    def unpack(self, parts: Sequence[Any], *, several: bool) -> Any:
        """Return the tensors of a batch, or of several batches of known shapes."""
        for part, component in zip(parts, self._components, strict=True):
            part.set_shape([None, *component.shape] if several else component.shape)
        return tf.nest.pack_sequence_as(self.spec, parts, expand_composites=True)


_REMEDY = "use pad=, or use image_size= for images, or give them one shape in batch_transform="


def find_spec(loader: Loader, spec: Any = None) -> BatchSpec:
    """Return the type of the batches of a loader.

    Args:
        loader: The loader. Its next batch is built if it has hooks.
        spec: Nested ``tf.TypeSpec`` (default: the type of these batches).
    """
    batch_format, plan = loader.format, loader.plan
    assert isinstance(batch_format, BatchFormat)
    lists_are_tuples = batch_format.returns_tuples
    if spec is not None:
        return BatchSpec(spec, True, lists_are_tuples)
    is_ragged = batch_format.has_images and batch_format.options.images.ragged
    if is_ragged and not batch_format.has_hooks:
        raise FeatureError(
            "tf.data has no lists of arrays",
            option="image_size",
            found="ragged",
            allowed="(height, width), or a hook that returns arrays",
        )
    start = plan.step_at(loader.epoch * plan.batches_per_epoch)
    lengths = {len(plan.batch(start + n)) for n in (0, max(1, plan.steps_per_epoch) - 1)}
    rows = lengths.pop() if len(lengths) == 1 else None
    if batch_format.has_hooks:
        step = loader.step if plan.steps_left(plan.batch_at(loader.step)) else start
        batches = [loader.batch(step)]
        if batch_format.pads_to_longest:  # more padding shows which dimensions depend on it
            batches.append(loader.copy(format=batch_format.with_extra_padding()).batch(step))
        relax = partial(_with_rows, None) if rows is None else lambda spec: spec
    else:
        batches = [batch_format.build(np.zeros(0, np.int64), None, BatchKey(0, 0), lambda: None)]
        relax = partial(_with_rows, rows)
    specs = (tf.nest.map_structure(spec_of, _tidy(each, lists_are_tuples)) for each in batches)
    spec = reduce(partial(tf.nest.map_structure, _common), specs)
    return BatchSpec(
        tf.nest.map_structure(relax, spec), not batch_format.is_native, lists_are_tuples
    )


def _common(left: Any, right: Any) -> Any:
    return left.most_specific_common_supertype([right])


def _with_rows(rows: int | None, spec: Any) -> Any:
    """Return the type of a column with another number of rows; of padded columns of no rows, too.

    Columns without rows are padded to the length 0 if the length is not fixed.
    """
    if not spec.shape.rank:
        return spec
    shape = [rows, *(each or None for each in spec.shape[1:])]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank)
    return type(spec)(shape, spec.dtype)


def _describe(spec: Any) -> str:
    kind = type(spec).__name__.removesuffix("Spec")
    return f"a {kind} of {spec.dtype.name} {tuple(spec.shape)}"


def _tidy(value: Any, lists_are_tuples: bool = False) -> Any:
    """Return a batch of dicts and tuples, with an array for each column."""
    if isinstance(value, list) and lists_are_tuples:
        return tuple(map(_tidy, value))
    if isinstance(value, Mapping):
        return {name: _tidy(each) for name, each in value.items()}
    if isinstance(value, tuple):
        inner = map(_tidy, value)
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    if not isinstance(value, list):
        return value
    if all(isinstance(each, (str, bytes)) for each in value):
        return np.array(value, object)
    shapes = {np.shape(each) for each in value}
    if len(shapes) > 1:
        raise FeatureError(
            f"the rows of a batch have different shapes, such as {sorted(shapes)[:2]}",
            remedy=_REMEDY,
        )
    return np.stack([np.asarray(each) for each in value])
