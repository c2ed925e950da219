"""Effects of `decode="fast"`: levels against Pillow, and recall of a model trained with it."""

from __future__ import annotations

import io
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import covey
from benchmarks import photos
from benchmarks.data import FOLDER
from benchmarks.measure import Table

RATIOS = (1.5, 2, 3, 4, 6, 8)
SEEDS = (1, 2, 3)
SIDE = 256
SMALL = 64
VERSIONS = 10
STEPS = 200
PHOTOS = 200


def levels(count: int = 100) -> Table:
    """Absolute differences in levels to Pillow's decoder and its bilinear resize."""
    from PIL import Image

    header = ["size / target", "`decode`", "mean", "99%", "largest", "images/s"]
    table = Table(f"Levels against Pillow, {count} photos of 348 x 348", header)
    table.begin()
    jpegs = [
        photos.encode(Image.fromarray(image[:348, :348]), subsampling=2)
        for image in photos.photos(count)
    ]
    directory = write("levels", ({"image": jpeg, "label": 0} for jpeg in jpegs))
    for ratio in RATIOS:
        side = round(348 / ratio)
        wanted = np.stack(
            [
                np.asarray(
                    Image.open(io.BytesIO(jpeg)).resize((side, side), Image.Resampling.BILINEAR)
                )
                for jpeg in jpegs
            ]
        ).astype(np.int16)
        for decode in ("exact", "fast"):
            start = time.perf_counter()
            found = resized(directory, side, decode)
            seconds = time.perf_counter() - start
            difference = np.abs(found - wanted)
            cells = [f"{difference.mean():.2f}", f"{np.quantile(difference, 0.99):.0f}"]
            table.add(
                f"{ratio:g}", decode, *cells, f"{difference.max()}", f"{len(jpegs) / seconds:,.0f}"
            )
    shutil.rmtree(directory)
    return table


def write(name: str, examples: Iterator[dict[str, Any]]) -> Path:
    directory = FOLDER / "images" / name
    shutil.rmtree(directory, ignore_errors=True)
    features = {"image": covey.Image((None, None, 3)), "label": "int64"}
    covey.write(
        examples,
        directory,
        split="train",
        label="label",
        features=features,
        shuffle=False,
        progress=False,
    )
    return directory


def resized(directory: Path, side: int, decode: Any) -> NDArray[np.int16]:
    """Return all images of a dataset in order, resized."""
    options: dict[str, Any] = {"image_size": (side, side), "decode": decode}
    with covey.open(directory) as ds:
        batches = [x for x, _ in ds.sequential(100, **options)]
    return np.concatenate(batches).astype(np.int16)


def versions(images: list[NDArray[np.uint8]], first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield JPEGs of parts of each photo: rotated, at several scales, in other light.

    A photo is a class. Parts are at the resolution of the photo, so that a decoder that skips high
    frequencies does lose some.
    """
    from PIL import Image

    rng = np.random.default_rng(first)
    for label, pixels in enumerate(images, first):
        image = Image.fromarray(pixels)
        for _ in range(count):
            angle = np.deg2rad(rng.uniform(-40, 40))
            zoom = rng.uniform(0.35, 1.0)
            x, y = (rng.uniform(0.35, 0.65) * size for size in image.size)
            c, s = zoom * np.cos(angle), zoom * np.sin(angle)
            half = SIDE / 2
            matrix = (c, -s, x - (c - s) * half, s, c, y - (s + c) * half)
            part = image.transform(
                (SIDE, SIDE), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC
            )
            light = rng.uniform(0.6, 1.3, (1, 1, 3)) * rng.uniform(0.7, 1.2)
            lit = (np.asarray(part) * light).clip(0, 255).astype(np.uint8)
            yield {"image": photos.encode(Image.fromarray(lit), subsampling=2), "label": label}


def model() -> Any:
    from torch import nn

    layers: list[Any] = []
    for before, after in ((3, 24), (24, 48), (48, 96), (96, 128)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(512, 64))


def embed(net: Any, images: NDArray[Any]) -> Any:
    import torch
    from torch.nn import functional

    x = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float()
    return functional.normalize(net((x - 118) / 60), dim=1)


def train(directory: Path, decode: Any, seed: int) -> Any:
    """Train with a supervised contrastive loss; return the model."""
    import torch

    torch.manual_seed(seed)
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    options: dict[str, Any] = {"image_size": (SMALL, SMALL), "decode": decode}
    with covey.open(directory) as ds:
        for images, classes in ds.batches(16, 4, seed=seed, **options).take(STEPS):
            z, y = embed(net, images), torch.from_numpy(np.asarray(classes))
            itself = torch.eye(len(y), dtype=torch.bool)
            similar = (z @ z.T / 0.1).masked_fill(itself, -1e9)
            chance = similar - similar.logsumexp(1, keepdim=True)
            same = (y[:, None] == y[None]) & ~itself
            loss = -(chance * same).sum(1).div(same.sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


def recall(net: Any, images: NDArray[Any], classes: NDArray[Any]) -> float:
    """Return the fraction of images whose nearest other image is of the same class."""
    import torch

    with torch.no_grad():
        z = torch.cat([embed(net, images[n : n + 256]) for n in range(0, len(images), 256)])
    similar = (z @ z.T).fill_diagonal_(-2).argmax(1).numpy()
    return float((classes[similar] == classes).mean())


def training() -> Table:
    """Recall@1 on photos that were not trained on, for both ways to decode."""
    import torch

    header = ["trained with", "tested with", "recall@1 by seed", "mean", "standard deviation"]
    title = f"Recall with `decode`, JPEGs of {SIDE} x {SIDE} resized to {SMALL} x {SMALL}"
    table = Table(title, header)
    table.begin()
    torch.set_num_threads(1)  # the other core decodes
    images = photos.photos(PHOTOS)
    half = len(images) // 2
    known = write("known", versions(images[:half], 0, VERSIONS))
    unknown = write("unknown", versions(images[half:], half, VERSIONS))
    classes = np.repeat(np.arange(len(images) - half), VERSIONS)
    tests = {decode: resized(unknown, SMALL, decode) for decode in ("exact", "fast")}
    found: dict[tuple[str, str], list[float]] = {}
    for seed in SEEDS:
        for decode in tests:
            net = train(known, decode, seed)
            for tested, pixels in tests.items():
                found.setdefault((decode, tested), []).append(recall(net, pixels, classes))
    for (decode, tested), values in found.items():
        each = ", ".join(f"{value:.3f}" for value in values)
        spread = statistics.stdev(values)
        table.add(decode, tested, each, f"{statistics.mean(values):.3f}", f"{spread:.3f}")
    for directory in (known, unknown):
        shutil.rmtree(directory)
    return table


if __name__ == "__main__":
    levels()
    training()
