"""Augmenters: what they are, and views of images for contrastive learning."""

import colorsys
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from covey.augmenters import Augmenter, ContrastiveAugmenter, contrastive

DTYPES = [np.uint8, np.float16, np.float32, np.float64]

# Nothing is left to chance; tests have one thing more.
OFF = {"crop": None, "flip": 0, "jitter": 0, "grayscale": 0, "blur": 0}
COLOURS = {"jitter": 1, "brightness": 0, "contrast": 0, "saturation": 0, "hue": 0}


def only(**options):
    return ContrastiveAugmenter(**{**OFF, **options})


def pictures(count, height=12, width=10, channels=3, dtype=np.uint8, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (count, height, width, channels))
    return values.astype(np.uint8) if dtype == np.uint8 else (values / 255).astype(dtype)


def views(augmenter, x, count=1, step=0):
    return augmenter(x, np.arange(len(x)), count, step=step)[0]


# What an augmenter is.


class Told(Augmenter):
    def augment(self, x, y, examples_per_class, is_warmup, *, step=0):
        return x, y, examples_per_class, is_warmup, step


class OfOldName(Augmenter):
    """As those are that were written for TensorFlow Similarity."""

    def augment(self, x, y, num_augmentations_per_example, is_warmup):
        return x, y, num_augmentations_per_example, is_warmup


def test_an_augmenter_is_told_the_step_if_it_takes_it():
    assert Told()("x", "y", 2, True, step=5) == ("x", "y", 2, True, 5)
    assert Told()("x", "y", 2) == ("x", "y", 2, False, 0)
    assert OfOldName()("x", "y", 3, True, step=5) == ("x", "y", 3, True)


def test_an_augmenter_must_augment():
    with pytest.raises(TypeError, match="abstract"):
        Augmenter()


# Views.


@st.composite
def batches(draw):
    count, height, width = (draw(st.integers(least, 9)) for least in (0, 1, 1))
    channels, dtype = draw(st.sampled_from([1, 3])), draw(st.sampled_from(DTYPES))
    return pictures(count, height, width, channels, dtype, seed=draw(st.integers(0, 99)))


@given(
    x=batches(),
    count=st.integers(1, 3),
    step=st.integers(0, 2**64 - 1),
    size=st.none() | st.tuples(st.integers(1, 12), st.integers(1, 12)),
)
@settings(max_examples=60)
def test_views_have_their_shape_and_type_and_are_within_range(x, count, step, size):
    found, y = ContrastiveAugmenter(seed=3, size=size)(x, np.arange(len(x)), count, step=step)
    assert found.shape == (len(x) * count, *(size or x.shape[1:3]), x.shape[3])
    assert found.dtype == x.dtype
    assert y.tolist() == np.arange(len(x)).repeat(count).tolist()
    assert ((found >= 0) & (found <= (255 if x.dtype == np.uint8 else 1))).all()


@given(x=batches(), count=st.integers(1, 3), step=st.integers(0, 9), part=st.integers(1, 9))
@settings(max_examples=40)
def test_a_view_depends_on_seed_step_and_place_alone(x, count, step, part):
    augment, before = ContrastiveAugmenter(seed=5), np.random.get_state()[1].tolist()
    found = views(augment, x, count, step)
    views(augment, pictures(3), 2, step + 1)
    assert np.array_equal(found, views(augment, x.copy(), count, step))
    assert np.array_equal(found[: part * count], views(augment, x[:part], count, step))
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_how_many_are_made_at_once_changes_nothing(monkeypatch, dtype):
    x = pictures(20, dtype=dtype)
    found = []
    for size in (1, 3000, 1 << 30):
        monkeypatch.setattr(contrastive, "_CHUNK_VALUES", size)
        found.append(views(ContrastiveAugmenter(), x, 3))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_other_seeds_steps_places_and_views_are_different():
    same = pictures(1).repeat(8, 0)
    found = [
        view.tobytes()
        for seed in (0, 1, 2**64 - 1)
        for step in (0, 1, 2**40)
        for view in views(ContrastiveAugmenter(seed=seed), same, 2, step)
    ]
    assert len(set(found)) == len(found) == 3 * 3 * 16


def test_views_are_the_same_in_all_versions():
    ramp = np.arange(2.0).reshape(1, 1, 2, 1).repeat(32, 0)
    flipped = views(only(flip=0.5, seed=7), ramp, step=3)[:, 0, 0, 0]
    assert "".join(str(int(each)) for each in flipped) == "00001001010011000011101011001110"


def test_an_augmenter_can_be_pickled_and_shared_by_threads():
    augment, x = ContrastiveAugmenter(seed=2), pictures(9)
    again = pickle.loads(pickle.dumps(augment))
    assert again == augment
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda step: views(again, x, 2, step), range(12)))
    assert all(np.array_equal(each, views(augment, x, 2, n)) for n, each in enumerate(found))


# How many views.


def test_an_example_that_is_a_class_of_its_own_becomes_several():
    x, y = only()(pictures(4), np.array([5, 3, 9, 1]), 3)
    assert y.tolist() == [5, 5, 5, 3, 3, 3, 9, 9, 9, 1, 1, 1]
    assert np.array_equal(x, pictures(4).repeat(3, 0))


def test_a_batch_that_has_enough_of_each_class_keeps_its_size():
    classes = np.array([5, 5, 3, 3, 9, 9])
    x, y = only()(pictures(6), classes, 2)
    assert np.array_equal(x, pictures(6))
    assert y.tolist() == classes.tolist()
    x, y = only(views=2)(pictures(6), classes, 2)
    assert np.array_equal(x, pictures(6).repeat(2, 0))
    assert len(only()(pictures(6), classes, 3)[1]) == 18  # it has not
    assert len(only()(pictures(6), classes[[0, 2, 4, 1, 3, 5]], 2)[1]) == 12  # not in a row


@pytest.mark.parametrize("classes", [None, [7, 8], np.eye(2)])
def test_classes_of_any_kind(classes):
    x, y = only()(pictures(2), classes, 2)
    assert np.array_equal(x, pictures(2).repeat(2, 0))
    assert y is None if classes is None else np.array_equal(y, np.repeat(classes, 2, 0))


def test_images_without_channels_stay_so():
    x = pictures(3, channels=1)
    found = views(ContrastiveAugmenter(), x[..., 0], 2)
    assert np.array_equal(found, views(ContrastiveAugmenter(), x, 2)[..., 0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_images_stay_as_they_are_if_nothing_is_asked_for(dtype):
    x = pictures(5, dtype=dtype)
    assert np.array_equal(views(only(), x, 2), x.repeat(2, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_warm_up_views_are_the_images(dtype):
    x = pictures(5, dtype=dtype)
    found, y = ContrastiveAugmenter()(x, np.arange(5), 2, True, step=4)
    assert np.array_equal(found, x.repeat(2, 0))
    assert len(y) == 10
    smaller = ContrastiveAugmenter(size=6)(x, np.arange(5), 2, True)[0]
    assert np.array_equal(smaller, views(only(size=6), x, 2))


# Flips and crops.


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_flip_is_exact(dtype):
    x = pictures(40, dtype=dtype)
    assert np.array_equal(views(only(flip=1), x), x[:, :, ::-1])
    found = views(only(flip=0.5), x)
    is_flipped = [np.array_equal(a, b[:, ::-1]) for a, b in zip(found, x, strict=True)]
    assert [np.array_equal(a, b) for a, b in zip(found, x, strict=True)] == [
        not each for each in is_flipped
    ]
    assert 10 < sum(is_flipped) < 30


def test_a_crop_is_flipped_as_it_is():
    x, crop = pictures(40, dtype=np.float32), (0.1, 0.5)
    found, plain = views(only(flip=1, crop=crop), x), views(only(crop=crop), x)
    assert np.allclose(found, plain[:, :, ::-1], atol=1e-6)


def boxes(augmenter, count, height, width):
    """What views show, (left, top, right, bottom): as a picture tells whose values are places."""
    ramp = np.zeros((count, height, width, 3))
    ramp[..., 0] = np.arange(height)[:, np.newaxis] / height
    ramp[..., 1] = np.arange(width) / width
    found = views(augmenter, ramp, step=6)
    sides = []
    for line, length in ((found[:, :, 0, 0], height), (found[:, 0, :, 1], width)):
        size = line.shape[1]
        a, b = size // 3, 2 * size // 3  # where no edge is near
        scale = (line[:, b] - line[:, a]) * length / (b - a)
        begin = line[:, a] * length + 0.5 - (a + 0.5) * scale
        sides.append((begin, begin + scale * size))
    (top, bottom), (left, right) = sides
    return np.stack([left, top, right, bottom], 1)


@pytest.mark.parametrize("shape", [(24, 24), (30, 20)])
@pytest.mark.parametrize("crop", [(0.08, 1.0), (0.5, 0.6), (0.2, 0.2)])
def test_crops_have_the_areas_and_ratios_that_were_asked_for(shape, crop):
    ratio = (0.6, 1.5)
    found = boxes(only(crop=crop, ratio=ratio), 1000, *shape)
    left, top, right, bottom = found.T
    assert min(left.min(), top.min()) > -1e-6
    assert right.max() < shape[1] + 1e-6
    assert bottom.max() < shape[0] + 1e-6
    area = (right - left) * (bottom - top) / (shape[0] * shape[1])
    ratios = (right - left) / (bottom - top)
    spread = crop[1] - crop[0]
    assert crop[0] - 1e-6 < area.min() < crop[0] + spread * 0.02 + 1e-6
    assert crop[1] - spread * 0.02 - 1e-6 < area.max() < crop[1] + 1e-6
    assert abs(area.mean() - sum(crop) / 2) < 0.03
    assert 0.6 - 1e-6 < ratios.min() < 0.62
    widest = min(1.5, shape[1] / shape[0] / crop[0])
    assert widest * 0.95 < ratios.max() < widest + 1e-6
    if crop[1] < 0.5:
        assert abs(np.log(ratios).mean() - np.log(0.6 * 1.5) / 2) < 0.03
        centre = (left + right) / 2 / shape[1]
        assert abs(centre.mean() - 0.5) < 0.02


def test_a_crop_that_fits_into_no_image_is_a_smaller_one():
    left, top, right, bottom = boxes(only(crop=(0.9, 1.0)), 50, 20, 60).T
    assert np.allclose((right - left) / (bottom - top), 4 / 3)
    assert np.allclose(bottom - top, 20)
    assert left.max() - left.min() > 25


def resized(image, box, size):
    """A part of an image in another size, as Pillow has it."""
    planes = [PIL.Image.fromarray(plane) for plane in image.transpose(2, 0, 1)]
    bilinear = PIL.Image.Resampling.BILINEAR
    found = [plane.resize(size[::-1], bilinear, box=tuple(box)) for plane in planes]
    return np.stack([np.asarray(plane) for plane in found], 2)


@pytest.mark.parametrize("size", [None, (32, 40), (9, 30), (7, 5)])
def test_crops_are_as_pillow_resizes_them(size):
    augment, x = only(crop=(0.1, 1.0), size=size, seed=4), pictures(30, 24, 20, dtype=np.float32)
    wide = only(crop=(0.1, 1.0), size=(99, 99), seed=4)  # which tells the boxes best
    found = views(augment, x, step=6)
    places = boxes(wide, 30, 24, 20).clip(0, (20, 24, 20, 24))
    for view, image, box in zip(found, x, places, strict=True):
        assert np.abs(view - resized(image, box, view.shape[:2])).max() < 2e-5


@pytest.mark.parametrize("size", [(40, 31), (7, 11), (24, 20), (1, 1)])
def test_whole_images_are_as_torch_resizes_them(size):
    x = pictures(3, 24, 20, dtype=np.float32)
    planes = torch.from_numpy(x.transpose(0, 3, 1, 2))
    classify = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=True)
    found = views(only(size=size), x)
    assert np.abs(found - classify.numpy().transpose(0, 2, 3, 1)).max() < 1e-5


def test_bytes_are_rounded_to_the_nearest():
    x = pictures(20, 24, 20)
    found = views(only(crop=(0.1, 1), blur=0.5), x)
    exact = views(only(crop=(0.1, 1), blur=0.5), x / 255) * 255
    assert np.abs(found - exact).max() < 0.501


@pytest.mark.parametrize("shape", [(24, 24), (3, 400), (330, 2)])
def test_large_images_are_cropped_as_small_ones(monkeypatch, shape):
    x = pictures(2, *shape, dtype=np.float32)
    found = views(ContrastiveAugmenter(), x, 2)
    monkeypatch.setattr("covey.augmenters.linear._MAX_SERIAL_PRODUCT", 1 << 40)
    complete = views(ContrastiveAugmenter(), x, 2)
    monkeypatch.setattr("covey.augmenters.linear._MAX_SERIAL_PRODUCT", 1)
    parts = views(ContrastiveAugmenter(), x, 2)
    assert np.abs(found - complete).max() < 1e-5
    assert np.abs(found - parts).max() < 1e-5


# Blur.


@pytest.mark.parametrize("sigma", [0, 0.1, 0.7, 2.0, 9.0])
@pytest.mark.parametrize("shape", [(20, 15), (4, 1)])
def test_blur_is_that_of_scipy(sigma, shape):
    x = pictures(3, *shape, dtype=np.float64)
    found = views(only(blur=1, sigma=(sigma, sigma)), x)
    classify = gaussian_filter(x, sigma, axes=(1, 2), mode="nearest") if sigma else x
    assert np.abs(found - classify).max() < 1e-6


def test_some_images_are_blurred_each_by_its_own_width():
    point = np.zeros((400, 1, 31, 1), np.float64)
    point[:, :, 15] = 1
    heights = views(only(blur=0.3, sigma=(0.5, 2.0)), point)[:, 0, 15, 0]
    is_blurred = heights < 1
    assert 0.22 < is_blurred.mean() < 0.38
    blurred = heights[is_blurred]
    assert len(np.unique(blurred)) == len(blurred)
    assert 0.199 < blurred.min() < 0.21  # the top of a bell of the width 2,
    assert 0.75 < blurred.max() < 0.79  # and of 0.5


# Colours.


def changed(x, **options):
    """Images in other colours, and the same change of a picture that tells how much it was."""
    augment = only(**{**COLOURS, **options}, seed=9)
    return views(augment, x), lambda told: views(augment, told.repeat(len(x), 0))


def calm(count, seed=0):
    """Pictures whose values stay within range."""
    return (90 + pictures(count, 12, 10, seed=seed) // 4).astype(np.uint8)


def test_brightness_is_that_of_pillow():
    x = calm(20)
    found, tell = changed(x, brightness=0.4)
    factors = tell(np.full((1, 1, 1, 1), 0.5))[:, 0, 0, 0] / 0.5
    assert 0.6 <= factors.min() < 0.75 < 1.25 < factors.max() <= 1.4
    for view, image, factor in zip(found, x, factors, strict=True):
        classify = PIL.ImageEnhance.Brightness(PIL.Image.fromarray(image)).enhance(factor)
        assert np.abs(view - np.asarray(classify, float)).max() <= 1


def test_contrast_is_that_of_pillow():
    x = calm(20)
    found, tell = changed(x, contrast=0.4)
    ends = tell(np.array([0.4, 0.6]).reshape(1, 1, 2, 1))[:, 0, :, 0]
    factors = (ends[:, 1] - ends[:, 0]) / 0.2
    assert 0.6 <= factors.min() < 0.75 < 1.25 < factors.max() <= 1.4
    for view, image, factor in zip(found, x, factors, strict=True):
        classify = PIL.ImageEnhance.Contrast(PIL.Image.fromarray(image)).enhance(factor)
        assert np.abs(view - np.asarray(classify, float)).max() <= 1


def test_saturation_is_that_of_pillow():
    x = calm(20)
    found, tell = changed(x, saturation=0.4)
    colours = tell(np.array([0.4, 0.5, 0.6]).reshape(1, 1, 1, 3))[:, 0, 0]
    factors = (colours[:, 2] - colours[:, 0]) / 0.2
    assert 0.6 <= factors.min() < 0.75 < 1.25 < factors.max() <= 1.4
    for view, image, factor in zip(found, x, factors, strict=True):
        classify = PIL.ImageEnhance.Color(PIL.Image.fromarray(image)).enhance(factor)
        assert np.abs(view - np.asarray(classify, float)).max() <= 1.5


def yiq(pixels):
    return np.array([colorsys.rgb_to_yiq(*pixel) for pixel in pixels.reshape(-1, 3)])


def test_hues_are_turned_around_in_yiq():
    x = calm(40) / 255
    x[..., 0] += 0.2  # nothing is grey, which has no hue
    found, _ = changed(x, hue=0.3)
    turns = []
    for view, image in zip(found, x, strict=True):
        before, after = yiq(image), yiq(view)
        assert np.abs(after[:, 0] - before[:, 0]).max() < 0.01
        turned = (after[:, 1] + 1j * after[:, 2]) / (before[:, 1] + 1j * before[:, 2])
        assert np.allclose(np.median(abs(turned)), 1, atol=0.02)
        turns.append(np.median(np.angle(turned)) / (2 * np.pi))
        assert np.abs(turned / abs(turned) - np.exp(2j * np.pi * turns[-1])).max() < 0.2
    assert -0.31 < min(turns) < -0.2
    assert 0.2 < max(turns) < 0.31


def test_grey_is_that_of_pillow():
    x = pictures(10)
    found = views(only(grayscale=1), x)
    classify = [np.asarray(PIL.Image.fromarray(image).convert("L"), float) for image in x]
    assert np.abs(found - np.stack(classify)[..., np.newaxis]).max() <= 0.6
    assert (found == found[..., :1]).all()


def test_colours_change_one_after_the_other():
    x = calm(30, seed=3)
    augment = only(**{**COLOURS, "brightness": 0.1, "contrast": 0.1}, seed=9)
    bright = views(only(**{**COLOURS, "brightness": 0.1}, seed=9), x / 255)
    both = views(only(**{**COLOURS, "contrast": 0.1}, seed=9), bright)
    assert np.allclose(views(augment, x / 255), both)
    coloured = only(**{**COLOURS, "saturation": 0.2, "hue": 0.1}, seed=9)
    saturated = views(only(**{**COLOURS, "saturation": 0.2}, seed=9), x / 255)
    turned = views(only(**{**COLOURS, "hue": 0.1}, seed=9), saturated)
    assert np.allclose(views(coloured, x / 255), turned)


def test_as_many_are_changed_as_were_asked_for():
    x = np.full((2000, 1, 1, 3), [0.4, 0.5, 0.6])
    for options, least, most in (
        ({**COLOURS, "jitter": 0.8, "brightness": 0.4}, 0.77, 0.83),
        ({"grayscale": 0.2}, 0.17, 0.23),
        ({"flip": 0.5}, 0, 0),
    ):
        share = (views(only(**options), x) != x).any((1, 2, 3)).mean()
        assert least <= share <= most


def test_an_image_of_one_channel_has_brightness_and_contrast_only():
    x = pictures(10, channels=1, dtype=np.float64) / 4 + 0.4
    coloured = {**COLOURS, "brightness": 0.2, "contrast": 0.2}
    found = views(only(**coloured, seed=3), x)
    with_colours = {**coloured, "saturation": 0.4, "hue": 0.1}
    assert np.allclose(found, views(only(**with_colours, grayscale=0.5, seed=3), x))
    three = views(only(**coloured, seed=3), x.repeat(3, 3))
    assert np.allclose(found, three)


# Mistakes.


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (np.zeros((4, 4)), r"shape \(4, 4\)"),
        (np.zeros((2, 4, 4, 4)), "1 or 3 channels"),
        (np.zeros((2, 0, 4, 3)), r"shape \(2, 0, 4, 3\)"),
        (np.zeros((2, 4, 4, 3), np.int64), "the dtype of x is int64; must be uint8"),
        (np.zeros((2, 4, 4, 3), bool), "the dtype of x is bool"),
        (np.full((2, 4, 4, 3), 255.0), "from 255.0 to 255.0.*divide by 255"),
        (np.full((2, 4, 4, 3), -1.0), "from 0 to 1"),
        (np.full((2, 4, 4, 3), np.nan), "nan"),
        ({"image": 3}, r"shape \(\)"),
    ],
    ids=lambda value: None,
)
def test_what_are_no_images_is_refused(x, told):
    with pytest.raises(ValueError, match=told):
        ContrastiveAugmenter()(x, None, 2)


@pytest.mark.parametrize("classes", [[1, 2], 3, np.zeros(0)])
def test_classes_must_be_as_many_as_images(classes):
    with pytest.raises(ValueError, match=r"y has the shape .*; must be .3"):
        ContrastiveAugmenter()(pictures(3), classes, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1}, {"seed": 1.5}, {"views": 0}, {"size": 0}, {"size": (1, 2, 3)},
        {"crop": 0.5}, {"crop": (0, 1)}, {"crop": (0.5, 0.2)}, {"crop": (0.5, 1.2)},
        {"ratio": (2, 1)}, {"ratio": None}, {"flip": 1.5}, {"flip": "yes"}, {"jitter": -0.1},
        {"brightness": 2}, {"contrast": None}, {"saturation": (0, 1)}, {"hue": 0.6},
        {"grayscale": float("nan")}, {"blur": 2}, {"sigma": 2.0}, {"sigma": (-1, 2)},
        {"sigma": (1, "2")},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"{name} is .*; must be"):
        ContrastiveAugmenter(**options)


@pytest.mark.parametrize(("count", "step"), [(0, 0), (1.5, 0), (2, -1), (2, 2**64), (2, None)])
def test_counts_and_steps_are_whole_numbers(count, step):
    with pytest.raises(ValueError, match="must be an integer"):
        ContrastiveAugmenter()(pictures(2), None, count, step=step)
