"""covey info: values of the features, and duplicates within and between splits."""

import json
from pathlib import Path

import numpy as np
import pytest
from opened import put
from written import write

import covey
from covey.cli import main
from covey.results import DuplicatePair


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *arguments):
    assert main(["info", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def write_questions():
    """Write questions: 3 in both splits, 2 twice in train, 1 with two classes."""
    train = [(f"question {n}", n % 4) for n in range(40)]
    train += [("question 0", 0), ("question 1", 1), ("question 2", 3)]
    test = [(f"other {n}", n % 4) for n in range(10)]
    test += [("question 0", 0), ("question 4", 0), ("question 5", 1)]
    for split, examples in (("train", train), ("test", test)):
        columns = {
            "text": [text for text, _ in examples],
            "id": np.arange(len(examples)),
            "intent": [f"intent {label}" for _, label in examples],
        }
        write(columns, "questions", split, label="intent", shuffle=False)


def test_duplicates_of_texts(capsys):
    write_questions()
    found = covey.info("questions", deep=True, progress=False).duplicates
    assert found.features == ("text",)
    assert found.within == {"train": 3, "test": 0}
    assert found.between == {("train", "test"): 3}
    assert found.conflicts == 1
    assert found.pairs[0] == DuplicatePair(("train",) * 2, (2, 42), ("intent 2", "intent 3"))
    assert {each.ids for each in found.pairs[1:4]} == {(0, 10), (4, 11), (5, 12)}
    assert found.pairs[4] == DuplicatePair(("train",) * 2, (1, 41), ("intent 1", "intent 1"))
    assert len(found.pairs) == 5
    for pair in found.pairs:
        texts = [
            covey.open("questions", split=split)[number]["text"]
            for split, number in zip(pair.splits, pair.ids, strict=True)
        ]
        assert texts[0] == texts[1]
    lines = run(capsys, "questions", "--deep", "--no-progress")
    assert "duplicates by 'text':" in lines
    assert "  test: 3 examples also in train" in lines
    assert "  train: 3 examples equal to an earlier one of the split" in lines
    assert "  1 duplicate has conflicting labels" in lines
    assert lines[-5].split() == ["train", "2", "(intent", "2)", "train", "42", "(intent", "3)"]
    content = json.loads("\n".join(run(capsys, "questions", "--deep", "--json", "-q")))
    assert content["duplicates"]["between"] == [{"splits": ["train", "test"], "examples": 3}]
    assert content["duplicates"]["pairs"][0]["ids"] == [2, 42]
    assert covey.info("questions").duplicates is None


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("float32", [0.0, 1.0, 1.0]),
        (
            covey.Tensor("uint8", (2, 2), encoding="bytes"),
            [np.zeros((2, 2), "u1"), *[np.eye(2, dtype="u1")] * 2],
        ),
        (covey.Tensor("int64", (None,)), [[0], [], []]),
        (covey.Tensor("str", (None,)), [["ab", ""], ["a", "b"], ["a", "b"]]),
        (covey.Ragged("int64"), [[[1], [2]], [[1, 2]], [[1, 2]]]),
        (covey.Ragged("str"), [[["a"], ["b"]], [["ab"]], [["ab"]]]),
        (covey.Sparse("float32", (4,)), [([1], [2.0]), ([2], [2.0]), ([2], [2.0])]),
        (covey.Tensor("bytes"), [b"", b"a\x00", b"a\x00"]),
    ],
    ids=str,
)
def test_content_of_every_kind(kind, values):
    """The first value differs from the second, which is equal to the third."""
    features = {"x": kind, "filename": "str"}
    examples = [{"x": value, "filename": f"{n}"} for n, value in enumerate(values)]
    write(examples, "a", features=features, label=None, shuffle=False)
    found = covey.info("a", deep=True, progress=False).duplicates
    assert found.within == {"train": 1}
    assert found.pairs == (DuplicatePair(("train",) * 2, (1, 2), None),)
    # As one of two features that are compared.
    examples = [{**each, "y": n % 2} for n, each in enumerate([*examples, examples[2]])]
    write(examples, "b", features={**features, "y": "int64"}, label=None, shuffle=False)
    found = covey.info("b", deep=True, progress=False).duplicates
    assert found.features == ("x", "y")
    assert [each.ids for each in found.pairs] == [(1, 3)]


def test_no_duplicates_and_nothing_to_compare(capsys):
    write({"x": np.arange(50), "label": np.arange(50) % 2}, "a", label="label")
    found = covey.info("a", deep=True).duplicates
    assert (found.within, found.between, found.conflicts) == ({"train": 0}, {}, 0)
    assert run(capsys, "a", "--deep", "-q")[-1] == "no duplicates by 'x'"
    write({"label": np.arange(50) % 2}, "b", label="label")
    assert covey.info("b", deep=True).duplicates is None


def test_classes_are_compared_by_name():
    """Splits of TFRecords that were indexed separately have different class ids."""
    for split, names in (("train", "ab"), ("test", "ba")):
        examples = ({"x": n, "label": names[n]} for n in range(2))
        put(Path(f"x-{split}.tfrecord"), examples, {"x": "int64", "label": "str"})
    found = covey.info(".", deep=True, progress=False).duplicates
    assert found.conflicts == 2
    assert {each.classes for each in found.pairs} == {("a", "b"), ("b", "a")}


def test_values(capsys):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=1500).astype("f4")
    weights[::100] = np.nan
    texts = ["é" * (n % 50) for n in range(1500)]
    columns = {
        "text": texts,
        "weight": weights,
        "size": np.arange(1500) - 700,
        "tokens": [[n] * (n % 7) for n in range(1500)],
        "label": np.arange(1500) % 3,
    }
    write(columns, "birds", label="label", shuffle=False)
    (split,) = covey.info("birds").splits
    assert split.values_of == 1000
    (deep,) = covey.info("birds", deep=True, progress=False).splits
    assert deep.values_of == 1500
    for found, count in ((split, 1000), (deep, 1500)):
        assert sorted(found.values) == ["size", "text", "tokens", "weight"]
        assert found.values["text"].lengths == (0, int(np.median(np.arange(count) % 50)), 49)
        weight = found.values["weight"]
        assert weight.nan == count // 100
        assert weight.minimum == np.nanmin(weights[:count])
        assert weight.mean == pytest.approx(np.nanmean(weights[:count]))
        assert (found.values["size"].minimum, found.values["size"].maximum) == (-700, count - 701)
        assert found.values["size"].nan is None
        assert found.values["tokens"].lengths == (0, 3, 6)
    lines = run(capsys, "birds")
    assert "train: values of the first 1,000 examples" in lines
    row = [line.split() for line in lines if line.startswith("  weight")][-1]
    assert row[4] == "10"
    assert "train: values of all 1,500 examples" in run(capsys, "birds", "--deep", "-q")
    content = json.loads("\n".join(run(capsys, "birds", "--json")))["splits"]["train"]
    assert content["values"]["text"]["lengths"] == [0, 24, 49]
    assert content["values_of"] == 1000


def test_sizes_and_channels_of_images(capsys):
    pytest.importorskip("PIL.Image")
    images = [np.zeros((10 + n, 20, 3), np.uint8) for n in range(4)]
    features = covey.Features({"image": covey.Image(), "label": "int64"})
    examples = [{"image": each, "label": 0} for each in images]
    put(Path("x.tfrecord"), examples, features)
    covey.open("x.tfrecord", features=features, progress=False)
    line = next(each for each in run(capsys, "x.tfrecord", "--deep", "-q") if "has" in each)
    assert "4 images: png; 10 x 20 to 13 x 20; 3 channels; 8 bits" in line


def test_corrupt_record():
    """A corrupt record is part of the overview; reading all examples raises its error."""
    write({"x": np.arange(2000), "label": np.arange(2000) % 2}, "birds", label="label")
    ds = covey.open("birds", split="train")
    place = ds.place(500)
    ds.close()
    with open(place.name, "r+b") as file:
        file.seek(place.offset + 14)
        file.write(b"?")
    (split,) = covey.info("birds").splits
    assert "record 500" in split.values_error
    assert split.values == {}
    with pytest.raises(covey.errors.CorruptRecordError) as caught:
        covey.info("birds", deep=True, progress=False)
    assert caught.value.record == 500


def test_hostile_names(capsys):
    name = "x\x1b[2J" + "y" * 300
    write({name: np.zeros(4), "label": ["a\x1b[2J", "b", "c", "d"]}, "birds", label="label")
    lines = run(capsys, "birds", "--deep", "-q")
    assert all(line.isprintable() for line in lines)
    assert "  1 duplicate has conflicting labels" in lines
