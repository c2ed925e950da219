"""Metadata of TFDS: supervised keys, version directories, and the recipe for external TFRecords."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image as Pillow

import covey
from covey.cli import main
from covey.dataset_info import DatasetInfo
from covey.errors import FormatError

TEMPLATES = {
    "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}": "{split}-{shard:05}-of-{shards:05}.tfrecord",
    "data_{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}": "data_{split}.tfrecord-{shard:05}",
    "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}": (
        "birds-{split}.tfrecord-{shard:05}-of-{shards:05}"
    ),
}
FEATURES = tfds.features.FeaturesDict(
    {
        "x": tfds.features.Tensor(shape=(2,), dtype=np.float32),
        "family": tfds.features.ClassLabel(names=["strix", "corvus"]),
        "species": tfds.features.ClassLabel(names=["owl", "crow", "jay"]),
    }
)


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tfds.disable_progress_bar()


def keys_of(path):
    return tfds.builder_from_directory(path).info.supervised_keys


def pairs_of(path, split="train"):
    """Return what TFDS yields with as_supervised=True."""
    dataset = tfds.builder_from_directory(path).as_dataset(split=split, as_supervised=True)
    return [(x, y.item()) for x, y in tfds.as_numpy(dataset)]


# Supervised keys.


def test_images_as_supervised():
    for name in ("owl", "wren"):
        os.makedirs(f"photos/{name}")
        for n in range(3):
            Pillow.new("RGB", (4, 3), (n, 0, 0)).save(f"photos/{name}/{n}.png")
    assert main(["write", "photos", "out", "--split", "train"]) == 0
    assert keys_of("out") == ("image", "label")
    pairs = pairs_of("out")
    assert {x.shape for x, _ in pairs} == {(3, 4, 3)}
    assert sorted(y for _, y in pairs) == [0, 0, 0, 1, 1, 1]


def test_texts_as_supervised():
    with open("banking.csv", "w") as file:
        file.write("id,text,category\n")
        file.writelines(f"{n},question {n},{'card' if n % 2 else 'rate'}\n" for n in range(6))
    assert main(["write", "banking.csv", "out", "--split", "train", "--label", "category"]) == 0
    assert keys_of("out") == ("text", "category")
    assert sorted(x for x, _ in pairs_of("out")) == [f"question {n}".encode() for n in range(6)]


def test_load_by_name_and_version():
    examples = [{"x": [n, 0.5], "species": "owl"} for n in range(4)]
    covey.write(examples, "data/birds/1.0.0", split="train", label="species")
    dataset = tfds.load("birds", split="train", data_dir="data", as_supervised=True)
    assert sorted(x[0].item() for x, _ in tfds.as_numpy(dataset)) == [0, 1, 2, 3]
    covey.write(examples[:2], "data/birds/1.1.0", split="train", label="species")
    dataset = tfds.load("birds:1.0.0", split="train", data_dir="data")
    assert len(dataset) == 4
    with covey.open("data/birds", split="train") as ds:  # the newest version
        assert len(ds) == 2


@pytest.mark.parametrize(
    ("example", "label", "expected"),
    [
        ({"x": 1.5, "y": 2.5, "label": "owl"}, "label", None),
        ({"x": 1.5, "label": "owl"}, None, None),
        ({"a": {"x": 1.5}, "label": "owl"}, "label", None),
        ({"x": 1.5, "a": {"label": "owl"}}, "a/label", None),
        ({"x": 1.5, "id": 7, "label": 3}, "label", ("x", "label")),
        ({"id": 7, "label": "owl"}, "label", ("id", "label")),
    ],
)
def test_keys_of_features(example, label, expected):
    covey.write([example], "out", split="train", label=label)
    assert keys_of("out") == expected
    assert len(list(tfds.builder_from_directory("out").as_dataset(split="train"))) == 1


def test_keys_of_another_write():
    covey.write([{"x": 1, "label": 0}], "out", split="train", label="label")
    covey.write([{"x": 2, "label": 1}], "out", split="test", label="label")
    assert keys_of("out") == ("x", "label")
    covey.write([{"x": 2, "label": 1}], "out", split="test", label="label", mode="append")
    assert keys_of("out") == ("x", "label")
    for features in ({"a": 1, "b": 2, "label": 0}, {"z": 1.5, "label": 0}):
        covey.write([features], "one", split="train", label="label", mode="overwrite")
    assert keys_of("one") == ("z", "label")
    covey.write([{"a": 1, "b": 2, "c": 0}], "one", split="train", label="c", mode="overwrite")
    assert keys_of("one") is None


# The recipe for external TFRecords.


def put_records(template, split="train", shards=2, count=3):
    os.makedirs("records/2.0.0", exist_ok=True)
    for shard in range(shards):
        name = TEMPLATES[template].format(split=split, shard=shard, shards=shards)
        with tf.io.TFRecordWriter(f"records/2.0.0/{name}") as writer:
            for n in range(count):
                example = {"x": [shard, n], "family": n % 2, "species": n}
                writer.write(FEATURES.serialize_example(example))


def write_metadata(template, **options):
    tfds.folder_dataset.write_metadata(
        data_dir="records/2.0.0",
        features=FEATURES,
        split_infos=tfds.folder_dataset.compute_split_info(
            filename_template=tfds.core.ShardedFileTemplate(
                data_dir="records/2.0.0", template=template, filetype_suffix="tfrecord"
            )
        ),
        filename_template=template,
        **options,
    )


@pytest.mark.parametrize("template", TEMPLATES)
def test_external_records(template):
    if "SHARD_INDEX" in template:
        put_records(template, shards=1)
    else:
        put_records(template)
        put_records(template, split="test", shards=1)
    write_metadata(template, supervised_keys=("x", "species"))
    content = json.loads(Path("records/2.0.0/dataset_info.json").read_text())
    assert ("name" in content) == ("DATASET" in template)
    builder = tfds.builder_from_directory("records/2.0.0")
    for split in builder.info.splits:
        options = tfds.ReadConfig(interleave_cycle_length=1)
        theirs = builder.as_dataset(split=split, read_config=options)
        with covey.open("records/2.0.0", split=split) as ds:
            assert ds.label == "species"
            assert tuple(ds.classes) == ("owl", "crow", "jay")
            for ours, other in zip(ds, tfds.as_numpy(theirs), strict=True):
                assert ours.keys() == other.keys()
                assert all(np.array_equal(ours[name], other[name]) for name in ours)
            batch, y = next(iter(ds.batches(3, 1, seed=1, select="x")))
            assert (batch.shape, sorted(y)) == ((3, 2), [0, 1, 2])
    assert covey.info("records/2.0.0").splits[0].label == "species"
    assert covey.verify("records/2.0.0").is_valid


def test_add_a_split_to_external_records():
    template = next(iter(TEMPLATES))
    put_records(template)
    write_metadata(template, supervised_keys=("family", "species"))
    example = {"x": [9, 9], "family": 0, "species": "jay"}
    result = covey.write([example], "records/2.0.0", split="test")
    assert result.label == "species"
    builder = tfds.builder_from_directory("records/2.0.0")
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        "train": 6,
        "test": 1,
    }
    assert builder.info.supervised_keys == ("family", "species")  # as they were
    assert builder.info.full_name == "records/2.0.0"
    assert [y for _, y in pairs_of("records/2.0.0", "test")] == [2]


# The file.


def info_of(**fields):
    content = {"version": "1.0.0", **fields}
    return DatasetInfo.from_json(json.dumps(content), "data/birds/dataset_info.json")


def test_a_file_without_a_name():
    template = "{SPLIT}-{SHARD_INDEX}"
    split = {"name": "train", "shardLengths": ["1"], "filepathTemplate": template}
    for name in ({}, {"name": ""}, {"name": None}):
        assert info_of(splits=[split], **name).name == "birds"
    with pytest.raises(FormatError, match="the name of the dataset is missing") as caught:
        info_of(splits=[{"name": "train", "shardLengths": ["1"]}])
    assert caught.value.path == "data/birds/dataset_info.json"


@pytest.mark.parametrize(
    ("keys", "label"),
    [
        ({"tuple": {"items": [{"featureKey": "x"}, {"featureKey": "y"}]}}, "y"),
        ({"tuple": {"items": [{"feature_key": "x"}, {"feature_key": "y"}]}}, "y"),
        ({"tuple": {"items": [{"featureKey": n} for n in "xyz"]}}, "y"),
        ({"tuple": {"items": [{"dict": {"dict": {}}}, {"featureKey": "y"}]}}, "y"),
        ({"input": "x", "output": "y"}, "y"),
        ({"tuple": {"items": [{"featureKey": "x"}, {"tuple": {}}]}}, None),
        ({"tuple": {"items": [{"featureKey": "x"}]}}, None),
        ({"tuple": {"items": [1, 2]}}, None),
        ({"tuple": {"items": {"featureKey": 3}}}, None),
        ({"tuple": []}, None),
        ({"output": 3}, None),
        ([], None),
        ("xy", None),
        (3, None),
    ],
)
def test_structures_of_supervised_keys(keys, label):
    info = info_of(name="birds", supervisedKeys=keys)
    assert (info.supervised_label, info.has_supervised_keys) == (label, True)
    assert json.loads(info.to_json())["supervisedKeys"] == keys
    assert info_of(name="birds", supervised_keys=keys) == info
    assert info.with_supervised_keys(("a", "b")).supervised_label == "b"
    assert not info.with_supervised_keys(None).has_supervised_keys


@pytest.mark.parametrize("name", ["missing", "x"])
def test_a_label_that_is_not_valid(name):
    template = next(iter(TEMPLATES))
    put_records(template)
    write_metadata(template, supervised_keys=("x", name))
    with covey.open("records/2.0.0", split="train") as ds:
        assert ds.label == "species"  # a common name; the declared one is ignored


def test_the_index_has_the_features_as_well():
    """features.json and the label files are read where there is no index, and by verify."""
    examples = [{"x": 1.5, "label": "owl"}, {"x": 2.5, "label": "wren"}]
    expected = covey.write(examples, "out", split="train", label="label").features
    Path("out/features.json").write_text("{")
    with covey.open("out") as ds:
        assert ds.features == expected
    assert "features.json" in str(covey.verify("out", progress=False))
    Path("out/out-train.index.json").unlink()
    with pytest.raises(FormatError, match=r"features\.json: .*not valid JSON"):
        covey.open("out")
