"""Decoded images/s by number of threads: covey, a bare C++ loop, torch's DataLoader.

python -m benchmarks.gpu.decode [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.gpu import loaders
from benchmarks.gpu.common import BATCH, JPEG, PACKED, K, P, cores, make_jpegs, save, table
from benchmarks.sides import Process, SkippedError, compile_native, serve


def covey_side(threads: int, **options: Any) -> Any:
    import covey

    loader = covey.open(JPEG).batches(P, K, seed=1, threads=threads, **options)
    return loader.take(10**12), f"covey {covey.__version__}"


def counts() -> list[int]:
    return [n for n in (1, 2, 4, 8, 16, 32) if n <= cores()]


def sides() -> dict[str, Callable[[], Any]]:
    made: dict[str, Callable[[], Any]] = {
        f"covey, {n} threads": lambda n=n: covey_side(n) for n in counts()
    }
    most = cores()
    made[f"covey, {most} threads, reuse_buffers"] = lambda: covey_side(most, reuse_buffers=True)
    made[f"covey, {most} threads, image_size=224"] = lambda: covey_side(most, image_size=(224, 224))
    made[f"covey, {most} threads, random crops of 224"] = lambda: covey_side(
        most, image_size=(224, 224), crop="random", flip=True
    )
    made[f"covey, {most} threads, encoded"] = lambda: covey_side(most, decode_images=False)
    made["DataLoader, simplejpeg"] = lambda: (loaders.simplejpeg_batches(False), "")
    made["DataLoader, simplejpeg, into shared memory"] = lambda: (loaders.shared_batches(False), "")
    made["DataLoader, Pillow"] = lambda: (loaders.pillow_batches(False), "")
    return made


def start(name: str) -> Process:
    return Process(name, [sys.executable, "-m", "benchmarks.gpu.decode", "--side", name])


def bare(threads: int, memory: str) -> Process:
    program = compile_native("bare_jpeg.cpp", "-ljpeg")
    command = [str(program), str(PACKED), str(threads), str(BATCH), memory]
    return Process(f"bare C++ loop, {threads} threads, buffers {memory}", command)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        serve(options.side, sides())
        return
    make_jpegs()
    starts: list[tuple[str, int, Callable[[], Process]]] = []
    for memory in ("reused", "fresh"):
        starts += [
            (f"bare C++ loop, {n} threads, buffers {memory}", n, lambda n=n, m=memory: bare(n, m))
            for n in (counts() if memory == "reused" else (1, counts()[-1]))
        ]
    for name in sides():
        threads = int(name.split()[1]) if name.startswith("covey") else cores()
        starts.append((name, threads, lambda name=name: start(name)))
    found: dict[str, Any] = {}
    started: list[tuple[Process, int]] = []
    for name, threads, make in starts:
        try:
            started.append((make(), threads))
        except SkippedError as reason:
            found[name] = f"not available: {reason}"
            print(f"  {name}: {found[name]}", flush=True)
    rates: dict[str, list[float]] = {}
    for turn in range(options.rounds):
        for process, threads in started:
            name, count = process.name, 5 * threads + 5
            if isinstance(found.get(name), str):
                continue
            try:
                seconds = process.measure((loaders.PREFETCH + 1) * threads + 4, count)
            except SkippedError as reason:
                found[name] = f"not available: {reason}"
                continue
            rates.setdefault(name, []).append(count * BATCH / seconds)
            print(f"  round {turn}, {name}: {rates[name][-1]:,.0f} images/s", flush=True)
    for process, _ in started:
        process.close()
        if process.name not in found:
            found[process.name] = statistics.median(rates[process.name])
    save("decode", found)
    reference = found.get(f"bare C++ loop, {counts()[-1]} threads, buffers reused")
    rows = []
    for name, rate in found.items():
        if isinstance(rate, str):
            rows.append([name, rate, ""])
            continue
        ratio = f"{rate / reference:.2f}x" if isinstance(reference, float) else ""
        rows.append([name, f"{rate:,.0f}", ratio])
    header = ["side", "images/s", f"to the bare loop, {counts()[-1]} threads"]
    table("Decoded images of 256 x 256, P = 32, K = 8", header, rows)


if __name__ == "__main__":
    main()
