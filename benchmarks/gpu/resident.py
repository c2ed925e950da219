"""Images/s of a split that is resident on the GPU, 256 x 256 x 3.

python -m benchmarks.gpu.resident [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.gpu.common import (
    BATCH,
    DEVICE,
    IMAGES,
    JPEG,
    SIDE,
    K,
    P,
    endless,
    feed,
    make_jpegs,
    save,
    table,
)

COUNT = 1000


def by_hand(plan: Any) -> Any:
    """Gather by the plan from one tensor, as a program without covey's option would."""
    import torch

    shape = (IMAGES, SIDE, SIDE, 3)
    images = torch.randint(0, 255, shape, dtype=torch.uint8, device=DEVICE)
    labels = torch.zeros(IMAGES, dtype=torch.int64, device=DEVICE)
    ids = torch.from_numpy(np.stack([plan.batch(step) for step in range(COUNT)]))

    def batches() -> Any:
        for row in ids:
            chosen = row.to(DEVICE, non_blocking=True)
            yield images.index_select(0, chosen), labels[chosen]

    return endless(batches)


def main() -> None:
    import covey

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    make_jpegs()
    loader = covey.open(JPEG).batches(P, K, seed=1)
    sides: dict[str, Any] = {"tensors gathered by hand, ids planned before": by_hand(loader.plan)}
    found: dict[str, Any] = {}
    try:
        start = time.perf_counter()
        batches = loader.to_torch(device=DEVICE, resident=True)
        made = endless(lambda: batches)
        next(made)
        found["seconds to the first batch, decoding included"] = time.perf_counter() - start
        sides["covey, `resident=True`"] = made
    except Exception as error:
        found["covey, `resident=True`"] = f"not available: {type(error).__name__}: {error}"[:200]
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, made in sides.items():
            rates[name].append(feed(made, 50, COUNT))
    found |= {name: statistics.median(values) for name, values in rates.items()}
    save("resident", found)
    rows = [
        [name, value if isinstance(value, str) else f"{value:,.1f}"]
        for name, value in found.items()
    ]
    table(f"Resident on the GPU, batches of {BATCH}", ["side", "images/s or seconds"], rows)


if __name__ == "__main__":
    main()
