"""Batches of a dataset: which examples they have, in which form, and in whose memory."""

import ctypes
import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loaded import (
    CLASSES,
    COUNT,
    FEATURES,
    LABELS,
    NATIVE,
    OTHERS,
    batch_of,
    class_names,
    example,
    examples,
    make_numbers,
    numbers_of,
    same,
    settles,
    tell_names,
)
from opened import opened, put_numbers
from written import write

import covey
from covey import CoveyError
from covey.errors import ClosedError, DatasetError, FeatureError, PlanError
from covey.plan import BalancedPlan

# threads, prefetch, reuse_buffers
SETTINGS = [
    (0, None, False),
    (0, 3, True),
    (1, 1, False),
    (2, None, True),
    (5, 1, True),
    (5, 40, False),
]
ORDERS = [("shuffled", "keep"), ("shuffled", "drop"), ("sequential", "keep")]


def settings_of(number):
    threads, prefetch, reuse_buffers = SETTINGS[number % len(SETTINGS)]
    return {"threads": threads, "prefetch": prefetch, "reuse_buffers": reuse_buffers}


def ids_in(loop):
    """The numbers of the examples of each batch."""
    return [numbers_of(x) for x, _ in loop]


# The examples of batches.


@pytest.mark.parametrize("kind", [*NATIVE, *OTHERS])
def test_every_batch_is_exact(made, kind):
    ds, many, each = made(kind), 5, 3
    for number in range(len(SETTINGS)):
        loader = ds.batches(many, each, seed=3, **settings_of(number))
        plan, step = loader.plan, 0
        for x, y in loader.take(12):
            assert same((x, y), batch_of(ds, plan.batch(step)))
            numbers = numbers_of(x)
            assert class_names(ds, y) == tell_names(ds, numbers)
            assert y.dtype == np.int64
            assert len(set(y.tolist())) == many
            assert y.tolist() == y[::each].repeat(each).tolist()
            assert len(set(numbers)) == many * each
            step += 1
        assert step == 12


@pytest.mark.parametrize("kind", [*NATIVE, *OTHERS])
@pytest.mark.parametrize(("order", "remainder"), ORDERS)
def test_epochs_have_every_example_once(made, kind, order, remainder):
    ds, size = made(kind), 32
    for number in (2, 3, 4):
        loader = getattr(ds, order)(size, remainder=remainder, **settings_of(number))
        plan, epochs = loader.plan, []
        for _ in range(2):
            found = []
            for x, y in loader:
                ids = plan.batch(loader.step - 1)
                assert same((x, y), batch_of(ds, ids))
                assert class_names(ds, y) == tell_names(ds, numbers_of(x))
                found += ids.tolist()
            epochs.append(found)
        full = len(ds) if remainder == "keep" else len(ds) // size * size
        assert [len(set(each)) for each in epochs] == [len(each) for each in epochs] == [full] * 2
        assert (epochs[0] == epochs[1] == list(range(full))) == (order == "sequential")


@pytest.mark.parametrize("kind", ["numbers", "ragged", "gzip"])
def test_without_classes_a_batch_is_x_alone(tmp_path, kind):
    many = [{"x": each["x"] if kind != "ragged" else np.full(1 + n % 3, n)}
            for n, each in enumerate(examples())]  # fmt: skip
    compression = "GZIP" if kind == "gzip" else None
    write(many, tmp_path / "set", shuffle=False, shards=2, compression=compression)
    ds = opened(tmp_path / "set")
    assert ds.label is None
    for number, loader in enumerate((ds.shuffled, ds.sequential, ds.shuffled, ds.sequential)):
        loader = loader(50, **settings_of(number + 2))
        found = [numbers_of(x) for x in loader]
        assert found == [loader.plan.batch(step).tolist() for step in range(4)]
        (x,) = ds.sequential(COUNT, as_dict=True)
        assert same(x, ds[:])
    with pytest.raises(DatasetError, match="label="):
        ds.batches(2, 2)


@pytest.mark.parametrize("kind", [*NATIVE, *OTHERS])
def test_numbers_are_read_by_native_threads_and_others_by_pythons(made, kind):
    ds = made(kind)
    ds[0]
    before = set(threading.enumerate())  # those of other tests may be among them
    loop = ds.batches(4, 2, threads=3).take(1000)
    next(loop)
    begun = set(threading.enumerate()) - before
    assert any("covey" in thread.name for thread in begun) != (kind in NATIVE)
    loop.close()
    assert settles(threading.active_count, len(before))


@given(
    st.integers(1, CLASSES),
    st.integers(1, 5),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**9),
    st.integers(0, 3),
    st.integers(1, 5),
    st.sampled_from([False, True]),
)
def test_any_batches(ds, many, each, seed, step, threads, prefetch, reuse_buffers):
    loader = ds.batches(
        many, each, seed=seed, threads=threads, prefetch=prefetch, reuse_buffers=reuse_buffers
    )
    loader.seek(step)
    plan = BalancedPlan(LABELS, many, each, seed)
    for x, y in loader.take(3):
        ids = plan.batch(step)
        assert numbers_of(x) == ids.tolist()
        assert y.tolist() == LABELS[ids].tolist()
        step += 1


def test_the_options_of_plans_are_those_of_batches(ds):
    options = {
        "class_list": [1, 2, 5, 9],
        "total_examples_per_class": 3,
        "class_weights": {1: 3.0},
        "steps_per_epoch": 7,
    }
    expected = BalancedPlan(LABELS, 3, 2, 8, **options)
    loader = ds.batches(3, 2, seed=8, **options)
    assert ids_in(loader) == [expected.batch(step).tolist() for step in range(7)]
    assert ids_in(ds.batches(3, 2, seed=8, class_list=iter([1, 2, 5, 9])).take(9)) == [
        BalancedPlan(LABELS, 3, 2, 8, class_list=[1, 2, 5, 9]).batch(step).tolist()
        for step in range(9)
    ]
    with pytest.warns(covey.errors.SmallClassesWarning):
        ds.batches(2, 30)
    with pytest.raises(PlanError, match="30"):
        ds.batches(2, 30, small_classes="error")


def test_more_shards_than_are_mapped_at_first(tmp_path):
    for shard in range(60):
        put_numbers(tmp_path / f"{shard:03}.tfrecord", range(3 * shard, 3 * shard + 3))
    for threads in (0, 2):
        loader = opened(tmp_path, label="label").shuffled(4, threads=threads)
        assert sorted(number for x, _ in loader for number in x.tolist()) == list(range(180))


def test_a_short_batch_has_the_form_of_the_others(made):
    for kind in NATIVE:
        ds = made(kind)
        for batch in (ds.sequential(64, threads=1), ds.sequential(64, as_dict=True)):
            *full, short = map(describe, batch)
            assert full.count(short) == len(full) == len(ds) // 64


def describe(batch):
    """The form of a batch, without the number of its rows."""
    if isinstance(batch, dict):
        return {key: describe(each) for key, each in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(describe, batch))
    flags = batch.flags
    return batch.dtype, batch.shape[1:], flags.writeable, flags.c_contiguous, flags.aligned


# The form of batches.


def both(ds, **options):
    """The first batch as the native core makes it, and as Python does."""
    native = next(ds.batches(3, 2, **options).take(1))
    pairs = {True: lambda batch: batch, False: lambda x, y: (x, y)}
    hook = pairs[bool(options.get("as_dict"))]
    again = next(ds.batches(3, 2, batch_transform=hook, **options).take(1))
    assert same(native, again)
    return native


def test_features_of_x(made):
    ds = made("many")
    ids = ds.batches(3, 2).plan.batch(0)
    columns = ds[ids]
    x, y = both(ds)
    assert list(x) == ["half", "x", "flag", "bytes"]
    assert y.tolist() == columns["label"].tolist()
    x, y = both(ds, select="bytes")
    assert same((x, y), (columns["bytes"], columns["label"]))
    x, y = both(ds, select=["flag"])
    assert same((x, y), ({"flag": columns["flag"]}, columns["label"]))
    x, y = both(ds, select=("x", "half"))
    assert same((x, y), ({"x": columns["x"], "half": columns["half"]}, columns["label"]))
    x, y = both(ds, select=["label", "x"])
    assert same((x, y), ({"label": columns["label"], "x": columns["x"]}, columns["label"]))
    x, y = both(ds, select="label")
    assert same((x, y), (columns["label"], columns["label"]))


def test_dicts(made):
    ds = made("many")
    columns = ds[ds.batches(3, 2).plan.batch(0)]
    batch = both(ds, as_dict=True)
    assert sorted(batch) == sorted(columns)
    assert all(same(batch[name], columns[name]) for name in columns)
    assert same(both(ds, as_dict=True, select="x"), {k: columns[k] for k in ("x", "label")})
    assert same(both(ds, as_dict=True, select=["x"]), {k: columns[k] for k in ("x", "label")})
    named = {"x": columns["x"], "label": columns["label"]}
    assert same(both(ds, as_dict=True, select=["x", "label"]), named)


def test_nested_features(made):
    ds = made("nested")
    ids = ds.batches(3, 2).plan.batch(0)
    columns = ds[ids]
    x, y = both(ds)
    assert same((x, y), ({"a": columns["a"]}, columns["label"]))
    assert same(both(ds, select="a/x")[0], columns["a"]["x"])
    assert same(both(ds, select=["a/y"])[0], {"a": {"y": columns["a"]["y"]}})
    assert same(both(ds, as_dict=True), columns)
    alone = made("nested alone")
    assert same(both(alone)[0], columns["a"]["x"])
    assert same(both(alone)[1], columns["label"])


def test_labels_that_are_no_feature(made):
    for kind in ("files", "function"):
        ds = made(kind)
        ids = ds.batches(3, 2).plan.batch(0)
        x, y = both(ds)
        assert list(x) == ["x", "label"]
        assert class_names(ds, y) == tell_names(ds, numbers_of(x))
        assert same(both(ds, select="x"), (ds[ids]["x"], ds.labels[ids]))
        named = both(ds, as_dict=True, select="x")
        assert same(named, {"x": ds[ids]["x"], "label": ds.labels[ids]})
        # There may be a feature "label" already, which is not what the classes are.
        assert same(both(ds, as_dict=True), {**ds[ids], "class": ds.labels[ids]})


def test_texts_as_labels(made):
    ds = made("strings")
    ids = ds.batches(3, 2).plan.batch(0)
    x, y = both(ds)
    assert same((x, y), (ds[ids]["x"], ds.labels[ids]))
    batch = both(ds, as_dict=True)
    assert same(batch, {"x": ds[ids]["x"], "label": ds.labels[ids]})
    x, y = both(ds, select=["x", "label"])
    assert class_names(ds, y) == list(x["label"])


def test_nothing_but_a_label(tmp_path):
    write([{"label": n % 4} for n in range(12)], tmp_path, label="label", shuffle=False)
    ds = opened(tmp_path)
    y = ds.batches(3, 2).plan.batch(0) % 4
    assert same(both(ds), ({}, y))
    assert same(both(ds, as_dict=True), {"label": y})
    assert same(both(ds, select="label"), (y, y))


# Buffers.


def pointer(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_fresh_batches_may_be_kept(made, threads):
    for kind in ("numbers", "many", "names", "gzip"):
        ds = made(kind)
        loader = ds.batches(4, 2, threads=threads)
        kept = list(loader.take(200))
        plan = loader.plan
        assert all(same(batch, batch_of(ds, plan.batch(n))) for n, batch in enumerate(kept))


HOLDERS = {
    "itself": lambda x: x,
    "a slice": lambda x: x[1:],
    "a slice of a slice": lambda x: x[1:][:, 1:],
    "transposed": lambda x: x.T,
    "other numbers": lambda x: x.view(np.uint8),
    "a row": lambda x: x[3],
    "memoryview": memoryview,
    "memoryview of a slice": lambda x: memoryview(x[2:]),
    "frombuffer": lambda x: np.frombuffer(x, np.uint32),
    "dlpack": np.from_dlpack,
    "an iterator": lambda x: x.flat,
    "ctypes": lambda x: x.ctypes.data_as(ctypes.c_void_p),
    "base": lambda x: x.base,
}


@pytest.mark.parametrize("threads", [0, 2])
def test_whatever_has_a_view_of_a_batch_keeps_it(ds, threads):
    plan = ds.batches(4, 2).plan
    for name, hold in HOLDERS.items():
        held, addresses = [], []
        for x, y in ds.batches(4, 2, threads=threads).take(30):
            addresses.append(pointer(x))
            held.append(hold(x))
            del x, y
        # The memory of a held view is not reused.
        assert (name, len(set(addresses))) == (name, 30)
        if name == "itself":
            for step, x in enumerate(held):
                assert same(x, batch_of(ds, plan.batch(step))[0])


def test_some_batches_are_kept_and_others_not(ds):
    for threads in (0, 2):
        loader = ds.batches(4, 2, threads=threads)
        plan, kept = loader.plan, {}
        for step, batch in enumerate(loader.take(300)):
            if step % 3 == 0 or step % 7 == 0:
                kept[step] = batch
            if step % 50 == 49:
                kept.pop(sorted(kept)[len(kept) // 2])
        assert all(same(each, batch_of(ds, plan.batch(step))) for step, each in kept.items())


def test_nothing_that_is_done_to_a_batch_is_seen_in_another(ds):
    for reuse_buffers, threads in itertools.product((False, True), (0, 2)):
        loader = ds.batches(4, 2, threads=threads, reuse_buffers=reuse_buffers)
        plan = loader.plan
        for step, (x, y) in enumerate(loader.take(60)):
            assert same((x, y), batch_of(ds, plan.batch(step)))
            assert x.flags.writeable
            assert x.flags.c_contiguous
            assert x.flags.aligned
            x += 1
            y[:] = -1
            x.shape = (3, 16)
            y.dtype = np.uint8
            x.flags.writeable = False
            del x, y


def test_recycled_batches_are_overwritten_and_bounded(ds):
    for threads, prefetch in ((0, 1), (1, 1), (1, 3), (3, 5)):
        loader = ds.batches(4, 2, threads=threads, prefetch=prefetch, reuse_buffers=True)
        plan, addresses, kept = loader.plan, set(), []
        for step, (x, y) in enumerate(loader.take(100)):
            assert same((x, y), batch_of(ds, plan.batch(step)))
            addresses.add(pointer(x))
            kept.append(x)
        assert len(addresses) <= prefetch + 1
        assert len({x.tobytes() for x in kept}) <= prefetch + 1


def test_memory_of_fresh_batches_that_nobody_keeps_is_used_again(ds):
    for threads, prefetch in ((0, 1), (2, 3)):
        loop = ds.batches(4, 2, threads=threads, prefetch=prefetch).take(100)
        assert len({pointer(x) for x, _ in loop}) <= prefetch + 8


# Two loops, and the end of one.


@pytest.mark.parametrize("kind", ["numbers", "read"])
def test_a_loader_has_one_loop(made, kind):
    loader = made(kind).batches(4, 2)
    first = loader.take(10)
    next(first)
    second = iter(loader)
    with pytest.raises(ClosedError):
        next(first)
    x, _ = next(second)
    assert numbers_of(x) == loader.plan.batch(1).tolist()
    with pytest.raises(ClosedError):
        list(zip(loader, loader, strict=False))
    loader.close()
    with pytest.raises(ClosedError):
        next(second)
    loader.close()
    assert next(loader.take(1))


def test_a_loop_that_is_over_stays_so(ds):
    for loader in (ds.batches(4, 2, steps_per_epoch=3), ds.sequential(100)):
        first = iter(loader)
        list(first)
        at = loader.step
        assert list(first) == []
        list(loader)
        assert list(first) == []
        assert loader.step == 2 * at
        loop = iter(loader)
        next(loop)
        assert list(first) == []  # does not disturb another one
        assert len(list(loop)) == at - 1


def test_loaders_of_one_dataset_do_not_disturb_each_other(ds):
    loaders = [ds.batches(4, 2, seed=seed, threads=seed % 3) for seed in range(6)]
    loops = [loader.take(20) for loader in loaders]
    found = list(zip(*loops, strict=True))
    for number, loader in enumerate(loaders):
        assert ids_in(each[number] for each in found) == [
            loader.plan.batch(step).tolist() for step in range(20)
        ]


# Bad arguments.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("threads", value) for value in (-1, 1.5, True, "2", 10**6)),
        *(("prefetch", value) for value in (0, -3, "all")),
        *(("seed", value) for value in (-1, 2**64, 1.0)),
        *(("rank", value) for value in (1, -1)),
        ("world_size", 0),
        ("mode", "both"),
        *(("select", value) for value in ([], 5)),
        *(("image_size", value) for value in (8, 0, (1, 2, 3), "large")),
        ("transform", 5),
        ("batch_transform", "flip"),
        ("augmenter", "flip"),
    ],
)
def test_invalid_options(ds, option, value):
    loaders = [ds.batches, ds.shuffled, ds.sequential]
    for load in loaders[: 2 if option == "seed" else 3]:
        with pytest.raises(CoveyError) as caught:
            load(4, **{option: value})
        assert caught.value.option in (option, None)
        assert option in str(caught.value)


@pytest.mark.parametrize("names", ["nothing", ["x", "nothing"]])
def test_unknown_features(ds, names):
    with pytest.raises(FeatureError, match="nothing"):
        ds.batches(4, 2, select=names)


def test_unknown_options(ds):
    with pytest.raises(TypeError, match="thread"):
        ds.batches(4, 2, thread=2)


def test_bad_sizes(ds):
    for size in (0, -1, 1.5, "8", None, True):
        for load in (ds.shuffled, ds.sequential, lambda size: ds.batches(size, 2)):
            with pytest.raises(PlanError, match=r"batch_size|classes_per_batch"):
                load(size)
        with pytest.raises(PlanError, match="examples_per_class"):
            ds.batches(2, size)
    with pytest.raises(PlanError, match="must be <= 12"):
        ds.batches(13, 2)
    with pytest.raises(PlanError, match="must be <= 180"):
        ds.shuffled(181, remainder="drop")
    with pytest.raises(PlanError, match="remainder is 'all'"):
        ds.sequential(8, remainder="all")
    with pytest.raises(PlanError, match="cannot be split over 5 ranks"):
        ds.batches(4, 2, world_size=5)
    with pytest.raises(CoveyError, match="records"):
        ds.select([]).shuffled(4)
    with pytest.raises(CoveyError):
        ds.batches(2, 2, class_list="1")
    with pytest.raises(FeatureError, match="image"):
        ds.batches(2, 2, image_size=(8, 8))


def test_batches_as_large_as_the_dataset_and_larger(ds):
    ((x, y),) = ds.sequential(COUNT)
    assert same((x, y), batch_of(ds, np.arange(COUNT)))
    ((x, y),) = ds.sequential(10 * COUNT)
    assert numbers_of(x) == list(range(COUNT))
    x, _ = next(ds.sequential(2 * COUNT, remainder="fill", threads=2).take(1))
    assert numbers_of(x) == [*range(COUNT), *range(COUNT)]


def test_one_example(tmp_path):
    write([example(7)], tmp_path, features=FEATURES, label="label")
    ds = opened(tmp_path)
    for loader in (ds.batches(1, 1), ds.shuffled(1), ds.sequential(3)):
        ((x, y),) = loader
        assert (numbers_of(x), y.tolist()) == ([7], [LABELS[7]])


def test_the_dataset_may_be_forgotten(directory):
    loop = make_numbers(directory / "numbers").batches(4, 2, threads=2).take(50)
    assert len(ids_in(loop)) == 50
