"""Split strings: parsing and error fields. tests/interop/test_splits_tfds.py compares with TFDS."""

import pytest

from covey.errors import DatasetError
from covey.splits import SplitTerm, parse_split, resolve_split

SPLITS = {"train": (4, 6), "test": (1,)}


def resolve(spec, splits=SPLITS):
    return resolve_split(parse_split(spec, splits, "birds"), splits, "birds")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("train", [("train", 0, 10)]),
        ("all", [("train", 0, 10), ("test", 0, 1)]),
        ("train[:80%] + test", [("train", 0, 8), ("test", 0, 1)]),
        ("train[-3:]", [("train", 7, 10)]),
        ("train[1shard]+train[0shard]", [("train", 4, 10), ("train", 0, 4)]),
    ],
)
def test_records_of_a_string(spec, expected):
    assert resolve(spec) == tuple((name, range(*each)) for name, *each in expected)


def test_terms_need_no_lengths():
    terms = parse_split("train[1shard]+test[:50%]", ["train", "test"], "birds")
    assert terms == (
        SplitTerm("train", 1, 2, "shard", "train[1shard]"),
        SplitTerm("test", None, 50.0, "%", "test[:50%]"),
    )


@pytest.mark.parametrize("spec", [None, b"train", 3, ["train"], ("train", "test"), slice(3)])
def test_other_types_are_rejected(spec):
    with pytest.raises(DatasetError) as caught:
        parse_split(spec, SPLITS, "birds")
    assert (caught.value.path, caught.value.option, caught.value.found) == ("birds", "split", spec)
    assert caught.value.allowed == "a string such as 'train[:80%]'"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nix", "split is 'nix'; there is no split 'nix'; the splits are 'train', 'test'"),
        (
            "train+nix[:3]",
            "split is 'train+nix[:3]'; there is no split 'nix'; the splits are 'train', 'test'",
        ),
        (
            "train[3]",
            "split is 'train[3]'; 'train[3]' is not a split, nor a slice such as 'train[:80%]' or "
            "'train[100:]'; the splits are 'train', 'test'",
        ),
        (
            "train[:11]",
            "split is 'train[:11]'; must be a slice from -10 to 10, the size of the split",
        ),
        ("train[:101%]", "split is 'train[:101%]'; must be a slice from -100% to 100%"),
        ("all[:3]", "split is 'all[:3]'; 'all' cannot be sliced; the splits are 'train', 'test'"),
        (
            "test+trian[:3]",
            "split is 'test+trian[:3]'; there is no split 'trian'; the splits are 'train', 'test'; "
            "did you mean 'test+train[:3]'?",
        ),
        (
            "test + train[80%:20%]",
            "split is 'train[80%:20%]'; it selects the records from 8 to 2, which are none",
        ),
    ],
)
def test_message(spec, message):
    with pytest.raises(DatasetError) as caught:
        resolve(spec)
    assert str(caught.value) == f"birds: {message}"


@pytest.mark.parametrize(
    "spec", ["train[5:5]", "train[:0]", "train[10:]", "train[:4%]", "train[9shard]", "train[-2:-3]"]
)
def test_a_slice_without_records_is_an_error(spec):
    with pytest.raises(DatasetError, match="which are none") as caught:
        resolve(spec)
    assert (caught.value.option, caught.value.found) == ("split", spec)


def test_a_slice_of_a_split_without_records():
    assert resolve("train[:50%]", {"train": (0, 0)}) == (("train", range(0)),)


@pytest.mark.parametrize("spec", ["all", "train"])
def test_a_dataset_without_splits(spec):
    with pytest.raises(DatasetError, match=f"there is no split '{spec}'"):
        resolve(spec, {})
