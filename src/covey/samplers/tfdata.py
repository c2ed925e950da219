"""`TFDataSampler`: balanced batches of a ``tf.data.Dataset`` in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from covey.adapters.tensorflow import call_python, map_examples, no_autograph, tf
from covey.errors import DatasetError, FeatureError, check, shorten
from covey.plan import BalancedPlan
from covey.plan.base import check_int
from covey.samplers.inputs import check_function, parse_class_list, parse_classes

# Batches that are drawn by one call from TensorFlow, which costs more than they do.
_GROUP = 8


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
        ds: A finite dataset of single examples, each with tensors of the same shapes: (x, y), or a
            longer tuple.
        classes_per_batch: The number of classes in a batch, P.
        examples_per_class_per_batch: The number of examples of each class, K.
        class_list: The classes to draw from; by default all. To store fewer examples, call
            ``ds.filter``.
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
    stored = _read(ds, label_output)
    plan = BalancedPlan(
        parse_classes(_label_of(stored, label_output).numpy()),
        classes_per_batch,
        examples_per_class_per_batch,
        seed,
        class_list=parse_class_list(class_list),
        total_examples_per_class=total_examples_per_class,
    )
    size = classes_per_batch * examples_per_class_per_batch

    def draw(step: Any) -> Any:
        return np.stack([plan.batch(int(step) + each) for each in range(_GROUP)])

    @no_autograph  # type: ignore[untyped-decorator]
    def draw_group(step: Any) -> Any:
        ids = call_python(draw, [step], tf.int64)
        positions = tf.range(step * size, (step + _GROUP) * size)
        return tf.reshape(positions, [_GROUP, size]), tf.ensure_shape(ids, [_GROUP, size])

    # The graph holds the tensors: TensorFlow never releases a Python function.
    @no_autograph  # type: ignore[untyped-decorator]
    def gather(positions: Any, ids: Any) -> Any:
        return positions, tf.nest.map_structure(lambda each: tf.gather(each, ids), stored)

    def example(position: Any, loaded: Any) -> Any:
        if load_fn is not None:
            loaded = _call(load_fn, loaded)
        if augmenter is None:
            return loaded
        if warmup <= 0:
            return _call(augmenter, loaded)
        return tf.cond(position < warmup, lambda: loaded, lambda: _call(augmenter, loaded))

    drawn = tf.data.Dataset.range(0, 2**62, _GROUP).map(draw_group).unbatch().repeat()
    gathered = drawn.map(gather, num_parallel_calls=tf.data.AUTOTUNE)
    if augmenter is None and load_fn is None:
        made = gathered.map(no_autograph(lambda _, batch: batch))
    else:
        made = map_examples(gathered, example, size)
    return made.prefetch(tf.data.AUTOTUNE)


def _call(function: Callable[..., Any], example: Any) -> Any:
    """Call a function as ``Dataset.map`` does."""
    return function(*example) if isinstance(example, tuple) else function(example)


def _label_of(example: Any, label_output: int | str | None) -> Any:
    """Return the label of an example, or of all examples."""
    y = example[1]
    try:
        return y if label_output is None else y[label_output]
    except (KeyError, IndexError, TypeError):
        allowed = f"the index or the key of a part of y, which is {y}"
        check("label_output", label_output, False, allowed)


def _read(ds: Any, label_output: int | str | None) -> Any:
    """Return the examples of a dataset: its structure, with one tensor for each component."""
    check("ds", ds, isinstance(ds, tf.data.Dataset), "a tf.data.Dataset of (x, y)")
    count, spec = int(ds.cardinality()), ds.element_spec
    if count <= 0:
        raise DatasetError(
            "the dataset has no examples" if count == 0 else "the dataset has no known size",
            remedy="use take(), or tf.data.experimental.assert_cardinality(count)",
        )
    if not isinstance(spec, tuple) or len(spec) < 2:
        raise DatasetError(
            f"an example of the dataset is {spec}; must be (x, y), or a longer tuple"
        )
    y = _label_of(spec, label_output)
    if not isinstance(y, tf.TensorSpec) or y.shape.rank not in (None, 0):
        raise DatasetError(
            f"y is {y}; must be a scalar",
            remedy="select the label with label_output=, or call ds.unbatch()",
        )
    if not all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(spec)):
        raise FeatureError(
            f"an example of the dataset is {spec}; must be tensors that are neither ragged nor "
            "sparse"
        )
    try:
        return ds.batch(count).get_single_element()
    except tf.errors.InvalidArgumentError as error:
        raise FeatureError(
            f"the examples of the dataset cannot be stored together: {shorten(error.message, 300)}",
            remedy="give them one shape with ds.map, or store paths and pass load_fn=",
        ) from error
