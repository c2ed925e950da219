"""A function of one example, applied to each example of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covey.adapters.tensorflow.tensors import no_autograph, tf

# Copies of a function that a graph has side by side: more are faster, and take longer to build.
_SIDE_BY_SIDE = 16


def map_examples(
    dataset: Any, function: Callable[..., Any], rows: int, *, parallelism: int = -1
) -> Any:
    """What ``dataset.unbatch().map(function).batch(rows)`` is, several times as fast.

    What costs most there is that each example is returned by itself. Here a batch is, and its
    graph has the function: several copies side by side, if these cannot know of each other, or else
    in a loop, one example after the other.

    Args:
        dataset: Of batches: tensors with so many rows each.
        function: As for ``Dataset.map``, of one example. It may return any structure.
        rows: How many examples a batch has.
        parallelism: How many batches are worked on at once; -1 lets TensorFlow decide.
    """
    one = dataset.unbatch().map(function, num_parallel_calls=parallelism)
    spec = one.element_spec
    arguments = tf.nest.map_structure(_of_one, dataset.element_spec)
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    traced = _trace(function, arguments, spec)
    if traced is None:
        return one.batch(rows, drop_remainder=True)
    size = _group_size(rows) if _is_pure(traced) else 1

    def side_by_side(batch: list[Any]) -> list[Any]:
        columns = [tf.unstack(each, size) for each in batch]
        examples = (tf.nest.pack_sequence_as(arguments, row) for row in zip(*columns, strict=True))
        results = [tf.nest.flatten(traced(*example)) for example in examples]
        return [tf.stack(each) for each in zip(*results, strict=True)]

    @no_autograph  # type: ignore[untyped-decorator]
    def of_batch(*batch: Any) -> Any:
        flat = tf.nest.flatten(batch)
        if size == rows:
            return tf.nest.pack_sequence_as(spec, side_by_side(flat))
        groups = [tf.reshape(each, _shape([rows // size, size], each, 1)) for each in flat]
        done = tf.map_fn(
            no_autograph(side_by_side),
            groups,
            fn_output_signature=[
                tf.TensorSpec(tf.TensorShape([size]).concatenate(each.shape), each.dtype)
                for each in tf.nest.flatten(spec)
            ],
            parallel_iterations=1 if size == 1 else 10,
        )
        joined = [tf.reshape(each, _shape([rows], each, 2)) for each in done]
        for each, wanted in zip(joined, tf.nest.flatten(spec), strict=True):
            each.set_shape(tf.TensorShape([rows]).concatenate(wanted.shape))
        return tf.nest.pack_sequence_as(spec, joined)

    return dataset.map(of_batch, num_parallel_calls=parallelism)


def _of_one(spec: Any) -> Any:
    return tf.TensorSpec(spec.shape[1:], spec.dtype)


def _trace(function: Callable[..., Any], arguments: Any, wanted: Any) -> Any:
    """The graph of a function; None if its results are not just tensors, as ``map`` has them."""
    if not all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(wanted)):
        return None
    traced = tf.function(function).get_concrete_function(*arguments)
    try:
        tf.nest.assert_same_structure(wanted, traced.structured_outputs)
    except (TypeError, ValueError):  # a list, for instance, of which map makes one tensor
        return None
    found = [each.dtype for each in tf.nest.flatten(traced.structured_outputs)]
    return traced if found == [each.dtype for each in tf.nest.flatten(wanted)] else None


def _is_pure(traced: Any) -> bool:
    """Whether copies of a function side by side do what one does for one after the other."""
    uses_state = any(each.dtype == tf.resource for each in traced.captured_inputs)
    return not uses_state and not any(map(_keeps_state, traced.graph.get_operations()))


def _keeps_state(operation: Any) -> bool:
    """Whether an operation depends on what was before, in a way that several copies must share."""
    if not operation.op_def.is_stateful:
        return False
    try:  # without a seed, each copy of one that draws at random draws something else
        return bool(operation.get_attr("seed") or operation.get_attr("seed2"))
    except ValueError:
        return True


def _group_size(rows: int) -> int:
    if rows <= 2 * _SIDE_BY_SIDE:
        return rows
    return max(size for size in range(1, _SIDE_BY_SIDE + 1) if rows % size == 0)


def _shape(leading: list[int], tensor: Any, dropped: int) -> Any:
    """A shape that begins so, and goes on as that of a tensor behind its first dimensions."""
    return tf.concat([leading, tf.shape(tensor)[dropped:]], axis=0)
