"""Augmenters: calls, and views of images compared with Pillow, scipy and colorsys."""

import colorsys
import io
import pickle
from dataclasses import replace

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import pytest
import tensorflow as tf
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

import covey
from covey import _core
from covey.augmenters import Augmenter, ContrastiveAugmenter
from covey.errors import PlanError

DTYPES = [np.uint8, np.float16, np.float32, np.float64]

# No random choices; a test enables those that it is about.
OFF = {"crop": None, "flip": 0, "jitter": 0, "grayscale": 0, "blur": 0}
COLOURS = {"jitter": 1, "brightness": 0, "contrast": 0, "saturation": 0, "hue": 0}


def only(**options):
    return ContrastiveAugmenter(**{**OFF, **options})


def random_images(count, height=12, width=10, channels=3, dtype=np.uint8, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (count, height, width, channels))
    return values.astype(np.uint8) if dtype == np.uint8 else (values / 255).astype(dtype)


def views(augmenter, x, count=1, step=0):
    return augmenter(x, np.arange(len(x)), count, step=step)[0]


# Calls.


class WithStep(Augmenter):
    def augment(self, x, y, examples_per_class, is_warmup, *, step=0):
        return x, y, examples_per_class, is_warmup, step


class WithoutStep(Augmenter):
    """The signature of TensorFlow Similarity."""

    def augment(self, x, y, num_augmentations_per_example, is_warmup):
        return x, y, num_augmentations_per_example, is_warmup


def test_augment_receives_the_arguments_that_it_accepts():
    assert WithStep()("x", "y", 2, True, step=5) == ("x", "y", 2, True, 5)
    assert WithStep()("x", "y", 2) == ("x", "y", 2, False, 0)
    assert WithoutStep()("x", "y", 3, True, step=5) == ("x", "y", 3, True)
    with pytest.raises(TypeError, match="abstract"):
        Augmenter()


# Views.


@st.composite
def batches(draw):
    count, height, width = (draw(st.integers(least, 9)) for least in (0, 1, 1))
    channels, dtype = draw(st.sampled_from([1, 3])), draw(st.sampled_from(DTYPES))
    return random_images(count, height, width, channels, dtype, seed=draw(st.integers(0, 99)))


@settings(max_examples=60)
@given(
    x=batches(),
    count=st.integers(1, 3),
    step=st.integers(0, 2**64 - 1),
    size=st.none() | st.tuples(st.integers(1, 12), st.integers(1, 12)),
)
def test_shape_type_and_range_of_views(x, count, step, size):
    found, y = ContrastiveAugmenter(seed=3, size=size)(x, np.arange(len(x)), count, step=step)
    assert found.shape == (len(x) * count, *(size or x.shape[1:3]), x.shape[3])
    assert found.dtype == x.dtype
    assert y.tolist() == np.arange(len(x)).repeat(count).tolist()
    assert ((found >= 0) & (found <= (255 if x.dtype == np.uint8 else 1))).all()
    if x.shape[3] == 1:  # the dimension of the channels may be omitted
        flat, _ = ContrastiveAugmenter(seed=3, size=size)(x[..., 0], None, count, step=step)
        assert np.array_equal(flat, found[..., 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_depend_on_seed_step_and_row(dtype):
    # 4 chunks of images, and their views one by one.
    x, augment = random_images(200, dtype=dtype), ContrastiveAugmenter(seed=5)
    state = np.random.get_state()[1].tolist()
    found = views(augment, x, 3, step=4)
    for row in range(0, 200, 13):
        single, _ = augment(x[row : row + 1], None, 3, step=4, row=row)
        assert np.array_equal(found[row * 3 : row * 3 + 3], single)
    assert np.array_equal(found, views(pickle.loads(pickle.dumps(augment)), x.copy(), 3, step=4))
    assert np.random.get_state()[1].tolist() == state


def test_views_of_other_seeds_steps_and_rows_differ():
    x = random_images(1).repeat(8, 0)
    found = {
        view.tobytes()
        for seed in (0, 1, 2**64 - 1)
        for step in (0, 1, 2**40)
        for view in views(ContrastiveAugmenter(seed=seed), x, 2, step)
    }
    assert len(found) == 3 * 3 * 16


def test_random_numbers_never_change():
    ramp = np.arange(2.0).reshape(1, 1, 2, 1).repeat(32, 0)
    flipped = views(only(flip=0.5, seed=7), ramp, step=3)[:, 0, 0, 0]
    assert "".join(str(int(each)) for each in flipped) == "00001001010011000011101011001110"


# Number of views.


@pytest.mark.parametrize(
    ("classes", "per_class", "options", "repeats"),
    [
        ([5, 3, 9, 1, 0, 2], 3, {}, 3),  # each example is a class of its own
        ([5, 5, 3, 3, 9, 9], 2, {}, 1),  # complete
        ([5, 5, 3, 3, 9, 9], 2, {"views": 2}, 2),
        ([5, 5, 3, 3, 9, 9], 3, {}, 3),  # too few of each class
        ([5, 3, 9, 5, 3, 9], 2, {}, 2),  # not consecutive
        (None, 2, {}, 2),
        (np.eye(6), 2, {}, 2),
    ],
)
def test_number_of_views(classes, per_class, options, repeats):
    images = random_images(6)
    x, y = only(**options)(images, classes, per_class)
    assert np.array_equal(x, images.repeat(repeats, 0))
    assert y is None if classes is None else np.array_equal(y, np.repeat(classes, repeats, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_during_warmup_are_the_images(dtype):
    x = random_images(5, dtype=dtype)
    found, y = ContrastiveAugmenter()(x, np.arange(5), 2, True, step=4)
    assert np.array_equal(found, x.repeat(2, 0))
    assert np.array_equal(found, views(only(), x, 2))
    assert len(y) == 10
    smaller = ContrastiveAugmenter(size=6)(x, np.arange(5), 2, True)[0]
    assert np.array_equal(smaller, views(only(size=6), x, 2))


# Flips and crops.


@pytest.mark.parametrize(
    ("options", "probability"),
    [
        ({"flip": 0.3}, 0.3),
        ({**COLOURS, "jitter": 0.8, "brightness": 0.4}, 0.8),
        ({"grayscale": 0.2}, 0.2),
        ({"blur": 0.4, "sigma": (0.5, 2.0)}, 0.4),
    ],
)
def test_probabilities(options, probability):
    x = np.array([[0.4, 0.5, 0.6], [0.8, 0.5, 0.3]]).reshape(1, 1, 2, 3).repeat(2000, 0)
    share = (views(only(**options), x) != x).any((1, 2, 3)).mean()
    assert share == pytest.approx(probability, abs=0.03)


@pytest.mark.parametrize("dtype", DTYPES)
def test_flip(dtype):
    x = random_images(40, dtype=dtype)
    assert np.array_equal(views(only(flip=1), x), x[:, :, ::-1])


def boxes(augmenter, count, height, width, step=6):
    """Return (left, top, right, bottom) of the crops of images, as decoders choose them."""
    spec = _core.ImageSpec(size=(1, 1), channels=3, crop="random", max_pixels=1,
                           scale=augmenter.crop, ratio=augmenter.ratio)  # fmt: skip
    for row in range(count):
        top, left, h, w, _ = spec.box(height, width, augmenter.seed, step, row)
        yield left, top, left + w, top + h


def resize(image, box, size):
    """Return a part of an image in another size, computed by Pillow."""
    planes = [image] if image.dtype == np.uint8 else image.astype(np.float32).transpose(2, 0, 1)
    bilinear = PIL.Image.Resampling.BILINEAR
    found = [PIL.Image.fromarray(each).crop(box).resize(size[::-1], bilinear) for each in planes]
    return np.asarray(found[0], float) if len(found) == 1 else np.stack(found, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("crop", [(0.1, 1.0), None])
@pytest.mark.parametrize("size", [None, (32, 40), (9, 30), (7, 5), (1, 1)])
def test_crops_and_sizes_equal_those_of_pillow(size, crop, dtype):
    x, augment = random_images(20, 24, 20, dtype=dtype), only(crop=crop, size=size, seed=4)
    found, flipped = views(augment, x, step=6), views(replace(augment, flip=1), x, step=6)
    crops = [(0, 0, 20, 24)] * 20 if crop is None else boxes(augment, 20, 24, 20)
    tolerance = {np.uint8: 1, np.float16: 6e-4}.get(dtype, 2e-5)
    for view, image, box in zip(found, x, crops, strict=True):
        assert np.abs(view - resize(image, box, view.shape[:2])).max() <= tolerance
    assert np.array_equal(flipped, found[:, :, ::-1])


def test_crops_equal_those_of_loaders(tmp_path):
    files = []
    for image in random_images(12, 40, 30):
        files.append(io.BytesIO())
        PIL.Image.fromarray(image).save(files[-1], "png")
    examples = [{"image": file.getvalue(), "label": row % 3} for row, file in enumerate(files)]
    features = {"image": covey.Image(), "label": covey.Tensor("int64")}
    covey.write(examples, tmp_path / "d", split="train", label="label", features=features)
    dataset = covey.open(tmp_path / "d")
    scale, ratio = (0.1, 0.5), (0.6, 1.5)
    decoded = dataset.batches(3, 2, seed=5, image_size=24, views=2, crop="random",
                              crop_scale=scale, crop_ratio=ratio)  # fmt: skip
    augment = only(crop=scale, ratio=ratio, size=24, views=2, seed=5)
    plain, whole = dataset.batches(3, 2, seed=5), dataset.batches(3, 2, seed=5, augmenter=augment)
    loaders = zip(decoded, plain, whole, strict=True)
    for step, (((first, second), _), (x, y), (made, _)) in zip(range(3), loaders, strict=False):
        expected = np.stack([first, second], 1).reshape(-1, 24, 24, 3)
        assert np.array_equal(made, expected)
        # Ranks and workers call it with their rows.
        parts = [augment(x[row : row + 2], y[row : row + 2], 2, step=step, row=row)[0]
                 for row in (0, 2, 4)]  # fmt: skip
        assert np.array_equal(np.concatenate(parts), expected)


def test_integers_are_rounded_to_the_nearest():
    x = random_images(20, 24, 20)
    exact = views(only(jitter=1, blur=0.5), x / 255) * 255
    assert np.abs(views(only(jitter=1, blur=0.5), x) - exact).max() < 0.501


# Blur.


@pytest.mark.parametrize("sigma", [0, 0.1, 0.7, 2.0, 9.0])
@pytest.mark.parametrize("shape", [(20, 15), (4, 1)])
def test_blur_equals_that_of_scipy(sigma, shape):
    x = random_images(3, *shape, dtype=np.float64)
    found = views(only(blur=1, sigma=(sigma, sigma)), x)
    expected = gaussian_filter(x, sigma, axes=(1, 2), mode="nearest") if sigma else x
    assert np.abs(found - expected).max() < 1e-6


def test_width_of_blur():
    point = np.zeros((200, 1, 31, 1), np.float64)
    point[:, :, 15] = 1
    heights = views(only(blur=1, sigma=(0.5, 2.0)), point)[:, 0, 15, 0]
    assert len(np.unique(heights)) == 200
    # The maximum of a Gaussian with a standard deviation of 2, and of 0.5.
    assert (heights.min(), heights.max()) == pytest.approx((0.2, 0.78), abs=0.02)


# Colours.


def mid_tones(count, seed=0):
    """Return images whose values are not clipped."""
    return (90 + random_images(count, 12, 10, seed=seed) // 4).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "probe", "enhancer", "tolerance"),
    [
        # The factor is the ratio of the differences of the first and the last value.
        ("brightness", [0.0, 0.5], PIL.ImageEnhance.Brightness, 1),
        ("contrast", [0.4, 0.6], PIL.ImageEnhance.Contrast, 1),
        ("saturation", [0.4, 0.5, 0.6], PIL.ImageEnhance.Color, 1.5),
    ],
)
def test_colours_equal_those_of_pillow(name, probe, enhancer, tolerance):
    x, augment = mid_tones(20), only(**{**COLOURS, name: 0.4}, seed=9)
    shape = (1, 1, 1, 3) if len(probe) == 3 else (1, 1, 2, 1)
    changed = views(augment, np.reshape(probe, shape).repeat(20, 0)).reshape(20, -1)
    factors = (changed[:, -1] - changed[:, 0]) / (probe[-1] - probe[0])
    assert 0.6 <= factors.min() < 0.75 < 1.25 < factors.max() <= 1.4
    for view, image, factor in zip(views(augment, x), x, factors, strict=True):
        expected = enhancer(PIL.Image.fromarray(image)).enhance(factor)
        assert np.abs(view - np.asarray(expected, float)).max() <= tolerance


def yiq(pixels):
    return np.array([colorsys.rgb_to_yiq(*pixel) for pixel in pixels.reshape(-1, 3)])


def test_hue_is_rotated_in_yiq():
    x = mid_tones(40) / 255
    x[..., 0] += 0.2  # no grey pixel, which has no hue
    turns = []
    for view, image in zip(views(only(**{**COLOURS, "hue": 0.3}, seed=9), x), x, strict=True):
        before, after = yiq(image), yiq(view)
        assert np.abs(after[:, 0] - before[:, 0]).max() < 0.01
        turned = (after[:, 1] + 1j * after[:, 2]) / (before[:, 1] + 1j * before[:, 2])
        assert np.allclose(np.median(abs(turned)), 1, atol=0.02)
        turns.append(np.median(np.angle(turned)) / (2 * np.pi))
        assert np.abs(turned / abs(turned) - np.exp(2j * np.pi * turns[-1])).max() < 0.2
    assert -0.31 < min(turns) < -0.2
    assert 0.2 < max(turns) < 0.31


def test_grayscale_equals_that_of_pillow():
    x = random_images(10)
    found = views(only(grayscale=1), x)
    expected = [np.asarray(PIL.Image.fromarray(image).convert("L"), float) for image in x]
    assert np.abs(found - np.stack(expected)[..., np.newaxis]).max() <= 0.6
    assert (found == found[..., :1]).all()


def test_images_of_one_channel_have_no_saturation_and_hue():
    x = random_images(10, channels=1, dtype=np.float64) / 4 + 0.4
    options = {**COLOURS, "brightness": 0.2, "contrast": 0.2}
    found = views(only(**options, seed=3), x)
    with_colours = {**options, "saturation": 0.4, "hue": 0.1}
    assert np.allclose(found, views(only(**with_colours, grayscale=0.5, seed=3), x))
    assert np.allclose(found, views(only(**options, seed=3), x.repeat(3, 3)))


# Errors.


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 4)), r"shape of x is \(4, 4\)"),
        (np.zeros((2, 4, 4, 4)), "1 or 3 channels"),
        (np.zeros((2, 0, 4, 3)), r"shape of x is \(2, 0, 4, 3\)"),
        (np.zeros((2, 4, 4, 3), np.int64), "dtype of x is .*int64.*; must be uint8"),
        (np.zeros((2, 4, 4, 3), bool), "dtype of x is .*bool"),
        (np.full((2, 4, 4, 3), 255.0), r"range of x is \(255.0, 255.0\); must be .*divide by 255"),
        (np.full((2, 4, 4, 3), -1.0), "from 0 to 1"),
        (np.full((2, 4, 4, 3), np.nan), "nan"),
        ({"image": 3}, r"shape of x is \(\)"),
        (torch.zeros((2, 4, 4, 3), device="meta"), r"x is a torch.Tensor.*ds.batches\(augmenter="),
    ],
    ids=lambda value: None,
)
def test_invalid_images(x, message):
    with pytest.raises(ValueError, match=message):
        ContrastiveAugmenter()(x, None, 2)
    symbolic = tf.data.Dataset.from_tensors(np.zeros((4, 4, 4, 3), np.float32))
    with pytest.raises(ValueError, match=r"is not an array of numpy; pass the augmenter to"):
        symbolic.map(lambda x: ContrastiveAugmenter()(x, None, 2)[0])


def test_invalid_arguments():
    x = random_images(2)
    for classes in ([1], 3, np.zeros(0)):
        with pytest.raises(ValueError, match=r"shape of y is .*; must be .2"):
            ContrastiveAugmenter()(x, classes, 2)
    for count, step in ((0, 0), (1.5, 0), (2, -1), (2, 2**64), (2, None)):
        with pytest.raises(PlanError) as error:
            ContrastiveAugmenter()(x, None, count, step=step)
        assert error.value.option in ("examples_per_class", "step")


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("seed", [-1, 1.5]),
        ("views", [0]),
        ("size", [0, (1, 2, 3)]),
        ("crop", [0.5, (0, 1), (0.5, 0.2), (0.5, 1.2)]),
        ("ratio", [(2, 1), None]),
        ("flip", [1.5, "yes"]),
        ("jitter", [-0.1]),
        ("brightness", [2]),
        ("contrast", [None]),
        ("saturation", [(0, 1)]),
        ("hue", [0.6]),
        ("grayscale", [float("nan")]),
        ("blur", [2]),
        ("sigma", [2.0, (-1, 2), (1, "2")]),
    ],
)
def test_invalid_options(option, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"{option} is .*; must be"):
            ContrastiveAugmenter(**{option: value})
