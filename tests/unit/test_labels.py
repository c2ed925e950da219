"""Label features, label functions and file names as classes, and class ids."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened import numbers, opened, put, put_numbers
from schemas import texts
from written import write

import covey
from covey import ClassLabel, CoveyError, Features, Image, Ragged, Tensor
from covey.errors import DatasetError
from covey.filenames import strip_record_suffixes
from covey.labels import input_feature


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


BIRDS = ["wren", "owl", "jay", "owl", "wren", "owl"]


# Features.

LABEL = {"label": ClassLabel(["owl"])}


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"image": Image(), "filename": "str"}, "image"),
        ({"image": Image(), "caption": "str", "area": "float32"}, "image"),
        ({"a": Image(), "b": Image()}, None),
        ({"image": {"raw": Image(), "file_name": "str", "id": "int64"}}, "image/raw"),
        ({"text": "str", "ID": "int64", "user_id": "bytes", "sourceindex": "int64"}, None),
        ({"text": "str", "ID": "int64", "user_id": "bytes", "source_index": "int64"}, "text"),
        ({"text": "str", "domain": ClassLabel(["bank"])}, "text"),
        ({"x": Tensor("float32", (4,))}, "x"),
        ({"x": Tensor("float32", (4,)), "y": Tensor("float32", (4,))}, None),
        ({"tokens": Ragged("int64"), "key": "str"}, "tokens"),
        ({"x": "str", "id": Tensor("int64", (4,))}, None),
        ({"x": "str", "id": "float32"}, None),
        ({"id": "int64"}, "id"),
        ({"id": "int64", "path": "str"}, None),
        ({"domain": ClassLabel(["bank"])}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("label", ["label", None])
def test_input_feature(features, expected, label):
    labelled = Features({**features, **LABEL})
    if label is None and expected == "id":  # beside a class, an id is not the only feature
        expected = None
    assert input_feature(labelled, label) == expected


@pytest.mark.parametrize("kind", ["int64", "str", "bytes"])
def test_label_feature(directory, kind):
    names = {"wren": 7, "owl": -3, "jay": 2**40}
    make = {"int64": names.get, "str": str, "bytes": str.encode}[kind]
    examples = [{"x": n, "bird": make(bird)} for n, bird in enumerate(BIRDS)]
    put(directory / "a.tfrecord", examples[:4], {"x": "int64", "bird": kind})
    put(directory / "b.tfrecord", examples[4:], {"x": "int64", "bird": kind})
    ds = opened(directory, label="bird")
    assert ds.label == "bird"
    if kind == "int64":
        assert ds.labels.tolist() == [names[bird] for bird in BIRDS]
        assert tuple(ds.classes) == ("-3", "7", str(2**40))
        assert ds.classes.labels.tolist() == [-3, 7, 2**40]
        assert numbers(ds.where(label=-3)) == [1, 3, 5]
    else:
        assert ds.labels.tolist() == [2, 1, 0, 1, 2, 1]
        assert tuple(ds.classes) == ("jay", "owl", "wren")
        assert numbers(ds.where(label="owl")) == numbers(ds.where(label=1)) == [1, 3, 5]
    assert sorted(ds.classes.counts.tolist()) == [1, 2, 3]
    assert (ds.labels.dtype, ds.classes.labels.dtype, ds.classes.counts.dtype) == (np.int64,) * 3


@pytest.mark.parametrize("mmap", [True, False])
def test_integer_label_of_any_dtype(directory, mmap):
    dtypes = ["int8", "uint8", "int32", "uint32", "bool", "uint64"]
    features = {"x": "int64", **{dtype: dtype for dtype in dtypes}}
    examples = [{"x": n, **dict.fromkeys(dtypes, n % 2)} for n in range(10)]
    put(directory / "a.tfrecord", examples, features)
    for dtype in dtypes:
        ds = opened(directory, label=dtype, features=features, mmap=mmap)
        assert ds.labels.tolist() == ds[:][dtype].tolist() == [n % 2 for n in range(10)]
        assert numbers(ds.where(label=1)) == list(range(1, 10, 2))


def test_invalid_class_id(directory):
    features = {"bird": "uint64"}
    put(directory / "a.tfrecord", [{"bird": 1}, {"bird": 2**63}], features)
    with pytest.raises(CoveyError, match=r"9223372036854775808.*must be < 2\*\*63"):
        opened(directory, label="bird", features=features)


def test_named_classes(directory):
    features = {"bird": ClassLabel(names=["owl", "wren", "jay", "gull"])}
    put(directory / "a.tfrecord", [{"bird": bird} for bird in BIRDS], features)
    ds = opened(directory, features=features)
    assert ds.label == "bird"
    assert (tuple(ds.classes), ds.classes.labels.tolist()) == (("owl", "wren", "jay"), [0, 1, 2])
    assert ds.labels.tolist() == [1, 0, 2, 0, 1, 0]
    assert len(ds.where(label=["jay", "wren"])) == 3
    with pytest.raises(DatasetError, match=r"no record of class 'gull'; there are 'owl', 'wren'"):
        ds.where(label="gull")


def test_nested_labels(directory):
    features = {"a": {"bird": "str"}, "x": "int64"}
    examples = [{"a": {"bird": bird}, "x": n} for n, bird in enumerate(BIRDS)]
    put(directory / "a.tfrecord", examples, features)
    assert numbers(opened(directory, label="a/bird").where(label="owl")) == [1, 3, 5]
    write(examples, directory / "set", features=features, label="a/bird", shuffle=False)
    assert numbers(opened(directory / "set").where(label="owl")) == [1, 3, 5]


@pytest.mark.parametrize(
    ("label", "allowed"),
    [
        ("nix", "one of 'f', 'v', 'x'"),
        ("", "one of"),
        ("@function", "one of"),
        ("f", "a ClassLabel, an integer or a string"),
        ("v", "a ClassLabel, an integer or a string"),
        (5, "the name of a feature, a function"),
        (b"x", "the name of a feature, a function"),
        (["x"], "the name of a feature, a function"),
    ],
)
def test_invalid_label(directory, label, allowed):
    features = {"x": "int64", "f": "float32", "v": Tensor("int64", (2,))}
    put(directory / "a.tfrecord", [{"x": 1, "f": 0.5, "v": [1, 2]}], features)
    with pytest.raises(DatasetError) as caught:
        opened(directory, label=label)
    assert (caught.value.option, caught.value.found) == ("label", label)
    assert allowed in caught.value.allowed
    assert not list(directory.glob("covey-*"))


@pytest.mark.parametrize("missing", [0, 1])
def test_record_without_a_label(directory, missing):
    features = {"x": "int64", "bird": Tensor("str", default="")}
    with covey.RecordWriter(directory / "a.tfrecord") as writer:
        for number in range(2):
            lacks = number == missing
            kinds = {"x": "int64"} if lacks else {"x": "int64", "bird": "str"}
            example = {"x": number} if lacks else {"x": number, "bird": "owl"}
            writer.write(Features(kinds).encode(example))
    with pytest.raises(CoveyError) as caught:
        opened(directory, label="bird")
    error = caught.value
    assert (error.path, error.record) == (str(directory / "a.tfrecord"), missing)
    assert "bird" in (error.feature, error.found)
    assert tuple(opened(directory, label="bird", features=features).classes) == ("", "owl")


def test_label_that_is_not_utf8(directory):
    examples = [{"bird": b"owl", "pad": b"p" * 200} for _ in range(20_000)]
    examples[19_998]["bird"] = b"\xff"
    put(directory / "a.tfrecord", examples, {"bird": "bytes", "pad": "bytes"})
    with pytest.raises(CoveyError, match=r"a.tfrecord: \w+ 19998.*not valid UTF-8"):
        opened(directory, label="bird")


# The default label.


@pytest.mark.parametrize("name", ["label", "Label", "labels", "class", "CLASSES", "target"])
def test_common_label_name(directory, name):
    put(directory / "a.tfrecord", [{name: 3, "x": 1}], {name: "int64", "x": "int64"})
    ds = opened(directory)
    assert (ds.label, ds.labels.tolist()) == (name, [3])


MULTI = Features({"label": Tensor("int64", (None,))})
UNFIT = {
    "several": [MULTI.encode({"label": [1]}), MULTI.encode({"label": [1, 2]})],
    "none": [MULTI.encode({"label": [1]}), Features({}).encode({})],
    "invalid UTF-8": [
        Features({"label": "bytes"}).encode({"label": each}) for each in (b"a", b"\xff")
    ],
    "a fraction": [Features({"label": "float32"}).encode({"label": 0.5})],
}


@pytest.mark.parametrize("unfit", UNFIT)
def test_common_label_name_of_an_invalid_feature(directory, unfit):
    with covey.RecordWriter(directory / "a.tfrecord") as writer:
        for record in UNFIT[unfit]:
            writer.write(record)
    ds = opened(directory)
    assert len(ds[:]["label"]) == len(UNFIT[unfit])
    assert ds.label is None


def test_no_label_feature(directory):
    put(directory / "a.tfrecord", [{"x": 1}], {"x": "int64"})
    ds = opened(directory)
    assert ds.label is None
    for use in (lambda: ds.labels, lambda: ds.classes, lambda: ds.where(label=1)):
        with pytest.raises(
            DatasetError, match=r"the dataset has no label; .*label=.*feature \(x\)"
        ):
            use()
    assert repr(ds) == "<covey.Dataset: 1 example, no label>\n  x  int64"


# Functions.


def test_label_function(directory):
    put_numbers(directory / "a.tfrecord", range(10))
    put_numbers(directory / "b.tfrecord", range(10, 20))
    parity = opened(directory, label=lambda example: ["even", "odd"][example["x"] % 2])
    assert (tuple(parity.classes), parity.classes.counts.tolist()) == (("even", "odd"), [10, 10])
    assert numbers(parity.where(label="odd")) == list(range(1, 20, 2))
    tens = opened(directory, label=lambda example: np.int8(example["x"] // 10 - 1))
    assert tens.labels.tolist() == [-1] * 10 + [0] * 10
    assert opened(directory).label == "label"  # an index by a function is not stored


def test_label_function_of_decoded_values(directory):
    features = {"v": Tensor("int64", (None,)), "name": "str"}
    lists = [[1, 2, 3], [], [4, 5, 6, 7, 8]]
    put(directory / "a.tfrecord", [{"v": each, "name": "é"} for each in lists], features)
    assert opened(directory, label=lambda example: len(example["v"])).labels.tolist() == [3, 0, 5]
    ds = opened(directory, features=features, label=lambda example: example["name"])
    assert tuple(ds.classes) == ("é",)
    assert type(ds.class_names[0]) is str


@pytest.mark.parametrize("value", [None, 1.0, True, b"x", np.array(3), [1], 2**63, -(2**63) - 1])
def test_invalid_result_of_a_label_function(directory, value):
    put_numbers(directory / "a.tfrecord", range(3))
    with pytest.raises(DatasetError, match=r"a.tfrecord: record 0: the label function returned"):
        opened(directory, label=lambda example: value)


@pytest.mark.parametrize("threads", [1, 4])
def test_label_function_of_integers_and_strings(directory, threads):
    for part in range(4):
        put_numbers(directory / f"{part}.tfrecord", range(part, part + 2))
    with pytest.raises(DatasetError, match=r"record \d: the label function returned"):
        opened(
            directory, label=lambda each: "3" if each["x"] == 3 else int(each["x"]), threads=threads
        )


def test_error_of_a_label_function(directory):
    put_numbers(directory / "a.tfrecord", range(3))
    with pytest.raises(ZeroDivisionError):
        opened(directory, label=lambda example: 1 // int(example["x"]))


# Files.


def test_files_as_classes(directory):
    names = [
        "owl.tfrecord",
        "wren-00000-of-00002.tfrecord",
        "wren-00001-of-00002.tfrecord",
        "sea/jay.tfrec",
    ]
    for number, name in enumerate(names):
        put_numbers(directory / name, range(number * 2, number * 2 + 2))
    put_numbers(directory / "gull.tfrecord.gz", [9], compression="GZIP")
    put_numbers(directory / "tit.tfrecord", [])
    for _ in range(2):  # builds the index, then reads it
        ds = opened(directory, label="@file")
        assert ds.label == "@file"
        assert tuple(ds.classes) == ("gull", "owl", "sea/jay", "wren")
        found = [numbers(ds.where(label=name)) for name in ds.classes]
        assert found == [[9], [0, 1], [6, 7], [2, 3, 4, 5]]
    single = opened(directory / "owl.tfrecord", label="@file")
    assert (tuple(single.classes), single.labels.tolist()) == (("owl",), [0, 0])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("owl.tfrecord", "owl"),
        ("owl.tfrecords.gz", "owl"),
        ("snowy owl.v2.tfrec", "snowy owl.v2"),
        ("birds-owl.tfrecord-00001-of-00020", "birds-owl"),
        ("owl-00001-of-00020.tfrecord", "owl"),
        (".tfrecord", ".tfrecord"),
    ],
)
def test_class_name_of_a_file(file, name):
    assert strip_record_suffixes(file) == name


# Class ids of strings.


@settings(max_examples=20)
@given(
    st.lists(texts, min_size=1, max_size=12),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.sampled_from([1, 3]),
)
def test_strings_have_the_same_class_ids_in_any_order(
    tmp_path_factory, words, random, shards, threads
):
    shuffled = random.sample(words, len(words))
    directory = tmp_path_factory.mktemp("texts")
    for shard in range(shards):
        part = [{"word": word} for word in shuffled[shard::shards]]
        put(directory / f"{shard}.tfrecord", part, {"word": "str"})
    ds = opened(directory, label="word", threads=threads)
    assert tuple(ds.classes) == tuple(sorted(set(words)))
    assert ds.classes.labels.tolist() == list(range(len(set(words))))
    found = [ds.class_names[label] for label in ds.labels]
    assert found == [word.decode() for word in ds[:]["word"].tolist()]


def test_splits_share_class_ids(directory):
    parts = {"train": ["wren", "owl"], "test": ["jay", "wren"], "val": ["tit", "owl", "auk"]}
    for split, birds in parts.items():
        put(directory / f"{split}.tfrecord", [{"label": bird} for bird in birds], {"label": "str"})
    for spec in (
        "train+test",
        "test+train",
        "val+test+train",
        "train[1:]+val[:2]+train[:1]",
        "all",
    ):
        ds = opened(directory, split=spec)
        birds = [bird.decode() for bird in ds[:]["label"].tolist()]
        by_label = dict(zip(ds.classes.labels.tolist(), ds.classes, strict=True))
        assert [by_label[label] for label in ds.labels.tolist()] == birds
        assert sorted(ds.classes) == sorted(set(birds))
        for bird in set(birds):
            assert ds.where(label=bird)[:]["label"].tolist() == [bird.encode()] * birds.count(bird)
            assert ds[[birds.index(bird)]]["label"].tolist() == [bird.encode()]


def test_the_first_split_keeps_its_class_ids(directory):
    put(directory / "train.tfrecord", [{"label": "wren"}, {"label": "owl"}], {"label": "str"})
    put(directory / "test.tfrecord", [{"label": "jay"}, {"label": "wren"}], {"label": "str"})
    assert opened(directory, split="train").labels.tolist() == [1, 0]
    assert opened(directory, split="train+test").labels.tolist() == [1, 0, 2, 1]
    assert opened(directory, split="test+train").labels.tolist() == [0, 1, 1, 2]


def test_written_splits_share_class_ids(tmp_path):
    features = {"bird": "str"}
    for split, birds in {"train": ["wren", "owl"], "test": ["jay", "wren"]}.items():
        write([{"bird": bird} for bird in birds], tmp_path, split, features=features,
              label="bird", shuffle=False)  # fmt: skip
    ds = opened(tmp_path, split="train+test")
    assert [ds.class_names[label] for label in ds.labels] == ["wren", "owl", "jay", "wren"]
    assert sorted(ds.select([2, 3]).classes) == ["jay", "wren"]


def test_one_label_for_all_splits(directory):
    features = {"y": "int64", "label": "int64"}
    put(directory / "train.tfrecord", [{"y": 7, "label": 1}], features)
    put(directory / "test.tfrecord", [{"y": 8, "label": 2}], features)
    opened(directory, split="train", label="y")  # the index that is kept has this label
    ds = opened(directory, split="train+test")
    assert (ds.label, ds.labels.tolist()) in [("y", [7, 8]), ("label", [1, 2])]
    ds = opened(directory, split="train+test", label="label")
    assert (ds.label, ds.labels.tolist()) == ("label", [1, 2])


# Labels of a dataset.


def test_another_label_than_that_of_the_index(tmp_path):
    directory = tmp_path / "set"
    examples = [{"x": n, "bird": BIRDS[n], "size": n % 2} for n in range(6)]
    write(examples, directory, label="bird", shuffle=False)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    for _ in range(2):
        ds = opened(directory, label="size")
        assert (ds.label, ds.labels.tolist()) == ("size", [0, 1, 0, 1, 0, 1])
        assert tuple(opened(directory).classes) == ("jay", "owl", "wren")
        assert tuple(opened(directory, label="@file").classes) == ("set-train",)
        assert tuple(opened(directory, label="bird").classes) == ("jay", "owl", "wren")
        ds = opened(directory, label=lambda example: str(example["x"] // 3))
        assert (tuple(ds.classes), ds.classes.counts.tolist()) == (("0", "1"), [3, 3])
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_another_label_of_foreign_files(directory):
    put_numbers(directory / "a.tfrecord", range(5))
    for _ in range(2):
        assert opened(directory, label="x").labels.tolist() == [0, 1, 2, 3, 4]
        assert opened(directory, label="label").labels.tolist() == [0, 1, 2, 0, 1]
        assert opened(directory, label="@file").labels.tolist() == [0, 0, 0, 0, 0]


def test_label_of_an_unlabelled_dataset(tmp_path):
    write([{"x": n, "y": n % 2} for n in range(4)], tmp_path, shuffle=False)
    assert opened(tmp_path).label is None
    assert opened(tmp_path, label="y").labels.tolist() == [0, 1, 0, 1]
    assert opened(tmp_path).label is None


def test_strings_keep_their_class_ids(tmp_path):
    directory = tmp_path / "set"
    features = {"bird": "str"}
    write([{"bird": "wren"}], directory, features=features, label="bird")
    write([{"bird": "owl"}], directory, features=features, label="bird", mode="append")
    names = tuple(opened(directory).classes)
    assert names == ("wren", "owl")
    (path,) = directory.glob("*.index.npy")
    rows = bytearray(path.read_bytes())
    rows[-1] ^= 1
    path.write_bytes(rows)
    ds = opened(directory)  # the rows are rebuilt, the rest of the index is valid
    assert ds.label == "bird"
    assert [ds.class_names[label] for label in ds.labels] == ["wren", "owl"]
    assert tuple(ds.classes) == names


# Selection by class.


@pytest.fixture
def birds(directory):
    examples = [{"x": n, "label": bird} for n, bird in enumerate(BIRDS)]
    put(directory / "a.tfrecord", examples, {"x": "int64", "label": "bytes"})
    return opened(directory)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("owl", [1, 3, 5]),
        (b"owl", [1, 3, 5]),
        (np.str_("jay"), [2]),
        (0, [2]),
        (np.int8(2), [0, 4]),
        (["wren", "jay"], [0, 2, 4]),
        ([2, "jay", 2], [0, 2, 4]),
        (np.array([2, 0]), [0, 2, 4]),
        ((b"jay",), [2]),
        ([], []),
    ],
    ids=str,
)
def test_where(birds, label, expected):
    some = birds.where(label=label)
    assert numbers(some) == expected
    assert some.labels.tolist() == [birds.labels[n] for n in expected]
    assert len(some.classes) == len({BIRDS[n] for n in expected})


UNKNOWN = ["nix", "", "1", b"\xff", b"nix", 3, -1, 2**70, -(2**70), True, 1.0, None]


@pytest.mark.parametrize("label", [*UNKNOWN, ["owl", "nix"], [None]])
def test_where_of_an_unknown_class(birds, label):
    with pytest.raises((DatasetError, TypeError)):
        birds.where(label=label)


def test_where_of_a_class_without_a_name(directory):
    put_numbers(directory / "a.tfrecord", range(6))
    ds = opened(directory)
    assert tuple(ds.classes) == ("0", "1", "2")
    assert [numbers(ds.where(label=name)) for name in ds.classes] == [[0, 3], [1, 4], [2, 5]]


def test_class_table(birds):
    classes = birds.classes
    assert (len(classes), list(classes)) == (3, ["jay", "owl", "wren"])
    assert dict(classes.names) == {0: "jay", 1: "owl", 2: "wren"}
    assert classes.counts.tolist() == [1, 3, 2]
    assert [classes.records(position).tolist() for position in range(3)] == [[2], [1, 3, 5], [0, 4]]
    assert [classes.position(name) for name in classes] == [0, 1, 2]
    assert repr(classes) == "<3 classes, 1 to 3 records each>"
    with pytest.raises(IndexError):
        classes.records(3)


def test_labels_are_read_only(birds, directory):
    for ds in (birds, opened(directory, label=lambda example: "a"), birds.select([1, 2])):
        expected = ds.labels.tolist()
        try:
            ds.labels[0] = 5
        except ValueError:
            continue
        assert ds.select(slice(None)).labels.tolist() == expected
