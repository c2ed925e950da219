"""Batches of decoded images, of remote datasets, of tensors, and of labels from pandas."""

import io

import numpy as np
import pandas as pd
import PIL.Image
import pytest
import torch
from loaded import COUNT, LABELS, X, check_batches, class_name, numbers_of, same
from opened import opened
from written import write

from covey import Image
from covey.errors import ExampleError, FeatureError
from covey.plan import BalancedPlan

THREADS = [0, 3]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


def first(loader):
    return next(iter(loader))


def test_batches_of_a_remote_dataset(made):
    check_batches(made("remote"))


def test_labels_from_pandas():
    birds = ["owl", "wren", "owl", "kite", "wren", "kite"]
    expected = BalancedPlan(birds, 2, 2, seed=3).batches(0, 20)
    for dtype in (None, "category", "object"):
        found = BalancedPlan(pd.Series(birds, dtype=dtype), 2, 2, seed=3).batches(0, 20)
        assert (found == expected).all()
    for labels in (pd.Series([5, 7, 5, 6, 7, 6], dtype="object"), pd.array([5, 6, 7] * 2, "Int64")):
        assert BalancedPlan(labels, 2, 2).labels.tolist() == [5, 6, 7]


@pytest.mark.parametrize("threads", THREADS)
def test_hooks_that_return_tensors(ds, threads):
    loader = ds.batches(
        3, 2, transform=lambda each: torch.from_numpy(each["x"]) * 2, threads=threads
    )
    assert numbers_of(first(loader)[0]) == [2 * number for number in loader.plan.batch(0)]
    loader = ds.batches(
        3, 2, batch_transform=lambda x, y: (torch.from_numpy(x), torch.from_numpy(y))
    )
    x, y = first(loader)
    assert same((x.numpy(), y.numpy()), first(ds.batches(3, 2)))


# Images.


def encode(pixels, format="png"):
    out = io.BytesIO()
    PIL.Image.fromarray(pixels.squeeze()).save(out, format)
    return out.getvalue()


def photo(number, height=6, width=4):
    """Return an image whose first pixel is its number."""
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
    pixels[0, 0] = number
    return pixels


def resize(data, size):
    """Return a decoded image, resized by Pillow."""
    with PIL.Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.resize(size[::-1], PIL.Image.Resampling.BILINEAR))


@pytest.fixture(scope="module")
def photos(directory):
    """Return images of one size, in classes with names."""
    many = [{"image": photo(n), "label": class_name(n)} for n in range(COUNT)]
    features = {"image": Image((6, 4, 3)), "label": "str"}
    write(many, directory / "photos", features=features, label="label", shuffle=False, shards=3)
    return opened(directory / "photos")


@pytest.fixture(scope="module")
def odd_photos(directory):
    """Return images of different sizes, two per example, as PNG and JPEG."""
    many = [
        {
            "front": encode(photo(n, 5 + n % 3, 4 + n % 4)),
            "views": {"back": encode(photo(n, 8, 9), "jpeg"), "n": n},
            "label": int(LABELS[n]),
        }
        for n in range(COUNT)
    ]
    features = {
        "front": Image((None, None, 3)),
        "views": {"back": Image((8, 9, 3), format="jpeg"), "n": "int64"},
        "label": "int64",
    }
    write(many, directory / "odd", features=features, label="label", shuffle=False)
    return opened(directory / "odd")


@pytest.mark.parametrize("threads", THREADS)
def test_images_are_decoded(photos, threads):
    loader = photos.batches(4, 2, threads=threads, seed=2)
    for step, (x, y) in enumerate(loader.take(20)):
        ids = loader.plan.batch(step)
        assert same(x, np.stack([photo(number) for number in ids]))
        assert same(y, photos.labels[ids])


@pytest.mark.parametrize("threads", THREADS)
def test_images_are_not_decoded(photos, threads):
    loader = photos.sequential(50, threads=threads, decode_images=False)
    found = [bytes(each) for x, _ in loader for each in x]
    assert found == [encode(photo(number)) for number in range(COUNT)]


def test_images_of_different_sizes_are_a_list(odd_photos):
    loader = odd_photos.batches(4, 2, seed=1, threads=2)
    x, _ = first(loader)
    ids = loader.plan.batch(0)
    for number, image in zip(ids, x["front"], strict=True):
        assert same(image, photo(number, 5 + number % 3, 4 + number % 4))
    assert x["views"]["back"].shape == (8, 8, 9, 3)
    assert x["views"]["n"].tolist() == ids.tolist()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("size", [(7, 3), (6, 6), (1, 1), (16, 9), 8])
def test_images_are_resized(odd_photos, threads, size):
    height, width = (size, size) if isinstance(size, int) else size
    loader = odd_photos.batches(4, 2, seed=1, threads=threads, image_size=size)
    raw = odd_photos.batches(4, 2, seed=1, decode_images=False)
    for (x, _), (data, _) in zip(loader.take(5), raw.take(5), strict=True):
        for image, encoded in (
            (x["front"], data["front"]),
            (x["views"]["back"], data["views"]["back"]),
        ):
            assert (image.shape, image.dtype) == ((8, height, width, 3), np.uint8)
            assert all(
                same(one, resize(bytes(two), (height, width)))
                for one, two in zip(image, encoded, strict=True)
            )


def test_selected_images(odd_photos):
    x, _ = first(odd_photos.batches(4, 2, select="views/back"))
    assert x.shape == (8, 8, 9, 3)
    x, _ = first(odd_photos.batches(4, 2, select=["front"], image_size=5))
    assert list(x) == ["front"]
    with pytest.raises(FeatureError, match="image_size"):
        odd_photos.batches(4, 2, select="views/n", image_size=5)
    with pytest.raises(FeatureError, match="image_size"):
        odd_photos.batches(4, 2, decode_images=False, image_size=5)
    x, _ = first(odd_photos.batches(4, 2, select="views/n"))
    assert x.dtype == np.int64


def test_transform_receives_pixels(photos, odd_photos):
    loader = photos.batches(4, 2, transform=lambda each: {"mean": each["image"].mean()})
    x, _ = first(loader)
    assert x.tolist() == [photo(number).mean() for number in loader.plan.batch(0)]
    loader = odd_photos.batches(4, 2, image_size=(5, 3), transform=lambda each: each["front"])
    assert first(loader)[0].shape == (8, 5, 3, 3)


def test_dataset_with_decode_images(directory, photos):
    ds = opened(directory / "photos", decode_images=True)
    assert same(first(ds.sequential(50))[0], first(photos.sequential(50))[0])
    assert same(first(ds.sequential(50))[0], ds[:50]["image"])


@pytest.mark.parametrize("threads", THREADS)
def test_corrupt_image(tmp_path, threads):
    many = [{"image": encode(photo(n)), "label": n % 3} for n in range(60)]
    many[41]["image"] = many[41]["image"][:60]
    features = {"image": Image((6, 4, 3)), "label": "int64"}
    write(many, tmp_path, features=features, label="label", shuffle=False, shards=2)
    ds = opened(tmp_path)
    loader, location = ds.sequential(4, threads=threads), ds.place(41)
    with pytest.raises(ExampleError) as error:
        list(loader)
    assert (error.value.path, error.value.record) == (location.name, location.record)
    assert error.value.feature == "image"
    assert loader.step == 10
    loader.seek(11)
    assert len(list(loader)) == 4


def test_images_and_arrays_in_compressed_shards(directory):
    many = [
        {"image": photo(n), "x": np.full((2, 3), n), "label": class_name(n)} for n in range(COUNT)
    ]
    features = {"image": Image((6, 4, 3)), "x": X, "label": "str"}
    write(many, directory / "mixed", features=features, label="label", shuffle=False,
          compression="GZIP")  # fmt: skip
    loader = opened(directory / "mixed").batches(5, 2, threads=2)
    for step, (x, _) in enumerate(loader.take(10)):
        ids = loader.plan.batch(step)
        assert numbers_of(x) == ids.tolist()
        assert same(x["image"], np.stack([photo(number) for number in ids]))
