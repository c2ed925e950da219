"""TFDataSampler: balanced batches of a finite tf.data.Dataset."""

import numpy as np
import pytest
import tensorflow as tf
from sampled import is_exact, is_fair

from covey.samplers import TFDataSampler

COUNT, CLASSES = 120, 8
LABELS = np.random.default_rng(1).permutation(COUNT) % CLASSES


def numbered(labels=LABELS):
    """Return examples that are their numbers, and their classes."""
    return tf.data.Dataset.from_tensor_slices((np.arange(len(labels)), labels))


def steps(batches, count):
    return [batch[0].numpy().tolist() for batch in batches.take(count)]


# The batches.


def test_batches_are_exact_and_fair():
    batches = TFDataSampler(numbered().shuffle(COUNT), 4, 3)  # is read once
    found = []
    for x, y in batches.take(40):
        assert is_exact(y, 4, 3)
        assert len(set(x.numpy().tolist())) == 12
        assert LABELS[x.numpy()].tolist() == y.numpy().tolist()
        found += x.numpy().tolist()
    assert is_fair(found, range(COUNT))
    spec = tf.TensorSpec([12], tf.int64)
    assert batches.element_spec == (spec, spec)
    assert int(batches.cardinality()) == tf.data.INFINITE_CARDINALITY
    seeded = [steps(TFDataSampler(numbered(), 4, 2, seed=seed), 5) for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]


def test_class_list_and_total_examples_per_class():
    batches = TFDataSampler(numbered(), 2, 2, class_list=[1, 3, 6], total_examples_per_class=4)
    drawn = {n for batch in steps(batches, 50) for n in batch}
    assert drawn == {n for label in (1, 3, 6) for n in np.flatnonzero(label == LABELS)[:4]}
    names = np.array([f"bird {label}" for label in LABELS])
    batches = TFDataSampler(numbered(names), 2, 3, class_list=["bird 2", b"bird 5"])
    assert all(set(y.numpy()) == {b"bird 2", b"bird 5"} for _, y in batches.take(5))


@pytest.mark.parametrize(("output", "label_output"), [((9, 0), 1), ({"a": 9, "b": 0}, "b")])
def test_label_output(output, label_output):
    def several(x, y):
        return x, tf.nest.map_structure(lambda n: y + n, output), x * 2

    batches = TFDataSampler(numbered().map(several), 3, 2, label_output=label_output)
    for x, y, more in batches.take(5):
        assert is_exact(y[label_output], 3, 2)
        assert tf.nest.map_structure(lambda n: n.numpy().tolist(), y) == tf.nest.map_structure(
            lambda n, x=x: (LABELS[x.numpy()] + n).tolist(), output
        )
        assert more.numpy().tolist() == (x.numpy() * 2).tolist()


def test_resume_from_checkpoint(tmp_path):
    expected = steps(TFDataSampler(numbered(), 4, 3), 30)
    iterator, other = (iter(TFDataSampler(numbered(), 4, 3)) for _ in range(2))
    assert [next(iterator)[0].numpy().tolist() for _ in range(13)] == expected[:13]
    saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "saved"))
    tf.train.Checkpoint(iterator=other).read(saved)
    assert [next(other)[0].numpy().tolist() for _ in range(17)] == expected[13:]


# Functions.


def load(path, y):
    number = tf.constant(-1.0)
    if tf.strings.length(path) > 1:  # control flow that AutoGraph converts
        number = tf.strings.to_number(path)
    return tf.fill([2, 2], number), y


def test_load_fn():
    paths = np.array([str(n) for n in range(COUNT)])
    batches = TFDataSampler(tf.data.Dataset.from_tensor_slices((paths, LABELS)), 4, 2, load_fn=load)
    plain = TFDataSampler(numbered(), 4, 2)
    assert batches.element_spec[0] == tf.TensorSpec([8, 2, 2], tf.float32)
    for (x, y), (n, label) in zip(batches.take(20), plain, strict=False):
        assert x.numpy()[:, 1, 1].tolist() == [each if each > 9 else -1 for each in n.numpy()]
        assert np.array_equal(y, label)


def negate(x, y):
    return -x, y


def test_the_augmenter_is_called_after_load_fn():
    batches = TFDataSampler(numbered(), 4, 2, augmenter=negate, load_fn=lambda x, y: (x + 1000, y))
    plain = steps(TFDataSampler(numbered(), 4, 2), 20)
    assert steps(batches, 20) == [[-n - 1000 for n in batch] for batch in plain]


@pytest.mark.parametrize("warmup", [3, 8, 21])
def test_warmup(warmup):
    plain = np.concatenate(steps(TFDataSampler(numbered(), 4, 2), 5))
    found = np.concatenate(
        steps(TFDataSampler(numbered(), 4, 2, augmenter=negate, warmup=warmup), 5)
    )
    assert found[:warmup].tolist() == plain[:warmup].tolist()
    assert found[warmup:].tolist() == (-plain[warmup:]).tolist()


def uneven(labels=LABELS):
    """Return images of different sizes."""

    def images():
        for number, label in enumerate(labels):
            yield np.full((2 + number % 3, 4, 1), number, np.uint8), label

    signature = (tf.TensorSpec([None, 4, 1], tf.uint8), tf.TensorSpec([], tf.int64))
    dataset = tf.data.Dataset.from_generator(images, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(labels)))


def test_unknown_but_equal_shapes():
    def same(x, y):
        return x[:2], y

    batches = TFDataSampler(uneven().map(same), 3, 2)
    assert batches.element_spec[0] == tf.TensorSpec([6, 2, 4, 1], tf.uint8)
    assert is_exact(next(iter(batches))[1], 3, 2)


# Errors.


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (numbered().repeat(), r"no known size; use take\(\)"),
        (numbered().filter(lambda x, y: x > 3), "no known size.*assert_cardinality"),
        (numbered().map(lambda x, y: x), r"must be \(x, y\)"),
        (numbered().map(lambda x, y: {"x": x, "y": y}), r"must be \(x, y\)"),
        (numbered().map(lambda x, y: (x, (y, y))), "select the label with label_output="),
        (numbered().batch(4), r"must be a scalar.*ds.unbatch\(\)"),
        (numbered().take(0), "the dataset has no examples"),
        (numbered().map(lambda x, y: (x, tf.cast(y, tf.float32) + 0.5)), "must be an integer"),
        (numbered().batch(2).map(lambda x, y: (tf.RaggedTensor.from_tensor(x[None]), y[0])),
         "neither ragged nor sparse"),
        (uneven(), "different shapes.*ds.map, or store paths and pass load_fn="),
        ([1, 2], "must be a tf.data.Dataset"),
    ],
)  # fmt: skip
def test_invalid_datasets(ds, message):
    with pytest.raises(ValueError, match=message):
        TFDataSampler(ds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_batch": 9}, "must be <= 8"),
        ({"class_list": [0, 77]}, "77"),
        ({"class_list": [77]}, "no record of class 77"),
        ({"class_list": "bird"}, "class_list is 'bird'"),
        ({"total_examples_per_class": 0}, "total_examples_per_class is 0"),
        ({"label_output": "kind"}, "label_output is 'kind'; must be the index or the key"),
        ({"augmenter": 3}, "augmenter is 3"),
        ({"load_fn": "x"}, "load_fn is 'x'"),
        ({"warmup": 0.5}, "warmup is 0.5"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_invalid_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        TFDataSampler(numbered(), **options)
