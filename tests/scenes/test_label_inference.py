"""The label feature: given, inferred, refused with its candidates, or not wanted."""

import json
import os

import numpy as np
import pytest

import covey
from covey import ClassLabel
from covey.cli import main
from covey.errors import DatasetError, FeatureError, SourceError

BIRDS = [{"weight": n / 2, "kind": ("owl", "wren")[n % 2], "nest": n} for n in range(6)]


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def renamed(name):
    """Return the examples with another name of the label."""
    return [{name if key == "kind" else key: value for key, value in b.items()} for b in BIRDS]


def as_csv(examples):
    rows = [",".join(examples[0]), *(",".join(map(str, each.values())) for each in examples)]
    with open("birds.csv", "w") as file:
        file.write("\n".join(rows) + "\n")
    return "birds.csv"


def as_json(examples):
    with open("birds.json", "w") as file:
        json.dump(examples, file)
    return "birds.json"


def as_npz(examples):
    np.savez("birds.npz", **as_columns(examples))
    return "birds.npz"


def as_columns(examples):
    return {name: np.array([each[name] for each in examples]) for name in examples[0]}


FILES = [as_csv, as_json, as_npz]
IN_MEMORY = [list, iter, as_columns]


@pytest.mark.parametrize("make", [*FILES, *IN_MEMORY])
@pytest.mark.parametrize("name", ["Class", "intent"])
def test_features_with_names_of_labels(make, name):
    result = covey.write(make(renamed(name)), "data", progress=False)
    assert (result.label, result.classes) == (name, {"owl": 3, "wren": 3})
    assert covey.open("data").label == name
    if make in FILES:
        assert main(["write", "--quiet", make(renamed(name)), "cli"]) == 0
        assert covey.open("cli").label == name


def test_only_class_label():
    kinds = ClassLabel(names=["owl", "wren"])
    features = {"weight": "float32", "kind": kinds, "nest": "int64"}
    result = covey.write(BIRDS, "data", features=features, progress=False)
    assert result.label == "kind"


def test_two_class_labels():
    kinds = ClassLabel(names=["owl", "wren"])
    features = {"weight": "float32", "kind": kinds, "nest": ClassLabel(num_classes=9)}
    with pytest.raises(DatasetError, match="candidates: 'kind', 'nest'"):
        covey.write(BIRDS, "data", features=features, progress=False)


@pytest.mark.parametrize("make", [*FILES, *IN_MEMORY])
def test_data_without_a_label_is_refused_with_the_candidates(make, capsys):
    with pytest.raises(DatasetError) as caught:
        covey.write(make(BIRDS), "data", progress=False)
    error = caught.value
    assert error.option == "label"
    assert "candidates: 'kind', 'nest'" in error.reason
    assert "weight" not in error.reason
    if make in FILES:
        assert error.path == make(BIRDS)
        assert main(["write", make(BIRDS), "data"]) == 1
        message = capsys.readouterr().err
        assert "candidates: 'kind', 'nest'" in message
        assert "--label" in message
        assert "--no-label" in message
    with pytest.raises(DatasetError):
        covey.open("data")


@pytest.mark.parametrize("make", [*FILES, *IN_MEMORY])
def test_unlabelled_data_on_request(make):
    result = covey.write(make(renamed("label")), "data", label=None, progress=False)
    assert (result.label, result.classes) == (None, {})
    if make in FILES:
        assert main(["write", "--quiet", "--no-label", make(BIRDS), "cli"]) == 0
        assert len(covey.open("cli")) == 6


@pytest.mark.parametrize("make", [*FILES, *IN_MEMORY])
def test_given_label(make):
    result = covey.write(make(BIRDS), "data", label="kind", progress=False)
    assert (result.label, result.classes) == ("kind", {"owl": 3, "wren": 3})
    if make in FILES:
        assert main(["write", "--quiet", "--label", "kind", make(BIRDS), "cli"]) == 0
        assert tuple(covey.open("cli").classes) == ("owl", "wren")


def test_labels_of_arrays():
    np.savez("birds.npz", x=np.arange(4.0), y=[0, 1, 0, 1])
    assert covey.write("birds.npz", "data", progress=False).label == "y"


def test_arrays_only():
    with pytest.raises(DatasetError, match="no feature is a ClassLabel, an integer or a string"):
        covey.write({"x": np.zeros((4, 2))}, "data", progress=False)


def test_label_of_the_existing_splits():
    covey.write(BIRDS, "data", label="kind", progress=False)
    for options in ({"split": "val"}, {"split": "train", "mode": "append"}):
        assert covey.write(BIRDS, "data", progress=False, **options).label == "kind"
    covey.write(renamed("label"), "unlabelled", label=None, progress=False)
    result = covey.write(renamed("label"), "unlabelled", split="val", progress=False)
    assert result.label is None


def test_many_examples_without_a_label_are_refused_early():
    read = []

    def endless():
        for number in range(10**9):
            read.append(number)
            yield {"x": number, "shape": number % 7}

    with pytest.raises(DatasetError, match="candidates: 'x', 'shape'"):
        covey.write(endless(), "data", progress=False)
    assert len(read) < 100_000


def test_many_candidates():
    wide = [{f"column {number}": number for number in range(100)}]
    with pytest.raises(DatasetError, match="and 88 more"):
        covey.write(wide, "data", progress=False)


def test_label_with_a_default():
    examples = [{"x": 2, "label": "owl"}, {"x": 1}]
    result = covey.write(examples, "data", defaults={"label": "none"}, progress=False)
    assert (result.label, result.classes) == ("label", {"none": 1, "owl": 1})


def test_feature_with_the_name_of_a_label_that_cannot_be_one():
    for examples in ([{"x": 1, "label": 0.5}], {"x": [1], "label": [0.5]}):
        with pytest.raises(DatasetError) as caught:
            covey.write(examples, "data", progress=False)
        assert caught.value.option == "label"
        assert "feature 'label' is float32, not a class; candidates: 'x'" in caught.value.reason
    with pytest.raises(DatasetError, match="a string; feature 'label' is float32"):
        covey.write([{"x": 1.5, "label": 0.5}], "data", progress=False)


def test_label_that_is_none():
    with pytest.raises(FeatureError, match="None") as caught:
        covey.write([{"x": 1, "label": None}], "data", progress=False)
    assert caught.value.remedy == "remove it, or pass defaults= if other examples have a value"
    with pytest.raises(DatasetError) as caught:
        covey.write([{"x": 1}], "data", progress=False)
    assert caught.value.option == "label"
    for first in ({"x": 1, "label": None}, {"x": 1}):
        examples = [first, {"x": 2, "label": "owl"}]
        options = {"defaults": {"label": "wren"}, "mode": "overwrite", "progress": False}
        result = covey.write(examples, "data", **options)
        assert (result.classes, result.features["label"].names) == (
            {"owl": 1, "wren": 1},
            ("owl", "wren"),
        )
        assert {each["x"]: each["label"] for each in covey.open("data")} == {1: 1, 2: 0}


def test_unknown_class_is_answered_with_the_classes():
    features = {"x": "int64", "label": ClassLabel(names=["owl", "wren"])}
    for examples in ([{"x": 1, "label": "wrne"}], {"x": [1], "label": ["wrne"]}):
        with pytest.raises(FeatureError, match="unknown class 'wrne'") as caught:
            covey.write(examples, "data", features=features, progress=False)
        error = caught.value
        assert (error.example, error.feature, error.suggestion) == (0, "label", "wren")
        assert error.reason == "unknown class 'wrne'; the label has 2 names: 'owl', 'wren'"


def test_columns_of_different_lengths():
    with pytest.raises(FeatureError, match="different numbers of rows: 'x' 3, 'label' 2"):
        covey.write({"x": [1, 2, 3], "label": [0, 1]}, "data", progress=False)


def test_other_features_than_those_of_the_dataset(capsys):
    covey.write(BIRDS, "data", label="kind", progress=False)
    with open("a.csv", "w") as file:
        file.write("hoot,owl\ntrill,wren\nhoot,owl\n")
    with pytest.raises(DatasetError) as caught:
        covey.write("a.csv", "data", split="test", columns=["text", "intent"], progress=False)
    error = caught.value
    assert (error.path, error.feature) == (os.path.abspath("data"), None)
    assert error.reason == (
        "the existing splits have 'weight', 'kind', 'nest'; the source has 'text', 'intent'"
    )
    assert error.remedy == "write another dataset"
    with pytest.raises(DatasetError) as caught:
        kinds = {"weight": "float64", "kind": "str", "nest": "int64"}
        covey.write(BIRDS, "data", split="test", features=kinds, progress=False)
    assert caught.value.feature == "kind"
    assert "omit features=" in caught.value.remedy


def test_table_whose_first_row_is_data(capsys):
    with open("a.csv", "w") as file:
        file.write("hello there,greet\nsee you,part\nwake me,alarm\n")
    with pytest.raises(DatasetError) as caught:
        covey.write("a.csv", "data", progress=False)
    assert caught.value.option == "label"
    assert caught.value.remedy.endswith(", or pass columns= if the first row is not a header")
    assert main(["write", "a.csv", "data"]) == 1
    assert "--label NAME, or --no-label" in capsys.readouterr().err
    with pytest.raises(DatasetError) as caught:
        covey.write("a.csv", "data", columns=["a", "b"], progress=False)
    assert "columns=" not in caught.value.remedy


def test_delimiter_that_the_table_does_not_have():
    with open("a.csv", "w") as file:
        file.write("hello there;greet\nsee you;part\nwake me;alarm\n")
    with pytest.raises(SourceError) as caught:
        covey.write("a.csv", "data", columns=["text", "label"], delimiter=",", progress=False)
    error = caught.value
    assert error.option == "columns"
    assert error.allowed.startswith("the names of the 1 column")
    result = covey.write("a.csv", "data", columns=["text", "label"], progress=False)
    assert result.records == 3
