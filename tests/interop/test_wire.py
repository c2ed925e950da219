"""The wire format: covey decodes every message that protobuf accepts to the same values.

Messages are built by hand, in the ways that protobuf allows but its writers do not use: lists that
are packed, unpacked or in pieces, duplicate keys, fields in any order, unknown fields, groups.
"""

import contextlib
import struct

import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import same

from covey import CoveyError, Features, Tensor
from covey.errors import ExampleError

KINDS = {"bytes_list": 1, "float_list": 2, "int64_list": 3}
LISTS = {
    "bytes_list": Tensor("bytes", (None,), default=[]),
    "float_list": Tensor("float32", (None,), default=[]),
    "int64_list": Tensor("int64", (None,), default=[]),
}


def varint(value):
    value %= 2**64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


@st.composite
def unknown(draw):
    """A field of an unknown number."""
    number = draw(st.integers(4, 2**29 - 1))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return varint(number << 3) + varint(draw(st.integers(0, 2**64 - 1)))
    if kind == 1:
        return varint(number << 3 | 1) + draw(st.binary(min_size=8, max_size=8))
    if kind == 2:
        return field(number, draw(st.binary(max_size=6)))
    if kind == 3:
        return varint(number << 3 | 5) + draw(st.binary(min_size=4, max_size=4))
    inside = b"".join(draw(st.lists(unknown(), max_size=2)))
    return varint(number << 3 | 3) + inside + varint(number << 3 | 4)


def shuffled(draw, parts):
    """The parts in any order, with unknown fields between them."""
    parts = [*parts, *draw(st.lists(unknown(), max_size=1))]
    return b"".join(draw(st.permutations(parts)))


@st.composite
def value_list(draw):
    """One field of a Feature: a list of one kind, written in one of many ways."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    runs = []
    for _ in range(draw(st.integers(0, 3))):
        if kind == "bytes_list":
            runs.append(field(1, draw(st.binary(max_size=5))))
        elif kind == "float_list":
            floats = draw(st.lists(st.floats(width=32), max_size=3))
            packed = field(1, struct.pack(f"<{len(floats)}f", *floats))
            single = b"".join(b"\x0d" + struct.pack("<f", value) for value in floats)
            runs.append(draw(st.sampled_from([packed, single])))
        else:
            ints = draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3))
            packed = field(1, b"".join(map(varint, ints)))
            single = b"".join(b"\x08" + varint(value) for value in ints)
            runs.append(draw(st.sampled_from([packed, single])))
    return field(KINDS[kind], shuffled(draw, runs))


@st.composite
def entry(draw):
    """One entry of the map: a key and a Feature, each perhaps twice or not at all."""
    keys = [field(1, draw(st.sampled_from([b"a", b"b", "é".encode(), b""]))) for _ in range(2)]
    features = [
        field(2, shuffled(draw, draw(st.lists(value_list(), max_size=2)))) for _ in range(2)
    ]
    chosen = keys[: draw(st.integers(0, 2))] + features[: draw(st.integers(0, 2))]
    # No unknown fields here: Python's protobuf drops an entry that has one, see below.
    return field(1, b"".join(draw(st.permutations(chosen))))


@st.composite
def messages(draw):
    tops = [
        field(1, shuffled(draw, draw(st.lists(entry(), max_size=4))))
        for _ in range(draw(st.integers(0, 2)))
    ]
    return shuffled(draw, tops)


def check_like_protobuf(record):
    """Check that covey decodes what protobuf decodes, and otherwise raises ExampleError at most."""
    try:
        held = tf.train.Example.FromString(record).features.feature
    except DecodeError:
        held = None
    if held is None:
        for feature in LISTS.values():
            with contextlib.suppress(ExampleError):
                Features({"a": feature}).decode(record)
        return False
    for key in held:
        kind = held[key].WhichOneof("kind")
        if kind is None or not key:
            continue
        expected = list(getattr(held[key], kind).value)
        dtype = LISTS[kind].dtype
        cases = [(LISTS[kind], expected), (Tensor(dtype, (len(expected),)), expected)]
        cases += [(dtype, value) for value in expected if len(expected) == 1]
        for feature, values in cases:
            found = Features({key: feature}).decode(record)[key]
            assert same(found.tolist() if hasattr(found, "tolist") else found, values)
    return True


@settings(max_examples=100)
@given(record=messages())
def test_every_valid_message(record):
    assert check_like_protobuf(record)


@settings(max_examples=100)
@given(record=messages(), data=st.data())
def test_corrupt_messages(record, data):
    if not record:
        return
    corrupt = bytearray(record)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(corrupt) - 1))
        change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if change == "flip":
            corrupt[position] = data.draw(st.integers(0, 255))
        elif change == "cut" and len(corrupt) > 1:
            del corrupt[position]
        else:
            corrupt.insert(position, data.draw(st.integers(0, 255)))
    check_like_protobuf(bytes(corrupt))


@settings(max_examples=50)
@given(record=messages())
def test_inference_of_every_valid_message(record):
    held = tf.train.Example.FromString(record).features.feature
    kinds = {key: held[key].WhichOneof("kind") for key in held}
    if "" in kinds:
        return  # a feature without a name cannot be declared
    features = Features.infer_records([record])
    assert set(features) == {key for key, kind in kinds.items() if kind is not None}


def example(**lists):
    entries = [
        field(1, field(1, name.encode()) + field(2, content)) for name, content in lists.items()
    ]
    return field(1, b"".join(entries))


class TestCases:
    def test_feature_without_a_list_is_missing(self):
        record = example(x=b"")
        assert Features({"x": Tensor("int64", default=5)}).decode(record)["x"] == 5
        with pytest.raises(ExampleError, match="it is missing") as caught:
            Features({"x": "int64"}).decode(record)
        assert (caught.value.record, caught.value.feature) == (0, "x")

    def test_unknown_field_in_an_entry(self):
        # As specified. TensorFlow rejects such a record, and Python's protobuf omits the entry.
        entry = field(1, b"x") + field(2, field(3, b"\x08\x07")) + b"\x28\x01"
        assert Features({"x": "int64"}).decode(field(1, field(1, entry)))["x"] == 7

    def test_groups_are_skipped_to_a_depth(self):
        def nested(depth):
            return b"\x2b" * depth + b"\x2c" * depth + example(x=field(3, b"\x08\x07"))

        assert Features({"x": "int64"}).decode(nested(90))["x"] == 7
        with pytest.raises(ExampleError, match="nested too deeply"):
            Features({"x": "int64"}).decode(nested(100_000))

    @pytest.mark.parametrize(
        ("record", "reason"),
        [
            (b"\x0a", "a varint is truncated"),
            (b"\x0a\x05", "a length exceeds the message"),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a length exceeds the message"),
            (b"\x0a" + b"\xff" * 10, "a varint is truncated or too long"),
            (b"\x00\x00", "an invalid tag"),
            (b"\x0e\x00", "an invalid tag"),
            (b"\x0c", "a group has no end"),
            (b"\x0b", "a group has no end"),
            (example(x=field(2, b"\x0a\x03abc")), "not a multiple of 4"),
            (example(x=field(2, b"\x0d\x00")), "a length exceeds the message"),
        ],
    )
    def test_invalid_messages(self, record, reason):
        with pytest.raises(ExampleError) as caught:
            Features({"x": "float32"}).decode(record)
        error = caught.value
        assert isinstance(error, CoveyError)
        assert reason in error.reason
        assert "not a tf.train.Example" in error.reason
        assert (error.path, error.record) == (None, 0)

    @pytest.mark.parametrize(
        ("feature", "content", "reason"),
        [
            ("int64", field(2, b""), "a float list, expected an int64 list"),
            ("float32", field(1, b""), "a bytes list, expected a float list"),
            ("str", field(3, b""), "an int64 list, expected a bytes list"),
            ("int64", field(3, b"\x0a\x02\x01\x02"), "it has 2 values, expected 1"),
            ("int64", field(3, b""), "it has 0 values, expected 1"),
            ("int8", field(3, b"\x08\x80\x01"), "the value 128 does not fit int8"),
            ("uint8", field(3, b"\x08" + varint(-1)), "the value -1 does not fit uint8"),
            (Tensor("float64", ()), field(1, field(1, b"1234567")), "it has 7 bytes, expected 8"),
            (Tensor("int16", (None,), encoding="bytes"), field(1, field(1, b"123")), "has 3 bytes"),
            (Tensor("float64", ()), field(1, b""), "it has 0 values, expected 1"),
            (Tensor("int64", (None, 2)), field(3, b"\x0a\x03\x01\x01\x01"), "expected 2 or a mult"),
        ],
    )
    def test_values_that_do_not_match_the_feature(self, feature, content, reason):
        with pytest.raises(ExampleError) as caught:
            Features({"x": feature}).decode(example(x=content))
        assert reason in caught.value.reason
        assert (caught.value.record, caught.value.feature) == (0, "x")

    def test_only_selected_features_are_decoded(self):
        record = example(good=field(3, b"\x08\x07"), bad=b"\xff\xff\xff")
        features = Features({"good": "int64", "bad": "float32"})
        assert features.decode(record, ["good"])["good"] == 7
        with pytest.raises(ExampleError):
            features.decode(record)
