"""JPEG and PNG images are decoded, cropped and batched without Pillow."""

import base64
import sys
from itertools import product

import numpy as np
import pytest
from loaded import same
from opened import opened
from pictures import decoding_with, draw, png
from written import write

from covey import Image
from covey.errors import ExampleError, FeatureError
from covey.schema.pixels import read_pixels

# 8 x 8 pixels: the left half is blue, the right half orange.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQ"
    "DQ4RDgsLEBYQERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQU"
    "FBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBT/wAARCAAIAAgDAREAAhEBAxEB/8QAFAABAAAAAAAA"
    "AAAAAAAAAAAAB//EABgQAAIDAAAAAAAAAAAAAAAAAAAHRYPC/8QAFQEBAQAAAAAAAAAAAAAAAAAABQf/xAAa"
    "EQACAgMAAAAAAAAAAAAAAAAAB0SDRcLD/9oADAMBAAIRAxEAPwAnS0zTspb/AMXdyE1VNr3P/9k="
)
# The pixels of each row, as Pillow decodes them.
ROW = [[10, 61, 240], [11, 60, 240], [9, 59, 240], [14, 60, 241],
       [197, 100, 49], [202, 100, 51], [198, 101, 50], [201, 99, 50]]  # fmt: skip
COUNT = 24


@pytest.fixture(autouse=True)
def _without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with decoding_with("native"):
        yield


def test_jpeg():
    assert Image().decode(JPEG).tolist() == [ROW] * 8
    gray = Image(channels=1).decode(JPEG)
    luma = np.array(ROW) @ [0.299, 0.587, 0.114]
    assert np.abs(gray[:, :, 0] - luma).max() <= 1
    rgba = Image(channels=4).decode(JPEG)
    assert rgba[:, :, :3].tolist() == [ROW] * 8
    assert (rgba[:, :, 3] == 255).all()


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_png(dtype, interlaced):
    bits = 8 * np.dtype(dtype).itemsize
    for channels in (1, 3, 4):
        pixels = draw((13, 11, channels), dtype=dtype)
        data = png(pixels, bits=bits, interlaced=interlaced)
        assert same(Image(channels=channels, dtype=dtype).decode(data), pixels)
        assert same(Image(channels=None, dtype=dtype).decode(data), pixels)
        expected = pixels.repeat(3, 2) if channels == 1 else pixels[:, :, :3]
        assert same(Image(dtype=dtype).decode(data), np.ascontiguousarray(expected))


def test_palette():
    indices, colors = draw((13, 11, 1)) >> 4, draw((1, 16, 3), 1)[0]
    expected = colors[indices[:, :, 0]]
    assert same(Image().decode(png(indices, bits=4, palette=colors)), expected)
    alpha = np.arange(0, 256, 16)
    data = png(indices, bits=4, palette=colors, transparency=bytes(alpha.tolist()))
    assert same(Image().decode(data), expected)
    assert (Image(channels=4).decode(data)[:, :, 3] == alpha[indices[:, :, 0]]).all()


def test_other_formats_require_pillow():
    with pytest.raises(FeatureError, match="Pillow"):
        Image().decode(b"GIF89a" + bytes([5, 0, 4, 0, 0, 0, 0]))


@pytest.mark.parametrize(
    "data", [JPEG[:-40], JPEG[:20], png(draw((9, 9, 3)))[:-40], png(draw((9, 9, 3)))[:20]]
)
def test_truncated_images(data):
    with pytest.raises(FeatureError, match="not a valid image"):
        Image().decode(data)


def test_resize():
    assert same(read_pixels(Image(), JPEG, (8, 8)), Image().decode(JPEG))
    # The weights of a triangle of 8 pixels, of which 6 are inside the image.
    expected = np.array([[6, 1], [1, 6]]) / 7 @ [[11, 60, 240], [200, 100, 50]]
    assert np.abs(read_pixels(Image(), JPEG, (4, 2)) - expected).max() < 2
    pixels = np.full((9, 7, 3), (1, 2, 3), np.uint8)
    for size in ((1, 1), (3, 20), (40, 40)):
        assert (read_pixels(Image(), png(pixels), size) == (1, 2, 3)).all()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return PNG images whose pixels are their number, and every sixth one a JPEG."""
    path = tmp_path_factory.mktemp("pictures")
    many = [
        {"image": png(np.full((8, 8, 3), n)) if n % 6 else JPEG, "label": n % 4}
        for n in range(COUNT)
    ]
    features = {"image": Image(), "label": "int64"}
    write(many, path, features=features, label="label", shuffle=False, shards=2)
    with opened(path) as ds:
        yield ds


def test_batches(pictures):
    for threads, hooked in product((0, 3), (False, True)):
        hooks = {"batch_transform": lambda x, y: (x, y)} if hooked else {}
        loader = pictures.sequential(7, threads=threads, **hooks)
        found = np.concatenate([x.copy() for x, _ in loader])
        for number in range(COUNT):
            expected = np.full((8, 8, 3), number) if number % 6 else [ROW] * 8
            assert (found[number] == expected).all()
    options = {"image_size": (6, 5), "crop": "random", "flip": True, "views": 2, "seed": 3}
    loader = pictures.batches(3, 2, threads=2, **options)
    for step, (x, _) in enumerate(loader.take(5)):
        for view, (row, number) in product(x, enumerate(loader.plan.batch(step))):
            assert view.shape == (6, 6, 5, 3)
            assert number % 6 == 0 or (view[row] == number).all()


def test_errors_name_the_record(tmp_path):
    many = [{"image": png(np.full((8, 8, 3), n))} for n in range(10)]
    many[6]["image"] = many[6]["image"][:-20]
    write(many, tmp_path, features={"image": Image()}, shuffle=False)
    with opened(tmp_path) as ds, pytest.raises(ExampleError) as raised:
        list(ds.sequential(4, threads=2))
    assert (raised.value.record, raised.value.feature) == (6, "image")
