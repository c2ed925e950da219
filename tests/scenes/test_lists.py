"""Lists of numbers and of dicts, as JSON has them."""

import json

import pytest

import covey
from covey.errors import FeatureError
from covey.sources import open_source


def test_lists_of_numbers_from_json(tmp_path):
    """Integers beside floats, lists of any length, nested lists: stored as typed arrays."""
    rows = [
        {"point": [n, n + 0.5], "tokens": list(range(n % 4)), "box": [[0, 1], [n, 2]], "label": n}
        for n in range(50)
    ]
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    covey.write(open_source(tmp_path / "points.jsonl"), tmp_path / "points", split="train")
    points = covey.open(tmp_path / "points", split="train")
    assert {name: (each.dtype, each.shape) for name, each in points.features.items()} == {
        "point": ("float32", (2,)),
        "tokens": ("int64", (None,)),
        "box": ("int64", (2, 2)),
        "label": ("int64", ()),
    }
    found = sorted(points, key=lambda example: example["label"])
    for row, example in zip(rows, found, strict=True):
        assert {name: value.tolist() for name, value in example.items()} == row


def test_lists_of_dicts(tmp_path):
    """The error shows the form that is stored; TFDS reads it like a Sequence of dicts."""
    import tensorflow_datasets as tfds

    def objects(count):
        return [{"kind": "owl", "box": [0.5, count]}] * count

    with pytest.raises(FeatureError) as caught:
        examples = [{"objects": objects(2), "label": 0}]
        covey.write(examples, tmp_path / "a", split="train", label="label")
    assert caught.value.feature == "objects"
    assert "{'kind': [...], 'box': [...]}" in caught.value.remedy

    def of_lists(count):
        listed = objects(count)
        return {name: [each[name] for each in listed] for name in ("kind", "box")}

    examples = [{"objects": of_lists(count), "label": count} for count in (2, 1, 0)]
    covey.write(examples, tmp_path / "a", split="train", label="label", shuffle=False)
    read = tfds.builder_from_directory(str(tmp_path / "a")).as_dataset(split="train")
    boxes = [example["objects"]["box"].tolist() for example in tfds.as_numpy(read)]
    assert boxes == [[[0.5, 2]] * 2, [[0.5, 1]], []]
