"""Samplers of numbered examples, and Python scripts in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

X = np.arange(60)
Y = np.arange(60) % 10


class Lazy(Sequence[Any]):
    """Examples that are made on request; `requests` lists their numbers."""

    def __init__(self, count: int, make: Callable[[int], Any] = int) -> None:
        self._count, self._make = count, make
        self.requests: list[int] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        self.requests.append(number)
        return self._make(number)


def repeat(x: Any, y: Any, count: int, is_warmup: bool) -> Any:
    """An augmenter that repeats every example `count` times."""
    return np.repeat(x, count, 0), np.repeat(y, count, 0)


def identity(x: Any, y: Any, count: int, is_warmup: bool) -> Any:
    """An augmenter that changes nothing."""
    return x, y


def planned(sampler: Any, steps: range) -> list[list[int]]:
    """Return the example ids of steps."""
    return [sampler.plan.batch(step).tolist() for step in steps]


def drawn(sampler: Any) -> list[list[int]]:
    """Return x of the batches of an epoch."""
    return [x.tolist() for x, _ in sampler]


def is_exact(y: Any, classes: int, examples: int) -> bool:
    """Return whether labels have this number of classes, with this number of examples each."""
    found, counts = np.unique(np.asarray(y), return_counts=True)
    return len(found) == classes and set(counts.tolist()) == {examples}


def is_fair(drawn: Sequence[Any], items: Sequence[Any]) -> bool:
    """Return whether every item is drawn once before any is drawn twice, and so on."""
    count, allowed = len(items), set(items)
    rounds = [drawn[begin : begin + count] for begin in range(0, len(drawn), count)]
    return all(len(set(each)) == len(each) and set(each) <= allowed for each in rounds)


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Append the largest increase of the memory of Python and numpy, in bytes, to a list."""
    found: list[int] = []
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield found
        found.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()


def run(script: str | Path, *arguments: object, **environment: str) -> Any:
    """Return the JSON that a script, or a file with one, prints last."""
    code = [str(script)] if isinstance(script, Path) else ["-c", script]
    done = subprocess.run(
        [sys.executable, *code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
