"""Inference of features from examples, columns and records."""

import itertools
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import datasets, mixtures, plain, same

import covey
from covey import ClassLabel, Features, Image, Ragged, Sparse, Tensor, _core
from covey.arrays import SparseArray
from covey.errors import ExampleError, FeatureError
from covey.schema.infer import Inference, RecordCounts, record_kinds
from covey.schema.merge import unify
from covey.writing.encode import ItemEncoder
from covey.writing.options import WriteOptions, WriteSchema


def infer(*values):
    return Features.infer({"x": value} for value in values)["x"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], Tensor("int64")),
        # Floats of Python are float32 if their shortest decimal form is the same.
        ([1.5], Tensor("float32")),
        ([0.1, 19.99, 1e20, 1e-45, float("nan"), float("-inf")], Tensor("float32")),
        ([1700000000.123 + i for i in range(40)], Tensor("float64")),
        ([1 / 3], Tensor("float64")),
        ([float(np.float32(0.1))], Tensor("float64")),
        ([1e39], Tensor("float64")),
        ([1, 0.1, 1700000000.123], Tensor("float64")),
        ([2**53, 0.5], Tensor("float64")),
        ([[0.1, 1 / 3]], Tensor("float32", (2,))),
        # Those of numpy keep their dtype, and are float64 beside others.
        ([np.float32(0.1), 1], Tensor("float32")),
        ([np.float32(0.1), 0.5], Tensor("float64")),
        ([0.1, np.float16(0.5)], Tensor("float64")),
        ([np.int8(1), 0.1, 0.2], Tensor("float32")),
        ([True, False], Tensor("bool")),
        (["a"], Tensor("str")),
        ([b"a"], Tensor("bytes")),
        ([np.int8(1)], Tensor("int8")),
        ([np.float64(1)], Tensor("float32")),  # a subclass of float
        ([np.float16(1)], Tensor("float16")),
        ([[1, 2], [3, 4]], Tensor("int64", (2,))),
        ([["a", "b"]], Tensor("str", (2,))),
        ([np.zeros((2, 3), np.uint8)], Tensor("uint8", (2, 3), encoding="bytes")),
        ([np.zeros(2, np.int64)], Tensor("int64", (2,))),
        ([np.zeros(2, np.float32)], Tensor("float32", (2,))),
        ([np.zeros(2)], Tensor("float64", (2,))),
        # Types widen.
        ([True, 5], Tensor("int64")),
        ([1, 2.5], Tensor("float32")),
        ([2.5, 1], Tensor("float32")),
        (["a", b"b"], Tensor("bytes")),
        ([np.int8(1), np.int16(1)], Tensor("int16")),
        ([np.uint8(1), np.int8(1)], Tensor("int16")),
        ([np.float16(1), np.float32(1)], Tensor("float32")),
        ([2**63, 1], Tensor("uint64")),
        ([1, 2**63], Tensor("uint64")),
        ([[2**63, 1]], Tensor("uint64", (2,))),
        ([16777217, 0.5], Tensor("float64")),
        ([-16777217, 0.5], Tensor("float64")),
        ([[16777217, 0.5]], Tensor("float64", (2,))),
        ([[16777217, 1], [0.5, 1]], Tensor("float64", (2,))),
        ([["a", b"\xff"]], Tensor("bytes", (2,))),
        ([[np.zeros(2), np.zeros(2)]], Tensor("float64", (2, 2))),
        ([[np.zeros(2, int), np.zeros(3, int)]], Ragged("int64")),
        ([[np.zeros(2), np.zeros(3)]], Ragged("float64")),
        ([[[2**40 + 1], [0.5, 1]]], Ragged("float64")),
        # Shapes relax.
        ([[[1, 2, 3, 4]], []], Tensor("int64", (None, 4))),
        ([[1, 2], [3]], Tensor("int64", (None,))),
        ([[], [3]], Tensor("int64", (None,))),
        ([[3.0], []], Tensor("float32", (None,))),
        ([np.zeros((2, 3), int), np.zeros((5, 3), int)], Tensor("int64", (None, 3))),
        ([np.zeros((3, 2), int), np.zeros((3, 9), int)], Tensor("int64", (3, None))),
        (
            [np.zeros((3, 2), np.uint8), np.zeros((4, 9), np.uint8)],
            Tensor("uint8", (None, None), encoding="bytes"),
        ),
        ([[[1, 2], [3]]], Ragged("int64")),
        ([[[1, 2], [3, 4]], [[1], []]], Ragged("int64")),
        ([[[1, 2], [3, 4]], [[1, 2, 3]]], Ragged("int64")),
        ([[["a"], []]], Ragged("str")),
        ([[[1.5], []], []], Ragged("float32")),
        ([[], [[]], [[[]]]], Ragged("float32", 3)),
        ([[[]], [[0]]], Tensor("int64", (1, None))),
        ([[[]], [[[0]]]], Tensor("int64", (1, None, 1))),
        (
            [SparseArray(np.array([[1]]), np.array([2.5], np.float32), (4,))],
            Sparse("float32", (4,)),
        ),
    ],
)
def test_infer(values, expected):
    assert infer(*values) == expected
    features = Features({"x": expected})
    for value in values:
        features.encode({"x": value})


def test_rules_of_columns_images_defaults_and_schemas():
    """Each of them has a path of its own through the lattice."""
    columns = Features.infer_columns({"x": [[16777217, 1], [0.5, 1]]})
    assert columns["x"] == Tensor("float64", (2,))
    images = [Image((2, 2, 1), d).encode(np.zeros((2, 2, 1), d)) for d in ("uint16", "uint8")]
    assert infer(*images) == infer(*reversed(images)) == Image()
    found = Features.infer([{"x": np.float32(0.1)}, {}], defaults={"x": 0.5})
    assert found["x"] == Tensor("float32", default=0.5)
    schemas = Features({"x": "int64"}), Features({"x": ClassLabel(["owl"])})
    assert unify(*schemas, allow_missing=True) == schemas[1]
    with pytest.raises(FeatureError, match="in one schema"):
        unify(*schemas)


@pytest.mark.parametrize(
    ("values", "reason", "example"),
    [
        ([1, 2, "x"], "example 0 has dtype int64, example 2 has str", None),
        ([[1], [2], 3], r"example 0 has shape \(1,\), example 2 has \(\)", None),
        (
            [np.zeros((2, 2)), np.zeros(2)],
            r"shape \(2, 2\), example 1 has \(2,\)",
            None,
        ),
        ([{"y": 1}, 5], "example 1 has a value, example 0 has a dict", None),
        ([5, {"y": 1}], "example 0 has a value, example 1 has a dict", None),
        ([1, None], "the value is None", 1),
        ([2**63, -1], "example 0 has dtype uint64, example 1 has int64", None),
        ([np.uint64(1), -1], "example 0 has dtype uint64, example 1 has int64", None),
        ([[1, "a"]], "strings and numbers are mixed", 0),
        ([2**53 + 1, 0.5], "the integer 9007199254740993, which float64 does not hold", None),
        ([0.5, -(2**53) - 1], "the integer -9007199254740993, which float64 does not", None),
        ([[2**53 + 1, 0.5]], "the integer 9007199254740993, which float64 does not hold", 0),
        ([[2**64]], "no dtype holds integers", 0),
        ([1j], "the value has dtype complex128", 0),
        ([[1, [2]]], "lists and single values are mixed", 0),
        ([[[1], [2, 3]], [[[1]]]], "has depth", None),
    ],
)
def test_conflicting_values(values, reason, example):
    with pytest.raises(FeatureError, match=reason) as caught:
        infer(*values)
    assert (caught.value.example, caught.value.feature) == (example, "x")


def test_conflict_with_the_example_that_widened_the_dtype():
    with pytest.raises(FeatureError, match="example 1 has dtype float32, example 3 has str"):
        infer(1, 2.5, 3, "x")


@pytest.mark.parametrize(
    ("examples", "defaults", "feature", "reason"),
    [
        ([{"x": 1}, {"x": 2, "y": 3}, {"x": 4}], {}, "y", "example 1 has it, but only 1 of 3"),
        ([{"x": 1}], {"z": 0}, "z", "no example has it"),
        ([{"x": 1}], {"x": "a"}, "x", "the default is 'a', but example 0 has Tensor"),
        ([], {}, None, "there are no examples"),
        ([{"x": 1}, 5], {}, None, "example 1 is of type int; must be a dict"),
        ([{"x": 1, 3: 4}], {}, None, "the name of a feature is 3; must be a string"),
    ],
)
def test_invalid_examples(examples, defaults, feature, reason):
    with pytest.raises(FeatureError, match=reason) as caught:
        Features.infer(examples, defaults=defaults)
    assert caught.value.feature == feature


def test_defaults():
    features = Features.infer([{"x": 1}, {"x": 2, "y": 3}, {"x": 4, "y": None}], defaults={"y": 0})
    assert features["y"] == Tensor("int64", default=0)
    assert features.decode(features.encode({"x": 1}))["y"] == 0


@pytest.mark.parametrize("default", [0, None, 1.5, "a", [1]])
def test_invalid_default_of_ragged(default):
    with pytest.raises(FeatureError) as caught:
        Ragged("int64", default=default)
    assert (caught.value.option, caught.value.found) == ("default", default)


def test_nested_examples():
    features = Features.infer(
        [{"a": {"b": 1, "c": {"d": "x"}}, "empty": {}}, {"a": {"b": 2.5, "c": {"d": "y"}}}]
    )
    assert dict(features) == {"a/b": Tensor("float32"), "a/c/d": Tensor("str")}
    example = {"a": {"b": 1, "c": {"d": "x"}}}
    assert features.decode(features.encode({**example, "empty": {}})) == example


@settings(max_examples=50)
@given(dataset=datasets())
def test_inferred_features_fit_all_examples(dataset):
    _, examples = dataset
    inferred = Features.infer(examples)
    for example in examples:
        decoded = inferred.decode(inferred.encode(example))
        for name, value in example.items():
            if isinstance(value, np.ndarray):
                assert same(np.asarray(decoded[name]).astype(value.dtype), value)
            else:
                assert plain(decoded[name]) == value


@settings(max_examples=50)
@given(dataset=datasets(ragged=False))
def test_features_of_records(dataset):
    features, examples = dataset
    records = [features.encode(example) for example in examples]
    inferred = Features.infer_records(records)
    assert set(inferred) == set(features)
    for record in records:
        decoded, known = inferred.decode(record), features.decode(record)
        for name, feature in features.items():
            if getattr(feature, "dtype", "") == "bytes" and feature.shape == ():
                assert decoded[name] == known[name]


def test_invalid_records():
    one, other = (Features({"x": dtype}).encode({"x": 1}) for dtype in ("int64", "float32"))
    with pytest.raises(FeatureError, match="record 2 has float32, record 0 has int64") as caught:
        Features.infer_records([one, one, other])
    assert caught.value.feature == "x"
    with pytest.raises(ExampleError, match="at byte 0 of the record") as caught:
        Features.infer_records([b"", b"\x00"])
    assert caught.value.record == 1
    with pytest.raises(FeatureError, match="there are no records"):
        Features.infer_records([])


def test_records_of_different_lengths():
    variable = Features({"x": Tensor("int64", (None,), default=[])})
    records = [variable.encode(example) for example in ({"x": [1, 2]}, {"x": [3]}, {})]
    assert Features.infer_records(records[:1])["x"] == Tensor("int64", (2,))
    optional = Tensor("int64", (None,), default=[])
    assert Features.infer_records([records[0], records[2]])["x"] == optional
    inferred = Features.infer_records(records)
    assert inferred["x"] == optional
    assert [inferred.decode(record)["x"].tolist() for record in records] == [[1, 2], [3], []]


def test_surveys_of_parts_are_the_survey_of_all_records():
    plain = [Features({"ints": Tensor("int64", (None,))}).encode({"ints": [1] * n}) for n in (2, 3)]
    golden = Path(__file__).parents[1] / "golden/sequence.tfrecord"
    with covey.RecordReader(golden) as reader:
        (sequence,) = map(bytes, reader)
    other = Features({"ints": "float32", "new": "str"}).encode({"ints": 1, "new": "x"})

    def found(*parts):
        surveys = [_core.Survey() for _ in parts]
        for survey, records in zip(surveys, parts, strict=True):
            for record in records:
                survey.add(record)
        kinds = record_kinds(RecordCounts.join(map(RecordCounts.of, surveys)))
        return list(kinds.items())

    bare = b"\x0a\x0a\x0a\x08\x0a\x04ints\x12\x00"  # a key without a list
    records = [*plain, sequence, bare, plain[0], plain[1]]
    for size in (1, 2, 4, 5):
        assert dict(found(records[:size], records[size:])) == dict(found(records))
    # Feature lists follow the other features, whichever part has them.
    assert [name for name, _ in found([sequence], plain)][-1] == "steps"
    strings = [Features({"new": "str"}).encode({"new": "x"})]
    assert [name for name, _ in found([sequence], strings)][-2:] == ["new", "steps"]
    with pytest.raises(FeatureError, match="record 4 has float32, record 1 has int64"):
        found([strings[0], plain[0]], [sequence, *plain][1:2], [strings[0], other])


# Parts of the examples.


def infer_or_none(examples, defaults):
    try:
        return Features.infer(examples, defaults=defaults)
    except FeatureError:
        return None


def infer_in_parts(examples, sizes, defaults):
    """Merge the inferences over parts of these sizes, and the remaining examples."""
    total, remaining = Inference(defaults), iter(examples)
    try:
        for size in (*sizes, len(examples)):
            part = Inference(defaults)
            for example in itertools.islice(remaining, size):
                part.add(example)
            total.merge(part)
        return Features(total.finish())
    except FeatureError:
        return None


class Chunks(list):
    """A sink of encoded chunks."""

    add = list.append


def infer_while_encoding(examples, defaults):
    """Infer as covey.write does: only examples that do not match exactly are inspected."""
    encoder = ItemEncoder(WriteOptions(split="train", defaults=defaults), WriteSchema(), Chunks())
    try:
        encoder.encode(examples)
        return Features(encoder.inference.finish())
    except FeatureError:
        return None


@settings(max_examples=120)
@hypothesis.example(mixture=([{"x": 1}, {"x": 2**24 + 1}, {"x": 0.5}], {}), sizes=[])  # float64
@hypothesis.example(mixture=([{"x": 0.0}, {"x": 2**63}, {"x": -1}], {}), sizes=[])  # no dtype
@hypothesis.example(mixture=([{"x": []}, {"x": [[]]}, {"x": [[0]]}], {}), sizes=[])  # int64
@given(mixture=mixtures(), sizes=st.lists(st.integers(1, 6), max_size=8))
def test_inference_in_parts_and_while_encoding(mixture, sizes):
    examples, defaults = mixture
    expected = infer_or_none(examples, defaults)
    assert infer_in_parts(examples, sizes, defaults) == expected
    assert infer_while_encoding(examples, defaults) == expected


@pytest.mark.parametrize("values", [[-1, 2**63, 0.5], [[], 1, 2.5], [True, 2**24 + 1, 0.5]])
def test_inference_does_not_depend_on_the_order(values):
    found = {
        str(infer_or_none([{"x": value} for value in order], {}))
        for order in itertools.permutations(values)
    }
    assert len(found) == 1


@settings(max_examples=120)
@given(mixture=mixtures())
def test_columns_have_the_features_of_their_rows(mixture):
    examples, _ = mixture
    values = [example["x"] for example in examples if example.get("x") is not None]
    expected = infer_or_none([{"x": value} for value in values], {})
    columns = Inference({})
    try:
        columns.add_column(("x",), values)
        found = Features(columns.finish())
    except FeatureError:
        found = None
    assert found == expected
