"""TensorFlow: a ``tf.data.Dataset`` over the batches of a loader.

An epoch is a range of steps in the graph, so that TensorFlow can save the position. The graph calls
Python for the batches of some steps: their arrays, from which it composes tensors::

    range(start, stop) --steps--> StepSource --batches--> BatchSpec --arrays--> tensors
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.adapters import import_framework
from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.errors import ClosedError, FeatureError, PlanError, check
from covey.loader import Loader
from covey.loader.batch import BatchFormat
from covey.plan.balanced import BatchKey

tf: Any = import_framework("tensorflow")

__all__ = ["position_callback", "tensor", "to_tf"]

no_autograph: Any = tf.autograph.experimental.do_not_convert
"""Decorator of functions that build a graph, whose source must not be converted."""

# TensorFlow uses memory with this alignment, and copies other memory.
_ALIGNMENT = 64

# Small batches are passed to TensorFlow several per call, because a call costs more than they do.
_MAX_GROUPED_BATCHES = 8
_MAX_GROUPED_BYTES = 1 << 20

# One iterator per sequence of steps; several are in use if a dataset is iterated concurrently.
_MAX_ITERATORS = 4

# Time to wait at exit for running calls, and interval without a call that ends the wait.
_EXIT_TIMEOUT_S = 10.0
_QUIET_INTERVAL_S = 0.05

# Number of copies of a function in a graph: more run faster, and take longer to build.
_MAX_COPIES = 16


def to_tf(loader: Loader, *, element_spec: Any = None) -> Any:
    """Return a ``tf.data.Dataset`` over the batches of a loader.

    Each iteration is an epoch, which begins at the position of the loader and moves it to the
    following epoch: ``fit(ds, epochs=3)`` and ``ds.repeat(3)`` have the batches of three iterations
    over the loader, and so have three datasets of the same loader. tf.data prefetches, so the
    position does not count the batches within an epoch. To resume there, use
    :func:`position_callback` with Keras, or save an iterator of the dataset in a
    ``tf.train.Checkpoint``. In the latter case, call ``repeat`` before ``map`` and ``prefetch``:
    their threads reach the end of an epoch before the iterator does.

    If the loader is moved into an epoch afterwards, call ``to_tf`` again: the dataset has a fixed
    number of batches per epoch.

    Args:
        loader: The loader.
        element_spec: The type of a batch (default: follows from the features. If there are hooks,
            it is the type of the next batch of the loader, with None for the number of rows if the
            last batch of an epoch is shorter, and for dimensions that depend on the length of
            padded features without `pad_length`). TensorFlow reports a batch of another type.

    Raises:
        FeatureError: If tf.data has no type for the batches.
        PlanError: If the loader reuses buffers.

    >>> import covey
    >>> birds = ({"size": float(n), "species": n % 3} for n in range(30))
    >>> _ = covey.write(birds, "birds", split="train", label="species", progress=False)
    >>> ds = to_tf(covey.open("birds").batches(2, 2, seed=1))
    >>> [tuple(each.shape) for each in ds.element_spec], int(ds.cardinality())
    ([(4,), (4,)], 8)
    """
    reuses = loader.options.reuse_buffers
    reason = "tf.data keeps batches"
    check("reuse_buffers", reuses, not reuses, "False", error=PlanError, reason=reason)
    spec = find_spec(loader, element_spec)
    is_cheap = loader.format.is_native and spec.is_fixed
    return make_dataset(loader, spec, group_size(spec.nbytes) if is_cheap else 1)


def make_dataset(loader: Loader, spec: BatchSpec, group: int) -> Any:
    """Return a ``tf.data.Dataset`` over batches of a known type.

    The last element of an epoch is a filter without result: it calls ``StepSource.end`` when the
    epoch is exhausted, also in an iterator that was restored from a checkpoint.

    Args:
        loader: The loader.
        spec: The type of a batch.
        group: Number of batches per call from TensorFlow, if all have the same shape.
    """
    group, plan = group if spec.is_fixed else 1, loader.plan
    owned = StepSource(loader)
    # TensorFlow keeps Python functions for ever. Therefore they do not refer to the steps, which
    # have files, threads and buffers: the dataset does.
    known = weakref.ref(owned)

    def find() -> StepSource:
        found = known()
        if found is None:
            raise ClosedError("the dataset was deleted", remedy="keep a reference to it")
        return found

    def read(start: Any, until: Any) -> list[NDArray[Any]]:
        packed = [spec.pack(batch) for batch in find().read(int(start), int(until))]
        return list(map(_stack, zip(*packed, strict=True))) if group > 1 else packed[0]

    @no_autograph  # type: ignore[untyped-decorator]
    def begin(number: Any) -> Any:  # without an argument, its result would be a constant
        scalars = call_python(lambda _: find().begin(), [number], [tf.int64] * 3)
        return tuple(tf.ensure_shape(each, []) for each in scalars)

    @no_autograph  # type: ignore[untyped-decorator]
    def end(start: Any, following: Any) -> Any:
        ended = call_python(lambda *each: find().end(*map(int, each)), [start, following], tf.bool)
        return tf.ensure_shape(ended, [])

    @no_autograph  # type: ignore[untyped-decorator]
    def steps(start: Any, stop: Any, following: Any) -> Any:
        @no_autograph  # type: ignore[untyped-decorator]
        def get(step: Any, *_: Any) -> Any:
            types = [each.dtype for each in spec.components]
            parts = call_python(read, [step, tf.minimum(step + group, stop)], types)
            return spec.unpack(parts, several=group > 1)

        batches = tf.data.Dataset.range(start, stop, group).map(get)
        nothing = tf.data.Dataset.from_tensors((start, following)).filter(end).map(get)
        batches = batches.concatenate(nothing)
        return batches.unbatch() if group > 1 else batches

    dataset = tf.data.Dataset.range(1).map(begin).flat_map(steps)
    if plan.batch_at(loader.step) % plan.batches_per_epoch == 0:  # the first epoch is complete
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(plan.steps_per_epoch))
    if plan.world_size > 1:  # the plan has only the batches of this rank
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
    dataset._covey_steps = owned  # is kept alive by derived datasets and iterators, too
    return dataset


def _stack(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return stacked arrays in memory that TensorFlow uses without a copy."""
    shape, dtype = (len(parts), *parts[0].shape), parts[0].dtype
    if dtype.kind == "O":
        return np.stack(parts)
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return np.stack(parts, out=memory[begin : begin + size].view(dtype).reshape(shape))


def group_size(nbytes: int) -> int:
    """Return the number of batches of `nbytes` bytes to pass per call."""
    return max(1, min(_MAX_GROUPED_BATCHES, _MAX_GROUPED_BYTES // max(1, nbytes)))


# Position.


class StepSource:
    """The batches of a loader by step, for the threads of TensorFlow.

    TensorFlow prefetches. Therefore an iteration moves the loader to the following epoch when it
    begins.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader, self._plan = loader, loader.plan
        self._lock = threading.Lock()
        self._iterators: dict[int, Iterator[Any]] = {}  # by next step, least recently used first
        self._begun: set[int] = set()  # first steps of epochs

    def begin(self) -> tuple[int, int, int]:
        """Begin an epoch; return its first step, its end, and the first step of the next one."""
        with self._lock:
            plan, start = self._loader.plan, self._loader.step
            if plan is not self._plan:  # class weights were changed
                self._plan = plan
                self._iterators.clear()
            batch = plan.batch_at(start)
            following = plan.step_at(plan.end_of_epoch(batch))
            self._loader.seek(following)
            self._begun.add(start)
            return start, start + plan.steps_left(batch), following

    def end(self, start: int, following: int) -> bool:
        """End an epoch, which may have begun in another process if it was restored."""
        with self._lock:
            if start not in self._begun:
                self._loader.seek(following)
            self._begun.discard(start)
        return False

    def read(self, start: int, until: int) -> list[Any]:
        """Return the batches of the steps ``[start, until)`` of an epoch."""
        with self._lock:
            iterator = self._iterators.pop(start, iter(()))
        batches = list(islice(iterator, until - start))
        if not batches:  # there is no such iterator, or it ended with its epoch
            loader = self._loader.copy()
            loader.seek(start)
            iterator = loader.take(sys.maxsize) if loader.plan.is_endless else iter(loader)
            batches = list(islice(iterator, until - start))
        with self._lock:
            self._iterators[until] = iterator
            while len(self._iterators) > _MAX_ITERATORS:
                del self._iterators[next(iter(self._iterators))]  # stops its threads
        return batches


class _Calls:
    """Calls of Python functions from threads of TensorFlow, until the interpreter exits.

    A thread that enters Python during finalization never returns, and TensorFlow, whose iterators
    are freed last, would wait for it for ever. Therefore calls raise an error as soon as the exit
    begins, which fills the buffers of the threads, and the exit waits until no call is made.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._rejected = 0
        self._is_exiting = False

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function, or raise ClosedError as soon as the interpreter exits."""
        with self._condition:
            if self._is_exiting:
                self._rejected += 1
                raise ClosedError("the interpreter is exiting")
            self._running += 1
        try:
            return function(*arguments)
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify_all()

    def finish(self) -> None:
        """Reject all further calls, and wait until there are none."""
        until = time.monotonic() + _EXIT_TIMEOUT_S
        with self._condition:
            self._is_exiting = True
            self._condition.wait_for(lambda: self._running == 0, _EXIT_TIMEOUT_S)
        rejected = -1
        while rejected != self._rejected and time.monotonic() < until:
            rejected = self._rejected
            time.sleep(_QUIET_INTERVAL_S)


_CALLS = _Calls()
atexit.register(_CALLS.finish)


def call_python(function: Callable[..., Any], arguments: list[Any], types: Any) -> Any:
    """Call a Python function in a graph, until the interpreter exits.

    The operation is stateless, so that iterators can be saved in a checkpoint.
    """
    return tf.numpy_function(partial(_CALLS.call, function), arguments, types, stateful=False)


def position_callback(loader: Loader, *, first_step: int = 0) -> Any:
    """Return a Keras callback that moves a loader to the batch that follows the last trained one.

    Keras saves the number of batches that an optimizer was applied to, ``optimizer.iterations``.
    ``fit`` begins at that step of the loader, also if ``BackupAndRestore`` restored the optimizer
    after a batch within an epoch, and with any ``steps_per_execution``. The first epoch of ``fit``
    then has the remaining batches of that epoch.

    Steps that a loss scale skips, because gradients overflow, are not counted.

    Args:
        loader: The loader, whose ``to_tf()`` is passed to ``fit``.
        first_step: The step of the loader at which the optimizer was new.
    """
    left: list[int] = []  # batches of the first epoch, if it is incomplete

    def begin_epoch(epoch: int, logs: Any = None) -> None:
        if left:  # other callbacks have restored the optimizer
            optimizer = callback.model.optimizer
            optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
            # Without the underscore, Keras 3 counts updates by several accumulated gradients.
            count = getattr(optimizer, "_iterations", optimizer.iterations)
            step = first_step + int(count.numpy())
            loader.seek(step)
            batch = loader.plan.batch_at(step)
            is_within = batch % loader.plan.batches_per_epoch
            left[:] = [loader.plan.steps_left(batch)] if is_within else []

    def end_batch(batch: int, logs: Any = None) -> None:
        if left and batch + 1 >= left[0]:
            callback.model.stop_training = True

    def end_epoch(epoch: int, logs: Any = None) -> None:
        if left:
            callback.model.stop_training = False
            left.clear()

    callback = tf.keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: left.append(0),
        on_epoch_begin=begin_epoch,
        on_train_batch_end=end_batch,
        on_epoch_end=end_epoch,
    )
    return callback


# Tensors, and the type of a batch.


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


def parts_of(value: Any) -> list[NDArray[Any]]:
    """Return the arrays of a column, in the order of the components of its tensor."""
    if isinstance(value, RaggedArray):
        if value.row_shapes is not None:
            raise FeatureError(
                "the shapes of rows differ in more than the first dimension, for which TensorFlow "
                "has no ragged tensor",
                remedy="pad them in batch_transform=",
            )
        # The rows of a slice begin anywhere in the values.
        begin, end = int(value.row_splits[0]), int(value.row_splits[-1])
        first, *inner = parts_of(value.values[begin:end])
        return [first, value.row_splits - begin, *inner]
    if isinstance(value, SparseBatch):
        rows = np.repeat(np.arange(len(value)), value.values.row_lengths)
        indices = np.stack([rows, *(axis.values for axis in value.indices)], axis=-1)
        value = SparseArray(indices, value.values.values, (len(value), *value.shape))
    if isinstance(value, SparseArray):
        order = np.lexsort(value.indices.T[::-1])  # row-major
        return [value.indices[order], value.values[order], np.array(value.shape, np.int64)]
    if isinstance(value, StringArray):  # TensorFlow stores strings as bytes
        return [replace(value, text=False).to_numpy()]
    if tf.is_tensor(value):
        return [each.numpy() for each in tf.nest.flatten(value, expand_composites=True)]
    array = np.asarray(value)
    if array.dtype.kind in "US":
        return [array.astype(object)]
    return [array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))]


@dataclass(frozen=True)
class BatchSpec:
    """The type of a batch.

    Args:
        spec: Nested ``tf.TypeSpec``.
        tidy: Function that returns a batch of hooks as dicts and tuples of arrays.
    """

    spec: Any
    tidy: Callable[[Any], Any] | None = None

    @property
    def components(self) -> list[Any]:
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
        return sum(each.shape.num_elements() * each.dtype.size for each in self.components)

    def pack(self, batch: Any) -> list[NDArray[Any]]:
        """Return the arrays of a batch."""
        if self.tidy is not None:
            batch = self.tidy(batch)
            tf.nest.assert_same_structure(self.spec, tf.nest.map_structure(type, batch))
        return [part for value in tf.nest.flatten(batch) for part in parts_of(value)]

    def unpack(self, parts: Sequence[Any], *, several: bool) -> Any:
        """Return the tensors of a batch, or of several batches of known shapes."""
        shapes = [[None, *each.shape] if several else each.shape for each in self.components]
        parts = list(map(tf.ensure_shape, parts, shapes))
        return tf.nest.pack_sequence_as(self.spec, parts, expand_composites=True)


def find_spec(loader: Loader, spec: Any = None) -> BatchSpec:
    """Return the type of the batches of a loader.

    Args:
        loader: The loader. Its next batch is built if it has hooks.
        spec: Nested ``tf.TypeSpec`` (default: the type of these batches).
    """
    form, plan = loader.format, loader.plan
    assert isinstance(form, BatchFormat)
    tidy = partial(_tidy, lists_are_tuples=form.returns_tuples)
    if spec is not None:
        return BatchSpec(spec, tidy)
    is_ragged = form.has_images and form.options.images.ragged and not form.has_hooks
    allowed = "(height, width), or a hook that returns arrays"
    check("image_size", "ragged", not is_ragged, allowed, error=FeatureError)
    start = plan.step_at(loader.epoch * plan.batches_per_epoch)
    lengths = {len(plan.batch(start + n)) for n in (0, max(1, plan.steps_per_epoch) - 1)}
    rows = lengths.pop() if len(lengths) == 1 else None
    if form.has_hooks:
        step = loader.step if plan.steps_left(plan.batch_at(loader.step)) else start
        batches = [loader.batch(step)]
        if form.pads_to_longest:  # more padding shows which dimensions depend on it
            batches.append(loader.copy(format=form.with_extra_padding()).batch(step))
    else:
        batches = [form.build(np.zeros(0, np.int64), None, BatchKey(0, 0), lambda: None)]
    tensors = [tf.nest.map_structure(tensor, tidy(each)) for each in batches]
    spec = tf.nest.map_structure(_common_spec, *tensors)
    if rows is None or not form.has_hooks:  # a hook may return another number of rows
        spec = tf.nest.map_structure(partial(_with_rows, rows), spec)
    return BatchSpec(spec, None if form.is_native else tidy)


def _common_spec(*tensors: Any) -> Any:
    first, *others = map(tf.type_spec_from_value, tensors)
    return first.most_specific_common_supertype(others)


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


def _tidy(value: Any, lists_are_tuples: bool = False) -> Any:
    """Return a batch of dicts and tuples, with an array for each column."""
    if isinstance(value, Mapping):
        return {name: _tidy(each) for name, each in value.items()}
    if isinstance(value, tuple) or (lists_are_tuples and isinstance(value, list)):
        inner = map(_tidy, value)
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    if not isinstance(value, list):
        return value
    if all(isinstance(each, (str, bytes)) for each in value):
        return np.array(value, object)
    shapes = sorted({np.shape(each) for each in value})
    remedy = "use pad=, or use image_size= for images, or give them one shape in batch_transform="
    what = "shapes of the rows of a batch"
    check(what, shapes[:2], len(shapes) < 2, "equal", error=FeatureError, remedy=remedy)
    return np.stack(value)


# Functions of one example.


def map_examples(
    dataset: Any, function: Callable[..., Any], rows: int, *, parallelism: int = -1
) -> Any:
    """Return ``dataset.unbatch().map(function).batch(rows)``, several times as fast.

    The cost of the original is one element per example. Here an element is a batch, whose graph
    contains the function: several parallel copies if it is stateless, otherwise a sequential loop.

    Args:
        dataset: Dataset of batches: tensors with `rows` rows.
        function: Function of one example, as for ``Dataset.map``. It may return any structure.
        rows: Number of examples per batch.
        parallelism: Number of batches that are processed in parallel; -1 lets TensorFlow decide.
    """
    one = dataset.unbatch().map(function, num_parallel_calls=parallelism)
    spec, given = one.element_spec, dataset.element_spec
    arguments = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape[1:], each.dtype), given)
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    traced = tf.function(function).get_concrete_function(*arguments)
    results = tf.nest.flatten(spec)
    try:
        tf.nest.assert_same_structure(spec, traced.structured_outputs)
        found = [each.dtype for each in tf.nest.flatten(traced.structured_outputs)]
        is_same = found == [each.dtype for each in results]
    except (TypeError, ValueError):  # a list, for instance, which map stacks
        is_same = False
    if not is_same or not all(isinstance(each, tf.TensorSpec) for each in results):
        return one.batch(rows, drop_remainder=True)
    size = max(each for each in range(1, _MAX_COPIES + 1) if rows % each == 0)
    size = (rows if rows <= 2 * _MAX_COPIES else size) if _is_pure(traced) else 1

    def map_group(batch: list[Any]) -> list[Any]:
        columns = [tf.unstack(each, size) for each in batch]
        examples = (tf.nest.pack_sequence_as(arguments, row) for row in zip(*columns, strict=True))
        mapped = [tf.nest.flatten(traced(*example)) for example in examples]
        return [tf.stack(each) for each in zip(*mapped, strict=True)]

    @no_autograph  # type: ignore[untyped-decorator]
    def map_batch(*batch: Any) -> Any:
        flat = tf.nest.flatten(batch)
        if size == rows:
            return tf.nest.pack_sequence_as(spec, map_group(flat))
        types = [tf.TensorSpec(_shape([size], each), each.dtype) for each in results]
        done = tf.map_fn(
            no_autograph(lambda first: map_group([each[first : first + size] for each in flat])),
            tf.range(0, rows, size),
            fn_output_signature=types,
            parallel_iterations=1 if size == 1 else 10,
        )
        shapes = [tf.concat([[rows], tf.shape(each)[2:]], axis=0) for each in done]
        joined = map(tf.reshape, done, shapes)
        known = [_shape([rows], each) for each in results]
        return tf.nest.pack_sequence_as(spec, list(map(tf.ensure_shape, joined, known)))

    return dataset.map(map_batch, num_parallel_calls=parallelism)


def _shape(leading: list[int], spec: Any) -> Any:
    return tf.TensorShape(leading).concatenate(spec.shape)


def _is_pure(traced: Any) -> bool:
    """Return whether parallel copies of a function have the same results as one."""
    uses_state = any(each.dtype == tf.resource for each in traced.captured_inputs)
    return not uses_state and not any(map(_keeps_state, traced.graph.get_operations()))


def _keeps_state(operation: Any) -> bool:
    """Return whether an operation has a state that copies of it would have to share."""
    if not operation.op_def.is_stateful:
        return False
    try:  # random operations without a seed need not share their state
        return bool(operation.get_attr("seed") or operation.get_attr("seed2"))
    except ValueError:
        return True
