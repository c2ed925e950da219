"""Samplers of numbered examples, and Python scripts in processes of their own."""

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
    """Examples that are made when they are asked for; it remembers which."""

    def __init__(self, count: int, make: Callable[[int], Any] = int) -> None:
        self._count, self._make = count, make
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        self.asked.append(number)
        return self._make(number)


def twice(x: Any, y: Any, count: int, is_warmup: bool) -> Any:
    """An augmenter that has every example so often."""
    return np.repeat(x, count, 0), np.repeat(y, count, 0)


def same(x: Any, y: Any, count: int, is_warmup: bool) -> Any:
    """An augmenter that changes nothing."""
    return x, y


def planned(sampler: Any, steps: range) -> list[list[int]]:
    """The numbers of the examples that batches should have."""
    return [sampler.plan.batch(step).tolist() for step in steps]


def drawn(sampler: Any) -> list[list[int]]:
    """What an epoch has, if x are numbers."""
    return [x.tolist() for x, _ in sampler]


def comes_evenly(drawn: Sequence[Any], things: Sequence[Any]) -> bool:
    """Whether each comes once before any comes twice, and so on for ever."""
    count, there = len(things), set(things)
    rounds = [drawn[begin : begin + count] for begin in range(0, len(drawn), count)]
    return all(len(set(each)) == len(each) and set(each) <= there for each in rounds)


@contextmanager
def most_memory() -> Iterator[list[int]]:
    """Into a list goes how many bytes Python and numpy had more at most."""
    found: list[int] = []
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield found
        found.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()


def run(script: str | Path, *arguments: object, **environment: str) -> Any:
    """What a script, or a file with one, prints last, which is JSON."""
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
