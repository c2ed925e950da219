"""Similarity learning with Keras, evaluated on classes that are not in the training data.

A small network learns to embed drawings of the same class close together. Every batch has exactly
32 classes with 4 drawings of each, so that every drawing has 3 partners and 124 negatives.
examples/similarity_torch.py is the same program for PyTorch.

Requirements: pip install 'covey[keras,tensorflow,images]' font-roboto
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from typing import Any

import drawings
import keras
import tensorflow as tf
from keras import layers, ops

import covey


def make_network(height: int, width: int) -> keras.Model:
    """Return a network from uint8 images (n, height, width) to embeddings (n, 64) of norm 1."""
    stack = [keras.Input((height, width)), layers.Reshape((height, width, 1))]
    stack += [layers.Rescaling(1 / 255)]
    for filters in (16, 32, 64):
        stack += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.MaxPool2D(2)]
    return keras.Sequential(
        [*stack, layers.Flatten(), layers.Dense(64), layers.UnitNormalization()]
    )


def contrastive_loss(y: Any, z: Any, temperature: float = 0.1) -> Any:
    """Return the supervised contrastive loss of a batch.

    Drawings without a partner are ignored; balanced batches have none.
    """
    y = ops.reshape(y, [-1])
    similarity = ops.matmul(z, ops.transpose(z)) / temperature
    others = 1 - ops.eye(ops.shape(y)[0])
    same = ops.cast(y[:, None] == y[None, :], "float32") * others
    partners = ops.sum(same, 1)
    losses = ops.log(ops.sum(ops.exp(similarity) * others, 1))
    losses -= ops.sum(similarity * same, 1) / ops.maximum(partners, 1)
    counted = ops.cast(partners > 0, "float32")
    return ops.sum(losses * counted) / ops.maximum(ops.sum(counted), 1)


def batches(train: drawings.Drawings, directory: str, options: Namespace) -> tf.data.Dataset:
    """Return an iterable of batches. Each iteration is the next epoch."""
    if options.sampler == "streaming":  # a baseline of the comparison; endless
        return drawings.stream(train, directory, options)
    columns = {"image": train.images, "label": train.labels}
    covey.write(columns, directory, split="train", label="label")
    ds = covey.open(directory, split="train")
    if options.sampler == "random":  # a baseline of the comparison
        loader = ds.shuffled(drawings.BATCH_SIZE, seed=options.seed, remainder="drop")
    else:
        loader = ds.batches(
            classes_per_batch=drawings.CLASSES_PER_BATCH,
            examples_per_class=drawings.EXAMPLES_PER_CLASS,
            seed=options.seed,
        )
    return loader.to_tf()


def main(arguments: list[str] | None = None) -> None:
    """Write the dataset, train, and print recall@1."""
    options = drawings.parse(__doc__, arguments)
    if options.threads:
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    keras.utils.set_random_seed(options.seed)
    train, test = drawings.load(options)
    network = make_network(*train.images.shape[1:])
    network.compile(keras.optimizers.Adam(options.learning_rate, epsilon=1e-8), contrastive_loss)

    def recall() -> float:
        embeddings = network.predict(test.images, batch_size=1024, verbose=0)
        return covey.metrics.recall_at_k(embeddings, test.labels, ks=(1,))[1]

    print(f"{train.classes} classes for training, {test.classes} other classes for evaluation.")
    print(f"recall@1 before training: {recall():.4f}")
    with tempfile.TemporaryDirectory() as directory:
        endless = batches(train, directory, options).repeat()
        network.fit(endless, steps_per_epoch=options.steps, shuffle=False, verbose=2)
    print(f"recall@1 after training: {recall():.4f}")


if __name__ == "__main__":
    main()
