"""How long a GPU waits for arrays of 64 x 64 x 3: ResNet-18.

python -m benchmarks.gpu.arrays [--rounds 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.gpu import loaders
from benchmarks.gpu.common import (
    BATCH,
    DEVICE,
    IMAGES,
    SCRATCH,
    K,
    P,
    Start,
    Step,
    cores,
    endless,
    save,
    show_waits,
    waits,
)

SIDE = 64
ROWS = IMAGES * 4
CLASSES = ROWS // 100
DIRECTORY = SCRATCH / "arrays"


def columns() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (4096, SIDE, SIDE, 3), dtype=np.uint8)
    return base[rng.integers(0, 4096, ROWS)], rng.permutation(np.arange(ROWS) % CLASSES)


def covey_batches(**options: Any) -> Iterator[Any]:
    import covey

    batches = covey.open(DIRECTORY).batches(P, K, seed=1).to_torch(**options)
    return endless(lambda: batches)


class Rows:
    """Arrays in memory; a batch per list of ids."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, ids: list[int]) -> Any:
        import torch

        return torch.from_numpy(self.images[ids]), torch.from_numpy(self.labels[ids])


def main() -> None:
    import torch

    import covey

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=150, help="batches per turn")
    options = parser.parse_args()
    images, labels = columns()
    if not DIRECTORY.exists():
        SCRATCH.mkdir(parents=True, exist_ok=True)
        data = {"image": images, "label": labels}
        covey.write(data, DIRECTORY, split="train", label="label", progress=False)
    rows = Rows(images, labels)
    sides: dict[str, Start] = {
        'covey, `to_torch(device="cuda")`': lambda: covey_batches(device=DEVICE),
        "covey, `to_torch()`, copied by the consumer": covey_batches,
        "covey, `to_torch(pin_memory=True)`": lambda: covey_batches(pin_memory=True),
        "DataLoader, batched": lambda: loaders.batches(
            rows, labels, pin=True, collate_fn=loaders.keep
        ),
    }
    batch = torch.from_numpy(images[:BATCH]).to(DEVICE)
    drain = loaders.PREFETCH * cores() + 8
    found = waits(Step("resnet18", SIDE), batch, sides, options.rounds, drain, options.count)
    save("arrays", found)
    show_waits("resnet18, arrays of 64 x 64 x 3, P = 32, K = 8, bfloat16", found)


if __name__ == "__main__":
    main()
