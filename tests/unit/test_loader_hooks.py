"""Hooks of loaders: transform and batch_transform, their results, threads and errors."""

import threading

import numpy as np
import pytest
from loaded import LABELS, numbers_of, same, settles

from covey.errors import ClosedError, FeatureError
from covey.plan.balanced import BatchKey

THREADS = [0, 1, 3]


def first(loader):
    return next(iter(loader))


# transform


@pytest.mark.parametrize(
    "kind", ["numbers", "many", "nested", "ragged", "strings", "names", "files", "gzip", "where"]
)
def test_transform_receives_examples_of_the_dataset(made, kind):
    ds, received = made(kind), []
    list(ds.sequential(50, transform=lambda each: received.append(each) or each, threads=0))
    assert len(received) == len(ds)
    for number in (0, 17, len(ds) - 1):
        assert same(dict(sorted(received[number].items())), dict(sorted(ds[number].items())))


RESULTS = {
    "other values": (lambda each: {**each, "x": each["x"] * 2}, lambda x: x * 2),
    "other features": (
        lambda each: {"a": each["x"][0], "b": int(each["x"][0, 0])},
        lambda x: {"a": x[:, 0], "b": x[:, 0, 0].astype(np.int64)},
    ),
    "one feature": (lambda each: {"sum": each["x"].sum()}, lambda x: x.sum((1, 2))),
    "scalar": (lambda each: each["x"][0, 0], lambda x: x[:, 0, 0]),
    "Python integer": (lambda each: int(each["x"][0, 0]), lambda x: x[:, 0, 0].astype(np.int64)),
    "other dtype": (lambda each: each["x"].astype(np.uint16), lambda x: x.astype(np.uint16)),
    "nested": (
        lambda each: {"deep": {"er": each["x"]}, "n": 1},
        lambda x: {"deep": {"er": x}, "n": np.ones(6, np.int64)},
    ),
    "string": (lambda each: f"n{each['x'][0, 0]:.0f}", lambda x: [f"n{n:.0f}" for n in x[:, 0, 0]]),
    "bytes": (
        lambda each: {"b": b"%d" % each["x"][0, 0], "n": 1},
        lambda x: {"b": [b"%d" % n for n in x[:, 0, 0]], "n": np.ones(6, np.int64)},
    ),
    "different shapes": (
        lambda each: np.arange(int(each["x"][0, 0]) % 5),
        lambda x: [np.arange(int(n) % 5) for n in x[:, 0, 0]],
    ),
    "added feature": (
        lambda each: {**each, "sum": each["x"].sum()},
        lambda x: {"x": x, "sum": x.sum((1, 2))},
    ),
    "list": (lambda each: [1, 2.5], lambda x: np.tile([1, 2.5], (6, 1))),
    "tuple in a dict": (
        lambda each: {"box": (1, 2), "x": each["x"]},
        lambda x: {"box": np.tile([1, 2], (6, 1)), "x": x},
    ),
}


@pytest.mark.parametrize("select", [None, "x", "all"])
@pytest.mark.parametrize("name", RESULTS)
def test_result_of_transform(ds, name, select):
    transform, expected = RESULTS[name]
    for threads in (0, 2):
        loader = ds.batches(3, 2, transform=transform, threads=threads, select=select)
        x, y = first(loader)
        ids = loader.plan.batch(0)
        assert same(x, expected(ds[ids]["x"]))
        assert same(y, LABELS[ids])


def test_label_is_that_of_the_index(ds):
    ids = ds.batches(3, 2).plan.batch(0)
    x, y = ds[ids]["x"], LABELS[ids]
    for transform, expected in [
        (lambda each: {**each, "label": -1}, {"x": x, "label": y}),
        (lambda each: {"z": each["x"]}, {"z": x, "label": y}),
        (lambda each: each["x"] * 2, {"x": x * 2, "label": y}),
    ]:
        assert same(first(ds.batches(3, 2, as_dict=True, transform=transform)), expected)
    found = first(ds.batches(3, 2, transform=lambda each: {"x": each["x"], "label": 5}))
    assert same(found, (x, y))


# For each result of a transform: what is found, and the feature.
INVALID_RESULTS = {
    "None": (lambda each: None, "NoneType", None),
    "pair": (
        lambda each: (each["x"], 1),
        "tuple of (float32 array of shape (2, 3), int)",
        None,
    ),
    "object": (lambda each: object(), "object", None),
    "set": (lambda each: {1, 2}, "set", None),
    "ragged list": (lambda each: [[1], [2, 3]], "list of (list of (int), list of (int, int))",
                    None),
    "list of dicts": (lambda each: [{"a": 1}], "list of (dict of 'a')", None),
    "None in a dict": (lambda each: {"x": 1, "y": {"z": None}}, "NoneType", "y/z"),
    "generator": (lambda each: {"x": (n for n in "ab")}, "generator", "x"),
    "key": (lambda each: {"x": 1, 2: 3}, "dict of 'x', 2", None),
}  # fmt: skip


@pytest.mark.parametrize("select", [None, "x", ["x"]])
@pytest.mark.parametrize("name", INVALID_RESULTS)
def test_invalid_results_of_transform(ds, name, select):
    transform, found, feature = INVALID_RESULTS[name]
    with pytest.raises(FeatureError) as caught:
        ds.sequential(10, select=select, transform=transform).batch(2)
    error, place = caught.value, ds.place(20)
    assert (error.option, error.found, error.feature) == ("result of transform", found, feature)
    assert (error.step, error.row, error.path, error.record) == (2, 0, place.name, place.record)


class Unreadable:
    def __array__(self, *arguments, **keywords):
        raise RuntimeError("it has no array")


def test_an_error_of_a_value_that_is_converted_names_the_record(ds):
    with pytest.raises(FeatureError) as caught:
        ds.sequential(10, transform=lambda each: {"x": Unreadable()}).batch(1)
    assert (caught.value.found, caught.value.record) == ("Unreadable", ds.place(10).record)
    assert str(caught.value.__cause__) == "it has no array"


# batch_transform


@pytest.mark.parametrize("threads", THREADS)
def test_result_of_batch_transform(ds, threads):
    def load(**options):
        return list(ds.batches(3, 2, threads=threads, steps_per_epoch=4, **options))

    plain = load()
    pairs = load(batch_transform=lambda x, y: (x * 2, y + 1))
    assert same(pairs, [(x * 2, y + 1) for x, y in plain])
    sums = load(batch_transform=lambda x, y: x.sum() + y.sum())
    assert sums == [x.sum() + y.sum() for x, y in plain]
    alone = load(batch_transform=lambda x, y: x)
    assert same(alone, [x for x, _ in plain])
    turned = load(batch_transform=lambda x, y: (np.swapaxes(x, 0, 1), y))
    assert same(turned, [(np.swapaxes(x, 0, 1), y) for x, y in plain])
    dicts = load(as_dict=True, batch_transform=lambda batch: {**batch, "z": 1})
    assert same(dicts, [{"x": x, "label": y, "z": 1} for x, y in plain])
    both = load(
        transform=lambda each: {"x": each["x"] + 1}, batch_transform=lambda x, y: (x * 2, y)
    )
    assert same(both, [((x + 1) * 2, y) for x, y in plain])


def test_hooks_of_other_arguments(ds):
    with pytest.raises(TypeError) as caught:
        ds.batches(3, 2, transform=lambda x, y: x).batch(0)
    (note,) = caught.value.__notes__
    assert note.endswith("it is a function of one argument, a dict of 'x', 'label'")
    for transform in (lambda example, size=3: example, lambda *args, **options: args[0], dict):
        ds.batches(3, 2, transform=transform).batch(0)
    for options, found in (({}, "x and y"), ({"as_dict": True}, "one dict")):
        with pytest.raises(TypeError) as caught:
            ds.batches(3, 2, batch_transform=lambda *, x: x, **options).batch(0)
        (note,) = caught.value.__notes__
        assert note.endswith(f"batch_transform= receives {found}")


# Threads.


# Errors.


class RejectedError(Exception):
    pass


@pytest.mark.parametrize("threads", THREADS)
def test_error_in_transform(ds, threads):
    def transform(example):
        if example["x"][0, 0] == 77:
            raise RejectedError("message")
        return example

    loader = ds.shuffled(7, seed=4, transform=transform, threads=threads, prefetch=9)
    (step,) = (step for step in range(26) if 77 in loader.plan.batch(step))
    found = []
    with pytest.raises(RejectedError, match="message") as error:
        for x, _ in loader:
            found.append(numbers_of(x))
    assert found == [loader.plan.batch(each).tolist() for each in range(step)]
    location = ds.place(77)
    assert location.name in str(error.value.__notes__)
    assert f"record {location.record} " in str(error.value.__notes__)
    assert loader.step == step
    with pytest.raises(RejectedError):  # when it is repeated
        next(iter(loader))
    loader.seek(step + 1)
    assert len(list(loader)) == 25 - step


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("kind", [RejectedError, StopIteration, SystemExit, KeyboardInterrupt])
def test_error_in_batch_transform(ds, threads, kind):
    def fail(x, y):
        if 0 in numbers_of(x):
            raise kind("message")
        return x, y

    before = threading.active_count()
    loader = ds.sequential(10, batch_transform=fail, threads=threads)
    loader.seek(18)  # the first batch of the second epoch fails
    with pytest.raises((kind, RuntimeError)) as error:
        list(loader)
    if kind is RejectedError:
        assert "[0, 1, 2, 3] and others" in str(error.value.__notes__)
    assert loader.step == 18
    assert settles(threading.active_count, before)
    loader.seek(19)
    assert len(list(loader)) == 17


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", ["close", "seek", "take"])
def test_hook_that_closes_its_iterator(ds, threads, name):
    calls = {
        "close": lambda x, y: loader.close(),
        "seek": lambda x, y: loader.seek(3),
        "take": lambda x, y: loader.take(3),
    }
    before = threading.active_count()
    loader = ds.batches(3, 2, threads=threads, batch_transform=calls[name])
    with pytest.raises(ClosedError, match="the iterator is closed"):
        list(loader.take(1000))
    loader.close()
    assert settles(threading.active_count, before)
    assert loader.step in (0, 3)


def test_hook_that_sets_class_weights(ds):
    def transform(x, y):
        loader.set_class_weights({int(y[0]): 5.0})
        return x, y

    loader = ds.batches(3, 2, seed=5, threads=0, batch_transform=transform)
    found = list(loader.take(9))
    assert loader.step == 9
    # The weights apply to the next batch.
    replay = ds.batches(3, 2, seed=5, threads=0)
    replay.load_state_dict({**loader.state_dict(), "batch": 0})
    assert same(list(replay.take(9)), found)


# Seeded arguments.


def test_step_and_row(ds):
    ranks = {"rank": 1, "world_size": 2}  # the second half of 8 rows
    loader = ds.batches(4, 2, transform=lambda each, step, row: [step, row], **ranks)
    assert loader.batch(7)[0].tolist() == [[7, 4], [7, 5], [7, 6], [7, 7]]
    loader = ds.batches(4, 2, batch_transform=lambda x, y, step, row: (step, row), **ranks)
    assert loader.batch(7) == (7, 4)


def test_generators_of_hooks():
    key = BatchKey(seed=7, step=5, row=3)
    assert key.generator().bit_generator.random_raw() == 4386044505056705495
    assert key.generator(2).bit_generator.random_raw() == 2772101806903042278
    assert key.generator(2).random() == BatchKey(7, 5).generator(5).random()
    keys = [key, BatchKey(8, 5, 3), BatchKey(7, 6, 3)]
    first = {each.generator(row).random() for each in keys for row in (None, 0, 1, 2)}
    assert len(first) == 12


def odd(example):
    return bool(example["x"][0, 0] % 2)


DIFFERENT_RESULTS = {
    "other key": lambda each: {"a": 1} if odd(each) else {"b": 1},
    "further key": lambda each: {"a": 1, "b": 1} if odd(each) else {"a": 1},
    "dict or value": lambda each: {"a": 1} if odd(each) else 1,
    "string or number": lambda each: {"a": "1"} if odd(each) else {"a": 1},
    "nested or not": lambda each: {"a": {"b": 1}, "c": 1} if odd(each) else {"a": 1, "c": 1},
}


@pytest.mark.parametrize("name", DIFFERENT_RESULTS)
def test_results_of_transform_with_different_structures(ds, name):
    with pytest.raises(FeatureError) as caught:
        list(ds.sequential(10, transform=DIFFERENT_RESULTS[name], threads=0))
    error, place = caught.value, ds.place(1)
    assert (error.option, error.step, error.row) == ("result of transform", 0, 1)
    assert (error.path, error.record) == (place.name, place.record)
    assert error.allowed.endswith("as in the first row")
