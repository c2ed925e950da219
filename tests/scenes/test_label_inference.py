"""The label feature: given, inferred, refused with its candidates, or not wanted."""

import json

import numpy as np
import pytest

import covey
from covey import ClassLabel
from covey.cli import main
from covey.errors import DatasetError

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
@pytest.mark.parametrize("name", ["label", "Class", "target", "category", "intent", "Species"])
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
    with pytest.raises(DatasetError, match="'kind' \\(2 distinct values\\), 'nest' \\(6 "):
        covey.write(BIRDS, "data", features=features, progress=False)


@pytest.mark.parametrize("make", [*FILES, *IN_MEMORY])
def test_data_without_a_label_is_refused_with_the_candidates(make, capsys):
    with pytest.raises(DatasetError) as caught:
        covey.write(make(BIRDS), "data", progress=False)
    error = caught.value
    assert error.option == "label"
    assert "'kind' (2 distinct values), 'nest' (6 distinct values)" in error.reason
    assert "weight" not in error.reason
    if make in FILES:
        assert error.path == make(BIRDS)
        assert main(["write", make(BIRDS), "data"]) == 1
        message = capsys.readouterr().err
        assert "'kind' (2 distinct values), 'nest' (6 distinct values)" in message
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

    with pytest.raises(DatasetError, match="in the first 10,000 examples: 'shape' \\(7 distinct"):
        covey.write(endless(), "data", progress=False)
    assert len(read) < 100_000


def test_many_candidates():
    wide = [{f"column {number}": number for number in range(100)}]
    with pytest.raises(DatasetError, match="and 92 more"):
        covey.write(wide, "data", progress=False)


def test_label_with_a_default():
    examples = [{"x": 2, "label": "owl"}, {"x": 1}]
    result = covey.write(examples, "data", defaults={"label": "none"}, progress=False)
    assert (result.label, result.classes) == ("label", {"none": 1, "owl": 1})
