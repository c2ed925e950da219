"""Crops, flips and views equal those of Pillow within one level, with every decoder."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pictures import (
    DECODERS,
    as_12_bits,
    decoding_with,
    draw,
    encode,
    exif_orientation,
    jpegs,
    others,
    pillow,
    png,
    pngs,
)

from covey.errors import FeatureError
from covey.schema import Image, StringArray
from covey.schema.pixels import ImageColumn, ImageOptions, read_pixels


@pytest.fixture(params=DECODERS)
def decoder(request):
    with decoding_with(request.param):
        yield request.param


def column(feature=None, **options):
    """Return how images of any size are decoded, cropped and resized."""
    pixels = ImageOptions(**options)
    feature = feature or Image()
    return ImageColumn("image", feature, pixels, (*pixels.size, feature.channels))


def views_of(made, data, key=(0, 0, 0)):
    """Return the views of one image."""
    return [view[0] for view in made.decode(StringArray.of([data]), None, key)]


def expected(made, data, key, view, **options):
    """Return the view that Pillow crops and resizes, from the box that was chosen."""
    height, width = pillow(data, **options).shape[:2]
    *box, flipped = made.spec.box(height, width, *key, view)
    return pillow(data, made.shape[2], box=box, size=made.shape[:2], flipped=flipped, **options)


def distance(one, other):
    assert one.shape == other.shape
    return np.abs(one.astype(int) - other).max()


# Against Pillow.


SIDES = st.integers(1, 90)
FORMS = {
    "jpeg": ("jpeg", {}),
    "444": ("jpeg", {"subsampling": 0}),
    "422": ("jpeg", {"subsampling": 1}),
    "progressive": ("jpeg", {"progressive": True}),
    "png": ("png", {}),
    "webp": ("webp", {}),
}


@settings(max_examples=150)
@given(
    image=st.tuples(SIDES, SIDES),
    size=st.tuples(SIDES, SIDES),
    form=st.sampled_from(sorted(FORMS)),
    stored=st.sampled_from([1, 3]),
    channels=st.sampled_from([1, 3, 4]),
    crop=st.sampled_from(["squash", "center", "random"]),
    flip=st.booleans(),
    views=st.integers(1, 3),
    key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**20)),
)
def test_views_equal_those_of_pillow(
    decoder, image, size, form, stored, channels, crop, flip, views, key
):
    assume(views == 1 or flip or crop == "random")
    kind, options = FORMS[form]
    data = encode(draw((*image, stored)), kind, **options)
    made = column(Image(channels=channels), image_size=size, crop=crop, flip=flip, views=views)
    found = views_of(made, data, key)
    assert len(found) == views
    for number, view in enumerate(found):
        assert distance(view, expected(made, data, key, number)) <= 1


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_large_crops_of_jpegs(subsampling):
    """The rows and columns around a box are skipped; chroma is interpolated across its edges."""
    pixels = draw((150, 200, 3))
    data = encode(pixels, quality=90, subsampling=subsampling)
    for size in ((40, 48), (150, 200)):
        made = column(image_size=size, crop="random", flip=True)
        for row in range(40):
            (found,) = views_of(made, data, (1, 2, row))
            assert distance(found, expected(made, data, (1, 2, row), 0)) <= 1


@pytest.mark.parametrize("variants", [jpegs, pngs, others])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_views_of_all_kinds_of_images(variants, channels, decoder):
    """The sink of rows has other forms of pixels than a full decode."""
    made = column(Image(channels=channels), image_size=(12, 9), crop="random", flip=True, views=2)
    wrong = []
    for name, data in variants().items():
        for number, view in enumerate(views_of(made, data, (1, 2, 3))):
            if distance(view, expected(made, data, (1, 2, 3), number)) > 1:
                wrong.append(name)
    assert wrong == []


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_views_of_oriented_images(kind, decoder):
    feature = Image(exif_orientation=True)
    for orientation, crop in itertools.product(range(1, 9), ("squash", "center", "random")):
        made = column(feature, image_size=(14, 11), crop=crop, flip=True)
        exif, pixels = exif_orientation(orientation), draw((40, 60, 3))
        if kind == "png":
            data = png(pixels, exif=exif)
        else:
            data = encode(pixels, kind, exif=b"Exif\0\0" + exif)
        for row in range(3):
            (found,) = views_of(made, data, (5, 6, row))
            assert distance(found, expected(made, data, (5, 6, row), 0, oriented=True)) <= 1


def test_one_view_is_the_first_of_several(decoder):
    data = encode(draw((50, 70, 3)))
    options = {"image_size": (16, 16), "crop": "random", "flip": True}
    many = views_of(column(views=4, **options), data, (7, 8, 9))
    assert len({view.tobytes() for view in many}) == 4
    assert (views_of(column(**options), data, (7, 8, 9))[0] == many[0]).all()


@pytest.mark.parametrize("size", [(16, 20), (37, 29), (90, 120)])
def test_tensorflow_resizes_the_same(size, decoder):
    for pixels in (draw((61, 83, 3), 1), draw((40, 30, 3), 2)):
        found = read_pixels(Image(), encode(pixels, "png"), size)
        theirs = tf.image.resize(pixels, size, antialias=True).numpy()
        assert np.abs(found - theirs).max() < 1.1  # covey rounds twice, TensorFlow never


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(16, 20), (90, 120)])
def test_16_bits_are_resized_as_16_bits(size, channels):
    feature = Image(channels=channels, dtype="uint16")
    with decoding_with("native"):
        for pixels in (draw((40, 30, channels), 1, np.uint16), draw((61, 83, channels), 2, "u2")):
            found = read_pixels(feature, png(pixels, bits=16), size)
            assert found.dtype == np.uint16
            theirs = tf.image.resize(pixels.astype(np.float32), size, antialias=True).numpy()
            assert np.abs(found - theirs).max() < 0.6


def test_flip_without_a_size(decoder):
    data = encode(draw((20, 30, 3)))
    made = ImageColumn("image", Image(), ImageOptions(flip=True), (20, 30, 3))
    flipped = []
    for row in range(20):
        flipped.append(made.spec.box(20, 30, 1, 2, row)[4])
        assert (views_of(made, data, (1, 2, row))[0] == pillow(data, flipped=flipped[-1])).all()
    assert len(set(flipped)) == 2


def test_corrupt_images(decoder):
    made = column(image_size=(8, 8), crop="center")
    data = encode(draw((40, 50, 3)))
    for wrong in (data[:200], as_12_bits(data), b"not an image", b""):
        with pytest.raises(FeatureError):
            views_of(made, wrong)


INVALID_SIZES = [(8, 2**15), (0, 5), (5, -1), (5,), (5, 6, 3), 0, (5.0, 6.0), "56", True, 2**15]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"image_size": (8, 8), "crop": "middle"}, "crop"),
        ({"crop": "random"}, "crop"),
        ({"image_size": (8, 8), "decode": "slow"}, "decode"),
        ({"image_size": (8, 8), "crop_scale": (0, 1)}, "crop_scale"),
        ({"image_size": (8, 8), "crop_scale": (0.5, 1.1)}, "crop_scale"),
        ({"image_size": (8, 8), "crop_ratio": (2, 1)}, "crop_ratio"),
        ({"image_size": (8, 8), "crop_ratio": (1, float("inf"))}, "crop_ratio"),
        ({"image_size": (8, 8), "crop_ratio": (float("nan"), 1)}, "crop_ratio"),
        ({"image_size": (8, 8), "crop_ratio": 1}, "crop_ratio"),
        *(({"image_size": size}, "image_size") for size in INVALID_SIZES),
        ({"image_size": (8, 8), "flip": 1}, "flip"),
        ({"image_size": (8, 8), "views": 2}, "views"),
        ({"image_size": (8, 8), "flip": True, "views": 17}, "views"),
        ({"image_size": (8, 8), "flip": True, "views": 0}, "views"),
        ({"image_size": (8, 8), "flip": True, "views": True}, "views"),
    ],
)
def test_invalid_options(options, name):
    with pytest.raises(FeatureError) as raised:
        ImageOptions(**options)
    assert raised.value.option == name


# Boxes.


def boxes(made, image, count=20_000, seed=0):
    """Return top, left, height, width and flip of many rows."""
    return np.array([made.spec.box(*image, seed, row // 64, row % 64) for row in range(count)])


def reference_boxes(image, count, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
    """Return the boxes of torchvision's RandomResizedCrop, as it is documented.

    The area is uniform in `scale`, and the aspect ratio uniform in the logarithms of `ratio`; after
    ten boxes that do not fit, the central box of the nearest aspect ratio is returned.
    """
    rng = np.random.default_rng(0)
    height, width = image
    found = []
    for _ in range(count):
        for _ in range(10):
            area = height * width * rng.uniform(*scale)
            aspect = np.exp(rng.uniform(*np.log(ratio)))
            w, h = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                found.append((rng.integers(height - h + 1), rng.integers(width - w + 1), h, w))
                break
        else:
            aspect = min(max(width / height, ratio[0]), ratio[1])
            h = min(height, round(width / aspect))
            w = min(width, round(height * aspect))
            found.append(((height - h) // 2, (width - w) // 2, h, w))
    return np.array(found)


def difference(one, other):
    """Return the largest difference of two cumulative distributions (Kolmogorov-Smirnov)."""
    points = np.sort(np.concatenate([one, other]))
    ranks = [np.searchsorted(np.sort(each), points, "right") / len(each) for each in (one, other)]
    return np.abs(ranks[0] - ranks[1]).max()


@pytest.mark.parametrize("image", [(375, 500), (40, 400), (9, 7)])
def test_distribution_of_random_boxes(image):
    made = column(image_size=(224, 224), crop="random")
    found, theirs = boxes(made, image)[:, :4], reference_boxes(image, 20_000)
    height, width = image
    for each in (found, theirs):
        assert (each[:, 0] + each[:, 2] <= height).all()
        assert (each[:, 1] + each[:, 3] <= width).all()
    # 1.95 * sqrt(2 / n): exceeded with a probability of 0.001; both seeds are fixed.
    bound = 1.95 * np.sqrt(2 / 20_000)
    values = [
        [*each.T, each[:, 2] * each[:, 3], each[:, 3] / each[:, 2]] for each in (found, theirs)
    ]
    for one, two in zip(*values, strict=True):  # top, left, height, width, area, aspect ratio
        assert difference(one, two) < bound


def test_range_of_random_boxes():
    made = column(image_size=(8, 8), crop="random", crop_scale=(0.25, 0.5), crop_ratio=(0.5, 2.0))
    found = boxes(made, (1000, 1000), 5000)
    area, ratio = found[:, 2] * found[:, 3] / 1e6, found[:, 3] / found[:, 2]
    assert 0.249 < area.min() < 0.252
    assert 0.498 < area.max() < 0.501
    assert 0.498 < ratio.min() < 0.51
    assert 1.96 < ratio.max() < 2.01


def test_rows_batches_seeds_and_views_are_independent():
    made = column(image_size=(8, 8), crop="random", flip=True, views=2)
    keys = itertools.product(range(10), range(10), range(10), range(2))
    found = [made.spec.box(5000, 5000, *key) for key in keys]
    assert len({each[:4] for each in found}) == 2000
    # 1000 +- 4.5 standard deviations of a fair coin; the keys are fixed.
    assert 900 < sum(each[4] for each in found) < 1100


def test_flips_do_not_change_boxes():
    flipped = column(image_size=(8, 8), crop="random", flip=True)
    found = boxes(flipped, (50, 60), 100)
    assert (
        found[:, :4] == boxes(column(image_size=(8, 8), crop="random"), (50, 60), 100)[:, :4]
    ).all()


@given(image=st.tuples(SIDES, SIDES), size=st.tuples(SIDES, SIDES))
def test_central_boxes(image, size):
    """The largest box with the aspect ratio of the result, within a pixel, in the middle."""
    top, left, height, width, flipped = column(image_size=size, crop="center").spec.box(
        *image, 0, 0, 0
    )
    assert not flipped
    ratio = size[1] / size[0]
    if height == image[0]:
        assert abs(width - min(image[1], max(1, height * ratio))) <= 0.5
    else:
        assert width == image[1]
        assert abs(height - max(1, width / ratio)) <= 0.5
    assert (top, left) == ((image[0] - height) // 2, (image[1] - width) // 2)


# Reduced scale.


@pytest.fixture
def native():
    with decoding_with("native"):
        yield


# Largest mean and maximum of the differences, in levels of 255. Measured: 3.1 and 9 of noise, 0.6
# and 4 of a smooth image, at 1/8 of the size.
LEVELS = {"noisy": (3.5, 12), "smooth": (0.8, 5)}


@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize("kind", LEVELS)
def test_levels_of_fast_decoding(kind, subsampling, native):
    pixels = draw((400, 600, 3))
    if kind == "smooth":
        y, x, c = np.mgrid[:400, :600, :3]
        pixels = ((np.sin(x / 25 + c) + np.cos(y / 37) + 2) / 4 * 255).astype(np.uint8)
    data = encode(pixels, quality=90, subsampling=subsampling)
    mean, maximum = LEVELS[kind]
    for size in ((200, 300), (100, 150), (50, 75), (30, 30)):
        exact, fast = (
            views_of(column(image_size=size, decode=mode), data)[0] for mode in ("exact", "fast")
        )
        levels = np.abs(exact.astype(int) - fast)
        assert 0 < levels.mean() < mean
        assert levels.max() <= maximum


@pytest.mark.parametrize("crop", ["squash", "center", "random"])
def test_reduced_scale_is_not_used_below_twice_the_size(crop, native):
    data = encode(draw((120, 160, 3)))
    used = set()
    for side, row in itertools.product((20, 40, 60, 61, 79, 81, 100), range(12)):
        views = 2 if crop == "random" else 1  # the smallest box decides
        options = {"image_size": (side, side), "crop": crop, "flip": True, "views": views}
        exact, fast = (column(decode=mode, **options) for mode in ("exact", "fast"))
        key = (1, 2, row)
        boxes = [fast.spec.box(120, 160, *key, view) for view in range(views)]
        is_reduced = min(min(box[2:4]) for box in boxes) >= 2 * side
        pairs = zip(views_of(exact, data, key), views_of(fast, data, key), strict=True)
        assert all((one == two).all() != is_reduced for one, two in pairs)
        used.add(is_reduced)
    assert used == {False, True}


@pytest.mark.parametrize(
    ("kind", "by"), [("png", "native"), ("webp", "native"), ("jpeg", "Pillow")]
)
def test_other_decoders_are_exact(kind, by):
    data = encode(draw((120, 160, 3)), kind)
    with decoding_with(by):
        (found,) = views_of(column(image_size=(20, 20), decode="fast"), data)
    assert distance(found, pillow(data, size=(20, 20))) <= 1
