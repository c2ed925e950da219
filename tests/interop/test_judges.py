"""TensorFlow and protobuf read the records of covey, and covey reads theirs."""

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
import torch
from hypothesis import given, settings
from schemas import datasets, plain, same

from covey import (
    ClassLabel,
    Features,
    Ragged,
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


@settings(max_examples=50)
@given(dataset=datasets(ragged=False))
def test_protobuf(dataset):
    features, examples = dataset
    for example in examples:
        record = features.encode(example)
        found, proto = tf.train.Example.FromString(record), tf.train.Example()
        assert set(found.features.feature) == set(features)
        for name, feature in features.items():
            kind, values = expected_list(feature, example[name])
            held = found.features.feature[name]
            assert held.WhichOneof("kind") == kind
            assert same(list(getattr(held, kind).value), values)
            held = getattr(proto.features.feature[name], kind)
            held.SetInParent()
            held.value.extend(values)
        decoded = features.decode(proto.SerializeToString())
        for name in features:
            assert same(plain(decoded[name]), plain(example[name]))


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


@settings(max_examples=30)
@given(dataset=datasets(ragged=False))
def test_parse_example(dataset):
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


@pytest.mark.parametrize(
    ("shape", "keys", "indices"),
    [
        ((4, 5), ["bag/indices_0", "bag/indices_1"], [[0, 1], [3, 4]]),
        ((9,), "bag/indices", [[7], [2]]),
    ],
)
def test_sparse_feature_of_tensorflow(shape, keys, indices):
    features = Features({"bag": Sparse("float32", shape)})
    value = SparseArray(np.array(indices), np.array([2.0, 3.0], np.float32), shape)
    size = list(shape) if len(shape) > 1 else shape[0]
    spec = tf.io.SparseFeature(keys, "bag/values", tf.float32, size)
    parsed = tf.io.parse_single_example(features.encode({"bag": value}), {"bag": spec})["bag"]
    assert tf.sparse.to_dense(parsed).numpy().tolist() == value.to_dense().tolist()


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


def test_values_of_other_libraries():
    features = Features(
        {
            "x": Tensor("float32", (2,)),
            "n": Tensor("int64", (2,)),
            "s": "bytes",
            "m": Sparse("float32", (3, 4)),
        }
    )
    matrix = scipy.sparse.coo_matrix(([5.0], ([1], [2])), shape=(3, 4))
    values = {
        "x": tf.constant([1.0, 2.0]),
        "n": torch.tensor([1, 2]),
        "s": tf.constant(b"wren"),
        "m": matrix,
    }
    found = features.decode(features.encode(values))
    assert (found["x"].tolist(), found["n"].tolist(), found["s"]) == ([1, 2], [1, 2], b"wren")
    assert plain(found["m"]) == matrix.toarray().tolist()
