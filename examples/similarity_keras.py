"""Similarity learning with Keras, and how well it does on classes that it has never seen.

A small net learns to lay drawings of the same thing close together. Every batch has exactly 32
classes with 4 drawings of each, so that every drawing has 3 partners, and 124 others to be told
from. examples/similarity_torch.py is the same with PyTorch.
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


def make_net(height: int, width: int) -> keras.Model:
    """From bytes (n, height, width) to 64 numbers for each drawing, of length 1 together."""
    net = [keras.Input((height, width)), layers.Reshape((height, width, 1))]
    net += [layers.Rescaling(1 / 255)]
    for filters in (16, 32, 64):
        net += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.MaxPool2D(2)]
    return keras.Sequential([*net, layers.Flatten(), layers.Dense(64), layers.UnitNormalization()])


def loss_of(y: Any, z: Any, temperature: float = 0.1) -> Any:
    """Supervised contrastive loss: a drawing's partners against all others of the batch.

    Drawings without a partner, which balanced batches do not have, are left out.
    """
    y = ops.reshape(y, [-1])
    near = ops.matmul(z, ops.transpose(z)) / temperature
    other = 1 - ops.eye(ops.shape(y)[0])
    same = ops.cast(y[:, None] == y[None, :], "float32") * other
    partners = ops.sum(same, 1)
    losses = ops.log(ops.sum(ops.exp(near) * other, 1))
    losses -= ops.sum(near * same, 1) / ops.maximum(partners, 1)
    counted = ops.cast(partners > 0, "float32")
    return ops.sum(losses * counted) / ops.maximum(ops.sum(counted), 1)


def batches(train: drawings.Drawings, directory: str, options: Namespace) -> tf.data.Dataset:
    """The batches of an epoch, and when they are gone through again, of the next."""
    if options.sampler == "streaming":  # what covey is compared with; it has no end
        return drawings.stream(train, directory, options)
    columns = {"image": train.images, "label": train.labels}
    covey.write(columns, directory, split="train", label="label")
    ds = covey.open(directory, split="train")
    if options.sampler == "random":  # what it is compared with, too
        loader = ds.shuffled(drawings.BATCH_SIZE, seed=options.seed, remainder="drop")
    else:
        loader = ds.batches(
            classes_per_batch=drawings.CLASSES_PER_BATCH,
            examples_per_class=drawings.EXAMPLES_PER_CLASS,
            seed=options.seed,
        )
    return loader.to_tf()


def main() -> None:
    """Write, train, and say how well it does."""
    options = drawings.parse(__doc__)
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    keras.utils.set_random_seed(options.seed)
    train, test = drawings.load(options)
    net = make_net(*train.images.shape[1:])
    net.compile(keras.optimizers.Adam(options.learning_rate, epsilon=1e-8), loss_of)

    def recall() -> float:
        embeddings = net.predict(test.images, batch_size=1024, verbose=0)
        return drawings.recall_at_1(embeddings, test.labels)

    print(f"{train.classes} classes to train with, {test.classes} others to find again.")
    print(f"recall@1 before training: {recall():.4f}")
    with tempfile.TemporaryDirectory() as directory:
        endless = batches(train, directory, options).repeat()
        net.fit(endless, steps_per_epoch=options.steps, shuffle=False, verbose=2)
    print(f"recall@1 after training: {recall():.4f}")


if __name__ == "__main__":
    main()
