"""Similarity learning with PyTorch, evaluated on classes that are not in the training data.

A small network learns to embed drawings of the same class close together. Every batch has exactly
32 classes with 4 drawings of each, so that every drawing has 3 partners and 124 negatives.
examples/similarity_keras.py is the same program for Keras.

Requirements: pip install 'covey[torch,images]' font-roboto, and tensorflow for --sampler streaming
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterable
from itertools import chain, islice, repeat
from typing import Any

import drawings
import torch
from torch import Tensor, nn

import covey


def make_network(height: int, width: int) -> nn.Sequential:
    """Return a network from pixels (n, 1, height, width) to embeddings (n, 64)."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(64 * (height // 8) * (width // 8), 64)]
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):  # the initialisation of Keras
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def embed(network: nn.Module, images: Tensor) -> Tensor:
    """Return the embeddings of uint8 images (n, height, width), of norm 1."""
    return nn.functional.normalize(network(images[:, None].float() / 255))


def contrastive_loss(z: Tensor, y: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the supervised contrastive loss of a batch.

    Drawings without a partner are ignored; balanced batches have none.
    """
    similarity = z @ z.T / temperature
    others = 1 - torch.eye(len(y))
    same = (y[:, None] == y[None, :]) * others
    partners = same.sum(1)
    losses = (similarity.exp() * others).sum(1).log() - (similarity * same).sum(1) / partners.clamp(
        min=1
    )
    return (losses * (partners > 0)).sum() / (partners > 0).sum().clamp(min=1)


def batches(train: drawings.Drawings, directory: str, options: Namespace) -> Iterable[Any]:
    """Return an iterable of batches. Each iteration is the next epoch."""
    if options.sampler == "streaming":  # a baseline of the comparison; endless
        stream = drawings.stream(train, directory, options)
        return (tuple(map(torch.tensor, batch)) for batch in stream.as_numpy_iterator())
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
    return loader.to_torch()


def main(arguments: list[str] | None = None) -> None:
    """Write the dataset, train, and print recall@1."""
    options = drawings.parse(__doc__, arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    train, test = drawings.load(options)
    network = make_network(*train.images.shape[1:])
    optimizer = torch.optim.Adam(network.parameters(), options.learning_rate)

    @torch.no_grad()
    def recall() -> float:
        parts = torch.from_numpy(test.images).split(1024)
        embeddings = torch.cat([embed(network, part) for part in parts])
        return covey.metrics.recall_at_k(embeddings, test.labels, ks=(1,))[1]

    print(f"{train.classes} classes for training, {test.classes} other classes for evaluation.")
    print(f"recall@1 before training: {recall():.4f}")
    with tempfile.TemporaryDirectory() as directory:
        epochs = chain.from_iterable(repeat(batches(train, directory, options)))
        for step, (x, y) in enumerate(islice(epochs, options.steps), 1):
            loss = contrastive_loss(embed(network, x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}")
    print(f"recall@1 after training: {recall():.4f}")


if __name__ == "__main__":
    main()
