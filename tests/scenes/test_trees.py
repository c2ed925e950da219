"""Directories of photos: splits, classes, nested classes, and trees that can be read in several
ways."""

import os
import pickle

import pytest

from covey.errors import SourceError
from covey.sources import open_source, open_splits

GIF = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def put(*directories, root="photos", count=2):
    """Store images in directories below `root`."""
    for directory in directories:
        os.makedirs(f"{root}/{directory}", exist_ok=True)
        for number in range(count):
            with open(f"{root}/{directory}/{number}.gif", "wb") as file:
                file.write(GIF)
    return root


def names_of(source):
    return source.features["label"].names


def classes_of(source):
    """Return the class of each image by its file name."""
    return {key: example["label"] for key, example in source.examples}


GROCERIES = [
    f"{split}/{name}"
    for split in ("train", "val", "test")
    for name in ("Fruit/Banana", "Fruit/Apple/Royal-Gala", "Packages/Milk/Arla")
]
"""Splits with classes at two depths."""


# Splits.


def test_splits_of_class_directories():
    source = open_splits(put("train/owl", "train/wren", "val/owl", "test/jay"))
    assert list(source) == ["train", "val", "test"]
    assert {split: classes_of(each) for split, each in source.items()} == {
        "train": {
            "owl/0.gif": "owl",
            "owl/1.gif": "owl",
            "wren/0.gif": "wren",
            "wren/1.gif": "wren",
        },
        "val": {"owl/0.gif": "owl", "owl/1.gif": "owl"},
        "test": {"jay/0.gif": "jay", "jay/1.gif": "jay"},
    }
    assert {names_of(each) for each in source.values()} == {("jay", "owl", "wren")}
    assert [each.path for each in source.values()] == ["photos/train", "photos/val", "photos/test"]


def test_splits_in_one_more_directory():
    source = open_splits(put("birds/Train/owl", "birds/Test/owl"))
    assert list(source) == ["Train", "Test"]
    assert source["Test"].path == "photos/birds/Test"
    assert classes_of(source["Test"]) == {"owl/0.gif": "owl", "owl/1.gif": "owl"}


@pytest.mark.parametrize("extra", ["extra", "unlabelled/more", "Fruit/Banana"])
def test_splits_and_one_more_directory(extra):
    put("train/owl", "val/owl", "test/owl", extra)
    with pytest.raises(SourceError) as caught:
        open_splits("photos")
    error = caught.value
    assert error.reason.startswith("directories of splits are mixed with others: 'train' (2 images")
    assert repr(extra.split("/")[0]) in error.reason
    assert "splits='train,val,test'" in error.remedy
    source = open_splits("photos", splits="train,val,test")
    assert list(source) == ["train", "val", "test"]
    assert names_of(source["train"]) == ("owl",)
    (note,) = source.notes
    assert note.startswith(f"not read: {extra.split('/')[0]!r} (2 images")


def test_classes_at_two_depths_below_the_splits():
    put(*GROCERIES)
    with pytest.raises(SourceError) as caught:
        open_splits("photos")
    error = caught.value
    assert "different depths below the splits" in error.reason
    assert "'train' (6 images at depth 3 to 4), 'val'" in error.reason
    assert all(each in error.remedy for each in ("class_depth=2", "class_from='last'", "'path'"))
    assert names_of(open_splits("photos", class_depth=1)["val"]) == ("Fruit", "Packages")
    assert names_of(open_splits("photos", class_depth=2)["val"]) == (
        "Fruit/Apple",
        "Fruit/Banana",
        "Packages/Milk",
    )
    last = open_splits("photos", class_from="last")
    assert names_of(last["val"]) == ("Arla", "Banana", "Royal-Gala")
    path = open_splits("photos", class_from="path")
    assert names_of(path["val"]) == ("Fruit/Apple/Royal-Gala", "Fruit/Banana", "Packages/Milk/Arla")
    both = open_splits("photos", class_depth=2, class_from="last")
    assert names_of(both["val"]) == ("Apple", "Banana", "Milk")


def test_splits_below_classes():
    put("owl/train", "owl/test", "wren/train", "wren/test")
    with pytest.raises(SourceError, match="directories of splits are below others"):
        open_splits("photos")
    source = open_splits("photos", splits=["train", "test"])
    assert classes_of(source["test"]) == {
        "owl/test/0.gif": "owl",
        "owl/test/1.gif": "owl",
        "wren/test/0.gif": "wren",
        "wren/test/1.gif": "wren",
    }


def test_splits_with_names_of_the_caller():
    put("2019/owl", "2020/owl", "2021/wren")
    assert names_of(open_source("photos")) == ("2019/owl", "2020/owl", "2021/wren")
    source = open_splits("photos", splits=["2020", "2019"])
    assert list(source) == ["2020", "2019"]
    assert source.notes == ("not read: '2021' (2 images at depth 2)",)


def test_split_that_does_not_exist():
    put("train/owl", "extra/owl")
    with pytest.raises(SourceError, match="no directory 'val' with images") as caught:
        open_splits("photos", splits=["train", "val"])
    assert (caught.value.option, caught.value.found) == ("splits", ("train", "val"))


def test_splits_without_classes():
    put("train", "test")
    with pytest.raises(SourceError, match="contain images, but no class directories"):
        open_splits("photos")
    assert names_of(open_source("photos", splits="none")) == ("test", "train")


def test_directories_of_splits_that_are_no_splits():
    put("train/Fruit/Banana", "test/Fruit/Banana")
    with pytest.raises(SourceError, match="would be parts of class names"):
        open_source("photos", splits=[])
    source = open_source("photos", splits=[], class_from="path")
    assert names_of(source) == ("test/Fruit/Banana", "train/Fruit/Banana")
    assert names_of(open_source("photos", splits=[], class_from="last")) == ("Banana",)


def test_images_beside_the_splits():
    put("train/owl", "val/owl", ".")
    source = open_splits("photos")
    assert source.notes == ("not read: '.' (2 images at depth 0)",)


def test_empty_directory_of_a_split():
    put("train/owl")
    os.makedirs("photos/val/owl")
    assert list(open_splits("photos")) == ["train"]


# Classes.


def test_nested_classes_of_one_depth():
    put("Greek/alpha", "Greek/beta", "Latin/a")
    assert names_of(open_source("photos")) == ("Greek/alpha", "Greek/beta", "Latin/a")


def test_classes_at_two_depths():
    put("owl", "owl/young", "wren")
    with pytest.raises(SourceError, match="images are at different depths: 'owl'"):
        open_source("photos")
    assert names_of(open_source("photos", class_depth=1)) == ("owl", "wren")
    assert names_of(open_source("photos", class_from="path")) == ("owl", "owl/young", "wren")


def test_directories_of_one_name_are_one_class_on_request():
    put("studio/owl", "outdoor/owl")
    assert names_of(open_source("photos")) == ("outdoor/owl", "studio/owl")
    source = open_source("photos", class_from="last")
    assert names_of(source) == ("owl",)
    assert len({key for key, _ in source.examples}) == 4


def test_images_above_the_class_directories():
    put("owl", "Greek/alpha")
    items = list(open_source("photos", class_depth=2).examples)
    assert [item.path for item in items if isinstance(item, SourceError)] == [
        "photos/owl/0.gif",
        "photos/owl/1.gif",
    ]
    with pytest.raises(SourceError) as caught:
        open_source("photos", class_depth=3)
    assert (caught.value.option, caught.value.found) == ("class_depth", 3)


def test_many_directories_are_shortened():
    put(*(f"class {number:03}" for number in range(100)), "train/owl", count=1)
    with pytest.raises(SourceError) as caught:
        open_source("photos")
    assert caught.value.reason.endswith(" and 93 more")
    assert "'train' (1 image at depth 2)" in caught.value.reason


# Options.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("splits", b"train"),
        ("splits", 3),
        ("splits", ["train", "train"]),
        ("splits", [""]),
        ("class_depth", 0),
        ("class_depth", True),
        ("class_from", "first"),
    ],
)
def test_invalid_options(option, value):
    with pytest.raises(SourceError) as caught:
        open_source(put("owl"), **{option: value})
    assert (caught.value.option, caught.value.found) == (option, value)


def test_option_of_another_format():
    with open("birds.csv", "w") as file:
        file.write("x,label\n1,owl\n2,wren\n")
    with pytest.raises(SourceError, match="the format of this source is 'CSV'") as caught:
        open_source("birds.csv", class_depth=1)
    assert (caught.value.option, caught.value.found) == ("class_depth", 1)


def test_pickled_source():
    source = pickle.loads(pickle.dumps(open_splits(put("train/owl", "val/owl"))))
    assert classes_of(source["val"]) == {"owl/0.gif": "owl", "owl/1.gif": "owl"}
