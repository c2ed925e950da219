"""Code that was written for versions 0.14 to 0.17 of TensorFlow Similarity."""

import numpy as np
import tensorflow as tf
from sampled import run

from covey.samplers import MultiShotMemorySampler, Sampler, SingleShotMemorySampler

X = np.arange(200, dtype=np.float32).reshape(200, 1)
Y = np.repeat(np.arange(10), 20)  # sorted by class


class TensorAugmenter:
    """An augmenter of these versions: tensors, and the number of augmentations."""

    def __init__(self):
        self.numbers = set()

    def __call__(self, x, y, num_augmentations_per_example, is_warmup):
        self.numbers.add(num_augmentations_per_example)
        count = max(1, num_augmentations_per_example)
        noise = tf.random.stateless_uniform([len(x) * count, 1], [1, 2], maxval=1e-3)
        return tf.repeat(x, count, axis=0) + noise, tf.repeat(y, count)


class OwnSampler(Sampler):
    def __init__(self, x, **options):
        super().__init__(
            classes_per_batch=3,
            examples_per_class_per_batch=2,
            num_augmentations_per_example=4,
            steps_per_epoch=5,
            **options,
        )
        self.x = x

    def _get_examples(self, batch_id, num_classes, examples_per_class):
        ids = (np.arange(num_classes) * 20 + batch_id).repeat(examples_per_class)
        return self.x[ids], Y[ids]


def test_single_shot():
    augment = TensorAugmenter()
    sampler = SingleShotMemorySampler(
        X, augmenter=augment, examples_per_batch=6, num_augmentations_per_example=3,
        steps_per_epoch=10, augmenter_framework="tensorflow", framework="tensorflow",
    )  # fmt: skip
    x, y = sampler[0]
    assert (x.shape, y.shape) == ((18, 1), (18,))
    assert np.allclose(x[:, 0], y, atol=1e-2)
    assert augment.numbers == {3}


def test_multi_shot():
    augment = TensorAugmenter()
    sampler = MultiShotMemorySampler(
        X, Y, classes_per_batch=5, examples_per_class_per_batch=2, augmenter=augment,
        augmenter_framework="tensorflow", framework="tensorflow",
    )  # fmt: skip
    assert sampler[0][0].shape == (10, 1)
    assert augment.numbers == {1}
    x, y = sampler.get_slice(0, 40)
    assert len(np.unique(y)) > 5
    assert np.array_equal(Y[np.asarray(x, int)[:, 0]], y)
    _, labels = sampler.get_slice()
    for label, positions in sampler.index_per_class.items():
        assert set(np.asarray(labels)[positions].tolist()) == {label}


def test_own_sampler():
    augment = TensorAugmenter()
    sampler = OwnSampler(
        X, augmenter=augment, augmenter_framework="tensorflow", framework="tensorflow"
    )
    x, y = sampler[4]
    assert (x.shape, y.shape) == ((24, 1), (24,))
    assert augment.numbers == {4}


# The minimal example of the README of TensorFlow Similarity, with less data and fewer filters.
QUICKSTART = """
import json
import sys

import matplotlib
import numpy as np

matplotlib.use("agg")
import covey
from covey.samplers import TFDatasetMultiShotMemorySampler

random = np.random.default_rng(1)
digits = np.eye(10, dtype=np.uint8).repeat(30, 0).reshape(300, 1, 10, 1) * np.uint8(200)
images = digits.repeat(10, 1) + random.integers(0, 50, (300, 10, 10, 1), np.uint8)
covey.write({"image": images, "label": np.arange(300) // 30}, sys.argv[1], split="train",
            label="label", progress=False)

sampler = TFDatasetMultiShotMemorySampler(
    dataset_name=sys.argv[1], splits="train", classes_per_batch=10,
    steps_per_epoch=20)

from tensorflow.keras import layers
from tensorflow_similarity.layers import MetricEmbedding
from tensorflow_similarity.models import SimilarityModel

inputs = layers.Input(shape=(10, 10, 1))
x = layers.Rescaling(1 / 255)(inputs)
x = layers.Conv2D(4, 3, activation="relu")(x)
x = layers.Flatten()(x)
x = layers.Dense(64, activation="relu")(x)
outputs = MetricEmbedding(64)(x)
model = SimilarityModel(inputs, outputs)

from tensorflow_similarity.losses import MultiSimilarityLoss

model.compile("adam", loss=MultiSimilarityLoss())
history = model.fit(sampler, epochs=5, verbose=0)

from tensorflow_similarity.visualization import viz_neigbors_imgs

sx, sy = sampler.get_slice(0, 100)
model.index(x=sx, y=sy, data=sx)
qx, qy = sampler.get_slice(213, 1)
nns = model.single_lookup(qx[0])
viz_neigbors_imgs(qx[0], qy[0], nns, show=False)
print(json.dumps({
    "losses": history.history["loss"],
    "epoch": sampler.epoch,
    "label": int(qy[0]),
    "neighbours": [int(each.label) for each in nns],
}))
"""


def test_quickstart(tmp_path):
    script = tmp_path / "quickstart.py"
    script.write_text(QUICKSTART)
    found = run(script, tmp_path / "digits", TF_USE_LEGACY_KERAS="1")
    assert len(found["losses"]) == found["epoch"] == 5
    assert np.isfinite(found["losses"]).all()
    assert found["neighbours"] == [found["label"]] * 5
