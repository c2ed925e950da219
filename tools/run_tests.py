"""Run the tests in groups, one after another; each group has pytest processes of its own.

Tests that start servers, browsers or clusters run one at a time, and each module of tests of Ray
has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
FRAMEWORKS = ("src/covey/adapters", "src/covey/samplers")  # doctests that import frameworks
INTERRUPTED = 2


def groups() -> dict[str, tuple[int, list[list[str]]]]:
    """Return the number of workers, and the arguments of each pytest process, by group."""
    ray = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/ray").glob("test_*.py"))
    return {
        "unit": (2, [["tests/unit", "src/covey", *(f"--ignore={each}" for each in FRAMEWORKS)]]),
        "interop": (2, [["tests/interop", "tests/scenes", *FRAMEWORKS]]),
        "stress": (2, [["tests/stress"]]),
        "servers": (1, [["tests/servers"]]),
        "browser": (1, [["tests/browser"]]),
        "ray": (1, [[module] for module in ray]),
    }


def run(arguments: list[str], workers: int) -> int:
    """Run pytest; return its exit status."""
    command = [sys.executable, "-m", "pytest", f"--numprocesses={workers}", *arguments]
    return subprocess.run(command, cwd=ROOT).returncode


def failures() -> list[str]:
    """Return the ids of the tests that failed in the last run of pytest."""
    return sorted(json.loads(CACHE.read_text())) if CACHE.exists() else []


def repeat(status: int, names: list[str]) -> int:
    """Run each failed test again, alone; return 0 if all of them pass."""
    if not names or status == INTERRUPTED:
        return status
    for name in names:
        if run([name], 1):
            return status
        print(f"flaky: {name} failed once, and passed when it was repeated alone", flush=True)
    return 0


def main() -> int:
    """Run the groups; return 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(groups())}")
    parser.add_argument(
        "--repeat-failed", action="store_true", help="repeat each failed test once, alone"
    )
    parser.add_argument("--order", metavar="SEED", help="run modules and tests in random order")
    options = parser.parse_args()
    unknown = set(options.groups) - set(groups())
    if unknown:
        parser.error(f"unknown group {min(unknown)!r}; groups: {', '.join(groups())}")
    order = [f"--order={options.order}"] if options.order else []
    failed = []
    for group, (workers, processes) in groups().items():
        if options.groups and group not in options.groups:
            continue
        begin = time.monotonic()
        for arguments in processes:
            CACHE.unlink(missing_ok=True)
            status = run([*order, *arguments], workers)
            if status and options.repeat_failed:
                status = repeat(status, failures())
            if status:
                failed.append(f"{group} ({' '.join(arguments)}: exit status {status})")
        print(f"{group}: {time.monotonic() - begin:.0f} s\n", flush=True)
    for each in failed:
        print(f"failed: {each}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
