"""datum's writer, compared with datum's rules, TensorFlow and TFDS."""

import gc
import inspect
import json
import os
import warnings
from pathlib import Path

import datum_reader
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from written import TOKEN, shard_paths

import covey.compat.datum
from covey import ClassLabel, Features, Image, Tensor
from covey.compat.datum import CountWarning, Serializer, TFRecordWriter
from covey.errors import DatasetError, DuplicateKeyError, FeatureError, FormatError, SourceError


def writer(path, data, sparse=None, split="train", serializer=None, total=None, **options):
    """Return a writer of a dict of examples by key, or of a list of them."""
    items = list(data.items() if isinstance(data, dict) else enumerate(data))
    total = len(items) if total is None else total
    made = TFRecordWriter(
        lambda split: iter(items), serializer or Serializer(), path, split, total, sparse
    )
    for name, value in options.items():
        setattr(made, name, value)
    return made


def write(path, data, sparse=None, **options):
    writer(path, data, sparse, **options).create_records()
    return path


def plain(example):
    """Return an example as Python values."""
    return {
        name: value if isinstance(value, bytes) else value.tolist()
        for name, value in example.items()
    }


def read(path, split="train"):
    """Return the examples as datum reads them, sorted by their ids."""
    examples = map(plain, datum_reader.read(path, split))
    return sorted(examples, key=lambda each: each["id"])


def mapping(path):
    return json.loads((path / "datum_to_type_and_shape_mapping.json").read_text())


def shard_info(path):
    return json.loads((path / "shard_info.json").read_text())


def entry(type, shape, dense=True):
    return {"type": type, "shape": shape, "dense": dense}


def birds(count):
    return [{"id": i, "song": [0.5 * i, 1.0], "name": f"bird {i}"} for i in range(count)]


# The interface of datum.


def test_names():
    assert covey.compat.datum.__all__ == ["CountWarning", "Serializer", "TFRecordWriter"]
    arguments = inspect.signature(TFRecordWriter).parameters
    assert list(arguments) == [
        *("generator", "serializer", "path", "split", "total_examples"),
        *("sparse_features", "gen_kwargs"),
    ]
    assert arguments["sparse_features"].default is None


def test_arguments_of_the_generator(tmp_path):
    given = {}

    def generator(split, **kwargs):
        given.update(kwargs, split=split)
        yield "a", {"id": 1}

    made = TFRecordWriter(generator, Serializer(), tmp_path, "val", 1, None, root="here", limit=3)
    assert made.create_records() is None
    assert given == {"split": "val", "root": "here", "limit": 3}
    assert read(tmp_path, "val") == [{"id": 1}]


def test_cache_and_flush(tmp_path):
    sizes = []

    def serializer(datum):
        record = Serializer()(datum)
        sizes.append(len(record))
        return record

    made = writer(tmp_path / "birds", birds(7), serializer=serializer, shards=2)
    assert made.cache_records() is None
    assert made.current_examples == 7
    assert [path for path in os.listdir(tmp_path / "birds") if path[0] != "."] == []
    info, size = made.flush_records()
    assert info == {
        "train": {
            "birds-train.tfrecord-00000-of-00002": 3,
            "birds-train.tfrecord-00001-of-00002": 4,
        }
    }
    assert info == shard_info(tmp_path / "birds")
    assert size == sum(sizes)
    with pytest.raises(DatasetError, match="no records are cached"):
        made.flush()
    made.cache_records()
    assert made.flush() is None
    again = shard_info(tmp_path / "birds")["train"]
    assert {TOKEN.sub("", name): count for name, count in again.items()} == info["train"]
    assert list(again) == [path.name for path in shard_paths(tmp_path / "birds")]


def test_unflushed_cache_is_deleted(tmp_path):
    made = writer(tmp_path / "birds", birds(3))
    made.cache_records()
    made.cache_records()  # in place of the first
    assert os.listdir(tmp_path / "birds") == [".covey-train.partial"]
    del made
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_every_type_in_every_reader(tmp_path):
    data = [
        {
            "id": i,
            "flag": i % 2 == 0,
            "float": i + 0.5,
            "name": f"bird {i}",
            "raw": b"\xff\0\0",
            "ints": np.full((2, 3), i, np.uint8),
            "floats": [[0.5, i]],
            "tags": ["a", "b\0"][: i % 3],
            "codes": [i],
            "boxes": np.full((i % 3, 4), i, np.float32),
        }
        for i in range(5)
    ]
    path = write(tmp_path / "birds", data, ["tags", "codes", "boxes"], shards=2)
    expected = [
        {
            **each,
            "name": each["name"].encode(),
            "ints": each["ints"].tolist(),
            "tags": [tag.encode() for tag in each["tags"]],
            "boxes": each["boxes"].tolist(),
            "boxes_shape": list(each["boxes"].shape),
        }
        for each in data
    ]
    assert read(path) == expected
    assert mapping(path) == {
        "id": entry("int", []),
        "flag": entry("int", []),
        "float": entry("float", []),
        "name": entry("string", []),
        "raw": entry("string", []),
        "ints": entry("int", [2, 3]),
        "floats": entry("float", [1, 2]),
        "tags": entry("string", [None], False),
        "codes": entry("int", [1], False),
        "boxes": entry("float", [None, 4], False),
        "boxes_shape": entry("int", [2]),
    }

    dataset = tfds.builder_from_directory(path).as_dataset(split="train")
    by_tfds = sorted(dataset.as_numpy_iterator(), key=lambda each: each["id"])
    for found, wanted in zip(by_tfds, expected, strict=True):
        assert plain(found) == wanted

    files = tf.data.Dataset.list_files(str(path / "*.tfrecord-*"), shuffle=False)
    spec = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "ints": tf.io.FixedLenFeature([2, 3], tf.int64),
        "tags": tf.io.VarLenFeature(tf.string),
    }
    parsed = tf.io.parse_example(list(tf.data.TFRecordDataset(files)), spec)
    order = np.argsort(parsed["id"])
    assert parsed["ints"].numpy()[order].tolist() == [each["ints"] for each in expected]
    tags = tf.sparse.to_dense(parsed["tags"]).numpy()[order].tolist()
    assert tags[2] == [b"a", b"b\0"]


def test_index_of_classes(tmp_path):
    data = [{"id": i, "species": ["owl", "wren"][i % 2]} for i in range(6)]
    path = write(tmp_path / "birds", data, label="species")
    classes = np.load(path / "birds-train.classes.npy")
    assert classes["records"].tolist() == [3, 3]
    about = json.loads((path / "birds-train.index.json").read_text())
    assert (about["label"], about["label_strings"]) == ("species", ["owl", "wren"])


def test_order_by_keys(tmp_path):
    data = {f"key {i}": each for i, each in enumerate(birds(40))}
    once = datum_reader.read(write(tmp_path / "a", data, memory_limit=1), "train")
    again = datum_reader.read(write(tmp_path / "b", dict(reversed(data.items()))), "train")
    other = datum_reader.read(write(tmp_path / "c", data, seed=1), "train")
    ids = [[int(each["id"]) for each in examples] for examples in (once, again, other)]
    assert ids[0] == ids[1] != list(range(40))
    assert ids[0] != ids[2]
    assert sorted(ids[2]) == list(range(40))


@pytest.mark.parametrize(("total", "warns"), [(2, True), (4, True), (3, False), (None, False)])
def test_total_examples(tmp_path, total, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        TFRecordWriter(
            lambda split: enumerate(birds(3)), Serializer(), tmp_path, "train", total
        ).create_records()
    expected = f"split 'train': total_examples is {total}, but the generator yielded 3"
    assert [each.category for each in caught] == [CountWarning] * warns
    assert all(str(each.message).startswith(expected) for each in caught)
    assert len(read(tmp_path)) == 3


def test_progress(tmp_path, capfd):
    write(tmp_path, birds(3), progress=True)
    shown = capfd.readouterr().err
    assert "reading train: 100%" in shown
    assert "3/3" in shown
    write(tmp_path, birds(3))
    assert capfd.readouterr() == ("", "")


def test_add_shape_fields(tmp_path):
    made = writer(tmp_path, [], ["a", "b", "c", "d"])
    datum = {"a": [[1, 2]], "b": [1, 2], "c": np.zeros((0, 3, 2)), "e": [[1]]}
    before = dict(datum)
    added = made.add_shape_fields(datum)
    assert {**added} == {**before, "a_shape": [1, 2], "c_shape": [0, 3, 2]}
    assert datum == before
    assert made.add_shape_fields(added) == added


def test_save_shard_info(tmp_path):
    made = writer(tmp_path / "new", birds(1))
    made.create_records()
    made.save_shard_info({"val": {"val.tfrecord": 3}})
    made.save_shard_info({"train": {"a": 1, "b": 0}})
    assert shard_info(tmp_path / "new") == {"train": {"a": 1, "b": 0}, "val": {"val.tfrecord": 3}}
    with pytest.raises(FormatError, match="must be a dict of files"):
        made.save_shard_info({"train": {"a": "1"}})


# Splits.


def test_overwrite_a_split(tmp_path):
    write(tmp_path, birds(6), shards=3)
    write(tmp_path, birds(2), split="val")
    write(tmp_path, [{"id": 9, "song": [1.0, 2.0], "name": "new"}])
    assert [len(files) for files in shard_info(tmp_path).values()] == [1, 1]
    assert read(tmp_path) == [{"id": 9, "song": [1.0, 2.0], "name": b"new"}]
    assert len(read(tmp_path, "val")) == 2
    assert [*shard_info(tmp_path)["train"]] == [path.name for path in shard_paths(tmp_path)]
    assert tfds.builder_from_directory(tmp_path).info.splits["train"].num_examples == 1


def test_overwritten_files_are_deleted_at_once(tmp_path):
    for count in (6, 2):
        write(tmp_path, birds(count), shards=2)
        files = tf.io.gfile.glob(f"{tmp_path}/*.tfrecord*")
        assert sum(1 for _ in tf.data.TFRecordDataset(files)) == count
        assert sorted(map(Path, files)) == shard_paths(tmp_path)
        assert not list(tmp_path.glob(".*"))
        assert len([*tmp_path.glob("*.npy"), *tmp_path.glob("*.index.json")]) <= 4


def test_overwrite_the_only_split_with_other_features(tmp_path):
    write(tmp_path, birds(3))
    write(tmp_path, [{"id": 0, "song": "other"}])
    assert read(tmp_path) == [{"id": 0, "song": b"other"}]


def test_splits_of_different_shapes(tmp_path):
    splits = {
        "train": [{"id": 0, "x": [1, 2], "m": np.ones((2, 2))}],
        "val": [{"id": 0, "x": [1, 2, 3], "m": np.ones((3, 2)), "extra": ["a"]}],
        "test": [{"id": 0, "x": [4, 5], "m": np.ones((2, 2))}],
    }
    for split, data in splits.items():
        write(tmp_path, data, ["x", "m", "extra"], split=split)
    assert mapping(tmp_path)["x"] == entry("int", [None], False)
    assert mapping(tmp_path)["m"] == entry("float", [None, 2], False)
    builder = tfds.builder_from_directory(tmp_path)
    for split, (data,) in splits.items():
        (found,) = read(tmp_path, split)
        assert (found["x"], found["m"]) == (data["x"], data["m"].tolist())
        assert found["extra"] == [text.encode() for text in data.get("extra", [])]
        (example,) = builder.as_dataset(split=split).as_numpy_iterator()
        assert example["x"].tolist() == data["x"]


def test_flush_splits_that_were_cached_together(tmp_path):
    train = writer(tmp_path, [{"id": 0, "x": [1]}, {"id": 1, "x": [1, 2, 3]}], ["x"])
    val = writer(tmp_path, [{"id": 0, "x": [4, 5]}], ["x"], split="val")
    for each in (train, val):
        each.cache_records()
    for each in (train, val):
        each.flush()
    assert [each["x"] for each in read(tmp_path)] == [[1], [1, 2, 3]]
    assert [each["x"] for each in read(tmp_path, "val")] == [[4, 5]]


@pytest.mark.parametrize(
    ("data", "sparse", "name", "message"),
    [
        ({"id": 0, "x": [1, 2, 3]}, None, "x", r"dense int \[2\] .* dense int \[3\]"),
        ({"id": 0, "x": [1.0, 2.0]}, None, "x", r"dense int \[2\] .* dense float \[2\]"),
        ({"id": 0, "x": [1, 2]}, ["x"], "x", r"dense int \[2\] .* sparse int \[2\]"),
        ({"id": 0}, None, "x", r"is dense int \[2\] in the splits that exist and missing in this"),
        ({"id": 0, "x": [1, 2], "y": 1}, None, "y", "is missing in the splits that exist"),
    ],
)
def test_splits_with_different_descriptions(tmp_path, data, sparse, name, message):
    write(tmp_path, [{"id": 0, "x": [1, 2]}])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DatasetError, match=message) as caught:
        write(tmp_path, [data], sparse, split="val")
    assert caught.value.feature == name
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_split_of_a_dataset_of_covey(tmp_path):
    columns = {"id": np.arange(4), "species": ["owl", "wren"] * 2}
    covey.write(columns, tmp_path, split="train", label="species", progress=False)
    with pytest.raises(DatasetError, match="all splits of a dataset must have the same features"):
        write(tmp_path, [{"id": 7, "species": 0.5}], split="val")
    write(tmp_path, [{"id": 7, "species": 1}], split="val")
    assert read(tmp_path, "val") == [{"id": 7, "species": 1}]
    features = tfds.builder_from_directory(tmp_path).info.features
    assert features["species"].names == ["owl", "wren"]


@pytest.mark.parametrize("name", ["shard_info.json", "datum_to_type_and_shape_mapping.json"])
@pytest.mark.parametrize("text", ["[]", "{", '{"x": 1}', '{"x": {"a": -1}}'])
def test_corrupt_descriptions(tmp_path, name, text):
    write(tmp_path, birds(1))
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=name):
        write(tmp_path, birds(1), split="val")


# The description is that of all examples.


def test_sparse_strings_of_two_dimensions(tmp_path):
    write(tmp_path, [{"id": 0, "t": [["a", "b"], ["c", "d"]]}], ["t"])
    assert read(tmp_path) == [{"id": 0, "t": [b"a", b"b", b"c", b"d"], "t_shape": [2, 2]}]


def test_sparse_feature_that_some_examples_lack(tmp_path):
    write(tmp_path, [{"id": 0}, {"id": 1, "t": 5}, {"id": 2}], ["t"])
    assert [each["t"] for each in read(tmp_path)] == [[], [5], []]
    assert mapping(tmp_path)["t"] == entry("int", [], False)


@pytest.mark.parametrize(
    ("values", "sparse", "example", "message"),
    [
        ([[1], [1, 2]], False, 0, r"has shape \(1,\), example 1 has \(2,\); list it in sparse"),
        ([[1], 1], False, 0, r"has shape \(1,\), example 1 has \(\)"),
        ([[1], []], False, 0, r"has shape \(1,\), example 1 has \(0,\)"),
        ([1, 2.5], False, None, "int64.*float32.*declare it|float32.*int64.*declare it"),
        ([1, 2, "a"], True, None, "bytes"),
        ([1, None], False, 1, "a value has type NoneType"),
        ([[], []], False, 0, "has no values"),
        ([["a", "b"]], False, 0, "has 2 strings; a dense feature has one; list it in sparse"),
        ([[[1]], [1]], True, 0, "different numbers of dimensions.*np.zeros"),
        ([[[1], [2, 3]]], True, 0, "is not an array; lists must have equal lengths"),
        ([[[1], [2, 3]]], False, 0, "is not an array"),
        ([2**70], False, 0, None),
        ([1e300], False, 0, "too large for float32"),
        ([1j], False, 0, "a value has dtype complex128; must be numbers, or strings and bytes"),
    ],
)
def test_examples_that_datum_cannot_describe(tmp_path, values, sparse, example, message):
    data = [{"id": i, "x": value} for i, value in enumerate(values)]
    with pytest.raises(FeatureError, match=message) as caught:
        write(tmp_path / "birds", data, ["x"] if sparse else None)
    assert (caught.value.feature, caught.value.example) == ("x", example)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("having", [[1], [0, 1]])
def test_dense_feature_that_some_examples_lack(tmp_path, having):
    data = [{"id": i, "x": i} if i in having else {"id": i} for i in range(3)]
    with pytest.raises(FeatureError, match=f"only {len(having)} of 3 examples do") as caught:
        write(tmp_path, data)
    assert (caught.value.feature, caught.value.example) == ("x", having[0])


def test_sparse_feature_of_two_dimensions_that_some_examples_lack(tmp_path):
    with pytest.raises(FeatureError, match=r"missing in some examples; .*np.zeros") as caught:
        write(tmp_path, [{"id": 0}, {"id": 1, "x": [[1]]}], ["x"])
    assert (caught.value.feature, caught.value.example) == ("x", 1)
    write(tmp_path, [{"id": 0, "x": np.zeros((0, 4))}, {"id": 1, "x": [[1]]}], ["x"])
    assert [each["x_shape"] for each in read(tmp_path)] == [[0, 4], [1, 1]]


def test_types_are_compared_during_the_write(tmp_path):
    def generator(split):
        for i in range(5000):
            assert i < 1024
            yield i, {"x": i if i < 9 else 0.5}

    with pytest.raises(FeatureError) as caught:
        TFRecordWriter(generator, Serializer(), tmp_path, "train", 5000).create_records()
    assert caught.value.feature == "x"


def test_names_reserved_for_shapes(tmp_path):
    with pytest.raises(FeatureError, match=r"is \[7\]; the name is reserved for the shape"):
        write(tmp_path, [{"x": [[1]], "x_shape": [7]}], ["x"])
    with pytest.raises(FeatureError, match="'x_shape' marks it as sparse for datum"):
        write(tmp_path, [{"x": [[1]], "x_shape": 7}])


# Errors.

SEQUENCE = tf.train.SequenceExample()
SEQUENCE.feature_lists.feature_list["x"].feature.add().int64_list.value.append(1)


def test_duplicate_keys(tmp_path):
    made = TFRecordWriter(
        lambda split: [(1, {"id": 1}), ("b", {"id": 2}), ("1", {"id": 3})],
        Serializer(),
        tmp_path / "birds",
        "train",
        3,
    )
    with pytest.raises(DuplicateKeyError, match="examples 0 and 2 have the same key"):
        made.create_records()
    assert os.listdir(tmp_path) == []


def test_no_examples(tmp_path):
    with pytest.raises(
        DatasetError, match="split 'train' has no examples: the generator yielded none"
    ):
        write(tmp_path / "birds", [])
    assert os.listdir(tmp_path) == []


def test_generator_that_fails(tmp_path):
    write(tmp_path, birds(2))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def generator(split):
        yield "a", birds(1)[0]
        raise KeyError("gone")

    with pytest.raises(SourceError, match="example 1: the generator failed: KeyError: 'gone'"):
        TFRecordWriter(generator, Serializer(), tmp_path, "train", 2).create_records()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("item", ["ab", ("a", 1), ("a", {}, 1), {"id": 1}, 3, None])
def test_items_that_are_not_pairs(tmp_path, item):
    made = TFRecordWriter(lambda split: [item], Serializer(), tmp_path, "train", 1)
    with pytest.raises(FeatureError, match="must be a pair of key and dict") as caught:
        made.create_records()
    assert caught.value.example == 0


@pytest.mark.parametrize(
    ("serializer", "reason"),
    [
        (lambda datum: datum["none"], "the serializer failed: KeyError"),
        (lambda datum: "text", "the serializer returned str; must be bytes"),
        (lambda datum: b"\xff", "the serializer returned an invalid tf.train.Example"),
        (lambda datum: SEQUENCE.SerializeToString(), "the serializer returned SequenceExamples"),
    ],
)
def test_serializer_that_fails(tmp_path, serializer, reason):
    with pytest.raises(FeatureError, match=reason):
        write(tmp_path / "birds", birds(1), serializer=serializer)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_sparse_features_of_any_type(tmp_path, kind):
    writer = TFRecordWriter(birds, Serializer(), tmp_path, "train", 1, kind(["tags"]))
    assert writer.sparse_features == ["tags"]
    assert type(writer.sparse_features[0]) is str
    assert not TFRecordWriter(birds, Serializer(), tmp_path, "train", 1, kind([])).sparse_features


@pytest.mark.parametrize(
    ("option", "value"),
    [("split", "a-b"), ("total_examples", -1), ("sparse_features", "tags")],
)
def test_invalid_arguments(tmp_path, option, value):
    arguments = {"path": tmp_path, "split": "train", "total_examples": 1, option: value}
    with pytest.raises(covey.CoveyError) as caught:
        TFRecordWriter(birds, Serializer(), **arguments)
    assert (caught.value.option, caught.value.found) == (option, value)
    with pytest.raises(FormatError, match="and not 'all'"):
        TFRecordWriter(birds, Serializer(), tmp_path, "all", 1)


def test_path_of_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="it is a file; must be a directory"):
        write(tmp_path / "file", birds(1))


# Serializers.


def by_datum(datum):
    """Return a tf.train.Example by the rules of datum."""
    feature = {}
    for name, value in datum.items():
        array = np.array(value)
        flat = array.ravel()
        if array.dtype.kind in "biu":
            made = tf.train.Feature(int64_list=tf.train.Int64List(value=flat.astype(int)))
        elif array.dtype.kind == "f":
            made = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
        else:
            strings = [tf.compat.as_bytes(each) for each in np.array(value, object).ravel()]
            made = tf.train.Feature(bytes_list=tf.train.BytesList(value=strings))
        feature[name] = made
    return tf.train.Example(features=tf.train.Features(feature=feature))


numbers = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(width=32, allow_nan=False),
    st.text(),
    st.binary(),
)
values = numbers | st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1),
    st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1),
    st.lists(st.binary(), min_size=1).map(tuple),
)


@settings(max_examples=30)
@given(datum=st.dictionaries(st.text(min_size=1), values, max_size=4))
def test_serializer_by_the_rules_of_datum(datum):
    assert tf.train.Example.FromString(Serializer()(datum)) == by_datum(datum)


@pytest.mark.parametrize(
    "value",
    [
        np.float16(1.5),
        np.int8(-3),
        np.bool_(True),
        np.arange(6, dtype=np.uint16).reshape(2, 3)[:, ::2],
        np.array(["a", "bc"]),
        np.array([b"a", "b"], object),
        np.array("text"),
        tf.constant([[1.5, 2.5]]),
        [np.int64(1), 2],
        [True, False],
    ],
    ids=repr,
)
def test_serializer_of_arrays(value):
    found = tf.train.Example.FromString(Serializer()({"x": value}))
    expected = value.numpy() if isinstance(value, tf.Tensor) else value
    assert found == by_datum({"x": expected})


@pytest.mark.parametrize(
    ("datum", "message"),
    [
        ({"x": ["a", 1]}, "'x': a value has type int"),
        ({"x": {"y": 1}}, "'x': a value has type dict"),
        ({"x": [["a"], ["b", "c"]]}, "'x': the value is not an array"),
        ([1], "the datum is of type list; must be a dict"),
        ({1: 2}, "the name of a feature is 1; must be a string"),
    ],
)
def test_serializer_of_invalid_values(datum, message):
    with pytest.raises(FeatureError, match=message):
        Serializer()(datum)


def test_serializer_of_features(tmp_path):
    features = {
        "id": "int64",
        "species": ClassLabel(["owl", "wren"]),
        "pixels": Tensor("uint8", (2, 2), encoding="bytes"),
        "m": Tensor("float32", (None, 2)),
        "box": {"corner": Tensor("float32", (2,))},
    }
    data = [
        {
            "id": i,
            "species": ["wren", "owl"][i],
            "pixels": np.full((2, 2), i, np.uint8),
            "m": np.ones((i + 1, 2)),
            "box": {"corner": [i, 1]},
        }
        for i in range(2)
    ]
    write(tmp_path, data, ["m"], serializer=Serializer(features))
    assert read(tmp_path)[1] == {
        "id": 1,
        "species": 0,
        "pixels": bytes([1] * 4),
        "m": [[1.0, 1.0]] * 2,
        "m_shape": [2, 2],
        "box/corner": [1.0, 1.0],
    }
    builder = tfds.builder_from_directory(tmp_path)
    examples = sorted(builder.as_dataset(split="train").as_numpy_iterator(), key=lambda e: e["id"])
    assert builder.info.features["species"].names == ["owl", "wren"]
    assert examples[1]["pixels"].tolist() == [[1, 1], [1, 1]]
    assert examples[1]["box"]["corner"].tolist() == [1.0, 1.0]
    assert np.load(next(tmp_path.glob("*.classes.npy")))["records"].tolist() == [1, 1]


def test_custom_serializer(tmp_path):
    data = [{"id": i, "x": [[1.0, i]], "name": "owl"} for i in range(3)]
    write(tmp_path, data, serializer=lambda datum: by_datum(datum).SerializeToString())
    assert read(tmp_path)[2] == {"id": 2, "x": [[1.0, 2.0]], "name": b"owl"}
    about = json.loads(next(tmp_path.glob("*.index.json")).read_text())
    assert about["records"] == 3


def test_serializer_of_other_features(tmp_path):
    def serializer(datum):
        return Features({"id": "int64", "sum": "float32"}).encode(
            {"id": datum["id"], "sum": sum(datum["x"])}
        )

    write(tmp_path, [{"id": i, "x": [1.0] * i} for i in range(3)], serializer=serializer)
    assert read(tmp_path) == [{"id": i, "sum": float(i)} for i in range(3)]


def test_serializer_of_empty_lists(tmp_path):
    serializer = Features({"id": "int64", "x": Tensor("int64", (None,))})
    with pytest.raises(FeatureError, match="has no values") as caught:
        write(tmp_path, [{"id": 0, "x": []}], serializer=serializer.encode)
    assert (caught.value.feature, caught.value.example) == ("x", 0)


def test_serializer_without_shapes(tmp_path):
    data = [{"id": i, "x": [[i, 1]] * i} for i in (1, 2)]
    serializer = Features({"id": "int64", "x": Tensor("int64", (None, 2))})
    write(
        tmp_path,
        data,
        ["x"],
        serializer=lambda datum: serializer.encode({name: datum[name] for name in serializer}),
    )
    assert [each["x"] for each in read(tmp_path)] == [[1, 1], [2, 1, 2, 1]]


# Images.


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    paths = {}
    for name, shape in {
        "grey.png": (4, 5),
        "colour.png": (4, 5, 3),
        "wide.jpeg": (4, 9, 3),
    }.items():
        paths[name] = str(tmp_path / name)
        Pillow.fromarray(rng.integers(0, 256, shape, np.uint8)).save(paths[name])
    return paths


@pytest.mark.parametrize(
    ("names", "shape"),
    [
        (["grey.png"], [4, 5]),
        (["colour.png", "grey.png"], [4, 5, 3]),
        (["grey.png", "wide.jpeg"], [4, None, 3]),
    ],
)
def test_paths_of_images(tmp_path, pictures, names, shape):
    data = [{"id": i, "image": pictures[name]} for i, name in enumerate(names)]
    path = write(tmp_path / "birds", data, serializer=Serializer(images=["image"]))
    assert mapping(path)["image"] == entry("string", shape)
    builder = tfds.builder_from_directory(path).as_dataset(split="train")
    by_tfds = {int(each["id"]): each["image"] for each in builder.as_numpy_iterator()}
    for each in datum_reader.read(path, "train"):
        number = int(each["id"])
        pixels = np.asarray(Pillow.open(pictures[names[number]]))
        if names[number].endswith("png"):
            complete = pixels.reshape(*pixels.shape[:2], -1)
            assert np.array_equal(each["image"], np.broadcast_to(complete, each["image"].shape))
            assert np.array_equal(by_tfds[number], complete)
        assert each["image"].shape == (*pixels.shape[:2], 1 if len(shape) == 2 else 3)


def test_pixels_stored_as_images(tmp_path):
    features = {"id": "int64", "image": Image((None, None, 3))}
    data = [{"id": i, "image": np.full((2 + i, 3, 3), i, np.uint8)} for i in range(2)]
    path = write(tmp_path / "birds", data, serializer=Serializer(features))
    assert mapping(path)["image"] == entry("string", [None, 3, 3])
    assert [each["image"] for each in read(path)] == [each["image"].tolist() for each in data]


def test_paths_and_bytes_stored_unchanged(tmp_path, pictures):
    with open(pictures["grey.png"], "rb") as file:
        data = [{"id": 0, "path": pictures["grey.png"], "bytes": file.read()}]
    path = write(tmp_path / "birds", data)
    assert [mapping(path)[name]["shape"] for name in ("path", "bytes")] == [[], []]
    assert read(path) == [{**data[0], "path": data[0]["path"].encode()}]


def test_missing_image(tmp_path):
    with pytest.raises(FeatureError, match=r"feature 'image': the image 'no.png' cannot be read"):
        write(tmp_path, [{"image": "no.png"}], serializer=Serializer(images="image"))
