"""Images/s that arrive on the device through `to_jax`.

python -m benchmarks.gpu.feed_jax [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from benchmarks.gpu.common import BATCH, JPEG, OUT, SCRATCH, K, P, endless, make_jpegs

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def rate(batches: Iterator[Any], drain: int, count: int) -> float:
    for x, _ in islice(batches, drain):
        x.block_until_ready()
    start = time.perf_counter()
    for x, _ in islice(batches, count):
        last = x
    last.block_until_ready()
    return count * BATCH / (time.perf_counter() - start)


def main() -> None:
    make_jpegs()  # forks, which JAX does not support once it has started
    import jax

    import covey

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    sides = {
        "JPEGs of 256 x 256": (JPEG, 40, 80),
        "arrays of 64 x 64 x 3": (SCRATCH / "arrays", 100, 1000),
    }
    found: dict[str, Any] = {}
    for name, (directory, drain, count) in sides.items():
        try:
            loader = covey.open(directory).batches(P, K, seed=1)
            batches = endless(loader.to_jax)  # an iterator of one epoch
            measured = [rate(batches, drain, count) for _ in range(options.rounds)]
            found[name] = statistics.median(measured)
        except Exception as error:
            found[name] = f"not available: {type(error).__name__}: {error}"[:200]
    machine = f"jax {jax.__version__}, {jax.devices()[0]}, covey {covey.__version__}"
    OUT.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "results": found}
    (OUT / "jax.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"\n## `to_jax`, P = 32, K = 8\n\n{machine}\n\n| data | images/s |\n|---|---|")
    for name, value in found.items():
        print(f"| {name} | {value if isinstance(value, str) else f'{value:,.0f}'} |")


if __name__ == "__main__":
    main()
