"""Filters, sums, parts of disjoint classes, and datasets of pandas and Hugging Face."""

import io
import pickle

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import covey
from covey.errors import DatasetError

FINCH, GULLS = ("goldfinch", "owl", "wren"), ("gull", "owl", "tern")


def photo(color: int, size: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), (color, 10, 200)).save(file, "PNG")
    return file.getvalue()


def birds(species, count, first=0):
    return [
        {
            "image": photo(number % 256, 8 + number % 4),
            "id": first + number,
            "sizes": list(range(number % 4)),
            "place": f"place {number % 5}",
            "species": species[number % len(species)],
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Two datasets that share a class, and the species of each id."""
    directory = tmp_path_factory.mktemp("birds")
    gardens, coast = birds(FINCH, 60), birds(GULLS, 45, 1000)
    covey.write(gardens, directory / "gardens", split="train", label="species", progress=False)
    covey.write(coast, directory / "coast", split="train", label="species", progress=False)
    return directory, {each["id"]: each["species"] for each in gardens + coast}


@pytest.fixture
def gardens(written):
    with covey.open(written[0] / "gardens") as ds:
        yield ds


@pytest.fixture
def coast(written):
    with covey.open(written[0] / "coast") as ds:
        yield ds


def ids_of(ds):
    return ds.columns("id")["id"].tolist()


def test_filter(gardens, written):
    near = gardens.filter(lambda each: each["place"] in ("place 1", "place 2"), select="place")
    assert {each["place"] for each in near} == {"place 1", "place 2"}
    assert ids_of(near) == [n for n in ids_of(gardens) if n % 5 in (1, 2)]
    small = gardens.filter(
        lambda each: Image.open(io.BytesIO(each["image"])).size == (8, 8), classes=["owl", "wren"]
    )
    assert ids_of(small) == [n for n in ids_of(gardens) if n % 4 == 0 and n % 3 > 0]
    owls = gardens.filter(classes="owl")
    assert {written[1][n] for n in ids_of(owls)} == {"owl"}
    assert len(owls) == 20 == len(gardens.where(label="owl"))
    x, y = next(iter(near.batches(3, 2, select="id")))
    assert [written[1][n] for n in x.tolist()] == near.class_names[y]


def test_map_points_to_transform(gardens):
    with pytest.raises(DatasetError) as caught:
        gardens.map(lambda each: each)
    assert "transform=" in caught.value.remedy


def test_sum_of_datasets_with_common_classes(gardens, coast, written):
    both = gardens + coast
    assert len(both) == 105
    assert ids_of(both) == ids_of(gardens) + ids_of(coast)
    assert list(both.classes) == ["goldfinch", "owl", "wren", "gull", "tern"]
    assert both.classes.counts.tolist() == [20, 35, 20, 15, 15]
    assert both.features["species"].names == tuple(both.classes)
    assert both.labels[:60].tolist() == gardens.labels.tolist()  # ids of the first stay
    for ds in (both, pickle.loads(pickle.dumps(both))):
        origins = set()
        for x, y in ds.batches(5, 4, select="id", seed=2):
            assert [written[1][n] for n in x.tolist()] == ds.class_names[y]
            assert np.unique(y, return_counts=True)[1].tolist() == [4] * 5
            origins |= set(x[y == 1] >= 1000)
        assert origins == {False, True}  # owls of both datasets
    assert [both.class_names[each["species"]] for each in both] == [
        written[1][n] for n in ids_of(both)
    ]
    part = both.where(label=["owl", "tern"])
    assert {written[1][n] for n in ids_of(part)} == {"owl", "tern"}


def test_parts_of_disjoint_classes(tmp_path):
    names = [f"class {number:03}" for number in range(100)]
    columns = {"x": np.arange(1000), "label": np.array(names)[np.arange(1000) % 100]}
    covey.write(columns, tmp_path / "data", split="train", label="label", progress=False)
    with covey.open(tmp_path / "data") as ds:
        train, test = ds.split_classes(train=0.8, seed=0)
        assert set(train.classes) | set(test.classes) == set(names)
        assert not set(train.classes) & set(test.classes)
        assert 70 <= len(train.classes) <= 90
        assert len(train) + len(test) == 1000
        again, _ = ds.filter(lambda each: each["x"] % 3 > 0).split_classes(train=0.8, seed=0)
        assert set(again.classes) <= set(train.classes)  # stable when examples are removed
        train, val, test = ds.split_classes(train=80, val=10, test=10, labels="contiguous")
        assert [len(each.classes) for each in (train, val, test)] == [80, 10, 10]
        assert np.unique(train.labels).tolist() == list(range(80))
        for x, y in train.batches(8, 2, seed=1, select="x"):
            assert [names[number % 100] for number in x.tolist()] == train.class_names[y]


def test_pandas(gardens):
    frame = gardens.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == list(gardens.features)
    assert list(frame["species"].cat.categories) == list(gardens.class_names.values())
    counts = frame.groupby("species", observed=True)["id"].count()
    assert counts.to_dict() == {"goldfinch": 20, "owl": 20, "wren": 20}
    assert frame["species"].tolist() == gardens.class_names[gardens.labels]
    assert all(
        Image.open(io.BytesIO(data)).size == (8 + n % 4,) * 2
        for data, n in zip(frame["image"], frame["id"], strict=True)
    )
    assert [each.tolist() for each in frame["sizes"]] == [list(range(n % 4)) for n in frame["id"]]


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_round_trip(gardens, written, tmp_path, streaming):
    found = gardens.to_hf(streaming=streaming)
    assert isinstance(found, datasets.IterableDataset if streaming else datasets.Dataset)
    assert found.features["species"] == datasets.ClassLabel(names=list(FINCH))
    assert isinstance(found.features["image"], datasets.Image)
    for example, own in zip(found, gardens, strict=True):
        assert example["image"].tobytes() == Image.open(io.BytesIO(own["image"])).tobytes()
        assert example["sizes"] == own["sizes"].tolist()
        assert (example["id"], example["place"]) == (own["id"], own["place"])
        assert found.features["species"].int2str(example["species"]) == written[1][own["id"]]
    with covey.Dataset.from_hf(
        found, tmp_path / "again", split="train", shuffle=False, progress=False
    ) as again:
        assert again.features["image"] == gardens.features["image"]
        assert again.features["species"] == gardens.features["species"]
        assert again.label == "species"
        assert (
            again.columns("image")["image"].tolist() == gardens.columns("image")["image"].tolist()
        )
        assert again.labels.tolist() == gardens.labels.tolist()
        assert list(again.classes) == list(gardens.classes)
