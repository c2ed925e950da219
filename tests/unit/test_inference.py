"""Inferred features fit all examples, not the last one."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import datasets, mixtures, plain, same

from covey import Features, Ragged, Sparse, Tensor
from covey.arrays import SparseArray
from covey.errors import FeatureError
from covey.schema.infer import Inference, integer_range, join_ranges
from covey.writing.encode import ItemEncoder
from covey.writing.options import WriteOptions, WriteSchema


def infer(*values):
    return Features.infer({"x": value} for value in values)["x"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], Tensor("int64")),
        ([1.5], Tensor("float32")),
        ([True, False], Tensor("bool")),
        (["a"], Tensor("str")),
        ([b"a"], Tensor("bytes")),
        ([np.int8(1)], Tensor("int8")),
        ([np.float64(1)], Tensor("float32")),  # Python's own float, to Python
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
        ([[16777217, 0.5]], Tensor("float64", (2,))),
        ([[16777217, 1], [0.5, 1]], Tensor("float64", (2,))),
        ([["a", b"\xff"]], Tensor("bytes", (2,))),
        ([[np.zeros(2), np.zeros(2)]], Tensor("float64", (2, 2))),
        ([[np.zeros(2, int), np.zeros(3, int)]], Ragged("int64")),
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
        ([[1, "a"]], "strings and numbers are mixed", 0),
        ([[np.zeros(2), np.zeros(3)]], "float64 cannot be stored", 0),
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


def test_conflict_names_the_example_that_widened_the_dtype():
    with pytest.raises(FeatureError, match="example 1 has dtype float32, example 3 has str"):
        infer(1, 2.5, 3, "x")


def test_missing_feature_needs_a_default():
    with pytest.raises(FeatureError, match="example 1 has it, but only 1 of 3") as caught:
        Features.infer([{"x": 1}, {"x": 2, "y": 3}, {"x": 4}])
    assert caught.value.feature == "y"
    assert "default" in str(caught.value)


def test_feature_with_a_default_may_be_missing():
    features = Features.infer([{"x": 1}, {"x": 2, "y": 3}, {"x": 4, "y": None}], defaults={"y": 0})
    assert features["y"] == Tensor("int64", default=0)
    assert features.decode(features.encode({"x": 1}))["y"] == 0
    with pytest.raises(FeatureError, match="no example has it") as caught:
        Features.infer([{"x": 1}], defaults={"z": 0})
    assert caught.value.feature == "z"


@pytest.mark.parametrize("default", [0, None, 1.5, "a", [1]])
def test_a_default_that_ragged_lists_cannot_have(default):
    with pytest.raises(FeatureError, match="default"):
        Ragged("int64", default=default)


def test_empty_dicts_are_nothing():
    features = Features.infer([{"x": 1, "a": {}}])
    assert features.decode(features.encode({"x": 1, "a": {}})) == {"x": 1}


def test_no_examples():
    with pytest.raises(FeatureError, match="there are no examples"):
        Features.infer([])
    with pytest.raises(FeatureError, match="there are no records"):
        Features.infer_records([])


def test_something_else_than_examples():
    with pytest.raises(FeatureError, match="example 1 is of type int; must be a dict"):
        Features.infer([{"x": 1}, 5])


def test_nested_examples():
    features = Features.infer(
        [{"a": {"b": 1, "c": {"d": "x"}}}, {"a": {"b": 2.5, "c": {"d": "y"}}}]
    )
    assert dict(features) == {"a/b": Tensor("float32"), "a/c/d": Tensor("str")}


@given(dataset=datasets())
def test_inferred_features_hold_any_examples(dataset):
    _, examples = dataset
    inferred = Features.infer(examples)
    for example in examples:
        decoded = inferred.decode(inferred.encode(example))
        for name, value in example.items():
            if isinstance(value, np.ndarray):
                assert same(np.asarray(decoded[name]).astype(value.dtype), value)
            else:
                assert plain(decoded[name]) == value


@given(dataset=datasets(ragged=False))
def test_features_of_records_are_those_that_protobuf_sees(dataset):
    features, examples = dataset
    records = [features.encode(example) for example in examples]
    inferred = Features.infer_records(records)
    assert set(inferred) == set(features)
    for record in records:
        decoded, known = inferred.decode(record), features.decode(record)
        for name, feature in features.items():
            if getattr(feature, "dtype", "") == "bytes" and feature.shape == ():
                assert decoded[name] == known[name]


def test_records_that_contradict_each_other():
    records = [
        Features({"x": "int64"}).encode({"x": 1}),
        Features({"x": "int64"}).encode({"x": 1}),
        Features({"x": "float32"}).encode({"x": 1}),
    ]
    with pytest.raises(FeatureError, match="record 2 has float32, record 0 has int64"):
        Features.infer_records(records)


def test_records_of_different_lengths_relax():
    variable = Features({"x": Tensor("int64", (None,), default=[])})
    records = [variable.encode(example) for example in ({"x": [1, 2]}, {"x": [3]}, {})]
    assert Features.infer_records(records[:1])["x"] == Tensor("int64", (2,))
    inferred = Features.infer_records(records)
    assert inferred["x"] == Tensor("int64", (None,), default=[])
    assert [inferred.decode(record)["x"].tolist() for record in records] == [[1, 2], [3], []]


def test_invalid_record():
    with pytest.raises(ValueError, match=r"record 1: .* at byte 0 of the record"):
        Features.infer_records([b"", b"\x00"])


# In parts, as several workers see examples.


def found_at_once(examples, defaults):
    """The features, or None if there are none that fit."""
    try:
        return Features.infer(examples, defaults=defaults)
    except FeatureError:
        return None


def features_of(inference):
    return Features(inference.finish())


def cut(examples, sizes):
    """Parts of these sizes, and one of all that is left."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(examples[begin : begin + size])
        begin += size
    return [part for part in (*parts, examples[begin:]) if part]


sizes = st.lists(st.integers(1, 6), max_size=8)


def found_in_parts(parts, defaults):
    total = Inference(defaults)
    try:
        for part in parts:
            found = Inference(defaults)
            for example in part:
                found.add(example)
            total.merge(found)
        return features_of(total)
    except FeatureError:
        return None


@settings(max_examples=200)
@given(mixture=mixtures(), sizes=sizes)
def test_parts_come_to_the_same(mixture, sizes):
    examples, defaults = mixture
    parts = cut(examples, sizes)
    assert found_in_parts(parts, defaults) == found_at_once(examples, defaults)


@pytest.mark.parametrize("values", [[-1, 2**63, 0.5], [[], 1, 2.5], [True, 2**24 + 1, 0.5]])
def test_the_order_of_examples_does_not_matter(values):
    found = {
        str(found_at_once([{"x": value} for value in order], {}))
        for order in itertools.permutations(values)
    }
    assert len(found) == 1


def integers_of(examples, name):
    """The range of the integers in some examples, and 0."""
    values = [0]
    for example in examples:
        value = example.get(name)
        for each in np.ravel(np.array(value, object)).tolist():
            values += [int(each)] if isinstance(each, int) else []
    return min(values), max(values)


def fits_exactly(features, example):
    if not features.is_simple or {*features} - {*features.optional} - {*example}:
        return False
    try:
        features.begin_block().append_exact(features.fill_in(example))
    except FeatureError:
        return False
    return True


def found_by_workers(parts, defaults, late):
    """As workers do it: what fits exactly is passed over, and they know what was known before.

    Each part is looked at by one who knows of the parts before, but for the ``late`` last ones.
    """
    states, done, total = [Inference(defaults)], [], Inference(defaults)
    try:
        for part in parts:
            known = copy.deepcopy(states[max(0, len(states) - 1 - late)])
            found, own, passed = Inference(defaults), [], 0
            for example in part:
                if not known.is_empty and fits_exactly(Features(known.kinds()), example):
                    known.add_exact(1)
                    passed += 1
                else:
                    alone = Inference(defaults)
                    alone.add(example)
                    seen = [*done, *own]
                    known.merge(alone, lambda name, seen=seen: integers_of(seen, name))
                    found.merge(alone, lambda name, own=own: integers_of(own, name))
                own.append(example)
            done += own
            total.merge(found, lambda name, done=done: integers_of(done, name))
            total.add_exact(passed)
            states.append(copy.deepcopy(total))
        return features_of(total)
    except FeatureError:
        return None


@settings(max_examples=200)
@given(mixture=mixtures(), sizes=sizes, late=st.integers(0, 2))
def test_examples_that_are_passed_over_come_to_the_same(mixture, sizes, late):
    examples, defaults = mixture
    parts = cut(examples, sizes)
    assert found_by_workers(parts, defaults, late) == found_at_once(examples, defaults)


class Chunks(list):
    """A sink of encoded chunks."""

    add = list.append

    def integer_range(self, name):
        ranges = (integer_range(chunk.features, chunk.block, name) for chunk in self)
        return join_ranges((0, 0), *ranges)


@settings(max_examples=200)
@given(mixture=mixtures())
def test_features_found_while_encoding_are_those_of_all(mixture):
    examples, defaults = mixture
    options = WriteOptions(split="train", defaults=defaults)
    encoder = ItemEncoder(options, WriteSchema(), Chunks())
    try:
        encoder.encode(examples)
        found = encoder.final_features()
    except FeatureError:
        found = None
    assert found == found_at_once(examples, defaults)
