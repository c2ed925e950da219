"""Run the tests: several pytest processes at a time, each with some modules of one group.

Tests that start servers, browsers or clusters run in processes of their own, of which only one
runs at a time. Prints the output of a process when it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FRAMEWORKS = ["src/covey/adapters", "src/covey/samplers"]  # doctests that import frameworks
INTERRUPTED = 2
SLOTS = min(os.cpu_count() or 2, 4)
STOP = threading.Event()


@dataclass(frozen=True)
class Job:
    """One pytest process.

    Args:
        group: Name of the group of tests.
        arguments: What pytest runs.
        is_alone: Whether no other process of this kind runs at the same time.
    """

    group: str
    arguments: list[str]
    is_alone: bool = False


def modules(*directories: str) -> list[str]:
    """Return the paths of the modules of tests in directories."""
    found = [path for each in directories for path in (ROOT / each).glob("test_*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def divided(group: str, arguments: list[str], count: int) -> list[Job]:
    """Divide modules over a number of processes; neighbours import the same frameworks."""
    cuts = [round(i * len(arguments) / count) for i in range(count + 1)]
    return [Job(group, arguments[cuts[i] : cuts[i + 1]]) for i in range(count)]


def all_jobs() -> list[Job]:
    """Return the processes in the order in which they begin."""
    doctests = ["src/covey", *(f"--ignore={each}" for each in FRAMEWORKS)]
    return [
        Job("servers", ["tests/servers"], is_alone=True),
        Job("browser", ["tests/browser"], is_alone=True),
        *(Job("ray", [module], is_alone=True) for module in modules("tests/ray")),
        *divided("stress", modules("tests/stress"), 4),
        *divided("interop", [*modules("tests/interop", "tests/scenes"), *FRAMEWORKS], 6),
        *divided("unit", modules("tests/unit"), 2),
        Job("unit", doctests),
    ]


def run(arguments: list[str], cache: str) -> tuple[int, str]:
    """Run pytest; return its exit status and its output."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
    process = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return process.returncode, process.stdout


def repeat(cache: str) -> tuple[bool, str]:
    """Run each failed test again, alone; return whether all of them pass, and what to print."""
    found = Path(cache, "v", "cache", "lastfailed")
    names = sorted(json.loads(found.read_text())) if found.exists() else []
    lines = []
    for name in names:
        status, output = run([name], cache)
        if status:
            return False, output
        lines.append(f"flaky: {name} failed once, and passed when it was repeated alone\n")
    return bool(names), "".join(lines)


def run_job(job: Job, options: argparse.Namespace) -> bool:
    """Run a process, and print its output; return whether its tests pass."""
    if STOP.is_set():
        return False
    begin = time.monotonic()
    order = [f"--order={options.order}"] if options.order else []
    with tempfile.TemporaryDirectory(prefix="covey-pytest-") as cache:
        status, output = run([*order, *job.arguments], cache)
        passes = status == 0
        if status and status != INTERRUPTED and options.repeat_failed:
            passes, repeated = repeat(cache)
            output += repeated
    seconds = time.monotonic() - begin
    print(f"{job.group} ({' '.join(job.arguments)})\n{output}{seconds:.0f} s\n", flush=True)
    return passes


def run_jobs(jobs: list[Job], options: argparse.Namespace) -> list[Job]:
    """Run processes, at most ``SLOTS`` at a time; return the processes of which a test failed."""
    alone = [job for job in jobs if job.is_alone]
    others = [job for job in jobs if not job.is_alone]
    with ThreadPoolExecutor(SLOTS) as threads:
        one_by_one = threads.submit(lambda: [run_job(job, options) for job in alone])
        together = [threads.submit(run_job, job, options) for job in others]
        try:
            passed = [*one_by_one.result(), *(each.result() for each in together)]
        except KeyboardInterrupt:
            STOP.set()
            raise
    return [job for job, passes in zip([*alone, *others], passed, strict=True) if not passes]


def main() -> int:
    """Run the groups; return 1 if a test failed."""
    jobs = all_jobs()
    groups = sorted({job.group for job in jobs})
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(groups))
    parser.add_argument(
        "--repeat-failed", action="store_true", help="repeat each failed test once, alone"
    )
    parser.add_argument("--order", metavar="SEED", help="run modules and tests in random order")
    options = parser.parse_args()
    unknown = set(options.groups) - set(groups)
    if unknown:
        parser.error(f"unknown group {min(unknown)!r}; groups: {', '.join(groups)}")
    begin = time.monotonic()
    chosen = [job for job in jobs if not options.groups or job.group in options.groups]
    failed = run_jobs(chosen, options)
    print(f"all groups: {time.monotonic() - begin:.0f} s")
    for job in failed:
        print(f"failed: {job.group} ({' '.join(job.arguments)})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
