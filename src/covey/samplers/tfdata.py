"""`TFDataSampler`: balanced batches of a ``tf.data.Dataset`` in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters.tensorflow import (
    BatchSpec,
    group_size,
    make_dataset,
    map_examples,
    no_autograph,
    tf,
)
from covey.errors import DatasetError, FeatureError
from covey.loader import Loader, LoadOptions
from covey.plan import BalancedPlan
from covey.plan.base import BatchKey, check_int
from covey.samplers.inputs import check_function, parse_class_list, parse_classes

# Examples that are read from a dataset at a time.
_CHUNK_ROWS = 256


def TFDataSampler(  # noqa: N802 - as the original is called
    ds: Any,
    classes_per_batch: int = 2,
    examples_per_class_per_batch: int = 2,
    class_list: Iterable[Any] | None = None,
    total_examples_per_class: int | None = None,
    augmenter: Callable[..., Any] | None = None,
    load_fn: Callable[..., Any] | None = None,
    warmup: int = 0,
    label_output: int | str | None = None,
    *,
    seed: int = 0,
) -> Any:
    """Return an infinite dataset of batches of exactly P classes with exactly K examples of each.

    The examples are read once and stored in memory. Every class is drawn once before any is drawn
    twice, and so are the examples of a class.

    Args:
        ds: A finite dataset of single examples: (x, y), or a longer tuple.
        classes_per_batch: The number of classes in a batch, P.
        examples_per_class_per_batch: The number of examples of each class, K.
        class_list: The classes to draw from; by default all.
        total_examples_per_class: The maximum number of examples to use of each class, the first
            ones of the dataset.
        augmenter: A function ``augmenter(x, y)`` that returns the augmented example. It is called
            for every example that is drawn, as by ``Dataset.map``.
        load_fn: A function ``load_fn(x, y)`` that is called before the augmenter, to load an image
            from a path for example.
        warmup: The number of examples at the start that are not augmented. If it is positive, the
            augmenter must return the types of its arguments.
        label_output: The index or key of the label, if y is a tuple or a dict.
        seed: The seed of the batches.

    Raises:
        ValueError: If the dataset is infinite or of unknown size, or has fewer classes than a
            batch.

    >>> from covey.samplers import TFDataSampler
    >>> ds = tf.data.Dataset.from_tensor_slices((np.arange(12), np.arange(12) % 4))
    >>> x, y = next(iter(TFDataSampler(ds, 3, 2, seed=1)))
    >>> x.numpy(), y.numpy()
    (array([1, 9, 4, 0, 6, 2]), array([1, 1, 0, 0, 2, 2]))
    """
    check_function("augmenter", augmenter, "(x, y)")
    check_function("load_fn", load_fn, "(x, y)")
    warmup = check_int("warmup", warmup, -(2**62))
    chosen = _ExampleFilter(parse_class_list(class_list), total_examples_per_class)
    stored = _StoredExamples(ds, _label_getter(ds, label_output), chosen)
    plan = BalancedPlan(
        parse_classes(stored.labels),
        classes_per_batch,
        examples_per_class_per_batch,
        seed,
        class_list=chosen.classes,
    )
    size = classes_per_batch * examples_per_class_per_batch

    # The graph holds the tensors: TensorFlow never releases a Python function.
    @no_autograph  # type: ignore[untyped-decorator]
    def gather(positions: Any, ids: Any) -> Any:
        return (positions, *(tf.gather(each, ids) for each in stored.tensors))

    form = BatchSpec((tf.TensorSpec([size], tf.int64),) * 2)
    loader = Loader(_DrawnIds(), lambda: plan, LoadOptions(rank=0, threads=0))
    steps = make_dataset(loader, form, group_size(0)).repeat()
    gathered = steps.map(gather, num_parallel_calls=tf.data.AUTOTUNE)

    def example(position: Any, *flat: Any) -> Any:
        loaded = stored.unpack(flat)
        if load_fn is not None:
            loaded = _call(load_fn, loaded)
        if augmenter is None:
            return loaded
        if warmup <= 0:
            return _call(augmenter, loaded)
        return tf.cond(position < warmup, lambda: loaded, lambda: _call(augmenter, loaded))

    if augmenter is None and load_fn is None:
        if stored.has_packed:
            raise FeatureError(
                "the examples of the dataset have different shapes",
                remedy="pass load_fn= that returns examples of one shape",
            )
        made = gathered.map(no_autograph(lambda positions, *flat: stored.unpack(flat)))
    else:
        try:
            made = map_examples(gathered, example, size)
        except (TypeError, ValueError) as error:
            if warmup <= 0 or augmenter is None:
                raise
            raise FeatureError(
                "the augmenter must return the types of its arguments if warmup is positive: "
                f"{error}"
            ) from error
    return made.prefetch(tf.data.AUTOTUNE)


class _DrawnIds:
    """Batches of positions in all batches, and of ids of examples."""

    is_native = False

    def build(self, ids: Any, classes: Any, key: BatchKey, check_cancelled: Any) -> tuple[Any, Any]:
        begin = key.step * len(ids)
        return np.arange(begin, begin + len(ids), dtype=np.int64), np.asarray(ids)


def _call(function: Callable[..., Any], example: Any) -> Any:
    """Call a function as ``Dataset.map`` does."""
    return function(*example) if isinstance(example, tuple) else function(example)


def _label_getter(ds: Any, label_output: int | str | None) -> Callable[[Any], Any]:
    """Return the function that gets the label of an example, and check the dataset."""
    if not isinstance(ds, tf.data.Dataset):
        raise DatasetError(
            f"it is a {type(ds).__name__}; must be a tf.data.Dataset of (x, y)", option="ds"
        )
    cardinality = int(ds.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise DatasetError("the dataset is infinite", remedy="remove its repeat(), or use take()")
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        raise DatasetError(
            "the number of examples in the dataset is unknown",
            remedy="set it with ds.apply(tf.data.experimental.assert_cardinality(count))",
        )
    spec = ds.element_spec
    if not isinstance(spec, tuple) or len(spec) < 2:
        raise DatasetError(
            f"an example of the dataset is {spec}; must be (x, y), or a longer tuple"
        )
    y = spec[1]
    if label_output is not None:
        try:
            y = y[label_output]
        except (KeyError, IndexError, TypeError):
            raise DatasetError(
                f"y is {spec[1]}, which has no such part",
                option="label_output",
                found=label_output,
            ) from None
    if not isinstance(y, tf.TensorSpec):
        raise DatasetError(f"y is {y}", remedy="select the label with label_output=")
    if y.shape.rank not in (None, 0):
        raise DatasetError(
            f"y has shape {tuple(y.shape)}; must be a scalar",
            remedy="a dataset of batches must be unbatched",
        )

    def label(example: Any) -> Any:
        return example[1] if label_output is None else example[1][label_output]

    return label


class _ExampleFilter:
    """Selection of the examples to store: by class, and up to a number per class."""

    def __init__(self, classes: list[Any] | None, each: int | None) -> None:
        self.classes = classes
        self._names = None if classes is None else set(map(_name, classes))
        self._each = 2**62 if each is None else check_int("total_examples_per_class", each, 1)
        self._counts: Counter[Any] = Counter()

    def choose(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of the next examples are stored."""
        rows = np.zeros(len(labels), bool)
        for number, label in enumerate(map(_name, labels.reshape(-1).tolist())):
            if (self._names is None or label in self._names) and self._counts[label] < self._each:
                self._counts[label] += 1
                rows[number] = True
        return rows


def _name(label: Any) -> Any:
    """Return a class as a hashable value; strings and bytes are equal."""
    return label.decode(errors="surrogateescape") if isinstance(label, bytes) else label


class _StoredExamples:
    """The examples of a dataset in memory: one array per component.

    Components with varying shapes are stored as serialized tensors.

    Args:
        ds: The dataset.
        label: A function that gets the label of an example.
        chosen: The selection of the examples to store.
    """

    def __init__(self, ds: Any, label: Callable[[Any], Any], chosen: _ExampleFilter) -> None:
        self._spec = ds.element_spec
        self._specs = tf.nest.flatten(self._spec)
        if not all(isinstance(each, tf.TensorSpec) for each in self._specs):
            raise FeatureError(
                f"an example of the dataset is {self._spec}; must be tensors that are neither "
                "ragged nor sparse"
            )
        count = len(self._specs)
        position = label(tf.nest.pack_sequence_as(self._spec, list(range(count))))
        self._is_packed = [
            each.shape.rank != 0 and not each.shape.is_fully_defined() and number != position
            for number, each in enumerate(self._specs)
        ]
        columns = _read(ds.map(self._pack) if self.has_packed else ds, position, chosen)
        for number in np.flatnonzero(self._is_packed):
            arrays = [
                tf.io.parse_tensor(each, self._specs[number].dtype) for each in columns[number]
            ]
            if len({tuple(each.shape) for each in arrays}) == 1:
                columns[number], self._is_packed[number] = np.stack(arrays), False
        self.labels: NDArray[Any] = columns[position]
        with tf.device("CPU:0"):
            self.tensors = [tf.constant(each) for each in columns]

    @property
    def has_packed(self) -> bool:
        """Whether there are components with varying shapes."""
        return any(self._is_packed)

    def _pack(self, *example: Any) -> Any:
        parts = zip(tf.nest.flatten(example), self._is_packed, strict=True)
        return tuple(tf.io.serialize_tensor(part) if packed else part for part, packed in parts)

    def unpack(self, flat: Iterable[Any]) -> Any:
        """Return an example, or a batch without packed components, as the dataset structures it."""
        parts = [
            tf.ensure_shape(tf.io.parse_tensor(part, spec.dtype), spec.shape) if packed else part
            for part, spec, packed in zip(flat, self._specs, self._is_packed, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._spec, parts)


def _read(ds: Any, label: int, chosen: _ExampleFilter) -> list[NDArray[Any]]:
    """Return the columns of the chosen examples; ``label`` is the label's column."""
    count, kept = int(ds.cardinality()), 0
    columns: list[NDArray[Any]] = []
    for batch in ds.batch(_CHUNK_ROWS).as_numpy_iterator():
        parts = tf.nest.flatten(batch)
        if not columns:  # pages that are never written use no memory
            columns = [np.empty((count, *part.shape[1:]), part.dtype) for part in parts]
        rows = chosen.choose(parts[label])
        end = kept + int(rows.sum())
        for column, part in zip(columns, parts, strict=True):
            column[kept:end] = part[rows]
        kept = end
    if kept == 0:
        raise DatasetError("the dataset has no examples of the classes in class_list")
    return [column[:kept] for column in columns]
