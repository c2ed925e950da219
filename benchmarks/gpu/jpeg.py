"""How long a GPU waits for decoded JPEGs of 256 x 256: ResNet-50 and ResNet-18.

python -m benchmarks.gpu.jpeg [resnet50 resnet18] [--rounds 2]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu import loaders
from benchmarks.gpu.common import (
    BATCH,
    DEVICE,
    JPEG,
    K,
    P,
    Start,
    Step,
    cores,
    endless,
    make_jpegs,
    save,
    show_waits,
    waits,
)


def covey_batches(**options: Any) -> Iterator[Any]:
    import covey

    loader = covey.open(JPEG).batches(P, K, seed=1)
    batches = loader.to_torch(**options)
    return endless(lambda: batches)


SIDES: dict[str, Start] = {
    'covey, `to_torch(device="cuda", layout="NCHW")`': lambda: covey_batches(
        device=DEVICE, layout="NCHW"
    ),
    "covey, `to_torch(pin_memory=True)`": lambda: covey_batches(pin_memory=True),
    "DataLoader, simplejpeg": lambda: loaders.simplejpeg_batches(True),
    "DataLoader, simplejpeg, into shared memory": lambda: loaders.shared_batches(True),
    "DataLoader, Pillow": lambda: loaders.pillow_batches(True),
}


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["resnet50", "resnet18"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--count", type=int, default=50, help="batches per turn")
    options = parser.parse_args()
    make_jpegs()
    jpegs = loaders.Jpegs(loaders.by_simplejpeg)
    images = torch.stack([jpegs[n][0] for n in range(BATCH)]).to(DEVICE)
    drain = loaders.PREFETCH * cores() + 8
    for model in options.models:
        found = waits(Step(model, 256), images, SIDES, options.rounds, drain, options.count)
        save(f"jpeg_{model}", found)
        show_waits(f"{model}, JPEGs of 256 x 256, P = 32, K = 8, bfloat16", found)


if __name__ == "__main__":
    main()
