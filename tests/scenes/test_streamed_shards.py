"""TFRecordDatasetSampler(async_cycle=True) on shards of one class each, without a label."""

import numpy as np
import pytest
import tensorflow as tf

from covey.samplers import TFRecordDatasetSampler

CLASSES, EACH, STEPS = 10, 50, 200


def parse(record):
    parsed = {name: tf.io.FixedLenFeature([], tf.int64) for name in "xy"}
    example = tf.io.parse_single_example(record, parsed)
    return example["x"], example["y"]


@pytest.fixture
def shards(tmp_path):
    for number in range(CLASSES):
        with tf.io.TFRecordWriter(f"{tmp_path}/{number}.tfrec") as writer:
            for x in range(EACH):
                values = {"x": [x], "y": [number]}
                feature = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
                    for name, value in values.items()
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    return tmp_path


@pytest.mark.parametrize(("classes", "examples"), [(10, 4), (4, 4), (8, 2), (5, 3)])
def test_every_batch_is_balanced_and_the_same_in_every_run(shards, classes, examples):
    def sample(async_cycle):
        batches = TFRecordDatasetSampler(
            shards, parse, examples, classes * examples, async_cycle=async_cycle
        )
        return [(x.numpy().tolist(), y.numpy().tolist()) for x, y in batches.take(STEPS)]

    found = sample(True)
    for _, y in found:
        labels, counts = np.unique(y, return_counts=True)
        assert len(labels) == classes
        assert set(counts.tolist()) == {examples}
    assert found == sample(True) == sample(False)
