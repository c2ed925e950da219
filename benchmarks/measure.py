"""Measure several sides in turn, so that noise affects all of them alike."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Table:
    """Rows of a results table, printed when added."""

    title: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.rows.append(list(cells))
        print("| " + " | ".join(cells) + " |", flush=True)

    def begin(self) -> None:
        print(f"\n## {self.title}\n")
        print("| " + " | ".join(self.header) + " |")
        print("|" + "---|" * len(self.header), flush=True)


def in_turn(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    before: Callable[[], object] = gc.collect,
) -> dict[str, float]:
    """Return the median seconds of each side, run in turn `rounds` times.

    `before` makes the same start for all, outside the clock.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            before()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def rate(count: int, seconds: float) -> str:
    """Format records per second."""
    value = count / seconds
    return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.1f} k/s"


def machine() -> str:
    """Describe the machine."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} "
        f"{'.'.join(platform.release().split('.')[:2])}, Python {platform.python_version()}"
    )
