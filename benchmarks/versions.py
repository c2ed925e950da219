"""Compare reading by two builds of covey, in turn in one run.

python -m benchmarks.versions OLD_PYTHON [NEW_PYTHON] [--rounds 25]

Each argument is the interpreter of an environment with one build. The dataset is written by the
first; both read it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile

# Runs in each environment: measures one case each time it is asked.
_PROGRAM = """
import itertools, json, sys, time
import numpy as np
import covey

def write(path, shards):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (20_000, 28, 28), np.uint8)
    columns = {"image": images, "label": np.arange(20_000) % 1_000}
    features = {"image": covey.Tensor("uint8", (28, 28), encoding="bytes"), "label": "int64"}
    covey.write(columns, path, split="train", label="label", features=features, shards=shards,
                progress=False)

def gather(ds):
    ids = np.random.default_rng(1).integers(0, len(ds), (200, 128))
    steps = itertools.cycle(ids)
    return lambda: ds[next(steps)]

def load(ds):
    loader = ds.batches(classes_per_batch=32, examples_per_class=4, seed=1)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return lambda: next(batches)

actions = {}
for line in sys.stdin:
    command, *arguments = json.loads(line)
    if command == "write":
        print(json.dumps(write(*arguments)), flush=True)
        continue
    kind, path, seconds = arguments
    if (kind, path) not in actions:
        actions[kind, path] = {"gather": gather, "load": load}[kind](covey.open(path))
    action, calls = actions[kind, path], 0
    begin = time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        action()
        calls += 1
    print(json.dumps(passed / calls * 1e6), flush=True)
"""


class Build:
    """A process with one build of covey."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *command: object):
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    builds = [Build(options.old), Build(options.new)]
    with tempfile.TemporaryDirectory() as directory:
        cases = []
        for shards in (8, 128):
            path = f"{directory}/{shards}/birds"
            builds[0].ask("write", path, shards)
            cases += [("gather", path, shards), ("load", path, shards)]
        print("| | shards | old, us | new, us | new / old |\n|---|---|---|---|---|")
        for kind, path, shards in cases:
            times: list[list[float]] = [[], []]
            for number in range(options.rounds):
                for which in (0, 1) if number % 2 else (1, 0):
                    times[which].append(builds[which].ask("run", kind, path, options.seconds))
            old, new = map(statistics.median, times)
            ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
            what = {"gather": "`ds[ids]`, 128 records", "load": "a batch of 32 x 4"}[kind]
            print(f"| {what} | {shards} | {old:.1f} | {new:.1f} | {ratio:.2f} |", flush=True)
    for build in builds:
        build.process.terminate()


if __name__ == "__main__":
    main()
