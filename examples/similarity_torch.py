"""Similarity learning with PyTorch, and how well it does on classes that it has never seen.

A small net learns to lay drawings of the same thing close together. Every batch has exactly 32
classes with 4 drawings of each, so that every drawing has 3 partners, and 124 others to be told
from. examples/similarity_keras.py is the same with Keras.
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


def make_net(height: int, width: int) -> nn.Sequential:
    """From pixels (n, 1, height, width) to 64 numbers for each drawing."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(64 * (height // 8) * (width // 8), 64)]
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):  # as Keras begins
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def embed(net: nn.Module, images: Tensor) -> Tensor:
    """Where drawings lie, on a sphere."""
    return nn.functional.normalize(net(images[:, None].float() / 255))


def loss_of(z: Tensor, y: Tensor, temperature: float = 0.1) -> Tensor:
    """Supervised contrastive loss: a drawing's partners against all others of the batch.

    Drawings without a partner, which balanced batches do not have, are left out.
    """
    near = z @ z.T / temperature
    other = 1 - torch.eye(len(y))
    same = (y[:, None] == y[None, :]) * other
    partners = same.sum(1)
    losses = (near.exp() * other).sum(1).log() - (near * same).sum(1) / partners.clamp(min=1)
    return (losses * (partners > 0)).sum() / (partners > 0).sum().clamp(min=1)


def batches(train: drawings.Drawings, directory: str, options: Namespace) -> Iterable[Any]:
    """The batches of an epoch, and when they are gone through again, of the next."""
    if options.sampler == "streaming":  # what covey is compared with; it has no end
        stream = drawings.stream(train, directory, options)
        return (tuple(map(torch.tensor, batch)) for batch in stream.as_numpy_iterator())
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
    return loader.to_torch()


def main() -> None:
    """Write, train, and say how well it does."""
    options = drawings.parse(__doc__)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    train, test = drawings.load(options)
    net = make_net(*train.images.shape[1:])
    optimizer = torch.optim.Adam(net.parameters(), options.learning_rate)

    @torch.no_grad()
    def recall() -> float:
        parts = torch.from_numpy(test.images).split(1024)
        embeddings = torch.cat([embed(net, part) for part in parts])
        return drawings.recall_at_1(embeddings, test.labels)

    print(f"{train.classes} classes to train with, {test.classes} others to find again.")
    print(f"recall@1 before training: {recall():.4f}")
    with tempfile.TemporaryDirectory() as directory:
        epochs = chain.from_iterable(repeat(batches(train, directory, options)))
        for step, (x, y) in enumerate(islice(epochs, options.steps), 1):
            loss = loss_of(embed(net, x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}")
    print(f"recall@1 after training: {recall():.4f}")


if __name__ == "__main__":
    main()
