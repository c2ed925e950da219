"""Samplers of what is in memory and in files: TensorFlow Similarity's, with exact batches."""

import functools
import inspect
import multiprocessing
import pickle
import runpy
import sys
import threading
import types
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import h5py
import jax.numpy as jnp
import numpy as np
import pandas as pd
import PIL.Image
import pytest
import tensorflow as tf
import torch
from hypothesis import given
from hypothesis import strategies as st
from loaded import settles
from sampled import Lazy, X, Y, comes_evenly, drawn, most_memory, planned, run, same, twice

from covey import CoveyError, samplers
from covey.errors import PlanError, SmallClassesWarning
from covey.samplers import (
    MultiShotFileSampler,
    MultiShotMemorySampler,
    Sampler,
    SingleShotMemorySampler,
    TFDatasetMultiShotMemorySampler,
    load_image,
    select_examples,
)

multi = functools.partial(MultiShotMemorySampler, framework="numpy")
single = functools.partial(SingleShotMemorySampler, framework="numpy")

REQUIRED = inspect.Parameter.empty


def arguments(kind):
    """What can be passed by position, with its default."""
    found = inspect.signature(kind).parameters.values()
    return [(each.name, each.default) for each in found if each.kind is each.POSITIONAL_OR_KEYWORD]


# What can be passed.


def test_arguments_and_their_order_are_those_that_users_know():
    common = [
        ("examples_per_class_per_batch", 2),
        ("steps_per_epoch", 1000),
        ("class_list", None),
        ("total_examples_per_class", None),
    ]
    assert arguments(Sampler) == [
        ("classes_per_batch", REQUIRED),
        ("examples_per_class_per_batch", 2),
        ("steps_per_epoch", 1000),
        ("augmenter", None),
        ("warmup", -1),
    ]
    assert arguments(MultiShotMemorySampler) == [
        ("x", REQUIRED),
        ("y", REQUIRED),
        ("classes_per_batch", 2),
        *common,
        ("augmenter", None),
        ("load_example_fn", None),
        ("warmup", -1),
    ]
    assert arguments(MultiShotFileSampler) == [
        ("x", REQUIRED),
        ("y", REQUIRED),
        ("load_example_fn", load_image),
        ("classes_per_batch", 2),
        *common,
        ("augmenter", None),
        ("warmup", -1),
    ]
    (*first, per_batch, steps, warmup) = arguments(SingleShotMemorySampler)
    assert first == [("x", REQUIRED), ("augmenter", REQUIRED)]
    assert per_batch[0] == "class_per_batch"
    assert (steps, warmup) == (("steps_per_epoch", 1000), ("warmup", -1))
    (*first, splits, k, steps, classes, total, preprocess, augmenter, warmup) = arguments(
        TFDatasetMultiShotMemorySampler
    )
    assert first == [
        ("dataset_name", REQUIRED),
        ("classes_per_batch", REQUIRED),
        ("x_key", "image"),
        ("y_key", "label"),
    ]
    assert (splits[0], list(splits[1])) == ("splits", ["train", "test"])
    assert [k, steps, classes, total] == common
    assert [preprocess, augmenter, warmup] == [
        ("preprocess_fn", None),
        ("augmenter", None),
        ("warmup", -1),
    ]
    names = list(inspect.signature(select_examples).parameters)
    assert names[:4] == ["x", "y", "class_list", "num_examples_per_class"]
    for kind in (Sampler, MultiShotMemorySampler, SingleShotMemorySampler):
        assert list(inspect.signature(kind.get_examples).parameters)[:4] == [
            "self",
            "batch_id",
            "num_classes",
            "examples_per_class",
        ]


def test_everything_by_position_does_what_it_does_by_name():
    def double(x):
        return 2 * x

    by_position = multi(X, Y, 2, 3, 7, [1, 2, 3], 4, same, double, 5)
    by_name = multi(
        x=X,
        y=Y,
        classes_per_batch=2,
        examples_per_class_per_batch=3,
        steps_per_epoch=7,
        class_list=[1, 2, 3],
        total_examples_per_class=4,
        augmenter=same,
        load_example_fn=double,
        warmup=5,
    )
    assert drawn(by_position) == drawn(by_name)
    assert (len(by_position), by_position.num_examples, by_position.warmup) == (7, 12, 5)
    assert all(x[0] % 2 == 0 for x, _ in by_position)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes_per_batch": 0}, "classes_per_batch is 0"),
        ({"classes_per_batch": 2.5}, "classes_per_batch is 2.5"),
        ({"examples_per_class_per_batch": 0}, "examples_per_class_per_batch is 0"),
        ({"steps_per_epoch": 0}, "steps_per_epoch is 0"),
        ({"steps_per_epoch": None}, "steps_per_epoch is None"),
        ({"warmup": 0.5}, "warmup is 0.5"),
        ({"total_examples_per_class": 0}, "total_examples_per_class is 0"),
        ({"augmenter": 3}, "augmenter is 3"),
        ({"load_example_fn": "x"}, "load_example_fn is 'x'"),
        ({"framework": "mxnet"}, "framework is 'mxnet'.*'tensorflow', 'torch', 'jax', 'numpy'"),
        ({"seed": -1}, "seed is -1"),
        ({"class_list": "12"}, "class_list is '12'"),
        ({"class_list": 5}, "class_list is 5"),
        ({"class_list": [1, 77]}, "no record of class 77"),
        ({"class_list": [1, 2.5]}, "2.5"),
        ({"class_list": [1, None]}, "None"),
        ({"class_list": []}, "must be <= 0"),
        ({"class_list": [1, 1, 1]}, "classes_per_batch is 2; must be <= 1"),
        ({"classes_per_batch": 11}, "classes_per_batch is 11; must be <= 10"),
        ({"rank": 2, "world_size": 2}, "rank is 2"),
    ],
    ids=str,
)
def test_invalid_arguments(wrong, message):
    with pytest.raises(ValueError, match=message):
        MultiShotMemorySampler(X, Y, **wrong)


# Every batch: P classes, K examples.


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    p=st.integers(1, 9),
    k=st.integers(1, 5),
    seed=st.integers(0, 2**64 - 1),
)
def test_every_batch_has_exactly_p_classes_with_k_examples_and_all_come_evenly(sizes, p, k, seed):
    p = min(p, len(sizes))
    labels = np.repeat(np.arange(len(sizes)) * 7 - 3, sizes)
    y = np.random.default_rng(seed).permutation(labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallClassesWarning)
        sampler = multi(np.arange(len(y)), y, p, k, 12, seed=seed)
    classes, examples = [], {label: [] for label in labels.tolist()}
    for _ in range(3):
        for x, found in sampler:
            assert np.array_equal(y[x], found)
            assert np.unique(found, return_counts=True)[1].tolist() == [k] * p
            classes += found[::k].tolist()
            for label, group in zip(found[::k].tolist(), x.reshape(p, k).tolist(), strict=True):
                examples[label] += group
                assert len(set(group)) == min(k, len(group), (y == label).sum())
    assert comes_evenly(classes, np.unique(y).tolist())
    for label, seen in examples.items():
        assert comes_evenly(seen, np.flatnonzero(y == label).tolist())


def test_more_classes_per_batch_than_classes():
    for labels, count, options in [(Y % 3, 4, {}), (Y, 3, {"class_list": [1, 2]})]:
        with pytest.raises(PlanError) as caught:
            multi(X, labels, count, **options)
        error = caught.value
        assert isinstance(error, ValueError)
        assert (error.option, error.found) == ("classes_per_batch", count)
        assert error.allowed.startswith(f"<= {count - 1},")
    assert len(np.unique(multi(X, Y % 3, 3)[0][1])) == 3


def small(*arguments, told, **options):
    """A sampler that says once that classes are small, which is all that is ever said."""
    with pytest.warns(SmallClassesWarning, match=told) as warned:
        sampler = multi(*arguments, **options)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    return sampler


def test_classes_smaller_than_k_repeat_examples_with_one_warning():
    y = np.array([0] * 2 + [1] * 30)
    sampler = small(np.arange(32), y, 2, 4, 10, told=r"1 class has fewer than 4 .*'0' \(2\)")
    assert len(pickle.loads(pickle.dumps(sampler))[3][0]) == 8
    for x, found in [*sampler, *sampler]:
        assert Counter(found.tolist()) == {0: 4, 1: 4}
        assert Counter(x[found == 0].tolist()) == {0: 2, 1: 2}
        assert len(set(x[found == 1].tolist())) == 4


def test_total_examples_per_class_below_k_repeats_them_with_one_warning():
    told = "10 classes have fewer than 4"
    sampler = small(X, Y, 3, 4, 30, total_examples_per_class=2, told=told)
    assert {number for x, _ in sampler for number in x.tolist()} == set(range(20))


@given(total=st.integers(1, 9), k=st.integers(1, 3), seed=st.integers(0, 99))
def test_total_examples_per_class_keeps_so_many_distinct_ones(total, k, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallClassesWarning)
        sampler = multi(X, Y, 5, k, 40, total_examples_per_class=total, seed=seed)
    shown = np.unique(np.concatenate([x for x, _ in sampler]))
    assert Counter(Y[shown].tolist()) == dict.fromkeys(range(10), min(total, 6))
    assert sampler.num_examples == len(shown)


CLASS_LISTS = {
    "list": [7, 2, 5],
    "twice": [7, 2, 2, 5, 7],
    "tuple": (7, 2, 5),
    "set": {7, 2, 5},
    "range": range(2, 8),
    "numpy": np.array([7, 2, 5], np.int8),
    "column": np.array([[7], [2], [5]]),
    "floats": [7.0, 2.0, 5.0],
    "texts": ["7", "2", "5"],
    "torch": torch.tensor([7, 2, 5]),
    "tensorflow": tf.constant([7, 2, 5]),
    "jax": jnp.array([7, 2, 5]),
    "tensors": [torch.tensor(7), tf.constant(2), jnp.array(5)],
}


@pytest.mark.parametrize("kind", CLASS_LISTS)
def test_a_class_list_really_filters(kind):
    wanted = list(range(2, 8)) if kind == "range" else [2, 5, 7]
    sampler = multi(X, Y, 2, 2, 30, class_list=CLASS_LISTS[kind])
    assert {label for _, y in sampler for label in y.tolist()} == set(wanted)
    assert sampler.class_list == wanted
    assert sampler.num_examples == 6 * len(wanted)


def test_a_class_list_may_be_an_iterator():
    assert multi(X, Y, 2, class_list=(each for each in (3, 4))).class_list == [3, 4]


def test_a_class_list_of_bools_for_labels_that_are():
    sampler = multi(X, Y > 6, 1, class_list=[True])
    assert sampler.class_list == [True]
    assert sampler[0][1].tolist() == [True, True]
    assert multi(X, Y > 6, 1, class_list=np.array([False])).num_examples == 42


def test_classes_are_listed_by_tensors_of_texts():
    y = [f"c{label}" for label in Y]
    assert multi(X, y, 2, class_list=tf.constant(["c1", "c4"])).class_list == ["c1", "c4"]
    assert (
        multi(X, [tf.constant(each) for each in y], 2)[0][0].tolist()
        == multi(X, y, 2)[0][0].tolist()
    )


# Labels, and examples, of all kinds.

TEXTS = [f"bird {label}" for label in Y]
LABELS = {
    "int8": Y.astype(np.int8),
    "uint64": Y.astype(np.uint64),
    "negative": -Y,
    "column": Y[:, None],
    "whole floats": Y.astype(np.float32),
    "texts": TEXTS,
    "array of strings": np.array(TEXTS),
    "objects": np.array(TEXTS, object),
    "column of strings": np.array(TEXTS)[:, None],
    "bytes": [each.encode() for each in TEXTS],
    "bools": Y > 4,
    "list": Y.tolist(),
    "tuple": tuple(Y.tolist()),
    "torch": torch.from_numpy(Y),
    "torch column": torch.from_numpy(Y)[:, None],
    "tensorflow": tf.constant(Y),
    "tensorflow strings": tf.constant(TEXTS),
    "jax": jnp.asarray(Y),
    "tensors of torch": [torch.tensor(label) for label in Y],
    "tensors of tensorflow": [tf.constant(label) for label in Y],
    "arrays of jax": [jnp.asarray(label) for label in Y],
    "series": pd.Series(TEXTS, index=range(5, 65)),
    "categories": pd.Series(TEXTS).astype("category"),
    "strided": np.repeat(Y, 2)[::2],
    "read only": np.frombuffer(Y.tobytes(), Y.dtype),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_may_be_of_any_kind_and_come_as_they_are(kind):
    given = LABELS[kind]
    sampler = multi(X, given, 2, 3, 20, seed=3)
    expected = np.asarray(given)
    for x, y in sampler:
        assert isinstance(y, np.ndarray)
        assert (y.dtype, y.shape) == (expected.dtype, (6, *expected.shape[1:]))
        assert np.array_equal(y, expected[x])
        assert sorted(Counter(y.reshape(-1).tolist()).values()) == [3, 3]
    assert sampler.class_list == sorted(set(expected.reshape(-1).tolist()))


@pytest.mark.parametrize(
    ("y", "told"),
    [
        (np.eye(10)[Y], r"shape \(60, 10\)"),
        (Y + 0.5, "0.5 for example 0; must be an integer"),
        (np.where(Y == 3, np.nan, Y), "y has"),
        (np.where(Y == 3, np.inf, Y), "y has"),
        (np.where(Y == 3, 1e30, Y), "y has"),
        ([None] * 60, "NoneType"),
        (["a"] * 30 + [1] * 30, "str"),
        ([[1], [1, 2]] * 30, "shape"),
        (3, "shape"),
        (Y.astype(complex), "complex"),
        (Y[:-1], "x has 60 examples and y has 59"),
        (np.append(Y, 1), "x has 60 examples and y has 61"),
        (np.zeros(0, int), "x has 60 examples and y has 0"),
    ],
    ids=lambda each: each.replace(".*", " ") if isinstance(each, str) else "",
)
def test_labels_that_are_no_classes_are_refused(y, told):
    with pytest.raises(ValueError, match=told) as caught:
        multi(X, y)
    assert isinstance(caught.value, CoveyError)


ROWS = np.arange(180, dtype=np.float32).reshape(60, 3)
WIDE = np.arange(360, dtype=np.float32).reshape(60, 6)
EXAMPLES = {
    "rows": ROWS,
    "images": np.arange(60 * 24).astype(np.uint8).reshape(60, 4, 3, 2),
    "numbers": np.arange(60, dtype=np.int16),
    "fortran": np.asfortranarray(ROWS),
    "every other": WIDE[:, ::2],
    "backwards": ROWS[::-1],
    "turned": np.ascontiguousarray(ROWS.T).T,
    "read only": np.frombuffer(ROWS.tobytes(), np.float32).reshape(60, 3),
    "no columns": np.zeros((60, 0)),
    "big endian": ROWS.astype(">f4"),
    "bools": ROWS % 2 == 0,
    "halves": ROWS.astype(np.float16),
    "complex": ROWS + 1j,
    "dates": ROWS.astype(int).astype("datetime64[D]"),
    "texts": np.array([f"example {number}" for number in range(60)]),
    "objects": np.array([f"example {number}" for number in range(60)], object),
    "records": np.array([(n, n / 2) for n in range(60)], [("a", "<i4"), ("b", "<f4")]),
    "list of arrays": list(ROWS),
    "list of lists": ROWS.tolist(),
    "list of strings": [f"example {number}" for number in range(60)],
    "tuple": tuple(range(60)),
    "range": range(7, 67),
    "torch": torch.from_numpy(ROWS),
    "torch turned": torch.from_numpy(np.ascontiguousarray(ROWS.T)).t(),
    "tensorflow": tf.constant(ROWS),
    "tensorflow variable": tf.Variable(ROWS),
    "tensorflow strings": tf.constant([f"example {number}" for number in range(60)]),
    "jax": jnp.asarray(ROWS),
    "tensors of torch": list(torch.from_numpy(ROWS)),
    "tensors of tensorflow": list(tf.constant(ROWS)),
    "arrays of jax": list(jnp.asarray(ROWS)),
    "frame": pd.DataFrame(ROWS, index=range(60, 120)),
    "lazy": Lazy(60, lambda number: ROWS[number]),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_examples_may_be_of_any_kind_and_come_as_they_are(kind):
    given = EXAMPLES[kind]
    expected = ROWS if kind == "lazy" else np.asarray(given)
    for sampler in (multi(given, Y, 3, 2, 5, seed=1), single(given, same, 6, 5, seed=1)):
        for (x, _), ids in zip(sampler, planned(sampler, range(5)), strict=True):
            assert isinstance(x, np.ndarray)
            assert x.dtype == expected.dtype or "texts" in kind
            assert x.shape == expected[ids].shape
            assert np.array_equal(x, expected[ids])
        assert sampler.example_shape == expected.shape[1:]
    chosen, _ = select_examples(given, Y, [3], seed=1)
    assert sorted(map(str, chosen.tolist())) == sorted(map(str, expected[Y == 3].tolist()))


def test_a_file_that_is_mapped_is_read_where_batches_want_it(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    sampler = multi(np.load(tmp_path / "x.npy", mmap_mode="r"), Y, 3)
    assert np.array_equal(sampler[0][0], ROWS[sampler.plan.batch(0)])


def test_x_may_be_a_tensor_that_has_a_gradient():
    sampler = multi(torch.from_numpy(ROWS).requires_grad_(), Y, 3)
    assert np.array_equal(sampler[0][0], ROWS[sampler.plan.batch(0)])


def test_bytes_arrive_with_all_their_zeros():
    x = [b"%d\0\0" % number for number in range(60)]
    assert multi(x, Y, 3)[0][0].tolist() == [x[each] for each in multi(x, Y, 3).plan.batch(0)]


@pytest.mark.parametrize(
    "x",
    ["abc", 7, None, {"a": ROWS}, iter(ROWS), np.float32(3)],
    ids=["text", "number", "none", "dict", "iterator", "scalar"],
)
def test_inputs_without_examples(x):
    with pytest.raises(CoveyError, match=r"^x: it is"):
        multi(x, Y)


def test_examples_of_different_shapes_are_refused():
    with pytest.raises(CoveyError, match=r"different shapes, .*load_example_fn"):
        multi([np.zeros(number) for number in range(60)], Y)[0]


# Memory.


def test_x_is_not_copied():
    big = np.zeros((40_000, 1000), np.uint8)
    kinds = {
        "rows": big,
        "turned": big.T.reshape(40_000, 1000, order="F"),
        "every other": big[:, ::2],
        "torch": torch.from_numpy(big),
        "tensorflow": tf.constant(big),
        "jax": jnp.asarray(big).block_until_ready(),
    }
    y = np.arange(40_000) % 100
    for kind, x in kinds.items():
        with most_memory() as bytes_more:
            multi(x, y, 4, 2)[0]
            single(x, same, 8)[0]
        assert bytes_more[0] < 4e6, kind


def test_what_is_done_to_x_is_seen_by_batches_and_never_the_other_way():
    x = np.arange(60)
    sampler = multi(x, Y, 3, augmenter=in_place)
    first = sampler[0][0]
    assert np.array_equal(x, np.arange(60))
    x += 1
    assert np.array_equal(sampler[0][0], first + 1)
    assert np.array_equal(x, np.arange(60) + 1)


def in_place(x, y, count, is_warmup):
    x += 1000
    y += 1000
    return x, y


def test_an_augmenter_that_works_in_place_changes_nothing_but_its_slice():
    x = np.arange(60)
    sampler = single(x, in_place, 5)
    sampler[0]
    assert sampler.get_slice(0, 3)[0].tolist() == [1000, 1001, 1002]
    assert np.array_equal(x, np.arange(60))


def test_what_is_done_to_a_slice_is_not_done_to_x():
    x, y = np.arange(60), Y.copy()
    for part in multi(x, y, 3).get_slice(0, 5):
        if part.flags.writeable:
            part += 1000
    assert np.array_equal(x, np.arange(60))
    assert np.array_equal(y, Y)


def test_an_array_on_disk_stays_there(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros((20_000, 1000), np.uint8)
        y = np.arange(20_000) % 10
        with most_memory() as bytes_more:
            assert multi(file["x"], y, 3)[0][0].shape == (6, 1000)
        assert bytes_more[0] < 4e6


@pytest.mark.parametrize("kind", ["mapped", "lazy"])
def test_a_hundred_million_elements_need_no_list_of_them(tmp_path, kind):
    count, x = 100_000_000, Lazy(100_000_000)
    if kind == "mapped":
        with open(tmp_path / "sparse", "wb") as file:
            file.truncate(4 * count)
        x = np.memmap(tmp_path / "sparse", np.int32, "r")
    with most_memory() as bytes_more:
        sampler = single(x, same, 512)
        batches = [sampler[step][1] for step in (0, 1, 999)]
    assert bytes_more[0] < 1e6
    drawn = np.concatenate(batches)
    assert len(np.unique(drawn)) == len(drawn) == 3 * 512
    assert drawn.max() > count // 2
    assert kind == "mapped" or sorted(x.asked) == sorted(drawn.tolist())


def test_counting_examples_needs_no_list_of_them():
    sampler = multi(range(500_000), np.arange(500_000) % 10, 3)
    with most_memory() as bytes_more:
        assert sampler.num_examples == 500_000
    assert bytes_more[0] < 1e6


# Steps and epochs.


def test_a_batch_is_a_function_of_the_seed_the_epoch_and_its_number():
    first, again, other = (multi(X, Y, 3, 2, 9, seed=seed) for seed in (5, 5, 6))
    assert drawn(first) + drawn(first) == drawn(again) + drawn(again)
    assert drawn(other) != planned(first, range(9))
    assert [first.epoch, again.epoch, other.epoch] == [2, 2, 1]


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_epochs_go_on_where_the_last_one_ended(workers):
    sampler = multi(X, Y, 3, 2, 7, seed=1, workers=workers)
    epochs = [drawn(sampler) for _ in range(3)]
    assert list(chain(*epochs)) == planned(sampler, range(21))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert sampler.epoch == 3


@pytest.mark.parametrize("make", [multi, lambda x, y, *rest, **kw: single(x, same, 6, 7, **kw)])
def test_setting_the_epoch_goes_on_exactly_there(make):
    straight, resumed = make(X, Y, 3, 2, 7, seed=2), make(X, Y, 3, 2, 7, seed=2)
    epochs = [drawn(straight) for _ in range(6)]
    resumed.epoch = 4
    assert [drawn(resumed), drawn(resumed)] == epochs[4:]
    resumed.epoch = 10**9
    assert drawn(resumed) == planned(resumed, range(7 * 10**9, 7 * 10**9 + 7))


def test_the_length_is_that_of_an_epoch_whatever_the_data():
    assert len(multi(X, Y)) == 1000
    assert len(multi(X, Y, steps_per_epoch=3)) == 3
    assert len(list(single(X, same, 4, 5))) == 5


def test_a_batch_that_an_epoch_does_not_have_is_an_index_error():
    sampler = multi(X, Y, steps_per_epoch=5)
    for batch_id in (-1, 5, 10**30):
        with pytest.raises(IndexError, match="an epoch has 5"):
            sampler[batch_id]


def test_a_batch_is_asked_for_by_a_whole_number():
    sampler = multi(X, Y)
    assert np.array_equal(sampler[np.int64(3)][0], sampler[3][0])
    for batch_id in (1.5, "1", slice(1, 2), None):
        with pytest.raises(TypeError):
            sampler[batch_id]


def test_an_item_is_what_generate_batch_gives():
    sampler = multi(X, Y, 3, augmenter=twice)
    for found, expected in zip(sampler[4], sampler.generate_batch(4), strict=True):
        assert np.array_equal(found, expected)
    assert sampler.batch_size == 6


def test_threads_that_ask_for_batches_at_once_get_those_of_the_order():
    def noise(x, y, count, is_warmup, step):
        return x + np.random.default_rng(step).random(len(x)), y

    sampler = multi(X, Y, 3, 2, 200, augmenter=noise)
    in_order = [sampler[step] for step in range(200)]
    others = multi(X, Y, 3, 2, 200, augmenter=noise)
    with ThreadPoolExecutor(8) as threads:
        at_once = threads.map(others.__getitem__, range(200))
        for found, expected in zip(at_once, in_order, strict=True):
            assert np.array_equal(found[0], expected[0])
            assert np.array_equal(found[1], expected[1])


def sampler_threads():
    return sum(thread.name.startswith("covey-sampler") for thread in threading.enumerate())


@pytest.mark.parametrize("workers", [1, 4])
def test_an_epoch_that_is_left_is_not_counted_and_comes_again(workers):
    sampler = multi(X, Y, 3, 2, 50, workers=workers)
    for x, _ in sampler:
        assert x.tolist() == planned(sampler, range(1))[0]
        break
    assert sampler.epoch == 0
    assert settles(sampler_threads, 0)
    assert drawn(sampler) == planned(sampler, range(50))
    assert settles(sampler_threads, 0)


@pytest.mark.parametrize("workers", [1, 4])
def test_an_error_of_an_augmenter_comes_behind_the_batches_before_it(workers):
    def fail(x, y, count, is_warmup, step):
        if step == 5:
            raise OverflowError("too bright")
        return x, y

    sampler = multi(X, Y, 3, 2, 20, augmenter=fail, workers=workers)
    seen = []
    with pytest.raises(OverflowError, match="too bright"):
        seen += (x.tolist() for x, _ in iter(sampler))
    assert sampler.epoch == 0
    assert settles(sampler_threads, 0)
    batches = iter(sampler)
    assert [next(batches)[0].tolist() for _ in range(5)] == planned(sampler, range(5))
    with pytest.raises(OverflowError):
        next(batches)


def test_several_epochs_at_once_are_each_in_order():
    one, two = multi(X, Y, 3, 2, 5), multi(X, Y, 3, 2, 5, workers=3)
    pairs = list(zip(one, two, strict=True))
    assert all(np.array_equal(a[0], b[0]) for a, b in pairs)


# Augmenters and the warm-up.


def test_an_augmenter_takes_a_batch_and_what_it_returns_is_the_batch():
    seen = []

    def augment(x, y, examples_per_class, is_warmup):
        seen.append((x, y, examples_per_class, is_warmup))
        return np.concatenate([x, -x, x]), np.concatenate([y, y, y])

    sampler = multi(X, Y, 3, 4, augmenter=augment)
    x, y = sampler[2]
    (given,) = seen
    assert given[0].tolist() == sampler.plan.batch(2).tolist()
    assert np.array_equal(given[1], Y[given[0]])
    assert given[2:] == (4, False)
    assert (len(x), len(y), sampler.batch_size) == (36, 36, 12)
    assert x[12:24].tolist() == (-given[0]).tolist()


class Shift:
    def __init__(self, by=100):
        self.by = by

    def __call__(self, x, y, count, is_warmup):
        return x + self.by, y

    def with_step(self, x, y, count, is_warmup, step):
        return x + step, y


def shift(x, y, count, is_warmup, *, by):
    return x + by, y


@pytest.mark.parametrize(
    "augmenter",
    [
        Shift(),
        functools.partial(shift, by=100),
        lambda x, y, *_: [x + 100, y],
        lambda x, y, count, is_warmup, **options: (x + 100 + len(options), y),
        lambda x, y, count, is_warmup, by=100: (x + by, y),
    ],
    ids=["object", "partial", "list", "options", "default"],
)
def test_an_augmenter_may_be_anything_that_is_called(augmenter):
    sampler = multi(X, Y, 3, augmenter=augmenter)
    assert sampler[7][0].tolist() == (sampler.plan.batch(7) + 100).tolist()


@pytest.mark.parametrize(
    "augmenter",
    [
        Shift().with_step,
        functools.partial(Shift().with_step),
        lambda x, y, count, is_warmup, step=None: (x + step, y),
        lambda x, y, count, is_warmup, *, step: (x + step, y),
    ],
)
def test_an_augmenter_that_takes_the_step_is_told_it_over_all_epochs(augmenter):
    sampler = multi(X, Y, 3, 2, 10, augmenter=augmenter)
    sampler.epoch = 4
    assert sampler[3][0].tolist() == (sampler.plan.batch(43) + 43).tolist()


def test_an_augmenter_may_be_replaced():
    sampler = multi(X, Y, 3, augmenter=Shift())
    plain = sampler[3][0] - 100
    sampler.augmenter = Shift().with_step
    assert np.array_equal(sampler[3][0], plain + 3)
    sampler.augmenter = None
    assert np.array_equal(sampler[3][0], plain)


@pytest.mark.parametrize(
    "returned",
    [None, X, (X,), (X, Y, X), "xy", 5, {"x": X, "y": Y}, np.zeros((2, 3))],
    ids=["none", "x", "one", "three", "text", "number", "dict", "array"],
)
def test_an_augmenter_that_returns_no_pair_is_told_so(returned):
    with pytest.raises(CoveyError, match="augmenter"):
        multi(X, Y, 3, augmenter=lambda *_: returned)[0]


def test_an_augmenter_may_return_several_views():
    x, _ = multi(X, Y, 3, augmenter=lambda x, y, *_: ({"a": x, "b": (x, -x)}, y))[0]
    assert np.array_equal(x["b"][1], -x["a"])
    assert isinstance(x["b"], tuple)


def test_the_warm_up_ends_after_so_many_epochs():
    told = []

    def augment(x, y, count, is_warmup):
        told.append(is_warmup)
        return x, y

    sampler = multi(X, Y, 3, 2, 3, augmenter=augment, warmup=2)
    for _ in range(4):
        list(sampler)
    assert told == [True] * 6 + [False] * 6
    again = single(X, augment, 3, 3, warmup=1)
    assert again.is_warmup
    for batch_id in range(3):
        again[batch_id]
    again.on_epoch_end()
    assert (again.is_warmup, again.epoch) == (False, 1)


@pytest.mark.parametrize("warmup", [0, -1, -7])
def test_a_warm_up_below_one_is_none(warmup):
    seen = []
    multi(X, Y, warmup=warmup, augmenter=lambda x, y, _, warm: seen.append(warm) or (x, y))[0]
    assert seen == [False]


# Samplers of one's own.


class Ours(Sampler):
    """As users of TensorFlow Similarity write them."""

    def __init__(self, x, classes_per_batch=2, examples_per_class_per_batch=3, **options):
        super().__init__(
            classes_per_batch=classes_per_batch,
            examples_per_class_per_batch=examples_per_class_per_batch,
            steps_per_epoch=4,
            augmenter=twice,
            warmup=1,
            **options,
        )
        self.x = x
        self.ended = 0

    def get_examples(self, batch_id, num_classes, examples_per_class):
        y = np.repeat(np.arange(num_classes), examples_per_class)
        return self.x[y] + batch_id, y

    def on_epoch_end(self):
        super().on_epoch_end()
        self.ended += 1


def test_a_sampler_of_ones_own_needs_only_its_examples():
    sampler = Ours(np.array([10, 20]), framework="numpy")
    batches = list(sampler)
    assert len(batches) == len(sampler) == 4
    x, y = batches[3]
    assert y.tolist() == [0] * 9 + [1] * 9
    assert x.tolist() == [13] * 9 + [23] * 9
    assert (sampler.ended, sampler.epoch, sampler.is_warmup, sampler.batch_size) == (1, 1, False, 6)


def test_the_base_without_examples_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Sampler(2)


def test_examples_of_other_sizes_may_be_asked_for():
    sampler = multi(X, Y, 2, 2, seed=4)
    x, y = sampler.get_examples(batch_id=3, num_classes=5, examples_per_class=4)
    assert Counter(y.tolist()).most_common() == [(label, 4) for label in y[::4].tolist()]
    assert np.array_equal(Y[x], y)
    with pytest.raises(ValueError, match="must be <= 10"):
        sampler.get_examples(0, 11, 2)
    x, y = single(X, same, 5).get_examples(0, 7, 1)
    assert len(set(x.tolist())) == 7


# Parts of all, and ranks.


def test_slices_are_of_the_examples_in_their_order():
    sampler = multi(X, Y, 2, class_list=[3, 4])
    assert sampler.num_examples == 12
    x, y = sampler.get_slice()
    assert x.tolist() == [number for number in X.tolist() if Y[number] in (3, 4)]
    assert np.array_equal(y, Y[x])
    assert sampler.get_slice(1, 3)[0].tolist() == x[1:4].tolist()
    assert sampler.get_slice(begin=10, size=2)[0].tolist() == x[10:].tolist()
    assert sampler.get_slice(12)[0].tolist() == sampler.get_slice(3, 0)[0].tolist() == []
    assert multi(X, Y).get_slice(58)[0].tolist() == [58, 59]
    assert multi(X, Y, total_examples_per_class=2).get_slice()[0].tolist() == list(range(20))


@pytest.mark.parametrize(("begin", "size"), [(58, 3), (-1, 2), (61, -1), (0, -2), (0, 61)])
def test_a_slice_beyond_the_examples_is_refused(begin, size):
    for sampler in (multi(X, Y), single(X, same, 3)):
        with pytest.raises(ValueError, match="at most 60, the number of examples"):
            sampler.get_slice(begin, size)


def test_the_shape_of_an_example_is_that_of_what_is_loaded():
    assert multi(ROWS, Y).example_shape == (3,)
    assert multi(X, Y).example_shape == ()
    sampler = multi(["a"] * 60, Y, load_example_fn=lambda path: np.zeros((4, 5, 3)))
    assert sampler.example_shape == (4, 5, 3)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_together_are_the_batch_of_one(world_size):
    for make in (
        lambda **share: multi(X, Y, 5, 2, 4, seed=3, **share),
        lambda **share: single(X, same, 10, 4, seed=3, **share),
    ):
        ranks = [make(rank=rank, world_size=world_size) for rank in range(world_size)]
        for parts, (x, y) in zip(zip(*ranks, strict=True), make(), strict=True):
            assert np.array_equal(np.concatenate([part[0] for part in parts]), x)
            assert np.array_equal(np.concatenate([part[1] for part in parts]), y)


def test_ranks_with_batches_of_their_own_take_turns():
    alone = planned(multi(X, Y, 3, 2, seed=3), range(10))
    ranks = [
        multi(X, Y, 3, 2, 5, seed=3, rank=r, world_size=2, mode="independent") for r in range(2)
    ]
    assert [drawn(rank) for rank in ranks] == [alone[0::2], alone[1::2]]


def test_weights_say_how_often_classes_come():
    sampler = multi(X, Y, 2, 1, 400, class_weights={3: 0, 4: 4})
    counts = Counter(label for _, y in sampler for label in y.tolist())
    assert 3 not in counts
    assert 3.5 < counts[4] / counts[5] < 4.5


# One example per class.


@given(
    count=st.integers(1, 40),
    per_batch=st.integers(1, 40),
    seed=st.integers(0, 2**64 - 1),
)
def test_elements_of_a_batch_are_distinct_and_each_comes_once_per_pass(count, per_batch, seed):
    per_batch = min(count, per_batch)
    sampler = single(range(100, 100 + count), same, per_batch, 17, seed=seed)
    seen = []
    for x, y in [*sampler, *sampler]:
        assert np.array_equal(x, y + 100)
        assert len(set(y.tolist())) == per_batch == len(y)
        seen += y.tolist()
    assert comes_evenly(seen, range(count))


def test_the_augmenter_makes_the_positives():
    sampler = single(ROWS, twice, 5, 10)
    for x, y in sampler:
        assert sorted(Counter(y.tolist()).values()) == [2] * 5
        assert np.array_equal(x, ROWS[y])
    assert len(single(ROWS, twice, 5, num_augmentations_per_example=4)[0][1]) == 20


def test_single_shots_by_their_later_spelling_are_the_same():
    earlier = single(X, twice, class_per_batch=5, steps_per_epoch=4, warmup=1)
    later = single(
        X, twice, examples_per_batch=5, num_augmentations_per_example=2, steps_per_epoch=4, warmup=1
    )
    assert drawn(earlier) == drawn(later)
    assert earlier.batch_size == 5


def test_single_shots_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="exactly one of them must be passed"):
        single(X, twice, 5, examples_per_batch=5)
    with pytest.raises(ValueError, match="exactly one of them must be passed"):
        single(X, twice)
    with pytest.raises(ValueError, match="augmenter is None"):
        single(X, None, 5)
    with pytest.raises(ValueError, match="61 examples, but there are only 60"):
        single(X, twice, 61)
    with pytest.raises(ValueError, match="num_augmentations_per_example is 0"):
        single(X, twice, 5, num_augmentations_per_example=0)


def test_slices_of_single_shots_are_augmented():
    x, y = single(X + 100, twice, 5).get_slice(2, 3)
    assert x.tolist() == [102, 102, 103, 103, 104, 104]
    assert y.tolist() == [2, 2, 3, 3, 4, 4]


# Files.


def test_only_the_examples_of_a_batch_are_loaded():
    paths = Lazy(60, "picture {}".format)
    sampler = multi(paths, Y, 3, load_example_fn=lambda path: int(path.split()[1]))
    x, y = sampler[0]
    assert x.tolist() == sampler.plan.batch(0).tolist() == paths.asked
    assert np.array_equal(Y[x], y)
    series = pd.Series([f"picture {number}" for number in range(60)], index=range(9, 69))
    again = multi(series, Y, 3, load_example_fn=lambda path: int(path.split()[1]))
    assert np.array_equal(again[0][0], x)


def test_an_error_of_load_example_fn_says_of_which_example():
    sampler = multi([f"picture {number}" for number in X], Y, 3, load_example_fn=int)
    with pytest.raises(ValueError, match="invalid literal") as caught:
        sampler[0]
    number = sampler.plan.batch(0)[0]
    assert caught.value.__notes__ == [f"in load_example_fn of example {number}: picture {number}"]


@pytest.mark.parametrize("given", [None, {"image": 1}, (np.zeros(3), 1)], ids=str)
def test_a_load_example_fn_that_gives_no_example_is_told_so(given):
    with pytest.raises(CoveyError, match="load_example_fn"):
        multi(X, Y, 3, load_example_fn=lambda item: given)[0]


@pytest.fixture
def pictures(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(12)]
    for number, path in enumerate(paths):
        PIL.Image.new("RGB", (4, 3), (number, 2 * number, 255)).save(path)
    return paths


def test_images_in_files_are_loaded_from_zero_to_one(pictures):
    image = load_image(pictures[5])
    assert (image.shape, image.dtype) == ((3, 4, 3), np.float32)
    assert image[0, 0].tolist() == [np.float32(5) / 255, np.float32(10) / 255, 1]
    assert load_image(str(pictures[5]), (6, 8)).shape == (6, 8, 3)
    assert load_image(pictures[5], 2).shape == (2, 2, 3)
    grey = pictures[0].parent / "grey.png"
    PIL.Image.new("L", (4, 3), 51).save(grey)
    assert load_image(grey).tolist() == np.full((3, 4, 3), np.float32(0.2)).tolist()


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_file_sampler_has_batches_of_images(pictures, kind):
    y = np.arange(12) % 3
    sampler = MultiShotFileSampler(list(map(kind, pictures)), y, classes_per_batch=2)
    assert sampler.example_shape == (3, 4, 3)
    sampler.framework = "numpy"
    x, found = sampler[1]
    numbers = np.rint(x[:, 0, 0, 0] * 255).astype(int)
    assert numbers.tolist() == sampler.plan.batch(1).tolist()
    assert np.array_equal(found, y[numbers])


def test_a_file_sampler_loads_as_it_is_told(pictures):
    small = functools.partial(load_image, target_size=(2, 2))
    y = np.arange(12) % 3
    sampler = MultiShotFileSampler(
        pictures, y, small, 3, 2, 5, [0, 1, 2], 3, twice, 7, framework="numpy"
    )
    assert (sampler.example_shape, len(sampler), sampler.warmup) == ((2, 2, 3), 5, 7)
    assert (sampler.num_examples, len(sampler[0][1])) == (9, 12)


def test_a_file_that_is_missing_is_told_with_its_example(pictures):
    pictures[3].unlink()
    sampler = MultiShotFileSampler(pictures, np.arange(12), load_image, 12, 1)
    with pytest.raises(FileNotFoundError, match=r"3\.png") as caught:
        sampler[0]
    assert "example 3" in caught.value.__notes__[0]


# Some examples of each class.


@given(
    wanted=st.lists(st.integers(0, 9), min_size=1),
    most=st.one_of(st.none(), st.integers(1, 8)),
    seed=st.integers(0, 2**64 - 1),
)
def test_selected_examples_are_distinct_and_at_most_so_many_of_each_class(wanted, most, seed):
    x, y = select_examples(X + 500, Y, wanted, most, seed=seed)
    assert np.array_equal(Y[x - 500], y)
    assert len(set(x.tolist())) == len(x)
    each = 6 if most is None else min(most, 6)
    assert Counter(y.tolist()) == dict.fromkeys(wanted, each)
    again, _ = select_examples(X + 500, Y, wanted, most, seed=seed)
    assert np.array_equal(x, again)


def test_selected_examples_are_shuffled_by_the_seed():
    orders = [select_examples(X, Y, seed=seed)[0].tolist() for seed in range(3)]
    assert all(sorted(order) == X.tolist() for order in orders)
    assert orders[0] != orders[1] != orders[2]
    some = {tuple(sorted(select_examples(X, Y, [1], 2, seed=seed)[0])) for seed in range(20)}
    assert len(some) > 5


def test_examples_are_selected_of_texts_too():
    x, y = select_examples([f"p{number}" for number in X], TEXTS, ["bird 3"], 2)
    assert y.tolist() == ["bird 3", "bird 3"]
    assert all(int(each[1:]) % 10 == 3 for each in x)


def test_select_examples_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="num_examples_per_class is 0"):
        select_examples(X, Y, num_examples_per_class=0)
    with pytest.raises(ValueError, match="no record of class 77"):
        select_examples(X, Y, [77])
    with pytest.raises(ValueError, match="class_list is 5"):
        select_examples(X, Y, 5)


def test_select_examples_refuses_lengths_that_differ():
    for x, y in ((X[:-3], Y), (X, Y[:-3])):
        with pytest.raises(ValueError, match="x has"):
            select_examples(x, y)


def test_select_examples_refuses_a_text_as_class_list():
    with pytest.raises(ValueError, match="class_list is '12'"):
        select_examples(X, Y, "12")


# Frameworks.


TENSORS = {"numpy": np.ndarray, "torch": torch.Tensor, "tensorflow": tf.Tensor, "jax": jnp.ndarray}


@pytest.mark.parametrize(("framework", "kind"), TENSORS.items())
def test_the_framework_says_what_batches_are(framework, kind):
    plain = multi(ROWS, Y, 3, augmenter=twice)
    sampler = MultiShotMemorySampler(ROWS, Y, 3, augmenter=twice, framework=framework)
    for batch in (sampler[4], next(iter(sampler)), sampler.get_slice(2, 5)):
        assert all(isinstance(part, kind) for part in batch)
    assert np.array_equal(np.asarray(sampler[4][0]), plain[4][0])
    assert np.array_equal(np.asarray(sampler[4][1]), plain[4][1])
    alone = SingleShotMemorySampler(ROWS, twice, 3, framework=framework)
    assert all(isinstance(part, kind) for part in (*alone[0], *alone.get_slice(0, 2)))


@pytest.mark.parametrize("framework", TENSORS)
def test_augmenters_may_give_tensors_of_any_framework(framework):
    def augment(x, y, count, is_warmup):
        return tf.concat([x, x], 0), torch.from_numpy(np.concatenate([y, y]))

    sampler = MultiShotMemorySampler(ROWS, Y, 3, augmenter=augment, framework=framework)
    plain = multi(ROWS, Y, 3)[0]
    assert np.array_equal(np.asarray(sampler[0][0])[6:], plain[0])
    assert np.array_equal(np.asarray(sampler[0][1])[6:], plain[1])


def test_pickles_have_the_same_batches():
    for framework in TENSORS:
        sampler = MultiShotMemorySampler(X, Y, 3, augmenter=twice, framework=framework)
        sampler.epoch = 1
        expected = sampler[2]
        again = pickle.loads(pickle.dumps(sampler))
        assert again.epoch == 1
        assert np.array_equal(np.asarray(again[2][0]), np.asarray(expected[0]))
        assert type(again[2][0]) is type(expected[0])
    alone = pickle.loads(pickle.dumps(single(X, twice, 3)))
    assert np.array_equal(alone[1][0], single(X, twice, 3)[1][0])


def test_a_process_of_somebody_else_has_tensors_too(monkeypatch):
    # As those have that several trainings are spawned in: only workers of Keras have arrays.
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    sampler = MultiShotMemorySampler(X, Y, use_multiprocessing=True, framework="torch")
    assert all(map(torch.is_tensor, sampler[0]))


def test_a_keras_that_has_no_such_datasets_is_as_none(monkeypatch):
    old = types.ModuleType("keras")
    old.utils = types.ModuleType("keras.utils")
    monkeypatch.setitem(sys.modules, "keras", old)
    found = runpy.run_path(sys.modules["covey.adapters.keras"].__file__)
    assert found["PyDataset"]().workers == 1
    assert found["backend"]() == "numpy"


WITHOUT = """
import sys
for name in ("keras", "tensorflow", "torch", "jax", "tensorflow_datasets", "pandas", "h5py", "PIL"):
    sys.modules[name] = None
import json
import multiprocessing
import numpy as np
from sampled import X, Y, drawn, planned, twice
from covey.samplers import (
    MultiShotFileSampler, MultiShotMemorySampler, SingleShotMemorySampler, select_examples
)

if __name__ == "__main__":
    sampler = MultiShotMemorySampler(X, Y, 3, 2, 5, augmenter=twice, warmup=2, workers=2)
    x, y = sampler[0]
    single = SingleShotMemorySampler(X, twice, 4, 5)
    files = MultiShotFileSampler(["a"] * 60, Y, lambda path: np.zeros(3))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        elsewhere = [x.tolist() for x, _ in pool.map(sampler.__getitem__, range(5))]
    found = {
        "numpy": [type(each).__module__ for each in (x, y, *single[0], *files[0])],
        "frameworks": [each.framework for each in (sampler, single, files)],
        "batches": [drawn(sampler), drawn(sampler)],
        "planned": planned(sampler, range(10)),
        "epoch": sampler.epoch,
        "single": len(list(single)),
        "elsewhere": elsewhere,
        "selected": select_examples(X, Y, [1], 2)[1].tolist(),
    }
    for framework in ("torch", "tensorflow", "jax"):
        try:
            MultiShotMemorySampler(X, Y, 3, framework=framework)[0]
        except ImportError as error:
            found[framework] = str(error)
    try:
        exec("from covey.samplers import *", {})
        found["star"] = "imported"
    except ImportError as error:
        found["star"] = repr(error)
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    script = tmp_path_factory.mktemp("without") / "without.py"
    script.write_text(WITHOUT)
    return run(script)


def test_without_any_framework_batches_are_numpy(without):
    found = without
    assert set(found["numpy"]) == {"numpy"}
    assert set(found["frameworks"]) == {"numpy"}
    expected = [[each for each in ids for _ in range(2)] for ids in found["planned"]]
    assert list(chain(*found["batches"])) == expected
    assert found["elsewhere"] == expected[:5]
    assert (found["epoch"], found["single"], found["selected"]) == (2, 5, [1, 1])
    for framework in ("torch", "tensorflow", "jax"):
        assert "pip install" in found[framework]


def test_without_any_framework_all_can_be_imported(without):
    assert without["star"] == "imported"


def test_all_names_are_there():
    assert sorted(samplers.__all__) == sorted(set(samplers.__all__))
    assert {kind.__name__ for kind in (Sampler, MultiShotMemorySampler)} < set(samplers.__all__)
    with pytest.raises(AttributeError, match="no attribute 'NoSampler'"):
        samplers.NoSampler  # noqa: B018


def test_single_shots_are_asked_for_by_either_name():
    sampler = SingleShotMemorySampler(X, lambda x, y, *_: (x, y), 4, framework="numpy")
    by_position = sampler.get_examples(0, 4, 2)
    for found in (
        sampler.get_examples(batch_id=0, num_classes=4, examples_per_class=2),
        sampler.get_examples(batch_id=0, num_classes=4, example_per_class=2),
    ):
        assert all(map(np.array_equal, found, by_position))


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_list_of_numbers_that_an_augmenter_gives_is_an_array(framework):
    def listing(x, y, *_):
        return x, y.tolist()

    _, y = multi(X, Y, 3, augmenter=listing, framework=framework)[0]
    assert (tuple(y.shape), str(y.dtype).removeprefix("torch.")) == ((6,), "int64")


def test_a_list_of_views_that_an_augmenter_gives_stays_a_list():
    views, _ = multi(X, Y, 3, augmenter=lambda x, y, *_: ([x, x + 1], y))[0]
    assert [len(view) for view in views] == [6, 6]
