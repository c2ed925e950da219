"""TensorFlow, protobuf and TFDS read what covey writes, and covey what they write."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
import torch
from hypothesis import given, settings
from schemas import NUMBERS, arrays, datasets, plain, same

from covey import (
    ClassLabel,
    Features,
    Image,
    Ragged,
    RecordReader,
    RecordWriter,
    Sparse,
    Steps,
    Tensor,
)
from covey.arrays import SparseArray

tf.config.set_visible_devices([], "GPU")


def expected_list(feature, value):
    """(kind, values) that an Example should hold for a plain feature."""
    if isinstance(feature, Tensor) and feature.encoding == "bytes":
        return "bytes_list", [np.ascontiguousarray(value, feature.dtype).tobytes()]
    if isinstance(feature, Tensor) and feature.dtype in ("str", "bytes"):
        strings = value if isinstance(value, list) else [value]
        return "bytes_list", [s.encode() if isinstance(s, str) else s for s in strings]
    array = np.asarray(value).ravel()
    if array.dtype.kind == "f":
        return "float_list", array.astype(np.float32).tolist()
    return "int64_list", array.astype(np.int64, casting="unsafe").tolist()


@given(dataset=datasets(ragged=False))
def test_protobuf_reads_what_covey_writes(dataset):
    features, examples = dataset
    for example in examples:
        proto = tf.train.Example.FromString(features.encode(example))
        assert set(proto.features.feature) == set(features)
        for name, feature in features.items():
            kind, values = expected_list(feature, example[name])
            held = proto.features.feature[name]
            assert held.WhichOneof("kind") == kind
            assert same(list(getattr(held, kind).value), values)


@given(dataset=datasets(ragged=False))
def test_covey_reads_what_protobuf_writes(dataset):
    features, examples = dataset
    for example in examples:
        proto = tf.train.Example()
        for name, feature in features.items():
            kind, values = expected_list(feature, example[name])
            held = getattr(proto.features.feature[name], kind)
            held.SetInParent()
            held.value.extend(values)
        decoded = features.decode(proto.SerializeToString())
        for name in features:
            assert same(plain(decoded[name]), plain(example[name]))


def flat(values):
    """The one nested feature that there may be, under its path."""
    return {
        "deep/er" if name == "deep" else name: each["er"] if name == "deep" else each
        for name, each in values.items()
    }


@settings(max_examples=400)
@given(dataset=datasets(odd=True))
def test_one_by_one_and_by_column_are_the_same(dataset):
    features, examples = dataset
    records = [features.encode(example) for example in examples]
    columns = features.decode_batch(records)
    for row, record in enumerate(records):
        decoded = flat(features.decode(record))
        for name, value in flat(examples[row]).items():
            expected = 7 if value is None else plain(value)  # the default
            assert same(plain(decoded[name]), expected)
            assert same(plain(flat(columns)[name][row]), expected)
    written = features.encode_batch(columns)
    if all(value is not None for example in examples for value in flat(example).values()):
        assert list(written) == records
    again = features.decode_batch(written)
    for name, column in flat(columns).items():
        assert same(plain(flat(again)[name]), plain(column))


@given(dataset=datasets())
def test_a_subset_decodes_to_the_same(dataset):
    features, examples = dataset
    records = [features.encode(example) for example in examples]
    complete = features.decode_batch(records)
    for name in features:
        part = features.decode_batch(records, [name])
        assert list(part) == [name]
        assert same(plain(part[name]), plain(complete[name]))


def tensorflow_spec(feature):
    if isinstance(feature, ClassLabel):
        return tf.io.FixedLenFeature([], tf.int64)
    if feature.encoding == "bytes":
        return tf.io.FixedLenFeature([], tf.string)
    kind = np.dtype(object if feature.dtype in ("str", "bytes") else feature.dtype).kind
    dtype = {"f": tf.float32, "O": tf.string}.get(kind, tf.int64)
    if None not in feature.shape:
        return tf.io.FixedLenFeature(feature.shape, dtype)
    return tf.io.RaggedFeature(dtype)


@settings(max_examples=60)
@given(dataset=datasets(ragged=False))
def test_parse_example_reads_what_covey_writes(dataset):
    features, examples = dataset
    # TensorFlow does not parse shapes with a 0 in them.
    features = features.select(n for n, f in features.items() if 0 not in getattr(f, "shape", ()))
    if not features:
        return
    examples = [{name: example[name] for name in features} for example in examples]
    specs = {name: tensorflow_spec(feature) for name, feature in features.items()}
    parsed = tf.io.parse_example([features.encode(example) for example in examples], specs)
    for name, feature in features.items():
        for row, example in enumerate(examples):
            _, values = expected_list(feature, example[name])
            assert same(np.asarray(parsed[name][row]).ravel().tolist(), values)


def tfds_feature(feature):
    if isinstance(feature, ClassLabel):
        return tfds.features.ClassLabel(num_classes=feature.num_classes)
    if isinstance(feature, Ragged):
        inner = tfds.features.Scalar(
            tf.string if feature.dtype == "bytes" else np.dtype(feature.dtype)
        )
        for _ in range(feature.depth):
            inner = tfds.features.Sequence(inner)
        return inner
    dtype = tf.string if feature.dtype in ("str", "bytes") else np.dtype(feature.dtype)
    encoding = "bytes" if feature.encoding == "bytes" else "none"
    return tfds.features.Tensor(shape=feature.shape, dtype=dtype, encoding=encoding)


def tfds_plain(value):
    return [tfds_plain(each) for each in value] if isinstance(value, list) else plain(value)


@settings(max_examples=60)
@given(dataset=datasets())
def test_tfds_reads_what_covey_writes_and_the_other_way(dataset):
    features, examples = dataset
    # TFDS has no text of its own in tensors (its strings are bytes), nests names with a slash, and
    # decodes memory with TensorFlow's decode_raw, which knows no uint32.
    keep = [
        name
        for name, feature in features.items()
        if getattr(feature, "dtype", "") != "str"
        and "/" not in name
        and (getattr(feature, "encoding", ""), feature.columns("")[0].dtype) != ("bytes", "uint32")
    ]
    features = features.select(keep)
    if not keep:
        return
    theirs = tfds.features.FeaturesDict({n: tfds_feature(f) for n, f in features.items()})
    for example in examples:
        example = {name: example[name] for name in keep}
        record = features.encode(example)
        parsed = theirs.deserialize_example(record)
        for name in keep:
            found = parsed[name]
            found = found.to_list() if isinstance(found, tf.RaggedTensor) else found.numpy()
            assert same(tfds_plain(found), tfds_plain(example[name]))
        written = theirs.serialize_example(example)
        decoded = features.decode(written)
        for name in keep:
            assert same(plain(decoded[name]), plain(example[name]))


# Float64 as a list is lossy on purpose; see the test below.
@pytest.mark.parametrize(
    ("dtype", "encoding"),
    [(d, e) for d in NUMBERS for e in ("list", "bytes") if (d, e) != ("float64", "list")],
)
def test_every_dtype_survives(dtype, encoding):
    feature = Tensor(dtype, (3,), encoding=encoding)
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
    value = np.array([info.min, 0, info.max] if info else [0, 1, 1], dtype)
    features = Features({"x": feature})
    assert same(features.decode(features.encode({"x": value}))["x"], value)
    assert features.decode(features.encode({"x": value}))["x"].dtype == dtype


def test_float64_as_a_list_is_float32():
    features = Features({"x": Tensor("float64", encoding="list")})
    found = features.decode(features.encode({"x": 0.1}))["x"]
    assert found.dtype == np.float64
    assert found == np.float32(0.1)


def test_float64_is_exact_by_default():
    features = Features({"x": "float64"})
    assert features.decode(features.encode({"x": 0.1}))["x"] == 0.1


@given(value=arrays("float16", (20,)))
def test_float16_is_exact(value):
    features = Features({"x": Tensor("float16", (20,))})
    assert same(features.decode(features.encode({"x": value}))["x"], value)


def test_sparse_feature_of_tensorflow():
    features = Features({"bag": Sparse("float32", (4, 5))})
    value = SparseArray(np.array([[0, 1], [3, 4]]), np.array([2.0, 3.0], np.float32), (4, 5))
    spec = tf.io.SparseFeature(["bag/indices_0", "bag/indices_1"], "bag/values", tf.float32, [4, 5])
    parsed = tf.io.parse_single_example(features.encode({"bag": value}), {"bag": spec})["bag"]
    assert tf.sparse.to_dense(parsed).numpy().tolist() == value.to_dense().tolist()


def test_sparse_feature_of_one_dimension():
    features = Features({"bag": Sparse("int64", (9,))})
    spec = tf.io.SparseFeature("bag/indices", "bag/values", tf.int64, 9)
    record = features.encode({"bag": ([[7], [2]], [1, 5])})
    parsed = tf.io.parse_single_example(record, {"bag": spec})["bag"]
    assert tf.sparse.to_dense(parsed).numpy().tolist() == [0, 0, 5, 0, 0, 0, 0, 1, 0]


def test_ragged_row_partitions_of_tensorflow():
    features = Features({"r": Ragged("int64")})
    value = [[1, 2, 3], [], [4]]
    spec = tf.io.RaggedFeature(
        tf.int64,
        value_key="r/ragged_flat_values",
        partitions=[tf.io.RaggedFeature.RowLengths("r/ragged_row_lengths_0")],
    )
    parsed = tf.io.parse_single_example(features.encode({"r": value}), {"r": spec})["r"]
    assert parsed.to_list() == value


def test_images_of_tfds():
    pixels = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    features = Features({"image": Image((None, None, 3))})
    theirs = tfds.features.FeaturesDict({"image": tfds.features.Image(shape=(None, None, 3))})
    assert (
        theirs.deserialize_example(features.encode({"image": pixels}))["image"].numpy().tolist()
        == pixels.tolist()
    )
    written = theirs.serialize_example({"image": pixels})
    encoded = features.decode(written)["image"]
    assert features["image"].decode(encoded).tolist() == pixels.tolist()
    assert features.decode(features.encode({"image": encoded}))["image"] == encoded


def test_dynamic_shapes_of_tfds():
    value = np.arange(6, dtype=np.int16).reshape(2, 3)
    features = Features({"x": Tensor("int16", (None, None), encoding="bytes")})
    tensor = tfds.features.Tensor(shape=(None, None), dtype=np.int16, encoding="bytes")
    theirs = tfds.features.FeaturesDict({"x": tensor})
    record = features.encode({"x": value})
    assert theirs.deserialize_example(record)["x"].numpy().tolist() == value.tolist()
    written = theirs.serialize_example({"x": value})
    assert features.decode(written)["x"].tolist() == value.tolist()


def test_nested_features_of_tfds():
    features = Features({"a": {"b": "int64", "c": {"d": "float32"}}})
    scalar = tfds.features.Scalar
    theirs = tfds.features.FeaturesDict(
        {"a": {"b": scalar(np.int64), "c": {"d": scalar(np.float32)}}}
    )
    example = {"a": {"b": 7, "c": {"d": 0.5}}}
    parsed = theirs.deserialize_example(features.encode(example))
    assert (parsed["a"]["b"].numpy(), parsed["a"]["c"]["d"].numpy()) == (7, 0.5)
    assert features.decode(theirs.serialize_example(example)) == example


def sequence_example():
    def steps(*lists):
        return tf.train.FeatureList(feature=lists)

    def ints(*values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def strings(*values):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    return tf.train.SequenceExample(
        context=tf.train.Features(feature={"id": ints(9)}),
        feature_lists=tf.train.FeatureLists(
            feature_list={
                "pair": steps(ints(1, 2), ints(3, 4), ints(5, 6)),
                "word": steps(strings(b"a"), strings(b"bc")),
                "bag": steps(ints(1), ints(), ints(2, 3)),
                "none": steps(),
            }
        ),
    ).SerializeToString()


def test_sequence_examples():
    features = Features(
        {
            "id": "int64",
            "pair": Steps("int64", (2,)),
            "word": Steps("str"),
            "bag": Steps("int64", (None,)),
            "none": Steps("float32"),
        }
    )
    found = features.decode(sequence_example())
    assert {name: plain(value) for name, value in found.items()} == {
        "id": 9,
        "pair": [[1, 2], [3, 4], [5, 6]],
        "word": ["a", "bc"],
        "bag": [[1], [], [2, 3]],
        "none": [],
    }
    _, parsed = tf.io.parse_single_sequence_example(
        sequence_example(),
        {"id": tf.io.FixedLenFeature([], tf.int64)},
        {"pair": tf.io.FixedLenSequenceFeature([2], tf.int64)},
    )
    assert plain(found["pair"]) == parsed["pair"].numpy().tolist()


def test_sequence_examples_are_inferred():
    features = Features.infer_records([sequence_example()])
    assert dict(features) == {
        "id": Tensor("int64"),
        "pair": Steps("int64", (2,)),
        "word": Steps("bytes"),
        "bag": Steps("int64", (None,)),
    }
    assert plain(features.decode(sequence_example())["bag"]) == [[1], [], [2, 3]]


def test_files_from_end_to_end(tmp_path):
    features = Features({"x": Tensor("float32", (2,)), "label": "int64"})
    with RecordWriter(tmp_path / "x") as writer:
        for i in range(100):
            writer.write(features.encode({"x": [i, -i], "label": i}))
    specs = {name: tensorflow_spec(feature) for name, feature in features.items()}
    dataset = tf.data.TFRecordDataset(str(tmp_path / "x")).batch(100)
    parsed = tf.io.parse_example(next(iter(dataset)), specs)
    with RecordReader(tmp_path / "x") as reader:
        (block,) = reader.blocks()
    columns = features.decode_batch(block)
    assert columns["x"].tolist() == parsed["x"].numpy().tolist()
    assert columns["label"].tolist() == parsed["label"].numpy().tolist()


def test_values_may_be_tensors():
    features = Features({"x": Tensor("float32", (2,)), "n": Tensor("int64", (2,)), "s": "bytes"})
    values = {"x": tf.constant([1.0, 2.0]), "n": torch.tensor([1, 2]), "s": tf.constant(b"wren")}
    found = features.decode(features.encode(values))
    assert (found["x"].tolist(), found["n"].tolist(), found["s"]) == ([1, 2], [1, 2], b"wren")
