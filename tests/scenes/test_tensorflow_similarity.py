"""Code that was written for versions 0.14 to 0.17 of TensorFlow Similarity."""

import keras
import numpy as np
import pytest
import tensorflow as tf

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
    assert augment.numbers == {0}
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


@pytest.mark.parametrize("workers", [1, 2])
def test_evaluation_between_epochs_of_fit(workers):
    asked = []

    class Recorded(MultiShotMemorySampler):
        def _get_examples(self, batch_id, num_classes, examples_per_class):
            asked.append(self.step(batch_id))
            return super()._get_examples(batch_id, num_classes, examples_per_class)

    sampler = Recorded(X, Y, 4, 2, steps_per_epoch=6, workers=workers, framework="tensorflow")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(10)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch(*sampler[0])
    model.test_on_batch(*sampler[0])
    for epoch in range(3):
        assert sampler.epoch == epoch
        model.fit(sampler, verbose=0)
        assert sampler.epoch == epoch + 1
        asked.clear()
        first = model.evaluate(sampler, verbose=0)
        assert model.evaluate(sampler, verbose=0) == pytest.approx(first)
        model.predict(sampler, verbose=0)
        assert {step // 6 for step in asked} == {epoch + 1}
        assert sampler.epoch == epoch + 1
