"""Datasets as DataFrames and as datasets of Hugging Face: every type of feature."""

import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from opened import opened, put
from written import write

import covey
from covey import ClassLabel, Ragged, Sparse, Steps, Tensor
from covey.errors import DatasetError, FeatureError

FEATURES = {
    "n": "int64",
    "flag": "bool",
    "text": "str",
    "data": "bytes",
    "pair": Tensor("float32", (2,)),
    "any": Tensor("int64", (None,)),
    "matrix": Tensor("uint8", (2, 3)),
    "rows": Tensor("int64", (None, 2)),
    "words": Tensor("str", (None,)),
    "deep": Ragged("int64"),
    "sparse": Sparse("float32", (4,)),
    "meta": {"half": "float16", "double": "float64"},
    "coarse": ClassLabel(num_classes=5),
    "label": ClassLabel(["owl", "wren"]),
}


def example(n):
    return {
        "n": n - 3,
        "flag": n % 2 == 0,
        "text": "é" * n,
        "data": bytes([255, n]),
        "pair": [n, 0.5],
        "any": list(range(n % 3)),
        "matrix": np.full((2, 3), n, np.uint8),
        "rows": np.full((n % 3, 2), n),
        "words": ["a"] * (n % 2),
        "deep": [[1] * k for k in range(n % 3)],
        "sparse": [0, n, 0, 0.5],
        "meta": {"half": n, "double": n / 3},
        "coarse": n % 5,
        "label": n % 3 - 1,
    }


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "data"
    write([example(n) for n in range(7)], path, features=FEATURES, label="label", shuffle=False)
    with opened(path) as dataset:
        yield dataset


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else value


def test_pandas(ds):
    frame = ds.to_pandas()
    assert list(frame.columns) == list(ds.features)
    assert frame["n"].tolist() == [n - 3 for n in range(7)]
    assert (frame["n"].dtype, frame["flag"].dtype) == (np.int64, np.bool_)
    assert frame["text"].tolist() == ["é" * n for n in range(7)]
    assert frame["data"].tolist() == [bytes([255, n]) for n in range(7)]
    assert frame["matrix"][4].tolist() == [[4] * 3] * 2
    assert [plain(each) for each in frame["any"]] == [list(range(n % 3)) for n in range(7)]
    assert frame["meta/double"].tolist() == [n / 3 for n in range(7)]
    assert frame["label"].isna().tolist() == [n % 3 == 0 for n in range(7)]  # class -1
    assert frame["label"].cat.categories.tolist() == ["owl", "wren"]
    assert frame["coarse"].tolist() == [n % 5 for n in range(7)]
    assert ds.select([5, 1]).to_pandas("n")["n"].to_dict() == {0: 2, 1: -2}
    assert list(ds.to_pandas(["label", "n"]).columns) == ["label", "n"]
    with pytest.raises(FeatureError):
        ds.to_pandas("m")


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face(ds, streaming):
    found = ds.to_hf(streaming=streaming)
    assert found.features["label"] == datasets.ClassLabel(names=["owl", "wren"])
    assert found.features["coarse"].num_classes == 5
    assert found.features["matrix"] == datasets.Array2D((2, 3), "uint8")
    for n, row in enumerate(found):
        expected = example(n)
        for name in ("n", "flag", "text", "data", "any", "words", "deep", "coarse", "label"):
            assert plain(row[name]) == expected[name], name
        for name in ("pair", "matrix", "rows", "sparse"):
            assert np.array_equal(np.reshape(row[name], np.shape(expected[name])), expected[name])
        assert (row["meta/half"], row["meta/double"]) == (n, n / 3)
    assert n == 6


def test_a_label_that_is_not_a_feature_is_a_column(tmp_path):
    for bird in ("owl", "wren"):
        put(tmp_path / "data" / f"{bird}.tfrecord", [{"x": 1}, {"x": 2}], {"x": "int64"})
    with opened(tmp_path / "data", label="@file") as ds:
        assert ds.to_pandas()["label"].tolist() == ["owl", "owl", "wren", "wren"]
        found = ds.to_hf()
        assert found.features["label"].int2str(found["label"]) == ["owl", "owl", "wren", "wren"]
        assert list(ds.to_pandas("x").columns) == ["x"]


def test_contiguous_labels_and_sums_are_exported_with_their_names(tmp_path):
    for name, birds in (("a", ("owl", "wren")), ("b", ("tern", "owl"))):
        examples = [{"x": n, "bird": birds[n % 2]} for n in range(6)]
        write(examples, tmp_path / name, label="bird", shuffle=False)
    both = opened(tmp_path / "a") + opened(tmp_path / "b")
    expected = ["owl", "wren"] * 3 + ["tern", "owl"] * 3
    assert both.to_pandas()["bird"].tolist() == expected
    found = both.to_hf()
    assert found.features["bird"].int2str(found["bird"]) == expected
    with opened(tmp_path / "b", labels="contiguous") as ds:
        part = ds.where(label="tern")
        assert part.to_pandas()["bird"].tolist() == ["tern"] * 3
    write(both, tmp_path / "c", label="bird", shuffle=False)
    with opened(tmp_path / "c") as ds:
        assert ds.class_names[ds.labels] == expected
    both.close()


def test_empty_datasets(ds):
    none = ds.select([])
    assert none.to_pandas().shape == (0, len(ds.features))
    assert none.to_hf().num_rows == 0
    assert none.to_hf().features == ds.to_hf().features
    assert list(none.to_hf(streaming=True)) == []


def test_features_without_a_counterpart():
    path = Path(__file__).parents[1] / "golden/sequence.tfrecord"  # of SequenceExamples
    with opened(path) as ds:
        steps = [name for name, kind in ds.features.items() if isinstance(kind, Steps)]
        with pytest.raises(DatasetError) as caught:
            ds.to_hf()
        assert caught.value.feature in steps
        others = [name for name in ds.features if name not in steps]
        assert ds.to_hf(others).num_rows == len(ds.to_pandas()) == len(ds)


@pytest.mark.parametrize(("package", "method"), [("pandas", "to_pandas"), ("datasets", "to_hf")])
def test_a_missing_package_is_named(ds, monkeypatch, package, method):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DatasetError) as caught:
        getattr(ds, method)()
    assert caught.value.remedy == f"run: pip install {package}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, "train"), (datasets.Split.TEST, "test"), ("train[:10%]", "train")],
)
def test_split_of_a_dataset_of_hugging_face(tmp_path, given, expected):
    split = given if given is None else datasets.NamedSplit(str(given))
    columns = {"x": [1, 2], "label": [0, 1]}
    features = datasets.Features(
        {"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    found = datasets.Dataset.from_dict(columns, features=features, split=split)
    with covey.Dataset.from_hf(found, tmp_path / "data", progress=False) as ds:
        assert (tmp_path / "data").joinpath(f"data-{expected}.tfrecord-00000-of-00001").exists()
        assert sorted(ds.class_names[ds.labels]) == ["a", "b"]
    with pytest.raises(DatasetError):
        covey.Dataset.from_hf(found, tmp_path / "data", progress=False)  # it exists
    several = datasets.DatasetDict({"train": found, "test": found})
    with pytest.raises(DatasetError, match="several splits") as caught:
        covey.Dataset.from_hf(several, tmp_path / "other", progress=False)
    assert caught.value.option == "split"
    with covey.Dataset.from_hf(several, tmp_path / "other", split="test", progress=False) as ds:
        assert len(ds) == 2


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_sounds(tmp_path, dtype, streaming):
    """Sounds are files of Hugging Face, and return unchanged."""
    rng = np.random.default_rng(0)
    sounds = [(rng.normal(size=50 + n) * 0.2).astype(np.float32) for n in range(6)]
    features = {"audio": covey.Audio(8000, dtype), "label": "int64"}
    examples = [{"audio": each, "label": n % 2} for n, each in enumerate(sounds)]
    write(examples, tmp_path / "data", features=features, label="label", shuffle=False)
    with opened(tmp_path / "data") as ds:
        found = ds.to_hf(streaming=streaming)
        if streaming:
            assert [len(each["audio"]["bytes"]) > 100 for each in found] == [True] * 6
            return
        assert found.features["audio"].sampling_rate == 8000
        options = {"split": "train", "shuffle": False, "features": features, "progress": False}
        with covey.Dataset.from_hf(found, tmp_path / "again", **options) as again:
            for one, two in zip(ds, again, strict=True):
                np.testing.assert_array_equal(one["audio"], two["audio"])
