"""Sides that are processes of their own, each stopped while another is measured.

Prefetching threads and workers of one side would otherwise take time from the next one. A side
reads lines "drain count" from its standard input: it takes `drain` batches, which may have been
prefetched before it was stopped, then `count` batches in the time that it replies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.data import FOLDER

READY = "ready"
SKIP = "skip"


class SkippedError(Exception):
    """A side cannot be measured here, for the reason given."""


class Process:
    """A side: a command that follows the protocol of this module."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str] = {}) -> None:
        self.name = name
        log = FOLDER / "images" / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **env},
            start_new_session=True,
        )
        word, _, self.setting = self._reply().partition(" ")
        if word != READY:
            self.close()
            raise SkippedError(self.setting or f"exit status {self._process.wait()}, see {log}")
        self._stop()

    def _reply(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def _stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def measure(self, drain: int, count: int) -> float:
        """Return the seconds of `count` batches."""
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.stdin.write(f"{drain} {count}\n".encode())
        self._process.stdin.flush()
        reply = self._reply()
        self._stop()
        try:
            return float(reply)
        except ValueError:
            raise SkippedError(reply.removeprefix(SKIP).strip() or "the process ended") from None

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def measure(
    sides: list[Process], rounds: int, drain: int, count: int
) -> dict[str, float | SkippedError]:
    """Return the median seconds per batch of each side, measured in turn, and close them."""
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    failed: dict[str, SkippedError] = {}
    for _ in range(rounds):
        for side in sides:
            if side.name in failed:
                continue
            try:
                times[side.name].append(side.measure(drain, count) / count)
            except SkippedError as error:
                failed[side.name] = error
    for side in sides:
        side.close()
    return {
        name: failed[name] if name in failed else statistics.median(found)
        for name, found in times.items()
    }


def serve(name: str, make: Mapping[str, Any]) -> None:
    """Follow the protocol with the batches of ``make[name]()``: an iterator, and its settings.

    Standard output is for replies only; what libraries print goes to standard error.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        batches, setting = make[name]()
        list(islice(batches, 2))
        print(READY, setting, file=replies)
        for line in sys.stdin:
            drain, count = map(int, line.split())
            take(batches, drain)
            print(take(batches, count), file=replies)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        print(SKIP, f"{type(error).__name__}: {reason}", file=replies)
        raise


def take(batches: Iterator[Any], count: int) -> float:
    """Take batches and drop each; return the seconds."""
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return time.perf_counter() - start


def compile_native(source: str, *libraries: str) -> Path:
    """Compile a C++ program of this directory.

    Raises:
        SkippedError: If there is no compiler, or a header or library is missing.
    """
    path = Path(__file__).parent / source
    program = FOLDER / "images" / path.stem
    program.parent.mkdir(parents=True, exist_ok=True)
    flags = os.environ.get("COVEY_BENCH_FLAGS", "").split()
    command = ["g++", "-O3", "-std=c++20", str(path), "-o", str(program), *flags, *libraries]
    try:
        subprocess.run([*command, "-pthread"], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise SkippedError("g++ is not installed") from None
    except subprocess.CalledProcessError as error:
        raise SkippedError(error.stderr.strip().splitlines()[0]) from None
    return program
