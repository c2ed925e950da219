"""Padding of ragged features: values, lengths, options, hooks and errors."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded import COUNT, LABELS, same
from opened import opened
from written import write

from covey import Features, Tensor
from covey.arrays import RaggedArray, StringArray
from covey.errors import FeatureError
from covey.schema.codec import flat_items

FEATURES = {
    "tokens": Tensor("int64", (None,)),
    "frames": Tensor("float32", (None, 2)),
    "packed": Tensor("uint8", (None,), encoding="zlib"),
    "flags": Tensor("bool", (None,)),
    "words": Tensor("str", (None,)),
    "nested": {"ids": Tensor("int16", (None, 3), encoding="bytes")},
    "size": "int64",
    "label": "int64",
}


def example(number):
    rng = np.random.default_rng(number)
    count = int(rng.integers(0, 7))
    return {
        "tokens": rng.integers(1, 100, count),
        "frames": rng.random((int(rng.integers(0, 5)), 2)).astype(np.float32),
        "packed": rng.integers(1, 9, count).astype(np.uint8),
        "flags": rng.random(count) < 0.5,
        "words": [f"wörd{n}" * (n % 3) for n in range(count)],
        "nested": {"ids": rng.integers(0, 9, (count, 3)).astype(np.int16)},
        "size": count,
        "label": int(LABELS[number]),
    }


PADDED = {"tokens": -1, "frames": np.nan, "packed": 255, "flags": True, "words": ""}


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    directory = tmp_path_factory.mktemp("padding") / "sentences"
    many = [example(number) for number in range(COUNT)]
    write(many, directory, features=FEATURES, label="label", shuffle=False, shards=3)
    with opened(directory) as dataset:
        yield dataset


def padded(rows, value, length=None):
    """Return rows as one array, and their lengths, one value after the other."""
    rows = [np.asarray(row) for row in rows]
    longest = max(map(len, rows)) if length is None else length
    result = np.full((len(rows), longest, *rows[0].shape[1:]), value, rows[0].dtype)
    for index, row in enumerate(rows):
        kept = row[:longest]
        result[index, : len(kept)] = kept
    return result, np.array([min(len(row), longest) for row in rows])


def plain(array):
    """Return an array of strings as lists, because `same` compares bytes."""
    return array.tolist() if isinstance(array, StringArray) or array.dtype == object else array


NAMES = [*PADDED, "nested/ids"]


@settings(max_examples=60)
@given(
    names=st.sets(st.sampled_from([*NAMES, "size"]), min_size=1),
    value=st.sampled_from([True, 0, 1, PADDED]),
    length=st.sampled_from([None, 1, 3, 6, 20]),
    pad_lengths=st.booleans(),
    as_dict=st.booleans(),
    has_transform=st.booleans(),
    threads=st.integers(0, 2),
    rank=st.integers(0, 1),
    step=st.integers(0, 9),
)
def test_any_options(sentences, names, value, length, pad_lengths, as_dict, has_transform, threads,
                     rank, step):  # fmt: skip
    ragged = sorted(names - {"size"})
    values = dict.fromkeys(ragged, 0 if value is True else value)
    if value is PADDED:
        values = {name: PADDED.get(name, -7) for name in ragged}
    values |= {"words": ""} if "words" in ragged else {}
    if not ragged:
        return
    options = {
        "select": sorted(names),
        "pad": values if value is PADDED or has_transform else value,
        "pad_length": length if length is None or threads else dict.fromkeys(ragged, length),
        "truncate": length is not None,
        "pad_lengths": pad_lengths,
        "transform": dict if has_transform else None,
    }
    loader = sentences.batches(4, 2, seed=3, rank=rank, world_size=2, threads=threads,
                               as_dict=as_dict, **options)  # fmt: skip
    loader.seek(step)
    batch, ids = next(loader.take(1)), loader.plan.batch(step)
    x = batch if as_dict else batch[0]
    flat = dict(flat_items(x))
    lengths = [f"{name}_length" for name in ragged] if pad_lengths else []
    labels = ["label"] if as_dict else []
    assert {"/".join(path) for path in flat} == {*names, *lengths, *labels}
    examples = [sentences[int(number)] for number in ids]
    for name in ragged:
        path = tuple(name.split("/"))
        rows = [Features(FEATURES).find(each, name) for each in examples]
        expected, expected_lengths = padded(rows, values[name], length)
        assert same(plain(flat[path]), plain(expected))
        if pad_lengths:
            assert same(flat[(*path[:-1], f"{path[-1]}_length")], expected_lengths)


def test_rows_that_are_too_long(sentences):
    loader = sentences.sequential(20, select="tokens", pad=0, pad_length=4)
    sizes = [example(number)["size"] for number in range(COUNT)]
    step = next(number for number, size in enumerate(sizes) if size > 4) // 20
    longest = max(sizes[20 * step : 20 * step + 20])
    number = sizes.index(longest, 20 * step)
    with pytest.raises(FeatureError) as caught:
        list(loader)
    error, place = caught.value, sentences.place(number)
    assert (error.feature, error.option, error.found) == ("tokens", "pad_length", 4)
    assert error.allowed == f"an integer >= {longest}"
    assert error.reason == f"the row has {longest} items, the most of this batch"
    assert (error.step, error.row) == divmod(number, 20)
    assert (error.path, error.record) == (place.name, place.record)
    with pytest.raises(FeatureError) as caught:
        sentences.batches(4, 2, select="tokens", pad=0, pad_length=4, world_size=2, rank=1).batch(2)
    assert caught.value.row >= 4  # of the batch of both ranks


def test_extra_padding_of_a_pickled_loader(sentences):
    loader = sentences.batches(4, 2, select="tokens", pad=0)
    wider = loader.copy(format=loader.format.with_extra_padding())
    shapes = [each.batch(0)[0]["tokens"].shape for each in (loader, wider)]
    assert shapes[1] == (8, shapes[0][1] + 1)
    assert pickle.loads(pickle.dumps(wider)).batch(0)[0]["tokens"].shape == shapes[1]


# Hooks.


TRANSFORMS = {
    "unpadded value": (lambda each: {"tokens": each["tokens"] * 2}, {"tokens": 0}),
    "new feature": (lambda each: {"t": list(range(each["size"])), "n": 1}, {"t": -1}),
    "same length": (lambda each: {"t": [1, 2, 3]}, {"t": -1}),
    "nested": (lambda each: {"a": {"t": np.ones((each["size"], 2))}}, {"a/t": 0.5}),
    "strings": (lambda each: {"t": np.array(each["words"], object)}, {"t": ""}),
    "value alone": (lambda each: list(range(each["size"])), {"tokens": 7}),
    "other type": (lambda each: {"size": [1] * each["size"]}, {"size": 0}),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_results_of_transform(sentences, name):
    transform, pad = TRANSFORMS[name]
    ((feature, value),) = pad.items()
    loader = sentences.batches(5, 3, transform=transform, pad=pad, select="all", threads=2)
    for step, (x, _) in enumerate(loader.take(4)):
        rows = [transform(sentences[int(number)]) for number in loader.plan.batch(step)]
        for key in feature.split("/"):
            rows = [row[key] if isinstance(row, dict) else row for row in rows]
        *parents, last = feature.split("/")
        for parent in parents:
            x = x[parent]
        expected, lengths = padded(rows, value)
        assert x[last].tolist() == expected.tolist()
        assert x[f"{last}_length"].tolist() == lengths.tolist()


INVALID_RESULTS = {
    "not returned": (lambda each: {"n": 1}, {"t": 0}, "t"),
    "not nested": (lambda each: {"a": 1}, {"a/t": 0}, "a/t"),
    "scalar": (lambda each: {"t": 1}, {"t": 0}, "t"),
    "string": (lambda each: {"t": "a"}, {"t": ""}, "t"),
    "two dimensions": (lambda each: {"t": np.zeros([each["size"]] * 2)}, {"t": 0}, "t"),
    "value": (lambda each: {"t": np.zeros(each["size"], np.uint8)}, {"t": -1}, "t"),
    "name of lengths": (lambda each: {"t": [1], "t_length": 1}, {"t": 0}, "t_length"),
}


@pytest.mark.parametrize("name", INVALID_RESULTS)
def test_invalid_results_of_transform(sentences, name):
    transform, pad, feature = INVALID_RESULTS[name]
    with pytest.raises(FeatureError) as caught:
        sentences.batches(5, 3, transform=transform, pad=pad, select="all").batch(0)
    assert (caught.value.feature, caught.value.step) == (feature, 0)


def test_name_of_lengths_exists(tmp_path):
    many = [{"x": [1] * n, "x_length": n, "label": 0} for n in range(4)]
    features = {"x": Tensor("int64", (None,)), "x_length": "int64", "label": "int64"}
    write(many, tmp_path / "data", features=features, label="label")
    with opened(tmp_path / "data") as ds:
        with pytest.raises(FeatureError) as caught:
            ds.sequential(4, pad=0).batch(0)
        assert caught.value.feature == "x_length"
        assert "pad_lengths=False" in caught.value.remedy
        x, _ = ds.sequential(4, pad=0, select="all", pad_lengths=False).batch(0)
        assert sorted(x["x_length"].tolist()) == [0, 1, 2, 3]
        assert ds.sequential(4, pad=0, select="x").batch(0)[0]["x"].shape == (4, 3)
    with opened(tmp_path / "data", label="x_length") as ds, pytest.raises(FeatureError) as caught:
        ds.sequential(4, pad=0, select="x", as_dict=True).batch(0)
    assert caught.value.feature == "x_length"


# Arrays.


def test_padded_arrays_of_slices():
    rows = RaggedArray.of([[1, 2], [3], [], [4, 5, 6]])
    for begin in range(5):
        for end in range(begin, 5):
            part = rows[begin:end]
            for length in (None, 0, 1, 2, 5):
                found = part.pad(9, length)
                if begin == end:
                    assert found.shape == (0, length or 0)
                    continue
                assert same(found, padded(list(part), 9, length)[0])


def test_padded_strings_of_several_dimensions():
    strings = StringArray.of([f"s{n}" for n in range(8)])
    values = StringArray(strings.data, strings.offsets, True, (2,), 4)
    rows = RaggedArray(values, np.array([0, 1, 4]))
    expected = [[["s0", "s1"], ["", ""]], [["s2", "s3"], ["s4", "s5"]]]
    assert rows.pad(length=2).tolist() == expected
    assert rows[1:].pad().tolist() == [[["s2", "s3"], ["s4", "s5"], ["s6", "s7"]]]


def test_rows_that_differ_in_other_dimensions():
    nested = RaggedArray(RaggedArray.of([[1], [2, 3]]), np.array([0, 1, 2]))
    shaped = RaggedArray(np.arange(6), np.array([0, 2, 6]), (2, -1))
    for rows in (nested, shaped):
        with pytest.raises(ValueError, match="other dimensions"):
            rows.pad()
