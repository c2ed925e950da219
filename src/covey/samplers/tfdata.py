"""Balanced batches of a ``tf.data.Dataset``, which is read into memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters.tensorflow import group_size
from covey.adapters.tensorflow.map_examples import map_examples
from covey.adapters.tensorflow.spec import BatchSpec
from covey.adapters.tensorflow.steps import from_steps
from covey.adapters.tensorflow.tensors import no_autograph, tf
from covey.errors import DatasetError, FeatureError
from covey.plan import BalancedPlan
from covey.plan.base import check_int
from covey.samplers.inputs import classes_of, parse_class_list

# Examples that are taken from a dataset at once.
_ROWS_AT_ONCE = 256


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
    """Batches of exactly P classes with exactly K examples of each, for ever.

    The examples are read once, and kept in memory. Every class comes once before any comes twice,
    and so do the examples of a class.

    Args:
        ds: A finite dataset of single examples: (x, y), or with more behind that.
        classes_per_batch: P.
        examples_per_class_per_batch: K.
        class_list: Draw from these classes only.
        total_examples_per_class: Use only the first so many examples of each class.
        augmenter: Takes an example, ``augmenter(x, y)``, and returns what takes its place. It is
            called as ``Dataset.map`` does, for every example that comes.
        load_fn: The same, called before: makes the real example of what the dataset has, an image
            of a path for instance.
        warmup: The first so many examples are not augmented. The augmenter must give the same types
            as it gets then.
        label_output: Which part of y tells the class, if y is a tuple or a dict.
        seed: Which batches.

    Raises:
        ValueError: If the dataset has no end, or none that is known; or if there are not so many
            classes in it.

    >>> from covey.samplers import TFDataSampler
    >>> ds = tf.data.Dataset.from_tensor_slices((np.arange(12), np.arange(12) % 4))
    >>> x, y = next(iter(TFDataSampler(ds, 3, 2, seed=1)))
    >>> x.numpy(), y.numpy()
    (array([1, 9, 4, 0, 6, 2]), array([1, 1, 0, 0, 2, 2]))
    """
    for name, function in (("augmenter", augmenter), ("load_fn", load_fn)):
        if function is not None and not callable(function):
            raise FeatureError(f"{name} is {function!r}; must be a function of (x, y)")
    warmup = check_int("warmup", warmup, -(2**62))
    wanted = _Wanted(parse_class_list(class_list), total_examples_per_class)
    stored = _Stored(ds, _label_of(ds, label_output), wanted)
    plan = BalancedPlan(
        classes_of(stored.labels),
        classes_per_batch,
        examples_per_class_per_batch,
        seed,
        class_list=wanted.classes,
    )
    size = classes_per_batch * examples_per_class_per_batch

    def numbers(step: int) -> tuple[Any, Any]:
        return np.arange(step * size, (step + 1) * size, dtype=np.int64), plan.batch(step)

    # TensorFlow has the examples, not a function of Python, which it would keep for ever.
    @no_autograph  # type: ignore[untyped-decorator]
    def gather(numbers: Any, ids: Any) -> Any:
        return (numbers, *(tf.gather(each, ids) for each in stored.tensors))

    form = BatchSpec((tf.TensorSpec([size], tf.int64),) * 2)
    steps = from_steps(numbers, plan, 0, form, group_size(0)).repeat()
    gathered = steps.map(gather, num_parallel_calls=tf.data.AUTOTUNE)

    def example(number: Any, *flat: Any) -> Any:
        loaded = stored.unpack(flat)
        if load_fn is not None:
            loaded = _call(load_fn, loaded)
        if augmenter is None:
            return loaded
        if warmup <= 0:
            return _call(augmenter, loaded)
        return tf.cond(number < warmup, lambda: loaded, lambda: _call(augmenter, loaded))

    if augmenter is None and load_fn is None:
        if stored.has_packed:
            raise FeatureError(
                "examples of the dataset have different shapes; have load_fn= give them one"
            )
        made = gathered.map(no_autograph(lambda numbers, *flat: stored.unpack(flat)))
    else:
        try:
            made = map_examples(gathered, example, size)
        except (TypeError, ValueError) as error:
            if warmup <= 0 or augmenter is None:
                raise
            raise FeatureError(
                "warmup is over 0, so the augmenter must return what it gets, of the same types: "
                f"{error}"
            ) from error
    return made.prefetch(tf.data.AUTOTUNE)


def _call(function: Callable[..., Any], example: Any) -> Any:
    """Call a function as ``Dataset.map`` does."""
    return function(*example) if isinstance(example, tuple) else function(example)


def _label_of(ds: Any, label_output: int | str | None) -> Callable[[Any], Any]:
    """What takes the class out of an example of a dataset, which is found fit for that."""
    if not isinstance(ds, tf.data.Dataset):
        raise DatasetError(f"ds is a {type(ds).__name__}; must be a tf.data.Dataset of (x, y)")
    cardinality = int(ds.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise DatasetError("the dataset has no end; leave out its repeat(), or take() some of it")
    if cardinality == tf.data.UNKNOWN_CARDINALITY:
        raise DatasetError(
            "the dataset does not say how many examples it has; tell it: "
            "ds.apply(tf.data.experimental.assert_cardinality(count))"
        )
    spec = ds.element_spec
    if not isinstance(spec, tuple) or len(spec) < 2:
        raise DatasetError(f"an example of the dataset is {spec}; must be (x, y), or have more")
    y = spec[1]
    if label_output is not None:
        try:
            y = y[label_output]
        except (KeyError, IndexError, TypeError):
            raise DatasetError(
                f"label_output is {label_output!r}, but y has no such part: it is {spec[1]}"
            ) from None
    if not isinstance(y, tf.TensorSpec):
        raise DatasetError(f"y is {y}; say which part of it tells the class, with label_output=")
    if y.shape.rank not in (None, 0):
        raise DatasetError(
            f"y has the shape {tuple(y.shape)}; must be one class; a dataset of batches must be "
            "unbatched"
        )

    def label(example: Any) -> Any:
        return example[1] if label_output is None else example[1][label_output]

    return label


class _Wanted:
    """Which examples are kept: those of some classes, and of each only so many."""

    def __init__(self, classes: list[Any] | None, each: int | None) -> None:
        self.classes = classes
        self._names = None if classes is None else set(map(_name, classes))
        self._each = 2**62 if each is None else check_int("total_examples_per_class", each, 1)
        self._counts: Counter[Any] = Counter()

    def choose(self, labels: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of the next examples are."""
        chosen = np.zeros(len(labels), bool)
        for number, label in enumerate(map(_name, labels.reshape(-1).tolist())):
            if (self._names is None or label in self._names) and self._counts[label] < self._each:
                self._counts[label] += 1
                chosen[number] = True
        return chosen


def _name(label: Any) -> Any:
    """A class, however it is written."""
    return label.decode(errors="surrogateescape") if isinstance(label, bytes) else label


class _Stored:
    """The examples of a dataset, in memory: an array for each part of them.

    Parts whose shapes differ are kept as strings, of which tensors are made again.

    Args:
        ds: The dataset.
        label: Takes the class out of an example.
        wanted: Which examples are kept.
    """

    def __init__(self, ds: Any, label: Callable[[Any], Any], wanted: _Wanted) -> None:
        self._spec = ds.element_spec
        self._specs = tf.nest.flatten(self._spec)
        if not all(isinstance(each, tf.TensorSpec) for each in self._specs):
            raise FeatureError(
                f"an example of the dataset is {self._spec}; must be tensors that are neither "
                "ragged nor sparse"
            )
        places = list(range(len(self._specs)))
        place = label(tf.nest.pack_sequence_as(self._spec, places))
        is_fixed = all(each.shape.is_fully_defined() for each in self._specs)
        columns = (_read_fixed if is_fixed else _read_any)(ds, place, wanted)
        self.labels: NDArray[Any] = columns[place]
        self._is_packed = [
            array.dtype.kind == "O" and spec.dtype != tf.string
            for array, spec in zip(columns, self._specs, strict=True)
        ]
        with tf.device("CPU:0"):
            self.tensors = [tf.constant(each) for each in columns]

    @property
    def has_packed(self) -> bool:
        """Whether there are parts that are kept as strings."""
        return any(self._is_packed)

    def unpack(self, flat: Iterable[Any]) -> Any:
        """An example, or a batch of them if nothing is kept as strings, in its own form."""
        parts = [
            tf.ensure_shape(tf.io.parse_tensor(part, spec.dtype), spec.shape) if packed else part
            for part, spec, packed in zip(flat, self._specs, self._is_packed, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._spec, parts)


def _read_fixed(ds: Any, place: int, wanted: _Wanted) -> list[NDArray[Any]]:
    """The columns of examples that all have known shapes."""
    count = int(ds.cardinality())
    kept = 0
    columns: list[NDArray[Any]] = []
    for batch in ds.batch(_ROWS_AT_ONCE).as_numpy_iterator():
        parts = tf.nest.flatten(batch)
        if not columns:  # memory that is not used costs nothing
            columns = [np.empty((count, *part.shape[1:]), part.dtype) for part in parts]
        chosen = wanted.choose(parts[place])
        end = kept + int(chosen.sum())
        for column, part in zip(columns, parts, strict=True):
            column[kept:end] = part[chosen]
        kept = end
    _check_any(kept)
    return [column[:kept] for column in columns]


def _read_any(ds: Any, place: int, wanted: _Wanted) -> list[NDArray[Any]]:
    """The columns of examples whose shapes may differ."""
    examples = []
    for example in ds.as_numpy_iterator():
        parts = [np.asarray(part) for part in tf.nest.flatten(example)]
        if wanted.choose(parts[place][np.newaxis])[0]:
            examples.append(parts)
    _check_any(len(examples))
    return [_column(parts) for parts in zip(*examples, strict=True)]


def _column(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len({part.shape for part in parts}) == 1:
        stacked = np.stack(parts)
        return stacked.astype(object) if stacked.dtype.kind == "S" else stacked
    packed = np.empty(len(parts), object)
    packed[:] = [tf.io.serialize_tensor(part).numpy() for part in parts]
    return packed


def _check_any(count: int) -> None:
    if count == 0:
        raise DatasetError("the dataset has no example, or none of the classes in class_list")
