"""Samplers of examples in memory and in files."""

import functools
import inspect
import pickle
import runpy
import sys
import threading
import types
import warnings
from collections import Counter
from itertools import chain

import jax.numpy as jnp
import numpy as np
import pandas as pd
import PIL.Image
import pytest
import tensorflow as tf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded import settles
from sampled import Lazy, X, Y, drawn, identity, is_fair, planned, repeat, run

import covey.augmenters
from covey import CoveyError, samplers
from covey.errors import FeatureError, PlanError, SmallClassesWarning
from covey.samplers import (
    MultiShotFileSampler,
    MultiShotMemorySampler,
    Sampler,
    SingleShotMemorySampler,
    TFDataSampler,
    TFDatasetMultiShotMemorySampler,
    TFRecordDatasetSampler,
    load_image,
    select_examples,
)

multi = functools.partial(MultiShotMemorySampler, framework="numpy")
single = functools.partial(SingleShotMemorySampler, framework="numpy")


# Arguments.

COMMON = "examples_per_class_per_batch=2 steps_per_epoch=1000"
CHOICE = "class_list=None total_examples_per_class=None"
SIGNATURES = {
    Sampler: f"classes_per_batch {COMMON} augmenter=None warmup=-1",
    MultiShotMemorySampler: f"x y classes_per_batch=2 {COMMON} {CHOICE} augmenter=None "
    "load_example_fn=None warmup=-1",
    MultiShotFileSampler: f"x y load_example_fn=load_image classes_per_batch=2 {COMMON} {CHOICE} "
    "augmenter=None warmup=-1",
    SingleShotMemorySampler: "x augmenter class_per_batch=None steps_per_epoch=1000 warmup=-1",
    TFDatasetMultiShotMemorySampler: "dataset_name classes_per_batch x_key='image' y_key='label' "
    f"splits=('train', 'test') {COMMON} {CHOICE} preprocess_fn=None augmenter=None warmup=-1",
    TFDataSampler: f"ds classes_per_batch=2 examples_per_class_per_batch=2 {CHOICE} "
    "augmenter=None load_fn=None warmup=0 label_output=None",
    TFRecordDatasetSampler: "shard_path deserialization_fn example_per_class=2 batch_size=32 "
    "shards_per_cycle=None compression=None parallelism=-1 async_cycle=False prefetch_size=None "
    "shard_suffix='*.tfrec' num_repeat=-1",
    select_examples: "x y class_list=None num_examples_per_class=None",
    Sampler.get_examples: "self batch_id num_classes examples_per_class",
    MultiShotMemorySampler.get_examples: "self batch_id num_classes examples_per_class",
    SingleShotMemorySampler.get_examples: "self batch_id num_classes examples_per_class=1",
}


def described(parameter):
    if parameter.default is parameter.empty:
        return parameter.name
    default = parameter.default
    return f"{parameter.name}={getattr(default, '__name__', repr(default))}"


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda each: each.__qualname__)
def test_positional_arguments_are_those_of_tensorflow_similarity(function):
    parameters = inspect.signature(function).parameters.values()
    found = [described(each) for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert " ".join(found) == SIGNATURES[function]


# Batches of P classes with K examples.


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    p=st.integers(1, 9),
    k=st.integers(1, 5),
    total=st.none() | st.integers(1, 9),
    seed=st.integers(0, 2**64 - 1),
)
def test_batches_are_exact_and_fair(sizes, p, k, total, seed):
    p = min(p, len(sizes))
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)) * 7 - 3, sizes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallClassesWarning)
        sampler = multi(np.arange(len(y)), y, p, k, 12, seed=seed, total_examples_per_class=total)
    used = {label: np.flatnonzero(y == label)[:total].tolist() for label in np.unique(y).tolist()}
    classes, examples = [], {label: [] for label in used}
    for _ in range(3):
        for x, found in sampler:
            assert np.array_equal(y[x], found)
            assert np.unique(found, return_counts=True)[1].tolist() == [k] * p
            classes += found[::k].tolist()
            for label, group in zip(found[::k].tolist(), x.reshape(p, k).tolist(), strict=True):
                examples[label] += group
                assert len(set(group)) == min(k, len(used[label]))
    assert is_fair(classes, list(used))
    assert all(is_fair(examples[label], used[label]) for label in used)
    assert sampler.num_examples == sum(map(len, used.values()))


def test_small_classes_repeat_examples_with_one_warning():
    y = np.array([0] * 2 + [1] * 30)
    with pytest.warns(SmallClassesWarning, match=r"1 class has fewer than 4 .*'0' \(2\)") as warned:
        sampler = multi(np.arange(32), y, 2, 4, 10)
    assert [each.filename for each in warned] == [__file__]
    for x, found in [*sampler, *pickle.loads(pickle.dumps(sampler))]:
        assert Counter(x[found == 0].tolist()) == {0: 2, 1: 2}
        assert len(set(x[found == 1].tolist())) == 4


CLASS_LISTS = {
    "repeated": [7, 2, 2, 5, 7],
    "tuple": (7, 2, 5),
    "set": {7, 2, 5},
    "iterator": iter([7, 2, 5]),
    "numpy": np.array([7, 2, 5], np.int8),
    "column": np.array([[7], [2], [5]]),
    "floats": [7.0, 2.0, 5.0],
    "strings": ["7", "2", "5"],
    "torch": torch.tensor([7, 2, 5]),
    "tensorflow": tf.constant([7, 2, 5]),
    "jax": jnp.array([7, 2, 5]),
    "tensors": [torch.tensor(7), tf.constant(2), jnp.array(5)],
}


@pytest.mark.parametrize("kind", CLASS_LISTS)
def test_class_list(kind):
    sampler = multi(X, Y, 2, 2, 30, class_list=CLASS_LISTS[kind])
    assert {label for _, y in sampler for label in y.tolist()} == {2, 5, 7}
    assert (sampler.class_list, sampler.num_examples) == ([2, 5, 7], 18)


# Labels and examples of all types.

STRINGS = [f"bird {label}" for label in Y]
LABELS = {
    "uint64": Y.astype(np.uint64),
    "negative": -Y,
    "column": Y[:, None],
    "integral floats": Y.astype(np.float32),
    "strings": STRINGS,
    "bytes": [each.encode() for each in STRINGS],
    "bools": Y > 4,
    "list": Y.tolist(),
    "torch": torch.from_numpy(Y),
    "tensorflow": tf.constant(Y),
    "tensorflow strings": tf.constant(STRINGS),
    "jax": jnp.asarray(Y),
    "list of torch tensors": [torch.tensor(label) for label in Y],
    "list of tensorflow tensors": [tf.constant(label) for label in Y],
    "list of tensorflow strings": [tf.constant(each) for each in STRINGS],
    "list of jax arrays": [jnp.asarray(label) for label in Y],
    "series": pd.Series(STRINGS, index=range(5, 65)),
    "categories": pd.Series(STRINGS).astype("category"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_label_types(kind):
    expected = np.asarray([np.asarray(each)[()] for each in LABELS[kind]])
    sampler = multi(X, LABELS[kind], 2, 3, 20, seed=3)
    for x, y in sampler:
        assert isinstance(y, np.ndarray)
        assert y.shape == (6, *expected.shape[1:])
        assert np.array_equal(y, expected[x])
        assert sorted(Counter(y.reshape(-1).tolist()).values()) == [3, 3]
    assert sampler.class_list == sorted(set(expected.reshape(-1).tolist()))


ROWS = np.arange(180, dtype=np.float32).reshape(60, 3)
NAMES = [f"example {number}" for number in range(60)]
EXAMPLES = {
    "rows": ROWS,
    "images": np.arange(60 * 24).astype(np.uint8).reshape(60, 4, 3, 2),
    "empty rows": np.zeros((60, 0)),
    "strings": np.array(NAMES),
    "records": np.array([(n, n / 2) for n in range(60)], [("a", "<i4"), ("b", "<f4")]),
    "list of arrays": list(ROWS),
    "list of lists": ROWS.tolist(),
    "list of strings": NAMES,
    "range": range(7, 67),
    "torch": torch.from_numpy(ROWS),
    "torch with a gradient": torch.from_numpy(ROWS).requires_grad_(),
    "tensorflow": tf.constant(ROWS),
    "tensorflow strings": tf.constant(NAMES),
    "jax": jnp.asarray(ROWS),
    "list of torch tensors": list(torch.from_numpy(ROWS)),
    "list of tensorflow tensors": list(tf.constant(ROWS)),
    "list of jax arrays": list(jnp.asarray(ROWS)),
    "frame": pd.DataFrame(ROWS, index=range(60, 120)),
    "lazy": Lazy(60, lambda number: ROWS[number]),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_example_types(kind):
    x = EXAMPLES[kind]
    detached = x.detach() if isinstance(x, torch.Tensor) else x
    expected = ROWS if kind == "lazy" else np.asarray(detached)
    for sampler in (multi(x, Y, 3, 2, 5, seed=1), single(x, identity, 6, 5, seed=1)):
        for (found, _), ids in zip(sampler, planned(sampler, range(5)), strict=True):
            assert isinstance(found, np.ndarray)
            assert found.dtype == expected.dtype or kind == "list of strings"
            assert np.array_equal(found, expected[ids])
        assert sampler.example_shape == expected.shape[1:]
    chosen, _ = select_examples(x, Y, [3], seed=1)
    assert sorted(map(str, chosen.tolist())) == sorted(map(str, expected[Y == 3].tolist()))


def in_place(x, y, count, is_warmup):
    x += 1000
    y += 1000
    return x, y


def test_batches_and_slices_share_no_memory_with_the_examples():
    x, y = np.arange(60), Y.copy()
    sampler, other = multi(x, y, 3, augmenter=in_place), single(x, in_place, 5)
    first = sampler[0][0]
    assert other.get_slice(0, 3)[0].tolist() == [1000, 1001, 1002]
    for part in (*other[0], *sampler.get_slice(0, 5)):
        part[:] = -1
    assert np.array_equal(x, np.arange(60))
    assert np.array_equal(y, Y)
    x += 1  # is visible in later batches
    assert np.array_equal(sampler[0][0], first + 1)


# Epochs.


@pytest.mark.parametrize("make", [multi, lambda x, y, *_, **kw: single(x, identity, 6, 7, **kw)])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_epochs(make, workers):
    sampler = make(X, Y, 3, 2, 7, seed=2, workers=workers)
    epochs = [drawn(sampler) for _ in range(3)]
    assert list(chain(*epochs)) == planned(sampler, range(21))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert (sampler.epoch, len(sampler)) == (3, 7)
    sampler.epoch = 10**9
    assert drawn(sampler) == planned(sampler, range(7 * 10**9, 7 * 10**9 + 7))
    assert drawn(make(X, Y, 3, 2, 7, seed=3)) != epochs[0]


def test_resume_from_state():
    sampler, resumed = multi(X, Y, 3, 2, 7), multi(X, Y, 3, 2, 7)
    list(sampler)
    resumed.load_state_dict(sampler.state_dict())
    assert drawn(resumed) == planned(sampler, range(7, 14))
    for state, option in (({}, "steps_per_epoch"), (None, "steps_per_epoch"),
                          ({"epoch": 1, "steps_per_epoch": 8}, "steps_per_epoch"),
                          ({"epoch": -1, "steps_per_epoch": 7}, "epoch")):  # fmt: skip
        with pytest.raises(PlanError) as caught:
            resumed.load_state_dict(state)
        assert caught.value.option == option


def test_batch_ids():
    sampler = multi(X, Y, 3, steps_per_epoch=5, augmenter=repeat)
    assert np.array_equal(sampler[np.int64(3)][0], sampler[3][0])
    assert np.array_equal(sampler[3][0], sampler.generate_batch(3)[0])
    # As in TensorFlow Similarity, any integer is the id of a batch.
    sampler.epoch = 2
    for batch_id, step in ((-1, 14), (-6, 14), (5, 15), (7, 17)):
        for made in (sampler[batch_id], sampler.generate_batch(batch_id)):
            assert made[0][::2].tolist() == planned(sampler, range(step, step + 1))[0]
    ahead = multi(X, Y, 3, steps_per_epoch=5, workers=2)
    ahead.on_epoch_begin()
    assert ahead.num_batches == 5
    for batch_id in (7, -2, 2, 3, 4, 5, 9, 0):  # in any order
        step = batch_id if batch_id >= 0 else batch_id + 5
        assert ahead[batch_id][0].tolist() == planned(ahead, range(step, step + 1))[0]
    ahead.on_epoch_end()
    for batch_id in (1.5, "1", slice(1, 2), None):
        with pytest.raises(TypeError):
            sampler[batch_id]


def sampler_threads():
    return sum(thread.name.startswith("covey-sampler") for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [1, 4])
def test_an_incomplete_iteration_does_not_count_as_an_epoch(workers):
    def fail(x, y, count, is_warmup, step):
        if step == 5 and should_fail:
            raise OverflowError("too bright")
        return x, y

    should_fail = True
    sampler = multi(X, Y, 3, 2, 20, augmenter=fail, workers=workers)
    for x, _ in sampler:
        assert x.tolist() == planned(sampler, range(1))[0]
        break
    assert settles(sampler_threads, 0)
    batches = iter(sampler)
    assert [next(batches)[0].tolist() for _ in range(5)] == planned(sampler, range(5))
    with pytest.raises(OverflowError, match="too bright"):
        next(batches)
    assert settles(sampler_threads, 0)
    assert sampler.epoch == 0
    should_fail = False
    assert drawn(sampler) == planned(sampler, range(20))
    assert settles(sampler_threads, 0)


def begin_and_end(sampler, *requests):
    sampler.on_epoch_begin()
    for batch_id in requests:
        sampler[batch_id]
    sampler.on_epoch_end()


def loop(sampler, count):
    for _ in zip(range(count), sampler, strict=False):
        pass
    sampler.on_epoch_end()


STEP_0, ALL = [0], [0, 1, 2, 3, 4]
EPOCHS = {
    "nothing": (lambda s: s.on_epoch_end(), 0),
    "an index": (lambda s: (s[3], s.on_epoch_end()), 1),
    "generate_batch": (lambda s: (s.generate_batch(2), s.on_epoch_end(), s.on_epoch_end()), 1),
    "two loops of two steps": (lambda s: (loop(s, 2), loop(s, 2)), 2),
    "a complete loop": (lambda s: (list(s), s.on_epoch_end()), 1),
    "an incomplete loop": (lambda s: next(iter(s)), 0),
    "all between begin and end": (lambda s: begin_and_end(s, *ALL), 1),
    "all in another order": (lambda s: begin_and_end(s, 3, 1, 4, 0, 2), 1),
    "one to build a model": (lambda s: (begin_and_end(s, 0), begin_and_end(s, *ALL)), 1),
    "all before begin": (lambda s: ([s[i] for i in ALL], begin_and_end(s, 0)), 0),
    "not all": (lambda s: begin_and_end(s, 0, 1, 2, 3, 3), 0),
    "halves": (lambda s: (begin_and_end(s, 0, 1, 2), begin_and_end(s, 3, 4)), 1),
    "types of Keras": (lambda s: (s[0], s[1], s.num_batches, s.on_epoch_end()), 0),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", EPOCHS)
def test_calls_that_end_an_epoch(kind, workers):
    sampler = multi(X, Y, 3, steps_per_epoch=5, workers=workers)
    use, epochs = EPOCHS[kind]
    use(sampler)
    assert sampler.epoch == epochs


# Augmenters and the warm-up.


def test_functions_for_tensors_are_told_of_the_type():
    def tensors_only(x, y, *_):
        return x.numpy() + 1, y

    with pytest.raises(AttributeError) as caught:
        multi(X, Y, 3, augmenter=tensors_only)[0]
    assert 'augmenter_framework="tensorflow"' in caught.value.__notes__[0]
    sampler = multi(X, Y, 3, augmenter=tensors_only, augmenter_framework="tensorflow")
    assert sampler[0][0].tolist() == [number + 1 for number in planned(sampler, range(1))[0]]


class Views(covey.augmenters.Augmenter):
    def augment(self, x, y, num_augmentations_per_example, is_warmup):
        return x * 0 + num_augmentations_per_example, y


class Called:
    def __call__(self, x, y, num_augmentations_per_example, is_warmup):
        return x * 0 + num_augmentations_per_example, y


def augmentations(x, y, num_augmentations_per_example, is_warmup, step=0):
    return x * 0 + num_augmentations_per_example, y


def examples(x, y, examples_per_class, is_warmup):
    return x * 0 + examples_per_class, y


@pytest.mark.parametrize(
    "augmenter", [augmentations, functools.partial(augmentations), Called(), Views()]
)
def test_number_of_augmentations(augmenter):
    def third(sampler):
        (number,) = set(sampler[0][0].tolist())
        return number

    assert third(multi(X, Y, 3, 4, augmenter=augmenter)) == 1
    assert third(multi(X, Y, 3, 4, augmenter=augmenter, num_augmentations_per_example=5)) == 5
    assert third(multi(X, Y, 3, 4, augmenter=examples)) == 4
    for each in (augmenter, examples):
        assert third(single(X, each, 3)) == 2
        assert third(single(X, each, 3, num_augmentations_per_example=7)) == 7
    replaced = multi(X, Y, 3, 4, augmenter=examples)
    replaced.augmenter = augmenter
    assert third(replaced) == 1
    with pytest.raises(PlanError) as caught:
        multi(X, Y, num_augmentations_per_example=-1)
    assert caught.value.option == "num_augmentations_per_example"


@pytest.mark.parametrize("warmup", [2, 0, -1, -7])
def test_warmup(warmup):
    seen = []

    def augment(x, y, count, is_warmup):
        seen.append(is_warmup)
        return x, y

    for make in (lambda: multi(X, Y, 3, 2, 3, augmenter=augment, warmup=warmup),
                 lambda: single(X, augment, 3, 3, warmup=warmup)):  # fmt: skip
        sampler, seen[:] = make(), []
        list(sampler)
        for batch_id in range(3):
            sampler[batch_id]
        sampler.on_epoch_end()
        sampler.on_epoch_end()  # without a request: no epoch
        assert (sampler.is_warmup, sampler.epoch) == (False, 2)
        list(sampler)
        assert seen == [True] * 3 * max(0, warmup) + [False] * 3 * (3 - max(0, warmup))


# Subclasses.


class Negative(MultiShotMemorySampler):
    def _get_examples(self, batch_id, num_classes, examples_per_class):
        x, y = super()._get_examples(batch_id, num_classes, examples_per_class)
        return -x, y


class Again(Negative):
    def get_examples(self, batch_id, num_classes, examples_per_class):
        x, y = super().get_examples(batch_id, num_classes, examples_per_class)
        return 10 * x, y


def test_subclasses_with_either_name_of_get_examples():
    assert Steps(2, 3, 4, framework="numpy").get_examples(1, 1, 2)[0].tolist() == [1, 1]
    with pytest.raises(TypeError, match="abstract"):
        Sampler(2)
    plain = multi(X, Y, 3)[2][0]
    for kind, factor in ((Negative, -1), (Again, -10)):
        found = kind(X, Y, 3, framework="numpy")
        assert found[2][0].tolist() == (factor * plain).tolist()
        for name in ("get_examples", "_get_examples"):
            assert getattr(found, name)(2, 3, 2)[0].tolist() == (factor * plain).tolist()


def test_get_examples_with_other_sizes():
    sampler = multi(X, Y, 2, 2, seed=4)
    x, y = sampler.get_examples(batch_id=3, num_classes=5, examples_per_class=4)
    assert Counter(y.tolist()).most_common() == [(label, 4) for label in y[::4].tolist()]
    assert np.array_equal(Y[x], y)
    with pytest.raises(PlanError) as caught:
        sampler.get_examples(0, 11, 2)
    assert caught.value.option == "classes_per_batch"
    other = single(X, identity, 5)
    expected = other.get_examples(0, 7)
    assert len(set(expected[0].tolist())) == 7
    for name in ("examples_per_class", "example_per_class"):
        found = other.get_examples(batch_id=0, num_classes=7, **{name: 2})
        assert all(map(np.array_equal, found, expected))


# One example per class.


@settings(max_examples=40)
@given(count=st.integers(1, 40), per_batch=st.integers(1, 40), seed=st.integers(0, 2**64 - 1))
def test_single_shot_batches_are_distinct_and_fair(count, per_batch, seed):
    per_batch = min(count, per_batch)
    sampler = single(range(100, 100 + count), identity, per_batch, 17, seed=seed)
    seen = []
    for x, y in [*sampler, *sampler]:
        assert np.array_equal(x, y + 100)
        assert len(set(y.tolist())) == per_batch == len(y)
        seen += y.tolist()
    assert is_fair(seen, range(count))


# Files.


def number_of(path):
    return int(path.split()[1])


def test_only_the_examples_of_a_batch_are_loaded():
    paths = Lazy(60, "picture {}".format)
    sampler = multi(paths, Y, 3, load_example_fn=number_of)
    x, y = sampler[0]
    assert x.tolist() == planned(sampler, range(1))[0] == paths.requests
    assert np.array_equal(Y[x], y)
    assert sampler.load_example_fn is number_of
    assert multi(X, Y).load_example_fn(X[3]) == 3
    series = pd.Series([f"picture {number}" for number in range(60)], index=range(9, 69))
    assert np.array_equal(multi(series, Y, 3, load_example_fn=number_of)[0][0], x)


@pytest.fixture
def pictures(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(12)]
    for number, path in enumerate(paths):
        PIL.Image.new("RGB", (4, 3), (number, 2 * number, 255)).save(path)
    return paths


def test_load_image(pictures):
    image = load_image(pictures[5])
    assert (image.shape, image.dtype) == ((3, 4, 3), np.float32)
    assert image[0, 0].tolist() == [np.float32(5) / 255, np.float32(10) / 255, 1]
    assert load_image(str(pictures[5]), (6, 8)).shape == (6, 8, 3)
    assert load_image(pictures[5], 2).shape == (2, 2, 3)
    PIL.Image.new("L", (4, 3), 51).save(pictures[0])
    assert load_image(pictures[0]).tolist() == np.full((3, 4, 3), np.float32(0.2)).tolist()
    pictures[1].write_bytes(b"text")
    with pytest.raises(FeatureError) as caught:
        load_image(pictures[1])
    assert caught.value.path == str(pictures[1])


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_file_sampler(pictures, kind):
    y, paths = np.arange(12) % 3, list(map(kind, pictures))
    sampler = MultiShotFileSampler(paths, y, classes_per_batch=2, framework="numpy")
    x, found = sampler[1]
    numbers = np.rint(x[:, 0, 0, 0] * 255).astype(int)
    assert numbers.tolist() == planned(sampler, range(1, 2))[0]
    assert np.array_equal(found, y[numbers])
    small = functools.partial(load_image, target_size=(2, 2))
    sampler = MultiShotFileSampler(paths, y, small, 3, 2, 5, [0, 1, 2], 3, repeat, 7,
                                   framework="numpy")  # fmt: skip
    assert (sampler.example_shape, len(sampler), sampler.warmup) == ((2, 2, 3), 5, 7)
    assert (sampler.num_examples, len(sampler[0][1])) == (9, 12)


def test_missing_file(pictures):
    pictures[3].unlink()
    with pytest.raises(FileNotFoundError, match=r"3\.png") as caught:
        MultiShotFileSampler(pictures, np.arange(12), load_image, 12, 1)[0]
    assert "example 3" in caught.value.__notes__[0]


# Selections.


@settings(max_examples=40)
@given(
    classes=st.none() | st.lists(st.integers(0, 9), min_size=1),
    limit=st.none() | st.integers(1, 8),
    seed=st.integers(0, 2**64 - 1),
)
def test_select_examples(classes, limit, seed):
    x, y = select_examples(X + 500, Y, classes, limit, seed=seed)
    assert np.array_equal(Y[x - 500], y)
    assert len(set(x.tolist())) == len(x)
    each = 6 if limit is None else min(limit, 6)
    assert Counter(y.tolist()) == dict.fromkeys(range(10) if classes is None else classes, each)
    again, other = (select_examples(X + 500, Y, classes, limit, seed=each)[0]
                    for each in (seed, seed ^ 1))  # fmt: skip
    assert np.array_equal(x, again)
    assert len(x) < 5 or not np.array_equal(x, other)


# Frameworks.


WITHOUT_FRAMEWORKS = """
import sys
for name in ("keras", "tensorflow", "torch", "jax", "tensorflow_datasets", "pandas", "h5py", "PIL"):
    sys.modules[name] = None
import json
import multiprocessing
import numpy as np
from sampled import X, Y, drawn, planned, repeat
from covey.samplers import *

if __name__ == "__main__":
    sampler = MultiShotMemorySampler(X, Y, 3, 2, 5, augmenter=repeat, warmup=2, workers=2)
    single = SingleShotMemorySampler(X, repeat, 4, 5)
    files = MultiShotFileSampler(["a"] * 60, Y, lambda path: np.zeros(3))
    arrays = (*sampler[0], *single[0], *files[0])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = [x.tolist() for x, _ in pool.map(sampler.__getitem__, range(5))]
    found = {
        "types": sorted({type(each).__module__ for each in arrays}),
        "frameworks": [each.framework for each in (sampler, single, files)],
        "batches": [drawn(sampler), drawn(sampler)],
        "planned": planned(sampler, range(10)),
        "counts": [sampler.epoch, len(list(single)), len(select_examples(X, Y, [1], 2)[1])],
        "spawned": spawned,
    }
    for framework in ("torch", "tensorflow", "jax"):
        try:
            MultiShotMemorySampler(X, Y, 3, framework=framework)[0]
        except ImportError as error:
            found[framework] = str(error)
    print(json.dumps(found))
"""


def test_without_frameworks(tmp_path):
    script = tmp_path / "without.py"
    script.write_text(WITHOUT_FRAMEWORKS)
    found = run(script)
    assert found["types"] == ["numpy"]
    assert found["frameworks"] == ["numpy"] * 3
    expected = [[each for each in ids for _ in range(2)] for ids in found["planned"]]
    assert list(chain(*found["batches"])) == expected
    assert found["spawned"] == expected[:5]
    assert found["counts"] == [2, 5, 2]
    for framework in ("torch", "tensorflow", "jax"):
        assert "pip install" in found[framework]


# Errors, of the constructor or of the first batch.

ARGUMENTS = {
    multi: [
        ("classes_per_batch", 0), ("classes_per_batch", 2.5), ("classes_per_batch", 11),
        ("classes_per_batch", number_of), ("examples_per_class_per_batch", 0),
        ("steps_per_epoch", 0), ("steps_per_epoch", None), ("warmup", 0.5),
        ("total_examples_per_class", 0), ("augmenter", 3), ("load_example_fn", "x"),
        ("framework", "mxnet"), ("augmenter_framework", "mxnet"), ("seed", -1),
        ("class_list", "12"), ("class_list", 5), ("rank", 1),
        ("num_augmentations_per_example", -1),
    ],
    single: [("augmenter", None), ("num_augmentations_per_example", 0), ("seed", -1)],
    select_examples: [
        ("num_examples_per_class", 0), ("class_list", 5), ("class_list", "12"), ("seed", -1),
    ],
}  # fmt: skip
VALID = {
    multi: {"x": X, "y": Y},
    single: {"x": X, "augmenter": repeat, "class_per_batch": 5},
    select_examples: {"x": X, "y": Y},
}


@pytest.mark.parametrize("function", ARGUMENTS)
def test_invalid_arguments(function):
    for option, value in ARGUMENTS[function]:
        with pytest.raises(ValueError, match="must be") as caught:
            function(**{**VALID[function], option: value})
        assert isinstance(caught.value, CoveyError)
        assert (caught.value.option, caught.value.found) == (option, value)
        assert "by name" in caught.value.remedy or value is not number_of


def returning(result):
    return lambda *_: result


REFUSED = [
    (multi, {"class_list": [1, 77]}, "no record of class 77"),
    (multi, {"class_list": [1, 2.5]}, "2.5"),
    (multi, {"class_list": [1, None]}, "None"),
    (multi, {"class_list": []}, "must be <= 0"),
    (multi, {"class_list": [1, 1, 1]}, "must be <= 1"),
    (select_examples, {"class_list": [77]}, "no record of class 77"),
    (multi, {"y": np.eye(10)[Y]}, r"shape of y is \(60, 10\)"),
    (multi, {"y": Y + 0.5}, "0.5 for example 0; must be an integer"),
    (multi, {"y": np.where(Y == 3, np.nan, Y)}, "y has nan"),
    (multi, {"y": np.where(Y == 3, 1e30, Y)}, "y has 1e[+]30"),
    (multi, {"y": [None] * 60}, "NoneType"),
    (multi, {"y": ["a"] * 30 + [1] * 30}, "str"),
    (multi, {"y": [[1], [1, 2]] * 30}, "shape"),
    (multi, {"y": 3}, "shape"),
    (multi, {"y": Y.astype(complex)}, "complex"),
    (multi, {"y": Y[:-1]}, "length of y is 59; must be 60"),
    (multi, {"y": np.append(Y, 1)}, "length of y is 61; must be 60"),
    *((function, {"x": x}, "^x: it is of type") for function in (multi, single)
      for x in ("abc", 7, None, {"a": ROWS}, iter(ROWS), np.float32(3))),
    (multi, {"x": [np.zeros(number) for number in range(60)]},
     "different shapes.*resize them with load_example_fn="),
    *((function, {"augmenter": returning(result)}, "^step 0: .*result of the augmenter is")
      for function in (multi, single)
      for result in (None, X, (X,), (X, Y, X), "xy", 5, {"x": X, "y": Y}, np.zeros((2, 3)))),
    *((function, {"augmenter": returning(result)}, "^step 0: the batch has no examples; the aug")
      for function in (multi, single) for result in ((X[:0], Y[:0]), ({"a": X[:0]}, Y))),
    *((multi, {"load_example_fn": returning(result)}, "load_example_fn returned .*must be one")
      for result in (None, {"image": 1}, (np.zeros(3), 1))),
    (single, {"examples_per_batch": 5}, "exactly one of them must be passed"),
    (single, {"class_per_batch": None}, "exactly one of them must be passed"),
    (single, {"class_per_batch": 61}, "61 examples, but there are only 60"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "options", "message"), REFUSED)
def test_what_is_refused(function, options, message):
    with pytest.raises(CoveyError, match=message) as caught:
        function(**{**VALID[function], **options})[0]
    if "load_example_fn" in options:
        number = multi(X, Y).plan.batch(0)[0]
        assert caught.value.__notes__ == [f"in load_example_fn of example {number}: {number}"]


# What every sampler does: the contract.


class Steps(Sampler):
    """A sampler of a user: x is the step."""

    def _get_examples(self, batch_id, num_classes, examples_per_class):
        y = np.repeat(np.arange(num_classes), examples_per_class)
        return y * 0 + self.step(batch_id), y


SAMPLERS = {
    "multi": lambda **options: MultiShotMemorySampler(X, Y, 6, 2, 4, **options),
    "single": lambda augmenter=identity, **options: SingleShotMemorySampler(
        X, augmenter, 12, 4, **{"num_augmentations_per_example": 1, **options}
    ),
    "file": lambda **options: MultiShotFileSampler(X, Y, int, 6, 2, 4, **options),
    "subclass": lambda **options: Steps(6, 2, 4, **options),
}
TENSORS = {"numpy": np.ndarray, "torch": torch.Tensor, "tensorflow": tf.Tensor, "jax": jnp.ndarray}


def same(left, right):
    return all(np.array_equal(np.asarray(a), b) for a, b in zip(left, right, strict=True))


@pytest.fixture(params=SAMPLERS)
def make(request):
    return SAMPLERS[request.param]


@pytest.mark.parametrize("framework", TENSORS)
def test_batches_are_tensors_of_the_framework(make, framework):
    sampler, expected = make(framework=framework), make(framework="numpy")
    again = pickle.loads(pickle.dumps(sampler))
    pairs = [(sampler[3], expected[3]), (again[3], expected[3]), (next(iter(sampler)), expected[0])]
    if hasattr(sampler, "get_slice"):
        pairs.append((sampler.get_slice(2, 5), expected.get_slice(2, 5)))
    for found, batch in pairs:
        assert all(isinstance(part, TENSORS[framework]) for part in found)
        assert same(found, batch)


@pytest.mark.parametrize("framework", TENSORS)
@pytest.mark.parametrize("given", TENSORS)
def test_types_of_an_augmenter(make, given, framework):
    """It receives the type it asks for, and may return tensors of two frameworks."""
    seen = []

    def augment(x, y, count, is_warmup):
        seen.extend((x, y))
        x, y = np.asarray(x), np.asarray(y)
        return tf.concat([x, x], 0), torch.from_numpy(np.concatenate([y, y]))

    sampler = make(augmenter=augment, augmenter_framework=given, framework=framework)
    for part, expected in zip(sampler[0], make(framework="numpy")[0], strict=True):
        assert isinstance(part, TENSORS[framework]) or framework in ("torch", "jax")
        assert np.array_equal(np.asarray(part)[12:], expected)
    assert all(isinstance(each, TENSORS[given]) for each in seen)


def test_nested_results_and_the_step_of_an_augmenter(make):
    calls = []

    def augment(x, y, count, is_warmup, *, step):
        calls.append((x, y, is_warmup, step))
        return [{"a": x, "b": (x, -x)}, y.tolist()]

    sampler, plain = make(augmenter=augment, framework="numpy"), make(framework="numpy")
    sampler.epoch = plain.epoch = 4
    x, y = sampler[3]
    ((given_x, given_y, *others),) = calls
    assert same((given_x, given_y), plain[3])
    assert others == [False, 19]
    assert same((*x["b"], y), (given_x, -given_x, given_y))
    assert isinstance(x["b"], tuple)
    assert y.dtype == np.int64
    assert sampler.batch_size == 12
    sampler.augmenter = lambda x, y, *_: ([x, x + 1], y)
    assert [len(view) for view in sampler[3][0]] == [12, 12]
    sampler.augmenter = None
    assert same(sampler[3], plain[3])


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("kind", ["multi", "single", "file"])
def test_ranks(kind, world_size):
    make = functools.partial(SAMPLERS[kind], framework="numpy", seed=3)
    ranks = [make(rank=rank, world_size=world_size) for rank in range(world_size)]
    for parts, batch in zip(zip(*ranks, strict=True), make(), strict=True):
        assert same(map(np.concatenate, zip(*parts, strict=True)), batch)
    for rank in range(world_size):
        alone = make(rank=rank, world_size=world_size, mode="independent")
        assert drawn(alone) == planned(make(), range(rank, 4 * world_size, world_size))


SLICES = [(58, 3, slice(58, 60)), (61, -1, slice(0)), (61, 2, slice(0)), (0, 61, slice(60)),
          (-3, 2, slice(57, 59)), (-2, -1, slice(58, 60)), (-99, 3, slice(3)), (5, 0, slice(0)),
          (1, 3, slice(1, 4))]  # fmt: skip


@pytest.mark.parametrize("kind", ["multi", "single", "file"])
def test_slices(kind):
    sampler = SAMPLERS[kind](framework="numpy")
    x, y = sampler.get_slice()
    assert sorted(x.tolist()) == X.tolist()
    assert same([y], [x if kind == "single" else Y[x]])
    for begin, size, expected in SLICES:
        assert same(sampler.get_slice(begin, size), (x[expected], y[expected]))
    with pytest.raises(PlanError, match="size is -2"):
        sampler.get_slice(0, -2)


def test_class_weights():
    sampler = multi(X, Y, 2, 1, 400, class_weights={3: 0, 4: 4})
    counts = Counter(label for _, y in sampler for label in y.tolist())
    assert 3 not in counts
    assert 3.5 < counts[4] / counts[5] < 4.5


def test_order_and_classes_of_slices():
    names = np.array(["gull", "owl", "wren"])[Y % 3]
    sampler = multi(X, names, class_list=["owl", "wren"], total_examples_per_class=7)
    x, y = sampler.get_slice()
    assert sorted(sampler.index_per_class) == ["owl", "wren"]
    for name, positions in sampler.index_per_class.items():
        assert len(positions) == 7
        assert set(y[positions].tolist()) == {name}
    assert set(names[x].tolist()) == {"owl", "wren"}
    assert len(set(multi(X, np.sort(Y), seed=1).get_slice(0, 20)[1].tolist())) > 5
    assert x.tolist() != multi(X, names, class_list=["owl", "wren"], seed=1).get_slice()[0].tolist()
    augmented = single(X + 100, repeat, 5).get_slice(2, 3)
    assert same(augmented, ([102, 102, 103, 103, 104, 104], [2, 2, 3, 3, 4, 4]))
    later = single(X, repeat, examples_per_batch=5, steps_per_epoch=4)
    assert drawn(later) == drawn(single(X, repeat, class_per_batch=5, steps_per_epoch=4))


# Small guarantees.


def test_bytes_bools_and_names():
    x = [b"%d\0\0" % number for number in range(60)]  # zeros at the end remain
    assert multi(x, Y, 3)[0][0].tolist() == [x[each] for each in multi(x, Y, 3).plan.batch(0)]
    sampler = multi(X, Y > 6, 1, class_list=[True])
    assert (sampler.class_list, sampler[0][1].tolist()) == ([True], [True, True])
    assert multi(X, Y > 6, 1, class_list=np.array([False])).num_examples == 42
    names = [f"c{label}" for label in Y]
    assert multi(X, names, 2, class_list=tf.constant(["c1", "c4"])).class_list == ["c1", "c4"]
    with pytest.raises(AttributeError, match="no attribute 'NoSampler'"):
        samplers.NoSampler  # noqa: B018


def test_keras_without_pydataset(monkeypatch):
    keras = types.ModuleType("keras")
    keras.utils = types.ModuleType("keras.utils")
    monkeypatch.setitem(sys.modules, "keras", keras)
    found = runpy.run_path(sys.modules["covey.adapters.keras"].__file__)
    assert found["KerasDataset"]().prefetch_workers == 1
    assert found["backend"]() == "numpy"
