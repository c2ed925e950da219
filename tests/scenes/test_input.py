"""From data to a model: the input is x, transforms may add features, ragged features are padded."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from PIL import Image

import covey
from covey.errors import FeatureError

SPECIES = ("jay", "owl", "tit", "wren")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return a dataset of a directory of photos, with one directory per class."""
    directory = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for species in SPECIES:
        (directory / "photos" / species).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 255, (20, 24, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(directory / "photos" / species / f"{number}.jpg")
    source = covey.sources.open_source(directory / "photos")
    covey.write(source, directory / "birds", split="train", progress=False)
    with covey.open(directory / "birds", split="train") as birds:
        assert set(birds.features) == {"image", "label", "filename"}
        yield birds


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Return a dataset of recordings of different lengths, with their file names."""
    rng = np.random.default_rng(1)
    recordings = [
        {
            "samples": rng.uniform(-1, 1, 100 + 7 * (number % 13)).astype(np.float32),
            "tokens": list(range(1, 2 + number % 5)),
            "text": " ".join(["one", "two", "three", "four", "five"][: 1 + number % 5]),
            "filename": f"{number}.wav",
            "digit": str(number % 4),
        }
        for number in range(48)
    ]
    directory = tmp_path_factory.mktemp("digits") / "digits"
    covey.write(recordings, directory, split="train", label="digit", progress=False)
    with covey.open(directory, split="train") as dataset:
        yield dataset


# A directory of photos.


def test_fit_on_a_directory_of_photos(photos):
    model = keras.Sequential(
        [keras.Input((20, 24, 3)), keras.layers.Flatten(), keras.layers.Dense(4)]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(photos.batches(4, 2, seed=1).to_tf(), epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2


def test_x_is_the_image_in_all_frameworks(photos):
    loader = photos.batches(4, 2, seed=1)
    x, _ = loader.batch(0)
    files = photos[loader.plan.batch(0)]["image"]
    assert np.array_equal(x, [np.asarray(Image.open(io.BytesIO(each))) for each in files])
    assert np.array_equal(next(iter(loader.copy().to_tf()))[0], x)
    assert torch.equal(next(iter(loader.copy().to_torch()))[0], torch.from_numpy(x))
    assert np.array_equal(next(loader.copy().to_jax())[0], x)
    assert photos.batches(4, 2, seed=1, as_dict=True).batch(0).keys() == {"image", "label"}


def test_select_says_otherwise(photos):
    for select in ("all", ["image", "filename"]):
        x, _ = photos.batches(4, 2, seed=1, select=select).batch(0)
        assert set(x) == {"image", "filename"}
        assert x["filename"][0].endswith(".jpg")
    x, _ = photos.batches(4, 2, select="filename").batch(0)
    assert all(name.endswith(".jpg") for name in x)
    with pytest.raises(FeatureError):
        photos.batches(4, 2, select="everything")


def test_a_feature_that_is_called_all(tmp_path):
    examples = [{"all": n, "rest": -n, "label": n % 2} for n in range(8)]
    covey.write(examples, tmp_path / "data", split="train", label="label", progress=False)
    with covey.open(tmp_path / "data") as ds:
        x, _ = ds.sequential(8, select="all").batch(0)
        assert sorted(x.tolist()) == list(range(8))
        assert set(ds.sequential(8).batch(0)[0]) == {"all", "rest"}


def test_photos_of_different_sizes_fail_before_training(tmp_path):
    for number in range(12):
        path = tmp_path / "photos" / SPECIES[number % 4] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (24, 20) if number < 11 else (30, 20)).save(path)
    covey.write(tmp_path / "photos", tmp_path / "birds", progress=False)
    with covey.open(tmp_path / "birds", split="train") as birds:
        with pytest.raises(covey.errors.ImageSizeError) as caught:
            birds.batches(4, 2)
        assert str(caught.value) == (
            "feature 'image': image_size is None; must be an integer such as 224, (height, width) "
            "such as (224, 320), or 'ragged' for a list of arrays; images have different sizes: "
            "20 x 24, 20 x 30"
        )
        for size, shape in ((32, (32, 32)), ((20, 24), (20, 24))):
            spec, _ = birds.batches(4, 2, image_size=size).to_tf().element_spec
            assert tuple(spec.shape) == (8, *shape, 3)
        for size in ("32", -1):
            with pytest.raises(FeatureError) as caught:
                birds.batches(4, 2, image_size=size)
            assert caught.value.allowed == (
                "an integer from 1 to 32767 such as 224, or a pair (height, width) of them such "
                "as (224, 320)"
            )


# Transforms.


def test_a_transform_that_adds_a_feature(photos):
    def with_mean(example):
        return {**example, "mean": example["image"].mean(dtype=np.float32)}

    for select in (None, "image"):
        loader = photos.batches(4, 2, seed=1, select=select, transform=with_mean)
        x, _ = loader.batch(0)
        assert set(x) == {"image", "mean"}
        assert np.allclose(x["mean"], x["image"].mean((1, 2, 3)), rtol=1e-5)
        spec = loader.to_tf().element_spec[0]
        assert {name: tuple(each.shape) for name, each in spec.items()} == {
            "image": (8, 20, 24, 3),
            "mean": (8,),
        }


def test_a_transform_that_returns_a_tuple(photos):
    def crops(example):
        return example["image"][:10], example["image"][:12]

    loader = photos.batches(4, 2, seed=1, transform=crops)
    loader.seek(3)
    with pytest.raises(FeatureError) as caught:
        next(iter(loader.to_torch()))
    error, place = caught.value, photos.place(int(loader.plan.batch(3)[0]))
    assert (error.step, error.row, error.path, error.record) == (3, 0, place.name, place.record)
    assert error.found == (
        "tuple of (uint8 array of shape (10, 24, 3), uint8 array of shape (12, 24, 3))"
    )


# Sounds and texts.


def test_sounds_of_different_lengths(digits):
    loader = digits.batches(4, 3, seed=2, select="samples", pad=0, pad_length=160, truncate=True)
    for x, y in loader.to_torch(num_workers=0):
        assert x["samples"].shape == (12, 160)
        assert x["samples"].dtype == torch.float32
        assert y.shape == (12,)
        for row, length in zip(x["samples"], x["samples_length"], strict=True):
            assert row[:length].abs().min() > 0
            assert not row[length:].any()

    inputs = {
        "samples": keras.Input((160,), name="samples"),
        "samples_length": keras.Input((), name="samples_length", dtype="int64"),
    }
    model = keras.Model(inputs, keras.layers.Dense(4)(inputs["samples"]))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.evaluate(loader.to_tf(), verbose=0))


def test_a_sequential_model_of_sounds(digits):
    options = {"seed": 2, "select": "samples", "pad": 0, "pad_lengths": False}
    loader = digits.batches(4, 3, **options)
    batches = loader.to_tf()
    assert batches.element_spec[0] == tf.TensorSpec([12, None], tf.float32)
    model = keras.Sequential(
        [
            keras.Input((None,)),
            keras.layers.Reshape((-1, 1)),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(batches, epochs=2, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for x, _ in loader.copy(batch=0).to_torch():
        assert isinstance(x, torch.Tensor)
    fixed = digits.batches(4, 3, **options, pad_length=160, truncate=True).to_tf()
    assert fixed.element_spec[0] == tf.TensorSpec([12, 160], tf.float32)


def test_tokens_are_padded_like_by_tensorflow(digits):
    options = {"seed": 2, "select": "tokens"}
    ragged = digits.batches(4, 3, **options).to_tf()
    padded = digits.batches(4, 3, pad=-1, **options).to_tf()
    assert padded.element_spec[0]["tokens"] == tf.TensorSpec([12, None], tf.int64)
    for (rows, _), (x, _) in zip(ragged, padded, strict=True):
        assert np.array_equal(rows.to_tensor(-1), x["tokens"])
        assert np.array_equal(rows.row_lengths(), x["tokens_length"])


def test_texts_that_a_transform_converts_to_tokens(digits):
    words = {word: number for number, word in enumerate(["one", "two", "three", "four", "five"], 1)}

    def tokenize(example):
        return {"tokens": [words[word] for word in example["text"].split()]}

    loader = digits.batches(4, 3, seed=2, select="text", transform=tokenize, pad={"tokens": 0})
    expected = digits.batches(4, 3, seed=2, select="tokens", pad=0)
    for (x, _), (right, _) in zip(loader.to_torch(), expected, strict=True):
        assert {name: each.tolist() for name, each in x.items()} == {
            name: each.tolist() for name, each in right.items()
        }
    x, _ = digits.batches(4, 3, seed=2, select="text").batch(0)
    assert isinstance(x[0], str)


def test_tokens_are_padded_like_by_pad_sequence_after_resuming(digits):
    def make():
        return digits.batches(4, 3, seed=2, select="tokens", pad=0, steps_per_epoch=6)

    columns = [digits[make().plan.batch(step)]["tokens"] for step in range(6)]
    expected = [
        torch.nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)
        for rows in columns
    ]
    assert same(make().to_torch(), expected)
    first, resumed = make().to_torch(), make().to_torch()
    batches = iter(first)
    for _ in range(2):
        next(batches)
    resumed.load_state_dict(first.state_dict())
    assert same(resumed, expected[2:])


def same(batches, expected):
    pairs = zip(batches, expected, strict=True)
    return all(torch.equal(x["tokens"], right) for (x, _), right in pairs)
