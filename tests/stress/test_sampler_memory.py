"""Memory of samplers: examples are not copied, and are released."""

import functools
import gc

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch
from loaded import resident
from sampled import Lazy, identity, peak_memory
from written import write

from covey.samplers import (
    MultiShotMemorySampler,
    SingleShotMemorySampler,
    TFDataSampler,
    TFDatasetMultiShotMemorySampler,
)

multi = functools.partial(MultiShotMemorySampler, framework="numpy")
single = functools.partial(SingleShotMemorySampler, framework="numpy")

ROWS = 20_000


def test_examples_are_not_copied(tmp_path):
    x, y = np.zeros((ROWS, 1000), np.uint8), np.arange(ROWS) % 100
    np.save(tmp_path / "x.npy", x)
    kinds = {
        "array": x,
        "fortran": x.T.reshape(ROWS, 1000, order="F"),
        "strided": x[:, ::2],
        "mapped": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "torch": torch.from_numpy(x),
        "tensorflow": tf.constant(x),
        "jax": jnp.asarray(x).block_until_ready(),
    }
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = x
        kinds["hdf5"] = file["x"]
        for kind, examples in kinds.items():
            with peak_memory() as added:
                assert len(multi(examples, y, 4, 2)[0][0]) == 8
                assert len(single(examples, identity, 8)[0][0]) == 8
            assert added[0] < 4e6, kind


@pytest.mark.parametrize("kind", ["mapped", "lazy"])
def test_memory_of_a_single_shot_sampler_does_not_depend_on_the_examples(tmp_path, kind):
    count, x = 100_000_000, Lazy(100_000_000)
    if kind == "mapped":
        with open(tmp_path / "sparse", "wb") as file:
            file.truncate(4 * count)
        x = np.memmap(tmp_path / "sparse", np.int32, "r")
    with peak_memory() as added:
        sampler = single(x, identity, 512)
        ids = np.concatenate([sampler[step][1] for step in (0, 1, 999)])
    assert added[0] < 1e6
    assert len(np.unique(ids)) == len(ids) == 3 * 512
    assert ids.max() > count // 2
    assert kind == "mapped" or sorted(x.requests) == sorted(ids.tolist())


def test_memory_to_count_examples():
    sampler = multi(range(500_000), np.arange(500_000) % 10, 3)
    with peak_memory() as added:
        assert sampler.num_examples == 500_000
    assert added[0] < 1e6


def test_memory_to_read_a_tfds_dataset(tmp_path):
    x = np.zeros((15_000, 4000), np.uint8)
    write({"image": x, "label": np.arange(15_000) % 5}, tmp_path / "large", label="label")
    size = x.nbytes
    del x
    before = resident()
    sampler = TFDatasetMultiShotMemorySampler(
        tmp_path / "large", 2, splits="train", framework="numpy", progress=False
    )
    sampler[0]
    assert size * 3 // 4 < resident() - before < 1.5 * size


def test_a_deleted_tf_data_sampler_releases_its_examples():
    size = 1 << 26

    def large(number):
        return tf.fill([size // 128], tf.cast(number, tf.uint8)), number % 4

    batches = TFDataSampler(tf.data.Dataset.range(128).map(large), 2, 2)
    next(iter(batches))
    before = resident()
    del batches
    gc.collect()
    assert before - resident() > size * 3 // 4
