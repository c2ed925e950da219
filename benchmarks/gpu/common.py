"""Data, models and measurement shared by the GPU programs.

SCRATCH is a directory for data (default: /tmp/covey-gpu); OUT one for results (default: SCRATCH).
COVEY_GPU_DEVICE=cpu, COVEY_GPU_IMAGES and COVEY_GPU_CLASSES make a small run that shows whether the
programs work.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import torchvision_cpu
from benchmarks.sides import take

DEVICE = os.environ.get("COVEY_GPU_DEVICE", "cuda")
P, K = int(os.environ.get("COVEY_GPU_CLASSES", 32)), 8
BATCH = P * K
SIDE = 256
IMAGES = int(os.environ.get("COVEY_GPU_IMAGES", 48_000))
CLASSES = IMAGES // 48
SCRATCH = Path(os.environ.get("SCRATCH", "/tmp/covey-gpu"))
OUT = Path(os.environ.get("OUT", SCRATCH))
PACKED = SCRATCH / "jpeg.packed"
JPEG = SCRATCH / "jpeg"


def cores() -> int:
    return len(os.sched_getaffinity(0))


# Data


def crops(part: tuple[int, int, int]) -> list[bytes]:
    """Return JPEGs of 256 x 256, 4:4:4, quality 90: random parts of photos."""
    from PIL import Image

    from benchmarks import photos

    first, stride, count = part
    rng = np.random.default_rng(first)
    sources = [Image.fromarray(each) for each in photos.photos()[first::stride]]
    found = []
    for _ in range(count):
        image = sources[rng.integers(len(sources))]
        size = int(rng.integers(220, min(image.size) + 1))
        x = int(rng.integers(image.width - size + 1))
        y = int(rng.integers(image.height - size + 1))
        box = (x, y, x + size, y + size)
        cut = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box)
        found.append(photos.encode(cut, subsampling=0))
    return found


def make_jpegs() -> None:
    """Write the JPEGs, once as a packed file and once as a dataset of covey."""
    import multiprocessing

    import covey

    if JPEG.exists():
        return
    SCRATCH.mkdir(parents=True, exist_ok=True)
    count = min(cores(), 16)
    with multiprocessing.get_context("fork").Pool(count) as pool:
        parts = pool.map(crops, [(n, count, IMAGES // count) for n in range(count)], chunksize=1)
    jpegs = [jpeg for part in parts for jpeg in part]
    labels = [n % CLASSES for n in range(len(jpegs))]
    with PACKED.open("wb") as file:
        for jpeg, label in zip(jpegs, labels, strict=True):
            file.write(struct.pack("<II", len(jpeg), label) + jpeg)
    covey.write(
        ({"image": jpeg, "label": label} for jpeg, label in zip(jpegs, labels, strict=True)),
        JPEG,
        split="train",
        label="label",
        features={"image": covey.Image((SIDE, SIDE, 3)), "label": "int64"},
        progress=False,
    )
    size = sum(map(len, jpegs)) / len(jpegs) / 1000
    print(f"{len(jpegs):,} JPEGs of {SIDE} x {SIDE}, {size:.1f} KB", flush=True)


def endless(again: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield batches, epoch after epoch."""
    while True:
        count = 0
        for batch in again():
            yield batch
            count += 1
        if not count:
            raise RuntimeError("an epoch without batches")


# Training


def loss_of(z: Any, y: Any) -> Any:
    """Supervised contrastive loss."""
    import torch

    z = torch.nn.functional.normalize(z.float(), dim=1)
    itself = torch.eye(len(y), dtype=torch.bool, device=z.device)
    similar = (z @ z.T / 0.1).masked_fill(itself, -1e9)
    chance = similar - similar.logsumexp(1, keepdim=True)
    same = (y[:, None] == y[None]) & ~itself
    return -(chance * same).sum(1).div(same.sum(1).clamp(min=1)).mean()


class Step:
    """A training step in bfloat16, channels_last, on uint8 images of either layout."""

    def __init__(self, name: str, side: int) -> None:
        import torch

        torchvision = torchvision_cpu.load()
        torch.backends.cudnn.benchmark = True
        net = getattr(torchvision.models, name)(num_classes=128)
        if side <= 64:
            net.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            net.maxpool = torch.nn.Identity()
        self._net = net.to(DEVICE).to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(self._net.parameters(), 0.01, momentum=0.9)

    def __call__(self, x: Any, y: Any) -> None:
        import torch

        if x.shape[-1] == 3:
            x = x.permute(0, 3, 1, 2)
        x = x.to(memory_format=torch.channels_last).float().div_(255)
        with torch.autocast(DEVICE, torch.bfloat16):
            z = self._net(x)
        loss = loss_of(z, y)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()


def synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def feed(batches: Iterator[Any], drain: int, count: int, step: Step | None = None) -> float:
    """Return images/s of batches put on the GPU, with a training step or without."""
    import torch

    images, start = 0, 0.0
    for number in range(drain + count):
        if number == drain:
            synchronize()
            start, images = time.perf_counter(), 0
        x, y = next(batches)
        x = torch.as_tensor(x).to(DEVICE, non_blocking=True)
        y = torch.as_tensor(y).to(DEVICE, non_blocking=True)
        if step is not None:
            step(x, y)
        images += len(y)
    synchronize()
    return images / (time.perf_counter() - start)


Start = Callable[[], Iterator[Any]]


def waits(
    step: Step, images: Any, sides: dict[str, Start], rounds: int, drain: int, count: int
) -> dict[str, Any]:
    """Return for each side images/s alone and in training, and the share of time spent waiting.

    A side is measured between two runs on one batch that stays on the GPU; the wait is
    1 - rate / mean rate of these runs. Sides take turns; numbers are medians.

    Args:
        step: The training step.
        images: A batch on the GPU.
        sides: Functions that start endless iterators of batches.
        rounds: Number of turns.
        drain: Batches taken before the clock starts: more than a side prefetches.
        count: Batches in the time.
    """
    import torch

    labels = torch.arange(P, device=DEVICE).repeat_interleave(K)
    fixed = endless(lambda: [(images, labels)])
    feed(fixed, 20, 10, step)
    found: dict[str, Any] = {}
    running: dict[str, Iterator[Any]] = {}
    rates: dict[str, list[tuple[float, float, float]]] = {}
    for turn in range(rounds):
        for name, start in sides.items():
            if isinstance(found.get(name), str):
                continue
            try:
                if name not in running:
                    running[name] = start()
                alone = feed(running[name], drain, count)
                before = feed(fixed, 3, count // 2, step)
                take(running[name], drain)
                rate = feed(running[name], 3, count, step)
                after = feed(fixed, 3, count // 2, step)
            except Exception as error:
                found[name] = f"not available: {type(error).__name__}: {error}"[:200]
                print(name, found[name], flush=True)
                continue
            rates.setdefault(name, []).append((alone, rate, (before + after) / 2))
            print(f"  round {turn}, {name}: {alone:,.0f} alone, {rate:,.0f}", flush=True)
    for name, measured in rates.items():
        if isinstance(found.get(name), str):
            continue
        each = [1 - rate / fixed_rate for _, rate, fixed_rate in measured]
        found[name] = {
            "alone": statistics.median(row[0] for row in measured),
            "train": statistics.median(row[1] for row in measured),
            "on the GPU": statistics.median(row[2] for row in measured),
            "wait": statistics.median(each),
            "waits": each,
        }
    return found


# Results


def versions() -> str:
    import torch

    import covey

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"{gpu}, {cores()} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {np.__version__}, covey {covey.__version__}"
    )


def save(name: str, found: Any) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    content = {"machine": versions(), "results": found}
    (OUT / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def table(title: str, header: list[str], rows: Iterable[list[str]]) -> None:
    print(f"\n## {title}\n\n{versions()}\n")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def show_waits(title: str, found: dict[str, Any]) -> None:
    rows = []
    for name, row in found.items():
        if isinstance(row, str):
            rows.append([name, row, "", "", "", ""])
            continue
        low, high = min(row["waits"]), max(row["waits"])
        cells = [f"{row[key]:,.0f}" for key in ("alone", "train", "on the GPU")]
        rows.append([name, *cells, f"{row['wait']:.2%}", f"{low:.2%} to {high:.2%}"])
    header = ["side", "images/s alone", "in training", "one batch on the GPU", "wait", "rounds"]
    table(title, header, rows)
