"""Samplers that return a ``tf.data.Dataset``: of TFRecord shards, and of a dataset in memory."""

from __future__ import annotations

import contextlib
import glob
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey._progress import Progress
from covey.adapters.tensorflow import (
    BatchSpec,
    call_python,
    group_size,
    make_dataset,
    map_examples,
    no_autograph,
    tf,
)
from covey.dataset.dataset import Dataset
from covey.dataset.layout import Layout, current_files, files_layout, find_layout
from covey.dataset.open import open_layout
from covey.errors import (
    CoveyError,
    DatasetError,
    FeatureError,
    PlanError,
    check,
    check_int,
    shorten,
)
from covey.index import GUESS, Index, IndexBuilder, find_index
from covey.labels import check_ids, guess_label
from covey.plan import BalancedPlan, Plan
from covey.plan.balanced import check_option, check_seed
from covey.samplers.inputs import check_function, parse_class_list, parse_classes
from covey.schema import Features
from covey.splits import SplitTerm
from covey.storage import Storage, open_storage
from covey.tfrecord.compression import parse_compression
from covey.urls import AnyPath, parse_path

Label = str | Callable[[Mapping[str, Any]], int | str]

# Batches that TFDataSampler draws by one call from TensorFlow, which costs more than they do.
_GROUP = 8


# TFRecord shards.


def TFRecordDatasetSampler(  # noqa: N802 - as the original is called
    shard_path: AnyPath,
    deserialization_fn: Callable[[Any], Any] | None,
    example_per_class: int = 2,
    batch_size: int = 32,
    shards_per_cycle: int | None = None,
    compression: str | None = None,
    parallelism: int = -1,
    async_cycle: bool = False,
    prefetch_size: int | None = None,
    shard_suffix: str = "*.tfrec",
    num_repeat: int = -1,
    *,
    label: Label | None = None,
    seed: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Return batches with ``example_per_class`` examples of each of their classes.

    Every batch has exactly ``batch_size // example_per_class`` classes, in whatever order the
    shards store them, and every example is drawn once before any is drawn twice. No batch is
    incomplete.

    The labels are read from ``label``, from an index of the shards, or from the label feature that
    the metadata of the dataset declares. If there is none of them, ``deserialization_fn`` is called
    for every record once, and must return (x, y), where y is a scalar integer or string. TensorFlow
    omits operations that y does not depend on, such as the decoding of images, but not a
    ``tf.py_function`` or ``tf.numpy_function``. A warning reports the time; the labels are not
    stored.

    The batches depend on the shards and on ``seed`` only, not on threads or on
    ``tf.random.set_seed``. A further iteration continues with the next epoch.

    Args:
        shard_path: The directory of the shards; local or a URL.
        deserialization_fn: A function that returns an example for a record, as for ``Dataset.map``:
            (x, y), or any other structure if the label is known. None decodes examples with the
            features of their dataset, which is several times faster and requires a label: batches
            are those of :meth:`covey.Dataset.batches`.
        example_per_class: The number of examples per class.
        batch_size: The number of examples in a batch; a multiple of ``example_per_class``.
        shards_per_cycle: No effect: batches are drawn from all shards.
        compression: None, ``"GZIP"`` or ``"ZLIB"``. No effect: the compression is detected.
        parallelism: The number of batches processed in parallel; -1 lets TensorFlow choose.
        async_cycle: No effect: batches are the same for any number of threads.
        prefetch_size: The number of prefetched batches; 10 by default.
        shard_suffix: The glob pattern of the names of the shards.
        num_repeat: The number of epochs of an iteration; -1 is unlimited. An epoch draws at least
            as many examples as there are, and ends with a complete batch.
        label: The label feature, a function of an example, or ``"@file"``, as for
            :func:`covey.open`. If there is no index with this label, all shards are scanned once.
        seed: The seed of the batches; None is 0. The same seed yields the same batches in every
            run, and a different order in every epoch.
        storage_options: The fsspec options for a URL.

    Raises:
        ValueError: If there are no shards, or an argument is not valid.
    """
    per_class = check_int("example_per_class", example_per_class, 1)
    size = check_int("batch_size", batch_size, 1)
    classes = size // per_class
    multiple = f"a multiple of example_per_class, which is {per_class}"
    remedy = f"for example {(classes + 1) * per_class}"
    check_option("batch_size", size, size % per_class == 0, multiple, remedy=remedy)
    for name, count in (("parallelism", parallelism), ("num_repeat", num_repeat)):
        check_option(name, count, check_int(name, count, -1) != 0, "an integer >= 1, or -1")
    check_int("shards_per_cycle", 1 if shards_per_cycle is None else shards_per_cycle, 1)
    prefetched = 10 if prefetch_size is None else check_int("prefetch_size", prefetch_size, -1)
    parse_compression(compression)
    seed = check_seed(0 if seed is None else seed)
    check_function("deserialization_fn", deserialization_fn, "a record")
    text = parse_path(shard_path, "shard_path")
    storage = open_storage(text, storage_options)
    directory = storage.clean(text)
    files = _find_shards(storage, directory, shard_suffix)
    dataset = _open(storage, directory, files, label, storage_options)
    if dataset.label is None:
        dataset = _with_labels(dataset, directory, deserialization_fn, parallelism)
    threads = None if parallelism == -1 else parallelism
    known = len(dataset.classes)
    if classes > known:
        raise PlanError(
            f"batch_size is {size} and example_per_class is {per_class}, so a batch has {classes} "
            f"classes, but the dataset has {known}"
        )
    # repeat() is applied before the parallel map: a checkpoint saves the position of repeat(), but
    # not that the threads of a map below it have reached the end of an epoch.
    if deserialization_fn is None:
        # Complete batches on all ranks, also in a worker of Ray Train.
        loader = dataset.batches(
            classes, per_class, seed=seed, threads=threads, rank=0, world_size=1
        )
        batches = loader.to_tf().repeat(num_repeat)
    else:
        plan = BalancedPlan(dataset.classes, classes, per_class, seed)
        records = _records(dataset, plan, threads)
        batches = map_examples(
            records.repeat(num_repeat), deserialization_fn, size, parallelism=parallelism
        )
    return batches.prefetch(prefetched) if prefetched else batches


def _find_shards(storage: Storage, directory: str, suffix: str) -> list[str]:
    is_pattern = isinstance(suffix, str) and suffix
    check("shard_suffix", suffix, is_pattern, "a pattern such as '*.tfrec'")
    # Only the suffix is a pattern.
    plain = directory if storage.is_remote else glob.escape(directory)
    found = current_files(storage, storage.glob(storage.join(plain, suffix)))
    if not found:
        is_directory = storage.is_directory(directory)
        raise DatasetError(
            f"no file matches {suffix!r}" if is_directory else "there is no such directory",
            path=directory,
            remedy="shard_path= is the directory of the shards, and shard_suffix= a pattern of "
            "their names, such as '*-train.tfrecord*'",
        )
    return found


def _open(
    storage: Storage,
    directory: str,
    files: Sequence[str],
    label: Label | None,
    storage_options: Mapping[str, Any] | None,
) -> Dataset:
    """Return the dataset of the shards, without a label if their label is not known.

    It has a label if one is passed, or if an index or the metadata of the dataset has one.
    """
    builder = IndexBuilder(label=GUESS if label is None else label)
    layouts = [files_layout(storage, files)]
    with contextlib.suppress(CoveyError, OSError):  # the directory is not a dataset, or corrupt
        address = storage.address(directory)
        described = find_layout(address, storage_options=storage_options)
        described.features  # noqa: B018 - raises if the files of TFDS are corrupt
        layouts.insert(0, described)
    for layout in layouts:  # the directory, if it has features or indexes, or the files alone
        terms = layout.terms_of(files)
        indexes = None if terms is None else _find_indexes(layout, terms, builder.label)
        if terms is not None and (indexes is not None or layout.features is not None):
            break
    features = layout.features
    is_declared = layout.label or (features is not None and guess_label(features) is not None)
    if indexes is None and label is None and not is_declared:
        layout = replace(layouts[-1], describe=lambda: Features({}))
        terms, builder = layout.terms_of(files), IndexBuilder(Features({}), None)
        indexes = {name: builder.build(split.files) for name, split in layout.splits.items()}
    assert terms is not None, "all shards are in the layout of the files"
    return open_layout(layout, terms, builder, indexes=indexes)


def _find_indexes(
    layout: Layout, terms: Sequence[SplitTerm], label: object
) -> dict[str, Index] | None:
    """Return the index of each split; None unless all exist and have a label, or this one."""
    indexes = {}
    for name in {term.split for term in terms}:
        split = layout.splits[name]
        try:
            index = find_index(split.files, split.stem, label).index
        except DatasetError:  # a shard was modified after covey wrote it
            return None
        if index is None or index.metadata.label is None:
            return None
        indexes[name] = index
    return indexes


def _with_labels(
    dataset: Dataset, directory: str, function: Callable[[Any], Any] | None, parallelism: int
) -> Dataset:
    """Return a dataset with the labels that a function of a record returns.

    Raises:
        DatasetError: If there is no function, or it does not return (x, y), or y is not a scalar
            integer or string.
    """
    if function is None:
        raise DatasetError(
            "the shards have no known label, so covey cannot decode and batch them",
            path=directory,
            remedy="pass label= with the label feature, or a deserialization_fn that returns "
            "(x, y)",
        )
    begin, raw = time.monotonic(), dataset.raw
    labels_of = _label_function(function, parallelism)

    def read(ids: NDArray[np.int64]) -> NDArray[Any]:
        try:
            found: NDArray[Any] = labels_of(tf.constant(np.array(raw.read(ids), object))).numpy()
            return found
        except tf.errors.OpError as error:
            if len(ids) > 1:  # one half raises the error of its first record that fails
                return np.concatenate([read(half) for half in np.array_split(ids, 2)])
            place = dataset.place(int(ids[0])).fields
            reason = f"deserialization_fn failed: {shorten(error.message, 500)}"
            raise DatasetError(reason, **place) from None

    parts = []
    with Progress(None, len(raw), "reading labels") as bar:
        for ids in raw.chunks():
            parts.append(read(ids))
            bar.add(len(ids), 0)
    warnings.warn(
        f"{directory}: deserialization_fn was called for all {len(raw):,} records "
        f"({time.monotonic() - begin:.1f} s), because the shards have no index with a label; to "
        "avoid this, pass label= with the label feature, or run `covey index`",
        stacklevel=3,
    )
    labels, names = np.concatenate(parts or [np.zeros(0, np.int64)]), None
    if labels.dtype == object:
        strings, labels = np.unique(labels, return_inverse=True)
        names = tuple(each.decode(errors="replace") for each in strings.tolist())
    return dataset.with_labels("@function", check_ids("y", labels), names)


def _label_function(function: Callable[[Any], Any], parallelism: int) -> Callable[[Any], Any]:
    """Return a function from a tensor of records to a tensor of their labels."""
    spec = tf.data.Dataset.from_tensors("").map(function).element_spec
    y = spec[1] if isinstance(spec, tuple) and len(spec) > 1 else None
    is_scalar = isinstance(y, tf.TensorSpec) and y.shape.rank in (None, 0)
    if y is None or not is_scalar or not (y.dtype.is_integer or y.dtype == tf.string):
        raise DatasetError(
            f"deserialization_fn returns {spec}; must return (x, y), where y is a scalar integer "
            "or string, because the shards have no index with a label",
            remedy="pass label= with the label feature or a function of an example",
        )

    # One map: in a second one after `function`, TensorFlow would not omit the operations for x.
    def label(record: Any) -> Any:
        return tf.ensure_shape(function(record)[1], [])

    def labels(records: Any) -> Any:
        found = tf.data.Dataset.from_tensor_slices(records).map(
            label, num_parallel_calls=parallelism
        )
        return found.batch(tf.size(records, tf.int64)).get_single_element()

    signature = [tf.TensorSpec([None], tf.string)]
    made: Callable[[Any], Any] = tf.function(labels, input_signature=signature, autograph=False)
    return made


def _records(dataset: Dataset, plan: Plan, threads: int | None) -> Any:
    """Return a tf.data.Dataset of the records of the batches of a plan."""
    first = dataset.raw[plan.batch(0)]
    spec = BatchSpec(tf.TensorSpec([len(first)], tf.string))
    loader = dataset.raw.batches(plan, threads=threads)
    return make_dataset(loader, spec, group_size(sum(map(len, first))))


# Datasets in memory.


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
    stored = _read_all(ds, label_output)
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


def _read_all(ds: Any, label_output: int | str | None) -> Any:
    """Return the examples of a dataset: its structure, with one tensor for each component."""
    check("ds", ds, isinstance(ds, tf.data.Dataset), "a tf.data.Dataset of (x, y)")
    count, spec = int(ds.cardinality()), ds.element_spec
    if count <= 0:
        raise DatasetError(
            "the dataset has no examples" if count == 0 else "the dataset has no known size",
            remedy="use take(), or tf.data.experimental.assert_cardinality(count)",
        )
    is_pair = isinstance(spec, tuple) and len(spec) >= 2
    check("example of ds", spec, is_pair, "(x, y), or a longer tuple")
    y = _label_of(spec, label_output)
    is_scalar = isinstance(y, tf.TensorSpec) and y.shape.rank in (None, 0)
    remedy = "select the label with label_output=, or call ds.unbatch()"
    check("y", y, is_scalar, "a scalar", remedy=remedy)
    is_dense = all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(spec))
    allowed = "tensors that are neither ragged nor sparse"
    check("example of ds", spec, is_dense, allowed, error=FeatureError)
    try:
        return ds.batch(count).get_single_element()
    except tf.errors.InvalidArgumentError as error:
        raise FeatureError(
            f"the examples of the dataset cannot be stored together: {shorten(error.message, 300)}",
            remedy="give them one shape with ds.map, or store paths and pass load_fn=",
        ) from error
