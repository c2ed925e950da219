"""Images of opened datasets, also of TFRecords that TensorFlow wrote."""

import io
import sys

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from opened import opened, put
from written import write

from covey import Features, Image, Tensor
from covey.errors import CoveyError, FeatureError


def pixels(seed, shape=(4, 5, 3), dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype)


def write_images(path, images, feature):
    write([{"image": each} for each in images], path, features={"image": feature}, shuffle=False)
    return path


def test_images_are_decoded_on_request(tmp_path):
    path = write_images(tmp_path, [pixels(n) for n in range(3)], Image((4, 5, 3)))
    assert opened(path)[0]["image"].startswith(b"\x89PNG")
    ds = opened(path, decode_images=True)
    assert all((each["image"] == pixels(n)).all() for n, each in enumerate(ds))
    assert ds[:]["image"].shape == (3, 4, 5, 3)
    assert ds[[]]["image"].shape == (0, 4, 5, 3)
    assert ds.raw[0] == opened(path).raw[0]
    assert ds.columns("image")["image"].dtype == np.uint8
    assert (ds.select([2])[0]["image"] == pixels(2)).all()


def test_images_of_different_shapes(tmp_path):
    images = [pixels(n, (n + 1, 3, channels)) for n, channels in enumerate([1, 3, 4, 1])]
    ds = opened(write_images(tmp_path, images, Image(channels=None)), decode_images=True)
    for found, expected in zip(ds[:]["image"], images, strict=True):
        assert found.shape == expected.shape
        assert (found == expected).all()
    assert ds[[0, 0]]["image"].shape == (2, 1, 3, 1)


def test_nested_images_of_16_bits(tmp_path):
    images = [pixels(n, (2, 3, 1), np.uint16) for n in range(2)]
    features = {"a": {"b": Image((None, None, 1), "uint16"), "c": "int64"}}
    examples = [{"a": {"b": each, "c": 1}} for each in images]
    write(examples, tmp_path, features=features, shuffle=False)
    found = opened(tmp_path, decode_images=True)[:]["a"]
    assert (found["b"] == np.stack(images)).all()
    assert found["c"].tolist() == [1, 1]


def test_other_formats(tmp_path):
    bmp = io.BytesIO()
    PIL.Image.fromarray(pixels(1)).save(bmp, "bmp")
    put(tmp_path / "a.tfrecord", [{"i": bmp.getvalue()}], {"i": "bytes"})
    ds = opened(tmp_path / "a.tfrecord", features={"i": Image()}, decode_images=True)
    assert (ds[0]["i"] == pixels(1)).all()


def test_bytes_that_are_not_an_image(tmp_path):
    images = [Image().encode(pixels(0)), b"text"]
    put(tmp_path / "a.tfrecord", [{"image": each} for each in images], {"image": "bytes"})
    ds = opened(tmp_path / "a.tfrecord", features={"image": Image()}, decode_images=True)
    assert ds[0]["image"].shape == (4, 5, 3)
    with pytest.raises(CoveyError) as caught:
        ds[:]
    assert (caught.value.record, caught.value.feature) == (1, "image")


def test_without_pillow(tmp_path, monkeypatch):
    out = io.BytesIO()
    PIL.Image.fromarray(pixels(0)).save(out, "gif")
    path = write_images(tmp_path, [out.getvalue()], Image())
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert opened(path)[0]["image"].startswith(b"GIF")
    with pytest.raises(FeatureError, match=r"Pillow.* is not installed") as caught:
        opened(path, decode_images=True)[0]
    assert "pip install 'covey[images]'" in str(caught.value)


# TFRecords of others.


def inception_example(number):
    """Return an Example as the ImageNet and Inception scripts of TensorFlow write it."""
    encoded = tf.io.encode_jpeg(pixels(number, (12, 16, 3))).numpy()
    values = {
        "image/height": 12,
        "image/width": 16,
        "image/colorspace": b"RGB",
        "image/channels": 3,
        "image/class/label": number % 4 + 1,
        "image/class/synset": b"n%08d" % (number % 4),
        "image/class/text": b"bird",
        "image/format": b"JPEG",
        "image/filename": b"%d.jpg" % number,
        "image/encoded": encoded,
    }

    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    content = {name: feature(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=content)), encoded


def put_examples(path, examples):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            writer.write(example.SerializeToString())


def test_images_of_tensorflow_without_metadata(tmp_path):
    examples, encoded = zip(*map(inception_example, range(12)), strict=True)
    for shard in range(2):
        put_examples(tmp_path / f"train-0000{shard}-of-00002", examples[6 * shard : 6 * shard + 6])
    ds = opened(sorted(map(str, tmp_path.glob("train-*"))))
    assert ds.features["image/encoded"] == Image()
    assert ds.features["image/class/text"] == Tensor("bytes")
    assert (ds.label, ds.classes.labels.tolist()) == ("image/class/label", [1, 2, 3, 4])
    expected = [tf.io.decode_jpeg(each, dct_method="INTEGER_ACCURATE").numpy() for each in encoded]
    loader = ds.batches(4, 2, seed=3, select="image/encoded")
    for step, (x, y) in enumerate(loader.take(3)):
        ids = loader.plan.batch(step)
        assert (x == np.stack([expected[number] for number in ids])).all()
        assert y.tolist() == [number % 4 + 1 for number in ids]


def test_images_and_other_bytes_in_splits_of_others(tmp_path):
    examples = [inception_example(number)[0] for number in range(4)]
    put_examples(tmp_path / "x-train.tfrecord-00000-of-00001", examples)
    examples[3].features.feature["image/encoded"].bytes_list.value[0] = b"text"
    put_examples(tmp_path / "x-test.tfrecord-00000-of-00001", examples)
    for split, expected in (("train", Image()), ("train+test", Tensor("bytes"))):
        assert opened(tmp_path, split=split).features["image/encoded"] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"png", b"jpeg"], Image()),
        ([b"deep", b"deep"], Image(dtype="uint16")),
        ([b"deep", b"jpeg"], Image()),
        ([b"png", b"text"], Tensor("bytes")),
        ([b"png", b""], Tensor("bytes")),
        ([b"png", None], Tensor("bytes", (None,), default=[])),
    ],
)
def test_bytes_of_records_are_inferred(tmp_path, values, expected):
    """Of all records, whatever reads them."""
    known = {
        b"png": tf.io.encode_png(pixels(0)).numpy(),
        b"jpeg": tf.io.encode_jpeg(pixels(1)).numpy(),
        b"deep": tf.io.encode_png(pixels(2, dtype=np.uint16)).numpy(),
    }
    made = [b"" if each is None else known.get(each, each) for each in values]
    short = Features({"n": "int64"})
    whole = Features({"n": "int64", "image": "bytes"})
    records = [
        short.encode({"n": 1}) if each is None else whole.encode({"n": 1, "image": data})
        for each, data in zip(values, made, strict=True)
    ]
    assert Features.infer_records(records)["image"] == expected
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for record in records:
            writer.write(record)
    assert opened(tmp_path / "a.tfrecord").features["image"] == expected
