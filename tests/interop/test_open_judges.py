"""covey.open has the same examples in the same order as TensorFlow, TFDS and datum."""

import gzip
import io
import json
import shutil
import struct
import warnings

import datum_reader
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from opened import opened
from schemas import agree, same
from test_tfds_features import neutral
from written import shard_paths, write

import covey
from covey import Image
from covey.errors import CorruptRecordError, DatasetError

tf.config.set_visible_devices([], "GPU")
T = tfds.features


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))


# TFRecord files that TensorFlow wrote.


def values(n):
    """Return the features of the n-th example; one feature is optional."""
    rng = np.random.default_rng(n)
    return {
        "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[n - 3])),
        "vector": tf.train.Feature(float_list=tf.train.FloatList(value=rng.random(4))),
        "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"é{n}".encode()])),
        "list": tf.train.Feature(int64_list=tf.train.Int64List(value=range(n % 4))),
        "words": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[b"w" * k for k in range(n % 3)])
        ),
        **({"maybe": tf.train.Feature(float_list=tf.train.FloatList(value=[n]))} if n % 2 else {}),
    }


def record(n):
    return tf.train.Example(features=tf.train.Features(feature=values(n))).SerializeToString()


SPEC = {
    "number": tf.io.FixedLenFeature([], tf.int64),
    "vector": tf.io.FixedLenFeature([4], tf.float32),
    "text": tf.io.FixedLenFeature([], tf.string),
    "list": tf.io.RaggedFeature(tf.int64),
    "words": tf.io.RaggedFeature(tf.string),
    "maybe": tf.io.RaggedFeature(tf.float32),
}


def put(path, records, compression=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for each in records:
            writer.write(each)
    return path


def by_tensorflow(paths, compressions):
    """Return the records that TensorFlow reads from files."""
    found = []
    for path, compression in zip(paths, compressions, strict=True):
        found += tf.data.TFRecordDataset(str(path), compression).as_numpy_iterator()
    return found


def parsed(records):
    """Return the columns of records."""
    columns = tf.io.parse_example(tf.constant(records), SPEC)
    return {name: neutral(column) for name, column in columns.items()}


def check(ds, records):
    """Compare the examples of a dataset with records, for every kind of key."""
    columns = parsed(records)
    assert ds.raw[:] == records
    assert {name: neutral(column) for name, column in ds[:].items()} == columns
    order = np.random.default_rng(0).integers(-len(records), len(records), 40)
    for name, column in ds[order].items():
        assert neutral(column) == [columns[name][n] for n in order]
    for n in order[:10].tolist():
        assert {name: neutral(each) for name, each in ds[n].items()} == {
            name: column[n] for name, column in columns.items()
        }
    assert [neutral(each["number"]) for each in ds] == columns["number"]


def test_files_of_tensorflow(tmp_path):
    parts = {
        "a.tfrecord": ("", range(20)),
        "b.tfrecords": ("", range(20, 25)),
        "c.tfrec": ("", []),
        "d.tfrecord.gz": ("GZIP", range(25, 40)),
        "e.gz": ("GZIP", []),
        "f.tfrecord": ("GZIP", range(40, 45)),
        "g.tfrecord": ("ZLIB", range(45, 60)),
        "sub/h.tfrecord-00000-of-00001": ("", range(60, 66)),
    }
    directory = tmp_path / "data"
    paths = [put(directory / name, map(record, part), how) for name, (how, part) in parts.items()]
    hows = [how for how, _ in parts.values()]
    records = by_tensorflow(paths, hows)
    assert len(records) == 66
    for ds in (opened(directory), opened(paths), opened(str(directory), mmap=False)):
        check(ds, records)
    check(
        opened(f"{directory}/*.tfrecord"),
        by_tensorflow([paths[n] for n in (0, 5, 6)], ["", "GZIP", "ZLIB"]),
    )
    check(opened(list(reversed(paths))), by_tensorflow(reversed(paths), reversed(hows)))
    for path, how in zip(paths, hows, strict=True):
        found = by_tensorflow([path], [how])
        assert opened(path).raw[:] == found
    assert list(opened(directory, label="text").classes) == sorted(f"é{n}" for n in range(66))


@pytest.mark.parametrize("how", ["GZIP", "ZLIB"])
def test_long_stream_of_tensorflow(tmp_path, how):
    pad = np.random.default_rng(0).bytes(4000)
    records = []
    for n in range(1500):
        feature = {**values(n), "pad": tf.train.Feature(bytes_list=tf.train.BytesList(value=[pad]))}
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        records.append(example.SerializeToString())
    path = put(tmp_path / "data/x.tfrecord.gz", records, how)
    ds = opened(path)
    order = np.random.default_rng(1).permutation(1500)[:50].tolist()
    assert ds.raw[order] == [records[n] for n in order]
    found = ds[order]
    expected = parsed([records[n] for n in order])
    assert all(neutral(found[name]) == expected[name] for name in expected)
    assert found["pad"].tolist() == [pad] * 50


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content + gzip.compress(b""),
        lambda content: content * 3,
        lambda content: gzip.compress(gzip.decompress(content), 0),
    ],
    ids=["an empty member", "several members", "stored"],
)
def test_gzip_members_that_tensorflow_reads(tmp_path, change):
    path = put(tmp_path / "x.tfrecord.gz", map(record, range(20)), "GZIP")
    path.write_bytes(change(path.read_bytes()))
    check(opened(path), by_tensorflow([path], ["GZIP"]))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content + bytes(512),
        lambda content: content + b"some more",
    ],
    ids=["zeros", "garbage"],
)
def test_gzip_files_that_tensorflow_rejects(tmp_path, change):
    path = put(tmp_path / "x.tfrecord.gz", map(record, range(20)), "GZIP")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(tf.errors.DataLossError):
        by_tensorflow([path], ["GZIP"])
    with pytest.raises(CorruptRecordError, match=r"x.tfrecord.gz: record"):
        opened(path)


# SequenceExamples.


def sequence(n):
    example = tf.train.SequenceExample()
    example.context.feature["label"].int64_list.value.append(n % 3)
    example.context.feature["name"].bytes_list.value.append(f"bird {n}".encode())
    for step in range(n % 4):
        frame = example.feature_lists.feature_list["frames"].feature.add()
        frame.float_list.value.extend([step, n])
        words = example.feature_lists.feature_list["words"].feature.add()
        words.bytes_list.value.extend([b"w"] * (step % 3))
    return example.SerializeToString()


CONTEXT = {
    "label": tf.io.FixedLenFeature([], tf.int64),
    "name": tf.io.FixedLenFeature([], tf.string),
}
LISTS = {
    "frames": tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
    "words": tf.io.RaggedFeature(tf.string),
}


def test_sequence_examples(tmp_path):
    path = put(tmp_path / "data/x.tfrecord", map(sequence, range(3, 20)))
    ds = opened(path)
    assert ds.classes.counts.tolist() == [6, 6, 5]
    for n, each in enumerate(tf.data.TFRecordDataset(str(path))):
        context, lists = tf.io.parse_single_sequence_example(each, CONTEXT, LISTS)
        found = ds[n]
        assert (found["label"], found["name"]) == (
            context["label"].numpy(),
            context["name"].numpy(),
        )
        assert same(neutral(found["frames"]), neutral(lists["frames"]))
        assert neutral(found["words"]) == neutral(lists["words"])
        assert ds.raw[n] == each.numpy()
    assert neutral(ds[[5, 2]]["frames"]) == [neutral(ds[5]["frames"]), neutral(ds[2]["frames"])]


# Shards with the index files of DALI.


def dali_index(path):
    """Return the index of DALI's tfrecord2idx: offset and size of every frame."""
    lines, offset, content = [], 0, path.read_bytes()
    while offset < len(content):
        (length,) = struct.unpack_from("<Q", content, offset)
        lines.append(f"{offset} {length + 16}\n")
        offset += length + 16
    return "".join(lines)


@pytest.mark.parametrize("place", ["{}.idx", "idx/{}.idx", "{}_idx.txt"])
def test_shards_of_dali(tmp_path, place):
    directory = tmp_path / "data"
    paths = [put(directory / f"train-{n}.tfrecord", map(record, range(n, n + 9))) for n in range(3)]
    for path in paths:
        index = directory / place.format(path.stem)
        index.parent.mkdir(exist_ok=True)
        index.write_text(dali_index(path))
    ds = opened(directory)
    check(ds, by_tensorflow(paths, [""] * 3))
    check(opened(directory, split="train[1shard]"), by_tensorflow(paths[1:2], [""]))
    covey.build_index(directory, progress=False)
    rows = np.load(next(directory.glob("covey-*.index.npy")))
    frames = [f"{row['offset']} {row['length'] + 16}\n" for row in rows]
    assert "".join(frames) == "".join(map(dali_index, paths))


# Datasets of covey.


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_tensorflow_reads_datasets_of_covey(tmp_path, compression):
    examples = [{"x": n, "v": [n, 0.5], "name": f"é{n}", "label": f"c{n % 7}"} for n in range(500)]
    write(examples, tmp_path / "set", label="label", shards=4, compression=compression, seed=3)
    ds = opened(tmp_path / "set")
    paths = shard_paths(tmp_path / "set")
    records = by_tensorflow(paths, [compression or ""] * 4)
    assert ds.raw[:] == records
    spec = {
        "x": tf.io.FixedLenFeature([], tf.int64),
        "v": tf.io.FixedLenFeature([2], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    theirs = tf.io.parse_example(tf.constant(records), spec)
    order = np.random.default_rng(1).permutation(500)
    for name, column in ds[order].items():
        assert agree(neutral(column), neutral(tf.gather(theirs[name], order)))
    assert ds.labels.tolist() == theirs["label"].numpy().tolist()


# Datasets of TFDS.


def picture(n, shape, format):
    out = io.BytesIO()
    pixels = np.random.default_rng(n).integers(0, 255, shape, np.uint8)
    smooth = np.cumsum(pixels.astype(np.int64), 0) // 20 % 255
    PIL.Image.fromarray(smooth.astype(np.uint8).squeeze()).save(out, format)
    out.seek(0)
    return out


class Birds(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset written by TFDS."""

    name = "birds"
    VERSION = tfds.core.Version("1.2.0")
    SUPPORTED_VERSIONS = [tfds.core.Version("1.10.0")]
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name="large"),
        tfds.core.BuilderConfig(name="small"),
    ]

    def _info(self):
        features = {
            "image": T.Image(shape=(None, None, 3)),
            "photo": T.Image(shape=(8, 8, 3), encoding_format="jpeg"),
            "grey": T.Image(shape=(6, 5, 1)),
            "label": T.ClassLabel(names=["owl", "wren", "jay"]),
            "name": T.Text(),
            "number": T.Scalar(np.int64),
            "vector": T.Tensor(shape=(3,), dtype=np.float32),
            "any": T.Tensor(shape=(None, 2), dtype=np.int32),
            "flag": T.Scalar(np.bool_),
            "wide": T.Tensor(shape=(2,), dtype=np.float64, encoding=T.Encoding.BYTES),
            "box": T.BBoxFeature(),
            "nest": {"eggs": T.Scalar(np.uint8), "deep": {"word": T.Text()}},
            "songs": T.Sequence(T.Sequence(T.Scalar(np.int64))),
            "things": T.Sequence(
                {"kind": T.ClassLabel(num_classes=5), "size": T.Scalar(np.float32)}
            ),
        }
        return tfds.core.DatasetInfo(builder=self, features=T.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        counts = {"train": 100, "test": 13, "validation": 5}
        if self.builder_config.name == "small":
            counts = {"train": 10}
        return {split: self._generate_examples(split, count) for split, count in counts.items()}

    def _generate_examples(self, split, count):
        for k in range(count):
            n = k + 1000 * (split == "test") + 5000 * (self.builder_config.name == "small")
            yield (
                n,
                {
                    "image": picture(n, (4 + n % 3, 5, 3), "png"),
                    "photo": picture(n, (8, 8, 3), "jpeg"),
                    "grey": picture(n, (6, 5, 1), "png"),
                    "label": n % 3,
                    "name": f"é{n}",
                    "number": n,
                    "vector": np.array([n, 0.5, -n], np.float32),
                    "any": np.arange(2 * (n % 4), dtype=np.int32).reshape(-1, 2),
                    "flag": n % 2 == 0,
                    "wide": np.array([n / 3, np.pi]),
                    "box": T.BBox(0.1, 0.2, 0.5, 0.2 + n / 10000),
                    "nest": {"eggs": n % 200, "deep": {"word": "w" * (n % 5)}},
                    "songs": [list(range(k)) for k in range(n % 4)],
                    "things": [{"kind": k, "size": k + n} for k in range(n % 3)],
                },
            )


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """birds/{large,small}/{1.2.0,1.10.0}, written by TFDS; train of large has 4 shards."""
    tfds.disable_progress_bar()
    root = tmp_path_factory.mktemp("tfds")
    options = tfds.download.DownloadConfig(num_shards=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Birds(data_dir=root, config="large").download_and_prepare(download_config=options)
        for version in ("1.2.0", "1.10.0"):
            Birds(data_dir=root, config="small", version=version).download_and_prepare()
    return root / "birds"


@pytest.fixture(scope="module")
def large(shelf):
    directory = shelf / "large/1.2.0"
    assert len(list(directory.glob("birds-train.tfrecord-*"))) == 4
    return directory


IMAGES = ("image", "photo", "grey")


def as_tfds(directory, split, *, decode=False):
    """Return the examples that TFDS reads, in order."""
    builder = tfds.builder_from_directory(directory)
    config = tfds.ReadConfig(interleave_cycle_length=1)
    skipped = None if decode else dict.fromkeys(IMAGES, tfds.decode.SkipDecoding())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = builder.as_dataset(split=split, read_config=config, decoders=skipped)
        return [neutral(each) if not decode else each for each in found]


@pytest.fixture(scope="module")
def theirs(large):
    return {split: as_tfds(large, split) for split in ("train", "test", "validation")}


@pytest.mark.parametrize("split", ["train", "test", "validation"])
def test_dataset_of_tfds(large, theirs, split):
    expected = theirs[split]
    ds = opened(large, split=split)
    assert len(ds) == len(expected)
    for n, each in enumerate(ds):
        assert agree(neutral(each), expected[n])
    for n in range(0, len(ds), 7):
        assert agree(neutral(ds[n]), expected[n])
    order = np.random.default_rng(0).integers(0, len(ds), 30)
    columns = neutral(ds[order])
    for name in ("number", "name", "label", "vector", "any", "songs", "wide", "box", "image"):
        assert agree(columns[name], [expected[n][name] for n in order])
    assert columns["nest"]["deep"]["word"] == [expected[n]["nest"]["deep"]["word"] for n in order]


def test_classes_of_tfds(large, theirs):
    ds = opened(large, split="train")
    labels = [each["label"] for each in theirs["train"]]
    assert ds.label == "label"
    assert ds.labels.tolist() == labels
    assert tuple(ds.classes) == ("owl", "wren", "jay")
    assert ds.classes.counts.tolist() == [labels.count(label) for label in range(3)]
    jays = [each["number"] for each in theirs["train"] if each["label"] == 2]
    assert ds.where(label="jay")[:]["number"].tolist() == jays
    named = opened(large, split="train", label="name")
    assert [named.class_names[label] for label in named.labels] == [
        each["name"].decode() for each in theirs["train"]
    ]


def test_images_of_tfds(large):
    expected = as_tfds(large, "train[:20]", decode=True)
    ds = opened(large, split="train[:20]", decode_images=True)
    for found, each in zip(ds, expected, strict=True):
        for name in ("image", "grey"):
            assert found[name].dtype == np.uint8
            assert (found[name] == each[name].numpy()).all()
        # Decoders of JPEG may differ by rounding.
        assert np.abs(found["photo"].astype(int) - each["photo"].numpy()).max() <= 3
    columns = ds[:]
    assert columns["photo"].shape == (20, 8, 8, 3)
    assert columns["grey"].shape == (20, 6, 5, 1)
    shapes = [each["image"].shape for each in expected]
    assert [each.shape for each in columns["image"]] == shapes
    assert len(set(shapes)) == 3
    assert isinstance(ds.features["image"], Image)


# test_splits_tfds.py has all strings.
@pytest.mark.parametrize(
    "split", ["train[33%:66%]", "train[95:]+test[:3]", "all", "train[-2shard:]+validation"]
)
def test_split_strings_of_tfds(large, split):
    expected = [each["number"] for each in as_tfds(large, split)]
    ds = opened(large, split=split)
    assert ds.columns("number")["number"].tolist() == expected
    assert [each["number"] for each in ds.select(slice(0, None, 9))] == expected[::9]
    assert ds.labels.tolist() == [n % 3 for n in expected]


def test_versions_and_configs_of_tfds(shelf):
    newest = as_tfds(shelf / "small/1.10.0", "train")
    ds = opened(shelf / "small")
    assert agree([neutral(each) for each in ds], newest)
    assert len(opened(shelf / "large", split="train")) == 100
    with pytest.raises(DatasetError, match=r"large.*small"):
        opened(shelf)


def test_tfds_reads_its_dataset_after_covey_opened_it(large, theirs, tmp_path):
    directory = tmp_path / "birds" / "1.2.0"
    shutil.copytree(large, directory)
    opened(directory, split="all")
    assert agree(as_tfds(directory, "test"), theirs["test"])


def test_declared_features_of_tfds(large, theirs):
    ds = opened(large, split="test", features={"number": "int64", "name": "str"})
    found = [{"number": int(each["number"]), "name": each["name"].encode()} for each in ds]
    assert found == [{name: each[name] for name in ("number", "name")} for each in theirs["test"]]


def test_shard_of_tfds_that_changed(large, tmp_path):
    directory = tmp_path / "birds/1.2.0"
    shutil.copytree(large, directory)
    path = sorted(directory.glob("birds-train*tfrecord-*"))[2]
    opened(directory, split="train")
    content = path.read_bytes()
    records = by_tensorflow([path], [""])
    put(path, records[:-1])
    with pytest.raises(DatasetError, match=path.name):
        opened(directory, split="train")
    put(path, records[::-1])
    ds = opened(directory, split="train")
    at = sum(
        len(by_tensorflow([each], [""]))
        for each in sorted(directory.glob("birds-train.tfrecord-*"))[:2]
    )
    assert ds.raw[at : at + len(records)] == records[::-1]
    path.write_bytes(content)
    assert opened(directory, split="train").raw[at] == records[0]


# Datasets of datum.


def test_directory_of_datum(tmp_path):
    directory = tmp_path / "birds"
    shards = {
        "train": {"train_0.tfrec": range(5), "train_1.tfrec": range(5, 9)},
        "val": {"v": range(9, 11)},
    }
    for files in shards.values():
        for name, part in files.items():
            put(directory / name, map(datum_record, part))
    info = {
        split: {name: len(part) for name, part in files.items()} for split, files in shards.items()
    }
    (directory / "shard_info.json").write_text(json.dumps(info))
    mapping = {
        "image": {"type": "string", "shape": [None, None, 3], "dense": True},
        "label": {"type": "int", "shape": [], "dense": True},
        "vector": {"type": "float", "shape": [3], "dense": True},
        "grid": {"type": "int", "shape": [2, 2], "dense": True},
        "tags": {"type": "int", "shape": [None], "dense": False},
        "name": {"type": "string", "shape": [], "dense": True},
    }
    (directory / "datum_to_type_and_shape_mapping.json").write_text(json.dumps(mapping))
    for split, files in shards.items():
        expected = datum_reader.read(directory, split)
        ds = opened(directory, split=split, decode_images=True)
        assert len(ds) == len(expected) == sum(map(len, files.values()))
        assert ds.label == "label"
        for found, each in zip(ds, expected, strict=True):
            assert set(found) == set(each)
            for name in set(each) - {"image"}:
                assert same(neutral(found[name]), neutral(each[name]))
            assert np.abs(found["image"].astype(int) - each["image"]).max() <= 3
    assert opened(directory, split="train[:50%]+val").labels.tolist() == [
        n % 3 for n in (0, 1, 2, 3, 9, 10)
    ]
    (directory / "train_1.tfrec").unlink()
    with pytest.raises(DatasetError, match=r"train_1.tfrec: the shard is missing"):
        opened(directory, split="train")


def datum_record(n):
    feature = {
        "image": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[picture(n, (8, 6 + n % 2, 3), "jpeg").read()])
        ),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[n % 3])),
        "vector": tf.train.Feature(float_list=tf.train.FloatList(value=[n, 0.5, 1])),
        "grid": tf.train.Feature(int64_list=tf.train.Int64List(value=[n, 1, 2, 3])),
        "tags": tf.train.Feature(int64_list=tf.train.Int64List(value=range(n % 4))),
        "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"bird {n}".encode()])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def test_wrong_record_counts_in_the_metadata_of_datum(tmp_path):
    put(tmp_path / "a.tfrec", map(datum_record, range(3)))
    (tmp_path / "shard_info.json").write_text(json.dumps({"train": {"a.tfrec": 4}}))
    with pytest.raises(DatasetError, match=r"the shard has 3 records, .* declares 4") as caught:
        opened(tmp_path)
    assert caught.value.path == str(tmp_path / "a.tfrec")
