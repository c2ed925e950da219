"""Loaders: examples, structure and buffers of batches, iterators, options."""

import ctypes
import pickle
import sys
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded import (
    CLASSES,
    COUNT,
    LABELS,
    NATIVE,
    OTHERS,
    batch_of,
    check_batches,
    examples,
    native_threads,
    numbers_of,
    same,
    settings_of,
    settles,
)
from opened import opened
from written import write

from covey.errors import DatasetError
from covey.plan import BalancedPlan

KINDS = [kind for kind in (*NATIVE, *OTHERS) if kind != "remote"]  # it needs fsspec


def ids_in(batches):
    """Return the numbers of the examples of each batch."""
    return [numbers_of(x) for x, _ in batches]


# Examples.


@pytest.mark.parametrize("kind", KINDS)
def test_batches_have_the_examples_of_the_plan(made, kind):
    check_batches(made(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_native_kinds_are_read_by_native_threads(made, kind):
    ds = made(kind)
    ds[0]
    before = set(threading.enumerate())
    iterator = ds.batches(4, 2, threads=3).take(1000)
    next(iterator)
    started = set(threading.enumerate()) - before
    assert any("covey" in thread.name for thread in started) != (kind in NATIVE)
    iterator.close()
    assert settles(threading.active_count, len(before))


@pytest.mark.parametrize("kind", ["numbers", "ragged", "gzip"])
def test_dataset_without_label(tmp_path, kind):
    many = [{"x": each["x"] if kind != "ragged" else np.full(1 + n % 3, n)}
            for n, each in enumerate(examples())]  # fmt: skip
    compression = "GZIP" if kind == "gzip" else None
    write(many, tmp_path / "set", shuffle=False, shards=2, compression=compression)
    with opened(tmp_path / "set") as ds:
        for number, load in enumerate((ds.shuffled, ds.sequential)):
            loader = load(50, **settings_of(number + 2))
            expected = [loader.plan.batch(step).tolist() for step in range(4)]
            assert [numbers_of(x) for x in loader] == expected
        (x,) = ds.sequential(COUNT, as_dict=True)
        assert same(x, ds[:])
        with pytest.raises(DatasetError, match="label="):
            ds.batches(2, 2)


@settings(max_examples=25)
@given(
    many=st.integers(1, CLASSES),
    each=st.integers(1, 5),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 10**9),
    threads=st.integers(0, 3),
    prefetch=st.integers(1, 5),
    reuse_buffers=st.booleans(),
)
def test_options_of_balanced_batches(ds, many, each, seed, step, **options):
    loader = ds.batches(many, each, seed=seed, **options)
    loader.seek(step)
    plan = BalancedPlan(LABELS, many, each, seed)
    for x, y in loader.take(3):
        ids = plan.batch(step)
        assert numbers_of(x) == ids.tolist()
        assert y.tolist() == LABELS[ids].tolist()
        step += 1


@pytest.mark.parametrize("kind", NATIVE)
def test_short_batch_has_the_types_of_the_others(made, kind):
    def describe(batch):
        if isinstance(batch, dict):
            return {key: describe(each) for key, each in batch.items()}
        if isinstance(batch, tuple):
            return tuple(map(describe, batch))
        flags = batch.flags
        return batch.dtype, batch.shape[1:], flags.writeable, flags.c_contiguous, flags.aligned

    ds = made(kind)
    for loader in (ds.sequential(64, threads=1), ds.sequential(64, as_dict=True)):
        *full, short = map(describe, loader)
        assert full.count(short) == len(full) == len(ds) // 64


def test_part_of_a_short_batch_may_be_empty(ds):
    for options in ({}, {"threads": 0}, {"transform": lambda each: each}):
        found = [list(ds.sequential(179, rank=rank, world_size=4, **options)) for rank in range(4)]
        assert [len(x) for (x, _) in (each[1] for each in found)] == [0, 0, 0, 1]
        for (x, _), (short, y) in found:
            assert (short.shape[1:], short.dtype, y.dtype) == (x.shape[1:], x.dtype, np.int64)


# Structure.


def pick(*names):
    return lambda columns, y: ({name: columns[name] for name in names}, y)


def pick_dict(*names):
    return lambda columns, y: {**{name: columns[name] for name in names}, "label": y}


STRUCTURES = [
    ("many", {}, pick("half", "x", "flag", "bytes")),
    ("many", {"select": "bytes"}, lambda columns, y: (columns["bytes"], y)),
    ("many", {"select": ["flag"]}, pick("flag")),
    ("many", {"select": ("x", "half")}, pick("x", "half")),
    ("many", {"select": ["label", "x"]}, pick("label", "x")),
    ("many", {"select": "label"}, lambda columns, y: (y, y)),
    ("many", {"as_dict": True}, pick_dict("half", "x", "flag", "bytes")),
    ("many", {"as_dict": True, "select": "x"}, pick_dict("x")),
    ("many", {"as_dict": True, "select": ["x", "label"]}, pick_dict("x")),
    ("nested", {}, pick("a")),
    ("nested", {"select": "a/x"}, lambda columns, y: (columns["a"]["x"], y)),
    ("nested", {"select": ["a/y"]}, lambda columns, y: ({"a": {"y": columns["a"]["y"]}}, y)),
    ("nested", {"as_dict": True}, lambda columns, y: columns),
    ("nested alone", {}, lambda columns, y: (columns["a"]["x"], y)),
    # The label is not a feature; a feature named "label" is not the class.
    *(case for kind in ("files", "function") for case in (
        (kind, {}, pick("x", "label")),
        (kind, {"select": "x"}, lambda columns, y: (columns["x"], y)),
        (kind, {"as_dict": True}, lambda columns, y: {**columns, "class": y}),
        (kind, {"as_dict": True, "select": "x"}, pick_dict("x")),
    )),
    ("strings", {}, lambda columns, y: (columns["x"], y)),
    ("strings", {"as_dict": True}, pick_dict("x")),
    ("strings", {"select": ["x", "label"]}, pick("x", "label")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "expected"), STRUCTURES)
def test_structure_of_batches(made, kind, options, expected):
    ds = made(kind)
    ids = ds.batches(3, 2).plan.batch(0)
    assert same(first_batch(ds, **options), expected(ds[ids], ds.labels[ids]))


def first_batch(ds, **options):
    """Return the first batch, which must be the same from the native core and from Python."""
    native = next(ds.batches(3, 2, **options).take(1))
    hook = (lambda batch: batch) if options.get("as_dict") else (lambda x, y: (x, y))
    assert same(native, next(ds.batches(3, 2, batch_transform=hook, **options).take(1)))
    return native


@pytest.mark.parametrize("make", [iter, np.array, dict.fromkeys, set])
def test_select_is_any_iterable(made, make):
    ds, names = made("many"), ["half", "x"]
    expected = ds.batches(3, 2, select=names).batch(0)
    loader = ds.batches(3, 2, select=make(names))
    for each in (loader, loader.copy(), pickle.loads(pickle.dumps(loader))):
        assert same(sorted_x(each.batch(0)), sorted_x(expected))


def sorted_x(batch):
    x, y = batch
    return dict(sorted(x.items())), y


def test_label_without_other_features(tmp_path):
    write([{"label": n % 4} for n in range(12)], tmp_path, label="label", shuffle=False)
    with opened(tmp_path) as ds:
        y = ds.batches(3, 2).plan.batch(0) % 4
        assert same(first_batch(ds), ({}, y))
        assert same(first_batch(ds, as_dict=True), {"label": y})
        assert same(first_batch(ds, select="label"), (y, y))


# Buffers.


def pointer(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_kept_batches_do_not_change(made, threads):
    for kind in ("numbers", "many", "names", "gzip"):
        ds = made(kind)
        loader, kept = ds.batches(4, 2, threads=threads), {}
        for step, batch in enumerate(loader.take(150)):
            if step < 50 or step % 3 == 0 or step % 7 == 0:
                kept[step] = batch
            if step % 50 == 49:
                del kept[sorted(kept)[len(kept) // 2]]
        assert all(same(each, batch_of(ds, loader.plan.batch(n))) for n, each in kept.items())


HOLDERS = {
    "itself": lambda x: x,
    "a slice of a slice": lambda x: x[1:][:, 1:],
    "transposed": lambda x: x.T,
    "other dtype": lambda x: x.view(np.uint8),
    "a row": lambda x: x[3],
    "memoryview": lambda x: memoryview(x[2:]),
    "frombuffer": lambda x: np.frombuffer(x, np.uint32),
    "dlpack": np.from_dlpack,
    "an iterator": lambda x: x.flat,
    "ctypes": lambda x: x.ctypes.data_as(ctypes.c_void_p),
    "base": lambda x: x.base,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_of_a_view_is_not_reused(ds, name):
    for threads in (0, 2):
        views, addresses = [], set()
        for x, y in ds.batches(4, 2, threads=threads).take(30):
            addresses.add(pointer(x))
            views.append(HOLDERS[name](x))
            del x, y
        assert len(addresses) == 30


@pytest.mark.parametrize(("threads", "prefetch"), [(0, 1), (1, 1), (1, 3), (3, 5)])
def test_number_of_buffers_is_bounded(ds, threads, prefetch):
    options = {"threads": threads, "prefetch": prefetch}
    kept = [x for x, _ in ds.batches(4, 2, reuse_buffers=True, **options).take(100)]
    assert len({pointer(x) for x in kept}) <= prefetch + 1
    assert len({x.tobytes() for x in kept}) <= prefetch + 1  # kept ones are overwritten
    addresses = {pointer(x) for x, _ in ds.batches(4, 2, **options).take(100)}
    assert len(addresses) <= prefetch + 8


# Iterators.


@pytest.mark.parametrize("kind", ["numbers", "gzip"])
def test_threads_of_an_abandoned_iteration_end(made, kind):
    loader, before = made(kind).batches(4, 2, threads=3), native_threads()
    for _ in loader:
        assert native_threads() > before
        break
    assert settles(native_threads, before)
    assert loader.step == 1
    (x, _), *_ = loader
    assert numbers_of(x) == loader.plan.batch(1).tolist()


def test_exhausted_iterator_remains_exhausted(ds):
    for loader in (ds.batches(4, 2, steps_per_epoch=3), ds.sequential(100)):
        first = iter(loader)
        list(first)
        steps = loader.step
        assert list(first) == []
        second = iter(loader)
        next(second)
        assert list(first) == []  # does not close the other one
        assert len(list(second)) == steps - 1
        assert loader.step == 2 * steps


# Ranks.


def ray_train(rank, world_size, *, warning=None, error=None):
    """Return a module like ray.train, which warns or raises an error outside of a worker."""

    def get_context():
        if error is not None:
            raise error
        if warning is not None:
            warnings.warn(warning, stacklevel=1)
        return SimpleNamespace(get_world_rank=lambda: rank, get_world_size=lambda: world_size)

    return SimpleNamespace(get_context=get_context)


def test_rank_of_a_worker_of_ray_train(ds, monkeypatch):
    whole = ds.batches(6, 2, seed=3)
    monkeypatch.setitem(sys.modules, "ray.train", ray_train(1, 3))
    expected = ds.batches(6, 2, seed=3, rank=1, world_size=3)
    loaders = [ds.batches(6, 2, seed=3), pickle.loads(pickle.dumps(whole))]
    pickled = pickle.dumps(loaders[0])
    monkeypatch.delitem(sys.modules, "ray.train")
    loaders.append(pickle.loads(pickled))  # the same part in another process
    for loader in loaders:
        assert (loader.plan.rank, loader.plan.world_size) == (1, 3)
        assert ids_in(loader.take(4)) == ids_in(expected.batch(step) for step in range(4))
    assert loaders[0].options.rank is None
    assert whole.plan.world_size == 1


@pytest.mark.parametrize(
    "module",
    [
        SimpleNamespace(),  # it is being imported
        ray_train(0, 1, warning="not in a worker"),
        ray_train(0, 4, error=RuntimeError("not in a worker")),
        ray_train(0, 4, error=DeprecationWarning("in a worker of Ray Tune")),
        ray_train(None, None),  # in a worker of Ray Tune
    ],
)
def test_processes_that_are_not_workers_of_ray_train(ds, monkeypatch, module):
    monkeypatch.setitem(sys.modules, "ray.train", module)
    plan = ds.batches(6, 2).plan
    assert (plan.rank, plan.world_size) == (0, 1)
