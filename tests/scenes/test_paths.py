"""Paths as bytes, arrays, tensors and pathlib objects, wherever a path is an argument."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import covey
from covey.errors import CoveyError, DatasetError
from covey.samplers import (
    MultiShotFileSampler,
    TFDatasetMultiShotMemorySampler,
    TFRecordDatasetSampler,
    load_image,
)
from covey.sources import open_source
from covey.writer import TFRecordWriter

FEATURES = covey.Features({"x": "int64", "label": "int64"})
EXAMPLES = [{"x": number, "label": number % 2} for number in range(8)]

ONE = {
    "str": str,
    "Path": Path,
    "bytes": lambda path: str(path).encode(),
    "np.str_": lambda path: np.str_(path),
    "np.bytes_": lambda path: np.bytes_(str(path).encode()),
    "object array": lambda path: np.array(str(path).encode(), object),
    "string array": lambda path: np.array(str(path)),
    "tf.constant": lambda path: tf.constant(str(path)),
}
MANY = {
    "list of bytes": lambda paths: [str(path).encode() for path in paths],
    "bytes array": lambda paths: np.array([str(path).encode() for path in paths]),
    "object array": lambda paths: np.array([str(path).encode() for path in paths], object),
    "string array": lambda paths: np.array(list(map(str, paths))),
    "tf.constant": lambda paths: tf.constant(list(map(str, paths))),
    "list of tensors": lambda paths: [tf.constant(str(path)) for path in paths],
    "generator of paths": lambda paths: (path for path in paths),
}


@pytest.fixture(params=ONE.values(), ids=ONE)
def one(request):
    return request.param


@pytest.fixture(params=MANY.values(), ids=MANY)
def many(request):
    return request.param


@pytest.fixture
def shards(tmp_path):
    paths = [tmp_path / "shards" / f"bird {number} é.tfrec" for number in range(2)]
    paths[0].parent.mkdir()
    for path in paths:
        with covey.RecordWriter(path) as writer:
            for example in EXAMPLES:
                writer.write(FEATURES.encode(example))
    return paths


def parse(record):
    parsed = {name: tf.io.FixedLenFeature([], tf.int64) for name in ("x", "label")}
    example = tf.io.parse_single_example(record, parsed)
    return example["x"], example["label"]


def test_one_path(one, shards, tmp_path):
    directory, shard = one(shards[0].parent), one(shards[0])
    with covey.open(directory, progress=False) as ds:
        assert len(ds) == 16
    with covey.open(shard, progress=False) as ds:
        assert len(ds) == 8
    assert sum(split.records for split in covey.info(directory).splits) == 16
    assert covey.verify(shard, progress=False).is_valid
    (built,) = covey.build_index(shard, to_dali=one(tmp_path / "idx"), progress=False)
    assert built.exported == (str(tmp_path / "idx" / "bird 0 é.idx"),)
    assert covey.repair(shard, one(tmp_path / "repaired"), progress=False).records == 8
    assert len(list(open_source(shard).examples)) == 8
    x, _ = next(iter(TFRecordDatasetSampler(directory, parse, 2, 4, label="label")))
    assert len(x) == 4


def test_one_path_to_write(one, tmp_path):
    target = tmp_path / "written"
    covey.write(EXAMPLES, one(target), split="train", label="label", progress=False)
    sampler = TFDatasetMultiShotMemorySampler(
        one(target), 2, "x", splits="train", framework="numpy"
    )
    assert len(sampler[0][0]) == 4
    with covey.RecordWriter(one(tmp_path / "x.tfrecord")) as writer:
        writer.write(b"one")
    with covey.RecordWriter(one(tmp_path / "x.tfrecord"), append=True) as writer:
        writer.write(b"two")
    with covey.RecordReader(one(tmp_path / "x.tfrecord")) as reader:
        assert list(reader) == [b"one", b"two"]
    TFRecordWriter(
        lambda split: enumerate(EXAMPLES), FEATURES.encode, one(tmp_path / "datum"), "train", 8
    ).create_records()
    assert (tmp_path / "datum" / "shard_info.json").exists()


def test_many_paths(many, shards):
    with covey.open(many(shards), progress=False) as ds:
        assert len(ds) == 16
    assert covey.verify(many(shards), progress=False).is_valid
    assert sum(split.records for split in covey.info(many(shards)).splits) == 16


def test_file_sampler(many, tmp_path):
    paths = [tmp_path / f"bird{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        Image.fromarray(np.full((4, 4, 3), 40 * number, np.uint8)).save(path)
    x = many(paths)
    sampler = MultiShotFileSampler(x if hasattr(x, "__len__") else list(x), [0, 1] * 3)
    images, y = map(np.asarray, sampler[0])
    assert images.shape == (4, 4, 4, 3)
    numbers = np.rint(images[:, 0, 0, 0] * 255 / 40).astype(int)
    assert (numbers % 2 == y).all()


def test_load_image(one, tmp_path):
    Image.fromarray(np.full((4, 4, 3), 255, np.uint8)).save(tmp_path / "bird.png")
    assert load_image(one(tmp_path / "bird.png")).min() == 1
    with pytest.raises(FileNotFoundError):
        load_image(one(tmp_path / "none.png"))


def test_a_name_that_is_not_utf8(tmp_path):
    path = bytes(tmp_path) + b"/\xff.tfrecord"
    with covey.RecordWriter(path) as writer:
        writer.write(FEATURES.encode(EXAMPLES[0]))
    with covey.open(path, progress=False) as ds:
        assert len(ds) == 1


WRONG = [
    5,
    1.5,
    True,
    None,
    object(),
    np.array(5),
    np.array([[b"a"]]),
    tf.constant(5),
    [5],
    [b"a", 5],
]


@pytest.mark.parametrize("path", WRONG, ids=lambda path: type(path).__name__)
@pytest.mark.parametrize(
    ("function", "option"),
    [
        (covey.open, "path"),
        (covey.info, "path"),
        (covey.verify, "path"),
        (covey.build_index, "path"),
        (lambda path: covey.repair("x", output=[path]), "output"),
        (lambda path: covey.write(EXAMPLES, path, split="train"), "path"),
        (open_source, "path"),
        (load_image, "path"),
        (lambda path: TFRecordDatasetSampler(path, parse), "shard_path"),
        (lambda path: TFDatasetMultiShotMemorySampler(path, 2), "dataset_name"),
        (covey.RecordReader, "source"),
        (covey.RecordWriter, "target"),
    ],
)
def test_other_types(function, option, path, shards, monkeypatch):
    monkeypatch.chdir(shards[0].parent)
    (shards[0].parent / "x").symlink_to(shards[0])
    with pytest.raises(DatasetError) as raised:
        function(path)
    assert raised.value.option == option
    assert isinstance(raised.value, CoveyError)
    assert len(str(raised.value)) < 200


def test_paths_that_lost_a_slash():
    with pytest.raises(CoveyError) as raised:
        covey.open(Path("s3://bucket/birds"))
    assert raised.value.remedy == "pass a str"
