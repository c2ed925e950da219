"""covey.open with decode_images=True; Pillow encodes the images."""

import io
import sys

import numpy as np
import PIL.Image
import pytest
from opened import opened, put
from written import write

from covey import Image
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
