"""Features as JSON: round trip, and rejection of invalid JSON."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas import datasets

from covey import ClassLabel, Feature, Features, Image, Ragged, Sparse, Steps, Tensor
from covey.errors import FeatureError, FormatError
from covey.schema.features import features_from_json, features_to_json

EVERY_KIND = {
    "scalar": Tensor("int8"),
    "memory_limit": Tensor("uint16", (2, None), encoding="bytes"),
    "dynamic": Tensor("float32", (None, None), encoding="bytes"),
    "float64 as a list": Tensor("float64", (3,), encoding="list"),
    "empty": Tensor("bool", (0, 2)),
    "number": Tensor("int64", default=-7),
    "largest": Tensor("uint64", default=2**64 - 1),
    "numbers": Tensor("float32", (2, 2), default=[[0.1, -0.0], [1e-40, 3]]),
    "numpy": Tensor("float32", (2,), default=np.array([0.1, 0.2], np.float32)),
    "numpy in a list": Tensor("float32", (2,), default=[np.float32(0.1), np.float32(7)]),
    "infinite": Tensor("float64", (2,), default=[float("inf"), float("-inf")]),
    "flag": Tensor("bool", default=True),
    "none yet": Tensor("int16", (None,), default=[]),
    "text": Tensor("str", default="\0 é \U0001f426"),
    "texts": Tensor("str", (None, 2), default=[["a", "b"]]),
    "raw": Tensor("bytes", default=bytes(range(256))),
    "raw from text": Tensor("bytes", default="abc"),
    "raws": Tensor("bytes", (2,), default=[b"", b"\xff"]),
    "named": ClassLabel(names=["wren", "owl"]),
    "named, default": ClassLabel(names=["wren", "owl"], default="owl"),
    "counted": ClassLabel(num_classes=5, default=-1),
    "counted by numpy": ClassLabel(num_classes=np.int64(5)),
    "no classes": ClassLabel(names=[]),
    "any class": ClassLabel(),
    "image": Image((None, 7, 3), format="jpeg"),
    "image as stored": Image(channels=None),
    "rotated image": Image(channels=4, exif_orientation=True),
    "deep image": Image((None, None, 1), "uint16", default=b"\x89PNG"),
    "ragged": Ragged("bytes", 3),
    "ragged rows": Ragged("float32", 2, (4, 1), default=[]),
    "sparse": Sparse("float32", (2**40, 3)),
    "sparse, default": Sparse("int8", (9,), default=[]),
    "steps": Steps("str"),
    "steps, default": Steps("int64", (None,), default=[]),
}


def through_json(features):
    text = json.dumps(features_to_json(features), allow_nan=False)
    return features_from_json(json.loads(text), "x.json")


def test_images_of_older_versions():
    old = {"path": ["x"], "kind": "image", "dtype": "uint8", "format": "png"}
    for channels in (None, 1, 3):
        entry = {**old, "shape": [None, None, channels]}
        found = features_from_json({"version": 1, "features": [entry]}, "x.json")
        assert found["x"] == Image(channels=channels)
        assert features_to_json(found)["features"] == [entry]


def test_round_trip_of_every_kind():
    again = through_json(Features(EVERY_KIND))
    assert list(again.items()) == list(EVERY_KIND.items())
    assert repr(again) == repr(through_json(again))
    assert [type(each) for each in again.values()] == [type(each) for each in EVERY_KIND.values()]
    assert through_json(Features({})) == Features({})


def test_types_of_defaults():
    again = through_json(Features(EVERY_KIND))
    assert again["flag"].default is True
    assert again["raw from text"].default == "abc"
    assert str(again["numbers"].default) == "((0.1, -0.0), (1e-40, 3))"
    assert np.isnan(through_json(Features({"x": Tensor("float32", default=np.nan)}))["x"].default)


def test_slashes_in_names():
    nested = Features({"a": {"b": "int64", "c/d": {"e": "str"}}, "a/x": "int8"})
    literal = Features({"a/b": "int64", "a/c/d/e": "str", "a/x": "int8"})
    assert through_json(nested) == nested
    assert through_json(literal) == literal
    assert through_json(nested) != literal


@settings(max_examples=50)
@given(dataset=datasets(odd=True))
def test_round_trip(dataset):
    features, examples = dataset
    again = through_json(features)
    assert again == features
    assert [again.encode(each) for each in examples] == [features.encode(each) for each in examples]


def test_user_defined_feature():
    class Own(Feature):
        def columns(self, name):
            return Tensor("int64").columns(name)

    with pytest.raises(FeatureError, match="a Own cannot be stored as JSON") as caught:
        features_to_json(Features({"x": Own()}))
    assert caught.value.feature == "x"


def entry(**changes):
    fields = {"path": ["x"], "kind": "tensor", "dtype": "int64", "shape": [], "encoding": "list"}
    kept = {key: each for key, each in (fields | changes).items() if each != "omitted"}
    return {"version": 1, "features": [kept]}


def label(**fields):
    return {"path": ["x"], "kind": "label", **fields}


def nested_list(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


INVALID = {
    "list": ([], "expected a dict"),
    "no version": ({"features": []}, "version is None; must be 1"),
    "newer version": ({"version": 2, "features": []}, "use a newer covey"),
    "version true": ({"version": True, "features": []}, "version is True"),
    "dict of features": ({"version": 1, "features": {}}, "features is {}; must be a list"),
    "entry of number": ({"version": 1, "features": [3]}, "feature 0: found 3"),
    "no path": (entry(path="omitted"), "path is None"),
    "empty path": (entry(path=[]), "path is []; must be a list of strings"),
    "path of numbers": (entry(path=[1]), "list of strings"),
    "empty name": (entry(path=[""]), "name of a feature"),
    "long path": (entry(path=["x"] * 5000), "nested deeper than"),
    "surrogate": (entry(path=["\ud800"]), "UTF-8"),
    "unknown kind": (entry(kind="video"), "kind is 'video'; must be one of 'tensor'"),
    "kind of list": (entry(kind=["tensor"]), "kind is ['tensor']; must be one of"),
    "unknown dtype": (entry(dtype="complex64"), "dtype is 'complex64'"),
    "dtype of numpy": (entry(dtype=[["a", "int64"]]), "dtype is (('a', 'int64'),); must be one of"),
    "no dtype": (entry(dtype="omitted"), "missing 1 required positional argument: 'dtype'"),
    "unknown field": (entry(colour="red"), "unexpected keyword argument 'colour'"),
    "shape of text": (entry(shape="33"), "must be a tuple of integers and None"),
    "negative shape": (entry(shape=[-1]), "shape is (-1,); must be a tuple of integers from 0"),
    "huge shape": (entry(shape=[2**20, 2**20]), "2 GiB"),
    "shape of true": (entry(shape=[True]), "must be a tuple of integers and None"),
    "long shape": (entry(shape=[1] * 40), "at most 32"),
    "float shape": (entry(shape=[1.0]), "must be a tuple of integers and None"),
    "unknown encoding": (entry(encoding="zip"), "encoding is 'zip'"),
    "wrong default": (entry(default="seven"), "expected int64"),
    "large default": (entry(default=10**400), "expected int64"),
    "null default": (entry(default=None), "expected int64"),
    "deep default": (entry(default=nested_list(200)), "nested deeper than"),
    "ragged default": (entry(shape=[2, 2], default=[[1, 2], [3]]), "is not an array"),
    "default of a dict": (entry(default={"a": 1}), "is neither a value"),
    "broken base64": (entry(dtype="bytes", default={"base64": "***"}), "feature 0: "),
    "base64 and more": (entry(dtype="bytes", default={"base64": "", "x": 1}), "is neither a value"),
    "odd float": (entry(dtype="float32", default={"float": "1"}), "is neither a value"),
    "names of numbers": (
        {"version": 1, "features": [label(names=[1], num_classes=1)]},
        "list of strings",
    ),
    "wrong count": (
        {"version": 1, "features": [label(names=[], num_classes=1)]},
        "num_classes is 1",
    ),
    "twice": ({"version": 1, "features": entry()["features"] * 2}, "occurs twice"),
    "through a feature": (
        {"version": 1, "features": [entry()["features"][0], entry(path=["x", "y"])["features"][0]]},
        "leads through a feature",
    ),
    "two with one key": (
        {
            "version": 1,
            "features": [entry(path=["x/y"])["features"][0], entry(path=["x", "y"])["features"][0]],
        },
        "occurs twice",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_json(case):
    content, reason = INVALID[case]
    with pytest.raises(FormatError) as caught:
        features_from_json(content, "here/x.json")
    assert caught.value.path == "here/x.json"
    assert reason in caught.value.reason
    assert len(str(caught.value)) < 500


def paths(content, path=()):
    """Yield the path of every value in JSON content."""
    yield path
    if isinstance(content, (dict, list)):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from paths(content[key], (*path, key))


JSON = features_to_json(Features({"a": EVERY_KIND["numbers"], "b": EVERY_KIND["named, default"]}))
JSON["features"] += features_to_json(Features(EVERY_KIND))["features"][-6:]
PATHS = list(paths(JSON))[1:]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)


@settings(max_examples=120)
@given(path=st.sampled_from(PATHS), value=anything)
def test_random_changes(path, value):
    content = copy.deepcopy(JSON)
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    try:
        features_from_json(content, "x.json")
    except FormatError as error:
        assert error.path == "x.json"  # noqa: PT017
