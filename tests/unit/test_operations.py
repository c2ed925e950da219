"""Class names by id, contiguous labels, filters, sums, and parts of disjoint classes."""

import copy
import itertools
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened import numbers, opened, put
from written import write

import covey
from covey import ClassLabel, Features, Tensor
from covey.classes import ClassNames
from covey.errors import DatasetError, UnknownClassError

pytestmark = pytest.mark.usefixtures("cache", "no_fsync")

# Names.


def test_class_names():
    names = ClassNames(["owl", "wren", "crow"], np.array([-1, 2, 10**9]))
    assert [names[each] for each in (0, np.int64(1), np.uint8(2), np.array(2), True)] == [
        "owl",
        "wren",
        "crow",
        "crow",
        "wren",
    ]
    assert (names[-1], names[10**9]) == ("-1", "1000000000")  # not the last one
    assert names[[2, 0]] == names[np.array([2, 0])] == names[(2, 0)] == ["crow", "owl"]
    assert names[np.array([[0], [1]])] == [["owl"], ["wren"]]
    assert names[[]] == []
    assert list(names.items()) == [
        (-1, "-1"),
        (0, "owl"),
        (1, "wren"),
        (2, "crow"),
        (10**9, "1000000000"),
    ]
    assert len(names) == 5
    assert 1 in names
    assert 3 not in names
    assert "owl" not in names
    assert names.get(7, "unknown") == "unknown"
    assert pickle.loads(pickle.dumps(names)) == names == copy.copy(names)
    assert repr(names) == "{-1: '-1', 0: 'owl', 1: 'wren', 2: 'crow', 1000000000: '1000000000'}"
    assert len(repr(ClassNames(None, np.arange(10**6)))) < 200


@pytest.mark.parametrize("wrong", [3, -2, 2**63, -(2**200), 1.0, "owl", None, np.array([7]), [1.5]])
def test_unknown_class_ids(wrong):
    names = ClassNames(["owl", "wren", "crow"], np.arange(3))
    with pytest.raises(UnknownClassError) as caught:
        names[wrong]
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, DatasetError)
    assert caught.value.option == "class id"


# Contiguous labels.

SPARSE = {"jay": -3, "owl": 7, "wren": 10**9, "tern": 2**62}


def sparse_examples(count=40):
    ids = list(SPARSE.values())
    return [{"x": n, "label": ids[n * 3 % 4]} for n in range(count)]


def check_same_examples(ds, stored, **options):
    """Compare the batches of a dataset with contiguous labels with those of the stored ones."""
    for plan in ("batches", "shuffled", "sequential"):
        arguments = (2, 2) if plan == "batches" else (5,)
        pair = [getattr(each, plan)(*arguments, **options) for each in (ds, stored)]
        for (x, y), (expected, stored_y) in zip(*pair, strict=True):
            np.testing.assert_array_equal(x, expected)
            assert ds.class_names[y] == stored.class_names[stored_y]
            assert y.dtype == np.int64
            assert set(y.tolist()) <= set(range(len(ds.classes)))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_contiguous_numbers(tmp_path, compression, threads):
    write(sparse_examples(), tmp_path / "data", label="label", compression=compression)
    with (
        opened(tmp_path / "data", labels="contiguous") as ds,
        opened(tmp_path / "data") as stored,
    ):
        assert ds.classes.labels.tolist() == [0, 1, 2, 3]
        assert dict(ds.class_names) == dict(enumerate(map(str, SPARSE.values())))
        assert ds.features["label"] == ClassLabel([str(each) for each in SPARSE.values()])
        assert ds.columns("label")["label"].tolist() == ds.labels.tolist()
        assert [each["label"] for each in ds] == ds.labels.tolist()
        assert ds[-1]["label"] == ds.labels[-1]
        check_same_examples(ds, stored, select="x", threads=threads)
        plans = [each.batches(2, 2, seed=1).plan for each in (ds, stored)]
        assert ds.class_names[plans[0].classes(4)] == stored.class_names[plans[1].classes(4)]
        assert plans[0].description == plans[1].description
        x, y = next(iter(ds.batches(2, 2, select=["x", "label"], threads=threads)))
        assert x["label"].tolist() == y.tolist()
        weighted = ds.batches(2, 2, select="x", class_weights={"7": 0.0}, threads=threads)
        assert all("7" not in ds.class_names[y] for _, y in weighted)
        listed = ds.batches(1, 2, select="x", class_list=["-3"], threads=threads)
        assert all(ds.class_names[y] == ["-3", "-3"] for _, y in listed)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
def test_contiguous_labels_of_other_integers(tmp_path, dtype):
    examples = [{"x": n, "label": np.dtype(dtype).type(1)} for n in range(8)]
    put(tmp_path / "a.tfrecord", examples, {"x": "int64", "label": dtype})
    options = {"features": {"x": "int64", "label": dtype}, "label": "label"}
    with opened(tmp_path / "a.tfrecord", labels="contiguous", **options) as ds:
        assert dict(ds.class_names) == {0: "1"}
        assert ds.columns("label")["label"].tolist() == [0] * 8
        (x, y) = next(iter(ds.batches(1, 2, select=["x", "label"])))
        assert x["label"].tolist() == y.tolist() == [0, 0]


def test_default_class_of_contiguous_labels(tmp_path):
    examples = [{"x": n} if n % 2 else {"x": n, "label": 5} for n in range(8)]
    put(
        tmp_path / "a.tfrecord",
        examples,
        {"x": "int64", "label": Tensor("int64", default=9)},
    )
    features = {"x": "int64", "label": Tensor("int64", default=9)}
    with opened(tmp_path / "a.tfrecord", features=features, labels="contiguous") as ds:
        assert dict(ds.class_names) == {0: "5", 1: "9"}
        assert [each["label"] for each in ds] == [n % 2 for n in range(8)]
        assert next(iter(ds.sequential(4, select="x")))[1].tolist() == [0, 1, 0, 1]


# Any sequence of operations.

BIRDS = {
    "names": [("wren", "owl"), ("tern", "owl", "gull"), ("owl", "wren", "auk")],
    "strings": [("wren", "owl"), ("tern", "owl", "gull"), ("auk",)],
    "ids": [(-3, 7), (10**9, 7, 2**62), (0, 1)],
}
COMPRESSIONS = [None, "GZIP", None]


@pytest.fixture(scope="module", params=BIRDS)
def sources(tmp_path_factory, request):
    """Return three datasets, opened with their own and with contiguous class ids, and their model:
    number and class name of each example."""
    directory, found = tmp_path_factory.mktemp("operations"), []
    for number, classes in enumerate(BIRDS[request.param]):
        path = directory / str(number)
        many = [{"x": 100 * number + n, "bird": classes[n % len(classes)]} for n in range(12)]
        if request.param == "strings":
            put(path / "a.tfrecord", many, {"x": "int64", "bird": "str"})
        else:
            compression = COMPRESSIONS[number]
            write(many, path, label="bird", shards=2, shuffle=False, compression=compression)
        both = [opened(path, label="bird", labels=labels) for labels in (None, "contiguous")]
        found.append((both, [(each["x"], str(each["bird"])) for each in many]))
    return found


class Operation:
    """Operations on a dataset and on its model."""

    def __init__(self, sources, draw):
        self.sources, self.draw = sources, draw

    def any_source(self):
        both, model = self.draw(st.sampled_from(self.sources))
        return self.draw(st.sampled_from(both)), model

    def select(self, ds, model):
        ids = self.draw(st.lists(st.integers(-len(model), len(model) - 1), min_size=1, max_size=9))
        return ds.select(ids), [model[each] for each in ids]

    def where(self, ds, model):
        names = self.draw(st.sets(st.sampled_from(sorted({name for _, name in model})), min_size=1))
        return ds.where(label=sorted(names)), [each for each in model if each[1] in names]

    def filter(self, ds, model):
        kept = [each for each in model if each[0] % 3]
        return ds.filter(lambda each: bool(each["x"] % 3), select="x"), kept

    def add(self, ds, model):
        both, more = self.draw(st.sampled_from(self.sources))
        kind = type(ds.features["bird"])  # class ids have no names unless they are contiguous
        same_kind = [each for each in both if type(each.features["bird"]) is kind]
        return ds + self.draw(st.sampled_from(same_kind)), model + more

    def add_itself(self, ds, model):
        return ds.select([0]) + ds, [model[0], *model]

    def split(self, ds, model):
        classes = len(ds.classes)
        if classes == 1:
            return ds, model
        labels = self.draw(st.sampled_from([None, "contiguous"]))
        sizes = {"first": self.draw(st.integers(1, classes - 1))}
        first, second = ds.split_classes(seed=self.draw(st.integers(0, 9)), labels=labels, **sizes)
        assert len(first.classes) == sizes["first"]
        assert sorted([*first.classes, *second.classes]) == sorted(ds.classes)
        if labels is not None:
            assert first.classes.labels.tolist() == list(range(len(first.classes)))
        names = set(first.classes)
        return first, [each for each in model if each[1] in names]

    def pickle(self, ds, model):
        return pickle.loads(pickle.dumps(ds)), model


OPERATIONS = [name for name in vars(Operation) if name[0] != "_" and name != "any_source"]


def check_dataset(ds, model):
    """Compare a dataset with its model: number and class name of each example."""
    found, name_of = ds[:], dict(model)
    assert found["x"].tolist() == [number for number, _ in model]
    assert ds.class_names[ds.labels] == [name for _, name in model]
    counts = dict(zip(ds.classes, ds.classes.counts.tolist(), strict=True))
    assert counts == Counter(name for _, name in model)
    schema = Features({"x": "int64"})
    assert [schema.decode(each)["x"] for each in ds.raw] == found["x"].tolist()
    if isinstance(ds.features["bird"], ClassLabel) or ds.features["bird"].dtype == "int64":
        assert found["bird"].tolist() == ds.labels.tolist() == ds.columns("bird")["bird"].tolist()
    else:
        assert [each.decode() for each in found["bird"]] == ds.class_names[ds.labels]
    for threads in (0, 2):
        loaders = (ds.batches(len(counts), 2, threads=threads), ds.sequential(5, threads=threads))
        for loader in loaders:
            for x, y in itertools.islice(loader, 3):
                assert ds.class_names[y] == [name_of[number] for number in x.tolist()]


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::covey.errors.SmallClassesWarning")
def test_any_sequence_of_operations(sources, data):
    operation = Operation(sources, data.draw)
    ds, model = operation.any_source()
    for name in data.draw(st.lists(st.sampled_from(OPERATIONS), max_size=4)):
        ds, model = getattr(operation, name)(ds, model)
        if not model:
            break
    if model:
        check_dataset(ds, model)


# Filters.


@pytest.fixture
def birds(tmp_path):
    names = ("owl", "wren", "crow")
    examples = [{"x": n, "bird": names[n % 3], "song": [0.5] * (n % 4)} for n in range(30)]
    write(examples, tmp_path / "birds", label="bird", shuffle=False)
    with opened(tmp_path / "birds") as ds:
        yield ds


def test_filter(birds):
    calls = []

    def keeps(example):
        calls.append(sorted(example))
        return example["x"] % 5 == 0

    assert numbers(birds.filter(keeps)) == [0, 5, 10, 15, 20, 25]
    assert calls == [["bird", "song", "x"]] * 30
    calls.clear()
    assert numbers(birds.filter(keeps, select=["x"], classes=["owl"])) == [0, 15]
    assert calls == [["x"]] * 10
    assert len(birds.filter(lambda each: False)) == 0
    assert numbers(birds.filter(lambda each: each["x"] > np.int64(27))) == [28, 29]  # np.bool_
    assert numbers(birds.select([5, 3, 5]).filter(lambda each: True)) == [5, 3, 5]
    twice = birds.filter(classes=[birds.class_names[0], 1]).filter(lambda each: each["x"] < 9)
    assert numbers(twice) == [0, 2, 3, 5, 6, 8]


@pytest.mark.parametrize("result", [1, None, "yes", np.array([True]), 1.0])
def test_filter_functions_return_bool(birds, result):
    with pytest.raises(DatasetError, match="must return bool") as caught:
        birds.filter(lambda each: result if each["x"] == 4 else True)
    assert caught.value.record == 4
    assert caught.value.path.endswith("00000-of-00001")


def test_errors_of_filter_functions_have_a_location(birds):
    with pytest.raises(ZeroDivisionError) as caught:
        birds.filter(lambda each: 1 / (int(each["x"]) - 7) > 0)
    assert "record 7" in caught.value.__notes__[0]


def test_map_is_refused(birds):
    with pytest.raises(DatasetError, match=r"pass transform= .* or write the changed examples"):
        birds.map(dict, batched=True)


# Sums.


def make(path, first, names, *, kind="ClassLabel", **options):
    """Write and open ten examples of each of some classes."""
    examples = [{"x": first + n, "bird": names[n % len(names)]} for n in range(10 * len(names))]
    if kind == "str":
        put(path / "a.tfrecord", examples, {"x": "int64", "bird": "str"})
    else:
        write(examples, path, label="bird", shuffle=False)
    return opened(path, label="bird", **options)


def test_a_sum_has_its_own_files_and_the_ids_of_the_first(tmp_path):
    first = make(tmp_path / "a", 0, ("wren", "owl"))
    second = make(tmp_path / "b", 100, ("tern", "owl", "gull"))
    both = first + second
    assert list(both.class_names.values()) == ["owl", "wren", "gull", "tern"]
    assert both.labels[:20].tolist() == first.labels.tolist()
    assert both.raw[25] == second.raw[5]
    first.close()
    second.close()
    assert numbers(both) == [*range(20), *range(100, 130)]
    both.close()


def test_sum_with_unknown_classes(tmp_path):
    features = {"x": "int64", "bird": ClassLabel(["owl", "wren"])}
    write([{"x": 0, "bird": -1}, {"x": 1, "bird": 1}], tmp_path / "a", features=features)
    features = {"x": "int64", "bird": ClassLabel(["wren", "tern"])}
    write([{"x": 2, "bird": -1}, {"x": 3, "bird": 0}], tmp_path / "b", features=features)
    with opened(tmp_path / "a") as first, opened(tmp_path / "b") as second:
        both = first + second
        assert sorted(zip(numbers(both), both.labels.tolist(), strict=True)) == [
            (0, -1),
            (1, 1),
            (2, -1),
            (3, 1),
        ]
        assert both.where(label=-1).columns("bird")["bird"].tolist() == [-1, -1]


def test_datasets_that_cannot_be_added(tmp_path, birds):
    other = make(tmp_path / "b", 100, ("tern", "owl"))
    with pytest.raises(DatasetError) as caught:
        birds + other
    assert caught.value.feature == "song"
    strings = make(tmp_path / "c", 100, ("tern", "owl"), kind="str")
    with pytest.raises(DatasetError) as caught:
        other + strings
    assert caught.value.feature == "bird"
    with pytest.raises(DatasetError) as caught:
        other + opened(tmp_path / "b", verify=False)
    assert caught.value.option == "verify"
    write([{"x": n, "bird": n % 2} for n in range(4)], tmp_path / "d", label="bird")
    with pytest.raises(DatasetError, match="names") as caught:
        other + opened(tmp_path / "d")
    assert caught.value.feature == "bird"
    write([{"x": n, "bird": 1.5} for n in range(4)], tmp_path / "e")
    with pytest.raises(DatasetError) as caught:
        other + opened(tmp_path / "e")
    assert caught.value.option == "label"
    for value in (1, [{"x": 1}], None):
        with pytest.raises(TypeError):
            other + value


# Parts of disjoint classes.


@pytest.fixture
def many(tmp_path):
    labels = np.arange(600) % 60
    write({"x": np.arange(600), "label": labels}, tmp_path / "many", label="label")
    with opened(tmp_path / "many") as ds:
        yield ds


def test_parts(many):
    train, val, test = many.split_classes(train=0.5, val=0.25, test=0.25, seed=3)
    parts = [set(each.classes) for each in (train, val, test)]
    assert set.union(*parts) == set(many.classes)
    assert sum(map(len, parts)) == 60
    assert sorted(numbers(train) + numbers(val) + numbers(test)) == list(range(600))
    assert 20 <= len(parts[0]) <= 40
    again = many.split_classes(train=0.5, val=0.25, test=0.25, seed=3)
    assert [set(each.classes) for each in again] == parts
    other = many.split_classes(train=0.5, val=0.25, test=0.25, seed=4)
    assert [set(each.classes) for each in other] != parts
    (rest_train, rest) = many.split_classes(train=0.5, seed=3)
    assert set(rest_train.classes) == parts[0]
    assert set(rest.classes) == parts[1] | parts[2]
    larger, _ = many.split_classes(train=0.7, seed=3)
    assert set(larger.classes) > parts[0]
    assert len(many.split_classes(a=0.1, b=0.2, c=0.3, d=0.4)) == 4  # the sum is 1 but for rounding
    assert [len(each) for each in many.split_classes(all=1.0)] == [600]


def test_parts_do_not_follow_the_classes_that_a_write_held_out(tmp_path):
    examples = [{"x": n, "label": f"class {n % 200}"} for n in range(400)]
    hold_out = covey.HoldOut(classes=0.5, split="test")
    write(examples, tmp_path / "data", label="label", hold_out=hold_out)
    with opened(tmp_path / "data", split="train") as ds:
        train, _ = ds.split_classes(train=0.5)
        assert 0.3 < len(train.classes) / len(ds.classes) < 0.7


def test_unlabelled_examples_are_in_no_part(tmp_path):
    features = {"x": "int64", "bird": ClassLabel(["owl", "wren"])}
    write([{"x": n, "bird": n % 3 - 1} for n in range(9)], tmp_path / "a", features=features)
    with opened(tmp_path / "a") as ds:
        parts = ds.split_classes(a=1, b=1)
        assert len(parts) == 2
        assert sorted(numbers(parts[0]) + numbers(parts[1])) == [1, 2, 4, 5, 7, 8]


def test_parts_of_exact_sizes(many):
    parts = many.split_classes(train=40, test=15)
    assert [len(each.classes) for each in parts] == [40, 15, 5]
    assert [len(each.classes) for each in many.split_classes(train=40, test=20)] == [40, 20]
