"""JPEGs that are decoded on the device.

The CPU takes the place of a GPU. torchvision is not installed where tests run: covey's decoder
takes its place, or a module of this test, which decodes with Pillow.
"""

import importlib.machinery
import io
import itertools
import struct
import sys
import types
from enum import Enum

import numpy as np
import pytest
import torch
from loaded import settles
from opened import opened
from PIL import Image, ImageFilter
from test_adapter_torch_device import device_threads
from written import write

import covey
from covey import _core
from covey.adapters.torch.resize import resize
from covey.arrays import StringArray
from covey.errors import ExampleError, PlanError

SIZE = (24, 31)


def pixels(number, height=40, width=56, channels=3):
    """Return an image with edges and smooth parts, (height, width, channels)."""
    rng = np.random.default_rng(number)
    noise = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
    smooth = np.asarray(noise.filter(ImageFilter.GaussianBlur(2)).convert("RGB")).copy()
    smooth[height // 4 : height // 2, width // 3 :] = rng.integers(0, 256, 3)
    return smooth if channels == 3 else smooth[:, :, 0]


def encoded(image, format="JPEG", **options):
    out = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(
        out, format, **options
    )
    return out.getvalue()


KINDS = {
    "jpeg": lambda n: encoded(pixels(n, 40 + n % 3, 56 - n % 5)),
    "progressive": lambda n: encoded(pixels(n), progressive=True),
    "gray": lambda n: encoded(pixels(n, channels=1)),
    "cmyk": lambda n: encoded(Image.fromarray(pixels(n)).convert("CMYK")),
    "png": lambda n: encoded(pixels(n, 33, 44), "PNG"),
}


def images_of(count=60):
    makes = itertools.cycle(KINDS.values())
    return [next(makes)(number) for number in range(count)]


def write_images(directory, images, shape=(None, None, 3)):
    features = {"image": covey.Image(shape), "label": "int64"}
    examples = ({"image": image, "label": number % 6} for number, image in enumerate(images))
    write(examples, directory, features=features, label="label", shuffle=False)
    return opened(directory)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    with write_images(tmp_path_factory.mktemp("decode") / "photos", images_of()) as ds:
        yield ds


class Torchvision:
    """A module that stands in for ``torchvision.io``, and records its calls."""

    class ImageReadMode(Enum):
        UNCHANGED, GRAY, GRAY_ALPHA, RGB, RGB_ALPHA = range(5)

    def __init__(self, fails=lambda data: False):
        self.calls, self.decoded, self._fails = 0, [], fails

    def decode_jpeg(self, images, mode, device):
        self.calls += 1
        assert torch.device(device).type == "cpu"
        found = []
        for each in images:
            data = each.numpy().tobytes()
            if self._fails(data):
                raise RuntimeError("cannot be decoded")
            opened = Image.open(io.BytesIO(data))
            assert (opened.format, opened.mode) in (("JPEG", "L"), ("JPEG", "RGB"))
            array = np.array(opened.convert("L" if mode is self.ImageReadMode.GRAY else "RGB"))
            found.append(torch.from_numpy(array if array.ndim == 3 else array[:, :, None]))
            self.decoded.append(data)
        return [each.permute(2, 0, 1) for each in found]


@pytest.fixture
def torchvision(monkeypatch):
    """Return a function that installs a stand-in."""

    def install(**options):
        stand_in = Torchvision(**options)
        package = types.ModuleType("torchvision")
        package.__spec__ = importlib.machinery.ModuleSpec("torchvision", None)
        monkeypatch.setitem(sys.modules, "torchvision", package)
        monkeypatch.setitem(sys.modules, "torchvision.io", stand_in)
        return stand_in

    return install


def check(ds, most=1, **options):
    """Compare batches that are decoded on the device with those of the loader."""
    plain = ds.batches(3, 2, seed=1, **options).to_torch()
    found = ds.batches(3, 2, seed=1, **options).to_torch(device="cpu", decode="gpu")
    steps = 0
    for batch, expected in zip(found, plain, strict=True):
        x, y = batch.values() if options.get("as_dict") else batch
        right, labels = expected.values() if options.get("as_dict") else expected
        assert torch.equal(y, labels)
        assert (x.shape, x.dtype) == (right.shape, right.dtype)
        assert x.is_contiguous()
        assert int((x.int() - right.int()).abs().max()) <= most
        steps += 1
    assert steps == len(plain)


@pytest.mark.parametrize("options", [{}, {"as_dict": True}, {"select": "image"}])
def test_batches_without_torchvision(photos, options):
    check(photos, image_size=SIZE, **options)


def test_batches_with_torchvision(photos, torchvision):
    stand_in = torchvision()
    check(photos, image_size=SIZE)
    kinds = {kind: {make(n) for n in range(60)} for kind, make in KINDS.items()}
    decoded = set(stand_in.decoded)
    for kind in ("jpeg", "progressive", "gray"):
        assert decoded & kinds[kind]
    for kind in ("cmyk", "png"):
        assert not decoded & kinds[kind]


def test_images_of_one_size(tmp_path, torchvision):
    with write_images(tmp_path / "same", [KINDS["progressive"](n) for n in range(24)]) as ds:
        check(ds, most=0)
        torchvision()
        check(ds, most=0)
        check(ds, image_size=(40, 56), most=0)


def test_grayscale(tmp_path, torchvision):
    images = [KINDS["gray"](n) for n in range(12)]
    torchvision()
    for shape in ((None, None, 1), (40, 56, 1), (None, None, None)):
        with write_images(tmp_path / str(shape), images, shape) as ds:
            check(ds, most=0)


@pytest.mark.parametrize("bad", [1, 2, 5])
def test_images_that_torchvision_cannot_decode(photos, torchvision, bad):
    stand_in = torchvision(fails=lambda data: data[-20] % bad == 0)
    check(photos, image_size=SIZE)
    assert stand_in.calls > len(photos.batches(3, 2, seed=1, image_size=SIZE))
    if bad > 1:
        assert stand_in.decoded


@pytest.mark.parametrize("is_installed", [False, True])
def test_the_error_of_a_corrupt_image(tmp_path, torchvision, is_installed):
    images = [KINDS["jpeg"](n) for n in range(24)]
    images[7] = images[7][:700]
    if is_installed:
        torchvision(fails=lambda data: len(data) == 700)
    with write_images(tmp_path / "corrupt", images) as ds:
        errors = []
        for options in ({}, {"device": "cpu", "decode": "gpu"}):
            loader = ds.sequential(5, image_size=SIZE)
            batches = iter(loader.to_torch(**options))
            assert len(list(itertools.islice(batches, 1))) == 1
            with pytest.raises(ExampleError) as caught:
                next(batches)
            errors.append(caught.value)
            assert loader.step == 2
            assert len(list(batches)) == 3
    assert errors[0].record == errors[1].record == 7
    assert str(errors[0]) == str(errors[1])
    del batches
    assert settles(device_threads, 0)


def test_the_limit_of_pixels(tmp_path, torchvision):
    stand_in = torchvision()
    write_images(tmp_path / "large", [KINDS["progressive"](n) for n in range(12)]).close()
    with opened(tmp_path / "large", max_pixels=40 * 56 - 1) as ds:
        with pytest.raises(ExampleError, match="max_pixels"):
            check(ds, image_size=SIZE)
        batches = ds.batches(3, 2, image_size=SIZE).to_torch(device="cpu", decode="gpu")
        with pytest.raises(ExampleError, match="max_pixels"):
            next(iter(batches))
    assert stand_in.calls == 0


def test_ragged_images(tmp_path, torchvision):
    torchvision()
    images = [KINDS["jpeg"](n) for n in range(24)]
    with write_images(tmp_path / "ragged", images) as ds:
        loader = ds.sequential(5, image_size="ragged")
        for step, (x, _) in enumerate(loader.to_torch(device="cpu", decode="gpu")):
            for row, each in enumerate(x):
                assert np.array_equal(each, ds.features["image"].decode(images[5 * step + row]))


def test_workers_and_conversion(photos, torchvision):
    torchvision()
    options = {"device": "cpu", "decode": "gpu", "layout": "NCHW", "dtype": "float32"}
    loader = photos.batches(3, 2, seed=1, image_size=SIZE)
    plain = photos.batches(3, 2, seed=1, image_size=SIZE).to_torch()
    workers = {"num_workers": 2, "multiprocessing_context": "spawn"}
    for (x, y), (expected, labels) in zip(
        loader.to_torch(**options, **workers), plain, strict=True
    ):
        assert torch.equal(y, labels)
        assert float((x - expected.permute(0, 3, 1, 2) / 255).abs().max()) <= 1.01 / 255


def test_resident(photos, torchvision):
    stand_in = torchvision()
    loaders = [photos.batches(3, 2, seed=1, image_size=SIZE) for _ in range(2)]
    found = loaders[0].to_torch(device="cpu", decode="gpu", resident=True)
    decoded = len(stand_in.decoded)
    for (x, y), (expected, labels) in zip(
        found, loaders[1].to_torch(device="cpu", decode="gpu"), strict=True
    ):
        assert torch.equal(x, expected)
        assert torch.equal(y, labels)
    assert decoded == sum(data in stand_in.decoded[:decoded] for data in images_of())


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("crop", ["center", "random"])
def test_crops_are_those_of_the_cpu(photos, crop, views, rank):
    options = {"image_size": SIZE, "crop": crop, "flip": True, "views": views}
    ranks = {"rank": rank, "world_size": 2}
    loaders = [photos.batches(4, 2, seed=5, **options, **ranks) for _ in range(2)]
    found = loaders[0].to_torch(device="cpu", decode="gpu")
    for (x, y), (expected, labels) in zip(found, loaders[1], strict=True):
        assert y.tolist() == labels.tolist()
        pairs = [(x, expected)] if views == 1 else zip(x, expected, strict=True)
        for one, two in pairs:
            assert np.abs(one.numpy().astype(int) - two).max() <= 1


@pytest.mark.parametrize(
    "options",
    [{"decode_images": False}, {"image_size": SIZE, "batch_transform": lambda x, y: (x, y)}],
    ids=lambda options: list(options)[-1],
)
def test_loaders_that_are_refused(photos, options):
    with pytest.raises(PlanError) as caught:
        photos.batches(3, 2, **options).to_torch(device="cpu", decode="gpu")
    assert (caught.value.option, caught.value.found) == ("decode", "gpu")


def test_arrays_are_refused(ds):
    with pytest.raises(PlanError) as caught:
        ds.batches(3, 2).to_torch(device="cpu", decode="gpu")
    assert caught.value.option == "decode"


# Headers.


def headers_of(images):
    column = StringArray.of(images)
    shapes = _core.jpeg_shapes(column.data, column.offsets).reshape(-1, 3)
    return [tuple(each) for each in shapes.tolist()]


def test_headers_are_those_of_pillow():
    exif = Image.Exif()
    exif[0x0112] = 6
    jpegs = [
        encoded(Image.fromarray(pixels(n, 10 + n, 90 - n)).convert(mode), **options)
        for n, (mode, options) in enumerate(
            itertools.product(
                ("L", "RGB"),
                ({}, {"progressive": True}, {"quality": 100, "subsampling": 0}, {"exif": exif},
                 {"icc_profile": bytes(200_000)}, {"comment": b"wren" * 100}, {"optimize": True},
                 {"restart_marker_blocks": 1}),
            )
        )
    ]  # fmt: skip
    expected = []
    for data in jpegs:
        image = Image.open(io.BytesIO(data))
        expected.append((image.height, image.width, len(image.mode)))
    assert headers_of(jpegs) == expected
    filled = jpegs[0][:2] + b"\xff\xff" + jpegs[0][2:]  # fill bytes before a marker
    assert headers_of([filled]) == expected[:1]


def test_images_of_other_kinds_have_no_header():
    rgb = encoded(pixels(1), keep_rgb=True)
    jpeg = encoded(pixels(1))
    frame = jpeg.index(b"\xff\xc0")
    others = [
        b"", b"\xff\xd8", KINDS["png"](1), KINDS["cmyk"](1), rgb, bytes(100), b"\xff" * 100,
        jpeg[:frame] + b"\xff\xc0" + struct.pack(">H", 17) + b"\x0c" + jpeg[frame + 5 :],  # 12 bits
        jpeg[: frame + 5] + bytes(4) + jpeg[frame + 9 :],  # no rows and columns
        b"\xff\xd8" + b"\xff\xe0\x00\x00" * 9,  # a segment without a length
    ]  # fmt: skip
    adobe = b"\xff\xee" + struct.pack(">H", 14) + b"Adobe" + bytes(7)
    others.append(jpeg[:2] + adobe + jpeg[2:])  # RGB
    assert headers_of(others) == [(0, 0, 0)] * len(others)
    # Between others, whose bytes it must not read.
    parts = [part for each in others for part in (each, jpeg)]
    assert headers_of(parts) == [(0, 0, 0), (40, 56, 3)] * len(others)


def test_truncated_headers():
    jpeg = encoded(pixels(1), progressive=True)
    scan = jpeg.index(b"\xff\xda")
    found = headers_of([jpeg[:end] for end in range(len(jpeg))])
    assert found[: scan + 2] == [(0, 0, 0)] * (scan + 2)
    assert set(found[scan + 2 :]) == {(40, 56, 3)}


# Crops and resizing.


def test_parts_of_images_are_those_of_pillow():
    rng = np.random.default_rng(3)
    images, boxes, expected = [], [], []
    flips = rng.random(30) < 0.5
    for number in range(30):
        height, width = rng.integers(8, 120, 2)
        top, left = rng.integers(0, height - 4), rng.integers(0, width - 4)
        bottom, right = rng.integers(top + 2, height + 1), rng.integers(left + 2, width + 1)
        image = pixels(number, int(height), int(width))
        part = Image.fromarray(image[top:bottom, left:right]).resize(
            SIZE[::-1], Image.Resampling.BILINEAR
        )
        expected.append(np.asarray(part)[:, ::-1] if flips[number] else np.asarray(part))
        images.append(torch.from_numpy(image).permute(2, 0, 1))
        boxes.append((top, left, bottom, right))
    found = resize(images, np.array(boxes), flips, SIZE)
    assert found.shape == (30, *SIZE, 3)
    assert np.abs(found.numpy().astype(int) - np.stack(expected).astype(int)).max() <= 1


def test_groups_of_bounded_size(monkeypatch):
    images = [torch.from_numpy(pixels(n, 20 + n, 50 - n)).permute(2, 0, 1) for n in range(12)]
    boxes = np.array([(0, 0, *each.shape[1:]) for each in images])
    flips = np.zeros(12, bool)
    complete = resize(images, boxes, flips, SIZE)
    monkeypatch.setattr("covey.adapters.torch.resize._MAX_BYTES", 30_000)
    assert torch.equal(resize(images, boxes, flips, SIZE), complete)
